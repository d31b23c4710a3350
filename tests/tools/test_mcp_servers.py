"""Servers as values: what describes one, files of them, words that mean them, and their keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.mcp_door import HAND, Door, hand, order, until

from nbagent.contracts.errors import UsageError
from nbagent.contracts.secrets import redact
from nbagent.tools.mcp import McpServer, known_servers, mcp, open_hosts, server
from nbagent.tools.mcp.server import found


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No server of another test, no file of the developer's."""
    monkeypatch.setattr(server, "_servers", {})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield
    for one in known_servers().values():
        one.close()


def write(path: Path, servers: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


NO_SERVER: dict[str, tuple[dict[str, Any], str]] = {
    "blank in name": ({"name": "a b", "command": ["x"]}, "no name for an MCP server"),
    "both": ({"command": ["x"], "url": "https://h/"}, "either command"),
    "empty": ({"command": []}, "list of texts"),
    "quotes": ({"command": "x 'y"}, "list of texts"),
    "env": ({"command": ["x"], "env": {"A": 7}}, "env .* must be texts"),
    "timeout": ({"command": ["x"], "timeout": 0}, "more than 0 seconds"),
    "scheme": ({"url": "ftp://host/"}, "must be https://"),
    "plain http": ({"url": "http://host.example/mcp"}, "http on this machine"),
    "login": ({"url": "https://ada:secret@host/"}, "headers="),
    "key in query": ({"url": "https://host/mcp?api_key=123"}, "headers="),
    "header": ({"url": "https://host/", "headers": {"A": "x\r\nB: y"}}, "control characters"),
    "file and command": ({"file": "x.json", "command": ["x"]}, "not two"),
}


@pytest.mark.parametrize("case", NO_SERVER)
def test_what_describes_no_server_says_what_to_write(case: str) -> None:
    options, words = NO_SERVER[case]
    given: dict[str, Any] = {"name": "city", **options}
    with pytest.raises(UsageError, match=words) as caught:
        mcp(given.pop("name"), **given)
    assert "ada:secret" not in caught.value.message


@pytest.mark.parametrize("url", ["http://127.0.0.1:8/mcp", "http://localhost/", "http://[::1]:8/"])
def test_http_is_fine_on_this_machine(url: str) -> None:
    assert mcp("city", url=url).url == url


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
    door = Door(first).prepare()
    same = mcp("city", command=hand(), env={"CITY_TOKEN": "tok-4711-abcdef"})
    assert Door(same).prepare().pid == door.pid
    other = mcp("city", command=hand(), env={"CITY_TOKEN": "tok-4712-abcdef"})
    assert known_servers() == {"city": other}
    Door(other).prepare()
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
    "list": ("[]", "names no MCP servers"),
    "deep": (f'{{"mcpServers": {{"a": {"[" * 400 + "]" * 400}}}}}', "names no MCP servers"),
    "empty": ('{"mcpServers": {"a": {}}}', "mcpServers.a: .* either command"),
    "command": ('{"mcpServers": {"a": {"command": 7.5}}}', "mcpServers.a: .* list of texts"),
    "args": ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "mcpServers.a: .* args"),
    "env": ('{"mcpServers": {"a": {"command": "x", "env": {"K": null}}}}', "a: env .* texts"),
    "variable": ('{"mcpServers": {"a": {"command": "${NOT_SET_4711}"}}}', "a: .*NOT_SET_4711"),
    "old transport": ('{"mcpServers": {"a": {"type": "sse", "url": "https://h"}}}', "type http"),
    "name": ('{"mcpServers": {"a b": {"command": "x"}}}', "mcpServers.a b: .* no name"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file_is_one_clear_error(tmp_path: Path, case: str) -> None:
    text, words = BAD_FILES[case]
    path = tmp_path / "bad.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        mcp("a b" if case == "name" else "a", file=path)
    assert str(path) in caught.value.message


def test_server_of_a_file_is_looked_up_anew_each_time(tmp_path: Path) -> None:
    project = tmp_path / "project"
    home = tmp_path / "home" / ".config" / "nbagent" / "mcp.json"
    write(home, {"city": {"command": "home"}})
    write(project / ".mcp.json", {"city": {"command": "project"}, "bad": {"command": 7.5}})
    names = [host.name for host in open_hosts(order("mcp:city", "mcp:bad", project=project))]
    assert names == ["mcp:city", "mcp:bad"]
    assert found("city", project).identity == McpServer("city", command="home").identity
    write(home, {"city": {"command": "edited"}})
    (project / ".mcp.json").write_text("{")  # A project's broken file stops nothing of one's own.
    assert found("city", project).identity == McpServer("city", command="edited").identity


@pytest.mark.parametrize("word", ["mcp:cty", "mcp", "city__look"])
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
        door.prepare()


END = """
import os, sys, time
sys.path[:0] = {path!r}
from nbagent.tools.mcp import mcp
from servers.mcp_door import Door, hand
door = Door(mcp("city", command=hand({flags}))).prepare()
print(door.pid, flush=True)
{end}
"""


FORK = """
import gc, os, sys
sys.path[:0] = {path!r}
from nbagent.tools.mcp import mcp
from servers.mcp_door import Door, hand
door = Door(mcp("city", command=hand())).prepare()
pid = door.pid
child = os.fork()
if not child:
    assert door.text("echo", text="child") == '{{"text": "child"}}'
    assert door.pid != pid
    gc.collect()
    door.server.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert door.text("echo", text="parent") == '{{"text": "parent"}}'
assert door.pid == pid
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_process_has_a_server_of_its_own() -> None:
    code = FORK.format(path=[str(HAND.parents[1])])
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="looks at processes as POSIX has them")
@pytest.mark.parametrize(
    ("flags", "end"),
    [("", ""), ("'--stubborn'", ""), ("", "os.kill(os.getpid(), 9)")],
    ids=["its end", "its end, a stubborn server", "its being killed"],
)
def test_no_server_outlives_the_process(flags: str, end: str) -> None:
    from test_mcp_stdio import is_there

    path = [str(HAND.parents[1])]
    code = textwrap.dedent(END).format(path=path, flags=flags, end=end)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert not done.stderr, done.stderr
    pid = int(done.stdout)
    assert until(lambda: not is_there(pid))
