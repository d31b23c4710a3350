"""A real IPython shell and a real kernel for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kernels import LiveKernel
from magic_shell import MagicShell, begin, started_shell


@pytest.fixture(scope="module")
def kernel(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveKernel]:
    """One kernel for a module, of its KERNEL if it names one, after its SETUP."""
    kind: type[LiveKernel] = getattr(request.module, "KERNEL", LiveKernel)
    with closing(kind(tmp_path_factory.mktemp("kernel"))) as started:
        started.run(request.module.SETUP)
        yield started


@pytest.fixture(scope="module")
def one_shell() -> Iterator[MagicShell]:
    made = started_shell()
    yield made
    made.restore_sys_module_state()
    MagicShell.clear_instance()


@pytest.fixture
def shell(one_shell: MagicShell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MagicShell:
    monkeypatch.setenv("NBAGENT_OFFLINE_DELAY_MS", "0")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    begin(one_shell)
    return one_shell
