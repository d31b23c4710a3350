"""`offline:demo`: a stand-in that follows rules. It picks tools by words and fills them by type.

The same request always gives the same answer. Owns which calls are made and what is said;
values are found in `filling`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from nbagent.contracts.canonical import canonical_json, dump_json, json_object, load_json
from nbagent.contracts.messages import CONTINUE_PROMPT, FINAL_ANSWER, Message, TextPart, ToolCall
from nbagent.contracts.model import ChatRequest, ToolSpec
from nbagent.providers.offline.filling import (
    composed,
    fill,
    items,
    literal,
    spoken,
    stems,
    unquoted,
    values_in,
)
from nbagent.providers.offline.stream import Step, call
from nbagent.providers.wires.tool_schemas import wire_schema

_LONGEST_PROMPT = 4_000
_NAME_COUNTS = 3
"""A word of a tool's name counts as so many of its description."""
_AGAIN = re.compile(r"\b(?:again|now|latest)\b", re.IGNORECASE)
_WRITTEN_CALL = re.compile(r"`([A-Za-z_][\w.-]*)\(([^`]*)\)`")

_Q = "['‘’“”\"`]"
_FILE = rf"{_Q}?(?P<path>@?[\w./~-]*\w/?){_Q}?"
_VARIABLE = rf"{_Q}?(?P<name>[A-Za-z_]\w*){_Q}?"
_SENTENCES = {
    "fs.write": rf"\b(?:write|save)\s+{_Q}(?P<content>.+?){_Q}\s+(?:in)?to\s+{_FILE}",
    "fs.apply_patch": rf"\breplace\s+{_Q}?(?P<oldText>.{{1,80}}?){_Q}?\s+(?:with|by)"
    rf"\s+{_Q}?(?P<newText>.{{1,80}}?){_Q}?\s+in\s+{_FILE}",
    "fs.search": rf"\b(?:search|find|grep|look)\b(?:\s+for)?\s+{_Q}?(?P<query>[^'\"`?]+?){_Q}?"
    rf"(?:\s+in\s+{_FILE})?\s*[.?!]*$",
    "list_skills": r"\bskills\b",
    "get_skill": rf"\bskill\s+{_Q}?(?P<skill_name>[\w-]+)",
    "nb.set": rf"\bset\s+{_VARIABLE}\s+to\s+(?P<value>.+?)\s*$",
    "nb.run": r"\b(?:run|execute)\b[^`]*(?P<code>```.+?```|`[^`]+`)",
    "nb.variables": r"\bvariables\b",
    "nb.inspect": rf"\b(?:what\s+is(?:\s+in)?|inspect|describe)\s+{_VARIABLE}\s*[.?!]*$",
    "fs.read": r"\b(?:read|open|show|says?|does|in|summari[sz]e)\b.*?"
    r"(?P<path>@[\w-]+/[\w./~-]+|[\w./~-]*\w\.[A-Za-z]\w*)",
    "fs.list": rf"\b(?:list|which|what)\b.*\bfiles\b(?:.*?\bin\s+{_FILE})?",
}
"""What is said to the tools of nbagent itself. The groups are the arguments."""


@dataclass(frozen=True, slots=True)
class Made:
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
        return ", ".join(cell_text(one) for one in self.arguments.values()) or self.tool

    def __str__(self) -> str:
        said = ", ".join(f"{name}={_cut(_json(v), 60)}" for name, v in self.arguments.items())
        return f"{self.tool}({said})"


@dataclass(frozen=True, slots=True)
class _Plan:
    wishes: Sequence[Made] = ()
    why: str = "There is no tool to choose from."
    note: str = ""
    reuses: bool = False
    """A known result will do. Not for files and variables, which change."""


def decide(request: ChatRequest) -> Step:
    """What the rules say to a request: calls, the text of the answer, or the call that gives it."""
    messages, said = list(request.messages), ""
    while messages and messages[-1].typed_text == CONTINUE_PROMPT:
        messages.pop()
        while messages and messages[-1].role == "assistant" and not messages[-1].tool_calls:
            said = messages.pop().text + said
    step = _answered(request.model_copy(update={"messages": tuple(messages)}))
    if not (said and step.text.startswith(said)):
        return step
    return replace(step, text=step.text[len(said) :] or "That was the whole answer.")


