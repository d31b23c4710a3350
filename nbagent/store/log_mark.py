"""Mark of the write-ahead log of a store, which proves that nbagent wrote the log on this machine.

SQLite replays any log that lies beside a database, and a log can replace all pages but the one with
the store's id. So a log counts only with a mark that no clone, merge or archive brings: an extended
attribute of the file, a hash of the store's id. Where the system has none, the device and inode of
the log are kept beside the entry of its folder. A rollback journal has no mark: beside a database
with a write-ahead log SQLite needs none.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from nbagent.contracts.canonical import sha256_hex
from nbagent.settings.trust import entry_file

_ATTRIBUTE = "user.nbagent"
_WAL_HEADER = b"\x02\x02"
"""Bytes 18 and 19 of a database with a write-ahead log, https://sqlite.org/fileformat.html."""


def mark_log(database: Path, store_id: str) -> None:
    """Mark the log of a database, if it has one, before anything is written to it."""
    log = _beside(database, "-wal")
    mark = _mark_of(store_id)
    with suppress(OSError, RuntimeError):
        if not _set_attribute(log, mark):
            record = _record_file(database)
            record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            record.write_text(_identity(log), "ascii")


def unproven_file(database: Path, store_id: str) -> str:
    """Name of a file that SQLite would replay, and that nbagent did not write; empty if none."""
    journal, log = _beside(database, "-journal"), _beside(database, "-wal")
    if os.path.lexists(journal) and _has_log(database):
        return journal.name
    with suppress(FileNotFoundError):
        # An empty one was created by a process that has not marked it yet.
        if os.lstat(log).st_size and not _is_marked(database, log, store_id):
            return log.name
    return ""


def _beside(database: Path, end: str) -> Path:
    return database.with_name(f"{database.name}{end}")


def _mark_of(store_id: str) -> bytes:
    return sha256_hex(f"log of {store_id}").encode()


def _set_attribute(file: Path, mark: bytes) -> bool:
    """Set the attribute of a file; False if the system has no attributes."""
    if not hasattr(os, "setxattr"):
        return False
    try:
        os.setxattr(file, _ATTRIBUTE, mark, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


def _is_marked(database: Path, log: Path, store_id: str) -> bool:
    if hasattr(os, "getxattr"):
        with suppress(OSError):
            return os.getxattr(log, _ATTRIBUTE, follow_symlinks=False) == _mark_of(store_id)
    with suppress(OSError, RuntimeError, ValueError):
        return _record_file(database).read_text("ascii") == _identity(log)
    return False


def _record_file(database: Path) -> Path:
    return entry_file(database.parent).with_suffix(".log")


def _identity(file: Path) -> str:
    status = os.lstat(file)
    return f"{status.st_dev}:{status.st_ino}"


def _has_log(database: Path) -> bool:
    """True if a database has a write-ahead log, or is not there, so that no journal is its own."""
    try:
        with database.open("rb") as file:
            header = file.read(20)
    except FileNotFoundError:
        return True
    return len(header) < 20 or header[18:] == _WAL_HEADER
