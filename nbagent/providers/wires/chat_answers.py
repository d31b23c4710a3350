"""Read answers of Chat Completions servers: chunks and whole bodies. Requests are in `chat`.

Tolerant of the servers' known faults: `choices` empty or null in the chunk with the usage, the
usage repeated in each chunk, `delta` null (Azure), content as a list (Mistral), no finish reason,
"stop" although calls came, error objects inside a 200 answer, a whole message in the last chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.deltas import ReasoningPiece, TextPiece
from nbagent.contracts.errors import ModelError
from nbagent.contracts.model import ChatRequest
from nbagent.providers.answer.content_parts import (
    joined_text,
    nothing_readable,
    read_content,
    unread_names,
)
from nbagent.providers.answer.finish_words import read_finish
from nbagent.providers.answer.images import find_files
from nbagent.providers.answer.json_fields import objects_in
from nbagent.providers.answer.vendor_words import (
    call_part,
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
from nbagent.providers.transport.sse import bad_response, safe_line
from nbagent.providers.wires.base import Parser

REASONING_FIELDS = ("reasoning", "reasoning_content", "reasoning_text", "thinking")
"""OpenRouter and vLLM; DeepSeek and most others; GitHub's models; gateways to Ollama."""
_REASONING_DETAILS = "reasoning_details"
REPLAYED_FIELDS = ("extra_content", _REASONING_DETAILS)
"""Fields of a message that only the server reads; they go back to it unchanged. OpenRouter needs
`reasoning_details` in tool loops, Gemini its signature in `extra_content`, else it answers 400."""
_CALL_FIELDS = frozenset({"index", "id", "type", "function", "custom"})
_FLAT_CALL_FIELDS = frozenset({"name", "arguments", "args", "input", "parameters"})
_CHUNK_FIELDS = frozenset({"choices", "obfuscation"})
_CHOICE_FIELDS = frozenset(
    {"index", "message", "delta", "finish_reason", "logprobs", "text", "error", "usage"}
)
"""Fields that are read here, or come piece by piece."""
_TEXT_FIELDS = ("text", "output_text")
"""Fields that some servers write instead of `content`."""
_MESSAGE_FIELDS = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "extra_content"}
    | {*REASONING_FIELDS, _REASONING_DETAILS, "annotations", "provider_specific_fields", "name"}
    | {"id", "type", "images", *_TEXT_FIELDS}
)
"""Fields of a message or a choice that are read here, or that hold no part of the answer."""
_PROMPT_FILTERS = ("prompt_filter_results", "prompt_annotations")
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
        self._has_old_call = False
        """The call is in `function_call`."""
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
                yield from self._read_without_choice(chunk)
                return
        finish = choice.get("finish_reason")
        if finish or not self._has_begun:
            yield from self._further_fields(chunk, choice)
            if not usage and choice.get("usage"):  # Moonshot
                yield UsageReport(read_usage(choice["usage"]))
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
        else:
            yield from self._read_without_delta(choice)
        if "message" in choice and (message := _message(choice)):
            yield from self._read_final_message(message)
        if choice.get("error"):
            yield ServerFault(stream_error(choice))
        elif finish and (ending := read_finish(finish)):
            yield ending

    def read_whole(self, body: Any) -> Iterator[WireDelta]:
        """Read a whole answer: a chunk with a message; it is complete without a finish reason."""
        answer = body if body.__class__ is dict else frame_object(body)
        choice = self._select_choice(objects_in(answer.get("choices"))) or {}
        if not (choice or answer.get("error") or any(name in answer for name in _PROMPT_FILTERS)):
            raise _without_message(answer, choice)
        yield from self.read_event(b"", answer)
        if not _has_message(choice):
            if not (self._progress.finished and _needs_no_message(choice)):
                raise _without_message(answer, choice)
        elif not self._progress.finished:
            if "delta" in choice and "message" not in choice:
                raise bad_response("the stream was cut before the answer was complete")
            yield Finish("stop")

    def _read_without_choice(self, chunk: dict[str, Any]) -> Iterator[WireDelta]:
        # OpenRouter sends null choices without an error if no host answered.
        if "choices" in chunk and chunk["choices"] is None:
            yield Facts(no_host=True, begun=False)
        results = next((chunk[name] for name in _PROMPT_FILTERS if name in chunk), None)
        if any(map(_is_filtered, objects_in(results))):
            yield Finish("content_filter", "prompt_filter")

    def _read_without_delta(self, choice: dict[str, Any]) -> Iterator[WireDelta]:
        text = choice.get("text")  # Servers of the older Completions API.
        if isinstance(text, str):
            yield TextPiece(text)
        elif not _message(choice) and (unread := unread_names(choice, _CHOICE_FIELDS)):
            yield unread

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
        content = delta.get("content")
        if content is None:
            content = next((delta[name] for name in _TEXT_FIELDS if name in delta), None)
        yield from read_content(content)
        # OpenRouter and LiteLLM send images beside the text.
        for sent in find_files(delta.get("images")):
            yield Picture(sent)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            yield Facts(refused=True)
            yield TextPiece(refusal)
        if calls := delta.get("tool_calls"):
            yield from self._read_calls(calls, whole=whole)
        elif function := json_object(delta.get("function_call")):
            yield from self._read_function_call(function)
        if extra := json_object(delta.get("extra_content")):
            # Gemini's signature of an answer without calls.
            self._fields["extra_content"] = extra
            yield Facts(raw={"fields": self._fields})
        if unread := unread_names(delta, _MESSAGE_FIELDS):
            yield unread

    def _read_function_call(self, function: dict[str, Any]) -> Iterator[WireDelta]:
        """Read the call of an old server, if the answer has none in `tool_calls`."""
        self._has_old_call |= not self._progress.has_calls
        if self._has_old_call:
            yield call_part(0, {}, function)

    def _read_reasoning(self, delta: dict[str, Any], *, whole: bool) -> Iterator[WireDelta]:
        for field in REASONING_FIELDS:
            value = delta.get(field)
            if value and not isinstance(value, str):
                value = joined_text(value)  # Parts, or an object, of gateways.
            if value:
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
        calls = [calls] if json_object(calls) and _CALL_FIELDS & calls.keys() else calls
        if objects_in(calls) != calls:
            raise bad_response("`tool_calls` is not a list of objects")
        for call in objects_in(calls):
            key = object() if whole else parse_index(call.get("index"))
            body = call.get("function") or call.get("custom")
            known = _CALL_FIELDS
            if body is None:  # Name and arguments beside the id.
                body, known = call, known | _FLAT_CALL_FIELDS
            extra = {k: v for k, v in call.items() if k not in known}
            yield call_part(key, call, body, extra)


