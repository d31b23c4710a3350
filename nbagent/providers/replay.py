"""Answers from a record: a client around another one, for one run.

Knows no wire and no files; which mode and which cassette is the session's to say. Tools run for
real, and the calls of a recorded answer go through approvals as any model's.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Any, Literal

from nbagent.contracts.canonical import sha_of
from nbagent.contracts.chat import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    Message,
    ModelInfo,
    ResponseMeta,
    ToolCallDelta,
)
from nbagent.contracts.errors import ModelError
from nbagent.contracts.ports import ChatClient
from nbagent.contracts.secrets import redact_json
from nbagent.providers.cassette import Asked, Cassette, Exchange, unusable

Mode = Literal["auto", "replay", "refresh"]
Facts = dict[str, tuple[object, str]]
"""What is compared: a name → what must be equal, and how it is shown."""

_MOST_COMPARED = 500
_SHOWN_CHARS = 600
_SYSTEM_CHARS = 160
"""It stands in each line, mostly the same."""
_MOST_PIECES = 200
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
    ) -> None:
        """Wrap a client for one run.

        Args:
            inner: never asked in mode `replay`.
            server: its origin.
            mode: `auto` asks and records what is missing, `refresh` asks and records always.
            cassette: the record.
            extra_body: keys that the client within adds to each request; kept as a hash.
        """
        self._inner = inner
        self._server = server
        self._mode: Mode = mode
        self._cassette = cassette
        self._extra = {"extra_body": sha_of(dict(extra_body))[:12]} if extra_body else {}
        self._answered: Counter[str] = Counter()

    @property
    def provider(self) -> str:
        """The provider's name."""
        return self._inner.provider

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
            for chunk in _chunks(found):
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
        asked = Asked(
            provider=self.provider,
            server=self._server,
            model=request.model,
            params=params,
            system=_cut(system, _SYSTEM_CHARS),
            tools=tools,
            messages=tuple(sha_of(message)[:8] for message in messages),
            new=tuple(reversed([_words(m) for m in takewhile(_is_new, reversed(messages))])),
        )
        told = asked.model_dump(exclude={"new", "system", "messages"})
        return sha_of([told, system, messages])[:24], asked

    async def _recorded(self, key: str, asked: Asked) -> ChatResponse | None:
        if self._mode == "refresh":
            return None
        n = self._answered[key] + 1
        try:
            found = await asyncio.to_thread(self._cassette.find, key, n)
        except OSError as error:
            why = error.strerror or error
            name = self._cassette.name
            raise unusable(f"{name} cannot be read ({why}); name another one") from None
        if found is None and self._mode == "replay":
            raise await asyncio.to_thread(_missing, self._cassette, asked, n)
        if found is None:
            return None
        self._answered[key] = n
        meta = ResponseMeta(attempts=0, source="hit" if self._mode == "auto" else "replay")
        return found.response.model_copy(update={"meta": meta})

    async def _kept(self, key: str, asked: Asked, response: ChatResponse) -> ClientNotice | None:
        """Record an answer; what the person should know of it. No answer is lost by it."""
        if response.finish_reason == "error":
            return None
        self._answered[key] = n = self._answered[key] + 1
        cassette, refresh = self._cassette, self._mode == "refresh"
        exchange = Exchange(key=key, n=n, request=asked, response=response)
        told = None
        try:
            if refresh:
                before = await asyncio.to_thread(cassette.find, key, n)
                told = ClientNotice("note", _compared(before, exchange))
            await asyncio.to_thread(cassette.add, exchange, replace=refresh)
        except (OSError, ValueError, RecursionError, ModelError) as error:
            why = error.message if isinstance(error, ModelError) else f"{error}; look at the file"
            return ClientNotice("note", f"not recorded in {cassette.name}: {why}")
        return told


