"""Resolves a model id to a client, one per server, and lists the models that can be used here.

A remote server is contacted only if it is named.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from nbagent.contracts.canonical import sha_of
from nbagent.contracts.chat_doors import with_send
from nbagent.contracts.errors import ModelError, NbagentError, UsageError, describe_error
from nbagent.contracts.model import ModelInfo, ProviderConfig, Usage
from nbagent.contracts.ports import ChatClient, Cost
from nbagent.contracts.secrets import KeySource, SecretKey
from nbagent.providers.address import origin
from nbagent.providers.catalogue import find_provider, provider_names, split_model_id
from nbagent.providers.default_model import (
    choose_default_model,
    list_local_models,
    local_servers,
    with_provider,
)
from nbagent.providers.prices import context_tokens, cost_of
from nbagent.providers.provider import Provider
from nbagent.runtime import engine_loop
from nbagent.settings.options import RunOptions, Settings, checked_value
from nbagent.settings.sources import current_settings, provider_of

KeyStatus = Literal["sent", "function", "none", "missing"]
_LIST_TIMEOUT_S = 10.0
"""Deadline for a list of models if no timeout is set. Shorter than that of an answer: a person
waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """The model of a run, with its client and key."""

    model_id: str
    provider: str
    model: str
    base_url: str | None
    client: ChatClient
    why: str | None
    """Reason for this model; None if it was named."""
    key: KeyStatus
    """`sent` with requests, asked of a `function`, `none`, or `missing` although it is required."""
    extra_body: dict[str, Any] = field(repr=False)
    withheld_key: str = ""
    """Why a key of the environment is not sent, and how to send it."""

    def price(self, usage: Usage, model: str) -> Cost | None:
        """Cost by part; None when the price is unknown."""
        return cost_of(self.provider, model, usage, base_url=self.base_url)

    def context_tokens(self) -> int | None:
        """Size of the model's context by the price list; None if unknown."""
        return context_tokens(self.provider, self.model, base_url=self.base_url)


_clients: dict[tuple[Any, ...], ChatClient] = {}


_OFFLINE_WORDS = {
    **dict.fromkeys(("offline", "demo"), "offline:demo"),
    **dict.fromkeys(("walk", "workflow"), "offline:walk"),
}
"""What a person without a key means by a word that no provider has."""


def resolve_model(
    settings: Settings, *, need_key: bool = True, api_key: SecretKey | KeySource | None = None
) -> ResolvedModel:
    """Resolve the model of a run (None: the best that the environment offers) to a client.

    `api_key` is used instead of one from the environment; the caller answers for its server.

    Raises UsageError for an unknown provider, or if a key is needed and missing.
    """
    model, base_url, why = settings.model, settings.base_url, None
    if model is None:
        choice = choose_default_model(os.environ, base_url)
        model, why = choice.model_id, choice.why
        base_url = base_url or choice.base_url
    model_id = with_provider(model) if ":" not in model else model
    name, wire_model = split_model_id(model_id)
    provider = find_provider(name)
    if need_key and provider.missing_model and (problem := provider.missing_model(wire_model)):
        raise UsageError(problem)
    text = os.environ.get(settings.key_variable, "").strip() if settings.key_variable else ""
    overrides = ProviderConfig(
        api_key=api_key or (SecretKey(text) if text else None),
        base_url=base_url,
        organization_id=settings.organization_id,
        project_id=settings.project_id,
        timeout_s=settings.timeout_s,
        retries=settings.retries,
        headers=settings.headers or {},
        extra_body=settings.extra_body or {},
    )
    config = provider.resolve(overrides, os.environ)
    if settings.key_variable:  # only the key in that variable may be sent
        config = replace(config, api_key=overrides.api_key)
    # An address from the environment (OPENAI_BASE_URL) is stored in the record too, and may hold a
    # password, so it is checked like an option.
    checked_value("base_url", config.base_url)
    missing = _missing_key_variables(provider, config, settings.key_variable)
    if missing and need_key:
        if offline_model := _OFFLINE_WORDS.get(model.casefold()):
            raise UsageError(f"{model!r} is no model of {name}; did you mean {offline_model!r}?")
        raise UsageError(
            f"{name} needs a key: set {missing} in the environment before the kernel starts, "
            "give a function that returns it (Agent(…, api_key=FUNCTION)), "
            "or choose another server (base_url) or another model: offline:demo needs no key",
            code="LLM_AUTH_FAILED",
        )
    return ResolvedModel(
        model_id=model_id,
        provider=name,
        model=wire_model,
        base_url=config.base_url,
        client=_client(name, config),
        why=why,
        key="missing" if missing else _key_status(config),
        extra_body=config.extra_body,
        withheld_key=config.withheld_key,
    )


def _key_status(config: ProviderConfig) -> KeyStatus:
    if config.key is None:
        return "none"
    return "function" if isinstance(config.key, KeySource) else "sent"


def _missing_key_variables(
    provider: Provider, config: ProviderConfig, key_variable: str | None = None
) -> str:
    """Variables that may hold the missing key; empty if no key is missing."""
    # A server at another address (a gateway, vLLM) often needs no key.
    own_server = provider.is_default_server(config.base_url)
    needed = key_variable is not None or (provider.needs_key and own_server)
    if config.api_key is not None or not needed:
        return ""
    return key_variable or " or ".join(provider.key_variables)


