"""A run on one line, as every list shows it: history, panel, tree, select, text.

The table of the history is here too; the page sorts, filters and searches it while the kernel is
alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nbagent.contracts.records import RunInfo, RunSummary
from nbagent.view import run_facts, run_status
from nbagent.view.buttons import action_button
from nbagent.view.markdown import table_cell
from nbagent.view.node import Node, h
from nbagent.view.result_tables import split_frames
from nbagent.view.run_picture import ROOT_CLASS
from nbagent.view.text_format import (
    format_cost,
    format_count,
    format_duration,
    format_start,
    one_line,
    pluralize,
    sanitize_prose,
    sanitize_value,
)

PROMPT_CHARS = 90
"""Shown characters of a prompt or an answer in a list."""
_HEADS = ("run", "began", "state", "prompt", "turns", "tokens", "by turn", "cost", "time", "model")
_MAX_SEARCHED = 8_000
"""Start of a prompt in which DataFrames are looked for."""
_NUMBERS = ("turns", "tokens", "cost", "time")


class RunRow(NamedTuple):
    """The texts of a run on one line."""

    id: str
    when: str
    mark: str
    word: str
    prompt: str
    model: str
    name: str

    def label(self) -> str:
        """Return one line that tells the run from others, for a choice."""
        return " · ".join(filter(None, (self.id, self.prompt, self.name, self.model, self.when)))


def run_row(run: RunInfo) -> RunRow:
    """Return the texts of a run on one line."""
    status = run_status.status_of(run)
    return RunRow(
        id=run.id[:8],
        when=format_start(run.started_at),
        mark=status.mark,
        word=status.word,
        prompt=typed_prompt(run) or "(no prompt)",
        model=sanitize_value(run.model),
        name=one_line(sanitize_value(run.name or ""), run_facts.NAME_CHARS),
    )


def typed_prompt(run: RunInfo) -> str:
    """Return the prompt on one line as the person typed it: `{{ df }} which region?`.

    The rows of a batch have one template, so they show their own prompts.
    """
    return prompt_line(run.prompt if run.case or not run.template else run.template)


def prompt_line(text: str, limit: int = PROMPT_CHARS) -> str:
    """Return a text on one line; of a DataFrame in it only the title stays."""
    pieces = split_frames(text[:_MAX_SEARCHED])
    titles = (f"[{piece.splitlines()[0]}]" if is_frame else piece for piece, is_frame in pieces)
    return one_line(sanitize_prose(" ".join(titles)), limit)


def row_text(run: RunSummary) -> str:
    """Print a run on one line, with its numbers."""
    row = run_row(run)
    start = f"{row.id}  {row.when}  {row.mark} {row.prompt}"
    return f"{start}  {sparkline(run)}  {run_facts.facts_line(run)}".rstrip()


def runs_text(runs: Sequence[RunSummary]) -> str:
    """Print runs as lines of text."""
    return "\n".join(map(row_text, runs))


def sparkline(run: RunSummary) -> str:
    """Draw the tokens of the last turns as blocks: `▂▃█`."""
    tokens = run.tokens_by_turn
    highest = max(tokens, default=0)
    if not highest or len(tokens) < 2:
        return ""
    return "".join("▁▂▃▄▅▆▇█"[min(7, 8 * n // highest)] for n in tokens[-24:])


def history_node(
    runs: Sequence[RunSummary], kernel: str = "", search: str = "", note: str = ""
) -> Node:
    """Draw the table. With a kernel it has a search field and a sort button for each column.

    Args:
        runs: the rows.
        kernel: `data-kernel` of the output that answers the buttons; empty: a plain table.
        search: the text by which the runs were found.
        note: what was not searched, or what a sorting costs.
    """
    heads = [table_cell("th", [name, *_sorter(name, kernel)]) for name in _HEADS]
    rows = [_row(run, kernel) for run in runs]
    total = pluralize(len(runs), "run") + (f" with “{sanitize_value(search)}”" if search else "")
    table = h("table", "", h("thead", "", h("tr", "", *heads)), h("tbody", "", *rows))
    field = h(
        "input",
        "nba-do",
        type="search",
        placeholder="Filter; Enter searches all texts",
        aria_label="Filter the runs; Enter searches prompts, answers and results",
        value=search or None,
    )
    return h(
        "div",
        f"nba-history {ROOT_CLASS}",
        h("div", "nba-wide", field, " ", data_lm_suppress_shortcuts="true") if kernel else None,
        h("div", "nba-wide nba-wide-table nba-scrolls", table),
        h("div", "nba-foot", h("small", "", f"{total} · {note}" if note else total)),
        role="group",
        aria_label="runs",
        data_kernel=kernel or None,
    )


def _sorter(name: str, kernel: str) -> list[Node]:
    button = h("button", "nba-do", data_do="sort", title="↕", aria_label=f"Sort by {name}")
    return [" ", button] if kernel else []


def _row(run: RunSummary, kernel: str) -> Node:
    """Draw a run as a row. Cells whose text does not sort correctly have a `value` to sort by."""
    row, usage, cost = run_row(run), run.usage.total_tokens, run.cost_usd or 0
    time = run.duration_ms
    shown: dict[str, tuple[str, float | str | None]] = {
        "run": (row.name or row.id, None),
        "began": (row.when, run.started_at.astimezone().isoformat()),
        "state": (f"{row.mark} {row.word}", row.word),
        "prompt": (row.prompt, None),
        "turns": (str(run.turns), None),
        "tokens": (format_count(usage) if usage else "", usage),
        "by turn": (sparkline(run), usage),
        "cost": (format_cost(cost) if cost else "", cost),
        "time": (format_duration(time), time),
        "model": (row.model, None),
    }
    cells: list[Node] = []
    for name, (text, value) in shown.items():
        # Without a kernel nothing sorts, so a saved table does not carry the values.
        attributes = {"value": None if value is None or not kernel else str(value)}
        side = "nba-r" if name in _NUMBERS else "nba-l"
        opens = action_button("show", "Open") if kernel and name == "run" else None
        cells.append(h("td", side, text, " " if opens else "", opens, **attributes))
    return h("tr", "", *cells, data_run=run.id if kernel else None)
