"""The Chat Completions wire: requests, and profiles of the servers that differ from OpenAI.

Answers are read in `chat_answers`. Wire facts: OpenAI's API reference and types; each server's
documentation for its profile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import FilePart, ImagePart, Message, Part, ToolCall
from nbagent.contracts.model import ChatRequest, ToolSpec
from nbagent.providers.wires.base import (
    EncodingContext,
    Wire,
    effort_level,
    model_version,
    name_and_description,
    without_none,
)
from nbagent.providers.wires.chat_answers import REASONING_FIELDS, REPLAYED_FIELDS, ChatParser
from nbagent.providers.wires.chat_profiles import Profile
from nbagent.providers.wires.encoding import (
    FILLER_ANSWER,
    answer_text,
    arguments_text,
    attachments,
    audio_type,
    data_url,
    group_results,
    is_audio,
    system_with_schema,
    text_or_part,
    wire_id,
    with_alternating_roles,
)
from nbagent.providers.wires.responses import TOOL_CHOICES
from nbagent.providers.wires.tool_names import WireNames
from nbagent.providers.wires.tool_schemas import wire_schema

_VERSION = re.compile(r"^gpt-(\d+)(?:\.(\d+))?")


_AUDIO_FORMATS = {"audio/wav": "wav", "audio/mp3": "mp3"}


class Chat(Wire):
    """Chat Completions in the profile of one server."""

    name = "chat"
    parser = ChatParser
    endpoint_paths = ("/chat/completions",)

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self.default_path = profile.default_path
        self.think_tags = profile.think_tags
        # Mistral's and Gemma's chat templates need alternating roles ("turns").
        self.workarounds = frozenset({"turns", *(["responses"] if profile.has_responses else [])})
        self.account_headers = profile.account_headers
        if not profile.knows_tool_choice:
            self.unsupported_fields = frozenset({"tool_choice"})

    def path(self, request: ChatRequest, *, stream: bool) -> str:
        """Path, with the deployment if the server wants it there."""
        named = f"/deployments/{quote(request.model, safe='', errors='replace')}"
        return (named if self._profile.deployment_in_path else "") + self.endpoint_paths[0]

    def accepts(self, request: ChatRequest, workarounds: frozenset[str]) -> bool:
        """False for a request that this server answers only at its Responses endpoint.

        OpenAI refuses function tools with reasoning on Chat Completions (400, param
        `reasoning_effort`). From gpt-5.1 to 5.4 reasoning is off by default, so only a set effort
        matters; from gpt-5.5 on it is on by default, and some models do not accept `none`.
        """
        version, effort = model_version(request.model, _VERSION), request.reasoning
        reasons = version >= (5, 5) or (version >= (5, 1) and effort not in (None, "none"))
        elsewhere = "responses" in workarounds or (bool(request.tools) and reasons)
        return not (self._profile.has_responses and elsewhere)

    def params(
        self, request: ChatRequest, names: WireNames, workarounds: frozenset[str], *, stream: bool
    ) -> dict[str, Any]:
        """Body without messages and tools."""
        profile = self._profile
        choice = request.tool_choice or "auto"
        named = {"type": "function", "function": {"name": names.to_wire(choice)}}
        omitted = choice == "none" and profile.omit_tools_for_none
        has_choice = request.tools and profile.knows_tool_choice and not omitted
        schema = request.output_schema
        as_schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        form = as_schema if profile.accepts_schema else {"type": "json_object"}
        params: dict[str, Any] = {
            "model": request.model,
            "tool_choice": (choice if choice in TOOL_CHOICES else named) if has_choice else None,
            "temperature": request.temperature,
            "top_p": request.top_p,
            profile.max_tokens_field: request.max_tokens,
            **_effort_params(request, profile),
            "stop": list(request.stop_sequences) or None,
            "response_format": None if schema is None else form,
            "stream": stream or None,
            "stream_options": {"include_usage": True}
            if stream and profile.asks_for_usage
            else None,
        }
        return without_none(params)

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """True as the profile says."""
        mode = self._profile.schema_mode
        return mode == "with tools" or (mode == "alone" and not request.tools)

    def encode_tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """Encode a function, without `strict`: most schemas would have to change."""
        profile, schema = self._profile, spec.parameters
        parameters = wire_schema(
            schema, inline=not profile.follows_refs, plain=profile.plain_schema
        )
        function = {**name_and_description(spec, name), "parameters": parameters}
        return {"type": "function", "function": function}

    def system_text(self, request: ChatRequest) -> str:
        """System text, with the schema if the server's JSON mode accepts none (DeepSeek)."""
        in_words = request.output_schema is not None and not self._profile.accepts_schema
        return system_with_schema(request) if in_words else request.system_prompt

    def group_messages(
        self, messages: Sequence[Message], workarounds: frozenset[str]
    ) -> Iterable[tuple[Message, ...]]:
        """Group the results of a turn: their images follow all of them in one user message."""
        return group_results(
            with_alternating_roles(messages) if "turns" in workarounds else messages
        )

    def encode_group(self, group: tuple[Message, ...], context: EncodingContext) -> list[Any]:
        """Encode a group with only the fields that the profile knows."""
        message = group[0]
        if message.role == "tool":
            return self._result_messages(group, context)
        if message.role == "assistant":
            # Mistral and others refuse an empty assistant message.
            has_content = answer_text(message) or message.tool_calls
            return [self._assistant_message(message, context)] if has_content else []
        # Plain text as a string: Ollama splits an array into several messages.
        content = (
            [_content_part(part) for part in message.content]
            if attachments(message)
            else message.text
        )
        return [{"role": message.role, "content": content}]

    def _assistant_message(self, message: Message, context: EncodingContext) -> dict[str, Any]:
        nothing = None if self._profile.null_content else ""
        same_server = bool(context.raw_from_server(message))
        calls = [self._call_object(call, same_server, context) for call in message.tool_calls]
        fields = json_object(context.raw_from_model(message).get("fields")) or {}
        return {
            "role": "assistant",
            "content": answer_text(message) or nothing,
            **({"tool_calls": calls} if calls else {}),
            **self._reasoning_fields(message, context),
            **{name: fields[name] for name in REPLAYED_FIELDS if name in fields},
        }

    def _reasoning_fields(self, message: Message, context: EncodingContext) -> dict[str, str]:
        """Reasoning of an earlier answer, if the server wants it back."""
        rule, field = (
            self._profile.return_reasoning,
            context.raw_from_model(message).get("reasoning_field"),
        )
        if rule == "never" or not context.has_tools:
            return {}
        thoughts = (message.reasoning or "") if field else ""
        if rule == "deepseek":
            # With tools DeepSeek answers 400 ("The reasoning_content in the thinking mode must be
            # passed back") if a turn with calls lacks the field, also if it had no reasoning.
            return {"reasoning_content": thoughts} if field or message.tool_calls else {}
        return {field: thoughts} if field in REASONING_FIELDS and thoughts else {}

    def _call_object(
        self, call: ToolCall, same_server: bool, context: EncodingContext
    ) -> dict[str, Any]:
        function = {"name": context.names.to_wire(call.name), "arguments": arguments_text(call)}
        wire = {
            "id": wire_id(call.id, self._profile.call_id_pattern),
            "type": "function",
            "function": function,
        }
        return {**(call.extra or {}), **wire} if same_server else wire

    def _result_messages(self, group: tuple[Message, ...], context: EncodingContext) -> list[Any]:
        """Encode tool messages, which can hold only text, and a user message with attachments."""
        wires: list[Any] = []
        attached_parts: list[dict[str, Any]] = []
        for message in group:
            call_id = wire_id(message.tool_call_id or "", self._profile.call_id_pattern)
            name = context.names.to_wire(message.name) if message.name else ""
            named = {"name": name} if name and self._profile.names_tool_results else {}
            wires.append(
                {"role": "tool", "tool_call_id": call_id, **named, "content": message.text}
            )
            if parts := attachments(message):
                label = f"Given back by {name or 'the tool'} (call {call_id}):"
                attached_parts += [{"type": "text", "text": label}, *map(_content_part, parts)]
        if attached_parts and "turns" in context.workarounds:
            wires.append({"role": "assistant", "content": FILLER_ANSWER.text})
        return [*wires, {"role": "user", "content": attached_parts}] if attached_parts else wires


