"""Requirements that a batch had to meet, and how it met them: values that reports are made of."""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def title(self) -> str:
        """The requirement with its variant."""
        return f"{self.name} [{self.variant}]" if self.variant else self.name
