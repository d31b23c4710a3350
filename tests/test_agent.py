"""The handles that a person holds: what Agent takes, what Run shows, what both refuse."""

from __future__ import annotations

import inspect
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_run, look
from frontends import StandIn
from pandas import DataFrame

import nbagent
from nbagent.contracts.errors import EngineError, ModelError, NbagentError, ToolError, UsageError
from nbagent.providers.offline import ScriptedAnswer, call, error, script, step
from nbagent.session.frontend import use_frontend
from nbagent.session.stores import current_store
from nbagent.settings.sources import fresh_settings


def test_an_unknown_option_names_the_nearest_one_at_each_door() -> None:
    agent: Any = nbagent.Agent(model=script(["One."]))
    run: Any = agent.run("Go.")
    for door, words in (nbagent.Agent, ()), (agent.run, ("Go.",)), (run.resume, ("More.",)):
        with pytest.raises(UsageError, match="unknown option 'maxturns'; did you mean 'max_turns'"):
            door(*words, maxturns=1)


def test_options_of_the_run_win_over_those_of_the_agent_and_those_over_configure() -> None:
    nbagent.configure(temperature=0.1, top_p=0.2, max_tokens=30)
    model = script(["One.", "Two."])
    agent = nbagent.Agent(model=model, temperature=0.3, top_p=0.4)
    run = agent.run("Go.", temperature=0.5)
    request = model.requests[0]
    assert (request.temperature, request.top_p, request.max_tokens) == (0.5, 0.4, 30)
    assert run.record.options["temperature"] == 0.5
    agent.run("Second.")
    assert [m.text for m in model.requests[1].messages] == ["Second."], "it has no memory"


@pytest.mark.parametrize("model", [5, [], object()], ids=["int", "list", "object"])
def test_a_model_that_is_none_is_refused(model: Any) -> None:
    with pytest.raises(UsageError, match=r"model=.* is not valid; expected a text"):
        nbagent.Agent(model=model)
    with pytest.raises(UsageError, match="there is no provider 'nosuch'"):
        nbagent.Agent("nosuch:m").run("Go.")
    with pytest.raises(UsageError, match="LLM_AUTH_FAILED: openai needs a key: set OPENAI_API_KEY"):
        nbagent.Agent("openai:gpt-5.4").run("Go.")


async def later(event: object) -> None:
    """Hear an event, some time."""


def test_what_is_no_list_no_text_and_no_reference_is_one_clear_line() -> None:
    agent: Any = nbagent.Agent(model=script(["Never."]))
    open_run: Any = nbagent.open_run
    refused: list[tuple[Any, str]] = [
        (lambda: agent.run("Go.", tools=look), r"tools=.* is not a list; write tools=\[look"),
        (lambda: agent.run("Go.", messages=None), r"messages=None is not a list; write messages="),
        (lambda: agent.run("Go.", messages=[{"role": "user"}]), r"is not an nbagent\.Message"),
        (lambda: agent.run("Go.", on_event=later), "plain function"),
        (lambda: agent.run(5), "the prompt is a int; write it as text"),
        (lambda: open_run(b"last"), "b'last' is not a run; give \"last\", its name"),
        (lambda: open_run("\ud800"), "no run is called"),
    ]
    for door, said in refused:
        with pytest.raises(UsageError, match=said):
            door()


def test_a_working_folder_that_was_deleted_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with fresh_settings(), pytest.raises(UsageError, match="the working folder was deleted"):
        nbagent.Agent(script(["Never."])).run("Go.")


def test_tools_may_be_functions_or_names_of_the_notebook() -> None:
    def plain(place: str) -> str:
        """Not marked."""
        return place

    marked = nbagent.tool(look)
    namespace = {"look": marked, "plain": plain}
    use_frontend(StandIn(namespace))
    given: list[tuple[Any, list[str]]] = [
        *((None, ["look"]), ("none", []), ([], []), ([plain], ["plain"])),
        *((["plain"], ["plain"]), (["look", "plain"], ["look", "plain"]), ("look", ["look"])),
    ]
    for tools, names in given:
        model = script(["One."])
        nbagent.Agent(model=model, tools=tools).run("Go.")
        assert [tool.name for tool in model.requests[0].tools] == names
    model = script(["One.", "Two."])
    run = nbagent.Agent(model=model, tools=[plain]).run("Go.", tools="none")
    run.resume("More.", tools=[plain])
    assert [[tool.name for tool in it.tools] for it in model.requests] == [[], ["plain"]]
    with pytest.raises(UsageError, match="did you mean 'look'"):
        nbagent.Agent(model=model, tools=["lok"]).run("Go.")


