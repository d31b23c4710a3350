"""Run history as DataFrames that can be joined; dtypes do not depend on the rows.

The only module that imports pandas, and only when a frame is read (the import takes 1.4 s of CPU).
Pandas converts a filter's value to a cell of its column; SQLite compares it.

Rows are read with sqlite3 and not through Arrow, although that takes half the time. Its driver for
SQLite (ADBC) has its own copy of SQLite, but the locks on a file belong to the whole process: when
the driver closes the store, all locks of this process on it are gone. Another process that closes
the store then deletes the write-ahead log in which this process goes on writing: its runs are lost.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any, cast

from nbagent.contracts.canonical import dump_json, json_object, load_json, utc_now
from nbagent.contracts.errors import StoreError, UsageError
from nbagent.contracts.nearest import nearest_hint, nearest_name, nearest_or_all
from nbagent.store.columns import CORRUPT_ROW, PROVIDER, TIMESTAMP, TURN_ID, Dtype
from nbagent.store.connections import Connection
from nbagent.store.frame_queries import (
    ALIASES,
    FRAMES,
    KNOWN_VALUES,
    LINEAGE,
    PROMPTS_BY_SCAN,
    Frame,
)
from nbagent.store.record_cells import to_us
from nbagent.store.rows import cell_text
from nbagent.store.upkeep import is_current
from nbagent.store.writer import Store

if TYPE_CHECKING:
    import pandas as pd

_TIME_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPECIAL_FILTERS = ("run", "since", "until", "limit", "whole")
_MAX_VALUES = 30_000
"""SQLite allows 32,766 parameters in a statement; the rest is for other filters."""
_INDEXED_FILTERS = ("run", "run_id", "session", "batch", "name", "parent_id", "template_sha")
"""Filters that find their rows by an index."""
_FIRST_RUNS = 100
"""Number of the newest runs in which the rows of `limit` are looked for first."""
_MOST_RUNS = 10_000
"""Runs whose numbers are written into a query."""
_FEW_RUNS = 5_000
"""Runs that are sorted faster than the newest runs are scanned."""
_ROWS_AT_ONCE = 100
"""Rows that become columns at once: so few are still in the processor's cache, and cause no garbage
collections. A large frame takes a fifth less time."""
_SUGGESTION_ROWS = 10_000
"""Newest rows whose values are suggested for a value that no row has."""


def _pandas() -> Any:
    # Returned as Any: pandas' own annotations are incomplete, which strict type checks refuse.
    import pandas

    return pandas


class _Cells:
    """Cells of a frame, by column, from one store after the other.

    Columns that follow from the run, the turn or the model are not read for each row: a run has
    many rows, and reading them takes most of the time of a large frame.
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        by_name = frame.by_name
        self._of_runs = {name: list[Any]() for name in by_name if frame.is_of_run(name)}
        """Cells of the runs' columns, a cell for each run."""
        derived = [
            column.name
            for column, source in ((TURN_ID, "turn"), (PROVIDER, "model"))
            if by_name.get(column.name) is column and (source in by_name or source == "turn")
        ]
        self._names = [name for name in by_name if name not in (*self._of_runs, *derived)]
        if TURN_ID.name in derived and "turn" not in self._names:
            self._names.append("turn")
        self._parts: list[list[list[Any]]] = []
        """For each store, the cells of each name in `_names`, then the numbers of the runs."""
        self._queries: list[_Query] = []
        self._connections: list[Connection] = []
        """The store of each part."""
        self._run_places: list[int] = []
        """Index in `_of_runs` of each row's run."""

    def expressions(self, frame: Frame) -> list[str]:
        """SQL of what is read for each row; the number of its run comes last."""
        expressions = [
            frame.expression(name) if name in frame.by_name else f"x.{name}" for name in self._names
        ]
        return [*expressions, frame.run_number or "0"]

    def add(self, query: _Query, connection: Connection) -> None:
        """Add the cells of a store."""
        part = query.columns(self.expressions(query.frame))
        if not part[-1]:
            return
        for i, name in enumerate(self._names):
            column = self._frame.by_name.get(name)
            if column is not None and column.is_hash:
                part[i] = _hash_texts(part[i], connection)
        self._parts.append(part)
        self._queries.append(query)
        self._connections.append(connection)
        if not self._of_runs:
            return
        numbers = part[-1]
        n_runs = len(next(iter(self._of_runs.values())))
        places = {number: n_runs + i for i, number in enumerate(dict.fromkeys(numbers))}
        names = ", ".join(self._frame.expression(name) for name in self._of_runs)
        # CROSS JOIN fixes the order: look up each run, instead of scanning all runs.
        sql = (
            f"SELECT {names} FROM json_each(?) i CROSS JOIN runs r ON r.n = i.value ORDER BY i.key"
        )
        run_rows = connection.execute(sql, (dump_json([*places]).decode(),)).fetchall()
        for cells, added in zip(self._of_runs.values(), zip(*run_rows, strict=True), strict=True):
            cells.extend(added)
        self._run_places.extend(map(places.__getitem__, numbers))

    def arrays(self) -> dict[str, Any]:
        """Arrays of all columns of the frame."""
        import numpy as np

        places = np.array(self._run_places, dtype=np.intp)
        cells: dict[str, Sequence[Any]] = {}
        for i, name in enumerate(self._names):
            parts = [part[i] for part in self._parts]
            cells[name] = parts[0] if len(parts) == 1 else [cell for part in parts for cell in part]
        order = self._order() if self._parts and len(self._frame.sources) > 1 else None
        arrays: dict[str, Any] = {}
        for name in self._frame.by_name:
            dtype = self._frame.dtype(name)
            if name in self._of_runs:
                array = array_of(dtype, self._of_runs[name]).take(places)
            elif name in cells:
                array = array_of(dtype, cells[name])
            elif name == TURN_ID.name:
                array = _array_by_value(dtype, cells["turn"], _turn_id_cell)
            else:
                array = _array_by_value(dtype, cells["model"], _provider_cell)
            if order is not None:
                array = array.take(order)
                if dtype == "category":  # some words may be only in rows beyond the limit
                    array = array.remove_unused_categories()
            arrays[name] = array
        return arrays

    def damaged_cell(self) -> str:
        """Say in which column and run a cell is that is no value of its dtype, if it is found."""
        for part, connection in zip(self._parts, self._connections, strict=True):
            for name, cells in zip(self._names, part[:-1], strict=True):
                dtype = self._frame.dtype(name)
                if name not in self._frame.by_name or _are_valid(dtype, cells):
                    continue
                at = next(i for i in range(len(cells)) if not _are_valid(dtype, cells[i : i + 1]))
                sql = "SELECT run_id FROM runs WHERE n = ?"
                row = connection.execute(sql, (part[-1][at],)).fetchone()
                return f", column {name!r}" + (f" of run {row[0]}" if row else "")
        return ""

    def _order(self) -> Any:
        """Places of the rows in their order, up to the limit of each store."""
        import numpy as np

        orders: list[Any] = []
        n_before = 0
        for query, part in zip(self._queries, self._parts, strict=True):
            cells = dict(zip(self._names, part, strict=False))
            keys: list[Any] = [np.array(cells[name], np.float64) for name in ("turn", "position")]
            if not query.is_whole:
                keys.append(np.array(part[-1], dtype=np.int64))
            order: Any = np.lexsort(keys) + n_before
            n_cut = 0 if query.limit < 0 else max(len(order) - query.limit, 0)
            orders.append(order[n_cut:])
            n_before += len(order)
        return np.concatenate(orders)


