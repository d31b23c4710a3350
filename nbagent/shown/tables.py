"""DataFrames, Series, indexes and arrays as text: a title, then as much as the budget holds.

Reads only the rows and columns that it shows, each cell by itself, so that one cell that raises,
is huge or holds a key spoils no other. Imports neither pandas nor numpy.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, cast

from nbagent.contracts.secrets import redact
from nbagent.shown.budgets import ARRAY_ITEM_CHARS, CELL_CHARS, MOST_COLUMNS, PATIENCE_S
from nbagent.shown.cells import cell_repr
from nbagent.shown.pictures import of_class
from nbagent.shown.texts import LEFT_OUT, clean, cut_middle

_CHUNK_ROWS = 50
_MOST_DIMENSIONS = 4
_EDGE = 3
_NUMBERS = "biufcmM"
_RowsOf = Callable[[int, int], list[Sequence[Any]]]
"""The cells of some rows, from one to before another."""
_AS_THEIR_TEXT = (
    *(("datetime", name) for name in ("date", "time", "timedelta")),
    *(("pandas", name) for name in ("Period", "Interval")),
    ("numpy", "generic"),
    ("decimal", "Decimal"),
)


def table_text(value: Any, budget: int) -> str | None:
    """The value as a table within about the budget; None when it is none. Raises what it raises."""
    for module, name, text in _TABLES:
        if of_class(value, module, name):
            return text(value, budget)
    return None


def _frame_text(frame: Any, budget: int, kind: str = "DataFrame") -> str:
    rows, columns = frame.shape
    left, right = _edge_columns(columns)
    shown = [*range(left), *range(columns - right, columns)]
    title = f"{kind}: {rows:,} rows × {columns:,} columns\n"
    if not columns:
        return title.rstrip()
    names = [_name_text(name) for name in frame.columns[shown]]
    kinds = frame.dtypes
    dtypes = [f"{n} {kinds.iloc[i]}" for n, i in zip(names, shown, strict=True)]
    gap = f"… {columns - left - right:,} more" if right else ""
    if gap:
        dtypes.insert(left, gap)
    title += f"dtypes: {cut_middle(', '.join(dtypes), max(budget // 4, 100))}\n"
    index = _plain_index(frame.index)
    headers = ["" if name is None else _name_text(name) for name in frame.index.names]
    header = [*([] if index else headers), *names]
    if gap:
        header.insert(len(header) - right, "…")
        title += f"({columns - left - right:,} of {columns:,} columns{LEFT_OUT})\n"

    def rows_of(start: int, end: int) -> list[Sequence[Any]]:
        part = frame.iloc[start:end]
        cells = [list(part.iloc[:, i]) for i in shown]
        if gap:
            cells.insert(left, ["…"] * len(part))
        keys: list[Sequence[Any]] = [] if index else _index_cells(part.index)
        return list(zip(*keys, *cells, strict=True))

    head = f"{_line(header)}\n{_line(['---'] * len(header), plain=True)}\n"
    return title + head + _rows_within(rows_of, rows, budget - len(title) - len(head))


def _name_text(name: Any) -> str:
    """A column's name; of several levels of names, one after the other."""
    if isinstance(name, tuple):
        return " / ".join(map(_cell_text, cast("tuple[Any, ...]", name)))
    return _cell_text(name)


def _edge_columns(columns: int) -> tuple[int, int]:
    if columns <= MOST_COLUMNS:
        return columns, 0
    right = MOST_COLUMNS // 3
    return MOST_COLUMNS - right, right


def _plain_index(index: Any) -> bool:
    """Whether it only counts the rows from 0."""
    return of_class(index, "pandas", "RangeIndex") and (index.start, index.step) == (0, 1)


def _index_cells(index: Any) -> list[Sequence[Any]]:
    if of_class(index, "pandas", "MultiIndex"):
        return [list(index.get_level_values(i)) for i in range(index.nlevels)]
    return [list(index)]


def _line(cells: Sequence[Any], *, plain: bool = False) -> str:
    texts = map(str, cells) if plain else map(_cell_text, cells)
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


