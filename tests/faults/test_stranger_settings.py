"""What one provider's server is given goes to no other, whoever names another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.model_server import ModelServer, Reply

import nbagent

MINE = {
    "key_variable": "WORK_KEY",
    "headers": '{ X-Corp = "corporate-secret" }',
    "extra_body": '{ team = "blue" }',
}


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModelServer]:
    """A server that is not the person's, which the environment calls DeepSeek's."""
    monkeypatch.setenv("WORK_KEY", "sk-work-0123456789abcdef")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    with ModelServer([Reply(text="Hello.")]) as server:
        monkeypatch.setenv("DEEPSEEK_BASE_URL", server.url)
        yield server


def given_to(server: ModelServer) -> str:
    (request,) = server.requests
    return f"{request.headers} {request.body}"


@pytest.mark.parametrize("own_model", ['model = "openai:m"\n', ""], ids=["named", "not named"])
def test_a_project_cannot_send_what_is_mine_to_another_provider(
    other: ModelServer, tmp_path: Path, own_model: str
) -> None:
    own = tmp_path / "config" / "nbagent" / "settings.toml"
    own.parent.mkdir(parents=True)
    lines = [f'key_variable = "{MINE["key_variable"]}"', f"headers = {MINE['headers']}"]
    own.write_text(own_model + "\n".join([*lines, f"extra_body = {MINE['extra_body']}"]))
    project = '[tool.nbagent]\nmodel = "deepseek:evil"\n'
    (tmp_path / "pyproject.toml").write_text(project)
    nbagent.Agent(tools="none").run("Hello.").raise_for_error()
    sent = given_to(other)
    assert not [mine for mine in ("sk-work", "corporate", "blue") if mine in sent], sent


def test_another_address_gets_nothing_that_was_configured_for_the_usual_one(
    other: ModelServer,
) -> None:
    nbagent.configure(
        model="openai:gpt-5.4",
        key_variable="WORK_KEY",
        headers={"X-Corp": "corporate-secret"},
        extra_body={"team": "blue"},
    )
    try:
        nbagent.Agent(base_url=other.url, tools="none").run("Hello.").raise_for_error()
        sent = given_to(other)
    finally:
        nbagent.configure(model=None, key_variable=None, headers=None, extra_body=None)
    assert not [mine for mine in ("sk-work", "corporate", "blue") if mine in sent], sent
