"""The document is edited by another process all the time, while runs are at work on it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from workflow_stage import make_package, patch, script

import nbagent
from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.errors import UsageError
from nbagent.settings import begun_anew
from nbagent.workflow.package import load_package
from nbagent.workflow.state import read_state

EDITOR = r"""
import hashlib, itertools, os, random, sys, time
from pathlib import Path

file, log = Path(sys.argv[1]), open(sys.argv[2], "a")
random.seed(1)

def fine(text, n):
    return text.replace("hand: " + text.partition("hand: ")[2].partition("\n")[0], f"hand: {n}")

WAYS = {
    "fine": fine,
    "crlf": lambda text, n: fine(text, n).replace("\n", "\r\n"),
    "bom": lambda text, n: "\ufeff" + fine(text, n),
    "illegal": lambda text, n: fine(text, n).replace("currentNodeId: draft", "currentNodeId: x"),
    "broken": lambda text, n: fine(text, n).replace("decisionLog:", "decisionLog:\n\t- ["),
    "half": lambda text, n: fine(text, n)[:40],
}
good = file.read_bytes().decode("utf-8")
for n in itertools.count(1):
    way = random.choice([*["fine"] * 9, *WAYS])
    data = WAYS[way](good, n).encode("utf-8")
    log.write(f"{hashlib.sha256(data).hexdigest()} {way} {n}\n")
    log.flush()
    other = file.with_name("editor.tmp")
    other.write_bytes(data)
    os.replace(other, file)
    time.sleep(random.uniform(0.005, 0.05))
"""
EXPLAINED = {"E_INVALID_FRONTMATTER", "E_SCHEMA_VALIDATION", "E_INVALID_TRANSITION"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The document of a workflow that has begun."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    with begun_anew():
        make_package(Path("flow"), front="variables:\n  hand: 0\n")
        run = nbagent.Agent(model=script("Hm.")).run(workflow="flow")
        assert run.workflow is not None
        yield run.workflow.document.path


@pytest.mark.parametrize(
    "lasts_s",
    [
        pytest.param(2.0, id="short"),
        pytest.param(60.0, id="long", marks=[pytest.mark.proof, pytest.mark.timeout(300)]),
    ],
)
def test_what_another_process_writes_all_the_time_is_used_or_explained(
    file: Path, tmp_path: Path, lasts_s: float
) -> None:
    log = tmp_path / "log"
    own = {sha256_hex(file.read_bytes())}
    editor = subprocess.Popen([sys.executable, "-c", EDITOR, str(file), str(log)])
    ends: Counter[str] = Counter()
    patches: list[dict[str, Any]] = []
    refused: list[str] = []
    try:
        until = time.monotonic() + lasts_s
        while time.monotonic() < until:
            model = script(*[patch(variables_set={"n": n}) for n in range(20)], "Hm.")
            agent = nbagent.Agent(model=model, max_turns=30, quiet=True)
            try:
                run = agent.run(document=str(file))
            except UsageError as error:
                refused.append(error.message)
                continue
            code = run.error.code if run.error else run.stop_reason or ""
            assert code in {*EXPLAINED, "answered"}, run.error
            ends[code] += 1
            for one in (one for turn in run.turns for one in turn.tool_runs):
                assert one.result is not None
                if one.result.ok:
                    patches.append(one.result.data)
                    continue
                assert one.result.error is not None
                assert one.result.error.code in {*EXPLAINED, "E_PRECONDITION_FAILED"}
                ends[f"a patch refused: {one.result.error.code}"] += 1
    finally:
        editor.kill()
        editor.wait()
    print(
        f"{len(patches)} patches of {len(log.read_text().splitlines())} edits, "
        f"{len(refused)} runs refused: {dict(ends)}"
    )
    why = ("the state document cannot be used: ", "was changed a moment ago")
    assert all(any(word in text for word in why) for text in refused), refused
    assert len(patches) > 5
    written = {sha: way for sha, way, _ in map(str.split, log.read_text().splitlines())}
    own |= {it["sha256After"] for it in patches}
    for one in patches:
        way = written.get(one["sha256Before"], "fine" if one["sha256Before"] in own else "")
        assert way in ("fine", "crlf", "bom"), "a patch was made of something that was not there"
    last = sha256_hex(file.read_bytes())
    assert last in written or last in own
    assert not list(file.parent.glob(".nbagent-tmp-*"))


def test_an_edit_while_a_patch_is_on_its_way_to_the_disk_is_kept(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, edits = os.fsync, 0

    def fsync(descriptor: int) -> None:
        nonlocal edits
        plain(descriptor)
        names = os.listdir(file.parent)
        if edits < 2 and any(name.startswith(".nbagent-tmp-") for name in names):
            edits += 1
            text = file.read_text().replace(f"hand: {edits - 1}", f"hand: {edits}")
            other = file.with_name("other")
            other.write_text(text)
            other.replace(file)

    model = script(patch(variables_set={"n": 1}), "Hm.")
    monkeypatch.setattr(os, "fsync", fsync)
    run = nbagent.Agent(model=model).run(document=str(file))
    assert edits == 2
    assert [one.result and one.result.ok for one in run.turns[0].tool_runs] == [True]
    state = read_state(file.read_bytes(), load_package("flow").graph)
    assert state.variables == {"hand": 2, "n": 1}
