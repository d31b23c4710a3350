"""What is shown of a notebook's values: one line each in a list, and one of them in detail.

The list and the questions to a person are made without running any code of a value's class; details
run it as a cell would: call them where a stop reaches them. How a value looks within a budget is
`shown`'s; what is hidden under which name is `notebook_names`'.
"""

from __future__ import annotations

import inspect
import math
import reprlib
import sys
import types
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, cast

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.ports import ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import is_secret_name
from nbagent.shown import (
    BROKEN,
    Fitted,
    Normal,
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
    stored_attributes,
    visible_names,
)

_LIST_CHARS = 30_000
_VALUE_CHARS = 12_000
_TABLE_CHARS = 6_000
_DOC_CHARS = 4_000
_GLANCE_CHARS = 800
_LINE_CHARS = 80
_MOST_NAMES = 200
_SAMPLE = 1_000
"""Rows of a table from each end; no budget shows more."""
_DESCRIBED_CELLS = 2_000_000
"""Of a larger table or array, evenly spread rows are described."""
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_SIZED: tuple[Any, ...] = (
    *(str, bytes, bytearray, list, tuple, dict, set, frozenset, deque, range),
)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_CHEAP_SHAPES = frozenset(
    (
        *("numpy", "pandas", "polars", "pyarrow", "torch", "tensorflow", "jax", "jaxlib"),
        *("scipy", "cupy", "xarray", "geopandas", "h5py"),
    )
)
"""Packages whose objects say their shape without computing anything."""


# Without running any code of a value


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
    """Type, shape, length, size and, of a short plain value, the value."""
    facts: dict[str, Any] = {"type": type_text(value)}
    kind = cast("type[Any]", type(value))
    plain: Any = next((it for it in _SIZED if issubclass(kind, it)), None)
    if plain is not None:
        facts |= {"length": plain.__len__(value), "bytes": plain.__sizeof__(value)}
    elif _package(value) in _CHEAP_SHAPES:
        facts |= _measures(value)
    long = kind is int and value.bit_length() > 200
    if kind in _SCALARS and not long and facts.get("length", 0) <= _LINE_CHARS:
        facts["value"] = clean(repr(value))
    return facts


def _measures(value: Any) -> dict[str, Any]:
    measures: dict[str, Any] = {}
    try:
        if type(shape := getattr(value, "shape", None)) is tuple:
            measures["shape"] = [n if type(n) is int else str(n)[:20] for n in cast("Any", shape)]
        if (dtype := getattr(value, "dtype", None)) is not None:
            measures["dtype"] = str(dtype)[:_LINE_CHARS]
        size: Any = getattr(value, "nbytes", None)
        if of_class(value, "pandas", "DataFrame"):
            size = value.memory_usage(deep=False).sum()
        measures["bytes"] = int(size)
    except BROKEN:
        pass
    return measures


