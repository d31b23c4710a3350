"""The stages between a parser and the engine: surrogates, think tags, calls, the finish reason.

Wire deltas go in, the deltas of one answer come out. Knows no wire; decides when an answer is
complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Never

from nbagent.contracts.corrections import AnswerRestarted, TextCorrected
from nbagent.contracts.deltas import (
    AnswerEnd,
    Delta,
    ImagePiece,
    ReasoningPiece,
    TextPiece,
)
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import ImagePart
from nbagent.contracts.model import ClientNotice, FinishReason, ResponseMeta, Usage
from nbagent.providers.answer.content_parts import MAX_UNREAD_NAMES, nothing_readable
from nbagent.providers.answer.finish_words import PAUSES, finish_reason
from nbagent.providers.answer.images import MAX_IMAGES, SentFile, answer_image
from nbagent.providers.answer.think_tags import ThinkTags, last_indentation
from nbagent.providers.answer.tool_calls import SurrogateJoiner, ToolCallAssembler
from nbagent.providers.answer.vendor_fields import VendorFields
from nbagent.providers.answer.wire_deltas import (
    CallArguments,
    CallPart,
    Continuation,
    Facts,
    Finish,
    LastEvent,
    Picture,
    ReasoningField,
    Restart,
    ServerFault,
    UsageReport,
    WireDelta,
)
from nbagent.providers.transport.sse import fix_surrogates, safe_line
from nbagent.providers.wires.tool_names import WireNames

_FINISH_RANKS: dict[FinishReason | None, int] = {"length": 1, "content_filter": 2, "error": 3}
_MAX_CHARS = 4 * 1024 * 1024
"""Of text, reasoning, arguments and corrections together; several times the largest output of any
model."""
_MAX_SILENT_TOKENS = 8
"""Tokens that a model needs to say nothing after the results of its calls: the end of its turn, an
empty pair of tags."""


class AnswerPipe:
    """One answer on its way, also if several requests bring it."""

    def __init__(
        self,
        names: WireNames,
        source: Mapping[str, str],
        *,
        think_tags: bool = False,
        may_be_silent: bool = False,
    ) -> None:
        """Begin an answer.

        Args:
            names: the tools' names on the wire.
            source: where the answer comes from, for `raw`.
            think_tags: reasoning may stand in the text, between tags.
            may_be_silent: an answer without a text is legal: the request ends with results of
                tools.
        """
        self._may_be_silent = may_be_silent
        self._names, self._source, self._think_tags = names, dict(source), think_tags
        self._ready: list[Delta] = []
        """Deltas that are not taken yet."""
        self._notices: set[str] = set()
        """Sentences about images that were left out."""
        self._chars = 0
        self._usage: Usage | None = None
        self._sent_usage: Usage | None = None
        """Usage of the current request."""
        self._earlier_usage: Usage | None = None
        """Usage of the earlier requests, if the answer comes by several."""
        self.finished = False
        """A finish reason has come."""
        self.ended = False
        """The wire's last event was read."""
        self.error: ModelError | None = None
        """Error object that the server sent inside the answer."""
        self.continuation: dict[str, Any] | None = None
        """Parameters to add to the same request to get the rest of the answer; None if complete."""
        self._begin()

    def _begin(self) -> None:
        """Set all that a restart of the answer voids."""
        self._text_joiner, self._reasoning_joiner = SurrogateJoiner(), SurrogateJoiner()
        self._tags = ThinkTags(over=not self._think_tags)
        self._blank = ""
        """Spaces before the text, which has not begun."""
        self._starts_line = True
        """The text begins a line."""
        self._calls = ToolCallAssembler(self._names)
        self._late_calls = False
        """Calls came after the finish reason."""
        self._images: list[ImagePart] = []
        self.image_number: int | None = None
        """Number of the last picture in the message, from 0; None if it was left out."""
        self.has_reasoning = self._has_text = False
        self.raw_fields: dict[str, Any] = {}
        self._vendor = VendorFields()
        self._model = ""
        self._finish: FinishReason | None = None
        self._finish_word = ""
        self.answered = False
        """Any part of an answer has come, even an empty one."""
        self.no_host_answered = self._refused = False
        self._has_text_field = False
        """The server sent a text, perhaps an empty one."""
        self._unread: dict[str, None] = {}
        """Names of fields that hold something, in a form that no wire reads."""

    # State.

    @property
    def has_calls(self) -> bool:
        """True if a call has come."""
        return bool(self._calls)

    @property
    def has_text(self) -> bool:
        """True if text has come, or a tag that may still become text."""
        return self._has_text or bool(self._tags.unclosed)

    @property
    def _has_parts(self) -> bool:
        """True if a call, text or an image has come."""
        return self.has_calls or self.has_text or bool(self._images)

    @property
    def lacks_announced_calls(self) -> bool:
        """True if the finish reason is tool calls, but neither calls nor text came."""
        return self._finish == "tool_calls" and not self._has_parts

    def fault_of_nothing(self) -> ModelError | None:
        """Return the error of an answer that is paid and holds nothing that can be read."""
        # An image that was left out has its own notice.
        is_read = self._has_parts or self.has_reasoning or bool(self._notices)
        if is_read or self._reason != "stop" or self._finish_word in PAUSES:
            return None
        usage = self._usage or Usage()
        tokens, is_silent = usage.completion_tokens, self._has_text_field
        if self._may_be_silent:
            is_silent = tokens - usage.reasoning_tokens <= _MAX_SILENT_TOKENS
        elif tokens:
            is_silent = False
        if is_silent and (tokens or not self._unread):
            return None
        return nothing_readable(list(self._unread), tokens)

    @property
    def was_cut_by_length(self) -> bool:
        """True if the answer was cut at the token limit."""
        return self._finish == "length"

    def is_usable(self, *, timed_out: bool = False) -> bool:
        """True if the answer is complete despite a fault now.

        Text is complete at its finish reason. Tool calls are executed, so they are trusted only
        after the stream ended.

        Args:
            timed_out: the fault is that nothing came any more. Some servers keep the stream open
                after the finish reason; the calls before it are complete then.
        """
        if self.ended:
            return True
        if not self._calls:
            # Announced calls that did not come are missing.
            return self.finished and self._finish != "tool_calls"
        return timed_out and self.finished and not self._late_calls

    # In and out.

    def take(self) -> list[Delta]:
        """Return the deltas since the last call."""
        ready, self._ready = self._ready, []
        return ready

    def add(self, delta: WireDelta) -> None:
        """Add what a parser yields. Raises the error of an error object."""
        # First, and without a `match`: once per token.
        if isinstance(delta, TextPiece):
            self._add_text(delta.text)
            return
        match delta:
            case ReasoningPiece(text):
                self.answered = True
                self._append_reasoning(self._reasoning_joiner.feed(text))
            case CallPart():
                self._add_call(delta)
            case CallArguments(key, arguments):
                if (correction := self._calls.replace(key, arguments)) is not None:
                    self._count(arguments)
                    self._ready.append(correction)
            case Picture(sent):
                self._add_image(sent)
            case ReasoningField(name):
                self.raw_fields["reasoning_field"] = name
                self._end_tags()
            case Facts():
                self._note(delta)
            case UsageReport(usage):
                self._set_usage(usage)
            case Finish(reason, word):
                self.finish(reason, word)
            case Continuation(params):
                self.continuation = params
            case ServerFault(error):
                self._fail(error)
            case Restart():
                self._restart()
            case LastEvent():
                self.ended = True  # `[DONE]` may be all that came.
            case _:
                raise _no_wire_delta(delta)

    def finish(self, reason: FinishReason | None, word: str = "") -> None:
        """Set the finish reason.

        A later "stop" does not replace "cut", "filtered" or "failed": then calls are not run.
        """
        if not self.finished or _FINISH_RANKS.get(reason, 0) >= _FINISH_RANKS.get(self._finish, 0):
            self._finish, self._finish_word = reason, word
        self.finished = self.answered = True

    def begin_continuation(self) -> None:
        """Prepare for the next part of the answer, from another request."""
        self._earlier_usage, self._sent_usage = self._usage, None
        self._finish = self.continuation = None
        self.finished = self.ended = False

    def close(self) -> None:
        """Release the text that was held back; the answer is complete."""
        self._append_reasoning(self._reasoning_joiner.flush())
        if half := self._text_joiner.flush():
            self._add_text(half)
        unclosed = self._tags.unclosed
        if unclosed and not self._has_text and self._reason == "stop":
            # The tag was never closed and no text followed: the answer itself begins with this tag.
            if self.has_reasoning:
                self._ready.append(TextCorrected(reasoning=""))
            self._append_text(unclosed)
        else:
            self._end_tags()

    def end(self, meta: ResponseMeta) -> list[Delta]:
        """Return the last deltas: the ends of the calls and of the answer."""
        raw: dict[str, Any] | None = None
        if self._finish is None and self._finish_word:
            self.raw_fields["finish_reason"] = self._finish_word[:200]
        if self.raw_fields or self.has_calls:
            raw = fix_surrogates({**self._source, **self.raw_fields})
        end = AnswerEnd(
            finish_reason=self._reason,
            model=fix_surrogates(self._model) or self._source.get("model", ""),
            usage=self._usage,
            raw=raw,
            meta=meta.model_copy(update={"vendor": self._vendor.build()}),
        )
        return [*self._calls.end(), *self._finish_notices(), end]

    def _finish_notices(self) -> Iterator[ClientNotice]:
        """Yield what a person should know of the finish word."""
        word = safe_line(self._finish_word, 80)
        if word and finish_reason(self._finish_word) is None:
            text = f"The server ended its answer with {word!r}, which is no known reason."
            yield ClientNotice("note", text)
        elif self._finish_word in PAUSES:
            text = f"The server paused its answer ({word}); continue with --continue."
            yield ClientNotice("note", text)

    # The stages.

    def _add_text(self, piece: str) -> None:
        self.answered = self._has_text_field = True
        piece = self._text_joiner.feed(piece)
        if not self._tags.done:
            thought, piece = self._tags.feed(piece)
            self._append_reasoning(thought)
            self._starts_line = not self._tags.closed
        self._append_text(piece)

    def _add_call(self, part: CallPart) -> None:
        for shown in self._calls.add(part):
            self.answered = True
            self._late_calls = self.finished
            self._count(shown.arguments or "")
            self._ready.append(shown)

    def _add_image(self, sent: SentFile) -> None:
        """Add an image of the answer, or a notice that it is left out."""
        self.answered, self.image_number = True, None
        shown = answer_image(sent)
        if isinstance(shown, ImagePart):
            # Some gateways send an image twice: in a chunk, and in the message of the last one.
            if shown in self._images:
                self.image_number = self._images.index(shown)
                return
            if len(self._images) < MAX_IMAGES:
                self.image_number = len(self._images)
                self._images.append(shown)
                self._ready.append(ImagePiece(shown))
                return
            shown = f"The answer has more than {MAX_IMAGES} images; the others are left out."
        if shown not in self._notices:
            self._notices.add(shown)
            self._ready.append(ClientNotice("note", shown))

    def _note(self, facts: Facts) -> None:
        self.answered |= facts.begun
        self._model = facts.model or self._model
        self._refused |= facts.refused
        self.no_host_answered |= facts.no_host
        for name in facts.unread[: MAX_UNREAD_NAMES - len(self._unread)]:
            self._unread[name] = None
        if facts.raw:
            self.raw_fields.update(facts.raw)
        if facts.vendor:
            self._vendor.add(facts.vendor, without=facts.vendor_without)

    def _set_usage(self, usage: Usage | None) -> None:
        """Set the usage. Servers that repeat it send sums, so it replaces the one before.

        A part that it leaves out stays. Only the usages of several requests for one answer are
        added.
        """
        if usage is None:
            return
        if (before := self._sent_usage) and not (usage.prompt_tokens and usage.completion_tokens):
            usage = Usage.of(
                usage.prompt_tokens or before.prompt_tokens,
                usage.completion_tokens or before.completion_tokens,
                cached=usage.cached_tokens or before.cached_tokens,
                reasoning=usage.reasoning_tokens or before.reasoning_tokens,
                cache_write=usage.cache_write_tokens or before.cache_write_tokens,
            )
        self._sent_usage = usage
        self._usage = usage if self._earlier_usage is None else self._earlier_usage + usage

    def _fail(self, error: ModelError) -> None:
        """Raise an error object of the answer; a filter's (Azure) only ends the answer."""
        if error.kind != "content_filter":
            self.error = error
            raise error
        self.finish("content_filter")

    def _restart(self) -> None:
        """Void the answer so far."""
        if self._has_text or self._images or self.has_reasoning or self.has_calls:
            self._ready.append(AnswerRestarted())
        self._begin()
        self.finished = self.ended = False

    @property
    def _reason(self) -> FinishReason:
        """Finish reason; corrects servers that say "stop" although calls came."""
        if self._refused:
            return "content_filter"
        # An unknown finish word after an empty answer is an error.
        usable = self._has_parts or not self.finished
        reason = self._finish or ("stop" if usable else "error")
        if reason in ("stop", "tool_calls"):
            return "tool_calls" if self.has_calls else "stop"
        return reason

    def _end_tags(self) -> None:
        thought, text = self._tags.flush()
        self._append_reasoning(thought)
        self._append_text(text)

    def _append_text(self, text: str) -> None:
        if not self._has_text:
            text = self._begun_text(text)
        if not text:
            return
        self._count(text)
        self._has_text = True
        # One delta for tokens that arrived together: fewer updates of the page.
        last = self._ready[-1] if self._ready else None
        if isinstance(last, TextPiece):
            last.text += text
        else:
            self._ready.append(TextPiece(text))

    def _begun_text(self, text: str) -> str:
        """Return the beginning of the text without blank lines before it, once it has come.

        Hosts of Qwen, Kimi and gpt-oss send newlines before a call; they are no text. The first
        line's indentation is, but not spaces on the line of a closing tag.
        """
        text = self._blank + text
        stripped = text.lstrip()
        blank = text[: len(text) - len(stripped)]
        self._starts_line |= "\n" in blank
        self._blank = last_indentation(blank)
        return self._blank + stripped if stripped and self._starts_line else stripped

    def _append_reasoning(self, text: str) -> None:
        if text:
            self._count(text)
            self.has_reasoning = True
            self._ready.append(ReasoningPiece(text))

    def _count(self, text: str) -> None:
        self._chars += len(text)
        if self._chars > _MAX_CHARS:
            raise ModelError(
                f"the answer has more than {_MAX_CHARS:,} characters; it was cut off."
                " Set max_tokens, or choose another model.",
                code="LLM_BAD_RESPONSE",
            )


def _no_wire_delta(delta: Never) -> TypeError:
    """Build the error of a parser that yields anything else."""
    return TypeError(f"its parser yielded {type(delta).__name__}, which is no WireDelta")
