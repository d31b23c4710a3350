"""Run history as DataFrames that can be joined; dtypes do not depend on the rows.

The only module that imports pandas, and only when a frame is read (the import takes 1.4 s of CPU).
Pandas converts a filter's value to a cell of its column; SQLite compares it.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import product
from typing import TYPE_CHECKING, Any, cast

from nbagent.contracts.canonical import json_object, load_json, utc_now
from nbagent.contracts.errors import StoreError, UsageError, nearest_hint
from nbagent.store.columns import (
    CORRUPT_ROW,
    FRAMES,
    KNOWN_VALUES,
    LINEAGE,
    TIMESTAMP,
    Dtype,
    Frame,
)
from nbagent.store.database import Connection
from nbagent.store.rows import cell_text, to_us
from nbagent.store.writer import Store

if TYPE_CHECKING:
    import pandas as pd

_TIME_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPECIAL_FILTERS = ("run", "since", "until", "limit", "whole")
_MAX_VALUES = 30_000
"""SQLite allows 32,766 parameters in a statement; the rest is for other filters."""


def _pandas() -> Any:
    # Returned as Any: pandas' own annotations are incomplete, which strict type checks refuse.
    import pandas

    return pandas


def read_frame(stores: Sequence[Store], name: str, filters: dict[str, Any]) -> pd.DataFrame:
    """Read a frame: the rows of the stores one after the other, each oldest first.

    Args:
        stores: the stores to read.
        name: a name in FRAMES.
        filters: column names with a value or a list of values; `run` (an id, the start of an id, a
            name, `"last"`), `since`, `until`, `limit` (the newest n of each store), and for
            messages `whole`.

    Raises:
        UsageError: a filter is unknown, or no row can have its value.
    """
    frame = FRAMES[name]
    _check_filter_names(name, filters)
    rows: list[tuple[Any, ...]] = []
    with ExitStack() as stack:
        connections = [stack.enter_context(store.reading()) for store in stores]
        _check_category_values(frame, filters, connections)
        for store, connection in zip(stores, connections, strict=True):
            rows += _rows(frame, filters, store, connection)
    cells = zip(*rows, strict=True) if rows else ((),) * len(frame.columns)
    columns = zip(frame.columns, cells, strict=True)
    try:
        arrays = {column: array_of(frame.dtype(column), values) for column, values in columns}
    except CORRUPT_ROW as error:
        files = ", ".join(str(store.path) for store in stores)
        problem = f"a cell in {files} is damaged ({error}); move a damaged file away"
        raise StoreError(problem) from None
    return _pandas().DataFrame(arrays, copy=False)


def frame_of(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a frame; pandas infers the dtypes."""
    return _pandas().DataFrame(list(rows))


def _check_filter_names(name: str, filters: dict[str, Any]) -> None:
    general = [] if name == "prompts" else ["run", "session", "batch", "model"]
    general += ["since", "until", "limit", "store"] + ["whole"] * (name == "messages")
    known = dict.fromkeys((*FRAMES[name].columns, *general))
    for filter_name in filters:
        if filter_name not in known:
            nearest = nearest_hint(filter_name, known)
            raise UsageError(
                f"there is no filter {filter_name!r}{nearest}. The filters are {', '.join(known)}"
            )
    if filters.get("whole") and "run" not in filters:
        raise UsageError('whole=True needs the run: nbagent.messages(run="last", whole=True)')


