"""A stored run → its picture, from which the live view and the static form are both drawn.

Pure: `view_of(record)`. Folding events into the same picture is `live_state`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from nbagent.contracts.chat import Message, Usage
from nbagent.contracts.policy import Limits
from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.view.view_turn import (
    error_help,
    error_words,
    note_of,
    recorded_words,
    request_view,
    segments_of,
    turn_view,
)
from nbagent.view.view_types import (
    Fact,
    NextStep,
    RequestView,
    Segment,
    Status,
    TurnView,
    ViewState,
)
from nbagent.view.words import count, money, one_line, seconds, visible

VERSION = 1
_BAR_WORDS = {
    "model": "model",
    "tool": "tools",
    "wait": "waiting for you",
    "bad": "retries and failures",
}


def view_of(record: RunRecord) -> ViewState:
    """The whole picture of a run, as far as its record goes."""
    turns: list[TurnView] = []
    bar: list[Segment] = []
    for place, turn in enumerate(record.turns):
        turns.append(turn_view(turn, place, _request_of(record, place)))
        bar += segments_of(turn)
    running = record.phase == "Running"
    status = status_of(record)
    answer = _answering_turn(record)
    return {
        "version": VERSION,
        "run_id": record.id[:8],
        "about": _about(record),
        "model": visible(record.model),
        "offline": offline_words(record.model),
        "status": status,
        "activity": "",
        "wait_ms": 0.0,
        "running": running,
        "doing": "model" if running else "",
        "facts": facts_of(record, record.turns, record.usage, record.cost_usd, record.duration_ms),
        "elapsed_ms": round(record.duration_ms, 1),
        "bar": bar,
        "bar_words": bar_words(bar),
        "notices": [note_of(notice) for notice in record.notices],
        "turns": turns,
        "answer": answer.id if answer else "",
        "answer_note": _answer_note(record) if answer else "",
        "error": error_words(record.error),
        "error_mark": "✕" if status["tone"] == "bad" else status["mark"],
        "error_help": error_help(record.error),
        "next": [] if running else _next_steps(record),
    }


def own_messages(record: RunRecord, n_messages: int, n_new: int) -> Sequence[Message]:
    """Of a request's new messages those that the record itself has, not its parent."""
    end = n_messages - record.shared_messages
    return record.messages[max(0, end - n_new) : max(0, end)]


def _request_of(record: RunRecord, place: int) -> RequestView:
    request = record.turns[place].request
    before = record.turns[place - 1] if place else None
    same = (
        before is not None
        and before.request.system_sha == request.system_sha
        and before.request.toolset_sha == request.toolset_sha
    )
    return request_view(
        request,
        own_messages(record, request.n_messages, request.n_new),
        tools=record.toolsets.get(request.toolset_sha, ()),
        system_prompt=record.system_prompts.get(request.system_sha, ""),
        same_as=before.id if before is not None and same else "",
    )


def place_of(run: RunRecord, turn: EngineTurn | None) -> str:
    """Where a run is: its workflow, the step and the agent of a turn."""
    names = (run.workflow, turn and turn.node, (turn and turn.agent) or run.agent)
    return " · ".join(one_line(visible(name), 160) for name in names if name)


def offline_words(model: str) -> str:
    """Says that no model answers, where none does."""
    if not is_offline(model):
        return ""
    if model == "offline:demo":
        return f"{visible(model)} answers by rules, not by a model"
    return f"{visible(model)} plays a script; no model is asked"


def is_offline(model: str) -> bool:
    """Whether a model id belongs to a rule-based stand-in."""
    return model.startswith("offline:")


def status_of(record: RunRecord) -> Status:
    """The state of a run in a person's words."""
    code = record.error.code if record.error else ""
    status = status_words(record.phase, record.stop_reason, code, record.limits)
    if record.workflow and status["word"] == "Answered":
        return {"word": "Waiting for you", "tone": "waits", "mark": "‖"}
    return status


