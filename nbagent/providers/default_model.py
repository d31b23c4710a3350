"""Choose the model of a run that names none, and list the models of servers on this machine.

Order: `LLM_BASE_URL` or a provider's key in the environment, a local Ollama, `offline:demo`.
Only servers on loopback are asked, without a key and within 0.3 s: choosing a model must not
send a key anywhere or delay the first answer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.model import ModelInfo, ProviderConfig
from nbagent.providers.address import is_loopback, origin
from nbagent.providers.catalogue import find_provider, provider_names
from nbagent.providers.servers import SERVERS
from nbagent.settings.sources import DEFAULT_PROVIDER

_PROBE_S = 0.25
"""The rest of the 0.3 s is for starting and ending the thread."""
_PROBE_CACHE_S = 30.0


@dataclass(frozen=True, slots=True)
class DefaultModel:
    """A model, its server, and the reason for the choice."""

    model_id: str
    base_url: str | None
    why: str


def with_provider(model: str) -> str:
    """Add the provider to a model id; a bare name means an OpenAI-compatible server."""
    provider, colon, _ = model.partition(":")
    return model if colon and provider in provider_names() else f"{DEFAULT_PROVIDER}:{model}"


def choose_default_model(environ: Mapping[str, str], base_url: str | None = None) -> DefaultModel:
    """Choose the model for a run that names none. Never raises; may ask a server on loopback."""
    server = base_url or environ.get("LLM_BASE_URL", "").strip()
    if server:
        if model := _first_model(DEFAULT_PROVIDER, server):
            why = f"the first model of {_host_and_port(server)}"
            return DefaultModel(f"{DEFAULT_PROVIDER}:{model}", base_url, why)
    else:
        for row in SERVERS:
            named = [name for name in row.key_variables if environ.get(name, "").strip()]
            if row.default_model and named:
                return DefaultModel(f"{row.name}:{row.default_model}", None, f"{named[0]} is set")
    local = local_servers(environ)
    for name in (row.name for row in SERVERS if row.suggests_model and row.name in local):
        if model := _first_model(name, local[name]):
            why = f"{name.capitalize()} runs on {_host_and_port(local[name])}"
            return DefaultModel(f"{name}:{model}", None, why)
    return DefaultModel("offline:demo", None, "no key and no local server was found")


def local_servers(environ: Mapping[str, str], base_url: str | None = None) -> dict[str, str]:
    """URLs where servers of this machine may listen, by provider: usual ports and the set URL."""
    servers: dict[str, str] = {}
    for row in SERVERS:
        if row.start:
            with suppress(UsageError):  # The value of its variable may not be an address.
                servers[row.name] = row.resolve(ProviderConfig(), environ).base_url or ""
    variables = find_provider(DEFAULT_PROVIDER).base_url_variables
    addresses = [base_url or "", *(environ.get(variable, "").strip() for variable in variables)]
    if named := next(filter(None, addresses), None):
        servers[DEFAULT_PROVIDER] = named
    return {name: url for name, url in servers.items() if _is_http_loopback(url)}


def list_local_models(
    servers: Mapping[str, str], *, refresh: bool = True
) -> dict[str, tuple[ModelInfo, ...]]:
    """List the models of servers on loopback, by provider.

    Servers that do not answer within 0.3 s are left out. With `refresh=False` an answer of the
    last half minute is used again.
    """
    local = [server for server in servers.items() if _is_http_loopback(server[1])]
    oldest = math.inf if refresh else time.monotonic() - _PROBE_CACHE_S
    if unknown := [
        server for server in local if server not in _probed or _probed[server][0] < oldest
    ]:
        # In another thread: this one may already run an event loop.
        with ThreadPoolExecutor(1, "nbagent-probe") as thread:
            thread.submit(_probe, unknown).result()
    return {server[0]: models for server in local if (models := _probed[server][1]) is not None}


_probed: dict[tuple[str, str], tuple[float, tuple[ModelInfo, ...] | None]] = {}
"""By provider and URL: time of the last request and the models; None if no answer came."""


def _probe(servers: Sequence[tuple[str, str]]) -> None:
    async def probe(name: str, url: str) -> None:
        models = None
        with suppress(NbagentError):
            client = find_provider(name).open(ProviderConfig(base_url=url, timeout_s=_PROBE_S))
            try:
                models = tuple(await client.list_models())
            finally:
                await client.close()
        _probed[name, url] = time.monotonic(), models

    async def probe_all() -> None:
        await asyncio.gather(*(probe(*server) for server in servers))

    # Not `asyncio.run`: nest_asyncio replaces it.
    with asyncio.Runner() as runner:
        runner.run(probe_all())


def _first_model(name: str, base_url: str) -> str | None:
    models = list_local_models({name: base_url}, refresh=False).get(name)
    return models[0].id if models else None


def _is_http_loopback(base_url: str) -> bool:
    return (origin(base_url) or "").startswith("http:") and is_loopback(base_url)


def _host_and_port(url: str) -> str:
    """Host and port, for a person."""
    return (origin(url) or "").partition("://")[2]
