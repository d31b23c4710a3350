"""The database file of the store: opening, transactions, and the move to memory if a disk fails.

Knows nothing of runs; `migrations` creates and upgrades the tables. Every sqlite3 connection of
nbagent is opened here (`_connect`), and none trusts its file: links are refused, the schema is
compared with nbagent's, and SQLite runs nothing that the file holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nbagent.contracts.canonical import sha256_hex
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
from nbagent.settings.trust import stores_folder
from nbagent.store.columns import (
    APPLICATION_ID,
    CORRUPT_ROW,
    OLDEST_VERSION,
    STORE_ID,
    TABLE_COLUMNS,
    VERSION,
)
from nbagent.store.file_lock import has_file_locks, locked
from nbagent.store.log_mark import mark_log, unproven_file
from nbagent.store.schema_check import SCHEMA_SQL, foreign_part, missing_part

T = TypeVar("T")
Connection = sqlite3.Connection
Work = Callable[[Connection], T]
Upgrade = Callable[[Connection, "Path | None"], None]
"""Creates the tables of an empty database, or brings those of an earlier version to this one."""

FILE_NAME = "runs.sqlite"
BACKUP_SUFFIX = "-backup"
LOCK_NAME = "runs.lock"
BESIDE = ("-wal", "-shm", "-journal")
"""Ends of the names of the files that SQLite opens beside the database."""
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 256 << 20,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 500_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
}
"""A cell with more bytes than LENGTH is an error, instead of all of the memory."""
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


class StoreBusyError(StoreError):
    """Another process has locked the file for long."""


class Locked(Exception):
    """Another thread or process is writing; nothing was done."""


Outcome = tuple[Any, "Exception | None"]


@dataclass(slots=True)
class _Pending:
    """Work that waits for the transaction of its group."""

    work: Work[Any]
    durable: bool
    result: asyncio.Future[Any]


def _do_all(group: Sequence[_Pending], connection: Connection) -> list[Outcome]:
    """Do the work of a group in one transaction; the outcome of each is its result or error."""
    outcomes: list[Outcome] = []
    for pending in group:
        connection.execute("SAVEPOINT work")
        try:
            outcomes.append((pending.work(connection), None))
        except Exception as error:
            if isinstance(error, _DISK_ERRORS) and not _is_our_bug(error):
                raise  # the disk fails for all of them
            connection.execute("ROLLBACK TO work")
            outcomes.append((None, _bug_error(error) if _is_our_bug(error) else error))
        connection.execute("RELEASE work")
    return outcomes


class Database:
    """One SQLite database with one writing connection; in memory when `path` is None."""

    def __init__(
        self,
        connection: Connection,
        path: Path | None,
        warning: str | None,
        upgrade: Upgrade,
        *,
        read_only: str = "",
        folder: Folder | None = None,
        store_id: str = "",
    ) -> None:
        self.path = path
        self.warning = warning
        """Reason why runs are not saved, or saved less safely; None if all is well."""
        self.read_only = read_only
        """Reason why nothing can be written; empty if it can."""
        self._upgrade = upgrade
        self.on_warning: Callable[[str], None] | None = None
        """Called if the disk fails later and the database moves to memory."""
        self._connection = connection
        self._lock = threading.RLock()
        self._read_lock = threading.RLock()
        self._pragmas: dict[str, object] = {}
        self._groups: dict[asyncio.AbstractEventLoop, list[_Pending]] = {}
        self._is_paused = False
        """The connection is closed; the next transaction opens it again."""
        self._inode = _inode(path)
        self._reader: Connection | None = None
        self._reader_inode = 0
        self._is_closed = False
        self._store_id = store_id
        self._folder = folder
        """Its open folder: SQLite deletes the log in it, and nothing elsewhere."""
        self._schema = -1
        """SQLite's counter of changes of the schema when it was compared last."""
        self.deleted_data_in_log = False
        """Deleted rows are still in the write-ahead log, because another process reads from it."""

    @classmethod
    def open(cls, home: Path, upgrade: Upgrade, *, store_id: str = "") -> Database:
        """Open or create the file in a folder.

        If the file cannot be used, the database is in memory with all rows that can be read, and
        `warning` says so. Without file locks it is in the person's data folder instead. A file of
        a newer nbagent is opened for reading, if its columns allow that.

        Args:
            store_id: id of a store that is the person's own; its log is marked with it.

        Raises:
            StoreError: the file belongs to another program, cannot be read by this version, is
                used by an earlier one, or is locked; its log is of another machine.
        """
        path = home / FILE_NAME
        try:
            if not _make_folder(home):
                return _open_elsewhere(home, upgrade)
            with opening_lock(home):
                if store_id and (name := unproven_file(path, store_id)):
                    raise StoreError(f"{path.with_name(name)} was not written by nbagent.")
                version = _version_of(path) if os.path.lexists(path) else 0
                if version > VERSION:
                    newer = _newer_reason(path, version)
                    return cls(_connect(path, "mode=ro"), path, None, upgrade, read_only=newer)
                is_too_old = 0 < version < OLDEST_VERSION
                aside = _set_aside_earlier(path, version) if is_too_old else None
                folder = open_own_folder(home)
                connection = _connect(path, folder=folder)
                try:
                    warning = _choose_journal(connection, home)
                    _mark_own_log(connection, path, store_id)
                    upgrade(connection, path)
                except BaseException:
                    run_within(folder.descriptor, connection.close)
                    raise
            return cls(
                connection, path, warning or aside, upgrade, folder=folder, store_id=store_id
            )
        except LinkRefused as error:
            raise StoreError(f"{error.strerror}.") from None
        except _DISK_ERRORS as error:
            if _is_busy(error):
                raise _store_error(path, error) from None
            return cls(
                _recover_in_memory(path, upgrade),
                None,
                _NOT_SAVED.format(problem=_store_error(path, error).message),
                upgrade,
            )

    @classmethod
    def open_to_read(cls, path: Path, upgrade: Upgrade, reason: str) -> Database:
        """Open the file of another owner to read it, and write nothing into its folder.

        Rows of an earlier version are read from a copy in memory, which is migrated.

        Raises:
            StoreError: the file is no store, or cannot be read by this version.
        """
        try:
            mode = _read_mode(path)
            version = _version_of(path, mode)
            if version >= VERSION:
                if version > VERSION:
                    _newer_reason(path, version, mode)
                return cls(_connect(path, mode), path, None, upgrade, read_only=reason)
            if version < OLDEST_VERSION:
                raise StoreError(f"{path} is of version {version}, which this nbagent cannot read.")
            with contextlib.closing(_connect(path, mode)) as source:
                copy = _open_memory(upgrade, source)
            return cls(copy, None, None, upgrade, read_only=reason)
        except _DISK_ERRORS as error:
            raise _store_error(path, error) from None

    @classmethod
    def memory(cls, upgrade: Upgrade) -> Database:
        return cls(_open_memory(upgrade), None, None, upgrade)

    def earlier_stores(self) -> list[Path]:
        """Files of versions 1 to 5 that were set aside, and backups of migrated versions."""
        return [] if self.path is None else sorted(self.path.parent.glob("runs.v*.sqlite"))

    def backups(self) -> list[Path]:
        """Backups that were made before a migration."""
        return [file for file in self.earlier_stores() if file.stem.endswith(BACKUP_SUFFIX)]

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
        if self.read_only:
            raise StoreError(self.read_only)
        if not self._lock.acquire(blocking=bool(wait_s)):
            raise Locked
        try:
            self._prepare_connection(wait_s, durable=durable)
            return self._transaction(work)
        except _DISK_ERRORS as error:
            if _is_our_bug(error) or self.path is None:
                raise _bug_error(error) from error
            if _is_busy(error) and not wait_s:
                raise Locked from None
            if _is_busy(error) and not memory_if_busy:
                raise _store_error(self.path, error) from None
            self._move_to_memory(error)
            return self._transaction(work)
        finally:
            self._lock.release()

    async def commit(
        self,
        work: Work[T],
        *,
        durable: bool,
        memory_if_busy: bool,
        on_wait: Callable[[], None],
        grouped: bool = False,
    ) -> T:
        """Like `transact`, but do not block the event loop while another process is writing.

        A stop waits for this too, otherwise the stopped turn would be lost. `on_wait` is called
        once if it takes long. With `grouped`, all that is committed in one round of the event loop
        shares a transaction and its fsync; an error in one work rolls back that work only.
        """
        try:
            if grouped:
                return await self._commit_in_group(work, durable=durable)
            return self.transact(work, wait_s=0, durable=durable)
        except Locked:
            pass
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

    async def _commit_in_group(self, work: Work[T], *, durable: bool) -> T:
        loop = asyncio.get_running_loop()
        group = self._groups.get(loop)
        if group is None:
            group = self._groups[loop] = []
            # Runs that are ready in this round of the loop add their work before this is called.
            loop.call_soon(self._commit_group, loop)
        pending = _Pending(work, durable, loop.create_future())
        group.append(pending)
        return await pending.result

    def _commit_group(self, loop: asyncio.AbstractEventLoop) -> None:
        group = self._groups.pop(loop)
        durable = any(pending.durable for pending in group)
        outcomes: list[Outcome]
        try:
            if len(group) == 1:
                outcomes = [(self.transact(group[0].work, wait_s=0, durable=durable), None)]
            else:
                outcomes = self.transact(partial(_do_all, group), wait_s=0, durable=durable)
        except Exception as error:
            outcomes = [(None, error)] * len(group)
        for pending, (result, error) in zip(group, outcomes, strict=True):
            if pending.result.cancelled():
                continue
            if error is None:
                pending.result.set_result(result)
            else:
                pending.result.set_exception(error)

    def _prepare_connection(self, busy_s: float, *, durable: bool) -> None:
        """Open the file if it is paused, and set its pragmas."""
        if self.path is None:
            return
        # SQLite keeps writing into a deleted file, and these rows would be lost without an error.
        if os.path.islink(self.path.parent):
            raise LinkRefused(self.path.parent)
        if _inode(self.path) != self._inode:
            raise FileNotFoundError("the file was deleted or replaced")
        if self._is_paused:
            self._connection = _connect(self.path, folder=self._folder)
            self._is_paused, self._pragmas = False, {}
            _mark_own_log(self._connection, self.path, self._store_id)
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
            # Another process may have changed the schema since it was compared.
            schema = pragma_value(connection, "schema_version")
            if self.path is not None and self._schema != schema:
                _check_schema(connection, self.path)
            self._schema = schema
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
            self._connection = _open_memory(self._upgrade, old)
        except _DISK_ERRORS:
            self._connection = _open_memory(self._upgrade)
        with contextlib.suppress(sqlite3.Error):
            self._close_in_folder(old)
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
            with self._read_lock, self._reading_connection(path) as connection:
                connection.execute("BEGIN")
                yield connection
        except LinkRefused as error:
            raise StoreError(f"{error.strerror}.") from None
        except (sqlite3.Error, *CORRUPT_ROW) as error:
            raise _store_error(path or Path(FILE_NAME), error) from error

    @contextlib.contextmanager
    def _reading_connection(self, path: Path) -> Generator[Connection]:
        """The connection for reading, which stays open: to check a file and its schema takes longer
        than most reads."""
        reader = self._reader
        is_nested = reader is not None and reader.in_transaction
        if is_nested or self.read_only:
            mode = _read_mode(path) if self.read_only else "mode=ro"
            with contextlib.closing(_connect(path, mode)) as connection:
                yield connection
            return
        if reader is None or os.path.islink(path.parent) or _inode(path) != self._reader_inode:
            self._close_reader()
            self._reader_inode = _inode(path)
            reader = self._reader = _connect(path, "mode=ro")
        try:
            yield reader
        except sqlite3.Error:
            self._close_reader()
            raise
        finally:
            if self._is_closed:
                self._close_reader()
            elif reader is self._reader and reader.in_transaction:
                reader.execute("ROLLBACK")

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    # The file

    def pause(self) -> None:
        """Close the file until `resume`, when no thread uses it. Call this before a fork.

        A child would inherit SQLite's memory of its locks, but not the locks themselves.
        """
        self._lock.acquire()
        self._read_lock.acquire()
        self._close_reader()
        if self.path is not None:
            self._close_connection()
            self._is_paused = True

    def resume(self) -> None:
        """Allow other threads to use the file again."""
        self._read_lock.release()
        self._lock.release()

    def close(self) -> None:
        """Close the file; SQLite then merges the write-ahead log into it."""
        self._is_closed = True
        if self._read_lock.acquire(blocking=False):  # else the read closes it
            if self._reader is not None and not self._reader.in_transaction:
                self._close_reader()
            self._read_lock.release()
        with self._lock:
            self._close_connection()
            if self._folder is not None:
                self._folder.close()

    def _close_connection(self) -> None:
        # SQLite deletes the log by its path, and a link may lead there now.
        self._close_in_folder(self._connection)

    def _close_in_folder(self, connection: Connection) -> None:
        folder = self._folder.descriptor if self._folder is not None else None
        run_within(folder, connection.close)

    def checkpoint(self, wait_s: float = _CHECKPOINT_TIMEOUT_S) -> None:
        """Merge the write-ahead log into the file and empty it, unless another process reads it."""
        with self._lock:
            self._prepare_connection(wait_s, durable=True)
            self.deleted_data_in_log = bool(
                pragma_value(self._connection, "wal_checkpoint(TRUNCATE)")
            )

    def compact(self) -> None:
        """Rewrite the file without empty pages; StoreError if another kernel is busy."""
        with self._lock:
            try:
                self._prepare_connection(BUSY_TIMEOUT_S, durable=True)
                # VACUUM attaches its copy.
                self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 1)
                self._connection.execute("VACUUM")
                self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            except (OSError, sqlite3.Error) as error:
                raise StoreError(
                    f"the store could not be compacted ({error}); nothing was changed. Try "
                    "again when no other kernel uses it and the disk has room for a copy"
                ) from None
            self.checkpoint()

    def sizes(self) -> tuple[int, int]:
        """Size of the database without its log, and the part that compacting frees, in bytes."""
        with self.reading() as c:
            page = pragma_value(c, "page_size")
            return pragma_value(c, "page_count") * page, pragma_value(c, "freelist_count") * page


