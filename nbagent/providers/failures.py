"""From what a server answered to a ModelError: codes by status and error body, all dialects.

Decides whether a retry makes sense; `retry` decides when. Wire facts: providers' documentation
and the errors that their clients handle.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from typing import Any, cast

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ModelCode, ModelError
from nbagent.contracts.secrets import MASK, redact, redact_cut
from nbagent.providers.overflow import OVERFLOW_CODES, OVERFLOW_TEXT, overflow_sizes
from nbagent.providers.retry import LONGEST_WAIT_S, retry_after_s

_RETRIED = frozenset({408, 409, 498, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
_QUOTA_CODES = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "exceeded_current_quota_error",
        "billing_error",
    }
)
_QUOTA_TEXT = re.compile(r"credit balance is too low|spend limit", re.I)
_NEVER_RETRIED = ("LLM_AUTH_FAILED", "LLM_QUOTA_EXCEEDED", "LLM_CONTEXT_OVERFLOW")
"""Whatever `x-should-retry` says."""
_BUSY_TEXT = re.compile(r"overloaded|over capacity", re.I)
_STATUS_OF_TYPE = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "too_many_requests": 429,
    "resource_exhausted": 429,
    "server_error": 500,
    "internal_server_error": 500,
    "api_error": 500,
    "overloaded_error": 529,
    "service_unavailable": 503,
    "timeout": 408,
    "timeout_error": 408,
    "invalid_api_key": 401,
    "authentication_error": 401,
    "permission_error": 403,
    "model_not_found": 404,
    "not_found_error": 404,
    "invalid_request_error": 400,
}
_REQUEST_ID_HEADERS = ("x-request-id", "request-id", "x-generation-id", "apim-request-id")
_LONGEST_TEXT = 600
_LONGEST_FAILED = 20_000
_LOGIN = re.compile(r"\b(basic[\s:=]+)([\w+/-]{4,}={0,2})", re.I | re.A)
_PROXY_LOGIN = re.compile(
    r"(proxy[-_]authorization['\"]?\s*[:=,]\s*b?['\"]?)(?:[a-z]+\s+)?[^\s'\",;<>{}]+", re.I
)
_READ_FOR_START = 4_096
"""Bytes; far less of them is shown, but a key in them is only known as a whole."""


def response_error(
    status: int, headers: Mapping[str, str], body: Any, *, url: str = "", text: str = ""
) -> ModelError:
    """The error of a response whose status is not 2xx.

    Args:
        body: the decoded JSON, or None.
        text: the body as text, shown when there is no JSON in it.
    """
    fault = error_fields(body)
    if not fault.get("message"):
        fault["message"] = _first_line(text)
    return _classified(status, fault, headers, url)


def without_key(error: ModelError) -> ModelError:
    """The refusal of a request that carried no key, in words that say so."""
    said = error.message.replace(_HEADLINE["LLM_AUTH_FAILED"], "the provider wants a key")
    error.message = said.replace(
        _ADVICE["LLM_AUTH_FAILED"],
        "None was sent: set LLM_API_KEY, or the provider's own variable, before the kernel starts.",
    )
    error.args = (error.message,)
    return error


def stream_error(body: Any) -> ModelError:
    """The error of an error object inside a 200 body or a stream."""
    fault = error_fields(body)
    code = fault.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else None
    for key in ("code", "type", "status"):
        status = status or _STATUS_OF_TYPE.get(_text(fault.get(key) or "").lower())
    if status is None and _BUSY_TEXT.search(_all_text(fault)):
        status = 529
    return _classified(status, fault, {})


def error_fields(body: Any) -> dict[str, Any]:
    """`message`, `type`, `code`, `param` of any dialect's error body, as far as it has them."""
    if isinstance(body, list) and body:
        body = cast("list[Any]", body)[0]
    outer = json_object(body)
    if outer is None:
        return {"message": body} if isinstance(body, str) else {}
    error = outer.get("error")
    if isinstance(error, str):
        return {"message": error}
    if isinstance(error, dict):
        return dict(cast("dict[str, Any]", error))
    detail = outer.get("detail")
    if detail is not None:
        # FastAPI: a text, or a list that names each refused field.
        return {"message": detail if isinstance(detail, str) else _text(detail)}
    return dict(outer)


