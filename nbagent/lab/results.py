"""Results of a batch as a person reads them: frames, comparisons, differences, figures.

The same for a live batch (`batch`), one opened by its name (`stored_batch`) and a saved one: each
gives its cases as `CaseResult`s.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbagent.contracts.case_results import CaseResult
from nbagent.lab import agreement as agreements
from nbagent.lab import batch_figures, statistics
from nbagent.lab.case_pages import export_cases, page_options
from nbagent.lab.frames import cells_of_results, frame_of_results
from nbagent.store.dataframes import frame_of

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

    def frame(self) -> DataFrame:
        """Return one row per case: the table's columns, the variant, the run, its answer and
        scores.

        `run_id`, `ok`, `stop_reason`, `error`, `text`, `turns`, `total_tokens`, `cost_usd` (of all
        runs of the case, USD), `duration_ms`, `tools`, `output_…` for the fields of an answer of a
        type, `score_…`. A column of the table with one of these names is renamed to `row_…`.
        """
        results = self.results()
        return frame_of_results(results, self._rows(results))

    def _rows(self, results: Sequence[CaseResult]) -> DataFrame:
        """Return the table's columns for each case, as a frame of its own."""
        return frame_of([{"row_key": result.row_key, **result.cells} for result in results])

    def cells(self, score: str | None = None) -> DataFrame:
        """Return one row per case with one score.

        Columns: `row_key`, the axes, `attempt`, `run_id`, `state` (`scored`, `failed` or
        `missing`), `value`, `cost_usd`, `text`. `cost_usd` is the original cost of the answer,
        also if a recording answered this time.
        """
        return cells_of_results(self.results(), score, [*self.axes])

    def compare(
        self,
        score: str | None = None,
        over: str | None = None,
        by: str | Sequence[str] | None = None,
        baseline: str | None = None,
        failed: statistics.Failed = "leave out",
    ) -> DataFrame:
        """Compare variants: the mean score of each with its interval, and paired differences.

        A higher score is better. Intervals are bootstrapped over rows, and widened for few rows.

        Args:
            score: the scorer; may be left out where there is one.
            over: the axis whose labels are compared; default: the first with several labels.
            by: axes whose labels are kept apart; default: all others.
            baseline: the label that the others are compared with; default: the first.
            failed: leave a case without an answer out, or count it as 0. If a scorer failed, the
                score is missing in both cases.

        Returns:
            One row for each label: `mean`, `lo`, `hi` (95 %), `diff`, `diff_lo`, `diff_hi` to the
            baseline, `verdict`, `pairs`, `n`, `missing`, `failed`, `cost_usd`, `cost_per_right`.

        Raises:
            UsageError: there is no such score, axis or label, or the scores are labels.
        """
        return statistics.compare(
            self.cells(score),
            [*self.axes],
            over=over,
            by=by,
            baseline=None if baseline is None else str(baseline),
            failed=failed,
        )

    def diff(
        self,
        a: str,
        b: str,
        score: str | None = None,
        only: statistics.Flips = "changed",
        over: str | None = None,
    ) -> DataFrame:
        """Return the rows whose score differs between two labels, with both answers and runs."""
        return statistics.flips(self.cells(score), [*self.axes], a, b, only=only, over=over)

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
            One row for each pair of raters, and one of `all` if there are more than two: `n` (cases
            that they both scored), `agreement` (share of equal scores), `kappa` (Cohen's, with
            quadratic weights for numbers; of all: Fleiss'), `alpha` (Krippendorff's), each with its
            95 % interval (`agreement_lo`, `lo`, `alpha_lo`, …), and a `note` where there is no
            more to say. Answers to one row count as one observation in the intervals.

        Raises:
            UsageError: there is no such score or only one rater, or scores are of several kinds.
        """
        return agreements.agreement(self.results(), scores, level=level, right_from=right_from)

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


def axes_of(variants: Sequence[Any]) -> dict[str, list[str]]:
    """Return the labels of each axis, from the labels of variants or cases."""
    axes: dict[str, dict[str, None]] = {}
    for labels in variants:
        for axis, label in labels.items():
            axes.setdefault(axis, {})[label] = None
    return {axis: [*labels] for axis, labels in axes.items()}
