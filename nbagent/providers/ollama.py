"""Ollama's own wire, `/api/chat`: the one that can set the size of the context.

Wire facts: Ollama's API documentation and server source (providers.md 6).
"""

from __future__ import annotations

from collections.abc import Mapping
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
from nbagent.contracts.errors import ModelError
from nbagent.providers.assembly import Assembly
from nbagent.providers.chat_answers import arguments_of, tokens
from nbagent.providers.errors import stream_error
from nbagent.providers.frames import Ndjson, bad_answer, clean, objects_in, text_or_empty
from nbagent.providers.history import arguments_object, file_as_text, text_of_file, unreadable
from nbagent.providers.names import WireNames
from nbagent.providers.schemas import wire_schema
from nbagent.providers.wires import Encoding, Lesson, Parser, Wire

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "load": "stop",
    "unload": "stop",
    "length": "length",
}
_OPTIONS = frozenset(
    {
        *("num_ctx", "num_predict", "seed", "top_k", "top_p", "min_p", "temperature", "stop"),
        *("repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty", "num_keep"),
        *("typical_p", "num_gpu", "num_thread", "num_batch", "main_gpu", "use_mmap"),
    }
)
"""Keys of `extra_body` that belong into `options`."""
_LEVELS = {"minimal": "low", "xhigh": "max"}
_DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
_CAPABILITIES = {"tools": "tools", "vision": "vision", "thinking": "reasoning"}
_NO_THINKING = "no-thinking"


def ollama_url(host: str) -> str:
    """The address in `OLLAMA_HOST`, which may lack a scheme or a port or name every interface."""
    host = host.strip() or "127.0.0.1:11434"
    parts = urlsplit(host if "://" in host else f"http://{host}")
    name = "127.0.0.1" if parts.hostname in (None, "0.0.0.0", "::") else parts.hostname
    name = f"[{name}]" if ":" in name else name
    port = parts.port or (443 if parts.scheme == "https" else 11434)
    return f"{parts.scheme}://{name}:{port}{parts.path.rstrip('/')}"


class Ollama(Wire):
    """One server, on this machine or in Ollama's cloud."""

    name = "ollama"
    home = ""
    endings = ("/api/chat", "/api", "/v1")
    framing = Ndjson
    models_path = "/api/tags"
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
        if request.reasoning is not None and _NO_THINKING not in flags:
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
            length = (json_object(item.get("details")) or {}).get("context_length")
            said: Any = item.get("capabilities")
            known = (
                [_CAPABILITIES.get(str(word)) for word in said] if said.__class__ is list else []
            )
            models.append(
                ModelInfo(
                    id=name,
                    context_length=length if isinstance(length, int) and length > 0 else None,
                    capabilities=tuple(sorted({word for word in known if word})),
                )
            )
        return models, None

    def fault(self, status: int, headers: Mapping[str, str], body: Any) -> ModelError | None:
        """A model that was not pulled."""
        said = text_or_empty((json_object(body) or {}).get("error"))
        if status != 404 or "not found" not in said:
            return None
        return ModelError(
            f"Ollama does not have this model (HTTP 404): {clean(said)[:300]}. Get it with"
            " `ollama pull MODEL`.",
            code="LLM_HTTP_ERROR",
            status=404,
            said=clean(said)[:300],
        )

    def lesson(
        self, error: ModelError, request: ChatRequest, flags: frozenset[str]
    ) -> Lesson | None:
        """Models without thinking refuse `think: true`."""
        if error.status == 400 and "not support thinking" in error.said:
            return Lesson(_NO_THINKING, f"reasoning was left out: {request.model} does not think")
        return None


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
        message = json_object(line.get("message"))
        if message is None and not line.get("done"):
            raise bad_answer("a line has no message")
        if message:
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

    def _message(self, message: dict[str, Any]) -> None:
        into = self._into
        into.answered = True
        thinking, content = message.get("thinking"), message.get("content")
        if isinstance(thinking, str) and thinking:
            into.reasoning(thinking, "thinking")
        if isinstance(content, str):
            if content:
                into.text(content)
        elif content is not None:
            raise bad_answer(f"the content is {type(content).__name__}, not text")
        calls: Any = message.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            raise bad_answer("`tool_calls` is not a list")
        for call in objects_in(calls):
            function = json_object(call.get("function")) or {}
            into.call(
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
    """`think` for an effort. gpt-oss ignores true and false: it wants a level."""
    if asked == "none":
        return False
    if asked.isdecimal() or not model.startswith("gpt-oss"):
        return True
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
    if part.data is None:
        raise ModelError(
            "Ollama takes images as data, not by address; download the image and give its bytes.",
            code="LLM_HTTP_ERROR",
        )
    return part.data


def _usage(line: dict[str, Any]) -> Usage:
    """A count that is missing is 0, or all of the prompt was cached."""
    prompt, completion = tokens(line, "prompt_eval_count"), tokens(line, "eval_count")
    return Usage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )
