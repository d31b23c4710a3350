"""A server over stdio, by hand, and over HTTP: every kind of content, every way to misbehave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from host_door import refused
from legal_schema import check_legal
from mcp_stage import Door, Start, is_there, until
from servers.mcp_door import hand
from servers.model_server import ModelServer, Reply

from nbagent.contracts.errors import ToolError
from nbagent.contracts.messages import ImagePart
from nbagent.tools.mcp.config import mcp

linux = pytest.mark.skipif(sys.platform == "win32", reason="looks at processes as POSIX has them")


@pytest.fixture(scope="module", params=["2025-11-25", "2026-07-28"])
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    """A well-behaved one of each protocol."""
    flags = ["--modern"] if request.param == "2026-07-28" else []
    server = mcp(f"hand{request.param[:4]}", command=hand(*flags), timeout=20)
    yield Door(server).listed()
    server.close()


@pytest.fixture(autouse=True)
def no_long_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 0.3)
    monkeypatch.setattr("mcp.client.stdio.FORCE_KILL_TIMEOUT", 0.1)


def test_tool_bears_the_servers_name_asks_first_and_gets_its_arguments_as_given(door: Door) -> None:
    spec = door.specs[f"{door.server.name}__echo"]
    assert spec.traits.host == f"mcp:{door.server.name}"
    assert (spec.traits.ruling, len(spec.traits.sha)) == ("ask", 64)
    assert spec.parameters["properties"] == {"text": {"type": "string"}}
    given = {"text": "ä\n\u2028", "n": 2**60, "deep": {"x": [1, None, True]}}
    assert json.loads(door.data("echo", **given)) == given


def test_every_kind_of_content_is_given_or_named_and_nothing_is_said_twice(door: Door) -> None:
    outcome = door.call("pieces")
    image, *_ = outcome.result.attachments
    assert isinstance(image, ImagePart)
    assert image.media_type == "image/png"
    assert outcome.result.data == [
        "first",
        "[image 1: PNG picture, 2×2 px]",
        "[image/tiff: not sent]",
        "[audio/wav: not sent]",
        {"resource_link": {"uri": "file:///a.txt", "name": "a"}},
        {"resource": {"uri": "mem://b", "text": "inside"}},
        {"resource": {"uri": "mem://c", "blob": "[data: not sent]"}},
    ]

    assert door.data("structured") == {"rows": 2}
    assert door.data("nothing") == []


@pytest.mark.parametrize(
    ("tool", "code", "words"),
    [
        ("fail", "E_TOOL_FAILED", "no such city"),
        ("refuse", "E_TOOL_FAILED", "text is missing"),
        ("nonsense", "E_TOOL_FAILED", "invalid "),
        ("missing", "E_UNKNOWN_TOOL", "there is no tool"),
    ],
)
def test_failure_is_typed(door: Door, tool: str, code: str, words: str) -> None:
    error = door.error(tool)
    assert error.code == code
    assert words in error.message


ERROR_FLAGS: dict[str, tuple[Any, bool]] = {
    # What a server writes as `isError`, and if it is an error.
    "null": (None, False),
    "false": (False, False),
    "true": (True, True),
    "zero": (0, False),
    "one": (1, True),
    "empty text": ("", False),
    "text false": ("False", False),
    "text true": ("true", True),
    "another text": ("timeout", True),
    "empty list": ([], False),
    "an object": ({"code": 5}, True),
}


@pytest.mark.parametrize(("flag", "is_error"), ERROR_FLAGS.values(), ids=ERROR_FLAGS)
def test_error_flag_of_any_type_is_read(door: Door, flag: Any, is_error: bool) -> None:
    outcome = door.call("mixed", isError=flag)
    assert outcome.result.ok is not is_error
    shown = outcome.result.error.message if outcome.result.error else outcome.result.data
    assert shown == "a result"


ODD_CONTENTS: dict[str, tuple[Any, Any]] = {
    # What a server writes as `content`, and the data for the model.
    "null": (None, []),
    "a text": ("text", "text"),
    "one block": ({"type": "text", "text": "text"}, "text"),
    "texts": (["a", "b"], ["a", "b"]),
    "a null between": ([None, {"type": "text", "text": "text"}], "text"),
    "no kind": ([{"text": "text"}], "text"),
    "kind in capitals": ([{"type": "Text", "text": "text"}], "text"),
    "a number": ([{"type": "text", "text": 5}], "5"),
    "an object": ([{"type": "text", "text": {"n": 1}}], '{"n":1}'),
    "unknown kind": ([{"type": "chart", "n": 1}], '{"type":"chart","n":1}'),
    "odd annotations": ([{"type": "text", "text": "text", "annotations": {"audience": 1}}], "text"),
}


@pytest.mark.parametrize(("content", "data"), ODD_CONTENTS.values(), ids=ODD_CONTENTS)
def test_content_of_any_form_is_read(door: Door, content: Any, data: Any) -> None:
    assert door.data("mixed", content=content) == data


def test_structured_content_of_any_form_is_read(door: Door) -> None:
    assert door.data("mixed", content=None, structuredContent={"n": 1}) == {"n": 1}
    assert door.data("mixed", content=None, structuredContent=[1]) == "[1]"
    assert door.data("mixed", structuredContent="other") == "a result"
    message = door.error("mixed", _meta=7).message
    assert "answered mixed with an invalid result: " in message
    assert "\n" not in message


def test_batch_is_refused_at_once_and_other_lists_on_stdout_are_only_logged(door: Door) -> None:
    for other in ([], [1, 2], ["jsonrpc"], [{"level": "info"}], [["jsonrpc"]]):
        assert door.data("batch", list=other) == "done"
    error = door.error("batch")
    assert error.code == "E_TOOL_FAILED"
    assert "answered with a JSON batch (a list of messages)" in error.message
    assert "\n" not in error.message
    assert door.data("echo", text="on") == '{"text": "on"}'


def test_calls_run_beside_each_other_and_show_their_progress(door: Door) -> None:
    def echo(text: str) -> Any:
        return door.data("echo", text=text)

    texts = [f"n{i}" for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(echo, texts))
    assert given == [json.dumps({"text": text}) for text in texts]
    assert door.data("progress") == "done"
    assert {("part 1", 0.25), ("part 3", 0.75)} <= set(door.fractions)


def test_person_sees_server_and_command_beside_the_call(door: Door) -> None:
    preview = door.preview("echo", text="x")
    assert (preview.ruling, preview.session_scope) == ("ask", "every call")
    pieces = {piece.label: piece.text for piece in preview.pieces}
    assert pieces["server"] == door.server.name
    assert "mcp_hand.py" in pieces["command"]
    assert "runs 'echo' on the MCP server" in preview.why
    assert "sent as" not in pieces, "the question shows the arguments themselves"


def test_stop_cancels_the_call_and_tells_the_server(door: Door) -> None:
    began = time.monotonic()
    stopped = Door(door.server)
    stopped.stop_after(0.1)
    assert stopped.error("hang").code == "E_INTERRUPTED"
    assert time.monotonic() - began < 20
    assert until(lambda: "cancelled hang" in door.server.log)
    assert door.data("echo", text="on") == '{"text": "on"}'


def test_server_sees_only_what_it_was_given(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "sk-not-for-servers-123")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:password@proxy:3128")
    env = {"CITY_TOKEN": "tok-4711-for-this-one", "ZONE": "Europe/Paris"}
    seen = json.loads(start(env=env).listed().data("environment"))
    # LC_CTYPE is Python's own doing.
    assert set(seen) <= {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LC_CTYPE", *env}
    assert seen["ZONE"] == "Europe/Paris"
    assert seen["CITY_TOKEN"] == "tok-4711-for-this-one"


def test_log_holds_stderr_and_chatter_and_is_bounded(start: Start) -> None:
    door = start("--chatty").listed()
    assert "the server is up" in door.server.log
    assert any("not an MCP message" in line and "Welcome" in line for line in door.server.log)
    assert door.data("flood", lines=30_000) == "flooded"
    assert until(lambda: any("line 29999" in line for line in door.server.log))
    assert len(door.server.log) <= 50
    assert max(map(len, door.server.log)) <= 500


def test_silent_call_times_out_and_only_a_frozen_server_is_started_again(start: Start) -> None:
    door = start(timeout=0.5).listed()
    assert door.error("hang").code == "E_TIMEOUT"
    assert until(lambda: "cancelled hang" in door.server.log)
    before = door.pid
    assert door.data("progress", times=12) == "done"
    assert door.pid == before
    assert door.error("freeze").code == "E_TIMEOUT"
    assert door.data("echo", text="again") == '{"text": "again"}'
    assert door.pid != before
    assert not is_there(before)


def test_server_that_is_busy_with_a_call_is_not_taken_for_frozen(start: Start) -> None:
    door = start("--single", timeout=0.3).listed()
    with ThreadPoolExecutor() as pool:
        busy = pool.submit(door.data, "progress", times=20)
        time.sleep(0.2)
        assert len(Door(door.server).specs) > 10
        assert busy.result() == "done"


def test_server_that_dies_is_named_with_its_last_words_and_comes_back(start: Start) -> None:
    door = start().listed()
    before = door.pid
    error = door.error("die")
    assert error.code == "E_TOOL_FAILED"
    assert "out of cheese" in error.message
    assert "unknown" in error.message
    for _ in range(2):  # After a call, and after it died between calls.
        assert door.data("echo", text="back") == '{"text": "back"}'
        assert door.pid != before
        before = door.pid
        os.kill(before, 9)
        assert until(lambda: not door.server.is_running)


def test_answer_that_cannot_be_read_is_an_error_at_once(start: Start) -> None:
    door = start("--strict").listed()
    error = door.error("deep", id_first=True)
    assert error.code == "E_TOOL_FAILED"
    assert "it sent an invalid message" in error.message
    assert door.data("echo", text="on") == '{"text": "on"}'


def test_changed_definition_is_seen_by_the_next_request_and_never_run_unseen(start: Start) -> None:
    door = start().listed()
    before, waiting = door.specs, door.prepared("echo", text="x")
    assert door.data("change") == "definition 2"
    after = door.specs
    assert after["own__echo"].traits.sha != before["own__echo"].traits.sha
    assert after["own__fail"].traits.sha == before["own__fail"].traits.sha
    assert "own__fresh" in after
    error = refused(door.run_prepared(waiting))
    assert error.code == "E_PRECONDITION_FAILED"
    assert "changed after the call was prepared" in error.message


def test_secret_change_is_seen_by_the_next_run(start: Start) -> None:
    door = start("--secretly").listed()
    before = door.specs["own__echo"].traits.sha
    door.data("change")
    assert door.specs["own__echo"].traits.sha == before
    assert Door(door.server).specs["own__echo"].traits.sha != before


def test_hostile_listing_is_made_harmless(start: Start) -> None:
    door = start("--hostile").listed()
    for spec in door.specs.values():
        check_legal(spec)
        assert len(spec.description) <= 4_000
        assert len(json.dumps(spec.parameters)) <= 20_000
        shown = [spec.description, spec.display_name, spec.parameters]
        text = json.dumps(shown, ensure_ascii=False)
        assert not set(text) & {"\u202e", "\u200b", "\x1b", "\x00", "\U000e0041"}
    assert [warning for warning in door.host.warnings if "'a_b_c'" in warning]
    # Its own schema could hang who checks a result with it.
    assert door.data("schema") == {"x": "b"}
    # Rules see a parameter under one name, the server gets its own.
    prepared = door.prepared("schema", a_b="root")
    assert prepared.arguments == {"a_b": "root"}
    assert '"a.b": "root"' in prepared.preview.pieces[-1].text
    error = door.error("schema", **{"a.b": "root"})
    assert (error.code, "has no parameter 'a.b'" in error.message) == ("E_INVALID_ARGUMENTS", True)


def test_a_definition_that_breaks_the_protocol_costs_that_tool_alone(start: Start) -> None:
    door = start("--illegal").listed()
    assert "own__echo" in door.specs
    assert len(door.specs["own__long"].description) <= 4_000
    (warning,) = door.host.warnings
    assert "503 tools" in warning
    assert "('badschema', 'none', 'without a name', 't477'" in warning
    assert "own__t476" in door.specs
    assert door.data("echo", text="on") == '{"text": "on"}'


@pytest.mark.parametrize(
    ("flags", "options", "words"),
    [
        (["--broken"], {}, ["ended at once", "no database at db.example", "check its command"]),
        (["--nonsense"], {}, ["invalid ", "tools"]),
        (["--batch"], {}, ["answered with a JSON batch", "newer version of the server"]),
        (["--silent"], {"start_timeout": 0.6}, ["within 0.6 s", "Welcome", "start_timeout="]),
        ([], {"command": ["no-such-4711"]}, ["no-such-4711", "check its command"]),
    ],
    ids=[
        "ends at once",
        "breaks the protocol",
        "answers in a batch",
        "never answers",
        "no command",
    ],
)
def test_server_that_does_not_start_says_why(
    start: Start, flags: list[str], options: dict[str, Any], words: list[str]
) -> None:
    door = start(*flags, **options)
    with pytest.raises(ToolError) as caught:
        door.listed()
    for word in words:
        assert word in caught.value.message
    assert not door.server.is_running


def test_an_approval_holds_for_one_program_not_for_another_of_its_name(tmp_path: Path) -> None:
    made = [
        mcp("same", command=hand()),
        mcp("same", command=hand(), cwd=tmp_path),
        mcp("same", command=hand(), env={"MODE": "b"}),
        mcp("same", command=hand("--chatty")),
        mcp("same", url="http://127.0.0.1:9/a"),
        mcp("same", url="http://127.0.0.1:9/a", headers={"X-User": "b"}),
    ]
    identities = {server.identity for server in made}
    assert len(identities) == len(made)
    assert mcp("same", command=hand()).identity in identities
    bound = {Door(server).listed().preview("echo").approval_key for server in made[:4]}
    assert len(bound) == 4
    for server in made:
        server.close()


@linux
def test_stubborn_server_is_killed_with_its_children(start: Start) -> None:
    door = start("--stubborn").listed()
    pid, child = door.pid, int(door.data("spawn"))
    door.server.close()
    assert not door.server.is_running
    assert until(lambda: not is_there(pid) and not is_there(child))


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
    """File with the server's output."""
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
def web(mode: str, url: str) -> Iterator[Door]:
    server = mcp(f"web-{mode}", url=url, timeout=20)
    yield Door(server).listed()
    server.close()