def _mark_own_log(connection: Connection, path: Path, store_id: str) -> None:
    """Mark the write-ahead log of the person's own store before anything is written to it."""
    if store_id:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # SQLite creates the log
        mark_log(path, store_id)


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
        return os.lstat(path).st_ino if path else 0
    return 0


def _make_folder(home: Path) -> bool:
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


def _open_elsewhere(home: Path, upgrade: Upgrade) -> Database:
    """Open the store of a folder without file locks in the person's data folder, else in memory.

    Without locks two kernels would destroy each other's rows, so the folder itself is not used.
    """
    problem = (
        f"{home} is on a file system without file locks (often a network folder whose server runs "
        "no lock service)."
    )
    mirror = stores_folder() / sha256_hex(str(home.absolute()))[:16]
    try:
        if _make_folder(mirror):
            database = Database.open(mirror, upgrade)
            place = f"Runs are kept in {mirror} instead; NBAGENT_HOME sets another folder."
            database.warning = database.warning or f"{problem} {place}"
            return database
    except OSError:
        pass
    return Database(_open_memory(upgrade), None, _NOT_SAVED.format(problem=problem), upgrade)


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
    mode = _read_mode(path, with_log=with_log)
    try:
        return _facts_of(path, mode, count)
    except (*_DISK_ERRORS, *CORRUPT_ROW) as error:
        if not with_log or _read_mode(path) == mode:
            raise _store_error(path, error) from None
    # Another process has opened it meanwhile, and changed what was read without a lock.
    try:
        return _facts_of(path, "mode=ro", count)
    except (*_DISK_ERRORS, *CORRUPT_ROW) as error:
        raise _store_error(path, error) from None


