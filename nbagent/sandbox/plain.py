"""Runs a script where there is no fork and no supervisor (Windows): a process, a clock, two pipes.

What it starts is ended with it as far as the system's own `taskkill` finds it. No limit of memory,
processes or disk holds here; the level is `process`, and a person is always asked.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from nbagent.contracts.cancel import CancelToken
from nbagent.sandbox.capture import Capture
from nbagent.sandbox.order import EndedBy, ScriptOrder

_READERS_S = 0.3
_NEW_GROUP = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)


class PlainRun:
    """How it ended; the same facts as those of a supervised run."""

    def __init__(self, order: ScriptOrder) -> None:
        self.stdout = Capture(order.limits.output_bytes)
        self.stderr = Capture(order.limits.output_bytes)
        self.returncode: int | None = None
        self.ended_by: EndedBy = ""
        self.trouble = ""
        self.duration_s = 0.0


def run_plainly(
    order: ScriptOrder, command: list[str], env: dict[str, str], cancel: CancelToken | None
) -> PlainRun:
    """Run it to its end or its deadline."""
    run = PlainRun(order)
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        cwd=order.cwd,
        creationflags=_NEW_GROUP,
        start_new_session=os.name == "posix",
    )
    lock = threading.Lock()

    def end(reason: EndedBy) -> None:
        with lock:
            if process.poll() is None and not run.ended_by:
                run.ended_by = reason
                _kill(process)

    readers = [
        threading.Thread(target=_read, args=(pipe, capture, run, order, end), daemon=True)
        for pipe, capture in ((process.stdout, run.stdout), (process.stderr, run.stderr))
    ]
    for reader in readers:
        reader.start()
    forget = cancel.on_set(lambda: end("stopped")) if cancel else None
    try:
        process.wait(order.limits.timeout_s)
    except subprocess.TimeoutExpired:
        end("deadline")
    finally:
        if forget:
            forget()
        if process.poll() is None:
            _kill(process)
        with suppress(subprocess.TimeoutExpired):
            run.returncode = process.wait(1.0)
        for reader in readers:
            # A grandchild may hold a pipe open; the reader is left behind then.
            reader.join(_READERS_S)
    run.duration_s = time.monotonic() - began
    return run


def _read(
    pipe: IO[bytes] | None,
    capture: Capture,
    run: PlainRun,
    order: ScriptOrder,
    end: Callable[[EndedBy], None],
) -> None:
    if pipe is None:
        return
    with suppress(OSError, ValueError), pipe:
        while data := os.read(pipe.fileno(), 65536):
            capture.add(data)
            if run.stdout.total_bytes + run.stderr.total_bytes > order.limits.flood_bytes:
                end("output")


def _kill(process: subprocess.Popen[bytes]) -> None:
    if os.name == "posix":
        with suppress(OSError):
            os.killpg(process.pid, 9)
        return
    with suppress(OSError, subprocess.SubprocessError):
        taskkill = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
        subprocess.run(taskkill, capture_output=True, timeout=5, check=False)
    process.kill()