def _answered(request: ChatRequest) -> Step:
    final = next((tool for tool in request.tools if tool.name == FINAL_ANSWER), None)
    if final is None:
        return _decided(request)
    others = tuple(tool for tool in request.tools if tool is not final)
    step = _decided(request.model_copy(update={"tools": others}))
    if step.calls:
        return step
    prompt, now, earlier = _read(request.messages)
    facts = [
        {**one.arguments, **(json_object(one.data) or {one.tool: one.data})}
        for one in now or earlier
        if one.ok and one.tool != FINAL_ANSWER
    ]
    facts = facts or [{value.kind: literal(value.text)} for value in values_in(prompt, set())]
    answer = composed(wire_schema(final.parameters, inline=True), facts)
    return Step(reasoning=step.reasoning, calls=[call(FINAL_ANSWER, answer)])


def _decided(request: ChatRequest) -> Step:
    prompt, now, earlier = _read(request.messages)
    tools = {one.name: one for one in request.tools if request.tool_choice != "none"}
    if request.tool_choice in tools:
        tools = {request.tool_choice: tools[request.tool_choice]}
    plan = _planned(prompt, tools, forced=request.tool_choice in {"required", *tools})
    reused = earlier if plan.reuses and not _AGAIN.search(prompt) else []
    known = {one.key: one for one in [*reused, *now]}
    new = {one.key: one for one in plan.wishes if one.key not in known}
    if new and not now:
        made = [call(one.tool, one.arguments) for one in new.values()]
        return Step(reasoning=plan.why, calls=made)
    results = [known[one.key] for one in plan.wishes if one.key in known] or now
    if not results and _compared(prompt, earlier):
        results = earlier
    text = _told(prompt, results) if results else _by_itself(prompt) or _attached(request)
    return Step(reasoning=plan.why, text=text or _introduction(tools.values(), plan.note))


def _read(messages: Sequence[Message]) -> tuple[str, list[Made], list[Made]]:
    """The last prompt, the calls that were made for it, and those before it that went well."""
    results = {one.tool_call_id: one.text for one in messages if one.role == "tool"}
    prompt = ""
    now: list[Made] = []
    earlier: list[Made] = []
    for message in messages:
        if message.role == "user":
            earlier += [one for one in now if one.ok]
            prompt, now = message.typed_text, []
        for one in message.tool_calls:
            now.append(made_call(one, results.get(one.id, "")))
    return prompt[:_LONGEST_PROMPT], now, earlier


def made_call(asked: ToolCall, content: str) -> Made:
    try:
        result = json_object(load_json(content)) or {}
    except (ValueError, RecursionError):
        result = {"ok": True, "data": content}
    ok = bool(result.get("ok"))
    return Made(asked.name, asked.arguments or {}, ok, result.get("data" if ok else "error"))


def _planned(prompt: str, tools: dict[str, ToolSpec], *, forced: bool) -> _Plan:
    """A call written out, else a known sentence, else the tool that the words speak of."""
    if not tools:
        return _Plan()
    if written := _written(prompt, tools):
        return _Plan(written, "The prompt writes the call out.")
    chosen = _chosen(prompt, tools, forced=forced)
    own = {one.tool for one in chosen.wishes} - _SENTENCES.keys()
    speaks = any(stems(name) & stems(spoken(prompt)) for name in own)
    if not speaks and (said := _said(prompt, tools)):
        return _Plan(said, "The prompt is a sentence that the rules know.")
    return chosen


