"""The database file of the store: opening, transactions, and the move to memory if a disk fails.

Knows nothing of runs. Every sqlite3 connection of nbagent is opened here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sqlite3
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeVar

from nbagent.contracts.errors import StoreError
from nbagent.store.columns import (
    APPLICATION_ID,
    CORRUPT_ROW,
    TABLE_COLUMNS,
    VERSION,
    create_statements,
)
from nbagent.store.file_lock import locked

T = TypeVar("T")
Connection = sqlite3.Connection
Work = Callable[[Connection], T]

FILE_NAME = "runs.sqlite"
BUSY_TIMEOUT_S = 30.0
"""Wait for another process. With 30 s, 64 writers with 200 transactions each all got through."""
_NOTICE_AFTER_S = 0.5
_CHECKPOINT_TIMEOUT_S = 2.0
_USE_OTHER_FOLDER = "set NBAGENT_HOME to another folder"
_NOT_SAVED = (
    "RUNS ARE NOT SAVED ON DISK: {problem} Until this kernel is restarted, runs are in memory only "
    "and are lost when it ends."
)
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
_DISK_ERRORS = (OSError, sqlite3.Error, UnicodeDecodeError)
"""Exceptions of a failing disk or a damaged file. UnicodeDecodeError: sqlite3 cannot decode a
damaged name for its own error message."""


class Locked(Exception):
    """Another thread or process is writing; nothing was done."""


class Database:
    """One SQLite database with one writing connection; in memory when `path` is None."""

    def __init__(self, connection: Connection, path: Path | None, warning: str | None) -> None:
        self.path = path
        self.warning = warning
        """Reason why runs are not saved, or saved less safely; None if all is well."""
        self.on_warning: Callable[[str], None] | None = None
        """Called if the disk fails later and the database moves to memory."""
        self._connection = connection
        self._lock = threading.RLock()
        self._read_lock = threading.RLock()
        self._pragmas: dict[str, object] = {}
        self._is_paused = False
        """The connection is closed; the next transaction opens it again."""
        self._inode = _inode(path)
        self.deleted_data_in_log = False
        """Deleted rows are still in the write-ahead log, because another process reads from it."""

    @classmethod
    def open(cls, home: Path) -> Database:
        """Open or create the file in a folder.

        If the file cannot be used, the database is in memory with all rows that can be read, and
        `warning` says so.

        Raises:
            StoreError: the file belongs to another program, to a newer nbagent, or is locked.
        """
        path = home / FILE_NAME
        try:
            _make_folder(home)
            with _opening_lock(home):
                if path.exists():
                    _set_aside_earlier(path)
                connection = _connect(path)
                try:
                    warning = _choose_journal(connection, home)
                    _make_tables(connection)
                except BaseException:
                    connection.close()
                    raise
            return cls(connection, path, warning)
        except _DISK_ERRORS as error:
            if _is_busy(error):
                raise _store_error(path, error) from None
            return cls(
                _recover_in_memory(path),
                None,
                _NOT_SAVED.format(problem=_store_error(path, error).message),
            )

    @classmethod
    def memory(cls) -> Database:
        return cls(_open_memory(), None, None)

    def earlier_stores(self) -> list[Path]:
        """Files of earlier versions that were set aside."""
        return [] if self.path is None else sorted(self.path.parent.glob("runs.v*.sqlite"))

    # Writing

    def transact(
        self,
        work: Work[T],
        *,
        wait_s: float = BUSY_TIMEOUT_S,
        durable: bool = True,
        memory_if_busy: bool = False,
    ) -> T:
        """Run work in one committed transaction; if the disk fails, repeat it in memory.

        Args:
            work: called with the connection, once or twice.
            wait_s: time to wait for another writer; 0 raises `Locked` at once.
            durable: fsync, so that a power cut cannot undo it.
            memory_if_busy: move to memory, instead of StoreError, if the other writer does not end.
        """
        if not self._lock.acquire(blocking=bool(wait_s)):
            raise Locked
        try:
            self._prepare_connection(wait_s, durable=durable)
            return self._transaction(work)
        except _DISK_ERRORS as error:
            is_our_bug = isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError)
            if is_our_bug or self.path is None:
                raise StoreError(f"the store failed ({error}); restart the kernel") from error
            if _is_busy(error) and not wait_s:
                raise Locked from None
            if _is_busy(error) and not memory_if_busy:
                raise _store_error(self.path, error) from None
            self._move_to_memory(error)
            return self._transaction(work)
        finally:
            self._lock.release()

    async def commit(
        self, work: Work[T], *, durable: bool, memory_if_busy: bool, on_wait: Callable[[], None]
    ) -> T:
        """Like `transact`, but do not block the event loop while another process is writing.

        A stop waits for this too, otherwise the stopped turn would be lost. `on_wait` is called
        once if it takes long.
        """
        with contextlib.suppress(Locked):
            return self.transact(work, wait_s=0, durable=durable)
        waiting = asyncio.get_running_loop().run_in_executor(
            None,
            lambda: self.transact(
                work, wait_s=BUSY_TIMEOUT_S, durable=durable, memory_if_busy=memory_if_busy
            ),
        )
        done, _ = await asyncio.wait([waiting], timeout=_NOTICE_AFTER_S)
        if not done:
            on_wait()
        return await waiting

    def _prepare_connection(self, busy_s: float, *, durable: bool) -> None:
        """Open the file if it is paused, and set its pragmas."""
        if self.path is None:
            return
        # SQLite keeps writing into a deleted file, and these rows would be lost without an error.
        if _inode(self.path) != self._inode:
            raise FileNotFoundError("the file was deleted or replaced")
        if self._is_paused:
            self._connection, self._is_paused, self._pragmas = _connect(self.path), False, {}
        # WAL with NORMAL survives a kill and only a power cut loses commits. Without WAL, NORMAL
        # can corrupt the file, so every commit is FULL there.
        full = durable or self.warning is not None
        pragmas = {"busy_timeout": int(busy_s * 1000), "synchronous": "FULL" if full else "NORMAL"}
        for name, value in pragmas.items():
            if self._pragmas.get(name) != value:
                self._connection.execute(f"PRAGMA {name} = {value}")
                self._pragmas[name] = value

    def _transaction(self, work: Work[T]) -> T:
        connection = self._connection
        # Not BEGIN: a deferred transaction takes the write lock late and then fails with BUSY at
        # once, whatever the timeout (1,500 of 2,000 writes in a test with several writers).
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    def _move_to_memory(self, error: Exception) -> None:
        path, old = self.path or Path(FILE_NAME), self._connection
        try:
            self._connection = _open_memory(old)
        except _DISK_ERRORS:
            self._connection = _open_memory()
        with contextlib.suppress(sqlite3.Error):
            old.close()
        self.path = None
        self.warning = _NOT_SAVED.format(problem=_store_error(path, error).message)
        if self.on_warning is not None:
            self.on_warning(self.warning)

    # Reading

    @contextlib.contextmanager
    def reading(self) -> Generator[Connection]:
        """Open a connection with a snapshot of the database. Any thread.

        A file is read through a separate connection, so that a long read delays no commit.
        """
        path = self.path
        try:
            if path is None:
                with self._lock:
                    yield self._connection
                return
            with self._read_lock, contextlib.closing(_connect(path, "mode=ro")) as connection:
                connection.execute("BEGIN")
                yield connection
        except (sqlite3.Error, *CORRUPT_ROW) as error:
            raise _store_error(path or Path(FILE_NAME), error) from error

    # The file

    def pause(self) -> None:
        """Close the file until `resume`, when no thread uses it. Call this before a fork.

        A child would inherit SQLite's memory of its locks, but not the locks themselves.
        """
        self._lock.acquire()
        self._read_lock.acquire()
        if self.path is not None:
            self._connection.close()
            self._is_paused = True

    def resume(self) -> None:
        """Allow other threads to use the file again."""
        self._read_lock.release()
        self._lock.release()

    def close(self) -> None:
        """Close the file; SQLite then merges the write-ahead log into it."""
        with self._lock:
            self._connection.close()

    def checkpoint(self, wait_s: float = _CHECKPOINT_TIMEOUT_S) -> None:
        """Merge the write-ahead log into the file and empty it, unless another process reads it."""
        with self._lock:
            self._prepare_connection(wait_s, durable=True)
            self.deleted_data_in_log = bool(_pragma(self._connection, "wal_checkpoint(TRUNCATE)"))

    def compact(self) -> None:
        """Rewrite the file without empty pages; StoreError if another kernel is busy."""
        with self._lock:
            try:
                self._prepare_connection(BUSY_TIMEOUT_S, durable=True)
                self._connection.execute("VACUUM")
            except (OSError, sqlite3.Error) as error:
                raise StoreError(
                    f"the store could not be compacted ({error}); nothing was changed. Try "
                    "again when no other kernel uses it and the disk has room for a copy"
                ) from None
            self.checkpoint()

    def sizes(self) -> tuple[int, int]:
        """Size of the database without its log, and the part that compacting frees, in bytes."""
        with self.reading() as c:
            page = _pragma(c, "page_size")
            return _pragma(c, "page_count") * page, _pragma(c, "freelist_count") * page


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


def _inode(path: Path | None) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_ino if path else 0
    return 0


def _make_folder(home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    ignore = home / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")


@contextlib.contextmanager
def _opening_lock(home: Path) -> Generator[None]:
    """Lock the opening of a store against other processes; without file locks just continue."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context((home / "runs.lock").open("ab"))
        with contextlib.suppress(OSError):
            stack.enter_context(locked(file.fileno(), wait_s=BUSY_TIMEOUT_S))
        yield


