"""Exports a run as OpenTelemetry spans, and as OTLP JSON.

Names follow the GenAI conventions v0.1.0:
https://github.com/open-telemetry/semantic-conventions-genai
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast
from urllib.parse import urlsplit

from nbagent.contracts.canonical import dump_json, sha256_hex
from nbagent.contracts.messages import ImagePart, Message, TextPart
from nbagent.contracts.model import Usage
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.providers.catalogue import known_provider
from nbagent.store.record_cells import to_us

_REQUEST_ATTRIBUTES = {
    **{name: name for name in ("temperature", "top_p", "max_tokens", "stop_sequences")},
    "reasoning": "reasoning.level",
}


# Numbers of OTLP: SpanKind and StatusCode.
_KIND_INTERNAL, _KIND_CLIENT = 1, 3
_STATUS_ERROR = 2


@dataclass(frozen=True, slots=True)
class Span:
    """One operation, with attributes named by the conventions."""

    id: str
    parent: str
    """Id of the parent span; empty for the run."""
    name: str
    kind: int
    start: datetime
    ms: float
    attributes: dict[str, Any] = field(repr=False)
    error: str = ""
    """Error code; empty if it succeeded."""

    @property
    def nanoseconds(self) -> tuple[int, int]:
        """Start and end, in nanoseconds since 1970."""
        # Integers: a float of today's time is exact to about 200 nanoseconds only.
        return (
            to_us(self.start) * 1000,
            to_us(self.start + timedelta(milliseconds=self.ms)) * 1000,
        )


def spans_of(run: RunRecord, conversation: Sequence[Message] | None) -> list[Span]:
    """Build spans of the run, its model requests and its tool runs.

    Args:
        run: the run.
        conversation: all messages up to its end, for spans with messages, arguments and results;
            None leaves all content out.
    """
    operation = "invoke_workflow" if run.workflow else "invoke_agent"
    name = run.workflow.name if run.workflow else run.agent
    common = {
        "gen_ai.provider.name": _provider(run),
        "gen_ai.conversation.id": run.session,
        "gen_ai.agent.name": run.agent,
        **_server(run.base_url),
    }
    attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": run.model.partition(":")[2],
        "gen_ai.conversation.id": run.session,
        "gen_ai.agent.name": name,  # the conventions have no attribute for a workflow's name
        "gen_ai.usage.input_tokens": run.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": run.usage.completion_tokens,
    }
    error = run.error.code if run.error and run.phase == "Failed" else ""
    root, title = _span_id(run.id), f"{operation} {name}" if name else operation
    # `duration_ms` does not include the preparation before the first turn; the span does.
    ended = run.ended_at or run.started_at + timedelta(milliseconds=run.duration_ms)
    ms = (ended - run.started_at) / timedelta(milliseconds=1)
    spans = [
        Span(root, "", title, _KIND_INTERNAL, run.started_at, ms, _without_empty(attributes), error)
    ]
    for turn in run.turns:
        spans.append(_chat(run, turn, root, common, conversation))
        spans += [
            _tool(run, turn, tool, root, conversation is not None)
            for tool in turn.tool_runs
            if tool.started_at  # a denied call executed nothing, so it is no operation
        ]
    return spans


def _chat(
    run: RunRecord,
    turn: EngineTurn,
    root: str,
    common: dict[str, Any],
    conversation: Sequence[Message] | None,
) -> Span:
    request, response = turn.request, turn.response
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": request.model,
        **common,
        **{
            f"gen_ai.request.{to}": request.params.get(name)
            for name, to in _REQUEST_ATTRIBUTES.items()
        },
    }
    if turn.ttft_ms is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = turn.ttft_ms / 1000
    if response:
        attributes["gen_ai.response.model"] = response.model
        attributes["gen_ai.response.finish_reasons"] = [response.finish_reason]
        attributes |= _usage(response.usage) if response.usage else {}
    if conversation is not None:
        system = run.system_prompts.get(request.system_sha, "")
        tools = run.toolsets.get(request.toolset_sha, ())
        sent_messages = [_message(message) for message in conversation[: request.n_messages]]
        described = [
            {"type": "function", **tool.model_dump(include={"name", "description", "parameters"})}
            for tool in tools
        ]
        attributes["gen_ai.system_instructions"] = _json([_text(system)] if system else [])
        attributes["gen_ai.tool.definitions"] = _json(described)
        attributes["gen_ai.input.messages"] = _json(sent_messages)
        if response:
            attributes["gen_ai.output.messages"] = _json([_message(response.message)])
    failed = turn.error.code if turn.error else ""
    ms = turn.model_ms + turn.retry_wait_ms
    span_id = _span_id(run.id, turn.id)
    name = f"chat {request.model}"
    return Span(
        span_id, root, name, _KIND_CLIENT, turn.started_at, ms, _without_empty(attributes), failed
    )


def _tool(run: RunRecord, turn: EngineTurn, tool: ToolRun, root: str, content: bool) -> Span:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool.tool_name,
        "gen_ai.tool.call.id": tool.tool_call_id,
        "gen_ai.tool.type": "function",
        "gen_ai.agent.name": turn.agent or run.agent,
    }
    if content:
        attributes["gen_ai.tool.call.arguments"] = _json(tool.args or {})
        attributes["gen_ai.tool.call.result"] = _json(tool.result.body if tool.result else {})
    failed = tool.result.error.code if tool.result and tool.result.error else ""
    start = tool.started_at or turn.started_at
    span_id, name = _span_id(run.id, turn.id, tool.tool_call_id), f"execute_tool {tool.tool_name}"
    return Span(
        span_id,
        root,
        name,
        _KIND_INTERNAL,
        start,
        tool.duration_ms,
        _without_empty(attributes),
        failed,
    )


def _span_id(*words: str) -> str:
    """Id of a span, derived from the run, so that repeated exports have equal ids."""
    return sha256_hex("/".join(words))[:16]


def _provider(run: RunRecord) -> str:
    name = run.model.partition(":")[0]
    row = known_provider(name)
    return (row and row.telemetry_name) or name


def _server(base_url: str | None) -> dict[str, Any]:
    try:
        parts = urlsplit(base_url or "")
        usual = {"https": 443, "http": 80}.get(parts.scheme)
        return {"server.address": parts.hostname, "server.port": parts.port or usual}
    except ValueError:  # an address in a record may have any port
        return {}


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.cache_write.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }


def _without_empty(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value not in (None, "", "[]")}


def _json(value: Any) -> str:
    return dump_json(value).decode()


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        response_part = {"id": message.tool_call_id, "response": message.text}
        return {"role": "tool", "parts": [{"type": "tool_call_response", **response_part}]}
    parts: list[dict[str, Any]] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "content": message.reasoning})
    for part in message.content:
        if isinstance(part, TextPart):
            parts.append(_text(part.text))
        elif isinstance(part, ImagePart) and part.url:
            parts.append({"type": "uri", "modality": "image", "uri": part.url})
        else:
            kind = "image" if isinstance(part, ImagePart) else "file"
            blob = {"type": "blob", "mime_type": part.media_type, "content": part.data}
            parts.append({**blob, "modality": kind})
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments or {}}
        for call in message.tool_calls
    ]
    return {"role": message.role, "parts": parts}


def otlp_json(run: RunRecord, spans: Sequence[Span]) -> str:
    """Encode spans as an OTLP/JSON document, which collectors read at `/v1/traces` and in files."""
    trace = sha256_hex(run.id)[:32]
    scope = {"name": "nbagent", "version": run.nbagent_version}
    otlp_spans = [_otlp_span(trace, span) for span in spans]
    service = {"attributes": _otlp_attributes({"service.name": "nbagent"})}
    group = {"resource": service, "scopeSpans": [{"scope": scope, "spans": otlp_spans}]}
    return f"{dump_json({'resourceSpans': [group]}).decode()}\n"


def _otlp_span(trace: str, span: Span) -> dict[str, Any]:
    # OTLP/JSON: ids are hexadecimal, and 64-bit integers are strings, as in protobuf's JSON.
    start, end = span.nanoseconds
    failed = {"error.type": span.error} if span.error else {}
    return {
        "traceId": trace,
        "spanId": span.id,
        **({"parentSpanId": span.parent} if span.parent else {}),
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        "attributes": _otlp_attributes(span.attributes | failed),
        "status": {"code": _STATUS_ERROR} if span.error else {},
    }


def _otlp_attributes(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _otlp_value(value)} for name, value in attributes.items()]


def _otlp_value(value: Any) -> dict[str, Any]:
    match value:
        case bool():  # before int, of which bool is a subclass
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list() | tuple():
            values = [_otlp_value(item) for item in cast("Sequence[Any]", value)]
            return {"arrayValue": {"values": values}}
        case _:
            return {"stringValue": str(value)}


def send(spans: Sequence[Span], provider: Any = None) -> None:
    """Send spans to a tracer provider of the `opentelemetry` package (default: the global one).

    Raises:
        ImportError: the package is not installed.
    """
    # Imported late, because the package is an extra.
    from opentelemetry import trace

    tracer = (provider or trace.get_tracer_provider()).get_tracer("nbagent")
    kinds = {_KIND_INTERNAL: trace.SpanKind.INTERNAL, _KIND_CLIENT: trace.SpanKind.CLIENT}
    started: dict[str, Any] = {}
    for span in spans:
        context = trace.set_span_in_context(started[span.parent]) if span.parent else None
        started_span = tracer.start_span(
            span.name,
            context=context,
            kind=kinds[span.kind],
            attributes=span.attributes | ({"error.type": span.error} if span.error else {}),
            start_time=span.nanoseconds[0],
        )
        if span.error:
            started_span.set_status(trace.Status(trace.StatusCode.ERROR))
        started[span.id] = started_span
    # Children end before their parents, as in a program that is traced while it runs.
    for span in reversed(spans):
        started[span.id].end(end_time=span.nanoseconds[1])
