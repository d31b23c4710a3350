"""A server's JSON Schema in the subset that every wire takes (`reference/providers.md` 2.7).

Owns references, unions and bounds. What comes in is whatever a stranger wrote: it is walked once,
within a number of nodes and a depth, and what does not fit is left open. No call is checked with
it; that is the server's affair (and a pattern of its making could hang the check).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.tools.json_schema import wire_keys
from nbagent.tools.mcp.texts import visible

JsonSchema = dict[str, Any]
_MOST_NODES = 600
_DEEPEST = 10
_LARGEST_CHARS = 20_000
_DESCRIPTION_CHARS = (1_000, 160, 0)
"""Of a property; the later ones when the whole is too large with the earlier."""
_MOST_PROPERTIES = 200
_MOST_CHOICES = 100
_NAME_CHARS = 100
_VALUE_CHARS = 500
_PATTERN_CHARS = 200
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems")


@dataclass(frozen=True, slots=True)
class Shown:
    """A schema as the model is shown it."""

    schema: JsonSchema
    keys: Mapping[str, str]
    """The server's name of each parameter, by the name that the model is shown."""


def legal(schema: object) -> Shown:
    """The root as an object with legal names, all in it within bounds."""
    shown = Shown({"type": "object", "properties": {}}, {})
    for description_chars in _DESCRIPTION_CHARS:
        shown = _root(_Walker(schema, description_chars))
        if len(dump_json(shown.schema)) <= _LARGEST_CHARS:
            return shown
    # Names of parameters are worth more than what is inside them.
    properties = cast("dict[str, JsonSchema]", shown.schema["properties"])
    bare: dict[str, JsonSchema] = {k: _bare(v) for k, v in properties.items()}
    out: JsonSchema = {**shown.schema, "properties": bare}
    if len(dump_json(out)) > _LARGEST_CHARS:
        out = {"type": "object", "properties": {}}
    return Shown(out, shown.keys)


def _bare(node: JsonSchema) -> JsonSchema:
    kind = node.get("type")
    kept: JsonSchema = {"type": kind} if kind else {}
    return {**kept, "items": {}} if kind == "array" else kept


def _root(walker: _Walker) -> Shown:
    root = walker.merged(walker.whole)
    properties: dict[str, Any] = {}
    required: set[str] | None = None
    branches = [root, *_objects(root.get("anyOf")), *_objects(root.get("oneOf"))]
    for branch in branches:
        branch = walker.merged(branch) if branch is not root else root
        for name, item in (json_object(branch.get("properties")) or {}).items():
            properties.setdefault(name, item)
        if branch is not root:
            needed = _names(branch.get("required"))
            required = needed if required is None else required & needed
    needed = _names(root.get("required")) | (required or set())
    named = list(properties)[:_MOST_PROPERTIES]
    keys = wire_keys(named)
    out: JsonSchema = {"type": "object", "properties": {}}
    for name in named:
        node = walker.node(properties[name], 1)
        if keys[name] != name:
            told = (visible(name, _NAME_CHARS), node.get("description"))
            node["description"] = ": ".join(text for text in told if text) or "Has no name."
        out["properties"][keys[name]] = node
    if listed := [keys[name] for name in named if name in needed]:
        out["required"] = listed
    if root.get("additionalProperties") is False:
        out["additionalProperties"] = False
    return Shown(out, {ours: theirs for theirs, ours in keys.items()})


def _objects(value: object) -> list[JsonSchema]:
    items = cast("list[Any]", value)[:_MOST_CHOICES] if isinstance(value, list) else []
    return [cast("JsonSchema", item) for item in items if isinstance(item, dict)]


def _names(value: object) -> set[str]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return {item for item in items if isinstance(item, str)}


