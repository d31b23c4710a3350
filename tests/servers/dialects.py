"""How each wire writes an answer, the start of one, and an error: what the hostile cases spoil.

Facts: the reference of each provider. The good answers here are plain; the quirks of a wire are
in its own table of cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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
        given = {"at": "x"} if self.arguments is None else self.arguments
        return given if isinstance(given, str) else json.dumps(given)

    @property
    def named(self) -> JSON:
        """Id and name, where there is an id."""
        return {**({"id": self.id} if self.id is not None else {}), "name": self.name}


def halves(text: str) -> tuple[str, ...]:
    """Split a long text into two pieces."""
    return (text,) if len(text) < 6 else (text[:3], text[3:])


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
    """Bytes after the event that ends an answer."""

    def frame(self, event: Any) -> bytes:
        """One event; bytes are its text."""
        if isinstance(event, bytes):
            return event + b"\n\n"
        named = self.is_named and "type" in event
        name = f"event: {event['type']}\n" if named else ""
        return name.encode() + b"data: " + json.dumps(event).encode() + b"\n\n"

    def stream(self, *events: Any, end: bytes | None = None) -> bytes:
        """The body of a stream; bytes stand as they are."""
        framed = (one if isinstance(one, bytes) else self.frame(one) for one in events)
        return b"".join(framed) + (self.end if end is None else end)

    def head(self, *headers: str, framing: str = "Transfer-Encoding: chunked") -> bytes:
        lines = ["HTTP/1.1 200 OK", f"Content-Type: {self.kind}", framing, *headers]
        return ("\r\n".join(line for line in lines if line) + "\r\n\r\n").encode("latin-1")

    def asks_for_stream(self, path: str, body: JSON) -> bool:
        """True if a request asks for a stream."""
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


class Responses(Dialect):
    """An answer is a list of items."""

    name, model, path = "responses", "openai-responses:m", "/responses"
    holder = "output"
    is_named = True

    def message(self, *texts: str, id: str = "msg_1", **more: Any) -> JSON:
        parts: list[JSON] = [
            {"type": "output_text", "text": text, "annotations": []} for text in texts
        ]
        item = {"type": "message", "id": id, "role": "assistant", "status": "completed"}
        return {**item, "content": parts, **more}

    def response(self, *output: JSON, status: str = "completed", **more: Any) -> JSON:
        known = {"id": "resp_1", "object": "response", "status": status, "error": None}
        return {**known, "model": "m1", "output": list(output), **more}

    def last(self, *output: JSON, status: str = "completed", **more: Any) -> JSON:
        response = self.response(*output, status=status, **more)
        return {"type": f"response.{status}", "response": response}

    def events(self, *output: JSON, indices: bool = True, first: int = 0) -> list[JSON]:
        """The events of these items, all but the last one."""
        events: list[JSON] = [
            {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}
        ]
        for n, item in enumerate(output, first):
            place: JSON = {"output_index": n} if indices else {}
            empty: JSON = {"arguments": ""} if "arguments" in item else {"content": []}
            begun: JSON = {**item, **empty, "summary": [], "encrypted_content": None}
            events.append({"type": "response.output_item.added", **place, "item": begun})
            events += self._shown(item, {**place, "item_id": item["id"]})
            events.append({"type": "response.output_item.done", **place, "item": item})
        return events

    def _shown(self, item: JSON, place: JSON) -> Iterator[JSON]:
        """The events between the beginning of an item and its end."""
        for n, part in enumerate(item.get("summary") or ()):
            at, kind = {**place, "summary_index": n}, "response.reasoning_summary"
            yield {"type": f"{kind}_part.added", **at, "part": {"text": ""}}
            yield {"type": f"{kind}_text.delta", **at, "delta": part["text"]}
        for n, part in enumerate(item.get("content") or ()):
            kind, at = f"response.{part['type']}", {**place, "content_index": n}
            text = part.get("text", part.get("refusal")) or ""
            for piece in halves(text):
                yield {"type": f"{kind}.delta", **at, "delta": piece}
            yield {"type": f"{kind}.done", **at, "text": text}
        if isinstance(arguments := item.get("arguments"), str):
            kind = "response.function_call_arguments.delta"
            yield from ({"type": kind, **place, "delta": it} for it in halves(arguments))

    def part(self, text: str) -> list[Any]:
        return self.said(text)[:3]

    def reasoning(self, text: str) -> Any:
        return {"type": "response.reasoning_text.delta", "output_index": 1, "delta": text}

    def said(self, text: str, *calls: Called) -> list[Any]:
        output: list[JSON] = self.whole(text, *calls)["output"]
        return [*self.events(*output, first=1), self.last(*output, usage=_USED)]

    def whole(self, text: str, *calls: Called) -> JSON:
        made = [
            {"type": "function_call", "id": f"fc_{n}", "name": one.name, "arguments": one.text}
            | ({} if one.id is None else {"call_id": one.id})
            for n, one in enumerate(calls)
        ]
        return self.response(*([self.message(text)] if text else []), *made, usage=_USED)


class Anthropic(Dialect):
    """An answer is a list of blocks."""

    name, model, path = "anthropic", "anthropic:m", "/messages"
    key_header, key_prefix = "x-api-key", ""
    holder = "content"
    blank = b'event: ping\ndata: {"type": "ping"}\n\n'
    is_named = True

    def head_event(self, usage: Any = None) -> JSON:
        message: JSON = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m1"}
        return {"type": "message_start", "message": {**message, "content": [], "usage": usage}}

    def delta(self, place: int, kind: str, **fields: Any) -> JSON:
        given = {"type": f"{kind}_delta", **fields}
        return {"type": "content_block_delta", "index": place, "delta": given}

    def start(self, place: int, block: JSON) -> JSON:
        return {"type": "content_block_start", "index": place, "content_block": block}

    def block(self, place: int, block: JSON) -> Iterator[JSON]:
        """A whole block as its events; an input may be a text that is no JSON."""
        fields = {"text": ("text",), "thinking": ("thinking", "signature")}.get(block["type"], ())
        fields = tuple(field for field in fields if field in block)
        written = [(field, field, block[field]) for field in fields]
        begun = {**block, **dict.fromkeys(fields, "")}
        if "input" in block:
            given, begun["input"] = block["input"], {}
            text = given if isinstance(given, str) else json.dumps(given)
            written.append(("input_json", "partial_json", text))
        yield self.start(place, begun)
        for kind, field, words in written:
            yield from (self.delta(place, kind, **{field: piece}) for piece in halves(words))
        yield {"type": "content_block_stop", "index": place}

    def tail(self, word: Any = "end_turn", usage: Any = None, **more: Any) -> list[JSON]:
        ended = {"stop_reason": word, "stop_sequence": None, **more}
        return [{"type": "message_delta", "delta": ended, "usage": usage}, {"type": "message_stop"}]

    def events(self, *content: JSON, first: int = 0, **ended: Any) -> list[JSON]:
        numbered = enumerate(content, first)
        blocks = [event for n, block in numbered for event in self.block(n, block)]
        return [self.head_event(_USED), *blocks, *self.tail(**ended)]

    def message(
        self, *content: Any, word: Any = "end_turn", usage: Any = None, **more: Any
    ) -> JSON:
        made: JSON = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m1"}
        ended = {"stop_reason": word, "stop_sequence": None, "usage": usage, **more}
        return {**made, "content": list(content), **ended}

    def part(self, text: str) -> list[Any]:
        return self.said(text)[:3]

    def reasoning(self, text: str) -> Any:
        return self.delta(1, "thinking", thinking=text)

    def _blocks(self, text: str, calls: tuple[Called, ...]) -> list[JSON]:
        blocks: list[JSON] = [{"type": "text", "text": text}] if text else []
        return blocks + [{"type": "tool_use", **one.named, "input": one.text} for one in calls]

    def said(self, text: str, *calls: Called) -> list[Any]:
        word = "tool_use" if calls else "end_turn"
        return self.events(*self._blocks(text, calls), word=word, first=1)

    def whole(self, text: str, *calls: Called) -> JSON:
        return self.message(*self._blocks(text, calls), usage=_USED)

    def error(self, message: Any = "no", **fields: Any) -> JSON:
        return {"type": "error", **super().error(message, **fields), "request_id": "req_1"}


class Google(Dialect):
    """An answer is the parts of a candidate."""

    name, model, path = "google", "google:m", "enerateContent"
    key_header, key_prefix = "x-goog-api-key", ""
    holder = "candidates"

    def asks_for_stream(self, path: str, body: JSON) -> bool:
        return ":streamGenerateContent" in path

    def chunk(self, *parts: Any, end: str = "", at: int = 0, **more: Any) -> JSON:
        """A chunk of one candidate; `more`: fields of the chunk."""
        content = {"content": {"role": "model", "parts": list(parts)}} if parts else {}
        word = {"finishReason": end} if end else {}
        return {"candidates": [{"index": at, **content, **word}], **more}

    def _parts(self, text: str, calls: tuple[Called, ...]) -> list[JSON]:
        made = [{"functionCall": {**one.named, "args": json.loads(one.text)}} for one in calls]
        return [*([{"text": text}] if text else []), *made]

    def part(self, text: str) -> list[Any]:
        return [self.chunk({"text": text}, usageMetadata=_COUNTS)]

    def reasoning(self, text: str) -> Any:
        return self.chunk({"text": text, "thought": True})

    def said(self, text: str, *calls: Called) -> list[Any]:
        events = [self.chunk(one, usageMetadata=_COUNTS) for one in self._parts(text, calls)]
        return [*events, self.chunk({"text": ""}, end="STOP")]

    def whole(self, text: str, *calls: Called) -> JSON:
        return self.chunk(*self._parts(text, calls), end="STOP", usageMetadata=_COUNTS)


class Ollama(Dialect):
    """An answer is a message on several lines."""

    name, model, path = "ollama", "ollama:m", "/api/chat"
    kind = "application/x-ndjson"
    holder = "message"
    blank = b"\n"

    def frame(self, event: Any) -> bytes:
        return (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n"

    def line(self, message: Any, **more: Any) -> JSON:
        known = {"model": "m", "created_at": "2026-11-21T10:00:00Z", "message": message}
        return {**known, "done": False, **more}

    def last(self, message: JSON | None = None, **more: Any) -> JSON:
        given = {"role": "assistant", "content": "", **(message or {})}
        ended: JSON = {"done": True, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 2}
        return {**self.line(given), **ended, **more}

    def _message(self, text: str, *calls: Called) -> JSON:
        made = [
            {
                **({"id": one.id} if one.id is not None else {}),
                "function": {"name": one.name, "arguments": json.loads(one.text)},
            }
            for one in calls
        ]
        given = {"role": "assistant", "content": text}
        return {**given, "tool_calls": made} if made else given

    def part(self, text: str) -> list[Any]:
        return [self.line(self._message(text))]

    def reasoning(self, text: str) -> Any:
        return self.line({**self._message(""), "thinking": text})

    def said(self, text: str, *calls: Called) -> list[Any]:
        events = self.part(text) if text else []
        return [*events, *(self.line(self._message("", one)) for one in calls), self.last()]

    def whole(self, text: str, *calls: Called) -> JSON:
        return self.last(self._message(text, *calls))

    def error(self, message: Any = "no", **fields: Any) -> JSON:
        return {"error": message, **fields}


_USED = {"input_tokens": 3, "output_tokens": 2}
_COUNTS = {"promptTokenCount": 3, "candidatesTokenCount": 2}
CHAT, RESPONSES, ANTHROPIC, GOOGLE, OLLAMA = _Chat(), Responses(), Anthropic(), Google(), Ollama()
DIALECTS: tuple[Dialect, ...] = (CHAT, RESPONSES, _Azure(), ANTHROPIC, GOOGLE, OLLAMA)


def dialect_of(path: str) -> Dialect:
    return next((wire for wire in DIALECTS if wire.path in path), CHAT)


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def delta(_finish: str | None = None, **fields: Any) -> JSON:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": _finish}]}


def completion(text: str | None = "fine", **message: Any) -> JSON:
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
