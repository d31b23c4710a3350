"""Recorded answers: a record, the file that holds it, and the client that answers from it.

A cassette is JSON Lines, one line for each request and its answer. It may be a stranger's file: it
is bounded and checked. Which mode and which file is the session's to say. Tools run for real, and
the calls of a recorded answer go through approvals as any model's, unless their results are to
come from the file, too.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from difflib import get_close_matches, unified_diff
from typing import Any, Literal

from nbagent.contracts.canonical import sha_of
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import Message
from nbagent.contracts.model import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    ModelInfo,
    ResponseMeta,
)
from nbagent.contracts.ports import ChatClient, SchemaClient
from nbagent.contracts.secrets import redact_json
from nbagent.providers.cassette.file import Asked, Cassette, Exchange, unusable_file
from nbagent.providers.offline.stream import response_chunks

Mode = Literal["auto", "replay", "refresh"]

_PARAMS = (
    *("tool_choice", "temperature", "max_tokens", "top_p", "stop_sequences", "reasoning"),
    "output_schema",
)
_VARYING = re.compile(r'("duration_ms":)[\d.]+')
"""A script takes another time in each run; its result is the same."""


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
        raise unusable_file(
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
    return unusable_file(f"{said}\nnothing was asked; cache=auto asks and records it")


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
