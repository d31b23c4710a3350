"""What Chat Completions servers answer: chunks and whole bodies, given to an `Assembly`.

Tolerant of what servers of this wire get wrong (providers.md 10). The request is in `chat`.
"""

from __future__ import annotations

from typing import Any, cast

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.model import ChatRequest
from nbagent.providers.answer.builder import Assembly
from nbagent.providers.answer.fields import objects_in
from nbagent.providers.answer.vendor_words import (
    finish_reason,
    frame_object,
    index_of,
    take_call,
    usage_in,
)
from nbagent.providers.http_errors import stream_error
from nbagent.providers.transport.sse import bad_answer
from nbagent.providers.wires.base import Parser

REASONING_FIELDS = ("reasoning", "reasoning_content")
_DETAILS = "reasoning_details"
OPAQUE_FIELDS = ("extra_content", _DETAILS)
"""Of a message: what only the server can read, and what goes back to it."""
_CALL_FIELDS = frozenset({"index", "id", "type", "function", "custom"})
_MOST_NEAR = 64  # Details are sent side by side by so many at most.
_JOINED = ("text", "summary", "signature", "data")


class ChatParser(Parser):
    """Reads one answer."""

    done_ends = True

    def __init__(self, request: ChatRequest, into: Assembly) -> None:
        super().__init__(request, into)
        self._index: int | None = None
        """Of the choice that is read, once it is known. Choices are never mixed."""

    def event(self, name: bytes, data: Any) -> None:
        """Fold one chunk of a stream, or a whole body; an error may come in a list (Gemini)."""
        # One call per delta: no helper functions on the way of a plain piece of text.
        into = self._into
        chunk = data if data.__class__ is dict else frame_object(data, into)
        if "x_groq" in chunk:
            aside = json_object(chunk["x_groq"]) or {}
            chunk = {**chunk, **{k: aside[k] for k in ("usage", "error") if aside.get(k)}}
        if usage := chunk.get("usage"):
            into.usage(usage_in(usage))
        if chunk.get("error"):
            into.fail(stream_error(chunk))
            return
        choices: Any = chunk.get("choices")
        choice: Any = choices[0] if choices.__class__ is list and len(choices) == 1 else None
        if choice.__class__ is not dict or choice.get("index", 0) != self._index:
            choice = self._pick(choices)
            if choice is None:
                # OpenRouter, when no host answered.
                into.nobody_answered |= "choices" in chunk and choices is None
                return
        if not into.model:
            into.model = str(chunk.get("model") or "")
        into.answered = True
        if delta := choice.get("delta"):
            self._take_delta(delta, whole=False)
        if message := json_object(choice.get("message")):
            self._take_late(message)
        if choice.get("error"):
            into.fail(stream_error(choice))
        elif finish := choice.get("finish_reason"):
            word = str(finish)
            into.finish(finish_reason(word), word)

    def whole(self, body: Any) -> None:
        """Fold a whole answer: a chunk with a message, which is over without a finish reason."""
        found = body if body.__class__ is dict else frame_object(body, self._into)
        choice = self._pick(objects_in(found.get("choices"))) or {}
        message = json_object(choice.get("message") or choice.get("delta"))
        if not (message or choice.get("error") or found.get("error")):
            raise bad_answer("there is no choice with a message in it", retry="choices" in found)
        self.event(b"", found)
        if not self._into.finished:
            if "message" not in choice:
                raise bad_answer("the stream was cut before the answer was complete")
            self._into.finish("stop")

    def _pick(self, choices: Any) -> dict[str, Any] | None:
        """The choice with index 0, or else the first one; None when only others are here."""
        listed = objects_in(choices)
        if choices and not listed:
            raise bad_answer("`choices` is not a list of objects")
        offered = {index_of(choice.get("index")) or 0: choice for choice in reversed(listed)}
        if self._index is None and offered:
            self._index = 0 if 0 in offered else min(offered)
        return offered.get(self._index or 0)

    def _take_late(self, message: dict[str, Any]) -> None:
        """A whole message, which some servers put into the last chunk: what had not come."""
        into = self._into
        thoughts = into.has_reasoning or "fields" in into.kept
        came = {
            **dict.fromkeys(("content", "refusal"), into.has_text),
            "tool_calls": into.has_calls,
            **dict.fromkeys((*REASONING_FIELDS, _DETAILS), thoughts),
        }
        late = {name: value for name, value in message.items() if not came.get(name)}
        self._take_delta(late, whole=True)

    def _take_delta(self, delta: Any, *, whole: bool) -> None:
        if delta.__class__ is not dict:
            raise bad_answer("the delta is not an object")
        into, content = self._into, delta.get("content")
        if len(delta) == 1 and content.__class__ is str:
            into.text(content)
            return
        # First, so that reasoning and the first word of the answer may share a delta.
        self._take_reasoning(delta, whole=whole)
        for part in _parts_of(content):
            if part.get("type") == "thinking":
                thoughts = (it.get("text") for it in _parts_of(part.get("thinking")))
                into.reasoning("".join(text for text in thoughts if isinstance(text, str)))
            elif part.get("type", "text") == "text" and isinstance(part.get("text"), str):
                into.text(part["text"])
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            into.refused = True
            into.text(refusal)
        if calls := delta.get("tool_calls"):
            self._take_calls(calls, whole=whole)
        if extra := json_object(delta.get("extra_content")):
            # Gemini's signature of a plain answer.
            into.kept.setdefault("fields", {})["extra_content"] = extra

    def _take_reasoning(self, delta: dict[str, Any], *, whole: bool) -> None:
        for field in REASONING_FIELDS:
            value = delta.get(field)
            if isinstance(value, str) and value:
                self._into.reasoning(value, field)
                break  # Some servers send both names with the same text: the first one counts.
        for item in objects_in(delta.get(_DETAILS)):
            self._take_detail(item, whole=whole)
            text = item.get("text") or item.get("summary")
            if "reasoning_field" not in self._into.kept and isinstance(text, str):
                self._into.reasoning(text)

    def _take_detail(self, item: dict[str, Any], *, whole: bool) -> None:
        """A detail of OpenRouter's, or a fragment that goes on with an earlier one."""
        fields = self._into.kept.setdefault("fields", {})
        details: list[dict[str, Any]] = fields.setdefault(_DETAILS, [])
        # Without an index only the last one can be meant.
        near = details[-1:] if item.get("index") is None else details[:-_MOST_NEAR:-1]
        known = next((it for it in near if _is_same_detail(it, item)), None)
        if whole or known is None:
            details.append(dict(item))
            return
        for name, value in item.items():
            before = known.get(name)
            if name in _JOINED and isinstance(before, str):
                known[name] = before + (value if isinstance(value, str) else "")
            elif value is not None:
                known[name] = value

    def _take_calls(self, calls: Any, *, whole: bool) -> None:
        if objects_in(calls) != calls:
            raise bad_answer("`tool_calls` is not a list of objects")
        for call in objects_in(calls):
            key = object() if whole else index_of(call.get("index"))
            extra = {k: v for k, v in call.items() if k not in _CALL_FIELDS}
            take_call(self._into, key, call, call.get("function") or call.get("custom"), extra)


def _parts_of(content: Any) -> list[dict[str, Any]]:
    """Any form of content as parts: a text, a list (Mistral), an object (gateways in JSON mode)."""
    if content is None:
        return []
    if isinstance(content, dict):
        whole = cast("dict[str, Any]", content)
        content = [whole if isinstance(whole.get("text"), str) else dump_json(whole).decode()]
    items: Any = [content] if isinstance(content, str) else content
    if not isinstance(items, list):
        raise bad_answer(f"the content is {type(content).__name__}, not text")
    parts = cast("list[Any]", items)
    return [{"text": it} if isinstance(it, str) else json_object(it) or {} for it in parts]


def _is_same_detail(known: dict[str, Any], item: dict[str, Any]) -> bool:
    other_id = known.get("id") and item.get("id") and known["id"] != item["id"]
    return not other_id and all(known.get(it) == item.get(it) for it in ("index", "type"))
