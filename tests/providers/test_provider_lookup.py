"""Finding providers by name, splitting model ids, and which key may go to which server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from servers.model_server import ModelServer, Reply

from nbagent.contracts.chat import ProviderConfig
from nbagent.contracts.errors import UsageError
from nbagent.providers.registry import find_provider, split_model_id

OPENAI = "https://api.openai.com/v1"


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


OTHER_PACKAGE = Path(__file__).parents[1] / "wires" / "other_package"
ASK_IT = """
import nbagent
from nbagent.providers.registry import provider_names
run = nbagent.Agent(model="otherwire:x", tools="none", retries=0).run("Hello?")
print(run.text, run.usage.completion_tokens, run.error and run.error.code, sep="|")
print("otherwire" in provider_names(), *nbagent.models("otherwire").id)
"""
LIST_THEM = """
import sys
from nbagent.providers.registry import provider_names
late = {"otherwire", "nbagent.providers.exchange", "httpcore2"}
print(*provider_names(), *(late & sys.modules.keys()))
"""
USE_IT = """
import sys
import nbagent
from nbagent.contracts.errors import NbagentError
from nbagent.notebook import doctor
from nbagent.notebook.listings import models_text
name = sys.argv[1]
for use in (nbagent.models, models_text, lambda name: nbagent.Agent(f"{name}:x").run("Hello?")):
    try:
        use(name)
    except NbagentError as error:
        print(error)
print("offline:demo" in models_text(None), "offline:demo" in set(nbagent.models().id))
print(models_text(None), doctor.report(), sep="\\n")
"""


def with_other_package(code: str, argument: str = "", **variables: str) -> list[str]:
    """What a Python prints in which the example package is installed."""
    path = os.pathsep.join([str(OTHER_PACKAGE), *sys.path])
    environ = {**os.environ, **variables, "PYTHONPATH": path}
    command = [sys.executable, "-c", code, argument]
    shown = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert not shown.returncode, shown.stderr
    return shown.stdout.splitlines()


def test_providers_are_listed_without_being_imported() -> None:
    (listed,) = with_other_package(LIST_THEM)
    names = listed.split()
    assert {"openai", "ollama", "offline", "otherwire"} < set(names)
    assert names == sorted(names)
    assert names.count("otherwire") == 1
    assert not [name for name in names if "http" in name or "nbagent" in name]


def test_a_wire_of_another_package_answers_a_run_and_is_listed() -> None:
    said = b'data: {"say": "Hello "}\n\ndata: {"say": "yourself."}\n\n'
    with ModelServer([Reply(raw=said + b'data: {"over": 2}\n\n'), Reply(raw=said)]) as server:
        place = {"OTHERWIRE_URL": server.url, "OTHERWIRE_KEY": "key-of-another-wire"}
        answered, listed = with_other_package(ASK_IT, **place)
        cut, _ = with_other_package(ASK_IT, **place)
    assert answered == "Hello yourself.|2|None"
    assert listed == "True otherwire:little"
    assert cut == "Hello yourself.|0|LLM_BAD_RESPONSE"
    asked = server.requests[0]
    assert (asked.path, asked.headers["x-other-key"]) == ("/v1/talk", "key-of-another-wire")
    assert (asked.body["model"], asked.body["lines"]) == ("x", [["user", "Hello?"]])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("brokenwire", r"'brokenwire' \(otherwire.missing:PROVIDER\) cannot be loaded: .*repair"),
        ("endingwire", r"'endingwire' \(.*\) cannot be loaded: SystemExit: usage: .*; repair or"),
        ("oddwire", r"'oddwire' \(.*\) gave .*, not a Provider"),
        ("closedwire", r"'closedwire' \(.*\) cannot be opened: KeyError: .*_LICENCE'; repair or"),
        ("emptywire", r"'emptywire' \(.*\) gave NoneType, not a client"),
        ("silentwire", "'silentwire' cannot list its models: SystemExit: no list; .*repair"),
        ("otherwir", "Did you mean 'otherwire'"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_one_clear_error(name: str, words: str) -> None:
    shown = with_other_package(USE_IT, name)
    errors = shown[: shown.index("True True")]
    # A provider that cannot list its models answers all the same.
    assert len(errors) == (2 if name == "silentwire" else 3)
    assert all(re.search(words, error) for error in errors)
    seen = "\n".join(shown)
    assert "brokenwire: provider 'brokenwire' (otherwire.missing:PROVIDER) cannot be loaded" in seen
    assert re.search("provider +provider 'endingwire'", seen), "the doctor says it too"
