"""What is kept of a run: tool results and runs, turns, run records. Frozen values.

Ids: a run has 16 hex digits; turns are `C01`, `C02`, … and go on in a child run.
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

Phase = Literal["Running", "WaitingUser", "Completed", "Failed"]
StopReason = Literal[
    "answered",
    "workflow_complete",
    "max_turns",
    "loop_detected",
    "budget",
    "length",
    "content_filter",
    "stopped",
    "error",
]
RanIn = Literal["main thread", "waiting thread", "worker thread", "tool loop", "notebook loop"]


def turn_id(index: int) -> str:
    """`C01` for the first turn of a conversation (index 1), `C100` after `C99`."""
    return f"C{index:02d}"


class ToolResult(Value):
    """What came back from a tool: data, or an error."""

    ok: bool
    data: Any = None
    """A JSON value."""
    error: ErrorInfo | None = None
    attachments: tuple[Part, ...] = ()
    """Images and files that the model is given beside the data."""
    note: str = ""
    """What the model has to know beside the result: that a person changed its arguments."""

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
    """The execution of one tool call. Every call gets exactly one."""

    tool_call_id: str
    tool_name: str
    display_name: str = ""
    """What cards call it; empty: its name."""
    host: str = ""
    """The source of the tool: `functions`, `filesystem`, `mcp:git`."""
    args: dict[str, Any] | None = None
    """The arguments that were used; None when they were not a JSON object."""
    asked_args: dict[str, Any] | None = None
    """What the model had written, where a person changed the arguments."""
    result: ToolResult | None = None
    """None only while it runs."""
    queued_at: datetime | None = None
    started_at: datetime | None = None
    """None when it never started."""
    duration_ms: float = 0.0
    """From start to end, without waiting."""
    waited_ms: float = 0.0
    """Waiting for a person's decision."""
    ran_in: RanIn | None = None
    isolation: str | None = None
    """How a script was kept apart: `landlock` or `process`; None for everything else."""
    approval: str | None = None
    """`allowed`, `denied`, `edited`; None when nobody had to be asked."""
    approved_by: str | None = None
    """`person`, `callback`, `session`, `policy`, `nobody`."""
    reason: str | None = None
    """What the person or the rule said with it."""
    truncated: bool = False
    """The result was cut to fit its budget."""
    repeat_n: int = 1
    """How many times this call, with these arguments, was made in this run."""
    tool_sha: str = ""
    error_detail: str | None = None
    """For the person: the last frames of what the tool raised."""
    printed: str = ""
    """For the person: what it printed, where that was taken from the cell."""
    shown: tuple[ImagePart, ...] = ()
    """For the person: pictures that it displayed and did not return."""
    first_figure: int = 0
    """The number in the conversation of the first of its `images`; 0 where there are none."""
    notes: tuple[str, ...] = ()

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """What the person sees: the images in the result, then those that were displayed."""
        parts = self.result.attachments if self.result else ()
        return (*(part for part in parts if isinstance(part, ImagePart) and part.data), *self.shown)

    def as_message(self) -> Message:
        """The message that gives the result to the model."""
        return Message(
            role="tool",
            content=self.result.as_content() if self.result else (),
            tool_call_id=self.tool_call_id,
            name=self.tool_name,
        )


_TRIMMED_CHARS = 200
"""Of an old tool result that is sent shortened."""
_MIN_TRIM_CHARS = 500
"""A shorter result would hardly become smaller."""


def can_trim(message: Message) -> bool:
    """Whether a message is a tool result that becomes much smaller when it is shortened."""
    long = len(message.content) > 1 or len(message.text) >= _MIN_TRIM_CHARS
    return message.role == "tool" and long


