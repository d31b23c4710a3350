"""The file of recorded answers: JSON Lines, one line for each request and its answer.

It may be a stranger's file, so its size is limited and each line is checked before use.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import Field

from nbagent.contracts.canonical import dump_json, load_json, sha_of
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import ImagePart, V, Value, is_storable_json, parse_arguments
from nbagent.contracts.model import ChatResponse
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact_json
from nbagent.files.opening import Folder, LinkRefused, naming_links, open_own_file, open_root
from nbagent.store.file_lock import locked

_MAX_BYTES = 64 * 2**20
"""Limit of one file."""
_RESULT_KEY_PREFIX = "tool_"
# Key and number come first in each line, so that a file is indexed without parsing it.
_HEAD = re.compile(rb'\s*\{\s*"key"\s*:\s*"(\w+)"\s*,\s*"n"\s*:\s*(\d{1,9})\b')


class RecordedRequest(Value):
    """A request in its recorded form, to read and compare; it cannot be sent."""

    provider: str
    server: str
    model: str
    params: dict[str, Any] = Field(default_factory=dict)
    system: str = ""
    tools: dict[str, str] = Field(default_factory=dict)
    """By name: start of the hash of description and schema."""
    messages: tuple[str, ...] = ()
    """Start of the hash of each message."""
    new: tuple[str, ...] = ()
    """Texts of the messages since the last answer; long ones are shortened."""


class RecordedExchange(Value):
    """One recorded request and its answer."""

    key: str
    """Hash of everything that tells this request from others."""
    n: int = 1
    """Number among the equal requests of a run, from 1."""
    request: RecordedRequest
    response: ChatResponse

    def to_line(self) -> bytes:
        """Return the line for the file, without secrets and without values that vary."""
        calls = {"tool_calls": {"__all__": {"arguments"}}}
        left_out: Any = {"response": {"meta": True, "message": calls}}
        return dump_json(redact_json(self.model_dump(exclude=left_out, exclude_none=True)))


class RecordedResult(Value):
    """One recorded tool call and its result."""

    key: str
    """`tool_` and the hash of the tool's name and arguments."""
    n: int = 1
    """Number among the equal calls of a run, from 1."""
    tool: str
    arguments: dict[str, Any]
    """Arguments from the model, only to read: the key finds the result."""
    result: ToolResult
    truncated: bool = False
    printed: str = ""
    """Printed text and displayed pictures (`shown`), for the person."""
    shown: tuple[ImagePart, ...] = ()

    @staticmethod
    def key_of(tool: str, arguments: Mapping[str, Any]) -> str:
        """Return the key of a call."""
        return f"{_RESULT_KEY_PREFIX}{sha_of(redact_json([tool, dict(arguments)]))[:24]}"

    def to_line(self) -> bytes:
        """Return the line for the file, without secrets."""
        return dump_json(redact_json(self.model_dump()))


Lines = dict[tuple[str, int], tuple[str, bytes]]
"""By key and number: location of a line (for messages) and its bytes."""


