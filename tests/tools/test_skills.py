"""The skills host: listing, reading, running scripts, and what a person is shown before."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from host_door import HostDoor

from nbagent.contracts.errors import ErrorInfo, UsageError
from nbagent.contracts.policy import CallPreview, ToolLimits, ToolPolicy
from nbagent.contracts.ports import ToolOutcome
from nbagent.files.mounts import Mounts
from nbagent.sandbox import isolation, isolation_level
from nbagent.tools.base import HostOrder
from nbagent.tools.hosts import open_hosts
from nbagent.tools.skills import SkillHost

SKILL = "---\nname: {name}\ndescription: What {name} does.\n---\n"
WALLS = isolation_level().is_isolated
NEEDS = '# /// script\n# requires-python = ">=3.9"\n# dependencies = [{}]\n# ///\nprint("ran")\n'


class Stage(HostDoor):
    """A project with a skill; its host is opened anew for each call."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.project = folder / "project"
        self.state: Path | None = folder / "state"
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
        order = HostOrder(words=(), project=self.project, mounts=mounts, policy=self.policy)
        (self.host,) = open_hosts(words or ("skills",), order)
        assert isinstance(self.host, SkillHost)
        return self.host

    def call(self, name: str, /, *, approved: str = "", **arguments: Any) -> ToolOutcome:
        self.open()
        return super().call(name, approved=approved, **arguments)

    def ran(self, script: str, **more: Any) -> dict[str, Any]:
        """What a script of the skill that ran well gave."""
        return self.data("run_python_script", skill_name="report", script=script, **more)

    def failed(self, script: str, **more: Any) -> ErrorInfo:
        """The error of one that was not run."""
        return self.error("run_python_script", skill_name="report", script=script, **more)

    def looked(self, script: str, **more: Any) -> CallPreview:
        """What a person would see of one."""
        self.open()
        return self.preview("run_python_script", skill_name="report", script=script, **more)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    return Stage(tmp_path)


def test_the_catalogue_has_names_and_descriptions(stage: Stage) -> None:
    listing = [{"name": "report", "description": "What report does."}]
    assert stage.data("list_skills") == {"skills": listing}


def test_a_skill_comes_with_its_files_unread(stage: Stage) -> None:
    assert stage.data("get_skill", skill_name="report") == {
        "skill_name": "report",
        "documentation": "# Report\nRun scripts/make.py.\n",
        "files": ["scripts/make.py"],
    }


def test_further_files_are_read_on_demand(stage: Stage) -> None:
    stage.write("notes.md", "notes é")
    found = stage.data("get_skill", skill_name="report", file="notes.md")
    assert found == {"skill_name": "report", "file": "notes.md", "text": "notes é"}
    (stage.skill / "picture").write_bytes(b"\x89PNG\0")
    assert (
        stage.error("get_skill", skill_name="report", file="picture").code == "E_INVALID_ARGUMENTS"
    )
    error = stage.error("get_skill", skill_name="report", file="../../x")
    assert error.code == "E_SANDBOX_VIOLATION"


def test_a_long_text_comes_in_pages_that_join(stage: Stage) -> None:
    body = "".join(f"line {n} é\n" for n in range(9_000))
    stage.write("SKILL.md", SKILL.format(name="report") + body)
    pieces: list[str] = []
    page = stage.data("get_skill", skill_name="report")
    while page.get("truncated"):
        pieces.append(page["documentation"])
        assert page["documentation"].endswith("\n")
        assert f"offset={page['next_offset']}" in page["hint"]
        page = stage.data("get_skill", skill_name="report", offset=page["next_offset"])
    assert "".join([*pieces, page["documentation"]]) == body
    assert len(pieces) > 2
    error = stage.error("get_skill", skill_name="report", offset=10**9)
    assert error.code == "E_INVALID_ARGUMENTS"


@pytest.mark.parametrize("tool", ["get_skill", "run_python_script"])
def test_an_unknown_skill_names_the_known_ones(stage: Stage, tool: str) -> None:
    more = {"script": "pass"} if tool == "run_python_script" else {}
    error = stage.error(tool, skill_name="raport", **more)
    assert error.code == "ENOENT"
    assert "did you mean 'report'?" in error.message
    assert error.message.endswith("There are: report")


def test_without_skills_no_tool_is_offered(stage: Stage, tmp_path: Path) -> None:
    order = HostOrder(words=(), project=tmp_path / "home", mounts={})
    (host,) = open_hosts(["skills"], order)
    assert not HostDoor(host).specs


def test_single_tools_can_be_named(stage: Stage) -> None:
    stage.open("get_skill", "list_skills")
    assert list(stage.specs) == ["list_skills", "get_skill"]
    with pytest.raises(UsageError, match="did you mean 'get_skill'"):
        stage.open("skills.get_skil")


