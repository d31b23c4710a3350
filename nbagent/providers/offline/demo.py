"""`offline:demo`: a model made of rules. It chooses tools by words and fills arguments by type.

The same request always gives the same answer. Chooses calls and writes texts; `argument_values`
finds values.
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
from nbagent.contracts.schema_walk import property_schemas
from nbagent.providers.offline.argument_values import (
    compose,
    fill,
    items,
    literal,
    stems,
    values_in,
    without_backticks,
    without_quotes,
)
from nbagent.providers.offline.stream import ScriptedAnswer, call
from nbagent.providers.wires.tool_schemas import wire_schema

_MAX_PROMPT_CHARS = 4_000
_NAME_WEIGHT = 3
"""Weight of a word in a tool's name; a word of its description has weight 1."""
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
"""Sentences for nbagent's own tools, by tool. The groups are the arguments."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of the demo model, and its result if it has one."""

    tool: str
    arguments: dict[str, Any]
    ok: bool = False
    data: Any = None
    """Result, or the error if not `ok`."""

    @property
    def key(self) -> bytes:
        """Equal for the same tool with the same arguments."""
        return canonical_json([self.tool, self.arguments])

    @property
    def label(self) -> str:
        """Label that tells it from other calls of the same tool."""
        return ", ".join(cell_text(value) for value in self.arguments.values()) or self.tool

    def __str__(self) -> str:
        arguments = ", ".join(
            f"{name}={_shorten(_json(v), 60)}" for name, v in self.arguments.items()
        )
        return f"{self.tool}({arguments})"


@dataclass(frozen=True, slots=True)
class _Plan:
    planned: Sequence[PlannedCall] = ()
    why: str = "There is no tool to choose from."
    note: str = ""
    reuses: bool = False
    """An earlier result may be used again. Not for files and variables, which change."""


def demo_answer(request: ChatRequest) -> ScriptedAnswer:
    """Answer a request by the rules: calls, a text, or the call that gives the final answer."""
    messages, answered_text = list(request.messages), ""
    while messages and messages[-1].typed_text == CONTINUE_PROMPT:
        messages.pop()
        while messages and messages[-1].role == "assistant" and not messages[-1].tool_calls:
            answered_text = messages.pop().text + answered_text
    step = _with_final_answer(request.model_copy(update={"messages": tuple(messages)}))
    if not (answered_text and step.text.startswith(answered_text)):
        return step
    return replace(step, text=step.text[len(answered_text) :] or "That was the whole answer.")


def _with_final_answer(request: ChatRequest) -> ScriptedAnswer:
    final = next((tool for tool in request.tools if tool.name == FINAL_ANSWER), None)
    if final is None:
        return _rule_answer(request)
    others = tuple(tool for tool in request.tools if tool is not final)
    step = _rule_answer(request.model_copy(update={"tools": others}))
    if step.calls:
        return step
    prompt, now, earlier = _read(request.messages)
    facts = [
        {
            **planned_call.arguments,
            **(json_object(planned_call.data) or {planned_call.tool: planned_call.data}),
        }
        for planned_call in now or earlier
        if planned_call.ok and planned_call.tool != FINAL_ANSWER
    ]
    facts = facts or [{value.kind: literal(value.text)} for value in values_in(prompt, set())]
    answer = compose(wire_schema(final.parameters, inline=True), facts)
    return ScriptedAnswer(reasoning=step.reasoning, calls=[call(FINAL_ANSWER, answer)])


def _rule_answer(request: ChatRequest) -> ScriptedAnswer:
    prompt, now, earlier = _read(request.messages)
    tools = {tool.name: tool for tool in request.tools if request.tool_choice != "none"}
    if request.tool_choice in tools:
        tools = {request.tool_choice: tools[request.tool_choice]}
    plan = _plan(prompt, tools, forced=request.tool_choice in {"required", *tools})
    reusable = earlier if plan.reuses and not _AGAIN.search(prompt) else []
    known = {planned_call.key: planned_call for planned_call in [*reusable, *now]}
    new = {
        planned_call.key: planned_call
        for planned_call in plan.planned
        if planned_call.key not in known
    }
    if new and not now:
        calls = [call(planned_call.tool, planned_call.arguments) for planned_call in new.values()]
        return ScriptedAnswer(reasoning=plan.why, calls=calls)
    results = [
        known[planned_call.key] for planned_call in plan.planned if planned_call.key in known
    ] or now
    if not results and _comparison(prompt, earlier):
        results = earlier
    text = (
        _results_text(prompt, results)
        if results
        else _text_without_tools(prompt) or _attached_files(request)
    )
    return ScriptedAnswer(reasoning=plan.why, text=text or _introduction(tools.values(), plan.note))


