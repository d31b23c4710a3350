"""A saved notebook holds its batch: cases, scores and comparison, without the store."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from magic_shell import MagicShell

import nbagent
from nbagent import offline
from nbagent.__main__ import main
from nbagent.contracts.case_results import CaseResult
from nbagent.notebook.batch_widget import batch_metadata
from nbagent.notebook.outputs import records_metadata
from nbagent.store.saved_batches import to_notebook_batch

TABLE = pd.DataFrame({"n": range(8)})
SECRET = "sk-notebook-0123456789abcdef"


def says_number(row: Any, run: Any) -> bool:
    return str(row.n) in run.text


def answer(request: Any) -> str:
    text = request.messages[-1].text
    return text if text.startswith("Say") else "nothing"


def some_batch(name: str = "numbers") -> Any:
    agent = nbagent.Agent(offline.script([answer] * 100, name="numbers"), tools="none", quiet=True)
    prompts = {"v1": "Say {{ n }}", "v2": "{{ n }}?"}
    return agent.map(TABLE, vary={"prompt": prompts}, name=name, score=says_number).wait()


def write(file: Path, *saved: Any) -> Path:
    cells = [{"cell_type": "code", "outputs": [{"metadata": {"nbagent": one}}]} for one in saved]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return file


def read_elsewhere(file: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Read a notebook as a person does who has no store with its runs."""
    monkeypatch.setenv("NBAGENT_HOME", str(file.parent / "another-home"))
    return nbagent.read_notebook(file)


def test_cases_scores_and_comparison_come_from_the_file_alone(
    shell: MagicShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = some_batch()
    run = nbagent.Agent("offline:demo", quiet=True).run("Hello?")
    saved = (records_metadata(run.record)["nbagent"], batch_metadata(batch)["nbagent"])
    notebook = read_elsewhere(write(tmp_path / "a.ipynb", *saved), monkeypatch)
    assert repr(notebook) == "<SavedNotebook a.ipynb, runs: 1, batches: numbers>"
    opened = notebook.batch()
    assert opened is notebook.batch("numbers")
    assert opened.results() == tuple(
        replace(result, cells=dict(result.cells), scores=opened.results()[i].scores)
        for i, result in enumerate(batch.results())
    )
    pd.testing.assert_frame_equal(opened.compare(), batch.compare())
    columns = ["prompt", "text", "score_says_number"]
    pd.testing.assert_frame_equal(opened.frame()[columns], batch.frame()[columns])
    assert len(opened.diff("v1", "v2")) == 8
    assert not opened.check(min={"says_number": 1})
    message = r"a\.ipynb holds; .*: batch\('numbers'\)\.frame\(\)$"
    for read in (notebook.scores, lambda: notebook.runs(batch="numbers")):
        with pytest.warns(UserWarning, match=message) as warned:
            assert read().empty
        assert [warning.filename for warning in warned] == [__file__]
    assert len(notebook.runs()) == 1
    with pytest.raises(nbagent.UsageError, match="its batches are numbers"):
        notebook.batch("letters")


def test_off_saves_the_name_and_the_own_store_has_the_rest(
    shell: MagicShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = some_batch()
    shell.cell("%agent config records=off")
    saved = batch_metadata(batch)["nbagent"]
    assert "Say 1" not in json.dumps(saved)
    file = write(tmp_path / "a.ipynb", saved)
    assert len(nbagent.read_notebook(file).batch().frame()) == 16
    with pytest.raises(nbagent.UsageError, match="'numbers' only the name was saved"):
        read_elsewhere(file, monkeypatch)


def test_strip_drops_a_batch(shell: MagicShell, tmp_path: Path) -> None:
    file = write(tmp_path / "a.ipynb", batch_metadata(some_batch())["nbagent"])
    assert main(["strip", str(file)]) == 0
    assert "numbers" not in file.read_text("utf-8")


def test_a_notebook_is_a_gate_without_running_it(
    shell: MagicShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    saved = batch_metadata(some_batch())["nbagent"]
    file = write(tmp_path / "a.ipynb", saved)
    monkeypatch.setenv("NBAGENT_HOME", str(tmp_path / "another-home"))
    assert main(["check", str(file), "--max-failed", "0"]) == 0
    assert main(["check", str(file), "--min", "says_number=0.9"]) == 1
    assert "says_number ≥ 0.9 [v2]" in capsys.readouterr().out
    assert main(["check", str(file), "--batch", "letters"]) == 2
    assert "it has no batch 'letters'" in capsys.readouterr().err


def cases(n: int, **more: Any) -> list[CaseResult]:
    return [
        CaseResult(row_key=str(row), labels={}, status="ok", run_id=f"{row:016x}", **more)
        for row in range(n)
    ]


@pytest.mark.parametrize(
    ("n", "text", "n_read", "note"),
    [
        (1_000, "word " * 2_000, 1_000, "texts are cut at 350 characters"),
        (1_000, '"\\\n' * 2_000, 1_000, "texts are cut at"),
        (1_000, "\ud800 ✅" * 2_000, 1_000, "texts are cut at"),
        (20_000, "short", 6_000, "cases are left out"),
    ],
    ids=["long", "escapes", "half-characters", "many"],
)
def test_a_batch_takes_at_most_a_megabyte_of_the_file(
    tmp_path: Path, n: int, text: str, n_read: int, note: str
) -> None:
    saved = to_notebook_batch("big", {}, cases(n, text=text, prompt=text), "all")
    file = write(tmp_path / "big.ipynb", saved)
    assert file.stat().st_size <= 1_000_500
    batch: Any = nbagent.read_notebook(file).batch()
    assert n_read <= len(batch) <= n
    assert note in " ".join(batch.notes)


def test_a_batch_that_is_saved_again_changes_two_lines(tmp_path: Path) -> None:
    texts: list[list[str]] = []
    for start in ("a", "b"):
        made = [replace(one, run_id=start + one.run_id[1:]) for one in cases(50, text="same")]
        file = write(tmp_path / "x.ipynb", to_notebook_batch("b", {}, made, "all"))
        texts.append(file.read_text("utf-8").splitlines())
    changed = [a for a, b in zip(*texts, strict=True) if a != b]
    assert len(changed) == 1


def test_a_secret_is_not_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    saved = to_notebook_batch(SECRET, {}, cases(3, text=SECRET, cells={"n": SECRET}), "all")
    assert SECRET not in json.dumps(saved)


DAMAGED: dict[str, Any] = {
    "no list": {"batch": 5},
    "no lines": {"batch": []},
    "no JSON": {"batch": ["{", "x"]},
    "numbers": {"batch": [1, 2, 3]},
    "half of it": {"batch": to_notebook_batch("b", {}, cases(3), "all")["batch"][:-2]},
    "newer": {"batch": ['{"nbagent_batch":"b","schema":7,"oldest_reader":7,"cases":0}', "{}"]},
}


@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_batch_costs_no_other_record(
    shell: MagicShell, tmp_path: Path, damaged: Any
) -> None:
    run = shell.agent("-m offline:demo --quiet", "Hello?")
    good = to_notebook_batch("good", {}, cases(3), "all")
    file = write(tmp_path / "x.ipynb", damaged, records_metadata(run.record)["nbagent"], good)
    with pytest.warns(UserWarning, match="a batch was left out: ") as warned:
        notebook = nbagent.read_notebook(file)
    assert len(warned) == 1
    assert ([*notebook.runs()["run_id"]], [*notebook.batches]) == ([run.id], ["good"])
    with pytest.raises(nbagent.UsageError, match="a batch was left out"):
        nbagent.read_notebook(write(file, damaged))
