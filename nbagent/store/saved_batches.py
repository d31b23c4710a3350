"""Results of a batch as JSON lines of a bounded size, for a baseline's file and a saved notebook.

Data only: names, numbers and texts, without the records of runs. What is read here may come from
anybody, so it is checked here, once.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from nbagent.contracts.canonical import dump_json, json_object, load_json, sha256_hex
from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.records import MAX_SCORE, ScoreRecord
from nbagent.contracts.secrets import redact, redact_json, register_environment
from nbagent.shown.images import of_class
from nbagent.shown.values import to_text
from nbagent.store.columns import VERSION
from nbagent.store.record_cells import Row

SCHEMA = 1
"""Version of the form. A version that an older nbagent would misread gets the next number."""
_MARK = "nbagent_batch"
_TEXT_LIMITS = (8_000, 4_000, 2_000, 1_000, 500, 350, 200, 80, 0)
"""Characters of each text, the most that fits; at 0 there are only numbers and names."""
_CELL_CHARS = 200
_CELL_START_CHARS = 120
_MAX_CELL_TEXT = 100_000
_NAME_CHARS = 500
"""Characters of a key, a label or the name of a column."""
_MAX_AXES = 100
_MAX_INTEGER = 2**53
_COLUMNS = {
    *("row_key", "attempt", "run_id", "ok", "state", "value", "stop_reason", "error", "text"),
    *("turns", "total_tokens", "cost_usd", "duration_ms", "tools_used"),
}
"""Columns of `frame()` and `cells()` beside the axes; no option of a run has such a name."""
_COLUMN_STARTS = ("score_", "output_")
_BATCH_NAME_CHARS = 200
_BY_COLUMN = ("run_id", "duration_ms")
"""Fields that differ each time: they are in the last line, so that diffs stay readable."""
_TEXTS = ("text", "prompt", "why")
_CELLS = ("cells", "output")
_NOT_SAVED = {"run_id", "at", "row", "judge_run_id"}
"""Fields of a score: its case has the run, the last line the time; of `row` it is saved whether
there is one, which a label by hand has not."""
_NOTEBOOK_BYTES = 1_000_000
_VERSIONS = {"version": VERSION, "oldest_reader": VERSION + 1}
"""An nbagent that knows no saved batches says that a newer one is needed."""
_EPOCH = datetime.fromtimestamp(0, UTC)


class SavedBatchError(ValueError):
    """A saved batch cannot be read; the text says why in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBatch:
    """A batch as it was saved."""

    name: str
    axes: dict[str, list[str]]
    results: tuple[CaseResult, ...]
    notes: tuple[str, ...] = field(default=())
    """Sentences that say what was left out."""


def plain_cell(value: Any) -> Any:
    """Return a cell as JSON; a long text as its start and its hash.

    Equal cells stay equal, so that a saved row can be compared with a row of a table.
    """
    cell = json_cell(value, _identifying_text)
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)  # pandas makes floats of integers beside missing values
    is_large = isinstance(cell, int) and abs(cell) >= 2**63
    return _identifying_text(cell) if is_large else cell


def _identifying_text(value: Any) -> str:
    text = redact(value if isinstance(value, str) else to_text(value, _MAX_CELL_TEXT))
    if len(text) <= _CELL_CHARS:
        return text
    return f"{text[:_CELL_START_CHARS]}… [{len(text):,} characters, {sha256_hex(text)[:8]}]"


def json_cell(cell: Any, as_text: Callable[[Any], str]) -> Any:
    """Return a cell of a table as JSON: a missing or infinite one as None, others by `as_text`."""
    if of_class(cell, "numpy", "generic"):
        cell = cell.item()
    if cell is None or isinstance(cell, bool | int):
        return cell
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else None
    return None if _is_missing(cell) else as_text(cell)


def _is_missing(cell: Any) -> bool:
    try:
        return not isinstance(cell, str) and bool(cell != cell)
    except TypeError:  # pandas.NA
        return True
    except ValueError:  # an array
        return False


# Results → lines