def _rows_within(rows_of: _RowsOf, rows: int, budget: int) -> str:
    """All rows when they fit, else the first and the last ones and what is between them."""
    end = time.monotonic() + PATIENCE_S
    mark = f"… {rows:,} of {rows:,} rows{LEFT_OUT} …\n"
    first: list[str] = []
    used = 0
    for line in _each(rows_of, rows):
        if used + len(line) + 1 > budget and rows > 1:
            break
        first.append(line)
        used += len(line) + 1
        if time.monotonic() > end:
            break
    if len(first) == rows:
        return "\n".join(first) if rows else "(no rows)"
    room = max(budget - len(mark), 0)
    head = _fitting(iter(first), room * 2 // 3) or first[:1]
    late = time.monotonic() > end
    tail = [] if late else _fitting(_each_back(rows_of, rows, len(head)), room // 3)
    between = rows - len(head) - len(tail)
    gap = f"… {between:,} of {rows:,} rows{LEFT_OUT} …"
    return "\n".join([*head, gap, *reversed(tail)])


def _each(rows_of: _RowsOf, rows: int) -> Iterator[str]:
    # One line after the other: what is not shown is not written out.
    for start in range(0, rows, _CHUNK_ROWS):
        yield from map(_line, rows_of(start, min(start + _CHUNK_ROWS, rows)))


def _each_back(rows_of: _RowsOf, rows: int, above: int) -> Iterator[str]:
    for end in range(rows, above, -_CHUNK_ROWS):
        yield from map(_line, reversed(rows_of(max(end - _CHUNK_ROWS, above), end)))


def _fitting(lines: Iterator[str], room: int) -> list[str]:
    kept: list[str] = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept


def _cell_text(cell: Any) -> str:
    if isinstance(cell, str):
        # Cut first: the middle of a huge text is not even read.
        text = clean(cut_middle(str.__str__(cell), CELL_CHARS))
    elif type(cell) in (bool, int) and cell < 2**64:
        return str(cell)
    elif cell is None or _is_missing(cell):
        return ""
    elif type(cell) is float or of_class(cell, "numpy", "floating"):
        return f"{float(cell):.12g}"
    elif any(of_class(cell, module, name) for module, name in _AS_THEIR_TEXT):
        text = str(cell)
    else:
        # repr of an int is its text; of anything else it keeps to its budget and never raises.
        text = cell_repr(cell)
    text = redact(text) if len(text) <= CELL_CHARS else cut_middle(text, CELL_CHARS)
    return text.replace("\r", "").replace("\n", "\\n")


def _is_missing(cell: Any) -> bool:
    if type(cell) is float or of_class(cell, "numpy", "floating"):
        return math.isnan(cell)
    pandas = sys.modules.get("pandas")
    return pandas is not None and (cell is pandas.NaT or cell is pandas.NA)


def _styler_text(styler: Any, budget: int) -> str:
    return _frame_text(styler.data, budget, "Styler of a DataFrame")


def _series_text(series: Any, budget: int) -> str:
    name = "" if series.name is None else f" {_cell_text(series.name)!r}"
    title = f"Series{name}: {len(series):,} values, {series.dtype}\n"
    plain = _plain_index(series.index)

    def rows_of(start: int, end: int) -> list[Sequence[Any]]:
        part = series.iloc[start:end]
        keys = [range(start, end)] if plain else _index_cells(part.index)
        return list(zip(*keys, list(part), strict=True))

    return title + _rows_within(rows_of, len(series), budget - len(title))


def _index_text(index: Any, budget: int) -> str:
    name = "" if index.name is None else f" {_cell_text(index.name)!r}"
    kind = type(index).__name__
    title = f"{kind}{name}: {len(index):,} values, {index.dtype}\n"

    def rows_of(start: int, end: int) -> list[Sequence[Any]]:
        return list(zip(*_index_cells(index[start:end]), strict=True))

    return title + _rows_within(rows_of, len(index), budget - len(title))


def _array_text(array: Any, budget: int) -> str:
    numpy: Any = sys.modules["numpy"]
    title = f"array: shape {tuple(array.shape)}, {cut_middle(str(array.dtype), 200)}\n"
    if array.dtype.kind not in _NUMBERS:
        return title + _elements(array, budget - len(title))
    if of_class(array, "numpy.ma", "MaskedArray"):
        return title + str(array)
    if array.ndim > _MOST_DIMENSIONS and array.size > 100:
        return title + _elements(array, min(budget - len(title), 1_000))
    whole = max(budget // ARRAY_ITEM_CHARS, 10)
    return title + str(numpy.array2string(array, threshold=whole, edgeitems=_EDGE))


def _elements(array: Any, room: int) -> str:
    """The first elements, one by one: some objects are huge, and some raise."""
    texts: list[str] = []
    for item in islice(array.flat, max(room // 2, 1)):
        text = "None" if item is None else _cell_text(item) or "nan"
        room -= len(text) + 2
        if room < 0 and texts:
            break
        texts.append(text)
    missing = array.size - len(texts)
    rest = f", … {missing:,} of {array.size:,} elements{LEFT_OUT}" if missing else ""
    return f"[{', '.join(texts)}{rest}]"


_TABLES: tuple[tuple[str, str, Callable[[Any, int], str]], ...] = (
    ("pandas", "DataFrame", _frame_text),
    ("pandas", "Series", _series_text),
    ("pandas", "Index", _index_text),
    ("pandas.io.formats.style", "Styler", _styler_text),
    ("numpy", "ndarray", _array_text),
)
