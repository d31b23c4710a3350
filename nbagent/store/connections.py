"""Connections to the file of a store, which may be anybody's: opening, checks, backup, memory.

Every sqlite3 connection of nbagent is opened here (`connect`), and none trusts its file: links are
refused, the schema is compared with nbagent's, and SQLite runs nothing that the file holds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

from nbagent.contracts.errors import StoreError
from nbagent.files.opening import (
    Folder,
    LinkRefused,
    naming_links,
    open_own_file,
    open_own_folder,
)
from nbagent.sandbox.folder_thread import is_available as has_folder_threads
from nbagent.sandbox.folder_thread import run_within
from nbagent.store.columns import (
    APPLICATION_ID,
    OLDEST_VERSION,
    TABLE_COLUMNS,
    VERSION,
)
from nbagent.store.schema_check import SCHEMA_SQL, foreign_part, missing_part

Connection = sqlite3.Connection
SqliteError = sqlite3.Error
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 256 << 20,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 500_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
}
"""A cell with more bytes than LENGTH is an error, instead of all of the memory."""
FILE_NAME = "runs.sqlite"
BACKUP_SUFFIX = "-backup"
BESIDE = ("-wal", "-shm", "-journal")
"""Ends of the names of the files that SQLite opens beside the database."""
BUSY_TIMEOUT_S = 30.0
"""Wait for another process. With 30 s, 64 writers with 200 transactions each all got through."""
USE_OTHER_FOLDER = "set NBAGENT_HOME to another folder"
_NETWORK_FILE_SYSTEMS = (
    "nfs",
    "cifs",
    "smb",
    "afs",
    "ceph",
    "gluster",
    "lustre",
    "gpfs",
    "fuse.sshfs",
)
"""Prefixes of network file systems. WAL needs memory that all users of the file share, and the
machines of a network file system share none."""
DISK_ERRORS = (OSError, sqlite3.Error, UnicodeDecodeError)
"""Exceptions of a failing disk or a damaged file. UnicodeDecodeError: sqlite3 cannot decode a
damaged name for its own error message."""
Upgrade = Callable[[Connection, "Path | None"], None]
"""Creates the tables of an empty database, or brings those of an earlier version to this one."""


class StoreBusyError(StoreError):
    """Another process has locked the file for long."""


def connect(path: Path, mode: str = "mode=rwc", *, folder: Folder | None = None) -> Connection:
    """Open the file of a store, which may be anybody's.

    Args:
        folder: the open folder of the file, if the caller has it.

    Raises:
        LinkRefused: the file, its folder or a file beside it is a link.
        StoreError: it is the database of another program, or has a part that nbagent did not make.
    """
    path = path.absolute()
    if folder is None:
        with contextlib.closing(open_own_folder(path.parent)) as opened:
            return connect(path, mode, folder=opened)
    if mode == "mode=rwc":
        mode = "mode=rw"
        _create_file(folder, path)
    _check_files(folder, path)
    connection = run_within(folder.descriptor, lambda: _open_file(path, mode))
    try:
        _check_name(connection, path)
        check_schema(connection, path)
    except BaseException:
        run_within(folder.descriptor, connection.close)
        raise
    return connection


def connect_to_read(path: Path, mode: str) -> Connection:
    """Open the file of a store that was open before.

    Raises:
        LinkRefused: see `connect`.
        StoreError: it is gone, or cannot be used.
    """
    try:
        return connect(path, mode)
    except LinkRefused:
        raise
    except FileNotFoundError:
        raise StoreError(
            f"{path} is gone: its folder was moved or deleted. Put it back, or restart the kernel "
            "to begin a new one."
        ) from None
    except OSError as error:
        raise store_error(path, error) from None


@contextlib.contextmanager
def connected(path: Path, mode: str = "mode=rwc") -> Generator[Connection]:
    """Open the file of a store; what SQLite deletes when it is closed is in its folder."""
    with contextlib.closing(open_own_folder(path.parent)) as folder:
        connection = connect(path, mode, folder=folder)
        try:
            yield connection
        finally:  # a reader deletes nothing
            run_within(folder.descriptor if mode == "mode=rwc" else None, connection.close)


def _create_file(folder: Folder, path: Path) -> None:
    # Only a new file is opened here: closing a file of SQLite would release all of its locks.
    with contextlib.suppress(FileExistsError):
        os.close(folder.new_file(path.name, 0o644))


def _check_files(folder: Folder, path: Path) -> None:
    """Refuse links and special files in the place of a file that SQLite opens."""
    for end in ("", *BESIDE):
        file = path.with_name(path.name + end)
        with contextlib.suppress(FileNotFoundError), naming_links(file):
            folder.require_regular(file.name)


def _open_file(path: Path, mode: str) -> Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?{mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        _distrust(connection)
        # Deleted rows are overwritten: `forget` promises that a run's text is gone.
        connection.execute("PRAGMA secure_delete = ON")
        # SQLite opens the log here, and not later in a thread that is not confined.
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except BaseException:  # locked, or no database
        connection.close()
        raise
    return connection


def _distrust(connection: Connection) -> None:
    """Let the file run nothing and bound its cells. This reads nothing of it."""
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    if hasattr(connection, "enable_load_extension"):  # not in every build of Python
        connection.enable_load_extension(False)
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)


def _check_name(connection: Connection, path: Path) -> None:
    """Refuse a file that SQLite found behind a link, where the thread could not be confined."""
    if os.name != "posix" or has_folder_threads():
        return
    opened = connection.execute("PRAGMA database_list").fetchone()[2]
    if opened != str(path):
        raise LinkRefused(path)


def check_schema(connection: Connection, path: Path) -> None:
    """Refuse a schema that nbagent did not make. A file without tables passes.

    Raises:
        StoreError: it has parts that nbagent did not make.
        sqlite3.DatabaseError: a part is missing or damaged.
    """
    entries = tuple(connection.execute(SCHEMA_SQL).fetchall())
    version = pragma_value(connection, "user_version")
    owner = pragma_value(connection, "application_id")
    if owner != APPLICATION_ID and (owner or version or entries):
        raise StoreError(f"{path} is the database of another program; {USE_OTHER_FOLDER}.")
    if version < OLDEST_VERSION:
        return
    if part := foreign_part(entries, version):
        raise StoreError(
            f"{path} is not used: nbagent did not make {part} in it, which could change or invent "
            f"runs. Nothing was run or changed. Move the file away, or {USE_OTHER_FOLDER}."
        )
    if problem := missing_part(entries, version):
        raise sqlite3.DatabaseError(problem)


def open_memory(upgrade: Upgrade, source: Connection | None = None) -> Connection:
    """Open a database in memory, with a copy of a file; damage of the file raises."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        if source is not None:
            source.backup(connection)
        upgrade(connection, None)
        for table, columns in TABLE_COLUMNS.items():
            # A backup copies damaged pages too: read every row now, where a failure is handled.
            connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def recover_in_memory(path: Path, upgrade: Upgrade) -> Connection:
    """Open a database in memory with a copy of a file, if the file can be read."""
    for mode in ("mode=ro", "copy", "mode=ro&immutable=1") if os.path.isfile(path) else ():
        with contextlib.suppress(*DISK_ERRORS), _source(path, mode) as source:
            if OLDEST_VERSION <= pragma_value(source, "user_version") <= VERSION:
                return open_memory(upgrade, source)
    return open_memory(upgrade)