def said_in(error: ModelError) -> str:
    """The provider's own words in the message of an error that was made here."""
    said = error.message.partition("): ")[2] or error.message
    said = said.partition(" Asked was ")[0]
    for advice in ("Try again later.", *_ADVICE.values()):
        said = said.removesuffix(f" {advice}")
    return said


def start_of(data: bytes | bytearray) -> str:
    """The first characters of an answer that cannot be read, to show them."""
    return without_logins(redact_cut(data[:_READ_FOR_START].decode("utf-8", "replace")))[:80]


def without_logins(text: str) -> str:
    """The text without what a proxy or a gateway may have echoed of a login.

    The filter knows no password that is shorter than its shortest secret.
    """
    text = _PROXY_LOGIN.sub(rf"\1{MASK}", text)
    return _LOGIN.sub(lambda found: found[1] + (MASK if _is_login(found[2]) else found[2]), text)


def _is_login(text: str) -> bool:
    """Whether it is the base64 of `user:password`, or the start of one: "basic auth" is none."""
    coded = text.rstrip("=").replace("-", "+").replace("_", "/")
    coded = coded[:-1] if len(coded) % 4 == 1 else coded
    try:
        return b":" in base64.b64decode(coded + "=" * (-len(coded) % 4))
    except ValueError:
        return False


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """The provider's id of a request, for its support."""
    for name in _REQUEST_ID_HEADERS:
        if value := headers.get(name):
            return without_logins(redact(value))[:200]
    return None


def _classified(
    status: int | None, fault: dict[str, Any], headers: Mapping[str, str], url: str = ""
) -> ModelError:
    code, retryable = _code_of(status, fault)
    forced = headers.get("x-should-retry", "").lower()
    if forced in ("true", "false") and code not in _NEVER_RETRIED:
        retryable = forced == "true"
    wait_s = retry_after_s(headers)
    if wait_s is None:
        wait_s = _delay_in(fault)
    kept = {
        key: without_logins(redact(_text(fault[key])))[:200]
        for key in ("type", "code", "param", "status")
        if fault.get(key) is not None
    }
    if status:
        kept["http_status"] = str(status)
    if _is_moderated(status, fault):
        # OpenRouter's moderation: the end of a turn, as Azure's filter is.
        kept["code"] = "content_filter"
    sizes = overflow_sizes(fault) if code == "LLM_CONTEXT_OVERFLOW" else {}
    return ModelError(
        _sentences(code, status, fault, url, wait_s),
        code=code,
        details={**kept, **sizes, **_kept_for_adapters(fault)},
        status=status,
        retry_after_s=wait_s,
        request_id=request_id_of(headers),
        retryable=retryable,
    )


_HEADLINE: dict[ModelCode, str] = {
    "LLM_AUTH_FAILED": "the provider refused the key",
    "LLM_TIMEOUT": "the provider gave up waiting",
    "LLM_RATE_LIMITED": "too many requests for the provider",
    "LLM_QUOTA_EXCEEDED": "the account's quota or credit is used up",
    "LLM_CONTEXT_OVERFLOW": "the conversation is too long for the model",
    "LLM_HTTP_ERROR": "the provider refused the request",
    "LLM_BAD_RESPONSE": "the provider reported an error",
    "UNKNOWN": "the provider failed",
}
_ADVICE: dict[ModelCode, str] = {
    "LLM_AUTH_FAILED": "Check the key.",
    "LLM_TIMEOUT": "Try again.",
    "LLM_RATE_LIMITED": "Try again later.",
    "LLM_QUOTA_EXCEEDED": "Look at the account's billing, or choose another model.",
    "LLM_CONTEXT_OVERFLOW": "Shorten the conversation, or choose a model that takes more.",
    "LLM_HTTP_ERROR": "Correct the request.",
    "LLM_BAD_RESPONSE": "Try again.",
    "UNKNOWN": "Try again.",
}


