"""The room that a model has for a request: what was refused, what is sent shortened, what to say.

Owns the set of old tool results that a run sends shortened; it only grows, so that after each
growth requests extend one another again. The short form itself is in `contracts/trimming`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from nbagent.contracts.chat import ChatRequest, ChatResponse, Message
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import EngineTurn
from nbagent.contracts.trimming import KEEP_CHARS, Trimmed, is_worth_it, shortened
from nbagent.engine.plan import EnginePlan
from nbagent.engine.size import (
    as_details,
    in_words,
    message_chars,
    pieces_of,
    request_chars,
    turns_of,
)

OVERFLOW = "LLM_CONTEXT_OVERFLOW"
_TOKENS_PER_CHAR = 0.25
"""Until a usage tells: four characters are a token."""
_LARGE_CHARS = 2_000
"""Of old results the larger ones go first."""
_FILL = 0.7
"""After shortening a request shall fill so much of the model's room, else it is soon too large."""
_LIST_S = 2.0
_NAMED = 3


@dataclass(slots=True)
class _Known:
    """What servers and usages told about sizes."""

    tokens_per_char: float | None = None
    context_tokens: int | None = None
    context_from: str = ""
    refused_tokens: int | None = None
    """A request of so many tokens was refused."""


@dataclass(slots=True)
class Room:
    """What one run knows of the model's room, and the results that it sends shortened."""

    plan: EnginePlan
    _known: _Known = field(default_factory=_Known)
    _short: dict[int, Message] = field(default_factory=dict[int, Message])
    """The shortened messages by place; the same objects for every request."""
    _keep_chars: int = KEEP_CHARS

    def __post_init__(self) -> None:
        before = self.plan.before
        if before is None:
            return
        if self.plan.trim and before.request.trimmed is not None:
            self._keep_chars = before.request.trimmed.keep_chars
            for place in before.request.trimmed.places:
                if place < len(self.plan.history):
                    self._short[place] = shortened(self.plan.history[place], self._keep_chars)
        self._learn_from(before)

    def _learn_from(self, before: EngineTurn) -> None:
        error = before.error
        if error is None or error.code != OVERFLOW:
            return
        self._known.refused_tokens = _count(error.details, "request_tokens")
        self._known.context_tokens = _count(error.details, "context_tokens")
        self._known.context_from = str(error.details.get("context_tokens_from", ""))
        chars = _count(error.details, "request_chars")
        if chars and self._known.refused_tokens:
            self._known.tokens_per_char = self._known.refused_tokens / chars

    @property
    def trimmed(self) -> Trimmed | None:
        """What the next request sends shortened."""
        if not self._short:
            return None
        return Trimmed(places=tuple(sorted(self._short)), keep_chars=self._keep_chars)

    def sent(self, history: Sequence[Message]) -> tuple[Message, ...]:
        """The history as it is sent."""
        if not self._short:
            return tuple(history)
        short = self._short
        return tuple(short.get(place, message) for place, message in enumerate(history))

    def observe(self, request: ChatRequest, response: ChatResponse) -> None:
        """Learn from an answer's usage how many tokens a character is."""
        if self.plan.trim and response.usage is not None and response.usage.prompt_tokens:
            chars = request_chars(request)
            self._known.tokens_per_char = response.usage.prompt_tokens / chars if chars else None

    # Shortening

    def fit(
        self, request: ChatRequest, history: Sequence[Message], turns: Sequence[EngineTurn]
    ) -> str | None:
        """Shorten more when a request is known to be too large, before it is sent.

        Only what a server refused teaches that. Returns what to tell the person, or None.
        """
        known = self._known
        if not self.plan.trim or known.refused_tokens is None:
            return None
        most = known.refused_tokens
        if known.context_tokens is not None:
            most = min(most, known.context_tokens - (request.max_tokens or 0))
        tokens, _ = self._tokens(request)
        if tokens < most:
            return None
        return self._told(self._shorten(request, history), history, turns, "would be")

    async def refused(self, request: ChatRequest, error: ErrorInfo) -> None:
        """Learn from a refusal; asks the price list and the server what the model takes."""
        known = self._known
        said = _count(error.details, "request_tokens")
        tokens, _ = self._tokens(request)
        known.refused_tokens = said or tokens
        chars = request_chars(request)
        if said and chars:
            known.tokens_per_char = said / chars
        context = _count(error.details, "context_tokens")
        if context:
            known.context_tokens, known.context_from = context, "server"
        elif known.context_tokens is None:
            known.context_tokens, known.context_from = await self._look_up()

    async def _look_up(self) -> tuple[int | None, str]:
        listed = self.plan.context_tokens()
        if listed:
            return listed, "price list"
        task = asyncio.ensure_future(self._listed())
        loop = asyncio.get_running_loop()
        forget = self.plan.cancel.on_set(lambda: loop.call_soon_threadsafe(task.cancel))
        try:
            # Not awaited itself: its end by a stop may not end this turn.
            await asyncio.wait({task}, timeout=_LIST_S)
        finally:
            forget()
            task.cancel()
        found = task.result() if task.done() and not task.cancelled() else None
        return found, "list of models" if found else ""

    async def _listed(self) -> int | None:
        with suppress(Exception):  # a list that cannot be had is a length that is not known
            for model in await self.plan.client.list_models():
                if model.id == self.plan.model:
                    return model.context_length
        return None

    def shorten(
        self, request: ChatRequest, history: Sequence[Message], turns: Sequence[EngineTurn]
    ) -> str | None:
        """Shorten after a refusal. Returns what to tell the person; None when nothing is left."""
        if not self.plan.trim:
            return None
        return self._told(self._shorten(request, history), history, turns, "was")

    def _shorten(self, request: ChatRequest, history: Sequence[Message]) -> list[int]:
        """Shorten as much as it takes; returns the places that were whole before."""
        need = self._chars_too_many(request)
        done: list[int] = []
        for place in self._candidates(history):
            if need is not None and need <= 0:
                break
            short = shortened(history[place], self._keep_chars)
            saved = message_chars(history[place]) - message_chars(short)
            if saved <= 0:
                continue
            self._short[place] = short
            done.append(place)
            need = None if need is None else need - saved
        return done

    def _candidates(self, history: Sequence[Message]) -> list[int]:
        """Old results that are still whole: large ones first, of these the oldest turn's first."""
        last = max((i for i, m in enumerate(history) if m.role == "assistant"), default=0)
        found: list[tuple[bool, int, int, int]] = []
        turn = 0
        for place, message in enumerate(history[:last]):
            turn += message.role == "assistant"
            if place not in self._short and is_worth_it(message):
                chars = message_chars(message)
                found.append((chars < _LARGE_CHARS, turn, -chars, place))
        return [place for *_, place in sorted(found)]

    def _chars_too_many(self, request: ChatRequest) -> float | None:
        """How many characters have to go; None when nobody said what the model takes."""
        context = self._known.context_tokens
        if context is None:
            return None
        tokens, _ = self._tokens(request)
        room = _FILL * context - (request.max_tokens or 0)
        # A server that refuses what fits by these numbers counts otherwise; then all goes.
        fits = tokens < context - (request.max_tokens or 0)
        return None if room <= 0 or fits else (tokens - room) / (tokens / request_chars(request))

    def _told(
        self,
        places: Sequence[int],
        history: Sequence[Message],
        turns: Sequence[EngineTurn],
        tense: str,
    ) -> str | None:
        if not places:
            return None
        names = turns_of(history, self._turn_places(turns))
        largest = sorted(places, key=lambda place: (-message_chars(history[place]), place))
        named = [
            f"{history[p].name}{f' in {names[p]}' if p in names else ''} "
            f"({message_chars(history[p]):,} to {message_chars(self._short[p]):,} characters)"
            for p in largest[:_NAMED]
        ]
        if len(largest) > _NAMED:
            named.append(f"and {len(largest) - _NAMED} more")
        n = len(places)
        are = "s are" if n > 1 else " is"
        return (
            f"{n} old tool result{are} sent shortened from here on, because the request {tense} "
            f"too long for the model: {', '.join(named)}. The conversation keeps them whole."
        )

    # Telling

    def _tokens(self, request: ChatRequest) -> tuple[int, str]:
        """An estimate of a request's tokens, and what it is made from."""
        chars = request_chars(request)
        ratio = self._known.tokens_per_char or self._ratio_before(request)
        if ratio:
            return round(chars * ratio), "usage"
        return round(chars * _TOKENS_PER_CHAR), "characters"

    def _ratio_before(self, request: ChatRequest) -> float | None:
        """Tokens per character as the last answer before this run has them."""
        before = self.plan.before
        usage = before.response.usage if before and before.response else None
        if before is None or usage is None or not usage.prompt_tokens:
            return None
        shared: Sequence[Message] = self.plan.history[: before.request.n_messages]
        if before.request.trimmed is not None:
            shared = before.request.trimmed.applied(shared)
        chars = request_chars(request.model_copy(update={"messages": tuple(shared)}))
        self._known.tokens_per_char = usage.prompt_tokens / chars if chars else None
        return self._known.tokens_per_char

    def explain(
        self, request: ChatRequest, error: ErrorInfo, turns: Sequence[EngineTurn]
    ) -> ErrorInfo:
        """The refusal as a person can act on it: how large, what takes the room, what to do."""
        known = self._known
        said = _count(error.details, "request_tokens")
        tokens, source = (said, "server") if said else self._tokens(request)
        pieces = pieces_of(request, self._turn_places(turns))
        size = f"{tokens:,} tokens" if said else f"about {tokens:,} tokens (estimated)"
        text = (
            f"the request is too long for the model: {size}{self._takes(request, tokens)}. "
            f"What takes the room: {in_words(pieces)}. {self._advice(request)}"
        )
        details: dict[str, Any] = {
            **error.details,
            "request_tokens": tokens,
            "request_tokens_from": source,
            "request_chars": request_chars(request),
            "pieces": as_details(pieces, tokens),
            "shortened_results": len(self._short),
            "server_said": error.message,
        }
        if known.context_tokens:
            details |= {"context_tokens": known.context_tokens}
            details |= {"context_tokens_from": known.context_from}
        return replace(error, message=text, details=details)

    def _turn_places(self, turns: Sequence[EngineTurn]) -> Mapping[int, str]:
        n = len(self.plan.history)  # a fork has only the start of its parent's conversation
        before = {place: turn for place, turn in self.plan.turn_places().items() if place < n}
        return before | {t.request.n_messages: t.id for t in turns if t.response is not None}

    def _takes(self, request: ChatRequest, tokens: int) -> str:
        context, answer = self._known.context_tokens, request.max_tokens
        if context is None:
            return ""
        kept = f" and {answer:,} kept for the answer (max_tokens)" if answer else ""
        return f"{kept if tokens <= context else ''}, it takes {context:,}"

    def _advice(self, request: ChatRequest) -> str:
        if not self.plan.trim and self._candidates(request.messages):
            return (
                'Nothing is lost: run.resume(trim="tool-results") sends old tool results '
                "shortened, run.resume(model=…) asks a model with more room."
            )
        why = ""
        if self.plan.trim:
            why = (
                "There is no old tool result left to shorten, and those of the last turn are sent "
                "whole. "
            )
        return (
            f"{why}Nothing is lost: run.resume(model=…) asks a model with more room, "
            "run.fork(TURN, …) asks an earlier turn anew."
        )


def _count(details: Mapping[str, Any], name: str) -> int | None:
    value = details.get(name)
    return value if isinstance(value, int) and value > 0 else None
