"""Choose tools by the words of a prompt: their names, descriptions and arguments.

Plans calls; `argument_values` fills them. nbagent's own tools have sentences of their own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from nbagent.contracts.canonical import dump_json, load_json
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.schema_walk import property_schemas
from nbagent.providers.offline.argument_values import Parameter, fill, parameters_of
from nbagent.providers.offline.call_results import PlannedCall
from nbagent.providers.offline.clear_calls import unclear_call
from nbagent.providers.offline.plain_answers import plain_answer
from nbagent.providers.offline.prompt_values import (
    Value,
    choices_in,
    literal,
    spaced_units,
    values_in,
    without_backticks,
    without_quotes,
)
from nbagent.providers.offline.typed_prompt import Table, TypedPrompt
from nbagent.providers.offline.understanding import CANNOT, refusal_to_act
from nbagent.providers.offline.vocabulary import is_known, is_misspelt, meanings, words_in

_NAME_WEIGHT = 3
"""Weight of a word in a tool's name; a word of its description has weight 1."""
_WHOLE_NAME_WEIGHT = 6
_CHOICE_WEIGHT = 1.5
_NEAR_BEST = 0.75
"""Smallest share of the best score at which a tool is taken because the best lacks a value."""
_MIN_SCORE = 2
"""Fewest points of a tool whose name has no word of the prompt, and that takes no value of it."""
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
    "fs.write": rf"\b(?:write|save|schreibe?)\s+{_Q}(?P<content>.+?){_Q}"
    rf"\s+(?:(?:in)?to|in|nach)\s+{_FILE}",
    "fs.apply_patch": rf"\b(?:replace|ersetze)\s+{_Q}?(?P<oldText>.{{1,80}}?){_Q}?"
    rf"\s+(?:with|by|durch)\s+{_Q}?(?P<newText>.{{1,80}}?){_Q}?\s+in\s+{_FILE}",
    "fs.search": rf"\b(?:search|find|grep|look|suche?|finde)\b(?:\s+(?:for|nach))?\s+{_Q}?"
    rf"(?P<query>[^'\"`?]+?){_Q}?(?:\s+in\s+{_FILE})?\s*[.?!]*$",
    "list_skills": r"\bskills\b",
    "get_skill": rf"\bskill\s+{_Q}?(?P<skill_name>[\w-]+)",
    "nb.set": rf"\b(?:set|setze)\s+{_VARIABLE}\s+(?:to|auf)\s+(?P<value>.+?)\s*$",
    "nb.run": r"\b(?:run|execute|führe)\b[^`]*(?P<code>```.+?```|`[^`]+`)",
    "nb.variables": r"\b(?:variables|variablen)\b",
    "nb.inspect": r"\b(?:(?:what|was)\s+(?:is|ist)(?:\s+in)?|inspect|describe)\s+"
    rf"{_VARIABLE}\s*[.?!]*$",
    "fs.read": r"\b(?:read|open|show|says?|does|in|summari[sz]e|lies|zeige?|öffne|steht)\b.*?"
    r"(?P<path>@[\w-]+/[\w./~-]+|[\w./~-]*\w\.[A-Za-z]\w*)",
    "fs.list": rf"\b(?:list|which|what|welche)\b.*\b(?:files|dateien)\b(?:.*?\bin\s+{_FILE})?",
}
"""Sentences for nbagent's own tools, by tool. The groups are the arguments."""


