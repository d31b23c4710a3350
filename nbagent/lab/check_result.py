"""Result of a batch's checks: true or false, and as a frame, a table or a forge's report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbagent.contracts.checks import Check, failed_rows, n_unnamed_rows
from nbagent.contracts.errors import NbagentError
from nbagent.export.check_reports import junit_xml, markdown_report
from nbagent.store.dataframes import frame_of
from nbagent.view.listing import Listing
from nbagent.view.text_format import pluralize

if TYPE_CHECKING:
    from pandas import DataFrame

_DTYPES = {
    **dict.fromkeys(("check", "variant"), "string"),
    "ok": "boolean",
    **dict.fromkeys(("value", "lo", "hi", "limit"), "Float64"),
    **dict.fromkeys(("result", "advice", "rows"), "string"),
}


class CheckFailed(NbagentError):
    """A batch did not meet its checks."""

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckResult:
    """Result of `batch.check`: true if every check passed."""

    name: str
    """Name of the batch."""
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    unscored: str = ""
    """Why right and wrong answers passed alike; empty if a score was checked."""

    @property
    def ok(self) -> bool:
        """True if every check passed."""
        return all(check.ok for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.ok)

    def __bool__(self) -> bool:
        return self.ok

    def raise_for_failure(self) -> CheckResult:
        """Raise CheckFailed if a check failed; return the result otherwise."""
        if not self.ok:
            raise CheckFailed(str(self))
        return self

    def frame(self) -> DataFrame:
        """Return one row per check: `check`, `variant`, `ok`, `value`, `lo`, `hi`, `limit`,
        `result` in words, `advice`, and the `rows` that explain a failure."""
        rows = [
            {
                "check": check.name,
                **{name: getattr(check, name) for name in _DTYPES if name not in ("check", "rows")},
                "rows": ", ".join(row.row_key for row in check.rows) or None,
            }
            for check in self.checks
        ]
        made: Any = frame_of(rows)
        return made.reindex(columns=list(_DTYPES)).astype(_DTYPES)

    def junit(self) -> str:
        """Return JUnit XML, one test case for each check, for a forge's page of tests."""
        return junit_xml(self.name, self.checks)

    def markdown(self) -> str:
        """Return Markdown, for the summary of a forge's job."""
        notes = (self.unscored, *self.notes) if self.unscored else self.notes
        return markdown_report(self.name, self.checks, notes)

    def _listing(self) -> Listing:
        failures = self.failures
        state = f"{len(failures)} of {len(self.checks)} checks failed" if failures else "passed"
        unscored = f"; {self.unscored}" if self.unscored else ""
        rows = [
            (
                "passed" if check.ok else "FAILED",
                check.title,
                f"{check.result}; {check.advice}" if check.advice else check.result,
            )
            for check in self.checks
        ]
        parts = [_rows_listing(self.checks)] if any(check.rows for check in failures) else []
        return Listing(
            title=f"check of {self.name}: {state}{unscored}",
            columns=("", "check", "result"),
            rows=rows,
            notes=self.notes,
            parts=parts,
        )

    def __str__(self) -> str:
        return str(self._listing())

    def __repr__(self) -> str:
        failures = self.failures
        passed = "passed; no score was checked" if self.unscored else "passed"
        text = f"failed: {failures[0].title}: {failures[0].result}" if failures else passed
        return f"<CheckResult {self.name} {text}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self._listing()._repr_mimebundle_()  # pyright: ignore[reportPrivateUsage]


def _rows_listing(checks: Sequence[Check]) -> Listing:
    rows, more = failed_rows(checks), n_unnamed_rows(checks)
    has_variants = any(row.variant for row in rows)
    return Listing(
        columns=("row", *(("variant",) if has_variants else ()), "why", "answer"),
        rows=[
            (row.row_key, *((row.variant,) if has_variants else ()), row.why, row.text)
            for row in rows
        ],
        notes=[f"and {pluralize(more, 'more row')}"] if more else [],
    )
