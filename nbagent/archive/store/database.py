"""The file of the store: opening, migrating, transactions, and leaving a disk that fails.

Knows nothing of runs. Every sqlite3 connection of nbagent is made here.
"""

from __future__ import annotations

import contextlib
import contextvars
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from nbagent.archive.store.schema import APPLICATION_ID, MIGRATIONS
from nbagent.contracts.errors import StoreError

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

Connection = sqlite3.Connection
OperationalError = sqlite3.OperationalError
"""For the frames: sqlite3 itself is imported in this package only."""

FILE_NAME = "runs.sqlite"
_BUSY_S = 30.0
WhenLocked = Literal["wait", "tell", "leave"]
_when_locked: contextvars.ContextVar[WhenLocked] = contextvars.ContextVar("locked", default="wait")
_FOLD_S = 2.0
_ELSEWHERE = "set NBAGENT_HOME to another folder"
_NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb", "smb3", "smbfs", "ncpfs", "afs", "ceph", "glusterfs"),
        *("lustre", "gpfs", "beegfs", "orangefs", "davfs", "9p", "fuse.sshfs", "fuse.rclone"),
        *("fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.davfs"),
    )
)
"""File systems without the shared memory that WAL needs between machines."""
_OURS_TO_MEND = (
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
    sqlite3.NotSupportedError,
)
"""What sqlite3 raises for a mistake of the caller; the disk is not to blame."""


class Locked(Exception):
    """Somebody else is writing. Only under `when_locked("tell")`; nothing was done."""


@contextlib.contextmanager
def when_locked(do: WhenLocked) -> Generator[None]:
    """What transactions of this thread do about a file that another process is writing.

    Args:
        do: wait up to half a minute and then leave the disk (else the default), `tell` by raising
            Locked, or `leave` the disk at once.
    """
    token = _when_locked.set(do)
    try:
        yield
    finally:
        _when_locked.reset(token)


