"""The tables of cases that every wire brings, and how they are played through the client.

A case is bytes in, response out; or a request in, JSON out. Nothing here knows a wire. A new
wire writes a module `NAME_cases` with `WIRE = WireSetup(...)`, adds it to `test_every_wire.WIRES`
and writes rows until `test_every_quirk_of_the_wire_has_a_case` passes: `AnswerCase(id, stream=…,
body=…, text=…, calls=…)`, `RequestCase(…)`, `ModelsCase(…)`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import (
    AsyncGenerator,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar, cast

import pytest
from servers.player import Ending, Framing, Play, Player

from nbagent.contracts.corrections import AnswerRestarted, CallCorrected, TextCorrected
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import Message, TextPart
from nbagent.contracts.model import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ModelInfo,
    ProviderConfig,
    ToolSpec,
)
from nbagent.contracts.ports import ChatClient
from nbagent.contracts.secrets import SecretKey
from nbagent.providers.catalogue import find_provider
from nbagent.providers.client import WireClient
from nbagent.providers.provider import Provider

T = TypeVar("T")
JSON = dict[str, Any]
KEY = "sk-test-0123456789abcdef"
LOOK = ToolSpec(
    name="fs.look", parameters={"type": "object", "properties": {"at": {"type": "string"}}}
)
TOOLS = (LOOK, ToolSpec(name="b"), ToolSpec(name="c"))
"""Offered in every case that does not say otherwise."""
ABSENT: Any = "ABSENT"
"""In an expected object: this key must not be there."""


@dataclass(frozen=True)
class Exactly:
    """In an expected object: this value, without further keys."""

    value: Any


Result = ChatResponse | ModelError
Outcome = tuple[list[ChatChunk], Result]


def ask(text: str = "hi", **more: Any) -> ChatRequest:
    given: JSON = {"model": "m", "messages": (Message.of("user", text),), **more}
    return ChatRequest(**given)


def asked_next(request: ChatRequest, answer: ChatResponse) -> ChatRequest:
    """The next request, which holds the answer and the results of its calls."""
    # It goes through a record, as in a conversation that is taken up again.
    message = Message.model_validate_json(answer.message.model_dump_json())
    done = (TextPart(text='{"ok":true,"data":1}'),)
    results = [
        Message(role="tool", tool_call_id=call.id, name=call.name, content=done)
        for call in message.tool_calls
    ]
    return request.model_copy(update={"messages": (*request.messages, message, *results)})


def everything(**changed: Any) -> ChatRequest:
    """A request with every parameter set."""
    tools = (ToolSpec(name="fs.read", description="Read."), ToolSpec(name="b"))
    given: JSON = {
        "system_prompt": "Be brief.",
        "tools": tools,
        "tool_choice": "fs.read",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 7,
        "stop_sequences": ("X",),
        "reasoning": "low",
        "output_schema": {"type": "object"},
    }
    return ask(**{**given, **changed})


@dataclass(frozen=True)
class AnswerCase:
    """Answer of a server, and its result. Either form may be missing.

    A body without a stream is also what a streamed request gets: it must be read all the same.
    """

    id: str
    _: KW_ONLY
    body: bytes = b""
    stream: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    request: ChatRequest = field(default_factory=lambda: ask(tools=TOOLS))
    framing: Framing = "chunked"
    ending: Ending = "clean"
    then: bytes = b""
    """The answer to later requests; retries are allowed then."""
    server: str = ""
    """A name of `WireSetup.servers`, reached through a proxy that plays it; empty: loopback."""
    back: JSON | None = None
    """As in `matches`: the body of the next request, which holds the answer and its results."""
    next_server: str | None = None
    """Where the next request goes, if not to the same server."""
    next_model: str = ""
    thorough: bool = False
    """Cut at every byte, sent byte by byte, wrong values in every place. Needs both forms."""
    whole_pieces: bool = False
    """Bytes after the end count only if they came with it."""
    # What the answer comes to; with `error` it is a ModelError, else a response.
    text: str = ""
    reasoning: str | None = None
    calls: Sequence[tuple[str, JSON | str]] = ()
    """Tool's own name and arguments; a str: no object, kept so as `arguments_raw`."""
    ids: Sequence[str] | None = None
    extras: Sequence[JSON | None] | None = None
    finish: str | None = None
    """By default `tool_calls` with calls, else `stop`."""
    usage: Mapping[str, int] | None = None
    """Those that are not 0; None: not looked at."""
    raw: JSON | None = None
    """As in `matches`; ABSENT: there is none."""
    error: str = ""
    words: str = ""
    """Stand in the error's message."""
    http_status: int | None = None
    """Of the error."""
    retryable: bool | None = None
    notes: Sequence[str] = ()
    """Words of the notices that stay with the answer, one each."""
    asked: int = 1
    """Number of requests that were made."""

    def play(self, *, stream: bool, body: bytes | None = None, **how: Any) -> Play:
        """The answer in one of its forms, or a changed one; `how`: fields of Play."""
        streamed = stream and bool(self.stream)
        kind = "text/event-stream" if streamed else "application/json"
        headers = {"content-type": kind, "retry-after": "0", **self.headers}
        given = (self.stream if streamed else self.body) if body is None else body
        how = {"framing": self.framing, "ending": self.ending, **how}
        return Play(given, self.status, headers, **how)


