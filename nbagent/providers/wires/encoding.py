"""Encode the messages of a conversation as one wire's bytes; each group is encoded once.

Also the forms of old messages that all wires need: valid call ids, arguments as JSON, texts of
files.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from nbagent.contracts.canonical import dump_json, json_object, sha256_hex
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import FilePart, ImagePart, Message, Part, TextPart, ToolCall
from nbagent.contracts.model import ChatRequest
from nbagent.providers.wires.base import EncodingContext, Wire
from nbagent.providers.wires.message_changes import SYSTEM_AS_USER
from nbagent.shown.image_files import (
    MAX_SENT_IMAGE_BYTES,
    image_label,
    image_type,
    is_other_file,
)

FILLER_ANSWER = Message.of("assistant", "…")
"""Answer to put between two user messages, for templates that want alternating roles."""
_MAX_CACHED_GROUPS = 4096
_DEFAULT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TEXT_FILES = re.compile(r"text/|application/(?:json|xml|x?yaml|toml|x-ndjson|javascript|sql)\b")


@dataclass(frozen=True, slots=True)
class _EncodedGroup:
    """Bytes of a group of messages."""

    messages: tuple[Message, ...]
    """Kept so that Python does not reuse their `id`s, which are the key of the cache."""
    data: bytes
    omitted: frozenset[str]
    """Fields that were left out because the server refuses them."""


class MessageEncoder:
    """Encodes the messages of conversations with one model and toolset on one wire.

    Bytes never depend on later messages: each request extends the one before, so the provider's
    prompt cache hits.
    """

    def __init__(self, wire: Wire, context: EncodingContext) -> None:
        self._wire = wire
        self._context = context
        self._cache: dict[tuple[int, ...], _EncodedGroup] = {}

    def body(
        self, request: ChatRequest, tools: bytes, params: dict[str, Any]
    ) -> tuple[bytes, tuple[str, ...]]:
        """Encode the body of a request, and list the fields that are left out of its messages.

        Args:
            request: the conversation.
            tools: their encoded array.
            params: the other fields.
        """
        # Chat templates of some servers (vLLM) accept one system message, at the start.
        leading = list(takewhile(lambda message: message.role == "system", request.messages))
        texts = [self._wire.system_text(request), *(message.text for message in leading)]
        system, messages = "\n\n".join(filter(None, texts)), request.messages[len(leading) :]
        if system and SYSTEM_AS_USER in self._context.workarounds:
            system, messages = "", with_system_as_user(system, messages)
        groups = self._encoded_groups(messages)
        encoded = [group.data for group in groups if group.data]
        omitted = sorted({name for group in groups for name in group.omitted})
        if system:
            top_level = self._wire.system_fields(system)
            if top_level is None:
                encoded.insert(0, dump_json({"role": "system", "content": system}))
            params = {**(top_level or {}), **params}
        parts = [b'"%b":[%b]' % (self._wire.messages_field.encode(), b",".join(encoded))]
        if self._wire.offers_tools(request, params):
            parts.append(b'"tools":' + self._wire.tools_template % tools)
        if params:
            parts.append(dump_json(params)[1:-1])
        return b"{" + b",".join(parts) + b"}", tuple(omitted)

    def _encoded_groups(self, messages: Sequence[Message]) -> list[_EncodedGroup]:
        """Encode the messages, one part per group."""
        parts: list[_EncodedGroup] = []
        for group in self._wire.group_messages(messages, self._context.workarounds):
            key = tuple(map(id, group))
            if key not in self._cache:
                if len(self._cache) >= _MAX_CACHED_GROUPS:
                    del self._cache[next(iter(self._cache))]
                self._cache[key] = self._encode_group(group)
            parts.append(self._cache[key])
        return parts

    def _encode_group(self, group: tuple[Message, ...]) -> _EncodedGroup:
        """Encode one group, with the changes that the server demands."""
        context = self._context
        wires, omitted = self._wire.encode_group(group, context), set[str]()
        results = [message for message in group if message.role == "tool"]
        for position, wire in enumerate(wires):
            fields = json_object(wire)
            if not context.changes or fields is None:
                continue
            reasoning = group[0].reasoning if context.raw_from_model(group[0]) else None
            result = results[position] if position < len(results) else None
            name = context.names.to_wire(result.name) if result and result.name else ""
            for change in context.changes:
                fields, differs = change.apply(fields, reasoning=reasoning or "", tool_name=name)
                if differs and change.action == "omit":
                    omitted.add(".".join((self._wire.messages_field, *change.path)))
            wires[position] = fields
        return _EncodedGroup(group, b",".join(map(dump_json, wires)), frozenset(omitted))


def group_results(
    messages: Iterable[Message], *, with_calls: bool = False
) -> Iterable[tuple[Message, ...]]:
    """Yield each message alone, but the tool messages of one turn as one group.

    Args:
        with_calls: put the answer with the calls into the same group.
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
    """True if a tool message reports a failed call; the JSON of a tool result begins with `ok`."""
    return message.text.startswith('{"ok":false')