def _facts_of(path: Path, mode: str, count: bool) -> StoreFacts | None:
    version = _version_of(path, mode)
    if not version:
        return None
    with contextlib.closing(_connect(path, mode)) as c:
        has_facts = c.execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone()
        sql = "SELECT value FROM facts WHERE name = ?"
        row = c.execute(sql, (STORE_ID,)).fetchone() if has_facts else None
        sql = "SELECT count(*), max(started_at) FROM runs"
        runs = c.execute(sql).fetchone() if count else (0, None)
    last = runs[1] if isinstance(runs[1], int) else None
    return StoreFacts(version, str(row[0]) if row else "", runs[0], last)


def _read_mode(path: Path, *, with_log: bool = True) -> str:
    """Mode in which reading creates no file beside a store; with a log there are files already."""
    for end in ("", *BESIDE):
        if os.path.islink(file := path.with_name(f"{path.name}{end}")):
            raise StoreError(f"{file} is a link, which is not followed; delete it")
    has_log = os.path.lexists(path.with_name(f"{path.name}-wal"))
    return "mode=ro" if has_log and with_log else "mode=ro&immutable=1"


def _version_of(path: Path, mode: str = "mode=rwc") -> int:
    """Version of a store's tables, 0 for an empty file; refuse a file of another program."""
    with _connected(path, mode) as c:
        return pragma_value(c, "user_version")