def test_a_run_shows_what_it_was() -> None:
    model = script([call("look", place="a"), "Done."])
    agent = nbagent.Agent(model=model, tools=[look])
    run = check_run(agent.run("Go.", name="first", tags="one", session="s"), model)
    assert repr(agent) == f"<Agent {model.model_id}>"
    assert repr(run).startswith(f"<Run {run.id[:8]} answered, 2 turns, ")
    assert (str(run), run.name, run.session, run.model) == ("Done.", "first", "s", model.model_id)
    assert run.record.tags == ("one",)
    result = run.turns[0].tool_runs[0].result
    assert result is not None
    assert result.data == "seen a"
    assert nbagent.open_run("first").record == nbagent.open_run("last").record == run.record
    with pytest.raises(UsageError, match="C07"):
        run.request_of("C07")
    with pytest.raises(UsageError, match=r"^no run is called 'zzz'.* \(ENOENT\)$"):
        nbagent.open_run("zzz")


def test_a_run_displays_itself_through_the_front_and_prints_where_there_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = nbagent.Agent(model=script(["One."])).run("Go.")
    run._ipython_display_()  # pyright: ignore[reportPrivateUsage]
    assert capsys.readouterr().out == f"{run!r}\n"
    shown: list[Any] = []
    last: list[Any] = []
    front = StandIn(show=lambda record: shown.append(record) is None, set_last=last.append)
    use_frontend(front)
    other = nbagent.Agent(model=script(["Two."])).run("Go.")
    other._ipython_display_()  # pyright: ignore[reportPrivateUsage]
    assert (shown, last) == ([other.record], [other])
    assert capsys.readouterr().out == ""


def _keep_writing(ended: threading.Event) -> None:
    """Keep the store at work at every moment."""
    while not ended.is_set():
        current_store().heartbeat()


