"""DataFrames, Series, indexes and arrays of numbers: a title, then as much as the budget holds.

Reads only the rows and columns that it shows, each cell by itself, so that one cell that raises
or is huge harms no other. Imports neither pandas nor numpy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, cast

from nbagent.shown.images import of_class
from nbagent.shown.texts import LEFT_OUT, cut_middle

_Cell = Callable[[Any], str]
"""Makes the text of one cell, on one line."""
_MOST_COLUMNS = 40
"""Of a table; the others are left out."""


def table_text(value: Any, budget: int, cell: _Cell) -> str | None:
    """The value as a table within about the budget; None when it is none. Raises what it raises."""
    if of_class(value, "pandas", "DataFrame"):
        return _frame_text(value, budget, cell, "DataFrame")
    if of_class(value, "pandas", "Series"):
        return _frame_text(value.to_frame(), budget, cell, "Series")
    if of_class(value, "pandas", "Index"):
        return _frame_text(value.to_frame(index=False), budget, cell, type(value).__name__)
    if of_class(value, "pandas.io.formats.style", "Styler"):
        return _frame_text(value.data, budget, cell, "Styler of a DataFrame")
    if of_class(value, "numpy", "ndarray"):
        return _array_text(value, budget) if is_of_numbers(value) else None
    return None


def is_of_numbers(array: Any) -> bool:
    """Whether numpy prints all of an array in a readable form, and quickly."""
    return array.dtype.kind in "biufcmM" and array.ndim <= 4


def _frame_text(frame: Any, budget: int, cell: _Cell, kind: str) -> str:
    rows, columns = frame.shape
    title = f"{kind}: {rows:,} rows × {columns:,} columns"
    if not columns:
        return title
    places = range(min(columns, _MOST_COLUMNS))
    kinds = frame.dtypes
    dtypes = ", ".join(f"{_name(frame.columns[i], cell)} {kinds.iloc[i]}" for i in places)
    title += f"\ndtypes: {cut_middle(dtypes, max(budget // 4, 100))}\n"
    if columns > len(places):
        title += f"({columns - len(places):,} of {columns:,} columns{LEFT_OUT})\n"
    index = frame.index
    counts_only = of_class(index, "pandas", "RangeIndex") and (index.start, index.step) == (0, 1)

    def part(start: int, end: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The header, and the cells of some rows."""
        some = frame.iloc[start:end, places]
        some = some if counts_only else some.reset_index(allow_duplicates=True)
        names = [_name(name, cell) for name in some.columns]
        return names, list(zip(*(list(some.iloc[:, i]) for i in range(len(names))), strict=True))

    # No line is shorter than its bars.
    most = budget // (3 * len(places) + 2) + 1
    names, first = part(0, most)
    title += f"{_line(names)}\n{_line(['---'] * len(names))}\n"
    mark = f"… {rows:,} of {rows:,} rows{LEFT_OUT} …\n"
    room = max(budget - len(title) - len(mark), 0)
    head = _fitting(first, room * 2 // 3, cell) or [_line(map(cell, row)) for row in first[:1]]
    room -= sum(map(len, head)) + len(head)
    last = part(max(rows - most, len(head)), rows)[1]
    tail = _fitting(reversed(last), room, cell)
    if between := rows - len(head) - len(tail):
        head.append(f"… {between:,} of {rows:,} rows{LEFT_OUT} …")
    return title + ("\n".join([*head, *reversed(tail)]) or "(no rows)")


def _name(name: Any, cell: _Cell) -> str:
    """A column's name; of several levels of names, one after the other."""
    if isinstance(name, tuple):
        return " / ".join(text for it in cast("tuple[Any, ...]", name) if (text := cell(it)))
    return cell(name)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in cells)} |"


def _fitting(rows: Iterable[tuple[Any, ...]], room: int, cell: _Cell) -> list[str]:
    """As many lines as there is room for; what is not shown is not written out."""
    kept: list[str] = []
    for row in rows:
        line = _line(map(cell, row))
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept


def _array_text(array: Any, budget: int) -> str:
    numpy: Any = sys.modules["numpy"]
    title = f"array: shape {tuple(array.shape)}, {cut_middle(str(array.dtype), 200)}\n"
    # Printed whole when about eight characters an element fit the budget.
    with numpy.printoptions(threshold=max(10, (budget - len(title)) // 8), edgeitems=3):
        return title + str(array)
