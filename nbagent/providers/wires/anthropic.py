"""Anthropic's Messages wire: what a request is, and how an answer is read.

Wire facts: Anthropic's API reference and types (providers.md 8).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import ImagePart, Message, Part, parse_arguments
from nbagent.contracts.model import ChatRequest, ToolSpec
from nbagent.providers.address import normal_base_url
from nbagent.providers.answer.builder import Assembly
from nbagent.providers.answer.fields import arguments_of, objects_in, text_or_empty, tokens
from nbagent.providers.answer.vendor_words import finish_reason, frame_object, index_of, usage_in
from nbagent.providers.transport.sse import bad_answer
from nbagent.providers.wires.base import (
    Encoding,
    Lesson,
    Parser,
    Wire,
    described,
    effort_word,
    only_set,
    version_in,
)
from nbagent.providers.wires.encoding import (
    arguments_object,
    attached,
    is_failure,
    readable,
    results_together,
    unreadable,
    wire_id,
)
from nbagent.providers.wires.tool_names import WireNames
from nbagent.providers.wires.tool_schemas import can_be_closed, closed_schema, wire_schema

_CURRENT = "2026-10-21"
_COMPATIBLE = "2023-06-01"
"""What proxies and servers of others expect."""
_MAX_TOKENS = 16_000
"""The field is required; thinking is within it. Every model that is served takes so many."""
_BINDING_BETA = "thinking-binding-controls-2026-08-01"
_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_BUDGETS = {"low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 24_576, "max": 32_768}
_LEAST_BUDGET = 1_024
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_CACHED = {"type": "ephemeral"}
_ENDS_IN_VERSION = re.compile(r"/v\d+\w*$")
_THINKING = frozenset({"thinking", "redacted_thinking"})
_BOUND = "bound to a different conversation"
_UNFIT = re.compile(
    rf"{_BOUND}|invalid .?signature|thinking.? blocks\b.{{0,80}}cannot be modified", re.I | re.S
)
_WRITTEN = ("text", "thinking", "signature", "input_json")
"""Fields of blocks that come in pieces."""
_PROMPT_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_PLAIN = frozenset({"text", "tool_use"})
"""Blocks that can be written again from the message itself."""


class AnthropicParser(Parser):
    """Reads one answer."""

    def __init__(self, request: ChatRequest, into: Assembly) -> None:
        super().__init__(request, into)
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}
        """Of the fields of blocks."""
        self._usage: dict[str, Any] = {}
        self._word = ""

    def event(self, name: bytes, data: Any) -> None:
        """Take one event. Its data repeats its name."""
        found = frame_object(data, self._into)
        place = index_of(found.get("index")) or 0
        match text_or_empty(found.get("type")) or name.decode("ascii", "replace"):
            case "content_block_delta":
                self._delta(place, json_object(found.get("delta")) or {})
            case "content_block_start":
                self._begin(place, json_object(found.get("content_block")) or {})
            case "message_start":
                self._head(json_object(found.get("message")) or {})
            case "message_delta":
                self._tail(json_object(found.get("delta")) or {}, found.get("usage"))
            case "message_stop":
                self._finish()
            case _:
                pass  # `ping`, the end of a block, and what a later version adds.

    def whole(self, body: Any) -> None:
        """Take a whole message."""
        found = frame_object(body, self._into)
        blocks = objects_in(found.get("content"))
        if blocks != found.get("content"):
            raise bad_answer("there is no content in it")
        self._head(found)
        for place, block in enumerate(blocks):
            self._begin(place, block)
        self._tail(found, None)
        self._finish()

    def _head(self, message: dict[str, Any]) -> None:
        self._into.model = text_or_empty(message.get("model"))
        self._count(message.get("usage"))

    def _begin(self, place: int, block: dict[str, Any]) -> None:
        self._blocks[place] = dict(block)
        kind = block.get("type")
        if kind == "tool_use":
            call_id, name = text_or_empty(block.get("id")), text_or_empty(block.get("name"))
            self._into.call(place, id=call_id, name=name)
        elif kind in ("text", "thinking"):
            self._show(kind, block.get(kind))

    def _delta(self, place: int, delta: dict[str, Any]) -> None:
        field = text_or_empty(delta.get("type")).removesuffix("_delta")
        if field not in _WRITTEN:
            return
        piece = delta.get("partial_json" if field == "input_json" else field)
        if not isinstance(piece, str):
            raise bad_answer(f"a piece of {field} is no text")
        self._pieces.setdefault((place, field), []).append(piece)
        if field == "input_json" and self._blocks.get(place, {}).get("type") == "tool_use":
            self._into.call(place, arguments=piece)
        self._show(field, piece)

    def _show(self, field: str, piece: Any) -> None:
        show = {"text": self._into.text, "thinking": self._into.reasoning}.get(field)
        if show and isinstance(piece, str) and piece:
            show(piece)

    def _joined(self, place: int) -> dict[str, Any]:
        """A block with all that was written of it."""
        block = self._blocks[place]
        written = "".join(self._pieces.get((place, "input_json"), ()))
        if block.get("type") == "tool_use":
            given = block.pop("input", None)
            if not written:  # What was given at the start counts where no pieces followed.
                self._into.call(place, arguments=arguments_of(given or None))
        elif written:
            # A tool of the server's own: not ours to run, and sent back as it was.
            block["input"] = parse_arguments(written) or {}
        for field in _WRITTEN[:3]:
            if pieces := self._pieces.get((place, field)):
                block[field] = "".join([text_or_empty(block.get(field)), *pieces])
        return block

    def _tail(self, delta: dict[str, Any], usage: Any) -> None:
        self._word = text_or_empty(delta.get("stop_reason")) or self._word
        self._count(usage)
        if details := json_object(delta.get("stop_details")):
            self._into.keep(stop_details=details)
            if self._word == "refusal" and not self._into.has_text:
                self._into.text(text_or_empty(details.get("explanation")))

    def _count(self, usage: Any) -> None:
        """Cumulative: what is there and not null is the last word."""
        self._usage.update(only_set(json_object(usage) or {}))

    def _finish(self) -> None:
        into = self._into
        blocks = [self._joined(place) for place in sorted(self._blocks)]
        blocks = [block for block in blocks if text_or_empty(block.get("type"))]
        if any(block["type"] not in _PLAIN for block in blocks):
            into.keep(blocks=blocks)
        # `input_tokens` is without what was read from the cache or written into it.
        prompt = sum(tokens(self._usage, name) for name in _PROMPT_COUNTS)
        into.usage(usage_in({**self._usage, "input_tokens": prompt} if self._usage else None))
        into.finish(finish_reason(self._word), self._word)
        into.end()


class Anthropic(Wire):
    """Messages, at Anthropic or at a server that speaks it."""

    name = "anthropic"
    parser = AnthropicParser
    endings = ("/messages",)
    key_header = "x-api-key"
    key_prefix = ""
    next_page = ("last_id", "after_id")
    reserved = frozenset({"messages", "tools", "system"})

    def __init__(self, base_url: str, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(normal_base_url(base_url, home=self.home, endings=self.endings))
        self._is_anthropic = not base_url or f".{parts.hostname}".endswith(".anthropic.com")
        # Anthropic's own client adds /v1 itself: servers name their base URL without it.
        root = "" if _ENDS_IN_VERSION.search(parts.path) else "/v1"
        self.endings = (f"{root}/messages", *self.endings)
        self.models_path = f"{root}/models?limit=1000"
        given = {name.lower(): text for name, text in (headers or {}).items()}
        version = given.get("anthropic-version", "").strip()
        self._version = version or (_CURRENT if self._is_anthropic else _COMPATIBLE)
        if self._version != _COMPATIBLE:
            # Removed with version 2026-10-21: any value is refused.
            self.lacks = frozenset({"temperature", "top_p"})

    def headers(self, flags: frozenset[str]) -> Mapping[str, str]:
        """The version, and the beta that a changed conversation needs."""
        beta = {"anthropic-beta": _BINDING_BETA} if "drop_block" in flags else {}
        return {"anthropic-version": self._version, **beta}

    def params(
        self, request: ChatRequest, names: WireNames, flags: frozenset[str], *, stream: bool
    ) -> dict[str, Any]:
        """All of the body but system, messages and tools."""
        most = request.max_tokens or _MAX_TOKENS
        params: dict[str, Any] = {
            "model": request.model,
            "max_tokens": most,
            "stop_sequences": list(request.stop_sequences) or None,
            "stream": stream or None,
        }
        if request.tools:
            choice = request.tool_choice or "auto"
            known = _CHOICES.get(choice)
            named = {"type": "tool", "name": names.to_wire(choice)}
            params["tool_choice"] = {"type": known} if known else named
        if not self.lacks:
            params |= {"temperature": request.temperature, "top_p": request.top_p}
        self._add_thinking(params, request, flags)
        if request.output_schema is not None:
            form = {"type": "json_schema", "schema": closed_schema(request.output_schema)}
            params.setdefault("output_config", {})["format"] = form
        if self._is_anthropic:
            params["cache_control"] = _CACHED  # Marks the last block: the conversation so far.
        return only_set(params)

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """Of its own models from 4.5 on, for schemas that stay the same with closed objects."""
        version = version_in(request.model, _VERSION)
        return self._is_anthropic and version >= (4, 5) and can_be_closed(request.output_schema)

    def tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """A tool of the person's."""
        return {**described(spec, name), "input_schema": wire_schema(spec.parameters)}

    def groups(
        self, messages: Sequence[Message], flags: frozenset[str]
    ) -> Iterable[tuple[Message, ...]]:
        """The results of a turn go in one message."""
        return results_together(messages)

    def encode(self, group: tuple[Message, ...], context: Encoding) -> list[Any]:
        """Messages of the user that follow each other are joined by the server, in order."""
        if group[0].role == "assistant":
            role, blocks = "assistant", _assistant_blocks(group[0], context)
        elif group[0].role == "tool":
            role, blocks = "user", [_result(message) for message in group]
        else:
            role, blocks = "user", _blocks(group[0].content)
        return [{"role": role, "content": blocks}] if blocks else []

    def system_fields(self, text: str) -> dict[str, Any] | None:
        """The system text is marked: tools and system are read from the cache from then on."""
        block: dict[str, Any] = {"type": "text", "text": text}
        return {"system": [{**block, "cache_control": _CACHED} if self._is_anthropic else block]}

    def lesson(
        self, error: ModelError, request: ChatRequest, flags: frozenset[str]
    ) -> Lesson | None:
        """Blocks of thinking that no longer fit."""
        if error.status != 400 or not _UNFIT.search(error.server_text):
            return None
        # The server leaves out only what does not fit; with thinking off it cannot.
        if (
            _BOUND in error.server_text
            and "drop_block" not in flags
            and request.reasoning != "none"
        ):
            told = "earlier thinking is left out where the conversation before it has changed"
            return Lesson("drop_block", told)
        return Lesson("no_replay", "earlier thinking is left out: the server refuses it")

    def _add_thinking(
        self, params: dict[str, Any], request: ChatRequest, flags: frozenset[str]
    ) -> None:
        asked, version, thinking = request.reasoning, version_in(request.model, _VERSION), None
        if asked == "none":
            between = "sonnet" in request.model and version >= (5, 5)
            # A model of another maker has none.
            if not (0, 0) < version < (5, 0):  # Those think only if they are asked to.
                thinking = {"type": "between_tools" if between else "disabled"}
        # The generation 4.6 takes both.
        elif asked and (version < (4, 6) or (version == (4, 6) and asked.isdecimal())):
            most = int(asked) if asked.isdecimal() else _BUDGETS.get(asked, 0)
            most = max(_LEAST_BUDGET, most)
            thinking = {"type": "enabled", "budget_tokens": most}
            # The budget is within max_tokens and must leave room for the answer.
            if params["max_tokens"] <= most:
                params["max_tokens"] = most + (request.max_tokens or _MAX_TOKENS)
        elif asked:
            thinking = {"type": "adaptive", "display": "summarized"}
            params["output_config"] = {"effort": effort_word(asked, {"minimal": "low"})}
        if "drop_block" in flags and asked != "none":
            binding = {"prefix_mismatch_behavior": "drop_block"}
            thinking = {**(thinking or {"type": "adaptive"}), "block_binding": binding}
        if thinking is not None:
            params["thinking"] = thinking


