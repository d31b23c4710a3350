"""What is shown of a notebook's values: one line each in a list, and one of them in detail.

Owns which names a model may look at, and what is hidden under the names of secrets. The list and
the questions to a person are made without running any code of a value's class; details run it as a
cell would: call them where a stop reaches them. How a value looks within a budget is `shown`'s.
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
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import is_secret_name
from nbagent.contracts.tools import ToolOutcome
from nbagent.shown.images import of_class
from nbagent.shown.texts import VALUE_ERRORS, clean, cut_middle, class_name, plain_repr, without_folders
from nbagent.shown.values import Excerpt, JsonBudget, to_json_within, is_iterator, to_text

HIDDEN = "[not shown: the name looks like a secret]"
_OWN = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})
"""Put there by IPython: its `open` refuses the kernel's file descriptors."""
_QUOTED = re.compile(
    r"""(?<!\w)(?P<name>\w{1,100})(?P<between>["']?\s{0,5}[:=]\s{0,5}[bruf]{0,2})"""
    r"""(?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote))[^\n\\])+)(?P=quote)"""
)
_IN_ADDRESS = re.compile(r"(\w://[^\s/:@'\"]{0,200}:)[^\s/@'\"]{1,500}@")
_VALUE_CHARS = 12_000
_TABLE_CHARS = 6_000
_CODE_CHARS = 8_000
_GLANCE_CHARS = 800
_LINE_CHARS = 80
_SAMPLE = 1_000
"""Rows of a table from each end; no budget shows more."""
_DESCRIBED_CELLS = 2_000_000
"""A larger table is not described: nobody wants to wait for it."""
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_SIZED: tuple[Any, ...] = (
    *(str, bytes, bytearray, list, tuple, dict, set, frozenset, deque, range),
)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_CHEAP_SHAPES = frozenset({"numpy", "pandas", "polars", "pyarrow", "scipy", "torch", "xarray"})
"""Packages whose objects say their shape without computing anything."""


# Names


def is_own(name: str) -> bool:
    """Whether IPython put the name there, or its underscore says that it is not to be listed."""
    return name in _OWN or name.startswith("_")


def masked(data: Any) -> Any:
    """JSON data as the model may see it: no host folders, no passwords in addresses, nothing that
    stands under the name of a secret, as a key or before a quoted text in code or in a `repr`."""
    if isinstance(data, str):
        return _QUOTED.sub(_unquoted, _IN_ADDRESS.sub(rf"\1{HIDDEN}@", without_folders(data)))
    if isinstance(data, dict):
        items = cast("dict[Any, Any]", data).items()
        return {
            key: masked(item)
            if type(item) in (bool, type(None)) or not is_secret_name(key)
            else HIDDEN
            for key, item in items
        }
    return [masked(item) for item in cast("list[Any]", data)] if isinstance(data, list) else data


def _unquoted(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]):
        return match[0]
    return f"{match['name']}{match['between']}{match['quote']}{HIDDEN}{match['quote']}"


def refuse_secret(name: object) -> None:
    """Raise E_DENIED for a name that looks like a secret."""
    if is_secret_name(name):
        raise ToolError(
            f"{name!r} looks like the name of a secret; what it holds is never shown. If it is "
            "none, ask the person to give it another name",
            code="E_DENIED",
        )


def is_environment(value: object) -> bool:
    """Whether it is the process's environment, or the dict inside, where the keys of all are."""
    inside = getattr(os.environ, "_data", None)
    return any(value is it for it in (os.environ, getattr(os, "environb", None), inside) if it)


def value_of(names: Mapping[str, Any], name: str) -> Any:
    """What a name of the notebook holds; ToolError where there is none or it is not shown."""
    refuse_secret(name)
    if is_own(name):
        why = f"{name[:100]!r} is private or a name of IPython's own, which are not shown"
        raise ToolError(f"{why}; nb.variables lists what there is", code="E_DENIED")
    if name not in names:
        why = f"the notebook has no variable {name[:100]!r}; nb.variables lists what there is"
        raise ToolError(f"{why}, and nb.run computes other things", code="ENOENT")
    if is_environment(names[name]):
        why = "the environment of the process is not shown: keys are in it"
        raise ToolError(f"{why}. Ask the person for the variable that you need", code="E_DENIED")
    return names[name]


# Without running any code of a value


def type_text(value: object) -> str:
    """The name of its class, with the package it comes from."""
    name, root = class_name(value), _package(value)
    return name if root in ("", "builtins", "__main__") else f"{root}.{name}"


def _package(value: object) -> str:
    try:
        module: object = type.__getattribute__(type(value), "__module__")
    except VALUE_ERRORS:
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
    is_frame = of_class(value, "pandas", "DataFrame")
    looks: dict[str, Callable[[], Any]] = {
        "shape": lambda: list(map(int, value.shape)),
        "dtype": lambda: str(value.dtype)[:_LINE_CHARS],
        "bytes": lambda: int(value.memory_usage().sum() if is_frame else value.nbytes),
    }
    measures = {name: _quietly(look) for name, look in looks.items()}
    return {name: measure for name, measure in measures.items() if measure is not None}


