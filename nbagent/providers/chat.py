"""The Chat Completions wire, and how the servers that speak it differ.

Wire facts: OpenAI's API reference and types; each server's documentation for its profile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from nbagent.contracts.canonical import json_object
from nbagent.contracts.chat import (
    ChatRequest,
    ImagePart,
    Message,
    ModelInfo,
    Part,
    TextPart,
    ToolCall,
    ToolSpec,
)
from nbagent.contracts.errors import ModelError
from nbagent.providers.assembly import Assembly
from nbagent.providers.chat_answers import OPAQUE_FIELDS, REASONING_FIELDS, ChatParser
from nbagent.providers.history import (
    FILLER,
    arguments_text,
    attached,
    data_url,
    file_as_text,
    in_turns,
    results_together,
    text_of_file,
    wire_id,
    with_schema,
)
from nbagent.providers.names import WireNames
from nbagent.providers.refusals import needs_responses
from nbagent.providers.schemas import wire_schema
from nbagent.providers.wires import Encoding, Lesson, Parser, Wire

_ANY_ID = re.compile(r"[\x21-\x7e]{1,64}")
_OPENAI_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}")
_VERSION = re.compile(r"gpt-(\d+)(?:\.(\d+))?")
_TURNS = re.compile(r"roles must alternate|unexpected role 'user' after role 'tool'", re.I)
"""Chat templates of Mistral and Gemma: what the person says has to follow an answer."""


_CONTEXT_FIELDS = (
    "context_length",
    "max_model_len",
    "context_window",
    "max_context_length",
    "loaded_context_length",
    "n_ctx",
)
_CAPABILITIES = {
    "tools": "tools",
    "function_calling": "tools",
    "vision": "vision",
    "image": "vision",
    "reasoning": "reasoning",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How one server differs from the others (providers.md 4)."""

    hosts: tuple[str, ...] = ()
    home: str = "/v1"
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_tokens"
    """OpenAI's reasoning models refuse max_tokens; DeepSeek and Ollama ignore the newer name."""
    effort: Literal["effort", "openrouter", "deepseek", "mistral", "template"] = "effort"
    """How the reasoning option is written."""
    reasoning_back: Literal["never", "tools", "deepseek"] = "tools"
    """Whether reasoning is sent back: never, in tool loops, or by DeepSeek's strict rule."""
    omit_tools_for_none: bool = False
    """`tool_choice: none` is not understood, or garbles the answer: no tools are sent instead."""
    ids: re.Pattern[str] = _ANY_ID
    plain_schema: bool = False
    """Unknown keys of a schema are refused."""
    keeps_refs: bool = False
    """References in a schema are followed."""
    schema_mode: Literal["json_schema", "json_object"] = "json_schema"
    null_content: bool = False
    """A message of calls alone has content null; templates of other servers need a text."""
    tool_name: bool = False
    """A tool message names its tool."""
    think_tags: bool = True
    has_responses: bool = False
    """It has the Responses endpoint, which some of its models need."""


_HOSTED = Profile(reasoning_back="never")
_OPENAI = replace(
    _HOSTED,
    hosts=("openai.com",),
    max_tokens_field="max_completion_tokens",
    ids=_OPENAI_ID,
    keeps_refs=True,
    null_content=True,
    think_tags=False,
    has_responses=True,
)
PROFILES: dict[str, Profile] = {
    "openai": _OPENAI,
    "azure": replace(_OPENAI, hosts=("azure.com",), home="/openai/v1"),
    "azure-dated": replace(_OPENAI, hosts=(), home="/openai", has_responses=False),
    "deepseek": Profile(
        hosts=("deepseek.com",),
        home="",
        effort="deepseek",
        reasoning_back="deepseek",
        schema_mode="json_object",
    ),
    "openrouter": Profile(
        hosts=("openrouter.ai",),
        home="/api/v1",
        effort="openrouter",
        null_content=True,
        tool_name=True,
    ),
    "groq": replace(
        _HOSTED,
        hosts=("groq.com",),
        home="/openai/v1",
        omit_tools_for_none=True,
        tool_name=True,
    ),
    "mistral": replace(
        _HOSTED,
        hosts=("mistral.ai",),
        effort="mistral",
        omit_tools_for_none=True,
        ids=_MISTRAL_ID,
        plain_schema=True,
        tool_name=True,
    ),
    "google": replace(
        _HOSTED,
        hosts=("googleapis.com",),
        home="/v1beta/openai",
        null_content=True,
        tool_name=True,
    ),
    "anthropic": replace(
        _HOSTED,
        hosts=("anthropic.com",),
        keeps_refs=True,
        null_content=True,
        think_tags=False,
    ),
    "ollama": Profile(hosts=("ollama.com",), omit_tools_for_none=True, tool_name=True),
    "vllm": Profile(effort="template", tool_name=True),
    "llamacpp": Profile(effort="template", tool_name=True),
    "lmstudio": Profile(),
}
OTHER = Profile()
_OLLAMA_PORT = 11434


