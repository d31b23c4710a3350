"""Filters of frames: a person's values as cells, and as conditions of SQL.

Pandas converts a value to a cell of its column; SQLite compares it. A person's text is never SQL.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from nbagent.contracts.canonical import utc_now
from nbagent.contracts.errors import UsageError
from nbagent.store.columns import TIMESTAMP, Dtype
from nbagent.store.dataframes.arrays import pandas_module
from nbagent.store.frame_queries import TEXT_FILTER, Frame
from nbagent.store.record_cells import to_us

SPECIAL_FILTERS = ("run", "since", "until", "limit", "whole")
VARIANT_FILTER = "variant"
"""Filter that takes labels by their axes, too: `variant={"prompt": "v2"}`."""
_TIME_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_MAX_VALUES = 30_000
"""SQLite allows 32,766 parameters in a statement; the rest is for other filters."""
_MAX_TEXTS = 500
"""SQLite refuses an expression of more than 1,000 levels, and each text is one."""
_RANGED: tuple[Dtype, ...] = ("Int64", "Float64", TIMESTAMP)
"""Dtypes of columns whose filters may be ranges."""
Condition = tuple[str, list[Any]]
"""SQL of a condition, and its parameters."""


def filter_condition(frame: Frame, name: str, value: Any) -> Condition:
    """Make the condition of a filter: a range, a text that is contained, or equal values."""
    if is_range(frame.dtype(name), value):
        return _range_condition(frame, name, value)
    if name == TEXT_FILTER:
        return _text_condition(frame, value)
    if name == VARIANT_FILTER and (several := variant_labels(value)):
        return _labels_condition(frame.expression(name), several)
    return _equality(frame, name, value)


def is_range(dtype: Dtype, value: Any) -> bool:
    """True for a pair of bounds. A list of two is two values; so is a pair of texts or flags."""
    return isinstance(value, tuple) and len(cast("Any", value)) == 2 and dtype in _RANGED


def _range_condition(frame: Frame, name: str, value: tuple[Any, Any]) -> Condition:
    dtype, expression = frame.dtype(name), frame.expression(name)
    try:
        low, high = (_bound(dtype, end) for end in value)
    except (TypeError, ValueError, OverflowError):
        raise _filter_error(name, value, dtype) from None
    if low is None and high is None:
        raise UsageError(
            f"{name}={_one_line(value)} has no bound; a range is (low, high), and one of them may "
            "be None"
        )
    if low is not None and high is not None and low > high:
        raise UsageError(
            f"{name}={_one_line(value)} ends before it begins: a range is (low, high); for two "
            "values write a list"
        )
    bounds = [(f"{expression} >= ?", low), (f"{expression} <= ?", high)]
    used = [(condition, cell) for condition, cell in bounds if cell is not None]
    return f"({' AND '.join(sql for sql, _ in used)})", [cell for _, cell in used]


def _bound(dtype: Dtype, value: Any) -> Any:
    """Cell of one end of a range; None for an open end."""
    if value is None or pandas_module().isna(value):
        return None
    if dtype == TIMESTAMP:
        return _parse_timestamp(value)
    if isinstance(value, bool | str | bytes) or not pandas_module().api.types.is_number(value):
        raise TypeError
    number = float(value)
    # SQLite compares integers exactly; above 2**53 a float is another number.
    return int(value) if number.is_integer() and abs(number) < 2**63 else number


def _text_condition(frame: Frame, value: Any) -> Condition:
    """Condition of a text that contains one of the values; the case of ASCII letters is ignored.

    An empty text is contained in every text, so it only finds empty ones.
    """
    expression = frame.expression(TEXT_FILTER)
    conditions: list[str] = []
    arguments: list[Any] = []
    for cell in filter_cells(TEXT_FILTER, value, "string"):
        if cell:
            # LIKE would stop at a NUL, and refuses texts of more than 50,000 bytes.
            conditions.append(f"instr(lower({expression}), lower(?))")
        else:
            conditions.append(f"{expression} IS ?")
        arguments.append(cell)
    return f"({' OR '.join(conditions) or '0'})", arguments


def variant_labels(value: Any) -> list[dict[str, list[str]]]:
    """Return the labels that a filter of variants names, by their axes; of one dict or several.

    Empty if the filter is the JSON of whole variants.
    """
    several = cast("list[Any]", value) if isinstance(value, list) else [value]
    if not several or not all(isinstance(labels, Mapping) for labels in several):
        return []
    if not all(several):
        raise UsageError("variant={} names no label; write variant={'prompt': 'v2'}")
    return [
        {
            _label_texts(axis)[0]: _label_texts(labels)
            for axis, labels in cast("Mapping[Any, Any]", entry).items()
        }
        for entry in several
    ]


def _label_texts(labels: Any) -> list[str]:
    """Return one label or several as texts, which labels of variants are."""
    several = cast("list[Any]", labels) if isinstance(labels, list | tuple | set) else [labels]
    if not several or not all(isinstance(label, str | int | float) for label in several):
        raise UsageError(
            f"variant: {_one_line(labels)} is no label; write variant={{'prompt': 'v2'}}"
        )
    return filter_cells(VARIANT_FILTER, [str(label) for label in several], "category")


def _labels_condition(expression: str, several: list[dict[str, list[str]]]) -> Condition:
    """Condition of a variant that has all labels of one of the dicts."""
    # A stranger's store may have any text there.
    labels_sql = f"json_each(CASE WHEN json_valid({expression}) THEN {expression} ELSE '{{}}' END)"
    arguments: list[Any] = []
    variants: list[str] = []
    for labels in several:
        conditions: list[str] = []
        for axis, texts in labels.items():
            marks = ",".join("?" * len(texts))
            conditions.append(
                f"EXISTS (SELECT 1 FROM {labels_sql} WHERE key = ? AND value IN ({marks}))"
            )
            arguments += [axis, *texts]
        variants.append(f"({' AND '.join(conditions)})")
    return f"({' OR '.join(variants)})", arguments


def _equality(frame: Frame, name: str, value: Any) -> Condition:
    """SQL condition for a filter, and its parameters."""
    wanted, expression = filter_cells(name, value, frame.dtype(name)), frame.expression(name)
    cells = [cell for cell in wanted if cell is not None]
    placeholders = ",".join("?" * len(cells))
    conditions = [f"{expression} IN ({placeholders})"]
    column = frame.by_name.get(name)
    if name == "tags":  # a JSON array: one equal tag is enough
        conditions.append(
            f"EXISTS (SELECT 1 FROM json_each({expression}) WHERE value IN ({placeholders}))"
        )
    elif column is not None and column.is_hash:
        conditions.append(f"{expression} IN (SELECT +n FROM hashes WHERE sha IN ({placeholders}))")
    if not cells:  # alone, so that SQLite sees that a partial index fits
        return f"{expression} IS NULL" if None in wanted else "0", []
    arguments = cells * len(conditions)
    if None in wanted:
        conditions.append(f"{expression} IS NULL")
    return f"({' OR '.join(conditions)})", arguments


def filter_cells(name: str, value: Any, dtype: Dtype) -> list[Any]:
    """Distinct values of a filter as SQLite stores them; None is a missing value."""
    pd = pandas_module()
    try:
        if isinstance(value, Mapping):  # its keys are no values
            raise TypeError
        values: list[Any] = list(value) if pd.api.types.is_list_like(value) else [value]
        if dtype == TIMESTAMP:
            cells = [_parse_timestamp(entry) for entry in values]
        elif dtype in ("string", "category"):
            # Only texts, and no half of a surrogate pair, which SQLite cannot compare: encode()
            # raises for both.
            cells = [None if pd.isna(entry) else str.encode(entry).decode() for entry in values]
        else:
            array: Any = pd.array(values, dtype=dtype)
            cells = [None if pd.isna(entry) else entry for entry in array.tolist()]
        distinct = list(dict.fromkeys(cells))
        if len(distinct) > (_MAX_TEXTS if name == TEXT_FILTER else _MAX_VALUES):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise _filter_error(name, value, dtype) from None
    return distinct


def single_cell(name: str, value: Any, dtype: Dtype) -> Any:
    """The single value of a filter; UsageError if there are several or none."""
    cells = filter_cells(name, value, dtype)
    if len(cells) != 1 or cells[0] is None:
        raise _filter_error(name, value, dtype)
    return cells[0]


_DTYPE_WORDS: dict[Dtype, str] = {
    "string": "text",
    "category": "text",
    "Int64": "a whole number",
    "Float64": "a number",
    "boolean": "True or False",
    TIMESTAMP: "a datetime or a text like '2026-03-04', 'today', '7d'",
}


def _filter_error(name: str, value: Any, dtype: Dtype) -> UsageError:
    most = _MAX_TEXTS if name == TEXT_FILTER else _MAX_VALUES
    further = "" if name in SPECIAL_FILTERS else f", or up to {most:,} of them in a list"
    if further and dtype in _RANGED:
        further += ", or a range: (low, high)"
    return UsageError(
        f"{name}={_one_line(value)} is not a valid filter; give {_DTYPE_WORDS[dtype]}{further}"
    )


def _one_line(value: Any) -> str:
    # The repr of a DataFrame has several lines; an error has one.
    return " ".join(reprlib.repr(value).split())


def _parse_timestamp(value: Any) -> int | None:
    """Parse a time to microseconds since 1970; without a time zone it is UTC."""
    pd = pandas_module()
    ago = re.fullmatch(r"(\d{1,6}) ?([mhdw])", value) if isinstance(value, str) else None
    if ago:
        value = utc_now() - timedelta(**{_TIME_UNITS[ago[2]]: int(ago[1])})
    elif isinstance(value, str) and value == "today":
        value = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    elif isinstance(value, int | float) and not pd.isna(value):
        raise TypeError
    moment: Any = pd.to_datetime(value, utc=True)
    return None if pd.isna(moment) else to_us(moment.to_pydatetime(warn=False))
