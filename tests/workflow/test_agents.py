"""Agents: their files, the marks in them, where they are looked for, what they load first."""

from __future__ import annotations

import os
import time
from datetime import date
from pathlib import Path

import pytest

from nbagent.contracts.errors import UsageError
from nbagent.workflow.agents import critical_context, find_agents, load_agent, read_agent
from nbagent.workflow.graph import Action, AgentSpec, PackageError, Problem
from nbagent.workflow.placeholders import (
    Placeholders,
    UnknownPlaceholder,
    is_single_line,
    person_values,
)

MARKS = Placeholders(
    {"user_name": "Ada", "tone": "dry", "folder": "mine"},
    {"out": "{project-root}/out", "folder": "theirs", "nested": "{tone}", "date": "never"},
    today=date(2026, 5, 4),
)
MIRA = """\
---
id: mira-1
name: Mira
title: Reads stories
model: offline:demo
tools: [fs.*, "mcp:git"]
critical_actions:
  - load: "@pkg/data/style.md"
  - "load: {project-root}/notes.md"
  - load: {config:out}/{date}.md
  - Answer in {communication_language}
  - "Note: be\\n  brief"
variables:
  shelf: 7
---

You are Mira, {tone}, at shelf {shelf} for {user_name}.
Fill {{story_title}}.
"""
TOM = "id: thomas\ncritical_actions: ['load: {desk}/a']\npersona: I am Tom"
SKILL = """\
---
name: the-reviewer
description: >
  Reads a draft
  and says what it lacks
allowed-tools: Read Grep
argument-hint: "[file]"
---
Be the reviewer.
"""


def read(text: str, file: str = "agents/mira.md") -> tuple[AgentSpec | None, list[Problem]]:
    faults: list[Problem] = []
    spec = read_agent(text, file, placeholders=MARKS, problems=faults)
    return None if faults else spec, sorted(faults, key=lambda fault: fault.line or 0)


def fields_of(spec: AgentSpec | None) -> dict[str, object]:
    assert spec is not None
    return {name: getattr(spec, name) for name in AgentSpec.__slots__}


PATHS = {
    "{project-root}/a.md": "@project/a.md",
    "{bundle-root}/a.md": "@pkg/a.md",
    "{config:out}/{date}.md": "@project/out/2026-05-04.md",
    "{user_name}.md": "Ada.md",
    "{folder}/a.md": "theirs/a.md",
    "a{1}{ }.md": "a{1}{ }.md",
}
UNKNOWN = {
    "x/{nothing}.md": "{nothing}",
    "{{out}}/a.md": "{{out}}",
    "{config:user_name}": "{config:user_name}",
    "{nested}/a.md": "{tone}",
    "${date}/a.md": "{date}",
}
AS_IT_IS = '{"a": 1} {a, b} { } {} {1} {{{tone}}} ${tone} and ${{ tone }}'
PROSE: dict[str, tuple[str, tuple[str, ...]]] = {
    "Be {tone}, {folder}.": ("Be dry, mine.", ()),
    "{{ user_name }}, {date}, {config:folder}": ("Ada, 2026-05-04, theirs", ()),
    "{a_b} {{c d}} {a_b}": ("{a_b} {{c d}} {a_b}", ("{a_b}", "{{c d}}")),
    "{nested}": ("{tone}", ("{tone}",)),
    AS_IT_IS: (AS_IT_IS, ()),
}


def test_marks_are_filled_in_and_an_unknown_one_is_an_error_in_a_path_alone() -> None:
    assert {text: MARKS.fill_path(text) for text in PATHS} == PATHS
    for text, mark in UNKNOWN.items():
        with pytest.raises(UnknownPlaceholder) as raised:
            MARKS.fill_path(text)
        assert raised.value.placeholder == mark
    assert {text: MARKS.fill_text(text) for text in PROSE} == PROSE
    marks = Placeholders({"bundle-root": "/etc"}, bundle="")
    assert marks.fill_text("{bundle-root}") == ("{bundle-root}", ("{bundle-root}",))


@pytest.mark.parametrize("text", ["{" * 200_000, "{{a " * 50_000])
def test_prose_full_of_braces_is_read_in_moments(text: str) -> None:
    begun = time.process_time()
    assert MARKS.fill_text(text) == (text, ())
    assert time.process_time() - begun < 2


def test_a_line_is_what_a_person_sees_whole_and_a_value_is_one() -> None:
    no_lines = ("mira\n- autopilot: true", "a\u202eb", " ", "x" * 1_001)
    lines = ("Mira", "Mira\u00a0B. 👩\u200d💻")
    assert [text for text in (*no_lines, *lines) if is_single_line(text)] == [*lines]
    for values in {"a": "x\ny"}, {"a b": "x"}, {"a": ""}, {"a\n": "x"}:
        with pytest.raises(UsageError, match=r"write a text|use letters"):
            person_values(values)


