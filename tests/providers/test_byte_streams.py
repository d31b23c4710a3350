"""Lines, events and chunked bodies from bytes in any pieces, in linear time."""

from __future__ import annotations

import json
import time

import pytest
from nbagent.providers.http.chunked import ChunkDecoder
from nbagent.providers.sse import EventSplitter, LineSplitter

from nbagent.contracts.errors import ModelError


def events(body: bytes, step: int) -> list[tuple[bytes, bytes]]:
    splitter = EventSplitter()
    found = [e for at in range(0, len(body), step) for e in splitter.feed(body[at : at + step])]
    return found + splitter.flush()


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_events_do_not_depend_on_the_pieces(step: int) -> None:
    body = (
        b"\xef\xbb\xbf: comment\n\ndata:a\n\nevent: error\r\ndata: b\r\ndata:  c\r\n\r\nid: 1\n\n"
        b"data: {x\xe2\x80\xa8y}\n\ndata: last"
    )
    assert events(body, step) == [
        (b"", b"a"),
        (b"error", b"b\n c"),
        (b"", b"{x\xe2\x80\xa8y}"),
        (b"", b"last"),
    ]


def test_an_event_split_after_a_whole_one_is_not_mixed_up() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: {1}\n\n") == [(b"", b"{1}")]
    assert splitter.feed(b"data: {2}\n") == []
    assert splitter.feed(b"data: {3}\n\n") == [(b"", b"{2}\n{3}")]
    assert splitter.feed(b"data: {4}\n\n") == [(b"", b"{4}")]


def test_a_bare_json_line_is_an_event() -> None:
    assert events(b'{"error": 1}\n', 5) == [(b"", b'{"error": 1}')]


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_an_object_over_many_lines_is_one_event(step: int, newline: bytes) -> None:
    error = b'[{\n  "error": {\n    "list": [\n    ]\n  }\n}\n]'.replace(b"\n", newline)
    body = newline.join([b"data: a", b"", error, b"", b"data: b", b"", b""])
    found = [(name, data.replace(b"\r", b"")) for name, data in events(body, step)]
    assert found[0] == (b"", b"a")
    assert [json.loads(data) for _, data in found[1:2]] == [[{"error": {"list": []}}]]
    assert found[2:] == [(b"", b"b")]


def test_an_event_without_an_end_is_refused() -> None:
    for line in (b"data: 0123456789\n", b"{0123456789\n"):
        splitter = EventSplitter(max_line_bytes=100)
        with pytest.raises(ModelError, match="100 bytes"):
            for _ in range(11):
                splitter.feed(line)


def test_ten_megabytes_byte_by_byte_take_linear_time() -> None:
    def seconds(size: int) -> float:
        splitter, start = LineSplitter(), time.process_time()
        for _ in range(size):
            splitter.feed(b"x")
        return time.process_time() - start

    small = min(seconds(50_000) for _ in range(3))
    assert seconds(500_000) < 60 * small


def test_a_line_over_the_cap_is_refused() -> None:
    splitter = LineSplitter(max_line_bytes=100)
    with pytest.raises(ModelError, match="100 bytes"):
        for _ in range(11):
            splitter.feed(b"0123456789")


@pytest.mark.parametrize("step", [1, 2, 5, 1000])
def test_a_chunked_body_is_decoded(step: int) -> None:
    body = b"5;ext=1\r\nhello\r\n1\r\n \r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
    decoder = ChunkDecoder()
    out = b"".join(decoder.feed(body[at : at + step]) for at in range(0, len(body), step))
    assert out == b"hello 0123456789"
    assert decoder.done
    assert not decoder.surplus


@pytest.mark.parametrize("body", [b"xyz\r\n", b"-1\r\n", b"1\r\nab\r\n", b"0x1\r\na", b"1" * 9000])
def test_broken_chunks_are_refused(body: bytes) -> None:
    decoder = ChunkDecoder()
    decoder.feed(body)
    assert decoder.broken
    assert not decoder.done


def test_bytes_after_the_last_chunk_are_noticed() -> None:
    decoder = ChunkDecoder()
    decoder.feed(b"0\r\n\r\nHTTP/1.1 200 OK")
    assert decoder.surplus
