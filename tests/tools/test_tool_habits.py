"""What models do to arguments: undone where the meaning is plain, else refused in useful words."""

# No `from __future__ import annotations`: the hints of the tools are local.

import datetime as dt
import enum
import random
import typing
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
import typing_extensions
from host_door import refused
from probes import Access, Cat, Dog, Size, probe_of
from pydantic import BaseModel, Field, field_validator

from nbagent.contracts.chat import parse_arguments
from nbagent.contracts.errors import ToolError
from nbagent.contracts.secrets import register
from nbagent.tools.functions import FunctionTool, as_tool


class Colour(enum.Enum):
    RED = "red"
    DARK_BLUE = "dark blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Place(enum.Enum):
    HERE = (0, 0)


class Stop(BaseModel):
    city_name: str
    max_days: int = 1
    when: dt.date | None = None


class Row(typing_extensions.TypedDict):
    first_name: str
    age: typing_extensions.NotRequired[int]


class Pair(typing.NamedTuple):
    a: int
    b: int


SAME: Any = object()
DAY = dt.date(2026, 1, 2)
VALUES: dict[str, tuple[Any, Any, Any]] = {
    # id: hint, what a model sends, what the function gets (SAME: untouched)
    "int in a string": (int, "3", 3),
    "int with blanks": (int, " 3 ", 3),
    "int with a fraction of nothing": (int, 3.0, 3),
    "int with a fraction in a string": (int, "3.0", 3),
    "int with thousands": (int, "1,234", 1234),
    "large int with thousands": (int, "-1,234,567", -1234567),
    "int with an exponent": (int, "1e3", 1000),
    "int in a list": (int, [5], 5),
    "optional int as null in words": (int | None, "null", None),
    "optional int as None in words": (int | None, "None", None),
    "optional int as empty text": (int | None, "", None),
    "float in a string": (float, "2.5", 2.5),
    "float with thousands": (float, "1,234.5", 1234.5),
    "float in a list": (float, ["2.5"], 2.5),
    "decimal with thousands": (Decimal, "1,234.50", Decimal("1234.50")),
    "true in a string": (bool, "true", True),
    "True in a string": (bool, "True", True),
    "yes": (bool, "yes", True),
    "off": (bool, "off", False),
    "one for true": (bool, 1, True),
    "true with blanks": (bool, " true ", True),
    "str stays": (str, " 007 ", SAME),
    "str that looks like json stays": (str, '{"a": [1]}', SAME),
    "str that looks like a list stays": (str, "[1, 2]", SAME),
    "str that looks like a number stays": (str, "1,234", SAME),
    "str null stays": (str, "null", SAME),
    "str empty stays": (str, "", SAME),
    "optional str null stays": (str | None, "null", SAME),
    "any stays": (Any, '{"a": 1}', SAME),
    "list of str stays": (list[str], ["1", "null", "[2]"], SAME),
    "union with str stays": (int | str, "1,234", SAME),
    "dict of str stays": (dict[str, str], {"a": "1"}, SAME),
    "number for a str": (str, 5, "5"),
    "bool for a str": (str, True, "true"),
    "list for a str": (str, ["Rome"], "Rome"),
    "json list": (list[int], "[1, 2]", [1, 2]),
    "python list": (list[str], "['a', 'b']", ["a", "b"]),
    "python tuple": (tuple[int, int], "(1, 2)", (1, 2)),
    "list with blanks around": (list[int], "  [1] ", [1]),
    "json list for an optional": (list[int] | None, "[1]", [1]),
    "numbers with commas": (list[int], "1, 2,3", [1, 2, 3]),
    "thousands for a list": (list[int], "1,234", [1234]),
    "choices with commas": (list[Colour], "red, dark blue", [Colour.RED, Colour.DARK_BLUE]),
    "text with a comma is one": (list[str], "Portland, OR", ["Portland, OR"]),
    "one for a list": (list[int], 3, [3]),
    "one text for a set": (set[str], "a", {"a"}),
    "one for a sequence": (typing.Sequence[str], "a", ["a"]),
    "one model for a list": (list[Stop], {"city_name": "Rome"}, [Stop(city_name="Rome")]),
    "json model": (Stop, '{"city_name": "Rome"}', Stop(city_name="Rome")),
    "python dict": (dict[str, bool], "{'a': True}", {"a": True}),
    "json inside json": (list[Size], ['{"width": "3"}'], [Size(3)]),
    "json list inside a model list": (
        dict[str, list[int]],
        {"a": "[1]", "b": 2},
        {"a": [1], "b": [2]},
    ),
    "named tuple as json": (Pair, '{"a": 1, "b": "2"}', Pair(1, 2)),
    "named tuple as a json list": (Pair, "[1, 2]", Pair(1, 2)),
    "discriminated model as json": (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        '{"kind": "cat", "lives": "9"}',
        Cat(kind="cat", lives=9),
    ),
    "model of a union as json": (
        Cat | Dog,
        '{"kind": "dog", "name": "x"}',
        Dog(kind="dog", name="x"),
    ),
    "camelCase in a model": (
        Stop,
        {"cityName": "Rome", "maxDays": 3},
        Stop(city_name="Rome", max_days=3),
    ),
    "camelCase in a typed dict": (Row, {"firstName": "Ann"}, {"first_name": "Ann"}),
    "camelCase in a dataclass": (Size, {"Width": 1}, Size(1)),
    "null for a default in a model": (
        Stop,
        {"city_name": "x", "max_days": None},
        Stop(city_name="x"),
    ),
    "null for a key that may be missing": (
        Row,
        {"first_name": "x", "age": None},
        {"first_name": "x"},
    ),
    "empty text for a default in a model": (
        Stop,
        {"city_name": "x", "max_days": ""},
        Stop(city_name="x"),
    ),
    "empty text for an optional date": (Stop, {"city_name": "x", "when": ""}, Stop(city_name="x")),
    "number for a str in a model": (Stop, {"city_name": 5}, Stop(city_name="5")),
    "keys of a dict beside a model stay": (Stop | dict[str, int], {"cityName": 1}, SAME),
    "enum in another case": (Colour, "RED", Colour.RED),
    "enum by name": (Colour, "DARK_BLUE", Colour.DARK_BLUE),
    "enum with its class": (Colour, "Colour.RED", Colour.RED),
    "enum in another spelling": (Colour, "Dark-Blue", Colour.DARK_BLUE),
    "enum in quotes": (Colour, '"red"', Colour.RED),
    "enum with blanks": (Colour, " red ", Colour.RED),
    "enum in a list": (Colour, ["red"], Colour.RED),
    "int enum in a string": (Level, "2", Level.HIGH),
    "int enum by name": (Level, "high", Level.HIGH),
    "enum of tuples as a list": (Place, [0, 0], Place.HERE),
    "optional enum by name": (Colour | None, "RED", Colour.RED),
    "enum inside": (dict[str, list[Colour]], {"a": ["RED"]}, {"a": [Colour.RED]}),
    "flags in a string": (Access, "READ|WRITE", Access.READ | Access.WRITE),
    "flags in another case": (Access, ["read"], Access.READ),
    "flags as a number": (Access, 3, Access.READ | Access.WRITE),
    "literal in another case": (Literal["asc", "desc"], "ASC", "asc"),
    "literal number in a string": (Literal[1, 2], "2", 2),
    "literal in camelCase": (Literal["in_progress"], "inProgress", "in_progress"),
    "date with blanks": (dt.date, " 2026-01-02 ", DAY),
    "date without dashes": (dt.date, "20260102", DAY),
    "date as a number": (dt.date, 20260102, DAY),
    "date without zeros": (dt.date, "2026-1-2", DAY),
    "date with slashes": (dt.date, "2026/01/02", DAY),
    "date with a midnight": (dt.date, "2026-01-02T00:00:00", DAY),
    "date of a week": (dt.date, "2026-W01-5", DAY),
    "datetime without dashes": (dt.datetime, "20260102T0304", dt.datetime(2026, 1, 2, 3, 4)),
    "datetime of a day without dashes": (dt.datetime, "20260102", dt.datetime(2026, 1, 2)),
    "datetime of an hour": (dt.datetime, "2026-01-02T03", dt.datetime(2026, 1, 2, 3)),
    "datetime with a blank": (dt.datetime, "2026-01-02 03:04", dt.datetime(2026, 1, 2, 3, 4)),
    "time without a zero": (dt.time, "9:05", dt.time(9, 5)),
    "time with T": (dt.time, "T09:05", dt.time(9, 5)),
    "time of an hour": (dt.time, "09", dt.time(9)),
    "duration in seconds": (dt.timedelta, 90, dt.timedelta(seconds=90)),
    "duration by the clock": (dt.timedelta, "1:30:00", dt.timedelta(minutes=90)),
}


