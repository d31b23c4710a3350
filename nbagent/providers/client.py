"""One request to a model server and its answer: attempts, retries, deadlines, workarounds.

The one client of all wires. A wire knows the format of requests and answers, `transport` moves
the bytes, `answer` builds the response.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from nbagent.contracts.chat_doors import ChatDoors
from nbagent.contracts.deltas import Delta
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.model import (
    ChatRequest,
    ClientNotice,
    ModelInfo,
    ProviderConfig,
    ResponseMeta,
)
from nbagent.contracts.secrets import SecretKey
from nbagent.engine.overflow import CHARS_PER_TOKEN, request_chars
from nbagent.providers.address import normalize_base_url, origin
from nbagent.providers.answer.answer_pipe import AnswerPipe
from nbagent.providers.answer.stream_reader import AnswerReader
from nbagent.providers.keys import KeyHeader
from nbagent.providers.rate_limits import Limiter, RequestSlot, backoff_s
from nbagent.providers.reasoning_budget import budget_notice
from nbagent.providers.refusals import (
    MAX_WORKAROUNDS,
    Refusal,
    explain_refusal,
    find_workaround,
    make_final,
)
from nbagent.providers.transport.http import (
    BETWEEN_BYTES_S,
    MAX_ANSWER_BYTES,
    HttpClient,
)
from nbagent.providers.transport.sse import load_wire
from nbagent.providers.wires.base import EncodingContext, Parser, Toolset, Wire
from nbagent.providers.wires.encoding import MessageEncoder
from nbagent.providers.wires.wire_check import check_wires, other_package
from nbagent.providers.workarounds import ModelWorkarounds

_MAX_ENCODERS = 8
_LIST_TIMEOUT_S = 30.0
_MAX_PAGES = 20
_MAX_LIST_BYTES = 4 * 1024 * 1024
_MAX_CONTINUATIONS = 16
"""Follow-up requests for one answer that the server gives in parts."""
_BYTES_PER_TOKEN = 4
"""Rough size of a token in a request; used only to share a server's rate limit."""
_DEFAULT_VALUES = (None, "", (), "auto", "none")
"""Values of a request's field that need no notice if the wire has no such field: not set, or the
server's behaviour without it. (With `tool_choice="none"` such a wire sends no tools.)"""
_YIELD_BYTES = 64 * 1024
_CLOSE_AFTER_END_S = 0.05
"""A connection whose body is still open this long after the answer's end is dropped. Waiting
longer would delay the run only to keep a connection."""
_SMALLEST_CONTEXT = 4096
"""Tokens that every server gives a model; whether it gives more matters for longer requests only.
The smallest default of Ollama."""
_LOADED_TIMEOUT_S = 2.0
_USAGE_WAIT_S = 5.0
"""Wait for the usage after a finish reason. Some servers never send the last event; a whole
answer must not fail because of it."""


@dataclass(frozen=True, slots=True)
class WireRequest:
    """Request as a client would send it."""

    url: str
    """URL without its query."""
    body: bytes
    dropped_params: tuple[str, ...] = ()
    """Parameters left out because the server refused them before."""


