"""Batch opened by its name from the store, without its table, its agent or its scorers."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from nbagent.contracts.canonical import json_object, utc_now
from nbagent.contracts.case_results import CaseResult, joint_scores
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.nearest import nearest_or_all
from nbagent.contracts.records import Case, RunRecord
from nbagent.lab.batch_document import planned_cases, stored_table, with_dtype
from nbagent.lab.case_pages import (
    BatchCases,
    add_labels,
    page_options,
    show_page,
    system_texts,
    varied_texts,
)
from nbagent.lab.case_state import (
    CaseState,
    assign_earlier_runs,
    failures_of,
    numeric_scores,
    summaries_of,
)
from nbagent.lab.frames import read_results
from nbagent.lab.plan import PlannedCase, Row, Variant
from nbagent.lab.results import BatchResults, axes_of
from nbagent.run import public_names
from nbagent.session.frontend import frontend
from nbagent.session.request import RunRequest
from nbagent.session.stores import store_to_read
from nbagent.session.template import Rendered, Template
from nbagent.settings.sources import current_settings, project_file_error
from nbagent.store.batches import (
    JUDGE_SUFFIX,
    CaseRun,
    batch_doc,
    batch_names,
    runs_of_batch,
)
from nbagent.store.columns import CORRUPT_ROW
from nbagent.store.provider_batches import waiting_notes
from nbagent.store.saved_batches import to_notebook_batch
from nbagent.store.writer import Store
from nbagent.view.batch import BatchProgress, batch_text
from nbagent.view.listing import Listing
from nbagent.view.text_format import pluralize

if TYPE_CHECKING:
    from pandas import DataFrame


_NO_PLAN = "was made by an earlier version, which did not store its plan"


class AgentOfBatch(Protocol):
    """The part of `nbagent.Agent` that continues a batch."""

    def map(self, data: Any, /, **how: Any) -> BatchInStore: ...


class BatchInStore(BatchResults):
    """Batch whose runs and scores are in a store."""

    _store: Store

    @property
    @abstractmethod
    def progress(self) -> BatchProgress:
        """Progress so far."""

    @property
    @abstractmethod
    def _vary(self) -> Mapping[str, Any]:
        """Values of the axes, as far as they are known."""

    def variant_texts(self) -> tuple[tuple[str, str, str], ...]:
        """Return axis, label and text of each variant's text, such as a system prompt.

        A batch whose values were not stored has the system prompts of its runs.
        """
        vary = self._vary
        return varied_texts(vary) if vary else system_texts(self.results(), self.run_loader)

    @property
    def run_loader(self) -> Callable[[str], RunRecord | None]:
        """Function that loads a run of a case, None for a deleted one."""
        store = self._store

        def load(run_id: str) -> RunRecord | None:
            try:
                return store.load(run_id)
            except NbagentError:  # it was deleted
                return None

        return load

    @abstractmethod
    def resume(self) -> Self:
        """Continue with the missing cases, and wait."""

    @abstractmethod
    def stop(self, *, after_rows: bool = False) -> None:
        """Stop at once, or pause after the running cases (`after_rows`). Any thread."""

    def _baseline(self, source: Any) -> BatchResults:
        if not isinstance(source, str) or source.endswith(".json"):
            return super()._baseline(source)
        if source != "last":
            return _open_batch(self._store, source)
        keys = {result.row_key for result in self.results()}
        for name in batch_names(self._store):
            opened = _open_batch(self._store, name)
            if name != self.name and keys & {result.row_key for result in opened.results()}:
                return opened
        raise UsageError(
            "not_worse_than='last': the store has no other batch with these rows; give the file "
            "that batch.save('baseline.json') wrote"
        )

    def notebook_record(self) -> dict[str, Any]:
        """Return the form in which a saved notebook holds the batch as it is now."""
        # A broken file of the project stops no picture.
        settings = current_settings(without_project=bool(project_file_error()))
        return to_notebook_batch(self.name, self.axes, self.results(), settings.records)

    def review(
        self,
        name: str = "review",
        *,
        scale: int = 5,
        seed: int = 0,
        by: str = "person",
        reason: bool = False,
    ) -> None:
        """Let a person label the answers from 1 to `scale`, without seeing the variant.

        Several people may review one batch: each gives a name, sees no labels of others, and
        continues with the answers that this person has not labelled yet. `agreement` compares them.

        Args:
            name: name of the score.
            scale: best label, 2 to 5.
            seed: seed of the order.
            by: name of the person.
            reason: require a reason for each label.
        """
        cases = [(case.cells, case.run_id) for case in self.results() if case.status == "ok"]
        # Late: a review imports the code that asks a person.
        from nbagent.lab.review import Review

        review = Review(
            cases, name=name, scale=scale, seed=seed, by=by, reason=reason, store=self._store
        )
        review.run()

    def page(
        self,
        name: str = "review",
        *,
        scale: int = 5,
        by: str = "person",
        blind: bool = False,
    ) -> None:
        """Show all cases on one page: filter, sort, compare, unfold and label them.

        It is live while the batch works. Labels are stored at once, as with `nbagent.score`.

        Args:
            name: name of the score that its labels get.
            scale: best label, 2 to 5; 0 for yes and no.
            by: name of the person who labels.
            blind: True hides the variants and what would name them.

        Raises:
            UsageError: an option is not valid.
        """
        show_page(self.case_source(page_options(name, scale, by, blind)))

    def case_source(self, options: Mapping[str, Any] | None = None) -> BatchCases:
        """Return the cases for a page."""
        return BatchCases(self, page_options() if options is None else options)

    def add_labels(self, path: str | os.PathLike[str], *, by: str | None = None) -> int:
        """Store the labels that the page of `export("html")` exported, and return their number.

        Args:
            path: the file `labels.json`.
            by: name of the person; by default the one that the file names.

        Raises:
            UsageError: the file has no labels, or one of a run that this batch does not have; then
                nothing is stored.
        """
        return add_labels(self, path, by)

    # Display

    def __str__(self) -> str:
        return batch_text(self.progress)

    def _ipython_display_(self) -> None:
        if not frontend().show_batch(self.progress, self):
            print(self)


class StoredBatch(BatchInStore):
    """Batch opened by its name: its results, as they are in the store now.

    Nothing is asked or scored; `nbagent.batch(name, data=…, agent=…)` continues it.
    """

    def __init__(self, store: Store, name: str, doc: Mapping[str, Any]) -> None:
        """Open the batch with this document; a damaged one counts as none."""
        self.name, self._store = name, store
        self._doc: Mapping[str, Any] = doc
        self._table, self._planned = stored_table({}), list[Case]()
        self._how: Mapping[str, Any] = {}
        """Arguments of `map` that were stored; empty: none."""
        try:
            plan = stored_table(doc), planned_cases(name, doc), dict(doc.get("map", {}))
            self._table, self._planned, self._how = plan
        except CORRUPT_ROW:
            self._doc = {}

    @property
    def axes(self) -> dict[str, list[str]]:
        """Labels of each axis."""
        variants = [case.variant for case in self._planned]
        return axes_of(variants) if variants else super().axes

    def results(self) -> tuple[CaseResult, ...]:
        """Return all cases in their order: rows, then variants, then repeats."""
        return self._results_of(self._entries(runs_of_batch(self._store, self.name)))

    def _results_of(self, entries: Sequence[CaseState]) -> tuple[CaseResult, ...]:
        rows = self._table.rows
        cells = [rows.get(entry.planned.case.row_key, {}) for entry in entries]
        return read_results(self._store, entries, {}, cells)

    def _entries(self, runs: Sequence[CaseRun]) -> list[CaseState]:
        """Build the cases of the plan, or of the runs where no plan is stored."""
        cases = self._planned or [case_run.case for case_run in runs]
        variants: dict[tuple[str, ...], Variant] = {}
        planned = dict[tuple[str, ...], PlannedCase]()
        for case in cases:
            labels = tuple(case.variant.values())
            if labels not in variants:
                variants[labels] = Variant(case.variant, RunRequest(), Template(""))
            key = (case.row_key, *labels, str(case.attempt))
            planned[key] = PlannedCase(0, Row({}), variants[labels], case, Rendered("", (), ()))
        entries = [CaseState(item) for item in planned.values()]
        assign_earlier_runs(entries, runs, keep=not self._doc.get("shas"))
        return entries

    def _rows(self, results: Sequence[CaseResult]) -> DataFrame:
        rows: Any = super()._rows(results)
        for column, dtype in zip(self._table.columns, self._table.dtypes, strict=True):
            rows[column] = with_dtype(rows[column], dtype)
        return rows

    @property
    def _has_key_column(self) -> bool:
        return self._how.get("key") in self._table.columns

    @property
    def _vary(self) -> Mapping[str, Any]:
        return json_object(self._how.get("vary")) or {}

    def continued(self, data: Any, agent: AgentOfBatch, **options: Any) -> BatchInStore:
        """Plan it again with its table and an agent, with the stored arguments of `map`."""
        how = self._how
        if not how:
            raise UsageError(
                f"batch {self.name!r} {_NO_PLAN}; repeat the call of agent.map with its name"
            )
        if unstored := how.get("not_stored"):
            raise UsageError(
                f"batch {self.name!r} varies {', '.join(unstored)} by values that are no text; "
                "repeat the call of agent.map with its name"
            )
        arguments: dict[str, Any] = {**how, "name": self.name, "start": False, **options}
        return agent.map(data, **arguments)

    def stop(self, *, after_rows: bool = False) -> None:
        """Do nothing: this process does not run it."""

    def resume(self) -> Self:
        """Refuse: a name alone does not say which table and agent to use."""
        raise self._needs_agent("resume()")

    def score(self, *scorers: Any) -> Self:
        """Refuse: scorers are given the rows of the table."""
        raise self._needs_agent("score(…)")

    def dry_run(self) -> Listing:
        """Refuse: an estimate needs the requests."""
        raise self._needs_agent("dry_run()")

    def _needs_agent(self, call: str) -> UsageError:
        return UsageError(
            f"batch {self.name!r} was opened by its name only; with its table and agent: "
            f"nbagent.batch({self.name!r}, data=TABLE, agent=AGENT).{call}"
        )

    @property
    def progress(self) -> BatchProgress:
        """Progress as the store has it now."""
        runs = runs_of_batch(self._store, self.name)
        entries = self._entries(runs)
        for entry, result in zip(entries, self._results_of(entries), strict=True):
            entry.scores = numeric_scores(joint_scores(result.scores))
        return stored_progress(self._store, self.name, entries, runs)

    def __dir__(self) -> list[str]:
        """Public names only, as Tab offers them."""
        hidden = {"case_source", "continued", "notebook_record", "run_loader", "stop"}
        return public_names(super().__dir__(), hidden)

    def __repr__(self) -> str:
        progress = self.progress
        done = f"{progress.ok + progress.failed} of {pluralize(progress.total, 'case')} done"
        return f"<StoredBatch {self.name}, {done}>"


def stored_progress(
    store: Store, name: str, entries: Sequence[CaseState], runs: Sequence[CaseRun]
) -> BatchProgress:
    """Return the progress of a batch that this process does not run."""
    judges = runs_of_batch(store, name + JUDGE_SUFFIX)
    costs = [entry.cost_usd for entry in entries if entry.cost_usd is not None]
    counts = Counter(entry.status for entry in entries)
    is_open = counts["missing"] or counts["unfinished"]
    times = [(item.run.started_at, item.run.ended_at or item.run.started_at) for item in runs]
    start = min((begin for begin, _ in times), default=utc_now())
    end = max((end for _, end in times), default=start)
    return BatchProgress(
        name=name,
        state="Stopped" if is_open else "Finished",
        why="some cases have no answer yet" if is_open else "",
        total=len(entries),
        reused=0,
        ok=counts["ok"],
        failed=counts["failed"] + counts["ended"],
        at_work=sum(item.run.phase == "Running" for item in runs),
        cost_usd=sum(costs) if costs else None,
        judge_cost_usd=sum(item.run.cost_usd or 0.0 for item in judges),
        elapsed_s=(end - start).total_seconds(),
        per_s=0.0,
        left_s=None,
        started_at=start,
        failures=failures_of(entries),
        notes=waiting_notes(store, name) if is_open else (),
        models=tuple(dict.fromkeys(item.run.model for item in runs)),
        variants=summaries_of(entries),
    )


def _open_batch(store: Store, name: str) -> StoredBatch:
    """Open a batch of a store; the error suggests the nearest name."""
    doc = batch_doc(store, name)
    if doc is not None:
        return StoredBatch(store, name, doc)
    hint = f"; nbagent.read_batch({name!r}) reads a file"
    if not name.endswith(".json"):
        known = batch_names(store)
        hint = nearest_or_all(name, known, "the batches are") or "; the store has none"
    raise UsageError(f"there is no batch {name!r}{hint}")


def batch(
    name: str, data: Any = None, agent: AgentOfBatch | None = None, **options: Any
) -> BatchInStore:
    """Open a batch of the store by its name.

    Args:
        name: its whole name.
        data: its table, to continue it; then `agent` is needed, too.
        agent: the agent that continues it: `batch(…).resume()`.
        options: further arguments of `agent.map`, such as `score=`.

    Returns:
        Its results: `frame()`, `compare()`, `diff()`, `plot()`, `review()`. With `data`, the
        batch itself, planned and not started.

    Raises:
        UsageError: the store has no such batch; the nearest name is suggested.
    """
    text = str(name)
    opened = _open_batch(store_to_read(), text)
    if data is None and agent is None:
        return opened
    if data is None or agent is None:
        raise UsageError(
            f"to continue batch {text!r}, give both: nbagent.batch({text!r}, data=TABLE, "
            "agent=AGENT)"
        )
    return opened.continued(data, agent, **options)
