"""Frames from bytes in any pieces, in linear time, and JSON as servers write it."""

from __future__ import annotations

import json

import pytest

from nbagent.contracts.errors import ModelError
from nbagent.providers.frames import Splitter, Sse, clean


def frames(splitter: Splitter, body: bytes, step: int) -> list[tuple[bytes, bytes]]:
    found = [f for at in range(0, len(body), step) for f in splitter.feed(body[at : at + step])]
    return found + splitter.flush()


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


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ModelError, match="nested"):
        clean(value)
