"""`offline:demo`: a stand-in that follows rules. It picks tools by words and fills them by type.

The same request always gives the same answer. Owns which calls are made and what is said without
one; values are found in `filling`, results are put into words in `telling`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.canonical import dump_json, json_object, load_json
from nbagent.contracts.chat import ChatRequest, Message, ToolCall, ToolSpec
from nbagent.providers.offline.filling import fill, literal, spoken, stems, unquoted, values_in
from nbagent.providers.offline.scripted import call
from nbagent.providers.offline.stream import Step
from nbagent.providers.offline.telling import Call, compared, told

_LONGEST_PROMPT = 4_000
_NAME_COUNTS = 3
"""A word of a tool's name counts as so many of its description."""
_AGAIN = re.compile(r"\b(?:again|now|latest)\b", re.IGNORECASE)
_WRITTEN_CALL = re.compile(r"`([A-Za-z_][\w.-]*)\(([^`]*)\)`")

_Q = "['‘’“”\"`]"
_FILE = rf"{_Q}?(?P<path>@?[\w./~*-]*\w/?){_Q}?"
_VARIABLE = rf"{_Q}?(?P<name>[A-Za-z_]\w*(?:\[[^\]]+\])*){_Q}?"
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
class _Plan:
    wishes: Sequence[Call] = ()
    why: str = "There is no tool to choose from."
    note: str = ""
    reuses: bool = False
    """A known result will do. Not for files and variables, which change."""


def decide(request: ChatRequest) -> Step:
    """What the rules say to a request: calls, or the text of the answer."""
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
    if not results and compared(prompt, earlier):
        results = earlier
    text = told(prompt, results) if results else _by_itself(prompt)
    return Step(reasoning=plan.why, text=text or _introduction(tools.values(), plan.note))


def _read(messages: Sequence[Message]) -> tuple[str, list[Call], list[Call]]:
    """The last prompt, the calls that were made for it, and those before it that went well."""
    results = {one.tool_call_id: one.text for one in messages if one.role == "tool"}
    prompt = ""
    now: list[Call] = []
    earlier: list[Call] = []
    for message in messages:
        if message.role == "user":
            earlier += [one for one in now if one.ok]
            prompt, now = message.text, []
        for one in message.tool_calls:
            now.append(_made(one, results.get(one.id, "")))
    return prompt[:_LONGEST_PROMPT], now, earlier


def _made(asked: ToolCall, content: str) -> Call:
    try:
        result = json_object(load_json(content)) or {}
    except (ValueError, RecursionError):
        result = {"ok": True, "data": content}
    ok = bool(result.get("ok"))
    return Call(asked.name, asked.arguments or {}, ok, result.get("data" if ok else "error"))


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


def _written(prompt: str, tools: dict[str, ToolSpec]) -> list[Call]:
    """`` `fs.read(path="a.md")` ``: calls in backticks, with Python's literals as arguments."""
    made: list[Call] = []
    for name, source in _WRITTEN_CALL.findall(prompt):
        if name not in tools:
            continue
        try:
            call = ast.parse(f"call({source})", mode="eval").body
            if isinstance(call, ast.Call):
                names = list(tools[name].parameters.get("properties", {}))
                given = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
                given |= {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
                made.append(Call(name, load_json(dump_json(given))))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return made


def _said(prompt: str, tools: dict[str, ToolSpec]) -> list[Call]:
    for name, pattern in _SENTENCES.items():
        match = re.search(pattern, prompt, re.I | re.S) if name in tools else None
        if match is not None:
            found = {key: text for key, text in match.groupdict().items() if text}
            if "*" in found.get("path", "") and name == "fs.search":
                found["glob"] = found.pop("path")
            read = {"value": literal, "code": unquoted}
            names = [key for key in tools[name].parameters.get("properties", {}) if key in found]
            return [Call(name, {k: read.get(k, str.strip)(found[k]) for k in names})]
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
    return _Plan([Call(tool.name, one) for one in sets], why, note, reuses=True)


def _score(tool: ToolSpec, said: set[str]) -> int:
    properties = json_object(tool.parameters.get("properties")) or {}
    name = stems(tool.name)
    about = stems(" ".join([tool.description, *properties])) - name
    return _NAME_COUNTS * len(name & said) + len(about & said)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": lambda left, right: left / right,
}
_SUM = re.compile(r"(?<![\w.])[-(]*\d[\d.]*(?:\)*\s*[-+*/]\s*[-(]*\d[\d.]*)+\)*")
_LONG_TEXT = re.compile(r"\b(?:story|essay|poem|long (?:text|answer)|\d{1,4}[- ]words?)\b", re.I)
_COUNT = re.compile(r"\bcount\s+(?:from\s+(\d{1,9})\s+)?to\s+(\d{1,9})\b", re.I)
_FILLER = "Every turn is one request to a model, and this text comes from a rule of offline:demo. "


def _by_itself(prompt: str) -> str:
    """Counting, a sum, a long text to watch; empty where the rules cannot answer."""
    if count := _COUNT.search(prompt):
        first, last = int(count[1] or 1), int(count[2])
        if abs(last - first) >= 5_000:
            return "That is further than this stand-in counts; ask for 5,000 numbers at most."
        step = 1 if first <= last else -1
        return " ".join(map(str, range(first, last + step, step)))
    if _LONG_TEXT.search(prompt):
        asked = re.search(r"\b(\d{1,4})[- ]words?\b", prompt)
        wanted = int(asked[1]) if asked else 400
        return " ".join((_FILLER * (wanted // 10 + 1)).split()[:wanted])
    if (found := _SUM.search(prompt)) and len(found[0]) < 200:
        try:
            return f"{found[0]} = **{_calculated(ast.parse(found[0], mode='eval').body):,.12g}**"
        except (ValueError, SyntaxError, ArithmeticError, RecursionError):
            return ""
    return ""


def _calculated(node: ast.expr) -> Any:
    """The result of a sum; `_SUM` lets nothing else through than numbers and four signs."""
    if isinstance(node, ast.BinOp):
        sign = _OPERATORS[type(node.op).__name__]
        return sign(_calculated(node.left), _calculated(node.right))
    return -_calculated(node.operand) if isinstance(node, ast.UnaryOp) else ast.literal_eval(node)


def _introduction(tools: Iterable[ToolSpec], note: str) -> str:
    named = ", ".join(f"`{tool.name}`" for tool in list(tools)[:8]) or "none"
    return (
        "I am `offline:demo`, a rule-based stand-in and not a language model."
        f" {note or 'No rule of mine fits your words.'}\n\n"
        f"The tools here: {named}. Use words of a tool's name and give its arguments as names,"
        " numbers or quoted text, or write the call itself in backticks, as in"
        ' `` `population(city="Oslo")` ``. I can also count, work out `12 * 7`, or write a long'
        " text.\n\nFor a language model choose one with `--model PROVIDER:MODEL`;"
        " `%agent models` lists what can be asked here."
    )
