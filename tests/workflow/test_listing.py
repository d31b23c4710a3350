"""A package as text: what a person reads before a start, and where a document stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nbagent.workflow.graph import Action, AgentSpec, Edge, Graph, Node, Package
from nbagent.workflow.listing import workflow_text

DRAFT = "@project/artifacts/draft.md"
GRAPH = Graph(
    nodes={
        node.id: node
        for node in (
            Node(id="select", step_file="steps/select.md"),
            Node(
                id="draft",
                step_file="steps/draft.md",
                agent="mira",
                outputs=(("artifacts/draft.md", DRAFT),),
            ),
            Node(id="review", step_file="steps/review.md", inputs=(DRAFT,)),
            Node(id="close", step_file="steps/close.md", terminal=True),
        )
    },
    edges=(
        Edge(source="select", target="draft"),
        Edge(source="draft", target="review"),
        Edge(source="review", target="draft", label="again", condition="it is\ntoo long"),
        Edge(source="review", target="close"),
    ),
    entry="select",
)


def package(**fields: Any) -> Package:
    agents = (
        AgentSpec(
            id="mira",
            name="Mira",
            title="Writer",
            model="offline:demo",
            tools=("fs.read", "fs.apply_patch"),
            actions=(Action(load="@pkg/style.md"), Action(rule="Write short sentences.")),
            unfilled=("{planning_artifacts}",),
        ),
        AgentSpec(id="otto", name="otto", tools=()),
    )
    base: dict[str, Any] = {
        "id": "story-flow",
        "name": "A story",
        "path": Path("story-flow"),
        "root": Path("story-flow"),
        "sha256": "0" * 64,
        "graph": GRAPH,
        "graph_file": "workflow.graph.json",
        "main_file": "workflow.md",
        "agents": {agent.id: agent for agent in agents},
        "agent": "otto",
        "rules": "",
        "template": "",
        "unfilled": ("{{story}}", "{planning_artifacts}"),
        "notes": ("step-x.md is used by no step",),
    }
    return Package(**{**base, **fields})


WHOLE = """\
story-flow · A story
  note: step-x.md is used by no step
  left as written, nothing gives a value: {{story}}, {planning_artifacts}

Agents
  mira · Mira · Writer · model offline:demo · tools fs.read, fs.apply_patch
      reads @pkg/style.md
      rule: Write short sentences.
  otto · tools none · where a step names none

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


def test_the_text_of_a_package_and_a_document_is_what_a_person_reads() -> None:
    completed = ("select", "draft", "review", "draft")
    variables = {"story": "Fjord", "n": 2}
    said = workflow_text(package(), current="draft", completed=completed, variables=variables)
    assert said == WHOLE


def test_without_a_document_there_are_no_marks_and_nothing_that_is_not_there() -> None:
    said = workflow_text(package(unfilled=(), notes=(), name="story-flow"))
    assert said.startswith("story-flow\n  left as written, ")
    assert "Steps, from select\n  select · otto\n    → draft (next)\n  draft · mira" in said
    assert not [word for word in ("▶", "✓", "note", "So far", "Variables") if word in said]


@pytest.mark.parametrize(
    ("current", "completed", "path"),
    [
        ("select", (), "▶ select"),
        ("draft", ("select",), "select → ▶ draft"),
        ("draft", ("select", "draft", "review"), "select → draft → review → ▶ draft"),
        ("close", ("review", "close"), "review → close\n  complete"),
        ("gone", ("select",), "select → ▶ gone\n  gone is no step of this package"),
    ],
    ids=["the start", "one step", "a loop", "complete", "a step that is gone"],
)
def test_the_path_says_where_the_document_stands(
    current: str, completed: Sequence[str], path: str
) -> None:
    said = workflow_text(package(), current=current, completed=completed)
    assert said.partition("So far\n")[2] == f"  {path}"


def test_long_words_of_a_stranger_are_one_cut_line() -> None:
    agent = AgentSpec(id="mira", name="M\nira", actions=(Action(rule="do " * 500),))
    said = workflow_text(package(agents={"mira": agent}, agent="mira"), variables={"a": "x" * 999})
    assert max(map(len, said.splitlines())) < 200
    assert "mira · M ira" in said
