"""An interrupt at any line of nbagent between a cell's first one and its last: no run is orphaned.

Either none was started, or it ended as stopped (or had ended) and is stored; the next cell works.
The cells run in a child process, because SIGINT belongs to a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")

DOORS = """
import asyncio, faulthandler, io, linecache, os, signal, sys, time
faulthandler.dump_traceback_later(LIMIT_S, exit=True)
import nbagent
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
from nbagent import Agent, offline
from nbagent.contracts.errors import NbagentError
from nbagent.session.active_run import active_runs
from nbagent.session.stores import current_store

ROOM = os.path.dirname(nbagent.__file__)
WAIT_MS = 40
shell = InteractiveShell.instance(
    config=Config({"HistoryManager": {"enabled": False}}), colors="nocolor")
shell.run_cell("%load_ext nbagent")
quick = Agent(model="offline:demo", tools="none", quiet=True)
first = quick.run("first")

kept = []

def slow():
    # Kept: the magics find a script by its name only while somebody holds it.
    kept[:] = [offline.script([offline.step(text="late", wait_ms=WAIT_MS)])]
    return kept[0]

def cell(line, *body):
    # As the kernel does: a run of IPython's shell shows the error and does not raise it.
    shell.run_cell("\\n".join((line, *body)), store_history=True).raise_error()

def in_a_loop(make):
    # A bare loop: its KeyboardInterrupt comes out between any two lines of the coroutine.
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # a task of it that nobody asks any more
    try:
        loop.run_until_complete(make())
    finally:
        loop.close()

async def streamed():
    async for event in Agent(model=slow(), quiet=True).stream("hi"):
        pass

def in_a_tool():
    def look() -> str:
        return Agent(model=slow(), quiet=True).run("inner").text
    model = offline.script([offline.call("look"), "Done."])
    Agent(model=model, tools=[look], quiet=True).run("outer")

WAITING = {
    "cell": lambda: cell(f"%%agent --quiet --into mine --model {slow().model_id}", "hi"),
    "resume-magic": lambda: cell(
        f"%%agent --quiet --continue {first.id} --model {slow().model_id}", "more"),
    "run": lambda: Agent(model=slow(), quiet=True).run("hi"),
    "shown": lambda: Agent(model=slow()).run("hi"),
    "resume": lambda: first.resume("more", model=slow(), quiet=True),
    "fork": lambda: first.fork("C01", model=slow(), quiet=True),
    "tool": in_a_tool,
}
STARTING = {
    "start": lambda: Agent(model=slow(), quiet=True).start("hi"),
    "arun": lambda: in_a_loop(lambda: Agent(model=slow(), quiet=True).arun("hi")),
    "stream": lambda: in_a_loop(streamed),
}

class AtLine:
    "SIGINT at the n-th line that this thread runs in nbagent, from the function `since` on."

    def __init__(self, n, since):
        self.n, self.seen, self.since = n, 0, since
        self.where = None

    def __enter__(self):
        sys.settrace(self.call)

    def __exit__(self, *exc):
        sys.settrace(None)

    def call(self, frame, event, arg):
        code = frame.f_code
        if not code.co_filename.startswith(ROOM):
            return None
        if self.since == code.co_name:
            self.since = None
        visited = set()
        def line(frame, event, arg):
            if event == "line" and self.since is None:
                text = linecache.getline(code.co_filename, frame.f_lineno).strip()
                # At a `try:`, and back at a `with` before it is left, the interpreter looks for
                # no signal: else no lock in Python were safe.
                left = text.startswith(("with ", "async with ")) and frame.f_lineno in visited
                visited.add(frame.f_lineno)
                if not left and text != "try:":
                    self.seen += 1
                    if self.seen == self.n:
                        self.where = f"{code.co_filename[len(ROOM):]}:{frame.f_lineno} {text}"
                        signal.raise_signal(signal.SIGINT)
            return line
        return line

known = set()

