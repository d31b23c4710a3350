"""Messages of MCP servers that break the protocol: read as they were meant, or refused by name.

The one border for odd messages: behind it, `connection` and the package `mcp` see correct ones.
"""

from __future__ import annotations

import re
from typing import Any, cast

from mcp_types import PARSE_ERROR, JSONRPCError, JSONRPCResponse
from pydantic import ValidationError

from nbagent.contracts.canonical import json_object

BATCH = (
    "it answered with a JSON batch (a list of messages), which MCP does not have any more; use a "
    "newer version of the server"
)
INVALID = "it sent an invalid message"
_UNREADABLE = re.compile(r"Failed to parse (?:JSON response|SSE message)")
"""The package's own texts for an answer over HTTP that is no message."""
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
    if "content" in result and result["content"] is None:
        result["content"] = []
    cursor: Any = result.get("nextCursor", "")
    if cursor in (None, "", False):
        result.pop("nextCursor", None)
    elif type(cursor) in (int, float):
        result["nextCursor"] = str(cursor)


def repair_error(error: JSONRPCError) -> None:
    """Name a batch over HTTP, for which the package has a page of validation errors."""
    text = error.error.message
    if error.error.code == PARSE_ERROR and _UNREADABLE.match(text):
        kinds = set(re.findall(r"input_type=(\w+)", text))
        if kinds == {"list"}:
            error.error.message = BATCH


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
