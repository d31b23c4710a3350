"""Finding providers by name, splitting model ids, and which key may go to which server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nbagent.contracts.chat import ProviderConfig
from nbagent.contracts.errors import UsageError
from nbagent.providers.registry import find_provider, split_model_id

OPENAI = "https://api.openai.com/v1"


def test_providers_are_listed_without_being_imported() -> None:
    code = (
        "import sys; from nbagent.providers.registry import provider_names as names;"
        "print(*names(), 'nbagent.providers.exchange' in sys.modules, 'httpcore2' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *names, imported, http = shown.stdout.split()
    assert "openai" in names
    assert "http" not in names
    assert (imported, http) == ("False", "False")
    assert find_provider("openai").name == "openai"


def test_an_unknown_provider_names_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="Did you mean 'openai'"):
        find_provider("opnai")
    with pytest.raises(UsageError, match="no provider 'http'"):
        find_provider("http")


def test_model_ids_are_split_at_the_first_colon() -> None:
    assert split_model_id("openai:gpt-5.4") == ("openai", "gpt-5.4")
    assert split_model_id("openai:llama3:8b") == ("openai", "llama3:8b")


@pytest.mark.parametrize("text", ["gpt-5.4", "llama3:8b", "openai:", ""])
def test_a_model_id_without_a_provider_says_what_to_type(text: str) -> None:
    with pytest.raises(UsageError, match="openai:"):
        split_model_id(text)


@pytest.mark.parametrize(
    ("environ", "base_url", "key"),
    [
        ({"OPENAI_API_KEY": "key-of-openai"}, None, "key-of-openai"),
        ({"OPENAI_API_KEY": "key-of-openai"}, OPENAI, "key-of-openai"),
        ({"OPENAI_API_KEY": "key-of-openai"}, "http://127.0.0.1:1/v1", None),
        ({"OPENAI_API_KEY": "key-of-openai"}, "http://api.openai.com/v1", None),
        ({"OPENAI_API_KEY": "key-of-openai"}, "https://api.openai.com.evil.org/v1", None),
        ({"OPENAI_API_KEY": "key-of-openai", "LLM_API_KEY": "general"}, "https://a.org", "general"),
        (
            {"OPENAI_API_KEY": "key-of-proxy", "OPENAI_BASE_URL": "https://p/v1"},
            None,
            "key-of-proxy",
        ),
        ({"OPENAI_API_KEY": "key-of-proxy", "LLM_BASE_URL": "https://p/v1"}, None, None),
        ({"LLM_API_KEY": "general", "LLM_BASE_URL": "https://p/v1"}, None, "general"),
        ({"LLM_API_KEY": "general", "LLM_BASE_URL": "https://p/v1"}, "https://other/v1", None),
        ({"LLM_API_KEY": "general"}, None, "general"),
        ({"OPENAI_API_KEY": "  "}, None, None),
    ],
)
def test_a_key_goes_only_where_it_was_made_for(
    environ: dict[str, str], base_url: str | None, key: str | None
) -> None:
    resolved = find_provider("openai").resolve(ProviderConfig(base_url=base_url), environ)
    assert (resolved.api_key.reveal() if resolved.api_key else None) == key
    named = environ.get("OPENAI_BASE_URL") or environ.get("LLM_BASE_URL")
    assert resolved.base_url == (base_url or named or OPENAI)
