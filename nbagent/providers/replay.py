"""Recorded answers: a record, the file that holds it, and the client that answers from it.

A cassette is JSON Lines, one line for each request and its answer. It may be a stranger's file: it
is bounded and checked. Which mode and which file is the session's to say. Tools run for real, and
the calls of a recorded answer go through approvals as any model's, unless their results are to
come from the file, too.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import stat
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from difflib import get_close_matches, unified_diff
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from nbagent.archive.locking import locked
from nbagent.contracts.canonical import dump_json, load_json, sha_of
from nbagent.contracts.chat import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    ImagePart,
    Message,
    ModelInfo,
    ResponseMeta,
    V,
    Value,
    is_keepable,
    parse_arguments,
)
from nbagent.contracts.errors import ModelError
from nbagent.contracts.ports import ChatClient, SchemaClient
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact_json
from nbagent.providers.offline.stream import response_chunks

Mode = Literal["auto", "replay", "refresh"]

_PARAMS = (
    *("tool_choice", "temperature", "max_tokens", "top_p", "stop_sequences", "reasoning"),
    "output_schema",
)
_VARYING = re.compile(r'("duration_ms":)[\d.]+')
"""A script takes another time in each run; its result is the same."""
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


def _unusable(text: str) -> ModelError:
    """The error of a record that cannot answer."""
    return ModelError(text, code="E_PRECONDITION_FAILED")


def _lines_of(path: Path) -> Lines:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            most = f"{_MOST_BYTES >> 20} MiB"
            raise _unusable(f"{path.name} is no file, or larger than {most}; name another one")
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:  # links in a circle, no permission
        raise _unusable(f"{path.name} cannot be read: {error.strerror}; name another one") from None
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
        if not is_keepable(value):
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
    return _unusable(f"{place} is no recorded answer ({why}); delete that line")


class ReplayClient:
    """Answers from a cassette, or asks the client within, as the mode allows."""

    def __init__(
        self,
        inner: ChatClient,
        *,
        server: str,
        mode: Mode,
        cassette: Cassette,
        extra_body: Mapping[str, Any] | None = None,
        earlier: int = 0,
    ) -> None:
        """Wrap a client for one run.

        Of equal requests the first `earlier` ones belong to other runs: repeats of a case.

        Mode `replay` never asks `inner`, whose origin is `server`; `auto` asks and records what is
        missing, `refresh` always. What `inner` adds to a request (`extra_body`) is kept as a hash.
        """
        self.provider = inner.provider
        self._inner = inner
        self._server = server
        self._mode: Mode = mode
        self._cassette = cassette
        self._extra = {"extra_body": sha_of(dict(extra_body))[:12]} if extra_body else {}
        self._answered: Counter[str] = Counter()
        self._earlier = earlier

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """As the client within."""
        inner = self._inner
        return isinstance(inner, SchemaClient) and inner.has_schema_mode(request)

    async def list_models(self) -> list[ModelInfo]:
        """The models that the server offers; none are known in mode `replay`."""
        return [] if self._mode == "replay" else await self._inner.list_models()

    async def close(self) -> None:
        """Close the client within."""
        await self._inner.close()

    async def chat(
        self, request: ChatRequest, *, notify: Callable[[ClientNotice], None] | None = None
    ) -> ChatResponse:
        """One request, one whole answer."""
        key, asked = self._asked(request)
        found = await self._recorded(key, asked)
        if found is not None:
            return found
        response = await self._inner.chat(request, notify=notify)
        notice = await self._kept(key, asked, response)
        if notice is not None and notify is not None:
            notify(notice)
        return response

    async def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk]:
        """One request, its answer in chunks, also a recorded one."""
        key, asked = self._asked(request)
        found = await self._recorded(key, asked)
        if found is not None:
            for chunk in response_chunks(found):
                yield chunk
                await asyncio.sleep(0)
            return
        async with aclosing(self._inner.chat_stream(request)) as chunks:
            async for chunk in chunks:
                if chunk.done and chunk.response is not None:
                    notice = await self._kept(key, asked, chunk.response)
                    if notice is not None:
                        yield ChatChunk(notice=notice)
                yield chunk

    def _asked(self, request: ChatRequest) -> tuple[str, Asked]:
        """The key of a request, and what is recorded of it."""
        given = {name: getattr(request, name) for name in _PARAMS}
        params = {name: value for name, value in given.items() if value not in (None, ())}
        tools = {t.name: sha_of([t.description, t.parameters])[:12] for t in request.tools}
        system, params, messages = redact_json(
            (request.system_prompt, params | self._extra, tuple(_plain(request.messages)))
        )
        answers = (i for i, message in enumerate(messages, 1) if message["role"] == "assistant")
        answered = max(answers, default=0)
        asked = Asked(
            provider=self.provider,
            server=self._server,
            model=request.model,
            params=params,
            system=_cut(system, 160),  # it stands in each line, mostly the same
            tools=tools,
            messages=tuple(sha_of(message)[:8] for message in messages),
            new=tuple(_words(message) for message in messages[answered:]),
        )
        told = asked.model_dump(exclude={"new", "system", "messages"})
        return sha_of([told, system, messages])[:24], asked

    async def _recorded(self, key: str, asked: Asked) -> ChatResponse | None:
        if self._mode == "refresh":
            return None
        n = self._earlier + self._answered[key] + 1
        found = await asyncio.to_thread(self._cassette.find, key, n)
        if found is None:
            if self._mode == "replay":
                raise await asyncio.to_thread(_missing, self._cassette, asked, n)
            return None
        self._answered[key] += 1
        meta = ResponseMeta(attempts=0, source="hit" if self._mode == "auto" else "replay")
        return found.response.model_copy(update={"meta": meta})

    async def _kept(self, key: str, asked: Asked, response: ChatResponse) -> ClientNotice | None:
        """Record an answer; what the person should know of it. No answer is lost by it."""
        if response.finish_reason == "error":
            return None
        self._answered[key] += 1
        n = self._earlier + self._answered[key]
        cassette, refresh = self._cassette, self._mode == "refresh"
        exchange = Exchange(key=key, n=n, request=asked, response=response)
        try:
            before = await asyncio.to_thread(cassette.find, key, n) if refresh else None
            await asyncio.to_thread(cassette.add, exchange, replace=refresh)
        except (OSError, ValueError, RecursionError, ModelError) as error:
            return ClientNotice("note", f"not recorded in {cassette.name}: {error}")
        if not refresh:
            return None
        recorded = _text_of_answer(before.response) if before else "no answer"
        changes = _changes(recorded, _text_of_answer(response))
        text = f"changed: {'; '.join(changes[:20])}" if changes else "same answer"
        return ClientNotice("note", f"asked anew; {text}")


def _plain(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """The messages without what varies: calls are counted, and what a vendor adds is left out."""
    numbers: dict[str | None, int] = {}
    count = itertools.count()
    for message in messages:
        plain: dict[str, Any] = {"role": message.role, "name": message.name}
        plain["content"] = [part.model_dump(exclude_none=True) for part in message.content]
        for part in plain["content"]:
            if message.role == "tool" and "text" in part:
                part["text"] = _VARYING.sub(r"\1 0", part["text"])
        plain["calls"] = [
            (call.name, call.arguments_raw if call.arguments is None else call.arguments)
            for call in message.tool_calls
        ]
        plain["answers"] = numbers.get(message.tool_call_id)
        plain["reasoning"] = message.reasoning
        for call in message.tool_calls:
            numbers[call.id] = next(count)
        yield {name: value for name, value in plain.items() if value not in (None, [])}


def _words(plain: Mapping[str, Any]) -> str:
    parts: list[dict[str, Any]] = plain.get("content", [])
    words = (p["text"] if p["type"] == "text" else f"[{p['type']} {sha_of(p)[:8]}]" for p in parts)
    return f"{plain.get('name') or plain['role']}: {_cut(' '.join(words))}"


def _cut(text: str, most: int = 600) -> str:
    """A text that a line can hold; the hash tells two long ones apart."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text):,} characters, {sha_of(text)[:8]})"


