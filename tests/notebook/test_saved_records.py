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
    shell.cell("%agent config records=own")
    text, notebook = saved(run, tmp_path)
    assert SECRET not in text
    read = notebook.open_run("last")
    assert (read.record.prompt, read.text) == ("What in Oslo?", "It is secret.")
    (call,) = read.turns[0].tool_runs
    assert (call.args, call.result and call.result.ok) == ({"city": "Oslo"}, tool is salary)
    assert "records=own" in str(read.messages[2].text)


def test_off_keeps_the_id_only(shell: MagicShell) -> None:
    run = nbagent.Agent("offline:demo").run("Hello?")
    shell.cell("%agent config records=off")
    assert records_metadata(run.record) == {"nbagent": run_reference(run.id)}


def test_a_wrong_choice_is_refused(shell: MagicShell) -> None:
    with pytest.raises(nbagent.UsageError, match="records"):
        nbagent.configure(records="some")


def write_outputs(file: Path, *metadata: Any) -> Path:
    cells = [{"cell_type": "code", "outputs": [{"metadata": {"nbagent": m}}]} for m in metadata]
    file.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}), "utf-8")
    return file


@pytest.mark.parametrize("ids", [["a1" * 8], [f"{n:016x}" for n in range(9)]], ids=["one", "many"])
def test_a_run_that_no_store_has_is_named_with_the_store(
    shell: MagicShell, tmp_path: Path, ids: list[str]
) -> None:
    run = shell.agent("-m offline:demo --quiet", "Hello?")
    references = [run_reference(run_id) for run_id in (run.id, *ids)]
    file = write_outputs(tmp_path / "mid.ipynb", *references)
    with pytest.warns(UserWarning, match=f"run {ids[0][:8]}.*; not in .*nbagent") as warned:
        assert [*nbagent.read_notebook(file).runs()["run_id"]] == [run.id]
    assert len(warned) == 1


DAMAGED: dict[str, Any] = {
    "a number": 5,
    "no rows": {"version": 1, "runs": [None]},
    "a version that is a text": {"version": "x", "runs": []},
    "many references in one": {"version": 22, "runs": [{"run_id": "a" * 16}] * 1_000},
}


@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_costs_no_other_record(
    shell: MagicShell, tmp_path: Path, damaged: Any
) -> None:
    run = shell.agent("-m offline:demo --quiet", "Hello?")
    file = write_outputs(tmp_path / "x.ipynb", damaged, records_metadata(run.record)["nbagent"])
    with pytest.warns(UserWarning, match="a part was left out: ") as warned:
        assert [*nbagent.read_notebook(file).runs()["run_id"]] == [run.id]
    assert "Error" not in str(warned[0].message)
    with pytest.raises(nbagent.UsageError, match="not a notebook with valid records"):
        nbagent.read_notebook(write_outputs(file, damaged))
