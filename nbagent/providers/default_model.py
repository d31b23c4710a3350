"""Which model a run gets when nobody named one, and which servers of this machine answer.

Order: `LLM_BASE_URL` or a provider's key in the environment, a local Ollama, `offline:demo`.
Only loopback is asked, without a key and in under 0.3 s.
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
from nbagent.providers.catalogue import PROVIDERS, find_provider, provider_names

_OPENAI_URLS = ("OPENAI_BASE_URL", "LLM_BASE_URL")
_PROBE_S = 0.25
"""What is left of 0.3 s is for starting and ending the thread."""
_REMEMBER_S = 30.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A model, the server that has it, and why it was chosen."""

    model_id: str
    base_url: str | None
    why: str


def qualified(model: str) -> str:
    """A model id with its provider: a bare name means an OpenAI-compatible server."""
    provider, colon, _ = model.partition(":")
    return model if colon and provider in provider_names() else f"openai:{model}"


def choose_model(environ: Mapping[str, str], base_url: str | None = None) -> Choice:
    """The model for a run that names none. Never raises; may ask a server on loopback."""
    server = base_url or environ.get("LLM_BASE_URL", "").strip()
    if server:
        if model := _first_model("openai", server):
            return Choice(f"openai:{model}", base_url, f"the first model of {_place(server)}")
    else:
        for row in PROVIDERS:
            named = [name for name in row.key_variables if environ.get(name, "").strip()]
            if row.default_model and named:
                return Choice(f"{row.name}:{row.default_model}", None, f"{named[0]} is set")
    if (local := local_servers(environ).get("ollama")) and (model := _first_model("ollama", local)):
        return Choice(f"ollama:{model}", None, f"Ollama runs on {_place(local)}")
    return Choice("offline:demo", None, "no key and no local server was found")


def local_servers(environ: Mapping[str, str], base_url: str | None = None) -> dict[str, str]:
    """Where servers of this machine may be, by provider: those of the table, and the one set."""
    servers: dict[str, str] = {}
    for row in PROVIDERS:
        if row.start:
            with suppress(UsageError):  # what its variable says may be no address
                servers[row.name] = row.resolve(ProviderConfig(), environ).base_url or ""
    addresses = [base_url or "", *(environ.get(it, "").strip() for it in _OPENAI_URLS)]
    if named := next(filter(None, addresses), None):
        servers["openai"] = named
    return {name: url for name, url in servers.items() if _on_loopback(url)}


def ask_local(
    servers: Mapping[str, str], *, again: bool = True
) -> dict[str, tuple[ModelInfo, ...]]:
    """What servers on loopback list, by provider; only those that answer within 0.3 s in all.

    `again=False` takes what a server listed within the last half minute.
    """
    places = [one for one in servers.items() if _on_loopback(one[1])]
    late = math.inf if again else time.monotonic() - _REMEMBER_S
    if asked := [one for one in places if one not in _seen or _seen[one][0] < late]:
        with ThreadPoolExecutor(1, "nbagent-probe") as thread:  # a loop may be running in this one
            thread.submit(_ask, asked).result()
    return {place[0]: models for place in places if (models := _seen[place][1]) is not None}


_seen: dict[tuple[str, str], tuple[float, tuple[ModelInfo, ...] | None]] = {}
"""When each server was asked, and what it listed; None = it did not answer."""


def _ask(places: Sequence[tuple[str, str]]) -> None:
    async def ask(name: str, url: str) -> None:
        models = None
        with suppress(NbagentError):
            client = find_provider(name).open(ProviderConfig(base_url=url, timeout_s=_PROBE_S))
            try:
                models = tuple(await client.list_models())
            finally:
                await client.close()
        _seen[name, url] = time.monotonic(), models

    async def ask_all() -> None:
        await asyncio.gather(*(ask(*place) for place in places))

    with asyncio.Runner() as runner:  # `asyncio.run` may have been replaced (nest_asyncio)
        runner.run(ask_all())


def _first_model(name: str, base_url: str) -> str | None:
    models = ask_local({name: base_url}, again=False).get(name)
    return models[0].id if models else None


def _on_loopback(base_url: str) -> bool:
    return (origin(base_url) or "").startswith("http:") and is_loopback(base_url)


def _place(url: str) -> str:
    """Host and port, for a person."""
    return (origin(url) or "").partition("://")[2]
