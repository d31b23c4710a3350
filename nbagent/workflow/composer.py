"""What the model is told of a workflow: the system prompt, directives and briefs, and when it ends.

The document is read before every request and after every turn; what it says decides, nothing else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from nbagent.contracts.call_patterns import call_pattern
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.messages import Message, Part, TextPart
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.ports import Composition, TurnDecision
from nbagent.contracts.records import EngineTurn
from nbagent.workflow.agents import critical_context
from nbagent.workflow.document import Document
from nbagent.workflow.graph import AgentSpec, Package
from nbagent.workflow.prompts import (
    AUTOPILOT_TEXTS,
    STATE_TEXT,
    TOOLS_TEXT,
    Context,
    DirectiveKind,
    brief,
    system_text,
)
from nbagent.workflow.state import PATH, State, read_state
from nbagent.workflow.updates import StateGuard


def missing_tool_reason(agent: AgentSpec | None, spec: ToolSpec) -> str:
    """Why an agent has no such tool; empty where it has it."""
    if agent is None or agent.tools is None:
        return ""
    host = spec.traits.host
    if any(call_pattern(text).matches_tool(spec.name, host) for text in agent.tools):
        return ""
    return f"the agent {agent.id} has no such tool"


@dataclass(eq=False, kw_only=True)
class WorkflowRun:
    """One run over a document: the composer of the run, and what its tools are checked by."""

    package: Package
    document: Document
    kind: DirectiveKind
    """Of the first directive."""
    autopilot: bool
    own_system: str | None
    on_disk: bytes | None
    """The document as it was when the run was prepared."""
    new_data: bytes | None = None
    """What has to be written before the run begins; None: the document is as it should be."""
    shown_path: str = ""
    """The document's path as a person types it."""
    read_file: Callable[[str], str] = field(default=lambda path: "")
    """A file for a critical action; ToolError where a rule or the disk says no."""
    fork_source: tuple[Document, datetime] | None = None
    """The document of which this is a copy, and as of when."""
    _contexts: dict[str, Context] = field(default_factory=dict[str, Context])
    """What the critical actions of each agent have loaded."""
    _is_begun: bool = False
    _data: bytes = b""
    _state: State | None = None
    _state_before: State | None = None
    """What it said when the request of the turn at work was composed."""
    _read_since_request: bool = False
    """Whether the document was read since the last request."""
    _briefed_visit: int | None = None
    """The visit of a step that the model was told of."""
    _reminded_visit: int | None = None
    """The visit in which it was told to go on without the person."""

    def for_looking(self) -> WorkflowRun:
        """Another one over the same document; what the run's own has seen is for the engine."""
        other = copy(self)
        other._is_begun = False
        return other

    @property
    def guard(self) -> StateGuard:
        """What `fs.apply_patch` checks updates of the document by."""
        return StateGuard(self.package.graph, Path(os.path.realpath(self.document.path)))

    @property
    def state(self) -> State:
        """What the document said when it was last read."""
        return self._state or self.refresh()

    def agent(self) -> AgentSpec | None:
        """The agent of the current step."""
        return self.package.agent_of(self.state.node)

    @property
    def current_node(self) -> str:
        """The id of the current step."""
        return self.refresh().node

    @property
    def is_complete(self) -> bool:
        """Whether the last step is done."""
        return self.state.is_complete(self.package.graph)

    def refresh(self) -> State:
        """Read the document anew; ToolError where somebody made something of it that cannot be."""
        data = self.new_data or self.document.read()
        if data is None:
            text = f"{PATH} of {self.document.run_id} is gone; put it back, then resume"
            raise ToolError(text, code="E_PRECONDITION_FAILED")
        if data != self._data:
            self._state = read_state(data, self.package.graph)
            self._data = data
            if self._is_begun:
                self.document.save_version(data)
        assert self._state is not None
        return self._state

    def begin(self) -> None:
        """Keep others out, and write the document where it has to change for this run.

        UsageError: somebody is at work on it, or has changed it since this was prepared.
        """
        if self.fork_source is not None:
            origin, moment = self.fork_source
            origin.copy_other_files(moment, self.document)
        self.document.lock()
        try:
            if self.document.read() != self.on_disk:
                raise UsageError("the document was changed a moment ago; start this again")
            if self.new_data is not None:
                self.document.write(self.new_data)
                self.new_data = None
            self.document.save_version(self._data)
            self._is_begun = True
        except BaseException:
            self.document.release()
            raise

    @property
    def overflow_advice(self) -> str:
        """How to go on when the conversation is too long for the model."""
        return (
            f" The document has all that the workflow needs: `%agent resume {self.shown_path}` "
            "goes on from it with an empty conversation."
        )

    def user_message(self, parts: Sequence[Part]) -> Message:
        """What the person says, for the current step."""
        head = f"USER_INPUT\n- forNodeId: {self.state.node}\n"
        first = parts[0] if parts and isinstance(parts[0], TextPart) else None
        text = TextPart(text=head + (first.text if first else ""))
        return Message(role="user", content=(text, *parts[first is not None :]))

    async def before_turn(self, tools: Sequence[ToolSpec]) -> Composition:
        """The system prompt of the current step; directive and brief where the step is new."""
        if not self._read_since_request:
            await asyncio.to_thread(self.refresh)
        self._read_since_request = False
        state, agent = self.state, self.agent()
        self._state_before = state
        new: tuple[Message, ...] = ()
        if self._briefed_visit != state.visit:
            new = self.step_messages(self.kind if self._briefed_visit is None else "continue")
            self._briefed_visit = state.visit
        return Composition(
            system_prompt=await self._system(agent),
            new_messages=new,
            node=state.node,
            agent=agent.id if agent else None,
        )

    async def after_turn(self, turn: EngineTurn) -> TurnDecision:
        """Where the document stands after a turn, and whether the run pauses there."""
        before = self._state_before or self.state
        if turn.tool_runs:
            # Once a turn is enough: the next one begins with what is seen here.
            await asyncio.to_thread(self.refresh)
            self._read_since_request = True
        state = self.state
        if self.is_complete:
            # After the last update the model says what came of it.
            return TurnDecision(stop_reason=None if turn.tool_runs else "workflow_complete")
        if turn.tool_runs:
            if state.visit == before.visit or self.autopilot:
                return TurnDecision()
            text = f"{before.node} is done, next is {state.node}. {_continue_hint(state)}"
            return TurnDecision(call_was_answer=True, notices=(text,))
        if self.autopilot and self._reminded_visit != state.visit:
            self._reminded_visit = state.visit
            return TurnDecision(new_messages=self.step_messages("continue"))
        return TurnDecision(notices=(f"{state.node} waits for you. {_continue_hint(state)}",))

    def step_messages(self, intent: DirectiveKind) -> tuple[Message, ...]:
        """The directive and the brief of the current step, as messages."""
        texts = directive(self, intent), brief(self.package, self.state)
        return tuple(Message.of("user", text) for text in texts)

    async def _system(self, agent: AgentSpec | None) -> str:
        context: Context = ()
        if agent is not None:
            if agent.id not in self._contexts:
                loaded = await asyncio.to_thread(critical_context, agent, self.read_file)
                self._contexts[agent.id] = loaded
            context = self._contexts[agent.id]
        values = "\n".join(
            f"- {{{name}}}, {{config:{name}}}: {value}"
            for name, value in self.package.values.items()
        )
        return system_text(
            agent,
            context,
            self.own_system,
            base=(TOOLS_TEXT, STATE_TEXT, AUTOPILOT_TEXTS[self.autopilot]),
            rules=(
                f"# The workflow {self.package.name}\n\n{self.package.rules.strip()}",
                f"Marks in the files of the package mean:\n{values}" if values else "",
            ),
        )


def _continue_hint(state: State) -> str:
    where = "in the panel or in a `%%agent --continue` cell"
    return f"To go on, write {where}; what you write is for {state.node}."


def directive(flow: WorkflowRun, intent: DirectiveKind) -> str:
    """RUN_DIRECTIVE as the model reads it."""
    package, agent = flow.package, flow.agent()
    graph = f"@pkg/{package.graph_file}" if package.graph_file else "none"
    return "\n".join(
        [
            "RUN_DIRECTIVE",
            "- runType: bmad-micro",
            f"- intent: {intent}",
            f"- workflow: {package.id}",
            f"- state: {PATH}",
            f"- graph: {graph}",
            "- artifactsRoot: @project/artifacts/",
            f"- currentNodeId: {flow.state.node}",
            f"- effectiveAgentId: {agent.id if agent else 'none'}",
            f"- autopilot: {'true' if flow.autopilot else 'false'}",
        ]
    )
