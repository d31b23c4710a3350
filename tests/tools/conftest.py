"""The doors through which the tests here go."""

from __future__ import annotations

import pytest
from host_door import HostDoor
from notebook_stage import Notebook


@pytest.fixture
def bench() -> HostDoor:
    """For calls of functions."""
    return HostDoor()


@pytest.fixture
def notebook() -> Notebook:
    """A notebook with its tools."""
    return Notebook()
