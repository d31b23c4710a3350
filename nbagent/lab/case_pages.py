"""Page over all cases of a batch: shown in a notebook or written as a file; labels read from files.

`view.case_table` draws it. Here are its options, and the store behind its labels.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

from nbagent.contracts.canonical import json_object, load_json, sha256_hex, utc_now
from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.errors import UsageError
from nbagent.contracts.nearest import nearest_or_all
from nbagent.contracts.records import RunRecord, ScoreRecord
from nbagent.export.case_file import case_file
from nbagent.export.written_file import write_export
from nbagent.lab.plan import is_secret_axis
from nbagent.lab.review import MAX_SCALE, PERSON, checked_person, score
from nbagent.lab.scorers import TEXT_CHARS, checked_name
from nbagent.session.frontend import frontend
from nbagent.settings.sources import to_path
from nbagent.shown.texts import safe_repr
from nbagent.store.batches import save_labels
from nbagent.store.writer import Store
from nbagent.view.batch import BatchProgress, is_active
from nbagent.view.case_columns import DEFAULT_LABEL, columns_of_cases
from nbagent.view.case_table import cases_text

_WHOLE = range(1, MAX_SCALE + 1)
_MAX_LABEL_BYTES = 50_000_000
_MAX_LABELS = 100_000
_FORMATS = ("html",)


class CasesOfBatch(Protocol):
    """A batch with cases."""

    name: str

    def results(self) -> Sequence[CaseResult]: ...

    def variant_texts(self) -> Sequence[tuple[str, str, str]]: ...

    @property
    def run_loader(self) -> Callable[[str], RunRecord | None] | None: ...


class BatchWithRuns(CasesOfBatch, Protocol):
    """A batch whose runs are in a store."""

    _store: Store

    @property
    def progress(self) -> BatchProgress: ...


def page_options(
    label: str = DEFAULT_LABEL, scale: int = 5, by: str = "person", is_blind: bool = False
) -> dict[str, Any]:
    """Check the options of a page and return them.

    Raises:
        UsageError: the name, the scale or the person is not valid.
    """
    if type(scale) is not int or not (scale == 0 or 2 <= scale <= MAX_SCALE):
        raise UsageError(
            f"scale={safe_repr(scale, 100)}: give a whole number from 2 to {MAX_SCALE}, or 0 for "
            "yes and no"
        )
    return {
        "label": checked_name(label),
        "scale": scale,
        "by": checked_person(by),
        "is_blind": bool(is_blind),
    }


def varied_texts(vary: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    """Return axis, label and text of each value of `vary` that is a named text."""
    return tuple(
        (axis, str(label), text)
        for axis, values in vary.items()
        if isinstance(values, Mapping)
        for label, text in cast("Mapping[Any, Any]", values).items()
        if isinstance(text, str) and text != str(label) and not is_secret_axis(axis)
    )


def system_texts(
    results: Sequence[CaseResult], load: Callable[[str], RunRecord | None]
) -> tuple[tuple[str, str, str], ...]:
    """Return the system prompt of each label of the axis `system`, from a run with it."""
    ids = {c.labels["system"]: c.run_id for c in results if c.run_id and "system" in c.labels}
    runs = [(label, load(run_id)) for label, run_id in ids.items()]
    return tuple(
        ("system", label, text)
        for label, run in runs
        for text in ([*run.system_prompts.values()][:1] if run else [])
    )


@dataclass(eq=False)
class BatchCases:
    """The cases of a batch as a page reads them; see `session.frontend.CaseSource`."""

    batch: BatchWithRuns
    options: Mapping[str, Any] = field(default_factory=page_options)
    score_names: Sequence[str] = ()
    watchers: list[Callable[[], object]] = field(default_factory=list[Callable[[], object]])
    """Gets the function to call after a change; a list of the batch."""

    def __post_init__(self) -> None:
        """Add the texts of the variants to the options."""
        self.options = {**self.options, "legend": (*self.batch.variant_texts(),)}

    @property
    def name(self) -> str:
        """Name of the batch."""
        return self.batch.name

    @property
    def state(self) -> str:
        """State of the batch while it works, else empty."""
        progress = self.batch.progress
        return progress.state if is_active(progress) else ""

    def results(self) -> Sequence[CaseResult]:
        """Return the present cases."""
        return page_cases(self.batch.results(), self.options)

    def record(self, run_id: str) -> RunRecord:
        """Load a run."""
        return self.batch._store.load(run_id)  # pyright: ignore[reportPrivateUsage]

    def label(self, run_id: str, value: float | bool, reason: str | None) -> ScoreRecord:
        """Store a person's label of a run."""
        options = self.options
        return score(run_id, options["label"], value, by=options["by"], reason=reason)

    def watch(self, on_change: Callable[[], object]) -> None:
        """Call `on_change` after cases have changed."""
        self.watchers.append(on_change)


def page_cases(results: Sequence[CaseResult], options: Mapping[str, Any]) -> Sequence[CaseResult]:
    """Return the cases as the person of a page may see them.

    The labels of others with the page's name are hidden until the person has given one. A blind
    page is ordered by a hash that reveals nothing of the variants.
    """
    shown = [_without_labels_of_others(case, options["label"], options["by"]) for case in results]
    if not options["is_blind"]:
        return shown
    return sorted(shown, key=lambda case: sha256_hex(repr((case.row_key, case.variant))))


def _without_labels_of_others(case: CaseResult, label: str, by: str) -> CaseResult:
    people = {score.by for score in case.scores if score.scorer == label and score.is_label}
    if not people or by in people:
        return case
    scores = tuple(s for s in case.scores if s.scorer != label or not s.is_label)
    return replace(case, scores=scores)


