"""What comes behind a finish reason: errors, breaks, more calls, other words; other choices too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from servers.hostile_server import (
    Fault,
    HostileServer,
    Visit,
    call,
    chunked,
    completion,
    delta,
    fine,
    said,
    sse,
    stream_head,
    whole,
)

import nbagent

END = b"0\r\n\r\n"
CALLS = sse(delta(tool_calls=[call()]), delta("tool_calls"), end=b"")
ERROR = {"error": {"message": "boom", "type": "rate_limit_error"}}
USAGE: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}


class Looker:
    """A tool that notes each time it runs."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def look(self, at: str = "") -> str:
        """Look."""
        self.ran.append(at)
        return "seen"


@pytest.fixture
def looker() -> Looker:
    return Looker()


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with HostileServer() as running:
        yield running


def first(*pieces: bytes, reset: bool = False, between_s: float = 0.02) -> Fault:
    """The first answer; each later one is fine."""

    async def serve(visit: Visit) -> None:
        if visit.nth > 1:
            return await fine(visit)
        await visit.drip(pieces, between_s)
        return visit.reset() if reset else None

    return serve


def run_of(server: HostileServer, fault: Fault, looker: Looker, **options: Any) -> nbagent.Run:
    server.faults["x"] = fault
    agent = nbagent.Agent("openai:m", base_url=server.url("x"), tools=[looker.look], **options)
    return agent.run("Go.")


def assert_none_ran(run: nbagent.Run, looker: Looker, code: str) -> None:
    assert looker.ran == []
    assert run.error is not None
    assert (run.stop_reason, run.error.code) == ("error", code)
    (turn,) = run.turns
    assert turn.tool_runs
    for tool_run in turn.tool_runs:
        assert tool_run.result is not None
        assert tool_run.result.error is not None


LATE_ERRORS = {
    "same packet": (chunked(CALLS + sse(ERROR)) + END,),
    "later packet": (chunked(CALLS), chunked(sse(ERROR)) + END),
    "later, at the end": (chunked(CALLS), chunked(sse(ERROR, end=b"")) + END),
    "error event": (
        chunked(CALLS), chunked(b'event: error\ndata: {"type": "rate_limit_error"}\n\n'), END
    ),
    "with the finish reason": (
        chunked(sse({**delta("tool_calls", tool_calls=[call()]), "x_groq": ERROR})) + END,
    ),
    "in the choice": (
        chunked(sse({"choices": [{"delta": {"tool_calls": [call()]}, **ERROR}]}, delta("stop")))
        + END,
    ),
    "in a list": (chunked(CALLS), chunked(sse([ERROR])) + END),
}  # fmt: skip


@pytest.mark.parametrize("pieces", LATE_ERRORS.values(), ids=list(LATE_ERRORS))
def test_an_error_behind_the_finish_reason_of_calls_runs_none(
    server: HostileServer, looker: Looker, pieces: tuple[bytes, ...]
) -> None:
    run = run_of(server, first(stream_head(), *pieces), looker)
    assert_none_ran(run, looker, "LLM_RATE_LIMITED")
    assert server.asked("x") == 1


def test_calls_that_the_server_could_not_read_are_not_added_to_an_ended_answer(
    server: HostileServer, looker: Looker
) -> None:
    failed = {"code": "tool_use_failed", "failed_generation": '{"name": "look", "arguments": {}}'}
    body = chunked(CALLS) + chunked(sse({"error": failed})) + END
    assert_none_ran(run_of(server, first(stream_head(), body), looker), looker, "LLM_BAD_RESPONSE")


@pytest.mark.parametrize("apart", [False, True], ids=["same packet", "later packet"])
def test_a_text_is_kept_and_the_late_error_is_told(
    server: HostileServer, looker: Looker, apart: bool
) -> None:
    text, late = chunked(sse(*said("fine"), end=b"")), chunked(sse(ERROR)) + END
    pieces = (text, late) if apart else (text + late,)
    run = run_of(server, first(stream_head(), *pieces), looker)
    assert (run.text, run.error) == ("fine", None)
    (told,) = run.turns[0].notices
    assert "boom" in told
    assert "whole" in told


