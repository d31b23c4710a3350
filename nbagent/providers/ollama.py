"""Ollama's own wire, `/api/chat`: the one that can set the size of the context.

Wire facts: Ollama's API documentation and server source (providers.md 6).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast
from urllib.parse import urlsplit

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.chat import (
    ChatRequest,
    FinishReason,
    ImagePart,
    Message,
    ModelInfo,
    TextPart,
    ToolSpec,
    Usage,
)
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.providers.assembly import Assembly
from nbagent.providers.chat_answers import arguments_of, tokens
from nbagent.providers.errors import response_error, stream_error
from nbagent.providers.frames import Ndjson, bad_answer, objects_in, text_or_empty
from nbagent.providers.history import arguments_object, file_as_text, text_of_file, unreadable
from nbagent.providers.names import WireNames
from nbagent.providers.schemas import wire_schema
from nbagent.providers.wires import Encoding, Parser, Wire

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "load": "stop",
    "unload": "stop",
    "length": "length",
}
_OPTIONS = frozenset(
    {
        *("num_ctx", "num_predict", "num_keep", "num_batch", "num_gpu", "num_thread", "main_gpu"),
        *("seed", "stop", "temperature", "top_k", "top_p", "min_p", "typical_p", "tfs_z"),
        *("repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty"),
        *("mirostat", "mirostat_tau", "mirostat_eta", "penalize_newline", "numa", "low_vram"),
        *("use_mmap", "use_mlock", "f16_kv", "logits_all", "vocab_only", "embedding_only"),
    }
)
"""Keys of `extra_body` that belong into `options`: elsewhere they are silently ignored."""
_LEVELS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""Efforts that gpt-oss does not know."""
_LOW_TOKENS, _MEDIUM_TOKENS = 2_048, 8_192
"""Up to so many tokens of reasoning are a low and a medium effort, where tokens cannot be said."""
_DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
_CAPABILITIES = {"tools": "tools", "vision": "vision", "thinking": "reasoning"}
_DATA_URL = re.compile(r"data:[^,]*;base64,")
_MODEL_NAME = re.compile(r"""model ['"]([^'"\s]+)['"]""")


def ollama_url(host: str) -> str:
    """The address in `OLLAMA_HOST`, which may lack a scheme or a port or name every interface.

    Read as Ollama's own clients read it.
    """
    text = host.strip().strip("\"'")
    with suppress(ValueError):
        text = f"[{ipaddress.IPv6Address(text)}]"
    scheme, _, rest = text.rpartition("://")
    port = {"http": 80, "https": 443}.get(scheme, 11434)
    if rest == "ollama.com":
        scheme, port = "https", 443
    try:
        parts = urlsplit(f"{scheme or 'http'}://{rest}")
        port = parts.port or port
    except ValueError:
        raise UsageError(
            f"OLLAMA_HOST is {host.strip()!r}, which is no address; write it as HOST:PORT, for"
            " example 127.0.0.1:11434."
        ) from None
    name = "127.0.0.1" if parts.hostname in (None, "0.0.0.0", "::") else parts.hostname
    name = f"[{name}]" if ":" in name else name
    login = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return f"{parts.scheme}://{login}{name}:{port}{parts.path.rstrip('/')}"


