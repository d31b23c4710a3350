"""Which frontend a process has: that of an installed package, in IPython only."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import nbagent
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

    def entry_points(*, group: str) -> Sequence[Entry]:
        assert group == "nbagent.frontends"
        return entries

    monkeypatch.setattr(frontend_module, "entry_points", entry_points)
    use_frontend(None)


class Own(Frontend):
    """Frontend of nbagent's own entry point."""


class Other(Frontend):
    """Frontend of another package."""


def broken() -> Frontend:
    raise RuntimeError("no display here")


def test_notebook_of_this_package_is_registered() -> None:
    (entry,) = frontend_module.entry_points(group="nbagent.frontends")
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
    assert printed.err.count("install nbagent again") == 1
    assert printed.out.count("Oslo.") == 2
    nbagent.Agent(model=nbagent.offline.script(["Oslo."])).run("Which city?", quiet=True)
    assert capsys.readouterr().out == ""


def test_script_asks_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Entry("other", Other))
    monkeypatch.delitem(frontend_module.sys.modules, "IPython")
    assert type(frontend()) is Frontend
