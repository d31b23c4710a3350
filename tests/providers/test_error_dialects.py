"""How servers say what went wrong: the code, a retry or none, the wait, their words, the sizes."""

from __future__ import annotations

from typing import Any

import pytest

from nbagent.contracts.secrets import register
from nbagent.providers.errors import response_error, stream_error

SAID: dict[str, tuple[str, int | None, int | None]] = {
    "OpenAI": (
        "This model's maximum context length is 8192 tokens. However, your messages resulted "
        "in 10232 tokens. Please reduce the length of the messages.", 10_232, 8_192,
    ),
    "DeepSeek": (
        "This model's maximum context length is 65536 tokens. However, you requested 69648 "
        "tokens (69000 in the messages, 648 in the completion).", 69_000, 65_536,
    ),
    "OpenAI Responses": ("Your input exceeds the context window of this model.", None, None),
    "Azure": (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in "
        "300,000 tokens. Please reduce the length of the messages.", 300_000, 272_000,
    ),
    "Anthropic": ("prompt is too long: 213462 tokens > 200000 maximum", 213_462, 200_000),
    "Anthropic, with the answer": (
        "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease "
        "input length or `max_tokens` and try again", 199_759, 200_000,
    ),
    "Gemini": (
        "The input token count (1196265) exceeds the maximum number of tokens allowed "
        "(1048575).", 1_196_265, 1_048_575,
    ),
    "Mistral": (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 "
        "maximum context length", 40_000, 32_768,
    ),
    "xAI": (
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        537_812, 131_072,
    ),
    "Cohere": (
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received "
        "5000.", 5_000, 4_081,
    ),
    "Moonshot": (
        "Invalid request: Your request exceeded model token limit: 8192 (requested: 9000)",
        9_000, 8_192,
    ),
    "Bedrock": ("Input is too long for requested model.", None, None),
    "OpenRouter": (
        "This endpoint's maximum context length is 128000 tokens. However, you requested about "
        "140000 tokens (139000 of text input, 1000 in the output).", 139_000, 128_000,
    ),
    "vLLM": (
        "This model's maximum context length is 1536 tokens. However, your request has 4176 "
        "input tokens. Please reduce the length of the input messages.", 4_176, 1_536,
    ),
    "vLLM, older": (
        "The prompt (total length 25938) is too long to fit into the model (context length "
        "4096).", 25_938, 4_096,
    ),
    "SGLang": (
        "Input (9000 tokens) is longer than the model's context length (8192 tokens).",
        9_000, 8_192,
    ),
    "TGI": (
        "`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and "
        "100 `max_new_tokens`", 9_000, 8_193,
    ),
    "llama.cpp": (
        "request (5000 tokens) exceeds the available context size (4096 tokens), try "
        "increasing it", 5_000, 4_096,
    ),
    "LM Studio": (
        "The number of tokens to keep from the initial prompt is greater than the context "
        "length.", None, None,
    ),
    "Ollama": ("input length exceeds context length", None, None),
    "a number that is none": (
        "prompt is too long: 99999999999999999 tokens > 8192 maximum", None, 8_192,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("said", "asked", "takes"), SAID.values(), ids=SAID)
def test_the_words_of_many_servers_are_known_and_their_sizes_read(
    said: str, asked: int | None, takes: int | None
) -> None:
    body = {"error": {"message": said, "type": "invalid_request_error", "code": None}}
    for fault in (response_error(400, {}, body), response_error(413, {}, body), stream_error(body)):
        assert (fault.code, fault.retryable) == ("LLM_CONTEXT_OVERFLOW", False)
        assert fault.said == said
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


def anthropic(kind: str, said: str = "no", **more: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": said, **more}, "request_id": "r"}


def gemini(status: str, *details: dict[str, Any], said: str = "no", code: int = 400) -> list[Any]:
    fault = {"code": code, "message": said, "status": status, "details": list(details)}
    return [{"error": fault}]


def openai(code: Any, said: str = "no", **more: Any) -> dict[str, Any]:
    return {"error": {"message": said, "code": code, "type": "invalid_request_error", **more}}


DAILY = {"@type": "QuotaFailure", "violations": [{"quotaId": "RequestsPerDayPerProject"}]}
MINUTE = {"@type": "QuotaFailure", "violations": [{"quotaId": "RequestsPerMinute"}]}
OF_ANTHROPIC = {"anthropic-organization-id": "o"}
HTTP, BUSY, AUTH, QUOTA, SLOW = (
    "LLM_HTTP_ERROR", "LLM_RATE_LIMITED", "LLM_AUTH_FAILED", "LLM_QUOTA_EXCEEDED", "LLM_TIMEOUT",
)  # fmt: skip
ANSWERS: dict[str, tuple[int, Any, str, bool]] = {
    "Anthropic: request": (400, anthropic("invalid_request_error"), HTTP, False),
    "Anthropic: key": (401, anthropic("authentication_error"), AUTH, False),
    "Anthropic: billing": (402, anthropic("billing_error"), QUOTA, False),
    "Anthropic: credit": (400, anthropic("x", "Your credit balance is too low to …"), QUOTA, False),
    "Anthropic: own limit": (
        400, anthropic("x", "You have reached your specified API usage limits."), QUOTA, False,
    ),
    "Anthropic: permission": (403, anthropic("permission_error"), AUTH, False),
    "Anthropic: model": (404, anthropic("not_found_error"), HTTP, False),
    "Anthropic: conflict": (409, anthropic("conflict_error"), HTTP, True),
    "Anthropic: too large": (413, anthropic("request_too_large"), HTTP, False),
    "Anthropic: rate": (429, anthropic("rate_limit_error"), BUSY, True),
    "Anthropic: broken": (500, anthropic("api_error"), HTTP, True),
    "Anthropic: slow": (504, anthropic("timeout_error"), SLOW, True),
    "Anthropic: overloaded": (529, anthropic("overloaded_error"), HTTP, True),
    "Anthropic: stable code": (
        400, anthropic("x", details={"error_code": "context_length_exceeded"}),
        "LLM_CONTEXT_OVERFLOW", False,
    ),
    "Gemini: request": (400, gemini("INVALID_ARGUMENT"), HTTP, False),
    "Gemini: key": (400, gemini("INVALID_ARGUMENT", {"reason": "API_KEY_INVALID"}), AUTH, False),
    "Gemini: location": (400, gemini("FAILED_PRECONDITION"), HTTP, False),
    "Gemini: no key": (401, gemini("UNAUTHENTICATED", code=401), AUTH, False),
    "Gemini: billing": (403, gemini("x", {"reason": "BILLING_DISABLED"}, code=403), QUOTA, False),
    "Gemini: model": (404, gemini("NOT_FOUND", code=404), HTTP, False),
    "Gemini: day": (429, gemini("RESOURCE_EXHAUSTED", DAILY, code=429), QUOTA, False),
    "Gemini: minute": (429, gemini("RESOURCE_EXHAUSTED", MINUTE, code=429), BUSY, True),
    "Gemini: cancelled": (499, gemini("CANCELLED", code=499), HTTP, False),
    "Gemini: broken": (500, gemini("INTERNAL", code=500), HTTP, True),
    "Gemini: overloaded": (503, gemini("UNAVAILABLE", code=503), HTTP, True),
    "Gemini: slow": (504, gemini("DEADLINE_EXCEEDED", code=504), SLOW, True),
    "OpenAI: key": (401, openai("invalid_api_key"), AUTH, False),
    "OpenAI: model": (404, openai("model_not_found"), HTTP, False),
    "OpenAI: rate": (429, openai("rate_limit_exceeded"), BUSY, True),
    "OpenAI: quota": (429, openai("insufficient_quota"), QUOTA, False),
    "OpenAI: spend limit": (429, openai("project_spend_limit_exceeded"), QUOTA, False),
    "OpenAI: broken": (500, openai("server_error"), HTTP, True),
    "Responses: prompt": (400, openai("invalid_prompt"), HTTP, False),
    "Moonshot: quota": (429, openai(None, type="exceeded_current_quota_error"), QUOTA, False),
    "Azure: key": (401, openai("401"), AUTH, False),
    "Azure: rate": (429, openai("429"), BUSY, True),
    "Azure: many": (429, openai(None, type="too_many_requests"), BUSY, True),
    "OpenRouter: credits": (402, openai(402), QUOTA, False),
    "OpenRouter: no provider": (503, openai(503), HTTP, True),
}  # fmt: skip


@pytest.mark.parametrize(("status", "body", "code", "retryable"), ANSWERS.values(), ids=ANSWERS)
def test_each_dialect_has_its_code_with_a_status_and_inside_a_stream(
    status: int, body: Any, code: str, retryable: bool
) -> None:
    fault, inside = response_error(status, {}, body), stream_error(body)
    assert (fault.code, fault.retryable) == (code, retryable)
    if inside.code != "LLM_BAD_RESPONSE":  # Without a status few words tell nothing.
        assert (inside.code, inside.retryable) == (code, retryable)
    assert fault.said == inside.said
    assert fault.said in fault.message


@pytest.mark.parametrize(
    ("status", "body", "code", "retryable", "said"),
    [
        (400, {"error": '"m" does not support tools'}, HTTP, False, '"m" does not support tools'),
        (404, {"error": "model 'x' not found"}, HTTP, False, "model 'x' not found"),
        (503, {"error": "server busy"}, HTTP, True, "server busy"),
        (400, {"detail": "bad\nidea"}, HTTP, False, "bad idea"),
        (422, {"detail": [{"loc": ["body", "n"], "msg": "odd"}]}, HTTP, False, "n: odd"),
        (422, {"message": {"detail": [{"loc": ["n"], "msg": "odd"}]}}, HTTP, False, "n: odd"),
        (400, {"object": "error", "message": "old vLLM", "code": 400}, HTTP, False, "old vLLM"),
        (429, openai(429, metadata={"raw": "m is busy"}), BUSY, True, "no: m is busy"),
        (502, "plain words", HTTP, True, "plain words"),
        (400, {"error": {"message": "key sk-SECRETSECRET"}}, HTTP, False, "key [redacted]"),
    ],
)  # fmt: skip
def test_what_the_server_said_is_one_line_of_the_error(
    status: int, body: Any, code: str, retryable: bool, said: str
) -> None:
    register("sk-SECRETSECRET")
    fault = response_error(status, {}, body)
    assert (fault.code, fault.retryable, fault.said) == (code, retryable, said)


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"response": {"error": {"code": "server_error", "message": "m"}}}, HTTP),
        ({"type": "error", "code": "rate_limit_exceeded", "message": "m", "param": None}, BUSY),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}, HTTP),
        ({"error": {"code": "vector_store_timeout", "message": "m"}}, SLOW),
        ({"error": "m: we are over capacity"}, HTTP),
    ],
)  # fmt: skip
def test_an_error_in_a_stream_may_be_tried_again(event: Any, code: str) -> None:
    fault = stream_error(event)
    assert (fault.code, fault.retryable, fault.said[:1]) == (code, True, "m")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"code": "content_filter", "message": "m", "status": 400}}),
        (400, {"error": {"message": "m", "innererror": {"code": "content_filter"}}}),
        (400, {"error": {"message": "m"}, "content_filters": [{"blocked": True}]}),
        (403, {"error": {"code": 403, "message": "m", "metadata": {"reasons": ["x"]}}}),
        (400, {"error": {"code": "bio_policy", "message": "m"}}),
    ],
)
def test_a_filter_of_the_provider_has_one_word(status: int, body: Any) -> None:
    assert response_error(status, {}, body).details["code"] == "content_filter"


