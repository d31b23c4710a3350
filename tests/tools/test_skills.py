"""Skills: listing, reading and running scripts, what a person is shown before; finding them."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import os
import py_compile
import threading
from pathlib import Path
from typing import Any

import pytest
from host_door import HostDoor

from nbagent.contracts.approval import CallPreview
from nbagent.contracts.errors import ErrorInfo, ToolError, UsageError
from nbagent.contracts.limits import ToolLimits
from nbagent.contracts.policy import ToolPolicy
from nbagent.contracts.tools import PreparedCall, ToolOutcome
from nbagent.files.mounts import Mounts
from nbagent.sandbox import script
from nbagent.sandbox.script import isolation_level
from nbagent.session.approval import PolicyRules
from nbagent.session.tool_hosts import glob_resolver
from nbagent.tools.host_config import HostConfig
from nbagent.tools.hosts import open_hosts
from nbagent.tools.skill_folders import FOLDERS, FoundSkills, Skill, find_skills
from nbagent.tools.skills import SkillHost

SKILL = "---\nname: {name}\ndescription: What {name} does.\n---\n"
APART = isolation_level().is_isolated
RUN = "run_python_script"


class Stage(HostDoor):
    """A project with a skill; its host is opened anew for each call."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.project = folder / "project"
        self.state = folder / "state"
        self.skill = self.project / ".agents/skills/report"
        (self.skill / "scripts").mkdir(parents=True)
        self.write("SKILL.md", SKILL.format(name="report") + "# Report\nRun scripts/make.py.\n")
        self.write("scripts/make.py", "import sys\nprint('made', sys.argv[1:])\n")
        self.policy = ToolPolicy()

    def write(self, name: str, text: str) -> None:
        """A file of the skill."""
        (self.skill / name).write_text(text, "utf-8")

    def open(self, *words: str) -> SkillHost:
        """The host as a run opens it."""
        mounts = Mounts.of(self.project, state=self.state)
        order = HostConfig(names=(), project=self.project, mounts=mounts, policy=self.policy)
        (self.host,) = open_hosts(words or ("skills",), order)
        return self.host

    def call(self, name: str, /, **arguments: Any) -> ToolOutcome:
        self.open()
        return super().call(name, **arguments)

    def ran(self, script: str, **more: Any) -> dict[str, Any]:
        """Result of a script of the skill that ran well."""
        return self.data(RUN, skill_name="report", script=script, **more)

    def failed(self, script: str, **more: Any) -> ErrorInfo:
        """The error of one that was not run."""
        return self.error(RUN, skill_name="report", script=script, **more)

    def script(self, script: str, **more: Any) -> PreparedCall:
        """Script that was read and is ready to run."""
        self.open()
        return self.prepared(RUN, skill_name="report", script=script, **more)


@pytest.fixture
def stage(tmp_path: Path, home: Path) -> Stage:
    return Stage(tmp_path)


# --- reading ------------------------------------------------------------------------------------


def test_a_skill_is_listed_and_comes_with_its_files_unread(stage: Stage) -> None:
    listing = [{"name": "report", "description": "What report does."}]
    assert stage.data("list_skills") == {"skills": listing}
    assert stage.data("get_skill", skill_name="report") == {
        "skill_name": "report",
        "documentation": "# Report\nRun scripts/make.py.\n",
        "files": ["scripts/make.py"],
    }


def test_further_files_are_read_on_demand_and_unknown_skills_name_the_known(stage: Stage) -> None:
    stage.write("notes.md", "notes é")
    found = stage.data("get_skill", skill_name="report", file="notes.md")
    assert found == {"skill_name": "report", "file": "notes.md", "text": "notes é"}
    (stage.skill / "picture").write_bytes(b"\x89PNG\0")
    for file, code in (("picture", "E_INVALID_ARGUMENTS"), ("../../x", "E_SANDBOX_VIOLATION")):
        assert stage.error("get_skill", skill_name="report", file=file).code == code
    assert stage.error("get_skill", skill_name="raport").message.endswith("there are: report")


