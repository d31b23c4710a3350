"""A JSON Schema as models are shown it: in the subset that every wire takes, and within bounds.

Owns the one walker, for what pydantic makes of our own hints and for what a stranger's server sends
(`reference/providers.md` 2.7): references written out, `anyOf` only, no `const`, no `prefixItems`,
no `pattern`, plain JSON. What does not fit is left open. No call is checked with it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.secrets import redact_truncated
from nbagent.shown.texts import clean, cut_middle, without_codes

JsonSchema = dict[str, Any]
_MOST_NODES = 2_000
_LARGEST_CHARS = 20_000
_ATTEMPTS = ((20, 1_000), (6, 160), (2, 0), (0, 0))
"""Levels that are shown, and characters of a description; the next ones when the whole is too
large: names of parameters are worth more than what is inside them."""
_MOST_PROPERTIES = 200
_MOST_CHOICES = 500
_MOST_MERGED = 8
"""Levels of `allOf` and references in one node."""
_NAME_CHARS = 100
_VALUE_CHARS = 500
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_FORMATS = (
    *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"),
)
_OF_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_BOUNDS = {
    "number": _OF_NUMBERS,
    "integer": _OF_NUMBERS,
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
}
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_Walk = Callable[[object], JsonSchema]
"""What makes an inner node legal."""


class LegalSchema(NamedTuple):
    """A schema as the model is shown it."""

    schema: JsonSchema
    keys: Mapping[str, str]
    """The tool's own name of each parameter, by the name that the model is shown."""


def legal_schema(schema: object) -> LegalSchema:
    """The root as an object with legal names, all in it within bounds."""
    made = LegalSchema({}, {})
    for levels, description_chars in _ATTEMPTS:
        walker = _Walker(json_object(schema) or {}, description_chars)
        made = walker.root(levels)
        if walker.nodes <= _MOST_NODES and len(dump_json(made.schema)) <= _LARGEST_CHARS:
            return made
    bare: JsonSchema = {"type": "object", "properties": {key: {} for key in made.keys}}
    return LegalSchema(bare, made.keys)


def visible(text: str, budget_chars: int) -> str:
    """The text without control, direction and invisible characters, within a budget."""
    text = without_codes(clean(text[: 4 * budget_chars + 1_000]))
    # Control, format (directions, zero width, tags), surrogate, private use, unassigned.
    hidden = {c for c in set(text) - {"\n", "\t"} if unicodedata.category(c)[0] == "C"}
    text = text.translate(dict.fromkeys(map(ord, hidden)))
    return redact_truncated(cut_middle(text.strip(), budget_chars))


def _wire_keys(names: Sequence[str]) -> dict[str, str]:
    """The property that stands for each parameter: its name, where all wires take that."""
    keys = {name: name for name in names if _KEY.fullmatch(name)}
    for number, name in enumerate(names, 1):
        if name not in keys:
            key = re.sub(r"\W", "_", name[:60], flags=re.ASCII)
            key = key if _KEY.fullmatch(key.lstrip("_")) else f"arg{number}"
            while key in keys.values():
                key += "_"
            keys[name] = key
    return keys


class _Walker:
    """One walk over one schema. `above` are the references inside which a node stands."""

    def __init__(self, whole: JsonSchema, description_chars: int) -> None:
        self._whole = whole
        self._description_chars = description_chars
        self.nodes = 0

    def root(self, levels: int) -> LegalSchema:
        """The whole schema. The members of a union at its root are shown as one object."""
        root, above = self._merged(self._whole, ("#",))
        properties = dict(json_object(root.get("properties")) or {})
        for option in _objects(root.get("anyOf")) + _objects(root.get("oneOf")):
            member, _ = self._merged(option, above)
            properties = {**(json_object(member.get("properties")) or {}), **properties}
        named = list(properties)[:_MOST_PROPERTIES]
        keys = _wire_keys(named)
        out: JsonSchema = {"type": "object", "properties": {}}
        for name in named:
            node = self._node(properties[name], levels, above)
            if keys[name] != name:
                texts = (visible(name, _NAME_CHARS), node.get("description"))
                node["description"] = ": ".join(text for text in texts if text) or "Has no name."
            out["properties"][keys[name]] = node
        if required := [keys[name] for name in named if name in _names(root.get("required"))]:
            out["required"] = required
        _add_further_keys(root, out, lambda given: self._node(given, levels, above))
        return LegalSchema(out, {keys[name]: name for name in named})

    def _node(self, given: object, levels: int, above: tuple[str, ...]) -> JsonSchema:
        """One node, made legal, with so many levels of what is in it."""
        self.nodes += 1
        source = json_object(given)
        if source is None or self.nodes > _MOST_NODES:
            return {}
        again = source.get("$ref") in above
        node, above = self._merged(source, above)
        out = self._described(node)
        if again:
            name = str(source["$ref"]).rpartition("/")[2]
            _add_text(out, f"{visible(name, _NAME_CHARS)}, as above.")

        def inner(given: object) -> JsonSchema:
            return self._node(given, levels - 1, above)

        options = _objects(node.get("anyOf")) or _objects(node.get("oneOf"))
        kind = node.get("type")
        if isinstance(kind, list) and not options:
            rest = {key: value for key, value in node.items() if key not in ("type", "description")}
            kinds = [one for one in cast("list[Any]", kind) if isinstance(one, str)]
            options = [{**rest, "type": one} for one in kinds if one in _TYPES]
        if options and levels > 0:
            made = _distinct([inner(option) for option in options])
            return {**made[0], **out} if len(made) == 1 else {**out, "anyOf": made}
        if not isinstance(kind, str) or kind not in _TYPES:
            kind = "object" if "properties" in node else None
            kind = "array" if "items" in node or "prefixItems" in node else kind
        if kind is not None and not options:
            out.update({"type": kind, **_bounds(node, kind)})
        if kind == "object" and levels > 0:
            _add_object(node, out, inner)
        elif kind == "array":
            _add_items(node, out, inner if levels > 0 else lambda given: {})
        return out

    def _merged(
        self, node: JsonSchema, above: tuple[str, ...], levels: int = _MOST_MERGED
    ) -> tuple[JsonSchema, tuple[str, ...]]:
        """The node with its reference and its `allOf` taken in, and what it stands inside then.

        Of what it stands inside already only the type is taken in.
        """
        parts = _objects(node.get("allOf"))
        reference = node.get("$ref")
        if isinstance(reference, str):
            target = self._target(reference) or {}
            if reference in above:
                target = {"type": target["type"]} if "type" in target else {}
            above = (*above, reference)
            parts.insert(0, target)
        out: JsonSchema = {}
        for part in parts if levels else ():
            merged, above = self._merged(part, above, levels - 1)
            out = _joined(out, merged)
        own = {key: value for key, value in node.items() if key not in ("$ref", "allOf")}
        return _joined(out, own), above

    def _target(self, reference: str) -> JsonSchema | None:
        """What a reference within the schema names. Nothing is ever fetched."""
        start, *steps = reference.split("/")
        found = self._whole if start == "#" else None
        for step in steps:
            found = json_object((found or {}).get(step.replace("~1", "/").replace("~0", "~")))
        return found

    def _described(self, node: JsonSchema) -> JsonSchema:
        """What is said of a node beside its form: description, choices, default."""
        out: JsonSchema = {}
        said = node.get("description")
        if self._description_chars and isinstance(said, str):
            text = visible(said, self._description_chars)
            out.update({"description": text} if text else {})
        choices: Any = node.get("enum", [node["const"]] if "const" in node else None)
        if choices and isinstance(choices, list) and _is_plain(cast("Any", choices)):
            out["enum"] = _distinct(cast("list[Any]", choices))
        if "default" in node and _is_plain(node["default"]):
            out["default"] = node["default"]
        return out


