"""Hints that no model can fill: one clear error when the tool is made, hidden behind a default."""

# No `from __future__ import annotations`: the hints of the tools are local.

import asyncio
import dataclasses
import datetime as dt
import enum
import importlib
import math
import sys
import typing
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest
from legal_schema import check_legal
from pydantic import BaseModel, Field

from nbagent.contracts.errors import UsageError
from nbagent.tools.functions import as_tool

# Without types of its own, unlike numpy.
pd: Any = importlib.import_module("pandas")


class Row(typing.TypedDict, total=False):
    count: typing.Required[int]


def probe_of(hint: Any) -> Callable[..., Any]:
    def probe(value) -> None: ...  # pyright: ignore

    probe.__annotations__ = {"value": hint}
    return probe  # pyright: ignore


REFUSED: dict[str, tuple[Any, str]] = {
    "array": (np.ndarray, "take a list[float]"),
    "typed array": (np.typing.NDArray[np.float64], "take a list[float]"),
    "array like": (np.typing.ArrayLike, "take a list[float]"),
    "list of arrays": (list[np.ndarray], "take a list[float]"),
    "frame": (pd.DataFrame, "take the rows as a list[dict]"),
    "optional frame": (pd.DataFrame | None, "take the rows as a list[dict]"),
    "series": (pd.Series, "take a list of the values"),
    "timestamp": (pd.Timestamp, "take a datetime"),
    "tensor": (type("Tensor", (), {}), "take a list[float]"),
    "callable": (Callable[[int], str], "take the name of the function"),
    "callable of anything": (typing.Callable[..., Any], "take the name of the function"),
    "function": (print, "take the name of the function"),
    "lambda": (lambda x: x, "take the name of the function"),  # pyright: ignore
    "class": (type[int], "take the name of the class"),
    "range": (range, "take start: int and stop: int"),
    "slice": (slice, "take start: int and stop: int"),
    "file": (typing.TextIO, "take the path as a str"),
    "zone": (dt.timezone, "take the name of the zone"),
    "own class": (type("Database", (), {}), "take a name or a number instead"),
    "queue": (asyncio.Queue, "take a name or a number instead"),
    "self": ("typing.Self", "name the class"),
    "class variable": (typing.ClassVar[int], "leave ClassVar out"),
    "empty enum": (enum.Enum("Empty", []), "give it members"),
    "never": (typing.Never, "a model cannot give"),
    "number": (5, "a model cannot give"),
    "list of a type": ([int], "a model cannot give"),
    "dict of a type": ({"a": int}, "a model cannot give"),
    "module": (math, "a model cannot give"),
    "pattern with look-ahead": (
        Annotated[str, Field(pattern="^(?!x)a")],
        "look-around, including look-ahead and look-behind, is not supported",
    ),
    "unknown name": ("Unknown", "define or import what it names"),
    "unknown name inside": ("list[Unknown]", "define or import what it names"),
    "no expression": ("list[", "define or import what it names"),
    "failing expression": ("1/0", "define or import what it names"),
}


@pytest.mark.parametrize(("hint", "advice"), REFUSED.values(), ids=REFUSED.keys())
def test_type_that_no_model_can_give_is_one_clear_error(hint: Any, advice: str) -> None:
    with pytest.raises(UsageError) as caught:
        as_tool(probe_of(hint))
    message = caught.value.message
    assert "parameter 'value' of tool 'probe'" in message
    assert advice in message
    assert "pydantic" not in message.lower()
    assert " at 0x" not in message
    assert len(message) < 450


def test_model_that_names_an_undefined_class_is_refused_with_that_name() -> None:
    class Early(BaseModel):
        later: "NotThereYet"  # pyright: ignore  # noqa: F821

    with pytest.raises(UsageError, match="not defined"):
        as_tool(probe_of(Early))


def test_dataclass_with_a_typed_dict_of_typing_says_what_to_import() -> None:
    held = dataclasses.make_dataclass("Held", [("row", Row)])
    if sys.version_info >= (3, 12):
        assert as_tool(probe_of(held))
        return
    with pytest.raises(UsageError, match="import TypedDict from typing_extensions"):
        as_tool(probe_of(held))


@pytest.mark.parametrize("hint", [v[0] for v in REFUSED.values() if "import" not in v[1]])
def test_such_a_parameter_is_hidden_where_it_has_a_default(hint: Any, bench: Any) -> None:
    def probe(a: int, extra=None) -> Any:  # pyright: ignore
        return [a, extra]

    probe.__annotations__ = {"a": int, "extra": hint}
    check_legal(as_tool(probe).spec)  # pyright: ignore
    assert bench.run(probe, a=1).result.data == [1, None]
    assert list(as_tool(probe).spec.parameters["properties"]) == ["a"]  # pyright: ignore
