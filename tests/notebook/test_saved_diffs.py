"""Two runs of one notebook, saved: the difference of the files reads like that of their texts."""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import nbagent
from nbagent.notebook import outputs
from nbagent.notebook.outputs import Output, display_final
from nbagent.store.rows import from_notebook_json

PROMPTS = ("What is the population of Oslo and of Bergen?", "And the population of Bergen?")
MAX_DIFF_LINES = 40
"""For two agent cells: three lines of head, and for each cell two parts that must differ."""


def population(city: str) -> int:
    """People living in a city."""
    time.sleep(0.002)
    return {"Oslo": 717_710, "Bergen": 291_940}[city]


def show_finally(run: nbagent.Run) -> None:
    display_final(run.record)


def show_with_buttons(run: nbagent.Run) -> None:
    output = Output()
    output.add(run.id)
    output.show_saved()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Outputs as a file has them."""
    made: list[dict[str, Any]] = []

    def display(data: dict[str, Any], metadata: Mapping[str, Any] | None = None, **_: Any) -> None:
        lines = {kind: text.splitlines(keepends=True) for kind, text in data.items()}
        made.append(
            {"output_type": "display_data", "data": lines, "metadata": dict(metadata or {})}
        )

    monkeypatch.setattr(outputs, "display", display)
    return made


def cells_of(shown: list[dict[str, Any]], show: Callable[[nbagent.Run], None]) -> dict[str, Any]:
    """Run the notebook once; return it as JSON."""
    shown.clear()
    first = nbagent.Agent("offline:demo", tools=[population], quiet=True).run(PROMPTS[0])
    for run in (first, first.resume(PROMPTS[1])):
        show(run)
    cells = [
        {
            "cell_type": "code",
            "id": f"cell-{number}",
            "execution_count": number,
            "metadata": {},
            "source": ["%%agent\n", prompt],
            "outputs": [output],
        }
        for number, (prompt, output) in enumerate(zip(PROMPTS, shown, strict=True), 1)
    ]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def changed_lines(before: list[str], after: list[str]) -> list[str]:
    diff = difflib.unified_diff(before, after, n=0, lineterm="")
    return [line for line in diff if line[:1] in "+-" and line[:3] not in ("+++", "---")]


@pytest.mark.parametrize("show", [show_finally, show_with_buttons])
def test_two_runs_differ_in_two_lines_of_html_and_in_no_line_of_text(
    shown: list[dict[str, Any]], show: Callable[[nbagent.Run], None]
) -> None:
    first, second = (cells_of(shown, show)["cells"] for _ in range(2))
    for before, after in zip(first, second, strict=True):
        (before,), (after,) = before["outputs"], after["outputs"]
        assert before["data"]["text/plain"] == after["data"]["text/plain"]
        html = before["data"]["text/html"]
        assert len(changed_lines(html, after["data"]["text/html"])) <= 4
        # nbdime takes longer texts for different outputs, whatever they share.
        assert len("".join(html)) < 10_000
        assert not [line for line in html if not line.strip()]


def test_a_file_of_two_runs_differs_in_few_lines(shown: list[dict[str, Any]]) -> None:
    first, second = (
        json.dumps(cells_of(shown, show_with_buttons), indent=1).splitlines() for _ in range(2)
    )
    assert len(changed_lines(first, second)) <= 12


def test_a_record_is_one_line_of_the_file_and_reads_back(shown: list[dict[str, Any]]) -> None:
    run = nbagent.Agent("offline:demo", tools=[population], quiet=True).run(PROMPTS[0])
    display_final(run.record)
    (saved,) = shown
    assert len(json.dumps(saved["metadata"], indent=1).splitlines()) == 5
    assert from_notebook_json(saved["metadata"]["nbagent"]) == run.record
    assert "its record is in this file" in "".join(saved["data"]["text/html"])


@pytest.mark.proof
def test_nbdiff_of_two_runs_is_short(shown: list[dict[str, Any]], tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    scripts = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    install = [str(scripts / "python"), "-m", "pip", "install", "--quiet", "nbdime"]
    if subprocess.run(install, check=False, timeout=400).returncode:
        pytest.skip("pip cannot install nbdime here")
    for name in ("a.ipynb", "b.ipynb"):
        (tmp_path / name).write_text(json.dumps(cells_of(shown, show_with_buttons)), "utf-8")
    command = [str(scripts / "nbdiff"), "--no-color", "a.ipynb", "b.ipynb"]
    diff = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    ).stdout
    assert "## modified /cells/0/outputs/0/data/text/html" in diff
    assert len(diff.splitlines()) <= MAX_DIFF_LINES, diff


FOOTERS = {
    "all": "its record is in this file<",
    "own": "its record is in this file without the results of tools, whose start is shown above<",
    "off": "",
}


@pytest.mark.parametrize("choice", FOOTERS)
def test_the_foot_of_a_picture_says_what_the_file_holds(
    shown: list[dict[str, Any]], choice: str
) -> None:
    run = nbagent.Agent("offline:demo", tools=[population], quiet=True).run(PROMPTS[0])
    nbagent.configure(records=choice)
    display_final(run.record)
    footer = "".join(shown[-1]["data"]["text/html"]).rpartition("nba-foot")[2]
    assert FOOTERS[choice] in footer.replace(" ·", "<")
    assert ("its record" in footer) == (choice != "off")
