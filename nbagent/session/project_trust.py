"""Items of the current project that the person can allow, and the notices about those left out.

Composes what settings, MCP servers and agents know of the project's files. `%agent trust` lists the
items, asks about each and stores the allowed ones; nothing here asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.settings.project_file import PROJECT_FILE
from nbagent.settings.project_items import (
    ItemState,
    ProjectItem,
    allow_item,
    current_state,
    state_of,
)
from nbagent.settings.sources import project_file_items, project_folder, unused_project_items
from nbagent.workflow.agents import find_agents, load_agent
from nbagent.workflow.graph import AgentSpec

__all__ = ["ItemState", "allow_item", "current_state", "state_of", "trust_items"]

_reported: set[ProjectItem] = set()
"""Items that a notice of this process named as left out. Each is named once."""
_package_items: dict[str, ProjectItem] = {}
"""Items of packages that a run of this process left out, by name."""


def trust_items() -> list[ProjectItem]:
    """List everything that the files of the project would set or start if the person allowed it.

    Packages of workflows may be anywhere: their items are listed after a run left one out.

    Raises:
        UsageError: the project's pyproject.toml is not valid.
    """
    return [
        *project_file_items(),
        *_server_items(),
        *_agent_items(),
        *_package_items.values(),
    ]


def forget_reported_items() -> None:
    """Forget which items were reported. For tests."""
    _reported.clear()
    _package_items.clear()


def _server_items() -> list[ProjectItem]:
    from nbagent.tools.mcp.config import project_servers  # late: most runs have none

    with suppress(UsageError):  # A broken .mcp.json starts nothing, and stops nothing else.
        return [server.item for server in project_servers(project_folder())]
    return []


def _agent_items() -> Iterator[ProjectItem]:
    for name in find_agents(project_folder()):
        with suppress(NbagentError):  # A broken agent cannot be used.
            if item := agent_model_item(load_agent(name, project=project_folder())):
                yield item


def agent_model_item(agent: AgentSpec, package: str = "") -> ProjectItem | None:
    """The model that an agent's file names, as an item; None if it names none or is one's own."""
    if not agent.model or agent.is_own:
        return None
    file = f"{package}/{agent.file}" if package else agent.file
    return ProjectItem(f"{file}: model", agent.model, project_folder())


def agent_model_notices(agent: AgentSpec, package: str = "", *, report: bool) -> list[str]:
    """Say that the model of an agent's file is left out, once per process."""
    item = agent_model_item(agent, package)
    state = current_state(item) if item else None
    if item is None or state is None or state.status == "allowed" or item in _reported:
        return []
    if report:
        _reported.add(item)
    if package:
        _package_items[item.name] = item
    why = "it changed since you allowed it" if state.previous else "you have not allowed it"
    return [
        f"The agent {agent.id} asks for the model {item.text}, which is not used: {why}. "
        "`--model` names one for a cell; `%agent trust` shows and allows this one."
    ]


def settings_notices(*, report: bool) -> list[str]:
    """Say which values of the project's file are left out, each value once per process.

    Args:
        report: False for a dry run: the next run says it again.
    """
    items = [item for item in unused_project_items() if item not in _reported]
    if report:
        _reported.update(items)
    changed = [item for item in items if current_state(item).status == "changed"]
    new = [item for item in items if item not in changed]
    notices: list[str] = []
    if new:
        notices.append(
            f"{PROJECT_FILE} of this folder sets {_names(new)}; {_are(new)} not used, since you "
            "have not allowed it. `%agent trust` shows and allows it."
        )
    if changed:
        notices.append(
            f"{PROJECT_FILE} of this folder changed {_names(changed)} since you allowed it; "
            f"{_are(changed)} not used. `%agent trust` shows the difference and allows it."
        )
    return notices


def _names(items: Sequence[ProjectItem]) -> str:
    names = [item.name.removeprefix(f"{PROJECT_FILE}: ") for item in items]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _are(items: Sequence[ProjectItem]) -> str:
    return "this is" if len(items) == 1 else "these are"
