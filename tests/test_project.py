"""The tree as a whole: linted, formatted, typed; top level as the user fixed it.

The tools take 40 s, so they are proofs; `.ci/run` runs them before the tests.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run_tool(module: str, *arguments: str) -> None:
    """Run a tool of the test extra over the tree; skip visibly where it is not installed."""
    if importlib.util.find_spec(module) is None:
        assert "CI" not in os.environ, f"{module} must be there in CI"
        pytest.skip(f"{module} is not installed")
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


@pytest.mark.proof
def test_ruff_finds_nothing() -> None:
    run_tool("ruff", "check", "nbagent", "tests")


@pytest.mark.proof
def test_the_tree_is_formatted() -> None:
    run_tool("ruff", "format", "--check", "nbagent", "tests")


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_pyright_strict_finds_nothing() -> None:
    run_tool("pyright", "--pythonpath", sys.executable)


def test_the_top_level_is_as_the_user_fixed_it() -> None:
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not names:
        pytest.skip("not a git checkout")
    top = {name.split("/")[0] for name in names if not name.startswith(".")}
    assert top <= {"pyproject.toml", "README.md", "LICENSE", "nbagent", "notebooks", "tests"}
