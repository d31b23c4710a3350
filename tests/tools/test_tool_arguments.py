"""Arguments of a model: coerced where the meaning is plain, refused so that a model can act."""

# No `from __future__ import annotations`: the hints of the tools are local.

import dataclasses
import typing
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from nbagent.contracts.errors import ToolError
from nbagent.contracts.secrets import register
from nbagent.tools.functions import as_tool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Stop(BaseModel):
    city: str
    days: int = 1


class Trip(BaseModel):
    stops: list[Stop]


@dataclasses.dataclass
class Size:
    width: int


class Row(typing.TypedDict):
    name: str
    count: typing.NotRequired[int]


def given(hint: Any, value: Any) -> Any:
    def probe(value) -> None: ...  # pyright: ignore

    probe.__annotations__ = {"value": hint}
    return as_tool(probe).validate({"value": value}).values["value"]  # pyright: ignore


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        pytest.param(int, "3", 3, id="int in a string"),
        pytest.param(int, 3.0, 3, id="whole float"),
        pytest.param(float, "2.5", 2.5, id="float in a string"),
        pytest.param(bool, "true", True, id="bool in a string"),
        pytest.param(str, 5, "5", id="number for a string"),
        pytest.param(date, "2026-01-02", date(2026, 1, 2), id="date"),
        pytest.param(list[int], "[1, 2]", [1, 2], id="json list in a string"),
        pytest.param(list[int] | None, "[1]", [1], id="json list for an optional"),
        pytest.param(dict[str, int], '{"a": 1}', {"a": 1}, id="json object in a string"),
        pytest.param(Stop, '{"city": "Rome"}', Stop(city="Rome"), id="json model in a string"),
        pytest.param(
            Trip,
            {"stops": '[{"city": "Rome", "days": "2"}]'},
            Trip(stops=[Stop(city="Rome", days=2)]),
            id="json inside a model",
        ),
        pytest.param(
            Trip,
            '{"stops": ["{\\"city\\": \\"Rome\\"}"]}',
            Trip(stops=[Stop(city="Rome")]),
            id="json inside json",
        ),
        pytest.param(Size, '{"width": 3}', Size(3), id="json dataclass in a string"),
        pytest.param(Row, {"name": "a"}, {"name": "a"}, id="typed dict"),
        pytest.param(list[str], "Rome", ["Rome"], id="one string for a list"),
        pytest.param(list[int], 3, [3], id="one number for a list"),
        pytest.param(list[Stop], {"city": "Rome"}, [Stop(city="Rome")], id="one model for a list"),
        pytest.param(set[str], ["a", "a"], {"a"}, id="list for a set"),
        pytest.param(tuple[int, int], [1, "2"], (1, 2), id="list for a tuple"),
        pytest.param(Colour, "red", Colour.RED, id="enum"),
        pytest.param(Literal["a", "b"], "b", "b", id="literal"),
        pytest.param(int | None, None, None, id="null"),
        pytest.param(str, "[1]", "[1]", id="a string that looks like json stays"),
        pytest.param(Any, {"x": [1]}, {"x": [1]}, id="any"),
        pytest.param(Annotated[int, Field(ge=1)], "1", 1, id="constraint"),
    ],
)
def test_value_is_coerced(hint: Any, value: Any, expected: Any) -> None:
    result = given(hint, value)
    assert result == expected
    assert type(result) is type(expected)


def refusal(function: Any, arguments: dict[str, Any] | None) -> str:
    with pytest.raises(ToolError) as caught:
        as_tool(function).validate(arguments)
    assert caught.value.code == "E_INVALID_ARGUMENTS"
    return caught.value.message


