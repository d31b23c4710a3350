"""Clicks, interrupts and order of messages in real kernels, through jupyter_client.

The kernels are this Python's and those of NBAGENT_TEST_KERNELS: Python executables with other
versions of ipykernel (and nbagent) installed, separated like PATH.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest
from kernels import Cell, LiveKernel

from nbagent.contracts.errors import ToolError
from nbagent.notebook.kernel import run_nested

# jupyter_client's methods have no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

OTHERS = [path for path in os.environ.get("NBAGENT_TEST_KERNELS", "").split(os.pathsep) if path]
SOON_S = 10.0
"""Work that is stopped would last 20 s."""

SETUP = f"""
import asyncio, sys, threading, time
sys.path.append({str(Path(__file__).parents[1])!r})
import cells
from comm import create_comm
from nbagent.notebook import comms, kernel
from nbagent.runtime import wait_async, wait

kernel.prepare()

class Cell(cells.Cell):
    def __init__(self):
        super().__init__()
        comms.register(click.comm_id, self.clicked)

    def clicked(self, content):
        if content["kind"] == "stop":
            self.cancel.set()

    def run(self, body):
        return wait(self.start(body), pump=comms.pump())

def spin(seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass

heard = []
click = create_comm(target_name="nbagent-test")
other = create_comm(target_name="other-test")
other.on_msg(lambda msg: heard.append(msg["content"]["data"]["n"]))
print(click.comm_id, other.comm_id)
"""


class Kernel(LiveKernel):
    """A kernel at work, and a person who clicks."""

    def __init__(self, folder: Path, python: str) -> None:
        super().__init__(folder, python=python)
        self.click, self.other = self.printed(SETUP).split()
        self.version = tuple(
            int(n) for n in self.value("__import__('ipykernel').__version__").split(".")
        )

    def finish(self, msg_id: str, timeout: float = 60) -> Cell:
        """Wait until a queued cell is over, and for its reply."""
        cell = super().finish(msg_id, timeout)
        # ipykernel 7.1 may lose sight of a request that comes while it sends a reply; fixed in 7.4.
        while True:
            reply = self.client.get_shell_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") == msg_id:
                return cell

    def end(self, msg_id: str) -> str:
        """Printed text of a queued cell; its error is raised here."""
        cell = self.finish(msg_id)
        if cell.error:
            raise AssertionError("\n".join(cell.error["traceback"]))
        return cell.printed.strip()

    def printed(self, code: str) -> str:
        return self.end(self.send(code))

    def message(self, n: int) -> None:
        """A message of a front end to another widget."""
        data = {"comm_id": self.other, "data": {"n": n}}
        self.client.shell_channel.send(self.client.session.msg("comm_msg", data))

    def stop(self, *, subshell: bool = False) -> None:
        """Press the view's Stop button, also in a subshell of its own."""
        found: str | None = None
        if subshell:
            message = self.client.session.msg("create_subshell_request", {})
            self.client.control_channel.send(message)
            found = self.client.control_channel.get_msg(timeout=10)["content"]["subshell_id"]
        self.say(self.click, found, kind="stop")

    def works(self) -> bool:
        """True if the next cell runs normally."""
        code = "print(Cell().run(lambda c: c.call(lambda: 'next')))"
        return self.printed(code) == "['next', 'answered']"

    def wait_for(self, marker: str, msg_id: str) -> None:
        self.heard(
            lambda m: (
                m["parent_header"].get("msg_id") == msg_id
                and marker in m["content"].get("text", "")
            ),
            30,
        )


@pytest.fixture(
    scope="module", params=[sys.executable, *OTHERS], ids=lambda path: path.split(os.sep)[-3]
)
def kernel(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Kernel]:
    with closing(Kernel(tmp_path_factory.mktemp("kernel"), request.param)) as started:
        yield started


@pytest.fixture
def quiet(kernel: Kernel) -> Kernel:
    assert kernel.printed("heard.clear(); print('here')") == "here"
    return kernel


BODIES = {
    "model": ("lambda c: c.think(20)", []),
    "loop": ("lambda c: c.call(lambda: (print('go'), spin(20)))", ["E_INTERRUPTED"]),
    "async tool": ("lambda c: c.call_async(lambda: asyncio.sleep(20))", ["E_INTERRUPTED"]),
    "sleep": ("lambda c: c.call(lambda: (print('go'), time.sleep(20)))", ["E_INTERRUPTED"]),
}


def begin(kernel: Kernel, body: str) -> str:
    msg_id = kernel.send(f"print('go'); print(Cell().run({body}))")
    kernel.wait_for("go", msg_id)
    time.sleep(0.2)
    return msg_id


@pytest.mark.parametrize("way", ["main", "subshell"])
@pytest.mark.parametrize("body", BODIES)
def test_click_stops_a_run_while_its_cell_runs(quiet: Kernel, body: str, way: str) -> None:
    code, log = BODIES[body]
    if quiet.version < (7,) and (way == "subshell" or body in ("loop", "sleep")):
        pytest.skip("ipykernel 6: no subshells, and nothing arrives during a synchronous tool")
    assert quiet.value("comms.click_delivery()") == ("pump" if quiet.version < (7,) else "tap")
    msg_id = begin(quiet, code)
    start = time.monotonic()
    quiet.stop(subshell=way == "subshell")
    assert quiet.end(msg_id).endswith(str([*log, "stopped"]))
    assert time.monotonic() - start < SOON_S
    assert quiet.works()


def test_second_interrupt_gets_out_and_the_kernel_lives(quiet: Kernel) -> None:
    msg_id = begin(quiet, "lambda c: asyncio.sleep(20)")
    quiet.manager.interrupt_kernel()
    time.sleep(0.3)
    quiet.manager.interrupt_kernel()
    with pytest.raises(AssertionError, match="KeyboardInterrupt"):
        quiet.end(msg_id)
    time.sleep(0.2)
    assert quiet.works()


def test_second_interrupt_leaves_an_async_tool_that_withstands_a_cancel(quiet: Kernel) -> None:
    quiet.printed("""
async def stubborn():
    for _ in range(2):
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            pass
""")
    msg_id = begin(quiet, "lambda c: c.call_async(stubborn)")
    quiet.manager.interrupt_kernel()
    time.sleep(0.6)
    quiet.manager.interrupt_kernel()
    assert quiet.end(msg_id) == "['E_INTERRUPTED', 'stopped']"
    assert quiet.printed("print(await asyncio.sleep(0.05, 'next'))") == "next"
    assert quiet.works()


@pytest.mark.parametrize("way", ["interrupt", "click"])
def test_stop_ends_a_run_under_await(quiet: Kernel, way: str) -> None:
    body, log = BODIES["loop" if way == "interrupt" else "model"]
    msg_id = quiet.send(
        "print('go'); "
        f"print(await wait_async(Cell().start({body}), pump=comms.pump())); "
        "print(await asyncio.sleep(0, 'next'))"
    )
    quiet.wait_for("go", msg_id)
    time.sleep(0.3)
    start = time.monotonic()
    quiet.manager.interrupt_kernel() if way == "interrupt" else quiet.stop()
    assert quiet.end(msg_id).removeprefix("go\n").endswith(f"{[*log, 'stopped']}\nnext")
    assert time.monotonic() - start < SOON_S


def test_queued_cells_and_messages_keep_their_order_and_none_is_lost(quiet: Kernel) -> None:
    quiet.printed("ran = []")
    msg_id = begin(quiet, "lambda c: c.think(20)")
    cells: list[str] = []
    for n in range(12):
        quiet.message(n)
        cells.append(quiet.send(f"ran.append({n})"))
        time.sleep(0.02)
    time.sleep(0.3)
    quiet.stop()
    quiet.end(msg_id)
    for n in range(12, 24):
        quiet.message(n)
        cells.append(quiet.send(f"ran.append({n})"))
    quiet.end(cells[-1])
    assert quiet.printed("print(ran == list(range(24)), heard == list(range(24)))") == "True True"


def test_async_tool_runs_on_the_loop_of_the_cells(quiet: Kernel) -> None:
    # Who has to wait for a lock binds it to its loop.
    first = quiet.printed("""
lock = asyncio.Lock()
async def taken():
    asyncio.get_running_loop().call_later(0.05, lock.release)
    await lock.acquire()
    return "taken"
await lock.acquire()
print(await taken())
""")
    assert first == "taken"
    tool = "print(Cell().run(lambda c: c.call_async(taken)))"
    assert quiet.printed(tool) == "['taken', 'answered']"
    assert quiet.printed("print(await taken())") == "taken"


def test_prints_of_a_run_land_in_the_cell_that_started_it(quiet: Kernel) -> None:
    if quiet.version < (7,):
        pytest.skip("ipykernel 6 knows one current cell only")
    first = quiet.send("""
async def later(c):
    await asyncio.sleep(0.5)
    print("from the engine")
    await c.call(lambda: print("from the tool"))
started = Cell().start(later)
""")
    second = quiet.send("print(wait(started))")
    printed: dict[str, str] = {first: "", second: ""}
    while "answered" not in printed[second]:
        message = quiet.client.get_iopub_msg(timeout=30)
        if message["msg_type"] == "stream":
            printed[message["parent_header"]["msg_id"]] += message["content"]["text"]
    assert printed[first] == "from the engine\nfrom the tool\n"
    assert printed[second] == "[None, 'answered']\n"


def test_loop_that_cannot_be_entered_again_says_what_to_do() -> None:
    async def tool() -> None: ...

    # Any loop but asyncio's own, as uvloop's.
    asyncio._set_running_loop(asyncio.AbstractEventLoop())
    try:
        with pytest.raises(ToolError, match="arun") as caught:
            run_nested(tool())
    finally:
        asyncio._set_running_loop(None)
    assert caught.value.code == "E_PRECONDITION_FAILED"