@dataclass(frozen=True)
class RequestCase:
    """Request as it is on the wire, at one of the setup's servers. Nothing is sent."""

    id: str
    request: ChatRequest
    expect: JSON
    """As in `matches`."""
    _: KW_ONLY
    server: str = ""
    """A name of `WireSetup.servers`; empty: loopback."""
    url: str = ""
    stream: bool = False
    only: bool = False
    """The body has no other keys."""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class ModelsCase:
    """A list of models, and what is known of them: id, context length, capabilities."""

    id: str
    body: Any
    expect: Sequence[tuple[str, int | None, Sequence[str]]] | str
    """A str: the code of an error."""


@dataclass(frozen=True, kw_only=True)
class WireSetup:
    """A wire with its cases."""

    name: str
    provider: str | Provider
    """A provider that nbagent knows by this name, or one of another package."""
    quirks: Sequence[int] = ()
    """Numbers of documented quirks of its servers: each is `#n` in the id of at least one case."""
    ended: re.Pattern[bytes]
    """The marker by which a stream says that its answer is complete, to the end of its line."""
    path: str = "/v1"
    conversation: str = "messages"
    """The field of a request that grows."""
    takes_pictures: bool = True
    """False: a request with an image is one clear error."""
    servers: Mapping[str, str] = field(default_factory=dict[str, str])
    answers: Sequence[AnswerCase]
    requests: Sequence[RequestCase]
    histories: Mapping[str, tuple[list[Message], list[Any]]] = field(
        default_factory=dict[str, tuple[list[Message], list[Any]]]
    )
    """Messages, and how they are sent."""
    urls: Mapping[str, str] = field(default_factory=dict[str, str])
    """Base URLs that a person gives, and the URL of a chat for each."""
    models: Sequence[ModelsCase] = ()

    @property
    def all_requests(self) -> Iterator[RequestCase]:
        """Also those of the histories and base URLs."""
        yield from self.requests
        for id, (messages, sent) in self.histories.items():
            yield RequestCase(id, ask(messages=tuple(messages)), {self.conversation: sent})
        for given, url in self.urls.items():
            id = f"base URL {given} {'#52' if '?' in given else '#64'}"
            yield RequestCase(id, ask(), {}, server=given, url=url)


