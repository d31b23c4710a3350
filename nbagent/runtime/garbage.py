"""Python's garbage collection while much work is done: rarer, and not over what existed before.

A full collection visits every object of the process and stops all of its threads. In a process
that has imported pandas it makes the person's event loop late by 60 to 130 ms.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

_THRESHOLDS = 10_000, 1, 500
"""Collect the youngest objects after so many new ones, instead of after 700; the middle ones every
second time, so that no collection visits more than some ten thousand objects."""


class _Process:
    lock = threading.Lock()
    n_active = 0
    thresholds: tuple[int, int, int] = (0, 0, 0)
    """Thresholds of the process before."""
    rare: tuple[int, int, int] = (0, 0, 0)
    """Thresholds that were set here."""
    is_frozen = False


@contextmanager
def rare_collections() -> Generator[None]:
    """Collect garbage rarely while this context, or another one of it, is active.

    Any thread, also overlapping. Settings that the person changed meanwhile, a collection that is
    switched off and objects that the person froze are left as they are.
    """
    with _Process.lock:
        _Process.n_active += 1
        if _Process.n_active == 1:
            _begin()
    try:
        yield
    finally:
        with _Process.lock:
            # In a forked child there is nothing to give back any more.
            _Process.n_active = max(_Process.n_active - 1, 0)
            if _Process.n_active == 0:
                _end()


def _begin() -> None:
    before = gc.get_threshold()
    # A threshold of 0 switches collections off.
    rare = max(before[0], _THRESHOLDS[0]) if before[0] else 0
    _Process.thresholds = before
    _Process.rare = rare, max(before[1], _THRESHOLDS[1]), max(before[2], _THRESHOLDS[2])
    gc.set_threshold(*_Process.rare)
    # Unfreezing gives back all frozen objects: those of a person, too.
    _Process.is_frozen = gc.get_freeze_count() == 0
    if _Process.is_frozen:
        gc.freeze()


def _end() -> None:
    if _Process.is_frozen:
        _Process.is_frozen = False
        # Young objects become old ones unvisited; otherwise the lower threshold would have them
        # all collected at once.
        gc.freeze()
        gc.unfreeze()
    if gc.get_threshold() == _Process.rare:
        gc.set_threshold(*_Process.thresholds)


def _give_back_in_child() -> None:
    # The thread that would end the context is not in the child.
    _Process.lock = threading.Lock()
    if _Process.n_active:
        _Process.n_active = 0
        _end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_back_in_child)
