"""A project full of traps, the paths that somebody would try there, and other processes.

Data for a test, and what runs beside it: so it imports little.
"""

from __future__ import annotations

import ctypes
import os
import socket
from pathlib import Path

from nbagent.files.mounts import Mounts
from nbagent.files.patching import replace_once, to_bytes, to_text
from nbagent.files.writing import FileState, replace

SECRET = "the-secret-outside"
"""Stands in every file that no tool may reach."""

LONG = "x" * 256

# Name → path. None of them may give the secret, write outside, hang, or fail without a code.
PATHS: dict[str, str] = {
    "parent": "../outside/secret.txt",
    "parent behind a mount": "@project/../outside/secret.txt",
    "parent behind a folder": "sub/../../outside/secret.txt",
    "parent in the middle": "@project/sub/../../outside/secret.txt",
    "parent at the end": "sub/..",
    "only parent": "..",
    "parent twice": "../..",
    "parent with a slash behind": "../",
    "parent after a dot": "./../outside/secret.txt",
    "parent after slashes": "sub//..//..//outside/secret.txt",
    "parent with dots": "sub/.../../../outside/secret.txt",
    "parent url": "%2e%2e/outside/secret.txt",
    "parent url twice": "%252e%252e/outside/secret.txt",
    "parent in full width": "．．/outside/secret.txt",
    "parent in two dot leaders": "‥/outside/secret.txt",
    "parent overlong slash": "..∕outside∕secret.txt",
    "parent full width slash": "..／outside／secret.txt",
    "parent with a joiner": ".\u200d./outside/secret.txt",
    "parent with a zero width space": ".\u200b./outside/secret.txt",
    "parent with a soft hyphen": ".\u00ad./outside/secret.txt",
    "parent with a mark": "\ufeff../outside/secret.txt",
    "parent reversed": "\u202e../outside/secret.txt",
    "backslash parent": "..\\outside\\secret.txt",
    "backslash mixed": "sub\\..\\..\\outside/secret.txt",
    "absolute": "/etc/passwd",
    "absolute twice": "//etc/passwd",
    "absolute behind a mount": "@project//etc/passwd",
    "proc environ": "/proc/self/environ",
    "proc root": "/proc/self/root/etc/passwd",
    "proc cwd": "/proc/self/cwd",
    "device": "/dev/zero",
    "drive": "C:\\Windows\\win.ini",
    "drive relative": "C:secret.txt",
    "drive slash": "C:/Windows/win.ini",
    "unc": "\\\\server\\share\\x",
    "unc device": "\\\\?\\C:\\x",
    "stream": "notes.txt:hidden",
    "stream data": "notes.txt::$DATA",
    "home": "~/secret.txt",
    "home of root": "~root/.bashrc",
    "variable": "$HOME/secret.txt",
    "file url": "file:///etc/passwd",
    "nul": "notes.txt\0.png",
    "nul first": "\0",
    "newline": "notes.txt\n",
    "carriage return": "notes\r.txt",
    "tab": "no\ttes.txt",
    "escape": "notes\x1b[2J.txt",
    "delete": "notes\x7f.txt",
    "c1 control": "notes\x85.txt",
    "line separator": "notes\u2028.txt",
    "surrogate": "notes\ud800.txt",
    "surrogate pair halves": "\udc80\udc81",
    "trailing dot": "notes.txt.",
    "trailing space": "notes.txt ",
    "leading space": " notes.txt",
    "trailing no-break space": "notes.txt\u00a0",
    "folder with trailing dot": "sub./inner.txt",
    "empty": "",
    "space": " ",
    "dot": ".",
    "slashes": "////",
    "mount alone": "@project",
    "unknown mount": "@nowhere/secret.txt",
    "mount in capitals": "@PROJECT/../outside/secret.txt",
    "mount twice": "@project/@project/../../outside/secret.txt",
    "mount alone sign": "@",
    "mount parent": "@project/..",
    "mount glued": "@project../outside/secret.txt",
    "reserved con": "CON",
    "reserved nul": "nul.txt",
    "reserved com": "COM1.log",
    "reserved superscript": "COM¹",
    "reserved lpt": "lpt9",
    "long name": LONG,
    "long name in bytes": "ä" * 128,
    "long path": "/".join(["a" * 200] * 30),
    "deep path": "/".join(["d"] * 100),
    "very long": "x" * 1_000_000,
    "link to a file": "link-file",
    "link to a folder": "link-folder/secret.txt",
    "link to itself": "link-loop",
    "link to nothing": "link-nowhere",
    "link to root": "link-root/etc/passwd",
    "link to proc": "link-proc/environ",
    "link inside the mount": "link-inside",
    "link to a folder inside": "link-sub/inner.txt",
    "link in a link": "link-folder/../secret.txt",
    "link as last": "link-folder",
    "link absolute": "link-absolute",
    "link to a fifo": "link-fifo",
    "link to a device": "link-zero",
    "link to fd": "link-fd",
    "fifo": "fifo",
    "fifo as folder": "fifo/x",
    "socket": "socket",
    "file as folder": "notes.txt/x",
    "file with slash": "notes.txt/",
    "file with dot": "notes.txt/.",
    "folder as file": "sub",
    "read-only mount": "@data/table.csv",
    "read-only mount from above": "@project/data/table.csv",
    "read-only mount parent": "@data/../notes.txt",
    "case of a secret": ".ENV",
    "secret": ".env",
    "secret below": "sub/.env",
    "secret with slash": ".env/",
    "secret behind dot": "./.env",
    "secret key": "key.pem",
    "secret key in capitals": "KEY.PEM",
    "secret ssh": "id_rsa",
    "secret ssh full width": "ｉｄ_rsa",
    "secret netrc": ".netrc",
    "secret credentials": "credentials",
    "secret aws": ".aws/credentials",
    "git hook": ".git/hooks/pre-commit",
    "git in capitals": ".GIT/config",
    "store": "store/runs.db",
}

