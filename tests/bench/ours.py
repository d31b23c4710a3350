"""Our side of the comparisons: the same loop through `nbagent.Agent`, and without its store.

Without the store means: the same session, engine thread, tools and handles, given a store whose
`commit` keeps nothing. Nothing in the product is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbagent import Agent, runtime, tool
from nbagent.archive.store import Store
from nbagent.contracts.events import Event
from nbagent.contracts.records import RunRecord
from nbagent.session.active import ActiveRun
from nbagent.session.prepare import Ask
from nbagent.settings import RunOptions

PROMPT = "Take all steps."


@tool
def step(n: int) -> dict[str, Any]:
    """Take the next step.

    Args:
        n: Its number.
    """
    return {"step": n, "done": True, "words": "one more step was taken and all is well"}


class KeepsNothing(Store):
    """A store that is asked to commit each event and does not."""

    async def commit(self, event: Event, on_wait: Callable[[], None] = lambda: None) -> None:
        """Leave it."""


def agent(base_url: str, **options: Any) -> Agent:
    """The agent of the loops."""
    return Agent("openai:gpt-5.4", base_url=base_url, tools=[step], **options)


def run_unkept(base_url: str, store: Store, *, stream: bool, max_turns: int = 20) -> RunRecord:
    """One run without the store, waited for in this thread."""
    options = RunOptions(
        model="openai:gpt-5.4", base_url=base_url, stream=stream, max_turns=max_turns
    )
    active = ActiveRun(Ask(prompt=PROMPT, options=options, tools=(step,)), store=store)
    with runtime.Watch(active.plan.cancel):
        active.start()
        return runtime.wait(active.courier)
