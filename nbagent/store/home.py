"""The folder that runs are kept in: the project's `.nbagent` if it is the person's own.

A store is the person's own if NBAGENT_HOME or NBAGENT_TRUST names its folder, if it is created
here, or if the person's entry of the folder (`settings.trust`) has its id. Any other store is a
stranger's: runs, state and audit log go to a folder in the person's data folder instead.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.errors import StoreError, describe_error
from nbagent.settings.sources import store_home, to_path
from nbagent.settings.trust import (
    create_entry,
    entry_file,
    entry_of,
    folder_with,
    new_store_id,
    stores_folder,
)
from nbagent.store.connections import BESIDE, FILE_NAME, StoreBusyError, file_system
from nbagent.store.log_mark import unproven_file
from nbagent.store.store_facts import read_facts
from nbagent.store.store_folder import LOCK_NAME, opening_lock

_WRITTEN = (
    *("state", "cache", "packages", "audit.jsonl", "audit.head"),
    *(f"{FILE_NAME}{end}" for end in BESIDE),
)
"""What nbagent writes beside a store. A folder that has some of it was used before."""
_NOT_LASTING = ("overlay", "tmpfs", "ramfs")
_Seal = tuple[object, ...]
_examined: dict[Path, tuple[_Seal, StoreHome]] = {}
_created_ids: dict[Path, str] = {}
"""Ids of stores that this process created, for a home where no entry can be written."""


@dataclass(frozen=True, slots=True)
class StoreHome:
    """The folder of a store, and whether it is the person's own."""

    folder: Path
    """Real path."""
    why_not: str = ""
    """Reason why it is not the person's own; empty if it is."""
    store_id: str = ""
    """Id in the entry; empty if none is needed or there is none yet."""
    needs_entry: bool = False
    """True if there is no store yet, so that creating one makes it the person's own."""

    @property
    def is_own(self) -> bool:
        return not self.why_not


def current_home() -> StoreHome:
    """The store's folder of this project, as it is now."""
    folder = store_home()
    try:
        if not os.path.islink(folder):
            return home_at(folder)
        target = Path(os.path.realpath(folder))
        return (
            home_at(target) if _is_chosen(target) else StoreHome(folder, f"{folder.name} is a link")
        )
    except OSError as error:  # it becomes a link, or stops to be one, while it is read
        return StoreHome(folder, f"it cannot be read ({describe_error(error)})")


def writing_folder() -> Path:
    """The folder that nbagent writes to: the store's if it is the person's own."""
    home = current_home()
    return home.folder if home.is_own else stand_in_of(home.folder)


def stand_in_of(folder: Path) -> Path:
    """The folder in the person's data folder that is used instead of a stranger's store."""
    return stores_folder() / sha256_hex(os.fsencode(folder))[:16]


def home_at(folder: Path) -> StoreHome:
    """Decide whether the store in a folder, whose path has no link, is the person's own."""
    seal = _seal(folder)
    if folder not in _examined or _examined[folder][0] != seal:
        _examined[folder] = seal, _examine(folder)
    return _examined[folder][1]


def create_id(home: StoreHome) -> tuple[StoreHome, str]:
    """Make the id and the entry of a store that is about to be created.

    Returns:
        The folder with its id, and a notice if no entry could be written.
    """
    if not home.needs_entry or home.store_id:
        return home, ""
    store_id = new_store_id()
    entry = create_entry(home.folder, store_id)
    if entry is not None and entry.store_id:
        return StoreHome(home.folder, store_id=entry.store_id, needs_entry=True), ""
    with suppress(RuntimeError):
        file = entry_file(home.folder)
        return StoreHome(home.folder, store_id=store_id, needs_entry=True), (
            f"This run is stored, but {file} cannot be written or is no entry of yours, so the "
            f"next kernel takes {home.folder} for a stranger's store. Correct that folder, then "
            "use `%agent trust`; or set NBAGENT_HOME to the folder of the store."
        )
    return StoreHome(home.folder, store_id=store_id, needs_entry=True), (
        "This run is stored, but there is no home folder for the entry of its store, so the next "
        f"kernel takes {home.folder} for a stranger's. Set NBAGENT_HOME to it."
    )


def note_created(folder: Path, store_id: str) -> None:
    """Remember that this process created the store: it is the person's own without an entry."""
    _created_ids[folder] = store_id
    _examined.pop(folder, None)


def forget_homes() -> None:
    """Forget all decisions; the next call decides again."""
    _examined.clear()
    _created_ids.clear()


def short_path(folder: Path) -> str:
    """A path as a person writes it: below the home folder it starts with `~`."""
    with suppress(RuntimeError, ValueError):
        return f"~/{folder.relative_to(Path.home()).as_posix()}"
    return str(folder)


