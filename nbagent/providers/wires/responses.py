"""The Responses wire of OpenAI: stateless, with the reasoning sent back encrypted.

Wire facts: OpenAI's API reference and types (providers.md 9). Other servers offer it in varying
depth, so what is read is read leniently.
"""

from __future__ import annotations

from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.messages import ImagePart, Message, Part
from nbagent.contracts.model import ChatRequest, ToolSpec
from nbagent.providers.answer.builder import Assembly
from nbagent.providers.answer.fields import arguments_of, objects_in, text_or_empty
from nbagent.providers.answer.vendor_words import index_of, usage_in
from nbagent.providers.http_errors import stream_error
from nbagent.providers.transport.sse import bad_answer
from nbagent.providers.wires.base import Encoding, Parser, Wire, described, effort_word, only_set
from nbagent.providers.wires.encoding import arguments_text, attached, data_url, readable, wire_id
from nbagent.providers.wires.tool_names import WireNames
from nbagent.providers.wires.tool_schemas import wire_schema

CHOICES = ("auto", "none", "required")
_ENDS = ("completed", "incomplete", "failed", "cancelled", "done")
"""As the status and in the name of the last event; OpenRouter says `response.done`."""


class ResponsesParser(Parser):
    """Reads one answer: events of a stream, or the response object."""

    def __init__(self, request: ChatRequest, into: Assembly) -> None:
        super().__init__(request, into)
        self._places: dict[str, int] = {}  # Of the items with these ids in the output.
        self._next = 0  # The place behind all items that have begun.
        self._items: dict[int, dict[str, Any]] = {}  # Complete ones by their place.
        self._streamed: set[tuple[int, str]] = set()
        """Of which items something came, so that it is not shown again with the whole item."""
        self._last: dict[str, tuple[int, Any]] = {}
        """Of which item and part the last piece of text and of reasoning was."""

    def event(self, name: bytes, data: Any) -> None:
        """Take one event."""
        found = json_object(data)
        if found is None:
            raise bad_answer("an event is no object")
        kind = text_or_empty(found.get("type")) or name.decode("ascii", "replace")
        if kind == "error" or found.get("error"):
            self._fail(found if found.get("error") else {"error": found})
        elif kind.removeprefix("response.") in _ENDS:
            response = json_object(found.get("response")) or {}
            self._response(response, kind.removeprefix("response."))
        else:
            self._progress(kind, found)

    def whole(self, body: Any) -> None:
        """Take the response object."""
        found = json_object(body) or {}
        output, status = found.get("output"), found.get("status")
        items = objects_in(output)
        is_over = bool(items) if status is None else status in _ENDS
        if not found.get("error") and (items != output or not is_over):
            raise bad_answer("there is no whole output in it")
        self._response(found, "completed")

    def _progress(self, kind: str, found: dict[str, Any]) -> None:
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                self._into.refused |= kind == "response.refusal.delta"
                self._show("text", self._place(found), found.get("delta"))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                part = found.get("summary_index", found.get("content_index"))
                self._show("reasoning", self._place(found), found.get("delta"), part)
            case "response.output_item.added":
                item = json_object(found.get("item")) or {}
                self._begin(self._place(found, item), item)
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
        place = index_of(found.get("output_index"))
        if place is None:
            place = self._places.get(id, self._next)
        self._next = max(self._next, place + 1)
        if id:
            self._places.setdefault(id, place)
        return place

    def _show(self, kind: str, place: int, piece: Any, part: Any = None) -> None:
        """A piece of text or of reasoning; every part but the first begins a paragraph."""
        if not isinstance(piece, str):
            raise bad_answer("a delta is not text")
        self._streamed.add((place, kind))
        if piece:
            before, self._last[kind] = self._last.get(kind), (place, part)
            if before not in (None, (place, part)):
                piece = f"\n\n{piece}"  # A comment and the final answer are two messages.
        if kind == "text":
            self._into.text(piece)
        else:
            self._into.reasoning(piece)

    def _begin(self, place: int, item: dict[str, Any]) -> None:
        """An item that is announced, or comes whole without that."""
        if item.get("type") == "function_call":
            call_id, name = text_or_empty(item.get("call_id")), text_or_empty(item.get("name"))
            self._into.call(place, id=call_id, name=name)

    def _item(self, place: int, item: dict[str, Any]) -> None:
        """A complete item: the sure word where deltas said something else."""
        if place in self._items:
            return
        self._items[place] = item
        self._begin(place, item)
        parts = objects_in(item.get("summary")) or objects_in(item.get("content"))
        match item.get("type"):
            case "function_call":
                arguments = arguments_of(item.get("arguments"))
                if (place, "arguments") not in self._streamed:
                    self._into.call(place, arguments=arguments)
                elif arguments:
                    self._into.call_arguments(place, arguments)
            case "message":
                self._into.refused |= any(part.get("type") == "refusal" for part in parts)
                texts = [part.get("text") or part.get("refusal") for part in parts]
                if (place, "text") not in self._streamed:
                    self._show("text", place, "".join(it for it in texts if isinstance(it, str)))
            case "reasoning" if (place, "reasoning") not in self._streamed:
                for number, part in enumerate(parts):
                    self._show("reasoning", place, text_or_empty(part.get("text")), number)
            case _:
                pass

    def _response(self, response: dict[str, Any], status: str) -> None:
        """The last word: what had not come yet, usage, and why it ended."""
        into = self._into
        into.usage(usage_in(response.get("usage")))
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
        # Of reasoning the item's word does not count: what followed it may be whole.
        of_answer = [item for item in items if item.get("type") in ("function_call", "message")]
        if any(item.get("status") == "incomplete" for item in of_answer):
            status = "incomplete"  # An item was cut, whatever is said of them all.
        if any(item.get("encrypted_content") or item.get("phase") for item in items):
            into.keep(items=items)
        if status == "incomplete":
            details = json_object(response.get("incomplete_details")) or {}
            filtered = details.get("reason") == "content_filter"
            into.finish("content_filter" if filtered else "length")
        else:
            into.finish("tool_calls" if into.has_calls else "stop")
        into.end()

    def _fail(self, holder: dict[str, Any]) -> None:
        self._into.fail(stream_error(holder))
        self._into.end()


