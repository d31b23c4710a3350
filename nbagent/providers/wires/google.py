"""Google's wire, Gemini `generateContent`: what a request is, how an answer is read.

Wire facts: Google's API reference and types (providers.md 7). The version is the base URL's path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import ImagePart, Message, Part, is_storable_json
from nbagent.contracts.model import ChatRequest, ToolSpec
from nbagent.providers.answer.builder import Assembly
from nbagent.providers.answer.fields import objects_in, text_or_empty, tokens
from nbagent.providers.answer.vendor_words import finish_reason, frame_object, take_call, usage_in
from nbagent.providers.transport.sse import bad_answer, clean
from nbagent.providers.wires.base import (
    Encoding,
    Parser,
    Wire,
    described,
    effort_word,
    only_set,
    version_in,
)
from nbagent.providers.wires.encoding import (
    arguments_object,
    attached,
    is_failure,
    readable,
    results_together,
    with_schema,
)
from nbagent.providers.wires.tool_names import WireNames
from nbagent.providers.wires.tool_schemas import gemini_schema

_DUMMY = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
"""Google's documented stand-in for a signature, in base64: `skip_thought_signature_validator`."""
_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
_LEVELS = {"minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM"}
_BUDGETS = {"none": 0, "minimal": 512, "low": 2_048, "medium": 8_192}
_MOST_UNSTREAMED = 32_768
_OPENING = Message.of("user", "…")
"""Before an answer that begins a conversation: the first content has to be the user's."""
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_MOST_PARTS = 2_000
"""Of one answer, texts joined: a signature lets all of them be kept once more."""
_BROKEN_CALLS = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL")


class GoogleParser(Parser):
    """Reads one answer. There is no last word: the reason to finish and a clean end are it."""

    def __init__(self, request: ChatRequest, into: Assembly) -> None:
        super().__init__(request, into)
        self._before: list[dict[str, Any]] = into.kept.get("parts", [])
        """Of the answer so far, where it comes by several requests."""
        self._parts: list[tuple[bool | None, dict[str, Any], list[str]]] = []
        """Kind, part as it came, and the texts of those behind it that only go on with it."""
        self._usage: dict[str, Any] = {}

    def event(self, name: bytes, data: Any) -> None:
        """Take one chunk; an error may come in a list."""
        into = self._into
        chunk = frame_object(data, into)
        into.model = into.model or text_or_empty(chunk.get("modelVersion"))
        self._usage = json_object(chunk.get("usageMetadata")) or self._usage
        blocked = (json_object(chunk.get("promptFeedback")) or {}).get("blockReason")
        if blocked:
            into.keep(block_reason=str(blocked)[:200])
            into.finish("content_filter", str(blocked))
        for candidate in objects_in(chunk.get("candidates")):
            if not candidate.get("index"):  # Others were asked for with `extra_body`.
                self._candidate(candidate)
        if into.finished:
            self._keep_parts()  # A signature may come behind the finish reason.
            # Each chunk has counts: the last ones are enough. Thoughts and tools are beside them.
            counts = self._usage
            prompt = tokens(counts, "promptTokenCount") + tokens(counts, "toolUsePromptTokenCount")
            written = tokens(counts, "candidatesTokenCount") + tokens(counts, "thoughtsTokenCount")
            summed = {"promptTokenCount": prompt, "candidatesTokenCount": written}
            into.usage(usage_in({**counts, **summed} if counts else None))

    def whole(self, body: Any) -> None:
        """Take a whole response."""
        self.event(b"", body)
        if not self._into.finished:
            raise bad_answer("it says neither an answer nor why there is none")

    def _candidate(self, candidate: dict[str, Any]) -> None:
        content = json_object(candidate.get("content")) or {}
        parts: Any = content.get("parts") or []
        if not isinstance(parts, list):
            raise bad_answer("`parts` is not a list")
        for part in objects_in(parts):
            self._part(part)
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
                server_text=said,
            )
        reason = finish_reason(word)
        if reason in ("error", "content_filter"):
            into.keep(finish_reason=word)
        token = text_or_empty(candidate.get("continuationToken"))
        if word == "CONTINUATION" and token:
            into.go_on = {"continuationToken": token}
        into.finish(reason, word)

    def _part(self, part: dict[str, Any]) -> None:
        into, text, thought = self._into, part.get("text"), _plain_kind(part)
        if thought is not None and self._parts and self._parts[-1][0] is thought:
            self._parts[-1][2].append(part["text"])
        elif part and is_storable_json(part):  # One that is nested too deeply is none of a record.
            self._parts.append((thought, part, []))
            if len(self._parts) > _MOST_PARTS:
                raise bad_answer(f"more than {_MOST_PARTS:,} parts are in it")
        if isinstance(text, str) and text:
            show = into.reasoning if part.get("thought") is True else into.text
            show(text)
        if call := json_object(part.get("functionCall")):
            take_call(into, object(), call, call)

    def _keep_parts(self) -> None:
        """Keep the parts where the message cannot say them, or where the rest may be so."""
        opaque = any(_is_opaque(part) for _, part, _ in self._parts)
        if self._into.go_on or self._before or opaque:
            kept = list(self._before)
            for _, part, more in self._parts:
                kept.append({**part, "text": part["text"] + "".join(more)} if more else part)
            self._into.keep(parts=kept)


