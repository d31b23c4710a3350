"""Texts and excerpts of a notebook's values for the model: a list of all, and one in detail.

Owns which names a model may read and what is hidden because its name looks like a secret. The list
and the questions to a person run no code of a value's class. Details do, as a cell would, so call
them where a stop reaches them. Cutting values to a budget is in `shown`.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import types
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, cast

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.errors import ToolError
from nbagent.contracts.nearest import nearest_hint
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secret_names import is_secret_name
from nbagent.contracts.tools import ToolOutcome
from nbagent.shown.foreign_frames import ForeignTable, foreign_table, is_foreign
from nbagent.shown.images import of_class
from nbagent.shown.texts import (
    VALUE_ERRORS,
    class_name,
    clean,
    cut_middle,
    safe_repr,
    without_folders,
)
from nbagent.shown.values import Excerpt, JsonBudget, is_iterator, to_json_within, to_text

HIDDEN = "[not shown: the name looks like a secret]"
_IPYTHON_NAMES = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})
"""Names that IPython puts into the namespace; its `open` refuses the kernel's descriptors."""
# Bounded repeats keep the search fast on long untrusted text.
_QUOTED_VALUE = re.compile(
    r"""(?<!\w)(?P<name>\w{1,100})(?P<between>["']?\s{0,5}[:=]\s{0,5}[bruf]{0,2})"""
    r"""(?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote))[^\n\\])+)(?P=quote)"""
)
_URL_PASSWORD = re.compile(r"(\w://[^\s/:@'\"]{0,200}:)[^\s/@'\"]{1,500}@")
_VALUE_CHARS = 12_000
_TABLE_CHARS = 6_000
_CODE_CHARS = 8_000
_PREVIEW_CHARS = 800
_LINE_CHARS = 80
_SAMPLE_ROWS = 1_000
"""Rows of a table from each end; no budget shows more."""
_MAX_DESCRIBED_CELLS = 2_000_000
"""Larger tables get no `describe()`: it would take seconds."""
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_SIZED_TYPES: tuple[Any, ...] = (
    *(str, bytes, bytearray, list, tuple, dict, set, frozenset, deque, range),
)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_CHEAP_SHAPE_PACKAGES = frozenset(
    {"numpy", "pandas", "polars", "pyarrow", "scipy", "torch", "xarray"}
)
"""Packages whose objects know their shape without a computation."""
_MIN_SECRET_NUMBER = 10_000
"""Smaller numbers are counts and rates, under any name."""


# Names


def is_internal_name(name: str) -> bool:
    """True for names of IPython and names with a leading underscore; they are not listed."""
    return name in _IPYTHON_NAMES or name.startswith("_")


def mask_secrets(data: Any) -> Any:
    """Hide secrets and host folders in JSON data.

    Hidden are passwords in URLs, values under keys that look like secrets, and quoted texts after
    such a name in code or in a `repr` (`api_key="…"`).
    """
    if isinstance(data, str):
        return _QUOTED_VALUE.sub(
            _hide_quoted, _URL_PASSWORD.sub(rf"\1{HIDDEN}@", without_folders(data))
        )
    if isinstance(data, dict):
        items = cast("dict[Any, Any]", data).items()
        return {
            key: mask_secrets(item) if _is_plain(item) or not is_secret_name(key) else HIDDEN
            for key, item in items
        }
    return (
        [mask_secrets(item) for item in cast("list[Any]", data)] if isinstance(data, list) else data
    )


def _is_plain(item: Any) -> bool:
    """True for a value that is no secret under any name: yes, no, nothing, a small number."""
    small = type(item) in (int, float) and abs(item) < _MIN_SECRET_NUMBER
    return small or type(item) in (bool, type(None))


def _hide_quoted(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]):
        return match[0]
    return f"{match['name']}{match['between']}{match['quote']}{HIDDEN}{match['quote']}"


def check_not_secret(name: object) -> None:
    """Raise E_DENIED for a name that looks like a secret."""
    if is_secret_name(name):
        raise ToolError(
            f"{name!r} looks like the name of a secret; its value is never shown. If it is not a "
            "secret, ask the person to rename it",
            code="E_DENIED",
        )


def is_environment(value: object) -> bool:
    """True for `os.environ`, `os.environb` and the dict inside: provider keys are in there."""
    internal_dict = getattr(os.environ, "_data", None)
    return any(
        value is environment
        for environment in (os.environ, getattr(os, "environb", None), internal_dict)
        if environment
    )


