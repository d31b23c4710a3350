"""The Responses wire of OpenAI: stateless, with the reasoning sent back encrypted.

`store: false` and the whole history in each request, so that nothing stays at the server and any
turn can be repeated. Wire facts: OpenAI's API reference and types. Azure, Ollama, LM Studio,
OpenRouter, vLLM and llama.cpp implement parts of it, so answers are read leniently.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.deltas import ReasoningPiece, TextPiece
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import ImagePart, Message, Part
from nbagent.contracts.model import ChatRequest, ToolSpec
from nbagent.providers.answer.content_parts import read_content
from nbagent.providers.answer.finish_words import finish_reason
from nbagent.providers.answer.images import find_file
from nbagent.providers.answer.json_fields import arguments_json, objects_in, text_or_empty
from nbagent.providers.answer.vendor_words import parse_index, read_usage
from nbagent.providers.answer.wire_deltas import (
    CallArguments,
    CallPart,
    Facts,
    Finish,
    LastEvent,
    Picture,
    Progress,
    ServerFault,
    UsageReport,
    WireDelta,
)
from nbagent.providers.http_errors import stream_error
from nbagent.providers.transport.sse import bad_response
from nbagent.providers.wires.base import (
    EncodingContext,
    Parser,
    Wire,
    effort_level,
    name_and_description,
    without_none,
)
from nbagent.providers.wires.chat_profiles import Profile
from nbagent.providers.wires.encoding import (
    answer_text,
    arguments_text,
    attachments,
    data_url,
    is_audio,
    system_with_schema,
    text_or_part,
    unsupported_file,
    wire_id,
)
from nbagent.providers.wires.tool_names import WireNames
from nbagent.providers.wires.tool_schemas import wire_schema

TOOL_CHOICES = ("auto", "none", "required")
_MAX_TOTALS = 1_000
_RUNNING_STATUSES = ("queued", "in_progress")
_END_STATUSES = ("completed", "incomplete", "failed", "cancelled", "done")
"""Statuses, also in the name of the last event. OpenRouter says `response.done`."""


class ResponsesParser(Parser):
    """Reads one answer: events of a stream, or the response object."""

    def __init__(self, request: ChatRequest, progress: Progress) -> None:
        super().__init__(request, progress)
        self._positions: dict[str, int] = {}  # By item id, in the output.
        self._next_position = 0  # After all items that have begun.
        self._items: dict[int, dict[str, Any]] = {}  # Complete items by position.
        self._streamed: set[tuple[int, str]] = set()
        """Position and kind of streamed pieces; the whole item does not show them again."""
        self._totals: dict[tuple[int, str, Any], str] = {}
        """Whole texts and arguments by position, kind and part; for items that never end."""
        self._last_piece: dict[str, tuple[int, Any]] = {}
        """Item and part of the last piece of text and of reasoning."""

    def read_event(self, name: bytes, data: Any) -> Iterator[WireDelta]:
        """Read one event."""
        event = json_object(data)
        if event is None:
            raise bad_response("an event is no object")
        kind = text_or_empty(event.get("type")) or name.decode("ascii", "replace")
        if kind == "error" or event.get("error"):
            yield from self._fail(event if event.get("error") else {"error": event})
        elif kind.removeprefix("response.") in _END_STATUSES:
            response = json_object(event.get("response")) or {}
            yield from self._finish_response(response, kind.removeprefix("response."))
        else:
            yield from self._read_progress(kind, event)

    def read_whole(self, body: Any) -> Iterator[WireDelta]:
        """Read the response object."""
        response = json_object(body) or {}
        output, status = response.get("output"), response.get("status")
        items = objects_in(output)
        if status in _RUNNING_STATUSES and not response.get("error"):
            raise _background_fault(str(status))
        written = text_or_empty(response.get("output_text"))
        is_over = bool(items or written) if status is None else status in _END_STATUSES
        is_listed = items == output or (output is None and written)
        if not response.get("error") and not (is_listed and is_over):
            raise bad_response("its output is missing or incomplete")
        yield from self._finish_response(response, "completed")

    def _read_progress(self, kind: str, event: dict[str, Any]) -> Iterator[WireDelta]:
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                if kind == "response.refusal.delta":
                    yield Facts(refused=True)
                yield self._piece("text", self._position(event), event.get("delta"))
            case (
                "response.reasoning_summary_text.delta"
                | "response.reasoning_text.delta"
                | "response.reasoning_summary.delta"
                | "response.reasoning.delta"
            ):
                part = event.get("summary_index", event.get("content_index"))
                yield self._piece("reasoning", self._position(event), event.get("delta"), part)
            case "response.output_item.added":
                item = json_object(event.get("item")) or {}
                position = self._position(event, item)
                self._add_total(position, "arguments", item.get("arguments"))
                yield from self._start_item(position, item)
            case "response.output_text.done" | "response.function_call_arguments.done":
                kind = "text" if "text" in event else "arguments"
                number = event.get("content_index")
                self._add_total(self._position(event), kind, event.get(kind), number)
            case "response.function_call_arguments.delta":
                position = self._position(event)
                self._streamed.add((position, "arguments"))
                yield CallPart(position, arguments=arguments_json(event.get("delta")))
            case "response.output_item.done":
                item = json_object(event.get("item")) or {}
                yield from self._finish_item(self._position(event, item), item)
            case _:
                # Progress and unknown events, also after the last one (`rate_limits.updated`).
                pass

    def _add_total(self, position: int, kind: str, total: Any, part: Any = None) -> None:
        if total and len(self._totals) < _MAX_TOTALS:
            text = arguments_json(total) if kind == "arguments" else text_or_empty(total)
            self._totals[position, kind, str(part)] = text

    def _read_totals(self) -> Iterator[WireDelta]:
        """Read the totals of items without an end, which some servers leave out."""
        streamed = frozenset(self._streamed)
        for (position, kind, part), total in sorted(self._totals.items()):
            is_streamed = (position, kind) in streamed
            if position in self._items:
                continue
            if kind == "arguments":
                yield (
                    CallArguments(position, total)
                    if is_streamed
                    else CallPart(position, arguments=total)
                )
            elif not is_streamed:
                yield self._piece(kind, position, total, part)

    def _position(self, event: dict[str, Any], item: dict[str, Any] | None = None) -> int:
        """Position of an event's item in the output; llama.cpp sends only its id."""
        id = text_or_empty(event.get("item_id") or (item or {}).get("id"))
        position = parse_index(event.get("output_index"))
        if position is None:
            position = self._positions.get(id, self._next_position)
        self._next_position = max(self._next_position, position + 1)
        if id:
            self._positions.setdefault(id, position)
        return position

    def _piece(
        self, kind: str, position: int, piece: Any, part: Any = None
    ) -> TextPiece | ReasoningPiece:
        """Make a piece of text or reasoning; every part after the first begins a paragraph."""
        if not isinstance(piece, str):
            raise bad_response("a delta is not text")
        self._streamed.add((position, kind))
        if piece:
            before, self._last_piece[kind] = self._last_piece.get(kind), (position, part)
            if before not in (None, (position, part)):
                piece = f"\n\n{piece}"  # `commentary` and `final_answer` are two messages.
        return TextPiece(piece) if kind == "text" else ReasoningPiece(piece)

    def _start_item(self, position: int, item: dict[str, Any]) -> Iterator[WireDelta]:
        """Start an item, when it is announced or arrives whole."""
        if item.get("type") == "function_call":
            call_id, name = text_or_empty(item.get("call_id")), text_or_empty(item.get("name"))
            yield CallPart(position, call_id, name)

    def _finish_item(self, position: int, item: dict[str, Any]) -> Iterator[WireDelta]:
        """Read a complete item. It replaces its deltas if they differ."""
        if position in self._items:
            return
        self._items[position] = item
        yield from self._start_item(position, item)
        parts = objects_in(item.get("summary")) or objects_in(item.get("content"))
        match item.get("type"):
            case "function_call":
                arguments = arguments_json(item.get("arguments"))
                if (position, "arguments") not in self._streamed:
                    yield CallPart(position, arguments=arguments)
                elif arguments:
                    yield CallArguments(position, arguments)
            case "message":
                if any(part.get("type") == "refusal" for part in parts):
                    yield Facts(refused=True)
                if (position, "text") not in self._streamed:
                    for piece in read_content(item.get("content")):
                        yield self._message_piece(position, piece)
            case "text" | "output_text":
                yield from read_content([item])
            case "image_generation_call":
                yield from self._read_image(position, item)
            case "reasoning" if (position, "reasoning") not in self._streamed:
                for number, part in enumerate(parts):
                    text = text_or_empty(part.get("text"))
                    yield self._piece("reasoning", position, text, number)
            case "reasoning":
                pass  # Its pieces came before.
            case kind:
                yield Facts(unread=[str(kind)], begun=False)

    def _message_piece(self, position: int, piece: WireDelta) -> WireDelta:
        """Return a piece of a message, as those of a stream; other deltas stay as they are."""
        if isinstance(piece, TextPiece):
            return self._piece("text", position, piece.text)
        return piece

    def _read_image(self, position: int, item: dict[str, Any]) -> Iterator[WireDelta]:
        """Read a generated image; the item that goes back has its number, not its data."""
        self._items[position] = {
            name: item[name] for name in ("type", "id", "status") if name in item
        }
        if (sent := find_file(item)) is not None:
            yield Picture(sent)
            if (number := self._progress.image_number) is not None:
                self._items[position][_IMAGE_NUMBER] = number

    def _finish_response(self, response: dict[str, Any], status: str) -> Iterator[WireDelta]:
        """Read the last event: missing items, usage, and the finish reason."""
        yield UsageReport(read_usage(response.get("usage")))
        model = text_or_empty(response.get("model"))
        yield Facts(model, vendor=response, vendor_without=_REPEATED_FIELDS, begun=False)
        if response.get("status") in ("incomplete", "failed", "cancelled"):
            # vLLM and LiteLLM end every stream with `response.completed`; the status is right.
            status = str(response["status"])
        if response.get("error") or status in ("failed", "cancelled"):
            fault = response if response.get("error") else {"error": f"the answer is {status}"}
            yield from self._fail(fault)
            return
        for position, item in enumerate(objects_in(response.get("output"))):
            known = self._positions.get(text_or_empty(item.get("id")), position)
            yield from self._finish_item(known, item)
        yield from self._read_totals()
        if not self._progress.has_text and (text := text_or_empty(response.get("output_text"))):
            yield TextPiece(text)  # Servers that write only the field of OpenAI's own client.
        items = [self._items[position] for position in sorted(self._items)]
        # Ignore the status of reasoning items: the answer after one may be complete.
        of_answer = [item for item in items if item.get("type") in ("function_call", "message")]
        if any(item.get("status") == "incomplete" for item in of_answer):
            status = "incomplete"  # An item was cut, so the answer was.
        needed = ("encrypted_content", "phase", _IMAGE_NUMBER)
        if any(item.get(name) not in (None, "") for item in items for name in needed):
            yield Facts(raw={"items": items})
        if status == "incomplete":
            details = json_object(response.get("incomplete_details")) or {}
            word = text_or_empty(details.get("reason"))
            is_filtered = finish_reason(word) == "content_filter"
            yield Finish("content_filter" if is_filtered else "length", word)
        else:
            yield Finish("tool_calls" if self._progress.has_calls else "stop")
        yield LastEvent()

    def _fail(self, holder: dict[str, Any]) -> Iterator[WireDelta]:
        yield ServerFault(stream_error(holder))
        yield LastEvent()