@pytest.mark.parametrize(("hint", "sent", "expected"), VALUES.values(), ids=VALUES.keys())
def test_value_is_read_as_it_was_meant(hint: Any, sent: Any, expected: Any) -> None:
    expected = sent if expected is SAME else expected
    result = as_tool(probe_of(hint)).validate({"value": sent}).values["value"]
    assert result == expected
    assert type(result) is type(expected)


def search(
    query_text: str,
    limit: int = 10,
    kind: Literal["a", "b"] = "a",
    since: dt.date | None = None,
    tags: list[str] | None = None,
) -> None: ...


def nothing() -> None: ...


def labelled(name: str, **labels: int) -> None: ...


def asking(q: str, tool_context) -> None: ...  # pyright: ignore


def with_stop(stop: Stop) -> None: ...


def with_input(input: dict[str, Any]) -> None: ...


X = {"query_text": "x"}
WHOLE: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    # id: the tool, the arguments of a model, what the function gets
    "camelCase": (search, {"queryText": "x"}, X),
    "another case": (search, {"Query_Text": "x", "LIMIT": 3}, {**X, "limit": 3}),
    "dashes": (search, {"query-text": "x"}, X),
    "null for a default": (search, {**X, "limit": None}, X),
    "null for an optional": (search, {**X, "since": None}, {**X, "since": None}),
    "empty text for a default": (search, {**X, "limit": ""}, X),
    "empty text for a choice": (search, {**X, "kind": ""}, X),
    "null in words for a default": (search, {**X, "limit": "null"}, X),
    "under arguments": (search, {"arguments": X}, X),
    "under kwargs": (search, {"kwargs": X}, X),
    "under input as json": (search, {"input": '{"query_text": "x"}'}, X),
    "under parameters in camelCase": (search, {"parameters": {"queryText": "x"}}, X),
    "under the tool's name": (search, {"search": X}, X),
    "empty under arguments": (nothing, {"arguments": {}}, {}),
    "a parameter of that name stays": (
        with_input,
        {"input": {"input": {"a": 1}}},
        {"input": {"input": {"a": 1}}},
    ),
    "extra null": (search, {**X, "offset": None}, X),
    "extra empty text": (search, {**X, "offset": ""}, X),
    "filler for no parameters": (nothing, {"random_string": "x"}, {}),
    "empty key": (nothing, {"": ""}, {}),
    "fields of the one object": (
        with_stop,
        {"cityName": "Rome", "max_days": 2},
        {"stop": Stop(city_name="Rome", max_days=2)},
    ),
    "kwargs under their name": (
        labelled,
        {"name": "x", "labels": {"a": 1}},
        {"name": "x", "labels": {"a": 1}},
    ),
    "several habits at once": (
        search,
        {"queryText": 5, "limit": "1,000", "kind": "B", "since": "20260102", "tags": "new"},
        {"query_text": "5", "limit": 1000, "kind": "b", "since": DAY, "tags": ["new"]},
    ),
}


