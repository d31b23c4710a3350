"""The history as DataFrames: one row each, joinable, with dtypes that do not depend on the rows.

The one place that knows pandas, which is imported when a frame is asked for. A filter is compared
in SQLite, after pandas has made of it what a cell of its column is.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import product
from typing import TYPE_CHECKING, Any, cast

from nbagent.archive.codec import cell_text
from nbagent.archive.columns import LINEAGE, TABLES, VOCABULARY, WHEN, Dtype, Table
from nbagent.archive.database import Connection
from nbagent.archive.rows import to_us
from nbagent.archive.store import Store
from nbagent.contracts.canonical import json_object, load_json, utc_now
from nbagent.contracts.chat import ModelInfo
from nbagent.contracts.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

_TIMES = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_EXTRA = ("since", "until", "limit")
_MOST_VALUES = 30_000
"""SQLite takes 32,766 parameters; the rest is for other filters."""


def _pandas() -> Any:
    # It says little about the types of its own values.
    import pandas

    return pandas


def _numpy() -> Any:
    import numpy

    return numpy


def read(stores: Sequence[Store], name: str, filters: dict[str, Any]) -> pd.DataFrame:
    """A frame: the rows of one store after those of the other, each oldest first.

    Args:
        stores: where from.
        name: `runs`, `turns`, `tool_runs`, `messages` or `prompts`.
        filters: a column's name and a value or a list of values; `run` (an id, the start of one, a
            name, `"last"`), `since` and `until`, `limit` (the newest n of each store), for
            messages `whole` (also those of the ancestors of `run`).

    Raises:
        UsageError: there is no such filter, or no row can have such a value.
    """
    table = TABLES[name]
    _refuse_unknown(name, filters)
    rows: list[tuple[Any, ...]] = []
    with ExitStack() as stack:
        connections = [stack.enter_context(store.reading()) for store in stores]
        _refuse_slips(table, filters, connections)
        for store, connection in zip(stores, connections, strict=True):
            rows += _rows(table, filters, store, connection)
    cells = zip(*rows, strict=True) if rows else ((),) * len(table.columns)
    columns = zip(table.columns, cells, strict=True)
    arrays = {column: _array(table.dtype(column), values) for column, values in columns}
    return _pandas().DataFrame(arrays, copy=False)


def frame_of(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a frame, with the dtypes that pandas finds."""
    return _pandas().DataFrame(list(rows))


def _refuse_unknown(table: str, filters: dict[str, Any]) -> None:
    more = () if table == "prompts" else ("run", "session", "model")
    whole = ("whole",) if table == "messages" else ()
    known = dict.fromkeys((*TABLES[table].columns, *more, *_EXTRA, *whole, "store"))
    for name in filters:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(
                f"there is no filter {name!r}; {hint}The filters are {', '.join(known)}"
            )
    if filters.get("whole") and "run" not in filters:
        raise UsageError('whole=True needs the run: nbagent.messages(run="last", whole=True)')


def _refuse_slips(table: Table, filters: dict[str, Any], connections: Sequence[Connection]) -> None:
    """A word that no row has and that is nearly one that rows have: the nearest is said."""
    of_runs = TABLES["runs"]
    for name, given in filters.items():
        if name in ("run", *_EXTRA) or table.dtype(name) != "category":
            continue
        known = set(VOCABULARY.get(name, ()))
        unknown: list[str] = [
            it for it in _cells(name, given, "category") if it and it not in known
        ]
        sources = [(table.value(name), table.source)]
        if name in of_runs.columns:
            sources.append((of_runs.value(name), of_runs.source))
        for connection, (value, source) in product(connections if unknown else (), sources):
            found = connection.execute(f"SELECT DISTINCT {value} FROM {source}")
            known |= {cell_text(cell) for (cell,) in found if cell is not None}
        for word in unknown:
            near = [it for it in sorted(known) if it.endswith(f":{word}")]
            near += difflib.get_close_matches(word, known, n=1, cutoff=0.7)
            if near and word not in known:
                raise UsageError(f"no row has {name}={word!r}; did you mean {near[0]!r}?")