@pytest.mark.parametrize(
    ("headers", "body", "wait_s"),
    [
        ({}, gemini("RESOURCE_EXHAUSTED", {"retryDelay": "14s"}), 14),
        ({"retry-after": "2"}, gemini("RESOURCE_EXHAUSTED", {"retryDelay": "14s"}), 2),
        ({"x-ratelimit-reset": "1741305600000"}, openai(429), 0),
        ({}, openai(429, metadata={"headers": {"X-RateLimit-Reset": "7"}}), 7),
        ({}, openai(429), None),
    ],
)
def test_the_wait_is_read_from_headers_and_body(
    headers: dict[str, str], body: Any, wait_s: float | None
) -> None:
    assert response_error(429, headers, body).retry_after_s == wait_s


def test_a_rate_limit_of_anthropic_without_a_wait_is_a_spend_cap() -> None:
    body = anthropic("rate_limit_error")
    assert response_error(429, OF_ANTHROPIC, body).code == QUOTA
    assert response_error(429, {**OF_ANTHROPIC, "retry-after": "3"}, body).code == BUSY


def test_the_advice_fits_what_was_sent() -> None:
    signin = {"error": "unauthorized", "signin_url": "https://ollama.com/connect"}
    assert response_error(401, {}, signin).message.endswith("Sign in at https://ollama.com/connect")
    assert "None was sent" in response_error(401, {}, openai(401), key_sent=False).message
