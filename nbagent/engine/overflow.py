"""Requests that are too long for the model: trims old tool results, or explains what is large.

Owns the set of tool results that a run sends trimmed. The set only grows, so that consecutive
requests share their prefix and provider caches stay valid. The trimmed form is in
`contracts/records`.
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
"""A token of English text has about four characters. Used if no exact count is known."""
IMAGE_CHARS = 4_000
"""Cost of an image: about a thousand tokens for most models, whatever its size in bytes."""
_MIN_ANSWER_TOKENS = 1_000
"""If this much is left for an answer, a smaller `max_tokens` makes the request fit."""
_MAX_LISTED_PIECES = 4
"""Most pieces of a request that the error's text lists."""


class Overflow:
    """Tool results that one run sends trimmed."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        self._trimmed_messages: dict[int, Message] = {}
        """Trimmed messages by index. Reused as objects, so that comparing requests is cheap."""
        # A child run keeps its parent's trimmed results: its requests then extend the parent's.
        for index in plan.previous_turn.request.trimmed if plan.previous_turn and plan.trim else ():
            # A fork with edits or without some turns shares less than that turn had sent.
            if index < len(plan.history):
                self._trimmed_messages[index] = trim_result(plan.history[index])

    @property
    def trimmed_indexes(self) -> tuple[int, ...]:
        """Indexes of the messages that the next request sends trimmed."""
        return tuple(sorted(self._trimmed_messages))

    def messages_to_send(self, history: Sequence[Message]) -> tuple[Message, ...]:
        """Return the history with trimmed tool results."""
        if not self._trimmed_messages:
            return tuple(history)
        return tuple(
            self._trimmed_messages.get(index, message) for index, message in enumerate(history)
        )

    def trim_more(
        self, history: Sequence[Message], request: ChatRequest, error: ErrorInfo
    ) -> str | None:
        """Trim after a refusal: old results first; if there are none left, those of the last turn.

        Returns a text for the person; None if there is nothing left to trim, or if the conversation
        fits and only `max_tokens` is too large.
        """
        if not self._plan.trim or _answer_is_too_long(request, error):
            return None
        # The newest results are those that the model works on, so they are trimmed last.
        last_answer = max((i for i, m in enumerate(history) if m.role == "assistant"), default=0)
        return self._trim(history, last_answer) or self._trim(history, len(history))

    def _trim(self, history: Sequence[Message], before: int) -> str | None:
        long = [
            (index, message)
            for index, message in enumerate(history[:before])
            if index not in self._trimmed_messages and can_trim(message)
        ]
        if not long:
            return None
        self._trimmed_messages |= {index: trim_result(message) for index, message in long}
        n = len(long)
        chars_before = sum(message_chars(message) for _, message in long)
        chars_after = sum(message_chars(self._trimmed_messages[index]) for index, _ in long)
        return (
            f"{n} tool result{'s are' if n > 1 else ' is'} sent shortened from here on, because "
            f"the request was too long for the model: {chars_before:,} to {chars_after:,} "
            "characters. The conversation keeps them whole."
        )

    def explain(self, request: ChatRequest, error: ErrorInfo) -> ErrorInfo:
        """Explain a refusal: size of the request, its largest parts, and what to do."""
        pieces = _chars_by_piece(request)
        chars = pieces.total()
        # Without a max_tokens of the person's own, old results were shortened first.
        if _answer_is_too_long(request, error) or _has_room(error):
            return _explain_max_tokens(request, error)
        reported_tokens: int | None = error.details.get("request_tokens")
        tokens = reported_tokens or chars // CHARS_PER_TOKEN
        context: int | None = error.details.get("context_tokens") or self._plan.context_tokens()
        size = f"{tokens:,} tokens" if reported_tokens else f"about {tokens:,} tokens (estimated)"
        takes = f", it takes {context:,}" if context else ""
        if context and request.max_tokens and tokens <= context:
            takes = f" and {request.max_tokens:,} kept for the answer (max_tokens){takes}"
        shares = [
            f"{label} {n / (chars or 1):.0%}" for label, n in pieces.most_common(_MAX_LISTED_PIECES)
        ]
        text = (
            f"the request is too long for the model: {size}{takes}. "
            f"Its largest parts: {', '.join(shares)}. {self._advice(request)}"
            f"{self._plan.overflow_advice}"
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
                "shortened, run.resume(model=…) uses a model with a larger context."
            )
        none_left = "There is no tool result left to shorten. " if self._plan.trim else ""
        return (
            f"{none_left}Nothing is lost: choose a model with a larger context with "
            "run.resume(model=…), or repeat an earlier turn with run.fork(TURN, …)."
        )


def _answer_is_too_long(request: ChatRequest, error: ErrorInfo) -> bool:
    """True if the conversation fits, and the answer that `max_tokens` allows does not.

    The server says it, or its numbers show it for a `max_tokens` that the person set.
    """
    if error.details.get("too_large") == "max_tokens":
        return True
    return request.max_tokens is not None and _has_room(error)


def _has_room(error: ErrorInfo) -> bool:
    """True if the server's numbers say that the conversation itself fits."""
    left = _tokens_left(error)
    return left is not None and left >= _MIN_ANSWER_TOKENS


def _tokens_left(error: ErrorInfo) -> int | None:
    """Tokens that the conversation leaves for an answer; None if the server gave no numbers."""
    context, tokens = error.details.get("context_tokens"), error.details.get("request_tokens")
    return context - tokens if context and tokens else None


def _explain_max_tokens(request: ChatRequest, error: ErrorInfo) -> ErrorInfo:
    """Explain a refusal because of `max_tokens`: the conversation need not be shortened."""
    number = f" ({request.max_tokens:,})" if request.max_tokens else ""
    left = _tokens_left(error)
    has_room = left is not None and left > 0
    server_said = "" if has_room else f" The server said: {error.message}"
    text = (
        f"the answer that max_tokens{number} allows is too long for the model's context"
        f"{f': it leaves {left:,} tokens for one' if has_room else ''}. Nothing is lost: "
        f"run.resume(max_tokens={left if has_room else '…'}) asks again with a smaller number."
        f"{server_said}"
    )
    return replace(error, message=text, details={**error.details, "server_said": error.message})


def message_chars(message: Message) -> int:
    """Count the characters of a message that a model reads; an image counts as IMAGE_CHARS."""
    chars = 0
    for part in message.content:
        if isinstance(part, ImagePart):
            chars += IMAGE_CHARS
        else:
            chars += len(part.data if isinstance(part, FilePart) else part.text)
    return chars + sum(len(call.name) + len(call.arguments_raw) for call in message.tool_calls)


def request_chars(request: ChatRequest) -> int:
    return _chars_by_piece(request).total()


def tools_chars(tools: Sequence[ToolSpec]) -> int:
    return sum(
        len(t.name) + len(t.description) + len(dump_json(t.parameters).decode()) for t in tools
    )


def _chars_by_piece(request: ChatRequest) -> Counter[str]:
    """Count the characters of a request by kind of content."""
    pieces = Counter({"system prompt": len(request.system_prompt)})
    pieces["schemas of the tools"] = tools_chars(request.tools)
    for message in request.messages:
        if message.role == "tool":
            label = f"results of {message.name}"
        else:
            label = "the model's answers" if message.role == "assistant" else "your messages"
        pieces[label] += message_chars(message)
    return +pieces  # unary plus drops the kinds without characters