class Ollama(Wire):
    """One server, on this machine or in Ollama's cloud."""

    name = "ollama"
    home = ""
    endings = ("/api/chat", "/api/tags", "/api", "/v1/chat/completions", "/v1")
    framing = Ndjson
    models_path = "/api/tags"
    think_tags = True
    lacks = frozenset({"tool_choice"})

    def path(self, request: ChatRequest, *, stream: bool) -> str:
        """One endpoint for all."""
        return "/api/chat"

    def params(
        self, request: ChatRequest, names: WireNames, flags: frozenset[str], *, stream: bool
    ) -> dict[str, Any]:
        """All of the body but messages and tools. `stream` would be true by default."""
        params: dict[str, Any] = {"model": request.model, "stream": stream}
        options = {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "num_predict": request.max_tokens,
            "stop": list(request.stop_sequences) or None,
        }
        options = {name: value for name, value in options.items() if value is not None}
        if options:
            params["options"] = options
        # Without it a model that can think does; false switches it off.
        if request.reasoning is not None:
            params["think"] = _think(request.reasoning, request.model)
        if request.output_schema is not None:
            params["format"] = request.output_schema
        return params

    def join_extra(self, params: dict[str, Any], extra: Mapping[str, Any]) -> None:
        """`num_ctx` and the like may stand alone or in `options`."""
        options = {name: value for name, value in extra.items() if name in _OPTIONS}
        options |= json_object(extra.get("options")) or {}
        if options:
            params["options"] = {**params.get("options", {}), **options}
        params.update({k: v for k, v in extra.items() if k not in _OPTIONS and k != "options"})

    def offers_tools(self, request: ChatRequest, params: Mapping[str, Any]) -> bool:
        """A choice cannot be told: without tools nothing is called."""
        return bool(request.tools) and request.tool_choice != "none"

    def tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """A function; most keywords of its schema are lost silently, so references are resolved."""
        parameters = wire_schema({"type": "object", **spec.parameters}, inline=True)
        described = {"name": name, "description": spec.description, "parameters": parameters}
        return {"type": "function", "function": described}

    def encode(self, group: tuple[Message, ...], context: Encoding) -> list[Any]:
        """Images are bare base64 beside the text."""
        message = group[0]
        if message.role == "assistant":
            return _assistant(message, context)
        wire: dict[str, Any] = {"role": message.role, "content": _text(message)}
        if message.role == "tool":
            name = context.names.to_wire(message.name) if message.name else ""
            wire |= {"tool_name": name, "tool_call_id": message.tool_call_id or ""}
        if images := [_image(part) for part in message.content if isinstance(part, ImagePart)]:
            wire["images"] = images
        return [wire]

    def body(
        self, system: str, messages: bytes, tools: bytes | None, params: dict[str, Any]
    ) -> bytes:
        """The system text is the first message."""
        if system:
            first = dump_json({"role": "system", "content": system})
            messages = b"[" + first + (b"," if messages != b"[]" else b"") + messages[1:]
        offered = b',"tools":' + tools if tools else b""
        return b'{"messages":' + messages + offered + b"," + dump_json(params)[1:]

    def parser(self, request: ChatRequest, into: Assembly) -> Parser:
        """A reader for one answer."""
        return OllamaParser(into)

    def models(self, body: Any) -> tuple[list[ModelInfo], str | None]:
        """The models that were pulled; older servers tell no capabilities."""
        listed = (json_object(body) or {}).get("models")
        if not isinstance(listed, list):
            raise ValueError("no list of models")
        models: list[ModelInfo] = []
        for item in objects_in(cast("Any", listed)):
            name = text_or_empty(item.get("model")) or text_or_empty(item.get("name"))
            if not name:
                continue
            said: Any = item.get("capabilities")
            words = cast("list[Any]", said) if isinstance(said, list) else []
            known = {_CAPABILITIES.get(str(word), "") for word in words} - {""}
            length = tokens(json_object(item.get("details")) or {}, "context_length")
            models.append(
                ModelInfo(id=name, context_length=length or None, capabilities=tuple(sorted(known)))
            )
        return models, None

    def fault(self, status: int, headers: Mapping[str, str], body: Any) -> ModelError | None:
        """A model that was not pulled."""
        error = response_error(status, headers, body)
        if status != 404 or "not found" not in error.said:
            return None
        named = _MODEL_NAME.search(error.said)
        return ModelError(
            f"Ollama does not have this model (HTTP 404): {error.said}. Get it with"
            f" `ollama pull {named[1] if named else 'MODEL'}`, or choose one of its list.",
            code=error.code,
            details=error.details,
            status=status,
            request_id=error.request_id,
            said=error.said,
        )


