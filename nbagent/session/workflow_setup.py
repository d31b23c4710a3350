"""The workflow or the agent of a run, with its tools, rules and notices.

`workflow.locate` finds the document and the package.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.contracts.tools import ToolContext
from nbagent.runtime import RunTask
from nbagent.session.approval import PolicyRules
from nbagent.session.project_trust import (
    agent_model_item,
    agent_model_notices,
    current_state,
)
from nbagent.session.tool_hosts import WorkflowFolders, glob_resolver, run_mounts
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.sources import project_folder
from nbagent.tools.filesystem import FileHost
from nbagent.tools.host_config import HostConfig
from nbagent.workflow.agents import critical_context, find_agents, load_agent
from nbagent.workflow.composer import WorkflowRun, missing_tool_reason
from nbagent.workflow.graph import AgentSpec
from nbagent.workflow.locate import PROJECT_PREFIX, display_path, placeholder_values
from nbagent.workflow.prompts import system_text
from nbagent.workflow.updates import update_target


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """The workflow of a run, or its agent without a workflow."""

    options: RunOptions
    settings: Settings
    workflow_run: WorkflowRun | None
    single: AgentSpec | None
    """The agent of a run without a workflow."""

    @property
    def agent(self) -> AgentSpec | None:
        """The active agent at the start of the run."""
        return self.workflow_run.agent() if self.workflow_run else self.single

    @property
    def agent_id(self) -> str | None:
        return self.agent.id if self.agent else None

    @property
    def folders(self) -> WorkflowFolders | None:
        """Folders for the file tools; None without a workflow."""
        if self.workflow_run is None:
            return None
        package, document = self.workflow_run.package, self.workflow_run.document
        return WorkflowFolders(
            package=package.root, state=document.folder, guard=self.workflow_run.guard
        )

    def model_on(self, provider: str) -> str | None:
        """The agent's model, if it belongs to the provider of this run and may be used."""
        model = self._model_on(provider)
        item = agent_model_item(self.agent, self._package_id) if self.agent else None
        return None if item and current_state(item).status != "allowed" else model

    def model_notices(self, provider: str, *, report: bool) -> list[str]:
        """Say that the agent's model is not used because it was not allowed."""
        if self.agent is None or self.settings.model or not self._model_on(provider):
            return []
        return agent_model_notices(self.agent, self._package_id, report=report)

    @property
    def _package_id(self) -> str:
        return self.workflow_run.package.id if self.workflow_run else ""

    def _model_on(self, provider: str) -> str | None:
        if self.agent is None or not self.agent.model:
            return None
        name = self.agent.model
        # A package's file must not choose another provider, and with it another server and key.
        model = name if ":" in name else f"{provider}:{name}"
        return model if model.partition(":")[0] == provider else None

    def tool_filter(self, rules: PolicyRules) -> Callable[[ToolSpec], str]:
        """Function that says why a tool is hidden from the model: a rule, or the current agent."""
        if self.workflow_run is not None:
            if rule := rules.deny_rule("fs.apply_patch", "fs"):
                raise UsageError(f"{rule} denies fs.apply_patch, which every step needs")
            self.workflow_run.read_file = _file_reader(self, rules)
        return lambda spec: rules.hidden_reason(spec) or missing_tool_reason(self.agent, spec)

    def system_prompt(self, own: str | None, rules: PolicyRules) -> str:
        """The system prompt of an agent without a workflow."""
        assert self.single is not None
        context = critical_context(self.single, _file_reader(self, rules))
        return system_text(self.single, context, own)

    def notices(self, parent: RunRecord | None, last: EngineTurn | None = None) -> list[str]:
        """Notices before the first request; `last` is the turn before it."""
        if self.workflow_run is None:
            alone = [self.single] if self.single and parent is None else []
            return [
                *(self._hidden_agent_notices() if alone else ()),
                *_unfilled_notices(alone[0].unfilled if alone else ()),
                *_action_notices(alone),
            ]
        where = f"The state of this workflow is {self.workflow_run.shown_path}."
        if self.workflow_run.fork_source is not None:
            was = display_path(self.workflow_run.fork_source[0].path)
            where += f" It is a copy of {was} as it was at that turn; @project is as it is now."
        if parent is not None:
            here = [where] if self.workflow_run.fork_source else []
            return [*here, *(_interrupted_moves(last, self.workflow_run) if last else ())]
        package = self.workflow_run.package
        marks = [*package.unfilled, *(m for a in package.agents.values() for m in a.unfilled)]
        return [
            where,
            *(
                f"{path} of the document is not here; a step may need it."
                for path in self._missing_artifacts()
            ),
            *(f"{package.name}: {note}" for note in package.notes),
            *_unfilled_notices(marks),
            *_action_notices(package.agents.values()),
        ]

    def _hidden_agent_notices(self) -> list[str]:
        """Say that an agent of the project hides the person's own one of the same name."""
        name = self.options.agent
        if self.single is None or self.single.is_own or name not in find_agents(Path.home()):
            return []
        return [
            f"The agent {name} is {self.single.file} of this project; your own of this name is not "
            "used. `--agent PATH` names its file."
        ]

    def _missing_artifacts(self) -> list[str]:
        """Artifacts of the document that are missing in this project."""
        paths = self.workflow_run.state.artifacts if self.workflow_run else ()
        here = project_folder()
        return [path for path in paths if not (here / path.removeprefix(PROJECT_PREFIX)).exists()]


