"""The client that answers from a cassette, and the key that tells requests apart.

The session chooses mode and file. Tools really run, and the calls of a recorded answer need
approval like any model's, unless their results come from the file, too.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from difflib import get_close_matches, unified_diff
from typing import Any, Literal

from nbagent.contracts.answer import Answer
from nbagent.contracts.canonical import sha_of
from nbagent.contracts.chat_doors import ChatDoors, whole_deltas
from nbagent.contracts.deltas import Delta
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import Message
from nbagent.contracts.model import (
    ChatRequest,
    ChatResponse,
    ClientNotice,
    ModelInfo,
    ResponseMeta,
)
from nbagent.contracts.ports import ChatClient, SchemaClient
from nbagent.contracts.secrets import redact_json
from nbagent.providers.cassette.file import (
    Cassette,
    RecordedExchange,
    RecordedRequest,
    unusable_file,
)
from nbagent.providers.offline.stream import response_deltas

CacheMode = Literal["auto", "replay", "refresh"]

_IN_OTHER_FORM = frozenset({"model", "messages", "system_prompt", "tools"})
"""Fields of a request that `RecordedRequest` has in fields of their own. All other fields are its
parameters, without a list of names: a new field of ChatRequest must tell requests apart, or a
cassette would answer `seed=2` with the answer of `seed=1`."""
_DURATION = re.compile(r'("duration_ms":)[\d.]+')
"""Part of a script's result that differs in each run; it must not make a new request of it."""


class ReplayClient(ChatDoors):
    """Answers from a cassette or asks the inner client, as the mode allows."""

    def __init__(
        self,
        inner: ChatClient,
        *,
        server: str,
        mode: CacheMode,
        cassette: Cassette,
        extra_body: Mapping[str, Any] | None = None,
        earlier: int = 0,
    ) -> None:
        """Wrap a client for one run.

        Args:
            server: origin of `inner`.
            mode: `replay` never asks `inner`, `auto` asks and records if no answer is recorded,
                `refresh` always asks.
            extra_body: what `inner` adds to each request; recorded as a hash, as it may hold keys.
            earlier: this many equal requests belong to other runs: repeats of a case.
        """
        self.provider = inner.provider
        self._inner = inner
        self._server = server
        self._mode: CacheMode = mode
        self._cassette = cassette
        self._extra = {"extra_body": sha_of(dict(extra_body))[:12]} if extra_body else {}
        self._answered: Counter[str] = Counter()
        self._earlier = earlier

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """Return the inner client's answer."""
        inner = self._inner
        return isinstance(inner, SchemaClient) and inner.has_schema_mode(request)

    async def list_models(self) -> list[ModelInfo]:
        """List the server's models; empty in mode `replay`."""
        return [] if self._mode == "replay" else await self._inner.list_models()

    async def close(self) -> None:
        """Close the inner client."""
        await self._inner.close()

    async def send(self, request: ChatRequest, *, stream: bool) -> AsyncGenerator[Delta]:
        """Yield the recorded answer, or send the request and record its answer."""
        key, recorded_request = self._describe(request)
        recorded = await self._find_recorded(key, recorded_request)
        if recorded is not None:
            for delta in response_deltas(recorded) if stream else whole_deltas(recorded):
                yield delta
                await asyncio.sleep(0)
            return
        answer = Answer()
        async with aclosing(self._inner.send(request, stream=stream)) as deltas:
            async for delta in deltas:
                answer.add(delta)
                if (response := answer.response()) is not None:
                    notice = await self._record(key, recorded_request, response)
                    if notice is not None:
                        yield notice
                yield delta

    def _describe(self, request: ChatRequest) -> tuple[str, RecordedRequest]:
        """Return the key of a request and its recorded form."""
        # Without defaults: a new field that nobody sets must not change the keys of old cassettes.
        params = request.model_dump(exclude=set(_IN_OTHER_FORM), exclude_defaults=True)
        tools = {t.name: sha_of([t.description, t.parameters])[:12] for t in request.tools}
        system, params, messages = redact_json(
            (
                request.system_prompt,
                params | self._extra,
                tuple(_comparable_messages(request.messages)),
            )
        )
        answers = (i for i, message in enumerate(messages, 1) if message["role"] == "assistant")
        answered = max(answers, default=0)
        recorded_request = RecordedRequest(
            provider=self.provider,
            server=self._server,
            model=request.model,
            params=params,
            system=_shorten(system, 160),  # Each line repeats it.
            tools=tools,
            messages=tuple(sha_of(message)[:8] for message in messages),
            new=tuple(_message_text(message) for message in messages[answered:]),
        )
        identity = recorded_request.model_dump(exclude={"new", "system", "messages"})
        return sha_of([identity, system, messages])[:24], recorded_request

    async def _find_recorded(
        self, key: str, recorded_request: RecordedRequest
    ) -> ChatResponse | None:
        if self._mode == "refresh":
            return None
        n = self._earlier + self._answered[key] + 1
        exchange = await asyncio.to_thread(self._cassette.find, key, n)
        if exchange is None:
            if self._mode == "replay":
                raise await asyncio.to_thread(_no_answer_error, self._cassette, recorded_request, n)
            return None
        self._answered[key] += 1
        meta = ResponseMeta(attempts=0, source="hit" if self._mode == "auto" else "replay")
        return exchange.response.model_copy(update={"meta": meta})

    async def _record(
        self, key: str, recorded_request: RecordedRequest, response: ChatResponse
    ) -> ClientNotice | None:
        """Record an answer; return a notice for the person. A fault here never loses the answer."""
        if response.finish_reason == "error":
            return None
        self._answered[key] += 1
        n = self._earlier + self._answered[key]
        cassette, refresh = self._cassette, self._mode == "refresh"
        exchange = RecordedExchange(key=key, n=n, request=recorded_request, response=response)
        try:
            before = await asyncio.to_thread(cassette.find, key, n) if refresh else None
            await asyncio.to_thread(cassette.add, exchange, replace=refresh)
        except (OSError, ValueError, RecursionError, ModelError) as error:
            return ClientNotice("note", f"not recorded in {cassette.name}: {error}")
        if not refresh:
            return None
        recorded = _answer_text(before.response) if before else "no answer"
        changes = _changes(recorded, _answer_text(response))
        text = f"changed: {'; '.join(changes[:20])}" if changes else "same answer"
        return ClientNotice("note", f"asked again; {text}")


