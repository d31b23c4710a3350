"""The tools of one MCP server, as one run has them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from host_door import HostDoor

from nbagent.contracts.tools import ToolContext
from nbagent.tools.host_config import HostConfig
from nbagent.tools.hosts import open_source_hosts
from nbagent.tools.mcp.server import McpServer


def order(*words: str, project: Path | None = None) -> HostConfig:
    """Configuration of a run's hosts."""
    return HostConfig(names=words, project=project or Path.cwd())


class Door(HostDoor):
    """One host of one run; its tools are called by the names that the server gives them."""

    def __init__(self, server: McpServer) -> None:
        super().__init__(*open_source_hosts(server, order()))
        self.server = server
        self.prefix = server.name.replace(".", "_") + "__"
        self.fractions: list[tuple[str, float | None]] = []

    def context(self, approved: bool = False) -> ToolContext:
        def progress(text: str, fraction: float | None) -> None:
            self.fractions.append((text, fraction))

        return replace(super().context(approved), progress=progress)

    def listed(self) -> Door:
        """Itself, once the tools are listed, as before the first request of a run."""
        assert self.specs is not None
        return self

    @property
    def pid(self) -> int:
        """The server's process, as it says itself."""
        return int(self.data("pid"))


Start = Callable[..., Door]
"""Of the fixture that makes doors: flags of the server by hand, options of `nbagent.mcp`."""


def until(condition: Any, *, within_s: float = 5.0) -> bool:
    """True if the condition becomes true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that init has not taken yet is no process any more.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
