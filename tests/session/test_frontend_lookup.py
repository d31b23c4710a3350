"""Which frontend a process has: that of an installed package, in IPython only."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from kernels import clean_environment

import nbagent
from nbagent.notebook.frontend import NotebookFrontend
from nbagent.session import frontend as frontend_module
from nbagent.session.frontend import Frontend, frontend, use_frontend


class Entry:
    """An entry point of an installed package."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.name, self._make = name, make

    def load(self) -> Callable[[], Any]:
        return self._make


def install(monkeypatch: pytest.MonkeyPatch, *entries: Entry) -> None:
    """Let IPython run, and these be the installed frontends."""
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = object
    monkeypatch.setitem(frontend_module.sys.modules, "IPython", ipython)

    def entry_points(group: str) -> Sequence[Entry]:
        assert group == "nbagent.frontends"
        return entries

    monkeypatch.setattr(frontend_module, "installed_entry_points", entry_points)
    use_frontend(None)


class Own(Frontend):
    """Frontend of nbagent's own entry point."""


class Other(Frontend):
    """Frontend of another package."""


def broken() -> Frontend:
    raise RuntimeError("no display here")


def test_notebook_of_this_package_is_registered() -> None:
    (entry,) = frontend_module.installed_entry_points("nbagent.frontends")
    assert entry.value == "nbagent.notebook.frontend:NotebookFrontend"


def test_other_packages_are_asked_before_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Entry("ipython", Own), Entry("other", Other))
    assert type(frontend()) is Other
    install(monkeypatch, Entry("ipython", Own), Entry("other", lambda: None))
    assert type(frontend()) is Own


def test_broken_package_is_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, Entry("ipython", Own), Entry("other", broken))
    assert type(frontend()) is Own
    warning = capsys.readouterr().err
    assert "'other' cannot be loaded (RuntimeError: no display here)" in warning
    assert "uninstall its package" in warning


def test_checkout_that_was_not_installed_again_prints_lines_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch)
    for _ in range(2):
        nbagent.Agent(model=nbagent.offline.script(["Oslo."])).run("Which city?")
    printed = capsys.readouterr()
    assert printed.err.count("`%pip install -e .`") == 1
    assert printed.out.count("Oslo.") == 2
    nbagent.Agent(model=nbagent.offline.script(["Oslo."])).run("Which city?", quiet=True)
    assert capsys.readouterr().out == ""


def test_script_asks_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Entry("other", Other))
    monkeypatch.delitem(frontend_module.sys.modules, "IPython")
    assert type(frontend()) is Frontend


def test_ipython_that_begins_after_a_run_gets_its_frontend(monkeypatch: pytest.MonkeyPatch) -> None:
    use_frontend(None)
    monkeypatch.delitem(frontend_module.sys.modules, "IPython", raising=False)
    assert type(frontend()) is Frontend
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = object
    monkeypatch.setitem(frontend_module.sys.modules, "IPython", ipython)
    begun = frontend()
    assert type(begun) is NotebookFrontend
    assert frontend() is begun
    ipython.get_ipython = lambda: None  # `embed()` returned to the script
    assert type(frontend()) is Frontend


def test_frontend_that_was_set_stays_when_ipython_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Entry("ipython", Own))
    mine = Other()
    use_frontend(mine)
    assert frontend() is mine


_EMBEDS = """
import nbagent
nbagent.Agent(model="offline:demo").run("Hello?")
import IPython
IPython.embed(colors="NoColor", banner1="")
"""
_TYPED = """
%load_ext nbagent
def area(city: str) -> float: "Area of a city."; return 454.1

area = nbagent.tool(area)
%agent Which area has Oslo?
print(_run.ok, _run.turns[0].tool_runs[0].result.data)
exit
"""


def test_an_embedded_ipython_shows_runs_and_takes_its_functions_after_a_plain_run(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _EMBEDS],
        input=_TYPED,
        env=clean_environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "True 454.1" in done.stdout, done.stdout + done.stderr
    assert done.stdout.index('▸ area(city="Oslo") …') < done.stdout.index("→ 454.1")
