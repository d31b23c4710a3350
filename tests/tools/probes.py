"""A function with one parameter of any hint."""

# No `from __future__ import annotations`: the hints of the tools are local.

import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

# Without types of its own, unlike numpy.
pd: Any = importlib.import_module("pandas")


def probe_of(hint: Any, got: list[Any] | None = None) -> Callable[..., Any]:
    """A function of one `value`, which it keeps, as if it were written where this is called."""

    def probe(value) -> None:  # pyright: ignore
        if got is not None:
            got.append(value)

    names = sys._getframe(1).f_globals  # pyright: ignore[reportPrivateUsage]
    made = types.FunctionType(probe.__code__, names, None, None, probe.__closure__)  # pyright: ignore
    made.__annotations__ = {"value": hint}
    return made