def test_the_person_is_told_what_is_wrong_with_skills(stage: Stage) -> None:
    stage.write("SKILL.md", "---\nname: other\ndescription: d\n---\n")
    assert any("is not its folder's" in warning for warning in stage.open().warnings)


def test_a_script_of_the_skill_runs_from_its_root(stage: Stage) -> None:
    stage.write("data.txt", "data")
    stage.write("scripts/make.py", "import sys\nprint(open('data.txt').read(), sys.argv[1:])\n")
    found = stage.ran("scripts/make.py", args=["a b"])
    duration_ms = found.pop("duration_ms")
    assert found == {
        "skill_name": "report",
        "stdout": "data ['a b']\n",
        "stderr": "",
        "returncode": 0,
        "timed_out": False,
        "isolation": isolation_level().name,
        "files": [],
    }
    assert 0 < duration_ms < 60_000


def test_text_runs_where_no_file_bears_its_name(stage: Stage) -> None:
    found = stage.ran("print(6 * 7)")
    assert found["stdout"] == "42\n"
    # A file of this name wins over a text that would be Python too.
    stage.write("print(6 * 7)", "#!/usr/bin/env python3\nprint('file')")
    found = stage.ran("print(6 * 7)")
    assert found["stdout"] == "file\n"


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("scripts/other.py", "ENOENT", "its scripts are: scripts/make.py"),
        ("scripts/run.sh", "E_INVALID_ARGUMENTS", "no Python script"),
        ("scripts/none.sh", "ENOENT", "has no file"),
        ("  ", "E_INVALID_ARGUMENTS", "empty"),
    ],
)
def test_what_is_no_script_is_said(stage: Stage, script: str, code: str, words: str) -> None:
    stage.write("scripts/run.sh", "echo")
    error = stage.failed(script)
    assert error.code == code
    assert words in error.message


def test_what_a_script_writes_is_kept_in_the_state(stage: Stage) -> None:
    script = "import os; open(os.environ['OUTPUT_DIR'] + '/a.csv', 'w').write('1,2')"
    first, second = (stage.ran(script)["files"][0] for _ in range(2))
    assert first == {"path": "@state/scripts/00000000-call_1/a.csv", "bytes": 3}
    assert second["path"] == "@state/scripts/00000000-call_1-2/a.csv"
    assert stage.state
    assert (stage.state / "scripts/00000000-call_1/a.csv").read_text() == "1,2"
    stage.state = None
    assert "were not kept" in str(stage.ran(script))


def test_no_folder_of_this_machine_reaches_the_model(stage: Stage, tmp_path: Path) -> None:
    script = (
        "import os, sys, json\nprint(os.getcwd(), os.environ['OUTPUT_DIR'], json.__file__)\n"
        "print(os.path.expanduser('~')); json.loads('[')"
    )
    found = stage.ran(script)
    assert found["stdout"].splitlines()[0].startswith(". $OUTPUT_DIR <python>")
    assert "JSONDecodeError" in found["stderr"]
    for text in (found["stdout"], found["stderr"]):
        assert str(tmp_path) not in text
        assert "nbagent-script-" not in text


def test_a_deadline_is_a_normal_result(stage: Stage) -> None:
    stage.policy = ToolPolicy(limits=ToolLimits(script_timeout_s=0.5))
    script = "import time; print('early'); time.sleep(60)"
    found = stage.ran(script, timeout=99)
    assert (found["stdout"], found["timed_out"], found["ended_by"]) == ("early\n", True, "deadline")
    assert found["returncode"] == -9
    assert found["notes"] == [
        "the timeout was cut to the longest allowed: 0.5 s",
        "it was ended after 0.5 s",
    ]


def test_a_stop_ends_the_script_at_once(stage: Stage) -> None:
    stage.stop_after(0.5)
    began = time.monotonic()
    assert stage.failed("import time; time.sleep(60)").code == "E_INTERRUPTED"
    assert 0.5 < time.monotonic() - began < 1.5


@pytest.mark.parametrize(
    ("dependencies", "missing"),
    [
        ('"orjson", "pydantic>=2"', ""),
        ('"no-such-package-of-ours"', "no-such-package-of-ours;"),
        ('"orjson>=999"', "orjson>=999 ("),
        ('"orjson", "nothing-here[x]>=1; python_version > \'3\'"', "nothing-here[x]"),
        ("\"nothing-here; python_version < '3'\"", ""),
        ('"!!"', "no requirement"),
    ],
    ids=["there", "missing", "too old", "with a marker", "not for this Python", "nonsense"],
)
def test_inline_dependencies_are_looked_at_before_it_runs(
    stage: Stage, dependencies: str, missing: str
) -> None:
    stage.write("scripts/make.py", NEEDS.format(dependencies))
    if not missing:
        assert stage.ran("scripts/make.py")["stdout"] == "ran\n"
        return
    error = stage.failed("scripts/make.py")
    assert error.code == "E_PRECONDITION_FAILED"
    assert missing in error.message
    assert "%pip install" in error.message
    assert error.details["missing"]
    pieces = stage.looked("scripts/make.py").pieces
    assert any(piece.label == "it will not run" for piece in pieces)


