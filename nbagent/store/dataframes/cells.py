"""The cells of a frame, read from one store after the other, and its columns as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbagent.contracts.canonical import dump_json
from nbagent.store.columns import CORRUPT_ROW, Dtype
from nbagent.store.connections import Connection
from nbagent.store.dataframes.arrays import array_of
from nbagent.store.dataframes.derived import DERIVED, Derived, RowCells, hash_texts
from nbagent.store.dataframes.query import FrameQuery
from nbagent.store.frame_queries import Frame


class FrameCells:
    """Cells of a frame, by column, from one store after the other.

    Columns that follow from the run or from other columns are not read for each row: a run has many
    rows, and reading them takes most of the time of a large frame.
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        by_name = frame.by_name
        self._of_runs = {name: list[Any]() for name in by_name if frame.is_of_run(name)}
        """Cells of the runs' columns, a cell for each run."""
        self._derived: dict[str, Derived] = {
            name: DERIVED[column] for name, column in by_name.items() if column in DERIVED
        }
        read = [name for name in by_name if name not in self._of_runs | self._derived.keys()]
        sources = [name for derived in self._derived.values() for name in derived.sources]
        self._names = [*dict.fromkeys((*read, *sources))]
        """Columns that are read for each row, some of them only for derived columns."""
        self._parts: list[RowCells] = []
        """For each store with rows, their cells."""
        self._queries: list[FrameQuery] = []
        self._run_places: list[int] = []
        """Index in `_of_runs` of each row's run."""

    def expressions(self, frame: Frame) -> list[str]:
        """SQL of what is read for each row; the number of its run comes last."""
        expressions = [
            frame.expression(name) if name in frame.by_name else f"x.{name}" for name in self._names
        ]
        return [*expressions, frame.run_number or "0"]

    def add(self, query: FrameQuery, connection: Connection) -> None:
        """Add the cells of a store."""
        *columns, numbers = query.columns(self.expressions(query.frame))
        if not numbers:
            return
        cells = dict[str, Sequence[Any]](zip(self._names, columns, strict=True))
        rows = RowCells(cells, numbers, connection)
        self._parts.append(rows)
        self._queries.append(query)
        for name, derived in self._derived.items():
            cells[name] = derived.compute(rows)
        for name, column in self._frame.by_name.items():
            if column.is_hash:
                cells[name] = hash_texts(cells[name], connection)
        if self._of_runs:
            self._add_runs(numbers, connection)

    def _add_runs(self, numbers: Sequence[int], connection: Connection) -> None:
        """Add the cells of the rows' runs."""
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
        order = self._order() if self._parts and len(self._frame.sources) > 1 else None
        arrays: dict[str, Any] = {}
        for name in self._frame.by_name:
            dtype = self._frame.dtype(name)
            if name in self._of_runs:
                array = array_of(dtype, self._of_runs[name]).take(places)
            else:
                array = array_of(dtype, self._cells(name))
            if order is not None:
                array = array.take(order)
                if dtype == "category":  # some words may be only in rows beyond the limit
                    array = array.remove_unused_categories()
            arrays[name] = array
        return arrays

    def _cells(self, name: str) -> Sequence[Any]:
        """Cells of a column in the rows of all stores."""
        parts = [part.cells[name] for part in self._parts]
        return parts[0] if len(parts) == 1 else [cell for part in parts for cell in part]

    def damaged_cell(self) -> str:
        """Say in which column and run a cell is that is no value of its dtype, if it is found."""
        for part in self._parts:
            for name in self._frame.by_name:
                cells, dtype = part.cells.get(name, ()), self._frame.dtype(name)
                if _are_valid(dtype, cells):
                    continue
                at = next(i for i in range(len(cells)) if not _are_valid(dtype, cells[i : i + 1]))
                sql = "SELECT run_id FROM runs WHERE n = ?"
                row = part.connection.execute(sql, (part.numbers[at],)).fetchone()
                return f", column {name!r}" + (f" of run {row[0]}" if row else "")
        return ""

    def _order(self) -> Any:
        """Places of the rows in their order, up to the limit of each store."""
        import numpy as np

        orders: list[Any] = []
        n_before = 0
        for query, part in zip(self._queries, self._parts, strict=True):
            keys: list[Any] = [
                np.array(part.cells[name], dtype=np.str_ if name == "sha" else np.float64)
                for name in self._frame.sorted_by
            ]
            if not query.is_whole:
                keys.append(np.array(part.numbers, dtype=np.int64))
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
