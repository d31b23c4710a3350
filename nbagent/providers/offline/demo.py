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
from nbagent.contracts.chat import ChatRequest, Message, ToolSpec
from nbagent.providers.offline.filling import Value, fill, spoken, stem, stems, values_in
from nbagent.providers.offline.stream import Call, Step
from nbagent.providers.offline.telling import Made, Wish, compared, told

_MOST_TURNS = 4
_LONGEST_PROMPT = 4_000
_NAME_COUNTS = 3
"""A word of a tool's name counts as so many of its description."""
_GO_ON = re.compile(r"\bgo on\b.*\bwhere\b.*\bstopped\b", re.IGNORECASE)
_AGAIN = re.compile(r"\b(?:again|now|latest)\b", re.IGNORECASE)
_WRITTEN_CALL = re.compile(r"`([A-Za-z_][\w.-]*)\(([^`]*)\)`")

_FILE = r"['\"`]?(?P<path>@?[\w./~*-]*\w/?)['\"`]?"
_TEXT = r"['‘“\"`](?P<text>[^'’”\"`]+)['’”\"`]"
_VARIABLE = r"[`'\"]?(?P<name>[A-Za-z_]\w*(?:\[[^\]]+\])*)[`'\"]?"
_SENTENCES: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        "fs.write",
        rf"\b(?:write|save)\s+{_TEXT}\s+(?:in)?to\s+{_FILE}",
        {"path": "path", "content": "text"},
    ),
    (
        "fs.apply_patch",
        rf"\breplace\s+['\"`]?(?P<old>.+?)['\"`]?\s+(?:with|by)\s+['\"`]?(?P<new>.+?)['\"`]?\s+in\s+{_FILE}",
        {"path": "path", "oldText": "old", "newText": "new"},
    ),
    (
        "fs.search",
        rf"\b(?:search|find|grep|look)\b(?:\s+for)?\s+['\"`]?(?P<text>[^'\"`?]+?)['\"`]?(?:\s+in\s+{_FILE})?\s*[.?!]*$",
        {"query": "text", "path": "path"},
    ),
    ("list_skills", r"\bskills\b", {}),
    ("get_skill", r"\bskill\s+[`'\"]?(?P<name>[\w-]+)", {"skill_name": "name"}),
    ("nb.set", rf"\bset\s+{_VARIABLE}\s+to\s+(?P<json>.+?)\s*$", {"name": "name", "value": "json"}),
    ("nb.run", r"\b(?:run|execute)\b[^`]*(?P<code>```.+?```|`[^`]+`)", {"code": "code"}),
    ("nb.variables", r"\bvariables\b", {}),
    (
        "nb.inspect",
        rf"\b(?:what\s+is(?:\s+in)?|inspect|describe)\s+{_VARIABLE}\s*[.?!]*$",
        {"name": "name"},
    ),
    (
        "fs.read",
        r"\b(?:read|open|show|says?|does|in|summari[sz]e)\b.*?(?P<path>@[\w-]+/[\w./~-]+|[\w./~-]*\w\.[A-Za-z]\w*)",
        {"path": "path"},
    ),
    ("fs.list", rf"\b(?:list|which|what)\b.*\bfiles\b(?:.*?\bin\s+{_FILE})?", {"path": "path"}),
)
"""What is said to the tools of nbagent itself: tool, sentence, group of each argument."""


