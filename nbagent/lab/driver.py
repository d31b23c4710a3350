"""One go of a batch: asks what is missing, scores what is there, and knows when to end.

Lives on the engine thread. Where a run is made is its executor's to say; what the cases are was
decided before.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from nbagent.archive.batches import keep_scores, scores_of
from nbagent.archive.store import Store
from nbagent.contracts.canonical import utc_now
from nbagent.contracts.errors import NbagentError, StoreError
from nbagent.contracts.events import Event, TurnFinished
from nbagent.contracts.records import RunRecord, ScoreRecord
from nbagent.lab.cases import How, ask_of
from nbagent.lab.entries import Entry, failures_of, is_scored, means, summaries_of
from nbagent.lab.runs import Executor, NoMoreRuns
from nbagent.lab.scorers import Judging, Scorer
from nbagent.run import Run
from nbagent.session.active import OnEvent
from nbagent.session.prepare import Ask
from nbagent.view.batch import BatchProgress, BatchState

_SHOWN_S = 0.25


class _Judges:
    """An executor that counts what its runs cost."""

    def __init__(self, inner: Executor, cost_usd: float) -> None:
        self._inner, self.cost_usd = inner, cost_usd
        self.stop, self.close = inner.stop, inner.close

    async def run(self, ask: Ask, on_event: OnEvent | None = None) -> RunRecord:
        record = await self._inner.run(ask, on_event)
        self.cost_usd += record.cost_usd or 0.0
        return record


class Drive:
    """One go."""

    def __init__(
        self,
        name: str,
        entries: Sequence[Entry],
        *,
        executor: Executor,
        judges: Executor,
        judged_usd: float,
        store: Store,
        scorers: Sequence[Scorer],
        how: How,
        asks: bool = True,
        session: str,
        show: Callable[[BatchProgress], object],
    ) -> None:
        """Be ready to go.

        Args:
            name: of the batch.
            entries: all of its cases.
            executor: makes their runs.
            judges: makes the runs of judges.
            judged_usd: what judges cost in earlier goes.
            store: keeps runs and scores.
            scorers: score the answers, also those that are there.
            how: how many at a time, and when to end.
            asks: whether models are asked for what is missing; else answers are only scored.
            session: of its runs.
            show: is given the progress a few times a second, and at the end.
        """
        self.name, self.entries = name, entries
        self.state: BatchState = "Ready"
        self.why = ""
        """Why it ended before all cases were done."""
        self._executor, self._judges, self._store = executor, _Judges(judges, judged_usd), store
        self._scorers, self._how, self._asks, self._session = scorers, how, asks, session
        self._show = show
        self._was_in_memory = store.path is None
        self._began, self._started_at = time.monotonic(), utc_now()
        self._ended_s: float | None = None
        self._at_work: dict[int, float] = {}
        """By place of the case, what its run costs so far (USD)."""
        self._reused = sum(entry.standing in ("ok", "ended") for entry in entries)
        self._done = self._failed = 0
        """Of this go."""
        self._counts = Counter(entry.standing for entry in entries)
        self._spent_usd = sum(entry.cost_usd or 0.0 for entry in entries)
        self._is_shown_soon = self._is_stopped = False
        self._held: dict[str, list[ScoreRecord]] = {}
        """By run, the scores of earlier goes."""

    async def run(self) -> None:
        """Work until all is done or an end is asked for.

        Raises:
            NbagentError: the store failed, or nbagent did; what was done is kept.
        """
        await self._look_at_scores()
        todo = [
            (place, entry)
            for place, entry in enumerate(self.entries)
            if (self._asks and entry.standing not in ("ok", "ended"))
            or (entry.standing == "ok" and self._missing(entry))
        ]
        queue = iter(todo)
        if self.state == "Ready":
            self.state = "Running"
        try:
            # What a case costs is known when the first one has ended: it goes alone.
            if self._how.max_cost_usd is not None and self._asks and not self._spent_usd:
                await self._worker(queue, most=1)
            n = min(self._how.concurrency, len(todo))
            tasks = [asyncio.ensure_future(self._worker(queue)) for _ in range(n)]
            await _all_or_first_error(tasks, self.stop)
        finally:
            self._ended_s = time.monotonic() - self._began
            if not (self._counts["missing"] or self._counts["unfinished"]):
                self.state, self.why = "Finished", ""
            elif self.state == "Running":  # it was only scored
                self.state, self.why = "Paused", "some cases were not asked yet"
            for made in (self._executor, self._judges):
                with suppress(Exception):
                    await made.close()

    def stop(self) -> None:
        """Begin no more, and stop what is at work. On the engine thread."""
        self._is_stopped = True
        self.end("Stopped", "stopped")
        self._executor.stop()
        self._judges.stop()

    def end(self, state: BatchState, why: str) -> None:
        """Begin no more; what is at work goes on to its end. On the engine thread."""
        if self.state in ("Ready", "Running") or state == "Stopped":
            self.state, self.why = state, self.why or why

    # Cases

    async def _worker(self, queue: Iterator[tuple[int, Entry]], most: int | None = None) -> None:
        while self.state == "Running" and most != 0 and self._may_begin():
            place, entry = next(queue, (0, None))
            if entry is None:
                return
            most = most and most - 1
            self._at_work[place] = 0.0
            self._show_soon()
            try:
                record = None
                if entry.standing != "ok":
                    record = await self._ask(place, entry)
                if entry.standing == "ok":
                    await self._score(entry, record)
            finally:
                del self._at_work[place]
            self._look_at_limits()
            self._show_soon()

    def _may_begin(self) -> bool:
        """Whether what is left of the budget is enough for one more case."""
        most = self._how.max_cost_usd
        if most is None or not self._asks:
            return True
        mean = self._spent_usd / max(self._counts.total() - self._counts["missing"], 1)
        expected = sum(max(cost, mean) for cost in self._at_work.values()) + mean
        left = most - self._spent_usd - self._judges.cost_usd
        if left > 0 and expected <= left:
            return True
        if not self._at_work:
            self.end("Stopped", f"max_cost_usd={most:g} is used up")
        return False

    async def _ask(self, place: int, entry: Entry) -> RunRecord | None:
        def on_event(event: Event) -> None:
            if isinstance(event, TurnFinished):
                self._at_work[place] += event.turn.cost_usd or 0.0
                self._look_at_limits()

        before, entry_cost, record = entry.standing, entry.cost_usd or 0.0, None
        try:
            record = await self._executor.run(self._ask_of(entry), on_event)
        except StoreError:
            raise
        except NoMoreRuns as error:
            self.end("Stopped", error.message)
        except NbagentError as error:
            entry.standing, entry.why = "failed", f"{error.code}: {error.message}"
        else:
            entry.take(record)
        self._spent_usd += (entry.cost_usd or 0.0) - entry_cost
        self._at_work[place] = 0.0
        self._counts.subtract([before])
        self._counts.update([entry.standing])
        self._done += entry.standing in ("ok", "ended", "failed")
        self._failed += entry.standing == "failed"
        return record

    def _ask_of(self, entry: Entry) -> Ask:
        """What asks a case: anew, or from where its last run ended."""
        planned, most = entry.planned, self._how.max_cost_usd
        left = None if most is None else max(most - self._spent_usd, 1e-9)
        ask = ask_of(planned, max_cost_usd=left, session=self._session)
        if not entry.run_id:
            return ask
        ask = replace(ask, prompt=None, parts=(), kind="resume", parent_id=entry.run_id)
        if not entry.why.startswith("E_DENIED"):
            return ask
        turn = self._store.load(entry.run_id).turns[-1]
        return replace(ask, kind="fork", fork_turn=turn.id)

    def _look_at_limits(self) -> None:
        how, failed = self._how, self._failed
        if how.max_cost_usd is not None:
            spent = self._spent_usd + sum(self._at_work.values()) + self._judges.cost_usd
            if spent >= how.max_cost_usd and self.state == "Running":
                self.end("Stopped", f"max_cost_usd={how.max_cost_usd:g} is used up")
                self._executor.stop()
        if how.max_failed is not None:
            share = how.max_failed < 1
            most = how.max_failed * (len(self.entries) if share else 1)
            if failed > most:
                self.end("Stopped", f"{failed} cases failed (max_failed={how.max_failed:g})")
        if self._store.warning and self._store.path is None and not self._was_in_memory:
            self.end("Stopped", self._store.warning)

    # Scores

    async def _look_at_scores(self) -> None:
        """Read what is scored already, all at once."""
        done = [entry.run_id for entry in self.entries if entry.standing == "ok"]
        for score in await asyncio.to_thread(scores_of, self._store, done):
            self._held.setdefault(score.run_id, []).append(score)
        for entry in self.entries:
            entry.scores = means(self._held.get(entry.run_id, ()))

    def _missing(self, entry: Entry) -> list[Scorer]:
        held = self._held.get(entry.run_id, ())
        return [it for it in self._scorers if not is_scored(held, it.name, it.version)]

    async def _score(self, entry: Entry, record: RunRecord | None) -> None:
        """Score an answer with what has not scored it yet."""
        missing = self._missing(entry)
        if not missing or self._is_stopped:
            return
        run = Run(record or await asyncio.to_thread(self._store.load, entry.run_id), self._store)
        at = Judging(executor=self._judges, case=entry.planned.case)
        found: list[ScoreRecord] = []
        for scorer in missing:
            if not self._is_stopped:
                found += await scorer.records(entry.planned.row, run, at)
        keep_scores(self._store, found)
        entry.scores = means([*self._held.pop(entry.run_id, ()), *found])

    # Progress

    def _show_soon(self) -> None:
        if not self._is_shown_soon:
            self._is_shown_soon = True
            asyncio.get_running_loop().call_later(_SHOWN_S, self._show_now)

    def _show_now(self) -> None:
        self._is_shown_soon = False
        if self._ended_s is None:
            self._show(self.progress())

    def progress(self) -> BatchProgress:
        """How far it is. Any thread."""
        elapsed_s = self._ended_s or time.monotonic() - self._began
        counts, entries = self._counts, self.entries
        left, per_s = counts["missing"] + counts["unfinished"], self._done / max(elapsed_s, 1e-3)
        known = any(entry.cost_usd is not None for entry in entries)
        is_running = self.state == "Running" and self._done and left
        return BatchProgress(
            name=self.name,
            state=self.state,
            why=self.why,
            total=len(entries),
            reused=self._reused,
            ok=counts["ok"],
            failed=counts["failed"] + counts["ended"],
            at_work=len(self._at_work),
            cost_usd=self._spent_usd + sum(self._at_work.values()) if known else None,
            judge_cost_usd=self._judges.cost_usd,
            elapsed_s=elapsed_s,
            per_s=per_s,
            left_s=left / per_s if is_running else None,
            started_at=self._started_at,
            failures=failures_of(entries),
            variants=summaries_of(entries) if self._ended_s is not None else (),
        )


async def _all_or_first_error(
    tasks: Sequence[asyncio.Task[None]], stop: Callable[[], object]
) -> None:
    """Wait for all; after an error in one, stop the others, wait for them and raise it."""
    if not tasks:
        return
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    failed = [error for task in done if (error := task.exception())]
    if failed:
        stop()
        await asyncio.wait(tasks)
        raise failed[0]
