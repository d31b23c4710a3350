"""No path, no link, no swap and no second writer gets past the fs tools."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from path_attacks import CREATES, PATHS, SECRET, count_up, lay, picture, swap, write_on

from nbagent.contracts.errors import CODES, ToolError
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.records import ToolResult
from nbagent.contracts.tools import ToolContext, ToolOutcome
from nbagent.files import opening
from nbagent.files.mounts import Mount, Mounts
from nbagent.files.opening import open_root
from nbagent.files.writing import read_bytes, replace
from nbagent.runtime import RunTask
from nbagent.tools.filesystem import open_hosts
from nbagent.tools.host_config import HostConfig

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and FIFOs of POSIX")

SPAWN = multiprocessing.get_context("spawn")
CALLS: dict[str, Callable[[str], dict[str, Any]]] = {
    "fs.read": lambda path: {"path": path},
    "fs.list": lambda path: {"path": path, "depth": 3},
    "fs.search": lambda path: {"query": "[a-z]", "regex": True, "path": path},
    "fs.write": lambda path: {"path": path, "content": "written by the attack"},
    "fs.apply_patch": lambda path: {"path": path, "oldText": "e", "newText": "E"},
}


@pytest.fixture(params=["by descriptor", "by path"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way in which a system lets files be opened."""
    if request.param == "by path":
        monkeypatch.setattr(opening, "HAS_DIR_FD", False)
    return request.param


def world(tmp_path: Path) -> tuple[Path, Any]:
    project = lay(tmp_path)
    mounts = Mounts.of(
        project,
        extra=[Mount("@data", project / "data", "ro")],
        closed=[project / "store"],
    )
    (host,) = open_hosts(HostConfig(names=("fs",), project=project, mounts=mounts))
    return project, host


async def call(host: Any, name: str, arguments: dict[str, Any]) -> ToolOutcome:
    context = ToolContext(run_id="0" * 16, session="s", runner=RunTask())
    made = ToolCall(id="c1", name=name, arguments=arguments, arguments_raw="{}")
    # As in a run: first what it would do, then the call.
    try:
        prepared = await asyncio.wait_for(host.prepare(made, context), 5)
    except ToolError as error:
        return ToolOutcome(result=ToolResult.failure(error.info))
    assert SECRET not in repr(prepared.preview)
    return await asyncio.wait_for(prepared.run(context), 5)


@pytest.mark.parametrize("tool", CALLS)
def test_no_path_leads_out(tmp_path: Path, tool: str, way: str) -> None:
    project, host = world(tmp_path)
    outside = picture(tmp_path / "outside")

    async def attack() -> None:
        for path in chain(*PATHS.values()):
            name = path[:99]
            before = picture(project)
            outcome = await call(host, tool, CALLS[tool](path))
            told = outcome.result.to_json().decode()
            assert SECRET not in told, name
            assert str(tmp_path) not in told, name
            assert picture(tmp_path / "outside") == outside, name
            if not outcome.result.ok:
                error = outcome.result.error
                assert error is not None
                assert error.code in CODES, name
                assert error.code not in ("E_INTERNAL", "E_TOOL_FAILED", "UNKNOWN"), (name, error)
            changed = set(picture(project).items()) - set(before.items())
            if tool in ("fs.read", "fs.list", "fs.search"):
                assert not changed, name
            elif outcome.result.ok:
                assert path in CREATES, (name, changed)
            else:
                assert not changed, (name, changed)

    asyncio.run(attack())


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs another user")
def test_folders_on_the_way_need_not_be_readable() -> None:
    """As on machines where nobody may list /home. Opened in a child, by a user without rights."""
    with tempfile.TemporaryDirectory() as made:
        home = Path(os.path.realpath(made))
        file = home / "project" / "closed" / "open" / "f.txt"
        file.parent.mkdir(parents=True)
        file.write_text("x")
        for folder in (home, home / "project" / "closed"):
            folder.chmod(0o711)
        code = (
            "import os, pathlib; from nbagent.files.opening import open_root; os.setuid(65534); "
            f"root = open_root(pathlib.Path({str(home / 'project')!r})); "
            "print(os.read(root.open_file(('closed', 'open', 'f.txt')), 9))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        assert done.stdout.strip() == b"b'x'"


def test_a_hard_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    project, host = world(tmp_path)
    (tmp_path / "outside" / "shared.txt").write_text("shared")
    os.link(tmp_path / "outside" / "shared.txt", project / "hard.txt")
    outcome = asyncio.run(call(host, "fs.write", {"path": "hard.txt", "content": "new"}))
    assert outcome.result.ok
    assert (project / "hard.txt").read_text() == "new"
    assert (tmp_path / "outside" / "shared.txt").read_text() == "shared"


def test_a_magic_link_of_proc_is_no_way_out_of_a_mount(tmp_path: Path) -> None:
    mounts = Mounts.of(tmp_path, extra=[Mount("@proc", Path("/proc/self"), "ro")])
    order = HostConfig(names=("fs",), project=tmp_path, mounts=mounts)
    (host,) = open_hosts(order)
    for path in ("@proc/root/etc/passwd", "@proc/cwd/x", "@proc/fd/0", "@proc/exe"):
        outcome = asyncio.run(call(host, "fs.read", {"path": path}))
        assert outcome.result.error is not None
        assert outcome.result.error.code == "E_SANDBOX_VIOLATION"


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="exchanges two names at once")


