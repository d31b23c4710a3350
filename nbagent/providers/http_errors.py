"""Turn a server's error answer into a ModelError: code by status and error body, for every wire.

Decides whether a retry makes sense; `rate_limits` decides when. `error_body` reads the fields,
`context_overflow` the words of a request that is too long, `wait_times` the wait.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ModelCode, ModelError, ModelErrorKind
from nbagent.providers.context_overflow import (
    is_answer_too_long,
    is_context_overflow,
    overflow_details,
)
from nbagent.providers.error_body import INNER_STATUS, as_text, error_fields, is_http_error
from nbagent.providers.rate_limits import MAX_WAIT_S
from nbagent.providers.transport.sse import safe_line
from nbagent.providers.wait_times import requested_wait_s, wait_in_words

# And all from 500 on. The SDKs of OpenAI and Anthropic retry 409, too; 498 is Groq's "no capacity".
_RETRYABLE_STATUSES = frozenset({408, 409, 429, 498})
_GATEWAY_STATUSES = frozenset({None, 400, 500, 502, 503})
"""Statuses of a gateway for any error of the server behind it."""
_WEB_PAGE = re.compile(r"<(?:!doctype html|html|head|body)\b", re.I)
_PAGE_WORDS = "the server answered with a web page"
_TAG = re.compile(r"<[^<>]{0,300}>")
"""In XML, in which AWS writes some errors."""
_MAX_WORDS_CHARS = 4_000
_LONG_PERIODS = {"Day": "daily", "Week": "weekly", "Month": "monthly"}
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
_QUOTA_KIND = re.compile(
    r"quota|billing|credit_balance|insufficient_balance|(?:spend|usage)_limit|arrearage"
)
# A 429 can be a rate limit (wait) or a used-up quota (waiting is useless): OpenAI says
# `insufficient_quota` or `billing_hard_limit_reached`, Moonshot `exceeded_current_quota_error`,
# Anthropic answers 400 "credit balance is too low", DashScope 400 `Arrearage`, xAI 403.
_QUOTA_TEXT = re.compile(
    r"credit balance is too low|spend(?:ing)? limit|specified (?:\w+ )?API usage limits"
    r"|insufficient (?:account )?(?:balance|credits?|funds)|used all available credits|recharge"
    r"|(?:more|out of|no|not enough) credits|only afford|non-?payment|AccountOverdue"
    r"|overdue (?:balance|payment|bill)|(?:account|balance|payment) (?:is )?overdue"
    r"|(?:balance|credits?|funds|trial|tier) (?:is |are |has been |have been )?(?:insufficient"
    r"|exhausted|depleted|used up|not enough)|depleted your|quota is not enough"
    # Gemini says the same of a limit per minute, and goes on with its metric.
    r"|exceeded your current quota(?!.{0,500}(?:metric|retry in))|no payment method"
    r"|billing (?:(?:is|must|to|be|has|been|not) ){1,3}(?:enabled|disabled|active)|BILLING_DISABLED"
    r"|account is not active|(?:over |Exceeded)budget|\bbudget has been exceeded"
    r"|key limit exceeded|monthly included|余额不足|欠费|额度(?:不足|失败|已用)"
    # A limit of some hours of a subscription.
    r"|usage limit (?:has been |was )?(?:reached|exceeded)"
    r"|(?:hit|reached|exceeded) your usage limit",
    re.I | re.S,
)
_THROTTLED_KIND = re.compile(r"^throttl|^limit_|^rate_?(?:limit|quota)")
"""DashScope's `Throttling.AllocationQuota` and Bedrock's `ThrottlingException` are rates."""
_THROTTLED_TEXT = re.compile(
    r"Throttling(?:Exception|\.)|TooManyRequests|RateLimitError|too many requests"
    r"|\brate[ -]limit(?:ed|s|ing)?\b"
    # Gemini's limit of a minute; its limit of a day is told apart before.
    r"|exceeded your current quota.{0,500}(?:metric|retry in)",
    re.I | re.S,
)
"""The same as texts, as gateways pass them on with a status of their own."""
_BAD_KEY = re.compile(
    r"API_KEY_INVALID|(?:invalid|incorrect|wrong) (?:x-)?api[ _-]?key|api[ _-]?key (?:is )?(?:not"
    r" valid|invalid|incorrect)",
    re.I,
)
_PERIOD = re.compile(
    r"(?P<minute>per[ _-]?(?:min|sec|hour)|/ ?(?:min|sec|hour)|hourly|\bRP[MSH]\b|\bTP[MSH]\b"
    r"|每(?:分钟|秒|小时)|(?<![\d.])[1-9][ -]?hours?\b)"
    r"|(?P<daily>(?<![a-z])daily|(?:per|a|each|every|this|\b1)[ _-]day\b|perday|/ ?day\b"
    r"|\b[RT]PD\b|(?<!\w)day (?:limit|quota)|(?:per|last|/) ?24 ?h|24[ -]?h(?:ours?)? (?:limit"
    r"|quota|window)|for (?:today|the day)|again tomorrow|[今每当]日|今天|每天)"
    r"|(?P<weekly>(?<![a-z])weekly|(?:per|a|each|every|this)[ _-]week\b|perweek|/ ?week\b"
    r"|\b7[ -]?days?\b|[本每]周)"
    r"|(?P<monthly>(?<![a-z])monthly|(?:per|a|each|every|this)[ _-]month\b|permonth|/ ?month\b"
    r"|\b30[ -]?days?\b|[本每当]月)",
    re.I,
)
_PRICE = re.compile(r"[$€£] ?\d[\d.,]* ?(?:/|per|a|each) ?(?:month|week|day)", re.I)
"""What an upgrade costs is no limit."""
_LIMIT_REACHED = re.compile(
    r"(?:limit|quota)s?\b.{0,40}(?:reached|exceeded|exhausted|used up|hit\b)"
    r"|(?:reached|exceeded|exhausted|hit|used up)\b.{0,40}\b(?:limit|quota)",
    re.I,
)
_NEVER_FITS = re.compile(
    r"request too large|must be reduced in order|reduce your message size", re.I
)
_ANSWER_FIELDS = ("choices", "candidates", "content", "output")
"""A body with one of these is an answer of one of the wires, and so is one with `done`."""
_SUCCESS = (0, "0", 200, "200")
"""Codes beside words of success."""
_MODERATED_KIND = re.compile(
    r"content_?filter|policy|data_?inspection|moderation|^safety|sensitive", re.I
)
_MODERATED_TEXT = re.compile(
    r"\b(?:unsafe|sensitive|inappropriate)\b.{0,20} content\b.{0,20}\b(?:in|input|prompt)\b"
    r"|may contain inappropriate content|flagged (?:by|as).{0,40}(?:moderation|polic)"
    r"|rejected as a result of our safety system",
    re.I,
)
"""Error kinds of a provider's filter for prompts or answers; it ends the turn."""
_MODEL_GONE = re.compile(
    r"\bmodel\b.{0,80}(?:(?:has been|have been|was|is|been) (?:\w+ )?(?:decommissioned|deprecated"
    r"|retired|removed|sunset|discontinued|shut down)|no longer (?:available|supported|served"
    r"|offered|exists?)|reached (?:its )?end of life)",
    re.I | re.S,
)
_NOT_SERVED_THERE = re.compile(
    r"(?:country|countries|region|territor\w+|location)\b.{0,60}(?:not|un)[ -]?"
    r"(?:support|allow|avail|permit|serve)|not (?:available|supported|offered) in your"
    r" (?:country|region|territory|location)|unsupported_country",
    re.I,
)
# Not even if the server sends `x-should-retry: true`.
_NEVER_RETRIED = ("LLM_AUTH_FAILED", "LLM_QUOTA_EXCEEDED", "LLM_CONTEXT_OVERFLOW")
_BUSY_TEXT = re.compile(r"overloaded|over capacity", re.I)
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
_NO_KEY_SENT = (
    "None was sent: put it into a variable before the kernel starts, and name the variable with"
    " key_variable='NAME' (--key-variable NAME)."
)


