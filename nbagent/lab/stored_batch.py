"""Batch in the store: its document, and its results by its name, without its table or models."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.errors import UsageError
from nbagent.contracts.nearest import nearest_or_all
from nbagent.contracts.records import Case
from nbagent.lab.case_state import CaseState, assign_earlier_runs
from nbagent.lab.frames import read_results
from nbagent.lab.plan import MapOptions, PlannedCase, Row, Table, Variant, key_text
from nbagent.lab.results import BatchResults, axes_of
from nbagent.run import Run, open_run, public_names
from nbagent.session.request import RunRequest
from nbagent.session.stores import store_to_read
from nbagent.session.template import Rendered, Template
from nbagent.settings.options import RunOptions
from nbagent.shown.images import of_class
from nbagent.shown.values import to_text
from nbagent.store.batches import batch_doc, batch_names, runs_of_batch
from nbagent.store.columns import CORRUPT_ROW
from nbagent.store.writer import Store
from nbagent.view.text_format import pluralize

if TYPE_CHECKING:
    from pandas import DataFrame


_MAX_CELL_CHARS = 20_000
_MAX_TABLE_BYTES = 16_000_000
"""Larger tables are not copied into the store: their batch has row keys only, when it is opened."""
_NO_PLAN = "was made by an earlier version, which did not store its plan"


class AgentOfBatch(Protocol):
    """The part of `nbagent.Agent` that continues a batch."""

    def map(self, data: Any, /, **how: Any) -> BatchInStore: ...


# The document


def plan_doc(
    table: Table, planned: Sequence[PlannedCase], how: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a batch needs to be opened by its name, as JSON values.

    Args:
        table: its table.
        planned: all of its cases.
        how: arguments of `map`, as JSON values, with which it can be continued.
    """
    variants = [*{id(case.variant): case.variant for case in planned}.values()]
    return {
        "variants": [variant.labels for variant in variants],
        "repeat": max(case.case.attempt for case in planned),
        "keys": [*table.keys],
        "shas": [case.case.sha for case in planned],
        "table": _table_doc(table),
        "map": dict(how),
    }


def _table_doc(table: Table) -> dict[str, Any] | None:
    rows = [[json_cell(cell) for cell in row.values()] for row in table.rows]
    if len(dump_json(rows)) > _MAX_TABLE_BYTES:
        return None
    data: Any = table.data
    dtypes = [str(dtype) for dtype in data.dtypes]
    return {"columns": [*table.columns], "dtypes": dtypes, "rows": rows}


def json_cell(cell: Any) -> Any:
    """Return a cell of a table as a JSON value; other values as text, missing ones as None."""
    if of_class(cell, "numpy", "generic"):
        cell = cell.item()
    if cell is None or isinstance(cell, bool | int):
        return cell
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else None
    if not isinstance(cell, str) and _is_missing(cell):
        return None
    return to_text(cell, _MAX_CELL_CHARS)


def _is_missing(cell: Any) -> bool:
    try:
        return bool(cell != cell)
    except TypeError:  # pandas.NA
        return True
    except ValueError:  # an array
        return False


def map_doc(template: str, how: MapOptions) -> dict[str, Any]:
    """Return the arguments of `map` that can be stored; `not_stored` names axes that cannot."""
    axes: dict[str, Any] = {**(how.vary or {})}
    unstored = [axis for axis, values in axes.items() if not _is_storable(axis, values)]
    made: dict[str, Any] = {"template": template, "key": how.key, "repeat": how.repeat}
    if axes and not unstored:
        made["vary"] = axes
    return {**made, "not_stored": unstored} if unstored else made


def _is_storable(axis: str, values: Any) -> bool:
    """True for plain values that cannot hold a key: no tools, models as objects, headers."""
    row = RunOptions.rows().get(axis)
    if row is not None and row.secret:
        return False
    listed: list[Any] = [*values.values()] if isinstance(values, Mapping) else [*values]
    return all(map(_is_plain, listed))


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, cast("Sequence[Any]", value)))
    return value is None or type(value) in (str, bool, int, float)


# Results from the store


