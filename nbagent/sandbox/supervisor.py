"""The process between nbagent and a script: confines it, watches it, and kills what is left.

`process` starts it as a program with a clean environment and none of nbagent's memory; arguments
are the pipe for reports and the plan file. The end of its stdin tells it to end the script. It
imports nothing heavy, since every script waits for it.

Reports: `setup TEXT` (nothing was run), `started`, `ended REASON WAIT_STATUS`.
"""

import marshal
import os
import resource
import select
import sys
import time
from contextlib import suppress
from itertools import count
from types import SimpleNamespace as Plan

from nbagent.sandbox import confinement

LINUX = sys.platform == "linux"
TELLS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""True if the kernel lists the children of a process. Without the list only the script's process
group can be ended."""
_TICK_S = 0.02
_DISK_EVERY = 5
"""Ticks between two checks of the disk."""
_KILL_S = 0.4
"""Time to wait for killed processes; one that takes longer hangs in the kernel (a file server that
does not answer)."""
_THREADS_EACH = 4
"""RLIMIT_NPROC counts threads too, and libraries start some."""


def uid_of(supervisor: int) -> int:
    """The user that root's scripts run as: an id that systems reserve for temporary users."""
    return 61184 + supervisor % 4336


def main(report: int, path: str) -> None:
    """Run one script."""
    os.set_inheritable(report, False)
    with open(path, "rb") as file:
        plan = Plan(**marshal.load(file))  # written by `process._save_plan`
    if LINUX:
        confinement.prctl(confinement.SUBREAPER, 1)
    errors, child_errors = os.pipe()
    script = os.fork()
    if script == 0:
        _become_script(plan, child_errors)
    os.close(child_errors)
    # Close this process's copies of the script's pipes, so that their end is the script's end.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    processes = ProcessTree(script)
    with open(errors, "rb") as file:
        setup_error = file.read()
    if setup_error:
        processes.end()
        _report(report, b"setup " + setup_error.replace(b"\n", b" "))
    else:
        _report(report, b"started")
        reason = _watch(processes, plan)
        processes.end()
        # Killed, and its status is not there yet.
        status = 9 if processes.status is None else processes.status
        _report(report, b"ended %s %d" % (reason.encode(), status))
    # Not sys.exit: an orderly shutdown of the interpreter would only delay the result.
    os._exit(0)


def _report(report: int, line: bytes) -> None:
    with suppress(OSError):
        os.write(report, b"\n%s\n" % line)


# --- in the child -------------------------------------------------------------------------------


def _become_script(plan: Plan, errors: int) -> None:
    """Become the script, or report the reason; never returns. Unconfined it does not run."""
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(plan.cwd)
        os.umask(0o077)
        _set_limit("CORE", 0)
        _set_limit("FSIZE", plan.disk_bytes)
        _set_limit("NOFILE", plan.open_files)
        _set_limit("DATA", plan.memory_bytes)
        # Address space is not memory: threads and libraries reserve far more than they use, so
        # this limit is wide, and `_watch` measures the real memory.
        _set_limit("AS", 4 * plan.memory_bytes + (2 << 30))
        _set_limit("MSGQUEUE", 0)
        # Only if the supervisor fails: more than all cores can use before the deadline.
        _set_limit("CPU", (int(plan.timeout_s) + 1) * (os.cpu_count() or 1) + 5)
        if LINUX:
            _confine(plan)
        os.execve(plan.argv[0], plan.argv, plan.env)
    except BaseException as error:
        os.write(errors, f"{type(error).__name__}: {error}".encode()[:1000])
    finally:
        os._exit(127)


def _set_limit(name: str, value: int) -> None:
    number = getattr(resource, f"RLIMIT_{name}", None)
    if number is None:
        return
    _, hard = resource.getrlimit(number)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    try:
        resource.setrlimit(number, (value, value))
    except (OSError, ValueError):
        # macOS defines limits that cannot be set.
        if LINUX:
            raise


def _confine(plan: Plan) -> None:
    # If the machine runs out of memory, the kernel shall kill the script, not the notebook.
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
        file.write(b"1000")
    has_own_user = plan.leave_root and confinement.leave_root(uid_of(os.getppid()))
    # RLIMIT_NPROC counts all threads of the user in all programs: without a user of its own, the
    # script gets the present number on top.
    others = 0 if has_own_user else int(_read("/proc/loadavg").split()[3].partition(b"/")[2])
    _set_limit("NPROC", plan.processes * _THREADS_EACH + others)
    # After the change of user, because that clears the signal.
    confinement.prctl(confinement.PARENT_DEATH, 9)
    confinement.prctl(confinement.NO_NEW_PRIVILEGES, 1)
    if plan.landlock_abi:
        own = ("/proc/self/", "/proc/thread-self/")
        grants = [(p, kind) for p, kind in plan.grants if not p.startswith(own)]
        grants.append((f"/proc/{os.getpid()}", "tree"))
        confinement.restrict_files(grants, plan.landlock_abi)
        confinement.filter_calls(os.uname().machine, abi=plan.landlock_abi)


