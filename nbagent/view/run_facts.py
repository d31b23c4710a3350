"""A run's record → texts: state, numbers, outcome of a call, decisions, errors.

`run_picture` decides what is shown; this module words it. Pure functions.
"""

from __future__ import annotations

from typing import NamedTuple

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.model import Usage
from nbagent.contracts.records import (
    EngineTurn,
    RunInfo,
    RunRecord,
    RunSummary,
    ToolRun,
    TurnRequest,
)
from nbagent.view.graph import current_step
from nbagent.view.markdown import markdown_nodes, prose_text
from nbagent.view.result_summary import summarize_error, summarize_result
from nbagent.view.run_status import error_text
from nbagent.view.text_format import (
    format_cost,
    format_duration,
    one_line,
    pluralize,
    sanitize_prose,
    sanitize_value,
)

NAME_CHARS = 160
_NOTE_CHARS = 1_000
_MAX_NOTICES = 20
_REASON_CHARS = 300
_DECIDED_BY = {
    "person": "you",
    "callback": "on_approval",
    "session": "your earlier answer for the session",
    "policy": "the policy",
}


_REPLAY_LABELS = {"hit": "from cache", "replay": "replay"}


class Fact(NamedTuple):
    """A number in the head: `<b>1,284</b> tokens (912 cached)`."""

    value: str
    word: str = ""
    detail: str = ""
    is_bad: bool = False
    """True if the number reports a failure."""


class Outcome(NamedTuple):
    """Outcome of a call: `→ 717,710`, `✕ denied by you`."""

    text: str
    is_bad: bool = False
    detail: str = ""
    """Message of an error, for a line without the call's card."""


# The run


def offline_model_text(model: str) -> str:
    """State that an offline stand-in answers instead of a model; empty for a model."""
    if not model.startswith("offline:"):
        return ""
    if model in ("offline:demo", "offline:walk"):
        return f"{sanitize_value(model)} answers by rules, not by a model"
    return f"{sanitize_value(model)} plays a script; no model answers"


def offline_notice(run: RunRecord) -> str:
    """State that an offline stand-in answered a run, and why if nobody chose it."""
    text = offline_model_text(run.model)
    return next((note for note in map(note_text, run.notices) if text and text in note), text)


def run_notes(run: RunRecord) -> list[str]:
    """Notices of a run, except the one on an offline stand-in."""
    return [note for note in map(note_text, run.notices) if note != offline_notice(run)]


def workflow_position(run: RunSummary) -> str:
    """Workflow, step and agent of the last turn."""
    workflow = run.workflow and run.workflow.name
    return _joined_names(workflow, run.last_node, run.last_agent or run.agent)


def placed_summary(run: RunRecord) -> RunSummary:
    """Summarize a run with the step at which its workflow is, as the graph shows it."""
    summary, step = run.summary(), current_step(run)
    if step is None or step.id == summary.last_node:
        return summary
    # The last turn moved the workflow to a step that has had no turn.
    return summary.model_copy(update={"last_node": step.id, "last_agent": step.agent})


def agent_and_node(turn: EngineTurn) -> str:
    """Agent and workflow node of a turn."""
    return _joined_names(turn.agent, turn.node)


def _joined_names(*names: str | None) -> str:
    return " · ".join(one_line(sanitize_value(name), NAME_CHARS) for name in names if name)


def head_facts(run: RunSummary, *, elapsed_ms: float | None = None) -> list[Fact]:
    """Numbers of the head, after the position in a workflow if there is one.

    Args:
        run: the summary, possibly of a running run.
        elapsed_ms: time so far of a running run; None uses the recorded duration.
    """
    usage, position = run.usage, workflow_position(run)
    facts = [Fact(position)] if position else []
    facts.append(_number_fact(pluralize(run.turns, "turn")))
    if run.tool_calls:
        facts.append(_calls_fact(run))
    if usage.total_tokens:
        facts.append(_number_fact(pluralize(usage.total_tokens, "token"), _cache_text(usage)))
    if run.cost_usd or run.recorded_usd:
        recorded = f"({format_cost(run.recorded_usd)} recorded)" if run.recorded_usd else ""
        facts.append(Fact(format_cost(run.cost_usd or 0), "", recorded))
    time = format_duration(run.duration_ms if elapsed_ms is None else elapsed_ms)
    return [*facts, _number_fact(time, _REPLAY_LABELS.get(run.replayed or "", ""))]


def _calls_fact(run: RunSummary) -> Fact:
    """`2 calls`, or `1 of 2 calls failed`: a model may answer although no call succeeded."""
    # The calls of a stopped run, such as a retry's, may not have run yet.
    if run.tool_errors and run.stop_reason != "stopped":
        calls = pluralize(run.tool_calls, "call").partition(" ")[2]
        return Fact(f"{run.tool_errors:,} of {run.tool_calls:,}", f"{calls} failed", is_bad=True)
    return _number_fact(pluralize(run.tool_calls, "call"))


