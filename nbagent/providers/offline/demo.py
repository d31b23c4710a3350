"""`offline:demo`: a model made of rules. It chooses tools by words and answers about tables.

The same request always gives the same answer. Arguments are filled by `argument_values`, results
told by `call_results`, tables read by `table_questions`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from nbagent.contracts.canonical import dump_json, json_object, load_json
from nbagent.contracts.messages import CONTINUE_PROMPT, FINAL_ANSWER, Message, TextPart
from nbagent.contracts.model import ChatRequest, ToolSpec
from nbagent.contracts.schema_walk import property_schemas
from nbagent.providers.offline.argument_values import (
    Parameter,
    compose,
    fill,
    parameters_of,
)
from nbagent.providers.offline.call_results import (
    PlannedCall,
    call_with_result,
    comparison,
    long_text,
    number_text,
    results_text,
)
from nbagent.providers.offline.prompt_values import (
    Value,
    choices_in,
    literal,
    number_of,
    spaced_units,
    values_in,
    without_backticks,
    without_quotes,
)
from nbagent.providers.offline.stream import ScriptedAnswer, call
from nbagent.providers.offline.table_questions import is_numeric, table_answer, table_help
from nbagent.providers.offline.typed_prompt import TypedPrompt, read_prompt
from nbagent.providers.offline.vocabulary import is_known, is_misspelt, meanings, words_in
from nbagent.providers.wires.tool_schemas import wire_schema

_NAME_WEIGHT = 3
"""Weight of a word in a tool's name; a word of its description has weight 1."""
_WHOLE_NAME_WEIGHT = 6
_NEAR_BEST = 0.75
"""Smallest share of the best score at which a tool is taken because the best lacks a value."""
_MIN_SCORE = 2
"""Fewest points of a tool whose name has no word of the prompt, and that takes no value of it."""
_MAX_ATTEMPTS = 3
"""Most times that a stopped call is made for one prompt."""
_AGAIN = re.compile(r"\b(?:again|now|latest|retry|nochmals?|noch einmal|erneut)\b", re.IGNORECASE)
_CONTINUE = re.compile(
    r"\W*(?:(?:please|bitte|ok(?:ay)?|yes|ja),? )?(?:(?:please )?continue|go (?:on|ahead)|carry on|resume"
    r"|proceed|again|(?:try|do|run|call) (?:it |that |this )?(?:once )?(?:again|more)|retry|repeat"
    r"(?: (?:it|that))?|once more|weiter|mach weiter|weitermachen|(?:versuch\w* es )?(?:nochmals?"
    r"|noch ?mal|noch einmal)|yes|ja)(?:,? (?:please|bitte))?\W*",
    re.IGNORECASE,
)
_FOLLOW_UP = re.compile(
    r"\W*(?:and|or|und|oder|what about|how about|was ist mit|wie ist es)\b", re.I
)
_COMPARES = re.compile(
    r"\b(?:which|compare|larger|bigger|smaller|more|less|largest|smallest|most|fewest|welche\w*"
    r"|größer|kleiner|größte|mehr|vergleiche?|between|zwischen)\b",
    re.IGNORECASE,
)
_SHORT_WORDS = 4
_MAX_LISTED = 16
"""Most values of a prompt without a word for a tool."""
_WRITTEN_CALL = re.compile(r"`([A-Za-z_][\w.-]*)\(([^`]*)\)`")