def _read(messages: Sequence[Message]) -> tuple[str, list[PlannedCall], list[PlannedCall]]:
    """Return the last prompt, its calls so far, and successful calls before it."""
    results = {message.tool_call_id: message.text for message in messages if message.role == "tool"}
    prompt = ""
    now: list[PlannedCall] = []
    earlier: list[PlannedCall] = []
    for message in messages:
        if message.role == "user":
            earlier += [planned_call for planned_call in now if planned_call.ok]
            prompt, now = message.typed_text, []
        for tool_call in message.tool_calls:
            now.append(call_with_result(tool_call, results.get(tool_call.id, "")))
    return prompt[:_MAX_PROMPT_CHARS], now, earlier


def call_with_result(tool_call: ToolCall, content: str) -> PlannedCall:
    try:
        result = json_object(load_json(content)) or {}
    except (ValueError, RecursionError):
        result = {"ok": True, "data": content}
    ok = bool(result.get("ok"))
    return PlannedCall(
        tool_call.name, tool_call.arguments or {}, ok, result.get("data" if ok else "error")
    )


def _plan(prompt: str, tools: dict[str, ToolSpec], *, forced: bool) -> _Plan:
    """Plan calls: one written in the prompt, else a known sentence, else the best tool."""
    if not tools:
        return _Plan()
    if written := _written_calls(prompt, tools):
        return _Plan(written, "The prompt contains the call.")
    best = _best_tool(prompt, tools, forced=forced)
    own = {planned_call.tool for planned_call in best.planned} - _SENTENCES.keys()
    is_named = any(stems(name) & stems(without_quotes(prompt)) for name in own)
    if not is_named and (sentence_calls := _sentence_calls(prompt, tools)):
        return _Plan(sentence_calls, "My rules know this sentence.")
    return best


def _written_calls(prompt: str, tools: dict[str, ToolSpec]) -> list[PlannedCall]:
    """Read calls in backticks with Python literals, such as `` `fs.read(path="a.md")` ``."""
    planned: list[PlannedCall] = []
    for name, source in _WRITTEN_CALL.findall(prompt):
        if name not in tools:
            continue
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            call = ast.parse(f"call({source})", mode="eval").body
            if isinstance(call, ast.Call):
                names = list(property_schemas(tools[name].parameters))
                arguments = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
                arguments |= {
                    str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords
                }
                planned.append(PlannedCall(name, load_json(dump_json(arguments))))
    return planned


def _sentence_calls(prompt: str, tools: dict[str, ToolSpec]) -> list[PlannedCall]:
    for name, pattern in _SENTENCES.items():
        match = re.search(pattern, prompt, re.I | re.S) if name in tools else None
        if match is not None:
            groups = {key: text for key, text in match.groupdict().items() if text}
            read = {"value": literal, "code": without_backticks}
            names = [key for key in property_schemas(tools[name].parameters) if key in groups]
            return [PlannedCall(name, {k: read.get(k, str.strip)(groups[k]) for k in names})]
    return []


def _best_tool(prompt: str, tools: dict[str, ToolSpec], *, forced: bool) -> _Plan:
    """Choose the tool whose words the prompt uses most, else one that the values fit."""
    values = values_in(prompt, {stem for name in tools for stem in stems(name)})
    prompt_stems = stems(without_quotes(prompt))
    scores = {tool.name: _score(tool, prompt_stems) for tool in tools.values()}
    order = sorted(tools.values(), key=lambda tool: -scores[tool.name])
    matching = [f"{tool.name} {scores[tool.name]}" for tool in order[:6] if scores[tool.name]]
    value_texts = ", ".join(value.text for value in values) or "none"
    tool_texts = ", ".join(matching) or "none"
    why = f"I look for tools that match the prompt: {tool_texts}; and for values: {value_texts}."
    if _text_without_tools(prompt) and not forced and scores[order[0].name] < _NAME_WEIGHT:
        return _Plan(why=why)
    tool = order[0] if forced or scores[order[0].name] else None
    if tool is None and values:
        # For example a list of cities and one tool for cities. nbagent's own tools need a sentence.
        free = (tool for tool in order if tool.name not in _SENTENCES)
        tool = next((tool for tool in free if any(fill(tool, prompt, values)[0])), None)
    if tool is None:
        return _Plan(why=why)
    sets, missing = fill(tool, prompt, values, forced=forced)
    named = ", ".join(f"`{name}`" for name in missing)
    note = f"`{tool.name}` needs {named}, which the prompt does not give." if missing else ""
    return _Plan([PlannedCall(tool.name, arguments) for arguments in sets], why, note, reuses=True)


def _score(tool: ToolSpec, prompt_stems: set[str]) -> int:
    properties = property_schemas(tool.parameters)
    name = stems(tool.name)
    about = stems(" ".join([tool.description, *properties])) - name
    return _NAME_WEIGHT * len(name & prompt_stems) + len(about & prompt_stems)


_LONG_TEXT = re.compile(r"\b(?:story|essay|poem|long (?:text|answer)|\d{1,4}[- ]words?)\b", re.I)
_COUNT = re.compile(r"\bcount\s+to\s+(\d{1,9})\b", re.I)
_MAX_COUNT = 5_000
_FILLER = "Every turn is one request to a model, and this text comes from a rule of offline:demo. "


