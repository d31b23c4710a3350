"""Tabular results → nodes: lists of objects with the same keys, DataFrames printed by `shown`.

Numbers are right-aligned, other cells left-aligned. Rows, columns and cells are limited.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from nbagent.view.markdown import are_numbers, table_cell
from nbagent.view.node import Node, h, line
from nbagent.view.text_format import (
    DATAFRAME_HEADER,
    columns_of,
    one_line,
    sanitize_value,
    summarize_value,
)

_ROWS, _COLUMNS, _CELL_CHARS = 20, 12, 120
_BAR = re.compile(r"(?<!\\)\|")


def table_of(value: Any, *, most_rows: int = _ROWS) -> list[Node] | None:
    """Draw a list of objects with the same keys, or `shown`'s text of a DataFrame, as a table.

    Returns:
        The table and a note on omitted rows and columns; None if the value is not a table.
    """
    if isinstance(value, str):
        rows, more = _frame_rows(value)
    elif names := columns_of(value):
        items = cast("Sequence[dict[str, Any]]", value)[:most_rows]
        rows = [names, *([_cell_text(item[name]) for name in names] for item in items)]
        more = len(value) - len(items)
    else:
        return None
    if len(rows) < 2:
        return None
    width = min(len(rows[0]), _COLUMNS)
    right = [are_numbers([row[i] for row in rows[1:] if i < len(row)]) for i in range(width)]
    made: list[Node] = []
    for n, row in enumerate(rows):
        cells = [one_line(sanitize_value(text), _CELL_CHARS) for text in row[:width]]
        tag = "td" if n else "th"
        made.append(
            h("tr", "", *(table_cell(tag, [c], right=right[i]) for i, c in enumerate(cells)))
        )
    notes = [f"{more:,} rows more"] if more > 0 else []
    notes += [f"{len(rows[0]) - width:,} columns more"] if len(rows[0]) > width else []
    note = line("nba-note", f"… {' and '.join(notes)}" if notes else "")
    return [h("div", "nba-wide-table", h("table", "", *made)), *([note] if note else [])]


def _frame_rows(text: str) -> tuple[list[list[str]], int]:
    """Parse `shown`'s text of a DataFrame: header and rows, and the number of omitted rows."""
    title = DATAFRAME_HEADER.match(text)
    if title is None:
        return [], 0
    lines = [row for row in text.split("\n") if row.startswith("| ") and row.endswith(" |")]
    rows = [[c.strip().replace("\\|", "|") for c in _BAR.split(row[1:-1])] for row in lines]
    rows = [row for i, row in enumerate(rows) if i != 1][: _ROWS + 1]  # 1: the line of dashes
    total = int(title[1].replace(",", "") or 0)
    return rows, total - (len(rows) - 1)


def _cell_text(value: Any) -> str:
    return value if isinstance(value, str) else summarize_value(value)
