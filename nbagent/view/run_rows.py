"""Table of runs; the page sorts, filters and searches it while the kernel is alive."""

from __future__ import annotations

from collections.abc import Sequence

from nbagent.contracts.records import RunSummary
from nbagent.view import run_status
from nbagent.view.buttons import action_button
from nbagent.view.markdown import table_cell
from nbagent.view.node import Node, h
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
from nbagent.view.value_nodes import sparkline

_PROMPT_CHARS = 90
_HEADS = ("run", "began", "state", "prompt", "turns", "tokens", "by turn", "cost", "time", "model")
_NUMBERS = ("turns", "tokens", "cost", "time")


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
    status, usage, cost = run_status.status_of(run), run.usage.total_tokens, run.cost_usd or 0
    time = run.duration_ms
    shown: dict[str, tuple[str, float | str | None]] = {
        "run": (sanitize_value(run.name or run.id[:8]), None),
        "began": (format_start(run.started_at), run.started_at.astimezone().isoformat()),
        "state": (f"{status.mark} {status.word}", status.word),
        "prompt": (one_line(sanitize_prose(run.prompt), _PROMPT_CHARS), None),
        "turns": (str(run.turns), None),
        "tokens": (format_count(usage) if usage else "", usage),
        "by turn": (sparkline(run), usage),
        "cost": (format_cost(cost) if cost else "", cost),
        "time": (format_duration(time), time),
        "model": (sanitize_value(run.model), None),
    }
    cells: list[Node] = []
    for name, (text, value) in shown.items():
        # Without a kernel nothing sorts, so a saved table does not carry the values.
        attributes = {"value": None if value is None or not kernel else str(value)}
        side = "nba-r" if name in _NUMBERS else "nba-l"
        opens = action_button("show", "Open") if kernel and name == "run" else None
        cells.append(h("td", side, text, " " if opens else "", opens, **attributes))
    return h("tr", "", *cells, data_run=run.id if kernel else None)
