"""Output of a command as a value: tables in a front end, aligned text in a terminal.

Knows nothing of the listed things. Makes every text of a listing safe to print.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nbagent.view.node import Node, h
from nbagent.view.printers import html, plain_text
from nbagent.view.text_format import sanitize_value


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Listing:
    """A title, rows under headings, notes, and further listings below."""

    title: str = ""
    columns: tuple[str, ...] = ()
    """Names of the columns; empty if the rows explain themselves."""
    rows: Sequence[tuple[str, ...]] = ()
    notes: Sequence[str] = ()
    """Lines below the rows, printed unchanged."""
    parts: Sequence[Listing] = ()

    def __str__(self) -> str:
        return plain_text(self.node())

    def _cells(self) -> list[list[str]]:
        return [[" ".join(sanitize_value(cell).split("\n")) for cell in row] for row in self.rows]

    def node(self) -> Node:
        """Draw the listing."""
        heads = [h("th", "nba-cell", head, scope="col") for head in self.columns]
        rows = [
            [h("th", "nba-cell", first, scope="row"), *(h("td", "nba-cell", text) for text in more)]
            for first, *more in self._cells()
        ]
        table = h(
            "table",
            "nba-rows",
            h("thead", "", h("tr", "", *heads)) if heads else None,
            h("tbody", "", *(h("tr", "", *row) for row in rows)),
        )
        return h(
            "div",
            "nba-list",
            h("h4", "nba-title", sanitize_value(self.title)) if self.title else None,
            table if rows else None,
            h("pre", "nba-notes", sanitize_value("\n".join(self.notes))) if self.notes else None,
            *(part.node() for part in self.parts),
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": html(self.node()), "text/plain": str(self)}
