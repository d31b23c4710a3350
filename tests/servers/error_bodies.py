"""How providers write their errors: status, body → code, and whether another attempt makes sense.

Facts: https://platform.openai.com/docs/guides/error-codes, https://docs.claude.com/en/api/errors,
https://ai.google.dev/gemini-api/docs/troubleshooting, and Ollama's docs/api.md.
"""

from __future__ import annotations

from typing import Any


def anthropic(kind: str, said: str = "no", **more: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": said, **more}, "request_id": "r"}


def gemini(status: str, *details: dict[str, Any], said: str = "no", code: int = 400) -> list[Any]:
    fault = {"code": code, "message": said, "status": status, "details": list(details)}
    return [{"error": fault}]


def openai(code: Any, said: str = "no", **more: Any) -> dict[str, Any]:
    return {"error": {"message": said, "code": code, "type": "invalid_request_error", **more}}


DAILY = (
    {"@type": "QuotaFailure", "violations": [{"quotaId": "RequestsPerDayPerProject"}]},
    {"@type": "RetryInfo", "retryDelay": "0s"},
)
MINUTE = {"@type": "QuotaFailure", "violations": [{"quotaId": "RequestsPerMinute"}]}
HTTP, BUSY, AUTH, QUOTA, SLOW = (
    "LLM_HTTP_ERROR", "LLM_RATE_LIMITED", "LLM_AUTH_FAILED", "LLM_QUOTA_EXCEEDED", "LLM_TIMEOUT",
)  # fmt: skip
ANSWERS: dict[str, tuple[int, Any, str, bool]] = {
    "Anthropic: key": (401, anthropic("authentication_error"), AUTH, False),
    "Anthropic: billing": (402, anthropic("billing_error"), QUOTA, False),
    "Anthropic: credit": (400, anthropic("x", "Your credit balance is too low to …"), QUOTA, False),
    "Anthropic: own limit": (400, anthropic("x", "… specified API usage limits."), QUOTA, False),
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
    "Gemini: day": (429, gemini("RESOURCE_EXHAUSTED", *DAILY, code=429), QUOTA, False),
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
    "Azure: many": (429, openai(None, type="too_many_requests"), BUSY, True),
    "OpenRouter: credits": (402, openai(402), QUOTA, False),
    "Azure: no deployment": (404, openai("DeploymentNotFound"), HTTP, False),
    "Ollama: model": (404, {"error": "model 'm' not found"}, HTTP, False),
    "Ollama: sign in": (401, {"error": "no", "signin_url": "https://ollama.com"}, AUTH, False),
    "Ollama: cloud": (502, {"error": "upstream error"}, HTTP, True),
}  # fmt: skip
WITHOUT_STATUS = {
    "Anthropic: conflict", "Anthropic: too large",
    *(name for name in ANSWERS if name.startswith("Ollama")),
}  # fmt: skip
"""Inside a stream these say nothing: only their status does."""
