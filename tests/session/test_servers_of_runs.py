"""Which server a run asks, with which key, headers and fields, and what a record keeps of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.providers.offline import script
from nbagent.settings.sources import current_settings, setting_origins

TENANT = "tenant-4711-of-the-person"
KEY = "sk-0123456789abcdef0123"


@pytest.fixture
def servers() -> Iterator[tuple[ModelServer, ModelServer]]:
    with ModelServer() as first, ModelServer() as second:
        yield first, second


def everything(server: ModelServer) -> dict[str, Any]:
    return {
        "base_url": server.url,
        "key_variable": "MY_KEY",
        "organization_id": "org-1",
        "project_id": "proj-1",
        "headers": {"X-Tenant": TENANT},
        "extra_body": {"seed": 7, "user": TENANT},
        "retries": 0,
    }


def test_all_of_a_configuration_reaches_the_server_from_each_door(
    servers: tuple[ModelServer, ModelServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    server = servers[0]
    given = everything(server)
    nbagent.Agent("openai:m", **given).run("Call.")
    nbagent.configure(**given)
    nbagent.Agent("openai:m").run("Configured.")
    nbagent.configure(**dict.fromkeys(given))
    texts = {**given, "headers": f'{{"X-Tenant": "{TENANT}"}}'}
    texts["extra_body"] = f'{{"seed": 7, "user": "{TENANT}"}}'
    for name, value in texts.items():
        monkeypatch.setenv(f"NBAGENT_{name.upper()}", str(value))
    nbagent.Agent("openai:m").run("Environment.")
    assert len(server.requests) == 3
    for request in server.requests:
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert request.headers["openai-organization"] == "org-1"
        assert request.headers["openai-project"] == "proj-1"
        assert request.headers["x-tenant"] == TENANT
        assert (request.body["seed"], request.body["user"]) == (7, TENANT)


def test_what_differs_makes_a_client_of_its_own_and_retries_come_after_the_first() -> None:
    fault = Reply(status=503, error={"error": {"message": "busy"}}, headers={"Retry-After": "0"})
    with ModelServer(["A.", "B.", "A.", fault, fault, fault]) as server:
        for tenant in ("a", "b", "a"):
            nbagent.Agent("openai:m", base_url=server.url, headers={"X-T": tenant}).run("Go.")
        assert [request.headers["x-t"] for request in server.requests] == ["a", "b", "a"]
        for retries, requests in (0, 4), (1, 6):
            run = nbagent.Agent("openai:m", base_url=server.url, retries=retries).run("Go.")
            assert (run.ok, len(server.requests)) == (False, requests)


def test_a_variable_that_is_not_set_is_one_clear_error() -> None:
    agent = nbagent.Agent("openai:m", base_url="http://127.0.0.1:1/v1", key_variable="MY_KEY")
    with pytest.raises(UsageError, match=r"^LLM_AUTH_FAILED: openai needs a key: set MY_KEY"):
        agent.run("Go.")
    assert agent.dry_run("Go.").key == "missing"


def test_the_server_stays_with_the_conversation_and_another_one_is_said(
    servers: tuple[ModelServer, ModelServer],
) -> None:
    first, second = servers
    run = nbagent.Agent("openai:a", base_url=first.url).run("Go.")
    for child in (run.fork("C01", model="openai:a"), run.resume("More.", model="openai:b")):
        assert (child.record.base_url, child.record.notices) == (first.url, ())
    assert [body["model"] for body in first.bodies] == ["a", "a", "b"]
    for same in (first.url.removesuffix("/v1"), f"{first.url}/chat/completions"):
        assert run.resume("More.", base_url=same).record.notices == ()
    moved = run.resume("Elsewhere.", base_url=second.url)
    assert moved.record.notices == (f"The server changed: {first.url} before, {second.url} now.",)
    assert len(second.requests) == 1


def test_with_another_provider_or_address_nothing_that_was_meant_for_the_server_goes_along(
    servers: tuple[ModelServer, ModelServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    first, second = servers
    run = nbagent.Agent("openai:m", **everything(first)).run("Go.")
    moved = run.resume("Elsewhere.", base_url=second.url)
    (request,) = second.requests
    assert not {"authorization", "x-tenant", "openai-project"} & request.headers.keys()
    assert "user" not in request.body
    other = script(["One."])
    offline = run.resume("Offline.", model=other)
    assert offline.record.base_url is None
    assert [text for text in offline.record.notices if text.startswith("The server changed")]
    for child in (moved, offline):
        assert not {"headers", "extra_body", "key_variable"} & child.record.options.keys()


def test_settings_for_one_server_do_not_follow_a_call_to_another(
    servers: tuple[ModelServer, ModelServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    first, second = servers
    nbagent.configure(model="openai:m", **everything(first))
    nbagent.Agent(base_url=second.url).run("Go.")
    assert not {"authorization", "x-tenant"} & second.requests[0].headers.keys()
    assert nbagent.Agent(script(["One."])).run("Go.").record.base_url is None


def test_values_of_headers_and_extra_fields_are_shown_and_kept_nowhere(
    servers: tuple[ModelServer, ModelServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    agent = nbagent.Agent("openai:m", **everything(servers[0]))
    first = agent.run(f"Is {KEY} the key?")
    assert KEY not in first.record.model_dump_json() + repr(servers[0].bodies)
    nbagent.configure(headers={"X-Tenant": TENANT}, extra_body={"user": TENANT})
    run = agent.run("Go.")
    assert run.record.options["headers"] == {"X-Tenant": "***"}
    assert run.record.options["extra_body"] == {"seed": "***", "user": "***"}
    dry = agent.dry_run("Go.")
    assert dry.body["user"] == "***"
    shown = [
        run.record.model_dump_json(),
        repr(agent.options),
        repr(current_settings()),
        repr(setting_origins()),
    ]
    frames: list[Any] = [nbagent.runs(), nbagent.turns()]
    shown += [str(dry), repr(dry), *(frame.to_csv() for frame in frames)]
    for text in shown:
        assert TENANT not in text
    assert "headers={'X-Tenant': '***'}" in repr(agent.options)


def test_a_run_that_goes_on_in_this_process_has_its_headers_and_later_asks_for_them(
    servers: tuple[ModelServer, ModelServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers[0]
    options: dict[str, Any] = {"base_url": server.url, "headers": {"X-Tenant": TENANT}}
    run = nbagent.Agent("openai:m", **options).run("Go.")
    run.resume("More.").resume("And more.")
    assert [request.headers["x-tenant"] for request in server.requests] == [TENANT] * 3
    code = (
        f"import nbagent\nrun = nbagent.open_run({run.id!r})\n"
        f"run.resume('More.', headers={{'X-Tenant': {TENANT!r}}})\n"
        "try: run.resume('More.')\nexcept nbagent.UsageError as error: print(error)"
    )
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "that run had headers (X-Tenant), whose values are never stored" in said
    assert "give them again: headers={…}" in said
    assert server.requests[-1].headers["x-tenant"] == TENANT
    assert len(server.requests) == 4