@pytest.mark.parametrize(("tool", "sent", "expected"), WHOLE.values(), ids=WHOLE.keys())
def test_arguments_are_read_as_they_were_meant(
    tool: Any, sent: dict[str, Any], expected: dict[str, Any]
) -> None:
    before = repr(sent)
    assert as_tool(tool).validate(sent).values == expected
    assert repr(sent) == before


@pytest.mark.parametrize("raw", ["", "  ", "null", "{}"])
def test_no_text_for_no_arguments(raw: str) -> None:
    assert as_tool(nothing).validate(parse_arguments(raw)).values == {}


REFUSED: dict[str, tuple[Any, dict[str, Any] | None, str]] = {
    # id: the tool, the arguments of a model, what it is told
    "word for a number": (
        search,
        {**X, "limit": "many"},
        "limit: input should be a valid integer, unable to parse string as an integer, "
        "got 'many', such as 1",
    ),
    "half a number": (search, {**X, "limit": 3.5}, "limit: input should be a valid"),
    "unknown choice": (search, {**X, "kind": "c"}, "kind: expected one of 'a', 'b', got 'c'"),
    "day in words": (search, {**X, "since": "2 Jan 2026"}, "since: input should be a valid date"),
    "day example": (search, {**X, "since": "soon"}, 'such as "2026-01-31"'),
    "missing": (search, {}, "query_text: is missing, expected string"),
    "null for what is needed": (
        search,
        {"query_text": None},
        "query_text: input should be a valid string, got None",
    ),
    "object for a text": (search, {"query_text": {"a": 1}}, "query_text: input should be a valid"),
    "two for one": (search, {"query_text": ["a", "b"]}, "query_text: input should be a valid"),
    "unknown parameter": (
        search,
        {**X, "offset": 3},
        "offset: there is no such parameter, the parameters are query_text, limit",
    ),
    "wrong name": (search, {"qeury_text": "x"}, "did you mean 'query_text'?"),
    "arguments for none": (nothing, {"path": "/x"}, "path: there is no such parameter"),
    "missing object with an example": (
        probe_of(Size),
        {},
        'value: is missing, expected object with width, height, such as {"width":1}',
    ),
    "no object": (search, None, "must be a JSON object"),
    "missing choice": (probe_of(Colour), {}, "value: is missing, expected one of 'red', 'dark"),
    "missing list": (probe_of(list[int]), {}, "value: is missing, expected array of integer"),
    "endless text": (search, {**X, "limit": "9" * 5_000}, "limit: unable to parse"),
    "further argument": (labelled, {"name": "x", "a": "no"}, "a: input should be a valid integer"),
    "the context": (
        asking,
        {"q": "x", "tool_context": "mine"},
        "tool_context: there is no such parameter",
    ),
}


