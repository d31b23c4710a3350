"""Ollama's own wire, `/api/chat`: the one that can set the size of the context.

Wire facts: Ollama's API documentation and server source (providers.md 6).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.messages import FilePart, ImagePart, Message
from nbagent.contracts.model import ChatRequest, ToolSpec
from nbagent.providers.answer.fields import objects_in, text_or_empty, tokens
from nbagent.providers.answer.vendor_words import finish_reason, frame_object, take_call, usage_in
from nbagent.providers.transport.sse import Ndjson, bad_answer
from nbagent.providers.wires.base import Encoding, Parser, Wire, described, effort_word, only_set
from nbagent.providers.wires.encoding import arguments_object, readable, unreadable
from nbagent.providers.wires.tool_names import WireNames
from nbagent.providers.wires.tool_schemas import wire_schema

_BESIDE_OPTIONS = frozenset(
    {"format", "keep_alive", "logprobs", "options", "shift", "think", "top_logprobs", "truncate"}
)
"""Other keys of `extra_body` (`num_ctx`) belong into `options`: elsewhere they do nothing."""
_LEVELS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""Efforts that gpt-oss does not know."""
_COUNTS = ("prompt_eval_count", "eval_count")
_DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
_DATA_URL = re.compile(r"data:[^,]*;base64,")


def ollama_url(host: str) -> str:
    """The address in `OLLAMA_HOST`, which may lack a scheme or a port or name every interface."""
    text = host.strip()
    scheme, _, rest = text.rpartition("://")
    try:
        parts = urlsplit(f"{scheme or 'http'}://{rest}")
        port = parts.port or {"http": 80, "https": 443}.get(scheme, 11434)
    except ValueError:
        raise UsageError(
            f"OLLAMA_HOST is {text!r}, which is no address; write it as HOST:PORT, for example"
            " 127.0.0.1:11434."
        ) from None
    name = "127.0.0.1" if parts.hostname in (None, "0.0.0.0", "::") else parts.hostname
    name = f"[{name}]" if ":" in name else name
    return f"{parts.scheme}://{name}:{port}{parts.path.rstrip('/')}"


class OllamaParser(Parser):
    """Reads one answer: lines of a stream, or the one object of a whole answer."""

    def event(self, name: bytes, data: Any) -> None:
        """Take one line."""
        into = self._into
        line = frame_object(data, into)
        message = line.get("message")
        if message is not None or line.get("done") is not True:
            self._message(message)
        into.model = into.model or text_or_empty(line.get("model"))
        if line.get("done") is True:
            # A count that is missing is 0, or all of the prompt was cached.
            into.usage(usage_in({name: line[name] for name in _COUNTS if name in line}))
            if spent := {name: tokens(line, name) / 1e6 for name in _DURATIONS if name in line}:
                into.keep(durations_ms=spent)
            word = text_or_empty(line.get("done_reason")) or "stop"
            into.finish(finish_reason(word), word)
            into.end()

    def _message(self, found: Any) -> None:
        into, message = self._into, json_object(found)
        if message is None:
            raise bad_answer("a line has no message")
        thinking, content = message.get("thinking"), message.get("content")
        if isinstance(thinking, str) and thinking:
            into.reasoning(thinking, "thinking")
        if content is not None and not isinstance(content, str):
            raise bad_answer("the content is no text")
        if content:
            into.text(content)
        calls = objects_in(message.get("tool_calls"))
        if message.get("tool_calls") not in (None, calls):
            raise bad_answer("`tool_calls` is not a list of calls")
        for call in calls:  # Whole ones; further lines bring other calls.
            take_call(into, object(), call, call.get("function"))


class Ollama(Wire):
    """One server, on this machine or in Ollama's cloud."""

    name = "ollama"
    parser = OllamaParser
    home = ""
    endings = ("/api/chat", "/api/tags", "/api", "/v1/chat/completions", "/v1")
    framing = Ndjson
    models_path = "/api/tags"
    nested_field = "options"
    think_tags = True
    lacks = frozenset({"tool_choice"})

    def params(
        self, request: ChatRequest, names: WireNames, flags: frozenset[str], *, stream: bool
    ) -> dict[str, Any]:
        """All of the body but messages and tools. `stream` would be true by default."""
        options = {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "num_predict": request.max_tokens,
            "stop": list(request.stop_sequences) or None,
        }
        think = request.reasoning
        if think is not None:
            # gpt-oss wants a level and always thinks, others do or do not.
            leveled = "gpt-oss" in request.model
            think = effort_word(think, _LEVELS) if leveled else think != "none"
        params = {
            "model": request.model,
            "stream": stream,
            "options": only_set(options) or None,
            "think": think,  # Without it a model that can think does; false switches it off.
            "format": request.output_schema,
        }
        return only_set(params)

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """Not beside tools: a model whose answer is bound to a form cannot call one."""
        return not request.tools

    def join_extra(self, params: dict[str, Any], extra: Mapping[str, Any]) -> None:
        """`num_ctx` and the like may stand alone or in `options`."""
        beside = {k: v for k, v in extra.items() if k in _BESIDE_OPTIONS}
        options = {k: v for k, v in extra.items() if k not in _BESIDE_OPTIONS}
        options |= json_object(extra.get("options")) or {}
        super().join_extra(params, {**beside, "options": options} if options else beside)

    def tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """A function; most keywords of its schema are lost silently, so references are resolved."""
        parameters = wire_schema(spec.parameters, inline=True)
        return {"type": "function", "function": {**described(spec, name), "parameters": parameters}}

    def encode(self, group: tuple[Message, ...], context: Encoding) -> list[Any]:
        """Images are bare base64 beside the text."""
        message = group[0]
        if message.role == "assistant":
            return _assistant(message, context)
        shown = [readable(part) for part in message.content]
        if unread := [it for it in shown if isinstance(it, FilePart)]:
            raise unreadable(unread[0], "Ollama")
        text = "".join(it for it in shown if isinstance(it, str))
        wire: dict[str, Any] = {"role": message.role, "content": text}
        if message.role == "tool":
            name = context.names.to_wire(message.name) if message.name else ""
            wire |= {"tool_name": name, "tool_call_id": message.tool_call_id or ""}
        if images := [_image(it) for it in shown if isinstance(it, ImagePart)]:
            wire["images"] = images
        return [wire]


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


def _image(part: ImagePart) -> str:
    data = part.data or part.url or ""
    if not part.data and not _DATA_URL.match(data):
        raise ModelError(
            "Ollama takes images as data, not by address; download the image and give its bytes.",
            code="LLM_HTTP_ERROR",
        )
    return _DATA_URL.sub("", data)
