"""The Chat Completions wire, and how the servers that speak it differ.

Wire facts: OpenAI's API reference and types; each server's documentation for its profile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import ImagePart, Message, Part, ToolCall
from nbagent.contracts.model import ChatRequest, ProviderConfig, ToolSpec
from nbagent.providers.address import host_of, origin
from nbagent.providers.wires.base import (
    Encoding,
    Lesson,
    Wire,
    described,
    effort_word,
    only_set,
    version_in,
)
from nbagent.providers.wires.chat_answers import OPAQUE_FIELDS, REASONING_FIELDS, ChatParser
from nbagent.providers.wires.encoding import (
    FILLER,
    arguments_text,
    attached,
    data_url,
    in_turns,
    readable,
    results_together,
    wire_id,
    with_schema,
)
from nbagent.providers.wires.responses import CHOICES, Responses
from nbagent.providers.wires.tool_names import WireNames
from nbagent.providers.wires.tool_schemas import wire_schema
from nbagent.providers.workarounds import needs_responses

_ANY_ID = re.compile(r"[\x21-\x7e]{1,64}")
_OPENAI_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}")
_VERSION = re.compile(r"^gpt-(\d+)(?:\.(\d+))?")
_TURNS = re.compile(r"roles must alternate|unexpected role 'user' after role 'tool'", re.I)
"""Chat templates of Mistral and Gemma: what the person says has to follow an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How one server differs from the others (providers.md 4)."""

    host: str = ""
    """Its domain; the hosts in it count, too."""
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
    takes_schema: bool = True
    """The schema of an answer is a parameter; elsewhere it is said in words."""
    schema_mode: Literal["with tools", "alone", "never"] = "alone"
    """When the server binds an answer to its schema. Grammars of local servers exclude calls."""
    null_content: bool = False
    """A message of calls alone has content null; templates of other servers need a text."""
    tool_name: bool = False
    """A tool message names its tool."""
    think_tags: bool = True
    deployment_in_path: bool = False
    """The path names the deployment; `model` in the body is ignored (Azure's dated route)."""
    has_responses: bool = False
    """It has the Responses endpoint, which some of its models need."""


_OPENAI = Profile(
    host="openai.com",
    max_tokens_field="max_completion_tokens",
    reasoning_back="never",
    ids=_OPENAI_ID,
    keeps_refs=True,
    schema_mode="with tools",
    null_content=True,
    think_tags=False,
    has_responses=True,
)
_HOSTED = Profile(reasoning_back="never", tool_name=True)
PROFILES: dict[str, Profile] = {
    "openai": _OPENAI,
    "azure": replace(_OPENAI, host="azure.com", home="/openai/v1"),
    "azure-dated": replace(_OPENAI, host="", home="/openai", has_responses=False),
    "deepseek": Profile(
        host="deepseek.com",
        home="",
        effort="deepseek",
        reasoning_back="deepseek",
        takes_schema=False,
        schema_mode="never",
    ),
    "openrouter": Profile(
        host="openrouter.ai", home="/api/v1", effort="openrouter", null_content=True, tool_name=True
    ),
    "groq": replace(
        _HOSTED,
        host="groq.com",
        home="/openai/v1",
        omit_tools_for_none=True,
        schema_mode="never",  # neither with tools nor in a stream
    ),
    "mistral": replace(
        _HOSTED,
        host="mistral.ai",
        effort="mistral",
        omit_tools_for_none=True,
        ids=_MISTRAL_ID,
        plain_schema=True,
    ),
    "google": replace(_HOSTED, host="googleapis.com", home="/v1beta/openai", null_content=True),
    "anthropic": Profile(
        host="anthropic.com",
        reasoning_back="never",
        keeps_refs=True,
        schema_mode="never",
        null_content=True,
        think_tags=False,
    ),
    "ollama": Profile(host="ollama.com", omit_tools_for_none=True, tool_name=True),
    "vllm": Profile(effort="template", tool_name=True),
    "llamacpp": Profile(effort="template", tool_name=True),
    "lmstudio": Profile(),
}
_OLLAMA_PORT = 11434
AZURE_HOSTS = tuple(
    f"{service}.azure.{cloud}"
    for cloud in ("com", "us", "cn")
    for service in ("openai", "cognitiveservices", "services.ai", "models.ai")
)
"""Not all of azure.com: anybody's virtual machine has a name in cloudapp.azure.com."""


def profile_of(base_url: str) -> Profile:
    """The profile of the server at this address."""
    if (origin(base_url) or "").endswith(f":{_OLLAMA_PORT}"):
        return PROFILES["ollama"]
    host = f".{host_of(base_url)}"
    known = (it for it in PROFILES.values() if it.host and host.endswith(f".{it.host}"))
    return next(known, Profile())


class Chat(Wire):
    """Chat Completions in the profile of one server."""

    name = "chat"
    parser = ChatParser
    endings = ("/chat/completions",)

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self.home = profile.home
        self.think_tags = profile.think_tags

    def path(self, request: ChatRequest, *, stream: bool) -> str:
        """With the deployment, where it is in the path."""
        named = f"/deployments/{quote(request.model, safe='', errors='replace')}"
        return (named if self._profile.deployment_in_path else "") + self.endings[0]

    def suits(self, request: ChatRequest, flags: frozenset[str]) -> bool:
        """Not for a request that this server answers at its Responses endpoint only.

        At OpenAI, tools and an effort exclude each other on Chat Completions from gpt-5.1 on;
        from gpt-5.5 on there is an effort by default (providers.md 3.1).
        """
        version, asked = version_in(request.model, _VERSION), request.reasoning
        reasons = version >= (5, 5) or (version >= (5, 1) and asked not in (None, "none"))
        elsewhere = "responses" in flags or (bool(request.tools) and reasons)
        return not (self._profile.has_responses and elsewhere)

    def params(
        self, request: ChatRequest, names: WireNames, flags: frozenset[str], *, stream: bool
    ) -> dict[str, Any]:
        """All of the body but messages and tools."""
        profile = self._profile
        choice = request.tool_choice or "auto"
        named = {"type": "function", "function": {"name": names.to_wire(choice)}}
        has_choice = request.tools and not (choice == "none" and profile.omit_tools_for_none)
        schema = request.output_schema
        as_schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        form = as_schema if profile.takes_schema else {"type": "json_object"}
        params: dict[str, Any] = {
            "model": request.model,
            "tool_choice": (choice if choice in CHOICES else named) if has_choice else None,
            "temperature": request.temperature,
            "top_p": request.top_p,
            profile.max_tokens_field: request.max_tokens,
            **_effort(request, profile),
            "stop": list(request.stop_sequences) or None,
            "response_format": None if schema is None else form,
            "stream": stream or None,
            "stream_options": {"include_usage": True} if stream else None,
        }
        return only_set(params)

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """As the profile says."""
        mode = self._profile.schema_mode
        return mode == "with tools" or (mode == "alone" and not request.tools)

    def tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """A function. `strict` is never asked for: most schemas would have to be changed."""
        profile, schema = self._profile, spec.parameters
        parameters = wire_schema(schema, inline=not profile.keeps_refs, plain=profile.plain_schema)
        function = {**described(spec, name), "parameters": parameters}
        return {"type": "function", "function": function}

    def system(self, request: ChatRequest) -> str:
        """With the schema, where the server's JSON mode does not take one (DeepSeek)."""
        in_words = request.output_schema is not None and not self._profile.takes_schema
        return with_schema(request) if in_words else request.system_prompt

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
            # Mistral and others refuse an empty assistant message.
            said = message.text or message.tool_calls
            return [self._assistant(message, context)] if said else []
        # Plain text goes as a string: some servers split an array into several messages.
        content = [_part(part) for part in message.content] if attached(message) else message.text
        return [{"role": message.role, "content": content}]

    def lesson(
        self, error: ModelError, request: ChatRequest, flags: frozenset[str]
    ) -> Lesson | None:
        """Some templates want turns, some models another endpoint."""
        if self._profile.has_responses and needs_responses(error):
            told = f"{request.model} is asked at /v1/responses: only there it takes such a request"
            return Lesson("responses", told)
        if _TURNS.search(error.server_text or error.message):
            told = "a short answer was put between messages: this model takes them only in turns"
            return Lesson("turns", told)
        return None

    def _assistant(self, message: Message, context: Encoding) -> dict[str, Any]:
        nothing = None if self._profile.null_content else ""
        ours = bool(context.from_here(message))
        calls = [self._call(call, ours, context) for call in message.tool_calls]
        fields = json_object(context.own(message).get("fields")) or {}
        return {
            "role": "assistant",
            "content": message.text or nothing,
            **({"tool_calls": calls} if calls else {}),
            **self._reasoning(message, context),
            **{name: fields[name] for name in OPAQUE_FIELDS if name in fields},
        }

    def _reasoning(self, message: Message, context: Encoding) -> dict[str, str]:
        """The reasoning of an earlier answer, where the server wants it back."""
        rule, field = self._profile.reasoning_back, context.own(message).get("reasoning_field")
        if rule == "never" or not context.has_tools:
            return {}
        thoughts = (message.reasoning or "") if field else ""
        if rule == "deepseek":
            # DeepSeek answers 400 when a tool-calling turn comes back without the field.
            return {"reasoning_content": thoughts} if field or message.tool_calls else {}
        return {field: thoughts} if field in REASONING_FIELDS and thoughts else {}

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
            name = context.names.to_wire(message.name) if message.name else ""
            named = {"name": name} if name and self._profile.tool_name else {}
            wires.append(
                {"role": "tool", "tool_call_id": call_id, **named, "content": message.text}
            )
            if parts := attached(message):
                said = f"Given back by {name or 'the tool'} (call {call_id}):"
                shown += [{"type": "text", "text": said}, *map(_part, parts)]
        if shown and "turns" in context.flags:
            wires.append({"role": "assistant", "content": FILLER.text})
        return [*wires, {"role": "user", "content": shown}] if shown else wires


def azure_wires(config: ProviderConfig) -> list[Wire]:
    """The wires of the route that a base URL at Azure names (providers.md 5).

    The v1 route takes the deployment as the model; the dated one has `?api-version=…` and the
    deployment in the path, which the base URL may already hold, as the portal shows it.
    """
    parts = urlsplit(config.base_url or "")
    wires: list[Wire] = [Chat(PROFILES["azure"]), Responses()]
    if "api-version=" in parts.query and "/v1" not in parts.path:
        in_path = "/deployments/" not in parts.path
        wires = [Chat(replace(PROFILES["azure-dated"], deployment_in_path=in_path))]
    key = config.api_key.reveal() if config.api_key else ""
    has_own = any(name.lower() == "authorization" for name in config.headers)
    # A token of Entra ID has three parts, the first of them JSON in base64.
    if not has_own and not (key.startswith("ey") and key.count(".") == 2):
        for wire in wires:
            wire.key_header, wire.key_prefix = "api-key", ""
    return wires


def _effort(request: ChatRequest, profile: Profile) -> dict[str, Any]:
    """The reasoning option in the words of a server; nothing where it was not set."""
    asked = request.reasoning
    forced = request.tools and request.tool_choice not in (None, "auto", "none")
    if profile.effort == "deepseek" and forced:
        asked = asked or "none"  # Thinking by default and a forced choice: 400.
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


def _part(part: Part) -> dict[str, Any]:
    shown = readable(part)
    if isinstance(shown, str):
        return {"type": "text", "text": shown}
    if isinstance(shown, ImagePart):
        return {"type": "image_url", "image_url": {"url": data_url(shown)}}
    return {"type": "file", "file": {"filename": shown.name, "file_data": data_url(shown)}}
