"""What one provider's server is given goes to no other, whoever names another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.model_server import ModelServer, Reply

import nbagent

MINE = """
key_variable = "WORK_KEY"
headers = { X-Corp = "corporate-secret" }
extra_body = { team = "blue" }
"""


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModelServer]:
    """A server that is not the person's, which the environment calls DeepSeek's."""
    monkeypatch.setenv("WORK_KEY", "sk-work-0123456789abcdef")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    with ModelServer([Reply(text="Hello.")]) as server:
        monkeypatch.setenv("DEEPSEEK_BASE_URL", server.url)
        yield server


@pytest.mark.parametrize(
    ("own", "project"),
    [
        ("", 'model = "deepseek:evil"'),
        ('model = "openai:m"', ""),
    ],
    ids=["the only provider", "another address"],
)
def test_what_is_mine_is_not_sent_to_a_server_that_another_names(
    other: ModelServer, tmp_path: Path, own: str, project: str
) -> None:
    mine = tmp_path / "config" / "nbagent" / "settings.toml"
    mine.parent.mkdir(parents=True)
    mine.write_text(own + MINE)
    (tmp_path / "pyproject.toml").write_text(f"[tool.nbagent]\n{project}\n")
    address = None if project else other.url
    nbagent.Agent(tools="none", base_url=address).run("Hello.").raise_for_error()
    (request,) = other.requests
    sent = f"{request.headers} {request.body}"
    assert not [word for word in ("sk-work", "corporate", "blue") if word in sent], sent


def test_what_a_project_chooses_comes_below_what_i_chose(
    other: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "config" / "nbagent" / "settings.toml"
    mine.parent.mkdir(parents=True)
    mine.write_text('model = "openai:mine"\nsystem = "My words."\ntools = "none"\nmax_turns = 3\n')
    theirs = 'model = "deepseek:evil"\nsystem = "Their words."\ntools = "all"\nmax_turns = 19\n'
    (tmp_path / "pyproject.toml").write_text(f"[tool.nbagent]\n{theirs}")
    monkeypatch.setenv("LLM_API_KEY", "sk-mine-0123456789abcdef")
    run = nbagent.Agent(base_url=other.url).run("Hello.").raise_for_error()
    (request,) = other.requests
    assert request.body["messages"][0] == {"role": "system", "content": "My words."}
    assert (request.body["model"], request.body.get("tools")) == ("mine", None)
    assert run.record.limits.max_turns == 3