_Q = "['‘’“”\"`]"
_FILE = rf"{_Q}?(?P<path>@?[\w./~-]*\w/?){_Q}?"
_VARIABLE = rf"{_Q}?(?P<name>[A-Za-z_]\w*){_Q}?"
_SENTENCES = {
    "fs.write": rf"\b(?:write|save|schreibe?)\s+{_Q}(?P<content>.+?){_Q}\s+(?:(?:in)?to|in|nach)\s+{_FILE}",
    "fs.apply_patch": rf"\b(?:replace|ersetze)\s+{_Q}?(?P<oldText>.{{1,80}}?){_Q}?\s+(?:with|by|durch)"
    rf"\s+{_Q}?(?P<newText>.{{1,80}}?){_Q}?\s+in\s+{_FILE}",
    "fs.search": rf"\b(?:search|find|grep|look|suche?|finde)\b(?:\s+(?:for|nach))?\s+{_Q}?"
    rf"(?P<query>[^'\"`?]+?){_Q}?(?:\s+in\s+{_FILE})?\s*[.?!]*$",
    "list_skills": r"\bskills\b",
    "get_skill": rf"\bskill\s+{_Q}?(?P<skill_name>[\w-]+)",
    "nb.set": rf"\b(?:set|setze)\s+{_VARIABLE}\s+(?:to|auf)\s+(?P<value>.+?)\s*$",
    "nb.run": r"\b(?:run|execute|führe)\b[^`]*(?P<code>```.+?```|`[^`]+`)",
    "nb.variables": r"\b(?:variables|variablen)\b",
    "nb.inspect": rf"\b(?:(?:what|was)\s+(?:is|ist)(?:\s+in)?|inspect|describe)\s+{_VARIABLE}\s*[.?!]*$",
    "fs.read": r"\b(?:read|open|show|says?|does|in|summari[sz]e|lies|zeige?|öffne|steht)\b.*?"
    r"(?P<path>@[\w-]+/[\w./~-]+|[\w./~-]*\w\.[A-Za-z]\w*)",
    "fs.list": rf"\b(?:list|which|what|welche)\b.*\b(?:files|dateien)\b(?:.*?\bin\s+{_FILE})?",
}
"""Sentences for nbagent's own tools, by tool. The groups are the arguments."""


@dataclass(frozen=True, slots=True)
class _Conversation:
    """The messages as the rules see them."""

    prompt: TypedPrompt
    """The last words of the person that ask something."""
    now: list[PlannedCall]
    """Calls for the last prompt so far."""
    earlier: list[PlannedCall]
    """Successful calls before the last prompt."""
    before: list[TypedPrompt]
    """Prompts before the last one."""
    asks_again: bool = False
    """The person only said `again`: earlier results are not used."""


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
    talk = _read(request.messages)
    facts = [
        {**one.used, **(json_object(one.data) or {one.tool: one.data})}
        for one in talk.now or talk.earlier
        if one.ok and one.tool != FINAL_ANSWER
    ]
    values = values_in(talk.prompt.text, set())
    facts = facts or [
        {value.kind: value.text if value.number is None else value.number} for value in values
    ]
    answer = compose(wire_schema(final.parameters, inline=True), facts)
    return ScriptedAnswer(reasoning=step.reasoning, calls=[call(FINAL_ANSWER, answer)])


def _rule_answer(request: ChatRequest) -> ScriptedAnswer:
    talk = _read(request.messages)
    tools = {tool.name: tool for tool in request.tools if request.tool_choice != "none"}
    if request.tool_choice in tools:
        tools = {request.tool_choice: tools[request.tool_choice]}
    if stopped := _stopped_calls(talk.now, tools):
        return _call_step(stopped, "A call was stopped, so I make it again.")
    plan = _plan(talk, tools, forced=request.tool_choice in {"required", *tools})
    is_fresh = talk.asks_again or _AGAIN.search(talk.prompt.text)
    reusable = talk.earlier if plan.reuses and not is_fresh else []
    known = {one.key: one for one in [*reusable, *talk.now]}
    new = {one.key: one for one in plan.planned if one.key not in known}
    if new and not talk.now:
        return _call_step(list(new.values()), plan.why)
    results = [known[one.key] for one in plan.planned if one.key in known] or talk.now
    if not results and _compares_earlier(talk):
        results = _last_calls(talk.earlier)
    if results:
        return ScriptedAnswer(reasoning=plan.why, text=results_text(talk.prompt.text, results))
    text = (
        _text_without_tools(talk.prompt.text)
        or _about_table(talk, plan.note)
        or _sum_text(talk.prompt.text)
        or _repeated_text(talk.prompt.text)
        or _attached_files(request)
    )
    return ScriptedAnswer(
        reasoning=plan.why, text=text or _introduction(talk, tools.values(), plan.note)
    )


