"""Trouble around a batch: limits, interrupts and stops, scores of others."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from frontends import StandIn
from pydantic import BaseModel
from stage_of_batches import (
    FEW,
    JUDGED,
    TABLE,
    agent,
    answer,
    ask,
    asked,
    calls,
    note,
    runs,
    scorer,
    script,
    slow,
    until,
)

import nbagent
from nbagent import UsageError, offline
from nbagent.contracts.model import ChatRequest
from nbagent.contracts.ports import Cost
from nbagent.lab.batch import active_batches
from nbagent.lab.scorers import Scorer, ScorerResult, ScoringContext
from nbagent.providers.offline import Script, StepLike
from nbagent.session.frontend import PersonReview, use_frontend

DOWN = offline.error("LLM_HTTP_ERROR", "down")
MOMENTS = 40


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    asked.clear()


@pytest.fixture
def prices(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Price of a request (USD), by model; other models are free."""
    by_model: dict[str, float] = {}

    def cost_of(provider: str, model: str, usage: object, **rest: object) -> Cost:
        return Cost(input_usd=by_model.get(model, 0.0), output_usd=0.0)

    monkeypatch.setattr("nbagent.session.models.cost_of", cost_of)
    return by_model


# Limits


def _limited(prices: dict[str, float], case: str) -> tuple[Script, dict[str, Any], float]:
    """A model, how it is asked under a limit, and what one case with its judge may cost."""
    prices |= {"m": 0.1, "big": 100.0, "jj": 10.0}
    judge = nbagent.judge("Is it right?", model=script(lambda it: counted("jj", it, JUDGED), "jj"))
    big = script(lambda it: counted("big", it), "big")
    small = script(lambda it: counted("m", it))
    if case == "the first case fails":
        return script(slow, first=[broken]), {"max_cost_usd": 0.25}, 0.1
    if case == "a dear variant":
        return small, {"vary": {"model": [small, big]}, "max_cost_usd": 150}, 100.1
    return small, {"score": judge, "max_cost_usd": 15}, 10.1


def broken(request: ChatRequest) -> str:
    raise ValueError("without an answer there is no cost")


def counted(model: str, request: ChatRequest, says: str | None = None) -> str:
    asked.append(f"{model} {request.messages[0].text}")
    return says or "x"


@pytest.mark.parametrize("case", ["the first case fails", "a dear variant", "a dear judge"])
def test_a_budget_is_passed_by_one_case_at_most_and_nothing_is_bought_twice(
    prices: dict[str, float], case: str
) -> None:
    model, how, dearest = _limited(prices, case)
    asking = agent(model, retries=0)
    batch = asking.map(TABLE, "{{ n }}", name="b", **how).wait()
    progress = batch.progress
    assert (progress.state, "is used up" in progress.why) == ("Stopped", True)
    n_variants = len(how.get("vary", {}).get("model", "1"))
    spent = (progress.cost_usd or 0.0) + progress.judge_cost_usd
    assert 0 < spent < how["max_cost_usd"] + n_variants * dearest + 1e-6
    assert spent <= how["max_cost_usd"], "of each variant here, the first case told what one costs"
    answers = [it for it in asked if not it.startswith("jj")]
    assert progress.ok == (runs()["stop_reason"] == "answered").sum() == len(answers)
    more = asking.map(TABLE, "{{ n }}", name="b", **{**how, "max_cost_usd": 5_000}).wait()
    assert more.progress.ok == 12 * n_variants
    assert set(Counter(asked).values()) == {1}
    assert len(asked) == 12 * n_variants + 12 * ("score" in how)


class Paid(Scorer):
    """A scorer that asks a judge, and whose scores are by "function" all the same."""

    def __init__(self, judge: Scorer) -> None:
        super().__init__("paid", 1, "asks a judge")
        self._judge = judge

    @property
    def costs(self) -> bool:
        return True

    async def _score(
        self, row: Mapping[str, Any], run: nbagent.Run, at: ScoringContext
    ) -> ScorerResult:
        return replace(await self._judge._score(row, run, at), by=self.by)