def _newer_reason(path: Path, version: int, mode: str = "mode=ro") -> str:
    """Reason why nothing can be written to a store of a newer nbagent.

    Raises:
        StoreError: it cannot even be read.
    """
    with contextlib.closing(_connect(path, mode)) as c:
        sql = "SELECT value FROM facts WHERE name = 'oldest reader'"
        has_facts = c.execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone()
        oldest = (c.execute(sql).fetchone() if has_facts else None) or (version,)
    newer = f"{path} was written by a newer nbagent (version {version} of the store; this one"
    if oldest[0] > VERSION:
        raise StoreError(
            f"{newer} reads up to {VERSION}, and needs {oldest[0]}). Upgrade nbagent, or "
            f"{_USE_OTHER_FOLDER}."
        )
    return (
        f"{newer} writes {VERSION}), so its runs can be read and none can be added. Upgrade "
        f"nbagent, or {_USE_OTHER_FOLDER}."
    )


def _set_aside_earlier(path: Path, version: int) -> str:
    """Rename a store of versions 1 to 5, which cannot be migrated; say where it is."""
    with _connected(path) as c:
        # Merges the write-ahead log into the file, so that one rename moves all of it. SQLite
        # refuses this while an earlier nbagent has the file open.
        c.execute("PRAGMA busy_timeout = 0")
        _set_journal(c, path.parent, "DELETE")
    with contextlib.closing(open_own_folder(path.parent)) as folder:
        taken = {entry.name for entry in folder.scan()}
        names = (f"runs.v{version}-{n}.sqlite" for n in itertools.count(1))
        aside = next(name for name in names if name not in taken)
        folder.replace(path.name, aside)
    return (
        f"The runs of an earlier nbagent are in {path.with_name(aside)}; this version cannot read "
        f"them (`sqlite3 {aside}` does)."
    )


