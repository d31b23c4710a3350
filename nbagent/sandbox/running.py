"""Runs one script at a given level: its folders, its environment, its pipes, its end.

Blocks the calling thread. Which level is possible here is `isolation`'s; what the supervisor does
is `supervisor`'s. Systems without fork (Windows) are `plain`'s.
"""

from __future__ import annotations

import marshal
import os
import re
import secrets
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.errors import ToolError
from nbagent.sandbox.capture import Capture
from nbagent.sandbox.command import command_of, environment_of, plan_of, script_file
from nbagent.sandbox.grants import Interpreter, interpreter
from nbagent.sandbox.order import EndedBy, LevelName, ScriptOrder, ScriptResult
from nbagent.sandbox.outputs import collect, workspace
from nbagent.sandbox.plain import run_plainly

_SETUP_S = 15.0
"""How long a loaded machine may take to start the supervisor."""
_GRACE_S = 0.25
"""How much later than the supervisor this process ends a script itself."""
_DRAIN_S = 0.1
"""How long pipes are read after the end, where something unseen holds them open."""
_MARK = "NBAGENT_SCRIPT"
_SWEEPS = 20
_EXIT_S = 0.4
_LINE_BYTES = 4_096
_TELL_S = 0.1

_LAUNCH = """
import sys
for name in ("nbagent", "nbagent.sandbox"):
    made = sys.modules[name] = type(sys)(name)
    made.__path__ = [{room!r} if "." in name else {package!r}]
from nbagent.sandbox.supervisor import main
main()
"""
"""The package's own __init__ modules are left out: every script waits for what is imported here."""


def run_at(
    order: ScriptOrder,
    level: LevelName,
    *,
    cancel: CancelToken | None = None,
    abi: int | None = None,
) -> ScriptResult:
    """Run a script at one level and wait for it.

    Args:
        order: what to run.
        level: must be possible here; a script is never run with less.
        cancel: a stop ends it at once.
        abi: use an older version of Landlock than there is; for tests.

    Raises:
        ToolError: nothing was run.
    """
    python = interpreter(order.python)
    with workspace() as place:
        token = secrets.token_hex(16)
        order = replace(order, env={**order.env, _MARK: token})
        file = script_file(order, place)
        env = environment_of(order, place, python)
        if os.name == "posix":
            plan = plan_of(order, place, file, python, env, level, abi)
            run = _Run(order, marshal.dumps(vars(plan)), token)
            run.wait(cancel)
        else:
            command = command_of(order, file, python)
            run = run_plainly(order, command, env, cancel)
        if run.trouble:
            raise ToolError(
                f"the script was not run: its isolation ({level}) could not be set up: "
                f"{run.trouble}",
                code="E_PRECONDITION_FAILED",
            )
        return _result(order, run, level, place, python)


def _result(
    order: ScriptOrder, run: _Run, level: LevelName, place: Path, python: Interpreter
) -> ScriptResult:
    files, notes = collect(place / "out", keep_to=order.keep_to, limits=order.limits)
    stdout, stderr = run.stdout.text, run.stderr.text
    ended = run.ended_by or _guessed(run.returncode, stderr)
    return ScriptResult(
        stdout=stdout,
        stderr=stderr,
        returncode=run.returncode,
        timed_out=ended == "deadline",
        duration_ms=round(run.duration_s * 1000, 1),
        isolation=level,
        ended_by=ended,
        files=files,
        notes=(*_told(order, run, ended), *notes),
        places=(
            (str(place / "out"), "$OUTPUT_DIR"),
            (str(place / "tmp"), "$TMPDIR"),
            (str(place), "<script>"),
            (str(order.cwd), "."),
            *python.places,
            *_above(order.cwd),
        ),
    )


def _above(folder: Path) -> list[tuple[str, str]]:
    """The folders above as paths from it, as far as they say something: up to the home folder.

    What lies directly below the root has a name of everyday use (`/tmp`, `/opt`) and stays.
    """
    homes = {os.path.expanduser("~"), os.path.realpath(os.path.expanduser("~"))}
    found: list[tuple[str, str]] = []
    for levels, parent in enumerate(folder.parents, 1):
        if str(parent) in homes:
            return [*found, (str(parent), "~")]
        if len(parent.parts) > 2:
            found.append((str(parent), "/".join([".."] * levels)))
    return found


