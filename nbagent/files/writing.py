"""Changing one file as a whole: compare, write beside it, make it last, rename; under a lock.

Owns the bytes' way to the disk. What the new content is, `patching` or the caller says. A hard
link is replaced and not written through; its mode, and its owner where that may be, are kept.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from nbagent.contracts.errors import ToolError
from nbagent.files.locks import locked
from nbagent.files.mounts import FilePlace, Mounts, failure
from nbagent.files.names import refused, visible
from nbagent.files.opening import AnyFolder, patiently
from nbagent.files.refusals import not_regular

TEMPORARY = ".nbagent-tmp-"
"""How a half-written file is named; listings leave it out."""
LARGEST_CHANGED_BYTES = 64_000_000
"""A larger file is not replaced: hashing it would take longer than a stop may wait."""
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """What a change did."""

    sha_before: str | None
    """None: there was no such file."""
    sha_after: str
    size_bytes: int


def read_bytes(descriptor: int, *, most: int) -> bytes:
    """What is in an open file, at most so many bytes."""
    pieces: list[bytes] = []
    left = most
    while left > 0:
        piece = os.read(descriptor, min(left, _BLOCK))
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def sha_of_file(descriptor: int, *, most: int = LARGEST_CHANGED_BYTES) -> str | None:
    """The SHA-256 of an open file, from its start; None when it has more bytes than that."""
    if os.fstat(descriptor).st_size > most:
        return None
    digest, left = hashlib.sha256(), most
    os.lseek(descriptor, 0, os.SEEK_SET)
    # Counted: the file may grow as fast as it is read.
    while piece := os.read(descriptor, _BLOCK):
        digest.update(piece)
        left -= len(piece)
        if left < 0:
            return None
    return digest.hexdigest()


def sha_at(mounts: Mounts, place: FilePlace) -> str | None:
    """The SHA-256 of a file as it is now; None when it is not there.

    Raises:
        ToolError: it cannot be read, or is too large to be replaced.
    """
    descriptor = _open_at(mounts, place)
    if descriptor is None:
        return None
    try:
        return _sha_to_replace(descriptor, place)
    finally:
        os.close(descriptor)


def is_there(mounts: Mounts, place: FilePlace) -> bool:
    """Whether there is such a file.

    Raises:
        ToolError: it cannot be opened.
    """
    descriptor = _open_at(mounts, place)
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def _sha_to_replace(descriptor: int, place: FilePlace) -> str:
    sha = sha_of_file(descriptor)
    if sha is None:
        raise ToolError(
            f"{visible(place.text)} has more than {LARGEST_CHANGED_BYTES:,} bytes and is not "
            "replaced; write another file, or ask the person to take this one away",
            code="E_WRITE_LIMIT",
            details={"maxBytes": LARGEST_CHANGED_BYTES},
        )
    return sha


def read_at(mounts: Mounts, place: FilePlace, *, most: int) -> bytes | None:
    """What is in a file; None when it is not there or has more bytes than that.

    Raises:
        ToolError: it cannot be read.
    """
    descriptor = _open_at(mounts, place)
    if descriptor is None:
        return None
    try:
        data = read_bytes(descriptor, most=most + 1)
    finally:
        os.close(descriptor)
    return data if len(data) <= most else None


def _open_at(mounts: Mounts, place: FilePlace) -> int | None:
    root = mounts.root(place.mount)
    try:
        return patiently(lambda: root.open_file(place.parts))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise failure(error, place, root) from None


def write_file(
    mounts: Mounts,
    place: FilePlace,
    data: bytes,
    *,
    check: Callable[[str | None], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Written:
    """Write a whole file, its folders too; `check` is told the old hash, under the lock.

    `stopped` is asked while another writer is waited for.

    Raises:
        ToolError: it may not or cannot be written; nothing was changed.
    """

    def change(folder: AnyFolder, name: str, old: os.stat_result | None) -> Written:
        sha_before = None
        if old is not None:
            descriptor = patiently(lambda: folder.open_file((name,)))
            try:
                sha_before = _sha_to_replace(descriptor, place)
            finally:
                os.close(descriptor)
        if check is not None:
            check(sha_before)
        return _swap_in(folder, name, data, old, sha_before)

    def on_nothing() -> None:
        if check is not None:
            check(None)

    return _under_lock(mounts, place, change, on_nothing, stopped)


def change_file(
    mounts: Mounts,
    place: FilePlace,
    change: Callable[[bytes | None], bytes],
    *,
    max_read_bytes: int,
    stopped: Callable[[], bool] = lambda: False,
) -> Written:
    """Make a file's new content from its old one (None: there is none), under the lock.

    Raises:
        ToolError: what `change` raises, or it may not or cannot be written; nothing was changed.
    """

    def inner(folder: AnyFolder, name: str, old: os.stat_result | None) -> Written:
        before: bytes | None = None
        if old is not None:
            descriptor = patiently(lambda: folder.open_file((name,)))
            try:
                before = read_bytes(descriptor, most=max_read_bytes + 1)
            finally:
                os.close(descriptor)
            if len(before) > max_read_bytes:
                raise too_large_to_patch(place, max_read_bytes)
        sha_before = None if before is None else hashlib.sha256(before).hexdigest()
        return _swap_in(folder, name, change(before), old, sha_before)

    return _under_lock(mounts, place, inner, lambda: change(None), stopped)


def too_large_to_patch(place: FilePlace, max_read_bytes: int) -> ToolError:
    """The error for a file that may not be read as a whole."""
    return ToolError(
        f"{visible(place.text)} has more than the {max_read_bytes:,} bytes that may be read, so it "
        "is not patched; ask the person to raise the limit",
        code="E_READ_LIMIT",
    )


def check_target(mounts: Mounts, place: FilePlace) -> None:
    """Refuse what is never written: a mount itself, what is read only, what git keeps.

    Raises:
        ToolError: `E_SANDBOX_VIOLATION` or `E_DENIED`.
    """
    if not place.parts:
        raise refused(place.text, "it is a mount; name a file in it")
    if any(part.casefold() == ".git" for part in place.parts):
        raise refused(place.text, "git keeps its own files; ask the person to change them")
    mounts.check_writable(place)


def _under_lock(
    mounts: Mounts,
    place: FilePlace,
    work: Callable[[AnyFolder, str, os.stat_result | None], Written],
    try_on_nothing: Callable[[], object],
    stopped: Callable[[], bool],
) -> Written:
    check_target(mounts, place)
    *above, name = place.parts
    root = mounts.root(place.mount)
    try:
        try:
            folder = patiently(lambda: root.folder(above))
        except FileNotFoundError:
            # Nothing is made for a change that would be refused.
            try_on_nothing()
            folder = patiently(lambda: root.folder(above, create=True))
        try:
            with locked(folder, stopped=stopped):
                return work(folder, name, _old_file(folder, place))
        finally:
            folder.close()
    except OSError as error:
        raise failure(error, place, root) from None


def _old_file(folder: AnyFolder, place: FilePlace) -> os.stat_result | None:
    try:
        found = patiently(lambda: folder.look(place.parts[-1]))
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise not_regular(place.text, found.st_mode)
    if not found.st_mode & 0o222:
        raise ToolError(
            f"{visible(place.text)} is marked read only; ask the person to change that",
            code="E_DENIED",
        )
    return found


def _swap_in(
    folder: AnyFolder,
    name: str,
    data: bytes,
    old: os.stat_result | None,
    sha_before: str | None,
) -> Written:
    temporary = _temporary_name(folder, name)
    try:
        mode = 0o666 if old is None else 0o600
        descriptor = patiently(lambda: folder.new_file(temporary, mode))
        try:
            if old is not None:
                _dress(descriptor, old)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        patiently(lambda: folder.replace(temporary, name))
    except BaseException:
        # Also when the person's interrupt came: nothing half-written stays.
        with suppress(OSError):
            folder.remove(temporary)
        raise
    with suppress(OSError):  # Some file systems know no sync of a folder.
        folder.sync()
    return Written(sha_before, hashlib.sha256(data).hexdigest(), len(data))


def _temporary_name(folder: AnyFolder, name: str) -> str:
    """One name for each file: what a killed writer left is taken away by the next one."""
    temporary = TEMPORARY + hashlib.sha256(name.encode()).hexdigest()[:16]
    try:
        folder.remove(temporary)  # The lock is held: nobody writes it now.
    except FileNotFoundError:
        pass
    except OSError:
        return TEMPORARY + secrets.token_hex(8)
    return temporary


def _dress(descriptor: int, old: os.stat_result) -> None:
    """The new file's owner and mode as the old one's, as far as the system allows."""
    if hasattr(os, "fchown"):
        with suppress(OSError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    if hasattr(os, "fchmod"):
        with suppress(OSError):
            os.fchmod(descriptor, stat.S_IMODE(old.st_mode) & 0o777)
