"""Profile: how a server differs from others of the same wire. Its values stand in `servers`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

_ANY_ID = re.compile(r"[\x21-\x7e]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Differences of one server; the defaults are those of an unknown compatible server.

    Unknown fields are ignored by most servers, but Mistral and servers on pydantic answer 422. So a
    field is sent only if it was set, and only to servers that know it.
    """

    default_path: str | None = None
    """Path to add to a base URL that names only a host; None: the path of the row's default server,
    or `/v1`. Write one if the row has no default server, or if the default server's path belongs to
    another wire."""
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_tokens"
    """OpenAI's reasoning models refuse `max_tokens`; DeepSeek and Ollama silently ignore
    `max_completion_tokens`."""
    effort_style: Literal[
        "effort", "openrouter", "deepseek", "mistral", "template", "together", "thinking"
    ] = "effort"
    """Form of the reasoning option, see `_effort_params`."""
    forced_tool_stops_thinking: bool = False
    """The models think by default, and the server refuses a forced tool then (400)."""
    return_reasoning: Literal["never", "tools", "deepseek"] = "tools"
    """When reasoning is sent back: never, in requests with tools, or by DeepSeek's rule. OpenAI
    returns none, Groq and Mistral refuse or ignore it, vLLM and llama.cpp use it in tool loops."""
    omit_tools_for_none: bool = False
    """Send no tools instead of `tool_choice: none`: Ollama ignores it, Groq fails if the model
    calls one, Mistral's answer gets garbled."""
    knows_tool_choice: bool = True
    """False: the server has `auto` only, and may refuse the field."""
    asks_for_usage: bool = True
    """Ask for the usage of a stream, by `stream_options`."""
    account_headers: Mapping[str, str] = field(
        default_factory=lambda: {
            "organization_id": "OpenAI-Organization",
            "project_id": "OpenAI-Project",
        }
    )
    """Headers for the person's account, by field of ProviderConfig."""
    call_id_pattern: re.Pattern[str] = _ANY_ID
    plain_schema: bool = False
    """The server refuses some keywords in a schema (Mistral)."""
    follows_refs: bool = False
    """The models follow `$ref` in a schema."""
    accepts_schema: bool = True
    """The answer's schema is a parameter; else it goes into the system text, in words."""
    schema_mode: Literal["with tools", "alone", "never"] = "alone"
    """When the server forces an answer into its schema. With the grammars of local servers a model
    cannot call tools."""
    null_content: bool = False
    """Send content null in a message that has only calls. Null breaks chat templates of llama.cpp
    and some of vLLM, which get ''."""
    names_tool_results: bool = False
    """Send the tool's name in a tool message."""
    think_tags: bool = True
    deployment_in_path: bool = False
    """Put the deployment into the path; Azure's dated route ignores `model` in the body."""
    has_responses: bool = False
    """The server has the Responses endpoint, which some of its models need."""
    responses_schema: bool = False
    """The Responses endpoint forces an answer into its schema. llama.cpp ignores the parameter
    there, so a server that does not say so gets the schema in words, too."""
