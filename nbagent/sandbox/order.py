"""What is asked of a script run and what comes back. Plain frozen values; nothing runs here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Wanted = Literal["auto", "landlock", "bubblewrap", "process"]
LevelName = Literal["landlock", "bubblewrap", "process"]
EndedBy = Literal["", "deadline", "stopped", "output", "memory", "processes", "files", "lost"]
"""What ended a script beside itself. `files`: file size, disk space or number of files; `lost`: the
script ended the process that watched it."""

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLimits:
    """How much a script may take."""

    timeout_s: float = 120.0
    memory_bytes: int = 2_000_000_000
    """Of all its processes together."""
    processes: int = 64
    """Alive at one time."""
    open_files: int = 512
    file_bytes: int = 256 * _MIB
    """The largest file it can write."""
    disk_bytes: int = 512 * _MIB
    """All that lies in its output and temporary folders."""
    disk_entries: int = 10_000
    """Files and folders in them."""
    output_bytes: int = 200_000
    """Of stdout and of stderr each; what is more is cut from the middle."""
    flood_bytes: int = 16 * _MIB
    """Of stdout and stderr together; there the script is ended."""
    collected_files: int = 100
    collected_bytes: int = 128 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOrder:
    """One script to run."""

    text: str | bytes | None = None
    """The script; None reads it from `file`."""
    file: Path | None = None
    """The file that it is, or passes for where `text` is given too: its name and folder."""
    args: tuple[str, ...] = ()
    cwd: Path
    """Where it runs; readable, not writable at the isolated levels."""
    readable: tuple[Path, ...] = ()
    """Further files and folders that it may read."""
    keep_to: Path | None = None
    """A folder for the files that it wrote; None throws them away."""
    limits: ScriptLimits = ScriptLimits()
    isolation: Wanted = "auto"
    python: str | None = None
    """The interpreter; the running one by default."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further variables; nothing else of this process's environment is passed on."""
    on_output: Callable[[str], object] = lambda line: None
    """Told the last line that it wrote, now and then while it runs."""


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """A file that the script left in its output folder."""

    name: str
    """Relative, with slashes."""
    size_bytes: int
    path: Path | None = None
    """Where it was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptResult:
    """How a script ended, and what it said and left."""

    stdout: str
    stderr: str
    returncode: int | None
    """Negative: ended by that signal. None: it was never known."""
    timed_out: bool
    duration_ms: float
    isolation: LevelName
    ended_by: EndedBy = ""
    files: tuple[ScriptFile, ...] = ()
    notes: tuple[str, ...] = ()
    """What was cut or ended, each in one sentence."""
    places: tuple[tuple[str, str], ...] = ()
    """Folders of this machine that its texts may name: (path, what to call it)."""


@dataclass(frozen=True, slots=True)
class ActiveIsolation:
    """The level that a script would run at."""

    name: LevelName
    why: str
    """What it stops and, where it is not the strongest, what is missing here."""

    @property
    def is_isolated(self) -> bool:
        """Whether files and network of the machine are closed to the script."""
        return self.name != "process"
