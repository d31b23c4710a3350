"""A conversation with offline:demo through an agent, and what it called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import nbagent
from nbagent.contracts.canonical import dump_json

Called = tuple[str, dict[str, Any]]


class Talk:
    """A conversation with the demo, and every call that it made."""

    def __init__(self, *tools: Callable[..., Any], **options: Any) -> None:
        self._agent = nbagent.Agent("offline:demo", tools=tools, quiet=True, **options)
        self.runs: list[nbagent.Run] = []

    @property
    def calls(self) -> list[Called]:
        return [one for run in self.runs for one in calls_of(run)]

    def ask(self, prompt: str, **options: Any) -> str:
        before = self.runs[-1:]
        run = before[0].resume(prompt) if before else self._agent.run(prompt, **options)
        assert run.raise_for_error().stop_reason == "answered"
        self.runs.append(run)
        return run.text


def calls_of(run: nbagent.Run) -> list[Called]:
    return [(one.tool_name, dict(one.args or {})) for turn in run.turns for one in turn.tool_runs]


def written(calls: Iterable[Called]) -> str:
    return "; ".join(
        f"{name}({', '.join(f'{key}={dump_json(value).decode()}' for key, value in given.items())})"
        for name, given in calls
    )