def _about_table(talk: _Conversation, note: str) -> str:
    answer = table_answer(talk.prompt, talk.before)
    return "\n\n".join(filter(None, [note, answer, _BY_RULES])) if answer else ""


_BY_RULES = "_Computed from the table in the prompt by the rules of offline:demo, not by a model._"


def _call_step(planned: Sequence[PlannedCall], why: str) -> ScriptedAnswer:
    return ScriptedAnswer(reasoning=why, calls=[call(one.tool, one.arguments) for one in planned])


def _stopped_calls(now: Sequence[PlannedCall], tools: dict[str, ToolSpec]) -> list[PlannedCall]:
    """Return the calls whose last attempt was stopped, unless they were stopped too often."""
    last = {one.key: one for one in now}
    return [
        one
        for key, one in last.items()
        if one.code == "E_INTERRUPTED"
        and one.tool in tools
        and sum(other.key == key for other in now) < _MAX_ATTEMPTS
    ]


def _compares_earlier(talk: _Conversation) -> bool:
    calls = _last_calls(talk.earlier)
    return not talk.prompt.tables and bool(comparison(talk.prompt.text, calls))


def _last_calls(earlier: Sequence[PlannedCall]) -> list[PlannedCall]:
    """Return the calls of the tool that was called last, each once."""
    return list({one.key: one for one in earlier if one.tool == earlier[-1].tool}.values())


def _read(messages: Sequence[Message]) -> _Conversation:
    """Read the prompts and the calls. `again` and `continue` stand for the prompt before."""
    results = {message.tool_call_id: message.text for message in messages if message.role == "tool"}
    prompts: list[TypedPrompt] = []
    now: list[PlannedCall] = []
    earlier: list[PlannedCall] = []
    asks_again = False
    for message in messages:
        if message.role == "user":
            earlier += [one for one in now if one.ok]
            now = []
            prompt = read_prompt(message)
            is_continuing = bool(prompts and _CONTINUE.fullmatch(prompt.text))
            asks_again = is_continuing and bool(_AGAIN.search(prompt.text))
            if not is_continuing:
                prompts.append(prompt)
        for tool_call in message.tool_calls:
            now.append(call_with_result(tool_call, results.get(tool_call.id, "")))
    last = prompts.pop() if prompts else TypedPrompt()
    return _Conversation(last, now, earlier, prompts, asks_again)


def _plan(talk: _Conversation, tools: dict[str, ToolSpec], *, forced: bool) -> _Plan:
    """Plan calls: those written in the prompt, else a known sentence, else the best tools."""
    if not tools:
        return _Plan()
    prompt = talk.prompt.text
    if written := _written_calls(prompt, tools):
        return _Plan(written, "The prompt contains the call.")
    best = _best_tools(talk, tools, forced=forced)
    own = {one.tool for one in best.planned} - _SENTENCES.keys()
    is_named = any(meanings(name) & meanings(without_quotes(prompt)) for name in own)
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


# Choosing tools


