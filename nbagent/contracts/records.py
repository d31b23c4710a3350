"""Stored values of a run: tool results and tool runs, turns, run records, summaries. Frozen.

Ids: a run has 16 hex digits; turns are `C01`, `C02`, … and a child run continues the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic import Field

from nbagent.contracts.canonical import dump_json, json_object, sha_of
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.limits import Limits
from nbagent.contracts.messages import (
    ImagePart,
    Message,
    Part,
    PublicValue,
    TextPart,
    Value,
    parse_arguments,
)
from nbagent.contracts.model import ChatResponse, ToolSpec, Usage
from nbagent.contracts.stop_reasons import StopReason

Phase = Literal["Running", "WaitingUser", "Completed", "Failed"]
Better = Literal["higher", "lower"]
"""Direction of a score."""
RanIn = Literal["main thread", "waiting thread", "worker thread", "tool loop", "notebook loop"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def turn_id(index: int) -> str:
    """Make the id of a turn: `C01` for index 1, `C100` after `C99`."""
    return f"C{index:02d}"


def as_turn_id(turn: object) -> str:
    """Return the id that a person means by `2`, `"2"`, `"c2"` or `"C02"`; other values as text."""
    number = re.fullmatch(r"[cC]?([0-9]{1,9})", str(turn))
    return turn_id(int(number[1])) if number and not isinstance(turn, bool) else str(turn)


class ToolResult(PublicValue):
    """Result of a tool: data, or an error."""

    ok: bool
    data: Any = None
    """A JSON value."""
    error: ErrorInfo | None = None
    attachments: tuple[Part, ...] = ()
    """Images and files for the model, in addition to the data."""
    note: str = ""
    """Further information for the model: that a person changed its arguments."""

    @property
    def body(self) -> dict[str, Any]:
        """For the model: `{ok, data, note?}` or `{ok, error{code, message, details?}, note?}`."""
        note = {"note": self.note} if self.note else {}
        if self.ok:
            return {"ok": True, "data": self.data, **note}
        error = self.error or ErrorInfo("E_INTERNAL", "the tool failed without saying why")
        body: dict[str, Any] = {"code": error.code, "message": error.message}
        if error.details:
            body["details"] = error.details
        return {"ok": False, "error": body, **note}

    def to_json(self) -> bytes:
        return dump_json(self.body)

    def as_content(self) -> tuple[Part, ...]:
        """The tool message's content: the body as JSON, then the attachments."""
        return (TextPart(text=self.to_json().decode()), *self.attachments)

    @classmethod
    def failure(cls, error: ErrorInfo) -> ToolResult:
        return cls(ok=False, error=error)


class ToolRun(Value):
    """Execution of one tool call. Every call gets exactly one: vendors refuse a conversation in
    which a call has no result."""

    tool_call_id: str
    tool_name: str
    display_name: str = ""
    """Name of the tool on cards; empty: `tool_name`."""
    host: str = ""
    """The source of the tool: `functions`, `filesystem`, `mcp:git`."""
    args: dict[str, Any] | None = None
    """Arguments that were used; None if they were not a JSON object."""
    asked_args: dict[str, Any] | None = None
    """Arguments that the model wrote, if a person changed them."""
    result: ToolResult | None = None
    """None only while the call runs."""
    queued_at: datetime | None = None
    started_at: datetime | None = None
    """None if it never started."""
    duration_ms: float = 0.0
    """Time from start to end, without waiting for a person."""
    waited_ms: float = 0.0
    """Time spent waiting for a person's decision."""
    ran_in: RanIn | None = None
    isolation: str | None = None
    """Isolation of a script: `landlock` or `process`; None for other tools."""
    approval: str | None = None
    """`allowed`, `denied`, `edited`; None if no decision was needed."""
    approved_by: str | None = None
    """`person`, `callback`, `session`, `policy`, `nobody`."""
    reason: str | None = None
    """Reason that the person or the rule gave."""
    truncated: bool = False
    """True if the result was cut to its budget."""
    repeat_n: int = 1
    """Number of times that this call, with these arguments, was made in this run so far."""
    tool_sha: str = ""
    error_detail: str | None = None
    """For the person: the last frames of the tool's traceback."""
    printed: str = ""
    """For the person: text that the tool printed, if it was captured and not shown in the cell."""
    shown: tuple[ImagePart, ...] = ()
    """For the person: images that the tool displayed and did not return."""
    first_figure: int = 0
    """Number in the conversation of the first of its `images`; 0 if there are none."""
    notes: tuple[str, ...] = ()

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """Images for the person: those in the result, then those that were displayed."""
        parts = self.result.attachments if self.result else ()
        return (*(part for part in parts if isinstance(part, ImagePart) and part.data), *self.shown)

    def as_message(self) -> Message:
        """Make the message that sends the result to the model."""
        return Message(
            role="tool",
            content=self.result.as_content() if self.result else (),
            tool_call_id=self.tool_call_id,
            name=self.tool_name,
        )


