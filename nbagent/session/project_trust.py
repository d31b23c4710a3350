"""Items of the current project that the person can allow, and the notices about those left out.

Composes what settings, MCP servers and agents know of the project's files. `%agent trust` lists the
items, asks about each and stores the allowed ones; nothing here asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.settings.project_file import PROJECT_FILE
from nbagent.settings.project_items import current_state
from nbagent.settings.sources import (
    ignored_project_lines,
    project_file_error,
    project_file_items,
    project_folder,
    unused_project_items,
)
from nbagent.settings.trust import TrustItem
from nbagent.workflow.agents import find_agents, load_agent
from nbagent.workflow.graph import AgentSpec

_MAX_NAMES = 20
_MAX_PARTS = 5
_reported: set[TrustItem] = set()
"""Items that a notice of this process named as left out. Each is named once."""
_reported_texts: set[str] = set()
"""Notices of this process about lines that are never used. Each is given once."""
_left_out: dict[str, TrustItem] = {}
"""Models of agents that a run of this process left out, by name: their files may be anywhere."""


def trust_items() -> list[TrustItem]:
    """List everything that the files of the project would set or start if the person allowed it.

    Packages, and agents named by their path, may be anywhere: their models are listed after a run
    left them out. A pyproject.toml that cannot be read has none; `project_file_error` says why.
    """
    agents = {item.name: item for item in _agent_items()}
    settings = [] if project_file_error() else project_file_items()
    # A file of the project may have changed since a run left out its model.
    return [*settings, *_server_items(), *(_left_out | agents).values()]


def forget_reported_items() -> None:
    """Forget which items were reported. For tests."""
    _reported.clear()
    _reported_texts.clear()
    _left_out.clear()


def _server_items() -> list[TrustItem]:
    from nbagent.tools.mcp.config import project_servers  # late: most runs have none

    with suppress(UsageError):  # A broken .mcp.json starts nothing, and stops nothing else.
        return [server.item for server in project_servers(project_folder())]
    return []


def _agent_items() -> Iterator[TrustItem]:
    for name in find_agents(project_folder()):
        with suppress(NbagentError):  # A broken agent cannot be used.
            if item := agent_model_item(load_agent(name, project=project_folder())):
                yield item


def agent_model_item(agent: AgentSpec, package: str = "") -> TrustItem | None:
    """The model that an agent's file names, as an item; None if it names none or is one's own."""
    if not agent.model or agent.is_own:
        return None
    file = f"{package}/{agent.file}" if package else agent.file
    return TrustItem(f"{file}: model", agent.model, project_folder())


def agent_model_notices(agent: AgentSpec, package: str = "", *, report: bool) -> list[str]:
    """Say that the model of an agent's file is left out, once per process."""
    item = agent_model_item(agent, package)
    state = current_state(item) if item else None
    if item is None or state is None or state.status == "allowed" or item in _reported:
        return []
    if report:
        _reported.add(item)
    _left_out[item.name] = item
    why = "it changed since you allowed it" if state.previous else "you have not allowed it"
    return [
        f"The agent {agent.id} asks for the model {item.text}, which is not used: {why}. "
        "`--model` names one for a cell; `%agent trust` shows and allows this one."
    ]


def settings_notices(*, report: bool) -> list[str]:
    """Say which values of the project's file are left out, each value once per process.

    Args:
        report: False where it may not be seen, such as in a dry run: it is said again.
    """
    items = [item for item in unused_project_items() if item not in _reported]
    if report:
        _reported.update(items)
    new, changed = _new_and_changed(items)
    notices: list[str] = []
    if (ignored := ignored_text()) and ignored not in _reported_texts:
        notices.append(ignored)
        if report:
            _reported_texts.add(ignored)
    if new:
        they, them = ("it is", "it") if len(new) == 1 else ("they are", "them")
        notices.append(
            f"{PROJECT_FILE} of this folder sets {_names(new)}; {they} not used. `%agent trust` "
            f"shows and allows {them}."
        )
    if changed:
        they = "it is" if len(changed) == 1 else "they are"
        notices.append(
            f"{PROJECT_FILE} of this folder changed {_names(changed)} since you allowed it; {they} "
            "not used. `%agent trust` shows the difference."
        )
    return notices


def ignored_text() -> str:
    """Say which lines of the project's file are never used, and why; empty if there are none."""
    by_reason: dict[str, list[str]] = {}
    for line in ignored_project_lines():
        by_reason.setdefault(line.why, []).append(line.shown)
    parts = [f"{_joined(names)}, which {why}" for why, names in [*by_reason.items()][:_MAX_PARTS]]
    if not parts:
        return ""
    rest = len(by_reason) - len(parts)
    more = f"; and lines of {rest} more kinds" if rest else ""
    is_one = sum(map(len, by_reason.values())) == 1
    they, lines = ("it is", "the line") if is_one else ("they are", "the lines")
    return (
        f"{PROJECT_FILE} sets {'; '.join(parts)}{more}: {they} not used; remove {lines} from "
        "[tool.nbagent]"
    )


def project_file_facts() -> list[str]:
    """Say what of the project's file does not count now, each time; nothing if all of it does."""
    if error := project_file_error():
        return [f"no run starts: {error}"]
    new, changed = _new_and_changed(unused_project_items())
    facts = [
        f"sets {_names(new)}; not used (`%agent trust`)" if new else "",
        f"changed {_names(changed)} since you allowed it; not used (`%agent trust`)"
        if changed
        else "",
        ignored_text(),
    ]
    return [fact for fact in facts if fact]


def _new_and_changed(items: Sequence[TrustItem]) -> tuple[list[TrustItem], list[TrustItem]]:
    changed = [item for item in items if current_state(item).status == "changed"]
    return [item for item in items if item not in changed], changed


def _names(items: Sequence[TrustItem]) -> str:
    return _joined([item.name.removeprefix(f"{PROJECT_FILE}: ") for item in items])


def _joined(names: Sequence[str]) -> str:
    """`a, b and c`, of many names the first ones."""
    if len(names) > _MAX_NAMES:
        names = [*names[:_MAX_NAMES], f"{len(names) - _MAX_NAMES} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
