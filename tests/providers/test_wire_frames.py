"""Frames from bytes in any pieces, in linear time, and JSON as servers write it."""

from __future__ import annotations

import json
import time

import pytest

from nbagent.contracts.errors import ModelError
from nbagent.providers.frames import Ndjson, Splitter, Sse, clean, load_wire


def frames(splitter: Splitter, body: bytes, step: int) -> list[tuple[bytes, bytes]]:
    found = [f for at in range(0, len(body), step) for f in splitter.feed(body[at : at + step])]
    return found + splitter.flush()


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_events_do_not_depend_on_the_pieces(step: int) -> None:
    body = (
        b": comment\n\ndata:a\n\nevent: error\r\ndata: b\r\ndata:  c\r\n\r\nid: 1\n\n"
        b"data: {x\xe2\x80\xa8y}\n\ndata: last"
    )
    assert frames(Sse(), body, step) == [
        (b"", b"a"),
        (b"error", b"b\n c"),
        (b"", b"{x\xe2\x80\xa8y}"),
        (b"", b"last"),
    ]


def test_an_event_split_after_a_whole_one_is_not_mixed_up() -> None:
    splitter = Sse()
    assert splitter.feed(b"data: {1}\n\n") == [(b"", b"{1}")]
    assert splitter.feed(b"data: {2}\n") == []
    assert splitter.feed(b"data: {3}\n\n") == [(b"", b"{2}\n{3}")]
    assert splitter.feed(b"data: {4}\n\n") == [(b"", b"{4}")]


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_an_object_without_a_field_is_an_event(step: int, newline: bytes) -> None:
    error = b'[{\n  "error": {\n    "list": [\n    ]\n  }\n}\n]'.replace(b"\n", newline)
    body = newline.join([b"data: a", b"", error, b"", b'{"one": "line"}', b"data: b", b"", b""])
    found = [data.replace(b"\r", b"") for _, data in frames(Sse(), body, step)]
    assert [found[0], found[2:]] == [b"a", [b'{"one": "line"}', b"b"]]
    assert json.loads(found[1]) == [{"error": {"list": []}}]


@pytest.mark.parametrize("step", [1, 2, 5, 1000])
def test_each_line_with_something_in_it_is_a_frame(step: int) -> None:
    body = b'{"a":1}\n\n \r\n{"b":2}\r\n{"c":"\xe2\x80\xa8"}'
    assert frames(Ndjson(), body, step) == [
        (b"", b'{"a":1}'),
        (b"", b'{"b":2}'),
        (b"", b'{"c":"\xe2\x80\xa8"}'),
    ]


def test_ten_megabytes_byte_by_byte_take_linear_time() -> None:
    def seconds(size: int) -> float:
        splitter, start = Ndjson(), time.process_time()
        for _ in range(size):
            splitter.feed(b"x")
        return time.process_time() - start

    small = min(seconds(50_000) for _ in range(3))
    assert seconds(500_000) < 60 * small


def test_halves_of_a_character_stay_until_they_are_joined() -> None:
    first, second = load_wire(b'"a\\ud83d"'), load_wire(b'"\\ude00b"')
    assert clean(first + second) == "a\U0001f600b"
    assert clean({first: [second, "\u00e4", 1.5, None]}) == {
        "a\ufffd": ["\ufffdb", "\u00e4", 1.5, None]
    }


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ModelError, match="nested"):
        clean(value)