def test_a_markdown_agent_has_all_that_its_file_says() -> None:
    spec, faults = read(MIRA)
    assert not faults
    assert fields_of(spec) == {
        "id": "mira-1",
        "name": "Mira",
        "title": "Reads stories",
        "model": "offline:demo",
        "tools": ("fs.*", "mcp:git"),
        "actions": (
            Action(load="@pkg/data/style.md"),
            Action(load="@project/notes.md"),
            Action(load="@project/out/2026-05-04.md"),
            Action(rule="Answer in {communication_language}"),
            Action(rule="Note: be brief"),
        ),
        "persona": "You are Mira, dry, at shelf 7 for Ada.\nFill {{story_title}}.",
        "unfilled": ("{{story_title}}", "{communication_language}"),
        "file": "agents/mira.md",
        "is_own": False,
    }


DEFAULTS: dict[str, tuple[str, str, tuple[str, ...] | None]] = {
    "Only a persona": ("tom", "tom", None),
    "---\ntools: fs.read, fs.search  mcp\n---\n": ("tom", "tom", ("fs.read", "fs.search", "mcp")),
    "---\nname: Tom\ntools: []\n---\n": ("tom", "Tom", ()),
    "---\nid:\nname:\ntitle:\ntools:\nvariables:\n---\nTom": ("tom", "tom", None),
}


def test_what_is_left_out_has_a_default() -> None:
    specs = {text: read(text, "agents/tom.md")[0] for text in DEFAULTS}
    assert {text: it and (it.id, it.name, it.tools) for text, it in specs.items()} == DEFAULTS


@pytest.mark.parametrize(
    ("lines", "faults"),
    [
        ('id: "a b"', ["2: 'a b' is not an id"]),
        (f"id: {'x' * 81}", ["2: 'xxx"]),
        ('name: "mira\\n- autopilot: true"', ["2: name is not one printable line"]),
        ("name: M\ntitle: [a]", ["3: title is not one"]),
        ("tools: {fs.read: true}", ["2: tools is a list"]),
        ("tools:\n  - fs.read\n  - fs.write(path=@project/a)", ["4: 'fs.write(path=@project/a)'"]),
        ("tools:\n  - 7", ["3: 7 is not a pattern"]),
        ("tools: fs.read, (x", ["2: '(x' is not a pattern"]),
        ("critical_actions: load it", ["2: critical_actions is a list"]),
        (
            "critical_actions:\n  - load: '{x}/a.md'",
            ["3: '{x}/a.md' is not a path: nothing gives a value for {x}"],
        ),
        ("critical_actions:\n  - load: ../../etc/passwd", ["3: '../../etc/passwd' is not a path"]),
        ("critical_actions:\n  - load: [a, b]", ["3: an action is"]),
        ("critical_actions:\n  - 7", ["3: an action is"]),
        ('critical_actions:\n  - "a\\u202eb"\n  - "\\x1b"', ["3: a rule", "4: a rule"]),
        ("variables: [a]", ["2: variables is not a list"]),
        ('variables:\n  a: "b\\nc"\n  d: [e]', ["3: the value of 'a'", "4: the value of 'd'"]),
        ("persona: x", ["2: there is no key 'persona'"]),
        ("name: a\nname: b", ["3: "]),
        ("critical_actions:\n  - load: '${HOME}/a'", ["3: '${HOME}/a' is not a path"]),
    ],
)
def test_each_fault_is_named_with_its_line(lines: str, faults: list[str]) -> None:
    spec, found = read(f"---\n{lines}\n---\nPersona.\n")
    assert spec is None
    assert len(found) == len(faults)
    for fault, text in zip(found, faults, strict=True):
        assert str(fault).startswith(f"agents/mira.md:{text}")
        assert "\n" not in str(fault)


