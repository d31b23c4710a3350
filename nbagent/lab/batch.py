"""Batch: the user's handle of many runs, live while they run, with results as frames.

Thin: the cases are in `plan`, their states in `case_state`, the work in `runner`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from nbagent import runtime
from nbagent.contracts.approval import CallPreview
from nbagent.contracts.canonical import json_object, sha_of
from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.records import toolset_sha
from nbagent.lab.batch_document import map_doc, plan_doc
from nbagent.lab.case_pages import BatchCases, page_options
from nbagent.lab.case_state import CaseState, assign_earlier_runs
from nbagent.lab.frames import Preflight, estimate, read_results
from nbagent.lab.local import Executor, Local, Unattended
from nbagent.lab.plan import (
    MapOptions,
    PlannedCase,
    Variant,
    cache_key_options,
    cases_of,
    columns_used,
    option_error,
    refuse_other_data,
    request_of_case,
    row_shas,
    table_of,
    variants_of,
)
from nbagent.lab.preferences import PreferenceScorer, pairs_of, preference_frame
from nbagent.lab.results import axes_of
from nbagent.lab.runner import Runner
from nbagent.lab.scorers import as_scorers
from nbagent.lab.stored_batch import BatchInStore
from nbagent.run import public_names
from nbagent.session.dry_run import plan_first_request
from nbagent.session.frontend import BatchView, frontend
from nbagent.session.project_trust import settings_notices
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
from nbagent.store.provider_batches import waiting_notes
from nbagent.store.saved_batches import batch_reference
from nbagent.store.writer import Store
from nbagent.view.batch import BatchProgress
from nbagent.view.listing import Listing
from nbagent.view.text_format import pluralize

if TYPE_CHECKING:
    from pandas import DataFrame

_log = logging.getLogger("nbagent")
# By store too: another NBAGENT_HOME may have a batch of the same name.
_active_batches: dict[tuple[Store, str], Batch] = {}
_lock = threading.Lock()
PROVIDER_BATCH = "provider-batch"
"""Executor that sends all cases to the batch API of the model's provider."""
_MAX_EMPTY = 100
"""First rows among which one with a prompt is looked for, to check a variant."""