def new_runs():
    found = [run.id for run in current_store().runs(limit=9) if run.id not in known]
    known.update(found)
    return [current_store().load(run_id) for run_id in found]

def pressed(door, n, since):
    "What came of a door when it was interrupted at its n-th line; its number of lines."
    new_runs()
    # The cells' texts that IPython keeps are looked through for tools: as many lines each time.
    for name in [name for name in shell.user_ns if name.startswith("_i") and name[2:].isdigit()]:
        del shell.user_ns[name]
    raised, at = None, AtLine(n, since)
    printed, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), io.StringIO(), io.StringIO()
    try:
        with at:
            DOOR[door]()
    except KeyboardInterrupt as interrupt:
        raised = interrupt
    except NbagentError as error:
        assert error.code == "ENGINE_ABORTED", (at.where, error)
    except asyncio.CancelledError:
        pass
    finally:
        text = sys.stdout.getvalue() + sys.stderr.getvalue()
        sys.stdout, sys.stderr = printed
    left = active_runs()
    if door in WAITING:
        assert not left, (door, n, at.where, raised)
    for live in left:
        end = time.monotonic() + 10
        while live.record.phase == "Running" and time.monotonic() < end:
            time.sleep(0.001)
        if door != "start" or raised is not None:
            assert live.record.stop_reason == "stopped", (door, n, at.where, raised, live.record)
    new = new_runs()
    assert len(new) <= 1 + (door == "tool"), (door, n, at.where)
    for record in new:
        assert record.stop_reason in ("stopped", "answered"), (door, n, at.where, record)
        assert "no run was started" not in str(raised), (door, n, at.where)
        assert "twice" not in str(raised), (door, n, at.where)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, (door, n, at.where)
    watches = vars(sys.modules["nbagent.runtime.interrupt"])["_signals"]().stacks
    assert not watches, (door, n, at.where)
    return at.seen, sorted({r.stop_reason for r in new}) or ["none"]

DOOR = {**WAITING, **STARTING}
for place, door in enumerate(NAMES):
    pressed(door, 0, None)
    lines, _ = pressed(door, 0, SINCE)
    ends = {}
    for n in range(1 + 4 * place % STEP, lines + 1, STEP):  # other lines for each door
        _, came = pressed(door, n, SINCE)
        ends[" ".join(came)] = ends.get(" ".join(came), 0) + 1
        cell("%%agent --quiet --tools none --model offline:demo", "next")
    assert any("stopped" in end for end in ends), (door, ends)
    print(door, lines, ends, flush=True)
"""


def sweep(home: Path, names: list[str], *, since: str | None, step: int, limit_s: int) -> str:
    """Run each door once for every `step`-th of its lines; what the child counted."""
    head = f"NAMES, SINCE, STEP, LIMIT_S = {names!r}, {since!r}, {step}, {limit_s}\n"
    done = subprocess.run(
        [sys.executable, "-c", head + DOORS],
        env={**os.environ, "NBAGENT_HOME": str(home), "NBAGENT_OFFLINE_DELAY_MS": "0"},
        capture_output=True,
        text=True,
        timeout=limit_s + 10,
    )
    assert (done.stderr, done.returncode) == ("", 0), done.stdout
    return done.stdout


DOOR_NAMES = [
    *("cell", "resume-magic", "run", "shown", "resume", "fork", "tool", "start", "arun", "stream")
]
EVERY_LINE = [
    pytest.param([door], None, 1, 800, id=door, marks=[pytest.mark.proof, pytest.mark.timeout(900)])
    for door in DOOR_NAMES
]
SOME_LINES = pytest.param(["cell", "run", "start", "stream"], "_install_handler", 17, 60, id="some")


@pytest.mark.parametrize(("doors", "since", "step", "limit_s"), [SOME_LINES, *EVERY_LINE])
def test_interrupt_at_any_line_of_a_door_orphans_no_run(
    tmp_path: Path, doors: list[str], since: str | None, step: int, limit_s: int
) -> None:
    print(sweep(tmp_path, doors, since=since, step=step, limit_s=limit_s))
