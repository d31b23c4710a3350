"""What a response cost in dollars, from genai-prices' own tables. Asks no server."""

from __future__ import annotations

from typing import Any

from nbagent.contracts.model import Usage
from nbagent.contracts.ports import Cost
from nbagent.providers.address import is_loopback

_FREE_PROVIDERS = frozenset({"offline", "ollama", "vllm", "lmstudio", "llamacpp", "local"})
_PROVIDER_IDS = {"gemini": "google", "xai": "x-ai", "moonshot": "moonshotai"}
"""Where the tables call a provider by another name."""


def cost_of(
    provider: str, model: str, usage: Usage | None, base_url: str | None = None
) -> Cost | None:
    """The price of one response; None when it is unknown, nothing for models of this machine.

    The first call imports the tables (some 0.2 s): call it after a response, never before.
    """
    if _is_free(provider, base_url):
        return Cost()
    try:
        return _priced(provider, model, usage, base_url) if usage else None
    except Exception:
        # LookupError for an unknown model; a table that cannot be read must not cost a turn.
        return None


def context_tokens(provider: str, model: str, base_url: str | None = None) -> int | None:
    """How many tokens a model takes, as the same tables have it; None when they do not."""
    if _is_free(provider, base_url):
        return None
    try:
        return _listed(provider, model, base_url)[1].context_window
    except Exception:
        return None  # As with a price: what is not known is not said.


def _listed(provider: str, model: str, base_url: str | None) -> tuple[Any, Any]:
    from genai_prices.data_snapshot import get_snapshot

    # The server decides the price, not the dialect that it speaks.
    seller = None if base_url else _PROVIDER_IDS.get(provider, provider)
    name = model.removeprefix("models/")  # As Gemini lists them.
    return get_snapshot().find_provider_model(name, None, seller, base_url)


def _priced(provider: str, model: str, usage: Usage, base_url: str | None) -> Cost | None:
    from genai_prices import Usage as PricedUsage

    of_cache = usage.cached_tokens + usage.cache_write_tokens
    prompt = max(usage.prompt_tokens, of_cache)
    tokens = PricedUsage(
        input_tokens=prompt,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.completion_tokens,
    )
    seller, listed = _listed(provider, model, base_url)
    price = listed.calc_price(tokens, seller)
    if price.model_price.input_mtok is None and not model.endswith(":free"):
        return None  # A row without prices is one that nobody filled in.
    # As if no cache had been there: the length of the prompt decides the tier of the price.
    uncached = float(price.model_price.calc_price(PricedUsage(input_tokens=prompt))["input_price"])
    per_token = uncached / prompt if prompt else 0.0
    fresh = per_token * (prompt - of_cache)
    cached = float(price.input_price) - fresh
    return Cost(
        input_usd=fresh,
        cached_usd=cached,
        output_usd=float(price.total_price - price.input_price),
        saved_usd=per_token * of_cache - cached,
    )


def _is_free(provider: str, base_url: str | None) -> bool:
    return provider in _FREE_PROVIDERS or is_loopback(base_url)
