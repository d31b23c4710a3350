"""How servers say what went wrong: the code, a retry or none, the wait, their words, the sizes."""

from __future__ import annotations

from typing import Any

import pytest
from servers.error_bodies import BUSY, HTTP, gemini, openai

from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import register_secret
from nbagent.providers.http_errors import response_error, stream_error
from nbagent.providers.transport.sse import fix_surrogates

# Who says it: how many tokens were asked, how many it takes, and the words.
SAID: dict[str, tuple[int | None, int | None, str]] = {
    "OpenAI": (10_232, 8_192, "This model's maximum context length is 8192 tokens. However, your "
        "messages resulted in 10232 tokens. Please reduce the length of the messages."),
    "DeepSeek": (69_000, 65_536, "This model's maximum context length is 65536 tokens. However, "
        "you requested 69648 tokens (69000 in the messages, 648 in the completion)."),
    "OpenAI Responses": (None, None, "Your input exceeds the context window of this model."),
    "Azure": (300_000, 272_000, "Input tokens exceed the configured limit of 272000 tokens. Your "
        "messages resulted in 300,000 tokens. Please reduce the length of the messages."),
    "Anthropic": (213_462, 200_000, "prompt is too long: 213462 tokens > 200000 maximum"),
    "Anthropic, with the answer": (199_759, 200_000, "input length and `max_tokens` exceed "
        "context limit: 199759 + 8192 > 200000, decrease input length or `max_tokens` and try "
        "again"),
    "Gemini": (1_196_265, 1_048_575, "The input token count (1196265) exceeds the maximum number "
        "of tokens allowed (1048575)."),
    "Mistral": (40_000, 32_768, "Prompt contains 40000 tokens and 0 draft tokens, too large for "
        "model with 32768 maximum context length"),
    "xAI": (537_812, 131_072, "This model's maximum prompt length is 131072 but the request "
        "contains 537812 tokens."),
    "Cohere": (5_000, 4_081, "too many tokens: total number of tokens in the prompt cannot "
        "exceed 4081 - received 5000."),
    "Moonshot": (9_000, 8_192, "Invalid request: Your request exceeded model token limit: 8192 "
        "(requested: 9000)"),
    "Bedrock": (None, None, "Input is too long for requested model."),
    "OpenRouter": (139_000, 128_000, "This endpoint's maximum context length is 128000 tokens. "
        "However, you requested about 140000 tokens (139000 of text input, 1000 in the output)."),
    "vLLM": (4_176, 1_536, "This model's maximum context length is 1536 tokens. However, your "
        "request has 4176 input tokens. Please reduce the length of the input messages."),
    "vLLM, older": (25_938, 4_096, "The prompt (total length 25938) is too long to fit into the "
        "model (context length 4096)."),
    "SGLang": (9_000, 8_192, "Input (9000 tokens) is longer than the model's context length "
        "(8192 tokens)."),
    "TGI": (9_000, 8_193, "`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 "
        "`inputs` tokens and 100 `max_new_tokens`"),
    "llama.cpp": (5_000, 4_096, "request (5000 tokens) exceeds the available context size (4096 "
        "tokens), try increasing it"),
    "LM Studio": (None, None, "The number of tokens to keep from the initial prompt is greater "
        "than the context length."),
    "Ollama": (None, None, "input length exceeds context length"),
    "llama.cpp's fields": (9, 8, "no"),
    "a number that is none": (None, 8_192, "prompt is too long: 99999999999999999 tokens > 8192 "
        "maximum"),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "takes", "said"), SAID.values(), ids=SAID)
def test_the_words_of_many_servers_are_known_and_their_sizes_read(
    asked: int | None, takes: int | None, said: str
) -> None:
    body: Any = {"error": {"message": said, "type": "invalid_request_error", "code": None}}
    if said == "no":  # The sizes are in fields of their own.
        body["error"].update(type="exceed_context_size_error", n_prompt_tokens=asked, n_ctx=takes)
    for fault in (response_error(400, {}, body), response_error(413, {}, body), stream_error(body)):
        assert (fault.code, fault.retryable) == ("LLM_CONTEXT_OVERFLOW", False)
        assert fault.server_text == said
        assert fault.details.get("request_tokens") == asked
        assert fault.details.get("context_tokens") == takes


@pytest.mark.parametrize(
    "fault",
    [
        {"message": "Request too large for gpt-4 on tokens per min (TPM): Limit 1, Requested 2."},
        {"message": "max_tokens is too large: 99999. This model supports at most 16384."},
        {"type": "request_too_large", "message": "Request exceeds the maximum size"},
    ],
    ids=["tokens per minute", "answer too long", "bytes"],
)
def test_other_limits_of_size_are_no_overflow(fault: dict[str, Any]) -> None:
    assert response_error(413, {}, {"error": fault}).code == "LLM_HTTP_ERROR"


WAIT = gemini("RESOURCE_EXHAUSTED", {"retryDelay": "14s"})
# status, headers and body: the code, whether it is asked again and after what wait, the words.
ERRORS: list[tuple[int, dict[str, str], Any, str, bool, float | None, str]] = [
    (503, {}, {"error": "server busy"}, HTTP, True, None, "server busy"),
    (400, {}, {"detail": "bad\nidea"}, HTTP, False, None, "bad idea"),
    (422, {}, {"message": {"detail": [{"loc": ["n"], "msg": "odd"}]}}, HTTP, False, None, "n: odd"),
    (400, {}, {"object": "error", "message": "old vLLM"}, HTTP, False, None, "old vLLM"),
    (429, {}, openai(429, metadata={"raw": "m is busy"}), BUSY, True, None, "no: m is busy"),
    (502, {}, "plain words", HTTP, True, None, "plain words"),
    (400, {}, {"error": {"message": "key sk-SECRETSECRET"}}, HTTP, False, None, "key [redacted]"),
    (429, {}, WAIT, BUSY, True, 14, "no"),
    (429, {"retry-after": "2"}, WAIT, BUSY, True, 2, "no"),
    (429, {"x-ratelimit-reset": "1741305600000"}, openai(429), BUSY, True, 0, "no"),
]


@pytest.mark.parametrize(
    ("status", "headers", "body", "code", "retryable", "wait_s", "said"), ERRORS
)
def test_what_the_server_said_is_one_line_of_the_error_beside_its_code_and_wait(
    status: int,
    headers: dict[str, str],
    body: Any,
    code: str,
    retryable: bool,
    wait_s: float | None,
    said: str,
) -> None:
    register_secret("sk-SECRETSECRET")
    fault = response_error(status, headers, body)
    assert (fault.code, fault.retryable, fault.server_text) == (code, retryable, said)
    assert fault.retry_after_s == wait_s


def test_the_advice_fits_what_was_sent() -> None:
    signin = {"error": "unauthorized", "signin_url": "https://ollama.com/connect"}
    assert response_error(401, {}, signin).message.endswith("Sign in at https://ollama.com/connect")


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ModelError, match="nested"):
        fix_surrogates(value)
