"""Runs held against each other, and the list of all runs: values that show themselves.

What is compared and how it looks is in `view.compare`; the rows come from the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbagent.archive.frames import frame_of
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import RunRecord
from nbagent.frames import runs
from nbagent.run import Run, open_run
from nbagent.session.stores import current_store
from nbagent.view.compare import LETTERS, compare_node, compare_text, differences
from nbagent.view.picture import page
from nbagent.view.values import runs_node, runs_text

if TYPE_CHECKING:
    from pandas import DataFrame

_ORDERS: dict[str, Callable[[RunRecord], float]] = {
    "started_at": lambda run: run.started_at.timestamp(),
    "duration_ms": lambda run: run.duration_ms,
    "cost_usd": lambda run: run.cost_usd or 0.0,
    "total_tokens": lambda run: run.usage.total_tokens,
    "turns": lambda run: len(run.turns),
}
_MOST = 1_000


class _Shown:
    """Shows itself as a picture in a front end, and as text elsewhere."""

    def html(self) -> str:
        """One piece of HTML with its sheet, without a script."""
        raise NotImplementedError

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": str(self)}


@dataclass(frozen=True, repr=False)
class Comparison(_Shown):
    """Two or more runs, aligned turn by turn: same, changed, or only in some of them."""

    records: tuple[RunRecord, ...]

    def html(self) -> str:
        return page(compare_node(self.records))

    def __str__(self) -> str:
        return compare_text(self.records)

    def frame(self) -> DataFrame:
        """One row for each thing compared: `turn_A`, `turn_B`, `part`, `status`, texts `A`, `B`."""
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
    """Hold two or more runs against each other; `%agent compare A B` is the same.

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
class RunHistory(_Shown):
    """Runs in rows that unfold into their pictures, and as a frame."""

    records: tuple[RunRecord, ...]

    def html(self) -> str:
        return page(runs_node(self.records))

    def __str__(self) -> str:
        return runs_text(self.records) or "no runs"

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, place: int) -> Run:
        return open_run(self.records[place].id)

    def frame(self) -> DataFrame:
        """The rows of `nbagent.runs()` for these runs."""
        return runs(run_id=[record.id for record in self.records])


def history(
    search: str | None = None, *, sort: str = "started_at", limit: int = 50, **filters: Any
) -> RunHistory:
    """The newest runs, to search and sort; `%agent history TEXT` is the same.

    Args:
        search: a text in the name, the prompt, a message or a result of the run (case of ASCII
            letters does not count).
        sort: `started_at`, `duration_ms`, `cost_usd`, `total_tokens` or `turns`, largest first.
        limit: most rows, up to 1,000.
        filters: columns of `nbagent.runs()`, and `since`, `until`.

    Raises:
        UsageError: an unknown order or filter, or a limit that does not fit.
    """
    if sort not in _ORDERS:
        raise UsageError(f"sort={sort!r} is no order; take one of {', '.join(_ORDERS)}")
    if not 0 < limit <= _MOST:
        raise UsageError(f"limit={limit!r} does not fit; take 1 to {_MOST:,}")
    store = current_store()
    most = _MOST if filters else limit
    ids = store.search(search, limit=most) if search else [r.id for r in store.runs(limit=most)]
    if filters:
        kept: Any = runs(**filters)
        ids = [run_id for run_id in ids if (kept["run_id"] == run_id).any()]
    records = [store.load(run_id) for run_id in ids[:limit]]
    return RunHistory(tuple(sorted(records, key=_ORDERS[sort], reverse=True)))
