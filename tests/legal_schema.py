"""Check that a tool's schema and name are legal on every wire.

OpenAI and Anthropic take names of letters, digits, `_` and `-`, at most 64; Gemini's start with a
letter or `_`. Schemas: https://platform.openai.com/docs/guides/structured-outputs and
https://ai.google.dev/api/caching#Schema.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from jsonschema import Draft202012Validator

from nbagent.contracts.model import ToolSpec
from nbagent.providers.wires.tool_names import wire_name

KEYWORDS = (
    {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum"}
    | {"description", "default", "format", "pattern", "examples", "$ref", "$defs"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "minItems", "maxItems"}
)
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6"} | {
    "uuid",
    "uri",
}


def check_legal(spec: ToolSpec) -> None:
    """Fails with the keyword that some wire would refuse."""
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", wire_name(spec.name)), spec.name
    schema = spec.parameters
    # A lone surrogate would raise here.
    json.dumps([schema, spec.description], allow_nan=False, ensure_ascii=False).encode()
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert isinstance(schema["properties"], dict)
    assert not schema.keys() & {"anyOf", "oneOf", "allOf", "$ref"}
    for key in cast("dict[str, Any]", schema["properties"]):
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", key), key
    assert set(schema.get("required", ())) <= schema["properties"].keys()
    _check_node(schema, schema, path="")


def _check_node(node: Any, root: dict[str, Any], path: str) -> None:
    if isinstance(node, bool):
        return
    assert isinstance(node, dict), path
    node = cast("dict[str, Any]", node)
    assert node.keys() <= KEYWORDS, (path, node.keys() - KEYWORDS)
    if "$ref" in node:
        assert node.keys() == {"$ref"}, (path, "siblings of a reference")
        assert node["$ref"].removeprefix("#/$defs/") in root["$defs"], path
    if "$defs" in node:
        assert node is root, path
    assert node.get("format", "date") in FORMATS, (path, node.get("format"))
    assert "(?" not in node.get("pattern", ""), path
    assert isinstance(node.get("type", ""), str), path
    if node.get("type") == "array":
        assert "items" in node or node.get("maxItems") == 0, path
    for key in ("properties", "$defs"):
        for name, item in node.get(key, {}).items():
            _check_node(item, root, f"{path}.{name}")
    for i, item in enumerate(node.get("anyOf", ())):
        _check_node(item, root, f"{path}|{i}")
    for key in ("items", "additionalProperties"):
        if key in node:
            _check_node(node[key], root, f"{path}.{key}")