def _missing(cassette: Cassette, wanted: Asked, n: int) -> ModelError:
    """Says how the request differs from the nearest recorded one."""
    if cassette.is_missing:
        raise _unusable(
            f"there is no file {cassette.name}, and nothing was asked; check its name and folder,"
            " or record it with cache=auto"
        )
    now = _text_of_request(wanted, n)
    newest = cassette.newest(100)
    recorded = {_text_of_request(one.request, one.n): place for place, one in newest}
    said = f"{cassette.name} holds no answer to this request"
    for nearest in get_close_matches(now, recorded, 1, 0.0):
        listed = "".join(f"\n  {words}" for words in _changes(nearest, now)[:20])
        said += f"; the nearest one ({recorded[nearest]}) differs (- recorded, + now):{listed}"
    return _unusable(f"{said}\nnothing was asked; cache=auto asks and records it")


def _text_of_request(asked: Asked, n: int) -> str:
    facts: dict[str, object] = {"provider": asked.provider, "server": asked.server}
    facts |= {"model": asked.model, "system prompt": asked.system, **asked.params}
    facts |= {f"tool {name}": f"definition {sha}" for name, sha in asked.tools.items()}
    earlier = asked.messages[: len(asked.messages) - len(asked.new)]
    facts |= {f"message {i}": text for i, text in enumerate((*earlier, *asked.new), 1)}
    facts |= {"asked": f"{n} times"} if n > 1 else {}
    return "\n".join(f"{name}: {fact}" for name, fact in facts.items())


def _text_of_answer(response: ChatResponse) -> str:
    calls = [f"call: {one.name}({one.arguments_raw})" for one in response.message.tool_calls]
    return "\n".join([response.message.text, *calls, f"finish: {response.finish_reason}"])


def _changes(recorded: str, now: str) -> list[str]:
    """The lines that differ, as in a diff."""
    pair = recorded.splitlines(), now.splitlines()
    lines = [*unified_diff(*pair, n=0, lineterm="")][2:]
    return [f"{line[0]} {line[1:]}" for line in lines if line[0] in "+-"]
