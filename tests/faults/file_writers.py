"""What other processes do to a folder in tests. Imports little, so that they start at once."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

from nbagent.files.mounts import Mounts
from nbagent.files.patching import replace_once, to_bytes, to_text
from nbagent.files.writing import FileState, replace

_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of renameat2(2)."""


def swapped(folder: Path, outside: Path, stop: threading.Event) -> None:
    """Put a link to the outside in the place of a folder and back, as fast as it goes."""
    aside, link = folder.with_name("aside"), folder.with_name("link")
    link.symlink_to(outside)
    while not stop.is_set():
        os.rename(folder, aside)
        os.rename(link, folder)
        os.rename(folder, link)
        os.rename(aside, folder)


def exchanged(folder: Path, outside: Path, stop: threading.Event) -> None:
    """The same with no moment in between, in which a writer would make a folder anew."""
    link = folder.with_name("link")
    link.symlink_to(outside)
    names = os.fsencode(folder), os.fsencode(link)
    exchange = ctypes.CDLL(None).renameat2
    while not stop.is_set():
        assert exchange(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0


def swaps(folder: str, outside: str, seconds: float) -> None:
    stop = threading.Event()
    threading.Timer(seconds, stop.set).start()
    swapped(Path(folder), Path(outside), stop)


def count_up(folder: str, times: int) -> None:
    """Add one to a number in a file, so often, by patches that must each fit."""
    mounts = Mounts.of(Path(folder))
    place = mounts.place("counter.txt")

    def add_one(state: FileState) -> bytes:
        text = to_text(state.data or b"")
        number = int(text.split()[1])
        return to_bytes(replace_once(text, f"n {number}\n", f"n {number + 1}\n"))

    for _ in range(times):
        replace(place, add_one)


def write_on(folder: str) -> None:
    """Write a large file again and again, until somebody kills this."""
    mounts = Mounts.of(Path(folder))
    place = mounts.place("big.txt")
    number = 0
    while True:
        number += 1
        text = f"{number}\n".encode() * 50_000
        replace(place, lambda _, text=text: text)
