"""Real servers from PyPI over stdio, in both protocols: mcp-server-time and mcp-server-git."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from legal_schema import check_legal
from servers.mcp_door import Door

from nbagent.tools.mcp import connection_to, mcp

VERSIONS = ["auto", "2025-11-25"]


@pytest.fixture(scope="module", params=VERSIONS)
def clock(request: pytest.FixtureRequest) -> Iterator[Door]:
    command = [sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"]
    server = mcp(f"time-{request.param}", command=command, protocol=request.param)
    yield Door(server).prepare()
    server.close()


@pytest.fixture(scope="module")
def git(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Door, Path]]:
    if shutil.which("git") is None:
        pytest.skip("there is no git here")
    folder = tmp_path_factory.mktemp("repository")
    (folder / "a.txt").write_text("first\n")
    person = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for words in (["init", "-q"], ["add", "a.txt"], [*person, "commit", "-q", "-m", "Begin"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    (folder / "a.txt").write_text("second\n")
    command = [sys.executable, "-m", "mcp_server_git", "--repository", str(folder)]
    server = mcp("git", command=command)
    yield Door(server).prepare(), folder
    server.close()


def test_time_server_says_the_time(clock: Door) -> None:
    told = clock.text("get_current_time", timezone="Europe/Paris")
    assert told["timezone"] == "Europe/Paris"
    assert "T" in told["datetime"]


def test_both_protocols_are_spoken(clock: Door) -> None:
    wanted = clock.server.protocol
    version = connection_to(clock.server).version
    assert version == ("2026-07-28" if wanted == "auto" else wanted)


def test_git_server_shows_status_and_log(git: tuple[Door, Path]) -> None:
    door, folder = git
    assert "modified:   a.txt" in str(door.text("git_status", repo_path=str(folder)))
    assert "Begin" in str(door.text("git_log", repo_path=str(folder)))


def test_git_servers_schemas_are_legal(git: tuple[Door, Path]) -> None:
    door, _ = git
    assert len(door.specs) > 8
    for spec in door.specs.values():
        check_legal(spec)
        assert spec.traits.ruling == "ask"
