"""Who holds a run at work: the identity of a process, and whether it still lives.

Reads the operating system only; where leases are kept is the store's matter.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from nbagent.archive.codec import from_us, to_us
from nbagent.contracts.canonical import new_id

FRESH = timedelta(seconds=30)
"""A heartbeat of another machine counts for so long; the session beats every 10 s."""
_FRESH_WITHOUT_START_TIME = timedelta(minutes=10)
# Where the OS does not tell when a process began, its pid may have a new holder. The heartbeat
# decides then, after a longer time: a kernel that computes in C for minutes beats late.


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One process, told from every other one, also of another machine or container."""

    id: str
    pid: int
    pid_started: str | None = None
    boot_id: str | None = None
    host: str
    heartbeat: int
    """Microseconds since 1970."""

    @classmethod
    def of_this_process(cls, now: datetime) -> Lease:
        """A lease of this process, with a new id."""
        pid = os.getpid()
        return cls(
            id=new_id(),
            pid=pid,
            pid_started=_pid_started(pid),
            boot_id=_boot_id(),
            host=_host(),
            heartbeat=to_us(now),
        )

    def is_alive(self, now: datetime) -> bool:
        """Whether the process that took it still runs, as far as can be known from here."""
        age = now - from_us(self.heartbeat)
        if self.host != _host():
            return age < FRESH
        if self.boot_id != _boot_id():
            return False
        if self.pid_started is not None:
            return _pid_started(self.pid) == self.pid_started
        return age < _FRESH_WITHOUT_START_TIME and _pid_exists(self.pid)


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _boot_id() -> str | None:
    return _read("/proc/sys/kernel/random/boot_id")


def _host() -> str:
    # Containers share a boot id and see other pids: the pid namespace is a part of the place.
    try:
        return f"{socket.gethostname()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _pid_started(pid: int) -> str | None:
    """Clock ticks from boot to the start of a process; None when it is gone or not said."""
    stat = _read(f"/proc/{pid}/stat")
    # The second field is the name in brackets and may hold anything.
    fields = stat[stat.rfind(")") + 2 :].split() if stat else ["Z"]
    return None if fields[0] in "ZX" else fields[19]


def _pid_exists(pid: int) -> bool:
    if sys.platform == "win32":
        return True  # os.kill(pid, 0) would end the process there; the heartbeat decides alone
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
