"""Convert JSON Schemas to the subset that every provider takes, within limits of size.

Used for the schemas of pydantic and for those of untrusted MCP servers: references are written out,
`oneOf` becomes `anyOf`, and `const`, `prefixItems`, `pattern` and the like are replaced or dropped.
A part that cannot be expressed accepts any value. Calls are not checked with the result.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.schema_walk import (
    inner_objects,
    property_schemas,
    reference_target,
    walk_schema,
)
from nbagent.contracts.secrets import redact_truncated
from nbagent.shown.texts import clean, cut_middle, without_codes

JsonSchema = dict[str, Any]
_MAX_NODES = 2_000
_MAX_SCHEMA_CHARS = 20_000
_DETAIL_LEVELS = ((20, 1_000), (6, 160), (2, 0), (0, 0))
"""Levels of nesting and characters of a description. The first pair whose schema is small enough is
used: the names of the parameters matter more to a model than the structure inside them."""
_MAX_PROPERTIES = 200
_MAX_CHOICES = 500
_MAX_MERGE_DEPTH = 8
"""Levels of `allOf` and references in one node."""
_NAME_CHARS = 100
_VALUE_CHARS = 500
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
# The formats that OpenAI's strict mode knows, and `uri`, which Anthropic knows too.
_FORMATS = (
    *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"),
)
_NUMBER_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_BOUNDS = {
    "number": _NUMBER_BOUNDS,
    "integer": _NUMBER_BOUNDS,
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
}
# Gemini takes letters, digits and _ in property names, Anthropic also . and -; both at most 64.
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class PortableSchema(NamedTuple):
    """A schema that every provider takes."""

    schema: JsonSchema
    own_names: Mapping[str, str]
    """The tool's own name of each parameter, by the name in the schema."""


def portable_schema(schema: object) -> PortableSchema:
    """Convert a schema; its root is always an object with property names that every provider takes.

    Anthropic takes only an object at the root, without `anyOf`; so does OpenAI's strict mode.
    """
    made = PortableSchema({}, {})
    for levels, description_chars in _DETAIL_LEVELS:
        converter = _Converter(json_object(schema) or {}, description_chars)
        made = converter.root(levels)
        if converter.nodes <= _MAX_NODES and len(dump_json(made.schema)) <= _MAX_SCHEMA_CHARS:
            return made
    bare: JsonSchema = {"type": "object", "properties": {key: {} for key in made.own_names}}
    return PortableSchema(bare, made.own_names)


def sanitize_text(text: str, budget_chars: int) -> str:
    """Remove control, direction and invisible characters; cut the middle of a long text.

    Invisible characters could hide instructions to the model from the person who approves a call.
    """
    # Cut before cleaning: an untrusted text may have megabytes.
    text = without_codes(clean(text[: 4 * budget_chars + 1_000]))
    # Category C: control, format (directions, zero width, tags), surrogate, private, unassigned.
    hidden = {c for c in set(text) - {"\n", "\t"} if unicodedata.category(c)[0] == "C"}
    text = text.translate(dict.fromkeys(map(ord, hidden)))
    return redact_truncated(cut_middle(text.strip(), budget_chars))


def _wire_keys(names: Sequence[str]) -> dict[str, str]:
    """Choose a property name for each parameter: its own name if every provider takes it."""
    keys = {name: name for name in names if _KEY.fullmatch(name)}
    for number, name in enumerate(names, 1):
        if name not in keys:
            key = re.sub(r"\W", "_", name[:60], flags=re.ASCII)
            key = key if _KEY.fullmatch(key.lstrip("_")) else f"arg{number}"
            while key in keys.values():
                key += "_"
            keys[name] = key
    return keys


class _State(NamedTuple):
    """Position of a node in the walk."""

    levels: int
    """Levels of nesting that may still be inside it."""
    open_references: tuple[str, ...]
    """References that the walk is inside of; they end recursion."""


