"""Runs a script in isolation: the available level, the run, and the result for the model.

Blocks the calling thread. The process itself is in `process`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.errors import NbagentError, ToolError
from nbagent.contracts.policy import Isolation
from nbagent.sandbox.interpreter import Interpreter, interpreter
from nbagent.sandbox.process import (
    LevelName,
    LimitHit,
    ProcessResult,
    ScriptJob,
    ScriptLimits,
    in_copy,
    run_at,
)
from nbagent.sandbox.script_output import ScriptFile, collect, workspace

_ISOLATED = (
    "it reads nothing but its folder, Python with its packages and the system's programs, writes "
    "only to folders of its own, has no network, reaches no other process, and sees nothing of the "
    "notebook's environment; it can still learn whether a file exists and how large it is"
)
_NOT_ISOLATED = (
    "it is a process of its own with limits and a clean environment, but it can read and write "
    "your files and use the network"
)
_PROBE = """
import _socket, sys
ways = {"files": lambda: open(sys.argv[1]), "network": lambda: _socket.socket(2, 1)}
for what, attempt in ways.items():
    try:
        attempt()
        print(what)
    except OSError:
        pass
print("tried")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptResult:
    """The result of a script: its exit code, output and files."""

    stdout: str
    """Host paths are replaced by names such as `$OUTPUT_DIR`."""
    stderr: str
    returncode: int | None
    """Negative for a signal; None if unknown."""
    timed_out: bool
    duration_ms: float
    isolation: LevelName
    ended_by: LimitHit = ""
    files: tuple[ScriptFile, ...] = ()
    notes: tuple[str, ...] = ()
    """One sentence for each cut output and for omitted files."""


@dataclass(frozen=True, slots=True)
class ActiveIsolation:
    """The isolation level of scripts on this machine."""

    name: LevelName
    why: str
    """Protection of this level, and what a stronger level lacks on this machine."""

    @property
    def is_isolated(self) -> bool:
        """True if the script has no access to the machine's files and network."""
        return self.name != "process"


def isolation_level(wanted: Isolation = "auto") -> ActiveIsolation:
    """The isolation level of scripts. The first call tries it, which takes about 50 ms.

    Args:
        wanted: `auto` takes the strongest level that works.

    Raises:
        ToolError: the requested level does not work here.
    """
    missing = landlock_problem() if wanted != "process" else ""
    if wanted != "process" and not missing:
        return ActiveIsolation("landlock", _ISOLATED)
    if wanted == "landlock":
        raise ToolError(
            f"the isolation 'landlock' does not work here: {missing}; choose 'auto' or 'process'",
            code="E_PRECONDITION_FAILED",
        )
    return ActiveIsolation(
        "process", f"{_NOT_ISOLATED} (landlock: {missing})" if missing else _NOT_ISOLATED
    )


@lru_cache(maxsize=1)
def landlock_problem() -> str:
    """The reason why isolation does not work here; empty if a test script could not escape."""
    if sys.platform != "linux":
        return "this is not Linux"
    from nbagent.sandbox import confinement, supervisor, syscalls  # only where there is fork

    offered = confinement.landlock_abi() and supervisor.TELLS_CHILDREN
    if not offered or os.uname().machine not in syscalls.ARCHES:
        return "the kernel or the processor does not offer what it takes"
    with tempfile.TemporaryDirectory(prefix="nbagent-probe-") as folder:
        outside, inside = Path(folder) / "outside", Path(folder) / "inside"
        outside.touch()
        inside.mkdir()
        limits = ScriptLimits(timeout_s=10.0)
        job = ScriptJob(text=_PROBE, args=(str(outside),), cwd=inside, limits=limits)
        try:
            result = _run_at(job, "landlock")
        except NbagentError as error:
            return error.message
    output = " ".join(result.stdout.split() or [result.stderr[-200:]])
    return "" if output == "tried" else f"a script that tried to get out says {output!r}"


