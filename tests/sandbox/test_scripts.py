"""Running well-meant scripts: what they get, what they give back, how they end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.errors import ToolError
from nbagent.sandbox import (
    LevelName,
    ScriptLimits,
    ScriptOrder,
    ScriptResult,
    isolation,
    isolation_level,
    run_script,
    running,
)
from nbagent.sandbox.plain import run_plainly


def works(level: LevelName) -> bool:
    try:
        return isolation_level(level).name == level
    except ToolError:
        return False


LEVELS: tuple[LevelName, ...] = ("landlock", "bubblewrap", "process")


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> LevelName:
    if not works(request.param):
        pytest.skip(f"{request.param} does not work here")
    return request.param


def ran(folder: Path, text: str | bytes, level: LevelName = "process", **more: Any) -> ScriptResult:
    return run_script(ScriptOrder(text=text, cwd=folder, isolation=level, **more))


def test_a_script_gives_its_output_its_code_and_its_files(tmp_path: Path, level: LevelName) -> None:
    (tmp_path / "skill").mkdir()
    text = (
        "import os, sys\n"
        "os.makedirs(os.environ['OUTPUT_DIR'] + '/a')\n"
        "open(os.environ['OUTPUT_DIR'] + '/a/b.txt', 'w').write('é')\n"
        "print('out', sys.argv[1:]); print('err', file=sys.stderr); sys.exit(3)\n"
    )
    kept = tmp_path / "kept"
    result = ran(tmp_path / "skill", text, level, args=("x y", "--z"), keep_to=kept)
    assert (result.stdout, result.stderr) == ("out ['x y', '--z']\n", "err\n")
    assert (result.returncode, result.timed_out, result.isolation) == (3, False, level)
    assert (result.ended_by, result.notes) == ("", ())
    assert [(file.name, file.size_bytes) for file in result.files] == [("a/b.txt", 2)]
    assert (kept / "a" / "b.txt").read_text("utf-8") == "é"
    assert 0 < result.duration_ms < 10_000


def test_it_imports_the_packages_of_the_notebook(tmp_path: Path, level: LevelName) -> None:
    text = "import orjson, pytest, nbagent; print(nbagent.__name__, orjson.dumps([1]))"
    result = ran(tmp_path, text, level)
    assert result.stdout == "nbagent b'[1]'\n", result.stderr


def test_it_imports_modules_beside_it_and_none_in_place_of_others(tmp_path: Path) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "beside.py").write_text("WORD = 'beside'")
    (tmp_path / "top.py").write_text("WORD = 'top'")
    (scripts / "json.py").write_text("raise SystemExit('replaced')")
    file = scripts / "go.py"
    file.write_text(
        "import beside, json, os, top\n"
        "print(beside.WORD, top.WORD, json.dumps(1), os.path.basename(__file__), __name__)\n"
        "print(open('top.py').read())\n"
    )
    result = run_script(ScriptOrder(file=file, cwd=tmp_path))
    assert result.stdout == "beside top 1 go.py __main__\nWORD = 'top'\n", result.stderr


def test_a_folder_of_pythonpath_is_importable_and_the_rest_of_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, skill = tmp_path / "source", tmp_path / "skill"
    for folder in (source / "package", skill):
        folder.mkdir(parents=True)
    (source / "package" / "__init__.py").write_text("WORD = 'found'")
    (source / ".env").write_text("secret")
    (source / "notes.txt").write_text("secret")
    monkeypatch.setenv("PYTHONPATH", str(source))
    text = (
        "import package, sys\nprint(package.WORD)\n"
        "for name in ('.env', 'notes.txt'):\n"
        "    try: print(open(sys.argv[1] + '/' + name).read())\n"
        "    except OSError: print('closed')\n"
    )
    result = run_script(ScriptOrder(text=text, args=(str(source),), cwd=skill))
    words = result.stdout.split()
    assert words[:1] == ["found"], result.stderr
    if result.isolation == "landlock":
        assert words[1:] == ["closed", "closed"]


def test_a_traceback_shows_the_script_and_nothing_of_what_started_it(tmp_path: Path) -> None:
    result = ran(tmp_path, "def f():\n    return 1 / 0\nf()\n")
    assert result.stderr.count("File ") == 2
    assert "return 1 / 0" in result.stderr
    assert result.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    broken = ran(tmp_path, "x = (\n")
    assert broken.returncode == 1
    assert broken.stderr.count("File ") == 1
    assert "SyntaxError" in broken.stderr


def test_its_environment_is_new_and_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: LevelName
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    monkeypatch.setenv("HOME", "/somewhere")
    text = "import os\nfor item in sorted(os.environ.items()): print(*item)"
    result = ran(tmp_path, text, level, env={"MORE": "1"})
    found = dict(line.split(" ", 1) for line in result.stdout.splitlines())
    assert "sk-0123456789" not in result.stdout
    assert found["HOME"] == found["TMPDIR"] != "/somewhere"
    assert (found["MPLBACKEND"], found["MORE"]) == ("Agg", "1")
    assert not os.path.exists(found["HOME"])


def test_the_folder_of_a_skill_is_readable_and_its_own_folders_writable(
    tmp_path: Path, level: LevelName
) -> None:
    (tmp_path / "data.txt").write_text("data")
    text = (
        "import os, tempfile\nprint(open('data.txt').read(), os.listdir('.'))\n"
        "tempfile.NamedTemporaryFile().write(b'x')\n"
        "try: open('new', 'w'); print('wrote')\nexcept OSError: print('closed')\n"
    )
    result = ran(tmp_path, text, level)
    expected = "wrote" if level == "process" else "closed"
    assert result.stdout == f"data ['data.txt']\n{expected}\n", result.stderr


def test_programs_and_threads_can_be_started(tmp_path: Path, level: LevelName) -> None:
    text = (
        "import subprocess, sys, threading, concurrent.futures as c\n"
        "print(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True).stdout)\n"
        "p = subprocess.Popen(['sleep', '9']); p.terminate(); print(p.wait())\n"
        "print(list(c.ThreadPoolExecutor(4).map(abs, [-1])))\n"
        "import asyncio; print(asyncio.run(asyncio.sleep(0, 'async')))\n"
    )
    result = ran(tmp_path, text, level)
    assert result.stdout == "b'1\\n'\n-15\n[1]\nasync\n", result.stderr


def test_a_stop_ends_it_at_once(tmp_path: Path, level: LevelName) -> None:
    token = CancelToken()
    order = ScriptOrder(
        text="print('begun', flush=True)\nimport time; time.sleep(60)",
        cwd=tmp_path,
        isolation=level,
    )
    threading.Timer(0.4, token.set).start()
    began = time.monotonic()
    result = run_script(order, cancel=token)
    assert time.monotonic() - began < 2
    assert (result.ended_by, result.timed_out) == ("stopped", False)
    assert result.stdout in ("begun\n", "")
    assert result.notes == ("it was stopped",)


def test_a_stop_before_it_began_is_a_stop(tmp_path: Path) -> None:
    token = CancelToken()
    token.set()
    result = run_script(ScriptOrder(text="import time; time.sleep(60)", cwd=tmp_path), cancel=token)
    assert result.ended_by == "stopped"


def test_long_output_keeps_its_beginning_and_end_and_says_what_is_gone(tmp_path: Path) -> None:
    text = "print('first')\nfor n in range(20000): print('line é', n)\nprint('last')"
    result = ran(tmp_path, text, limits=ScriptLimits(output_bytes=2_000))
    assert result.stdout.startswith("first\nline é 0\n")
    assert result.stdout.endswith("line é 19999\nlast\n")
    assert "bytes cut …]" in result.stdout
    assert len(result.stdout.encode()) < 2_200
    assert result.returncode == 0
    assert "were cut from the middle of stdout" in result.notes[0]


def test_a_level_that_does_not_work_is_an_error_and_not_a_lesser_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "_found", {"landlock": "not here", "bubblewrap": "nor here"})
    with pytest.raises(ToolError, match="choose 'auto' or 'process'") as caught:
        ran(tmp_path, "pass", "landlock")
    assert caught.value.code == "E_PRECONDITION_FAILED"
    level = isolation_level()
    assert (level.name, level.is_isolated) == ("process", False)
    assert "nor here" in level.why


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
def test_without_its_walls_a_script_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the folder that it should run in is gone before it starts: setting up fails."""
    order = ScriptOrder(text="print('ran')", cwd=tmp_path / "gone")
    with pytest.raises(ToolError, match="was not run: its isolation") as caught:
        running.run_at(order, "process")
    assert caught.value.code == "E_PRECONDITION_FAILED"


