"""The files of a package: from its folder, or from a zip that is unpacked into a cache.

Owns the bounds, the names that are refused, and the hash of the whole. What stands in the files is
`package`'s.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

from nbagent.contracts.canonical import new_id, sha256_hex, sha_of
from nbagent.contracts.errors import ToolError
from nbagent.files.names import path_parts, visible
from nbagent.files.opening import Folder, open_root
from nbagent.files.writing import read_bytes
from nbagent.shown.texts import without_folders
from nbagent.workflow.graph import Fault, PackageError

MAIN_FILES = ("workflow.md", "SKILL.md")
_MOST_FILES = 5_000
_MOST_BYTES = 64 << 20
_MOST_TEXT_BYTES = 1 << 20
_MOST_FAULTS = 100
_DEEPEST = 32
_CHUNK_BYTES = 1 << 16
_LEFT_OUT = frozenset({"__pycache__", "__MACOSX", ".git", ".DS_Store"})
"""What programs put beside the files of a package; it is no part of it."""
_TOO_MANY = f"it has more than {_MOST_FILES:,} files; take out what the steps do not need"
_TOO_LARGE = f"it has more than {_MOST_BYTES >> 20} MB; take out what the steps do not need"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of a package as they were read, all at one time."""

    path: Path
    """As a person gave it, absolute."""
    root: Path
    """The folder with its files, links resolved."""
    name: str
    """Of the folder or the zip."""
    files: Mapping[str, bytes]
    links: frozenset[str] = frozenset()
    """What is a link and was not followed."""

    @property
    def sha256(self) -> str:
        """Of the names and bytes of all files."""
        return _sha_of_files(self.files)

    def text(self, file: str, faults: list[Fault]) -> str | None:
        """A file as text with `\\n` as line ends; None, with a fault, where it is none."""
        data = self.files.get(file)
        if data is None:
            faults.append(Fault(file, None, self.why_missing(file)))
        elif len(data) > _MOST_TEXT_BYTES:
            why = f"it has more than {_MOST_TEXT_BYTES >> 20} MB; split it"
            faults.append(Fault(file, None, why))
        else:
            try:
                return data.decode("utf-8-sig").replace("\r\n", "\n")
            except UnicodeDecodeError:
                faults.append(Fault(file, None, "it is not UTF-8 text; save it so"))
        return None

    def why_missing(self, file: str) -> str:
        """What to say of a file that is needed and not among the files."""
        parts = file.split("/")
        if any("/".join(parts[:n]) in self.links for n in range(1, len(parts) + 1)):
            return f"{visible(file)} is a link or lies behind one; put the file itself there"
        return f"there is no file {visible(file)} in the package; add it, or correct the path"


def refuse(path: Path, faults: list[Fault]) -> PackageError:
    """The error with all faults; of very many the first ones."""
    shown = tuple(faults[:_MOST_FAULTS])
    if len(faults) > _MOST_FAULTS:
        shown += (Fault("", None, f"and {len(faults) - _MOST_FAULTS:,} more like these"),)
    return PackageError(f"the package {visible(without_folders(str(path)))!r}", shown)


def read_source(path: Path, cache: Path) -> Source:
    """Read all files of a package; a zip is unpacked into a folder of `cache`.

    Raises:
        PackageError: there is none, or it cannot be read safely.
    """
    real = Path(os.path.realpath(path))
    if real.is_dir():
        # At first: somebody may name a whole home folder.
        _check_main_file(path, [name for name in MAIN_FILES if os.path.lexists(real / name)])
        files, links = _files_of_folder(path, real)
        return Source(path=path, root=real, name=real.name, files=files, links=links)
    if real.is_file():
        return _unpacked(path, real, cache)
    why = "there is no such folder or zip; write the path of a folder with workflow.md in it"
    raise refuse(path, [Fault("", None, why)])


def _check_main_file(path: Path, names: Collection[str]) -> None:
    if not any(name in names for name in MAIN_FILES):
        why = "it has neither workflow.md nor SKILL.md; name the folder that has one, or write one"
        raise refuse(path, [Fault("", None, why)])


def _unreadable(path: Path, error: OSError) -> PackageError:
    why = f"it cannot be read ({error.strerror}); let this user read its files"
    return refuse(path, [Fault("", None, why)])


def _sha_of_files(files: Mapping[str, bytes]) -> str:
    return sha_of([[name, sha256_hex(files[name])] for name in sorted(files)])


def _files_of_folder(path: Path, root: Path) -> tuple[dict[str, bytes], frozenset[str]]:
    """Its files, and the links in it, which are not followed."""
    files: dict[str, bytes] = {}
    links: set[str] = set()
    left = _MOST_BYTES
    try:
        with closing(open_root(root)) as folder:
            for name, data in _walk(folder, ""):
                if data is None:
                    links.add(name)
                    continue
                files[name] = data
                left -= len(data)
                if left < 0 or len(files) > _MOST_FILES:
                    raise refuse(path, [Fault("", None, _TOO_LARGE if left < 0 else _TOO_MANY)])
    except OSError as error:
        raise _unreadable(path, error) from None
    return files, frozenset(links)


