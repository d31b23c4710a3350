"""Tabular results → nodes: lists of objects with the same keys, DataFrames printed by `shown`.

Numbers are right-aligned, other cells left-aligned. Rows, columns and cells are limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

from nbagent.view.markdown import are_numbers, table_cell
from nbagent.view.node import Node, h, line, split_node
from nbagent.view.text_format import (
    DATAFRAME_HEADER,
    columns_of,
    one_line,
    sanitize_value,
    short_number,
    summarize_value,
    truncate,
)

_ROWS, _COLUMNS, _CELL_CHARS = 20, 12, 120
_PROMPT_FRAMES, _PROMPT_ROWS = 6, 12
"""Frames that are drawn in one prompt, and rows of each."""
_UNFOLDED_ROWS = 5
"""A longer DataFrame in a prompt is folded."""
_MAX_PROMPT_CHARS = 60_000
"""Start of a prompt in which frames are looked for."""
_MIDNIGHT = re.compile(r"\d{4}-\d\d-\d\dT00:00:00(?:\.0+)?")
_EMPTY = ("", "null", "None", "NaN", "NaT", "nan")
_BAR = re.compile(r"(?<!\\)\|")


def table_of(value: Any, *, most_rows: int = _ROWS) -> list[Node] | None:
    """Draw a list of objects with the same keys, or `shown`'s text of a DataFrame, as a table.

    Returns:
        The table and a note on omitted rows and columns; None if the value is not a table.
    """
    if isinstance(value, str):
        rows, more = _frame_rows(value, most_rows)
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
        cells = [one_line(short_number(sanitize_value(text)), _CELL_CHARS) for text in row[:width]]
        tag = "td" if n else "th"
        made.append(
            h("tr", "", *(table_cell(tag, [c], right=right[i]) for i, c in enumerate(cells)))
        )
    notes = [f"{more:,} rows more"] if more > 0 else []
    notes += [f"{len(rows[0]) - width:,} columns more"] if len(rows[0]) > width else []
    note = line("nba-note", f"… {' and '.join(notes)}" if notes else "")
    return [h("div", "nba-wide-table", h("table", "", *made)), *([note] if note else [])]


def prompt_blocks(text: str, limit: int, *, has_all: str) -> tuple[list[Node], str]:
    """Draw a prompt: its lines, and the DataFrames in it as tables.

    Args:
        text: the prompt, cleaned.
        limit: shown characters of the text beside the tables.
        has_all: expression that has the whole prompt, for the note.

    Returns:
        The nodes, and a note on omitted text.
    """
    blocks: list[Node] = []
    left, note = limit, ""
    for piece, is_frame in split_frames(text):
        table = table_of(piece, most_rows=_PROMPT_ROWS) if is_frame else None
        if table is not None:
            blocks += _titled_table(piece.partition("\n")[0], table)
            continue
        shown, rest = truncate(piece.strip("\n") if blocks else piece, left, has_all=has_all)
        rows = shown.split("\n") if shown else []
        blocks += [part for row in rows for part in (h("br"), row)][1:]
        left, note = max(0, left - len(piece)), rest or note
    return blocks, note


def _titled_table(title: str, table: Sequence[Node]) -> list[Node]:
    """Draw a DataFrame under its title; a long one is folded."""
    label = h("small", "", title)
    if len(split_node(table[0])[2][0]) - 2 > _UNFOLDED_ROWS + 1:  # tag, attributes, heads
        return [h("details", "nba-frame", h("summary", "nba-lab", label), *table)]
    return [h("div", "nba-lab", label), *table]


def split_frames(text: str) -> list[tuple[str, bool]]:
    """Split a text into other texts and `shown`'s texts of DataFrames, which are marked True."""
    lines = text[:_MAX_PROMPT_CHARS].split("\n")
    pieces: list[tuple[str, bool]] = []
    other: list[str] = []
    i = 0
    while i < len(lines):
        title = DATAFRAME_HEADER.search(lines[i])
        end = _frame_end(lines, i) if title and title.end() == len(lines[i]) else i
        if title is None or end == i or len(pieces) >= 2 * _PROMPT_FRAMES:
            other.append(lines[i])
            i += 1
            continue
        other += [before] if (before := lines[i][: title.start()].rstrip()) else []
        pieces += [("\n".join(other), False)] if other else []
        pieces.append(("\n".join([title[0], *lines[i + 1 : end]]), True))
        other, i = [], end
    rest = "\n".join(other) + text[_MAX_PROMPT_CHARS:]
    return [*pieces, (rest, False)] if rest.strip() or not pieces else pieces


def _frame_end(lines: Sequence[str], start: int) -> int:
    """Number of the line behind a DataFrame's rows; `start` if no rows follow its title."""
    at = start + 1
    while at < len(lines) and lines[at].startswith(("dtypes: ", "(")):
        at += 1
    first = at
    while at < len(lines) and (_is_row(lines[at]) or lines[at].startswith("… ")):
        at += 1
    return at if at > first and _is_row(lines[first]) else start


def _is_row(text: str) -> bool:
    return text.startswith("| ") and text.endswith(" |")


def _frame_rows(text: str, most_rows: int) -> tuple[list[list[str]], int]:
    """Parse `shown`'s text of a DataFrame: header and rows, and the number of omitted rows."""
    title = DATAFRAME_HEADER.match(text)
    if title is None:
        return [], 0
    lines = [row for row in text.split("\n") if _is_row(row)]
    rows = [[c.strip().replace("\\|", "|") for c in _BAR.split(row[1:-1])] for row in lines]
    rows = _without_midnight(row for i, row in enumerate(rows) if i != 1)  # 1: the line of dashes
    rows = rows[: most_rows + 1]
    total = int(title[1].replace(",", "") or 0)
    return rows, total - (len(rows) - 1)


def _without_midnight(rows: Iterable[list[str]]) -> list[list[str]]:
    """Drop the time from columns whose every time is midnight, as pandas prints them."""
    heads, *body = [*rows] or [[]]
    for column in range(len(heads)):
        cells = [row[column] for row in body if len(row) > column]
        dates = [_MIDNIGHT.fullmatch(cell) for cell in cells if cell not in _EMPTY]
        if dates and all(dates):
            for row in body:
                row[column : column + 1] = [text.partition("T")[0] for text in row[column:][:1]]
    return [heads, *body]


def _cell_text(value: Any) -> str:
    return value if isinstance(value, str) else summarize_value(value)
