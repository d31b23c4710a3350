"""A call that the demo plans or has made, its result, and sentences about results.

Owns how results are told: fields, tables, comparisons of numbers, failures, edited arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.canonical import canonical_json, dump_json, json_object, load_json
from nbagent.contracts.messages import ToolCall
from nbagent.providers.offline.argument_values import items
from nbagent.providers.offline.vocabulary import is_german, meanings

_EDITED = "edited by the person: "
"""Start of the note in the result of a call whose arguments a person changed."""
_CUT = " left out; ask for a smaller part"
"""Part of every mark at an omission in a result."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of the demo model, and its result if it has one."""

    tool: str
    arguments: dict[str, Any]
    ok: bool = False
    data: Any = None
    """Result, or the error if not `ok`."""
    edited: dict[str, Any] | None = None
    """Arguments that a person put in the place of these."""

    @property
    def key(self) -> bytes:
        """Equal for the same tool with the same arguments."""
        return canonical_json([self.tool, self.arguments])

    @property
    def used(self) -> dict[str, Any]:
        """Arguments with which the tool ran."""
        return self.arguments if self.edited is None else self.edited

    @property
    def code(self) -> str:
        """Code of the error; empty without one."""
        return "" if self.ok else str((json_object(self.data) or {}).get("code", ""))

    @property
    def label(self) -> str:
        """Label that tells it from other calls of the same tool."""
        return ", ".join(cell_text(value) for value in self.used.values()) or self.tool

    def __str__(self) -> str:
        return _call_text(self.tool, self.used)


def _call_text(tool: str, arguments: dict[str, Any]) -> str:
    shown = ", ".join(f"{name}={_shorten(_json(v), 60)}" for name, v in arguments.items())
    return f"{tool}({shown})"


def call_with_result(tool_call: ToolCall, content: str) -> PlannedCall:
    """Read a call and the content of its tool message."""
    try:
        result = json_object(load_json(content)) or {}
    except (ValueError, RecursionError):
        result = {"ok": True, "data": content}
    ok, note = bool(result.get("ok")), str(result.get("note", ""))
    edited = None
    if note.startswith(_EDITED):
        try:
            edited = json_object(load_json(note.removeprefix(_EDITED)))
        except (ValueError, RecursionError):
            edited = None
    data = result.get("data" if ok else "error")
    return PlannedCall(tool_call.name, tool_call.arguments or {}, ok, data, edited)


_LESS = (
    "small|less|least|few|low|short|young|light|cold|cool|cheap|slow|near"
    "|klein|wenig|niedrig|kürz|jüng|leicht|kält|kalt|billig|günstig|langsam|näh"
)
_MORE = (
    "larg|bigg|more|most|high|great|long|tall|old|heav|warm|hot|fast|deep|best|compare"
    "|größ|meist|mehr|höh|höch|läng|ält|schwer|wärm|teur|teuer|schnell|tief|vergleich"
)
_COMPARING = re.compile(rf"\b(?:({_LESS})|{_MORE})\w*", re.IGNORECASE)
_COUNTING = re.compile(r"\bhow (?:much|many)(?: more)?\b|\bwie ?viele?\b|\bum wie ?viel\b", re.I)
_DIFFERENCE = re.compile(
    r"\b(?:difference|differ|how much|how many more|compare|differenz|unterschied\w*|um wie ?viel"
    r"|vergleich\w*|wie ?viele? mehr)\b",
    re.IGNORECASE,
)
_TOTAL = re.compile(r"\b(?:total|sum|together|combined|summe|zusammen|insgesamt|gesamt\w*)\b", re.I)
_MEAN = re.compile(r"\b(?:average|mean|durchschnitt\w*|mittelwert|im schnitt)\b", re.I)
_YES_NO = re.compile(r"\W*(?:is|are|does|do|has|have|ist|hat|sind|haben)\b", re.I)
_MAX_ROWS = 20
_MAX_TEXT_CHARS = 1_500


