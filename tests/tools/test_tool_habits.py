"""What models do to arguments: undone where the meaning is plain, else refused in useful words."""

# No `from __future__ import annotations`: the hints of the tools are local.

import datetime as dt
import random
from typing import Annotated, Any, Literal

import pytest
from host_door import HostDoor
from probes import Cat, Colour, Dog, Size, probe_of
from pydantic import BaseModel, Field, field_validator

from nbagent.contracts.errors import ToolError
from nbagent.contracts.secrets import register
from nbagent.tools.function_tool import as_tool


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


REFUSED: dict[str, tuple[Any, dict[str, Any] | None, str]] = {
    # id: the tool, the arguments of a model, what it reads
    "word for a number": (
        *(search, {**X, "limit": "many"}),
        "limit: input should be a valid integer, unable to parse string as an integer, got 'many'",
    ),
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


@pytest.mark.parametrize(("tool", "sent", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_refusal_says_what_to_send(tool: Any, sent: dict[str, Any] | None, words: str) -> None:
    with pytest.raises(ToolError) as caught:
        as_tool(tool).arguments.validate(sent)
    assert caught.value.code == "E_INVALID_ARGUMENTS"
    assert words in caught.value.message
    assert "pydantic" not in caught.value.message
    assert len(caught.value.message) < 800


def test_what_was_read_otherwise_is_noted(bench: HostDoor) -> None:
    register("sk-in-an-argument")
    error = bench.run(search, query="x", kind="sk-in-an-argument").result.error
    assert "sk-in-an-argument" not in str(error)
    outcome = bench.run(search, query="x", limit=None, kind=" B")
    assert outcome.result.ok
    assert outcome.notes == ("limit: None left out, the default counts", "kind: ' B' read as 'b'")


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