class Batch(BatchInStore):
    """Many runs of one agent: each row of a table in each variant, `repeat` times.

    It works in the background; `wait()` waits and runs synchronous tools in this thread.
    """

    def __init__(self, base: RunRequest, data: Any, template: Any, how: MapOptions) -> None:
        """Plan all cases, and find those that are done already. Sends and stores nothing.

        Args:
            base: request that all runs share.
            data: the DataFrame.
            template: the prompt, unless `how` varies it.
            how: see `Agent.map`.

        Raises:
            UsageError: something cannot be done as asked.
        """
        # Nobody watches the single answers, so they need not be streamed.
        if "stream" not in base.options.explicit:
            base = replace(base, options=base.options.with_changes(stream=False))
        self._store, self._frontend = current_store(), Unattended(frontend())
        table = self._table = table_of(data, how.key)
        self._map_options, names = how, how.names
        self._scorers = as_scorers(how.score)
        for scorer in self._scorers:
            scorer.check(table.columns)
        self._executor = _executor_of(how, self._store, self._frontend)
        self._preflights = [
            self._check_variant(variant, names) for variant in variants_of(base, template, how.vary)
        ]
        self._is_quiet = bool(base.options.quiet)
        ready = [variant.variant for variant in self._preflights]
        used = columns_used(ready, table.columns)
        rows = row_shas(table, used)
        self.name = how.name or _name_of(rows, ready, how.repeat)
        """A later call with the same name and data continues this batch."""
        before = batch_doc(self._store, self.name) or {}
        # Hashes of other columns cannot be compared with these.
        is_same = before.get("columns") == used
        known: dict[str, str] = (json_object(before.get("rows")) or {}) if is_same else {}
        if how.stale is None:
            refuse_other_data(self.name, known, rows)
        # Rows of earlier calls stay, so that a later call with them is still checked.
        self._planned = cases_of(table, ready, how.repeat, self.name, names)
        plan = plan_doc(table, self._planned, map_doc(template, how))
        self._doc = {"columns": used, "rows": {**known, **rows}, **plan}
        # A store that falls back to memory would lose all further runs with the kernel.
        self._was_on_disk = self._store.path is not None
        templates = dict.fromkeys(text for variant in ready for text in variant.template.warnings)
        waiting = () if how.executor == PROVIDER_BATCH else waiting_notes(self._store, self.name)
        notices = [*settings_notices(report=True), *templates, *waiting]
        self._notes = [*map(frontend().advise, notices)]
        self._find_done()
        self._run_task: runtime.RunTask | None = None
        self._view: BatchView | None = None
        self._record: dict[str, Any] = {}
        """Its saved form while it works: its name; at its end all cases."""
        self._watchers: list[Callable[[], object]] = []
        """Called after each change, for pages over all cases."""
        self._n_waiting = 0
        """Number of threads that wait for its end."""
        self._runner = self._new_runner(asks=True)

    def _check_variant(self, variant: Variant, names: Mapping[str, Any]) -> Preflight:
        """Check that a variant can run, and plan its first request."""
        planned = self._first_case(variant, names)
        run_request = request_of_case(
            planned, left_usd=self._map_options.max_cost_usd, session="batch"
        )
        # A remote worker may have a key that is missing here.
        run_request = replace(run_request, dry_run=not isinstance(self._executor, Local))
        try:
            if check := getattr(self._executor, "check", None):
                check(run_request)
            active, chat_request, wire = plan_first_request(
                run_request, store=self._store, here=self._frontend
            )
        except NbagentError as error:
            raise option_error(variant, error) from None
        if set_price := getattr(self._executor, "set_price", None):
            set_price(active)
        resolved, rules = active.prepared.resolved, active.prepared.rules
        # Without the messages: the prompt is a part of each case's own hash.
        params = chat_request.model_dump(
            mode="json", exclude={"messages", "tools", "system_prompt", "model"}, exclude_none=True
        )
        identity = sha_of(
            [
                *(resolved.model_id, resolved.base_url, chat_request.system_prompt),
                *(
                    toolset_sha(tuple(chat_request.tools)),
                    params,
                    cache_key_options(variant.request.options),
                ),
            ]
        )
        unapproved = [
            spec.name
            for spec in chat_request.tools
            if variant.request.on_approval is None
            and rules.decide(spec, CallPreview(ruling=spec.traits.ruling)).ruling == "ask"
        ]
        return Preflight(
            replace(variant, identity=identity, max_turns=active.plan.run.limits.max_turns),
            active,
            len(wire.body),
            len(planned.rendered.prompt),
            tuple(unapproved),
        )

    def _first_case(self, variant: Variant, names: Mapping[str, Any]) -> PlannedCase:
        """Return a variant's first case with a prompt: one without stops no others."""
        table, cases = self._table, list[PlannedCase]()
        for n in range(min(_MAX_EMPTY, len(table.rows))):
            row = replace(table, keys=table.keys[n : n + 1], rows=table.rows[n : n + 1])
            cases += cases_of(row, [variant], 1, "", names)
            if cases[-1].rendered.prompt.strip():
                return cases[-1]
        return cases[0]

    def _find_done(self) -> None:
        """Find the cases that are done already."""
        self._n_known_runs = n_runs(self._store, self.name)
        self._entries = [CaseState(item) for item in self._planned]
        assign_earlier_runs(
            self._entries, self._earlier_runs(), keep=self._map_options.stale == "keep"
        )
        # The budget is for all starts together, so earlier judges count.
        judges = runs_of_batch(self._store, self.name + JUDGE_SUFFIX)
        self._judged_usd = sum(item.run.cost_usd or 0.0 for item in judges)

    def _earlier_runs(self) -> list[CaseRun]:
        """Return the batch's runs; those that may wait for an approval with their turns."""
        case_runs = runs_of_batch(self._store, self.name)
        if any(case_run.run.phase == "Running" for case_run in case_runs):
            raise UsageError(
                f"batch {self.name!r} is at work, here or in another process; wait for it, or stop "
                "it there"
            )
        return [
            replace(case_run, run=self._store.load(case_run.run.id))
            if (case_run.run.phase, case_run.run.stop_reason) == ("WaitingUser", "stopped")
            else case_run
            for case_run in case_runs
        ]

    def _new_runner(self, *, asks: bool) -> Runner:
        # Weak: a batch whose runner refers back to it would stay until a garbage collection.
        batch = weakref.ref(self)

        def show(progress: BatchProgress) -> None:
            if (alive := batch()) is not None:
                alive._show(progress)

        return Runner(
            self.name,
            self._entries,
            executor=self._executor,
            judges=Local(self._store, self._frontend),
            judged_usd=self._judged_usd,
            store=self._store,
            scorers=self._scorers,
            how=self._map_options,
            asks=asks,
            session=self.name,
            models=list(
                dict.fromkeys(preflight.active.plan.run.model for preflight in self._preflights)
            ),
            notes=self._notes,
            show=show,
        )

    # Work

    def start(self, *, asks: bool = True) -> Batch:
        """Start the missing cases, and return at once.

        Raises:
            UsageError: it is already running, or its store failed.
        """
        here = frontend()
        runtime.check_interrupted(here.execution_id())
        run_task = runtime.RunTask()
        # Inside, an interrupt stops the batch: no run may continue that has no handle yet.
        with runtime.InterruptGuard(run_task.cancel):
            self._claim(run_task)
            try:
                # After the claim: now no other process can add runs.
                if n_runs(self._store, self.name) != self._n_known_runs:
                    self._find_done()  # another handle or process continued it
                runner = self._runner = self._new_runner(asks=asks)
                runner.state, self._record = "Running", batch_reference(self.name)
                self._view = None if self._is_quiet else _open_view(runner.progress(), self)
                loop = runtime.engine_loop()
                # A stop comes from any thread; the runner belongs to the engine's.
                withdraw = run_task.cancel.on_set(lambda: loop.call_soon_threadsafe(runner.stop))
                run_task.start(lambda: self._run_to_end(runner, withdraw))
            except BaseException:
                self._release()
                raise
            if not runtime.inside_a_tool():
                # So that it has a name even if the cell is interrupted before its assignment.
                here.bind_variable(self, "_batch")
        return self

    def _claim(self, run_task: runtime.RunTask) -> None:
        """Claim the batch, in this process and in the store, so that no other process runs it."""
        if self._was_on_disk and self._store.path is None:
            raise UsageError(f"{self._store.warning} Restart the kernel to continue.")
        with _lock:
            self._refuse_at_work()
            claim_batch(self._store, self.name, self._doc)
            self._run_task, _active_batches[self._store, self.name] = run_task, self

    def _release(self) -> None:
        with suppress(NbagentError):  # the error of the store is raised already
            release_batch(self._store, self.name)
        _active_batches.pop((self._store, self.name), None)

    def _refuse_at_work(self) -> None:
        if any(
            (batch._store, batch.name) == (self._store, self.name) for batch in active_batches()
        ):
            raise UsageError(f"batch {self.name!r} is at work; wait() for it, or stop() it")

    @property
    def is_at_work(self) -> bool:
        """True while it asks or scores."""
        run_task = self._run_task
        return run_task is not None and not (run_task.future.done() or run_task.is_lost)

    async def _run_to_end(self, runner: Runner, withdraw_stop: Callable[[], None]) -> None:
        try:
            with runtime.rare_collections():
                await runner.run()
        finally:
            withdraw_stop()  # the token may live on, and would keep all cases alive
            self._release()
            await self._make_record()
            self._show(runner.progress(), is_end=True)

    async def _make_record(self) -> None:
        """Make what a saved notebook holds, in a thread: it reads all cases, other runs go on."""
        if self._view is None or not self._view.saves_record:
            return
        try:
            self._record = await asyncio.to_thread(super().notebook_record)
        except Exception:
            # Without its cases the saved picture still names the batch.
            _log.debug("no record of the batch for the notebook", exc_info=True)

    def notebook_record(self) -> dict[str, Any]:
        """Return the form in which a saved notebook holds the batch as it is now."""
        if self.is_at_work or self._runner.state == "Running":
            return self._record
        return super().notebook_record()

    def _show(self, progress: BatchProgress, *, is_end: bool = False) -> None:
        view = self._view
        for changed in self._watchers:
            changed()
        try:
            if view is not None and is_end:
                view.close(progress)
            elif view is not None and (self._n_waiting or not view.only_while_waited):
                view.update(progress)
        except Exception:
            # A broken view must not end the batch.
            self._view = None
            _log.debug("the view of the batch broke", exc_info=True)

    def wait(self, timeout: float | None = None) -> Batch:
        """Wait for its end; after a stop or an interrupt, return it with the results so far.

        Raises:
            TimeoutError: `timeout` seconds are over; the batch continues.
            NbagentError: the store failed.
        """
        if self._run_task is None:
            self.start()
        here, run_task = frontend(), self._run_task
        assert run_task is not None
        self._n_waiting += 1
        try:
            runtime.wait(run_task, pump=here.pump(), timeout=timeout, execution=here.execution_id())
        finally:
            self._n_waiting -= 1
        return self

    def _at_its_end(self) -> Batch:
        return self.wait() if self.is_at_work else self

    async def await_end(self) -> Batch:
        """`wait()` for `await`. Leaving it before the end stops the batch."""
        if self._run_task is None:
            self.start()
        here, run_task = frontend(), self._run_task
        assert run_task is not None
        self._n_waiting += 1
        try:
            await runtime.wait_async(run_task, pump=here.pump(), execution=here.execution_id())
        finally:
            self._n_waiting -= 1
        return self

    def stop(self, *, after_rows: bool = False) -> None:
        """Stop at once, or pause after the running cases (`after_rows`). Any thread.

        Nothing is lost: `resume()`, or the same call again, continues it. A batch at a provider
        goes on; `cancel()` ends it there.
        """
        if self._run_task is None or self._run_task.future.done():
            return
        if after_rows:
            runtime.engine_loop().call_soon_threadsafe(self._runner.end, "Paused", "paused")
        else:
            self._run_task.stop()

    def cancel(self) -> int:
        """Cancel at the provider what `executor="provider-batch"` sent and is not answered.

        `stop()` only leaves the wait. Answers that exist are collected by `resume()`.

        Returns:
            Number of provider batches that were cancelled.

        Raises:
            UsageError: the batch has no provider batches; `stop()` ends it.
            ModelError: the provider did not accept it.
        """
        cancel = getattr(self._executor, "cancel", None)
        if cancel is None:
            raise UsageError("this batch has no provider batches to cancel; batch.stop() ends it")
        coming = asyncio.run_coroutine_threadsafe(cancel(self.name), runtime.engine_loop())
        return coming.result()

    def resume(self) -> Self:
        """Continue with the missing cases, and wait."""
        self.start().wait()
        return self

    def score(self, *scorers: Any) -> Batch:
        """Score the existing answers; no model except a judge's is asked.

        Scores by a scorer of the same name and version stay.
        """
        self._refuse_at_work()
        new_scorers, before = as_scorers(scorers), self._scorers
        for scorer in new_scorers:
            scorer.check(self._table.columns)
        names = {scorer.name for scorer in new_scorers}
        self._scorers = (*(scorer for scorer in before if scorer.name not in names), *new_scorers)
        try:
            return self.start(asks=False).wait()
        # A refused start must not change the scorers of the next one.
        except NbagentError:
            self._scorers = before
            raise

    def prefer(
        self,
        a: str,
        b: str,
        rubric: str,
        *,
        over: str | None = None,
        model: str | object | None = None,
        name: str | None = None,
        version: int = 1,
        **options: Any,
    ) -> DataFrame:
        """Let a judge compare the answers of two variants to each row.

        The judge is asked in both orders. A verdict counts only if it is the same in both;
        otherwise the pair is a tie. Each answer of `b` gets a score: 1 if it is preferred, 0 if
        that of `a` is, 0.5 for a tie. Verdicts are stored, so a later call asks for new pairs only.

        Args:
            a: label of the variant that is compared with, such as the baseline.
            b: label of the other variant.
            rubric: description of a good answer; the judge is sent only the columns that it or
                the prompt names.
            over: axis of the labels, if several have them.
            model: `provider:model` of the judge, or a script; None: as the settings say.
            name: of the score; default: `prefer_A`.
            version: raise it when the rubric changes.
            options: as in `nbagent.judge`.

        Returns:
            One row: `n` pairs, how often each was preferred, `ties`, `order_changed` (ties because
            the verdict changed with the order), `share_b` (ties count half) with its 95 % interval
            `lo`, `hi`, a `verdict`, and a `note` with the first error of pairs that `failed`. The
            judge answers `{"reason": "…", "better": "first"}`, or `"second"` or `"tie"`.

        Raises:
            UsageError: there is no such variant, or no row with both answers.
        """
        pairs = pairs_of(self.results(), self.axes, str(a), str(b), over)
        all_options = {"model": model, **options}
        scorer = PreferenceScorer(
            rubric, pairs, self._store, name=name, version=version, options=all_options
        )
        before = self._scorers
        try:
            self.score(scorer)
        finally:
            self._scorers = before  # it knows these pairs only
        return preference_frame(self.results(), scorer.name, scorer.version, pairs)

    @property
    def progress(self) -> BatchProgress:
        """Progress so far."""
        return self._runner.progress()

    # Results

    @property
    def _versions(self) -> dict[str, int]:
        return {scorer.name: scorer.version for scorer in self._scorers}

    def results(self) -> tuple[CaseResult, ...]:
        """Return all cases in their order: rows, then variants, then repeats."""
        rows = [entry.planned.row for entry in self._entries]
        return read_results(self._store, self._entries, self._versions, rows)

    @property
    def axes(self) -> dict[str, list[str]]:
        """Labels of each axis."""
        return axes_of([preflight.variant.labels for preflight in self._preflights])

    def _rows(self, results: Sequence[CaseResult]) -> DataFrame:
        source: Any = self._table.data
        rows = source.iloc[[entry.planned.row_index for entry in self._entries]].copy()
        rows.columns = [*self._table.columns]
        # An index with keys becomes a column: so it survives files.
        return rows.reset_index(drop=True)

    @property
    def _has_key_column(self) -> bool:
        return self._map_options.key is not None

    @property
    def _vary(self) -> Mapping[str, Any]:
        return self._map_options.vary or {}

    def dry_run(self) -> Listing:
        """Estimate requests, tokens and USD, and list calls that would need approval."""
        has_judges = any(scorer.costs for scorer in self._scorers)
        return estimate(
            self._store, self.name, self._entries, self._preflights, has_judges=has_judges
        )

    def case_source(self, options: Mapping[str, Any] | None = None) -> BatchCases:
        """Return the cases for a page, which is told of changes."""
        names = [scorer.name for scorer in self._scorers]
        options = page_options() if options is None else options
        return BatchCases(self, options, names, self._watchers)

    # Display

    def __len__(self) -> int:
        return len(self._entries)

    def __dir__(self) -> list[str]:
        """Public names only, as Tab offers them."""
        hidden = {"await_end", "case_source", "notebook_record", "run_loader"}
        return public_names(super().__dir__(), hidden)

    def __repr__(self) -> str:
        progress = self.progress
        done = f"{progress.ok + progress.failed} of {pluralize(progress.total, 'case')} done"
        return f"<Batch {self.name} {progress.state}, {done}>"


