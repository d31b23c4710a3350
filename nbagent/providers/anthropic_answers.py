"""What a Messages server answers: named events or a whole message, given to an `Assembly`."""

from __future__ import annotations

from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.chat import FinishReason, Usage, parse_arguments
from nbagent.providers.assembly import Assembly
from nbagent.providers.errors import stream_error
from nbagent.providers.frames import arguments_of, bad_answer, objects_in, text_or_empty, tokens
from nbagent.providers.wires import Parser

_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",  # Only with tools of the server, which are not asked for.
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_WRITTEN = ("text", "thinking", "signature", "input_json")
"""Fields of blocks that come in pieces."""
_PLAIN = frozenset({"text", "tool_use"})
"""Blocks that can be written again from the message itself."""


class AnthropicParser(Parser):
    """Reads one answer."""

    done_ends = False

    def __init__(self, into: Assembly) -> None:
        self._into = into
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}
        """Of the fields of blocks."""
        self._usage: dict[str, Any] = {}
        self._word = ""

    def event(self, name: bytes, data: Any) -> None:
        """Take one event. Its data repeats its name."""
        found = json_object(data)
        if found is None:
            raise bad_answer("an event is no object")
        if found.get("error"):
            self._into.fail(stream_error(found))
        match text_or_empty(found.get("type")) or name.decode("ascii", "replace"):
            case "content_block_delta":
                self._delta(_place(found), json_object(found.get("delta")) or {})
            case "content_block_start":
                self._begin(_place(found), json_object(found.get("content_block")) or {})
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
        found = json_object(body) or {}
        if found.get("error"):
            self._into.fail(stream_error(found))
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
        self._into.answered = True
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
        if isinstance(piece, str) and piece and field == "text":
            self._into.text(piece)
        elif isinstance(piece, str) and piece and field == "thinking":
            self._into.reasoning(piece)

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
        found = json_object(usage) or {}
        self._usage.update({name: value for name, value in found.items() if value is not None})

    def _finish(self) -> None:
        into = self._into
        blocks = [self._joined(place) for place in sorted(self._blocks)]
        blocks = [block for block in blocks if text_or_empty(block.get("type"))]
        if any(block["type"] not in _PLAIN for block in blocks):
            into.keep(blocks=blocks)
        into.usage(_usage_of(self._usage))
        into.finish(_FINISH.get(self._word), self._word)
        into.end()


def _usage_of(usage: dict[str, Any]) -> Usage | None:
    """`input_tokens` is without what was read from the cache or written into it."""
    if not usage:
        return None
    read = tokens(usage, "cache_read_input_tokens")
    written = tokens(usage, "cache_creation_input_tokens")
    return Usage.of(
        tokens(usage, "input_tokens") + read + written,
        tokens(usage, "output_tokens"),
        cached=read,
        reasoning=tokens(usage, "output_tokens_details", "thinking_tokens"),
        cache_write=written,
    )


def _place(found: dict[str, Any]) -> int:
    place: Any = found.get("index")
    return place if type(place) is int else 0
