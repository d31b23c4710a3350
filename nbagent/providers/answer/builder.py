"""Build one answer while it arrives: text, reasoning, calls, usage, finish → chunks and response.

The parsers of all wires fill it. Knows no wire; decides when an answer is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import ImagePart, Message, Part, TextPart
from nbagent.contracts.model import (
    ChatChunk,
    ChatResponse,
    ClientNotice,
    FinishReason,
    ResponseMeta,
    Usage,
)
from nbagent.providers.answer.images import MAX_IMAGES, SentFile, answer_image
from nbagent.providers.answer.think_tags import ThinkTags
from nbagent.providers.answer.tool_calls import SurrogateJoiner, ToolCallAssembler
from nbagent.providers.answer.vendor_fields import VendorFields
from nbagent.providers.transport.sse import fix_surrogates
from nbagent.providers.wires.tool_names import WireNames

_FINISH_RANKS: dict[FinishReason | None, int] = {"length": 1, "content_filter": 2, "error": 3}
_MAX_CHARS = 4 * 1024 * 1024
"""Of text, reasoning and arguments together; several times the largest output of any model."""


class ResponseBuilder:
    """Collects the parts of one answer."""

    def __init__(
        self, names: WireNames, source: Mapping[str, str], *, think_tags: bool = False
    ) -> None:
        self._source = dict(source)
        self._text: list[str] = []
        self._images: list[tuple[int, ImagePart]] = []
        """Images, each with the number of pieces of text before it."""
        self._reasoning: list[str] = []
        self._text_joiner, self._reasoning_joiner = SurrogateJoiner(), SurrogateJoiner()
        self._tags = ThinkTags(over=not think_tags)
        self._calls = ToolCallAssembler(names)
        self.replace_arguments = self._calls.replace
        """Replace the arguments of a call that came in fragments."""
        self._late_calls = False
        """Calls came after the finish reason."""
        self.raw_fields: dict[str, Any] = {}
        self.vendor = VendorFields()
        self._usage: Usage | None = None
        self._earlier_usage: Usage | None = None
        """Usage of the earlier requests, if the answer comes by several."""
        self._finish: FinishReason | None = None
        self._finish_word = ""
        self._chunks: list[ChatChunk] = []
        self._notices: set[str] = set()
        self._chars = 0
        self.finished = False
        """A finish reason has come."""
        self.ended = False
        """The wire's last event was read; the rest is ignored."""
        self.answered = False
        """Any part of an answer has come, even an empty one."""
        self.no_host_answered = False
        """The gateway says that no host answered (OpenRouter: `choices` is null). Worth a retry."""
        self.refused = False
        """The model refused to answer."""
        self.error: ModelError | None = None
        """Error object that the server sent inside the answer."""
        self.model = ""
        """Name of the model that ran, as the server reports it."""
        self.continuation: dict[str, Any] | None = None
        """Parameters to add to the same request to get the rest of the answer; None if complete."""

    # State.

    @property
    def has_calls(self) -> bool:
        """True if a call has come."""
        return bool(self._calls)

    @property
    def has_text(self) -> bool:
        """True if text has come, or a tag that may still become text."""
        return bool(self._text or self._tags.unclosed)

    @property
    def has_images(self) -> bool:
        """True if an image has come."""
        return bool(self._images)

    @property
    def has_reasoning(self) -> bool:
        """True if reasoning has come."""
        return bool(self._reasoning)

    @property
    def lacks_announced_calls(self) -> bool:
        """True if the finish reason is tool calls, but neither calls nor text came."""
        return self._finish == "tool_calls" and not (
            self.has_calls or self.has_text or self.has_images
        )

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

    def take_chunks(self) -> list[ChatChunk]:
        """Return the new chunks since the last call."""
        chunks, self._chunks = self._chunks, []
        return chunks

    # Calls from parsers.

    def add_text(self, piece: str) -> None:
        """Add text of the answer; it may still contain reasoning between tags."""
        self.answered = True
        piece = self._text_joiner.feed(piece)
        if not self._tags.done:
            thought, piece = self._tags.feed(piece)
            self._append_reasoning(thought)
        self._append_text(piece)

    def add_reasoning(self, piece: str, field: str | None = None) -> None:
        """Add reasoning.

        Args:
            field: name of the field it came in, if a wire has several; it goes back in the same.
        """
        self.answered = True
        if field and "reasoning_field" not in self.raw_fields:
            self.keep_raw(reasoning_field=field)
            self._end_tags()  # With a field for reasoning, a tag in the text is text.
        self._append_reasoning(self._reasoning_joiner.feed(piece))

    def add_call(self, key: object, **fragment: Any) -> None:
        """Add a call or a fragment of one; see `ToolCallAssembler.add`."""
        shown = self._calls.add(key, **fragment)
        if shown is not None:
            self.answered = True
            self._late_calls = self.finished
            self._count(shown.arguments)
            self._chunks.append(ChatChunk(tool_call_delta=shown))

    def add_image(self, sent: SentFile) -> int | None:
        """Add an image of the answer, or a notice that it is left out.

        Returns:
            Its number in the message, from 0; None if it is left out.
        """
        self.answered = True
        shown = answer_image(sent)
        images = [image for _, image in self._images]
        if isinstance(shown, ImagePart):
            # Some gateways send an image twice: in a chunk, and in the message of the last one.
            if shown in images:
                return images.index(shown)
            if len(images) < MAX_IMAGES:
                self._images.append((len(self._text), shown))
                self._chunks.append(ChatChunk(image=shown))
                return len(images)
            shown = f"The answer has more than {MAX_IMAGES} images; the others are left out."
        if shown not in self._notices:
            self._notices.add(shown)
            self._chunks.append(ChatChunk(notice=ClientNotice("note", shown)))
        return None

    def begin_continuation(self) -> None:
        """Prepare for the next part of the answer, from another request."""
        self._earlier_usage = self._usage
        self._finish = self.continuation = None
        self.finished = self.ended = False

    def set_usage(self, usage: Usage | None) -> None:
        """Set the usage. Servers that repeat it send sums, so it replaces the one before.

        Only the usages of several requests for one answer are added.
        """
        if usage is not None:
            self._usage = usage if self._earlier_usage is None else self._earlier_usage + usage

    def finish(self, reason: FinishReason | None, word: str = "") -> None:
        """Set the finish reason; None for an unknown word.

        A later "stop" does not replace "cut", "filtered" or "failed": then calls are not run.
        """
        if not self.finished or _FINISH_RANKS.get(reason, 0) >= _FINISH_RANKS.get(self._finish, 0):
            self._finish, self._finish_word = reason, word
        self.finished = self.answered = True

    def end(self) -> None:
        """Mark the end of the answer, after the wire's last event."""
        self.ended = self.answered = True

    def keep_raw(self, **fields: Any) -> None:
        """Keep fields in the message's `raw`; the provider needs them back with this message."""
        self.raw_fields.update(fields)

    def fail(self, error: ModelError) -> None:
        """Raise an error object of the answer; a filter's (Azure) only ends the answer."""
        if error.details.get("code") != "content_filter":
            self.error = error
            raise error
        self.finish("content_filter")

    def close(self) -> None:
        """Release the text that was held back; the answer is complete."""
        self._append_reasoning(self._reasoning_joiner.flush())
        self.add_text(self._text_joiner.flush())
        unclosed = self._tags.unclosed
        if unclosed and not self._text and self._reason == "stop":
            # The tag was never closed and no text followed: the answer itself begins with this tag.
            self._append_text(unclosed)
            self._reasoning.clear()
        else:
            self._end_tags()

    def build(self, meta: ResponseMeta) -> ChatResponse:
        """Build the response."""
        calls = self._calls.build()
        if self._finish is None and self._finish_word:
            self.keep_raw(finish_reason=self._finish_word[:200])
        message = Message(
            role="assistant",
            content=self._content(),
            tool_calls=calls,
            reasoning="".join(self._reasoning) or None,
            raw=fix_surrogates({**self._source, **self.raw_fields})
            if self.raw_fields or calls
            else None,
        )
        return ChatResponse(
            message=message,
            usage=self._usage,
            model=fix_surrogates(self.model) or self._source.get("model", ""),
            finish_reason=self._reason,
            meta=meta.model_copy(update={"vendor": self.vendor.build()}),
        )

    def _content(self) -> tuple[Part, ...]:
        """Texts and images in the order in which they came."""
        parts: list[Part] = []
        begin = 0
        for end, image in (*self._images, (len(self._text), None)):
            if text := "".join(self._text[begin:end]):
                parts.append(TextPart(text=text))
            if image is not None:
                parts.append(image)
            begin = end
        return tuple(parts)

    @property
    def _reason(self) -> FinishReason:
        """Finish reason; corrects servers that say "stop" although calls came."""
        if self.refused:
            return "content_filter"
        # An unknown finish word after an empty answer is an error.
        usable = self.has_text or self.has_calls or self.has_images or not self.finished
        reason = self._finish or ("stop" if usable else "error")
        if reason in ("stop", "tool_calls"):
            return "tool_calls" if self.has_calls else "stop"
        return reason

    def _end_tags(self) -> None:
        thought, text = self._tags.flush()
        self._append_reasoning(thought)
        self._append_text(text)

    def _append_text(self, text: str) -> None:
        if not self._text:
            # Hosts of Qwen, Kimi and gpt-oss send newlines before a call; they are no text.
            text = text.lstrip()
        if not text:
            return
        self._count(text)
        self._text.append(text)
        # One chunk for tokens that arrived together: fewer updates of the page.
        last = self._chunks[-1] if self._chunks else None
        if last is not None and last.content:
            last.content += text
        else:
            self._chunks.append(ChatChunk(text))

    def _append_reasoning(self, text: str) -> None:
        if text:
            self._count(text)
            self._reasoning.append(text)
            self._chunks.append(ChatChunk(reasoning=text))

    def _count(self, text: str) -> None:
        self._chars += len(text)
        if self._chars > _MAX_CHARS:
            raise ModelError(
                f"the answer has more than {_MAX_CHARS:,} characters; it was cut off."
                " Set max_tokens, or choose another model.",
                code="LLM_BAD_RESPONSE",
            )
