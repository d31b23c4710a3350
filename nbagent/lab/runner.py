"""Runner of a batch: asks the missing cases, scores the answers, and ends at limits.

Lives on the engine thread. The executor makes the runs; the cases were planned before.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

from nbagent.contracts.canonical import utc_now
from nbagent.contracts.errors import NbagentError, StoreError, UsageError
from nbagent.contracts.events import Event, TurnFinished
from nbagent.contracts.records import RunRecord, ScoreRecord
from nbagent.lab.case_state import (
    CaseState,
    current_scores,
    failures_of,
    is_scored,
    numeric_scores,
    scorer_name,
    summaries_of,
    versions_of,
)
from nbagent.lab.local import Executor, NoMoreRuns, SentTogether, n_arriving_at
from nbagent.lab.plan import MapOptions, fingerprints_of, request_of_case
from nbagent.lab.scorers import Scorer, ScoringContext
from nbagent.run import Run
from nbagent.session.callbacks import OnEvent
from nbagent.session.request import RunRequest
from nbagent.store.batches import save_scores, scores_of
from nbagent.store.writer import Store
from nbagent.view.batch import BatchProgress, BatchState
from nbagent.view.text_format import pluralize

_SHOW_INTERVAL_S = 0.25
_CODE_COLUMN = "()"
"""Key of the scorer's own code hash among the fingerprints of a row's columns."""
_MAX_NOTES = 3


class _CostCounter:
    """Executor for the judges of one case; adds up their cost."""

    def __init__(self, inner: Executor) -> None:
        self._inner, self.cost_usd = inner, 0.0
        self.stop, self.close = inner.stop, inner.close

    async def run(self, ask: RunRequest, on_event: OnEvent | None = None) -> RunRecord:
        record = await self._inner.run(ask, on_event)
        self.cost_usd += record.cost_usd or 0.0
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
        self._judged_usd = judged_usd
        self._scorers, self._how, self._asks_models, self._session = scorers, how, asks, session
        self._show, self._models = show, tuple(models)
        self._was_in_memory = store.path is None
        self._batch_notes = tuple(notes)
        self._began, self._started_at = time.monotonic(), utc_now()
        self._ended_s: float | None = None
        self._at_work: dict[int, float] = {}
        """USD that a running case has cost so far, by index of the case."""
        self._reused = sum(entry.status in ("ok", "ended") for entry in entries)
        self._done = self._failed = 0
        """Cases of this start only."""
        self._counts = Counter(entry.status for entry in entries)
        self._spent_usd = sum(entry.cost_usd or 0.0 for entry in entries)
        self._is_shown_soon = self._is_stopped = False
        self._earlier_scores: dict[str, list[ScoreRecord]] = {}
        """Scores of earlier starts, by run id."""
        self._fingerprints: dict[int, dict[str, str]] = {}
        """Hashes of the row that its scorers see, by index of the case."""
        self._errors: dict[str, dict[str, str]] = {}
        """Errors by scorer and run id."""
        self._unscored = 0
        self._case_ended = asyncio.Event()
        self._cost_sums: dict[str, tuple[float, int]] = {}
        """USD of ended cases with their judges, and their number, by variant."""
        # A case with a judge costs more than its answer, so earlier answers are no estimate for it.
        is_free = not any(scorer.costs for scorer in scorers)
        for entry in entries if asks and is_free else ():
            if entry.cost_usd is not None:
                self._add_cost(entry, entry.cost_usd)

    async def run(self) -> None:
        """Work until all cases are done or the batch is to end.

        Raises:
            NbagentError: the store failed, or nbagent did; finished cases are stored.
        """
        try:
            # In a thread: reading many scores would block the engine.
            await asyncio.to_thread(self._read_scores)
            self._unscored = len(self._fingerprints)
            queue = deque(
                index
                for index, entry in enumerate(self.entries)
                if (self._asks_models and entry.status not in ("ok", "ended"))
                or index in self._fingerprints
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
            # Also after a stop or at a limit: with nothing left, the batch is finished.
            if not (self._counts["missing"] or self._counts["unfinished"] or self._unscored):
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
        self._is_stopped = True
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
            if not self._may_begin(self.entries[queue[0]]):
                if not self._at_work:
                    self._end_by_cost()
                    return
                await self._case_ended.wait()
                continue
            index = queue.popleft()
            self._at_work[index] = 0.0
            self._show_soon()
            try:
                await self._run_case(index, self.entries[index])
            finally:
                del self._at_work[index]
                # Wakes all workers that wait for the budget; later ones wait for the next case.
                self._case_ended.set()
                self._case_ended = asyncio.Event()
            self._check_limits()
            self._show_soon()

    async def _run_case(self, index: int, entry: CaseState) -> None:
        """Ask a case, unless it has an answer, and score the answer."""
        before, judges = entry.cost_usd or 0.0, _CostCounter(self._judges)
        record = None if entry.status == "ok" else await self._ask_case(index, entry)
        self._unscored += record is not None and entry.status == "ok" and bool(self._scorers)
        if entry.status == "ok":
            await self._score(index, entry, record, judges)
        self._judged_usd += judges.cost_usd
        spent = (entry.cost_usd or 0.0) - before + judges.cost_usd
        if entry.cost_usd is not None or judges.cost_usd:
            self._add_cost(entry, spent)

    def _add_cost(self, entry: CaseState, cost_usd: float) -> None:
        total, n = self._cost_sums.get(entry.planned.variant.name, (0.0, 0))
        self._cost_sums[entry.planned.variant.name] = total + cost_usd, n + 1

    def _may_begin(self, entry: CaseState) -> bool:
        """True if the remaining budget is enough for this case, too.

        The cost of a variant is unknown until one of its cases has ended, so the first one runs
        alone: in parallel, every case of an expensive variant could pass the budget.
        """
        most = self._how.max_cost_usd
        if most is None:
            return True
        left = most - self._spent_usd - self._judged_usd
        mean = self._mean_cost(entry)
        if mean is None:
            return left > 0 and not self._at_work
        for index, cost in self._at_work.items():
            left -= max(cost, self._mean_cost(self.entries[index]) or 0.0)
        return left > 0 and mean <= left

    def _mean_cost(self, entry: CaseState) -> float | None:
        total, n = self._cost_sums.get(entry.planned.variant.name, (0.0, 0))
        return total / n if n else None

    async def _ask_case(self, index: int, entry: CaseState) -> RunRecord | None:
        def on_event(event: Event) -> None:
            if isinstance(event, TurnFinished):
                self._at_work[index] += event.turn.cost_usd or 0.0
                self._check_limits()

        before, entry_cost, record = entry.status, entry.cost_usd or 0.0, None
        try:
            record = await self._executor.run(self._request_of(entry), on_event)
        # Without its store no further case could be kept, so the batch ends.
        except StoreError:
            raise
        except NoMoreRuns as error:
            self.end("Stopped", error.message)
        except NbagentError as error:
            entry.status, entry.why = "failed", f"{error.code}: {error.message}"
        else:
            entry.add_run(record)
        self._spent_usd += (entry.cost_usd or 0.0) - entry_cost
        # Its cost is in `_spent_usd` now, although the case is still scored.
        self._at_work[index] = 0.0
        self._counts.subtract([before])
        self._counts.update([entry.status])
        self._done += entry.status in ("ok", "ended", "failed")
        self._failed += entry.status == "failed"
        return record

    def _request_of(self, entry: CaseState) -> RunRequest:
        """Build the request of a case: a first one, or one that continues its last run."""
        planned, most = entry.planned, self._how.max_cost_usd
        spent = self._spent_usd + self._judged_usd
        # A limit must be above 0. This one ends the run at its first turn.
        left = None if most is None else max(most - spent, 1e-9)
        ask = request_of_case(planned, left_usd=left, session=self._session)
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
        how, failed = self._how, self._failed
        if how.max_cost_usd is not None:
            spent = self._spent_usd + sum(self._at_work.values()) + self._judged_usd
            if spent >= how.max_cost_usd and self.state == "Running":
                self._end_by_cost()
                # Running turns are paid already, so they may end.
                self._executor.stop(after_turn=True)
        if how.max_failed is not None:
            # 1.0 is a share, 1 is a number of cases.
            is_share = isinstance(how.max_failed, float) and how.max_failed <= 1
            most = how.max_failed * (len(self.entries) if is_share else 1)
            if failed > most:
                why = f"{pluralize(failed, 'case')} failed (max_failed={how.max_failed:g})"
                self.end("Stopped", why)
        # The store left the disk: further runs would be lost with the kernel.
        if self._store.warning and self._store.path is None and not self._was_in_memory:
            self.end("Stopped", self._store.warning)

    # Scores

    def _read_scores(self) -> None:
        """Read all existing scores at once, and find the missing ones. Any thread.

        Raises:
            UsageError: a person's label has the name and version of a scorer; it would be replaced.
        """
        done = [entry.run_id for entry in self.entries if entry.status == "ok"]
        now = {scorer.name: scorer.version for scorer in self._scorers}
        scores = scores_of(self._store, done)
        for score in scores:
            self._earlier_scores.setdefault(score.run_id, []).append(score)
            if score.row is None and now.get(scorer_name(score)) == score.version:
                raise UsageError(
                    f"run {score.run_id[:8]} has the score {score.scorer!r} by {score.by!r}, which "
                    "would be lost; give the scorer another name, or a higher version"
                )
        versions = versions_of(scores, now)
        for score in scores:
            if score.version == versions[scorer_name(score)]:
                self._note_error(score)
        for index, entry in enumerate(self.entries):
            entry.scores = numeric_scores(
                current_scores(self._earlier_scores.get(entry.run_id, ()), versions)
            )
            if entry.status == "ok" and self._scorers:
                marks = fingerprints_of(entry.planned.row, entry.planned.row)
                if self._missing_scorers(entry, marks):
                    self._fingerprints[index] = marks

    def _note_error(self, score: ScoreRecord) -> None:
        if score.error is not None:
            self._errors.setdefault(scorer_name(score), {})[score.run_id] = score.error
        else:
            self._errors.get(scorer_name(score), {}).pop(score.run_id, None)

    def _notes(self) -> tuple[str, ...]:
        """Return the notes of the batch, and a summary of the errors of scorers."""
        failed = [(name, [*errors.values()]) for name, errors in self._errors.items() if errors]
        scorer_notes = tuple(
            f"{name} failed on {pluralize(len(errors), 'answer')}: {errors[0]}"
            for name, errors in failed[:_MAX_NOTES]
        )
        own = self._executor.notes() if isinstance(self._executor, SentTogether) else ()
        return (*self._batch_notes, *own, *scorer_notes)

    def _missing_scorers(self, entry: CaseState, marks: dict[str, str]) -> list[Scorer]:
        scores = self._earlier_scores.get(entry.run_id, ())
        return [
            scorer
            for scorer in self._scorers
            if not is_scored(
                scores, scorer.name, scorer.version, {**marks, _CODE_COLUMN: scorer.code}
            )
        ]

    async def _score(
        self, index: int, entry: CaseState, record: RunRecord | None, judges: Executor
    ) -> None:
        """Score an answer with the scorers that have not scored it yet."""
        marks = self._fingerprints.get(index) or fingerprints_of(
            entry.planned.row, entry.planned.row
        )
        missing = self._missing_scorers(entry, marks)
        if not missing or self._is_stopped:
            return
        try:
            record = record or await asyncio.to_thread(self._store.load, entry.run_id)
        except UsageError:  # the run was deleted (forget) meanwhile
            self._unscored -= 1
            self._counts.subtract([entry.status])
            entry.status, entry.run_id = "missing", ""
            self._counts.update([entry.status])
            return
        run = Run(record, self._store)
        at = ScoringContext(
            executor=judges,
            case=entry.planned.case,
            template=entry.planned.variant.template.text,
        )
        new_scores: list[ScoreRecord] = []
        for scorer in missing:
            if not self._is_stopped:
                row_marks = {"row": {**marks, _CODE_COLUMN: scorer.code}}
                records = await scorer.records(entry.planned.row, run, at)
                new_scores += [score.model_copy(update=row_marks) for score in records]
        if self._is_stopped:  # a scorer that the stop interrupted has not failed
            new_scores = [score for score in new_scores if score.error is None]
        else:
            self._unscored -= 1
        for score in new_scores:
            self._note_error(score)
        save_scores(self._store, new_scores)
        now = {scorer.name: scorer.version for scorer in self._scorers}
        entry.scores = numeric_scores(
            current_scores([*self._earlier_scores.pop(entry.run_id, ()), *new_scores], now)
        )

    # Progress

    def _show_soon(self) -> None:
        if not self._is_shown_soon:
            self._is_shown_soon = True
            asyncio.get_running_loop().call_later(_SHOW_INTERVAL_S, self._show_now)

    def _show_now(self) -> None:
        self._is_shown_soon = False
        if self._ended_s is None:
            self._show(self.progress())

    def progress(self) -> BatchProgress:
        """Return the progress so far. Any thread."""
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
            judge_cost_usd=self._judged_usd,
            elapsed_s=elapsed_s,
            per_s=per_s,
            left_s=left / per_s if is_running else None,
            started_at=self._started_at,
            failures=failures_of(entries),
            notes=self._notes(),
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
