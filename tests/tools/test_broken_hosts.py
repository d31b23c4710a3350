"""A host written by hand that is wrong fails its call, and not the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest
from engine.laws import check_run

import nbagent
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.tools import PreparedCall, ToolContext, ToolOutcome
from nbagent.providers.offline import call, script


class OddMeta(type):
    @property
    def __name__(cls) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise RuntimeError("no name")


class OddError(Exception, metaclass=OddMeta):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Host:
    """A host whose tool returns a value, or raises an error."""

    name = "mine"

    def __init__(self, value: object) -> None:
        self.value = value

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        return [ToolSpec(name="look")]

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        async def run(context: ToolContext) -> Any:
            if isinstance(self.value, BaseException):
                raise self.value
            return self.value

        typed = cast("Callable[[ToolContext], Awaitable[ToolOutcome]]", run)
        return PreparedCall(spec=ToolSpec(name="look"), arguments={}, run=typed)


class Working(Host):
    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        async def run(context: ToolContext) -> ToolOutcome:
            return ToolOutcome(result=nbagent.ToolResult(ok=True, data=self.value))

        return PreparedCall(spec=ToolSpec(name="look"), arguments={}, run=run)


class Unprepared(Host):
    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        return cast("PreparedCall", None)


class Raising(Host):
    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        raise OddError


class Leaving(Host):
    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        raise SystemExit("text of the host")


HOSTS = {
    "none": (Host(None), "ToolOutcome"),
    "text": (Host("a text"), "ToolOutcome"),
    "odd error": (Host(OddError()), "ToolOutcome"),
    "exit": (Host(SystemExit(3)), "ToolOutcome"),
    "odd error before": (Raising(OddError()), "ToolOutcome"),
    "no call": (Unprepared(None), "PreparedCall"),
}


@pytest.mark.parametrize(("host", "word"), HOSTS.values(), ids=HOSTS)
def test_a_broken_host_fails_its_call_only(host: Host, word: str) -> None:
    model = script([call("look"), "Done."])
    record = check_run(nbagent.Agent(model=model, tools=[host]).run("Go."), model)
    assert record.text == "Done."
    (tool_run,) = [it for turn in record.turns for it in turn.tool_runs]
    assert tool_run.result is not None
    error = tool_run.result.error
    assert error is not None
    assert error.code == "E_INTERNAL"
    assert "'mine'" in error.message
    assert word in error.message


def test_a_tool_that_names_no_host_belongs_to_the_one_that_lists_it() -> None:
    agent = nbagent.Agent(model=script([call("look"), "Done."]), tools=[Working("Fine.")])
    run = agent.run("Go.")
    assert run.turns[0].tool_runs[0].host == "mine"
    assert len(nbagent.tool_runs(host="mine", run=run.id)) == 1
    nbagent.configure(deny="mine")
    denied = nbagent.Agent(model=script(["Done."]), tools=[Working("Fine.")]).run("Go.")
    assert denied.request_of(1).tools == ()


def test_an_exit_of_a_host_ends_no_program() -> None:
    record = nbagent.Agent(model=script(["Done."]), tools=[Leaving(None)]).run("Go.").record
    assert record is not None
    assert record.error is not None
    assert "'mine'" in record.error.message
    assert "list of ToolSpec" in record.error.message
    assert "text of the host" not in record.error.message


PATHS = {
    r"no C:\Users\bob\x there": "no x there",
    repr(r"C:\Users\Bob Smith\x.txt"): "'x.txt'",
    r"at \\srv\share\k.txt, line": "at k.txt, line",
    r"\\srv\share": "share",
    repr(r"\\srv\share\a b"): "'a b'",
    r"a pattern \\d\\w or \d\w": r"a pattern \\d\\w or \d\w",
}


@pytest.mark.parametrize(("text", "shown"), PATHS.items())
def test_a_model_learns_no_folder_of_windows(text: str, shown: str) -> None:
    @nbagent.tool
    def look() -> None:
        """Look."""
        raise ValueError(text)

    model = script([call("look"), "Done."])
    record = check_run(nbagent.Agent(model=model, tools=[look]).run("Go."), model)
    (tool_run,) = record.turns[0].tool_runs
    assert tool_run.result is not None
    assert tool_run.result.error is not None
    assert tool_run.result.error.message == f"ValueError: {shown}"
