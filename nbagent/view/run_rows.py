"""Runs in a table: sorted, filtered and searched in the page while the kernel lives."""

from __future__ import annotations

from collections.abc import Sequence

from nbagent.contracts.records import RunRecord
from nbagent.view import labels
from nbagent.view.markdown import cell
from nbagent.view.node import Node, h
from nbagent.view.picture import ROOT, action
from nbagent.view.value_nodes import spark
from nbagent.view.words import began, clean, count, money, one_line, seconds, things, visible

_PROMPT_CHARS = 90
_HEADS = ("run", "began", "state", "prompt", "turns", "tokens", "by turn", "cost", "time", "model")
_NUMBERS = ("turns", "tokens", "cost", "time")


def history_node(runs: Sequence[RunRecord], kernel: str = "", search: str = "") -> Node:
    """The table; with a kernel that answers its buttons also a field and a button for each column.

    Args:
        runs: its rows.
        kernel: `data-kernel` of the picture; without one it is a plain table.
        search: what they were found by.
    """
    heads = [cell("th", [name, *_sorter(name, kernel)]) for name in _HEADS]
    rows = [_row(run, kernel) for run in runs]
    words = things(len(runs), "run") + (f" with “{visible(search)}”" if search else "")
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
        ROOT,
        h("div", "nba-wide", field, " ", data_lm_suppress_shortcuts="true") if kernel else None,
        h("div", "nba-wide nba-wide-table nba-scrolls", table),
        h("div", "nba-foot", h("small", "", words)),
        role="group",
        aria_label="runs",
        data_kernel=kernel or None,
    )


def _sorter(name: str, kernel: str) -> list[Node]:
    button = h("button", "nba-do", data_do="sort", title="↕", aria_label=f"Sort by {name}")
    return [" ", button] if kernel else []


def _row(run: RunRecord, kernel: str) -> Node:
    """A run; each cell with the value that its column is sorted by, where its text is none."""
    status, usage, cost = labels.status_of(run), run.usage.total_tokens, run.cost_usd or 0
    n, time = len(run.turns), run.duration_ms
    shown: dict[str, tuple[str, float | str | None]] = {
        "run": (visible(run.name or run.id[:8]), None),
        "began": (began(run.started_at), run.started_at.astimezone().isoformat()),
        "state": (f"{status.mark} {status.word}", status.word),
        "prompt": (one_line(clean(run.prompt), _PROMPT_CHARS), None),
        "turns": (str(n), None),
        "tokens": (count(usage) if usage else "", usage),
        "by turn": (spark(run), usage),
        "cost": (money(cost) if cost else "", cost),
        "time": (seconds(time), time),
        "model": (visible(run.model), None),
    }
    cells: list[Node] = []
    for name, (text, value) in shown.items():
        given = {"value": None if value is None or not kernel else str(value)}
        side = "nba-r" if name in _NUMBERS else "nba-l"
        opens = action("show", "Open") if kernel and name == "run" else None
        cells.append(h("td", side, text, " " if opens else "", opens, **given))
    return h("tr", "", *cells, data_run=run.id if kernel else None)