class World:
    """One loop and one server for all cases."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self.player = Player()
        self.run(self.player.start())

    def close(self) -> None:
        self.run(self.player.stop())
        self._runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    @asynccontextmanager
    async def client(
        self, wire: WireSetup, base_url: str = "", **config: Any
    ) -> AsyncGenerator[ChatClient]:
        """A client of the wire's provider; of the loopback server by default."""
        config = {"api_key": SecretKey(KEY), "retries": 0, **config}
        config["base_url"] = base_url or self.player.origin + wire.path
        provider = wire.provider
        provider = find_provider(provider) if isinstance(provider, str) else provider
        client = provider.open(ProviderConfig(**config))
        try:
            yield client
        finally:
            await client.close()

    def chat(
        self, wire: WireSetup, request: ChatRequest, url: str = "", **how: Any
    ) -> ChatResponse:
        """The answer to one request, of a client of its own."""

        async def go() -> ChatResponse:
            async with self.client(wire, url, **how) as client:
                return await client.chat(request)

        return self.run(go())

    @contextmanager
    def as_proxy(self) -> Generator[None]:
        """The player is the proxy to every address meanwhile."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("HTTP_PROXY", "http_proxy", "https_proxy"):
                patch.setenv(name, self.player.origin)
            for name in ("NO_PROXY", "no_proxy"):
                patch.delenv(name, raising=False)
            yield

    def answers(
        self, wire: WireSetup, case: AnswerCase, plays: Iterable[Play], *, stream: bool
    ) -> list[Outcome]:
        """Outcomes of the case's request when each of these is played to one client."""

        async def go() -> list[Outcome]:
            retries = 2 if case.then else 0
            later = [Play(case.then)] if case.then else []
            outcomes: list[Outcome] = []
            base_url = plain_url(wire, case.server)
            async with self.client(wire, base_url, retries=retries) as client:
                for play in plays:
                    self.player.play([play, *later])
                    outcomes.append(await _outcome(client, case.request, stream))
            return outcomes

        with self.as_proxy():
            return self.run(go())

    def answer(
        self, wire: WireSetup, case: AnswerCase, *, stream: bool, pieces: int = 0
    ) -> Outcome:
        plays = [case.play(stream=stream, pieces=pieces)]
        return self.answers(wire, case, plays, stream=stream)[0]

    def wire_request(
        self, wire: WireSetup, request: ChatRequest, base_url: str = "", **how: Any
    ) -> tuple[str, Any]:
        """URL and JSON of what would be sent."""
        stream = how.pop("stream", False)

        async def go() -> tuple[str, Any]:
            async with self.client(wire, base_url, **how) as client:
                assert isinstance(client, WireClient)
                made = client.wire_request(request, stream=stream)
                assert made == client.wire_request(request, stream=stream), "twice the same"
                return made.url, json.loads(made.body)

        return self.run(go())

    def models(self, wire: WireSetup, case: ModelsCase) -> list[ModelInfo] | ModelError:
        async def go() -> list[ModelInfo] | ModelError:
            body = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
            self.player.play([Play(body)])
            async with self.client(wire) as client:
                try:
                    return await client.list_models()
                except ModelError as error:
                    return error

        return self.run(go())


async def _outcome(client: ChatClient, request: ChatRequest, stream: bool) -> Outcome:
    chunks: list[ChatChunk] = []
    try:
        if not stream:
            return chunks, await client.chat(request)
        async for chunk in client.chat_stream(request):
            assert not any(earlier.done for earlier in chunks), "a chunk behind the last one"
            chunks.append(chunk)
    except ModelError as error:
        return chunks, error
    response = chunks[-1].response
    assert chunks[-1].done
    assert response
    return chunks, response


def plain_url(wire: WireSetup, server: str) -> str:
    """A server's base URL without TLS, so that a proxy can play it; empty for loopback."""
    return wire.servers[server].replace("https:", "http:") if server else ""


def matches(expected: Any, found: Any, at: str = "") -> None:
    """Assert that a value is as expected: objects may have more keys, `...` is anything."""
    if isinstance(expected, Exactly):
        assert found == expected.value, f"{at}: {found!r}"
    elif isinstance(expected, dict):
        assert isinstance(found, dict), f"{at}: {found!r} is no object"
        for key, value in cast("JSON", expected).items():
            inner = cast("JSON", found).get(key, ABSENT)
            matches(value, inner, f"{at}.{key}")
    elif isinstance(expected, list):
        wanted, given = cast("list[Any]", expected), cast("list[Any]", found)
        assert isinstance(found, list), f"{at}: {found!r} is no list"
        assert len(wanted) == len(given), f"{at}: {given!r}"
        for n, (want, got) in enumerate(zip(wanted, given, strict=True)):
            matches(want, got, f"{at}[{n}]")
    elif expected is not ...:
        assert found == expected, f"{at}: {found!r}, not {expected!r}"


