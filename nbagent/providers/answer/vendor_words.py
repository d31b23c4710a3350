"""Read what all servers send under other names: token counts, errors, calls, lists of models.

One table for all servers, not one per wire: a gateway passes on the words of the server behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from nbagent.contracts.canonical import json_object
from nbagent.contracts.model import ModelInfo, Usage
from nbagent.providers.answer.json_fields import (
    arguments_json,
    objects_in,
    text_or_empty,
    token_count,
)
from nbagent.providers.answer.wire_deltas import CallPart, ServerFault
from nbagent.providers.http_errors import stream_error
from nbagent.providers.transport.sse import bad_response, fix_surrogates

# By their names: `promptTokenCount` (Gemini), `prompt_eval_count` (Ollama), `input_tokens`
# (Anthropic,
# Responses). Where a server counts cached tokens or thoughts apart, its wire adds them up before.
_COUNTS = {
    "prompt": (
        *("prompt_tokens", "input_tokens", "promptTokenCount", "prompt_eval_count"),
        *("inputTokens", "promptTokens"),  # Bedrock's Converse, gateways in JavaScript
    ),
    "completion": (
        *("completion_tokens", "output_tokens", "candidatesTokenCount", "eval_count"),
        *("outputTokens", "completionTokens"),
    ),
    "total": ("total_tokens", "totalTokenCount", "totalTokens"),
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
_ARGUMENTS = ("arguments", "args", "input", "parameters")
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


def read_usage(counted: Any) -> Usage | None:
    """Read the token counts of a server; None if it sent none."""
    if not json_object(counted):
        return None
    counts = {part: _first_count(counted, paths) for part, paths in _COUNTS.items()}
    prompt, completion, reasoning = counts["prompt"], counts["completion"], counts["reasoning"]
    exceeds = reasoning > completion or counts["total"] == prompt + completion + reasoning
    if "completion_tokens_details" in counted and reasoning and exceeds:
        # xAI and some gateways do not include the reasoning in the completion.
        counts["completion"] += reasoning
    return Usage.of(**counts)


def frame_object(data: Any) -> dict[str, Any]:
    """Return the object of a frame, also from a list (Gemini's errors)."""
    frame = next(iter(objects_in(data)), json_object(data))
    if frame is None:
        raise bad_response(f"a frame is {type(data).__name__}, not an object")
    return frame


def faults_in(frame: dict[str, Any]) -> Iterator[ServerFault]:
    """Yield the error object of a frame; every provider may send one inside a 200 answer."""
    if frame.get("error"):
        yield ServerFault(stream_error(frame))


def parse_index(value: Any) -> int | None:
    """Parse a server's `index`, a number or a text of digits; None for anything else."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 9:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def call_part(
    key: object, call: dict[str, Any], body: Any, extra: dict[str, Any] | None = None
) -> CallPart:
    """Read a call or a fragment of one; `body` holds its name and arguments."""
    within = json_object(body) or {}
    written = next((within[name] for name in _ARGUMENTS if name in within), None)
    id, name = text_or_empty(call.get("id")), text_or_empty(within.get("name"))
    return CallPart(key, id, name, arguments_json(written), extra)


def read_model_list(body: Any) -> list[ModelInfo]:
    """Read a list of models in any shape that servers use. Raises ValueError."""
    listing = json_object({"data": body} if isinstance(body, list) else body) or {}
    listed: Any = (
        listing.get("data") or listing.get("models") or []
    )  # Some write null for an empty list.
    if not isinstance(listed, list) or not {"data", "models"} & listing.keys():
        raise ValueError("no list of models")
    texts = [item for item in cast("list[Any]", listed) if isinstance(item, str)]
    models = [ModelInfo(id=fix_surrogates(text)) for text in texts]
    for item in objects_in(listed):
        names = [text_or_empty(item.get(field)) for field in ("id", "model", "name")]
        names[-1] = names[-1].removeprefix("models/")  # Google
        if (id := next(filter(None, names), "")) and _is_chat_model(item):
            length, able = _first_count(item, _CONTEXT_FIELDS) or None, _capabilities(item)
            models.append(
                ModelInfo(id=fix_surrogates(id), context_length=length, capabilities=able)
            )
    return models


def _first_count(counts: Any, paths: Iterable[str]) -> int:
    for path in paths:
        # First a look for the key alone: most names belong to other servers, and some servers send
        # counts with each chunk.
        first, _, rest = path.partition(".")
        if first in counts and (count := token_count(counts, first, *filter(None, [rest]))):
            return count
    return 0


def _is_chat_model(item: dict[str, Any]) -> bool:
    """True for a usable chat model: Anthropic lists retired models, Google embedding models."""
    ways = str(item.get("supportedGenerationMethods") or "generateContent")
    return "generateContent" in ways and item.get("lifecycle") != "retired"


def _capabilities(model: dict[str, Any]) -> tuple[str, ...]:
    names: set[str] = set()
    architecture = json_object(model.get("architecture")) or {}
    for value in (
        {"thinking": model.get("thinking")},  # Google
        model.get("capabilities"),
        model.get("supported_parameters"),
        architecture.get("input_modalities"),
    ):
        if isinstance(value, list):
            names |= {item for item in cast("list[Any]", value) if isinstance(item, str)}
        for name, able in (json_object(value) or {}).items():
            details = json_object(able) or {}
            if (
                "supported" in details
            ):  # Anthropic: all its models take tools, but no field says so.
                names.add("tools")
            if details.get("supported", able):
                names.add(name)
    return tuple(sorted({_CAPABILITIES[name] for name in names if name in _CAPABILITIES}))
