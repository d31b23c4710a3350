"""The live view without a page: when its batches leave, and what it does with messages."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from stories import asked, drawn

from nbagent.contracts.approval import PersonAnswer, Question
from nbagent.contracts.events import ToolCallStarted
from nbagent.contracts.ports import ShowPieces
from nbagent.notebook.live_updates import Shown
from nbagent.notebook.messages import Message, read_message
from nbagent.notebook.page_module import script
from nbagent.notebook.run_widget import LiveRun
from nbagent.view.live_changes import Op
from nbagent.view.node import ATTRIBUTES, TAGS, VALUES, Node, h, text_of
from nbagent.view.run_picture import picture

STORY = drawn()
RUN = STORY.run.id


class Controls:
    """Controls of a run that record each use."""

    def __init__(self) -> None:
        self.stops: list[bool] = []
        self.answers: list[tuple[str, PersonAnswer]] = []
        self.previews: list[Mapping[str, Any]] = []
        self.already = ""

    def stop(self, *, after_turn: bool = False) -> None:
        self.stops.append(after_turn)

    def answer(
        self, tool_call_id: str, answer: PersonAnswer, *, question: Question | None = None
    ) -> bool:
        self.answers.append((tool_call_id, answer))
        return not self.already

    def answered(self, tool_call_id: str) -> str:
        return self.already

    def preview(self, tool_call_id: str, arguments: Mapping[str, Any], show: ShowPieces) -> bool:
        self.previews.append(arguments)
        show("create b.md", ())
        return True


class Stage:
    """A view, what it sent and what it did."""

    def __init__(self) -> None:
        self.controls, self.sent, self.ended = Controls(), list[dict[str, Any]](), list[str]()
        begun = STORY.run.model_copy(update={"turns": (), "phase": "Running"})
        self.view = LiveRun(
            begun, self.controls, send=self.sent.append, ended=lambda run: self.ended.append(run.id)
        )

    @property
    def ops(self) -> list[Op]:
        return [op for message in self.sent for op in message["ops"]]

    async def hear(self, **message: Any) -> None:
        """A message comes in another thread, and what follows is sent."""
        await asyncio.to_thread(self.say, **message)
        await asyncio.sleep(0.12)

    def say(self, **content: Any) -> None:
        """A message comes through the border of messages."""
        message = read_message({"run": RUN, **content})
        if message is None or message.run != self.view.key:
            return
        if message.kind == "ready":
            self.view.on_pages(True)
            self.view.updates.page_ready(message.page)
        else:
            self.view.on_message(message)


class Counter(Shown):
    """Shows a number and a text that stays; counts how often it is drawn."""

    def __init__(self, *, interval_s: float) -> None:
        super().__init__("counter", interval_s=interval_s)
        self.number = self.drawn = 0

    def parts(self) -> dict[str, Node]:
        self.drawn += 1
        return {"head": h("b", "", f"{self.number}"), "end": h("i", "", "end")}

    def whole(self) -> Node:
        return h("div", "", *self.parts().values())

    def on_message(self, message: Message) -> None:
        pass


def test_first_ops_leave_at_once_and_later_ones_together() -> None:
    shown, sent = Counter(interval_s=0.05), list[tuple[float, list[Op]]]()

    async def go() -> None:
        shown.updates.send = lambda message: sent.append((time.monotonic(), message["ops"]))
        shown.updates.begin()
        for shown.number in range(40):
            shown.updates.changed()
            assert len(sent) >= 1
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.12)

    asyncio.run(go())
    assert [op[1] for op in sent[0][1]] == ["head", "end"]
    assert all([op[1] for op in ops] == ["head"] for _, ops in sent[1:])
    assert text_of(sent[-1][1][0][2]) == "39"
    assert shown.drawn <= len(sent) + 1 < 20
    assert min(b[0] - a[0] for a, b in pairwise(sent)) > 0.04


@pytest.mark.parametrize("when", ["in mid-run", "after the end"])
def test_a_page_that_is_loaded_anew_gets_the_present_picture_and_only_it(when: str) -> None:
    async def go() -> None:
        stage = Stage()
        for event in STORY.events[:-3]:
            stage.view.handle(event)
        if when == "after the end":
            for event in STORY.events[-3:]:
                stage.view.handle(event)
        await stage.hear(kind="ready", page=7)
        assert stage.view.can_answer
        assert [message["page"] for message in stage.sent if "page" in message] == [7]
        ((kind, node),) = stage.sent[-1]["ops"]
        assert kind == "done"
        assert text_of(node).count("population") == text_of(stage.view.whole()).count("population")
        if when == "after the end":
            assert stage.view.whole() == picture(STORY.run)
            assert stage.ended == [RUN]

    asyncio.run(go())


def test_a_sink_that_breaks_still_says_when_its_run_is_over() -> None:
    async def go() -> None:
        stage = Stage()

        def fail(_message: object) -> None:
            raise OSError("the page is gone")

        stage.view.updates.send = fail
        for event in STORY.events[:-1]:
            stage.view.handle(event)
        with pytest.raises(OSError, match="the page is gone"):
            stage.view.handle(STORY.events[-1])
        stage.view.close()
        assert stage.ended == [RUN]

    asyncio.run(go())


ARGS = {"path": "a.md", "n": 3}
ONCE = PersonAnswer(choice="once")


@pytest.mark.parametrize(
    ("message", "answers"),
    [
        ({"kind": "answer", "choice": "once"}, [("c1", ONCE)]),
        ({"kind": "answer", "choice": "once", "fields": {"n": "4"}},
         [("c1", PersonAnswer(choice="once", arguments={"path": "a.md", "n": 4}))]),
        ({"kind": "answer", "choice": "deny", "reason": "no"},
         [("c1", PersonAnswer(choice="deny", reason="no"))]),
        ({"kind": "answer", "choice": "once", "fields": {"n": "four"}}, "n: not valid JSON"),
        ({"kind": "preview", "fields": {"n": "{"}}, "n: not valid JSON"),
        ({"kind": "answer", "choice": "once", "question": "C01/c1/9"}, []),
        ({"kind": "answer", "choice": "once", "question": 5}, []),
        ({"kind": "answer", "choice": "once", "run": "another"}, []),
        ({"kind": "answer", "choice": ["once"]}, []),
        ({"kind": "answer_all", "questions": ["C01/c1/1"]}, [("c1", ONCE)]),
        ({"kind": "answer_all", "questions": ["C01/c2/2"]}, []),
        ({"kind": "answer_all"}, []),
        ({"kind": ["answer"]}, []),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_only_a_whole_answer_to_a_question_that_is_open_counts(
    message: dict[str, Any], answers: Any
) -> None:
    async def go() -> None:
        stage = Stage()
        for event in [*STORY.events[:2], asked("c1", "fs.write", ARGS)]:
            stage.view.handle(event)
        await stage.hear(**{"run": RUN, "question": "C01/c1/1", **message})
        if isinstance(answers, str):
            assert stage.ops[-1][1] == "C01/c1/1/said"
            assert answers in text_of(stage.ops[-1][2])
            assert stage.controls.answers == []
        else:
            assert stage.controls.answers == answers

    asyncio.run(go())


def test_an_answer_to_a_question_that_was_answered_elsewhere_is_told_so() -> None:
    async def go() -> None:
        stage = Stage()
        stage.controls.already = "this question was already answered: denied in the view"
        message = {"run": RUN, "kind": "answer", "question": "C01/c1/1", "choice": "once"}
        for event in [*STORY.events[:2], asked("c1", "fs.write", ARGS)]:
            stage.view.handle(event)
        await stage.hear(**message)
        assert stage.ops[-1][1] == "C01/c1/1/said"
        assert "already answered: denied in the view; your answer changed nothing" in text_of(
            stage.ops[-1][2]
        )
        # The call began: its card is no question any more, and the answer still reaches the run.
        stage.view.handle(ToolCallStarted("C01", "c1", "fs.write", ARGS))
        await stage.hear(**message)
        assert stage.controls.answers == [("c1", ONCE)] * 2

    asyncio.run(go())


def test_a_preview_and_a_stop_are_passed_on_and_shown() -> None:
    async def go() -> None:
        stage = Stage()
        for event in [*STORY.events[:2], asked("c1", "fs.write", ARGS)]:
            stage.view.handle(event)
        await stage.hear(kind="preview", question="C01/c1/1", fields={"path": "b.md"})
        assert stage.controls.previews == [{"path": "b.md", "n": 3}]
        shown = {op[1]: op[2] for op in stage.ops}
        assert text_of(shown["C01/c1/1/why"]) == "create b.md"
        assert "C01/c1/1/pieces" in shown
        await stage.hear(kind="pause")
        await stage.hear(kind="stop")
        assert stage.controls.stops == [True, False]
        heads = [text_of(op[2]) for op in stage.ops if op[1] == "head"]
        assert "Pausing after this turn…" in heads[-2]
        assert "Stopping…" in heads[-1]

    asyncio.run(go())


@pytest.mark.parametrize("kind", ["stop", "answer"])
def test_nothing_that_was_drawn_before_the_end_is_sent_after_it(kind: str) -> None:
    async def go() -> None:
        stage = Stage()
        for event in [*STORY.events[:2], asked("c1", "fs.write", ARGS)]:
            stage.view.handle(event)
        message = {"kind": kind, "question": "C01/c1/1", "choice": "once", "fields": {"n": "four"}}
        # The run ends before the loop takes what was drawn for the message.
        stage.say(**message)
        stage.view.handle(STORY.events[-1])
        await asyncio.sleep(0.12)
        assert [op[0] for op in stage.ops[-1:]] == ["done"]

    asyncio.run(go())


def test_the_page_gets_the_closed_lists_with_its_code() -> None:
    first, _, rest = script().partition("\n")
    lists = json.loads(first.removeprefix("const LISTS = ").removesuffix(";"))
    assert set(lists["tags"]) == TAGS
    assert set(lists["attributes"]) == ATTRIBUTES
    assert lists["values"] == {name: pattern.pattern for name, pattern in VALUES.items()}
    assert "new Set(LISTS.tags)" in rest
