"""The files of a package: from its folder, or from a zip that is unpacked into a cache.

Owns the bounds, the names that are refused, and the hash of the whole. What stands in the files is
`package`'s.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
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
        if not any(os.path.lexists(real / name) for name in MAIN_FILES):
            raise refuse(path, [_no_main_file()])  # Before a whole home folder is read.
        files, links = _files_of_folder(path, real)
        source = Source(path=path, root=real, name=real.name, files=files, links=links)
    elif real.is_file():
        source = _unpacked(path, real, cache)
    else:
        why = "there is no such folder or zip; write the path of a folder with workflow.md in it"
        raise refuse(path, [Fault("", None, why)])
    if not any(file in source.files or file in source.links for file in MAIN_FILES):
        raise refuse(path, [_no_main_file()])
    return source


def _no_main_file() -> Fault:
    why = "it has neither workflow.md nor SKILL.md; name the folder that has one, or write one"
    return Fault("", None, why)


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
        why = f"it cannot be read ({error.strerror}); let this user read its files"
        raise refuse(path, [Fault("", None, why)]) from None
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
    if real.stat().st_size > _MOST_BYTES:
        raise refuse(path, [Fault("", None, _TOO_LARGE)])
    if not zipfile.is_zipfile(real):
        why = "it is neither a folder nor a zip; write the path of the package's folder or zip"
        raise refuse(path, [Fault("", None, why)])
    files = _files_of_zip(path, real)
    top = {name.partition("/")[0] for name in files}
    only = top.pop() if len(top) == 1 and not any(name in files for name in MAIN_FILES) else ""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        home = Path(os.path.realpath(cache))
        folder = _in_cache(files, home / sha256_hex(real.read_bytes()))
    except OSError as error:
        where = visible(without_folders(str(cache)))
        why = f"it cannot be unpacked into {where} ({error.strerror}); make room or rights there"
        raise refuse(path, [Fault("", None, why)]) from None
    return Source(
        path=path,
        root=folder / only,
        name=only or path.stem,
        files={name.removeprefix(f"{only}/"): data for name, data in files.items()},
    )


def _files_of_zip(path: Path, real: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(real) as archive:
            entries = archive.infolist()
            if len(entries) > 2 * _MOST_FILES:  # Folders count too.
                raise refuse(path, [Fault("", None, _TOO_MANY)])
            faults = _faults_of_entries(entries)
            if faults:
                raise refuse(path, faults)
            wanted = [one for one in entries if not one.is_dir()]
            wanted = [one for one in wanted if not _LEFT_OUT & {*_name(one).split("/")}]
            if len(wanted) > _MOST_FILES:
                raise refuse(path, [Fault("", None, _TOO_MANY)])
            files: dict[str, bytes] = {}
            left = _MOST_BYTES
            for entry in wanted:
                data = _read_entry(archive, entry, left)
                if len(data) > left:
                    raise refuse(path, [Fault(_name(entry), None, _TOO_LARGE)])
                left -= len(data)
                files[_name(entry)] = data
            return files
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
        why = f"the zip is damaged ({visible(str(error))}); pack it anew"
        raise refuse(path, [Fault("", None, why)]) from None


def _name(entry: zipfile.ZipInfo) -> str:
    return "/".join(path_parts(entry.orig_filename))


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
    """At most a little more than `most` bytes, whatever the header says."""
    data = bytearray()
    with archive.open(entry) as file:
        while len(data) <= most and (chunk := file.read(_CHUNK_BYTES)):
            data += chunk
    return bytes(data)


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