def trim_result(message: Message) -> Message:
    """A tool message with the start of its result, as JSON that says what is missing.

    `{"ok": true, "data": "<the first characters>", "trimmed": "200 of 48,213 characters"}`; of an
    error the code stays. Images and files are left out.
    """
    # A conversation of the person's own making may hold anything.
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
    """What a turn sent, by reference: the first `n_messages` of the run's conversation."""

    n_messages: int
    n_new: int
    """How many of these the turn before had not sent."""
    model: str
    params: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Only what was set: `temperature`, `tool_choice`, …"""
    system_sha: str = ""
    toolset_sha: str = ""
    n_tools: int = 0
    trimmed: tuple[int, ...] = ()
    """Places, from 0, of the tool results that were sent shortened (`--trim tool-results`)."""


class EngineTurn(Value):
    """One model request, its response, and the tool runs of the calls in it."""

    id: str
    run_id: str
    index: int
    """Counts the turns of the conversation from 1."""
    phase_before: Phase = "Running"
    request: TurnRequest
    response: ChatResponse | None = None
    """None when there was no answer, not even a part of one."""
    tool_runs: tuple[ToolRun, ...] = ()
    phase_after: Phase = "Running"
    stop_reason: StopReason | None = None
    started_at: datetime
    duration_ms: float = 0.0
    model_ms: float = 0.0
    """From the request to the end of the response, retries included, waits not."""
    ttft_ms: float | None = None
    """From the last attempt's request to its first token."""
    attempts: int = 1
    """The first one and its retries, also where none of them was answered."""
    retry_wait_ms: float = 0.0
    """Waited between attempts and for a rate limit."""
    cost_usd: float | None = None
    """None when the price is unknown."""
    cost_input_usd: float | None = None
    """Of it, for prompt tokens that were not cached."""
    cost_cached_usd: float | None = None
    """Of it, for prompt tokens read from or written to the provider's cache."""
    cost_output_usd: float | None = None
    saved_usd: float | None = None
    """What cached tokens, or an answer from a record, would have cost more."""
    node: str | None = None
    agent: str | None = None
    error: ErrorInfo | None = None
    notices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What the model wrote in this turn."""
        return self.response.message.text if self.response else ""


JUDGE_SUFFIX = "/judge"
"""What the name of a batch ends with whose runs judge those of another one."""


class Case(Value):
    """What a run of a batch answers: one row of its table, in one variant, for the nth time."""

    batch: str
    """The batch's name; of a judge's run it ends with `JUDGE`."""
    row_key: str
    variant: dict[str, str] = Field(default_factory=dict[str, str])
    """The label of each axis, by its name."""
    attempt: int = 1
    """Counts the repeats from 1."""
    sha: str = ""
    """Hash of all that decides the answer: a finished run of the same hash is not asked again."""


class ScoreRecord(Value):
    """What a scorer, a judge or a person says of a run; one for each run, scorer and version."""

    run_id: str
    scorer: str
    version: int = 1
    value: bool | float | str | None = None
    """An assertion, a number or a label; None where the scorer failed or had nothing to say."""
    reason: str | None = None
    by: str
    """`function`, `person`, or the model id of a judge."""
    error: str | None = None
    """What the scorer raised."""
    at: datetime
    judge_run_id: str | None = None
    """The run in which a model judged."""
    row: dict[str, str] | None = None
    """Short hashes of what a scorer saw of the row, by column; None for a person's label."""


class RunRecord(Value):
    """One run, whole. It never changes after it ended.

    `messages` are the run's own; the ones before them belong to the parent:
    its conversation up to `shared_messages`.
    """

    id: str
    session: str
    name: str | None = None
    tags: tuple[str, ...] = ()
    parent_id: str | None = None
    shared_messages: int = 0
    kind: Literal["start", "continue", "resume", "fork"] = "start"
    forked_from: str | None = None
    """The turn of the parent that a fork asks anew."""
    case: Case | None = None
    """Of a run that is one of a batch."""
    copied: tuple[str, ...] = ()
    """Of a fork that changed the conversation before it: its first messages are that conversation
    from the first change on. For each the id of the turn that had added it, or nothing."""
    agent: str | None = None
    workflow: str | None = None
    nbagent_version: str = ""
    execution_count: int | None = None
    """Of the cell, where the kernel tells."""
    cell_id: str | None = None
    notebook: str | None = None
    """File name of the notebook, where the front end tells."""
    model: str
    """`provider:model`."""
    base_url: str | None = None
    template: str | None = None
    """The cell's text before `{{ expressions }}` were evaluated; None when it had none."""
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
    """Sum over the turns whose price is known; None when there is none."""
    n_unpriced: int = 0
    """Turns with a response whose price is unknown."""
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
        """The last text that the model wrote."""
        return next((turn.text for turn in reversed(self.turns) if turn.text), "")

    def message_range(self, turn: EngineTurn) -> range:
        """The places in `messages` of a turn's answer and results; none where it left none."""
        start = turn.request.n_messages - self.shared_messages
        answer = turn.response and turn.response.message
        if answer is None or self.messages[start : start + 1] != (answer,):
            return range(start, start)
        return range(start, start + 1 + len(answer.tool_calls))


def toolset_sha(tools: tuple[ToolSpec, ...]) -> str:
    """Hash of what a model is shown of its tools, and of their definitions."""
    if not tools:
        return ""
    return sha_of([[t.name, t.description, t.parameters, t.traits.sha] for t in tools])
