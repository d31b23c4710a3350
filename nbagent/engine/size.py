"""How large a request is, and what takes the room in it: characters and shares. Pure.

What is sent when it is too large is decided in `room`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.chat import ChatRequest, FilePart, ImagePart, Message, ToolSpec

Kind = Literal["system", "tools", "words", "answers", "result", "results"]

IMAGE_CHARS = 4_000
"""An image is some thousand tokens for a model, however many bytes it has."""
_LARGE_SHARE = 0.03
_MOST_LARGE = 8
_IN_LINE = 4


@dataclass(frozen=True, slots=True)
class Piece:
    """One thing that takes room in a request."""

    kind: Kind
    what: str
    chars: int
    turn: str | None = None
    tool: str | None = None


def message_chars(message: Message) -> int:
    """Characters of a message that a model reads; an image counts as a fixed number."""
    chars = 0
    for part in message.content:
        if isinstance(part, ImagePart):
            chars += IMAGE_CHARS
        else:
            chars += len(part.data if isinstance(part, FilePart) else part.text)
    return chars + sum(len(call.name) + len(call.arguments_raw) for call in message.tool_calls)


def tools_chars(tools: Sequence[ToolSpec]) -> int:
    """Characters of the tools' schemas."""
    return sum(
        len(t.name) + len(t.description) + len(dump_json(t.parameters).decode()) for t in tools
    )


def request_chars(request: ChatRequest) -> int:
    """Characters of a whole request."""
    messages = sum(message_chars(message) for message in request.messages)
    return messages + len(request.system_prompt) + tools_chars(request.tools)


def turns_of(messages: Sequence[Message], places: Mapping[int, str]) -> dict[int, str]:
    """The turn of each tool message, by its place.

    Args:
        messages: a conversation.
        places: ids of turns by the place of the response.
    """
    found: dict[int, str] = {}
    turn = ""
    for place, message in enumerate(messages):
        if message.role == "assistant":
            turn = places.get(place, "")
        elif message.role == "tool" and turn:
            found[place] = turn
    return found


def pieces_of(request: ChatRequest, places: Mapping[int, str]) -> list[Piece]:
    """What takes the room, largest first; each large tool result by itself.

    Args:
        request: what is or was sent.
        places: ids of turns by the place of the response.
    """
    turns = turns_of(request.messages, places)
    n = len(request.tools)
    sums: dict[Kind, int] = {"words": 0, "answers": 0}
    results: list[Piece] = []
    for place, message in enumerate(request.messages):
        chars = message_chars(message)
        if message.role != "tool":
            sums["answers" if message.role == "assistant" else "words"] += chars
            continue
        turn, tool = turns.get(place), message.name or "a tool"
        where = f" in {turn}" if turn else ""
        results.append(Piece("result", f"result of {tool}{where}", chars, turn, tool))
    pieces = [
        Piece("system", "system prompt", len(request.system_prompt)),
        Piece("tools", f"schemas of {n} tool{'s' * (n != 1)}", tools_chars(request.tools)),
        Piece("words", "your words", sums["words"]),
        Piece("answers", "the model's answers", sums["answers"]),
        *_large_and_rest(results, request_chars(request)),
    ]
    return sorted((p for p in pieces if p.chars), key=lambda p: -p.chars)


def _large_and_rest(results: list[Piece], total: int) -> list[Piece]:
    largest = sorted(results, key=lambda p: -p.chars)
    large = [p for p in largest[:_MOST_LARGE] if p.chars >= _LARGE_SHARE * total]
    rest = largest[len(large) :]
    n = len(rest)
    if n < 2:
        return largest
    which = "other" if large else "tool"
    words = f"{n} {which} {'tool results' if large else 'results'}"
    return [*large, Piece("results", words, sum(p.chars for p in rest))]


def in_words(pieces: Sequence[Piece]) -> str:
    """The largest pieces in one line: `result of fetch in C03 61 %, your words 5 %`."""
    total = sum(p.chars for p in pieces) or 1
    words = [f"{p.what} {_percent(p.chars / total)}" for p in pieces[:_IN_LINE]]
    rest = sum(p.chars for p in pieces[_IN_LINE:])
    return ", ".join([*words, *([f"all else {_percent(rest / total)}"] if rest else [])])


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.005 else "under 1 %"


def as_details(pieces: Sequence[Piece], tokens: int) -> list[dict[str, Any]]:
    """The pieces as JSON, each with its share of all tokens."""
    total = sum(p.chars for p in pieces) or 1
    found: list[dict[str, Any]] = []
    for p in pieces:
        share = p.chars / total
        row: dict[str, Any] = {"kind": p.kind, "what": p.what, "chars": p.chars}
        row |= {"tokens_est": round(tokens * share), "share": round(share, 4)}
        row |= {k: v for k, v in (("turn", p.turn), ("tool", p.tool)) if v}
        found.append(row)
    return found