LENGTH = stream_head(framing=f"Content-Length: {len(CALLS) + 20}")
MORE = sse(delta(tool_calls=[call(id="c2", index=1)]), end=b"")
BREAKS: dict[str, tuple[tuple[bytes, ...], bool, str]] = {
    "reset": ((stream_head(), chunked(CALLS)), True, "LLM_HTTP_ERROR"),
    "reset without a framing": ((stream_head(framing=""), CALLS), True, "LLM_HTTP_ERROR"),
    "no last chunk": ((stream_head(), chunked(CALLS)), False, "LLM_HTTP_ERROR"),
    "within a chunk": ((stream_head(), b"fff\r\n" + CALLS), False, "LLM_HTTP_ERROR"),
    "broken chunk": ((stream_head(), chunked(CALLS) + b"zz\r\n"), False, "LLM_HTTP_ERROR"),
    "shorter than it says": ((LENGTH, CALLS), False, "LLM_HTTP_ERROR"),
    "within an event": (
        (stream_head(), chunked(CALLS + b'data: {"error": {"mess') + END), False, "LLM_BAD_RESPONSE"
    ),
    "an event that is no JSON": (
        (stream_head(), chunked(CALLS + b"data: {oops\n\n") + END), False, "LLM_BAD_RESPONSE"
    ),
    "calls go on behind the finish reason": (
        (stream_head(), chunked(sse(delta("tool_calls", tool_calls=[call()]), end=b"")),
         chunked(MORE)), True, "LLM_HTTP_ERROR"
    ),
    "arguments go on behind the finish reason": (
        (stream_head(),
         chunked(sse(delta("tool_calls", tool_calls=[call(arguments='{"at": "a')]), end=b"")),
         chunked(sse(delta(tool_calls=[{"index": 0, "function": {"arguments": 'b"}'}}]), end=b""))),
        False, "LLM_HTTP_ERROR"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BREAKS.values(), ids=list(BREAKS))
def test_a_break_behind_the_finish_reason_of_calls_runs_none(
    server: HostileServer, looker: Looker, case: tuple[tuple[bytes, ...], bool, str]
) -> None:
    pieces, reset, code = case
    assert_none_ran(run_of(server, first(*pieces, reset=reset), looker), looker, code)


def test_calls_that_were_announced_and_did_not_come_are_missed(
    server: HostileServer, looker: Looker
) -> None:
    part = chunked(sse(delta("tool_calls", content="I look."), end=b""))
    run = run_of(server, first(stream_head(), part, reset=True), looker)
    assert run.error is not None
    assert (run.text, run.error.code) == ("I look.", "LLM_HTTP_ERROR")


def test_a_break_behind_a_text_takes_nothing_away(server: HostileServer, looker: Looker) -> None:
    part = chunked(sse(*said("fine"), end=b""))
    run = run_of(server, first(stream_head(), part, reset=True), looker)
    assert (run.text, run.error, run.turns[0].notices) == ("fine", None, ())


CLEAN: dict[str, tuple[bytes, ...]] = {
    "end of the body": (stream_head(), chunked(CALLS) + END),
    "end of the connection": (stream_head(framing=""), CALLS),
    "length": (stream_head(framing=f"Content-Length: {len(CALLS)}"), CALLS),
    "no blank line": (stream_head(), chunked(CALLS.rstrip()) + END),
    "break after [DONE]": (stream_head(), chunked(CALLS + b"data: [DONE]\n\n")),
    "error after [DONE]": (stream_head(), chunked(CALLS + b"data: [DONE]\n\n" + sse(ERROR)) + END),
}


@pytest.mark.parametrize("pieces", CLEAN.values(), ids=list(CLEAN))
def test_a_clean_end_runs_the_calls(
    server: HostileServer, looker: Looker, pieces: tuple[bytes, ...]
) -> None:
    run = run_of(server, first(*pieces), looker)
    assert (run.text, run.error, looker.ran) == ("fine", None, ["x"])


def silent_after(*pieces: bytes) -> Fault:
    async def serve(visit: Visit) -> None:
        if visit.nth > 1:
            return await fine(visit)
        await visit.drip(pieces, 0.02)
        return await visit.silence()

    return serve


@pytest.mark.parametrize(
    ("late", "runs"),
    [(b"", True), (chunked(MORE), False), (chunked(b'data: {"er'), False)],
    ids=["nothing", "more calls", "half an event"],
)
def test_a_server_that_falls_silent_behind_the_finish_reason_has_ended_only_what_it_ended(
    server: HostileServer,
    looker: Looker,
    late: bytes,
    runs: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nbagent.providers.openai._AFTER_FINISH_S", 0.2)
    run = run_of(server, silent_after(stream_head(), chunked(CALLS), late), looker)
    assert looker.ran == (["x"] if runs else [])
    assert (run.error is None) is runs


def test_calls_behind_the_finish_reason_count_when_the_stream_ends_well(
    server: HostileServer, looker: Looker
) -> None:
    # Gateways that send every call as a message of its own end each of them.
    one, two = call(arguments='{"at": "a"}'), call(arguments='{"at": "b"}', id="c2", index=1)
    events = delta("tool_calls", tool_calls=[one]), delta("tool_calls", tool_calls=[two])
    run = run_of(server, first(stream_head(), chunked(sse(*events)) + END), looker)
    assert (run.text, sorted(looker.ran)) == ("fine", ["a", "b"])


@pytest.mark.parametrize("other", ["tool_calls", "bored"])
@pytest.mark.parametrize("word", ["length", "content_filter", "error"])
@pytest.mark.parametrize("word_first", [True, False], ids=["first", "last"])
def test_no_call_runs_once_the_answer_was_called_cut_filtered_or_failed(
    server: HostileServer, looker: Looker, word: str, other: str, word_first: bool
) -> None:
    words = (word, other) if word_first else (other, word)
    events = [delta(tool_calls=[call()]), *map(delta, words), delta(tool_calls=[call(id="c2")])]
    run = run_of(server, first(stream_head(), chunked(sse(*events)) + END), looker)
    assert looker.ran == []
    assert len(run.turns[0].tool_runs) == 2


def choice(index: int | None, content: str, finish: str | None = None) -> dict[str, Any]:
    numbered = {} if index is None else {"index": index}
    return {**numbered, "delta": {"content": content}, "finish_reason": finish}


CHOICES: dict[str, tuple[list[list[dict[str, Any]]], str]] = {
    "interleaved": (
        [[choice(0, "A")], [choice(1, "B")], [choice(0, "C")], [choice(1, "x", "length")],
         [choice(0, "D", "stop")]], "ACD"
    ),
    "the other one first in a list": (
        [[choice(1, "B"), choice(0, "A")], [choice(1, "b", "length"), choice(0, "a", "stop")]], "Aa"
    ),
    "no index": ([[choice(None, "A")], [choice(0, "B")], [choice(None, "C", "stop")]], "ABC"),
    "only another one": ([[choice(2, "A")], [choice(2, "B", "stop")]], "AB"),
    "two others": ([[choice(2, "A")], [choice(3, "x")], [choice(2, "B", "stop")]], "AB"),
    "the other one goes on": ([[choice(0, "A", "stop")], [choice(1, "x")]], "A"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHOICES.values(), ids=list(CHOICES))
def test_choices_are_never_mixed(
    server: HostileServer, looker: Looker, case: tuple[list[list[dict[str, Any]]], str]
) -> None:
    chunks, text = case
    body = sse(*({"choices": listed} for listed in chunks))
    run = run_of(server, first(stream_head(), chunked(body) + END), looker)
    assert (run.text, run.stop_reason, run.error) == (text, "answered", None)


def test_a_whole_answer_is_its_choice_0(server: HostileServer, looker: Looker) -> None:
    one, two = completion("B")["choices"] + completion("A")["choices"]
    body = {"choices": [{**one, "index": 1}, two]}
    assert run_of(server, first(whole(body)), looker, stream=False).text == "A"


@pytest.mark.parametrize("junk", [b"", b"data: {oops\n\n"], ids=["alone", "before broken bytes"])
def test_usage_behind_the_end_counts_when_it_arrived_with_it(
    server: HostileServer, looker: Looker, junk: bytes
) -> None:
    body = sse(*said("fine")) + b"data: " + json.dumps(USAGE).encode() + b"\n\n" + junk
    run = run_of(server, first(stream_head(), chunked(body) + END), looker)
    assert run.text == "fine"
    assert run.usage.total_tokens == 7
    assert not run.turns[0].notices