def results_text(prompt: str, calls: Sequence[PlannedCall]) -> str:
    """Write results as fields and tables, a comparison of numbers, edits, and failures."""
    succeeded = [planned_call for planned_call in calls if planned_call.ok]
    blocks = [
        f"You changed `{_call_text(call.tool, call.arguments)}` to `{call}`."
        for call in calls
        if call.edited is not None
    ]
    blocks += comparison(prompt, succeeded)
    for tool in dict.fromkeys(planned_call.tool for planned_call in succeeded):
        same = [planned_call for planned_call in succeeded if planned_call.tool == tool]
        rows = [{**call.used, **(json_object(call.data) or {tool: call.data})} for call in same]
        blocks.append(_single_result(same[0]) if len(same) == 1 else _rows(rows))
    blocks += [_failure_text(call) for call in calls if not call.ok]
    if any(_CUT in _json(call.data) for call in succeeded):
        blocks.append("The result was too long: a part of it was left out.")
    return "\n\n".join(blocks)


def _failure_text(failed: PlannedCall) -> str:
    error = json_object(failed.data) or {"message": failed.data}
    message = error.get("message") or error.get("code")
    if failed.code == "E_DENIED":
        return f"I was not allowed to call `{failed}`: {message}"
    if failed.code == "E_INTERRUPTED":
        return f"Stopped: `{failed}`: {message}. Say “again”, and I call it once more."
    return f"Failed: `{failed}`: {message}"


def comparison(prompt: str, succeeded: Sequence[PlannedCall]) -> list[str]:
    """Compare numbers as the prompt asks: the larger one, the difference, the total, the mean."""
    if len({call.tool for call in succeeded}) != 1:
        return []
    labelled = [(_label(call, succeeded), _result_number(prompt, call.data)) for call in succeeded]
    figures = [(label, number) for label, number in labelled if number is not None]
    if len(figures) < 2:
        return []
    (most, high), *_, (least, low) = ordered = sorted(figures, key=lambda pair: -pair[1])
    sentences: list[str] = []
    if word := _COMPARING.search(_COUNTING.sub("", prompt)):
        first, second = (ordered[::-1] if word[1] else ordered)[:2]
        sentence = _comparison_sentence(_english(word), first, second)
        if _YES_NO.match(prompt) and len(figures) == 2 and first[1] != second[1]:
            is_so = prompt.find(first[0]) < prompt.find(second[0])
            sentence = f"{'Yes' if is_so else 'No'}: {sentence}"
        sentences.append(sentence)
    if _DIFFERENCE.search(prompt):
        parts = f"{number_text(high)} (**{most}**) − {number_text(low)} (**{least}**)"
        sentences.append(f"The difference is **{number_text(high - low)}**: {parts}.")
    total = sum(number for _, number in figures)
    if _TOTAL.search(prompt):
        sentences.append(f"Together: **{number_text(total)}**.")
    if _MEAN.search(prompt) and not meanings(succeeded[0].tool) & {"mean"}:
        sentences.append(f"The mean is **{number_text(total / len(figures))}**.")
    return sentences


def _label(call: PlannedCall, others: Sequence[PlannedCall]) -> str:
    """Return the arguments in which a call differs from the others."""
    names = [name for name in call.used if any(o.used.get(name) != call.used[name] for o in others)]
    return ", ".join(cell_text(call.used[name]) for name in names) or call.label


def _english(word: re.Match[str]) -> str:
    text = word[0].lower()
    if text.startswith(("compare", "vergleich")):
        return "larger"
    if not is_german(word.string):
        return text
    ending = "est" if re.search(r"(?:st|ste[nrs]?)\Z", text) else "er"
    return ("small" if word[1] else "larg") + ending


