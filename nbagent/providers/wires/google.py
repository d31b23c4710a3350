"""Google's wire, Gemini `generateContent`: requests and answers.

Wire facts: Google's API reference and types. The path of the base URL holds the API version: `v1`
is the default, `v1beta` has preview features.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from nbagent.contracts.canonical import json_object
from nbagent.contracts.deltas import ReasoningPiece, TextPiece
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import FilePart, ImagePart, Message, Part, is_storable_json
from nbagent.contracts.model import ChatRequest, ToolSpec, Usage
from nbagent.providers.answer.content_parts import unread_names
from nbagent.providers.answer.finish_words import finish_reason
from nbagent.providers.answer.images import SentFile, find_file
from nbagent.providers.answer.json_fields import objects_in, text_or_empty, token_count
from nbagent.providers.answer.vendor_words import (
    call_part,
    faults_in,
    frame_object,
    read_usage,
)
from nbagent.providers.answer.wire_deltas import (
    Continuation,
    Facts,
    Finish,
    Picture,
    Progress,
    UsageReport,
    WireDelta,
)
from nbagent.providers.transport.sse import bad_response, fix_surrogates
from nbagent.providers.wires.base import (
    EncodingContext,
    Parser,
    Wire,
    effort_level,
    model_version,
    name_and_description,
    without_none,
)
from nbagent.providers.wires.encoding import (
    answer_text,
    arguments_object,
    attachments,
    audio_type,
    group_results,
    is_failure,
    system_with_schema,
    text_or_part,
)
from nbagent.providers.wires.tool_names import WireNames
from nbagent.providers.wires.tool_schemas import gemini_schema

_DUMMY_SIGNATURE = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
"""Google's documented dummy signature `skip_thought_signature_validator`. The field is base64."""
_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
_LEVELS = {"minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM"}
_BUDGETS = {"none": 0, "minimal": 512, "low": 2_048, "medium": 8_192}
_MAX_UNSTREAMED_TOKENS = 32_768  # gemini-4-argon answers 400 to more without a stream.
_OPENING_MESSAGE = Message.of("user", "…")
"""Goes before an answer that begins a conversation: the first content must be the user's."""
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_SIGNATURES = frozenset({"thoughtSignature"})
_MAX_PARTS = 2_000
"""Parts of one answer after joining texts; with a signature all are stored a second time."""
_READ_FIELDS = frozenset({"content", "index", "finishReason", "continuationToken"})
_IMAGE_NUMBER = "imageNumber"
"""In the parts that `raw` keeps: the image's number in the message, in place of its data."""
_BROKEN_CALLS = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL")
_UNKNOWN_CALLS = (*_BROKEN_CALLS, "TOO_MANY_TOOL_CALLS")
"""Ends of answers that may hold a readable call of a tool that was not declared."""


