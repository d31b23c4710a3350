"""`offline:demo`: a stand-in that follows rules. It picks tools by words and fills them by type.

The same request always gives the same answer. In this order: which calls are made, what is said
without one, which values a prompt holds, which argument takes which, results in words.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, cast

from nbagent.contracts.canonical import canonical_json, dump_json, json_object, load_json
from nbagent.contracts.chat import ChatRequest, Message, ToolCall, ToolSpec
from nbagent.providers.offline.scripted import call
from nbagent.providers.offline.stream import Step
from nbagent.providers.schemas import wire_schema

_LONGEST_PROMPT = 4_000
_NAME_COUNTS = 3
"""A word of a tool's name counts as so many of its description."""
_AGAIN = re.compile(r"\b(?:again|now|latest)\b", re.IGNORECASE)
_WRITTEN_CALL = re.compile(r"`([A-Za-z_][\w.-]*)\(([^`]*)\)`")

_Q = "['‘’“”\"`]"
_FILE = rf"{_Q}?(?P<path>@?[\w./~-]*\w/?){_Q}?"
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
class _Call:
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


@dataclass(frozen=True, slots=True)
class _Plan:
    wishes: Sequence[_Call] = ()
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
    if not results and _compared(prompt, earlier):
        results = earlier
    text = _told(prompt, results) if results else _by_itself(prompt)
    return Step(reasoning=plan.why, text=text or _introduction(tools.values(), plan.note))


def _read(messages: Sequence[Message]) -> tuple[str, list[_Call], list[_Call]]:
    """The last prompt, the calls that were made for it, and those before it that went well."""
    results = {one.tool_call_id: one.text for one in messages if one.role == "tool"}
    prompt = ""
    now: list[_Call] = []
    earlier: list[_Call] = []
    for message in messages:
        if message.role == "user":
            earlier += [one for one in now if one.ok]
            prompt, now = message.text, []
        for one in message.tool_calls:
            now.append(_made(one, results.get(one.id, "")))
    return prompt[:_LONGEST_PROMPT], now, earlier


def _made(asked: ToolCall, content: str) -> _Call:
    try:
        result = json_object(load_json(content)) or {}
    except (ValueError, RecursionError):
        result = {"ok": True, "data": content}
    ok = bool(result.get("ok"))
    return _Call(asked.name, asked.arguments or {}, ok, result.get("data" if ok else "error"))


def _planned(prompt: str, tools: dict[str, ToolSpec], *, forced: bool) -> _Plan:
    """A call written out, else a known sentence, else the tool that the words speak of."""
    if not tools:
        return _Plan()
    if written := _written(prompt, tools):
        return _Plan(written, "The prompt writes the call out.")
    chosen = _chosen(prompt, tools, forced=forced)
    own = {one.tool for one in chosen.wishes} - _SENTENCES.keys()
    speaks = any(_stems(name) & _stems(_spoken(prompt)) for name in own)
    if not speaks and (said := _said(prompt, tools)):
        return _Plan(said, "The prompt is a sentence that the rules know.")
    return chosen


