"""Every kind of hint that people write: a legal schema, and the right Python value in the call."""

# No `from __future__ import annotations`: the hints of the tools are local.

import collections
import collections.abc
import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import math
import pathlib
import re
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypeVar, Union

import numpy as np
import pydantic
import pytest
import typing_extensions
from legal_schema import check_legal
from probes import Access, Cat, Dog, pd, probe_of
from pydantic import BaseModel, Field

from nbagent.contracts.errors import UsageError
from nbagent.tools.function_tool import as_tool


class Whole(enum.IntEnum):
    ONE = 1
    TWO = 2


class Word(enum.StrEnum):
    UP = "up"
    DOWN = "down"


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


Plain = collections.namedtuple("Plain", "a b")  # pyright: ignore


@dataclasses.dataclass(slots=True)
class Item:
    count: int
    tags: list[str] = dataclasses.field(default_factory=list[str])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Box:
    item: Item
    label: str = "box"


@dataclasses.dataclass
class Chain:
    value: int
    next: "Chain | None" = None


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


class Checked(BaseModel):
    price: decimal.Decimal = Field(gt=0, max_digits=6, decimal_places=2)
    code: str = Field(pattern=r"^\w+$", min_length=2)
    limit: float = Field(default=1.0, le=math.inf)
    labels: dict[Annotated[str, Field(pattern="^[a-z]+$")], int] = {}


T = TypeVar("T")
Choice = TypeVar("Choice", int, str)


class Page(BaseModel, typing.Generic[T]):
    items: list[T]


UserId = typing.NewType("UserId", int)
Ints = typing_extensions.TypeAliasType("Ints", list[int])
Json = typing_extensions.TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")
Recursive = Union[str, int, None, list["Recursive"], dict[str, "Recursive"]]  # noqa: UP007
OTHER_DAY = dt.datetime(2026, 1, 2, 3, 4)
UUID = "123e4567-e89b-12d3-a456-426614174000"