@pytest.mark.parametrize("made", [Paid, lambda judge: judge], ids=["a scorer", "a judge"])
def test_a_scorer_says_itself_that_it_costs(
    prices: dict[str, float], made: Callable[[Scorer], Scorer]
) -> None:
    _, how, dearest = _limited(prices, "a dear judge")
    ask(TABLE).wait()
    batch = ask(TABLE, max_cost_usd=15, score=made(how["score"]), start=False)
    assert "judges" in str(batch.dry_run())
    assert "judges" not in str(ask(TABLE, start=False).dry_run())
    progress = batch.start().wait().progress
    # The answers before cost 0.1 each; all cases at once would cost 120.
    assert 10 <= progress.judge_cost_usd + (progress.cost_usd or 0.0) <= 15 + dearest
    assert (progress.state, "is used up" in progress.why) == ("Stopped", True)


def test_a_scorer_that_does_not_say_whether_it_costs_cannot_be_made() -> None:
    class Silent(Scorer):
        async def _score(
            self, row: Mapping[str, Any], run: nbagent.Run, at: ScoringContext
        ) -> ScorerResult:
            return ScorerResult([], self.by)

    with pytest.raises(TypeError, match="costs"):
        Silent("silent", 1, "")  # pyright: ignore[reportAbstractUsage]


def test_judges_that_come_later_keep_to_the_budget(prices: dict[str, float]) -> None:
    _, how, dearest = _limited(prices, "a dear judge")
    batch = ask(TABLE, max_cost_usd=15).wait().score(how["score"])
    progress = batch.progress
    assert progress.ok == 12
    assert 10 <= progress.judge_cost_usd + (progress.cost_usd or 0.0) <= 15 + dearest
    assert (progress.state, "is used up" in progress.why) == ("Stopped", True)
    scored = batch.frame()["score_judge"].notna().sum()
    assert 0 < scored == sum(it.startswith("jj") for it in asked) < 12
    ask(TABLE, max_cost_usd=5_000, score=how["score"]).wait()
    assert set(Counter(asked).values()) == {1}
    assert len(asked) == 24


def test_the_agents_own_limit_is_of_each_run(prices: dict[str, float]) -> None:
    prices["m"] = 0.1
    own = agent(calls(8), tools=[note], max_cost_usd=0.25)
    frame: Any = own.map(FEW, "{{ n }}", max_cost_usd=5).wait().frame()
    assert set(frame["stop_reason"]) == {"budget"}
    assert 0.05 < frame["cost_usd"].max() < 0.35


@pytest.mark.parametrize(
    ("limit", "reason"), [("max_cost_usd", "budget"), ("max_turns", "max_turns")]
)
def test_a_case_that_a_limit_ended_goes_on_when_the_limit_is_raised(
    prices: dict[str, float], limit: str, reason: str
) -> None:
    prices["m"] = 0.1
    table, calling = TABLE.head(1), agent(calls(5), tools=[note])
    limits = {"max_cost_usd": (0.25, 50), "max_turns": (2, 20)}[limit]
    for most, said, requests in [
        (limits[0], reason, 2),
        (limits[0], reason, 2),
        (limits[1], "answered", 6),
        (limits[1], "answered", 6),
    ]:
        frame: Any = calling.map(table, "{{ n }}", name="b", **{limit: most}).wait().frame()
        assert (frame["stop_reason"].tolist(), len(asked)) == ([said], requests)


@pytest.mark.parametrize(("most", "failed"), [(1.0, 12), (1, 2), (0.999, 12)])
def test_a_share_of_all_never_stops_and_a_number_does_at_the_next(most: float, failed: int) -> None:
    failing = agent(DOWN, retries=0)
    batch = failing.map(TABLE, "{{ n }}", max_failed=most, concurrency=1).wait()
    assert batch.progress.failed == failed


# Interrupts and stops


