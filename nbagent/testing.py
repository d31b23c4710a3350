"""Tests of your own agents: a fresh process state, a scripted model, and assertions on a run.

Needs pytest. Import the fixture in a test module or its `conftest.py`; see
`notebooks/reference.ipynb`.
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
from nbagent.providers.workarounds import forget_workarounds
from nbagent.run import Run
from nbagent.session.active_run import active_runs, forget_reported_warnings
from nbagent.session.approval import session_grants
from nbagent.session.frontend import use_frontend
from nbagent.session.inherit import unrecorded_options
from nbagent.session.models import listed_models
from nbagent.session.project_trust import forget_reported_items
from nbagent.session.stores import close_stores
from nbagent.settings.sources import fresh_settings

AgentMaker = Callable[..., tuple[Agent, Script]]
"""Function that the fixture `fresh_agent` returns."""


@contextmanager
def fresh_process(home: Path | None = None) -> Generator[Path]:
    """Reset the process state inside: an empty store, nothing configured, approved or learnt.

    At the end, running runs and batches are stopped, the state is dropped, and the earlier
    configuration is restored. Environment variables and your settings file still apply inside.
    Yield the folder of the store: `home`, or a temporary one that is deleted at the end.

    Raises:
        UsageError: a run is still running.
    """
    if active_runs():
        raise UsageError("a run is at work; wait for it or stop it before fresh_process()")
    with ExitStack() as stack:
        stack.enter_context(fresh_settings())
        folder = home or Path(stack.enter_context(TemporaryDirectory()))
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("NBAGENT_HOME", str(folder))
        _reset_process_state()
        try:
            yield folder
        finally:
            # Not imported for this: without the module there is no batch.
            lab: Any = sys.modules.get("nbagent.lab.batch")
            # Batches first: a running batch would start further runs.
            for batch in lab.active_batches() if lab else ():
                batch.stop()
                batch.wait()
            for live in active_runs():
                live.stop()
                runtime.wait(live.run_task)
            _reset_process_state()


def _reset_process_state() -> None:
    """Drop all state that this process keeps between runs."""
    close_stores()
    use_frontend(None)
    session_grants.clear()
    unrecorded_options.clear()
    listed_models.clear()
    forget_reported_items()
    forget_reported_warnings()
    forget_workarounds()
    forget_limits()


@pytest.fixture
def fresh_agent() -> Generator[AgentMaker]:
    """`fresh_agent("Hello.", tools=[look])` returns an agent with a scripted model, and the model.

    Steps are those of `nbagent.offline.script`, options those of `nbagent.Agent`. The test fails
    if steps are left at its end.
    """
    models: list[Script] = []

    def make(*steps: Any, **options: Any) -> tuple[Agent, Script]:
        models.append(script(steps))
        options = {"tools": [], "quiet": True, **options}
        return Agent(model=models[-1], **options), models[-1]

    with fresh_process():
        yield make
        for model in models:
            model.assert_complete()


def assert_called(run: Run, tool: str, /, **wanted: Any) -> ToolRun:
    """Return the first call of a tool with at least these arguments; fail if there is none."""
    calls = tool_runs_of(run)
    for call in calls:
        if call.tool_name == tool and wanted.items() <= (call.args or {}).items():
            return call
    called = f"{_call_text(tool, wanted)} was not called; called were:"
    raise AssertionError("\n  ".join([called, *map(_describe, calls)]))


def assert_no_errors(run: Run) -> None:
    """Fail if the run failed or a limit paused it, or if one of its calls had an error."""
    errors = [_describe(call) for call in tool_runs_of(run) if call.result and call.result.error]
    if run.error or run.phase in ("Failed", "Running"):
        errors.insert(0, f"the run ended in {run.stop_reason or run.phase}: {run.error}")
    if errors:
        raise AssertionError("\n  ".join([f"run {run.id[:8]} has errors:", *errors]))


def tool_runs_of(run: Run) -> list[ToolRun]:
    """Return all tool runs of a run, in order."""
    return [call for turn in run.turns for call in turn.tool_runs]


def _describe(run: ToolRun) -> str:
    error = run.result.error if run.result else None
    return f"{_call_text(run.tool_name, run.args or {})}{f' → {error}' if error else ''}"


def _call_text(name: str, arguments: Mapping[str, Any]) -> str:
    listed = ", ".join(f"{key}={value!r}"[:200] for key, value in arguments.items())
    return f"{name}({listed})"