def _check_category_values(
    frame: Frame, filters: dict[str, Any], connections: Sequence[Connection]
) -> None:
    """Refuse values of category columns that no row has and that look like a typing error."""
    for name, value in filters.items():
        if name in _SPECIAL_FILTERS or frame.dtype(name) != "category":
            continue
        known = set(KNOWN_VALUES.get(name, ()))
        wanted: list[str] = [word for word in _filter_cells(name, value, "category") if word]
        if known.issuperset(wanted):
            continue
        # A run may have no row in this frame: its session or model is a valid value all the same.
        searched = [frame] + [FRAMES["runs"]] * (name in FRAMES["runs"].columns)
        for connection, searched_frame in product(connections, searched):
            cursor = connection.execute(
                f"SELECT DISTINCT {searched_frame.expression(name)} FROM {searched_frame.source}"
            )
            known |= {cell_text(cell) for (cell,) in cursor if cell is not None}
        for wanted_value in set(wanted) - known:
            suggestions = [
                known_value
                for known_value in sorted(known)
                if known_value.endswith(f":{wanted_value}")
            ]
            suggestions += difflib.get_close_matches(wanted_value, known, n=1, cutoff=0.7)
            if suggestions:
                raise UsageError(
                    f"no row has {name}={wanted_value!r}; did you mean {suggestions[0]!r}?"
                )
            if name in KNOWN_VALUES or (name == "model" and ":" not in wanted_value):
                existing = ", ".join(sorted(known)) or "no row yet"
                raise UsageError(f"no row has {name}={wanted_value!r}; there is {existing}")


def _rows(
    frame: Frame, filters: dict[str, Any], store: Store, connection: Connection
) -> list[tuple[Any, ...]]:
    conditions, parameters, order, limit = ["1"], list[Any](), frame.order, -1
    for name, value in filters.items():
        if name == "run":
            run_id = store.find(_single_cell(name, value, "string"))
            lineage = connection.execute(LINEAGE, (run_id,)).fetchall()
            if filters.get("whole"):
                parts = (f"(x.run = {n} AND x.position < {end})" for n, end in lineage)
                own = (
                    f"(x.position >= 0 OR x.run = {lineage[0][0]})"  # one system message is enough
                )
                conditions += [f"({' OR '.join(parts)})", own]
                order = "x.position, x.turn"
            else:
                # The number itself, not a parameter: SQLite then pushes the condition down into
                # each part of a UNION and uses its key.
                conditions.append(f"{frame.run_number} = {lineage[0][0]}")
        elif name in ("since", "until"):
            conditions.append(f"{frame.time_column} {'>=' if name == 'since' else '<'} ?")
            parameters.append(_single_cell(name, value, TIMESTAMP))
        elif name == "limit":
            limit = _single_cell(name, value, "Int64")
            if limit < 0:
                raise UsageError(f"limit must be a whole number from 0, not {value!r}")
            order = order.replace(",", " DESC,") + " DESC"
        elif name != "whole":
            condition, arguments = _equality(frame, name, value)
            conditions.append(condition)
            parameters += arguments
    names = ", ".join(map(frame.expression, frame.columns))
    sql = f"SELECT {names} FROM {frame.source} WHERE {' AND '.join(conditions)} ORDER BY {order}"
    rows = connection.execute(f"{sql} LIMIT ?", (*parameters, limit)).fetchall()
    return rows[::-1] if "limit" in filters else rows


def _equality(frame: Frame, name: str, value: Any) -> tuple[str, list[Any]]:
    """SQL condition for a filter, and its parameters."""
    wanted, column = _filter_cells(name, value, frame.dtype(name)), frame.expression(name)
    cells = [cell for cell in wanted if cell is not None]
    placeholders = ",".join("?" * len(cells))
    conditions = [f"{column} IN ({placeholders})"]
    if name == "tags":  # a JSON array: one equal tag is enough
        conditions.append(
            f"EXISTS (SELECT 1 FROM json_each({column}) WHERE value IN ({placeholders}))"
        )
    arguments = cells * len(conditions)
    if None in wanted:
        conditions.append(f"{column} IS NULL")
    return f"({' OR '.join(conditions)})", arguments


# Values of filters to cells


def _filter_cells(name: str, value: Any, dtype: Dtype) -> list[Any]:
    """Distinct values of a filter as SQLite stores them; None is a missing value."""
    pd = _pandas()
    try:
        values: list[Any] = list(value) if pd.api.types.is_list_like(value) else [value]
        if dtype == TIMESTAMP:
            cells = [_parse_timestamp(entry) for entry in values]
        elif dtype in ("string", "category"):
            # Only texts, and no half of a surrogate pair, which SQLite cannot compare: encode()
            # raises for both.
            cells = [None if pd.isna(entry) else str.encode(entry).decode() for entry in values]
        else:
            array: Any = pd.array(values, dtype=dtype)
            cells = [None if pd.isna(entry) else entry for entry in array.tolist()]
        distinct = list(dict.fromkeys(cells))
        if len(distinct) > _MAX_VALUES:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise _filter_error(name, value, dtype) from None
    return distinct


