"""Formats texts, values and numbers for a person: secrets hidden, hidden characters visible.

Each kind of number has one pattern (`2.8 s`, `12 ms`, `$0.0004`, `1,284`). Knows no view.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

from nbagent.contracts.messages import MAX_DEPTH
from nbagent.contracts.secrets import redact
from nbagent.shown import texts
from nbagent.shown.texts import readable, without_codes

_SPACES = re.compile(r"\s+")
DATAFRAME_HEADER = re.compile(
    r"(?:DataFrame|Series|Styler of a DataFrame|\w{1,40} \(\w{1,20}\))"
    r": ([0-9,]{1,20}) rows? × ([0-9,]{1,20}) columns?"
)
"""First line of `shown`'s text of a DataFrame or Series."""
_DECIMAL = re.compile(r"-?\d{1,15}\.\d{1,40}(?:e[-+]?\d{1,3})?")
_LINE_ENDS = re.compile(r"\s*\n\s*")
_SUMMARY_CHARS = 200
"""Start of an argument that a summary can show."""
_DIGITS = 6
_COMPACT_CHARS = 76
"""JSON up to this length stays on one line."""


def sanitize_prose(text: str) -> str:
    """Clean prose of a model or a person: remove secrets, terminal codes and control characters.

    Joiners that scripts such as Persian need stay.
    """
    return readable(redact(text))


def sanitize_value(text: str) -> str:
    """Clean data, such as arguments and names: show hidden characters as `⟦U+202E⟧` too.

    In data a hidden character may be an attack; in prose it may be spelling.
    """
    return texts.visible(redact(text))


