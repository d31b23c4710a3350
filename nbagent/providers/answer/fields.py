"""Fields of answers as servers write them: texts, counts, arguments."""

from __future__ import annotations

from typing import Any, cast

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.messages import is_storable_json
from nbagent.providers.transport.sse import clean

_MOST_TOKENS = 2**53
"""Of one count: no model has read so much, a broken counter says nothing, also of the price."""


def objects_in(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; of anything else none."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def text_or_empty(value: Any) -> str:
    """The value if it is a text; `null` written as a text counts as none."""
    return value if isinstance(value, str) and value != "null" else ""


def tokens(holder: Any, *path: str) -> int:
    """A count in an object, or in objects within it; 0 for what is none."""
    value = holder
    for name in path:
        value = (json_object(value) or {}).get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value <= _MOST_TOKENS else 0


def arguments_of(value: Any) -> str:
    """The arguments of a call as text, also where a server sends them decoded."""
    if value is None or isinstance(value, str):
        return value or ""
    if not is_storable_json(value):
        # Text that is JSON and no object: the call is answered with an error, the rest is kept.
        return '"arguments nested too deeply, or with a number that is too large"'
    return dump_json(clean(value)).decode()