def _single_cell(name: str, value: Any, dtype: Dtype) -> Any:
    """The single value of a filter; UsageError if there are several or none."""
    cells = _filter_cells(name, value, dtype)
    if len(cells) != 1 or cells[0] is None:
        raise _filter_error(name, value, dtype)
    return cells[0]


def _filter_error(name: str, value: Any, dtype: Dtype) -> UsageError:
    # The repr of a DataFrame has several lines; an error has one.
    shown_value = " ".join(reprlib.repr(value).split())
    list_hint = "" if name in _SPECIAL_FILTERS else f", or up to {_MAX_VALUES:,} of them in a list"
    expected = (
        "a datetime or a text like '2026-03-04', 'today', '7d'" if dtype == TIMESTAMP else dtype
    )
    return UsageError(f"{name}={shown_value} is not a valid filter; give {expected}{list_hint}")


def _parse_timestamp(value: Any) -> int | None:
    """Parse a time to microseconds since 1970; without a time zone it is UTC."""
    pd = _pandas()
    ago = re.fullmatch(r"(\d{1,6}) ?([mhdw])", value) if isinstance(value, str) else None
    if ago:
        value = utc_now() - timedelta(**{_TIME_UNITS[ago[2]]: int(ago[1])})
    elif isinstance(value, str) and value == "today":
        value = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    elif isinstance(value, int | float) and not pd.isna(value):
        raise TypeError
    moment: Any = pd.to_datetime(value, utc=True)
    return None if pd.isna(moment) else to_us(moment.to_pydatetime(warn=False))


# Cells to arrays


def array_of(dtype: Dtype, cells: Sequence[Any]) -> Any:
    """Build an array of a dtype from cells."""
    import numpy as np

    pd = _pandas()
    if dtype in ("string", "category"):
        if bytes in set(map(type, cells)):
            # Records preserve lone surrogates; strings of a frame are strict UTF-8.
            cells = [cell and cell_text(cell).encode("utf-8", "replace").decode() for cell in cells]
        objects = np.array(cells, dtype=object)
        if dtype == "string":
            return pd.array(objects, dtype="string")
        codes, labels = pd.factorize(objects, sort=True)
        categories: Any = pd.Index(labels, dtype="string")
        return pd.Categorical.from_codes(codes, categories=categories)
    # None becomes NaN. No integer column exceeds 2**53, so float64 is exact.
    numbers = np.array(cells, dtype=np.float64)
    missing = np.isnan(numbers)
    match dtype:
        case "Float64":
            return pd.arrays.FloatingArray(numbers, missing)
        case "boolean":
            return pd.arrays.BooleanArray(numbers == 1, missing)
        case "Int64":
            numbers[missing] = 0
            return pd.arrays.IntegerArray(numbers.astype(np.int64), missing)
        case _:
            numbers[missing] = -(2.0**63)  # NaT
            moments: Any = pd.DatetimeIndex(numbers.astype(np.int64).view("M8[us]"))
            return moments.tz_localize("UTC")


def expand(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Add a column for each key of the JSON objects in one column.

    `nbagent.expand(df, "args")` adds `args.city`; cells that are no objects get missing values.

    Raises:
        UsageError: there is no such column, or it does not contain JSON.
    """
    pd, table = _pandas(), cast("Any", frame)
    if column not in table.columns:
        raise UsageError(f"the frame has no column {column!r}; it has {', '.join(table.columns)}")
    try:
        objects = [json_object(load_json(cell)) or {} for cell in table[column].fillna("{}")]
    except (TypeError, ValueError):
        raise UsageError(f"{column!r} is not JSON; use a column such as 'args'") from None
    added = {
        f"{column}.{key}": pd.Series(
            [row.get(key) for row in objects], index=table.index, dtype=object
        ).convert_dtypes()
        for key in dict.fromkeys(key for row in objects for key in row)
    }
    return pd.concat([table, pd.DataFrame(added, index=table.index)], axis=1)