class _Walker:
    def __init__(self, schema: object, description_chars: int) -> None:
        self.whole: JsonSchema = json_object(schema) or {}
        self._description_chars = description_chars
        self._left = _MOST_NODES
        self._open: list[str] = ["#"]
        """References that are being followed."""

    def merged(self, node: JsonSchema, followed: list[str] | None = None) -> JsonSchema:
        """The node with its reference and its `allOf` taken in, one level.

        A reference that is being followed already is left open, as are those in `followed`, to
        which each one met is added.
        """
        followed = [] if followed is None else followed
        for _ in range(8):
            if "$ref" in node:
                reference = str(node["$ref"])
                seen = reference in self._open or reference in followed
                followed.append(reference)
                target = (None if seen else self._target(reference)) or {}
                node = {**target, **{k: v for k, v in node.items() if k != "$ref"}}
            elif isinstance(node.get("allOf"), list):
                parts = _objects(node["allOf"])
                rest = {k: v for k, v in node.items() if k != "allOf"}
                node = _joined([*parts, rest])
            else:
                return node
        return {k: v for k, v in node.items() if k not in ("$ref", "allOf")}

    def node(self, given: object, depth: int) -> JsonSchema:
        """One node, made legal."""
        self._left -= 1
        source = json_object(given)
        if source is None or self._left < 0 or depth > _DEEPEST:
            return {}
        followed: list[str] = []
        merged = self.merged(source, followed)
        before = len(self._open)
        self._open += followed
        out = self._filled(merged, depth)
        del self._open[before:]
        return out

    def _target(self, reference: str) -> JsonSchema | None:
        """What a reference within the schema names. Nothing is ever fetched."""
        if not reference.startswith("#/"):
            return None
        found: Any = self.whole
        for step in reference[2:].split("/")[:20]:
            step = step.replace("~1", "/").replace("~0", "~")
            found = (json_object(found) or {}).get(step)
        return json_object(found)

    def _filled(self, node: JsonSchema, depth: int) -> JsonSchema:
        out: JsonSchema = {}
        self._text(node, out)
        options = _objects(node.get("anyOf")) or _objects(node.get("oneOf"))
        kinds = node.get("type")
        if isinstance(kinds, list):
            kinds = cast("list[Any]", kinds)
            several = [kind for kind in kinds if isinstance(kind, str) and kind in _TYPES]
            rest = {k: v for k, v in node.items() if k not in ("type", "description", "title")}
            options = options or [{**rest, "type": kind} for kind in several]
        if options:
            made = _distinct([self.node(option, depth + 1) for option in options])
            if len(made) == 1:
                return {**made[0], **out}
            return {**out, "anyOf": made}
        kind = kinds if isinstance(kinds, str) and kinds in _TYPES else _guessed(node)
        if kind is not None:
            out["type"] = kind
        self._values(node, out)
        if kind in ("string", "number", "integer", "array", None):
            _bounds(node, out, kind)
        if kind == "object":
            self._object(node, out, depth)
        elif kind == "array":
            self._array(node, out, depth)
        return out

    def _text(self, node: JsonSchema, out: JsonSchema) -> None:
        said = node.get("description") or node.get("title")
        if isinstance(said, str) and self._description_chars:
            told = visible(said, self._description_chars)
            if told:
                out["description"] = told

    def _values(self, node: JsonSchema, out: JsonSchema) -> None:
        choices: Any = node.get("enum", [node["const"]] if "const" in node else None)
        if isinstance(choices, list):
            kept = [v for v in cast("list[Any]", choices)[:_MOST_CHOICES] if _is_short(v)]
            if kept and len(kept) == len(cast("list[Any]", choices)):
                out["enum"] = _distinct(kept)
        if "default" in node and _is_short(node["default"]):
            out["default"] = node["default"]

    def _object(self, node: JsonSchema, out: JsonSchema, depth: int) -> None:
        properties = json_object(node.get("properties")) or {}
        named = [name for name in properties if name == visible(name, _NAME_CHARS)]
        named = named[:_MOST_PROPERTIES]
        out["properties"] = {name: self.node(properties[name], depth + 1) for name in named}
        needed = _names(node.get("required"))
        if listed := [name for name in named if name in needed]:
            out["required"] = listed
        more = node.get("additionalProperties")
        if isinstance(more, bool):
            out["additionalProperties"] = more
        elif isinstance(more, dict):
            out["additionalProperties"] = self.node(cast("JsonSchema", more), depth + 1)

    def _array(self, node: JsonSchema, out: JsonSchema, depth: int) -> None:
        items = _objects(node.get("prefixItems")) or _objects(node.get("items"))
        if items:
            made = _distinct([self.node(item, depth + 1) for item in items])
            out["items"] = made[0] if len(made) == 1 else {"anyOf": made}
        else:
            out["items"] = self.node(node.get("items"), depth + 1)


def _joined(parts: list[JsonSchema]) -> JsonSchema:
    """What `allOf` says together, as far as one object can say it."""
    out: JsonSchema = {}
    for part in parts:
        for key, value in part.items():
            if key == "properties" and isinstance(out.get(key), dict) and isinstance(value, dict):
                out[key] = {**out[key], **cast("JsonSchema", value)}
            elif key == "required" and isinstance(out.get(key), list):
                out[key] = [*out[key], *sorted(_names(value))]
            else:
                out[key] = value
    return out


def _guessed(node: JsonSchema) -> str | None:
    if "properties" in node:
        return "object"
    return "array" if "items" in node or "prefixItems" in node else None


def _bounds(node: JsonSchema, out: JsonSchema, kind: str | None) -> None:
    for key in _NUMBERS if kind in ("number", "integer") else ():
        value = node.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value):
            # Not positive, it would be no schema.
            out.update({key: value} if key != "multipleOf" or value > 0 else {})
    for key in _COUNTS:
        value = node.get(key)
        fits = key.endswith("Items") == (kind == "array") and kind in ("string", "array")
        if fits and type(value) is int and 0 <= value < 2**31:
            out[key] = value
    if kind != "string":
        return
    if str(node.get("format")) in _FORMATS:
        out["format"] = str(node["format"])
    pattern = node.get("pattern")
    if isinstance(pattern, str) and len(pattern) <= _PATTERN_CHARS and "(?" not in pattern:
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError):
            return
        if pattern == visible(pattern, _PATTERN_CHARS):
            out["pattern"] = pattern


def _is_finite(value: float) -> bool:
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**53


def _is_short(value: Any) -> bool:
    """Whether it is plain JSON that shows nothing hidden."""
    if isinstance(value, str):
        return value == visible(value, _VALUE_CHARS)
    if isinstance(value, list | dict):
        return not value
    return value is None or isinstance(value, bool) or _is_finite(value)


def _distinct(items: list[Any]) -> list[Any]:
    seen: dict[bytes, Any] = {}
    for item in items:
        seen.setdefault(dump_json(item), item)
    return list(seen.values())
