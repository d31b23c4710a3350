"""Records as rows: what the store and a saved notebook keep of a run. Pure.

A row is a dictionary by the columns of `schema`, of JSON values. Each text, picture and message
stands in it once: a response and a tool's message refer to where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from nbagent.archive.schema import TOKENS
from nbagent.contracts.canonical import dump_json, sha256_hex, sha_of
from nbagent.contracts.chat import (
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCall,
    ToolSpec,
    Usage,
    parse_arguments,
)
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import (
    EngineTurn,
    RunRecord,
    ToolRun,
)
from nbagent.contracts.secrets import redact

Row = dict[str, Any]
Rows = dict[str, list[Row]]
"""By the name of their table."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LARGEST = 2**63 - 1
RUN_FIELDS = (
    *("session", "parent_id", "shared_messages", "kind", "forked_from", "name", "notebook"),
    *("cell_id", "execution_count", "template", "prompt", "phase", "stop_reason", "agent"),
    *("workflow", "model", "nbagent_version"),
)
"""Fields that a row holds as the record does."""
TURN_FIELDS = (
    *("phase_before", "phase_after", "stop_reason", "agent", "node", "attempts", "retry_wait_ms"),
    *("cost_usd", "cost_input_usd", "cost_cached_usd", "cost_output_usd", "saved_usd"),
    *("duration_ms", "model_ms", "ttft_ms"),
)
_META = {"source", "dropped_params"}
REQUEST_FIELDS = ("n_messages", "n_new", "n_tools")
TOOL_RUN_FIELDS = (
    *("tool_call_id", "host", "tool_name", "args", "asked_args", "reason", "truncated"),
    *("approval", "approved_by", "waited_ms", "duration_ms", "ran_in", "isolation", "repeat_n"),
    "tool_sha",
)


