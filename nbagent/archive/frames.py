"""The runs as DataFrames: one row each, joinable, with dtypes that do not depend on the rows.

The one place that knows pandas, which is imported when a frame is asked for. What the columns are
is said in `columns`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import orjson

from nbagent.archive.columns import (
    MESSAGES,
    RUNS,
    TOOL_RUNS,
    TURNS,
    Column,
    Dtype,
    Table,
)
from nbagent.archive.filters import cells_of, limit_of, moment_of, text_of
from nbagent.archive.store import Store
from nbagent.archive.store.database import Connection, OperationalError
from nbagent.archive.store.moments import to_us
from nbagent.archive.store.reading import Reader, rows
from nbagent.archive.store.rows import cell_text
from nbagent.contracts.chat import ModelInfo
from nbagent.contracts.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

_MISSING = -(2**63)
"""Stands for NULL in a column of integers; as a time it is NaT."""
_NO_FLOAT = "9e999"
"""Infinity stands for NULL in a column of floats, which holds no other."""
_EXTRA = ("run", "session", "model", "since", "until", "limit")
_DEAD_COLUMNS = (
    *("n", "ended_at", "duration_ms", "prompt_tokens", "completion_tokens", "total_tokens"),
    *("cached_tokens", "reasoning_tokens", "cache_write_tokens", "cost_usd"),
)


def runs(store: Store, **filters: Any) -> pd.DataFrame:
    """One row for each run, oldest first.

    Args:
        store: where from.
        **filters: a column's name and a value or a list of values; `run` (an id, the start of
            one, a name, `"last"`), `since` and `until` (of `started_at`), `limit` (the newest n).
    """
    return _frame(store, RUNS, filters)


def turns(store: Store, *, texts: bool = False, **filters: Any) -> pd.DataFrame:
    """One row for each turn; `texts=True` adds `text` and `reasoning`. Filters as in `runs`."""
    return _frame(store, TURNS, filters, texts=texts)


def tool_runs(store: Store, **filters: Any) -> pd.DataFrame:
    """One row for each tool run. Filters as in `runs`."""
    return _frame(store, TOOL_RUNS, filters)


def messages(store: Store, **filters: Any) -> pd.DataFrame:
    """One row for each message, under the run that added it. Filters as in `runs`."""
    return _frame(store, MESSAGES, filters)


def models(found: Iterable[tuple[str, ModelInfo | None, bool, str]]) -> pd.DataFrame:
    """One row for each model: its provider, what is known of it, whether it can be asked now.

    And if not, why; a provider of which no model is known has a row without one.
    """
    import pandas as pd

    rows = list(found)
    known = [model or ModelInfo(id="") for _, model, _, _ in rows]
    columns: dict[str, tuple[list[Any], Dtype]] = {
        "id": ([model and f"{provider}:{model.id}" for provider, model, _, _ in rows], "string"),
        "provider": ([provider for provider, *_ in rows], "category"),
        "context_length": ([model.context_length for model in known], "Int64"),
        "capabilities": ([",".join(model.capabilities) for model in known], "string"),
        "reachable": ([reachable for _, _, reachable, _ in rows], "boolean"),
        "reason": ([why if not ok or not model else "" for _, model, ok, why in rows], "string"),
    }
    return pd.DataFrame(
        {
            name: _category(values) if dtype == "category" else pd.array(values, dtype=dtype)
            for name, (values, dtype) in columns.items()
        }
    )


def _frame(
    store: Store, table: Table, filters: dict[str, Any], *, texts: bool = False
) -> pd.DataFrame:
    import pandas as pd

    columns = table.columns + (table.texts if texts else ())
    most = limit_of(filters.pop("limit", None))
    _refuse_unknown(filters, table, columns)
    with store.reading() as (connection, alive):
        query = _Query(connection, Reader(connection, alive), table)
        query.narrow(filters)
        data = query.read(columns, most)
        arrays = {column.name: query.array(column, data[column.name]) for column in columns}
    return pd.DataFrame(arrays, copy=False)


def _refuse_unknown(filters: dict[str, Any], table: Table, columns: Sequence[Column]) -> None:
    names = (column.name for column in (*table.columns, *table.texts))
    known = list(dict.fromkeys((*names, *_EXTRA)))
    for name in filters:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(
                f"there is no filter {name!r}; {hint}The filters are {', '.join(known)}"
            )
        if name in {column.name for column in table.texts} - {c.name for c in columns}:
            raise UsageError(f"the filter {name!r} needs texts=True")


class _Query:
    """One read of a table, narrowed by filters."""

    def __init__(self, connection: Connection, reader: Reader, table: Table) -> None:
        self._c = connection
        self._reader = reader
        self._table = table
        self._conditions: list[str] = []
        self._parameters: list[Any] = []
        self._lookups: dict[str, tuple[Ints, list[str]]] = {}
        self._dead = self._dead_runs()

    def _dead_runs(self) -> list[tuple[Any, ...]]:
        """The runs whose kernel is gone, each with how it ended."""
        found: list[tuple[Any, ...]] = []
        for row in rows(self._c, "SELECT * FROM runs WHERE phase = 'Running'"):
            if self._reader.is_interrupted(row):
                record = self._reader.ended(row)
                ended = None if record.ended_at is None else to_us(record.ended_at)
                tokens = record.usage.model_dump(include=set(_DEAD_COLUMNS))
                ends = {"n": row["n"], "ended_at": ended, "duration_ms": record.duration_ms}
                ends |= {"cost_usd": record.cost_usd, **tokens}
                found.append(tuple(ends[name] for name in _DEAD_COLUMNS))
        return found

    def narrow(self, filters: dict[str, Any]) -> None:
        """Add conditions."""
        for name, value in filters.items():
            if name == "run":
                self._add(f"{self._table.run} = (SELECT n FROM runs WHERE run_id = ?)")
                self._parameters.append(self._reader.find(text_of(name, value)))
            elif name in ("since", "until"):
                sign = ">=" if name == "since" else "<"
                self._add(f"{self._table.started_at} {sign} ?")
                self._parameters.append(moment_of(name, value))
            else:
                self._equal(name, value)

    def _equal(self, name: str, value: Any) -> None:
        table = self._table
        of_run = Column(name, f"(SELECT {name} FROM runs WHERE n = {table.run})", "category")
        column = next((it for it in (*table.columns, *table.texts) if it.name == name), of_run)
        values = cells_of(name, value, column.dtype)
        cells = [it for it in values if it is not None]
        marks = ",".join("?" * len(cells))
        if column.lookup is None:
            test = f"{column.sql} IN ({marks})"
        else:
            owner = "blobs" if column.lookup == "sha" else "runs"
            test = f"{column.sql} IN (SELECT n FROM {owner} WHERE {column.lookup} IN ({marks}))"
        if column.dtype == "string" and name == "tags":
            test = f"({test} OR EXISTS (SELECT 1 FROM json_each(r.tags) WHERE value IN ({marks})))"
            self._parameters += cells
        if len(cells) < len(values):
            test = f"({test} OR {column.sql} IS NULL)"
        self._add(test)
        self._parameters += cells

    def _add(self, condition: str) -> None:
        self._conditions.append(condition)

    def _from(self, limit: int | None) -> str:
        turn = "" if limit is None else " DESC"
        where = f" WHERE {' AND '.join(self._conditions)}" if self._conditions else ""
        order = ", ".join(term + turn for term in self._table.order)
        return f"FROM {self._table.source}{where} ORDER BY {order} LIMIT ?"

    def _sql(self, select: str, tail: str) -> str:
        names = ", ".join(_DEAD_COLUMNS)
        cells = ", ".join(f"json_extract(value, '$[{i}]')" for i in range(len(_DEAD_COLUMNS)))
        dead = f"WITH dead({names}) AS (SELECT {cells} FROM json_each(?)) "
        numbers = f"({','.join(str(row[0]) for row in self._dead)})"
        return dead + f"{select} {tail}".replace("{dead}", numbers)

    def read(self, columns: Sequence[Column], limit: int | None) -> dict[str, list[Any]]:
        """The values of each column, in the order of the rows."""
        arguments = (
            orjson.dumps(self._dead).decode(),
            *self._parameters,
            -1 if limit is None else limit,
        )
        tail = self._from(limit)
        # JSON would cut a float to 15 digits, and SQLite's longest text is 1 GB.
        floats = [column for column in columns if column.dtype == "Float64"]
        long = [column for column in columns if column.long]
        short = [column for column in columns if column not in long and column not in floats]
        try:
            data = self._read_as_json(short, tail, arguments)
            if floats:
                data |= self._read_floats(floats, tail, arguments)
            if long:
                data |= self._read_row_by_row(long, tail, arguments)
        except OperationalError as error:
            if "BLOB" not in str(error) and "decode" not in str(error):
                raise
            # Somewhere is a lone surrogate: rare, and read slowly.
            data = self._read_leniently(columns, tail, arguments)
        if limit is not None:
            # The newest were taken; they are shown oldest first, as always.
            data = {name: values[::-1] for name, values in data.items()}
        return data

    def _read_as_json(
        self, columns: Sequence[Column], tail: str, arguments: tuple[Any, ...]
    ) -> dict[str, list[Any]]:
        # One JSON array a column costs half of what a tuple a row costs.
        places = {text: i for i, text in enumerate(dict.fromkeys(map(_expression, columns)))}
        inner = ", ".join(f"{text} AS c{i}" for text, i in places.items())
        outer = ", ".join(f"json_group_array(c{i})" for i in places.values())
        sql = self._sql(f"SELECT {outer} FROM (SELECT {inner}", f"{tail})")
        found = [orjson.loads(cell) for cell in self._c.execute(sql, arguments).fetchone()]
        return {column.name: found[places[_expression(column)]] for column in columns}

    def _read_floats(
        self, columns: Sequence[Column], tail: str, arguments: tuple[Any, ...]
    ) -> dict[str, Any]:
        # Straight into an array: tuples and lists on the way cost half as much again.
        import numpy as np

        cells = ", ".join(f"coalesce({_expression(column)}, {_NO_FLOAT})" for column in columns)
        found = self._c.execute(self._sql(f"SELECT {cells}", tail), arguments)
        array = np.fromiter(found, dtype=[(column.name, np.float64) for column in columns])
        return {column.name: array[column.name] for column in columns}

    def _read_row_by_row(
        self, columns: Sequence[Column], tail: str, arguments: tuple[Any, ...]
    ) -> dict[str, list[Any]]:
        sql = self._sql("SELECT " + ", ".join(map(_expression, columns)), tail)
        found = self._c.execute(sql, arguments).fetchall()
        if not found:
            return {column.name: [] for column in columns}
        return {
            it.name: [_readable(cell) if type(cell) is bytes else cell for cell in cells]
            for it, cells in zip(columns, zip(*found, strict=True), strict=True)
        }

    def _read_leniently(
        self, columns: Sequence[Column], tail: str, arguments: tuple[Any, ...]
    ) -> dict[str, list[Any]]:
        strict = self._c.text_factory
        self._c.text_factory = _decoded
        try:
            return self._read_row_by_row(columns, tail, arguments)
        finally:
            self._c.text_factory = strict

    def array(self, column: Column, values: list[Any]) -> Any:
        """The values as an array of the column's dtype."""
        import numpy as np
        import pandas as pd

        if column.lookup is not None:
            return self._looked_up(column, np.array(values, dtype=np.int64))
        match column.dtype:
            case "Int64":
                numbers = np.array(values, dtype=np.int64)
                return pd.arrays.IntegerArray(numbers, numbers == _MISSING)
            case "Float64":
                floats = np.array(values, dtype=np.float64)
                missing = ~np.isfinite(floats)
                floats[missing] = np.nan
                return pd.arrays.FloatingArray(floats, missing)
            case "boolean":
                flags = np.array(values, dtype=np.int64)
                return pd.arrays.BooleanArray(flags == 1, flags == _MISSING)
            case "datetime64[us, UTC]":
                moments = np.array(values, dtype=np.int64).view("M8[us]")
                return cast("Any", pd.DatetimeIndex(moments)).tz_localize("UTC")
            case "category":
                return _category(values)
            case "string":
                return pd.array(np.array(values, dtype=object), dtype="string")

    def _looked_up(self, column: Column, numbers: Ints) -> Any:
        import numpy as np
        import pandas as pd

        keys, texts = self._lookup("sha" if column.lookup == "sha" else str(column.lookup))
        if not len(keys):
            empty = cast("list[Any]", [None] * len(numbers))
            return _category(empty) if column.dtype == "category" else pd.array(empty, "string")
        places: Ints = np.minimum(cast("Any", keys).searchsorted(numbers), len(keys) - 1)
        if column.dtype == "string":
            return pd.array(np.array(texts, dtype=object).take(places), dtype="string")
        used: set[int] = set(places[numbers != _MISSING].tolist())
        names = sorted({texts[place] for place in used})
        code = {name: i for i, name in enumerate(names)}
        codes = np.array([code.get(text, -1) for text in texts], dtype=np.int64).take(places)
        codes[numbers == _MISSING] = -1
        of_codes = cast("Any", pd.Categorical).from_codes
        return of_codes(codes, dtype=pd.CategoricalDtype(_categories(names)))

    def _lookup(self, column: str) -> tuple[Ints, list[str]]:
        import numpy as np

        if column not in self._lookups:
            owner = "blobs" if column == "sha" else "runs"
            found = self._c.execute(f"SELECT n, {column} FROM {owner} ORDER BY n").fetchall()
            keys = np.array([n for n, _ in found], dtype=np.int64)
            self._lookups[column] = (keys, [_readable(cell) for _, cell in found])
        return self._lookups[column]


def _categories(names: list[str]) -> pd.Index:
    import pandas as pd

    return pd.Index(names, dtype="string")


def _category(values: list[Any]) -> Any:
    import pandas as pd

    return pd.Categorical(values, categories=_categories(sorted(set(values) - {None})))


def _expression(column: Column) -> str:
    if column.dtype in ("Int64", "boolean", "datetime64[us, UTC]") or column.lookup:
        return f"coalesce({column.sql}, {_MISSING})"
    return column.sql


def _readable(cell: str | bytes) -> str:
    # Lone surrogates are kept in records; a frame's strings are strict UTF-8.
    return cell_text(cell).encode("utf-8", "replace").decode()


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")
