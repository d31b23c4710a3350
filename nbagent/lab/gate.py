"""Checks of a batch for a test or a forge: means, a baseline, failures, cost. Pure.

Says no more than the data: a mean is shown with its interval, and a comparison that shows no
difference with the drop that its number of rows could have shown.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.checks import Check, CheckedRow
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import Better, ScoreRecord
from nbagent.lab import statistics
from nbagent.lab.check_result import CheckResult
from nbagent.lab.frames import cells_of_results, choose_score, is_tied, score_names
from nbagent.lab.joined_results import BATCH_AXIS, JoinedResults, join_results
from nbagent.view.text_format import format_cost, one_line, pluralize

_MAX_ROWS = 10
"""Cases that a check names."""
_TEXT_CHARS = 200
_BASELINE, _NOW = "baseline", "now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Requirements of one call of `check`, with values that are valid."""

    minimum: Mapping[str, float] = field(default_factory=dict[str, float])
    maximum: Mapping[str, float] = field(default_factory=dict[str, float])
    max_worse: int | None = None
    max_failed: float = 0
    max_cost_usd: float | None = None

    def __post_init__(self) -> None:
        for name in ("minimum", "maximum"):
            _check_limits(name[:3], getattr(self, name))
        is_count = type(self.max_worse) is int and self.max_worse >= 0
        if self.max_worse is not None and not is_count:
            raise UsageError(f"max_worse={self.max_worse!r} is not valid; expected a whole number")
        if not _is_number(self.max_failed) or self.max_failed < 0:
            raise UsageError(
                f"max_failed={self.max_failed!r} is not valid; expected a number of cases, or a "
                "share up to 1.0"
            )
        if self.max_cost_usd is not None and not (
            _is_number(self.max_cost_usd) and self.max_cost_usd >= 0
        ):
            raise UsageError(f"max_cost_usd={self.max_cost_usd!r} is not valid; expected USD")


def _check_limits(option: str, limits: Any) -> None:
    if not isinstance(limits, Mapping):
        raise UsageError(
            f"{option}={reprlib.repr(limits)} is not valid; write {option}={{'exact': 0.9}}"
        )
    for score, limit in cast("Mapping[Any, Any]", limits).items():
        if not _is_number(limit):
            raise UsageError(f"{option}: the limit of {score!r} is {limit!r}; give a number")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def check_results(
    name: str,
    results: Sequence[CaseResult],
    required: Requirements,
    baseline: Sequence[CaseResult] | None = None,
) -> CheckResult:
    """Check the cases of a batch; see `BatchResults.check`.

    Raises:
        UsageError: a score is unknown, or the baseline cannot be compared.
    """
    if required.max_worse is not None and baseline is None:
        raise UsageError("max_worse needs a baseline: not_worse_than='baseline.json'")
    limited = [*dict.fromkeys([*required.minimum, *required.maximum])]
    checks = [_answered(results), _failed(results, required.max_failed)]
    if not any(case.status == "ok" for case in results):
        # Then nothing is scored, and no name of a score is wrong.
        checks += [Check(name=f"score {score}", ok=False, result="no answer") for score in limited]
        return CheckResult(name=name, checks=tuple(checks))
    joined = None if baseline is None else _joined(baseline, results)
    scores = limited or ([] if joined is None else _common_scores(joined))
    checks += [check for score in scores for check in _scored(results, score)]
    for limits, sign in ((required.minimum, "≥"), (required.maximum, "≤")):
        checks += [
            check
            for score, limit in limits.items()
            for check in _means(results, score, sign, float(limit))
        ]
    if joined is not None:
        checks.append(_shared_rows(joined))
        checks += [check for score in scores for check in _compared(joined, score, required)]
    if required.max_cost_usd is not None:
        checks.append(_cost(results, required.max_cost_usd))
    return CheckResult(
        name=name,
        checks=tuple(checks),
        notes=tuple(joined.sentences() if joined else ()),
        unscored="" if scores else _unscored(results),
    )


