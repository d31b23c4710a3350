"""Runs a function in a thread that opens files in one folder only (Linux: Landlock).

For a library that opens files by their path and follows links, as SQLite does: the kernel compares
with the open folder, not with its name, so a link that is put on the path at any moment leads
nowhere. Elsewhere the function runs in the calling thread, and the caller's own checks have to do.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
_FDS = "/proc/self/fd"
_FILES_ONLY_ABI = 3
"""Later versions of Landlock also restrict the network and signals."""


def run_within(folder: int | None, work: Callable[[], T]) -> T:
    """Run a function that may open, create and delete files only in an open folder.

    Args:
        folder: descriptor of the folder; None runs it without limits.
        work: it must not import modules, since it cannot read their files.
    """
    if folder is None or not is_available():
        return work()
    outcome: list[T] = []
    failure: list[BaseException] = []

    def confined() -> None:
        try:
            _confine(folder)
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=confined, name="nbagent-folder", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the process ends
        return work()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


@lru_cache(maxsize=1)
def is_available() -> bool:
    """True if the kernel can confine a thread."""
    if sys.platform != "linux" or not os.path.isdir(_FDS):
        return False
    from nbagent.sandbox.confinement import landlock_abi  # ctypes: only where it is of use

    return landlock_abi() > 0


def _confine(folder: int) -> None:
    from nbagent.sandbox import confinement

    # Landlock asks for it; otherwise a setuid program could get around the limits.
    confinement.prctl(confinement.NO_NEW_PRIVILEGES, 1)
    grants = [(f"{_FDS}/{folder}", "write"), ("/dev/urandom", "device")]
    confinement.restrict_files(grants, min(confinement.landlock_abi(), _FILES_ONLY_ABI))