def batch_lines(
    name: str, axes: Mapping[str, Sequence[str]], results: Sequence[CaseResult], *, max_bytes: int
) -> list[str]:
    """Encode a batch as lines of JSON: a head, one line for each case, and what differs each time.

    Texts are cut until the lines fit into `max_bytes`. If numbers and names alone do not fit, the
    last rows are left out. The head says what was left out.
    """
    register_environment()  # a key may have been put there a moment ago
    fitting = bisect_left(
        _TEXT_LIMITS, True, key=lambda limit: _fits(_lines(name, axes, results, limit), max_bytes)
    )
    if fitting < len(_TEXT_LIMITS):
        return _lines(name, axes, results, _TEXT_LIMITS[fitting])
    lines = _lines(name, axes, results, 0)
    sizes = defaultdict[str, int](int)
    for result, line in zip(results, lines[1:-1], strict=True):
        sizes[result.row_key] += _size(line) + 60  # its part of the last line
    left, rows = max_bytes - _size(lines[0]) - 200, set[str]()
    for key, size in sizes.items():
        left -= size
        if left < 0:
            break
        rows.add(key)
    some = [result for result in results if result.row_key in rows]
    return _lines(name, axes, some, 0, n_left_out=len(results) - len(some))


def _fits(lines: Iterable[str], max_bytes: int) -> bool:
    for line in lines:
        max_bytes -= _size(line)
        if max_bytes < 0:
            return False
    return True


def _size(line: str) -> int:
    """Return the size of a line as a string of a notebook's file, with its indent."""
    return len(line.encode()) + line.count('"') + line.count("\\") + 12


def _lines(
    name: str,
    axes: Mapping[str, Sequence[str]],
    results: Sequence[CaseResult],
    limit: int,
    n_left_out: int = 0,
) -> list[str]:
    cuts = _Cuts(limit)
    cases = [_case_json(result, cuts) for result in results]
    head: dict[str, Any] = {
        _MARK: short_name(name),
        "schema": SCHEMA,
        "oldest_reader": SCHEMA,
        "axes": {short_name(axis): [*map(short_name, labels)] for axis, labels in axes.items()},
        "cases": len(cases),
    }
    head |= {"texts_cut_at": limit} if cuts.n_cut else {}
    head |= {"cases_left_out": n_left_out} if n_left_out else {}
    last: dict[str, Any] = {
        column: [getattr(result, column) for result in results] for column in _BY_COLUMN
    }
    times = [score.at for result in results for score in result.scores]
    last |= {"scored_at": max(times).isoformat()} if times else {}
    return [dump_json(redact_json(line)).decode() for line in (head, *cases, last)]


