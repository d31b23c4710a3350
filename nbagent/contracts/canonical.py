"""Canonical JSON, hashes, ids and clocks. Equal values give equal bytes on every machine."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

import orjson

_LONG_NUMBER = re.compile(r"\d{19}")
_ID = re.compile(r"[0-9a-f]{16}")


def dump_json(value: Any) -> bytes:
    """Encode as compact UTF-8 JSON, also big integers and lone surrogates, which orjson refuses.

    Datetimes become ISO strings.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), default=datetime.isoformat).encode()


def load_json(data: bytes | str) -> Any:
    """Decode JSON. Integers of any size stay exact.

    Raises:
        ValueError: it is not JSON.
    """
    text = data.decode() if isinstance(data, bytes) else data
    if not _LONG_NUMBER.search(text):  # orjson reads integers over 64 bits as floats.
        with suppress(ValueError):  # Lone surrogates in escapes are legal for json only.
            return orjson.loads(text)
    return json.loads(text, parse_constant=_reject_constant)


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def canonical_json(value: Any) -> bytes:
    """Encode with sorted keys: equal values, equal bytes. For hashes and comparisons."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha256_hex(data: bytes | str) -> str:
    """SHA-256 of bytes, or of the UTF-8 of a text (lone surrogates kept)."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return hashlib.sha256(raw).hexdigest()


def sha_of(value: Any) -> str:
    """SHA-256 of a JSON value in canonical form."""
    return sha256_hex(canonical_json(value))


def new_id() -> str:
    """Make an id: 16 random hex digits, so that its first few digits identify a run."""
    return secrets.token_hex(8)


def is_run_id(text: str) -> bool:
    """True if a text has the form of an id made by `new_id`."""
    return _ID.fullmatch(text) is not None


def utc_now() -> datetime:
    """Current time in UTC, in whole microseconds."""
    return datetime.now(UTC)


def monotonic_ms() -> float:
    """Milliseconds of a monotonic clock; only differences are meaningful."""
    return time.perf_counter_ns() / 1e6


def json_object(value: Any) -> dict[str, Any] | None:
    """Return the value if it is a JSON object, else None."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