def _unscored(results: Sequence[CaseResult]) -> str:
    """Say that right and wrong answers passed alike, and how to require a score."""
    names = score_names(results)
    if not names:
        return "no score was checked: the batch has none; agent.map(…, score=…) gives it one"
    return (
        f"no score was checked: require one, such as min={{{names[0]!r}: 0.9}}, in a shell "
        f"--min {names[0]}=0.9"
    )


# Cases


def _row(result: CaseResult, why: str) -> CheckedRow:
    return CheckedRow(
        row_key=result.row_key,
        variant=result.variant,
        why=one_line(why, _TEXT_CHARS),
        text=one_line(result.text, _TEXT_CHARS),
        run_id=result.run_id,
    )


def _rows(cases: Sequence[CaseResult], why: Callable[[CaseResult], str]) -> dict[str, Any]:
    """Return the fields of a check that name cases."""
    return {
        "rows": tuple(_row(case, why(case)) for case in cases[:_MAX_ROWS]),
        "n_rows": len(cases),
        "row_ids": frozenset((case.row_key, case.variant) for case in cases),
    }


def _answered(results: Sequence[CaseResult]) -> Check:
    open_cases = [case for case in results if case.status in ("missing", "unfinished")]
    text = f"{len(results) - len(open_cases):,} of {pluralize(len(results), 'case')}"
    return Check(
        name="all cases are asked",
        ok=bool(results) and not open_cases,
        result=text,
        advice="batch.resume() asks the missing ones" if open_cases else "",
        **_rows(open_cases, lambda case: case.why or case.status),
    )


def _shared_rows(joined: JoinedResults) -> Check:
    """Check that most rows of the baseline are compared: a few pairs would hide the others."""
    n_rows = joined.n_pairs + len(joined.only_first) + len(joined.changed)
    is_met = joined.n_pairs * 2 >= n_rows
    return Check(
        name="half of the baseline's rows are compared",
        ok=is_met,
        result=f"{joined.n_pairs:,} of {pluralize(n_rows, 'row')}",
        advice="" if is_met else "if the table shall be so, save the baseline again",
    )


def _failed(results: Sequence[CaseResult], max_failed: float) -> Check:
    failed = [case for case in results if _has_failed(case)]
    is_share = isinstance(max_failed, float) and max_failed <= 1  # as in `Agent.map`
    limit = math.floor(max_failed * len(results) + 1e-9) if is_share else max_failed
    return Check(
        name=f"cases without an answer ≤ {limit:g}",
        ok=len(failed) <= limit,
        result=f"{len(failed):,} of {pluralize(len(results), 'case')}",
        value=float(len(failed)),
        limit=float(limit),
        **_rows(failed, lambda case: case.why or case.status),
    )


def _has_failed(case: CaseResult) -> bool:
    return case.status in ("failed", "ended")


def _scored(results: Sequence[CaseResult], score: str) -> Iterator[Check]:
    """Yield a check if cases with an answer lack a score. A scorer may return None on purpose."""
    if choose_score(results, score).is_measure:
        return
    unscored = [case for case in results if case.status == "ok" and not _is_scored(case, score)]
    if unscored:
        yield Check(
            name=f"all answers have the score {score}",
            ok=False,
            result=f"{pluralize(len(unscored), 'answer')} without it",
            advice="batch.score(…) scores them",
            **_rows(unscored, lambda case: _scorer_error(case, score)),
        )


def _is_scored(case: CaseResult, score: str) -> bool:
    """True if a score counts. Labels of people who disagree give none, but not on purpose."""
    own = [record for record in case.scores if record.scorer == score]
    return any(map(_is_usable, own)) and not is_tied(case, score)


def _is_usable(score: ScoreRecord) -> bool:
    is_odd = isinstance(score.value, float) and not math.isfinite(score.value)
    return score.error is None and not is_odd