_TRIMMED_CHARS = 200
"""Length of an old tool result that is sent trimmed."""
_MIN_TRIM_CHARS = 500
"""Shorter results are not trimmed: with the note about the rest they would hardly get smaller."""


def can_trim(message: Message) -> bool:
    """True if a message is a tool result that gets much smaller by trimming."""
    long = len(message.content) > 1 or len(message.text) >= _MIN_TRIM_CHARS
    return message.role == "tool" and long


def trim_result(message: Message) -> Message:
    """Trim a tool message to the start of its result, as JSON that says what is missing.

    `{"ok": true, "data": "<the first characters>", "trimmed": "200 of 48,213 characters"}`. The
    code of an error stays. Images and files are left out.
    """
    # A conversation that a person imported may contain any text here.
    body = parse_arguments(message.text) or {}
    error = json_object(body.get("error"))
    content: Any = error.get("message") if error else body.get("data", message.text)
    text = content if isinstance(content, str) else dump_json(content).decode()
    start = text[:_TRIMMED_CHARS]
    excerpt: dict[str, Any] = {"ok": not error, "data": start}
    if error:
        excerpt = {"ok": False, "error": {"code": error.get("code"), "message": start}}
    excerpt["trimmed"] = f"{len(start):,} of {len(text):,} characters"
    if n_left := sum(not isinstance(part, TextPart) for part in message.content):
        excerpt["trimmed"] += f", without {n_left} images or files"
    return message.model_copy(update={"content": (TextPart(text=dump_json(excerpt).decode()),)})


class TurnRequest(Value):
    """Request of a turn, by reference: the first `n_messages` of the run's conversation.

    The messages themselves are stored once per run; a copy in each turn would grow with the square
    of the turns.
    """

    n_messages: int
    n_new: int
    """Number of these messages that the previous turn did not send."""
    model: str
    params: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Parameters that were set: `temperature`, `tool_choice`, …"""
    system_sha: str = ""
    toolset_sha: str = ""
    n_tools: int = 0
    trimmed: tuple[int, ...] = ()
    """Indexes, from 0, of the tool results that were sent trimmed (`--trim tool-results`)."""


class EngineTurn(Value):
    """One model request, its response, and the tool runs of the calls in it."""

    id: str
    run_id: str
    index: int
    """Counts the turns of the conversation from 1."""
    phase_before: Phase = "Running"
    request: TurnRequest
    response: ChatResponse | None = None
    """None if there was no answer, not even a partial one."""
    tool_runs: tuple[ToolRun, ...] = ()
    phase_after: Phase = "Running"
    stop_reason: StopReason | None = None
    started_at: datetime
    duration_ms: float = 0.0
    model_ms: float = 0.0
    """Time from the request to the end of the response, with retries, without waits."""
    ttft_ms: float | None = None
    """Time from the last attempt's request to its first token."""
    attempts: int = 1
    """Number of attempts, also if none of them was answered."""
    attempt_statuses: str = ""
    """HTTP status of each failed attempt (`429,503`); the code of an error without one."""
    retry_wait_ms: float = 0.0
    """Time waited between attempts and for a rate limit."""
    cost_usd: float | None = None
    """None if the price is unknown."""
    cost_input_usd: float | None = None
    """Part for prompt tokens that were not cached."""
    cost_cached_usd: float | None = None
    """Part for prompt tokens read from or written to the provider's cache."""
    cost_output_usd: float | None = None
    saved_usd: float | None = None
    """Additional cost without the provider's cache or the recorded answer."""
    node: str | None = None
    agent: str | None = None
    error: ErrorInfo | None = None
    notices: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Print the turn on one line; its fields have the rest."""
        usage = self.response.usage if self.response else None
        facts = [f"text of {len(self.text):,} characters"] if self.text else []
        facts += [f"calls {', '.join(run.tool_name for run in self.tool_runs)}"] * bool(
            self.tool_runs
        )
        facts += [f"{usage.total_tokens:,} tokens"] if usage else []
        facts += [self.error.code] if self.error else []
        return f"<EngineTurn {self.id}: {', '.join(facts) or 'no answer'}>"

    @property
    def text(self) -> str:
        """Text of the model's answer in this turn."""
        return self.response.message.text if self.response else ""

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """Images of the model's answer in this turn."""
        return self.response.message.images if self.response else ()

    @property
    def tools_ms(self) -> float:
        """Time in which at least one tool ran."""
        return _covered_ms((run.started_at, run.duration_ms) for run in self.tool_runs)

    @property
    def waited_ms(self) -> float:
        """Time in which at least one call waited for a person."""
        return _covered_ms((run.queued_at, run.waited_ms) for run in self.tool_runs)