class GoogleParser(Parser):
    """Reads one answer. No event ends it: a finish reason and the end of the connection do."""

    def __init__(self, request: ChatRequest, progress: Progress) -> None:
        super().__init__(request, progress)
        self._earlier_parts: list[dict[str, Any]] = progress.raw_fields.get("parts", [])
        """Parts so far, if the answer comes by several requests."""
        self._parts: list[tuple[bool | None, dict[str, Any], list[str]]] = []
        """Kind, part as it came, and texts of the following parts that only continue it."""
        self._names = WireNames(tool.name for tool in request.tools)
        self._calls_unknown_tool = False
        self._usage: dict[str, Any] = {}
        self._model = ""
        self._continues = False
        """The rest of the answer comes by another request."""

    def read_event(self, name: bytes, data: Any) -> Iterator[WireDelta]:
        """Read one chunk; an error may come in a list."""
        chunk = frame_object(data)
        yield from faults_in(chunk)
        self._model = self._model or text_or_empty(chunk.get("modelVersion"))
        yield Facts(self._model, vendor=chunk, vendor_without=("candidates",), begun=False)
        self._usage = json_object(chunk.get("usageMetadata")) or self._usage
        blocked = (json_object(chunk.get("promptFeedback")) or {}).get("blockReason")
        if blocked:
            yield Facts(raw={"block_reason": str(blocked)[:200]})
            yield Finish("content_filter", str(blocked))
        for candidate in objects_in(chunk.get("candidates")):
            if not candidate.get(
                "index"
            ):  # Further ones only with `candidateCount` in `extra_body`.
                yield from self._read_candidate(candidate)
        if self._progress.finished:
            yield from self._read_parts()  # A signature may come after the finish reason.
            yield UsageReport(self._summed_usage())

    def _summed_usage(self) -> Usage | None:
        """Sum the counts. Each chunk has cumulative ones; `candidatesTokenCount` excludes thoughts,
        `promptTokenCount` the prompts of tools."""
        counts = self._usage
        prompt = token_count(counts, "promptTokenCount")
        prompt += token_count(counts, "toolUsePromptTokenCount")
        written = token_count(counts, "candidatesTokenCount")
        written += token_count(counts, "thoughtsTokenCount")
        summed = {"promptTokenCount": prompt, "candidatesTokenCount": written}
        return read_usage({**counts, **summed} if counts else None)

    def read_whole(self, body: Any) -> Iterator[WireDelta]:
        """Read a whole response."""
        yield from self.read_event(b"", body)
        if not self._progress.finished:
            raise bad_response("it contains neither an answer nor a reason for none")

    def _read_candidate(self, candidate: dict[str, Any]) -> Iterator[WireDelta]:
        yield Facts(vendor=candidate, vendor_without=_READ_FIELDS, begun=False)
        content = json_object(candidate.get("content")) or {}
        parts: Any = content.get("parts") or []
        if not isinstance(parts, list):
            raise bad_response("`parts` is not a list")
        for part in objects_in(parts):
            yield from self._read_part(part)
        if word := text_or_empty(candidate.get("finishReason")):
            yield from self._finish(word, candidate)

    def _finish(self, word: str, candidate: dict[str, Any]) -> Iterator[WireDelta]:
        if word in _UNKNOWN_CALLS and self._calls_unknown_tool:
            # As on the other wires: the engine tells the model which tools there are.
            yield Finish("tool_calls", word)
            return
        if word in _BROKEN_CALLS:
            detail = fix_surrogates(text_or_empty(candidate.get("finishMessage")))[:600] or word
            raise ModelError(
                f"the model wrote a call that the server cannot read: {detail}; try again, or "
                "choose another model.",
                code="LLM_BAD_RESPONSE",
                details={"code": "tool_use_failed"},
                server_text=detail,
                kind="unreadable_call",
            )
        reason = finish_reason(word)
        if reason in ("error", "content_filter"):
            yield Facts(raw={"finish_reason": word})
        token = text_or_empty(candidate.get("continuationToken"))
        if word == "CONTINUATION" and token:
            self._continues = True
            yield Continuation({"continuationToken": token})
        yield Finish(reason, word)

    def _read_part(self, part: dict[str, Any]) -> Iterator[WireDelta]:
        text, thought = part.get("text"), _thought_kind(part)
        if (sent := find_file(part)) is not None:
            yield from self._read_file(part, sent)
            return
        if thought is not None and self._parts and self._parts[-1][0] is thought:
            self._parts[-1][2].append(part["text"])
        elif part and is_storable_json(
            part
        ):  # A record cannot store one that is nested too deeply.
            self._parts.append((thought, part, []))
            if len(self._parts) > _MAX_PARTS:
                raise bad_response(f"more than {_MAX_PARTS:,} parts are in it")
        if isinstance(text, str) and text:
            yield ReasoningPiece(text) if part.get("thought") is True else TextPiece(text)
        if call := json_object(part.get("functionCall")):
            name = text_or_empty(call.get("name"))
            self._calls_unknown_tool |= bool(name) and not self._names.is_offered(name)
            yield call_part(object(), call, call)
        elif not isinstance(text, str) and (unread := unread_names(part, _SIGNATURES)):
            yield unread

    def _read_file(self, part: dict[str, Any], sent: SentFile) -> Iterator[WireDelta]:
        """Read an image; the part that goes back has its number in the message, not its data."""
        if part.get("thought") is True:
            return  # A draft of the image that follows.
        yield Picture(sent)
        number = self._progress.image_number
        if number is not None and sent.data:
            plain = {name: part[name] for name in ("thoughtSignature",) if name in part}
            self._parts.append((None, {**plain, _IMAGE_NUMBER: number}, []))

    def _read_parts(self) -> Iterator[WireDelta]:
        """Put the parts into `raw` if the message cannot hold them, or a later part may need it.

        Signed parts go back exactly as they came: same order, not joined, not split.
        """
        opaque = any(_is_opaque(part) for _, part, _ in self._parts)
        if self._continues or self._earlier_parts or opaque:
            all_parts = list(self._earlier_parts)
            for _, part, more in self._parts:
                all_parts.append({**part, "text": part["text"] + "".join(more)} if more else part)
            yield Facts(raw={"parts": all_parts})


