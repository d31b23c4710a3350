"""What Gemini answers: chunks of a stream or a whole response, given to an `Assembly`."""

from __future__ import annotations

import re
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.chat import FinishReason, Usage, is_keepable
from nbagent.contracts.errors import ModelError
from nbagent.providers.assembly import Assembly
from nbagent.providers.errors import stream_error
from nbagent.providers.frames import (
    arguments_of,
    bad_answer,
    clean,
    first_object,
    objects_in,
    text_or_empty,
    tokens,
)
from nbagent.providers.wires import Parser

_FINISH: dict[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
}
_FILTERED = re.compile(
    r"SAFETY|RECITATION|BLOCKLIST|PROHIBITED|SPII|MODEL_ARMOR|ESCALATION|PUP_LIMITED"
)
_FAILED = re.compile(r"TOO_MANY_TOOL_CALLS|MISSING_|MALFORMED_RESPONSE|LANGUAGE|OTHER|NO_IMAGE")
_BROKEN_CALLS = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL")
_CANDIDATE_FIELDS = frozenset(
    {"index", "content", "finishReason", "finishMessage", "continuationToken", "tokenCount"}
)


class GoogleParser(Parser):
    """Reads one answer. There is no last word: the reason to finish and a clean end are it."""

    done_ends = False

    def __init__(self, into: Assembly) -> None:
        self._into = into
        self._parts: list[tuple[dict[str, Any], list[str] | None]] = [
            (part, None) for part in into.kept.get("parts", ())
        ]
        """As they came; with the texts of pieces of plain text, which are joined."""
        self._usage: dict[str, Any] = {}

    def event(self, name: bytes, data: Any) -> None:
        """Take one chunk; an error may come in a list."""
        chunk = first_object(data) if isinstance(data, list) else json_object(data)
        if chunk is None:
            raise bad_answer("a chunk is no object")
        if chunk.get("error"):
            self._into.fail(stream_error(chunk))
        into = self._into
        into.model = into.model or text_or_empty(chunk.get("modelVersion"))
        self._usage = json_object(chunk.get("usageMetadata")) or self._usage
        blocked = (json_object(chunk.get("promptFeedback")) or {}).get("blockReason")
        if blocked:
            into.keep(block_reason=str(blocked)[:200])
            into.finish("content_filter", str(blocked))
        candidates: Any = chunk.get("candidates") or []
        if not isinstance(candidates, list):
            raise bad_answer("`candidates` is not a list")
        for candidate in objects_in(candidates):
            if not candidate.get("index"):  # Others were asked for with `extra_body`.
                self._candidate(candidate)
        if into.finished:
            into.usage(_usage_of(self._usage))  # Each chunk has counts: the last ones are enough.

    def whole(self, body: Any) -> None:
        """Take a whole response."""
        self.event(b"", body)
        if not self._into.finished:
            raise bad_answer("it says neither an answer nor why there is none")

    def _candidate(self, candidate: dict[str, Any]) -> None:
        into = self._into
        content = json_object(candidate.get("content")) or {}
        parts: Any = content.get("parts") or []
        if not isinstance(parts, list):
            raise bad_answer("`parts` is not a list")
        for part in objects_in(parts):
            self._part(part)
        for name in candidate.keys() - _CANDIDATE_FIELDS:
            into.keep_unknown(name, candidate[name])
        if word := text_or_empty(candidate.get("finishReason")):
            self._finish(word, candidate)

    def _finish(self, word: str, candidate: dict[str, Any]) -> None:
        into = self._into
        if word in _BROKEN_CALLS:
            said = clean(text_or_empty(candidate.get("finishMessage")))[:600] or word
            raise ModelError(
                f"the model wrote a call that the server cannot read: {said}; try again, or choose"
                " another model.",
                code="LLM_BAD_RESPONSE",
                details={"code": "tool_use_failed"},
                said=said,
            )
        reason = _FINISH.get(word)
        if _FILTERED.search(word):
            reason = "content_filter"
        elif _FAILED.search(word):
            reason = "error"
        if reason in ("error", "content_filter"):
            into.keep(finish_reason=word)
        token = text_or_empty(candidate.get("continuationToken"))
        if word == "CONTINUATION" and token:
            into.go_on = {"continuationToken": token}
        self._keep_parts()
        into.finish(reason, word)

    def _part(self, part: dict[str, Any]) -> None:
        into = self._into
        into.answered = True
        self._add(part)
        text = part.get("text")
        if isinstance(text, str) and text:
            show = into.reasoning if part.get("thought") is True else into.text
            show(text)
        if call := json_object(part.get("functionCall")):
            into.call(
                object(),
                id=text_or_empty(call.get("id")),
                name=text_or_empty(call.get("name")),
                arguments=arguments_of(call.get("args")),
            )

    def _add(self, part: dict[str, Any]) -> None:
        """Hold a part as it came; it is none of a record when it is nested too deeply."""
        # Text alone: a signed part is neither joined nor split.
        text, thought = part.get("text"), part.get("thought", False)
        plain = not part.keys() - {"text", "thought"} and isinstance(thought, bool)
        last, texts = self._parts[-1] if self._parts else ({}, None)
        if not (plain and isinstance(text, str)):
            if is_keepable(part):
                self._parts.append((part, None))
        elif texts is not None and last.get("thought", False) == thought:
            texts.append(text)
        else:
            self._parts.append((part, [text]))
        if self._into.finished:
            self._keep_parts()  # A signature may come behind the finish reason.

    def _keep_parts(self) -> None:
        """Keep the parts where the message cannot say them, or where the rest may be so."""
        if self._into.go_on or any(_is_opaque(part) for part, _ in self._parts):
            parts = [p if it is None else {**p, "text": "".join(it)} for p, it in self._parts]
            self._into.keep(parts=parts)


def _is_opaque(part: dict[str, Any]) -> bool:
    """Whether it cannot be written again from the message itself."""
    call = json_object(part.get("functionCall")) or {}
    return bool(part.keys() - {"text", "functionCall"}) or ("id" not in call and bool(call))


def _usage_of(usage: dict[str, Any]) -> Usage | None:
    """Counts are cumulative, and thoughts are not within the candidates' tokens."""
    if not usage:
        return None
    thoughts = tokens(usage, "thoughtsTokenCount")
    return Usage.of(
        tokens(usage, "promptTokenCount") + tokens(usage, "toolUsePromptTokenCount"),
        tokens(usage, "candidatesTokenCount") + thoughts,
        total=tokens(usage, "totalTokenCount"),
        cached=tokens(usage, "cachedContentTokenCount"),
        reasoning=thoughts,
    )
