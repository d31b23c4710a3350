"""What an isolated script may read: the interpreter, its packages, and the system's libraries.

Owns the list and how the running Python's packages are found. Which kernel feature enforces the
list is none of its business.
"""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nbagent.contracts.errors import ToolError

Grant = tuple[str, str]
"""A path and a key of `walls.RIGHTS`."""

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld-musl-x86_64.path"),
    *("/etc/alternatives", "/etc/localtime", "/etc/timezone", "/etc/passwd", "/etc/group"),
    *("/etc/nsswitch.conf", "/etc/os-release", "/etc/lsb-release", "/etc/debian_version"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/ca-trust"),
    *("/etc/ca-certificates", "/etc/fonts", "/etc/mime.types", "/etc/magic", "/etc/locale.alias"),
    *("/etc/libreoffice", "/etc/java-17-openjdk", "/etc/java-21-openjdk", "/var/cache/fontconfig"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/loadavg"),
    *("/proc/uptime", "/proc/filesystems", "/proc/sys/kernel", "/proc/sys/vm"),
    *("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup"),
    *("/sys/kernel/mm/transparent_hugepage", "/dev/urandom", "/dev/random"),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full")
_OF_A_PREFIX = ("bin", "lib", "lib32", "lib64", "libexec", "include", "share", "ssl", "pyvenv.cfg")
"""Not the folder itself: a prefix may be a home folder, or hold a pip.conf with a password."""
_PACKAGES = ("site-packages", "dist-packages")
_MOST_ENTRIES = 2000
_PROBE = """
import json, sys
maps = [m.MAPPING for n, m in list(sys.modules.items())
        if n.startswith("__editable__") and isinstance(getattr(m, "MAPPING", None), dict)]
print(json.dumps({"path": sys.path, "mapped": [str(p) for m in maps for p in m.values()],
    "prefixes": [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]}))
"""
_PROBE_S = 30.0


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python and where its packages lie."""

    executable: str
    extra_path: tuple[str, ...]
    """Folders that the running kernel imports from and that `-I` leaves out."""
    site_folders: tuple[str, ...]
    """The same, with .pth files of their own."""
    grants: tuple[Grant, ...]
    places: tuple[tuple[str, str], ...]
    """Folders that tracebacks may name, and what to call them."""


_known: dict[tuple[str, str, float], Interpreter] = {}
_lock = threading.Lock()


def interpreter(python: str | None) -> Interpreter:
    """The interpreter that scripts run with; looked at anew after packages were installed.

    Raises:
        ToolError: it cannot be started.
    """
    executable = python or sys.executable
    if not executable:
        raise ToolError(
            "scripts cannot be run: this Python does not know its own program; set python=…",
            code="E_PRECONDITION_FAILED",
        )
    key = (executable, os.environ.get("PYTHONPATH", ""), _packages_changed())
    with _lock:
        if key not in _known:
            _known[key] = _look(executable, own=python is None or python == sys.executable)
        return _known[key]


def _packages_changed() -> float:
    """When something was last installed or removed where this process looks for packages."""
    latest = 0.0
    for path in sys.path:
        if path.endswith(_PACKAGES):
            with suppress(OSError):
                latest = max(latest, os.stat(path).st_mtime)
    return latest


def _look(executable: str, *, own: bool) -> Interpreter:
    try:
        found = subprocess.run(
            [executable, "-I", "-c", _PROBE],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_PROBE_S,
            check=True,
        )
        facts = json.loads(found.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise ToolError(
            f"scripts cannot be run: their Python does not start ({type(error).__name__})",
            code="E_PRECONDITION_FAILED",
        ) from error
    sites, extra = _of_the_kernel() if own else ((), ())
    prefixes = tuple(dict.fromkeys(facts["prefixes"]))
    grants = [
        *((path, "tree") for path in _SYSTEM),
        *((path, "device") for path in _DEVICES),
        *((f"{prefix}/{name}", "tree") for prefix in prefixes for name in _OF_A_PREFIX),
        *((path, "tree") for path in sites),
        *_library_folders(),
    ]
    for path in (*facts["path"], *extra):
        if not any(_within(path, f"{p}/{name}") for p in prefixes for name in _OF_A_PREFIX):
            grants += [(path, "tree")] if path.endswith(_PACKAGES) else _importable(path)
    grants += ((path, "tree") for path in facts["mapped"])
    return Interpreter(
        executable,
        tuple(extra),
        tuple(sites),
        tuple(dict.fromkeys(grants)),
        tuple(_named(prefixes, (*facts["path"], *sites, *extra))),
    )


def _of_the_kernel() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Folders with .pth files, and others, that this process imports from in spite of `-I`."""
    user = site.getusersitepackages() if site.ENABLE_USER_SITE else ""
    sites = (user,) if user in sys.path and os.path.isdir(user) else ()
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return sites, tuple(path for path in given if os.path.isabs(path) and os.path.isdir(path))


def _library_folders() -> Iterator[Grant]:
    for path in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if os.path.isabs(path):
            yield path, "tree"


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _importable(folder: str) -> Iterator[Grant]:
    """The packages and modules of a source folder, and not what else a project keeps there."""
    if os.path.isfile(folder):
        yield folder, "tree"
        return
    yield folder, "names"
    try:
        with os.scandir(folder) as found:
            entries = [entry for entry, _ in zip(found, range(_MOST_ENTRIES), strict=False)]
    except OSError:
        return
    for entry in entries:
        name = entry.name
        if name.startswith("."):
            continue
        code = name.endswith((".py", ".so", ".pyd", ".dist-info", ".egg-info"))
        if code or (name.isidentifier() and _has_code(entry.path)):
            yield entry.path, "tree"


def _has_code(folder: str) -> bool:
    try:
        with os.scandir(folder) as found:
            return any(entry.name.endswith((".py", ".so", ".pyd")) for entry in found)
    except OSError:
        return False


def _named(prefixes: tuple[str, ...], folders: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for path in folders:
        if os.path.isdir(path):
            yield path, "<packages>" if path.endswith(_PACKAGES) else "<python>"
    for prefix in prefixes:
        yield prefix, "<python>"
    yield str(Path.home()), "~"


def bubblewrap_flags(grants: tuple[Grant, ...], write: tuple[str, ...], tmp: str) -> list[str]:
    """The same list as arguments of `bwrap`."""
    flags = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    flags += ["--proc", "/proc", "--dev", "/dev", "--bind", f"{tmp}/shm", "/dev/shm"]
    flags += ["--remount-ro", "/dev", "--bind", tmp, "/tmp"]
    for path, kind in grants:
        if kind == "tree" and not path.startswith(("/proc", "/dev")):
            flags += ["--ro-bind-try", path, path]
    for path in write:
        flags += ["--bind", path, path]
    return flags
