"""Labels of a person, and the view of a batch, without a page: what messages of it do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import comm
import pytest
from browser.payloads import PAYLOADS
from panel_stage import Wire, until

from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.errors import StoreError
from nbagent.contracts.records import RunRecord, ScoreRecord
from nbagent.notebook import batch_widget, outputs
from nbagent.notebook.batch_widget import LiveBatch
from nbagent.notebook.case_page import LiveCases
from nbagent.notebook.review_widget import LiveReview
from nbagent.session.frontend import CaseSource
from nbagent.view.batch import BatchProgress
from nbagent.view.node import text_of
from nbagent.view.printers import html
from nbagent.view.review import review_node


class Review:
    """Answers to label, and what was said of them."""

    title, scale = "How good is it?", 4

    def __init__(self, *answers: str) -> None:
        self.answers, self.position, self.total = answers, 1, len(answers)
        self.said: dict[int, int | None] = {}
        self.reasons: dict[int, str | None] = {}
        self.broken = False

    def shown(self) -> tuple[tuple[str, str], ...]:
        if self.position > self.total:
            return ()
        return (("n", str(self.position)), ("answer", self.answers[self.position - 1]))

    def label(self, value: int, reason: str | None = None) -> None:
        if self.broken:
            raise StoreError("the disk is full")
        self.reasons[self.position] = reason
        self.said[self.position] = value
        self.position += 1

    def skip(self) -> None:
        self.said[self.position] = None
        self.position += 1

    def back(self) -> None:
        self.position = max(1, self.position - 1)


class Shown:
    """Stands for IPython's `display`; keeps what is displayed."""

    def __init__(self, shown: list[dict[str, Any]]) -> None:
        self.shown = shown

    def __call__(self, data: dict[str, Any], **_: Any) -> None:
        self.shown.append(data)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """A front end with widgets, whose messages are kept."""
    made = Wire()
    monkeypatch.setattr(comm, "create_comm", made.open)
    monkeypatch.setattr(outputs, "display", Shown([]))
    return made


class Stage:
    """A review that is shown, and a page that says something."""

    def __init__(self, wire: Wire, *answers: str) -> None:
        self.wire, self.review = wire, Review(*answers)
        self.view = LiveReview(self.review)

    def say(self, kind: str, place: object, value: object = "", **more: object) -> None:
        told: dict[str, Any] = {"kind": kind, "run": "review", "place": place, "value": value}
        told |= more
        self.view.view.on_message(told)

    def until(self, fits: Callable[[], object]) -> None:
        until(fits)

    @property
    def words(self) -> str:
        """Text that the page shows."""
        told = self.wire.of()
        return text_of(told[-1]["ops"][0][1]) if told else ""


def test_labels_skips_and_steps_back_are_of_the_case_that_is_shown(wire: Wire) -> None:
    stage = Stage(wire, "red", "green", "blue")
    stage.say("label", "1", "4")
    stage.until(lambda: "green" in stage.words)
    stage.say("label", "1", "2")  # the second click of a double click
    stage.say("skip", "2")
    stage.until(lambda: "blue" in stage.words)
    stage.say("back", "3")
    stage.until(lambda: "green" in stage.words)
    stage.say("label", "2", "1")
    stage.until(lambda: "blue" in stage.words)
    stage.say("label", "3", "3")
    stage.until(lambda: "All answers are labelled" in stage.words)
    assert stage.review.said == {1: 4, 2: 1, 3: 3}


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "label", "place": "1", "value": "5"},
        {"kind": "label", "place": "1", "value": "0"},
        {"kind": "label", "place": "1", "value": "４"},
        {"kind": "label", "place": "1", "value": ["1"]},
        {"kind": "label", "place": "1"},
        {"kind": "label", "place": ["1"], "value": "1"},
        {"kind": "label", "value": "1"},
        {"kind": "stop", "place": "1"},
        {"kind": "label", "place": "1", "value": "1", "run": "batch"},
    ],
    ids=str,
)
def test_a_message_that_is_not_whole_labels_nothing(wire: Wire, message: dict[str, Any]) -> None:
    stage = Stage(wire, "red", "green")
    stage.view.view.on_message({"run": "review", **message})
    stage.view.view.on_message([message])
    stage.say("skip", "1")
    stage.until(lambda: "green" in stage.words)
    assert stage.review.said == {1: None}


def test_a_label_that_cannot_be_kept_is_said_and_asked_again(wire: Wire) -> None:
    stage = Stage(wire, "red")
    stage.review.broken = True
    stage.say("label", "1", "2")
    stage.until(lambda: "the disk is full" in stage.words)
    assert "red" in stage.words
    stage.review.broken = False
    stage.say("label", "1", "2")
    stage.until(lambda: "All answers are labelled" in stage.words)
    assert "disk" not in stage.words
    assert stage.review.said == {1: 2}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"reason": " too long "}, "too long"),
        ({"reason": ""}, None),
        ({"reason": "x" * 50_000}, "x" * 2_000),
    ],
    ids=["reason", "empty", "huge"],
)
def test_the_reason_goes_with_the_label(wire: Wire, fields: object, reason: str | None) -> None:
    stage = Stage(wire, "red")
    stage.say("label", "1", "2", fields=fields)
    stage.until(lambda: "All answers are labelled" in stage.words)
    assert stage.review.reasons == {1: reason}


def test_the_prompt_is_quoted_the_row_is_a_table_and_the_answer_is_markdown() -> None:
    review = Review("**bold**")
    texts = (("prompt", "Colour?"), ("n", "1"), ("answer", "**bold** <b>"))
    review.shown = lambda: texts
    drawn = html(review_node(review))
    assert ">Colour?</blockquote>" in drawn
    assert ">n</th>" in drawn
    assert "<strong>bold</strong> &lt;b&gt;" in drawn


