"""Google's wire, Gemini `generateContent`: what a request is. Answers are in `google_answers`.

Wire facts: Google's API reference and types (providers.md 7). The version is the base URL's path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.chat import (
    ChatRequest,
    FilePart,
    ImagePart,
    Message,
    ModelInfo,
    Part,
    TextPart,
    ToolCall,
    ToolSpec,
)
from nbagent.contracts.errors import ModelError
from nbagent.providers.assembly import Assembly
from nbagent.providers.chat import effort_word
from nbagent.providers.frames import objects_in, text_or_empty
from nbagent.providers.google_answers import GoogleParser
from nbagent.providers.history import (
    arguments_object,
    attached,
    calls_with_results,
    file_as_text,
    is_failure,
    text_of_file,
)
from nbagent.providers.names import WireNames
from nbagent.providers.schemas import gemini_schema
from nbagent.providers.wires import Encoding, Lesson, Parser, Wire

_DUMMY = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
"""Google's documented stand-in for a signature, in base64: `skip_thought_signature_validator`."""
_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
_LEVELS = {"minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM"}
_BUDGETS = {"none": 0, "minimal": 512, "low": 2_048, "medium": 8_192}
_LARGEST_BUDGET = 24_576
_LEAST_OF_PRO = 128
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}


class Google(Wire):
    """Gemini at Google."""

    name = "google"
    home = "/v1"
    key_header = "x-goog-api-key"
    key_prefix = ""
    models_path = "/models?pageSize=1000"
    reserved = frozenset({"contents", "tools", "systemInstruction"})

    def path(self, request: ChatRequest, *, stream: bool) -> str:
        """The model is in the path; without `alt=sse` a stream would be one JSON array."""
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
        if request.output_schema is not None:
            config["responseMimeType"] = "application/json"
            config["responseJsonSchema"] = gemini_schema(request.output_schema)
        config = {name: value for name, value in config.items() if value is not None}
        params: dict[str, Any] = {"generationConfig": config} if config else {}
        if request.tools:
            choice = request.tool_choice or "auto"
            calling: dict[str, Any] = {"mode": _MODES.get(choice, "ANY")}
            if choice not in _MODES:
                calling["allowedFunctionNames"] = [names.to_wire(choice)]
            params["toolConfig"] = {"functionCallingConfig": calling}
        return params

    def join_extra(self, params: dict[str, Any], extra: Mapping[str, Any]) -> None:
        """Keys of `generationConfig` join those that are there."""
        config = {**params.get("generationConfig", {})}
        config |= json_object(extra.get("generationConfig")) or {}
        params.update(extra)
        if config:
            params["generationConfig"] = config

    def offers_tools(self, request: ChatRequest, params: Mapping[str, Any]) -> bool:
        """A mode says that none may be called."""
        return bool(request.tools)

    def tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """A function declaration with plain JSON Schema."""
        described = {"description": spec.description} if spec.description else {}
        schema = gemini_schema({"type": "object", **spec.parameters})
        return {"name": name, **described, "parametersJsonSchema": schema}

    def groups(
        self, messages: Sequence[Message], flags: frozenset[str]
    ) -> Iterable[tuple[Message, ...]]:
        """Results with the answer that asked for them: they echo its ids, where it has some."""
        return calls_with_results(messages)

    def encode(self, group: tuple[Message, ...], context: Encoding) -> list[Any]:
        """Roles are only `user` and `model`; results are a content of their own."""
        first, results = group[0], group[1:]
        if first.role == "tool":
            first, results = Message(role="assistant"), group
        if first.role != "assistant":
            return _content("user", [_part(part) for part in first.content])
        parts = _model_parts(first, context)
        ids = [
            (json_object(part.get("functionCall")) or {}).get("id")
            for part in parts
            if "functionCall" in part
        ]
        said = [_result(message, place, ids, context) for place, message in enumerate(results)]
        contents = [*_content("model", parts), *_content("user", said)]
        if not _is_third(context.model):
            shown = [_part(part) for message in results for part in attached(message)]
            contents += _content("user", shown)
        return contents

    def body(
        self, system: str, messages: bytes, tools: bytes | None, params: dict[str, Any]
    ) -> bytes:
        """The system text has a place of its own."""
        if system:
            params = {"systemInstruction": {"parts": [{"text": system}]}, **params}
        offered = b',"tools":[{"functionDeclarations":' + tools + b"}]" if tools else b""
        rest = dump_json(params)[1:]
        return b'{"contents":' + messages + offered + (b"," if params else b"") + rest

    def parser(self, request: ChatRequest, into: Assembly) -> Parser:
        """A reader for one answer."""
        return GoogleParser(into)

    def models(self, body: Any) -> tuple[list[ModelInfo], str | None]:
        """One page of the models that generate content."""
        found = json_object(body) or {}
        if not isinstance(found.get("models"), list):
            raise ValueError("no list of models")
        models: list[ModelInfo] = []
        for item in objects_in(found["models"]):
            name = text_or_empty(item.get("name")).removeprefix("models/")
            methods = item.get("supportedGenerationMethods")
            if not name or (isinstance(methods, list) and "generateContent" not in methods):
                continue
            length = item.get("inputTokenLimit")
            models.append(
                ModelInfo(
                    id=name,
                    context_length=length if isinstance(length, int) and length > 0 else None,
                    capabilities=("reasoning",) if item.get("thinking") is True else (),
                )
            )
        token = text_or_empty(found.get("nextPageToken"))
        return models, f"pageToken={quote(token, safe='')}" if token else None

    def lesson(
        self, error: ModelError, request: ChatRequest, flags: frozenset[str]
    ) -> Lesson | None:
        """Signatures of another model or route are refused."""
        if error.status == 400 and re.search(r"thought.signature", error.said, re.I):
            told = "earlier thought signatures are left out: the server does not take them"
            return Lesson("no-signatures", told)
        return None


