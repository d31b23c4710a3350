"""The notebook's tools on a plain namespace, as the tests of them call them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from host_door import HostDoor

from nbagent.contracts.policy import ToolPolicy
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

    def inspect(self, name: str) -> Any:
        return self.data("nb.inspect", name=name)

    def execute(self, code: str) -> Any:
        return self.data("nb.run", code=code)

    def listed(self, **arguments: Any) -> dict[str, Any]:
        found = self.data("nb.variables", **arguments)
        return {line["name"]: line for line in found["variables"]}
