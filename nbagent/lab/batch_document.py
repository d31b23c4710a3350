"""Document of a batch in the store: its plan and its table, as JSON, by which it is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.records import Case
from nbagent.lab.plan import MapOptions, PlannedCase, Table, is_secret_axis
from nbagent.settings.types import MAX_CASES
from nbagent.shown.values import to_text
from nbagent.store.saved_batches import json_cell

_MAX_CELL_CHARS = 20_000
_MAX_TABLE_BYTES = 16_000_000
"""Larger tables are not copied into the store: their batch has row keys only, when it is opened."""


# Plan → document


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
    rows = [[json_cell(cell, _cell_text) for cell in row.values()] for row in table.rows]
    if len(dump_json(rows)) > _MAX_TABLE_BYTES:
        return None
    data: Any = table.data
    dtypes = [str(dtype) for dtype in data.dtypes]
    return {"columns": [*table.columns], "dtypes": dtypes, "rows": rows}


def _cell_text(cell: Any) -> str:
    return to_text(cell, _MAX_CELL_CHARS)


def map_doc(template: str, how: MapOptions) -> dict[str, Any]:
    """Return the arguments of `map` that can be stored; `not_stored` names axes that cannot."""
    axes: dict[str, Any] = {**(how.vary or {})}
    unstored = [axis for axis, values in axes.items() if not _is_storable(axis, values)]
    made: dict[str, Any] = {"template": template, "key": how.key, "repeat": how.repeat}
    if isinstance(how.executor, str):  # else its answers would be asked again, one by one
        made["executor"] = how.executor
    if axes and not unstored:
        made["vary"] = axes
    return {**made, "not_stored": unstored} if unstored else made


def _is_storable(axis: str, values: Any) -> bool:
    """True for plain values that cannot hold a key: no tools, models as objects, headers."""
    if is_secret_axis(axis):
        return False
    listed: list[Any] = [*values.values()] if isinstance(values, Mapping) else [*values]
    return all(map(_is_plain, listed))


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, cast("Sequence[Any]", value)))
    return value is None or type(value) in (str, bool, int, float)


# Document → plan


@dataclass(frozen=True, slots=True)
class StoredTable:
    """Table of a batch as it was stored: its keys, and their cells by column."""

    columns: Sequence[str]
    dtypes: Sequence[str]
    rows: Mapping[str, Mapping[str, Any]]


def planned_cases(batch: str, doc: Mapping[str, Any]) -> list[Case]:
    """Return the cases of a stored plan, in their order; none without a plan."""
    shas, repeat = iter(doc.get("shas", ())), doc.get("repeat", 1)
    n_cases = len(doc.get("keys", ())) * len(doc.get("variants", ())) * repeat
    if not 0 <= n_cases <= MAX_CASES:
        raise ValueError(f"{n_cases} cases")
    return [
        Case(batch=batch, row_key=key, variant=labels, attempt=attempt, sha=next(shas, ""))
        for key in doc.get("keys", ())
        for labels in doc["variants"]
        for attempt in range(1, repeat + 1)
    ]


def stored_table(doc: Mapping[str, Any]) -> StoredTable:
    table = doc.get("table")
    if table is None:
        return StoredTable((), (), {})
    rows = {
        key: dict(zip(table["columns"], cells, strict=True))
        for key, cells in zip(doc["keys"], table["rows"], strict=True)
    }
    return StoredTable(table["columns"], table["dtypes"], rows)


def with_dtype(column: Any, dtype: str) -> Any:
    """Return a column with the dtype that the person's table had, if its JSON values fit it."""
    try:
        return column if dtype == "object" else column.astype(dtype)
    except (TypeError, ValueError):
        return column