def _version(model: str) -> tuple[int, int]:
    found = _VERSION.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else (3, 0)


def _is_third(model: str) -> bool:
    """Whether it is of generation 3 or later: signatures are checked, results take images."""
    return _version(model) >= (3, 0)


def _thinking(asked: str | None, model: str) -> dict[str, Any] | None:
    """A budget for Gemini 2.5, a level from 3 on; never both."""
    if asked is None:
        return None
    shown = {"includeThoughts": True} if asked != "none" else {}
    if not _is_third(model):
        tokens = int(asked) if asked.isdecimal() else _BUDGETS.get(asked, _LARGEST_BUDGET)
        return {**shown, "thinkingBudget": max(tokens, _LEAST_OF_PRO) if "pro" in model else tokens}
    word = effort_word(asked)
    if word in ("none", "minimal"):
        # Later ones and Pro refuse MINIMAL, and cannot be switched off.
        word = "minimal" if _version(model) < (3, 7) and "pro" not in model else "low"
    return {**shown, "thinkingLevel": _LEVELS.get(word, "HIGH")}


def _content(role: str, parts: list[dict[str, Any]]) -> list[Any]:
    """A content, or nothing: one without parts is refused."""
    kept = [part for part in parts if part.get("text", True)]
    return [{"role": role, "parts": kept}] if kept else []


def _model_parts(message: Message, context: Encoding) -> list[dict[str, Any]]:
    kept = objects_in(context.own(message).get("parts"))
    calls = list(message.tool_calls)
    if not kept:
        parts: list[dict[str, Any]] = [{"text": message.text}] if message.text else []
        parts += [{"functionCall": _call(call, context)} for call in calls]
    else:
        parts = [dict(part) for part in kept]
        if "no-signatures" in context.flags:
            parts = [_without_signature(part) for part in parts if not part.get("thought")]
    first = next((part for part in parts if "functionCall" in part), None)
    if first is not None and "thoughtSignature" not in first and _is_third(context.model):
        first["thoughtSignature"] = _DUMMY
    return parts


def _without_signature(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != "thoughtSignature"}


def _call(call: ToolCall, context: Encoding) -> dict[str, Any]:
    name = context.names.to_wire(call.name)
    return {"id": call.id, "name": name, "args": arguments_object(call)}


def _result(message: Message, place: int, ids: Sequence[Any], context: Encoding) -> dict[str, Any]:
    """The result as text: a key `$ref` anywhere in an object would break the request."""
    said = {"error" if is_failure(message) else "output": message.text}
    response: dict[str, Any] = {
        "name": context.names.to_wire(message.name or "tool"),
        "response": said,
    }
    if place < len(ids) and ids[place]:
        response = {"id": ids[place], **response}
    if (parts := attached(message)) and _is_third(context.model):
        response["parts"] = [_part(part) for part in parts]
    return {"functionResponse": response}


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"text": part.text}
    if isinstance(part, FilePart) and (text := text_of_file(part)) is not None:
        return {"text": file_as_text(part.name, text)}
    if isinstance(part, ImagePart) and part.url:
        return {"fileData": {"mimeType": part.media_type, "fileUri": part.url}}
    return {"inlineData": {"mimeType": part.media_type, "data": part.data or ""}}
