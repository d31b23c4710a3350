"""Mounts: the folders that a model can name, under names that say nothing of the host.

Owns `Mount`, `Mounts` and the way from `@data/a.csv` to a folder and the pieces below it. Opening
is `opening`'s; what may be done there without asking is not decided here.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from typing import Literal

from nbagent.contracts.canonical import sha_of
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.files.names import Parts, path_parts, refused, visible
from nbagent.files.opening import Folder, failure, open_root

Mode = Literal["ro", "rw"]
PROJECT, PACKAGE, STATE = "@project", "@pkg", "@state"
_OWN = (PROJECT, PACKAGE, STATE)
_NAME = re.compile(r"@[A-Za-z][A-Za-z0-9_-]{0,31}")
_WILD = frozenset("*?[")
_USAGE = "write --mount NAME=FOLDER:ro or NAME=FOLDER:rw"


@dataclass(frozen=True, slots=True)
class Mount:
    """One folder of the host under a name."""

    name: str
    """With its `@`."""
    root: Path
    """Absolute, links resolved when the mount was made."""
    mode: Mode = "ro"
    hidden: bool = False
    """Not listed to the person as files."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"{self.name!r} is no name for a mount; use @ and letters, digits, _ or -"
            )
        object.__setattr__(self, "root", Path(os.path.realpath(self.root)))


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A path of the model, understood: an open mount and the pieces below it.

    Work under way keeps the folder that it began with, whatever takes the place of its root.
    """

    mount: Mount
    parts: Parts
    root: Folder = field(compare=False, repr=False)
    """Of the mount; not to be closed."""
    identity: str = field(default="", repr=False)
    """Hash of which folder the mount is: its path, and what the system knows it by."""

    @property
    def text(self) -> str:
        """It as it was named: `@project/a/b.txt`."""
        return _written(self.mount, self.parts)


def parse_mount(text: str, *, base: Path | None = None) -> Mount:
    r"""Read `data=path:ro`; without a mode it is `ro`. `data=C:\x:rw` keeps its drive.

    Args:
        text: what the person wrote.
        base: what a relative folder is relative to; the working directory by default.

    Raises:
        UsageError: it is no mount, its name is taken, or the folder is not there.
    """
    name, equals, rest = text.partition("=")
    name = name.strip().removeprefix("@")
    if not equals or not rest.strip() or not name:
        raise UsageError(f"{text!r} is no mount; {_USAGE}")
    if f"@{name}" in _OWN:
        raise UsageError(f"the name {name!r} belongs to nbagent; choose another and {_USAGE}")
    where, colon, mode = rest.strip().rpartition(":")
    if not colon or mode not in ("ro", "rw"):
        where, word, mode = rest.strip(), mode if colon else "", "ro"
        if re.fullmatch(r"[A-Za-z]{0,5}", word) and colon and _folder(where, base) is None:
            raise UsageError(f"the mount {text!r} ends in neither :ro nor :rw; {_USAGE}")
    folder = _folder(where, base)
    if folder is None:
        shown = where if len(where) <= 200 else where[:200] + "…"
        raise UsageError(f"there is no folder {shown!r} for the mount {name!r}; {_USAGE}")
    return Mount(f"@{name}", folder, mode)


def _folder(text: str, base: Path | None) -> Path | None:
    """The folder that a person means; None when there is none that can be looked at."""
    try:
        folder = (base or Path.cwd()) / Path(text).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):
        # A name that is too long, a folder closed to this user, `~nobody`.
        return None


@dataclass(slots=True)
class _Held:
    """The open root of a mount, and which folder it is."""

    folder: Folder
    device: int
    number: int


class Mounts(Mapping[str, Mount]):
    """The mounts of a run by name, with their roots held open.

    A root that was replaced by another folder of the same path is opened anew, again without
    following links.

    Args:
        mounts: their names must differ.
        closed: folders of the host that are not reached through a mount above them, such as the
            store's.

    Raises:
        UsageError: two have one name, or one that is not a run's own lies in a closed folder.
    """

    def __init__(self, mounts: Iterable[Mount], *, closed: Sequence[Path] = ()) -> None:
        self._mounts: dict[str, Mount] = {}
        for mount in mounts:
            if mount.name in self._mounts:
                raise UsageError(f"two mounts have the name {mount.name}; rename one of them")
            self._mounts[mount.name] = mount
        self._closed = tuple(Path(os.path.realpath(path)) for path in closed)
        for mount in self._mounts.values():
            if mount.name not in _OWN and any(_leads_into(mount.root, c) for c in self._closed):
                raise UsageError(
                    f"the folder of the mount {mount.name} is kept by nbagent itself (its store); "
                    "mount another one, and use @state for what should be kept"
                )
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls,
        project: Path,
        *,
        state: Path | None = None,
        package: Path | None = None,
        extra: Sequence[Mount] = (),
        closed: Sequence[Path] = (),
    ) -> Mounts:
        """The mounts of a run: the project, the package and the state where there is one, more.

        Args:
            project: read and write.
            state: read and write, hidden; made when it is first used.
            package: read only.
            extra: what the person added.
            closed: folders that are not reached through a mount above them.
        """
        own = [Mount(PROJECT, project, "rw")]
        if package is not None:
            own.append(Mount(PACKAGE, package, "ro"))
        if state is not None:
            own.append(Mount(STATE, state, "rw", hidden=True))
        return cls([*own, *extra], closed=closed)

    def __getitem__(self, name: str) -> Mount:
        return self._mounts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mounts)

    def __len__(self) -> int:
        return len(self._mounts)

    def place(self, path: object) -> FilePlace:
        """What a path means; one without a mount is below `@project`, which models forget to say.

        Raises:
            ToolError: `E_SANDBOX_VIOLATION`, the path or its mount is refused; `ENOENT`, the
                mount's folder is gone.
        """
        mount, parts = self._named(path)
        host = mount.root.joinpath(*parts)
        if any(_is_within(host, c) and not _is_within(mount.root, c) for c in self._closed):
            raise ToolError(
                f"{visible(_written(mount, parts))} is kept by nbagent itself; use another folder",
                code="E_DENIED",
            )
        root = self._root(mount)
        identity = sha_of([os.fsencode(mount.root).hex(), root.identity])
        return FilePlace(mount, parts, root, identity)

    def form(self, place: FilePlace) -> str:
        """A place as rules, people and records know it.

        A file has as many names as mounts it lies in; this is its name in the widest of them.
        """
        return self._widest(place.mount, place.parts)

    def resolve(self, glob: str) -> tuple[str, ...]:
        """What a glob of a rule is compared as with the forms of paths.

        Without a mount it is one below `@project`, unless it begins with a wildcard.
        """
        first, _, rest = glob.partition("/")
        if first[:1] in _WILD:
            return (glob,)
        if not first.startswith("@"):
            return (self._resolved(PROJECT, glob),)
        names = [name for name in self._mounts if fnmatchcase(name, first)]
        rest = rest or ("*" if first not in names else "")
        return (glob, *(self._resolved(name, rest) for name in names))

    def _resolved(self, name: str, glob: str) -> str:
        pieces = glob.split("/")
        plain = list(takewhile(lambda piece: not set(piece) & _WILD, pieces))
        try:
            mount, parts = self._named("/".join((name, *plain)))
        except ToolError:
            return glob
        return "/".join((self._widest(mount, parts), *pieces[len(plain) :]))

    def _widest(self, mount: Mount, parts: Parts) -> str:
        host = mount.root.joinpath(*parts)
        around = (it for it in self._mounts.values() if _is_within(host, it.root))
        # Of two mounts of one folder, the one that was named first.
        widest = min(around, key=lambda it: len(it.root.parts), default=mount)
        return _written(widest, host.parts[len(widest.root.parts) :])

    def _named(self, path: object) -> tuple[Mount, Parts]:
        parts = path_parts(path)
        name, below = PROJECT, parts
        if parts and parts[0].startswith("@"):
            name, below = parts[0], parts[1:]
        mount = self._mounts.get(name)
        if mount is None:
            raise ToolError(
                f"there is no mount {visible(name)}; there are: {', '.join(self._mounts)}",
                code="E_SANDBOX_VIOLATION",
            )
        return mount, below

    def check_writable(self, place: FilePlace) -> None:
        """Refuse what is never written: a mount itself, what is read only, what git keeps.

        Of two mounts, one within the other, the one further down decides.

        Raises:
            ToolError: `E_SANDBOX_VIOLATION`.
        """
        if not place.parts:
            raise refused(place.text, "it is a mount; name a file in it")
        if any(part.casefold() == ".git" for part in place.parts):
            raise refused(place.text, "git keeps its own files; ask the person to change them")
        host = place.mount.root.joinpath(*place.parts)
        around = [it for it in self._mounts.values() if _is_within(host, it.root)]
        nearest = max(around, key=lambda it: len(it.root.parts), default=place.mount)
        if len(nearest.root.parts) == len(place.mount.root.parts):
            nearest = place.mount
        if "ro" in (nearest.mode, place.mount.mode):
            name = nearest.name if nearest.mode == "ro" else place.mount.name
            raise refused(
                place.text,
                f"{name} is read only; write elsewhere, or ask the person to mount it with :rw",
            )

    def closed_below(self, mount: Mount) -> frozenset[Parts]:
        """What a walk in a mount leaves out, as pieces below it, in small letters."""
        size = len(mount.root.parts)
        below = (path.parts[size:] for path in self._closed if _is_within(path, mount.root))
        return frozenset(tuple(map(str.casefold, parts)) for parts in below if parts)

    def _root(self, mount: Mount) -> Folder:
        try:
            if mount.name == STATE:
                mount.root.mkdir(parents=True, exist_ok=True)
            found = os.stat(mount.root)
            with self._lock:
                held = self._held.get(mount.name)
                if held is None or (held.device, held.number) != (found.st_dev, found.st_ino):
                    # The old one is closed when the last who uses it lets go.
                    held = _Held(open_root(mount.root), found.st_dev, found.st_ino)
                    self._held[mount.name] = held
                return held.folder
        except (FileNotFoundError, NotADirectoryError):
            raise ToolError(
                f"the folder behind {mount.name} is not there (any more); ask the person",
                code="ENOENT",
            ) from None
        except OSError as error:
            raise failure(error, mount.name) from None


def _written(mount: Mount, parts: Parts) -> str:
    return "/".join((mount.name, *parts))


def _leads_into(path: Path, closed: Path) -> bool:
    """Whether a folder is a closed one or in it, also by another name of the same folder."""
    if _is_within(path, closed):
        return True
    try:
        found = closed.stat()
        above = (folder.stat() for folder in (path, *path.parents))
        return any(os.path.samestat(found, it) for it in above)
    except OSError:
        return False


def _is_within(path: Path, folder: Path) -> bool:
    """By name, as a file system reads it that takes `A` and `a` for one."""
    pieces, above = path.parts, folder.parts
    return len(pieces) >= len(above) and all(
        a == b or a.casefold() == b.casefold() for a, b in zip(pieces, above, strict=False)
    )
