"""Colours of figures: readable on white and on dark pages, and one for each model.

A figure is a picture without a background, and no page tells it its theme. So each colour here has
a contrast of at least 3.5 with white and with the dark pages of JupyterLab and VS Code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256

from nbagent.view.theme import COLOURS

TEXT = "#7a7a7a"
"""Words, ticks and axes."""
GREY = "#80868f"
RED = "#d8453b"
TIME_COLOURS = {
    "model": COLOURS["model"],
    "tools": "#cf6a12",
    "waiting for you": GREY,
    "retries, failures": RED,
}
OUTCOME_COLOURS = {"ok": COLOURS["ok"], "failed": RED, "denied": GREY}
_PALETTE = (
    *(COLOURS["model"], "#cf6a12", "#12877c", "#c4459a", "#84801f"),
    *("#8a63d2", "#1f86bd", "#a86f45", "#3c8d3f", "#e05c7f"),
)
_MARKERS = "os^Dv"
_HATCHES = ("", "//", "..", "xx", "\\\\")


@dataclass(frozen=True, slots=True)
class Style:
    """Look of one name in every figure. A colour that is used again has another mark."""

    colour: str
    marker: str
    hatch: str


_positions: dict[tuple[str, str], int] = {}
"""Position of each name of a group, for the rest of the process."""


def style_of(name: str, group: str = "model") -> Style:
    """Return the look of a name: the same in every figure of this process.

    It follows from the name, so that other processes choose the same one, too, unless an earlier
    name has it already.
    """
    key = group, name
    if key not in _positions:
        used = {position for (other, _), position in _positions.items() if other == group}
        n = len(_PALETTE)
        wanted = int.from_bytes(sha256(name.encode("utf-8", "replace")).digest()[:4], "big") % n
        round_start = len(used) // n * n  # all colours are used before one is used again
        order = (round_start + (wanted + step) % n for step in range(n))
        _positions[key] = next(position for position in order if position not in used)
    position = _positions[key]
    more = position // len(_PALETTE)
    return Style(
        _PALETTE[position % len(_PALETTE)],
        _MARKERS[more % len(_MARKERS)],
        _HATCHES[more % len(_HATCHES)],
    )


def styles_of(names: Iterable[str], group: str = "model") -> dict[str, Style]:
    """Return the looks of the names of one figure; no two have one colour while some are left.

    A process that has drawn more names than there are colours gives two names the same one. In
    another figure of both, the later one takes a colour that this figure does not use.
    """
    own = list(dict.fromkeys(names))
    styles = {name: style_of(name, group) for name in own}
    if len(own) > len(_PALETTE):
        return styles  # the marks tell them apart
    used: set[str] = set()
    left = [colour for colour in _PALETTE if colour not in {s.colour for s in styles.values()}]
    for name, style in styles.items():
        if style.colour in used:
            styles[name] = replace(style, colour=left.pop(0))
        used.add(styles[name].colour)
    return styles
