"""The panel beside the notebook: a tab at the right of JupyterLab, by the package `sidecar`.

The panel below the cell stays in the page and shows one line while the tab is there. The page
decides that, since a kernel does not know whether its front end has the extension.
"""

# ipywidgets and sidecar have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any, Literal, cast, get_args

from nbagent.contracts.errors import UsageError

PanelPosition = Literal["below", "right"]
MISSING = (
    "where='right' needs the package sidecar, so the panel stays below this cell. Run "
    "%pip install sidecar, reload the page, then run this cell again."
)


def panel_position(where: object) -> PanelPosition:
    """Check the word for a position of the panel. Raises UsageError with the valid words."""
    positions = get_args(PanelPosition)
    if where not in positions:
        valid = " or ".join(map(repr, positions))
        raise UsageError(f"where={where!r} is not valid; expected {valid}")
    return cast("PanelPosition", where)


class SidecarTab:
    """The tab at the right; there is at most one."""

    def __init__(self) -> None:
        """Open no tab yet."""
        self._sidecar: Any = None

    @property
    def is_open(self) -> bool:
        """True if the kernel has opened a tab. The front end may be unable to show it."""
        return self._sidecar is not None

    def open(self, view: dict[str, Any]) -> str:
        """Open the tab, in front of other tabs, with a display bundle in it.

        Returns:
            The reason if it cannot be opened; else an empty text.
        """
        try:
            # Late: it belongs to an extra, and most panels stay below their cell.
            from sidecar import Sidecar  # pyright: ignore[reportMissingImports]
        except ImportError:
            return MISSING
        # A new tab comes to the front; a tab that exists has no message for that.
        self.close()
        output = {"output_type": "display_data", "data": view, "metadata": {}}
        self._sidecar = Sidecar(title="nbagent", anchor="right", outputs=(output,))
        return ""

    def close(self) -> None:
        """Close the tab."""
        if self._sidecar is not None:
            self._sidecar.close()
            self._sidecar = None
