"""The database of the store: transactions, reading, and the move to memory if a disk fails.

Knows nothing of runs; `migrations` creates and upgrades the tables, `connections` opens the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
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
    open_own_folder,
)
from nbagent.sandbox.folder_thread import run_within
from nbagent.settings.trust import stores_folder
from nbagent.store.columns import (
    CORRUPT_ROW,
    OLDEST_VERSION,
    VERSION,
)
from nbagent.store.connections import (
    BACKUP_SUFFIX,
    BUSY_TIMEOUT_S,
    DISK_ERRORS,
    FILE_NAME,
    Connection,
    SqliteError,
    Upgrade,
    bug_error,
    check_schema,
    choose_journal,
    connect,
    connect_to_read,
    file_inode,
    is_busy,
    is_our_bug,
    open_memory,
    pragma_value,
    recover_in_memory,
    store_error,
    vacuum,
)
from nbagent.store.log_mark import mark_log, unproven_file
from nbagent.store.store_facts import newer_reason, read_mode, set_aside_earlier, version_of
from nbagent.store.store_folder import make_folder, opening_lock

T = TypeVar("T")
Work = Callable[[Connection], T]

_NOTICE_AFTER_S = 0.5
_CHECKPOINT_TIMEOUT_S = 2.0
_NOT_SAVED = (
    "RUNS ARE NOT SAVED ON DISK: {problem} Until this kernel is restarted, runs are in memory only "
    "and are lost when it ends."
)


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
            if isinstance(error, DISK_ERRORS) and not is_our_bug(error):
                raise  # the disk fails for all of them
            connection.execute("ROLLBACK TO work")
            outcomes.append((None, bug_error(error) if is_our_bug(error) else error))
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
        self._inode = file_inode(path)
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
            if not make_folder(home):
                return _open_elsewhere(home, upgrade)
            with opening_lock(home):
                if store_id and (name := unproven_file(path, store_id)):
                    raise StoreError(f"{path.with_name(name)} was not written by nbagent.")
                version = version_of(path) if os.path.lexists(path) else 0
                if version > VERSION:
                    newer = newer_reason(path, version)
                    return cls(connect(path, "mode=ro"), path, None, upgrade, read_only=newer)
                is_too_old = 0 < version < OLDEST_VERSION
                aside = set_aside_earlier(path, version) if is_too_old else None
                folder = open_own_folder(home)
                connection = connect(path, folder=folder)
                try:
                    warning = choose_journal(connection, home)
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
        except DISK_ERRORS as error:
            if is_busy(error):
                raise store_error(path, error) from None
            return cls(
                recover_in_memory(path, upgrade),
                None,
                _NOT_SAVED.format(problem=store_error(path, error).message),
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
            mode = read_mode(path)
            version = version_of(path, mode)
            if version >= VERSION:
                if version > VERSION:
                    newer_reason(path, version, mode)
                return cls(connect(path, mode), path, None, upgrade, read_only=reason)
            if version < OLDEST_VERSION:
                raise StoreError(f"{path} is of version {version}, which this nbagent cannot read.")
            with contextlib.closing(connect(path, mode)) as source:
                copy = open_memory(upgrade, source)
            return cls(copy, None, None, upgrade, read_only=reason)
        except DISK_ERRORS as error:
            raise store_error(path, error) from None

    @classmethod
    def memory(cls, upgrade: Upgrade) -> Database:
        return cls(open_memory(upgrade), None, None, upgrade)

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
        except DISK_ERRORS as error:
            if is_our_bug(error) or self.path is None:
                raise bug_error(error) from error
            if is_busy(error) and not wait_s:
                raise Locked from None
            if is_busy(error) and not memory_if_busy:
                raise store_error(self.path, error) from None
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
        if file_inode(self.path) != self._inode:
            raise FileNotFoundError("the file was deleted or replaced")
        if self._is_paused:
            self._connection = connect(self.path, folder=self._folder)
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
                check_schema(connection, self.path)
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
            self._connection = open_memory(self._upgrade, old)
        except DISK_ERRORS:
            self._connection = open_memory(self._upgrade)
        with contextlib.suppress(SqliteError):
            self._close_in_folder(old)
        self.path = None
        self.warning = _NOT_SAVED.format(problem=store_error(path, error).message)
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
        except (SqliteError, *CORRUPT_ROW) as error:
            raise store_error(path or Path(FILE_NAME), error) from error

    @contextlib.contextmanager
    def _reading_connection(self, path: Path) -> Generator[Connection]:
        """The connection for reading, which stays open: to check a file and its schema takes longer
        than most reads."""
        reader = self._reader
        is_nested = reader is not None and reader.in_transaction
        if is_nested or self.read_only:
            mode = read_mode(path) if self.read_only else "mode=ro"
            with contextlib.closing(connect_to_read(path, mode)) as connection:
                yield connection
            return
        if reader is None or os.path.islink(path.parent) or file_inode(path) != self._reader_inode:
            self._close_reader()
            self._reader_inode = file_inode(path)
            reader = self._reader = connect_to_read(path, "mode=ro")
        try:
            yield reader
        except SqliteError:
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
                vacuum(self._connection)
            except (OSError, SqliteError) as error:
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
        if make_folder(mirror):
            database = Database.open(mirror, upgrade)
            place = f"Runs are kept in {mirror} instead; NBAGENT_HOME sets another folder."
            database.warning = database.warning or f"{problem} {place}"
            return database
    except OSError:
        pass
    return Database(open_memory(upgrade), None, _NOT_SAVED.format(problem=problem), upgrade)
