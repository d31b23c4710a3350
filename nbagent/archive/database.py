"""The file of the store: opening it, transactions, and leaving a disk that fails.

Knows nothing of runs. Every sqlite3 connection of nbagent is made here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

from nbagent.archive.lease import Lease
from nbagent.archive.locking import locked
from nbagent.archive.schema import APPLICATION_ID, VERSION, statements
from nbagent.contracts.canonical import utc_now
from nbagent.contracts.errors import StoreError

T = TypeVar("T")
Connection = sqlite3.Connection
OperationalError = sqlite3.OperationalError
"""For other modules: sqlite3 itself is imported here only."""
Work = Callable[[Connection], T]
OnLock = Literal["wait", "leave", "raise"]
"""What to do about a file that another process is writing: wait, and then refuse or leave the
disk; or raise `Locked` at once."""

FILE_NAME = "runs.sqlite"
BUSY_S = 30.0
"""So long another process is waited for."""
_QUIET_S = 0.5
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
    """Another thread or process is writing; nothing was done."""


class Database:
    """One SQLite database with one writing connection; in memory when `path` is None."""

    def __init__(self, connection: Connection, path: Path | None, warning: str | None) -> None:
        self.path = path
        self.warning = warning
        """Why runs are not kept, or kept less safely; None when all is well."""
        self.on_warning: Callable[[str], None] | None = None
        """Called when the database leaves the disk in the middle of the work."""
        self.on_emptied: Callable[[Connection], None] | None = None
        """Called with a fresh memory when not even the old content could be read."""
        self._connection = connection
        self._lock = threading.RLock()
        self._reads = threading.Condition()
        self._reading = 0
        self._set: dict[str, object] = {}
        """Pragmas of the connection."""
        self._paused = False
        """The connection is closed, and opened again by who comes next."""
        self._inode = path.stat().st_ino if path else 0
        self._waiter = ThreadPoolExecutor(1, "nbagent-store")
        """Where a commit waits for another process; its thread begins with the first one."""

    @classmethod
    def open(cls, home: Path) -> Database:
        """Open or make the file in a folder; StoreError says what is wrong and what to do."""
        path = home / FILE_NAME
        try:
            _make_folder(home)
            with _one_at_a_time(home):
                if path.exists():
                    _put_earlier_aside(path)
                connection = _connect(path)
                try:
                    warning = _choose_journal(connection, home)
                    _make_tables(connection)
                except BaseException:
                    connection.close()
                    raise
        except (OSError, sqlite3.Error) as error:
            raise _refusal(path, error) from None
        return cls(connection, path, warning)

    @classmethod
    def memory(cls, reason: str | None, source: Connection | None = None) -> Database:
        """A database in memory, filled from another one."""
        return cls(_memory(source), None, reason)

    @classmethod
    def rescued(cls, home: Path, reason: str) -> Database:
        """A database in memory with what can still be read of a folder's file."""
        path = home / FILE_NAME
        modes: tuple[Literal["ro", "immutable"], ...] = ("ro", "immutable")
        # In a read-only folder WAL's index cannot be made; `immutable` reads the file alone.
        for mode in modes if path.is_file() else ():
            with (
                contextlib.suppress(sqlite3.Error),
                contextlib.closing(_connect(path, mode=mode)) as source,
            ):
                if _pragma(source, "user_version") == VERSION:
                    return cls.memory(reason, source)
        return cls.memory(reason)

    def earlier(self) -> list[Path]:
        """Stores of earlier versions that were put aside."""
        return [] if self.path is None else sorted(self.path.parent.glob("runs.v*.sqlite"))

    # Writing

    def transact(self, work: Work[T], *, on_lock: OnLock = "wait", durable: bool = True) -> T:
        """Run work in one committed transaction.

        When the disk fails, everything moves into memory and the work is done there.

        Args:
            work: what is done; once more when everything moves.
            on_lock: while another process is writing.
            durable: also a power cut shall not take it back.
        """
        if not self._lock.acquire(blocking=on_lock != "raise"):
            raise Locked
        try:
            self._require_file()
            self._be_ready(0 if on_lock == "raise" else BUSY_S, durable=durable)
            return self._attempt(work)
        except _OURS_TO_MEND as error:
            raise StoreError(f"the store was used in a wrong way ({error})") from error
        except (OSError, sqlite3.Error) as error:
            if self.path is None:
                raise StoreError(
                    f"the store in memory failed ({error}); restart the kernel"
                ) from error
            if _is_busy(error) and on_lock == "raise":
                raise Locked from None
            if _is_busy(error) and on_lock == "wait":
                raise _refusal(self.path, error) from None
            self._leave_disk(error)
            return self._attempt(work)
        finally:
            self._lock.release()

    async def commit(
        self, work: Work[T], *, on_lock: OnLock, durable: bool, on_wait: Callable[[], None]
    ) -> T:
        """`transact`, but the loop goes on while another process is writing.

        A stop waits for it too: else what it stops would be lost.

        Args:
            on_wait: called once when it takes long.
        """
        with contextlib.suppress(Locked):
            return self.transact(work, on_lock="raise", durable=durable)
        waiting = asyncio.get_running_loop().run_in_executor(
            self._waiter, lambda: self.transact(work, on_lock=on_lock, durable=durable)
        )
        done, _ = await asyncio.wait([waiting], timeout=_QUIET_S)
        if not done:
            on_wait()
        return await waiting

    def _be_ready(self, busy_s: float, *, durable: bool) -> None:
        """Have the file open, and set how it is written."""
        if self.path is None:
            return
        if self._paused:
            self._connection, self._paused, self._set = _connect(self.path), False, {}
        # Without a write-ahead log each commit has to be safe for the file to stay whole.
        full = durable or self.warning is not None
        pragmas = {"busy_timeout": int(busy_s * 1000), "synchronous": "FULL" if full else "NORMAL"}
        for name, value in pragmas.items():
            if self._set.get(name) != value:
                self._connection.execute(f"PRAGMA {name} = {value}")
                self._set[name] = value

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

    # Reading

    @contextlib.contextmanager
    def reading(self) -> Generator[Connection]:
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

    # The file

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

    def close(self) -> None:
        """Close the file; its write-ahead log is folded into it."""
        with self._lock:
            self._connection.close()
        self._waiter.shutdown(wait=False)

    def fold(self, wait_s: float = _FOLD_S) -> bool:
        """Fold the write-ahead log into the file and empty it; False while others read it."""
        with self._lock:
            self._be_ready(wait_s, durable=True)
            return not self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]

    def compact(self) -> bool:
        """Write the file anew without its empty pages; StoreError when another kernel is busy.

        Returns what `fold` does.
        """
        with self._lock:
            try:
                self._require_file()
                self._be_ready(BUSY_S, durable=True)
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
            return _pragma(c, "freelist_count") * _pragma(c, "page_size")

    def size_bytes(self) -> int:
        """What the database takes, on disk or in memory."""
        if self.path is not None:
            files = (self.path, self.path.with_name(f"{FILE_NAME}-wal"))
            return sum(file.stat().st_size for file in files if file.exists())
        with self.reading() as c:
            return _pragma(c, "page_count") * _pragma(c, "page_size")


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


