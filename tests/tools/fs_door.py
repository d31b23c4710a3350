"""The fs tools over a project, a state and further mounts."""

from __future__ import annotations

from pathlib import Path

from host_door import HostDoor

from nbagent.contracts.policy import ToolPolicy
from nbagent.files.mounts import Mounts
from nbagent.session.approval import Rules
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
        self.rules = rules = Rules(policy, resolving(mounts))
        order = HostOrder(
            words=words, project=project, mounts=mounts, policy=policy, forbids=rules.denies
        )
        (host,) = open_hosts(order)
        super().__init__(host)