def to_us(moment: datetime) -> int:
    """Microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def from_us(value: int) -> datetime:
    """The moment, in UTC."""
    return _EPOCH + timedelta(microseconds=value)


def run_row(run: RunRecord) -> Row:
    """A run without its texts, turns and messages; once it has ended, with the sums over them."""
    version = run.template if run.template is not None else run.prompt
    own = run.id if run.kind in ("start", "fork") or run.parent_id is None else None
    row: Row = {
        **{name: getattr(run, name) for name in RUN_FIELDS},
        "run_id": run.id,
        "conversation_id": own,
        "root_id": None if run.parent_id else run.id,
        "tags": run.tags,
        "template_sha": sha256_hex(redact(version)) if version else None,
        "server": run.base_url,
        "started_at": to_us(run.started_at),
        **_error_cells(run.error),
        "doc": _doc(
            version=run.version,
            options=run.options,
            limits=run.limits.model_dump(mode="json"),
            notices=run.notices,
            error_details=run.error and run.error.details,
        ),
    }
    return row if run.phase == "Running" else row | _sums(run)


def _sums(run: RunRecord) -> Row:
    calls = [it for turn in run.turns for it in turn.tool_runs]
    counted = run.usage != Usage() or any(it.response and it.response.usage for it in run.turns)
    last = run.turns[-1].request if run.turns else None
    return {
        "ended_at": run.ended_at and to_us(run.ended_at),
        "duration_ms": run.duration_ms,
        "turns": len(run.turns),
        "tool_calls": len(calls),
        "tool_errors": sum(it.result is not None and not it.result.ok for it in calls),
        **_usage_cells(run.usage if counted else None),
        "n_unpriced": run.n_unpriced,
        "cost_usd": run.cost_usd,
        "model_ms": sum(turn.model_ms for turn in run.turns),
        "tools_ms": sum(_tools_ms(turn.tool_runs) for turn in run.turns),
        "waited_ms": sum(_waited_ms(turn.tool_runs) for turn in run.turns),
        "retry_wait_ms": sum(turn.retry_wait_ms for turn in run.turns),
        "params": run.turns[0].request.params if run.turns else None,
        "system_sha": (last and last.system_sha) or None,
        "toolset_sha": (last and last.toolset_sha) or None,
    }


def turn_row(turn: EngineTurn, provider: str, message_at: int | None) -> Row:
    """A turn without its message and tool runs; `message_at` is the place of its response."""
    request, response = turn.request, turn.response
    meta = response.meta if response else None
    return {
        **{name: getattr(turn, name) for name in TURN_FIELDS},
        **{name: getattr(request, name) for name in REQUEST_FIELDS},
        "turn": turn.index,
        "open": False,
        "finish_reason": response and response.finish_reason,
        **_error_cells(turn.error),
        "model": f"{provider}:{request.model}",
        "served_model": (response and response.model) or None,
        "source": meta and meta.source,
        "tool_calls": len(response.message.tool_calls) if response else 0,
        **_usage_cells(response and response.usage),
        "started_at": to_us(turn.started_at),
        "tools_ms": _tools_ms(turn.tool_runs),
        "waited_ms": _waited_ms(turn.tool_runs),
        "dropped_params": (meta and meta.dropped_params) or None,
        "trimmed": len(request.trimmed.places) if request.trimmed else 0,
        "system_sha": request.system_sha or None,
        "toolset_sha": request.toolset_sha or None,
        "message_at": message_at,
        "doc": _doc(
            params=request.params,
            trimmed=request.trimmed and request.trimmed.model_dump(mode="json"),
            meta=meta
            and meta.model_dump(exclude_defaults=True, exclude={"source", "dropped_params"}),
            error_details=turn.error and turn.error.details,
            notices=turn.notices,
        ),
    }


def tool_run_row(run: ToolRun, turn: int, position: int, model: str) -> Row:
    """The run of the call at a place in the response of a turn."""
    result = run.result
    # Not all of it is in what a model is given.
    odd = result is not None and (
        result.error is not None if result.ok else result.data is not None or result.error is None
    )
    return {
        **{name: getattr(run, name) for name in TOOL_RUN_FIELDS},
        "turn": turn,
        "position": position,
        "model": model,
        "ok": result and result.ok,
        **_error_cells(result and result.error),
        "args_sha": None if run.args is None else sha_of(run.args),
        "result": result and result.body,
        "result_chars": result and len(result.to_json().decode()),
        "notes": run.notes or None,
        "queued_at": run.queued_at and to_us(run.queued_at),
        "started_at": run.started_at and to_us(run.started_at),
        "doc": _doc(
            error_detail=run.error_detail,
            display_name=run.display_name or None,
            attachments=result and _bodies(result.attachments),
            result=result.model_dump(mode="json", exclude={"attachments"})
            if odd and result
            else None,
        ),
    }


def message_row(message: Message, position: int, source: str, at: int) -> Row:
    """A message that is no tool's answer, or not the answer that its tool run gives."""
    content, text = message.content, message.text
    plain = not content or (len(content) == 1 and isinstance(content[0], TextPart) and text)
    return {
        "position": position,
        "role": message.role,
        "source": source,
        "text": text,
        "reasoning": message.reasoning,
        "tool_calls": [_call_body(call) for call in message.tool_calls] or None,
        "tool_call_id": message.tool_call_id,
        "tool_name": message.name,
        "chars": len(text),
        "has_image": any(isinstance(part, ImagePart) for part in content),
        "at": at,
        "doc": _doc(content=None if plain else _bodies(content), raw=message.raw),
    }


def turn_rows(turn: EngineTurn, messages: Sequence[Message], provider: str, position: int) -> Rows:
    """A finished turn with the messages that it added, the first one at `position`."""
    response, index = turn.response, turn.index
    at: int | None = None
    rows: list[Row] = []
    answered = to_us(turn.started_at + timedelta(milliseconds=turn.model_ms + turn.retry_wait_ms))
    if response is not None:
        # A response that is not in the conversation is kept below it.
        at = position if messages and messages[0] == response.message else -index
        if at < 0:
            rows.append(message_row(response.message, at, "model", answered))
    own = row = turn_row(turn, provider, at)
    runs = [tool_run_row(it, index, i, row["model"]) for i, it in enumerate(turn.tool_runs)]
    calls = {run.tool_call_id: i for i, run in enumerate(turn.tool_runs)}
    for place, message in enumerate(messages, position):
        call = calls.get(message.tool_call_id or "")
        if message.role != "tool" or call is None:
            rows.append(message_row(message, place, "model", answered))
            continue
        run = turn.tool_runs[call]
        began, lasted = run.started_at or turn.started_at, timedelta(milliseconds=run.duration_ms)
        row = message_row(message, place, "tool", to_us(began + lasted))
        result = run.result
        # A text among the attachments is a part of the message's text too, as frames show it.
        if result and message.content == result.as_content() and len(_texts(message)) == 1:
            row |= {"call": call, "text": None, "doc": None}
        rows.append(row)
    return {
        "turns": [own],
        "tool_runs": runs,
        "messages": [{**row, "turn": index} for row in rows],
    }


