"""MCP servers as values, files of them, their keys; names and schemas of strangers made legal."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from legal_schema import check_legal
from mcp_stage import Door, is_there, order, until
from servers.mcp_door import hand

from nbagent.contracts.errors import UsageError
from nbagent.contracts.secrets import redact
from nbagent.settings.sources import project_folder
from nbagent.tools.mcp.config import configured_servers, find_server, known_servers, mcp
from nbagent.tools.mcp.connection import Definitions
from nbagent.tools.mcp.host import ListedTool, build_tools, open_hosts
from nbagent.tools.mcp.server import McpServer

pytestmark = pytest.mark.usefixtures("nothing_known")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of the person's own; a file inside the project would be a stranger's."""
    path = tmp_path / "project"
    path.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        project_folder()  # is remembered
    return tmp_path


def write(path: Path, servers: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


NO_SERVER: dict[str, tuple[dict[str, Any], str]] = {
    "blank in name": ({"name": "a b", "command": ["x"]}, "not a valid name of an MCP server"),
    "both": ({"command": ["x"], "url": "https://h/"}, "either command"),
    "env": ({"command": ["x"], "env": {"A": 7}}, "env .* must be a dict of texts"),
    "plain http": ({"url": "http://host.example/mcp"}, "http on this machine"),
    "login": ({"url": "https://ada:secret@host/"}, "headers="),
    "key in query": ({"url": "https://host/mcp?api_key=123"}, "headers="),
    "header": ({"url": "https://host/", "headers": {"A": "x\r\nB: y"}}, "control characters"),
    "file and command": ({"file": "x.json", "command": ["x"]}, "only one of file="),
}


@pytest.mark.parametrize("case", NO_SERVER)
def test_what_describes_no_server_says_what_to_write(case: str) -> None:
    options, words = NO_SERVER[case]
    given: dict[str, Any] = {"name": "city", **options}
    with pytest.raises(UsageError, match=words) as caught:
        mcp(given.pop("name"), **given)
    assert "ada:secret" not in caught.value.message


def test_keys_are_hidden_wherever_the_server_is_shown() -> None:
    made = mcp(
        "city",
        command=["serve", "--api-key", "arg-4711-abcdef", "--token=arg-4712-abcdef"],
        env={"CITY_TOKEN": "tok-4711-abcdef", "ZONE": "Europe/Paris"},
    )
    for text in (repr(made), str(made), made.where, repr(made.env), f"{made!r}"):
        assert not [key for key in ("4711", "4712") if key in text]
    web = mcp("web", url="https://h/", headers={"X-Team": "blue whale rising"})
    assert "whale" not in repr(web.headers)
    assert redact("tok-4711-abcdef in Europe/Paris") == "[redacted] in Europe/Paris"


def test_same_description_is_the_same_server_and_another_one_replaces_it() -> None:
    first = mcp("city", command=hand(), env={"CITY_TOKEN": "tok-4711-abcdef"})
    door = Door(first).listed()
    same = mcp("city", command=hand(), env={"CITY_TOKEN": "tok-4711-abcdef"})
    assert Door(same).listed().pid == door.pid
    other = mcp("city", command=hand(), env={"CITY_TOKEN": "tok-4712-abcdef"})
    assert known_servers() == {"city": other}
    Door(other).listed()
    assert until(lambda: not first.is_running)


def test_file_of_servers_is_read(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CITY_KEY", "tok-4711-abcdef")
    path = write(
        elsewhere / "mine.json",
        {
            "city": {
                "command": "serve",
                "args": ["--port", "80", "${NOT_SET_4711:-fallback}"],
                "env": {"KEY": "${CITY_KEY}", "OTHER": "${env:CITY_KEY}!"},
                "cwd": "sub",
            },
            "web": {"type": "http", "url": "https://host/mcp", "headers": {"X": "${CITY_KEY}"}},
            "off": {"command": "x", "disabled": True},
        },
    )
    city, web = mcp("city", file=path), mcp("web", file=path)
    assert city.command == ("serve", "--port", "80", "fallback")
    assert city.cwd == str(elsewhere / "sub")
    assert (web.url, list(web.headers)) == ("https://host/mcp", ["X"])
    assert redact("tok-4711-abcdef") == "[redacted]"
    assert mcp("web", file=path).identity == web.identity


BAD_FILES: dict[str, tuple[str | None, str]] = {
    "missing": (None, "cannot be read"),
    "no JSON": ("{", "line 1 column 2"),
    "deep": (f'{{"mcpServers": {{"a": {"[" * 400 + "]" * 400}}}}}', "has no MCP servers"),
    "command": ('{"mcpServers": {"a": {"command": 7.5}}}', "mcpServers.a: .* list of texts"),
    "args": ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "mcpServers.a: .* args"),
    "variable": ('{"mcpServers": {"a": {"command": "${NOT_SET_4711}"}}}', "a: .*NOT_SET_4711"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file_is_one_clear_error(elsewhere: Path, case: str) -> None:
    text, words = BAD_FILES[case]
    path = elsewhere / "bad.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        mcp("a", file=path)
    assert str(path) in caught.value.message


def test_server_of_a_file_is_looked_up_anew_each_time(tmp_path: Path, home: Path) -> None:
    project = tmp_path / "project"
    own = home / ".config" / "nbagent" / "mcp.json"
    write(own, {"city": {"command": "home"}})
    write(project / ".mcp.json", {"city": {"command": "project"}, "bad": {"command": 7.5}})
    names = [host.name for host in open_hosts(order("mcp:city", "mcp:bad", project=project))]
    assert names == ["mcp:city", "mcp:bad"]
    assert find_server("city", project).identity == McpServer("city", command="home").identity
    write(own, {"city": {"command": "edited"}})
    (project / ".mcp.json").write_text("{")  # A project's broken file stops nothing of one's own.
    assert find_server("city", project).identity == McpServer("city", command="edited").identity


def test_own_servers_are_read_from_the_configuration_folder_and_from_the_one_before_it(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    own = tmp_path / "xdg" / "nbagent" / "mcp.json"
    before = home / ".config" / "nbagent" / "mcp.json"
    write(before, {"city": {"command": "before"}, "old": {"command": "old"}})
    assert find_server("old", tmp_path).identity == McpServer("old", command="old").identity
    write(own, {"city": {"command": "own"}})
    assert find_server("city", tmp_path).identity == McpServer("city", command="own").identity
    assert configured_servers() == ["city", "old"]
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # Would be in a stranger's folder.
    assert find_server("city", tmp_path).identity == McpServer("city", command="before").identity


@pytest.mark.parametrize("word", ["mcp:cty"])
def test_word_of_no_server_names_those_there_are(tmp_path: Path, word: str) -> None:
    write(tmp_path / ".mcp.json", {"web": {"command": "serve"}})
    mcp("city", command=["a"])
    name = word.removeprefix("mcp:")
    with pytest.raises(UsageError, match=f"no MCP server '{name}', there are: city, web; make one"):
        open_hosts(order(word, project=tmp_path))


def test_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nbagent.tools.mcp.connection", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    door = Door(mcp("city", command=["a"]))
    with pytest.raises(UsageError, match=r"%pip install 'mcp>=2.3'"):
        door.listed()


TOOLS = Path(__file__).parent
BEGIN = f"""
import gc, os, sys
sys.path[:0] = {[str(TOOLS), str(TOOLS.parent)]}
from mcp_stage import Door
from nbagent.tools.mcp.config import mcp
from servers.mcp_door import hand
"""


def said_by(code: str) -> str:
    """Output of a process that continues after BEGIN; it must print no errors."""
    command = [sys.executable, "-W", "ignore", "-c", BEGIN + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="looks at processes as POSIX has them")
@pytest.mark.parametrize(
    ("flags", "end"),
    [("", ""), ("'--stubborn'", ""), ("", "os.kill(os.getpid(), 9)")],
    ids=["its end", "its end, a stubborn server", "its being killed"],
)
def test_no_server_outlives_the_process(flags: str, end: str) -> None:
    door = f"Door(mcp('city', command=hand({flags}))).listed()"
    pid = int(said_by(f"door = {door}\nprint(door.pid, flush=True)\n{end}"))
    assert until(lambda: not is_there(pid))


@pytest.mark.timed
@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_a_forked_child_that_ends_leaves_the_server_to_its_parent_and_waits_for_nothing() -> None:
    said = said_by("""
import time
door = Door(mcp('city', command=hand())).listed()
pid, began = door.pid, time.monotonic()
child = os.fork()
if not child:
    sys.exit()
ended = os.waitpid(child, 0)[1]
print(ended, time.monotonic() - began < 5, pid == door.pid, door.server.is_running)
""")
    assert said == "0 True True True\n"


SERVER = McpServer("city", command=["serve"])


def listing(*raw: dict[str, Any], server: McpServer = SERVER) -> Any:
    return build_tools(server, Definitions(raw))


def only(raw: dict[str, Any], server: McpServer = SERVER) -> ListedTool:
    (tool,) = listing(raw, server=server)[0].values()
    check_legal(tool.spec)
    return tool


def with_schema(schema: Any) -> dict[str, Any]:
    return only({"name": "t", "inputSchema": schema}).spec.parameters


NAMES = {
    ("city", "a.b/c d"): "city__a_b_c_d",
    ("city", "ünïcode"): "city___n_code",
    ("city", ""): "city__tool",
    ("größe.b", "go"): "gr__e_b__go",
}


def test_name_is_made_of_server_and_tool() -> None:
    for (server, name), made in NAMES.items():
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


@pytest.mark.parametrize("schema", ROOTS.values(), ids=ROOTS)
def test_root_becomes_an_object_in_no_time(schema: Any) -> None:
    began = time.process_time()
    assert with_schema(schema)["type"] == "object"
    assert time.process_time() - began < 0.5


def test_large_schema_keeps_its_names_before_its_details() -> None:
    inner = {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(20)}}
    schema = {"type": "object", "properties": {f"p{i}": inner for i in range(60)}}
    made = with_schema(schema)
    assert len(json.dumps(made)) <= 20_000
    assert list(made["properties"]) == [f"p{i}" for i in range(60)]


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