def _covered_ms(spans: Iterable[tuple[datetime | None, float]]) -> float:
    """Time that spans cover; overlapping parts (parallel calls) count once."""
    total, until = 0.0, 0.0
    for start, lasted in sorted((_epoch_ms(at), ms) for at, ms in spans if ms):
        total += max(0.0, start + lasted - max(start, until))
        until = max(until, start + lasted)
    return total


def _epoch_ms(moment: datetime | None) -> float:
    return (moment - _EPOCH) // _MICROSECOND / 1000 if moment else 0.0


JUDGE_SUFFIX = "/judge"
"""Suffix of a batch name: the runs of such a batch judge the runs of the batch before it."""


class Case(Value):
    """Case of a batch that a run answers: one row of its table, in one variant, one repeat."""

    batch: str
    """Name of the batch; ends with `JUDGE_SUFFIX` if the run judges another one."""
    row_key: str
    variant: dict[str, str] = Field(default_factory=dict[str, str])
    """Label of each axis, by the axis name."""
    attempt: int = 1
    """Number of the repeat, from 1."""
    sha: str = ""
    """Hash of everything that determines the answer. A finished run with this hash is reused."""


MAX_SCORE = 1e300
"""Greatest score; the sum of very many such scores is a float."""


class ScoreRecord(Value):
    """Score of a run; one for each run, name and version by a scorer or judge, and by a person."""

    run_id: str
    scorer: str
    version: int = 1
    value: bool | float | str | None = None
    """An assertion, a number or a label; None if the scorer failed or returned None."""
    reason: str | None = None
    by: str
    """`function`, the name of a person, or the model id of a judge."""
    error: str | None = None
    """Error that the scorer raised."""
    at: datetime
    judge_run_id: str | None = None
    """Id of the run in which a model judged."""
    row: dict[str, str] | None = None
    """Short hashes of the row's values that the scorer used, by column; None for a label."""
    better: Better = "higher"

    @property
    def is_label(self) -> bool:
        """True if a person gave it."""
        return self.row is None and self.error is None


class WorkflowRef(Value):
    """Workflow of a run, as it was when the run started."""

    name: str
    """Id of its package."""
    document: str | None = None
    """Id of its document: the id of the run that created it."""
    graph: dict[str, Any] | None = None
    """Steps, edges and position as JSON (`view.graph.GraphState`)."""