def _scorer_error(case: CaseResult, score: str) -> str:
    errors = (own.error for own in case.scores if own.scorer == score and own.error)
    return next(errors, "its labels differ" if is_tied(case, score) else "not scored")


def _cost(results: Sequence[CaseResult], limit: float) -> Check:
    costs = [case.full_cost_usd for case in results]
    total = math.fsum(cost for cost in costs if cost is not None)
    unpriced = sum(
        case.run_id != "" and cost is None for case, cost in zip(results, costs, strict=True)
    )
    return Check(
        name=f"cost ≤ {format_cost(limit)}",
        ok=total <= limit,
        result=format_cost(total),
        value=total,
        limit=limit,
        advice=f"{pluralize(unpriced, 'case')} without a known price" if unpriced else "",
    )


# Means

_Scored = tuple[CaseResult, float | None]
"""A case and its score."""


def _means(results: Sequence[CaseResult], score: str, sign: str, limit: float) -> Iterator[Check]:
    """Yield a check of the mean of a score for each variant."""
    axes = _axes(results)
    chosen = choose_score(results, score)
    cells: Any = cells_of_results(results, chosen, axes)
    labels = [value for value in cells["value"].tolist() if isinstance(value, str)]
    if labels:
        raise UsageError(
            f"the scores {score!r} are labels, like {labels[0]!r}, and have no mean; let the "
            "scorer return a number or a bool"
        )
    _check_share(results, score, limit)
    over, *others = axes or ["variant"]
    better: Better = "higher" if sign == "≥" else "lower"
    failed = _failed_value(cells, better)
    compared: Any = statistics.compare(
        cells,
        axes,
        over=over if axes else None,
        by=others,
        failed=failed,
        better=better,
        is_measure=chosen.is_measure,
    )
    values = cells["value"].tolist()
    by_variant: dict[str, list[_Scored]] = {}
    for case, value in zip(results, values, strict=True):
        by_variant.setdefault(case.variant, []).append((case, _number(value)))
    for row in compared.to_dict("records"):
        variant = " · ".join(str(row[axis]) for axis in axes)
        mean = _number(row["mean"])
        is_met = mean is not None and (mean >= limit if sign == "≥" else mean <= limit)
        yield Check(
            name=f"{score} {sign} {limit:g}",
            variant=variant,
            ok=is_met,
            result=_mean_text(mean, row, failed),
            value=mean,
            lo=_number(row["lo"]),
            hi=_number(row["hi"]),
            limit=limit,
            **({} if is_met else _worst(by_variant[variant], score, limit, sign)),
        )


def _failed_value(cells: Any, better: Better) -> statistics.Failed:
    """Count a case without an answer as 0 where 0 is the worst score."""
    is_share = bool(cells["value"].dropna().map(_is_share).all())
    return "zero" if is_share and better == "higher" else "leave out"


def _is_share(value: Any) -> bool:
    return not isinstance(value, str) and 0 <= value <= 1


def _check_share(results: Sequence[CaseResult], score: str, limit: float) -> None:
    """Refuse a limit that no share of yes can have, such as 90 for 90 %."""
    values = [
        own.value
        for case in results
        for own in case.scores
        if own.scorer == score and own.value is not None
    ]
    is_yes_no = bool(values) and all(isinstance(value, bool) for value in values)
    if is_yes_no and not 0 <= limit <= 1:
        hint = f"; write {limit / 100:g} for {limit:g} %" if 1 < limit <= 100 else ""
        raise UsageError(
            f"the score {score!r} is yes or no, so its mean is a share from 0 to 1, and "
            f"{limit:g} is no limit for it{hint}"
        )


def _mean_text(mean: float | None, row: Mapping[str, Any], failed: statistics.Failed) -> str:
    if mean is None:
        return "no score"
    lo, hi = _number(row["lo"]), _number(row["hi"])
    interval = "no interval" if lo is None or hi is None else f"95 %: {lo:.3g} to {hi:.3g}"
    note = _failed_note(int(row["failed"]), failed)
    return f"{mean:.3g} ({interval}, {pluralize(int(row['n']), 'case')}{note})"