def _effort_params(request: ChatRequest, profile: Profile) -> dict[str, Any]:
    """Reasoning option in the form of the server; nothing if it was not set."""
    effort = request.reasoning
    forced = request.tools and request.tool_choice not in (None, "auto", "none")
    if profile.forced_tool_stops_thinking and forced:
        effort = effort or "none"
    if effort is None:
        return {}
    word = effort_level(effort)
    match profile.effort_style:
        case "openrouter":  # A number of tokens is possible; `max` is not known.
            if effort.isdecimal():
                return {"reasoning": {"max_tokens": int(effort)}}
            return {"reasoning": {"effort": "xhigh" if word == "max" else word}}
        case "deepseek":  # It knows low, high and max.
            if word == "none":
                return {"thinking": {"type": "disabled"}}
            level = {"minimal": "low", "medium": "high", "xhigh": "high"}.get(word, word)
            return {"thinking": {"type": "enabled"}, "reasoning_effort": level}
        case "mistral":  # It knows none and high.
            return {"reasoning_effort": "none" if word == "none" else "high"}
        case "template":  # vLLM and llama.cpp pass this to the chat template (Qwen3 and others).
            thinks = {"chat_template_kwargs": {"enable_thinking": word != "none"}}
            return thinks if word == "none" else {**thinks, "reasoning_effort": word}
        case "together":
            return (
                {"reasoning": {"enabled": False}} if word == "none" else {"reasoning_effort": word}
            )
        case "thinking":  # Moonshot and Z.AI: on or off.
            return {"thinking": {"type": "disabled" if word == "none" else "enabled"}}
        case "effort":
            return {"reasoning_effort": word}


def _content_part(part: Part) -> dict[str, Any]:
    shown = text_or_part(part)
    if isinstance(shown, str):
        return {"type": "text", "text": shown}
    if isinstance(shown, ImagePart):
        return {"type": "image_url", "image_url": {"url": data_url(shown)}}
    if is_audio(shown):
        return {"type": "input_audio", "input_audio": _audio_fields(shown)}
    return {"type": "file", "file": {"filename": shown.name, "file_data": data_url(shown)}}


def _audio_fields(part: FilePart) -> dict[str, str]:
    """Data and format of a recording; the API documents only these two formats."""
    media_type = audio_type(part)
    if media_type not in _AUDIO_FORMATS:
        raise ModelError(
            f"Chat Completions servers take audio as WAV or MP3, and {part.name!r} is "
            f"{media_type}; convert it, or give it to a Gemini model (google:…). Nothing was sent.",
            code="LLM_HTTP_ERROR",
        )
    return {"data": part.data, "format": _AUDIO_FORMATS[media_type]}
