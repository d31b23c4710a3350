"""How providers write their errors: status, body → code, and whether another attempt makes sense.

Facts: https://platform.openai.com/docs/guides/error-codes, https://docs.claude.com/en/api/errors,
https://ai.google.dev/gemini-api/docs/troubleshooting, and Ollama's docs/api.md.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
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
    "DashScope: allocation": (429, openai("Throttling.AllocationQuota",
        "Allocated quota exceeded, please increase your quota limit."), BUSY, True),
    "DashScope: rate": (429, openai("Throttling.RateQuota", "Requests rate limit"), BUSY, True),
    "DashScope: own form": (429, {"code": "Throttling", "message": "throttled"}, BUSY, True),
    "DashScope: bill": (400, {"code": "Arrearage", "message": "Access denied."}, QUOTA, False),
    "DashScope: free tier": (
        403, openai("AllocationQuota.FreeTierOnly", "The free tier is exhausted."), QUOTA, False,
    ),
    "a bill named a rate": (
        429, openai("insufficient_quota", type="rate_limit_error"), QUOTA, False),
    "Bedrock: throttled": (400, {"error": {"type": "ThrottlingException", "message":
        "Too many tokens, please wait before trying again."}}, BUSY, True),
    "Z.AI: bill": (429, openai("1113", "Insufficient balance or no resource package. Please "
        "recharge."), QUOTA, False),
    "xAI: bill": (403, {"code": "forbidden", "error": "Your team has used all available credits or "
        "reached its monthly spending limit."}, QUOTA, False),
    "MiniMax: bill": (400, {"base_resp": {"status_code": 1008, "status_msg":
        "insufficient balance"}}, QUOTA, False),
    "Groq: larger than a minute": (429, openai("rate_limit_exceeded", "Request too large for model "
        "`m` on tokens per minute (TPM): Limit 6000, Requested 8042, please reduce your message "
        "size and try again."), BUSY, False),
    "OpenAI: quota without its code": (429, openai(None, "You exceeded your current quota, please "
        "check your plan and billing details."), QUOTA, False),
    "Gemini: quota of a minute": (429, openai(None, "You exceeded your current quota, please check "
        "your plan and billing details. * Quota exceeded for metric: requests, limit: 10. Please "
        "retry in 26s."), BUSY, True),
    "OpenAI: advice about payment": (429, openai(None, "Rate limit reached on requests per min. "
        "Add a payment method to raise your rate limit at /account/billing."), BUSY, True),
    "a balance": (400, openai(None, "Your account balance is insufficient"), QUOTA, False),
    "Doubao: overdue": (403, openai("x", "AccountOverdueError: The account has an overdue balance"),
        QUOTA, False),
    "Gemini: billing in words": (400, openai(None, "This API method requires billing to be "
        "enabled"), QUOTA, False),
    "credits": (403, openai(None, "Credits exhausted"), QUOTA, False),
    "credits, other words": (429, openai(None, "Not enough credits"), QUOTA, False),
    "OpenRouter: a key's limit": (403, openai(403, "Key limit exceeded (all)"), QUOTA, False),
    "LiteLLM: a budget": (429, openai(None, "ExceededBudget: x is over budget. Spent=9"), QUOTA,
        False),
    "LiteLLM: a budget of a key": (400, openai(None, "Budget has been exceeded! Current cost: 10"),
        QUOTA, False),
    "One API: quota": (403, openai(None, "用户额度不足, 剩余额度: $0.000000"), QUOTA, False),
    "a period without 429": (403, openai(None, "You reached your monthly limit"), QUOTA, False),
    "Bedrock: throttled, in words": (400, openai(None, "ThrottlingException: Rate exceeded"), BUSY,
        True),
    "AWS: throttled, its own name": (400, {"__type": "ThrottlingException", "message": "no"}, BUSY,
        True),
    "a rate behind a gateway": (500, openai(None, "Client error '429 Too Many Requests'"), BUSY,
        True),
    "a key in words": (400, openai(None, "Incorrect API key provided: x"), AUTH, False),
    "a key of a place": (403, openai(None, "Country or territory not supported"), HTTP, False),
    "Gemini: a place": (
        400, gemini("FAILED_PRECONDITION", said="User location is not supported for the API use."),
        HTTP, False),
    "gone": (410, openai("model_retired", "The model m has been deprecated."), HTTP, False),
    "Cloudflare": (400, {"errors": [{"code": 5007, "message": "No such model"}]}, HTTP, False),
    "Ollama: cloud": (502, {"error": "upstream error"}, HTTP, True),
}  # fmt: skip
WITHOUT_STATUS = {
    "Anthropic: conflict", "Anthropic: too large",
    *(name for name in ANSWERS if name.startswith("Ollama")),
}  # fmt: skip
"""Inside a stream these say nothing: only their status does."""


def rate(said: str, **more: Any) -> dict[str, Any]:
    return openai("rate_limit_exceeded", said, **more)


def _in_s(seconds: float) -> str:
    return str(int((time.time() + seconds) * 1000))


def _iso(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _left(
    kind: str, remaining: str, reset: str, form: str = "x-ratelimit-{1}-{0}"
) -> dict[str, str]:
    return {form.format(kind, "remaining"): remaining, form.format(kind, "reset"): reset}


_ANTHROPIC = "anthropic-ratelimit-{0}-{1}"
_RETRY_INFO = {"error": {"code": 429, "message": "no", "status": "RESOURCE_EXHAUSTED", "details": [
    {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}]}}  # fmt: skip


def waits() -> dict[str, tuple[dict[str, str], Any, tuple[float, float] | None]]:
    """Headers and body of a 429: between which seconds it asks to wait; None if it does not say.

    Made anew for each test, because some rows hold a moment.
    """
    return {
        "OpenAI, ms": ({}, rate("… Please try again in 579ms. Visit …"), (0.579, 0.579)),
        "OpenAI, s": ({}, rate("Please try again in 3.2s."), (3.2, 3.2)),
        "OpenAI, m": ({}, rate("Please try again in 1m12.5s."), (72.5, 72.5)),
        "Groq": ({}, rate("Please try again in 50.597142857s. Visit"), (50.5, 50.6)),
        "Groq, 1m0.36s": ({}, rate("Please try again in 1m0.363142857s."), (60.3, 60.4)),
        "Azure": ({}, rate("Please retry after 45 seconds."), (45, 45)),
        "Azure, shorter": ({}, rate("Rate limit is exceeded. Try again in 50 seconds."), (50, 50)),
        "GitHub": ({}, rate("Please wait 20 seconds before retrying."), (20, 20)),
        "minutes": ({}, rate("Please try again in 6 minutes."), (360, 360)),
        "a minute and seconds": ({}, rate("Retry in 1 minute, 30 seconds"), (90, 90)),
        "hours": ({}, rate("Your limit resets in 2h30m"), (9_000, 9_000)),
        "a moment": ({}, rate(f"Try again at {_iso(900)}"), (800, 900)),
        "Gemini, in words": ({}, rate("… Please retry in 26.638054576s."), (26.6, 26.7)),
        "Gemini's body in a text": ({}, {"error": {"message": json.dumps(_RETRY_INFO, indent=2),
            "code": 429, "status": "Too Many Requests"}}, (34, 34)),
        "Gemini behind LiteLLM": ({}, {"error": {"message": "litellm.RateLimitError: "
            f"vertexException - {json.dumps(_RETRY_INFO).encode()!r}", "code": "429"}}, (34, 34)),
        "OpenRouter": ({}, openai(429, metadata={"headers": {"X-RateLimit-Remaining": "0",
            "X-RateLimit-Reset": _in_s(40)}}), (10, 40)),
        "OpenRouter, an hour": ({}, openai(429, metadata={"headers": {"X-RateLimit-Reset":
            _in_s(3_600)}}), (3_000, 3_600)),
        "OpenRouter, Retry-After": (
            {}, openai(429, metadata={"headers": {"Retry-After": "7"}}), (7, 7)),
        "OpenRouter, raw": ({}, openai(429, metadata={"raw": json.dumps(_RETRY_INFO)}), (34, 34)),
        "retry-after-ms": ({"retry-after-ms": "250", "retry-after": "9"}, rate("no"), (0.25, 0.25)),
        "the header counts more": ({"retry-after": "2"}, rate("Please try again in 30s"), (2, 2)),
        "tokens": ({"x-ratelimit-reset-tokens": "3s"}, rate("no"), (3, 3)),
        "requests": ({"x-ratelimit-reset-requests": "1m3s"}, rate("no"), (63, 63)),
        "tokens are exceeded": (
            {**_left("tokens", "0", "3s"), **_left("requests", "99", "1m3s")}, rate("no"), (3, 3)),
        "requests are exceeded": (
            {**_left("tokens", "9", "3s"), **_left("requests", "0", "20s")}, rate("no"), (20, 20)),
        "nothing is exceeded": (_left("tokens", "900", "3s"), rate("no"), None),
        "Cerebras": (
            {**_left("tokens-minute", "0", "12.5"), **_left("requests-day", "9", "33000")},
            rate("no"), (12.5, 12.5)),
        "Cerebras, a day": (_left("requests-day", "0", "33000"), rate("no"), (33_000, 33_000)),
        "Mistral": ({"ratelimitbysize-reset": "21"}, rate("no"), (21, 21)),
        "a header's name in words": ({}, rate("Retry after: 17"), (17, 17)),
        "tries are no wait": ({}, rate("Retry after 3 attempts failed"), None),
        "a year is no wait": ({}, rate("Retry after 2031-01-01"), None),
        "allowed again": ({}, rate("Slow down. Requests allowed again in 8s"), (8, 8)),
        "come back": ({}, rate("Please come back in 15 seconds"), (15, 15)),
        "a cooldown": ({}, rate("cooldown: 9s remaining"), (9, 9)),
        "limited for": ({}, rate("You are rate limited for 30 seconds"), (30, 30)),
        "limited to": ({}, rate("You are limited to 20 requests in 60 seconds"), None),
        "in Japanese": ({}, rate("30秒後に再試行してください"), (30, 30)),
        "ms in a field": ({}, rate("no", retry_after_ms=1500), (1.5, 1.5)),
        "a field beside the error": ({}, {**rate("no"), "retry_after": 7}, (7, 7)),
        "a field of the details": ({}, rate("no", details={"retry_after": 7}), (7, 7)),
        "X-Retry-After": ({"x-retry-after": "5"}, rate("no"), (5, 5)),
        "X-Rate-Limit": (
            {"x-rate-limit-reset": "12", "x-rate-limit-remaining": "0"}, rate("no"), (12, 12)),
        "IETF, newer": ({"ratelimit": '"default";r=0;t=12'}, rate("no"), (12, 12)),
        "IETF, some are left": ({"ratelimit": '"default";r=5;t=12'}, rate("no"), None),
        "IETF": ({"ratelimit-remaining": "0", "ratelimit-reset": "5"}, rate("no"), (5, 5)),
        "in Chinese": ({}, rate("请求过于频繁，请 20 秒后重试"), (20, 20)),
        "Anthropic": (_left("requests", "0", _iso(50), _ANTHROPIC), anthropic("rate_limit_error"),
            (1, 50)),
        "Anthropic, input tokens": (_left("input-tokens", "0", _iso(50), _ANTHROPIC),
            anthropic("rate_limit_error"), (1, 50)),
        "a field": ({}, {"error": {"message": "no", "retry_after": 12}}, (12, 12)),
        "a field of ChatGPT": ({}, {"error": {"message": "no", "resets_in_seconds": 754}},
            (754, 754)),
        "a loading model": ({}, {"error": "Model m is currently loading", "estimated_time": 20.5},
            (20.5, 20.5)),
        "27 hours": ({}, rate("It will reset after 27h41m36s"), (99_696, 99_696)),
        "a window is no wait": ({}, rate("Limit: 20 requests in 60 seconds."), None),
        "no number": ({}, rate("Please wait before trying again."), None),
        "months": ({}, rate("Try again in 2 months"), None),
        "another reset": ({"x-ratelimit-reset-tokens": "soon"}, rate("no"), None),
    }  # fmt: skip


LONG_LIMITS: list[tuple[Any, str]] = [
    ("Rate limit reached for `m` on tokens per day (TPD): Limit 100000, Used 97050, Requested "
        "3619. "
        "Please try again in 9m38.016s.", "daily"),
    ("Rate limit reached on requests per day (RPD): Limit 200, Used 200", "daily"),
    ("Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000", "daily"),
    (openai(429, metadata={"limit_source": "openrouter_free_tier_daily"}), "daily"),
    ("You have exhausted your daily quota on this model.", "daily"),
    ("Daily limit reached (the limits are 10 requests per minute and 200 per day)", "daily"),
    ("Weekly/Monthly Limit Exhausted. Your limit will reset at 2026-01-03 16:30:49", "weekly"),
    ("You have reached your weekly usage limit", "weekly"),
    ("monthly limit of 1000 calls / month for trial keys", "monthly"),
    (gemini("RESOURCE_EXHAUSTED", *DAILY, code=429)[0], "daily"),
    ("You have used all requests for today", "daily"),
    ("Limit of 100 requests per 24 hours reached", "daily"),
    ("No requests are left. Try again tomorrow.", "daily"),
    ("You have reached your limit of this month", "monthly"),
    ("You exceeded your 24-hour quota", "daily"),
    ("Requests per 1 day exceeded", "daily"),
    ("You've used up your messages for the day", "daily"),
    ("exceeded 200 requests/24h", "daily"),
    ("今日请求次数已达上限", "daily"),
    ("7-day limit reached", "weekly"),
    ("每周限额已用尽", "weekly"),
    ("requests per 30 days exceeded", "monthly"),
    ("limit of 5 hours reached, 7-day limit at 20%", ""),
    ("Too many requests. Have a nice day!", ""),
    ("today's load is high, try again in 5s", ""),
    ("Rate limit exceeded: free-models-per-min.", ""),
    ("Rate limit reached on requests per minute (RPM): Limit 10. Your plan has 200 per day.", ""),
    ("Upgrade to Dev Tier today", ""),
    ("Rate limit exceeded. Pro has more for $20 per month, or $5/day", ""),
    ("Please try again another day", ""),
    (gemini("RESOURCE_EXHAUSTED", MINUTE, code=429)[0], ""),
]  # fmt: skip
"""Words of a 429, and the period whose limit is reached; '' for a minute or an hour."""

_TOO_LONG = (
    "The input token count (1066750) exceeds the maximum number of tokens allowed (1048575)."
)
_GEMINI = {"error": {"code": 400, "message": _TOO_LONG, "status": "INVALID_ARGUMENT"}}
_OPENAI = openai("model_not_found", "no such model")
_OVER, _TEXT = "LLM_CONTEXT_OVERFLOW", '{"a": 1} is not a valid argument'
INNER_ERRORS: dict[str, tuple[int, Any, str, str]] = {
    "JSON": (400, {"error": {"message": json.dumps(_GEMINI, indent=2)}}, _OVER, _TOO_LONG),
    "JSON in a list": (400, {"error": {"message": json.dumps([_GEMINI])}}, _OVER, _TOO_LONG),
    "LiteLLM": (400, {"error": {"message": "litellm.BadRequestError: OpenAIException - "
        f"{json.dumps(_OPENAI)}. Received Model Group=m"}}, HTTP, "no such model"),
    "LiteLLM, bytes": (400, {"error": "litellm.BadRequestError: VertexAIException "
        "BadRequestError - "
        f"{json.dumps(_GEMINI, indent=1).encode()!r}"}, _OVER, _TOO_LONG),
    "Python's form": (400, {"error": {"message": f"Error code: 404 - {_OPENAI!r}"}}, HTTP,
        "no such model"),
    "two gateways": (400, {"error": {"message": "a: " + json.dumps({"error": {"message":
        f"b: {json.dumps(_GEMINI)}"}})}}, _OVER, _TOO_LONG),
    "OpenRouter": (400, openai(400, "Provider returned error", metadata={"raw":
        json.dumps(_GEMINI)}), _OVER, f"Provider returned error: {_TOO_LONG}"),
    "OpenRouter, words": (400, openai(400, "Provider returned error", metadata={"raw": "odd"}),
        HTTP, "Provider returned error: odd"),
    "an object": (400, {"error": {"message": {"error": {"message": "inner"}}}}, HTTP, "inner"),
    "the status inside": (500, {"error": {"message": json.dumps(
        {"error": {"code": 429, "message": "slow down"}})}}, BUSY, "slow down"),
    "Vercel": (400, {"error": {"message": "Stream error occurred", "value": {"error_message":
        json.dumps(_GEMINI)}, "cause": {"name": "ZodError"}}}, _OVER, _TOO_LONG),
    "OmniRoute": (400, {"error": {"message": "Provider returned error"}, "upstream_details":
        _GEMINI}, _OVER, _TOO_LONG),
    "an event in a text": (400, openai(400, "Provider returned error", metadata={"raw":
        f"data: {json.dumps(_OPENAI)}"}), HTTP, "Provider returned error: no such model"),
    "FastAPI": (400, {"detail": {"error": {"message": "inner"}}}, HTTP, "inner"),
    "FastAPI's list as Python prints it": (400, {"error": {"message": "[{'type': 'missing', 'loc': "
        "('body', 'n'), 'msg': 'Field required'}]"}}, HTTP, "n: Field required"),
    "Spring": (400, {"status": 400, "error": "Bad Request", "message": "odd"}, HTTP,
        "Bad Request: odd"),
    "Nest": (400, {"error": "Bad Request", "message": ["a is odd", "b too"]}, HTTP,
        "Bad Request: a is odd; b too"),
    "OAuth": (401, {"error": "invalid_token", "error_description": "expired"}, AUTH,
        "invalid_token: expired"),
    "no error": (400, {"error": {"message": _TEXT}}, HTTP, _TEXT),
    "a quoted message": (400, {"error": {"message": 'bad: {"message": "hi"}'}}, HTTP,
        'bad: {"message": "hi"}'),
    "cut": (400, {"error": {"message": 'x: {"error": {"message": "in'}}, HTTP,
        'x: {"error": {"message": "in'),
}  # fmt: skip
"""A status and a body with an error inside: the code, and the words that a person reads."""
