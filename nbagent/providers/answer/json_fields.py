"""Read one value of a server's JSON, whatever its field is called: a text, a count, arguments."""

from __future__ import annotations

from typing import Any, cast

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.messages import is_storable_json
from nbagent.providers.transport.sse import fix_surrogates

_MAX_TOKENS = 2**53
"""Larger counts are ignored: the counter is broken, and a price would be computed from it."""


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Objects of a list; none for anything else."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def text_or_empty(value: Any) -> str:
    """Return the value if it is a text, else ''. Some servers send the text "null" for nothing."""
    return value if isinstance(value, str) and value != "null" else ""


def token_count(holder: Any, *path: str) -> int:
    """Read a count at a path of keys; 0 if there is none."""
    value = holder
    for name in path:
        value = (json_object(value) or {}).get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value <= _MAX_TOKENS else 0


def arguments_json(value: Any) -> str:
    """Arguments of a call as JSON text; some servers send them as an object."""
    if value is None or isinstance(value, str):
        return value or ""
    if not is_storable_json(value):
        # JSON, but not an object: the call gets an error result, and the answer is kept.
        return '"arguments nested too deeply, or with a number that is too large"'
    return dump_json(fix_surrogates(value)).decode()
