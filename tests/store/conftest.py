"""A store in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from store.dying_process import Forker

from nbagent.store.writer import Store


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / ".nbagent"


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    opened = Store.open(home)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    """The process that forks others."""
    made = Forker()
    yield made
    made.close()
