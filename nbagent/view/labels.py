"""A run's record → words: state, numbers, a call's outcome, decisions, errors, where time went.

What stands in a picture is `picture`'s; here is how it is said. Pure.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.model import Usage
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun, TurnRequest
from nbagent.view.markdown import nodes_of, words_of
from nbagent.view.words import (
    clean,
    in_short,
    money,
    one_line,
    seconds,
    things,
    visible,
)

Tone = Literal["ok", "live", "waits", "bad"]

NAME_CHARS = 160
_NOTE_CHARS = 1_000
_ERROR_CHARS = 600
_REASON_CHARS = 300
_DECIDERS = {
    "person": "you",
    "callback": "on_approval",
    "session": "your earlier answer for the session",
    "policy": "the policy",
}
_HELP: dict[str, str] = {
    "LLM_AUTH_FAILED": "%agent doctor says which key was found for this model, and where",
    "LLM_TIMEOUT": "%agent resume tries again; --timeout gives it more seconds",
    "LLM_RATE_LIMITED": "wait a little, then %agent resume goes on",
    "LLM_QUOTA_EXCEEDED": "the account needs credit; --model NAME takes another model",
    "LLM_CONTEXT_OVERFLOW": "%agent resume --trim tool-results shortens old results; "
    "--model NAME takes a model with more room",
    "LLM_HTTP_ERROR": "%agent doctor says what was found; %agent resume tries again",
    "LLM_BAD_RESPONSE": "%agent resume tries again; --model NAME takes another model",
    "UNKNOWN": "%agent resume tries again; %agent doctor says what was found",
    "ENGINE_INTERRUPTED": "%agent resume goes on",
    "ENGINE_ABORTED": "%agent resume goes on",
}


class Status(NamedTuple):
    """The state in one word; the mark says the same where there is no colour."""

    word: str
    tone: Tone
    mark: str


class Fact(NamedTuple):
    """One number of the head: `<b>1,284</b> tokens (912 cached)`."""

    value: str
    word: str = ""
    aside: str = ""


class Outcome(NamedTuple):
    """What became of a call: `→ 717,710`, `✕ denied by you`."""

    words: str
    is_bad: bool = False


# The run

_ANSWERED = Status("Answered", "ok", "✓")


def status_of(run: RunRecord) -> Status:
    """The state of a run in a person's words."""
    code, reason, limits = run.error.code if run.error else "", run.stop_reason, run.limits
    if run.phase == "Running":
        return Status("Running", "live", "…")
    if run.phase == "Completed":
        return Status("Completed", "ok", "✓")
    if run.phase == "Failed":
        if reason == "stopped":
            return Status("Stopped", "waits", "■")
        if code == "ENGINE_INTERRUPTED":
            return Status("Interrupted", "bad", "✕")
        most = f": {limits.ceiling} requests" if reason == "max_turns" else ""
        return Status(f"Failed{most}", "bad", "✕")
    if reason in ("answered", None):
        return Status("Waiting for you", "waits", "‖") if run.workflow else _ANSWERED
    too_long = code == "LLM_CONTEXT_OVERFLOW"
    why = {
        "max_turns": f": {things(limits.max_turns, 'turn')}",
        "loop_detected": ": the same calls again",
        "budget": ": budget used up",
        "length": ": the request is too long" if too_long else ": answer cut at its length",
        "content_filter": ": content filter",
    }
    return Status(f"Paused{why.get(reason, '')}", "waits", "‖")


def is_unfinished(run: RunRecord) -> bool:
    """Whether a run ended before its answer: by a stop, a limit or an error."""
    if run.phase == "WaitingUser":
        return run.stop_reason not in ("answered", None)
    return run.phase == "Failed"


def stand_in_words(model: str) -> str:
    """Says that no model answers, where none does."""
    if not model.startswith("offline:"):
        return ""
    if model == "offline:demo":
        return f"{visible(model)} answers by rules, not by a model"
    return f"{visible(model)} plays a script; no model is asked"


def offline_words(run: RunRecord) -> str:
    """The same of a run, with the reason where nobody chose this."""
    words = stand_in_words(run.model)
    return next((note for note in map(note_of, run.notices) if words and words in note), words)


def run_notes(run: RunRecord) -> list[str]:
    """What the person should know beside that."""
    return [note for note in map(note_of, run.notices) if note != offline_words(run)]


def place_of(run: RunRecord, turn: EngineTurn | None) -> str:
    """Where a run is: its workflow, the step and the agent of a turn."""
    return _joined_names(run.workflow, turn and turn.node, (turn and turn.agent) or run.agent)


def who(turn: EngineTurn) -> str:
    """Agent and node of a workflow."""
    return _joined_names(turn.agent, turn.node)


def _joined_names(*names: str | None) -> str:
    return " · ".join(one_line(visible(name), NAME_CHARS) for name in names if name)


