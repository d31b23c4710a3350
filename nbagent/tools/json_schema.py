"""Convert JSON Schemas to the subset that every provider takes, within limits of size.

Used for the schemas of pydantic and for those of untrusted MCP servers: references are written out,
`oneOf` becomes `anyOf`, and `const`, `prefixItems`, `pattern` and the like are replaced or dropped.
A part that cannot be expressed accepts any value. Calls are not checked with the result.
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
_ConvertNode = Callable[[object], JsonSchema]
"""Converts an inner node."""


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
        walker = _Walker(json_object(schema) or {}, description_chars)
        made = walker.root(levels)
        if walker.nodes <= _MAX_NODES and len(dump_json(made.schema)) <= _MAX_SCHEMA_CHARS:
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


class _Walker:
    """One walk over one schema.

    `open_references` are the references that the walk is inside of; they end recursion.
    """

    def __init__(self, root_schema: JsonSchema, description_chars: int) -> None:
        self._root_schema = root_schema
        self._description_chars = description_chars
        self.nodes = 0

    def root(self, levels: int) -> PortableSchema:
        """Convert the whole schema. A union at the root becomes one object with all properties."""
        root, open_references = self._resolve(self._root_schema, ("#",))
        properties = dict(json_object(root.get("properties")) or {})
        for option in _objects(root.get("anyOf")) + _objects(root.get("oneOf")):
            member, _ = self._resolve(option, open_references)
            properties = {**(json_object(member.get("properties")) or {}), **properties}
        named = list(properties)[:_MAX_PROPERTIES]
        keys = _wire_keys(named)
        out: JsonSchema = {"type": "object", "properties": {}}
        for name in named:
            node = self._node(properties[name], levels, open_references)
            if keys[name] != name:
                texts = (sanitize_text(name, _NAME_CHARS), node.get("description"))
                node["description"] = ": ".join(text for text in texts if text) or "Has no name."
            out["properties"][keys[name]] = node
        if required := [keys[name] for name in named if name in _names(root.get("required"))]:
            out["required"] = required
        _add_further_keys(root, out, lambda child: self._node(child, levels, open_references))
        return PortableSchema(out, {keys[name]: name for name in named})

    def _node(self, schema: object, levels: int, open_references: tuple[str, ...]) -> JsonSchema:
        """Convert one node with at most this many levels inside it."""
        self.nodes += 1
        source = json_object(schema)
        if source is None or self.nodes > _MAX_NODES:
            return {}
        is_recursive = source.get("$ref") in open_references
        node, open_references = self._resolve(source, open_references)
        out = self._annotations(node)
        if is_recursive:
            name = str(source["$ref"]).rpartition("/")[2]
            _add_text(out, f"{sanitize_text(name, _NAME_CHARS)}, as above.")

        def inner(child: object) -> JsonSchema:
            return self._node(child, levels - 1, open_references)

        options = _objects(node.get("anyOf")) or _objects(node.get("oneOf"))
        kind = node.get("type")
        if isinstance(kind, list) and not options:
            rest = {key: value for key, value in node.items() if key not in ("type", "description")}
            kinds = [
                kind_name for kind_name in cast("list[Any]", kind) if isinstance(kind_name, str)
            ]
            options = [{**rest, "type": kind_name} for kind_name in kinds if kind_name in _TYPES]
        if options and levels > 0:
            members = _distinct([inner(option) for option in options])
            return {**members[0], **out} if len(members) == 1 else {**out, "anyOf": members}
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

    def _resolve(
        self, node: JsonSchema, open_references: tuple[str, ...], levels: int = _MAX_MERGE_DEPTH
    ) -> tuple[JsonSchema, tuple[str, ...]]:
        """Merge a node with its `$ref` and `allOf`; also return the open references then.

        From a reference that is open already (recursion), only the type is taken.
        """
        # References are written out: Gemini takes none in `parameters`, and GLM, Qwen and Llama
        # models return the arguments behind a reference as a string.
        parts = _objects(node.get("allOf"))
        reference = node.get("$ref")
        if isinstance(reference, str):
            target = self._reference_target(reference) or {}
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

    def _reference_target(self, reference: str) -> JsonSchema | None:
        """Find the target of a reference inside this schema. Nothing is ever fetched."""
        start, *steps = reference.split("/")
        node = self._root_schema if start == "#" else None
        for step in steps:
            node = json_object((node or {}).get(step.replace("~1", "/").replace("~0", "~")))
        return node

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


def _add_object(node: JsonSchema, out: JsonSchema, inner: _ConvertNode) -> None:
    properties = json_object(node.get("properties")) or {}
    named = [name for name in properties if name == sanitize_text(name, _NAME_CHARS)]
    named = named[:_MAX_PROPERTIES]
    if properties or "additionalProperties" not in node:
        out["properties"] = {name: inner(properties[name]) for name in named}
    if required := [name for name in named if name in _names(node.get("required"))]:
        out["required"] = required
    _add_further_keys(node, out, inner)


def _add_further_keys(node: JsonSchema, out: JsonSchema, inner: _ConvertNode) -> None:
    further = node.get("additionalProperties")
    if isinstance(further, bool):
        out["additionalProperties"] = further
    elif (schema := json_object(further)) is not None:
        out["additionalProperties"] = inner(schema)
    if keys := inner(node.get("propertyNames")).get("enum"):
        _add_text(out, f"Keys: {', '.join(map(repr, keys))}.")


def _add_items(node: JsonSchema, out: JsonSchema, inner: _ConvertNode) -> None:
    schemas = [inner(item) for item in _objects(node.get("prefixItems")) or [node.get("items")]]
    distinct = _distinct(schemas)
    out["items"] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
    if len(distinct) > 1:
        kinds = (str(item.get("type", "anything")) for item in schemas)
        _add_text(out, f"In this order: {', '.join(kinds)}.")


def _add_text(out: JsonSchema, text: str) -> None:
    out["description"] = f"{out['description']} {text}" if "description" in out else text


def _objects(value: object) -> list[JsonSchema]:
    items = cast("list[Any]", value)[:_MAX_CHOICES] if isinstance(value, list) else []
    return [cast("JsonSchema", item) for item in items if isinstance(item, dict)]


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
