"""What leads a run: the workflow or the agent that its options name, with its tools and rules.

Which document and package that is, `documents` finds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.contracts.tools import ToolContext
from nbagent.runtime import RunTask
from nbagent.session.approval import PolicyRules
from nbagent.session.tool_hosts import Folders, mounts_of, resolving
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.sources import project_folder
from nbagent.tools.filesystem import FileHost
from nbagent.tools.host_config import HostOrder
from nbagent.workflow.agents import critical_context, load_agent
from nbagent.workflow.composer import WorkflowRun, missing_tool_reason
from nbagent.workflow.graph import AgentSpec
from nbagent.workflow.locate import PROJECT_PREFIX, display_path, placeholder_values
from nbagent.workflow.prompts import system_text


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """What leads a run beside the person's words: a workflow, or an agent alone."""

    options: RunOptions
    settings: Settings
    flow: WorkflowRun | None
    alone: AgentSpec | None
    """The agent of a run without a workflow."""

    @property
    def agent(self) -> AgentSpec | None:
        """The one that is active when the run begins."""
        return self.flow.agent() if self.flow else self.alone

    @property
    def agent_id(self) -> str | None:
        return self.agent.id if self.agent else None

    @property
    def folders(self) -> Folders | None:
        """What the file tools need of a workflow."""
        if self.flow is None:
            return None
        package, document = self.flow.package, self.flow.document
        return Folders(package=package.root, state=document.folder, guard=self.flow.guard)

    def model_on(self, provider: str) -> str | None:
        """The model that the agent asks for, where it is one of the server that is asked anyway."""
        if self.agent is None or not self.agent.model:
            return None
        name = self.agent.model
        model = name if ":" in name else f"{provider}:{name}"
        return model if model.partition(":")[0] == provider else None

    def hiding(self, rules: PolicyRules) -> Callable[[ToolSpec], str]:
        """Why the model is not shown a tool: a rule, or the agent of the moment has none such."""
        if self.flow is not None:
            if rule := rules.forbidding("fs.apply_patch", "fs"):
                raise UsageError(f"{rule} denies fs.apply_patch, by which a workflow moves")
            self.flow.read_file = _reader(self, rules)
        return lambda spec: rules.hiding(spec) or missing_tool_reason(self.agent, spec)

    def system_prompt(self, own: str | None, rules: PolicyRules) -> str:
        """That of an agent without a workflow."""
        assert self.alone is not None
        context = critical_context(self.alone, _reader(self, rules))
        return system_text(self.alone, context, own)

    def notices(self, parent: RunRecord | None, last: EngineTurn | None = None) -> list[str]:
        """What the person should know before the first request; `last`: the turn before it."""
        if self.flow is None:
            alone = [self.alone] if self.alone and parent is None else []
            return [*_unfilled(alone[0].unfilled if alone else ()), *_actions(alone)]
        where = f"The state of this workflow is {self.flow.shown_path}."
        if self.flow.fork_source is not None:
            was = display_path(self.flow.fork_source[0].path)
            where += f" It is a copy of {was} as it stood then; @project is as it is now."
        if parent is not None:
            here = [where] if self.flow.fork_source else []
            return [*here, *(_cut_moves(last, self.flow) if last else ())]
        package = self.flow.package
        marks = [*package.unfilled, *(m for a in package.agents.values() for m in a.unfilled)]
        return [
            where,
            *(f"{path} of the document is not here; a step may need it." for path in self._gone()),
            *(f"{package.name}: {note}" for note in package.notes),
            *_unfilled(marks),
            *_actions(package.agents.values()),
        ]

    def _gone(self) -> list[str]:
        """Artifacts of a document from elsewhere that are not in this project."""
        paths = self.flow.state.artifacts if self.flow else ()
        here = project_folder()
        return [path for path in paths if not (here / path.removeprefix(PROJECT_PREFIX)).exists()]


def _unfilled(marks: Iterable[str]) -> list[str]:
    listed = ", ".join(dict.fromkeys(marks))
    return [f"nothing gives a value for {listed}; --var NAME=VALUE does"] if listed else []


def single_agent(settings: Settings, options: RunOptions) -> AgentSetup:
    """The agent of a run without a workflow; UsageError where it cannot be used."""
    values = placeholder_values(options)
    agent = load_agent(options.agent or "", values=values, project=project_folder())
    return AgentSetup(options, settings, None, agent)


def _cut_moves(turn: EngineTurn, flow: WorkflowRun) -> list[str]:
    """Whether the moves that their process did not outlive were made, as the document says."""
    lines: list[str] = []
    for run in turn.tool_runs:
        update = json_object((run.args or {}).get("update")) or {}
        is_cut = run.result and run.result.error and run.result.error.code == "E_INTERRUPTED"
        target = update.get("currentNodeId.set")
        if is_cut and run.started_at and target in list(flow.package.graph.nodes):
            made = (*flow.state.completed[-1:], flow.state.node) == (turn.node, target)
            word = "made" if made else "not made"
            lines.append(f"{turn.node} → {target} was cut off; as the document says, it was {word}")
    return lines


def _reader(guide: AgentSetup, rules: PolicyRules) -> Callable[[str], str]:
    """Reads files for critical actions, as far as a model could by `fs.read` without a question."""

    def read(path: str) -> str:
        mounts = mounts_of(guide.options, guide.settings, guide.folders)
        order = HostOrder(
            words=("fs.read",), project=project_folder(), mounts=mounts, policy=rules.policy
        )
        location = mounts.place(path)
        form = {"path": mounts.form(location.mount, location.parts)}
        hit = rules.policy.says("fs.read", "fs", form, resolving(mounts))
        if hit is not None and hit.ruling != "allow":
            raise ToolError(f"the policy keeps {path} from being read: {hit.why}", code="E_DENIED")
        context = ToolContext(run_id="", session="", runner=RunTask())
        result = FileHost(order).read(path).work(context, threading.Event())
        data: Any = result.data
        if result.attachments or data["truncated"]:
            raise ToolError(f"{path} is too long, or no text", code="E_READ_LIMIT")
        return data["content"]

    return read


def _actions(agents: Iterable[AgentSpec]) -> list[str]:
    """What agents do before everything else, for the person: a line for each agent."""
    lines: list[str] = []
    for agent in agents:
        loads = ", ".join(action.load for action in agent.actions if action.load)
        rules = "; ".join(action.rule for action in agent.actions if action.rule)
        parts = [f"reads {loads}" if loads else "", f"keeps to: {rules}" if rules else ""]
        if any(parts):
            lines.append(f"{agent.name}, before its first request: {'; '.join(filter(None, parts))}")
    return lines