# --- in the supervisor --------------------------------------------------------------------------


class ProcessTree:
    """A script and all processes that it started.

    As a subreaper this process is the parent of every orphan: without a child, nothing is alive.
    """

    def __init__(self, script: int) -> None:
        self.script = script
        self.status: int | None = None
        """Wait status of the script itself; None while it runs."""

    def is_alive(self) -> bool:
        """Collect ended processes; True if any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.script:
                self.status = status

    def members(self) -> list[int]:
        """All living descendants of this process, if the kernel lists them."""
        members: list[int] = []
        waiting = [os.getpid()] if TELLS_CHILDREN else []
        while waiting:
            pid = waiting.pop()
            for thread in _names(f"/proc/{pid}/task"):
                born = [int(n) for n in _read(f"/proc/{pid}/task/{thread}/children").split()]
                members += born
                waiting += born
        return members

    def end(self) -> None:
        """Kill all processes; they are stopped first, so that a fork bomb cannot outrun this."""
        until = time.monotonic() + _KILL_S
        while True:
            stopped: set[int] = set() if TELLS_CHILDREN else {-self.script}
            while (fresh := set(self.members()) - stopped) and time.monotonic() < until:
                _signal(fresh, 19)
                stopped |= fresh
            _signal(stopped, 9)
            if not self.is_alive() or time.monotonic() > until:
                return
            time.sleep(0.001)


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def _watch(processes: ProcessTree, plan: Plan) -> str:
    """Wait for the end of the script or for a limit; return the limit, or an empty text."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    if LINUX:
        # pidfd needs Linux 5.3; before, the script's end is noticed at the next tick.
        with suppress(OSError, AttributeError):
            poll.register(os.pidfd_open(processes.script), select.POLLIN)
    deadline = time.monotonic() + plan.timeout_s
    for tick in count(1):
        left = max(0.0, deadline - time.monotonic())
        events = poll.poll(min(left, _TICK_S) * 1000)
        processes.is_alive()
        if processes.status is not None:
            break
        if any(fd == 0 for fd, _ in events):
            return "stopped"
        if left <= 0:
            return "deadline"
        pids = processes.members()
        if len(pids) > plan.processes:
            return "processes"
        if _memory_bytes(pids, plan.memory_bytes) > plan.memory_bytes:
            return "memory"
        if tick % _DISK_EVERY == 0 and _fills_disk(pids, plan):
            return "files"
    # The script ended by itself: no limit, even if one was exceeded at the same time.
    return ""


def _memory_bytes(pids: list[int], limit_bytes: int) -> int:
    """Memory of the processes together; measured exactly if a rough figure exceeds the limit."""
    page = resource.getpagesize()
    rough = {pid: _pages(pid) * page for pid in pids}
    if sum(rough.values()) <= limit_bytes:
        return 0
    return sum(_own_share_bytes(pid, size) for pid, size in rough.items())


def _pages(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) if fields else 0


def _own_share_bytes(pid: int, fallback: int) -> int:
    # Proportional shares: memory that forked children share with their parent counts once.
    lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    wanted = [line for line in lines if line.startswith((b"Pss_Anon:", b"Pss_Shmem:"))]
    return sum(int(line.split()[1]) * 1024 for line in wanted) if wanted else fallback


def _fills_disk(pids: list[int], plan: Plan) -> bool:
    """True if its folders and its open deleted files exceed the limit of disk space."""
    entries, sizes = 0, dict[tuple[int, int], int]()
    waiting = list(plan.folders)
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as listing:
            for entry in listing:
                entries += 1
                if entries > plan.disk_entries:
                    return True
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    state = entry.stat(follow_symlinks=False)
                    sizes[state.st_dev, state.st_ino] = state.st_blocks * 512
    for folder in [f"/proc/{pid}/fd" for pid in pids]:
        for number in _names(folder):
            with suppress(OSError):
                state = os.stat(f"{folder}/{number}")
                if state.st_nlink == 0 and state.st_mode & 0o170000 == 0o100000:
                    sizes[state.st_dev, state.st_ino] = state.st_blocks * 512
    return sum(sizes.values()) > plan.disk_bytes


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(65536)
    except OSError:
        return b""
