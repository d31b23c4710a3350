"""Tool calls out of the deltas of servers that do not keep to the grammar."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nbagent.contracts.chat import ChatChunk, ToolCall
from nbagent.contracts.errors import ModelError
from nbagent.providers.names import WireNames
from nbagent.providers.openai.calls import CallAssembler

NAMES = WireNames(["fs.read", "b", "c"])
Delta = dict[str, Any]


def delta(
    arguments: Any = None, *, index: Any = None, id: Any = None, name: Any = None, **more: Any
) -> Delta:
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": id, "function": function, **more}


def put_together(*deltas: Delta, whole: bool = False) -> tuple[ToolCall, ...]:
    calls, out = CallAssembler(NAMES), list[ChatChunk]()
    for item in deltas:
        calls.take([item], out, whole=whole)
    made = calls.calls()
    pieces = dict[int, str]()
    for chunk in out:
        assert chunk.tool_call_delta
        place = chunk.tool_call_delta.index
        pieces[place] = pieces.get(place, "") + chunk.tool_call_delta.arguments
    assert [pieces[n] for n in range(len(made))] == [call.arguments_raw for call in made]
    assert made == calls.calls(), "asked twice, the ids are the same"
    return made


def seen(*deltas: Delta) -> list[tuple[str, str]]:
    return [(call.name, call.arguments_raw) for call in put_together(*deltas)]


TWO = [("b", '{"n":1}'), ("c", '{"n":2}')]
CASES: dict[str, tuple[list[Delta], list[tuple[str, str]]]] = {
    "the grammar": (
        [
            delta("", index=0, id="x", name="b", type="function"),
            delta('{"n"', index=0),
            delta(":1}", index=0),
            delta('{"n":2}', index=1, id="y", name="c"),
        ],
        TWO,
    ),
    "deltas of two calls interleaved": (
        [
            delta('{"n"', index=0, id="x", name="b"),
            delta('{"n":', index=1, id="y", name="c"),
            delta(":1}", index=0),
            delta("2}", index=1),
        ],
        TWO,
    ),
    "index counts from 1 with a gap": (
        [delta('{"n":1}', index=1, id="x", name="b"), delta('{"n":2}', index=7, id="y", name="c")],
        TWO,
    ),
    "index as a text": (
        [
            delta('{"n"', index="0", id="x", name="b"),
            delta('{"n":2}', index="1", id="y", name="c"),
            delta(":1}", index="0"),
        ],
        TWO,
    ),
    "always index 0, new ids": (
        [delta('{"n":1}', index=0, id="x", name="b"), delta('{"n":2}', index=0, id="y", name="c")],
        TWO,
    ),
    "always index 0, no ids": (
        [delta('{"n":1}', index=0, id="", name="b"), delta('{"n":2}', index=0, id="", name="c")],
        TWO,
    ),
    "always index 0, no ids, the same tool": (
        [delta('{"n":1}', index=0, name="b"), delta('{"n":2}', index=0, name="b")],
        [("b", '{"n":1}'), ("b", '{"n":2}')],
    ),
    "always index 0, no ids, no arguments": (
        [delta("{}", index=0, name="b"), delta("{}", index=0, name="b")],
        [("b", "{}"), ("b", "{}")],
    ),
    "no index, no ids": ([delta('{"n":1}', name="b"), delta('{"n":2}', name="c")], TWO),
    "no index, fragments": (
        [delta('{"n"', id="x", name="b"), delta(":1}"), delta('{"n":2}', id="y", name="c")],
        TWO,
    ),
    "no index, the id in each delta": (
        [delta('{"n"', id="x", name="b"), delta(":1}", id="x"), delta('{"n":2}', id="y", name="c")],
        TWO,
    ),
    "the id comes late": (
        [delta('{"n"', name="b"), delta(":1}", id="x"), delta('{"n":2}', id="y", name="c")],
        TWO,
    ),
    "id and name in each delta": (
        [delta('{"n"', index=0, id="x", name="b"), delta(":1}", index=0, id="x", name="b")],
        TWO[:1],
    ),
    "the name in each delta": (
        [delta('{"n"', index=0, id="x", name="b"), delta(":1}", index=0, name="b")],
        TWO[:1],
    ),
    "empty and null in continuations": (
        [
            delta('{"n"', index=0, id="x", name="b"),
            delta(":1", index=0, id="null", name=""),
            delta("}", index=0, id="", name="null"),
            delta(None, index=0),
        ],
        TWO[:1],
    ),
    "two calls under one id": (
        [delta('{"n":1}', index=0, id="x", name="b"), delta('{"n":2}', index=0, id="x", name="b")],
        [("b", '{"n":1}'), ("b", '{"n":2}')],
    ),
    "the whole call once more": (
        [
            delta('{"n"', index=0, id="x", name="b"),
            delta(":1}", index=0),
            delta('{"n":1}', index=0, id="x", name="b"),
        ],
        TWO[:1],
    ),
    "arguments as an object": (
        [delta({"n": 1}, index=0, id="x", name="b"), delta({"n": 2}, index=1, id="y", name="c")],
        TWO,
    ),
    "no arguments at all": ([{"index": 0, "id": "x", "function": {"name": "b"}}], [("b", "")]),
    "no function at all": ([{"index": 0, "id": "x"}], [("", "")]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_calls_are_told_apart(case: tuple[list[Delta], list[tuple[str, str]]]) -> None:
    deltas, expected = case
    assert seen(*deltas) == expected


@pytest.mark.parametrize("absent", [None, "", "null", 3])
def test_an_id_that_is_none_is_made_and_stays(absent: Any) -> None:
    (call,) = put_together(delta("{}", index=0, id=absent, name="b"))
    assert call.id.startswith("call_")
    assert len(call.id) == len("call_") + 24


def test_no_two_calls_have_one_id() -> None:
    made = put_together(
        *[delta("{}", index=n, id=id, name="b") for n, id in enumerate(["x", "x", "x_2", "x"])]
    )
    assert [call.id for call in made] == ["x", "x_2", "x_2_2", "x_3"]


@pytest.mark.parametrize(
    ("written", "parsed"),
    [
        ("", {}),
        ("  ", {}),
        ("null", {}),
        ("{}", {}),
        ("{oh", None),
        ("[1]", None),
        ('"text"', None),
        ('{"a": 1}{"b": 2}', None),
        ('{"a": "\\ud800"}', {"a": "\ud800"}),
    ],
)
def test_arguments_are_read_at_the_end_and_kept_as_written(written: str, parsed: Any) -> None:
    pieces = [delta(char, index=0) for char in written]
    (call,) = put_together(delta("", index=0, id="x", name="b"), *pieces)
    assert (call.arguments_raw, call.arguments) == (written, parsed)


def test_names_come_back_as_the_tools_own() -> None:
    written = ["fs__read", "functions.fs__read", "fs__read<|channel|>json", "functions.fs__read:0"]
    made = put_together(*[delta("{}", index=n, name=name) for n, name in enumerate(written)])
    assert {call.name for call in made} == {"fs.read"}


def test_vendor_fields_of_a_call_are_kept_from_every_delta() -> None:
    signed = {"google": {"thought_signature": "s"}}
    (call,) = put_together(
        delta('{"a":', index=0, id="x", name="b", extra_content=signed),
        delta("1}", index=0, thought="t"),
    )
    assert call.extra == {"extra_content": signed, "thought": "t"}


@pytest.mark.parametrize("calls", [3, {"a": 1}, [3], ["x"], [None]])
def test_calls_that_are_none_are_a_bad_response(calls: Any) -> None:
    with pytest.raises(ModelError) as caught:
        CallAssembler(NAMES).take(calls, [], whole=False)
    assert caught.value.code == "LLM_BAD_RESPONSE"


FAILED: dict[str, tuple[str, list[tuple[str, Any]]]] = {
    "json": ('{"name": "b", "arguments": {"n": 1}}', [("b", {"n": 1})]),
    "parameters": ('{"name": "b", "parameters": {"n": 1}}', [("b", {"n": 1})]),
    "arguments as a text": ('{"name": "b", "arguments": "{\\"n\\": 1}"}', [("b", {"n": 1})]),
    "a list": ('[{"name": "b", "arguments": {}}, {"name": "c"}]', [("b", {}), ("c", {})]),
    "the wire's form": ('{"function": {"name": "b", "arguments": "{}"}}', [("b", {})]),
    "one behind the other": (
        '{"name": "b", "arguments": {}}\n{"name": "c", "arguments": {}}',
        [("b", {}), ("c", {})],
    ),
    "hermes": ('<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call>', [("b", {})]),
    "llama": ('<function=b>{"n": {"m": 1}}</function>', [("b", {"n": {"m": 1}})]),
    "llama, broken": ('<function=fs__read{"n": 1}</function>', [("fs.read", {"n": 1})]),
    "fenced": ('```json\n{"name": "b", "arguments": {}}\n```', [("b", {})]),
    "words": ("I would like to look at the weather.", []),
    "half": ('{"name": "b", "argu', []),
    "nothing": ("", []),
    "no name": ('{"arguments": {}} {"name": 3}', []),
}


@pytest.mark.parametrize("case", FAILED.values(), ids=FAILED)
def test_a_call_that_the_server_could_not_read_is_read_here(
    case: tuple[str, list[tuple[str, Any]]],
) -> None:
    text, expected = case
    calls = CallAssembler(NAMES)
    assert calls.take_failed(text, []) == bool(expected)
    assert [(call.name, call.arguments) for call in calls.calls()] == expected


def test_a_call_that_was_cut_in_the_unreadable_text_has_no_arguments() -> None:
    calls = CallAssembler(NAMES)
    assert calls.take_failed('<function=b>{"n": "}</function>', [])
    (call,) = calls.calls()
    assert call.arguments is None
    assert json.dumps(call.arguments_raw)
