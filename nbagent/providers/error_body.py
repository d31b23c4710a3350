"""Read the fields of a server's error body, also of an error inside the text of another error.

One reader for all servers, because gateways pass on the error bodies of the servers behind them:
OpenAI `{"error": {"message", "type", "param", "code"}}` (`error` may also be a text or a list),
Anthropic `{"type": "error", "error": {"type", "message", "details": {"error_code"}}}`, Gemini
`{"error": {"code": 400, "message", "status", "details": […]}}` or the same in a list, Ollama
`{"error": "text"}`, FastAPI `{"detail": …}`, OpenRouter `{"error": {"code": int, "message",
"metadata": {"raw", "headers"}}}`, Cloudflare `{"errors": [{"code", "message"}]}`, MiniMax
`{"base_resp": {"status_code", "status_msg"}}`, Baidu `{"error_code", "error_msg"}`, DashScope
`{"code", "message"}`. LiteLLM, OpenRouter and others put such a body into a text, also as Python
prints it. Facts: documentation and clients of the providers, and issues of the gateways.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

from nbagent.contracts.canonical import json_object
from nbagent.providers.answer.json_fields import objects_in

_MAX_LAYERS = 4
"""Errors inside errors: a gateway in front of a gateway has three."""
_MAX_TEXT_CHARS = 20_000
"""Longer texts are not searched for an error."""
_MAX_PRINTED_CHARS = 4_000
_MAX_NESTING = 32
"""Brackets inside brackets in such a text; Python's parser fails somewhere above."""
_MESSAGE_NAMES = (
    *("message", "msg", "error_msg", "error_message", "errorMessage", "status_msg"),
    *("error_description", "faultstring"),  # OAuth, Apigee
)
_CODE_NAMES = ("code", "error_code", "status_code", "__type")
_UNKNOWN_NAME = re.compile(r'Unknown name "(\w+)"(?: at \'([\w.]+)\')?')
"""Gemini's words for a field that it does not know."""
_STRINGS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.S)
_PRINTED = re.compile(r"(?:''|None|True|False|-?[\d.]++|[{}\[\](),:\s])*+")
"""A dict as Python prints it, its texts left out."""
_OUTSIDE = ("content_filters", "retry_after", "retry_after_ms", "retryAfter", "retry_after_seconds")
"""Fields that some servers write beside `error`."""
INNER_STATUS = "inner_status"
"""Field that holds the HTTP status of the server behind a gateway, if its error names one."""


def error_fields(body: Any) -> dict[str, Any]:
    """Return the fields of an error: `message`, `type`, `code`, `param` and the server's own.

    Fields of an inner error replace those of the error around it, so a person reads its words.
    """
    fault = _fields(body)
    for _ in range(_MAX_LAYERS):
        prefix, inner = _inner_error(fault)
        if inner is None:
            break
        present = {name: value for name, value in inner.items() if value not in (None, "")}
        fault |= present
        if prefix:
            fault["message"] = f"{prefix}: {as_text(inner.get('message') or '')}".rstrip(": ")
        if is_http_error(code := as_text(present.get("code"))):
            fault[INNER_STATUS] = int(code)
    if not fault.get("param") and (match := _UNKNOWN_NAME.search(as_text(fault.get("message")))):
        fault["param"] = f"{match[2]}.{match[1]}" if match[2] else match[1]
    return fault


def as_text(value: Any) -> str:
    """Any JSON value as text; `…` if it is nested too deeply."""
    try:
        return value if isinstance(value, str) else str(value)
    except (RecursionError, ValueError):
        return "…"


def is_http_error(text: str) -> bool:
    """True for a status of 400 to 599. Azure writes it as text, OpenRouter as a number."""
    return re.fullmatch(r"[45]\d\d", text) is not None


