"""Finding skills and reading them as they are written out there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.tools.skill_folders import FoundSkills, Skill, find_skills, skill_mounts

GOOD = "---\nname: {name}\ndescription: What {name} does.\n---\n# {name}\nDo it.\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


def put(base: Path, name: str, text: str | bytes | None = None) -> Path:
    folder = base / name
    folder.mkdir(parents=True)
    text = GOOD.format(name=folder.name) if text is None else text
    (folder / "SKILL.md").write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def found(project: Path, home: Path, *given: str) -> FoundSkills:
    return find_skills(project, given, home=home)


def names(skills: FoundSkills) -> list[str]:
    return [skill.name for skill in skills.skills]


def one(project: Path, home: Path, text: str | bytes, folder: str = "one") -> Skill:
    put(project / ".agents/skills", folder, text)
    (skill,) = found(project, home).skills
    return skill


@pytest.mark.parametrize("place", [".agents/skills", ".claude/skills", ".nbagent/skills"])
def test_skills_of_project_and_user_are_found(project: Path, home: Path, place: str) -> None:
    put(project / place, "mine")
    put(home / place / "deeper", "theirs")
    skills = found(project, home)
    assert names(skills) == ["mine", "theirs"]
    assert [skill.origin for skill in skills.skills] == ["project", "user"]
    assert skills.skills[0].description == "What mine does."
    assert skills.skills[0].body == "# mine\nDo it.\n"
    assert skills.warnings == ()


def test_a_given_folder_is_a_skill_or_holds_some(project: Path, home: Path, tmp_path: Path) -> None:
    single = put(tmp_path / "elsewhere", "single")
    many = tmp_path / "many"
    put(many, "a")
    put(many / "group", "b")
    assert names(found(project, home, str(single), str(many))) == ["a", "b", "single"]
    put(project, "inside")
    assert names(found(project, home, "inside")) == ["inside"]
    with pytest.raises(UsageError, match="no folder 'nowhere'"):
        found(project, home, "nowhere")


def test_the_given_wins_over_the_project_and_the_project_over_the_user(
    project: Path, home: Path, tmp_path: Path
) -> None:
    for base in (home / ".agents/skills", project / ".claude/skills", tmp_path / "given"):
        put(
            base,
            "same",
            f"---\nname: same\ndescription: {base.relative_to(tmp_path).parts[0]} one\n---\n",
        )
    first = found(project, home)
    assert [skill.description for skill in first.skills] == ["project one"]
    assert first.warnings == (
        "the skill 'same' of the user (~/.agents/skills/same) is hidden by the one of the project "
        "(.claude/skills/same)",
    )
    second = found(project, home, str(tmp_path / "given"))
    assert [skill.origin for skill in second.skills] == ["given"]


def test_depth_and_hidden_folders_bound_the_search(project: Path, home: Path) -> None:
    base = project / ".agents/skills"
    put(base / "1/2/3/4/5", "deep")
    put(base / "1/2/3/4/5/6", "deeper")
    put(base / ".git", "hidden")
    put(base / "node_modules", "package")
    put(put(base, "outer"), "inner")
    assert names(found(project, home)) == ["deep", "outer"]


def test_a_link_is_followed_within_the_project_and_not_out_of_it(
    project: Path, home: Path, tmp_path: Path
) -> None:
    kept = put(project / ".agents/skills", "kept")
    (project / ".claude/skills").mkdir(parents=True)
    (project / ".claude/skills/kept").symlink_to(kept)
    (project / ".claude/skills/again").symlink_to(project / ".claude/skills")
    outside = put(tmp_path / "outside", "stranger")
    (project / ".claude/skills/stranger").symlink_to(outside)
    skills = found(project, home)
    assert names(skills) == ["kept"]
    (warning,) = skills.warnings
    assert "'stranger' links out of" in warning
    assert str(tmp_path) not in warning


def test_a_skill_whose_text_is_a_link_is_skipped(project: Path, home: Path) -> None:
    folder = put(project / ".agents/skills", "linked")
    (home / "secret").write_text(GOOD.format(name="linked"))
    (folder / "SKILL.md").unlink()
    (folder / "SKILL.md").symlink_to(home / "secret")
    skills = found(project, home)
    assert names(skills) == []
    assert "'linked' is skipped" in skills.warnings[0]


LENIENT: dict[str, tuple[str, str, str]] = {
    "other name": ("name: other\ndescription: d", "other", "is not its folder's"),
    "no name": ("description: d", "one", "it has no name"),
    "odd name": ("name: One_Two\ndescription: d", "One_Two", "lowercase letters"),
    "doubled hyphen": ("name: a--b\ndescription: d", "a--b", "lowercase letters"),
    "long name": (f"name: {'a' * 70}\ndescription: d", "a" * 64, "at most 64"),
    "long description": (f"name: one\ndescription: {'d ' * 600}", "one", "more than 1,024"),
    "colon": ("name: one\ndescription: Use when: asked", "one", "should be quoted"),
    "key": ("name: one\ndescription: d\nuser-invocable: true", "one", "user-invocable"),
    "metadata": ("name: one\ndescription: d\nmetadata: x", "one", "metadata is no mapping"),
    "compatibility": (f"name: one\ndescription: d\ncompatibility: {'x' * 501}", "one", "500"),
}


@pytest.mark.parametrize("case", LENIENT)
def test_what_is_not_as_the_format_wants_it_is_a_warning(
    project: Path, home: Path, case: str
) -> None:
    matter, name, warning = LENIENT[case]
    skill = one(project, home, f"---\n{matter}\n---\nbody\n")
    assert skill.name == name
    assert warning in " ".join(skill.warnings)
    assert skill.body == "body\n"


def test_all_fields_are_read(project: Path, home: Path) -> None:
    matter = (
        "name: one\ndescription: |\n  Two\n  lines\nlicense: MIT\ncompatibility: needs git\n"
        "allowed-tools: Bash(git:*) Read\nmetadata:\n  author: me\n  version: 1\n"
    )
    skill = one(project, home, f"---\n{matter}---\nbody")
    assert skill.description == "Two lines"
    assert (skill.license, skill.compatibility) == ("MIT", "needs git")
    assert skill.allowed_tools == ("Bash(git:*)", "Read")
    assert skill.metadata == (("author", "me"), ("version", "1"))
    assert skill.warnings == ()


@pytest.mark.parametrize(
    "text",
    ["none", "---\nname: one\n---\n", "---\n[: broken\n---\n", b"\xff\xfe\x00", "", "---\n" * 999],
    ids=["none", "no description", "broken", "binary", "empty", "lines"],
)
def test_a_skill_that_cannot_be_offered_is_skipped_with_a_reason(
    project: Path, home: Path, text: str | bytes
) -> None:
    put(project / ".agents/skills", "one", text)
    put(project / ".agents/skills", "two")
    skills = found(project, home)
    assert names(skills) == ["two"]
    assert skills.warnings[0].startswith("the skill 'one' is skipped: ")


def test_its_files_are_listed_without_hidden_ones_and_links(project: Path, home: Path) -> None:
    folder = put(project / ".agents/skills", "one")
    for name in (
        "scripts/go.py",
        "references/a b.md",
        ".git/config",
        "x/__pycache__/y.pyc",
        ".env",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / "link").symlink_to(home)
    (folder / "id_rsa").write_text("x")
    (skill,) = found(project, home).skills
    assert skill.files() == (("references/a b.md", "scripts/go.py"), False)


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("../two/SKILL.md", "E_SANDBOX_VIOLATION"),
        ("/etc/passwd", "E_SANDBOX_VIOLATION"),
        ("link", "E_SANDBOX_VIOLATION"),
        ("linked/outside", "E_SANDBOX_VIOLATION"),
        ("scripts", "E_"),
        ("nothing.md", "ENOENT"),
        ("SKILL.md/x", "ENOENT"),
        ("", "ENOENT"),
        (".env", "E_DENIED"),
        ("large", "E_READ_LIMIT"),
        ("pipe", "E_"),
        ("a\0b", "E_SANDBOX_VIOLATION"),
    ],
)
def test_nothing_outside_a_skill_is_read(project: Path, home: Path, file: str, code: str) -> None:
    folder = put(project / ".agents/skills", "one")
    put(project / ".agents/skills", "two")
    (home / "outside").write_text("secret")
    (folder / "link").symlink_to(home / "outside")
    (folder / "linked").symlink_to(home)
    (folder / "scripts").mkdir()
    (folder / ".env").write_text("x")
    (folder / "large").write_text("x" * 101)
    os.mkfifo(folder / "pipe")
    (skill, _) = found(project, home).skills
    with pytest.raises(ToolError) as caught:
        skill.read(file, most_bytes=100)
    assert caught.value.code.startswith(code)
    assert str(project) not in caught.value.message
    assert not skill.has(file) or file in (".env", "large")


def test_the_file_tools_may_have_them_as_mounts(project: Path, home: Path) -> None:
    folder = put(project / ".agents/skills", "one")
    (mount,) = skill_mounts(found(project, home).skills)
    assert (mount.name, mount.mode, mount.root) == ("@skill-one", "ro", folder)


@pytest.mark.parametrize("impostor", ["dup", "zzz"], ids=["found before", "found after"])
def test_a_skill_whose_folder_bears_its_name_is_not_hidden_by_another(
    project: Path, home: Path, impostor: str
) -> None:
    base = project / ".agents/skills"
    put(base, "good")
    put(base, impostor, GOOD.format(name="good").replace("What", "Not what"))
    skills = found(project, home)
    assert [skill.description for skill in skills.skills] == ["What good does."]
    assert skills.warnings[0] == (
        f"the skill 'good' of the project (.agents/skills/{impostor}) is hidden by the one of the "
        "project (.agents/skills/good)"
    )


def test_the_fingerprint_of_a_skill_changes_with_any_file(project: Path, home: Path) -> None:
    folder = put(project / ".agents/skills", "one")
    (folder / "lib/.hidden").mkdir(parents=True)
    (folder / "lib/.hidden/m.py").write_text("x = 1")
    (skill,) = found(project, home).skills
    before = skill.fingerprint()
    assert skill.fingerprint() == before
    (folder / "lib/.hidden/m.py").write_text("x = 10")
    after = skill.fingerprint()
    assert after != before
    for number in range(1_100):
        (folder / f"{number}.txt").touch()
    assert len(skill.fingerprint()) == 1_000
