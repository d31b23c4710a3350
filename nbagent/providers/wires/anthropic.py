"""Anthropic's Messages wire: requests and answers.

Wire facts: Anthropic's API reference and types.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast
from urllib.parse import urlsplit

from nbagent.contracts.canonical import json_object
from nbagent.contracts.deltas import ReasoningPiece, TextPiece
from nbagent.contracts.messages import ImagePart, Message, Part, parse_arguments
from nbagent.contracts.model import ChatRequest, ToolSpec
from nbagent.providers.address import normalize_base_url
from nbagent.providers.answer.finish_words import read_finish
from nbagent.providers.answer.images import find_file
from nbagent.providers.answer.json_fields import (
    arguments_json,
    objects_in,
    text_or_empty,
    token_count,
)
from nbagent.providers.answer.vendor_words import (
    faults_in,
    frame_object,
    parse_index,
    read_usage,
)
from nbagent.providers.answer.wire_deltas import (
    CallPart,
    Facts,
    Finish,
    LastEvent,
    Picture,
    Progress,
    Restart,
    UsageReport,
    WireDelta,
)
from nbagent.providers.transport.sse import bad_response
from nbagent.providers.wires.base import (
    EncodingContext,
    Parser,
    Wire,
    effort_level,
    model_version,
    name_and_description,
    without_none,
)
from nbagent.providers.wires.encoding import (
    answer_text,
    arguments_object,
    attachments,
    group_results,
    is_failure,
    text_or_part,
    unsupported_file,
    wire_id,
)
from nbagent.providers.wires.tool_names import WireNames
from nbagent.providers.wires.tool_schemas import can_be_closed, closed_schema, wire_schema

_CURRENT_VERSION = "2026-10-21"
_COMPATIBLE_VERSION = "2023-06-01"
"""Version that proxies and compatible servers expect; it still has temperature and top_p."""
_DEFAULT_MAX_TOKENS = 16_000
"""The field is required and includes thinking. Every model that is served accepts this many."""
# Newer models bind each thinking block to the exact messages, tools and system text before it. If a
# notebook changes an earlier cell, they answer 400 "bound to a different conversation"; with this
# beta header the server drops the old blocks instead.
_BINDING_BETA = "thinking-binding-controls-2026-08-01"
_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_BUDGETS = {"low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 24_576, "max": 32_768}
_MIN_BUDGET = 1_024
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_CACHE_CONTROL = {"type": "ephemeral"}
_ENDS_IN_VERSION = re.compile(r"/v\d+\w*$")
_THINKING_BLOCKS = frozenset({"thinking", "redacted_thinking"})
_STREAMED_FIELDS = {
    "text": "text",
    "thinking": "thinking",
    "signature": "signature",
    "compaction": "content",
    "input_json": "partial_json",
}
"""Fields of blocks that arrive in pieces, by their deltas, and the field of the delta."""
_READ_FIELDS = frozenset({"content", "usage", "stop_reason", "stop_details"})
_PROMPT_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_COMPACTED_COUNTS = (*_PROMPT_COUNTS, "output_tokens")
_REBUILDABLE_BLOCKS = frozenset({"text", "tool_use"})
"""Blocks that can be rebuilt from the message itself; all others are kept in `raw`."""


class AnthropicParser(Parser):
    """Reads one answer."""

    def __init__(self, request: ChatRequest, progress: Progress) -> None:
        super().__init__(request, progress)
        self._begin()

    def _begin(self) -> None:
        self._has_started = False
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}
        """Pieces by block and field."""
        self._usage: dict[str, Any] = {}
        self._stop_reason = ""

    def read_event(self, name: bytes, data: Any) -> Iterator[WireDelta]:
        """Read one event. Its data repeats its name."""
        event = frame_object(data)
        yield from faults_in(event)
        index = parse_index(event.get("index")) or 0
        match text_or_empty(event.get("type")) or name.decode("ascii", "replace"):
            case "content_block_delta":
                yield from self._read_delta(index, json_object(event.get("delta")) or {})
            case "content_block_start":
                yield from self._start_block(index, json_object(event.get("content_block")) or {})
            case "message_start":
                if self._has_started:  # A gateway asked its host again.
                    self._begin()
                    yield Restart()
                yield from self._read_start(json_object(event.get("message")) or {})
            case "message_delta":
                yield from self._read_end(json_object(event.get("delta")) or {}, event.get("usage"))
            case "message_stop":
                yield from self._finish()
            case _:
                pass  # `ping`, the end of a block, and events of later versions.

    def read_whole(self, body: Any) -> Iterator[WireDelta]:
        """Read a whole message."""
        message = frame_object(body)
        yield from faults_in(message)
        content: Any = message.get("content")
        # Some compatible servers send a text, or a block alone.
        content = [content] if isinstance(content, str | dict) else content
        if isinstance(content, list):
            listed = cast("list[Any]", content)
            content = [{"text": part} if isinstance(part, str) else part for part in listed]
        blocks = objects_in(content)
        if blocks != content:
            raise bad_response("there is no content in it")
        yield from self._read_start(message)
        for index, block in enumerate(blocks):
            yield from self._start_block(index, block)
        yield from self._read_end(message, None)
        yield from self._finish()

    def _read_start(self, message: dict[str, Any]) -> Iterator[WireDelta]:
        self._has_started = True
        model = text_or_empty(message.get("model"))
        yield Facts(model, vendor=message, vendor_without=_READ_FIELDS, begun=False)
        self._update_usage(message.get("usage"))

    def _start_block(self, index: int, block: dict[str, Any]) -> Iterator[WireDelta]:
        kind = block.get("type")
        if kind == "image" and (sent := find_file(block)) is not None:
            # Anthropic sends none; compatible servers do. No request of theirs accepts one back.
            yield Picture(sent)
            return
        if kind is None and "text" in block:
            kind, block = "text", {"type": "text", **block}
        self._blocks[index] = dict(block)
        if kind == "tool_use":
            call_id, name = text_or_empty(block.get("id")), text_or_empty(block.get("name"))
            yield CallPart(index, call_id, name)
        elif kind in ("text", "thinking"):
            yield from self._shown_piece(kind, block.get(kind))
        elif kind == "output_text":  # Gateways to the Responses API.
            yield from self._shown_piece("text", block.get("text"))
        else:
            yield Facts(unread=[str(kind)], begun=False)

    def _read_delta(self, index: int, delta: dict[str, Any]) -> Iterator[WireDelta]:
        field = text_or_empty(delta.get("type")).removesuffix("_delta")
        if field not in _STREAMED_FIELDS:
            return
        piece = delta.get(_STREAMED_FIELDS[field])
        if field == "compaction":
            block = self._blocks.setdefault(index, {"type": field})
            block |= {k: v for k, v in without_none(delta).items() if k not in ("type", "content")}
            piece = piece or ""  # Null if the summary failed; it goes back as it came.
        if not isinstance(piece, str):
            raise bad_response(f"a piece of {field} is no text")
        kind = self._blocks.get(index, {}).get("type")
        if field == "input_json" and kind in (None, "text", "thinking"):
            return  # Input of no call: keeping it would only take memory.
        if field == "input_json" and kind == "tool_use":
            if piece:  # It is enough to know that some came: the call itself has them.
                self._pieces[index, field] = [piece]
            yield CallPart(index, arguments=piece)
            return
        self._pieces.setdefault((index, field), []).append(piece)
        yield from self._shown_piece(field, piece)

    def _shown_piece(self, field: str, piece: Any) -> Iterator[WireDelta]:
        kinds = {"text": TextPiece, "thinking": ReasoningPiece}
        if field in kinds and isinstance(piece, str) and piece:
            yield kinds[field](piece)

    def _initial_inputs(self) -> Iterator[WireDelta]:
        """Yield the arguments of calls without pieces: the start event has them."""
        for index, block in sorted(self._blocks.items()):
            initial_input = block.pop("input", None) if block.get("type") == "tool_use" else None
            if initial_input and not any(self._pieces.get((index, "input_json"), ())):
                yield CallPart(index, arguments=arguments_json(initial_input))

    def _joined_block(self, index: int) -> dict[str, Any]:
        """Return a block with all its pieces joined."""
        block = self._blocks[index]
        written = "".join(self._pieces.get((index, "input_json"), ()))
        if written and block.get("type") != "tool_use":
            # A tool that the server itself ran: it only goes back unchanged.
            block["input"] = parse_arguments(written) or {}
        for kind, field in _STREAMED_FIELDS.items():
            pieces = self._pieces.get((index, kind), ())
            if kind != "input_json" and any(pieces):
                block[field] = "".join([text_or_empty(block.get(field)), *pieces])
        return block

    def _read_end(self, delta: dict[str, Any], usage: Any) -> Iterator[WireDelta]:
        yield Facts(vendor=delta, vendor_without=_READ_FIELDS, begun=False)
        self._stop_reason = text_or_empty(delta.get("stop_reason")) or self._stop_reason
        self._update_usage(usage)
        if details := json_object(delta.get("stop_details")):
            yield Facts(raw={"stop_details": details}, begun=False)
            if self._stop_reason == "refusal" and not self._progress.has_text:
                yield TextPiece(text_or_empty(details.get("explanation")))

    def _update_usage(self, usage: Any) -> None:
        """Update the usage. Counts are cumulative; a later one replaces an earlier one.

        A later 0 replaces none, but for a server's compaction, whose counts stand apart.
        """
        counts = without_none(json_object(usage) or {})
        apart = "iterations" in counts
        self._usage.update({k: v for k, v in counts.items() if v or apart or k not in self._usage})

    def _finish(self) -> Iterator[WireDelta]:
        yield from self._initial_inputs()
        blocks = [self._joined_block(index) for index in sorted(self._blocks)]
        blocks = [block for block in blocks if text_or_empty(block.get("type"))]
        if any(block["type"] not in _REBUILDABLE_BLOCKS for block in blocks):
            yield Facts(raw={"blocks": blocks})
        # `input_tokens` excludes tokens read from the cache and written to it.
        used = _with_compactions(self._usage)
        prompt = sum(token_count(used, name) for name in _PROMPT_COUNTS)
        counts = {**used, "input_tokens": prompt} if used else None
        yield UsageReport(read_usage(counts))
        yield Facts(vendor={"usage": self._usage})
        yield read_finish(self._stop_reason) or Finish(None)
        yield LastEvent()


def _with_compactions(usage: dict[str, Any]) -> dict[str, Any]:
    """Add the counts of the server's own compactions, which the sums do not include.

    The sums include the entries of type `message`. An adviser's entries stay apart: its model has
    another price.
    """
    entries = objects_in(usage.get("iterations"))
    compactions = [entry for entry in entries if entry.get("type") == "compaction"]
    if not compactions:
        return usage
    all_counts = [sum(token_count(e, name) for e in entries) for name in _COMPACTED_COUNTS]
    if all_counts == [token_count(usage, name) for name in _COMPACTED_COUNTS]:
        return usage  # A gateway has added them.
    added = {
        name: token_count(usage, name) + sum(token_count(entry, name) for entry in compactions)
        for name in _COMPACTED_COUNTS
    }
    return usage | added


class Anthropic(Wire):
    """Messages, at Anthropic or a compatible server."""

    name = "anthropic"
    parser = AnthropicParser
    default_path = "/v1"
    endpoint_paths = ("/messages",)
    key_header = "x-api-key"
    key_prefix = ""
    next_page = ("last_id", "after_id")
    reserved_keys = frozenset({"messages", "tools", "system"})
    workarounds = frozenset({"drop_block", "no_replay"})

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str] | None = None,
        *,
        is_own_server: bool = False,
    ) -> None:
        url = normalize_base_url(
            base_url, default_path=self.default_path or "", endpoint_paths=self.endpoint_paths
        )
        parts = urlsplit(url)
        self._is_own_server = is_own_server
        if not is_own_server:
            self.workarounds |= {"add_thinking"}  # DeepSeek and Kimi demand it of each call.
        # Anthropic's own client adds /v1, so compatible servers document a base URL without it.
        root = "" if _ENDS_IN_VERSION.search(parts.path) else "/v1"
        self.endpoint_paths = (f"{root}/messages", *self.endpoint_paths)
        self.models_path = f"{root}/models?limit=1000"
        header_values = {name.lower(): text for name, text in (headers or {}).items()}
        version = header_values.get("anthropic-version", "").strip()
        self._version = version or (
            _CURRENT_VERSION if self._is_own_server else _COMPATIBLE_VERSION
        )
        if self._version != _COMPATIBLE_VERSION:
            # Version 2026-10-21 removed them: any value is answered with 400.
            self.unsupported_fields = frozenset({"temperature", "top_p"})

    def headers(self, workarounds: frozenset[str]) -> Mapping[str, str]:
        """API version, and the beta for a changed conversation if it is needed."""
        beta = {"anthropic-beta": _BINDING_BETA} if "drop_block" in workarounds else {}
        return {"anthropic-version": self._version, **beta}

    def params(
        self, request: ChatRequest, names: WireNames, workarounds: frozenset[str], *, stream: bool
    ) -> dict[str, Any]:
        """Body without system, messages and tools."""
        max_tokens = request.max_tokens or _DEFAULT_MAX_TOKENS
        params: dict[str, Any] = {
            "model": request.model,
            "max_tokens": max_tokens,
            "stop_sequences": list(request.stop_sequences) or None,
            "stream": stream or None,
        }
        if request.tools:
            choice = request.tool_choice or "auto"
            known = _CHOICES.get(choice)
            named = {"type": "tool", "name": names.to_wire(choice)}
            params["tool_choice"] = {"type": known} if known else named
        params |= {"temperature": request.temperature, "top_p": request.top_p}
        self._add_thinking(params, request, workarounds)
        if request.output_schema is not None:
            form = {"type": "json_schema", "schema": closed_schema(request.output_schema)}
            params.setdefault("output_config", {})["format"] = form
        if self._is_own_server:
            # At the top level it marks the last block, so the conversation so far is cached.
            params["cache_control"] = _CACHE_CONTROL
        return without_none(params)

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """True for Anthropic's models from 4.5 on, if closing objects keeps the schema's meaning.

        `output_config.format` requires `additionalProperties: false` in every object.
        """
        version = model_version(request.model, _VERSION)
        return self._is_own_server and version >= (4, 5) and can_be_closed(request.output_schema)

    def encode_tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """Encode a tool."""
        return {**name_and_description(spec, name), "input_schema": wire_schema(spec.parameters)}

    def group_messages(
        self, messages: Sequence[Message], workarounds: frozenset[str]
    ) -> Iterable[tuple[Message, ...]]:
        """Group all results of a turn.

        Results in several messages teach the model to call one by one, and a call without its
        result in the next message is answered with 400.
        """
        return group_results(messages)

    def encode_group(self, group: tuple[Message, ...], context: EncodingContext) -> list[Any]:
        """Encode a group. The server joins consecutive messages of one role."""
        if group[0].role == "assistant":
            role, blocks = "assistant", _assistant_blocks(group[0], context)
        elif group[0].role == "tool":
            role, blocks = "user", [_result_block(message) for message in group]
        else:
            role, blocks = "user", _blocks(group[0].content)
        return [{"role": role, "content": blocks}] if blocks else []

    def system_fields(self, text: str) -> dict[str, Any] | None:
        """The system text, marked for the cache: tools and system are then cached, too."""
        block: dict[str, Any] = {"type": "text", "text": text}
        return {
            "system": [{**block, "cache_control": _CACHE_CONTROL} if self._is_own_server else block]
        }

    def _add_thinking(
        self, params: dict[str, Any], request: ChatRequest, workarounds: frozenset[str]
    ) -> None:
        effort, version, thinking = request.reasoning, model_version(request.model, _VERSION), None
        if effort == "none":
            between = "sonnet" in request.model and version >= (5, 5)
            # Version (0, 0) is another vendor's model. Sonnet 5.5 refuses `disabled`.
            if not (0, 0) < version < (5, 0):  # Before 5.0 thinking is off by default.
                thinking = {"type": "between_tools" if between else "disabled"}
        # Up to 4.5 there are only budgets, from 4.7 on only efforts; 4.6 accepts both.
        elif effort and (version < (4, 6) or (version == (4, 6) and effort.isdecimal())):
            budget = int(effort) if effort.isdecimal() else _BUDGETS.get(effort, 0)
            budget = max(_MIN_BUDGET, budget)
            thinking = {"type": "enabled", "budget_tokens": budget}
            # max_tokens includes the budget and must leave room for the answer.
            if params["max_tokens"] <= budget:
                params["max_tokens"] = budget + (request.max_tokens or _DEFAULT_MAX_TOKENS)
        elif effort:
            thinking = {"type": "adaptive", "display": "summarized"}
            params["output_config"] = {"effort": effort_level(effort, {"minimal": "low"})}
        if "drop_block" in workarounds and effort != "none":
            binding = {"prefix_mismatch_behavior": "drop_block"}
            thinking = {**(thinking or {"type": "adaptive"}), "block_binding": binding}
        if thinking is not None:
            params["thinking"] = thinking


_REQUEST_ONLY_BLOCKS = frozenset({"document", "image", "tool_result", "search_result"})
"""Blocks that occur only in requests."""


def _assistant_blocks(message: Message, context: EncodingContext) -> list[Any]:
    calls = [
        {
            "type": "tool_use",
            "id": wire_id(call.id),
            "name": context.names.to_wire(call.name),
            "input": arguments_object(call),
        }
        for call in message.tool_calls
    ]
    content = answer_text(message)
    text = [{"type": "text", "text": content}] if content.strip() else []
    answer_blocks = objects_in(context.raw_from_model(message).get("blocks")) or [*text, *calls]
    # Blocks as they came, in order: the server checks the signatures. Thinking without a signature
    # comes from a cut stream and is never valid.
    blocks: list[Any] = []
    left = iter(calls)
    for block in answer_blocks:
        kind = text_or_empty(block.get("type"))
        # A stranger's record must not add blocks that an answer cannot hold.
        unfit = (
            kind in _THINKING_BLOCKS and "no_replay" in context.workarounds
        ) or kind in _REQUEST_ONLY_BLOCKS
        unsigned = kind == "thinking" and not block.get("signature")
        if kind == "tool_use":
            blocks.extend(islice(left, 1))
        elif not (unfit or unsigned or _is_blank(block)):
            blocks.append(block)
    kinds = {block["type"] for block in blocks}
    if "add_thinking" in context.workarounds and calls and not kinds & _THINKING_BLOCKS:
        thinking = message.reasoning if context.raw_from_model(message) else None
        blocks.insert(0, {"type": "thinking", "thinking": thinking or "", "signature": ""})
    return blocks


def _result_block(message: Message) -> dict[str, Any]:
    call_id = wire_id(message.tool_call_id or "")
    content = _blocks(message.content) if attachments(message) else message.text
    content_field = {"content": content} if content else {}
    failed = {"is_error": True} if is_failure(message) else {}
    return {"type": "tool_result", "tool_use_id": call_id, **content_field, **failed}


def _blocks(parts: Sequence[Part]) -> list[Any]:
    return [block for block in map(_block, parts) if not _is_blank(block)]


def _is_blank(block: dict[str, Any]) -> bool:
    """True for an empty text block; the server refuses those."""
    return block.get("type") == "text" and not str(block.get("text") or "").strip()


def _block(part: Part) -> dict[str, Any]:
    shown = text_or_part(part)
    if isinstance(shown, str):
        return {"type": "text", "text": shown}
    if isinstance(shown, ImagePart) and shown.url:
        return {"type": "image", "source": {"type": "url", "url": shown.url}}
    source = {"type": "base64", "media_type": shown.media_type, "data": shown.data or ""}
    if isinstance(shown, ImagePart):
        return {"type": "image", "source": source}
    if shown.media_type != "application/pdf":
        raise unsupported_file(shown, "Anthropic")
    return {"type": "document", "source": source, "title": shown.name}