class ForkedFrom(Value):
    """Turn that a fork repeats, and the changes before it."""

    turn_id: str
    """Id of the parent's turn."""
    edits: tuple[str, ...] = ()
    """Ids of the turns and calls that were changed."""
    drop: tuple[str, ...] = ()
    """Ids of the turns and calls that were left out."""
    defer_calls: bool = False
    """The tool calls of the answer wait until the run is resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals:
    """Sums over the turns of a run."""

    turns: int
    tool_calls: int
    tool_errors: int
    usage: Usage
    cost_usd: float | None
    """None if no price is known."""
    n_unpriced: int
    model_ms: float
    tools_ms: float
    waited_ms: float
    retry_wait_ms: float


class RunInfo(Value):
    """Data that the record and the summary of a run share."""

    id: str
    session: str
    name: str | None = None
    tags: tuple[str, ...] = ()
    parent_id: str | None = None
    kind: Literal["start", "continue", "resume", "fork"] = "start"
    forked_from: ForkedFrom | None = None
    """None if the run is no fork."""
    case: Case | None = None
    """None if the run is not part of a batch."""
    agent: str | None = None
    workflow: WorkflowRef | None = None
    """None without a workflow."""
    notebook: str | None = None
    """File name of the notebook, if the front end reports it."""
    model: str
    """`provider:model`."""
    template: str | None = None
    """Text of the cell before `{{ expressions }}` were evaluated; None if it had none."""
    prompt: str = ""
    limits: Limits = Limits()
    phase: Phase = "Running"
    stop_reason: StopReason | None = None
    error: ErrorInfo | None = None
    started_at: datetime
    ended_at: datetime | None = None
    duration_ms: float = 0.0
    usage: Usage = Usage()
    """Sum over the turns."""
    cost_usd: float | None = None
    """Sum over the turns with a known price; None if there are none."""
    n_unpriced: int = 0
    """Number of turns with a response and an unknown price."""

    @property
    def ok(self) -> bool:
        """True if the model answered, or the workflow is complete."""
        return self.stop_reason in ("answered", "workflow_complete")


SUMMARY_CHARS = 400
"""Length of the answer's text in a summary."""


class RunSummary(RunInfo):
    """A run in a list, without its turns and messages."""

    text: str = ""
    """Start of the last text that the model wrote."""
    turns: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    tokens_by_turn: tuple[int, ...] = ()
    """Tokens of each turn whose usage is known."""
    last_node: str | None = None
    """Workflow step of the last turn."""
    last_agent: str | None = None
    """Agent of the last turn; None: `agent`."""
    replayed: Literal["hit", "replay"] | None = None
    """Source of the first recorded answer; None if all are new."""
    recorded_usd: float | None = None
    """What the recorded answers cost when they were new; None if there are none with a price."""


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """Where a run was started, as far as the front end told."""

    run_id: str
    notebook: str | None
    cell_id: str | None
    kernel_id: str | None
    file_id: str | None


