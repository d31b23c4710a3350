"""The process between nbagent and a script: shuts it in, watches it, leaves nothing alive.

A program: `running` starts it with a clean environment and none of nbagent's memory. It reads its
plan from stdin, writes lines to the verdict pipe, and takes a byte on stdin, or its end, as a stop.
Imports nothing heavy, since every script waits for it.

Lines: `setup TEXT` (nothing was run), `started PID UID`, `ended REASON WAIT_STATUS`.
"""

import marshal
import os
import resource
import select
import sys
import time

from nbagent.sandbox import tree, walls
from nbagent.sandbox.plan import Plan

LINUX = sys.platform == "linux"
_TICK_S = 0.02
_DISK_EVERY = 5
"""Ticks between two looks at the disk."""
_KILL_S = 0.4
"""How long ended processes are waited for; longer only hangs in the kernel (a dead file server)."""
_FIRST_UID, _UIDS = 61184, 4336
"""Numbers that systems keep for passing users."""
_SECCOMP_FD = 9
_THREADS_EACH = 4
"""The limit counts threads too; libraries start some."""
_STOPS = {b"s": "stopped", b"o": "output", b"": "stopped"}


def main() -> None:
    """Run one order."""
    verdict = os.dup(int(sys.argv[1]))
    os.close(int(sys.argv[1]))
    plan = _read_plan()
    if LINUX:
        walls.become_subreaper()
    errors, child_errors = os.pipe()
    uid = _FIRST_UID + os.getpid() % _UIDS
    child = os.fork()
    if child == 0:
        _become_script(plan, child_errors, uid)
    os.close(child_errors)
    # Only the script and its children hold its pipes now.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    trouble = _read_all(errors)
    if trouble:
        _kill_all(child)
        _say(verdict, b"setup " + trouble.replace(b"\n", b" "))
        return
    _say(verdict, b"started %d %d" % (child, uid if plan.leave_root else -1))
    watch = _Watch(child, plan)
    reason = watch.wait()
    if plan.offers_filter:
        # The first process of bubblewrap's namespace: with it the kernel ends all others at once.
        for pid in tree.children(child):
            _signal(pid, 9)
    status = _kill_all(child, watch.status)
    _say(verdict, b"ended %s %d" % (reason.encode() or b"-", status))
    # Taking the interpreter down in order would only keep the script's result waiting.
    os._exit(0)


def _say(fd: int, line: bytes) -> None:
    try:  # noqa: SIM105
        os.write(fd, line[:2000] + b"\n")
    except OSError:
        pass


def _read_all(fd: int) -> bytes:
    data = b""
    while piece := os.read(fd, 4096):
        data += piece
    os.close(fd)
    return data


def _read_plan() -> Plan:
    size = int.from_bytes(_exactly(4), "little")
    return Plan(**marshal.loads(_exactly(size)))


def _exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data


# --- in the child -------------------------------------------------------------------------------


