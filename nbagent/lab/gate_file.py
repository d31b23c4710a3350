"""Finds the batch that `python -m nbagent check` checks: by its name, in a file, in a gate file.

A gate file is a Python file of the person, which is run: it defines `batch`, and in `check` the
arguments of `batch.check`. A notebook and a baseline are read as data; nothing in them is run.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.errors import NbagentError, UsageError, describe_error
from nbagent.files.notebook_file import saved_in_outputs
from nbagent.lab.batch import Batch
from nbagent.lab.check_result import CheckResult
from nbagent.lab.results import BatchResults, CaseResults
from nbagent.lab.saved_notebook import notebook_batches
from nbagent.lab.saved_results import read_batch
from nbagent.lab.stored_batch import batch as open_batch
from nbagent.session.stores import own_stores_for

_OPTIONS = ("min", "max", "not_worse_than", "baseline", "max_worse", "max_failed", "max_cost_usd")
_EXAMPLE = "batch = agent.map(…) and check = {'min': {'exact': 0.9}}"


@dataclass(frozen=True, slots=True)
class Gate:
    """A batch, and the arguments of its check."""

    batch: BatchResults
    check: Mapping[str, Any] = field(default_factory=dict[str, Any])
    result: CheckResult | None = None
    """Result of a check that the gate file made itself."""


def check_gate(
    target: str,
    options: Mapping[str, Any],
    batch_name: str | None,
    only: Mapping[str, str] | None = None,
) -> CheckResult:
    """Open a gate and check it; these options win over those of a gate file.

    Args:
        target: see `open_gate`.
        options: arguments of `BatchResults.check`.
        batch_name: see `open_gate`.
        only: labels of the variants that are checked; default: all.

    Raises:
        UsageError: see `open_gate`, `BatchResults.only` and `BatchResults.check`.
    """
    gate = open_gate(target, batch_name)
    if gate.result is not None:
        if options or only:
            names = ", ".join([*options, *(["only"] if only else [])])
            raise UsageError(f"{target} checks its batch itself; drop {names}")
        return gate.result
    own = dict(gate.check)
    if "not_worse_than" in options:
        own.pop("baseline", None)
    merged = {**own, **options}
    for name in {"min", "max"} & own.keys() & options.keys():
        merged[name] = {**own[name], **options[name]}
    return (gate.batch.only(**only) if only else gate.batch).check(**merged)


def command_labels(texts: Sequence[str]) -> dict[str, str]:
    """Return the labels that `--only` names, by their axes.

    Raises:
        UsageError: one is not written as AXIS=LABEL, or an axis has two.
    """
    labels: dict[str, str] = {}
    for text in texts:
        axis, sign, label = text.partition("=")
        if not sign or not axis or not label:
            raise UsageError(f"--only {text}: write --only AXIS=LABEL, such as prompt=v2")
        if labels.setdefault(axis, label) != label:
            raise UsageError(f"--only {axis}= is given twice; check one label at a time")
    return labels


def command_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `batch.check` that were given in a shell.

    Raises:
        UsageError: a limit is not written as SCORE=NUMBER.
    """
    options: dict[str, Any] = {}
    for name in ("min", "max"):
        if limits := dict(_limit(name, text) for text in arguments[name]):
            options[name] = limits
    if (failed := arguments["max_failed"]) is not None:
        # `1` is a number of cases, `0.05` a share.
        options["max_failed"] = int(failed) if failed.isdecimal() else _float("max_failed", failed)
    for name in ("not_worse_than", "max_worse", "max_cost_usd"):
        if arguments[name] is not None:
            options[name] = arguments[name]
    return options


def _limit(option: str, text: str) -> tuple[str, float]:
    score, sign, limit = text.rpartition("=")
    if not sign or not score:
        raise UsageError(f"--{option} {text}: write --{option} SCORE=NUMBER, such as exact=0.9")
    return score, _float(option, limit)


def _float(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--{option.replace('_', '-')}: {text!r} is not a number") from None


def open_gate(target: str, batch_name: str | None = None) -> Gate:
    """Open a gate.

    Args:
        target: a Python file, a notebook, a baseline's file, or the name of a batch in the store.
        batch_name: the batch of a notebook that holds several.

    Raises:
        UsageError: there is no such batch or file, or the file defines none.
    """
    path = Path(target)
    if path.suffix == ".py":
        return _run(path)
    if path.suffix == ".ipynb":
        return Gate(_of_notebook(path, batch_name))
    return Gate(read_batch(path) if path.suffix == ".json" else open_batch(target))


def _run(path: Path) -> Gate:
    """Run a gate file, and wait for its batch."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}; write one with {_EXAMPLE}")
    # As Python does for a script: the file may import its neighbours.
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        names = runpy.run_path(str(path), run_name="__main__")
    except SystemExit:
        raise UsageError(f"{path} ended itself before its batch was checked") from None
    except NbagentError:
        raise
    except Exception as error:
        raise UsageError(f"{path} failed: {_last_line(error, path)}") from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    batch, check = names.get("batch"), names.get("check")
    if isinstance(check, CheckResult):
        return Gate(CaseResults(check.name, ()), result=check)
    if not isinstance(batch, BatchResults):
        raise UsageError(f"{path} defines no batch; write {_EXAMPLE}")
    if not isinstance(check, Mapping | None):
        raise UsageError(f"{path}: check is a {type(check).__name__}; write {_EXAMPLE}")
    arguments = dict(cast("Mapping[str, Any]", check or {}))
    if unknown := [name for name in arguments if name not in _OPTIONS]:
        raise UsageError(f"{path}: check has no {unknown[0]!r}; it has {', '.join(_OPTIONS)}")
    return Gate(batch.wait() if isinstance(batch, Batch) else batch, arguments)


def _last_line(error: Exception, path: Path) -> str:
    """Return the error with the line of the gate file that raised it."""
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(path):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    where = f" in line {line}" if line else ""
    return f"{describe_error(error)}{where}"


def _of_notebook(path: Path, name: str | None) -> BatchResults:
    try:
        outputs = saved_in_outputs(path)[0]
        documents = [
            document
            for saved in outputs
            for document in (cast("list[Any]", saved) if isinstance(saved, list) else [saved])
        ]
        batches, problems = notebook_batches(documents, own_stores_for(path))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not a readable notebook ({describe_error(error)})") from None
    if name is None and len(batches) == 1:
        return next(iter(batches.values()))
    if name in batches:
        return batches[name]
    known = ", ".join(batches) or "; ".join(problems) or "none: run its cells and save it"
    problem = "say which batch: --batch NAME" if name is None else f"it has no batch {name!r}"
    raise UsageError(f"{path}: {problem}; its batches are {known}")