def _unfilled_notices(marks: Iterable[str]) -> list[str]:
    listed = ", ".join(dict.fromkeys(marks))
    return [f"nothing gives a value for {listed}; --var NAME=VALUE does"] if listed else []


def single_agent(settings: Settings, options: RunOptions) -> AgentSetup:
    """The agent of a run without a workflow; UsageError if it cannot be used."""
    values = placeholder_values(options)
    agent = load_agent(options.agent or "", values=values, project=project_folder())
    return AgentSetup(options, settings, None, agent)


def _interrupted_moves(turn: EngineTurn, flow: WorkflowRun) -> list[str]:
    """Notices about moves cut off by a dead process: the document shows if they were made."""
    lines: list[str] = []
    for run in turn.tool_runs:
        is_cut = run.result and run.result.error and run.result.error.code == "E_INTERRUPTED"
        target = update_target(json_object((run.args or {}).get("update")) or {})
        if is_cut and run.started_at and target in list(flow.package.graph.nodes):
            made = (*flow.state.completed[-1:], flow.state.node) == (turn.node, target)
            word = "made" if made else "not made"
            lines.append(f"{turn.node} → {target} was cut off; as the document says, it was {word}")
    return lines


def _file_reader(guide: AgentSetup, rules: PolicyRules) -> Callable[[str], str]:
    """Reader of files for critical actions: it may read what `fs.read` allows without approval."""

    def read(path: str) -> str:
        mounts = run_mounts(guide.options, guide.settings, guide.folders)
        order = HostConfig(
            names=("fs.read",), project=project_folder(), mounts=mounts, policy=rules.policy
        )
        location = mounts.locate(path)
        form = {"path": mounts.canonical_path(location.mount, location.parts)}
        hit = rules.policy.says("fs.read", "fs", form, glob_resolver(mounts))
        if hit is not None and hit.ruling != "allow":
            raise ToolError(f"the policy keeps {path} from being read: {hit.why}", code="E_DENIED")
        context = ToolContext(run_id="", session="", runner=RunTask())
        result = FileHost(order).read(path).work(context, threading.Event())
        data: Any = result.data
        if result.attachments or data["truncated"]:
            why = f"{path} is over the fixed limit of one answer of fs.read, or no text"
            raise ToolError(f"{why}; shorten it", code="E_READ_LIMIT")
        return data["content"]

    return read


def _action_notices(agents: Iterable[AgentSpec]) -> list[str]:
    """Describe the critical actions of agents for the user, a line per agent."""
    lines: list[str] = []
    for agent in agents:
        loads = ", ".join(action.load for action in agent.actions if action.load)
        rules = "; ".join(action.rule for action in agent.actions if action.rule)
        parts = [f"reads {loads}" if loads else "", f"keeps to: {rules}" if rules else ""]
        if any(parts):
            lines.append(
                f"{agent.name}, before its first request: {'; '.join(filter(None, parts))}"
            )
    return lines
