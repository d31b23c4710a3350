"""A real IPython shell for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from magic_shell import MagicShell, begin, end, started_shell


@pytest.fixture(scope="module")
def one_shell() -> Iterator[MagicShell]:
    made = started_shell()
    yield made
    made.restore_sys_module_state()
    MagicShell.clear_instance()


@pytest.fixture
def shell(
    one_shell: MagicShell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[MagicShell]:
    monkeypatch.setenv("NBAGENT_OFFLINE_DELAY_MS", "0")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    begin(one_shell)
    yield one_shell
    end()
