"""A request that is too long: old tool results are sent shortened, or it is said what is large.

Owns the set of tool results that a run sends shortened; it only grows, so that between two growths
requests extend one another. The short form itself is in `contracts/records`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.chat import ChatRequest, FilePart, ImagePart, Message, ToolSpec
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import KEEP_CHARS, EngineTurn, Trimmed, is_worth_it, shortened
from nbagent.engine.plan import EnginePlan

OVERFLOW = "LLM_CONTEXT_OVERFLOW"
CHARS_PER_TOKEN = 4
"""A token of English text has about four characters; used where nobody said how many it has."""
IMAGE_CHARS = 4_000
"""An image is some thousand tokens for a model, however many bytes it has."""
_NAMED = 3
_IN_LINE = 4
_LARGE_SHARE = 0.03


class Overflow:
    """What one run sends shortened, and why."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        self._short: dict[int, Message] = {}
        """The shortened messages by place; the same objects for every request."""
        self._keep_chars = KEEP_CHARS
        self._refused_chars: int | None = None
        """A request of so many characters was refused."""
        before = plan.before
        if before is None or not plan.trim:
            return
        if before.request.trimmed is not None:
            self._keep_chars = before.request.trimmed.keep_chars
            places = [p for p in before.request.trimmed.places if p < len(plan.history)]
            self._short = {p: shortened(plan.history[p], self._keep_chars) for p in places}
        if before.error is not None and before.error.code == OVERFLOW:
            self._refused_chars = _count(before.error.details, "request_chars")

    @property
    def trimmed(self) -> Trimmed | None:
        """What the next request sends shortened."""
        if not self._short:
            return None
        return Trimmed(places=tuple(sorted(self._short)), keep_chars=self._keep_chars)

    def sent(self, history: Sequence[Message]) -> tuple[Message, ...]:
        """The history as it is sent."""
        short = self._short
        if not short:
            return tuple(history)
        return tuple(short.get(place, message) for place, message in enumerate(history))

    def fit(
        self, request: ChatRequest, history: Sequence[Message], turns: Sequence[EngineTurn]
    ) -> str | None:
        """Shorten before a request that is as long as one that was refused.

        Returns what to tell the person, or None.
        """
        if self._refused_chars is None or request_chars(request) < self._refused_chars:
            return None
        return self._shorten(_old_results(history), history, turns, "would be")

    def refused(
        self, request: ChatRequest, history: Sequence[Message], turns: Sequence[EngineTurn]
    ) -> str | None:
        """Shorten after a refusal: old results, and when these are short those of the last turn.

        Returns what to tell the person; None when there is nothing left to shorten.
        """
        if not self._plan.trim:
            return None
        self._refused_chars = request_chars(request)
        every = [place for place, message in enumerate(history) if is_worth_it(message)]
        old = self._shorten(_old_results(history), history, turns, "was")
        return old or self._shorten(every, history, turns, "was")

    def _shorten(
        self,
        places: Sequence[int],
        history: Sequence[Message],
        turns: Sequence[EngineTurn],
        tense: str,
    ) -> str | None:
        done: list[int] = []
        for place in places:
            short = shortened(history[place], self._keep_chars)
            if place not in self._short and message_chars(short) < message_chars(history[place]):
                self._short[place] = short
                done.append(place)
        if not done:
            return None
        names = _turns_of(history, self._turn_places(turns))
        largest = sorted(done, key=lambda place: -message_chars(history[place]))
        named = [
            f"{history[p].name}{f' in {names[p]}' if p in names else ''} "
            f"({message_chars(history[p]):,} to {message_chars(self._short[p]):,} characters)"
            for p in largest[:_NAMED]
        ]
        named += [f"and {len(done) - _NAMED} more"] if len(done) > _NAMED else []
        are = "s are" if len(done) > 1 else " is"
        return (
            f"{len(done)} tool result{are} sent shortened from here on, because the request "
            f"{tense} too long for the model: {', '.join(named)}. The conversation keeps them "
            "whole."
        )

    def explain(
        self, request: ChatRequest, error: ErrorInfo, turns: Sequence[EngineTurn]
    ) -> ErrorInfo:
        """The refusal as a person can act on it: how large, what takes the room, what to do."""
        chars = request_chars(request)
        said = _count(error.details, "request_tokens")
        tokens = said or chars // CHARS_PER_TOKEN
        context, source = _count(error.details, "context_tokens"), "server"
        if context is None:
            context, source = self._plan.context_tokens(), "price list"
        pieces = _pieces(request, self._turn_places(turns))
        size = f"{tokens:,} tokens" if said else f"about {tokens:,} tokens (estimated)"
        takes = f", it takes {context:,}" if context else ""
        if context and request.max_tokens and tokens <= context:
            takes = f" and {request.max_tokens:,} kept for the answer (max_tokens){takes}"
        text = (
            f"the request is too long for the model: {size}{takes}. "
            f"What takes the room: {_in_words(pieces, chars)}. {self._advice(request)}"
        )
        details: dict[str, Any] = {
            **error.details,
            "request_tokens": tokens,
            "request_tokens_from": "server" if said else "characters",
            "request_chars": chars,
            "pieces": [piece.as_details(chars, tokens) for piece in pieces],
            "shortened_results": len(self._short),
            "server_said": error.message,
        }
        if context:
            details |= {"context_tokens": context, "context_tokens_from": source}
        return replace(error, message=text, details=details)

    def _advice(self, request: ChatRequest) -> str:
        keeps = "Nothing is lost: "
        if self._plan.trim:
            keeps = "There is no tool result left to shorten. " + keeps
        elif any(is_worth_it(message) for message in request.messages):
            return (
                f'{keeps}run.resume(trim="tool-results") sends old tool results shortened, '
                "run.resume(model=…) asks a model with more room."
            )
        return (
            f"{keeps}run.resume(model=…) asks a model with more room, "
            "run.fork(TURN, …) asks an earlier turn anew."
        )

    def _turn_places(self, turns: Sequence[EngineTurn]) -> Mapping[int, str]:
        n = len(self._plan.history)  # a fork has only the start of its parent's conversation
        before = {place: turn for place, turn in self._plan.turn_places().items() if place < n}
        return before | {t.request.n_messages: t.id for t in turns if t.response is not None}


