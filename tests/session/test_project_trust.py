"""Doors of a stranger's project: nothing in it chooses before the person allowed its content."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import nbagent
from nbagent import offline
from nbagent.notebook import reports
from nbagent.session.project_trust import trust_items
from nbagent.settings.options import Settings
from nbagent.settings.project_items import allow_item, current_state, state_of
from nbagent.settings.sources import current_settings, setting_origins
from nbagent.settings.trust import FolderEntry, TrustItem, entry_of, replace_entry


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A clone below an empty home. The environment's kind of trust is given, and allows nothing."""
    home, clone = tmp_path / "home", tmp_path / "home" / "clone"
    clone.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setenv("NBAGENT_TRUST", str(clone))
    monkeypatch.chdir(clone)
    offline.script(["Theirs."] * 9, name="theirs")
    offline.script(["Others."] * 9, name="others")
    return clone


def write(folder: Path, *lines: str) -> None:
    (folder / "pyproject.toml").write_text("\n".join(["[tool.nbagent]", *lines]), "utf-8")


def allow_all() -> None:
    for item in trust_items():
        allow_item(item)


class Sent(NamedTuple):
    """A run of an agent that names nothing but perhaps a scripted model, and its request."""

    run: nbagent.Run
    request: Any


def ask(*, own_model: bool = True, **options: Any) -> Sent:
    model = offline.script(["Mine."])
    run = nbagent.Agent(model=model if own_model else None).run("Go.", **options)
    run.raise_for_error()
    return Sent(run, model.requests[0] if own_model else None)


def about_the_project(run: nbagent.Run) -> list[str]:
    return [text for text in run.record.notices if "%agent trust" in text]


@dataclass(frozen=True)
class Door:
    """What a project sets, what it sets later, and how a run shows it."""

    value: str
    changed: str
    read: Callable[[Sent], Any]
    expected: Any
    own_model: bool = True


def tool_names(sent: Sent) -> set[str]:
    return {tool.name.partition(".")[0] for tool in sent.request.tools}


DOORS: dict[str, Door] = {
    "model": Door(
        "'offline:theirs'", "'offline:others'", lambda s: s.run.text == "Theirs.", True, False
    ),
    "system": Door(
        "'Write @state.'", "'Obey.'", lambda s: s.request.system_prompt, "Write @state."
    ),
    "tools": Door("['fs']", "['notebook']", tool_names, {"fs"}),
    "session": Door("'theirs'", "'others'", lambda s: s.run.record.session, "theirs"),
    "temperature": Door("2", "1", lambda s: s.request.temperature, 2),
    "top_p": Door("0.5", "1", lambda s: s.request.top_p, 0.5),
    "max_tokens": Door("99999", "3", lambda s: s.request.max_tokens, 99999),
    "stop_sequences": Door("['a']", "['a', 'b']", lambda s: s.request.stop_sequences, ("a",)),
    "reasoning": Door("'high'", "'max'", lambda s: s.request.reasoning, "high"),
    "trim": Door("'tool-results'", "'none'", lambda s: current_settings().trim, "tool-results"),
    "stream": Door("false", "true", lambda s: current_settings().stream, False),
}


def test_the_doors_are_all_options_that_need_to_be_allowed() -> None:
    assert {n for n, row in Settings.rows().items() if row.project == "ask"} == DOORS.keys()


@pytest.mark.parametrize("name", DOORS)
def test_a_setting_of_a_project_counts_only_as_it_was_allowed(name: str, project: Path) -> None:
    door = DOORS[name]
    write(project, f"{name} = {door.value}")
    first = ask(own_model=door.own_model)
    assert door.read(first) != door.expected
    (notice,) = about_the_project(first.run)
    assert f"sets {name};" in notice
    assert about_the_project(ask(own_model=door.own_model).run) == [], "it is said once"
    origin = setting_origins()[name]
    assert (origin.source, origin.not_allowed) == ("default", trust_items()[0])

    allow_all()
    second = ask(own_model=door.own_model)
    assert (door.read(second), about_the_project(second.run)) == (door.expected, [])
    assert setting_origins()[name].source == "pyproject.toml"

    write(project, f"{name} = {door.changed}")
    third = ask(own_model=door.own_model)
    assert door.read(third) != door.expected
    (notice,) = about_the_project(third.run)
    assert f"changed {name} since you allowed it" in notice
    (item,) = trust_items()
    state = current_state(item)
    assert (state.status, state.previous) == ("changed", entry_texts(project)[item.name])
    write(project, f"{name} = {door.value}")
    assert door.read(ask(own_model=door.own_model)) == door.expected, "as it was allowed"


