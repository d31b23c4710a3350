"""From earlier versions of the tables to this one: the steps, and what must hold before them.

A store is migrated when it is opened: after a backup, in one transaction, so that a kill at any
moment leaves the version before or the version after. What rewrites every row (text search, hashes)
follows in slices (`upkeep`); all queries are right before it ends.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from nbagent.contracts.canonical import utc_now
from nbagent.contracts.errors import StoreError
from nbagent.files.opening import open_own_folder
from nbagent.store.columns import STORE_ID, VERSION
from nbagent.store.connections import BACKUP_SUFFIX, Connection, back_up, pragma_value
from nbagent.store.leases import leases_of
from nbagent.store.schema import added_statements, create_statements, fact_statements, set_fact
from nbagent.store.upkeep import plan_upkeep

_GROWTH = 1.5
"""Free space for a migration, in sizes of the store: its backup, and what the slices add."""
_MIN_FREE_BYTES = 20_000_000
_LARGE_BYTES = 300_000_000
"""Size of a store whose migration takes more than a few seconds."""
_log = logging.getLogger("nbagent.store")


@dataclass(frozen=True, slots=True)
class Migration:
    """A version of the tables: the reason for it, and its steps beyond added tables and columns."""

    version: int
    reason: str
    steps: Callable[[Connection], None] | None = None


MIGRATIONS = (
    Migration(
        7,
        "Lists, text search, sorting and deletion took seconds on a million runs: indexes, a table "
        "of prompts and an index of texts were added. Each hash is stored once instead of in every "
        "turn. Deleted runs are noted first, because deletion is done in slices.",
        plan_upkeep,
    ),
    Migration(
        8,
        "Several people may label one answer: the author is a part of a score's key, so the table "
        "of scores is written anew, with all its rows.",
    ),
)
"""Versions after 6. A version that only adds columns needs no entry."""


def backup_path(path: Path, version: int) -> Path:
    """Name of the backup of a store before it was migrated from `version`."""
    return path.with_name(f"{path.stem}.v{version}{BACKUP_SUFFIX}.sqlite")


def upgrade(connection: Connection, path: Path | None, *, store_id: str = "") -> None:
    """Create the tables of an empty database, or migrate a store of an earlier version.

    Args:
        store_id: the id of a store that is created.

    Raises:
        StoreError: a process of an earlier version uses the store, or there is no room for the
            backup. Nothing was changed.
    """
    version = pragma_value(connection, "user_version")
    if version == VERSION:
        return
    if version and path is not None:
        _require_no_earlier_process(connection, path)
        _make_backup(connection, path, version)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        _apply(connection, version)
        if not version and store_id:
            set_fact(connection, STORE_ID, store_id)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _apply(connection: Connection, version: int) -> None:
    if not version:
        for statement in create_statements():
            connection.execute(statement)
        return
    for later in range(version + 1, VERSION + 1):
        for statement in added_statements(later):
            connection.execute(statement)
        for migration in MIGRATIONS:
            if migration.version == later and migration.steps is not None:
                migration.steps(connection)
    for statement in fact_statements():
        connection.execute(statement)


def _require_no_earlier_process(connection: Connection, path: Path) -> None:
    """Refuse while another process has the store open: all that have it open are of its version."""
    now = utc_now()
    holders = [lease for lease in leases_of(connection).values() if lease.is_alive(now)]
    if not holders:
        return
    names = ", ".join(f"process {lease.pid} on {lease.host.partition('/')[0]}" for lease in holders)
    raise StoreError(
        f"{path} is in use by an earlier nbagent ({names}), which could not go on after the store "
        "is brought to this version. Restart that kernel, then repeat this; or set NBAGENT_HOME to "
        "another folder."
    )


def _make_backup(connection: Connection, path: Path, version: int) -> None:
    size = sum(
        os.path.getsize(file)
        for file in (path, path.with_name(f"{path.name}-wal"))
        if os.path.exists(file)
    )
    needed = max(int(size * _GROWTH), _MIN_FREE_BYTES)
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise StoreError(
            f"{path} is of version {version}, and bringing it to version {VERSION} needs "
            f"{needed / 1e6:,.0f} MB for a backup; {free / 1e6:,.0f} MB are free. Nothing was "
            "changed. Free some space, or set NBAGENT_HOME to another folder."
        )
    target = backup_path(path, version)
    if size > _LARGE_BYTES:
        _log.warning(
            "nbagent brings %s (%s MB) to version %s, once; it is copied to %s before",
            path,
            f"{size / 1e6:,.0f}",
            VERSION,
            target.name,
        )
    unfinished = target.with_name(f"{target.name}.part")
    _delete_unfinished(unfinished)  # of a process that was killed
    try:
        back_up(connection, unfinished)
        with closing(open_own_folder(path.parent)) as folder:
            folder.replace(unfinished.name, target.name)
    finally:
        _delete_unfinished(unfinished)


def _delete_unfinished(backup: Path) -> None:
    """Delete a backup that was not finished, with the files that SQLite had beside it."""
    with closing(open_own_folder(backup.parent)) as folder:
        for entry in folder.scan():
            if entry.name.startswith(backup.name):
                with suppress(FileNotFoundError):
                    folder.remove(entry.name)