def _plain_kind(part: dict[str, Any]) -> bool | None:
    """Whether pieces of text are thoughts; None for others: a signed one is never joined."""
    text, thought = part.get("text"), part.get("thought", False)
    plain = not part.keys() - {"text", "thought"} and isinstance(text, str)
    return thought if plain and isinstance(thought, bool) else None


class Google(Wire):
    """Gemini at Google."""

    name = "google"
    parser = GoogleParser
    messages_field = "contents"
    tools_form = b'[{"functionDeclarations":%b}]'
    choice_field = "toolConfig"
    nested_field = "generationConfig"
    home = "/v1"
    endings = ("/models", "/openai")
    key_header = "x-goog-api-key"
    key_prefix = ""
    next_page = ("nextPageToken", "pageToken")
    models_path = "/models?pageSize=1000"
    reserved = frozenset({"contents", "tools", "systemInstruction"})

    def path(self, request: ChatRequest, *, stream: bool) -> str:
        """The model is in the path; without `alt=sse` a stream would be one JSON array."""
        # Long-decode models refuse to write so much at once (providers.md 7.4).
        stream = stream or (request.max_tokens or 0) > _MOST_UNSTREAMED
        model = request.model if "/" in request.model else f"models/{request.model}"
        how = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return f"/{quote(model)}:{how}"

    def params(
        self, request: ChatRequest, names: WireNames, flags: frozenset[str], *, stream: bool
    ) -> dict[str, Any]:
        """All of the body but system, contents and tools."""
        config: dict[str, Any] = {
            "temperature": request.temperature,
            "topP": request.top_p,
            "maxOutputTokens": request.max_tokens,
            "stopSequences": list(request.stop_sequences) or None,
            "thinkingConfig": _thinking(request.reasoning, request.model),
        }
        if request.output_schema is not None and _has_schema_mode(request):
            config["responseMimeType"] = "application/json"
            config["responseJsonSchema"] = gemini_schema(request.output_schema)
        params = {"generationConfig": config} if (config := only_set(config)) else {}
        if request.tools:
            choice = request.tool_choice or "auto"
            named = {"mode": "ANY", "allowedFunctionNames": [names.to_wire(choice)]}
            calling = {"mode": _MODES[choice]} if choice in _MODES else named
            params["toolConfig"] = {"functionCallingConfig": calling}
        return params

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """Before Gemini 3 tools and the JSON mode exclude each other."""
        return _has_schema_mode(request)

    def tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """A function declaration with plain JSON Schema."""
        schema = gemini_schema({"type": "object", **spec.parameters})
        return {**described(spec, name), "parametersJsonSchema": schema}

    def system(self, request: ChatRequest) -> str:
        """With the schema, where tools and the JSON mode exclude each other."""
        if request.output_schema is None or _has_schema_mode(request):
            return request.system_prompt
        return with_schema(request)

    def groups(
        self, messages: Sequence[Message], flags: frozenset[str]
    ) -> Iterable[tuple[Message, ...]]:
        """Results with the answer that asked for them: they echo its ids, where it has some."""
        if messages and messages[0].role == "assistant":
            yield (_OPENING,)
        yield from results_together(messages, with_calls=True)

    def encode(self, group: tuple[Message, ...], context: Encoding) -> list[Any]:
        """Roles are only `user` and `model`; results are a content of their own."""
        if group[0].role == "tool":
            group = (Message(role="assistant"), *group)
        first, results = group[0], group[1:]
        if first.role != "assistant":
            return _content("user", [_part(part) for part in first.content])
        parts = _model_parts(first, context)
        asked = [json_object(part["functionCall"]) or {} for part in parts if _has_call(part)]
        order = [call.id for call in first.tool_calls]
        echoed = dict(zip(order, asked, strict=True))
        results = sorted(results, key=lambda it: (*order, it.tool_call_id).index(it.tool_call_id))
        said = [_result(it, echoed.get(it.tool_call_id or "", {}), context) for it in results]
        shown: list[dict[str, Any]] = []
        for result in results:
            # Only text is in a result: images and files follow all results of the turn.
            if parts_beside := [_part(part) for part in attached(result)]:
                name = context.names.to_wire(result.name or "tool")
                label = f"Given back by {name} (call {result.tool_call_id}):"
                shown += [{"text": label}, *parts_beside]
        return [*_content("model", parts), *_content("user", said), *_content("user", shown)]

    def system_fields(self, text: str) -> dict[str, Any] | None:
        """The system text has a place of its own."""
        return {"systemInstruction": {"parts": [{"text": text}]}}