class WireClient(ChatDoors):
    """Talks to one server over the wires that it speaks.

    Args:
        wires: formats of the server; each request uses the first one that accepts it.
        config: server and key; `base_url` must be set.
        provider: the part of a model id before the colon.
        key_variables: environment variables for the key, if the server requires one.
        key_header: header for the key, if the server's differs from that of the first wire.
        start: command that starts the server; shown if nothing answers there.
        default_path: path to add to a base URL that names only a host, if the wire names none.
    Raises:
        UsageError: a wire lacks something (the message says what to write), or `extra_body` holds
            something that a wire sends itself.
    """

    def __init__(
        self,
        wires: Wire | Sequence[Wire],
        config: ProviderConfig,
        *,
        provider: str,
        key_variables: Sequence[str] = (),
        key_header: KeyHeader | None = None,
        start: str = "",
        default_path: str = "/v1",
    ) -> None:
        self._wires: tuple[Wire, ...] = tuple(wires) if isinstance(wires, Sequence) else (wires,)
        check_wires(self._wires)
        first = self._wires[0]
        self.provider = provider
        self._config = config
        self._key_variables = tuple(key_variables)
        paths = [path for wire in self._wires for path in wire.endpoint_paths]
        if first.default_path is not None:
            default_path = first.default_path
        self._base_url = normalize_base_url(
            config.base_url or "", default_path=default_path, endpoint_paths=paths
        )
        self._origin = origin(self._base_url) or ""
        for wire in self._wires:
            if clash := wire.reserved_keys & config.extra_body.keys():
                raise UsageError(f"extra_body cannot set {', '.join(sorted(clash))}; remove it.")
        account = {
            header: getattr(config, field) for field, header in first.account_headers.items()
        }
        self._http = HttpClient(
            self._base_url,
            key=config.key,
            key_header=key_header or KeyHeader(first.key_header, first.key_prefix),
            headers={**{k: v for k, v in account.items() if v}, **config.headers},
            advice=f"start it with `{start}`, or check the base URL." if start else "",
            withheld_key=config.withheld_key,
        )
        self._toolset = Toolset((), first)
        self._contexts: dict[str, int | None] = {}
        """Contexts that the server gave to models, by model; None if it did not say."""
        self._encoder_for = lru_cache(_MAX_ENCODERS)(MessageEncoder)

    def __repr__(self) -> str:
        return f"WireClient({self.provider}, {self._http.address.display_url!r})"

    def wire_request(self, request: ChatRequest, *, stream: bool) -> WireRequest:
        """Build the first attempt without sending it. Call it on the engine's loop."""
        attempt = self._prepare(_RequestState(request, stream, 0.0))
        path = attempt.wire.path(request, stream=attempt.streamed).partition("?")[0]
        return WireRequest(
            f"{self._http.address.display_url}{path}", attempt.body, attempt.dropped_params
        )

    def endpoint(self, request: ChatRequest) -> tuple[str, Mapping[str, str]]:
        """Return the path of a request below the base URL, and the headers of its wire."""
        learnt = ModelWorkarounds.for_model(self._base_url, request.model)
        wire = self._select_wire(request, learnt.names)
        return wire.path(request, stream=False), wire.headers(learnt.names)

    def http_at(self, version: tuple[str, str] = ("", "")) -> HttpClient:
        """Return the connection to the server, for requests that are no question to a model.

        Args:
            version: end of the base URL's path, and the text that replaces it.
        """
        old, new = version
        parts = urlsplit(self._base_url)
        if not old or not parts.path.endswith(old):
            return self._http
        path = parts.path.removesuffix(old) + new
        return self._http.at(urlunsplit(parts._replace(path=path)))

    async def read_answer(
        self,
        request: ChatRequest,
        body: bytes,
        *,
        fault: ModelError | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[Delta]:
        """Yield the answer to a request that came by another way, such as a file of results.

        Args:
            body: the whole answer, as the server would send it without a stream.
            fault: the error that came in place of an answer. A workaround is learnt from it.
        """
        state = _RequestState(request, False, asyncio.get_running_loop().time())
        state.request_id = request_id
        attempt = self._prepare(state)
        pipe = attempt.pipe
        if fault is not None and fault.kind == "content_filter":
            pipe.finish("content_filter")
        elif fault is not None:
            notice = self._workaround_notice(state, fault, attempt)
            explain_refusal(fault, request)
            if notice is not None:
                fault.message += f" {notice.text} The next batch does so."
            raise fault
        else:
            reader = AnswerReader(attempt.parser, pipe, attempt.wire.framing())
            for delta in chain(reader.feed(body), reader.end()):
                yield delta
        for delta in pipe.end(state.meta(attempt.dropped_params)):
            yield delta

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """True if the server itself forces an answer into a schema."""
        learnt = ModelWorkarounds.for_model(self._base_url, request.model)
        return self._select_wire(request, learnt.names).has_schema_mode(request)

    async def list_models(self) -> list[ModelInfo]:
        """List the models of the server."""
        wire = self._wires[0]
        deadline = asyncio.get_running_loop().time() + min(_LIST_TIMEOUT_S, self._config.timeout_s)
        models: list[ModelInfo] = []
        page: str | None = ""
        for _ in range(_MAX_PAGES):
            path = wire.models_path
            if page:
                path += f"{'&' if '?' in path else '?'}{page}"
            headers = wire.headers(frozenset())
            response_coming = self._http.send("GET", path, deadline=deadline, headers=headers)
            async with aclosing(await response_coming) as response:
                body = await response.read(_MAX_LIST_BYTES)
            try:
                listed, page = wire.read_models(load_wire(body))
            except (ValueError, RecursionError, ModelError):
                raise ModelError(
                    f"{self._http.address.display_url}{wire.models_path} did not answer with a list"
                    " of models; check the base URL.",
                    code="LLM_BAD_RESPONSE",
                ) from None
            models += listed
            if not page:
                break
        if not wire.loaded_path:
            return models
        loaded = await self._loaded_models(wire, deadline)
        extra = self._config.extra_body
        sizes = [wire.context_in_use(model.id, extra, loaded) for model in models]
        return [
            model.model_copy(update={"context_length": size or model.context_length})
            for model, size in zip(models, sizes, strict=True)
        ]

    async def _loaded_models(self, wire: Wire, deadline: float) -> Any:
        """List the loaded models; None if the server does not say it: a fact beside the answer."""
        try:
            response_coming = self._http.send("GET", wire.loaded_path, deadline=deadline)
            async with aclosing(await response_coming) as response:
                return load_wire(await response.read(_MAX_LIST_BYTES))
        except (ValueError, RecursionError, ModelError):
            return None

    async def _context_in_use(self, wire: Wire, request: ChatRequest) -> int | None:
        """Context that the server gives the model of a long request; None if it need not be asked.

        Asked once for a model, when it has answered: before, it may not be loaded.
        """
        if not wire.loaded_path or request_chars(request) < _SMALLEST_CONTEXT * CHARS_PER_TOKEN:
            return None
        if request.model not in self._contexts:
            extra = self._config.extra_body
            if (size := wire.context_in_use(request.model, extra, None)) is None:
                deadline = asyncio.get_running_loop().time() + _LOADED_TIMEOUT_S
                loaded = await self._loaded_models(wire, deadline)
                size = wire.context_in_use(request.model, extra, loaded)
            self._contexts[request.model] = size
        return self._contexts[request.model]

    async def _add_context(self, fault: ModelError, wire: Wire, request: ChatRequest) -> None:
        """Add the context in use to an error that says only that the request is too long."""
        if fault.code != "LLM_CONTEXT_OVERFLOW" or "context_tokens" in fault.details:
            return
        if context := await self._context_in_use(wire, request):
            fault.details["context_tokens"] = context

    async def _cut_notice(self, wire: Wire, request: ChatRequest) -> ClientNotice | None:
        """Notice after an answer to a request that the server has probably cut."""
        context = await self._context_in_use(wire, request)
        if context is None or (tokens := request_chars(request) // CHARS_PER_TOKEN) <= context:
            return None
        text = (
            f"the request has about {tokens:,} tokens (estimated), but the server gives this model "
            f"a context of {context:,} and leaves out what is too long, without an error; set a "
            'larger one with extra_body={"num_ctx": N}.'
        )
        return ClientNotice("note", text)

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def send(self, request: ChatRequest, *, stream: bool) -> AsyncGenerator[Delta]:
        """Send one request; yield its answer. Attempt until an answer or a final error."""
        if self._key_variables and not self._http.has_key:
            raise ModelError(
                f"there is no key for {self._http.address.server}; set"
                f" {' or '.join(self._key_variables)}, or name another server (base_url).",
                code="LLM_AUTH_FAILED",
            )
        deadline = asyncio.get_running_loop().time() + self._config.timeout_s
        state = _RequestState(request, stream, deadline)
        if text := self._budget_notice(request, stream):
            yield ClientNotice("note", f"{text}.")
        while True:
            attempt = self._prepare(state)
            pipe = attempt.pipe
            fault: ModelError | None = None
            try:
                key = await self._http.current_key(deadline)
                limiter = Limiter.shared(self._base_url, key)
                with RequestSlot(limiter, len(attempt.body) // _BYTES_PER_TOKEN) as slot:
                    while wait_s := await slot.acquire(deadline):
                        text = f"waiting {wait_s:.1f} s: rate limit of {self._http.address.server}"
                        yield ClientNotice("wait", text, wait_s=wait_s)
                    state.waited_s += slot.waited_s
                    async with aclosing(self._send_attempt(state, attempt, slot, key)) as deltas:
                        async for delta in deltas:
                            state.has_output = True
                            yield delta
            except ModelError as error:
                fault = error
            except Exception as error:
                fault = _code_fault(error, attempt.wire)
            if fault is None and pipe.error:
                yield _late_error_notice(pipe.error, pipe)
            # Azure refuses a filtered prompt with status 400, OpenRouter with 403. That ends the
            # turn with `content_filter`, as a filter in the stream does; it is no failure.
            if fault is not None and not state.has_output and fault.kind == "content_filter":
                pipe.finish("content_filter")
                state.request_id, fault = fault.request_id, None
            if fault is None:
                if pipe.continuation is None or state.continuations >= _MAX_CONTINUATIONS:
                    if cut := await self._cut_notice(attempt.wire, request):
                        yield cut
                    for delta in pipe.end(state.meta(attempt.dropped_params)):
                        yield delta
                    return
                state.continuations += 1
                state.pipe, state.continuation = pipe, pipe.continuation
                pipe.begin_continuation()
                continue
            notice = None if state.has_output else self._retry_notice(state, fault, attempt)
            if notice is None:
                await self._add_context(fault, attempt.wire, request)
                try:
                    raise fault
                finally:
                    # The error's traceback holds this frame and with it the failed answer.
                    del fault, attempt, pipe
            yield notice
            await asyncio.sleep(notice.wait_s)

    def _prepare(self, state: _RequestState) -> _Attempt:
        """Prepare the next attempt: wire, body and the parser for its answer."""
        request = state.request
        learnt = ModelWorkarounds.for_model(self._base_url, request.model).snapshot()
        wire = self._select_wire(request, learnt.names)
        streamed = learnt.streams(state.stream, has_tools=bool(request.tools))
        # Cheap: comparing tuples of the same objects compares pointers.
        if self._toolset.wire is not wire or self._toolset.tools != request.tools:
            self._toolset = Toolset(request.tools, wire)
        toolset = self._toolset
        # Reset before the wire builds its parameters: a field that is left out is then always
        # listed in `dropped_params`, and no other one is left out.
        sendable = _without_fields(request, wire.unsupported_fields)
        params = wire.params(sendable, toolset.names, learnt.names, stream=streamed)
        wire.merge_extra_body(params, self._config.extra_body)
        params.update(state.continuation)
        without_place = tuple(
            n for n in sorted(wire.unsupported_fields) if getattr(request, n) not in _DEFAULT_VALUES
        )
        omitted_params = learnt.change_params(params)
        context = EncodingContext(
            self._origin,
            request.model,
            toolset.names,
            bool(request.tools),
            learnt.names,
            learnt.changes,
        )
        encoder = self._encoder_for(wire, context)
        body, omitted_fields = encoder.body(request, toolset.encoded, params)
        without_stream = ("stream",) if state.stream and not streamed else ()
        dropped = (*without_place, *omitted_params, *without_stream, *omitted_fields)
        pipe = state.pipe
        if pipe is None:
            source = {"provider": self.provider, "origin": self._origin, "model": request.model}
            after_results = bool(request.messages) and request.messages[-1].role == "tool"
            pipe = AnswerPipe(
                toolset.names, source, think_tags=wire.think_tags, may_be_silent=after_results
            )
        parser = wire.parser(request, pipe)
        return _Attempt(wire, params, streamed, dropped, body, pipe, parser, learnt)

    def _budget_notice(self, request: ChatRequest, stream: bool) -> str:
        """Notice of a reasoning budget that is sent as something else; empty if it is not."""
        is_decimal = (request.reasoning or "").isdecimal()
        # Once for a prompt: in the later requests of a run, results of tools come last.
        if not is_decimal or not request.messages or request.messages[-1].role != "user":
            return ""
        workarounds = ModelWorkarounds.for_model(self._base_url, request.model).names
        wire = self._select_wire(request, workarounds)
        names = Toolset(request.tools, wire).names
        return budget_notice(
            request,
            lambda changed: wire.params(
                _without_fields(changed, wire.unsupported_fields), names, workarounds, stream=stream
            ),
        )

    def _select_wire(self, request: ChatRequest, workarounds: frozenset[str]) -> Wire:
        return next((w for w in self._wires if w.accepts(request, workarounds)), self._wires[-1])

    def _retry_notice(
        self, state: _RequestState, fault: ModelError, attempt: _Attempt
    ) -> ClientNotice | None:
        """Notice before the next attempt, with its wait; None if the error is final."""
        if notice := self._workaround_notice(state, fault, attempt):
            return notice
        # The token of a function may have expired since it was returned.
        if self._http.asks_key and not state.key_renewed and _is_key_refused(fault):
            state.key_renewed = True
            text = "the server refused the key, so the function in api_key= is asked once more."
            return ClientNotice("retry", text, state.attempts, 0.0, fault.info, fault.status)
        # Groq and Gemini report a call that the model wrote wrongly as an error. A second answer is
        # usually right; a third request would only cost money.
        if fault.kind in ("unreadable_call", "missing_calls", "nothing_readable"):
            fault.retryable, state.regenerated = not state.regenerated, True
        explain_refusal(fault, state.request)
        left_s = state.deadline - asyncio.get_running_loop().time()
        wait_s = backoff_s(fault, state.attempts, self._config.retries)
        if wait_s is None or wait_s >= left_s:
            return None
        state.attempts += 1
        state.waited_s += wait_s
        text = f"{fault.message} Trying again in {wait_s:.1f} s."
        return ClientNotice("retry", text, state.attempts - 1, wait_s, fault.info, fault.status)

    def _workaround_notice(
        self, state: _RequestState, fault: ModelError, attempt: _Attempt
    ) -> ClientNotice | None:
        """Learn from a refusal; None for other errors, and when no workaround is left."""
        refusal = Refusal(
            fault,
            state.request,
            attempt.params,
            attempt.body,
            attempt.wire.messages_field,
            attempt.streamed,
            attempt.in_use,
            attempt.wire.workarounds,
        )
        workaround = find_workaround(refusal)
        if workaround is None:
            return None
        if not workaround.notice or state.workarounds >= MAX_WORKAROUNDS:
            make_final(fault)
            if workaround.notice:
                fault.message += (
                    f" {MAX_WORKAROUNDS} changes of the request were learnt for this server and"
                    " model, and it refused it still: run.resume() starts with them."
                )
            return None
        state.workarounds += 1
        ModelWorkarounds.for_model(self._base_url, state.request.model).remember(workaround)
        return ClientNotice("dropped_param", f"{workaround.notice}.", error=fault.info)

    async def _send_attempt(
        self, state: _RequestState, attempt: _Attempt, slot: RequestSlot, key: SecretKey | None
    ) -> AsyncGenerator[Delta]:
        """Send one attempt and yield its answer as it comes."""
        wire, pipe = attempt.wire, attempt.pipe
        response = await self._http.send(
            "POST",
            wire.path(state.request, stream=attempt.streamed),
            attempt.body,
            deadline=state.deadline,
            between_bytes_s=BETWEEN_BYTES_S if attempt.streamed else self._config.timeout_s,
            headers=wire.headers(attempt.in_use.names),
            key=key,
        )
        slot.limiter.update(slot, response.status, response.headers)
        state.request_id = response.request_id
        reader = AnswerReader(attempt.parser, pipe, wire.framing())
        read_bytes = 0
        try:
            async with aclosing(response.pieces(MAX_ANSWER_BYTES)) as pieces:
                async for piece in pieces:
                    read_bytes += len(piece)
                    if read_bytes > _YIELD_BYTES:
                        # A fast server never blocks this loop, so give other runs a turn.
                        read_bytes = 0
                        await asyncio.sleep(0)
                    had_ended = pipe.ended
                    for delta in reader.feed(piece):
                        yield delta
                    if pipe.ended and not had_ended:
                        response.shorten_deadline(_CLOSE_AFTER_END_S)
                    elif pipe.finished and not pipe.ended:
                        response.shorten_deadline(_USAGE_WAIT_S)
        except ModelError as error:
            # A connection that breaks after the end of the answer does not spoil it.
            silent = error.code == "LLM_TIMEOUT" and error is not pipe.error
            if not pipe.is_usable(timed_out=silent):
                raise
        finally:
            await response.aclose()
        for delta in reader.end():
            yield delta


@dataclass(slots=True)
class _RequestState:
    """State that the attempts of one request share."""

    request: ChatRequest
    stream: bool
    deadline: float
    request_id: str | None = None
    has_output: bool = False
    """A part of the answer was shown, so the request is not repeated: text would appear twice."""
    attempts: int = 1
    """Attempts so far, without repeats because of a workaround."""
    workarounds: int = 0
    """Repeats because of a workaround."""
    waited_s: float = 0.0
    regenerated: bool = False
    """The request was repeated because of an unreadable call; this happens once."""
    key_renewed: bool = False
    """The key's function was asked once more after a refusal; this happens once."""
    continuations: int = 0
    pipe: AnswerPipe | None = None
    """Answer so far, if the server gives it in parts."""
    continuation: dict[str, Any] = field(default_factory=dict[str, Any])

    def meta(self, dropped: tuple[str, ...]) -> ResponseMeta:
        """Facts about how the answer was obtained."""
        return ResponseMeta(
            request_id=self.request_id,
            attempts=self.attempts,
            retry_wait_ms=self.waited_s * 1000,
            dropped_params=dropped,
        )


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One attempt, ready to send."""

    wire: Wire
    params: dict[str, Any]
    streamed: bool
    """The answer is asked for as a stream."""
    dropped_params: tuple[str, ...]
    """Parameters and fields of messages that are left out."""
    body: bytes
    pipe: AnswerPipe
    parser: Parser
    in_use: ModelWorkarounds
    """Workarounds of this attempt."""


def _without_fields(request: ChatRequest, names: frozenset[str]) -> ChatRequest:
    """Return the request with these fields at their defaults."""
    fields = type(request).model_fields
    return request.model_copy(update={name: fields[name].get_default() for name in names})


def _code_fault(error: Exception, wire: Wire) -> ModelError:
    """Build the error for a fault in the code of this client or of the wire."""
    reason = f"{type(error).__name__}: {error}"
    if package := other_package(wire):
        return ModelError(
            f"the wire {wire.name!r} of the package {package!r} failed ({reason}); repair it, or"
            " report it to that package."
        )
    return ModelError(f"the client failed ({reason}); please report it.")


def _is_key_refused(fault: ModelError) -> bool:
    # Gemini refuses an expired key with 400.
    return fault.code == "LLM_AUTH_FAILED" and fault.status in (400, 401)


def _late_error_notice(error: ModelError, pipe: AnswerPipe) -> ClientNotice:
    whole = "cut at its length" if pipe.was_cut_by_length else "complete"
    text = f"The server sent an error after the answer, which is {whole}: {error.server_text}"
    return ClientNotice("note", text, error=error.info)