KINDS: dict[str, tuple[Any, Any, Any]] = {
    # id: hint, what a model sends, what the function gets
    "str": (str, "a", "a"),
    "int": (int, 1, 1),
    "float": (float, 1, 1.0),
    "bool": (bool, True, True),
    "complex": (complex, "1+2j", 1 + 2j),
    "any": (Any, {"a": [1]}, {"a": [1]}),
    "final": (typing.Final[int], 1, 1),
    "string annotation": ("int", "1", 1),
    "optional": (Optional[int], None, None),  # noqa: UP045
    "union": (Union[int, list[str]], ["a"], ["a"]),  # noqa: UP007
    "union keeps a string": (int | str, "5", "5"),
    "union of models": (Cat | Dog, {"kind": "dog", "name": "Rex"}, Dog(kind="dog", name="Rex")),
    "union of a model and a list": (Item | list[Item], [{"count": 1}], [Item(1)]),
    "discriminated union": (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        {"kind": "cat", "lives": 9},
        Cat(kind="cat", lives=9),
    ),
    "literal": (Literal["a", "b"], "b", "b"),
    "literal of kinds": (Literal["a", 1, True, None], 1, 1),
    "int enum": (Whole, 2, Whole.TWO),
    "str enum": (Word, "up", Word.UP),
    "mixed enum": (Mixed, "b", Mixed.B),
    "typed dict": (Row, {"count": 1}, {"count": 1}),
    "recursive typed dict": (
        Tree,
        {"value": 1, "left": {"value": 2}},
        {"value": 1, "left": {"value": 2}},
    ),
    "named tuple as an object": (Point, {"x": 1, "y": "south"}, Point(1, "south")),
    "named tuple as a list": (Point, [1], Point(1)),
    "collections namedtuple": (Plain, {"a": 1, "b": 2}, Plain(1, 2)),
    "dataclass": (Item, {"count": 1}, Item(1)),
    "dataclass of a dataclass": (Box, {"item": {"count": 2}}, Box(item=Item(2))),
    "recursive dataclass": (Chain, {"value": 1, "next": {"value": 2}}, Chain(1, Chain(2))),
    "model": (Dog, {"kind": "dog", "name": "Rex"}, Dog(kind="dog", name="Rex")),
    "recursive model": (
        Node,
        {"value": 1, "kids": [{"value": 2}]},
        Node(value=1, kids=[Node(value=2)]),
    ),
    "generic model": (Page[int], {"items": ["1"]}, Page[int](items=[1])),
    "model with aliases": (Aliased, {"pageSize": 3}, Aliased(pageSize=3)),
    "model with constraints": (
        Checked,
        {"price": "1.50", "code": "ab"},
        Checked(price=decimal.Decimal("1.50"), code="ab"),
    ),
    "list of models": (list[Dog], [{"kind": "dog", "name": "a"}], [Dog(kind="dog", name="a")]),
    "constraint": (Annotated[int, Field(gt=0, lt=10, multiple_of=2)], 4, 4),
    "pattern": (Annotated[str, Field(pattern="^a+$", max_length=3)], "aa", "aa"),
    "text inside": (list[Annotated[str, "a tag"]], ["x"], ["x"]),
    "positive int": (pydantic.PositiveInt, 1, 1),
    "url": (pydantic.AnyUrl, "http://a.b/", pydantic.AnyUrl("http://a.b/")),
    "date": (dt.date, "2026-01-02", dt.date(2026, 1, 2)),
    "time": (dt.time, "03:04", dt.time(3, 4)),
    "datetime": (dt.datetime, "2026-01-02T03:04", OTHER_DAY),
    "timedelta": (dt.timedelta, "PT1H30M", dt.timedelta(minutes=90)),
    "union of date and datetime": (dt.date | dt.datetime, "2026-01-02T03:04:00", OTHER_DAY),
    "decimal": (decimal.Decimal, "1.10", decimal.Decimal("1.10")),
    "decimal from a number": (decimal.Decimal, 1.1, decimal.Decimal("1.1")),
    "path": (pathlib.Path, "a/b", pathlib.Path("a/b")),
    "uuid": (uuid.UUID, UUID, uuid.UUID(UUID)),
    "pattern object": (re.Pattern, "a+", re.compile("a+")),
    "ip address": (ipaddress.IPv4Address, "127.0.0.1", ipaddress.IPv4Address("127.0.0.1")),
    "list": (list, [1, "a"], [1, "a"]),
    "fixed tuple": (tuple[int, str], [1, "a"], (1, "a")),
    "variadic tuple": (tuple[int, ...], [1, 2, 3], (1, 2, 3)),
    "bare tuple": (tuple, [1, "a"], (1, "a")),
    "empty tuple": (tuple[()], [], ()),
    "list of pairs": (list[tuple[str, float]], [["a", 1]], [("a", 1.0)]),
    "set": (set[int], [1, 2, 2], {1, 2}),
    "frozenset": (frozenset[str], ["a"], frozenset({"a"})),
    "deque": (collections.deque[int], [1, 2], collections.deque([1, 2])),
    "dict": (dict, {"a": 1}, {"a": 1}),
    "dict by int": (dict[int, str], {"1": "a"}, {1: "a"}),
    "dict by date": (dict[dt.date, int], {"2026-01-02": 1}, {dt.date(2026, 1, 2): 1}),
    "dict by literal": (dict[Literal["a", "b"], int], {"a": 1}, {"a": 1}),
    "defaultdict": (
        collections.defaultdict[str, int],
        {"a": 1},
        collections.defaultdict(int, {"a": 1}),
    ),
    "mapping": (Mapping[str, int], {"a": 1}, {"a": 1}),
    "sequence": (Sequence[int], [1], [1]),
    "iterable is a list": (Iterable[int], [1, 2], [1, 2]),
    "collection is a list": (collections.abc.Collection[int], [1], [1]),
    "new type": (UserId, 5, 5),
    "type variable": (T, [1], [1]),
    "type variable of two": (Choice, "a", "a"),
    "type alias": (Ints, ["1"], [1]),
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
    "typed array": (np.typing.NDArray[np.float64], "take a list[float]"),
    "array like": (np.typing.ArrayLike, "take a list[float]"),
    "list of arrays": (list[np.ndarray], "take a list[float]"),
    "frame": (pd.DataFrame, "take the rows as a list[dict]"),
    "optional frame": (pd.DataFrame | None, "take the rows as a list[dict]"),
    "text or frame": (str | pd.DataFrame, "take the rows as a list[dict]"),
    "series": (pd.Series, "take a list of the values"),
    "timestamp": (pd.Timestamp, LIST_OR),
    "callable": (Callable[[int], str], "take the name of the function"),
    "function": (print, "take the name of the function"),
    "lambda": (lambda x: x, "take the name of the function"),  # pyright: ignore
    "class": (type[int], LIST_OR),
    "range": (range, LIST_OR),
    "flag": (Access, LIST_OR),
    "numpy integer": (np.int64, LIST_OR),
    "iterator": (Iterator[int], LIST_OR),
    "generator": (collections.abc.Generator[int, None, None], LIST_OR),
    "literal string": (typing_extensions.LiteralString, LIST_OR),
    "file": (typing.TextIO, LIST_OR),
    "own class": (type("Database", (), {}), LIST_OR),
    "self": ("typing.Self", LIST_OR),
    "class variable": (typing.ClassVar[int], LIST_OR),
    "enum of tuples": (Pairs, LIST_OR),
    "empty enum": (enum.Enum("Empty", []), LIST_OR),
    "never": (typing.Never, LIST_OR),
    "number": (5, LIST_OR),
    "list of a type": ([int], LIST_OR),
    "dict of a type": ({"a": int}, LIST_OR),
    "module": (math, LIST_OR),
    "pattern with look-ahead": (
        Annotated[str, Field(pattern="^(?!x)a")],
        "look-around, including look-ahead and look-behind, is not supported",
    ),
    "alias of itself": (Recursive, "alias that names itself; write pydantic.JsonValue"),
    "alias of itself inside": ("list[Recursive] | None", "an alias that names itself"),
    "unknown name in a model": (Early, "names a class that is not defined yet; define it"),
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
