"""Turn a server's error answer into a ModelError: code by status and error body, for every wire.

Decides whether a retry makes sense; `rate_limits` decides when. One reader for all servers, because
gateways pass on the error bodies of the servers behind them:
OpenAI `{"error": {"message", "type", "param", "code"}}` (`error` may also be a text or a list),
Anthropic `{"type": "error", "error": {"type", "message", "details": {"error_code"}}}`, Gemini
`{"error": {"code": 400, "message", "status", "details": […]}}` or the same in a list, Ollama
`{"error": "text"}`, FastAPI `{"detail": …}`, OpenRouter `{"error": {"code": int, "message",
"metadata"}}`. Facts: documentation and clients of the providers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ModelCode, ModelError
from nbagent.providers.answer.json_fields import objects_in
from nbagent.providers.rate_limits import MAX_WAIT_S, parse_reset_s, retry_after_s
from nbagent.providers.transport.sse import safe_line

# And all from 500 on. The SDKs of OpenAI and Anthropic retry 409, too; 498 is Groq's "no capacity".
_RETRYABLE_STATUSES = frozenset({408, 409, 429, 498})
_KINDS_BY_STATUS = {
    400: ("invalid_prompt", "invalid_argument", "failed_precondition", "invalid_request_error"),
    401: ("invalid_api_key", "authentication_error", "unauthenticated"),
    403: ("permission_error", "permission_denied"),
    404: ("model_not_found", "not_found_error", "not_found"),
    408: ("timeout", "timeout_error"),
    429: ("rate_limit_exceeded", "rate_limit_error", "too_many_requests", "resource_exhausted"),
    500: ("server_error", "internal_server_error", "api_error", "internal"),
    503: ("service_unavailable", "unavailable"),
    504: ("deadline_exceeded",),
    529: ("overloaded_error",),
}
_STATUS_BY_KIND = {kind: status for status, kinds in _KINDS_BY_STATUS.items() for kind in kinds}
"""Status of an error object inside a 200 answer, by its code, type or status word."""
_QUOTA_KIND = re.compile(r"quota|billing|credit_balance|(?:spend|usage)_limit")
# A 429 can be a rate limit (wait) or a used-up quota (waiting is useless): OpenAI says
# `insufficient_quota` or `billing_hard_limit_reached`, Moonshot `exceeded_current_quota_error`,
# Anthropic answers 400 "credit balance is too low".
_QUOTA_TEXT = re.compile(
    r"credit balance is too low|spend limit|specified API usage limits|BILLING_DISABLED"
    # Gemini's daily quota: a QuotaFailure with a quotaId that contains PerDay.
    r"|\A(?=.*QuotaFailure).*PerDay",
    re.I | re.S,
)
_MODERATED_KIND = re.compile(r"content_filter|policy", re.I)
"""Error kinds of a provider's filter for prompts or answers; it ends the turn."""
# Not even if the server sends `x-should-retry: true`.
_NEVER_RETRIED = ("LLM_AUTH_FAILED", "LLM_QUOTA_EXCEEDED", "LLM_CONTEXT_OVERFLOW")
_BUSY_TEXT = re.compile(r"overloaded|over capacity", re.I)
_OVERFLOW_TEXT = re.compile(
    r"context_length_exceeded|exceed_context_size_error|tokens_limit_reached"
    r"|maximum (?:context|prompt|model) length|reduce the length of the (?:messages|prompt)"
    r"|(?:prompt|input) is too long|too long to fit into the model"
    r"|input token count.{0,40}exceeds|number of tokens allowed"
    r"|input tokens exceed|exceeded model token limit|too many tokens: total number"
    r"|exceeds? (?:the )?(?:available |model'?s )?context (?:size|window|limit|length)"
    r"|context (?:length|window|size) (?:has been )?exceed|too large for model with"
    r"|(?:longer|greater) than the (?:model'?s )?context length|tokens \+ `max_new_tokens`",
    re.I | re.S,
)
"""Wordings of OpenAI, Azure, Anthropic, Gemini, Mistral, xAI, Cohere, Moonshot, Bedrock,
OpenRouter, vLLM, SGLang, TGI, llama.cpp, LM Studio and Ollama, from their documentation and
issues. Only the
text tells an overflow: most of them send 400 without a code for it."""
_NUMBER = r"\(?(\d[\d,]{0,10})(?!\d)"
_PROMPT_TOKENS = re.compile(
    rf"{_NUMBER} (?:of text input|in (?:the|your) (?:messages|prompt))", re.I
)
_ASKED_TOKENS = re.compile(
    r"(?:resulted in|requested:?(?: about)?|too long:|token count(?: of)?|request has"
    r"|(?:request|prompt) contains|request|input|given:|received|total length|context limit:)"
    rf"\s*{_NUMBER}",
    re.I,
)
_CONTEXT_TOKENS = re.compile(
    r"(?:maximum (?:context|prompt|model) length (?:is|of)(?: only)?|>|tokens allowed|context size"
    r"|model with|configured limit of|token limit:|must be <=|cannot exceed|max size:"
    rf"|context length(?: is only| of)?)\s*{_NUMBER}",
    re.I,
)
_SIZES = (
    ("request_tokens", "n_prompt_tokens", (_PROMPT_TOKENS, _ASKED_TOKENS)),
    ("context_tokens", "n_ctx", (_CONTEXT_TOKENS,)),
)
_UNKNOWN_NAME = re.compile(r'Unknown name "(\w+)"(?: at \'([\w.]+)\')?')
"""Gemini's words for a field that it does not know."""
_REQUEST_ID_HEADERS = ("x-request-id", "request-id", "x-generation-id", "apim-request-id")
_MESSAGES: dict[ModelCode, tuple[tuple[int | None, ...], str, str]] = {
    "LLM_AUTH_FAILED": ((401, 403), "the provider refused the key", "Check the key."),
    "LLM_TIMEOUT": ((408, 504), "the provider gave up waiting", "Try again."),
    "LLM_RATE_LIMITED": ((429,), "too many requests for the provider", "Try again later."),
    "LLM_QUOTA_EXCEEDED": (
        (402,),
        "the account's quota or credit is used up",
        "Look at the account's billing, or choose another model.",
    ),
    "LLM_CONTEXT_OVERFLOW": (
        (),
        "the conversation is too long for the model",
        "Shorten the conversation, or choose a model that takes more.",
    ),
    "LLM_BAD_RESPONSE": ((None,), "the provider reported an error", "Try again."),
    "LLM_HTTP_ERROR": ((), "the provider refused the request", "Correct the request."),
}
"""By error code: statuses that mean it unless the body says more, what happened, what to do."""


