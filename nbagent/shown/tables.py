"""Converts DataFrames, Series, indexes and arrays of numbers to a title and rows within a budget.

Reads only the rows and columns that it shows, each cell separately, so that a cell that raises or
is huge does not affect others. Imports neither pandas nor numpy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, cast

from nbagent.shown.images import of_class
from nbagent.shown.texts import OMITTED, cut_middle

_Cell = Callable[[Any], str]
"""Converts the value of one cell to a text of one line."""
_MAX_COLUMNS = 40
"""Most columns of a table; the others are left out."""


def table_text(value: Any, budget: int, cell: _Cell) -> str | None:
    """Convert a table to text of about `budget` characters; None if the value is not a table.

    Errors of the value's own code are raised.
    """
    if of_class(value, "pandas", "DataFrame"):
        return _frame_text(value, budget, cell, "DataFrame")
    if of_class(value, "pandas", "Series"):
        return _frame_text(value.to_frame(), budget, cell, "Series")
    if of_class(value, "pandas", "Index"):
        return _frame_text(value.to_frame(index=False), budget, cell, type(value).__name__)
    if of_class(value, "pandas.io.formats.style", "Styler"):
        return _frame_text(value.data, budget, cell, "Styler of a DataFrame")
    if of_class(value, "numpy", "ndarray"):
        return _array_text(value, budget) if is_numeric(value) else None
    return None


def is_numeric(array: Any) -> bool:
    """True if numpy prints the array readably and fast."""
    return array.dtype.kind in "biufcmM" and array.ndim <= 4


def _frame_text(frame: Any, budget: int, cell: _Cell, kind: str) -> str:
    rows, columns = frame.shape
    title = f"{kind}: {rows:,} rows × {columns:,} columns"
    if not columns:
        return title
    shown_columns = range(min(columns, _MAX_COLUMNS))
    kinds = frame.dtypes
    dtypes = ", ".join(f"{_name(frame.columns[i], cell)} {kinds.iloc[i]}" for i in shown_columns)
    title += f"\ndtypes: {cut_middle(dtypes, max(budget // 4, 100))}\n"
    if columns > len(shown_columns):
        title += f"({columns - len(shown_columns):,} of {columns:,} columns{OMITTED})\n"
    index = frame.index
    counts_only = of_class(index, "pandas", "RangeIndex") and (index.start, index.step) == (0, 1)

    def part(start: int, end: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return column names and the cells of some rows."""
        some = frame.iloc[start:end, shown_columns]
        # An index may have the name of a column.
        some = some if counts_only else some.reset_index(allow_duplicates=True)
        names = [_name(name, cell) for name in some.columns]
        # Column by column: pandas converts a whole row to one type, such as integers to floats.
        return names, list(zip(*(list(some.iloc[:, i]) for i in range(len(names))), strict=True))

    # No line is shorter than its bars, so more rows cannot fit.
    max_rows = budget // (3 * len(shown_columns) + 2) + 1
    names, first = part(0, max_rows)
    title += f"{_line(names)}\n{_line(['---'] * len(names))}\n"
    # The longest form of the mark, since the number of omitted rows is not known yet.
    mark = f"… {rows:,} of {rows:,} rows{OMITTED} …\n"
    room = max(budget - len(title) - len(mark), 0)
    head = _lines_within(first, room * 2 // 3, cell) or [_line(map(cell, row)) for row in first[:1]]
    room -= sum(map(len, head)) + len(head)
    last = part(max(rows - max_rows, len(head)), rows)[1]
    tail = _lines_within(reversed(last), room, cell)
    if n_omitted := rows - len(head) - len(tail):
        head.append(f"… {n_omitted:,} of {rows:,} rows{OMITTED} …")
    return title + ("\n".join([*head, *reversed(tail)]) or "(no rows)")


def _name(name: Any, cell: _Cell) -> str:
    """Format a column's name; join several levels."""
    if isinstance(name, tuple):
        return " / ".join(text for level in cast("tuple[Any, ...]", name) if (text := cell(level)))
    return cell(name)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in cells)} |"


def _lines_within(rows: Iterable[tuple[Any, ...]], room: int, cell: _Cell) -> list[str]:
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
    with numpy.printoptions(threshold=max(10, (budget - len(title)) // 8), edgeitems=3):
        return title + str(array)
