"""How servers say that a request is too long, and the sizes that are read from their words."""

from __future__ import annotations

from typing import Any

import pytest

from nbagent.providers.errors import response_error, stream_error
from nbagent.providers.prices import context_tokens

SAID: dict[str, tuple[str, int | None, int | None]] = {
    "OpenAI": (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in "
        "10232 tokens. Please reduce the length of the messages.",
        10_232,
        8_192,
    ),
    "DeepSeek": (
        "This model's maximum context length is 65536 tokens. However, you requested 69648 tokens "
        "(69000 in the messages, 648 in the completion).",
        69_000,
        65_536,
    ),
    "OpenAI Responses": ("Your input exceeds the context window of this model.", None, None),
    "Azure": (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in "
        "300,000 tokens. Please reduce the length of the messages.",
        300_000,
        272_000,
    ),
    "Anthropic": ("prompt is too long: 213462 tokens > 200000 maximum", 213_462, 200_000),
    "Anthropic, with the answer": (
        "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease "
        "input length or `max_tokens` and try again",
        199_759,
        200_000,
    ),
    "Gemini": (
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        1_196_265,
        1_048_575,
    ),
    "Mistral": (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum "
        "context length",
        40_000,
        32_768,
    ),
    "xAI": (
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        537_812,
        131_072,
    ),
    "Cohere": (
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000.",
        5_000,
        4_081,
    ),
    "Moonshot": (
        "Invalid request: Your request exceeded model token limit: 8192 (requested: 9000)",
        9_000,
        8_192,
    ),
    "Bedrock": ("Input is too long for requested model.", None, None),
    "OpenRouter": (
        "This endpoint's maximum context length is 128000 tokens. However, you requested about "
        "140000 tokens (139000 of text input, 1000 in the output).",
        139_000,
        128_000,
    ),
    "vLLM": (
        "This model's maximum context length is 1536 tokens. However, your request has 4176 input "
        "tokens. Please reduce the length of the input messages.",
        4_176,
        1_536,
    ),
    "vLLM, older": (
        "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
        25_938,
        4_096,
    ),
    "SGLang": (
        "Input (9000 tokens) is longer than the model's context length (8192 tokens).",
        9_000,
        8_192,
    ),
    "TGI": (
        "`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and 100 "
        "`max_new_tokens`",
        9_000,
        8_193,
    ),
    "llama.cpp": (
        "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
        5_000,
        4_096,
    ),
    "LM Studio": (
        "The number of tokens to keep from the initial prompt is greater than the context length.",
        None,
        None,
    ),
    "Ollama": ("input length exceeds context length", None, None),
    "a number that is none": (
        "prompt is too long: 99999999999999999 tokens > 8192 maximum",
        None,
        8_192,
    ),
}


@pytest.mark.parametrize(("said", "asked", "takes"), SAID.values(), ids=SAID)
def test_the_words_of_many_servers_are_known_and_their_sizes_read(
    said: str, asked: int | None, takes: int | None
) -> None:
    body = {"error": {"message": said, "type": "invalid_request_error", "code": None}}
    for fault in (response_error(400, {}, body), response_error(413, {}, body), stream_error(body)):
        assert fault.code == "LLM_CONTEXT_OVERFLOW"
        assert not fault.retryable
        assert fault.details.get("request_tokens") == asked
        assert fault.details.get("context_tokens") == takes


@pytest.mark.parametrize(
    "fault",
    [
        {"message": "Request too large for gpt-4 on tokens per min (TPM): Limit 1, Requested 2."},
        {"message": "Too many tokens, please wait before trying again."},
        {"message": "max_tokens is too large: 99999. This model supports at most 16384."},
        {"message": "max_completion_tokens must be <= 8192"},
        {"type": "request_too_large", "message": "Request exceeds the maximum size"},
    ],
    ids=["tokens per minute", "throttled", "answer too long", "answer limit", "bytes"],
)
def test_other_limits_of_size_are_no_overflow(fault: dict[str, Any]) -> None:
    assert response_error(413, {}, {"error": fault}).code == "LLM_HTTP_ERROR"


def test_fields_of_the_body_tell_the_sizes_too() -> None:
    fault = {"type": "exceed_context_size_error", "message": "no", "n_prompt_tokens": 9, "n_ctx": 8}
    details = response_error(400, {}, {"error": fault}).details
    assert (details["request_tokens"], details["context_tokens"]) == (9, 8)


def test_the_price_list_tells_what_known_models_take() -> None:
    assert (context_tokens("openai", "gpt-4o") or 0) >= 100_000
    assert context_tokens("openai", "no-such-model-at-all") is None
    assert context_tokens("openai", "gpt-4o", "http://127.0.0.1:8000/v1") is None
    assert context_tokens("offline", "demo") is None
