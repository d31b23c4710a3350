"""Mounts: folders that a model can name; the names reveal nothing about the host.

Owns the way from `@data/a.csv` to a folder and the path parts below it. `opening` opens files;
policies decide about calls.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from typing import Literal, cast

from nbagent.contracts.canonical import sha_of
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.nearest import nearest_or_all
from nbagent.files.names import Parts, path_error, path_parts, visible
from nbagent.files.opening import Folder, failure, identity_of, open_root

Mode = Literal["ro", "rw"]
PROJECT, PACKAGE, STATE = "@project", "@pkg", "@state"
_BUILT_IN_NAMES = (PROJECT, PACKAGE, STATE)
_NAME = re.compile(r"@[A-Za-z][A-Za-z0-9_-]{0,31}")
_LINE = re.compile(r"\s*@?(?P<name>[^=]+?)\s*=\s*(?P<folder>.+?)(?::(?P<mode>ro|rw))?\s*")
_WILDCARDS = frozenset("*?[")
_USAGE = "write --mount NAME=FOLDER:ro or NAME=FOLDER:rw"


@dataclass(frozen=True, slots=True)
class Mount:
    """One folder of the host under a name."""

    name: str
    """Starts with `@`."""
    root: Path
    """Absolute path. Every open refuses a link in it, so the caller resolves the links of a folder
    that the person chose (`chosen_folder`)."""
    mode: Mode = "ro"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"{self.name!r} is no name for a mount; use @ and letters, digits, _ or -"
            )
        object.__setattr__(self, "root", Path(os.path.abspath(self.root)))


def chosen_folder(path: Path) -> Path:
    """Resolve the links in a folder that the person chose, once."""
    try:
        return Path(os.path.realpath(path))
    except OSError:  # a link became a folder while it was read; every open checks it
        return Path(os.path.abspath(path))


@dataclass(frozen=True, slots=True)
class MountedPath:
    """A path of the model, resolved: an open mount and the path parts below it.

    A call keeps the folder that it started with, even if the root is replaced meanwhile.
    """

    mount: Mount
    parts: Parts
    root: Folder = field(compare=False, repr=False)
    """Open root of the mount, which owns it: do not close it."""
    identity: str = field(default="", repr=False)
    """Hash of the mount's path, device and inode. Approvals are bound to it."""

    @property
    def text(self) -> str:
        """The path as named: `@project/a/b.txt`."""
        return _join(self.mount, self.parts)


def parse_mount(text: str, *, base: Path | None = None) -> Mount:
    r"""Read `data=path:ro`; without a mode it is `ro`. `data=C:\x:rw` keeps its drive.

    A relative folder is below `base`, the working directory by default.

    Raises:
        UsageError: the text is not a mount, its name is taken, or the folder does not exist.
    """
    line = _LINE.fullmatch(text)
    if line is None:
        raise UsageError(f"{text[:200]!r} is no mount; {_USAGE}")
    name = f"@{line['name']}"
    if name in _BUILT_IN_NAMES:
        raise UsageError(f"the name {name} belongs to nbagent; choose another and {_USAGE}")
    # A name that is too long, a folder closed to this user, `~nobody`.
    with suppress(OSError, RuntimeError, ValueError):
        folder = (base or Path.cwd()) / Path(line["folder"]).expanduser()
        if folder.is_dir():
            return Mount(name, chosen_folder(folder), cast("Mode", line["mode"] or "ro"))
    raise UsageError(f"there is no folder {line['folder'][:200]!r} for {name}; {_USAGE}")


