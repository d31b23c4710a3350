"""The `openai` provider: Chat Completions, at OpenAI and at every server that speaks it.

Owns the exchange: attempts, retries, parameters that a server refuses. The shape of requests is
in `request`, of answers in `reader` and `answer`, the bytes in `http`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

from nbagent.contracts.canonical import json_object, load_json
from nbagent.contracts.chat import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    ModelInfo,
    ProviderConfig,
    ResponseMeta,
)
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.ports import WireRequest
from nbagent.contracts.secrets import redact
from nbagent.providers.base import Provider, is_loopback, origin, whole_response
from nbagent.providers.http import (
    BETWEEN_BYTES_S,
    MAX_BODY_BYTES,
    MAX_STREAM_BYTES,
    HttpClient,
)
from nbagent.providers.limits import Limiter, Place
from nbagent.providers.openai.answer import AnswerFold
from nbagent.providers.openai.reader import AnswerReader
from nbagent.providers.openai.request import (
    Dialect,
    HistoryEncoder,
    Toolset,
    join_body,
    request_params,
)
from nbagent.providers.refusals import Refusals, plain_refusal
from nbagent.providers.retry import RetryPolicy

NAME = "openai"
DEFAULT_BASE_URL = "https://api.openai.com/v1"
_ENCODERS = 8
_BYTES_PER_TOKEN = 4
_LIST_TIMEOUT_S = 30.0
_AFTER_THE_END_S = 0.05
"""A connection that is not at its end so long after `[DONE]` is dropped instead of kept."""
_MAX_ANSWER_CHARS = 4 * 1024 * 1024
"""Of text, reasoning and arguments together: several times what the largest models can write."""
_AFTER_FINISH_S = 5.0
"""So long after a finish reason, without `[DONE]`, the usage is waited for."""
_HOMES = {
    "deepseek.com": "",
    "openrouter.ai": "/api/v1",
    "groq.com": "/openai/v1",
    "generativelanguage.googleapis.com": "/v1beta/openai",
    "openai.azure.com": "/openai/v1",
    "services.ai.azure.com": "/openai/v1",
}
"""Where providers have their Chat Completions, if not under `/v1`."""
_CONTEXT_FIELDS = (
    "context_length",
    "max_model_len",
    "context_window",
    "max_context_length",
    "loaded_context_length",
)
_CAPABILITIES = {
    "tools": "tools",
    "function_calling": "tools",
    "vision": "vision",
    "image": "vision",
    "reasoning": "reasoning",
}


class OpenAIClient:
    """Talks Chat Completions to one server."""

    def __init__(self, config: ProviderConfig, *, retry: RetryPolicy | None = None) -> None:
        self._config = config
        self._base_url = normal_base_url(config.base_url or DEFAULT_BASE_URL)
        self._dialect = Dialect.of(self._base_url)
        self._retry = retry or RetryPolicy()
        headers = {
            "OpenAI-Organization": config.organization_id,
            "OpenAI-Project": config.project_id,
            **config.headers,
        }
        if clash := {"messages", "tools"} & config.extra_body.keys():
            raise UsageError(f"extra_body cannot set {', '.join(sorted(clash))}; remove it.")
        self._http = HttpClient(
            self._base_url,
            key=config.api_key,
            headers={name: text for name, text in headers.items() if text},
        )
        self._limiter = Limiter.of(self._base_url, config.api_key)
        self._toolset = Toolset(())
        self._encoders: dict[tuple[str, int], HistoryEncoder] = {}

    def __repr__(self) -> str:
        return f"OpenAIClient({self._http.address.shown!r})"

    @property
    def provider(self) -> str:
        """`openai`."""
        return NAME

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
        exchange = _Exchange(request, self._toolset_of(request), stream, 0.0)
        params = self._params(exchange)
        refusals = Refusals.of(self._base_url, request.model)
        changed = refusals.apply(params, tools=bool(request.tools))
        url = f"{self._http.address.shown}/chat/completions"
        return WireRequest(url, self._body(exchange, params), changed)

    async def list_models(self) -> list[ModelInfo]:
        """The models that the server offers."""
        within = min(_LIST_TIMEOUT_S, self._config.timeout_s)
        answer = await self._http.send(
            "GET", "/models", deadline=asyncio.get_running_loop().time() + within
        )
        try:
            body = await answer.read()
        finally:
            await answer.close()
        try:
            return _models(load_json(body))
        except (ValueError, RecursionError):
            pass
        raise ModelError(
            f"{self._http.address.shown}/models did not answer with a list of models;"
            " check the base URL.",
            code="LLM_BAD_RESPONSE",
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._http.close()

    async def _exchange(self, request: ChatRequest, *, stream: bool) -> AsyncGenerator[ChatChunk]:
        """The one body of `chat` and `chat_stream`: attempts until an answer or a final error."""
        self._check_key()
        deadline = asyncio.get_running_loop().time() + self._config.timeout_s
        exchange = _Exchange(request, self._toolset_of(request), stream, deadline)
        refusals = Refusals.of(self._base_url, request.model)
        while True:
            params = self._params(exchange)
            exchange.changed = refusals.apply(params, tools=bool(request.tools))
            reader = AnswerReader(self._fold(exchange))
            shown = False
            fault: ModelError | None = None
            try:
                body = self._body(exchange, params)
                with self._limiter.place(len(body) // _BYTES_PER_TOKEN) as place:
                    while wait_s := await place.turn(deadline):
                        yield ChatChunk(notice=_waits(wait_s))
                    exchange.waited_s += place.waited_s
                    chunks = self._attempt(exchange, params, body, reader, place)
                    async with aclosing(chunks):
                        async for chunk in chunks:
                            shown = True
                            yield chunk
            except ModelError as error:
                fault = error
            except Exception as error:
                said = redact(f"{type(error).__name__}: {error}")
                fault = ModelError(f"the client failed ({said}); please report it.")
            late: list[ChatChunk] = []
            if fault is not None and not shown and _is_settled(fault, reader.fold, late):
                exchange.request_id, fault = fault.request_id, None
            for chunk in late:
                yield chunk
            if fault is None:
                yield _last_chunk(reader, exchange)
                return
            if shown:
                raise fault
            notice = self._notice_of(exchange, fault, refusals, params)
            yield ChatChunk(notice=notice)
            await asyncio.sleep(notice.wait_s)

    def _notice_of(
        self, exchange: _Exchange, fault: ModelError, refusals: Refusals, params: dict[str, Any]
    ) -> ClientNotice:
        """What is told before another attempt, and how long that waits; raises what is final."""
        if lesson := refusals.learn(fault, params, tools=bool(exchange.request.tools)):
            return ClientNotice("dropped_param", f"{lesson}.", error=fault.info)
        fault = exchange.judged(fault)
        exchange.failed += 1
        left_s = exchange.deadline - asyncio.get_running_loop().time()
        wait_s = self._retry.wait_s(fault, exchange.failed, left_s)
        if wait_s is None:
            raise fault
        exchange.waited_s += wait_s
        text = f"{fault.message} Trying again in {wait_s:.1f} s."
        return ClientNotice("retry", text, exchange.failed, wait_s, fault.info)

    async def _attempt(
        self,
        exchange: _Exchange,
        params: dict[str, Any],
        body: bytes,
        reader: AnswerReader,
        place: Place,
    ) -> AsyncGenerator[ChatChunk]:
        """One request on the wire."""
        try:
            answer = await self._http.send(
                "POST",
                "/chat/completions",
                body,
                deadline=exchange.deadline,
                between_bytes_s=BETWEEN_BYTES_S if params.get("stream") else self._config.timeout_s,
            )
        except ModelError as error:
            if error.status and error.code != "LLM_QUOTA_EXCEEDED":
                place.learn(error.status, {}, error.retry_after_s)
            raise
        place.learn(answer.status, answer.headers)
        exchange.request_id = answer.request_id
        try:
            limit = MAX_STREAM_BYTES if exchange.stream else MAX_BODY_BYTES
            async with aclosing(answer.pieces(limit)) as pieces:
                async for piece in pieces:
                    ended = reader.done
                    for chunk in reader.feed(piece):
                        exchange.count(chunk)
                        yield chunk
                    if reader.fault is not None:
                        raise reader.fault
                    if reader.done and not ended:
                        answer.hurry(_AFTER_THE_END_S)
                    elif reader.complete and not reader.done:
                        answer.hurry(_AFTER_FINISH_S)
        except ModelError as error:
            # A connection that breaks after the end of the answer takes nothing away.
            silent = error is not reader.fault and error.code == "LLM_TIMEOUT"
            if not reader.stands(silent=silent):
                raise
        finally:
            await answer.close()
        for chunk in reader.end():
            exchange.count(chunk)
            yield chunk
        if reader.fault is not None and not reader.stands():
            raise reader.fault
        if late := reader.fold.error:
            told = f"The server sent an error behind the answer, which is whole: {late.said}"
            yield ChatChunk(notice=ClientNotice("note", told, error=late.info))

    def _fold(self, exchange: _Exchange) -> AnswerFold:
        return AnswerFold(
            exchange.toolset.names,
            provider=NAME,
            origin=self._dialect.origin,
            model=exchange.request.model,
            think_tags=self._dialect.think_tags,
            may_call=bool(exchange.request.tools) and exchange.request.tool_choice != "none",
        )

    def _toolset_of(self, request: ChatRequest) -> Toolset:
        # Comparing tuples of the same objects is a comparison of pointers.
        if self._toolset.tools is not request.tools and self._toolset.tools != request.tools:
            self._toolset = Toolset(request.tools, self._dialect)
        return self._toolset

    def _params(self, exchange: _Exchange) -> dict[str, Any]:
        params = request_params(
            exchange.request, self._dialect, exchange.toolset, stream=exchange.stream
        )
        params.update(self._config.extra_body)
        return params

    def _body(self, exchange: _Exchange, params: dict[str, Any]) -> bytes:
        request, toolset = exchange.request, exchange.toolset
        key = (request.model, id(toolset))
        encoder = self._encoders.get(key)
        if encoder is None or encoder.toolset is not toolset:
            if len(self._encoders) >= _ENCODERS:
                del self._encoders[next(iter(self._encoders))]
            encoder = HistoryEncoder(self._dialect, request.model, toolset)
            self._encoders[key] = encoder
        in_turns = Refusals.of(self._base_url, request.model).wants_turns
        messages = encoder.encode(request.system_prompt, request.messages, in_turns=in_turns)
        tools = toolset.encoded if request.tools else None
        unheard = self._dialect.omit_tools_for_none or "tool_choice" not in params
        if request.tool_choice == "none" and unheard:
            # A server that does not hear the word would call tools against the person's will.
            tools = None
            params = {name: value for name, value in params.items() if name != "tool_choice"}
        return join_body(params, messages, tools)

    def _check_key(self) -> None:
        if self._config.api_key is None and self._dialect.origin == origin(DEFAULT_BASE_URL):
            raise ModelError(
                "there is no key for api.openai.com; set OPENAI_API_KEY or LLM_API_KEY, or name"
                " another server with --base-url.",
                code="LLM_AUTH_FAILED",
            )


@dataclass(slots=True)
class _Exchange:
    """What stays the same over the attempts of one request."""

    request: ChatRequest
    toolset: Toolset
    stream: bool
    deadline: float
    request_id: str | None = None
    chars: int = 0
    """Of the answer so far."""
    regenerated: bool = False
    failed: int = 0
    """Attempts, without those that a refused parameter cost."""
    waited_s: float = 0.0
    changed: tuple[str, ...] = ()
    """Parameters that are not sent as asked."""

    def count(self, chunk: ChatChunk) -> None:
        """Add to the answer's length. Raises ModelError when no answer is so long."""
        delta = chunk.tool_call_delta
        self.chars += len(chunk.content) + len(chunk.reasoning)
        self.chars += len(delta.arguments) if delta else 0
        if self.chars > _MAX_ANSWER_CHARS:
            raise ModelError(
                f"the answer has more than {_MAX_ANSWER_CHARS:,} characters; it was cut off."
                " Set max_tokens, or choose another model.",
                code="LLM_BAD_RESPONSE",
            )

    def judged(self, fault: ModelError) -> ModelError:
        """The fault in plain words; a call that could not be read is asked for once more."""
        if fault.details.get("code") == "tool_use_failed":
            fault.retryable, self.regenerated = not self.regenerated, True
        return plain_refusal(fault, self.request)


