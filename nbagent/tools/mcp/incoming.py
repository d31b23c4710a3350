"""Messages of MCP servers that break the protocol: read as they were meant, or refused by name.

The one border for odd messages: behind it, `connection` and the package `mcp` see correct ones.
"""

from __future__ import annotations

import re
from typing import Any, cast

from mcp_types import PARSE_ERROR, CallToolResult, JSONRPCError, JSONRPCResponse
from pydantic import ValidationError

from nbagent.contracts.canonical import dump_json, json_object

BATCH = (
    "it answered with a JSON batch (a list of messages), which MCP does not have any more; use a "
    "newer version of the server"
)
INVALID = "it sent an invalid message"
_UNREADABLE = re.compile(r"Failed to parse (?:JSON response|SSE message)")
"""The package's own texts for an answer over HTTP that is no message."""
_OPTIONAL_FIELDS = {"title": str, "description": str, "annotations": dict, "outputSchema": dict}
"""Fields of a definition that are dropped if they have another type."""
_FALSE_TEXTS = ("", "0", "false", "no", "off", "none", "null")


def repair_response(response: JSONRPCResponse) -> None:
    """Give the fields of a result their types where the meaning is clear.

    `isError` of any type counts as in JavaScript, in which most servers are written; a `null` is
    the field's default. A cursor that is empty ends a listing, a number becomes a text.
    """
    result = response.result
    is_error = result.get("isError", False)
    if type(is_error) is not bool:
        is_text = isinstance(is_error, str)
        result["isError"] = (
            is_error.strip().lower() not in _FALSE_TEXTS if is_text else bool(is_error)
        )
    if "tools" in result:
        _repair_definitions(result)
    if "content" in result or "structuredContent" in result:
        _repair_content(result)
    cursor: Any = result.get("nextCursor", "")
    if type(cursor) in (int, float):
        result["nextCursor"] = str(cursor)
    elif not isinstance(cursor, str) or not cursor.strip():
        result.pop("nextCursor", None)


def _repair_definitions(result: dict[str, Any]) -> None:
    """Complete definitions in which a schema is missing or names no type; drop odd texts."""
    if result["tools"] is None:
        result["tools"] = []
    if not isinstance(result["tools"], list):
        return
    for tool in cast("list[Any]", result["tools"]):
        fields = json_object(tool)
        if fields is None:
            continue
        schema: Any = fields.get("inputSchema")
        if schema is None or isinstance(schema, dict):
            # Tools without parameters often have `{}`.
            tool["inputSchema"] = {"type": "object", **(schema or {})}
        for name, kind in _OPTIONAL_FIELDS.items():
            if not isinstance(fields.get(name, kind()), kind):
                del tool[name]


def _repair_content(result: dict[str, Any]) -> None:
    """Make the content of a call's result a list of blocks that the package reads."""
    content: Any = result.get("content")
    items = cast("list[Any]", content) if isinstance(content, list) else [content]
    blocks = [_content_block(item) for item in items if item is not None]
    structured = result.get("structuredContent")
    if structured is not None and not isinstance(structured, dict):
        del result["structuredContent"]
        blocks = blocks or [_text_block(structured)]
    result["content"] = blocks


def _content_block(item: Any) -> Any:
    """Read a block with missing or wrong fields as text; others stay as they are."""
    fields = json_object(item)
    if fields is None:
        return _text_block(item)
    block = {name: value for name, value in fields.items() if name != "annotations"}
    block["type"] = str(block.get("type", "text")).lower()
    try:
        CallToolResult.model_validate({"content": [block]}, by_name=False)
    except (ValueError, RecursionError):
        text = fields.get("text")
        return _text_block(fields if text is None else text)
    return block


def _text_block(value: Any) -> dict[str, Any]:
    try:
        text = value if isinstance(value, str) else dump_json(value).decode()
    except (ValueError, TypeError, RecursionError):
        text = "[content that cannot be read]"
    return {"type": "text", "text": text}


def repair_error(error: JSONRPCError) -> None:
    """Name a batch over HTTP, for which the package has a page of validation errors."""
    text = error.error.message
    if error.error.code == PARSE_ERROR and _UNREADABLE.match(text):
        kinds = set(re.findall(r"input_type=(\w+)", text))
        if kinds == {"list"}:
            error.error.message = BATCH


def first_problem(error: ValidationError) -> str:
    """Name the first wrong field in one line."""
    problem = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"


def unreadable_line(error: Exception) -> str:
    """The line of stdout that could not be read as a message."""
    pieces = [str(error)]
    if isinstance(error, ValidationError):
        pieces = [str(each["input"]) for each in error.errors(include_url=False)]
    return max(pieces, key=len)


def failure_of(error: Exception) -> str:
    """Why an unreadable line ends the session; empty for a line that is no message.

    Many servers print a banner or a log to stdout by mistake; such lines are only logged.
    """
    values: list[Any] = []
    if isinstance(error, ValidationError):
        values = [each["input"] for each in error.errors(include_url=False)]
    lists = [cast("list[Any]", value) for value in values if isinstance(value, list)]
    if any("jsonrpc" in (json_object(item) or {}) for items in lists for item in items):
        return BATCH
    line = unreadable_line(error).lstrip()
    is_broken = re.match(r"\[?\s*\{", line) is not None and "jsonrpc" in line
    return INVALID if is_broken else ""
