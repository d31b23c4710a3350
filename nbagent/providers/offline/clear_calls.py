"""Refuse planned calls that leave a part of the prompt out or have an unclear argument."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.model import ToolSpec
from nbagent.providers.offline.argument_values import Parameter, parameters_of
from nbagent.providers.offline.call_results import PlannedCall
from nbagent.providers.offline.prompt_values import Value, iso_date, number_of
from nbagent.providers.offline.understanding import CANNOT
from nbagent.providers.offline.vocabulary import meaning, meanings, word_set, words_in

_COMPUTED = re.compile(
    r"\b(?:ratio|percentage|percent|prozent\w*|share|proportion|anteil|verhältnis|fraction|sort|rank|sortiere"
    r"|(?:more|less|fewer|larger|bigger|mehr|weniger) (?:than|als)"
    r" (?:an? |ein\w* |half|double|twice|\d+(?! ?[a-z]* ?(?:than|als)))\w*)\b",
    re.IGNORECASE,
)
_CHAINED = re.compile(
    r"\bthen\b|\bdanach\b|\bthe result\b|\b(?:to|from|by|with) (?:that|it|this)\b", re.I
)
_TWO_QUESTIONS = re.compile(
    r"\b(?:and|und)\s+(?:how|what|which|who|where|when|is|are|wie|was|welche\w*|wer|wo|wann|ist)\b",
    re.I,
)
_AGGREGATED = re.compile(
    r"\b(?:total|sum|average|mean|summe|gesamt\w*|durchschnitt\w*|insgesamt)\b", re.I
)
_SWAPPED = re.compile(r"\b(?:subtract|subtrahiere|zieh\w*)\b.*\b(?:from|von)\b", re.I)
_UNITS = word_set("kg g lb oz km m cm mm mi ft inch l ml h min s")
_ACTS = word_set(
    "delete send write create update remove buy book pay post set move rename cancel drop place"
    " insert upload save edit clear kill schedule publish turn"
)
"""First words of the names of tools that change something."""
_VERBS = word_set("delete remove send write create update erase overwrite")
"""Words anywhere in such a name."""


def unclear_call(
    planned: Sequence[PlannedCall],
    tools: dict[str, ToolSpec],
    prompt: str,
    values: Sequence[Value],
) -> str:
    """Say why planned calls are not made: an unclear argument or words left over; else empty."""
    for made in planned:
        tool = tools[made.tool]
        for parameter in parameters_of(tool.parameters):
            if parameter.is_required and not _is_clear(parameter, made, tool, prompt):
                return f"`{tool.name}` needs `{parameter.name}`, which is not clear in the prompt."
    acting = [made for made in planned if _acts(tools[made.tool])]
    if acting and _QUESTION.match(prompt):
        return f"The sentence is a question, so I do not call `{acting[0].tool}`, which acts."
    if made_acts := [made for made in acting if not _is_ordered(tools[made.tool], prompt)]:
        return f"The sentence does not begin as an order for `{made_acts[0].tool}`, which acts."
    of_tools = {own for made in planned for own in _words_of(tools[made.tool])}
    if (match := _COMPUTED.search(prompt)) and not meanings(match[0]) & of_tools:
        return f"{CANNOT}: I did not understand “{match[0]}”."
    if len({made.tool for made in planned}) == 1 and (match := _TWO_QUESTIONS.search(prompt)):
        return f"{CANNOT}: I understood only one question; “{match[0]}” begins another."
    aggregated = _AGGREGATED.search(prompt) if len(planned) == 1 else None
    if aggregated and not meanings(aggregated[0]) & of_tools:
        return f"{CANNOT}: I did not understand “{aggregated[0]}”."
    if match := _CHAINED.search(prompt):
        return f"{CANNOT}: “{match[0]}” speaks of a result, and I make no call for a result."
    if _SWAPPED.search(prompt):
        return f"{CANNOT}: I do not know which of the numbers comes first."
    if left := _left_values(planned, values):
        return f"{CANNOT}: I did not understand {', '.join(f'“{text}”' for text in left[:4])}."
    return ""


_QUESTION = re.compile(
    r"\W*(?:who|when|where|what|why|how|which|was|were|did|does|do|has|have|had|is|are|wer|wann|wo"
    r"|was|warum|wie|welche\w*|hat|haben|hast|wurde\w*|ist|sind)\b|[^?]*\b(?:already|schon)\b",
    re.IGNORECASE,
)


def _acts(tool: ToolSpec) -> bool:
    """True if the name of a tool says that it changes something."""
    own = words_in(tool.name)
    return bool({*own[:1]} & _ACTS or {*own} & _VERBS)


_ORDER = re.compile(
    r"\W*(?:(?:please|bitte|now|jetzt|ok|okay|and|und|(?:can|could|would|will) you|kannst du"
    r"|könntest du)\W+)*([^\W\d_]+)",
    re.IGNORECASE,
)
_DO = word_set("mach mache stelle stell schalte schalt turn switch make put add use call run")


def _is_ordered(tool: ToolSpec, prompt: str) -> bool:
    """True if the first word of the sentence, but for a please, is the verb of the tool."""
    match = _ORDER.match(prompt)
    verb = match[1].lower() if match else ""
    return verb in _DO or meaning(verb) in meanings(tool.name) | meanings(tool.description)


def _words_of(tool: ToolSpec) -> set[str]:
    names = " ".join(parameter.name for parameter in parameters_of(tool.parameters))
    return meanings(f"{tool.name} {tool.description} {names}")


def _is_clear(parameter: Parameter, made: PlannedCall, tool: ToolSpec, prompt: str) -> bool:
    """True if a required argument is a value, and not a word of the tool or of the sentence."""
    value = made.arguments.get(parameter.name)
    if isinstance(value, int | float):
        return _has_same_unit(parameter, value, prompt)
    if not isinstance(value, str):
        return True
    own_words = words_in(value)
    if "date" in words_in(parameter.name) and parameter.type == "string":
        return not own_words or bool(re.search(r"\d", value))
    names = {
        own
        for argument in parameters_of(tool.parameters)
        for own in words_in(argument.name)
        if len(own) > 2
    }
    acts = _acts(tool)
    if acts and own_words and re.search(r"\b(?:with|and|mit|und)\b", value):
        return not names & {*own_words}
    is_label = bool(own_words) and {*own_words} <= names | {*words_in(tool.name)}
    return not (acts and is_label) and not (own_words and acts and own_words[0] in names)


def _has_same_unit(parameter: Parameter, value: float, prompt: str) -> bool:
    """True unless the number has another unit than the one in the argument's name."""
    wanted = [meaning(word) for word in words_in(parameter.name)[1:] if meaning(word) in _UNITS]
    if not wanted:
        return True
    for match in re.finditer(r"(-?\d+(?:[.,]\d+)*)\s*([a-z]+)\b", prompt, re.I):
        unit = meaning(match[2].lower())
        if number_of(match[1]) == value and unit in _UNITS and unit not in wanted:
            return False
    return True


def _left_values(planned: Sequence[PlannedCall], values: Sequence[Value]) -> list[str]:
    """Return numbers and dates of the prompt that are in no argument."""
    arguments = [value for made in planned for value in made.arguments.values()]
    shown = " ".join(dump_json(value).decode() for value in arguments).lower()
    numbers = {number_of(text) for text in re.findall(r"-?\d+(?:\.\d+)?", shown)}
    return [
        value.text
        for value in values
        if (value.kind == "number" and value.number not in numbers and value.text not in shown)
        or (value.kind == "date" and not _is_date_used(value.text, shown))
    ]


def _is_date_used(text: str, shown: str) -> bool:
    iso = iso_date(text)
    return text.lower() in shown or bool(iso and iso in shown)
