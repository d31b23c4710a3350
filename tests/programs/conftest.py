"""Fixtures of the tests with real programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from environments import environment, environments_folder

__all__ = ["environment", "environments_folder"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the proofs time for pip, which a first test waits for."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("proof"):
            item.add_marker(pytest.mark.timeout(900))
