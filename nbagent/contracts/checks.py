"""Requirements that a batch had to meet, and how it met them: values that reports are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRow:
    """A case that explains why a check failed."""

    row_key: str
    variant: str = ""
    why: str
    """Its score, or its error."""
    text: str = ""
    """Start of its answer."""
    run_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One requirement, and the result of a batch."""

    name: str
    """The requirement, such as `exact ≥ 0.9`."""
    variant: str = ""
    """Labels of the cases that it is about; empty for all."""
    ok: bool
    result: str
    """The result in words, with its interval."""
    value: float | None = None
    lo: float | None = None
    """Lower end of the 95 % interval of the value."""
    hi: float | None = None
    limit: float | None = None
    advice: str = ""
    """What the data could not have shown, or what to do."""
    rows: tuple[CheckedRow, ...] = ()
    """The first cases that explain a failure."""
    n_rows: int = 0
    """Number of all such cases."""
    row_ids: frozenset[tuple[str, str]] = frozenset()
    """Row and variant of all such cases."""

    @property
    def title(self) -> str:
        """The requirement with its variant."""
        return f"{self.name} [{self.variant}]" if self.variant else self.name


def failed_rows(checks: Sequence[Check]) -> list[CheckedRow]:
    """Return the rows of the checks that failed, each once, with all reasons."""
    rows: dict[tuple[str, str], CheckedRow] = {}
    for row in (row for check in checks if not check.ok for row in check.rows):
        key = (row.row_key, row.variant)
        before = rows.get(key, row)
        reasons = dict.fromkeys((*before.why.split("; "), *row.why.split("; ")))
        rows[key] = replace(before, why="; ".join(reasons))
    return [*rows.values()]


def n_unnamed_rows(checks: Sequence[Check]) -> int:
    """Count the rows of failed checks beyond those that they name, each once."""
    row_ids = frozenset[tuple[str, str]]().union(*(c.row_ids for c in checks if not c.ok))
    return len(row_ids) - len(failed_rows(checks))