def _become_script(plan: Plan, errors: int, uid: int) -> None:
    """Never returns: becomes the script, or says why not. Fails closed: no wall, no script."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.chdir(plan.cwd)
        os.umask(0o077)
        _limit(plan)
        if LINUX:
            _shut_in(plan, uid)
        os.execve(plan.argv[0], plan.argv, plan.env)
    except BaseException as error:
        os.write(errors, f"{type(error).__name__}: {error}".encode()[:1000])
    finally:
        os._exit(127)


def _limit(plan: Plan) -> None:
    for name, value in plan.rlimits.items():
        _set_limit(name, value)


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
        # macOS knows limits that it does not let be set.
        if LINUX:
            raise


def _threads_now() -> int:
    try:
        with open("/proc/loadavg", "rb") as file:
            return int(file.read().split()[3].partition(b"/")[2])
    except (OSError, ValueError, IndexError):
        return 4096


def _prefer_to_die() -> None:
    # When the machine runs out of memory, the kernel takes the script and not the notebook.
    try:
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(b"1000")
    except OSError:
        pass


def _shut_in(plan: Plan, uid: int) -> None:
    abi = plan.abi
    if plan.offers_filter:
        _offer_filter(plan)
    _prefer_to_die()
    alone = plan.leave_root and walls.leave_root(uid)
    # Counted for the user, all threads of all programs: as many as there are, and some more.
    _set_limit("NPROC", plan.processes * _THREADS_EACH + (0 if alone else _threads_now()))
    # After the change of user, which takes it back.
    walls.die_with_parent()
    walls.no_new_privileges()
    if plan.landlock:
        own = ("/proc/self/", "/proc/thread-self/")
        grants = [(p, kind) for p, kind in plan.grants if not p.startswith(own)]
        grants.append((f"/proc/{os.getpid()}", "tree"))
        walls.restrict_files(grants, abi)
        walls.filter_calls(os.uname().machine, abi=abi)


def _offer_filter(plan: Plan) -> None:
    """Hand bubblewrap the filter that it installs behind its own walls."""
    from nbagent.sandbox.syscalls import program

    # A process cannot reach others from its own pid namespace: as with Landlock's scopes.
    code = program(os.uname().machine, landlock_abi=6, pid=0)
    if code is None:
        raise OSError(38, "no seccomp filter for this machine")
    out, into = os.pipe()
    os.write(into, code)
    os.close(into)
    os.dup2(out, _SECCOMP_FD, inheritable=True)


# --- in the supervisor --------------------------------------------------------------------------


class _Watch:
    """One script under watch."""

    def __init__(self, child: int, plan: Plan) -> None:
        self.status: int | None = None
        self._child = child
        self._plan = plan
        self._deadline = time.monotonic() + plan.timeout_s
        self._quick = LINUX and tree.has_children_files()
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        self._has_fd = False
        if hasattr(os, "pidfd_open"):
            try:
                self._poll.register(os.pidfd_open(child), select.POLLIN)
                self._has_fd = True
            except OSError:
                pass

    def wait(self) -> str:
        """Until the script ended or has to; says why it has to."""
        tick = 0
        while True:
            if self._reaped():
                return ""
            left = self._deadline - time.monotonic()
            if left <= 0:
                return "deadline"
            pause = min(left, _TICK_S if self._has_fd else 0.005)
            for fd, _ in self._poll.poll(pause * 1000):
                if fd == 0:
                    # What ended by itself was not stopped.
                    return "" if self._reaped() else _STOPS.get(os.read(0, 1), "stopped")
            tick += 1
            reason = self._over(tick)
            if reason:
                return "" if self._reaped() else reason

    def _reaped(self) -> bool:
        while self.status is None:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.status = 0
                break
            if pid == 0:
                return False
            if pid == self._child:
                self.status = status
        return True

    def _over(self, tick: int) -> str:
        """The limit that it is over."""
        if not LINUX:
            return self._over_disk() if tick % _DISK_EVERY == 0 else ""
        pids = tree.descendants(os.getpid(), quick=self._quick)
        if len(pids) > self._plan.processes:
            return "processes"
        most = self._plan.memory_bytes
        if tree.memory_bytes(pids, most) > most:
            return "memory"
        if tick % _DISK_EVERY == 0:
            return self._over_disk(pids)
        return ""

    def _over_disk(self, pids: list[int] | None = None) -> str:
        most = self._plan.disk_entries
        size, entries = tree.disk_use(self._plan.folders, most)
        size += tree.unlinked_bytes(pids) if pids else 0
        return "files" if size > self._plan.disk_bytes or entries > most else ""


def _kill_all(child: int, status: int | None = None) -> int:
    """End every descendant; returns how the script itself ended.

    As a subreaper this process is the parent of every orphan: when it has no child left, nothing is
    alive. They are stopped before they are killed, so that a fork bomb cannot outrun this.
    """
    quick = LINUX and tree.has_children_files()
    found = status
    until = time.monotonic() + _KILL_S
    while True:
        if LINUX:
            _signal_tree(quick)
        else:
            _signal(-child, 9)
        while True:
            try:
                pid, ended = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found if found is not None else 9
            if pid == 0:
                break
            if pid == child:
                found = ended
        if time.monotonic() > until:
            return found if found is not None else 9
        time.sleep(0.001)


def _signal_tree(quick: bool) -> None:
    stopped: set[int] = set()
    for _ in range(50):
        fresh = [p for p in tree.descendants(os.getpid(), quick=quick) if p not in stopped]
        if not fresh:
            break
        for pid in fresh:
            _signal(pid, 19)
        stopped.update(fresh)
    for pid in stopped:
        _signal(pid, 9)


def _signal(pid: int, number: int) -> None:
    try:  # noqa: SIM105
        os.kill(pid, number)
    except OSError:
        pass