def _failed_note(n_failed: int, failed: statistics.Failed) -> str:
    """Say what the cases without an answer count; empty if there are none."""
    counted = "counted as 0" if failed == "zero" else "left out"
    return f", {n_failed:,} without an answer {counted}" if n_failed else ""


def _worst(scored: Sequence[_Scored], score: str, limit: float, sign: str) -> dict[str, Any]:
    """Name the cases that keep the mean from its limit, the worst first."""
    bad = [
        (case, value)
        for case, value in scored
        if value is not None and (value < limit if sign == "≥" else value > limit)
    ]
    bad.sort(key=lambda item: item[1], reverse=sign == "≤")
    failed = [
        case for case, value in scored if value is None and case.status in ("failed", "ended")
    ]
    values = {id(case): value for case, value in bad}
    return _rows(
        [*failed, *(case for case, _ in bad)],
        lambda case: f"{score} {values[id(case)]:g}" if id(case) in values else case.why,
    )


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):  # pandas.NA
        return None


def _axes(results: Sequence[CaseResult]) -> list[str]:
    return [*dict.fromkeys(axis for case in results for axis in case.labels)]


# The baseline


def _joined(baseline: Sequence[CaseResult], results: Sequence[CaseResult]) -> JoinedResults:
    joined = join_results(baseline, results, (_BASELINE, _NOW))
    if not joined.n_pairs:
        problem = "; ".join(joined.sentences()) or "it has no rows"
        raise UsageError(
            f"the baseline has no row in common with this batch: {problem}; save it anew: "
            "batch.save('baseline.json')"
        )
    return joined


def _common_scores(joined: JoinedResults) -> list[str]:
    """Return the scores of both batches that have a mean."""
    sides = [
        [case for case in joined.results if case.labels[BATCH_AXIS] == label]
        for label in joined.labels
    ]
    names = [score for score in score_names(sides[0]) if score in score_names(sides[1])]
    numeric = [
        score
        for score in names
        if any(_is_number_score(own, score) for case in sides[0] for own in case.scores)
    ]
    if not numeric:
        raise UsageError(
            "the baseline and this batch have no score with numbers in common; the baseline has "
            f"{', '.join(score_names(sides[0])) or 'none'}"
        )
    return numeric


def _is_number_score(score: ScoreRecord, name: str) -> bool:
    return score.scorer == name and isinstance(score.value, bool | int | float)


def _compared(joined: JoinedResults, score: str, required: Requirements) -> Iterator[Check]:
    """Yield the checks of a score against the baseline, for each variant."""
    chosen = choose_score(joined.results, score)
    if not chosen.is_measure:
        _check_versions(joined, score)
    axes = _axes(joined.results)
    cells: Any = cells_of_results(joined.results, chosen, axes)
    others = [axis for axis in axes if axis != BATCH_AXIS]
    better = chosen.better
    compared: Any = statistics.compare(
        cells,
        axes,
        over=BATCH_AXIS,
        by=others,
        baseline=_BASELINE,
        failed=_failed_value(cells, better),
        better=better,
        is_measure=chosen.is_measure,
    )
    worse: Any = statistics.flips(
        cells, axes, _BASELINE, _NOW, only="worse", over=BATCH_AXIS, better=better
    )
    table = compared.to_dict("records")
    for row in table:
        if row[BATCH_AXIS] == _NOW:
            labels = {axis: str(row[axis]) for axis in others}
            mine = _with_labels(worse.to_dict("records"), labels)
            n_failed = sum(int(side["failed"]) for side in _with_labels(table, labels))
            note = _failed_note(n_failed, _failed_value(cells, better))
            yield _not_worse(score, " · ".join(labels.values()), row, mine, note)
            if required.max_worse is not None:
                yield _few_worse(score, " · ".join(labels.values()), mine, required.max_worse)


