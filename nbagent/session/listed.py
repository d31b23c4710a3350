"""Which models can be asked from here: keys that are set, servers that answer on this machine.

Keeps what providers listed, for completion. Asks a server elsewhere only when it is named.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from nbagent.contracts.chat import ModelInfo, ProviderConfig
from nbagent.contracts.errors import ModelError, NbagentError
from nbagent.contracts.ports import ChatClient
from nbagent.providers.choice import ask_local, local_servers, qualified
from nbagent.providers.registry import find_provider, provider_names
from nbagent.runtime import engine_loop
from nbagent.session.clients import asked_of, choose
from nbagent.settings import RunOptions, effective, provider_of

_LIST_S = 10.0
"""A provider has so many seconds to list its models, unless said otherwise."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What one provider offers from here."""

    provider: str
    models: tuple[ModelInfo, ...] = ()
    reachable: bool = True
    why: str = ""
    """What keeps it from being asked, or how to see more of it."""


_kept: dict[tuple[str, str | None], tuple[ModelInfo, ...]] = {}
"""By provider and server: what it listed when it was last asked."""


def kept_ids() -> list[str]:
    """The ids of all models that were listed in this kernel."""
    return [f"{name}:{model.id}" for (name, _), models in _kept.items() for model in models]


def forget_listings() -> None:
    """Forget what providers listed."""
    _kept.clear()


def listings(provider: str | None = None, given: RunOptions | None = None) -> list[Listing]:
    """What one provider lists, asked as `given` says; without a name, what is reachable now.

    UsageError where no provider is called so or it has no key, ModelError where it does not answer.
    """
    if provider is not None:
        models = _asked(provider, given or RunOptions())
        return [Listing(provider, models, why="" if models else "lists no models")]
    servers = local_servers(os.environ, effective().base_url)
    answers = ask_local(servers)
    offers: list[Listing] = []
    for name in dict.fromkeys((*provider_names(), *servers)):
        if name in answers:
            _kept[name, servers[name]] = answers[name]
            offers.append(Listing(name, answers[name], why="" if answers[name] else "lists none"))
        elif name in servers:
            offers.append(Listing(name, reachable=False, why=f"no server at {servers[name]}"))
        elif name == "offline":
            offers.append(Listing(name, _asked(name, RunOptions())))
        else:
            offers.append(_by_its_key(name))
    return offers


def _by_its_key(name: str) -> Listing:
    """A provider elsewhere, which is not asked: a key is there, or it is not."""
    settings = effective()
    # A server that is set is one of the provider whose model is set.
    mine = name == provider_of(qualified(settings.model or ""))
    try:
        provider = find_provider(name)
        given = ProviderConfig(base_url=settings.base_url if mine else None)
        config = provider.resolve(given, os.environ)
    except NbagentError as error:  # an installed package, or a server that has to be named
        return Listing(name, reachable=False, why=error.message)
    own_server = config.base_url == provider.default_base_url
    usual = (ModelInfo(id=provider.default_model),) if provider.default_model else ()
    kept = _kept.get((name, config.base_url))
    models = kept or (usual if own_server else ())
    if provider.needs_key and own_server and config.api_key is None:
        variables = " or ".join(provider.key_variables)
        why = f"no key; set {variables} in the environment before the kernel starts"
        return Listing(name, models, reachable=False, why=why)
    return Listing(name, models, why="" if kept else f"%agent models {name} asks it for all")


def _asked(name: str, given: RunOptions) -> tuple[ModelInfo, ...]:
    model = find_provider(name).default_model or "any"
    wait_s = given.timeout_s or _LIST_S
    asked = given.changed(model=f"{name}:{model}", timeout_s=wait_s)
    chosen = choose(asked_of(asked, effective()))
    listing = asyncio.wait_for(_list(name, chosen.client), wait_s)
    future = asyncio.run_coroutine_threadsafe(listing, engine_loop())
    try:
        models = future.result()
    except TimeoutError:
        where = chosen.base_url or name
        raise ModelError(
            f"no list of models within {wait_s:g} s from {where}; is it the right server?",
            code="LLM_TIMEOUT",
        ) from None
    finally:
        future.cancel()
    if name != "offline":  # scripts are known without being listed
        _kept[name, chosen.base_url] = models
    return models


async def _list(name: str, client: ChatClient) -> tuple[ModelInfo, ...]:
    try:
        return tuple([model for model in await client.list_models() if model.id])
    except (NbagentError, asyncio.CancelledError):
        raise
    except BaseException as error:  # of another package; SystemExit would end the engine
        raise ModelError(
            f"provider {name!r} cannot list its models: {type(error).__name__}: {error}; name one "
            f"with --model {name}:MODEL, or repair its package",
            code="LLM_BAD_RESPONSE",
        ) from error
