"""Mounts: the folders that a model can name, under names that say nothing of the host.

Owns `Mount`, `Mounts` and the way from `@data/a.csv` to a folder and the pieces below it. Opening
is `opening`'s; what may be done there without asking is not decided here.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.files.names import Parts, path_parts, visible
from nbagent.files.opening import AnyFolder, open_root
from nbagent.files.refusals import link_error, told

Mode = Literal["ro", "rw"]
PROJECT, PACKAGE, STATE = "@project", "@pkg", "@state"
_OWN = (PROJECT, PACKAGE, STATE)
_NAME = re.compile(r"@[A-Za-z][A-Za-z0-9_-]{0,31}")
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
    """A path of the model, understood: a mount and the pieces below it."""

    mount: Mount
    parts: Parts

    @property
    def text(self) -> str:
        """The one way to write it: `@project/a/b.txt`."""
        return "/".join((self.mount.name, *self.parts))

    def below(self, *parts: str) -> FilePlace:
        """A place further down."""
        return FilePlace(self.mount, (*self.parts, *parts))


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

    folder: AnyFolder
    device: int
    number: int


class Mounts(Mapping[str, Mount]):
    """The mounts of a run by name, with their roots held open.

    A root that was replaced by another folder of the same path is opened anew, again without
    following links; work under way keeps the folder that it began with.

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
        roots = {str(mount.root): mount.name for mount in self._mounts.values()}
        ordered = sorted((root for root in roots if len(root) > 1), key=len, reverse=True)
        self._roots = roots
        self._host_paths = re.compile(
            "|".join(f"{re.escape(root)}(?![\\w.-])" for root in ordered) or r"(?!)"
        )

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
            ToolError: `E_SANDBOX_VIOLATION`, the path or its mount is refused.
        """
        parts = path_parts(path)
        if not parts or not parts[0].startswith("@"):
            name, below = PROJECT, parts
        else:
            name, *rest = parts
            below = tuple(rest)
        mount = self._mounts.get(name)
        if mount is None:
            raise ToolError(
                f"there is no mount {visible(name)}; there are: {', '.join(self._mounts)}",
                code="E_SANDBOX_VIOLATION",
            )
        place = FilePlace(mount, below)
        if self._is_closed(place):
            raise ToolError(
                f"{visible(place.text)} is kept by nbagent itself; use another folder",
                code="E_DENIED",
            )
        return place

    def check_writable(self, place: FilePlace) -> None:
        """Refuse to write where a mount is read only, also when it lies within one that is not.

        Raises:
            ToolError: `E_DENIED`.
        """
        host, own = self._host_path(place), place.mount
        for mount in self._mounts.values():
            # Of two mounts the one further down decides.
            above = own.mode == "rw" and _is_within(own.root, mount.root)
            if mount.mode == "ro" and not above and _is_within(host, mount.root):
                raise ToolError(
                    f"{mount.name} is read only, so {visible(place.text)} is not written; write "
                    "elsewhere, or ask the person to mount it with :rw",
                    code="E_DENIED",
                )

    def skipped_below(self, place: FilePlace) -> frozenset[Parts]:
        """What a walk from a place leaves out, as pieces below its mount."""
        root = place.mount.root
        size = len(root.parts)
        below = (path.parts[size:] for path in self._closed if _is_within(path, root))
        return frozenset(parts for parts in below if parts)

    def forms(self, place: FilePlace) -> tuple[str, ...]:
        """Every way to write a place, its own first: mounts may lie within each other."""
        host = self._host_path(place).parts
        places = [place]
        for mount in self._mounts.values():
            size = len(mount.root.parts)
            if mount.name != place.mount.name and _starts(host, mount.root.parts):
                places.append(FilePlace(mount, host[size:]))
        bare = ["/".join(it.parts) for it in places if it.mount.name == PROJECT and it.parts]
        return (*(it.text for it in places), *bare)

    def identity(self, mount: Mount) -> str:
        """Hash of which folder a mount is now: its path, and what the system knows it by.

        Raises:
            ToolError: the folder is gone or became a link.
        """
        self.root(mount)
        held = self._held[mount.name]
        digest = hashlib.sha256(os.fsencode(mount.root))
        digest.update(f"\0{held.device}:{held.number}".encode())
        return digest.hexdigest()

    def root(self, mount: Mount) -> AnyFolder:
        """The open root of a mount; not to be closed.

        Raises:
            ToolError: `ENOENT` or `E_SANDBOX_VIOLATION`, the folder is gone or became a link.
        """
        try:
            found = os.stat(mount.root)
        except FileNotFoundError:
            if mount.name != STATE:
                raise _gone(mount) from None
            mount.root.mkdir(parents=True, exist_ok=True)
            found = os.stat(mount.root)
        except OSError as error:
            raise told(error, mount.name) from None
        with self._lock:
            held = self._held.get(mount.name)
            if held is None or (held.device, held.number) != (found.st_dev, found.st_ino):
                # The old one is closed when the last who uses it lets go.
                held = _Held(_opened(mount), found.st_dev, found.st_ino)
                self._held[mount.name] = held
            return held.folder

    def hide_roots(self, text: str) -> str:
        """The text with host paths of mounts replaced by their names."""
        return self._host_paths.sub(lambda match: self._roots[match[0]], text)

    def _host_path(self, place: FilePlace) -> Path:
        return place.mount.root.joinpath(*place.parts)

    def _is_closed(self, place: FilePlace) -> bool:
        if not self._closed:
            return False
        host = self._host_path(place)
        return any(
            _is_within(host, closed) and not _is_within(place.mount.root, closed)
            for closed in self._closed
        )


class Keeper:
    """Which names a walk below a mount may show: none whose path, however written, is forbidden.

    Args:
        mounts: of the run.
        mount: that the walk is in.
        forbids: asked for each path; True leaves it out.
    """

    def __init__(self, mounts: Mounts, mount: Mount, forbids: Callable[[str], bool]) -> None:
        self._mounts = mounts
        self._mount = mount
        self._forbids = forbids
        self._parts: Parts | None = None
        self._prefixes: tuple[str, ...] = ()
        self._roots: dict[Parts, list[str]] = {}
        for other in mounts.values():
            self._roots.setdefault(_folded(other.root.parts), []).append(other.name)
        self._has_roots = False
        self.left_out = 0
        """How many names were not shown."""

    def keeps(self, parts: Parts, name: str, *, folder: bool) -> bool:
        """Whether a name in a folder, given as pieces below the mount, is shown and gone into."""
        if parts != self._parts:
            self._enter(parts)
        forms = [prefix + name for prefix in self._prefixes]
        if folder and self._has_roots:
            forms += self._roots.get(_folded((*self._mount.root.parts, *parts, name)), ())
        if not any(map(self._forbids, forms)):
            return True
        self.left_out += 1
        return False

    def _enter(self, parts: Parts) -> None:
        """The same for all names of one folder: how its paths begin, and which mounts are in it."""
        here = FilePlace(self._mount, parts)
        forms = self._mounts.forms(here)
        bare = ("",) if PROJECT in forms else ()
        self._prefixes = (*(f"{form}/" for form in forms), *bare)
        folder = _folded((*self._mount.root.parts, *parts))
        self._has_roots = any(root[:-1] == folder for root in self._roots)
        self._parts = parts


def _folded(parts: Parts) -> Parts:
    return tuple(map(str.casefold, parts))


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
    return _starts(path.parts, folder.parts)


def _starts(pieces: Parts, above: Parts) -> bool:
    return len(pieces) >= len(above) and all(
        a == b or a.casefold() == b.casefold() for a, b in zip(pieces, above, strict=False)
    )


def _opened(mount: Mount) -> AnyFolder:
    try:
        return open_root(mount.root)
    except FileNotFoundError:
        raise _gone(mount) from None
    except NotADirectoryError:
        raise ToolError(
            f"the folder behind {mount.name} is no folder any more; ask the person",
            code="ENOENT",
        ) from None
    except OSError as error:
        raise told(error, mount.name) from None


def _gone(mount: Mount) -> ToolError:
    return ToolError(
        f"the folder behind {mount.name} is not there (any more); ask the person", code="ENOENT"
    )


def failure(error: OSError, place: FilePlace, root: AnyFolder) -> ToolError:
    """What the system said about a place, with the link on its way where there is one."""
    here: AnyFolder | None = None
    try:
        for number, name in enumerate(place.parts):
            here = root.folder(place.parts[:number])
            if stat.S_ISLNK(here.look(name).st_mode):
                return link_error(FilePlace(place.mount, place.parts[: number + 1]).text)
            here.close()
    except (OSError, ToolError):
        pass
    finally:
        if here is not None:
            here.close()
    return told(error, place.text)
