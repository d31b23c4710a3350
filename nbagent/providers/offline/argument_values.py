"""Find the values of a prompt and fill a tool's arguments with them.

Works by patterns and names only; `demo` chooses the tool.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, cast

from nbagent.contracts.canonical import dump_json, json_object, load_json
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.schema_walk import first_member, property_schemas
from nbagent.providers.wires.tool_schemas import wire_schema

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
    """Words of a text in lower case; `snake_case` and `camelCase` are split."""
    return re.findall(r"[^\W\d_]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text).lower())


_STOP_WORDS = frozenset(
    _words(
        "a an the of in on at to for from and or is are was be do does did has have what which who"
        " how where when why i you it this that there many much more most than"
    )
)
_VERBS = frozenset(
    _words(
        "ask book compare convert count describe download fetch find get give hello hi list look"
        " make plant please read run search send set show tell thanks use write"
    )
)
"""Verbs that begin a sentence with a capital and are not part of a name."""
_KINDS = (
    (_words("path file filename folder directory repo"), ("path", "text", "name")),
    (_words("url uri link"), ("url", "text")),
    (_words("timezone zone"), ("path", "text")),
    (_words("date day when time"), ("date", "text")),
    (_words("code expression formula sql command"), ("code", "text")),
    (_words("text message body content query question pattern"), ("text", "code")),
    (_words("id ticket number"), ("id", "number", "text")),
)
"""Words of an argument's name, and the kinds of values that it takes, the most likely first."""
_ANY_TEXT = ("name", "text", "id", "path")
_DEFAULT_VALUES: dict[str, Any] = {"integer": 1, "number": 1, "boolean": True, "object": {}}
_NEAR_CHARS = 25
"""Largest distance in characters between a value and a word about it."""
_MAX_CALLS = 16


@dataclass(frozen=True, slots=True)
class Value:
    """A part of a prompt that can be an argument."""

    kind: str
    text: str
    start: int


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    type: str
    """Type; for a list the type of its items."""
    is_list: bool
    choices: list[Any]
    is_required: bool


def stem(word: str) -> str:
    """Stem of a word, so that `boils` matches `boiling`."""
    word = re.sub(r"ies\Z", "y", word.lower())
    return re.sub(r"(?<=\w\w\w)(?:ations?|ions|ing|ed|es|s|e)\Z", "", word)


def stems(text: str) -> set[str]:
    """Stems of the words, without stop words."""
    return {stem(word) for word in _words(text) if word not in _STOP_WORDS}


def without_quotes(prompt: str) -> str:
    """Prompt without its quotations, paths and code, which are values and not words about tools."""
    hidden = ("code", "text", "url", "path")
    return _VALUE.sub(lambda match: "" if match.lastgroup in hidden else match[0], prompt)


def without_backticks(code: str) -> str:
    """Code without its backticks."""
    return re.sub(r"\A```\w*\n|\A`+|\s*`+\Z", "", code)


def literal(text: str) -> Any:
    """Parse a Python literal; return the text if it is not one."""
    try:
        return load_json(dump_json(ast.literal_eval(text)))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def values_in(prompt: str, tool_stems: set[str]) -> list[Value]:
    """Find the values of a prompt in order; words of a tool's name are not values."""
    values: list[Value] = []
    for match in _VALUE.finditer(prompt):
        kind, text, start = str(match.lastgroup), match[0], match.start()
        if kind == "name":
            text, start = _name(prompt, match, tool_stems)
        elif kind in ("text", "code"):
            text = without_backticks(text) if kind == "code" else text[1:-1].strip()
        if text:
            values.append(Value(kind, text, start))
    return values


def _name(prompt: str, match: re.Match[str], tool_stems: set[str]) -> tuple[str, int]:
    """Return a name without words that only begin the sentence, and its start."""
    text, start = match[0], match.start()
    begins = prompt[:start].rstrip()[-1:] in ("", *".!?:")
    listed = re.match(r"\s*(?:,|or\b|and\b|\?|:|\Z)", prompt[match.end() :])
    while text:
        first, _, rest = text.partition(" ")
        is_order = first.lower() in _VERBS or stem(first) in tool_stems
        is_alone = not rest and not listed
        if first.lower() not in _STOP_WORDS and not (begins and (is_order or is_alone)):
            break
        text, start, begins = rest, start + len(first) + 1, False
    return text, start