def active_batches() -> list[Batch]:
    """Return the running batches of this process."""
    return [batch for batch in [*_active_batches.values()] if batch.is_at_work]


def _open_view(progress: BatchProgress, batch: Batch) -> BatchView | None:
    try:
        return frontend().open_batch(progress, batch)
    except Exception:
        _log.debug("no view of the batch", exc_info=True)
        return None


def _executor_of(how: MapOptions, store: Store, here: Unattended) -> Executor:
    executor = how.executor
    if executor is None:
        return Local(store, here)
    if executor == PROVIDER_BATCH:
        for option in ("max_cost_usd", "max_failed"):
            if getattr(how, option) is not None:
                raise UsageError(
                    f"{option} cannot stop a provider batch, which is ordered as a whole; leave it "
                    "out and look at dry_run() before, or leave out executor='provider-batch'"
                )
        # Late: it imports the HTTP client.
        from nbagent.lab.provider_batch import ProviderBatchExecutor

        return ProviderBatchExecutor(store, here)
    # By the module's name: importing `distributed` for an isinstance takes the extra and time.
    if type(executor).__module__.partition(".")[0] == "distributed":
        # Late: distributed is an extra.
        from nbagent.lab.remote import DaskExecutor

        return DaskExecutor(executor, store)
    raise UsageError(
        f"executor={executor!r} is not a Dask client; pass a dask.distributed.Client, or "
        f"{PROVIDER_BATCH!r} for the batch API of the model's provider"
    )


def _name_of(rows: Mapping[str, str], variants: Sequence[Variant], repeat: int) -> str:
    """Derive a name from prompts, data and variants: the same call gets the same name."""
    prompts = [variant.template.text for variant in variants]
    identities = [variant.identity for variant in variants]
    return f"batch-{sha_of([prompts, identities, repeat, [*rows.items()]])[:8]}"
