"""Tools that read, rewrite, compare and publish notebook files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from environments import CHECKOUT, Environment, MakeEnvironment
from executed_notebooks import ANSWERED, check_saved_answer, write_notebook
from front_ends import shows

pytestmark = pytest.mark.proof


def executed(make: MakeEnvironment, made: Environment, *, records: str = "all") -> Path:
    """An executed notebook in the folder of an environment."""
    source, saved = write_notebook(made.work / "in.ipynb", ANSWERED), made.work / "saved.ipynb"
    executor = Environment(make("nbconvert", "nbclient", "ipykernel").folder, made.work)
    executor.run("jupyter", "execute", str(source), "--output", str(saved), NBAGENT_RECORDS=records)
    source.unlink()
    return saved


@shows("jupytext", "saved form reads", "record in the file")
def test_jupytext_keeps_a_prompt_as_a_comment_that_formatters_leave_alone(
    environment: MakeEnvironment,
) -> None:
    made = environment("jupytext", "ruff", "black")
    saved = executed(environment, made)
    (made.work / "jupytext.toml").write_text(
        'formats = "ipynb,py:percent"\ncustom_cell_magics = "agent"\n'
    )
    made.run("jupytext", "--sync", "saved.ipynb")
    script = saved.with_suffix(".py")
    assert script.read_text().endswith(
        'magic_args="-m offline:demo --tools area" language="agent"\n# Which area has Oslo?\n'
    )
    made.run("ruff", "check", "--isolated", "--select", "E9,F", "saved.py")
    made.run("ruff", "format", "--isolated", "saved.py")
    made.run("black", "saved.py")
    made.run("black", "--check", "saved.py")
    made.run("jupytext", "--sync", "saved.py")
    cells = json.loads(saved.read_text())["cells"]
    assert "".join(cells[1]["source"]) == ANSWERED
    check_saved_answer(saved)


@shows("nbstripout", "saved form reads", "record in the file")
def test_nbstripout_drops_the_outputs_with_their_records(environment: MakeEnvironment) -> None:
    made = environment("nbstripout")
    saved = executed(environment, made)
    assert '"nbagent"' in saved.read_text()
    made.run("nbstripout", "saved.ipynb")
    text = saved.read_text()
    assert '"nbagent"' not in text
    assert "454.1" not in "".join(text.split("return 454.1"))


@shows("nbdime", "saved form reads", "record in the file")
def test_nbdime_reads_the_difference_of_two_runs(environment: MakeEnvironment) -> None:
    made = environment("nbdime")
    first = executed(environment, made).rename(made.work / "first.ipynb")
    again = executed(environment, made).rename(made.work / "again.ipynb")
    check_saved_answer(first)
    shown = made.run("nbdiff", "--no-color", str(first), str(again))
    assert "nbdiff" in shown.stdout
    made.run("nbmerge", str(first), str(first), str(again), "--out", "merged.ipynb")
    check_saved_answer(made.work / "merged.ipynb")


@shows("nbval", "headless", "saved form reads")
def test_nbval_finds_the_outputs_again_with_the_patterns_of_the_package(
    environment: MakeEnvironment,
) -> None:
    made = environment("nbval", "ipykernel")
    executed(environment, made)
    command = ("-m", "pytest", "-p", "no:cacheprovider", "--nbval", "saved.ipynb")
    assert "1 failed" in made.run("python", *command, fails=True).stdout
    made.run("python", "-m", "nbagent", "nbval-config", "-o", "nbval.cfg")
    made.run("python", *command, "--nbval-sanitize-with", "nbval.cfg")


@shows("mystmd", "saved form reads", "record in the file")
@pytest.mark.parametrize("records", ["all", "own", "off"])
def test_a_site_of_mystmd_holds_what_records_says(
    environment: MakeEnvironment, records: str
) -> None:
    made = environment("mystmd")
    executed(environment, made, records=records)
    (made.work / "myst.yml").write_text(
        "version: 1\nproject: {title: x}\nsite: {template: book-theme}\n"
    )
    # It ends with an error where it cannot load its template; the content is written before.
    command: list[Any] = [made.scripts / "myst", "build", "--site", "--ci"]
    subprocess.run(command, cwd=made.work, env=made.environ(), capture_output=True, timeout=150)
    site = made.work / "_build" / "site"
    pages = [file for file in site.rglob("*") if file.suffix in (".json", ".ipynb")]
    texts = [file.read_text("utf-8") for file in pages]
    assert len(texts) >= 2
    assert all("454.1" in text for text in texts)
    published = "".join(texts)
    assert ("tool_runs" in published) == (records != "off")
    assert ("records=own" in published) == (records == "own")


def test_pre_commit_strips_the_records_and_keeps_the_outputs(environment: MakeEnvironment) -> None:
    made = environment("pre-commit")
    saved = executed(environment, made)

    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=made.work, env=made.environ(), check=True)

    git("init", "-q")
    git("add", "saved.ipynb")
    hook = ("try-repo", str(CHECKOUT), "nbagent-strip", "--files", "saved.ipynb")
    assert "dropped the records of 1 output" in made.run("pre-commit", *hook, fails=True).stdout
    text = saved.read_text()
    assert '"nbagent"' not in text
    assert "454.1" in text
    made.run("pre-commit", *hook)
