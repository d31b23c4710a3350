"""Finding providers by name, splitting model ids, and which key may go to which server."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from servers.hostile_server import HostileServer
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.contracts.model import ProviderConfig
from nbagent.contracts.secrets import SecretKey
from nbagent.providers import default_model
from nbagent.providers.catalogue import find_provider, split_model_id

OPENAI = "https://api.openai.com/v1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "openai:") for text in ("gpt-5.4", "llama3:8b", "openai:", "")),
        ("opnai:x", "Did you mean 'openai'"),
        ("http://x", "no provider 'http'"),
    ],
)
def test_a_model_id_without_a_provider_says_what_to_type(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find_provider(split_model_id(text)[0])
    assert split_model_id("openai:llama3:8b") == ("openai", "llama3:8b")


OWN = {"OPENAI_API_KEY": "own"}
PROXY = {"OPENAI_API_KEY": "own", "OPENAI_BASE_URL": "https://p/v1"}
GENERAL = {"LLM_API_KEY": "general", "LLM_BASE_URL": "https://p/v1"}
AZURE = {"AZURE_OPENAI_API_KEY": "own", "AZURE_OPENAI_ENDPOINT": "https://named.example"}
OLLAMA = {"OLLAMA_API_KEY": "own"}
# provider, environment, base URL that was given: the key that goes there.
KEYS: list[tuple[str, dict[str, str], str | None, str | None]] = [
    ("openai", OWN, None, "own"),
    ("openai", OWN, OPENAI, "own"),
    ("openai", OWN, "http://127.0.0.1:1/v1", None),
    ("openai", OWN, "https://api.openai.com.evil.org/v1", None),
    ("openai", {**OWN, "LLM_API_KEY": "general"}, "https://a.org", "general"),
    ("openai", PROXY, None, "own"),
    ("openai", {**OWN, "LLM_BASE_URL": "https://p/v1"}, None, None),
    ("openai", GENERAL, None, "general"),
    ("openai", {"OPENAI_API_KEY": "  "}, None, None),
    ("azure", AZURE, "https://r.openai.azure.com", "own"),
    ("azure", AZURE, "https://r.services.ai.azure.com/openai/v1", "own"),
    ("azure", AZURE, "https://named.example/azure", "own"),
    ("azure", AZURE, "http://r.openai.azure.com", None),
    ("azure", AZURE, "https://vm.westeurope.cloudapp.azure.com", None),
    ("azure", AZURE, "https://openai.azure.com.example", None),
    ("ollama", OLLAMA, "https://ollama.com", "own"),
    ("ollama", OLLAMA, None, "own"),
    ("ollama", OLLAMA, "http://ollama.com", None),
    ("ollama", OLLAMA, "https://notollama.com", None),
]


@pytest.mark.parametrize(("provider", "environ", "base_url", "key"), KEYS)
def test_a_key_goes_only_where_it_was_made_for(
    provider: str, environ: dict[str, str], base_url: str | None, key: str | None
) -> None:
    resolved = find_provider(provider).resolve(ProviderConfig(base_url=base_url), environ)
    assert (resolved.key.reveal() if isinstance(resolved.key, SecretKey) else None) == key
    if provider == "openai":
        named = environ.get("OPENAI_BASE_URL") or environ.get("LLM_BASE_URL")
        assert resolved.base_url == (base_url or named or OPENAI)


XAI = {"XAI_API_KEY": "xai-0123456789abcdef", "LLM_API_KEY": "llm-0123456789abcdef"}
# id: environment, provider, and the variable that is named.
WITHHELD: dict[str, tuple[dict[str, str], str, str]] = {
    "a provider's own": (XAI, "xai", "XAI_API_KEY"),
    "the general one is bound": (
        {"LLM_API_KEY": "llm-0123456789abcdef", "LLM_BASE_URL": "https://p/v1"},
        "openai-compatible", "LLM_API_KEY"),
    "none is set": ({}, "xai", ""),
}  # fmt: skip


@pytest.mark.parametrize(("environ", "provider", "variable"), WITHHELD.values(), ids=WITHHELD)
def test_a_key_that_is_not_sent_to_another_server_is_named_with_the_way_to_send_it(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], provider: str, variable: str
) -> None:
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    refusal = Reply(status=401, error={"error": {"message": "no"}})
    with ModelServer([refusal, "Yes."]) as server:
        agent = nbagent.Agent(f"{provider}:m", base_url=server.url)
        error = agent.run("Hi").error
        assert error
        said = f"{variable} is not sent to another server than " if variable else "None was sent: "
        assert said in error.message
        way = f"(--key-variable {variable or 'NAME'})"
        assert way in error.message
        assert ("set LLM_API_KEY" in error.message) is False
        assert (way in str(agent.dry_run("Hi"))) == bool(variable)
        assert server.requests[-1].headers.get("authorization") is None
        if variable:
            assert agent.run("Hi", key_variable=variable).ok
            assert server.requests[-1].headers["authorization"] == f"Bearer {environ[variable]}"


OTHER_PACKAGE = Path(__file__).parents[1] / "wires" / "other_package"
ASK_IT = """
import sys
import nbagent
from nbagent.providers.catalogue import provider_names
name = sys.argv[1]
run = nbagent.Agent(model=f"{name}:x", tools="none", retries=0).run("Hello?")
print(run.text, run.usage.completion_tokens, run.error and run.error.code, sep="|")
print(name in provider_names(), *nbagent.models(name).id)
"""
ASK_STRANGE = """
import nbagent
run = nbagent.Agent(model="strangewire:x", tools="none", retries=0).run("Hello?")
print(run.error.message)
"""
ASK_OLDER = """
import asyncio, sys
import nbagent
@nbagent.tool
def population(city: str) -> int:
    "People."
    return 700_000
