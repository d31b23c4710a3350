"""From what a server answered to a ModelError: codes by status and error body, all dialects.

Decides whether a retry makes sense; `retry` decides when. Wire facts: providers' documentation
and the errors that their clients handle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ModelCode, ModelError
from nbagent.contracts.secrets import redact, redact_cut
from nbagent.providers.retry import retry_after_s

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
_OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_OVERFLOW_TEXT = re.compile(
    r"maximum context length|reduce the length of the messages|prompt is too long"
    r"|input token count.{0,40}exceeds|number of tokens allowed"
    r"|exceeds? the available context size",
    re.I | re.S,
)
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
    error = _classified(status, fault, headers)
    if status == 404:
        error.message += f" (asked {url}; check the model's name and the base URL)"
    elif error.code == "LLM_AUTH_FAILED":
        error.message += " Check the key."
    error.args = (error.message,)
    return error


def stream_error(body: Any) -> ModelError:
    """The error of an error object inside a 200 body or a stream."""
    fault = error_fields(body)
    code = fault.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else None
    for key in ("code", "type", "status"):
        status = status or _STATUS_OF_TYPE.get(str(fault.get(key) or "").lower())
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
        return {"message": detail if isinstance(detail, str) else str(cast("object", detail))}
    return dict(outer)


def start_of(data: bytes | bytearray) -> str:
    """The first characters of an answer that cannot be read, to show them."""
    return redact_cut(data[:_READ_FOR_START].decode("utf-8", "replace"))[:80]


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """The provider's id of a request, for its support."""
    for name in _REQUEST_ID_HEADERS:
        if value := headers.get(name):
            return redact(value)[:200]
    return None


def _classified(
    status: int | None, fault: dict[str, Any], headers: Mapping[str, str]
) -> ModelError:
    code, retryable = _code_of(status, fault)
    forced = headers.get("x-should-retry", "").lower()
    if forced in ("true", "false") and code not in ("LLM_QUOTA_EXCEEDED", "LLM_CONTEXT_OVERFLOW"):
        retryable = forced == "true"
    said = _said(fault)
    label = f"HTTP {status}" if status else "error object in the answer"
    kept = {
        key: redact(str(fault[key]))[:200]
        for key in ("type", "code", "param", "status")
        if fault.get(key) is not None
    }
    if status:
        kept["http_status"] = str(status)
    return ModelError(
        f"{_HEADLINE[code]} ({label}){': ' + said if said else '.'}",
        code=code,
        details=dict(kept),
        status=status,
        retry_after_s=retry_after_s(headers),
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


def _code_of(status: int | None, fault: dict[str, Any]) -> tuple[ModelCode, bool]:
    """Code and whether a retry may help; the special cases come before the status."""
    kinds = {str(fault.get(key) or "").lower() for key in ("code", "type", "status")}
    text = _all_text(fault)
    if kinds & _OVERFLOW_CODES or _OVERFLOW_TEXT.search(text):
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


def _daily(fault: dict[str, Any]) -> bool:
    return "QuotaFailure" in str(fault.get("details")) and "PerDay" in str(fault.get("details"))


def _all_text(fault: dict[str, Any]) -> str:
    return " ".join(str(fault.get(key) or "") for key in ("message", "type", "code", "details"))


def _said(fault: dict[str, Any]) -> str:
    message = fault.get("message")
    if not isinstance(message, str):
        message = str(message) if message else str(fault.get("type") or fault.get("code") or "")
    text = " ".join(redact_cut(message).split())
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + " …"


def _first_line(text: str) -> str:
    if text.lstrip().startswith("<"):
        return "the server answered with a web page"
    return redact_cut(text.strip())[:_LONGEST_TEXT]
