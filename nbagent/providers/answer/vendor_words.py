"""What servers tell in the same terms on every wire: why an answer ended, tokens, errors, models.

Each is read by one table of all their names: gateways pass on those of the server behind them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

from nbagent.contracts.canonical import json_object
from nbagent.contracts.model import FinishReason, ModelInfo, Usage
from nbagent.providers.answer.builder import Assembly
from nbagent.providers.answer.fields import arguments_of, objects_in, text_or_empty, tokens
from nbagent.providers.http_errors import stream_error
from nbagent.providers.transport.sse import bad_answer, clean

_FINISH: dict[FinishReason, str] = {
    "stop": r"stop|stop_sequence|eos|eos_token|end_turn|pause_turn|load|unload",
    "length": r"length|model_length|max_tokens|model_context_window_exceeded|continuation",
    "tool_calls": r"tool_calls|function_call|tool_use",
    "content_filter": r"content_filter|refusal|\w*(?:safety|recitation|blocklist|prohibited|spii"
    r"|model_armor|escalation|pup_limited)\w*",
    "error": r"error|network_error|insufficient_system_resource|abort|malformed_\w+|missing_\w+"
    # Gemini's; `other` in small letters is a gateway's word for one that it does not know.
    r"|too_many_tool_calls|(?-i:\w*(?:LANGUAGE|OTHER|NO_IMAGE)\w*)",
}
_COUNTS = {
    "prompt": ("prompt_tokens", "input_tokens", "promptTokenCount", "prompt_eval_count"),
    "completion": ("completion_tokens", "output_tokens", "candidatesTokenCount", "eval_count"),
    "total": ("total_tokens", "totalTokenCount"),
    "cached": (
        *("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens"),
        *("cache_read_input_tokens", "cachedContentTokenCount"),
        *("prompt_cache_hit_tokens", "cached_tokens"),  # DeepSeek, Moonshot
    ),
    "reasoning": (
        *("completion_tokens_details.reasoning_tokens", "output_tokens_details.reasoning_tokens"),
        *("output_tokens_details.thinking_tokens", "thoughtsTokenCount"),
    ),
    "cache_write": (
        *("prompt_tokens_details.cache_write_tokens", "input_tokens_details.cache_write_tokens"),
        "cache_creation_input_tokens",
    ),
}
_ARGUMENTS = ("arguments", "args", "input")
_CONTEXT_FIELDS = (
    *("context_length", "max_model_len", "context_window", "max_context_length"),
    *("loaded_context_length", "n_ctx"),
    *("meta.n_ctx", "details.context_length"),  # llama.cpp, Ollama
    *("max_input_tokens", "inputTokenLimit"),  # Anthropic, Google
)
_CAPABILITIES = {
    "tools": "tools",
    "function_calling": "tools",
    "vision": "vision",
    "image": "vision",
    "image_input": "vision",
    "reasoning": "reasoning",
    "thinking": "reasoning",
}


def finish_reason(word: str) -> FinishReason | None:
    """Why an answer ended, by a server's word for it; None for a word that nobody knows."""
    for reason, words in _FINISH.items():
        if re.fullmatch(words, word, re.I):
            return reason
    return None


def usage_in(counted: Any) -> Usage | None:
    """The tokens that a server counted; None where it counted none."""
    if not json_object(counted):
        return None
    counts = {part: _first_count(counted, paths) for part, paths in _COUNTS.items()}
    prompt, completion, reasoning = counts["prompt"], counts["completion"], counts["reasoning"]
    exceeds = reasoning > completion or counts["total"] == prompt + completion + reasoning
    if "completion_tokens_details" in counted and reasoning and exceeds:
        # xAI and some gateways count the reasoning beside the completion, not within it.
        counts["completion"] += reasoning
    return Usage.of(**counts)


def frame_object(data: Any, into: Assembly) -> dict[str, Any]:
    """The object of a frame, also out of a list (Gemini's errors); takes the error in it."""
    found = next(iter(objects_in(data)), json_object(data))
    if found is None:
        raise bad_answer(f"a frame is {type(data).__name__}, not an object")
    if found.get("error"):
        into.fail(stream_error(found))
    return found


def index_of(value: Any) -> int | None:
    """The number that a server's `index` stands for; None for no number."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 9:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def take_call(
    into: Assembly,
    key: object,
    call: dict[str, Any],
    body: Any,
    extra: dict[str, Any] | None = None,
) -> None:
    """Take a call or a fragment of one; `body` is what its name and its arguments are in."""
    within = json_object(body) or {}
    written = next((within[name] for name in _ARGUMENTS if name in within), None)
    id, name = text_or_empty(call.get("id")), text_or_empty(within.get("name"))
    into.call(key, id=id, name=name, arguments=arguments_of(written), extra=extra)


def models_in(body: Any) -> list[ModelInfo]:
    """The models of a list in any of the shapes that servers use. Raises ValueError."""
    found = json_object({"data": body} if isinstance(body, list) else body) or {}
    listed: Any = found.get("data") or found.get("models") or []  # Of none some write null.
    if not isinstance(listed, list) or not {"data", "models"} & found.keys():
        raise ValueError("no list of models")
    texts = [item for item in cast("list[Any]", listed) if isinstance(item, str)]
    models = [ModelInfo(id=clean(text)) for text in texts]
    for item in objects_in(listed):
        names = [text_or_empty(item.get(field)) for field in ("id", "model", "name")]
        names[-1] = names[-1].removeprefix("models/")  # Google
        if (id := next(filter(None, names), "")) and _answers(item):
            length, able = _first_count(item, _CONTEXT_FIELDS) or None, _capabilities(item)
            models.append(ModelInfo(id=clean(id), context_length=length, capabilities=able))
    return models


def _first_count(holder: Any, paths: Iterable[str]) -> int:
    for path in paths:
        # Most names are those of other servers, and some send counts with each chunk.
        first, _, rest = path.partition(".")
        if first in holder and (count := tokens(holder, first, *filter(None, [rest]))):
            return count
    return 0


def _answers(item: dict[str, Any]) -> bool:
    """Whether it can be asked: what Anthropic retired stays listed, Google lists embedders."""
    ways = str(item.get("supportedGenerationMethods") or "generateContent")
    return "generateContent" in ways and item.get("lifecycle") != "retired"


def _capabilities(model: dict[str, Any]) -> tuple[str, ...]:
    said: set[str] = set()
    architecture = json_object(model.get("architecture")) or {}
    for value in (
        {"thinking": model.get("thinking")},  # Google
        model.get("capabilities"),
        model.get("supported_parameters"),
        architecture.get("input_modalities"),
    ):
        if isinstance(value, list):
            said |= {item for item in cast("list[Any]", value) if isinstance(item, str)}
        for name, able in (json_object(value) or {}).items():
            details = json_object(able) or {}
            if "supported" in details:  # Anthropic, and nothing of tools: its models take them.
                said.add("tools")
            if details.get("supported", able):
                said.add(name)
    return tuple(sorted({_CAPABILITIES[name] for name in said if name in _CAPABILITIES}))
