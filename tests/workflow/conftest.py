"""The project in which the runs of these tests begin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nbagent.settings.sources import fresh_settings


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty project, in which the process begins."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with fresh_settings():
        yield folder
