"""How each wire writes an answer, the start of one, and an error: what the hostile cases spoil.

Facts: the reference of each provider. The good answers here are plain; the quirks of a wire are
in its own table of cases.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

JSON = dict[str, Any]


@dataclass(frozen=True)
class Called:
    """A tool call of an answer."""

    id: str | None = "c1"
    name: str = "look"
    arguments: Any = None

    @property
    def text(self) -> str:
        """The arguments as a text."""
        given = {"at": "x"} if self.arguments is None else self.arguments
        return given if isinstance(given, str) else json.dumps(given)

    @property
    def named(self) -> JSON:
        """Id and name, where there is an id."""
        return {**({"id": self.id} if self.id is not None else {}), "name": self.name}


class Dialect:
    """One wire; the default is server-sent events."""

    name: str
    model: str
    path: str
    """A part of the path of a request."""
    key_header = "Authorization"
    key_prefix = "Bearer "
    kind = "text/event-stream"
    holder: str
    """The field of a whole answer in which the rest of it is."""
    blank = b": ping\n\n"
    """A sign of life."""
    is_named = False
    """Events have their type as their name."""
    end = b""
    """What follows the event that ends an answer."""

    def frame(self, event: Any) -> bytes:
        """One event; bytes are sent as they are."""
        if isinstance(event, bytes):
            return event + b"\n\n"
        named = self.is_named and "type" in event
        name = f"event: {event['type']}\n" if named else ""
        return name.encode() + b"data: " + json.dumps(event).encode() + b"\n\n"

    def stream(self, *events: Any, end: bytes | None = None) -> bytes:
        """The body of a stream."""
        return b"".join(map(self.frame, events)) + (self.end if end is None else end)

    def head(self, *headers: str, framing: str = "Transfer-Encoding: chunked") -> bytes:
        """The head of a stream."""
        lines = ["HTTP/1.1 200 OK", f"Content-Type: {self.kind}", framing, *headers]
        return ("\r\n".join(line for line in lines if line) + "\r\n\r\n").encode("latin-1")

    def asks_for_stream(self, path: str, body: JSON) -> bool:
        """Whether a request asks for a stream."""
        return bool(body.get("stream"))

    def part(self, text: str) -> list[Any]:
        """The events of a text that goes on."""
        raise NotImplementedError

    def reasoning(self, text: str) -> Any:
        """An event of reasoning."""
        raise NotImplementedError

    def said(self, text: str, *calls: Called) -> list[Any]:
        """The events of an answer; it is whole with the last one."""
        raise NotImplementedError

    def whole(self, text: str, *calls: Called) -> JSON:
        """An answer that is not streamed."""
        raise NotImplementedError

    def error(self, message: Any = "no", **fields: Any) -> JSON:
        """An error body."""
        return {"error": {"message": message, **fields}}


class _Chat(Dialect):
    name, model, path = "chat", "openai:m", "/chat/completions"
    holder = "choices"
    end = b"data: [DONE]\n\n"

    def part(self, text: str) -> list[Any]:
        return [delta(content=text)]

    def reasoning(self, text: str) -> Any:
        return delta(reasoning=text)

    def said(self, text: str, *calls: Called) -> list[Any]:
        events = self.part(text) if text else []
        for place, one in enumerate(calls):
            first = call(one.name, one.text[:4], id=one.id, index=place)
            rest = {"index": place, "function": {"arguments": one.text[4:]}}
            events += [delta(tool_calls=[first]), delta(tool_calls=[rest])]
        return [*events, delta("tool_calls" if calls else "stop")]

    def whole(self, text: str, *calls: Called) -> JSON:
        made = [call(one.name, one.text, id=one.id, index=None) for one in calls]
        return completion(text, **({"tool_calls": made} if made else {}))


class _Azure(_Chat):
    name, model = "azure", "azure:m"
    key_header, key_prefix = "api-key", ""


class _Responses(Dialect):
    name, model, path = "responses", "openai-responses:m", "/responses"
    holder = "output"
    is_named = True

    def part(self, text: str) -> list[Any]:
        return [
            {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
            {"type": "response.output_item.added", "output_index": 0, "item": _item("")},
            {"type": "response.output_text.delta", "output_index": 0, "delta": text},
        ]

    def reasoning(self, text: str) -> Any:
        return {"type": "response.reasoning_text.delta", "output_index": 1, "delta": text}

    def said(self, text: str, *calls: Called) -> list[Any]:
        done = {"type": "response.output_item.done", "output_index": 0, "item": _item(text)}
        events = [*self.part(text), done] if text else []
        for place, one in enumerate(calls, 1):
            at = {"output_index": place}
            arguments = {"type": "response.function_call_arguments.delta", **at}
            item = _function_call(one)
            begun = {**item, "arguments": ""}
            events += [
                {"type": "response.output_item.added", **at, "item": begun},
                {**arguments, "delta": one.text[:4]},
                {**arguments, "delta": one.text[4:]},
                {"type": "response.output_item.done", **at, "item": item},
            ]
        return [*events, {"type": "response.completed", "response": self.whole(text, *calls)}]

    def whole(self, text: str, *calls: Called) -> JSON:
        output = [_item(text), *map(_function_call, calls)]
        known = {"id": "resp_1", "status": "completed", "model": "m", "usage": _USED}
        return {**known, "output": output}


class _Anthropic(Dialect):
    name, model, path = "anthropic", "anthropic:m", "/messages"
    key_header, key_prefix = "x-api-key", ""
    holder = "content"
    blank = b'event: ping\ndata: {"type": "ping"}\n\n'
    is_named = True

    def part(self, text: str) -> list[Any]:
        return [_MESSAGE_START, *_block(0, {"type": "text", "text": ""}, "text", text)[:2]]

    def reasoning(self, text: str) -> Any:
        given = {"type": "thinking_delta", "thinking": text}
        return {"type": "content_block_delta", "index": 1, "delta": given}

    def said(self, text: str, *calls: Called) -> list[Any]:
        events: list[Any] = [_MESSAGE_START]
        if text:
            events += _block(0, {"type": "text", "text": ""}, "text", text)
        for place, one in enumerate(calls, 1):
            begun: JSON = {"type": "tool_use", **one.named, "input": {}}
            events += _block(place, begun, "input_json", one.text[:4], one.text[4:])
        stopped = {"stop_reason": "tool_use" if calls else "end_turn"}
        return [*events, {"type": "message_delta", "delta": stopped}, {"type": "message_stop"}]

    def whole(self, text: str, *calls: Called) -> JSON:
        blocks: list[Any] = [{"type": "text", "text": text}] if text else []
        blocks += [
            {"type": "tool_use", **one.named, "input": json.loads(one.text)} for one in calls
        ]
        reason = "tool_use" if calls else "end_turn"
        return {**_MESSAGE_START["message"], "content": blocks, "stop_reason": reason}

    def error(self, message: Any = "no", **fields: Any) -> JSON:
        return {"type": "error", **super().error(message, **fields), "request_id": "req_1"}


class _Google(Dialect):
    name, model, path = "google", "google:m", "enerateContent"
    key_header, key_prefix = "x-goog-api-key", ""
    holder = "candidates"

    def asks_for_stream(self, path: str, body: JSON) -> bool:
        return ":streamGenerateContent" in path

    def part(self, text: str) -> list[Any]:
        return [_candidate({"text": text})]

    def reasoning(self, text: str) -> Any:
        return _candidate({"text": text, "thought": True})

    def said(self, text: str, *calls: Called) -> list[Any]:
        events = self.part(text) if text else []
        events += [_candidate(_function_part(one)) for one in calls]
        return [*events, _candidate({"text": ""}, finish="STOP")]

    def whole(self, text: str, *calls: Called) -> JSON:
        parts = [{"text": text}, *map(_function_part, calls)]
        return _candidate(*parts, finish="STOP")


class _Ollama(Dialect):
    name, model, path = "ollama", "ollama:m", "/api/chat"
    kind = "application/x-ndjson"
    holder = "message"
    blank = b"\n"

    def frame(self, event: Any) -> bytes:
        return (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n"

    def part(self, text: str) -> list[Any]:
        return [_line(content=text)]

    def reasoning(self, text: str) -> Any:
        return _line(content="", thinking=text)

    def said(self, text: str, *calls: Called) -> list[Any]:
        events = self.part(text) if text else []
        events += [_line(content="", tool_calls=[_ollama_call(one)]) for one in calls]
        return [*events, {**_line(content=""), **_DONE}]

    def whole(self, text: str, *calls: Called) -> JSON:
        made = {"tool_calls": list(map(_ollama_call, calls))} if calls else {}
        return {**_line(content=text, **made), **_DONE}

    def error(self, message: Any = "no", **fields: Any) -> JSON:
        return {"error": message, **fields}


_USED = {"input_tokens": 3, "output_tokens": 2}
_MESSAGE_START: JSON = {
    "type": "message_start",
    "message": {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "usage": _USED,
    },
}
_DONE: JSON = {"done": True, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 2}


def _item(text: str) -> JSON:
    parts = [{"type": "output_text", "text": text}] if text else []
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": parts}


def _function_call(one: Called) -> JSON:
    named = {"name": one.name, **({} if one.id is None else {"call_id": one.id})}
    return {"type": "function_call", "id": "fc_1", **named, "arguments": one.text}


def _block(place: int, begun: JSON, field: str, *pieces: str) -> list[JSON]:
    at = {"index": place}
    name = {"input_json": "partial_json"}.get(field, field)
    deltas = [{"type": f"{field}_delta", name: piece} for piece in pieces]
    return [
        {"type": "content_block_start", **at, "content_block": begun},
        *[{"type": "content_block_delta", **at, "delta": one} for one in deltas],
        {"type": "content_block_stop", **at},
    ]


def _candidate(*parts: JSON, finish: str = "") -> JSON:
    made: JSON = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    made |= {"finishReason": finish} if finish else {}
    used = {"promptTokenCount": 3, "candidatesTokenCount": 2}
    return {"candidates": [made], "modelVersion": "m", "usageMetadata": used}


def _function_part(one: Called) -> JSON:
    return {"functionCall": {**one.named, "args": json.loads(one.text)}}


def _line(**message: Any) -> JSON:
    return {"model": "m", "message": {"role": "assistant", **message}, "done": False}


def _ollama_call(one: Called) -> JSON:
    named = {"id": one.id} if one.id is not None else {}
    return {**named, "function": {"name": one.name, "arguments": json.loads(one.text)}}


CHAT = _Chat()
DIALECTS: tuple[Dialect, ...] = (
    CHAT,
    _Responses(),
    _Azure(),
    _Anthropic(),
    _Google(),
    _Ollama(),
)


def dialect_of(path: str) -> Dialect:
    """The wire of a request."""
    return next((wire for wire in DIALECTS if wire.path in path), CHAT)


def chunked(data: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def delta(_finish: str | None = None, **fields: Any) -> JSON:
    """One chunk of a stream."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": _finish}]}


def completion(text: str | None = "fine", **message: Any) -> JSON:
    """A whole answer."""
    made = {"role": "assistant", "content": text, **message}
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    return {"model": "m", "choices": [{"index": 0, "message": made, "finish_reason": finish}]}


def call(
    name: str = "look", arguments: Any = '{"at": "x"}', *, id: Any = "c1", index: Any = 0
) -> JSON:
    """A tool call on the wire; what is None is left out."""
    fields = {"index": index, "id": id, "type": "function"}
    made = {key: value for key, value in fields.items() if value is not None}
    return {**made, "function": {"name": name, "arguments": arguments}}