def test_a_run_in_a_forked_child_works_and_leaves_the_parents_store_alone() -> None:
    model = script(["Parent.", "More."])
    run = nbagent.Agent(model=model).run("Go.")
    ended = threading.Event()
    busy = threading.Thread(target=_keep_writing, args=(ended,))
    busy.start()
    left = nbagent.Agent(model=script([step(text="Late.", wait_ms=2_000)])).start("Go.")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child = nbagent.Agent(model=script(["Child."])).run("Go.")
            os.write(write, f"{child.text} {child.stop_reason}".encode())
            left.wait(timeout=20)
        except nbagent.NbagentError as error:
            os.write(write, f" {error.code}".encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    ended.set()
    busy.join()
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "Child. answered ENGINE_INTERRUPTED"
    assert left.wait().text == "Late."
    assert check_run(run.resume("More."), model).text == "More."


ENDS: dict[type[NbagentError], tuple[ScriptedAnswer, dict[str, Any]]] = {
    ModelError: (error("LLM_TIMEOUT"), {}),
    EngineError: (call("look"), {"max_turns": 1, "tools": []}),
    ToolError: (step(text="no city"), {"output": list[int]}),
}


@pytest.mark.parametrize("kind", ENDS)
def test_what_ended_a_run_is_raised_in_the_class_of_its_code(kind: type[NbagentError]) -> None:
    first, options = ENDS[kind]
    run = nbagent.Agent(script([first] * 9), max_requests=3, **options).run("Go.")
    while run.phase == "WaitingUser":
        run = run.resume()
    with pytest.raises(kind) as caught:
        run.raise_for_error()
    assert type(caught.value) is kind


def test_tab_offers_the_public_names_of_a_run_and_of_a_batch() -> None:
    agent = nbagent.Agent(model="offline:demo")
    run, batch = agent.run("Hello?"), agent.map(DataFrame({"n": [1]}), "Hello?", start=False)
    offered = [{name for name in dir(handle) if name[:2] != "__"} for handle in (run, batch)]
    assert {"text", "turns", "resume", "fork", "export", "record", "frame"} <= offered[0]
    assert {"frame", "compare", "review", "wait", "stop", "progress"} <= offered[1]
    internal = {"await_end", "starting", "passed_tools"}
    assert not [name for names in offered for name in names if name[:1] == "_" or name in internal]


@pytest.mark.parametrize("turn", [2, "2", "c2", "C2", "C02", "C002"])
def test_a_turn_is_named_by_its_number_or_its_id(turn: Any) -> None:
    model = script([call("look"), "One.", "Two.", "Three."])
    run = nbagent.Agent(model=model, tools=[look]).run("Go.")
    fork = run.fork(turn)
    assert (fork.text, fork.record.forked_from.turn_id) == ("Two.", "C02")  # pyright: ignore
    assert run.request_of(turn).messages == run.request_of("C02").messages
    assert run.retry(turn=turn).runs[0].text == "Three."


@pytest.mark.parametrize("turn", [0, -1, 3, "C09", "D02", True, None, 1.5, "C02 ", "", "9" * 5_000])
def test_a_turn_that_does_not_exist_is_one_clear_line(turn: Any) -> None:
    run = nbagent.Agent(model=script([call("look"), "One."]), tools=[look]).run("Go.")
    with pytest.raises(UsageError, match="its own turns: C01, C02"):
        run.fork(turn)
    with pytest.raises(UsageError, match="has no turn"):
        run.request_of(turn)


def peek() -> str:
    return "seen"


def test_continued_runs_call_the_functions_that_a_run_calls() -> None:
    steps = [call("peek"), "One.", call("peek"), "Two.", call("peek"), "Three.", "Four."]
    run = nbagent.Agent(model=script(steps), tools=[peek]).run("Go.")
    heard: list[str] = []
    functions: dict[str, Any] = {
        "on_event": lambda event: heard.append(type(event).__name__),  # pyright: ignore
        "on_tool_call": lambda name, _: heard.append(f"call {name}"),  # pyright: ignore
        "on_tool_result": lambda _, result: heard.append(f"result {result.ok}"),  # pyright: ignore
    }
    for go_on, n_calls in (
        (lambda: run.resume("More.", **functions), 1),
        (lambda: run.fork("C01", **functions), 1),
        (lambda: run.retry(2, **functions), 0),
    ):
        heard.clear()
        go_on()
        assert heard.count("call peek") == heard.count("result True") == n_calls
        assert heard.count("RunFinished") == (1 if n_calls else 2)


def test_each_field_of_a_run_has_a_docstring_and_cannot_be_set() -> None:
    run = nbagent.Agent(model=script(["One."])).run("Go.")
    fields = ("id", "name", "session", "model", "phase", "stop_reason", "ok", "error", "text")
    docs = {name: inspect.getdoc(getattr(nbagent.Run, name)) for name in (*fields, "turns")}
    assert all(docs.values())
    assert len({*docs.values()}) == len(docs)
    with pytest.raises(AttributeError, match="no setter"):
        run.text = "Two."  # pyright: ignore
    with pytest.raises(AttributeError, match="a Run has no attribute 'tokens'"):
        _ = run.tokens  # pyright: ignore


def test_an_error_inside_a_property_is_not_taken_for_a_missing_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(run: Any) -> str:
        raise AttributeError("the reason")

    monkeypatch.setattr(nbagent.Run, "answer", property(broken))
    run = nbagent.Agent(model=script(["One."])).run("Go.")
    with pytest.raises(AttributeError, match="the reason"):
        _ = run.answer


def test_failed_calls_fail_a_job_on_request() -> None:
    def area(city: str) -> float:
        "Area of a city."
        raise ValueError("no such city")

    model = script([call("area", city="x"), "I do not know."])
    run = nbagent.Agent(model, tools=[area]).run("How large?", quiet=True)
    assert run.raise_for_error() is run
    with pytest.raises(ToolError, match=r"1 of 1 call failed; the first was area: .*no such city"):
        run.raise_for_error(calls=True)
    done = nbagent.Agent(script(["Hello."])).run("Hi", quiet=True)
    assert done.raise_for_error(calls=True) is done
