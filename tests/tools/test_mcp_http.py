"""A server over streamable HTTP: the package's own, and what answers otherwise."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mcp_stage import Door, Start, until
from servers.model_server import ModelServer, Reply

from nbagent.contracts.errors import ToolError
from nbagent.tools.mcp import mcp

WEB = Path(__file__).parents[1] / "servers" / "mcp_web.py"


@contextmanager
def started(said: Path, *words: str) -> Generator[str]:
    """The URL of the package's own server, which writes what it says into a file."""
    command = [sys.executable, *(words or [str(WEB)])]
    with said.open("w") as out, subprocess.Popen(command, stdout=out) as process:
        assert until(lambda: "\n" in said.read_text(), within_s=20)
        yield said.read_text().split()[0]
        process.kill()


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server said."""
    return tmp_path_factory.mktemp("web") / "said"


@pytest.fixture(scope="module")
def url(said: Path) -> Iterator[str]:
    with started(said) as url:
        yield url


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The older protocol, and the newer one, which this server speaks when it is asked."""
    monkeypatch.setattr("nbagent.tools.mcp.connection.FIRST_MODE", request.param)
    return request.param


@pytest.fixture
def door(mode: str, url: str) -> Iterator[Door]:
    server = mcp(f"web-{mode}", url=url, timeout=20)
    yield Door(server).listed()
    server.close()


def test_tools_are_listed_and_called_and_show_their_progress(door: Door) -> None:
    spec = door.specs[f"{door.server.name}__add"]
    assert spec.parameters["properties"]["a"] == {"description": "The first.", "type": "integer"}
    assert door.data("add", a=2) == {"result": 3}
    assert door.data("steps") == {"result": "done"}
    assert ("step 3", 1.0) in door.fractions


@pytest.mark.timed
def test_stop_reaches_the_server(door: Door, said: Path) -> None:
    before = said.read_text().count("cancelled sleep")
    began = time.monotonic()
    stopped = Door(door.server)
    stopped.stop_after(0.2)
    assert stopped.error("sleep").code == "E_INTERRUPTED"
    assert time.monotonic() - began < 2
    assert until(lambda: said.read_text().count("cancelled sleep") > before)


@pytest.mark.usefixtures("mode")
def test_headers_go_with_each_request_and_are_not_shown(start: Start, url: str) -> None:
    headers = {"Authorization": "Bearer tok-4711-of-the-web"}
    door = start(url=url, headers=headers).listed()
    assert "tok-4711" not in repr(door.server)
    seen = door.data("headers")
    assert seen["authorization"] == "Bearer tok-4711-of-the-web"
    assert "tok-4711" not in str(door.preview("headers"))


AGAIN = """
import socket, runpy
create = socket.create_server
socket.create_server = lambda address: create(("127.0.0.1", {port}))
runpy.run_path({web!r}, run_name="__main__")
"""


def test_server_that_was_started_anew_is_met_again(start: Start, tmp_path: Path, mode: str) -> None:
    told = mode == "auto"  # In the older protocol it has forgotten the session.
    with started(tmp_path / "first") as first:
        door = start(name="back", url=first).listed()
    error = door.error("add", a=1) if told else None
    port = first.rpartition(":")[2].partition("/")[0]
    with started(tmp_path / "second", "-c", AGAIN.format(port=port, web=str(WEB))) as second:
        assert second == first
        error = error or door.error("add", a=1)
        assert door.data("add", a=1) == {"result": 2}
    assert error.code == "E_TOOL_FAILED"
    assert "on the MCP server 'back'" in error.message


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (None, ["onnect"]),
        (Reply(status=401, raw=b""), ["HTTP 401"]),
        (Reply(raw=b"<h1>Welcome", raw_type="text/html"), ["content type"]),
    ],
    ids=[
        "nobody",
        "no key",
        "a web page",
    ],
)
def test_what_is_no_server_says_why(start: Start, reply: Reply | None, words: list[str]) -> None:
    with ModelServer([reply] * 9 if reply else []) as odd:
        url = odd.url if reply else "http://127.0.0.1:1/mcp"
        with pytest.raises(ToolError) as caught:
            start(name="odd", url=url, start_timeout=5).listed()
    for word in [*words, "'odd' did not start", "check its URL and headers"]:
        assert word in caught.value.message


def test_redirect_elsewhere_is_not_followed(start: Start) -> None:
    with ModelServer() as thief:
        with ModelServer([Reply(status=307, headers={"location": thief.url})] * 9) as odd:
            headers = {"X-Key": "tok-4711-of-the-web"}
            with pytest.raises(ToolError, match=r"Redirect|redirect"):
                start(url=odd.url, headers=headers).listed()
        assert odd.requests
        assert not thief.requests


def test_new_tool_is_listed_once_the_server_says_so(start: Start, url: str) -> None:
    door = start(url=url).listed()
    assert "own__learnt" not in door.specs
    door.data("learn", name="learnt")
    assert until(lambda: "own__learnt" in door.specs)
