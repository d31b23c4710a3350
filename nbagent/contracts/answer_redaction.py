"""Hide the secrets of an answer: in its parts while they arrive, and in the complete response."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from nbagent.contracts.corrections import (
    AnswerRestarted,
    CallCorrected,
    Correction,
    TextCorrected,
)
from nbagent.contracts.messages import TextPart, redacted
from nbagent.contracts.model import ChatResponse
from nbagent.contracts.secrets import StreamFilter, redact


class AnswerRedactor:
    """Redacts the parts of one answer: keeps back a possible start of a secret."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.text, self.reasoning = StreamFilter(), StreamFilter()
        self.arguments: defaultdict[int, StreamFilter] = defaultdict(StreamFilter)
        """Filters of the calls' arguments, by index."""

    def correct(self, correction: Correction) -> Correction:
        """Redact what replaces a part of the answer; a secret may begin anew in it."""
        match correction:
            case TextCorrected(text, reasoning):
                if text is not None:
                    self.text = StreamFilter()
                    text = self.text.feed(text)
                if reasoning is not None:
                    self.reasoning = StreamFilter()
                    reasoning = self.reasoning.feed(reasoning)
                return TextCorrected(text, reasoning)
            case CallCorrected(index, name, arguments):
                if arguments is not None:
                    self.arguments[index] = StreamFilter()
                    arguments = self.arguments[index].feed(arguments)
                return CallCorrected(index, name and redact(name), arguments)
            case AnswerRestarted():
                self._clear()
                return correction

    def flush_arguments(self) -> Iterator[tuple[int, str]]:
        """Yield the arguments that were kept back, with the indices of their calls."""
        for index, pending in self.arguments.items():
            if rest := pending.flush():
                yield index, rest


def redacted_response(response: ChatResponse) -> ChatResponse:
    """Hide the secrets of a complete response, also one with an image inside."""
    response = redacted(response)
    message = response.message
    if not message.images:
        return response
    text = redact(message.text)
    if text == message.text:
        return response
    content = (TextPart(text=text), *message.images)
    return response.model_copy(update={"message": message.model_copy(update={"content": content})})
