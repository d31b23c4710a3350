"""Many processes, kills, full disks: every line of the audit log is whole, and none is lost.

Children are bare processes; they print what `append` has returned for, the parent compares.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from nbagent.contracts.canonical import sha_of
from nbagent.store.audit import AuditLog, verify_audit

posix = pytest.mark.skipif(os.name != "posix", reason="needs signals and limits of POSIX")

_WRITER = r"""
import os, sys
from pathlib import Path
from nbagent.store.audit import AuditLog

home, name, n_lines, how = sys.argv[1:]
log = AuditLog(Path(home) / "audit.jsonl")
print("ready", flush=True)
sys.stdin.readline()
forked = None
if how == "forks":
    log.append({"kind": "call", "n": 0})
    forked = os.fork()
    name += "" if forked else " forked"
for n in range(1, int(n_lines) + 1):
    log.append({"kind": "call", "writer": name, "n": n, "args_sha": "a" * 64, "ok": True})
    if how == "told":
        print(n, flush=True)
log.sync()
if forked:
    sys.exit(os.waitpid(forked, 0)[1])
"""

_VICTIM = r"""
import os, signal, sys
from pathlib import Path
from nbagent.store.audit import AuditLog

home, point = Path(sys.argv[1]), sys.argv[2]
log = AuditLog(home / "audit.jsonl")
for n in range(5):
    log.append({"kind": "call", "n": n})
write = os.write
die = lambda: os.kill(os.getpid(), signal.SIGKILL)

def killed(fd, data):
    is_line = b'"kind"' in data
    if point == "in a line" and is_line:
        write(fd, data[: len(data) // 2])
        die()
    if point == "before the head" and not is_line:
        die()
    done = write(fd, data)
    if point == "after the head" and not is_line:
        die()
    return done

os.write = killed
log.append({"kind": "call", "n": 5})
"""


def child(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@contextlib.contextmanager
def writers(
    home: Path, n_writers: int, n_lines: int, how: str
) -> Generator[list[subprocess.Popen[bytes]]]:
    """Processes that write at the same time, once each of them is ready."""
    children = [child(_WRITER, home, n, n_lines, how) for n in range(n_writers)]
    try:
        for it in children:
            assert it.stdout is not None
            assert it.stdout.readline() == b"ready\n"
        for it in children:
            assert it.stdin is not None
            it.stdin.write(b"go\n")
            it.stdin.flush()
        yield children
    finally:
        for it in children:
            it.kill()
            it.communicate()


def log_in(home: Path) -> AuditLog:
    return AuditLog(home / "audit.jsonl")


def lines_of(home: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home / "audit.jsonl").read_bytes().split(b"\n")[:-1]]


def written_by(home: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for line in lines_of(home):
        if "writer" in line:
            found[line["writer"]].append(line["n"])
    return found


@posix
def test_processes_and_their_forks_write_at_once_and_no_line_is_torn_or_lost(
    tmp_path: Path,
) -> None:
    log_in(tmp_path).append()
    with writers(tmp_path, 4, 1_000, "forks") as children:
        while any(it.poll() is None for it in children):
            report = verify_audit(tmp_path)
            assert report, f"it is in order also while others write it: {report!r}"
        assert [it.returncode for it in children] == [0] * 4
    report = verify_audit(tmp_path)
    assert (report.why, report.lines) == ("", 8_004), repr(report)
    assert [line["seq"] for line in lines_of(tmp_path)] == list(range(1, 8_005))
    names = {str(n) for n in range(4)} | {f"{n} forked" for n in range(4)}
    assert written_by(tmp_path) == {name: list(range(1, 1_001)) for name in names}
    assert len({line["pid"] for line in lines_of(tmp_path)}) == 8


# Where the writer of the sixth line is killed: how many lines are there then.
_POINTS = {"in a line": 5, "before the head": 6, "after the head": 6}


@posix
@pytest.mark.parametrize("point", _POINTS)
def test_a_writer_killed_at_a_named_point_is_mended_by_the_next_one(
    tmp_path: Path, point: str
) -> None:
    victim = child(_VICTIM, tmp_path, point)
    victim.communicate(timeout=60)
    assert victim.returncode == -signal.SIGKILL
    before = verify_audit(tmp_path)
    assert (before.why, before.lines) == ("", _POINTS[point])
    log_in(tmp_path).append({"kind": "call", "n": 6})
    after = verify_audit(tmp_path)
    assert (after.why, after.lines) == ("", _POINTS[point] + 1), repr(after)


_FULL = r"""
import resource, sys
from pathlib import Path
from nbagent.store.audit import AuditLog
from nbagent.contracts.errors import StoreError

hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
log = AuditLog(Path(sys.argv[1]) / "audit.jsonl")
log.append()
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
n, said = 0, []
while len(said) < 3:
    try:
        log.append({"kind": "call", "n": n + 1})
        n += 1
    except StoreError as error:
        said.append(error.message)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
for _ in range(2):
    n += 1
    log.append({"kind": "call", "n": n})
print(n, said[0], sep="\n")
"""


@posix
def test_a_full_disk_is_a_clear_error_and_leaves_no_half_line(tmp_path: Path) -> None:
    it = child(_FULL, tmp_path)
    told = it.communicate(timeout=60)[0].decode().splitlines()
    assert it.returncode == 0
    assert "cannot be written" in told[1]
    assert "Make space" in told[1]
    report = verify_audit(tmp_path)
    assert report, repr(report)
    assert [line["n"] for line in lines_of(tmp_path)] == list(range(1, int(told[0]) + 1))


_AGENT = r"""
import os, signal, sys
from pathlib import Path
import nbagent
from nbagent.providers.offline import call, script

@nbagent.tool(ask=True)
def leave(how: str) -> str:
    "End this process."
    Path("began.txt").write_text(how)
    if how == "exit":
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"

steps = [call("fs.read", path="a.txt"), call("leave", how=sys.argv[1]), "never said"]
agent = nbagent.Agent(model=script(steps), tools=["fs", leave])
agent.run("Leave.", on_approval=lambda question: True)
"""


@posix
@pytest.mark.parametrize("how", ["exit", "kill"])
def test_an_approved_tool_that_ends_its_process_has_left_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    it = child(_AGENT, how)
    it.communicate(timeout=60)
    assert it.returncode == (0 if how == "exit" else -signal.SIGKILL)
    assert (tmp_path / "began.txt").read_text() == how
    home = Path(os.environ["NBAGENT_HOME"])
    lines = lines_of(home)
    assert [(line["kind"], line["tool"]) for line in lines] == [
        ("start", "fs.read"),
        ("call", "fs.read"),
        ("approval", "leave"),
        ("start", "leave"),
    ]
    read = lines[:2]
    assert (lines[2]["by"], lines[2]["args_sha"]) == ("callback", sha_of({"how": how}))
    assert read[0]["tool_sha"] == read[1]["tool_sha"]
    assert verify_audit(), repr(verify_audit())