def _connect(path: Path, mode: str = "mode=rwc", *, folder: Folder | None = None) -> Connection:
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
            return _connect(path, mode, folder=opened)
    if mode == "mode=rwc":
        mode = "mode=rw"
        _create_file(folder, path)
    _check_files(folder, path)
    connection = run_within(folder.descriptor, lambda: _open_file(path, mode))
    try:
        _check_name(connection, path)
        _check_schema(connection, path)
    except BaseException:
        run_within(folder.descriptor, connection.close)
        raise
    return connection


@contextlib.contextmanager
def _connected(path: Path, mode: str = "mode=rwc") -> Generator[Connection]:
    """Open the file of a store; what SQLite deletes when it is closed is in its folder."""
    with contextlib.closing(open_own_folder(path.parent)) as folder:
        connection = _connect(path, mode, folder=folder)
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


def _check_schema(connection: Connection, path: Path) -> None:
    """Refuse a schema that nbagent did not make. A file without tables passes.

    Raises:
        StoreError: it has parts that nbagent did not make.
        sqlite3.DatabaseError: a part is missing or damaged.
    """
    entries = tuple(connection.execute(SCHEMA_SQL).fetchall())
    version = pragma_value(connection, "user_version")
    owner = pragma_value(connection, "application_id")
    if owner != APPLICATION_ID and (owner or version or entries):
        raise StoreError(f"{path} is the database of another program; {_USE_OTHER_FOLDER}.")
    if version < OLDEST_VERSION:
        return
    if part := foreign_part(entries, version):
        raise StoreError(
            f"{path} is not used: nbagent did not make {part} in it, which could change or invent "
            f"runs. Nothing was run or changed. Move the file away, or {_USE_OTHER_FOLDER}."
        )
    if problem := missing_part(entries, version):
        raise sqlite3.DatabaseError(problem)


