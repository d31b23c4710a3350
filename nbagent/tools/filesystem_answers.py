"""What `fs.read`, `fs.list` and `fs.search` answer, within what a model can take.

Owns the forms of the answers. Opening is `files`'; which calls are let through is `filesystem`'s.
"""

from __future__ import annotations

import base64
import importlib
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from nbagent.contracts.chat import ImagePart
from nbagent.contracts.errors import ToolError
from nbagent.contracts.records import ToolResult
from nbagent.files.mounts import FilePlace, Mounts
from nbagent.files.names import Parts, visible
from nbagent.files.opening import failure, patiently
from nbagent.files.searching import Globs, Order, search, walk
from nbagent.files.writing import read_bytes, sha_of_bytes
from nbagent.shown.pictures import encoded_image

_READ_CHARS = 40_000
"""Of one answer; more is cut at the end of a line, with a hint."""
_LEFT_OUT = "what rules of the person keep from you is left out"
_PREVIEW_CHARS = 20_000
_MOST_ENTRIES, _MOST_ENTRY_CHARS = 500, 40_000
_PROBE_BYTES = 8_192
_IMAGE_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")
_CODECS = ("utf-8", "utf-16", "latin-1", "cp1252", "base64")


class Hidden:
    """What is not there for a list or a search: what nbagent keeps, and what rules forbid."""

    def __init__(self, mounts: Mounts, place: FilePlace, forbidden: Callable[[str], bool]) -> None:
        self._mounts = mounts
        self._place = place
        self._closed = mounts.closed_below(place.mount)
        self._forbidden = forbidden
        self._parts: Parts | None = None
        self._folder = ""
        self.by_rules = 0
        """How many names rules left out."""

    def __call__(self, parts: Parts, name: str) -> bool:
        if parts != self._parts:
            self._parts = parts
            self._folder = self._mounts.form(replace(self._place, parts=parts))
        if self._closed and tuple(map(str.casefold, (*parts, name))) in self._closed:
            return True
        if not self._forbidden(f"{self._folder}/{name}"):
            return False
        self.by_rules += 1
        return True


@dataclass(frozen=True, slots=True)
class _File:
    """A file that was read: its size, its content as far as it may be read, and its hash."""

    place: FilePlace
    size: int
    data: bytes
    sha: str | None
    """None: there is more than may be read."""
    max_bytes: int

    def answer(self, **more: Any) -> dict[str, Any]:
        return {"path": self.place.text, "bytes": self.size, "sha256": self.sha, **more}

    def too_much(self) -> ToolError:
        return ToolError(
            f"{visible(self.place.text)} has {self.size:,} bytes, and {self.max_bytes:,} may be "
            "read at once; read a part of it with offset and limit, or find the place with "
            "fs.search",
            code="E_READ_LIMIT",
            details={"bytes": self.size, "maxBytes": self.max_bytes},
        )

    def behind_the_end(self, offset: int, size: int, unit: str) -> ToolError:
        return ToolError(
            f"{visible(self.place.text)} has {size:,} {unit}, and offset is {offset:,}; use a "
            "smaller one",
            code="E_INVALID_ARGUMENTS",
        )


def read_file(
    place: FilePlace, offset: int | None, limit: int | None, encoding: str, *, max_bytes: int
) -> dict[str, Any] | ToolResult:
    """The answer of `fs.read`.

    Raises:
        ToolError: the place is no file that may be read, or more was asked for than may be.
    """
    if (offset is not None and offset < 0) or (limit is not None and limit < 1):
        raise ToolError(
            "offset and limit must be positive: offset=1 is the first line",
            code="E_INVALID_ARGUMENTS",
        )
    codec = encoding.strip().lower()
    codec = {"utf8": "utf-8", "ascii": "utf-8", "iso-8859-1": "latin-1"}.get(codec, codec)
    if codec not in _CODECS:
        raise ToolError(
            f"there is no encoding {encoding[:40]!r} here; use one of: {', '.join(_CODECS)}",
            code="E_INVALID_ARGUMENTS",
        )
    try:
        descriptor = patiently(lambda: place.root.open_file(place.parts))
        try:
            # One byte more tells whether it is all, also of a file that grows.
            data = read_bytes(descriptor, most=max_bytes + 1)
            size = max(os.fstat(descriptor).st_size, len(data))
            if len(data) <= max_bytes:
                file = _File(place, len(data), data, sha_of_bytes(data), max_bytes)
            else:
                file = _File(place, size, data, None, max_bytes)
            if codec == "base64":
                return _bytes(file, descriptor, offset or 0, limit)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise failure(error, place.text) from None
    return _text(file, offset, limit, codec)


