"""The one walk over a JSON Schema: which keywords hold schemas, and where references point.

Owns no meaning of a schema: the hooks of a caller say what becomes of each node. Nothing is ever
fetched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from nbagent.contracts.canonical import json_object

Schema = dict[str, Any]
S = TypeVar("S")
DEFINITION_KEYWORDS = ("$defs", "definitions")
_SCHEMAS_BY_NAME = frozenset(
    (*DEFINITION_KEYWORDS, "properties", "patternProperties", "dependentSchemas", "dependencies")
)
"""Keywords whose keys are names of properties or definitions."""
_SCHEMAS = frozenset(
    (
        *("items", "prefixItems", "contains", "additionalItems", "unevaluatedItems"),
        *("additionalProperties", "propertyNames", "unevaluatedProperties"),
        *("anyOf", "oneOf", "allOf", "not", "if", "then", "else"),
    )
)
"""Keywords that hold a schema or a list of schemas. The values of all others are data."""


def walk_schema(
    schema: Any,
    *,
    enter: Callable[[Any, S], tuple[Any, S]],
    leave: Callable[[Schema], Schema],
    state: S,
) -> Any:
    """Walk a schema from its root and return what the hooks make of it.

    Args:
        schema: a schema; it does not change.
        enter: gets a node before its inner schemas, and the state of the node around it. It
            returns the node to walk into, and the state for its inner schemas. A node that is no
            object (`true`, or not valid) is the result itself.
        leave: gets a node whose inner schemas are results already, a dict of its own.
        state: for the root.
    """
    node, inner_state = enter(schema, state)
    if not isinstance(node, dict):
        return node

    def inner(child: Any) -> Any:
        return walk_schema(child, enter=enter, leave=leave, state=inner_state)

    fields = cast("Schema", node)
    return leave({key: _walk_keyword(key, value, inner) for key, value in fields.items()})


def _walk_keyword(keyword: str, value: Any, inner: Callable[[Any], Any]) -> Any:
    if keyword in _SCHEMAS_BY_NAME and isinstance(value, dict):
        return {name: inner(child) for name, child in cast("Schema", value).items()}
    if keyword not in _SCHEMAS:
        return value
    if isinstance(value, list):
        return [inner(child) for child in cast("list[Any]", value)]
    return inner(value)


def change_schemas(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """Return a schema with each schema in it changed, inner ones first."""
    return walk_schema(schema, enter=lambda node, _: (node, None), leave=change, state=None)


def reference_target(root: Schema, reference: str) -> Schema | None:
    """Find the target of a reference inside a schema; None if it is elsewhere or missing."""
    start, *steps = reference.split("/")
    node = root if start == "#" else None
    for step in steps:
        node = json_object((node or {}).get(step.replace("~1", "/").replace("~0", "~")))
    return node


def union_members(schema: Schema) -> list[Schema]:
    """Return the schemas of which a value fits one: `anyOf`, else `oneOf`."""
    return inner_objects(schema.get("anyOf")) or inner_objects(schema.get("oneOf"))


def first_member(schema: Any) -> Schema:
    """Return the schema; of a union its first member that is not null."""
    node = json_object(schema) or {}
    return next((m for m in union_members(node) if m.get("type") != "null"), node)


def property_schemas(schema: Schema) -> dict[str, Any]:
    """Return the schemas of an object's properties, by name."""
    return json_object(schema.get("properties")) or {}


def inner_objects(value: object) -> list[Schema]:
    """Return the objects in a list; none for anything else."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("Schema", item) for item in items if isinstance(item, dict)]
