"""Reads the files of a package from its folder, or from a zip that is unpacked into a cache.

Safe reading and unpacking are in `files.folders`; the content of the files is read in `package`.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from nbagent.contracts.canonical import sha256_hex, sha_of
from nbagent.contracts.errors import UsageError
from nbagent.contracts.nearest import nearest_name
from nbagent.files.folders import MAX_BYTES, TOO_LARGE, read_folder, read_zip, unpack
from nbagent.files.names import visible
from nbagent.shown.texts import without_folders
from nbagent.workflow.graph import PackageError, Problem

T = TypeVar("T")
MAIN_FILES = ("workflow.md", "SKILL.md")
MAX_TEXT_BYTES = 200_000
"""Largest text file of a package: rules, a graph, a step, an agent."""
_MAX_PROBLEMS = 100
_MAX_BESIDE = 1_000
_ZIP_SUFFIXES = (".zip", ".bmad")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of a package, read once, so that checks and hash see the same bytes."""

    path: Path
    """Absolute path as the person named it."""
    root: Path
    """Folder with its files, links resolved."""
    name: str
    """Name of the folder or the zip."""
    files: Mapping[str, bytes]
    links: frozenset[str] = frozenset()
    """Paths that are links. They are not followed: they could lead out of the package."""

    @property
    def sha256(self) -> str:
        """Hash of the names and bytes of all files."""
        return sha_of([[name, sha256_hex(self.files[name])] for name in sorted(self.files)])

    def text(self, file: str, problems: list[Problem]) -> str | None:
        """Return a file as text; None, with a problem, if that fails."""
        if file in self.files:
            return decode_text(self.files[file], file, problems)
        problems.append(Problem(file, None, self.why_missing(file)))
        return None

    def why_missing(self, file: str) -> str:
        """Explain why a required file is not among the files."""
        parts = file.split("/")
        if any("/".join(parts[:n]) in self.links for n in range(1, len(parts) + 1)):
            return f"{visible(file)} is a link or lies behind one; put the file itself there"
        return f"there is no file {visible(file)} in the package; add it, or correct the path"


def decode_text(data: bytes, file: str, problems: list[Problem]) -> str | None:
    """Decode bytes as text with `\\n` line ends; None, with a problem, if they are not text."""
    if len(data) > MAX_TEXT_BYTES:
        why = f"it has more than {MAX_TEXT_BYTES:,} bytes; shorten or split it"
        problems.append(Problem(file, None, why))
        return None
    try:
        # Editors on Windows write a byte order mark.
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        problems.append(Problem(file, None, "it is not UTF-8 text; save it so"))
        return None


def package_error(path: Path, *problems: Problem | str) -> PackageError:
    """Make the error for these problems, at most _MAX_PROBLEMS; a text is about the package."""
    shown = tuple(
        Problem("", None, problem) if isinstance(problem, str) else problem for problem in problems
    )
    shown = shown[:_MAX_PROBLEMS]
    if len(problems) > _MAX_PROBLEMS:
        shown += (Problem("", None, f"and {len(problems) - _MAX_PROBLEMS:,} more like these"),)
    return PackageError(f"the package {visible(without_folders(str(path)))!r}", shown)


def read_source(path: Path, cache: Path) -> Source:
    """Read all files of a package; a zip is unpacked into a folder of `cache`.

    Raises:
        PackageError: it does not exist, or cannot be read safely.
    """
    real = Path(os.path.realpath(path))
    if real.is_dir():
        # Checked first: if a person names a home folder by mistake, it is not read completely.
        _check_main_file(path, [name for name in MAIN_FILES if os.path.lexists(real / name)])
        files, links = _with_package_error(path, lambda: read_folder(real))
        return Source(path=path, root=real, name=real.name, files=files, links=links)
    if real.is_file():
        return _read_zip_source(path, real, cache)
    raise package_error(
        path,
        f"there is no such folder or zip{_nearest_package(path)}; "
        "name a folder with workflow.md in it",
    )


def _nearest_package(path: Path) -> str:
    """Suggest the package beside a missing one that has the most similar name."""
    try:
        beside = [
            entry.name
            for entry in islice(os.scandir(path.parent), _MAX_BESIDE)
            if entry.name.endswith(_ZIP_SUFFIXES)
            or any(os.path.lexists(Path(entry) / name) for name in MAIN_FILES)
        ]
    except OSError:
        return ""
    near = nearest_name(path.name, beside)
    return f" (did you mean {visible(near)!r}?)" if near else ""


def _check_main_file(path: Path, names: Collection[str]) -> None:
    if not any(name in names for name in MAIN_FILES):
        why = "it has neither workflow.md nor SKILL.md; name the folder that has one, or write one"
        raise package_error(path, why)


def _with_package_error(path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except UsageError as error:
        problems: list[Any] = error.details["problems"]
        raise package_error(path, *(Problem(name, None, why) for name, why in problems)) from None


def _read_zip_source(path: Path, real: Path, cache: Path) -> Source:
    """Read a zip's files and unpack them into the cache."""
    try:
        with open(real, "rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise package_error(
            path, f"it cannot be read ({error.strerror}); let this user read it"
        ) from None
    if len(data) > MAX_BYTES:
        raise package_error(path, TOO_LARGE)
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise package_error(
            path, "it is neither a folder nor a zip; name the package's folder or zip"
        )
    packed_files = _with_package_error(path, lambda: read_zip(data))
    top = {name.partition("/")[0] for name in packed_files}
    # Programs that pack a folder usually put the folder itself into the zip.
    only = (
        top.pop() if len(top) == 1 and not any(name in packed_files for name in MAIN_FILES) else ""
    )
    files = {name.removeprefix(f"{only}/"): content for name, content in packed_files.items()}
    _check_main_file(path, files)
    try:
        # By its content: a changed zip never meets files of its earlier version.
        folder = cache / sha256_hex(data)
        unpack(packed_files, folder)
    except OSError as error:
        where = visible(without_folders(str(cache)))
        why = f"it cannot be unpacked into {where} ({error.strerror}); free space or rights there"
        raise package_error(path, why) from None
    return Source(path=path, root=folder / only, name=only or path.stem, files=files)
