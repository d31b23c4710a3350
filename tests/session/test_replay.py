"""Recorded answers: the same run again without a server, and what a stranger's record may do.

With `replay_tools` results, too, instead of runs: found by name, arguments and time.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_run
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.contracts.events import Event, Notice, ReasoningDelta, TextDelta, ToolCallDelta
from nbagent.contracts.messages import Message, ToolCall
from nbagent.providers.offline import call, calls, script
from nbagent.testing import tool_runs_of

CANARY = "sk-canary-0123456789abcdef"
FIRST = Reply(calls=[("population", {"city": "Oslo"})], reasoning="Look it up first.")
THEN = Reply(text="Oslo has 717,710 people.", reasoning="Now I know.")


def population(city: str) -> int:
    """People living in a city."""
    asked.append(city)
    return {"Oslo": 717_710, "Bergen": 291_940}[city]


def never(question: object) -> bool:
    return False


def area(city: str) -> float:
    """Area of a city."""
    return 454.1


asked: list[str] = []
done: list[str] = []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    asked.clear()
    done.clear()
    return tmp_path / "answers.jsonl"


def agent(server: ModelServer, file: Path | None, **options: Any) -> nbagent.Agent:
    given: dict[str, Any] = {"model": "openai:little", "tools": [population], **options}
    return nbagent.Agent(base_url=server.url, cassette=file and str(file), **given)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def sources(run: nbagent.Run) -> list[str]:
    return [turn.response.meta.source for turn in run.turns if turn.response]


def recorded(file: Path, *, prompt: str = "How many live in Oslo?") -> ModelServer:
    """A server that has answered one run into the file, and is stopped."""
    with ModelServer([FIRST, THEN]) as server:
        run = agent(server, file).run(prompt).raise_for_error()
        assert (sources(run), run.text) == (["live", "live"], THEN.text)
    return server


@pytest.mark.parametrize("stream", [True, False])
def test_recorded_run_goes_again_without_server_with_its_tools(file: Path, stream: bool) -> None:
    server = recorded(file)
    run = agent(server, file, cache="replay", stream=stream).run("How many live in Oslo?")
    assert (run.raise_for_error().text, sources(run)) == (THEN.text, ["replay", "replay"])
    assert run.messages[1].reasoning == FIRST.reasoning
    assert asked == ["Oslo", "Oslo"]
    assert run.usage.total_tokens > 0
    again = agent(server, file).run("How many live in Oslo?")
    assert sources(again) == ["hit", "hit"]


def test_cassette_has_a_readable_line_for_each_exchange_and_streams_words(file: Path) -> None:
    server = recorded(file)
    first, second = lines(file)
    assert list(first) == ["key", "n", "request", "response"]
    assert first["request"]["new"] == ["user: How many live in Oslo?"]
    assert second["request"]["new"] == ['population: {"ok":true,"data":717710}']
    assert first["response"]["message"]["tool_calls"][0]["arguments_raw"] == '{"city": "Oslo"}'
    assert second["response"]["message"]["content"] == [{"type": "text", "text": THEN.text}]
    events: list[Event] = []
    agent(server, file, cache="replay").run("How many live in Oslo?", on_event=events.append)
    texts = [e.text for e in events if isinstance(e, TextDelta)]
    assert texts == ["Oslo", " has", " 717,710", " people."]
    assert len([e for e in events if isinstance(e, ReasoningDelta)]) == 7
    deltas = [e for e in events if isinstance(e, ToolCallDelta)]
    assert "".join(e.arguments for e in deltas) == '{"city": "Oslo"}'


PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (
        lambda _: None,
        "there is no file answers.jsonl, and no model was asked; check its",
    ),
    "empty": (Path.touch, "answers.jsonl has no answer to this request\nno model was asked"),
    "a folder": (Path.mkdir, "answers.jsonl is not a file"),
    "a name too long": (lambda file: file.symlink_to("a" * 300), "cannot be read: File name too"),
}


@pytest.mark.parametrize("place", PLACES)
def test_replay_without_a_record_asks_nobody_and_says_why(file: Path, place: str) -> None:
    made, said = PLACES[place]
    made(file)
    run = nbagent.Agent("openai:gpt-5.4", cache="replay", cassette=str(file)).run("Hello?")
    assert run.error is not None
    assert run.error.code == "E_PRECONDITION_FAILED"
    assert said in run.error.message
    assert os.path.exists(file) == (place in ("empty", "a folder"))


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "prompt": ({"prompt": "Who lives in Bergen?"}, "+ message 1: user: Who lives in Bergen?"),
    "top_p": ({"top_p": 0.0}, "+ top_p: 0.0"),
    "tools": ({"tools": [population, area]}, "+ tool area: definition "),
    "server": ({"base_url": "http://127.0.0.1:1/v1"}, "+ server: http://127.0.0.1:1"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_missing_answer_is_an_error_that_shows_the_difference(file: Path, change: str) -> None:
    server = recorded(file)
    options, said = CHANGES[change]
    prompt = options.pop("prompt", "How many live in Oslo?")
    run = agent(server, file, cache="replay").run(prompt, **options)
    assert run.error is not None
    assert "(line 1 of answers.jsonl) differs (- recorded, + now):\n" in run.error.message
    assert said in run.error.message
    assert run.error.message.count("\n  + ") == 1
    assert len(lines(file)) == 2


def test_refresh_asks_again_says_what_changed_and_replaces_the_line(file: Path) -> None:
    recorded(file)
    before = lines(file)
    file.chmod(0o640)
    port = int(re.findall(r"127.0.0.1:(\d+)", before[0]["request"]["server"])[0])
    told: list[Event] = []
    with ModelServer([FIRST, "Oslo has 720,000 people."], port=port) as server:
        again = agent(server, file, cache="refresh")
        run = again.run("How many live in Oslo?", on_event=told.append)
    assert sources(run) == ["live", "live"]
    said = "changed: - Oslo has 717,710 people.; + Oslo has 720,000 people."
    notes = [event.text for event in told if isinstance(event, Notice)]
    assert notes == ["asked again; same answer", f"asked again; {said}"]
    after = lines(file)
    assert after[0] == before[0]
    assert after[1]["key"] == before[1]["key"]
    assert (len(after), file.stat().st_mode & 0o777) == (2, 0o640)
    assert [path.name for path in file.parent.glob(".*jsonl*")] == []
    assert agent(server, file, cache="replay").run("How many live in Oslo?").text == run.text


def test_ids_and_vendor_fields_do_not_tell_requests_apart(file: Path) -> None:
    def conversation(id: str) -> list[Message]:
        call = ToolCall(id=id, name="area", arguments={}, arguments_raw="{}", extra={"s": id})
        result = Message.of("tool", f'{{"ok":true,"data":{{"duration_ms":{len(id)}}}}}')
        return [
            Message.of("user", "How large?"),
            Message(role="assistant", tool_calls=(call,), raw={"provider": "openai", "id": id}),
            result.model_copy(update={"tool_call_id": id, "name": "area"}),
        ]

    with ModelServer(["Large."]) as server:
        first = agent(server, file).run("Sure?", messages=conversation("a"))
        second = agent(server, file).run("Sure?", messages=conversation("other"))
    assert (sources(first), sources(second)) == (["live"], ["hit"])
    assert second.text == "Large."


def test_recording_follows_no_link_and_keeps_a_last_line_without_an_end(file: Path) -> None:
    mine = file.with_name("mine.txt")
    file.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    file.with_name(f".{file.name}.new").symlink_to(mine)  # it came with a stranger's folder
    recorded(file)
    assert (mine.read_text(), len(lines(file)), file.is_symlink()) == ("mine", 2, False)
    file.write_bytes(file.read_bytes()[:-1])  # as an editor may leave it
    with ModelServer(["Yes."]) as server:
        agent(server, file).run("Is it torn?")
    assert len(lines(file)) == 3


NOT_RECORDED: dict[str, tuple[Reply, dict[str, Any]]] = {
    "cut": (Reply(text="Half", cut=True), {}),
    "refused": (Reply(status=400), {}),
    "error": (Reply(text="Half", finish="error"), {}),
    "off": (Reply(text="One."), {"cache": "off"}),
    "offline": (Reply(text="One."), {"model": "offline:demo"}),
}


@pytest.mark.parametrize("case", NOT_RECORDED)
def test_failed_and_offline_answers_are_not_recorded(file: Path, case: str) -> None:
    reply, options = NOT_RECORDED[case]
    with ModelServer([reply] * 8) as server:
        runs = [agent(server, file, **options).run("Hello?") for _ in range(2)]
        assert all("hit" not in sources(run) for run in runs)
        assert not file.exists()


def test_no_secret_is_recorded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_API_KEY", CANARY)

    def whoami() -> str:
        """Say a secret."""
        return os.environ["LLM_API_KEY"]

    told = Reply(text=f"It is {CANARY}.", reasoning=f"{CANARY}!", calls=[("whoami", {"a": CANARY})])
    with ModelServer([Reply(calls=[("whoami", {})]), told, "Done."]) as server:
        options: dict[str, Any] = {"tools": [whoami], "system": f"Never say {CANARY}."}
        agent(server, file, **options).run(f"Is it {CANARY}?")
        again = agent(server, file, **options).run(f"Is it {CANARY}?")
    assert sources(again) == ["hit", "hit", "hit"]
    text = file.read_text("utf-8")
    assert CANARY not in text
    assert text.count("[redacted]") > 4


ODD: dict[str, tuple[str, str, str]] = {
    "prose": (
        "^.*",
        "my notes",
        "line 1 of answers.jsonl is not a recorded answer (it does not be",
    ),
    "no answer": ('"response":', '"other":', "response Field required)"),
    "torn": ('"usage":.*', "", "(Expecting property name"),
    "nested": ('"usage":', f'"a":{"[" * 200}{"]" * 200},"usage":', "(nested too deeply"),
    "not the assistant": ('"role":"assistant"', '"role":"user"', "not the assistant's"),
}


@pytest.mark.parametrize("odd", ODD)
def test_line_that_is_no_answer_is_named_and_nothing_is_asked(file: Path, odd: str) -> None:
    server = recorded(file)
    pattern, odd_text, said = ODD[odd]
    text = re.sub(pattern, odd_text, file.read_text("utf-8"), count=1)
    file.write_text(text, "utf-8")
    for mode in ("auto", "replay"):
        run = agent(server, file, cache=mode).run("How many live in Oslo?")
        assert run.error is not None
        assert said in run.error.message
        assert run.error.message.endswith("delete that line")
    assert file.read_text("utf-8") == text


def test_many_runs_record_into_one_file_at_once(file: Path) -> None:
    with ModelServer([f"Answer {i}." for i in range(12)]) as server:
        runs = [agent(server, file, tools="none").start(f"Q{i % 6}?") for i in range(12)]
        assert all(run.wait().ok for run in runs)
    keys = [line["key"] for line in lines(file)]
    assert len(keys) == len(set(keys)) == 6


def test_calls_of_a_strangers_record_are_asked_about(file: Path) -> None:
    def wipe(path: str) -> str:
        """Delete everything."""
        asked.append(path)
        return "gone"

    tools: dict[str, Any] = {"tools": [population, wipe]}
    policy = nbagent.ToolPolicy(ask=("wipe",))
    with ModelServer([FIRST, THEN]) as server:
        agent(server, file, policy=policy, **tools).run("How many live in Oslo?")
    forged = file.read_text("utf-8").replace('"name":"population"', '"name":"wipe"')
    file.write_text(forged.replace("city", "path").replace("Oslo\\", "/\\"), "utf-8")
    asked.clear()
    options: dict[str, Any] = {"cache": "replay", "policy": policy, **tools}
    run = agent(server, file, on_approval=never, **options).run("How many live in Oslo?")
    assert [(r.tool_name, r.approval) for r in run.turns[0].tool_runs] == [("wipe", "denied")]
    assert asked == []


def test_cache_goes_on_with_the_conversation_and_is_forgotten_with_the_run(file: Path) -> None:
    home = Path(os.environ["NBAGENT_HOME"])
    with ModelServer(["One.", "Two.", "Three."]) as server:
        first = agent(server, None, cache="auto").run("First?")
        second = first.resume("Second?")
        other = agent(server, None, cache="auto").run("First?")
        assert (sources(second), sources(other)) == (["live"], ["hit"])
        kept = {path.stem for path in (home / "cache").iterdir()}
        assert kept == {first.id, second.id}
        first.forget(children=True)
        assert list((home / "cache").iterdir()) == []
        assert sources(agent(server, None, cache="auto").run("First?")) == ["live"]
        server.then("Four.")
        assert agent(server, None, cache="refresh").run("First?").text == "Four."
        assert agent(server, None, cache="replay").run("First?").text == "Four."


def paid(url: str | None) -> str:
    return "https://api.openai.com"


def test_recorded_answer_of_a_paid_server_needs_no_key_and_costs_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"cache": "replay", "cassette": str(file), "tools": [population]}
    with ModelServer([FIRST, THEN]) as server:
        # As if this server were the paid one.
        monkeypatch.setattr("nbagent.session.replay.origin", paid)
        again: dict[str, Any] = {**given, "cache": "auto", "base_url": server.url}
        nbagent.Agent("openai:gpt-4o-mini", **again).run("How many live in Oslo?")
    run = nbagent.Agent("openai:gpt-4o-mini", **given).run("How many live in Oslo?")
    assert (run.raise_for_error().text, run.cost_usd) == (THEN.text, 0.0)
    assert run.usage.total_tokens > 0
    changed = nbagent.Agent("openai:gpt-4o-mini", extra_body={"seed": 1}, **given)
    error = changed.run("How many live in Oslo?").error
    assert error is not None
    assert "+ extra_body: " in error.message


# Results of tools


@nbagent.tool
def roll(sides: int, label: str = "") -> dict[str, Any]:
    """Roll a die."""
    done.append(f"roll {sides}")
    if sides < 1:
        raise ValueError("no such die")
    return {"rolled": len(done), "note": None}


@nbagent.tool(ask=True)
def delete(path: str) -> str:
    """Delete a file."""
    done.append(f"delete {path}")
    return path


def ran(file: Path | None, *steps: Any, answer: Any = None, **options: Any) -> nbagent.Run:
    model = script([*steps, "Done."])
    given: dict[str, Any] = {"tools": [roll, delete], "quiet": True, "replay_tools": True}
    given |= {"cassette": str(file)} if file else {}
    agent = nbagent.Agent(model=model, on_approval=answer, **{**given, **options})
    return check_run(agent.run("Go."), model)


def results(run: nbagent.Run) -> list[Any]:
    return [one.result.body for one in tool_runs_of(run) if one.result]


SIX = call("roll", sides=6)
STEPS = (
    calls([SIX, SIX, call("roll", sides=20)]),
    call("roll", sides=0),
    call("roll", sides="many"),
    call("delete", path="a"),
    call("delete", path="a"),
)


def test_what_is_recorded_is_not_run_again_nor_asked_about(file: Path) -> None:
    def agree(question: nbagent.Question) -> bool:
        return True

    first = ran(file, *STEPS, answer=agree)
    assert len(done) == 6
    for mode in "replay", "auto":
        again = ran(file, *STEPS, cache=mode)
        assert len(done) == 6, "nothing was run"
        assert results(again) == results(first)
        notes = {one.notes for one in tool_runs_of(again)}
        assert notes == {("from answers.jsonl; the tool was not run",)}
        assert [one.approval for one in tool_runs_of(again)] == [None] * 7
    rows: Any = nbagent.tool_runs(run=again.id)
    assert "not run" in rows["notes"].iloc[0]
    nbagent.configure(deny="roll(sides=6)")
    assert results(ran(file, SIX))[0]["error"]["code"] == "E_DENIED", "rules hold"


def test_the_order_of_names_does_not_count_and_the_time_does(file: Path) -> None:
    ran(file, call("roll", {"sides": 6, "label": "a"}))
    again = call("roll", {"label": "a", "sides": 6})
    assert [body["data"]["rolled"] for body in results(ran(file, again, again))] == [1, 2]
    assert done == ["roll 6", "roll 6"], "the second one was not recorded yet, and is now"
    other = call("roll", sides=7)
    *good, third, missing = results(ran(file, again, again, again, other, cache="replay"))
    assert [body["ok"] for body in good] == [True, True]
    assert third["error"]["code"] == missing["error"]["code"] == "E_PRECONDITION_FAILED"
    assert "no result number 3 of roll" in third["error"]["message"]
    assert "answers.jsonl holds no result number 1 of roll" in missing["error"]["message"]
    assert len(done) == 2


def test_refresh_runs_again_and_records_anew(file: Path) -> None:
    ran(file, SIX)
    ran(file, SIX, cache="refresh")
    (line,) = lines(file)
    assert (line["tool"], line["n"], line["result"]["data"]["rolled"]) == ("roll", 1, 2)


def test_the_cache_serves_results_and_without_a_record_it_is_an_error(file: Path) -> None:
    ran(None, SIX, cache="auto")
    assert results(ran(None, SIX, cache="replay"))[0]["data"]["rolled"] == 1
    with pytest.raises(nbagent.UsageError, match="replay_tools needs a record"):
        ran(None, SIX)
    ran(file, SIX, replay_tools=False)
    assert done == ["roll 6", "roll 6"]
    assert not file.exists(), "results are recorded only where they are asked for"