def _number_fact(text: str, detail: str = "") -> Fact:
    value, _, word = text.rpartition(" ")
    return Fact(value, word, f"({detail})" if detail else "")


def facts_line(run: RunSummary) -> str:
    """Numbers of the head in one line."""
    return " · ".join(" ".join(filter(None, fact[:3])) for fact in head_facts(run))


def _cache_text(usage: Usage) -> str:
    counts = [(usage.cached_tokens, "cached"), (usage.cache_write_tokens, "written to the cache")]
    return ", ".join(f"{tokens:,} {word}" for tokens, word in counts if tokens)


def run_identity(run: RunInfo) -> str:
    """Id, name, origin and tags of a run."""
    parts = [f"run {run.id[:8]}"]
    if run.name:
        parts.append(one_line(sanitize_value(run.name), NAME_CHARS))
    if run.parent_id:
        parts.append(origin_text(run))
    parts += [f"#{one_line(sanitize_value(tag), 80)}" for tag in run.tags[:20]]
    return " · ".join(parts)


def origin_text(run: RunInfo) -> str:
    """`continues 1a2b3c4d`, `forked from 1a2b3c4d at C03`."""
    how = {"continue": "continues", "resume": "resumes", "fork": "forked from"}
    at = f" at {sanitize_value(run.forked_from.turn_id)}" if run.forked_from else ""
    return f"{how.get(run.kind, 'after')} {(run.parent_id or '')[:8]}{at}"


def answering_turn(run: RunRecord) -> EngineTurn | None:
    """Return the turn whose text or images are the answer; None if there is none."""
    last = run.turns[-1] if run.turns and run.phase != "Running" else None
    return last if last and (last.text.strip() or last.images) and not last.tool_runs else None


# Errors and notes


def note_text(text: str) -> str:
    """Shorten a note to its limit."""
    return one_line(sanitize_value(text), _NOTE_CHARS)


def turn_failure(turn: EngineTurn) -> str:
    """Error of a turn. Limits and stops end the run, so they are not errors of the turn."""
    return error_text(turn.error) if is_failure(turn.error) else ""


def is_failure(error: ErrorInfo | None) -> bool:
    """True if an error came from the model or its server, not from the engine."""
    return error is not None and not error.code.startswith("ENGINE_")


def turn_notes(turn: EngineTurn) -> list[str]:
    """Notes of a turn: retries, dropped parameters, cut answers, workflow moves."""
    response, waited = turn.response, f"waited {format_duration(turn.retry_wait_ms)}"
    notes = [waited] if turn.retry_wait_ms else []
    if turn.attempts > 1:
        notes = [f"{turn.attempts - 1} retr{'y' if turn.attempts == 2 else 'ies'}, {waited}"]
    dropped = response.meta.dropped_params if response else ()
    # Only parameters dropped because of an earlier refusal; notices of this turn name the others.
    names = [name for name in dropped if not any(name in text for text in turn.notices)]
    if names:
        notes.append(
            f"left out because the server refused it before: {sanitize_value(', '.join(names))}"
        )
    if response and response.finish_reason == "length":
        notes.append("cut off at the limit of tokens")
    if response and response.finish_reason == "content_filter":
        notes.append("cut off by the provider's content filter")
    moves = filter(None, map(_transition_text, turn.tool_runs))
    return [*notes, *moves]


def turn_notices(turn: EngineTurn) -> list[str]:
    """Notices of a turn, such as a parameter that the server refused. No fold hides them."""
    return [f"note: {text}" for text in map(note_text, turn.notices[:_MAX_NOTICES])]


def _transition_text(run: ToolRun) -> str:
    result = run.result
    if run.host != "fs" or run.tool_name != "fs.apply_patch" or result is None:
        return ""
    data = result.data if result.ok else result.error and result.error.details
    move = json_object((json_object(data) or {}).get("transition"))
    if move is None:
        return ""
    label = f" ({move['label']})" if move.get("label") else ""
    move_text = f"{move.get('from')} → {move.get('to') or 'end'}{label}"
    why = f": {result.error.message}" if result.error else ""
    return note_text(
        move_text if result.ok else one_line(f"refused: {move_text}{why}", _REASON_CHARS)
    )


# A turn's line


def text_preview(text: str) -> str:
    """Start of a turn's text on one line, up to the first table or block of code."""
    # Only the start: parsing an answer of 60,000 characters for one line would be slow.
    nodes = markdown_nodes(sanitize_prose(text[:4_000]))
    wide = (i for i, n in enumerate(nodes) if not isinstance(n, str) and n[0] in ("table", "div"))
    return one_line(prose_text(nodes[: next(wide, None) or len(nodes)]), 110)