class Cassette:
    """A file of recorded answers, or a cache: a folder of such files, one per run.

    Several runs and processes may write at once; a reader always gets a complete file. The
    methods block: call them in a thread. They raise ModelError for a file of another kind.
    """

    def __init__(self, file: Path, *, cache: bool = False) -> None:
        """Read and write a file; with `cache`, also read all files beside it.

        The path is absolute, and a link in it is refused.
        """
        self.name = "the cache" if cache else file.name
        self._file, self._is_cache = file, cache
        self._other_files: list[Lines] | None = None if cache else []

    @property
    def is_missing(self) -> bool:
        """True if the named file does not exist."""
        return not self._is_cache and not os.path.lexists(self._file)

    def find(self, key: str, n: int) -> RecordedExchange | None:
        """Find a recorded request; the newest of several."""
        line = self._line(key, n)
        return None if line is None else _parse_exchange(*line)

    def find_result(self, key: str, n: int) -> RecordedResult | None:
        """Find the recorded result of a tool call."""
        line = self._line(key, n)
        return None if line is None else _parse_line(RecordedResult, *line)

    def _line(self, key: str, n: int) -> tuple[str, bytes] | None:
        matches = (lines[key, n] for lines in reversed(self._files()) if (key, n) in lines)
        return next(matches, None)

    def newest(self, count: int) -> list[tuple[str, RecordedExchange]]:
        """Return the last recorded requests and their locations."""
        all_lines = (item for lines in self._files() for item in lines.items())
        exchanges = [line for (key, _), line in all_lines if not key.startswith(_RESULT_KEY_PREFIX)]
        return [
            (location, _parse_exchange(location, text)) for location, text in exchanges[-count:]
        ]

    def add(self, exchange: RecordedExchange | RecordedResult, *, replace: bool) -> None:
        """Write a line; a line with the same key and number stays, or is replaced in its place."""
        name = self._file.name
        with (
            _usable(self._file, is_cache=self._is_cache),
            closing(open_root(self._file.parent, create=True)) as folder,
        ):
            while True:
                descriptor = folder.open_entry(name, os.O_RDWR | os.O_CREAT, 0o666)
                with os.fdopen(descriptor, "rb") as file, locked(descriptor, wait_s=10.0):
                    if not os.path.samestat(os.fstat(descriptor), folder.lstat(name)):
                        continue  # Another process has replaced the file; lock the new one.
                    texts = {
                        name: text for name, (_, text) in _read_lines(file, self._file.name).items()
                    }
                    if (exchange.key, exchange.n) in texts and not replace:
                        return
                    texts[exchange.key, exchange.n] = exchange.to_line()
                    self._write(folder, [*texts.values(), b""], os.fstat(descriptor).st_mode)
                    return

    def _write(self, folder: Folder, lines: Sequence[bytes], mode: int) -> None:
        """Replace the file by one with these lines."""
        fresh = f".{self._file.name}.new"
        with suppress(FileNotFoundError):
            folder.remove(fresh)  # It may be a link in a stranger's folder.
        with os.fdopen(folder.new_file(fresh, stat.S_IMODE(mode)), "wb") as new:
            new.write(b"\n".join(lines))
        folder.replace(fresh, self._file.name)

    def _files(self) -> list[Lines]:
        """Return the lines of each file, the newest file last."""
        if self._other_files is None:
            self._other_files = [_lines_of(path, is_cache=True) for path in self._files_beside()]
        return [*self._other_files, _lines_of(self._file, is_cache=self._is_cache)]

    def _files_beside(self) -> list[Path]:
        """Return the other files of the folder, the newest last."""
        folder = self._file.parent
        try:
            with _usable(folder, is_cache=True), closing(open_root(folder)) as opened:
                names = [
                    entry.name
                    for entry in opened.scan()
                    if entry.name.endswith(".jsonl") and entry.is_file(follow_symlinks=False)
                ]
                newest_last = sorted(names, key=lambda name: opened.lstat(name).st_mtime)
        except FileNotFoundError:
            return []
        return [folder / name for name in newest_last if name != self._file.name]


def unusable_file(text: str) -> ModelError:
    """Build the error of a cassette that cannot be used."""
    return ModelError(text, code="E_PRECONDITION_FAILED")


@contextmanager
def _usable(path: Path, *, is_cache: bool = False) -> Generator[None]:
    """Turn the error of a link in a path into a line that names the target of a cassette."""
    try:
        with naming_links(path):
            yield
    except LinkRefused as error:
        name = f"to use what it points to, name {os.path.realpath(path)}"
        todo = "put a real folder in its place" if is_cache else name
        raise unusable_file(
            f"{error.link.name} is a link, and links below the project are not followed; {todo}"
        ) from None


def _lines_of(path: Path, *, is_cache: bool = False) -> Lines:
    """Return the lines of a file; none if it is missing."""
    try:
        with _usable(path, is_cache=is_cache), os.fdopen(open_own_file(path), "rb") as file:
            return _read_lines(file, path.name)
    except FileNotFoundError:
        return {}
    except OSError as error:
        is_special = error.errno == errno.EINVAL
        why = "is not a file" if is_special else f"cannot be read: {error.strerror}"
        raise unusable_file(f"{path.name} {why}; name another one") from None


def _read_lines(file: BinaryIO, name: str) -> Lines:
    data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise unusable_file(f"{name} is larger than {_MAX_BYTES >> 20} MiB; name another one")
    lines: Lines = {}
    for number, text in enumerate(data.split(b"\n"), 1):
        location = f"line {number} of {name}"
        if head := _HEAD.match(text):
            lines[head[1].decode(), int(head[2])] = location, text
        elif text.strip():
            raise _bad_line(location, "it does not begin with a key")
    return lines


def _parse_line(kind: type[V], location: str, text: bytes) -> V:
    try:
        value = load_json(text)
        if not is_storable_json(value):
            raise ValueError("nested too deeply, or an infinite number")
        return kind.model_validate(value)
    except (ValueError, RecursionError) as error:
        raise _bad_line(location, " ".join(str(error).split()).partition(" [type=")[0]) from None


def _parse_exchange(location: str, text: bytes) -> RecordedExchange:
    exchange = _parse_line(RecordedExchange, location, text)
    message = exchange.response.message
    if message.role != "assistant":
        raise _bad_line(location, "its answer is not the assistant's")
    # Parse the raw text: the person must approve the arguments that the line shows.
    calls = tuple(
        call.model_copy(update={"arguments": parse_arguments(call.arguments_raw)})
        for call in message.tool_calls
    )
    answer = {"message": message.model_copy(update={"tool_calls": calls})}
    return exchange.model_copy(update={"response": exchange.response.model_copy(update=answer)})


def _bad_line(location: str, why: str) -> ModelError:
    return unusable_file(f"{location} is not a recorded answer ({why}); delete that line")
