"""The notebooks: nbval finds the committed outputs again, and a real server answers them too."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kernels import clean_environment
from make_cassette import ANSWERS, make
from make_outputs import NOTEBOOKS, beside, executed
from readme_environment import hidden_modules, hide_other_packages, readme_commands
from servers.model_server import ModelServer

ROOT = NOTEBOOKS.parent
REMAKE = "make the outputs again with `python tests/notebooks/make_outputs.py`"


def shown(notebook: Any) -> str:
    """All that the cells of an executed notebook show, as text."""
    texts: list[str] = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            texts.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return "\n".join(texts)


def checked(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`pytest --nbval` with the options of pyproject.toml and the store in `home`.

    Kernels import only packages that the README's first command installs.
    """
    # In one process: a worker would not import pytest, which the README's command does not install.
    options = ("--nbval", "-n", "0", "-p", "no:cacheprovider")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=ROOT,
        env=clean_environment(home, **hide_other_packages(home)),
        capture_output=True,
        text=True,
        check=False,
    )


def check(home: Path, *arguments: str) -> None:
    """Run `checked`; all cells must pass."""
    done = checked(home, *arguments)
    assert done.returncode == 0, f"{REMAKE}\n{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
    assert " passed" in done.stdout


@pytest.fixture(scope="module")
def checked_notebooks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of nbval on all notebooks, checked in one process."""
    done = checked(tmp_path_factory.mktemp("home"), "notebooks", "-v")
    return f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda p: p.name)
def test_notebook_shows_what_it_was_saved_with(notebook: Path, checked_notebooks: str) -> None:
    ended = re.findall(r"([\w-]+)::ipynb::Cell \d+ +(\w+)", checked_notebooks)
    cells = Counter((name, end == "PASSED") for name, end in ended)
    differences = checked_notebooks.partition("= FAILURES =")[2][:8000]
    assert not cells[notebook.stem, False], f"{REMAKE}\n{differences}"
    made = json.loads(notebook.read_text("utf-8"))["cells"]
    assert cells[notebook.stem, True] == sum(cell["cell_type"] == "code" for cell in made)


def test_notebooks_are_checked_without_the_packages_of_other_extras() -> None:
    hidden = hidden_modules()
    assert {"distributed", "huggingface_hub", "pytest", "xllamacpp"} <= hidden
    assert hidden.isdisjoint({"nbagent", "IPython", "pandas", "jupyterlab", "pip"})


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_every_notebook_runs_in_the_environment_of_the_readme(tmp_path: Path) -> None:
    """Run the README's first command in a fresh copy, then each notebook as Run All does."""
    copy = tmp_path / "checkout"
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, files):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    environment = clean_environment(tmp_path)
    environment.pop("PYTHONPATH", None)

    def shell(command: str) -> None:
        done = subprocess.run(
            command, shell=True, cwd=copy, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"

    first, _ = readme_commands()
    install, _, start = first.rpartition(" && ")
    assert start == ".venv/bin/jupyter lab notebooks/quickstart.ipynb"
    shell(install.replace("python3", sys.executable, 1))
    shell(".venv/bin/jupyter lab --version")
    for notebook in sorted((copy / "notebooks").glob("*.ipynb")):
        shell(f".venv/bin/jupyter nbconvert --to notebook --execute --inplace {notebook}")


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_all_notebooks_pass_in_one_go_in_any_order_and_beside_older_runs(tmp_path: Path) -> None:
    check(tmp_path, "notebooks")
    check(tmp_path, *map(str, sorted(NOTEBOOKS.glob("*.ipynb"), reverse=True)))


@pytest.mark.proof
@pytest.mark.timeout(300)
@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda p: p.name)
def test_all_cells_run_a_second_time_in_the_same_kernel(notebook: Path, tmp_path: Path) -> None:
    beside(tmp_path)
    executed(notebook, tmp_path, times=2)


@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda p: p.name)
def test_saved_outputs_hold_no_place_of_a_machine_and_no_widget(notebook: Path) -> None:
    text = notebook.read_text("utf-8")
    for word in (str(Path.home()), str(ROOT), "/tmp/", "widget-view", "application/json"):
        assert word not in text, f"{word!r} is in {notebook.name}; {REMAKE}"
    assert '"outputs": [\n' in text, REMAKE


@pytest.mark.parametrize("name", ANSWERS)
def test_cassette_holds_the_requests_that_the_notebook_asks(name: str, tmp_path: Path) -> None:
    made = make(name, tmp_path).read_text("utf-8")
    assert made == (NOTEBOOKS / f"{name}.jsonl").read_text("utf-8"), (
        f"make it again with `python tests/notebooks/make_cassette.py {name}`, then {REMAKE}"
    )


def test_quickstart_works_with_a_real_server(tmp_path: Path) -> None:
    with ModelServer() as server:

        def asks_the_server(source: str) -> str:
            options = f"--model openai:little --base-url {server.url}"
            source = source.replace("%%agent", f"%%agent {options}")
            agent = f'nbagent.Agent(model="openai:little", base_url="{server.url}", '
            return source.replace("nbagent.Agent(", agent)

        made = executed(NOTEBOOKS / "quickstart.ipynb", tmp_path, change=asks_the_server)
    text = shown(made)
    assert "Answered · openai:little" in text
    assert "offline:demo" not in text
    models = {body["model"] for body in server.bodies}
    assert models == {"little"}
    assert len(server.bodies) > text.count("Answered") >= 3
