"""Callables that look like functions but cannot be tools, with the reason and what to write."""

from __future__ import annotations

import inspect
import types
from typing import Any, cast

from nbagent.tools.functions.arguments import function_of, unwrap_partials

_DISPATCH_TYPES = ("singledispatchmethod", "_singledispatchmethod_get")
"""Types of `functools`: the descriptor, and since Python 3.14 the bound method."""


def refusal_of(target: Any) -> str:
    """Reason why a callable cannot be a tool; empty if nothing speaks against it.

    Only types and static attributes are read: an object's own attributes may run code.
    """
    inner = unwrap_partials(target)
    candidates = [inner]
    if callable(inner) and not issubclass(type(inner), type):
        candidates.append(function_of(inner))
    if any(_is_dispatching(candidate) for candidate in candidates):
        return (
            "is a functools.singledispatch function: its parameters depend on the type of the "
            "first one, and a tool has one list of parameters; write a def with hints that calls it"
        )
    if any(_is_made_by(candidate, "contextlib", "helper") for candidate in candidates):
        return "is a context manager, which returns no value; write a def that enters it"
    if any(_is_made_by(candidate, "typing", "_overload_dummy") for candidate in candidates):
        return "is an @overload; mark the implementation below the overloads"
    return ""


def _is_dispatching(target: Any) -> bool:
    kind = cast("type[Any]", type(target))
    if kind.__module__ == "functools" and kind.__name__ in _DISPATCH_TYPES:
        return True
    # `functools.wraps` copies both, and such a wrapper dispatches, too.
    registry: object = inspect.getattr_static(target, "registry", None)
    dispatch: object = inspect.getattr_static(target, "dispatch", None)
    is_registry = isinstance(registry, types.MappingProxyType)
    return (is_registry and dispatch is not None) or _is_made_by(target, "functools", "_method")


def _is_made_by(target: Any, module: str, code_name: str) -> bool:
    """True for a function of the standard library with this code, whatever it is called."""
    if type(target) is not types.FunctionType:
        return False
    return (target.__globals__.get("__name__"), target.__code__.co_name) == (module, code_name)
