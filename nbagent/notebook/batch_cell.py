"""`%%agent --over df`: a cell asks its prompt for each row of a table of the notebook.

Reads what the line says of the batch; what a batch is and how it goes on is in `lab`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbagent.agent import Agent
from nbagent.contracts.errors import UsageError
from nbagent.notebook.line import OF_BATCHES, Line
from nbagent.notebook.prompt_names import own_names
from nbagent.settings.options import RunOptions

if TYPE_CHECKING:
    from nbagent.lab.batch import Batch

_ONE_RUN = {"continue_run": "--continue", "fork": "--fork", "to": "--to", "raw": "--raw"}
"""What means one run."""


def is_batch(options: Line) -> bool:
    """Whether a line asks for a batch.

    Raises:
        UsageError: it says something that does not go together.
    """
    given = options.given
    if options.over is None:
        if alone := [name for name in OF_BATCHES if name in given]:
            flag = Line.rows()[alone[0]].flags[-1]
            raise UsageError(f"{flag} needs a table: name a DataFrame with --over NAME")
        return False
    if one := [flag for name, flag in _ONE_RUN.items() if name in given]:
        raise UsageError(f"{one[0]} is for one run, --over for many; keep one of them")
    return True


def batch_of(options: Line, of_run: RunOptions, template: str, shell: Any) -> Batch:
    """The batch of a cell, which is not begun.

    Args:
        options: the line.
        of_run: those of its options that each run has.
        template: the prompt, to be filled for each row.
        shell: has the notebook's names.

    Raises:
        UsageError: something cannot be done as asked.
    """
    names = {**shell.user_global_ns, **shell.user_ns}
    shared = {k: v for k, v in of_run.given.items() if k not in ("name", "max_cost_usd")}
    return Agent(**shared).map(
        _named(names, options.over or "", "--over"),
        template,
        key=options.row_key,
        vary=_axes(options.vary or (), names),
        repeat=options.repeat or 1,
        name=of_run.name,
        concurrency=options.concurrency or 16,
        max_cost_usd=of_run.max_cost_usd,
        max_failed=options.max_failed,
        score=[_named(names, name, "--score") for name in options.score or ()],
        start=False,
        names={**names, **own_names(shell, template)},
    )


def _named(names: dict[str, Any], name: str, flag: str) -> Any:
    if name not in names:
        raise UsageError(f"{flag} {name}: the notebook has no variable {name!r}; make it first")
    return names[name]


def _axes(given: tuple[str, ...], names: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By axis its values by their labels, as they stood on the line."""
    axes: dict[str, dict[str, Any]] = {}
    for text in given:
        axis, _, words = text.partition("=")
        if axis in axes:
            raise UsageError(f"--vary {axis} stands on the line twice; write {axis}=A,B once")
        labels = [word for part in words.split(",") if (word := part.strip())]
        if len(set(labels)) < len(labels):
            raise UsageError(f"--vary {text}: a value stands there twice; keep one of them")
        axes[axis] = {label: _value(axis, label, names) for label in labels}
    return axes


def _value(axis: str, label: str, names: dict[str, Any]) -> Any:
    """What a word means: the text or the list in a variable of this name, else itself."""
    held = names.get(label) if axis != "model" else None
    if isinstance(held, str | list | tuple):
        return held
    if axis in ("system", "prompt") and label.isidentifier():
        raise UsageError(f"--vary {axis}: the notebook has no text in a variable {label!r}")
    row = RunOptions.rows().get(axis)
    return label if row is None else row.checked((label,) if row.many else label, f"--vary {axis}")