def _old_results(history: Sequence[Message]) -> list[int]:
    """The tool results that an answer has followed."""
    last = max((i for i, m in enumerate(history) if m.role == "assistant"), default=0)
    return [place for place, message in enumerate(history[:last]) if is_worth_it(message)]


def message_chars(message: Message) -> int:
    """Characters of a message that a model reads; an image counts as a fixed number."""
    chars = 0
    for part in message.content:
        if isinstance(part, ImagePart):
            chars += IMAGE_CHARS
        else:
            chars += len(part.data if isinstance(part, FilePart) else part.text)
    return chars + sum(len(call.name) + len(call.arguments_raw) for call in message.tool_calls)


def request_chars(request: ChatRequest) -> int:
    """Characters of a whole request."""
    messages = sum(message_chars(message) for message in request.messages)
    return messages + len(request.system_prompt) + tools_chars(request.tools)


def tools_chars(tools: Sequence[ToolSpec]) -> int:
    return sum(
        len(t.name) + len(t.description) + len(dump_json(t.parameters).decode()) for t in tools
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """One thing that takes room in a request."""

    kind: str
    what: str
    chars: int
    turn: str | None = None
    tool: str | None = None

    def as_details(self, all_chars: int, tokens: int) -> dict[str, Any]:
        share = self.chars / (all_chars or 1)
        row: dict[str, Any] = {"kind": self.kind, "what": self.what, "chars": self.chars}
        row |= {"tokens_est": round(tokens * share), "share": round(share, 4)}
        return row | {k: v for k, v in (("turn", self.turn), ("tool", self.tool)) if v}


def _turns_of(messages: Sequence[Message], places: Mapping[int, str]) -> dict[int, str]:
    """The turn of each tool message, by its place, from the turns by the place of the response."""
    found: dict[int, str] = {}
    turn = ""
    for place, message in enumerate(messages):
        if message.role == "assistant":
            turn = places.get(place, "")
        elif message.role == "tool" and turn:
            found[place] = turn
    return found


def _pieces(request: ChatRequest, places: Mapping[int, str]) -> list[_Piece]:
    """What takes the room, largest first; each large tool result by itself."""
    turns = _turns_of(request.messages, places)
    words = answers = rest = n_rest = 0
    large = _LARGE_SHARE * request_chars(request)
    pieces: list[_Piece] = []
    for place, message in enumerate(request.messages):
        chars = message_chars(message)
        if message.role == "assistant":
            answers += chars
        elif message.role != "tool":
            words += chars
        elif chars < large:
            rest, n_rest = rest + chars, n_rest + 1
        else:
            turn, tool = turns.get(place), message.name or "a tool"
            where = f" in {turn}" if turn else ""
            pieces.append(_Piece("result", f"result of {tool}{where}", chars, turn, tool))
    n = len(request.tools)
    pieces += [
        _Piece("results", f"{n_rest} other tool result{'s' * (n_rest != 1)}", rest),
        _Piece("system", "system prompt", len(request.system_prompt)),
        _Piece("tools", f"schemas of {n} tool{'s' * (n != 1)}", tools_chars(request.tools)),
        _Piece("words", "your words", words),
        _Piece("answers", "the model's answers", answers),
    ]
    return sorted((p for p in pieces if p.chars), key=lambda p: -p.chars)


def _in_words(pieces: Sequence[_Piece], all_chars: int) -> str:
    """The largest pieces in one line: `result of fetch in C03 61 %, your words 5 %`."""
    named = [(piece.what, piece.chars) for piece in pieces[:_IN_LINE]]
    rest = sum(piece.chars for piece in pieces[_IN_LINE:])
    named += [("all else", rest)] if rest else []
    shares = [(what, 100 * chars / (all_chars or 1)) for what, chars in named]
    return ", ".join(f"{w} {s:.0f} %" if s >= 0.5 else f"{w} under 1 %" for w, s in shares)


def _count(details: Mapping[str, Any], name: str) -> int | None:
    value = details.get(name)
    return value if isinstance(value, int) and value > 0 else None
