"""A server that corrects its answer: the live picture, the partial and the stored answer agree."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest
from engine.test_broken_parts import plan_of, run_plan

from nbagent.contracts.corrections import AnswerRestarted, CallCorrected, TextCorrected
from nbagent.contracts.deltas import (
    AnswerEnd,
    CallEnd,
    Delta,
    ImagePiece,
    ReasoningPiece,
    TextPiece,
    WholeAnswer,
)
from nbagent.contracts.errors import ModelError
from nbagent.contracts.events import (
    Event,
    ResponseReceived,
    RunFinished,
    RunStarted,
    TextDelta,
    ToolCallDelta,
    TurnCorrected,
    TurnFinished,
)
from nbagent.contracts.messages import ImagePart, Message, TextPart
from nbagent.contracts.model import CallDelta, ChatChunk, ChatRequest, ChatResponse
from nbagent.contracts.secrets import register_secret
from nbagent.view.live import LivePicture
from nbagent.view.node import text_of
from nbagent.view.run_picture import picture
from nbagent.view.terminal import PlainPrinter

KEY = "a-secret-of-corrections-1234567890"
LOOK = CallDelta(0, id="c", name="look", arguments='{"place": "a"}')


class Corrects:
    """A client that yields these deltas, then ends its answer or breaks off."""

    def __init__(self, deltas: Sequence[Delta], *, breaks: bool) -> None:
        self._deltas, self._breaks = deltas, breaks

    async def send(self, request: ChatRequest, *, stream: bool) -> AsyncGenerator[Delta]:
        if any(message.role == "tool" for message in request.messages):
            yield AnswerEnd()
            return
        for delta in self._deltas:
            yield delta
        if self._breaks:
            raise ModelError("cut; try again.", code="LLM_BAD_RESPONSE")
        yield AnswerEnd()


# id: deltas; text, reasoning and calls that they come to.
SEQUENCES: dict[str, tuple[list[Delta], str, str, list[tuple[str, str]]]] = {
    "none": ([ReasoningPiece("Hm."), TextPiece("Yes"), TextPiece(".")], "Yes.", "Hm.", []),
    "the reasoning was text": (
        [ReasoningPiece("<think> is"), TextCorrected(reasoning=""), TextPiece("<think> is a tag")],
        "<think> is a tag", "", []),
    "the text was reasoning": (
        [TextPiece("Hm"), TextCorrected("", "Hm"), ReasoningPiece("."), TextPiece("Yes.")],
        "Yes.", "Hm.", []),
    "everything is void": (
        [ReasoningPiece("Hm"), TextPiece("Half"), LOOK, AnswerRestarted(), TextPiece("Whole.")],
        "Whole.", "", []),
    "everything is void, and a call comes": (
        [TextPiece("Half"), CallDelta(0, "x", "void_tool", "{}"), AnswerRestarted(), LOOK],
        "", "", [("look", '{"place": "a"}')]),
    "the arguments are replaced": (
        [CallDelta(0, "c", "look", "{}"), CallCorrected(0, arguments='{"pl'),
         CallDelta(0, arguments='ace": "b"}')], "", "", [("look", '{"place": "b"}')]),
    "the name is completed": (
        [CallDelta(0, "c", "lo"), CallCorrected(0, name="look"),
         CallDelta(0, arguments='{"place": "b"}')], "", "", [("look", '{"place": "b"}')]),
    "a thousand times": (
        [TextPiece("Half"), *(TextCorrected(f"Draft {n}. ") for n in range(1000)),
         TextPiece("Done.")], "Draft 999. Done.", "", []),
}  # fmt: skip


class Watcher:
    """Follows a run as a live view does, until its first turn is recorded."""

    def __init__(self) -> None:
        self.live: LivePicture | None = None
        self.message = Message(role="assistant")
        """The answer as it was shown last."""
        self.drawn = ""
        self.events: list[Event] = []

    def see(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, RunStarted):
            self.live = LivePicture(event.run)
        assert self.live
        recorded = ResponseReceived | TurnFinished
        if isinstance(event, recorded) and not self.drawn:
            (turn,) = self.live.record().turns
            assert turn.response
            self.message, self.drawn = turn.response.message, text_of(self.live.picture())
        self.live.update(event)


@pytest.mark.parametrize("breaks", [False, True], ids=["ends", "breaks off"])
@pytest.mark.parametrize(
    ("deltas", "text", "reasoning", "calls"), SEQUENCES.values(), ids=SEQUENCES
)
def test_the_answer_shown_live_is_the_stored_one(
    deltas: list[Delta], text: str, reasoning: str, calls: list[tuple[str, str]], breaks: bool
) -> None:
    watcher = Watcher()
    record = run_plan(plan_of(Corrects(deltas, breaks=breaks)), watcher.see)
    assert record.turns[0].response
    stored = record.turns[0].response.message
    for message in (stored, watcher.message):
        assert (message.text, message.reasoning or "") == (text, reasoning)
    assert [(call.name, call.arguments_raw) for call in stored.tool_calls] == calls
    assert all(name in watcher.drawn and written in watcher.drawn for name, written in calls)
    assert watcher.live
    assert ("void_tool" in watcher.drawn, "Half" in watcher.drawn) == (False, False)
    assert text_of(watcher.live.picture()) == text_of(picture(record))


@pytest.mark.parametrize(
    "corrected",
    [
        [CallDelta(0, "c", "lo"), CallCorrected(0, name="look"), CallDelta(0, arguments="{}")],
        [CallDelta(0, "c", "look", "{}"), CallCorrected(0, arguments='{"place": "a"}')],
    ],
    ids=["name", "arguments"],
)
def test_a_correction_draws_only_its_own_call(corrected: list[CallDelta | CallCorrected]) -> None:
    def drawn(calls: int) -> int:
        """Count the characters of all changes of the picture."""
        deltas = [replace(delta, index=n) for n in range(calls) for delta in corrected]
        live, chars = Watcher(), 0

        def see(event: Event) -> None:
            nonlocal chars
            if isinstance(event, ToolCallDelta | TurnCorrected) and live.live:
                live.live.update(event)
                chars += len(repr(live.live.draw_changes()))
            elif not isinstance(event, TurnFinished | RunFinished):
                live.see(event)

        run_plan(plan_of(Corrects(deltas, breaks=True)), see)
        return chars

    assert drawn(400) < 5 * drawn(100)


def test_a_secret_in_corrected_text_is_hidden_also_in_pieces() -> None:
    register_secret(KEY)
    deltas: list[Delta] = [
        TextPiece(f"Half {KEY[:9]}"),
        TextCorrected(f"It is {KEY[:9]}", f"Hm {KEY}"),
        TextPiece(f"{KEY[9:]}."),
        CallDelta(0, "c", "look"),
        CallCorrected(0, arguments=f'{{"place": "{KEY[:9]}'),
        CallDelta(0, arguments=f'{KEY[9:]}"}}'),
    ]
    watcher = Watcher()
    record = run_plan(plan_of(Corrects(deltas, breaks=False)), watcher.see)
    assert watcher.message.text.startswith("It is ")
    for shown in (watcher.drawn, repr(watcher.events), repr(record)):
        assert KEY not in shown
    streamed = "".join(event.text for event in watcher.events if isinstance(event, TextDelta))
    assert KEY[9:] not in streamed


@pytest.mark.parametrize("breaks", [False, True], ids=["ends", "breaks off"])
def test_a_secret_around_an_image_is_hidden(breaks: bool) -> None:
    register_secret(KEY)
    image = ImagePart(data="AA==")
    deltas = [TextPiece(f"It is {KEY[:9]}"), ImagePiece(image), TextPiece(f"{KEY[9:]}.")]
    record = run_plan(plan_of(Corrects(deltas, breaks=breaks)))
    assert record.turns[0].response
    message = record.turns[0].response.message
    assert (message.text.startswith("It is "), KEY in message.text) == (True, False)
    assert message.images == (image,)


def test_a_terminal_says_that_the_answer_begins_again() -> None:
    written: list[str] = []
    printer = PlainPrinter(written.append)
    deltas = SEQUENCES["everything is void"][0]
    run_plan(plan_of(Corrects(deltas, breaks=False)), printer.handle)
    lines = "".join(written).splitlines()
    at = next(n for n, line in enumerate(lines) if "begins again" in line)
    assert "Half" in "".join(lines[:at])
    assert "Whole." in "".join(lines[at:])


def test_pictures_stand_where_they_came() -> None:
    first, second = ImagePart(data="AA=="), ImagePart(data="BB==")
    deltas = [TextPiece("One"), TextPiece(" cat"), ImagePiece(first), ImagePiece(second)]
    record = run_plan(plan_of(Corrects([*deltas, TextPiece("."), CallEnd(0, "")], breaks=True)))
    assert record.turns[0].response
    content = record.turns[0].response.message.content
    assert [getattr(part, "text", part) for part in content] == ["One cat", first, second, "."]


def test_a_picture_of_an_older_client_that_breaks_off_stays() -> None:
    image = ImagePart(data="AA==")

    class Older:
        async def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk]:
            yield ChatChunk(content="One", image=image)
            raise ModelError("cut; try again.", code="LLM_BAD_RESPONSE")

    record = run_plan(plan_of(Older()))
    assert record.turns[0].response
    assert record.turns[0].response.message.content == (TextPart(text="One"), image)


def test_a_whole_answer_replaces_its_pieces() -> None:
    message = Message.of("assistant", "As recorded.")
    deltas = [TextPiece("As "), WholeAnswer(ChatResponse(message=message, model="m"))]
    record = run_plan(plan_of(Corrects(deltas, breaks=True)))
    assert (record.stop_reason, record.text) == ("answered", "As recorded.")
