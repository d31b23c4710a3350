"""One turn of a record → its part of the picture: line, cards, request, times.

Pure. What a run adds around its turns is in `view_state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from nbagent.contracts.canonical import json_object
from nbagent.contracts.chat import MAX_DEPTH, Message, ToolSpec
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import EngineTurn, ToolResult, ToolRun, TurnRequest
from nbagent.view.old_images import part_words, pictures_of
from nbagent.view.old_markdown import MAX_CHARS, Node, tree_of, words_of
from nbagent.view.view_types import (
    Block,
    CallWords,
    MessageView,
    RequestView,
    Segment,
    Summary,
    ToolPhase,
    ToolView,
    TurnView,
)
from nbagent.view.words import (
    arguments_in_short,
    as_text,
    clean,
    count,
    cut,
    duration,
    in_short,
    one_line,
    seconds,
    tool_title,
    visible,
)

REASONING_CHARS = 12_000
ARGUMENTS_CHARS = 4_000
RESULT_CHARS = 3_000
_MESSAGE_CHARS = 600
_SYSTEM_CHARS = 3_000
_CALLS_IN_LINE = 4
_WIDE = ("table", "pre")
_ERROR_CHARS = 600
_NAME_CHARS = 160
_NOTE_CHARS = 1_000
_REFUSAL_CHARS = 300
_DECIDERS = {
    "person": "the person",
    "callback": "on_approval",
    "session": "an earlier answer for the session",
    "policy": "the policy",
}
_ASKED = ("person", "callback")
_DECIDED = {"allowed": "✓ allowed", "edited": "✎ edited", "denied": "✕ denied"}
_RECORDED = {"hit": "from cache", "replay": "replay"}
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
}


def block(text: str, limit: int, *, has_all: str) -> Block:
    """A text within its limit."""
    shown, note = cut(text, limit, has_all=has_all)
    return {"text": shown, "note": note}


def note_of(text: str) -> str:
    """A note within its limit."""
    return one_line(visible(text), _NOTE_CHARS)


def empty_turn(turn_id: str) -> TurnView:
    """A turn of which nothing is known yet."""
    return {
        "id": turn_id,
        "phase": "running",
        "who": "",
        "summary": {"calls": [], "more": 0, "text": "", "error": ""},
        "numbers": "",
        "reasoning": {"text": "", "note": ""},
        "text": {"text": "", "note": ""},
        "tree": [],
        "drafts": [],
        "tools": [],
        "request": {
            "words": "",
            "earlier": "",
            "messages": [],
            "tools": "",
            "params": "",
            "system": {"text": "", "note": ""},
        },
        "notices": [],
        "error": "",
    }


def turn_view(turn: EngineTurn, place: int, request: RequestView) -> TurnView:
    """The part of one turn.

    Args:
        turn: the turn, whole or (while its tools run) without their results.
        place: its place in `run.turns`, from 0: the notes on cut texts name it.
        request: from `request_view`.
    """
    path = f"run.turns[{place}]"
    view = empty_turn(turn.id)
    message = turn.response.message if turn.response else None
    if message is not None:
        reasoning = clean(message.reasoning or "")
        view["reasoning"] = block(
            reasoning, REASONING_CHARS, has_all=f"{path}.response.message.reasoning"
        )
        view["text"] = block(clean(message.text), MAX_CHARS, has_all=f"{path}.text")
        view["tree"] = tree_of(view["text"]["text"])
    view["phase"] = "failed" if _is_failure(turn.error) else "done"
    names = (one_line(visible(name), _NAME_CHARS) for name in (turn.agent, turn.node) if name)
    view["who"] = " · ".join(names)
    view["tools"] = [
        tool_view(run, f"{path}.tool_runs[{i}]", written=written_by_model(turn, run))
        for i, run in enumerate(turn.tool_runs)
    ]
    view["request"] = request
    view["notices"] = [*_told_by(turn), *moves_of(turn), *map(note_of, turn.notices)]
    view["error"] = error_words(turn.error)
    # A limit or a stop ended the run, not this turn; the run's own line says so.
    failure = turn.error if _is_failure(turn.error) else None
    view["summary"] = summary_of(turn.tool_runs, view["tree"], failure)
    view["numbers"] = _numbers(turn)
    return view


def error_words(error: ErrorInfo | None) -> str:
    """`CODE: message`; empty when there is no error. What a model's server said is one line."""
    if error is None:
        return ""
    words = visible(f"{error.code}: {error.message}")
    said_by_server = error.code in _HELP and error.code != "LLM_CONTEXT_OVERFLOW"
    return one_line(words, _ERROR_CHARS) if said_by_server else words


