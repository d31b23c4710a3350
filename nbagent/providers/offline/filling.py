"""Which values a prompt holds, and which argument of a tool takes which of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, cast

from nbagent.contracts.canonical import dump_json, json_object, load_json
from nbagent.contracts.chat import ToolSpec

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
_LEADS = {
    "from": _words("from source origin start"),
    "to": _words("to target destination end"),
    "in": _words("city place country location park"),
    "at": _words("place restaurant hotel"),
}
"""Words before a value, and words of the arguments that it then belongs to."""
_ENDINGS = ("ations", "ation", "ions", "ing", "ed", "es", "s", "e")
_STAND_INS: dict[str, Any] = {"integer": 1, "number": 1, "boolean": True, "object": {}}
_NEAR = 25
"""Characters between a value and a word that speaks of it."""
_MOST_CALLS = 16


@dataclass(frozen=True, slots=True)
class Value:
    """Something in a prompt that can be an argument."""

    kind: str
    text: str
    start: int
    before: str
    """The word before it; in a list of values, the one before the first."""


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    type: str
    """Of each item, for a list."""
    is_list: bool
    choices: list[Any]
    is_required: bool

    @property
    def kinds(self) -> tuple[str, ...]:
        words = set(_words(self.name))
        return next((kinds for names, kinds in _KINDS if words & set(names)), ())


def stem(word: str) -> str:
    """A word without its ending, so that `boils` meets `boiling`."""
    word = word.lower()
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    ends = (one for one in _ENDINGS if word.endswith(one) and len(word) - len(one) > 2)
    return word.removesuffix(next(ends, ""))


def stems(text: str) -> set[str]:
    """The stems of the words that mean something."""
    return {stem(word) for word in _words(text) if word not in _STOP_WORDS}


def spoken(prompt: str) -> str:
    """The prompt without its quotations, paths and code: what is said about them."""
    hidden = ("code", "text", "url", "path")
    return _VALUE.sub(lambda match: "" if match.lastgroup in hidden else match[0], prompt)


def unquoted(code: str) -> str:
    """Code without its backticks."""
    return re.sub(r"\A```\w*\n|\A`+|\s*`+\Z", "", code)


def literal(text: str) -> Any:
    """A value written as in JSON or Python; else the text."""
    for read in (load_json, ast.literal_eval):
        try:
            return load_json(dump_json(read(text)))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return text


def values_in(prompt: str, tool_stems: set[str]) -> list[Value]:
    """The values of a prompt in their order; words of a tool's name are no names of things."""
    found: list[Value] = []
    for match in _VALUE.finditer(prompt):
        kind, text, start = str(match.lastgroup), match[0], match.start()
        if kind == "name":
            text, start = _name(prompt, match, tool_stems)
        elif kind in ("text", "code"):
            text = unquoted(text) if kind == "code" else text[1:-1].strip()
        if text:
            found.append(Value(kind, text, start, _lead(prompt[:start], found)))
    return found


def _name(prompt: str, match: re.Match[str], tool_stems: set[str]) -> tuple[str, int]:
    """The name without words that only begin the sentence, and where it starts."""
    text, start = match[0], match.start()
    begins = prompt[:start].rstrip()[-1:] in ("", *".!?:")
    listed = re.match(r"\s*(?:,|or\b|and\b|\?|:|\Z)", prompt[match.end() :])
    while text:
        first, _, rest = text.partition(" ")
        is_order = first.lower() in _ORDERS or stem(first) in tool_stems
        is_alone = not rest and not listed
        if first.lower() not in _STOP_WORDS and not (begins and (is_order or is_alone)):
            break
        text, start, begins = rest, start + len(first) + 1, False
    return text, start


def _lead(said: str, found: Sequence[Value]) -> str:
    words = [word for word in re.findall(r"[a-z]+", said[-40:].lower()) if word not in ("the", "a")]
    if found and (said.rstrip().endswith(",") or words[-1:] in (["and"], ["or"])):
        return found[-1].before
    return words[-1] if words else ""


def fill(
    tool: ToolSpec, prompt: str, values: Sequence[Value], *, forced: bool = False
) -> tuple[list[dict[str, Any]], list[str]]:
    """Sets of arguments, one for each call, or the names of the required ones that are missing.

    Args:
        forced: the call is made anyway; a value that stands in is put where one is missing.
    """
    parameters = _parameters(tool)
    named = _named(parameters, re.sub("`[^`]*`", "", prompt))
    found = {name: [value] for name, value in named.items()}
    taken = {str(value).lower() for value in named.values()}
    left = [one for one in values if one.text.lower() not in taken]
    left = [one for one in left if not re.search(r"\w\s*=\s*[\"\[]?\Z", prompt[: one.start])]
    found |= _matched([one for one in parameters if one.name not in found], left, prompt)
    missing = [one for one in parameters if one.is_required and one.name not in found]
    for one in missing:
        rest = _rest(one, prompt)
        if forced or rest:
            stand_in: Any = [] if one.is_list else _STAND_INS.get(one.type, prompt[:200])
            found[one.name] = [rest or next(iter(one.choices), stand_in)]
    if gone := [one.name for one in missing if one.name not in found]:
        return [], gone
    names = [one.name for one in parameters if one.name in found]
    sets = product(*(found[name] for name in names))
    return [dict(zip(names, chosen, strict=True)) for chosen in islice(sets, _MOST_CALLS)], []