@dataclass(frozen=True, slots=True)
class _Talk:
    """The last prompt, the calls that were made for it, and the calls before it."""

    prompt: str
    now: tuple[Made, ...]
    earlier: tuple[Made, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    wishes: Sequence[Wish] = ()
    why: str = "There is no tool to choose from."
    note: str = ""
    reuses: bool = False
    """A known result will do. Not for files and variables, which change."""


def decide(request: ChatRequest) -> Step:
    """What the rules say to a request: calls, or the text of the answer."""
    *before, last = request.messages
    if len(before) > 1 and before[-1].role == "assistant" and _GO_ON.search(last.text):
        said = before[-1].text
        whole = decide(request.model_copy(update={"messages": tuple(before[:-1])})).text
        if whole.startswith(said):
            return Step(text=whole[len(said) :].lstrip(), reasoning="Going on with the answer.")
    talk = _read(request.messages)
    tools = {one.name: one for one in request.tools if request.tool_choice != "none"}
    if request.tool_choice in tools:
        tools = {request.tool_choice: tools[request.tool_choice]}
    plan = _planned(talk, tools, forced=request.tool_choice in {"required", *tools})
    reusable = talk.earlier if plan.reuses and not _AGAIN.search(talk.prompt) else ()
    known = {one.wish.key: one for one in (*reusable, *talk.now)}
    new = {one.key: one for one in plan.wishes if one.key not in known}
    results = tuple(known[one.key] for one in plan.wishes if one.key in known) or talk.now
    if (
        new
        and all(one.ok for one in talk.now)
        and len({one.turn for one in talk.now}) < _MOST_TURNS
    ):
        calls = tuple(Call(one.tool, dump_json(one.arguments).decode()) for one in new.values())
        return Step(reasoning=plan.why, calls=calls)
    if not results and compared(talk.prompt, talk.earlier):
        results = talk.earlier
    text = told(talk.prompt, talk.now or results) if results else _by_itself(talk.prompt)
    return Step(reasoning=plan.why, text=text or _introduction(tools.values(), plan.note))


def _read(messages: Sequence[Message]) -> _Talk:
    results = {one.tool_call_id: one.text for one in messages if one.role == "tool"}
    prompt, turn = "", 0
    now: list[Made] = []
    earlier: list[Made] = []
    for message in messages:
        if message.role == "user":
            prompt, earlier, now = message.text, [*earlier, *now], []
        turn += message.role == "assistant"
        for call in message.tool_calls:
            wish = Wish(call.name, call.arguments or {})
            now.append(_made(wish, results.get(call.id, ""), turn))
    return _Talk(prompt[:_LONGEST_PROMPT], tuple(now), tuple(earlier))


def _made(wish: Wish, content: str, turn: int) -> Made:
    try:
        result = json_object(load_json(content)) or {"ok": True, "data": content}
    except (ValueError, RecursionError):
        result = {"ok": True, "data": content}
    ok = bool(result.get("ok"))
    return Made(wish, ok, result.get("data") if ok else result.get("error"), turn)


def _planned(talk: _Talk, tools: dict[str, ToolSpec], *, forced: bool) -> _Plan:
    """A call written out, else a known sentence, else the tool that the words speak of."""
    if not tools:
        return _Plan()
    if written := _written(talk.prompt, tools):
        return _Plan(written, "The prompt writes the call out.")
    chosen = _chosen(talk.prompt, tools, forced=forced and not talk.now)
    own = {one.tool for one in chosen.wishes} - {name for name, _, _ in _SENTENCES}
    speaks = any(stems(name) & stems(spoken(talk.prompt)) for name in own)
    if not speaks and (said := _said(talk.prompt, tools, talk.now)):
        return _Plan(said, "The prompt is a sentence that the rules know.")
    return chosen


def _written(prompt: str, tools: dict[str, ToolSpec]) -> list[Wish]:
    """`` `fs.read(path="a.md")` ``: calls in backticks, with Python's literals as arguments."""
    made: list[Wish] = []
    for name, source in _WRITTEN_CALL.findall(prompt):
        if name not in tools:
            continue
        try:
            call = ast.parse(f"call({source})", mode="eval").body
            assert isinstance(call, ast.Call)
            names = list(tools[name].parameters.get("properties", {}))
            given = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
            given |= {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
            made.append(Wish(name, load_json(dump_json(given))))
        except (ValueError, SyntaxError, TypeError, RecursionError):
            continue
    return made


def _said(prompt: str, tools: dict[str, ToolSpec], now: Sequence[Made]) -> list[Wish]:
    for name, pattern, groups in _SENTENCES:
        match = re.search(pattern, prompt, re.I | re.S) if name in tools else None
        if match is None:
            continue
        found = {argument: match[group] for argument, group in groups.items() if match[group]}
        if "*" in found.get("path", "") and name == "fs.search":
            found["glob"] = found.pop("path")
        if "code" in found:
            found["code"] = re.sub(r"\A```\w*\n|\A`+|\s*`+\Z", "", found["code"])
        arguments = {k: _json(v) if groups[k] == "json" else v.strip() for k, v in found.items()}
        return [Wish(name, arguments), *_skill_run(prompt, tools, now)]
    return []


def _skill_run(prompt: str, tools: dict[str, ToolSpec], now: Sequence[Made]) -> list[Wish]:
    """The script of a skill that was read, where the prompt wants it used."""
    skill = next((one for one in now if one.wish.tool == "get_skill" and one.ok), None)
    if (
        skill is None
        or "run_python_script" not in tools
        or not re.search(r"\b(?:use|run)\b", prompt, re.I)
    ):
        return []
    files = (json_object(skill.data) or {}).get("files", ())
    script = next((str(one) for one in files if str(one).endswith(".py")), None)
    quoted = [one.text for one in values_in(prompt, set()) if one.kind == "text"]
    more = {"args": quoted} if quoted else {}
    return (
        [Wish("run_python_script", {**skill.wish.arguments, "script": script, **more})]
        if script
        else []
    )


def _json(text: str) -> Any:
    for read in (load_json, ast.literal_eval):
        try:
            return load_json(dump_json(read(text)))
        except (ValueError, SyntaxError, TypeError, RecursionError):
            continue
    return text


def _chosen(prompt: str, tools: dict[str, ToolSpec], *, forced: bool) -> _Plan:
    """The tools whose words the prompt uses; without any, one that its values fit."""
    names = {one for name in tools for one in stems(name)}
    values = values_in(prompt, names)
    said = stems(spoken(prompt))
    scores = {tool.name: _score(tool, said) for tool in tools.values()}
    order = sorted(tools.values(), key=lambda tool: -scores[tool.name])
    why = "Words of the prompt in the tools: " + ", ".join(
        f"{t.name} {scores[t.name]}" for t in order[:6]
    )
    why += f". Values: {', '.join(value.text for value in values) or 'none'}."
    if _by_itself(prompt) and not forced and scores[order[0].name] < _NAME_COUNTS:
        return _Plan(why=why)
    best = order[0]
    picked = [best] if scores[best.name] or forced else []
    picked += [one for one in order[1:] if picked and (stems(one.name) - stems(best.name)) & said]
    if not picked and values:
        picked = [one for one in order if any(fill(one, prompt, values)[0])][:1]
    return _filled(picked[:1] if forced else picked, prompt, values, why, forced=forced)


def _score(tool: ToolSpec, said: set[str]) -> int:
    properties = json_object(tool.parameters.get("properties")) or {}
    name = stems(tool.name)
    about = stems(" ".join([tool.description, *properties])) - name
    return _NAME_COUNTS * len(name & said) + len(about & said)


def _filled(
    tools: Sequence[ToolSpec], prompt: str, values: Sequence[Value], why: str, *, forced: bool
) -> _Plan:
    """The calls of these tools; each takes the values from its own words to the next one's."""
    places = sorted((_place(tool, prompt), i) for i, tool in enumerate(tools))
    wishes: list[Wish] = []
    note = ""
    for n, (start, i) in enumerate(places):
        tool = tools[i]
        low = start if n else 0
        high = places[n + 1][0] if n + 1 < len(places) else len(prompt)
        mine = [one for one in values if low <= one.start < high]
        sets, missing = fill(tool, prompt, mine, forced=forced)
        wishes += [Wish(tool.name, one) for one in sets]
        if missing:
            note = f"`{tool.name}` needs {', '.join(f'`{name}`' for name in missing)}, which the prompt does not say."
    return _Plan(wishes, why, note, reuses=True)


def _place(tool: ToolSpec, prompt: str) -> int:
    """Where the prompt first says a word of the tool's name."""
    own = stems(tool.name)
    found = (one.start() for one in re.finditer(r"[^\W\d_]+", prompt) if stem(one[0]) in own)
    return next(found, len(prompt))


_SIGNS = ((" times ", "*"), (" plus ", "+"), (" minus ", "-"), (" divided by ", "/"))
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_SUM = re.compile(r"(?<![\w.])[-(]*\d[\d.]*(?:\)*\s*[-+*/]\s*[-(]*\d[\d.]*)+\)*")
_LONG_TEXT = re.compile(r"\b(?:(\d{1,4})[- ]words?|story|essay|poem|long (?:text|answer))\b", re.I)
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
    if long := _LONG_TEXT.search(prompt):
        wanted = int(long[1] or 400)
        return " ".join((_FILLER * (wanted // 10 + 1)).split()[:wanted])
    for said, sign in _SIGNS:
        prompt = prompt.replace(said, sign)
    if found := _SUM.search(prompt):
        try:
            return f"{found[0]} = **{_calculated(ast.parse(found[0], mode='eval').body):,.12g}**"
        except (ValueError, SyntaxError, ArithmeticError, RecursionError):
            return ""
    return ""


def _calculated(node: ast.expr) -> int | float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_calculated(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_calculated(node.left), _calculated(node.right))
    raise ValueError("not a sum")


def _introduction(tools: Iterable[ToolSpec], note: str) -> str:
    named = ", ".join(f"`{tool.name}`" for tool in list(tools)[:8])
    return "\n\n".join(
        [
            "I am `offline:demo`, a rule-based stand-in and not a language model."
            f" {note or 'No rule of mine fits your words.'}",
            f"The tools here: {named or 'none'}. Use words of a tool's name and give its arguments as"
            " names, numbers or quoted text; or write the call itself in backticks, as in"
            ' `` `population(city="Oslo")` ``. I can also count, work out `12 * 7`, or write a long'
            " text.",
            "For a language model choose one with `--model PROVIDER:MODEL`; `%agent models` lists"
            " what can be asked here.",
        ]
    )
