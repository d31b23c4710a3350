"""A server over stdio, by hand: every kind of content, every way to misbehave."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from host_door import refused
from legal_schema import check_legal
from servers.mcp_door import Door, hand, on_engine, until

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.chat import ImagePart
from nbagent.contracts.errors import UsageError
from nbagent.tools.mcp import McpServer, connection_to, mcp

linux = pytest.mark.skipif(sys.platform == "win32", reason="looks at processes as POSIX has them")


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that init has not taken yet is no process any more.
    stat = f"/proc/{pid}/stat"
    if os.path.exists(stat):
        with open(stat) as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    return True


@pytest.fixture(scope="module", params=["2025-11-25", "2026-07-28"])
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    """A well-behaved one of each protocol."""
    flags = ["--modern"] if request.param == "2026-07-28" else []
    server = mcp(f"hand{request.param[:4]}", command=hand(*flags), timeout=20)
    yield Door(server).prepare()
    server.close()


@pytest.fixture(scope="module")
def old() -> Iterator[Door]:
    """One of the older protocol, whose server asks and tells by itself."""
    server = mcp("old", command=hand(), timeout=20)
    yield Door(server).prepare()
    server.close()


@pytest.fixture(autouse=True)
def no_long_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbagent.tools.mcp.stdio._LEAVE_S", 0.3)


@pytest.fixture
def made() -> Iterator[list[McpServer]]:
    """Servers of one test, closed after it."""
    servers: list[McpServer] = []
    yield servers
    for server in servers:
        server.close()


def start(made: list[McpServer], *flags: str, **options: Any) -> Door:
    name = f"own{len(made)}"
    made.append(mcp(name, command=hand(*flags), **options))
    return Door(made[-1])


def test_tools_bear_the_servers_name_and_ask_first(door: Door) -> None:
    spec = door.specs[f"{door.server.name}__echo"]
    assert spec.traits.host == f"mcp:{door.server.name}"
    assert (spec.traits.ruling, len(spec.traits.sha)) == ("ask", 64)
    assert spec.parameters["properties"] == {"text": {"type": "string"}}
    assert spec.display_name == "echo"


def test_arguments_arrive_as_they_were_given(door: Door) -> None:
    given = {"text": "ä\n\u2028", "n": 2**60, "deep": {"x": [1, None, True]}}
    assert json.loads(door.text("echo", **given)) == given


def test_every_kind_of_content_is_given_or_named(door: Door) -> None:
    outcome = door.call("pieces")
    image, *_ = outcome.result.attachments
    assert isinstance(image, ImagePart)
    assert image.media_type == "image/png"
    assert outcome.result.data == [
        "first",
        "[image 1: PNG picture, 2×2 px]",
        "[image, image/tiff, 8 bytes: cannot be sent]",
        "[audio, audio/wav, 3 bytes: not sent]",
        {"resource_link": {"uri": "file:///a.txt", "name": "a"}},
        {"resource": {"uri": "mem://b", "text": "inside"}},
        {"resource": {"uri": "mem://c", "blob": "[4 bytes: not sent]"}},
    ]


@pytest.mark.parametrize(
    ("tool", "data"),
    [
        ("structured", {"rows": 2}),
        ("beside", {"structured": {"rows": 2}, "content": ["two rows"]}),
        ("nothing", []),
    ],
    ids=["said twice", "beside other text", "empty"],
)
def test_structured_content_is_the_data(door: Door, tool: str, data: Any) -> None:
    assert door.text(tool) == data


def test_large_result_is_cut_visibly(door: Door) -> None:
    outcome = door.call("big")
    assert outcome.truncated
    assert "400,000 characters left out" in outcome.result.data
    assert len(outcome.result.data) <= 50_000


@pytest.mark.parametrize(
    ("tool", "code", "words"),
    [
        ("fail", "E_TOOL_FAILED", "no such city"),
        ("refuse", "E_INVALID_ARGUMENTS", "text is missing"),
        ("nonsense", "E_TOOL_FAILED", "cannot be used"),
        ("missing", "E_UNKNOWN_TOOL", "there is no tool"),
    ],
)
def test_failure_is_typed(door: Door, tool: str, code: str, words: str) -> None:
    error = refused(door.call(tool))
    assert error.code == code
    assert words in error.message


def test_arguments_that_are_no_object_are_refused_here(door: Door) -> None:
    assert refused(door.call_with("echo", None)).code == "E_INVALID_ARGUMENTS"


def test_progress_is_shown_while_it_works(door: Door) -> None:
    door.progress.clear()
    assert door.text("progress") == "done"
    assert ("part 1", 0.25) in door.progress
    assert ("part 3", 0.75) in door.progress


def test_server_sees_only_what_it_was_given(
    made: list[McpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "sk-not-for-servers-123")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:password@proxy:3128")
    env = {"CITY_TOKEN": "tok-4711-for-this-one", "ZONE": "Europe/Paris"}
    door = start(made, env=env).prepare()
    seen = json.loads(door.text("environment"))
    expected = {"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ"}
    assert set(seen) <= expected | {"USER", *env}
    assert seen["ZONE"] == "Europe/Paris"
    # It was given its token; the model is not shown it.
    assert seen["CITY_TOKEN"] == "[redacted]"


def test_requests_of_the_server_are_refused_politely_and_told(old: Door) -> None:
    outcome = old.call("ask")
    answers = json.loads(outcome.result.data)
    assert answers["roots/list"] == {"result": {"roots": []}}
    assert "sampling" in answers["sampling/createMessage"]["error"]["message"]
    assert "elicitation" in answers["elicitation/create"]["error"]["message"]
    asked = [note for note in outcome.notes if "asked for" in note]
    assert len(asked) == 3


def test_log_messages_are_kept_with_stderr(old: Door) -> None:
    old.text("logs")
    assert "[warning] a warning 2" in old.server.log
    assert "the server is up" in old.server.log or len(old.server.log) == 50


def test_flood_of_stderr_blocks_nothing_and_is_bounded(made: list[McpServer]) -> None:
    door = start(made).prepare()
    assert door.text("flood", lines=30_000) == "flooded"
    assert until(lambda: any("line 29999" in line for line in door.server.log))
    assert len(door.server.log) <= 51
    assert max(map(len, door.server.log)) <= 500


def test_stop_cancels_the_call_and_tells_the_server(door: Door) -> None:
    began = time.monotonic()
    outcome = door.call_with("hang", {}, stop_after_s=0.1)
    assert refused(outcome).code == "E_INTERRUPTED"
    assert time.monotonic() - began < 1.5
    assert until(lambda: "cancelled hang" in door.server.log)
    assert door.text("echo", text="on") == '{"text": "on"}'


def test_silent_call_times_out_and_the_server_goes_on(made: list[McpServer]) -> None:
    door = start(made, timeout=0.3).prepare()
    assert refused(door.call("hang")).code == "E_TIMEOUT"
    assert until(lambda: "cancelled hang" in door.server.log)
    pid = door.pid
    assert door.text("alive", times=6) == "still here"
    assert door.pid == pid


def test_frozen_server_is_started_again(
    made: list[McpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbagent.tools.mcp.connection._PROBE_S", 0.3)
    door = start(made, timeout=0.3).prepare()
    before = door.pid
    assert refused(door.call("freeze")).code == "E_TIMEOUT"
    assert door.text("echo", text="again") == '{"text": "again"}'
    assert door.pid != before
    assert not is_there(before)


def test_server_that_dies_is_named_with_its_last_words_and_comes_back(
    made: list[McpServer],
) -> None:
    door = start(made).prepare()
    before = door.pid
    error = refused(door.call("die"))
    assert error.code == "E_TOOL_FAILED"
    assert "exit code 3" in error.message
    assert "out of cheese" in error.message
    assert "unknown" in error.message
    for _ in range(2):  # After a call, and after it died between calls.
        assert door.text("echo", text="back") == '{"text": "back"}'
        assert door.pid != before
        before = door.pid
        os.kill(before, 9)
        assert until(lambda: not door.server.is_running)


def test_changed_definition_gets_another_hash_for_the_next_turn(made: list[McpServer]) -> None:
    door = start(made).prepare()
    before = door.specs["own0__echo"].traits.sha
    other = door.specs["own0__fail"].traits.sha
    assert door.text("change") == "definition 2"
    assert door.specs["own0__echo"].traits.sha != before
    assert door.specs["own0__fail"].traits.sha == other
    assert "own0__fresh" in door.specs
    outcome = door.call("echo", text="x")
    assert outcome.tool_sha == door.specs["own0__echo"].traits.sha
    assert any("changed the definition" in note for note in outcome.notes)


def test_secret_change_is_seen_by_the_next_run(made: list[McpServer]) -> None:
    door = start(made, "--secretly").prepare()
    before = door.specs["own0__echo"].traits.sha
    door.text("change")
    assert door.specs["own0__echo"].traits.sha == before
    assert Door(door.server).prepare().specs["own0__echo"].traits.sha != before


def test_hostile_listing_is_made_harmless(made: list[McpServer]) -> None:
    door = start(made, "--hostile").prepare()
    for spec in door.specs.values():
        check_legal(spec)
        assert len(spec.description) <= 4_000
        assert len(json.dumps(spec.parameters)) <= 20_000
        shown = (
            spec.description + spec.display_name + json.dumps(spec.parameters, ensure_ascii=False)
        )
        assert not set(shown) & {"\u202e", "\u200b", "\x1b", "\x00", "\U000e0041"}
    assert [w for w in door.host.warnings if "own0__a_b_c" in w]
    assert set(door.specs["own0__rooted"].parameters["properties"]) == {"id", "name"}
    assert "required" not in door.specs["own0__rooted"].parameters


def test_names_of_parameters_are_given_back_to_the_server(made: list[McpServer]) -> None:
    door = start(made, "--hostile").prepare()
    properties = door.specs["own0__schema"].parameters["properties"]
    ours = next(
        key for key, node in properties.items() if "X-Header" in node.get("description", "")
    )
    preview = door.preview("schema", **{ours: "value"})
    assert '"X-Header": "value"' in preview.pieces[-1].text


def test_person_sees_server_command_and_the_whole_call(door: Door) -> None:
    preview = door.preview("echo", text="x" * 10_000)
    assert (preview.ruling, preview.for_tool) == ("ask", True)
    pieces = {piece.label: piece.text for piece in preview.pieces}
    assert pieces["server"] == door.server.name
    assert "mcp_hand.py" in pieces["command"]
    assert "x" * 10_000 in pieces["call"]


def test_chatter_on_stdout_is_kept_as_log(made: list[McpServer]) -> None:
    door = start(made, "--chatty").prepare()
    assert door.text("echo", text="fine") == '{"text": "fine"}'
    assert any("no message of MCP" in line and "Welcome" in line for line in door.server.log)


def test_server_that_ends_at_an_unknown_first_request_is_met_with_the_handshake(
    made: list[McpServer],
) -> None:
    door = start(made, "--strict").prepare()
    assert door.text("echo", text="met") == '{"text": "met"}'


@pytest.mark.parametrize(
    ("flags", "options", "words"),
    [
        (["--broken"], {}, ["exit code 7", "no database at db.example", "check its command"]),
        (["--nonsense"], {}, ["does not list its tools", "tools"]),
        (["--silent"], {"start_timeout": 0.6}, ["within 0.6 s", "Welcome", "start_timeout="]),
    ],
    ids=["ends at once", "breaks the protocol", "never answers"],
)
def test_server_that_does_not_start_says_why(
    made: list[McpServer], flags: list[str], options: dict[str, Any], words: list[str]
) -> None:
    door = start(made, *flags, **options)
    with pytest.raises(UsageError) as caught:
        door.prepare()
    for word in words:
        assert word in caught.value.message
    assert connection_to(door.server).pid is None


def test_stop_does_not_wait_for_a_server_that_starts(made: list[McpServer]) -> None:
    door = start(made, "--slow")
    cancel = CancelToken()
    threading.Timer(0.2, cancel.set).start()
    began = time.monotonic()
    work = door.host._connection.call(  # pyright: ignore[reportPrivateUsage]
        "echo", {}, cancel=cancel, progress=lambda done, total, text: None
    )
    assert on_engine(work) == (None, "stop", ())
    assert time.monotonic() - began < 2


def test_calls_run_beside_each_other(door: Door) -> None:
    def echo(text: str) -> Any:
        return door.text("echo", text=text)

    with ThreadPoolExecutor(8) as pool:
        texts = [f"n{i}" for i in range(40)]
        told = list(pool.map(echo, texts))
    assert told == [json.dumps({"text": text}) for text in texts]


def test_definition_that_changed_after_the_approval_does_not_run(made: list[McpServer]) -> None:
    door = start(made).prepare()
    door.context = replace(door.context, approved=door.preview("echo").binds)
    assert door.call("echo").result.ok
    other = Door(door.server)
    other.text("change")
    error = refused(door.call("echo"))
    assert error.code == "E_PRECONDITION_FAILED"
    assert "after the call was approved" in error.message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"command": ["no-such-program-4711"]}, "no command 'no-such-program-4711'; install it"),
        ({"command": hand(), "cwd": "/not/there"}, "is no folder"),
    ],
    ids=["command", "folder"],
)
def test_what_is_missing_is_named(
    made: list[McpServer], options: dict[str, Any], words: str
) -> None:
    made.append(mcp("gone", **options))
    with pytest.raises(UsageError, match=words):
        Door(made[-1]).prepare()


def test_single_tool_can_be_named(old: Door) -> None:
    one = Door(old.server, only=["old__echo"]).prepare()
    assert list(one.specs) == ["old__echo"]
    assert refused(one.call("fail")).code == "E_UNKNOWN_TOOL"


def test_single_tool_that_is_not_there_is_an_error(old: Door) -> None:
    with pytest.raises(UsageError, match=r"no tool 'old__ecko'; did you mean 'old__echo'"):
        Door(old.server, only=["old__ecko"]).prepare()


def test_runs_share_one_process(old: Door) -> None:
    assert Door(old.server).prepare().pid == old.pid


@linux
def test_closing_ends_the_server_and_its_children(made: list[McpServer]) -> None:
    door = start(made).prepare()
    pid, child = door.pid, int(door.text("spawn"))
    door.server.close()
    assert not door.server.is_running
    assert until(lambda: not is_there(pid) and not is_there(child))


def test_a_definition_that_breaks_the_protocol_costs_that_tool_alone(made: list[McpServer]) -> None:
    door = start(made, "--illegal").prepare()
    assert "own0__echo" in door.specs
    assert len(door.specs["own0__long"].description) <= 4_000
    assert not {"own0__badschema", "own0__none"} & set(door.specs)
    assert [warning.split("'")[1] for warning in door.host.warnings] == [
        "badschema",
        "none",
        "without a name",
    ]
    assert door.text("echo", text="on") == '{"text": "on"}'


@pytest.mark.parametrize("id_first", [True, False], ids=["id first", "id last"])
def test_an_answer_too_deep_to_read_is_an_error_at_once(old: Door, id_first: bool) -> None:
    began = time.monotonic()
    error = refused(old.call("deep", id_first=id_first))
    assert error.code == "E_TOOL_FAILED"
    assert "nested too deeply" in error.message
    assert time.monotonic() - began < 5
    assert old.text("echo", text="on") == '{"text": "on"}'


def test_rules_see_the_arguments_under_both_names_and_none_is_given_twice(
    made: list[McpServer],
) -> None:
    door = start(made, "--hostile").prepare()
    for name in ("a.b", "ab"):
        preview = door.preview("schema", **{name: "root"})
        assert preview.arguments == {"ab": "root"}
        assert preview.other_arguments == ({"a.b": "root"},)
    twice = {"ab": "kind", "a.b": "root"}
    preview = door.preview("schema", **twice)
    assert (preview.ruling, preview.pieces) == ("allow", ())
    for _ in range(2):  # Looked at before, and not.
        error = refused(door.call("schema", **twice))
        assert error.code == "E_INVALID_ARGUMENTS"
        assert "given twice" in error.message


def test_an_approval_holds_for_one_program_not_for_another_of_its_name(tmp_path: Path) -> None:
    made = [
        mcp("same", command=hand()),
        mcp("same", command=hand(), cwd=tmp_path),
        mcp("same", command=hand(), env={"MODE": "b"}),
        mcp("same", command=hand("--chatty")),
        mcp("same", url="http://127.0.0.1:9/a"),
        mcp("same", url="http://127.0.0.1:9/a", headers={"X-User": "b"}),
    ]
    identities = {connection_to(server).server.identity for server in made}
    assert len(identities) == len(made)
    again = connection_to(mcp("same", command=hand())).server.identity
    assert again in identities


@linux
def test_stubborn_server_is_killed(made: list[McpServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbagent.tools.mcp.stdio._LEAVE_S", 0.1)
    monkeypatch.setattr("nbagent.tools.mcp.stdio._TERMINATE_S", 0.1)
    door = start(made, "--stubborn").prepare()
    pid = door.pid
    door.server.close()
    assert until(lambda: not is_there(pid))
