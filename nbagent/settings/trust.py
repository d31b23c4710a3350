"""Trust in a folder: one entry per folder, kept in the person's configuration folder.

Nothing inside a folder proves anything, since whoever made the folder could write the proof too: a
clone brings it, a merge replaces it. So the proof is outside. An entry holds the id of the folder's
store, and the texts of the folder's files that the person allowed.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.canonical import sha256_hex, utc_now

_ENTRIES = "folders"
# O_NONBLOCK: to open a pipe would wait for its writer.
_READ_FLAGS = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY")
)
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
_MAX_ENTRY_BYTES = 5_000_000


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """What the person trusts in one folder."""

    path: str
    """Real path of the folder."""
    store_id: str = ""
    """Id of the store that nbagent keeps in it; empty if none of it was taken as the person's."""
    allowed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Allowed texts by the name of what they set, as in `TrustItem`. The whole text is kept, so
    that the difference can be shown when it has changed."""
    created_at: str = ""

    def allows(self, item: TrustItem) -> bool:
        """True if the person allowed exactly this text."""
        return self.allowed.get(item.name) == item.text


@dataclass(frozen=True, slots=True)
class TrustItem:
    """Something that a folder's file would decide if the person allowed it."""

    name: str
    """File and part, such as `pyproject.toml: model` or `.mcp.json: git`."""
    text: str
    """What it sets, as a person reads it. An allowance holds for exactly this text."""
    folder: Path
    """Folder that holds the file. Its entry has the allowance."""


def config_folder() -> Path:
    """The person's configuration folder of nbagent; it may not exist."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # A relative one is ignored, as the specification says: it would be in a stranger's folder.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "nbagent"


def data_folder() -> Path:
    """The person's data folder of nbagent; it may not exist."""
    from platformdirs import user_data_path  # late: most processes do not need it

    folder = user_data_path("nbagent")
    return folder if folder.is_absolute() else Path.home() / ".local" / "share" / "nbagent"


def stores_folder() -> Path:
    """The real folder of all stores in the person's data folder."""
    return Path(os.path.realpath(data_folder())) / "stores"


def new_store_id() -> str:
    """Make a store id: 128 random bits."""
    return secrets.token_hex(16)


def entry_of(folder: Path) -> FolderEntry | None:
    """The entry of a folder; None without one that this user wrote.

    A link, a file of another user, one that others can write to, and a damaged one are no entry.
    """
    try:
        entry = _read_entry(entry_file(folder))
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    return entry if entry is not None and entry.path == os.path.realpath(folder) else None


def folder_with(store_id: str) -> str | None:
    """Real path of the folder whose entry has this store id; None if no entry has it."""
    try:
        files = sorted(entry_file(Path()).parent.glob("*.json"))
    except (OSError, RuntimeError):
        return None
    entries = (entry for file in files if (entry := _read_entry(file)) is not None)
    return next((entry.path for entry in entries if store_id and entry.store_id == store_id), None)


def create_entry(folder: Path, store_id: str) -> FolderEntry | None:
    """Create the entry of a folder whose store was just created; an existing one stays.

    Returns:
        The entry that is there now. None if none can be written, such as in a read-only home.
    """
    entry = FolderEntry(os.path.realpath(folder), store_id, created_at=utc_now().isoformat())
    with suppress(OSError, RuntimeError):
        file, written = entry_file(folder), _write_beside(folder, entry)
        try:
            # A link fails if another process was first, and never shows a half-written entry.
            os.link(written, file)
        finally:
            os.unlink(written)
    return entry_of(folder)


def replace_entry(entry: FolderEntry) -> None:
    """Write an entry that the person decided. Raises OSError if it cannot be written."""
    if not entry.created_at:
        entry = replace(entry, created_at=utc_now().isoformat())
    folder = Path(entry.path)
    written = _write_beside(folder, entry)
    try:
        os.replace(written, entry_file(folder))
    except OSError:
        written.unlink()
        raise


def delete_entry(folder: Path) -> None:
    """Delete the entry of a folder, if there is one. Raises OSError if it cannot be deleted."""
    with suppress(FileNotFoundError):
        os.unlink(entry_file(folder))


def entry_file(folder: Path) -> Path:
    """File of a folder's entry; it may not exist. Raises RuntimeError if there is no home."""
    path = os.fsencode(os.path.realpath(folder))
    return config_folder() / _ENTRIES / f"{sha256_hex(path)[:32]}.json"


def _read_entry(file: Path) -> FolderEntry | None:
    try:
        descriptor = os.open(file, _READ_FLAGS)
    except OSError:
        return None
    if not _is_of_this_user(os.fstat(descriptor)):
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as opened:
        return _parse(opened.read(_MAX_ENTRY_BYTES + 1))


def _write_beside(folder: Path, entry: FolderEntry) -> Path:
    """Write an entry to a new file beside its place."""
    file = entry_file(folder)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fields = {
        "path": entry.path,
        "store_id": entry.store_id,
        "allowed": dict(entry.allowed),
        "created_at": entry.created_at,
    }
    beside = file.with_name(f"{file.stem}.{secrets.token_hex(8)}.new")
    try:
        with os.fdopen(os.open(beside, _WRITE_FLAGS, 0o600), "wb") as new:
            new.write(json.dumps(fields).encode("utf-8", "surrogatepass"))
            new.flush()
            os.fsync(new.fileno())
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise
    return beside


def _is_of_this_user(status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return False
    # Windows has neither; its profile folders are closed to other users.
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _parse(raw: bytes) -> FolderEntry | None:
    try:
        fields: Any = json.loads(raw.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    known = cast("dict[str, Any]", fields)
    path, allowed = known.get("path"), known.get("allowed")
    if not isinstance(path, str) or not isinstance(allowed, dict):
        return None
    texts = cast("dict[Any, Any]", allowed)
    store_id, created = known.get("store_id"), known.get("created_at")
    if not isinstance(store_id, str) or not isinstance(created, str):
        return None
    if not all(isinstance(text, str) for pair in texts.items() for text in pair):
        return None
    return FolderEntry(path, store_id, cast("dict[str, str]", texts), created)