class _Converter:
    """The hooks of one walk over one schema."""

    def __init__(self, root_schema: JsonSchema, description_chars: int) -> None:
        self._root_schema = root_schema
        self._description_chars = description_chars
        self.nodes = 0

    def root(self, levels: int) -> PortableSchema:
        """Convert the whole schema. A union at the root becomes one object with all properties."""
        root, open_references = self._resolve(self._root_schema, ("#",))
        state = _State(levels, open_references)
        properties = dict(property_schemas(root))
        for option in _few(root.get("anyOf")) + _few(root.get("oneOf")):
            member, _ = self._resolve(option, open_references)
            properties = {**property_schemas(member), **properties}
        named = list(properties)[:_MAX_PROPERTIES]
        keys = _wire_keys(named)
        out: JsonSchema = {"type": "object", "properties": {}}
        for name in named:
            node = json_object(self._converted(properties[name], state)) or {}
            if keys[name] != name:
                texts = (sanitize_text(name, _NAME_CHARS), node.get("description"))
                node["description"] = ": ".join(text for text in texts if text) or "Has no name."
            out["properties"][keys[name]] = node
        if required := [keys[name] for name in named if name in _names(root.get("required"))]:
            out["required"] = required
        further = _further_keywords(root)
        inner = {key: self._converted(value, state) for key, value in further.items()}
        return PortableSchema(_leave({**out, **inner}), {keys[name]: name for name in named})

    def _converted(self, schema: object, state: _State) -> Any:
        return walk_schema(schema, enter=self._enter, leave=_leave, state=state)

    def _enter(self, schema: object, state: _State) -> tuple[JsonSchema | bool, _State]:
        """Write a node with the keywords that every provider takes; inner nodes stay as they are.

        At the last level of nesting it has no inner nodes.
        """
        self.nodes += 1
        source, levels = json_object(schema), state.levels
        if source is None or self.nodes > _MAX_NODES:
            return (schema if isinstance(schema, bool) else {}), state
        is_recursive = source.get("$ref") in state.open_references
        node, open_references = self._resolve(source, state.open_references)
        inner_state = _State(levels - 1, open_references)
        out = self._annotations(node)
        if is_recursive:
            name = str(source["$ref"]).rpartition("/")[2]
            _add_text(out, f"{sanitize_text(name, _NAME_CHARS)}, as above.")
        options = _options(node)
        if options:
            return ({**out, "anyOf": options} if levels > 0 else out), inner_state
        kind = _kind(node)
        if kind is not None:
            out.update({"type": kind, **_bounds(node, kind)})
        if kind == "object" and levels > 0:
            out.update(_object_keywords(node))
        elif kind == "array":
            out.update(_item_keywords(node) if levels > 0 else {"items": {}})
        return out, inner_state

    def _resolve(
        self, node: JsonSchema, open_references: tuple[str, ...], levels: int = _MAX_MERGE_DEPTH
    ) -> tuple[JsonSchema, tuple[str, ...]]:
        """Merge a node with its `$ref` and `allOf`; also return the open references then.

        From a reference that is open already (recursion), only the type is taken.
        """
        # References are written out: Gemini takes none in `parameters`, and GLM, Qwen and Llama
        # models return the arguments behind a reference as a string.
        parts = _few(node.get("allOf"))
        reference = node.get("$ref")
        if isinstance(reference, str):
            target = reference_target(self._root_schema, reference) or {}
            if reference in open_references:
                target = {"type": target["type"]} if "type" in target else {}
            open_references = (*open_references, reference)
            parts.insert(0, target)
        out: JsonSchema = {}
        for part in parts if levels else ():
            merged, open_references = self._resolve(part, open_references, levels - 1)
            out = _merge(out, merged)
        own = {key: value for key, value in node.items() if key not in ("$ref", "allOf")}
        return _merge(out, own), open_references

    def _annotations(self, node: JsonSchema) -> JsonSchema:
        """Description, choices and default of a node."""
        out: JsonSchema = {}
        description = node.get("description")
        if self._description_chars and isinstance(description, str):
            text = sanitize_text(description, self._description_chars)
            out.update({"description": text} if text else {})
        choices: Any = node.get("enum", [node["const"]] if "const" in node else None)
        if choices and isinstance(choices, list) and _is_short_json(cast("Any", choices)):
            out["enum"] = _distinct(cast("list[Any]", choices))
        if "default" in node and _is_short_json(node["default"]):
            out["default"] = node["default"]
        return out


