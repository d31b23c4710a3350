"""The files that hold recorded exchanges: JSON Lines, one line for each request and its answer.

A cassette may be a stranger's file: it is bounded and checked. Who answers from it is `replay`'s.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
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
        return dump_json(redact_json(self.model_dump(exclude=left_out, exclude_none=True)))


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file that is JSON and has a key."""

    path: Path
    number: int
    text: bytes
    key: str
    n: int

    def exchange(self) -> Exchange:
        """What it says. Raises ModelError where it is no exchange."""
        value = load_json(self.text)
        if not is_keepable(value):
            raise _bad_line(self.path, self.number, "nested too deeply, or an infinite number")
        try:
            found = Exchange.model_validate(value)
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

    A file is written anew as a whole and then renamed: who reads it finds it whole. Several runs
    and processes may write at once. The methods block: call them in a thread. They raise
    ModelError for a file that holds something else, and OSError.
    """

    def __init__(self, file: Path, *, cache: bool = False) -> None:
        """Read and write a file; with `cache`, read all that lie beside it too."""
        self.name = "the cache" if cache else file.name
        self._file = file.resolve()
        self._others: list[Path] | None = None if cache else []
        self._read: dict[Path, tuple[tuple[int, ...], list[Line]]] = {}
        """The lines of each file, and its inode, size and time when they were read."""

    def find(self, key: str, n: int) -> Exchange | None:
        """The recorded exchange; the newest of several."""
        found = (line for line in reversed(self.lines()) if (line.key, line.n) == (key, n))
        line = next(found, None)
        return None if line is None else line.exchange()

    def lines(self) -> list[Line]:
        """All lines, the newest ones last."""
        if self._others is None:
            beside = [path for path in self._file.parent.glob("*.jsonl") if path != self._file]
            self._others = sorted(beside, key=lambda path: path.stat().st_mtime)[-_MOST_FILES:]
        return [line for path in [*self._others, self._file] for line in self._lines_of(path)]

    def add(self, exchange: Exchange, *, replace: bool) -> None:
        """Keep an exchange; an equal one in the same file stays, or is replaced in its place."""
        with self._locked():
            texts = {(line.key, line.n): line.text for line in self._lines_of(self._file)}
            if (exchange.key, exchange.n) in texts and not replace:
                return
            texts[exchange.key, exchange.n] = exchange.line()
            fresh = self._file.with_name(f".{self._file.name}.{os.getpid()}")
            try:
                fresh.write_bytes(b"\n".join([*texts.values(), b""]))
                shutil.copymode(self._file, fresh)
                fresh.replace(self._file)
            finally:
                fresh.unlink(missing_ok=True)

    def _lines_of(self, path: Path) -> list[Line]:
        if not path.exists():
            return []
        status = path.stat()
        state = (status.st_ino, status.st_size, status.st_mtime_ns)
        if path not in self._read or self._read[path][0] != state:
            if not path.is_file():
                raise unusable(f"{path.name} is no file; name another one to record in")
            if status.st_size > _MOST_BYTES:
                most = f"{_MOST_BYTES >> 20} MiB"
                raise unusable(f"{path.name} is larger than {most}; delete it, or name another one")
            texts = enumerate(path.read_bytes().split(b"\n"), 1)
            self._read[path] = state, [_line(path, i, text) for i, text in texts if text.strip()]
        return self._read[path][1]

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Hold the lock of the file; of one that was replaced meanwhile, that of the new one."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with self._file.open("ab") as file, locked(file.fileno(), patience_s=_LOCK_S):
                if os.fstat(file.fileno()).st_ino == self._file.stat().st_ino:
                    yield
                    return


def unusable(text: str) -> ModelError:
    """The error of a record that cannot answer."""
    return ModelError(text, code="E_PRECONDITION_FAILED")


def _bad_line(path: Path, number: int, why: str) -> ModelError:
    return unusable(f"line {number} of {path.name} is no recorded answer ({why}); delete that line")


def _line(path: Path, number: int, text: bytes) -> Line:
    try:
        value = json_object(load_json(text)) or {}
    except (ValueError, RecursionError):
        value = {}
    key, n = value.get("key"), value.get("n", 1)
    if not isinstance(key, str) or not isinstance(n, int):
        raise _bad_line(path, number, "it is no JSON object with a key")
    return Line(path, number, text, key, n)
