"""A tool's JSON Schema as a server understands it. `strict` is never asked for.

What a schema means is not changed; what a server cannot read is written another way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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

Schema = dict[str, Any]


class _TooLarge(Exception):
    """Writing the references out makes more of the schema than it is worth."""


def wire_schema(schema: Schema, *, inline: bool = False, plain: bool = False) -> Schema:
    """The schema for the wire.

    Args:
        schema: any JSON Schema.
        inline: write references out, where they do not refer to themselves: GLM, Qwen and Llama
            give nested arguments as texts otherwise.
        plain: leave out what Mistral answers with a 422.
    """
    if inline and ("$defs" in schema or "definitions" in schema):
        writer = _Writer(schema)
        with suppress(_TooLarge, RecursionError):
            schema = writer.value("", schema, ())
            if not writer.kept:
                schema = {k: v for k, v in schema.items() if k not in ("$defs", "definitions")}
    return _walk(schema, _plain if plain else _with_properties)


def gemini_schema(schema: Schema) -> Schema:
    """The schema for Gemini's `…JsonSchema` fields, without what it refuses."""
    return _walk(schema, _for_gemini)


def closed_schema(schema: Schema) -> Schema:
    """The schema of an answer for Anthropic: objects are closed, limits are said in words."""
    return _walk(schema, _closed)


def _closed(node: Schema) -> Schema:
    said = [f"{name}: {dump_json(node[name]).decode()}" for name in _SAID_IN_WORDS if name in node]
    kept = _without(node, _SAID_IN_WORDS, said)
    if kept.get("type") == "object":
        kept["additionalProperties"] = False
    return kept


def _for_gemini(node: Schema) -> Schema:
    form, kinds = node.get("format"), node.get("type") or ()
    of_text = isinstance(form, str) and (kinds == "string" or "string" in kinds)
    refused = {*_GEMINI_REFUSES, "format"} if of_text else _GEMINI_REFUSES
    kept = _without(node, refused, [f"format: {form}"] if of_text else [])
    if "const" in kept:
        kept["enum"] = [kept.pop("const")]
    return kept


def _without(node: Schema, refused: Collection[str], said: list[str]) -> Schema:
    """The schema without some keywords, `oneOf` as `anyOf`, with something said in words."""
    kept = {name: value for name, value in node.items() if name not in refused}
    if said:
        kept["description"] = f"{kept.get('description', '')} ({', '.join(said)})".strip()
    if "oneOf" in kept:
        kept["anyOf"] = [*kept.get("anyOf", ()), *kept.pop("oneOf")]
    return _with_properties(kept)


def _with_properties(node: Schema) -> Schema:
    # OpenAI: an object without properties says so.
    if node.get("type") == "object" and "properties" not in node:
        return {**node, "properties": {}}
    return node


def _plain(node: Schema) -> Schema:
    closed = node.get("additionalProperties") is False
    refused = (*_MISTRAL_REFUSES, "additionalProperties") if closed else _MISTRAL_REFUSES
    return _with_properties({name: it for name, it in node.items() if name not in refused})


def _walk(node: Schema, change: Callable[[Schema], Schema]) -> Schema:
    return change({name: _walk_value(name, value, change) for name, value in node.items()})


def _walk_value(name: str, value: Any, change: Callable[[Schema], Schema]) -> Any:
    if name in _DATA or not isinstance(value, list | dict):
        return value
    if isinstance(value, list):
        return [_walk_value("", it, change) for it in cast("list[Any]", value)]
    inner = cast("Schema", value)
    if name in _BY_NAME:
        return {key: _walk_value("", it, change) for key, it in inner.items()}
    return _walk(inner, change)


class _Writer:
    """Replaces references by what they refer to."""

    def __init__(self, root: Schema) -> None:
        self._known: dict[str, Any] = {
            f"#/{place}/{name}": target
            for place in ("$defs", "definitions")
            for name, target in (json_object(root.get(place)) or {}).items()
        }
        self._nodes = 0
        self.kept = False  # A reference had to stay: it is within itself, or unknown.

    def value(self, name: str, value: Any, above: tuple[str, ...]) -> Any:
        unread = name in _DATA or (not above and name in ("$defs", "definitions"))
        if unread or not isinstance(value, list | dict):
            return value
        if isinstance(value, list):
            return [self.value("", it, above) for it in cast("list[Any]", value)]
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise _TooLarge
        node = cast("Schema", value)
        if name in _BY_NAME:
            return {key: self.value("", it, above) for key, it in node.items()}
        target = node.get("$ref")
        if not isinstance(target, str):
            # What a discriminator names is not there any more; the constants in it tell as much.
            return {k: self.value(k, it, above) for k, it in node.items() if k != "discriminator"}
        beside = {key: self.value(key, it, above) for key, it in node.items() if key != "$ref"}
        if target in above or target not in self._known:
            self.kept = True
            return {"$ref": target, **beside}
        meant = self.value("", self._known[target], (*above, target))
        return {**(json_object(meant) or {}), **beside}