LONG: dict[str, str] = {
    "lines": "".join(f"Line {n} of the instructions.\n" for n in range(2_500)),
    "one line": "x" * 72_144,
    "to be escaped": '"\n\t' * 20_000,
    "control characters": "\x01\x02a\n" * 15_000,
    "wide": "指示🙂" * 20_000,
    "short": "Run it.\n",
}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("file", [None, "more.md"])
def test_a_long_skill_or_file_comes_in_pages_that_say_how_to_go_on(
    stage: Stage, kind: str, file: str | None
) -> None:
    text = LONG[kind].lstrip("\n")
    stage.write("SKILL.md", SKILL.format(name="report") + text)
    stage.write("more.md", text)
    pages: list[str] = []
    offset: int | None = 0
    while offset is not None:
        outcome = stage.call("get_skill", skill_name="report", file=file, offset=offset)
        page = outcome.result.data
        pages.append(page["text" if file else "documentation"])
        assert not outcome.truncated
        assert ("files" in page) == (file is None and offset == 0)
        offset = page.get("next_offset")
        assert page.get("truncated", False) == (offset is not None)
        assert f"continue with offset={offset}" in page["hint"] if offset else "hint" not in page
    assert "".join(pages) == text
    page_chars = 6_000 if "\x01" in text else 20_000
    assert len(pages) <= -(-len(text) // page_chars) + 1
    assert stage.error("get_skill", skill_name="report", offset=10**6).code == "E_INVALID_ARGUMENTS"


def test_many_skills_and_many_files_are_listed_in_part_and_say_so(stage: Stage) -> None:
    for n in range(40):
        folder = stage.project / f".agents/skills/s{n:02}"
        folder.mkdir()
        (folder / "SKILL.md").write_text(f"---\nname: s{n:02}\ndescription: {'d' * 1_500}\n---\n")
    first = stage.data("list_skills")
    names = [skill["name"] for skill in first["skills"]]
    assert f"skills 1 to {len(names)} of 41; continue with offset={len(names)}" == first["hint"]
    while "next_offset" in first:
        first = stage.data("list_skills", offset=first["next_offset"])
        names += [skill["name"] for skill in first["skills"]]
    assert names == ["report", *(f"s{n:02}" for n in range(40))]
    for n in range(300):
        stage.write(f"scripts/{'long' * 12}-{n}.py", "")
    outcome = stage.call("get_skill", skill_name="report")
    assert not outcome.truncated
    page = outcome.result.data
    assert 0 < len(page["files"]) < 301
    assert page["files_note"].startswith(f"{301 - len(page['files']):,} more files are not listed")


@pytest.mark.parametrize("name", ["skill.md", "Skill.md", "SKILL.MD"])
def test_a_skill_in_other_letters_is_read_and_the_person_is_told(stage: Stage, name: str) -> None:
    (stage.skill / "SKILL.md").rename(stage.skill / name)
    assert stage.data("get_skill", skill_name="report")["files"] == ["scripts/make.py"]
    assert any(f"rename {name} to SKILL.md" in text for text in stage.host.warnings)
    for file in ("SKILL.md", name):
        assert "name: report" in stage.data("get_skill", skill_name="report", file=file)["text"]


@pytest.mark.parametrize(
    ("name", "is_named"),
    [
        *[(name, True) for name in ("SKILLS.md", "skill.markdown", "SKILL.md.txt", "SKILL")],
        *[(name, False) for name in ("README.md", "skills.json", "my-skill.md")],
    ],
)
def test_a_file_that_was_meant_as_a_skill_is_named(
    project: Path, name: str, is_named: bool
) -> None:
    folder = project / ".agents/skills/own"
    folder.mkdir(parents=True)
    (folder / name).write_text(SKILL.format(name="own"))
    found = find_skills(project)
    warning = f"the folder 'own' has no skill: rename {name} to SKILL.md"
    assert (found.skills, warning in found.warnings) == ((), is_named)


def test_of_two_spellings_in_one_folder_only_the_right_one_is_the_skill(stage: Stage) -> None:
    stage.write("skill.md", SKILL.format(name="other"))
    if len(os.listdir(stage.skill)) == 2:
        pytest.skip("the file system ignores case")
    assert [skill["name"] for skill in stage.data("list_skills")["skills"]] == ["report"]
    assert stage.host.warnings == ()


def test_only_what_was_named_and_is_there_is_offered(stage: Stage, tmp_path: Path) -> None:
    stage.write("SKILL.md", "---\nname: other\ndescription: d\n---\n")
    stage.open("get_skill", "list_skills")
    assert list(stage.specs) == ["list_skills", "get_skill"]
    with pytest.raises(UsageError, match="did you mean 'get_skill'"):
        stage.open("skills.get_skil")
    order = HostConfig(
        names=(), project=tmp_path / "home", mounts=Mounts.of(tmp_path, state=tmp_path)
    )
    assert not HostDoor(*open_hosts(["skills"], order)).specs


# --- running ------------------------------------------------------------------------------------


def test_a_script_of_the_skill_runs_from_its_root(stage: Stage) -> None:
    stage.write("data.txt", "data")
    stage.write("scripts/make.py", "import sys\nprint(open('data.txt').read(), sys.argv[1:])\n")
    outcome = stage.call(RUN, skill_name="report", script="scripts/make.py", args=["a b"])
    found = dict(outcome.result.data)
    level = isolation_level().name
    assert (outcome.isolation, outcome.ran_in) == (level, "worker thread")
    assert 0 < found.pop("duration_ms") < 60_000
    assert found == {
        "skill_name": "report",
        "stdout": "data ['a b']\n",
        "stderr": "",
        "returncode": 0,
        "timed_out": False,
        "isolation": level,
        "files": [],
    }


def test_text_that_names_no_python_file_runs(stage: Stage) -> None:
    assert stage.ran("print(6 * 7)")["stdout"] == "42\n"
    assert stage.ran("token = 7; print(token)")["stdout"] == "7\n"


def needs(text: str) -> str:
    return f"# /// script\n{text}\n# ///\nprint('ran')\n"


NOT_RUN: dict[str, tuple[str, str, str]] = {
    "no such file": ("scripts/other.py", "ENOENT", "are: scripts/make.py"),
    "a secret": (".ssh/make.py", "E_DENIED", "looks like it holds a secret"),
    "nothing": ("  ", "E_INVALID_ARGUMENTS", "empty"),
    "too long": ("#" * 1_000_001, "E_WRITE_LIMIT", "more than 1,000,000 bytes"),
    "a package is missing": (
        needs("# dependencies = ['orjson', 'no-such-package-of-ours[x]; python_version>\"3\"']"),
        "E_PRECONDITION_FAILED",
        '%pip install "no-such-package-of-ours[x]',
    ),
    "another Python": (
        needs('# requires-python = ">=9"'),
        "E_PRECONDITION_FAILED",
        "it needs Python >=9",
    ),
    "no TOML": (needs("# dependencies = ["), "E_PRECONDITION_FAILED", "cannot be read"),
}


@pytest.mark.parametrize("case", NOT_RUN)
def test_what_would_not_run_is_said_and_nobody_is_asked(stage: Stage, case: str) -> None:
    text, code, words = NOT_RUN[case]
    (stage.skill / ".ssh").mkdir()
    stage.write(".ssh/make.py", "echo")
    error = stage.failed(text)
    assert error.code == code
    assert words in error.message


@pytest.mark.parametrize("rule", ["notes/a.py", "./notes//a.py", '"notes/a.py"', "notes/*"])
def test_a_rule_about_a_file_holds_for_each_spelling_of_it(stage: Stage, rule: str) -> None:
    stage.write("a.py", "print(1)")
    (stage.skill / "notes").mkdir()
    stage.write("notes/a.py", "print(1)")
    denied = ToolPolicy(deny=[f"{RUN}(script={rule})", f"get_skill(file={rule})"])
    rules = PolicyRules(denied, glob_resolver(Mounts.of(stage.project)))
    stage.open()
    spellings = {" ./notes//a.py\n": "deny", "/notes/a.py": "deny", "a.py": "allow"}
    for text, ruling in spellings.items():
        for tool, name in ((RUN, "script"), ("get_skill", "file")):
            made = stage.prepared(tool, skill_name="report", **{name: text})
            assert rules.decide(made.spec, CallPreview(), made.arguments).ruling == ruling


@pytest.mark.parametrize("wanted", ['"orjson", "pydantic>=2"', "\"nothing; python_version < '3'\""])
def test_a_script_whose_needs_are_met_runs(stage: Stage, wanted: str) -> None:
    stage.write("scripts/make.py", needs(f"# dependencies = [{wanted}]"))
    assert stage.ran("scripts/make.py")["stdout"] == "ran\n"


def test_what_a_script_writes_is_kept_in_the_state(stage: Stage) -> None:
    text = "import os; open(os.environ['OUTPUT_DIR'] + '/a.csv', 'w').write('1,2')"
    (file,) = stage.ran(text)["files"]
    assert file == {"path": "@state/scripts/00000000-C01-call_1/a.csv", "bytes": 3}
    assert (stage.state / "scripts/00000000-C01-call_1/a.csv").read_text() == "1,2"


def test_no_folder_of_this_machine_reaches_the_model(stage: Stage, tmp_path: Path) -> None:
    text = (
        "import os, sys, json\nprint(os.getcwd(), os.environ['OUTPUT_DIR'], json.__file__)\n"
        "for n in range(1, 6): print(os.path.abspath('/'.join(['..'] * n)))\n"
        "print(os.environ['SKILL_DIR'], os.path.realpath('SKILL.md'))\n"
        "print(os.path.expanduser('~')); json.loads('[')"
    )
    found = stage.ran(text)
    lines = found["stdout"].splitlines()
    assert lines[0].startswith(". $OUTPUT_DIR <python>")
    assert lines[1] == "<script>", "it runs in a copy of the skill, in a folder of its own"
    assert lines[6] == ". ./SKILL.md"
    assert "JSONDecodeError" in found["stderr"]
    for said in (found["stdout"], found["stderr"]):
        assert str(tmp_path) not in said
        assert "nbagent-script-" not in said


def test_the_limits_of_the_policy_hold(stage: Stage) -> None:
    stage.policy = ToolPolicy(limits=ToolLimits(script_timeout_s=0.5, script_disk_bytes=1_000_000))
    found = stage.ran("import time; print('early'); time.sleep(60)", timeout=99)
    assert (found["stdout"], found["timed_out"], found["ended_by"]) == ("early\n", True, "deadline")
    assert found["returncode"] == -9
    found = stage.ran("import os; open(os.environ['TMPDIR'] + '/f', 'wb').write(b'x' * 2_000_000)")
    assert found["ended_by"] == "files"


# --- before a call ------------------------------------------------------------------------------


def test_a_person_sees_the_whole_script_and_the_level(stage: Stage) -> None:
    seen = stage.script("scripts/make.py", args=["a", "b c"]).preview
    assert seen.ruling == ("allow" if APART else "ask")
    assert [(piece.label, piece.kind) for piece in seen.pieces] == [
        ("report/scripts/make.py", "code"),
        ("isolation", "text"),
    ]
    assert seen.pieces[0].text == "import sys\nprint('made', sys.argv[1:])\n"
    assert isolation_level().name in seen.why
    assert stage.preview("get_skill", skill_name="report").ruling == "allow"


def test_without_isolation_a_person_is_always_asked(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = stage.script("pass").preview
    monkeypatch.setattr(script, "landlock_problem", lambda: "not here")
    seen = stage.script("pass").preview
    assert (seen.ruling, seen.minimum) == ("ask", True), "no setting does without the question"
    assert stage.specs[RUN].traits.ruling == "ask"
    assert "NOT isolated" in seen.why
    assert "can read and write your files" in seen.pieces[-1].text
    assert seen.approval_key != apart.approval_key or not APART
    stage.policy = ToolPolicy(isolation="landlock")
    assert "not here; choose 'auto' or 'process'" in stage.failed("pass").message


def test_the_bytes_that_were_shown_are_the_bytes_that_run(stage: Stage) -> None:
    prepared = stage.script("scripts/make.py")
    stage.write("scripts/make.py", "print('another')")
    outcome = stage.run_prepared(prepared)
    assert outcome.result.data["stdout"] == "made []\n"
    assert stage.script("scripts/make.py").preview.approval_key != prepared.preview.approval_key


HELPED = "import helper, sys\nprint(helper.word)\n"


def changed_text(stage: Stage) -> None:
    stage.write("helper.py", "word = 'never seen'")


def same_size_and_time(stage: Stage) -> None:
    helper = stage.skill / "helper.py"
    state = helper.stat()
    stage.write("helper.py", "word = 'evil'")
    os.utime(helper, ns=(state.st_atime_ns, state.st_mtime_ns))


def replaced_by_a_link(stage: Stage) -> None:
    (stage.project / "elsewhere.py").write_text("word = 'never seen'")
    (stage.skill / "helper.py").unlink()
    (stage.skill / "helper.py").symlink_to(stage.project / "elsewhere.py")


def removed(stage: Stage) -> None:
    (stage.skill / "helper.py").unlink()


def changed_data(stage: Stage) -> None:
    stage.write("table.csv", "never,seen")


def changed_script(stage: Stage) -> None:
    stage.write("scripts/make.py", "print('never seen')")


CHANGES = [
    *(changed_text, same_size_and_time, replaced_by_a_link, removed, changed_data),
    changed_script,
]
LEVELS = [
    pytest.param("auto", marks=pytest.mark.skipif(not APART, reason="no landlock here")),
    "process",
]


def helped(stage: Stage, isolation: str) -> PreparedCall:
    """A script with a helper beside it, as it was read for a person."""
    stage.policy = ToolPolicy(isolation="auto" if isolation == "auto" else "process")
    stage.write("scripts/make.py", HELPED)
    stage.write("helper.py", "word = 'seen'")
    stage.write("table.csv", "1,2")
    return stage.script("scripts/make.py")


@pytest.mark.parametrize("isolation", LEVELS)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_helper_that_changed_after_the_approval_is_refused_and_asked_about_again(
    stage: Stage, change: Any, isolation: str
) -> None:
    prepared = helped(stage, isolation)
    before = prepared.preview.approval_key
    assert stage.script("scripts/make.py").preview.approval_key == before
    change(stage)
    error = stage.run_prepared(prepared, approved=True).result.error
    assert error is not None
    assert error.code == "E_PRECONDITION_FAILED"
    assert "of the skill changed after the script was approved; call it again" in error.message
    assert stage.script("scripts/make.py").preview.approval_key != before


def test_the_question_lists_the_files_that_a_script_can_import(stage: Stage) -> None:
    (stage.skill / "lib").mkdir()
    stage.write("lib/deep.py", "")
    (stage.skill / "link.py").symlink_to(stage.skill / "helper.py")
    pieces = helped(stage, "auto").preview.pieces
    assert [piece.label for piece in pieces] == [
        *("report/scripts/make.py", "files that it can import or read", "isolation")
    ]
    sha = hashlib.sha256(b"word = 'seen'").hexdigest()
    lines = pieces[1].text.splitlines()
    assert lines[0] == f"helper.py · 13 bytes · {sha[:12]}"
    assert [line.split(" · ")[0] for line in lines] == ["helper.py", "lib/deep.py", "table.csv"]


def unseen_bytecode(stage: Stage) -> None:
    """Compiled code that Python would run in place of the helper: same time, same size."""
    helper, evil = stage.skill / "helper.py", stage.skill / "evil.py"
    state = helper.stat()
    evil.write_text("word = 'evil'")
    os.utime(evil, ns=(state.st_atime_ns, state.st_mtime_ns))
    cached = importlib.util.cache_from_source(str(helper))
    py_compile.compile(str(evil), cfile=cached, dfile=str(helper))
    evil.unlink()


def unseen_module(stage: Stage) -> None:
    (stage.skill / "scripts/helper.py").write_text("word = 'evil'")


def linked_module(stage: Stage) -> None:
    (stage.project / "elsewhere.py").write_text("word = 'evil'")
    (stage.skill / "scripts/helper.py").symlink_to(stage.project / "elsewhere.py")


@pytest.mark.parametrize("isolation", LEVELS)
@pytest.mark.parametrize(
    "attack", [unseen_bytecode, unseen_module, linked_module], ids=lambda attack: attack.__name__
)
def test_an_approved_script_imports_only_what_the_question_listed(
    stage: Stage, attack: Any, isolation: str
) -> None:
    prepared = helped(stage, isolation)
    attack(stage)
    outcome = stage.run_prepared(prepared, approved=True)
    assert outcome.result.data["stdout"] == "seen\n"


@pytest.mark.parametrize("attack", [unseen_bytecode, linked_module], ids=lambda it: it.__name__)
def test_code_that_the_question_does_not_list_never_runs(stage: Stage, attack: Any) -> None:
    helped(stage, "process")
    attack(stage)
    prepared = stage.script("scripts/make.py")
    (listed,) = [piece for piece in prepared.preview.pieces if piece.label.startswith("files")]
    assert "evil" not in listed.text
    assert "pycache" not in listed.text
    assert stage.run_prepared(prepared, approved=True).result.data["stdout"] == "seen\n"


def test_a_helper_that_is_swapped_all_the_time_runs_as_approved_or_not_at_all(
    stage: Stage,
) -> None:
    prepared = helped(stage, "process")
    helper, over = stage.skill / "helper.py", threading.Event()

    def swap() -> None:
        for number in itertools.count():
            if over.is_set():
                return
            other = stage.project / "other.py"
            other.write_text("word = 'seen'" if number % 2 else "word = 'evil'")
            other.replace(helper)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        outcomes = [stage.run_prepared(prepared, approved=True).result for _ in range(12)]
    finally:
        over.set()
        thread.join()
    ran = [outcome.data["stdout"] for outcome in outcomes if outcome.ok]
    refused = [outcome.error.code for outcome in outcomes if outcome.error]
    assert {*ran, *refused} <= {"seen\n", "E_PRECONDITION_FAILED"}


def test_a_skill_that_is_too_large_says_the_limit_and_how_to_raise_it(stage: Stage) -> None:
    stage.policy = ToolPolicy(limits=ToolLimits(script_disk_bytes=1_000))
    stage.write("table.csv", "x" * 1_001)
    error = stage.failed("scripts/make.py")
    assert error.code == "E_READ_LIMIT"
    assert "limit script_disk_bytes" in error.message
    assert "nbagent.configure(script_disk_bytes=" in error.message


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
    with pytest.raises(UsageError, match="the skills folder 'nowhere' does not exist"):
        find_skills(project, ["nowhere"])


def test_the_given_wins_over_the_project_and_that_over_the_user(
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


def test_a_link_is_followed_within_the_project_alone(project: Path, tmp_path: Path) -> None:
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
    ["none", "---\nname: one\n---\n", "---\n[: broken\n---\n"],
    ids=["none", "no description", "broken"],
)
def test_a_skill_of_no_use_is_skipped_with_a_reason(project: Path, text: str | bytes) -> None:
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
        skill.read(file, max_bytes=100)
    assert caught.value.code.startswith(code)
    assert str(project) not in caught.value.message
