"""A batch: the handle that a person holds of many runs; live, and what they tell as frames.

Thin: what its cases are is in `cases`, how they are asked in `driver`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbagent import runtime
from nbagent.contracts.approval import CallPreview
from nbagent.contracts.canonical import sha_of
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.records import toolset_sha
from nbagent.lab import statistics
from nbagent.lab.case_state import Entry, note_earlier
from nbagent.lab.frames import Ahead, cells_of_batch, estimate, frame_of_batch
from nbagent.lab.local import Executor, Local, Unattended
from nbagent.lab.plan import (
    How,
    PlannedCase,
    Variant,
    ask_of,
    cases_of,
    columns_used,
    deciding,
    key_text,
    option_error,
    refuse_other_data,
    row_shas,
    table_of,
    variants_of,
)
from nbagent.lab.runner import Drive
from nbagent.lab.scorers import as_scorers
from nbagent.run import Run, open_run
from nbagent.session.dry_run import plan_first_request
from nbagent.session.frontend import BatchView, frontend
from nbagent.session.request import RunRequest
from nbagent.session.stores import current_store
from nbagent.store.batches import (
    JUDGE_SUFFIX,
    CaseRun,
    batch_doc,
    claim_batch,
    n_runs,
    release_batch,
    runs_of_batch,
)
from nbagent.store.writer import Store
from nbagent.view.batch import BatchProgress, batch_text
from nbagent.view.listing import Listing
from nbagent.view.words import pluralize

if TYPE_CHECKING:
    from pandas import DataFrame

_log = logging.getLogger("nbagent")
_at_work: dict[tuple[Store, str], Batch] = {}
_lock = threading.Lock()


class Batch:
    """Many runs of one agent: each row of a table, in each variant, so many times.

    It is at work in the background; `wait()` waits and runs synchronous tools in this thread.
    """

    def __init__(self, base: RunRequest, data: Any, template: Any, how: How) -> None:
        """Plan all cases, and find what is done of them already. Sends and keeps nothing.

        Args:
            base: what all runs have in common.
            data: the DataFrame.
            template: the prompt, unless `how` varies it.
            how: see `Agent.map`.

        Raises:
            UsageError: something cannot be done as asked.
        """
        # Nobody watches the answers come.
        if "stream" not in base.options.explicit:
            base = replace(base, options=base.options.with_changes(stream=False))
        self._store, self._here = current_store(), Unattended(frontend())
        table = self._table = table_of(data, how.key)
        self._how, names = how, how.names
        self._scorers = as_scorers(how.score)
        self._executor = _executor_of(how.executor, self._store, self._here)
        self._ahead = [
            self._look_ahead(one, names) for one in variants_of(base, template, how.vary)
        ]
        self._is_quiet = bool(base.options.quiet)
        ready = [one.variant for one in self._ahead]
        used = columns_used(ready, table.columns)
        rows = row_shas(table, used)
        self.name = how.name or _name_of(rows, ready, how.repeat)
        """What it goes on by: the same name and data."""
        before = batch_doc(self._store, self.name) or {}
        known: dict[str, str] = before["rows"] if before.get("columns") == used else {}
        if how.stale is None:
            refuse_other_data(self.name, known, rows)
        self._doc = {"columns": used, "rows": {**known, **rows}}
        self._planned = cases_of(table, ready, how.repeat, self.name, names)
        self._was_on_disk = self._store.path is not None
        self._note()
        self._courier: runtime.RunTask | None = None
        self._view: BatchView | None = None
        self._waits = 0
        """How many threads wait for its end."""
        self._drive = self._new_drive(asks=True)

    def _look_ahead(self, variant: Variant, names: Mapping[str, Any]) -> Ahead:
        """Check that a variant can be asked, and what it would send."""
        first = replace(self._table, keys=self._table.keys[:1], rows=self._table.rows[:1])
        ((planned),) = cases_of(first, [variant], 1, "", names)
        ask = ask_of(planned, left_usd=self._how.max_cost_usd, session="batch")
        # Elsewhere there may be a key that is not here.
        ask = replace(ask, dry_run=not isinstance(self._executor, Local))
        try:
            if check := getattr(self._executor, "check", None):
                check(ask)
            active, request, wire = plan_first_request(ask, store=self._store, here=self._here)
        except NbagentError as error:
            raise option_error(variant, error) from None
        chosen, rules = active.prepared.chosen, active.prepared.rules
        params = request.model_dump(
            mode="json", exclude={"messages", "tools", "system_prompt", "model"}, exclude_none=True
        )
        identity = sha_of(
            [
                *(chosen.model_id, chosen.base_url, request.system_prompt),
                *(toolset_sha(tuple(request.tools)), params, deciding(variant.ask.options)),
            ]
        )
        unasked = [
            spec.name
            for spec in request.tools
            if variant.ask.on_approval is None
            and rules.says(spec, CallPreview(ruling=spec.traits.ruling)).ruling == "ask"
        ]
        return Ahead(
            replace(variant, identity=identity, max_turns=active.plan.run.limits.max_turns),
            active,
            len(wire.body),
            len(planned.rendered.prompt),
            tuple(unasked),
        )

    def _note(self) -> None:
        """Find what is done of it already."""
        self._seen = n_runs(self._store, self.name)
        self._entries = [Entry(one) for one in self._planned]
        note_earlier(self._entries, self._earlier(), keep=self._how.stale == "keep")
        judges = runs_of_batch(self._store, self.name + JUDGE_SUFFIX)
        self._judged_usd = sum(one.run.cost_usd or 0.0 for one in judges)

    def _earlier(self) -> list[CaseRun]:
        """The runs of this name; of those that may wait for an approval with their turns."""
        found = runs_of_batch(self._store, self.name)
        if any(one.run.phase == "Running" for one in found):
            raise UsageError(
                f"batch {self.name!r} is at work, here or in another process; wait for it, or stop "
                "it there"
            )
        return [
            replace(one, run=self._store.load(one.run.id))
            if (one.run.phase, one.run.stop_reason) == ("WaitingUser", "stopped")
            else one
            for one in found
        ]

    def _new_drive(self, *, asks: bool) -> Drive:
        return Drive(
            self.name,
            self._entries,
            executor=self._executor,
            judges=Local(self._store, self._here),
            judged_usd=self._judged_usd,
            store=self._store,
            scorers=self._scorers,
            how=self._how,
            asks=asks,
            session=self.name,
            models=list(dict.fromkeys(it.active.plan.run.model for it in self._ahead)),
            show=self._show,
        )

    # At work

    def start(self, *, asks: bool = True) -> Batch:
        """Begin with what is missing, and return at once.

        Raises:
            UsageError: it is at work, or its store failed.
        """
        here = frontend()
        runtime.check_interrupted(here.execution_id())
        courier = runtime.RunTask()
        # Within, an interrupt is a stop: nothing is left at work that nobody holds.
        with runtime.InterruptGuard(courier.cancel):
            self._claim(courier)
            try:
                if n_runs(self._store, self.name) != self._seen:
                    self._note()  # it went on, here or elsewhere
                drive = self._drive = self._new_drive(asks=asks)
                drive.state = "Running"
                self._view = None if self._is_quiet else _opened(drive.progress(), self)
                loop = runtime.engine_loop()
                courier.cancel.on_set(lambda: loop.call_soon_threadsafe(drive.stop))
                courier.start(lambda: self._go(drive))
            except BaseException:
                self._release()
                raise
            if not runtime.inside_a_tool():
                # Also where a cell is interrupted before it could name it.
                here.bind_variable(self, "_batch")
        return self

    def _claim(self, courier: runtime.RunTask) -> None:
        """Take the batch for this go, in this process and from all others."""
        if self._was_on_disk and self._store.path is None:
            raise UsageError(f"{self._store.warning} Restart the kernel to go on.")
        with _lock:
            self._refuse_at_work()
            claim_batch(self._store, self.name, self._doc)
            self._courier, _at_work[self._store, self.name] = courier, self

    def _release(self) -> None:
        with suppress(NbagentError):  # what broke the store is raised already
            release_batch(self._store, self.name)
        _at_work.pop((self._store, self.name), None)

    def _refuse_at_work(self) -> None:
        if any((it._store, it.name) == (self._store, self.name) for it in at_work()):
            raise UsageError(f"batch {self.name!r} is at work; wait() for it, or stop() it")

    @property
    def is_at_work(self) -> bool:
        """Whether it is asking or scoring now."""
        courier = self._courier
        return courier is not None and not (courier.future.done() or courier.is_lost)

    async def _go(self, drive: Drive) -> None:
        try:
            await drive.run()
        finally:
            self._release()
            self._show(drive.progress(), is_end=True)

    def _show(self, progress: BatchProgress, *, is_end: bool = False) -> None:
        view = self._view
        try:
            if view is not None and is_end:
                view.close(progress)
            elif view is not None and (self._waits or not view.only_while_waited):
                view.update(progress)
        except Exception:
            # A batch does not depend on being shown.
            self._view = None
            _log.debug("the view of the batch broke", exc_info=True)

    def wait(self, timeout: float | None = None) -> Batch:
        """Wait for its end; a stop or an interrupt returns it with what is there.

        Raises:
            TimeoutError: `timeout` seconds are over; it goes on.
            NbagentError: the store failed.
        """
        if self._courier is None:
            self.start()
        here, courier = frontend(), self._courier
        assert courier is not None
        self._waits += 1
        try:
            runtime.wait(courier, pump=here.pump(), timeout=timeout, execution=here.execution_id())
        finally:
            self._waits -= 1
        return self

    async def await_end(self) -> Batch:
        """`wait()` for `await`. Leaving it before the end stops the batch."""
        if self._courier is None:
            self.start()
        here, courier = frontend(), self._courier
        assert courier is not None
        self._waits += 1
        try:
            await runtime.wait_async(courier, pump=here.pump(), execution=here.execution_id())
        finally:
            self._waits -= 1
        return self

    def stop(self, *, after_rows: bool = False) -> None:
        """Stop at once, or pause when the runs at work have ended. Any thread.

        Nothing is lost: `resume()`, or the same call again, goes on.
        """
        if self._courier is None or self._courier.future.done():
            return
        if after_rows:
            runtime.engine_loop().call_soon_threadsafe(self._drive.end, "Paused", "paused")
        else:
            self._courier.stop()

    def resume(self) -> Batch:
        """Go on with what is missing, and wait."""
        return self.start().wait()

    def score(self, *scorers: Any) -> Batch:
        """Score the answers that are there; no model but a judge's is asked.

        What a scorer of this name and version has scored stays.
        """
        self._refuse_at_work()
        given, before = as_scorers(scorers), self._scorers
        names = {one.name for one in given}
        self._scorers = (*(one for one in before if one.name not in names), *given)
        try:
            return self.start(asks=False).wait()
        except NbagentError:
            self._scorers = before
            raise

    @property
    def progress(self) -> BatchProgress:
        """How far it is."""
        return self._drive.progress()

    # What came of it

    @property
    def _versions(self) -> dict[str, int]:
        return {scorer.name: scorer.version for scorer in self._scorers}

    def open_run(self, key: Any, *, attempt: int = 1, **variant: str) -> Run:
        """The run that answered a row, in the variant of these labels.

        Raises:
            UsageError: there is none (yet), or several.
        """
        found = [entry for entry in self._entries if _fits(entry.planned, key, attempt, variant)]
        if len(found) != 1 or not found[0].run_id:
            said = "is no run" if len(found) < 2 else "are runs of several variants"
            raise UsageError(
                f"there {said} of row {key!r}, attempt {attempt}"
                f"{''.join(f', {axis}={label}' for axis, label in variant.items())}; the axes are "
                f"{', '.join(self.axes) or 'none'}"
            )
        return open_run(found[0].run_id)

    @property
    def axes(self) -> dict[str, list[str]]:
        """The labels of each axis."""
        labels = [one.variant.labels for one in self._ahead]
        return {axis: [*dict.fromkeys(one[axis] for one in labels)] for axis in labels[0]}

    def frame(self) -> DataFrame:
        """One row a case: the table's columns, the variant, the run, its answer and scores.

        `run_id`, `ok`, `stop_reason`, `error`, `text`, `turns`, `total_tokens`, `cost_usd` (of all
        runs of the case, USD), `duration_ms`, `output_…` for the fields of an answer of a type,
        `score_…`. A column of the table that has one of these names is called `row_…`.
        """
        return frame_of_batch(self._store, self._table, self._entries, self._versions)

    def cells(self, score: str | None = None) -> DataFrame:
        """One row a case with one score: `row_key`, axes, `attempt`, `run_id`, `state`, `value`,
        `cost_usd`, `text`. `state` is `scored`, `failed` or `missing`; `cost_usd` is what the
        answers cost when they were asked, also of those that a record gave."""
        return cells_of_batch(self._store, self._entries, score, [*self.axes], self._versions)

    def compare(
        self,
        score: str | None = None,
        over: str | None = None,
        by: str | Sequence[str] | None = None,
        baseline: str | None = None,
        failed: statistics.Failed = "leave out",
    ) -> DataFrame:
        """The mean score of each variant with its interval, and the differences row by row.

        A higher score is better. Intervals are bootstrapped over rows, as wide as few rows ask for.

        Args:
            score: the scorer; may be left out where there is one.
            over: the axis whose labels are compared; else the first with several labels.
            by: axes that are looked at one by one; else all others.
            baseline: the label that the others are compared with; else the first.
            failed: what a case without an answer counts: nothing, or 0. Where a scorer failed there
                is no score: it is missing.

        Returns:
            One row for each label: `mean`, `lo`, `hi` (95 %), `diff`, `diff_lo`, `diff_hi` to the
            baseline, `verdict`, `pairs`, `n`, `missing`, `failed`, `cost_usd`, `cost_per_right`.

        Raises:
            UsageError: there is no such score, axis or label, or the scores are words.
        """
        return statistics.compare(
            self.cells(score),
            [*self.axes],
            over=over,
            by=by,
            baseline=None if baseline is None else str(baseline),
            failed=failed,
        )

    def diff(
        self,
        a: str,
        b: str,
        score: str | None = None,
        only: statistics.Flips = "changed",
        over: str | None = None,
    ) -> DataFrame:
        """The rows whose score differs between two labels, with both answers and runs."""
        return statistics.flips(self.cells(score), [*self.axes], a, b, only=only, over=over)

    def review(self, name: str = "review", *, scale: int = 5, seed: int = 0) -> None:
        """Let a person label the answers from 1 to `scale`, one by one, without the variant."""
        there = {one.run.id for one in runs_of_batch(self._store, self.name)}  # not forgotten
        cases = [
            (entry.planned.row, entry.run_id)
            for entry in self._entries
            if entry.standing == "ok" and entry.run_id in there
        ]
        # Late: a review loads what asks the person.
        from nbagent.lab.review import Review

        Review(cases, name=name, scale=scale, seed=seed, store=self._store).run()

    def dry_run(self) -> Listing:
        """How many requests, tokens and USD are to be expected, and which calls would ask."""
        has_judges = any(scorer.by != "function" for scorer in self._scorers)
        return estimate(self._store, self.name, self._entries, self._ahead, has_judges=has_judges)

    # How it shows itself

    def __len__(self) -> int:
        return len(self._entries)

    def __dir__(self) -> list[str]:
        """Public names only, as Tab offers them."""
        public = (name for name in super().__dir__() if name[:1] != "_" or name[:2] == "__")
        return [name for name in public if name != "await_end"]

    def __repr__(self) -> str:
        it = self.progress
        done = f"{it.ok + it.failed} of {pluralize(it.total, 'case')} done"
        return f"<Batch {self.name} {it.state}, {done}>"

    def __str__(self) -> str:
        return batch_text(self.progress)

    def _ipython_display_(self) -> None:
        if not frontend().show_batch(self.progress):
            print(self)


def at_work() -> list[Batch]:
    """The batches that are at work in this process."""
    return [batch for batch in [*_at_work.values()] if batch.is_at_work]


def _opened(progress: BatchProgress, batch: Batch) -> BatchView | None:
    try:
        return frontend().open_batch(progress, batch)
    except Exception:
        _log.debug("no view of the batch", exc_info=True)
        return None


def _executor_of(given: Any, store: Store, here: Unattended) -> Executor:
    if given is None:
        return Local(store, here)
    if type(given).__module__.partition(".")[0] == "distributed":
        # Late: distributed is an extra.
        from nbagent.lab.remote import OnDask

        return OnDask(given, store)
    raise UsageError(f"executor={given!r} is none; give a dask.distributed.Client")


def _name_of(rows: Mapping[str, str], variants: Sequence[Variant], repeat: int) -> str:
    """A name that the same call has again."""
    prompts = [one.template.text for one in variants]
    identities = [one.identity for one in variants]
    return f"batch-{sha_of([prompts, identities, repeat, [*rows.items()]])[:8]}"


def _fits(planned: PlannedCase, key: Any, attempt: int, variant: Mapping[str, str]) -> bool:
    case = planned.case
    labels = all(case.variant.get(axis) == str(label) for axis, label in variant.items())
    return case.row_key == key_text(key) and case.attempt == attempt and labels