def _background_fault(status: str) -> ModelError:
    return ModelError(
        f"the server answers in the background (status {status!r}), and nbagent does not wait for"
        " such an answer; take `background` out of extra_body.",
        code="LLM_BAD_RESPONSE",
    )


_IMAGE_NUMBER = "image_number"
"""In the items that `raw` keeps: the image's number in the message, in place of its data."""
_REQUEST_ONLY_KINDS = ("_output", "item_reference")
"""Endings of item types that occur only in requests."""


_REPEATED_FIELDS = frozenset(
    {"output", "instructions", "input", "tools", "tool_choice", "text", "metadata", "prompt"}
)
"""Fields that are read here, or repeat the request."""


_UNKNOWN_SERVER = Profile()


class Responses(Wire):
    """OpenAI Responses, without storage at the server."""

    name = "responses"
    parser = ResponsesParser
    endpoint_paths = ("/responses",)
    messages_field = "input"
    unsupported_fields = frozenset({"stop_sequences"})
    reserved_keys = frozenset({"input", "tools", "instructions"})
    workarounds = frozenset({"no_replay"})

    def __init__(self, profile: Profile = _UNKNOWN_SERVER) -> None:
        self._profile = profile
        self.default_path = profile.default_path
        self.account_headers = profile.account_headers

    def params(
        self, request: ChatRequest, names: WireNames, workarounds: frozenset[str], *, stream: bool
    ) -> dict[str, Any]:
        """Body without instructions, input and tools."""
        params: dict[str, Any] = {
            "model": request.model,
            "store": False,
            "include": ["reasoning.encrypted_content"],
        }
        if request.tools:
            choice = request.tool_choice or "auto"
            named = {"type": "function", "name": names.to_wire(choice)}
            params["tool_choice"] = choice if choice in TOOL_CHOICES else named
        if request.reasoning is not None:
            effort = effort_level(request.reasoning)
            summary = {} if effort == "none" else {"summary": "auto"}
            params["reasoning"] = {"effort": effort, **summary}
        if request.output_schema is not None:
            schema = {"name": "answer", "schema": request.output_schema, "strict": False}
            params["text"] = {"format": {"type": "json_schema", **schema}}
        params["temperature"], params["top_p"] = request.temperature, request.top_p
        params["max_output_tokens"] = request.max_tokens
        params["stream"] = stream or None
        return without_none(params)

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """True as the profile says: then for every model and any tools."""
        return self._profile.responses_schema

    def system_text(self, request: ChatRequest) -> str:
        """System text, with the schema if the server may ignore it as a parameter."""
        in_words = request.output_schema is not None and not self._profile.responses_schema
        return system_with_schema(request) if in_words else request.system_prompt

    def encode_tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """Encode a flat function. `strict: false` is explicit: the server may take a missing one
        for true."""
        parameters = wire_schema(spec.parameters)
        known = {"type": "function", **name_and_description(spec, name)}
        return {**known, "parameters": parameters, "strict": False}

    def encode_group(self, group: tuple[Message, ...], context: EncodingContext) -> list[Any]:
        """Encode one message as items."""
        message = group[0]
        if message.role == "assistant":
            return _assistant_items(message, context)
        parts = [_content_part(part) for part in message.content]
        if message.role == "tool":
            output = parts if attachments(message) else message.text
            call_id = wire_id(message.tool_call_id or "")
            return [{"type": "function_call_output", "call_id": call_id, "output": output}]
        return [{"type": "message", "role": message.role, "content": parts}]

    def system_fields(self, text: str) -> dict[str, Any] | None:
        """The system text goes into `instructions`."""
        return {"instructions": text}