def rows_of(run: RunRecord) -> Rows:
    """All of a run."""
    provider = run.model.partition(":")[0]
    rows: Rows = {"runs": [run_row(run)], "turns": [], "tool_runs": [], "messages": []}
    ends: dict[int, int] = {}
    for turn in run.turns:
        place = turn.request.n_messages - run.shared_messages
        answer = turn.response and turn.response.message
        added = run.messages[place : place + 1 + len(answer.tool_calls)] if answer else ()
        if added[:1] != (answer,):
            added = ()
        ends.update(dict.fromkeys(range(place, place + len(added)), end_of(turn)))
        for table, found in turn_rows(turn, added, provider, place).items():
            rows[table] += found
    begun = run.messages[: min(ends, default=len(run.messages))]
    # The person's words end with the prompt; what follows before the first turn are directives.
    words = max((i + 1 for i, it in enumerate(begun) if it.text == run.prompt), default=None)
    if words is None:
        words = 0 if run.kind == "resume" else len(begun)
    at = to_us(run.started_at)
    for place, message in enumerate(run.messages):
        at = ends.get(place, at)
        if place not in ends:
            source = "person" if place < words else "directive"
            rows["messages"].append(message_row(message, place, source, at))
    return rows | {"texts": text_rows(run.system_prompts, run.toolsets)}


def text_rows(prompts: Mapping[str, str], toolsets: Mapping[str, Sequence[ToolSpec]]) -> list[Row]:
    """What stands around the messages of turns, by its hash."""
    systems = [{"sha": sha, "kind": "system", "text": text} for sha, text in prompts.items()]
    return systems + [
        {
            "sha": sha,
            "kind": "toolset",
            "text": dump_json([tool.model_dump(mode="json") for tool in tools]).decode(),
        }
        for sha, tools in toolsets.items()
    ]


def end_of(turn: EngineTurn) -> int:
    """When a turn was over."""
    return to_us(turn.started_at + timedelta(milliseconds=turn.duration_ms))


def _doc(**values: Any) -> Row | None:
    """What is seldom there, without what is not."""
    return {name: value for name, value in values.items() if value} or None


def _error_cells(error: ErrorInfo | None) -> Row:
    return {"error_code": error and error.code, "error": error and error.message}


def _usage_cells(usage: Usage | None) -> Row:
    if usage is None:
        return {}
    return {name: min(getattr(usage, name), _LARGEST) for name in TOKENS}


def _texts(message: Message) -> list[TextPart]:
    return [part for part in message.content if isinstance(part, TextPart)]


def _bodies(parts: Sequence[Part]) -> list[Row]:
    return [{**part.model_dump(exclude_defaults=True), "type": part.type} for part in parts]


def _call_body(call: ToolCall) -> Row:
    body: Row = {"id": call.id, "name": call.name, "arguments_raw": call.arguments_raw}
    if call.arguments != parse_arguments(call.arguments_raw):
        body["arguments"] = call.arguments
    return body if call.extra is None else {**body, "extra": call.extra}


def _tools_ms(runs: Iterable[ToolRun]) -> float:
    return _wall_ms((it.started_at, it.duration_ms) for it in runs)


def _waited_ms(runs: Iterable[ToolRun]) -> float:
    return _wall_ms((it.queued_at, it.waited_ms) for it in runs)


def _wall_ms(spans: Iterable[tuple[datetime | None, float]]) -> float:
    """The time that some spans cover; where they overlap, it counts once."""
    total, until = 0.0, 0.0
    for start, lasted in sorted((to_us(at) / 1000 if at else 0.0, ms) for at, ms in spans if ms):
        total += max(0.0, start + lasted - max(start, until))
        until = max(until, start + lasted)
    return total
