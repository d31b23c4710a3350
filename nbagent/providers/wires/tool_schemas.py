"""A tool as a server understands it: its name on the wire and back, and its JSON Schema.

Names are deterministic: history and prompt caches depend on them. What a schema means is not
changed; what a server cannot read is written another way. `strict` is never asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from nbagent.contracts.canonical import dump_json, json_object

_BY_NAME = frozenset({"properties", "$defs", "definitions", "patternProperties"})
"""Keywords whose keys are names, not keywords."""
_DATA = frozenset({"enum", "const", "default", "examples", "example", "required"})
_MISTRAL_REFUSES = ("$id", "$schema", "strict")
_GEMINI_REFUSES = frozenset(
    {"$schema", "title", "examples", "discriminator", "exclusiveMinimum", "exclusiveMaximum"}
)
_MOST_NODES = 2_000
"""A schema that grows beyond this by being written out keeps its references."""

_SAID_IN_WORDS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems"),
)
"""What Anthropic refuses in a schema for an answer; its own client writes it so, too."""

_PLACES = ("$defs", "definitions")

Schema = dict[str, Any]


def wire_schema(schema: Schema, *, inline: bool = False, plain: bool = False) -> Schema:
    """The schema of a tool for the wire, with an object at its root.

    Args:
        schema: any JSON Schema.
        inline: write references out, where they do not refer to themselves: GLM, Qwen and Llama
            give nested arguments as texts otherwise.
        plain: leave out what Mistral answers with a 422.
    """
    schema = {"type": "object", **schema}
    return _walk(_inlined(schema) if inline else schema, _plain if plain else dict)


def gemini_schema(schema: Schema) -> Schema:
    """The schema for Gemini's `…JsonSchema` fields, without what it refuses."""
    return _walk(schema, _for_gemini)


def closed_schema(schema: Schema) -> Schema:
    """The schema of an answer for Anthropic: objects are closed, limits are said in words."""
    return _walk(schema, _closed)


def can_be_closed(schema: Schema | None) -> bool:
    """Whether `closed_schema` means the same: no recursion, no objects with names of their own."""
    own_names = False

    def look(node: Schema) -> Schema:
        nonlocal own_names
        own_names |= node.get("additionalProperties", False) is not False
        return node

    written = _walk(_inlined(schema or {}), look)
    return not own_names and "$ref" not in str(written)


def _walk(value: Any, change: Callable[[Schema], Schema], name: str = "") -> Any:
    """What stands under a keyword, with each schema in it changed, inner ones first."""
    if name in _DATA:
        return value
    if isinstance(value, list):
        return [_walk(it, change) for it in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    by_name = name in _BY_NAME
    node = cast("Schema", value)
    inner = {key: _walk(it, change, "" if by_name else key) for key, it in node.items()}
    if by_name:
        return inner
    changed = change(inner)
    if changed.get("type") == "object":
        changed.setdefault("properties", {})  # OpenAI: an object without any says so.
    return changed


def _plain(node: Schema) -> Schema:
    closed = ("additionalProperties",) if node.get("additionalProperties") is False else ()
    return _without(node, *_MISTRAL_REFUSES, *closed)


def _closed(node: Schema) -> Schema:
    kept = _in_words(node, _SAID_IN_WORDS)
    return {**kept, "additionalProperties": False} if kept.get("type") == "object" else kept


def _for_gemini(node: Schema) -> Schema:
    of_text = isinstance(node.get("format"), str) and "string" in (node.get("type") or ())
    kept = _in_words(_without(node, *_GEMINI_REFUSES), ("format",) if of_text else ())
    if "const" in kept:
        kept["enum"] = [kept.pop("const")]
    return kept


def _in_words(node: Schema, names: Sequence[str]) -> Schema:
    """The schema with some keywords said in its description, and `oneOf` as `anyOf`."""
    kept = _without(node, *names)
    said = [f"{it}: {dump_json(node[it]).decode()}".replace('"', "") for it in names if it in node]
    if said:
        kept["description"] = f"{kept.get('description', '')} ({', '.join(said)})".strip()
    if "oneOf" in kept:
        kept["anyOf"] = [*kept.get("anyOf", ()), *kept.pop("oneOf")]
    return kept


def _without(node: Schema, *names: str) -> Schema:
    return {name: value for name, value in node.items() if name not in names}


def _inlined(schema: Schema) -> Schema:
    """The schema with its references replaced by what they refer to, where that is worth it."""
    known = {
        f"#/{place}/{name}": target
        for place in _PLACES
        for name, target in (json_object(schema.get(place)) or {}).items()
    }
    above: list[str] = []  # The references that are being written out.
    nodes, is_whole = 0, True

    def write_out(node: Schema) -> Schema:
        nonlocal nodes, is_whole
        nodes += 1
        target = node.get("$ref")
        if not isinstance(target, str):
            # What a discriminator names is not there any more; the constants in it tell as much.
            return _without(node, "discriminator")
        if target in above or target not in known or nodes > _MOST_NODES:
            is_whole = False
            return node
        above.append(target)
        meant = _walk(known[target], write_out)
        above.pop()
        return {**(json_object(meant) or {}), **_without(node, "$ref")}

    with suppress(RecursionError):
        written = _walk(_without(schema, *_PLACES), write_out)
        if nodes <= _MOST_NODES:
            return written if is_whole else {**schema, **written}
    return schema
