"""Cost of a response in dollars, from the tables inside genai-prices. Asks no server.

`genai_prices` starts no download by itself; only its `UpdatePrices` would.
"""

from __future__ import annotations

from typing import Any

from nbagent.contracts.model import Usage
from nbagent.contracts.ports import Cost
from nbagent.providers.address import is_loopback
from nbagent.providers.catalogue import known_provider


def cost_of(
    provider: str, model: str, usage: Usage | None, base_url: str | None = None
) -> Cost | None:
    """Cost of one response; None if the price is unknown, zero from servers that run the model.

    A server of this machine may be a gateway to a paid model: only its provider says that it is
    none (`vllm:`, `ollama:`, …).

    The first call imports the tables (about 0.2 s): call it after a response, never before.
    """
    if _is_free(provider, model, base_url):
        return Cost()
    if is_loopback(base_url):
        return None  # No table has its prices: do not load them.
    try:
        return _calculate(provider, model, usage, base_url) if usage else None
    except Exception:
        # LookupError for an unknown model or provider. ValueError if the cached tokens exceed the
        # prompt. A price is additional information: no fault in it may fail a turn.
        return None


def context_tokens(provider: str, model: str, base_url: str | None = None) -> int | None:
    """Size of a model's context window in tokens, from the same tables; None if unknown."""
    if _is_free(provider, model, base_url) or is_loopback(base_url):
        return None
    try:
        return _price_row(provider, model, base_url)[1].context_window
    except Exception:
        return None  # As in `cost_of`: a missing fact must not fail a run.


def _price_row(provider: str, model: str, base_url: str | None) -> tuple[Any, Any]:
    from genai_prices.data_snapshot import get_snapshot

    # The server decides the price, not the wire format: `openai:` at another base URL is not
    # OpenAI's price.
    row = known_provider(provider)
    seller = None if base_url else (row and row.price_name) or provider
    name = model.removeprefix("models/")  # Gemini lists its models with this prefix.
    return get_snapshot().find_provider_model(name, None, seller, base_url)


def _calculate(provider: str, model: str, usage: Usage, base_url: str | None) -> Cost | None:
    from genai_prices import Usage as PricedUsage

    cache_tokens = usage.cached_tokens + usage.cache_write_tokens
    prompt = max(usage.prompt_tokens, cache_tokens)
    tokens = PricedUsage(
        input_tokens=prompt,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.completion_tokens,
    )
    seller, listed = _price_row(provider, model, base_url)
    price = listed.calc_price(tokens, seller)
    if price.model_price.input_mtok is None and not model.endswith(":free"):
        return None  # A table row without prices is incomplete, not free.
    # Price per token without a cache. The whole prompt is priced, because its length decides the
    # price tier.
    uncached = float(price.model_price.calc_price(PricedUsage(input_tokens=prompt))["input_price"])
    per_token = uncached / prompt if prompt else 0.0
    fresh = per_token * (prompt - cache_tokens)
    cached = float(price.input_price) - fresh
    return Cost(
        input_usd=fresh,
        cached_usd=cached,
        output_usd=float(price.total_price - price.input_price),
        saved_usd=per_token * cache_tokens - cached,
    )


def _is_free(provider: str, model: str, base_url: str | None) -> bool:
    row = known_provider(provider)
    return row is not None and row.costs_nothing(model, base_url)
