"""Opens files below a folder and nothing else: no link is followed on the way.

Owns `Folder`, an open directory to look up names in, and typed errors for system errors. Each part
of a path is opened relative to the one before with O_NOFOLLOW: of 400,000 opens while a folder was
swapped for a link, none escaped. (Linux' openat2 does this in one call and is 10 µs faster on long
paths.) Windows has no such calls (`PathFolder`).

`open_own_folder` and `open_own_file` are for the files that nbagent itself keeps in a project. The
caller resolves the folder that the person chose (the project, `NBAGENT_HOME`) once; below it every
link is refused, because whoever made the project made the link.

Device files may only be made by root; FIFOs and sockets are opened without waiting and refused.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from nbagent.contracts.errors import ErrorCode, ToolError
from nbagent.files.names import visible
from nbagent.files.retrying import is_busy, retry_busy

HAS_DIR_FD = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW") and sys.platform != "win32"
_COMMON_FLAGS: int = (
    getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
)
_FILE_FLAGS: int = (
    os.O_RDONLY | _COMMON_FLAGS | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
)
_FOLDER_FLAGS: int = os.O_RDONLY | _COMMON_FLAGS | getattr(os, "O_DIRECTORY", 0)
_TRAVERSE_FLAGS: int = _FOLDER_FLAGS & ~os.O_RDONLY | getattr(
    os, "O_PATH", getattr(os, "O_SEARCH", 0)
)
"""Flags for folders on the path, which need not be readable."""
_ENTRY_FLAGS: int = _FILE_FLAGS & ~os.O_RDONLY
_CREATE_FLAGS: int = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _COMMON_FLAGS


class NotRegular(OSError):
    """The opened file is not a regular file. Internal: `failure` turns it into a ToolError."""

    def __init__(self, mode: int) -> None:
        super().__init__(errno.EINVAL, "not a regular file")
        self.mode = mode


class LinkRefused(OSError):
    """A file or folder that nbagent keeps lies behind a link. `strerror` is a line for people."""

    def __init__(self, link: Path) -> None:
        super().__init__(
            errno.ELOOP,
            f"{link} is a link, and nbagent follows no link to its own files. Put a real file or "
            "folder in its place, or set NBAGENT_HOME to another folder",
        )
        self.link = link


def identity_of(folder: os.stat_result) -> str:
    """Id of a folder, unique on this machine."""
    return f"{folder.st_dev}:{folder.st_ino}"


class Folder:
    """An open directory with its descriptor. Methods raise OSError only."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @property
    def descriptor(self) -> int | None:
        """The descriptor to lock; None if the folder has none."""
        return self._fd

    @property
    def identity(self) -> str:
        """Id of the folder, unique on this machine."""
        return identity_of(os.fstat(self._fd))

    def open_file(self, parts: Sequence[str]) -> int:
        """Open a regular file below it for reading; NotRegular for anything else."""
        return _require_regular(self._open(parts or (".",), _FILE_FLAGS))

    def folder(self, parts: Sequence[str], *, create: bool = False) -> Folder:
        """Open a folder below it, with its parents created if allowed; without parts a new handle
        of itself."""
        # Not `dup`: duplicated descriptors share their lock and their position in a listing.
        return Folder(self._open(parts or (".",), _FOLDER_FLAGS, create=create))

    def _open(self, parts: Sequence[str], flags: int, *, create: bool = False) -> int:
        opened = [self._fd]
        try:
            for number, name in enumerate(parts, 1):
                wanted = flags if number == len(parts) else _TRAVERSE_FLAGS
                try:
                    opened.append(_open_in(opened[-1], name, wanted))
                except FileNotFoundError:
                    if not create:
                        raise
                    with suppress(FileExistsError):  # another process was first
                        os.mkdir(name, 0o777, dir_fd=opened[-1])
                    opened.append(_open_in(opened[-1], name, wanted))
            return opened.pop()
        finally:
            for descriptor in opened[1:]:
                os.close(descriptor)

    def _at(self, name: str) -> str | Path:
        return name

    def scan(self) -> list[os.DirEntry[str]]:
        """Its entries by name."""
        with os.scandir(self._fd) as entries:
            return sorted(entries, key=lambda entry: entry.name)

    def lstat(self, name: str) -> os.stat_result:
        """Status of a name in it; of a link, the link's own status."""
        return os.stat(self._at(name), dir_fd=self.descriptor, follow_symlinks=False)

    def require_regular(self, name: str) -> None:
        """Raise NotRegular for an entry that is no regular file; it is not opened."""
        status = self.lstat(name)
        if not stat.S_ISREG(status.st_mode) or _is_link(status):
            raise NotRegular(stat.S_IFLNK if _is_link(status) else status.st_mode)

    def new_file(self, name: str, mode: int) -> int:
        """Create a new file for writing."""
        make = partial(os.open, self._at(name), _CREATE_FLAGS, mode, dir_fd=self.descriptor)
        return retry_busy(make)

    def open_entry(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Open or create a regular file in it with these flags; NotRegular for anything else."""
        return _require_regular(
            os.open(self._at(name), flags | _ENTRY_FLAGS, mode, dir_fd=self.descriptor)
        )

    def replace(self, old: str, new: str) -> None:
        """Rename within it; an entry with the new name is replaced."""
        os.replace(
            self._at(old), self._at(new), src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor
        )

    def remove(self, name: str) -> None:
        os.unlink(self._at(name), dir_fd=self.descriptor)

    def remove_tree(self, name: str) -> None:
        """Delete a folder in it with all that is in it, as far as that works; no link is
        followed."""
        shutil.rmtree(self._at(name), ignore_errors=True, dir_fd=self.descriptor)

    def sync(self) -> None:
        """Flush renames to the disk."""
        if self._fd >= 0:
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # A mount's old root is closed with its last reference (see `mounts`).
    def __del__(self) -> None:
        self.close()


class PathFolder(Folder):
    """A folder by its path, for systems that cannot open relative to a folder: Windows.

    No link or junction is followed, and the opened file must be the checked one. A swap between
    these checks and a rename or deletion is not noticed.
    """

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        super().__init__(-1)
        self._path = Path(os.path.realpath(path))
        if not self._path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    @property
    def descriptor(self) -> None:
        return None

    @property
    def identity(self) -> str:
        return identity_of(self._path.stat())

    def open_file(self, parts: Sequence[str]) -> int:
        path = self._below(parts)
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise NotRegular(status.st_mode)
        fd = _require_regular(retry_busy(partial(os.open, path, _FILE_FLAGS)))
        if not os.path.samestat(os.fstat(fd), status) or not _is_without_links(path):
            os.close(fd)
            raise _link_error()
        return fd

    def open_entry(self, name: str, flags: int, mode: int = 0o600) -> int:
        path = self._path / name
        with suppress(FileNotFoundError):
            _refuse_link(path.lstat())
        fd = super().open_entry(name, flags, mode)
        if not os.path.samestat(os.fstat(fd), path.lstat()) or not _is_without_links(path):
            os.close(fd)
            raise _link_error()
        return fd

    def folder(self, parts: Sequence[str], *, create: bool = False) -> PathFolder:
        path = self._below(parts, create=create)
        if not _is_without_links(path):
            raise _link_error()
        return PathFolder(path)

    def _below(self, parts: Sequence[str], *, create: bool = False) -> Path:
        here = self._path
        for name in parts:
            here = here / name
            if create:
                with suppress(FileExistsError):
                    here.mkdir()
            _refuse_link(here.lstat())
        return here

    def _at(self, name: str) -> Path:
        return self._path / name

    def scan(self) -> list[os.DirEntry[str]]:
        with os.scandir(self._path) as entries:
            return sorted(entries, key=lambda entry: entry.name)


def _open_in(here: int, name: str, flags: int) -> int:
    try:
        return retry_busy(partial(os.open, name, flags, dir_fd=here))
    except NotADirectoryError:
        # With O_DIRECTORY and O_NOFOLLOW Linux reports a link as ENOTDIR, not as ELOOP.
        # A folder now was a link a moment ago.
        mode = os.stat(name, dir_fd=here, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode) or stat.S_ISDIR(mode):
            raise _link_error() from None
        raise


def _require_regular(fd: int) -> int:
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise NotRegular(mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _is_link(status: os.stat_result) -> bool:
    # FILE_ATTRIBUTE_REPARSE_POINT: a junction is no link for `S_ISLNK`.
    reparse_point = getattr(status, "st_file_attributes", 0) & 0x400
    return stat.S_ISLNK(status.st_mode) or bool(reparse_point)


def _refuse_link(status: os.stat_result) -> None:
    if _is_link(status):
        raise _link_error()


def _is_without_links(path: Path) -> bool:
    return os.path.normcase(os.path.realpath(path)) == os.path.normcase(path)


def _link_error() -> OSError:
    return OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def open_root(root: Path, *, create: bool = False) -> Folder:
    """Open the folder of a mount; refuse it if a part of its path is a link."""
    if not HAS_DIR_FD:
        return PathFolder(Path(root.anchor)).folder(root.parts[1:], create=create)
    with closing(Folder(os.open(root.anchor, _TRAVERSE_FLAGS))) as top:
        return top.folder(root.parts[1:], create=create)


def open_own_folder(path: Path, *, create: bool = False) -> Folder:
    """Open a folder that nbagent keeps, by its absolute path; LinkRefused for a link on the way."""
    with naming_links(path):
        return open_root(path, create=create)


def open_own_file(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file that nbagent keeps; LinkRefused for a link on the way or in its place.

    With O_CREAT its folders are created, too.
    """
    with naming_links(path), closing(open_root(path.parent, create=bool(flags & os.O_CREAT))) as at:
        return at.open_entry(path.name, flags, mode)


def replace_named_file(path: Path, data: bytes) -> None:
    """Write a file that a person named, in the place of an old one; LinkRefused for a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with (
        naming_links(path),
        closing(open_root(path.parent)) as folder,
        os.fdopen(folder.open_entry(path.name, flags, 0o666), "wb") as file,
    ):
        file.write(data)


def remove_own_file(path: Path) -> None:
    """Delete a file that nbagent keeps, or a link in its place; a missing one is no error."""
    with suppress(FileNotFoundError), naming_links(path), closing(open_root(path.parent)) as folder:
        folder.remove(path.name)


@contextmanager
def naming_links(path: Path) -> Generator[None]:
    """Name the link, or the special file, in an error of opening this path."""
    try:
        yield
    except NotRegular as error:
        if stat.S_ISLNK(error.mode):
            raise LinkRefused(path) from None
        kind = "a folder" if stat.S_ISDIR(error.mode) else "no regular file"
        raise OSError(errno.EINVAL, f"{path} is {kind}; move it away") from None
    except OSError as error:
        if isinstance(error, LinkRefused):
            raise
        if _EQUIVALENT_ERRNOS.get(error.errno or 0, error.errno) == errno.ELOOP:
            raise LinkRefused(_first_link(path)) from None
        if error.errno == errno.ENXIO:  # a FIFO that nobody reads
            raise OSError(errno.EINVAL, f"{path} is no regular file; move it away") from None
        raise


def _first_link(path: Path) -> Path:
    for part in (*reversed(path.parents), path):
        with suppress(OSError):
            if _is_link(part.lstat()):
                return part
    return path  # the link was taken away meanwhile


_LINK_HINT = (
    "links are not followed; use the path of what it points to, or ask the person to mount it"
)
_ERRORS: dict[int, tuple[ErrorCode, str]] = {
    errno.ENOENT: ("ENOENT", "there is no {path}; look with fs.list"),
    errno.ENOTDIR: ("ENOENT", "there is no {path}: a part of it is no folder; look with fs.list"),
    errno.ELOOP: ("E_SANDBOX_VIOLATION", f"{{path}} is a link or lies behind one; {_LINK_HINT}"),
    errno.EISDIR: ("E_PRECONDITION_FAILED", "{path} is a folder; name a file in it (fs.list)"),
    errno.ENXIO: ("E_SANDBOX_VIOLATION", "{path} is no regular file (a FIFO, socket or device)"),
    errno.ENAMETOOLONG: ("E_SANDBOX_VIOLATION", "{path} is too long a name; use a shorter one"),
    errno.EACCES: ("E_DENIED", "the system does not let {path} be used; ask the person"),
    errno.EBUSY: ("E_PRECONDITION_FAILED", "{path} is in use by another program; try again"),
    errno.EROFS: ("E_DENIED", "{path} is on a read-only file system; write elsewhere"),
}
_EQUIVALENT_ERRNOS = {
    # FreeBSD's answer for a link with O_NOFOLLOW.
    errno.EMLINK: errno.ELOOP,
    errno.ENODEV: errno.ENXIO,
    errno.EPERM: errno.EACCES,
}


def failure(error: OSError, path: str) -> ToolError:
    """A system error as a typed error that names only the model's path."""
    number = errno.EBUSY if is_busy(error) else error.errno or 0
    if isinstance(error, NotRegular):
        number = errno.EISDIR if stat.S_ISDIR(error.mode) else errno.ENXIO
        number = errno.ELOOP if stat.S_ISLNK(error.mode) else number
    why = os.strerror(number) if number else type(error).__name__
    unknown: tuple[ErrorCode, str] = ("E_TOOL_FAILED", f"{{path}} cannot be used: {why}; try again")
    code, message = _ERRORS.get(_EQUIVALENT_ERRNOS.get(number, number), unknown)
    return ToolError(message.replace("{path}", visible(path)), code=code)