REFUSED_VALUES: dict[str, tuple[Any, Any, str]] = {
    # id: the hint of the parameter `value`, what a model sends, what it is told
    "german number": (float, "1,5", "value: input should be a valid number"),
    "union": (
        int | list[int],
        {"a": "b"},
        "expected integer or array of integer, got {'a': 'b'}",
    ),
    "typed dict without a key": (Row, {"age": 1}, "value.first_name: is missing, expected string"),
    "unknown key of a dataclass": (
        Size,
        {"width": 1, "colour": 2},
        "value.colour: there is no such key, the keys are width, height",
    ),
    "text for a model": (Stop, "Rome", 'got \'Rome\', such as {"city_name":"text"}'),
    "ambiguous choice": (Literal["A", "a"], " a-", "value: expected one of 'A', 'a', got ' a-'"),
    "sign of a choice": (Literal[1, 2], "-1", "value: expected one of 1, 2, got '-1'"),
    "enum of names": (Place, "THERE", "expected one of 'HERE', got 'THERE'"),
    "out of bounds": (
        Annotated[int, Field(ge=5)],
        1,
        "greater than or equal to 5, got 1, such as 5",
    ),
    "path inside a model": (
        list[Stop],
        [{"city_name": "Rome"}, {"max_days": 2}],
        "value[1].city_name: is missing",
    ),
    "uuid": (uuid.UUID, "x", 'such as "123e4567-'),
}