def _waits(wait_s: float) -> ClientNotice:
    text = f"Waiting {wait_s:.1f} s for the server's rate limit."
    return ClientNotice("wait", text, wait_s=wait_s)


def normal_base_url(text: str) -> str:
    """A base URL as it was meant: with a scheme, without `/chat/completions`, with a path."""
    text = text.strip()
    if "://" not in text:
        host = text.split("/")[0].split(":")[0]
        text = f"{'http' if is_loopback(host) else 'https'}://{text}"
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
    except ValueError:
        raise UsageError(f"the base URL {text!r} cannot be read; check it.") from None
    path = parts.path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    # A bare host means its /v1, where the provider has no other place for it.
    if not path and not parts.path.rstrip("/"):
        homes = (home for known, home in _HOMES.items() if f".{host}".endswith(f".{known}"))
        path = next(homes, "/v1")
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def _is_settled(fault: ModelError, fold: AnswerFold, out: list[ChatChunk]) -> bool:
    """Whether a refusal is an answer after all."""
    if fault.details.get("code") == "content_filter":
        # Azure refuses a prompt by a 400, OpenRouter by a 403: the end of a turn, no failure.
        fold.refuse()
        return True
    if fault.details.get("code") == "tool_use_failed":
        # Groq sends along what the model wrote.
        return fold.salvage(fault.details.get("failed_generation"), out)
    return False


