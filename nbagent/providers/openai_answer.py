"""What a Chat Completions server answers: chunks and whole bodies, folded into one response.

Tolerant of what servers of this dialect get wrong: indexes, ids, names, nulls, field names.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import Any, cast

import orjson

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.chat import (
    ChatChunk,
    ChatResponse,
    FinishReason,
    Message,
    ResponseMeta,
    TextPart,
    ToolCall,
    ToolCallDelta,
    Usage,
    is_keepable,
    parse_arguments,
)
from nbagent.contracts.errors import ModelError
from nbagent.providers.failures import start_of, stream_error
from nbagent.providers.names import WireNames
from nbagent.providers.sse import EventSplitter

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "length": "length",
    "model_length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "error": "error",
    "insufficient_system_resource": "error",
    "network_error": "error",
}
_CALL_FIELDS = frozenset({"index", "id", "type", "function"})
_MOST_TOKENS = 2**53
"""Of one count."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class AnswerReader:
    """From the pieces of a 200 body to chunks: an event stream, or one JSON object."""

    def __init__(self, fold: AnswerFold) -> None:
        self.fold = fold
        self.done = False
        """`[DONE]` was read; what follows does not matter."""
        self._events: EventSplitter | None = None
        self._head = bytearray()
        self._is_json = False
        self._saw_event = False

    @property
    def complete(self) -> bool:
        """Whether nothing that matters is still to come."""
        return self.done or self.fold.finished

    def feed(self, piece: bytes) -> list[ChatChunk]:
        """The chunks that this piece completes."""
        if self._events is not None:
            return self._take(self._events.feed(piece))
        self._head += piece
        if self._is_json:
            return []
        # The first byte tells, whatever the content type says; keep-alives send blank lines first.
        start = bytes(self._head).removeprefix(b"\xef\xbb\xbf").lstrip()
        if start[:1] in (b"{", b"["):
            self._is_json = True
        elif start and not b"\xef\xbb\xbf".startswith(start):
            self._events = EventSplitter()
            return self._take(self._events.feed(start))
        elif not start:
            self._head.clear()
        return []

    def end(self) -> list[ChatChunk]:
        """The body is over: the chunks still held.

        Raises:
            ModelError: the answer is not one, or was cut off.
        """
        out: list[ChatChunk] = []
        if self._is_json:
            self.fold.take_body(load_wire(bytes(self._head)), out)
            return out
        if self._events is not None and not self.done:
            try:
                out = self._take(self._events.flush())
            except ModelError:
                # Half an event after the finish reason is lost usage, not a lost answer.
                if not self.fold.finished:
                    raise
        if not self._saw_event:
            shown = start_of(self._head)
            raise _bad(f"neither JSON nor an event stream came{f' ({shown!r})' if shown else ''}")
        if not self.complete:
            raise _bad("the stream was cut before the answer was complete; try again")
        if not self.fold.answered:
            raise _bad("the stream held no answer")
        return out

    def _take(self, events: list[tuple[bytes, bytes]]) -> list[ChatChunk]:
        out: list[ChatChunk] = []
        for _, data in events:
            if self.done:
                break
            if data.startswith(b"[DONE]"):
                self.done = self._saw_event = True
                break
            if data.strip():
                self.fold.take(load_wire(data), out)
                self._saw_event = True
        return out


