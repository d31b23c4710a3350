"""The shape of a run's picture: JSON-able dicts that the live view and the static form draw.

Also the ops, the small messages that change a live picture. Types only; the twin of the
typedefs in `live/shapes.js`.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from nbagent.view.old_markdown import Node

Tone = Literal["ok", "live", "waits", "bad"]
Doing = Literal["", "model", "tool", "wait", "bad"]
TurnPhase = Literal["running", "done", "failed"]
ToolPhase = Literal["queued", "asking", "running", "ok", "failed"]


class Status(TypedDict):
    """The state in one word; the mark says the same where there is no colour."""

    word: str
    tone: Tone
    mark: str


class Fact(TypedDict):
    """One number of the header: `<b>1,284</b> tokens (912 cached)`."""

    key: str
    value: str
    word: str
    aside: str


class Segment(TypedDict):
    """A piece of the time bar."""

    kind: Literal["model", "tool", "wait", "bad"]
    ms: float
    turn: str


class Block(TypedDict):
    """A text, and a note on what was cut off it."""

    text: str
    note: str


class CallWords(TypedDict):
    """A call on a turn's line: `population(city="Oslo") → 717,710`."""

    name: str
    arguments: str
    phase: ToolPhase
    outcome: str
    """The short result, or the error's code."""
    decided: NotRequired[str]
    """`✓ allowed`; only where somebody was asked."""


class Summary(TypedDict):
    """A turn's line: calls, or the first words, or an error."""

    calls: list[CallWords]
    more: int
    """Calls that are not shown in the line."""
    text: str
    error: str


class ImageView(TypedDict):
    """A small PNG, JPEG, GIF or WebP, as base64."""

    media_type: str
    data: str
    alt: str
    size: str
    """In words: `640 × 480 px, 12 kB`."""


class PieceView(TypedDict):
    """A thing to look at before a question is answered."""

    label: str
    text: str
    kind: Literal["text", "diff", "code"]
    long: bool
    """It has to be scrolled."""


class QuestionView(TypedDict):
    """What the person is asked about a call. Nothing in it is cut."""

    nth: int
    """Tells it from an earlier question about the same call: an answer names it."""
    host: str
    why: str
    editable: str
    """The arguments as JSON to edit; empty when that is how they are shown."""
    pieces: list[PieceView]
    """The arguments are the first."""
    long: bool
    """So much text that the buttons stand above it."""
    scope: str


class ToolView(TypedDict):
    """A tool run as a card."""

    key: str
    """The id of the call."""
    name: str
    phase: ToolPhase
    word: str
    """The phase for a person: `running`, `E_TOOL_FAILED`; empty when all went well."""
    where: str
    """Where it ran and how long: `main thread · 12 ms`."""
    arguments: Block
    given: Block
    """What the model had written, where a person changed it."""
    decision: str
    """What was said to it, by whom: `allowed by the person after 4.2 s`."""
    result: Block
    error: str
    detail: Block
    """The last frames of what the tool raised; `error` is empty when they say it too."""
    notes: list[str]
    images: list[ImageView]
    progress: str
    question: QuestionView | None
    """Only while it is open."""


class Draft(TypedDict):
    """A call while the model still writes it."""

    name: str
    arguments: str


class MessageView(TypedDict):
    """A message that a request sent for the first time."""

    role: str
    body: Block
    images: list[ImageView]


class RequestView(TypedDict):
    """What a turn sent."""

    words: str
    earlier: str
    """New messages that belong to the run before."""
    messages: list[MessageView]
    tools: str
    params: str
    system: Block


class TurnView(TypedDict):
    """A turn: its line, and what unfolds."""

    id: str
    phase: TurnPhase
    who: str
    """Agent and node of a workflow."""
    summary: Summary
    numbers: str
    reasoning: Block
    text: Block
    """The source; `tree` is what a finished turn shows of it."""
    tree: list[Node]
    drafts: list[Draft]
    tools: list[ToolView]
    request: RequestView
    notices: list[str]
    error: str


class NextStep(TypedDict):
    """What a person may type next."""

    words: str
    type: str


class Head(TypedDict):
    """All of a picture but its turns: what changes often and is small."""

    status: Status
    activity: str
    """What goes on beside the ordinary: a retry, a wait."""
    wait_ms: float
    """How long it still waits before the next attempt; 0 where nobody knows."""
    running: bool
    doing: Doing
    """What the time goes to now; empty when the run is over."""
    facts: list[Fact]
    elapsed_ms: float
    bar: list[Segment]
    bar_words: str
    notices: list[str]


class ViewState(Head):
    """The picture of one run."""

    version: int
    run_id: str
    """The first 8 hex digits."""
    about: str
    model: str
    offline: str
    """A line that says that no model answers; empty for a real one."""
    turns: list[TurnView]
    answer: str
    """Id of the turn whose text is the answer; empty when there is none."""
    answer_note: str
    error: str
    error_mark: str
    """`✕` for a failure; a pause or a stop is none, and has the mark of its status."""
    error_help: str
    """What to do about a model's failure."""
    next: list[NextStep]


class TextOp(TypedDict):
    """More text at the end of a turn's text or reasoning."""

    op: Literal["text", "reasoning"]
    turn: str
    text: str


class DraftOp(TypedDict):
    """More of a call that the model writes."""

    op: Literal["draft"]
    turn: str
    index: int
    name: str
    text: str


class TurnOp(TypedDict):
    """A turn as it is now."""

    op: Literal["turn"]
    turn: TurnView


class ToolOp(TypedDict):
    """A tool card as it is now, and the line of its turn."""

    op: Literal["tool"]
    turn: str
    tool: ToolView
    summary: Summary


class HeadOp(TypedDict):
    """Everything around the turns as it is now."""

    op: Literal["head"]
    head: Head


class UnclearOp(TypedDict):
    """An answer could not be taken: the question is open again."""

    op: Literal["unclear"]
    call: str
    nth: int
    text: str


class StateOp(TypedDict):
    """The whole picture: for a front end that comes late."""

    op: Literal["state"]
    state: ViewState


Op = TextOp | DraftOp | TurnOp | ToolOp | HeadOp | UnclearOp | StateOp