def error_help(error: ErrorInfo | None) -> str:
    """What a person can do about a model's failure; empty where the message says it itself."""
    if error is None or "Nothing is lost: " in error.message:
        return ""
    return _HELP.get(error.code, "")


def _is_failure(error: ErrorInfo | None) -> bool:
    return error is not None and not error.code.startswith("ENGINE_")


def recorded_words(turn: EngineTurn) -> str:
    """`replay` or `from cache` where a record answered: one word, that nbval can drop."""
    return _RECORDED.get(turn.response.meta.source, "") if turn.response else ""


def _numbers(turn: EngineTurn) -> str:
    usage = turn.response.usage if turn.response else None
    words = recorded_words(turn)
    time = seconds(turn.duration_ms) + (f" · {words}" if words else "")
    return f"{count(usage.total_tokens)} tok · {time}" if usage and usage.total_tokens else time


def waits_of(turn: EngineTurn) -> str:
    """How often a turn's request was made again, and how long it waited."""
    waited = f"waited {seconds(turn.retry_wait_ms)}"
    if turn.attempts > 1:
        times = "1 retry" if turn.attempts == 2 else f"{turn.attempts - 1} retries"
        return f"{times}, {waited}"
    return waited if turn.retry_wait_ms else ""


def left_out(turn: EngineTurn) -> str:
    """The parameters that an earlier refusal kept out of this turn; its own notices name others."""
    dropped = turn.response.meta.dropped_params if turn.response else ()
    names = [name for name in dropped if not any(name in text for text in turn.notices)]
    said = ", ".join(map(visible, names))
    return f"left out, because the server refused it: {said}" if said else ""


def moves_of(turn: EngineTurn) -> list[str]:
    """The moves of a workflow that a turn made, and those that were refused."""
    return [words for run in turn.tool_runs if (words := _move_words(run))]


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
    return note_of(way if result.ok else one_line(f"refused: {way}{why}", _REFUSAL_CHARS))


def _told_by(turn: EngineTurn) -> list[str]:
    """What a turn says about how its response came to be."""
    told = [words for words in (waits_of(turn), left_out(turn)) if words]
    if turn.response is None:
        return told
    if turn.response.finish_reason == "length":
        told.append("cut off at the limit of tokens")
    if turn.response.finish_reason == "content_filter":
        told.append("cut off by the provider's content filter")
    return told


def summary_of(
    runs: Sequence[ToolRun], tree: Sequence[Node], error: ErrorInfo | None = None
) -> Summary:
    """A turn's line."""
    words = "" if runs else one_line("".join(words_of(_before_table(tree))), 110)
    return {
        "calls": [_call_words(run) for run in runs[:_CALLS_IN_LINE]],
        "more": max(0, len(runs) - _CALLS_IN_LINE),
        "text": words,
        "error": one_line(error_words(error), 110),
    }


def _before_table(tree: Sequence[Node]) -> Sequence[Node]:
    """What reads as a line: the text before the first table or listing, if there is any."""
    wide = (i for i, node in enumerate(tree) if not isinstance(node, str) and node[0] in _WIDE)
    return tree[: next(wide, None) or len(tree)]


def _call_words(run: ToolRun) -> CallWords:
    result = run.result
    outcome = ""
    if result is not None:
        outcome = in_short(result.data) if result.ok else _code(result)
        outcome = (_move_words(run) if result.ok else "") or outcome
        if result.ok and result.data is None and result.attachments:
            outcome = "1 image" if len(result.attachments) == 1 else "images"
    words: CallWords = {
        "name": one_line(visible(run.display_name or run.tool_name), 48),
        "arguments": arguments_in_short(escapes_seen(run.args)),
        "phase": _phase(run),
        "outcome": outcome,
    }
    if run.approval in _DECIDED and run.approved_by in _ASKED:
        words["decided"] = _DECIDED[run.approval]
    return words