def _sentences(
    code: ModelCode, status: int | None, fault: dict[str, Any], url: str, wait_s: float | None
) -> str:
    """What happened, in the provider's words too, and what to do about it."""
    said = _said(fault)
    label = f"HTTP {status}" if status else "error object in the answer"
    broken = code == "LLM_HTTP_ERROR" and status is not None and status >= 500
    headline = "the provider failed" if broken else _HEADLINE[code]
    pieces = [f"{headline} ({label}){': ' + said if said else ''}"]
    if not pieces[0].endswith((".", "!", "?", "…")):
        pieces[0] += "."
    if wait_s is not None and wait_s > LONGEST_WAIT_S:
        asked = f"{wait_s:,.0f} s" if wait_s < math.inf else "for ever"
        pieces.append(f"It asks to wait {asked}, which is longer than is waited here.")
    if status == 404:
        pieces.append(f"Asked was {url}; check the model's name and the base URL.")
    else:
        pieces.append("Try again later." if broken else _ADVICE[code])
    return " ".join(pieces)


def _code_of(status: int | None, fault: dict[str, Any]) -> tuple[ModelCode, bool]:
    """Code and whether a retry may help; the special cases come before the status."""
    kinds = {_text(fault.get(key) or "").lower() for key in ("code", "type", "status")}
    text = _all_text(fault)
    if kinds & OVERFLOW_CODES or OVERFLOW_TEXT.search(text):
        return "LLM_CONTEXT_OVERFLOW", False
    if kinds & _QUOTA_CODES or status == 402 or _QUOTA_TEXT.search(text) or _daily(fault):
        return "LLM_QUOTA_EXCEEDED", False
    if status in (401, 403) or "API_KEY_INVALID" in text:
        return "LLM_AUTH_FAILED", False
    if status == 429:
        return "LLM_RATE_LIMITED", True
    if status in (408, 504):
        return "LLM_TIMEOUT", True
    if status is None:
        return "LLM_BAD_RESPONSE", False
    return "LLM_HTTP_ERROR", status in _RETRIED or status >= 500


def _kept_for_adapters(fault: dict[str, Any]) -> dict[str, Any]:
    """Groq's refusal of a call that it could not read has the call in it."""
    failed = fault.get("failed_generation")
    if not isinstance(failed, str):
        return {}
    return {"failed_generation": redact_cut(failed)[:_LONGEST_FAILED]}


def _daily(fault: dict[str, Any]) -> bool:
    details = _text(fault.get("details"))
    return "QuotaFailure" in details and "PerDay" in details


def _is_moderated(status: int | None, fault: dict[str, Any]) -> bool:
    metadata = json_object(fault.get("metadata")) or {}
    return status == 403 and bool(metadata.get("reasons") or metadata.get("flagged_input"))


def _delay_in(fault: dict[str, Any]) -> float | None:
    """Gemini has no header; it writes `retryDelay: "14s"` into the details."""
    details = fault.get("details")
    for item in cast("list[Any]", details) if isinstance(details, list) else ():
        found = re.fullmatch(
            r"(\d{1,9}(?:\.\d{1,9})?)s", _text((json_object(item) or {}).get("retryDelay"))
        )
        if found:
            return float(found[1])
    return None


def _all_text(fault: dict[str, Any]) -> str:
    return " ".join(_text(fault.get(key) or "") for key in ("message", "type", "code", "details"))


def _text(value: Any) -> str:
    """Any JSON value as text; what is nested too deeply for that is left out."""
    try:
        return value if isinstance(value, str) else str(value)
    except (RecursionError, ValueError):
        return "…"


def _said(fault: dict[str, Any]) -> str:
    message = fault.get("message")
    if not isinstance(message, str):
        message = _text(message or fault.get("type") or fault.get("code") or "")
    return _shown(message)


def _first_line(text: str) -> str:
    if text.lstrip().startswith("<"):
        return "the server answered with a web page"
    return _shown(text)


def _shown(text: str) -> str:
    """One line of a server's text, without keys and without characters that act."""
    line = without_logins(" ".join(redact_cut(text).split()))
    line = "".join(char if char.isprintable() else "\ufffd" for char in line[: 2 * _LONGEST_TEXT])
    return line if len(line) <= _LONGEST_TEXT else line[:_LONGEST_TEXT] + " …"