class _Glance(reprlib.Repr):
    """The `repr` of plain values, short; of any other one its type and size."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxlist = self.maxtuple = self.maxdict = 20
        self.maxstring = 200

    def repr1(self, x: Any, level: int) -> str:
        kind = cast("type[Any]", type(x))
        if kind in (list, tuple, dict, str):
            return super().repr1(x, level)
        facts = facts_of(x)
        if "value" in facts:
            return facts["value"]
        sizes = [f"{key} {facts[key]}" for key in ("shape", "length") if key in facts]
        return f"<{' '.join([facts['type'], *sizes])}>"

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        if level <= 0:
            return "{...}"
        items = [
            f"{self.repr1(key, level - 1)}: "
            + (HIDDEN if is_secret_name(key) else self.repr1(item, level - 1))
            for key, item in islice(x.items(), self.maxdict)
        ]
        return "{" + ", ".join([*items, *(["..."] if len(x) > self.maxdict else [])]) + "}"


_glance = _Glance()


def glance(value: Any) -> str:
    """A value in a few words, for a question to a person."""
    try:
        return masked(cut_middle(clean(_glance.repr(value)), _GLANCE_CHARS))
    except BROKEN:
        # It changed in another thread meanwhile.
        return type_text(value)


def listed_names(names: Mapping[str, Any], pattern: str | None, limit: int) -> ToolOutcome:
    """The notebook's names by kind: variables with their facts, functions, classes, modules."""
    there = visible_names(names)
    wanted = {name: value for name, value in there.items() if _fits(name, pattern)}
    data: dict[str, Any] = {"variables": [], "functions": [], "classes": [], "modules": []}
    left, n_listed = _LIST_CHARS, 0
    for name, value in islice(wanted.items(), limit):
        kind, line = _line(name, value)
        data[kind].append(line)
        left -= len(dump_json(line)) + 1
        n_listed += 1
        if left <= 0:
            break
    data = {kind: lines for kind, lines in data.items() if lines or kind == "variables"}
    if left_out := len(wanted) - n_listed:
        data["left_out"] = f"{left_out:,} of {len(wanted):,} names; narrow it with a pattern"
    elif pattern and not wanted:
        data["hint"] = f"none of the {len(there):,} names fits {pattern!r}"
    result = ToolResult(ok=True, data=masked(data))
    return ToolOutcome(result=result, truncated=bool(left_out))


def _fits(name: str, pattern: str | None) -> bool:
    pattern = (pattern or "").lower()
    if not any(c in pattern for c in "*?["):
        pattern = f"*{pattern}*"
    return fnmatchcase(name.lower(), pattern)


def _line(name: str, value: object) -> tuple[str, Any]:
    """The kind of a name and what is listed of it."""
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        own = stored_attributes(value).get("__name__")
        return "modules", name if own == name or type(own) is not str else f"{name} ({own})"
    if issubclass(kind, type):
        return "classes", name
    if kind in _FUNCTIONS:
        return "functions", name
    if is_secret_name(name):
        return "variables", {"name": name, "type": type_text(value), "value": HIDDEN}
    return "variables", {"name": name, **facts_of(value)}


# In detail


class _Guarded(Normal):
    """What a model may see of a value: no iterator is used up, no environment shown, and of tables
    no column or row whose name looks like a secret. Keys are `masked`'s."""

    def json(self, value: Any) -> Any:
        """The value as plain JSON."""
        if is_iterator(value):
            return self.text(plain_repr(value, 200))
        if is_environment(value):
            return self.text("[the environment of the process, which is not shown]")
        return super().json(_opened(value) if _is_table(value) else value)


def value_shown(value: Any, budget_chars: int = _VALUE_CHARS, *, draws: bool = True) -> Fitted:
    """A value as JSON and images, as `shown` makes it, without what looks like a secret."""
    it = fitted(value, budget_chars, kind=_Guarded, draws=draws)
    return Fitted(masked(it.data), it.parts, it.cut)


def inspected(name: str, value: Any) -> ToolOutcome:
    """One value in detail."""
    it = value_shown(value, _TABLE_CHARS if _is_table(value) else _VALUE_CHARS)
    facts = {**facts_of(value), "value": it.data}
    details = masked(_quietly(lambda: _details(value)) or {})
    result = ToolResult(ok=True, data={"name": name, **facts, **details}, attachments=it.parts)
    return ToolOutcome(result=result, truncated=it.cut)