@pytest.fixture
def race(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A project, and a tree outside, to which a folder of the project leads half of the time."""
    project, outside = tmp_path / "project", tmp_path / "outside"
    for place, text in ((project / "a" / "b", "inside"), (outside / "b", "outside")):
        place.mkdir(parents=True)
        (place / "file.txt").write_text(text)
    swapper = SPAWN.Process(target=swap, args=(str(project / "a"), str(outside)), daemon=True)
    swapper.start()
    while not (project / "link").exists():
        time.sleep(0.005)
    yield project, outside
    assert swapper.is_alive(), "the swaps ended before the test"
    swapper.kill()
    swapper.join()


@on_linux
@pytest.mark.timeout(600)
@pytest.mark.parametrize("opens", [4_000, pytest.param(400_000, marks=pytest.mark.proof)])
def test_a_folder_swapped_for_a_link_is_never_followed(race: tuple[Path, Path], opens: int) -> None:
    root = open_root(Path(os.path.realpath(race[0])))
    tried, found = 0, Counter[bytes]()
    until = time.monotonic() + 30
    # A swapper that the machine lets wait is no race: then it goes on until there was one.
    while tried < opens or (len(found) < 2 and time.monotonic() < until):
        tried += 1
        try:
            descriptor = root.open_file(("a", "b", "file.txt"))
        except (OSError, ToolError):
            found[b"refused"] += 1
            continue
        found[read_bytes(descriptor, max_bytes=100)] += 1
        os.close(descriptor)
    assert found.keys() == {b"inside", b"refused"}


@on_linux
def test_nothing_is_written_behind_a_folder_swapped_for_a_link(race: tuple[Path, Path]) -> None:
    project, outside = race
    mounts = Mounts.of(project)
    written = refused = 0
    until = time.monotonic() + 20
    while written + refused < 150 or (not (written and refused) and time.monotonic() < until):
        try:
            replace(mounts.locate("a/b/file.txt"), lambda _: b"new")
            written += 1
        except ToolError as error:
            refused += error.code == "E_SANDBOX_VIOLATION"
    assert written
    assert refused
    assert picture(outside) == {"b": b"folder or special", "b/file.txt": b"outside"}


@pytest.mark.parametrize(
    ("processes", "times"), [(4, 60), pytest.param(8, 1_200, marks=pytest.mark.proof)]
)
def test_no_update_of_several_processes_is_lost(tmp_path: Path, processes: int, times: int) -> None:
    (tmp_path / "counter.txt").write_text("n 0\n")
    writers = [
        SPAWN.Process(target=count_up, args=(str(tmp_path), times), daemon=True)
        for _ in range(processes)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * processes
    assert [path.name for path in tmp_path.iterdir()] == ["counter.txt"]
    assert (tmp_path / "counter.txt").read_text() == f"n {processes * times}\n"


def test_of_several_patches_with_one_hash_only_the_first_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "shared.txt").write_text("one\n")
    (host,) = open_hosts(HostConfig(names=("fs",), project=tmp_path, mounts=Mounts.of(tmp_path)))

    async def at_once() -> list[bool]:
        read = await call(host, "fs.read", {"path": "shared.txt"})
        sha = read.result.data["sha256"]
        arguments = [
            {"path": "shared.txt", "oldText": "one", "newText": f"by {n}", "ifMatchSha256": sha}
            for n in range(8)
        ]
        done = await asyncio.gather(*(call(host, "fs.apply_patch", a) for a in arguments))
        return [outcome.result.ok for outcome in done]

    assert sum(asyncio.run(at_once())) == 1


def test_a_killed_writer_leaves_a_whole_file_and_the_next_one_tidies_up(tmp_path: Path) -> None:
    for _ in range(3):
        writer = SPAWN.Process(target=write_on, args=(str(tmp_path),), daemon=True)
        writer.start()
        while not (tmp_path / "big.txt").exists():
            time.sleep(0.01)
        time.sleep(0.1)
        writer.kill()
        writer.join()
        lines = (tmp_path / "big.txt").read_bytes().split()
        assert len(lines) == 50_000
        assert len(set(lines)) == 1
    mounts = Mounts.of(tmp_path)
    replace(mounts.locate("big.txt"), lambda _: b"last\n")
    assert [path.name for path in tmp_path.iterdir() if "nbagent-tmp" in path.name] == []