def _thought_kind(part: dict[str, Any]) -> bool | None:
    """True for thoughts, False for text, None for parts that are not joined, as signed ones."""
    text, thought = part.get("text"), part.get("thought", False)
    plain = not part.keys() - {"text", "thought"} and isinstance(text, str)
    return thought if plain and isinstance(thought, bool) else None


class Google(Wire):
    """Gemini at Google."""

    name = "google"
    parser = GoogleParser
    messages_field = "contents"
    tools_template = b'[{"functionDeclarations":%b}]'
    choice_field = "toolConfig"
    nested_field = "generationConfig"
    default_path = "/v1"
    endpoint_paths = ("/models", "/openai")
    key_header = "x-goog-api-key"
    key_prefix = ""
    next_page = ("nextPageToken", "pageToken")
    models_path = "/models?pageSize=1000"
    reserved_keys = frozenset({"contents", "tools", "systemInstruction"})
    workarounds = frozenset({"no_replay"})

    def path(self, request: ChatRequest, *, stream: bool) -> str:
        """Path with the model; without `alt=sse` a stream would be one JSON array."""
        # Long-decode models (gemini-4-argon) write at most 32,768 tokens without a stream.
        stream = stream or (request.max_tokens or 0) > _MAX_UNSTREAMED_TOKENS
        model = request.model if "/" in request.model else f"models/{request.model}"
        how = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return f"/{quote(model)}:{how}"

    def params(
        self, request: ChatRequest, names: WireNames, workarounds: frozenset[str], *, stream: bool
    ) -> dict[str, Any]:
        """Body without system, contents and tools."""
        config: dict[str, Any] = {
            "temperature": request.temperature,
            "topP": request.top_p,
            "maxOutputTokens": request.max_tokens,
            "stopSequences": list(request.stop_sequences) or None,
            "thinkingConfig": _thinking_config(request.reasoning, request.model),
        }
        if request.output_schema is not None and _has_schema_mode(request):
            config["responseMimeType"] = "application/json"
            config["responseJsonSchema"] = gemini_schema(request.output_schema)
        params = {"generationConfig": config} if (config := without_none(config)) else {}
        if request.tools:
            choice = request.tool_choice or "auto"
            named = {"mode": "ANY", "allowedFunctionNames": [names.to_wire(choice)]}
            calling = {"mode": _MODES[choice]} if choice in _MODES else named
            params["toolConfig"] = {"functionCallingConfig": calling}
        return params

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """False if tools and the JSON mode exclude each other: before Gemini 3."""
        return _has_schema_mode(request)

    def encode_tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """Encode a function declaration with JSON Schema; `parameters` would take only a subset."""
        schema = gemini_schema({"type": "object", **spec.parameters})
        return {**name_and_description(spec, name), "parametersJsonSchema": schema}

    def system_text(self, request: ChatRequest) -> str:
        """System text, with the schema if tools and the JSON mode exclude each other."""
        if request.output_schema is None or _has_schema_mode(request):
            return request.system_prompt
        return system_with_schema(request)

    def group_messages(
        self, messages: Sequence[Message], workarounds: frozenset[str]
    ) -> Iterable[tuple[Message, ...]]:
        """Group results with the answer that called: they repeat its call ids, if it has some."""
        if messages and messages[0].role == "assistant":
            yield (_OPENING_MESSAGE,)
        yield from group_results(messages, with_calls=True)

    def encode_group(self, group: tuple[Message, ...], context: EncodingContext) -> list[Any]:
        """Encode a group. Roles are only `user` and `model`.

        All results of a turn go in one content, in the order of the calls, directly after them.
        Other parts go in a content after it: in a mixed one they are read as the model's own.
        """
        if group[0].role == "tool":
            group = (Message(role="assistant"), *group)
        first, results = group[0], group[1:]
        if first.role != "assistant":
            return _content_list("user", [_content_part(part) for part in first.content])
        parts = _model_parts(first, context)
        call_parts = [json_object(part["functionCall"]) or {} for part in parts if _has_call(part)]
        order = [call.id for call in first.tool_calls]
        call_of = dict(zip(order, call_parts, strict=True))
        results = sorted(results, key=lambda it: (*order, it.tool_call_id).index(it.tool_call_id))
        result_parts = [
            _function_response(result, call_of.get(result.tool_call_id or "", {}), context)
            for result in results
        ]
        shown: list[dict[str, Any]] = []
        for result in results:
            # A result holds only text: images and files follow all results of the turn.
            if parts_beside := [_content_part(part) for part in attachments(result)]:
                name = context.names.to_wire(result.name or "tool")
                label = f"Given back by {name} (call {result.tool_call_id}):"
                shown += [{"text": label}, *parts_beside]
        return [
            *_content_list("model", parts),
            *_content_list("user", result_parts),
            *_content_list("user", shown),
        ]

    def system_fields(self, text: str) -> dict[str, Any] | None:
        """The system text goes into `systemInstruction`."""
        return {"systemInstruction": {"parts": [{"text": text}]}}


