"""Hints and docstrings: the schema a model is shown, the value a call gets, and what is refused."""

# No `from __future__ import annotations`: the hints of the tools are local.

import dataclasses
import datetime as dt
import enum
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union

import numpy as np
import pydantic
import pytest
import typing_extensions
from legal_schema import check_legal
from probes import Cat, Colour, Dog, pd, probe_of
from pydantic import BaseModel, Field

from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ToolContext
from nbagent.contracts.secrets import SecretKey
from nbagent.tools.function_tool import as_tool


class Place(BaseModel):
    """Where."""

    title: str
    lat: float = Field(description="Degrees north.")


class Row(typing.TypedDict):
    name: str
    count: typing.NotRequired[int]


ROW = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}


PLACE = {
    "description": "Where.",
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "lat": {"type": "number", "description": "Degrees north."},
    },
    "required": ["title", "lat"],
}


def schema_of(function: Callable[..., object]) -> dict[str, Any]:
    return as_tool(function).spec.parameters


def property_of(hint: Any) -> dict[str, Any]:
    return schema_of(probe_of(hint))["properties"]["value"]


INT, TEXT, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
HINTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "annotated field": (
        Annotated[int, Field(ge=1, description="How many.")],
        {"minimum": 1, "description": "How many.", **INT},
    ),
    "annotated doc": (
        Annotated[str, typing_extensions.Doc("A name.")],
        {"description": "A name.", **TEXT},
    ),
    "enum": (Colour, {"enum": ["red", "dark blue"], **TEXT}),
    "typed dict inside": (list[Row] | None, {"anyOf": [{"items": ROW, "type": "array"}, NULL]}),
    "models, one with a field named title": (
        dict[str, Place],
        {"type": "object", "additionalProperties": PLACE},
    ),
    "fixed tuple": (
        tuple[int, str],
        {
            "type": "array",
            "items": {"anyOf": [INT, TEXT]},
            "minItems": 2,
            "maxItems": 2,
            "description": "In this order: integer, string.",
        },
    ),
    "dict by enum": (
        dict[Colour, int],
        {"type": "object", "additionalProperties": INT, "description": "Keys: 'red', 'dark blue'."},
    ),
}


@pytest.mark.parametrize(("hint", "expected"), HINTS.values(), ids=HINTS.keys())
def test_hint_becomes(hint: Any, expected: dict[str, Any]) -> None:
    assert property_of(hint) == expected


def test_defaults_are_kept_and_make_parameters_optional() -> None:
    def find(query: str, limit: int = 10, *, exact: bool = False, tag: str | None = None) -> None:
        """Find.

        Args:
            query: What to look for.
            limit: How many at most.
        """

    schema = schema_of(find)
    assert schema["required"] == ["query"]
    assert schema["properties"] == {
        "query": {"type": "string", "description": "What to look for."},
        "limit": {"type": "integer", "default": 10, "description": "How many at most."},
        "exact": {"type": "boolean", "default": False},
        "tag": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    }
    assert schema["additionalProperties"] is False


def test_context_is_not_shown() -> None:
    def hint(q: str, ctx: ToolContext) -> None: ...
    def optional(q: str, ctx: ToolContext | None = None) -> None: ...
    def string(q: str, ctx: "ports.ToolContext | None") -> None: ...  # pyright: ignore # noqa: F821

    functions: list[Any] = [hint, optional, string]
    for function in functions:
        assert list(schema_of(function)["properties"]) == ["q"]


def test_key_in_a_default_is_hidden() -> None:
    SecretKey("sk-default-of-a-tool")

    def ask(q: str, key: str = "sk-default-of-a-tool") -> None: ...

    assert schema_of(ask)["properties"]["key"] == {"type": "string"}


def test_string_hints_are_resolved_in_the_functions_module_then_in_the_namespace() -> None:
    module = types.ModuleType("elsewhere")
    source = (
        "from __future__ import annotations\n"
        "class Here(int): pass\n"
        "Both = int\n"
        "def f(a: Both, b: list[There], c: 'dict[str, Both]') -> Missing: ...\n"
    )
    exec(source, module.__dict__)
    namespace = {"There": float, "Both": str}
    properties = as_tool(module.f, namespace=namespace).spec.parameters["properties"]
    assert properties == {
        "a": {"type": "integer"},
        "b": {"type": "array", "items": {"type": "number"}},
        "c": {"type": "object", "additionalProperties": {"type": "integer"}},
    }


# Descriptions out of docstrings of three styles

HEAD = "Count people.\n\nMore about it.\n\n"
GOOGLE = f"""{HEAD}Args:
    city (str): The city's name,
        in English.
    year: When.
    *rest: Others.

Note:
    Old numbers.

Returns:
    People, rounded.

Raises:
    ValueError: never mind.
"""
NUMPY = f"""{HEAD}Parameters
----------
city : str
    The city's name,
    in English.
year, month : int, optional
    When.

Returns
-------
int
    People, rounded.
"""
SPHINX = f"""{HEAD}:param str city: The city's name,
    in English.
:param year: When.
:type year: int
:returns: People, rounded.
:raises ValueError: never mind.
"""
END = "Returns: People, rounded."
BOTH = {"city": "The city's name, in English.", "year": "When."}
EXAMPLES = "Add.\n\nArgs:\n    year: One.\n\nExamples:\n    >>> add(1)\n    2\n"
CASES: dict[str, tuple[str | None, str, dict[str, str]]] = {
    # id: the docstring, the description, those of the parameters
    "google": (GOOGLE, f"{HEAD}Note: Old numbers.\n\n{END}", {**BOTH, "rest": "Others."}),
    "numpy": (NUMPY, HEAD + END, BOTH),
    "sphinx": (SPHINX, HEAD + END, BOTH),
    "examples": (EXAMPLES, "Add.\n\nExamples:\n>>> add(1)\n2", {"year": "One."}),
    "one field": ("Weather.\n\n:param city: the name", "Weather.", {"city": "the name"}),
    "endless": ("x" * 10_000, "x" * 4_000, {}),
}


@pytest.mark.parametrize(("text", "description", "parameters"), CASES.values(), ids=CASES)
def test_docstring_is_read(
    text: str | None,
    description: str,
    parameters: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def count(city: str, *rest: int, year: int = 1) -> None: ...

    count.__doc__ = text
    spec = as_tool(count).spec
    texts = {n: p.get("description") for n, p in spec.parameters["properties"].items()}
    assert spec.description == description
    assert {name: text for name, text in texts.items() if text} == parameters
    assert (caplog.records, capfd.readouterr()) == ([], ("", ""))


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


Json = typing_extensions.TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")
Recursive = Union[str, int, None, list["Recursive"], dict[str, "Recursive"]]  # noqa: UP007
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
