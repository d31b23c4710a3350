"""Compose a typed answer from results, from a figure of a table, or from the prompt; never invent.

A value that no fact gives makes the whole answer None.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.schema_walk import first_member, property_schemas
from nbagent.providers.offline.argument_values import items
from nbagent.providers.offline.prompt_values import number_of, values_in
from nbagent.providers.offline.vocabulary import meanings

_RULED = {"larg", "larger", "difference", "small", "total", "sum", "ratio", "share", "percent"}
"""Meanings of properties that need a computation, not a value."""


def typed_answer(
    schema: dict[str, Any], facts: Sequence[dict[str, Any]], prompt: str, text: str
) -> Any:
    """Return an answer for a schema; None if a value would be made up."""
    properties = property_schemas(first_member(schema))
    if not facts:
        values = values_in(prompt, set())
        if len(properties) == 1:
            ((name, single),) = properties.items()
            if (kind := first_member(single).get("type")) in _SCALARS:
                return _single(name, kind, text, [v.text for v in values])
        by_kind = {v.kind: v.text if v.number is None else v.number for v in values}
        return composed(schema, [by_kind] if by_kind else [], is_strict=True)
    return composed(schema, facts)


_SCALARS = ("integer", "number", "string")


def _single(name: str, kind: Any, text: str, values: Sequence[str]) -> dict[str, Any] | None:
    """Return the only figure of an answer's text, or the only value of the prompt."""
    bold = re.findall(r"\*\*([^*]+)\*\*", text)
    chosen = bold or (list(values) if text.startswith("I ") else [])
    if len(chosen) != 1:
        return None
    if kind == "string":
        return {name: chosen[0]}
    number = number_of(chosen[0].replace(",", ""))
    if number is None or (kind == "integer" and float(number) != int(number)):
        return None
    return {name: int(number) if kind == "integer" else number}


def composed(schema: Any, facts: Sequence[dict[str, Any]], *, is_strict: bool = False) -> Any:
    """Compose a value from facts; a list has one item per fact. None if a value is not known.

    Args:
        schema: the schema.
        facts: values by name.
        is_strict: a property takes only a value of its own name.
    """
    node = first_member(schema)
    kind = node.get("type")
    if kind == "array":
        made = [composed(node.get("items"), [fact], is_strict=is_strict) for fact in facts]
        return None if not made or any(item is None for item in made) else made
    if kind != "object":
        known = [value for fact in facts for value in fact.values() if _has_type(value, node)]
        return next(iter(known), None)
    return _object(node, facts, is_strict=is_strict)


def _object(node: dict[str, Any], facts: Sequence[dict[str, Any]], *, is_strict: bool) -> Any:
    remaining = {name: value for fact in reversed(facts) for name, value in fact.items()}
    of_facts = {own for name in remaining for own in meanings(name)}
    required = {str(name) for name in items(node.get("required"))}
    built: dict[str, Any] = {}
    properties = property_schemas(node)
    # Properties named like a fact take its value before the others.
    for name, own in sorted(properties.items(), key=lambda it: not meanings(it[0]) & of_facts):
        inner = first_member(own)
        if inner.get("type") in ("array", "object"):
            value = composed(inner, facts, is_strict=is_strict)
        else:
            near = {k: v for k, v in remaining.items() if meanings(k) & meanings(name)}
            needs_name = is_strict or bool(_RULED & meanings(name))
            value = composed(inner, [near] if needs_name else [near, remaining])
            taken = [key for key in (*near, *remaining) if remaining[key] == value]
            remaining.pop(next(iter(taken), ""), None)
        if value is None and name in required:
            return None
        if value is not None:
            built[name] = value
    return {name: built[name] for name in properties if name in built}


def _has_type(value: Any, node: dict[str, Any]) -> bool:
    """True if a value has a scalar schema's type and is one of its choices."""
    choices = [*items(node.get("enum")), *([node["const"]] if "const" in node else [])]
    if choices:
        return value in choices
    if node.get("type") == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    types = {"string": str, "integer": int, "boolean": bool}
    return json_object(value) is None and type(value) is types.get(str(node.get("type")))
