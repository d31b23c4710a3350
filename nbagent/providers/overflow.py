"""A request that is too long for the model: how servers say it, and the sizes that they name.

Pure. Words as in the documentation and the issues of OpenAI, Azure, Anthropic, Gemini, Mistral,
xAI, Cohere, Moonshot, Bedrock, OpenRouter, vLLM, SGLang, TGI, llama.cpp, LM Studio and Ollama.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

OVERFLOW_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "tokens_limit_reached"}
)
OVERFLOW_TEXT = re.compile(
    r"maximum (?:context|prompt|model) length|reduce the length of the (?:messages|prompt)"
    r"|(?:prompt|input) is too long|too long to fit into the model"
    r"|input token count.{0,40}exceeds|number of tokens allowed"
    r"|input tokens exceed|exceeded model token limit|too many tokens: total number"
    r"|exceeds? (?:the )?(?:available |model'?s )?context (?:size|window|limit|length)"
    r"|context (?:length|window|size) (?:has been )?exceed|too large for model with"
    r"|(?:longer|greater) than the (?:model'?s )?context length|tokens \+ `max_new_tokens`",
    re.I | re.S,
)
_NUMBER = r"(\d[\d,]{0,14})"
_PROMPT = re.compile(rf"{_NUMBER} (?:of text input|in (?:the|your) (?:messages|prompt))", re.I)
_ASKED = re.compile(
    r"(?:resulted in|requested:?(?: about)?|too long:|token count(?: of)?|request has"
    r"|(?:request|prompt) contains|request|input|given:|received|total length|context limit:)"
    rf"\s*\(?{_NUMBER}(?!\d)",
    re.I,
)
_TAKES = re.compile(
    r"(?:maximum (?:context|prompt|model) length (?:is|of)(?: only)?|>|tokens allowed|context size"
    r"|model with|configured limit of|token limit:|must be <=|cannot exceed|max size:"
    rf"|context length(?: is only| of)?)\s*\(?{_NUMBER}(?!\d)",
    re.I,
)
_LARGEST = 10**9
"""A count above this is no count of tokens."""


def overflow_sizes(fault: Mapping[str, Any]) -> dict[str, int]:
    """`request_tokens` and `context_tokens`, as far as the server names them.

    Args:
        fault: the fields of the error's body.
    """
    text = str(fault.get("message") or "")
    found = {
        "request_tokens": _field(fault, "n_prompt_tokens")
        or _in(_PROMPT, text)
        or _in(_ASKED, text),
        "context_tokens": _field(fault, "n_ctx") or _in(_TAKES, text),
    }
    return {name: count for name, count in found.items() if count}


def _field(fault: Mapping[str, Any], name: str) -> int | None:
    value = fault.get(name)
    return value if isinstance(value, int) and 0 < value < _LARGEST else None


def _in(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    count = int(match[1].replace(",", "")) if match else 0
    return count if 0 < count < _LARGEST else None