def find(city: str, year: int = 2000, kind: Literal["a", "b"] = "a") -> None: ...


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param({}, "city: is missing, expected string", id="missing"),
        pytest.param(
            {"city": "x", "year": "soon"},
            "year: input should be a valid integer, unable to parse string as an integer, "
            "got 'soon'",
            id="wrong type",
        ),
        pytest.param(
            {"city": "x", "kind": "c"}, "kind: expected one of 'a', 'b', got 'c'", id="literal"
        ),
        pytest.param(
            {"ctiy": "x"}, "ctiy: there is no such parameter, did you mean 'city'?", id="nearest"
        ),
        pytest.param(
            {"city": "x", "zzz": 1},
            "zzz: there is no such parameter, the parameters are city, year, kind",
            id="no nearest",
        ),
        pytest.param(
            {"city": ["x", "y"]}, "city: input should be a valid string, got ['x', 'y']", id="list"
        ),
        pytest.param(None, "must be a JSON object", id="no object"),
    ],
)
def test_refusal_says_what_is_wrong_and_what_is_expected(
    arguments: dict[str, Any] | None, words: str
) -> None:
    message = refusal(find, arguments)
    assert words in message
    assert "find" in message
    assert "pydantic" not in message


def test_refusal_names_the_path_inside_a_model() -> None:
    def plan(trip: Trip) -> None: ...

    message = refusal(plan, {"trip": {"stops": [{"city": "Rome"}, {"days": 2}]}})
    assert "trip.stops[1].city: is missing" in message


def test_missing_model_is_described() -> None:
    def plan(stop: Stop, colour: Colour, many: list[int]) -> None: ...

    message = refusal(plan, {})
    assert "stop: is missing, expected object with city, days" in message
    assert "colour: is missing, expected one of 'red', 'blue'" in message
    assert "many: is missing, expected array of integer" in message


def test_refusal_is_short_and_holds_no_secret() -> None:
    register("sk-argument-of-a-call")
    message = refusal(find, {"city": "x", "year": "sk-argument-of-a-call" + "9" * 5_000})
    assert "sk-argument" not in message
    assert len(message) < 400


def test_many_problems_are_counted() -> None:
    def take(numbers: list[int]) -> None: ...

    message = refusal(take, {"numbers": [f"n{i}" for i in range(50)]})
    assert "and 42 more" in message


def test_long_message_of_a_validator_is_cut() -> None:
    class Fussy(BaseModel):
        x: int

        @field_validator("x")
        @classmethod
        def never(cls, value: int, info: ValidationInfo) -> int:
            raise ValueError("no " * 1_000)

    def take(fussy: Fussy) -> None: ...

    message = refusal(take, {"fussy": {"x": 1}})
    assert "fussy.x: value error, no no" in message
    assert len(message) < 500


def test_only_what_was_given_is_passed_on() -> None:
    assert as_tool(find).validate({"city": "Rome"}).values == {"city": "Rome"}


def test_tool_may_change_its_arguments_and_the_call_stays_as_it_was(bench: Any) -> None:
    def spoil(box: Any, items: list[Any]) -> int:
        box["x"].append(2)
        items.append(1)
        return len(box["x"])

    arguments: dict[str, Any] = {"box": {"x": [1]}, "items": []}
    assert bench.run(spoil, **arguments).result.data == 2
    assert arguments == {"box": {"x": [1]}, "items": []}


def test_every_kind_of_parameter_arrives(bench: Any) -> None:
    def mixed(a: int, /, b: int = 2, *rest: int, c: int = 3, **more: int) -> Any:
        return [a, b, rest, c, more]

    run = bench.run
    assert run(mixed, a=1).result.data == [1, 2, [], 3, {}]
    data = run(mixed, a="1", rest=["7", 8], c=4, x="5").result.data
    assert data == [1, 2, [7, 8], 4, {"x": 5}]
    assert "x: input should be a valid integer" in run(mixed, a=1, x="no").result.error.message


def test_default_of_a_pydantic_field_arrives_as_its_value(bench: Any) -> None:
    def weather(city: str = Field("Rome", description="Where.")) -> str:
        return city

    assert bench.run(weather).result.data == "Rome"


def test_context_is_put_in_and_cannot_be_given(bench: Any) -> None:
    def who(q: str, tool_context) -> str:  # pyright: ignore
        return tool_context.run_id + q  # pyright: ignore

    assert bench.run(who, q="!").result.data == "0123456789abcdef!"
    refused = bench.run(who, q="!", tool_context="mine").result
    assert "tool_context: there is no such parameter" in refused.error.message