def not_lasting(folder: Path) -> str:
    """A sentence if the folder is lost with its container or at a restart; else empty."""
    there = next((p for p in (folder, *folder.parents) if p.exists()), folder)
    kind = file_system(there)
    if kind not in _NOT_LASTING:
        return ""
    return f"{short_path(folder)} does not last ({kind}); set NBAGENT_HOME to a folder that does."


def _examine(folder: Path) -> StoreHome:
    if _is_chosen(folder):
        return StoreHome(folder)
    entry = entry_of(folder)
    store_id = (entry.store_id if entry else "") or _created_ids.get(folder, "")
    if store_id and (name := _unproven_file(folder, store_id)):
        return StoreHome(
            folder,
            f"{name} beside it was not written by nbagent on this machine, such as after a merge: "
            "delete that file, or take over what is in it",
        )
    try:
        facts = read_facts(folder / FILE_NAME, with_log=bool(store_id))
    except StoreBusyError:
        raise  # it may be the person's own
    except (StoreError, OSError) as error:
        return StoreHome(folder, f"its file cannot be read ({describe_error(error)})")
    if facts is None:
        rests = [name for name in _WRITTEN if os.path.lexists(folder / name)]
        with suppress(FileNotFoundError):
            rests += [FILE_NAME] if os.lstat(folder / FILE_NAME).st_size else []
        if store_id or not rests:
            return StoreHome(folder, store_id=store_id, needs_entry=True)
        return StoreHome(folder, f"it has no entry of yours, but has {', '.join(rests)}")
    if store_id and store_id == facts.store_id:
        return StoreHome(folder, store_id=store_id)
    # Not before: most stores have an entry, and need not know the data folder.
    if folder.is_relative_to(os.path.realpath(stores_folder())):
        return StoreHome(folder)
    return StoreHome(folder, _difference(folder, store_id, facts.store_id))


def _unproven_file(folder: Path, store_id: str) -> str:
    name = unproven_file(folder / FILE_NAME, store_id)
    if name and os.path.lexists(folder / LOCK_NAME):
        # Another process may be creating the store: it has a journal for a moment.
        with suppress(OSError, StoreError), opening_lock(folder):
            return unproven_file(folder / FILE_NAME, store_id)
    return name


def _difference(folder: Path, entry_id: str, store_id: str) -> str:
    if entry_id:
        return (
            "it is not the store that was here, such as after a merge, or when a backup was "
            "restored"
        )
    other = folder_with(store_id)
    if other is not None and other != str(folder):
        return f"it is the store of {other}, so the folder was moved or copied"
    return (
        "it has no entry of yours (a clone, a store of an earlier nbagent, or trust that you took "
        "back)"
    )


def _is_chosen(folder: Path) -> bool:
    """True if the person's environment names the folder."""
    chosen = os.environ.get("NBAGENT_HOME")
    if chosen and os.path.realpath(to_path(chosen, "NBAGENT_HOME")) == str(folder):
        return True
    # Not a relative path: an empty or a relative one would trust every working folder.
    return any(
        folder.is_relative_to(os.path.realpath(path))
        for path in _trusted_paths()
        if os.path.isabs(path)
    )


def _trusted_paths() -> list[str]:
    """The paths that NBAGENT_TRUST names."""
    paths = (path.strip() for path in os.environ.get("NBAGENT_TRUST", "").split(os.pathsep))
    return [os.path.expanduser(path) for path in paths if path]


def useless_trusted_paths() -> str:
    """Say which paths of NBAGENT_TRUST name no folder; empty if all do."""
    problems = [
        f"{path!r} is {'no folder' if os.path.isabs(path) else 'not an absolute path'}"
        for path in _trusted_paths()
        if not os.path.isdir(path) or not os.path.isabs(path)
    ]
    return f"NBAGENT_TRUST: {', '.join(problems)}, so it trusts nothing" if problems else ""


def _seal(folder: Path) -> _Seal:
    """Facts that change when the store is replaced, or the person decides something."""
    files = [folder / FILE_NAME]
    with suppress(RuntimeError):
        files.append(entry_file(folder))
    environment = (os.environ.get("NBAGENT_HOME"), os.environ.get("NBAGENT_TRUST"))
    beside = (folder / f"{FILE_NAME}{end}" for end in ("-wal", "-journal"))
    return (*map(_signature, files), *map(_inode, beside), *environment)


def _inode(file: Path) -> int:
    # Not its size: each commit changes it.
    with suppress(OSError):
        return os.lstat(file).st_ino
    return 0


def _signature(file: Path) -> object:
    with suppress(OSError):
        status = os.lstat(file)
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode
    return None
