"""For tests of your own agents: a process as new, a scripted model, and assertions over a run.

Needs pytest. The fixture is there where a test module or its `conftest.py` imports it: see README.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from nbagent import runtime
from nbagent.agent import Agent
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import ToolRun
from nbagent.providers.offline import Script, script
from nbagent.providers.rate_limits import forget_limits
from nbagent.providers.workarounds import forget_unsupported_params
from nbagent.run import Run
from nbagent.session.active import at_work
from nbagent.session.approval import granted
from nbagent.session.frontend import use_frontend
from nbagent.session.inherit import remembered
from nbagent.session.models import listed_models
from nbagent.session.stores import close_stores
from nbagent.settings.sources import fresh_settings

AgentMaker = Callable[..., tuple[Agent, Script]]
"""What the fixture `fresh_agent` gives."""


@contextmanager
def fresh_process(home: Path | None = None) -> Generator[Path]:
    """Within: a store of its own, nothing configured, allowed, learnt or run before.

    Afterwards runs and batches at work are stopped, all of it is forgotten, and what was
    configured before holds again. What the environment and your settings file say holds within,
    too. Yields the folder of the store: `home`, or a temporary one that is deleted in the end.

    Raises:
        UsageError: a run is at work.
    """
    if at_work():
        raise UsageError("a run is at work; wait for it or stop it before fresh_process()")
    with ExitStack() as stack:
        stack.enter_context(fresh_settings())
        folder = home or Path(stack.enter_context(TemporaryDirectory()))
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("NBAGENT_HOME", str(folder))
        _forget()
        try:
            yield folder
        finally:
            lab: Any = sys.modules.get("nbagent.lab.batch")
            # First: a batch goes on with its next runs.
            for batch in lab.at_work() if lab else ():
                batch.stop()
                batch.wait()
            for live in at_work():
                live.stop()
                runtime.wait(live.courier)
            _forget()


def _forget() -> None:
    """Forget what this process keeps from one run to the next."""
    close_stores()
    use_frontend(None)
    granted.clear()
    remembered.clear()
    listed_models.clear()
    forget_unsupported_params()
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


def assert_called(run: Run, tool: str, /, **wanted: Any) -> ToolRun:
    """The first call of a tool with these arguments, whatever others it had; fail without one."""
    calls = tool_runs_of(run)
    for call in calls:
        if call.tool_name == tool and wanted.items() <= (call.args or {}).items():
            return call
    called = f"{_call(tool, wanted)} was not called; called were:"
    raise AssertionError("\n  ".join([called, *map(_described, calls)]))


def assert_no_errors(run: Run) -> None:
    """Fail when the run failed or was paused by a limit, or one of its calls had an error."""
    errors = [_described(call) for call in tool_runs_of(run) if call.result and call.result.error]
    if run.error or run.phase in ("Failed", "Running"):
        errors.insert(0, f"the run ended in {run.stop_reason or run.phase}: {run.error}")
    if errors:
        raise AssertionError("\n  ".join([f"run {run.id[:8]} has errors:", *errors]))


def tool_runs_of(run: Run) -> list[ToolRun]:
    """All calls of a run, in their order."""
    return [call for turn in run.turns for call in turn.tool_runs]


def _described(run: ToolRun) -> str:
    error = run.result.error if run.result else None
    return f"{_call(run.tool_name, run.args or {})}{f' → {error}' if error else ''}"


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    given = ", ".join(f"{key}={value!r}"[:200] for key, value in arguments.items())
    return f"{name}({given})"
