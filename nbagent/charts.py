"""`nbagent.plot`: figures of many runs. Each takes the filters of `nbagent.runs()`.

Figures are matplotlib's; pyplot is not used, so nothing has to be closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbagent.frames import runs
from nbagent.frames import tool_runs as calls
from nbagent.frames import turns as all_turns
from nbagent.run import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tokens(**filters: Any) -> Figure:
    """The tokens of each run over time, by model."""
    rows = _rows(runs(**filters), "started_at", "model", "total_tokens")
    return drawing().over_time("tokens of runs", "tokens", rows, summed=False)


def cost(**filters: Any) -> Figure:
    """What the runs of each model cost so far, over time; runs of unknown price are left out."""
    rows = _rows(runs(**filters), "started_at", "model", "cost_usd")
    return drawing().over_time("cost of runs, added up", "cost (USD)", rows, summed=True)


def tools(**filters: Any) -> Figure:
    """How often each tool was called, and how many of the calls failed or were denied."""
    frame: Any = calls(**filters)
    ended = frame[frame["ok"].notna()]
    codes = ended["error_code"].astype("string").fillna("").tolist()
    rows = [
        (name, "denied" if code == "E_DENIED" else "ok" if ok else "failed")
        for name, ok, code in zip(ended["tool_name"].tolist(), ended["ok"], codes, strict=True)
    ]
    return drawing().outcomes(rows)


def turns(**filters: Any) -> Figure:
    """How long the turns of each model took."""
    rows = _rows(all_turns(**filters), "model", "duration_ms")
    return drawing().durations([(model, ms / 1000) for model, ms in rows])


def _rows(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    """The cells of some columns, of rows that have all of them."""
    kept = frame[list(columns)].dropna()
    return list(zip(*(kept[name].tolist() for name in columns), strict=True))
