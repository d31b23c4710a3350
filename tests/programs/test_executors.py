"""Programs that execute a notebook without a person: its file has the answer and the record."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import Environment, MakeEnvironment
from executed_notebooks import (
    ANSWERED,
    DENIED,
    ENDLESS,
    check_saved_answer,
    outputs,
    write_notebook,
)
from front_ends import shows

import nbagent

Execute = Callable[[Environment, Path, Path], "subprocess.CompletedProcess[str]"]
NBCONVERT = ("nbconvert", "nbclient", "ipykernel")
PROGRAMS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "papermill": (("papermill", "ipykernel"), ("papermill", "{0}", "{1}"), "--execution-timeout"),
    "jupyter execute": (NBCONVERT, ("jupyter", "execute", "{0}", "--output", "{1}"), "--timeout"),
    "nbconvert": (
        NBCONVERT,
        ("jupyter", "nbconvert", "--to", "notebook", "--execute", "{0}", "--output", "{1}"),
        "--ExecutePreprocessor.timeout",
    ),
}
"""Requirements, the command for a notebook and the file of its outputs, its option of a timeout."""
OTHERS = "nbconvert --execute, jupyter execute, nbclient"
CAN_ALL = ("headless", "live", "stop", "approve", "saved form reads", "record in the file")


@pytest.mark.proof
@shows("papermill", *CAN_ALL)
@shows(OTHERS, *CAN_ALL)
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_executed_notebook_has_the_answer_the_record_and_a_log(
    environment: MakeEnvironment, program: str
) -> None:
    requirements, command, timeout = PROGRAMS[program]
    made = environment(*requirements)
    saved = made.work / "out.ipynb"
    source = write_notebook(made.work / "in.ipynb", ANSWERED, DENIED)
    words = [word.format(source, saved) for word in command]
    done = made.run(*words)
    assert "▸ area(" not in done.stderr
    quiet = [*outputs(saved, 1)]
    done = made.run(*words, NBAGENT_LOG="lines")
    assert done.stderr.index('C01  ▸ area(city="Oslo") …') < done.stderr.index("→ 454.1")
    assert [one["output_type"] for one in outputs(saved, 1)] == [o["output_type"] for o in quiet]
    check_saved_answer(saved)
    (denied,) = outputs(saved, 2)
    assert "denied" in "".join(denied["data"]["text/plain"])

    write_notebook(source, ENDLESS)
    done = made.run(*words, timeout, "5", fails=True)
    if program == "papermill":  # the others write no file after an error
        assert nbagent.read_notebook(saved).open_run("last").stop_reason == "stopped"


def test_nbclient_of_the_tests_writes_the_answer_the_record_and_a_log(tmp_path: Path) -> None:
    made = Environment(Path(sys.prefix), tmp_path)
    source, saved = write_notebook(tmp_path / "in.ipynb", ANSWERED), tmp_path / "out.ipynb"
    done = made.run("jupyter", "execute", str(source), "--output", str(saved), NBAGENT_LOG="lines")
    assert done.stderr.index('C01  ▸ area(city="Oslo") …') < done.stderr.index("→ 454.1")
    check_saved_answer(saved)