def _fields(body: Any) -> dict[str, Any]:
    """Fields of one body, without the errors in its texts."""
    body = next(iter(objects_in(body)), body)  # Gemini may put it into a list.
    outer = json_object(body)
    if outer is None:
        return {"message": body} if isinstance(body, str) else {}
    if isinstance(outer.get("loc"), list | tuple):
        return _fastapi_fields([outer])  # FastAPI's list in the text of another error.
    # Responses: the event `response.failed` holds it one level deeper.
    error = outer.get("error") or (json_object(outer.get("response")) or {}).get("error")
    error = error or next(iter(objects_in(outer.get("errors"))), None) or outer.get("base_resp")
    # The gateway OmniRoute repeats the error of the server behind it there.
    error = json_object((json_object(outer.get("upstream_details")) or {}).get("error")) or error
    # RFC 9457, as Go's huma writes it: a general `detail`, and `errors` that name the fields.
    if named := [item for item in objects_in(outer.get("errors")) if item.get("location")]:
        texts = [f"{as_text(item['location'])}: {as_text(item.get('message'))}" for item in named]
        return {**outer, "message": "; ".join(texts)}
    if isinstance(error, str):
        # Ollama, sometimes with `signin_url`. Spring, Nest and OAuth write only a title there.
        more = _sentence(next(filter(None, map(outer.get, _MESSAGE_NAMES)), ""))
        return {**outer, "message": f"{error}: {more}" if more and more != error else error}
    # A list without an object: nothing in it can be read.
    fault = {name: outer.get(name) for name in _OUTSIDE} | (json_object(error) or outer)
    for name, others in (("message", _MESSAGE_NAMES), ("code", _CODE_NAMES)):
        value = next((fault[other] for other in others if fault.get(other)), None)
        if value is not None:
            fault[name] = _sentence(value) if isinstance(value, list) else value
    # Mistral puts FastAPI's form into `message`.
    holder = json_object(fault.get("message")) or fault
    if holder.get("detail") is not None:
        fault.update(_fastapi_fields(holder["detail"]))
    return fault


def _sentence(value: Any) -> str:
    """A text, or several of a list, as one."""
    items = cast("list[Any]", value) if isinstance(value, list) else [value]
    return "; ".join(map(as_text, items))


def _fastapi_fields(detail: Any) -> dict[str, Any]:
    """Read FastAPI's `detail`: a text, or a list that names each refused field."""
    named = {
        ".".join(map(as_text, item["loc"])).removeprefix("body."): item
        for item in objects_in(detail)
        if isinstance(item.get("loc"), list | tuple)
    }
    if not named:
        inner = json_object(detail)
        return _fields(inner) if inner else {"message": as_text(detail)}
    messages = [f"{path}: {as_text(item.get('msg'))}" for path, item in named.items()]
    # First a field that is forbidden as such: the next attempt can leave it out.
    first = min(named, key=lambda path: named[path].get("type") != "extra_forbidden")
    code = as_text(named[first].get("type"))
    return {"message": "; ".join(messages), "param": first, "code": code}


def _inner_error(fault: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """Return the error inside an error, and the words that stay before its message."""
    if (inner := _error_in(fault.get("message"))) is not None:
        return "", inner
    # Vercel's gateway says only "Stream error occurred" in the middle of a stream.
    value = (json_object(fault.pop("value", None)) or {}).get("error_message")
    if (inner := _error_in(value)) is not None:
        return "", inner
    metadata = json_object(fault.get("metadata")) or {}
    # OpenRouter says only "Provider returned error"; metadata.raw holds the provider's own text.
    raw = metadata.get("raw")
    if not raw:
        return "", None
    fault["metadata"] = {name: value for name, value in metadata.items() if name != "raw"}
    inner = _error_in(raw) or ({"message": raw} if isinstance(raw, str) else None)
    return as_text(fault.get("message") or ""), inner


def _error_in(value: Any) -> dict[str, Any] | None:
    """Fields of the error that this value is, or that stands in this text; None without one."""
    if not isinstance(value, str):
        return _fields(value) if json_object(value) or objects_in(value) else None
    start = value.find("{")
    if start < 0 or len(value) > _MAX_TEXT_CHARS or _nesting(value) > _MAX_NESTING:
        return None
    is_whole = not value[:start].strip(" \n[")
    for parsed in _parsed(value[start:]):
        names_error = {"error", "errors", "detail"} & parsed.keys()
        names_error = names_error or ("message" in parsed and {"code", "type"} & parsed.keys())
        fields = _fields(parsed)
        # A text may also quote the request; only what looks like an error is one.
        if fields.get("message") and (names_error or is_whole):
            return fields
    return None


def _parsed(text: str) -> Iterator[dict[str, Any]]:
    """Read the object at the start of a text as JSON, as escaped JSON, and as Python prints it."""
    escaped = re.sub(r'(?<!\\)\\+(["\'])', r"\1", re.sub(r"(?<!\\)\\+[nrt]", " ", text))
    for form in (text, escaped):
        with suppress(ValueError, RecursionError):
            if parsed := json_object(json.JSONDecoder(strict=False).raw_decode(form)[0]):
                yield parsed
    printed = text[: text.rfind("}") + 1]
    # Python's parser is only given a flat text without operators: it can exhaust the stack.
    if len(printed) > _MAX_PRINTED_CHARS or not _PRINTED.fullmatch(_STRINGS.sub("''", printed)):
        return
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        if parsed := json_object(ast.literal_eval(printed)):
            yield {as_text(name): value for name, value in parsed.items()}


def _nesting(text: str) -> int:
    """Deepest nesting of brackets, counted also in strings."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[{(\]})]", text):
        depth += 1 if bracket in "[{(" else -1
        deepest = max(deepest, depth)
    return deepest