def _written(prompt: str, tools: dict[str, ToolSpec]) -> list[Made]:
    """`` `fs.read(path="a.md")` ``: calls in backticks, with Python's literals as arguments."""
    made: list[Made] = []
    for name, source in _WRITTEN_CALL.findall(prompt):
        if name not in tools:
            continue
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            call = ast.parse(f"call({source})", mode="eval").body
            if isinstance(call, ast.Call):
                names = list(tools[name].parameters.get("properties", {}))
                given = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
                given |= {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
                made.append(Made(name, load_json(dump_json(given))))
    return made


def _said(prompt: str, tools: dict[str, ToolSpec]) -> list[Made]:
    for name, pattern in _SENTENCES.items():
        match = re.search(pattern, prompt, re.I | re.S) if name in tools else None
        if match is not None:
            found = {key: text for key, text in match.groupdict().items() if text}
            read = {"value": literal, "code": unquoted}
            names = [key for key in tools[name].parameters.get("properties", {}) if key in found]
            return [Made(name, {k: read.get(k, str.strip)(found[k]) for k in names})]
    return []


def _chosen(prompt: str, tools: dict[str, ToolSpec], *, forced: bool) -> _Plan:
    """The tool whose words the prompt uses most; without any, one that its values fit."""
    values = values_in(prompt, {one for name in tools for one in stems(name)})
    said = stems(spoken(prompt))
    scores = {tool.name: _score(tool, said) for tool in tools.values()}
    order = sorted(tools.values(), key=lambda tool: -scores[tool.name])
    counted = ", ".join(f"{one.name} {scores[one.name]}" for one in order[:6])
    seen = ", ".join(value.text for value in values) or "none"
    why = f"Words of the prompt in the tools: {counted}. Values: {seen}."
    if _by_itself(prompt) and not forced and scores[order[0].name] < _NAME_COUNTS:
        return _Plan(why=why)
    tool = order[0] if forced or scores[order[0].name] else None
    if tool is None and values:
        # A list of cities and one tool for cities; tools with sentences of their own are not meant.
        free = (one for one in order if one.name not in _SENTENCES)
        tool = next((one for one in free if any(fill(one, prompt, values)[0])), None)
    if tool is None:
        return _Plan(why=why)
    sets, missing = fill(tool, prompt, values, forced=forced)
    named = ", ".join(f"`{name}`" for name in missing)
    note = f"`{tool.name}` needs {named}, which the prompt does not say." if missing else ""
    return _Plan([Made(tool.name, one) for one in sets], why, note, reuses=True)


def _score(tool: ToolSpec, said: set[str]) -> int:
    properties = json_object(tool.parameters.get("properties")) or {}
    name = stems(tool.name)
    about = stems(" ".join([tool.description, *properties])) - name
    return _NAME_COUNTS * len(name & said) + len(about & said)


_LONG_TEXT = re.compile(r"\b(?:story|essay|poem|long (?:text|answer)|\d{1,4}[- ]words?)\b", re.I)
_COUNT = re.compile(r"\bcount\s+to\s+(\d{1,9})\b", re.I)
_MOST_NUMBERS = 5_000
_FILLER = "Every turn is one request to a model, and this text comes from a rule of offline:demo. "


def _by_itself(prompt: str) -> str:
    """Counting (to 5,000) or a long text; empty where the rules cannot answer."""
    if count := _COUNT.search(prompt):
        return " ".join(map(str, range(1, min(int(count[1]), _MOST_NUMBERS) + 1)))
    if _LONG_TEXT.search(prompt):
        asked = re.search(r"\b(\d{1,4})[- ]words?\b", prompt)
        wanted = int(asked[1]) if asked else 400
        return " ".join((_FILLER * (wanted // 10 + 1)).split()[:wanted])
    return ""


def _attached(request: ChatRequest) -> str:
    """The beginning of the text files that came with the last words."""
    last = [one.content for one in request.messages if one.role == "user"][-1:]
    files = [part for part in last[0] if isinstance(part, TextPart) and part.name] if last else []
    return "\n\n".join(f"Attached is `{file.name}`:\n\n{_long_text(file.text)}" for file in files)


def _introduction(tools: Iterable[ToolSpec], note: str) -> str:
    named = ", ".join(f"`{tool.name}`" for tool in list(tools)[:8]) or "none"
    return (
        "I am `offline:demo`, a rule-based stand-in and not a language model."
        f" {note or 'No rule of mine fits your words.'}\n\n"
        f"The tools here: {named}. Use words of a tool's name and give its arguments as names,"
        " numbers or quoted text, or write the call itself in backticks, as in"
        ' `` `population(city="Oslo")` ``. I can also count, or write a long'
        " text.\n\nFor a language model choose one with `--model PROVIDER:MODEL`;"
        " `%agent models` lists what can be asked here."
    )


_LESS = "small|less|least|few|low|short|young|light|cold|cheap|slow|near"
_MORE = "larg|bigg|more|most|high|great|long|tall|old|heav|warm|fast|deep|best|compare"
_COMPARING = re.compile(rf"\b(?:({_LESS})|{_MORE})\w*", re.IGNORECASE)
_COUNTING = re.compile(r"\bhow (?:much|many)(?: more)?\b", re.IGNORECASE)
_MOST_ROWS = 20
_LONGEST = 1_500


def _told(prompt: str, made: Sequence[Made]) -> str:
    """The results as fields and tables, what the numbers say, and what failed."""
    good = [one for one in made if one.ok]
    blocks = _compared(prompt, good)
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


def _compared(prompt: str, good: Sequence[Made]) -> list[str]:
    """Which number is larger, their difference and their total, as far as the prompt asks."""
    found = [(one.label, _figure(prompt, one.data)) for one in good]
    figures = [(label, number) for label, number in found if number is not None]
    if len(figures) < 2 or len({one.tool for one in good}) > 1:
        return []
    (most, high), *_, (least, low) = ordered = sorted(figures, key=lambda one: -one[1])
    said: list[str] = []
    if word := _COMPARING.search(_COUNTING.sub("", prompt)):
        first, second = (ordered[::-1] if word[1] else ordered)[:2]
        said.append(_verdict(word[0].lower(), first, second))
    if re.search(r"\b(?:difference|how much|how many more|compare)\b", prompt, re.I):
        parts = f"{_number(high)} (**{most}**) − {_number(low)} (**{least}**)"
        said.append(f"The difference is **{_number(high - low)}**: {parts}.")
    if re.search(r"\b(?:total|sum|together)\b", prompt, re.I):
        said.append(f"Together: **{_number(sum(number for _, number in figures))}**.")
    return said


def _verdict(word: str, first: tuple[str, Any], second: tuple[str, Any]) -> str:
    if first[1] == second[1]:
        return f"**{first[0]}** and **{second[0]}** are equal: {_number(first[1])}."
    word = "larger" if word == "compare" else word
    word = f"the {word}" if word.endswith("st") else word
    verb = "has" if re.search("more|most|less|least|few", word) else "is"
    return f"**{first[0]}** {verb} {word}: {_number(first[1])} against {_number(second[1])}."


def _figure(prompt: str, data: Any) -> int | float | None:
    """The number of a result; of several fields the one that the prompt speaks of."""
    fields = json_object(data) or {"": data}
    numbers = {key: one for key, one in fields.items() if type(one) in (int, float)}
    if len(numbers) > 1:
        numbers = {key: one for key, one in numbers.items() if stems(key) & stems(prompt)}
    return next(iter(numbers.values()), None)


def _alone(one: Made) -> str:
    fields = json_object(one.data)
    if long := _fields(fields) if fields else _rows(items(one.data)) or _long_text(one.data):
        return f"`{one}`:\n\n{long}"
    if len(one.arguments) == 1:
        return f"**{one.label}**: **{cell_text(one.data)}** (`{one.tool}`)"
    return f"`{one}`: {cell_text(one.data)}"


def _fields(fields: dict[str, Any]) -> str:
    """Short values as a list, one level of objects beside them, long texts and tables below."""
    lines: list[str] = []
    below: list[str] = []
    for key, value in fields.items():
        if inner := json_object(value):
            lines += [f"- {key}.{name}: {cell_text(one)}" for name, one in inner.items()]
        elif long := _rows(items(value)) or _long_text(value):
            below.append(f"{key}:\n\n{long}")
        elif not re.search("^sha256|_ms$", key) and value not in ("", [], None):
            lines.append(f"- {key}: {cell_text(value)}")
    return "\n\n".join(filter(None, ["\n".join(lines), *below]))


def _rows(listed: Sequence[Any]) -> str:
    """Objects as a table; nothing for other items."""
    rows = [row for one in listed if (row := json_object(one)) is not None]
    if not rows or len(rows) < len(listed):
        return ""
    filled = [key for row in rows for key, value in row.items() if value not in ("", [], None)]
    heads = list(dict.fromkeys(filled))[:8]
    cells = [[cell_text(row.get(key)) for key in heads] for row in rows[:_MOST_ROWS]]
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


def cell_text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, list):
        return ", ".join(cell_text(one) for one in items(value)[:_MOST_ROWS]) or "none"
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
