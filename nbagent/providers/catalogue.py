"""The built-in servers, a row each: name → wires, address, key, default model, profile.

A server that speaks a known wire is a row here and no code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.model import ProviderConfig
from nbagent.contracts.ports import ChatClient
from nbagent.providers.provider import Provider, Wires
from nbagent.providers.wires.anthropic import Anthropic
from nbagent.providers.wires.base import Wire
from nbagent.providers.wires.chat import AZURE_HOSTS, PROFILES, Chat, azure_wires, profile_of
from nbagent.providers.wires.google import Google
from nbagent.providers.wires.ollama import Ollama, ollama_url
from nbagent.providers.wires.responses import Responses
from nbagent.shown.texts import error_line

if TYPE_CHECKING:
    from nbagent.providers.wires.base import Wire


def _row(name: str, wires: Wires, base_url: str | None, **facts: Any) -> Provider:
    """A provider whose key and address are in `NAME_API_KEY` and `NAME_BASE_URL`."""
    facts.setdefault("key_variables", (f"{name.upper()}_API_KEY",))
    facts.setdefault("base_url_variables", (f"{name.upper()}_BASE_URL",))
    facts.setdefault("needs_key", "start" not in facts)  # A server of this machine needs none.

    def opened(config: ProviderConfig) -> ChatClient:
        # Imported late: listing the providers must not load the HTTP library.
        from nbagent.providers.client import WireClient

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


T = TypeVar("T")


ENTRY_POINT_GROUP = "nbagent.providers"


def provider_names() -> tuple[str, ...]:
    """The names of all providers, built in and installed, in alphabetical order."""
    return tuple(sorted(_known()))


def find_provider(name: str) -> Provider:
    """The provider of this name.

    Raises:
        UsageError: there is none (the message names the nearest one and lists all), or its
            package is broken.
    """
    found = _known().get(name)
    if found is None:
        raise UsageError(_unknown(name))
    return _provider_of(found) if isinstance(found, EntryPoint) else found


def split_model_id(model_id: str) -> tuple[str, str]:
    """Split `openai:gpt-5.4` into provider and model. The model's name may contain colons.

    Raises:
        UsageError: it does not start with the name of a provider.
    """
    provider, colon, model = model_id.strip().partition(":")
    if not colon:
        raise UsageError(
            f"model {provider!r} names no provider; write it as provider:model, for example"
            f" openai:{provider or 'gpt-5.4'}. Known providers: {', '.join(provider_names())}."
        )
    if provider not in _known():
        raise UsageError(
            f"{_unknown(provider)} A model id is provider:model;"
            f" for a model that is itself called {model_id!r} write openai:{model_id}."
        )
    if not model:
        example = find_provider(provider).default_model or "NAME"
        raise UsageError(f"{model_id!r} names no model; write for example {provider}:{example}.")
    return provider, model


@cache
def _known() -> Mapping[str, Provider | EntryPoint]:
    """The built-in providers, and what other packages declare, which is not imported yet."""
    # Imported late: the rows name the wires, and a wire imports pydantic.
    from nbagent.providers.local import PROVIDER as LOCAL
    from nbagent.providers.offline import PROVIDER as OFFLINE

    installed = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return installed | {provider.name: provider for provider in (*PROVIDERS, LOCAL, OFFLINE)}


def _provider_of(entry: EntryPoint) -> Provider:
    """The provider of another package: what its code raises or gives is checked here."""
    package = f"provider {entry.name!r} ({entry.value})"
    found: object = _called(entry.load, f"{package} cannot be loaded")
    if not isinstance(found, Provider):
        raise UsageError(f"{package} gave {type(found).__name__}, not a Provider; fix it.")

    def opened(config: ProviderConfig) -> ChatClient:
        client = _called(lambda: found.open(config), f"{package} cannot be opened")
        if not hasattr(client, "chat_stream"):
            raise UsageError(f"{package} gave {type(client).__name__}, not a client; fix it.")
        return client

    return replace(found, open=opened)


def _called(work: Callable[[], T], failed: str) -> T:
    try:
        return work()
    except (NbagentError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a package may also end the process where it is imported
        why = " ".join(error_line(error).split())
        raise UsageError(f"{failed}: {why}; repair or uninstall its package.") from error


def _unknown(name: str) -> str:
    names = provider_names()
    nearest = get_close_matches(name, names, 1, 0.6)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"there is no provider {name!r}.{hint} Known providers: {', '.join(names)}."