_KINDS: dict[str, ModelErrorKind] = {
    "content_filter": "content_filter",
    "tool_use_failed": "unreadable_call",  # Groq
}
"""Kinds of errors by the code in their details."""


def response_error(
    status: int | None,
    headers: Mapping[str, str],
    body: Any,
    *,
    url: str = "",
    text: str = "",
    key_sent: bool = True,
    withheld_key: str = "",
) -> ModelError:
    """Build the error of a response whose status is not 2xx.

    Args:
        headers: names in lower case.
        body: decoded JSON, or None.
        text: the body as text; shown if it is not JSON.
        key_sent: False if the request carried no key, which changes the advice.
        withheld_key: why a key that is set was not sent, and how to send it.
    """
    fault = error_fields(body)
    if not fault.get("message"):
        fault["message"] = _TAG.sub(" ", text) if text.lstrip().startswith("<") else text
        if _WEB_PAGE.search(text[:_MAX_WORDS_CHARS]):
            fault["message"] = _PAGE_WORDS
    # The status of the server behind a gateway says more than the gateway's own.
    inner = fault.get(INNER_STATUS)
    shown, status = status, inner if inner and status in _GATEWAY_STATUSES else status
    raw_text = as_text(fault.get("message") or fault.get("type") or fault.get("code") or "")
    wait_s = requested_wait_s(status, fault, headers)
    # Anthropic sends retry-after with each rate limit, and none when the monthly spend limit is
    # reached.
    is_spend_cap = wait_s is None and any(name.startswith("anthropic-") for name in headers)
    code = _error_code(402 if status == 429 and is_spend_cap else status, fault, raw_text)
    server_text = safe_line(raw_text)
    headline, advice = _headline_and_advice(status, fault, code, raw_text)
    if code == "LLM_AUTH_FAILED" and not key_sent:
        headline, advice = "the provider requires a key", withheld_key or _NO_KEY_SENT
    if status == 404 and url and code == "LLM_HTTP_ERROR" and not _is_model_gone(status, raw_text):
        advice = f"The request went to {url}; check the model's name and the base URL."
    if signin_url := fault.get("signin_url"):
        advice = f"Sign in at {safe_line(as_text(signin_url))}"  # Ollama, for its cloud models.
    message = f"{headline} (HTTP {shown})" if shown else f"{headline} (error object in the answer)"
    message += f": {server_text}" if server_text else ""
    message += "" if message.endswith((".", "!", "?", "…")) else "."
    if wait_s is not None and wait_s > MAX_WAIT_S:
        message += f" It asks to wait {wait_in_words(wait_s)};"
        message += f" nbagent waits at most {MAX_WAIT_S:g} s."
    details = _details(shown, fault, code, raw_text)
    return ModelError(
        f"{message} {advice}",
        code=code,
        details=details,
        kind=_KINDS.get(details.get("code", ""), ""),
        status=shown,
        retry_after_s=wait_s,
        request_id=request_id_of(headers),
        retryable=_is_retryable(status, headers, fault, code, raw_text),
        server_text=server_text,
    )