class Mounts(dict[str, Mount]):
    """The mounts of a run by name, with open roots.

    A root that was replaced by another folder of the same path is opened again, without following
    links. `closed` folders (the store) cannot be reached from a mount above. `private` folders (the
    person's trust, stores of other projects) cannot be the project either.

    Raises:
        UsageError: two mounts have one name, or one that is not the run's own is in a closed
        folder.
    """

    def __init__(
        self,
        mounts: Iterable[Mount],
        *,
        closed: Sequence[Path] = (),
        private: Sequence[Path] = (),
    ) -> None:
        super().__init__()
        self._private = tuple(map(chosen_folder, private))
        self._closed = (*map(chosen_folder, closed), *self._private)
        self._open_roots: dict[str, Folder] = {}
        self._lock = threading.Lock()
        for mount in mounts:
            if mount.name in self:
                raise UsageError(f"two mounts have the name {mount.name}; rename one of them")
            own = {PROJECT: self._private, PACKAGE: (), STATE: ()}
            if any(_is_within(mount.root, c) for c in own.get(mount.name, self._closed)):
                raise UsageError(
                    f"the folder of the mount {mount.name} belongs to nbagent itself (its store or "
                    "its configuration); use another one, and @state for files to keep"
                )
            self[mount.name] = mount

    @classmethod
    def of(
        cls,
        project: Path,
        *,
        state: Path | None = None,
        extra: Sequence[Mount] = (),
        closed: Sequence[Path] = (),
        private: Sequence[Path] = (),
    ) -> Mounts:
        """Mounts of the project and of the state (created at the first use), both writable, and
        `extra`."""
        own = [Mount(PROJECT, chosen_folder(project), "rw")]
        if state is not None:
            own.append(Mount(STATE, state, "rw"))
        return cls([*own, *extra], closed=closed, private=private)

    def locate(self, path: str) -> MountedPath:
        """Resolve a path; without a mount it is below `@project`, since models forget to write
        that.

        Raises:
            ToolError: `E_SANDBOX_VIOLATION`, the path or its mount is refused, or it is in a
                closed folder; `ENOENT`, the mount's folder does not exist.
        """
        name, parts = PROJECT, path_parts(path)
        if parts and parts[0].startswith("@"):
            name, parts = parts[0], parts[1:]
        mount = self.get(name)
        if mount is None:
            raise ToolError(
                f"there is no mount {visible(name)}{nearest_or_all(name, self, 'there are:')}",
                code="E_SANDBOX_VIOLATION",
            )
        host = mount.root.joinpath(*parts)
        if any(_is_within(host, c) and not _is_within(mount.root, c) for c in self._closed):
            raise path_error(
                _join(mount, parts), "it is kept by nbagent itself; use another folder"
            )
        root = self._open_root(mount)
        identity = sha_of([os.fsencode(mount.root).hex(), root.identity])
        return MountedPath(mount, parts, root, identity)

    def canonical_path(self, mount: Mount, parts: Parts) -> str:
        """Path for rules, people and records: its name in the widest mount that contains it."""
        return self._widest_path(mount.root.joinpath(*parts))

    def _widest_path(self, host: Path) -> str:
        widest = self._containing(host)[0]
        return _join(widest, host.parts[len(widest.root.parts) :])

    def resolve(self, glob: str) -> tuple[str, ...]:
        """Canonical forms of a rule's glob, to compare with canonical paths.

        Without a mount it is below `@project`, unless it starts with a wildcard.
        """
        first, _, rest = glob.partition("/")
        if not first or first[0] in _WILDCARDS:
            return (glob,)
        if not first.startswith("@"):
            return (self._resolved(PROJECT, glob),)
        names = [name for name in self if fnmatchcase(name, first)]
        rest = rest or ("*" if first not in names else "")
        return (glob, *(self._resolved(name, rest) for name in names))

    def _resolved(self, name: str, glob: str) -> str:
        pieces = without_dots(glob).split("/")
        plain = tuple(takewhile(lambda piece: not set(piece) & _WILDCARDS, pieces))
        return "/".join((self.canonical_path(self[name], plain), *pieces[len(plain) :]))

    def _containing(self, host: Path) -> list[Mount]:
        """Mounts that contain a path, the widest first; of two equal ones the named one."""
        around = (mount for mount in self.values() if _is_within(host, mount.root))
        return sorted(around, key=lambda mount: len(mount.root.parts))

    def check_writable(self, path: MountedPath) -> None:
        """Refuse (E_SANDBOX_VIOLATION) to write to a mount itself, a read-only mount, or git's
        files.

        Of two nested mounts the inner one decides.
        """
        if not path.parts:
            raise path_error(path.text, "it is a mount; name a file in it")
        # Its hooks and configuration can run commands.
        if any(part.casefold() == ".git" for part in path.parts):
            raise path_error(path.text, "git keeps its own files; ask the person to change them")
        depth = len(path.mount.root.parts)
        around = self._containing(path.mount.root.joinpath(*path.parts))
        below = [mount for mount in around if len(mount.root.parts) > depth]
        package = [mount for mount in around if mount.name == PACKAGE]
        for mount in (path.mount, *below[-1:], *package):
            if mount.mode == "ro":
                why = f"{mount.name} is read only; write elsewhere, or ask the person to mount it"
                raise path_error(path.text, f"{why} with :rw")

    @property
    def reserved_paths(self) -> frozenset[str]:
        """Paths that a walk leaves out: closed folders within a mount, in lower case."""
        inside = (path for path in self._closed if self._containing(path))
        return frozenset(self._widest_path(path).casefold() for path in inside)

    def _open_root(self, mount: Mount) -> Folder:
        try:
            identity = _identity_of_root(mount)
            with self._lock:
                root = self._open_roots.get(mount.name)
                if root is None or root.identity != identity:
                    # Not closed here: a call may still use the old one. It is closed when its
                    # last reference ends.
                    root = self._open_roots[mount.name] = open_root(mount.root)
                return root
        except (FileNotFoundError, NotADirectoryError):
            raise ToolError(
                f"the folder behind {mount.name} is not there (any more); ask the person",
                code="ENOENT",
            ) from None
        except OSError as error:
            raise failure(error, mount.name) from None


def _identity_of_root(mount: Mount) -> str:
    try:
        return identity_of(os.stat(mount.root))
    except (FileNotFoundError, NotADirectoryError):
        if mount.name != STATE:
            raise
        open_root(mount.root, create=True).close()
        return identity_of(os.stat(mount.root))


def without_dots(path: str) -> str:
    """Normalise a path: `./a//b` is `a/b`."""
    return "/".join(piece for piece in path.strip().split("/") if piece not in ("", "."))


def _join(mount: Mount, parts: Parts) -> str:
    return "/".join((mount.name, *parts))


def _is_within(path: Path, folder: Path) -> bool:
    """True if one path is within another, by names without upper and lower case."""
    pieces, above = path.parts, folder.parts
    return len(pieces) >= len(above) and all(
        a == b or a.casefold() == b.casefold() for a, b in zip(pieces, above, strict=False)
    )