class _Draft:
    """A tool call that is still arriving."""

    __slots__ = ("arguments", "extra", "id", "name", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.extra: dict[str, Any] = {}


class AnswerFold:
    """Everything that one answer has brought so far."""

    def __init__(self, names: WireNames, *, provider: str, origin: str, model: str) -> None:
        self._names = names
        self._source = {"provider": provider, "origin": origin, "model": model}
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._reasoning_field: str | None = None
        self._details: list[dict[str, Any]] = []
        self._fields: dict[str, Any] = {}
        self._refused = False
        self._drafts: list[_Draft] = []
        self._by_index: dict[int, _Draft] = {}
        self._usage: Any = None
        self._finish: str | None = None
        self._model = ""
        self.answered = False
        """A choice has come, whatever was in it."""

    @property
    def finished(self) -> bool:
        """Whether a finish reason has come."""
        return self._finish is not None

    def take(self, found: Any, out: list[ChatChunk]) -> None:
        """Fold one chunk of a stream; what can be shown is appended to `out`."""
        # One call per delta: no helper functions on the way of a plain piece of text.
        if found.__class__ is not dict:
            raise _bad(f"a chunk is {type(found).__name__}, not an object")
        chunk: dict[str, Any] = found
        if chunk.get("error"):
            raise stream_error(chunk)
        if usage := chunk.get("usage"):
            self._usage = usage  # Cumulative where it comes more than once: never added up.
        choices = chunk.get("choices")
        if not choices:
            self._take_aside(chunk)
            return
        first: Any = choices[0] if choices.__class__ is list else None
        if first.__class__ is not dict:
            raise _bad("`choices` is not a list of objects")
        choice: dict[str, Any] = first
        if not self._model:
            self._model = str(chunk.get("model") or "")
        self.answered = True
        if delta := choice.get("delta"):
            self._take_delta(delta, out, whole=False)
        if message := choice.get("message"):
            self._take_late(message, out)
        if finish := choice.get("finish_reason"):
            self._finish = str(finish)
            self._take_aside(chunk)

    def take_body(self, body: Any, out: list[ChatChunk]) -> None:
        """Fold a whole answer, as it comes without streaming."""
        found = json_object(body) or _first_object(body)
        if found is None:
            raise _bad(f"the body is {type(body).__name__}, not an object")
        if found.get("error"):
            raise stream_error(found)
        choice = _first_object(found.get("choices"))
        message = json_object(choice.get("message") or choice.get("delta")) if choice else None
        if choice is None or message is None:
            raise _bad("there is no choice with a message in it", retry="choices" in found)
        self.answered = True
        self._usage = found.get("usage")
        self._model = str(found.get("model") or "")
        self._take_delta(message, out, whole=True)
        self._finish = str(choice.get("finish_reason") or "stop")

    def refuse(self) -> None:
        """The provider's filter stopped the request: the answer is empty."""
        self._refused = True

    def response(self, meta: ResponseMeta) -> ChatResponse:
        """The whole answer."""
        calls = self._calls()
        text = "".join(self._text)
        raw: dict[str, Any] = {}
        if self._reasoning_field:
            raw["reasoning_field"] = self._reasoning_field
        if self._details:
            self._fields["reasoning_details"] = self._details
        if self._fields:
            raw["fields"] = self._fields
        message = Message(
            role="assistant",
            content=(TextPart(text=text),) if text else (),
            tool_calls=tuple(calls),
            reasoning="".join(self._reasoning) or None,
            raw={**self._source, **raw} if raw or calls else None,
        )
        return ChatResponse(
            message=message,
            usage=usage_of(self._usage),
            model=self._model or self._source["model"],
            finish_reason=self._finish_reason(bool(calls), bool(text)),
            meta=meta,
        )

    def _take_delta(self, delta: Any, out: list[ChatChunk], *, whole: bool) -> None:
        if delta.__class__ is not dict:
            raise _bad("the delta is not an object")
        content = delta.get("content")
        if content.__class__ is str:
            if content:
                self._add_text(content, out)
            if len(delta) == 1:
                return
        elif content is not None:
            self._take_content(content, out)
        for field in ("reasoning", "reasoning_content"):
            thought = delta.get(field)
            if isinstance(thought, str) and thought:
                # Some servers send both names with the same text: the first one counts.
                if self._reasoning_field in (None, field):
                    self._reasoning_field = field
                    self._add_reasoning(thought, out)
                break
        calls = delta.get("tool_calls")
        if calls:
            self._take_calls(calls, out, whole=whole)
        self._take_rare(delta, out)

    def _take_rare(self, delta: dict[str, Any], out: list[ChatChunk]) -> None:
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._refused = True
            self._add_text(refusal, out)
        old = json_object(delta.get("function_call"))
        if old:
            self._take_calls([{"index": 0, "function": old}], out, whole=False)
        details = delta.get("reasoning_details")
        if isinstance(details, list):
            for item in cast("list[Any]", details):
                if isinstance(item, dict):
                    self._take_detail(cast("dict[str, Any]", item))
        if extra := json_object(delta.get("extra_content")):
            self._fields["extra_content"] = extra  # Gemini's thought signature of a plain answer.

    def _take_late(self, message: Any, out: list[ChatChunk]) -> None:
        """Some servers put the whole message into the last chunk: take what had not come."""
        if not isinstance(message, dict):
            return
        late = dict(cast("dict[str, Any]", message))
        if self._text:
            late.pop("content", None)
        if self._reasoning:
            late.pop("reasoning", None)
            late.pop("reasoning_content", None)
        if self._drafts:
            late.pop("tool_calls", None)
        self._take_delta(late, out, whole=True)

    def _take_aside(self, chunk: dict[str, Any]) -> None:
        groq = json_object(chunk.get("x_groq"))
        if groq:
            if groq.get("error"):
                raise stream_error(groq)
            self._usage = groq.get("usage") or self._usage

    def _take_content(self, content: Any, out: list[ChatChunk]) -> None:
        """Mistral's content is a list of text and thinking chunks."""
        if not isinstance(content, list):
            raise _bad(f"the content is {type(content).__name__}, not text")
        for item in cast("list[Any]", content):
            part = json_object(item) or {}
            if part.get("type") == "text" and isinstance(part.get("text"), str):
                self._add_text(part["text"], out)
            elif part.get("type") == "thinking":
                for piece in part.get("thinking") or ():
                    text = (json_object(piece) or {}).get("text")
                    if isinstance(text, str):
                        self._add_reasoning(text, out)

    def _add_text(self, text: str, out: list[ChatChunk]) -> None:
        if not self._text:
            # Hosts of Qwen, Kimi and gpt-oss start with newlines before a call.
            text = text.lstrip()
            if not text:
                return
        self._text.append(text)
        # What arrived together is shown together: one chunk for a burst of tokens.
        last = out[-1] if out else None
        if last is not None and last.content:
            last.content += text
        else:
            out.append(ChatChunk(text))

    def _add_reasoning(self, text: str, out: list[ChatChunk]) -> None:
        self._reasoning.append(text)
        out.append(ChatChunk(reasoning=text))

    def _take_detail(self, item: dict[str, Any]) -> None:
        last = self._details[-1] if self._details else None
        key = ("index", "type")
        if last is None or any(last.get(name) != item.get(name) for name in key):
            self._details.append(dict(item))
            return
        for name, value in item.items():
            before = last.get(name)
            if name in ("text", "summary", "data") and isinstance(before, str):
                last[name] = before + str(value or "")
            elif value is not None:
                last[name] = value

    def _take_calls(self, calls: Any, out: list[ChatChunk], *, whole: bool) -> None:
        if not isinstance(calls, list):
            raise _bad("`tool_calls` is not a list")
        for item in cast("list[Any]", calls):
            call = json_object(item)
            if call is None:
                raise _bad("a tool call is not an object")
            function = json_object(call.get("function")) or {}
            call_id, name = _present(call.get("id")), _present(function.get("name"))
            draft = self._draft(call.get("index"), call_id, name, whole=whole)
            fresh_name = bool(name) and not draft.name
            draft.id = draft.id or call_id
            draft.name = draft.name or name
            arguments = _arguments_text(function.get("arguments"))
            if arguments:
                draft.arguments.append(arguments)
            draft.extra.update({k: v for k, v in call.items() if k not in _CALL_FIELDS})
            shown = self._internal(draft.name) if fresh_name else None
            delta = ToolCallDelta(draft.position, draft.id or None, shown, arguments)
            out.append(ChatChunk(tool_call_delta=delta))

    def _draft(self, index: Any, call_id: str, name: str, *, whole: bool) -> _Draft:
        """The call that a fragment belongs to, or a new one."""
        if whole:
            return self._new_draft(None)
        if isinstance(index, int):
            draft = self._by_index.get(index)
            # Every parallel call with index 0: a new id is a new call.
            other = draft and call_id and draft.id and draft.id != call_id and draft.name
            return draft if draft and not other else self._new_draft(index)
        last = self._drafts[-1] if self._drafts else None
        if last is None or (call_id and call_id != last.id) or (name and not call_id):
            return self._new_draft(None)
        return last

    def _new_draft(self, index: int | None) -> _Draft:
        draft = _Draft(len(self._drafts))
        self._drafts.append(draft)
        if index is not None:
            self._by_index[index] = draft
        return draft

    def _calls(self) -> list[ToolCall]:
        seen: set[str] = set()
        calls: list[ToolCall] = []
        for draft in self._drafts:
            call_id = draft.id or f"call_{secrets.token_hex(12)}"
            base, n = call_id, 1
            while call_id in seen:
                n += 1
                call_id = f"{base}_{n}"
            seen.add(call_id)
            raw = "".join(draft.arguments)
            calls.append(
                ToolCall(
                    id=call_id,
                    name=self._internal(draft.name),
                    arguments=parse_arguments(raw),
                    arguments_raw=raw,
                    extra=draft.extra or None,
                )
            )
        return calls

    def _internal(self, name: str) -> str:
        return self._names.from_wire(name) or name

    def _finish_reason(self, has_calls: bool, has_text: bool) -> FinishReason:
        if self._refused:
            return "content_filter"
        reason = _FINISH.get(self._finish or "stop")
        if reason is None:
            reason = "stop" if has_text or has_calls else "error"
        if reason in ("stop", "tool_calls"):
            return "tool_calls" if has_calls else "stop"
        return reason


def usage_of(value: Any) -> Usage | None:
    """The tokens of a `usage` object; None when there is none."""
    usage = json_object(value)
    if usage is None:
        return None
    prompt, completion = _tokens(usage, "prompt_tokens"), _tokens(usage, "completion_tokens")
    prompt_details = json_object(usage.get("prompt_tokens_details")) or {}
    completion_details = json_object(usage.get("completion_tokens_details")) or {}
    cached = _tokens(prompt_details, "cached_tokens") or _tokens(usage, "prompt_cache_hit_tokens")
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=_tokens(usage, "total_tokens") or prompt + completion,
        cached_tokens=cached,
        reasoning_tokens=_tokens(completion_details, "reasoning_tokens"),
    )