def test_another_python_and_broken_metadata_are_said(stage: Stage) -> None:
    for text, words in (
        ('# /// script\n# requires-python = ">=9"\n# ///\n', "it wants Python >=9"),
        ("# /// script\n# dependencies = [\n# ///\n", "it is not TOML"),
        ('# /// script\n# dependencies = "x"\n# ///\n', "dependencies is no list"),
    ):
        error = stage.failed(text)
        assert words in error.message


def test_a_person_sees_the_whole_script_and_the_level(stage: Stage) -> None:
    shown = stage.looked("scripts/make.py", args=["a", "b c"])
    assert shown.ruling == ("allow" if WALLS else "ask")
    assert [(piece.label, piece.kind) for piece in shown.pieces] == [
        ("report/scripts/make.py", "code"),
        ("arguments", "text"),
        ("isolation", "text"),
    ]
    assert shown.pieces[0].text == "import sys\nprint('made', sys.argv[1:])\n"
    assert shown.pieces[1].text == "a\nb c"
    assert isolation_level().name in shown.why
    assert stage.preview("get_skill", skill_name="report").ruling == "allow"
    other = stage.preview("run_python_script", skill_name="nothing", script="pass")
    assert other.why.startswith("there is no skill")


def test_without_isolation_a_person_is_asked(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    isolated = stage.looked("pass")
    monkeypatch.setattr(isolation, "_found", {"landlock": "not here", "bubblewrap": "nor here"})
    shown = stage.looked("pass")
    assert (shown.ruling, shown.firm) == ("ask", True), "no setting does without the question"
    assert "NOT kept apart" in shown.why
    assert "can read and write your files" in shown.pieces[-1].text
    assert shown.binds != isolated.binds or not WALLS


def test_what_a_script_prints_is_told_line_by_line_while_it_runs(stage: Stage) -> None:
    stage.ran("import time\nfor i in range(4): print('line', i); time.sleep(0.15)")
    assert stage.progress[0] == "line 0"
    assert 2 <= len(stage.progress) <= 4
    assert all(line.startswith("line ") and line[5:].isdigit() for line in stage.progress)


def test_an_approval_holds_for_these_bytes_only(stage: Stage) -> None:
    approved = stage.looked("scripts/make.py").binds
    assert stage.ran("scripts/make.py", approved=approved)
    stage.write("scripts/make.py", "print('another')")
    error = stage.failed("scripts/make.py", approved=approved)
    assert error.code == "E_PRECONDITION_FAILED"
    assert "changed after it was approved" in error.message


def test_an_approval_where_nothing_is_kept_apart_holds_for_the_files_beside(stage: Stage) -> None:
    stage.policy = ToolPolicy(isolation="process")
    stage.write("helper.py", "word = 'seen'")
    stage.write("scripts/make.py", "import helper\nprint(helper.word)")
    binds = stage.looked("scripts/make.py").binds
    assert stage.ran("scripts/make.py", approved=binds)
    stage.write("helper.py", "word = 'never seen'")
    assert stage.failed("scripts/make.py", approved=binds).code == "E_PRECONDITION_FAILED"


def test_an_approval_holds_for_one_folder_not_for_another_skill_of_its_name(
    stage: Stage, tmp_path: Path
) -> None:
    before = stage.looked("print(1)").binds
    stage.skill.rename(tmp_path / "elsewhere")
    other = stage.project / ".claude/skills/report"
    other.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").rename(other)
    assert stage.looked("print(1)").binds != before


@pytest.mark.parametrize("bad", ["a\ud800b", "a\0b"], ids=["half a pair", "NUL"])
def test_an_argument_that_no_program_can_get_is_refused_with_its_number(
    stage: Stage, bad: str
) -> None:
    error = stage.failed("scripts/make.py", args=["fine", bad])
    assert (error.code, "argument 2" in error.message) == ("E_INVALID_ARGUMENTS", True)
    assert stage.looked("scripts/make.py", args=["fine", bad]).pieces == ()


def test_the_folders_above_a_skill_have_no_names_of_the_host(stage: Stage) -> None:
    code = "import os\nfor n in range(1, 6): print(os.path.abspath('/'.join(['..'] * n)))"
    data = stage.ran(code)
    lines = data["stdout"].split("\n")
    assert lines[:3] == ["..", "../..", "../../.."]
    assert str(stage.project.parent) not in data["stdout"]