def told(tool: Any, sent: dict[str, Any] | None) -> str:
    with pytest.raises(ToolError) as caught:
        as_tool(tool).validate(sent)
    assert caught.value.code == "E_INVALID_ARGUMENTS"
    assert "pydantic" not in caught.value.message
    assert len(caught.value.message) < 400
    return caught.value.message


@pytest.mark.parametrize(("tool", "sent", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_refusal_tells_what_to_send(tool: Any, sent: dict[str, Any] | None, words: str) -> None:
    assert words in told(tool, sent)


@pytest.mark.parametrize(
    ("hint", "value", "words"), REFUSED_VALUES.values(), ids=REFUSED_VALUES.keys()
)
def test_refusal_of_a_value_tells_what_to_send(hint: Any, value: Any, words: str) -> None:
    assert words in told(probe_of(hint), {"value": value})


def test_what_was_read_otherwise_is_noted_and_the_call_keeps_what_the_model_wrote(
    bench: Any,
) -> None:
    register("sk-in-an-argument")
    arguments = {"queryText": "x", "limit": "1,000", "kind": "sk-in-an-argument", "junk": None}
    error = refused(bench.run(search, **arguments))
    assert "sk-in-an-argument" not in str(error)
    outcome = bench.run(search, **{**arguments, "kind": " B"})
    assert outcome.result.ok
    assert outcome.notes == (
        "queryText: read as query_text",
        "limit: '1,000' read as '1000'",
        "kind: ' B' read as 'b'",
        "junk: left out, there is no such parameter",
    )
    assert as_tool(search).validate({"query_text": "x", "limit": "3"}).notes == ()


@pytest.mark.parametrize("error", [KeyError("no"), ValueError("no " * 1_000)], ids=["odd", "long"])
def test_validator_that_raises_anything_is_a_short_refusal(error: Exception) -> None:
    class Fussy(BaseModel):
        x: int

        @field_validator("x")
        @classmethod
        def never(cls, value: int) -> int:
            raise error

    with pytest.raises(ToolError) as caught:
        as_tool(probe_of(Fussy)).validate({"value": {"x": 1}})
    assert caught.value.code == "E_INVALID_ARGUMENTS"
    assert len(caught.value.message) < 500


def test_many_problems_are_counted() -> None:
    with pytest.raises(ToolError, match="and 42 more"):
        as_tool(probe_of(list[int])).validate({"value": [f"n{i}" for i in range(50)]})


TEXTS = ["", "null", "[1", "{", "[]", "{}", '[["', "1,2", "\ud800", "x" * 3_000, "٣"]
PLAIN: list[Any] = [None, 0, -1, 1.5, True, 10**30, [], {}, [[]], [None], ["a", 1]]
JUNK: list[Any] = [*TEXTS, *PLAIN, {"a": None}, {"a": {"a": []}}]
HINTS: list[Any] = [v[0] for v in VALUES.values()]


def is_refused(tool: FunctionTool, junk: Any) -> bool:
    """Whether a value is refused; anything but a short refusal comes out as it is."""
    try:
        tool.validate({"value": junk})
    except ToolError as error:
        if error.code != "E_INVALID_ARGUMENTS" or len(error.message) > 1_500:
            raise
        return True
    return False


def test_no_junk_for_any_hint_is_more_than_a_refusal() -> None:
    rng = random.Random(7)
    tools = [as_tool(probe_of(hint)) for hint in dict.fromkeys(HINTS)]
    refused = 0
    for tool in tools:
        for junk in (*JUNK, {"value": rng.choice(JUNK), "a": rng.choice(JUNK)}):
            refused += is_refused(tool, junk)
    assert refused > 300