def load_wire(data: bytes) -> Any:
    """Decode JSON of a server: NaN and lone surrogates are accepted, broken text is not."""
    try:
        return orjson.loads(data)
    except ValueError:
        pass
    try:
        # Without lone surrogates: neither SQLite nor a front end can take them.
        return _mended(json.loads(data.decode("utf-8-sig")))
    except (ValueError, RecursionError):
        shown = start_of(data)
    raise _bad(f"a part of it is not JSON ({shown!r})")


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_mended(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {_mended(k): _mended(v) for k, v in cast("dict[str, Any]", value).items()}
    return value


def _tokens(holder: dict[str, Any], name: str) -> int:
    value = holder.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    # No model has read so much: a broken counter says nothing, also not about the price.
    return int(value) if 0 <= value <= _MOST_TOKENS else 0


def _first_object(value: Any) -> dict[str, Any] | None:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return json_object(items[0]) if items else None


def _present(value: Any) -> str:
    return value if isinstance(value, str) and value != "null" else ""


def _arguments_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if not is_keepable(value):
        # Text that is JSON and no object: the call is answered with an error, the rest is kept.
        return '"arguments nested too deeply, or with a number that is too large"'
    return dump_json(value).decode()


def _bad(what: str, *, retry: bool = False) -> ModelError:
    return ModelError(
        f"the server's answer cannot be used: {what}.", code="LLM_BAD_RESPONSE", retryable=retry
    )
