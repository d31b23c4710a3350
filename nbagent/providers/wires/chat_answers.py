"""Read answers of Chat Completions servers: chunks and whole bodies. Requests are in `chat`.

Tolerant of the servers' known faults: `choices` empty or null in the chunk with the usage, the
usage repeated in each chunk, `delta` null (Azure), content as a list (Mistral), no finish reason,
"stop" although calls came, error objects inside a 200 answer, a whole message in the last chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.deltas import ReasoningPiece, TextPiece
from nbagent.contracts.model import ChatRequest
from nbagent.providers.answer.images import find_file
from nbagent.providers.answer.json_fields import objects_in
from nbagent.providers.answer.vendor_words import (
    call_part,
    finish_reason,
    frame_object,
    parse_index,
    read_usage,
)
from nbagent.providers.answer.wire_deltas import (
    Facts,
    Finish,
    Picture,
    Progress,
    ReasoningField,
    ServerFault,
    UsageReport,
    WireDelta,
)
from nbagent.providers.http_errors import stream_error
from nbagent.providers.transport.sse import bad_response
from nbagent.providers.wires.base import Parser

REASONING_FIELDS = ("reasoning", "reasoning_content")
_REASONING_DETAILS = "reasoning_details"
REPLAYED_FIELDS = ("extra_content", _REASONING_DETAILS)
"""Fields of a message that only the server reads; they go back to it unchanged. OpenRouter needs
`reasoning_details` in tool loops, Gemini its signature in `extra_content`, else it answers 400."""
_CALL_FIELDS = frozenset({"index", "id", "type", "function", "custom"})
_CHUNK_FIELDS = frozenset({"choices", "obfuscation"})
_CHOICE_FIELDS = frozenset({"index", "message", "delta", "finish_reason", "logprobs", "text"})
"""Fields that are read here, or come piece by piece."""
_MAX_OPEN_DETAILS = 64  # Details that may grow at the same time.
_JOINED_FIELDS = ("text", "summary", "signature", "data")


class ChatParser(Parser):
    """Reads one answer."""

    ends_with_done = True

    def __init__(self, request: ChatRequest, progress: Progress) -> None:
        super().__init__(request, progress)
        self._has_begun = False
        self._model = ""
        self._reasoning_field = ""
        self._fields: dict[str, Any] = {}
        """Fields of REPLAYED_FIELDS so far."""
        self._index: int | None = None
        """Index of the choice that is read, once it is known. Others are ignored."""

    def read_event(self, name: bytes, data: Any) -> Iterator[WireDelta]:
        """Read one chunk of a stream, or a whole body; an error may come in a list (Gemini)."""
        # Runs once per token: no helper functions for a plain piece of text.
        chunk = data if data.__class__ is dict else frame_object(data)
        if "x_groq" in chunk:
            groq = json_object(chunk["x_groq"]) or {}
            chunk = {**chunk, **{k: groq[k] for k in ("usage", "error") if groq.get(k)}}
        if usage := chunk.get("usage"):
            yield UsageReport(read_usage(usage))
            # The last chunk often has the usage and no choice.
            yield from self._further_fields(chunk, {})
        if chunk.get("error"):
            yield ServerFault(stream_error(chunk))
            return
        choices: Any = chunk.get("choices")
        choice: Any = choices[0] if choices.__class__ is list and len(choices) == 1 else None
        if choice.__class__ is not dict or choice.get("index", 0) != self._index:
            choice = self._select_choice(choices)
            if choice is None:
                # OpenRouter sends null choices without an error if no host answered.
                if "choices" in chunk and choices is None:
                    yield Facts(no_host=True, begun=False)
                return
        finish = choice.get("finish_reason")
        if finish or not self._has_begun:
            yield from self._further_fields(chunk, choice)
        if not self._model or not self._has_begun:
            self._has_begun = True
            self._model = str(chunk.get("model") or "")
            yield Facts(self._model)
        if delta := choice.get("delta"):
            content: Any = None
            if delta.__class__ is dict and len(delta) == 1:
                content = delta.get("content")
            if content.__class__ is str:
                yield TextPiece(content)
            else:
                yield from self._read_delta(delta, whole=False)
        if message := json_object(choice.get("message")):
            yield from self._read_final_message(message)
        if choice.get("error"):
            yield ServerFault(stream_error(choice))
        elif finish:
            word = str(finish)
            yield Finish(finish_reason(word), word)

    def read_whole(self, body: Any) -> Iterator[WireDelta]:
        """Read a whole answer: a chunk with a message; it is complete without a finish reason."""
        answer = body if body.__class__ is dict else frame_object(body)
        choice = self._select_choice(objects_in(answer.get("choices"))) or {}
        message = json_object(choice.get("message") or choice.get("delta"))
        if not (message or choice.get("error") or answer.get("error")):
            raise bad_response("there is no choice with a message in it", retry="choices" in answer)
        yield from self.read_event(b"", answer)
        if not self._progress.finished:
            if "message" not in choice:
                raise bad_response("the stream was cut before the answer was complete")
            yield Finish("stop")

    def _further_fields(self, chunk: dict[str, Any], choice: dict[str, Any]) -> Iterator[WireDelta]:
        yield Facts(vendor=chunk, vendor_without=_CHUNK_FIELDS, begun=False)
        yield Facts(vendor=choice, vendor_without=_CHOICE_FIELDS, begun=False)

    def _select_choice(self, choices: Any) -> dict[str, Any] | None:
        """Return the choice with index 0, or else the first one; None if only others are here."""
        listed = objects_in(choices)
        if choices and not listed:
            raise bad_response("`choices` is not a list of objects")
        offered = {parse_index(choice.get("index")) or 0: choice for choice in reversed(listed)}
        if self._index is None and offered:
            self._index = 0 if 0 in offered else min(offered)
        return offered.get(self._index or 0)

    def _read_final_message(self, message: dict[str, Any]) -> Iterator[WireDelta]:
        """Read the fields of a whole message in the last chunk that had not come before."""
        progress = self._progress
        thoughts = progress.has_reasoning or bool(self._fields)
        received = {
            **dict.fromkeys(("content", "refusal"), progress.has_text),
            "tool_calls": progress.has_calls,
            **dict.fromkeys((*REASONING_FIELDS, _REASONING_DETAILS), thoughts),
        }
        late = {name: value for name, value in message.items() if not received.get(name)}
        yield from self._read_delta(late, whole=True)

    def _read_delta(self, delta: Any, *, whole: bool) -> Iterator[WireDelta]:
        if delta.__class__ is not dict:
            raise bad_response("the delta is not an object")
        # Before the content: the last reasoning and the first text may share a delta.
        yield from self._read_reasoning(delta, whole=whole)
        for part in _content_parts(delta.get("content")):
            if part.get("type") == "thinking":
                thoughts = (thought.get("text") for thought in _content_parts(part.get("thinking")))
                yield ReasoningPiece("".join(text for text in thoughts if isinstance(text, str)))
            elif part.get("type", "text") == "text" and isinstance(part.get("text"), str):
                yield TextPiece(part["text"])
            elif (sent := find_file(part)) is not None:
                yield Picture(sent)
        # OpenRouter and LiteLLM send images beside the text.
        for part in objects_in(delta.get("images")):
            if (sent := find_file(part)) is not None:
                yield Picture(sent)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            yield Facts(refused=True)
            yield TextPiece(refusal)
        if calls := delta.get("tool_calls"):
            yield from self._read_calls(calls, whole=whole)
        if extra := json_object(delta.get("extra_content")):
            # Gemini's signature of an answer without calls.
            self._fields["extra_content"] = extra
            yield Facts(raw={"fields": self._fields})

    def _read_reasoning(self, delta: dict[str, Any], *, whole: bool) -> Iterator[WireDelta]:
        for field in REASONING_FIELDS:
            value = delta.get(field)
            if isinstance(value, str) and value:
                if not self._reasoning_field:
                    self._reasoning_field = field
                    yield ReasoningField(field)
                yield ReasoningPiece(value)
                break  # Some servers send the same text under both names.
        for item in objects_in(delta.get(_REASONING_DETAILS)):
            self._read_detail(item, whole=whole)
            yield Facts(raw={"fields": self._fields}, begun=False)
            text = item.get("text") or item.get("summary")
            if not self._reasoning_field and isinstance(text, str):
                yield ReasoningPiece(text)

    def _read_detail(self, item: dict[str, Any], *, whole: bool) -> None:
        """Read a reasoning detail (OpenRouter), or a fragment that continues an earlier one.

        Fragments with the same index and type are joined; the list goes back in order.
        """
        details: list[dict[str, Any]] = self._fields.setdefault(_REASONING_DETAILS, [])
        # Without an index it continues the last one.
        candidates = details[-1:] if item.get("index") is None else details[:-_MAX_OPEN_DETAILS:-1]
        known = next((detail for detail in candidates if _is_same_detail(detail, item)), None)
        if whole or known is None:
            details.append(dict(item))
            return
        for name, value in item.items():
            before = known.get(name)
            if name in _JOINED_FIELDS and isinstance(before, str):
                known[name] = before + (value if isinstance(value, str) else "")
            elif value is not None:
                known[name] = value

    def _read_calls(self, calls: Any, *, whole: bool) -> Iterator[WireDelta]:
        if objects_in(calls) != calls:
            raise bad_response("`tool_calls` is not a list of objects")
        for call in objects_in(calls):
            key = object() if whole else parse_index(call.get("index"))
            extra = {k: v for k, v in call.items() if k not in _CALL_FIELDS}
            yield call_part(key, call, call.get("function") or call.get("custom"), extra)


def _content_parts(content: Any) -> list[dict[str, Any]]:
    """Return any content as parts: a text, a list (Mistral), an object (gateways in JSON mode)."""
    if content is None:
        return []
    if isinstance(content, dict):
        whole = cast("dict[str, Any]", content)
        content = [whole if isinstance(whole.get("text"), str) else dump_json(whole).decode()]
    items: Any = [content] if isinstance(content, str) else content
    if not isinstance(items, list):
        raise bad_response(f"the content is {type(content).__name__}, not text")
    parts = cast("list[Any]", items)
    return [{"text": item} if isinstance(item, str) else json_object(item) or {} for item in parts]


def _is_same_detail(known: dict[str, Any], item: dict[str, Any]) -> bool:
    other_id = known.get("id") and item.get("id") and known["id"] != item["id"]
    return not other_id and all(known.get(name) == item.get(name) for name in ("index", "type"))
