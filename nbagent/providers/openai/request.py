"""What a Chat Completions server is sent: history, tools and parameters as JSON bytes.

Only fields that the dialect knows are written. Old messages are encoded once and kept as bytes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from nbagent.contracts.canonical import dump_json, json_object, sha256_hex
from nbagent.contracts.chat import (
    ChatRequest,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCall,
    ToolSpec,
)
from nbagent.providers.base import origin
from nbagent.providers.names import WireNames
from nbagent.providers.openai.schema import wire_schema

_KEPT_MESSAGES = 4096
_FITTING_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}")
_ANSWER = b'{"role":"assistant","content":"\xe2\x80\xa6"}'
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NO_REASONING_BACK = (
    "openai.com",
    "azure.com",
    "groq.com",
    "mistral.ai",
    "googleapis.com",
    "anthropic.com",
)
_NULL_CONTENT = ("openai.com", "azure.com", "anthropic.com", "googleapis.com", "openrouter.ai")
_TEXT_FILES = re.compile(r"text/|application/(?:json|xml|x?yaml|toml|x-ndjson|javascript|sql)\b")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one server differs from the others, judged by its host."""

    origin: str
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"]
    reasoning_back: Literal["never", "tools", "deepseek"]
    """Whether reasoning is sent back: never, in tool loops, or by DeepSeek's strict rule."""
    omit_tools_for_none: bool
    """`tool_choice: none` is not understood, or garbles the answer: no tools are sent instead."""
    mistral: bool
    """Nine characters for each call id, and no unknown key in a schema."""
    openrouter: bool
    """Takes the effort in an object of its own."""
    null_content: bool
    """A message of calls alone has content null; templates of other servers need a text."""
    keeps_refs: bool
    """References in a schema are followed."""
    think_tags: bool
    """Reasoning may stand in the text, between tags."""

    @classmethod
    def of(cls, base_url: str) -> Dialect:
        """The dialect of the server at this address."""
        host = urlsplit(base_url).hostname or ""

        def at(*domains: str) -> bool:
            return any(host == domain or host.endswith(f".{domain}") for domain in domains)

        # OpenAI's reasoning models refuse max_tokens; DeepSeek and Ollama ignore the newer name.
        openai = at("openai.com", "azure.com")
        back = "never" if at(*_NO_REASONING_BACK) else "tools"
        # Ollama ignores every tool choice, Mistral garbles its answer, Groq refuses.
        ollama = at("ollama.com") or _port(base_url) == 11434
        return cls(
            origin=origin(base_url) or "",
            max_tokens_field="max_completion_tokens" if openai else "max_tokens",
            reasoning_back="deepseek" if at("deepseek.com") else back,
            omit_tools_for_none=ollama or at("mistral.ai", "groq.com"),
            mistral=at("mistral.ai"),
            openrouter=at("openrouter.ai"),
            null_content=at(*_NULL_CONTENT),
            keeps_refs=openai or at("anthropic.com"),
            think_tags=not (openai or at("anthropic.com")),
        )

    def schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema as this server understands it."""
        return wire_schema(schema, inline=not self.keeps_refs, plain=self.mistral)


class Toolset:
    """The tools of a request, encoded once, and their names on the wire."""

    def __init__(self, tools: tuple[ToolSpec, ...], dialect: Dialect | None = None) -> None:
        self.tools = tools
        self.names = WireNames(tool.name for tool in tools)
        self._schema = dialect.schema if dialect else wire_schema
        self.encoded = dump_json([self._wire(tool) for tool in tools])

    def _wire(self, tool: ToolSpec) -> dict[str, Any]:
        function: dict[str, Any] = {"name": self.names.to_wire(tool.name)}
        if tool.description:
            function["description"] = tool.description
        function["parameters"] = self._schema({"type": "object", **tool.parameters})
        return {"type": "function", "function": function}


@dataclass(slots=True)
class _Kept:
    """A message with its bytes; holding the message keeps its `id` from being used again."""

    message: Message
    data: bytes
    images: tuple[dict[str, Any], ...] = ()


class HistoryEncoder:
    """Encodes the messages of one conversation with one model and toolset.

    A tool message is text on this wire, so the images and files of tool results follow in one
    message of the user, directly behind all tool messages of the turn; the history that is kept
    does not have it. It depends on nothing that comes later: each request extends the one before.
    """

    def __init__(self, dialect: Dialect, model: str, toolset: Toolset) -> None:
        self.model = model
        self.toolset = toolset
        self._dialect = dialect
        self._kept: dict[int, _Kept] = {}
        self._own_ids: set[str] = set()

    def encode(
        self, system_prompt: str, messages: Sequence[Message], *, in_turns: bool = False
    ) -> bytes:
        """The `messages` array.

        Args:
            in_turns: put a short answer between a message of the user and what came before it.
        """
        parts: list[bytes] = []
        start = 0
        before = ""
        # Templates of some servers take exactly one system message, at the start.
        leading = [system_prompt] if system_prompt else []
        while start < len(messages) and messages[start].role == "system":
            leading.append(messages[start].text)
            start += 1
        if leading:
            parts.append(dump_json({"role": "system", "content": "\n\n".join(leading)}))
        images: list[dict[str, Any]] = []
        kept = self._kept
        for message in messages[start:] if start else messages:
            entry = kept.get(id(message))
            if entry is None:
                entry = self._keep(message)
            if images and message.role != "tool":
                parts += [_ANSWER] * in_turns
                parts.append(_attachments_message(images))
                images, before = [], "user"
            if entry.data:
                if in_turns and message.role == "user" and before in ("user", "tool"):
                    parts.append(_ANSWER)
                parts.append(entry.data)
                before = message.role
            if entry.images:
                images.extend(entry.images)
        if images:
            parts += [_ANSWER] * in_turns
            parts.append(_attachments_message(images))
        return b"[" + b",".join(parts) + b"]"

    def _keep(self, message: Message) -> _Kept:
        if len(self._kept) >= _KEPT_MESSAGES:
            del self._kept[next(iter(self._kept))]
        images: tuple[dict[str, Any], ...] = ()
        if message.role == "assistant":
            wire = self._assistant(message)
        elif message.role == "tool":
            wire, images = self._tool(message)
        else:
            wire = {"role": message.role, "content": _content(message.content)}
        entry = _Kept(message, dump_json(wire) if wire else b"", images)
        self._kept[id(message)] = entry
        return entry

    def _assistant(self, message: Message) -> dict[str, Any] | None:
        text = message.text
        if not text and not message.tool_calls:
            return None  # Mistral and others refuse an empty assistant message.
        raw = message.raw or {}
        ours = raw.get("origin") == self._dialect.origin
        nothing = None if self._dialect.null_content else ""
        wire: dict[str, Any] = {"role": "assistant", "content": text or nothing}
        if message.tool_calls:
            if ours:
                self._own_ids.update(call.id for call in message.tool_calls)
            wire["tool_calls"] = [self._call(call, ours) for call in message.tool_calls]
        same_model = ours and raw.get("model") == self.model
        self._add_reasoning(wire, message, raw if same_model else {})
        if same_model:
            wire.update(json_object(raw.get("fields")) or {})
        return wire

    def _add_reasoning(self, wire: dict[str, Any], message: Message, raw: dict[str, Any]) -> None:
        rule = self._dialect.reasoning_back
        field = raw.get("reasoning_field")
        if rule == "never" or not self.toolset.tools:
            return
        if rule == "deepseek":
            # DeepSeek answers 400 when a tool-calling turn comes back without the field.
            if field or message.tool_calls:
                wire["reasoning_content"] = (message.reasoning or "") if field else ""
        elif isinstance(field, str) and message.reasoning:
            wire[field] = message.reasoning

    def _call(self, call: ToolCall, ours: bool) -> dict[str, Any]:
        arguments = call.arguments_raw
        if not arguments.strip():
            arguments = "{}"
        elif call.arguments is None:
            # Templates of some servers decode this text; what is not JSON would be their 500.
            arguments = dump_json({"INVALID_JSON": arguments}).decode("utf-8", "replace")
        wire: dict[str, Any] = {
            "id": self._wire_id(call.id),
            "type": "function",
            "function": {"name": self.toolset.names.to_wire(call.name), "arguments": arguments},
        }
        return {**(call.extra or {}), **wire} if ours else wire

    def _tool(self, message: Message) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
        """A tool message, which is text only, and what has to follow it."""
        tool_id = self._wire_id(message.tool_call_id or "")
        wire = {"role": "tool", "tool_call_id": tool_id, "content": message.text}
        attached = [_part(part) for part in message.content if not isinstance(part, TextPart)]
        if not attached:
            return wire, ()
        tool = self.toolset.names.to_wire(message.name) if message.name else "the tool"
        label = {"type": "text", "text": f"Given back by {tool} (call {tool_id}):"}
        return wire, (label, *attached)

    def _wire_id(self, call_id: str) -> str:
        mistral = self._dialect.mistral
        # A server takes its own ids back, whatever they look like; Mistral also gives none.
        if call_id in self._own_ids and not mistral:
            return call_id
        if (_MISTRAL_ID if mistral else _FITTING_ID).fullmatch(call_id):
            return call_id
        number = int(sha256_hex(call_id), 16)
        digits = ""
        while len(digits) < (9 if mistral else 24):
            number, rest = divmod(number, 62)
            digits += _BASE62[rest]
        return digits


def request_params(
    request: ChatRequest, dialect: Dialect, toolset: Toolset, *, stream: bool
) -> dict[str, Any]:
    """All of the body but messages and tools. Only what was set is in it."""
    params: dict[str, Any] = {"model": request.model}
    if request.tools:
        params["tool_choice"] = _tool_choice(request.tool_choice, toolset)
    optional: dict[str, Any] = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        dialect.max_tokens_field: request.max_tokens,
        **_effort(request.reasoning, dialect),
        "stop": list(request.stop_sequences) or None,
    }
    params.update({name: value for name, value in optional.items() if value is not None})
    if request.output_schema is not None:
        params["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": request.output_schema},
        }
    if stream:
        params["stream"] = True
        params["stream_options"] = {"include_usage": True}
    return params


def join_body(params: dict[str, Any], messages: bytes, tools: bytes | None) -> bytes:
    """The body of a request from its encoded parts."""
    offered = b',"tools":' + tools if tools else b""
    return b'{"messages":' + messages + offered + b"," + dump_json(params)[1:]


def _tool_choice(choice: str | None, toolset: Toolset) -> Any:
    if choice is None or choice in ("auto", "none", "required"):
        return choice or "auto"
    return {"type": "function", "function": {"name": toolset.names.to_wire(choice)}}


def _content(parts: Sequence[Part]) -> Any:
    # Plain text goes as a string: some servers split an array into several messages.
    if all(isinstance(part, TextPart) for part in parts):
        return "".join(cast("TextPart", part).text for part in parts)
    return [_part(part) for part in parts]


def _part(part: Part) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            url = part.url or f"data:{part.media_type};base64,{part.data or ''}"
            return {"type": "image_url", "image_url": {"url": url}}
        case FilePart():
            if (text := _text_of_file(part)) is not None:
                return {"type": "text", "text": f"File {part.name}:\n{text}"}
            data = f"data:{part.media_type};base64,{part.data}"
            return {"type": "file", "file": {"filename": part.name, "file_data": data}}


def _text_of_file(part: FilePart) -> str | None:
    """The text of a text file: few servers read files, and OpenAI's own only PDF."""
    if not _TEXT_FILES.match(part.media_type):
        return None
    try:
        return base64.b64decode(part.data, validate=True).decode("utf-8-sig")
    except ValueError:
        return None


def _attachments_message(parts: list[dict[str, Any]]) -> bytes:
    return dump_json({"role": "user", "content": parts})


def _effort(effort: str | None, dialect: Dialect) -> dict[str, Any]:
    if dialect.openrouter and effort is not None:
        return {"reasoning": {"effort": "xhigh" if effort == "max" else effort}}
    return {"reasoning_effort": effort}


def _port(base_url: str) -> int | None:
    try:
        return urlsplit(base_url).port
    except ValueError:
        return None