_NEVER_SAID = ("_output", "item_reference")
"""Ends of the kinds of items that stand in requests alone."""


class Responses(Wire):
    """OpenAI Responses. Nothing is stored at the server: each request has the whole history."""

    name = "responses"
    parser = ResponsesParser
    endings = ("/responses",)
    messages_field = "input"
    lacks = frozenset({"stop_sequences"})
    reserved = frozenset({"input", "tools", "instructions"})

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
            choice = request.tool_choice or "auto"
            named = {"type": "function", "name": names.to_wire(choice)}
            params["tool_choice"] = choice if choice in CHOICES else named
        if request.reasoning is not None:
            effort = effort_word(request.reasoning)
            summary = {} if effort == "none" else {"summary": "auto"}
            params["reasoning"] = {"effort": effort, **summary}
        if request.output_schema is not None:
            schema = {"name": "answer", "schema": request.output_schema, "strict": False}
            params["text"] = {"format": {"type": "json_schema", **schema}}
        params["temperature"], params["top_p"] = request.temperature, request.top_p
        params["max_output_tokens"] = request.max_tokens
        params["stream"] = stream or None
        return only_set(params)

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """With any model and any tools."""
        return True

    def tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """A flat function; without `strict` said the server would take it for strict."""
        parameters = wire_schema(spec.parameters)
        known = {"type": "function", **described(spec, name)}
        return {**known, "parameters": parameters, "strict": False}

    def encode(self, group: tuple[Message, ...], context: Encoding) -> list[Any]:
        """The items of one message."""
        message = group[0]
        if message.role == "assistant":
            return _assistant_items(message, context)
        parts = [_part(part) for part in message.content]
        if message.role == "tool":
            output = parts if attached(message) else message.text
            call_id = wire_id(message.tool_call_id or "")
            return [{"type": "function_call_output", "call_id": call_id, "output": output}]
        return [{"type": "message", "role": message.role, "content": parts}]

    def system_fields(self, text: str) -> dict[str, Any] | None:
        """The system text is `instructions`."""
        return {"instructions": text}


def _is_said(item: dict[str, Any]) -> bool:
    """Whether a model can have said it: a record may come from a stranger."""
    kind = str(item.get("type"))
    return item.get("role", "assistant") == "assistant" and not kind.endswith(_NEVER_SAID)


def _assistant_items(message: Message, context: Encoding) -> list[Any]:
    calls: list[dict[str, Any]] = [
        {
            "type": "function_call",
            "call_id": wire_id(call.id),
            "name": context.names.to_wire(call.name),
            "arguments": arguments_text(call),
        }
        for call in message.tool_calls
    ]
    kept = objects_in(context.own(message).get("items"))
    if not kept or [item.get("type") for item in kept].count("function_call") != len(calls):
        text = {"type": "message", "role": "assistant", "content": message.text}
        return [text, *calls] if message.text else calls
    # As they came, in place; what the server cannot know without storing is dropped.
    items: list[dict[str, Any]] = []
    left = iter(calls)
    for item in kept:
        if item.get("type") == "function_call":
            items.append({**item, **next(left)})  # The results name the call by this id.
        elif item.get("encrypted_content") if item.get("type") == "reasoning" else _is_said(item):
            items.append(item)
    while items and items[-1].get("type") == "reasoning":
        items.pop()  # Refused without the item that it led to: the answer was cut before it.
    return items


def _part(part: Part) -> dict[str, Any]:
    shown = readable(part)
    if isinstance(shown, str):
        return {"type": "input_text", "text": shown}
    if isinstance(shown, ImagePart):
        return {"type": "input_image", "image_url": data_url(shown), "detail": "auto"}
    return {"type": "input_file", "filename": shown.name, "file_data": data_url(shown)}