async def chunks(client):
    return [chunk async for chunk in client.chat_stream("Hello?")]
for name in sys.argv[1].split():
    for stream in (True, False):
        run = nbagent.Agent(name, tools=[population], stream=stream).run("Hello?")
        turn = run.turns[-1]
        print(run.text, len(run.turns), turn.response.reasoning, *turn.notices, sep="|")
    client = nbagent.client(name)
    *pieces, last = asyncio.run(chunks(client))
    text = "".join(chunk.content for chunk in pieces)
    print(asyncio.run(client.chat("Hello?")).content, text, last.response.content, sep="|")
"""
LIST_THEM = """
import sys
from nbagent.providers.catalogue import provider_names
late = {"otherwire", "nbagent.providers.client", "httpcore2"}
print(*provider_names(), *(late & sys.modules.keys()))
"""
USE_THEM = """
import json, sys
import nbagent
from nbagent.contracts.errors import NbagentError
from nbagent.notebook import reports
errors = {name: [] for name in sys.argv[1].split()}
for name in errors:
    ask = lambda name: nbagent.Agent(f"{name}:x").run("Hello?")
    for use in (nbagent.models, reports.models, ask):
        try:
            use(name)
        except NbagentError as error:
            errors[name].append(str(error))
    listed = "offline:demo" in str(reports.models()), "offline:demo" in set(nbagent.models().id)
    errors[name].append(listed)