def _are_valid(dtype: Dtype, cells: Sequence[Any]) -> bool:
    try:
        array_of(dtype, cells)
    except CORRUPT_ROW:
        return False
    return True


def _turn_id_cell(turn: int | None) -> str | None:
    return f"C{turn:02d}" if turn and turn > 0 else None


def _provider_cell(model: str | None) -> str | None:
    return None if model is None else str(cell_text(model)).partition(":")[0]


def _array_by_value(dtype: Dtype, cells: Sequence[Any], convert: Any) -> Any:
    """Array of converted cells; each different cell is converted once."""
    import numpy as np

    places = {value: i for i, value in enumerate(dict.fromkeys(cells))}
    taken = np.array([*map(places.__getitem__, cells)], dtype=np.intp)
    return array_of(dtype, [convert(value) for value in places]).take(taken)


def _hash_texts(cells: Sequence[Any], connection: Connection) -> list[Any]:
    """Hashes of cells that hold their numbers."""
    values = set(cells)
    numbers = [value for value in values if isinstance(value, int)]
    sql = "SELECT h.n, h.sha FROM json_each(?) i CROSS JOIN hashes h ON h.n = i.value"
    hashes = dict(connection.execute(sql, (dump_json(numbers).decode(),)).fetchall())
    texts = {value: hashes.get(value, value) for value in values}
    return [*map(texts.__getitem__, cells)]


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
    filters = _without_aliases(name, filters)
    with ExitStack() as stack:
        connections = [stack.enter_context(store.reading()) for store in stores]
        filters = _with_whole_notebook_names(filters, connections)
        _check_category_values(frame, filters, connections)
        made = _Cells(frame)
        for store, connection in zip(stores, connections, strict=True):
            source = frame if name != "prompts" or is_current(connection) else PROMPTS_BY_SCAN
            made.add(_Query(source, filters, store, connection), connection)
        try:
            arrays = made.arrays()
        except CORRUPT_ROW as error:
            files = ", ".join(str(store.path) for store in stores)
            raise StoreError(
                f"a cell in {files} is damaged{made.damaged_cell()} ({error}); name other runs to "
                "read them (run_id=[…]), or move a damaged file away"
            ) from None
    return _pandas().DataFrame(arrays, copy=False)