def escapes_seen(arguments: dict[str, Any] | None) -> dict[str, Any] | None:
    """Arguments whose escape characters are seen: a colour code is bytes that are written too."""
    return cast("dict[str, Any] | None", _seen(arguments, MAX_DEPTH))


def _seen(value: Any, levels: int) -> Any:
    if isinstance(value, str):
        return value.replace("\x1b", "⟦U+001B⟧")
    if isinstance(value, dict) and levels:
        items = cast("dict[Any, Any]", value)
        return {_seen(k, levels - 1): _seen(v, levels - 1) for k, v in items.items()}
    if isinstance(value, list | tuple) and levels:
        return [_seen(item, levels - 1) for item in cast("Sequence[Any]", value)]
    return cast("Any", value)


def _phase(run: ToolRun) -> ToolPhase:
    if run.result is None:
        return "running" if run.started_at else "queued"
    return "ok" if run.result.ok else "failed"


def _code(result: ToolResult) -> str:
    return result.error.code if result.error else "E_INTERNAL"


def written_by_model(turn: EngineTurn | None, run: ToolRun) -> dict[str, Any] | None:
    """The arguments of a call before a person changed them; None when nobody did."""
    if run.approval != "edited" or turn is None or turn.response is None:
        return None
    calls = turn.response.message.tool_calls
    return next((call.arguments for call in calls if call.id == run.tool_call_id), None)


def tool_view(run: ToolRun, path: str, *, written: dict[str, Any] | None = None) -> ToolView:
    """A tool run's card.

    Args:
        run: the tool run.
        path: how Python gets at it.
        written: the model's own arguments, when a person changed them.
    """
    result = run.result
    phase = _phase(run)
    word = _code(result) if result and not result.ok else "" if phase == "ok" else phase
    data = "" if result is None or not result.ok else _data_text(result)
    arguments = (
        "not a JSON object" if run.args is None else as_text(escapes_seen(run.args), enough=8_000)
    )
    error = visible(result.error.message)[:RESULT_CHARS] if result and result.error else ""
    detail = visible(run.error_detail or "")
    images, unseen = pictures_of(result.attachments if result else ())
    given = "" if written is None else as_text(escapes_seen(written), enough=8_000)
    return {
        "key": run.tool_call_id,
        "name": one_line(visible(tool_title(run.tool_name, run.display_name)), _NAME_CHARS),
        "phase": phase,
        "word": word,
        "where": _where(run) if result else "",
        "arguments": block(arguments, ARGUMENTS_CHARS, has_all=f"{path}.args"),
        "given": block(given, ARGUMENTS_CHARS, has_all="the call in its turn's response"),
        "decision": decision_words(run),
        "result": block(data, RESULT_CHARS, has_all=_holder(run, path)),
        "error": "" if error in detail else error,
        "detail": block(detail, RESULT_CHARS, has_all=f"{path}.error_detail"),
        "notes": [*_tool_notes(run), *unseen],
        "images": images,
        "progress": "",
        "question": None,
    }


def _holder(run: ToolRun, path: str) -> str:
    """Where the whole result is, as far as it was kept."""
    return f"{path}.result (itself cut, as the model saw it)" if run.truncated else f"{path}.result"


def _data_text(result: ToolResult) -> str:
    if result.data is None and result.attachments:
        return ""
    return as_text(result.data, enough=RESULT_CHARS * 2)


def _where(run: ToolRun) -> str:
    if run.started_at is None:
        return "did not run"
    time = duration(run.duration_ms)
    return f"{run.ran_in} · {time}" if run.ran_in else time


def decision_words(run: ToolRun) -> str:
    """What was said to a call, and by whom; empty when nobody had to be asked."""
    if not run.approval:
        return ""
    by = run.approved_by or ""
    words = one_line(visible(run.approval), _NAME_CHARS)
    if by == "nobody":
        words += ": nobody was there who could be asked"
    elif by:
        words = "arguments edited" if words == "edited" else words
        words += f" by {_DECIDERS.get(by) or one_line(visible(by), _NAME_CHARS)}"
    return f"{words} after {seconds(run.waited_ms)}" if run.waited_ms else words


