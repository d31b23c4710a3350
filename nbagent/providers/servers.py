"""The built-in servers, a row each: name → wires, address, key, default model, profile.

A server that speaks a known wire is a row here and no code.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nbagent.contracts.chat import ProviderConfig
from nbagent.contracts.ports import ChatClient
from nbagent.providers.anthropic import Anthropic
from nbagent.providers.chat import AZURE_HOSTS, PROFILES, Chat, azure_wires, profile_of
from nbagent.providers.google import Google
from nbagent.providers.ollama import Ollama, ollama_url
from nbagent.providers.registry import Provider, Wires
from nbagent.providers.responses import Responses
from nbagent.providers.wires import Wire


def _row(name: str, wires: Wires, base_url: str | None, **facts: Any) -> Provider:
    """A provider whose key and address are in `NAME_API_KEY` and `NAME_BASE_URL`."""
    facts.setdefault("key_variables", (f"{name.upper()}_API_KEY",))
    facts.setdefault("base_url_variables", (f"{name.upper()}_BASE_URL",))
    facts.setdefault("needs_key", "start" not in facts)  # A server of this machine needs none.

    def opened(config: ProviderConfig) -> ChatClient:
        # Imported late: listing the providers must not load the HTTP library.
        from nbagent.providers.exchange import WireClient

        config = replace(config, base_url=config.base_url or base_url)
        return WireClient(
            wires(config),
            config,
            provider=name,
            key_variables=row.key_variables if row.needs_key and row.owns(config.base_url) else (),
            start=row.start,
        )

    row = Provider(name=name, open=opened, wires=wires, default_base_url=base_url, **facts)
    return row


def _chat(server: str | None = None) -> Wires:
    """Chat Completions in the profile of a server, or of the one that the base URL names."""

    def wires(config: ProviderConfig) -> list[Wire]:
        profile = PROFILES[server] if server else profile_of(config.base_url or "")
        chat = Chat(profile)
        return [chat, Responses()] if profile.has_responses else [chat]

    return wires


_OPENAI: dict[str, Any] = {
    "base_url": "https://api.openai.com/v1",
    "key_variables": ("OPENAI_API_KEY", "LLM_API_KEY"),
    "base_url_variables": ("OPENAI_BASE_URL", "LLM_BASE_URL"),
}
_GENERIC: dict[str, Any] = {
    "base_url": None,
    "key_variables": ("LLM_API_KEY",),
    "base_url_variables": ("LLM_BASE_URL",),
    "needs_key": False,
}
PROVIDERS: tuple[Provider, ...] = (
    _row("openai", _chat(), default_model="gpt-5.4", **_OPENAI),
    _row("openai-responses", lambda config: [Responses()], **_OPENAI),
    _row("openai-compatible", _chat(), **_GENERIC),
    _row(
        "azure",
        azure_wires,
        None,
        key_variables=("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN"),
        key_hosts=AZURE_HOSTS,
        base_url_variables=("AZURE_OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT"),
    ),
    _row(
        "anthropic",
        lambda config: [Anthropic(config.base_url or "", config.headers)],
        "https://api.anthropic.com/v1",
        default_model="claude-sonnet-5-5",
    ),
    _row(
        "google",
        lambda config: [Google()],
        "https://generativelanguage.googleapis.com/v1",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        base_url_variables=("GEMINI_BASE_URL", "GOOGLE_GEMINI_BASE_URL"),
        default_model="gemini-3.8-flash",
    ),
    _row("deepseek", _chat("deepseek"), "https://api.deepseek.com", default_model="deepseek-flash"),
    _row("openrouter", _chat("openrouter"), "https://openrouter.ai/api/v1"),
    _row("groq", _chat("groq"), "https://api.groq.com/openai/v1"),
    _row("mistral", _chat("mistral"), "https://api.mistral.ai/v1"),
    _row(
        "ollama",
        lambda config: [Ollama()],
        "http://127.0.0.1:11434",
        start="ollama serve",
        key_hosts=("ollama.com",),
        base_url_variables=("OLLAMA_HOST",),
        read_url=ollama_url,
    ),
    _row("vllm", _chat("vllm"), "http://127.0.0.1:8000/v1", start="vllm serve MODEL"),
    _row("lmstudio", _chat("lmstudio"), "http://127.0.0.1:1234/v1", start="lms server start"),
    _row(
        "llamacpp", _chat("llamacpp"), "http://127.0.0.1:8080/v1", start="llama-server -m FILE.gguf"
    ),
)
