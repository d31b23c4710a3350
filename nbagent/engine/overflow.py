"""A request that is too long: old tool results are sent shortened, or it is said what is large.

Owns the set of tool results that a run sends shortened; it only grows, so that between two growths
requests extend one another. The short form itself is in `contracts/records`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.messages import FilePart, ImagePart, Message
from nbagent.contracts.model import ChatRequest, ToolSpec
from nbagent.contracts.records import can_trim, trim_result
from nbagent.engine.plan import EnginePlan

OVERFLOW = "LLM_CONTEXT_OVERFLOW"
CHARS_PER_TOKEN = 4
"""A token of English text has about four characters; used where nobody said how many it has."""
IMAGE_CHARS = 4_000
"""An image is some thousand tokens for a model, however many bytes it has."""
_IN_LINE = 4
"""So many pieces of a request are named in the error's text."""


class Overflow:
    """What one run sends shortened, and why."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        self._short: dict[int, Message] = {}
        """The shortened messages by place; the same objects for every request."""
        for place in plan.before.request.trimmed if plan.before and plan.trim else ():
            if place < len(plan.history):
                self._short[place] = trim_result(plan.history[place])

    @property
    def trimmed(self) -> tuple[int, ...]:
        """The places of what the next request sends shortened."""
        return tuple(sorted(self._short))

    def sent(self, history: Sequence[Message]) -> tuple[Message, ...]:
        """The history as it is sent."""
        if not self._short:
            return tuple(history)
        return tuple(self._short.get(place, message) for place, message in enumerate(history))

    def refused(self, history: Sequence[Message]) -> str | None:
        """Shorten after a refusal: old results, and when these are short those of the last turn.

        Returns what to tell the person; None when there is nothing left to shorten.
        """
        if not self._plan.trim:
            return None
        last_answer = max((i for i, m in enumerate(history) if m.role == "assistant"), default=0)
        return self._shorten(history, last_answer) or self._shorten(history, len(history))

    def _shorten(self, history: Sequence[Message], before: int) -> str | None:
        long = [
            (place, message)
            for place, message in enumerate(history[:before])
            if place not in self._short and can_trim(message)
        ]
        if not long:
            return None
        self._short |= {place: trim_result(message) for place, message in long}
        n = len(long)
        whole = sum(message_chars(message) for _, message in long)
        short = sum(message_chars(self._short[place]) for place, _ in long)
        return (
            f"{n} tool result{'s are' if n > 1 else ' is'} sent shortened from here on, because "
            f"the request was too long for the model: {whole:,} to {short:,} characters. "
            "The conversation keeps them whole."
        )

    def explain(self, request: ChatRequest, error: ErrorInfo) -> ErrorInfo:
        """The refusal as a person can act on it: how large, what takes the room, what to do."""
        pieces = _pieces(request)
        chars = pieces.total()
        said: int | None = error.details.get("request_tokens")
        tokens = said or chars // CHARS_PER_TOKEN
        context: int | None = error.details.get("context_tokens") or self._plan.context_tokens()
        size = f"{tokens:,} tokens" if said else f"about {tokens:,} tokens (estimated)"
        takes = f", it takes {context:,}" if context else ""
        if context and request.max_tokens and tokens <= context:
            takes = f" and {request.max_tokens:,} kept for the answer (max_tokens){takes}"
        shares = [f"{what} {n / (chars or 1):.0%}" for what, n in pieces.most_common(_IN_LINE)]
        text = (
            f"the request is too long for the model: {size}{takes}. "
            f"What takes the room: {', '.join(shares)}. {self._advice(request)}"
            f"{self._plan.smaller}"
        )
        details: dict[str, Any] = {
            **error.details,
            "request_tokens": tokens,
            "request_chars": chars,
            "context_tokens": context,
            "pieces": dict(pieces.most_common()),
            "server_said": error.message,
        }
        return replace(error, message=text, details=details)

    def _advice(self, request: ChatRequest) -> str:
        if not self._plan.trim and any(can_trim(message) for message in request.messages):
            return (
                'Nothing is lost: run.resume(trim="tool-results") sends old tool results '
                "shortened, run.resume(model=…) asks a model with more room."
            )
        none_left = "There is no tool result left to shorten. " if self._plan.trim else ""
        return (
            f"{none_left}Nothing is lost: run.resume(model=…) asks a model with more room, "
            "run.fork(TURN, …) asks an earlier turn anew."
        )


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
    return _pieces(request).total()


def tools_chars(tools: Sequence[ToolSpec]) -> int:
    return sum(
        len(t.name) + len(t.description) + len(dump_json(t.parameters).decode()) for t in tools
    )


def _pieces(request: ChatRequest) -> Counter[str]:
    """What takes how many characters of a request."""
    pieces = Counter({"system prompt": len(request.system_prompt)})
    pieces["schemas of the tools"] = tools_chars(request.tools)
    for message in request.messages:
        if message.role == "tool":
            what = f"results of {message.name}"
        else:
            what = "the model's answers" if message.role == "assistant" else "your words"
        pieces[what] += message_chars(message)
    return +pieces