_LIMIT_ERRORS: tuple[tuple[str, EndedBy], ...] = (
    (r"MemoryError|std::bad_alloc|OSError: \[Errno 12\]", "memory"),
    (r"BlockingIOError: \[Errno 11\]|RuntimeError: can't start new thread", "processes"),
    (r"OSError: \[Errno (27|24)\]", "files"),
)


def _guessed(returncode: int | None, stderr: str) -> EndedBy:
    """The limit that a failed script ran into by itself: its last line says so."""
    if returncode == 0:
        return ""
    if returncode == -getattr(signal, "SIGXFSZ", 25):
        return "files"
    last = stderr.rstrip().rpartition("\n")[2]
    for pattern, ended in _LIMIT_ERRORS:
        if re.match(pattern, last):
            return ended
    return ""


def _told(order: ScriptOrder, run: _Run, ended: EndedBy) -> list[str]:
    limits = order.limits
    said = {
        "deadline": f"it was ended after {limits.timeout_s:g} s",
        "stopped": "it was stopped",
        "output": f"it was ended: it wrote more than {limits.flood_bytes:,} bytes of output",
        "memory": f"it ended at the limit of {limits.memory_bytes:,} bytes of memory",
        "processes": f"it ended at the limit of {limits.processes} processes",
        "files": f"it ended at the limit of {limits.file_bytes:,} bytes a file, "
        f"{limits.disk_bytes:,} bytes and {limits.disk_entries:,} files in all",
        "lost": "it ended the process that watched it, and was killed",
    }
    notes = [said[ended]] if ended else []
    for name, stream in (("stdout", run.stdout), ("stderr", run.stderr)):
        if stream.cut_bytes:
            notes.append(f"{stream.cut_bytes:,} bytes were cut from the middle of {name}")
    return notes


