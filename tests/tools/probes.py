"""A function with one parameter of any hint, and types that several tests give it."""

# No `from __future__ import annotations`: the hints of the tools are local.

import dataclasses
import enum
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel

# Without types of its own, unlike numpy.
pd: Any = importlib.import_module("pandas")


class Colour(enum.Enum):
    RED = "red"
    DARK_BLUE = "dark blue"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Size:
    width: int
    height: int = 1


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


def probe_of(hint: Any, got: list[Any] | None = None) -> Callable[..., Any]:
    """A function of one `value`, which it keeps, as if it were written where this is called."""

    def probe(value) -> None:  # pyright: ignore
        if got is not None:
            got.append(value)

    names = sys._getframe(1).f_globals  # pyright: ignore[reportPrivateUsage]
    made = types.FunctionType(probe.__code__, names, None, None, probe.__closure__)  # pyright: ignore
    made.__annotations__ = {"value": hint}
    return made