class RunRecord(RunInfo):
    """A complete run. It never changes after it ended.

    `messages` are the run's own. The messages before them belong to the parent: its conversation
    up to `shared_messages`.
    """

    shared_messages: int = 0
    copied: tuple[str, ...] = ()
    """Set if a fork changed the conversation before it: the run then begins with a copy of that
    conversation from the first change on, because a stored conversation never changes. One entry
    for each copied message: the id of the turn that added it, or an empty string."""
    nbagent_version: str = ""
    execution_count: int | None = None
    """Execution count of the cell, if the kernel reports it."""
    cell_id: str | None = None
    kernel_id: str | None = None
    """Id of the kernel on its Jupyter server; a restart keeps it."""
    file_id: str | None = None
    """Device and inode of the notebook's file; a rename keeps them, a copy has others."""
    base_url: str | None = None
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options that a run which continues this one inherits, by name."""
    notices: tuple[str, ...] = ()
    system_prompts: dict[str, str] = Field(default_factory=dict[str, str])
    """Text by `system_sha`."""
    toolsets: dict[str, tuple[ToolSpec, ...]] = Field(
        default_factory=dict[str, tuple[ToolSpec, ...]]
    )
    """Tool specs by `toolset_sha`."""
    messages: tuple[Message, ...] = ()
    turns: tuple[EngineTurn, ...] = ()

    @property
    def origin(self) -> RunOrigin:
        """Where the run was started."""
        return RunOrigin(self.id, self.notebook, self.cell_id, self.kernel_id, self.file_id)

    @property
    def text(self) -> str:
        """Last text that the model wrote."""
        return next((turn.text for turn in reversed(self.turns) if turn.text), "")

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """Images of the model's answers, in order."""
        return tuple(image for turn in self.turns for image in turn.images)

    def message_range(self, turn: EngineTurn) -> range:
        """Indexes in `messages` of a turn's answer and tool results; empty if it added none."""
        start = turn.request.n_messages - self.shared_messages
        answer = turn.response and turn.response.message
        # An answer without text and calls was not added to the conversation.
        if answer is None or self.messages[start : start + 1] != (answer,):
            return range(start, start)
        return range(start, start + 1 + len(answer.tool_calls))

    def totals(self) -> RunTotals:
        """Add up the turns."""
        calls = [tool_run for turn in self.turns for tool_run in turn.tool_runs]
        answered = [turn for turn in self.turns if turn.response is not None]
        usages = [turn.response.usage for turn in answered if turn.response]
        costs = [turn.cost_usd for turn in answered if turn.cost_usd is not None]
        return RunTotals(
            turns=len(self.turns),
            tool_calls=len(calls),
            tool_errors=sum(call.result is not None and not call.result.ok for call in calls),
            usage=sum(filter(None, usages), Usage()),
            cost_usd=sum(costs) if costs else None,
            n_unpriced=len(answered) - len(costs),
            model_ms=sum(turn.model_ms for turn in self.turns),
            tools_ms=_covered_ms((call.started_at, call.duration_ms) for call in calls),
            waited_ms=_covered_ms((call.queued_at, call.waited_ms) for call in calls),
            retry_wait_ms=sum(turn.retry_wait_ms for turn in self.turns),
        )

    def ended(
        self,
        *,
        phase: Phase,
        stop_reason: StopReason | None,
        error: ErrorInfo | None,
        ended_at: datetime,
        duration_ms: float | None = None,
    ) -> RunRecord:
        """Copy of the record as the run ends, with the sums over its turns.

        Args:
            phase: phase after the end; with `stop_reason` and `error` it says why the run ended.
            duration_ms: None: the time from its start to `ended_at`.
        """
        totals = self.totals()
        if duration_ms is None:
            duration_ms = (ended_at - self.started_at).total_seconds() * 1000
        return self.model_copy(
            update={
                "phase": phase,
                "stop_reason": stop_reason,
                "error": error,
                "ended_at": ended_at,
                "duration_ms": duration_ms,
                "usage": totals.usage,
                "cost_usd": totals.cost_usd,
                "n_unpriced": totals.n_unpriced,
            }
        )

    def summary(self) -> RunSummary:
        """Summarize the run, as a list shows it."""
        totals, last = self.totals(), self.turns[-1] if self.turns else None
        responses = [turn.response for turn in self.turns if turn.response]
        sources = [response.meta.source for response in responses]
        return RunSummary(
            **{name: getattr(self, name) for name in RunInfo.model_fields},
            text=self.text[:SUMMARY_CHARS],
            turns=totals.turns,
            tool_calls=totals.tool_calls,
            tool_errors=totals.tool_errors,
            tokens_by_turn=tuple(it.usage.total_tokens for it in responses if it.usage),
            last_node=last and last.node,
            last_agent=last and last.agent,
            replayed=next((it for it in sources if it == "hit" or it == "replay"), None),
            recorded_usd=recorded_cost(
                (turn.response.meta.source, turn.saved_usd) for turn in self.turns if turn.response
            ),
        )


def recorded_cost(turns: Iterable[tuple[str, float | None]]) -> float | None:
    """Add up the original cost of recorded answers, from the source and the saving of each turn."""
    costs = [usd for source, usd in turns if source in ("hit", "replay") and usd is not None]
    return sum(costs) if costs else None


def toolset_sha(tools: tuple[ToolSpec, ...]) -> str:
    """Hash the descriptions of tools for the model, and their definitions."""
    if not tools:
        return ""
    # With the hash of the definition: changed code behind an equal schema is another toolset.
    return sha_of([[t.name, t.description, t.parameters, t.traits.sha] for t in tools])
