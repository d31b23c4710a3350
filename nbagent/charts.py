"""`nbagent.plot`: figures of many runs, and of what a batch's scores say.

Those of runs take the filters of `nbagent.runs()`. Figures are matplotlib's; pyplot is not used, so
nothing has to be closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbagent.frames import runs
from nbagent.frames import tool_runs as calls
from nbagent.frames import turns as all_turns
from nbagent.run import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nbagent.lab.batch import Batch


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


def failures(**filters: Any) -> Figure:
    """The calls that failed or were denied, by tool and error code."""
    return drawing().failures(_rows(calls(**filters), "tool_name", "error_code"))


def turns(**filters: Any) -> Figure:
    """How long the turns of each model took."""
    rows = _rows(all_turns(**filters), "model", "duration_ms")
    return drawing().durations([(model, ms / 1000) for model, ms in rows])


# A batch


def compare(batch: Batch, score: str | None = None, **options: Any) -> Figure:
    """The mean scores of a batch's variants with their intervals and verdicts.

    Args:
        batch: what `agent.map` returned.
        score: the name of the score; it may be left out where the batch has only one.
        options: those of `batch.compare`: `over`, `by`, `baseline`, `failed`.
    """
    axes, variants = _variants(batch, score, options)
    rows = [
        (_named(it, axes[:-1]), it[axes[-1]], it["mean"], it["lo"], it["hi"], it["verdict"])
        for it in variants
        if it["mean"] is not None
    ]
    counts = {state: sum(it[state] for it in variants) for state in ("failed", "missing")}
    more = "".join(f" · {n} {state}" for state, n in counts.items() if n)
    score = score or "score"
    return drawing().means(f"{score} by {axes[-1]}{more}", f"mean of {score}, 95 % interval", rows)


def cost_quality(batch: Batch, score: str | None = None, **options: Any) -> Figure:
    """What a case of each variant cost against its mean score; unknown prices are left out.

    Arguments as in `compare`.
    """
    axes, variants = _variants(batch, score, options)
    failed_count = options.get("failed") == "zero"  # they are among the n then
    rows = [
        (_named(it, axes), it["cost_usd"] / cases, it["mean"], it["lo"], it["hi"])
        for it in variants
        if it["mean"] is not None and it["cost_usd"] is not None
        if (cases := it["n"] + (0 if failed_count else it["failed"]))
    ]
    return drawing().cost_quality(f"mean of {score or 'score'}, 95 % interval", rows)


def _variants(
    batch: Batch, score: str | None, options: dict[str, Any]
) -> tuple[list[str], list[dict[str, Any]]]:
    """The axes of a comparison, the compared one last, and its rows; None for what is missing."""
    frame: Any = batch.compare(score, **options)
    columns = frame.columns.tolist()
    cells = frame.astype(object).where(frame.notna(), None)
    return columns[: columns.index("mean")], cells.to_dict("records")


def _named(variant: dict[str, Any], axes: list[str]) -> str:
    return " · ".join(variant[name] for name in axes)


def _rows(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    """The cells of some columns, of rows that have all of them."""
    kept = frame[list(columns)].dropna()
    return list(zip(*(kept[name].tolist() for name in columns), strict=True))