def _rows(
    table: Table, filters: dict[str, Any], store: Store, connection: Connection
) -> list[tuple[Any, ...]]:
    conditions, parameters, order, limit = ["1"], list[Any](), table.order, None
    for name, value in filters.items():
        if name == "run":
            line = connection.execute(LINEAGE, (store.find(_text(name, value)),)).fetchall()
            if filters.get("whole"):
                parts = (f"(x.run = {n} AND x.position < {end})" for n, end in line)
                own = f"(x.position >= 0 OR x.run = {line[0][0]})"  # one system message is enough
                conditions += [f"({' OR '.join(parts)})", own]
                order = "x.position, x.turn"
            else:
                # The number itself: SQLite then looks for it in each part of a union.
                conditions.append(f"{table.run} = {line[0][0]}")
        elif name in ("since", "until"):
            conditions.append(f"{table.when} {'>=' if name == 'since' else '<'} ?")
            parameters.append(_moment(name, value))
        elif name == "limit":
            limit = _count(value)
        elif name != "whole":
            cells = _cells(name, value, table.dtype(name))
            test, used = _equals(table.value(name), cells, many=name == "tags")
            conditions.append(test)
            parameters += used
    if limit is not None:
        order = order.replace(",", " DESC,") + " DESC"
    names = ", ".join(map(table.value, table.columns))
    sql = f"SELECT {names} FROM {table.source} WHERE {' AND '.join(conditions)} ORDER BY {order}"
    found = connection.execute(f"{sql} LIMIT ?", (*parameters, -1 if limit is None else limit))
    return found.fetchall() if limit is None else found.fetchall()[::-1]


def _equals(column: str, values: list[Any], *, many: bool) -> tuple[str, list[Any]]:
    """A condition and its parameters; `many`: the column is a JSON array, one is enough."""
    cells = [cell for cell in values if cell is not None]
    marks = ",".join("?" * len(cells))
    test = f"{column} IN ({marks})"
    if many:
        test += f" OR EXISTS (SELECT 1 FROM json_each({column}) WHERE value IN ({marks}))"
    if len(cells) < len(values):
        test += f" OR {column} IS NULL"
    return f"({test})", cells * (1 + many)


# What a person gives → cells


def _cells(name: str, value: Any, dtype: Dtype) -> list[Any]:
    """The different values that a filter gives, as SQLite holds them; None is a missing one."""
    pd = _pandas()
    values: list[Any] = list(value) if pd.api.types.is_list_like(value) else [value]
    try:
        if getattr(value, "ndim", 1) > 1 or isinstance(value, dict):
            raise TypeError
        if dtype in ("string", "category"):
            missing = [pd.isna(it) is True for it in values]
            cells = [None if no else _utf8(it) for no, it in zip(missing, values, strict=True)]
        elif dtype == WHEN:
            cells = [None if pd.isna(it) else _moment(name, it) for it in values]
        else:
            made: Any = pd.array(values, dtype=dtype)
            cells = [None if pd.isna(it) else it for it in made.tolist()]
    except (TypeError, ValueError, OverflowError):
        raise _unusable(name, value, dtype) from None
    if len(cells) > _MOST_VALUES:
        raise UsageError(
            f"{name} has {len(cells):,} values, more than {_MOST_VALUES:,}; "
            "ask without it and select from the frame"
        )
    return list(dict.fromkeys(cells))


