"""What a server gave back for a call, as the result that a model is given.

Owns the kinds of content. Budgets, redaction and the naming of images are `tools.results`'.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, NamedTuple, Protocol

from nbagent.contracts.canonical import dump_json, json_object, load_json
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact_cut
from nbagent.shown import clean, cut_middle
from nbagent.shown.pictures import encoded_image
from nbagent.tools.mcp.life import UNREADABLE
from nbagent.tools.mcp.texts import visible
from nbagent.tools.results import result_of

_ERROR_CHARS = 4_000
_MOST_BLOCKS = 200
_LARGEST_IMAGE_CHARS = 70_000_000
_WORD_CHARS = 200
_INVALID_PARAMS = -32602


class Settled(NamedTuple):
    """A result, and whether it was cut."""

    result: ToolResult
    truncated: bool


def _settled(value: object) -> Settled:
    outcome = result_of(value)
    return Settled(outcome.result, outcome.truncated)


class Answer(Protocol):
    """The `mcp` package's `CallToolResult`, as far as it is used here."""

    is_error: bool

    def model_dump(self, *, mode: str, by_alias: bool, exclude_none: bool) -> dict[str, Any]:
        """As plain JSON."""
        ...


def settled(answer: Answer) -> Settled:
    """The answer to a call, within the budget of a tool result."""
    raw = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    blocks = [json_object(block) or {} for block in raw.get("content", [])]
    if answer.is_error:
        return Settled(ToolResult.failure(_error_of(blocks, raw)), False)
    items: list[Any] = [_item(block) for block in blocks[:_MOST_BLOCKS]]
    if len(blocks) > _MOST_BLOCKS:
        items.append(f"[{len(blocks) - _MOST_BLOCKS:,} more pieces of content, not sent]")
    if "structuredContent" not in raw:
        return _settled(items[0] if len(items) == 1 else items)
    structured = raw["structuredContent"]
    # For older clients servers say the same once more as text.
    items = [item for item in items if not _says(item, structured)]
    return _settled({"structured": structured, "content": items} if items else structured)


def refused(code: int, message: str) -> ErrorInfo:
    """The error for a call that the server refused in the protocol's own way."""
    told = _for_model(message) or "it gave no reason"
    if code == UNREADABLE:
        return ErrorInfo("E_TOOL_FAILED", f"the server's answer cannot be used: {told}")
    if code == _INVALID_PARAMS:
        return ErrorInfo("E_INVALID_ARGUMENTS", f"the server refused the call: {told}")
    return ErrorInfo("E_TOOL_FAILED", f"the server answered with error {code}: {told}")


def _for_model(text: str) -> str:
    return redact_cut(clean(cut_middle(text.strip(), _ERROR_CHARS)))


def _error_of(blocks: list[dict[str, Any]], raw: dict[str, Any]) -> ErrorInfo:
    texts = [str(block["text"]) for block in blocks if block.get("type") == "text"]
    if not any(texts) and "structuredContent" in raw:
        texts = [dump_json(raw["structuredContent"]).decode()]
    told = _for_model("\n".join(texts))
    return ErrorInfo("E_TOOL_FAILED", told or "the tool failed without saying why")


def _item(block: dict[str, Any]) -> Any:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "image":
        return _image(block.get("data"), block.get("mimeType"), "")
    if kind == "audio":
        size = _size(block.get("data"))
        return f"[audio, {_word(block.get('mimeType'))}, {size:,} bytes: not sent]"
    if kind == "resource_link":
        return {"resource_link": _described(block)}
    if kind == "resource":
        return _embedded(json_object(block.get("resource")) or {})
    return f"[content of the unknown kind {_word(kind)}: not sent]"


def _described(resource: dict[str, Any]) -> dict[str, Any]:
    keys = ("uri", "name", "title", "description", "mimeType", "size")
    return {key: resource[key] for key in keys if key in resource}


def _embedded(resource: dict[str, Any]) -> Any:
    told = _described(resource)
    if "text" in resource:
        return {"resource": {**told, "text": str(resource["text"])}}
    mime = str(resource.get("mimeType", ""))
    if mime.startswith("image/"):
        image = _image(resource.get("blob"), mime, visible(str(told.get("uri", "")), _WORD_CHARS))
        return {"resource": {**told, "image": image}}
    return {"resource": {**told, "blob": f"[{_size(resource.get('blob')):,} bytes: not sent]"}}


def _image(data: object, mime: object, alt: str) -> Any:
    if isinstance(data, str) and len(data) <= _LARGEST_IMAGE_CHARS:
        try:
            image = encoded_image(base64.b64decode(data, validate=True), alt)
        except (binascii.Error, ValueError):
            image = None
        if image is not None:
            return image
    return f"[image, {_word(mime)}, {_size(data):,} bytes: cannot be sent]"


def _size(data: object) -> int:
    """Bytes of what stands there in base64."""
    return len(data) * 3 // 4 - data[-2:].count("=") if isinstance(data, str) else 0


def _word(value: object) -> str:
    return visible(str(value), _WORD_CHARS)


def _says(item: Any, structured: Any) -> bool:
    """Whether a text is the structured content, or the one value in it (`{"result": …}`)."""
    if not isinstance(item, str):
        return False
    values = [structured]
    whole = json_object(structured)
    if whole is not None and len(whole) == 1:
        values += whole.values()
    if item in values:
        return True
    try:
        said: Any = load_json(item)
    except (ValueError, RecursionError):
        return False
    return any(type(said) is type(value) and said == value for value in values)
