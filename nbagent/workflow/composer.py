"""The composer of a workflow run: system prompt, directives, briefs, and the end of the run.

The document is read before every request and after every turn. Only its state decides how the run
continues: it may be edited by hand, and it survives a lost conversation.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
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

_USER_INPUT = "USER_INPUT\n"


def missing_tool_reason(agent: AgentSpec | None, spec: ToolSpec) -> str:
    """Explain why an agent does not have a tool; empty if it has it."""
    if agent is None or agent.tools is None:
        return ""
    host = spec.traits.host
    if any(call_pattern(text).matches_tool(spec.name, host) for text in agent.tools):
        return ""
    return f"the agent {agent.id} has no such tool"


@dataclass(eq=False, kw_only=True)
class WorkflowRun:
    """A workflow run on a document: composer of the run, and source of the guard for its tools."""

    package: Package
    document: Document
    kind: DirectiveKind
    """Kind of the first directive."""
    autopilot: bool
    own_system: str | None
    on_disk: bytes | None
    """Content of the document when the run was prepared."""
    new_data: bytes | None = None
    """Content to write before the run begins; None if the document needs no change."""
    shown_path: str = ""
    """Path of the document as a person would type it."""
    read_file: Callable[[str], str] = field(default=lambda path: "")
    """Reads a file for a critical action; raises ToolError if a rule or the disk forbids it."""
    fork_source: tuple[Document, datetime] | None = None
    """Document that this one is a copy of, and the time of the copied version."""
    _contexts: dict[str, Context] = field(default_factory=dict[str, Context])
    """Files that the critical actions of each agent loaded, by agent id."""
    _is_begun: bool = False
    _data: bytes = b""
    _state: State | None = None
    _state_before: State | None = None
    """State when the request of the current turn was composed."""
    _read_since_request: bool = False
    """True if the document was read since the last request."""
    _briefed_visit: int | None = None
    """Visit of a step for which the model received its directive and brief."""
    _reminded_visit: int | None = None
    """Visit in which the model was reminded to continue without the person."""

    def for_looking(self) -> WorkflowRun:
        """Copy for reading the same document, so that the state seen by the engine stays."""
        other = copy(self)
        other._is_begun = False
        return other

    @property
    def guard(self) -> StateGuard:
        """Guard with which `fs.apply_patch` checks updates of the document."""
        return StateGuard(self.package.graph, Path(os.path.realpath(self.document.path)))

    @property
    def state(self) -> State:
        """State of the document when it was last read."""
        return self._state or self.refresh()

    def agent(self) -> AgentSpec | None:
        """Return the agent of the current step."""
        return self.package.agent_of(self.state.node)

    @property
    def current_node(self) -> str:
        """Id of the current step, read from disk."""
        return self.refresh().node

    @property
    def is_complete(self) -> bool:
        """True if the last step is done."""
        return self.state.is_complete(self.package.graph)

    def refresh(self) -> State:
        """Read the document again. Raises ToolError if it was changed to something invalid."""
        data = self.new_data or self.document.read()
        if data is None:
            text = f"{PATH} of {self.document.run_id} is gone; put it back, then resume"
            raise ToolError(text, code="E_PRECONDITION_FAILED")
        if data != self._data:
            self._state = read_state(data, self.package.graph)
            self._data = data
            if self._is_begun:  # to look at a document must leave no files
                self.document.save_version(data)
        assert self._state is not None
        return self._state

    def begin(self) -> None:
        """Lock the document, and write it if it must change for this run.

        Raises:
            UsageError: another run works on it, or it was changed since this run was prepared.
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
        """Advice if the conversation is too long for the model."""
        return (
            f" The document has all that the workflow needs: `%agent resume {self.shown_path}` "
            "continues from it with an empty conversation."
        )

    def input_messages(self, parts: Sequence[Part]) -> tuple[Message, ...]:
        """Make directive, brief and the person's input, in this order, for the current step."""
        # The words come last: models follow most what they read last.
        self._briefed_visit = self.state.visit
        return (*self.step_messages(self.kind), self._user_message(parts))

    def skip_second_brief(self, earlier: Sequence[Message]) -> None:
        """Send no brief again if the conversation ends with input that the model did not answer."""
        end = takewhile(lambda message: message.role == "user", reversed(earlier))
        texts = [message.text for message in end]
        kinds: tuple[DirectiveKind, ...] = ("start", "continue", "resume")
        known = {directive(self, kind) for kind in kinds}
        if texts and texts[0].startswith(_USER_INPUT) and known.intersection(texts):
            self._briefed_visit = self.state.visit

    def _user_message(self, parts: Sequence[Part]) -> Message:
        # The system prompt names this header: text after it is never a directive of the runtime.
        head = f"{_USER_INPUT}- forNodeId: {self.state.node}\n"
        first = parts[0] if parts and isinstance(parts[0], TextPart) else None
        text = TextPart(text=head + (first.text if first else ""))
        return Message(role="user", content=(text, *parts[first is not None :]))

    async def before_turn(self, tools: Sequence[ToolSpec]) -> Composition:
        """Return the current step's system prompt; with directive and brief if the step is new."""
        if not self._read_since_request:
            # In a thread: a slow disk must not block the engine's loop.
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
        """Read the document and decide if the run is complete, continues or pauses."""
        before = self._state_before or self.state
        if turn.tool_runs:
            # One read per turn is enough: `before_turn` of the next one uses this state.
            await asyncio.to_thread(self.refresh)
            self._read_since_request = True
        state = self.state
        if self.is_complete:
            # After the update that completes the workflow the model gets a turn for its summary.
            return TurnDecision(stop_reason=None if turn.tool_runs else "workflow_complete")
        if turn.tool_runs:
            if state.visit == before.visit or self.autopilot:
                return TurnDecision()
            # A new step begins only after the person's input: steps are the points of review.
            text = f"{before.node} is done, next is {state.node}. {_continue_hint(state)}"
            return TurnDecision(call_was_answer=True, notices=(text,))
        if self.autopilot and self._reminded_visit != state.visit:
            # Remind only once in each visit; a model that still only answers needs the person.
            self._reminded_visit = state.visit
            return TurnDecision(new_messages=self.step_messages("continue"))
        return TurnDecision(notices=(f"{state.node} waits for you. {_continue_hint(state)}",))

    def step_messages(self, kind: DirectiveKind) -> tuple[Message, ...]:
        """Make the messages with directive and brief of the current step."""
        texts = directive(self, kind), brief(self.package, self.state)
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
    return f"To continue, write {where}; your text goes to {state.node}."


def directive(workflow_run: WorkflowRun, kind: DirectiveKind) -> str:
    """Format RUN_DIRECTIVE for the model."""
    # The keys and their order are those of the `bmad-micro` protocol.
    package, agent = workflow_run.package, workflow_run.agent()
    graph = f"@pkg/{package.graph_file}" if package.graph_file else "none"
    return "\n".join(
        [
            "RUN_DIRECTIVE",
            "- runType: bmad-micro",
            f"- intent: {kind}",
            f"- workflow: {package.id}",
            f"- state: {PATH}",
            f"- graph: {graph}",
            "- artifactsRoot: @project/artifacts/",
            f"- currentNodeId: {workflow_run.state.node}",
            f"- effectiveAgentId: {agent.id if agent else 'none'}",
            f"- autopilot: {'true' if workflow_run.autopilot else 'false'}",
        ]
    )
