"""Every wire's client: pieces do not matter, a cut is no answer, and more.

A wire brings its tables in a module of its own (`chat_cases.WIRE`) and one entry of WIRES.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
from wires import anthropic_cases, chat_cases, google_cases, ollama_cases, responses_cases
from wires.harness import (
    JSON,
    KEY,
    AnswerCase,
    ModelsCase,
    Outcome,
    RequestCase,
    WireSetup,
    World,
    ask,
    asked_next,
    check,
    matches,
    plain_url,
)
from wires.other_package.otherwire import PROVIDER
from wires.sdk_types import OFFICIAL

from nbagent.contracts.errors import CODES, ModelError
from nbagent.contracts.messages import ImagePart, Message, TextPart, is_storable_json
from nbagent.contracts.model import ChatResponse, ToolSpec

WIRES: tuple[WireSetup, ...] = (
    chat_cases.WIRE,
    responses_cases.WIRE,
    google_cases.WIRE,
    anthropic_cases.WIRE,
    ollama_cases.WIRE,
)
ODD: list[Any] = [None, True, -1, 1e308, 10**30, "x", "", [], [None], ["x"], [{}], {}, {"text": 3}]
"""Values that replace another one; `noise` adds NaN and a lone surrogate."""
_PROOF = pytest.mark.proof


def _all_of_them(case: Any) -> bool:
    return True


def cases(kind: str, only: Callable[[Any], bool] = _all_of_them, *, once: bool = False) -> Any:
    """Rows of all wires; with `once` all but the first one of each wire are proofs."""
    rows: list[Any] = []
    for wire in WIRES:
        chosen: list[Any] = [case for case in getattr(wire, kind) if only(case)]
        for n, case in enumerate(chosen):
            marks = _PROOF if once and n else ()
            rows.append(pytest.param(wire, case, id=f"{wire.name}: {case.id}", marks=marks))
    return pytest.mark.parametrize(("wire", "case"), rows)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_every_quirk_of_the_wire_has_a_case(wire: WireSetup) -> None:
    names = " ".join(case.id for case in (*wire.answers, *wire.all_requests, *wire.models))
    assert set(wire.quirks) <= {int(number) for number in re.findall(r"#(\d+)\b", names)}


@cases("answers")
def test_an_answer_is_what_the_server_said_whole_and_in_any_pieces(
    world: World, wire: WireSetup, case: AnswerCase
) -> None:
    odd = random.Random(case.id).randrange(1, 30)
    forms = [(False, 0)] if case.body else []
    forms += [(True, 0), (True, odd)] if case.stream and not case.whole_pieces else [(True, 0)]
    results: list[Any] = []
    for stream, pieces in forms:
        outcome = world.answer(wire, case, stream=stream, pieces=pieces)
        check(case, outcome)
        results.append(recorded(case, outcome))
        assert len(world.player.asked) == case.asked
        for asked in world.player.asked:
            assert sum(KEY in text for text in asked.headers.values()) == 1
            assert KEY not in f"{asked.line} {asked.body}"
            assert asked.headers["accept-encoding"] == "identity", "what is packed comes late"
    for result in results[1:]:
        assert result == results[0], f"in pieces of {odd}"


# A body without an answer, an error object or a status: the server's words, or none.
BARE_WORDS: dict[str, tuple[Any, str]] = {
    "message": ({"message": "no such model"}, "no such model"),
    "detail": ({"detail": "no such model."}, "no such model"),
    "a list of details": ({"detail": [{"loc": ["body", "model"], "msg": "no"}]}, "model: no"),
    "error_message": ({"error_message": "no such model"}, "no such model"),
    "a status beside it": ({"status": "failed", "message": "try later"}, "try later"),
    "lines": ({"message": "no such\n model"}, "no such model"),
    "no text": ({"message": 3}, ""),
    "an empty text": ({"message": " "}, ""),
    "an object": ({"message": {"role": "assistant"}}, ""),
    "nothing": ({}, ""),
}


@pytest.mark.parametrize(("body", "words"), BARE_WORDS.values(), ids=BARE_WORDS)
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_words_of_a_server_in_place_of_an_answer_are_said(
    world: World, wire: WireSetup, body: Any, words: str
) -> None:
    sent = json.dumps(body).encode()
    case = AnswerCase("words", body=sent)
    prefix = b"data: " if any(b"data: " in other.stream for other in wire.answers) else b""
    plays = [case.play(stream=False), case.play(stream=True, body=prefix + sent + b"\n\n")]
    outcomes = [
        *world.answers(wire, case, plays[:1], stream=False),
        *world.answers(wire, case, plays, stream=True),
    ]
    for _, error in outcomes:
        assert isinstance(error, ModelError), repr(error)
        assert error.code == "LLM_BAD_RESPONSE"
        assert error.message.isprintable()
        assert ("the server says" in error.message) is bool(words)
        assert not words or f"no answer; the server says: {words}. Try again" in error.message


def recorded(case: AnswerCase, outcome: Outcome) -> Any:
    """What a record holds of an outcome: it is the same for each form of one answer."""
    result = outcome[1]
    if isinstance(result, ModelError):
        return result.code
    fields = result.model_dump(include={"message", "usage", "finish_reason"})
    if case.usage is None:  # Not looked at: the forms may have other counts.
        del fields["usage"]
    for call in fields["message"]["tool_calls"]:
        if case.ids is None:  # Ids that the server did not send are made anew.
            del call["id"]
        if call["arguments"] is not None:  # Servers write the same object with other spaces.
            del call["arguments_raw"]
    return fields


@cases("answers", lambda case: case.thorough, once=True)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_line_ends_do_not_matter_byte_by_byte(
    world: World, wire: WireSetup, case: AnswerCase, newline: bytes
) -> None:
    body = case.stream.replace(b"\n", newline)
    plays = [
        case.play(stream=True, body=b"\xef\xbb\xbf" + body, pieces=1),
        case.play(stream=True, body=body, pieces=3, framing="none"),
    ]
    for outcome in world.answers(wire, case, plays, stream=True):
        check(case, outcome)


@pytest.mark.parametrize(
    "every",
    [
        pytest.param(7, id="every seventh byte"),
        pytest.param(1, id="every byte", marks=pytest.mark.proof),
    ],
)
@cases("answers", lambda case: case.thorough, once=True)
def test_a_cut_at_any_byte_is_an_error_or_the_whole_answer(
    world: World, wire: WireSetup, case: AnswerCase, every: int
) -> None:
    found = wire.ended.search(case.stream)
    assert found, "the stream has no marker of its end"
    # Around the marker of the end each byte decides.
    near = range(found.start() - 8, len(case.stream))
    ends = sorted({*range(0, len(case.stream), every), *near})
    cuts = [case.play(stream=True, body=case.stream[:end]) for end in ends]
    outcomes = world.answers(wire, case, cuts, stream=True)
    whole = 0
    for end, (chunks, result) in zip(ends, outcomes, strict=True):
        if isinstance(result, ModelError):
            assert result.code in ("LLM_BAD_RESPONSE", "LLM_HTTP_ERROR")
            assert "is not JSON" not in result.message, f"cut at {end}"
            assert case.text.startswith("".join(chunk.content for chunk in chunks))
            continue
        assert end >= found.end(), f"cut at {end}: {case.stream[:end][-60:]!r}"
        # What comes behind the marker may be missing.
        check(replace(case, usage=None), (chunks, result))
        whole += 1
    assert whole, "behind its marker an answer is whole"
    ends = [*range(0, len(case.body.rstrip()), every), len(case.body.rstrip()) - 1]
    cuts = [case.play(stream=False, body=case.body[:end]) for end in ends]
    for _, result in world.answers(wire, case, cuts, stream=False):
        assert isinstance(result, ModelError)
        assert result.code == "LLM_BAD_RESPONSE"
        assert "is not JSON" not in result.message


@cases("answers", lambda case: case.thorough, once=True)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_any_value_in_any_place_is_an_answer_or_one_clear_error(
    world: World, wire: WireSetup, case: AnswerCase, stream: bool
) -> None:
    sample = case.stream if stream else case.body
    bodies = (*with_odd_values(sample, stream=stream), *noise(sample))
    plays = [case.play(stream=stream, body=body) for body in bodies]
    found = world.answers(wire, case, plays, stream=stream)
    assert len(found) > 100
    kinds = [usable(outcome) for outcome in found]
    assert kinds.count(True) > 50, "most values of an answer do not matter so much"
    assert kinds.count(False) > 10


@cases("answers", lambda case: case.back is not None)
def test_what_an_answer_needs_back_goes_back_with_the_next_request(
    world: World, wire: WireSetup, case: AnswerCase
) -> None:
    for stream in [True, *([False] if case.body else [])]:
        _, result = world.answer(wire, case, stream=stream)
        assert isinstance(result, ChatResponse)
        model = case.next_model or case.request.model
        asked = asked_next(case.request, result).model_copy(update={"model": model})
        server = case.server if case.next_server is None else case.next_server
        matches(case.back, world.wire_request(wire, asked, plain_url(wire, server))[1])


TEXT_WIRE = WireSetup(
    name="otherwire",
    provider=PROVIDER,
    ended=re.compile(rb'\{"over": \d+\}'),
    conversation="lines",
    takes_pictures=False,
    answers=[
        AnswerCase(
            "text",
            stream=b'data: {"say": "Hello."}\n\ndata: {"over": 2}\n\n',
            body=b'{"say": "Hello.", "over": 2}',
            text="Hello.",
            thorough=True,
        )
    ],
    requests=(),
)
"""A wire of another package: texts alone, no tools."""
PICTURE = Message(role="user", content=(TextPart(text="See."), ImagePart(data="UkVE")))


@pytest.mark.parametrize("wire", [*WIRES, TEXT_WIRE], ids=lambda wire: wire.name)
def test_a_picture_is_sent_or_refused_never_left_out(world: World, wire: WireSetup) -> None:
    if wire.takes_pictures:
        assert "UkVE" in json.dumps(world.wire_request(wire, ask(messages=(PICTURE,)))[1])
    else:
        with pytest.raises(ModelError, match="takes no images, so 'image/png' was not sent"):
            world.wire_request(wire, ask(messages=(PICTURE,)))


@pytest.mark.parametrize("wire", [*WIRES, TEXT_WIRE], ids=lambda wire: wire.name)
def test_each_request_extends_the_one_before_byte_for_byte(world: World, wire: WireSetup) -> None:
    case = next(case for case in wire.answers if case.thorough)
    case = replace(case, server=next(iter(wire.servers), ""))
    question = PICTURE if wire.takes_pictures else Message.of("user", "See.")
    settled = {"messages": (question,), "system_prompt": "S", "reasoning": "high"}
    request = case.request.model_copy(update=settled)
    bodies: list[JSON] = []
    for _ in range(3):
        _, answer = world.answer(wire, replace(case, request=request), stream=True)
        assert isinstance(answer, ChatResponse)
        request = asked_next(request, answer)
        url = plain_url(wire, case.server)
        bodies.append(world.wire_request(wire, request, url, stream=True)[1])
        assert wire.name not in OFFICIAL or OFFICIAL[wire.name](bodies[-1]) == ""
    talks = [json.dumps(body.pop(wire.conversation)) for body in bodies]
    assert len({json.dumps(body) for body in bodies}) == 1, "what is no conversation stays the same"
    assert all(later.startswith(earlier[:-1]) for earlier, later in pairwise(talks))


@cases("all_requests")
def test_a_request_is_what_the_server_takes_and_of_the_official_types(
    world: World, wire: WireSetup, case: RequestCase
) -> None:
    server, before = wire.servers.get(case.server, case.server), case.request.model_dump_json()
    url, body = world.wire_request(wire, case.request, server, stream=case.stream, **case.config)
    matches(case.expect, body)
    assert not case.only or body.keys() == case.expect.keys()
    assert case.url in ("", url)
    assert case.request.model_dump_json() == before, "the tools' own schemas stay as they are"
    # Not what only others of Anthropic's language take, and no fields of a person's.
    own = wire.name != "anthropic" or not (case.config or "elsewhere" in case.id)
    if own and wire.name in OFFICIAL:
        assert OFFICIAL[wire.name](body) == ""


ODD_NAMES = (
    *("fs.read", "fs__read", "1st", "-x", "grüße", "x" * 70, "x" * 71, "a.b", "a__b", "a", "a:1"),
)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize("names", [ODD_NAMES, ODD_NAMES[::-1]], ids=["in order", "reversed"])
def test_every_tool_has_a_legal_name_on_the_wire_and_is_called_by_its_own(
    world: World, wire: WireSetup, names: tuple[str, ...]
) -> None:
    request = ask(tools=[ToolSpec(name=name) for name in names])
    sent = re.findall(r'"name": "([^"]*)"', json.dumps(world.wire_request(wire, request)[1]))
    assert len(set(sent)) == len(names)
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", name) for name in sent)
    assert sent[names.index("fs__read")] == "fs__read", "a legal name keeps itself"
    case = next(case for case in wire.answers if case.thorough)
    said = [name.encode() for name in (*sent, *names)]
    bodies = [case.body.replace(b"fs__look", name) for name in said]
    plays = [case.play(stream=False, body=body) for body in bodies]
    case = replace(case, request=request)
    answers = world.answers(wire, case, plays, stream=False)
    for name, (_, answer) in zip(names * 2, answers, strict=True):
        assert isinstance(answer, ChatResponse)
        assert answer.message.tool_calls[0].name == name


@cases("models")
def test_models_are_listed_with_what_the_server_tells(
    world: World, wire: WireSetup, case: ModelsCase
) -> None:
    found = world.models(wire, case)
    if isinstance(found, ModelError):
        assert found.code == case.expect
    else:
        listed = [(model.id, model.context_length, list(model.capabilities)) for model in found]
        assert listed == [(name, size, list(can)) for name, size, can in case.expect]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize("leave", ["cancel", "close"])
def test_leaving_a_stream_closes_its_connection(world: World, wire: WireSetup, leave: str) -> None:
    case = next(case for case in wire.answers if case.thorough)
    half = case.play(stream=True, body=case.stream[: len(case.stream) // 2], ending="silent")

    async def go() -> None:
        world.player.play([half])
        open_before = len(world.player.open)
        async with world.client(wire) as client:
            chunks = client.chat_stream(case.request)
            await anext(chunks)
            if leave == "cancel":
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        _ = [chunk async for chunk in chunks]
            else:
                await chunks.aclose()
            async with asyncio.timeout(2):
                while len(world.player.open) > open_before:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    world.run(go())


def usable(outcome: Outcome) -> bool:
    """True for a response that can be stored; False for one clear error."""
    chunks, result = outcome
    if isinstance(result, ModelError):
        assert result.code in CODES - {"UNKNOWN"}, str(result)
        assert result.message.isprintable()
        return False
    result.model_dump_json()
    assert not chunks or "".join(chunk.content for chunk in chunks) == result.message.text
    assert all(is_storable_json(call.arguments) for call in result.message.tool_calls)
    return True


def with_odd_values(sample: bytes, *, stream: bool) -> Iterator[bytes]:
    """The bytes with each value of each JSON line, or of a whole body, replaced by each odd one."""
    lines = sample.split(b"\n") if stream else [sample]
    for at, line in enumerate(lines):
        start = line.find(b"{")
        for changed in variants(json.loads(line[start:])) if start >= 0 else ():
            one = line[:start] + json.dumps(changed).encode()
            yield b"\n".join([*lines[:at], one, *lines[at + 1 :]])


def noise(sample: bytes) -> Iterator[bytes]:
    """The bytes with some of them changed or lost."""
    chance = random.Random(7)
    yield sample.replace(b'"', b'"\\ud800', 9)
    yield sample.replace(b": 1", b": NaN")
    for _ in range(150):
        body = bytearray(sample)
        for _ in range(chance.randrange(1, 8)):
            at = chance.randrange(len(body))
            if chance.random() < 0.5:
                body[at] = chance.randrange(256)
            else:
                del body[at : at + chance.randrange(1, 40)]
        yield bytes(body)


def variants(value: Any) -> Iterator[Any]:
    """Copies in which one value inside is replaced by an odd one."""
    if isinstance(value, dict):
        fields = cast("JSON", value)
        for key, inner in fields.items():
            yield from ({**fields, key: other} for other in (*ODD, *variants(inner)))
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        for n, inner in enumerate(items):
            others = (*ODD, *variants(inner))
            yield from ([*items[:n], other, *items[n + 1 :]] for other in others)