def _parameters(tool: ToolSpec) -> list[_Parameter]:
    properties = json_object(tool.parameters.get("properties")) or {}
    required = [str(name) for name in items(tool.parameters.get("required"))]
    made: list[_Parameter] = []
    for name in dict.fromkeys([*properties, *required]):
        schema = _resolved(properties.get(name), tool.parameters)
        is_list = _type_of(schema) == "array"
        item = _resolved(schema.get("items"), tool.parameters) if is_list else schema
        choices = [one for one in items(schema.get("enum")) if one is not None]
        made.append(_Parameter(name, _type_of(item), is_list, choices, name in required))
    return made


def _type_of(schema: dict[str, Any]) -> str:
    kinds = [one for one in [*items(schema.get("type")), schema.get("type")] if one != "null"]
    return str(next(iter(kinds), "null") or ("object" if "properties" in schema else "string"))


def _resolved(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """Follow `$ref`; of a union take the first member that is not null."""
    for _ in range(8):
        found = json_object(schema) or {}
        union = items(found.get("anyOf") or found.get("oneOf") or found.get("allOf"))
        if "$ref" in found:
            schema = root
            for key in str(found["$ref"]).removeprefix("#/").split("/"):
                schema = (json_object(schema) or {}).get(key)
        elif union:
            schema = next((one for one in union if one != {"type": "null"}), None)
        else:
            return found
    return {}


def items(value: Any) -> list[Any]:
    """The items of a JSON list; none for anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def _named(parameters: Sequence[_Parameter], prompt: str) -> dict[str, Any]:
    """Arguments that are written out: `rate=3.5`, a word of an enum, the name of a flag."""
    found: dict[str, Any] = {}
    for one in parameters:
        spaced = re.escape(one.name).replace("_", "[_ ]")
        said = re.search(rf"\b{spaced}\s*=\s*(\"[^\"]*\"|\[[^\]]*\]|[^\s,;]+)", prompt, re.I)
        named = [c for c in one.choices if re.search(rf"\b{re.escape(str(c))}\b", prompt, re.I)]
        if said and not one.choices:
            text = said[1].rstrip(".")
            found[one.name] = text.strip('"') if one.type == "string" else literal(text)
        elif named:
            found[one.name] = named[0]
        elif one.type == "boolean" and stem(one.name) in stems(prompt):
            denied = rf"\b(?:no|not|without)\s+{re.escape(one.name)}"
            found[one.name] = re.search(denied, prompt, re.I) is None
    return found


def _matched(
    parameters: Sequence[_Parameter], values: Sequence[Value], prompt: str
) -> dict[str, list[Any]]:
    """Values for each parameter, the best pairs first; several where a list belongs to it."""
    required = [one for one in parameters if one.is_required]
    pairs = [
        (-score, p, v)
        for p, one in enumerate(parameters)
        for v, value in enumerate(values)
        if (score := _suits(one, value, prompt)) >= (2 if required and not one.is_required else 1)
    ]
    taken: dict[int, list[int]] = {}
    used: set[int] = set()
    for _, p, v in sorted(pairs):
        if p not in taken and v not in used:
            taken[p] = [v]
            used.add(v)
    for _, p, v in sorted(pairs):
        if p in taken and v not in used:
            first, other = values[taken[p][0]], values[v]
            is_listed = other.before == first.before or len(required) == 1
            if other.kind == first.kind and is_listed:
                taken[p].append(v)
                used.add(v)
    given: dict[str, list[Any]] = {}
    for p, many in taken.items():
        one, texts = parameters[p], [values[v].text for v in sorted(many)]
        if one.type in ("integer", "number"):
            given[one.name] = [literal(text.replace(",", "")) for text in texts]
        else:
            given[one.name] = list(texts)
        if one.is_list:
            given[one.name] = [given[one.name]]
    return given


def _suits(parameter: _Parameter, value: Value, prompt: str) -> float:
    """How well a value suits: 0 = not at all, from 2 on also an argument that is not required."""
    kind, near = parameter.type, _nearness(parameter, value, prompt)
    if kind in ("integer", "number"):
        is_whole = value.kind == "number" and "." not in value.text
        return 1 + 2 * near if is_whole or (value.kind == kind == "number") else 0
    kinds = parameter.kinds
    if kind != "string" or parameter.choices or value.kind not in (kinds or _ANY_TEXT):
        return 0
    base = 3 - kinds.index(value.kind) / 2 if kinds else 1
    is_led = set(_words(parameter.name)) & set(_LEADS.get(value.before, ()))
    return base + near + (2 if is_led else 0)


def _nearness(parameter: _Parameter, value: Value, prompt: str) -> float:
    """1 = a word of the parameter's name stands beside the value, 0 = none is near."""
    own, low = stems(parameter.name), max(0, value.start - _NEAR)
    start, end = value.start - low, value.start - low + len(value.text)
    words = re.finditer(r"[^\W\d_]+", prompt[low : low + end + _NEAR])
    gaps = [max(start - one.end(), one.start() - end, 0) for one in words if stem(one[0]) in own]
    return max(0.0, 1 - min(gaps, default=_NEAR) / _NEAR)


def _rest(parameter: _Parameter, prompt: str) -> str | None:
    """The rest of the sentence: `birds in winter` in `search for birds in winter`."""
    no_words = parameter.is_list or parameter.type != "string" or parameter.choices
    if no_words or set(_words(parameter.name)) & {"id", "timezone"}:
        return None
    pattern = r"\b(?:of|for|about|in)\s+(?!(?:the|my)\b)([a-z][\w ]*?)\s*[.?!]*\Z"
    found = re.search(pattern, prompt[-300:])
    return found[1] if found else None
