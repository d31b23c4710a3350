"""One go of a batch: asks what is missing, scores what is there, and knows when to end.

Lives on the engine thread. Where a run is made is its executor's to say; what the cases are was
decided before.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from nbagent.contracts.canonical import utc_now
from nbagent.contracts.errors import NbagentError, StoreError, UsageError
from nbagent.contracts.events import Event, TurnFinished
from nbagent.contracts.records import RunRecord, ScoreRecord
from nbagent.lab.case_state import (
    Entry,
    counting,
    failures_of,
    is_scored,
    means,
    root_of,
    summaries_of,
    versions_of,
)
from nbagent.lab.local import Executor, NoMoreRuns
from nbagent.lab.plan import How, ask_of, marks_of
from nbagent.lab.scorers import Judging, Scorer
from nbagent.run import Run
from nbagent.session.active import OnEvent
from nbagent.session.request import RunRequest
from nbagent.store.batches import save_scores, scores_of
from nbagent.store.writer import Store
from nbagent.view.batch import BatchProgress, BatchState
from nbagent.view.words import pluralize

_SHOWN_S = 0.25
_CODE = "()"
"""Among what a scorer saw of a row: what it does itself."""
_MOST_NOTES = 3


class _Counted:
    """The judges of one case: counts what they cost."""

    def __init__(self, inner: Executor) -> None:
        self._inner, self.cost_usd = inner, 0.0
        self.stop, self.close = inner.stop, inner.close

    async def run(self, ask: RunRequest, on_event: OnEvent | None = None) -> RunRecord:
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
        models: Sequence[str],
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
            models: the ids of those it asks.
            show: is given the progress a few times a second, and at the end.
        """
        self.name, self.entries = name, entries
        self.state: BatchState = "Ready"
        self.why = ""
        """Why it ended before all cases were done."""
        self._executor, self._judges, self._store = executor, judges, store
        self._judged_usd = judged_usd
        self._scorers, self._how, self._asks, self._session = scorers, how, asks, session
        self._show, self._models = show, tuple(models)
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
        self._marks: dict[int, dict[str, str]] = {}
        """By place of the case, what its scorers see of the row."""
        self._errors: dict[str, dict[str, str]] = {}
        """By scorer and run, why there is no score."""
        self._unscored = 0
        self._one_ended = asyncio.Event()
        self._costs: dict[str, tuple[float, int]] = {}
        """By variant, what its cases cost with their judges (USD), and how many there were."""
        is_free = all(scorer.by == "function" for scorer in scorers)
        for entry in entries if asks and is_free else ():
            if entry.cost_usd is not None:
                self._add_cost(entry, entry.cost_usd)

    async def run(self) -> None:
        """Work until all is done or an end is asked for.

        Raises:
            NbagentError: the store failed, or nbagent did; what was done is kept.
        """
        try:
            await asyncio.to_thread(self._look_at_scores)
            self._unscored = len(self._marks)
            queue = deque(
                place
                for place, entry in enumerate(self.entries)
                if (self._asks and entry.standing not in ("ok", "ended")) or place in self._marks
            )
            n = min(self._how.concurrency, len(queue))
            tasks = [asyncio.ensure_future(self._worker(queue)) for _ in range(n)]
            await _all_or_first_error(tasks, self.stop)
        except NbagentError as error:
            self.state, self.why = "Stopped", error.message
            raise
        finally:
            self._ended_s = time.monotonic() - self._began
            if not (self._counts["missing"] or self._counts["unfinished"] or self._unscored):
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
        if self.state in ("Ready", "Running", "Paused"):
            self.state, self.why = state, why

    # Cases

    async def _worker(self, queue: deque[int]) -> None:
        while queue and self.state == "Running":
            if not self._may_begin(self.entries[queue[0]]):
                if not self._at_work:
                    self._end_by_cost()
                    return
                await self._one_ended.wait()
                continue
            place = queue.popleft()
            self._at_work[place] = 0.0
            self._show_soon()
            try:
                await self._case(place, self.entries[place])
            finally:
                del self._at_work[place]
                self._one_ended.set()
                self._one_ended = asyncio.Event()
            self._look_at_limits()
            self._show_soon()

    async def _case(self, place: int, entry: Entry) -> None:
        """Ask it, if that is due, and score its answer."""
        before, judges = entry.cost_usd or 0.0, _Counted(self._judges)
        record = None if entry.standing == "ok" else await self._ask(place, entry)
        self._unscored += record is not None and entry.standing == "ok" and bool(self._scorers)
        if entry.standing == "ok":
            await self._score(place, entry, record, judges)
        self._judged_usd += judges.cost_usd
        spent = (entry.cost_usd or 0.0) - before + judges.cost_usd
        if entry.cost_usd is not None or judges.cost_usd:
            self._add_cost(entry, spent)

    def _add_cost(self, entry: Entry, cost_usd: float) -> None:
        total, n = self._costs.get(entry.planned.variant.name, (0.0, 0))
        self._costs[entry.planned.variant.name] = total + cost_usd, n + 1

    def _may_begin(self, entry: Entry) -> bool:
        """Whether what is left of the budget is enough for this case, too.

        What a variant costs is known once a case of it has ended: the first one goes alone.
        """
        most = self._how.max_cost_usd
        if most is None:
            return True
        left = most - self._spent_usd - self._judged_usd
        mean = self._mean(entry)
        if mean is None:
            return left > 0 and not self._at_work
        for place, cost in self._at_work.items():
            left -= max(cost, self._mean(self.entries[place]) or 0.0)
        return left > 0 and mean <= left

    def _mean(self, entry: Entry) -> float | None:
        total, n = self._costs.get(entry.planned.variant.name, (0.0, 0))
        return total / n if n else None

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

    def _ask_of(self, entry: Entry) -> RunRequest:
        """What asks a case: anew, or from where its last run ended."""
        planned, most = entry.planned, self._how.max_cost_usd
        spent = self._spent_usd + self._judged_usd
        left = None if most is None else max(most - spent, 1e-9)
        ask = ask_of(planned, left_usd=left, session=self._session)
        if not entry.run_id:
            return ask
        ask = replace(ask, prompt=None, parts=(), kind="resume", parent_id=entry.run_id)
        if not entry.why.startswith("E_DENIED"):
            return ask
        turn = self._store.load(entry.run_id).turns[-1]
        return replace(ask, kind="fork", fork_turn=turn.id)

    def _end_by_cost(self) -> None:
        most = self._how.max_cost_usd or 0.0
        self.end("Stopped", f"max_cost_usd={most:g} is used up; raise it to go on")

    def _look_at_limits(self) -> None:
        how, failed = self._how, self._failed
        if how.max_cost_usd is not None:
            spent = self._spent_usd + sum(self._at_work.values()) + self._judged_usd
            if spent >= how.max_cost_usd and self.state == "Running":
                self._end_by_cost()
                # The answers that are on their way are paid.
                self._executor.stop(after_turn=True)
        if how.max_failed is not None:
            is_share = isinstance(how.max_failed, float) and how.max_failed <= 1
            most = how.max_failed * (len(self.entries) if is_share else 1)
            if failed > most:
                why = f"{pluralize(failed, 'case')} failed (max_failed={how.max_failed:g})"
                self.end("Stopped", why)
        if self._store.warning and self._store.path is None and not self._was_in_memory:
            self.end("Stopped", self._store.warning)

    # Scores

    def _look_at_scores(self) -> None:
        """Read what is scored already, all at once, and find what is not. In any thread.

        Raises:
            UsageError: a person's label has the name and version of a scorer.
        """
        done = [entry.run_id for entry in self.entries if entry.standing == "ok"]
        now = {scorer.name: scorer.version for scorer in self._scorers}
        held = scores_of(self._store, done)
        for score in held:
            self._held.setdefault(score.run_id, []).append(score)
            if score.row is None and now.get(root_of(score)) == score.version:
                raise UsageError(
                    f"run {score.run_id[:8]} has the score {score.scorer!r} by {score.by!r}, which "
                    "would be lost; give the scorer another name, or a higher version"
                )
        versions = versions_of(held, now)
        for score in held:
            if score.version == versions[root_of(score)]:
                self._note_error(score)
        for place, entry in enumerate(self.entries):
            entry.scores = means(counting(self._held.get(entry.run_id, ()), versions))
            if entry.standing == "ok" and self._scorers:
                marks = marks_of(entry.planned.row, entry.planned.row)
                if self._missing(entry, marks):
                    self._marks[place] = marks

    def _note_error(self, score: ScoreRecord) -> None:
        if score.error is not None:
            self._errors.setdefault(root_of(score), {})[score.run_id] = score.error
        else:
            self._errors.get(root_of(score), {}).pop(score.run_id, None)

    def _notes(self) -> tuple[str, ...]:
        """What scorers could not score."""
        failed = [(name, [*errors.values()]) for name, errors in self._errors.items() if errors]
        return tuple(
            f"{name} failed on {pluralize(len(errors), 'answer')}: {errors[0]}"
            for name, errors in failed[:_MOST_NOTES]
        )

    def _missing(self, entry: Entry, marks: dict[str, str]) -> list[Scorer]:
        held = self._held.get(entry.run_id, ())
        return [
            it
            for it in self._scorers
            if not is_scored(held, it.name, it.version, {**marks, _CODE: it.code})
        ]

    async def _score(
        self, place: int, entry: Entry, record: RunRecord | None, judges: Executor
    ) -> None:
        """Score an answer with what has not scored it yet."""
        marks = self._marks.get(place) or marks_of(entry.planned.row, entry.planned.row)
        missing = self._missing(entry, marks)
        if not missing or self._is_stopped:
            return
        try:
            record = record or await asyncio.to_thread(self._store.load, entry.run_id)
        except UsageError:  # it was forgotten
            self._unscored -= 1
            self._counts.subtract([entry.standing])
            entry.standing, entry.run_id = "missing", ""
            self._counts.update([entry.standing])
            return
        run = Run(record, self._store)
        at = Judging(executor=judges, case=entry.planned.case)
        found: list[ScoreRecord] = []
        for scorer in missing:
            if not self._is_stopped:
                seen = {"row": {**marks, _CODE: scorer.code}}
                said = await scorer.records(entry.planned.row, run, at)
                found += [it.model_copy(update=seen) for it in said]
        if self._is_stopped:  # what was broken off is no error of its own
            found = [it for it in found if it.error is None]
        else:
            self._unscored -= 1
        for score in found:
            self._note_error(score)
        save_scores(self._store, found)
        now = {scorer.name: scorer.version for scorer in self._scorers}
        entry.scores = means(counting([*self._held.pop(entry.run_id, ()), *found], now))

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
            judge_cost_usd=self._judged_usd,
            elapsed_s=elapsed_s,
            per_s=per_s,
            left_s=left / per_s if is_running else None,
            started_at=self._started_at,
            failures=failures_of(entries),
            notes=self._notes(),
            models=self._models,
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
