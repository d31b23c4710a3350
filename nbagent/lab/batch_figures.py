"""Figures of a batch's scores: its variants compared, and their cost against their quality."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from nbagent.run import load_figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure
    from pandas import DataFrame


class Compared(Protocol):
    """The part of a batch's results that is drawn."""

    @property
    def compare(self) -> Callable[..., DataFrame]: ...


def compare(batch: Compared, score: str | None = None, **options: Any) -> Figure:
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


def cost_quality(batch: Compared, score: str | None = None, **options: Any) -> Figure:
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
    batch: Compared, score: str | None, options: dict[str, Any]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the axes, the compared one last, and the rows; missing cells are None."""
    frame: Any = batch.compare(score, **options)
    columns = frame.columns.tolist()
    cells = frame.astype(object).where(frame.notna(), None)
    return columns[: columns.index("mean")], cells.to_dict("records")


def _variant_label(variant: dict[str, Any], axes: list[str]) -> str:
    return " · ".join(variant[name] for name in axes)
