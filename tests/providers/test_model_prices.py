"""Cost of a response."""

from __future__ import annotations

import pytest

from nbagent.contracts.model import Usage
from nbagent.contracts.ports import Cost
from nbagent.providers.prices import context_tokens, cost_of

USAGE = Usage(prompt_tokens=1000, completion_tokens=100, total_tokens=1100, cached_tokens=200)
WRITES = USAGE.model_copy(update={"cache_write_tokens": 300})


@pytest.mark.parametrize(
    ("provider", "model", "per_mtok"),
    [
        # Input, cached reads, cache writes, output: dollars for a million tokens, as listed.
        ("anthropic", "claude-sonnet-4-5-20250929", (3, 0.3, 3.75, 15)),
        # No price of their own for writes: they are input.
        ("openai", "gpt-5.4-2026-03-05", (2.5, 0.25, 2.5, 15)),
        # One that costs the same at every hour; others are cheaper at night.
        ("deepseek", "deepseek-v3.1-terminus", (0.27, 0.13, 0.27, 0.95)),
        ("openrouter", "anthropic/claude-sonnet-4.5", (3, 0.3, 3.75, 15)),
    ],
)
def test_the_cost_is_the_sum_of_parts_that_have_each_their_price(
    provider: str, model: str, per_mtok: tuple[float, ...]
) -> None:
    counts = (500, 200, 300, 100)
    expected = [n * price / 1e6 for n, price in zip(counts, per_mtok, strict=True)]
    cost = cost_of(provider, model, WRITES)
    assert cost is not None
    found = (cost.input_usd, cost.cached_usd, cost.output_usd)
    fresh, read, written, output = expected
    assert found == pytest.approx((fresh, read + written, output))
    uncached = 500 * per_mtok[0] / 1e6
    assert cost.saved_usd == pytest.approx(uncached - read - written)
    assert cost.total_usd == pytest.approx(sum(expected))


def test_the_tables_know_how_much_a_model_takes() -> None:
    assert context_tokens("anthropic", "claude-sonnet-4-5") == 200_000
    assert context_tokens("deepseek", "deepseek-chat", "https://api.deepseek.com") == 64_000
    assert context_tokens("ollama", "qwen3") is None


def test_a_long_prompt_is_priced_by_its_tier_in_every_part() -> None:
    long = Usage(prompt_tokens=300_000, cached_tokens=100_000, cache_write_tokens=100_000)
    # 0.60 of input, 0.06 of cached reads, 0.75 of cache writes.
    cost = cost_of("anthropic", "claude-sonnet-4-5", long)
    assert cost is not None
    assert (cost.input_usd, cost.cached_usd) == pytest.approx((0.60, 0.81))


GROQ = cost_of("groq", "openai/gpt-oss-120b", USAGE)
OPENAI = cost_of("openai", "gpt-5.4", USAGE)
# provider, model, server: the cost, where an unknown price is never zero.
SERVERS: list[tuple[str, str, str | None, Cost | None]] = [
    ("openai", "openai/gpt-oss-120b", "https://api.groq.com/openai/v1", GROQ),
    ("azure", "gpt-5.4", "https://mine.openai.azure.com/openai/v1", OPENAI),
    ("openai", "no-such-model", None, None),
    ("nobody", "gpt-5.4-x", None, None),
    ("openai", "gpt-5.4", "https://llm.example.org/v1", None),
    ("openai", "gpt-5.4", "::not a url", None),
    ("google", "gemma-3", None, None),  # listed without prices
    *(
        ("openai", "gpt-5.4", url, None)  # it may be a gateway to a paid model
        for url in ("http://127.0.0.1:8000/v1", "localhost:1234", "http://[::1]:1/v1")
    ),
    ("vllm", "gpt-5.4", "http://127.0.0.1:8000/v1", Cost()),
    ("ollama", "gpt-oss:120b-cloud", None, None),
    ("ollama", "glm-4.6:cloud", "http://127.0.0.1:11434", None),
    ("ollama", "gpt-oss:120b", "https://ollama.com", None),
    *(
        (served, "qwen3", None, Cost())
        for served in ("offline", "ollama", "vllm", "lmstudio", "llamacpp", "local")
    ),
]


@pytest.mark.parametrize(("provider", "model", "url", "cost"), SERVERS)
def test_the_server_decides_the_price_and_only_one_that_runs_the_model_is_free(
    provider: str, model: str, url: str | None, cost: Cost | None
) -> None:
    assert cost_of(provider, model, USAGE, url) == cost
    assert GROQ
    assert OPENAI
    assert cost_of("openai", "gpt-5.4", None) is None
    for odd in (
        Usage(prompt_tokens=0, completion_tokens=0, cached_tokens=500),
        Usage(prompt_tokens=10, cached_tokens=8, cache_write_tokens=8),
    ):
        assert cost_of("openai", "gpt-5.4", odd), "odd usage never raises"
