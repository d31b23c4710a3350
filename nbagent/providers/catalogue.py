"""Look-up of providers by name: the rows of `servers`, the local ones, those of other packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint
from typing import TypeVar

from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.model import ProviderConfig
from nbagent.contracts.nearest import nearest_name
from nbagent.contracts.ports import ChatClient
from nbagent.providers.provider import Provider
from nbagent.providers.servers import SERVERS
from nbagent.settings.installed import installed_entry_points
from nbagent.settings.sources import DEFAULT_PROVIDER
from nbagent.shown.texts import error_line

T = TypeVar("T")
ENTRY_POINT_GROUP = "nbagent.providers"


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


def known_provider(name: str) -> Provider | None:
    """Return the provider with this name; None if there is none, or its package is broken."""
    with suppress(UsageError):
        return find_provider(name)
    return None


def split_model_id(model_id: str) -> tuple[str, str]:
    """Split `openai:gpt-5.4` into provider and model. The model's name may contain colons.

    Raises:
        UsageError: the id does not start with the name of a provider.
    """
    provider, colon, model = model_id.strip().partition(":")
    if not colon:
        example = f"{DEFAULT_PROVIDER}:{provider or 'MODEL'}"
        raise UsageError(
            f"model {provider!r} names no provider; write it as provider:model, for example"
            f" {example}. Known providers: {', '.join(provider_names())}."
        )
    if provider not in _all_providers():
        raise UsageError(
            f"{_unknown_provider(provider)} A model id is provider:model;"
            f" for a model that is itself called {model_id!r} write"
            f" {DEFAULT_PROVIDER}:{model_id}."
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
    return installed | {provider.name: provider for provider in (*SERVERS, LOCAL, OFFLINE)}


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
    nearest = nearest_name(name, names)
    hint = f"Did you mean {nearest!r}?" if nearest else f"Known providers: {', '.join(names)}."
    return f"there is no provider {name!r}. {hint}"
