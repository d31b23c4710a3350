"""Runs the process of one script: the job, the supervisor, the result.

Blocks the calling thread. `supervisor` confines and watches the script, `interpreter` has its
environment and readable files, `script` turns the result into an answer.
"""

from __future__ import annotations

import marshal
import math
import os
import re
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, cast

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.policy import Isolation
from nbagent.sandbox.interpreter import LOADER, Grant, Interpreter
from nbagent.sandbox.script_output import Output

LevelName = Literal["landlock", "process"]
LimitHit = Literal["", "deadline", "stopped", "output", "memory", "processes", "files", "lost"]
"""Limit that ended a script; empty if it ended by itself. `files`: file size, disk space or number
of files; `lost`: the script ended its supervisor."""

_MIB = 1024 * 1024
_SETUP_S = 15.0
"""Time for starting the supervisor on a loaded machine."""
_GRACE_S = 0.25
"""After the deadline the supervisor has this time to end the script; then this process does."""
_DRAIN_S = 0.1
"""Time for reading pipes after the end, if an unknown process keeps them open."""
_EXIT_S = 0.4
_POLL_S = 0.02
_MARK = "NBAGENT_SCRIPT"
"""Variable in the environment of a script and its children, to find them without a supervisor."""
_MAX_KILL_ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLimits:
    """Limits of a script."""

    timeout_s: float = 120.0
    memory_bytes: int = 2_000_000_000
    """Of all processes of the script together."""
    processes: int = 64
    """Alive at the same time."""
    open_files: int = 512
    disk_bytes: int = 100 * _MIB
    """Size of its output and temporary folders together, and of the largest file."""
    disk_entries: int = 10_000
    """Files and folders in these."""
    output_bytes: int = 200_000
    """Of stdout and stderr each; the middle of a longer output is cut."""
    flood_bytes: int = 16 * _MIB
    """Of stdout and stderr together; more ends the script."""
    collected_files: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptJob:
    """One script to run."""

    text: str | bytes
    file: Path | None = None
    """Path to show as the script's own file."""
    args: tuple[str, ...] = ()
    cwd: Path
    """Working folder; readable, and not writable in isolation."""
    fill: Callable[[Path], object] | None = None
    """Fills a private copy of the working folder, in which the script runs; None: it runs in `cwd`
    itself. It raises ToolError if the copy is not what it should be."""
    keep_to: Path | None = None
    """Folder for the script's files; None discards them."""
    limits: ScriptLimits = ScriptLimits()
    isolation: Isolation = "auto"


@dataclass(slots=True)
class ProcessResult:
    """The end of a script's process."""

    stdout: Output
    stderr: Output
    returncode: int | None = None
    ended_by: LimitHit = ""
    setup_error: str = ""
    """Reason why it was not run; empty if it ran."""


def in_copy(job: ScriptJob, workspace: Path) -> ScriptJob:
    """Fill the private copy of a job's working folder, and let the job run there."""
    if job.fill is None:
        return job
    copy = workspace / "skill"
    copy.mkdir(mode=0o700)
    job.fill(copy)
    file = copy / job.file.relative_to(job.cwd) if job.file else None
    return replace(job, cwd=copy, file=file, fill=None)


def run_at(
    job: ScriptJob, level: LevelName, workspace: Path, python: Interpreter, stop: CancelToken
) -> ProcessResult:
    """Run a script in its own workspace, at this isolation level and never at a weaker one."""
    source = workspace / "script.py"
    text = job.text
    source.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    name = job.file or source
    folders = (job.cwd,) if name.parent in (job.cwd, workspace) else (name.parent, job.cwd)
    command = python.command(source, name, folders, job.args)
    mark = secrets.token_hex(16)
    env = {**python.environment(workspace, job.cwd), _MARK: mark}
    if os.name != "posix":
        return run_unsupervised(job, command, env, workspace, stop)
    _save_plan(job, level, workspace, python.grants, command, env)
    return _run_supervised(job, workspace / "plan", mark, stop)


def _save_plan(
    job: ScriptJob,
    level: LevelName,
    workspace: Path,
    grants: Iterable[Grant],
    command: list[str],
    env: dict[str, str],
) -> None:
    """Write the plan file: it holds every decision, the supervisor makes none."""
    from nbagent.sandbox import confinement  # only where there is fork

    write = [str(workspace / "out"), str(workspace / "tmp")]
    read = [os.path.realpath(job.cwd), str(workspace / "script.py")]
    plan: dict[str, Any] = {
        **asdict(job.limits),
        "argv": command,
        "env": env,
        "cwd": read[0],
        "folders": write,  # their size counts for the limit of disk space
        "landlock_abi": confinement.landlock_abi() if level == "landlock" else 0,
        "grants": [*grants, *((p, "tree") for p in read), *((p, "write") for p in write)],
        "leave_root": os.getuid() == 0,  # the script becomes the user `supervisor.uid_of`
    }
    (workspace / "plan").write_bytes(marshal.dumps(plan))


_LAUNCH = """
import sys
package = sys.modules["nbagent"] = type(sys)("nbagent")
package.__path__ = [{folder!r}]
from nbagent.sandbox.supervisor import main
main({report!r}, {plan!r})
"""
"""Skips the package's own __init__, because every script waits for these imports."""


def _run_supervised(job: ScriptJob, plan: Path, mark: str, stop: CancelToken) -> ProcessResult:
    """Start the supervisor and read its pipes to the end: then the script is dead."""
    report_reader, report = os.pipe()
    folder = str(Path(__file__).parents[1])
    launch = _LAUNCH.format(folder=folder, report=report, plan=str(plan))
    with open(report_reader, "rb", buffering=0) as reports:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", launch],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(report,),
                env={name: os.environ[name] for name in LOADER if name in os.environ},
                cwd="/",
                # Ctrl-C reaches a whole process group; the supervisor must live to end the script.
                start_new_session=True,
            )
        finally:
            os.close(report)
        with process:
            return _RunningScript(job, process, reports, mark).wait(stop)


