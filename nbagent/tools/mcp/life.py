"""What is known of one connection while it lives, and of how it ended.

Owns no process and no protocol: `stdio` and `wire` write here, `connection` reads.
"""

from __future__ import annotations

import asyncio

from nbagent.tools.mcp.texts import ServerLog

_MOST_REFUSED = 5
_MOST_LEFT_OUT = 20
UNREADABLE = -32098
"""The code of the error that stands for an answer which cannot be read."""


class NotStartedError(Exception):
    """A server could not be started. Internal: `connection` makes a clear error of it."""


class Life:
    """One connection. Made and used on the loop that it lives on."""

    def __init__(self) -> None:
        self.log = ServerLog()
        self.told_all = asyncio.Event()
        """Stderr is at its end."""
        self.over = asyncio.Event()
        """The process has ended, or the connection shall."""
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.ended = False
        self.http_status: int | None = None
        """The last status that was no success."""
        self.tools_changed = asyncio.Event()
        self._refused: dict[str, None] = {}
        self._left_out: dict[str, None] = {}

    def begin(self, pid: int) -> None:
        """The process runs."""
        self.pid = pid

    def finish(self, exit_code: int | None) -> None:
        """The process has ended or stopped talking, by itself."""
        if self.over.is_set():
            return
        self.ended = True
        if exit_code is not None:
            self.exit_code = exit_code
        self.over.set()

    def leave(self) -> None:
        """Whatever ends now was ended by us."""
        self.over.set()

    def refuse(self, what: str) -> None:
        """The server asked for something that it is not given."""
        if len(self._refused) < _MOST_REFUSED:
            self._refused[what] = None

    def leave_out(self, tool: str) -> None:
        """A tool of the listing that is read cannot be used."""
        if len(self._left_out) < _MOST_LEFT_OUT:
            self._left_out[tool] = None

    def take_left_out(self) -> tuple[str, ...]:
        """The tools that were left out since this was last asked."""
        left_out, self._left_out = tuple(self._left_out), {}
        return left_out

    def take_refused(self) -> tuple[str, ...]:
        """What was refused since this was last asked."""
        refused, self._refused = tuple(self._refused), {}
        return refused