def _is_opaque(part: dict[str, Any]) -> bool:
    """True if the part cannot be rebuilt from the message itself."""
    call = json_object(part.get("functionCall")) or {}
    return bool(part.keys() - {"text", "functionCall"}) or ("id" not in call and bool(call))


def _version(model: str) -> tuple[int, int]:
    # A name without a version (`gemini-flash-latest`) means the newest model.
    return model_version(model, _VERSION, (99, 0))


def _is_version_3(model: str) -> bool:
    """True for Gemini 3 and later: the server checks signatures and combines tools with JSON."""
    return _version(model) >= (3, 0)


def _has_schema_mode(request: ChatRequest) -> bool:
    return _is_version_3(request.model) or not request.tools


def _thinking_config(effort: str | None, model: str) -> dict[str, Any] | None:
    """Thinking option: a budget for Gemini 2.5, a level from 3 on; both together are refused.

    2.5 Pro needs at least 128 tokens; other 2.5 models are off with 0.
    """
    if effort is None:
        return None
    shown = {"includeThoughts": True} if effort not in ("none", "0") else {}
    if not _is_version_3(model):
        budget = int(effort) if effort.isdecimal() else _BUDGETS.get(effort, 24_576)
        return {**shown, "thinkingBudget": max(budget, 128 if "pro" in model else 0)}
    word = effort_level(effort)
    if word in ("none", "minimal"):
        # From 3.7 on, and Pro, refuse MINIMAL, and thinking cannot be switched off.
        word = "minimal" if _version(model) < (3, 7) and "pro" not in model else "low"
    return {**shown, "thinkingLevel": _LEVELS.get(word, "HIGH")}


def _content_list(role: str, parts: Sequence[dict[str, Any]]) -> list[Any]:
    """One content, or nothing: the server refuses a content without parts, and empty parts."""
    sent_parts = [
        part
        for part in parts
        # Keep an empty text with a signature; drop a part that has only a signature.
        if part.keys() - {"thought", "thoughtSignature"}
        and (part.get("text") != "" or "thoughtSignature" in part)
    ]
    return [{"role": role, "parts": sent_parts}] if sent_parts else []