def _with_labels(
    rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    return [row for row in rows if all(str(row[axis]) == label for axis, label in labels.items())]


def _check_versions(joined: JoinedResults, score: str) -> None:
    """Refuse scores that two versions of a scorer gave."""
    versions: dict[str, set[int]] = {label: set() for label in joined.labels}
    for case in joined.results:
        versions[case.labels[BATCH_AXIS]] |= {
            own.version for own in case.scores if own.scorer == score
        }
    before, now = (versions[label] for label in joined.labels)
    if not before:
        known = score_names([c for c in joined.results if c.labels[BATCH_AXIS] == _BASELINE])
        raise UsageError(
            f"the baseline has no score {score!r}; it has {', '.join(known) or 'none'}; save it "
            "anew: batch.save('baseline.json')"
        )
    if now and before != now:
        raise UsageError(
            f"the scorer {score!r} has version {_numbers(now)} here and {_numbers(before)} in the "
            "baseline, so its scores cannot be compared; save the baseline anew"
        )


def _numbers(versions: set[int]) -> str:
    return " and ".join(map(str, sorted(versions)))


def _not_worse(
    score: str,
    variant: str,
    row: Mapping[str, Any],
    flips: Sequence[Mapping[str, Any]],
    note: str,
) -> Check:
    is_worse = row["verdict"] == "worse"
    diff, lo, hi = (_number(row[name]) for name in ("diff", "diff_lo", "diff_hi"))
    pairs = int(row["pairs"])
    if diff is None:
        text = "no pair of scores"
    else:
        unknown = "no interval" if diff else "no pair differs"
        interval = unknown if lo is None or hi is None else f"95 %: {lo:+.3g} to {hi:+.3g}"
        p = _number(row["adjusted"])
        adjusted = "" if p is None else f", adjusted p {p:.2g}"
        text = f"{diff:+.3g} ({interval}, {pluralize(pairs, 'pair')}{note}{adjusted})"
        text = f"{text}: {row['verdict']}"
    return Check(
        name=f"{score} not worse than the baseline",
        variant=variant,
        ok=not is_worse and pairs > 0,
        result=text,
        value=diff,
        lo=lo,
        hi=hi,
        limit=0.0,
        advice="" if is_worse else _could_show(row),
        **(_flip_rows(score, variant, flips) if is_worse else {}),
    )


def _could_show(row: Mapping[str, Any]) -> str:
    """Say how large a change the pairs could have shown, 4 times of 5."""
    pairs, smallest = pluralize(int(row["pairs"]), "pair"), _number(row["detectable"])
    if not smallest:
        return f"{pairs} cannot show a change" if _number(row["diff"]) else ""
    return f"{pairs} can show a change of {smallest:.2g} or more"


def _few_worse(score: str, variant: str, flips: Sequence[Mapping[str, Any]], limit: int) -> Check:
    is_met = len(flips) <= limit
    return Check(
        name=f"rows with a worse {score} than in the baseline ≤ {limit}",
        variant=variant,
        ok=is_met,
        result=pluralize(len(flips), "row"),
        value=float(len(flips)),
        limit=float(limit),
        **({} if is_met else _flip_rows(score, variant, flips)),
    )


def _flip_rows(score: str, variant: str, flips: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rows = tuple(
        CheckedRow(
            row_key=str(flip["row_key"]),
            variant=variant,
            why=f"{score} {_number(flip[f'value_{_BASELINE}']):g} → "
            f"{_number(flip[f'value_{_NOW}']):g}",
            text=one_line(_text(flip[f"text_{_NOW}"]), _TEXT_CHARS),
            run_id=_text(flip[f"run_{_NOW}"]),
        )
        for flip in flips[:_MAX_ROWS]
    )
    row_ids = frozenset((str(flip["row_key"]), variant) for flip in flips)
    return {"rows": rows, "n_rows": len(flips), "row_ids": row_ids}


def _text(cell: Any) -> str:
    return cell if isinstance(cell, str) else ""