def test_tools_are_listed_and_called_and_show_their_progress(web: Door) -> None:
    spec = web.specs[f"{web.server.name}__add"]
    assert spec.parameters["properties"]["a"] == {"description": "The first.", "type": "integer"}
    assert web.data("add", a=2) == {"result": 3}
    assert web.data("steps") == {"result": "done"}
    assert ("step 3", 1.0) in web.fractions


def test_stop_reaches_the_server(web: Door, said: Path) -> None:
    before = said.read_text().count("cancelled sleep")
    began = time.monotonic()
    stopped = Door(web.server)
    stopped.stop_after(0.2)
    assert stopped.error("sleep").code == "E_INTERRUPTED"
    assert time.monotonic() - began < 20
    assert until(lambda: said.read_text().count("cancelled sleep") > before)


@pytest.mark.usefixtures("mode")
def test_headers_go_with_each_request_and_are_not_shown(start: Start, url: str) -> None:
    headers = {"Authorization": "Bearer tok-4711-of-the-web"}
    door = start(url=url, headers=headers).listed()
    assert "tok-4711" not in repr(door.server)
    seen = door.data("headers")
    assert seen["authorization"] == "Bearer tok-4711-of-the-web"
    assert "tok-4711" not in str(door.preview("headers"))


def test_environment_proxy_is_not_asked_for_loopback(
    start: Start, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert start(url=url).listed().data("add", a=1) == {"result": 2}


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (None, ["onnect"]),
        (Reply(status=401, raw=b""), ["HTTP 401"]),
        (Reply(raw=b"<h1>Welcome", raw_type="text/html"), ["content type"]),
    ],
    ids=["nobody", "no key", "a web page"],
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


