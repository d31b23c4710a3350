"""Several processes that update one document lose nothing: their updates are one chain."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from workflow_stage import LOOP, make_package

from nbagent.contracts.canonical import sha256_hex
from nbagent.workflow.package import load_package
from nbagent.workflow.state import new_document, read_state

WRITER = """
import asyncio, json, sys
from pathlib import Path
from nbagent.contracts.chat import ToolCall
from nbagent.contracts.ports import ToolContext
from nbagent.files.mounts import Mount, Mounts
from nbagent.runtime import Courier
from nbagent.tools.base import HostOrder
from nbagent.tools.filesystem import FileHost
from nbagent.workflow.package import load_package
from nbagent.workflow.state import StateGuard

flow, state, name, n = sys.argv[1:]
mounts = Mounts([Mount("@project", Path(flow), "rw"), Mount("@state", Path(state), "rw")])
guard = StateGuard(load_package(flow).graph, Path(state) / "workflow.md")
host = FileHost(HostOrder(words=("fs",), project=Path(flow), mounts=mounts, guard=guard))
context = ToolContext(run_id="0" * 16, session="t", runner=Courier())

async def write():
    for i in range(int(n)):
        update = {"variables.set": {name: i}}
        arguments = {"path": "@state/workflow.md", "operation": "updateFrontmatter"}
        arguments["update"] = update
        call = ToolCall(id="1", name="fs.apply_patch", arguments=arguments, arguments_raw="{}")
        result = (await (await host.prepare(call, context)).run(context)).result
        assert result.ok, result.error
        print(json.dumps([result.data["sha256Before"], result.data["sha256After"]]), flush=True)

asyncio.run(write())
"""


@pytest.mark.parametrize(
    ("writers", "updates"),
    [
        pytest.param(3, 15, id="short"),
        pytest.param(8, 1_200, id="long", marks=[pytest.mark.proof, pytest.mark.timeout(1_800)]),
    ],
)
def test_writers_at_once_lose_no_update(tmp_path: Path, writers: int, updates: int) -> None:
    package = load_package(make_package(tmp_path / "flow", LOOP))
    state = tmp_path / "state"
    state.mkdir()
    file = state / "workflow.md"
    file.write_text(new_document(package, "0" * 16, "@project/flow"))
    first = sha256_hex(file.read_bytes())
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                WRITER,
                str(tmp_path / "flow"),
                str(state),
                f"w{i}",
                str(updates),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(writers)
    ]
    links: dict[str, str] = {}
    for process in processes:
        said, _ = process.communicate()
        assert process.returncode == 0
        for line in said.splitlines():
            before, after = json.loads(line)
            assert before not in links, "two updates of one state: one of them was lost"
            links[before] = after
    at, seen = first, 0
    while at in links:
        at, seen = links[at], seen + 1
    assert seen == writers * updates
    assert at == sha256_hex(file.read_bytes())
    now = read_state(file.read_bytes(), package.graph)
    assert now.variables == {f"w{i}": updates - 1 for i in range(writers)}
