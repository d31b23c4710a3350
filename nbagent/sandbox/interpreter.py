"""The Python of a script: its packages, command line, environment and readable files.

Finds the packages of the running Python. `confinement` enforces the list of readable files.
"""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from nbagent.contracts.errors import ToolError

Grant = tuple[str, str]
"""A path and a key of `confinement.RIGHTS`."""

_SYSTEM_PATHS = (
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
_PREFIX_FOLDERS = (
    "bin",
    "lib",
    "lib32",
    "lib64",
    "libexec",
    "include",
    "share",
    "ssl",
    "pyvenv.cfg",
)
"""Only these folders of a prefix: it may be a home folder, or hold a pip.conf with a password."""
_PACKAGES = ("site-packages", "dist-packages")
_CODE = (".py", ".so", ".pyd")
_MAX_ENTRIES = 2000
_PROBE = """
import json, sys
maps = [m.MAPPING for n, m in list(sys.modules.items())
        if n.startswith("__editable__") and isinstance(getattr(m, "MAPPING", None), dict)]
print(json.dumps({"path": sys.path, "mapped": [str(p) for m in maps for p in m.values()],
    "prefixes": [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]}))
"""
_BOOT = """
def _boot(source, name, sites, extra, late):
    import sys
    sys.argv = [name, *sys.argv[1:]]
    if sites:
        import site
        for path in sites:
            site.addsitedir(path)
    places = [at for at, path in enumerate(sys.path) if path.endswith("-packages")]
    at = places[0] if places else len(sys.path)
    sys.path[at:at] = [path for path in extra if path not in sys.path]
    sys.path += late

    def hook(kind, error, trace):
        while trace is not None and trace.tb_frame.f_code.co_filename == "<string>":
            trace = trace.tb_next
        sys.__excepthook__(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook
    with open(source, "rb") as file:
        code = compile(file.read(), name, "exec", dont_inherit=True)
    space = sys.modules["__main__"].__dict__
    del space["_boot"]
    space["__file__"] = name
    exec(code, space)
"""
"""Folders of the script come last on its path: they can add modules and replace none."""
LOADER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Variables without which an interpreter may not start."""
_PASSED = (
    *("TZ", *LOADER),
    # Windows programs do not start without these.
    *("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "NUMBER_OF_PROCESSORS"),
)
_THREADS = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS"),
    *("POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
)
_MAX_THREADS = 8


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python and the folders of its packages."""

    executable: str
    extra_path: tuple[str, ...]
    """Folders that the running kernel imports from and that `-I` leaves out."""
    site_folders: tuple[str, ...]
    """Such folders with .pth files."""
    grants: tuple[Grant, ...]
    path_names: tuple[tuple[str, str], ...]
    """Folders in tracebacks, with the names to show instead."""

    def command(
        self, source: Path, name: Path, folders: Iterable[Path], args: Iterable[str]
    ) -> list[str]:
        """Command line of a script, independent of this process's environment and folder.

        Python reads the script from `source`, shows `name` as its file, and also imports from
        `folders`.
        """
        late = list(map(str, folders))
        arguments = (str(source), str(name), self.site_folders, self.extra_path, late)
        boot = f"{_BOOT}_boot(*{arguments!r})\n"
        # -I: nothing of the environment or folder; -u: no output is lost in a buffer at a kill.
        return [self.executable, "-I", "-B", "-u", "-X", "utf8", "-c", boot, *args]

    def environment(self, workspace: Path, folder: Path) -> dict[str, str]:
        """A new environment; from this process only the variables that programs need to start."""
        tmp = str(workspace / "tmp")
        system = "/usr/local/bin:/usr/bin:/bin"
        if os.name != "posix":
            system = os.path.join(os.environ.get("SYSTEMROOT", ""), "System32")
        return {
            **{name: os.environ[name] for name in _PASSED if name in os.environ},
            "PATH": os.pathsep.join([os.path.dirname(self.executable), system]),
            **dict.fromkeys(("HOME", "USERPROFILE", "TMPDIR", "TMP", "TEMP"), tmp),
            **dict.fromkeys(("USER", "LOGNAME"), "script"),
            "OUTPUT_DIR": str(workspace / "out"),
            "SKILL_DIR": str(folder),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            "MPLBACKEND": "Agg",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONNOUSERSITE": "1",
            **dict.fromkeys(_THREADS, str(min(_MAX_THREADS, os.cpu_count() or 1))),
        }


def interpreter() -> Interpreter:
    """The Python of this process.

    Raises:
        ToolError: it cannot be started.
    """
    return _inspect_python(sys.executable or "", os.environ.get("PYTHONPATH", ""))


@lru_cache(maxsize=4)
def _inspect_python(executable: str, python_path: str) -> Interpreter:
    try:
        process = subprocess.run(
            [executable, "-I", "-c", _PROBE],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=30.0,
            check=True,
        )
        facts = json.loads(process.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise ToolError(
            f"scripts cannot be run: their Python, sys.executable, does not start "
            f"({type(error).__name__})",
            code="E_PRECONDITION_FAILED",
        ) from error
    # `-I` removes the user's packages and PYTHONPATH, but the notebook imports from them, and a
    # script should have the same packages.
    user = site.getusersitepackages() if site.ENABLE_USER_SITE else ""
    sites = (user,) if user in sys.path and os.path.isdir(user) else ()
    extra = tuple(p for p in python_path.split(os.pathsep) if os.path.isabs(p) and os.path.isdir(p))
    prefixes = tuple(dict.fromkeys(facts["prefixes"]))
    of_prefixes = [f"{prefix}/{name}" for prefix in prefixes for name in _PREFIX_FOLDERS]
    libraries = os.environ.get(LOADER[0], "").split(os.pathsep)
    trees = [
        *_SYSTEM_PATHS,
        *of_prefixes,
        *sites,
        *filter(os.path.isabs, libraries),
        *facts["mapped"],
    ]
    grants = [*((path, "tree") for path in trees), *((path, "device") for path in _DEVICES)]
    for path in (*facts["path"], *extra):
        if not any(f"{path}/".startswith(f"{folder}/") for folder in of_prefixes):
            grants += [(path, "tree")] if path.endswith(_PACKAGES) else _importable(path)
    folders = filter(os.path.isdir, (*facts["path"], *sites, *extra))
    places = (
        *((path, "<packages>" if path.endswith(_PACKAGES) else "<python>") for path in folders),
        *((prefix, "<python>") for prefix in prefixes),
        (str(Path.home()), "~"),
    )
    return Interpreter(executable, extra, sites, tuple(dict.fromkeys(grants)), places)


def _importable(folder: str) -> Iterator[Grant]:
    """Packages and modules of a source folder, without other files of a project."""
    if os.path.isfile(folder):
        yield folder, "tree"
        return
    yield folder, "names"
    for name in _some_names(folder):
        path = os.path.join(folder, name)
        code = name.endswith((*_CODE, ".dist-info", ".egg-info"))
        package = name.isidentifier() and any(n.endswith(_CODE) for n in _some_names(path))
        if not name.startswith(".") and (code or package):
            yield path, "tree"


def _some_names(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, _MAX_ENTRIES)]
    except OSError:
        return []
