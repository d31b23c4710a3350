"""A server over streamable HTTP: the package's own, and what answers otherwise."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from host_door import refused
from servers.mcp_door import Door, until
from servers.model_server import ModelServer, Reply

from nbagent.contracts.errors import ToolError
from nbagent.tools.mcp import McpServer, mcp

WEB = Path(__file__).parents[1] / "servers" / "mcp_web.py"


@dataclass
class Web:
    """The server's process, and what it printed."""

    process: subprocess.Popen[str]
    url: str
    lines: list[str] = field(default_factory=list[str])

    def read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.strip() for line in self.process.stdout)


@contextmanager
def started(*words: str) -> Generator[Web]:
    command = [sys.executable, *(words or [str(WEB)])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        made = Web(process, process.stdout.readline().strip())
        reader = threading.Thread(target=made.read, daemon=True)
        reader.start()
        yield made
        process.kill()
        reader.join(5)


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with started() as made:
        yield made


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The older protocol, and the newer one, which this server speaks when it is asked."""
    monkeypatch.setattr("nbagent.tools.mcp.connection.FIRST_MODE", request.param)
    return request.param


@pytest.fixture
def door(mode: str, web: Web) -> Iterator[Door]:
    server = mcp(f"web-{mode}", url=web.url, timeout=20)
    yield Door(server).prepare()
    server.close()


@pytest.fixture
def made() -> Iterator[list[McpServer]]:
    servers: list[McpServer] = []
    yield servers
    for server in servers:
        server.close()


def test_tools_are_listed_and_called_and_show_their_progress(door: Door) -> None:
    spec = door.specs[f"{door.server.name}__add"]
    assert spec.parameters["properties"]["a"] == {"description": "The first.", "type": "integer"}
    assert door.text("add", a=2) == {"result": 3}
    assert door.text("steps") == {"result": "done"}
    assert ("step 3", 1.0) in door.progress


def test_stop_reaches_the_server(door: Door, web: Web) -> None:
    before = web.lines.count("cancelled sleep")
    began = time.monotonic()
    assert refused(door.call("sleep", stop_after_s=0.2)).code == "E_INTERRUPTED"
    assert time.monotonic() - began < 2
    assert until(lambda: web.lines.count("cancelled sleep") > before)


@pytest.mark.usefixtures("mode")
def test_headers_go_with_each_request_and_are_not_shown(made: list[McpServer], web: Web) -> None:
    headers = {"Authorization": "Bearer tok-4711-of-the-web"}
    made.append(mcp("keyed", url=web.url, headers=headers))
    assert "tok-4711" not in repr(made[0])
    door = Door(made[0]).prepare()
    seen = door.text("headers")
    assert seen["authorization"] == "Bearer tok-4711-of-the-web"
    assert "tok-4711" not in str(door.preview("headers"))


def test_environment_proxy_is_not_asked_for_loopback(
    made: list[McpServer], web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    made.append(mcp("direct", url=web.url))
    assert Door(made[0]).prepare().text("add", a=1) == {"result": 2}


AGAIN = """
import socket, runpy
create = socket.create_server
socket.create_server = lambda address: create(("127.0.0.1", {port}))
runpy.run_path({web!r}, run_name="__main__")
"""


def test_server_that_was_started_anew_is_met_again(made: list[McpServer], mode: str) -> None:
    told = mode == "auto"  # In the older protocol it has forgotten the session.
    with started() as first:
        made.append(mcp("back", url=first.url))
        door = Door(made[0]).prepare()
    error = refused(door.call("add", a=1)) if told else None
    port = first.url.rpartition(":")[2].partition("/")[0]
    with started("-c", AGAIN.format(port=port, web=str(WEB))) as second:
        assert second.url == first.url
        error = error or refused(door.call("add", a=1))
        assert door.text("add", a=1) == {"result": 2}
    assert error.code == "E_TOOL_FAILED"
    assert "on the MCP server 'back'" in error.message


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (None, ["onnect"]),
        (Reply(status=401, raw=b""), ["HTTP 401"]),
        (Reply(status=500, raw=b"<h1>", raw_type="text/html"), ["HTTP 500"]),
        (Reply(raw=b"<h1>Welcome", raw_type="text/html"), ["content type"]),
        (Reply(raw=b"[1, 2", raw_type="application/json"), ["parse"]),
    ],
    ids=["nobody", "no key", "broken", "a web page", "garbage"],
)
def test_what_is_no_server_says_why(
    made: list[McpServer], reply: Reply | None, words: list[str]
) -> None:
    with ModelServer([reply] * 9 if reply else []) as odd:
        url = odd.url if reply else "http://127.0.0.1:1/mcp"
        made.append(mcp("odd", url=url, start_timeout=5))
        with pytest.raises(ToolError) as caught:
            Door(made[0]).prepare()
    for word in [*words, "'odd' did not start", "check its URL and headers"]:
        assert word in caught.value.message


def test_redirect_elsewhere_is_not_followed(made: list[McpServer]) -> None:
    with ModelServer() as thief:
        with ModelServer([Reply(status=307, headers={"location": thief.url})] * 9) as odd:
            headers = {"X-Key": "tok-4711-of-the-web"}
            made.append(mcp("odd", url=odd.url, headers=headers))
            with pytest.raises(ToolError, match=r"Redirect|redirect"):
                Door(made[0]).prepare()
        assert odd.requests
        assert not thief.requests


def test_new_tool_is_listed_once_the_server_says_so(made: list[McpServer], web: Web) -> None:
    made.append(mcp("learner", url=web.url))
    door = Door(made[0]).prepare()
    assert "learner__learnt" not in door.specs
    door.text("learn", name="learnt")
    assert until(lambda: "learner__learnt" in door.specs)
