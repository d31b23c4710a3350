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
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

from nbagent.contracts.errors import ToolError
from nbagent.notebook import kernel as here
from nbagent.notebook.kernel import run_nested

# jupyter_client's methods have no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

OTHERS = [path for path in os.environ.get("NBAGENT_TEST_KERNELS", "").split(os.pathsep) if path]
SOON_S = 2.0

SETUP = """
import asyncio, threading, time
from comm import create_comm
from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.ports import Interrupted
from nbagent.notebook import comms, kernel
from nbagent.runtime import Courier, RunTask, await_here, wait

kernel.prepare()

class Cell:
    def __init__(self):
        self.courier, self.cancel, self.log = Courier(), CancelToken(), []
        kernel.register(click.comm_id, self.clicked)

    def clicked(self, content):
        if content["kind"] == "stop":
            self.cancel.set()

    async def call(self, work):
        try:
            self.log.append((await self.courier.run_sync(
                work, where="waiting", interruptible=True, cancel=self.cancel))[0])
        except Interrupted:
            self.log.append("E_INTERRUPTED")

    async def call_async(self, work):
        try:
            self.log.append((await self.courier.run_async(work, cancel=self.cancel))[0])
        except Interrupted:
            self.log.append("E_INTERRUPTED")

    async def think(self, seconds):
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        forget = self.cancel.on_set(lambda: loop.call_soon_threadsafe(stopped.set))
        try:
            await asyncio.wait_for(stopped.wait(), seconds)
        except TimeoutError:
            pass
        forget()

    def start(self, body):
        async def run():
            await body(self)
            return self.log + (["stopped"] if self.cancel.is_set else ["answered"])
        return RunTask.start(run, self.courier, self.cancel)

    def run(self, body):
        return wait(self.start(body), pump=kernel.KernelPump())

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


class Kernel:
    """A kernel at work, and a client that reads what its cells print."""

    def __init__(self, python: str) -> None:
        self.manager = KernelManager()
        self.manager._kernel_spec = KernelSpec(  # pyright: ignore[reportPrivateUsage]
            argv=[python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            display_name="test",
            language="python",
        )
        self.manager.start_kernel()
        self.client: BlockingKernelClient = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.click, self.other = self.run(SETUP).split()
        self.version = tuple(
            int(n) for n in self.run("import ipykernel; print(ipykernel.__version__)").split(".")
        )

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        self.client.context.term()

    def send(self, code: str, *, allow_stdin: bool = False, cell_id: str | None = None) -> str:
        """Queue a cell; returns the id of its request."""
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": allow_stdin,
            "stop_on_error": True,
        }
        message = self.client.session.msg("execute_request", content)
        message["metadata"] = {} if cell_id is None else {"cellId": cell_id}
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def finish(self, msg_id: str, timeout: float = 30) -> str:
        """What a queued cell printed; an error of it is an error here."""
        printed: list[str] = []
        while True:
            message = self.client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed.append(content["text"])
            elif kind == "error":
                raise AssertionError("\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                self._await_reply(msg_id, timeout)
                return "".join(printed).strip()

    def _await_reply(self, msg_id: str, timeout: float) -> None:
        # ipykernel 7.1 may lose sight of a request that comes while it sends a reply; fixed in 7.4.
        while True:
            reply = self.client.get_shell_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") == msg_id:
                return

    def run(self, code: str, **options: Any) -> str:
        return self.finish(self.send(code, **options))

    def message(self, comm_id: str, data: dict[str, Any], subshell: str | None = None) -> None:
        message = self.client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)

    def stop(self, subshell: str | None = None) -> None:
        """What the view sends when its Stop button is pressed."""
        self.message(self.click, {"method": "custom", "content": {"kind": "stop"}}, subshell)

    def new_subshell(self) -> str:
        message = self.client.session.msg("create_subshell_request", {})
        self.client.control_channel.send(message)
        return str(self.client.control_channel.get_msg(timeout=10)["content"]["subshell_id"])

    def next_cell(self) -> str:
        return self.run("print(Cell().run(lambda c: c.call(lambda: 'next')))")

    def clicks(self) -> str:
        return self.run("print(comms.clicks_arrive_by())")

    def wait_for(self, marker: str, msg_id: str) -> None:
        """Until the cell has printed this."""
        while True:
            message = self.client.get_iopub_msg(timeout=30)
            of_cell = message["parent_header"].get("msg_id") == msg_id
            if of_cell and marker in message["content"].get("text", ""):
                return


@pytest.fixture(
    scope="module", params=[sys.executable, *OTHERS], ids=lambda path: path.split(os.sep)[-3]
)
def kernel(request: pytest.FixtureRequest) -> Generator[Kernel]:
    started = Kernel(request.param)
    yield started
    started.close()


@pytest.fixture
def quiet(kernel: Kernel) -> Kernel:
    """The kernel, known to answer."""
    assert kernel.run("heard.clear(); print('here')") == "here"
    return kernel


def test_other_kernels_are_tested_too() -> None:
    if not OTHERS:
        pytest.skip("NBAGENT_TEST_KERNELS names no further Python; only this ipykernel is tested")
    assert all(os.access(path, os.X_OK) for path in OTHERS)


BODIES = {
    "model": ("lambda c: c.think(20)", []),
    "loop": ("lambda c: c.call(lambda: (print('go'), spin(20)))", ["E_INTERRUPTED"]),
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
    if quiet.version < (7,) and (way == "subshell" or body != "model"):
        pytest.skip("ipykernel 6: no subshells, and nothing arrives during a synchronous tool")
    assert quiet.clicks() == ("pump" if quiet.version < (7,) else "tap")
    subshell = quiet.new_subshell() if way == "subshell" else None
    msg_id = begin(quiet, code)
    start = time.monotonic()
    quiet.stop(subshell)
    assert quiet.finish(msg_id).endswith(str([*log, "stopped"]))
    assert time.monotonic() - start < SOON_S
    assert (
        quiet.run("print(Cell().run(lambda c: c.call(lambda: 'next')))") == "['next', 'answered']"
    )


@pytest.mark.parametrize("body", BODIES)
def test_interrupt_stops_a_run_and_the_next_cell_works(quiet: Kernel, body: str) -> None:
    code, log = BODIES[body]
    msg_id = begin(quiet, code)
    start = time.monotonic()
    quiet.manager.interrupt_kernel()
    assert quiet.finish(msg_id).endswith(str([*log, "stopped"]))
    assert time.monotonic() - start < SOON_S
    assert (
        quiet.run("print(Cell().run(lambda c: c.call(lambda: 'next')))") == "['next', 'answered']"
    )


def test_second_interrupt_gets_out_and_the_kernel_lives(quiet: Kernel) -> None:
    msg_id = begin(quiet, "lambda c: asyncio.sleep(20)")
    quiet.manager.interrupt_kernel()
    time.sleep(0.3)
    quiet.manager.interrupt_kernel()
    with pytest.raises(AssertionError, match="KeyboardInterrupt"):
        quiet.finish(msg_id)
    time.sleep(0.2)
    assert (
        quiet.run("print(Cell().run(lambda c: c.call(lambda: 'next')))") == "['next', 'answered']"
    )


def test_second_interrupt_leaves_an_async_tool_that_withstands_a_cancel(quiet: Kernel) -> None:
    quiet.run("""
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
    assert quiet.finish(msg_id) == "['E_INTERRUPTED', 'stopped']"
    assert quiet.run("print(await asyncio.sleep(0.05, 'next'))") == "next"
    assert quiet.next_cell() == "['next', 'answered']"


