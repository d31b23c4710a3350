"""Runs side by side, as values: the tree of a session, and the answers of a retry.

`view.run_tree` draws them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, overload

from nbagent.contracts.records import RunRecord
from nbagent.session.frontend import frontend
from nbagent.session.notebook_runs import split_by_notebook
from nbagent.session.stores import find_run, store_to_read
from nbagent.store.dataframes import frame_of
from nbagent.store.reader import RunNode
from nbagent.view.listing import Listing
from nbagent.view.node import Node, h, line
from nbagent.view.run_tree import (
    answers_listing,
    answers_of,
    calls_text,
    count_runs,
    number_answers,
    tree_lines,
    tree_node,
)
from nbagent.view.text_format import pluralize

if TYPE_CHECKING:
    from pandas import DataFrame


class HasRecord(Protocol):
    """A run, or anything else with a record."""

    @property
    def record(self) -> RunRecord: ...


R = TypeVar("R", bound=HasRecord)


@dataclass(frozen=True, slots=True, repr=False)
class RetryResult(Sequence[R], Generic[R]):
    """Runs that repeated one request: a list that displays itself as a table."""

    of: R
    """Run whose turn was repeated."""
    turn_id: str
    runs: tuple[R, ...]

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[R, ...]: ...
    def __getitem__(self, index: int | slice) -> R | tuple[R, ...]:
        return self.runs[index]

    def __len__(self) -> int:
        return len(self.runs)

    def frame(self) -> DataFrame:
        """Return one row per answer; the first is the original turn's.

        `answer` numbers different answers (text and calls) from 1; `calls` lists its tool calls.
        """
        answers = answers_of(self._records())
        numbers = number_answers([turn for _, turn in answers])
        return frame_of(
            [
                {
                    "run_id": run.id,
                    "answer": number,
                    "text": turn.text,
                    "calls": calls_text(turn),
                    "error_code": turn.error and turn.error.code,
                    "total_tokens": turn.response
                    and turn.response.usage
                    and turn.response.usage.total_tokens,
                    "cost_usd": turn.cost_usd,
                    "duration_ms": turn.duration_ms,
                }
                for (run, turn), number in zip(answers, numbers, strict=True)
            ]
        )

    def _records(self) -> list[RunRecord]:
        return [run.record for run in (self.of, *self.runs)]

    def _listing(self) -> Listing:
        return answers_listing(*self._records())

    def __repr__(self) -> str:
        return str(self._listing())

    def _repr_html_(self) -> str:
        from nbagent.view.run_picture import ROOT_CLASS

        return _page(h("div", ROOT_CLASS, self._listing().node()))


@dataclass(frozen=True, slots=True, repr=False)
class SessionTree:
    """Runs of a session, and which run continues which; displays itself as a drawing."""

    session: str
    branches: Sequence[RunNode]
    """First runs of conversations, oldest first."""
    current: str | None
    """Id of the run that started last."""
    note: str = ""
    """Says what was left out."""

    def node(self, kernel: str = "") -> Node:
        """Build the drawing; each run can be opened, and with a kernel it is shown below."""
        from nbagent.view.run_picture import ROOT_CLASS

        tree = tree_node(self.branches, current=self.current)
        return h("div", ROOT_CLASS, tree, line("nba-note", self.note), data_kernel=kernel or None)

    def __repr__(self) -> str:
        lines = tree_lines(self.branches, current=self.current)
        return "\n".join([*lines, *filter(None, [self.note])])

    def _repr_html_(self) -> str:
        return _page(self.node())

    def _ipython_display_(self) -> None:
        if not frontend().show_list(self):
            print(self)


def _page(node: Node) -> str:
    from nbagent.view.run_picture import page

    return page(node)


def session_tree(session: str | None = None, *, all_notebooks: bool | None = None) -> SessionTree:
    """Return the tree of a session: its runs, and which run continues or forks which.

    Args:
        session: name of the session; default: that of the last run.
        all_notebooks: False leaves out conversations without a run of this notebook; default: a
            named session is shown whole.

    Raises:
        UsageError: the session has no run yet.
    """
    store = store_to_read()
    last = store.load(find_run("last", session=session))
    branches = store.tree(last.session)
    if all_notebooks or (all_notebooks is None and session is not None):
        return SessionTree(last.session, branches, last.id)
    own, others = split_by_notebook(store, branches, frontend().cell())
    n_others = sum(map(count_runs, others))
    note = f"{pluralize(n_others, 'run')} of other notebooks: %agent tree all" if n_others else ""
    return SessionTree(last.session, own, last.id, note)
