"""What a person gives as a filter of a frame → the cells that SQLite compares. Knows no pandas.

Takes what a frame's own cells and columns are: numpy's scalars, arrays, Series, missing values.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from nbagent.archive.columns import Dtype
from nbagent.archive.store.moments import to_us
from nbagent.archive.store.rows import is_text
from nbagent.contracts.errors import UsageError

_LARGEST = 2**63 - 1
_MOST_VALUES = 30_000
"""SQLite takes 32,766 parameters; the rest is for other filters."""
_TEXT = "text (whole characters, no half of a surrogate pair)"
_TAKES: dict[Dtype, str] = {
    "string": _TEXT,
    "category": _TEXT,
    "Int64": "a whole number of at most 64 bits",
    "Float64": "a number",
    "boolean": "True or False",
    "datetime64[us, UTC]": "a datetime or text such as '2026-03-04' or '2026-03-04T05:06:07+01:00'",
}


def cells_of(name: str, value: Any, dtype: Dtype) -> list[Any]:
    """The different values that a filter gives, as cells of its column; None is a missing one.

    Raises:
        UsageError: a value that no cell of the column can have.
    """
    cells = list(dict.fromkeys(_cell(name, it, dtype) for it in _values(name, value, dtype)))
    if len(cells) > _MOST_VALUES:
        raise UsageError(
            f"{name} has {len(cells):,} values, more than {_MOST_VALUES:,}; "
            "ask without it and select from the frame"
        )
    return cells


def text_of(name: str, value: Any) -> str:
    """The one text that a filter gives."""
    cell = _cell(name, _plain(value), "string")
    if cell is None:
        raise _unusable(name, value, _TAKES["string"])
    return cell


def moment_of(name: str, value: Any) -> int:
    """The one point in time that a filter gives, in microseconds since 1970."""
    cell = _cell(name, _plain(value), "datetime64[us, UTC]")
    if cell is None:
        raise _unusable(name, value, _TAKES["datetime64[us, UTC]"])
    return cell


def limit_of(value: Any) -> int | None:
    """How many rows at most; None for all."""
    plain = _plain(value)
    if _is_missing(plain):
        return None
    if isinstance(plain, int) and 0 <= plain <= _LARGEST:
        return plain
    raise UsageError(
        f"limit must be a whole number from 0 to {_LARGEST}, not {reprlib.repr(value)}"
    )


def _values(name: str, value: Any, dtype: Dtype) -> list[Any]:
    plain = _plain(value)
    if isinstance(plain, str | bytes) or not isinstance(plain, Collection):
        return [plain]
    # A table has rows of rows; what a mapping's values would mean is anyone's guess.
    if isinstance(plain, Mapping) or len(getattr(cast("Any", plain), "shape", (0,))) != 1:
        raise _unusable(name, value, f"{_TAKES[dtype]}, or a list of such values")
    return [_plain(it) for it in cast("Collection[Any]", plain)]


def _plain(value: Any) -> Any:
    """Python's own value of a scalar of numpy; anything else as it is."""
    if getattr(value, "shape", None) != ():
        return value
    if getattr(value.dtype, "kind", "") == "M":
        # Of nanoseconds `item()` would make a bare number.
        value = value.astype("datetime64[us]")
    return value.item()


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and math.isnan(value)


def _cell(name: str, value: Any, dtype: Dtype) -> Any:
    if _is_missing(value):
        return None
    cell: Any = None
    match dtype:
        case "string" | "category":
            cell = str.__str__(value) if isinstance(value, str) and is_text(value) else None
        case "Int64":
            cell = _whole(value)
        case "boolean":
            cell = _whole(value)
            cell = cell if cell in (0, 1) else None
        case "Float64":
            cell = _float(value)
        case "datetime64[us, UTC]":
            cell = _microseconds(value)
    if cell is None:
        raise _unusable(name, value, _TAKES[dtype])
    return cell


def _whole(value: Any) -> int | None:
    # A column of whole numbers that passed through pandas with a gap in it is one of floats.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return int(value) if isinstance(value, int) and -_LARGEST <= value <= _LARGEST else None


def _float(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None


def _microseconds(value: Any) -> int | None:
    """Of a datetime (also pandas' own) or ISO text; without a zone it is UTC."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        return None
    # pandas' own subtraction gives numpy's integers.
    return int(to_us(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)))


def _unusable(name: str, value: Any, takes: str) -> UsageError:
    # A table shows itself on several lines.
    seen = " ".join(reprlib.repr(value).split())
    return UsageError(f"{name}={seen} cannot be looked for; give {takes}")