def _is_answer_item(item: dict[str, Any]) -> bool:
    """True if an answer can hold this item. A stranger's record must not add other messages."""
    kind = str(item.get("type"))
    return item.get("role", "assistant") == "assistant" and not kind.endswith(_REQUEST_ONLY_KINDS)


def _assistant_items(message: Message, context: EncodingContext) -> list[Any]:
    calls: list[dict[str, Any]] = [
        {
            "type": "function_call",
            "call_id": wire_id(call.id),
            "name": context.names.to_wire(call.name),
            "arguments": arguments_text(call),
        }
        for call in message.tool_calls
    ]
    answer_items = objects_in(context.raw_from_model(message).get("items"))
    if not answer_items or [item.get("type") for item in answer_items].count(
        "function_call"
    ) != len(calls):
        content = answer_text(message)
        text = {"type": "message", "role": "assistant", "content": content}
        return [text, *calls] if content else calls
    # Items as they came, in order. Without `store` the server knows no reasoning item by its id
    # ("Item rs_… not found"): one without encrypted content is dropped.
    items: list[dict[str, Any]] = []
    left = iter(calls)
    for item in answer_items:
        if item.get("type") == "function_call":
            items.append({**item, **next(left)})  # Results refer to `call_id`.
        elif item.get("type") == "image_generation_call":
            items += _image_item(item, message)
        elif (
            item.get("encrypted_content") and "no_replay" not in context.workarounds
            if item.get("type") == "reasoning"
            else _is_answer_item(item)
        ):
            items.append(item)
    while items and items[-1].get("type") == "reasoning":
        items.pop()  # Refused without the item after it, where the answer was cut.
    return items


def _image_item(item: dict[str, Any], message: Message) -> list[dict[str, Any]]:
    """Return the item of a generated image with its data; the server has not stored it."""
    number, images = item.get(_IMAGE_NUMBER), message.images
    if not isinstance(number, int) or not 0 <= number < len(images) or not images[number].data:
        return []
    plain = {name: value for name, value in item.items() if name != _IMAGE_NUMBER}
    return [{**plain, "status": "completed", "result": images[number].data}]


def _content_part(part: Part) -> dict[str, Any]:
    shown = text_or_part(part)
    if isinstance(shown, str):
        return {"type": "input_text", "text": shown}
    if isinstance(shown, ImagePart):
        return {"type": "input_image", "image_url": data_url(shown), "detail": "auto"}
    if is_audio(shown):
        raise unsupported_file(shown, "The Responses API")
    return {"type": "input_file", "filename": shown.name, "file_data": data_url(shown)}
