"""The doors through which the tests here go."""

from __future__ import annotations

from pathlib import Path

import pytest
from fs_door import Door
from host_door import HostDoor
from notebook_stage import Notebook


@pytest.fixture
def bench() -> HostDoor:
    """For calls of functions."""
    return HostDoor()


@pytest.fixture
def door(project: Path) -> Door:
    """The file tools over the project of a test."""
    return Door(project)


@pytest.fixture
def notebook() -> Notebook:
    """A notebook with its tools."""
    return Notebook()
