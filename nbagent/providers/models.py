"""Lists of models as servers write them: ids, context lengths, capabilities."""

from __future__ import annotations

from typing import Any, cast

from nbagent.contracts.canonical import json_object
from nbagent.contracts.chat import ModelInfo
from nbagent.providers.frames import objects_in, text_or_empty, tokens

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


def models_in(body: Any) -> list[ModelInfo]:
    """The models of a list in any of the shapes that servers use. Raises ValueError."""
    found = json_object({"data": body} if isinstance(body, list) else body) or {}
    listed: Any = found.get("data") or found.get("models") or []  # Of none some write null.
    if not isinstance(listed, list) or not {"data", "models"} & found.keys():
        raise ValueError("no list of models")
    models = [ModelInfo(id=item) for item in cast("list[Any]", listed) if isinstance(item, str)]
    for item in objects_in(listed):
        names = (text_or_empty(item.get(field)) for field in ("id", "model", "name"))
        lengths = (tokens(item, *path.split(".")) for path in _CONTEXT_FIELDS)
        if (id := next(filter(None, names), "")) and _answers(item):
            length = next(filter(None, lengths), None)
            able = _capabilities(item)
            models.append(ModelInfo(id=id, context_length=length, capabilities=able))
    return models


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