def _last_chunk(reader: AnswerReader, exchange: _Exchange) -> ChatChunk:
    meta = ResponseMeta(
        request_id=exchange.request_id,
        attempts=exchange.failed + 1,
        retry_wait_ms=exchange.waited_s * 1000,
        dropped_params=exchange.changed,
    )
    response = reader.fold.response(meta)
    return ChatChunk(
        done=True,
        finish_reason=response.finish_reason,
        usage=response.usage,
        response=response,
    )


def _models(body: Any) -> list[ModelInfo]:
    """The models of a list in any of the shapes that servers use."""
    found = json_object(body)
    listed: Any = (found.get("data") or found.get("models")) if found is not None else body
    if listed is None and found is not None and "data" in found:
        listed = []
    if not isinstance(listed, list):
        raise ValueError("no list of models")
    models: list[ModelInfo] = []
    for item in cast("list[Any]", listed):
        model = json_object(item) or {}
        name = item if isinstance(item, str) else model.get("id") or model.get("name")
        if isinstance(name, str):
            models.append(
                ModelInfo(
                    id=name, context_length=_context(model), capabilities=_capabilities(model)
                )
            )
    return models


def _context(model: dict[str, Any]) -> int | None:
    for name in _CONTEXT_FIELDS:
        value = model.get(name)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _capabilities(model: dict[str, Any]) -> tuple[str, ...]:
    said: set[str] = set()
    for name in ("capabilities", "supported_parameters"):
        value = model.get(name)
        if isinstance(value, dict):
            said |= {key for key, on in cast("dict[str, Any]", value).items() if on}
        elif isinstance(value, list):
            said |= {item for item in cast("list[Any]", value) if isinstance(item, str)}
    modalities = (json_object(model.get("architecture")) or {}).get("input_modalities")
    if isinstance(modalities, list):
        said |= {item for item in cast("list[Any]", modalities) if isinstance(item, str)}
    return tuple(sorted({_CAPABILITIES[name] for name in said if name in _CAPABILITIES}))


PROVIDER = Provider(
    name=NAME,
    open=OpenAIClient,
    key_variables=("OPENAI_API_KEY", "LLM_API_KEY"),
    base_url_variables=("OPENAI_BASE_URL", "LLM_BASE_URL"),
    default_base_url=DEFAULT_BASE_URL,
    default_model="gpt-5.4",
    needs_key=True,
)
