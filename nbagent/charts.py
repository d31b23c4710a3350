"""`nbagent.plot`: figures of many runs, and of a batch's scores.

Figures of runs take the filters of `nbagent.runs()`. Figures are matplotlib's; pyplot is not
used, so nothing has to be closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbagent.frames import runs
from nbagent.frames import tool_runs as calls
from nbagent.frames import turns as all_turns
from nbagent.run import load_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nbagent.lab.results import BatchResults


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


# A batch


def compare(batch: BatchResults, score: str | None = None, **options: Any) -> Figure:
    """Draw the mean scores of a batch's variants with their intervals and verdicts.

    Args:
        batch: the batch that `agent.map` returned.
        score: name of the score; not needed if the batch has only one.
        options: those of `batch.compare`: `over`, `by`, `baseline`, `failed`.
    """
    axes, variants = _variants(batch, score, options)
    rows = [
        (
            _variant_label(row, axes[:-1]),
            row[axes[-1]],
            row["mean"],
            row["lo"],
            row["hi"],
            row["verdict"],
        )
        for row in variants
        if row["mean"] is not None
    ]
    counts = {state: sum(row[state] for row in variants) for state in ("failed", "missing")}
    more = "".join(f" · {n} {state}" for state, n in counts.items() if n)
    score = score or "score"
    return load_figures().means(
        f"{score} by {axes[-1]}{more}", f"mean of {score}, 95 % interval", rows
    )


def cost_quality(batch: BatchResults, score: str | None = None, **options: Any) -> Figure:
    """Draw the cost per case of each variant against its mean score, without unknown prices.

    Arguments as in `compare`.
    """
    axes, variants = _variants(batch, score, options)
    failed_count = options.get("failed") == "zero"  # Then `n` includes the failed cases.
    rows = [
        (_variant_label(row, axes), row["cost_usd"] / cases, row["mean"], row["lo"], row["hi"])
        for row in variants
        if row["mean"] is not None and row["cost_usd"] is not None
        if (cases := row["n"] + (0 if failed_count else row["failed"]))
    ]
    return load_figures().cost_quality(f"mean of {score or 'score'}, 95 % interval", rows)


def _variants(
    batch: BatchResults, score: str | None, options: dict[str, Any]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the axes, the compared one last, and the rows; missing cells are None."""
    frame: Any = batch.compare(score, **options)
    columns = frame.columns.tolist()
    cells = frame.astype(object).where(frame.notna(), None)
    return columns[: columns.index("mean")], cells.to_dict("records")


def _variant_label(variant: dict[str, Any], axes: list[str]) -> str:
    return " · ".join(variant[name] for name in axes)


def _rows(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Return the cells of some columns, from rows that have all of them."""
    complete = frame[list(columns)].dropna()
    return list(zip(*(complete[name].tolist() for name in columns), strict=True))