def facts_of(run: RunRecord, *, elapsed_ms: float | None = None) -> list[Fact]:
    """The numbers of the head, and before them where a workflow is.

    Args:
        run: the record, as far as it goes.
        elapsed_ms: of a run that is at work.
    """
    turns, usage = run.turns, run.usage
    calls = sum(len(turn.tool_runs) for turn in turns)
    place = place_of(run, turns[-1] if turns else None)
    facts = [Fact(place)] if place else []
    facts.append(_number(things(len(turns), "turn")))
    if calls:
        facts.append(_number(things(calls, "call")))
    if usage.total_tokens:
        facts.append(_number(things(usage.total_tokens, "token"), _cached_words(usage)))
    if run.cost_usd:
        facts.append(Fact(money(run.cost_usd)))
    time = seconds(run.duration_ms if elapsed_ms is None else elapsed_ms)
    recorded = [words for turn in turns if (words := recorded_words(turn))]
    return [*facts, _number(time, recorded[0] if recorded else "")]


def _number(text: str, aside: str = "") -> Fact:
    value, _, word = text.rpartition(" ")
    return Fact(value, word, f"({aside})" if aside else "")


def facts_line(run: RunRecord) -> str:
    """The numbers of the head in one line."""
    return " · ".join(" ".join(filter(None, fact)) for fact in facts_of(run))


def _cached_words(usage: Usage) -> str:
    told = [(usage.cached_tokens, "cached"), (usage.cache_write_tokens, "written to the cache")]
    return ", ".join(f"{tokens:,} {word}" for tokens, word in told if tokens)


def about(run: RunRecord) -> str:
    """What run this is: its id, its name, what it came from, its tags."""
    words = [f"run {run.id[:8]}"]
    if run.name:
        words.append(one_line(visible(run.name), NAME_CHARS))
    if run.parent_id:
        words.append(origin(run))
    words += [f"#{one_line(visible(tag), 80)}" for tag in run.tags[:20]]
    return " · ".join(words)


def origin(run: RunRecord) -> str:
    """`continues 1a2b3c4d`, `forked from 1a2b3c4d at C03`."""
    how = {"continue": "continues", "resume": "resumes", "fork": "forked from"}
    at = f" at {visible(run.forked_from)}" if run.forked_from else ""
    return f"{how.get(run.kind, 'after')} {(run.parent_id or '')[:8]}{at}"


def next_step(run: RunRecord) -> str:
    """What a person types to go on, where there are no buttons."""
    if run.phase in ("Running", "Completed"):
        return ""
    return "%agent resume goes on" if is_unfinished(run) else "%%agent --continue goes on"


def answering_turn(run: RunRecord) -> EngineTurn | None:
    """The turn whose text is the answer."""
    last = run.turns[-1] if run.turns and run.phase != "Running" else None
    return last if last and last.text.strip() and not last.tool_runs else None


def answer_note(run: RunRecord) -> str:
    """Whether the answer is only a part of one."""
    is_part = run.phase == "Failed" or run.stop_reason in ("length", "content_filter")
    return "only a part of the answer" if is_part else ""


def ending(run: RunRecord) -> str:
    """Why a run ended without an answer, and what to do next: one line; else empty."""
    status = status_of(run)
    if run.error is None:
        return ""
    if status.word == "Stopped":
        return f"■ Stopped. {_HELP['ENGINE_ABORTED']}"
    words = f"{'✕' if status.tone == 'bad' else status.mark} {error_words(run.error)}"
    help_words = error_help(run.error)
    stop = "" if words.endswith((".", "!", "?")) else "."
    return f"{words}{stop} {help_words}" if help_words else words


# Errors and notes


def note_of(text: str) -> str:
    """A note within its limit."""
    return one_line(visible(text), _NOTE_CHARS)


def error_words(error: ErrorInfo | None) -> str:
    """`CODE: message`; empty when there is no error. What a model's server said is one line."""
    if error is None:
        return ""
    words = visible(f"{error.code}: {error.message}")
    said_by_server = error.code in _HELP and error.code != "LLM_CONTEXT_OVERFLOW"
    return one_line(words, _ERROR_CHARS) if said_by_server else words


def error_help(error: ErrorInfo) -> str:
    """What a person can do about an error; empty where the message says it itself."""
    # What a server says may hold any words.
    own = "%agent " if error.code.startswith("ENGINE_") else "Nothing is lost: "
    return "" if own in error.message else _HELP.get(error.code, "")


def failure_of(turn: EngineTurn) -> str:
    """The error of a turn; a limit or a stop ended the run, not the turn."""
    return error_words(turn.error) if is_failure(turn.error) else ""


def is_failure(error: ErrorInfo | None) -> bool:
    """Whether an error is a failure of the model, not an end that the engine made."""
    return error is not None and not error.code.startswith("ENGINE_")


