"""How texts, values and numbers look to a person: secrets hidden, hidden characters visible.

One pattern for each kind of number (`2.8 s`, `12 ms`, `$0.0004`, `1,284`). Knows no view.
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
FRAME = re.compile(
    r"(?:DataFrame|Series|Styler of a DataFrame): ([0-9,]{1,20}) rows × ([0-9,]{1,20}) columns"
)
"""How `shown` begins the text of a table."""
_COMPACT_CHARS = 76
"""JSON up to this length stays on one line."""


def clean(text: str) -> str:
    """What a model wrote, without secrets, terminal codes and controls; joiners of scripts stay."""
    return readable(redact(text))


def visible(text: str) -> str:
    """What a tool took or gave: as `clean`, and every hidden character shown as `⟦U+202E⟧`."""
    return texts.visible(redact(text))


def one_line(text: str, limit: int) -> str:
    """The first words, on one line, with ` …` where something is left out."""
    line = _SPACES.sub(" ", text[: limit * 4]).strip()
    if len(line) <= limit and len(text) <= limit * 4:
        return line
    head = line[:limit]
    word = head.rfind(" ")
    return (head[:word] if word > limit // 2 else head).rstrip() + " …"


def cut(text: str, limit: int, *, has_all: str) -> tuple[str, str]:
    """The text within `limit` characters, and a note that says what is missing and where it is."""
    if len(text) <= limit:
        return text, ""
    return text[:limit], f"… {len(text) - limit:,} characters more; {has_all} has all"


def as_text(value: Any, *, enough: int) -> str:
    """A JSON value to read: a string as it is, short JSON on one line, longer JSON indented.

    Args:
        value: a JSON value.
        enough: from about this many characters on the form does not matter, it will be cut.
    """
    if isinstance(value, str):
        return visible(value)
    return visible(json_text(with_texts(value, without_codes), enough=enough))


def json_text(value: Any, *, enough: int) -> str:
    """A value as JSON: indented where it is longer than a line and shorter than twice `enough`."""
    try:
        flat = json.dumps(value, ensure_ascii=False, default=str)
        if _COMPACT_CHARS < len(flat) < enough * 2:
            return json.dumps(value, ensure_ascii=False, default=str, indent=2)
    except (RecursionError, ValueError, TypeError):
        return f"(a {type(value).__name__} that cannot be shown as JSON)"
    return flat


def with_texts(value: Any, change: Callable[[str], str], levels: int = MAX_DEPTH) -> Any:
    """A JSON value with each of its strings changed, keys too; not what is in deeper levels."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict) and levels:
        items = cast("dict[Any, Any]", value).items()
        return {with_texts(k, change): with_texts(v, change, levels - 1) for k, v in items}
    if isinstance(value, list | tuple) and levels:
        return [with_texts(item, change, levels - 1) for item in cast("list[Any]", value)]
    return cast("Any", value)


def escapes_shown(text: str) -> str:
    """The text with its escape characters as words: a colour code is bytes that are written too."""
    return text.replace("\x1b", "⟦U+001B⟧")


def in_short(value: Any) -> str:
    """A result in a few characters: `717,710`, `"Oslo"`, `11 columns × 1,204 rows`, `2.1 kB`."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int):
        # A huge integer has no decimal form that Python would make.
        return f"{value:,}" if abs(value) < 10**15 else one_line(f"{value:#x}"[:60], 24)
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"[:24]
    if isinstance(value, str):
        shape = table_shape(value)
        if shape or len(value) <= 200:
            return shape or f'"{one_line(visible(value), 40)}"'
        return f'"{one_line(visible(value[:200]), 24)}" ({size(len(value))})'
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        return _small_json(items) or table_shape(items) or things(len(items), "item")
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        return _small_json(fields) or f"{things(len(fields), 'key')}: {_first_keys(fields)}"
    return one_line(visible(str(value)), 40)


def table_shape(value: Any) -> str:
    """`11 columns × 1,204 rows` of what is a table; else empty."""
    if isinstance(value, str):
        found = FRAME.match(value)
        return f"{found[2]} columns × {found[1]} rows" if found else ""
    columns = columns_of(value)
    return f"{things(len(columns), 'column')} × {things(len(value), 'row')}" if columns else ""


def columns_of(value: Any) -> list[str]:
    """The keys of a list of two or more objects that all have the same ones; else none."""
    if not isinstance(value, list | tuple):
        return []
    rows = cast("list[Any]", value)
    if len(rows) < 2 or not isinstance(rows[0], dict) or not rows[0]:
        return []
    keys = cast("dict[str, Any]", rows[0]).keys()
    return list(keys) if all(isinstance(r, dict) and r.keys() == keys for r in rows) else []


def _first_keys(fields: dict[Any, Any]) -> str:
    names = [one_line(visible(str(name)), 16) for name in list(fields)[:3]]
    return ", ".join([*names, "…"] if len(fields) > 3 else names)


def things(number: int, word: str) -> str:
    """`1 turn`, `3 turns`."""
    return f"{number:,} {word}{'s' * (number != 1)}"


def _small_json(value: Any) -> str:
    if len(value) > 6:
        return ""
    text = as_text(value, enough=80)
    return text if len(text) <= 48 and "\n" not in text else ""


def size(characters: int) -> str:
    """A number of characters or bytes: `2.1 kB`."""
    if characters < 1000:
        return f"{characters} B"
    return f"{characters / 1e3:,.1f} kB" if characters < 1e6 else f"{characters / 1e6:,.1f} MB"


def arguments_in_short(arguments: dict[str, Any] | None) -> str:
    """Arguments as in a call: `city="Oslo", n=3`."""
    if arguments is None:
        return "not a JSON object"
    words: list[str] = []
    length = 0
    for name, value in arguments.items():
        shown = in_short(value)
        word = f"{one_line(visible(name), 24)}={shown if len(shown) <= 34 else shown[:32] + ' …'}"
        if words and length + len(word) > 72:
            words.append("…")
            break
        words.append(word)
        length += len(word)
    return ", ".join(words)


def count(number: int) -> str:
    """A number of things, with commas."""
    return f"{number:,}"


def seconds(ms: float) -> str:
    """A time of turns and runs: `12 ms`, `2.8 s`, `125 s`, `12 min 5 s`."""
    if ms < 999.5:
        return f"{ms:.0f} ms" if ms >= 1 else "<1 ms"
    if ms >= 600_000:
        return f"{int(ms // 60_000)} min {int(ms % 60_000 // 1000)} s"
    return f"{ms / 1000:.1f} s" if ms < 99_950 else f"{ms / 1000:.0f} s"


def began(at: datetime) -> str:
    """When a run began, by the clock here: `23 Nov 14:05`."""
    return at.astimezone().strftime("%d %b %H:%M")


def money(usd: float) -> str:
    """A cost: `$0.0004`."""
    if usd < 0.00005:
        return "<$0.0001" if usd > 0 else "$0"
    return f"${usd:,.4f}" if usd < 100 else f"${usd:,.2f}"


def tool_title(name: str, display_name: str) -> str:
    """What a card calls a tool: never without the name that rules are written with."""
    return f"{display_name} ({name})" if display_name else name
