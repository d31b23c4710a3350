"""What the system says about a file, as typed errors with the names that the model uses.

Owns the words. No path of the host stands in them.
"""

from __future__ import annotations

import errno
import os
import stat

from nbagent.contracts.errors import ErrorCode, ToolError
from nbagent.files.names import visible


class NotRegular(OSError):
    """What was opened is no regular file. Internal: `told` makes a ToolError of it."""

    def __init__(self, mode: int) -> None:
        super().__init__(errno.EINVAL, "not a regular file")
        self.mode = mode


_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def not_regular(path: str, mode: int) -> ToolError:
    """The error for what is there and no file."""
    kind = next((words for test, words in _KINDS if test(mode)), "no regular file")
    if stat.S_ISDIR(mode):
        message = f"{visible(path)} is a folder; list it with fs.list, or name a file in it"
        return ToolError(message, code="E_PRECONDITION_FAILED")
    if stat.S_ISLNK(mode):
        return link_error(path)
    message = f"{visible(path)} is {kind}; only regular files are read and written"
    return ToolError(message, code="E_SANDBOX_VIOLATION")


def link_error(path: str) -> ToolError:
    """The error for a link on the way."""
    return ToolError(
        f"{visible(path)} is a link or lies behind one, and links are not followed; use the path "
        "of what it points to, or ask the person to mount that folder",
        code="E_SANDBOX_VIOLATION",
    )


_WORDS: dict[str, tuple[ErrorCode, str]] = {
    "ENOENT": ("ENOENT", "there is no {path}; look with fs.list"),
    "ENOTDIR": ("ENOENT", "there is no {path}: a part of it is no folder; look with fs.list"),
    "EISDIR": ("E_PRECONDITION_FAILED", "{path} is a folder; name a file in it"),
    "EXDEV": ("E_SANDBOX_VIOLATION", "{path} leads out of its mount; use a path below it"),
    "ENXIO": ("E_SANDBOX_VIOLATION", "{path} is no regular file; use one that is"),
    "ENODEV": ("E_SANDBOX_VIOLATION", "{path} is no regular file; use one that is"),
    "ENAMETOOLONG": ("E_SANDBOX_VIOLATION", "{path} is too long a name; use a shorter one"),
    "EACCES": ("E_DENIED", "the system does not let {path} be used; ask the person"),
    "EPERM": ("E_DENIED", "the system does not let {path} be used; ask the person"),
    "EROFS": ("E_DENIED", "{path} is on a read-only file system; write elsewhere"),
    "ENOSPC": ("E_TOOL_FAILED", "the disk is full; {path} was not written; ask the person"),
    "EDQUOT": ("E_TOOL_FAILED", "the quota is used up; {path} was not written; ask the person"),
    "EMFILE": ("E_TOOL_FAILED", "too many files are open for {path}; try again"),
    "ENFILE": ("E_TOOL_FAILED", "too many files are open for {path}; try again"),
}


def told(error: OSError, path: str) -> ToolError:
    """What the system said, as a typed error that names the mount's path and no other."""
    if isinstance(error, NotRegular):
        return not_regular(path, error.mode)
    number = error.errno or 0
    name = errno.errorcode.get(number, "")
    if name in ("ELOOP", "EMLINK"):
        return link_error(path)
    code, words = _WORDS.get(name, ("E_TOOL_FAILED", "{path} cannot be used: {why}; try again"))
    why = os.strerror(number) if number else type(error).__name__
    message = words.replace("{path}", visible(path)).replace("{why}", why)
    return ToolError(message, code=code)