class OllamaParser(Parser):
    """Reads one answer: lines of a stream, or the one object of a whole answer."""

    def __init__(self, into: Assembly) -> None:
        self._into = into

    def event(self, name: bytes, data: Any) -> None:
        """Take one line."""
        line = json_object(data)
        if line is None:
            raise bad_answer(f"a line is {type(data).__name__}, not an object")
        into = self._into
        if line.get("error"):
            into.fail(stream_error(line))
        message = line.get("message")
        if message is not None or line.get("done") is not True:
            self._message(message)
        into.model = into.model or text_or_empty(line.get("model"))
        if line.get("done") is True:
            into.usage(_usage(line))
            spent = {name: tokens(line, name) / 1e6 for name in _DURATIONS if name in line}
            if spent:
                into.keep(durations_ms=spent)
            word = text_or_empty(line.get("done_reason")) or "stop"
            into.finish(_FINISH.get(word), word)
            into.end()

    def whole(self, body: Any) -> None:
        """A whole answer is a stream of one line."""
        self.event(b"", body)

    def _message(self, found: Any) -> None:
        into, message = self._into, json_object(found)
        if message is None:
            raise bad_answer("a line has no message")
        into.answered = True
        thinking, content = message.get("thinking"), message.get("content")
        if isinstance(thinking, str) and thinking:
            into.reasoning(thinking, "thinking")
        if isinstance(content, str):
            if content:
                into.text(content)
        elif content is not None:
            raise bad_answer(f"the content is {type(content).__name__}, not text")
        self._calls(message.get("tool_calls"))

    def _calls(self, calls: Any) -> None:
        """Whole ones; further lines bring other calls."""
        items = objects_in(calls)
        if calls is not None and calls != items:
            raise bad_answer("`tool_calls` is not a list of calls")
        for call in items:
            function = json_object(call.get("function")) or {}
            self._into.call(
                None,
                id=text_or_empty(call.get("id")),
                name=text_or_empty(function.get("name")),
                arguments=arguments_of(function.get("arguments")),
                whole=True,
            )


def _assistant(message: Message, context: Encoding) -> list[Any]:
    if not message.text and not message.tool_calls:
        return []
    wire: dict[str, Any] = {"role": "assistant", "content": message.text}
    if message.reasoning and context.has_tools and context.own(message):
        wire["thinking"] = message.reasoning
    if message.tool_calls:
        wire["tool_calls"] = [
            {
                "id": call.id,
                "function": {
                    "index": index,
                    "name": context.names.to_wire(call.name),
                    "arguments": arguments_object(call),
                },
            }
            for index, call in enumerate(message.tool_calls)
        ]
    return [wire]


def _think(asked: str, model: str) -> bool | str:
    """`think` for an effort. gpt-oss ignores true and false: it wants a level, and always thinks.

    Other models think or do not; older servers know no levels of theirs.
    """
    if "gpt-oss" not in model:
        return asked != "none"
    if asked.isdecimal():
        most = int(asked)
        return "low" if most <= _LOW_TOKENS else "medium" if most <= _MEDIUM_TOKENS else "high"
    return _LEVELS.get(asked, asked)


def _text(message: Message) -> str:
    texts: list[str] = []
    for part in message.content:
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif not isinstance(part, ImagePart):
            text = text_of_file(part)
            if text is None:
                raise unreadable(part, "Ollama")
            texts.append(file_as_text(part.name, text))
    return "".join(texts)


def _image(part: ImagePart) -> str:
    data = part.data or _DATA_URL.sub("", part.url or "")
    if not part.data and data == (part.url or ""):
        raise ModelError(
            "Ollama takes images as data, not by address; download the image and give its bytes.",
            code="LLM_HTTP_ERROR",
        )
    return data


def _usage(line: dict[str, Any]) -> Usage | None:
    """A count that is missing is 0, or all of the prompt was cached."""
    if not {"prompt_eval_count", "eval_count"} & line.keys():
        return None
    prompt, completion = tokens(line, "prompt_eval_count"), tokens(line, "eval_count")
    return Usage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )
