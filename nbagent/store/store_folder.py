"""The folder of a store: created without following a link, locked while a store is opened."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

from nbagent.files.opening import (
    Folder,
    naming_links,
    open_own_folder,
)
from nbagent.store.connections import BUSY_TIMEOUT_S
from nbagent.store.file_lock import has_file_locks, locked

LOCK_NAME = "runs.lock"


def make_folder(home: Path) -> bool:
    """Create the folder of a store; False if its file system has no locks."""
    with contextlib.closing(open_own_folder(home, create=True)) as folder:
        with (
            contextlib.suppress(FileExistsError),
            os.fdopen(folder.new_file(".gitignore", 0o666), "wb") as ignore,
        ):
            ignore.write(b"*\n")
        descriptor = _open_lock(folder, home)
    try:
        return has_file_locks(descriptor)
    finally:
        os.close(descriptor)


def _open_lock(folder: Folder, home: Path) -> int:
    with naming_links(home / LOCK_NAME):
        return folder.open_entry(LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)


@contextlib.contextmanager
def opening_lock(home: Path) -> Generator[None]:
    """Lock the opening of a store against other processes."""
    with contextlib.closing(open_own_folder(home)) as folder:
        descriptor = _open_lock(folder, home)
    try:
        with locked(descriptor, wait_s=BUSY_TIMEOUT_S):
            yield
    finally:
        os.close(descriptor)
