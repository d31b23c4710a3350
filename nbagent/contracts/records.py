"""Stored values of a run: tool results and tool runs, turns, run records. Frozen.

Ids: a run has 16 hex digits; turns are `C01`, `C02`, … and a child run continues the numbers.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from nbagent.contracts.canonical import dump_json, json_object, sha_of
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.limits import Limits
from nbagent.contracts.messages import ImagePart, Message, Part, TextPart, Value, parse_arguments
from nbagent.contracts.model import ChatResponse, ToolSpec, Usage
from nbagent.contracts.stop_reasons import StopReason

Phase = Literal["Running", "WaitingUser", "Completed", "Failed"]
RanIn = Literal["main thread", "waiting thread", "worker thread", "tool loop", "notebook loop"]


def turn_id(index: int) -> str:
    """Make the id of a turn: `C01` for index 1, `C100` after `C99`."""
    return f"C{index:02d}"


class ToolResult(Value):
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

    @property
    def text(self) -> str:
        """Text of the model's answer in this turn."""
        return self.response.message.text if self.response else ""


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


class ScoreRecord(Value):
    """Score of a run by a scorer, a judge or a person; one for each run, scorer and version."""

    run_id: str
    scorer: str
    version: int = 1
    value: bool | float | str | None = None
    """An assertion, a number or a label; None if the scorer failed or returned None."""
    reason: str | None = None
    by: str
    """`function`, `person`, or the model id of a judge."""
    error: str | None = None
    """Error that the scorer raised."""
    at: datetime
    judge_run_id: str | None = None
    """Id of the run in which a model judged."""
    row: dict[str, str] | None = None
    """Short hashes of the row's values that the scorer used, by column; None for a label."""


class RunRecord(Value):
    """A complete run. It never changes after it ended.

    `messages` are the run's own. The messages before them belong to the parent: its conversation
    up to `shared_messages`.
    """

    id: str
    session: str
    name: str | None = None
    tags: tuple[str, ...] = ()
    parent_id: str | None = None
    shared_messages: int = 0
    kind: Literal["start", "continue", "resume", "fork"] = "start"
    forked_from: str | None = None
    """Id of the parent's turn that a fork repeats."""
    case: Case | None = None
    """None if the run is not part of a batch."""
    copied: tuple[str, ...] = ()
    """Set if a fork changed the conversation before it: the run then begins with a copy of that
    conversation from the first change on, because a stored conversation never changes. One entry
    for each copied message: the id of the turn that added it, or an empty string."""
    agent: str | None = None
    workflow: str | None = None
    nbagent_version: str = ""
    execution_count: int | None = None
    """Execution count of the cell, if the kernel reports it."""
    cell_id: str | None = None
    notebook: str | None = None
    """File name of the notebook, if the front end reports it."""
    model: str
    """`provider:model`."""
    base_url: str | None = None
    template: str | None = None
    """Text of the cell before `{{ expressions }}` were evaluated; None if it had none."""
    prompt: str = ""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
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
    def text(self) -> str:
        """Last text that the model wrote."""
        return next((turn.text for turn in reversed(self.turns) if turn.text), "")

    def message_range(self, turn: EngineTurn) -> range:
        """Indexes in `messages` of a turn's answer and tool results; empty if it added none."""
        start = turn.request.n_messages - self.shared_messages
        answer = turn.response and turn.response.message
        # An answer without text and calls was not added to the conversation.
        if answer is None or self.messages[start : start + 1] != (answer,):
            return range(start, start)
        return range(start, start + 1 + len(answer.tool_calls))


def toolset_sha(tools: tuple[ToolSpec, ...]) -> str:
    """Hash the descriptions of tools for the model, and their definitions."""
    if not tools:
        return ""
    # With the hash of the definition: changed code behind an equal schema is another toolset.
    return sha_of([[t.name, t.description, t.parameters, t.traits.sha] for t in tools])