class Database:
    """One SQLite database with one writing connection; in memory when `path` is None."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path | None, warning: str | None
    ) -> None:
        self.path = path
        self.warning = warning
        """Why runs are not kept, or kept less safely; None when all is well."""
        self.on_warning: Callable[[str], None] | None = None
        """Told when the database leaves the disk in the middle of the work."""
        self.on_emptied: Callable[[sqlite3.Connection], None] | None = None
        """Called in a fresh memory when not even the old content could be read."""
        self._connection = connection
        self._lock = threading.RLock()
        self._reads = threading.Condition()
        self._reading = 0
        self._patient = True
        self._paused = False
        """The connection is closed, and opened again by who comes next."""
        self._inode = path.stat().st_ino if path else 0

    @classmethod
    def open(cls, home: Path, *, migrations: Sequence[str] = MIGRATIONS) -> Database:
        """Open or make the file in a folder; StoreError says what is wrong and what to do."""
        path = home / FILE_NAME
        try:
            _make_folder(home)
            connection = _connect(path)
        except (OSError, sqlite3.Error) as error:
            raise _refusal(path, error) from None
        try:
            _refuse_foreign(connection, path, len(migrations))
            warning = _choose_journal(connection, home)
            migrate(connection, path, migrations)
        except sqlite3.Error as error:
            connection.close()
            raise _refusal(path, error) from None
        except StoreError:
            connection.close()
            raise
        return cls(connection, path, warning)

    @classmethod
    def memory(cls, reason: str | None, source: sqlite3.Connection | None = None) -> Database:
        """A database in memory, filled from another one."""
        return cls(_memory(source), None, reason)

    @property
    def in_memory(self) -> bool:
        """Whether what is written now will be gone with this process."""
        return self.path is None

    def pause(self) -> None:
        """Close the file until `go_on`, when nobody is in it. Before a fork.

        The child would inherit what SQLite knows of its locks, but not the locks.
        """
        self._lock.acquire()
        self._reads.acquire()
        self._reads.wait_for(lambda: not self._reading)
        if self.path is not None:
            self._connection.close()
            self._paused = True

    def go_on(self) -> None:
        """Let others in again."""
        self._reads.release()
        self._lock.release()

    def transact(self, work: Work[T]) -> T:
        """Run work in one committed transaction.

        When the disk fails, everything moves into memory and the work is done there.
        """
        tell = _when_locked.get() == "tell"
        if not self._lock.acquire(blocking=not tell):
            raise Locked
        try:
            return self._transact(work, tell=tell)
        finally:
            self._lock.release()

    def _transact(self, work: Work[T], *, tell: bool) -> T:
        try:
            self._require_file()
            self._be_ready(patient=_when_locked.get() == "wait")
            return self._attempt(work)
        except _OURS_TO_MEND as error:
            raise StoreError(f"the store was used in a wrong way ({error})") from error
        except (OSError, sqlite3.Error) as error:
            if self.path is None:
                raise StoreError(
                    f"the store in memory failed ({error}); restart the kernel"
                ) from error
            if tell and _is_busy(error):
                raise Locked from None
            self._leave_disk(error)
            return self._attempt(work)

    def _be_ready(self, *, patient: bool) -> None:
        """Have the file open, and set whether it waits for others."""
        if self.path is None:
            return
        if self._paused:
            self._connection, self._paused, self._patient = _connect(self.path), False, True
        if patient != self._patient:
            self._connection.execute(f"PRAGMA busy_timeout = {int(patient * _BUSY_S * 1000)}")
            self._patient = patient

    def _attempt(self, work: Work[T]) -> T:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    def _require_file(self) -> None:
        # SQLite goes on writing into a file that was deleted, and nobody would ever see it.
        path = self.path
        if path is not None and path.stat().st_ino != self._inode:
            raise FileNotFoundError(f"{path.name} was replaced by another file")

    def _leave_disk(self, error: Exception) -> None:
        path, old = self.path, self._connection
        lost = False
        try:
            fresh = _memory(old)
        except sqlite3.Error:
            lost = True
            fresh = _memory()
        with contextlib.suppress(sqlite3.Error):
            old.close()
        self._connection, self.path = fresh, None
        if lost and self.on_emptied is not None:
            self.on_emptied(fresh)
        read = " Earlier runs could not be read either." if lost else ""
        self.warning = (
            f"RUNS ARE NO LONGER KEPT ON DISK: writing {path} failed ({_cause(error)}). This "
            f"kernel goes on in memory, and what it does from here is lost when it ends.{read} "
            f"Make the disk writable and restart the kernel, or {_ELSEWHERE}."
        )
        if self.on_warning is not None:
            self.on_warning(self.warning)

    @contextlib.contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        """A connection that sees one moment of the database. Any thread.

        A file is read through a connection of its own, so that a long read delays no commit.
        """
        path = self.path
        try:
            if path is None:
                with self._lock:
                    yield self._connection
                return
            with self._counted(), contextlib.closing(_connect(path, mode="ro")) as connection:
                connection.execute("BEGIN")
                yield connection
        except sqlite3.Error as error:
            raise _refusal(path or Path(FILE_NAME), error) from error

    @contextlib.contextmanager
    def _counted(self) -> Generator[None]:
        with self._reads:
            self._reading += 1
        try:
            yield
        finally:
            with self._reads:
                self._reading -= 1
                self._reads.notify_all()

    def close(self) -> None:
        """Close the file; its write-ahead log is folded into it."""
        with self._lock:
            self._connection.close()

    def fold(self, wait_s: float = _FOLD_S) -> bool:
        """Fold the write-ahead log into the file and empty it; False while others read it."""
        with self._lock:
            # With the busy timeout SQLite itself would wait for a reader.
            self._be_ready(patient=False)
            until = time.monotonic() + wait_s
            while True:
                busy = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
                if not busy or time.monotonic() > until:
                    return not busy
                time.sleep(0.05)

    def compact(self) -> bool:
        """Write the file anew without its empty pages; StoreError when another kernel is busy.

        Returns what `fold` does.
        """
        with self._lock:
            try:
                self._require_file()
                self._be_ready(patient=True)
                self._connection.execute("VACUUM")
            except (OSError, sqlite3.Error) as error:
                raise StoreError(
                    f"the store could not be compacted ({_cause(error)}); nothing was changed. Try "
                    "again when no other kernel uses it and the disk has room for a copy"
                ) from None
            return self.fold()

    def free_bytes(self) -> int:
        """What compacting would give back, about."""
        with self.reading() as c:
            free = c.execute("PRAGMA freelist_count").fetchone()[0]
            return free * c.execute("PRAGMA page_size").fetchone()[0]

    def size_bytes(self) -> int:
        """What the database takes, on disk or in memory."""
        path = self.path
        if path is not None:
            files = (path, path.with_name(path.name + "-wal"))
            return sum(file.stat().st_size for file in files if file.exists())
        with self._lock:
            pages = self._connection.execute("PRAGMA page_count").fetchone()[0]
            return pages * self._connection.execute("PRAGMA page_size").fetchone()[0]


def rescue(home: Path) -> sqlite3.Connection | None:
    """Open an existing file for reading, by whatever way still works; None when none does."""
    path = home / FILE_NAME
    if not path.is_file():
        return None
    modes: tuple[Literal["ro", "immutable"], ...] = ("ro", "immutable")
    for mode in modes:
        # In a read-only folder WAL's index cannot be made; `immutable` reads the file alone.
        try:
            connection = _connect(path, mode=mode)
        except sqlite3.Error:
            continue
        try:
            connection.execute("SELECT count(*) FROM runs").fetchone()
        except sqlite3.Error:
            connection.close()
            continue
        return connection
    return None


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    """Bring a database to the newest version, one transaction for each step."""
    while True:
        if _version(connection) >= len(migrations):
            _refuse_foreign(connection, path, len(migrations))
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have done this step while we waited for the lock.
            version = _version(connection)
            if version < len(migrations):
                for statement in _statements(migrations[version]):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _statements(script: str) -> Generator[str]:
    # sqlite3's executescript commits first, which would cut the migration's transaction.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def _make_folder(home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    ignore = home / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")


def _connect(path: Path, *, mode: Literal["rwc", "ro", "immutable"] = "rwc") -> sqlite3.Connection:
    query = "mode=ro&immutable=1" if mode == "immutable" else f"mode={mode}"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{query}",
        uri=True,
        timeout=_BUSY_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    return _settings(connection)


def _memory(source: sqlite3.Connection | None = None) -> sqlite3.Connection:
    connection = _settings(sqlite3.connect(":memory:", check_same_thread=False))
    try:
        if source is not None:
            source.backup(connection)
        migrate(connection, Path(FILE_NAME), MIGRATIONS)
    except BaseException:
        connection.close()
        raise
    return connection


def _settings(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.isolation_level = None
    try:
        connection.execute("PRAGMA synchronous = FULL")
        # What is deleted is overwritten, so that forgetting a run means it.
        connection.execute("PRAGMA secure_delete = ON")
    except BaseException:  # the first statement reads the file: locked, or no database
        connection.close()
        raise
    return connection


def _refuse_foreign(connection: sqlite3.Connection, path: Path, known: int) -> None:
    version = _version(connection)
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION_ID and not (empty and version == 0):
        raise StoreError(
            f"{path} is the database of another program; {_ELSEWHERE}.",
            details={"reason": "foreign", "path": str(path)},
        )
    if version > known:
        raise StoreError(
            f"{path} was written by a newer nbagent: its version is {version}, this nbagent "
            f"knows up to {known}. Upgrade with `pip install -U nbagent`, or {_ELSEWHERE}.",
            details={"reason": "newer", "version": version, "known": known, "path": str(path)},
        )


def _choose_journal(connection: sqlite3.Connection, home: Path) -> str | None:
    system = file_system(home)
    if system not in _NETWORK:
        if _journal(connection, "WAL") == "wal":
            return None
        system = system or "this"
    _journal(connection, "DELETE")
    return (
        f"{home} is on a file system ({system}) where several machines cannot share a "
        "write-ahead log. Runs are kept with the slower rollback journal. "
        f"For speed, {_ELSEWHERE} on a local disk."
    )


def _journal(connection: sqlite3.Connection, mode: str) -> str:
    # The busy timeout does not cover a change of the journal, which two fresh kernels may race for.
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            return connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0]
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.02)


def file_system(folder: Path, mounts: str = "/proc/mounts") -> str | None:
    """The type of the file system that holds a folder, as Linux names it; None elsewhere."""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    resolved = folder.resolve()
    best, found = -1, None
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        # Of two mounts on one point the later one is seen.
        if len(point) >= best and resolved.is_relative_to(point):
            best, found = len(point), kind
    return found


def _is_busy(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return isinstance(code, int) and code & 0xFF == sqlite3.SQLITE_BUSY


def _cause(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file was deleted or replaced"
    return str(error)


def _refusal(path: Path, error: Exception) -> StoreError:
    text = str(error)
    broken = isinstance(error, sqlite3.DatabaseError) and (
        "not a database" in text or "malformed" in text or "no such table" in text
    )
    if broken:
        return StoreError(
            f"{path} is damaged ({text}). Nothing was changed in it. Move it away to begin a new "
            "one, or recover what it holds with `sqlite3 runs.sqlite .recover`.",
            details={"reason": "corrupt", "path": str(path)},
        )
    if _is_busy(error):
        return StoreError(
            f"{path} has been locked by another process for {_BUSY_S:.0f} s; nothing was started. "
            f"End that process, try again when it is done, or {_ELSEWHERE}.",
            details={"reason": "locked", "path": str(path)},
        )
    return StoreError(
        f"{path} cannot be used ({text}). Make the folder writable, or {_ELSEWHERE}.",
        details={"reason": "unusable", "path": str(path)},
    )
