"""Comparison of runs, and the list of all runs: values that display themselves.

`view.compare` computes and draws the differences; the rows come from the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import RunRecord, RunSummary
from nbagent.frames import runs
from nbagent.run import Run, open_run
from nbagent.session.frontend import frontend
from nbagent.session.stores import store_to_read
from nbagent.store.dataframes import find_runs, frame_of
from nbagent.store.schema import SORTED_BY_INDEX
from nbagent.view.compare import LETTERS, compare_node, compare_text, differences
from nbagent.view.node import Node
from nbagent.view.run_picture import page
from nbagent.view.run_rows import history_node, runs_text

if TYPE_CHECKING:
    from pandas import DataFrame

_MAX_RUNS = 1_000
"""Limit for the rows of a list, and for the matches of a search."""
_MANY_RUNS = 20_000
"""Number of runs from which a sorting without an index takes more than a moment."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two or more runs, aligned turn by turn: same, changed, or only in some of them."""

    records: tuple[RunRecord, ...]

    def html(self) -> str:
        """Return HTML with its style sheet, without a script."""
        return page(compare_node(self.records))

    def __str__(self) -> str:
        return compare_text(self.records)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": str(self)}

    def frame(self) -> DataFrame:
        """Return a row per compared part: `turn_A`, `turn_B`, `part`, `status`, texts `A`, `B`."""
        letters = LETTERS[: len(self.records)]
        rows = [
            {f"turn_{letter}": turn for letter, turn in zip(letters, turns, strict=True)}
            | {"part": row.part, "status": row.status}
            | dict(zip(letters, row.texts, strict=True))
            for group in differences(self.records)
            for turns in [group.turns or ("",) * len(letters)]
            for row in group.rows
        ]
        return frame_of(rows)


def compare(*runs: Run | str) -> Comparison:
    """Compare two or more runs; `%agent compare A B` is the same.

    Args:
        runs: handles, names, starts of ids, or `"last"`; up to eight.

    Raises:
        UsageError: fewer than two, more than eight, or a run that does not exist.
    """
    if not 2 <= len(runs) <= len(LETTERS):
        raise UsageError(f"compare takes 2 to {len(LETTERS)} runs, not {len(runs)}")
    return Comparison(tuple(_record(run) for run in runs))


def _record(run: Run | str) -> RunRecord:
    return run.record if isinstance(run, Run) else open_run(run).record


@dataclass(frozen=True, repr=False)
class RunHistory:
    """Runs in a table that can be sorted, filtered and searched, and as a frame."""

    summaries: tuple[RunSummary, ...]
    query: Mapping[str, Any]
    """Arguments of `history`."""
    note: str = ""
    """Says what was not searched, or what a sorting costs."""

    def node(self, kernel: str = "") -> Node:
        """Build the picture of the table."""
        return history_node(self.summaries, kernel, self.query["search"] or "", self.note)

    def html(self) -> str:
        """Return HTML with its style sheet, without a script."""
        return page(self.node())

    def with_search(self, text: str) -> RunHistory:
        """Search the same list for a text."""
        again: dict[str, Any] = {**self.query, "search": text}
        return history(**again)

    def __str__(self) -> str:
        lines = [runs_text(self.summaries) or "no runs", self.note]
        return "\n".join(filter(None, lines))

    def _ipython_display_(self) -> None:
        if not frontend().show_list(self, search=self.with_search):
            print(self)

    def __len__(self) -> int:
        return len(self.summaries)

    def __getitem__(self, index: int) -> Run:
        return open_run(self.summaries[index].id)

    def frame(self) -> DataFrame:
        """Return the rows of `nbagent.runs()` for these runs."""
        return runs(run_id=[run.id for run in self.summaries])


def history(
    search: str | None = None, *, sort: str = "started_at", limit: int = 50, **filters: Any
) -> RunHistory:
    """List all runs except those of batches, to search and sort; `%agent history TEXT` is the same.

    Args:
        search: text in the name, the prompt, a message or a result of the run (case of ASCII
            letters is ignored).
        sort: a column of `nbagent.runs()` such as `cost_usd`, `total_tokens` or `duration_ms`; the
            largest, or the newest, first.
        limit: most rows, up to 1,000.
        filters: as `nbagent.runs()` takes them: `session`, `model`, `since`, …; with `batch` the
            runs of this batch.

    Raises:
        UsageError: an unknown column or filter, or a limit that is not valid.
    """
    query: dict[str, Any] = {"search": search, "sort": sort, "limit": limit, **filters}
    if type(limit) is not int or not 0 < limit <= _MAX_RUNS:
        raise UsageError(f"limit={limit!r} is not valid; expected 1 to {_MAX_RUNS:,}")
    if "store" in filters:
        raise UsageError("history reads this store; nbagent.runs(store=…) reads others")
    store = store_to_read()
    filters.setdefault("batch", None)
    ids, notes = None, list[str]()
    if search:
        in_order = sort == "started_at" and filters == {"batch": None}
        most = limit if in_order else _MAX_RUNS
        result = store.search(search, limit=most, batches=filters["batch"] is not None)
        notes.append(result.note)
        ids = result.run_ids if in_order else None
        filters["run_id"] = result.run_ids
    elif sort not in SORTED_BY_INDEX and (count := store.counts("runs")["runs"]) > _MANY_RUNS:
        notes.append(f"to sort by {sort}, all {count:,} runs were read")
    if ids is None:
        ids = find_runs(store, filters, sort=sort, limit=limit)
    return RunHistory(tuple(store.summaries(ids)), query, "; ".join(filter(None, notes)))