@dataclass(slots=True)
class _Candidate:
    """A tool, and how well the words of a prompt fit it."""

    tool: ToolSpec
    in_name: set[str] = field(default_factory=set[str])
    """Meanings of the prompt that are in the tool's name."""
    matched: set[str] = field(default_factory=set[str])
    """All meanings of the prompt that are in the tool's name, description and arguments."""
    score: float = 0
    sets: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Arguments, one for each call."""
    missing: list[Parameter] = field(default_factory=list[Parameter])


def _best_tools(talk: _Conversation, tools: dict[str, ToolSpec], *, forced: bool) -> _Plan:
    """Choose the tool whose words the prompt uses most, and others that it names as well."""
    text, values = _typed_values(talk.prompt, tools.values())
    candidates = [_candidate(tool, text) for tool in tools.values()]
    for one in candidates:
        defaults = _earlier_arguments(talk)
        one.sets, one.missing = fill(
            one.tool, text, values, talk.prompt.tables, forced=forced, defaults=defaults
        )
    order = sorted(candidates, key=lambda one: (-one.score, not one.sets))
    chosen = _chosen(order, talk, text, values, forced=forced)
    why = _reason(chosen, values)
    if _text_without_tools(text) and not forced and order[0].score < _NAME_WEIGHT:
        return _Plan(why=why)
    planned = [PlannedCall(one.tool.name, own) for one in chosen for own in one.sets]
    note = "" if planned else _missing_text(order[0])
    return _Plan(planned, why, note, reuses=True)


def _typed_values(prompt: TypedPrompt, tools: Iterable[ToolSpec]) -> tuple[str, list[Value]]:
    """Return the words of a person, and the values in them, without names of tools."""
    text = spaced_units(prompt.text)
    names = [tool.name for tool in tools]
    tool_words = {own for name in names for own in meanings(name)}
    columns = {name for table in prompt.tables for name in table.columns}
    cells = [
        cell
        for table in prompt.tables
        for name in table.columns
        if not is_numeric(table, name)
        for cell in dict.fromkeys(table.cells(name)[:300])
        if len(cell) > 2 and not is_known(cell)
    ]
    masked = text
    for name in sorted(names, key=len, reverse=True):
        if not name.isalpha():
            masked = re.sub(rf"`?{re.escape(name)}`?", lambda match: " " * len(match[0]), masked)
        else:
            masked = masked.replace(f"`{name}`", " " * (len(name) + 2))
    values = values_in(masked, tool_words, cells[:600])
    return text, [value for value in values if value.text not in columns | set(names)]


def _candidate(tool: ToolSpec, text: str) -> _Candidate:
    plain = without_quotes(text)
    own, properties = meanings(plain), property_schemas(tool.parameters)
    name = meanings(tool.name)
    about = meanings(" ".join([tool.description, *properties])) - name
    misspelt = [word for word in words_in(plain) if len(word) > 4 and not is_known(word)]
    one = _Candidate(tool, name & own, (name | about) & own)
    for word in misspelt:
        if not {word} & one.matched:
            for right in words_in(f"{tool.name} {' '.join(properties)}"):
                if is_misspelt(word, right):
                    (one.in_name if right in words_in(tool.name) else one.matched).update(
                        meanings(right)
                    )
    one.matched |= one.in_name
    one.score = _NAME_WEIGHT * len(one.in_name) + len(one.matched - one.in_name)
    if re.search(rf"(?<![\w.]){re.escape(tool.name)}(?![\w.]*\w)", plain, re.I):
        one.score += _WHOLE_NAME_WEIGHT
    choices = [parameter.choices for parameter in parameters_of(tool.parameters)]
    one.score += 1.5 * sum(bool(choices_in(text, some)) for some in choices if some)
    return one


def _chosen(
    order: Sequence[_Candidate],
    talk: _Conversation,
    text: str,
    values: Sequence[Value],
    *,
    forced: bool,
) -> list[_Candidate]:
    best = order[0]
    if forced:
        return [best]
    if best.score and (
        best.in_name or best.score >= _MIN_SCORE or (best.sets and best.sets != [{}])
    ):
        chosen, covered = list[_Candidate](), set[str]()
        for one in order:
            if one.sets and (
                not chosen or (one.in_name - covered and one.tool.name not in _SENTENCES)
            ):
                # A weaker tool is only meant as well if the prompt has a word of its name.
                if chosen and not one.in_name - covered:
                    continue
                if not chosen and one.score < _NEAR_BEST * best.score:
                    continue
                chosen.append(one)
                covered |= one.matched
        if chosen and (best.sets or chosen[0].in_name):
            return chosen
        return []
    return _by_values(order, talk, text, values)


def _by_values(
    order: Sequence[_Candidate], talk: _Conversation, text: str, values: Sequence[Value]
) -> list[_Candidate]:
    """Choose a tool without a word for it: `And Rome?`, `Which of Oslo and Bergen is larger?`."""
    free = [one for one in order if one.tool.name not in _SENTENCES and any(one.sets)]
    if not values or len(values) > _MAX_LISTED:
        return []
    n_words = len(text.split())
    if talk.earlier and (_FOLLOW_UP.match(text) or n_words <= _SHORT_WORDS):
        last = talk.earlier[-1].tool
        return [one for one in free if one.tool.name == last][:1]
    names = [value for value in values if value.kind == "name"]
    is_short = len(order) == 1 and n_words <= _SHORT_WORDS
    if (
        (len(names) > 1 and _COMPARES.search(text))
        or (names and is_short)
        or (_only_values(text, values))
    ):
        return free[:1]
    return []


def _only_values(text: str, values: Sequence[Value]) -> bool:
    """True if a prompt is only a list of values: `Oslo, Bergen and Rome`."""
    for value in reversed(values):
        text = text[: value.start] + " " + text[value.end :]
    return {*words_in(text)} <= {"and", "or", "und", "oder", "vs", "versus"}


def _earlier_arguments(talk: _Conversation) -> dict[str, list[Any]]:
    """Return the arguments of the calls for the prompt before, by name."""
    defaults: dict[str, list[Any]] = {}
    for one in _last_calls(talk.earlier):
        for name, value in one.used.items():
            listed = defaults.setdefault(name, [])
            if value not in listed:
                listed.append(value)
    return defaults


def _reason(chosen: Sequence[_Candidate], values: Sequence[Value]) -> str:
    value_texts = ", ".join(dict.fromkeys(value.text for value in values))
    with_values = f" Values in the prompt: {value_texts}." if value_texts else ""
    if not chosen:
        return f"No tool fits the words of the prompt.{with_values}"
    parts = [
        f"`{one.tool.name}`" + (f" ({', '.join(sorted(one.matched))})" if one.matched else "")
        for one in chosen
    ]
    return f"Tools that fit the words of the prompt: {', '.join(parts)}.{with_values}"


def _missing_text(best: _Candidate) -> str:
    if not best.missing or not (best.in_name or best.score >= _NAME_WEIGHT):
        return ""
    named = ", ".join(f"`{parameter.name}`" for parameter in best.missing)
    options = "".join(
        f" `{one.name}` is one of {', '.join(map(str, one.choices[:12]))}."
        for one in best.missing
        if one.choices
    )
    return f"`{best.tool.name}` needs {named}, which the prompt does not give.{options}"


# Answers without a tool

_LONG_TEXT = re.compile(
    r"\b(?:story|essay|poem|geschichte|gedicht|aufsatz|long (?:text|answer)"
    r"|\d{1,4}[- ](?:words?|wörtern?))\b",
    re.I,
)
_COUNT = re.compile(r"\b(?:count\s+(?:up\s+)?to|zähle?\s+bis)\s+(\d{1,9})\b", re.I)
_MAX_COUNT = 5_000
_FILLER = "Every turn is one request to a model, and this text comes from a rule of offline:demo. "


def _text_without_tools(prompt: str) -> str:
    """Count (to 5,000) or write a long text; empty if the rules cannot answer."""
    if count := _COUNT.search(prompt):
        return " ".join(map(str, range(1, min(int(count[1]), _MAX_COUNT) + 1)))
    if _LONG_TEXT.search(prompt):
        word_count = re.search(r"\b(\d{1,4})[- ]w", prompt)
        wanted = int(word_count[1]) if word_count else 400
        return " ".join((_FILLER * (wanted // 10 + 1)).split()[:wanted])
    return ""


_SPOKEN = (
    (r"\bplus\b|\bund\b(?= ?\d)", "+"),
    (r"\b(?:minus|less)\b|−", "-"),
    (r"\b(?:times|multiplied by|mal)\b|×|(?<=\d) ?x ?(?=\d)", "*"),
    (r"\b(?:divided by|over|geteilt durch|durch)\b|÷", "/"),
    (r"(?<=\d)% (?:of|von)\b|(?<=\d) (?:percent|prozent) (?:of|von)\b", "/100*"),
    (r"\^", "**"),
    (r"\b(?:squared|zum quadrat)\b", "**2"),
)
_SUM = re.compile(r"(?<![\w.])[\d(][\d\s.()]*(?:(?:\*\*|[-+*/])[\d\s.(-]*[\d)]*[\d\s.()]*)+")
_CHANGES = (
    (r"\b(?:double|twice|verdopple|verdoppeln?|das doppelte)\b", lambda n: n * 2),
    (r"\b(?:triple|verdreifache)\b", lambda n: n * 3),
    (r"\b(?:half|halve|halbiere|die hälfte)\b", lambda n: n / 2),
    (r"\bsquare root\b|\bwurzel\b", lambda n: n**0.5),
    (r"\b(?:square|quadriere)\b", lambda n: n * n),
)
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_MAX_FIGURE = 1e12


def _sum_text(prompt: str) -> str:
    """Compute a sum in the prompt: `12*7`, `2 plus 2`, `double 5`; empty without one."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", prompt.lower())
    for pattern, change in _CHANGES:
        numbers = re.findall(r"(?<![\w.])-?\d{1,12}(?:\.\d{1,9})?(?![\w.]*\w)", text)
        if re.search(pattern, text) and len(numbers) == 1 and float(numbers[0]) >= 0:
            return f"**{number_text(change(number_of(numbers[0]) or 0))}**"
    if re.search(r"\d{4}-\d\d-\d\d", text):
        return ""
    typed = text
    for pattern, sign in _SPOKEN:
        text = re.sub(pattern, sign, text)
    for match in _SUM.finditer(text):
        source = match[0].strip()
        with suppress(
            ValueError, SyntaxError, ArithmeticError, TypeError, RecursionError, MemoryError
        ):
            figure = _figure(ast.parse(source[:200], mode="eval").body)
            shown = f"{source} = " if text == typed else ""
            return f"{shown}**{number_text(figure)}**"
    return ""


