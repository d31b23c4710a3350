"""What is told of a notebook's values: one line each in a list, and one of them in detail.

The list and the questions to a person are made without running any code of a value's class;
details run it as a cell would. Nothing is told under a name that looks like a secret.
"""

from __future__ import annotations

import sys
import time
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, cast

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.ports import ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import is_secret_name, redact_cut, redact_json
from nbagent.shown import (
    BROKEN,
    PATIENCE_S,
    Fitted,
    clean,
    cut_middle,
    fitted,
    is_iterator,
    plain_repr,
    shown_text,
)
from nbagent.shown.pictures import of_class
from nbagent.shown.texts import kind_name
from nbagent.tools.notebook_names import (
    HIDDEN,
    is_environment,
    masked,
    masked_text,
    stored_attributes,
    visible_names,
)

_LIST_CHARS = 30_000
_VALUE_CHARS = 12_000
_TABLE_CHARS = 6_000
_LINE_CHARS = 80
_HEAD_ROWS, _TAIL_ROWS = 8, 3
_SAMPLE = 1_000
SCALARS = (bool, int, float, complex, str, bytes, type(None))
SIZED: tuple[Any, ...] = (
    *(str, bytes, bytearray, list, tuple, dict, set, frozenset, deque, range),
    *(OrderedDict, Counter, defaultdict),
)
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_ENVIRONMENT = "[the environment of the process, which is not shown]"
_CHEAP_SHAPES = frozenset(
    (
        *("numpy", "pandas", "polars", "pyarrow", "torch", "tensorflow", "jax", "jaxlib"),
        *("scipy", "cupy", "xarray", "geopandas", "h5py"),
    )
)
"""Packages whose objects say their shape without computing anything."""


def type_text(value: object) -> str:
    """The name of its class, with the package it comes from."""
    name, root = kind_name(value), _package(value)
    return name if root in ("", "builtins", "__main__") else f"{root}.{name}"


def _package(value: object) -> str:
    try:
        module: object = type.__getattribute__(type(value), "__module__")
    except BROKEN:
        return ""
    return module.partition(".")[0] if type(module) is str else ""


def facts_of(value: Any) -> dict[str, Any]:
    """Type, shape, length, size and, of a short plain value, the value. Runs none of its code."""
    facts: dict[str, Any] = {"type": type_text(value)}
    kind = cast("type[Any]", type(value))
    if kind in SIZED:
        facts["length"] = len(value)
        facts["bytes"] = sys.getsizeof(value)
    elif _package(value) in _CHEAP_SHAPES:
        facts |= _measures(value)
    else:
        sized = (plain for plain in (dict, list, tuple, set, str, bytes) if issubclass(kind, plain))
        for plain in islice(sized, 1):
            facts["length"] = cast("Any", plain).__len__(value)
    text = _short(value) if kind in SCALARS else None
    if text is not None:
        facts["value"] = text
    return facts


def _measures(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple):
            sizes = cast("tuple[Any, ...]", shape)
            found["shape"] = [size if type(size) is int else str(size)[:20] for size in sizes]
        dtype = getattr(value, "dtype", None)
        if dtype is not None:
            found["dtype"] = str(dtype)[:_LINE_CHARS]
        size: Any = None
        if of_class(value, "pandas", "DataFrame") or of_class(value, "pandas", "Series"):
            size = value.memory_usage(deep=False)
            size = size.sum() if hasattr(size, "sum") else size
        else:
            size = getattr(value, "nbytes", None)
        if size is not None and not callable(size):
            found["bytes"] = int(size)
    except BROKEN:
        pass
    return found


def _short(value: Any) -> str | None:
    """A plain value in one line; None when it takes more."""
    kind = cast("type[Any]", type(value))
    if (kind is int and value.bit_length() > 200) or (
        kind in (str, bytes) and len(value) > _LINE_CHARS
    ):
        return None
    return masked_text(redact_cut(clean(repr(value))))


def glance(value: Any, budget_chars: int = 400) -> str:
    """A value in a few words, for a question to a person. Runs none of its code."""
    pieces: list[str] = []
    left = budget_chars
    try:
        for piece in _glance(value, ()):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                pieces.append("…")
                break
    except BROKEN:
        # It changed in another thread meanwhile.
        return type_text(value)
    return masked_text(redact_cut(clean("".join(pieces))))


def _glance(value: Any, above: tuple[int, ...]) -> Iterator[str]:
    kind = cast("type[Any]", type(value))
    if kind in (str, bytes) and len(value) > 200:
        yield f"{kind.__name__} of {len(value):,}: {value[:150]!r}…"
    elif kind in SCALARS:
        yield _short(value) or f"int of {int(value).bit_length():,} bits"
    elif kind in (list, tuple, dict) and id(value) not in above and len(above) < 4:
        inner = (*above, id(value))
        items: list[Any] = list(islice(value, 50))
        yield "[" if kind is list else "(" if kind is tuple else "{"
        for place, item in enumerate(items):
            yield ", " if place else ""
            if kind is dict:
                yield from _glance(item, inner)
                yield ": "
                hidden = is_secret_name(item)
                yield from [HIDDEN] if hidden else _glance(value[item], inner)
            else:
                yield from _glance(item, inner)
        yield f", … {len(value):,} items" if len(value) > 50 else ""
        yield "]" if kind is list else ")" if kind is tuple else "}"
    else:
        facts = facts_of(value)
        told = [f"{key} {facts[key]}" for key in ("shape", "length") if key in facts]
        yield " ".join([f"<{facts['type']}", *told]) + ">"