def one_line(text: str, limit: int) -> str:
    """Shorten a text to one line of whole words, with ` …` if something is cut."""
    # Cut before the spaces are joined: a result can have megabytes.
    line = _SPACES.sub(" ", text[: limit * 4]).strip()
    if len(line) <= limit and len(text) <= limit * 4:
        return line
    head = line[:limit]
    word = head.rfind(" ")
    return (head[:word] if word > limit // 2 else head).rstrip() + " …"


def truncate(text: str, limit: int, *, has_all: str) -> tuple[str, str]:
    """Cut a text to `limit` characters; return it and a note on the rest and where all of it is."""
    if len(text) <= limit:
        return text, ""
    return text[:limit], f"… {len(text) - limit:,} characters more; {has_all} has all"


def value_text(value: Any, *, enough: int) -> str:
    """Print a JSON value for reading: a string unchanged, short JSON on one line, long indented.

    Args:
        value: a JSON value.
        enough: the caller cuts the text to about this length; longer JSON is not indented.
    """
    if isinstance(value, str):
        return sanitize_value(value)
    # Before JSON, which writes an escape character as `\u001b`.
    return sanitize_value(json_text(map_strings(value, without_codes), enough=enough))


def json_text(value: Any, *, enough: int) -> str:
    """Print a value as JSON, indented if longer than a line and shorter than twice `enough`."""
    try:
        flat = json.dumps(value, ensure_ascii=False, default=str)
        if _COMPACT_CHARS < len(flat) < enough * 2:
            return json.dumps(value, ensure_ascii=False, default=str, indent=2)
    except (RecursionError, ValueError, TypeError):
        return f"(a {type(value).__name__} that cannot be shown as JSON)"
    return flat


def map_strings(value: Any, change: Callable[[str], str], levels: int = MAX_DEPTH) -> Any:
    """Apply `change` to every string and key of a JSON value, down to `levels`."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict) and levels:
        items = cast("dict[Any, Any]", value).items()
        return {map_strings(k, change): map_strings(v, change, levels - 1) for k, v in items}
    if isinstance(value, list | tuple) and levels:
        return [map_strings(item, change, levels - 1) for item in cast("list[Any]", value)]
    return cast("Any", value)


def show_escapes(text: str) -> str:
    """Make escape characters visible: a colour code is part of a written file too."""
    return text.replace("\x1b", "⟦U+001B⟧")


def summarize_value(value: Any) -> str:
    """Summarize a result: `717,710`, `"Oslo"`, `11 columns × 1,204 rows`, `"…" (2.1 kB)`."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int):
        # Python refuses to print an integer of more than 4,300 digits in decimal.
        return f"{value:,}" if abs(value) < 10**15 else one_line(f"{value:#x}"[:60], 24)
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"[:24]
    if isinstance(value, str):
        shape = table_shape(value)
        if shape or len(value) <= 200:
            return shape or f'"{one_line(sanitize_value(value), 40)}"'
        return f'"{one_line(sanitize_value(value[:200]), 24)}" ({format_size(len(value))})'
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        return short_json(items) or table_shape(items) or pluralize(len(items), "item")
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        return short_json(fields) or f"{pluralize(len(fields), 'key')}: {_first_keys(fields)}"
    return one_line(sanitize_value(str(value)), 40)


def short_number(text: str) -> str:
    """Shorten a decimal number in a text to six digits; return any other text unchanged."""
    if not _DECIMAL.fullmatch(text) or len(text.strip("-0").replace(".", "")) <= _DIGITS:
        return text
    number = float(text)
    return f"{number:.{_DIGITS}g}" if abs(number) < 10**_DIGITS else f"{number:.0f}"


def table_shape(value: Any) -> str:
    """Return `11 columns × 1,204 rows` for a table; else an empty text."""
    if isinstance(value, str):
        match = DATAFRAME_HEADER.match(value)
        counts = [int(text.replace(",", "") or 0) for text in match.groups()[:2]] if match else []
        return f"{pluralize(counts[1], 'column')} × {pluralize(counts[0], 'row')}" if match else ""
    columns = columns_of(value)
    return (
        f"{pluralize(len(columns), 'column')} × {pluralize(len(value), 'row')}" if columns else ""
    )


def columns_of(value: Any) -> list[str]:
    """Return the common keys of two or more objects with the same keys; else an empty list."""
    if not isinstance(value, list | tuple):
        return []
    rows = cast("list[Any]", value)
    if len(rows) < 2 or not isinstance(rows[0], dict) or not rows[0]:
        return []
    keys = cast("dict[str, Any]", rows[0]).keys()
    return list(keys) if all(isinstance(r, dict) and r.keys() == keys for r in rows) else []


def _first_keys(fields: dict[Any, Any]) -> str:
    names = [one_line(sanitize_value(str(name)), 16) for name in list(fields)[:3]]
    return ", ".join([*names, "…"] if len(fields) > 3 else names)


def pluralize(number: int, word: str) -> str:
    """`1 turn`, `3 turns`."""
    return f"{number:,} {word}{'s' * (number != 1)}"


def short_json(value: Any) -> str:
    """Print a list or an object of a few short values as JSON; empty if it is longer."""
    if len(value) > 6:
        return ""
    text = value_text(value, enough=80)
    return text if len(text) <= 48 and "\n" not in text else ""


def format_size(characters: int) -> str:
    """Format a number of characters or bytes: `2.1 kB`."""
    if characters < 1000:
        return f"{characters} B"
    return f"{characters / 1e3:,.1f} kB" if characters < 1e6 else f"{characters / 1e6:,.1f} MB"


def summarize_arguments(arguments: dict[str, Any] | None) -> str:
    """Summarize arguments as in a call: `city="Oslo", n=3`."""
    if arguments is None:
        return "not a JSON object"
    parts: list[str] = []
    length = 0
    for name, value in arguments.items():
        shown = _argument_text(value)
        shown = shown if len(shown) <= 34 else f"{shown[:32]} …"
        part = f"{one_line(sanitize_value(name), 24)}={shown}"
        if parts and length + len(part) > 72:
            parts.append("…")
            break
        parts.append(part)
        length += len(part)
    return ", ".join(parts)


def _argument_text(value: Any) -> str:
    """Summarize an argument as code: numbers without commas; a mark for each line end."""
    if type(value) is int and abs(value) < 10**15:
        return str(value)
    if type(value) is float and abs(value) < 10**15:
        return f"{value:.6g}" if abs(value) < 1e6 else str(value)
    if isinstance(value, str) and not table_shape(value):
        start, rest = value[:_SUMMARY_CHARS], value[_SUMMARY_CHARS:]
        return summarize_value(_LINE_ENDS.sub(" ⏎ ", start.strip("\n")) + rest)
    return summarize_value(value)


def format_count(number: int) -> str:
    """Format a number with commas."""
    return f"{number:,}"


def format_duration(ms: float) -> str:
    """Format a duration: `12 ms`, `2.8 s`, `125 s`, `12 min 5 s`."""
    # Limits are half a step below: rounding must not print `1000 ms` or `100.0 s`.
    if ms < 999.5:
        return f"{ms:.0f} ms" if ms >= 1 else "<1 ms"
    if ms >= 600_000:
        return f"{int(ms // 60_000)} min {int(ms % 60_000 // 1000)} s"
    return f"{ms / 1000:.1f} s" if ms < 99_950 else f"{ms / 1000:.0f} s"


def format_start(at: datetime) -> str:
    """Format a start time in local time: `23 Nov 14:05`."""
    return at.astimezone().strftime("%d %b %H:%M")


def format_cost(usd: float) -> str:
    """Format a cost: `$0.0004`."""
    if usd < 0.00005:
        return "<$0.0001" if usd > 0 else "$0"
    return f"${usd:,.4f}" if usd < 100 else f"${usd:,.2f}"


def tool_title(name: str, display_name: str) -> str:
    """Title of a tool. It always has the tool's name, which rules use."""
    return f"{display_name} ({name})" if display_name else name