def _open_memory(upgrade: Upgrade, source: Connection | None = None) -> Connection:
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


def _recover_in_memory(path: Path, upgrade: Upgrade) -> Connection:
    """Open a database in memory with a copy of a file, if the file can be read."""
    for mode in ("mode=ro", "copy", "mode=ro&immutable=1") if os.path.isfile(path) else ():
        with contextlib.suppress(*_DISK_ERRORS), _source(path, mode) as source:
            if OLDEST_VERSION <= pragma_value(source, "user_version") <= VERSION:
                return _open_memory(upgrade, source)
    return _open_memory(upgrade)


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
        yield stack.enter_context(contextlib.closing(_connect(path, mode)))


def _choose_journal(connection: Connection, home: Path) -> str | None:
    system = file_system(home)
    mode = "DELETE" if system.startswith(_NETWORK_FILE_SYSTEMS) else "WAL"
    if _set_journal(connection, home, mode) == "wal":
        return None
    return (
        f"{home} is on a file system ({system}) where commits are slow; "
        f"{_USE_OTHER_FOLDER} on a disk"
    )


def _set_journal(connection: Connection, home: Path, mode: str) -> str:
    """Set the journal mode, which opens or deletes the log; return the mode that there is now."""

    def work() -> str:
        return connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0]

    with contextlib.closing(open_own_folder(home)) as folder:
        return run_within(folder.descriptor, work)


def back_up(connection: Connection, target: Path) -> None:
    """Copy a database into a new file, consistently also while others write."""
    with (
        _connected(target) as copy,
        contextlib.closing(open_own_folder(target.parent)) as folder,
    ):
        run_within(folder.descriptor, lambda: connection.backup(copy))
        _set_journal(copy, target.parent, "DELETE")


def pragma_value(connection: Connection, name: str) -> int:
    """Value of a pragma that is a number."""
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def _is_our_bug(error: Exception) -> bool:
    # DataError: a value that is too long for a cell, on any disk.
    return isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.DataError)


def _bug_error(error: Exception) -> StoreError:
    return StoreError(f"the store failed ({error}); restart the kernel")


def _is_busy(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return isinstance(code, int) and code & 0xFF == sqlite3.SQLITE_BUSY


def _store_error(path: Path, error: Exception) -> StoreError:
    if _is_busy(error):
        return StoreBusyError(
            f"{path} has been locked by another process for {BUSY_TIMEOUT_S:.0f} s ({error}). End "
            f"that process, try again after it has finished, or {_USE_OTHER_FOLDER}."
        )
    return StoreError(
        f"{path} cannot be used ({error}). Make the folder writable, move a damaged file away "
        f"(`sqlite3 {FILE_NAME} .recover` reads it), or {_USE_OTHER_FOLDER}."
    )