def listed_names(names: Mapping[str, Any], pattern: str | None, limit: int) -> ToolOutcome:
    """The notebook's names by kind: variables with their facts, functions, classes, modules."""
    there = visible_names(names)
    wanted = {name: value for name, value in there.items() if _fits(name, pattern)}
    variables: list[dict[str, Any]] = []
    others: dict[str, list[str]] = {"functions": [], "classes": [], "modules": []}
    end = time.monotonic() + PATIENCE_S
    left, left_out = _LIST_CHARS, 0
    for name, value in wanted.items():
        if limit <= 0 or left <= 0:
            left_out += 1
            continue
        kind = _kind(value)
        if kind != "variables":
            told: Any = name if kind != "modules" else _module_line(name, value)
            others[kind].append(told)
        else:
            told = _line(name, value, late=time.monotonic() > end)
            variables.append(told)
        limit -= 1
        left -= len(dump_json(told)) + 1
    data: dict[str, Any] = {"variables": variables, **{k: v for k, v in others.items() if v}}
    if left_out:
        data["left_out"] = f"{left_out:,} of {len(wanted):,} names; narrow it with a pattern"
    elif pattern and not wanted:
        data["hint"] = f"none of the {len(there):,} names fits {pattern!r}"
    result = ToolResult(ok=True, data=redact_json(data))
    return ToolOutcome(result=result, truncated=bool(left_out))


def _fits(name: str, pattern: str | None) -> bool:
    if not pattern:
        return True
    pattern = pattern.lower()
    if not any(c in pattern for c in "*?["):
        pattern = f"*{pattern}*"
    return fnmatchcase(name.lower(), pattern)


def _kind(value: object) -> str:
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        return "modules"
    if issubclass(kind, type):
        return "classes"
    return "functions" if kind in FUNCTIONS else "variables"


def _module_line(name: str, module: Any) -> str:
    own = stored_attributes(module).get("__name__")
    return name if own == name or type(own) is not str else f"{name} ({own})"


def _line(name: str, value: object, *, late: bool) -> dict[str, Any]:
    if is_secret_name(name):
        return {"name": name, "type": type_text(value), "hidden": "looks like a secret"}
    if late:
        return {"name": name, "type": type_text(value)}
    return {"name": name, **facts_of(value)}


def value_shown(value: Any, budget_chars: int = _VALUE_CHARS) -> Fitted:
    """A value as JSON and images, as `shown` makes it, without what looks like a secret.

    An iterator is named and not read: looking at it must not use it up.
    """
    try:
        it = fitted(_guarded(value, 0), budget_chars)
    except BROKEN:
        it = Fitted(plain_repr(value, budget_chars), (), True)
    return Fitted(masked(redact_json(it.data)), it.parts, it.cut)


def _guarded(value: Any, depth: int) -> Any:
    """The value, with what must not be read or shown as it is replaced by words."""
    if is_iterator(value):
        return plain_repr(value, 200)
    if is_environment(value):
        return _ENVIRONMENT
    if of_class(value, "pandas", "DataFrame") or of_class(value, "pandas", "Series"):
        hidden = _secret_labels(value) or is_secret_name(getattr(value, "name", None))
        return _table_words(value) if hidden else value
    kind = cast("type[Any]", type(value))
    if kind not in (dict, list, tuple) or depth >= 4 or len(value) > _SAMPLE:
        return value
    if kind is dict:
        made: Any = {
            key: HIDDEN if is_secret_name(key) and item is not None else _guarded(item, depth + 1)
            for key, item in list(value.items())
        }
        return made if any(made[key] is not value[key] for key in made) else value
    made = [_guarded(item, depth + 1) for item in list(value)]
    same = all(new is old for new, old in zip(made, value, strict=False))
    return value if same else made


def _table_words(table: Any) -> str:
    if is_secret_name(getattr(table, "name", None)):
        return HIDDEN
    size = " × ".join(f"{n:,}" for n in table.shape)
    told = ends_shown(table)
    return "\n".join([f"{kind_name(table)} of {size}", *(f"{k}: {v}" for k, v in told.items())])


def table_shown(value: Any) -> str:
    return masked_text(shown_text(value, _TABLE_CHARS))


def _secret_labels(table: Any) -> list[str]:
    """Names of columns and labels of rows that look like secrets; of a long table the columns."""
    labels = list(table.columns) if of_class(table, "pandas", "DataFrame") else []
    if len(table) <= _SAMPLE:
        labels += list(table.index)
    return [cut_middle(str(label), 100) for label in labels if is_secret_name(label)]


def open_part(table: Any) -> Any:
    """A small table without the columns and rows whose names look like secrets."""
    rows = [place for place, label in enumerate(list(table.index)) if not is_secret_name(label)]
    if len(rows) < len(table):
        table = table.iloc[rows]
    if of_class(table, "pandas", "DataFrame"):
        names = list(table.columns)
        kept = [place for place, name in enumerate(names) if not is_secret_name(name)]
        return table if len(kept) == len(names) else table.iloc[:, kept]
    return table


def _ends(table: Any) -> tuple[Any, Any]:
    """The first rows, and the last ones where there are more."""
    rows = len(table)
    head = table.iloc[:_HEAD_ROWS]
    return head, table.iloc[-_TAIL_ROWS:] if rows > _HEAD_ROWS + _TAIL_ROWS else None


def ends_shown(table: Any) -> dict[str, Any]:
    """The first rows as text, the last ones where there are more, and what is not shown."""
    head, tail = _ends(table)
    told = {"head": table_shown(open_part(head))}
    if tail is not None:
        told["tail"] = table_shown(open_part(tail))
    if hidden := _secret_labels(table):
        told["not_shown"] = f"they look like secrets: {', '.join(hidden[:20])}"
    return told