def _comparable_messages(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Yield the messages without parts that vary: numbers for call ids, no vendor fields."""
    numbers: dict[str | None, int] = {}
    count = itertools.count()
    for message in messages:
        plain: dict[str, Any] = {"role": message.role, "name": message.name}
        plain["content"] = [part.model_dump(exclude_none=True) for part in message.content]
        for part in plain["content"]:
            if message.role == "tool" and "text" in part:
                part["text"] = _DURATION.sub(r"\1 0", part["text"])
        plain["calls"] = [
            (call.name, call.arguments_raw if call.arguments is None else call.arguments)
            for call in message.tool_calls
        ]
        plain["answers"] = numbers.get(message.tool_call_id)
        plain["reasoning"] = message.reasoning
        for call in message.tool_calls:
            numbers[call.id] = next(count)
        yield {name: value for name, value in plain.items() if value not in (None, [])}


def _message_text(plain: Mapping[str, Any]) -> str:
    parts: list[dict[str, Any]] = plain.get("content", [])
    texts = (p["text"] if p["type"] == "text" else f"[{p['type']} {sha_of(p)[:8]}]" for p in parts)
    return f"{plain.get('name') or plain['role']}: {_shorten(' '.join(texts))}"


def _shorten(text: str, max_chars: int = 600) -> str:
    """Shorten a text for a line; the hash tells two long texts apart."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}… ({len(text):,} characters, {sha_of(text)[:8]})"


def _no_answer_error(cassette: Cassette, request: RecordedRequest, n: int) -> ModelError:
    """Build the error that shows how the request differs from the nearest recorded one."""
    if cassette.is_missing:
        raise unusable_file(
            f"there is no file {cassette.name}, and no model was asked; check its name and folder,"
            " or record it with cache=auto"
        )
    now = _request_text(request, n)
    newest = cassette.newest(100)
    recorded = {
        _request_text(exchange.request, exchange.n): location for location, exchange in newest
    }
    message = f"{cassette.name} has no answer to this request"
    for nearest in get_close_matches(now, recorded, 1, 0.0):
        listed = "".join(f"\n  {line}" for line in _changes(nearest, now)[:20])
        message += f"; the nearest one ({recorded[nearest]}) differs (- recorded, + now):{listed}"
    return unusable_file(f"{message}\nno model was asked; cache=auto asks and records it")


def _request_text(request: RecordedRequest, n: int) -> str:
    facts: dict[str, object] = {"provider": request.provider, "server": request.server}
    facts |= {"model": request.model, "system prompt": request.system, **request.params}
    facts |= {f"tool {name}": f"definition {sha}" for name, sha in request.tools.items()}
    earlier = request.messages[: len(request.messages) - len(request.new)]
    facts |= {f"message {i}": text for i, text in enumerate((*earlier, *request.new), 1)}
    facts |= {"asked": f"{n} times"} if n > 1 else {}
    return "\n".join(f"{name}: {fact}" for name, fact in facts.items())


def _answer_text(response: ChatResponse) -> str:
    calls = [f"call: {call.name}({call.arguments_raw})" for call in response.message.tool_calls]
    return "\n".join([response.message.text, *calls, f"finish: {response.finish_reason}"])


def _changes(recorded: str, now: str) -> list[str]:
    """Return the lines that differ, marked as in a diff."""
    pair = recorded.splitlines(), now.splitlines()
    lines = [*unified_diff(*pair, n=0, lineterm="")][2:]
    return [f"{line[0]} {line[1:]}" for line in lines if line[0] in "+-"]
