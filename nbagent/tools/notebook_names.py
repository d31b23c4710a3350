"""Which names of a notebook a model may look at, and the way to what they hold.

Owns what is hidden under the names of secrets and the simple paths of `nb.inspect`. Runs no code of
a value's class; the values themselves are `notebook_values`'.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, cast

from nbagent.contracts.errors import ErrorCode, ToolError
from nbagent.contracts.secrets import is_secret_name
from nbagent.shown.pictures import of_class
from nbagent.shown.texts import BROKEN, kind_name, without_folders

HIDDEN = "[not shown: the name looks like a secret]"
_PATH_CHARS = 500
_OWN = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})
"""Put there by IPython: its `open` refuses the kernel's file descriptors."""
_QUOTED = re.compile(
    r"""(?<!\w)(?P<name>\w{1,100})(?P<between>["']?\s{0,5}[:=]\s{0,5}[bruf]{0,2})"""
    r"""(?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote))[^\n\\])+)(?P=quote)"""
)
_IN_ADDRESS = re.compile(r"(\w://[^\s/:@'\"]{0,200}:)[^\s/@'\"]{1,500}@")


def is_own(name: str) -> bool:
    """Whether IPython put the name there, or its underscore says that it is not to be listed."""
    return name in _OWN or name.startswith("_")


def visible_names(names: Mapping[str, Any]) -> dict[str, Any]:
    """The person's own names and what they hold, in alphabetical order."""
    kept = {n: v for n, v in list(names.items()) if type(n) is str and not is_own(n)}
    return dict(sorted(kept.items(), key=lambda item: item[0].lower()))


# What is hidden


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


# The way to a value


def value_at(names: Mapping[str, Any], path: str) -> Any:
    """What a path such as `df`, `config['model']`, `rows[0].name` leads to.

    Raises:
        ToolError: it is no such path, leads nowhere, or to something that is not shown.
    """
    name, steps = _parsed(path)
    refuse_secret(name)
    if is_own(name):
        raise _refused(f"{name} is private or a name of IPython's own and not shown", "E_DENIED")
    if name not in names:
        raise _refused(f"the notebook has no name {name!r}", "ENOENT")
    value = names[name]
    for step, key in steps:
        refuse_secret(key)
        try:
            value = step(value, key)
        except ToolError:
            raise
        except BROKEN as error:
            why = f"{key!r} of {path!r} is not there or cannot be reached: {type(error).__name__}"
            raise _refused(why, "ENOENT") from error
    if is_environment(value):
        why = "the environment of the process is not shown: keys are in it. Ask the person"
        raise _refused(why, "E_DENIED")
    return value


def _refused(why: str, code: ErrorCode = "E_INVALID_ARGUMENTS") -> ToolError:
    return ToolError(f"{why}; nb.variables lists what there is, nb.run computes more", code=code)


_Step = tuple[Callable[[Any, Any], Any], Any]
"""`_attribute` or `_item`, and its name or key."""


def _parsed(path: str) -> tuple[str, list[_Step]]:
    """The name that a path begins with, and the steps from there."""
    steps: list[_Step] = []
    try:
        node = ast.parse(path.strip() if len(path) <= _PATH_CHARS else "", mode="eval").body
        while not isinstance(node, ast.Name):
            match node:
                case ast.Attribute():
                    steps.append((_attribute, node.attr))
                case ast.Subscript(slice=key) if type(ast.literal_eval(key)) in (str, int):
                    steps.append((_item, ast.literal_eval(key)))
                case _:
                    raise SyntaxError
            node = node.value
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        why = f"{path[:200]!r} is no simple path such as df, config['model'], rows[0] or item.name"
        raise _refused(why) from None
    return node.id, steps[::-1]


def _item(value: Any, key: str | int) -> Any:
    """An item by the plain class's own method: a subclass's might run anything."""
    kind = cast("type[Any]", type(value))
    if of_class(value, "pandas", "DataFrame"):
        return value[key]
    array = (kind,) if of_class(value, "numpy", "ndarray") else ()
    for plain in (dict, list, tuple, *array):
        if issubclass(kind, plain):
            return cast("Any", plain).__getitem__(value, key)
    raise _refused(f"items of a {kind_name(value)} are not looked up by nb.inspect")


def _attribute(value: Any, name: str) -> Any:
    """An attribute that is data, without running what computes one."""
    if name.startswith("__"):
        raise _refused(f"{name!r} is Python's own; it is not shown")
    if of_class(value, "pandas", "DataFrame") and name in value.columns:
        return value[name]
    there: Any = inspect.getattr_static(value, name)
    # By their types: what is asked with `isinstance` may lie about its class, or raise.
    kind, held_in = cast("Any", type(there)), cast("Any", type(value))
    if issubclass(held_in, type | types.ModuleType):
        return there
    if kind is types.MemberDescriptorType:
        return there.__get__(value, held_in)  # A slot, read by C.
    if hasattr(kind, "__get__") and kind is not types.FunctionType:
        raise _refused(f"{name!r} is computed when it is asked for")
    return there


def stored_attributes(value: object) -> dict[str, Any]:
    """What the instance's own dict holds; empty where there is none."""
    try:
        there = object.__getattribute__(value, "__dict__")
    except BROKEN:
        return {}
    return cast("dict[str, Any]", there) if type(there) is dict else {}
