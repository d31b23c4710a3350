"""One door to the fs tools for tests: as a run would call them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from refusals import refused

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.chat import ToolCall
from nbagent.contracts.policy import CallPreview, ToolPolicy
from nbagent.contracts.ports import PreviewingHost, ToolContext, ToolHost, ToolOutcome
from nbagent.files.mounts import Mounts
from nbagent.runtime import Courier
from nbagent.tools.base import HostOrder
from nbagent.tools.filesystem import open_hosts
from nbagent.tools.filesystem_rules import Forbids


class Door:
    """The tools over a project, a state and further mounts."""

    def __init__(
        self,
        project: Path,
        *,
        mounts: Mounts | None = None,
        policy: ToolPolicy | None = None,
        words: tuple[str, ...] = ("fs",),
        forbids: Forbids | None = None,
    ) -> None:
        self.host: ToolHost
        order = HostOrder(
            words=words,
            project=project,
            mounts=mounts or Mounts.of(project, state=project.with_name("state")),
            policy=policy or ToolPolicy(),
            forbids=forbids or ToolPolicy().denies,
        )
        (self.host,) = open_hosts(order)
        self.cancel = CancelToken()

    @staticmethod
    def context(approved: str = "") -> ToolContext:
        return ToolContext(
            run_id="0" * 16, session="s", tool_call_id="c1", runner=Courier(), approved=approved
        )

    @staticmethod
    def call_of(name: str, arguments: dict[str, Any]) -> ToolCall:
        raw = json.dumps(arguments)
        return ToolCall(id="c1", name=name, arguments=arguments, arguments_raw=raw)

    def names(self) -> list[str]:
        return [spec.name for spec in self.host.visible_tools(self.context())]

    async def acall(self, name: str, arguments: dict[str, Any], approved: str = "") -> ToolOutcome:
        call = self.call_of(name, arguments)
        return await self.host.execute(call, self.context(approved), self.cancel)

    def call(self, name: str, arguments: dict[str, Any], approved: str = "") -> ToolOutcome:
        return asyncio.run(self.acall(name, arguments, approved))

    def ok(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        outcome = self.call(name, arguments)
        assert outcome.result.ok, outcome.result.error
        assert not outcome.truncated
        return json.loads(outcome.result.to_json())["data"]

    def error(self, name: str, /, **arguments: Any) -> tuple[str, str]:
        error = refused(self.call(name, arguments))
        return error.code, error.message

    def preview(self, name: str, /, **arguments: Any) -> CallPreview:
        assert isinstance(self.host, PreviewingHost)
        return asyncio.run(self.host.preview(self.call_of(name, arguments), self.context()))
