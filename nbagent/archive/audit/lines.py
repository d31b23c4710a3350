"""The form of an audit line and of the head file, as bytes. Touches no file but to list names.

A line is one JSON object in ASCII: `seq` and `prev` first, `sha` last, no spaces. `sha` is the
SHA-256 of the line without its own `sha`; `prev` is the `sha` of the line before, across files.

    {"seq":7,"prev":"9f…","at":"…","pid":1,"kind":"call",…,"sha":"c0…"}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbagent.contracts.canonical import json_object, load_json, sha256_hex

FILE_NAME = "audit.jsonl"
FIRST_PREV = "0" * 64
"""What the first line of all follows."""
LONGEST_LINE_BYTES = 200_000
_LONGEST_TORN_BYTES = 90_000
"""As a text of a line of its own it takes at most twice as many."""
_FULL_NAME = re.compile(r"(.+)\.(\d{6,18})(\.[^.]+)", re.DOTALL)
_SHA = re.compile(r"[0-9a-f]{64}")
_TAIL = re.compile(rb',"sha":"([0-9a-f]{64})"\}')
_TAIL_BYTES = len(b',"sha":""}') + 64
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_HEAD_BYTES = 160
"""Smaller than a disk sector, so it is written whole or not at all."""


@dataclass(frozen=True, slots=True)
class Head:
    """Where the chain ends."""

    seq: int = 0
    """The number of the last line; 0 before the first."""
    sha: str = FIRST_PREV
    size_bytes: int = 0
    """Of the newest file."""

    def to_bytes(self) -> bytes:
        """The content of the head file, always of the same length."""
        told = f'{{"seq":{self.seq},"sha":"{self.sha}","size_bytes":{self.size_bytes}}}'
        return told.encode().ljust(_HEAD_BYTES - 1) + b"\n"

    @classmethod
    def from_bytes(cls, raw: bytes) -> Head | None:
        """What a head file says; None when it was not written by `to_bytes`."""
        told = _object(raw)
        seq, sha, size = told.get("seq"), told.get("sha"), told.get("size_bytes")
        if not (isinstance(seq, int) and isinstance(sha, str) and isinstance(size, int)):
            return None
        if seq < 0 or size < 0 or not _SHA.fullmatch(sha):
            return None
        head = cls(seq, sha, size)
        return head if head.to_bytes() == raw else None

    def after(self, line: bytes) -> Head:
        """The head when this line, which follows it, is written."""
        return Head(self.seq + 1, sha_in(line), self.size_bytes + len(line))


def make_line(record: Mapping[str, Any], head: Head) -> bytes:
    """The line that follows the head, with its line end.

    Plain ASCII, so whatever a name holds (line ends of any alphabet, half a character) stays in
    one line for every reader.
    """
    body = _ENCODER.encode({"seq": head.seq + 1, "prev": head.sha, **record})
    return f'{body[:-1]},"sha":"{sha256_hex(body)}"}}\n'.encode()


def sha_in(line: bytes) -> str:
    """The `sha` that a line bears; empty when it has none."""
    match = _TAIL.fullmatch(line.removesuffix(b"\n")[-_TAIL_BYTES:])
    return match[1].decode() if match else ""


def is_whole(line: bytes) -> bool:
    """Whether a line ends as one and its hash is that of its content."""
    if not line.endswith(b"\n"):
        return False
    sha = sha_in(line)
    return bool(sha) and sha256_hex(line[: -_TAIL_BYTES - 1] + b"}") == sha


def read_line(line: bytes) -> dict[str, Any]:
    """What a line says; empty when it is not an object of JSON."""
    return _object(line)


def follows(line: bytes, head: Head) -> bool:
    """Whether a line is whole and the next one after the head."""
    return line.startswith(start_after(head)) and is_whole(line)


def start_after(head: Head) -> bytes:
    """How the line after the head begins, whatever it says."""
    return f'{{"seq":{head.seq + 1},"prev":"{head.sha}",'.encode()


def is_torn(piece: bytes, head: Head) -> bool:
    """Whether a piece without an end can be the line after the head, cut short by a crash."""
    start = start_after(head)
    if len(piece) > _LONGEST_TORN_BYTES or piece[: len(start)] != start[: len(piece)]:
        return False
    return piece.isascii() and piece.decode().isprintable()


def _object(raw: bytes) -> dict[str, Any]:
    try:
        return json_object(load_json(raw)) or {}
    except (ValueError, RecursionError):
        return {}


def head_file(log: Path) -> Path:
    """The file beside a log that says where its chain ends."""
    return log.with_suffix(".head")


def numbered(log: Path, number: int) -> Path:
    """The name that a full file is given."""
    return log.with_name(f"{log.stem}.{number:06d}{log.suffix}")


def full_files(log: Path) -> list[Path]:
    """The full files before the newest one, in their order."""
    if not log.parent.is_dir():
        return []
    full = [path for path in log.parent.iterdir() if newest_of(path) == log and path != log]
    return sorted(full, key=number_of)


def newest_of(path: Path) -> Path:
    """The newest file of the log that a full file belongs to; another path as it is."""
    match = _FULL_NAME.fullmatch(path.name)
    return path.with_name(match[1] + match[3]) if match else path


def number_of(full: Path) -> int:
    """The number in the name of a full file."""
    match = _FULL_NAME.fullmatch(full.name)
    return int(match[2]) if match else 0