CREATES = frozenset(
    {
        *("parent url", "parent url twice", "parent overlong slash"),
        *("home", "home of root", "variable", "parent in full width", "parent full width slash"),
        *("parent in two dot leaders", "absolute behind a mount", "file with slash"),
        *("file with dot", "mount twice"),
    }
)
"""Odd names and nothing more: a file of that name may be made inside the mount."""


def lay(home: Path) -> Path:
    """Make the traps; the project's folder."""
    outside = home / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    project = home / "project"
    (project / "sub").mkdir(parents=True)
    (project / "notes.txt").write_text("plain notes\n")
    (project / "sub" / "inner.txt").write_text("inner notes\n")
    for name in (".env", "sub/.env", "key.pem", "id_rsa", ".netrc", "credentials"):
        (project / name).write_text(f"KEY={SECRET}\n")
    (project / ".aws").mkdir()
    (project / ".aws" / "credentials").write_text(SECRET)
    (project / "data").mkdir()
    (project / "data" / "table.csv").write_text("a,b\n1,2\n")
    (project / "store").mkdir()
    (project / "store" / "runs.db").write_text(SECRET)
    (project / ".git" / "hooks").mkdir(parents=True)
    for name, target in {
        "link-file": "../outside/secret.txt",
        "link-folder": "../outside",
        "link-loop": "link-loop",
        "link-nowhere": "../outside/none.txt",
        "link-root": "/",
        "link-proc": "/proc/self",
        "link-inside": "notes.txt",
        "link-sub": "sub",
        "link-absolute": str(outside / "secret.txt"),
        "link-fifo": "fifo",
        "link-zero": "/dev/zero",
        "link-fd": "/proc/self/fd/0",
    }.items():
        (project / name).symlink_to(target)
    os.mkfifo(project / "fifo")
    _lay_socket(project)
    return project


def _lay_socket(project: Path) -> None:
    # The address of a socket is short; a path of a test is not.
    before = Path.cwd()
    os.chdir(project)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("socket")
    finally:
        os.chdir(before)


def picture(folder: Path) -> dict[str, bytes]:
    """Every file below a folder and what is in it, links and all: to see what changed."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = b"-> " + os.fsencode(os.readlink(path))
        elif path.is_file():
            found[name] = path.read_bytes()
        else:
            found[name] = b"folder or special"
    return found


# What other processes do.

_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of renameat2(2)."""


def swap(folder: str, outside: str) -> None:
    """Put a link to the outside in the place of a folder and back, until somebody kills this.

    There is no moment in between, in which a writer would make the folder anew.
    """
    link = Path(folder).with_name("link")
    link.symlink_to(outside)
    names = os.fsencode(folder), os.fsencode(link)
    exchange = ctypes.CDLL(None).renameat2
    while exchange(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0:
        pass


def count_up(folder: str, times: int) -> None:
    """Add one to a number in a file, so often, by patches that must each fit."""
    mounts = Mounts.of(Path(folder))
    place = mounts.place("counter.txt")

    def add_one(state: FileState) -> bytes:
        text = to_text(state.data or b"")
        number = int(text.split()[1])
        return to_bytes(replace_once(text, f"n {number}\n", f"n {number + 1}\n"))

    for _ in range(times):
        replace(place, add_one)


def write_on(folder: str) -> None:
    """Write a large file again and again, until somebody kills this."""
    mounts = Mounts.of(Path(folder))
    place = mounts.place("big.txt")
    number = 0
    while True:
        number += 1
        text = f"{number}\n".encode() * 50_000
        replace(place, lambda _, text=text: text)
