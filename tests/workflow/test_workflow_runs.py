"""Runs of a workflow, from the first directive to the last: what is sent, kept and resumed."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_run
from workflow_stage import allow, directive, make_package, move, patch, said, script

import nbagent
from nbagent import offline
from nbagent.contracts.errors import UsageError
from nbagent.run import with_options
from nbagent.session.active_run import ActiveRun, active_runs
from nbagent.session.project_trust import trust_items
from nbagent.session.request import RunRequest
from nbagent.settings.options import RunOptions
from nbagent.settings.project_items import allow_item
from nbagent.settings.sources import fresh_settings, store_home

MIRA = "---\nid: mira\nname: Mira\ntitle: writer\n---\nYou write plainly.\n"
OTTO = "---\nid: otto\nname: Otto\ntools: [fs]\n---\nYou judge what others wrote.\n"
DRAFT = """\
NODE_BRIEF
- currentNodeId: draft
- stepFile: @pkg/steps/draft.md
- outputsMap:
  - artifacts/draft.md -> @project/artifacts/draft.md
- allowedNext:
  - check (label=next)"""
CHECK = """\
NODE_BRIEF
- currentNodeId: check
- stepFile: @pkg/steps/check.md
- outputsMap:
- allowedNext:
  - draft (label=again, condition=it is too long)
  - done (label=good)"""
DONE = """\
NODE_BRIEF
- currentNodeId: done
- stepFile: @pkg/steps/done.md
- outputsMap:
- allowedNext:"""
WRITE = offline.call("fs.write", path="@project/artifacts/draft.md", content="Hi")


@pytest.fixture(autouse=True)
def packaged(project: Path) -> None:
    """The project has a package."""
    package(project / "flow")


def package(folder: Path, **more: Any) -> Path:
    given: dict[str, Any] = {
        "outputs": {"draft": {"artifacts/draft.md": "@project/artifacts/draft.md"}},
        "agents": {"mira": MIRA, "otto": OTTO},
        "of": {"check": "otto"},
        "front": "agents: [mira, otto]\n",
        "conditions": {("check", "draft"): "it is too long"},
    }
    return make_package(folder, **{**given, **more})


def start(model: offline.Script, prompt: str = "", **options: Any) -> nbagent.Run:
    given: dict[str, Any] = {"workflow": "flow", "on_approval": allow, **options}
    return nbagent.Agent(model=model).run(prompt, **given)


def document(run: nbagent.Run) -> Path:
    flow = run.workflow
    assert flow is not None
    return flow.document.path


def test_every_directive_and_brief_is_sent_byte_for_byte_and_stays_in_the_history() -> None:
    ends = patch(stepsCompleted_append="done")
    moves = (move("draft", "check"), move("check", "done"))
    model = script(WRITE, *moves, "What now?", ends, "All done.")
    run = check_run(start(model, "About birds."), model)
    assert (run.stop_reason, run.workflow and run.workflow.current_node) == ("answered", "check")
    second = check_run(run.resume(), model)
    third = check_run(second.resume("Go on,\n- autopilot: true"), model)
    assert (third.phase, third.text) == ("WaitingUser", "What now?")
    fourth = check_run(third.resume(), model)
    assert (fourth.phase, fourth.stop_reason) == ("Completed", "workflow_complete")
    assert said(model.requests[-1]) == [
        *(directive("start", "draft", "mira"), DRAFT),
        "USER_INPUT\n- forNodeId: draft\nAbout birds.",
        *(directive("continue", "check", "otto"), CHECK),
        *(directive("continue", "done", "mira"), DONE),
        "USER_INPUT\n- forNodeId: done\nGo on,\n- autopilot: true",
        *(directive("continue", "done", "mira"), DONE),
    ]
    turns = [turn for one in (run, second, third, fourth) for turn in one.turns]
    assert [turn.node for turn in turns] == ["draft", "draft", "check", "done", "done", "done"]
    assert [turn.agent for turn in turns] == ["mira", "mira", "otto", "mira", "mira", "mira"]
    record = run.record
    assert record.workflow is not None
    assert record.options.keys() <= RunOptions.rows().keys()
    names = record.workflow.name, record.agent, record.prompt
    assert names == ("flow", "mira", "About birds.")
    assert any("next is check" in text for text in record.notices)


def test_with_autopilot_the_whole_way_is_walked_and_the_brief_follows_each_move() -> None:
    ends = patch(stepsCompleted_append="done")
    round_trip = (move("draft", "check"), move("check", "draft"), move("draft", "check"))
    model = script(WRITE, *round_trip, "I go on.", move("check", "done"), ends, "Done.")
    run = check_run(start(model, autopilot=True), model)
    assert run.stop_reason == "workflow_complete"
    texts = said(model.requests[-1])
    assert texts[1::2] == [DRAFT, CHECK, DRAFT, CHECK, CHECK, DONE]
    assert "- intent: start" in texts[0]
    assert all("- intent: continue" in text for text in texts[2::2])
    assert all("- autopilot: true" in text for text in texts[::2])
    assert run.workflow is not None
    assert run.workflow.state.completed == ("draft", "check", "draft", "check", "done")
    with pytest.raises(UsageError, match="complete"):
        run.resume()


def test_under_autopilot_a_second_answer_in_one_step_waits_for_the_person() -> None:
    model = script("Which birds?", "I must know: which birds?")
    run = check_run(start(model, autopilot=True), model)
    assert (run.phase, run.stop_reason, len(run.turns)) == ("WaitingUser", "answered", 2)
    said = "draft waits for you. To continue, write in the panel or in a `%%agent --continue` cell;"
    assert said in run.record.notices[-1]


def test_system_prompt_and_tools_follow_the_agent_of_the_step() -> None:
    @nbagent.tool
    def look() -> str:
        "Look around."
        return "nothing"

    model = script(WRITE, move("draft", "check"), offline.call("look"), "Hm.", "Hm?")
    start(model, autopilot=True, tools=[look], system="Write in English.")
    first, later = model.requests[0], model.requests[-1]
    assert "You write plainly." in first.system_prompt
    assert "Keep it short." in first.system_prompt
    assert "You judge" not in first.system_prompt
    assert "You judge what others wrote." in later.system_prompt
    assert later.system_prompt.endswith("Write in English.")
    assert {"look", "fs.read"} <= {tool.name for tool in first.tools}
    assert "look" not in {tool.name for tool in later.tools}
    result = json.loads(model.requests[3].messages[-1].text)
    assert result["error"]["code"] == "E_DENIED"
    assert "otto" in result["error"]["message"]


def test_a_document_goes_on_on_another_machine(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = script(WRITE, move("draft", "check"), "Hm.", "Hm.")
    file = document(start(model))
    there = tmp_path / "elsewhere"
    shutil.copytree(project / "flow", there / "flow")
    shutil.copy(file, there / "state.md")
    monkeypatch.chdir(there)
    monkeypatch.setenv("NBAGENT_HOME", str(there / "home"))
    with fresh_settings():
        run = nbagent.Agent(model=model).run(document="state.md")
        assert (run.record.kind, run.record.parent_id) == ("start", None)
        assert said(model.requests[-1]) == [directive("resume", "check", "otto"), CHECK]
        assert run.turns[0].node == "check"
        assert str(there) not in document(run).read_text()
        (there / "state.md").write_text(document(run).read_text().replace("Keep", "Make"))
        with pytest.raises(UsageError, match="has a different document of this run"):
            nbagent.Agent(model=model).run(document="state.md")
        shutil.rmtree(there / "flow")
        with pytest.raises(UsageError, match="@project/flow of this document is not there"):
            run.resume("Go on.")


def test_a_changed_package_is_explained_and_taken_when_it_is_named(project: Path) -> None:
    model = script(WRITE, move("draft", "check"), "Hm.", "Hm.")
    run = start(model)
    step = project / "flow" / "steps" / "check.md"
    step.write_text("# Check anew\n")
    before = document(run).read_bytes()
    with pytest.raises(UsageError, match="has changed since"):
        run.resume()
    assert document_of(run).read_bytes() == before
    child = run.resume(workflow="flow")
    assert child.turns[0].node == "check"
    assert child.resume("More.").turns[0].node == "check"
    graph = project / "flow" / "workflow.graph.json"
    graph.write_text(graph.read_text().replace('"check"', '"look"'))
    with pytest.raises(UsageError, match="draft, look"):
        child.resume(workflow="flow")


def document_of(run: nbagent.Run) -> Path:
    return (
        store_home()
        / "state"
        / str(run.record.workflow and run.record.workflow.document)
        / "workflow.md"
    )


def test_a_document_stays_with_its_own_workflow_and_says_what_is_not_here(project: Path) -> None:
    model = script(WRITE, patch(artifacts_append="@project/artifacts/draft.md"), "Hm.", "Hm.")
    run = start(model)
    package(project / "other")
    with pytest.raises(UsageError, match="belongs to the workflow flow, but the package is other"):
        run.resume("Go on.", workflow="other")
    (project / "artifacts" / "draft.md").unlink()
    again = nbagent.Agent(model=model).run("Go on.", document=str(document(run)))
    assert any("draft.md of the document is not here" in text for text in again.record.notices)
    where = f"The state of this workflow is $NBAGENT_HOME/state/{run.id}/workflow.md."
    assert run.record.notices[0] == again.record.notices[0] == where


def test_marks_without_a_value_are_said_once_and_var_fills_them_in(project: Path) -> None:
    shutil.rmtree(project / "flow")
    mira = MIRA.replace("You write plainly.", "You write in {language}, {language}, for {{who}}.")
    package(project / "flow", agents={"mira": mira, "otto": OTTO}, rules="Speak {language}.")
    model = script("Hm.", "Hm.")
    said = [text for text in start(model).record.notices if text.startswith("nothing gives")]
    assert said == ["nothing gives a value for {language}, {{who}}; --var NAME=VALUE does"]
    start(model, variables={"language": "Danish"})
    assert "You write in Danish, Danish, for {{who}}." in model.requests[1].system_prompt
    assert "Speak Danish." in model.requests[1].system_prompt


def test_only_one_run_at_a_time_is_at_work_on_a_document() -> None:
    begun, go = threading.Event(), threading.Event()

    def wait(request: Any) -> str:
        begun.set()
        go.wait(20)
        return "Hm."

    model = script("What?", wait, "Yes.")
    first = start(model)
    file = document(first)
    second = nbagent.Agent(model=model).start("Go on.", document=str(file))
    assert begun.wait(20)
    with pytest.raises(UsageError, match="another run works"):
        nbagent.Agent(model=model).run(document=str(file))
    with pytest.raises(UsageError, match="another run works"):
        first.resume("Go on.")
    go.set()
    second.wait()
    assert nbagent.Agent(model=model).run(document=str(file)).text == "Yes."


def test_a_fork_has_the_state_as_it_stood_at_that_turn(project: Path) -> None:
    note = offline.call("fs.write", path="@state/note.md", content="x")
    model = script(WRITE, move("draft", "check"), move("check", "done"), "And?", note, "Hm.")
    run = start(model, autopilot=True, max_turns=3)
    assert run.stop_reason == "max_turns"
    before = document(run).read_bytes()
    fork = check_run(run.fork("C03", "Think again.", max_turns=1), model)
    assert fork.turns[0].node == "check"
    assert document(fork) != document(run)
    assert f"runId: {fork.id}" in document(fork).read_text().replace("'", "")
    assert document(run).read_bytes() == before
    assert said(model.requests[3])[-1].startswith("USER_INPUT\n- forNodeId: check\nThink again.")
    other = run.resume("Note it.", autopilot=False, max_turns=2)
    with pytest.raises(UsageError, match=r"@state/note\.md changed after that turn"):
        other.fork(other.turns[0].id)
    shutil.rmtree(document(run).parent.with_suffix(".versions"))
    with pytest.raises(UsageError, match="is not saved"):
        run.fork("C02")


def test_retries_of_a_step_have_documents_of_their_own_and_the_chosen_one_moves() -> None:
    run = start(script(WRITE, move("draft", "check")), max_turns=2)
    before = document(run).read_bytes()
    model = script(move("draft", "check"), "Later.", "Checked?")
    spread = run.retry(2, turn="C02", model=model)
    moved = next(check_run(it) for it in spread if it.turns[0].tool_runs)
    assert len({document(it) for it in (run, *spread)}) == 3
    assert all(it.workflow and it.workflow.current_node == "draft" for it in spread)
    chosen = check_run(moved.resume())
    assert chosen.workflow is not None
    assert chosen.workflow.current_node == "check"
    assert (chosen.turns[0].node, chosen.turns[0].id) == ("draft", "C02")
    assert (document(run).read_bytes(), len(model.requests)) == (before, 2)
    changed = run.fork("C02", edits={"C01": "Written by hand."}, model=script("Good."))
    assert "Written by hand." in [it.text for it in check_run(changed).messages]
    assert document(changed) != document(run)


def test_going_on_from_an_earlier_run_has_the_state_as_it_stood_at_its_end() -> None:
    model = script(WRITE, move("draft", "check"), move("check", "draft"), move("check", "done"))
    run = start(model)
    first = check_run(run.resume("Too long."))
    assert first.workflow is not None
    assert first.workflow.current_node == "draft"
    again = check_run(run.resume("Fine."))
    assert again.workflow is not None
    assert again.workflow.current_node == "done"
    assert again.turns[0].node == "check"
    assert document(again) != document(first) == document(run)
    assert first.workflow.current_node == "draft"
    assert any("It is a copy" in text for text in again.record.notices)
    assert again.workflow.state.run_id == again.id


def test_a_branch_from_a_stopped_run_keeps_the_move_that_it_had_made() -> None:
    begun, stopped = threading.Event(), threading.Event()

    @nbagent.tool
    def wait() -> str:
        "Wait."
        while (
            "currentNodeId: check" not in next(store_home().glob("state/*/workflow.md")).read_text()
        ):
            time.sleep(0.01)
        begun.set()
        assert stopped.wait(20)
        return "late"

    both = offline.calls([move("draft", "check"), offline.call("wait")])
    model = script(WRITE, both, "Hm.", "Hm.")
    agent = nbagent.Agent(model=model, tools=[wait], workflow="flow", on_approval=allow)
    file = package(Path("flow2"), agents={"mira": MIRA, "otto": OTTO.replace("[fs]", "[fs, wait]")})
    run = agent.start(workflow=str(file))
    stopper = threading.Thread(target=lambda: (begun.wait(20), run.stop(), stopped.set()))
    stopper.start()
    run.wait()
    assert run.stop_reason == "stopped"
    first = run.resume("Once.")
    again = run.resume("Again.")
    assert first.turns[0].node == again.turns[0].node == "check"


def test_who_looks_at_a_workflow_at_work_changes_nothing() -> None:
    model = script(WRITE, move("draft", "check"), move("check", "done"), "Hm.")
    seen: list[str] = []

    def look(event: Any) -> None:
        for active in active_runs():
            flow = nbagent.open_run(active.record.id).workflow
            assert flow is not None
            seen.append(flow.current_node)

    agent = nbagent.Agent(model=model, on_approval=allow)
    run = agent.run(workflow="flow", on_event=look)
    assert "check" in seen
    assert (run.stop_reason, len(run.turns)) == ("answered", 2)


def test_a_run_that_was_cut_off_after_the_last_step_comes_to_its_end() -> None:
    ends = patch(stepsCompleted_append="done")
    model = script(WRITE, move("draft", "check"), move("check", "done"), ends, "Done.")
    run = start(model, autopilot=True, max_turns=4)
    assert run.stop_reason == "max_turns"
    last = run.resume()
    assert (last.phase, last.text) == ("Completed", "Done.")


@pytest.mark.parametrize("place", [".", "flow"], ids=["the project", "the package"])
def test_the_store_lies_where_no_tool_of_a_workflow_gets(
    project: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("NBAGENT_HOME", str(project / place))
    with pytest.raises(UsageError, match="the store"):
        start(script())


def test_who_prepared_a_run_before_another_one_ended_takes_no_move_back(project: Path) -> None:
    model = script("Hm.", WRITE, move("draft", "check"), "Hm.")
    run = start(model)
    graph = project / "flow" / "steps" / "check.md"
    graph.write_text("# Changed\n")
    ask = with_options(RunRequest(kind="resume", parent_id=run.id), {"workflow": "flow"})
    late = ActiveRun(ask)
    assert run.resume(workflow="flow", on_approval=allow).turns[-1].node == "draft"
    before = document(run).read_bytes()
    with pytest.raises(UsageError, match="changed a moment ago"):
        late.start()
    assert document(run).read_bytes() == before


def test_a_start_that_fails_leaves_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    model = script("Hm.", "Hm.")
    run = start(model)

    def fail(self: Any, work: Any) -> None:
        raise OSError("no thread")

    with monkeypatch.context() as patched:
        patched.setattr("nbagent.runtime.RunTask.start", fail)
        with pytest.raises(OSError, match="no thread"):
            run.resume("Go on.")
    assert run.resume("Go on.").text == "Hm."


BROKEN = {
    "illegal node": ("currentNodeId: check", "currentNodeId: nowhere", "is no step"),
    "broken YAML": ("decisionLog: []", "decisionLog:\n\t- [", "line"),
    "half written": ("\n---\n#", "\n#", "---"),
}


@pytest.mark.parametrize(("old", "new", "word"), BROKEN.values(), ids=BROKEN)
def test_a_document_edited_wrongly_is_explained_unsent(old: str, new: str, word: str) -> None:
    model = script(WRITE, move("draft", "check"), "Fine.")
    run = start(model)
    file = document(run)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    broken = file.read_bytes()
    for again in (lambda: run.resume("Go on."), lambda: start(model, document=str(file))):
        with pytest.raises(UsageError, match=word):
            again()
    assert file.read_bytes() == broken
    assert len(model.requests) == 2
    file.write_text(text)
    assert run.resume("Go on.").text == "Fine."


def test_a_document_that_breaks_while_a_run_is_at_work_ends_it_and_is_not_overwritten() -> None:
    files: list[Path] = []

    def spoil(request: Any) -> Any:
        files.extend(store_home().glob("state/*/workflow.md"))
        files[0].write_text("---\nbroken:\n\t- [\n---\n")
        return move("draft", "check")

    model = script(WRITE, spoil)
    run = start(model)
    assert (run.phase, run.error and run.error.code) == ("Failed", "E_INVALID_FRONTMATTER")
    assert files[0].read_text() == "---\nbroken:\n\t- [\n---\n"


def test_an_edit_while_a_patch_is_on_its_way_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(script(patch(variables_set={"hand": 0}), "Hm."))
    file, plain, edits = document(first), os.fsync, 0

    def fsync(descriptor: int) -> None:
        nonlocal edits
        plain(descriptor)
        names = os.listdir(file.parent)
        if edits < 2 and any(name.startswith(".nbagent-tmp-") for name in names):
            edits += 1
            other = file.with_name("other")
            other.write_text(file.read_text().replace(f"hand: {edits - 1}", f"hand: {edits}"))
            other.replace(file)

    monkeypatch.setattr(os, "fsync", fsync)
    run = nbagent.Agent(model=script(patch(variables_set={"n": 1}), "Hm.")).run(document=str(file))
    assert edits == 2
    assert [one.result and one.result.ok for one in run.turns[0].tool_runs] == [True]
    assert run.workflow is not None
    assert run.workflow.state.variables == {"hand": 2, "n": 1}


def test_critical_actions_are_read_and_shown_before_the_first_request(project: Path) -> None:
    agent = MIRA.replace(
        "title: writer",
        "title: writer\ncritical_actions:\n  - load: {project-root}/facts.md\n  - Never swear.\n"
        "  - load: @pkg/data/style.md\n  - load: @project/facts.md",
    )
    shutil.rmtree(project / "flow")
    package(project / "flow", agents={"mira": agent, "otto": OTTO})
    (project / "flow" / "data").mkdir()
    (project / "flow" / "data" / "style.md").write_text("Short sentences.\n")
    model = script("Hm.", "Hm.")
    run = start(model)
    assert (run.phase, len(model.requests)) == ("Failed", 0)
    assert "@project/facts.md" in str(run.error)
    (project / "facts.md").write_text("Birds fly.\n")
    run = start(model)
    system = model.requests[0].system_prompt
    assert system.count("CRITICAL_CONTEXT @project/facts.md\nBirds fly.") == 1
    assert "CRITICAL_CONTEXT @pkg/data/style.md\nShort sentences." in system
    assert system.index("Birds fly.") < system.index("Short sentences.")
    assert "- Never swear." in system
    assert any("reads @project/facts.md" in text for text in run.record.notices)
    policy = nbagent.ToolPolicy(deny=["fs.read(path=@project/facts.md)"])
    run = start(model, policy=policy)
    assert run.phase == "Failed"
    assert "policy" in str(run.error)
    assert len(model.requests) == 1


def test_a_dry_run_shows_the_first_request_and_writes_nothing() -> None:
    model = script()
    dry = nbagent.Agent(model=model).dry_run("About birds.", workflow="flow")
    assert "You write plainly." in dry.request.system_prompt
    assert said(dry.request)[:-1] == [directive("start", "draft", "mira"), DRAFT]
    assert not list(store_home().glob("state/*/workflow.md"))


def test_an_agents_model_counts_where_the_person_named_none(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = offline.script(["Quiet."], name="quiet")
    loud = offline.script(["Loud."], name="loud")
    agents = project / ".nbagent" / "agents"
    agents.mkdir(parents=True)
    (agents / "mira.md").write_text(MIRA.replace("title", "model: offline:quiet\ntitle"))
    for item in trust_items():
        allow_item(item)
    first = nbagent.Agent().run("Hi", agent="mira")
    assert (first.text, first.record.agent, first.turns[0].agent) == ("Quiet.", "mira", "mira")
    assert nbagent.Agent(model=loud).run("Hi", agent="mira").text == "Loud."
    (agents / "anna.md").write_text(MIRA.replace("title", "model: openai:gpt-5.4\ntitle"))
    for item in trust_items():
        allow_item(item)
    assert nbagent.Agent().dry_run("Hi", agent="anna").run.model.startswith("offline:")
    assert quiet.requests[0].system_prompt.startswith("# You are Mira, writer")
    assert said(quiet.requests[0]) == ["Hi"]
    with pytest.raises(UsageError, match="anna, mira"):
        nbagent.Agent().run("Hi", agent="olaf")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no package": ({"workflow": "nowhere"}, "nowhere"),
    "no agent of it": ({"agent": "olaf"}, "it has mira, otto"),
    "a type": ({"output": list[str]}, "output"),
    "no document": ({"document": "nowhere.md"}, "nowhere.md"),
    "a path as id": ({"document": "../../x"}, "no document"),
    "no path": ({"workflow": "a\0b"}, "is not a path"),
    "replayed results": ({"replay_tools": True, "cassette": "x.jsonl"}, "replayed tool results"),
    "the project": ({"workflow": "."}, "the folder of the project|no such|workflow.md"),
    "no way to move": ({"policy": nbagent.ToolPolicy(deny=["fs.*"])}, "denies fs.apply_patch"),
}


@pytest.mark.parametrize(("options", "word"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_one_error_and_nothing_is_sent(
    options: dict[str, Any], word: str
) -> None:
    model = script()
    with pytest.raises(UsageError, match=word):
        start(model, **options)
    assert model.requests == []
    assert not list(store_home().glob("state/*/workflow.md"))


def test_a_request_that_is_too_long_says_how_the_document_goes_on() -> None:
    model = script(offline.error("LLM_CONTEXT_OVERFLOW"))
    run = start(model)
    assert run.error is not None
    assert run.error.code == "LLM_CONTEXT_OVERFLOW"
    shown = f"$NBAGENT_HOME/state/{run.id}/workflow.md"
    assert f"%agent resume {shown}" in run.error.message
    assert nbagent.Agent(model=script("Hm.")).run(document=shown).text == "Hm."
