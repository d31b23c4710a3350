"""What a provider is and how one is found by name; pieces that every adapter shares.

Does no I/O and imports no adapter before it is asked for.
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from urllib.parse import urlsplit

from nbagent.contracts.chat import ChatChunk, ChatResponse, ClientNotice, ProviderConfig
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.ports import ChatClient
from nbagent.contracts.secrets import SecretKey

ENTRY_POINT_GROUP = "nbagent.providers"
_GENERIC = "LLM_"
"""Prefix of the variables that any provider may read."""
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Provider:
    """One place to get answers from. A module or an entry point exposes it as `PROVIDER`."""

    name: str
    open: Callable[[ProviderConfig], ChatClient]
    """Makes a client from a resolved configuration; opens no connection yet."""
    key_variables: tuple[str, ...] = ()
    """Environment variables that may hold the key, first one wins."""
    base_url_variables: tuple[str, ...] = ()
    """Environment variables that may name the server, first one wins."""
    default_base_url: str | None = None
    default_model: str | None = None
    needs_key: bool = True
    """Whether the server at `default_base_url` answers only with a key."""

    def resolve(self, overrides: ProviderConfig, environ: Mapping[str, str]) -> ProviderConfig:
        """Fill in server, key and model from the environment and the defaults."""
        base_url = overrides.base_url or self._named_url(environ) or self.default_base_url
        return replace(
            overrides,
            base_url=base_url,
            api_key=overrides.api_key or self.key_for(base_url, environ),
            default_model=overrides.default_model or self.default_model,
        )

    def key_for(self, base_url: str | None, environ: Mapping[str, str]) -> SecretKey | None:
        """The key of the environment that was made for this server, if there is one.

        A provider's own variable (`OPENAI_API_KEY`) goes to the provider's own server and to the
        one that its base URL variable (`OPENAI_BASE_URL`) names, nowhere else. `LLM_API_KEY` goes
        to any server, unless `LLM_BASE_URL` says which one it is for.
        """
        target = origin(base_url or self.default_base_url)
        for variable in self.key_variables:
            text = environ.get(variable, "").strip()
            if text and self._made_for(variable, target, environ):
                return SecretKey(text)
        return None

    def _made_for(self, variable: str, target: str | None, environ: Mapping[str, str]) -> bool:
        named = environ.get(variable.removesuffix("_API_KEY") + "_BASE_URL", "").strip()
        if variable.startswith(_GENERIC):
            return not named or origin(named) == target
        return target in ({origin(self.default_base_url)} | ({origin(named)} if named else set()))

    def _named_url(self, environ: Mapping[str, str]) -> str | None:
        for variable in self.base_url_variables:
            if text := environ.get(variable, "").strip():
                return text
        return None


def origin(url: str | None) -> str | None:
    """Scheme, host and port of an address: what a key is made for. None for no address."""
    if not url:
        return None
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return f"unreadable:{url}"
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def provider_names() -> tuple[str, ...]:
    """The names of all providers, built in and installed, in alphabetical order."""
    return tuple(sorted({*_built_in(), *_installed()}))


def find_provider(name: str) -> Provider:
    """The provider of this name; only its own module is imported.

    Raises:
        UsageError: there is none; the message names the nearest one and lists all.
    """
    if name in _built_in():
        found = getattr(import_module(f"nbagent.providers.{name}"), "PROVIDER", None)
    elif entry := _installed().get(name):
        found = _load(entry)
    else:
        raise UsageError(_unknown(name))
    if not isinstance(found, Provider):
        raise UsageError(f"provider {name!r} gave {type(found).__name__}, not a Provider; fix it.")
    return found


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
    if provider not in _built_in() and provider not in _installed():
        raise UsageError(
            f"{_unknown(provider)} A model id is provider:model;"
            f" for a model that is itself called {model_id!r} write openai:{model_id}."
        )
    if not model:
        example = find_provider(provider).default_model or "NAME"
        raise UsageError(f"{model_id!r} names no model; write for example {provider}:{example}.")
    return provider, model


async def whole_response(
    chunks: AsyncGenerator[ChatChunk], notify: Callable[[ClientNotice], None] | None = None
) -> ChatResponse:
    """Drain a stream and return its response: `chat()` made from the body of `chat_stream()`."""
    async with aclosing(chunks):
        async for chunk in chunks:
            if chunk.notice is not None and notify is not None:
                notify(chunk.notice)
            if chunk.done and chunk.response is not None:
                return chunk.response
    raise ModelError("the answer ended without a last chunk; try again.", code="LLM_BAD_RESPONSE")


@cache
def _built_in() -> frozenset[str]:
    # The files are read, not imported: listing names must not load every adapter.
    here = Path(__file__).parent
    files = {path.stem: path for path in here.glob("*.py")}
    files |= {path.parent.name: path for path in here.glob("*/__init__.py")}
    return frozenset(name for name, path in files.items() if b"\nPROVIDER" in path.read_bytes())


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _load(entry: EntryPoint) -> object:
    try:
        return entry.load()
    except Exception as error:
        raise UsageError(
            f"provider {entry.name!r} ({entry.value}) cannot be loaded:"
            f" {type(error).__name__}: {error}; repair or uninstall its package."
        ) from error


def _unknown(name: str) -> str:
    names = provider_names()
    nearest = get_close_matches(name, names, 1, 0.6)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"there is no provider {name!r}.{hint} Known providers: {', '.join(names)}."