def _walk(folder: Folder, above: str) -> Iterator[tuple[str, bytes | None]]:
    """Names and bytes; None for what is a link or no regular file."""
    if above.count("/") > _DEEPEST:
        raise OSError(errno.ELOOP, "its folders are too deep")
    for entry in folder.scan():
        name = above + entry.name
        if entry.name in _LEFT_OUT:
            continue
        if entry.is_dir(follow_symlinks=False):
            with closing(folder.folder((entry.name,))) as below:
                yield from _walk(below, f"{name}/")
        elif entry.is_file(follow_symlinks=False):
            descriptor = folder.open_file((entry.name,))
            try:
                yield name, read_bytes(descriptor, most=_MOST_BYTES + 1)
            finally:
                os.close(descriptor)
        else:
            yield name, None


def _unpacked(path: Path, real: Path, cache: Path) -> Source:
    """A zip's files, which stand in the cache afterwards as well."""
    try:
        with open(real, "rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(data) > _MOST_BYTES:
        raise refuse(path, [Fault("", None, _TOO_LARGE)])
    if not zipfile.is_zipfile(io.BytesIO(data)):
        why = "it is neither a folder nor a zip; write the path of the package's folder or zip"
        raise refuse(path, [Fault("", None, why)])
    packed = _files_of_zip(path, data)
    top = {name.partition("/")[0] for name in packed}
    only = top.pop() if len(top) == 1 and not any(name in packed for name in MAIN_FILES) else ""
    files = {name.removeprefix(f"{only}/"): content for name, content in packed.items()}
    _check_main_file(path, files)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        folder = _in_cache(packed, Path(os.path.realpath(cache)) / sha256_hex(data))
    except OSError as error:
        where = visible(without_folders(str(cache)))
        why = f"it cannot be unpacked into {where} ({error.strerror}); make room or rights there"
        raise refuse(path, [Fault("", None, why)]) from None
    return Source(path=path, root=folder / only, name=only or path.stem, files=files)


def _files_of_zip(path: Path, data: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            faults = _faults_of_entries(entries[: 2 * _MOST_FILES])
            if faults:
                raise refuse(path, faults)
            wanted = {
                name: entry
                for entry in entries[: 2 * _MOST_FILES]
                if not entry.is_dir() and not _LEFT_OUT & {*(name := _name(entry)).split("/")}
            }
            if len(wanted) > _MOST_FILES or len(entries) > 2 * _MOST_FILES:
                raise refuse(path, [Fault("", None, _TOO_MANY)])
            return _unzipped(path, archive, wanted)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
        why = f"the zip is damaged ({visible(str(error))}); pack it anew"
        raise refuse(path, [Fault("", None, why)]) from None


def _unzipped(
    path: Path, archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo]
) -> dict[str, bytes]:
    """Counted while it is read, whatever the headers say."""
    files: dict[str, bytes] = {}
    left = _MOST_BYTES
    for name, entry in entries.items():
        content = bytearray()
        with archive.open(entry) as file:
            while chunk := file.read(_CHUNK_BYTES):
                content += chunk
                left -= len(chunk)
                if left < 0:
                    raise refuse(path, [Fault(name, None, _TOO_LARGE)])
        files[name] = bytes(content)
    return files


def _name(entry: zipfile.ZipInfo) -> str:
    return "/".join(path_parts(entry.orig_filename))


def _faults_of_entries(entries: list[zipfile.ZipInfo]) -> list[Fault]:
    """What could land elsewhere, be no file, or take another's place; nothing is read yet."""
    faults: list[Fault] = []
    seen: dict[str, tuple[str, bool]] = {}
    for entry in entries:
        why = _why_not(entry)
        parts = () if why else path_parts(entry.orig_filename)
        for number in range(1, len(parts) + 1):
            spelled = "/".join(parts[:number])
            is_folder = number < len(parts) or entry.is_dir()
            key, place = normalize("NFC", spelled).casefold(), (spelled, is_folder)
            if seen.get(key, place) != place or (key in seen and not is_folder):
                why = "another one has the same name, capitals aside; rename one of them"
            seen.setdefault(key, place)
        if why:
            faults.append(Fault(visible(entry.orig_filename), None, why))
    return faults


def _why_not(entry: zipfile.ZipInfo) -> str:
    try:
        parts = path_parts(entry.orig_filename)
    except ToolError as error:
        return error.message
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if not parts or kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "it is no file and no folder (a link or a device); pack the file itself"
    if entry.flag_bits & 0x1:
        return "it is encrypted; pack it without a password"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "it is packed in a way that is not read here; pack it with deflate"
    return ""


def _in_cache(files: Mapping[str, bytes], folder: Path) -> Path:
    """The folder with these files, made at once or not at all; one that was changed is replaced."""
    if _holds(folder, files):
        return folder
    fresh, old = (folder.with_name(f".{kind}-{new_id()}") for kind in ("new", "old"))
    try:
        for name, data in files.items():
            file = fresh / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        if os.path.lexists(folder):
            folder.rename(old)
        try:
            fresh.rename(folder)
        except OSError:  # Another process was faster.
            if not _holds(folder, files):
                raise
    finally:
        for rest in (fresh, old):
            shutil.rmtree(rest, ignore_errors=True)
    return folder


def _holds(folder: Path, files: Mapping[str, bytes]) -> bool:
    if not folder.is_dir() or folder.is_symlink():
        return False
    try:
        return _files_of_folder(folder, folder) == (files, frozenset())
    except PackageError:
        return False