_ONLY_ASKED = frozenset({"document", "image", "tool_result", "search_result"})
"""Blocks that stand in requests alone."""


def _assistant_blocks(message: Message, context: Encoding) -> list[Any]:
    calls = [
        {
            "type": "tool_use",
            "id": wire_id(call.id),
            "name": context.names.to_wire(call.name),
            "input": arguments_object(call),
        }
        for call in message.tool_calls
    ]
    text = [{"type": "text", "text": message.text}] if message.text.strip() else []
    kept = objects_in(context.own(message).get("blocks")) or [*text, *calls]
    # As they came, in place; a signature that was cut off is never valid.
    blocks: list[Any] = []
    left = iter(calls)
    for block in kept:
        kind = text_or_empty(block.get("type"))
        # A record may come from a stranger: nothing that an answer cannot hold goes back.
        unfit = (kind in _THINKING and "no_replay" in context.flags) or kind in _ONLY_ASKED
        unsigned = kind == "thinking" and not block.get("signature")
        if kind == "tool_use":
            blocks.extend(islice(left, 1))
        elif not (unfit or unsigned or _is_blank(block)):
            blocks.append(block)
    return blocks


def _result(message: Message) -> dict[str, Any]:
    call_id = wire_id(message.tool_call_id or "")
    content = _blocks(message.content) if attached(message) else message.text
    held = {"content": content} if content else {}
    failed = {"is_error": True} if is_failure(message) else {}
    return {"type": "tool_result", "tool_use_id": call_id, **held, **failed}


def _blocks(parts: Sequence[Part]) -> list[Any]:
    return [block for block in map(_block, parts) if not _is_blank(block)]


def _is_blank(block: dict[str, Any]) -> bool:
    """A text of nothing is refused."""
    return block.get("type") == "text" and not str(block.get("text") or "").strip()


def _block(part: Part) -> dict[str, Any]:
    shown = readable(part)
    if isinstance(shown, str):
        return {"type": "text", "text": shown}
    if isinstance(shown, ImagePart) and shown.url:
        return {"type": "image", "source": {"type": "url", "url": shown.url}}
    source = {"type": "base64", "media_type": shown.media_type, "data": shown.data or ""}
    if isinstance(shown, ImagePart):
        return {"type": "image", "source": source}
    if shown.media_type != "application/pdf":
        raise unreadable(shown, "Anthropic")
    return {"type": "document", "source": source, "title": shown.name}
