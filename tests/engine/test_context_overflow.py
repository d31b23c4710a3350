"""A request that is too long: the pause, what is said of its size, and shortened old results."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from engine.laws import check_answered, check_run, column, encoded, error_code
from servers.loopback import Visit
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.contracts.canonical import load_json
from nbagent.contracts.errors import UsageError
from nbagent.contracts.events import Event, Notice, TurnStarted
from nbagent.contracts.messages import ImagePart, Message, TextPart
from nbagent.contracts.model import ChatRequest
from nbagent.contracts.records import can_trim, trim_result
from nbagent.engine.overflow import request_chars
from nbagent.providers.offline import call, error, script
from nbagent.session.stores import close_stores
from nbagent.store.rows import from_notebook_json, to_notebook_json
from nbagent.view.run_facts import request_text

REFUSAL = error("LLM_CONTEXT_OVERFLOW", "too long")
SIZES = {"a": 40_000, "b": 9_000, "c": 300, "d": 20_000, "e": 20_000}


def fetch(page: str) -> str:
    """Fetch a page."""
    return page * SIZES[page]


def small_model(takes: int) -> Callable[[Visit], Reply | None]:
    """Refuses what is longer than so many tokens (four characters each) as vLLM does."""

    def refuse(request: Visit) -> Reply | None:
        tokens = sum(len(m.get("content") or "") for m in request.body["messages"]) // 4
        if tokens <= takes:
            return None
        said = (
            f"This model's maximum context length is {takes} tokens. However, your request has "
            f"{tokens} input tokens. Please reduce the length of the input messages."
        )
        return Reply(status=400, error={"error": {"message": said, "type": "BadRequestError"}})

    return refuse


def fetching(pages: str, takes: int) -> list[Any]:
    """A script for `ModelServer` that fetches the pages one by one and then answers."""
    refuse, left = small_model(takes), list(pages)

    def answer(request: Visit) -> Reply:
        refusal = refuse(request)
        if refusal is not None:
            return refusal
        return Reply(calls=[("fetch", {"page": left.pop(0)})]) if left else Reply(text="Done.")

    return [answer] * 30


def trimmed_of(run: nbagent.Run) -> list[tuple[int, ...]]:
    """The places that each turn sent shortened."""
    return [t.request.trimmed for t in run.turns]


def kept_whole(run: nbagent.Run) -> bool:
    return not any("trimmed" in load_json(m.text) for m in run.messages if m.role == "tool")


def test_a_request_that_is_too_long_pauses_and_says_what_takes_the_room() -> None:
    with ModelServer(fetching("abd", 15_000)) as server:
        agent = nbagent.Agent("openai:m", base_url=server.url, tools=[fetch], system="Be brief.")
        run = check_run(agent.run("Read all."))
    assert (run.phase, run.stop_reason, error_code(run)) == (
        "WaitingUser",
        "length",
        "LLM_CONTEXT_OVERFLOW",
    )
    assert len(run.messages) == 7, "nothing is lost: the words, three calls, three results"
    assert run.error == run.turns[-1].error
    assert run.error is not None
    details = run.error.details
    assert details["context_tokens"] == 15_000
    assert details["request_tokens"] > 17_000
    assert next(iter(details["pieces"])) == "results of fetch"
    assert sum(details["pieces"].values()) == details["request_chars"]
    line = run.error.message
    assert "\n" not in line
    assert f"{details['request_tokens']:,} tokens, it takes 15,000" in line
    assert "results of fetch 99%, " in line
    assert 'run.resume(trim="tool-results")' in line
    assert "maximum context length is 15000" in details["server_said"]


def test_old_tool_results_are_sent_shortened_and_kept_whole() -> None:
    events: list[Event] = []
    with ModelServer(fetching("abcde", 15_000)) as server:
        agent = nbagent.Agent("openai:m", base_url=server.url, tools=[fetch], trim="tool-results")
        run = check_run(agent.run("Read all.", on_event=events.append))
        bodies = server.bodies
    assert run.ok, run.error
    assert [len(m.text) for m in run.messages if m.role == "tool"] == [
        SIZES[page] + len('{"ok":true,"data":""}') for page in "abcde"
    ]
    assert kept_whole(run)
    # All old results but the small one go when C04's 20,000 do not fit beside them.
    assert trimmed_of(run) == [(), (), (), (), (2, 4), (2, 4)]
    assert len(bodies) == len(run.turns) + 1, "one refusal, asked again once"
    sent = load_json(bodies[-1]["messages"][3]["content"])
    assert sent == {"ok": True, "data": "a" * 200, "trimmed": "200 of 40,000 characters"}
    assert [m["role"] for m in bodies[-1]["messages"]] == ["system"] + [
        m.role for m in run.messages[:-1]
    ]
    last = run.request_of("C06")
    wire = [m.get("content") or "" for m in bodies[-1]["messages"][1:]]
    assert [m.text for m in last.messages] == wire
    for turn in run.turns:
        check_answered(run.request_of(turn.id).messages)
    (notice,) = [e for e in events if isinstance(e, Notice)]
    assert notice.turn_id == "C05"
    assert notice.text == run.turns[4].notices[0]
    assert notice.text.startswith("2 tool results are sent shortened")
    assert "49,042 to 515 characters" in notice.text
    words = request_text(run.turns[4].request)
    assert "2 old tool results shortened" in words
    assert [e.turn_id for e in events if isinstance(e, TurnStarted)].count("C05") == 2
    assert column(nbagent.turns(), "trimmed") == [0, 0, 0, 0, 2, 2]
    assert from_notebook_json(to_notebook_json(run.record)) == run.record


MAX_TOKENS = {
    "vLLM": "'max_tokens' is too large: {asked}. This model's maximum context length is {takes} "
    "tokens and your request has 10000 input tokens ({asked} > {takes} - 10000).",
    "OpenAI": "This model's maximum context length is {takes} tokens, however you requested {sum} "
    "tokens (10000 in your prompt; {asked} for the completion). Please reduce your prompt; or "
    "completion length.",
    "Anthropic": "input length and `max_tokens` exceed context limit: 10000 + {asked} > {takes}, "
    "decrease input length or `max_tokens` and try again",
}


@pytest.mark.parametrize("words", MAX_TOKENS.values(), ids=MAX_TOKENS)
def test_if_only_max_tokens_is_too_large_nothing_is_trimmed_and_a_smaller_one_answers(
    words: str,
) -> None:
    takes, asked = 32_768, 40_000
    said = words.format(takes=takes, asked=asked, sum=asked + 10_000)

    def answer(request: Visit) -> Reply:
        if len(request.body["messages"]) < 3:
            return Reply(calls=[("fetch", {"page": "a"})])
        tokens = request.body.get("max_tokens") or request.body["max_completion_tokens"]
        if tokens > takes - 10_000:
            return Reply(status=400, error={"error": {"message": said}})
        return Reply(text="Done.")

    with ModelServer([answer] * 9) as server:
        agent = nbagent.Agent(
            "openai:m", base_url=server.url, tools=[fetch], trim="tool-results", max_tokens=asked
        )
        run = check_run(agent.run("Read."))
        assert len(server.bodies) == 2, "not asked again"
        assert (run.phase, run.stop_reason) == ("WaitingUser", "length")
        assert run.error is not None
        assert "max_tokens (40,000)" in run.error.message
        assert "run.resume(max_tokens=22768)" in run.error.message
        assert said[:40] in run.error.details["server_said"]
        child = check_run(run.resume(max_tokens=22_768))
    assert child.text == "Done."
    assert trimmed_of(run) + trimmed_of(child) == [(), (), ()]


def test_without_a_max_tokens_of_ones_own_old_results_are_trimmed_and_then_it_is_advised() -> None:
    said = "input length and `max_tokens` exceed context limit: 150000 + 64000 > 200000"

    def answer(request: Visit) -> Reply:
        if len(request.body["messages"]) < 3:
            return Reply(calls=[("fetch", {"page": "a"})])
        return Reply(status=400, error={"error": {"message": said}})

    with ModelServer([answer] * 9) as server:
        agent = nbagent.Agent("openai:m", base_url=server.url, tools=[fetch], trim="tool-results")
        run = check_run(agent.run("Read."))
    assert trimmed_of(run) == [(), (2,)]
    assert run.error is not None
    assert "run.resume(max_tokens=50000)" in run.error.message


def test_with_max_tokens_a_conversation_that_is_too_long_itself_is_trimmed() -> None:
    with ModelServer(fetching("abd", 15_000)) as server:
        agent = nbagent.Agent(
            "openai:m", base_url=server.url, tools=[fetch], trim="tool-results", max_tokens=500
        )
        run = check_run(agent.run("Read all."))
    assert run.ok, run.error
    assert trimmed_of(run)[-1] != ()


def test_requests_extend_one_another_but_at_the_moment_of_shortening() -> None:
    with ModelServer(fetching("adeadeade", 24_000)) as server:
        agent = nbagent.Agent("openai:m", base_url=server.url, tools=[fetch], trim="tool-results")
        run = check_run(agent.run("Read all."))
    assert run.ok, run.error
    places = trimmed_of(run)
    assert places[-1] != ()
    requests = [run.request_of(turn.id) for turn in run.turns]
    for (before, now), (earlier, later) in zip(pairwise(places), pairwise(requests), strict=True):
        assert set(before) <= set(now), "what was shortened stays so"
        assert encoded(later).startswith(encoded(earlier)) == (before == now)
    grown = sum(before != now for before, now in pairwise(places))
    assert 2 <= grown <= 5, "room is made in a few large steps, for the caches' sake"
    assert len(server.bodies) == len(run.turns) + grown, "each refusal is followed by one step"


def test_results_of_the_last_turn_go_last_and_then_a_refusal_pauses() -> None:
    fetched = [call("fetch", page="a"), call("fetch", page="b")]
    model = script([*fetched, REFUSAL, REFUSAL, REFUSAL, "Done."])
    run = nbagent.Agent(model=model, tools=[fetch], trim="tool-results").run("Read.")
    check_run(run)
    assert (run.stop_reason, trimmed_of(run)) == ("length", [(), (), (2, 4)])
    assert kept_whole(run)
    assert run.error is not None
    assert "tokens (estimated)" in run.error.message, "the server said no size"
    assert run.error.details["context_tokens"] is None
    assert "There is no tool result left to shorten" in run.error.message
    assert len(model.requests) == 5
    child = check_run(run.resume())
    assert child.ok
    assert trimmed_of(child) == [(2, 4)], "what was shortened stays so in the next run"
    assert child.request_of("C04") == model.requests[-1]


def test_resume_with_trim_goes_on_and_the_next_run_inherits_it() -> None:
    with ModelServer(fetching("abd", 15_000)) as server:
        agent = nbagent.Agent("openai:m", base_url=server.url, tools=[fetch])
        run = check_run(agent.run("Read all."))
        assert trimmed_of(run) == [(), (), (), ()]
        asked = len(server.bodies)
        child = check_run(run.resume(trim="tool-results"))
        assert child.ok, child.error
        assert len(server.bodies) == asked + 2
        third = check_run(child.resume("And?"))
    assert trimmed_of(child) == trimmed_of(third) == [(2, 4)]
    assert third.record.options["trim"] == "tool-results"
    close_stores()
    assert nbagent.open_run(third.id).request_of("C06").messages[2].text.count("a") < 220


def test_trim_none_or_another_model_gets_the_results_whole_again() -> None:
    steps = [call("fetch", page="a"), call("fetch", page="b"), REFUSAL, "One.", "Two."]
    model = script(steps)
    run = nbagent.Agent(model=model, tools=[fetch], trim="tool-results").run("Read.")
    assert trimmed_of(check_run(run)) == [(), (), (2,)]
    assert trimmed_of(check_run(run.resume("And?", trim="none"))) == [()]
    other = script(["Done."])
    assert trimmed_of(check_run(run.resume("And?", model=other), other)) == [()]
    with pytest.raises(UsageError, match="'tool-results' or 'none'"):
        nbagent.Agent(model=model).run("Go.", trim="all")


def test_a_refusal_in_the_middle_of_an_answer_keeps_the_part_and_runs_no_call() -> None:
    said = "the request exceeds the available context size (100 tokens)"
    lines = [
        '{"choices":[{"index":0,"delta":{"content":"Half"}}]}',
        '{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","function":'
        '{"name":"fetch","arguments":"{\\"page\\": \\"a\\"}"}}]}}]}',
        f'{{"error":{{"message":"{said}","code":400}}}}',
    ]
    raw = "".join(f"data: {line}\n\n" for line in lines).encode()
    with ModelServer([Reply(raw=raw, raw_pieces=len(raw) // 5, between_s=0.01)]) as server:
        agent = nbagent.Agent("openai:m", base_url=server.url, tools=[fetch])
        run = check_run(agent.run("Go.", trim="tool-results"))
        assert len(server.bodies) == 1
    assert (run.phase, run.stop_reason, run.text) == ("WaitingUser", "length", "Half")
    assert [r.result and r.result.ok for t in run.turns for r in t.tool_runs] == [False]
    assert run.error is not None
    assert run.error.details["context_tokens"] == 100


SHORT = {
    "text": ('{"ok":true,"data":"' + "x" * 999 + '"}', "x" * 200, "200 of 999"),
    "an error": (
        '{"ok":false,"error":{"code":"ENOENT","message":"' + "m" * 999 + '","details":{"a":1}}}',
        '"code":"ENOENT","message":"mmm',
        "200 of 999",
    ),
    "no JSON": ("plain " * 200, "plain plain", "200 of 1,200"),
    "images": ('{"ok":true,"data":null}', "null", "4 of 4 characters, without 2 images or files"),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_shortened_result_is_json_that_says_so(name: str) -> None:
    text, start, trimmed = SHORT[name]
    images = (ImagePart(data="QUJD"),) * 2 if name == "images" else ()
    content = (TextPart(text=text), *images)
    message = Message(role="tool", content=content, tool_call_id="c1", name="fetch")
    short = trim_result(message)
    assert can_trim(message)
    body = load_json(short.text)
    assert body["trimmed"].startswith(trimmed)
    assert start in short.text
    assert set(body) in ({"ok", "data", "trimmed"}, {"ok", "error", "trimmed"})
    assert (short.role, short.tool_call_id, short.name) == ("tool", "c1", "fetch")
    assert not can_trim(short)
    alone = ChatRequest(model="m", messages=(message,))
    assert request_chars(alone) == len(text) + 4_000 * len(images)
