"""Results of a batch as a person reads them: frames, comparisons, differences, figures.

The same for a live batch (`batch`), one opened by its name (`stored_batch`) and a saved one: each
gives its cases as `CaseResult`s.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.errors import UsageError
from nbagent.contracts.nearest import nearest_name, nearest_or_all
from nbagent.contracts.records import RunRecord
from nbagent.lab import agreement as agreements
from nbagent.lab import batch_figures, statistics
from nbagent.lab.baseline_files import load_batch, save_batch
from nbagent.lab.case_pages import export_cases, page_options
from nbagent.lab.check_result import CheckResult
from nbagent.lab.frames import (
    cells_of_results,
    choose_score,
    frame_of_results,
    with_table_columns,
    with_ties,
)
from nbagent.lab.gate import Requirements, check_results
from nbagent.lab.joined_results import BATCH_AXIS, join_results, joined_labels
from nbagent.lab.plan import key_text
from nbagent.run import Run, open_run
from nbagent.store.dataframes import frame_of
from nbagent.view.text_format import pluralize

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


class BatchResults(ABC):
    """Cases of a batch with their runs and scores."""

    name: str

    @abstractmethod
    def results(self) -> tuple[CaseResult, ...]:
        """Return all cases in their order: rows, then variants, then repeats."""

    @property
    def axes(self) -> dict[str, list[str]]:
        """Labels of each axis."""
        labels = [result.labels for result in self.results()]
        return axes_of(labels)

    def open_run(self, key: Any, *, attempt: int = 1, **variant: str) -> Run:
        """Return the run that answered a row, in the variant with these labels.

        Raises:
            UsageError: there is no such run (yet), or several.
        """
        matches = [result for result in self.results() if _is_case(result, key, attempt, variant)]
        if len(matches) != 1 or not matches[0].run_id:
            problem = "is no run" if len(matches) < 2 else "are runs of several variants"
            raise UsageError(
                f"there {problem} of row {key!r}, attempt {attempt}"
                f"{''.join(f', {axis}={label}' for axis, label in variant.items())}; the axes are "
                f"{', '.join(self.axes) or 'none'}"
            )
        return open_run(matches[0].run_id)

    def frame(self) -> DataFrame:
        """Return one row per case: the table's columns, the variant, the run, its answer and
        scores.

        `run_id`, `ok`, `stop_reason`, `error`, `text`, `turns`, `total_tokens`, `cost_usd` (of all
        runs of the case, USD), `duration_ms`, `tools_used`, `output_…` for the fields of an answer
        of a type, `score_…`. A column of the table with one of these names is renamed to `row_…`.
        """
        results = self.results()
        rows = self._rows(results)
        return frame_of_results(results, rows, has_key_column=self._has_key_column)

    @property
    def _has_key_column(self) -> bool:
        """True if a column of the table holds the row keys."""
        return False

    def _rows(self, results: Sequence[CaseResult]) -> DataFrame:
        """Return the table's columns for each case, as a frame of its own."""
        return frame_of([{**result.cells} for result in results])

    def cells(self, score: str | None = None) -> DataFrame:
        """Return one row per case with one score.

        Columns: `row_key`, the axes, `attempt`, `run_id`, `state` (`scored`, `failed` or
        `missing`), `value`, `cost_usd`, `text`. `cost_usd` is the original cost of the answer,
        also if a recording answered this time.
        """
        results = self.results()
        return cells_of_results(results, choose_score(results, score), [*self.axes])

    def only(self, **labels: str) -> CaseResults:
        """Return the cases with these labels, such as `only(prompt="v2")`, as a batch.

        Raises:
            UsageError: there is no such axis or label.
        """
        axes = self.axes
        for axis, label in labels.items():
            if axis not in axes:
                raise UsageError(f"there is no axis {axis!r}{nearest_or_all(axis, axes, 'it has')}")
            if str(label) not in axes[axis]:
                hint = nearest_or_all(str(label), axes[axis], "it has")
                raise UsageError(f"{axis!r} has no label {label!r}{hint}")
        chosen = {axis: str(label) for axis, label in labels.items()}
        cases = tuple(
            replace(
                result,
                labels={axis: label for axis, label in result.labels.items() if axis not in chosen},
            )
            for result in self.results()
            if all(result.labels[axis] == label for axis, label in chosen.items())
        )
        return _ChosenResults(self, chosen, cases)

    def compare(
        self,
        score_or_batch: str | BatchResults | None = None,
        /,
        over: str | None = None,
        by: str | Sequence[str] | None = None,
        baseline: str | None = None,
        failed: statistics.Failed = "leave out",
        *,
        score: str | None = None,
        pass_at: int | None = None,
        pass_all: int | None = None,
    ) -> DataFrame:
        """Compare variants: the mean score of each with its interval, and paired differences.

        Attempts of a row are averaged. The direction is that of the scorer (`better="lower"`); of
        the measures less is better. Labels are compared by the share of each.

        `first.compare(second)` compares two batches: the column `batch` names them, and rows of
        the same key and cells are pairs. A warning counts the rows that are none.

        Args:
            score_or_batch: the scorer; may be left out where there is one. Or a measure of answered
                cases: `cost_usd`, `tokens`, `duration_ms`, `turns`. Or another batch.
            score: the scorer or measure, beside another batch.
            over: the axis whose labels are compared; default: the first with several labels.
            by: axes and columns of the table that are kept apart; default: all other axes.
            baseline: the label that the others are compared with; default: the first.
            failed: leave a case without an answer out, or count it as 0. If a scorer failed, the
                score is missing in both cases.
            pass_at: compare pass@k, the chance that at least one of so many attempts is right.
            pass_all: compare pass^k, the chance that all of so many attempts are right.

        Returns:
            One row for each label: `mean`, `lo`, `hi` (95 %), `diff`, `diff_lo`, `diff_hi` to the
            baseline, `adjusted` (p, by Holm for all comparisons of the table), `detectable` (the
            smallest true difference that 4 of 5 such comparisons would show, if rows vary as they
            did here), `verdict`, `pairs`, `n`, `missing`, `failed`, `cost_usd`, `cost_per_right`,
            `note`. The intervals are of each comparison alone, only `adjusted` and `verdict` count
            all; where they seem to contradict one another, the note says so.

        Raises:
            UsageError: there is no such score, axis, column or label, or an option does not fit.
        """
        if isinstance(score_or_batch, BatchResults):
            return self._joined(score_or_batch).compare(
                score, over or BATCH_AXIS, by, baseline, failed, pass_at=pass_at, pass_all=pass_all
            )
        if score_or_batch is not None and score is not None:
            raise UsageError(f"the score is given twice: {score_or_batch!r} and {score!r}")
        results, axes = self.results(), [*self.axes]
        chosen = choose_score(results, score_or_batch or score)
        cells = with_ties(cells_of_results(results, chosen, axes), results, chosen.name)
        if by is not None and not {*([by] if isinstance(by, str) else by)} <= {*axes}:
            cells = with_table_columns(cells, results)
        return statistics.compare(
            cells,
            axes,
            over=over,
            by=by,
            baseline=None if baseline is None else str(baseline),
            failed=failed,
            better=chosen.better,
            is_measure=chosen.is_measure,
            pass_at=pass_at,
            pass_all=pass_all,
        )

    def diff(
        self,
        a: str | BatchResults,
        b: str | None = None,
        score: str | None = None,
        only: statistics.Flips = "changed",
        over: str | None = None,
    ) -> DataFrame:
        """Return the rows whose score differs between two labels, with both answers and runs.

        `first.diff(second)` returns those that differ between two batches.
        """
        if isinstance(a, BatchResults):
            labels = joined_labels(self.name, a.name)
            return self._joined(a).diff(*labels, score=score, only=only, over=BATCH_AXIS)
        if b is None:
            raise UsageError(f"{a!r} is compared with nothing; give two labels, or another batch")
        results, axes = self.results(), [*self.axes]
        chosen = choose_score(results, score)
        return statistics.flips(
            cells_of_results(results, chosen, axes),
            axes,
            a,
            b,
            only=only,
            over=over,
            better=chosen.better,
        )

    def _joined(self, other: BatchResults) -> CaseResults:
        """Join it with another batch; warn of the rows that are no pairs."""
        labels = joined_labels(self.name, other.name)
        joined = join_results(self.results(), other.results(), labels)
        if sentences := joined.sentences():
            warnings.warn("; ".join(sentences), stacklevel=3)
        return CaseResults(" and ".join(labels), joined.results)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write its cases and scores to a JSON file, as a baseline: data only, secrets hidden.

        A batch at work is waited for.

        `nbagent.read_batch` reads it, `check(baseline=…)` compares with it. Texts are cut so that
        the file has at most 16 MB; runs stay in the store.

        Returns:
            The file.
        """
        done = self._at_its_end()
        return save_batch(path, done.name, done.axes, done.results())

    def check(
        self,
        min: Mapping[str, float] | None = None,
        not_worse_than: str | os.PathLike[str] | BatchResults | None = None,
        *,
        max: Mapping[str, float] | None = None,
        baseline: str | os.PathLike[str] | BatchResults | None = None,
        max_worse: int | None = None,
        max_failed: float = 0,
        max_cost_usd: float | None = None,
    ) -> CheckResult:
        """Check the scores, for example in a test: `assert batch.check(min={"exact": 0.9})`.

        A batch at work is waited for. Every variant must meet every requirement, and every case
        must have its answer and its scores; `batch.only(prompt="v2").check(…)` checks one variant.

        Args:
            min: least mean of each score. The mean itself must reach it; its interval is shown. A
                case without an answer counts as 0 in a score from 0 to 1.
            not_worse_than: a baseline: the file of `save`, another batch, the name of one in the
                store, or `"last"`, the newest other batch of the store with the same rows. For
                `batch.only(…)`, the same variant of it is taken where it has several. A score
                whose verdict is "worse" fails; the result says which drop the number of rows
                could have shown at all.
            max: greatest mean of each score.
            baseline: another name of `not_worse_than`.
            max_worse: greatest number of rows whose score is worse than in the baseline.
            max_failed: greatest number of cases without an answer; a float up to 1 is a share.
            max_cost_usd: greatest cost of all cases, in USD. Answers from a recording count with
                what they cost when they were new.

        Raises:
            UsageError: a score or the baseline is unknown, or they cannot be compared.
        """
        if not_worse_than is not None and baseline is not None:
            raise UsageError("not_worse_than and baseline are two names of one option; give one")
        source = baseline if not_worse_than is None else not_worse_than
        required = Requirements(
            minimum=min or {},
            maximum=max or {},
            max_worse=max_worse,
            max_failed=max_failed,
            max_cost_usd=max_cost_usd,
        )
        earlier = None if source is None else self._baseline(source).results()
        return check_results(self.name, self._at_its_end().results(), required, earlier)

    def _at_its_end(self) -> BatchResults:
        """Wait for its end if it is at work, and return it."""
        return self

    def _baseline(self, source: Any) -> BatchResults:
        """Return the batch that `not_worse_than` names."""
        if isinstance(source, BatchResults):
            return source
        if isinstance(source, Path) or str(source).endswith(".json"):
            saved = load_batch(source)
            return CaseResults(saved.name, saved.results, saved.axes)
        raise UsageError(
            f"not_worse_than={source!r} is no baseline; give the file that batch.save('x.json') "
            "wrote, or a batch"
        )

    def agreement(
        self,
        *scores: str,
        level: agreements.Level | None = None,
        right_from: float | None = None,
    ) -> DataFrame:
        """Compare the raters of the answers: people among each other, and judges with people.

        Args:
            scores: names of scores, such as `"review"` and `"judge"`; default: all that people or
                judges gave.
            level: `"nominal"` for labels, `"ordinal"` for ranks, `"interval"` for numbers whose
                distances count; default: nominal for labels and verdicts, ordinal for numbers.
            right_from: count numbers as true from this one on, to compare them with verdicts.

        Returns:
            One row for each pair of raters, and one of `all` if there are more than two; without
            names, verdicts, labels and numbers are blocks of their own. `n` (cases that they both
            scored), `agreement` (share of equal scores), `kappa` (Cohen's, with quadratic weights
            for numbers; of all: Fleiss'), `alpha` (Krippendorff's), each with its 95 % interval
            (`agreement_lo`, `lo`, `alpha_lo`, …), and a `note` where there is no more to say.
            Answers to one row count as one observation in the intervals.

        Raises:
            UsageError: there is no such score or only one rater, or scores are of several kinds.
        """
        return agreements.agreement(self.results(), scores, level=level, right_from=right_from)

    def variant_texts(self) -> tuple[tuple[str, str, str], ...]:
        """Return axis, label and text of each variant's text, such as a system prompt."""
        return ()

    @property
    def run_loader(self) -> Callable[[str], RunRecord | None] | None:
        """Function that loads a run of a case, None for a deleted one; None without a store."""
        return None

    def plot(self, score: str | None = None, **options: Any) -> Figure:
        """Draw the variants' mean scores with their intervals; see `nbagent.plot.compare`."""
        return batch_figures.compare(self, score, **options)

    def export(
        self,
        format: str = "html",
        path: str | os.PathLike[str] | None = None,
        *,
        name: str = "review",
        scale: int = 5,
        by: str = "person",
        blind: bool = False,
    ) -> str:
        """Export the page over all cases as text, and write it to `path` if one is given.

        `html` is one file that works offline: its rows are filtered, sorted, compared, unfolded
        and labelled; `add_labels` reads the labels that it exports. A case takes at most 4 kB and
        all of them 5 MB: the page says what is left out.

        Args:
            format: `html`.
            path: file to write as well; an existing one is replaced.
            name: name of the score that its labels get.
            scale: best label, 2 to 5; 0 for yes and no.
            by: name of the person who labels.
            blind: True hides the variants and what would name them.

        Raises:
            UsageError: the format is unknown, an option is not valid, or the file is not writable.
        """
        options = page_options(name, scale, by, blind)
        return export_cases(self, format, path, options)

    def __len__(self) -> int:
        return len(self.results())

    if not TYPE_CHECKING:  # a checker shall go on to refuse unknown names

        def __getattr__(self, name: str) -> Any:
            """Refuse an unknown name, and suggest the nearest, or the frame."""
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # raises the property's own error again
            if name.startswith("_"):
                raise AttributeError(name, name=name, obj=self)
            names = [known for known in dir(self) if not known.startswith("_")]
            near = nearest_name(name, names)
            hint = f"did you mean {near!r}?" if near else "batch.frame() returns the DataFrame"
            raise AttributeError(f"a batch has no {name!r}; {hint}", name=name, obj=self)