def variable_value(names: Mapping[str, Any], name: str) -> Any:
    """Value of a variable; raise ToolError if it does not exist or must not be shown."""
    check_not_secret(name)
    if is_internal_name(name):
        why = f"{name[:100]!r} is private or belongs to IPython, so it is not shown"
        raise ToolError(f"{why}; nb.variables lists the others", code="E_DENIED")
    if name not in names:
        public = (known for known in names if not is_internal_name(known))
        why = f"the notebook has no variable {name[:100]!r}{nearest_hint(name, public)}"
        more = "nb.variables lists them, and nb.run evaluates expressions"
        raise ToolError(f"{why}; {more}".replace("?;", "?"), code="ENOENT")
    if is_environment(names[name]):
        why = "the environment of the process is not shown, because it contains keys"
        raise ToolError(f"{why}. Ask the person for the variable that you need", code="E_DENIED")
    return names[name]


# Without running any code of a value


def qualified_type_name(value: object) -> str:
    """Name of a value's class with its package, such as `pandas.DataFrame`."""
    name, root = class_name(value), _package(value)
    return name if root in ("", "builtins", "__main__") else f"{root}.{name}"


def _package(value: object) -> str:
    try:
        module: object = type.__getattribute__(type(value), "__module__")
    except VALUE_ERRORS:
        return ""
    return module.partition(".")[0] if type(module) is str else ""


def value_facts(value: Any) -> dict[str, Any]:
    """Type, shape, length and size of a value; also the value if it is short and plain."""
    facts: dict[str, Any] = {"type": qualified_type_name(value)}
    kind = cast("type[Any]", type(value))
    plain: Any = next(
        (sized_type for sized_type in _SIZED_TYPES if issubclass(kind, sized_type)), None
    )
    if plain is not None:
        # Methods of the plain type: those of a subclass may run any code.
        facts |= {"length": plain.__len__(value), "bytes": plain.__sizeof__(value)}
    elif _package(value) in _CHEAP_SHAPE_PACKAGES:
        facts |= _array_facts(value)
    # `repr` of a huge int takes long, and fails beyond 4,300 digits.
    long = kind is int and value.bit_length() > 200
    if kind in _SCALARS and not long and facts.get("length", 0) <= _LINE_CHARS:
        facts["value"] = clean(repr(value))
    return facts


def _array_facts(value: Any) -> dict[str, Any]:
    is_frame = of_class(value, "pandas", "DataFrame")
    readers: dict[str, Callable[[], Any]] = {
        "shape": lambda: list(map(int, value.shape)),
        "dtype": lambda: str(value.dtype)[:_LINE_CHARS],
        "bytes": lambda: int(value.memory_usage().sum() if is_frame else value.nbytes),
    }
    measures = {name: _or_none(look) for name, look in readers.items()}
    return {name: measure for name, measure in measures.items() if measure is not None}


class _StaticJson(JsonBudget):
    """Plain values as JSON, all others as type and size; runs no code of a value."""

    def json(self, value: Any) -> Any:
        if type(value) in (*_SCALARS, list, tuple, dict):
            return super().json(value)
        facts = value_facts(value)
        sizes = [f"{key} {facts[key]}" for key in ("shape", "length") if key in facts]
        return self.text(f"<{' '.join([facts['type'], *sizes])}>")


def preview_text(value: Any) -> str:
    """Describe a value briefly, for a question to a person."""
    data = mask_secrets(
        to_json_within(value, _PREVIEW_CHARS, kind=_StaticJson, with_images=False).data
    )
    is_name = isinstance(data, str) and type(value) is not str
    return data if is_name else dump_json(data).decode()


def list_variables(names: Mapping[str, Any], pattern: str, limit: int) -> dict[str, Any]:
    """List the notebook's variables in alphabetical order, each with facts about its value."""
    pattern = pattern.lower() if set(pattern) & set("*?[") else f"*{pattern.lower()}*"
    # A copy: another thread may assign variables meanwhile.
    own = {n: v for n, v in list(names.items()) if type(n) is str and not is_internal_name(n)}
    matching = [n for n in sorted(own, key=str.lower) if fnmatchcase(n.lower(), pattern)]
    rows: list[dict[str, Any]] = []
    for name in matching[:limit]:
        facts = value_facts(own[name])
        if is_secret_name(name):
            facts = {"type": facts["type"], "value": HIDDEN}
        rows.append({"name": name, **facts})
    data: dict[str, Any] = {"variables": rows}
    if left_out := len(matching[limit:]):
        data["left_out"] = f"{left_out:,} of {len(matching):,} names; narrow it with a pattern"
    return mask_secrets(data)


