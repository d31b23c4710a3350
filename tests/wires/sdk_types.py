"""Check a request with the types of a provider's own package: nothing missing, nothing more."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Required, Union, cast, get_args, get_origin

import ollama
from anthropic.types.message_create_params import MessageCreateParams
from google.genai import types
from ollama._types import ChatRequest
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, create_model
from typing_extensions import get_type_hints, is_typeddict
from wires.harness import JSON


class _GeminiBody(BaseModel):
    """The body of `generateContent`; the types of the SDK refuse extra keys themselves."""

    model_config = ConfigDict(extra="forbid")
    contents: list[types.Content]
    systemInstruction: types.Content | None = None
    tools: list[types.Tool] | None = None
    toolConfig: types.ToolConfig | None = None
    generationConfig: types.GenerationConfig | None = None
    safetySettings: list[types.SafetySetting] | None = None
    cachedContent: str | None = None
    continuationToken: str | None = None


def _bare(text: str) -> str:
    """The package sends bytes so; it would take a text for a path."""
    assert base64.b64encode(base64.b64decode(text, validate=True)).decode() == text
    return text


def strict(base: type[BaseModel], **fields: Any) -> Any:
    """A type of the package with further keys refused."""
    types = {name: (kind, None) for name, kind in fields.items()}
    return create_model(
        base.__name__, __base__=base, __cls_kwargs__={"extra": "forbid"}, **cast("Any", types)
    )


# The server knows `index`, `id`, `tool_call_id` and `min_p`, too (ollama/ollama, api/types.go).
Function = strict(ollama.Message.ToolCall.Function, index=int | None)
Call = strict(ollama.Message.ToolCall, id=str | None, function=Function)
Said = strict(
    ollama.Message,
    role=Literal["system", "user", "assistant", "tool"],
    tool_call_id=str | None,
    images=list[Annotated[str, AfterValidator(_bare)]] | None,
    tool_calls=list[Call] | None,
)
Parameters = strict(ollama.Tool.Function.Parameters)
Tool = strict(ollama.Tool, function=strict(ollama.Tool.Function, parameters=Parameters))
Request = strict(
    ChatRequest,
    messages=list[Said],
    tools=list[Tool] | None,
    options=strict(ollama.Options, min_p=float | None) | None,
    think=bool | Literal["low", "medium", "high", "max"] | None,
)


def _refusal(kind: type[BaseModel], body: JSON) -> str:
    try:
        kind.model_validate_json(json.dumps(body))
    except ValidationError as error:
        return str(error)
    return ""


def problem(value: Any, kind: Any, at: str = "body") -> str:
    """Where a JSON value is not of this type; empty where it is."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Annotated, Required):
        return problem(value, args[0], at)
    if origin in (Union, UnionType):
        found = [problem(value, arg, at) for arg in args]
        return "" if "" in found else max(found, key=len)
    if origin is Literal:
        return "" if value in args else f"{at}: {value!r} is not in {args}"
    if is_typeddict(kind):
        return _not_of_dict(value, get_type_hints(kind, include_extras=True), at)
    if origin in (dict, Mapping):
        return "" if isinstance(value, dict) else f"{at}: {value!r} is no object"
    if isinstance(origin, type) and issubclass(origin, Iterable):
        if not isinstance(value, list):
            return f"{at}: {value!r} is no list"
        items = enumerate(cast("list[Any]", value))
        return next(filter(None, (problem(it, args[0], f"{at}[{n}]") for n, it in items)), "")
    if kind in (object, Any) or (kind is float and type(value) in (int, float)):
        return ""
    if kind in (str, int, bool) and type(value) is kind:
        return ""
    return "" if kind in (None, NoneType) and value is None else f"{at}: {value!r} is no {kind}"


def _not_of_dict(value: Any, hints: Mapping[str, Any], at: str) -> str:
    if not isinstance(value, dict):
        return f"{at}: {value!r} is no object"
    given = cast("JSON", value)
    required = {name for name, hint in hints.items() if get_origin(hint) is Required}
    if given.keys() - hints.keys() or required - given.keys():
        return f"{at}: {sorted(given)} are not the keys"
    inner = (problem(item, hints[name], f"{at}.{name}") for name, item in given.items())
    return next(filter(None, inner), "")


OFFICIAL: dict[str, Callable[[JSON], str]] = {
    "anthropic": lambda body: problem(body, MessageCreateParams),
    "google": lambda body: _refusal(_GeminiBody, body),
    "ollama": lambda body: _refusal(Request, body),
    "responses": lambda body: problem({**body, "stream": True}, ResponseCreateParamsStreaming),
}
"""Functions that name the problem of a body, or return an empty text; by the wire's name."""