def _is_retryable(
    status: int | None,
    headers: Mapping[str, str],
    fault: dict[str, Any],
    code: ModelCode,
    raw_text: str,
) -> bool:
    """True if the same request may succeed a moment later."""
    forced = headers.get("x-should-retry", "").lower()
    if code in _NEVER_RETRIED or _never_fits(raw_text):
        return False
    is_temporary = (
        (status is not None and status >= 500)
        or status in _RETRYABLE_STATUSES
        or code == "LLM_RATE_LIMITED"
        or bool(_BUSY_TEXT.search(_all_text(fault)))
    )
    return forced == "true" or (is_temporary and forced != "false")


def _headline_and_advice(
    status: int | None, fault: dict[str, Any], code: ModelCode, raw_text: str
) -> tuple[str, str]:
    """What happened, and what to do."""
    _, headline, advice = _MESSAGES[code]
    match code:
        case "LLM_HTTP_ERROR" if status in (None, 400, 403) and _NOT_SERVED_THERE.search(raw_text):
            headline = "the provider does not serve the place that this request comes from"
            advice = "Choose another provider, or a server in a region that it serves."
        case "LLM_HTTP_ERROR" if status == 403:
            headline = "the request was refused before it reached the model server"
            advice = "Check the base URL, and the network: a proxy, a firewall or a VPN."
        case "LLM_HTTP_ERROR" if _is_model_gone(status, raw_text):
            headline = "the model is gone from this server"
            advice = "Choose another model (`%agent models` lists them)."
        case "LLM_HTTP_ERROR" if status is not None and status >= 500:
            headline, advice = "the provider failed", "Try again later."
        case "LLM_RATE_LIMITED" | "LLM_HTTP_ERROR" if _never_fits(raw_text):
            headline = "the request is larger than the provider's rate limit"
            advice = "Shorten the conversation, or choose another model."
        case "LLM_HTTP_ERROR" if status == 413:
            headline = "the request has more bytes than the server accepts"
            advice = "Shorten the conversation, or leave out images and files."
        case "LLM_HTTP_ERROR" if is_answer_too_long(raw_text):
            advice = "Choose a smaller max_tokens."
        case "LLM_CONTEXT_OVERFLOW" if is_answer_too_long(raw_text):
            headline = "the answer that max_tokens allows is too long for the model"
            advice = "Choose a smaller max_tokens."
        case "LLM_QUOTA_EXCEEDED" if period := _long_period(fault, raw_text):
            headline = f"the provider's {period} limit is reached"
            advice = "Try again after it resets, or choose another model."
        case _:
            pass
    return headline, advice


