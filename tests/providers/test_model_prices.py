"""What a response costs."""

from __future__ import annotations

import pytest

from nbagent.contracts.chat import Usage
from nbagent.providers.prices import context_tokens, cost_usd

USAGE = Usage(prompt_tokens=1000, completion_tokens=100, total_tokens=1100, cached_tokens=200)


def test_a_known_model_has_a_price_and_cached_tokens_are_cheaper() -> None:
    price = cost_usd("openai", "gpt-5.4", USAGE)
    dearer = cost_usd("openai", "gpt-5.4", USAGE.model_copy(update={"cached_tokens": 0}))
    assert price
    assert dearer
    assert 0 < price < dearer
    assert cost_usd("openai", "gpt-5.4", USAGE, "https://api.openai.com/v1") == price


@pytest.mark.parametrize("url", ["https://llm.example.org/v1", "::not a url"])
def test_an_unknown_model_or_server_has_no_price(url: str) -> None:
    assert cost_usd("openai", "no-such-model", USAGE) is None
    assert cost_usd("nobody", "gpt-5.4-x", USAGE) is None
    assert cost_usd("openai", "gpt-5.4", USAGE, url) is None
    assert cost_usd("openai", "gpt-5.4", None) is None


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "localhost:1234", "http://[::1]:1/v1"])
def test_this_machine_and_offline_models_are_free(url: str) -> None:
    assert cost_usd("openai", "gpt-5.4", USAGE, url) == 0.0
    assert cost_usd("offline", "demo", None) == 0.0


def test_odd_usage_never_raises() -> None:
    odd = Usage(prompt_tokens=0, completion_tokens=0, cached_tokens=500)
    assert cost_usd("openai", "gpt-5.4", odd) is not None


def test_the_price_list_tells_what_known_models_take() -> None:
    assert (context_tokens("openai", "gpt-4o") or 0) >= 100_000
    assert context_tokens("openai", "no-such-model-at-all") is None
    assert context_tokens("openai", "gpt-4o", "http://127.0.0.1:8000/v1") is None
    assert context_tokens("offline", "demo") is None