def _client(name: str, config: ProviderConfig) -> ChatClient:
    key = config.key
    secret = hash(key.reveal()) if isinstance(key, SecretKey) else key
    plain = {f.name: getattr(config, f.name) for f in fields(config) if f.name != "api_key"}
    # The hash of the secret: a dict with keys in clear text would be one more place to leak.
    known = (name, sha_of(plain), secret)
    # Kept: a new client would have to open its connections again.
    if known not in _clients:
        _clients[known] = with_send(find_provider(name).open(config))
    return _clients[known]


def same_server(options: RunOptions, model: str | None, base_url: str | None) -> bool:
    """True if the options keep the server of a model: the same provider and address."""
    if options.model and model and provider_of(options.model) != provider_of(model):
        return False
    if not options.base_url:
        return True
    name = provider_of(with_provider(options.model or model or ""))
    usual = base_url or find_provider(name).default_base_url
    return origin(options.base_url) == origin(usual)


def resolve_settings(options: RunOptions, settings: Settings) -> Settings:
    """Settings of one run. Settings meant for one server are not applied to another one."""
    stays = same_server(options, settings.model, settings.base_url)
    rows = Settings.rows()
    usual = {
        n: value for n, value in settings.explicit.items() if stays or not rows[n].server_specific
    }
    return Settings(**usual).with_changes(
        **{n: v for n, v in options.explicit.items() if n in rows}
    )


# Lists of models


@dataclass(frozen=True, slots=True)
class ProviderModels:
    """The models of one provider, or the reason why they are unknown."""

    provider: str
    models: tuple[ModelInfo, ...] = ()
    reachable: bool = True
    why: str = ""
    """Reason why it was not asked, or how to list more models."""


listed_models: dict[str, list[str]] = {}
"""Models that each provider listed last, for completion."""


def list_models(
    provider: str | None = None, options: RunOptions | None = None
) -> list[ProviderModels]:
    """List the models of one provider, by `options`; without a name, of all that can be reached
    now.

    Raises UsageError for an unknown provider or a missing key, ModelError if it does not answer.
    """
    if provider is not None:
        return [_ask_provider(provider, options or RunOptions())]
    servers = local_servers(os.environ, current_settings().base_url)
    answers = list_local_models(servers)
    offers: list[ProviderModels] = []
    for name in dict.fromkeys((*provider_names(), *servers)):
        if name in answers:
            offers.append(_provider_models(name, answers[name]))
        elif name in servers:
            offers.append(
                ProviderModels(name, reachable=False, why=f"no server at {servers[name]}")
            )
        elif name == "offline":
            offers.append(_ask_provider(name, RunOptions()))
        else:
            offers.append(_unasked_provider(name))
    return offers


def _provider_models(name: str, models: tuple[ModelInfo, ...]) -> ProviderModels:
    listed_models[name] = [f"{name}:{model.id}" for model in models]
    return ProviderModels(name, models, why="" if models else "lists no models")


def _unasked_provider(name: str) -> ProviderModels:
    """State of a remote provider without contacting it: its key is set or missing."""
    settings = current_settings()
    # A configured address belongs to the provider of the configured model.
    mine = name == provider_of(with_provider(settings.model or ""))
    try:
        provider = find_provider(name)
        overrides = ProviderConfig(base_url=settings.base_url if mine else None)
        config = provider.resolve(overrides, os.environ)
    except NbagentError as error:  # a plug-in, or a provider without a usual address
        return ProviderModels(name, reachable=False, why=error.message)
    at_home = provider.is_default_server(config.base_url)
    models = (ModelInfo(id=provider.default_model),) if provider.default_model and at_home else ()
    if variables := _missing_key_variables(provider, config):
        why = f"no key; set {variables} in the environment before the kernel starts"
        return ProviderModels(name, models, reachable=False, why=why)
    return ProviderModels(name, models, why=f"%agent models {name} lists all of them")


def _ask_provider(name: str, options: RunOptions) -> ProviderModels:
    model = find_provider(name).default_model or "any"
    wait_s = options.timeout_s or _LIST_TIMEOUT_S
    settings = options.with_changes(model=f"{name}:{model}", timeout_s=wait_s)
    chosen = resolve_model(resolve_settings(settings, current_settings()))
    future = asyncio.run_coroutine_threadsafe(_list_with_timeout(chosen, wait_s), engine_loop())
    try:
        return _provider_models(name, future.result())
    finally:
        future.cancel()


async def _list_with_timeout(chosen: ResolvedModel, wait_s: float) -> tuple[ModelInfo, ...]:
    name = chosen.provider
    try:
        models = await asyncio.wait_for(chosen.client.list_models(), wait_s)
    except TimeoutError:
        problem = f"no list of models within {wait_s:g} s from {chosen.base_url or name}"
        raise ModelError(problem, code="LLM_TIMEOUT") from None
    except (NbagentError, asyncio.CancelledError):
        raise
    except BaseException as error:  # a plug-in's; SystemExit would end the engine
        problem = f"provider {name!r} cannot list its models: {describe_error(error)}"
        raise ModelError(f"{problem}; repair its package", code="LLM_BAD_RESPONSE") from error
    return tuple(model for model in models if model.id)
