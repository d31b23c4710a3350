"""Approved writes: what was shown is what is written, and what an answer for the session covers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from frontends import StandIn
from session.approval_stage import Asked, View, only, ran

import nbagent
from nbagent.contracts.approval import PersonAnswer, PreviewPiece, Question
from nbagent.contracts.events import ApprovalRequested
from nbagent.contracts.ports import RunControls
from nbagent.providers.offline import call, calls
from nbagent.session.frontend import use_frontend

UNSEEN = "written by another program\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.md").write_text("old\n")
    return tmp_path


class Editor:
    """A person who edits a call in the view: the first answer is an edit, then the next ones."""

    def __init__(self, edit: dict[str, Any], *, previews: bool, meanwhile: Any, then: str) -> None:
        self.edit, self.previews, self.meanwhile, self.then = edit, previews, meanwhile, then
        self.questions: list[Question] = []

    def __call__(self, controls: RunControls, event: ApprovalRequested) -> None:
        self.questions.append(event.question)
        if len(self.questions) > 1:
            controls.answer(event.tool_call_id, PersonAnswer(choice=self.then))  # type: ignore[arg-type]
            return
        if self.previews:
            shown = threading.Event()

            def show(why: str, pieces: Sequence[PreviewPiece]) -> None:
                shown.set()

            assert controls.preview(event.tool_call_id, self.edit, show)
            assert shown.wait(10)
        self.meanwhile()
        controls.answer(event.tool_call_id, PersonAnswer(choice="once", arguments=self.edit))


EDITS: dict[str, tuple[dict[str, Any], bool, str, int, str]] = {
    # the edit, whether its preview was shown, the file that changes then, questions, the reason
    "shown, nothing changes": ({"path": "a.md", "content": "new\n"}, True, "", 1, ""),
    "shown, its file changes": ({"path": "a.md", "content": "new\n"}, True, "a.md", 2, "changed"),
    "not shown, same file": ({"path": "a.md", "content": "new\n"}, False, "", 1, ""),
    "not shown, it changes": ({"path": "a.md", "content": "new\n"}, False, "a.md", 2, "not shown"),
    "other file, shown": ({"path": "b.md", "content": "new\n"}, True, "", 1, ""),
    "other file, it appears": ({"path": "b.md", "content": "new\n"}, True, "b.md", 2, "changed"),
    "other file, not shown": ({"path": "b.md", "content": "new\n"}, False, "", 2, "not shown"),
    "other file, first changes": ({"path": "b.md", "content": "new\n"}, True, "a.md", 1, ""),
}


@pytest.mark.parametrize("case", EDITS)
@pytest.mark.parametrize("then", ["once", "deny"])
def test_an_edited_call_is_bound_to_what_was_shown_of_it(
    project: Path, case: str, then: str
) -> None:
    edit, previews, changed, questions, reason = EDITS[case]

    def meanwhile() -> None:
        if changed:
            (project / changed).write_text(UNSEEN)

    editor = Editor(edit, previews=previews, meanwhile=meanwhile, then=then)
    use_frontend(StandIn(view=View(editor).open))
    run, _ = ran(call("fs.write", path="a.md", content="x"), tools=["fs.write"])
    assert len(editor.questions) == questions
    target = project / edit["path"]
    if questions == 2:
        second = editor.questions[1]
        assert reason in second.why
        assert second.arguments == edit
        if changed:
            assert "-written by another program" in second.pieces[0].text
    if questions == 2 and then == "deny":
        assert only(run).approval == "denied"
        assert not target.exists() or target.read_text() == (UNSEEN if changed else "old\n")
    else:
        assert (only(run).approval, only(run).args) == ("edited", edit)
        assert target.read_text() == "new\n"


def test_an_edit_of_a_program_is_bound_to_the_state_of_the_question(project: Path) -> None:
    def edit(question: Question) -> dict[str, str]:
        if len(answer.questions) == 1:
            (project / "a.md").write_text(UNSEEN)
        return {"path": "a.md", "content": f"edit {len(answer.questions)}\n"}

    answer = Asked(edit)
    run, _ = ran(call("fs.write", path="a.md", content="x"), tools=["fs.write"], answer=answer)
    assert "-written by another program" in answer.questions[1].pieces[0].text
    assert only(run).args == {"path": "a.md", "content": "edit 2\n"}


def test_true_is_another_argument_than_one() -> None:
    got: list[object] = []

    @nbagent.tool(ask=True)
    def keep(value: Any) -> str:
        """Keep a value."""
        got.append(value)
        return "kept"

    run, _ = ran(call("keep", value=1), tools=[keep], answer=Asked({"value": True}))
    assert (only(run).approval, got, type(got[0])) == ("edited", [True], bool)


# --- for the session ----------------------------------------------------------------------------


def write(path: str, content: str) -> Any:
    return call("fs.write", path=path, content=content)


def test_an_answer_for_the_session_covers_later_writes_of_the_file(project: Path) -> None:
    answer = Asked("session")
    steps = [write("a.md", "1\n"), write("./a.md", "2\n"), write("b.md", "b\n")]
    steps.append(call("fs.apply_patch", path="a.md", oldText="2", newText="3"))
    run, _ = ran(*steps, tools=["fs.write", "fs.apply_patch"], answer=answer)
    assert [question.scope for question in answer.questions] == [
        "every fs.write of @project/a.md",
        "every fs.write of @project/b.md",
        "every fs.apply_patch of @project/a.md",
    ]
    first, second, *_ = [tool_run for turn in run.turns for tool_run in turn.tool_runs]
    assert (first.approved_by, first.printed) == ("callback", "")
    assert second.approved_by == "session"
    assert "-1\n+2" in second.printed, "nobody was asked, so the card shows the diff"
    assert (project / "a.md").read_text() == "3\n"
    assert nbagent.open_run(run.id).turns[1].tool_runs[0].printed == second.printed


def test_an_answer_for_the_session_ends_where_the_session_or_a_rule_does(project: Path) -> None:
    answer = Asked("session")
    ran(write("a.md", "1\n"), tools=["fs.write"], answer=answer)
    ran(write("a.md", "2\n"), tools=["fs.write"], answer=answer, session="another")
    assert len(answer.questions) == 2
    denied = nbagent.ToolPolicy(deny=["fs.write(path=a.md)"])
    run, _ = ran(write("a.md", "3\n"), tools=["fs.write"], answer=answer, policy=denied)
    assert (only(run).approval, only(run).approved_by) == ("denied", "policy")
    assert (project / "a.md").read_text() == "2\n"


def test_the_folder_behind_the_name_is_part_of_the_answer(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    answer = Asked("session")
    for number in (1, 2):
        folder = tmp_path_factory.mktemp("data")
        mounts = [f"data={folder}:rw"]
        ran(write("@data/a.md", "1\n"), tools=["fs.write"], answer=answer, mounts=mounts)
        assert len(answer.questions) == number


def test_two_writes_of_one_answer_never_write_what_their_diffs_do_not_show(project: Path) -> None:
    answer = Asked("session")
    ran(write("a.md", "1\n"), tools=["fs.write"], answer=answer)
    run, _ = ran(
        calls([write("a.md", "2\n"), write("a.md", "3\n")]), tools=["fs.write"], answer=answer
    )
    assert len(answer.questions) == 1
    for tool_run in run.turns[0].tool_runs:
        assert "-1" in tool_run.printed
    oks = [tool_run.result.ok for tool_run in run.turns[0].tool_runs]
    assert oks.count(True) == 1


# --- two answers --------------------------------------------------------------------------------


ANSWERS = {
    "yes, then no": ("once", "deny", "allowed once in the view", True),
    "no, then yes": ("deny", "once", "denied in the view", True),
    "yes, then for the session": ("once", "session", "allowed once in the view", True),
    "the same twice": ("once", "once", "allowed once in the view", False),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_a_later_answer_is_told_that_and_how_the_question_was_answered(
    project: Path, case: str
) -> None:
    first, later, outcome, is_notice = ANSWERS[case]
    taken: list[bool] = []
    told: list[str] = []
    pressed = threading.Event()

    def press(controls: RunControls, event: ApprovalRequested) -> None:
        for choice in (first, later, later):
            answer = PersonAnswer(choice=choice)  # type: ignore[arg-type]
            taken.append(controls.answer(event.tool_call_id, answer))
            told.append(controls.answered(event.tool_call_id))
        pressed.set()

    @nbagent.tool
    def wait() -> bool:
        """Keep the run from ending before the last answer."""
        return pressed.wait(30)

    view = View(press)
    use_frontend(StandIn(view=view.open))
    run, _ = ran(write("a.md", "1\n"), call("wait"), tools=["fs.write", wait])
    assert taken == [True, False, False]
    assert told == [f"this question was already answered: {outcome}"] * 3
    decided = run.turns[0].tool_runs[0]
    assert (decided.approval == "denied") == (first == "deny")
    notices = [text for text in run.record.notices if "already answered" in text]
    assert len(notices) == is_notice, "one notice for the person, not one per click"


@pytest.mark.parametrize("by", ["on_approval", "input()"])
def test_a_click_on_a_question_that_another_answers_is_not_taken(project: Path, by: str) -> None:
    pressed = threading.Event()
    taken: list[tuple[bool, str]] = []

    def press(controls: RunControls, event: ApprovalRequested) -> None:
        took = controls.answer(event.tool_call_id, PersonAnswer(choice="deny"))
        taken.append((took, controls.answered(event.tool_call_id)))
        pressed.set()

    def ask(question: Question) -> PersonAnswer:
        assert pressed.wait(10)
        return PersonAnswer(choice="once")

    view = View(press)
    if by == "input()":
        view.can_answer = None  # type: ignore[assignment]
    use_frontend(StandIn(view=view.open, ask=ask))
    answer = ask if by == "on_approval" else None
    run, _ = ran(write("a.md", "1\n"), tools=["fs.write"], answer=answer)
    assert taken == [(False, f"answered by {by} only")]
    assert only(run).approval == "allowed"