def test_interrupt_breaks_a_tool_under_await(quiet: Kernel) -> None:
    code = "print('go'); print(await await_here(Cell().start(lambda c: c.call(lambda: spin(20)))))"
    msg_id = quiet.send(code)
    quiet.wait_for("go", msg_id)
    time.sleep(0.3)
    quiet.manager.interrupt_kernel()
    assert quiet.finish(msg_id) == "['E_INTERRUPTED', 'stopped']"
    assert quiet.run("print(await asyncio.sleep(0, 'next'))") == "next"


def test_click_stops_a_run_under_await(quiet: Kernel) -> None:
    code = (
        "print('go'); "
        "print(await await_here(Cell().start(lambda c: c.think(20)), pump=kernel.KernelPump()))"
    )
    msg_id = quiet.send(code)
    quiet.wait_for("go", msg_id)
    quiet.stop()
    start = time.monotonic()
    assert quiet.finish(msg_id) == "['stopped']"
    assert time.monotonic() - start < SOON_S


def test_queued_cells_and_messages_keep_their_order_and_none_is_lost(quiet: Kernel) -> None:
    quiet.run("ran = []")
    msg_id = begin(quiet, "lambda c: c.think(20)")
    cells: list[str] = []
    for n in range(12):
        quiet.message(quiet.other, {"n": n})
        cells.append(quiet.send(f"ran.append({n})"))
        time.sleep(0.02)
    time.sleep(0.3)
    quiet.stop()
    quiet.finish(msg_id)
    for n in range(12, 24):
        quiet.message(quiet.other, {"n": n})
        cells.append(quiet.send(f"ran.append({n})"))
    quiet.finish(cells[-1])
    assert quiet.run("print(ran == list(range(24)), heard == list(range(24)))") == "True True"


