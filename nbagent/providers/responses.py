"""The Responses wire of OpenAI: stateless, with the reasoning sent back encrypted.

Wire facts: OpenAI's API reference and types (providers.md 9). Other servers offer it in varying
depth, so what is read is read leniently.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.chat import (
    ChatRequest,
    FinishReason,
    ImagePart,
    Message,
    ModelInfo,
    Part,
    TextPart,
    ToolCall,
    ToolSpec,
    Usage,
)
from nbagent.providers.assembly import Assembly
from nbagent.providers.chat import effort_word, models_in
from nbagent.providers.chat_answers import arguments_of, tokens
from nbagent.providers.errors import stream_error
from nbagent.providers.frames import bad_answer, objects_in, text_or_empty
from nbagent.providers.history import (
    arguments_text,
    attached,
    data_url,
    file_as_text,
    text_of_file,
    wire_id,
)
from nbagent.providers.names import WireNames
from nbagent.providers.schemas import wire_schema
from nbagent.providers.wires import Encoding, Parser, Wire

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REASONS: dict[str, FinishReason] = {
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}
_LAST = {
    "response.completed": "completed",
    "response.done": "completed",  # OpenRouter
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
"""Events that end a stream, and the status that each means."""


class Responses(Wire):
    """OpenAI Responses. Nothing is stored at the server: each request has the whole history."""

    name = "responses"
    endings = ("/responses",)
    lacks = frozenset({"stop_sequences"})
    reserved = frozenset({"input", "tools", "instructions"})

    def path(self, request: ChatRequest, *, stream: bool) -> str:
        """One endpoint for all."""
        return "/responses"

    def params(
        self, request: ChatRequest, names: WireNames, flags: frozenset[str], *, stream: bool
    ) -> dict[str, Any]:
        """All of the body but instructions, input and tools."""
        params: dict[str, Any] = {
            "model": request.model,
            "store": False,
            "include": ["reasoning.encrypted_content"],
        }
        if request.tools:
            params["tool_choice"] = _tool_choice(request.tool_choice, names)
        if request.reasoning is not None:
            effort = effort_word(request.reasoning)
            params["reasoning"] = {"effort": effort}
            if effort != "none":
                params["reasoning"]["summary"] = "auto"
        if request.output_schema is not None:
            schema = {"name": "answer", "schema": request.output_schema, "strict": False}
            params["text"] = {"format": {"type": "json_schema", **schema}}
        optional = {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "max_output_tokens": request.max_tokens,
            "stream": stream or None,
        }
        params.update({name: value for name, value in optional.items() if value is not None})
        return params

    def tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """A flat function; without `strict` said the server would take it for strict."""
        parameters = wire_schema({"type": "object", **spec.parameters})
        described = {"description": spec.description} if spec.description else {}
        return {
            "type": "function",
            "name": name,
            **described,
            "parameters": parameters,
            "strict": False,
        }

    def encode(self, group: tuple[Message, ...], context: Encoding) -> list[Any]:
        """The items of one message."""
        message = group[0]
        if message.role == "assistant":
            return _assistant_items(message, context)
        if message.role == "tool":
            output: Any = message.text
            if attached(message):
                output = [_part(part) for part in message.content]
            call_id = wire_id(message.tool_call_id or "", _ID)
            return [{"type": "function_call_output", "call_id": call_id, "output": output}]
        parts = [_part(part) for part in message.content]
        return [{"type": "message", "role": message.role, "content": parts}]

    def body(
        self, system: str, messages: bytes, tools: bytes | None, params: dict[str, Any]
    ) -> bytes:
        """The system text is `instructions`."""
        if system:
            params = {"instructions": system, **params}
        offered = b',"tools":' + tools if tools else b""
        return b'{"input":' + messages + offered + b"," + dump_json(params)[1:]

    def parser(self, request: ChatRequest, into: Assembly) -> Parser:
        """A reader for one answer."""
        return ResponsesParser(into)

    def models(self, body: Any) -> tuple[list[ModelInfo], str | None]:
        """The same list as with Chat Completions."""
        return models_in(body), None


class ResponsesParser(Parser):
    """Reads one answer: events of a stream, or the response object."""

    def __init__(self, into: Assembly) -> None:
        self._into = into
        self._places: dict[str, int] = {}
        """Where the items with these ids stand in the output."""
        self._next = 0
        """The place behind all items that have begun."""
        self._items: dict[int, dict[str, Any]] = {}
        """Complete items by their place."""
        self._streamed: set[tuple[int, str]] = set()
        """Of which items something came, so that it is not shown again with the whole item."""
        self._last: dict[str, tuple[int, Any]] = {}
        """Of which item and part the last piece of text and of reasoning was."""

    def event(self, name: bytes, data: Any) -> None:
        """Take one event."""
        found = json_object(data)
        if found is None:
            raise bad_answer(f"an event is {type(data).__name__}, not an object")
        kind = text_or_empty(found.get("type")) or name.decode("ascii", "replace")
        if kind == "error" or found.get("error"):
            self._fail(found if found.get("error") else {"error": found})
        elif kind in _LAST:
            self._response(json_object(found.get("response")) or {}, _LAST[kind])
        else:
            self._progress(kind, found)

    def whole(self, body: Any) -> None:
        """Take the response object."""
        found = json_object(body)
        if found is None:
            raise bad_answer(f"the body is {type(body).__name__}, not an object")
        if not found.get("error") and not isinstance(found.get("output"), list):
            raise bad_answer("there is no output in it")
        if found.get("status") in ("queued", "in_progress"):
            raise bad_answer("the model is still at work on it")
        self._response(found, "completed")

    def _progress(self, kind: str, found: dict[str, Any]) -> None:
        match kind:
            case "response.output_text.delta":
                self._text(self._place(found), _delta(found))
            case "response.refusal.delta":
                self._into.refused = True
                self._text(self._place(found), _delta(found))
            case "response.reasoning_summary_text.delta":
                self._reasoning(self._place(found), found.get("summary_index"), _delta(found))
            case "response.reasoning_text.delta":
                self._reasoning(self._place(found), found.get("content_index"), _delta(found))
            case "response.output_item.added":
                self._into.answered = True
                item = json_object(found.get("item")) or {}
                place = self._place(found, item)
                if item.get("type") == "function_call":
                    self._begin_call(place, item)
            case "response.function_call_arguments.delta":
                place = self._place(found)
                self._streamed.add((place, "arguments"))
                self._into.call(place, arguments=arguments_of(found.get("delta")))
            case "response.output_item.done":
                item = json_object(found.get("item")) or {}
                self._item(self._place(found, item), item)
            case _:
                pass  # Progress, and what is not known here.

    def _place(self, found: dict[str, Any], item: dict[str, Any] | None = None) -> int:
        """Where the item of an event stands; llama.cpp says only its id."""
        id = text_or_empty(found.get("item_id") or (item or {}).get("id"))
        place = _index(found.get("output_index"))
        if place is None:
            last = self._next - 1
            is_open = last >= 0 and last not in self._items
            unnamed = last if is_open else self._next
            place = self._places.get(id, self._next) if id else unnamed
        self._next = max(self._next, place + 1)
        if id:
            self._places.setdefault(id, place)
        return place

    def _text(self, place: int, piece: str) -> None:
        self._streamed.add((place, "text"))
        if piece and self._is_new_part("text", place) and self._into.has_text:
            piece = f"\n\n{piece}"  # A comment and the final answer are two messages.
        self._into.text(piece)

    def _reasoning(self, place: int, part: Any, piece: str) -> None:
        self._streamed.add((place, "reasoning"))
        if piece and self._is_new_part("reasoning", place, part) and self._into.has_reasoning:
            piece = f"\n\n{piece}"
        self._into.reasoning(piece)

    def _is_new_part(self, kind: str, place: int, part: Any = None) -> bool:
        before, self._last[kind] = self._last.get(kind), (place, part)
        return before != (place, part)

    def _begin_call(self, place: int, item: dict[str, Any]) -> None:
        self._streamed.add((place, "call"))
        call_id, name = text_or_empty(item.get("call_id")), text_or_empty(item.get("name"))
        self._into.call(place, id=call_id, name=name)

    def _item(self, place: int, item: dict[str, Any]) -> None:
        """A complete item: the sure word where deltas said something else."""
        if place in self._items:
            return
        self._items[place] = item
        self._into.answered = True
        match item.get("type"):
            case "function_call":
                self._whole_call(place, item)
            case "message":
                parts = objects_in(item.get("content"))
                self._into.refused |= any(part.get("type") == "refusal" for part in parts)
                texts = [part.get("text") or part.get("refusal") for part in parts]
                if (place, "text") not in self._streamed:
                    self._text(place, "".join(text for text in texts if isinstance(text, str)))
            case "reasoning" if (place, "reasoning") not in self._streamed:
                parts = objects_in(item.get("summary")) or objects_in(item.get("content"))
                for number, part in enumerate(parts):
                    if text := text_or_empty(part.get("text")):
                        self._reasoning(place, number, text)
            case _:
                pass

    def _whole_call(self, place: int, item: dict[str, Any]) -> None:
        if (place, "call") not in self._streamed:
            self._begin_call(place, item)
        arguments = arguments_of(item.get("arguments"))
        if (place, "arguments") not in self._streamed:
            self._into.call(place, arguments=arguments)
        elif arguments:
            self._into.call_arguments(place, arguments)

    def _response(self, response: dict[str, Any], status: str) -> None:
        """The last word: what had not come yet, usage, and why it ended."""
        into = self._into
        into.usage(usage_of(response.get("usage")))
        into.model = text_or_empty(response.get("model"))
        if response.get("status") in ("incomplete", "failed", "cancelled"):
            # vLLM and LiteLLM end each stream with `response.completed`.
            status = str(response["status"])
        if response.get("error") or status in ("failed", "cancelled"):
            self._fail(response if response.get("error") else {"error": f"the answer is {status}"})
            return
        for place, item in enumerate(objects_in(response.get("output"))):
            self._item(self._places.get(text_or_empty(item.get("id")), place), item)
        items = [self._items[place] for place in sorted(self._items)]
        if any(item.get("encrypted_content") or item.get("phase") for item in items):
            into.keep(items=items)
        if status == "incomplete":
            details = json_object(response.get("incomplete_details")) or {}
            reason = str(details.get("reason"))
            into.finish(_REASONS.get(reason, "length"), reason)
        else:
            into.finish("tool_calls" if into.has_calls else "stop")
        into.end()

    def _fail(self, holder: dict[str, Any]) -> None:
        fault = stream_error(holder)
        if fault.details.get("code") != "content_filter":
            self._into.fail(fault)
        self._into.finish("content_filter")  # Azure, also in the middle of a stream.
        self._into.end()


def usage_of(value: Any) -> Usage | None:
    """The tokens of a `usage` object; None when there is none."""
    usage = json_object(value)
    if not usage:
        return None
    prompt, completion = tokens(usage, "input_tokens"), tokens(usage, "output_tokens")
    read = json_object(usage.get("input_tokens_details")) or {}
    written = json_object(usage.get("output_tokens_details")) or {}
    cached = min(tokens(read, "cached_tokens"), prompt)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=tokens(usage, "total_tokens") or prompt + completion,
        cached_tokens=cached,
        reasoning_tokens=min(tokens(written, "reasoning_tokens"), completion),
        cache_write_tokens=min(tokens(read, "cache_write_tokens"), prompt - cached),
    )


def _assistant_items(message: Message, context: Encoding) -> list[Any]:
    kept = objects_in(context.own(message).get("items"))
    if kept and sum(map(_is_call, kept)) == len(message.tool_calls):
        return _replayed(kept, message, context)
    items: list[Any] = []
    if message.text:
        items.append({"type": "message", "role": "assistant", "content": message.text})
    for call in message.tool_calls:
        items.append({"type": "function_call", **_call_fields(call, context)})
    return items


def _replayed(kept: Sequence[dict[str, Any]], message: Message, context: Encoding) -> list[Any]:
    """The items as they came, in place; what the server cannot know without storing is dropped."""
    items: list[Any] = []
    calls = iter(message.tool_calls)
    for item in kept:
        if _is_call(item):
            # The results name the call by this id.
            items.append({**item, **_call_fields(next(calls), context)})
        elif item.get("type") != "reasoning" or item.get("encrypted_content"):
            items.append(item)
    while items and items[-1].get("type") == "reasoning":
        items.pop()  # Refused without the item that it led to: the answer was cut before it.
    return items


def _is_call(item: dict[str, Any]) -> bool:
    return item.get("type") == "function_call"


def _call_fields(call: ToolCall, context: Encoding) -> dict[str, Any]:
    return {
        "call_id": wire_id(call.id, _ID),
        "name": context.names.to_wire(call.name),
        "arguments": arguments_text(call),
    }


def _tool_choice(choice: str | None, names: WireNames) -> Any:
    if choice is None or choice in ("auto", "none", "required"):
        return choice or "auto"
    return {"type": "function", "name": names.to_wire(choice)}


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "input_image", "image_url": data_url(part), "detail": "auto"}
    if (text := text_of_file(part)) is not None:
        return {"type": "input_text", "text": file_as_text(part.name, text)}
    return {"type": "input_file", "filename": part.name, "file_data": data_url(part)}


def _delta(found: dict[str, Any]) -> str:
    piece = found.get("delta")
    if not isinstance(piece, str):
        raise bad_answer("a delta is not text")
    return piece


def _index(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
