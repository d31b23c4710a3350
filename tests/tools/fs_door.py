"""The fs tools over a project, a state and further mounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from host_door import HostDoor

from nbagent.contracts.chat import ToolCall
from nbagent.contracts.policy import ToolPolicy
from nbagent.contracts.ports import PreparedCall, ToolOutcome
from nbagent.files.mounts import Mounts
from nbagent.session.approval import Policies
from nbagent.session.hosts import resolving
from nbagent.tools.base import HostOrder
from nbagent.tools.filesystem import open_hosts


class Door(HostDoor):
    """The tools over a project, a state and further mounts."""

    def __init__(
        self,
        project: Path,
        *,
        mounts: Mounts | None = None,
        policy: ToolPolicy | None = None,
        words: tuple[str, ...] = ("fs",),
    ) -> None:
        mounts = mounts or Mounts.of(project, state=project.with_name("state"))
        policy = policy or ToolPolicy()
        self.rules = rules = Policies(system=policy, resolve=resolving(mounts))
        order = HostOrder(
            words=words, project=project, mounts=mounts, policy=policy, forbids=rules.denies
        )
        (host,) = open_hosts(order)
        super().__init__(host)

    def prepared(self, name: str, /, **arguments: Any) -> PreparedCall:
        """A call that was looked at and has not run."""
        call = ToolCall(id="call_1", name=name, arguments=arguments, arguments_raw="{}")
        return self.on_engine(lambda: self.host.prepare(call, self.context()))

    def run_prepared(self, prepared: PreparedCall, *, approved: bool) -> ToolOutcome:
        """Run it, as after a person was asked or as when nobody was."""
        context = self.context(approved=approved)

        async def run() -> ToolOutcome:
            return await prepared.run(context)

        return self.on_engine(run)
