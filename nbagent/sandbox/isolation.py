"""Which isolation works on this machine. Proved by a script that tries the walls, never assumed."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

from nbagent.contracts.errors import NbagentError, ToolError
from nbagent.sandbox.order import ActiveIsolation, LevelName, ScriptLimits, ScriptOrder, Wanted
from nbagent.sandbox.running import run_at

_CLOSED = (
    "it reads nothing but its folder, Python with its packages and the system's programs, writes "
    "only to folders of its own, has no network, reaches no other process, and sees nothing of the "
    "notebook's environment"
)
_NAMES = "; it can still learn whether a file exists and how large it is"
_OPEN = (
    "it is a process of its own with limits and a clean environment, but it can read and write "
    "your files and use the network"
)
_PROBE = """
import os, sys, _socket
try:
    open(sys.argv[1]).close()
    print("files")
except OSError:
    pass
try:
    _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM).connect(("127.0.0.1", 1))
    print("network")
except ConnectionRefusedError:
    # In a network of its own this is the answer too; there is no device but its loopback then.
    if len(_socket.if_nameindex()) > 1:
        print("network")
except OSError:
    pass
print("tried")
"""
_found: dict[LevelName, str] = {}
_lock = threading.Lock()


def isolation_level(wanted: Wanted = "auto") -> ActiveIsolation:
    """The level that scripts run at. The first call tries it, which takes some 50 ms.

    Args:
        wanted: `auto` takes the strongest that works.

    Raises:
        ToolError: the level that was named does not work here.
    """
    if wanted == "process":
        return ActiveIsolation("process", _OPEN)
    levels: tuple[LevelName, ...] = ("landlock", "bubblewrap") if wanted == "auto" else (wanted,)
    missing: list[str] = []
    for level in levels:
        trouble = _trouble_of(level)
        if not trouble:
            return ActiveIsolation(level, _CLOSED + (_NAMES if level == "landlock" else ""))
        missing.append(f"{level}: {trouble}")
    if wanted != "auto":
        raise ToolError(
            f"the isolation {wanted!r} does not work here ({'; '.join(missing)}); "
            "choose 'auto' or 'process'",
            code="E_PRECONDITION_FAILED",
        )
    return ActiveIsolation("process", f"{_OPEN} ({'; '.join(missing)})")


def _trouble_of(level: LevelName) -> str:
    with _lock:
        if level not in _found:
            _found[level] = _missing(level) or _tried(level)
        return _found[level]


def _missing(level: LevelName) -> str:
    """What is plainly not there, without starting anything."""
    if sys.platform != "linux":
        return "this is not Linux"
    if level == "bubblewrap":
        return "" if shutil.which("bwrap") else "bwrap is not installed"
    from nbagent.sandbox.syscalls import ARCHES
    from nbagent.sandbox.walls import landlock_abi

    machine = os.uname().machine
    if machine not in ARCHES:
        return f"its calls are not known for {machine}"
    return "" if landlock_abi() else "the kernel does not offer it"


def _tried(level: LevelName) -> str:
    """What a script at this level could still do; empty when the walls hold."""
    with tempfile.TemporaryDirectory(prefix="nbagent-probe-") as folder:
        outside = Path(folder) / "outside"
        outside.write_text("x")
        inside = Path(folder) / "inside"
        inside.mkdir()
        limits = ScriptLimits(timeout_s=10.0)
        order = ScriptOrder(text=_PROBE, args=(str(outside),), cwd=inside, limits=limits)
        try:
            result = run_at(order, level)
        except NbagentError as error:
            return error.message
        if result.stdout.split() == ["tried"]:
            return ""
        left = " and ".join(result.stdout.split()[:-1])
        return f"{left} stayed open" if left else f"its probe failed: {result.stderr[-200:]!r}"
