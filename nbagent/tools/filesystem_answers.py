"""The answers of `fs.read`, `fs.list` and `fs.search`, cut to sizes that a model can take.

Files that cannot be read raise ToolError. Opening files is in `files`; which calls are allowed is
decided in `filesystem`.
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
from nbagent.files.mounts import MountedPath
from nbagent.files.names import visible
from nbagent.files.opening import failure
from nbagent.files.searching import SearchQuery, search
from nbagent.files.walking import Globs, Hides, walk
from nbagent.files.writing import read_bytes, sha_of_bytes
from nbagent.shown.images import encoded_image, load_pillow

_MAX_READ_CHARS = 40_000
"""Limit of one answer; a longer one is cut at the end of a line, with a hint."""
_PREVIEW_CHARS = 20_000
_MAX_ENTRIES, _MAX_ENTRY_CHARS = 500, 40_000
_PROBE_BYTES = 8_192
"""A zero byte within the first 8 KiB marks a binary file, as for git."""
_IMAGE_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")


def read_file(
    location: MountedPath,
    offset: int | None,
    limit: int | None,
    encoding: str,
    *,
    max_bytes: int,
    search_advice: str,
) -> ToolResult:
    """Answer `fs.read`; `search_advice` ends the hints of a cut answer."""
    try:
        descriptor = location.root.open_file(location.parts)
        try:
            # One byte more shows whether this is the whole file, even if the file grows meanwhile.
            data = read_bytes(descriptor, max_bytes=max_bytes + 1)
            size = max(os.fstat(descriptor).st_size, len(data))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise failure(error, location.text) from None
    is_complete = len(data) <= max_bytes
    facts: dict[str, Any] = {"path": location.text, "bytes": len(data) if is_complete else size}
    facts["sha256"] = sha_of_bytes(data) if is_complete else None
    if offset is None and limit is None:
        if not is_complete:
            raise _too_large(location, size, max_bytes, search_advice)
        # WebP begins with RIFF and four bytes of size.
        if data.startswith(_IMAGE_SIGNATURES) or data[8:12] == b"WEBP":
            return _image_result(data, facts)
    if encoding == "utf-8" and data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    if encoding != "utf-16" and b"\0" in data[:_PROBE_BYTES]:
        return _binary_result(data, facts)
    # Lines end at \n only, as in fs.search: `splitlines()` would also count \f or \u2028.
    lines = re.findall(r"[^\n]*\n|[^\n]+", data.decode(encoding, "replace"))
    first = offset or 1
    last = len(lines) if limit is None else min(first - 1 + limit, len(lines))
    if not is_complete and last >= len(lines):
        raise _too_large(location, size, max_bytes, search_advice)  # The last line may be cut off.
    if first > max(len(lines), 1):
        raise ToolError(
            f"{visible(location.text)} has {len(lines):,} lines, and offset is {first:,}; use a "
            "smaller one",
            code="E_INVALID_ARGUMENTS",
        )
    total = f"{len(lines):,}" if is_complete else "more"
    return _result(facts, **_select_lines(lines, first, last, total, search_advice))


def _select_lines(
    lines: list[str], first: int, last: int, total: str, search_advice: str
) -> dict[str, Any]:
    """Select as many of these lines as fit; the hint says how to read the next ones."""
    content = "".join(lines[first - 1 : last])
    if len(content) <= _MAX_READ_CHARS:
        more = f"lines {first:,} to {last:,} of {total}; continue with offset={last + 1}"
        return {"truncated": False, "content": content, "hint": more if last < len(lines) else ""}
    shown = content[: content.rfind("\n", 0, _PREVIEW_CHARS) + 1]
    end = first - 1 + shown.count("\n")
    hint = (
        f"lines {first:,} to {end:,} of {total} shown; continue with offset={end + 1} and a limit"
    )
    if not shown:
        shown = content[:_PREVIEW_CHARS]
        hint = f"the first {_PREVIEW_CHARS:,} characters of line {first:,} are shown"
        if first < len(lines):
            hint += f"; continue with offset={first + 1}"
    return {"truncated": True, "contentPreview": shown, "hint": hint + search_advice}


def _result(facts: dict[str, Any], *, hint: str = "", **more: Any) -> ToolResult:
    return ToolResult(ok=True, data={**facts, **more, **({"hint": hint} if hint else {})})


def _binary_result(data: bytes, facts: dict[str, Any]) -> ToolResult:
    start = f"binary, begins with {data[:32].hex(' ')}"
    hint = "this is no text that can be read here; use a program for it"
    return _result(facts, truncated=True, contentPreview=start, hint=hint)


def _image_result(data: bytes, facts: dict[str, Any]) -> ToolResult:
    """Attach a picture for models that take images."""
    load_pillow()  # Large pictures are made smaller with it.
    part = encoded_image(data)
    if isinstance(part, ImagePart):
        answer = _result(facts, truncated=False, content=f"[{part.alt}: attached]")
        return answer.model_copy(update={"attachments": (part,)})
    if part is None:
        return _binary_result(data, facts)
    hint = "the picture cannot be shown; make a smaller one of it first"
    return _result(facts, truncated=True, contentPreview=part, hint=hint)


def _too_large(location: MountedPath, size: int, max_bytes: int, search_advice: str) -> ToolError:
    return ToolError(
        f"{visible(location.text)} has {size:,} bytes, over the limit of {max_bytes:,} "
        f"(max_read_bytes); read a part of it with offset and limit{search_advice}, "
        "or ask the person to raise it with nbagent.configure(max_read_bytes=…)",
        code="E_READ_LIMIT",
        details={"bytes": size, "maxBytes": max_bytes},
    )


def search_files(location: MountedPath, query: SearchQuery) -> ToolResult:
    result = search(location, query)
    stats = {"filesScanned": result.files_scanned, "matchesFound": result.matches_found}
    if result.files_skipped:
        stats["filesSkipped"] = result.files_skipped
    matches = [{**match._asdict(), "path": visible(match.path)} for match in result.matches]
    facts = {"matches": matches, "truncated": bool(result.why_cut), "stats": stats}
    return _result(facts, hint=result.why_cut)


def list_folder(
    location: MountedPath,
    *,
    glob: str | None,
    depth: int,
    sizes: bool,
    timeout_s: float,
    hides: Hides,
) -> ToolResult:
    """Answer `fs.list`. Folders that .gitignore names are listed, their content is not."""
    globs = Globs(glob) if glob else None
    entries: list[str] = []
    bytes_of: dict[str, int] = {}
    cut, left_chars, until_s = "", _MAX_ENTRY_CHARS, time.monotonic() + timeout_s
    try:
        for level in walk(location, depth=depth, hides=hides):
            below = "".join(f"{part}/" for part in level.parts[len(location.parts) :])
            for entry in level.entries:
                name = visible(f"{below}{entry.name}{'/' if entry.kind == 'folder' else ''}")
                if globs is not None and not globs.matches(name):
                    continue
                left_chars -= len(name)
                if len(entries) >= _MAX_ENTRIES or left_chars < 0:
                    cut = f"the first {len(entries):,} are shown"
                    break
                entries.append(name)
                if sizes and entry.kind == "file":
                    with suppress(OSError):  # It may have been deleted meanwhile.
                        bytes_of[name] = level.folder.lstat(entry.name).st_size
            if not cut and time.monotonic() > until_s:
                cut = f"{timeout_s:g} s were up"
            if cut:
                break
    except OSError as error:
        raise failure(error, location.text) from None
    facts: dict[str, Any] = {"path": location.text, "entriesPreview" if cut else "entries": entries}
    facts |= {"sizes": bytes_of} if sizes else {}
    hint = f"{cut}; list a folder in it, less deep, or use a glob" if cut else ""
    return _result(facts, truncated=bool(cut), hint=hint)
