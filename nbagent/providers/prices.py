"""What a response cost in dollars, from genai-prices' own tables. Asks no server."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from nbagent.contracts.chat import Usage
from nbagent.providers.base import is_loopback

_FREE_PROVIDERS = frozenset({"offline", "ollama", "local"})
_PROVIDER_IDS = {"gemini": "google", "xai": "x-ai", "moonshot": "moonshotai"}


def cost_usd(
    provider: str, model: str, usage: Usage | None, base_url: str | None = None
) -> float | None:
    """The price of one response; None when it is unknown, 0.0 for models of this machine.

    The first call imports the tables (some 0.2 s): call it after a response, never before.
    """
    if provider in _FREE_PROVIDERS or _is_local(base_url):
        return 0.0
    if usage is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _priced(provider, model, usage, base_url)
    except Exception:
        # LookupError for an unknown model; a table that cannot be read must not cost a turn.
        return None


def context_tokens(provider: str, model: str, base_url: str | None = None) -> int | None:
    """How many tokens a model takes, as the same tables have it; None when they do not."""
    if provider in _FREE_PROVIDERS or _is_local(base_url):
        return None
    from genai_prices.data_snapshot import get_snapshot

    where = None if base_url else _PROVIDER_IDS.get(provider, provider)
    try:
        _, found = get_snapshot().find_provider_model(model, None, where, base_url)
    except Exception:
        return None  # as with a price: what is not known is not said
    return found.context_window


def _priced(provider: str, model: str, usage: Usage, base_url: str | None) -> float:
    from genai_prices import Usage as PricedUsage
    from genai_prices import calc_price

    tokens = PricedUsage(
        input_tokens=max(usage.prompt_tokens, usage.cached_tokens),
        cache_read_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
    )
    where: dict[str, Any] = {"provider_id": _PROVIDER_IDS.get(provider, provider)}
    if base_url:
        # The server decides the price, not the dialect that it speaks.
        where = {"provider_api_url": base_url}
    return float(calc_price(tokens, model, **where).total_price)


@lru_cache(maxsize=64)
def _is_local(base_url: str | None) -> bool:
    if not base_url:
        return False
    try:
        host = urlsplit(base_url if "://" in base_url else f"http://{base_url}").hostname
    except ValueError:
        return False
    return is_loopback(host or "")
