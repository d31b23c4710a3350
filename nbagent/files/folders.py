"""Reads a whole folder or zip within limits, and unpacks all of it or nothing.

Owns which names and kinds of files are refused. It does not know their meaning.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from unicodedata import normalize

from nbagent.contracts.canonical import new_id
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.files.names import path_parts, visible
from nbagent.files.opening import Folder, open_own_folder, open_root
from nbagent.files.writing import read_bytes

MAX_BYTES = 64 << 20
_MAX_FILES = 5_000
_MAX_DEPTH = 32
_CHUNK_BYTES = 1 << 16
_IGNORED_NAMES = re.compile(
    r"__pycache__|__MACOSX|\.git|\.DS_Store|\.ipynb_checkpoints|.*(?:\.swp|~)", re.DOTALL
)
"""Files that programs leave in the folders of others."""
_TOO_MANY = f"it has more than {_MAX_FILES:,} files; take out what is not needed"
TOO_LARGE = f"it has more than {MAX_BYTES >> 20} MB; take out what is not needed"


def _folder_error(*problems: tuple[str, str]) -> UsageError:
    """Build the error; `details["problems"]` holds pairs of a file name (or "") and a problem."""
    text = "; ".join(f"{name}: {why}" if name else why for name, why in problems)
    return UsageError(text, details={"problems": [[*problem] for problem in problems]})


def read_folder(root: Path) -> tuple[dict[str, bytes], frozenset[str]]:
    """Files below a folder by relative path; links and special files are problems.

    Raises:
        UsageError: it cannot be read, or is too large; `details["problems"]` lists the problems.
    """
    files: dict[str, bytes] = {}
    links: set[str] = set()
    left = MAX_BYTES
    try:
        with closing(open_root(root)) as folder:
            for name, data in _walk(folder, ""):
                if data is None:
                    links.add(name)
                    continue
                files[name] = data
                left -= len(data)
                if left < 0 or len(files) > _MAX_FILES:
                    raise _folder_error(("", TOO_LARGE if left < 0 else _TOO_MANY))
    except OSError as error:
        why = f"it cannot be read ({error.strerror}); let this user read its files"
        raise _folder_error(("", why)) from None
    return files, frozenset(links)


def _walk(folder: Folder, above: str) -> Iterator[tuple[str, bytes | None]]:
    """Names and bytes; None for a link or a special file."""
    if above.count("/") > _MAX_DEPTH:
        raise OSError(errno.ELOOP, "its folders are too deep")
    for entry in folder.scan():
        name = above + entry.name
        if _IGNORED_NAMES.fullmatch(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            with closing(folder.folder((entry.name,))) as below:
                yield from _walk(below, f"{name}/")
        elif entry.is_file(follow_symlinks=False):
            descriptor = folder.open_file((entry.name,))
            try:
                yield name, read_bytes(descriptor, max_bytes=MAX_BYTES + 1)
            finally:
                os.close(descriptor)
        else:
            yield name, None


def read_zip(data: bytes) -> dict[str, bytes]:
    """Files of a zip by relative path; nothing is written.

    Raises:
        UsageError: it is damaged, too large, or has refused entries; `details["problems"]` lists
            all problems with their names.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            # Twice as many: folders and ignored files are entries, too.
            problems = _find_problems(entries[: 2 * _MAX_FILES])
            if problems:
                raise _folder_error(*problems)
            wanted = {
                name: entry
                for entry in entries[: 2 * _MAX_FILES]
                if not entry.is_dir()
                and not any(map(_IGNORED_NAMES.fullmatch, (name := _name(entry)).split("/")))
            }
            if len(wanted) > _MAX_FILES or len(entries) > 2 * _MAX_FILES:
                raise _folder_error(("", _TOO_MANY))
            return _read_entries(archive, wanted)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
        raise _folder_error(
            ("", f"the zip is damaged ({visible(str(error))}); pack it again")
        ) from None


def _read_entries(
    archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo]
) -> dict[str, bytes]:
    """Read an entry; bytes are counted while reading, whatever the headers claim."""
    files: dict[str, bytes] = {}
    left = MAX_BYTES
    for name, entry in entries.items():
        content = bytearray()
        with archive.open(entry) as file:
            while chunk := file.read(_CHUNK_BYTES):
                content += chunk
                left -= len(chunk)
                if left < 0:
                    raise _folder_error((name, TOO_LARGE))
        files[name] = bytes(content)
    return files


def _name(entry: zipfile.ZipInfo) -> str:
    # Not `filename`: zipfile cuts it at a zero byte and changes separators.
    return "/".join(path_parts(entry.orig_filename))


def _find_problems(entries: list[zipfile.ZipInfo]) -> list[tuple[str, str]]:
    """Entries that could be written elsewhere, are no files, or collide; nothing is read yet."""
    problems: list[tuple[str, str]] = []
    spellings: dict[str, tuple[str, bool]] = {}
    for entry in entries:
        why = _refusal_reason(entry)
        parts = () if why else path_parts(entry.orig_filename)
        for number in range(1, len(parts) + 1):
            spelled = "/".join(parts[:number])
            is_folder = number < len(parts) or entry.is_dir()
            key, spelling = normalize("NFC", spelled).casefold(), (spelled, is_folder)
            if spellings.get(key, spelling) != spelling or (key in spellings and not is_folder):
                why = "another one has the same name, capitals aside; rename one of them"
            spellings.setdefault(key, spelling)
        if why:
            problems.append((visible(entry.orig_filename), why))
    return problems


def _refusal_reason(entry: zipfile.ZipInfo) -> str:
    try:
        parts = path_parts(entry.orig_filename)
    except ToolError as error:
        return error.message
    # The upper half is the mode on Unix, 0 if another system packed it.
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if not parts or kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "it is no file and no folder (a link or a device); pack the file itself"
    if entry.flag_bits & 0x1:
        return "it is encrypted; pack it without a password"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "it is packed in a way that is not read here; pack it with deflate"
    return ""


def unpack(files: Mapping[str, bytes], folder: Path) -> None:
    """Make a folder with these files, all or none; a folder with other files is replaced.

    Raises:
        OSError: it cannot be written.
    """
    if _has_same_files(folder, files):
        return
    fresh, old = (f".{kind}-{new_id()}" for kind in ("new", "old"))
    with closing(open_own_folder(folder.parent, create=True)) as above:
        try:
            with closing(above.folder((fresh,), create=True)) as new:
                for name, data in files.items():
                    _write_new(new, name, data)
            with suppress(FileNotFoundError):
                above.replace(folder.name, old)
            try:
                above.replace(fresh, folder.name)
            except OSError:  # another process unpacked the same files first
                if not _has_same_files(folder, files):
                    raise
        finally:
            for rest in (fresh, old):
                above.remove_tree(rest)


def _write_new(folder: Folder, name: str, data: bytes) -> None:
    *above, last = name.split("/")
    with (
        closing(folder.folder(above, create=True)) as below,
        os.fdopen(below.new_file(last, 0o666), "wb") as file,
    ):
        file.write(data)


def _has_same_files(folder: Path, files: Mapping[str, bytes]) -> bool:
    if not folder.is_dir() or folder.is_symlink():
        return False
    try:
        return read_folder(folder) == (files, frozenset())
    except UsageError:
        return False