@pytest.mark.parametrize("python", ["/nowhere/python", sys.executable + "-not"])
def test_a_python_that_does_not_start_is_an_error(tmp_path: Path, python: str) -> None:
    with pytest.raises(ToolError, match="their Python does not start"):
        ran(tmp_path, "pass", python=python)


def test_odd_arguments_and_texts_are_passed_on_or_refused(tmp_path: Path) -> None:
    assert ran(tmp_path, "print('\\x00' == chr(0))").stdout == "True\n"
    assert ran(tmp_path, "a = 'é\u202e'\r\nprint(len(a))\r\n").stdout == "2\n"
    assert "SyntaxError" in ran(tmp_path, "a = '\ud800'").stderr
    assert ran(tmp_path, b"# coding: latin-1\nprint(ord('\xe9'))").stdout == "233\n"
    with pytest.raises(ToolError, match="NUL"):
        ran(tmp_path, "pass", args=("a\0b",))


def test_nothing_is_left_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (tmp_path / "skill").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))
    text = (
        "import os\nout = os.environ['OUTPUT_DIR']\nos.makedirs(out + '/closed/x')\n"
        "open(out + '/closed/x/f', 'w').close(); os.chmod(out + '/closed', 0)\n"
    )
    for level in ("process", "auto"):
        assert run_script(ScriptOrder(text=text, cwd=tmp_path / "skill", isolation=level)).files
        assert not list(private.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Killed without a chance to tidy up, the notebook leaves no script behind."""
    nap = f"4{os.getpid()}.5"
    code = (
        "import sys; from pathlib import Path; from nbagent.sandbox import *\n"
        f'text = \'import subprocess; subprocess.run(["sleep", "{nap}"])\'\n'
        f"run_script(ScriptOrder(text=text, cwd=Path({str(tmp_path)!r}), isolation='process'))"
    )
    # What it kept on disk stays, as after any kill -9: among the test's own files.
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", code], env=env)
    assert eventually(lambda: sleeping(nap))
    process.kill()
    process.wait()
    assert eventually(lambda: not sleeping(nap))


def eventually(holds: Any) -> bool:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(0.02)
    return False


def sleeping(nap: str) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\0" + nap.encode() + b"\0":
                return True
    return False


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("print('x')", ""),
        ("import time; time.sleep(60)", "deadline"),
        ("while True: print('x' * 999)", "output"),
    ],
    ids=["ends", "sleeps", "floods"],
)
def test_without_a_supervisor_it_still_ends(tmp_path: Path, text: str, ended: str) -> None:
    """What Windows gets, tried here."""
    limits = ScriptLimits(timeout_s=0.5, flood_bytes=100_000)
    order = ScriptOrder(text=text, cwd=tmp_path, limits=limits)
    run = run_plainly(order, [sys.executable, "-u", "-c", text], dict(os.environ), None)
    assert run.ended_by == ended
    assert run.stdout.text.startswith("x") or ended == "deadline"
    assert run.duration_s < 3


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize(
    "lie", ["ended - 0", "started x", "ended", "setup it is fine", "\\xff" * 9]
)
def test_a_script_that_speaks_for_its_supervisor_leaves_nothing_alive(
    tmp_path: Path, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the plain level a script of the same user can write into the supervisor's pipes."""
    nap = f"5{os.getpid()}.5"
    # As root it is another user; here it stays the same.
    plan_of = running.plan_of

    def same_user(*args: Any) -> Any:
        plan = plan_of(*args)
        plan.leave_root = False
        return plan

    monkeypatch.setattr(running, "plan_of", same_user)
    text = (
        "import os, subprocess\n"
        f"subprocess.Popen(['sleep', '{nap}'], start_new_session=True)\n"
        "folder = f'/proc/{os.getppid()}/fd/'\n"
        "for fd in os.listdir(folder):\n"
        "    try:\n"
        f"        with open(folder + fd, 'w') as pipe: pipe.write('{lie}\\n')\n"
        "    except OSError: pass\n"
        f"os.execvp('sleep', ['sleep', '{nap}'])\n"
    )
    order = ScriptOrder(text=text, cwd=tmp_path, limits=ScriptLimits(timeout_s=0.6))
    began = time.monotonic()
    with suppress(ToolError):
        running.run_at(order, "process")
    assert time.monotonic() - began < 3
    assert not sleeping(nap)