def profile_of(base_url: str) -> Profile:
    """The profile of the server at this address."""
    try:
        parts = urlsplit(base_url if "://" in base_url else f"https://{base_url}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return OTHER
    if port == _OLLAMA_PORT:
        return PROFILES["ollama"]
    for profile in PROFILES.values():
        if any(f".{host}".endswith(f".{known}") for known in profile.hosts):
            return profile
    return OTHER


class Chat(Wire):
    """Chat Completions in the profile of one server."""

    name = "chat"
    endings = ("/chat/completions",)

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self.home = profile.home
        self.think_tags = profile.think_tags

    def suits(self, request: ChatRequest, flags: frozenset[str]) -> bool:
        """Not for a model that this server serves at its Responses endpoint only."""
        if not self._profile.has_responses:
            return True
        return "responses" not in flags and not _wants_responses(request)

    def path(self, request: ChatRequest, *, stream: bool) -> str:
        """One endpoint for all."""
        return "/chat/completions"

    def params(
        self, request: ChatRequest, names: WireNames, flags: frozenset[str], *, stream: bool
    ) -> dict[str, Any]:
        """All of the body but messages and tools."""
        profile = self._profile
        params: dict[str, Any] = {"model": request.model}
        none_unheard = request.tool_choice == "none" and profile.omit_tools_for_none
        if request.tools and not none_unheard:
            params["tool_choice"] = _tool_choice(request.tool_choice, names)
        optional: dict[str, Any] = {
            "temperature": request.temperature,
            "top_p": request.top_p,
            profile.max_tokens_field: request.max_tokens,
            **_effort(request, profile),
            "stop": list(request.stop_sequences) or None,
            "response_format": _response_format(request.output_schema, profile),
        }
        params.update({name: value for name, value in optional.items() if value is not None})
        if stream:
            params["stream"] = True
            params["stream_options"] = {"include_usage": True}
        return params

    def tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """A function. `strict` is never asked for: most schemas would have to be changed."""
        function: dict[str, Any] = {"name": name}
        if spec.description:
            function["description"] = spec.description
        profile = self._profile
        function["parameters"] = wire_schema(
            {"type": "object", **spec.parameters},
            inline=not profile.keeps_refs,
            plain=profile.plain_schema,
        )
        return {"type": "function", "function": function}

    def system(self, request: ChatRequest) -> str:
        """With the schema, where the server's JSON mode does not take one (DeepSeek)."""
        if request.output_schema is None or self._profile.schema_mode == "json_schema":
            return request.system_prompt
        return with_schema(request)

    def groups(
        self, messages: Sequence[Message], flags: frozenset[str]
    ) -> Iterable[tuple[Message, ...]]:
        """The results of a turn together: their images follow behind all of them."""
        return results_together(in_turns(messages) if "turns" in flags else messages)

    def encode(self, group: tuple[Message, ...], context: Encoding) -> list[Any]:
        """Only fields that the profile knows are written."""
        message = group[0]
        if message.role == "tool":
            return self._results(group, context)
        if message.role == "assistant":
            wire = self._assistant(message, context)
            return [wire] if wire else []
        return [{"role": message.role, "content": _content(message.content)}]

    def parser(self, request: ChatRequest, into: Assembly) -> Parser:
        """A reader for one answer."""
        may_call = bool(request.tools) and request.tool_choice != "none"
        return ChatParser(into, may_call=may_call)

    def models(self, body: Any) -> tuple[list[ModelInfo], str | None]:
        """The models of a list in any of the shapes that servers use."""
        return models_in(body), None

    def lesson(
        self, error: ModelError, request: ChatRequest, flags: frozenset[str]
    ) -> Lesson | None:
        """Some templates want turns, some models another endpoint."""
        if self._profile.has_responses and needs_responses(error):
            told = f"{request.model} is asked at /v1/responses: only there it takes such a request"
            return Lesson("responses", told)
        if _TURNS.search(error.said or error.message):
            told = "a short answer was put between messages: this model takes them only in turns"
            return Lesson("turns", told)
        return None

    def _assistant(self, message: Message, context: Encoding) -> dict[str, Any] | None:
        text = message.text
        if not text and not message.tool_calls:
            return None  # Mistral and others refuse an empty assistant message.
        nothing = None if self._profile.null_content else ""
        wire: dict[str, Any] = {"role": "assistant", "content": text or nothing}
        if message.tool_calls:
            ours = bool(context.from_here(message))
            wire["tool_calls"] = [self._call(call, ours, context) for call in message.tool_calls]
        own = context.own(message)
        self._add_reasoning(wire, message, own, context)
        fields = json_object(own.get("fields")) or {}
        wire.update({name: fields[name] for name in OPAQUE_FIELDS if name in fields})
        return wire

    def _add_reasoning(
        self, wire: dict[str, Any], message: Message, own: dict[str, Any], context: Encoding
    ) -> None:
        rule, field = self._profile.reasoning_back, own.get("reasoning_field")
        if rule == "never" or not context.has_tools:
            return
        if rule == "deepseek":
            # DeepSeek answers 400 when a tool-calling turn comes back without the field.
            if field or message.tool_calls:
                wire["reasoning_content"] = (message.reasoning or "") if field else ""
        elif field in REASONING_FIELDS and message.reasoning:
            wire[field] = message.reasoning

    def _call(self, call: ToolCall, ours: bool, context: Encoding) -> dict[str, Any]:
        function = {"name": context.names.to_wire(call.name), "arguments": arguments_text(call)}
        wire = {"id": wire_id(call.id, self._profile.ids), "type": "function", "function": function}
        return {**(call.extra or {}), **wire} if ours else wire

    def _results(self, group: tuple[Message, ...], context: Encoding) -> list[Any]:
        """Tool messages, which are text only, and one of the user with what is attached."""
        wires: list[Any] = []
        shown: list[dict[str, Any]] = []
        for message in group:
            call_id = wire_id(message.tool_call_id or "", self._profile.ids)
            wire = {"role": "tool", "tool_call_id": call_id}
            name = context.names.to_wire(message.name) if message.name else ""
            if name and self._profile.tool_name:
                wire["name"] = name
            wires.append({**wire, "content": message.text})
            if parts := attached(message):
                said = f"Given back by {name or 'the tool'} (call {call_id}):"
                shown += [{"type": "text", "text": said}, *map(_part, parts)]
        if shown and "turns" in context.flags:
            wires.append({"role": "assistant", "content": FILLER.text})
        return [*wires, {"role": "user", "content": shown}] if shown else wires


def _wants_responses(request: ChatRequest) -> bool:
    """Whether OpenAI answers this request at its Responses endpoint only.

    From gpt-5.1 on tools and an effort exclude each other on Chat Completions, from gpt-5.5 on
    there is an effort by default (providers.md 3.1).
    """
    found = _VERSION.match(request.model)
    if found is None or not request.tools:
        return False
    version = (int(found[1]), int(found[2] or 0))
    reasons = request.reasoning not in (None, "none")
    return version >= (5, 5) or (version >= (5, 1) and reasons)


def models_in(body: Any) -> list[ModelInfo]:
    """The models of a list in any of the shapes that servers use. Raises ValueError."""
    found = json_object(body)
    listed: Any = (found.get("data") or found.get("models")) if found is not None else body
    if listed is None and found is not None and "data" in found:
        listed = []
    if not isinstance(listed, list):
        raise ValueError("no list of models")
    models = [_model(item) for item in cast("list[Any]", listed)]
    return [model for model in models if model is not None]


def _model(item: Any) -> ModelInfo | None:
    model = json_object(item) or {}
    name = item if isinstance(item, str) else model.get("id") or model.get("name")
    if not isinstance(name, str):
        return None
    return ModelInfo(id=name, context_length=_context(model), capabilities=_capabilities(model))


def _context(model: dict[str, Any]) -> int | None:
    # llama.cpp says it in `meta`.
    for holder in (model, json_object(model.get("meta")) or {}):
        for name in _CONTEXT_FIELDS:
            value = holder.get(name)
            if isinstance(value, int) and value > 0:
                return value
    return None


def _capabilities(model: dict[str, Any]) -> tuple[str, ...]:
    said: set[str] = set()
    architecture = json_object(model.get("architecture")) or {}
    for value in (
        model.get("capabilities"),
        model.get("supported_parameters"),
        architecture.get("input_modalities"),
    ):
        if isinstance(value, dict):
            said |= {key for key, on in cast("dict[str, Any]", value).items() if on}
        elif isinstance(value, list):
            said |= {item for item in cast("list[Any]", value) if isinstance(item, str)}
    return tuple(sorted({_CAPABILITIES[name] for name in said if name in _CAPABILITIES}))


def _tool_choice(choice: str | None, names: WireNames) -> Any:
    if choice is None or choice in ("auto", "none", "required"):
        return choice or "auto"
    return {"type": "function", "function": {"name": names.to_wire(choice)}}


def _response_format(schema: dict[str, Any] | None, profile: Profile) -> dict[str, Any] | None:
    if schema is None:
        return None
    if profile.schema_mode == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _effort(request: ChatRequest, profile: Profile) -> dict[str, Any]:
    """The reasoning option in the words of a server; nothing where it was not set."""
    asked = request.reasoning
    forced = request.tools and request.tool_choice not in (None, "auto", "none")
    if profile.effort == "deepseek" and forced and asked in (None, "none"):
        return {"thinking": {"type": "disabled"}}  # Refused together: 400.
    if asked is None:
        return {}
    word = effort_word(asked)
    match profile.effort:
        case "openrouter":
            if asked.isdecimal():
                return {"reasoning": {"max_tokens": int(asked)}}
            return {"reasoning": {"effort": "xhigh" if word == "max" else word}}
        case "deepseek":
            if word == "none":
                return {"thinking": {"type": "disabled"}}
            level = {"minimal": "low", "medium": "high", "xhigh": "high"}.get(word, word)
            return {"thinking": {"type": "enabled"}, "reasoning_effort": level}
        case "mistral":
            return {"reasoning_effort": "none" if word == "none" else "high"}
        case "template":
            thinks = {"chat_template_kwargs": {"enable_thinking": word != "none"}}
            return thinks if word == "none" else {**thinks, "reasoning_effort": word}
        case "effort":
            return {"reasoning_effort": word}


def effort_word(asked: str) -> str:
    """The level for a number of tokens, for servers that take no number."""
    if not asked.isdecimal():
        return asked
    return "low" if int(asked) <= 2048 else "medium" if int(asked) <= 8192 else "high"


def _content(parts: Sequence[Part]) -> Any:
    # Plain text goes as a string: some servers split an array into several messages.
    if all(isinstance(part, TextPart) for part in parts):
        return "".join(cast("TextPart", part).text for part in parts)
    return [_part(part) for part in parts]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "image_url", "image_url": {"url": data_url(part)}}
    if (text := text_of_file(part)) is not None:
        return {"type": "text", "text": file_as_text(part.name, text)}
    return {"type": "file", "file": {"filename": part.name, "file_data": data_url(part)}}