# An interrupt that comes in a callback of C code is reported and goes no further.
@pytest.mark.filterwarnings(
    r"ignore:(?s).*\nKeyboardInterrupt:pytest.PytestUnraisableExceptionWarning"
)
def test_an_interrupt_while_it_starts_leaves_nothing_at_work_that_nobody_holds() -> None:
    gate, main, lasts_s = threading.Event(), threading.get_ident(), 0.0
    is_starting, hits = False, list[bool]()

    def held(request: ChatRequest) -> StepLike:
        return offline.step(text=str(answer(request)), wait_ms=0 if gate.is_set() else 60_000)

    def interrupt() -> None:
        hits.append(is_starting)
        signal.pthread_kill(main, signal.SIGINT)

    made = agent(held)
    for name in ("first", "second"):  # the first one imports much
        began = time.monotonic()
        made.map(TABLE, "{{ n }}", name=name).stop()
        lasts_s = time.monotonic() - began
    for moment in range(MOMENTS):
        gate.clear()
        batch, name = None, f"b{moment}"
        alarm = threading.Timer(lasts_s * (moment % 10 + 1) / 10, interrupt)
        try:
            is_starting, began = True, time.monotonic()
            alarm.start()
            batch = made.map(TABLE, "{{ n }}", name=name, concurrency=1)
            is_starting, lasts_s = False, min(lasts_s, time.monotonic() - began)
            alarm.join()
            time.sleep(0.01)
        except KeyboardInterrupt:
            alarm.join()
        if batch is not None:
            batch.stop()
        until(lambda: not active_batches(), within_s=30)
        until(lambda: "Running" not in set(nbagent.runs()["phase"]), within_s=30)
        gate.set()
        assert made.map(TABLE, "{{ n }}", name=name).wait().progress.ok == 12
    assert len(hits) == MOMENTS
    assert sum(hits) >= 5


def test_a_pause_can_become_a_stop() -> None:
    batch = ask(TABLE, slow, concurrency=2)
    until(lambda: batch.progress.ok)
    batch.stop(after_rows=True)
    batch.stop()
    progress = batch.wait().progress
    assert (progress.state, progress.why) == ("Stopped", "stopped")


def test_a_scoring_that_is_stopped_leaves_no_errors_and_goes_on() -> None:
    batch, scored = ask(TABLE, concurrency=2).wait(), list[Any]()

    def dawdle(row: Any, run: Any) -> bool:
        scored.append(row.n)
        if len(scored) == 4:
            batch.stop()
            time.sleep(3)
        return True

    batch.score(dawdle)
    assert batch.progress.state == "Stopped"
    scores, frame = nbagent.scores(batch="b"), batch.frame()
    assert scores["error"].isna().tolist() == [True] * len(scores)
    assert 0 < frame["score_dawdle"].notna().sum() < 12
    assert batch.resume().frame()["score_dawdle"].tolist() == [True] * 12


@pytest.mark.parametrize("kind", ["sync", "async", "busy"])
def test_a_scorer_that_never_ends_holds_one_case_until_a_stop(kind: str) -> None:
    gate = threading.Event()  # lets the thread end, which nothing can end from outside

    def sync(row: Any, run: Any) -> bool:
        return row.n != 1 or gate.wait(60)

    async def idle(row: Any, run: Any) -> bool:
        return row.n != 1 or await asyncio.Event().wait()

    def busy(row: Any, run: Any) -> bool:
        while row.n == 1 and not gate.is_set():
            pass
        return True

    endless = scorer({"sync": sync, "async": idle, "busy": busy}[kind], "endless")
    batch = ask(TABLE, concurrency=2, score=endless)
    until(lambda: batch.progress.ok == 12 and nbagent.scores(batch="b")["value"].sum() == 11)
    batch.stop()
    try:
        progress = batch.wait().progress
    finally:
        gate.set()
    assert (progress.state, progress.ok) == ("Stopped", 12)
    assert progress.notes == (), "it was stopped, it did not fail"
    assert ask(TABLE, score=scorer(lambda row, run: True, "endless")).wait().progress.ok == 12
    assert len(asked) == 12


def test_scoring_while_it_is_at_work_is_refused_and_changes_nothing() -> None:
    batch = ask(TABLE, slow, concurrency=4)
    with pytest.raises(UsageError, match="'b' is at work"):
        batch.score(scorer(lambda row, run: True, "late"))
    assert batch.wait().resume().progress.ok == 12
    assert "score_late" not in batch.frame()


