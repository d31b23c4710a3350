"""Every kind of hint that people write: a legal schema, and the right Python value in the call."""

# No `from __future__ import annotations`: the hints of the tools are local.

import dataclasses
import datetime as dt
import enum
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union

import numpy as np
import pydantic
import pytest
import typing_extensions
from legal_schema import check_legal
from probes import Cat, Dog, pd, probe_of
from pydantic import BaseModel, Field

from nbagent.contracts.errors import UsageError
from nbagent.tools.function_tool import as_tool


class Mixed(enum.Enum):
    ONE = 1
    B = "b"
    NOTHING = None


class Pairs(enum.Enum):
    HERE = (0, 0)
    THERE = (1, 2)


class Point(NamedTuple):
    x: int
    y: str = "north"


@dataclasses.dataclass(slots=True)
class Item:
    count: int
    tags: list[str] = dataclasses.field(default_factory=list[str])


class Node(BaseModel):
    value: int
    kids: list["Node"] = []


class Early(BaseModel):
    later: "NotThereYet"  # pyright: ignore  # noqa: F821


class Row(typing.TypedDict, total=False):
    count: typing.Required[int]
    name: str


class Tree(typing.TypedDict):
    value: int
    left: typing.NotRequired["Tree"]


class Aliased(BaseModel):
    page_size: int = Field(alias="pageSize")


Json = typing_extensions.TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")
Recursive = Union[str, int, None, list["Recursive"], dict[str, "Recursive"]]  # noqa: UP007
BRANCH = {"value": 2}
OTHER_DAY = dt.datetime(2026, 1, 2, 3, 4)

KINDS: dict[str, tuple[Any, Any, Any]] = {
    # id: hint, what a model sends, what the function gets
    "final": (typing.Final[int], 1, 1),
    "union": (Union[int, list[str]], ["a"], ["a"]),  # noqa: UP007
    "discriminated union": (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        {"kind": "cat", "lives": 9},
        Cat(kind="cat", lives=9),
    ),
    "literal of kinds": (Literal["a", 1, True, None], 1, 1),
    "mixed enum": (Mixed, "b", Mixed.B),
    "named tuple as an object": (Point, {"x": 1, "y": "south"}, Point(1, "south")),
    "dataclass": (Item, {"count": 1}, Item(1)),
    "recursive model": (
        Node,
        {"value": 1, "kids": [{"value": 2}]},
        Node(value=1, kids=[Node(value=2)]),
    ),
    "constraint": (Annotated[int, Field(gt=0, lt=10, multiple_of=2)], 4, 4),
    "date": (dt.date, "2026-01-02", dt.date(2026, 1, 2)),
    "union of date and datetime": (dt.date | dt.datetime, "2026-01-02T03:04:00", OTHER_DAY),
    "fixed tuple": (tuple[int, str], [1, "a"], (1, "a")),
    "dict by int": (dict[int, str], {"1": "a"}, {1: "a"}),
    "iterable is a list": (Iterable[int], [1, 2], [1, 2]),
    "json value": (pydantic.JsonValue, {"a": [1, None]}, {"a": [1, None]}),
    "recursive type alias": (Json, {"a": ["b", None]}, {"a": ["b", None]}),
}


@pytest.mark.parametrize(("hint", "sent", "expected"), KINDS.values(), ids=KINDS.keys())
def test_function_gets_what_its_hint_says(hint: Any, sent: Any, expected: Any, bench: Any) -> None:
    got: list[Any] = []
    outcome = bench.run(probe_of(hint, got), value=sent)
    assert outcome.result.ok, outcome.result.error
    assert got == [expected]
    assert type(got[0]) is type(expected)


# Hints that no model can fill: one clear error when the tool is made, hidden behind a default.

LIST_OR = "take a text or a number instead, or a list or dataclass of such"
REFUSED: dict[str, tuple[Any, str]] = {
    "array": (np.ndarray, "take a list[float]"),
    "list of arrays": (list[np.ndarray], "take a list[float]"),
    "frame": (pd.DataFrame, "take the rows as a list[dict]"),
    "callable": (Callable[[int], str], "take the name of the function"),
    # pyright: ignore
    "class": (type[int], LIST_OR),
    "iterator": (Iterator[int], LIST_OR),
    "own class": (type("Database", (), {}), LIST_OR),
    "enum of tuples": (Pairs, LIST_OR),
    "pattern with look-ahead": (
        Annotated[str, Field(pattern="^(?!x)a")],
        "look-around, including look-ahead and look-behind, is not supported",
    ),
    "alias of itself": (Recursive, "alias that names itself; write pydantic.JsonValue"),
    "unknown name in a model": (Early, "names a class that is not defined yet; define it"),
    "no expression": ("list[", "define or import what it names"),
}


@pytest.mark.parametrize(("hint", "advice"), REFUSED.values(), ids=REFUSED.keys())
def test_type_that_no_model_can_give_is_one_clear_error(hint: Any, advice: str) -> None:
    with pytest.raises(UsageError) as caught:
        as_tool(probe_of(hint))
    message = caught.value.message
    assert "parameter 'value' of tool 'probe'" in message
    assert advice in message
    assert "pydantic" not in message.replace("pydantic.JsonValue", "").lower()
    assert " at 0x" not in message
    assert len(message) < 450


@pytest.mark.parametrize("hint", [v[0] for v in REFUSED.values() if "names" not in v[1]])
def test_such_a_parameter_is_hidden_where_it_has_a_default(hint: Any, bench: Any) -> None:
    def probe(a: int, extra=None) -> Any:  # pyright: ignore
        return [a, extra]

    probe.__annotations__ = {"a": int, "extra": hint}
    check_legal(as_tool(probe).spec)  # pyright: ignore
    assert bench.run(probe, a=1).result.data == [1, None]
    assert list(as_tool(probe).spec.parameters["properties"]) == ["a"]  # pyright: ignore
