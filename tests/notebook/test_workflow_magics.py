"""A workflow in a notebook: from `%%agent --workflow` over pauses and the document to its end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from magic_shell import MagicShell

import nbagent
from nbagent.run import Run

PACKAGE = Path(__file__).parents[2] / "notebooks" / "packages" / "table-review"
TABLE = "station,temperature\nOslo,3.1\nBergen,-99\n"


@pytest.fixture
def project(shell: MagicShell, tmp_path: Path) -> Path:
    """The folder of the notebook, with a package and a table; nobody has to be asked."""
    shutil.copytree(PACKAGE, tmp_path / "table-review")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "stations.csv").write_text(TABLE)
    nbagent.configure(model="offline:demo", allow=["fs.write"])
    return tmp_path


def current(run: Run) -> str:
    assert run.workflow is not None
    return run.workflow.current_node


def test_a_workflow_pauses_for_the_person_and_goes_on_to_its_end(
    shell: MagicShell, project: Path
) -> None:
    run = shell.agent("--workflow table-review", "")
    assert (run.phase, current(run)) == ("WaitingUser", "step-01-scope")
    seen = shell.said("%agent workflow table-review")
    assert "▶ step-01-scope" in seen
    run = shell.agent("--continue", "Forecasts; temperature matters most.")
    while current(run) != "step-05-approve":
        shell.cell("%agent resume")
        run = shell.user_ns["_run"]
    seen = shell.said("%agent workflow table-review")
    assert "▶ step-05-approve" in seen
    assert "✓×2 step-03-clean" in seen
    assert "publish" in shell.agent("--continue", "").text
    run = shell.agent("--continue", "publish")
    assert current(run) == "step-06-report"
    shell.cell("%agent resume")
    run = shell.user_ns["_run"]
    assert (run.phase, run.stop_reason) == ("Completed", "workflow_complete")
    moves = nbagent.transitions()
    assert moves["accepted"].tolist() == [True] * len(moves)
    assert moves["to_node"].tolist()[-1] == "step-06-report"
    assert (project / "artifacts" / "table-review" / "report.md").is_file()
    assert "is complete" in shell.refused("%agent resume").message


def test_a_document_goes_on_with_and_without_the_conversation(
    shell: MagicShell, project: Path
) -> None:
    run = shell.agent("--workflow table-review", "")
    file = run.workflow.document.path
    seen = shell.said(f"%agent workflow {file}")
    assert "▶ step-01-scope" in seen
    shell.cell(f"%agent resume {file}")
    alone = shell.user_ns["_run"]
    assert (alone.record.parent_id, len(alone.request_of("C01").messages)) == (None, 2)
    shell.cell(f"%agent resume {file} --with-history --autopilot off")
    whole = shell.user_ns["_run"]
    assert whole.record.parent_id == alone.id
    assert len(whole.messages) > len(alone.messages)
    shell.cell("%agent forget last --children")
    file.unlink()
    assert "no document" in shell.refused(f"%agent resume {alone.id}").message


REFUSED = {
    "unknown package": ("%%agent --workflow nowhere", "there is no", "nowhere"),
    "unknown agent": ("%%agent --agent olaf", "olaf", "agents"),
    "no document": ("%agent resume nowhere.md", "nowhere.md", ""),
    "no such history": ("%agent resume state.md --with-history", "state.md", ""),
    "a package as document": ("%agent workflow nowhere.md", "nowhere.md", ""),
}


@pytest.mark.parametrize(("line", "word", "other"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_one_line(
    shell: MagicShell, project: Path, line: str, word: str, other: str
) -> None:
    error = shell.refused(line, "Hi")
    assert word in error.message
    assert other in error.message
    assert "\n" not in error.message