def _repeated_text(prompt: str) -> str:
    """Return the text that the person wants to be said: `Say hello`; empty without one."""
    match = re.fullmatch(
        r"\s*(?:please |bitte )?(?:say|sag|echo|repeat(?: after me)?|wiederhole)\b[:\s]+(.{1,500}?)\s*",
        prompt,
        re.IGNORECASE | re.DOTALL,
    )
    return match[1].strip("'\"“”„") if match else ""


def _figure(node: ast.expr) -> float:
    """Compute a sum of numbers. Raises ValueError for anything else and for huge numbers."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # pyright: ignore[reportReturnType]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_figure(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _figure(node.left), _figure(node.right)
        if isinstance(node.op, ast.Pow) and (abs(right) > 64 or abs(left) > _MAX_FIGURE):
            raise ValueError("too large")
        figure = _OPERATORS[type(node.op)](left, right)
        if isinstance(figure, int | float) and abs(figure) < _MAX_FIGURE**2:
            return figure
    raise ValueError("no sum")


def _attached_files(request: ChatRequest) -> str:
    """Return the beginning of the text files attached to the last prompt."""
    last = [message.content for message in request.messages if message.role == "user"][-1:]
    files = [part for part in last[0] if isinstance(part, TextPart) and part.name] if last else []
    return "\n\n".join(f"Attached is `{file.name}`:\n\n{long_text(file.text)}" for file in files)


_ASKS_WHO = re.compile(
    r"\A\W*(?:hi|hello|hey|hallo|guten \w+|good (?:morning|evening|day)|thanks?|danke)\b"
    r"|\b(?:what can you|who are you|what are you|help|which tools|what tools|was kannst du|wer bist du"
    r"|hilfe)\b",
    re.IGNORECASE,
)


def _introduction(talk: _Conversation, tools: Iterable[ToolSpec], note: str) -> str:
    """Say that this is a stand-in, why it cannot answer, and what it needs."""
    tables = [table for table in talk.prompt.tables if table.columns]
    named = ", ".join(f"`{tool.name}`" for tool in list(tools)[:8]) or "none"
    usage = (
        "Use words of a tool's name and give its arguments as names, numbers or quoted text, or"
        ' write the call itself in backticks, as in `` `population(city="Oslo")` ``.'
    )
    about = note or (table_help(tables) if tables else "No rule of mine fits your words.")
    if not note and _ASKS_WHO.search(talk.prompt.text):
        about = "My answers follow rules for words."
    return (
        f"I am `offline:demo`, a rule-based stand-in and not a language model. {about}\n\n"
        f"The tools here: {named}. {usage} I can also compute, count, answer simple questions"
        " about a table in the prompt, or write a long text.\n\nFor a language model choose one"
        " with `--model PROVIDER:MODEL`; `%agent models` lists what can be asked here."
    )
