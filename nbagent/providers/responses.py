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
        self._items: dict[int, dict[str, Any]] = {}
        """Complete items by their place in the output."""
        self._streamed: set[tuple[int, str]] = set()
        """Of which items deltas came, so that the whole item is not shown again."""

    def event(self, name: bytes, data: Any) -> None:
        """Take one event."""
        found = json_object(data)
        if found is None:
            raise bad_answer(f"an event is {type(data).__name__}, not an object")
        if found.get("error"):
            self._into.fail(stream_error(found))
        kind = text_or_empty(found.get("type")) or name.decode("ascii", "replace")
        place = _place(found)
        match kind:
            case "response.output_text.delta":
                self._delta(place, "text", found)
            case "response.refusal.delta":
                self._into.refused = True
                self._delta(place, "text", found)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._delta(place, "reasoning", found)
            case "response.reasoning_summary_part.added":
                if (place, "reasoning") in self._streamed:
                    self._into.reasoning("\n\n")
            case "response.output_item.added":
                self._begin(place, json_object(found.get("item")) or {})
            case "response.function_call_arguments.delta":
                self._streamed.add((place, "call"))
                self._into.call(place, arguments=text_or_empty(found.get("delta")))
            case "response.output_item.done":
                self._item(place, json_object(found.get("item")) or {})
            case "response.completed" | "response.incomplete" | "response.failed":
                self._response(json_object(found.get("response")) or {}, kind)
            case "error":
                self._into.fail(stream_error({"error": found}))
            case _:
                pass  # Progress, and what is not known here.

    def whole(self, body: Any) -> None:
        """Take the response object."""
        found = json_object(body)
        if found is None:
            raise bad_answer(f"the body is {type(body).__name__}, not an object")
        if not found.get("error") and not isinstance(found.get("output"), list):
            raise bad_answer("there is no output in it")
        self._response(found, f"response.{found.get('status') or 'completed'}")

    def _delta(self, place: int, kind: str, found: dict[str, Any]) -> None:
        piece = found.get("delta")
        if not isinstance(piece, str):
            raise bad_answer("a delta is not text")
        self._streamed.add((place, kind))
        if kind == "text":
            self._into.text(piece)
        else:
            self._into.reasoning(piece)

    def _begin(self, place: int, item: dict[str, Any]) -> None:
        self._into.answered = True
        if item.get("type") == "function_call":
            name = text_or_empty(item.get("name"))
            self._into.call(place, id=text_or_empty(item.get("call_id")), name=name)

    def _item(self, place: int, item: dict[str, Any]) -> None:
        """A complete item: the sure word where deltas said something else."""
        if place in self._items:
            return
        self._items[place] = item
        into = self._into
        into.answered = True
        kind = item.get("type")
        if kind == "function_call":
            arguments = arguments_of(item.get("arguments"))
            if (place, "call") in self._streamed:
                into.call_arguments(place, arguments)
            else:
                call_id, name = text_or_empty(item.get("call_id")), text_or_empty(item.get("name"))
                into.call(place, id=call_id, name=name, arguments=arguments)
        elif kind == "message":
            for part in objects_in(item.get("content")):
                into.refused |= part.get("type") == "refusal"
                text = part.get("text") or part.get("refusal")
                if (place, "text") not in self._streamed and isinstance(text, str):
                    into.text(text)
        elif kind == "reasoning" and (place, "reasoning") not in self._streamed:
            parts = objects_in(item.get("summary")) or objects_in(item.get("content"))
            texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
            if any(texts):
                into.reasoning("\n\n".join(texts))

    def _response(self, response: dict[str, Any], kind: str) -> None:
        """The last word: what had not come yet, usage, and why it ended."""
        into = self._into
        into.usage(usage_of(response.get("usage")))
        if response.get("error") or kind in ("response.failed", "response.cancelled"):
            into.fail(stream_error(response if response.get("error") else {"error": kind}))
        into.model = text_or_empty(response.get("model"))
        for place, item in enumerate(objects_in(response.get("output"))):
            self._item(place, item)
        items = [self._items[place] for place in sorted(self._items)]
        if any(item.get("type") == "reasoning" or item.get("phase") for item in items):
            into.keep(items=items)
        reason = (json_object(response.get("incomplete_details")) or {}).get("reason")
        if kind == "response.incomplete":
            into.finish(_REASONS.get(str(reason), "length"), str(reason))
        else:
            into.finish("tool_calls" if into.has_calls else "stop")
        into.end()


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
    if kept:
        return _replayed(kept, message)
    items: list[Any] = []
    if message.text:
        items.append({"type": "message", "role": "assistant", "content": message.text})
    for call in message.tool_calls:
        named = {"call_id": wire_id(call.id, _ID), "name": context.names.to_wire(call.name)}
        items.append({"type": "function_call", **named, "arguments": arguments_text(call)})
    return items


def _replayed(kept: Sequence[dict[str, Any]], message: Message) -> list[Any]:
    """The items as they came, in place; what the server cannot know without storing is dropped."""
    items: list[Any] = []
    calls = iter(message.tool_calls)
    for item in kept:
        kind = item.get("type")
        if kind == "reasoning" and not item.get("encrypted_content"):
            continue
        if kind == "function_call":
            call = next(calls, None)
            if call is None:
                continue
            # The results name the call by this id.
            item = {**item, "call_id": wire_id(call.id, _ID), "arguments": arguments_text(call)}
        items.append(item)
    return items


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


def _place(found: dict[str, Any]) -> int:
    value: Any = found.get("output_index")
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
