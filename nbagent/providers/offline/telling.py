"""How the demo model puts results into words: fields, tables, and comparisons of numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.canonical import canonical_json, dump_json, json_object
from nbagent.providers.offline.filling import items, stems

_LESS = "small|less|least|few|low|short|young|light|cold|cheap|slow|near"
_MORE = "larg|bigg|more|most|high|great|long|tall|old|heav|warm|fast|deep|best|compare"
_COMPARING = re.compile(rf"\b(?:({_LESS})|{_MORE})\w*", re.IGNORECASE)
_COUNTING = re.compile(r"\bhow (?:much|many)(?: more)?\b", re.IGNORECASE)
_MOST_ROWS = 20
_LONGEST = 1_500
_EMPTY: tuple[Any, ...] = ("", [], None)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the demo model makes, and what came back."""

    tool: str
    arguments: dict[str, Any]
    ok: bool = False
    data: Any = None
    """The result, or the error where it is not `ok`."""

    @property
    def key(self) -> bytes:
        """Equal for the same tool with the same arguments."""
        return canonical_json([self.tool, self.arguments])

    @property
    def label(self) -> str:
        """What tells it from other calls of the same tool."""
        return ", ".join(_cell(one) for one in self.arguments.values()) or self.tool

    def __str__(self) -> str:
        said = ", ".join(f"{name}={_cut(_json(v), 60)}" for name, v in self.arguments.items())
        return f"{self.tool}({said})"


def told(prompt: str, made: Sequence[Call]) -> str:
    """The results as fields and tables, what the numbers say, and what failed."""
    good = [one for one in made if one.ok]
    blocks = compared(prompt, good)
    for tool in dict.fromkeys(one.tool for one in good):
        same = [one for one in good if one.tool == tool]
        rows = [{**one.arguments, **(json_object(one.data) or {tool: one.data})} for one in same]
        blocks.append(_alone(same[0]) if len(same) == 1 else _rows(rows))
    for one in made:
        if not one.ok:
            error = json_object(one.data) or {"message": one.data}
            denied = "I was not allowed to call" if error.get("code") == "E_DENIED" else "Failed:"
            blocks.append(f"{denied} `{one}`: {error.get('message') or error.get('code')}")
    return "\n\n".join(blocks)


def compared(prompt: str, good: Sequence[Call]) -> list[str]:
    """Which number is larger, their difference, total and average, as far as the prompt asks."""
    found = [(one.label, _figure(prompt, one.data)) for one in good]
    figures = [(label, number) for label, number in found if number is not None]
    if len(figures) < 2 or len({one.tool for one in good}) > 1:
        return []
    (most, high), *_, (least, low) = ordered = sorted(figures, key=lambda one: -one[1])
    said: list[str] = []
    if word := _COMPARING.search(_COUNTING.sub("", prompt)):
        first, second = (ordered[::-1] if word[1] else ordered)[:2]
        said.append(_verdict(word[0].lower(), first, second, len(ordered)))
    if re.search(r"\b(?:difference|how much|how many more|compare)\b", prompt, re.I):
        parts = f"{_number(high)} (**{most}**) − {_number(low)} (**{least}**)"
        said.append(f"The difference is **{_number(high - low)}**: {parts}.")
    total = sum(number for _, number in figures)
    if re.search(r"\b(?:total|sum|together)\b", prompt, re.I):
        said.append(f"Together: **{_number(total)}**.")
    if re.search(r"\b(?:average|mean)\b", prompt, re.I):
        said.append(f"The average is **{_number(total / len(figures))}**.")
    return said


def _verdict(word: str, first: tuple[str, Any], second: tuple[str, Any], count: int) -> str:
    if first[1] == second[1]:
        return f"**{first[0]}** and **{second[0]}** are equal: {_number(first[1])}."
    word = "larger" if word == "compare" else word
    if count > 2 and word.endswith("er"):
        word = f"{word[:-2]}est"
    word = f"the {word}" if word.endswith("st") else word
    verb = "has" if re.search("more|most|less|least|few", word) else "is"
    return f"**{first[0]}** {verb} {word}: {_number(first[1])} against {_number(second[1])}."


def _figure(prompt: str, data: Any) -> int | float | None:
    """The number of a result; of several fields the one that the prompt speaks of."""
    fields = json_object(data) or {"": data}
    numbers = {key: one for key, one in fields.items() if _is_number(one)}
    if len(numbers) > 1:
        numbers = {key: one for key, one in numbers.items() if stems(key) & stems(prompt)}
    return next(iter(numbers.values()), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _alone(one: Call) -> str:
    fields = json_object(one.data)
    if long := _fields(fields) if fields else _rows(items(one.data)) or _long_text(one.data):
        return f"`{one}`:\n\n{long}"
    if len(one.arguments) == 1:
        return f"**{one.label}**: **{_cell(one.data)}** (`{one.tool}`)"
    return f"`{one}`: {_cell(one.data)}"


def _fields(fields: dict[str, Any]) -> str:
    """Short values as a list, one level of objects beside them, long texts and tables below."""
    lines: list[str] = []
    below: list[str] = []
    for key, value in fields.items():
        if inner := json_object(value):
            lines += [f"- {key}.{name}: {_cell(one)}" for name, one in inner.items()]
        elif long := _rows(items(value)) or _long_text(value):
            below.append(f"{key}:\n\n{long}")
        elif not re.search("^sha256|_ms$", key) and value not in _EMPTY:
            lines.append(f"- {key}: {_cell(value)}")
    return "\n\n".join(filter(None, ["\n".join(lines), *below]))


def _rows(listed: Sequence[Any]) -> str:
    """Objects as a table; nothing for other items."""
    rows = [row for one in listed if (row := json_object(one)) is not None]
    if not rows or len(rows) < len(listed):
        return ""
    filled = [key for row in rows for key, value in row.items() if value not in _EMPTY]
    heads = list(dict.fromkeys(filled))[:8]
    cells = [[_cell(row.get(key)) for key in heads] for row in rows[:_MOST_ROWS]]
    cells = [[one.replace("|", "\\|").replace("\n", " ") for one in row] for row in cells]
    lines = ["| " + " | ".join(row) + " |" for row in [heads, *cells]]
    lines.insert(1, "|" + " --- |" * len(heads))
    more = [f"\n… and {len(rows) - _MOST_ROWS} more"] if len(rows) > _MOST_ROWS else []
    return "\n".join(lines + more)


def _long_text(value: Any) -> str:
    """The beginning of a text of several lines, in a fence that is longer than any in it."""
    if not isinstance(value, str) or "\n" not in value:
        return ""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", value)), 0)
    cut = value[:_LONGEST].rstrip("\n") + (" … (cut)" if len(value) > _LONGEST else "")
    return f"{fence}\n{cut}\n{fence}"


def _cell(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    if _is_number(value):
        return _number(value)
    if isinstance(value, list):
        return ", ".join(_cell(one) for one in items(value)[:_MOST_ROWS]) or "none"
    return _cut(value if isinstance(value, str) else _json(value), 200)


def _json(value: Any) -> str:
    return dump_json(value).decode("utf-8", "replace")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _number(value: int | float) -> str:
    """Digits in groups from 10,000 on: a year keeps its four."""
    if isinstance(value, float):
        return f"{value:,.10g}"
    return f"{value:,}" if abs(value) >= 10_000 else str(value)