def response_error(
    status: int | None,
    headers: Mapping[str, str],
    body: Any,
    *,
    url: str = "",
    text: str = "",
    key_sent: bool = True,
) -> ModelError:
    """Build the error of a response whose status is not 2xx.

    Args:
        headers: names in lower case.
        body: decoded JSON, or None.
        text: the body as text; shown if it is not JSON.
        key_sent: False if the request carried no key, which changes the advice.
    """
    fault = error_fields(body)
    if not fault.get("message"):
        page = text.lstrip().startswith("<")
        fault["message"] = "the server answered with a web page" if page else text
    wait_s = _wait_s(status, fault, headers)
    # Anthropic sends retry-after with each rate limit, and none when the monthly spend limit is
    # reached.
    is_spend_cap = wait_s is None and any(name.startswith("anthropic-") for name in headers)
    code = _error_code(402 if status == 429 and is_spend_cap else status, fault)
    forced = headers.get("x-should-retry", "").lower()
    is_server_error = status is not None and status >= 500
    is_temporary = (
        is_server_error
        or status in _RETRYABLE_STATUSES
        or bool(_BUSY_TEXT.search(_all_text(fault)))
    )
    retryable = code not in _NEVER_RETRIED and (
        forced == "true" or (is_temporary and forced != "false")
    )
    _, headline, advice = _MESSAGES[code]
    if code == "LLM_AUTH_FAILED" and not key_sent:
        headline = "the provider requires a key"
        advice = "None was sent: set LLM_API_KEY, or the provider's own variable,"
        advice += " before the kernel starts."
    elif code == "LLM_HTTP_ERROR" and is_server_error:
        headline, advice = "the provider failed", "Try again later."
    elif status == 404 and url:
        advice = f"The request went to {url}; check the model's name and the base URL."
    if signin_url := fault.get("signin_url"):
        advice = (
            f"Sign in at {safe_line(_text(signin_url))}"  # Ollama sends this for its cloud models.
        )
    server_text = _text(fault.get("message") or fault.get("type") or fault.get("code") or "")
    raw = (json_object(fault.get("metadata")) or {}).get("raw")
    # OpenRouter says only "Provider returned error"; metadata.raw holds the provider's own text.
    server_text = safe_line(
        f"{server_text}: {raw}" if isinstance(raw, str) and raw else server_text
    )
    message = (
        f"{headline} (HTTP {status})" if status else f"{headline} (error object in the answer)"
    )
    message += f": {server_text}" if server_text else ""
    message += "" if message.endswith((".", "!", "?", "…")) else "."
    if wait_s is not None and wait_s > MAX_WAIT_S:
        wait_text = f"{wait_s:,.0f} s" if wait_s < math.inf else "without end"
        message += f" It asks to wait {wait_text}; nbagent waits at most {MAX_WAIT_S:g} s."
    return ModelError(
        f"{message} {advice}",
        code=code,
        details=_details(status, fault, code),
        status=status,
        retry_after_s=wait_s,
        request_id=request_id_of(headers),
        retryable=retryable,
        server_text=server_text,
    )


