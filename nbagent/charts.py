"""`nbagent.plot`: figures of many runs, and of a batch's scores.

Figures of runs take the filters of `nbagent.runs()`. Figures are matplotlib's; pyplot is not
used, so nothing has to be closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbagent.frames import runs
from nbagent.frames import tool_runs as calls
from nbagent.frames import turns as all_turns
from nbagent.lab.batch_figures import compare as compare
from nbagent.lab.batch_figures import cost_quality as cost_quality
from nbagent.run import load_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tokens(**filters: Any) -> Figure:
    """Draw the tokens of each run over time, by model."""
    rows = _rows(runs(**filters), "started_at", "model", "total_tokens")
    return load_figures().over_time("tokens of runs", "tokens", rows, summed=False)


def cost(**filters: Any) -> Figure:
    """Draw the total cost of each model over time; runs without a known price are left out."""
    rows = _rows(runs(**filters), "started_at", "model", "cost_usd")
    return load_figures().over_time("cost of runs, added up", "cost (USD)", rows, summed=True)


def tools(**filters: Any) -> Figure:
    """Draw the number of calls of each tool, and how many failed or were denied."""
    frame: Any = calls(**filters)
    ended = frame[frame["ok"].notna()]
    codes = ended["error_code"].astype("string").fillna("").tolist()
    rows = [
        (name, "denied" if code == "E_DENIED" else "ok" if ok else "failed")
        for name, ok, code in zip(ended["tool_name"].tolist(), ended["ok"], codes, strict=True)
    ]
    return load_figures().outcomes(rows)


def failures(**filters: Any) -> Figure:
    """Draw the calls that failed or were denied, by tool and error code."""
    return load_figures().failures(_rows(calls(**filters), "tool_name", "error_code"))


def turns(**filters: Any) -> Figure:
    """Draw the durations of turns, by model."""
    rows = _rows(all_turns(**filters), "model", "duration_ms")
    return load_figures().durations([(model, ms / 1000) for model, ms in rows])


def _rows(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Return the cells of some columns, from rows that have all of them."""
    complete = frame[list(columns)].dropna()
    return list(zip(*(complete[name].tolist() for name in columns), strict=True))
