"""The built-in servers, a row each: name → wires, address, key, default model, profile.

A server that speaks a known wire is a row here and no code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nbagent.contracts.chat import ProviderConfig
from nbagent.contracts.ports import ChatClient
from nbagent.providers import azure
from nbagent.providers.anthropic import Anthropic
from nbagent.providers.azure import azure_wires
from nbagent.providers.chat import PROFILES, Chat, profile_of
from nbagent.providers.google import Google
from nbagent.providers.ollama import Ollama, ollama_url
from nbagent.providers.registry import Provider, is_at, origin
from nbagent.providers.responses import Responses
from nbagent.providers.wires import Wire

Wires = Callable[[ProviderConfig], Sequence[Wire]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One row."""

    name: str
    wires: Wires
    """The wires for a configuration: a profile may depend on its base URL."""
    base_url: str | None = None
    keys: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    read_url: Callable[[str], str] = str.strip
    key_hosts: tuple[str, ...] = ()
    model: str | None = None
    needs_key: bool = True
    start: str = ""
    """The command that starts it on this machine."""
    is_local: bool = False
    """It runs on this machine: no key, no price; it is looked for at its usual port."""

    @property
    def provider(self) -> Provider:
        """The row as a provider."""
        return Provider(
            name=self.name,
            open=self._open,
            key_variables=self.keys,
            base_url_variables=self.urls,
            default_base_url=self.base_url,
            default_model=self.model,
            needs_key=self.needs_key and not self.is_local,
            read_url=self.read_url,
            key_hosts=self.key_hosts,
            needs_base_url=self.base_url is None,
            is_free=self.is_local,
        )

    def _open(self, config: ProviderConfig) -> ChatClient:
        # Imported late: listing the providers must not load the HTTP library.
        from nbagent.providers.exchange import WireClient

        config = replace(config, base_url=config.base_url or self.base_url)
        url = origin(config.base_url) or ""
        own = url == origin(self.base_url) or is_at(url, self.key_hosts)
        needed = self.keys if own and self.needs_key and not self.is_local else ()
        return WireClient(
            self.wires(config),
            config,
            provider=self.name,
            key_variables=needed,
            start=self.start,
        )


def _chat(server: str | None = None) -> Wires:
    """Chat Completions in the profile of a server, or of the one that the base URL names."""

    def wires(config: ProviderConfig) -> list[Wire]:
        profile = PROFILES[server] if server else profile_of(config.base_url or "")
        chat = Chat(profile)
        return [chat, Responses()] if profile.has_responses else [chat]

    return wires


SERVERS = (
    Server(
        name="openai",
        wires=_chat(),
        base_url="https://api.openai.com/v1",
        keys=("OPENAI_API_KEY", "LLM_API_KEY"),
        urls=("OPENAI_BASE_URL", "LLM_BASE_URL"),
        model="gpt-5.4",
    ),
    Server(
        name="openai-compatible",
        wires=_chat(),
        keys=("LLM_API_KEY",),
        urls=("LLM_BASE_URL",),
        needs_key=False,
    ),
    Server(
        name="openai-responses",
        wires=lambda config: [Responses()],
        base_url="https://api.openai.com/v1",
        keys=("OPENAI_API_KEY", "LLM_API_KEY"),
        urls=("OPENAI_BASE_URL", "LLM_BASE_URL"),
    ),
    Server(
        name="azure",
        wires=azure_wires,
        keys=azure.KEY_VARIABLES,
        key_hosts=azure.HOSTS,
        urls=azure.URL_VARIABLES,
    ),
    Server(
        name="deepseek",
        wires=_chat("deepseek"),
        base_url="https://api.deepseek.com",
        keys=("DEEPSEEK_API_KEY",),
        urls=("DEEPSEEK_BASE_URL",),
        model="deepseek-flash",
    ),
    Server(
        name="openrouter",
        wires=_chat("openrouter"),
        base_url="https://openrouter.ai/api/v1",
        keys=("OPENROUTER_API_KEY",),
        urls=("OPENROUTER_BASE_URL",),
    ),
    Server(
        name="groq",
        wires=_chat("groq"),
        base_url="https://api.groq.com/openai/v1",
        keys=("GROQ_API_KEY",),
        urls=("GROQ_BASE_URL",),
    ),
    Server(
        name="mistral",
        wires=_chat("mistral"),
        base_url="https://api.mistral.ai/v1",
        keys=("MISTRAL_API_KEY",),
        urls=("MISTRAL_BASE_URL",),
    ),
    Server(
        name="anthropic",
        wires=lambda config: [Anthropic(config.base_url or "", config.headers)],
        base_url="https://api.anthropic.com/v1",
        keys=("ANTHROPIC_API_KEY",),
        urls=("ANTHROPIC_BASE_URL",),
        model="claude-sonnet-5-5",
    ),
    Server(
        name="google",
        wires=lambda config: [Google()],
        base_url="https://generativelanguage.googleapis.com/v1",
        keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        urls=("GEMINI_BASE_URL", "GOOGLE_GEMINI_BASE_URL"),
        model="gemini-3.8-flash",
    ),
    Server(
        name="ollama",
        wires=lambda config: [Ollama()],
        base_url="http://127.0.0.1:11434",
        keys=("OLLAMA_API_KEY",),
        key_hosts=("ollama.com",),
        urls=("OLLAMA_HOST",),
        read_url=ollama_url,
        start="ollama serve",
        is_local=True,
    ),
    Server(
        name="vllm",
        wires=_chat("vllm"),
        base_url="http://127.0.0.1:8000/v1",
        keys=("VLLM_API_KEY",),
        urls=("VLLM_BASE_URL",),
        start="vllm serve MODEL",
        is_local=True,
    ),
    Server(
        name="lmstudio",
        wires=_chat("lmstudio"),
        base_url="http://127.0.0.1:1234/v1",
        keys=("LMSTUDIO_API_KEY",),
        urls=("LMSTUDIO_BASE_URL",),
        start="lms server start",
        is_local=True,
    ),
    Server(
        name="llamacpp",
        wires=_chat("llamacpp"),
        base_url="http://127.0.0.1:8080/v1",
        keys=("LLAMACPP_API_KEY",),
        urls=("LLAMACPP_BASE_URL",),
        start="llama-server -m FILE.gguf",
        is_local=True,
    ),
)
PROVIDERS: tuple[Provider, ...] = tuple(server.provider for server in SERVERS)
