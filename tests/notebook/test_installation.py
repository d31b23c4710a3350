"""The doctor says which distribution the imported nbagent belongs to, if it is the wrong one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from magic_shell import MagicShell

from nbagent.notebook.installation import installation_problems

FRONTEND = "[nbagent.frontends]\nipython = nbagent.notebook.frontend:NotebookFrontend\n"
OTHER = "nbagent 1.1.0 is of another project"
FORMER = "nbagent 0.1.0 is the former name of nbagent-jupyter"
NOT_INSTALLED = "the distribution nbagent-jupyter is not installed"
ELSEWHERE = "the distribution nbagent-jupyter belongs to another folder"
UNINSTALL = "`%pip uninstall -y nbagent`"
INSTALL = "`%pip install -e .` in the checkout"


def lay(folder: Path, name: str, version: str, **files: str) -> None:
    """Lay an installed distribution into a folder."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file, text in files.items():
        (info / file.replace("__", ".")).write_text(text)


def other_project(folder: Path) -> None:
    lay(folder, "nbagent", "1.1.0")


def former_name(folder: Path) -> None:
    lay(folder, "nbagent", "0.1.0", entry_points__txt=FRONTEND)


def own(folder: Path) -> None:
    lay(folder, "nbagent-jupyter", "0.1.0", entry_points__txt=FRONTEND)


def editable(folder: Path) -> None:
    origin = {"url": (folder.parent / "checkout").as_uri(), "dir_info": {"editable": True}}
    lay(folder, "nbagent-jupyter", "0.1.0", direct_url__json=json.dumps(origin))


def damaged(folder: Path) -> None:
    lay(folder, "nbagent-jupyter", "0.1.0", direct_url__json="[1")


@pytest.mark.parametrize(
    ("installed", "package", "problems"),
    [
        ([own], "site/nbagent", []),
        ([damaged], "site/nbagent", []),
        ([editable], "checkout/nbagent", []),
        ([editable], "site/nbagent", [ELSEWHERE]),
        ([own], "checkout/nbagent", [ELSEWHERE]),
        ([], "checkout/nbagent", [NOT_INSTALLED]),
        ([own, other_project], "site/nbagent", [OTHER]),
        ([editable, former_name], "checkout/nbagent", [FORMER]),
        ([former_name], "site/nbagent", [FORMER, NOT_INSTALLED]),
        ([other_project], "site/nbagent", [OTHER, NOT_INSTALLED]),
    ],
)
def test_the_wrong_distribution_is_named_with_what_to_do(
    installed: list[Callable[[Path], None]],
    package: str,
    problems: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for distribution in installed:
        distribution(tmp_path / "site")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    found = list(installation_problems(tmp_path / package))
    assert len(found) == len(problems)
    for text, problem in zip(found, problems, strict=True):
        assert problem in text
        assert INSTALL in text
        assert (UNINSTALL in text) == (problem in (OTHER, FORMER))


def test_the_doctor_says_that_another_project_is_installed_beside(
    shell: MagicShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_project(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert OTHER in shell.said("%agent doctor")


def test_python_in_the_browser_gets_one_sentence() -> None:
    code = "import sys; sys.platform = 'emscripten'; import nbagent"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: nbagent needs threads and sockets")