def test_message_to_another_widget_is_delivered_while_a_cell_waits(quiet: Kernel) -> None:
    msg_id = quiet.send("print('go'); Cell().run(lambda c: c.think(1)); print(heard)")
    quiet.wait_for("go", msg_id)
    quiet.message(quiet.other, {"n": 2})
    assert quiet.finish(msg_id) == "[2]"


def test_pumps_nest(quiet: Kernel) -> None:
    quiet.run("ran = []")
    code = "lambda c: c.call(lambda: Cell().run(lambda c: c.think(0.6)))"
    msg_id = begin(quiet, code)
    cells = [quiet.send(f"ran.append({n})") for n in range(5)]
    quiet.message(quiet.other, {"n": 1})
    assert quiet.finish(msg_id) == "[['answered'], 'answered']"
    quiet.finish(cells[-1])
    assert quiet.run("print(ran, heard)") == "[0, 1, 2, 3, 4] [1]"


def test_async_tool_uses_what_an_await_cell_opened(quiet: Kernel) -> None:
    quiet.run("""
async def echo(reader, writer):
    while line := await reader.readline():
        writer.write(b"echo " + line)
    writer.close()
server = await asyncio.start_server(echo, "127.0.0.1", 0)
reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
lock = asyncio.Lock()
await lock.acquire()
async def ask(text):
    writer.write(text + b"\\n")
    return (await reader.readline()).decode().strip()
async def free_soon():
    await asyncio.sleep(0.1)
    lock.release()
async def tool():
    freeing = asyncio.ensure_future(free_soon())
    async with lock:
        await freeing
        return await ask(b"tool")
""")
    tool = "print(Cell().run(lambda c: c.call_async(tool)))"
    assert quiet.run(tool) == "['echo tool', 'answered']"
    ending = "writer.close(); server.close()"
    assert quiet.run(f"async with lock: print(await ask(b'cell'))\n{ending}") == "echo cell"


def test_click_stops_an_async_tool_on_the_notebooks_loop(quiet: Kernel) -> None:
    msg_id = begin(quiet, "lambda c: c.call_async(lambda: asyncio.sleep(20))")
    start = time.monotonic()
    quiet.stop()
    assert quiet.finish(msg_id) == "['E_INTERRUPTED', 'stopped']"
    assert time.monotonic() - start < SOON_S
    assert quiet.run("print(await asyncio.sleep(0, 'next'))") == "next"


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


def test_idle_kernel_runs_the_tools_of_a_run_that_nobody_waits_for(quiet: Kernel) -> None:
    quiet.run("""
cell, places = Cell(), []
kernel.adopt(cell.courier)
task = cell.start(lambda c: c.call(lambda: places.append(threading.current_thread().name)))
""")
    deadline = time.monotonic() + 20
    while (done := quiet.run("print(task.done, places)")).startswith("False"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert done == "True ['MainThread']"


def test_kernel_is_told_from_its_messages(quiet: Kernel) -> None:
    code = "print(kernel.cell_id(), kernel.allow_stdin(), kernel.is_headless())"
    assert quiet.run(code) == "None False True"
    assert quiet.run(code, allow_stdin=True, cell_id="abc") == "abc True False"
    assert quiet.run("x = 1; print(kernel.in_kernel(), kernel.namespace()['x'])") == "True 1"
    ids = [quiet.run("print(kernel.execution_id())") for _ in range(2)]
    assert len(set(ids)) == 2
    facts = quiet.run("print(kernel.kernel_facts())", allow_stdin=True)
    assert "arrive while a cell" in facts
    assert "input() reaches you" in facts


def test_without_a_kernel_everything_reads_as_not_there() -> None:
    assert not here.in_kernel()
    assert not here.is_headless()
    assert not here.install_tap()
    assert here.main_loop() is None
    assert here.cell_id() is None
    assert here.execution_id() is None
    assert dict(here.namespace()) == {}
    assert here.kernel_facts()["kernel"] == "none"
    here.prepare()
    with here.KernelPump() as pump:
        pump.poll()


def test_loop_that_cannot_be_entered_again_says_what_to_do() -> None:
    class Uvloop(asyncio.AbstractEventLoop):
        pass

    async def tool() -> None: ...

    asyncio._set_running_loop(Uvloop())
    try:
        with pytest.raises(ToolError, match="arun") as caught:
            run_nested(tool())
    finally:
        asyncio._set_running_loop(None)
    assert caught.value.code == "E_PRECONDITION_FAILED"
