"""Run history as DataFrames that can be joined; dtypes do not depend on the rows.

The only package that imports pandas, and only when a frame is read (the import takes 1.4 s of CPU).

Rows are read with sqlite3 and not through Arrow, although that takes half the time. Its driver for
SQLite (ADBC) has its own copy of SQLite, but the locks on a file belong to the whole process: when
the driver closes the store, all locks of this process on it are gone. Another process that closes
the store then deletes the write-ahead log in which this process goes on writing: its runs are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from nbagent.contracts.errors import StoreError, UsageError
from nbagent.contracts.nearest import nearest_hint
from nbagent.store.columns import CORRUPT_ROW
from nbagent.store.dataframes.arrays import array_of, pandas_module
from nbagent.store.dataframes.cells import FrameCells
from nbagent.store.dataframes.filter_check import (
    check_words,
    with_whole_notebook_names,
    without_aliases,
)
from nbagent.store.dataframes.inferred import empty_frame, expand, frame_of, frame_of_columns
from nbagent.store.dataframes.query import FrameQuery
from nbagent.store.frame_queries import ALIASES, FRAMES, PROMPTS_BY_SCAN
from nbagent.store.upkeep import is_current
from nbagent.store.writer import Store

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "array_of",
    "empty_frame",
    "expand",
    "find_runs",
    "frame_of",
    "frame_of_columns",
    "read_frame",
]


def read_frame(stores: Sequence[Store], name: str, filters: dict[str, Any]) -> pd.DataFrame:
    """Read a frame: the rows of the stores one after the other, each oldest first.

    Args:
        stores: the stores to read.
        name: a name in FRAMES.
        filters: column names with a value, a list of values or, for numbers and times, a range
            `(low, high)`; `text`, which finds texts that contain its value; `run` (an id, the start
            of an id, a name, `"last"`), `since`, `until`, `limit` (the newest n of each store), and
            for messages `whole`.

    Raises:
        UsageError: a filter is unknown, or no row can have its value.
    """
    frame = FRAMES[name]
    with ExitStack() as stack:
        connections = [stack.enter_context(store.reading()) for store in stores]
        filters = without_aliases(name, filters, connections)
        filters = with_whole_notebook_names(filters, connections)
        check_words(frame, filters, connections)
        made = FrameCells(frame)
        queries: list[FrameQuery] = []
        for store, connection in zip(stores, connections, strict=True):
            source = frame if name != "prompts" or is_current(connection) else PROMPTS_BY_SCAN
            queries.append(FrameQuery(source, filters, store, connection))
        try:
            for query, connection in zip(queries, connections, strict=True):
                made.add(query, connection)
            arrays = made.arrays()
        except CORRUPT_ROW as error:
            files = ", ".join(str(store.path) for store in stores)
            raise StoreError(
                f"a cell in {files} is damaged{made.damaged_cell()} ({error}); name other runs to "
                "read them (run_id=[…]), or move a damaged file away"
            ) from None
    return pandas_module().DataFrame(arrays, copy=False)


def find_runs(store: Store, filters: dict[str, Any], *, sort: str, limit: int) -> list[str]:
    """Ids of runs, those with the largest cells of a column first; filters as in `read_frame`.

    Raises:
        UsageError: a filter or the column is unknown, or no row can have its value.
    """
    frame = FRAMES["runs"]
    sort = ALIASES.get(sort, sort)
    if sort not in frame.by_name:
        hint = nearest_hint(sort, frame.by_name)
        raise UsageError(f"sort={sort!r} is not a column of nbagent.runs(), such as cost_usd{hint}")
    with store.reading() as connection:
        filters = without_aliases("runs", filters, [connection])
        filters = with_whole_notebook_names(filters, [connection])
        check_words(frame, filters, [connection])
        query = FrameQuery(frame, {"limit": limit, **filters}, store, connection, sort)
        (run_ids,) = query.columns(["x.run_id"])
    return run_ids
