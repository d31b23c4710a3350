"""Which values a prompt holds, and which argument of a tool takes which of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

from nbagent.contracts.canonical import json_object, load_json
from nbagent.contracts.chat import ToolSpec

_VALUE = re.compile(
    r"(?P<code>```.+?```|`[^`\n]+`)"
    r"|(?P<text>(?<!\w)['‘\"“][^'’\"”\n]+['’\"”](?!\w))"
    r"|(?P<url>https?://[^\s]+[^\s.,;:!?)])"
    r"|(?P<email>(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
    r"|(?P<path>(?<![\w.~-])@?[\w.~-]*(?:/[\w.~-]+)+/?|(?<!\w)@[\w-]+|\b[\w-]+\.[a-z]{1,5}\b)"
    r"|(?P<date>\b(?:\d{4}-\d\d-\d\d|\d{1,2}:\d\d|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|today"
    r"|tomorrow)\b)"
    r"|(?P<id>\b(?=[\w-]*\d)[A-Za-z][\w-]*|\b[^\W_]+_\w+)"
    r"|(?P<number>(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?)"
    r"|(?P<name>(?<!\w)[A-Z][^\W\d_]+(?:[ -](?:(?:of|de|la) )?[A-Z][^\W\d_]+)*)",
    re.DOTALL,
)
_STOP_WORDS = frozenset(
    "a an the of in on at to for from and or is are was be do does did has have what which who how"
    " where when why i you it this that there many much more most than".split()
)
_ORDERS = frozenset(
    "ask book compare convert count describe download fetch find get give list look make plant read"
    " run search send set show tell use write".split()
)
"""Verbs that begin a sentence with a capital and belong to no name."""
_KINDS = (
    ("path file filename folder directory repo", ("path", "text", "name")),
    ("url uri link", ("url", "text")),
    ("email mail recipient", ("email", "name", "text")),
    ("timezone zone", ("path", "text")),
    ("date day when time", ("date", "text")),
    ("code expression formula sql command", ("code", "text")),
    ("text message body content query question pattern", ("text", "code")),
    ("id ticket number", ("id", "number", "text")),
)
"""Words of an argument's name, and the kinds of values that it takes, the likeliest first."""
_ANY_TEXT = ("name", "text", "id", "path")
_LEADS = {
    "from": frozenset(("from", "source", "origin", "start")),
    "to": frozenset(("to", "target", "destination", "end")),
    "in": frozenset(("city", "place", "country", "location", "park")),
    "at": frozenset(("place", "restaurant", "hotel")),
}
"""Words before a value, and words of the arguments that it then belongs to."""
_ENDINGS = (("ies", "y"), ("ations", ""), ("ation", ""), ("ions", ""), ("ing", ""), ("ed", ""))
_STAND_INS: dict[str, Any] = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
_NEAR = 25
_MOST_CALLS = 16


@dataclass(frozen=True, slots=True)
class Value:
    """Something in a prompt that can be an argument."""

    kind: str
    text: str
    start: int
    before: str
    """The word before it; in a list of values, the one before the first."""

    @property
    def number(self) -> int | float:
        """What a value of the kind `number` stands for."""
        text = self.text.replace(",", "")
        return float(text) if "." in text else int(text)


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    schema: dict[str, Any]
    is_required: bool

    @property
    def type(self) -> str:
        kind = self.schema.get("type")
        if isinstance(kind, list):
            kind = next((one for one in cast("list[Any]", kind) if one != "null"), None)
        return str(kind or ("object" if "properties" in self.schema else "string"))

    @property
    def choices(self) -> list[Any]:
        if "const" in self.schema:
            return [self.schema["const"]]
        listed: Any = self.schema.get("enum")
        return [one for one in listed if one is not None] if isinstance(listed, list) else []

    @property
    def words(self) -> set[str]:
        return set(_words(f"{self.name} {self.schema.get('format', '')}"))


def stem(word: str) -> str:
    """A word without its ending, so that `boils` meets `boiling`."""
    word = word.lower()
    for end, instead in (*_ENDINGS, ("es", ""), ("s", ""), ("e", "")):
        if word.endswith(end) and len(word) - len(end) > 2:
            return word[: -len(end)] + instead
    return word


def stems(text: str) -> set[str]:
    """The stems of the words that mean something; `snake_case` and `camelCase` are several."""
    return {stem(word) for word in _words(text) if word not in _STOP_WORDS}


def spoken(prompt: str) -> str:
    """The prompt with its quotations, paths and code blanked: what is said about them."""
    hidden = ("code", "text", "url", "path")
    return _VALUE.sub(lambda m: " " * len(m[0]) if m.lastgroup in hidden else m[0], prompt)


