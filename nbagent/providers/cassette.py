"""The files that hold recorded exchanges: JSON Lines, one line for each request and its answer.

A cassette may be a stranger's file: it is bounded and checked. Who answers from it is `replay`'s.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from nbagent.archive.audit.locking import locked
from nbagent.contracts.canonical import dump_json, json_object, load_json
from nbagent.contracts.chat import ChatResponse, Value, is_keepable, parse_arguments
from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import redact_json

_MOST_BYTES = 64 * 2**20
"""Of one file; a larger one is no record of a notebook."""
_MOST_FILES = 2_000
"""Of a cache, the newest ones."""
_LOCK_S = 10.0
_HEAD = b'{"key":"'


class Asked(Value):
    """A request as it is recorded: to be read and compared, not to be sent."""

    provider: str
    server: str
    model: str
    params: dict[str, Any] = Field(default_factory=dict)
    system: str = ""
    tools: dict[str, str] = Field(default_factory=dict)
    """Names, and the start of a hash of what the model is shown of each."""
    messages: tuple[str, ...] = ()
    """The start of each message's hash."""
    new: tuple[str, ...] = ()
    """The texts of the messages since the last answer; long ones are cut."""


class Exchange(Value):
    """One recorded request and its answer."""

    key: str
    """Hash of all that tells this request from another one."""
    n: int = 1
    """Counts the equal requests of a run."""
    request: Asked
    response: ChatResponse

    def line(self) -> bytes:
        """The line of a file: no secrets, and nothing that differs when it is recorded again."""
        calls = {"tool_calls": {"__all__": {"arguments"}}}
        left_out: Any = {"response": {"meta": True, "message": calls}}
        return dump_json(redact_json(self.model_dump(exclude=left_out, exclude_none=True))) + b"\n"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file that is JSON and has a key."""

    path: Path
    number: int
    value: dict[str, Any]

    def exchange(self) -> Exchange:
        """What it says. Raises ModelError where it is no exchange."""
        if not is_keepable(self.value):
            raise _bad_line(self.path, self.number, "nested too deeply, or an infinite number")
        try:
            found = Exchange.model_validate(self.value)
        except ValidationError as error:
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise _bad_line(self.path, self.number, why) from None
        message = found.response.message
        if message.role != "assistant":
            raise _bad_line(self.path, self.number, "its answer is not the assistant's")
        # One text, so that what a person approves is what the line says.
        calls = tuple(
            call.model_copy(update={"arguments": parse_arguments(call.arguments_raw)})
            for call in message.tool_calls
        )
        answer = {"message": message.model_copy(update={"tool_calls": calls})}
        return found.model_copy(update={"response": found.response.model_copy(update=answer)})


class Cassette:
    """A file of exchanges, or a cache: a folder of them, of which each run writes one.

    Several runs and processes may write at once. The methods block: call them in a thread.
    They raise ModelError for a file that holds something else, and OSError.
    """

    def __init__(self, file: Path, *, cache: bool = False) -> None:
        """Read and write a file; with `cache`, read all that lie beside it too."""
        self.name = "the cache" if cache else file.name
        self._file = file
        self._others: list[Path] | None = None if cache else []
        self._read: dict[Path, tuple[int, int, int]] = {}
        """How far each file is known: inode, bytes, lines."""
        self._lines: dict[tuple[str, int], Line] = {}

    def find(self, key: str, n: int) -> Exchange | None:
        """The recorded exchange."""
        for path in self._files():
            if path.exists() and not path.is_file():
                raise unusable(f"{path.name} is no file; name another one to record in")
            if path.exists():
                with path.open("rb", buffering=0) as file:
                    self._catch_up(path, file)
        line = self._lines.get((key, n))
        return None if line is None else line.exchange()

    def newest(self, most: int) -> Iterator[Line]:
        """The last lines that were read."""
        yield from list(self._lines.values())[-most:]

    def add(self, exchange: Exchange, *, replace: bool) -> None:
        """Keep an exchange; an equal one in the same file stays, or is replaced in its place."""
        with self._opened() as file:
            end = self._catch_up(self._file, file)
            known = self._lines.get((exchange.key, exchange.n))
            if known is None or known.path != self._file:
                self._append(file, end, exchange.line())
            elif replace:
                self._rewrite(file, known.number, exchange.line())

    def _files(self) -> list[Path]:
        if self._others is None:
            beside = [path for path in self._file.parent.glob("*.jsonl") if path != self._file]
            self._others = sorted(beside, key=lambda path: path.stat().st_mtime)[-_MOST_FILES:]
        return [*self._others, self._file]

    def _catch_up(self, path: Path, file: FileIO) -> int:
        """Read what is new in a file; where its last whole line ends."""
        status = os.fstat(file.fileno())
        inode, start, number = self._read.get(path, (status.st_ino, 0, 0))
        if inode != status.st_ino or start > status.st_size:
            start = number = 0  # another process has replaced it
        if status.st_size > _MOST_BYTES:
            most = f"{_MOST_BYTES >> 20} MiB"
            raise unusable(f"{path.name} is larger than {most}; delete it, or name another one")
        file.seek(start)
        *whole, rest = file.readall().split(b"\n")
        for line in whole:
            number += 1
            start += len(line) + 1
            if line.strip():
                self._take(path, number, line)
        self._read[path] = (status.st_ino, start, number)
        # The end of a file that is being written, or was when the power went, is no error.
        if rest.strip() and not _is_torn(rest):
            self._take(path, number + 1, rest)
        return start

    def _take(self, path: Path, number: int, line: bytes) -> None:
        value = _json(line) or {}
        key, n = value.get("key"), value.get("n", 1)
        if not isinstance(key, str) or not isinstance(n, int):
            raise _bad_line(path, number, "it is no JSON object with a key")
        self._lines[key, n] = Line(path, number, value)

    @contextmanager
    def _opened(self) -> Generator[FileIO]:
        """The file, locked; one that another process has replaced meanwhile is opened again."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with (
                self._file.open("ab+", buffering=0) as file,
                locked(file.fileno(), patience_s=_LOCK_S),
            ):
                if os.fstat(file.fileno()).st_ino == self._file.stat().st_ino:
                    yield file
                    return

    def _append(self, file: FileIO, end: int, line: bytes) -> None:
        file.seek(end)
        rest = file.readall()
        if rest and _is_torn(rest):
            file.truncate(end)
        elif rest:
            line = b"\n" + line
        if file.write(line) != len(line):
            raise OSError("the disk is full")

    def _rewrite(self, file: FileIO, number: int, line: bytes) -> None:
        file.seek(0)
        lines = file.readall().split(b"\n")
        lines[number - 1] = line.rstrip(b"\n")
        fresh = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        fresh.write_bytes(b"\n".join(lines))
        shutil.copymode(self._file, fresh)
        fresh.replace(self._file)


def unusable(text: str) -> ModelError:
    """The error of a record that cannot answer."""
    return ModelError(text, code="E_PRECONDITION_FAILED")


def _bad_line(path: Path, number: int, why: str) -> ModelError:
    return unusable(f"line {number} of {path.name} is no recorded answer ({why}); delete that line")


def _json(line: bytes) -> dict[str, Any] | None:
    try:
        return json_object(load_json(line))
    except (ValueError, RecursionError):
        return None


def _is_torn(rest: bytes) -> bool:
    """Whether it is the beginning of a line of ours; anything else is the person's own text."""
    return rest.startswith(_HEAD[: len(rest)]) and _json(rest) is None