def show_page(source: BatchCases) -> None:
    """Show the page; without a front end, print the first cases."""
    if not frontend().show_cases(source):
        results = source.results()
        columns = columns_of_cases(results, source.name, source.score_names, **source.options)
        note = "batch.export('html', 'cases.html') writes a page with filters, runs and labels"
        print(cases_text(columns, results, note))


def export_cases(
    batch: CasesOfBatch,
    format: str,
    path: str | os.PathLike[str] | None,
    options: Mapping[str, Any],
) -> str:
    """Export all cases as text, and write it to `path` if one is given.

    Raises:
        UsageError: the format is unknown, or the file cannot be written.
    """
    if format not in _FORMATS:
        hint = nearest_or_all(format, _FORMATS, "take one of")
        raise UsageError(f"format={safe_repr(format, 40)} is unknown{hint}")
    results = page_cases(batch.results(), options)
    legend = (*batch.variant_texts(),)
    columns = columns_of_cases(results, batch.name, **options, legend=legend)
    text = case_file(results, columns, load=batch.run_loader)
    if path is not None:
        write_export(text, path)
    return text


# Labels of a file


@dataclass(frozen=True, slots=True)
class _Label:
    run_id: str
    value: bool | float
    reason: str | None


def add_labels(batch: BatchWithRuns, path: str | os.PathLike[str], by: str | None) -> int:
    """Store the labels that a page exported; none if one of them cannot be stored.

    Args:
        batch: their batch.
        path: the file `labels.json`.
        by: name of the person; by default the one that the file names.

    Raises:
        UsageError: the file has no labels, or labels of runs that the batch does not have.
    """
    file = to_path(path, "path")
    content = _read(file)
    labels = [_label(item, content.get("scale"), file) for item in content["labels"]]
    if repeated := next((run for run, n in Counter(x.run_id for x in labels).items() if n > 1), ""):
        raise UsageError(
            f"{file} has two labels of run {safe_repr(repeated[:40], 60)}; nothing was stored: "
            "leave one of them in the file"
        )
    name = checked_name(content.get("name", DEFAULT_LABEL))
    person = _person_of(content, by, file)
    _refuse_foreign(batch, labels, name, file)
    now = utc_now()
    scores = [
        ScoreRecord(
            run_id=label.run_id,
            scorer=name,
            value=label.value,
            reason=label.reason,
            by=person,
            at=now,
        )
        for label in labels
    ]
    try:
        save_labels(batch._store, scores)  # pyright: ignore[reportPrivateUsage]
    except UsageError as error:
        raise UsageError(f"{error.message}; nothing was stored", code=error.code) from None
    return len(scores)


def _refuse_foreign(batch: CasesOfBatch, labels: Sequence[_Label], name: str, file: Path) -> None:
    """Raise UsageError for labels of other runs, or with the name of a scorer."""
    results = batch.results()
    known = {result.run_id for result in results if result.run_id}
    foreign = [label.run_id for label in labels if label.run_id not in known]
    if foreign:
        raise UsageError(
            f"{len(foreign):,} of {len(labels):,} labels in {file} are of runs that batch "
            f"{batch.name!r} does not have, such as {safe_repr(foreign[0][:40], 60)}; nothing was "
            "stored: export the labels from a page of this batch"
        )
    if any(s.scorer == name and not s.is_label for r in results for s in r.scores):
        raise UsageError(
            f"score {name!r} of this batch is by a scorer; nothing was stored: export "
            "the labels under another name"
        )


def _person_of(content: Mapping[str, Any], by: str | None, file: Path) -> str:
    """Return the name of who labelled."""
    try:
        return checked_person(content.get("by", PERSON) if by is None else by)
    except UsageError as error:
        if by is not None:
            raise
        raise UsageError(f"{file}: {error.message}; say who labelled: by='anna'") from None


def _read(file: Path) -> dict[str, Any]:
    """Read a file of labels."""
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would wait
            raise UsageError(f"{file} cannot be read (it is no file)")
        if status.st_size > _MAX_LABEL_BYTES:
            raise UsageError(f"{file} is larger than 50 MB and no file of labels")
        content = json_object(load_json(file.read_bytes()))
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        content = None
    labels = content.get("labels") if content else None
    version = content.get("nbagent_labels") if content else None
    if content is None or type(version) is not int or version != 1 or not isinstance(labels, list):
        raise UsageError(
            f"{file} has no labels; a page of batch.export('html') writes them: Export labels"
        )
    if len(cast("list[Any]", labels)) > _MAX_LABELS:
        raise UsageError(f"{file} has more than {_MAX_LABELS:,} labels")
    return content


def _label(item: object, scale: object, file: Path) -> _Label:
    """Check one label of a file: 1 to the scale of the page, or yes and no if that is 0."""
    fields = json_object(item) or {}
    run_id, value, why = fields.get("run_id"), fields.get("value"), fields.get("reason") or None
    highest = scale if type(scale) is int and 2 <= scale <= MAX_SCALE else MAX_SCALE
    if isinstance(value, bool):
        is_on_scale = scale in (None, 0)
    else:
        is_on_scale = scale != 0 and isinstance(value, int | float) and value in _WHOLE[:highest]
    if not (is_on_scale and isinstance(run_id, str) and isinstance(why, str | None)):
        raise UsageError(
            f"{file}: {safe_repr(item, 100)} is no label; nothing was stored: a label has the "
            f"id of a run, and a value: true or false, or on a scale 1 to {highest}"
        )
    plain = value if isinstance(value, bool) else float(cast("float", value))
    return _Label(run_id, plain, why[:TEXT_CHARS] if why else None)
