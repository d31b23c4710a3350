"""Finding skills and reading them as they are written out there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.tools.skill_folders import FOLDERS, FoundSkills, Skill, find_skills

GOOD = "---\nname: {name}\ndescription: What {name} does.\n---\n# {name}\nDo it.\n"
PLACE = ".agents/skills"


@pytest.fixture
def project(tmp_path: Path, home: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


def put(base: Path, name: str, text: str | bytes = "") -> Path:
    folder = base / name
    folder.mkdir(parents=True)
    text = text or GOOD.format(name=folder.name)
    (folder / "SKILL.md").write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def names(found: FoundSkills) -> list[str]:
    return [skill.name for skill in found.skills]


def one(project: Path) -> Skill:
    put(project / PLACE, "one")
    (skill,) = find_skills(project).skills
    return skill


@pytest.mark.parametrize("place", FOLDERS)
def test_skills_of_project_and_user_are_found(project: Path, home: Path, place: str) -> None:
    put(project / place, "mine")
    put(home / place / "deeper", "theirs")
    found = find_skills(project)
    assert [(skill.name, skill.root) for skill in found.skills] == [
        ("mine", project / place / "mine"),
        ("theirs", home / place / "deeper/theirs"),
    ]
    assert found.skills[0].description == "What mine does."
    assert found.skills[0].body == "# mine\nDo it.\n"
    assert found.warnings == ()


def test_a_given_folder_is_a_skill_or_holds_some(project: Path, tmp_path: Path) -> None:
    single = put(tmp_path / "elsewhere", "single")
    put(tmp_path / "many", "a")
    put(tmp_path / "many/group", "b")
    found = find_skills(project, [str(single), str(tmp_path / "many")])
    assert names(found) == ["a", "b", "single"]
    put(project, "inside")
    assert names(find_skills(project, ["inside"])) == ["inside"]
    with pytest.raises(UsageError, match="no folder 'nowhere'"):
        find_skills(project, ["nowhere"])


def test_the_given_wins_over_the_project_and_the_project_over_the_user(
    project: Path, tmp_path: Path
) -> None:
    for owner in ("given", "project", "home"):
        text = f"---\nname: same\ndescription: {owner} one\n---\n"
        put(tmp_path / owner / PLACE, "same", text)
    for folders, wins in ([], "project"), ([f"../given/{PLACE}"], "given"):
        found = find_skills(project, folders)
        assert [skill.description for skill in found.skills] == [f"{wins} one"]
        assert len(found.warnings) == 1 + len(folders)
    hidden = "the skill 'same' in ~/.agents/skills/same is hidden by the one in"
    assert hidden in str(found.warnings)


def test_depth_and_hidden_folders_bound_the_search(project: Path) -> None:
    base = project / PLACE
    put(base / "1/2/3/4/5", "deep")
    put(base / "1/2/3/4/5/6", "deeper")
    put(base / ".git", "hidden")
    put(base / "node_modules", "package")
    put(put(base, "outer"), "inner")
    assert names(find_skills(project)) == ["deep", "outer"]


def test_a_link_is_followed_within_the_project_and_not_out_of_it(
    project: Path, tmp_path: Path
) -> None:
    kept = put(project / PLACE, "kept")
    links = project / ".claude/skills"
    links.mkdir(parents=True)
    for name, target in (
        ("kept", kept),
        ("again", links),
        ("stranger", put(tmp_path / "outside", "stranger")),
    ):
        (links / name).symlink_to(target)
    linked = put(project / PLACE, "linked")
    (linked / "SKILL.md").rename(tmp_path / "secret")
    (linked / "SKILL.md").symlink_to(tmp_path / "secret")
    found = find_skills(project)
    assert names(found) == ["kept"]
    assert len(found.warnings) == 2
    assert "'linked' is skipped" in found.warnings[0]
    assert "'stranger' links out of" in found.warnings[1]
    assert str(tmp_path) not in str(found.warnings)


LENIENT: dict[str, tuple[str, str, str]] = {
    "other name": ("name: other\ndescription: d", "other", ""),
    "no name": ("description: d", "one", ""),
    "colon": ("name: one\ndescription: Use when: asked", "one", "at line 3"),
}


@pytest.mark.parametrize("case", LENIENT)
def test_what_is_not_as_the_format_wants_it_is_a_warning(project: Path, case: str) -> None:
    matter, name, warning = LENIENT[case]
    put(project / PLACE, "one", f"---\n{matter}\n---\nbody\n")
    found = find_skills(project)
    assert [(skill.name, skill.body) for skill in found.skills] == [(name, "body\n")]
    assert found.skills[0].description in ("d", "Use when: asked")
    assert warning in " ".join(found.warnings)
    assert bool(warning) is bool(found.warnings)


@pytest.mark.parametrize(
    "text",
    [
        "none",
        "---\nname: one\n---\n",
        "---\n[: broken\n---\n",
    ],
    ids=[
        "none",
        "no description",
        "broken",
    ],
)
def test_a_skill_that_cannot_be_offered_is_skipped_with_a_reason(
    project: Path, text: str | bytes
) -> None:
    put(project / PLACE, "one", text)
    put(project / PLACE, "two")
    found = find_skills(project)
    assert names(found) == ["two"]
    assert found.warnings[0].startswith("the skill 'one' is skipped: ")


def test_its_files_are_listed_without_hidden_ones_and_links(project: Path, home: Path) -> None:
    skill = one(project)
    for name in (
        *("scripts/go.py", "references/a b.md", ".git/config", "x/__pycache__/y.pyc", ".env"),
        *("id_rsa", "1/2/3/4/5/6/deep", "1/2/3/4/5/6/7/deeper"),
    ):
        (skill.root / name).parent.mkdir(parents=True, exist_ok=True)
        (skill.root / name).write_text("x")
    (skill.root / "link").symlink_to(home)
    (skill.root / "linked").symlink_to(skill.root / "SKILL.md")
    assert skill.files() == ["1/2/3/4/5/6/deep", "references/a b.md", "scripts/go.py"]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("../two/SKILL.md", "E_SANDBOX_VIOLATION"),
        ("linked/outside", "E_SANDBOX_VIOLATION"),
        ("nothing.md", "ENOENT"),
        (".env", "E_DENIED"),
        ("large", "E_READ_LIMIT"),
        ("pipe", "E_"),
    ],
)
def test_nothing_outside_a_skill_is_read(project: Path, home: Path, file: str, code: str) -> None:
    skill = one(project)
    put(project / PLACE, "two")
    (home / "outside").write_text("secret")
    (skill.root / "link").symlink_to(home / "outside")
    (skill.root / "linked").symlink_to(home)
    (skill.root / ".env").write_text("x")
    (skill.root / "large").write_text("x" * 101)
    os.mkfifo(skill.root / "pipe")
    with pytest.raises(ToolError) as caught:
        skill.read(file, most_bytes=100)
    assert caught.value.code.startswith(code)
    assert str(project) not in caught.value.message


def test_the_fingerprint_of_a_skill_changes_with_any_file(project: Path, tmp_path: Path) -> None:
    skill = one(project)
    hidden, linked = skill.root / "lib/.hidden/m.py", tmp_path / "linked.py"
    hidden.parent.mkdir(parents=True)
    for file in (hidden, linked):
        file.write_text("x = 1")
    (skill.root / "link.py").symlink_to(linked)
    for file in (hidden, linked):
        before = skill.fingerprint()
        assert skill.fingerprint() == before
        file.write_text("x = 10")
        assert skill.fingerprint() != before