# In detail


class _MaskedJson(JsonBudget):
    """A value as a model may see it.

    Iterators are not consumed, the environment is not shown, and tables lose columns and rows whose
    names look like secrets. Keys of dicts are left to `mask_secrets`.
    """

    def json(self, value: Any) -> Any:
        if is_iterator(value):
            return self.text(safe_repr(value, 200))
        if is_environment(value):
            return self.text("[the environment of the process is not shown]")
        if _is_table(value):
            value = _without_secrets(value)
        elif is_foreign(value):
            value = _or_none(lambda: _foreign_without_secrets(value)) or value
        return super().json(value)


def value_excerpt(value: Any, budget_chars: int = _VALUE_CHARS, *, draws: bool = True) -> Excerpt:
    """A value as JSON and images within a budget, secrets hidden."""
    excerpt = to_json_within(value, budget_chars, kind=_MaskedJson, with_images=draws)
    return Excerpt(mask_secrets(excerpt.data), excerpt.parts, excerpt.cut)


def inspect_value(name: str, value: Any) -> ToolOutcome:
    """Outcome of `nb.inspect`: one value in detail."""
    is_table = _is_table(value) or is_foreign(value)
    excerpt = value_excerpt(value, _TABLE_CHARS if is_table else _VALUE_CHARS)
    facts = {**value_facts(value), "value": excerpt.data}
    details: dict[str, Any] = _or_none(lambda: _kind_details(value)) or {}
    # Value by value: `signature` is a name of ours here.
    details = {label: mask_secrets(detail) for label, detail in details.items()}
    result = ToolResult(ok=True, data={"name": name, **facts, **details}, attachments=excerpt.parts)
    return ToolOutcome(result=result, truncated=excerpt.cut)


def _or_none(compute: Callable[[], Any]) -> Any:
    """Compute a value without its warnings; None if that fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compute()
    except VALUE_ERRORS:
        return None


def _kind_details(value: Any) -> dict[str, Any]:
    """Extra facts by type: statistics of tables and arrays, signature and source of functions."""
    kind = cast("type[Any]", type(value))
    if _is_table(value):
        table = _without_secrets(value)
        if table is HIDDEN or not 0 < table.size <= _MAX_DESCRIBED_CELLS:
            return {}
        described = _or_none(lambda: to_text(table.describe(), _TABLE_CHARS))
        return {"describe": described} if described else {}
    if of_class(value, "numpy", "ndarray") and value.dtype.kind in "biuf" and value.size:
        # Loaded already: the value is one of its arrays.
        numpy: Any = sys.modules["numpy"]
        measures = {name: getattr(numpy, f"nan{name}")(value) for name in ("min", "max", "mean")}
        return {name: to_json_within(number.item(), 100).data for name, number in measures.items()}
    if not issubclass(kind, (*_FUNCTIONS, type)):
        return {}
    texts: dict[str, Any] = {
        "signature": _or_none(lambda: f"{value.__name__}{inspect.signature(value)}"),
        "docstring": _or_none(lambda: inspect.getdoc(value)),
        "source": _or_none(lambda: inspect.getsource(value)),
    }
    return {key: clean(cut_middle(text, _CODE_CHARS)) for key, text in texts.items() if text}


# Tables


def _is_table(value: object) -> bool:
    return of_class(value, "pandas", "DataFrame") or of_class(value, "pandas", "Series")


def _foreign_without_secrets(value: Any) -> Any:
    """Return a table of another library without columns whose names look secret."""
    table = foreign_table(value)
    if isinstance(table, ForeignTable):
        return table.without(is_secret_name) if table.names else value
    return value


def _without_secrets(table: Any) -> Any:
    """Return the table, or its first rows without columns and rows whose names look secret."""
    is_series = of_class(table, "pandas", "Series")
    if is_series and is_secret_name(table.name):
        return HIDDEN
    columns = [] if is_series else [not is_secret_name(label) for label in table.columns]
    rows = [*table.index[:_SAMPLE_ROWS], *table.index[-_SAMPLE_ROWS:]]
    if all(columns) and not any(map(is_secret_name, rows)):
        return table
    table = table.iloc[:_SAMPLE_ROWS]
    table = table.iloc[[not is_secret_name(label) for label in table.index]]
    return table if is_series else table.iloc[:, columns]