def with_alternating_roles(messages: Iterable[Message]) -> list[Message]:
    """Insert a short answer before each user message that does not follow an answer."""
    arranged: list[Message] = []
    for message in messages:
        if arranged and message.role == "user" and arranged[-1].role in ("user", "tool"):
            arranged.append(FILLER_ANSWER)
        arranged.append(message)
    return arranged


def with_system_as_user(system: str, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Put the system text before the first words of the user."""
    if not messages or messages[0].role != "user":
        return (Message.of("user", system), *messages)
    first = messages[0]
    content = (TextPart(text=f"{system}\n\n"), *first.content)
    return (first.model_copy(update={"content": content}), *messages[1:])


def wire_id(call_id: str, pattern: re.Pattern[str] = _DEFAULT_ID) -> str:
    """Return a call id that the server accepts: the id itself, else a hash of it.

    The same id always gives the same hash, so calls and results still match. Rules differ: Mistral
    takes exactly 9 letters or digits, OpenAI Chat at most 40 characters, Responses at most 64,
    Anthropic only letters, digits, `_` and `-`.
    """
    if pattern.fullmatch(call_id):
        return call_id
    number = int(sha256_hex(call_id), 16)
    hashed_id = "".join(_BASE62[number // 62**digit % 62] for digit in range(24))
    return hashed_id if pattern.fullmatch(hashed_id) else hashed_id[:9]  # Mistral: nine characters.


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """Arguments of an old call as an object, also if the model wrote invalid JSON."""
    if call.arguments is not None:
        return call.arguments
    # Servers decode the arguments of old calls; invalid JSON would be their error 500.
    return {"INVALID_JSON": call.arguments_raw}


def arguments_text(call: ToolCall) -> str:
    """Arguments of an old call as JSON text, exactly as the model wrote them if they are JSON."""
    if call.arguments is None:
        return dump_json(arguments_object(call)).decode()
    return call.arguments_raw if call.arguments_raw.strip() else "{}"


def system_with_schema(request: ChatRequest) -> str:
    """System text with the schema of the answer, if no parameter accepts it."""
    schema = dump_json(request.output_schema).decode()
    instruction = f"Answer with one JSON object that fits this JSON Schema: {schema}"
    return f"{request.system_prompt}\n\n{instruction}" if request.system_prompt else instruction


def text_or_part(part: Part) -> str | ImagePart | FilePart:
    """Return the text of a part, also of a text file (few servers read files), else the part.

    Raises:
        ModelError: the part is an image that no server accepts.
    """
    if isinstance(part, TextPart):
        return part.text
    if isinstance(part, ImagePart):
        return _checked_image(part)
    if _TEXT_FILES.match(part.media_type):
        with suppress(ValueError):
            text = base64.b64decode(part.data, validate=True).decode("utf-8-sig")
            return f"File {part.name}:\n{text}"
    return part


def _checked_image(part: ImagePart) -> ImagePart:
    """Check the bytes of an image, and correct its media type if they are of another one.

    A wrong media type is answered with 400, and then each later request of the conversation is.
    """
    if not part.data:
        return part
    if len(part.data) > MAX_SENT_IMAGE_BYTES * 4 // 3 + 4:
        size = f"{len(part.data) * 3 // 4 // 1_000_000} MB"
        raise _unusable_image(
            part, f"has {size}, and at most {MAX_SENT_IMAGE_BYTES // 1_000_000} are sent"
        )
    content = part.content
    if not content:
        raise _unusable_image(part, "has data that is not base64")
    if is_other_file(content):
        raise _unusable_image(part, "is no image: its bytes are of another kind of file")
    known = image_type(content)
    if known is None or known == part.media_type:
        return part
    return part.model_copy(update={"media_type": known})


def _unusable_image(part: ImagePart, reason: str) -> ModelError:
    name = part.alt[:80] or part.media_type[:80]
    return ModelError(
        f"the image {name!r} {reason}; give a PNG, JPEG, GIF or WebP file. Nothing was sent.",
        code="LLM_HTTP_ERROR",
    )


def answer_text(message: Message) -> str:
    """Text of an answer, with words in place of its images: few servers accept them in answers."""
    if not message.images:
        return message.text
    pieces = [
        part.text if isinstance(part, TextPart) else f"{image_label(part)[:-1]}; not repeated here]"
        for part in message.content
        if not isinstance(part, FilePart)
    ]
    return "\n\n".join(filter(None, pieces))


def data_url(part: ImagePart | FilePart) -> str:
    """URL of an attachment, or its data as a data URL."""
    if isinstance(part, ImagePart) and part.url:
        return part.url
    return f"data:{part.media_type};base64,{part.data or ''}"


def attachments(message: Message) -> list[ImagePart | FilePart]:
    """Images and files of a message."""
    return [part for part in message.content if not isinstance(part, TextPart)]


_AUDIO_SIGNATURES = {
    "audio/mp3": re.compile(rb"ID3|\xff[\xfb\xfa\xf3\xf2\xe3\xe2]"),
    "audio/ogg": re.compile(rb"OggS"),
    "audio/flac": re.compile(rb"fLaC"),
    "audio/aiff": re.compile(rb"FORM.{4}AIF[FC]", re.DOTALL),
}
_AUDIO_NAMES = {
    "audio/wave": "audio/wav",
    "audio/x-wav": "audio/wav",
    "audio/vnd.wave": "audio/wav",
    "audio/mpeg": "audio/mp3",
    "audio/mpeg3": "audio/mp3",
    "audio/x-mp3": "audio/mp3",
}


def audio_type(part: FilePart) -> str:
    """Media type of a recording, by one name for each format; empty for other files.

    The bytes decide, whatever the file is called: a player in a notebook calls all bytes WAV.
    """
    start = _first_bytes(part.data)
    if re.match(rb"RIFF.{4}WAVE", start, re.DOTALL):
        return "audio/wav"
    media_type = part.media_type.partition(";")[0].strip().lower()
    is_unnamed = media_type in ("", "application/octet-stream")
    for audio, signature in _AUDIO_SIGNATURES.items():
        if signature.match(start):
            return audio if is_unnamed or media_type.startswith("audio/") else ""
    named = _AUDIO_NAMES.get(media_type, media_type) if media_type.startswith("audio/") else ""
    return "audio/unknown" if named in ("audio/wav", "audio/mp3") else named


def _first_bytes(data: str) -> bytes:
    with suppress(ValueError):
        return base64.b64decode(data[:64])
    return b""


def is_audio(part: FilePart) -> bool:
    """True for a recording."""
    return bool(audio_type(part))


def unsupported_file(part: FilePart | ImagePart, provider: str) -> ModelError:
    """Build the error for a file or an image that the provider does not accept."""
    if isinstance(part, ImagePart):
        name = part.alt[:80] or part.media_type[:80]
        return ModelError(
            f"{provider} takes no images, so {name!r} was not sent; choose a model that takes them,"
            " or say in words what it shows.",
            code="LLM_HTTP_ERROR",
        )
    if is_audio(part):
        return ModelError(
            f"{provider} takes no audio, so {part.name!r} was not sent; Gemini models (google:…) "
            "and the audio models of Chat Completions servers (such as openai:gpt-audio) take it. "
            "Choose one of them, or give a transcript.",
            code="LLM_HTTP_ERROR",
        )
    return ModelError(
        f"{provider} does not accept the file {part.name!r} ({part.media_type}); give its text, or "
        "choose another provider.",
        code="LLM_HTTP_ERROR",
    )
