"""The notebook's tools on a plain namespace, as the tests of them call them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from code_shell import runs_code
from frontends import StandIn
from host_door import HostDoor

import nbagent
from nbagent.contracts.policy import Question, ToolPolicy
from nbagent.contracts.ports import ToolContext
from nbagent.contracts.records import ToolRun
from nbagent.providers.offline import call, script
from nbagent.session.frontend import use_frontend
from nbagent.tools.base import HostOrder
from nbagent.tools.notebook import open_hosts


def a_function() -> int:
    """Give one."""
    return 1


class Notebook(HostDoor):
    """A namespace with the notebook's tools."""

    def __init__(self, *words: str, policy: ToolPolicy | None = None) -> None:
        policy = policy or ToolPolicy()
        (host,) = open_hosts(HostOrder(words=words or ("nb",), project=Path(), policy=policy))
        super().__init__(host)
        self.names["__name__"] = "__main__"

    def context(self, approved: bool = False) -> ToolContext:
        runs = runs_code(self.names) if self.names else None
        return replace(super().context(approved), run_code=runs)

    def inspect(self, name: str) -> Any:
        return self.data("nb.inspect", name=name)

    def execute(self, code: str) -> Any:
        return self.data("nb.run", code=code)

    def listed(self, **arguments: Any) -> dict[str, Any]:
        found = self.data("nb.variables", **arguments)
        return {line["name"]: line for line in found["variables"]}

    def in_run(
        self, name: str, asked: Callable[[Question], object] = lambda _: True, /, **arguments: Any
    ) -> ToolRun:
        """What a run has of a call: as the model and the records get it."""
        use_frontend(StandIn(self.names, run_code=runs_code(self.names)))
        try:
            agent = nbagent.Agent(
                script([call(name, **arguments), "Done."]), tools=["nb"], on_approval=asked
            )
            (turn, _) = agent.run("Go.", quiet=True).turns
        finally:
            use_frontend(None)
        return turn.tool_runs[0]