# What a server sends as its next cursor, and how many pages are asked for.
PAGES = {"--stuck": 2, "--cycle": 3, "--endless": 50, "--number": 3} | dict.fromkeys(
    ("--empty", "--null", "--list", "--true"), 1
)


@pytest.mark.parametrize("modern", [[], ["--modern"]], ids=["older", "newer"])
@pytest.mark.parametrize("flag", PAGES)
def test_listing_ends_whatever_the_cursor_does(start: Start, flag: str, modern: list[str]) -> None:
    whole, door = start(name="whole").listed(), start(flag, *modern).listed()
    names = {name.partition("__")[2] for name in door.specs}
    assert names == {name.partition("__")[2] for name in whole.specs}
    assert door.host.warnings == (), "no tool of a repeated page is left out"
    assert [line for line in door.server.log if line.startswith("page")][
        -1
    ] == f"page {PAGES[flag]}"


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_batch_over_http_is_refused_at_once(start: Start, kind: str) -> None:
    message = json.dumps([{"jsonrpc": "2.0", "id": 1, "result": {}}])
    raw = f"data: {message}\n\n" if "event" in kind else message
    replies = [Reply(raw=raw.encode(), raw_type=kind)] * 9
    with ModelServer(replies) as odd, pytest.raises(ToolError) as caught:
        start(name="odd", url=odd.url).listed()
    assert "answered with a JSON batch" in caught.value.message
    assert "\n" not in caught.value.message


def test_new_tool_is_listed_once_the_server_says_so(start: Start, url: str) -> None:
    door = start(url=url).listed()
    assert "own__learnt" not in door.specs
    door.data("learn", name="learnt")
    assert until(lambda: "own__learnt" in door.specs)