def turn_numbers(turn: EngineTurn) -> str:
    """`428 tok · 1.1 s`, for a line that is printed while the run is at work."""
    parts = (_tokens_text(turn), format_duration(turn.duration_ms), replay_label(turn))
    return " · ".join(filter(None, parts))


def turn_tokens(turn: EngineTurn) -> str:
    """`428 tok`. The times of a run stand together in its head and its footer.

    Two runs of a cell then differ in these two lines of a saved notebook, and in no other one.
    """
    return " · ".join(filter(None, (_tokens_text(turn), replay_label(turn))))


def _tokens_text(turn: EngineTurn) -> str:
    usage = turn.response.usage if turn.response else None
    return f"{usage.total_tokens:,} tok" if usage and usage.total_tokens else ""


def replay_label(turn: EngineTurn) -> str:
    """`replay` or `from cache` if a recording answered. A fixed text, so nbval can drop it."""
    return _REPLAY_LABELS.get(turn.response.meta.source, "") if turn.response else ""


def call_outcome(run: ToolRun, *, pending: str = "") -> Outcome:
    """Describe the outcome of a call in a few words; `pending` is used without a result."""
    result = run.result
    if result is None:
        return Outcome(f"… {pending}".rstrip())
    if not result.ok:
        code = result.error.code if result.error else "E_INTERNAL"
        if result.error and (result.error.details or {}).get("held"):
            return Outcome("has not run; Continue or run.resume() runs it")
        if code == "E_DENIED":
            by = _DECIDED_BY.get(run.approved_by or "", "")
            return Outcome(f"✕ denied by {by}" if by else "✕ denied", is_bad=True)
        detail = summarize_error(result.error).removeprefix(code) if result.error else ""
        return Outcome(f"✕ {code}", is_bad=True, detail=detail)
    if move := _transition_text(run):
        return Outcome(f"→ {move}")
    if result.data is None and result.attachments:
        return Outcome(f"→ {pluralize(len(result.attachments), 'attachment')}")
    return Outcome(f"→ {summarize_result(result.data)}")


# A tool run


def execution_text(run: ToolRun) -> str:
    """Thread and duration of a call: `main thread · 12 ms`."""
    if run.started_at is None or run.result is None:
        return thread_text(run)
    return " · ".join(filter(None, (run.ran_in, format_duration(run.duration_ms))))


def thread_text(run: ToolRun) -> str:
    """Thread of a call, or that it did not run."""
    if run.started_at is None:
        return "did not run" if run.result else ""
    return run.ran_in or "" if run.result else ""


def decision_text(run: ToolRun, *, with_reason: bool = False) -> str:
    """Decision on a call and who made it; empty if no approval was needed.

    `with_reason` adds why a call was denied, where no card shows it.
    """
    if not run.approval:
        return ""
    if with_reason and run.approval == "denied" and run.reason:
        why = one_line(sanitize_value(run.reason), _REASON_CHARS)
        return f"{decision_text(run)}: {why}"
    by = run.approved_by or ""
    text = one_line(sanitize_value(run.approval), NAME_CHARS)
    if by == "nobody":
        return f"{text}: approval needed but nobody can answer"
    if by:
        text = "arguments edited" if text == "edited" else text
        if text == "allowed" and by == "person" and run.reason:
            text += f" {one_line(sanitize_value(run.reason), _REASON_CHARS)}"  # for the session (…)
        text += f" by {_DECIDED_BY.get(by) or one_line(sanitize_value(by), NAME_CHARS)}"
    return f"{text} after {format_duration(run.waited_ms)}" if run.waited_ms else text


def tool_notes(run: ToolRun) -> list[str]:
    """Notes on a call besides its result."""
    notes: list[str] = []
    if run.repeat_n > 1:
        notes.append(f"call number {run.repeat_n} with these arguments")
    if run.truncated:
        limit = " (max_result_chars)" if run.host == "functions" else ""
        notes.append(f"the result was shortened to the tool's limit{limit} before the model saw it")
    return [*notes, *map(note_text, run.notes)]


# A request


def request_text(request: TurnRequest) -> str:
    """`request · 2 new messages of 4 · 3 tools`."""
    new = pluralize(request.n_new, "new message")
    parts = [f"request · {new} of {request.n_messages:,}"]
    if request.n_tools:
        parts.append(pluralize(request.n_tools, "tool"))
    if n := len(request.trimmed):
        parts.append(f"{pluralize(n, 'old tool result')} shortened")
    return " · ".join(parts)
