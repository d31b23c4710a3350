"""What Chat Completions servers answer: chunks and whole bodies, given to an `Assembly`.

Tolerant of what servers of this wire get wrong (providers.md 10). The request is in `chat`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.chat import FinishReason, Usage, is_keepable
from nbagent.contracts.errors import ModelError
from nbagent.providers.assembly import Assembly
from nbagent.providers.errors import error_fields, stream_error
from nbagent.providers.frames import bad_answer, clean, first_object, objects_in, text_or_empty
from nbagent.providers.wires import Parser

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "length": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "error": "error",
    "insufficient_system_resource": "error",
    "network_error": "error",
    # Gateways that pass on what the model behind them said.
    "end_turn": "stop",
    "stop_sequence": "stop",
    "eos_token": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
    "safety": "content_filter",
    "recitation": "content_filter",
    "prohibited_content": "content_filter",
    "abort": "error",
    "malformed_function_call": "error",
}
_MOST_TOKENS = 2**53
"""Of one count: no model has read so much, a broken counter says nothing, also of the price."""
_CALL_FIELDS = frozenset({"index", "id", "type", "function", "custom"})
_MESSAGE_FIELDS = frozenset(
    {
        *("role", "content", "refusal", "tool_calls", "function_call", "name"),
        *("reasoning", "reasoning_content", "reasoning_details", "extra_content"),
    }
)
REASONING_FIELDS = ("reasoning", "reasoning_content")
OPAQUE_FIELDS = ("extra_content", "reasoning_details")
"""Of a message: what only the server can read, and what goes back to it."""
_JOINED = ("text", "summary", "signature", "data")
_TAGGED = re.compile(r"<function=([\w.:-]{1,128})>?\s*(\{.*?\})\s*(?:</?function>|\Z)", re.S)
_LONGEST_FAILED = 20_000


class ChatParser(Parser):
    """Reads one answer."""

    def __init__(self, into: Assembly, *, may_call: bool) -> None:
        self._into = into
        self._may_call = may_call
        self._index: int | None = None
        """Of the choice that is read, once it is known. Choices are never mixed."""
        self._has_field = False
        self._is_modern = False
        """Calls came in `tool_calls`: a `function_call` beside it is the same once more."""
        self._details: list[dict[str, Any]] = []
        """OpenRouter's `reasoning_details`, deltas joined."""
        self._fields: dict[str, Any] = {}

    def event(self, name: bytes, data: Any) -> None:
        """Fold one chunk of a stream."""
        # One call per delta: no helper functions on the way of a plain piece of text.
        if data.__class__ is not dict:
            self._take_odd(data)
            return
        chunk: dict[str, Any] = data
        into = self._into
        if usage := chunk.get("usage"):
            into.usage(usage_of(usage))
        if chunk.get("error"):
            self._fail(chunk)
            return
        choices = chunk.get("choices")
        if not choices:
            # OpenRouter, when no host answered.
            into.nobody_answered |= "choices" in chunk and choices is None
            self._take_aside(chunk)
            return
        choice: Any = choices[0] if choices.__class__ is list and len(choices) == 1 else None
        if choice.__class__ is not dict or choice.get("index", 0) != self._index:
            choice = self._pick(choices)
            if choice is None:
                self._take_aside(chunk)
                return
        if not into.model:
            into.model = str(chunk.get("model") or "")
        into.answered = True
        if delta := choice.get("delta"):
            self._take_delta(delta, whole=False)
        if message := choice.get("message"):
            self._take_late(message)
        if choice.get("error"):
            self._fail(choice)
            return
        if finish := choice.get("finish_reason"):
            self._finish(str(finish))
            self._take_aside(chunk)

    def whole(self, body: Any) -> None:
        """Fold a whole answer."""
        found = json_object(body) or first_object(body)
        if found is None:
            raise bad_answer(f"the body is {type(body).__name__}, not an object")
        self._into.usage(usage_of(found.get("usage")))
        if found.get("error"):
            self._fail(found)
            return
        choices = found.get("choices")
        usable = isinstance(choices, list) and any(cast("list[Any]", choices))
        choice = self._pick(choices) if usable else None
        if choice is not None and choice.get("error"):
            self._fail(choice)
            return
        message = json_object(choice.get("message") or choice.get("delta")) if choice else None
        if choice is None or message is None:
            raise bad_answer("there is no choice with a message in it", retry="choices" in found)
        self._into.model = str(found.get("model") or "")
        self._take_delta(message, whole=True)
        self._finish(str(choice.get("finish_reason") or "stop"))

    def settle(self, error: ModelError) -> bool:
        """Take the calls that the model wrote and the server could not read (Groq)."""
        if error.details.get("code") != "tool_use_failed":
            return False
        return self._salvage(error.details.get("failed_generation"))

    def _finish(self, word: str) -> None:
        self._into.finish(_FINISH.get(word) or _FINISH.get(word.lower()), word)

    def _salvage(self, failed: Any) -> bool:
        """Whether there are calls in a text that the server could not read.

        They are answered like any other call: what is wrong with them is told to the model.
        """
        into = self._into
        # Behind other calls or a finish reason it is an error like any other.
        if not self._may_call or not isinstance(failed, str) or into.has_calls or into.finished:
            return False
        for name, arguments in _calls_in(failed[:_LONGEST_FAILED]):
            into.call(object(), name=name, arguments=arguments_of(arguments))
        if into.has_calls:
            into.finish("tool_calls")
        return into.has_calls

    def _pick(self, choices: Any) -> dict[str, Any] | None:
        """The choice with index 0, or else the first that came; None when only others are here."""
        first: Any = choices[0] if choices.__class__ is list else None
        if first.__class__ is not dict:
            raise bad_answer("`choices` is not a list of objects")
        offered: dict[int, dict[str, Any]] = {}
        for item in cast("list[Any]", choices):
            choice = json_object(item)
            if choice is not None:
                offered.setdefault(_index_of(choice.get("index")) or 0, choice)
        if self._index is None:
            self._index = 0 if 0 in offered else next(iter(offered))
        return offered.get(self._index)

    def _take_delta(self, delta: Any, *, whole: bool) -> None:
        if delta.__class__ is not dict:
            raise bad_answer("the delta is not an object")
        if len(delta) > 1 or "content" not in delta:
            # First, so that reasoning and the first word of the answer may share a delta.
            self._take_reasoning(delta, whole=whole)
        content = delta.get("content")
        if content.__class__ is str:
            if content:
                self._into.text(content)
            if len(delta) == 1:
                return
        elif content is not None:
            self._take_content(content)
        if calls := delta.get("tool_calls"):
            self._is_modern = True
            self._take_calls(calls, whole=whole)
        self._take_rare(delta)

    def _take_rare(self, delta: dict[str, Any]) -> None:
        into = self._into
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            into.refused = True
            into.text(refusal)
        old = json_object(delta.get("function_call"))
        if old and not self._is_modern:
            self._take_calls([{"index": 0, "function": old}], whole=False)
        if extra := json_object(delta.get("extra_content")):
            self._keep_field("extra_content", extra)  # Gemini's signature of a plain answer.
        for name in delta.keys() - _MESSAGE_FIELDS:
            into.keep_unknown(name, delta[name])

    def _take_late(self, message: Any) -> None:
        """Some servers put the whole message into the last chunk: take what had not come."""
        if not isinstance(message, dict):
            return
        late = dict(cast("dict[str, Any]", message))
        known: list[str] = []
        if self._into.has_text:
            known += ["content", "refusal"]
        if self._into.has_reasoning or self._details:
            known += ["reasoning", "reasoning_content", "reasoning_details"]
        if self._into.has_calls:
            known += ["tool_calls", "function_call"]
        for name in known:
            late.pop(name, None)
        self._take_delta(late, whole=True)

    def _take_odd(self, found: Any) -> None:
        """A chunk that is no object: an error in a list (Gemini), or nothing to be used."""
        inner = first_object(found)
        if inner is not None and inner.get("error"):
            self._fail(inner)
            return
        raise bad_answer(f"a chunk is {type(found).__name__}, not an object")

    def _fail(self, holder: dict[str, Any]) -> None:
        fault = stream_error(holder)
        code = fault.details.get("code")
        if code == "content_filter":
            self._into.finish("content_filter")  # Azure, also in the middle of a stream.
        elif code != "tool_use_failed" or not self._salvage(
            error_fields(holder).get("failed_generation")
        ):
            self._into.fail(fault)

    def _take_aside(self, chunk: dict[str, Any]) -> None:
        if groq := json_object(chunk.get("x_groq")):
            self._into.usage(usage_of(groq.get("usage")))
            if groq.get("error"):
                self._fail(groq)

    def _take_content(self, content: Any) -> None:
        """A list of text and thinking parts (Mistral), or an object (gateways in JSON mode)."""
        if isinstance(content, dict):
            whole = cast("dict[str, Any]", content)
            content = [whole if isinstance(whole.get("text"), str) else dump_json(whole).decode()]
        if not isinstance(content, list):
            raise bad_answer(f"the content is {type(content).__name__}, not text")
        for item in cast("list[Any]", content):
            if isinstance(item, str):
                self._into.text(item)
                continue
            part = json_object(item) or {}
            if part.get("type") == "thinking":
                self._into.reasoning(_thoughts_of(part))
            elif part.get("type", "text") == "text" and isinstance(part.get("text"), str):
                self._into.text(part["text"])

    def _take_reasoning(self, delta: dict[str, Any], *, whole: bool) -> None:
        for field in REASONING_FIELDS:
            value = delta.get(field)
            if isinstance(value, str) and value:
                # Some servers send both names with the same text: the first one counts.
                self._has_field = True
                self._into.reasoning(value, field)
                break
        details = objects_in(delta.get("reasoning_details"))
        for item in details:
            self._take_detail(item, whole=whole)
            text = item.get("text") or item.get("summary")
            if not self._has_field and isinstance(text, str):
                self._into.reasoning(text)
        if details:
            self._keep_field("reasoning_details", self._details)

    def _take_detail(self, item: dict[str, Any], *, whole: bool) -> None:
        known = None if whole else self._begun(item)
        if known is None:
            self._details.append(dict(item))
            return
        for name, value in item.items():
            before = known.get(name)
            if name in _JOINED and isinstance(before, str):
                known[name] = before + (value if isinstance(value, str) else "")
            elif value is not None:
                known[name] = value

    def _begun(self, item: dict[str, Any]) -> dict[str, Any] | None:
        """The detail that a fragment goes on with."""
        index = item.get("index")
        # Without an index only the last one can be meant.
        for known in reversed(self._details) if index is not None else self._details[-1:]:
            other_id = known.get("id") and item.get("id") and known["id"] != item["id"]
            same = known.get("index") == index and known.get("type") == item.get("type")
            if same and not other_id:
                return known
        return None

    def _keep_field(self, name: str, value: Any) -> None:
        self._fields[name] = value
        self._into.keep(fields=self._fields)

    def _take_calls(self, calls: Any, *, whole: bool) -> None:
        if not isinstance(calls, list):
            raise bad_answer("`tool_calls` is not a list")
        for item in cast("list[Any]", calls):
            call = json_object(item)
            if call is None:
                raise bad_answer("a tool call is not an object")
            custom = json_object(call.get("custom")) or {}
            function = json_object(call.get("function")) or custom
            arguments = function.get("arguments", function.get("input"))
            self._into.call(
                object() if whole else _index_of(call.get("index")),
                id=text_or_empty(call.get("id")),
                name=text_or_empty(function.get("name")),
                arguments=arguments_of(arguments),
                extra={k: v for k, v in call.items() if k not in _CALL_FIELDS},
            )


