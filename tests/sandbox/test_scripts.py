"""Running well-meant scripts: what they get, what they give back, how they end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.errors import ToolError
from nbagent.sandbox import confinement, script, syscalls
from nbagent.sandbox.process import LevelName, ScriptJob, ScriptLimits, run_unsupervised
from nbagent.sandbox.script import ScriptResult, isolation_level, run_script

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


@pytest.fixture(params=["landlock", "process"])
def level(request: pytest.FixtureRequest) -> LevelName:
    if request.param == "landlock" and not isolation_level().is_isolated:
        pytest.skip("landlock does not work here")
    return request.param


@linux
def test_where_the_kernel_offers_landlock_it_holds() -> None:
    """Otherwise the tests of that level would be skipped, and nobody would see why."""
    if not confinement.landlock_abi() or os.uname().machine not in syscalls.ARCHES:
        pytest.skip("this kernel does not offer it")
    assert (script.landlock_problem(), isolation_level().name) == ("", "landlock")


def ran(folder: Path, text: str | bytes, level: LevelName = "process", **more: Any) -> ScriptResult:
    return run_script(ScriptJob(text=text, cwd=folder, isolation=level, **more))


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


SAID: dict[str, tuple[str | bytes, str]] = {
    "imports the notebook's packages": (
        "import orjson, pytest, nbagent; print(nbagent.__name__, orjson.dumps([1]))",
        "nbagent b'[1]'\n",
    ),
    "reads its folder": ("import os; print(open('data').read(), os.listdir('.'))", "data ['data']"),
    "writes temporary files": (
        "import tempfile; print(tempfile.NamedTemporaryFile().write(b'x'))",
        "1\n",
    ),
    "starts and ends programs": (
        "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True).stdout)\n"
        "p = subprocess.Popen(['sleep', '9']); p.terminate(); print(p.wait())",
        "b'1\\n'\n-15\n",
    ),
    "starts threads and loops": (
        "import asyncio, concurrent.futures as c\n"
        "print(list(c.ThreadPoolExecutor(4).map(abs, [-1])))\n"
        "print(asyncio.run(asyncio.sleep(0, 'async')))",
        "[1]\nasync\n",
    ),
    "has a coding of its own": (b"# coding: latin-1\nprint(ord('\xe9'))", "233\n"),
}


@pytest.mark.parametrize("case", SAID)
def test_what_a_script_may_do_it_can(tmp_path: Path, level: LevelName, case: str) -> None:
    (tmp_path / "data").write_text("data")
    text, said = SAID[case]
    result = ran(tmp_path, text, level)
    assert result.stdout.startswith(said), result.stderr


def test_it_imports_modules_beside_it_and_none_in_place_of_others(tmp_path: Path) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "beside.py").write_text("WORD = 'beside'")
    (tmp_path / "top.py").write_text("WORD = 'top'")
    (scripts / "json.py").write_text("raise SystemExit('replaced')")
    text = (
        "import beside, json, os, top\n"
        "print(beside.WORD, top.WORD, json.dumps(1), os.path.basename(__file__), __name__)\n"
        "print(open('top.py').read())\n"
    )
    result = run_script(ScriptJob(text=text, file=scripts / "go.py", cwd=tmp_path))
    assert result.stdout == "beside top 1 go.py __main__\nWORD = 'top'\n", result.stderr


def test_a_folder_of_pythonpath_is_importable_and_the_rest_of_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: LevelName
) -> None:
    source, skill = tmp_path / "source", tmp_path / "skill"
    for folder in (source / "package", skill):
        folder.mkdir(parents=True)
    (source / "package" / "__init__.py").write_text("WORD = 'found'")
    for name in (".env", "notes.txt"):
        (source / name).write_text("secret")
    monkeypatch.setenv("PYTHONPATH", str(source))
    text = (
        "import package, sys\nprint(package.WORD)\n"
        "for name in ('.env', 'notes.txt'):\n"
        "    try: print(open(sys.argv[1] + '/' + name).read())\n"
        "    except OSError: print('closed')\n"
    )
    result = ran(skill, text, level, args=(str(source),))
    rest = ["closed"] * 2 if level == "landlock" else ["secret"] * 2
    assert result.stdout.split() == ["found", *rest], result.stderr


def test_a_traceback_shows_the_script_and_nothing_of_what_started_it(tmp_path: Path) -> None:
    result = ran(tmp_path, "def f():\n    return 1 / 0\nf()\n")
    assert result.stderr.count("File ") == 2
    assert result.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    for text in ("x = (\n", "a = '\ud800'"):
        broken = ran(tmp_path, text)
        assert (broken.returncode, broken.stderr.count("File ") < 2) == (1, True)
        assert "SyntaxError" in broken.stderr


@pytest.mark.parametrize("after_s", [0.0, 0.4])
def test_a_stop_ends_it_at_once(tmp_path: Path, level: LevelName, after_s: float) -> None:
    token = CancelToken()
    nap = f"6{os.getpid()}.5"
    text = f"import os; os.execvp('sleep', ['sleep', '{nap}'])"
    order = ScriptJob(text=text, cwd=tmp_path, isolation=level)
    began = time.monotonic()
    if after_s:
        threading.Timer(after_s, token.set).start()
    else:
        token.set()
    result = run_script(order, stop=token)
    assert time.monotonic() - began < 20  # the sleep is of an hour and more
    assert (result.ended_by, result.timed_out) == ("stopped", False)
    assert not sleeping(nap)


def test_long_output_keeps_its_beginning_and_end_and_says_what_is_gone(tmp_path: Path) -> None:
    # The last piece comes alone: not what was read at once is kept, but the last bytes.
    text = "import time\nfor n in range(20000): print('line é', n, flush=n == 19999)\n"
    result = ran(
        tmp_path, f"{text}time.sleep(0.2)\nprint('last')", limits=ScriptLimits(output_bytes=2_000)
    )
    data = "".join((*(f"line é {n}\n" for n in range(20_000)), "last\n")).encode()
    head, tail = (part.decode("utf-8", "replace") for part in (data[:1_000], data[-1_000:]))
    assert result.stdout == f"{head}\n[… {len(data) - 2_000:,} bytes cut …]\n{tail}"
    assert "were cut from the middle of stdout" in result.notes[0]


NOT_RUN: dict[str, tuple[str, str, str]] = {
    # its folder, its argument, what is said
    "its folder is gone": ("gone", "a", "isolation .* could not be set up: FileNotFoundError"),
    "an argument holds a NUL": ("", "a\0b", "could not be set up: ValueError: embedded null"),
    "Python does not start": ("", "a", "their Python, sys.executable, does not start"),
}


@pytest.mark.parametrize("case", NOT_RUN)
def test_what_cannot_be_run_as_it_should_is_not_run(
    tmp_path: Path, level: LevelName, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, argument, said = NOT_RUN[case]
    if "Python" in case:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ToolError, match=said):
        ran(tmp_path / folder, "print(1)", level, args=(argument,))


LEFT: dict[str, tuple[ScriptLimits, list[str]]] = {
    # limits; what is kept. The files are sparse: the script itself is within its limits.
    "all": (ScriptLimits(), ["0.txt", "a/1.txt", "fine.txt"]),
    "two": (ScriptLimits(collected_files=2), ["0.txt", "fine.txt"]),
    "15 kB": (ScriptLimits(disk_bytes=15_000), ["0.txt"]),
}


@pytest.mark.parametrize("case", LEFT)
def test_so_many_regular_files_of_their_own_come_out(tmp_path: Path, case: str) -> None:
    limits, names = LEFT[case]
    skill, kept = tmp_path / "skill", tmp_path / "kept"
    for folder in (skill, kept):
        folder.mkdir()
    (skill / "secret").write_text("secret")
    text = (
        "import os; os.chdir(os.environ['OUTPUT_DIR'])\n"
        f"os.makedirs('a'); os.makedirs('{'/'.join('bcdefghijklmnop')}'); os.mkfifo('pipe')\n"
        "for name in ('0.txt', 'a/1.txt', 'fine.txt'): open(name, 'w').truncate(10_000)\n"
        "os.symlink(os.environ['SKILL_DIR'], 'folder'); open('new\\nline', 'w')\n"
        "os.symlink('0.txt', 'link'); os.link(os.environ['SKILL_DIR'] + '/secret', 'hard')\n"
    )
    result = ran(skill, text, limits=limits, keep_to=kept)
    assert [file.name for file in result.files] == sorted(names, key=lambda name: name.count("/"))
    assert result.notes[0].startswith(f"{9 - len(names)} outputs were left out: no regular files")
    assert sorted(str(p.relative_to(kept)) for p in kept.rglob("*") if p.is_file()) == names
    again = ran(skill, text, limits=limits, keep_to=kept)
    assert not {file.name for file in again.files} & set(names)
    assert again.notes[0].startswith(f"{9 - len(again.files)} outputs were left out")


@linux
def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Killed without a chance to tidy up, the notebook leaves no script behind."""
    nap = f"4{os.getpid()}.5"
    code = (
        "import sys; from pathlib import Path; from nbagent.sandbox.script import *\n"
        f'text = \'import subprocess; subprocess.run(["sleep", "{nap}"])\'\n'
        f"run_script(ScriptJob(text=text, cwd=Path({str(tmp_path)!r}), isolation='process'))"
    )
    # What it kept on disk stays, as after any kill -9: among the test's own files.
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", code], env=env)
    assert eventually(lambda: sleeping(nap))
    process.kill()
    process.wait()
    assert eventually(lambda: not sleeping(nap))


