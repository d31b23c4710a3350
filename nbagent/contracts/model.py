"""The provider-agnostic model interface: requests, responses, chunks, usage.

Values only. The formats of vendors belong to `providers/wires`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast

from pydantic import Field

from nbagent.contracts.corrections import Correction
from nbagent.contracts.errors import ErrorInfo, UsageError, unknown_argument
from nbagent.contracts.messages import ImagePart, Message, PublicValue, ToolCall, Value
from nbagent.contracts.secrets import KeyFunction, KeySource, SecretKey

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "error"]


def _sum_of_tokens(validated: dict[str, Any]) -> int:
    return validated.get("prompt_tokens", 0) + validated.get("completion_tokens", 0)


class Usage(PublicValue):
    """Tokens of one response. `prompt_tokens` includes cached, `completion_tokens` reasoning."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = Field(default_factory=_sum_of_tokens)
    """Prompt and completion, unless the server counts otherwise."""
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    """Part of `prompt_tokens` that was written into the provider's cache, at its own price."""

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
        """Make usage from a server's counts. Each part is limited to its whole, as the computation
        of prices subtracts them."""
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
    """Rules for running a tool. Never sent to a model."""

    host: str = ""
    interruptible: bool = True
    """False: a stop waits until the call has finished."""
    ruling: Literal["allow", "ask", "deny"] = "allow"
    """Applied to a call that no rule of a policy matches."""
    sha: str = ""
    """Hash of its definition: distinguishes versions of a tool in records."""


class ToolSpec(PublicValue):
    """Description of a tool for a model."""

    name: str
    display_name: str = ""
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema, root `type: object`."""
    traits: ToolTraits = ToolTraits()

    @property
    def title(self) -> str:
        """The display name if it differs from the name; else empty."""
        return "" if self.display_name == self.name else self.display_name


class ChatRequest(PublicValue):
    """One request to a model. Only fields with a value are sent."""

    model: str = ""
    """The provider's own name of the model, without the `provider:` prefix. `nbagent.client` fills
    in its own."""
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
    """Effort: `none`, `minimal`, `low`, `medium`, `high`, `xhigh`, `max`; or a number of tokens."""
    output_schema: dict[str, Any] | None = None


class ResponseMeta(Value):
    """Facts about how a response was obtained."""

    request_id: str | None = None
    attempts: int = 1
    """Number of requests sent, without those repeated only because a parameter was refused."""
    retry_wait_ms: float = 0.0
    """Time waited between attempts and for a rate limit."""
    source: Literal["live", "hit", "replay", "offline"] = "live"
    """`hit`: from the cache in mode auto; `replay`: from a recording, nothing was sent."""
    dropped_params: tuple[str, ...] = ()
    """Parameters that were left out because the server refused them."""
    vendor: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further fields of the server's answer (`id`, `system_fingerprint`, `usage` in its words…), at
    most 64 kB. Never sent back."""


class ChatResponse(Value):
    """One answer of a model. Vendor data to send back is in `message.raw`."""

    message: Message
    usage: Usage | None = None
    """None if the server reported none."""
    model: str = ""
    """Model name as the server reports it."""
    finish_reason: FinishReason = "stop"
    meta: ResponseMeta = ResponseMeta()

    @property
    def reasoning(self) -> str | None:
        """The model's reasoning, if it was sent."""
        return self.message.reasoning

    @property
    def raw(self) -> dict[str, Any] | None:
        """Vendor data: what is sent back with the message, and the answer's further fields."""
        return {**self.meta.vendor, **(self.message.raw or {})} or None

    # The names of the protocol.

    @property
    def content(self) -> str | None:
        """The text; None if there are only calls."""
        return self.message.text or None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Calls that the model asks for."""
        return self.message.tool_calls


@dataclass(slots=True)
class CallDelta:
    """A streamed fragment of a call. `index` counts the calls of this response from 0."""

    index: int
    id: str | None = None
    name: str | None = None
    """The tool's own name (`fs.read`); None until it is known."""
    arguments: str = ""


@dataclass(slots=True)
class ClientNotice:
    """A client's message while a request runs: it waits for a retry, it left out a parameter."""

    kind: Literal["retry", "wait", "dropped_param", "note"]
    text: str
    """Text to show. A `wait` with an empty text ends the wait."""
    attempt: int = 0
    wait_s: float = 0.0
    """Length of the wait that begins now; infinite if the next notice ends it."""
    error: ErrorInfo | None = None
    status: int | None = None
    """HTTP status of a failed attempt, where there was one."""


@dataclass(slots=True)
class ChatChunk:
    """One part of a stream. The last one has `done` and the complete `response`."""

    content: str = ""
    reasoning: str = ""
    tool_call_delta: CallDelta | None = None
    notice: ClientNotice | None = None
    done: bool = False
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    response: ChatResponse | None = None
    image: ImagePart | None = None
    """A whole image of the answer."""
    correction: Correction | None = None
    """Replaces what came before. Who needs only the answer reads `response` of the last chunk."""


class ModelInfo(PublicValue):
    """A model that a provider offers."""

    id: str
    context_length: int | None = None
    """Tokens."""
    capabilities: tuple[str, ...] = ()
    """Some of `tools`, `vision`, `reasoning`, …, as far as the server reports them."""


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """Address, credentials and request settings of a provider."""

    def __new__(cls, *_args: Any, **given: Any) -> Self:
        names = cls.__dataclass_fields__
        if not given.keys() <= names.keys():
            raise unknown_argument(
                cls.__name__, [name for name in given if name not in names], names
            )
        return object.__new__(cls)

    api_key: SecretKey | str | KeyFunction | None = None
    """The key, or a function that returns it, for keys that expire: called for each request."""
    base_url: str | None = None
    organization_id: str | None = None
    project_id: str | None = None
    default_model: str | None = None
    timeout_s: float = 600.0
    """Total deadline of one request, including retries and waits. The SDKs of OpenAI and Anthropic
    have the same defaults for it and for `retries`."""
    retries: int = 2
    """Maximum number of attempts after the first one."""
    headers: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    extra_body: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """Additional top-level keys of the request's JSON."""
    withheld_key: str = ""
    """Why a key that the environment has is not sent to this server, and how to send it."""

    def __post_init__(self) -> None:
        key, base_url = self.api_key, self.base_url
        if isinstance(key, str):
            object.__setattr__(self, "api_key", SecretKey(key) if key.strip() else None)
        elif key is not None and not isinstance(key, SecretKey | KeySource):
            if not callable(key):
                problem = f"api_key is a {type(key).__name__}"
                raise UsageError(f"{problem}; give a text, or a function that returns one.")
            object.__setattr__(self, "api_key", KeySource(key))
        if base_url is not None:  # Copied with a space or a line break around it.
            object.__setattr__(self, "base_url", base_url.strip() or None)

    @property
    def key(self) -> SecretKey | KeySource | None:
        """The key as it is sent: never a bare function, whose repr may show a secret."""
        return cast("SecretKey | KeySource | None", self.api_key)
