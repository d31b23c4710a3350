"""The file of recorded answers: JSON Lines, one line for each request and its answer.

It may be a stranger's file, so its size is limited and each line is checked before use.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from nbagent.contracts.canonical import dump_json, load_json, sha_of
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import ImagePart, V, Value, is_storable_json, parse_arguments
from nbagent.contracts.model import ChatResponse
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact_json
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
        """Read and write a file; with `cache`, also read all files beside it."""
        self.name = "the cache" if cache else file.name
        self._file, self._is_cache = Path(os.path.realpath(file)), cache
        self._other_files: list[Lines] | None = None if cache else []

    @property
    def is_missing(self) -> bool:
        """True if the named file does not exist."""
        return not self._is_cache and not self._file.exists()

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
        self._file.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with self._file.open("ab") as file, locked(file.fileno(), wait_s=10.0):
                if not os.path.samestat(os.fstat(file.fileno()), self._file.stat()):
                    continue  # Another process has replaced the file; lock the new one.
                texts = {name: text for name, (_, text) in _read_lines(self._file).items()}
                if (exchange.key, exchange.n) in texts and not replace:
                    return
                texts[exchange.key, exchange.n] = exchange.to_line()
                fresh = self._file.with_name(f".{self._file.name}.new")
                fresh.unlink(missing_ok=True)  # It may be a link in a stranger's folder.
                with fresh.open("xb") as new:
                    new.write(b"\n".join([*texts.values(), b""]))
                shutil.copymode(self._file, fresh)
                fresh.replace(self._file)
                return

    def _files(self) -> list[Lines]:
        """Return the lines of each file, the newest file last."""
        if self._other_files is None:
            beside = [path for path in self._file.parent.glob("*.jsonl") if path != self._file]
            newest_last = sorted(beside, key=lambda path: path.stat().st_mtime)
            self._other_files = [_read_lines(path) for path in newest_last]
        return [*self._other_files, _read_lines(self._file)]


def unusable_file(text: str) -> ModelError:
    """Build the error of a cassette that cannot be used."""
    return ModelError(text, code="E_PRECONDITION_FAILED")


def _read_lines(path: Path) -> Lines:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            most = f"{_MAX_BYTES >> 20} MiB"
            raise unusable_file(
                f"{path.name} is not a file, or larger than {most}; name another one"
            )
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:  # Links in a circle, no permission.
        raise unusable_file(
            f"{path.name} cannot be read: {error.strerror}; name another one"
        ) from None
    lines: Lines = {}
    for number, text in enumerate(data.split(b"\n"), 1):
        location = f"line {number} of {path.name}"
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
