"""`nbagent.testing`: a process as new, the fixture, and assertions that say what was instead."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas
import pytest
from session.approval_stage import Asked, delete

import nbagent
from nbagent.providers.offline import call, calls, delay, error, script, text
from nbagent.settings.sources import current_settings
from nbagent.testing import AgentMaker, assert_called, assert_no_errors, fresh_agent, fresh_process

__all__ = ["fresh_agent"]


@nbagent.tool
def population(city: str, year: int = 2026) -> int:
    """People living in a city."""
    return {"Oslo": 717_710}[city]


def test_a_fresh_process_knows_nothing_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = Asked("session")

    def run(**options: Any) -> nbagent.Run:
        model = script([call("delete", path="a"), '{"city": "Oslo"}'])
        agent = nbagent.Agent(model=model, tools=[delete], on_approval=answer, quiet=True)
        return agent.run("Go.", **options)

    outer = run(output=dict[str, str])
    nbagent.configure(max_turns=7)
    home = os.environ["NBAGENT_HOME"]
    with fresh_process() as folder:
        assert os.environ["NBAGENT_HOME"] == str(folder) != home
        assert current_settings().max_turns == 20
        assert len(nbagent.runs()) == 0
        with pytest.raises(nbagent.UsageError):
            nbagent.open_run("last")
        with pytest.raises(nbagent.UsageError, match="not known in this process"):
            _ = outer.output
        monkeypatch.chdir(tmp_path)
        inner = run()
        nbagent.configure(max_turns=3)
        assert (answer.paths, nbagent.open_run("last").id) == (["a", "a"], inner.id)
        assert (folder / "runs.sqlite").exists()
    assert not folder.exists()
    assert (os.environ["NBAGENT_HOME"], current_settings().max_turns) == (home, 7)
    runs: Any = nbagent.runs()
    assert runs["run_id"].tolist() == [outer.id], "its store is open again"
    run()
    assert answer.paths == ["a"] * 3, "what was allowed within is forgotten, too"


def test_a_run_at_work_is_stopped_at_the_end_and_refused_at_the_begin() -> None:
    model = script(["A long story. " * 50], delay_ms=50)
    with fresh_process():
        run = nbagent.Agent(model=model, tools=[], quiet=True).start("Tell one.")
        with pytest.raises(nbagent.UsageError, match="a run is at work"), fresh_process():
            pass
    assert run.stop_reason == "stopped"


def test_a_batch_at_work_is_stopped_at_the_end() -> None:
    table = pandas.DataFrame({"n": range(40)})
    model = script([delay(0.05), text("one")] * 40)
    with fresh_process():
        agent = nbagent.Agent(model, tools=[])
        batch = agent.map(table, "Say {{ n }}", concurrency=2, quiet=True)
        time.sleep(0.2)  # some are answered, some are at work
    asked = len(model.requests)
    assert (batch.progress.state, batch.progress.why) == ("Stopped", "stopped")
    assert asked < 40
    time.sleep(0.2)
    assert len(model.requests) == asked


def test_the_fixture_gives_an_agent_and_its_model(fresh_agent: AgentMaker) -> None:
    agent, model = fresh_agent(call("population", city="Oslo"), "Many.", tools=[population])
    run = agent.run("How many?")
    assert assert_called(run, "population", city="Oslo").result is not None
    assert_called(run, "population")
    assert_no_errors(run)
    assert model.requests[1].messages[-1].role == "tool"


def test_the_fixture_fails_a_test_that_left_steps_over(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from nbagent.testing import fresh_agent\n"
        "def test_one(fresh_agent):\n"
        "    agent, model = fresh_agent('Hello.', 'And more.')\n"
        "    assert agent.run('Hello?').text == 'Hello.'\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "1 passed, 1 error" in result.stdout
    assert "1 of 2 steps left: step 2: 'And more.'" in result.stdout


def test_a_failed_assertion_says_what_was_called_instead(fresh_agent: AgentMaker) -> None:
    steps = calls([call("population", city="Oslo", year=1990), call("population", city="Rome")])
    agent, _ = fresh_agent(steps, "Many.", tools=[population])
    run = agent.run("How many?")
    for wanted in {"city": "Bergen"}, {"city": "Oslo", "year": 2000}, {"country": "Norway"}:
        with pytest.raises(AssertionError) as failed:
            assert_called(run, "population", **wanted)
        lines = str(failed.value).splitlines()
        assert lines[0].endswith("was not called; called were:")
        assert lines[1] == "  population(city='Oslo', year=1990)"
        assert lines[2].startswith("  population(city='Rome') → E_TOOL_FAILED")
    with pytest.raises(AssertionError, match=r"Rome.* → E_TOOL_FAILED"):
        assert_no_errors(run)
    with pytest.raises(AssertionError, match=r"delete\(\) was not called"):
        assert_called(run, "delete")


def test_a_run_that_failed_or_was_paused_has_errors(fresh_agent: AgentMaker) -> None:
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (error("LLM_QUOTA_EXCEEDED", "no money"), {}, "the run ended in error: LLM_QUOTA_EXCEEDED"),
        (call("population", city="Oslo"), {"max_turns": 1}, "the run ended in max_turns"),
    ]
    for step, options, said in cases:
        agent, _ = fresh_agent(step, tools=[population], **options)
        with pytest.raises(AssertionError, match=said):
            assert_no_errors(agent.run("How many?"))


class WarningHost:
    name = "mine"
    lists_at_once = True
    warnings = ("one tool is broken",)

    async def tools(self, context: nbagent.ToolContext) -> list[nbagent.ToolSpec]:
        return []

    async def prepare(self, *words: object) -> nbagent.PreparedCall:
        raise AssertionError("it has no tool")


def test_each_fresh_process_shows_the_warnings_of_a_host_once() -> None:
    for _ in range(2):
        with fresh_process():
            notices: list[str] = []

            def note(event: object, notices: list[str] = notices) -> None:
                if isinstance(event, nbagent.events.Notice):
                    notices.append(event.text)

            for _ in range(2):
                agent = nbagent.Agent(model=script(["One."]), tools=[WarningHost()], quiet=True)
                agent.run("Go.", on_event=note)
            assert notices.count("one tool is broken") == 1