def _quietly(compute: Callable[[], Any]) -> Any:
    """What is computed, without its warnings; None when it fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compute()
    except BROKEN:
        return None


def _details(value: Any) -> dict[str, Any]:
    """What is said of its kind beside the value."""
    kind = cast("type[Any]", type(value))
    if _is_table(value):
        return _statistics(value)
    if of_class(value, "numpy", "ndarray") and value.dtype.kind in "biuf" and value.size:
        return _numbers(value)
    if issubclass(kind, (*_FUNCTIONS, type)):
        return _code(value)
    stored = {n: v for n, v in stored_attributes(value).items() if not str(n).startswith("_")}
    if issubclass(kind, types.ModuleType):
        return {"docstring": _text(value.__doc__, _DOC_CHARS), **_names(stored)}
    if issubclass(kind, _SIZED) or not stored:
        return {}
    return {"attributes": {n: type_text(v) for n, v in islice(stored.items(), _MOST_NAMES)}}


def _names(held: Mapping[Any, Any]) -> dict[str, Any]:
    names = sorted(name for name in list(held) if type(name) is str and not name.startswith("_"))
    more = {"names_left_out": len(names) - _MOST_NAMES} if len(names) > _MOST_NAMES else {}
    return {"names": names[:_MOST_NAMES], **more}


def _text(text: object, budget_chars: int) -> str:
    return clean(cut_middle(text.strip(), budget_chars)) if type(text) is str else ""


def _code(thing: Any) -> dict[str, Any]:
    """Signature, docstring and source of a function or a class."""
    signature = _quietly(lambda: f"{thing.__name__}{inspect.signature(thing)}")
    details = {
        "signature": _text(signature, 1_000),
        "docstring": _text(_quietly(lambda: inspect.getdoc(thing)), _DOC_CHARS),
        "source": _text(_quietly(lambda: inspect.getsource(thing)), _VALUE_CHARS),
    }
    details = {key: text for key, text in details.items() if text}
    return details | _names(cast("Any", vars(thing))) if issubclass(type(thing), type) else details


def _numbers(array: Any) -> dict[str, Any]:
    numpy: Any = sys.modules["numpy"]
    every = math.ceil(array.size / (_DESCRIBED_CELLS * 10))
    flat = array.reshape(-1)[::every] if array.flags.c_contiguous else array
    details = {
        name: fitted(getattr(numpy, f"nan{name}")(flat).item(), 100).data
        for name in ("min", "max", "mean")
    }
    return details | ({"computed_from": f"every {every}th element"} if every > 1 else {})


# Tables


def _is_table(value: object) -> bool:
    return of_class(value, "pandas", "DataFrame") or of_class(value, "pandas", "Series")


def _secret_labels(table: Any) -> list[Any]:
    """Names of columns and labels of rows that look like secrets, of as many as may be shown."""
    labels = list(table.columns) if of_class(table, "pandas", "DataFrame") else [table.name]
    labels += [*table.index[:_SAMPLE], *table.index[-_SAMPLE:]]
    return [label for label in dict.fromkeys(labels) if is_secret_name(label)]


def _opened(table: Any, most_rows: int | None = _SAMPLE) -> Any:
    """A table without the columns and rows whose names look like secrets, then its first rows."""
    if not _secret_labels(table):
        return table
    table = table.iloc[:most_rows]
    rows = [i for i, label in enumerate(list(table.index)) if not is_secret_name(label)]
    if of_class(table, "pandas", "Series"):
        return HIDDEN if is_secret_name(table.name) else table.iloc[rows]
    columns = [i for i, label in enumerate(list(table.columns)) if not is_secret_name(label)]
    return table.iloc[rows, columns]


def _statistics(table: Any) -> dict[str, Any]:
    """What `describe` and `isna` say of the rows, or of evenly spread ones of very many."""
    details: dict[str, Any] = {}
    if hidden := _secret_labels(table):
        names = ", ".join(cut_middle(str(label), 100) for label in hidden[:20])
        details["not_shown"] = f"they look like secrets: {names}"
    every = max(math.ceil(table.size / _DESCRIBED_CELLS), 1)
    part = _opened(table.iloc[::every], None)
    if part is HIDDEN or not part.size:
        return details
    part = part.to_frame() if of_class(part, "pandas", "Series") else part
    described = _quietly(lambda: shown_text(part.describe(), _TABLE_CHARS))
    counts: list[Any] = _quietly(lambda: list(part.isna().sum().items())) or []
    missing = {str(name)[:100]: int(count) for name, count in counts if count}
    details |= {"describe": described} if described else {}
    details |= {"missing": dict(islice(missing.items(), _MOST_NAMES))} if missing else {}
    if every > 1:
        details["described_rows"] = f"{len(part):,} of {len(table):,}, evenly spread"
    return details
