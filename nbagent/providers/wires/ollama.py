"""Ollama's own wire, `/api/chat`.

Its `/v1` cannot set the context size (`num_ctx`), forces temperature and top_p to 1.0 if they are
missing, and silently cuts long prompts. Wire facts: Ollama's API documentation and server source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from nbagent.contracts.canonical import json_object
from nbagent.contracts.deltas import ReasoningPiece
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.messages import FilePart, ImagePart, Message
from nbagent.contracts.model import ChatRequest, ToolSpec
from nbagent.providers.address import host_of
from nbagent.providers.answer.content_parts import read_content, unread_names
from nbagent.providers.answer.finish_words import read_finish
from nbagent.providers.answer.images import SentFile
from nbagent.providers.answer.json_fields import objects_in, text_or_empty, token_count
from nbagent.providers.answer.vendor_words import (
    call_part,
    faults_in,
    frame_object,
    read_usage,
)
from nbagent.providers.answer.wire_deltas import (
    Facts,
    Finish,
    LastEvent,
    Picture,
    ReasoningField,
    UsageReport,
    WireDelta,
)
from nbagent.providers.transport.sse import Ndjson, bad_response
from nbagent.providers.wires.base import (
    EncodingContext,
    Parser,
    Wire,
    effort_level,
    name_and_description,
    without_none,
)
from nbagent.providers.wires.encoding import (
    answer_text,
    arguments_object,
    text_or_part,
    unsupported_file,
)
from nbagent.providers.wires.tool_names import WireNames
from nbagent.providers.wires.tool_schemas import wire_schema

_TOP_LEVEL_KEYS = frozenset(
    {"format", "keep_alive", "logprobs", "options", "shift", "think", "top_logprobs", "truncate"}
)
"""All other keys of `extra_body` (`num_ctx`) go into `options`: elsewhere Ollama ignores them."""
_LEVELS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""Levels for efforts that gpt-oss does not know."""
_MESSAGE_FIELDS = frozenset({"role", "content", "thinking", "tool_calls", "tool_name", "images"})
_COUNTS = ("prompt_eval_count", "eval_count")
_DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
_CLOUD_MODEL = re.compile(r".*[:-]cloud")
_DATA_URL = re.compile(r"data:[^,]*;base64,")


def ollama_url(host: str) -> str:
    """Parse `OLLAMA_HOST`; it may lack scheme or port, or name all interfaces (0.0.0.0)."""
    text = host.strip()
    scheme, _, rest = text.rpartition("://")
    try:
        parts = urlsplit(f"{scheme or 'http'}://{rest}")
        port = parts.port or {"http": 80, "https": 443}.get(scheme, 11434)
    except ValueError:
        raise UsageError(
            f"OLLAMA_HOST is {text!r}, which is not an address; write it as HOST:PORT, for example"
            " 127.0.0.1:11434."
        ) from None
    name = "127.0.0.1" if parts.hostname in (None, "0.0.0.0", "::") else parts.hostname
    name = f"[{name}]" if ":" in name else name
    return f"{parts.scheme}://{name}:{port}{parts.path.rstrip('/')}"


def is_paid_model(model: str, base_url: str | None) -> bool:
    """True for models of Ollama's cloud, also where a server of this machine sends them on to it
    (https://docs.ollama.com/cloud)."""
    at_home = host_of(base_url).removeprefix("www.") == "ollama.com"
    return at_home or bool(_CLOUD_MODEL.fullmatch(model))


class OllamaParser(Parser):
    """Reads one answer: lines of a stream, or the single object of a whole answer."""

    _model = ""

    def read_event(self, name: bytes, data: Any) -> Iterator[WireDelta]:
        """Read one line."""
        line = frame_object(data)
        yield from faults_in(line)
        message = line.get("message")
        if message is None and isinstance(line.get("response"), str):
            # The older endpoint for one prompt.
            message = {"content": line["response"], "thinking": line.get("thinking")}
        if message is not None or line.get("done") is not True:
            yield from self._read_message(message)
        if not self._model and (model := text_or_empty(line.get("model"))):
            self._model = model
            yield Facts(model, begun=False)
        if line.get("done") is True:
            yield from self._read_end(line)

    def _read_end(self, line: dict[str, Any]) -> Iterator[WireDelta]:
        # Durations are in ns.
        spent = {name: token_count(line, name) / 1e6 for name in _DURATIONS if name in line}
        yield Facts(
            raw={"durations_ms": spent} if spent else None,
            vendor=line,
            vendor_without=("message", "done", *_DURATIONS),
        )
        # Ollama omits counts of 0, also of a completely cached prompt.
        yield UsageReport(read_usage({name: line[name] for name in _COUNTS if name in line}))
        yield read_finish(text_or_empty(line.get("done_reason"))) or Finish("stop")
        yield LastEvent()

    def _read_message(self, value: Any) -> Iterator[WireDelta]:
        message = json_object(value)
        if message is None:
            raise bad_response("a line has no message")
        thinking, content = message.get("thinking"), message.get("content")
        thinking = thinking or message.get("reasoning")  # Gateways to other servers.
        if isinstance(thinking, str) and thinking:
            if "reasoning_field" not in self._progress.raw_fields:
                yield ReasoningField("thinking")
            yield ReasoningPiece(thinking)
        yield from read_content(content)
        if unread := unread_names(message, _MESSAGE_FIELDS):
            yield unread
        images: Any = message.get("images")
        for data in cast("list[Any]", images) if isinstance(images, list) else []:
            if isinstance(data, str) and data:
                yield Picture(SentFile("", data))
        calls = objects_in(message.get("tool_calls"))
        if message.get("tool_calls") not in (None, calls):
            raise bad_response("`tool_calls` is not a list of calls")
        for call in calls:  # Calls arrive whole; other lines bring other calls.
            yield call_part(object(), call, call.get("function") or call)