class BatchInStore(BatchResults):
    """Batch whose runs and scores are in a store."""

    _store: Store

    @abstractmethod
    def resume(self) -> Self:
        """Continue with the missing cases, and wait."""

    def open_run(self, key: Any, *, attempt: int = 1, **variant: str) -> Run:
        """Return the run that answered a row, in the variant with these labels.

        Raises:
            UsageError: there is no such run (yet), or several.
        """
        matches = [result for result in self.results() if _is_case(result, key, attempt, variant)]
        if len(matches) != 1 or not matches[0].run_id:
            problem = "is no run" if len(matches) < 2 else "are runs of several variants"
            raise UsageError(
                f"there {problem} of row {key!r}, attempt {attempt}"
                f"{''.join(f', {axis}={label}' for axis, label in variant.items())}; the axes are "
                f"{', '.join(self.axes) or 'none'}"
            )
        return open_run(matches[0].run_id)

    def review(
        self,
        name: str = "review",
        *,
        scale: int = 5,
        seed: int = 0,
        by: str = "person",
        reason: bool = False,
    ) -> None:
        """Let a person label the answers from 1 to `scale`, without seeing the variant.

        Several people may review one batch: each gives a name, sees no labels of others, and
        continues with the answers that this person has not labelled yet. `agreement` compares them.

        Args:
            name: name of the score.
            scale: best label, 2 to 5.
            seed: seed of the order.
            by: name of the person.
            reason: require a reason for each label.
        """
        # Deleted runs (`%agent forget`) are left out.
        there = {case_run.run.id for case_run in runs_of_batch(self._store, self.name)}
        cases = [
            (result.cells, result.run_id)
            for result in self.results()
            if result.status == "ok" and result.run_id in there
        ]
        # Late: a review imports the code that asks a person.
        from nbagent.lab.review import Review

        review = Review(
            cases, name=name, scale=scale, seed=seed, by=by, reason=reason, store=self._store
        )
        review.run()


def _is_case(result: CaseResult, key: Any, attempt: int, variant: Mapping[str, str]) -> bool:
    labels = all(result.labels.get(axis) == str(label) for axis, label in variant.items())
    return result.row_key == key_text(key) and result.attempt == attempt and labels


@dataclass(frozen=True, slots=True)
class _StoredTable:
    """Table of a batch as it was stored: its keys, and their cells by column."""

    columns: Sequence[str]
    dtypes: Sequence[str]
    rows: Mapping[str, Mapping[str, Any]]