def _utf8(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value.encode().decode()  # no half of a surrogate pair, which SQLite cannot compare


def _text(name: str, value: Any) -> str:
    try:
        return _utf8(value)
    except (TypeError, ValueError):
        raise _unusable(name, value, "string") from None


def _count(value: Any) -> int | None:
    cells = _cells("limit", value, "Int64")
    if len(cells) != 1 or (cells[0] is not None and cells[0] < 0):
        raise UsageError(f"limit must be a whole number from 0, not {reprlib.repr(value)}")
    return cells[0]


def _moment(name: str, value: Any) -> int:
    """A point in time, in microseconds since 1970; without a time zone it is UTC."""
    pd = _pandas()
    ago = re.fullmatch(r"(\d{1,6}) ?([mhdw])", value) if isinstance(value, str) else None
    try:
        if ago:
            value = utc_now() - timedelta(**{_TIMES[ago[2]]: int(ago[1])})
        elif isinstance(value, str) and value == "today":
            value = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
        elif isinstance(value, int | float):
            raise TypeError
        moment: Any = pd.to_datetime(value, utc=True)
        if pd.isna(moment) is not False:
            raise TypeError
        return to_us(moment.to_pydatetime(warn=False))
    except (TypeError, ValueError, OverflowError, AttributeError):
        raise _unusable(name, value, WHEN) from None


_TAKES: dict[Dtype, str] = {
    "string": "text",
    "category": "text",
    "Int64": "a whole number",
    "Float64": "a number",
    "boolean": "True or False",
    WHEN: "a datetime or a text: '2026-03-04' (UTC), '2026-03-04T05:06+01:00', 'today', '7d'",
}


def _unusable(name: str, value: Any, dtype: Dtype) -> UsageError:
    # A table shows itself on several lines.
    seen = " ".join(reprlib.repr(value).split())
    many = "" if name in ("run", "since", "until") else ", or a list"
    return UsageError(f"{name}={seen} cannot be looked for; give {_TAKES[dtype]}{many}")


# Cells → arrays


def _array(dtype: Dtype, cells: Sequence[Any]) -> Any:
    """The cells as an array of a dtype."""
    np, pd = _numpy(), _pandas()
    if dtype in ("string", "category"):
        if bytes in set(map(type, cells)):
            cells = [_readable(cell) for cell in cells]
        objects = np.array(cells, dtype=object)
        if dtype == "string":
            return pd.array(objects, dtype="string")
        codes, words = pd.factorize(objects, sort=True)
        categories: Any = pd.Index(words, dtype="string")
        return pd.Categorical.from_codes(codes, categories=categories)
    # None becomes NaN; no whole number here is larger than a float holds exactly.
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


def _readable(cell: Any) -> Any:
    # Lone surrogates are kept in records; a frame's strings are strict UTF-8.
    return None if cell is None else cell_text(cell).encode("utf-8", "replace").decode()


def expand(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """A frame with a column for each key of the JSON objects in one of its columns.

    `nbagent.expand(df, "args")` adds `args.city`; what is no object has none of them.

    Raises:
        UsageError: there is no such column, or it holds something else than JSON.
    """
    pd, given = _pandas(), cast("Any", frame)
    names: list[str] = list(given.columns)
    if column not in names:
        near = difflib.get_close_matches(column, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"the frame has no column {column!r}{hint}")
    try:
        missing = given[column].isna()
        cells = zip(missing, given[column], strict=True)
        found = [{} if no else json_object(load_json(cell)) or {} for no, cell in cells]
    except (TypeError, ValueError):
        raise UsageError(f"{column!r} holds no JSON; args, params and such columns do") from None
    added = {
        f"{column}.{key}": pd.Series(
            [row.get(key) for row in found], index=given.index, dtype=object
        ).convert_dtypes()
        for key in dict.fromkeys(key for row in found for key in row)
    }
    return pd.concat([given, pd.DataFrame(added, index=given.index)], axis=1)


def models(found: Iterable[tuple[str, ModelInfo | None, bool, str]]) -> pd.DataFrame:
    """One row for each model: its provider, what is known of it, whether it can be asked now.

    And if not, why; a provider of which no model is known has a row without one.
    """
    pd = _pandas()
    rows = [
        {
            "id": model and f"{provider}:{model.id}",
            "provider": provider,
            "context_length": model and model.context_length,
            "capabilities": ",".join(model.capabilities) if model else "",
            "reachable": reachable,
            "reason": why if not reachable or not model else "",
        }
        for provider, model, reachable, why in found
    ]
    names = ("id", "provider", "context_length", "capabilities", "reachable", "reason")
    table = Table(names, "", "", "")
    return pd.DataFrame({it: _array(table.dtype(it), [row[it] for row in rows]) for it in names})