def test_a_batch_that_is_planned_twice_and_run_twice_asks_once() -> None:
    both = [ask(start=False), ask(start=False)]
    assert [batch.wait().progress.ok for batch in both] == [3, 3]
    assert len(asked) == 3
    assert both[0].frame()["run_id"].tolist() == both[1].frame()["run_id"].tolist()


# Scores


def test_a_version_that_scored_half_is_shown_alone() -> None:
    batch, scored = ask(TABLE, concurrency=1).wait(), list[Any]()
    batch.score(scorer(lambda row, run: False))

    def second(row: Any, run: Any) -> bool:
        scored.append(row.n)
        if len(scored) == 6:
            batch.stop()
        return True

    batch.score(scorer(second, version=2))
    assert batch.progress.state != "Finished"
    said = batch.compare("exact").to_dict("records")[0]
    assert (said["mean"], said["n"] + said["missing"], said["failed"]) == (1.0, 12, 0)
    assert 5 <= said["n"] <= 6
    shown = batch.frame()["score_exact"]
    assert (shown.notna().sum(), shown.dropna().all()) == (said["n"], True)

    batch.score(scorer(lambda row, run: 1 // 0, version=3))
    said = batch.compare("exact").to_dict("records")[0]
    assert (said["n"], said["missing"], said["failed"]) == (0, 12, 0), "no answer is at fault"
    assert batch.frame()["score_exact"].isna().all()
    assert batch.progress.notes[0].startswith("exact failed on 12 answers: ZeroDivisionError")
    assert "exact failed on 12 answers" in str(batch)


def test_a_persons_label_is_not_overwritten_by_a_scorer_of_its_name() -> None:
    batch, scored = ask().wait(), list[Any]()
    nbagent.score(batch.open_run(0), "exact", False)
    exact = scorer(lambda row, run: scored.append(row.n) or True)
    with pytest.raises(UsageError, match=r"'exact'.*person"):
        batch.score(exact)
    assert (scored, nbagent.scores(batch="b")["by"].tolist()) == ([], ["person"])
    assert batch.frame()["score_exact"].dropna().tolist() == [False]
    batch.score(scorer(exact, name="other"))
    assert sorted(scored) == [0, 1, 2], "as the error says"


class Verdict(BaseModel):
    verdict: bool | None = None


def test_who_says_none_is_not_asked_again_and_it_counts_as_missing() -> None:
    scored: list[Any] = []

    def judged(request: ChatRequest) -> str:
        return f'{{"verdict":{"null" if "a:0" in request.messages[0].text else "true"}}}'

    judging = script(judged, "jj")
    exact = scorer(lambda row, run: scored.append(row.n) or (None if row.n == 0 else True))
    score = [exact, nbagent.judge("Is it right?", model=judging, output=Verdict)]
    for _ in range(3):
        batch = ask(score=score).wait()
        assert batch.progress.state == "Finished"
        assert (len(scored), len(judging.requests)) == (3, 3)
    for name in ("exact", "judge.verdict"):
        said: Mapping[str, Any] = batch.compare(name).to_dict("records")[0]  # pyright: ignore
        assert (said["n"], said["missing"], said["failed"]) == (2, 1, 0)


def test_a_run_that_was_forgotten_is_left_out_and_asked_again() -> None:
    class Buttons(StandIn):
        shown: PersonReview

        def review(self, review: PersonReview) -> bool:
            self.shown = review
            return True

    buttons, batch = Buttons(), ask().wait()
    nbagent.forget(batch.open_run(1).id)
    use_frontend(buttons)
    batch.review()
    assert buttons.shown.total == 2
    batch.score(scorer(lambda row, run: True))
    assert batch.frame()["score_exact"].notna().tolist() == [True, False, True]
    asked.clear()
    assert (batch.resume().progress.ok, asked) == (3, ["1"])
    nbagent.forget(batch.open_run(2).id)
    assert (ask().wait().progress.ok, asked) == (3, ["1", "2"])