def _tool_notes(run: ToolRun) -> list[str]:
    notes: list[str] = []
    if run.repeat_n > 1:
        notes.append(f"call number {run.repeat_n} with these arguments")
    if run.truncated:
        notes.append("the result was cut to fit before the model saw it")
    return [*notes, *map(note_of, run.notes)]


def request_view(
    request: TurnRequest,
    new: Sequence[Message],
    *,
    tools: Sequence[ToolSpec],
    system_prompt: str,
    same_as: str = "",
) -> RequestView:
    """What a turn sent, the new first.

    Args:
        request: the request's references.
        new: its new messages, as far as they are the run's own.
        tools: what the model was shown.
        system_prompt: the text before all messages.
        same_as: id of the turn before, when tools and system prompt are as there.
    """
    messages = "message" if request.n_new == 1 else "messages"
    words = [f"request · {count(request.n_new)} new {messages} of {count(request.n_messages)}"]
    if request.n_tools:
        words.append("1 tool" if request.n_tools == 1 else f"{request.n_tools} tools")
    if n := len(request.trimmed):
        words.append(f"{n} old tool result{'s' * (n != 1)} shortened")
    earlier = request.n_new - len(new)
    names = ", ".join(visible(tool.name) for tool in tools)
    params = ", ".join(f"{visible(k)}={in_short(v)}" for k, v in request.params.items())
    system = f"as in {same_as}" if same_as and system_prompt else visible(system_prompt)
    return {
        "words": " · ".join(words),
        "earlier": f"{earlier} of them from the run before" if earlier > 0 else "",
        "messages": [_message_view(message) for message in new],
        "tools": f"as in {same_as}" if same_as and names else names,
        "params": params,
        "system": block(system, _SYSTEM_CHARS, has_all="run.request_of(turn)"),
    }


def _message_view(message: Message) -> MessageView:
    pieces = [part_words(part) for part in message.content]
    pieces += [
        f"{visible(call.name)}({arguments_in_short(call.arguments)})" for call in message.tool_calls
    ]
    role = message.role
    if message.name:
        role += f" {one_line(visible(message.name), _NAME_CHARS)}"
    body = block("\n".join(pieces), _MESSAGE_CHARS, has_all="run.messages")
    # A tool's pictures stand in its card.
    images = pictures_of(message.content)[0] if message.role != "tool" else []
    return {"role": role, "body": body, "images": images}


def segments_of(turn: EngineTurn) -> list[Segment]:
    """Where the time of a turn went. Which pieces there are depends on events, not on times."""
    model = turn.model_ms
    if not model and not turn.tool_runs:
        model = turn.duration_ms - turn.retry_wait_ms
    pieces: list[Segment] = []
    if turn.attempts > 1 or turn.retry_wait_ms:
        kind = "bad" if turn.attempts > 1 else "wait"
        pieces.append({"kind": kind, "ms": turn.retry_wait_ms, "turn": turn.id})
    kind = "bad" if _is_failure(turn.error) else "model"
    pieces.append({"kind": kind, "ms": model, "turn": turn.id})
    runs = [run for run in turn.tool_runs if run.result is not None]
    if not runs:
        return _rounded(pieces)
    rest = max(0.0, turn.duration_ms - model - turn.retry_wait_ms)
    # All calls of a turn begin together, so their waits lie upon one another.
    waited = min(max(run.waited_ms for run in runs), rest)
    if waited:
        pieces.append({"kind": "wait", "ms": waited, "turn": turn.id})
    # A call that was denied never began, so no time went to it.
    began = [run for run in runs if run.started_at or (run.result and run.result.ok)]
    failed = [run for run in began if run.result and not run.result.ok]
    total = sum(run.duration_ms for run in began)
    share = (
        sum(run.duration_ms for run in failed) / total
        if total
        else len(failed) / max(1, len(began))
    )
    if len(failed) < len(began):
        pieces.append({"kind": "tool", "ms": (rest - waited) * (1 - share), "turn": turn.id})
    if failed:
        pieces.append({"kind": "bad", "ms": (rest - waited) * share, "turn": turn.id})
    return _rounded(pieces)


def _rounded(pieces: list[Segment]) -> list[Segment]:
    for piece in pieces:
        piece["ms"] = round(max(0.0, piece["ms"]), 1)
    return pieces