def _bytes(file: _File, descriptor: int, offset: int, limit: int | None) -> dict[str, Any]:
    if offset > file.size:
        raise file.behind_the_end(offset, file.size, "bytes")
    wanted = file.size - offset if limit is None else limit
    if wanted > file.max_bytes:
        raise file.too_much()
    os.lseek(descriptor, offset, os.SEEK_SET)
    data = read_bytes(descriptor, most=min(wanted, _READ_CHARS * 3 // 4))
    text = base64.b64encode(data).decode()
    end = offset + len(data)
    if end < file.size and len(data) < wanted:
        hint = f"bytes {offset:,} to {end:,} of {file.size:,}; go on with offset={end}"
        return file.answer(truncated=True, contentPreview=text, hint=hint)
    return file.answer(truncated=False, content=text)


def _text(
    file: _File, offset: int | None, limit: int | None, codec: str
) -> dict[str, Any] | ToolResult:
    whole = offset is None and limit is None
    if file.sha is None and whole:
        raise file.too_much()
    picture = _picture(file) if whole else None
    if picture is not None:
        return picture
    data = file.data
    if codec == "utf-8" and data.startswith((b"\xff\xfe", b"\xfe\xff")):
        codec = "utf-16"
    if _is_binary(data, codec):
        return file.answer(
            truncated=True,
            contentPreview=f"binary, begins with {data[:32].hex(' ')}",
            hint="this is no text; read its bytes with encoding='base64', or use a program for it",
        )
    return _lines(file, data.decode(codec, "replace"), first=max(offset or 1, 1), limit=limit)


def _lines(file: _File, text: str, *, first: int, limit: int | None) -> dict[str, Any]:
    # Lines end at \n alone, as in every editor and in fs.search.
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    last = len(lines) if limit is None else min(first - 1 + limit, len(lines))
    if file.sha is None and (last >= len(lines) or first > last):
        raise file.too_much()  # The last line that was read may go on.
    if first > max(len(lines), 1):
        raise file.behind_the_end(first, len(lines), "lines")
    of = "more" if file.sha is None else f"{len(lines):,}"
    content = "".join(lines[first - 1 : last])
    if len(content) <= _READ_CHARS:
        more = f"lines {first:,} to {last:,} of {of}; go on with offset={last + 1}"
        return file.answer(
            truncated=False, content=content, **({"hint": more} if last < len(lines) else {})
        )
    shown = content[: content.rfind("\n", 0, _PREVIEW_CHARS) + 1]
    end = first - 1 + shown.count("\n")
    hint = (
        f"lines {first:,} to {end:,} of {of} are shown; go on with offset={end + 1} and a limit, "
        "or find the place with fs.search"
    )
    if not shown:
        shown = content[:_PREVIEW_CHARS]
        hint = (
            f"line {first:,} has {len(lines[first - 1]):,} characters, the first "
            f"{_PREVIEW_CHARS:,} are shown; read a part of its bytes with encoding='base64', "
            "offset and limit"
        )
    return file.answer(truncated=True, contentPreview=shown, hint=hint)


def _is_binary(data: bytes, codec: str) -> bool:
    if codec == "utf-16":
        return False
    probe = data[:_PROBE_BYTES]
    if b"\0" in probe:
        return True
    if codec != "utf-8":
        return False
    text = probe.decode("utf-8", "replace")
    odd = sum(char == "\ufffd" or (char < " " and char not in "\t\n\r\f\x1b\b") for char in text)
    return odd * 10 > len(text)


def _picture(file: _File) -> ToolResult | dict[str, Any] | None:
    """A picture for models that see; None when it is none."""
    data = file.data
    if not data.startswith(_IMAGE_STARTS) and data[8:12] != b"WEBP":
        return None
    with suppress(ImportError):
        importlib.import_module("PIL.Image")  # Where it is there, it makes the picture smaller.
    part = encoded_image(data)
    if isinstance(part, ImagePart):
        answer = file.answer(truncated=False, content=f"[{part.alt}: attached]")
        return ToolResult(ok=True, data=answer, attachments=(part,))
    if part is None:
        return None
    hint = "the picture cannot be shown; make a smaller one of it first"
    return file.answer(truncated=True, contentPreview=part, hint=hint)


def search_files(place: FilePlace, order: Order, hidden: Hidden) -> dict[str, Any]:
    """The answer of `fs.search`.

    Raises:
        ToolError: the query is none, or the place cannot be opened.
    """
    found = search(place, order)
    stats = {"filesScanned": found.files_scanned, "matchesFound": found.matches_found}
    if found.files_skipped:
        stats["filesSkipped"] = found.files_skipped
    matches = [{**asdict(match), "path": visible(match.path)} for match in found.matches]
    answer = {"matches": matches, "truncated": bool(found.why_cut), "stats": stats}
    hint = found.why_cut or (_LEFT_OUT if hidden.by_rules else "")
    return {**answer, "hint": hint} if hint else answer


def list_folder(
    place: FilePlace,
    *,
    glob: str | None,
    depth: int,
    sizes: bool,
    timeout_s: float,
    hidden: Hidden,
) -> dict[str, Any]:
    """The answer of `fs.list`. Ignored folders are named and not gone into.

    Raises:
        ToolError: the place is no folder that can be opened.
    """
    globs = Globs(glob) if glob else None
    entries: list[str] = []
    bytes_of: dict[str, int] = {}
    cut, left_chars, until_s = "", _MOST_ENTRY_CHARS, time.monotonic() + timeout_s
    try:
        for level in walk(place, depth=depth, hides=hidden):
            below = "".join(f"{part}/" for part in level.parts[len(place.parts) :])
            for entry in level.entries:
                name = f"{below}{entry.name}{'/' if entry.kind == 'folder' else ''}"
                if globs is not None and not globs.fit(name):
                    continue
                left_chars -= len(name)
                if len(entries) >= _MOST_ENTRIES or left_chars < 0:
                    cut = f"the first {len(entries):,} are shown"
                    break
                entries.append(visible(name))
                if sizes and entry.kind == "file":
                    with suppress(OSError):  # It may be gone by now.
                        bytes_of[entries[-1]] = level.folder.look(entry.name).st_size
            if not cut and time.monotonic() > until_s:
                cut = f"{timeout_s:g} s were up"
            if cut:
                break
    except NotADirectoryError as error:
        with suppress(OSError):
            os.close(place.root.open_file(place.parts))
            raise ToolError(
                f"{visible(place.text)} is a file; read it with fs.read, or list its folder",
                code="E_PRECONDITION_FAILED",
            ) from None
        raise failure(error, place.text) from None
    except OSError as error:
        raise failure(error, place.text) from None
    answer = {"path": place.text, "entriesPreview" if cut else "entries": entries}
    answer |= {"sizes": bytes_of} if sizes else {}
    hint = f"{cut}; list a folder in it, less deep, or use a glob" if cut else ""
    hint = hint or (_LEFT_OUT if hidden.by_rules else "")
    return {**answer, "truncated": bool(cut), **({"hint": hint} if hint else {})}