def run_script(job: ScriptJob, *, stop: CancelToken | None = None) -> ScriptResult:
    """Run a script in isolation and wait for it; call this in a worker thread.

    Whatever the script does, there is a result. Afterwards no process that it started is alive, on
    systems that can tell (Linux).

    Raises:
        ToolError: nothing was run: the requested isolation does not work here, Python does not
            start, or the machine has no space left.
    """
    try:
        return _run_at(job, isolation_level(job.isolation).name, stop)
    except OSError as error:
        why = error.strerror or type(error).__name__  # the error's text has a host path
        raise ToolError(f"the script was not run: {why}", code="E_PRECONDITION_FAILED") from error


def _run_at(job: ScriptJob, level: LevelName, stop: CancelToken | None = None) -> ScriptResult:
    python, limits = interpreter(), job.limits
    with workspace() as folder:
        job = in_copy(job, folder)
        began = time.monotonic()
        process_result = run_at(job, level, folder, python, stop or CancelToken())
        duration_ms = round((time.monotonic() - began) * 1000, 1)
        if process_result.setup_error:
            raise ToolError(
                f"the script was not run: its isolation ({level}) could not be set up: "
                f"{process_result.setup_error}",
                code="E_PRECONDITION_FAILED",
            )
        files, left_out = collect(
            folder / "out",
            keep_to=job.keep_to,
            max_files=limits.collected_files,
            max_bytes=limits.disk_bytes,
        )
    ended = process_result.ended_by or _limit_met(process_result)
    cut = [
        f"{output.cut_bytes:,} bytes were cut from the middle of {name}"
        for name, output in (("stdout", process_result.stdout), ("stderr", process_result.stderr))
        if output.cut_bytes
    ]
    path_names = _path_names(job.cwd, folder, python)
    return ScriptResult(
        stdout=_replace_paths(process_result.stdout.text, path_names),
        stderr=_replace_paths(process_result.stderr.text, path_names),
        returncode=process_result.returncode,
        timed_out=ended == "deadline",
        duration_ms=duration_ms,
        isolation=level,
        ended_by=ended,
        files=files,
        notes=(*cut, *left_out),
    )


_LIMIT_ERRORS: tuple[tuple[str, LimitHit], ...] = (
    (r"MemoryError|std::bad_alloc|OSError: \[Errno 12\]", "memory"),
    (r"BlockingIOError: \[Errno 11\]|RuntimeError: can't start new thread", "processes"),
    (r"OSError: \[Errno (27|24)\]", "files"),
)


def _limit_met(result: ProcessResult) -> LimitHit:
    """The limit that a failed script exceeded, recognised by its last line."""
    if result.returncode == -getattr(signal, "SIGXFSZ", 25):
        return "files"
    last = result.stderr.text.rstrip().rpartition("\n")[2]
    for pattern, ended in _LIMIT_ERRORS:
        if result.returncode and re.match(pattern, last):
            return ended
    return ""


def _path_names(cwd: Path, workspace: Path, python: Interpreter) -> dict[str, str]:
    """Folders of this machine, with the names that the script's output shows instead.

    Folders directly below the root have common names (`/tmp`, `/opt`) and are not replaced.
    """
    above = enumerate(cwd.parents, 1)
    return {
        **{str(folder): "/".join([".."] * n) for n, folder in above if len(folder.parts) > 2},
        **dict(python.path_names),
        str(workspace): "<script>",
        str(workspace / "out"): "$OUTPUT_DIR",
        str(workspace / "tmp"): "$TMPDIR",
        str(cwd): ".",
    }


def _replace_paths(text: str, path_names: Mapping[str, str]) -> str:
    inner_first = sorted((path for path in path_names if len(path) > 1), key=len, reverse=True)
    whole = rf"(?<!\w)({'|'.join(map(re.escape, inner_first))})(?![\w-])"
    return re.sub(whole, lambda match: path_names[match[1]], text)