def stream_error(body: Any) -> ModelError:
    """Build the error of an error object inside a 200 body or a stream."""
    fault = error_fields(body)
    status = None
    for word in _error_kinds(fault):
        # A number in `code` is the status (OpenRouter, Gemini, vLLM; Azure writes it as text).
        number = int(word) if re.fullmatch(r"[45]\d\d", word) else None
        status = status or number or _STATUS_BY_KIND.get(word)
    if status in (None, 400) and _BUSY_TEXT.search(_all_text(fault)):
        status = 529
    return response_error(status, {}, body)


def error_fields(body: Any) -> dict[str, Any]:
    """Fields of an error body of any server: `message`, `type`, `code`, `param` and its own."""
    body = next(iter(objects_in(body)), body)  # Gemini may put it into a list.
    outer = json_object(body)
    if outer is None:
        return {"message": body} if isinstance(body, str) else {}
    # Responses: the event `response.failed` holds it one level deeper.
    error = outer.get("error") or (json_object(outer.get("response")) or {}).get("error")
    if isinstance(error, str):
        return {**outer, "message": error}  # Ollama, sometimes with `signin_url`.
    fault = {"content_filters": outer.get("content_filters"), **(json_object(error) or outer)}
    holder = (
        json_object(fault.get("message")) or fault
    )  # Mistral puts FastAPI's form into `message`.
    if holder.get("detail") is not None:
        fault.update(_fastapi_fields(holder["detail"]))
        # RFC 9457, as Go's huma writes it: a general `detail`, and `errors` that name the fields.
        named = [e for e in objects_in(holder.get("errors")) if e.get("location")]
        if named:
            texts = [f"{_text(e['location'])}: {_text(e.get('message'))}" for e in named]
            fault["message"] = "; ".join(texts)
    if not fault.get("param") and (match := _UNKNOWN_NAME.search(_text(fault.get("message")))):
        fault["param"] = f"{match[2]}.{match[1]}" if match[2] else match[1]
    return fault


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """The provider's id of this request; its support asks for it."""
    request_id = next(filter(None, map(headers.get, _REQUEST_ID_HEADERS)), None)
    return safe_line(request_id, 200) if request_id else None


