"""Facts about the file of a store before it is used: version, id, counts, whoever made it."""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from nbagent.contracts.errors import StoreError
from nbagent.files.opening import (
    open_own_folder,
)
from nbagent.store.columns import (
    CORRUPT_ROW,
    STORE_ID,
    VERSION,
)
from nbagent.store.connections import (
    BESIDE,
    DISK_ERRORS,
    USE_OTHER_FOLDER,
    connect,
    connected,
    pragma_value,
    set_journal,
    store_error,
)


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Facts about the file of a store, whoever made it."""

    version: int
    store_id: str
    """Empty without one."""
    runs: int = 0
    last_run_us: int | None = None


def read_facts(path: Path, *, count: bool = False, with_log: bool = False) -> StoreFacts | None:
    """Read facts about a store without writing to its folder; None if there is no store yet.

    Args:
        count: count the runs, too.
        with_log: read the write-ahead log, too, which creates its index: the store is one's own.

    Raises:
        StoreError: the file is no store, or cannot be read.
    """
    if not os.path.lexists(path) or (os.path.isfile(path) and not os.path.getsize(path)):
        return None
    mode = read_mode(path, with_log=with_log)
    try:
        return _facts_of(path, mode, count)
    except (*DISK_ERRORS, *CORRUPT_ROW) as error:
        if not with_log or read_mode(path) == mode:
            raise store_error(path, error) from None
    # Another process has opened it meanwhile, and changed what was read without a lock.
    try:
        return _facts_of(path, "mode=ro", count)
    except (*DISK_ERRORS, *CORRUPT_ROW) as error:
        raise store_error(path, error) from None


def _facts_of(path: Path, mode: str, count: bool) -> StoreFacts | None:
    version = version_of(path, mode)
    if not version:
        return None
    with contextlib.closing(connect(path, mode)) as c:
        has_facts = c.execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone()
        sql = "SELECT value FROM facts WHERE name = ?"
        row = c.execute(sql, (STORE_ID,)).fetchone() if has_facts else None
        sql = "SELECT count(*), max(started_at) FROM runs"
        runs = c.execute(sql).fetchone() if count else (0, None)
    last = runs[1] if isinstance(runs[1], int) else None
    return StoreFacts(version, str(row[0]) if row else "", runs[0], last)


def read_mode(path: Path, *, with_log: bool = True) -> str:
    """Mode in which reading creates no file beside a store; with a log there are files already."""
    for end in ("", *BESIDE):
        if os.path.islink(file := path.with_name(f"{path.name}{end}")):
            raise StoreError(f"{file} is a link, which is not followed; delete it")
    has_log = os.path.lexists(path.with_name(f"{path.name}-wal"))
    return "mode=ro" if has_log and with_log else "mode=ro&immutable=1"


def version_of(path: Path, mode: str = "mode=rwc") -> int:
    """Version of a store's tables, 0 for an empty file; refuse a file of another program."""
    with connected(path, mode) as c:
        return pragma_value(c, "user_version")


def newer_reason(path: Path, version: int, mode: str = "mode=ro") -> str:
    """Reason why nothing can be written to a store of a newer nbagent.

    Raises:
        StoreError: it cannot even be read.
    """
    with contextlib.closing(connect(path, mode)) as c:
        sql = "SELECT value FROM facts WHERE name = 'oldest reader'"
        has_facts = c.execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone()
        oldest = (c.execute(sql).fetchone() if has_facts else None) or (version,)
    newer = f"{path} was written by a newer nbagent (version {version} of the store; this one"
    if oldest[0] > VERSION:
        raise StoreError(
            f"{newer} reads up to {VERSION}, and needs {oldest[0]}). Upgrade nbagent, or "
            f"{USE_OTHER_FOLDER}."
        )
    return (
        f"{newer} writes {VERSION}), so its runs can be read and none can be added. Upgrade "
        f"nbagent, or {USE_OTHER_FOLDER}."
    )


def set_aside_earlier(path: Path, version: int) -> str:
    """Rename a store of versions 1 to 5, which cannot be migrated; say where it is."""
    with connected(path) as c:
        # Merges the write-ahead log into the file, so that one rename moves all of it. SQLite
        # refuses this while an earlier nbagent has the file open.
        c.execute("PRAGMA busy_timeout = 0")
        set_journal(c, path.parent, "DELETE")
    with contextlib.closing(open_own_folder(path.parent)) as folder:
        taken = {entry.name for entry in folder.scan()}
        names = (f"runs.v{version}-{n}.sqlite" for n in itertools.count(1))
        aside = next(name for name in names if name not in taken)
        folder.replace(path.name, aside)
    return (
        f"The runs of an earlier nbagent are in {path.with_name(aside)}; this version cannot read "
        f"them (`sqlite3 {aside}` does)."
    )