def _written(prompt: str, tools: dict[str, ToolSpec]) -> list[_Call]:
    """`` `fs.read(path="a.md")` ``: calls in backticks, with Python's literals as arguments."""
    made: list[_Call] = []
    for name, source in _WRITTEN_CALL.findall(prompt):
        if name not in tools:
            continue
        try:
            call = ast.parse(f"call({source})", mode="eval").body
            if isinstance(call, ast.Call):
                names = list(tools[name].parameters.get("properties", {}))
                given = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
                given |= {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
                made.append(_Call(name, load_json(dump_json(given))))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return made


def _said(prompt: str, tools: dict[str, ToolSpec]) -> list[_Call]:
    for name, pattern in _SENTENCES.items():
        match = re.search(pattern, prompt, re.I | re.S) if name in tools else None
        if match is not None:
            found = {key: text for key, text in match.groupdict().items() if text}
            read = {"value": _literal, "code": _unquoted}
            names = [key for key in tools[name].parameters.get("properties", {}) if key in found]
            return [_Call(name, {k: read.get(k, str.strip)(found[k]) for k in names})]
    return []


def _chosen(prompt: str, tools: dict[str, ToolSpec], *, forced: bool) -> _Plan:
    """The tool whose words the prompt uses most; without any, one that its values fit."""
    values = _values_in(prompt, {one for name in tools for one in _stems(name)})
    said = _stems(_spoken(prompt))
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
        tool = next((one for one in free if any(_fill(one, prompt, values)[0])), None)
    if tool is None:
        return _Plan(why=why)
    sets, missing = _fill(tool, prompt, values, forced=forced)
    named = ", ".join(f"`{name}`" for name in missing)
    note = f"`{tool.name}` needs {named}, which the prompt does not say." if missing else ""
    return _Plan([_Call(tool.name, one) for one in sets], why, note, reuses=True)


def _score(tool: ToolSpec, said: set[str]) -> int:
    properties = json_object(tool.parameters.get("properties")) or {}
    name = _stems(tool.name)
    about = _stems(" ".join([tool.description, *properties])) - name
    return _NAME_COUNTS * len(name & said) + len(about & said)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": lambda left, right: left / right,
}
_SUM = re.compile(r"(?<![\w.])[-(]*\d[\d.]*(?:\)*\s*[-+*/]\s*[-(]*\d[\d.]*)+\)*")
_LONG_TEXT = re.compile(r"\b(?:story|essay|poem|long (?:text|answer)|\d{1,4}[- ]words?)\b", re.I)
_COUNT = re.compile(r"\bcount\s+to\s+(\d{1,9})\b", re.I)
_MOST_NUMBERS = 5_000
_FILLER = "Every turn is one request to a model, and this text comes from a rule of offline:demo. "


def _by_itself(prompt: str) -> str:
    """Counting (to 5,000), a sum, a long text; empty where the rules cannot answer."""
    if count := _COUNT.search(prompt):
        return " ".join(map(str, range(1, min(int(count[1]), _MOST_NUMBERS) + 1)))
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


_VALUE = re.compile(
    r"(?P<code>```.+?```|`[^`\n]+`)"
    r"|(?P<text>(?<!\w)['‘\"“][^'’\"”\n]+['’\"”](?!\w))"
    r"|(?P<url>https?://[^\s]+[^\s.,;:!?)])"
    r"|(?P<path>(?<![\w.~-])@?[\w.~-]*(?:/[\w.~-]+)+/?|(?<!\w)@[\w-]+|\b[\w-]+\.[a-z]{1,5}\b)"
    r"|(?P<date>\b(?:\d{4}-\d\d-\d\d|\d{1,2}:\d\d|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|today"
    r"|tomorrow)\b)"
    r"|(?P<id>(?<![\w-])(?=[\w-]*\d)[A-Za-z][\w-]*|\b[^\W_]+_\w+)"
    r"|(?P<number>(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?)"
    r"|(?P<name>(?<!\w)[A-Z][^\W\d_]+(?:[ -](?:(?:of|de|la) )?[A-Z][^\W\d_]+)*)",
    re.DOTALL,
)


