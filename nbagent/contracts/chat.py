"""The provider-agnostic model interface: messages, requests, responses, chunks, usage.

Values only. What a provider's wire looks like belongs to its adapter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field

from nbagent.contracts.canonical import json_object, load_json
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.secrets import SecretKey, any_secret_known, redact_json, register_environment

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "error"]

FINAL_ANSWER = "final_answer"
"""The tool that takes the answer of a type, where the provider does not bind answers to one."""
CONTINUE = "Your last answer was cut off. Go on exactly where it stopped."
"""What the model is told to end its last answer."""
MAX_DEPTH = 100
"""Levels of lists and objects. Deeper values cannot be encoded by everything that keeps them."""


class Value(BaseModel):
    """Base of all records: frozen, lenient to fields that a newer version added."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


V = TypeVar("V", bound=Value)


def redacted(value: V) -> V:
    """The value with every known secret in it hidden; the value itself when it holds none."""
    register_environment()
    if not any_secret_known():
        return value
    plain = value.model_dump()
    hidden = redact_json(plain)
    return value if hidden == plain else type(value).model_validate(hidden)


class TextPart(Value):
    """A piece of text."""

    type: Literal["text"] = "text"
    text: str
    name: str | None = None
    """Of the attached file whose text it is; the person's own words have none."""


class ImagePart(Value):
    """An image, inline as base64 or by address."""

    type: Literal["image"] = "image"
    media_type: str = "image/png"
    data: str | None = None
    """Base64, without a data-URL prefix."""
    url: str | None = None
    alt: str = ""


class FilePart(Value):
    """A file that the model is given."""

    type: Literal["file"] = "file"
    name: str
    media_type: str = "application/octet-stream"
    data: str
    """Base64."""


Part = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]


class ToolCall(Value):
    """What the model asks for."""

    id: str
    name: str
    """The tool's own name (`fs.read`), not its name on the wire."""
    arguments: dict[str, Any] | None = None
    """Decoded arguments; None when `arguments_raw` is no JSON object that a record can hold."""
    arguments_raw: str
    """The arguments exactly as the model wrote them."""
    extra: dict[str, Any] | None = None
    """Vendor fields of the call that have to go back with it."""


