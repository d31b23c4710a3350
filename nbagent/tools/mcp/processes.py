"""Ending a server's process with all that it started. Any thread; imports nothing of MCP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress


def end_group(pid: int, *, hard: bool) -> None:
    """End the process and what it started in its group; nothing when it is gone already.

    Args:
        pid: the group's first process (on Windows, the tree's root).
        hard: False asks first, where the system can do that.
    """
    if sys.platform == "win32":
        with suppress(OSError, subprocess.TimeoutExpired):
            command = ["taskkill", "/T", "/F", "/PID", str(pid)]
            subprocess.run(command, capture_output=True, timeout=5, check=False)
        return
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL if hard else signal.SIGTERM)
