"""How a run ends by what a server's answer holds, whole and streamed, on several wires."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engine.laws import check_run, look
from servers.dialects import ANTHROPIC, CHAT, GOOGLE, OLLAMA, RESPONSES
from servers.model_server import ModelServer, Reply

import nbagent

JSON = dict[str, Any]
CHAT_FINE: JSON = {"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]}
SEARCH: JSON = {"functionCall": {"name": "search", "args": {"q": 1}}}
USED: JSON = {"prompt_tokens": 5, "completion_tokens": 9}


def chosen(finish: Any = "stop", **fields: Any) -> JSON:
    """An answer of one choice: whole, and as the one chunk of a stream."""
    return {"choices": [{"index": 0, "finish_reason": finish, **fields}], "usage": USED}


def replies(*bodies: JSON, wire: Any, stream: bool) -> list[Reply]:
    """Answers whose one chunk is also their whole body."""
    if not stream:
        kind = "application/json"
        return [Reply(raw=json.dumps(body).encode(), raw_type=kind) for body in bodies]
    return [Reply(raw=wire.stream(body), raw_type=wire.kind) for body in bodies]


FINISHED = {"stop_reason": "answered", "phase": "WaitingUser"}
FILTERED = {"stop_reason": "content_filter", "phase": "WaitingUser"}
BROKEN = {"stop_reason": "error", "phase": "Failed", "code": "LLM_BAD_RESPONSE"}
# id: wire, model, bodies in turn; how the run ends, its text, a part of what it says, requests.
ENDS: dict[str, tuple[Any, str, list[JSON], JSON]] = {
    "Azure's filter without a message": (
        CHAT, "openai:m", [chosen("content_filter", content_filter_results={})],
        {**FILTERED, "requests": 1}),
    "half a text and Z.AI's filter": (
        CHAT, "openai:m", [chosen("sensitive", message={"content": "Half"})],
        {**FILTERED, "text": "Half", "requests": 1}),
    "half a text and Bedrock's filter": (
        ANTHROPIC, "anthropic:m", [
            ANTHROPIC.message({"type": "text", "text": "Half"}, word="guardrail_intervened")],
        {**FILTERED, "text": "Half", "requests": 1}),
    "half a text and a filter of Ollama's": (
        OLLAMA, "ollama:m", [OLLAMA.last({"content": "Half"}, done_reason="safety")],
        {**FILTERED, "text": "Half", "requests": 1}),
    "an unknown word": (
        CHAT, "openai:m", [chosen("bored", message={"content": "Half"})],
        {**FINISHED, "text": "Half", "says": "'bored'", "requests": 1}),
    "a word that is cut off at a limit": (
        CHAT, "openai:m", [chosen("max_output_tokens", message={"content": "Half"})],
        {"stop_reason": "length", "text": "Half", "requests": 1}),
    "a paid answer of nothing, then an answer": (
        CHAT, "openai:m", [chosen(message={"content": ""}), CHAT_FINE],
        {**FINISHED, "text": "fine", "says": "9 tokens", "requests": 2}),
    "two paid answers of nothing": (
        CHAT, "openai:m", [chosen(message={"content": ""})] * 2,
        {**BROKEN, "says": "9 tokens", "requests": 2}),
    "a paid answer that nobody reads": (
        CHAT, "openai:m", [chosen(message={"content": None, "riddle": {"a": 1}})],
        {**BROKEN, "says": "riddle", "requests": 1}),
    "text of the older API": (
        CHAT, "openai:m", [chosen(text="old")], {**FINISHED, "text": "old", "requests": 1}),
    **{f"Gemini: {word}": (
        GOOGLE, "google:gemini-3.8-flash", [
            GOOGLE.chunk(SEARCH, end=word), GOOGLE.chunk({"text": "sorry"}, end="STOP")],
        {**FINISHED, "text": "sorry", "tool_error": "E_UNKNOWN_TOOL", "requests": 2})
       for word in ("UNEXPECTED_TOOL_CALL", "MALFORMED_FUNCTION_CALL", "TOO_MANY_TOOL_CALLS")},
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("wire", "model", "bodies", "expect"), ENDS.values(), ids=ENDS)
def test_a_run_ends_as_the_answer_says(
    monkeypatch: pytest.MonkeyPatch,
    wire: Any,
    model: str,
    bodies: list[JSON],
    expect: JSON,
    stream: bool,
) -> None:
    monkeypatch.setenv("TEST_KEY", "sk-test-0123456789")
    if wire is ANTHROPIC and stream:
        events = ANTHROPIC.events({"type": "text", "text": "Half"}, word="guardrail_intervened")
        script = [Reply(raw=ANTHROPIC.stream(*events))]
    else:
        script = replies(*bodies, wire=wire, stream=stream)
    with ModelServer(script) as server:
        agent = nbagent.Agent(model=model, tools=[look], base_url=server.url, stream=stream)
        run = agent.run("Go.", key_variable="TEST_KEY")
    check_run(run)
    wanted = {"stop_reason": "answered", "text": "", **expect}
    assert (run.stop_reason, run.text) == (wanted["stop_reason"], wanted["text"])
    assert run.phase == wanted.get("phase", run.phase)
    assert (run.error.code if run.error else None) == wanted.get("code")
    assert len(server.bodies) == wanted["requests"]
    shown = " ".join([*run.turns[0].notices, run.error.message if run.error else ""])
    assert wanted.get("says", "") in shown
    codes = [made.result.error.code for turn in run.turns for made in turn.tool_runs
             if made.result and made.result.error]  # fmt: skip
    assert codes == ([wanted["tool_error"]] if "tool_error" in wanted else [])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_a_background_answer_is_named_after_one_request(
    monkeypatch: pytest.MonkeyPatch, status: str, stream: bool
) -> None:
    monkeypatch.setenv("TEST_KEY", "sk-test-0123456789")
    body = json.dumps({**RESPONSES.response(status=status), "output": []}).encode()
    with ModelServer([Reply(raw=body, raw_type="application/json")]) as server:
        agent = nbagent.Agent(model="openai-responses:m", tools="none", base_url=server.url)
        extra = {"background": True}
        run = agent.run("Go.", key_variable="TEST_KEY", stream=stream, extra_body=extra)
    assert run.error
    assert run.error.code == "LLM_BAD_RESPONSE"
    assert "background" in run.error.message
    assert "extra_body" in run.error.message
    assert len(server.bodies) == 1