def _is_case(result: CaseResult, key: Any, attempt: int, variant: Mapping[str, str]) -> bool:
    labels = all(result.labels.get(axis) == str(label) for axis, label in variant.items())
    return result.row_key == key_text(key) and result.attempt == attempt and labels


class CaseResults(BatchResults):
    """Batch that is made of cases at hand."""

    def __init__(
        self,
        name: str,
        results: Sequence[CaseResult],
        axes: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Hold these cases; the labels of the axes are theirs unless `axes` names them."""
        self.name = name
        self._results = tuple(results)
        self._axes = axes_of([case.labels for case in results]) if axes is None else axes

    def results(self) -> tuple[CaseResult, ...]:
        """Return all cases in their order."""
        return self._results

    @property
    def axes(self) -> dict[str, list[str]]:
        """Labels of each axis."""
        return {axis: [*labels] for axis, labels in self._axes.items()}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {pluralize(len(self), 'case')}>"


class _ChosenResults(CaseResults):
    """Cases of a batch with these labels."""

    def __init__(
        self, whole: BatchResults, chosen: Mapping[str, str], results: Sequence[CaseResult]
    ) -> None:
        super().__init__(" · ".join([whole.name, *chosen.values()]), results)
        self._whole, self._chosen = whole, chosen

    def _baseline(self, source: Any) -> BatchResults:
        """Return the same variant of a baseline that varies the same axes."""
        baseline = self._whole._baseline(source)
        axes = baseline.axes
        shared = {axis: label for axis, label in self._chosen.items() if axis in axes}
        try:
            return baseline.only(**shared) if shared else baseline
        except UsageError as error:
            raise UsageError(f"the baseline {baseline.name!r}: {error.message}") from None

    def __repr__(self) -> str:
        return f"<CaseResults {self.name}, {pluralize(len(self), 'case')}>"


def axes_of(variants: Sequence[Any]) -> dict[str, list[str]]:
    """Return the labels of each axis, from the labels of variants or cases."""
    axes: dict[str, dict[str, None]] = {}
    for labels in variants:
        for axis, label in labels.items():
            axes.setdefault(axis, {})[label] = None
    return {axis: [*labels] for axis, labels in axes.items()}
