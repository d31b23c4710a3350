"""The built-in providers, one row each, and look-up of providers by name.

A row names wires, address, key variables and default model. A server with a known wire needs a
row here; a server that differs from its wire also needs a profile in `wires/chat_profiles.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any, TypeVar

from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.model import ProviderConfig
from nbagent.contracts.ports import ChatClient
from nbagent.providers.provider import Provider, Wires
from nbagent.providers.wires.anthropic import Anthropic
from nbagent.providers.wires.base import Wire
from nbagent.providers.wires.chat import Chat, azure_wires
from nbagent.providers.wires.chat_profiles import AZURE_HOSTS, PROFILES, profile_of
from nbagent.providers.wires.google import Google
from nbagent.providers.wires.ollama import Ollama, ollama_url
from nbagent.providers.wires.responses import Responses
from nbagent.settings.installed import installed_entry_points
from nbagent.shown.texts import error_line

T = TypeVar("T")
ENTRY_POINT_GROUP = "nbagent.providers"


def _provider(name: str, wires: Wires, base_url: str | None, **facts: Any) -> Provider:
    """Build a row; by default its key and URL are in `NAME_API_KEY` and `NAME_BASE_URL`."""
    facts.setdefault("key_variables", (f"{name.upper()}_API_KEY",))
    facts.setdefault("base_url_variables", (f"{name.upper()}_BASE_URL",))
    facts.setdefault("needs_key", "start" not in facts)  # A server of this machine needs none.

    def open_client(config: ProviderConfig) -> ChatClient:
        # Late import: listing the providers must not load the HTTP library.
        from nbagent.providers.client import WireClient

        config = replace(config, base_url=config.base_url or base_url)
        return WireClient(
            wires(config),
            config,
            provider=name,
            key_variables=row.key_variables
            if row.needs_key and row.is_own_server(config.base_url)
            else (),
            start=row.start,
        )

    row = Provider(name=name, open=open_client, wires=wires, default_base_url=base_url, **facts)
    return row


def _chat_wires(server: str | None = None) -> Wires:
    """Chat Completions with the profile of a named server; without a name, of the base URL's."""

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
    _provider("openai", _chat_wires(), default_model="gpt-5.4", **_OPENAI),
    _provider("openai-responses", lambda config: [Responses()], **_OPENAI),
    _provider("openai-compatible", _chat_wires(), **_GENERIC),
    _provider(
        "azure",
        azure_wires,
        None,
        key_variables=("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN"),
        key_hosts=AZURE_HOSTS,
        base_url_variables=("AZURE_OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT"),
    ),
    _provider(
        "anthropic",
        lambda config: [Anthropic(config.base_url or "", config.headers)],
        "https://api.anthropic.com/v1",
        default_model="claude-sonnet-5-5",
    ),
    _provider(
        "google",
        lambda config: [Google()],
        "https://generativelanguage.googleapis.com/v1",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        base_url_variables=("GEMINI_BASE_URL", "GOOGLE_GEMINI_BASE_URL"),
        default_model="gemini-3.8-flash",
    ),
    _provider(
        "deepseek",
        _chat_wires("deepseek"),
        "https://api.deepseek.com",
        default_model="deepseek-flash",
    ),
    _provider("openrouter", _chat_wires("openrouter"), "https://openrouter.ai/api/v1"),
    _provider("groq", _chat_wires("groq"), "https://api.groq.com/openai/v1"),
    _provider("mistral", _chat_wires("mistral"), "https://api.mistral.ai/v1"),
    _provider(
        "ollama",
        lambda config: [Ollama()],
        "http://127.0.0.1:11434",
        start="ollama serve",
        key_hosts=("ollama.com",),
        base_url_variables=("OLLAMA_HOST",),
        read_url=ollama_url,
    ),
    _provider("vllm", _chat_wires("vllm"), "http://127.0.0.1:8000/v1", start="vllm serve MODEL"),
    _provider(
        "lmstudio", _chat_wires("lmstudio"), "http://127.0.0.1:1234/v1", start="lms server start"
    ),
    _provider(
        "llamacpp",
        _chat_wires("llamacpp"),
        "http://127.0.0.1:8080/v1",
        start="llama-server -m FILE.gguf",
    ),
)


def provider_names() -> tuple[str, ...]:
    """Names of all providers, built-in and installed, in alphabetical order."""
    return tuple(sorted(_all_providers()))


def find_provider(name: str) -> Provider:
    """Return the provider with this name.

    Raises:
        UsageError: no provider has this name (the message names the nearest one and lists all),
            or its package is broken.
    """
    provider = _all_providers().get(name)
    if provider is None:
        raise UsageError(_unknown_provider(name))
    return _load_provider(provider) if isinstance(provider, EntryPoint) else provider


def split_model_id(model_id: str) -> tuple[str, str]:
    """Split `openai:gpt-5.4` into provider and model. The model's name may contain colons.

    Raises:
        UsageError: the id does not start with the name of a provider.
    """
    provider, colon, model = model_id.strip().partition(":")
    if not colon:
        raise UsageError(
            f"model {provider!r} names no provider; write it as provider:model, for example"
            f" openai:{provider or 'gpt-5.4'}. Known providers: {', '.join(provider_names())}."
        )
    if provider not in _all_providers():
        raise UsageError(
            f"{_unknown_provider(provider)} A model id is provider:model;"
            f" for a model that is itself called {model_id!r} write openai:{model_id}."
        )
    if not model:
        example = find_provider(provider).default_model or "NAME"
        raise UsageError(f"{model_id!r} names no model; write for example {provider}:{example}.")
    return provider, model


@cache
def _all_providers() -> Mapping[str, Provider | EntryPoint]:
    """Built-in providers and entry points of other packages; the latter are not imported yet.

    A built-in name wins: another package must not be able to receive the keys of `openai`.
    """
    # Late imports: the offline model brings the demo's rules, and most look-ups need neither.
    from nbagent.providers.local import PROVIDER as LOCAL
    from nbagent.providers.offline import PROVIDER as OFFLINE

    installed = {entry.name: entry for entry in installed_entry_points(ENTRY_POINT_GROUP)}
    return installed | {provider.name: provider for provider in (*PROVIDERS, LOCAL, OFFLINE)}


def _load_provider(entry: EntryPoint) -> Provider:
    """Load a provider of another package; check the result and turn its faults into UsageError."""
    package = f"provider {entry.name!r} ({entry.value})"
    provider: object = _call_package(entry.load, f"{package} cannot be loaded")
    if not isinstance(provider, Provider):
        raise UsageError(f"{package} gave {type(provider).__name__}, not a Provider; fix it.")

    def open_client(config: ProviderConfig) -> ChatClient:
        client = _call_package(lambda: provider.open(config), f"{package} cannot be opened")
        if not (hasattr(client, "send") or hasattr(client, "chat_stream")):
            raise UsageError(f"{package} gave {type(client).__name__}, not a client; fix it.")
        return client

    return replace(provider, open=open_client)


def _call_package(work: Callable[[], T], failed: str) -> T:
    try:
        return work()
    except (NbagentError, KeyboardInterrupt):
        raise
    except BaseException as error:  # An imported package may even call sys.exit().
        why = " ".join(error_line(error).split())
        raise UsageError(f"{failed}: {why}; repair or uninstall its package.") from error


def _unknown_provider(name: str) -> str:
    names = provider_names()
    nearest = get_close_matches(name, names, 1, 0.6)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"there is no provider {name!r}.{hint} Known providers: {', '.join(names)}."
