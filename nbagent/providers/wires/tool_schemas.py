"""JSON Schemas of tools and answers in the form that each server accepts.

The meaning stays; only keywords that a server refuses are written in another way. `strict` is never
requested: it requires that all properties are required and all objects closed, which would change
most schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from nbagent.contracts.canonical import dump_json, json_object

_SCHEMAS_BY_NAME = frozenset({"properties", "$defs", "definitions", "patternProperties"})
"""Keywords whose keys are names of properties or definitions."""
_DATA_KEYWORDS = frozenset({"enum", "const", "default", "examples", "example", "required"})
# And `additionalProperties: false`; Mistral answers all four with 422.
_MISTRAL_REFUSES = ("$id", "$schema", "strict")
_GEMINI_REFUSES = frozenset(
    {"$schema", "title", "examples", "discriminator", "exclusiveMinimum", "exclusiveMaximum"}
)
_MAX_NODES = 2_000
"""A schema that would grow beyond this keeps its references: a few of them can expand without
limit."""
_ANTHROPIC_REFUSES = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems"),
)
"""Keywords that Anthropic refuses in a schema for an answer. They go into the description, as in
its own client."""
_DEFINITION_KEYWORDS = ("$defs", "definitions")
Schema = dict[str, Any]


def wire_schema(schema: Schema, *, inline: bool = False, plain: bool = False) -> Schema:
    """Schema of a tool for the wire, with an object at its root.

    Args:
        schema: any JSON Schema.
        inline: replace references by their targets, if they are not recursive; otherwise GLM,
            Qwen and Llama write nested arguments as texts.
        plain: drop the keywords that Mistral refuses with 422.
    """
    schema = {"type": "object", **schema}
    return _walk(_inline_references(schema) if inline else schema, _for_mistral if plain else dict)


def gemini_schema(schema: Schema) -> Schema:
    """Schema for Gemini's `…JsonSchema` fields, without the keywords that it refuses."""
    return _walk(schema, _for_gemini)


def closed_schema(schema: Schema) -> Schema:
    """Schema of an answer for Anthropic: closed objects, limits in the descriptions."""
    return _walk(schema, _for_anthropic)


def can_be_closed(schema: Schema | None) -> bool:
    """True if closing all objects keeps the meaning: no recursion, no free property names."""
    own_names = False

    def check_node(node: Schema) -> Schema:
        nonlocal own_names
        own_names |= node.get("additionalProperties", False) is not False
        return node

    written = _walk(_inline_references(schema or {}), check_node)
    return not own_names and "$ref" not in str(written)


def _walk(value: Any, change: Callable[[Schema], Schema], name: str = "") -> Any:
    """Return the value of a keyword with each schema in it changed, inner ones first."""
    if name in _DATA_KEYWORDS:
        return value
    if isinstance(value, list):
        return [_walk(item, change) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    by_name = name in _SCHEMAS_BY_NAME
    node = cast("Schema", value)
    inner = {key: _walk(child, change, "" if by_name else key) for key, child in node.items()}
    if by_name:
        return inner
    changed = change(inner)
    if changed.get("type") == "object":
        changed.setdefault("properties", {})  # OpenAI refuses an object without this key.
    return changed


def _for_mistral(node: Schema) -> Schema:
    closed = ("additionalProperties",) if node.get("additionalProperties") is False else ()
    return _without(node, *_MISTRAL_REFUSES, *closed)


def _for_anthropic(node: Schema) -> Schema:
    closed = _describe_keywords(node, _ANTHROPIC_REFUSES)
    return {**closed, "additionalProperties": False} if closed.get("type") == "object" else closed


def _for_gemini(node: Schema) -> Schema:
    of_text = isinstance(node.get("format"), str) and "string" in (node.get("type") or ())
    schema = _describe_keywords(_without(node, *_GEMINI_REFUSES), ("format",) if of_text else ())
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    return schema


def _describe_keywords(node: Schema, names: Sequence[str]) -> Schema:
    """Move some keywords into the description, and write `oneOf` as `anyOf`."""
    schema = _without(node, *names)
    limits = [
        f"{name}: {dump_json(node[name]).decode()}".replace('"', "")
        for name in names
        if name in node
    ]
    if limits:
        schema["description"] = f"{schema.get('description', '')} ({', '.join(limits)})".strip()
    if "oneOf" in schema:
        schema["anyOf"] = [*schema.get("anyOf", ()), *schema.pop("oneOf")]
    return schema


def _without(node: Schema, *names: str) -> Schema:
    return {name: value for name, value in node.items() if name not in names}


def _inline_references(schema: Schema) -> Schema:
    """Replace references by their targets, unless they are recursive or grow too much."""
    known = {
        f"#/{keyword}/{name}": target
        for keyword in _DEFINITION_KEYWORDS
        for name, target in (json_object(schema.get(keyword)) or {}).items()
    }
    open_references: list[str] = []  # References that are being replaced; one in it is recursive.
    nodes, is_whole = 0, True

    def write_out(node: Schema) -> Schema:
        nonlocal nodes, is_whole
        nodes += 1
        target = node.get("$ref")
        if not isinstance(target, str):
            # A discriminator names definitions that are gone; the constants in the variants
            # suffice.
            return _without(node, "discriminator")
        if target in open_references or target not in known or nodes > _MAX_NODES:
            is_whole = False
            return node
        open_references.append(target)
        target_schema = _walk(known[target], write_out)
        open_references.pop()
        return {**(json_object(target_schema) or {}), **_without(node, "$ref")}

    with suppress(RecursionError):
        written = _walk(_without(schema, *_DEFINITION_KEYWORDS), write_out)
        if nodes <= _MAX_NODES:
            return written if is_whole else {**schema, **written}
    return schema