_REQUEST_ONLY_PARTS = frozenset({"fileData", "inlineData", "functionResponse"})
"""Kinds of parts that occur only in requests. An image of an answer is kept by its number."""


def _model_parts(message: Message, context: EncodingContext) -> list[dict[str, Any]]:
    """Return the parts as they came if this model wrote them, else rebuild them.

    Gemini 3 answers 400 if the first call of a step lacks its signature; calls of other models get
    Google's dummy.
    """
    answer_parts = objects_in(context.raw_from_model(message).get("parts"))
    # A stranger's record must not add parts that an answer cannot hold.
    parts: list[dict[str, Any]] = [
        sent_part
        for part in answer_parts
        if not part.keys() & _REQUEST_ONLY_PARTS
        for sent_part in _with_image(part, message)
    ]
    if "no_replay" in context.workarounds:
        parts = [
            {key: part[key] for key in part if key != "thoughtSignature"}
            for part in parts
            if part.get("thought") is not True
        ]
    if not parts or sum(map(_has_call, parts)) != len(message.tool_calls):
        parts = _rebuilt_parts(message, context)
        for call in message.tool_calls:
            name = context.names.to_wire(call.name)
            made = {"id": call.id, "name": name, "args": arguments_object(call)}
            parts.append({"functionCall": made})
    for part, call in zip(filter(_has_call, parts), message.tool_calls, strict=False):
        made = json_object(part["functionCall"]) or {}
        part["functionCall"] = {**made, "args": arguments_object(call)}
    first = next(filter(_has_call, parts), None)
    if first is not None and "thoughtSignature" not in first and _is_version_3(context.model):
        first["thoughtSignature"] = _DUMMY_SIGNATURE
    return parts


def _with_image(part: dict[str, Any], message: Message) -> list[dict[str, Any]]:
    """Return a part of an answer, with the image in place of its number."""
    if _IMAGE_NUMBER not in part:
        return [dict(part)]
    number, rest = part[_IMAGE_NUMBER], {k: v for k, v in part.items() if k != _IMAGE_NUMBER}
    images = message.images
    if not isinstance(number, int) or not 0 <= number < len(images) or not images[number].data:
        return []  # The image was removed, or the record is a stranger's.
    return [{**_content_part(images[number]), **rest}]


def _rebuilt_parts(message: Message, context: EncodingContext) -> list[dict[str, Any]]:
    """Rebuild the texts and images of an answer that another model wrote.

    Images of other servers are named: Gemini reads an image here as one that it made itself.
    """
    if not context.raw_from_server(message).get("parts"):
        text = answer_text(message)
        return [{"text": text}] if text else []
    parts = [_content_part(part) for part in message.content]
    if _is_version_3(context.model):
        parts = [
            {**part, "thoughtSignature": _DUMMY_SIGNATURE} if "inlineData" in part else part
            for part in parts
        ]
    return parts


def _has_call(part: dict[str, Any]) -> bool:
    return "functionCall" in part


def _function_response(
    message: Message, call: dict[str, Any], context: EncodingContext
) -> dict[str, Any]:
    """Encode a result as text: a key `$ref` anywhere in an object breaks the request."""
    name = call.get("name") or context.names.to_wire(message.name or "tool")
    response = {"error" if is_failure(message) else "output": message.text}
    own_id = {"id": call["id"]} if call.get("id") else {}
    return {"functionResponse": {"name": name, "response": response, **own_id}}


def _content_part(part: Part) -> dict[str, Any]:
    shown = text_or_part(part)
    if isinstance(shown, str):
        return {"text": shown}
    if isinstance(shown, ImagePart) and shown.url:
        return {"fileData": {"mimeType": shown.media_type, "fileUri": shown.url}}
    # A recording may be called `application/octet-stream`; its bytes say what it is.
    audio = audio_type(shown) if isinstance(shown, FilePart) else ""
    media_type = (
        audio if shown.media_type == "application/octet-stream" and audio else shown.media_type
    )
    return {"inlineData": {"mimeType": media_type, "data": shown.data or ""}}
