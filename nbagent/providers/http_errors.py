"""From what a server answered to a ModelError: codes by status and error body, for every wire.

Decides whether a retry makes sense; `limits` decides when. Knows the error bodies of OpenAI (Chat
Completions and Responses), Azure, Anthropic, Gemini, Ollama, FastAPI servers and OpenRouter; a
wire adds only what needs the request. Facts: documentation and clients of the providers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ModelCode, ModelError
from nbagent.providers.answer.fields import objects_in
from nbagent.providers.rate_limits import LONGEST_WAIT_S, retry_after_s, until_s
from nbagent.providers.transport.sse import shown_line

_PASSING = frozenset({408, 409, 429, 498})  # Besides all from 500 on.
_KINDS_OF_STATUS = {
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
_STATUS_OF = {kind: status for status, kinds in _KINDS_OF_STATUS.items() for kind in kinds}
"""What an error object says by its code, type or status word, where there is no HTTP status."""
_QUOTA_KIND = re.compile(r"quota|billing|credit_balance|(?:spend|usage)_limit")
_QUOTA_TEXT = re.compile(
    r"credit balance is too low|spend limit|specified API usage limits|BILLING_DISABLED"
    # Gemini's of a day, which no retry brings back.
    r"|\A(?=.*QuotaFailure).*PerDay",
    re.I | re.S,
)
_MODERATED_KIND = re.compile(r"content_filter|policy", re.I)
"""The provider's filter stopped the prompt or the answer: the end of a turn."""
# Whatever `x-should-retry` says.
_FINAL = ("LLM_AUTH_FAILED", "LLM_QUOTA_EXCEEDED", "LLM_CONTEXT_OVERFLOW")
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
"""OpenAI, Azure, Anthropic, Gemini, Mistral, xAI, Cohere, Moonshot, Bedrock, OpenRouter, vLLM,
SGLang, TGI, llama.cpp, LM Studio and Ollama, as in their documentation and issues."""
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
"""Gemini, of a field that it does not know."""
_REQUEST_ID_HEADERS = ("x-request-id", "request-id", "x-generation-id", "apim-request-id")
_FAILURES: dict[ModelCode, tuple[tuple[int | None, ...], str, str]] = {
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
"""The statuses that mean it where the body says nothing else, what happened, and what to do."""


def response_error(
    status: int | None,
    headers: Mapping[str, str],
    body: Any,
    *,
    url: str = "",
    text: str = "",
    key_sent: bool = True,
) -> ModelError:
    """The error of a response whose status is not 2xx.

    Args:
        headers: with names in lower case.
        body: the decoded JSON, or None.
        text: the body as text, shown when there is no JSON in it.
        key_sent: whether the request carried a key; without one the advice is another.
    """
    fault = error_fields(body)
    if not fault.get("message"):
        page = text.lstrip().startswith("<")
        fault["message"] = "the server answered with a web page" if page else text
    wait_s = _wait_s(status, fault, headers)
    # Anthropic sends a wait with each rate limit, and none with the cap of a month.
    capped = wait_s is None and any(name.startswith("anthropic-") for name in headers)
    code = _code_of(402 if status == 429 and capped else status, fault)
    forced = headers.get("x-should-retry", "").lower()
    broken = status is not None and status >= 500
    passing = broken or status in _PASSING or bool(_BUSY_TEXT.search(_all_text(fault)))
    retryable = code not in _FINAL and (forced == "true" or (passing and forced != "false"))
    _, headline, advice = _FAILURES[code]
    if code == "LLM_AUTH_FAILED" and not key_sent:
        headline = "the provider wants a key"
        advice = "None was sent: set LLM_API_KEY, or the provider's own variable,"
        advice += " before the kernel starts."
    elif code == "LLM_HTTP_ERROR" and broken:
        headline, advice = "the provider failed", "Try again later."
    elif status == 404 and url:
        advice = f"Asked was {url}; check the model's name and the base URL."
    if signin_url := fault.get("signin_url"):
        advice = f"Sign in at {shown_line(_text(signin_url))}"  # Ollama, of a model in its cloud.
    said = _text(fault.get("message") or fault.get("type") or fault.get("code") or "")
    raw = (json_object(fault.get("metadata")) or {}).get("raw")
    # OpenRouter says only "Provider returned error"; what the provider said is behind it.
    said = shown_line(f"{said}: {raw}" if isinstance(raw, str) and raw else said)
    told = f"{headline} (HTTP {status})" if status else f"{headline} (error object in the answer)"
    told += f": {said}" if said else ""
    told += "" if told.endswith((".", "!", "?", "…")) else "."
    if wait_s is not None and wait_s > LONGEST_WAIT_S:
        asked = f"{wait_s:,.0f} s" if wait_s < math.inf else "for ever"
        told += f" It asks to wait {asked}, which is longer than is waited here."
    return ModelError(
        f"{told} {advice}",
        code=code,
        details=_details(status, fault, code),
        status=status,
        retry_after_s=wait_s,
        request_id=request_id_of(headers),
        retryable=retryable,
        server_text=said,
    )


def stream_error(body: Any) -> ModelError:
    """The error of an error object inside a 200 body or a stream."""
    fault = error_fields(body)
    status = None
    for word in _kinds(fault):
        # A number as the code is the status (OpenRouter, Gemini, vLLM; Azure as a text).
        number = int(word) if re.fullmatch(r"[45]\d\d", word) else None
        status = status or number or _STATUS_OF.get(word)
    if status in (None, 400) and _BUSY_TEXT.search(_all_text(fault)):
        status = 529
    return response_error(status, {}, body)


def error_fields(body: Any) -> dict[str, Any]:
    """The fields of any dialect's error body: `message`, `type`, `code`, `param` and its own."""
    body = next(iter(objects_in(body)), body)  # Gemini wraps it.
    outer = json_object(body)
    if outer is None:
        return {"message": body} if isinstance(body, str) else {}
    # Responses: `response.failed` carries it one level deeper.
    error = outer.get("error") or (json_object(outer.get("response")) or {}).get("error")
    if isinstance(error, str):
        return {**outer, "message": error}  # Ollama; with `signin_url` beside it.
    fault = {"content_filters": outer.get("content_filters"), **(json_object(error) or outer)}
    holder = json_object(fault.get("message")) or fault  # Mistral nests FastAPI's form.
    if holder.get("detail") is not None:
        fault.update(_refused_field(holder["detail"]))
    if not fault.get("param") and (found := _UNKNOWN_NAME.search(_text(fault.get("message")))):
        fault["param"] = f"{found[2]}.{found[1]}" if found[2] else found[1]
    return fault


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """The provider's id of a request, for its support."""
    found = next(filter(None, map(headers.get, _REQUEST_ID_HEADERS)), None)
    return shown_line(found, 200) if found else None


def _refused_field(detail: Any) -> dict[str, Any]:
    """FastAPI's `detail`: a text, or a list that names each refused field."""
    named = {
        ".".join(map(_text, item["loc"])).removeprefix("body."): item
        for item in objects_in(detail)
        if isinstance(item.get("loc"), list)
    }
    if not named:
        return {"message": _text(detail)}
    said = [f"{path}: {_text(item.get('msg'))}" for path, item in named.items()]
    # What may not be sent at all is what another attempt can leave out.
    first = min(named, key=lambda path: named[path].get("type") != "extra_forbidden")
    return {"message": "; ".join(said), "param": first, "code": _text(named[first].get("type"))}


def _code_of(status: int | None, fault: dict[str, Any]) -> ModelCode:
    """What a body says goes before the status."""
    text = _all_text(fault)
    if _OVERFLOW_TEXT.search(text):
        return "LLM_CONTEXT_OVERFLOW"
    if any(map(_QUOTA_KIND.search, _kinds(fault))) or _QUOTA_TEXT.search(text):
        return "LLM_QUOTA_EXCEEDED"
    if "API_KEY_INVALID" in text:
        return "LLM_AUTH_FAILED"
    for code, (statuses, *_) in _FAILURES.items():
        if status in statuses:
            return code
    return "LLM_HTTP_ERROR"


def _is_moderated(status: int | None, fault: dict[str, Any]) -> bool:
    inner = json_object(fault.get("innererror")) or {}  # Azure's.
    metadata = json_object(fault.get("metadata")) or {}  # OpenRouter's.
    return (
        any(_MODERATED_KIND.search(kind) for kind in _kinds(fault) + _kinds(inner))
        or (status == 403 and bool(metadata.get("reasons") or metadata.get("flagged_input")))
        or (status == 400 and bool(fault.get("content_filters")))
    )


def _wait_s(status: int | None, fault: dict[str, Any], headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait, in its headers or in the body."""
    if (wait_s := retry_after_s(headers)) is not None:
        return wait_s
    for item in objects_in(fault.get("details")):
        if delay := item.get("retryDelay"):
            return until_s(_text(delay))  # Gemini has no header; it writes "14s".
    # OpenRouter says when its window ends.
    return until_s(headers.get("x-ratelimit-reset", "")) if status == 429 else None


def _details(status: int | None, fault: dict[str, Any], code: ModelCode) -> dict[str, Any]:
    kept: dict[str, Any] = {
        key: shown_line(_text(fault[key]), 200)
        for key in ("type", "code", "param", "status")
        if fault.get(key) is not None
    }
    if status:
        kept["http_status"] = str(status)
    if _is_moderated(status, fault):
        kept["code"] = "content_filter"
    text = _text(fault.get("message") or "")
    for name, field, patterns in _SIZES if code == "LLM_CONTEXT_OVERFLOW" else ():
        found = next(filter(None, (pattern.search(text) for pattern in patterns)), None)
        if isinstance(fault.get(field), int):
            kept[name] = fault[field]
        elif found:
            kept[name] = int(found[1].replace(",", ""))
    return kept


def _kinds(fault: dict[str, Any]) -> list[str]:
    """The words by which a body names its error, the most exact one first."""
    details = json_object(fault.get("details")) or {}  # Anthropic's stable code is in there.
    found = [details.get("error_code"), *(fault.get(key) for key in ("code", "type", "status"))]
    return [_text(kind).lower() for kind in found if kind]


def _all_text(fault: dict[str, Any]) -> str:
    keys = ("message", "type", "code", "details", "metadata")
    return " ".join(_text(fault.get(key) or "") for key in keys)


def _text(value: Any) -> str:
    """Any JSON value as text; what is nested too deeply for that is left out."""
    try:
        return value if isinstance(value, str) else str(value)
    except (RecursionError, ValueError):
        return "…"
