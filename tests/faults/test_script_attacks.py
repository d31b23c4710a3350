"""Scripts that attack: each at the isolated levels, at the plain one, and without confinement.

Stopped means: it did not get it, the world around is as before, nothing of it is alive, it came
back in time and ended in a normal result. The attacks are in `script_attacks`.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from script_attacks import ATTACKS, Attack, script_of

from nbagent.sandbox import confinement
from nbagent.sandbox.process import LevelName, ScriptJob, ScriptLimits
from nbagent.sandbox.script import ScriptResult, isolation_level, run_script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the attacks are Linux's")

MARK = f"NBAGENT_ATTACK_{os.getpid()}"
"""Stands in the environment of every script of this test process."""
SECRET, KEY = "s3cret-of-the-person", "sk-0123456789abcdef"
LATE_S = 10.0  # on a busy machine; the attacks last for 99 s
"""The bench holds it to half of this; here another test may run beside."""
LIMITS = ScriptLimits(
    timeout_s=5.0,
    memory_bytes=250_000_000,
    processes=24,
    disk_bytes=16_000_000,
    disk_entries=400,
    flood_bytes=2_000_000,
    output_bytes=20_000,
)


@dataclass
class World:
    """Files, processes and servers that a script may attack."""

    folder: Path
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    older: set[str] = field(default_factory=set[str])
    """Processes that were there before."""
    taken: list[str] = field(default_factory=list[str])
    """Data that listeners received."""

    def make_files(self) -> None:
        """The files, anew."""
        home, skill = self.folder / "home", self.folder / "skill"
        for folder in (home, skill):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        (home / ".ssh").mkdir()
        for name in ("secret", ".ssh/id_ed25519"):
            (home / name).write_text(SECRET)
        (home / "canary").write_text("as before")
        (skill / "SKILL.md").write_text("as before")
        for name in ("tarfile", "sitecustomize", "usercustomize", "pytest"):
            (skill / f"{name}.py").write_text("")

    def picture(self) -> dict[str, Any]:
        """All that must stay as it is."""
        seen: dict[str, Any] = {}
        for path in sorted(self.folder.rglob("*")):
            state = path.lstat()
            text = path.read_text() if stat.S_ISREG(state.st_mode) and path.suffix != "" else ""
            names = os.listxattr(path, follow_symlinks=False)
            plain = (state.st_mode, state.st_uid, state.st_mtime_ns, state.st_size, state.st_nlink)
            seen[str(path)] = (plain, text, names)
        victim = self.facts["victim"]
        seen["affinity"] = os.sched_getaffinity(victim)
        # It is stopped; whoever signals it wakes it.
        seen["state"] = state_of(victim)
        seen["priority"] = os.getpriority(os.PRIO_PROCESS, victim)
        seen["taken"] = list(self.taken)
        seen["queues"] = os.path.exists("/dev/mqueue/nbagent-test")
        return seen

    def alive(self) -> list[str]:
        """New processes that a script left: by the time they sleep, or by their mark."""
        found: list[str] = []
        for pid in set(filter(str.isdigit, os.listdir("/proc"))) - self.older:
            try:
                state = state_of(pid)
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                mark = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            ours = self.facts["naptime"].encode() in line or MARK.encode() in mark
            if ours and state not in "ZX":
                found.append(f"{pid} {line!r}")
        return found


def state_of(pid: object) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("w"))
    home, skill = world.folder / "home", world.folder / "skill"
    victim = subprocess.Popen(["sleep", "600"], env={"OPENAI_API_KEY": KEY})
    leader, terminal = pty.openpty()
    setuid = world.folder / "id"
    if os.getuid() == 0:
        shutil.copy("/usr/bin/id", setuid)
        setuid.chmod(0o4755)
    world.facts = {
        "home": str(home),
        "skill": str(skill),
        "secret": str(home / "secret"),
        "key": str(home / ".ssh" / "id_ed25519"),
        "canary": str(home / "canary"),
        "victim": victim.pid,
        "naptime": f"3{os.getpid()}.25",
        "terminal": os.ttyname(terminal),
        "setuid": str(setuid) if setuid.exists() else "",
    }
    sockets = list(listeners(world))
    yield world
    for made in sockets:
        made.close()
    for fd in (leader, terminal):
        os.close(fd)
    victim.kill()
    victim.wait()


def listeners(world: World) -> Iterator[socket.socket]:
    abstract = f"nbagent-attack-{os.getpid()}"
    path = str(world.folder / "s")
    world.facts |= {"abstract": abstract, "unix": path}
    for name, family, kind, address in (
        ("port", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        ("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        ("file", socket.AF_UNIX, socket.SOCK_STREAM, path),
        ("name", socket.AF_UNIX, socket.SOCK_STREAM, "\0" + abstract),
        ("datagrams", socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{abstract}d"),
    ):
        made = socket.socket(family, kind)
        made.bind(address)
        if family == socket.AF_INET:
            world.facts[name] = made.getsockname()[1]
        if kind == socket.SOCK_STREAM:
            made.listen()
        threading.Thread(target=listen, args=(world, name, made), daemon=True).start()
        yield made


def listen(world: World, name: str, made: socket.socket) -> None:
    while True:
        try:
            if made.type == socket.SOCK_STREAM:
                made.accept()[0].close()
            else:
                made.recv(99)
        except OSError:
            return
        world.taken.append(name)


@pytest.fixture
def world(stage: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    stage.make_files()
    stage.taken.clear()
    stage.older = set(os.listdir("/proc"))
    os.kill(stage.facts["victim"], signal.SIGSTOP)
    while state_of(stage.facts["victim"]) != "T":
        time.sleep(0.001)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("nbagent.sandbox.process._MARK", MARK)
    monkeypatch.setenv("BASH_ENV", stage.facts["canary"])
    return stage


def limits_of(attack: Attack) -> ScriptLimits:
    """Limits of an attack: a short deadline if it is to meet that, else time for another limit."""
    if attack.ended == ("deadline",):
        return replace(LIMITS, timeout_s=0.3)
    waits = "deadline" in attack.ended or "sleep(30)" in attack.code
    return replace(LIMITS, timeout_s=0.8) if waits else LIMITS


def tried(attack: Attack, world: World, level: LevelName) -> tuple[ScriptResult, float]:
    order = ScriptJob(
        limits=limits_of(attack),
        text=script_of(attack),
        args=(json.dumps(world.facts),),
        cwd=Path(world.facts["skill"]),
        isolation=level,
    )
    began = time.monotonic()
    result = run_script(order)
    return result, time.monotonic() - began


def check_stopped(attack: Attack, world: World, level: LevelName) -> None:
    if level == "landlock" and not isolation_level().is_isolated:
        pytest.skip("landlock does not work here")
    before = world.picture()
    result, took_s = tried(attack, world, level)
    alive = world.alive()
    assert "GOT" not in result.stdout
    assert not alive
    assert not os.listdir(tempfile.gettempdir()), "its folders are gone"
    assert world.picture() == before
    assert SECRET not in result.stdout + result.stderr
    assert KEY not in result.stdout + result.stderr
    assert not [file for file in result.files if file.name in ("s", "d", "p", "l")]
    assert result.isolation == level
    assert took_s < limits_of(attack).timeout_s + LATE_S
    assert result.returncode is not None
    if attack.ended:
        assert result.ended_by in attack.ended


def cases(level: LevelName, attacks: Iterable[Attack]) -> list[Any]:
    return [pytest.param(level, it, id=f"{it.name}-{level}") for it in attacks]


PLAIN_STOPPED = [attack for attack in ATTACKS if attack.plain == "stopped"]
NOT_STOPPED = [attack for attack in ATTACKS if attack.plain != "stopped"]


@pytest.mark.parametrize(
    ("level", "attack"), [*cases("landlock", ATTACKS), *cases("process", PLAIN_STOPPED)]
)
def test_a_script_is_stopped_where_the_level_says_so(
    level: LevelName, attack: Attack, world: World
) -> None:
    check_stopped(attack, world, level)


@pytest.mark.proof
@pytest.mark.parametrize("attack", NOT_STOPPED, ids=lambda attack: attack.name)
def test_a_plain_script_gets_what_the_level_leaves_open_and_nothing_outlives_it(
    attack: Attack, world: World
) -> None:
    """Told as it is: these are why a person is asked at this level."""
    result, took_s = tried(attack, world, "process")
    assert attack.plain == "varies" or "GOT" in result.stdout, result.stderr
    assert not world.alive()
    assert took_s < limits_of(attack).timeout_s + LATE_S
    assert KEY not in result.stderr


REAL = [attack for attack in ATTACKS if attack.real]


@pytest.mark.proof
@pytest.mark.parametrize("attack", REAL, ids=lambda attack: attack.name)
def test_the_attack_works_without_confinement(attack: Attack, world: World) -> None:
    """Otherwise nothing would be proved by its failing with it."""
    out = world.folder / "out"
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-c", script_of(attack), json.dumps(world.facts)]
    env = {**os.environ, "OUTPUT_DIR": str(out)}
    try:
        found = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=10, check=False
        )
    finally:
        shutil.rmtree(out)
    assert "GOT" in found.stdout, found.stderr


OLDER = (
    *("truncate a file outside", "open to truncate only", "signal a process", "signal by pidfd"),
    *("signal every process", "signal by ownership of a file", "kill the supervisor", "connect"),
    *("connect to an abstract socket", "a datagram out of a pair", "rename a file outside"),
    "move a file to the outputs",
)
"""Attacks that only newer versions of Landlock stop."""


@pytest.mark.parametrize("name", OLDER)
@pytest.mark.parametrize(
    "abi", [1, *(pytest.param(abi, marks=pytest.mark.proof) for abi in (2, 3, 4, 5))]
)
def test_seccomp_closes_what_an_older_landlock_leaves_open(
    abi: int, name: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = confinement.landlock_abi()
    monkeypatch.setattr(confinement, "landlock_abi", lambda: min(abi, there))
    (attack,) = (attack for attack in ATTACKS if attack.name == name)
    check_stopped(attack, world, "landlock")
