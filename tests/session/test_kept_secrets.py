"""A key of the environment is in no record, no event, no file and no repr, however it gets out."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from engine.laws import check_run
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.contracts.events import TextDelta, ToolCallDelta
from nbagent.providers.offline import call, cut, error, script, step
from nbagent.session.stores import close_stores

KEY = "sk-test/Q7+zz0123456789abcdef"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_API_KEY", KEY)


def leaks(blob: str | bytes) -> list[str]:
    """The forms of the key that are in a text."""
    text = blob.decode("latin-1") if isinstance(blob, bytes) else blob
    forms = [KEY, quote(KEY, safe=""), base64.b64encode(KEY.encode()).decode()]
    return [form for form in forms if form in text]


def check_kept(run: nbagent.Run, events: list[Any], tmp_path: Path) -> None:
    check_run(run)
    assert not leaks(run.record.model_dump_json())
    assert not leaks(repr(run) + str(run) + repr(run.record) + repr(run.error))
    assert not leaks(repr(events))
    assert not leaks(repr([run.request_of(turn.id) for turn in run.turns]))
    frames: list[Any] = [
        nbagent.runs(),
        nbagent.turns(),
        nbagent.tool_runs(),
        nbagent.messages(),
    ]
    for frame in frames:
        assert not leaks(frame.to_csv())
    files = [file for file in (tmp_path / "nbagent-home").iterdir() if file.is_file()]
    assert any(file.name == "runs.sqlite" for file in files)
    assert not any(leaks(file.read_bytes()) for file in files)
    close_stores()
    assert not leaks((tmp_path / "nbagent-home" / "runs.sqlite").read_bytes())


def echo(text: str = "") -> dict[str, Any]:
    """Tell the environment, as it is and in other forms."""
    secret = os.environ["LLM_API_KEY"]
    coded = base64.b64encode(secret.encode()).decode()
    return {"plain": secret, secret: [quote(secret, safe=""), coded]}


def fail(text: str = "") -> str:
    """Fail with the key in the message."""
    raise RuntimeError(f"401 for {os.environ['LLM_API_KEY']}")


PIECES = tuple(KEY[i : i + 3] for i in range(0, len(KEY), 3))
CASES: dict[str, list[Any]] = {
    "tool result": [call("echo"), "Done."],
    "tool failure": [call("fail"), "Done."],
    "text": [f"The key is {KEY}."],
    "text in pieces": [step(pieces=("It is ", *PIECES, "."))],
    "text in letters": [step(pieces=tuple(f"<{KEY}>"))],
    "reasoning": [step(reasoning=f"I think of {KEY} now.", text="Yes.")],
    "arguments": [call("echo", text=f"is it {KEY}?"), "Done."],
    "cut text": [cut(f"It is {KEY}")],
    "cut arguments": [cut("", calls=[call("echo", text=KEY)])],
    "error": [error("LLM_AUTH_FAILED", f"bad key {KEY}")],
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("case", CASES)
def test_a_key_that_comes_back_is_hidden_everywhere(
    case: str, stream: bool, tmp_path: Path
) -> None:
    events: list[Any] = []
    agent = nbagent.Agent(model=script(CASES[case]), tools=[echo, fail], stream=stream)
    run = agent.run("Go.", on_event=events.append)
    shown = "".join(e.text for e in events if isinstance(e, TextDelta))
    written = "".join(e.arguments for e in events if isinstance(e, ToolCallDelta))
    assert not leaks(shown + written), "also when the pieces are joined"
    assert "[redacted]" in run.record.model_dump_json() or not (stream or "cut" not in case)
    check_kept(run, events, tmp_path)


def test_a_key_in_the_persons_words_is_neither_sent_nor_kept(tmp_path: Path) -> None:
    events: list[Any] = []
    model = script(["Fine."])
    agent = nbagent.Agent(model=model, system=f"My key: {KEY}")
    run = agent.run(f"Use {KEY}", name=KEY, tags=[KEY], session=KEY, on_event=events.append)
    assert not leaks(repr(model.requests))
    check_kept(run, events, tmp_path)


def test_a_server_that_echoes_the_key_in_its_error_does_not_leak_it(tmp_path: Path) -> None:
    events: list[Any] = []
    refusal = Reply(status=401, error={"error": {"message": f"Incorrect API key: {KEY}"}})
    with ModelServer([refusal]) as server:
        run = nbagent.Agent("openai:m", base_url=server.url).run("Go.", on_event=events.append)
        assert leaks(repr(server.requests[0].headers)), "the server itself got it"
    assert run.error is not None
    assert run.error.code == "LLM_AUTH_FAILED"
    check_kept(run, events, tmp_path)


def test_the_tail_that_might_have_become_a_key_is_shown_in_the_end() -> None:
    events: list[Any] = []
    run = nbagent.Agent(model=script([step(pieces=("It ends in ", KEY[:6]))])).run(
        "Go.", on_event=events.append
    )
    assert run.text == f"It ends in {KEY[:6]}"
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == run.text
