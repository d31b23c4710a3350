"""Moments as the store keeps them: whole microseconds since 1970, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_us(moment: datetime) -> int:
    """Microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def from_us(value: int) -> datetime:
    """The moment, in UTC."""
    return _EPOCH + timedelta(microseconds=value)


def us_of(moment: datetime | None) -> int | None:
    """`to_us` of what may be missing."""
    return None if moment is None else to_us(moment)


def moment_of(value: int | None) -> datetime | None:
    """`from_us` of what may be missing."""
    return None if value is None else from_us(value)