def _set_aside_earlier(path: Path) -> None:
    """Rename the store of an earlier version; refuse files of other programs or newer versions."""
    with contextlib.closing(_connect(path)) as c:
        version = _pragma(c, "user_version")
        empty = not c.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if _pragma(c, "application_id") != APPLICATION_ID and not (empty and version == 0):
            raise StoreError(f"{path} is the database of another program; {_USE_OTHER_FOLDER}.")
        if version > VERSION:
            raise StoreError(
                f"{path} was written by a newer nbagent: its version is {version}, this nbagent "
                f"reads up to {VERSION}. Upgrade nbagent, or {_USE_OTHER_FOLDER}."
            )
        if version in (0, VERSION):
            return
        # Merges the write-ahead log into the file, so that one rename moves all of it. SQLite
        # refuses this while an earlier nbagent has the file open.
        c.execute("PRAGMA busy_timeout = 0")
        c.execute("PRAGMA journal_mode = DELETE")
    names = (path.with_name(f"runs.v{version}-{n}.sqlite") for n in itertools.count(1))
    path.rename(next(file for file in names if not file.exists()))


def _make_tables(connection: Connection) -> None:
    if _pragma(connection, "user_version") == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    for statement in create_statements():
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def _connect(path: Path, mode: str = "mode=rwc") -> Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        # Deleted rows are overwritten: `forget` promises that a run's text is gone.
        connection.execute("PRAGMA secure_delete = ON")
    except BaseException:  # the first statement reads the file: locked, or no database
        connection.close()
        raise
    return connection