def usage_of(value: Any) -> Usage | None:
    """The tokens of a `usage` object; None when there is none."""
    usage = json_object(value)
    if not usage:
        return None
    prompt, completion = tokens(usage, "prompt_tokens"), tokens(usage, "completion_tokens")
    total = tokens(usage, "total_tokens")
    prompt_details = json_object(usage.get("prompt_tokens_details")) or {}
    completion_details = json_object(usage.get("completion_tokens_details")) or {}
    reasoning = tokens(completion_details, "reasoning_tokens")
    if reasoning and (reasoning > completion or total == prompt + completion + reasoning):
        # xAI and some gateways count the reasoning beside the completion, not within it.
        completion += reasoning
    cached = (
        tokens(prompt_details, "cached_tokens")
        or tokens(usage, "prompt_cache_hit_tokens")  # DeepSeek
        or tokens(usage, "cached_tokens")  # Moonshot
    )
    # More cached than read would be an error of the price list.
    cached = min(cached, prompt)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=total or prompt + completion,
        cached_tokens=cached,
        reasoning_tokens=reasoning,
        cache_write_tokens=min(tokens(prompt_details, "cache_write_tokens"), prompt - cached),
    )


def tokens(holder: dict[str, Any], name: str) -> int:
    """A count of an answer; 0 for what is none."""
    value = holder.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value <= _MOST_TOKENS else 0


