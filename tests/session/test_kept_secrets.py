"""A key of the environment is in no record, no event, no file and no repr, however it gets out."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from engine.laws import check_run
from pydantic import BaseModel
from servers.model_server import ModelServer, Reply
from session.approval_stage import Asked, Shifting, ran

import nbagent
from nbagent.contracts.approval import CallPreview, PreviewPiece
from nbagent.contracts.events import TextDelta, ToolCallDelta
from nbagent.providers.offline import call, cut, error, script, step
from nbagent.session.stores import close_stores
from nbagent.settings.options import RunOptions

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
    assert not leaks(repr([run, str(run), run.record, run.error, events]))
    assert not leaks(repr([run.request_of(turn.id) for turn in run.turns]))
    frames: list[Any] = [nbagent.runs(), nbagent.turns(), nbagent.tool_runs(), nbagent.messages()]
    assert not any(leaks(frame.to_csv()) for frame in frames)
    close_stores()
    files = [file for file in (tmp_path / "nbagent-home").iterdir() if file.is_file()]
    assert any(file.name == "runs.sqlite" for file in files)
    assert not any(leaks(file.read_bytes()) for file in files)


def echo(text: str = "") -> dict[str, Any]:
    """Tell the key, as a value and as a name."""
    return {"plain": KEY, KEY: quote(KEY, safe="")}


PIECES = tuple(KEY[i : i + 3] for i in range(0, len(KEY), 3))
CASES: dict[str, list[Any]] = {
    "tool result": [call("echo"), "Done."],
    "text in pieces": [step(pieces=("It is ", *PIECES, "."))],
    "reasoning": [step(reasoning=f"I think of {KEY} now.", text="Yes.")],
    "cut text": [cut(f"It is {KEY}")],
    "error": [error("LLM_AUTH_FAILED", f"bad key {KEY}")],
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("case", CASES)
def test_a_key_that_comes_back_is_hidden(case: str, stream: bool, tmp_path: Path) -> None:
    events: list[Any] = []
    agent = nbagent.Agent(model=script(CASES[case]), tools=[echo], stream=stream)
    run = agent.run("Go.", on_event=events.append)
    shown = "".join(e.text for e in events if isinstance(e, TextDelta))
    written = "".join(e.arguments for e in events if isinstance(e, ToolCallDelta))
    assert not leaks(shown + written), "also when the pieces are joined"
    assert "[redacted]" in run.record.model_dump_json() or not (stream or "cut" not in case)
    check_kept(run, events, tmp_path)


def test_a_key_in_what_a_person_is_shown_and_warned_of_is_hidden(tmp_path: Path) -> None:
    answer = Asked(True)
    piece = PreviewPiece("diff", f"- key: {KEY}", "diff")
    ran(
        call("shift"),
        tools=[Shifting(["one"], CallPreview(ruling="ask", pieces=(piece,)))],
        answer=answer,
    )
    assert [shown.text for shown in answer.questions[0].pieces] == ["- key: [redacted]"]

    def fails(event: object) -> None:
        raise RuntimeError(f"no place for {KEY}")

    run = nbagent.Agent(model=script(["Fine."])).run("Go.", on_event=fails)
    assert "no place for [redacted]" in run.record.notices[0]
    check_kept(run, [], tmp_path)


def test_the_tail_that_might_have_become_a_key_is_shown_in_the_end() -> None:
    events: list[Any] = []
    agent = nbagent.Agent(model=script([step(pieces=("It ends in ", KEY[:6]))]))
    run = agent.run("Go.", on_event=events.append)
    assert run.text == f"It ends in {KEY[:6]}"
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == run.text


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> str:
    """A key that this process has never seen."""
    key = f"sk-{secrets.token_hex(16)}"
    monkeypatch.setenv("OTHER_API_KEY", key)
    return key


def test_each_run_knows_the_keys_before_it_reads_anything(
    fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> str:
        return "yes"

    ask.__doc__ = f"Ask {fresh}."
    model = script(["Fine."] * 3)
    agent = nbagent.Agent(
        model=model, system=f"My key: {fresh}", stop_sequences=(fresh,), tools=[nbagent.tool(ask)]
    )
    own = [nbagent.Message.of("user", fresh)]
    run = agent.run(f"Use {fresh}", name=fresh, session=fresh, messages=own)
    assert fresh not in repr(model.requests) + run.record.model_dump_json() + repr(run.messages)
    assert nbagent.open_run(run.id).record == run.record
    nbagent.configure(system=f"My key: {fresh}", stop_sequences=(fresh,))
    nbagent.Agent(model=model, tools=[]).run("Go.")
    assert model.requests[1].system_prompt == "My key: [redacted]"
    assert model.requests[1].stop_sequences == ("[redacted]",)
    later = f"sk-{secrets.token_hex(16)}"
    monkeypatch.setenv("OTHER_API_KEY", later)
    run = nbagent.Agent(model=model).run(f"Use {later}")
    assert later not in run.record.model_dump_json() + repr(model.requests)


class Numbered(BaseModel):
    number: int


def long_failure() -> None:
    """Fail at length."""
    raise ValueError("x" * 448 + os.environ["OTHER_API_KEY"] + "z" * 999)


def refused_value() -> None:
    """Fail with a message that its library has cut already."""
    Numbered.model_validate({"number": os.environ["OTHER_API_KEY"] + "z" * 200})


def steps() -> Any:
    """Tell how far it is."""
    yield "x" * 215 + os.environ["OTHER_API_KEY"] + "z" * 999
    yield "Done."


def longest_part(key: str, text: str) -> int:
    """How many characters of the key stand together in a text."""
    parts = (key[i:j] for i in range(len(key)) for j in range(i + 1, len(key) + 1))
    return max((len(part) for part in parts if part in text), default=0)


@pytest.mark.parametrize("tool", [long_failure, refused_value, steps])
def test_no_part_of_a_key_is_left_where_a_tools_text_is_cut(tool: Any, fresh: str) -> None:
    events: list[Any] = []
    agent = nbagent.Agent(model=script([call(tool.__name__), "Done."]), tools=[tool])
    run = agent.run("Go.", on_event=events.append)
    seen = repr(events) + run.record.model_dump_json()
    assert longest_part(fresh, seen) < 8


CUT_BY_US: dict[str, Callable[[str], Reply]] = {
    "plain refusal": lambda key: Reply(status=400, error="x" * 567 + key),
    "neither of both": lambda key: Reply(raw=b"x" * 48 + key.encode() + b"z" * 3000),
    "cut refusal": lambda key: Reply(status=400, error=" " * (64 * 1024 - 16) + key),
    "broken JSON": lambda key: Reply(raw=b"{" + b"x" * 47 + key.encode() + b"z" * 3000),
    "broken event": lambda key: Reply(raw=b"data: x" + key.encode() + b"z" * 198 + b"\n\n"),
    "encoding": lambda key: Reply("Hi", headers={"Content-Encoding": "x" * 12 + key}),
}


@pytest.mark.parametrize("case", CUT_BY_US)
def test_no_part_of_a_key_is_left_where_a_servers_text_is_cut(case: str, fresh: str) -> None:
    with ModelServer([CUT_BY_US[case](fresh)] * 4) as server:
        run = nbagent.Agent("openai:m", base_url=server.url).run("Go.")
    assert run.error is not None
    assert longest_part(fresh, run.record.model_dump_json()) < 8


def test_a_key_in_the_path_of_the_server_is_not_kept(fresh: str) -> None:
    with ModelServer(["Fine."]) as server:
        run = nbagent.Agent("openai:m", base_url=f"{server.url}/{fresh}").run("Go.")
    assert fresh in server.requests[0].path
    assert fresh not in run.record.model_dump_json() + repr(run.record)
    assert nbagent.open_run(run.id).record == run.record


def test_a_key_in_an_option_is_in_no_repr_of_the_agent(fresh: str) -> None:
    agent = nbagent.Agent(
        f"openai:{fresh}",
        system=f"My key: {fresh}",
        base_url=f"http://127.0.0.1:1/{fresh}",
        tools=[fresh],
        session=fresh,
        tags=(fresh, "mine"),
    )
    assert fresh not in repr(agent) + repr(agent.options) + repr(RunOptions(system=fresh))
    assert agent.options.system == "My key: [redacted]"
    assert agent.options.tags == ("[redacted]", "mine")
    assert agent.options.base_url == f"http://127.0.0.1:1/{fresh}", "it is asked there"
    options = nbagent.Agent("offline:demo", system="Be brief.", tools="none", tags=["a"]).options
    assert eval(repr(options), {"RunOptions": RunOptions}) == options