def _plain(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """The messages without what varies: calls are counted, and what a vendor adds is left out."""
    numbers: dict[str | None, int] = {}
    count = 0
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
            numbers[call.id] = count
            count += 1
        yield {name: value for name, value in plain.items() if value not in (None, [])}


def _is_new(plain: Mapping[str, Any]) -> bool:
    return plain["role"] != "assistant"


def _words(plain: Mapping[str, Any]) -> str:
    parts: list[dict[str, Any]] = plain.get("content", [])
    words = (p["text"] if p["type"] == "text" else f"[{p['type']} {sha_of(p)[:8]}]" for p in parts)
    return f"{plain.get('name') or plain['role']}: {_cut(' '.join(words))}"


def _cut(text: str, most: int = _SHOWN_CHARS) -> str:
    """A text that a line can hold; the hash tells two long ones apart."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text):,} characters, {sha_of(text)[:8]})"


def _chunks(response: ChatResponse) -> Iterator[ChatChunk]:
    message = response.message
    for piece in _pieces(message.reasoning or ""):
        yield ChatChunk(reasoning=piece)
    for piece in _pieces(message.text):
        yield ChatChunk(content=piece)
    for index, call in enumerate(message.tool_calls):
        yield ChatChunk(tool_call_delta=ToolCallDelta(index, call.id, call.name))
        for piece in _pieces(call.arguments_raw):
            yield ChatChunk(tool_call_delta=ToolCallDelta(index, arguments=piece))
    finish, usage = response.finish_reason, response.usage
    yield ChatChunk(done=True, finish_reason=finish, usage=usage, response=response)


def _pieces(text: str) -> Iterator[str]:
    """The words of a text; several at once of a long one."""
    words = re.findall(r"\S+\s*|\s+", text)
    step = max(1, -(-len(words) // _MOST_PIECES))
    return ("".join(words[i : i + step]) for i in range(0, len(words), step))


def _missing(cassette: Cassette, wanted: Asked, n: int) -> ModelError:
    """Says how the request differs from the nearest recorded one."""
    facts = _facts_of_request(wanted)
    nearest: tuple[float, int, list[str]] | None = None
    for line in cassette.newest(_MOST_COMPARED):
        recorded = _facts_of_request(line.exchange().request)
        likeness = _likeness(recorded, facts)
        if nearest is None or likeness >= nearest[0]:
            nearest = likeness, line.number, _changes(recorded, facts)
    said = f"{cassette.name} holds no answer to this request"
    if nearest is not None:
        again = f"it was asked {n - 1} times in a run, and is asked once more now"
        listed = "".join(f"\n  {words}" for words in nearest[2][:20] or [again])
        said += f"; the nearest one (line {nearest[1]}) differs:{listed}"
    return unusable(f"{said}\nnothing was asked; cache=auto asks and records it")


def _facts_of_request(asked: Asked) -> Facts:
    texts: dict[str, Any] = {"provider": asked.provider, "server": asked.server}
    texts |= {"model": asked.model, "system prompt": asked.system, **asked.params}
    facts: Facts = {name: (value, str(value)) for name, value in texts.items()}
    facts |= {f"tool {name}": (sha, f"definition {sha}") for name, sha in asked.tools.items()}
    earlier = len(asked.messages) - len(asked.new)
    for i, sha in enumerate(asked.messages):
        shown = asked.new[i - earlier] if i >= earlier else "an earlier message"
        facts[f"message {i + 1}"] = (sha, shown)
    return facts


def _likeness(recorded: Facts, wanted: Facts) -> float:
    """How many facts are the same, and how much the others look alike."""
    score = 0.0
    for name in recorded.keys() | wanted.keys():
        old, new = recorded.get(name), wanted.get(name)
        if old is None or new is None:
            score -= 1
        elif old[0] == new[0]:
            score += 1
        else:
            score += SequenceMatcher(None, old[1][:300], new[1][:300]).ratio() / 2
    return score


def _changes(recorded: Facts, now: Facts) -> list[str]:
    """What differs, in words, around the first place where it does."""
    changes: list[str] = []
    for name in {**recorded, **now}:
        old, new = recorded.get(name, (None, "")), now.get(name, (None, ""))
        if old[0] == new[0]:
            continue
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(old[1], new[1], strict=False))
        start = max(0, sum(1 for _ in pairs) - 40)
        shown = [f"{'…' if start else ''}{text[start : start + 120]}" for text in (old[1], new[1])]
        changes.append(f"{name}: recorded {shown[0]!r}, now {shown[1]!r}")
    return changes


def _compared(before: Exchange | None, now: Exchange) -> str:
    """What mode `refresh` reports."""
    if before is None:
        return "asked anew; nothing was recorded for this request"
    changes = _changes(_facts_of_answer(before.response), _facts_of_answer(now.response))
    return f"asked anew; changed: {'; '.join(changes)}" if changes else "asked anew; same answer"


def _facts_of_answer(response: ChatResponse) -> Facts:
    facts = {"text": response.message.text, "finish": response.finish_reason}
    for i, call in enumerate(response.message.tool_calls, 1):
        facts[f"call {i}"] = f"{call.name}({call.arguments_raw})"
    return {name: (text, text) for name, text in facts.items()}
