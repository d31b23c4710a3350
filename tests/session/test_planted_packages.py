"""Metadata of packages in a person's folder install nothing there, though it is on `sys.path`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernels import clean_environment

ENTRIES = """
[nbagent.frontends]
evil = evil_mod:run
[nbagent.providers]
evil = evil_mod:run
[nbagent.tools]
evil = evil_mod:run
"""
RUN = """
import sys
sys.path.insert(0, "")
import IPython
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.instance()
import nbagent
print(nbagent.Agent(model="offline:demo", tools=[]).run("hello").ok)
for options in ({"model": "evil:x"}, {"tools": ["evil"]}):
    try:
        nbagent.Agent(**options).run("hello", quiet=True)
    except Exception:  # a provider that is none, where it is installed
        print("refused")
"""


@pytest.mark.parametrize("place", ["its folder", "another folder"])
def test_only_an_installed_package_is_loaded(tmp_path: Path, place: str) -> None:
    project = tmp_path / "project"
    folder = project if place == "its folder" else tmp_path / "site"
    package = folder / "evil-1.0.dist-info"
    package.mkdir(parents=True)
    project.mkdir(exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(ENTRIES)
    (folder / "evil_mod.py").write_text("print('loaded by nbagent')\ndef run(*args): return None\n")
    environment = clean_environment(tmp_path / "home")
    environment["PYTHONPATH"] = f"{folder}{os.pathsep}{environment.get('PYTHONPATH', '')}".rstrip(
        os.pathsep
    )
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "True" in done.stdout
    assert done.stdout.count("refused") == 2
    # A package that is installed is loaded: what is looked for here would be found.
    assert ("loaded by nbagent" in done.stdout) == (place == "another folder")
