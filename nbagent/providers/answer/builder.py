"""One answer while it arrives: text, reasoning, calls, usage, finish → chunks and the response.

Every wire's parser fills one. Knows no wire; decides what counts as a whole answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import Message, TextPart
from nbagent.contracts.model import ChatChunk, ChatResponse, FinishReason, ResponseMeta, Usage
from nbagent.providers.answer.think_tags import ThinkTags
from nbagent.providers.answer.tool_calls import Calls, Halves
from nbagent.providers.transport.sse import clean
from nbagent.providers.wires.tool_names import WireNames

_RANKS: dict[FinishReason | None, int] = {"length": 1, "content_filter": 2, "error": 3}
_MOST_CHARS = 4 * 1024 * 1024
"""Of text, reasoning and arguments together: several times what the largest models can write."""


class Assembly:
    """Everything that one answer has brought so far."""

    def __init__(
        self, names: WireNames, source: Mapping[str, str], *, think_tags: bool = False
    ) -> None:
        self._source = dict(source)
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._text_halves, self._thought_halves = Halves(), Halves()
        self._tags = ThinkTags(over=not think_tags)
        self._calls = Calls(names)
        self.call_arguments = self._calls.replace
        """The whole arguments of a call that came in fragments."""
        self._late_calls = False
        """Calls came behind the finish reason."""
        self.kept: dict[str, Any] = {}
        self._usage: Usage | None = None
        self._before: Usage | None = None
        """Of the parts of the answer that are over."""
        self._finish: FinishReason | None = None
        self._word = ""
        self._chunks: list[ChatChunk] = []
        self._chars = 0
        self.finished = False
        """A finish reason has come."""
        self.ended = False
        """The wire's own last word was read; what follows does not matter."""
        self.answered = False
        """A part of an answer has come, whatever was in it."""
        self.nobody_answered = False
        """The server said that no model behind it answered: worth another attempt."""
        self.refused = False
        """The model said that it will not answer."""
        self.error: ModelError | None = None
        """The error object that the server sent inside the answer."""
        self.model = ""
        """The model that the server says it ran."""
        self.go_on: dict[str, Any] | None = None
        """Parameters with which the same request has to be sent again for the rest of it."""

    # What has come.

    @property
    def has_calls(self) -> bool:
        """Whether a call has come."""
        return bool(self._calls)

    @property
    def has_text(self) -> bool:
        """Whether text has come, or a tag that may turn out to be text."""
        return bool(self._text or self._tags.unclosed)

    @property
    def has_reasoning(self) -> bool:
        """Whether reasoning has come."""
        return bool(self._thoughts)

    @property
    def misses_calls(self) -> bool:
        """Whether the server says that tools are called, and nothing came."""
        return self._finish == "tool_calls" and not (self.has_calls or self.has_text)

    @property
    def was_cut_by_length(self) -> bool:
        """Whether the model had to stop before its answer was whole."""
        return self._finish == "length"

    def stands(self, *, silent: bool = False) -> bool:
        """Whether the answer is whole, although a fault came now.

        A finish reason ends a text. Calls are run, so they wait for the end of the stream.

        Args:
            silent: the fault is that nothing came any more.
        """
        if self.ended:
            return True
        if not self._calls:
            # Calls that were announced and did not come are missing.
            return self.finished and self._finish != "tool_calls"
        return silent and self.finished and not self._late_calls

    def take_chunks(self) -> list[ChatChunk]:
        """What can be shown since the last time."""
        chunks, self._chunks = self._chunks, []
        return chunks

    # What a parser says.

    def text(self, piece: str) -> None:
        """Text of the answer, in which a server may have left the reasoning."""
        self.answered = True
        piece = self._text_halves.feed(piece)
        if not self._tags.over:
            thought, piece = self._tags.feed(piece)
            self._add_thought(thought)
        self._add_text(piece)

    def reasoning(self, piece: str, field: str | None = None) -> None:
        """What the model thinks aloud.

        Args:
            field: the name under which it came, and goes back, where a wire has several.
        """
        self.answered = True
        if field and "reasoning_field" not in self.kept:
            self.keep(reasoning_field=field)
            self._end_tags()  # A server that gives the reasoning apart means a tag as text.
        self._add_thought(self._thought_halves.feed(piece))

    def call(self, key: object, **fragment: Any) -> None:
        """A call, or a fragment of one; see `Calls.take`."""
        shown = self._calls.take(key, **fragment)
        if shown is not None:
            self.answered = True
            self._late_calls = self.finished
            self._count(shown.arguments)
            self._chunks.append(ChatChunk(tool_call_delta=shown))

    def begin_hop(self) -> None:
        """The same request is sent again for the rest of the answer."""
        self._before = self._usage
        self._finish = self.go_on = None
        self.finished = self.ended = False

    def usage(self, usage: Usage | None) -> None:
        """What was used. Cumulative where it comes more than once: added up are only hops."""
        if usage is not None:
            self._usage = usage if self._before is None else self._before + usage

    def finish(self, reason: FinishReason | None, word: str = "") -> None:
        """Why the answer ended; None for a word that nobody knows.

        That an answer was cut, filtered or failed is not taken back: its calls are not run.
        """
        if not self.finished or _RANKS.get(reason, 0) >= _RANKS.get(self._finish, 0):
            self._finish, self._word = reason, word
        self.finished = self.answered = True

    def end(self) -> None:
        """The wire's last word: nothing of the answer follows."""
        self.ended = self.answered = True

    def keep(self, **fields: Any) -> None:
        """What the provider needs back with this message, by its name in `raw`."""
        self.kept.update(fields)

    def fail(self, error: ModelError) -> None:
        """Raise an error of the answer, unless a filter ended the answer by it (Azure)."""
        if error.details.get("code") != "content_filter":
            self.error = error
            raise error
        self.finish("content_filter")

    def close(self) -> None:
        """The answer is over: let go of the text that was held back."""
        self._add_thought(self._thought_halves.flush())
        self.text(self._text_halves.flush())
        unclosed = self._tags.unclosed
        if unclosed and not self._text and self._reason == "stop":
            # Nothing was closed and nothing followed: the tag was the answer's own first word.
            self._add_text(unclosed)
            self._thoughts.clear()
        else:
            self._end_tags()

    def response(self, meta: ResponseMeta) -> ChatResponse:
        """The whole answer."""
        calls = self._calls.finished()
        text = "".join(self._text)
        if self._finish is None and self._word:
            self.keep(finish_reason=self._word[:200])
        message = Message(
            role="assistant",
            content=(TextPart(text=text),) if text else (),
            tool_calls=calls,
            reasoning="".join(self._thoughts) or None,
            raw=clean({**self._source, **self.kept}) if self.kept or calls else None,
        )
        return ChatResponse(
            message=message,
            usage=self._usage,
            model=clean(self.model) or self._source.get("model", ""),
            finish_reason=self._reason,
            meta=meta,
        )

    @property
    def _reason(self) -> FinishReason:
        """Why the answer ended, whatever word the server has for it."""
        if self.refused:
            return "content_filter"
        # A word that nobody knows, behind nothing at all, is no end that can be relied on.
        usable = self.has_text or self.has_calls or not self.finished
        reason = self._finish or ("stop" if usable else "error")
        if reason in ("stop", "tool_calls"):
            return "tool_calls" if self.has_calls else "stop"
        return reason

    def _end_tags(self) -> None:
        thought, text = self._tags.flush()
        self._add_thought(thought)
        self._add_text(text)

    def _add_text(self, text: str) -> None:
        if not self._text:
            # Hosts of Qwen, Kimi and gpt-oss start with newlines before a call.
            text = text.lstrip()
        if not text:
            return
        self._count(text)
        self._text.append(text)
        # What arrived together is shown together: one chunk for a burst of tokens.
        last = self._chunks[-1] if self._chunks else None
        if last is not None and last.content:
            last.content += text
        else:
            self._chunks.append(ChatChunk(text))

    def _add_thought(self, text: str) -> None:
        if text:
            self._count(text)
            self._thoughts.append(text)
            self._chunks.append(ChatChunk(reasoning=text))

    def _count(self, text: str) -> None:
        self._chars += len(text)
        if self._chars > _MOST_CHARS:
            raise ModelError(
                f"the answer has more than {_MOST_CHARS:,} characters; it was cut off."
                " Set max_tokens, or choose another model.",
                code="LLM_BAD_RESPONSE",
            )