def _is_model_gone(status: int | None, raw_text: str) -> bool:
    """True if the server had the model once. A parameter may be deprecated, too (status 400)."""
    is_gone = bool(_MODEL_GONE.search(raw_text))
    if status == 400 and re.search(r"deprecated|removed", raw_text, re.I):
        return is_gone and not re.search(
            r"(?:for|with|by|on|in) (?:this|the) model", raw_text, re.I
        )
    return (is_gone and status in (400, 404, 410)) or (
        status == 410 and "model" in raw_text.lower()
    )


def stream_error(body: Any) -> ModelError:
    """Build the error of an error object inside a 200 body or a stream."""
    fault = error_fields(body)
    status = None
    for word in _error_kinds(fault):
        # A number in `code` is the status (OpenRouter, Gemini, vLLM; Azure writes it as text).
        number = int(word) if is_http_error(word) else None
        status = status or number or _STATUS_BY_KIND.get(word)
    if status in (None, 400) and _BUSY_TEXT.search(_all_text(fault)):
        status = 529
    return response_error(status, {}, body)


def answer_error(body: Any) -> ModelError | None:
    """Build the error that a 200 body states in a form of its own; None if it states none.

    MiniMax, Baidu and gateways answer so: no field is named `error`.
    """
    answer = json_object(body) or {}
    if any(answer.get(name) for name in _ANSWER_FIELDS) or "done" in answer:
        return None
    fault = error_fields(body)
    succeeded = any(fault.get(name) in _SUCCESS for name in ("code", "status_code"))
    message = fault.get("message")
    states_fault = isinstance(message, str) and message.strip() and not succeeded
    return stream_error(body) if states_fault else None


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """The provider's id of this request; its support asks for it."""
    request_id = next(filter(None, map(headers.get, _REQUEST_ID_HEADERS)), None)
    return safe_line(request_id, 200) if request_id else None