class Message(Value):
    """One role's contribution to a conversation."""

    role: Role
    content: tuple[Part, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """On tool messages: the call that is answered."""
    name: str | None = None
    """On tool messages: the tool."""
    reasoning: str | None = None
    raw: dict[str, Any] | None = None
    """What the provider needs back: `{"provider": …, "model": …, …}`."""

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def words(self) -> str:
        """The same without the texts of attached files."""
        texts = (part for part in self.content if isinstance(part, TextPart) and not part.name)
        return "".join(part.text for part in texts)

    @classmethod
    def of(cls, role: Role, text: str) -> Message:
        """A message of one text part (none when the text is empty)."""
        return cls(role=role, content=(TextPart(text=text),) if text else ())


class Usage(Value):
    """Tokens of one response. Cached ones are within the prompt's, reasoning within completion."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    """Of the prompt's: written into the provider's cache, at a price of their own."""

    @classmethod
    def of(
        cls,
        prompt: int,
        completion: int,
        *,
        total: int = 0,
        cached: int = 0,
        reasoning: int = 0,
        cache_write: int = 0,
    ) -> Usage:
        """Usage as a server counts: no part may be more than its whole (prices rely on it)."""
        cached = min(cached, prompt)
        return cls(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=total or prompt + completion,
            cached_tokens=cached,
            reasoning_tokens=min(reasoning, completion),
            cache_write_tokens=min(cache_write, prompt - cached),
        )

    def __add__(self, other: Usage) -> Usage:
        mine, theirs = vars(self), vars(other)
        return Usage(**{name: mine[name] + theirs[name] for name in Usage.model_fields})


class ToolTraits(Value):
    """How a tool may be run. Never sent to a model."""

    host: str = ""
    interruptible: bool = True
    """False: a stop waits until it has finished."""
    ruling: Literal["allow", "ask", "deny"] = "allow"
    """What happens to a call of it where no policy speaks of it."""
    sha: str = ""
    """Hash of its definition, so that a record tells one version from the next."""


class ToolSpec(Value):
    """What a model is shown of a tool."""

    name: str
    display_name: str = ""
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema, root `type: object`."""
    traits: ToolTraits = ToolTraits()

    @property
    def title(self) -> str:
        """The display name where it says something else than the name; else empty."""
        return "" if self.display_name == self.name else self.display_name


class ChatRequest(Value):
    """One request to a model. Only what is set is sent."""

    model: str
    """The provider's own name of the model, without the `provider:` prefix."""
    messages: tuple[Message, ...]
    system_prompt: str = ""
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str | None = None
    """`auto`, `none`, `required` or the name of one tool."""
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    stop_sequences: tuple[str, ...] = ()
    reasoning: str | None = None
    """Effort: `none`, `minimal`, `low`, `medium`, `high`, `xhigh`, `max`; or tokens as digits."""
    output_schema: dict[str, Any] | None = None


class ResponseMeta(Value):
    """How a response came to be."""

    request_id: str | None = None
    attempts: int = 1
    """Requests that were sent, without those that only a refused parameter cost."""
    retry_wait_ms: float = 0.0
    """Waited between attempts and for a rate limit."""
    source: Literal["live", "hit", "replay", "offline"] = "live"
    """`hit`: from the cache in mode auto; `replay`: from a record, never asked."""
    dropped_params: tuple[str, ...] = ()
    """Parameters that the server refused and that were left out."""


class ChatResponse(Value):
    """One answer of a model. `raw` of the message keeps what the provider needs back."""

    message: Message
    usage: Usage | None = None
    """None when the server reported none."""
    model: str = ""
    """The model that the server says it ran."""
    finish_reason: FinishReason = "stop"
    meta: ResponseMeta = ResponseMeta()

    @property
    def reasoning(self) -> str | None:
        """What the model thought aloud."""
        return self.message.reasoning

    @property
    def raw(self) -> dict[str, Any] | None:
        """What the provider needs back with this message."""
        return self.message.raw


@dataclass(slots=True)
class CallDelta:
    """A streamed fragment of a call. `index` counts the calls of this response from 0."""

    index: int
    id: str | None = None
    name: str | None = None
    """The tool's own name, once it is known."""
    arguments: str = ""


@dataclass(slots=True)
class ClientNotice:
    """Something a client tells while it works: a retry that waits, a parameter it left out."""

    kind: Literal["retry", "wait", "dropped_param", "note"]
    text: str
    """What is shown; a `wait` without a text says that a wait is over."""
    attempt: int = 0
    wait_s: float = 0.0
    """How long it will now wait; infinite when only the next notice will tell."""
    error: ErrorInfo | None = None


@dataclass(slots=True)
class ChatChunk:
    """One step of a stream. The last one has `done` and the whole `response`."""

    content: str = ""
    reasoning: str = ""
    tool_call_delta: CallDelta | None = None
    notice: ClientNotice | None = None
    done: bool = False
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    response: ChatResponse | None = None


class ModelInfo(Value):
    """A model that a provider offers."""

    id: str
    context_length: int | None = None
    """Tokens."""
    capabilities: tuple[str, ...] = ()
    """Of `tools`, `vision`, `reasoning`, … as far as the server says."""


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """Where a provider is and how to talk to it."""

    api_key: SecretKey | None = None
    base_url: str | None = None
    organization_id: str | None = None
    project_id: str | None = None
    default_model: str | None = None
    timeout_s: float = 600.0
    """Total deadline of one request, its retries and waits included."""
    retries: int = 2
    """Most attempts after the first one."""
    headers: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    extra_body: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """Further top-level keys of the request's JSON."""


def is_keepable(value: Any) -> bool:
    """Whether a record can hold it: JSON, no infinite number, at most MAX_DEPTH levels."""
    stack: list[tuple[Any, int]] = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, dict):
            inner = list(cast("dict[Any, Any]", item).values())
        elif isinstance(item, list | tuple):
            inner = cast("list[Any]", item)
        elif isinstance(item, float) and not math.isfinite(item):
            return False
        elif item is None or isinstance(item, str | int | float):
            continue
        else:
            return False
        if depth > MAX_DEPTH:
            return False
        stack.extend((it, depth + 1) for it in inner if it.__class__ not in (str, int))
    return True


def parse_arguments(raw: str) -> dict[str, Any] | None:
    """Decode a call's arguments: `""` and `null` are `{}`, anything but an object is None."""
    try:
        value = load_json(raw) if raw.strip() else None
    except (ValueError, RecursionError):
        return None
    return {} if value is None else json_object(value)
