"""A workflow as a person sees it: a package as text, and the graph in the picture of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from workflow_stage import allow, make_package, move, patch, script

import nbagent
from nbagent.contracts.records import WorkflowRef
from nbagent.run import Run
from nbagent.session.stores import close_stores
from nbagent.view.graph import run_graph_node
from nbagent.view.node import text_of
from nbagent.view.printers import html
from nbagent.view.run_picture import picture
from nbagent.workflow.graph import Package
from nbagent.workflow.package import load_package
from nbagent.workflow.summary import workflow_text

WAYS = {
    "select": {"draft": "next"},
    "draft": {"review": "next"},
    "review": {"draft": "again", "close": "next"},
    "close": {},
}
MIRA = """\
---
id: mira
name: Mira
title: Writer
model: offline:demo
tools: [fs.read, fs.apply_patch]
critical_actions: ["load: @project/style.md", Write short sentences.]
---
You write {planning_artifacts}.
"""
DRAFT = "@project/artifacts/draft.md"


@pytest.fixture
def package(tmp_path: Path) -> Package:
    folder = make_package(
        tmp_path / "story-flow",
        WAYS,
        outputs={"draft": {"artifacts/draft.md": DRAFT}},
        inputs={"review": [DRAFT]},
        agents={"mira": MIRA, "otto": "Otto."},
        of={"draft": "mira"},
        front="agent: otto\nentrie: x\n",
        rules="Write {{story}}.",
        conditions={("review", "draft"): "it is too long"},
    )
    return load_package(folder)


WHOLE = """\
story-flow · Test flow
  note: workflow.md:6: unknown key 'entrie'; did you mean 'entry'?
  placeholders without a value, left as written: {{story}}, {planning_artifacts}

Agents
  mira · Mira · Writer · model offline:demo · tools fs.read, fs.apply_patch
      reads @project/style.md
      rule: Write short sentences.
  otto · where a step names none

Steps, from select
    ✓   select · otto
          → draft (next)
  ▶ ✓×2 draft · mira
          writes @project/artifacts/draft.md
          → review (next)
    ✓   review · otto
          needs @project/artifacts/draft.md
          → draft (again): it is too long
          → close (next)
        close · otto · the end

So far
  select → draft → review → draft
  draft has ended; next: review

Variables
  story = "Fjord"
  n = 2"""


def test_the_text_of_a_package_and_a_document_is_what_a_person_reads(package: Package) -> None:
    completed = ("select", "draft", "review", "draft")
    variables = {"story": "Fjord", "n": 2, "long": "x" * 999}
    said = workflow_text(package, current="draft", completed=completed, variables=variables)
    assert said.startswith(WHOLE)
    assert max(map(len, said.splitlines())) < 200
    without = workflow_text(package)
    assert "Steps, from select\n  select · otto\n    → draft (next)\n  draft · mira" in without
    assert not [word for word in ("▶", "✓", "So far", "Variables") if word in without]


PATHS: dict[str, tuple[str, tuple[str, ...]]] = {
    "▶ select": ("select", ()),
    "select → draft → review → ▶ draft": ("draft", ("select", "draft", "review")),
    "review → close\n  complete": ("close", ("review", "close")),
    "select → ▶ gone\n  gone is not a step of this package": ("gone", ("select",)),
}


def test_the_path_says_where_the_document_stands(package: Package) -> None:
    for path, (current, completed) in PATHS.items():
        said = workflow_text(package, current=current, completed=completed)
        assert said.partition("So far\n")[2] == f"  {path}"


STEPS = [move("draft", "check"), move("check", "draft"), move("draft", "check"), "Shall I go on?"]


@pytest.fixture
def run(project: Path) -> Run:
    conditions = {("check", "draft"): "it is <b>too</b> long"}
    make_package(project / "flow", conditions=conditions)
    model = script(*STEPS, move("check", "done"), patch(stepsCompleted_append="done"), "All done.")
    agent = nbagent.Agent(model, workflow="flow", autopilot=True, on_approval=allow, quiet=True)
    return agent.run()


def graph(run: Run, **changes: Any) -> str:
    node = run_graph_node(run.record.model_copy(update=changes))
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
    "kept", [{}, {"steps": "x", "here": "a"}, {"steps": [{"id": 3}], "here": "a"}], ids=str
)
def test_what_is_no_graph_draws_none(run: Run, kept: Any) -> None:
    assert graph(run, workflow=WorkflowRef(name="flow", graph=kept)) == ""


def test_a_huge_graph_is_drawn_in_part(run: Run) -> None:
    steps = [{"id": f"s{n}" + "x" * 500} for n in range(5_000)]
    ways = [{"source": it["id"], "target": steps[0]["id"], "condition": "y" * 900} for it in steps]
    kept = {"steps": steps, "ways": ways, "here": "s0", "completed": ["s1"] * 5_000}
    assert 1_000 < len(graph(run, workflow=WorkflowRef(name="flow", graph=kept))) < 100_000