def values_in(prompt: str, tool_stems: set[str]) -> list[Value]:
    """The values of a prompt in their order; words of a tool's name are no names of things."""
    found: list[Value] = []
    for match in _VALUE.finditer(prompt):
        kind, text, start = str(match.lastgroup), match[0], match.start()
        if kind == "name":
            text, start = _name(prompt, match, tool_stems)
        elif kind == "text":
            text = text[1:-1].strip()
        elif kind == "code":
            text = re.sub(r"\A```\w*\n|\A`+|\s*`+\Z", "", text)
        if text:
            found.append(Value(kind, text, start, _lead(prompt[:start], found)))
    return found


def _name(prompt: str, match: re.Match[str], tool_stems: set[str]) -> tuple[str, int]:
    """The name without words that only begin the sentence, and where it starts."""
    text, start = match[0], match.start()
    begins = not prompt[:start].strip() or prompt[:start].rstrip()[-1] in ".!?:"
    listed = re.match(r"\s*(?:,|or\b|and\b|\?|:|\Z)", prompt[match.end() :])
    while text:
        first, _, rest = text.partition(" ")
        is_order = first.lower() in _ORDERS or stem(first) in tool_stems
        alone = not rest and not listed
        if first.lower() not in _STOP_WORDS and not (begins and (is_order or alone)):
            break
        text, start, begins = rest, start + len(first) + 1, False
    return text, start


def _lead(said: str, found: Sequence[Value]) -> str:
    words = [word for word in re.findall(r"[a-z]+", said[-40:].lower()) if word not in ("the", "a")]
    last = words[-1] if words else ""
    if found and (said.rstrip().endswith(",") or last in ("and", "or")):
        return found[-1].before
    return last


def fill(
    tool: ToolSpec, prompt: str, values: Sequence[Value], *, forced: bool = False
) -> tuple[list[dict[str, Any]], list[str]]:
    """Sets of arguments, one for each call, or the names of the required ones that are missing.

    Args:
        forced: the call is made anyway; a value that stands in is put where one is missing.
    """
    parameters = _parameters(tool)
    fixed = _named(parameters, prompt)
    left = [one for one in values if not _is_in(one, fixed, prompt)]
    open_ones = [one for one in parameters if one.name not in fixed]
    for one in open_ones:
        if one.type == "array" and (one.is_required or re.search(rf"\b{one.name}\b", prompt)):
            item = _Parameter(one.name, _resolved(one.schema.get("items"), {}), True)
            taken = [value for value in left if _suits(item, value, prompt)]
            if taken:
                fixed[one.name] = [_typed(item, value) for value in taken]
                left = [value for value in left if value not in taken]
    several = _matched([one for one in open_ones if one.name not in fixed], left, prompt)
    missing = [
        one for one in parameters if one.is_required and one.name not in {**fixed, **several}
    ]
    for one in missing:
        rest = None if forced else _rest(one, prompt)
        if forced or rest is not None:
            fixed[one.name] = _stand_in(one, prompt) if forced else rest
    if gone := [one.name for one in missing if one.name not in fixed]:
        return [], gone
    names = [one.name for one in parameters if one.name in fixed or one.name in several]
    choices = [[fixed[name]] if name in fixed else several[name] for name in names]
    sets = [dict(zip(names, chosen, strict=True)) for chosen in product(*choices)]
    return sets[:_MOST_CALLS], []


def _parameters(tool: ToolSpec) -> list[_Parameter]:
    properties = json_object(tool.parameters.get("properties")) or {}
    required = list(map(str, tool.parameters.get("required") or ()))
    return [
        _Parameter(name, _resolved(properties.get(name), tool.parameters), name in required)
        for name in dict.fromkeys([*properties, *required])
    ]