def find_runs(store: Store, filters: dict[str, Any], *, sort: str, limit: int) -> list[str]:
    """Ids of runs, those with the largest cells of a column first; filters as in `read_frame`.

    Raises:
        UsageError: a filter or the column is unknown, or no row can have its value.
    """
    frame = FRAMES["runs"]
    filters, sort = _without_aliases("runs", filters), ALIASES.get(sort, sort)
    if sort not in frame.by_name:
        hint = nearest_hint(sort, frame.by_name)
        raise UsageError(f"sort={sort!r} is not a column of nbagent.runs(), such as cost_usd{hint}")
    with store.reading() as connection:
        filters = _with_whole_notebook_names(filters, [connection])
        _check_category_values(frame, filters, [connection])
        query = _Query(frame, {"limit": limit, **filters}, store, connection, sort)
        (run_ids,) = query.columns(["x.run_id"])
    return run_ids


def frame_of(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a frame; pandas infers the dtypes."""
    return _pandas().DataFrame(list(rows))


def empty_frame(frame: pd.DataFrame, sentence: str) -> pd.DataFrame:
    """Copy a frame without rows that displays a sentence instead of bare headers."""
    empty: Any = _empty_frame_class()(frame)
    empty.sentence = sentence
    return empty


@cache
def _empty_frame_class() -> Any:
    # Made when it is needed: pandas is imported late.
    pandas = _pandas()

    class EmptyFrame(pandas.DataFrame):
        """A DataFrame without rows; all that is derived from it is a plain one."""

        _metadata = ("sentence",)

        @property
        def _constructor(self) -> Any:
            return pandas.DataFrame

        def __repr__(self) -> str:
            return self.sentence

        def _repr_html_(self) -> str:
            return f"<p>{escape(self.sentence)}</p>"

        def __reduce__(self) -> Any:
            return pandas.DataFrame(self).__reduce__()

    return EmptyFrame


def frame_of_columns(columns: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Columns as a frame that keeps each cell's type: integers stay so beside missing cells."""
    pandas = _pandas()
    cells = {name: pandas.Series(list(some), dtype=object) for name, some in columns.items()}
    whole = {
        name: cells[name] if any(cell is None for cell in some) else cells[name].infer_objects()
        for name, some in columns.items()
    }
    return pandas.DataFrame(whole)


def _without_aliases(name: str, filters: dict[str, Any]) -> dict[str, Any]:
    """Copy the filters of a frame with the names of its columns; refuse unknown names."""
    columns = FRAMES[name].by_name
    named = dict[str, Any]()
    for filter_name, value in filters.items():
        column = ALIASES.get(filter_name, filter_name)
        column = column if column in columns else filter_name
        if column in named:
            raise UsageError(f"{column!r} is set twice in the filters; remove one of them")
        named[column] = value
    _check_filter_names(name, named)
    return named


def _with_whole_notebook_names(
    filters: dict[str, Any], connections: Sequence[Connection]
) -> dict[str, Any]:
    """Replace short names of notebooks: `penguins` is each `…/penguins.ipynb` that has runs."""
    if "notebook" not in filters:
        return filters
    cells = _filter_cells("notebook", filters["notebook"], "category")
    sql = "SELECT DISTINCT notebook FROM runs WHERE notebook IS NOT NULL"
    stored = {cell_text(path) for connection in connections for (path,) in connection.execute(sql)}
    whole: list[Any] = []
    for cell in cells:
        is_exact = cell is None or cell in stored
        ends = () if is_exact else (f"/{cell}".casefold(), f"/{cell}.ipynb".casefold())
        paths = [path for path in sorted(stored) if _as_posix(path).endswith(ends)]
        whole += paths or [cell]
    return {**filters, "notebook": whole}


def _as_posix(path: str) -> str:
    return "/" + path.replace("\\", "/").casefold()


def _check_filter_names(name: str, filters: dict[str, Any]) -> None:
    general = [] if name == "prompts" else ["run", "session", "batch", "model"]
    general += ["since", "until", "limit", "store"] + ["whole"] * (name == "messages")
    known = dict.fromkeys((*FRAMES[name].by_name, *general))
    for filter_name in filters:
        if filter_name not in known:
            hint = nearest_or_all(filter_name, known, "the filters are")
            raise UsageError(f"there is no filter {filter_name!r}{hint}")
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
        # A run may have no row in this frame: its session or model is a valid value all the same.
        searched = [FRAMES["runs"]] * (name in FRAMES["runs"].by_name)
        searched += [frame] * (frame is not FRAMES["runs"])
        missing = [
            word
            for word in wanted
            if word not in known
            and not any(
                _has_value(connection, frame_with_column, name, word)
                for frame_with_column in searched
                for connection in connections
            )
        ]
        if not missing:
            continue
        for frame_with_column in searched:
            for connection in connections:
                known |= _newest_values(connection, frame_with_column, name)
        for wanted_value in missing:
            suggestions = [
                known_value
                for known_value in sorted(known)
                if known_value.endswith(f":{wanted_value}")
            ]
            near = nearest_name(wanted_value, sorted(known), similarity=0.7)
            suggestions += [near] if near else []
            if suggestions:
                raise UsageError(
                    f"no row has {name}={wanted_value!r}; did you mean {suggestions[0]!r}?"
                )
            if name in KNOWN_VALUES or (name == "model" and ":" not in wanted_value):
                existing = ", ".join(sorted(known)) or "no row yet"
                raise UsageError(f"no row has {name}={wanted_value!r}; there is {existing}")


def _newest_first(frame: Frame) -> str:
    return frame.order.replace(",", " DESC,") + " DESC"


def _has_value(connection: Connection, frame: Frame, name: str, value: str) -> bool:
    """True if a row has this value; the newest rows are looked at first."""
    condition, arguments = _equality(frame, name, value)
    # The order has no use for an index of the column, which is faster wherever there is one.
    order = "" if name in _INDEXED_FILTERS else f"ORDER BY {_newest_first(frame)}"
    statements = (
        f"SELECT 1 FROM {source} WHERE {condition} {order} LIMIT 1" for source in frame.sources
    )
    return any(connection.execute(sql, arguments).fetchone() for sql in statements)


def _newest_values(connection: Connection, frame: Frame, name: str) -> set[str]:
    """Values of a column in the newest rows."""
    cells: set[Any] = set()
    for source in frame.sources:
        sql = (
            f"SELECT {frame.expression(name)} FROM {source} "
            f"ORDER BY {_newest_first(frame)} LIMIT {_SUGGESTION_ROWS}"
        )
        cells.update(cell for (cell,) in connection.execute(sql) if cell is not None)
    column = frame.by_name.get(name)
    texts = _hash_texts([*cells], connection) if column and column.is_hash else cells
    return {str(cell_text(cell)) for cell in texts}


class _Query:
    """Query of a frame in one store."""

    def __init__(
        self,
        frame: Frame,
        filters: Mapping[str, Any],
        store: Store,
        connection: Connection,
        sort: str = "",
    ) -> None:
        self.frame = frame
        self._connection = connection
        self._conditions = ["1"]
        self._parameters: list[Any] = []
        self._run_conditions: list[str] = []
        """Conditions that only the row's run has to fulfil."""
        self._run_parameters: list[Any] = []
        self._order = frame.order
        self.limit = -1
        for name, value in filters.items():
            if name == "run":
                self._filter_run(store.find(_single_cell(name, value, "string")), filters)
            elif name in ("since", "until"):
                self._filter_time(name, _single_cell(name, value, TIMESTAMP), filters)
            elif name == "limit":
                self.limit = _single_cell(name, value, "Int64")
                if self.limit < 0:
                    raise UsageError(f"limit must be a whole number from 0, not {value!r}")
            elif name != "whole":
                condition, arguments = _equality(frame, name, value)
                self._conditions.append(condition)
                self._parameters += arguments
                if frame.expression(name).startswith("r."):
                    self._run_conditions.append(condition)
                    self._run_parameters += arguments
        self._newest_first = "limit" in filters and not sort
        if sort:
            self._order = f"{frame.expression(sort)} DESC"
        elif self._newest_first:
            self._order = _newest_first(frame)
        elif len(frame.sources) > 1:
            self._order = ""
        elif "since" in filters and frame.run_number == "x.n":
            self._order = "+x.n"  # the index of times finds these rows, not a scan in their order
        self._has_run = "run" in filters
        self.is_whole = bool(filters.get("whole"))
        """The rows are those of a conversation, also of the runs before this one."""

    def _filter_time(self, name: str, moment: int, filters: Mapping[str, Any]) -> None:
        condition = f"{self.frame.time_column} {'>=' if name == 'since' else '<'} ?"
        if self.frame.run_number == "x.n" and "limit" in filters:
            sql = f"SELECT count(*) FROM (SELECT 1 FROM runs x WHERE {condition} LIMIT {_FEW_RUNS})"
            if self._connection.execute(sql, (moment,)).fetchone()[0] == _FEW_RUNS:
                # `+`: without the index of times; all its rows would be sorted for the newest 50.
                condition = f"+{condition}"
        self._conditions.append(condition)
        self._parameters.append(moment)

    def _filter_run(self, run_id: str, filters: Mapping[str, Any]) -> None:
        lineage = self._connection.execute(LINEAGE, (run_id,)).fetchall()
        if filters.get("whole"):
            parts = (f"(x.run = {n} AND x.position < {end})" for n, end in lineage)
            # One system message is enough.
            own = f"(x.position >= 0 OR x.run = {lineage[0][0]})"
            self._conditions += [f"({' OR '.join(parts)})", own]
        else:
            # The number itself, not a parameter: SQLite then pushes the condition down into each
            # part of a UNION and uses its key.
            self._conditions.append(f"{self.frame.run_number} = {lineage[0][0]}")

    def columns(self, expressions: Sequence[str]) -> list[list[Any]]:
        """Read the cells of each expression; oldest first unless they are sorted.

        A frame with several sources has the rows of each, at most `limit` of each, in any order.
        """
        if self.frame.is_nested and not self._has_run:
            columns = self._read_by_run(expressions)
        else:
            columns = self._read(expressions, "1")
        if self._newest_first and len(self.frame.sources) == 1:
            for column in columns:
                column.reverse()
        return columns

    def _read_by_run(self, expressions: Sequence[str]) -> list[list[Any]]:
        """Find the runs first and write their numbers into the query: they reach into a subquery,
        which a condition on the run and LIMIT do not. The newest rows are in the newest runs."""
        most = max(_FIRST_RUNS, self.limit) if self._newest_first else _MOST_RUNS + 1
        while True:
            numbers = self._run_numbers(most)
            is_all = len(numbers) < most
            if len(numbers) > _MOST_RUNS:
                bound = "1" if not self._newest_first else f"x.run >= {numbers[-1]}"
            else:
                bound = f"x.run IN ({','.join(map(str, numbers))})"
            columns = self._read(expressions, bound)
            if is_all or not self._newest_first or len(columns[0]) >= self.limit:
                return columns
            most *= 8

    def _run_numbers(self, most: int) -> list[int]:
        """Numbers of the newest runs that the filters allow."""
        conditions = [one for one in (*self._run_conditions, self.frame.run_condition) if one]
        sql = (
            f"SELECT r.n FROM runs r WHERE {' AND '.join(conditions or ['1'])} "
            "ORDER BY r.n DESC LIMIT ?"
        )
        cursor = self._connection.execute(sql, (*self._run_parameters, most))
        return [n for (n,) in cursor]

    def _read(self, expressions: Sequence[str], bound: str) -> list[list[Any]]:
        columns = [list[Any]() for _ in expressions]
        for source in self.frame.sources:
            sql = (
                f"SELECT {', '.join(expressions)} FROM {source} "
                f"WHERE {' AND '.join((bound, *self._conditions))} "
                f"{self._order and f'ORDER BY {self._order}'} LIMIT ?"
            )
            cursor = self._connection.execute(sql, (*self._parameters, self.limit))
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
                    column.extend(cells)
        return columns


def _equality(frame: Frame, name: str, value: Any) -> tuple[str, list[Any]]:
    """SQL condition for a filter, and its parameters."""
    wanted, expression = _filter_cells(name, value, frame.dtype(name)), frame.expression(name)
    cells = [cell for cell in wanted if cell is not None]
    placeholders = ",".join("?" * len(cells))
    conditions = [f"{expression} IN ({placeholders})"]
    column = frame.by_name.get(name)
    if name == "tags":  # a JSON array: one equal tag is enough
        conditions.append(
            f"EXISTS (SELECT 1 FROM json_each({expression}) WHERE value IN ({placeholders}))"
        )
    elif column is not None and column.is_hash:
        conditions.append(f"{expression} IN (SELECT +n FROM hashes WHERE sha IN ({placeholders}))")
    if not cells:  # alone, so that SQLite sees that a partial index fits
        return f"{expression} IS NULL" if None in wanted else "0", []
    arguments = cells * len(conditions)
    if None in wanted:
        conditions.append(f"{expression} IS NULL")
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


_DTYPE_WORDS: dict[Dtype, str] = {
    "string": "text",
    "category": "text",
    "Int64": "a whole number",
    "Float64": "a number",
    "boolean": "True or False",
    TIMESTAMP: "a datetime or a text like '2026-03-04', 'today', '7d'",
}


def _filter_error(name: str, value: Any, dtype: Dtype) -> UsageError:
    # The repr of a DataFrame has several lines; an error has one.
    shown_value = " ".join(reprlib.repr(value).split())
    list_hint = "" if name in _SPECIAL_FILTERS else f", or up to {_MAX_VALUES:,} of them in a list"
    expected = _DTYPE_WORDS[dtype]
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
            cells = [_frame_text(cell) if type(cell) is bytes else cell for cell in cells]
        objects = np.array(cells, dtype=object)
        if dtype == "string":
            return pd.array(objects, dtype=_string_dtype())
        codes, labels = pd.factorize(objects, sort=True)
        categories: Any = pd.Index(labels, dtype=_string_dtype())
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


def _string_dtype() -> Any:
    """Dtype of texts. Its storage is the same whether pyarrow is installed or not, so that the
    frames of one store are equal everywhere; `pd.options.mode.string_storage` chooses another."""
    pd = _pandas()
    storage = pd.options.mode.string_storage
    return pd.StringDtype("python" if storage == "auto" else storage)


def _inferred(cells: Any) -> Any:
    """Series with the dtype that fits its cells."""
    series = cells.convert_dtypes()
    is_text = isinstance(series.dtype, _pandas().StringDtype)
    return series.astype(_string_dtype()) if is_text else series


def _frame_text(cell: bytes) -> str:
    return str(cell_text(cell)).encode("utf-8", "replace").decode()


def expand(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Add a column for each key of the JSON objects in one column.

    `nbagent.expand(df, "args")` adds `args.city`; cells that are no objects get missing values.

    Raises:
        UsageError: there is no such column, or it does not contain JSON.
    """
    pd, table = _pandas(), cast("Any", frame)
    if column not in table.columns:
        names = [str(name) for name in table.columns]
        hint = nearest_or_all(column, names, "it has")
        raise UsageError(f"the frame has no column {column!r}{hint}")
    try:
        objects = [json_object(load_json(cell)) or {} for cell in table[column].fillna("{}")]
    except (TypeError, ValueError):
        raise UsageError(f"{column!r} is not JSON; use a column such as 'args'") from None
    added = {
        f"{column}.{key}": _inferred(
            pd.Series([row.get(key) for row in objects], index=table.index, dtype=object)
        )
        for key in dict.fromkeys(key for row in objects for key in row)
    }
    return pd.concat([table, pd.DataFrame(added, index=table.index)], axis=1)