def eventually(holds: Callable[[], bool]) -> bool:
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
        ("print('x', flush=True); import time; time.sleep(60)", "deadline"),
        ("while True: print('x' * 999)", "output"),
    ],
    ids=["ends", "sleeps", "floods"],
)
def test_without_a_supervisor_it_still_ends(tmp_path: Path, text: str, ended: str) -> None:
    """The way of Windows, tried here."""
    limits = ScriptLimits(timeout_s=0.5, flood_bytes=100_000)
    order = ScriptJob(text=text, cwd=tmp_path, limits=limits)
    command, began = [sys.executable, "-c", text], time.monotonic()
    ending = run_unsupervised(order, command, dict(os.environ), tmp_path, CancelToken())
    assert (ending.ended_by, ending.returncode == 0) == (ended, not ended)
    assert ending.stdout.text.startswith("x")
    assert time.monotonic() - began < 20


LIES = ("ended  0", "started x", "ended", "setup it is fine", "\\xff" * 9)
ON_THE_SUPERVISOR = {
    **{f"says {lie}": (f"tell('\\n{lie}\\n')", "deadline") for lie in LIES},
    "kills it": ("os.kill(os.getppid(), 9); os.execvp('sleep', ['sleep', nap])", "lost"),
    "stops it": ("os.kill(os.getppid(), 19)", "deadline"),
}


