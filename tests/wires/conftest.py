"""One loop and one server for all tests of the wires."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from wires.harness import World


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()
