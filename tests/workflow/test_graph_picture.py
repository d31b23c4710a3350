"""The graph of a workflow in the picture of its run: from the record alone, live and saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from workflow_stage import allow, make_package, move, patch, script

import nbagent
from nbagent.run import Run
from nbagent.session.stores import close_stores
from nbagent.view.graph import graph_of
from nbagent.view.node import html, text_of
from nbagent.view.picture import picture

STEPS = [move("draft", "check"), move("check", "draft"), move("draft", "check"), "Shall I go on?"]


@pytest.fixture
def run(project: Path) -> Run:
    conditions = {("check", "draft"): "it is <b>too</b> long"}
    make_package(project / "flow", conditions=conditions)
    model = script(*STEPS, move("check", "done"), patch(stepsCompleted_append="done"), "All done.")
    agent = nbagent.Agent(model, workflow="flow", autopilot=True, on_approval=allow, quiet=True)
    return agent.run()


def graph(run: Run, **changes: Any) -> str:
    node = graph_of(run.record.model_copy(update=changes))
    return "" if node is None else text_of(node)


def test_the_graph_says_the_path_so_far_and_what_may_follow(run: Run) -> None:
    assert run.stop_reason == "workflow_complete"
    said = graph(run)
    assert "draft → check → draft → check → done" in said
    assert "▶" not in said
    assert "✓ draft · ×2→ check (next)" in said
    assert "↺ back to draft (again): it is <b>too</b> long" in said
    assert "✓ done · the end" in said
    early = graph(run, turns=run.turns[:2], stop_reason=None)
    assert "draft → check → ▶ draft" in early
    assert "▶ draft · current step" in early.replace(" · ×1", "")


def test_the_graph_is_in_the_picture_of_the_stored_run(run: Run) -> None:
    before = html(picture(run.record))
    close_stores()
    again = nbagent.open_run(run.id)
    assert html(picture(again.record)) == before
    assert "it is &lt;b&gt;too&lt;/b&gt; long" in before


@pytest.mark.parametrize(
    "kept", ["x", {"steps": "x", "here": "a"}, {"steps": [{"id": 3}], "here": "a"}], ids=str
)
def test_what_is_no_graph_draws_none(run: Run, kept: Any) -> None:
    assert graph(run, options={"graph": kept}) == ""


def test_a_huge_graph_is_drawn_in_part(run: Run) -> None:
    steps = [{"id": f"s{n}" + "x" * 500} for n in range(5_000)]
    ways = [{"source": it["id"], "target": steps[0]["id"], "condition": "y" * 900} for it in steps]
    kept = {"steps": steps, "ways": ways, "here": "s0", "completed": ["s1"] * 5_000}
    assert 1_000 < len(graph(run, options={"graph": kept})) < 100_000
