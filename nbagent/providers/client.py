"""One request to a model server and its answer: attempts, retries, deadlines, what was refused.

The one client of all wires. Shapes of requests and answers are the wire's, bytes are `http`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.model import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    ModelInfo,
    ProviderConfig,
    ResponseMeta,
)
from nbagent.providers.address import normal_base_url, origin
from nbagent.providers.answer.builder import Assembly
from nbagent.providers.answer.reader import NO_CALLS, AnswerReader
from nbagent.providers.provider import whole_response
from nbagent.providers.rate_limits import Limiter, Place, backoff_s
from nbagent.providers.transport.http import (
    BETWEEN_BYTES_S,
    MAX_BODY_BYTES,
    MAX_STREAM_BYTES,
    HttpClient,
)
from nbagent.providers.transport.sse import load_wire
from nbagent.providers.wires.base import Encoding, Parser, Toolset, Wire
from nbagent.providers.wires.encoding import History
from nbagent.providers.workarounds import Refusals, reword

_HISTORIES = 8
_LIST_TIMEOUT_S = 30.0
_MOST_PAGES = 20
_MOST_LIST_BYTES = 4 * 1024 * 1024
_MOST_HOPS = 16
"""An answer that the server gives in parts has at most so many."""
_BYTES_PER_TOKEN = 4
"""Of a request, about; only to share what a server takes."""
_NOT_MISSED = (None, "", (), "auto", "none")
"""Of a field that a wire lacks: not set, or what happens anyway; without a choice of tools, none
are offered."""
_YIELD_BYTES = 64 * 1024
_AFTER_THE_END_S = 0.05
"""A connection that is not at its end so long after the last word is dropped instead of kept."""
_AFTER_FINISH_S = 5.0
"""So long after a finish reason, without the last word, the usage is waited for."""


@dataclass(frozen=True, slots=True)
class WireRequest:
    """What a client would send for a request."""

    url: str
    """Without a query."""
    body: bytes
    dropped_params: tuple[str, ...] = ()
    """What it leaves out because the server refused it before."""


class WireClient:
    """Talks to one server over the wires that it speaks.

    Args:
        wires: the formats of the server; for each request the first one that suits is used.
        config: where the server is; `base_url` must be set.
        provider: the part of a model id before the colon.
        key_variables: where a key may be set, for a server that answers only with one.
        start: the command that starts the server, for the person to whom nothing answers.
    """

    def __init__(
        self,
        wires: Wire | Sequence[Wire],
        config: ProviderConfig,
        *,
        provider: str,
        key_variables: Sequence[str] = (),
        start: str = "",
    ) -> None:
        self._wires: tuple[Wire, ...] = tuple(wires) if isinstance(wires, Sequence) else (wires,)
        first = self._wires[0]
        self.provider = provider
        self._config = config
        self._key_variables = tuple(key_variables)
        endings = [ending for wire in self._wires for ending in wire.endings]
        self._base_url = normal_base_url(config.base_url or "", home=first.home, endings=endings)
        self._origin = origin(self._base_url) or ""
        for wire in self._wires:
            if clash := wire.reserved & config.extra_body.keys():
                raise UsageError(f"extra_body cannot set {', '.join(sorted(clash))}; remove it.")
        account = {
            "OpenAI-Organization": config.organization_id,
            "OpenAI-Project": config.project_id,
        }
        self._limiter = Limiter.of(self._base_url, config.api_key)
        self._http = HttpClient(
            self._base_url,
            key=config.api_key,
            key_header=first.key_header,
            key_prefix=first.key_prefix,
            headers={**{k: v for k, v in account.items() if v}, **config.headers},
            advice=f"start it with `{start}`, or check the base URL." if start else "",
        )
        self._toolset = Toolset((), first)
        self._history = lru_cache(_HISTORIES)(History)

    def __repr__(self) -> str:
        return f"WireClient({self.provider}, {self._http.address.shown!r})"

    async def chat(
        self, request: ChatRequest, *, notify: Callable[[ClientNotice], None] | None = None
    ) -> ChatResponse:
        """One request, one whole answer."""
        return await whole_response(self._exchange(request, stream=False), notify)

    def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk]:
        """One request, its answer in chunks; the last one has `done` and `response`."""
        return self._exchange(request, stream=True)

    def wire_request(self, request: ChatRequest, *, stream: bool) -> WireRequest:
        """What the first attempt would send; nothing is sent. On the engine's loop."""
        attempt = self._prepared(_Exchange(request, stream, 0.0))
        path = attempt.wire.path(request, stream=stream).partition("?")[0]
        return WireRequest(f"{self._http.address.shown}{path}", attempt.body, attempt.changed)

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """Whether the server sees to it that an answer fits a schema."""
        refusals = Refusals.of(self._base_url, request.model)
        return self._wire_for(request, refusals.flags).has_schema_mode(request)

    async def list_models(self) -> list[ModelInfo]:
        """The models that the server offers."""
        wire = self._wires[0]
        deadline = asyncio.get_running_loop().time() + min(_LIST_TIMEOUT_S, self._config.timeout_s)
        models: list[ModelInfo] = []
        page: str | None = ""
        for _ in range(_MOST_PAGES):
            path = wire.models_path
            if page:
                path += f"{'&' if '?' in path else '?'}{page}"
            headers = wire.headers(frozenset())
            sent = self._http.send("GET", path, deadline=deadline, headers=headers)
            async with aclosing(await sent) as response:
                body = await response.read(_MOST_LIST_BYTES)
            try:
                found, page = wire.models(load_wire(body))
            except (ValueError, RecursionError, ModelError):
                raise ModelError(
                    f"{self._http.address.shown}{wire.models_path} did not answer with a list of"
                    " models; check the base URL.",
                    code="LLM_BAD_RESPONSE",
                ) from None
            models += found
            if not page:
                break
        return models

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def _exchange(self, request: ChatRequest, *, stream: bool) -> AsyncGenerator[ChatChunk]:
        """The one body of `chat` and `chat_stream`: attempts until an answer or a final error."""
        if self._key_variables and not self._http.has_key:
            raise ModelError(
                f"there is no key for {self._http.address.server}; set"
                f" {' or '.join(self._key_variables)}, or name another server (base_url).",
                code="LLM_AUTH_FAILED",
            )
        deadline = asyncio.get_running_loop().time() + self._config.timeout_s
        exchange = _Exchange(request, stream, deadline)
        while True:
            attempt = self._prepared(exchange)
            into = attempt.into
            fault: ModelError | None = None
            try:
                with Place(self._limiter, len(attempt.body) // _BYTES_PER_TOKEN) as place:
                    while wait_s := await place.turn(deadline):
                        told = f"waiting {wait_s:.1f} s: rate limit of {self._http.address.server}"
                        yield ChatChunk(notice=ClientNotice("wait", told, wait_s=wait_s))
                    exchange.waited_s += place.waited_s
                    async with aclosing(self._attempted(exchange, attempt, place)) as pieces:
                        async for _ in pieces:
                            for chunk in exchange.shows(into):
                                yield chunk
            except ModelError as error:
                fault = error
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                fault = ModelError(f"the client failed ({what}); please report it.")
            # What came before a fault, in the same packet, is kept.
            for chunk in exchange.shows(into):
                yield chunk
            if fault is None and into.error:
                yield ChatChunk(notice=_late(into.error, into))
            if fault is not None and not exchange.shown and _is_filtered(fault):
                into.finish("content_filter")
                exchange.request_id, fault = fault.request_id, None
            if fault is None:
                if into.go_on is None or exchange.hops >= _MOST_HOPS:
                    yield _last_chunk(into, exchange, attempt.changed)
                    return
                exchange.hops += 1
                exchange.into, exchange.go_on = into, into.go_on
                into.begin_hop()
                continue
            notice = None if exchange.shown else self._notice_of(exchange, fault, attempt)
            if notice is None:
                try:
                    raise fault
                finally:
                    # Its traceback holds this frame: a failed answer would stay with the error.
                    del fault, attempt, into
            yield ChatChunk(notice=notice)
            await asyncio.sleep(notice.wait_s)

    def _prepared(self, exchange: _Exchange) -> _Attempt:
        """The next attempt: its wire, its body and what will read its answer."""
        request = exchange.request
        refusals = Refusals.of(self._base_url, request.model)
        flags = refusals.flags
        wire = self._wire_for(request, flags)
        # Comparing tuples of the same objects is a comparison of pointers.
        if self._toolset.wire is not wire or self._toolset.tools != request.tools:
            self._toolset = Toolset(request.tools, wire)
        toolset = self._toolset
        params = wire.params(request, toolset.names, flags, stream=exchange.stream)
        wire.join_extra(params, self._config.extra_body)
        params.update(exchange.go_on)
        lacking = tuple(n for n in sorted(wire.lacks) if getattr(request, n) not in _NOT_MISSED)
        changed = (*lacking, *refusals.apply(params))
        context = Encoding(self._origin, request.model, toolset.names, bool(request.tools), flags)
        body = self._history(wire, context).body(request, toolset.encoded, params)
        into = exchange.into
        if into is None:
            source = {"provider": self.provider, "origin": self._origin, "model": request.model}
            into = Assembly(toolset.names, source, think_tags=wire.think_tags)
        parser = wire.parser(request, into)
        return _Attempt(wire, params, flags, changed, body, into, parser, refusals)

    def _wire_for(self, request: ChatRequest, flags: frozenset[str]) -> Wire:
        return next((w for w in self._wires if w.suits(request, flags)), self._wires[-1])

    def _notice_of(
        self, exchange: _Exchange, fault: ModelError, attempt: _Attempt
    ) -> ClientNotice | None:
        """What is told before another attempt, and how long that waits; None: there is none."""
        lesson = attempt.wire.lesson(fault, exchange.request, attempt.flags)
        if lesson is not None and lesson.flag not in attempt.flags:
            attempt.refusals.flags |= {lesson.flag}
            text = lesson.text
        else:
            text = attempt.refusals.learn(fault, attempt.params)
        if text:
            return ClientNotice("dropped_param", f"{text}.", error=fault.info)
        if fault.details.get("code") in ("tool_use_failed", NO_CALLS):
            fault.retryable, exchange.regenerated = not exchange.regenerated, True
        reword(fault, exchange.request)
        left_s = exchange.deadline - asyncio.get_running_loop().time()
        wait_s = backoff_s(fault, exchange.attempts, self._config.retries)
        if wait_s is None or wait_s >= left_s:
            return None
        exchange.attempts += 1
        exchange.waited_s += wait_s
        text = f"{fault.message} Trying again in {wait_s:.1f} s."
        return ClientNotice("retry", text, exchange.attempts - 1, wait_s, fault.info)

    async def _attempted(
        self, exchange: _Exchange, attempt: _Attempt, place: Place
    ) -> AsyncGenerator[None]:
        """One request on the wire; a step for each piece of its answer."""
        wire, into = attempt.wire, attempt.into
        streams = exchange.stream and "stream" not in attempt.changed
        response = await self._http.send(
            "POST",
            wire.path(exchange.request, stream=exchange.stream),
            attempt.body,
            deadline=exchange.deadline,
            between_bytes_s=BETWEEN_BYTES_S if streams else self._config.timeout_s,
            headers=wire.headers(attempt.flags),
        )
        self._limiter.learn(place, response.status, response.headers)
        exchange.request_id = response.request_id
        reader = AnswerReader(attempt.parser, into, wire.framing())
        taken = 0
        limit = MAX_STREAM_BYTES if exchange.stream else MAX_BODY_BYTES
        try:
            async with aclosing(response.pieces(limit)) as pieces:
                async for piece in pieces:
                    taken += len(piece)
                    if taken > _YIELD_BYTES:
                        # What arrives faster than it is read must not keep other runs waiting.
                        taken = 0
                        await asyncio.sleep(0)
                    ended = into.ended
                    reader.feed(piece)
                    yield
                    if into.ended and not ended:
                        response.shorten(_AFTER_THE_END_S)
                    elif into.finished and not into.ended:
                        response.shorten(_AFTER_FINISH_S)
        except ModelError as error:
            # A connection that breaks after the end of the answer takes nothing away.
            silent = error.code == "LLM_TIMEOUT" and error is not into.error
            if not into.stands(silent=silent):
                raise
        finally:
            await response.aclose()
        reader.end()


@dataclass(slots=True)
class _Exchange:
    """What stays the same over the attempts of one request."""

    request: ChatRequest
    stream: bool
    deadline: float
    request_id: str | None = None
    shown: bool = False
    """Something of the answer was given on: it cannot be asked for again."""
    attempts: int = 1
    """Without those that a refused parameter cost."""
    waited_s: float = 0.0
    regenerated: bool = False
    """A call that could not be read was asked for once more."""
    hops: int = 0
    into: Assembly | None = None
    """The answer so far, where the server gives it in parts."""
    go_on: dict[str, Any] = field(default_factory=dict[str, Any])

    def shows(self, into: Assembly) -> Iterator[ChatChunk]:
        """What has come since the last time."""
        for chunk in into.take_chunks():
            self.shown = True
            yield chunk


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One request that is ready to be sent."""

    wire: Wire
    params: dict[str, Any]
    flags: frozenset[str]
    changed: tuple[str, ...]
    """Parameters that are not sent as asked."""
    body: bytes
    into: Assembly
    parser: Parser
    refusals: Refusals


def _late(error: ModelError, into: Assembly) -> ClientNotice:
    whole = "cut at its length" if into.was_cut_by_length else "whole"
    told = f"The server sent an error behind the answer, which is {whole}: {error.server_text}"
    return ClientNotice("note", told, error=error.info)


def _is_filtered(fault: ModelError) -> bool:
    # Azure refuses a prompt by a 400, OpenRouter by a 403: the end of a turn, no failure.
    return fault.details.get("code") == "content_filter"


def _last_chunk(into: Assembly, exchange: _Exchange, changed: tuple[str, ...]) -> ChatChunk:
    meta = ResponseMeta(
        request_id=exchange.request_id,
        attempts=exchange.attempts,
        retry_wait_ms=exchange.waited_s * 1000,
        dropped_params=changed,
    )
    response = into.response(meta)
    return ChatChunk(
        done=True,
        finish_reason=response.finish_reason,
        usage=response.usage,
        response=response,
    )