def _message(choice: dict[str, Any]) -> dict[str, Any] | None:
    """Return the whole message of a choice; None if there is none."""
    message = choice.get("message")
    return {"content": message} if isinstance(message, str) else json_object(message)


def _has_message(choice: dict[str, Any]) -> bool:
    message = _message(choice) or json_object(choice.get("delta"))
    return bool(message) or isinstance(choice.get("text"), str)


def _needs_no_message(choice: dict[str, Any]) -> bool:
    """True for an end before the first word: filtered (Azure), or cut within the reasoning."""
    ending = read_finish(choice.get("finish_reason"))
    return not choice or (ending is not None and ending.reason not in (None, "stop", "tool_calls"))


def _without_message(answer: dict[str, Any], choice: dict[str, Any]) -> ModelError:
    """Build the error of a body without a message; a choice was paid, so it asks once more."""
    if not choice:
        names = ", ".join(safe_line(name, 40) for name in list(answer)[:8])
        reason = f"there is no choice with a message in it (it has: {names or 'nothing'})"
        return bad_response(reason, retry="choices" in answer)
    unread = unread_names(choice, _CHOICE_FIELDS)
    return nothing_readable(unread.unread if unread else ())


def _is_filtered(result: dict[str, Any]) -> bool:
    """True if Azure's filter stopped the prompt."""
    categories = json_object(result.get("content_filter_results")) or {}
    return any((json_object(value) or {}).get("filtered") is True for value in categories.values())


def _is_same_detail(known: dict[str, Any], item: dict[str, Any]) -> bool:
    other_id = known.get("id") and item.get("id") and known["id"] != item["id"]
    return not other_id and all(known.get(name) == item.get(name) for name in ("index", "type"))