def notes_of(turn: EngineTurn) -> list[str]:
    """How a turn's response came to be, the moves of a workflow, and what it was told."""
    response, waited = turn.response, f"waited {seconds(turn.retry_wait_ms)}"
    notes = [waited] if turn.retry_wait_ms else []
    if turn.attempts > 1:
        notes = [f"{turn.attempts - 1} retr{'y' if turn.attempts == 2 else 'ies'}, {waited}"]
    dropped = response.meta.dropped_params if response else ()
    # Those that an earlier refusal kept out; its own notices name the others.
    names = [name for name in dropped if not any(name in text for text in turn.notices)]
    if names:
        notes.append(f"left out, because the server refused it: {visible(', '.join(names))}")
    if response and response.finish_reason == "length":
        notes.append("cut off at the limit of tokens")
    if response and response.finish_reason == "content_filter":
        notes.append("cut off by the provider's content filter")
    moves = filter(None, map(_move_words, turn.tool_runs))
    return [*notes, *moves, *map(note_of, turn.notices)]


def _move_words(run: ToolRun) -> str:
    result = run.result
    if run.host != "fs" or run.tool_name != "fs.apply_patch" or result is None:
        return ""
    held = result.data if result.ok else result.error and result.error.details
    move = json_object((json_object(held) or {}).get("transition"))
    if move is None:
        return ""
    label = f" ({move['label']})" if move.get("label") else ""
    way = f"{move.get('from')} → {move.get('to') or 'end'}{label}"
    why = f": {result.error.message}" if result.error else ""
    return note_of(way if result.ok else one_line(f"refused: {way}{why}", _REASON_CHARS))


# A turn's line


def first_words(text: str) -> str:
    """The start of a turn's text on one line: what stands before a table or a listing."""
    nodes = nodes_of(clean(text[:4_000]))
    wide = (i for i, n in enumerate(nodes) if not isinstance(n, str) and n[0] in ("table", "div"))
    return one_line(words_of(nodes[: next(wide, None) or len(nodes)]), 110)


def numbers(turn: EngineTurn) -> str:
    """`428 tok · 1.1 s`."""
    usage = turn.response.usage if turn.response else None
    tokens = f"{usage.total_tokens:,} tok" if usage and usage.total_tokens else ""
    words = (tokens, seconds(turn.duration_ms), recorded_words(turn))
    return " · ".join(filter(None, words))


def recorded_words(turn: EngineTurn) -> str:
    """`replay` or `from cache` where a record answered: one word, that nbval can drop."""
    words = {"hit": "from cache", "replay": "replay"}
    return words.get(turn.response.meta.source, "") if turn.response else ""


def outcome(run: ToolRun, *, pending: str = "") -> Outcome:
    """What became of a call, in a few words; `pending` is said of one without a result."""
    result = run.result
    if result is None:
        return Outcome(f"… {pending}".rstrip())
    if not result.ok:
        code = result.error.code if result.error else "E_INTERNAL"
        if result.error and (result.error.details or {}).get("held"):
            return Outcome("runs when this answer is chosen")
        if code == "E_DENIED":
            by = _DECIDERS.get(run.approved_by or "", "")
            return Outcome(f"✕ denied by {by}" if by else "✕ denied", is_bad=True)
        return Outcome(f"✕ {code}", is_bad=True)
    if move := _move_words(run):
        return Outcome(f"→ {move}")
    if result.data is None and result.attachments:
        return Outcome(f"→ {things(len(result.attachments), 'attachment')}")
    return Outcome(f"→ {in_short(result.data)}")


# A tool run


def where(run: ToolRun) -> str:
    """Where a call ran and how long: `main thread · 12 ms`."""
    if run.started_at is None:
        return "did not run" if run.result else ""
    if run.result is None:
        return ""
    return " · ".join(filter(None, (run.ran_in, seconds(run.duration_ms))))


def decision_words(run: ToolRun) -> str:
    """What was said to a call, and by whom; empty when nobody had to be asked."""
    if not run.approval:
        return ""
    by = run.approved_by or ""
    words = one_line(visible(run.approval), NAME_CHARS)
    if by == "nobody":
        return f"{words}: approval needed but nobody can answer"
    if by:
        words = "arguments edited" if words == "edited" else words
        if words == "allowed" and by == "person" and run.reason:
            words += f" {one_line(visible(run.reason), _REASON_CHARS)}"  # for the session (…)
        words += f" by {_DECIDERS.get(by) or one_line(visible(by), NAME_CHARS)}"
    return f"{words} after {seconds(run.waited_ms)}" if run.waited_ms else words


def tool_notes(run: ToolRun) -> list[str]:
    """What is said about a call beside its result."""
    notes: list[str] = []
    if run.repeat_n > 1:
        notes.append(f"call number {run.repeat_n} with these arguments")
    if run.truncated:
        notes.append("the result was cut to fit before the model saw it")
    return [*notes, *map(note_of, run.notes)]


# A request


def request_words(request: TurnRequest) -> str:
    """`request · 2 new messages of 4 · 3 tools`."""
    new = things(request.n_new, "new message")
    words = [f"request · {new} of {request.n_messages:,}"]
    if request.n_tools:
        words.append(things(request.n_tools, "tool"))
    if n := len(request.trimmed):
        words.append(f"{things(n, 'old tool result')} shortened")
    return " · ".join(words)
