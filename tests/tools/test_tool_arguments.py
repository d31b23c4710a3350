"""Hints and docstrings: the schema a model is shown, what it may send, and what a call gets."""

# No `from __future__ import annotations`: the hints of the tools are local.

import dataclasses
import datetime as dt
import enum
import random
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union

import numpy as np
import pydantic
import pytest
import typing_extensions
from host_door import HostDoor
from legal_schema import check_legal
from probes import Cat, Colour, Dog, Size, pd, probe_of
from pydantic import BaseModel, Field, field_validator

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.secrets import SecretKey, register_secret
from nbagent.contracts.tools import ToolContext
from nbagent.tools.functions.definition import as_tool


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
    "alias of itself": (Recursive, "is a recursive alias; write pydantic.JsonValue"),
    "unknown name in a model": (Early, "names a class that is not defined yet; define it"),
    "no expression": ("list[", "define or import the names in it"),
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


UNREADABLE = ("alias of itself", "unknown name in a model", "no expression")
"""Hints that no default hides, because they cannot be read at all."""


@pytest.mark.parametrize("hint", [v[0] for key, v in REFUSED.items() if key not in UNREADABLE])
def test_such_a_parameter_is_hidden_where_it_has_a_default(hint: Any, bench: Any) -> None:
    def probe(a: int, extra=None) -> Any:  # pyright: ignore
        return [a, extra]

    probe.__annotations__ = {"a": int, "extra": hint}
    check_legal(as_tool(probe).spec)  # pyright: ignore
    assert bench.run(probe, a=1).result.data == [1, None]
    assert list(as_tool(probe).spec.parameters["properties"]) == ["a"]  # pyright: ignore


class Fussy(BaseModel):
    x: int

    @field_validator("x")
    @classmethod
    def never(cls, value: int) -> int:
        raise KeyError("no " * 1_000)


def search(
    query: str, limit: int = 10, kind: Literal["a", "b"] = "a", since: dt.date | None = None
) -> None: ...


def nothing() -> None: ...


def with_input(input: dict[str, Any]) -> None: ...


SAME: Any = object()
UNION = Annotated[Cat | Dog, Field(discriminator="kind")]
VALUES: dict[str, tuple[Any, Any, Any]] = {
    # id: hint, what a model sends, what the function gets (SAME: untouched)
    "str that looks like json stays": (str, '{"a": [1]}', SAME),
    "union with str stays": (int | str, "[1]", SAME),
    "number for a str": (str, 5, "5"),
    "json inside json": (list[Size], ['{"width": "3"}'], [Size(3)]),
    "json of a union": (UNION, '{"kind": "cat", "lives": 9}', Cat(kind="cat", lives=9)),
    "json inside json inside json": (list[int], '"\\"[1, 2]\\""', [1, 2]),
    "json in a fence": (list[int], "```json\n[1, 2]\n```", [1, 2]),
    "json before a tag": (dict[str, int], '{"a": 1}</parameter>', {"a": 1}),
    "json before a comma": (list[int], "[1, 2],", [1, 2]),
    "a literal of python": (list[str], "['a', \"it's\"]", ["a", "it's"]),
    "an object as python writes it": (
        dict[str, Any],
        "{'a': True, 'b': None}",
        {"a": True, "b": None},
    ),
    "a text that begins like a list": (list[str], "[sic] a quote", ["[sic] a quote"]),
    "two objects are no list of one": (list[str], '{"a": 1} {"a": 2}', ['{"a": 1} {"a": 2}']),
    "a set of python is none": (list[str], "{1, 2}", ["{1, 2}"]),
    "a fence for a str stays": (str, "```json\n[1]\n```", SAME),
    "one for a list": (list[int], 3, [3]),
    "text with a comma is one": (list[str], "Portland, OR", ["Portland, OR"]),
    "choice in another case": (Literal["asc", "it's"], " IT'S ", "it's"),
    "enum in another case": (Colour, "Dark Blue", Colour.DARK_BLUE),
}
X = {"query": "x"}
WHOLE: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "null for an optional": (search, {**X, "since": None}, {**X, "since": None}),
    "under input as json": (search, {"input": '{"query": "x"}'}, X),
    "empty under arguments": (nothing, {"arguments": {}}, {}),
    "under kwargs": (search, {"kwargs": X}, X),
    "under properties, as the schema has it": (search, {"properties": X}, X),
    "a whole call": (search, {"name": "search", "arguments": X}, X),
    "a whole call as text": (search, {"type": "function", "arguments": '{"query": "x"}'}, X),
    "a parameter of that name": (with_input, {"input": {"input": {}}}, {"input": {"input": {}}}),
    "several": (
        *(search, {"arguments": {"query": 5, "limit": "30", "kind": "B"}}),
        {"query": "5", "limit": 30, "kind": "b"},
    ),
}


