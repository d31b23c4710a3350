"""Converts DataFrames, Series, indexes and arrays of numbers to a title and rows within a budget.

Reads only the rows and columns that it shows, each cell separately, so that a cell that raises or
is huge does not affect others. Imports neither pandas nor numpy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

from nbagent.shown.foreign_frames import ForeignTable, foreign_table, is_foreign
from nbagent.shown.images import of_class
from nbagent.shown.texts import OMITTED, count_of, cut_middle

_Cell = Callable[[Any], str]
"""Converts the value of one cell to a text of one line."""
_MAX_COLUMNS = 40
"""Most columns of a table; the others are left out."""


class TableReader(Protocol):
    """Reads parts of a table of one library."""

    title: str
    """Its kind, such as `DataFrame`."""
    n_rows: int
    n_columns: int

    def dtypes(self, n_columns: int) -> list[tuple[Any, Any]]:
        """Return name and type of the first columns."""
        ...

    def header(self, n_columns: int) -> list[Any]:
        """Return the names above the cells of `rows`."""
        ...

    def rows(self, n_columns: int, positions: range) -> Iterable[Sequence[Any]]:
        """Return the cells of the first columns of some rows, in the order of `positions`."""
        ...


def table_text(value: Any, budget: int, cell: _Cell) -> str | None:
    """Convert a table to text of about `budget` characters; None if the value is not a table.

    Errors of the value's own code are raised.
    """
    if of_class(value, "pandas", "DataFrame"):
        return _text_of(_PandasReader(value, "DataFrame"), budget, cell)
    if of_class(value, "pandas", "Series"):
        return _text_of(_PandasReader(value.to_frame(), "Series"), budget, cell)
    if of_class(value, "pandas", "Index"):
        frame = value.to_frame(index=False)
        return _text_of(_PandasReader(frame, type(value).__name__), budget, cell)
    if of_class(value, "pandas.api.extensions", "ExtensionArray"):
        series: Any = sys.modules["pandas"].Series(value, name="values")
        return _text_of(_PandasReader(series.to_frame(), type(value).__name__), budget, cell)
    if of_class(value, "pandas.io.formats.style", "Styler"):
        return _text_of(_PandasReader(value.data, "Styler of a DataFrame"), budget, cell)
    if of_class(value, "numpy", "ndarray"):
        return _array_text(value, budget) if is_numeric(value) else None
    if is_foreign(value):
        table = foreign_table(value)
        if isinstance(table, ForeignTable):
            return _text_of(table, budget, cell)
        return None if table is None else cut_middle(table.text(cell), budget)
    return None


def is_numeric(array: Any) -> bool:
    """True if numpy prints the array readably and fast."""
    return array.dtype.kind in "biufcmM" and array.ndim <= 4


class _PandasReader:
    """Reads a pandas DataFrame; an index that only counts is left out."""

    def __init__(self, frame: Any, title: str) -> None:
        self._frame = frame
        self.title = title
        self.n_rows, self.n_columns = frame.shape
        index = frame.index
        self._counts_only = of_class(index, "pandas", "RangeIndex") and (
            (index.start, index.step) == (0, 1)
        )

    def dtypes(self, n_columns: int) -> list[tuple[Any, Any]]:
        kinds = self._frame.dtypes
        return [(self._frame.columns[i], kinds.iloc[i]) for i in range(n_columns)]

    def header(self, n_columns: int) -> list[Any]:
        return list(self._part(n_columns, range(0)).columns)

    def rows(self, n_columns: int, positions: range) -> Iterable[Sequence[Any]]:
        some = self._part(n_columns, positions)
        # Column by column: pandas converts a whole row to one type, such as integers to floats.
        return zip(*(list(some.iloc[:, i]) for i in range(some.shape[1])), strict=True)

    def _part(self, n_columns: int, positions: range) -> Any:
        some = self._frame.iloc[:, range(n_columns)].iloc[positions]
        # An index may have the name of a column.
        return some if self._counts_only else some.reset_index(allow_duplicates=True)


def _text_of(table: TableReader, budget: int, cell: _Cell) -> str:
    n_rows, n_columns = table.n_rows, table.n_columns
    title = f"{table.title}: {count_of(n_rows, 'row')} × {count_of(n_columns, 'column')}"
    if not n_columns:
        return title
    n_shown = min(n_columns, _MAX_COLUMNS)
    dtypes = ", ".join(f"{_name(name, cell)} {dtype}" for name, dtype in table.dtypes(n_shown))
    title += f"\ndtypes: {cut_middle(dtypes, max(budget // 4, 100))}\n"
    if n_columns > n_shown:
        title += f"({n_columns - n_shown:,} of {n_columns:,} columns{OMITTED})\n"
    names = [_name(name, cell) for name in table.header(n_shown)]
    title += f"{_line(names)}\n{_line(['---'] * len(names))}\n"
    # No line is shorter than its bars, so more rows cannot fit.
    max_rows = budget // (3 * n_shown + 2) + 1
    # The longest form of the mark, since the number of omitted rows is not known yet.
    mark = f"… {n_rows:,} of {n_rows:,} rows{OMITTED} …\n"
    room = max(budget - len(title) - len(mark), 0)
    head = _lines_within(
        table.rows(n_shown, range(min(max_rows, n_rows))), room * 2 // 3, cell
    ) or [_line(map(cell, row)) for row in table.rows(n_shown, range(min(n_rows, 1)))]
    room -= sum(map(len, head)) + len(head)
    last = range(n_rows - 1, max(n_rows - max_rows, len(head)) - 1, -1)
    tail = _lines_within(table.rows(n_shown, last), room, cell)
    if n_omitted := n_rows - len(head) - len(tail):
        head.append(f"… {n_omitted:,} of {n_rows:,} rows{OMITTED} …")
    return title + ("\n".join([*head, *reversed(tail)]) or "(no rows)")


def _name(name: Any, cell: _Cell) -> str:
    """Format a column's name; join several levels."""
    if isinstance(name, tuple):
        return " / ".join(text for level in cast("tuple[Any, ...]", name) if (text := cell(level)))
    return cell(name)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in cells)} |"


def _lines_within(rows: Iterable[Sequence[Any]], room: int, cell: _Cell) -> list[str]:
    """Format rows until `room` is used up; later rows are not formatted."""
    lines: list[str] = []
    for row in rows:
        line = _line(map(cell, row))
        room -= len(line) + 1
        if room < 0:
            break
        lines.append(line)
    return lines


def _array_text(array: Any, budget: int) -> str:
    numpy: Any = sys.modules["numpy"]
    title = f"array: shape {tuple(array.shape)}, {cut_middle(str(array.dtype), 200)}\n"
    # Printed completely if the budget has about eight characters for each element.
    threshold = max(10, (budget - len(title)) // 8)
    if array.size > threshold:
        title += f"(most of {array.size:,} elements{OMITTED})\n"
    with numpy.printoptions(threshold=threshold, edgeitems=3):
        return title + str(array)
