"""Runner of a batch: asks the missing cases, has their answers scored, and ends at limits.

Lives on the engine thread. The executor makes the runs; the cases were planned before.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

from nbagent.contracts.canonical import utc_now
from nbagent.contracts.errors import NbagentError, StoreError, UsageError
from nbagent.contracts.events import Event, TurnFinished
from nbagent.contracts.records import RunRecord
from nbagent.lab.budget import Budget
from nbagent.lab.case_state import CaseCounts, CaseState, failures_of, summaries_of
from nbagent.lab.local import Executor, NoMoreRuns, SentTogether, n_arriving_at
from nbagent.lab.plan import MapOptions, request_of_case
from nbagent.lab.scorers import Scorer
from nbagent.lab.scoring import Scoring
from nbagent.session.callbacks import OnEvent
from nbagent.session.request import RunRequest
from nbagent.store.writer import Store
from nbagent.view.batch import BatchProgress, BatchState
from nbagent.view.text_format import pluralize

_SHOW_INTERVAL_S = 0.25


class _Judges:
    """Executor for the judges of one case; counts their cost."""

    def __init__(self, inner: Executor, budget: Budget, case: int) -> None:
        self._inner, self._budget, self._case = inner, budget, case
        self.stop, self.close = inner.stop, inner.close

    async def run(self, ask: RunRequest, on_event: OnEvent | None = None) -> RunRecord:
        record = await self._inner.run(ask, on_event)
        self._budget.spend(self._case, record.cost_usd, by_judge=True)
        return record


class Runner:
    """Runs a batch once, from its start to its end, a pause or a stop."""

    def __init__(
        self,
        name: str,
        entries: Sequence[CaseState],
        *,
        executor: Executor,
        judges: Executor,
        judged_usd: float,
        store: Store,
        scorers: Sequence[Scorer],
        how: MapOptions,
        asks: bool = True,
        session: str,
        models: Sequence[str],
        notes: Sequence[str],
        show: Callable[[BatchProgress], object],
    ) -> None:
        """Prepare to run.

        Args:
            name: name of the batch.
            entries: all of its cases.
            executor: makes the runs of the cases.
            judges: makes the runs of judges.
            judged_usd: earlier cost of judges.
            store: stores runs and scores.
            scorers: score all answers, also existing ones.
            how: options of the batch, with concurrency and limits.
            asks: True to ask models for missing cases; False to score answers only.
            session: session of the runs.
            models: ids of the asked models.
            notes: for the person, beside those of the scorers.
            show: called with the progress a few times a second, and at the end.
        """
        self.name, self.entries = name, entries
        self.state: BatchState = "Ready"
        self.why = ""
        """Reason for an end before all cases were done."""
        self._executor, self._judges, self._store = executor, judges, store
        self._has_scorers, self._scoring = bool(scorers), Scoring(store, scorers)
        self._how, self._asks_models, self._session = how, asks, session
        self._show, self._models = show, tuple(models)
        self._was_in_memory = store.path is None
        self._batch_notes = tuple(notes)
        self._began, self._started_at = time.monotonic(), utc_now()
        self._ended_s: float | None = None
        for entry in entries:
            entry.was_asked = entry.is_unscored = False
        self._counts = CaseCounts(entries)
        self._reused = self._counts.n("ok", "ended")
        costs = [(entry.planned.variant.name, entry.cost_usd) for entry in entries]
        known = [(variant, usd) for variant, usd in costs if usd is not None]
        asked_usd = sum(usd for _, usd in known) if known else None
        self._budget = Budget(how.max_cost_usd, asked_usd, judged_usd)
        # A case with a judge costs more than its answer, so earlier answers are no estimate for it.
        if asks and not any(scorer.costs for scorer in scorers):
            self._budget.learn(known)
        self._show_timer: asyncio.TimerHandle | None = None
        self._case_ended = asyncio.Event()

    async def run(self) -> None:
        """Work until all cases are done or the batch is to end.

        Raises:
            NbagentError: the store failed, or nbagent did; finished cases are stored.
        """
        try:
            # In a thread: reading many scores would block the engine.
            for index in await asyncio.to_thread(self._scoring.read, self.entries):
                with self._counts.changing(self.entries[index]):
                    self.entries[index].is_unscored = True
            queue = deque(
                index
                for index, entry in enumerate(self.entries)
                if entry.is_unscored or (self._asks_models and entry.status not in ("ok", "ended"))
            )
            if isinstance(self._executor, SentTogether):
                await self._work_on_arrivals(queue, self._executor)
            else:
                await self._work_on(queue)
        except NbagentError as error:
            self.state, self.why = "Stopped", error.message
            raise
        finally:
            self._ended_s = time.monotonic() - self._began
            if self._show_timer is not None:
                self._show_timer.cancel()
            # Also after a stop or at a limit: with nothing left, the batch is finished.
            if not (self._counts.n("missing", "unfinished") or self._counts.n_unscored):
                self.state, self.why = "Finished", ""
            elif self.state == "Running":  # it was only scored
                self.state, self.why = "Paused", "some cases were not asked yet"
            for made in (self._executor, self._judges):
                # An executor that cannot close must not hide how the batch ended.
                with suppress(Exception):
                    await made.close()

    async def _work_on(self, queue: deque[int]) -> None:
        n = min(self._how.concurrency, len(queue))
        tasks = [asyncio.ensure_future(self._worker(queue)) for _ in range(n)]
        await _all_or_first_error(tasks, self.stop)

    async def _work_on_arrivals(self, queue: deque[int], executor: SentTogether) -> None:
        """Score the answered cases; send all others together, and make their runs as answers
        arrive."""
        answered = [index for index in queue if self.entries[index].status == "ok"]
        await self._work_on(deque(answered))
        requests = {
            index: self._request_of(self.entries[index])
            for index in queue
            if self.entries[index].status != "ok"
        }
        if not requests or self.state != "Running":
            return
        with suppress(NoMoreRuns):
            async with aclosing(executor.arrivals(requests, self._show_soon)) as arrivals:
                async for indexes in arrivals:
                    await self._work_on(deque(indexes))
                    if self.state != "Running":
                        return

    def stop(self) -> None:
        """Start no more cases, and stop the running ones. On the engine thread."""
        self._scoring.is_stopped = True
        self.end("Stopped", "stopped")
        self._executor.stop()
        self._judges.stop()

    def end(self, state: BatchState, why: str) -> None:
        """Start no more cases; the running ones continue to their end. On the engine thread."""
        if self.state in ("Ready", "Running", "Paused"):
            self.state, self.why = state, why
        if isinstance(self._executor, SentTogether):
            self._executor.leave()

    # Cases

    async def _worker(self, queue: deque[int]) -> None:
        while queue and self.state == "Running":
            variant = self.entries[queue[0]].planned.variant.name
            if not self._budget.may_begin(variant):
                if not self._budget.n_running:
                    self._end_by_cost()
                    return
                await self._case_ended.wait()
                continue
            index = queue.popleft()
            self._budget.begin(index, variant)
            self._show_soon()
            try:
                await self._run_case(index, self.entries[index])
            finally:
                self._budget.end(index)
                # Wakes all workers that wait for the budget; later ones wait for the next case.
                self._case_ended.set()
                self._case_ended = asyncio.Event()
            self._check_limits()
            self._show_soon()

    async def _run_case(self, index: int, entry: CaseState) -> None:
        """Ask a case, unless it has an answer, and score the answer."""
        record = None if entry.status == "ok" else await self._ask_case(index, entry)
        if entry.is_unscored and not self._scoring.is_stopped:
            await self._score_case(index, entry, record)

    async def _ask_case(self, index: int, entry: CaseState) -> RunRecord | None:
        before_usd, turns_usd, record = entry.cost_usd, 0.0, None

        def on_event(event: Event) -> None:
            nonlocal turns_usd
            if isinstance(event, TurnFinished):
                turns_usd += event.turn.cost_usd or 0.0
                self._budget.spend(index, event.turn.cost_usd)
                self._check_limits()

        try:
            record = await self._executor.run(self._request_of(entry), on_event)
        # Without its store no further case could be kept, so the batch ends.
        except StoreError:
            raise
        except NoMoreRuns as error:
            self.end("Stopped", error.message)
        except NbagentError as error:
            with self._counts.changing(entry):
                entry.status, entry.why = "failed", f"{error.code}: {error.message}"
                entry.was_asked = True
        else:
            with self._counts.changing(entry):
                entry.add_run(record)
                entry.was_asked = True
                entry.is_unscored = self._has_scorers and entry.status == "ok"
        # The case's own sum is right; turns that were not reported, or not stored, are corrected.
        if entry.cost_usd is not None:
            self._budget.spend(index, entry.cost_usd - (before_usd or 0.0) - turns_usd)
        return record

    async def _score_case(self, index: int, entry: CaseState, record: RunRecord | None) -> None:
        try:
            record = record or await asyncio.to_thread(self._store.load, entry.run_id)
        except UsageError:  # the run was deleted (forget) meanwhile
            with self._counts.changing(entry):
                entry.status, entry.run_id, entry.is_unscored = "missing", "", False
            return
        judges = _Judges(self._judges, self._budget, index)
        is_scored = await self._scoring.score(entry, record, judges)
        with self._counts.changing(entry):
            entry.is_unscored = not is_scored

    def _request_of(self, entry: CaseState) -> RunRequest:
        """Build the request of a case: a first one, or one that continues its last run."""
        left = self._budget.left_usd
        # A limit must be above 0. This one ends the run at its first turn.
        left = None if left is None else max(left, 1e-9)
        ask = request_of_case(entry.planned, left_usd=left, session=self._session)
        if not entry.run_id:
            return ask
        ask = replace(ask, prompt=None, parts=(), kind="resume", parent_id=entry.run_id)
        if not entry.why.startswith("E_DENIED"):
            return ask
        # After a denial the turn is repeated: resumed, the model would only see the denied call.
        turn = self._store.load(entry.run_id).turns[-1]
        return replace(ask, kind="fork", fork_turn=turn.id)

    def _end_by_cost(self) -> None:
        most = self._how.max_cost_usd or 0.0
        self.end("Stopped", f"max_cost_usd={most:g} is used up; raise it to continue")

    def _check_limits(self) -> None:
        if self._budget.is_used_up and self.state == "Running":
            self._end_by_cost()
            # Running turns are paid already, so they may end.
            self._executor.stop(after_turn=True)
        most, n_failed = self._how.max_failed, self._counts.n("failed", asked_now=True)
        # A float is a share: 1.0 means all cases, 1 means one.
        if most is not None and n_failed > most * (len(self.entries) ** isinstance(most, float)):
            self.end("Stopped", f"{pluralize(n_failed, 'case')} failed (max_failed={most:g})")
        # The store left the disk: further runs would be lost with the kernel.
        if self._store.warning and self._store.path is None and not self._was_in_memory:
            self.end("Stopped", self._store.warning)

    # Progress

    def _show_soon(self) -> None:
        if self._show_timer is None and self._ended_s is None:
            loop = asyncio.get_running_loop()
            self._show_timer = loop.call_later(_SHOW_INTERVAL_S, self._show_now)

    def _show_now(self) -> None:
        self._show_timer = None
        self._show(self.progress())

    def progress(self) -> BatchProgress:
        """Return the progress so far. Any thread."""
        elapsed_s = self._ended_s or time.monotonic() - self._began
        counts, entries, budget = self._counts, self.entries, self._budget
        own_notes = self._executor.notes() if isinstance(self._executor, SentTogether) else ()
        left, n_failed = counts.n("missing", "unfinished"), counts.n("failed", "ended")
        done_now = counts.n("ok", "failed", "ended", asked_now=True)
        per_s = done_now / max(elapsed_s, 1e-3)
        is_running = self.state == "Running" and done_now and left
        return BatchProgress(
            name=self.name,
            state=self.state,
            why=self.why,
            total=len(entries),
            reused=self._reused,
            ok=counts.n("ok"),
            failed=n_failed,
            at_work=budget.n_running,
            cost_usd=budget.asked_usd,
            judge_cost_usd=budget.judged_usd,
            elapsed_s=elapsed_s,
            per_s=per_s,
            left_s=left / per_s if is_running else None,
            started_at=self._started_at,
            failures=failures_of(entries, n_failed),
            notes=(*self._batch_notes, *own_notes, *self._scoring.notes()),
            models=self._models,
            at_provider=n_arriving_at(self._executor),
            variants=summaries_of(entries) if self._ended_s is not None else (),
        )


async def _all_or_first_error(
    tasks: Sequence[asyncio.Task[None]], stop: Callable[[], object]
) -> None:
    """Wait for all tasks; after an error, stop the others, wait for them and raise it."""
    if not tasks:
        return
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    failed = [error for task in done if (error := task.exception())]
    if failed:
        stop()
        await asyncio.wait(tasks)
        raise failed[0]
