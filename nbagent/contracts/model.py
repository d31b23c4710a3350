"""The provider-agnostic model interface: messages, requests, responses, chunks, usage.

Values only. What a provider's wire looks like belongs to its adapter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.messages import Message, Value
from nbagent.contracts.secrets import SecretKey

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "error"]


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
