"""`last` is the last run of this notebook: after a rename, a move and a copy of its file, too."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from frontends import StandIn

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.providers.offline import script
from nbagent.session import notebook_runs
from nbagent.session.frontend import Cell, use_frontend
from nbagent.session.stores import close_stores, current_store
from nbagent.store.rows import to_notebook_json


def save(file: Path, *cells: str, runs: Sequence[str] = ()) -> Path:
    """Save a notebook with these cells; the records of runs are in the output of the first one."""
    records = [to_notebook_json(current_store().load(run_id)) for run_id in runs]
    saved: list[dict[str, Any]] = [
        {"cell_type": "code", "id": cell, "source": "", "outputs": []} for cell in cells
    ]
    saved[0]["outputs"] = [{"metadata": {"nbagent": record}} for record in records]
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"cells": saved, "metadata": {}, "nbformat": 4}))
    return file


def ask(
    notebook: Path | None, cell: str | None, *, kernel: str | None = None, file: Path | None = None
) -> str:
    """Run a cell of a notebook in a fresh kernel process; gives the id of its run.

    Args:
        notebook: its path, as the front end reports it.
        cell: id of the cell.
        kernel: id of the kernel.
        file: the notebook's file, if it is not at its path any more.
    """
    open_kernel(notebook, cell, kernel, file)
    return nbagent.Agent(model=script(["Yes."])).run("Is it?").id


def last(notebook: Path | None, cell: str | None = None, *, kernel: str | None = None) -> str:
    """Id of the last run, in a fresh kernel process of the notebook."""
    open_kernel(notebook, cell, kernel)
    return nbagent.open_run("last").id


def open_kernel(
    notebook: Path | None, cell: str | None, kernel: str | None, file: Path | None = None
) -> None:
    close_stores()
    path = None if notebook is None else str(notebook)
    file_id = notebook_runs.file_id(str(file or notebook))
    here = Cell(cell_id=cell, notebook=path, kernel_id=kernel, file_id=file_id)
    use_frontend(StandIn(cell=lambda: here))


def has_no_run(notebook: Path, cell: str | None = None) -> bool:
    with pytest.raises(UsageError, match="there is no run of this notebook yet"):
        last(notebook, cell)
    return True


def test_a_renamed_notebook_keeps_its_runs_by_its_cells(tmp_path: Path) -> None:
    first = save(tmp_path / "first.ipynb", "load", "ask")
    run = ask(first, "ask")
    other = ask(save(tmp_path / "other.ipynb", "theirs"), "theirs")
    second = first.rename(tmp_path / "second.ipynb")
    assert last(second) == run
    # Again, after a run under the new name.
    newer = ask(second, "load")
    third = second.rename(tmp_path / "third.ipynb")
    assert last(third) == newer
    assert last(tmp_path / "other.ipynb") == other


def test_a_notebook_moved_to_another_folder_keeps_its_runs(tmp_path: Path) -> None:
    first = save(tmp_path / "first.ipynb", "ask")
    run = ask(first, "ask")
    (tmp_path / "reports").mkdir()
    assert last(first.rename(tmp_path / "reports" / "first.ipynb")) == run


def test_saved_records_tell_the_runs_where_the_front_end_has_other_cell_ids(
    tmp_path: Path,
) -> None:
    first = tmp_path / "first.ipynb"
    runs = [ask(first, f"vscode-notebook-cell:{first}#W{n}sZmlsZQ==") for n in range(2)]
    save(first, "one", "two", runs=runs)
    second = first.rename(tmp_path / "second.ipynb")
    assert last(second, f"vscode-notebook-cell:{second}#W0sZmlsZQ==") == runs[1]


def test_a_restarted_kernel_finds_its_runs_before_the_renamed_notebook_was_saved(
    tmp_path: Path,
) -> None:
    untitled = save(tmp_path / "Untitled.ipynb", "empty")
    run = ask(untitled, "new", kernel="k1")
    analysis = untitled.rename(tmp_path / "analysis.ipynb")
    assert last(analysis, kernel="k1") == run
    # The front end may still report the old name, which another notebook has now.
    other = ask(save(untitled, "other"), "other", kernel="k2")
    assert last(untitled, kernel="k1") == other, "runs of the name and of the kernel: the newest"
    newer = ask(untitled, "new", kernel="k1")
    assert last(analysis, kernel="k1") == newer


def test_a_copy_begins_a_history_of_its_own(tmp_path: Path) -> None:
    first = save(tmp_path / "first.ipynb", "ask")
    run = ask(first, "ask")
    save(first, "ask", runs=[run])
    copy = Path(shutil.copy(first, tmp_path / "first-Copy1.ipynb"))
    assert has_no_run(copy, "ask")
    mine = ask(copy, "ask")
    assert (last(copy), last(first)) == (mine, run)
    # Both are renamed: each keeps its own.
    assert last(copy.rename(tmp_path / "b.ipynb")) == mine
    assert last(first.rename(tmp_path / "a.ipynb")) == run


def test_a_copy_stays_one_when_the_cell_is_deleted_in_the_original(tmp_path: Path) -> None:
    first = save(tmp_path / "first.ipynb", "load", "ask")
    run = ask(first, "ask")
    copy = Path(shutil.copy(first, tmp_path / "copy.ipynb"))
    save(first, "load")
    assert last(first) == run
    assert has_no_run(copy)


def test_notebooks_with_the_same_cell_ids_keep_their_runs_apart(tmp_path: Path) -> None:
    files = [save(tmp_path / f"{name}.ipynb", "a", "b") for name in ("one", "two", "three")]
    runs = [ask(file, "a") for file in files[:2]]
    assert [last(file) for file in files[:2]] == runs
    assert has_no_run(files[2], "a")
    files[0].unlink()
    assert last(files[1]) == runs[1]
    assert last(files[2]) == runs[0], "no notebook that exists has it"


def test_a_new_notebook_has_no_run_of_the_renamed_one_whose_name_it_has(tmp_path: Path) -> None:
    untitled = save(tmp_path / "Untitled.ipynb", "ask")
    run = ask(untitled, "ask")
    analysis = untitled.rename(tmp_path / "analysis.ipynb")
    save(untitled, "new")
    assert last(analysis) == run
    assert has_no_run(untitled)
    mine = ask(untitled, "new")
    # The process of the renamed notebook knows only its first name.
    newer = ask(untitled, "ask", file=analysis)
    assert (last(untitled), last(analysis)) == (mine, newer)


def test_a_copy_of_a_renamed_notebook_has_none_of_its_runs(tmp_path: Path) -> None:
    first = save(tmp_path / "first.ipynb", "ask")
    run = ask(first, "ask")
    save(first, "ask", runs=[run])
    second = first.rename(tmp_path / "second.ipynb")
    copy = Path(shutil.copy(second, tmp_path / "copy.ipynb"))
    assert has_no_run(copy, "ask")
    assert last(second) == run


def test_a_copy_that_takes_the_old_name_has_none_of_the_runs(tmp_path: Path) -> None:
    first = save(tmp_path / "first.ipynb", "ask")
    run = ask(first, "ask")
    second = first.rename(tmp_path / "second.ipynb")
    shutil.copy(second, first)
    assert last(second) == run
    assert has_no_run(first, "ask")


def test_another_notebook_with_the_old_name_keeps_no_run_back(tmp_path: Path) -> None:
    first = save(tmp_path / "first.ipynb", "ask")
    run = ask(first, "ask", file=tmp_path / "unknown")
    second = first.rename(tmp_path / "second.ipynb")
    save(first, "other")
    assert last(second) == run


def test_another_notebook_in_a_file_that_was_used_before_keeps_no_run_back(tmp_path: Path) -> None:
    first = save(tmp_path / "first.ipynb", "ask")
    run = ask(first, "ask")
    second = Path(shutil.copy(first, tmp_path / "second.ipynb"))
    # The system gives the inode of a deleted file to a new one.
    save(first, "other").rename(tmp_path / "other.ipynb")
    assert last(second) == run


def test_a_file_that_was_replaced_keeps_the_runs(tmp_path: Path) -> None:
    first = save(tmp_path / "first.ipynb", "ask")
    run = ask(first, "ask")
    # As git does: a new file under the old name, then under a new one.
    kept = first.rename(tmp_path / "kept.txt")
    shutil.copy(kept, first)
    assert last(first) == run
    assert last(first.rename(tmp_path / "second.ipynb")) == run


def test_a_notebook_that_was_never_saved_goes_by_its_name(tmp_path: Path) -> None:
    missing = tmp_path / "Untitled-1.ipynb"
    run = ask(missing, "ask")
    assert last(missing) == run
    assert has_no_run(tmp_path / "Untitled-2.ipynb", "ask")
    other = ask(None, None)
    assert last(None) == other, "without a name, the last run of the store"


def test_only_runs_of_the_own_store_are_found(tmp_path: Path) -> None:
    run = ask(None, None)
    theirs = save(tmp_path / "theirs.ipynb", "ask", runs=[run])
    nbagent.forget(run)
    assert has_no_run(theirs, "ask")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "not JSON",
        "[" * 100_000,
        '{"cells": 5}',
        '{"cells": [5, {"id": 5, "outputs": 5}, {"id": null, "outputs": [5, {"metadata": 5}]}]}',
        '{"cells": [{"id": "\\ud800", "outputs": [{"metadata": {"nbagent": [5, {"runs": 5}, '
        '{"runs": [{"run_id": 5}]}, {"escaped": "{"}]}}]}]}',
    ],
    ids=["empty", "list", "text", "deep", "no cells", "no objects", "no records"],
)
def test_a_broken_notebook_file_fails_no_cell(content: str, tmp_path: Path) -> None:
    run = ask(tmp_path / "gone.ipynb", "ask")
    broken = tmp_path / "broken.ipynb"
    broken.write_text(content)
    assert has_no_run(broken, "ask")
    assert last(tmp_path / "gone.ipynb") == run


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ipynb")
    (tmp_path / "folder.ipynb").mkdir()
    ask(tmp_path / "gone.ipynb", "ask")
    assert has_no_run(tmp_path / "pipe.ipynb")
    assert has_no_run(tmp_path / "folder.ipynb")
    run = ask(save(tmp_path / "new.ipynb", "a"), "b")
    assert last(tmp_path / "new.ipynb") == run