@linux
@pytest.mark.parametrize("case", ON_THE_SUPERVISOR)
def test_a_script_that_attacks_its_supervisor_leaves_nothing_alive(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the plain level a script of the same user can signal it and write into its pipes."""
    nap = f"5{os.getpid()}.5"
    code, ended = ON_THE_SUPERVISOR[case]
    # As root it is another user; here it stays the same.
    monkeypatch.setattr(os, "getuid", lambda: 1)
    text = (
        "import os, subprocess\n"
        f"nap = '{nap}'\n"
        "def tell(words):\n"
        "    folder = f'/proc/{os.getppid()}/fd/'\n"
        "    for fd in set(os.listdir(folder)) - {'0'}:\n"
        "        try:\n"
        "            with open(folder + fd, 'w') as pipe: pipe.write(words)\n"
        "        except OSError: pass\n"
        "subprocess.Popen(['sleep', nap], start_new_session=True)\n"
        f"print('spoke', flush=True)\n{code}\n"
        "os.execvp('sleep', ['sleep', nap])\n"
    )
    began = time.monotonic()
    result = ran(tmp_path, text, limits=ScriptLimits(timeout_s=0.6))
    assert (result.stdout, result.ended_by) == ("spoke\n", ended)
    assert time.monotonic() - began < 20
    assert not sleeping(nap)
