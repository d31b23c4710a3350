"""An interrupt that no run could take."""

from __future__ import annotations


class Interrupt(KeyboardInterrupt):
    """■ where no run could take it, as one line. Ends also a cell that catches every Exception."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]
