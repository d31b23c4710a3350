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
from nbagent.contracts.schema_walk import (
    DEFINITION_KEYWORDS,
    Schema,
    change_schemas,
    reference_target,
    walk_schema,
)

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


def wire_schema(schema: Schema, *, inline: bool = False, plain: bool = False) -> Schema:
    """Schema of a tool for the wire, with an object at its root.

    Args:
        schema: any JSON Schema.
        inline: replace references by their targets, if they are not recursive; otherwise GLM,
            Qwen and Llama write nested arguments as texts.
        plain: drop the keywords that Mistral refuses with 422.
    """
    schema = {"type": "object", **schema}
    return _changed(
        _inline_references(schema) if inline else schema, _for_mistral if plain else dict
    )


def gemini_schema(schema: Schema) -> Schema:
    """Schema for Gemini's `…JsonSchema` fields, without the keywords that it refuses."""
    return _changed(schema, _for_gemini)


def closed_schema(schema: Schema) -> Schema:
    """Schema of an answer for Anthropic: closed objects, limits in the descriptions."""
    return _changed(schema, _for_anthropic)


def can_be_closed(schema: Schema | None) -> bool:
    """True if closing all objects keeps the meaning: no recursion, no free property names."""
    own_names = False

    def check_node(node: Schema) -> Schema:
        nonlocal own_names
        own_names |= node.get("additionalProperties", False) is not False
        return node

    written = _changed(_inline_references(schema or {}), check_node)
    return not own_names and "$ref" not in str(written)


def _changed(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """Return the schema with each schema in it changed, inner ones first."""

    def complete(node: Schema) -> Schema:
        changed = change(node)
        if changed.get("type") == "object":
            changed.setdefault("properties", {})  # OpenAI refuses an object without this key.
        return changed

    return change_schemas(schema, complete)


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
    nodes, is_whole = 0, True

    def enter(node: Any, open_references: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        """Write out the reference of a node; one inside its own target is recursive."""
        nonlocal nodes, is_whole
        nodes += 1
        while isinstance(reference := (json_object(node) or {}).get("$ref"), str):
            target = _definition(schema, reference)
            if reference in open_references or target is None or nodes > _MAX_NODES:
                is_whole = False
                break
            open_references = (*open_references, reference)
            node = {**target, **_without(cast("Schema", node), "$ref")}
        return node, open_references

    def leave(node: Schema) -> Schema:
        # A discriminator names definitions that are gone; the constants in the variants suffice.
        return node if "$ref" in node else _without(node, "discriminator")

    root, state = _without(schema, *DEFINITION_KEYWORDS), tuple[str, ...]()
    with suppress(RecursionError):
        written = walk_schema(root, enter=enter, leave=leave, state=state)
        if nodes <= _MAX_NODES:
            return written if is_whole else {**schema, **written}
    return schema


def _definition(schema: Schema, reference: str) -> Schema | None:
    starts = tuple(f"#/{keyword}/" for keyword in DEFINITION_KEYWORDS)
    return reference_target(schema, reference) if reference.startswith(starts) else None