class _RunningScript:
    """A running supervisor and its script."""

    def __init__(
        self, job: ScriptJob, process: subprocess.Popen[bytes], reports: IO[bytes], mark: str
    ) -> None:
        limits = job.limits
        self._result = ProcessResult(Output(limits.output_bytes), Output(limits.output_bytes))
        self._job = job
        self._process = process
        self._reports = reports
        self._mark = mark
        self._report = b""
        self._requested_end: LimitHit = ""
        """Reason why this process ended the script; empty if it did not."""
        self._read_until = time.monotonic() + _SETUP_S
        self._deadline = math.inf

    def wait(self, stop: CancelToken) -> ProcessResult:
        withdraw = stop.on_set(lambda: self._end("stopped"))
        try:
            self._read_pipes()
        finally:
            withdraw()
            self._end("stopped")
            self._finish()
        return self._result

    def _end(self, why: LimitHit) -> None:
        """Tell the supervisor to end the script. Any thread."""
        self._requested_end = self._requested_end or why
        # The end of its stdin is the message (see `supervisor`).
        cast("IO[bytes]", self._process.stdin).close()

    def _read_pipes(self) -> None:
        readers: dict[Any, Callable[[bytes], object]] = {
            self._process.stdout: partial(self._add_output, self._result.stdout),
            self._process.stderr: partial(self._add_output, self._result.stderr),
            self._reports: self._read_report,
        }
        with selectors.DefaultSelector() as selector:
            for pipe in readers:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map() and (left := self._read_until - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    data = os.read(key.fd, 65536)
                    readers[key.fileobj](data)
                    if not data:
                        selector.unregister(key.fileobj)

    def _read_report(self, data: bytes) -> None:
        now = time.monotonic()
        self._report = (self._report + data)[-4096:]
        if self._deadline == math.inf and b"started\n" in self._report:
            self._deadline = now + self._job.limits.timeout_s
            self._read_until = self._deadline + _GRACE_S
        if not data:
            # The supervisor has ended, with or without a last report.
            self._read_until = min(self._read_until, now + _DRAIN_S)

    def _add_output(self, output: Output, data: bytes) -> None:
        output.add(data)
        total = self._result.stdout.total_bytes + self._result.stderr.total_bytes
        if total > self._job.limits.flood_bytes:
            self._end("output")

    def _finish(self) -> None:
        """Read the supervisor's last report; without one, find and kill the processes of the
        script."""
        try:
            code = self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            code = None
            self._process.kill()
        result = self._result
        ended = re.search(rb"\nended (\w*) (\d+)\n\Z", self._report)
        if code == 0 and ended:
            result.returncode = os.waitstatus_to_exitcode(int(ended[2]))
            reason = cast("LimitHit", ended[1].decode())
            result.ended_by = self._requested_end if reason == "stopped" else reason
            return
        if self._deadline == math.inf:
            why = re.search(rb"\nsetup (.*)\n", self._report)
            last = why[1].decode("utf-8", "replace") if why else result.stderr.text.rstrip()
            result.setup_error = last.rpartition("\n")[2][:300] or "its supervisor did not start"
        result.ended_by = "deadline" if time.monotonic() >= self._deadline else "lost"
        with suppress(OSError):
            _kill_leftovers(self._mark, self._process.pid)


def _kill_leftovers(mark: str, supervisor_pid: int) -> None:
    """Kill the rest of a script whose supervisor is gone: it has a mark, or its own user."""
    from nbagent.sandbox.supervisor import uid_of  # only where there is fork

    text, uid = f"{_MARK}={mark}".encode(), uid_of(supervisor_pid)
    for _ in range(_MAX_KILL_ROUNDS):
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        left = [pid for pid in pids if _is_marked(pid, text, uid)]
        if not left:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, number)
        time.sleep(0.005)


def _is_marked(pid: int, mark: bytes, uid: int) -> bool:
    with suppress(OSError):
        folder = Path("/proc", str(pid))
        return folder.stat().st_uid == uid or mark in (folder / "environ").read_bytes()
    return False


def run_unsupervised(
    job: ScriptJob, command: list[str], env: dict[str, str], workspace: Path, stop: CancelToken
) -> ProcessResult:
    """Run a script without fork (Windows): a process, a timeout, and files for its output.

    Its child processes are killed as far as `taskkill` finds them. Limits of memory, processes and
    disk do not apply; the level is `process`, and every call needs approval.
    """
    limits = job.limits
    result = ProcessResult(Output(limits.output_bytes), Output(limits.output_bytes))
    deadline = time.monotonic() + limits.timeout_s
    with open(workspace / "stdout", "w+b") as stdout, open(workspace / "stderr", "w+b") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=env, cwd=job.cwd
        )
        while process.poll() is None and not result.ended_by:
            written = sum(os.fstat(file.fileno()).st_size for file in (stdout, stderr))
            if stop.is_set:
                result.ended_by = "stopped"
            elif time.monotonic() >= deadline:
                result.ended_by = "deadline"
            elif written > limits.flood_bytes:
                result.ended_by = "output"
            time.sleep(_POLL_S)
        with suppress(OSError, subprocess.SubprocessError):
            kill = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
            subprocess.run(kill, capture_output=True, timeout=5, check=False)
        process.kill()
        result.returncode = process.wait()
        for file, output in ((stdout, result.stdout), (stderr, result.stderr)):
            file.seek(0)
            for data in iter(partial(file.read, 65536), b""):
                output.add(data)
    return result
