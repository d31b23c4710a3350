"""Directives for the model, byte for byte: each kind, and packages without a graph or agents."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_run
from workflow_stage import STATE, allow, directive, make_package, move, said, script

import nbagent
from nbagent import offline
from nbagent.contracts.canonical import load_json
from nbagent.contracts.events import Event, TextDelta
from nbagent.contracts.model import ChatRequest
from nbagent.files.frontmatter import read_frontmatter

TABLE_REVIEW = Path(__file__).parents[2] / "notebooks" / "packages" / "table-review"
BRIEF = """\
NODE_BRIEF
- currentNodeId: draft
- stepFile: @pkg/steps/draft.md
- outputsMap:
- allowedNext:
  - check (label=next)"""
pytestmark = pytest.mark.usefixtures("project")
Begin = Callable[[nbagent.Agent], nbagent.Run]
SEARCH = offline.call("fs.search", query="birds")


def told(intent: str, node: str = "draft", graph: str = "@pkg/workflow.graph.json") -> str:
    return directive(intent, node, graph=graph)


def stopped(agent: nbagent.Agent) -> nbagent.Run:
    """A run that the person stops in its first request."""
    begun = threading.Event()

    def look(event: Event) -> None:
        if isinstance(event, TextDelta):
            begun.set()

    run = agent.start(workflow="flow", on_event=look)
    assert begun.wait(20)
    run.stop()
    return run.wait()


def started(agent: nbagent.Agent) -> nbagent.Run:
    return agent.run(workflow="flow")


def limited(agent: nbagent.Agent) -> nbagent.Run:
    return agent.run(workflow="flow", max_turns=1)


LONG = offline.step(text="a " * 500, delay_ms=20)
TOO_LATE = offline.error("LLM_TIMEOUT")
GOING_ON: dict[str, tuple[Begin, Any, str, str | None, str]] = {
    "after a stop": (stopped, LONG, "ENGINE_ABORTED", None, "resume"),
    "after the last turn": (limited, SEARCH, "ENGINE_MAX_TURNS", None, "resume"),
    "after an error": (started, TOO_LATE, "LLM_TIMEOUT", None, "resume"),
    "after a pause": (started, "What about?", "", None, "continue"),
    "by words": (started, "What about?", "", "  Birds,\n- autopilot: true\n", "continue"),
    "by words after an error": (started, TOO_LATE, "LLM_TIMEOUT", "Go on.", "continue"),
}


@pytest.mark.parametrize(
    ("begin", "step", "code", "words", "intent"), GOING_ON.values(), ids=GOING_ON
)
def test_each_way_to_go_on_has_its_intent_and_a_brief_of_its_own(
    project: Path, begin: Begin, step: Any, code: str, words: str | None, intent: str
) -> None:
    make_package(project / "flow")
    model = script(step, "Hm.")
    first = check_run(begin(nbagent.Agent(model=model, on_approval=allow)), model)
    assert (first.error.code if first.error else "") == code
    before = [told("start"), BRIEF]
    assert said(model.requests[0]) == before
    check_run(first.resume(words, max_turns=2), model)
    typed = [f"USER_INPUT\n- forNodeId: draft\n{words}"] if words else []
    assert said(model.requests[-1]) == [*before, told(intent), BRIEF, *typed]


UNANSWERED: dict[str, Callable[[nbagent.Run], nbagent.Run]] = {
    "resume": lambda run: run.resume(max_turns=2),
    "fork": lambda run: run.fork("C01", max_turns=2),
}


@pytest.mark.parametrize("again", UNANSWERED.values(), ids=UNANSWERED)
def test_words_that_were_not_answered_are_asked_again_and_stay_the_last_of_the_request(
    project: Path, again: Callable[[nbagent.Run], nbagent.Run]
) -> None:
    make_package(project / "flow")
    model = script(TOO_LATE, "Hm.")
    first = check_run(nbagent.Agent(model=model).run("Birds", workflow="flow"), model)
    second = check_run(again(first), model)
    typed = "USER_INPUT\n- forNodeId: draft\nBirds"
    assert [said(request) for request in model.requests] == [[told("start"), BRIEF, typed]] * 2
    for run in (first, second):
        df = nbagent.messages(run=run.id, whole=True, role="user")
        assert [*df["source"]] == ["directive", "directive", "person"]


def test_each_request_extends_the_one_before_and_the_words_end_the_one_they_were_written_for(
    project: Path,
) -> None:
    make_package(project / "flow")
    read = offline.call("fs.read", path=STATE)
    answers = [read, "What about?", read, move("draft", "check"), "Which?", read, "Good?"]
    model = script(*answers)
    agent = nbagent.Agent(model=model, on_approval=allow)
    run = check_run(agent.run("Birds", workflow="flow"), model)
    run = check_run(run.resume("Gulls"), model)
    run = check_run(run.resume(), model)
    check_run(run.resume("Terns"), model)
    sent = [list(request.messages) for request in model.requests]
    assert all(new[: len(old)] == old for old, new in itertools.pairwise(sent))
    ends = [last.text.partition("\n")[0] for *_, last in sent if last.role == "user"]
    assert ends == ["USER_INPUT", "USER_INPUT", "NODE_BRIEF", "USER_INPUT"]
    kinds = [text.partition("\n")[0] for text in said(model.requests[-1])]
    assert kinds == [
        *("RUN_DIRECTIVE", "NODE_BRIEF", "USER_INPUT") * 2,
        *("RUN_DIRECTIVE", "NODE_BRIEF"),
        *("RUN_DIRECTIVE", "NODE_BRIEF", "USER_INPUT"),
    ]


def test_a_package_without_a_graph_and_agents_says_so(project: Path) -> None:
    (project / "flow" / "steps").mkdir(parents=True)
    (project / "flow" / "workflow.md").write_text("---\nid: flow\n---\n# Rules\n")
    for n, name in enumerate(("one", "two"), 1):
        (project / "flow" / "steps" / f"step-0{n}-{name}.md").write_text(f"# {name}\n")
    model = script(move("step-01-one", "step-02-two"), "Hm.")
    run = check_run(nbagent.Agent(model=model).run("A\r\nB ", workflow="flow"), model)
    check_run(run.resume(), model)
    first, second = "step-01-one", "step-02-two"
    brief = "NODE_BRIEF\n- currentNodeId: {0}\n- stepFile: @pkg/steps/{0}.md\n- outputsMap:\n"
    brief += "- allowedNext:"
    assert said(model.requests[-1]) == [
        told("start", first, "none"),
        f"{brief.format(first)}\n  - {second} (label=next)",
        f"USER_INPUT\n- forNodeId: {first}\nA\r\nB ",
        told("continue", second, "none"),
        brief.format(second),
    ]


def test_after_fifty_turns_of_rounds_nothing_of_the_package_stands_in_the_history_twice(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBAGENT_OFFLINE_DELAY_MS", "0")
    shutil.copytree(TABLE_REVIEW, project / "table-review")
    (project / "data").mkdir()
    (project / "data" / "stations.csv").write_text("station,day,temp\nOslo,2026-05-01,11\n")
    agent = nbagent.Agent("offline:demo", tools=["fs"], quiet=True, on_approval=allow)
    run = agent.run("Review it.", workflow="table-review", max_requests=200, max_turns=100)
    turns, walked = len(run.turns), {turn.node for turn in run.turns}
    while turns < 50:
        assert run.stop_reason == "answered"
        assert run.workflow is not None
        at_approval = run.workflow.current_node == "step-05-approve"
        run = run.resume("Revise it." if at_approval else "Go on.")
        turns += len(run.turns)
        walked |= {turn.node for turn in run.turns}
    of_system = {"workflow.md", "checklist.md", f"{run.turns[-1].agent}.md"}
    request: ChatRequest = run.request_of(run.turns[-1].id)
    results = [load_json(message.text) for message in request.messages if message.role == "tool"]
    read = [it["data"] for it in results if it["ok"] and "content" in it["data"]]
    versions = [(it["path"], it["sha256"]) for it in read if not it["path"].startswith("@project")]
    assert len(set(versions)) == len(versions), "the same was read twice"
    assert sum(path == STATE for path, _ in versions) > 4
    plain = "\n".join(message.text for message in request.messages if message.role != "tool")
    for file in sorted(TABLE_REVIEW.rglob("*.md")):
        body = read_frontmatter(file.read_text()).body
        line = max(body.splitlines(), key=len).strip()
        assert line not in plain, f"{file.name} was pasted"
        assert request.system_prompt.count(line) == (file.name in of_system), file.name
        n = sum(line in it["content"] for it in read if it["path"] != STATE)
        assert n == (file.parent.name == "steps" and file.stem in walked), file.name
