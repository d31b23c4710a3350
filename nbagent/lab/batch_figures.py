"""Figures of a batch's scores: its variants compared, and their cost against their quality."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from nbagent.contracts.case_results import MEASURES
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
        options: those of `batch.compare`: `over`, `by`, `baseline`, `failed`, `pass_at`,
            `pass_all`.
    """
    axes, variants = _variants(batch, score, options)
    rows = [
        (
            _variant_label(row, axes[:-1]),
            row[axes[-1]],
            row["mean"],
            row["lo"],
            row["hi"],
            _verdict(row),
        )
        for row in variants
        if row["mean"] is not None
    ]
    counts = {state: sum(row[state] for row in variants) for state in ("failed", "missing")}
    more = "".join(f" · {n} {state}" for state, n in counts.items() if n)
    n_tests = sum(row["adjusted"] is not None for row in variants)
    more += f" · p adjusted for {n_tests} comparisons" if n_tests > 1 else ""
    return load_figures().means(
        f"{_name(score, options)} by {axes[-1]}{more}",
        _unit(score, options),
        rows,
        is_share=_is_share(score, variants),
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
    n_unknown = sum(row["mean"] is not None and row["cost_usd"] is None for row in variants)
    more = f" · {n_unknown} of {len(variants)} without a known price" if n_unknown else ""
    return load_figures().cost_quality(
        _unit(score, options), rows, more=more, is_share=_is_share(score, variants)
    )


def _name(score: str | None, options: dict[str, Any]) -> str:
    """Return the name of the compared value, such as `pass@3 of exact`."""
    for option, sign in (("pass_at", "@"), ("pass_all", "^")):
        if options.get(option) is not None:
            return f"pass{sign}{options[option]} of {score or 'score'}"
    return score or "score"


def _unit(score: str | None, options: dict[str, Any]) -> str:
    is_chance = any(options.get(name) is not None for name in ("pass_at", "pass_all"))
    return f"{'' if is_chance else 'mean of '}{_name(score, options)}, 95 % interval"


def _is_share(score: str | None, variants: list[dict[str, Any]]) -> bool:
    """True if the axis of the score goes from 0 to 1."""
    means = [row["mean"] for row in variants if row["mean"] is not None]
    return score not in MEASURES and all(0 <= mean <= 1 for mean in means)


def _verdict(row: dict[str, Any]) -> str:
    """Return the verdict with its p."""
    p = row["adjusted"]
    if p is None:
        return row["verdict"]
    return f"{row['verdict']}, p {'< 0.001' if p < 0.001 else f'= {p:.2g}'}"


def _variants(
    batch: Compared, score: str | None, options: dict[str, Any]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the axes, the compared one last, and the rows; missing cells are None."""
    frame: Any = batch.compare(score, **options)
    columns = frame.columns.tolist()
    cells = frame.astype(object).where(frame.notna(), None)
    return columns[: columns.index("mean")], cells.to_dict("records")


def _variant_label(variant: dict[str, Any], axes: list[str]) -> str:
    # A group of rows may have no value in its column of the table.
    return " · ".join(variant[name] or "none" for name in axes)