def _open_memory(source: Connection | None = None) -> Connection:
    """Open a database in memory, with a copy of a file; damage of the file raises."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        if source is not None:
            source.backup(connection)
        _make_tables(connection)
        for table, columns in TABLE_COLUMNS.items():
            # A backup copies damaged pages too: read every row now, where a failure is handled.
            connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _recover_in_memory(path: Path) -> Connection:
    """Open a database in memory with a copy of a file, if the file can be read."""
    # In a read-only folder SQLite cannot create WAL's index file; `immutable` needs none.
    for mode in ("mode=ro", "mode=ro&immutable=1") if os.path.isfile(path) else ():
        with (
            contextlib.suppress(*_DISK_ERRORS),
            contextlib.closing(_connect(path, mode)) as source,
        ):
            if _pragma(source, "user_version") == VERSION:
                return _open_memory(source)
    return _open_memory()


def _choose_journal(connection: Connection, home: Path) -> str | None:
    system = file_system(home)
    mode = "DELETE" if system.startswith(_NETWORK_FILE_SYSTEMS) else "WAL"
    if connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0] == "wal":
        return None
    return (
        f"{home} is on a file system ({system}) where commits are slow; "
        f"{_USE_OTHER_FOLDER} on a disk"
    )


def _pragma(connection: Connection, name: str) -> int:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def _is_busy(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return isinstance(code, int) and code & 0xFF == sqlite3.SQLITE_BUSY


def _store_error(path: Path, error: Exception) -> StoreError:
    if _is_busy(error):
        problem = (
            f"has been locked by another process for {BUSY_TIMEOUT_S:.0f} s ({error}). End that "
            f"process, try again after it has finished, or {_USE_OTHER_FOLDER}."
        )
    else:
        problem = (
            f"cannot be used ({error}). Make the folder writable, move a damaged file away "
            f"(`sqlite3 {FILE_NAME} .recover` reads it), or {_USE_OTHER_FOLDER}."
        )
    return StoreError(f"{path} {problem}")
