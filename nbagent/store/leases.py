"""Leases of processes on their runs, and the end of a run whose kernel died.

Reads the operating system only; the store reads and writes leases. A tool that had started and has
no result on disk is not run again, because its side effects may have happened; its result says so.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from pathlib import Path

from nbagent.contracts.canonical import new_id
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import EngineTurn, RunRecord, ToolResult
from nbagent.store.connections import Connection
from nbagent.store.record_cells import from_us, to_us
from nbagent.store.rows import turn_end_us

_MAX_HEARTBEAT_AGE = timedelta(seconds=30)
"""Of a process on another machine; the session writes a heartbeat every 10 s."""
_MAX_HEARTBEAT_AGE_WITHOUT_START_TIME = timedelta(minutes=10)
# Some systems do not report the start time of a process, so its pid may belong to a new process.
# The heartbeat decides then, with a longer limit: a kernel that computes in C for minutes holds
# the interpreter's lock, and its heartbeat is late.
_MAX_CLOCK_DIFFERENCE = timedelta(minutes=10)
"""A heartbeat further ahead is from before the clock was set back, and says nothing."""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
RUN_INTERRUPTED = ErrorInfo(
    "ENGINE_INTERRUPTED",
    "the kernel ended while this run was at work; every finished turn is kept. "
    "Go on with `%agent resume` or `run.resume()`",
)
TOOL_INTERRUPTED = ToolResult.failure(
    ErrorInfo(
        "E_INTERRUPTED",
        "started, and the kernel ended before it finished; it was not run again, "
        "and what it did until then is not known",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One process, identified across reboots, machines and containers."""

    id: str
    pid: int
    pid_started: str | None = None
    boot_id: str | None = None
    host: str
    heartbeat: int
    """Microseconds since 1970."""

    @classmethod
    def of_this_process(cls, now: datetime) -> Lease:
        """Create a lease of this process, with a new id."""
        pid = os.getpid()
        return cls(
            id=new_id(),
            pid=pid,
            pid_started=_pid_started(pid),
            boot_id=_read(_BOOT_ID),
            host=_host(),
            heartbeat=to_us(now),
        )

    def is_alive(self, now: datetime) -> bool:
        """True if the process of this lease still runs, as far as this machine can tell."""
        age = now - from_us(self.heartbeat)
        if age < -_MAX_CLOCK_DIFFERENCE:
            age = timedelta.max
        if self.host != _host():
            return age < _MAX_HEARTBEAT_AGE
        if self.boot_id != _read(_BOOT_ID):
            return False
        if self.pid_started is not None:
            return _pid_started(self.pid) == self.pid_started
        return age < _MAX_HEARTBEAT_AGE_WITHOUT_START_TIME and _pid_exists(self.pid)


_VALID_LEASES = (
    "WHERE id <> '' AND host <> '' AND typeof(pid) = 'integer' AND heartbeat BETWEEN 0 AND 1 << 52 "
    "AND 'blob' NOT IN (typeof(id), typeof(host), typeof(pid_started), typeof(boot_id))"
)


def leases_of(c: Connection) -> dict[str, Lease]:
    """All leases of a store by id, without damaged rows."""
    names = [field.name for field in fields(Lease)]
    rows = c.execute(f"SELECT {', '.join(names)} FROM leases {_VALID_LEASES}")
    return {row[0]: Lease(**dict(zip(names, row, strict=True))) for row in rows}


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _host() -> str:
    # Containers of one machine share the boot id but have their own pids, so the pid namespace is
    # part of the host's name.
    try:
        return f"{socket.gethostname()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _pid_started(pid: int) -> str | None:
    """Clock ticks from boot to the start of a process; None if it is gone or unknown."""
    stat = _read(f"/proc/{pid}/stat")
    # The second field is the program's name in brackets, which may contain spaces and brackets:
    # split after the last bracket.
    fields = stat[stat.rfind(")") + 2 :].split() if stat else ["Z"]
    return None if fields[0] in "ZX" else fields[19]


def _pid_exists(pid: int) -> bool:
    if sys.platform == "win32":
        return True  # os.kill(pid, 0) would end the process on Windows; the heartbeat decides
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def as_interrupted(run: RunRecord, last_heartbeat: datetime | None) -> RunRecord:
    """Record of a run at work as it ended with its kernel, at the last heartbeat or turn."""
    turns, messages = list(run.turns), list(run.messages)
    if turns and messages and messages[-1].tool_calls:
        turns[-1] = _as_interrupted_turn(turns[-1])
        messages += [tool_run.as_message() for tool_run in turns[-1].tool_runs]
    last = [from_us(turn_end_us(turn)) for turn in turns[-1:]]
    ended_at = max(run.started_at, last_heartbeat or run.started_at, *last)
    updated = run.model_copy(update={"turns": tuple(turns), "messages": tuple(messages)})
    return updated.ended(
        phase="Failed", stop_reason="error", error=RUN_INTERRUPTED, ended_at=ended_at
    )


def _as_interrupted_turn(turn: EngineTurn) -> EngineTurn:
    ended = {"result": TOOL_INTERRUPTED}
    runs = (run if run.result else run.model_copy(update=ended) for run in turn.tool_runs)
    return turn.model_copy(
        update={
            "tool_runs": tuple(runs),
            "phase_after": "Failed",
            "stop_reason": "error",
            "error": RUN_INTERRUPTED,
            "duration_ms": max(turn.duration_ms, turn.model_ms + turn.retry_wait_ms),
        }
    )