class _Run:
    """A supervisor and its script, seen from here."""

    def __init__(self, order: ScriptOrder, plan: bytes, token: str) -> None:
        self.stdout = Capture(order.limits.output_bytes)
        self.stderr = Capture(order.limits.output_bytes)
        self.returncode: int | None = None
        self.ended_by: EndedBy = ""
        self.trouble = ""
        self.duration_s = 0.0
        self._started = False
        self._limits = order.limits
        self._tell = order.on_output
        self._told_at = 0.0
        self._open_line: dict[int, bytes] = {}
        self._token = token
        self._uid = -1
        self._plan = plan
        self._said = b""
        self._ended = False
        self._flooded = False
        self._began = time.monotonic()
        self._latest = self._began + _SETUP_S

    def wait(self, cancel: CancelToken | None) -> None:
        """Run it to its end; nothing of it is alive afterwards."""
        verdict, into = os.pipe()
        process = None
        try:
            process = self._start(into)
            os.close(into)
            into = -1
            self._send(process, len(self._plan).to_bytes(4, "little") + self._plan)
            forget = cancel.on_set(lambda: self._send(process, b"s")) if cancel else None
            try:
                self._watch(process, verdict)
            finally:
                if forget:
                    forget()
        finally:
            if into >= 0:
                os.close(into)
            os.close(verdict)
            if process is not None:
                self._finish(process)
        self.duration_s = time.monotonic() - self._began

    def _start(self, verdict: int) -> subprocess.Popen[bytes]:
        room = os.path.dirname(__file__)
        launch = _LAUNCH.format(room=room, package=os.path.dirname(room))
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", launch, str(verdict)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=(verdict,),
            env=_clean_environment(),
            cwd="/",
            start_new_session=True,
        )

    def _send(self, process: subprocess.Popen[bytes], data: bytes) -> None:
        if process.stdin is not None:
            with suppress(OSError, ValueError):
                process.stdin.write(data)

    def _watch(self, process: subprocess.Popen[bytes], verdict: int) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        with selectors.DefaultSelector() as selector:
            sources = {process.stdout.fileno(): self.stdout, process.stderr.fileno(): self.stderr}
            for fd in (*sources, verdict):
                selector.register(fd, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select(max(0.0, self._latest - time.monotonic())):
                    if not self._take(key.fd, sources, process):
                        selector.unregister(key.fd)
                if time.monotonic() >= self._latest:
                    return

    def _take(self, fd: int, sources: dict[int, Capture], process: subprocess.Popen[bytes]) -> bool:
        data = os.read(fd, 65536)
        if fd in sources:
            sources[fd].add(data)
            self._tell_last_line(fd, data)
            total = self.stdout.total_bytes + self.stderr.total_bytes
            if total > self._limits.flood_bytes and not self._flooded:
                self._flooded = True
                self._send(process, b"o")
        elif data:
            self._said += data
            while b"\n" in self._said:
                line, _, self._said = self._said.partition(b"\n")
                with suppress(ValueError, IndexError):
                    # At the plain level a script may write here too.
                    self._hear(line.decode("utf-8", "replace"))
            self._said = self._said[:_LINE_BYTES]
        else:
            # It is gone, with or without a last word.
            self._latest = min(self._latest, time.monotonic() + _DRAIN_S)
        return bool(data)

    def _tell_last_line(self, fd: int, data: bytes) -> None:
        """Tell the last whole line; a script's words come in pieces."""
        whole, newline, rest = (self._open_line.get(fd, b"") + data).rpartition(b"\n")
        self._open_line[fd] = rest[-_LINE_BYTES:]
        line = whole.rpartition(b"\n")[2][-_LINE_BYTES:].decode("utf-8", "replace").strip()
        now = time.monotonic()
        if newline and line and now - self._told_at >= _TELL_S:
            self._told_at = now
            self._tell(line)

    def _hear(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        now = time.monotonic()
        if word == "started":
            self._began = now
            self._started = True
            self._uid = int(rest.split()[1])
            self._latest = now + self._limits.timeout_s + _GRACE_S
        elif word == "setup":
            self.trouble = rest or "unknown"
            self._ended = True
        elif word == "ended":
            reason, status = rest.split()
            self.returncode = os.waitstatus_to_exitcode(int(status))
            self.ended_by = _REASONS.get(reason, "")
            self._ended = True
            self._latest = now + _DRAIN_S

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        """End the supervisor; where it had no last word, find and end what it watched."""
        if not self._ended:
            with suppress(OSError):
                process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            # Its last word was not its own, or it hangs.
            with suppress(OSError):
                process.kill()
            process.wait()
            self._ended = False
        if self._ended:
            return
        if not self._started:
            last = self.stderr.text.rstrip().rpartition("\n")[2]
            self.trouble = f"its supervisor did not start ({last[:200] or 'it took too long'})"
        late = time.monotonic() - self._began >= self._limits.timeout_s
        self.ended_by = "deadline" if late else "lost"
        _sweep(self._token, self._uid)


_REASONS: dict[str, EndedBy] = {
    "deadline": "deadline",
    "stopped": "stopped",
    "output": "output",
    "memory": "memory",
    "processes": "processes",
    "files": "files",
}


def _clean_environment() -> dict[str, str]:
    # The loader's path only: an interpreter may not start without it.
    names = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return {name: os.environ[name] for name in names if name in os.environ}


def _sweep(token: str, uid: int) -> None:
    """End what is left of a script without a supervisor: it bears a mark, or a user of its own."""
    mark = f"{_MARK}={token}".encode()
    for _ in range(_SWEEPS):
        found = [pid for pid in _processes() if _is_marked(pid, mark, uid)]
        if not found:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with suppress(OSError):
                    os.kill(pid, number)
        time.sleep(0.005)


def _processes() -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []


def _is_marked(pid: int, mark: bytes, uid: int) -> bool:
    with suppress(OSError):
        with open(f"/proc/{pid}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X"):
                return False
        if uid > 0 and os.stat(f"/proc/{pid}").st_uid == uid:
            return True
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read(131072)
    return False
