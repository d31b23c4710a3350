"""Changes of a live picture since its last message: parts to draw again, texts that grew.

A part is drawn when the message is made, once, however many events changed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nbagent.view.node import Node

Op = list[Any]
"""`["put", key, node, parent]`, `["add", key, text]` or `["done", node]`."""
Draw = Callable[[], Node | None]
"""Draws a part as it is now; None if it is not shown any more."""


class Changes:
    """Keys to draw again and texts to append. Keys of parts begin with the key of their whole."""

    def __init__(self) -> None:
        self._drawings: dict[str, tuple[Draw, str]] = {}
        self._texts: dict[str, list[str]] = {}

    def mark(self, key: str, draw: Draw, parent: str = "") -> None:
        """Mark a part to be drawn again.

        Args:
            key: its `data-key`.
            draw: draws it when the message is made.
            parent: key of the element that gets it, if the page has no such part yet.
        """
        # A key that is marked again stays in its position: there its parent already exists.
        if key not in self._drawings:
            if self._is_drawn_with(key):
                return
            self._forget_parts(key)
        self._drawings[key] = draw, parent

    def append(self, key: str, text: str) -> None:
        """Append a text to a part, unless the part is drawn again anyway."""
        if key not in self._drawings and not self._is_drawn_with(key):
            self._texts.setdefault(key, []).append(text)

    def take(self) -> list[Op]:
        """Draw the changes; the next ones begin empty."""
        drawings, texts = self._drawings, self._texts
        self.clear()
        drawn = ((key, draw(), parent) for key, (draw, parent) in drawings.items())
        puts: list[Op] = [["put", key, node, parent] for key, node, parent in drawn if node]
        return [*puts, *(["add", key, "".join(pieces)] for key, pieces in texts.items())]

    def clear(self) -> None:
        """Drop the changes: the whole picture is sent instead."""
        self._drawings, self._texts = {}, {}

    def _is_drawn_with(self, key: str) -> bool:
        return any(whole in self._drawings for whole in _wholes(key))

    def _forget_parts(self, key: str) -> None:
        prefix = f"{key}/"
        for changed in (self._drawings, self._texts):
            for part in [other for other in changed if f"{other}/".startswith(prefix)]:
                del changed[part]


def _wholes(key: str) -> Iterator[str]:
    """The keys that a key is a part of, the nearest first."""
    while "/" in key:
        key = key.rpartition("/")[0]
        yield key
