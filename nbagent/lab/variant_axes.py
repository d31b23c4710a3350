"""Axes of a frame of cases and their labels, as options of a comparison name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.contracts.nearest import nearest_or_all


def checked_axis(axes: Sequence[str], name: str) -> str:
    """Return an axis; raise UsageError if there is none of this name."""
    if name not in axes:
        hint = nearest_or_all(name, axes, "the axes are") or "; nothing is varied"
        raise UsageError(f"there is no axis {name!r}{hint}")
    return name


def first_varied_axis(frame: Any, axes: Sequence[str]) -> str:
    """Return the first axis with several labels, else the first one."""
    return next((axis for axis in axes if len(labels_of(frame, axis)) > 1), axes[0])


def grouping_columns(
    axes: Sequence[str], columns: Sequence[str], over: str, by: str | Sequence[str] | None
) -> list[str]:
    """Return the axes and columns of the table that are kept apart.

    Raises:
        UsageError: there is none of a name, or it is the axis that is compared.
    """
    if by is None:
        return [name for name in axes if name != over]
    names = list(dict.fromkeys([by] if isinstance(by, str) else by))
    if over in names:
        raise UsageError(
            f"{over!r} cannot be in both over= and by=; choose another axis for one of them"
        )
    for name in names:
        if name not in axes and name not in columns:
            among = "the axes and columns are" if columns else "the axes are"
            hint = nearest_or_all(name, [*axes, *columns], among)
            kind = "axis or column" if columns else "axis"
            raise UsageError(f"there is no {kind} {name!r}{hint}")
    return names


def axis_with_labels(frame: Any, axes: Sequence[str], a: str, b: str, over: str | None) -> str:
    """Return the axis that has both labels; raise UsageError if none or several have."""
    if a == b:
        raise UsageError(f"{a!r} is compared with itself; give two labels of one axis")
    among = [checked_axis(axes, over)] if over is not None else axes
    labels = {name: labels_of(frame, name) for name in among}
    matches = [name for name, there in labels.items() if {a, b} <= set(there)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(
            f"{a!r} and {b!r} are labels of {', '.join(matches)}; choose one with over="
        )
    there = "; ".join(f"{name}: {', '.join(axis_labels)}" for name, axis_labels in labels.items())
    raise UsageError(f"no axis has both {a!r} and {b!r}; the labels are {there or 'none'}")


def labels_of(frame: Any, axis: str) -> list[str]:
    """Return the labels of an axis, in the order of the cases."""
    return list(dict.fromkeys(frame[axis].tolist()))