@contextlib.contextmanager
def _source(path: Path, mode: str) -> Generator[Connection]:
    """Open a file to read it; with `copy` a copy of it and of its log."""
    # In a read-only folder SQLite cannot create WAL's index file. `immutable` needs none, but reads
    # no log, so a copy is tried before.
    with contextlib.ExitStack() as stack:
        if mode == "copy":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            for file in (path, path.with_name(f"{path.name}-wal")):
                with (
                    os.fdopen(open_own_file(file), "rb") as source,
                    (Path(folder) / file.name).open("xb") as copy,
                ):
                    shutil.copyfileobj(source, copy)
            path, mode = Path(os.path.realpath(folder)) / path.name, "mode=rw"
        yield stack.enter_context(contextlib.closing(connect(path, mode)))


def choose_journal(connection: Connection, home: Path) -> str | None:
    system = file_system(home)
    mode = "DELETE" if system.startswith(_NETWORK_FILE_SYSTEMS) else "WAL"
    if set_journal(connection, home, mode) == "wal":
        return None
    return (
        f"{home} is on a file system ({system}) where commits are slow; "
        f"{USE_OTHER_FOLDER} on a disk"
    )


def set_journal(connection: Connection, home: Path, mode: str) -> str:
    """Set the journal mode, which opens or deletes the log; return the mode that there is now."""

    def work() -> str:
        return connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0]

    with contextlib.closing(open_own_folder(home)) as folder:
        return run_within(folder.descriptor, work)


def file_system(folder: Path, mounts: str = "/proc/mounts") -> str:
    """Type of a folder's file system, by Linux' names; empty on other systems."""
    mounted = [("", "")]
    with contextlib.suppress(OSError):
        for line in Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines():
            _, point, kind, *_ = line.replace("\\040", "\0").split(" ")
            point = point.replace("\0", " ")
            if folder.resolve().is_relative_to(point):
                mounted.append((point, kind))
    return max(mounted, key=lambda mount: len(mount[0]))[1]


def file_inode(path: Path | None) -> int:
    """Inode of a file; 0 if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        return os.lstat(path).st_ino if path else 0
    return 0


def vacuum(connection: Connection) -> None:
    """Rewrite the file without empty pages."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 1)  # VACUUM attaches its copy
    connection.execute("VACUUM")
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)


def back_up(connection: Connection, target: Path) -> None:
    """Copy a database into a new file, consistently also while others write."""
    with (
        connected(target) as copy,
        contextlib.closing(open_own_folder(target.parent)) as folder,
    ):
        run_within(folder.descriptor, lambda: connection.backup(copy))
        set_journal(copy, target.parent, "DELETE")


def pragma_value(connection: Connection, name: str) -> int:
    """Value of a pragma that is a number."""
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def is_our_bug(error: Exception) -> bool:
    # DataError: a value that is too long for a cell, on any disk.
    return isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.DataError)


def bug_error(error: Exception) -> StoreError:
    return StoreError(f"the store failed ({error}); restart the kernel")


def is_busy(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return isinstance(code, int) and code & 0xFF == sqlite3.SQLITE_BUSY


def store_error(path: Path, error: Exception) -> StoreError:
    if is_busy(error):
        return StoreBusyError(
            f"{path} has been locked by another process for {BUSY_TIMEOUT_S:.0f} s ({error}). End "
            f"that process, try again after it has finished, or {USE_OTHER_FOLDER}."
        )
    return StoreError(
        f"{path} cannot be used ({error}). Make the folder writable, move a damaged file away "
        f"(`sqlite3 {FILE_NAME} .recover` reads it), or {USE_OTHER_FOLDER}."
    )
