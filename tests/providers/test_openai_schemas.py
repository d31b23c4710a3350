"""A tool's schema as Chat Completions servers read it: nothing changes its meaning."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from nbagent.providers.openai.schema import wire_schema

EMPTY: dict[str, Any] = {"type": "object", "properties": {}}


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def test_every_object_says_its_properties() -> None:
    given = obj(a={"type": "object"}, b={"type": "array", "items": {"type": "object"}})
    before = copy.deepcopy(given)
    assert wire_schema(given) == obj(a=EMPTY, b={"type": "array", "items": EMPTY})
    assert given == before, "the tool's own schema stays as it is"
    assert wire_schema({"anyOf": [{"type": "object"}, {"type": "null"}]})["anyOf"][0] == EMPTY


def test_names_and_values_are_not_taken_for_keywords() -> None:
    given = obj(
        properties={"type": "string"},
        strict={"type": "object"},
        default={"enum": [{"type": "object"}], "default": {"type": "object"}},
    )
    assert wire_schema(given, inline=True, plain=True) == obj(
        properties={"type": "string"},
        strict=EMPTY,
        default={"enum": [{"type": "object"}], "default": {"type": "object"}},
    )


def test_what_mistral_refuses_is_left_out_and_the_rest_kept() -> None:
    inner = {**obj(x={"type": "integer"}), "additionalProperties": False, "$id": "y"}
    open_one = {"type": "object", "additionalProperties": {"type": "integer"}}
    given = {**obj(a=inner, b=open_one), "$schema": "s", "additionalProperties": False}
    assert wire_schema(given, plain=True) == obj(
        a=obj(x={"type": "integer"}), b={**open_one, "properties": {}}
    )


def test_references_are_written_out_with_what_stands_beside_them() -> None:
    given = {
        **obj(a={**ref("A"), "description": "mine"}, b={"anyOf": [ref("B"), {"type": "null"}]}),
        "$defs": {"A": obj(b=ref("B")), "B": {"type": "string", "enum": ["x"]}},
    }
    b = {"type": "string", "enum": ["x"]}
    assert wire_schema(given, inline=True) == obj(
        a={**obj(b=b), "description": "mine"}, b={"anyOf": [b, {"type": "null"}]}
    )
    assert wire_schema(given) == given, "where references are followed they stay"


def test_a_schema_that_contains_itself_keeps_the_reference_and_its_target() -> None:
    node = obj(children={"type": "array", "items": ref("Node")})
    given = {**obj(root=ref("Node")), "$defs": {"Node": node}}
    made = wire_schema(given, inline=True)
    assert made["$defs"]["Node"] == node
    assert made["properties"]["root"] == node


@pytest.mark.parametrize("target", ["#/$defs/None", "https://example.org/x", "#"])
def test_an_unknown_reference_stays(target: str) -> None:
    given = {**obj(a={"$ref": target}), "$defs": {"A": {"type": "string"}}}
    made = wire_schema(given, inline=True)
    assert made["properties"]["a"] == {"$ref": target}
    assert "$defs" in made


def test_a_schema_that_would_explode_keeps_its_references() -> None:
    defs = {f"L{n}": obj(a=ref(f"L{n + 1}"), b=ref(f"L{n + 1}")) for n in range(20)}
    given = {**obj(a=ref("L0")), "$defs": {**defs, "L20": {"type": "string"}}}
    assert wire_schema(given, inline=True) == given


def test_a_discriminator_does_not_point_to_what_is_gone() -> None:
    union = {
        "oneOf": [ref("A")],
        "discriminator": {"propertyName": "kind", "mapping": {"a": "#/$defs/A"}},
    }
    given = {**obj(x=union), "$defs": {"A": obj(kind={"const": "a"})}}
    assert wire_schema(given, inline=True) == obj(x={"oneOf": [obj(kind={"const": "a"})]})