def _options(node: JsonSchema) -> list[JsonSchema]:
    """Members of a union, also of a list of types."""
    kinds = node.get("type")
    if options := _few(node.get("anyOf")) or _few(node.get("oneOf")):
        return options
    if not isinstance(kinds, list):
        return []
    rest = {key: value for key, value in node.items() if key not in ("type", "description")}
    names = [name for name in cast("list[Any]", kinds) if isinstance(name, str)]
    return [{**rest, "type": name} for name in names if name in _TYPES]


def _kind(node: JsonSchema) -> str | None:
    """Type of a node, also if only its other keywords tell it."""
    kind = node.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        return kind
    if "items" in node or "prefixItems" in node:
        return "array"
    return "object" if "properties" in node else None


def _object_keywords(node: JsonSchema) -> JsonSchema:
    out: JsonSchema = {}
    properties = property_schemas(node)
    named = [name for name in properties if name == sanitize_text(name, _NAME_CHARS)]
    named = named[:_MAX_PROPERTIES]
    if properties or "additionalProperties" not in node:
        out["properties"] = {name: properties[name] for name in named}
    if required := [name for name in named if name in _names(node.get("required"))]:
        out["required"] = required
    return {**out, **_further_keywords(node)}


def _item_keywords(node: JsonSchema) -> JsonSchema:
    """Schema of all items, or a list of those in order, which older schemas have in `items`."""
    in_order = _few(node.get("prefixItems")) or _few(node.get("items"))
    return (
        {"prefixItems": in_order} if in_order else {"items": json_object(node.get("items")) or {}}
    )


def _further_keywords(node: JsonSchema) -> JsonSchema:
    """Keywords about keys that are no properties."""
    out: JsonSchema = {}
    if isinstance(further := node.get("additionalProperties"), bool | dict):
        out["additionalProperties"] = further
    if "propertyNames" in node:
        out["propertyNames"] = node["propertyNames"]
    return out


def _leave(out: JsonSchema) -> JsonSchema:
    """Write the keywords that not every provider takes in another way."""
    if "anyOf" in out:
        members = _distinct(out.pop("anyOf"))
        return {**members[0], **out} if len(members) == 1 else {**out, "anyOf": members}
    if "properties" in out:
        # `true` accepts any value; Gemini takes no boolean.
        out["properties"] = {k: json_object(v) or {} for k, v in out["properties"].items()}
    if "prefixItems" in out:
        schemas = out.pop("prefixItems")
        distinct = _distinct(schemas)
        out["items"] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
        if len(distinct) > 1:
            kinds = (str(item.get("type", "anything")) for item in schemas)
            _add_text(out, f"In this order: {', '.join(kinds)}.")
    if keys := (json_object(out.pop("propertyNames", None)) or {}).get("enum"):
        _add_text(out, f"Keys: {', '.join(map(repr, keys))}.")
    return out


def _add_text(out: JsonSchema, text: str) -> None:
    out["description"] = f"{out['description']} {text}" if "description" in out else text


def _few(value: object) -> list[JsonSchema]:
    return inner_objects(value)[:_MAX_CHOICES]


def _names(value: object) -> set[str]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return {item for item in items if isinstance(item, str)}


def _merge(first: JsonSchema, second: JsonSchema) -> JsonSchema:
    """Merge two schemas into one; where both set a key, the second wins.

    Properties and required names are united. Real intersection is not needed: the schema only
    tells the model what to write.
    """
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
        is_count = isinstance(value, int) and value >= 0
        if (
            type(value) in (int, float)
            and _is_short_json(value)
            and (key in _NUMBER_BOUNDS or is_count)
        ):
            out[key] = value
    if kind == "string" and node.get("format") in _FORMATS:
        out["format"] = node["format"]
    return out


def _is_short_json(value: Any, depth: int = 4) -> bool:
    """True if a value is short JSON without invisible characters."""
    if isinstance(value, str):
        return value.strip() == sanitize_text(value, _VALUE_CHARS)
    if isinstance(value, int | float):
        # Larger integers change when a server reads them as float64.
        return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**53
    if isinstance(value, dict):
        value = [item for pair in cast("JsonSchema", value).items() for item in pair]
    if not isinstance(value, list):
        return value is None
    items = cast("list[Any]", value)
    few = depth > 0 and len(items) <= _MAX_CHOICES
    return few and all(_is_short_json(item, depth - 1) for item in items)


def _distinct(items: list[Any]) -> list[Any]:
    return list({dump_json(item): item for item in items}.values())