def check(case: AnswerCase, outcome: Outcome) -> None:
    """Assert that an answer came to what the case says, and that its chunks agree with it."""
    chunks, result = outcome
    if case.error:
        assert isinstance(result, ModelError), f"a response: {result!r}"
        assert (result.code, case.words in str(result)) == (case.error, True), str(result)
        assert result.message.isprintable(), "more than one line"
        assert case.retryable in (None, result.retryable)
        assert case.http_status in (None, result.status)
        assert result.__context__ is None, "what is behind it may show a key"
        assert KEY[:10] not in f"{result} {result!r} {vars(result)}"
        return
    assert isinstance(result, ChatResponse), f"an error: {result}"
    message = result.message
    assert (message.text, message.reasoning) == (case.text, case.reasoning)
    calls, ids = message.tool_calls, [call.id for call in message.tool_calls]
    for call, (name, given) in zip(calls, case.calls, strict=True):
        found = call.arguments_raw if isinstance(given, str) else call.arguments
        assert (call.name, found) == (name, given)
        assert call.arguments is None or not isinstance(given, str)
    assert all(ids)
    assert len({*ids}) == len(ids)
    assert case.ids in (None, ids)
    assert case.extras in (None, [call.extra for call in message.tool_calls])
    assert result.finish_reason == (case.finish or ("tool_calls" if calls else "stop"))
    used = {name: n for name, n in (result.usage.model_dump() if result.usage else {}).items() if n}
    assert case.usage in (None, used)
    if found := result.usage:
        assert 0 <= found.cached_tokens <= found.prompt_tokens
        assert 0 <= found.reasoning_tokens <= found.completion_tokens
    if case.raw is not None:
        sent_back = result.message.raw
        matches(case.raw, ABSENT if sent_back is None else sent_back, "raw")
    if chunks:
        check_chunks(case, chunks, result)


@dataclass
class Shown:
    """What a person sees who follows the chunks of an answer, corrections included."""

    text: str = ""
    reasoning: str = ""
    calls: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])

    def add(self, chunk: ChatChunk) -> None:
        self.text += chunk.content
        self.reasoning += chunk.reasoning
        if delta := chunk.tool_call_delta:
            name, arguments = self.calls.get(delta.index, ("", ""))
            self.calls[delta.index] = (delta.name or name, arguments + delta.arguments)
        match chunk.correction:
            case TextCorrected(text, reasoning):
                self.text = self.text if text is None else text
                self.reasoning = self.reasoning if reasoning is None else reasoning
            case CallCorrected(index, name, arguments):
                before = self.calls.get(index, ("", ""))
                self.calls[index] = (
                    before[0] if name is None else name,
                    before[1] if arguments is None else arguments,
                )
            case AnswerRestarted():
                self.text, self.reasoning, self.calls = "", "", {}
            case None:
                pass


def check_chunks(case: AnswerCase, chunks: list[ChatChunk], response: ChatResponse) -> None:
    """Assert that what was streamed is what the response holds."""
    message = response.message
    shown = Shown()
    for chunk in chunks:
        shown.add(chunk)
    assert (shown.text, shown.reasoning) == (message.text, message.reasoning or "")
    written = [(call.name, call.arguments_raw) for call in message.tool_calls]
    assert [shown.calls[index] for index in sorted(shown.calls)] == written
    said = [chunk.notice.text for chunk in chunks if chunk.notice and chunk.notice.kind == "note"]
    assert len(said) == len(case.notes), said
    assert all(words in text for words, text in zip(case.notes, said, strict=True))
    last = chunks[-1]
    assert (last.finish_reason, last.usage) == (response.finish_reason, response.usage)