def _fastapi_fields(detail: Any) -> dict[str, Any]:
    """Read FastAPI's `detail`: a text, or a list that names each refused field."""
    named = {
        ".".join(map(_text, item["loc"])).removeprefix("body."): item
        for item in objects_in(detail)
        if isinstance(item.get("loc"), list)
    }
    if not named:
        return {"message": _text(detail)}
    messages = [f"{path}: {_text(item.get('msg'))}" for path, item in named.items()]
    # First a field that is forbidden as such: the next attempt can leave it out.
    first = min(named, key=lambda path: named[path].get("type") != "extra_forbidden")
    return {"message": "; ".join(messages), "param": first, "code": _text(named[first].get("type"))}


def _error_code(status: int | None, fault: dict[str, Any]) -> ModelCode:
    """Error code; the text of the body counts more than the status."""
    text = _all_text(fault)
    if _OVERFLOW_TEXT.search(text):
        return "LLM_CONTEXT_OVERFLOW"
    if any(map(_QUOTA_KIND.search, _error_kinds(fault))) or _QUOTA_TEXT.search(text):
        return "LLM_QUOTA_EXCEEDED"
    if "API_KEY_INVALID" in text:
        return "LLM_AUTH_FAILED"
    for code, (statuses, *_) in _MESSAGES.items():
        if status in statuses:
            return code
    return "LLM_HTTP_ERROR"


def _is_moderated(status: int | None, fault: dict[str, Any]) -> bool:
    inner = json_object(fault.get("innererror")) or {}  # Azure's.
    metadata = json_object(fault.get("metadata")) or {}  # OpenRouter's.
    return (
        any(_MODERATED_KIND.search(kind) for kind in _error_kinds(fault) + _error_kinds(inner))
        or (status == 403 and bool(metadata.get("reasons") or metadata.get("flagged_input")))
        or (status == 400 and bool(fault.get("content_filters")))
    )


def _wait_s(status: int | None, fault: dict[str, Any], headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait, from its headers or the body."""
    if (wait_s := retry_after_s(headers)) is not None:
        return wait_s
    for item in objects_in(fault.get("details")):
        if delay := item.get("retryDelay"):
            return parse_reset_s(_text(delay))  # Gemini sends no header; RetryInfo has "14s".
    # OpenRouter sends the end of its window as unix time in milliseconds.
    return parse_reset_s(headers.get("x-ratelimit-reset", "")) if status == 429 else None


def _details(status: int | None, fault: dict[str, Any], code: ModelCode) -> dict[str, Any]:
    details: dict[str, Any] = {
        key: safe_line(_text(fault[key]), 200)
        for key in ("type", "code", "param", "status")
        if fault.get(key) is not None
    }
    if status:
        details["http_status"] = str(status)
    if _is_moderated(status, fault):
        details["code"] = "content_filter"
    text = _text(fault.get("message") or "")
    for name, field, patterns in _SIZES if code == "LLM_CONTEXT_OVERFLOW" else ():
        match = next(filter(None, (pattern.search(text) for pattern in patterns)), None)
        if isinstance(fault.get(field), int):
            details[name] = fault[field]
        elif match:
            details[name] = int(match[1].replace(",", ""))
    return details


def _error_kinds(fault: dict[str, Any]) -> list[str]:
    """Names that the body gives its error, the most exact one first."""
    details = json_object(fault.get("details")) or {}  # Anthropic's stable code is there.
    kinds = [details.get("error_code"), *(fault.get(key) for key in ("code", "type", "status"))]
    return [_text(kind).lower() for kind in kinds if kind]


def _all_text(fault: dict[str, Any]) -> str:
    keys = ("message", "type", "code", "details", "metadata")
    return " ".join(_text(fault.get(key) or "") for key in keys)


def _text(value: Any) -> str:
    """Any JSON value as text; `…` if it is nested too deeply."""
    try:
        return value if isinstance(value, str) else str(value)
    except (RecursionError, ValueError):
        return "…"