class StoredBatch(BatchInStore):
    """Batch opened by its name: its results, as they are in the store now.

    Nothing is asked or scored; `nbagent.batch(name, data=…, agent=…)` continues it.
    """

    def __init__(self, store: Store, name: str, doc: Mapping[str, Any]) -> None:
        """Open the batch with this document; a damaged one counts as none."""
        self.name, self._store = name, store
        self._doc: Mapping[str, Any] = doc
        self._table, self._planned = _stored_table({}), list[Case]()
        try:
            self._table, self._planned = _stored_table(doc), planned_cases(name, doc)
        except CORRUPT_ROW:
            self._doc = {}

    @property
    def axes(self) -> dict[str, list[str]]:
        """Labels of each axis."""
        variants = [case.variant for case in self._planned]
        return axes_of(variants) if variants else super().axes

    def results(self) -> tuple[CaseResult, ...]:
        """Return all cases in their order: rows, then variants, then repeats."""
        entries = self._entries()
        rows = self._table.rows
        cells = [rows.get(entry.planned.case.row_key, {}) for entry in entries]
        return read_results(self._store, entries, {}, cells)

    def _entries(self) -> list[CaseState]:
        """Build the cases of the plan, or of the runs where no plan is stored."""
        runs = runs_of_batch(self._store, self.name)
        cases = self._planned or [case_run.case for case_run in runs]
        variants: dict[tuple[str, ...], Variant] = {}
        planned = dict[tuple[str, ...], PlannedCase]()
        for case in cases:
            labels = tuple(case.variant.values())
            if labels not in variants:
                variants[labels] = Variant(case.variant, RunRequest(), Template(""))
            key = (case.row_key, *labels, str(case.attempt))
            planned[key] = PlannedCase(0, Row({}), variants[labels], case, Rendered("", (), ()))
        entries = [CaseState(item) for item in planned.values()]
        assign_earlier_runs(entries, runs, keep=not self._doc.get("shas"))
        return entries

    def _rows(self, results: Sequence[CaseResult]) -> DataFrame:
        rows: Any = super()._rows(results)
        for column, dtype in zip(self._table.columns, self._table.dtypes, strict=True):
            rows[column] = _with_dtype(rows[column], dtype)
        has_key_column = self._doc.get("map", {}).get("key") in self._table.columns
        return rows.drop(columns="row_key") if has_key_column else rows

    def continued(self, data: Any, agent: AgentOfBatch, **options: Any) -> BatchInStore:
        """Plan it again with its table and an agent, with the stored arguments of `map`."""
        how = self._doc.get("map")
        if how is None:
            raise UsageError(
                f"batch {self.name!r} {_NO_PLAN}; repeat the call of agent.map with its name"
            )
        if unstored := how.get("not_stored"):
            raise UsageError(
                f"batch {self.name!r} varies {', '.join(unstored)} by values that are no text; "
                "repeat the call of agent.map with its name"
            )
        arguments: dict[str, Any] = {**how, "name": self.name, "start": False, **options}
        return agent.map(data, **arguments)

    def resume(self) -> Self:
        """Refuse: a name alone does not say which table and agent to use."""
        raise UsageError(
            f"batch {self.name!r} was opened by its name only; to continue it: "
            f"nbagent.batch({self.name!r}, data=TABLE, agent=AGENT).resume()"
        )

    def __dir__(self) -> list[str]:
        """Public names only, as Tab offers them."""
        return public_names(super().__dir__(), {"continued"})

    def __repr__(self) -> str:
        results = self.results()
        done = sum(result.status in ("ok", "ended", "failed") for result in results)
        return f"<StoredBatch {self.name}, {done} of {pluralize(len(results), 'case')} done>"


def planned_cases(batch: str, doc: Mapping[str, Any]) -> list[Case]:
    """Return the cases of a stored plan, in their order; none without a plan."""
    shas = iter(doc.get("shas", ()))
    return [
        Case(batch=batch, row_key=key, variant=labels, attempt=attempt, sha=next(shas, ""))
        for key in doc.get("keys", ())
        for labels in doc["variants"]
        for attempt in range(1, doc["repeat"] + 1)
    ]


def _stored_table(doc: Mapping[str, Any]) -> _StoredTable:
    table = doc.get("table")
    if table is None:
        return _StoredTable((), (), {})
    rows = {
        key: dict(zip(table["columns"], cells, strict=True))
        for key, cells in zip(doc["keys"], table["rows"], strict=True)
    }
    return _StoredTable(table["columns"], table["dtypes"], rows)


def _with_dtype(column: Any, dtype: str) -> Any:
    """Return a column with the dtype that the person's table had, if its JSON values fit it."""
    try:
        return column if dtype == "object" else column.astype(dtype)
    except (TypeError, ValueError):
        return column


def batch(
    name: str, data: Any = None, agent: AgentOfBatch | None = None, **options: Any
) -> BatchInStore:
    """Open a batch of the store by its name.

    Args:
        name: its whole name.
        data: its table, to continue it; then `agent` is needed, too.
        agent: the agent that continues it: `batch(…).resume()`.
        options: further arguments of `agent.map`, such as `score=`.

    Returns:
        Its results: `frame()`, `compare()`, `diff()`, `plot()`, `review()`. With `data`, the
        batch itself, planned and not started.

    Raises:
        UsageError: the store has no such batch; the nearest name is suggested.
    """
    store, text = store_to_read(), str(name)
    doc = batch_doc(store, text)
    if doc is None:
        known = batch_names(store)
        hint = nearest_or_all(text, known, "the batches are") or "; the store has none"
        raise UsageError(f"there is no batch {text!r}{hint}")
    opened = StoredBatch(store, text, doc)
    if data is None and agent is None:
        return opened
    if data is None or agent is None:
        raise UsageError(
            f"to continue batch {text!r}, give both: nbagent.batch({text!r}, data=TABLE, "
            "agent=AGENT)"
        )
    return opened.continued(data, agent, **options)
