"""Differences of the servers that speak Chat Completions, a profile each."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from nbagent.providers.address import host_of, origin

_ANY_ID = re.compile(r"[\x21-\x7e]{1,64}")
_OPENAI_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Differences of one server; the defaults are those of an unknown compatible server.

    Unknown fields are ignored by most servers, but Mistral and servers on pydantic answer 422. So a
    field is sent only if it was set, and only to servers that know it.
    """

    host: str = ""
    """Domain of the server, with its subdomains."""
    default_path: str = "/v1"
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_tokens"
    """OpenAI's reasoning models refuse `max_tokens`; DeepSeek and Ollama silently ignore
    `max_completion_tokens`."""
    effort_style: Literal["effort", "openrouter", "deepseek", "mistral", "template"] = "effort"
    """Form of the reasoning option, see `_effort_params`."""
    return_reasoning: Literal["never", "tools", "deepseek"] = "tools"
    """When reasoning is sent back: never, in requests with tools, or by DeepSeek's rule. OpenAI
    returns none, Groq and Mistral refuse or ignore it, vLLM and llama.cpp use it in tool loops."""
    omit_tools_for_none: bool = False
    """Send no tools instead of `tool_choice: none`: Ollama ignores it, Groq fails if the model
    calls one, Mistral's answer gets garbled."""
    call_id_pattern: re.Pattern[str] = _ANY_ID
    plain_schema: bool = False
    """The server refuses some keywords in a schema (Mistral)."""
    follows_refs: bool = False
    """The models follow `$ref` in a schema."""
    accepts_schema: bool = True
    """The answer's schema is a parameter. DeepSeek refuses `json_schema` ("This response_format
    type is unavailable now") and gets it in words."""
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


_OPENAI = Profile(
    host="openai.com",
    max_tokens_field="max_completion_tokens",
    return_reasoning="never",
    call_id_pattern=_OPENAI_ID,
    follows_refs=True,
    schema_mode="with tools",
    null_content=True,
    think_tags=False,
    has_responses=True,
)


_HOSTED = Profile(return_reasoning="never", names_tool_results=True)


PROFILES: dict[str, Profile] = {
    "openai": _OPENAI,
    "azure": replace(_OPENAI, host="azure.com", default_path="/openai/v1"),
    "azure-dated": replace(_OPENAI, host="", default_path="/openai", has_responses=False),
    "deepseek": Profile(
        host="deepseek.com",
        default_path="",
        effort_style="deepseek",
        return_reasoning="deepseek",
        accepts_schema=False,
        schema_mode="never",
    ),
    "openrouter": Profile(
        host="openrouter.ai",
        default_path="/api/v1",
        effort_style="openrouter",
        null_content=True,
        names_tool_results=True,
    ),
    "groq": replace(
        _HOSTED,
        host="groq.com",
        default_path="/openai/v1",
        omit_tools_for_none=True,
        schema_mode="never",  # Its json_schema excludes tools and streams.
    ),
    "mistral": replace(
        _HOSTED,
        host="mistral.ai",
        effort_style="mistral",
        omit_tools_for_none=True,
        call_id_pattern=_MISTRAL_ID,
        plain_schema=True,
    ),
    "google": replace(
        _HOSTED, host="googleapis.com", default_path="/v1beta/openai", null_content=True
    ),
    "anthropic": Profile(
        host="anthropic.com",
        return_reasoning="never",
        follows_refs=True,
        schema_mode="never",
        null_content=True,
        think_tags=False,
    ),
    "ollama": Profile(host="ollama.com", omit_tools_for_none=True, names_tool_results=True),
    "vllm": Profile(effort_style="template", names_tool_results=True),
    "llamacpp": Profile(effort_style="template", names_tool_results=True),
    "lmstudio": Profile(),
}


_OLLAMA_PORT = 11434


AZURE_HOSTS = tuple(
    f"{service}.azure.{cloud}"
    for cloud in ("com", "us", "cn")
    for service in ("openai", "cognitiveservices", "services.ai", "models.ai")
)
"""Not all of azure.com: everybody can get a name in cloudapp.azure.com, and the key goes there."""


def profile_of(base_url: str) -> Profile:
    """Return the profile of the server at this address."""
    if (origin(base_url) or "").endswith(f":{_OLLAMA_PORT}"):
        return PROFILES["ollama"]
    host = f".{host_of(base_url)}"
    known = (
        profile
        for profile in PROFILES.values()
        if profile.host and host.endswith(f".{profile.host}")
    )
    return next(known, Profile())