@dataclass(slots=True)
class _Cuts:
    """Cuts texts at a limit, and counts them."""

    limit: int
    n_cut: int = 0

    def text(self, text: str) -> str:
        text = redact(text)  # before the cut: half a key matches nothing any more
        if len(text) <= self.limit:
            return text
        self.n_cut += 1
        return f"{text[: self.limit]}…" if self.limit else ""

    def cells(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        if self.limit < _CELL_CHARS:
            # Without them a row is known by its key only.
            self.n_cut += bool(cells)
            return {}
        return {short_name(str(column)): plain_cell(cell) for column, cell in cells.items()}


def short_name(text: str) -> str:
    """Return a name; a very long one as its start and its hash, so that names stay different."""
    text = redact(text)
    if len(text) <= _NAME_CHARS:
        return text
    return f"{text[: _NAME_CHARS // 2]}… [{sha256_hex(text)[:16]}]"


def _case_json(result: CaseResult, cuts: _Cuts) -> dict[str, Any]:
    """Encode a case without the values that are the default."""
    labels = {short_name(axis): short_name(label) for axis, label in result.labels.items()}
    made: dict[str, Any] = {"row_key": short_name(result.row_key), "labels": labels}
    for name, default in _defaults().items():
        value: Any = getattr(result, name)
        if value == default or name in _BY_COLUMN:
            continue
        if name in _TEXTS:
            made[name] = cuts.text(value)
        elif name in _CELLS:
            made[name] = cuts.cells(value)
        elif name not in ("scores", "tools"):
            made[name] = value
    if result.tools:
        made["tools"] = [
            {"name": short_name(use.name), "calls": use.calls, "failed": use.failed}
            for use in result.tools
        ]
    if result.scores:
        made["scores"] = [_score_json(score, cuts) for score in result.scores]
    return made


@cache
def _defaults() -> dict[str, Any]:
    """Return the default of each field of a case."""
    return {
        item.name: item.default
        if item.default is not MISSING
        else item.default_factory()
        if item.default_factory is not MISSING
        else MISSING
        for item in fields(CaseResult)
        if item.name not in ("row_key", "labels")
    }


def _score_json(score: ScoreRecord, cuts: _Cuts) -> dict[str, Any]:
    made = score.model_dump(
        mode="json", exclude=_NOT_SAVED, exclude_none=True, exclude_defaults=True
    )
    if score.row is None:
        made["by_hand"] = True
    for name in ("reason", "error"):
        if name in made:
            made[name] = cuts.text(made[name])
    if isinstance(score.value, float) and not math.isfinite(score.value):
        made.pop("value", None)
        made["error"] = f"the scorer returned {score.value}"
    return made


# Lines → results


def read_batch_lines(lines: Sequence[Any]) -> SavedBatch:
    """Decode a batch from lines, or from their JSON values.

    Raises:
        SavedBatchError: it is no saved batch, it is damaged, or a newer nbagent saved it.
    """
    try:
        values = [load_json(line) if isinstance(line, str) else line for line in lines]
        head, *cases = values
        last = cases.pop()
        name, axes = _read_head(head, len(cases))
        results = _read_cases(cases, last)
    except SavedBatchError:
        raise
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise SavedBatchError(f"it is damaged: case {at}: {first['msg']}") from None
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        raise SavedBatchError("it is damaged, or no saved batch") from None
    _check_cases(axes, results)
    return SavedBatch(name=name, axes=axes, results=results, notes=_notes(head))


def saved_batch_name(lines: Any) -> str:
    """Return the name of a saved batch without decoding it; empty for what is none."""
    try:
        head = json_object(load_json(lines[0]) if isinstance(lines[0], str) else lines[0])
    except (ValueError, TypeError, LookupError, RecursionError):
        return ""
    name = (head or {}).get(_MARK)
    return name if isinstance(name, str) else ""


def _read_head(head: Any, n_cases: int) -> tuple[str, dict[str, list[str]]]:
    if json_object(head) is None or not isinstance(head.get(_MARK), str):
        raise SavedBatchError("it is no saved batch")
    schema, oldest_reader = head.get("schema"), head.get("oldest_reader", head.get("schema"))
    if type(schema) is not int or type(oldest_reader) is not int:
        raise SavedBatchError("it is no saved batch: its schema is not a number")
    if oldest_reader > SCHEMA:
        raise SavedBatchError(
            f"it was saved by a newer nbagent (schema {schema}; this one reads {SCHEMA}); "
            "upgrade nbagent"
        )
    if head["cases"] != n_cases:
        raise SavedBatchError(
            f"it is damaged: {n_cases:,} of its {head['cases']:,} cases are there"
        )
    axes = TypeAdapter(dict[str, list[str]]).validate_python(head["axes"])
    for axis in axes:
        if axis in _COLUMNS or axis.startswith(_COLUMN_STARTS):
            raise SavedBatchError(f"it is damaged: {axis!r} is a column, and no axis")
    name = " ".join(head[_MARK].split())[:_BATCH_NAME_CHARS]
    if not name or len(axes) > _MAX_AXES:
        raise SavedBatchError("it is damaged: no name, or too many axes")
    return name, axes


def _read_cases(cases: Sequence[Any], last: Any) -> tuple[CaseResult, ...]:
    at = datetime.fromisoformat(last["scored_at"]) if "scored_at" in last else _EPOCH
    if at.tzinfo is None:
        raise ValueError(f"{last['scored_at']} has no time zone")
    columns = {name: last.get(name, [None] * len(cases)) for name in _BY_COLUMN}
    complete: list[dict[str, Any]] = []
    for position, case in enumerate(cases):
        mine = {name: values[position] for name, values in columns.items()}
        run_id = mine["run_id"] or ""
        own = {"run_id": run_id, "at": at}
        scores: list[dict[str, Any]] = [
            {**score, **own, "row": None if score.get("by_hand") else {}}
            for score in case.get("scores", ())
        ]
        complete.append({**case, **mine, "run_id": run_id, "scores": scores})
    if any(len(values) != len(cases) for values in columns.values()):
        raise SavedBatchError("it is damaged: the ids of its runs do not fit its cases")
    return TypeAdapter(tuple[CaseResult, ...]).validate_python(complete)


def _check_cases(axes: Mapping[str, Sequence[str]], results: Sequence[CaseResult]) -> None:
    """Refuse cases that are there twice, have other axes, or hold numbers that are none."""
    known = set[tuple[Any, ...]]()
    for result in results:
        key = (result.row_key, *sorted(result.labels.items()), result.attempt)
        if key in known:
            raise SavedBatchError(f"it is damaged: row {result.row_key!r} is there twice")
        known.add(key)
        if result.labels.keys() != axes.keys() or any(
            label not in axes[axis] for axis, label in result.labels.items()
        ):
            raise SavedBatchError(f"it is damaged: row {result.row_key!r} has unknown labels")
        if not all(map(_fits_a_column, _numbers(result))):
            raise SavedBatchError(
                f"it is damaged: row {result.row_key!r} has an infinite number, or one that no "
                "batch has"
            )
        if result.attempt < 1:
            raise SavedBatchError(f"it is damaged: row {result.row_key!r} has attempt 0 or less")


def _numbers(result: CaseResult) -> Iterable[Any]:
    yield from (result.attempt, result.turns, result.total_tokens)
    yield from (result.cost_usd, result.recorded_usd, result.duration_ms)
    for use in result.tools:
        yield from (use.calls, use.failed)
    for score in result.scores:
        yield from (score.value, score.version)


def _fits_a_column(number: Any) -> bool:
    """True if the columns of a frame hold it, and sums of it, or if it is no number."""
    if isinstance(number, float):
        return abs(number) <= MAX_SCORE  # False for NaN
    return not isinstance(number, int) or abs(number) <= _MAX_INTEGER


def _notes(head: Mapping[str, Any]) -> tuple[str, ...]:
    notes: list[str] = []
    if type(limit := head.get("texts_cut_at")) is int:
        cut = f"texts are cut at {limit:,} characters" if limit else "texts are left out"
        notes.append(f"{cut}; the store has the whole runs")
    if type(n_left_out := head.get("cases_left_out")) is int:
        notes.append(f"{n_left_out:,} cases are left out: the batch is too large to be saved here")
    return tuple(notes)


# A file of its own


def file_text(lines: Iterable[str]) -> str:
    """Return the file of a baseline: a JSON array, one line for each case."""
    return "[\n" + ",\n".join(lines) + "\n]\n"


def read_file_text(text: str) -> SavedBatch:
    """Decode the file of a baseline.

    Raises:
        SavedBatchError: see `read_batch_lines`.
    """
    try:
        lines = load_json(text)
    except (ValueError, RecursionError):
        raise SavedBatchError("it is not whole, or no JSON") from None
    if not isinstance(lines, list) or not lines:
        raise SavedBatchError("it is no saved batch")
    return read_batch_lines(cast("list[Any]", lines))


# A saved notebook


def to_notebook_batch(
    name: str, axes: Mapping[str, Sequence[str]], results: Sequence[CaseResult], choice: str
) -> Row:
    """Encode a batch for the metadata of an output; one line of the file for each case.

    Args:
        name: its name.
        axes: the labels of each axis.
        results: its cases.
        choice: the setting `records`; `off` saves the name only. `own` and `all` are one: tools'
            results are not saved in any case.
    """
    if choice == "off":
        return batch_reference(name)
    return {**_VERSIONS, "batch": batch_lines(name, axes, results, max_bytes=_NOTEBOOK_BYTES)}


def batch_reference(name: str) -> Row:
    """Refer to a batch in the metadata of a notebook, which may be saved before its end."""
    register_environment()
    return {**_VERSIONS, "batch": [dump_json({_MARK: short_name(name)}).decode()]}


def is_batch(document: Any) -> bool:
    """True if a document of an output's metadata is a batch, whole or by its name."""
    return "batch" in (json_object(document) or {})


def from_notebook_batch(document: Any) -> SavedBatch | str:
    """Decode a batch from the metadata of an output; only its name if no more was saved.

    Raises:
        SavedBatchError: see `read_batch_lines`.
    """
    lines = document["batch"]
    if not isinstance(lines, list):
        raise SavedBatchError("it is no saved batch")
    lines = cast("list[Any]", lines)
    if len(lines) == 1 and (name := saved_batch_name(lines)):
        return name
    return read_batch_lines(lines)
