"""JSON as servers write it: decoded leniently, looked at without trust.

Knows no dialect. What the values mean belongs to the adapters.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

import orjson

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ModelError
from nbagent.providers.errors import start_of

_LOOKED_INTO_BYTES = 1024 * 1024
_MOST_VALUES = 500_000
_SURROGATE = re.compile("[\ud800-\udfff]")


def load_wire(data: bytes) -> Any:
    """Decode JSON of a server: NaN and lone surrogates are accepted, broken text is not."""
    # A few megabytes of empty lists would be hundreds of megabytes of objects.
    if len(data) > _LOOKED_INTO_BYTES and sum(map(data.count, b"[{,")) > _MOST_VALUES:
        raise bad_answer(f"more than {_MOST_VALUES:,} values are in it")
    try:
        return orjson.loads(data)
    except ValueError:
        pass
    try:
        # Without lone surrogates: neither SQLite nor a front end can take them.
        return _mended(json.loads(data.decode("utf-8-sig")))
    except (ValueError, RecursionError):
        shown = start_of(data)
    raise bad_answer(f"a part of it is not JSON ({shown!r})")


def bad_answer(what: str, *, retry: bool = False) -> ModelError:
    """The error for an answer that cannot be used."""
    return ModelError(
        f"the server's answer cannot be used: {what}. Try again, or check the base URL.",
        code="LLM_BAD_RESPONSE",
        retryable=retry,
    )


def first_object(value: Any) -> dict[str, Any] | None:
    """The first item of a list if it is an object."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return json_object(items[0]) if items else None


def objects_in(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; of anything else none."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def text_or_empty(value: Any) -> str:
    """The value if it is a text; `null` written as a text counts as none."""
    return value if isinstance(value, str) and value != "null" else ""


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_mended(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {_mended(k): _mended(v) for k, v in cast("dict[str, Any]", value).items()}
    return value
