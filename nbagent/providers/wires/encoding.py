"""The messages of a conversation as one wire's bytes: each group encoded once, then kept.

Also what every wire asks of old messages: ids that fit, arguments that are JSON, texts of files.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any

from nbagent.contracts.canonical import dump_json, sha256_hex
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import FilePart, ImagePart, Message, Part, TextPart, ToolCall
from nbagent.contracts.model import ChatRequest
from nbagent.providers.wires.base import Encoding, Wire

FILLER = Message.of("assistant", "…")
"""Stands between two messages where a template wants the roles to take turns."""
_KEPT_GROUPS = 4096
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TEXT_FILES = re.compile(r"text/|application/(?:json|xml|x?yaml|toml|x-ndjson|javascript|sql)\b")


class History:
    """Encodes the messages of conversations with one model and toolset on one wire.

    It depends on nothing that comes later: each request extends the one before.
    """

    def __init__(self, wire: Wire, context: Encoding) -> None:
        self._wire = wire
        self._context = context
        self._kept: dict[tuple[int, ...], tuple[tuple[Message, ...], bytes]] = {}
        """Groups with their bytes; holding the messages keeps their `id`s from being used again."""

    def body(self, request: ChatRequest, tools: bytes, params: dict[str, Any]) -> bytes:
        """The body of a request; `tools` is their encoded array."""
        # Templates of some servers take one system message, at the start.
        leading = list(takewhile(lambda message: message.role == "system", request.messages))
        texts = [self._wire.system(request), *(message.text for message in leading)]
        wires = self._encoded(request.messages[len(leading) :])
        if system := "\n\n".join(filter(None, texts)):
            beside = self._wire.system_fields(system)
            if beside is None:
                wires.insert(0, dump_json({"role": "system", "content": system}))
            params = {**(beside or {}), **params}
        parts = [b'"%b":[%b]' % (self._wire.messages_field.encode(), b",".join(wires))]
        if self._wire.offers_tools(request, params):
            parts.append(b'"tools":' + self._wire.tools_form % tools)
        if params:
            parts.append(dump_json(params)[1:-1])
        return b"{" + b",".join(parts) + b"}"

    def _encoded(self, messages: Sequence[Message]) -> list[bytes]:
        """The wire's messages, joined by groups."""
        parts: list[bytes] = []
        for group in self._wire.groups(messages, self._context.flags):
            key = tuple(map(id, group))
            if key not in self._kept:
                if len(self._kept) >= _KEPT_GROUPS:
                    del self._kept[next(iter(self._kept))]
                wires = self._wire.encode(group, self._context)
                self._kept[key] = group, b",".join(map(dump_json, wires))
            parts.append(self._kept[key][1])
        return [part for part in parts if part]


def results_together(
    messages: Iterable[Message], *, with_calls: bool = False
) -> Iterable[tuple[Message, ...]]:
    """Each message alone, but the tool messages of one turn as one group.

    Args:
        with_calls: the answer that they follow is in the group.
    """
    group: list[Message] = []
    for message in messages:
        if group and not (message.role == "tool" and (with_calls or group[-1].role == "tool")):
            yield tuple(group)
            group = []
        group.append(message)
    if group:
        yield tuple(group)


def is_failure(message: Message) -> bool:
    """Whether a tool message says that its call failed (the JSON of a tool result begins so)."""
    return message.text.startswith('{"ok":false')


def in_turns(messages: Iterable[Message]) -> list[Message]:
    """The messages with a short answer before each word of the user that follows no answer."""
    arranged: list[Message] = []
    for message in messages:
        if arranged and message.role == "user" and arranged[-1].role in ("user", "tool"):
            arranged.append(FILLER)
        arranged.append(message)
    return arranged


def wire_id(call_id: str, fits: re.Pattern[str] = _ID) -> str:
    """The id as it is where it fits a server's rule, else one made of it, always the same."""
    if fits.fullmatch(call_id):
        return call_id
    number = int(sha256_hex(call_id), 16)
    made = "".join(_BASE62[number // 62**place % 62] for place in range(24))
    return made if fits.fullmatch(made) else made[:9]  # Mistral's have nine.


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """The arguments of an old call as an object, also where the model wrote none."""
    if call.arguments is not None:
        return call.arguments
    # Servers decode this; what is not JSON would be their 500.
    return {"INVALID_JSON": call.arguments_raw}


def arguments_text(call: ToolCall) -> str:
    """The arguments of an old call as JSON text, exactly as the model wrote them."""
    if call.arguments is None:
        return dump_json(arguments_object(call)).decode()
    return call.arguments_raw if call.arguments_raw.strip() else "{}"


def with_schema(request: ChatRequest) -> str:
    """The system text with the schema of the answer, where no parameter takes it."""
    schema = dump_json(request.output_schema).decode()
    said = f"Answer with one JSON object that fits this JSON Schema: {schema}"
    return f"{request.system_prompt}\n\n{said}" if request.system_prompt else said


def readable(part: Part) -> str | ImagePart | FilePart:
    """A text, or a text file as the model is shown it (few servers read files), else the part."""
    if isinstance(part, TextPart):
        return part.text
    if isinstance(part, FilePart) and _TEXT_FILES.match(part.media_type):
        with suppress(ValueError):
            text = base64.b64decode(part.data, validate=True).decode("utf-8-sig")
            return f"File {part.name}:\n{text}"
    return part


def data_url(part: ImagePart | FilePart) -> str:
    """The attachment as an address."""
    if isinstance(part, ImagePart) and part.url:
        return part.url
    return f"data:{part.media_type};base64,{part.data or ''}"


def attached(message: Message) -> list[ImagePart | FilePart]:
    """The images and files of a message."""
    return [part for part in message.content if not isinstance(part, TextPart)]


def unreadable(part: FilePart, who: str) -> ModelError:
    """The error for a file that a provider does not take."""
    return ModelError(
        f"{who} takes no file like {part.name!r} ({part.media_type}); give its text, or choose"
        " another provider.",
        code="LLM_HTTP_ERROR",
    )