print(json.dumps([errors, str(reports.models()), str(reports.doctor())]))
"""


def with_other_package(code: str, argument: str = "", **variables: str) -> list[str]:
    """Lines printed by a Python in which the example package is installed."""
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


@pytest.mark.parametrize("name", ["otherwire", "openedwire"])
def test_a_wire_of_another_package_answers_a_run_and_is_listed(name: str) -> None:
    said = b'data: {"say": "Hello "}\n\ndata: {"say": "yourself."}\n\n'
    with ModelServer([Reply(raw=said + b'data: {"over": 2}\n\n'), Reply(raw=said)]) as server:
        place = {"OTHERWIRE_URL": server.url, "OTHERWIRE_KEY": "key-of-another-wire"}
        answered, listed = with_other_package(ASK_IT, name, **place)
        cut, _ = with_other_package(ASK_IT, name, **place)
    assert answered == "Hello yourself.|2|None"
    assert listed == f"True {name}:little"
    assert cut == "Hello yourself.|0|LLM_BAD_RESPONSE"
    asked = server.requests[0]
    assert (asked.path, asked.headers["x-other-key"]) == ("/v1/talk", "key-of-another-wire")
    assert (asked.body["model"], asked.body["lines"]) == ("x", [["user", "Hello?"]])


def test_a_parser_that_yields_anything_else_is_an_error_of_its_package() -> None:
    with ModelServer([Reply(raw=b'data: {"say": "Hello."}\n\n')]) as server:
        (shown,) = with_other_package(ASK_STRANGE, OTHERWIRE_URL=server.url)
    assert "'otherwire' of the package 'otherwire' failed" in shown
    assert "yielded str, which is no WireDelta" in shown
    assert "please report it" not in shown


def test_clients_of_packages_written_before_deltas_answer_in_chunks() -> None:
    chunks = "In chunks.|2|None|an older client"
    assert with_other_package(ASK_OLDER, "olderwire:x wholewire:x") == [
        *(chunks, chunks, "In chunks.|In chunks|In chunks."),
        *(chunks, "Whole.|1|None|asked whole", "Whole.|In chunks|In chunks."),
    ]


BROKEN = {
    "brokenwire": r"'brokenwire' \(otherwire.missing:PROVIDER\) cannot be loaded: .*repair",
    "endingwire": r"'endingwire' \(.*\) cannot be loaded: SystemExit: usage: .*; repair or",
    "oddwire": r"'oddwire' \(.*\) gave .*, not a Provider",
    "closedwire": r"'closedwire' \(.*\) cannot be opened: KeyError: .*_LICENCE'; repair or",
    "pathlesswire": r"the wire otherwire\.broken\.wires\.PathlessWire has no path; write endpoint",
    "abstractwire": r"'abstractwire' .* cannot be opened: TypeError: .* abstract .*params.*repair",
    "silentwire": "'silentwire' cannot list its models: SystemExit: no list; .*repair",
    "otherwir": "Did you mean 'otherwire'",
}


@pytest.fixture(scope="module")
def errors_and_reports() -> tuple[dict[str, list[Any]], str, str]:
    """The errors of each broken provider, and both reports, of one Python that used them all."""
    (printed,) = with_other_package(USE_THEM, " ".join(BROKEN))
    return json.loads(printed)


@pytest.mark.parametrize(("name", "words"), BROKEN.items())
def test_an_entry_point_that_cannot_be_used_is_one_clear_error(
    name: str, words: str, errors_and_reports: tuple[dict[str, list[Any]], str, str]
) -> None:
    by_name, models, doctor = errors_and_reports
    *errors, the_others_are_listed = by_name[name]
    assert the_others_are_listed == [True, True]
    # A provider that cannot list its models answers all the same.
    assert len(errors) == (2 if name == "silentwire" else 3)
    assert all(re.search(words, error) for error in errors)
    assert "provider 'brokenwire' (otherwire.missing:PROVIDER) cannot be loaded" in models
    assert re.search("provider +provider 'endingwire'", doctor), "the doctor says it too"


# Servers of this machine.


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_probe_that_ends_while_it_connects_leaves_no_open_socket(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HostileServer() as server, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        url = server.url("it").replace("127.0.0.1", host)
        for n in range(40):
            # One of them ends in the moment in which a connection is made, on any machine.
            monkeypatch.setattr(default_model, "_PROBE_S", 0.0002 * n)
            default_model.list_local_models(
                dict.fromkeys(("ollama", "vllm", "lmstudio", "llamacpp"), url)
            )
        gc.collect()
    assert not [str(it.message) for it in warned]