def _resolved(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """Follow `$ref`; of a union take the first member that is not null."""
    for _ in range(8):
        found = json_object(schema) or {}
        union: Any = found.get("anyOf") or found.get("oneOf") or found.get("allOf")
        if isinstance(reference := found.get("$ref"), str):
            schema = root
            for key in reference.removeprefix("#/").split("/"):
                schema = (json_object(schema) or {}).get(key)
        elif isinstance(union, list) and union:
            members = [json_object(one) or {} for one in cast("list[Any]", union)]
            schema = next((one for one in members if one.get("type") != "null"), {})
        else:
            return found
    return {}


def _named(parameters: Sequence[_Parameter], prompt: str) -> dict[str, Any]:
    """Arguments that are written out: `rate=3.5`, a word of an enum, the name of a flag."""
    found: dict[str, Any] = {}
    for one in parameters:
        spaced = re.escape(one.name).replace("_", "[_ ]")
        said = re.search(rf"\b{spaced}\s*[=:]\s*(\"[^\"]*\"|\[[^\]]*\]|[^\s,;]+)", prompt, re.I)
        named = [c for c in one.choices if re.search(rf"\b{re.escape(str(c))}\b", prompt, re.I)]
        if said and not one.choices:
            found[one.name] = _from_text(said[1].rstrip("."), one)
        elif named:
            found[one.name] = named[0]
        elif one.type == "boolean" and stem(one.name) in stems(prompt):
            denied = rf"\b(?:no|not|without)\s+{re.escape(one.name)}"
            found[one.name] = re.search(denied, prompt, re.I) is None
    return found


def _from_text(text: str, parameter: _Parameter) -> Any:
    try:
        value = load_json(text)
    except (ValueError, RecursionError):
        return text
    return value if parameter.type != "string" or isinstance(value, str) else text


def _is_in(value: Value, fixed: dict[str, Any], prompt: str) -> bool:
    """Whether a value is already an argument: it was named, or it is a word of an enum."""
    if re.search(r"[\w\]]\s*=\s*[\"\[]?\Z", prompt[: value.start]):
        return True
    return any(value.text.lower() == str(one).lower() for one in fixed.values())


def _matched(
    parameters: Sequence[_Parameter], values: Sequence[Value], prompt: str
) -> dict[str, list[Any]]:
    """Values for each parameter, the best pairs first; several where a list belongs to it."""
    any_required = any(one.is_required for one in parameters)
    pairs = [
        (-score, not one.is_required, p, v)
        for p, one in enumerate(parameters)
        for v, value in enumerate(values)
        if (score := _suits(one, value, prompt)) >= (2 if any_required > one.is_required else 1)
    ]
    first: dict[int, int] = {}
    for _, _, p, v in sorted(pairs):
        if p not in first and v not in first.values():
            first[p] = v
    taken = {p: [v] for p, v in first.items()}
    for v, value in enumerate(values):
        for p, (chosen, *_) in taken.items():
            known = values[chosen]
            belongs = value.before == known.before or sum(it.is_required for it in parameters) == 1
            if v not in first.values() and value.kind == known.kind and belongs:
                taken[p].append(v)
                break
    return {
        parameters[p].name: [_typed(parameters[p], values[v]) for v in sorted(many)]
        for p, many in taken.items()
    }


def _suits(parameter: _Parameter, value: Value, prompt: str) -> float:
    """How well a value suits: 0 = not at all, from 2 on also an argument that is not required."""
    near = _nearness(parameter, value, prompt)
    if parameter.type in ("integer", "number"):
        is_whole = value.kind == "number" and isinstance(value.number, int)
        fits = is_whole or (value.kind == "number" and parameter.type == "number")
        return (1 + (near and 1 + near)) if fits else 0
    if parameter.type != "string" or parameter.choices:
        return 0
    names = parameter.words
    known = next((kinds for words, kinds in _KINDS if names & set(words.split())), None)
    if value.kind not in (known or _ANY_TEXT):
        return 0
    base = 3 - known.index(value.kind) / 2 if known else 1
    return base + near + (2 if names & _LEADS.get(value.before, frozenset()) else 0)


def _nearness(parameter: _Parameter, value: Value, prompt: str) -> float:
    """1 = a word of the parameter's name stands beside the value, 0 = none is near."""
    own = stems(parameter.name)
    start, end = value.start, value.start + len(value.text)
    gaps = [
        max(start - low - word.end(), low + word.start() - end)
        for low in (max(0, start - _NEAR),)
        for word in re.finditer(r"[^\W\d_]+", prompt[low : end + _NEAR])
        if stem(word[0]) in own
    ]
    return max(0.0, 1 - max(0, min(gaps)) / _NEAR) if gaps else 0.0


def _typed(parameter: _Parameter, value: Value) -> Any:
    return value.number if parameter.type in ("integer", "number") else value.text


def _rest(parameter: _Parameter, prompt: str) -> str | None:
    """The rest of the sentence: `birds in winter` in `search for birds in winter`."""
    if parameter.type != "string" or parameter.words & {"id", "timezone"} or parameter.choices:
        return None
    found = re.search(
        r"\b(?:of|for|about|in)\s+(?!(?:the|my)\b)([a-z][\w ]*?)\s*[.?!]*\Z", prompt[-300:]
    )
    return found[1] if found else None


def _stand_in(parameter: _Parameter, prompt: str) -> Any:
    if parameter.choices:
        return parameter.choices[0]
    return _STAND_INS.get(parameter.type, prompt[:200])


def _words(text: str) -> Iterable[str]:
    return re.findall(r"[^\W\d_]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text).lower())