def _index_of(value: Any) -> int | None:
    """The number that a server's `index` stands for; None for no number."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 9:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def arguments_of(value: Any) -> str:
    """The arguments of a call as text, also where a server sends them decoded."""
    if value is None or isinstance(value, str):
        return value or ""
    if not is_keepable(value):
        # Text that is JSON and no object: the call is answered with an error, the rest is kept.
        return '"arguments nested too deeply, or with a number that is too large"'
    return dump_json(clean(value)).decode()


def _thoughts_of(part: dict[str, Any]) -> str:
    """The text of a Mistral `thinking` part: a list of text parts, or one text."""
    thinking = part.get("thinking")
    if isinstance(thinking, str):
        return thinking
    texts = [item.get("text") for item in objects_in(thinking)]
    return "".join(text for text in texts if isinstance(text, str))


def _calls_in(text: str) -> Iterator[tuple[str, Any]]:
    """Calls that a model wrote in its own format: JSON, `<tool_call>`, `<function=…>`."""
    tagged = [(m[1], m[2]) for m in _TAGGED.finditer(text)]
    if tagged:
        yield from tagged
        return
    plain = re.sub(r"</?tool_call>|```(?:json)?", "", text).strip()
    decoder = json.JSONDecoder()
    while plain:
        try:
            value, end = decoder.raw_decode(plain)
        except (ValueError, RecursionError):
            return
        for item in cast("list[Any]", value) if isinstance(value, list) else [value]:
            call = json_object(item) or {}
            call = json_object(call.get("function")) or call
            arguments = call.get("arguments", call.get("parameters"))
            if isinstance(call.get("name"), str) and call["name"]:
                yield call["name"], arguments
        plain = plain[end:].lstrip(" \t\r\n,;")
