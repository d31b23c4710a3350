"""For tests of your own agents: a process as new, a scripted model, and assertions over a run.

Needs pytest. The fixture is there where a test module or its `conftest.py` imports it:

```python
from nbagent import offline
from nbagent.testing import assert_called, assert_no_errors, fresh_agent  # noqa: F401

def test_population_is_looked_up(fresh_agent):
    steps = offline.call("population", city="Oslo"), "717,710 people."
    agent, model = fresh_agent(*steps, tools=[population])
    run = agent.run("How many people live in Oslo?")
    assert_called(run, "population", city="Oslo")
    assert_no_errors(run)
```
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from nbagent import runtime
from nbagent.agent import Agent
from nbagent.contracts.canonical import dump_json
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import ToolRun
from nbagent.providers.limits import forget_limits
from nbagent.providers.offline import Script, script
from nbagent.providers.refusals import forget_refusals
from nbagent.run import Run
from nbagent.session.active import at_work
from nbagent.session.approval import forget_approvals
from nbagent.session.frontend import use_frontend
from nbagent.session.listed import forget_listings
from nbagent.session.output import forget_types
from nbagent.session.stores import close_stores
from nbagent.settings import begun_anew

_HOME = "NBAGENT_HOME"
_MOST_CALLS = 20

AgentMaker = Callable[..., tuple[Agent, Script]]
"""What the fixture `fresh_agent` gives."""


@contextmanager
def fresh_process(home: Path | None = None) -> Generator[Path]:
    """Within: a store of its own, nothing configured, allowed, learnt or run before.

    Afterwards runs at work are stopped, all of it is forgotten, and what was configured before
    holds again. What the environment and your settings file say holds within, too.

    Args:
        home: the folder of the store; a temporary one, which is deleted, by default.

    Yields:
        The folder of the store.

    Raises:
        UsageError: a run is at work.
    """
    if at_work():
        raise UsageError("a run is at work; wait for it or stop it before fresh_process()")
    with ExitStack() as stack:
        stack.enter_context(begun_anew())
        folder = home or Path(stack.enter_context(TemporaryDirectory()))
        before = os.environ.get(_HOME)
        os.environ[_HOME] = str(folder)
        _forget()
        try:
            yield folder
        finally:
            for live in at_work():
                live.stop()
                runtime.wait(live.courier)
            _forget()
            if before is None:
                del os.environ[_HOME]
            else:
                os.environ[_HOME] = before


def _forget() -> None:
    """Forget what this process keeps from one run to the next."""
    close_stores()
    use_frontend(None)
    forget_approvals()
    forget_types()
    forget_listings()
    forget_refusals()
    forget_limits()


@pytest.fixture
def fresh_agent() -> Generator[AgentMaker]:
    """`fresh_agent("Hello.", tools=[look])`: an agent whose model says these steps, and the model.

    Steps are those of `nbagent.offline.script`, options those of `nbagent.Agent`. The test fails
    where steps are left over at its end.
    """
    made: list[Script] = []

    def make(*steps: Any, **options: Any) -> tuple[Agent, Script]:
        made.append(script(steps))
        options = {"tools": [], "quiet": True, **options}
        return Agent(model=made[-1], **options), made[-1]

    with fresh_process():
        yield make
        for model in made:
            model.assert_complete()


def assert_called(
    run: Run, tool: str, arguments: Mapping[str, Any] | None = None, /, **named: Any
) -> ToolRun:
    """Fail unless a tool was called with these arguments, whatever others it had.

    Returns:
        The first such call.
    """
    wanted = {**(arguments or {}), **named}
    calls = tool_runs_of(run)
    for one in calls:
        given = one.args or {}
        if one.tool_name == tool and all(
            name in given and given[name] == value for name, value in wanted.items()
        ):
            return one
    raise AssertionError(
        f"{_call(tool, wanted)} was not called; {_listed('called were', map(_described, calls))}"
    )


def assert_no_errors(run: Run) -> None:
    """Fail when the run failed or was paused by a limit, or one of its calls had an error."""
    failed = [_described(one) for one in tool_runs_of(run) if one.result and one.result.error]
    ended = f"the run ended in {run.stop_reason or run.phase}: {run.error}"
    told = ([ended] if run.error or run.phase in ("Failed", "Running") else []) + failed
    if told:
        raise AssertionError(_listed(f"run {run.id[:8]} has errors", told))


def tool_runs_of(run: Run) -> list[ToolRun]:
    """All calls of a run, in their order."""
    return [one for turn in run.turns for one in turn.tool_runs]


def _listed(what: str, lines: Any) -> str:
    shown = list(lines)
    more = [f"and {len(shown) - _MOST_CALLS} more"] * (len(shown) > _MOST_CALLS)
    return "\n  ".join([f"{what}:" if shown else f"{what}: none", *shown[:_MOST_CALLS], *more])


def _described(one: ToolRun) -> str:
    error = one.result.error if one.result else None
    return f"{_call(one.tool_name, one.args or {})}{f' → {error}' if error else ''}"


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    given = ", ".join(f"{key}={_json(value)}" for key, value in arguments.items())
    return f"{name}({given})"


def _json(value: Any) -> str:
    try:
        text = dump_json(value).decode()
    except TypeError:
        text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