def status_words(phase: str, reason: str | None, code: str | None, limits: Limits | None) -> Status:
    """The same from a run's line in the store, where its limits are not told."""
    match phase:
        case "Running":
            return {"word": "Running", "tone": "live", "mark": "…"}
        case "Completed":
            return {"word": "Completed", "tone": "ok", "mark": "✓"}
        case "Failed":
            if reason == "stopped":
                return {"word": "Stopped", "tone": "waits", "mark": "■"}
            most = f"{limits.ceiling} requests" if limits else "its ceiling"
            word = f"Failed: {most}" if reason == "max_turns" else "Failed"
            if code == "ENGINE_INTERRUPTED":
                word = "Interrupted"
            return {"word": word, "tone": "bad", "mark": "✕"}
        case _:
            if reason in ("answered", None):
                return {"word": "Answered", "tone": "ok", "mark": "✓"}
            most = limits and limits.max_turns
            turns = f"{most} turn{'s' * (most != 1)}" if most else "turns used up"
            why = {
                "max_turns": f": {turns}",
                "loop_detected": ": the same calls again",
                "budget": ": budget used up",
                "length": ": answer cut at its length",
                "content_filter": ": content filter",
            }
            if code == "LLM_CONTEXT_OVERFLOW":
                why["length"] = ": the request is too long"
            return {"word": f"Paused{why.get(reason, '')}", "tone": "waits", "mark": "‖"}


def facts_of(
    run: RunRecord,
    turns: Sequence[EngineTurn],
    usage: Usage,
    cost_usd: float | None,
    duration_ms: float,
) -> list[Fact]:
    """The numbers of the header, and before them where a workflow is."""
    calls = sum(len(turn.tool_runs) for turn in turns)
    place = place_of(run, turns[-1] if turns else None)
    facts = [_fact("place", place, "")] if place else []
    facts += [_fact("turns", count(len(turns)), "turn" if len(turns) == 1 else "turns")]
    if calls:
        facts.append(_fact("calls", count(calls), "call" if calls == 1 else "calls"))
    if usage.total_tokens:
        facts.append(_fact("tokens", count(usage.total_tokens), "tokens", _of_cache(usage)))
    if cost_usd is not None:
        facts.append(_fact("cost", money(cost_usd), ""))
    time, _, unit = seconds(duration_ms).rpartition(" ")
    recorded = next((words for turn in turns if (words := recorded_words(turn))), "")
    facts.append(_fact("time", time, unit, f"({recorded})" if recorded else ""))
    return facts


def _of_cache(usage: Usage) -> str:
    told = [(usage.cached_tokens, "cached"), (usage.cache_write_tokens, "written to the cache")]
    words = ", ".join(f"{count(tokens)} {word}" for tokens, word in told if tokens)
    return f"({words})" if words else ""


def _fact(key: str, value: str, word: str, aside: str = "") -> Fact:
    return {"key": key, "value": value, "word": word, "aside": aside}


def bar_words(bar: Sequence[Segment]) -> str:
    """The time bar as words and figures."""
    sums: dict[str, float] = {}
    for piece in bar:
        sums[piece["kind"]] = sums.get(piece["kind"], 0.0) + piece["ms"]
    return " · ".join(f"{_BAR_WORDS[k]} {seconds(sums[k])}" for k in _BAR_WORDS if k in sums)


def _answering_turn(record: RunRecord) -> EngineTurn | None:
    if record.phase == "Running" or not record.turns:
        return None
    last = record.turns[-1]
    return last if last.text.strip() and not last.tool_runs else None


def _answer_note(record: RunRecord) -> str:
    if record.phase == "Failed" or record.stop_reason in ("length", "content_filter"):
        return "only a part of the answer"
    return ""


def _about(record: RunRecord) -> str:
    words = [f"run {record.id[:8]}"]
    if record.name:
        words.append(one_line(visible(record.name), 160))
    if record.parent_id:
        how = {"continue": "continues", "resume": "resumes", "fork": "forked from"}
        words.append(f"{how.get(record.kind, 'after')} {record.parent_id[:8]}")
    words += [f"#{one_line(visible(tag), 80)}" for tag in record.tags[:20]]
    return " · ".join(words)


def _next_steps(record: RunRecord) -> list[NextStep]:
    go_on: NextStep = {"words": "the next message", "type": "%%agent --continue"}
    resume: NextStep = {"words": "go on from here", "type": "%agent resume"}
    show: NextStep = {"words": "shows it again", "type": f"%agent show {record.id[:8]}"}
    if record.phase == "Completed":
        return [show]
    answered = record.phase == "WaitingUser" and record.stop_reason in ("answered", None)
    return [go_on, show] if answered else [resume, go_on, show]
