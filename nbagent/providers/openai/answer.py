"""What a Chat Completions server answers: chunks and whole bodies, folded into one response.

Tolerant of what servers of this dialect get wrong. Its parts: `calls`, `choices`, `reasoning`,
`usage`, `think_tags`; bytes become events in `reader`.
"""

from __future__ import annotations

from typing import Any, cast

from nbagent.contracts.canonical import json_object
from nbagent.contracts.chat import (
    ChatChunk,
    ChatResponse,
    FinishReason,
    Message,
    ResponseMeta,
    TextPart,
)
from nbagent.contracts.errors import ModelError
from nbagent.providers.failures import error_fields, stream_error
from nbagent.providers.frames import bad_answer, first_object
from nbagent.providers.names import WireNames
from nbagent.providers.openai.calls import CallAssembler
from nbagent.providers.openai.choices import ChoicePicker
from nbagent.providers.openai.reasoning import ReasoningFold, thoughts_of
from nbagent.providers.openai.think_tags import ThinkTags
from nbagent.providers.openai.usage import known_finish, stronger_finish, usage_of


class AnswerFold:
    """Everything that one answer has brought so far."""

    def __init__(
        self,
        names: WireNames,
        *,
        provider: str,
        origin: str,
        model: str,
        think_tags: bool = True,
        may_call: bool = True,
    ) -> None:
        self._source = {"provider": provider, "origin": origin, "model": model}
        self._may_call = may_call
        self._text: list[str] = []
        self._reasoning = ReasoningFold()
        self._tags = ThinkTags() if think_tags else None
        self._calls = CallAssembler(names)
        self._choices = ChoicePicker()
        self._late_calls = False
        """Calls came behind the finish reason."""
        self._fields: dict[str, Any] = {}
        self._refused = False
        self._usage: Any = None
        self._finish: str | None = None
        self._model = ""
        self.answered = False
        """A choice has come, whatever was in it."""
        self.had_no_choice = False
        """A chunk had `choices: null` (OpenRouter, when no host answered)."""
        self.error: ModelError | None = None
        """The error object that the server sent."""

    @property
    def finished(self) -> bool:
        """Whether a finish reason has come."""
        return self._finish is not None

    def stands(self, *, silent: bool = False) -> bool:
        """Whether a fault that comes now takes nothing away from the answer."""
        if not self._calls:
            # Calls that were announced and did not come are missing.
            return self.finished and known_finish(self._finish or "") != "tool_calls"
        # A server that leaves the connection open has said the end of its calls all the same.
        return silent and self.finished and not self._late_calls

    def take_usage(self, usage: Any) -> None:
        """Keep a `usage`, if there is something in it."""
        # Cumulative where it comes more than once: never added up.
        self._usage = usage or self._usage

    def take(self, found: Any, out: list[ChatChunk]) -> None:
        """Fold one chunk of a stream; what can be shown is appended to `out`."""
        # One call per delta: no helper functions on the way of a plain piece of text.
        if found.__class__ is not dict:
            self._take_odd(found, out)
            return
        chunk: dict[str, Any] = found
        if chunk.get("error"):
            self._take_error(chunk, out)
            return
        if usage := chunk.get("usage"):
            self.take_usage(usage)
        choices = chunk.get("choices")
        if not choices:
            self.had_no_choice = self.had_no_choice or ("choices" in chunk and choices is None)
            self._take_aside(chunk, out)
            return
        choice: Any = choices[0] if choices.__class__ is list and len(choices) == 1 else None
        if choice.__class__ is not dict or choice.get("index", 0) != self._choices.index:
            choice = self._choices.pick(choices)
            if choice is None:
                self._take_aside(chunk, out)
                return
        if not self._model:
            self._model = str(chunk.get("model") or "")
        self.answered = True
        if delta := choice.get("delta"):
            self._take_delta(delta, out, whole=False)
        if message := choice.get("message"):
            self._take_late(message, out)
        if choice.get("error"):
            self._take_error(choice, out)
            return
        if finish := choice.get("finish_reason"):
            self._finish = stronger_finish(self._finish, str(finish))
            self._take_aside(chunk, out)

    def take_body(self, body: Any, out: list[ChatChunk]) -> None:
        """Fold a whole answer, as it comes without streaming."""
        found = json_object(body) or first_object(body)
        if found is None:
            raise bad_answer(f"the body is {type(body).__name__}, not an object")
        if found.get("error"):
            self._take_error(found, out)
            return
        choices = found.get("choices")
        usable = isinstance(choices, list) and any(cast("list[Any]", choices))
        choice = self._choices.pick(choices) if usable else None
        if choice is not None and choice.get("error"):
            self._take_error(choice, out)
            return
        message = json_object(choice.get("message") or choice.get("delta")) if choice else None
        if choice is None or message is None:
            raise bad_answer("there is no choice with a message in it", retry="choices" in found)
        self.answered = True
        self._usage = found.get("usage")
        self._model = str(found.get("model") or "")
        self._take_delta(message, out, whole=True)
        self._finish = str(choice.get("finish_reason") or "stop")

    def refuse(self) -> None:
        """The provider's filter stopped the answer."""
        self._refused = self.answered = True
        self._finish = "content_filter"

    def salvage(self, failed: Any, out: list[ChatChunk]) -> bool:
        """Take the calls that the model wrote and the server could not read (Groq).

        They are answered like any other call: what is wrong with them is told to the model.
        """
        # Behind other calls or a finish reason it is an error like any other.
        if not self._may_call or not isinstance(failed, str) or self._calls or self.finished:
            return False
        if not self._calls.take_failed(failed, out):
            return False
        self.answered = True
        self._finish = "tool_calls"
        return True

    def close(self, out: list[ChatChunk]) -> None:
        """The answer is over: let go of the text that was held back."""
        if self._tags is None:
            return
        written = self._tags.unclosed
        thought, text = self._tags.flush()
        self._add_reasoning(thought, out)
        if text:
            self._add_text(text, out)
        ended = self._finish_reason(bool(self._calls), has_text=True)
        if written and not self._text and ended == "stop":
            # Nothing was closed and nothing followed: the tag was the answer's own first word.
            self._add_text(written, out)
            self._reasoning.pieces.clear()

    def response(self, meta: ResponseMeta) -> ChatResponse:
        """The whole answer."""
        calls = self._calls.calls()
        text = "".join(self._text)
        raw: dict[str, Any] = {}
        if self._finish and known_finish(self._finish) is None:
            raw["finish_reason"] = self._finish[:200]
        if self._reasoning.field:
            raw["reasoning_field"] = self._reasoning.field
        if self._reasoning.details:
            self._fields["reasoning_details"] = self._reasoning.details
        if self._fields:
            raw["fields"] = self._fields
        message = Message(
            role="assistant",
            content=(TextPart(text=text),) if text else (),
            tool_calls=calls,
            reasoning="".join(self._reasoning.pieces) or None,
            raw={**self._source, **raw} if raw or calls else None,
        )
        return ChatResponse(
            message=message,
            usage=usage_of(self._usage),
            model=self._model or self._source["model"],
            finish_reason=self._finish_reason(bool(calls), bool(text)),
            meta=meta,
        )

    def _take_delta(self, delta: Any, out: list[ChatChunk], *, whole: bool) -> None:
        if delta.__class__ is not dict:
            raise bad_answer("the delta is not an object")
        if len(delta) > 1 or "content" not in delta:
            # First, so that reasoning and the first word of the answer may share a delta.
            thought = self._reasoning.take(delta, whole=whole)
            if thought:
                out.append(ChatChunk(reasoning=thought))
        content = delta.get("content")
        if content.__class__ is str:
            if content:
                self._take_text(content, out)
            if len(delta) == 1:
                return
        elif content is not None:
            self._take_content(content, out)
        calls = delta.get("tool_calls")
        if calls:
            self._late_calls = self.finished
            self._calls.take(calls, out, whole=whole)
        self._take_rare(delta, out)

    def _take_rare(self, delta: dict[str, Any], out: list[ChatChunk]) -> None:
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._refused = True
            self._add_text(refusal, out)
        old = json_object(delta.get("function_call"))
        if old:
            self._late_calls = self.finished
            self._calls.take([{"index": 0, "function": old}], out, whole=False)
        if extra := json_object(delta.get("extra_content")):
            self._fields["extra_content"] = extra  # Gemini's thought signature of a plain answer.

    def _take_late(self, message: Any, out: list[ChatChunk]) -> None:
        """Some servers put the whole message into the last chunk: take what had not come."""
        if not isinstance(message, dict):
            return
        late = dict(cast("dict[str, Any]", message))
        known: list[str] = []
        if self._text or (self._tags is not None and self._tags.unclosed):
            known += ["content", "refusal"]
        if self._reasoning.pieces or self._reasoning.details:
            known += ["reasoning", "reasoning_content", "reasoning_details"]
        if self._calls:
            known += ["tool_calls", "function_call"]
        for name in known:
            late.pop(name, None)
        self._take_delta(late, out, whole=True)

    def _take_odd(self, found: Any, out: list[ChatChunk]) -> None:
        """A chunk that is no object: an error in a list (Gemini), or nothing to be used."""
        inner = first_object(found)
        if inner is not None and inner.get("error"):
            self._take_error(inner, out)
            return
        raise bad_answer(f"a chunk is {type(found).__name__}, not an object")

    def _take_error(self, holder: dict[str, Any], out: list[ChatChunk]) -> None:
        fault = stream_error(holder)
        code = fault.details.get("code")
        if code == "content_filter":
            self.refuse()  # Azure, also in the middle of a stream.
        elif code != "tool_use_failed" or not self.salvage(
            error_fields(holder).get("failed_generation"), out
        ):
            self.error = fault
            raise fault

    def _take_aside(self, chunk: dict[str, Any], out: list[ChatChunk]) -> None:
        groq = json_object(chunk.get("x_groq"))
        if groq:
            if groq.get("error"):
                self._take_error(groq, out)
            self.take_usage(groq.get("usage"))

    def _take_content(self, content: Any, out: list[ChatChunk]) -> None:
        """Mistral's content is a list of text and thinking chunks."""
        if not isinstance(content, list):
            raise bad_answer(f"the content is {type(content).__name__}, not text")
        for item in cast("list[Any]", content):
            if isinstance(item, str):
                self._take_text(item, out)
                continue
            part = json_object(item) or {}
            if part.get("type") == "text" and isinstance(part.get("text"), str):
                self._take_text(part["text"], out)
            elif part.get("type") == "thinking":
                self._add_reasoning(thoughts_of(part), out)

    def _take_text(self, text: str, out: list[ChatChunk]) -> None:
        """Text of the answer, in which a server may have left the reasoning."""
        tags = self._tags
        if tags is not None and not tags.over:
            # A server that gives the reasoning apart means a tag as text.
            if self._reasoning.field is None:
                thought, text = tags.feed(text)
            else:
                thought, held = tags.flush()
                text, self._tags = held + text, None
            self._add_reasoning(thought, out)
        if text:
            self._add_text(text, out)

    def _add_text(self, text: str, out: list[ChatChunk]) -> None:
        if not self._text:
            # Hosts of Qwen, Kimi and gpt-oss start with newlines before a call.
            text = text.lstrip()
            if not text:
                return
        self._text.append(text)
        # What arrived together is shown together: one chunk for a burst of tokens.
        last = out[-1] if out else None
        if last is not None and last.content:
            last.content += text
        else:
            out.append(ChatChunk(text))

    def _add_reasoning(self, text: str, out: list[ChatChunk]) -> None:
        if text:
            self._reasoning.pieces.append(text)
            out.append(ChatChunk(reasoning=text))

    def _finish_reason(self, has_calls: bool, has_text: bool) -> FinishReason:
        if self._refused:
            return "content_filter"
        reason = known_finish(self._finish or "stop")
        if reason is None:
            reason = "stop" if has_text or has_calls else "error"
        if reason in ("stop", "tool_calls"):
            return "tool_calls" if has_calls else "stop"
        return reason
