"""What `fs.read`, `fs.list` and `fs.search` answer, within what a model can take.

Owns the forms of the answers; what cannot be looked at is a ToolError. Opening is `files`'; which
calls are let through is `filesystem`'s.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import Any

from nbagent.contracts.errors import ToolError
from nbagent.contracts.messages import ImagePart
from nbagent.contracts.records import ToolResult
from nbagent.files.mounts import FilePlace
from nbagent.files.names import visible
from nbagent.files.opening import failure
from nbagent.files.searching import Order, search
from nbagent.files.walking import Globs, Hides, walk
from nbagent.files.writing import read_bytes, sha_of_bytes
from nbagent.shown.images import encoded_image, load_pillow

_READ_CHARS = 40_000
"""Of one answer; more is cut at the end of a line, with a hint."""
_PREVIEW_CHARS = 20_000
_MOST_ENTRIES, _MOST_ENTRY_CHARS = 500, 40_000
_PROBE_BYTES = 8_192
_IMAGE_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")


def read_file(
    place: FilePlace, offset: int | None, limit: int | None, encoding: str, *, max_bytes: int
) -> ToolResult:
    try:
        descriptor = place.root.open_file(place.parts)
        try:
            # One byte more tells whether it is all, also of a file that grows.
            data = read_bytes(descriptor, most=max_bytes + 1)
            size = max(os.fstat(descriptor).st_size, len(data))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise failure(error, place.text) from None
    whole = len(data) <= max_bytes
    facts: dict[str, Any] = {"path": place.text, "bytes": len(data) if whole else size}
    facts["sha256"] = sha_of_bytes(data) if whole else None
    if offset is None and limit is None:
        if not whole:
            raise _too_much(place, size, max_bytes)
        if data.startswith(_IMAGE_STARTS) or data[8:12] == b"WEBP":
            return _picture(data, facts)
    if encoding == "utf-8" and data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    if encoding != "utf-16" and b"\0" in data[:_PROBE_BYTES]:
        return _binary(data, facts)
    # Lines end at \n alone, as in every editor and in fs.search.
    lines = re.findall(r"[^\n]*\n|[^\n]+", data.decode(encoding, "replace"))
    first = offset or 1
    last = len(lines) if limit is None else min(first - 1 + limit, len(lines))
    if not whole and last >= len(lines):
        raise _too_much(place, size, max_bytes)  # The last line that was read may go on.
    if first > max(len(lines), 1):
        raise ToolError(
            f"{visible(place.text)} has {len(lines):,} lines, and offset is {first:,}; use a "
            "smaller one",
            code="E_INVALID_ARGUMENTS",
        )
    return _answer(facts, **_cut(lines, first, last, f"{len(lines):,}" if whole else "more"))


def _cut(lines: list[str], first: int, last: int, of: str) -> dict[str, Any]:
    """The lines asked for as they are answered: as many as fit, and how to go on."""
    content = "".join(lines[first - 1 : last])
    if len(content) <= _READ_CHARS:
        more = f"lines {first:,} to {last:,} of {of}; go on with offset={last + 1}"
        return {"truncated": False, "content": content, "hint": more if last < len(lines) else ""}
    shown = content[: content.rfind("\n", 0, _PREVIEW_CHARS) + 1]
    end = first - 1 + shown.count("\n")
    hint = f"lines {first:,} to {end:,} of {of} are shown; go on with offset={end + 1} and a limit"
    if not shown:
        shown = content[:_PREVIEW_CHARS]
        hint = f"the first {_PREVIEW_CHARS:,} characters of line {first:,} are shown"
    hint += ", or find the place with fs.search"
    return {"truncated": True, "contentPreview": shown, "hint": hint}


def _answer(facts: dict[str, Any], *, hint: str = "", **more: Any) -> ToolResult:
    return ToolResult(ok=True, data={**facts, **more, **({"hint": hint} if hint else {})})


def _binary(data: bytes, facts: dict[str, Any]) -> ToolResult:
    start = f"binary, begins with {data[:32].hex(' ')}"
    hint = "this is no text that can be read here; use a program for it"
    return _answer(facts, truncated=True, contentPreview=start, hint=hint)


def _picture(data: bytes, facts: dict[str, Any]) -> ToolResult:
    """A picture for models that see."""
    load_pillow()  # makes a large picture smaller
    part = encoded_image(data)
    if isinstance(part, ImagePart):
        answer = _answer(facts, truncated=False, content=f"[{part.alt}: attached]")
        return answer.model_copy(update={"attachments": (part,)})
    if part is None:
        return _binary(data, facts)
    hint = "the picture cannot be shown; make a smaller one of it first"
    return _answer(facts, truncated=True, contentPreview=part, hint=hint)


def _too_much(place: FilePlace, size: int, most: int) -> ToolError:
    return ToolError(
        f"{visible(place.text)} has {size:,} bytes, and {most:,} may be read at once; read a part "
        "of it with offset and limit, or find the place with fs.search",
        code="E_READ_LIMIT",
        details={"bytes": size, "maxBytes": most},
    )


def search_files(place: FilePlace, order: Order) -> ToolResult:
    found = search(place, order)
    stats = {"filesScanned": found.files_scanned, "matchesFound": found.matches_found}
    if found.files_skipped:
        stats["filesSkipped"] = found.files_skipped
    matches = [{**match._asdict(), "path": visible(match.path)} for match in found.matches]
    facts = {"matches": matches, "truncated": bool(found.why_cut), "stats": stats}
    return _answer(facts, hint=found.why_cut)


def list_folder(
    place: FilePlace,
    *,
    glob: str | None,
    depth: int,
    sizes: bool,
    timeout_s: float,
    hides: Hides,
) -> ToolResult:
    """The answer of `fs.list`. Ignored folders are named and not gone into."""
    globs = Globs(glob) if glob else None
    entries: list[str] = []
    bytes_of: dict[str, int] = {}
    cut, left_chars, until_s = "", _MOST_ENTRY_CHARS, time.monotonic() + timeout_s
    try:
        for level in walk(place, depth=depth, hides=hides):
            below = "".join(f"{part}/" for part in level.parts[len(place.parts) :])
            for entry in level.entries:
                name = visible(f"{below}{entry.name}{'/' if entry.kind == 'folder' else ''}")
                if globs is not None and not globs.fit(name):
                    continue
                left_chars -= len(name)
                if len(entries) >= _MOST_ENTRIES or left_chars < 0:
                    cut = f"the first {len(entries):,} are shown"
                    break
                entries.append(name)
                if sizes and entry.kind == "file":
                    with suppress(OSError):  # It may be gone by now.
                        bytes_of[name] = level.folder.look(entry.name).st_size
            if not cut and time.monotonic() > until_s:
                cut = f"{timeout_s:g} s were up"
            if cut:
                break
    except OSError as error:
        raise failure(error, place.text) from None
    facts: dict[str, Any] = {"path": place.text, "entriesPreview" if cut else "entries": entries}
    facts |= {"sizes": bytes_of} if sizes else {}
    hint = f"{cut}; list a folder in it, less deep, or use a glob" if cut else ""
    return _answer(facts, truncated=bool(cut), hint=hint)
