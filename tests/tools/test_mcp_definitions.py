"""Names and schemas of strangers, made legal on every wire."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from legal_schema import check_legal

from nbagent.tools.mcp.connection import Definitions
from nbagent.tools.mcp.host import ListedTool, offered
from nbagent.tools.mcp.server import McpServer

SERVER = McpServer("city", command=["serve"])


def listing(*raw: dict[str, Any], server: McpServer = SERVER) -> Any:
    return offered(server, Definitions(raw))


def only(raw: dict[str, Any], server: McpServer = SERVER) -> ListedTool:
    (tool,) = listing(raw, server=server)[0].values()
    check_legal(tool.spec)
    return tool


def with_schema(schema: Any) -> dict[str, Any]:
    return only({"name": "t", "inputSchema": schema}).spec.parameters


@pytest.mark.parametrize(
    ("server", "name", "made"),
    [
        ("city", "get-time", "city__get-time"),
        ("city", "a.b/c d", "city__a_b_c_d"),
        ("city", "", "city__tool"),
        ("größe.b", "go", "gr__e_b__go"),
    ],
    ids=["plain", "other signs", "none", "server of other letters"],
)
def test_name_is_made_of_server_and_tool(server: str, name: str, made: str) -> None:
    spec = only({"name": name}, McpServer(server, command=["serve"])).spec
    assert (spec.name, spec.traits.host) == (made, f"mcp:{server}")


def test_long_names_stay_apart_and_the_second_of_one_name_is_left_out_with_a_warning() -> None:
    raw = [{"name": "x" * 200 + end} for end in ("a", "b")]
    names = list(listing(*raw)[0])
    assert len(set(names)) == 2
    assert max(map(len, names)) == 64
    raw = [{"name": "a b", "description": "first"}, {"name": "a/b", "description": "second"}]
    tools, (warning,) = listing(*raw)
    assert [tool.spec.description for tool in tools.values()] == ["first"]
    assert warning.startswith("1 tools of the MCP server 'city' are left out ('a/b')")


def test_definitions_that_are_too_long_in_sum_are_cut_with_a_warning() -> None:
    raw = [{"name": f"t{i}", "description": "x" * 4_000} for i in range(90)]
    tools, (warning,) = listing(*raw)
    assert list(tools) == [f"city__t{i}" for i in range(49)]
    assert warning.startswith("41 tools")


def test_any_change_of_a_definition_and_another_server_of_the_name_change_its_hash() -> None:
    before = {"name": "t", "description": "d", "inputSchema": {"type": "object"}}
    changes: list[dict[str, Any]] = [
        {"description": "other"},
        {"inputSchema": {"type": "object", "properties": {"y": {}}}},
        {"annotations": {"readOnlyHint": True}},
        {"outputSchema": {"type": "object"}},
    ]
    tools = [only(before), *(only({**before, **change}) for change in changes)]
    tools.append(only(before, McpServer("city", command=["serve", "--elsewhere"])))
    assert len({tool.spec.traits.sha for tool in tools}) == len(tools)
    assert only(dict(before)).spec.traits.sha == tools[0].spec.traits.sha


TEXT = {"type": "string"}
NODES: dict[str, tuple[Any, Any]] = {
    "several types": ({"type": ["string", "null"]}, {"anyOf": [TEXT, {"type": "null"}]}),
    "one option": ({"oneOf": [TEXT]}, TEXT),
    "all of": ({"allOf": [TEXT, {"maxLength": 3}]}, {**TEXT, "maxLength": 3}),
    "array of anything": ({"type": "array"}, {"type": "array", "items": {}}),
    "pattern": ({**TEXT, "pattern": "(?i)x"}, TEXT),
    "reference to nothing": ({"$ref": "#/$defs/missing"}, {}),
}


@pytest.mark.parametrize(("given", "made"), NODES.values(), ids=NODES)
def test_node_is_made_legal(given: Any, made: Any) -> None:
    schema = with_schema({"type": "object", "properties": {"x": given}})
    assert schema["properties"]["x"] == made


def test_references_are_written_out_and_one_to_itself_is_left_open() -> None:
    schema = {
        "type": "object",
        "definitions": {
            "city": {"type": "object", "properties": {"twin": {"$ref": "#/definitions/city"}}}
        },
        "properties": {"city": {"$ref": "#/definitions/city", "description": "Where."}},
    }
    shown = with_schema(schema)
    twin: dict[str, Any] = {"type": "object", "properties": {}, "description": "city, as above."}
    assert shown["properties"]["city"]["description"] == "Where."
    assert shown["properties"]["city"]["properties"] == {"twin": twin}


DOUBLING = {
    f"t{i}": {"properties": {side: {"$ref": f"#/$defs/t{i + 1}"} for side in ("left", "right")}}
    for i in range(18)
}


ROOTS: dict[str, Any] = {
    "null": None,
    "itself": {"$ref": "#"},
    "cycles": {"properties": {"x": {"allOf": [{"$ref": "#"}, {"$ref": "#/properties/x"}]}}},
    "broken unions": {"anyOf": "x", "oneOf": [7, None]},
    "doubling": {"$defs": DOUBLING, "properties": {"x": {"$ref": "#/$defs/t0"}}},
}


@pytest.mark.timed
@pytest.mark.parametrize("schema", ROOTS.values(), ids=ROOTS)
def test_root_becomes_an_object_in_no_time(schema: Any) -> None:
    began = time.perf_counter()
    assert with_schema(schema)["type"] == "object"
    assert time.perf_counter() - began < 0.5


def test_random_schemas_are_legal() -> None:
    dice = random.Random(4)
    keys = ["type", "properties", "items", "anyOf", "oneOf", "allOf", "$ref", "enum", "const"]
    keys += ["required", "prefixItems", "description", "format", "pattern", "default", "minItems"]
    keys += ["additionalProperties", "patternProperties", "$defs", "maximum", "x-header", "not"]
    atoms: list[Any] = ["object", "array", "string", "", "#", "#/$defs/a", "a", "(", "date", None]
    atoms += [True, False, 0, -1, 1.5, float("inf"), 2**70, "\u202e", "\ud800"]

    def grown(depth: int) -> Any:
        if depth == 0 or dice.random() < 0.3:
            return dice.choice(atoms)
        if dice.random() < 0.25:
            return [grown(depth - 1) for _ in range(dice.randint(0, 4))]
        names = keys if dice.random() < 0.7 else ["a", "b.c", "", "x" * 80, "\u200b"]
        return {dice.choice(names): grown(depth - 1) for _ in range(dice.randint(0, 5))}

    for _ in range(400):
        schema = {dice.choice(keys): grown(6) for _ in range(5)} | {"properties": grown(6)}
        with_schema(schema)