class Ollama(Wire):
    """Ollama on this machine or in its cloud."""

    name = "ollama"
    parser = OllamaParser
    default_path = ""
    endpoint_paths = ("/api/chat", "/api/tags", "/api", "/v1/chat/completions", "/v1")
    framing = Ndjson
    models_path = "/api/tags"
    loaded_path = "/api/ps"
    nested_field = "options"
    think_tags = True
    unsupported_fields = frozenset({"tool_choice"})

    def params(
        self, request: ChatRequest, names: WireNames, workarounds: frozenset[str], *, stream: bool
    ) -> dict[str, Any]:
        """Body without messages and tools. `stream` is always sent: its default is true."""
        options = {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "num_predict": request.max_tokens,
            "stop": list(request.stop_sequences) or None,
        }
        think = request.reasoning
        if think is not None:
            # gpt-oss always thinks and needs a level; other models take true or false.
            leveled = "gpt-oss" in request.model
            think = effort_level(think, _LEVELS) if leveled else think != "none"
        params = {
            "model": request.model,
            "stream": stream,
            "options": without_none(options) or None,
            "think": think,  # If missing, a model that can think does.
            "format": request.output_schema,
        }
        return without_none(params)

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """False with tools: a model whose answer is forced into a schema cannot call one."""
        return not request.tools

    def context_in_use(self, model: str, extra_body: Mapping[str, Any], loaded: Any) -> int | None:
        """Read `num_ctx` of the person's options, else the context of the loaded model."""
        options = {**extra_body, **(json_object(extra_body.get("options")) or {})}
        if tokens := token_count(options, "num_ctx"):
            return tokens
        for item in objects_in((json_object(loaded) or {}).get("models")):
            names = {_tagged(text_or_empty(item.get(key))) for key in ("model", "name")}
            if _tagged(model) in names:
                return token_count(item, "context_length") or None
        return None

    def merge_extra_body(self, params: dict[str, Any], extra: Mapping[str, Any]) -> None:
        """Accept `num_ctx` and other options at the top level or in `options`."""
        beside = {k: v for k, v in extra.items() if k in _TOP_LEVEL_KEYS}
        options = {k: v for k, v in extra.items() if k not in _TOP_LEVEL_KEYS}
        options |= json_object(extra.get("options")) or {}
        super().merge_extra_body(params, {**beside, "options": options} if options else beside)

    def encode_tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """Encode a function with resolved references: Ollama drops most schema keywords."""
        parameters = wire_schema(spec.parameters, inline=True)
        return {
            "type": "function",
            "function": {**name_and_description(spec, name), "parameters": parameters},
        }

    def encode_group(self, group: tuple[Message, ...], context: EncodingContext) -> list[Any]:
        """Encode a message; images are bare base64 beside the text."""
        message = group[0]
        if message.role == "assistant":
            return _assistant_message(message, context)
        shown = [text_or_part(part) for part in message.content]
        if unread := [part for part in shown if isinstance(part, FilePart)]:
            raise unsupported_file(unread[0], "Ollama")
        text = "".join(part for part in shown if isinstance(part, str))
        wire: dict[str, Any] = {"role": message.role, "content": text}
        if message.role == "tool":
            name = context.names.to_wire(message.name) if message.name else ""
            wire |= {"tool_name": name, "tool_call_id": message.tool_call_id or ""}
        if images := [_image_data(part) for part in shown if isinstance(part, ImagePart)]:
            wire["images"] = images
        return [wire]


def _tagged(model: str) -> str:
    """A model's name with its tag: Ollama reads `qwen3` as `qwen3:latest`."""
    return model if ":" in model.rpartition("/")[2] else f"{model}:latest"


def _assistant_message(message: Message, context: EncodingContext) -> list[Any]:
    text = answer_text(message)
    if not text and not message.tool_calls:
        return []
    wire: dict[str, Any] = {"role": "assistant", "content": text}
    if message.reasoning and context.has_tools and context.raw_from_model(message):
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


def _image_data(part: ImagePart) -> str:
    data = part.data or part.url or ""
    if not part.data and not _DATA_URL.match(data):
        raise ModelError(
            "Ollama accepts images as data, not as a URL; download the image and give its bytes.",
            code="LLM_HTTP_ERROR",
        )
    return _DATA_URL.sub("", data)