def _make_folder(home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    ignore = home / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")


@contextlib.contextmanager
def _one_at_a_time(home: Path) -> Generator[None]:
    """Keep other processes from opening the same store; where files know no locks, go on."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context((home / "runs.lock").open("ab"))
        with contextlib.suppress(OSError):
            stack.enter_context(locked(file.fileno(), wait_s=BUSY_S))
        yield


def _put_earlier_aside(path: Path) -> None:
    """Rename the store of an earlier version; refuse what is not ours to write."""
    with contextlib.closing(_connect(path, mode="ro")) as c:
        version = _pragma(c, "user_version")
        empty = not c.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if _pragma(c, "application_id") != APPLICATION_ID and not (empty and version == 0):
            raise StoreError(
                f"{path} is the database of another program; {_ELSEWHERE}.",
                details={"reason": "foreign", "path": str(path)},
            )
        if version > VERSION:
            raise StoreError(
                f"{path} was written by a newer nbagent: its version is {version}, this nbagent "
                f"knows up to {VERSION}. Upgrade with `pip install -U nbagent`, or {_ELSEWHERE}.",
                details={"reason": "newer", "version": version, "known": VERSION},
            )
        if version in (0, VERSION):
            return
        c.row_factory = sqlite3.Row
        for row in c.execute("SELECT * FROM leases"):
            if Lease.of_row(dict(row)).is_alive(utc_now()):
                # Closing its connection, SQLite would delete the log of the new file.
                raise StoreError(
                    f"{path} is used by an earlier nbagent in process {row['pid']}; end that "
                    f"kernel, or {_ELSEWHERE}.",
                    details={"reason": "earlier", "pid": row["pid"]},
                )
    names = (path.with_name(f"runs.v{version}-{n}.sqlite") for n in itertools.count(1))
    aside = next(file for file in names if not file.exists())
    for suffix in ("-wal", "-shm", ""):  # the file last: until then the next one tries again
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.rename(aside.with_name(aside.name + suffix))


def _make_tables(connection: Connection) -> None:
    if _pragma(connection, "user_version") == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    for statement in statements():
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def _connect(path: Path, *, mode: Literal["rwc", "ro", "immutable"] = "rwc") -> Connection:
    query = "mode=ro&immutable=1" if mode == "immutable" else f"mode={mode}"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{query}",
        uri=True,
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    return _with_secure_delete(connection)


def _memory(source: Connection | None = None) -> Connection:
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection = _with_secure_delete(memory)
    try:
        if source is not None:
            source.backup(connection)
        _make_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _with_secure_delete(connection: Connection) -> Connection:
    try:
        # What is deleted is overwritten, so that forgetting a run means it.
        connection.execute("PRAGMA secure_delete = ON")
    except BaseException:  # the first statement reads the file: locked, or no database
        connection.close()
        raise
    return connection


def _choose_journal(connection: Connection, home: Path) -> str | None:
    system = file_system(home)
    if system not in _NETWORK:
        if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
            return None
        system = system or "this"
    connection.execute("PRAGMA journal_mode = DELETE")
    return (
        f"{home} is on a file system ({system}) where several machines cannot share a "
        "write-ahead log. Runs are kept with the slower rollback journal. "
        f"For speed, {_ELSEWHERE} on a local disk."
    )


def _pragma(connection: Connection, name: str) -> int:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


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
            f"{path} has been locked by another process for {BUSY_S:.0f} s; nothing was started. "
            f"End that process, try again when it is done, or {_ELSEWHERE}.",
            details={"reason": "locked", "path": str(path)},
        )
    return StoreError(
        f"{path} cannot be used ({text}). Make the folder writable, or {_ELSEWHERE}.",
        details={"reason": "unusable", "path": str(path)},
    )
