"""Servers as values: what describes one, files of them, words that mean them, and their keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp_stage import Door, is_there, order, until
from servers.mcp_door import hand

from nbagent.contracts.errors import UsageError
from nbagent.contracts.secrets import redact
from nbagent.tools.mcp import McpServer, known_servers, mcp, open_hosts
from nbagent.tools.mcp.server import found

pytestmark = pytest.mark.usefixtures("nothing_known")


def write(path: Path, servers: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


NO_SERVER: dict[str, tuple[dict[str, Any], str]] = {
    "blank in name": ({"name": "a b", "command": ["x"]}, "no name for an MCP server"),
    "both": ({"command": ["x"], "url": "https://h/"}, "either command"),
    "env": ({"command": ["x"], "env": {"A": 7}}, "env .* must be texts"),
    "plain http": ({"url": "http://host.example/mcp"}, "http on this machine"),
    "login": ({"url": "https://ada:secret@host/"}, "headers="),
    "key in query": ({"url": "https://host/mcp?api_key=123"}, "headers="),
    "file and command": ({"file": "x.json", "command": ["x"]}, "not two"),
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


def test_file_of_servers_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CITY_KEY", "tok-4711-abcdef")
    path = write(
        tmp_path / "mine.json",
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
    assert city.cwd == str(tmp_path / "sub")
    assert (web.url, list(web.headers)) == ("https://host/mcp", ["X"])
    assert redact("tok-4711-abcdef") == "[redacted]"
    assert mcp("web", file=path).identity == web.identity


BAD_FILES: dict[str, tuple[str | None, str]] = {
    "missing": (None, "cannot be read"),
    "no JSON": ("{", "line 1 column 2"),
    "deep": (f'{{"mcpServers": {{"a": {"[" * 400 + "]" * 400}}}}}', "names no MCP servers"),
    "command": ('{"mcpServers": {"a": {"command": 7.5}}}', "mcpServers.a: .* list of texts"),
    "args": ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "mcpServers.a: .* args"),
    "variable": ('{"mcpServers": {"a": {"command": "${NOT_SET_4711}"}}}', "a: .*NOT_SET_4711"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file_is_one_clear_error(tmp_path: Path, case: str) -> None:
    text, words = BAD_FILES[case]
    path = tmp_path / "bad.json"
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
    assert found("city", project).identity == McpServer("city", command="home").identity
    write(own, {"city": {"command": "edited"}})
    (project / ".mcp.json").write_text("{")  # A project's broken file stops nothing of one's own.
    assert found("city", project).identity == McpServer("city", command="edited").identity


@pytest.mark.parametrize(
    "word",
    [
        "mcp:cty",
    ],
)
def test_word_of_no_server_names_those_there_are(tmp_path: Path, word: str) -> None:
    write(tmp_path / ".mcp.json", {"web": {"command": "serve"}})
    mcp("city", command=["a"])
    name = word.removeprefix("mcp:")
    with pytest.raises(UsageError, match=f"no MCP server '{name}', there are: city, web; make one"):
        open_hosts(order(word, project=tmp_path))


def test_package_is_imported_only_when_a_server_is_used() -> None:
    code = (
        "import sys; from nbagent.tools.mcp import mcp; mcp('a', command=['x']); "
        "assert not {'mcp', 'mcp_types', 'anyio', 'httpx2'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nbagent.tools.mcp.connection", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    door = Door(mcp("city", command=["a"]))
    with pytest.raises(UsageError, match=r"%pip install 'nbagent\[mcp\]'"):
        door.listed()


TOOLS = Path(__file__).parent
BEGIN = f"""
import gc, os, sys
sys.path[:0] = {[str(TOOLS), str(TOOLS.parent)]}
from mcp_stage import Door
from nbagent.tools.mcp import mcp
from servers.mcp_door import hand
"""
FORK = """
door = Door(mcp("city", command=hand())).listed()
pid = door.pid
child = os.fork()
if not child:
    assert door.data("echo", text="child") == '{"text": "child"}'
    assert door.pid != pid
    gc.collect()
    door.server.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert door.data("echo", text="parent") == '{"text": "parent"}'
assert door.pid == pid
"""


def said_by(code: str) -> str:
    """What a process prints that goes on from the beginning; its errors fail here."""
    command = [sys.executable, "-W", "ignore", "-c", BEGIN + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_process_has_a_server_of_its_own() -> None:
    said_by(FORK)


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
