"""`%agent config records=`: what the metadata of a saved notebook holds of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from magic_shell import MagicShell

import nbagent
from nbagent.frames import SavedNotebook
from nbagent.notebook.outputs import records_metadata
from nbagent.store.rows import run_reference
from nbagent.view.saved_record_note import saved_record_note

SECRET = "the salary of the manager"


@nbagent.tool
def salary(city: str) -> str:
    "Salary in a city."
    print(f"printed: {SECRET}")
    return SECRET


@nbagent.tool
def broken(city: str) -> str:
    "Fails in a city."
    raise ValueError(SECRET)


def saved(run: nbagent.Run, folder: Path) -> tuple[str, SavedNotebook]:
    """The metadata of an output that shows the run, and the notebook that it is saved in."""
    metadata: Any = records_metadata(run.record)
    cell = {"cell_type": "code", "outputs": [{"metadata": metadata}]}
    text = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4})
    (folder / "saved.ipynb").write_text(text, "utf-8")
    return text, nbagent.read_notebook(folder / "saved.ipynb")


@pytest.mark.parametrize("tool", [salary, broken], ids=["result", "error"])
def test_own_keeps_the_conversation_without_what_tools_returned(
    shell: MagicShell, tmp_path: Path, tool: Any
) -> None:
    name = tool.__name__
    script = [nbagent.offline.call(name, city="Oslo"), "It is secret."]
    run = nbagent.Agent(nbagent.offline.script(script), tools=[tool]).run("What in Oslo?")
    whole, _ = saved(run, tmp_path)
    assert SECRET in whole
    assert "with the results of tools" in saved_record_note()
    shell.cell("%agent config records=own")
    text, notebook = saved(run, tmp_path)
    assert SECRET not in text
    assert "without the results of tools" in saved_record_note()
    read = notebook.open_run("last")
    assert (read.record.prompt, read.text) == ("What in Oslo?", "It is secret.")
    (call,) = read.turns[0].tool_runs
    assert (call.args, call.result and call.result.ok) == ({"city": "Oslo"}, tool is salary)
    assert "records=own" in str(read.messages[2].text)


def test_off_keeps_the_id_only(shell: MagicShell) -> None:
    run = nbagent.Agent("offline:demo").run("Hello?")
    shell.cell("%agent config records=off")
    assert records_metadata(run.record) == {"nbagent": run_reference(run.id)}
    assert saved_record_note() == ""


def test_a_wrong_choice_is_refused(shell: MagicShell) -> None:
    with pytest.raises(nbagent.UsageError, match="records"):
        nbagent.configure(records="some")
