"""From a model id to a ready client: provider, configuration, one client for each server."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from nbagent.contracts.canonical import sha_of
from nbagent.contracts.chat import ProviderConfig, Usage
from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ChatClient, Cost
from nbagent.contracts.secrets import SecretKey
from nbagent.providers.choice import choose_model, qualified
from nbagent.providers.prices import context_tokens, cost_of
from nbagent.providers.registry import find_provider, origin, split_model_id
from nbagent.settings import RunOptions, Settings, checked_value, provider_of

Key = Literal["sent", "none", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The model of a run and how to reach it."""

    model_id: str
    provider: str
    model: str
    base_url: str | None
    client: ChatClient
    why: str | None
    """Why this model, when nobody named one."""
    key: Key
    """Whether a key goes along; `missing` where the server answers only with one."""
    extra_body: dict[str, Any] = field(repr=False)

    def price(self, usage: Usage, model: str) -> Cost | None:
        """Cost by part; None when the price is unknown."""
        return cost_of(self.provider, model, usage, base_url=self.base_url)

    def context_tokens(self) -> int | None:
        """What the model takes, as the price list has it; None when it is not known."""
        return context_tokens(self.provider, self.model, base_url=self.base_url)


_clients: dict[tuple[Any, ...], ChatClient] = {}


def choose(asked: Settings, *, need_key: bool = True) -> Chosen:
    """Resolve the model of a run (None: the best that the environment offers) to a client.

    Raises:
        UsageError: an unknown provider, or no key where one is needed.
    """
    model, base_url, why = asked.model, asked.base_url, None
    if model is None:
        choice = choose_model(os.environ, base_url)
        model, why = choice.model_id, choice.why
        base_url = base_url or choice.base_url
    model_id = qualified(model) if ":" not in model else model
    name, wire_model = split_model_id(model_id)
    provider = find_provider(name)
    text = os.environ.get(asked.key_variable, "").strip() if asked.key_variable else ""
    said = ProviderConfig(
        api_key=SecretKey(text) if text else None,
        base_url=base_url,
        organization_id=asked.organization_id,
        project_id=asked.project_id,
        timeout_s=asked.timeout_s,
        retries=asked.retries,
        headers=asked.headers or {},
        extra_body=asked.extra_body or {},
    )
    config = provider.resolve(said, os.environ)
    if asked.key_variable:  # no other key than the named one is meant
        config = replace(config, api_key=said.api_key)
    # A server of the environment (OPENAI_BASE_URL) is kept in the record as one of the person's is.
    checked_value("base_url", config.base_url)
    own_server = config.base_url == provider.default_base_url
    needed = asked.key_variable is not None or (provider.needs_key and own_server)
    missing = config.api_key is None and needed
    if missing and need_key:
        variables = asked.key_variable or " or ".join(provider.key_variables)
        raise UsageError(
            f"{name} needs a key: set {variables} in the environment before the kernel starts, "
            "or use --base-url for another server, or --model offline:demo to go on without one",
            code="LLM_AUTH_FAILED",
        )
    return Chosen(
        model_id=model_id,
        provider=name,
        model=wire_model,
        base_url=config.base_url,
        client=_client(name, config),
        why=why,
        key="missing" if missing else "none" if config.api_key is None else "sent",
        extra_body=config.extra_body,
    )


def _client(name: str, config: ProviderConfig) -> ChatClient:
    secret = config.api_key.reveal() if config.api_key else ""
    plain = {f.name: getattr(config, f.name) for f in fields(config) if f.name != "api_key"}
    key = (name, sha_of(plain), hash(secret))
    if key not in _clients:
        _clients[key] = find_provider(name).open(config)
    return _clients[key]


def same_server(options: RunOptions, model: str | None, base_url: str | None) -> bool:
    """Whether options leave a model where it is asked: no other provider and no other address."""
    if options.model and model and provider_of(options.model) != provider_of(model):
        return False
    if not options.base_url:
        return True
    name = provider_of(qualified(options.model or model or ""))
    usual = base_url or find_provider(name).default_base_url
    return origin(options.base_url) == origin(usual)


def asked_of(options: RunOptions, settings: Settings) -> Settings:
    """What holds for one run. What the settings say for one server goes to no other."""
    stays = same_server(options, settings.model, settings.base_url)
    rows = Settings.rows()
    usual = {n: value for n, value in settings.given.items() if stays or not rows[n].server}
    return Settings(**usual).changed(**{n: v for n, v in options.given.items() if n in rows})
