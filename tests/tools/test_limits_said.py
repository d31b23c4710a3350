"""Every error at a limit says the word, names the option, and says how to raise it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_run

import nbagent
from nbagent.contracts.limits import ToolLimits
from nbagent.contracts.model import Usage
from nbagent.contracts.policy import ToolPolicy
from nbagent.providers.offline import call, script, step


@nbagent.tool
def look(place: int) -> int:
    """Look."""
    return place


@nbagent.tool
def broken() -> int:
    """Fail."""
    raise RuntimeError("no")


@nbagent.tool(max_result_chars=500)
def long() -> str:
    """Give a long text."""
    return "x" * 5_000


LONG = step(calls=[call("look", place=1)], usage=Usage(total_tokens=900, prompt_tokens=900))


def run_error(*steps: Any, **options: Any) -> Callable[[], str]:
    """The error of a run of these steps."""

    def error() -> str:
        model = script([*steps, "Done."])
        run = check_run(nbagent.Agent(model, tools=[look, broken], **options).run("Go."), model)
        assert run.error is not None
        return f"{run.error.code}: {run.error.message}"

    return error


def call_error(tool: str, /, **arguments: Any) -> Callable[[], str]:
    """The error of one call of a built-in tool."""

    def error() -> str:
        policy = ToolPolicy(limits=ToolLimits(max_read_bytes=100, max_write_bytes=100))
        model = script([call(tool, **arguments), "Done."])
        names = ["fs", "skills"]
        agent = nbagent.Agent(model, tools=names, policy=policy, on_approval=lambda question: True)
        run = check_run(agent.run("Go."), model)
        (tool_run,) = run.turns[0].tool_runs
        assert tool_run.result is not None
        assert tool_run.result.error is not None
        return f"{tool_run.result.error.code}: {tool_run.result.error.message}"

    return error


BIG = "x" * 1_000
READ, WRITE = "E_READ_LIMIT", "E_WRITE_LIMIT"
LIMITS: dict[str, tuple[Callable[[], str], str, str]] = {
    # where the limit is met, the code, the option that raises it ("": it is fixed)
    "turns": (run_error(call("look", place=1), max_turns=1), "ENGINE_MAX_TURNS", "max_turns="),
    "requests": (
        run_error(call("look", place=1), max_requests=1), "ENGINE_MAX_TURNS", "max_requests="
    ),
    "tokens": (run_error(LONG, max_total_tokens=1_000), "ENGINE_BUDGET", "max_total_tokens="),
    "failures": (
        run_error(*[call("broken")] * 3), "ENGINE_LOOP_DETECTED", "max_repeated_failures="
    ),
    "same results": (
        run_error(*[call("look", place=1)] * 8), "ENGINE_LOOP_DETECTED", "max_repeated_results="
    ),
    "read": (call_error("fs.read", path="big.txt"), READ, "max_read_bytes="),
    "read a part": (call_error("fs.read", path="big.txt", offset=1), READ, "max_read_bytes="),
    "write": (call_error("fs.write", path="a.md", content=BIG), WRITE, "max_write_bytes="),
    "patch": (
        call_error("fs.apply_patch", path="a.txt", oldText="x", newText=BIG),
        WRITE,
        "max_write_bytes=",
    ),
    "replace a huge file": (call_error("fs.write", path="huge", content="x"), WRITE, ""),
    "a file of a skill": (
        call_error("get_skill", skill_name="s", file="big.md"), READ, "max_read_bytes="
    ),
    "a script": (
        call_error("run_python_script", skill_name="s", script="#" * 1_000_001), WRITE, ""
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "big.txt").write_text(BIG)
    (tmp_path / "a.txt").write_text("x")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(65_000_000)
    skill = tmp_path / ".agents/skills/s"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: s\ndescription: d\n---\n")
    (skill / "big.md").write_text(BIG)


@pytest.mark.parametrize("case", LIMITS)
def test_an_error_at_a_limit_says_which_limit_and_how_to_raise_it(case: str) -> None:
    make, code, option = LIMITS[case]
    error = make()
    assert error.startswith(f"{code}: ")
    assert "limit" in error
    assert option in error
    assert bool(option) != ("fixed limit" in error), "a limit is raised by an option, or fixed"


@pytest.mark.parametrize("limit", [100, 1_000_000])
@pytest.mark.parametrize("tools", [["fs.read"], ["fs.read", "fs.search"]], ids=str)
def test_a_hint_names_only_tools_that_are_offered(
    tmp_path: Path, tools: list[str], limit: int
) -> None:
    (tmp_path / "long.txt").write_text("x" * 60_000)
    policy = ToolPolicy(limits=ToolLimits(max_read_bytes=limit))
    model = script([call("fs.read", path="long.txt"), "Done."])
    run = check_run(nbagent.Agent(model, tools=tools, policy=policy).run("Go."), model)
    (tool_run,) = run.turns[0].tool_runs
    assert tool_run.result is not None
    assert tool_run.result.ok == (limit > 100)
    assert ("fs.search" in tool_run.result.to_json().decode()) == ("fs.search" in tools)


def test_the_card_of_a_result_that_was_cut_says_the_limit() -> None:
    model = script([call("long"), "Done."])
    run = nbagent.Agent(model, tools=[long]).run("Go.")
    assert "limit (max_result_chars) before the model saw it" in run.export("html")