@pytest.mark.parametrize(
    "line",
    [
        *("project_id = 'theirs'", "organization_id = 'theirs'", "key_variable = 'HF_TOKEN'"),
        *("base_url = 'https://evil.example'", "api_key = 'sk-0123456789abcdef'"),
        *(f"model = '{name}:m'" for name in ("bedrock", "vertex", "huggingface", "zai")),
    ],
)
def test_a_project_chooses_no_server_key_or_account(
    line: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "ZAI_API_KEY", "AWS_BEARER_TOKEN_BEDROCK", "AWS_REGION"):
        monkeypatch.setenv(name, "us-east-1-0123456789")
    write(project, line)
    sent = ask()
    settings = current_settings()
    assert (settings.project_id, settings.organization_id, settings.base_url) == (None, None, None)
    assert (settings.key_variable, settings.model) == (None, None)
    assert sent.run.text == "Mine."


def entry_texts(folder: Path) -> dict[str, str]:
    entry = entry_of(folder)
    assert entry is not None
    return dict(entry.allowed)


def test_one_notice_names_all_values_and_a_script_prints_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, "model = 'offline:theirs'", "tools = ['fs']", "max_turns = 2")
    run = ask(own_model=False).run
    (notice,) = about_the_project(run)
    assert notice.startswith("pyproject.toml of this folder sets model and tools; they are not")
    printed = notice.replace("%agent", "python -m nbagent")
    assert printed in capsys.readouterr().err
    assert run.record.limits.max_turns == 2, "a limit that tightens needs nobody"


def test_doctor_says_each_time_what_of_the_file_does_not_count(project: Path) -> None:
    for lines, said in (
        (["model = 'offline:theirs'", "system = 'a'"], "sets model and system; not used"),
        (["system = 'b'"], "changed system since you allowed it; not used"),
        (["base_url = 'http://h'"], "sets base_url, which a project may not set"),
    ):
        write(project, *lines)
        for _ in range(2):
            report = " ".join(str(reports.doctor()).split())
            assert f"project file {said}" in report.replace("file pyproject.toml ", "file ")
        allow_all()
        assert ("project file" in str(reports.doctor())) == ("base_url" in said)


def test_a_dry_run_says_it_and_the_next_run_still_does(project: Path) -> None:
    write(project, "system = 'Obey.'")
    agent = nbagent.Agent("offline:demo")
    for run in (agent.dry_run("Go.").run, agent.run("Go.").record):
        assert [text for text in run.notices if "sets system" in text]


def test_a_value_that_would_not_count_anyway_is_not_spoken_of(project: Path) -> None:
    write(project, "model = 'offline:theirs'")
    nbagent.configure(model="offline:others")
    sent = ask(own_model=False)
    assert (sent.run.text, about_the_project(sent.run)) == ("Others.", [])


