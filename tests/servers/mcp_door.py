"""The door through which the tests use an MCP host: on the engine's loop, as a run does."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from nbagent.contracts.chat import ToolCall, ToolSpec
from nbagent.contracts.errors import ErrorInfo, ToolError
from nbagent.contracts.policy import CallPreview
from nbagent.contracts.ports import CallRunner, PreparedCall, ToolContext, ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.runtime import engine_loop
from nbagent.tools.base import HostOrder
from nbagent.tools.mcp import McpHost, McpServer

T = TypeVar("T")
HAND = Path(__file__).with_name("mcp_hand.py")
NO_RUNNER: CallRunner = None  # pyright: ignore[reportAssignmentType]  # MCP calls need none.


def hand(*flags: str) -> list[str]:
    """The command of the server by hand."""
    return [sys.executable, "-I", str(HAND), *flags]


def on_engine(work: Coroutine[Any, Any, T]) -> T:
    """Run it where hosts run."""
    return asyncio.run_coroutine_threadsafe(work, engine_loop()).result(60)


def order(*words: str, project: Path | None = None) -> HostOrder:
    """What a run wants."""
    return HostOrder(words=words, project=project or Path.cwd())


class Door:
    """One host of one run."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        (host,) = server.open_hosts(order())
        assert isinstance(host, McpHost)
        self.host = host
        self.progress: list[tuple[str, float | None]] = []
        self.context = ToolContext(
            run_id="0123456789abcdef",
            session="test",
            tool_call_id="call_1",
            runner=NO_RUNNER,
            progress=lambda text, fraction: self.progress.append((text, fraction)),
        )

    def prepare(self) -> Door:
        """List the tools, as before the first request of a run."""
        assert self.specs is not None
        return self

    @property
    def specs(self) -> dict[str, ToolSpec]:
        """What the model is shown, by name."""
        return {spec.name: spec for spec in on_engine(self.host.tools(self.context))}

    @property
    def pid(self) -> int:
        """The server's process, as it says itself."""
        return int(self.text("pid"))

    def call(
        self, tool: str, /, *, stop_after_s: float | None = None, **arguments: Any
    ) -> ToolOutcome:
        """Call one of the server's tools; stopped after a while."""
        try:
            prepared = self.prepared(tool, **arguments)
        except ToolError as error:
            return ToolOutcome(result=ToolResult.failure(error.info))
        return self.run(prepared, stop_after_s)

    def run(self, prepared: PreparedCall, stop_after_s: float | None = None) -> ToolOutcome:
        """Run what was prepared before."""

        async def run() -> ToolOutcome:
            work = asyncio.ensure_future(prepared.run(self.context))
            await asyncio.wait((work,), timeout=stop_after_s)
            work.cancel()
            await asyncio.wait((work,))
            if work.cancelled():
                return ToolOutcome(result=ToolResult.failure(ErrorInfo("E_INTERRUPTED", "stopped")))
            return work.result()

        return on_engine(run())

    def prepared(self, tool: str, /, **arguments: Any) -> PreparedCall:
        """A call that can run, as a model writes it."""
        name = self.server.name.replace(".", "_") + "__" + tool
        call = ToolCall(id="call_1", name=name, arguments=arguments, arguments_raw="")
        return on_engine(self.host.prepare(call, self.context))

    def preview(self, tool: str, /, **arguments: Any) -> CallPreview:
        """What a person is shown of a call."""
        return self.prepared(tool, **arguments).preview

    def text(self, tool: str, /, **arguments: Any) -> Any:
        """The data of a call that succeeds."""
        outcome = self.call(tool, **arguments)
        assert outcome.result.ok, outcome.result.error
        return outcome.result.data


def until(condition: Any, *, within_s: float = 5.0) -> bool:
    """Whether something becomes true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