def _add_object(node: JsonSchema, out: JsonSchema, inner: _Walk) -> None:
    properties = json_object(node.get("properties")) or {}
    named = [name for name in properties if name == visible(name, _NAME_CHARS)]
    named = named[:_MOST_PROPERTIES]
    if properties or "additionalProperties" not in node:
        out["properties"] = {name: inner(properties[name]) for name in named}
    if required := [name for name in named if name in _names(node.get("required"))]:
        out["required"] = required
    _add_further_keys(node, out, inner)


def _add_further_keys(node: JsonSchema, out: JsonSchema, inner: _Walk) -> None:
    further = node.get("additionalProperties")
    if isinstance(further, bool):
        out["additionalProperties"] = further
    elif (schema := json_object(further)) is not None:
        out["additionalProperties"] = inner(schema)
    if keys := inner(node.get("propertyNames")).get("enum"):
        _add_text(out, f"Keys: {', '.join(map(repr, keys))}.")


def _add_items(node: JsonSchema, out: JsonSchema, inner: _Walk) -> None:
    made = [inner(item) for item in _objects(node.get("prefixItems")) or [node.get("items")]]
    distinct = _distinct(made)
    out["items"] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
    if len(distinct) > 1:
        words = (str(item.get("type", "anything")) for item in made)
        _add_text(out, f"In this order: {', '.join(words)}.")


def _add_text(out: JsonSchema, text: str) -> None:
    out["description"] = f"{out['description']} {text}" if "description" in out else text


def _objects(value: object) -> list[JsonSchema]:
    items = cast("list[Any]", value)[:_MOST_CHOICES] if isinstance(value, list) else []
    return [cast("JsonSchema", item) for item in items if isinstance(item, dict)]


def _names(value: object) -> set[str]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return {item for item in items if isinstance(item, str)}


def _joined(first: JsonSchema, second: JsonSchema) -> JsonSchema:
    """What two schemas say together, as far as one object can say it."""
    out = {**first, **second}
    if "properties" in first and "properties" in second:
        both = (json_object(first["properties"]) or {}, json_object(second["properties"]) or {})
        out["properties"] = {**both[0], **both[1]}
    if "required" in first and "required" in second:
        out["required"] = sorted(_names(first["required"]) | _names(second["required"]))
    return out


def _bounds(node: JsonSchema, kind: str) -> JsonSchema:
    out: JsonSchema = {}
    for key in _BOUNDS.get(kind, ()):
        value = node.get(key)
        counts = isinstance(value, int) and value >= 0
        if type(value) in (int, float) and _is_plain(value) and (key in _OF_NUMBERS or counts):
            out[key] = value
    if kind == "string" and node.get("format") in _FORMATS:
        out["format"] = node["format"]
    return out


def _is_plain(value: Any, depth: int = 4) -> bool:
    """Whether it is short, plain JSON that shows nothing hidden."""
    if isinstance(value, str):
        return value.strip() == visible(value, _VALUE_CHARS)
    if isinstance(value, int | float):
        return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**53
    if isinstance(value, dict):
        value = [item for pair in cast("JsonSchema", value).items() for item in pair]
    if not isinstance(value, list):
        return value is None
    items = cast("list[Any]", value)
    few = depth > 0 and len(items) <= _MOST_CHOICES
    return few and all(_is_plain(item, depth - 1) for item in items)


def _distinct(items: list[Any]) -> list[Any]:
    return list({dump_json(item): item for item in items}.values())