def _text_without_tools(prompt: str) -> str:
    """Count (to 5,000) or write a long text; empty if the rules cannot answer."""
    if count := _COUNT.search(prompt):
        return " ".join(map(str, range(1, min(int(count[1]), _MAX_COUNT) + 1)))
    if _LONG_TEXT.search(prompt):
        word_count = re.search(r"\b(\d{1,4})[- ]words?\b", prompt)
        wanted = int(word_count[1]) if word_count else 400
        return " ".join((_FILLER * (wanted // 10 + 1)).split()[:wanted])
    return ""


def _attached_files(request: ChatRequest) -> str:
    """Return the beginning of the text files attached to the last prompt."""
    last = [message.content for message in request.messages if message.role == "user"][-1:]
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
_MAX_ROWS = 20
_MAX_TEXT_CHARS = 1_500


def _results_text(prompt: str, calls: Sequence[PlannedCall]) -> str:
    """Write results as fields and tables, a comparison of numbers, and failures."""
    succeeded = [planned_call for planned_call in calls if planned_call.ok]
    blocks = _comparison(prompt, succeeded)
    for tool in dict.fromkeys(planned_call.tool for planned_call in succeeded):
        same = [planned_call for planned_call in succeeded if planned_call.tool == tool]
        rows = [
            {
                **planned_call.arguments,
                **(json_object(planned_call.data) or {tool: planned_call.data}),
            }
            for planned_call in same
        ]
        blocks.append(_single_result(same[0]) if len(same) == 1 else _rows(rows))
    for planned_call in calls:
        if not planned_call.ok:
            error = json_object(planned_call.data) or {"message": planned_call.data}
            denied = "I was not allowed to call" if error.get("code") == "E_DENIED" else "Failed:"
            blocks.append(f"{denied} `{planned_call}`: {error.get('message') or error.get('code')}")
    return "\n\n".join(blocks)


def _comparison(prompt: str, succeeded: Sequence[PlannedCall]) -> list[str]:
    """Compare numbers as the prompt asks: the larger one, the difference, the total."""
    labelled = [
        (planned_call.label, _result_number(prompt, planned_call.data))
        for planned_call in succeeded
    ]
    figures = [(label, number) for label, number in labelled if number is not None]
    if len(figures) < 2 or len({planned_call.tool for planned_call in succeeded}) > 1:
        return []
    (most, high), *_, (least, low) = ordered = sorted(figures, key=lambda one: -one[1])
    sentences: list[str] = []
    if word := _COMPARING.search(_COUNTING.sub("", prompt)):
        first, second = (ordered[::-1] if word[1] else ordered)[:2]
        sentences.append(_comparison_sentence(word[0].lower(), first, second))
    if re.search(r"\b(?:difference|how much|how many more|compare)\b", prompt, re.I):
        parts = f"{_number(high)} (**{most}**) − {_number(low)} (**{least}**)"
        sentences.append(f"The difference is **{_number(high - low)}**: {parts}.")
    if re.search(r"\b(?:total|sum|together)\b", prompt, re.I):
        sentences.append(f"Together: **{_number(sum(number for _, number in figures))}**.")
    return sentences


def _comparison_sentence(word: str, first: tuple[str, Any], second: tuple[str, Any]) -> str:
    if first[1] == second[1]:
        return f"**{first[0]}** and **{second[0]}** are equal: {_number(first[1])}."
    word = "larger" if word == "compare" else word
    word = f"the {word}" if word.endswith("st") else word
    verb = "has" if re.search("more|most|less|least|few", word) else "is"
    return f"**{first[0]}** {verb} {word}: {_number(first[1])} against {_number(second[1])}."


def _result_number(prompt: str, data: Any) -> int | float | None:
    """Return the number of a result; of several fields the one that the prompt names."""
    fields = json_object(data) or {"": data}
    numbers = {key: value for key, value in fields.items() if type(value) in (int, float)}
    if len(numbers) > 1:
        numbers = {key: value for key, value in numbers.items() if stems(key) & stems(prompt)}
    return next(iter(numbers.values()), None)


def _single_result(planned_call: PlannedCall) -> str:
    fields = json_object(planned_call.data)
    if (
        long := _fields(fields)
        if fields
        else _rows(items(planned_call.data)) or _long_text(planned_call.data)
    ):
        return f"`{planned_call}`:\n\n{long}"
    if len(planned_call.arguments) == 1:
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
        elif long := _rows(items(value)) or _long_text(value):
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


def _long_text(value: Any) -> str:
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
        return _number(value)
    if isinstance(value, list):
        return ", ".join(cell_text(item) for item in items(value)[:_MAX_ROWS]) or "none"
    return _shorten(value if isinstance(value, str) else _json(value), 200)


def _json(value: Any) -> str:
    return dump_json(value).decode("utf-8", "replace")


def _shorten(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"


def _number(value: int | float) -> str:
    """Write a number, with groups of digits from 10,000 on: years stay as they are."""
    if isinstance(value, float):
        return f"{value:,.10g}"
    return f"{value:,}" if abs(value) >= 10_000 else str(value)
