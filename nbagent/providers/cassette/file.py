"""The file of recorded answers: JSON Lines, one line for each request and its answer."""

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
from nbagent.contracts.model import (
    ChatResponse,
)
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact_json
from nbagent.store.file_lock import locked

_MOST_BYTES = 64 * 2**20
"""Of one file."""


_TOOL = "tool_"
"""The keys of results begin so."""


_HEAD = re.compile(rb'\s*\{\s*"key"\s*:\s*"(\w+)"\s*,\s*"n"\s*:\s*(\d{1,9})\b')


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


class RecordedResult(Value):
    """One recorded tool call and its result."""

    key: str
    """Begins with `tool_`; hash of the tool's name and the arguments."""
    n: int = 1
    """Counts the equal calls of a run."""
    tool: str
    arguments: dict[str, Any]
    """As the model gave them: to be read, not to be used."""
    result: ToolResult
    truncated: bool = False
    printed: str = ""
    """For the person, as `shown`: pictures that it displayed."""
    shown: tuple[ImagePart, ...] = ()

    @staticmethod
    def key_of(tool: str, arguments: Mapping[str, Any]) -> str:
        """The key of a call."""
        return f"{_TOOL}{sha_of(redact_json([tool, dict(arguments)]))[:24]}"

    def line(self) -> bytes:
        """The line of a file, without secrets."""
        return dump_json(redact_json(self.model_dump()))


Lines = dict[tuple[str, int], tuple[str, bytes]]
"""By key and number: the place of a line, and the line."""


class Cassette:
    """A file of exchanges, or a cache: a folder of them, of which each run writes one.

    Several runs and processes may write at once; who reads a file finds it whole. The methods
    block: call them in a thread. They raise ModelError for a file that holds something else.
    """

    def __init__(self, file: Path, *, cache: bool = False) -> None:
        """Read and write a file; with `cache`, read all that lie beside it too."""
        self.name = "the cache" if cache else file.name
        self._file, self._is_cache = Path(os.path.realpath(file)), cache
        self._others: list[Lines] | None = None if cache else []

    @property
    def is_missing(self) -> bool:
        """Whether a file that was named is not there."""
        return not self._is_cache and not self._file.exists()

    def find(self, key: str, n: int) -> Exchange | None:
        """The recorded exchange; the newest of several."""
        line = self._line(key, n)
        return None if line is None else _exchange(*line)

    def find_result(self, key: str, n: int) -> RecordedResult | None:
        """The recorded result of a tool call."""
        line = self._line(key, n)
        return None if line is None else _checked(RecordedResult, *line)

    def _line(self, key: str, n: int) -> tuple[str, bytes] | None:
        found = (lines[key, n] for lines in reversed(self._files()) if (key, n) in lines)
        return next(found, None)

    def newest(self, most: int) -> list[tuple[str, Exchange]]:
        """The last exchanges and their places."""
        all_lines = (item for lines in self._files() for item in lines.items())
        found = [line for (key, _), line in all_lines if not key.startswith(_TOOL)]
        return [(place, _exchange(place, text)) for place, text in found[-most:]]

    def add(self, exchange: Exchange | RecordedResult, *, replace: bool) -> None:
        """Keep a line; an equal one in the same file stays, or is replaced in its place."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with self._file.open("ab") as file, locked(file.fileno(), wait_s=10.0):
                if not os.path.samestat(os.fstat(file.fileno()), self._file.stat()):
                    continue  # somebody else has put another file in its place
                texts = {name: text for name, (_, text) in _lines_of(self._file).items()}
                if (exchange.key, exchange.n) in texts and not replace:
                    return
                texts[exchange.key, exchange.n] = exchange.line()
                fresh = self._file.with_name(f".{self._file.name}.new")
                fresh.unlink(missing_ok=True)  # A stranger's folder may hold a link of this name.
                with fresh.open("xb") as new:
                    new.write(b"\n".join([*texts.values(), b""]))
                shutil.copymode(self._file, fresh)
                fresh.replace(self._file)
                return

    def _files(self) -> list[Lines]:
        """The lines of each file, the newest ones last."""
        if self._others is None:
            beside = [path for path in self._file.parent.glob("*.jsonl") if path != self._file]
            newest_last = sorted(beside, key=lambda path: path.stat().st_mtime)
            self._others = [_lines_of(path) for path in newest_last]
        return [*self._others, _lines_of(self._file)]


def unusable_file(text: str) -> ModelError:
    """The error of a record that cannot answer."""
    return ModelError(text, code="E_PRECONDITION_FAILED")


def _lines_of(path: Path) -> Lines:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            most = f"{_MOST_BYTES >> 20} MiB"
            raise unusable_file(f"{path.name} is no file, or larger than {most}; name another one")
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:  # links in a circle, no permission
        raise unusable_file(
            f"{path.name} cannot be read: {error.strerror}; name another one"
        ) from None
    lines: Lines = {}
    for number, text in enumerate(data.split(b"\n"), 1):
        place = f"line {number} of {path.name}"
        if head := _HEAD.match(text):
            lines[head[1].decode(), int(head[2])] = place, text
        elif text.strip():
            raise _bad_line(place, "it does not begin with a key")
    return lines


def _checked(kind: type[V], place: str, text: bytes) -> V:
    try:
        value = load_json(text)
        if not is_storable_json(value):
            raise ValueError("nested too deeply, or an infinite number")
        return kind.model_validate(value)
    except (ValueError, RecursionError) as error:
        raise _bad_line(place, " ".join(str(error).split()).partition(" [type=")[0]) from None


def _exchange(place: str, text: bytes) -> Exchange:
    found = _checked(Exchange, place, text)
    message = found.response.message
    if message.role != "assistant":
        raise _bad_line(place, "its answer is not the assistant's")
    # One text, so that what a person approves is what the line says.
    calls = tuple(
        call.model_copy(update={"arguments": parse_arguments(call.arguments_raw)})
        for call in message.tool_calls
    )
    answer = {"message": message.model_copy(update={"tool_calls": calls})}
    return found.model_copy(update={"response": found.response.model_copy(update=answer)})


def _bad_line(place: str, why: str) -> ModelError:
    return unusable_file(f"{place} is no recorded answer ({why}); delete that line")