@pytest.mark.parametrize(
    ("tool", "sent", "expected"),
    [*((probe_of(h), {"value": s}, {"value": e}) for h, s, e in VALUES.values()), *WHOLE.values()],
    ids=[*VALUES, *WHOLE],
)
def test_arguments_are_read_as_they_were_meant(
    tool: Any, sent: dict[str, Any], expected: dict[str, Any]
) -> None:
    before = repr(sent)
    values = as_tool(tool).arguments.validate(sent).values
    wanted = sent if SAME in expected.values() else expected
    assert values == wanted
    assert [type(value) for value in values.values()] == [type(it) for it in wanted.values()]
    assert repr(sent) == before


UNFIT: dict[str, tuple[Any, dict[str, Any] | None, str]] = {
    # id: the tool, the arguments of a model, what it reads
    "word for a number": (
        *(search, {**X, "limit": "many"}),
        "limit: input should be a valid integer, unable to parse string as an integer, got 'many'",
    ),
    "two wrappers": (search, {"arguments": X, "input": X}, "arguments: is unknown"),
    "a wrapper of other keys": (search, {"arguments": {"q": "x"}}, "arguments: is unknown"),
    "a wrapper beside a parameter": (search, {**X, "arguments": {}}, "arguments: is unknown"),
    "unknown parameter": (
        *(search, {**X, "offset": 3}),
        "offset: is unknown; the parameters are query, limit, kind, since",
    ),
    "wrong name": (search, {"qeury": "x"}, "qeury: is unknown; did you mean 'query'?"),
    "day without dashes": (search, {**X, "since": "20260102"}, "a day is written like 2026-01-31"),
    "endless text": (search, {**X, "limit": "9" * 5_000}, "limit: unable to parse"),
    "union": (
        *(probe_of(int | Size), {"value": []}),
        "value: input should be a valid integer, got []; value: input should be a dictionary or an",
    ),
    "unknown key": (
        probe_of(Size),
        {"value": {"width": 1, "c": 2}},
        "value.c: there is no such key",
    ),
    "validator that raises anything": (probe_of(Fussy), {"value": {"x": 1}}, "KeyError('no no"),
}


@pytest.mark.parametrize(("tool", "sent", "words"), UNFIT.values(), ids=UNFIT.keys())
def test_refusal_says_what_to_send(tool: Any, sent: dict[str, Any] | None, words: str) -> None:
    with pytest.raises(ToolError) as caught:
        as_tool(tool).arguments.validate(sent)
    assert caught.value.code == "E_INVALID_ARGUMENTS"
    assert words in caught.value.message
    assert "pydantic" not in caught.value.message
    assert len(caught.value.message) < 800


def test_what_was_read_otherwise_is_noted(bench: HostDoor) -> None:
    register_secret("sk-in-an-argument")
    error = bench.run(search, query="x", kind="sk-in-an-argument").result.error
    assert "sk-in-an-argument" not in str(error)
    outcome = bench.run(search, query="x", limit=None, kind=" B")
    assert outcome.result.ok
    assert outcome.notes == ("limit: None ignored, the default is used", "kind: ' B' read as 'b'")


TEXTS = ["", "null", "[1", "{", "[]", "{}", '[["', "1,2", "\ud800", "x" * 3_000, "٣"]
PLAIN: list[Any] = [None, 0, -1, 1.5, True, 10**30, [], {}, [[]], [None], ["a", 1]]
JUNK: list[Any] = [*TEXTS, *PLAIN, {"a": None}, {"a": {"a": []}}]


def test_no_junk_for_any_hint_is_more_than_a_short_refusal() -> None:
    rng, refused = random.Random(7), list[ToolError]()
    for hint in {str(hint): hint for hint, _, _ in VALUES.values()}.values():
        tool = as_tool(probe_of(hint))
        for junk in (*JUNK, {"value": rng.choice(JUNK), "a": rng.choice(JUNK)}):
            try:
                tool.arguments.validate({"value": junk})
            except ToolError as error:
                refused.append(error)
    assert len(refused) > 100
    assert {error.code for error in refused} == {"E_INVALID_ARGUMENTS"}
    assert max(len(error.message) for error in refused) <= 1_500
