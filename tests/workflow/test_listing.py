"""A package as text: what a person reads before a start, and where a document stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from workflow_stage import make_package

from nbagent.workflow.graph import Package
from nbagent.workflow.listing import workflow_text
from nbagent.workflow.package import load_package

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
  left as written, nothing gives a value: {{story}}, {planning_artifacts}

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
    "select → ▶ gone\n  gone is no step of this package": ("gone", ("select",)),
}


def test_the_path_says_where_the_document_stands(package: Package) -> None:
    for path, (current, completed) in PATHS.items():
        said = workflow_text(package, current=current, completed=completed)
        assert said.partition("So far\n")[2] == f"  {path}"
