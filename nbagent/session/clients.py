"""From a model id to a ready client: provider, configuration, one client for each server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nbagent.contracts.chat import ProviderConfig, Usage
from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ChatClient
from nbagent.contracts.secrets import SecretKey
from nbagent.providers.cassette import Cassette
from nbagent.providers.choice import choose_model, qualified
from nbagent.providers.prices import context_tokens, cost_usd
from nbagent.providers.registry import find_provider, origin, split_model_id
from nbagent.providers.replay import Mode, ReplayClient
from nbagent.settings import checked_value

Key = Literal["sent", "none", "missing"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The model of a run and how to reach it."""

    model_id: str
    provider: str
    model: str
    base_url: str | None
    client: ChatClient
    why: str | None
    """Why this model, when nobody named one."""
    key: Key = "none"
    """Whether a key goes along; `missing` where the server answers only with one."""

    def price(self, usage: Usage, model: str) -> float | None:
        """Cost in USD; None when the price is unknown."""
        return cost_usd(self.provider, model, usage, base_url=self.base_url)

    def context_tokens(self) -> int | None:
        """What the model takes, as the price list has it; None when it is not known."""
        return context_tokens(self.provider, self.model, base_url=self.base_url)

    def recorded(self, mode: Mode | Literal["off"], cassette: Cassette) -> ChatClient:
        """The client of one run, which answers from a record. Offline models are as cheap."""
        if mode == "off" or self.provider == "offline":
            return self.client
        server = origin(self.base_url) or ""
        return ReplayClient(self.client, server=server, mode=mode, cassette=cassette)


def cache_file(home: Path, run_id: str) -> Path:
    """Where the cache keeps what a run asked: a file of its own, so that it can be forgotten."""
    return home / "cache" / f"{run_id}.jsonl"


_clients: dict[tuple[Any, ...], ChatClient] = {}


def choose(
    model: str | None,
    *,
    base_url: str | None,
    timeout_s: float,
    api_key: SecretKey | None = None,
    need_key: bool = True,
) -> Chosen:
    """Resolve a model id (None: the best that the environment offers) to a client.

    Raises:
        UsageError: an unknown provider, or no key where one is needed.
    """
    why = None
    if model is None:
        choice = choose_model(os.environ, base_url)
        model, why = choice.model_id, choice.why
        base_url = base_url or choice.base_url
    model_id = qualified(model) if ":" not in model else model
    name, wire_model = split_model_id(model_id)
    provider = find_provider(name)
    config = provider.resolve(
        ProviderConfig(base_url=base_url, timeout_s=timeout_s, api_key=api_key), os.environ
    )
    # A server of the environment (OPENAI_BASE_URL) is kept in the record as one of the person's is.
    checked_value("base_url", config.base_url)
    own_server = config.base_url == provider.default_base_url
    missing = config.api_key is None and provider.needs_key and own_server
    if missing and need_key:
        variables = " or ".join(provider.key_variables)
        raise UsageError(
            f"{name} needs a key: set {variables} in the environment before the kernel starts, "
            "or use --base-url for another server, or --model offline:demo to go on without one",
            code="LLM_AUTH_FAILED",
        )
    key: Key = "missing" if missing else "none" if config.api_key is None else "sent"
    return Chosen(model_id, name, wire_model, config.base_url, _client(name, config), why, key)


def _client(name: str, config: ProviderConfig) -> ChatClient:
    secret = config.api_key.reveal() if config.api_key else ""
    key = (name, config.base_url, config.timeout_s, hash(secret))
    if key not in _clients:
        _clients[key] = find_provider(name).open(config)
    return _clients[key]