def test_there_is_a_button_for_each_label_of_the_scale() -> None:
    drawn = html(review_node(Review("red")))
    assert [f'value="{n}"' in drawn for n in range(1, 6)] == [True, True, True, True, False]
    assert "data-lm-suppress-shortcuts" in drawn


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_hostile_answer_is_text_within_a_budget(payload: str) -> None:
    drawn = html(review_node(Review(payload * 5_000)))
    assert "<script" not in drawn
    assert "<img" not in drawn
    assert "characters more" in drawn or len(payload) * 5_000 <= 4_000
    assert len(drawn) < 60_000


# The page over all cases


class Cases:
    """The cases of a batch whose store may be gone."""

    name, state, score_names = "b", "", ()
    options: Mapping[str, Any] = {}
    is_gone = False

    def results(self) -> Sequence[CaseResult]:
        if self.is_gone:
            raise StoreError("the store is gone")
        return [CaseResult(row_key="0", labels={}, status="ok", run_id="r", text="hi")]

    def record(self, run_id: str) -> RunRecord:
        raise AssertionError("nothing is unfolded here")

    def label(self, run_id: str, value: float | bool, reason: str | None) -> ScoreRecord:
        raise AssertionError("nothing is labelled here")

    def watch(self, on_change: Callable[[], object]) -> None:
        pass


def test_a_page_over_all_cases_says_that_the_store_is_gone() -> None:
    source, sent = Cases(), list[dict[str, Any]]()
    live = LiveCases(source)
    live.updates.send = sent.append
    source.is_gone = True
    assert live.changes() == []
    assert [text_of(message["ops"][0][2]) for message in sent] == ["the store is gone"]
    source.is_gone = False
    assert live.changes() == []


# The live view of a batch


class Controls:
    def __init__(self) -> None:
        self.stops: list[bool] = []

    def stop(self, *, after_rows: bool = False) -> None:
        self.stops.append(after_rows)

    def notebook_record(self) -> dict[str, Any]:
        return {}

    def case_source(self) -> CaseSource:
        raise AssertionError("no page over all cases is opened here")


def progress(ok: int, **more: Any) -> BatchProgress:
    now = BatchProgress(
        name="b",
        state="Running",
        why="",
        total=100,
        reused=0,
        ok=ok,
        failed=0,
        at_work=2,
        cost_usd=None,
        judge_cost_usd=0.0,
        elapsed_s=1.0,
        per_s=1.0,
        left_s=None,
        started_at=datetime.now(UTC),
        failures=(),
        variants=(),
    )
    return replace(now, **more)


def test_many_updates_are_few_messages_and_only_of_what_changed(wire: Wire) -> None:
    controls = Controls()

    async def batch() -> None:
        view = LiveBatch(progress(0), controls)
        for n in range(100):
            view.update(progress(n))
            await asyncio.sleep(0.005)
        for odd in ({"kind": "pause"}, {"kind": "stop", "run": "f" * 16}, ["stop"], {"kind": []}):
            view.view.on_message(odd)
        view.view.on_message({"kind": "pause", "run": "batch"})
        await asyncio.sleep(0.3)
        view.close(progress(100, state="Finished", at_work=0))
        view.update(progress(50))
        view.view.on_message({"kind": "stop", "run": "batch"})

    asyncio.run(batch())
    sent = [message["ops"] for message in wire.of()]
    assert 3 <= len(sent) <= 8
    assert {op[1] for op in sent[0]} == {"head", "failures", "variants", "end"}
    assert [op[1] for op in sent[1]] == ["head"]
    assert "Pausing when the running cases have ended" in text_of(sent[-2][0][2])
    assert "100 of 100" in text_of(sent[-1][0][1])
    assert controls.stops == [True], "after the end nothing is stopped"


def test_what_a_file_keeps_in_mid_batch_is_written_anew_now_and_then(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(outputs, "display", Shown(shown))
    monkeypatch.setattr(batch_widget, "_SAVE_MS", 20)

    async def batch() -> None:
        view = LiveBatch(progress(0), Controls())
        view.view.on_message({"kind": "ready", "page": "p"})
        for n in range(30, 60, 10):
            await asyncio.sleep(0.03)
            view.update(progress(n))
        view.close(progress(100, state="Finished", at_work=0))

    asyncio.run(batch())
    kept = [data["text/html"] for data in shown if "of 100" in data.get("text/html", "")]
    assert [html.split(" of 100")[0].rpartition(">")[2] for html in kept] == [
        *("0", "30", "40", "50", "100")
    ]
    assert all("Saved while the batch was running" in html for html in kept[:-1])


def test_a_page_that_takes_no_messages_does_not_end_the_batch(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def batch() -> None:
        view = LiveBatch(progress(0), Controls())

        def fail(*_: object) -> None:
            raise OSError("no socket")

        monkeypatch.setattr(view.view.widget, "send", fail)
        view.update(progress(1))
        view.close(progress(100, state="Finished", at_work=0))

    asyncio.run(batch())


def test_a_page_that_comes_while_a_batch_ends_is_shown_the_end(wire: Wire) -> None:
    async def batch() -> None:
        view = LiveBatch(progress(0), Controls())
        view.update(progress(1))
        view.view.on_message({"kind": "ready", "page": "p"})
        view.close(progress(100, state="Finished", at_work=0))
        await asyncio.sleep(0)

    asyncio.run(batch())
    told = [text_of(message["ops"][0][1]) for message in wire.of() if message.get("page") == "p"]
    assert "100 of 100" in told[-1]