def _words(text: str) -> list[str]:
    """The words of a text, in small letters; `snake_case` and `camelCase` are several."""
    return re.findall(r"[^\W\d_]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text).lower())


_STOP_WORDS = frozenset(
    _words(
        "a an the of in on at to for from and or is are was be do does did has have what which who"
        " how where when why i you it this that there many much more most than"
    )
)
_ORDERS = frozenset(
    _words(
        "ask book compare convert count describe download fetch find get give hello hi list look"
        " make plant please read run search send set show tell thanks use write"
    )
)
"""Words that begin a sentence with a capital and belong to no name."""
_KINDS = (
    (_words("path file filename folder directory repo"), ("path", "text", "name")),
    (_words("url uri link"), ("url", "text")),
    (_words("timezone zone"), ("path", "text")),
    (_words("date day when time"), ("date", "text")),
    (_words("code expression formula sql command"), ("code", "text")),
    (_words("text message body content query question pattern"), ("text", "code")),
    (_words("id ticket number"), ("id", "number", "text")),
)
"""Words of an argument's name, and the kinds of values that it takes, the likeliest first."""
_ANY_TEXT = ("name", "text", "id", "path")
_STAND_INS: dict[str, Any] = {"integer": 1, "number": 1, "boolean": True, "object": {}}
_NEAR = 25
"""Characters between a value and a word that speaks of it."""
_MOST_CALLS = 16


@dataclass(frozen=True, slots=True)
class _Value:
    """Something in a prompt that can be an argument."""

    kind: str
    text: str
    start: int


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    type: str
    """Of each item, for a list."""
    is_list: bool
    choices: list[Any]
    is_required: bool


def _stem(word: str) -> str:
    """A word without its ending, so that `boils` meets `boiling`."""
    word = re.sub(r"ies\Z", "y", word.lower())
    return re.sub(r"(?<=\w\w\w)(?:ations?|ions|ing|ed|es|s|e)\Z", "", word)


def _stems(text: str) -> set[str]:
    """The stems of the words that mean something."""
    return {_stem(word) for word in _words(text) if word not in _STOP_WORDS}


def _spoken(prompt: str) -> str:
    """The prompt without its quotations, paths and code: what is said about them."""
    hidden = ("code", "text", "url", "path")
    return _VALUE.sub(lambda match: "" if match.lastgroup in hidden else match[0], prompt)


def _unquoted(code: str) -> str:
    """Code without its backticks."""
    return re.sub(r"\A```\w*\n|\A`+|\s*`+\Z", "", code)


def _literal(text: str) -> Any:
    """A value written as in Python; else the text."""
    try:
        return load_json(dump_json(ast.literal_eval(text)))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _values_in(prompt: str, tool_stems: set[str]) -> list[_Value]:
    """The values of a prompt in their order; words of a tool's name are no names of things."""
    found: list[_Value] = []
    for match in _VALUE.finditer(prompt):
        kind, text, start = str(match.lastgroup), match[0], match.start()
        if kind == "name":
            text, start = _name(prompt, match, tool_stems)
        elif kind in ("text", "code"):
            text = _unquoted(text) if kind == "code" else text[1:-1].strip()
        if text:
            found.append(_Value(kind, text, start))
    return found


def _name(prompt: str, match: re.Match[str], tool_stems: set[str]) -> tuple[str, int]:
    """The name without words that only begin the sentence, and its place."""
    text, start = match[0], match.start()
    begins = prompt[:start].rstrip()[-1:] in ("", *".!?:")
    listed = re.match(r"\s*(?:,|or\b|and\b|\?|:|\Z)", prompt[match.end() :])
    while text:
        first, _, rest = text.partition(" ")
        is_order = first.lower() in _ORDERS or _stem(first) in tool_stems
        is_alone = not rest and not listed
        if first.lower() not in _STOP_WORDS and not (begins and (is_order or is_alone)):
            break
        text, start, begins = rest, start + len(first) + 1, False
    return text, start


def _fill(
    tool: ToolSpec, prompt: str, values: Sequence[_Value], *, forced: bool = False
) -> tuple[list[dict[str, Any]], list[str]]:
    """Sets of arguments, one for each call, or the names of the required ones that are missing.

    Args:
        forced: the call is made anyway; a value that stands in is put where one is missing.
    """
    parameters, left = _parameters(tool), list(values)
    required = [one for one in parameters if one.is_required]
    found: dict[str, list[Any]] = {}
    # A word of an enum is sure, and a required argument has the choice before the others.
    for one in sorted(parameters, key=lambda one: (not one.choices, not one.is_required)):
        said = [it for it in one.choices if re.search(rf"\b{re.escape(str(it))}\b", prompt, re.I)]
        if said:
            found[one.name] = said[:1]
            left = [value for value in left if value.text.lower() != str(said[0]).lower()]
            continue
        suits = {value: _suits(one, value, prompt) for value in left}
        best = max(left, key=lambda value: suits[value], default=None)
        if best and suits[best] >= (2 if required and not one.is_required else 1):
            takes_many = one.is_list or required == [one]
            alike = [value for value in left if suits[value] and value.kind == best.kind]
            chosen = alike if takes_many else [best]
            left = [value for value in left if value not in chosen]
            is_number = one.type in ("integer", "number")
            read = [_literal(it.text.replace(",", "")) if is_number else it.text for it in chosen]
            found[one.name] = [read] if one.is_list else read
        elif one.is_required and forced:
            stand_in: Any = [] if one.is_list else _STAND_INS.get(one.type, prompt[:200])
            found[one.name] = [next(iter(one.choices), stand_in)]
    if missing := [one.name for one in required if one.name not in found]:
        return [], missing
    names = [one.name for one in parameters if one.name in found]
    sets = product(*(found[name] for name in names))
    return [dict(zip(names, chosen, strict=True)) for chosen in islice(sets, _MOST_CALLS)], []


def _parameters(tool: ToolSpec) -> list[_Parameter]:
    schema = wire_schema(tool.parameters, inline=True)
    properties = json_object(schema.get("properties")) or {}
    required = [str(name) for name in _items(schema.get("required"))]
    made: list[_Parameter] = []
    for name in dict.fromkeys([*properties, *required]):
        own = _first_of_union(properties.get(name))
        is_list = own.get("type") == "array"
        item = _first_of_union(own.get("items")) if is_list else own
        choices = [one for one in _items(item.get("enum")) if one is not None]
        kinds = _items(item.get("type")) or [item.get("type", "string")]
        kind = next((str(one) for one in kinds if one != "null"), "null")
        made.append(_Parameter(name, kind, is_list, choices, name in required))
    return made


def _first_of_union(schema: Any) -> dict[str, Any]:
    """The schema; of a union the first member that is not null."""
    found = json_object(schema) or {}
    members = (json_object(one) or {} for one in _items(found.get("anyOf") or found.get("oneOf")))
    return next((one for one in members if one.get("type") != "null"), found)


def _items(value: Any) -> list[Any]:
    """The items of a JSON list; none for anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def _suits(parameter: _Parameter, value: _Value, prompt: str) -> float:
    """How well a value suits: 0 = not at all, from 2 on also an argument that is not required.

    Up to 1 of it is for a word of the parameter's name near the value.
    """
    words = _words(parameter.name)
    own, low = {_stem(word) for word in words}, max(0, value.start - _NEAR)
    start, end = value.start - low, value.start - low + len(value.text)
    around = re.finditer(r"[^\W\d_]+", prompt[low : low + end + _NEAR])
    gaps = [max(start - one.end(), one.start() - end, 0) for one in around if _stem(one[0]) in own]
    near = max(0.0, 1 - min(gaps, default=_NEAR) / _NEAR)
    if parameter.type in ("integer", "number"):
        is_whole = value.kind == "number" and "." not in value.text
        return 1 + 2 * near if is_whole or (value.kind == parameter.type == "number") else 0
    kinds = next((kinds for names, kinds in _KINDS if set(words) & set(names)), ())
    if parameter.type != "string" or parameter.choices or value.kind not in (kinds or _ANY_TEXT):
        return 0
    return near + (3 - kinds.index(value.kind) / 2 if kinds else 1)


_LESS = "small|less|least|few|low|short|young|light|cold|cheap|slow|near"
_MORE = "larg|bigg|more|most|high|great|long|tall|old|heav|warm|fast|deep|best|compare"
_COMPARING = re.compile(rf"\b(?:({_LESS})|{_MORE})\w*", re.IGNORECASE)
_COUNTING = re.compile(r"\bhow (?:much|many)(?: more)?\b", re.IGNORECASE)
_MOST_ROWS = 20
_LONGEST = 1_500


def _told(prompt: str, made: Sequence[_Call]) -> str:
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


def _compared(prompt: str, good: Sequence[_Call]) -> list[str]:
    """Which number is larger, their difference, total and average, as far as the prompt asks."""
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
    total = sum(number for _, number in figures)
    if re.search(r"\b(?:total|sum|together)\b", prompt, re.I):
        said.append(f"Together: **{_number(total)}**.")
    if re.search(r"\b(?:average|mean)\b", prompt, re.I):
        said.append(f"The average is **{_number(total / len(figures))}**.")
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
        numbers = {key: one for key, one in numbers.items() if _stems(key) & _stems(prompt)}
    return next(iter(numbers.values()), None)


def _alone(one: _Call) -> str:
    fields = json_object(one.data)
    if long := _fields(fields) if fields else _rows(_items(one.data)) or _long_text(one.data):
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
        elif long := _rows(_items(value)) or _long_text(value):
            below.append(f"{key}:\n\n{long}")
        elif not re.search("^sha256|_ms$", key) and value not in ("", [], None):
            lines.append(f"- {key}: {_cell(value)}")
    return "\n\n".join(filter(None, ["\n".join(lines), *below]))


def _rows(listed: Sequence[Any]) -> str:
    """Objects as a table; nothing for other items."""
    rows = [row for one in listed if (row := json_object(one)) is not None]
    if not rows or len(rows) < len(listed):
        return ""
    filled = [key for row in rows for key, value in row.items() if value not in ("", [], None)]
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
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, list):
        return ", ".join(_cell(one) for one in _items(value)[:_MOST_ROWS]) or "none"
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