@dataclass(frozen=True, slots=True)
class Conversation:
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

    @property
    def tables(self) -> list[Table]:
        """Tables of the last prompt that has some."""
        prompts = (*self.before, self.prompt)
        with_tables = [prompt.tables for prompt in prompts if prompt.tables]
        return with_tables[-1] if with_tables else []


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls that the rules would make, and the reason."""

    planned: Sequence[PlannedCall] = ()
    why: str = "There is no tool to choose from."
    note: str = ""
    reuses: bool = False
    """An earlier result may be used again. Not for files and variables, which change."""
    is_certain: bool = False
    """The whole sentence is understood."""


def last_calls(earlier: Sequence[PlannedCall]) -> list[PlannedCall]:
    """Return the calls of the tool that was called last, each once."""
    last = {made.key: made for made in earlier if made.tool == earlier[-1].tool}
    return list(last.values())


def plan_calls(talk: Conversation, tools: dict[str, ToolSpec], *, forced: bool) -> Plan:
    """Plan calls: those written in the prompt, else a known sentence, else the best tools.

    Nothing is called for a negated sentence, a question about an act, or a part of the words.
    """
    if not tools:
        return Plan()
    prompt = talk.prompt.text
    if forced:
        return _best_tools(talk, tools, forced=True)
    plan = _plan(talk, tools)
    if plan.planned and (refusal := refusal_to_act(prompt)):
        return Plan((), refusal, refusal)
    if not plan.planned or plan.is_certain:
        return plan
    values = _typed_values(talk, tools.values())[1]
    unclear = unclear_call(plan.planned, tools, prompt, values)
    return Plan((), unclear, unclear) if unclear else plan


def _plan(talk: Conversation, tools: dict[str, ToolSpec]) -> Plan:
    prompt = talk.prompt.text
    if written := _written_calls(prompt, tools):
        return Plan(written, "The prompt contains the call.", is_certain=True)
    best = _best_tools(talk, tools, forced=False)
    used = {planned.tool for planned in best.planned}
    if len(used) > 1:
        parts = _plan_of_parts(talk, tools)
        if parts is None and len(best.planned) > len(used):
            unclear = f"{CANNOT}: I do not know which value belongs to which of the tools."
            return Plan((), unclear, unclear)
        best = parts or best
    own = used - _SENTENCES.keys()
    is_named = any(meanings(name) & meanings(without_quotes(prompt)) for name in own)
    if not is_named and (sentence_calls := _sentence_calls(prompt, tools)):
        return Plan(sentence_calls, "My rules know this sentence.", is_certain=True)
    return best


_PARTS = (r"(?<=[?!.])\s+", r",?\s+\b(?:and|und|then|dann|sowie)\b\s+")


def _plan_of_parts(talk: Conversation, tools: dict[str, ToolSpec]) -> Plan | None:
    """Plan each part of a prompt that names a tool and its values: `A of Oslo and B of Rome`."""
    for pattern in _PARTS:
        parts = [part for part in re.split(pattern, talk.prompt.text) if part.strip()]
        alone = [
            replace(talk, prompt=replace(talk.prompt, text=part), earlier=[]) for part in parts[:8]
        ]
        plans = [_best_tools(part, tools, forced=False) for part in alone]
        are_filled = all(any(made.arguments for made in plan.planned) for plan in plans)
        if len(plans) > 1 and are_filled:
            planned = [made for plan in plans for made in plan.planned]
            return replace(plans[0], planned=planned, why=" ".join(plan.why for plan in plans))
    return None


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


def _best_tools(talk: Conversation, tools: dict[str, ToolSpec], *, forced: bool) -> Plan:
    """Choose the tool whose words the prompt uses most, and others that it names as well."""
    text, values = _typed_values(talk, tools.values())
    known = {word for tool in tools.values() for word in words_in(tool.name + tool.description)}
    candidates = [_candidate(tool, text, known) for tool in tools.values()]
    for candidate in candidates:
        defaults = _earlier_arguments(talk)
        candidate.sets, candidate.missing = fill(
            candidate.tool, text, values, talk.tables, forced=forced, defaults=defaults
        )
    order = sorted(candidates, key=lambda candidate: (-candidate.score, not candidate.sets))
    chosen = order[:1] if forced else _chosen(order, talk, text, values)
    why = _reason(chosen, values)
    if plain_answer(text) and not forced and order[0].score < _NAME_WEIGHT:
        return Plan(why=why)
    planned = [
        PlannedCall(candidate.tool.name, own) for candidate in chosen for own in candidate.sets
    ]
    note = "" if planned else _missing_text(order[0])
    return Plan(planned, why, note, reuses=True)


def _typed_values(talk: Conversation, tools: Iterable[ToolSpec]) -> tuple[str, list[Value]]:
    """Return the words of a person, and the values in them, without names of tools."""
    text, tables = spaced_units(talk.prompt.text), talk.tables
    names = [tool.name for tool in tools]
    tool_words = {own for name in names for own in meanings(name)}
    columns = {name for table in tables for name in table.columns}
    cells = [
        cell
        for table in tables
        for name in table.columns
        if not table.is_numeric(name)
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


def _candidate(tool: ToolSpec, text: str, known: set[str]) -> _Candidate:
    """Score a tool by the words of a prompt; `known` are the words of all tools."""
    plain = without_quotes(text)
    own, properties = meanings(plain), property_schemas(tool.parameters)
    name = meanings(tool.name)
    about = meanings(" ".join([tool.description, *properties])) - name
    in_name, matched = name & own, (name | about) & own
    unknown = {word for word in words_in(plain) if len(word) > 4 and not is_known(word)} - known
    for right in words_in(f"{tool.name} {' '.join(properties)}"):
        if any(is_misspelt(word, right) for word in unknown):
            matched |= meanings(right)
            in_name |= meanings(right) & name
    matched |= in_name
    score: float = _NAME_WEIGHT * len(in_name) + len(matched - in_name)
    if re.search(rf"(?<![\w.]){re.escape(tool.name)}(?![\w.]*\w)", plain, re.I):
        score += _WHOLE_NAME_WEIGHT
    choices = [parameter.choices for parameter in parameters_of(tool.parameters)]
    score += _CHOICE_WEIGHT * sum(bool(some and choices_in(text, some)) for some in choices)
    return _Candidate(tool, in_name, matched, score)


def _chosen(
    order: Sequence[_Candidate], talk: Conversation, text: str, values: Sequence[Value]
) -> list[_Candidate]:
    """Choose the best tool that can be filled, and others that the prompt names as well."""
    best = order[0]
    is_meant = best.in_name or best.score >= _MIN_SCORE or any(best.sets)
    if not best.score or not is_meant:
        return _by_values(order, talk, text, values)
    first, *others = [candidate for candidate in order if candidate.sets] or [best]
    is_near = first.score >= _NEAR_BEST * best.score and (best.sets or first.in_name)
    if not first.sets or not is_near:
        return []
    chosen, covered = [first], set(first.matched)
    for candidate in others:
        if candidate.in_name - covered and candidate.tool.name not in _SENTENCES:
            chosen.append(candidate)
            covered |= candidate.matched
    return chosen


def _by_values(
    order: Sequence[_Candidate], talk: Conversation, text: str, values: Sequence[Value]
) -> list[_Candidate]:
    """Choose a tool without a word for it: `And Rome?`, `Which of Oslo and Bergen is larger?`."""
    free = [
        candidate
        for candidate in order
        if candidate.tool.name not in _SENTENCES and any(candidate.sets)
    ]
    if not values or len(values) > _MAX_LISTED:
        return []
    n_words = len(text.split())
    if talk.earlier and (_FOLLOW_UP.match(text) or n_words <= _SHORT_WORDS):
        last = talk.earlier[-1].tool
        return [candidate for candidate in free if candidate.tool.name == last][:1]
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


def _earlier_arguments(talk: Conversation) -> dict[str, list[Any]]:
    """Return the arguments of the calls for the prompt before, by name."""
    defaults: dict[str, list[Any]] = {}
    for made in last_calls(talk.earlier):
        for name, value in made.used.items():
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
        candidate.tool.name
        + (f" (by the words {', '.join(sorted(candidate.matched))})" if candidate.matched else "")
        for candidate in chosen
    ]
    return f"Tools that fit the prompt: {', '.join(parts)}.{with_values}"


def _missing_text(best: _Candidate) -> str:
    if not best.missing or not (best.in_name or best.score >= _NAME_WEIGHT):
        return ""
    named = ", ".join(f"`{parameter.name}`" for parameter in best.missing)
    options = "".join(
        f" `{parameter.name}` is one of {', '.join(map(str, parameter.choices[:12]))}."
        for parameter in best.missing
        if parameter.choices
    )
    return f"`{best.tool.name}` needs {named}, which the prompt does not give.{options}"
