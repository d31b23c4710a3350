"""Read a prompt: the words that a person typed, apart from the tables and data put into them.

`{{ df }}` reaches a model as text, so a table is recognised by its form.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from nbagent.contracts.canonical import json_object
from nbagent.contracts.messages import Message

_MAX_TEXT_CHARS = 4_000
_MAX_ROWS = 5_000
_MAX_HEADERS = 200
"""Most lines that are tried as the header of a plain table."""
_MAX_LINE_CHARS = 2_000
_MAX_DATA = 20
"""Most openings of JSON that are tried: a text of only brackets must not be slow."""
_MAX_LISTED = 50
"""Most items of a list that count as typed values."""
_TITLE = re.compile(
    r"(?P<before>.*?)\b[A-Z]\w*(?: of a DataFrame| \([\w.]+\))?:"
    r" (?P<rows>[\d,]+) rows? × (?P<columns>[\d,]+) columns?"
)
_RULE = re.compile(r"\|(?:\s*:?-{3,}:?\s*\|)+")
_ARRAY = re.compile(r"array: shape \(\d+,\), \w+\n\[([^\[\]…]*)\]")
_NOTE_LINE = re.compile(r"dtypes: |\([\d,]+ of [\d,]+ columns")
_DATA_START = re.compile(r"""[\[{](?=\s*["\[{\d\-tfn\]}])""")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f]")


@dataclass(frozen=True, slots=True)
class Table:
    """A table in a prompt: its columns, and the rows that are in it, as text."""

    columns: list[str]
    rows: list[list[str]]
    n_rows: int
    """Number of rows of the original."""

    @property
    def is_whole(self) -> bool:
        """True if no row was left out."""
        return len(self.rows) == self.n_rows

    def cells(self, column: str) -> list[str]:
        """Return the cells of a column."""
        position = self.columns.index(column)
        return [row[position] for row in self.rows]

    def is_numeric(self, column: str) -> bool:
        """True if all filled cells of a column are numbers."""
        filled = [cell for cell in self.cells(column) if cell]
        return bool(filled) and all(cell_number(cell) is not None for cell in filled)

    def is_id(self, column: str) -> bool:
        """True if a column only numbers the rows: nobody adds or compares its cells."""
        return bool(re.search(r"(?i)(?:\A|[^a-z])(?:id|nr|no|index|zip|code)\Z", column))

    def is_flag(self, column: str) -> bool:
        """True if all filled cells of a column are yes or no."""
        filled = {*self.cells(column)} - {""}
        return bool(filled) and filled <= {"true", "false", "0", "1"}

    def is_ordered(self, column: str) -> bool:
        """True if a column has numbers or dates."""
        filled = [cell for cell in self.cells(column) if cell]
        return self.is_numeric(column) or bool(filled and re.match(r"\d{4}-\d\d", filled[0]))


def cell_number(cell: str) -> float | None:
    """Return the finite number in a cell; None for other texts."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True, slots=True)
class TypedPrompt:
    """Words of a person, and the tables that were put into them."""

    text: str = ""
    """Words, with the items of short lists."""
    tables: list[Table] = field(default_factory=list[Table])
    question: str = ""
    """Words without the items of lists, which are in a table."""


def read_prompt(message: Message) -> TypedPrompt:
    """Take the tables and the data out of a person's message."""
    text = message.typed_text.replace("\r\n", "\n")
    text, tables = _without_tables(text)
    if not tables:
        text, tables = _without_plain_table(text)
    text, question, more = _without_data(text)
    return TypedPrompt(_shortened(text), [*tables, *more], _shortened(question))


def _shortened(text: str) -> str:
    """Keep beginning and end: a document may be put before or behind the question."""
    half = _MAX_TEXT_CHARS // 2
    if len(text) > _MAX_TEXT_CHARS:
        text = f"{text[:half]}\n{text[-half:]}"
    return _CONTROL.sub(" ", text)


def _without_tables(text: str) -> tuple[str, list[Table]]:
    if "---" not in text and " × " not in text:
        return text, []
    lines, left, tables = text.split("\n"), list[str](), list[Table]()
    position = 0
    while position < len(lines):
        line = lines[position]
        if _RULE.fullmatch(line.strip()) and left and left[-1].lstrip().startswith("|"):
            table, position = _table_at(lines, position + 1, left)
            tables.append(table)
            continue
        title = _TITLE.fullmatch(line)
        if title and title["columns"] == "0":
            left.append(title["before"])
            tables.append(Table([], [], _to_int(title["rows"])))
        else:
            left.append(line)
        position += 1
    return "\n".join(left), tables


def _table_at(lines: Sequence[str], position: int, left: list[str]) -> tuple[Table, int]:
    """Read the rows below a header; take the header and the title from the lines before."""
    columns = [name or "index" for name in _cells(left.pop())]
    while left and _NOTE_LINE.match(left[-1]):
        left.pop()
    title = _TITLE.fullmatch(left[-1]) if left else None
    if title:
        left[-1] = title["before"]
    rows: list[list[str]] = []
    n_read = 0
    while position < len(lines) and lines[position].lstrip().startswith(("|", "… ")):
        if lines[position].lstrip().startswith("|"):
            n_read += 1
            if n_read <= _MAX_ROWS:
                cells = _cells(lines[position])
                rows.append((cells + [""] * len(columns))[: len(columns)])
        position += 1
    if position < len(lines) and lines[position] == "(no rows)":
        position += 1
    return Table(columns, rows, _to_int(title["rows"]) if title else n_read), position


def _without_plain_table(text: str) -> tuple[str, list[Table]]:
    """Take out a table as `df.to_csv()` or `df.to_string()` writes it."""
    lines = text.split("\n")
    for start in range(min(len(lines) - 1, _MAX_HEADERS)):
        part = lines[start : start + _MAX_ROWS]
        names, rows, tail = _aligned_rows(part)
        n_words = len(lines[start].split()) - len(names)
        before = " ".join(lines[start].split()[:n_words])
        if not rows:
            names, rows = _csv_rows(part)
            before = lines[start].removesuffix(",".join(names)) if rows else ""
        if rows:
            left = [*lines[:start], before, tail, *lines[start + 1 + len(rows) :]]
            return "\n".join(left), [Table(names, rows, len(rows))]
    return text, []


def _aligned_rows(lines: Sequence[str]) -> tuple[list[str], list[list[str]], str]:
    """Read rows that are numbered from 0 below a header, and the words behind the last one.

    A cell has no space.
    """
    rows: list[list[str]] = []
    n_columns = len(lines[1].split()) - 1
    names, tail = lines[0].split()[-n_columns:] if n_columns > 0 else [], list[str]()
    for line in lines[1:]:
        number, *cells = line.split() or [""]
        if number != str(len(rows)) or not 0 < len(names) <= len(cells) or tail:
            break
        cells, tail = cells[: len(names)], cells[len(names) :]
        rows.append(["" if cell in ("NaN", "None", "NaT") else cell for cell in cells])
    is_table = len(rows) > 1 or (rows and lines[0].startswith(" "))
    return (names, rows, " ".join(tail)) if is_table else ([], [], "")


def _csv_rows(lines: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Read rows of CSV below a header of names."""
    header = re.search(r"(?:^|(?<=\s))[^\W\d]\w*(?:,[^\W\d][\w ]*)+$", lines[0])
    if header is None:
        return [], []
    names = header[0].split(",")
    rows: list[list[str]] = []
    for line in lines[1:]:
        cells = next(csv.reader([line]), list[str]())
        if len(cells) != len(names) or len(line) > _MAX_LINE_CHARS:
            break
        rows.append(cells)
    return (names, rows) if len(rows) > 1 else ([], [])


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", inner)]


def _to_int(text: str) -> int:
    return int(text.replace(",", "")[:18])


def _without_data(text: str) -> tuple[str, str, list[Table]]:
    """Take out objects and lists; in the first text the items of short plain lists stay."""
    tables: list[Table] = []
    array = _ARRAY.search(text)
    if array:
        text = text[: array.start()] + f"[{','.join(array[1].split())}]" + text[array.end() :]
    decoder, pieces, question_parts, done = json.JSONDecoder(), list[str](), list[str](), 0
    for match in list(_DATA_START.finditer(text))[:_MAX_DATA]:
        if match.start() < done:
            continue
        try:
            data, end = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        if not data or "`" in text[max(0, match.start() - 200) : match.start()].rpartition("\n")[2]:
            continue  # A call that is written in backticks keeps its arguments.
        question_parts.append(text[done : match.start()])
        pieces += [question_parts[-1], _listed(data)]
        done = end
        tables += _tables_of(data)
    return "".join([*pieces, text[done:]]), " ".join([*question_parts, text[done:]]), tables


def _listed(data: Any) -> str:
    """Return the items of a short plain list as typed values; empty for other data."""
    listed = cast("list[Any]", data) if isinstance(data, list) else []
    if len(listed) > _MAX_LISTED or any(isinstance(item, dict | list) for item in listed):
        return ""
    return ", ".join(f'"{item}"' if isinstance(item, str) else str(item) for item in listed)


def _tables_of(data: Any) -> list[Table]:
    """Read JSON as a table: objects as rows, one object as names and values, or one column."""
    if isinstance(data, dict):
        pairs = cast("dict[str, Any]", data)
        if pairs and all(isinstance(value, list) for value in pairs.values()):
            columns = [[_cell(item) for item in value] for value in pairs.values()]
            rows = [list(row) for row in zip(*columns, strict=False)]
            return [Table(list(pairs), rows, len(rows))]
        if pairs and all(isinstance(value, dict) for value in pairs.values()):
            return _tables_of(_rows_of_columns(cast("dict[str, dict[str, Any]]", pairs)))
        if any(isinstance(value, dict | list) for value in pairs.values()):
            return []
        rows = [[name, _cell(value)] for name, value in pairs.items()]
        return [Table(["name", "value"], rows, len(rows))]
    listed = cast("list[Any]", data) if isinstance(data, list) else []
    objects = [row for item in listed if (row := json_object(item)) is not None]
    if objects and len(objects) == len(listed):
        names = list(dict.fromkeys(name for row in objects for name in row))
        rows = [[_cell(row.get(name)) for name in names] for row in objects]
        return [Table(names, rows, len(rows))]
    if listed and not objects:
        return [Table(["value"], [[_cell(item)] for item in listed], len(listed))]
    return []


def _rows_of_columns(columns: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Turn `{column: {row: cell}}`, as `df.to_dict()` gives it, into rows."""
    labels = list(dict.fromkeys(label for column in columns.values() for label in column))
    return [{name: column.get(label) for name, column in columns.items()} for label in labels]


def _cell(value: Any) -> str:
    if value is None or isinstance(value, dict | list):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
