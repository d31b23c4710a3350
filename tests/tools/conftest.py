"""The doors through which the tests here go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mcp_stage
import pytest
from host_door import FileDoor, HostDoor
from servers.mcp_door import hand

from nbagent.tools.mcp import config
from nbagent.tools.mcp.config import known_servers, mcp
from nbagent.tools.mcp.server import McpServer


@pytest.fixture
def bench() -> HostDoor:
    """For calls of functions."""
    return HostDoor()


@pytest.fixture
def door(project: Path) -> FileDoor:
    """The file tools over the project of a test."""
    return FileDoor(project)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The person's home, empty."""
    made = tmp_path / "home"
    made.mkdir()
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.setenv("USERPROFILE", str(made))
    return made


@pytest.fixture
def nothing_known(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No MCP server of another test, no file of the developer's."""
    monkeypatch.setattr(config, "_servers", {})
    monkeypatch.chdir(home.parent)
    yield
    for one in known_servers().values():
        one.close()


@pytest.fixture
def start() -> Iterator[mcp_stage.Start]:
    """Makes doors to MCP servers of one test, which end with it."""
    servers: list[McpServer] = []

    def started(*flags: str, name: str = "own", **options: Any) -> mcp_stage.Door:
        options = options if "url" in options else {"command": hand(*flags), **options}
        servers.append(mcp(name, **options))
        return mcp_stage.Door(servers[-1])

    yield started
    for one in servers:
        one.close()