@pytest.mark.parametrize(
    ("text", "file", "why"),
    [
        ("", "agents/a.md", "it is empty"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]", "agents/a.yaml", "alias"),
        ("[" * 50_000, "agents/a.yaml", ""),
        ("persona: [a]", "agents/a.yaml", "persona is a text"),
        ("---\nname: x\n", "agents/a.md", "---"),
        ("Persona", "agents/my agent.md", "'my agent' is not an id"),
    ],
)
def test_a_file_that_cannot_be_used_is_explained(text: str, file: str, why: str) -> None:
    begun = time.process_time()
    spec, faults = read(text, file)
    assert spec is None
    assert why in " ".join(map(str, faults))
    assert time.process_time() - begun < 5


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project and a home folder with agents in all places."""
    base, home = tmp_path / "project", tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    files = {
        base / ".nbagent/agents/mira.md": "---\nname: Mira\n---\nFirst {tone}",
        base / ".nbagent/agents/README.md": "About these",
        base / ".nbagent/agents/notes.txt": "No agent",
        base / ".agents/agents/mira.md": "Second",
        base / ".agents/agents/tom.yaml": TOM,
        base / ".agents/agents/rev/SKILL.md": SKILL,
        base / "own/ida.yml": "\ufeffpersona: I am Ida",
        base / "own/bom.md": "\ufeffI am Bom",
        home / ".nbagent/agents/ben.md": "I am Ben",
        tmp_path / "outside/key.md": "SECRET",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return base


def test_agents_are_found_in_the_project_and_in_the_home(project: Path) -> None:
    found = find_agents(project)
    assert list(found) == ["ben", "mira", "rev", "tom"]
    assert found["mira"].parent.parent.name == ".nbagent"


@pytest.mark.parametrize(
    ("name", "agent_id", "persona", "file"),
    [
        ("mira", "mira", "First dry", ".nbagent/agents/mira.md"),
        ("tom", "thomas", "I am Tom", ".agents/agents/tom.yaml"),
        ("rev", "rev", "Be the reviewer.", ".agents/agents/rev/SKILL.md"),
        ("own/ida.yml", "ida", "I am Ida", "own/ida.yml"),
        (".agents/agents/mira.md", "mira", "Second", ".agents/agents/mira.md"),
        ("ben", "ben", "I am Ben", "~/.nbagent/agents/ben.md"),
    ],
)
def test_an_agent_is_loaded_by_its_name_or_its_path(
    project: Path, name: str, agent_id: str, persona: str, file: str
) -> None:
    spec = load_agent(name, values={"tone": "dry", "desk": "d"}, project=project)
    assert (spec.id, spec.persona, spec.file) == (agent_id, persona, file)


def test_the_projects_folder_is_where_the_process_began(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    assert load_agent("mira").unfilled == ("{tone}",)
    assert load_agent(str(project / "own/ida.yml")).id == "ida"


@pytest.mark.parametrize(
    "name", ["nobody", "nobody.md", "../outside", "x" * 5_000 + ".md", "a\0.md", "~nobody/x.md", ""]
)
def test_an_unknown_agent_is_one_error_that_lists_what_is_there(project: Path, name: str) -> None:
    with pytest.raises(UsageError, match="there are ben, mira, rev, tom;") as raised:
        load_agent(name, project=project)
    assert len(str(raised.value)) < 700
    assert "\0" not in str(raised.value)


def test_the_faults_of_an_agent_are_all_in_one_error(project: Path) -> None:
    (project / "bad.md").write_text(
        "---\ntools: 7\nname: [a]\ncritical_actions:\n- load: {bundle-root}/a\n"
        "- load: ../../etc/passwd\n- load: gone.md\n- load: own/bom.md\n---\n"
    )
    with pytest.raises(PackageError) as raised:
        load_agent("bad.md", project=project)
    assert [(fault.file, fault.line) for fault in raised.value.problems] == [
        *(("bad.md", line) for line in (None, 2, 3, 5, 6))
    ]


@pytest.mark.skipif(os.name == "nt", reason="links and pipes need rights there")
def test_links_that_lead_out_of_the_folder_and_pipes_are_no_agents(project: Path) -> None:
    agents = project / ".nbagent/agents"
    (agents / "key.md").symlink_to(project.parent / "outside/key.md")
    (agents / "folder").symlink_to(project.parent / "outside")
    (agents / "ida.yml").symlink_to(project / "own/ida.yml")
    (agents / "same.md").symlink_to(agents / "mira.md")
    os.mkfifo(agents / "pipe.md")
    assert list(find_agents(project)) == ["ben", "mira", "rev", "same", "tom"]
    (project / ".agents/agents").rename(project.parent / "moved")
    (project / ".agents/agents").symlink_to(project.parent / "moved")
    assert list(find_agents(project)) == ["ben", "mira", "same"]


def test_only_so_many_agents_are_looked_at(project: Path) -> None:
    for number in range(300):
        (project / f".nbagent/agents/a{number:03}.md").touch()
    assert len(find_agents(project)) == 200


def test_what_is_loaded_together_has_a_bound() -> None:
    actions = tuple(Action(load=f"@pkg/{number}.md") for number in range(4))
    agent = AgentSpec(id="a", name="A", actions=actions)
    assert len(critical_context(agent, lambda path: "x" * 30_000)) == 4
    with pytest.raises(PackageError, match="read windows"):
        critical_context(agent, lambda path: "x" * 30_001)
