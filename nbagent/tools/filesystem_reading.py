"""What `fs.read`, `fs.list` and `fs.search` answer, within what a model can take.

Owns the forms of the answers. Opening is `files`'; which calls are let through is `filesystem`'s.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.chat import ImagePart
from nbagent.contracts.errors import ToolError
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact_json
from nbagent.files.mounts import FilePlace, Keeper, Mounts, failure
from nbagent.files.names import visible
from nbagent.files.opening import patiently
from nbagent.files.searching import SearchResult
from nbagent.files.walking import Entry, Globs, Level, walk
from nbagent.files.writing import read_bytes, sha_of_file
from nbagent.shown.budgets import IMAGE_BYTES, IMAGE_SIDE_PX
from nbagent.shown.pictures import encoded_image

READ_CHARS = 40_000
"""Of one answer; more is cut at the end of a line, with a hint."""
LEFT_OUT = "what rules of the person keep from you is left out"
_PREVIEW_CHARS = 20_000
_MOST_ENTRIES = 500
_PROBE_BYTES = 8_192
_IMAGE_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")
_CODECS = {
    "utf-8": "utf-8",
    "utf8": "utf-8",
    "utf-16": "utf-16",
    "latin-1": "latin-1",
    "iso-8859-1": "latin-1",
    "cp1252": "cp1252",
    "windows-1252": "cp1252",
    "ascii": "utf-8",
}


@dataclass(frozen=True, slots=True)
class _File:
    """An open file, its size, and what the answer says first."""

    place: FilePlace
    descriptor: int
    size: int
    max_bytes: int

    def answer(self, sha256: str | None, **more: Any) -> dict[str, Any]:
        return {"path": self.place.text, "bytes": self.size, "sha256": sha256, **more}


def read(
    mounts: Mounts,
    place: FilePlace,
    *,
    offset: int | None,
    limit: int | None,
    encoding: str,
    max_bytes: int,
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
    codec = encoding.strip().lower().replace("_", "-")
    if codec != "base64" and codec not in _CODECS:
        known = "utf-8, utf-16, latin-1, cp1252, base64"
        raise ToolError(
            f"there is no encoding {encoding[:40]!r} here; use one of: {known}",
            code="E_INVALID_ARGUMENTS",
        )
    root = mounts.root(place.mount)
    try:
        descriptor = patiently(lambda: root.open_file(place.parts or (".",)))
        try:
            file = _File(place, descriptor, os.fstat(descriptor).st_size, max_bytes)
            if codec == "base64":
                return _bytes(file, offset or 0, limit)
            return _text(file, offset, limit, _CODECS[codec])
        finally:
            os.close(descriptor)
    except OSError as error:
        raise failure(error, place, root) from None


def _too_much(file: _File) -> ToolError:
    return ToolError(
        f"{visible(file.place.text)} has {file.size:,} bytes, and {file.max_bytes:,} may be read "
        "at once; read a part of it with offset and limit, or find the place with fs.search",
        code="E_READ_LIMIT",
        details={"bytes": file.size, "maxBytes": file.max_bytes},
    )


def _bytes(file: _File, offset: int, limit: int | None) -> dict[str, Any]:
    if offset > file.size:
        raise ToolError(
            f"{visible(file.place.text)} has {file.size:,} bytes, and offset is {offset:,}; use a "
            "smaller one",
            code="E_INVALID_ARGUMENTS",
        )
    wanted = file.size - offset if limit is None else limit
    if wanted > file.max_bytes:
        raise _too_much(file)
    os.lseek(file.descriptor, offset, os.SEEK_SET)
    most = min(wanted, READ_CHARS * 3 // 4)
    data = read_bytes(file.descriptor, most=most)
    sha = sha_of_file(file.descriptor) if file.size <= file.max_bytes else None
    text = base64.b64encode(data).decode()
    end = offset + len(data)
    if end < file.size and len(data) < wanted:
        hint = f"bytes {offset:,} to {end:,} of {file.size:,}; go on with offset={end}"
        return file.answer(sha, truncated=True, contentPreview=text, hint=hint)
    return file.answer(sha, truncated=False, content=text)


def _text(
    file: _File, offset: int | None, limit: int | None, codec: str
) -> dict[str, Any] | ToolResult:
    whole = offset is None and limit is None
    if file.size > file.max_bytes and whole:
        raise _too_much(file)
    data = read_bytes(file.descriptor, most=file.max_bytes + 1)
    complete = len(data) <= file.max_bytes
    if complete:
        # It may have grown or shrunk since it was opened: the answer is about these bytes.
        file = _File(file.place, file.descriptor, len(data), file.max_bytes)
    sha = hashlib.sha256(data).hexdigest() if complete else None
    picture = _picture(file, data, sha) if whole else None
    if picture is not None:
        return picture
    if codec == "utf-8" and data.startswith((b"\xff\xfe", b"\xfe\xff")):
        codec = "utf-16"
    if _is_binary(data, codec):
        return file.answer(
            sha,
            truncated=True,
            contentPreview=f"binary, begins with {data[:32].hex(' ')}",
            hint="this is no text; read its bytes with encoding='base64', or use a program for it",
        )
    text = data.decode(codec, "replace")
    return _lines(file, sha, text, first=max(offset or 1, 1), limit=limit, complete=complete)


def _lines(
    file: _File, sha: str | None, text: str, *, first: int, limit: int | None, complete: bool
) -> dict[str, Any]:
    # Lines end at \n alone, as in every editor and in fs.search.
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    if first > max(len(lines), 1):
        if not complete:
            raise _too_much(file)
        raise ToolError(
            f"{visible(file.place.text)} has {len(lines):,} lines, and offset is {first:,}; use a "
            "smaller one",
            code="E_INVALID_ARGUMENTS",
        )
    wanted = lines[first - 1 :] if limit is None else lines[first - 1 : first - 1 + limit]
    content = "".join(wanted)
    last = first - 1 + len(wanted)
    if not complete and last >= len(lines):
        raise _too_much(file)
    of = f"{len(lines):,}" if complete else "more"
    if len(content) <= READ_CHARS:
        answer = file.answer(sha, truncated=False, content=content)
        if last < len(lines):
            answer["hint"] = f"lines {first:,} to {last:,} of {of}; go on with offset={last + 1}"
        return answer
    shown, size = 0, 0
    for line in wanted:
        if size + len(line) > _PREVIEW_CHARS and shown:
            break
        size += len(line)
        shown += 1
    preview = "".join(wanted[:shown])
    hint = (
        f"lines {first:,} to {first - 1 + shown:,} of {of} are shown; go on with "
        f"offset={first + shown} and a limit, or find the place with fs.search"
    )
    if len(preview) > READ_CHARS:
        preview = preview[:_PREVIEW_CHARS]
        hint = (
            f"line {first:,} has {size:,} characters, the first {_PREVIEW_CHARS:,} are shown; read "
            "a part of its bytes with encoding='base64', offset and limit"
        )
    return file.answer(sha, truncated=True, contentPreview=preview, hint=hint)


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


def _picture(file: _File, data: bytes, sha: str | None) -> ToolResult | dict[str, Any] | None:
    """A picture for models that see; None when it is none."""
    if not data.startswith(_IMAGE_STARTS) and data[8:12] != b"WEBP":
        return None
    if len(data) > IMAGE_BYTES or _is_wide(data):
        # Where Pillow is there, it makes the picture smaller.
        with suppress(ImportError):
            importlib.import_module("PIL.Image")
    part = encoded_image(data)
    if isinstance(part, ImagePart):
        answer = file.answer(sha, truncated=False, content=f"[{part.alt}: attached]")
        return ToolResult(ok=True, data=redact_json(answer), attachments=(part,))
    if part is None:
        return None
    hint = "the picture cannot be shown; make a smaller one of it first"
    return file.answer(sha, truncated=True, contentPreview=part, hint=hint)


def _is_wide(data: bytes) -> bool:
    """Whether a PNG says that it has more pixels than are sent."""
    sides = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    return data.startswith(b"\x89PNG") and max(sides) > IMAGE_SIDE_PX


def search_answer(found: SearchResult) -> dict[str, Any]:
    """The answer of `fs.search`."""
    stats = {"filesScanned": found.files_scanned, "matchesFound": found.matches_found}
    if found.files_skipped:
        stats["filesSkipped"] = found.files_skipped
    answer: dict[str, Any] = {
        "matches": [
            {
                "path": visible(match.path),
                "line": match.line,
                "column": match.column,
                "text": match.text,
                "before": match.before,
                "after": match.after,
            }
            for match in found.matches
        ],
        "truncated": bool(found.why_cut),
        "stats": stats,
    }
    if found.why_cut or found.left_out:
        answer["hint"] = found.why_cut or LEFT_OUT
    return answer


def list_folder(
    mounts: Mounts,
    place: FilePlace,
    *,
    glob: str | None,
    depth: int,
    timeout_s: float,
    forbids: Callable[[str], bool] | None = None,
) -> dict[str, Any]:
    """The answer of `fs.list`. Ignored folders are named and not gone into, forbidden ones are not.

    Raises:
        ToolError: the place is no folder that can be opened.
    """
    globs = Globs(glob) if glob else None
    root = mounts.root(place.mount)
    entries: list[dict[str, Any]] = []
    cut = ""
    until = time.monotonic() + timeout_s
    keeper = None if forbids is None else Keeper(mounts, place.mount, forbids)
    skip = mounts.skipped_below(place)
    try:
        for level in walk(root, place.parts, depth=depth, skip=skip, keeper=keeper):
            below = "".join(f"{part}/" for part in level.parts[len(place.parts) :])
            for entry in level.entries:
                name = f"{below}{entry.name}"
                if globs is not None and not globs.fit(_globbed(name, entry)):
                    continue
                if len(entries) >= _MOST_ENTRIES:
                    cut = f"the first {len(entries):,} are shown"
                    break
                entries.append(_described(level, entry, name))
            if not cut and time.monotonic() > until:
                cut = f"{timeout_s:g} s were up"
            if cut:
                break
    except NotADirectoryError as error:
        raise _no_folder(mounts, place) or failure(error, place, root) from None
    except OSError as error:
        raise failure(error, place, root) from None
    if not cut:
        kept = {"hint": LEFT_OUT} if keeper is not None and keeper.left_out else {}
        return {"path": place.text, "entries": entries, **kept}
    hint = f"{cut}; list a folder in it, less deep, or use a glob"
    return {"path": place.text, "entriesPreview": entries, "truncated": True, "hint": hint}


def _globbed(name: str, entry: Entry) -> str:
    return f"{name}/" if entry.kind == "folder" else name


def _described(level: Level, entry: Entry, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": visible(name), "kind": entry.kind}
    if entry.kind == "file":
        with suppress(OSError):  # It may be gone by now.
            found["bytes"] = level.folder.look(entry.name).st_size
    return found


def _no_folder(mounts: Mounts, place: FilePlace) -> ToolError | None:
    """The error for a file that was to be listed; None when it is no file."""
    try:
        os.close(mounts.root(place.mount).open_file(place.parts))
    except (OSError, ToolError):
        return None
    message = f"{visible(place.text)} is a file; read it with fs.read, or list its folder"
    return ToolError(message, code="E_PRECONDITION_FAILED")