def _error_code(status: int | None, fault: dict[str, Any], raw_text: str) -> ModelCode:
    """Error code; the text of the body counts more than the status."""
    kinds, text = _error_kinds(fault), _all_text(fault)
    if is_context_overflow(kinds, raw_text):
        return "LLM_CONTEXT_OVERFLOW"
    is_throttled = any(map(_THROTTLED_KIND.search, kinds))
    bills = (kind for kind in kinds if not _THROTTLED_KIND.search(kind))
    if _QUOTA_TEXT.search(text) or any(map(_QUOTA_KIND.search, bills)):
        return "LLM_QUOTA_EXCEEDED"
    if _BAD_KEY.search(text):
        return "LLM_AUTH_FAILED"
    code: ModelCode = "LLM_HTTP_ERROR"
    for known, (statuses, *_) in _MESSAGES.items():
        if status in statuses:
            code = known
            break
    # A page is a proxy's or a firewall's: no model server looked at the key.
    if status == 403 and (raw_text == _PAGE_WORDS or _NOT_SERVED_THERE.search(text)):
        return "LLM_HTTP_ERROR"
    is_throttled = is_throttled or bool(_THROTTLED_TEXT.search(raw_text))
    is_limit = is_throttled or bool(_LIMIT_REACHED.search(raw_text))
    is_general = code in ("LLM_HTTP_ERROR", "LLM_BAD_RESPONSE", "LLM_AUTH_FAILED")
    # A limit of a day or longer is no matter of seconds, whatever wait is named.
    if (code == "LLM_RATE_LIMITED" or (is_general and is_limit)) and _long_period(fault, raw_text):
        return "LLM_QUOTA_EXCEEDED"
    if is_throttled and is_general and not _never_fits(raw_text):
        return "LLM_RATE_LIMITED"
    return code


def _never_fits(raw_text: str) -> bool:
    """True if one request is larger than a rate limit, so that no wait helps."""
    return bool(_NEVER_FITS.search(raw_text) and _PERIOD.search(raw_text))


def _long_period(fault: dict[str, Any], raw_text: str) -> str:
    """`daily`, `weekly` or `monthly` if such a limit was reached, else ''.

    The first period in the text decides: the others are what the plan has besides.
    """
    details = as_text(fault.get("details") or "")
    for period in ("Day", "Week", "Month"):
        if "QuotaFailure" in details and f"Per{period}" in details:  # Gemini's quotaId.
            return _LONG_PERIODS[period]
    source = as_text((json_object(fault.get("metadata")) or {}).get("limit_source") or "")
    text = f"{' '.join(_error_kinds(fault))} {raw_text} {source}"[:_MAX_WORDS_CHARS]
    match = _PERIOD.search(_PRICE.sub("", text))
    period = match.lastgroup if match else None
    return period if period and period != "minute" else ""


def _is_moderated(status: int | None, fault: dict[str, Any], raw_text: str) -> bool:
    inner = json_object(fault.get("innererror")) or {}  # Azure's.
    metadata = json_object(fault.get("metadata")) or {}  # OpenRouter's.
    return (
        any(_MODERATED_KIND.search(kind) for kind in _error_kinds(fault) + _error_kinds(inner))
        or (status == 403 and bool(metadata.get("reasons") or metadata.get("flagged_input")))
        or (status == 400 and bool(fault.get("content_filters")))
        or (status in (None, 400, 403) and bool(_MODERATED_TEXT.search(raw_text)))
    )


def _details(
    status: int | None, fault: dict[str, Any], code: ModelCode, raw_text: str
) -> dict[str, Any]:
    details: dict[str, Any] = {
        key: safe_line(as_text(fault[key]), 200)
        for key in ("type", "code", "param", "status")
        if fault.get(key) is not None
    }
    if status:
        details["http_status"] = str(status)
    if _is_moderated(status, fault, raw_text):
        details["code"] = "content_filter"
    if code == "LLM_CONTEXT_OVERFLOW":
        details |= overflow_details(fault, raw_text)
    return details


def _error_kinds(fault: dict[str, Any]) -> list[str]:
    """Names that the body gives its error, the most exact one first."""
    details = json_object(fault.get("details")) or {}  # Anthropic's stable code is there.
    kinds = [details.get("error_code"), *(fault.get(key) for key in ("code", "type", "status"))]
    return [as_text(kind).lower() for kind in kinds if kind]


def _all_text(fault: dict[str, Any]) -> str:
    keys = ("message", "type", "code", "details", "metadata")
    return " ".join(as_text(fault.get(key) or "") for key in keys)