def fill(
    tool: ToolSpec, prompt: str, values: Sequence[Value], *, forced: bool = False
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return arguments for each call, or the names of the missing required ones.

    Args:
        forced: the call is made anyway; missing values get a default.
    """
    parameters, left = _parameters(tool), list(values)
    required = [parameter for parameter in parameters if parameter.is_required]
    candidates: dict[str, list[Any]] = {}
    # Enums first, because their words are certain; then required arguments.
    for parameter in sorted(parameters, key=lambda one: (not one.choices, not one.is_required)):
        choices = [
            choice
            for choice in parameter.choices
            if re.search(rf"\b{re.escape(str(choice))}\b", prompt, re.I)
        ]
        if choices:
            candidates[parameter.name] = choices[:1]
            left = [value for value in left if value.text.lower() != str(choices[0]).lower()]
            continue
        suits = {value: _suitability(parameter, value, prompt) for value in left}
        best = max(left, key=lambda value: suits[value], default=None)
        if best and suits[best] >= (2 if required and not parameter.is_required else 1):
            takes_many = parameter.is_list or required == [parameter]
            alike = [value for value in left if suits[value] and value.kind == best.kind]
            chosen = alike if takes_many else [best]
            left = [value for value in left if value not in chosen]
            is_number = parameter.type in ("integer", "number")
            read = [
                literal(value.text.replace(",", "")) if is_number else value.text
                for value in chosen
            ]
            candidates[parameter.name] = [read] if parameter.is_list else read
        elif parameter.is_required and forced:
            stand_in: Any = (
                [] if parameter.is_list else _DEFAULT_VALUES.get(parameter.type, prompt[:200])
            )
            candidates[parameter.name] = [next(iter(parameter.choices), stand_in)]
    if missing := [parameter.name for parameter in required if parameter.name not in candidates]:
        return [], missing
    names = [parameter.name for parameter in parameters if parameter.name in candidates]
    sets = product(*(candidates[name] for name in names))
    return [dict(zip(names, chosen, strict=True)) for chosen in islice(sets, _MAX_CALLS)], []


def compose(schema: dict[str, Any], facts: Sequence[dict[str, Any]]) -> Any:
    """Compose a value for a schema from known facts; a list has one item per fact."""
    node = first_member(schema)
    kind = node.get("type")
    if kind == "array":
        item = json_object(node.get("items")) or {}
        return [compose(item, [fact]) for fact in facts] or [compose(item, ())]
    if kind != "object":
        choices = [*items(node.get("enum")), *([node["const"]] if "const" in node else [])]
        known = [value for fact in facts for value in fact.values() if _has_json_type(value, kind)]
        usual: Any = _DEFAULT_VALUES.get(str(kind), "unknown")
        return next(
            (value for value in known if value in choices), next(iter(choices or known), usual)
        )
    remaining = {name: value for fact in reversed(facts) for name, value in fact.items()}
    of_facts = {stem for name in remaining for stem in stems(name)}
    built: dict[str, Any] = {}
    properties = property_schemas(node)
    # Properties named like a fact take its value before the others.
    for name, own in sorted(properties.items(), key=lambda it: not stems(it[0]) & of_facts):
        inner = first_member(own)
        if inner.get("type") in ("array", "object"):
            built[name] = compose(inner, facts)
            continue
        near = {key: value for key, value in remaining.items() if stems(key) & stems(name)}
        built[name] = compose(inner, [near, remaining])
        taken = [key for key in (*near, *remaining) if remaining[key] == built[name]]
        remaining.pop(next(iter(taken), ""), None)
    return {name: built[name] for name in properties}


def _has_json_type(value: Any, kind: Any) -> bool:
    """True if a value has this scalar type of JSON Schema."""
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    types = {"string": str, "integer": int, "boolean": bool}
    return type(value) is types.get(kind)


def _parameters(tool: ToolSpec) -> list[_Parameter]:
    schema = wire_schema(tool.parameters, inline=True)
    properties = property_schemas(schema)
    required = [str(name) for name in items(schema.get("required"))]
    parameters: list[_Parameter] = []
    for name in dict.fromkeys([*properties, *required]):
        own = first_member(properties.get(name))
        is_list = own.get("type") == "array"
        item = first_member(own.get("items")) if is_list else own
        choices = [choice for choice in items(item.get("enum")) if choice is not None]
        kinds = items(item.get("type")) or [item.get("type", "string")]
        kind = next((str(kind_name) for kind_name in kinds if kind_name != "null"), "null")
        parameters.append(_Parameter(name, kind, is_list, choices, name in required))
    return parameters


def items(value: Any) -> list[Any]:
    """Items of a JSON list; none for anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def _suitability(parameter: _Parameter, value: Value, prompt: str) -> float:
    """Score a value for a parameter: 0 does not fit; 2 or more also fits an optional one.

    Up to 1 of it is for a word of the parameter's name near the value.
    """
    name_words = _words(parameter.name)
    own, low = {stem(word) for word in name_words}, max(0, value.start - _NEAR_CHARS)
    start, end = value.start - low, value.start - low + len(value.text)
    around = re.finditer(r"[^\W\d_]+", prompt[low : low + end + _NEAR_CHARS])
    gaps = [
        max(start - match.end(), match.start() - end, 0)
        for match in around
        if stem(match[0]) in own
    ]
    near = max(0.0, 1 - min(gaps, default=_NEAR_CHARS) / _NEAR_CHARS)
    if parameter.type in ("integer", "number"):
        is_whole = value.kind == "number" and "." not in value.text
        return 1 + 2 * near if is_whole or (value.kind == parameter.type == "number") else 0
    kinds = next((kinds for names, kinds in _KINDS if set(name_words) & set(names)), ())
    if parameter.type != "string" or parameter.choices or value.kind not in (kinds or _ANY_TEXT):
        return 0
    return near + (3 - kinds.index(value.kind) / 2 if kinds else 1)
