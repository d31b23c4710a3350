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

# Kind → paths. None of them may give the secret, write outside, hang, or fail without a code.
PATHS: dict[str, tuple[str, ...]] = {
    "parents": (
        "../outside/secret.txt", "@project/../outside/secret.txt", "sub/../../outside/secret.txt",
        "@project/sub/../../outside/secret.txt", "sub/..", "..", "../..", "../",
        "./../outside/secret.txt", "sub//..//..//outside/secret.txt",
        "sub/.../../../outside/secret.txt", "..\\outside\\secret.txt",
        "sub\\..\\..\\outside/secret.txt"),
    "parents in disguise": (
        "%2e%2e/outside/secret.txt", "%252e%252e/outside/secret.txt", "．．/outside/secret.txt",
        "‥/outside/secret.txt", "..∕outside∕secret.txt", "..／outside／secret.txt",
        ".\u200d./outside/secret.txt", ".\u200b./outside/secret.txt",
        ".\u00ad./outside/secret.txt", "\ufeff../outside/secret.txt",
        "\u202e../outside/secret.txt"),
    "absolute": (
        "/etc/passwd", "//etc/passwd", "@project//etc/passwd", "/proc/self/environ",
        "/proc/self/root/etc/passwd", "/proc/self/cwd", "/dev/zero", "~/secret.txt",
        "~root/.bashrc", "$HOME/secret.txt", "file:///etc/passwd"),
    "of Windows": (
        "C:\\Windows\\win.ini", "C:secret.txt", "C:/Windows/win.ini", "\\\\server\\share\\x",
        "\\\\?\\C:\\x", "notes.txt:hidden", "notes.txt::$DATA", "CON", "nul.txt", "COM1.log",
        "COM¹", "lpt9", "notes.txt.", "notes.txt ", " notes.txt", "notes.txt\u00a0",
        "sub./inner.txt"),
    "characters": (
        "notes.txt\0.png", "\0", "notes.txt\n", "notes\r.txt", "no\ttes.txt",
        "notes\x1b[2J.txt", "notes\x7f.txt", "notes\x85.txt", "notes\u2028.txt",
        "notes\ud800.txt", "\udc80\udc81"),
    "mounts": (
        "", " ", ".", "////", "@project", "@nowhere/secret.txt",
        "@PROJECT/../outside/secret.txt", "@project/@project/../../outside/secret.txt", "@",
        "@project/..", "@project../outside/secret.txt", "@data/table.csv",
        "@project/data/table.csv", "@data/../notes.txt"),
    "long": (
        "x" * 256, "ä" * 128, "/".join(["a" * 200] * 30), "/".join(["d"] * 100), "x" * 1_000_000),
    "links and special files": (
        "link-file", "link-folder/secret.txt", "link-loop", "link-nowhere",
        "link-root/etc/passwd", "link-proc/environ", "link-inside", "link-sub/inner.txt",
        "link-folder/../secret.txt", "link-folder", "link-absolute", "link-fifo", "link-zero",
        "link-fd", "fifo", "fifo/x", "socket", "notes.txt/x", "notes.txt/", "notes.txt/.", "sub"),
    "secrets": (
        ".ENV", ".env", "sub/.env", ".env/", "./.env", "key.pem", "KEY.PEM", "id_rsa",
        "ｉｄ_rsa", ".netrc", "credentials", ".aws/credentials", ".git/hooks/pre-commit",
        ".GIT/config", "store/runs.db"),
}  # fmt: skip

CREATES = frozenset(
    {
        *("%2e%2e/outside/secret.txt", "%252e%252e/outside/secret.txt", "..∕outside∕secret.txt"),
        *("~/secret.txt", "~root/.bashrc", "$HOME/secret.txt", "．．/outside/secret.txt"),
        *("..／outside／secret.txt", "‥/outside/secret.txt", "@project//etc/passwd"),
        *("notes.txt/", "notes.txt/.", "@project/@project/../../outside/secret.txt"),
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
    place = mounts.locate("counter.txt")

    def add_one(state: FileState) -> bytes:
        text = to_text(state.data or b"")
        number = int(text.split()[1])
        return to_bytes(replace_once(text, f"n {number}\n", f"n {number + 1}\n"))

    for _ in range(times):
        replace(place, add_one)


def write_on(folder: str) -> None:
    """Write a large file again and again, until somebody kills this."""
    mounts = Mounts.of(Path(folder))
    place = mounts.locate("big.txt")
    number = 0
    while True:
        number += 1
        text = f"{number}\n".encode() * 50_000
        replace(place, lambda _, text=text: text)