def _is_opaque(part: dict[str, Any]) -> bool:
    """Whether it cannot be written again from the message itself."""
    call = json_object(part.get("functionCall")) or {}
    return bool(part.keys() - {"text", "functionCall"}) or ("id" not in call and bool(call))


def _version(model: str) -> tuple[int, int]:
    # A name without a version (`gemini-flash-latest`) is the newest.
    return version_in(model, _VERSION, (99, 0))


def _is_third(model: str) -> bool:
    """Whether it is of generation 3 or later: signatures are checked."""
    return _version(model) >= (3, 0)


def _has_schema_mode(request: ChatRequest) -> bool:
    return _is_third(request.model) or not request.tools


def _thinking(asked: str | None, model: str) -> dict[str, Any] | None:
    """A budget for Gemini 2.5, a level from 3 on; never both."""
    if asked is None:
        return None
    shown = {"includeThoughts": True} if asked not in ("none", "0") else {}
    if not _is_third(model):
        budget = int(asked) if asked.isdecimal() else _BUDGETS.get(asked, 24_576)
        return {**shown, "thinkingBudget": max(budget, 128 if "pro" in model else 0)}
    word = effort_word(asked)
    if word in ("none", "minimal"):
        # Later ones and Pro refuse MINIMAL, and cannot be switched off.
        word = "minimal" if _version(model) < (3, 7) and "pro" not in model else "low"
    return {**shown, "thinkingLevel": _LEVELS.get(word, "HIGH")}


def _content(role: str, parts: Sequence[dict[str, Any]]) -> list[Any]:
    """A content, or nothing: one without parts is refused, and so is a part without anything."""
    kept = [
        part
        for part in parts
        # An empty text counts with a signature, a signature alone does not.
        if part.keys() - {"thought", "thoughtSignature"}
        and (part.get("text") != "" or "thoughtSignature" in part)
    ]
    return [{"role": role, "parts": kept}] if kept else []


_ONLY_ASKED = frozenset({"fileData", "inlineData", "functionResponse"})
"""Kinds of parts that stand in requests alone."""


def _model_parts(message: Message, context: Encoding) -> list[dict[str, Any]]:
    """The parts as they came, where this model wrote them; else written from the message."""
    kept = objects_in(context.own(message).get("parts"))
    # A record may come from a stranger: nothing that an answer cannot hold goes back.
    parts: list[dict[str, Any]] = [dict(part) for part in kept if not part.keys() & _ONLY_ASKED]
    if not parts or sum(map(_has_call, parts)) != len(message.tool_calls):
        parts = [{"text": message.text}] if message.text else []
        for call in message.tool_calls:
            name = context.names.to_wire(call.name)
            made = {"id": call.id, "name": name, "args": arguments_object(call)}
            parts.append({"functionCall": made})
    for part, call in zip(filter(_has_call, parts), message.tool_calls, strict=False):
        made = json_object(part["functionCall"]) or {}
        part["functionCall"] = {**made, "args": arguments_object(call)}
    first = next(filter(_has_call, parts), None)
    if first is not None and "thoughtSignature" not in first and _is_third(context.model):
        first["thoughtSignature"] = _DUMMY
    return parts


def _has_call(part: dict[str, Any]) -> bool:
    return "functionCall" in part


def _result(message: Message, call: dict[str, Any], context: Encoding) -> dict[str, Any]:
    """The result as text: a key `$ref` anywhere in an object would break the request."""
    name = call.get("name") or context.names.to_wire(message.name or "tool")
    said = {"error" if is_failure(message) else "output": message.text}
    own_id = {"id": call["id"]} if call.get("id") else {}
    return {"functionResponse": {"name": name, "response": said, **own_id}}


def _part(part: Part) -> dict[str, Any]:
    shown = readable(part)
    if isinstance(shown, str):
        return {"text": shown}
    if isinstance(shown, ImagePart) and shown.url:
        return {"fileData": {"mimeType": shown.media_type, "fileUri": shown.url}}
    return {"inlineData": {"mimeType": shown.media_type, "data": shown.data or ""}}