def _comparison_sentence(word: str, first: tuple[str, Any], second: tuple[str, Any]) -> str:
    if first[1] == second[1]:
        return f"**{first[0]}** and **{second[0]}** are equal: {number_text(first[1])}."
    word = f"the {word}" if word.endswith("st") else word
    verb = "has" if re.search("more|most|less|least|few", word) else "is"
    return (
        f"**{first[0]}** {verb} {word}: {number_text(first[1])} against {number_text(second[1])}."
    )


def _result_number(prompt: str, data: Any) -> int | float | None:
    """Return the number of a result; of several fields the one that the prompt names."""
    fields = json_object(data) or {"": data}
    numbers = {key: value for key, value in fields.items() if type(value) in (int, float)}
    if len(numbers) > 1:
        numbers = {key: value for key, value in numbers.items() if meanings(key) & meanings(prompt)}
    return next(iter(numbers.values()), None)


def _single_result(planned_call: PlannedCall) -> str:
    fields = json_object(planned_call.data)
    if (
        long := _fields(fields)
        if fields
        else _rows(items(planned_call.data)) or long_text(planned_call.data)
    ):
        return f"`{planned_call}`:\n\n{long}"
    if len(planned_call.used) == 1:
        return (
            f"**{planned_call.label}**: **{cell_text(planned_call.data)}** (`{planned_call.tool}`)"
        )
    return f"`{planned_call}`: {cell_text(planned_call.data)}"


def _fields(fields: dict[str, Any]) -> str:
    """Write short values as a list, with one level of objects; long texts and tables below."""
    lines: list[str] = []
    below: list[str] = []
    for key, value in fields.items():
        if inner := json_object(value):
            lines += [
                f"- {key}.{name}: {cell_text(inner_value)}" for name, inner_value in inner.items()
            ]
        elif long := _rows(items(value)) or long_text(value):
            below.append(f"{key}:\n\n{long}")
        elif not re.search("^sha256|_ms$", key) and value not in ("", [], None):
            lines.append(f"- {key}: {cell_text(value)}")
    return "\n\n".join(filter(None, ["\n".join(lines), *below]))


def _rows(listed: Sequence[Any]) -> str:
    """Write objects as a table; empty for other items."""
    rows = [row for item in listed if (row := json_object(item)) is not None]
    if not rows or len(rows) < len(listed):
        return ""
    filled = [key for row in rows for key, value in row.items() if value not in ("", [], None)]
    heads = list(dict.fromkeys(filled))[:8]
    cells = [[cell_text(row.get(key)) for key in heads] for row in rows[:_MAX_ROWS]]
    cells = [[item.replace("|", "\\|").replace("\n", " ") for item in row] for row in cells]
    lines = ["| " + " | ".join(row) + " |" for row in [heads, *cells]]
    lines.insert(1, "|" + " --- |" * len(heads))
    more = [f"\n… and {len(rows) - _MAX_ROWS} more"] if len(rows) > _MAX_ROWS else []
    return "\n".join(lines + more)


def long_text(value: Any) -> str:
    """Return the beginning of a text of several lines, in a fence longer than any in it."""
    if not isinstance(value, str) or "\n" not in value:
        return ""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", value)), 0)
    cut = value[:_MAX_TEXT_CHARS].rstrip("\n") + (
        " … (cut)" if len(value) > _MAX_TEXT_CHARS else ""
    )
    return f"{fence}\n{cut}\n{fence}"


def cell_text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    if isinstance(value, int | float):
        return number_text(value)
    if isinstance(value, list):
        return ", ".join(cell_text(item) for item in items(value)[:_MAX_ROWS]) or "none"
    return _shorten(value if isinstance(value, str) else _json(value), 200)


def _json(value: Any) -> str:
    return dump_json(value).decode("utf-8", "replace")


def _shorten(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"


def number_text(value: int | float) -> str:
    """Write a number, with groups of digits from 10,000 on: years stay as they are."""
    if isinstance(value, float):
        return f"{value:,.10g}"
    return f"{value:,}" if abs(value) >= 10_000 else str(value)
