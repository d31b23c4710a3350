"""How a script is started: its file, its command line, its environment, and the plan made of them.

Starts nothing itself.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from pathlib import Path

from nbagent.contracts.errors import ToolError
from nbagent.sandbox.grants import Grant, Interpreter, bubblewrap_flags
from nbagent.sandbox.order import LevelName, ScriptOrder
from nbagent.sandbox.plan import Plan

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
_boot(*{values!r})
"""
"""Folders of the script come last on its path: they can add modules and replace none."""

_MOST_THREADS = 8
_THREADS = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS"),
    *("POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
)
_PASSED = (
    *("TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    # Windows programs do not start without these.
    *("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "NUMBER_OF_PROCESSORS"),
)


def script_file(order: ScriptOrder, place: Path) -> Path:
    """Where the script is read from: the file given, or the text in a file of its own."""
    if order.text is None:
        if order.file is None:
            raise ToolError("there is no script to run", code="E_INVALID_ARGUMENTS")
        return order.file
    file = place / "script.py"
    text = order.text
    file.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    return file


def command_of(order: ScriptOrder, file: Path, python: Interpreter) -> list[str]:
    """The interpreter, shut off from its environment and the current folder, and the script."""
    late = [str(order.cwd)]
    if order.file is not None and order.file.parent != order.cwd:
        late.insert(0, str(order.file.parent))
    values = (
        str(file),
        str(order.file or file),
        list(python.site_folders),
        list(python.extra_path),
        late,
    )
    boot = _BOOT.replace("{values!r}", repr(values))
    for argument in order.args:
        if "\0" in argument:
            raise ToolError("an argument holds a NUL character", code="E_INVALID_ARGUMENTS")
    return [python.executable, "-I", "-B", "-u", "-X", "utf8", "-c", boot, *order.args]


def environment_of(order: ScriptOrder, place: Path, python: Interpreter) -> dict[str, str]:
    """A fresh environment; of this process's only what programs need to start."""
    tmp, out = str(place / "tmp"), str(place / "out")
    threads = str(min(_MOST_THREADS, os.cpu_count() or 1))
    beside = str(Path(python.executable).parent)
    system = "/usr/local/bin:/usr/bin:/bin"
    if os.name != "posix":
        system = os.path.join(os.environ.get("SYSTEMROOT", ""), "System32")
    made = {
        **{name: os.environ[name] for name in _PASSED if name in os.environ},
        "PATH": os.pathsep.join([beside, system]),
        "HOME": tmp,
        "USERPROFILE": tmp,
        "USER": "script",
        "LOGNAME": "script",
        "TMPDIR": tmp,
        "TMP": tmp,
        "TEMP": tmp,
        "OUTPUT_DIR": out,
        "SKILL_DIR": str(order.cwd),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "MPLBACKEND": "Agg",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        **dict.fromkeys(_THREADS, threads),
    }
    return {**made, **order.env}


def plan_of(
    order: ScriptOrder,
    place: Path,
    file: Path,
    python: Interpreter,
    env: dict[str, str],
    level: LevelName,
    abi: int | None,
) -> Plan:
    """All that the supervisor is told."""
    limits = order.limits
    write = (str(place / "out"), str(place / "tmp"))
    readable = tuple(os.path.realpath(p) for p in (order.cwd, file, *order.readable))
    grants: tuple[Grant, ...] = (*python.grants, *((path, "tree") for path in readable))
    argv = command_of(order, file, python)
    if level == "bubblewrap":
        argv = _in_bubblewrap(argv, grants, write, order)
    return Plan(
        argv=argv,
        env=env,
        cwd=os.path.realpath(order.cwd),
        timeout_s=float(limits.timeout_s),
        memory_bytes=limits.memory_bytes,
        processes=limits.processes,
        disk_bytes=limits.disk_bytes,
        disk_entries=limits.disk_entries,
        folders=list(write),
        rlimits={
            "CORE": 0,
            "FSIZE": limits.file_bytes,
            "NOFILE": limits.open_files,
            "DATA": limits.memory_bytes,
            # Address space is not memory: threads and libraries reserve much that they never use.
            "AS": 4 * limits.memory_bytes + (2 << 30),
            "MSGQUEUE": 0,
            "CPU": math.ceil(limits.timeout_s) * (os.cpu_count() or 1) + 5,
        },
        landlock=level == "landlock",
        abi=_abi(abi) if level == "landlock" else 0,
        grants=[*grants, *((path, "write") for path in write)],
        offers_filter=level == "bubblewrap",
        # As another user, bubblewrap would need what it then lacks.
        leave_root=level != "bubblewrap" and hasattr(os, "getuid") and os.getuid() == 0,
    )


def _abi(wanted: int | None) -> int:
    if sys.platform != "linux":
        return 0
    from nbagent.sandbox.walls import landlock_abi

    there = landlock_abi()
    return there if wanted is None else min(wanted, there)


def _in_bubblewrap(
    argv: list[str], grants: tuple[Grant, ...], write: tuple[str, ...], order: ScriptOrder
) -> list[str]:
    program = shutil.which("bwrap")
    if program is None:
        raise ToolError(
            "bubblewrap is not installed; install it or choose another isolation",
            code="E_PRECONDITION_FAILED",
        )
    flags = bubblewrap_flags(grants, write, write[1])
    folder = os.path.realpath(order.cwd)
    return [program, *flags, "--chdir", folder, "--seccomp", "9", "--", *argv]