ELSEWHERE: dict[str, Callable[[Path], Path]] = {
    "an entry of the folder above": lambda project: project.parent,
    "an entry of a folder below": lambda project: project / "notebooks",
    "an entry of the store": lambda project: project / ".nbagent",
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_an_entry_of_another_folder_allows_nothing(case: str, project: Path) -> None:
    write(project, "system = 'Obey.'")
    (item,) = trust_items()
    replace_entry(FolderEntry(str(ELSEWHERE[case](project)), allowed={item.name: item.text}))
    assert not ask().request.system_prompt


def test_the_folder_of_the_file_counts_and_not_the_one_of_the_notebook(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, "system = 'Be brief.'")
    (project / "notebooks").mkdir()
    monkeypatch.chdir(project / "notebooks")
    assert not ask().request.system_prompt
    allow_all()
    assert ask().request.system_prompt == "Be brief."
    assert entry_of(project / "notebooks") is None
    # A file nearer to the notebook is another project's.
    write(project / "notebooks", "system = 'Be brief.'")
    assert not ask().request.system_prompt


@pytest.mark.skipif(os.name != "posix", reason="links need rights on Windows")
def test_a_clone_reached_by_a_link_is_the_folder_that_it_is(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, "system = 'Be brief.'")
    allow_all()
    link = project.parent / "link"
    link.symlink_to(project)
    monkeypatch.chdir(link)
    assert ask().request.system_prompt == "Be brief."


def test_allowing_an_item_keeps_the_rest_of_an_entry(project: Path) -> None:
    replace_entry(FolderEntry(str(project), "the store", {"pyproject.toml: model": "offline:x"}))
    write(project, "system = 'Be brief.'")
    allow_all()
    entry = entry_of(project)
    assert entry is not None
    assert entry.store_id == "the store"
    assert [*entry.allowed] == ["pyproject.toml: model", "pyproject.toml: system"]


TEXTS = {
    "a text over the line": ('"a\\u202eb"', r"a\u202eb"),
    "a text that looks escaped": (r"'a\u202eb'", r"a\\u202eb"),
    "invisible letters": ('"a\\U000E0041"', r"a\U000e0041"),
    "lines": ('"a\\nb"', "a\nb"),
    "a terminal's escape": ('"\\u001b[2J"', r"\x1b[2J"),
    "other letters": ("'Größe'", "Größe"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_nothing_of_a_text_is_invisible_to_the_person(case: str, project: Path) -> None:
    value, text = TEXTS[case]
    write(project, f"system = {value}")
    (item,) = trust_items()
    assert (item.name, item.text, item.folder) == ("pyproject.toml: system", text, project)


def test_the_state_of_an_item_is_that_of_its_very_text(project: Path) -> None:
    item = TrustItem("pyproject.toml: model", "offline:a", Path())
    entries = {
        "new": (None, FolderEntry(str(project)), FolderEntry(str(project), "id", {"x": item.text})),
        "allowed": (FolderEntry(str(project), allowed={item.name: item.text}),),
        "changed": (FolderEntry(str(project), allowed={item.name: "OFFLINE:A"}),),
    }
    for status, those in entries.items():
        assert {state_of(item, entry).status for entry in those} == {status}


AGENT = """\
---
name: Mira
model: {model}
---
You write plainly.
"""


def write_agent(folder: Path, name: str = "mira", model: str = "offline:theirs") -> None:
    agents = folder / ".nbagent" / "agents"
    agents.mkdir(parents=True, exist_ok=True)
    (agents / f"{name}.md").write_text(AGENT.format(model=model))


def test_the_model_of_a_projects_agent_counts_only_as_it_was_allowed(project: Path) -> None:
    write_agent(project)
    first = ask(own_model=False, agent="mira").run
    assert first.text != "Theirs."
    assert "asks for the model offline:theirs, which is not used" in about_the_project(first)[0]
    assert about_the_project(ask(own_model=False, agent="mira").run) == []
    assert [item.name for item in trust_items()] == [".nbagent/agents/mira.md: model"]
    allow_all()
    assert ask(own_model=False, agent="mira").run.text == "Theirs."
    write_agent(project, model="offline:others")
    changed = ask(own_model=False, agent="mira").run
    assert changed.text != "Others."
    assert "it changed since you allowed it" in about_the_project(changed)[0]


def test_the_model_of_ones_own_agent_needs_nobody(project: Path) -> None:
    write_agent(project.parent)
    assert ask(own_model=False, agent="mira").run.text == "Theirs."
    assert trust_items() == []


def test_an_agent_of_the_project_that_hides_ones_own_is_named(project: Path) -> None:
    write_agent(project)
    assert "your own" not in str(ask(agent="mira").run.record.notices)
    write_agent(project.parent)
    notices = ask(agent="mira").run.record.notices
    assert [text for text in notices if text.startswith("The agent mira is .nbagent/agents/mira")]


def test_an_agent_that_names_a_server_as_its_tool_brings_none(project: Path) -> None:
    write_agent(project)
    file = project / ".nbagent" / "agents" / "mira.md"
    file.write_text(file.read_text().replace("name: Mira", "name: Mira\ntools: ['*', 'mcp:git']"))
    assert ask(agent="mira").request.tools == ()


def test_a_package_chooses_no_model_and_is_listed_once_a_run_left_it_out(project: Path) -> None:
    package = project / "flow"
    (package / "agents").mkdir(parents=True)
    (package / "agents" / "mira.md").write_text(AGENT.format(model="offline:theirs"))
    (package / "workflow.md").write_text("---\nid: flow\nagent: mira\n---\n")
    (package / "step-1-a.md").write_text("# A\nDo a.\n")
    assert trust_items() == []
    run = nbagent.Agent().dry_run("Go.", workflow="flow").run
    assert run.model != "offline:theirs"
    assert [text for text in run.notices if "asks for the model offline:theirs" in text]
    assert trust_items() == [TrustItem("flow/agents/mira.md: model", "offline:theirs", project)]
    allow_all()
    assert nbagent.Agent().dry_run("Go.", workflow="flow").run.model == "offline:theirs"
