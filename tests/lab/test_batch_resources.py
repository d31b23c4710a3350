"""What a batch takes from its process and gives back: memory, garbage collection, the budget."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownVariableType=false

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pydantic import BaseModel
from servers.model_server import ModelServer, Reply
from stage_of_batches import FEW, TABLE, agent, answer, ask, asked, scorer, slow, until

import nbagent
from nbagent import offline
from nbagent.contracts.model import ChatRequest
from nbagent.lab import batch as batches
from nbagent.providers.offline import StepLike

DOWN = offline.error("LLM_HTTP_ERROR", "down")


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    asked.clear()


# Memory


class Fine(BaseModel):
    fine: bool


def _failing() -> Any:
    return ask(TABLE, DOWN, max_failed=3, concurrency=2).wait()


def _stopped() -> Any:
    batch = ask(TABLE, slow, concurrency=1)
    until(lambda: batch.progress.ok)
    batch.stop()
    return batch.wait()


def _judged() -> Any:
    judge = nbagent.judge("Fine?", model=offline.script(['{"fine": true}'] * 20), output=Fine)
    return ask(TABLE, score=[scorer(lambda row, run: True), judge]).wait()


def _in_another_thread() -> Any:
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(ask(TABLE).wait()))
    thread.start()
    thread.join()
    return made.pop()


ENDS: dict[str, Callable[[], Any]] = {
    "finished": lambda: ask(TABLE).wait(),
    "judged": _judged,
    "failed": _failing,
    "stopped": _stopped,
    "continued": lambda: _stopped().resume(),
    "planned only": lambda: ask(TABLE, start=False),
    "in another thread": _in_another_thread,
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_of_a_batch_that_is_deleted_stays_in_memory(end: str) -> None:
    batch = ENDS[end]()
    rows = [weakref.ref(item.row) for item in batch._planned]
    assert len(rows) == len(TABLE)
    del batch
    gc.collect()
    until(lambda: not [row for row in rows if row() is not None])


def plain_batch(n: int) -> None:
    """A batch whose model keeps no requests."""
    table = pd.DataFrame({"n": range(n)})
    batch = nbagent.Agent("offline:demo", tools="none", quiet=True).map(table, "{{ n }}")
    assert batch.wait().progress.ok == n


def test_the_objects_that_stay_do_not_grow_with_the_rows() -> None:
    def stay(n: int) -> int:
        plain_batch(n)
        gc.collect()
        return len(gc.get_objects())

    stay(3)  # the first one imports much
    few = stay(4)
    assert stay(204) - few < 200


def test_a_batch_and_its_runs_leave_nothing_for_the_garbage_collection() -> None:
    plain_batch(3)
    gc.collect()
    gc.disable()
    try:
        plain_batch(120)
        assert gc.collect() < 120, "not an object a row"
    finally:
        gc.enable()


# Garbage collection


@pytest.fixture
def settings() -> Iterator[tuple[Any, ...]]:
    """The settings of the collection, which a batch gives back."""
    gc.unfreeze()  # pytest's own process froze its objects
    before = _now()
    yield before
    gc.set_threshold(*before[0])


def _now() -> tuple[Any, ...]:
    return gc.get_threshold(), gc.get_freeze_count(), gc.isenabled()


def noting(seen: list[tuple[Any, ...]]) -> Callable[[ChatRequest], StepLike]:
    def answer_and_note(request: ChatRequest) -> StepLike:
        seen.append(_now())
        return slow(request)

    return answer_and_note


WORK: dict[str, Callable[[Any], Any]] = {
    "an end": lambda says: ask(FEW, says).wait(),
    "failures": lambda says: ask(FEW, DOWN, max_failed=0).wait(),
    "a stop": lambda says: _stop_at_once(ask(TABLE, says, concurrency=1)),
    "two at once": lambda says: [ask(FEW, says, name=name) for name in "ab"][1].wait(),
}


def _stop_at_once(batch: Any) -> None:
    until(lambda: asked)
    batch.stop()
    batch.wait()


@pytest.mark.parametrize("end", WORK)
def test_collections_are_rare_while_a_batch_works_and_as_before_after_it(
    end: str, settings: tuple[Any, ...]
) -> None:
    seen: list[tuple[Any, ...]] = []
    WORK[end](noting(seen))
    until(lambda: not batches.active_batches())
    until(lambda: _now() == settings)
    assert all(thresholds[0] >= 10_000 and n_frozen for thresholds, n_frozen, _ in seen)
    assert seen or end == "failures"


def test_the_first_of_two_batches_that_ends_takes_nothing_from_the_other(
    settings: tuple[Any, ...],
) -> None:
    gate = threading.Event()

    def wait(request: ChatRequest) -> StepLike:
        answer(request)
        return offline.step(text="x", wait_ms=0 if gate.is_set() else 60_000)

    long = ask(FEW, wait, name="long")
    until(lambda: len(asked) == 3)
    ask(FEW, name="short").wait()
    assert gc.get_threshold()[0] >= 10_000
    long.stop()
    long.wait()
    until(lambda: _now() == settings)


def test_settings_that_the_person_chose_are_left_alone(settings: tuple[Any, ...]) -> None:
    gc.set_threshold(0)
    gc.freeze()
    try:
        seen: list[tuple[Any, ...]] = []
        ask(FEW, noting(seen)).wait()
        assert {thresholds[0] for thresholds, _, _ in [*seen, _now()]} == {0}
        assert gc.get_freeze_count(), "their frozen objects stay frozen"

        def choose(request: ChatRequest) -> StepLike:
            gc.set_threshold(1234, 5, 6)
            return answer(request)

        ask(FEW, choose, name="c").wait()
        assert gc.get_threshold() == (1234, 5, 6)
    finally:
        gc.unfreeze()


# Limits


@pytest.mark.parametrize(
    ("most", "failed"), [(0, 1), (0.0, 1), (1, 2), ("1", 2), ("1.0", 12), (0.25, 4), (100, 12)]
)
def test_a_batch_stops_when_more_cases_failed_than_may(most: Any, failed: int) -> None:
    batch = agent(DOWN, retries=0).map(TABLE, "{{ n }}", max_failed=most, concurrency=1).wait()
    assert batch.progress.failed == failed
    assert (batch.progress.state == "Stopped") == (failed < 12)


def test_a_dry_run_estimates_also_where_a_server_reports_no_usage() -> None:
    message = {"role": "assistant", "content": "fine"}
    whole = {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    silent = Reply(raw=json.dumps(whole).encode(), raw_type="application/json")
    with ModelServer([silent, silent, "fine", "fine"]) as server:
        asking = nbagent.Agent(
            "openai-compatible:little", base_url=server.url, tools="none", quiet=True
        )

        def plan(table: Any) -> Any:
            return asking.map(table, "{{ n }}", name="b", concurrency=1, start=False)

        plan(TABLE.head(2)).wait()
        runs: Any = nbagent.runs(batch="b")
        assert runs["prompt_tokens"].isna().all()
        assert "unknown until the first answer" in str(plan(TABLE).dry_run())
        plan(TABLE.head(4)).wait()
        runs = nbagent.runs(batch="b")
        assert runs["prompt_tokens"].notna().sum() == 2
        assert "unknown" not in str(plan(TABLE).dry_run()), "of those that did report it"
        assert len(server.bodies) == 4


def test_a_setting_that_changes_meanwhile_is_for_the_next_start() -> None:
    temperatures: list[float | None] = []

    def configure(request: ChatRequest) -> StepLike:
        temperatures.append(request.temperature)
        nbagent.configure(temperature=0.5)
        return answer(request)

    ask(FEW, configure, concurrency=1).wait()
    ask(FEW, configure, concurrency=1, name="next").wait()
    assert temperatures == [None] * 3 + [0.5] * 3