class _Unrun(JsonBudget):
    """Plain values as JSON; of any other one its type and size, without running its code."""

    def json(self, value: Any) -> Any:
        if type(value) in (*_SCALARS, list, tuple, dict):
            return super().json(value)
        facts = facts_of(value)
        sizes = [f"{key} {facts[key]}" for key in ("shape", "length") if key in facts]
        return self.text(f"<{' '.join([facts['type'], *sizes])}>")


def glance(value: Any) -> str:
    """A value in a few words, for a question to a person."""
    data = masked(to_json_within(value, _GLANCE_CHARS, kind=_Unrun, with_images=False).data)
    is_name = isinstance(data, str) and type(value) is not str
    return data if is_name else dump_json(data).decode()


def listed_names(names: Mapping[str, Any], pattern: str, limit: int) -> dict[str, Any]:
    """The notebook's own names in alphabetical order, each with the facts of what it holds."""
    pattern = pattern.lower() if set(pattern) & set("*?[") else f"*{pattern.lower()}*"
    own = {n: v for n, v in list(names.items()) if type(n) is str and not is_own(n)}
    wanted = [n for n in sorted(own, key=str.lower) if fnmatchcase(n.lower(), pattern)]
    lines: list[dict[str, Any]] = []
    for name in wanted[:limit]:
        facts = facts_of(own[name])
        if is_secret_name(name):
            facts = {"type": facts["type"], "value": HIDDEN}
        lines.append({"name": name, **facts})
    data: dict[str, Any] = {"variables": lines}
    if left_out := len(wanted[limit:]):
        data["left_out"] = f"{left_out:,} of {len(wanted):,} names; narrow it with a pattern"
    return masked(data)


# In detail


class _Guarded(JsonBudget):
    """What a model may see of a value: no iterator is used up, no environment shown, and of tables
    no column or row whose name looks like a secret. Keys are `masked`'s."""

    def json(self, value: Any) -> Any:
        if is_iterator(value):
            return self.text(plain_repr(value, 200))
        if is_environment(value):
            return self.text("[the environment of the process, which is not shown]")
        return super().json(_without_secrets(value) if _is_table(value) else value)


def value_shown(value: Any, budget_chars: int = _VALUE_CHARS, *, draws: bool = True) -> Excerpt:
    """A value as JSON and images, as `shown` makes it, without what looks like a secret."""
    it = to_json_within(value, budget_chars, kind=_Guarded, with_images=draws)
    return Excerpt(masked(it.data), it.parts, it.cut)


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
    except VALUE_ERRORS:
        return None


def _details(value: Any) -> dict[str, Any]:
    """What is said of its kind beside the value."""
    kind = cast("type[Any]", type(value))
    if _is_table(value):
        seen = _without_secrets(value)
        if seen is HIDDEN or not 0 < seen.size <= _DESCRIBED_CELLS:
            return {}
        described = _quietly(lambda: to_text(seen.describe(), _TABLE_CHARS))
        return {"describe": described} if described else {}
    if of_class(value, "numpy", "ndarray") and value.dtype.kind in "biuf" and value.size:
        numpy: Any = sys.modules["numpy"]
        measures = {name: getattr(numpy, f"nan{name}")(value) for name in ("min", "max", "mean")}
        return {name: to_json_within(number.item(), 100).data for name, number in measures.items()}
    if not issubclass(kind, (*_FUNCTIONS, type)):
        return {}
    texts: dict[str, Any] = {
        "signature": _quietly(lambda: f"{value.__name__}{inspect.signature(value)}"),
        "docstring": _quietly(lambda: inspect.getdoc(value)),
        "source": _quietly(lambda: inspect.getsource(value)),
    }
    return {key: clean(cut_middle(text, _CODE_CHARS)) for key, text in texts.items() if text}


# Tables


def _is_table(value: object) -> bool:
    return of_class(value, "pandas", "DataFrame") or of_class(value, "pandas", "Series")


def _without_secrets(table: Any) -> Any:
    """The table; where names of columns or rows look like secrets, its first rows without them."""
    is_series = of_class(table, "pandas", "Series")
    if is_series and is_secret_name(table.name):
        return HIDDEN
    columns = [] if is_series else [not is_secret_name(label) for label in table.columns]
    rows = [*table.index[:_SAMPLE], *table.index[-_SAMPLE:]]
    if all(columns) and not any(map(is_secret_name, rows)):
        return table
    table = table.iloc[:_SAMPLE]
    table = table.iloc[[not is_secret_name(label) for label in table.index]]
    return table if is_series else table.iloc[:, columns]
