"""What nbagent knows of the kernel that it runs in: facts, its present cell, its loop.

Whatever is missing in a kernel reads as "not there" and never raises. The ways of messages are
in `comms`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, cast

from IPython.core.getipython import get_ipython

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ToolError
from nbagent.notebook.comms import clicks_arrive_by, install_tap, this_kernel
from nbagent.runtime import use_nested_runner
from nbagent.session.frontend import Cell

_CLICKS = {
    "tap": "arrive while a cell runs, also during a synchronous tool (tap)",
    "pump": "arrive while a cell waits, between two synchronous tools (pump)",
    "none": "arrive after the cell; interrupt the kernel to stop a run",
}


def in_kernel() -> bool:
    """Whether this process is a Jupyter kernel."""
    return this_kernel() is not None


def prepare() -> None:
    """Let runs in this kernel see clicks at once, and let async tools run on its loop."""
    if in_kernel():
        use_nested_runner(run_nested)
        install_tap()


def allow_stdin() -> bool:
    """Whether `input()` reaches a person from the cell that runs now."""
    return bool(_parent("content").get("allow_stdin"))


def is_headless() -> bool:
    """Whether nobody looks on: nbclient, papermill and nbval run cells without stdin.

    A message of a widget, on the other hand, comes from a front end.
    """
    kind = _parent("header").get("msg_type")
    return in_kernel() and (kind is None or (kind == "execute_request" and not allow_stdin()))


def cell() -> Cell:
    """The cell that runs now, as far as the front end tells."""
    metadata = _parent("metadata")
    cell_id = metadata.get("cellId") or metadata.get("cell_id")  # JupyterLab, VS Code, …
    shell = get_ipython()
    # The shell's own count is raised before or after the cell, as its version has it.
    cells = getattr(getattr(shell, "history_manager", None), "input_hist_parsed", None)
    # Set by jupyter_server >= 2 for a session's kernel; the other one by VS Code.
    names: dict[str, Any] = getattr(shell, "user_ns", {})
    path = os.environ.get("JPY_SESSION_NAME") or names.get("__vsc_ipynb_file__")
    return Cell(
        cell_id=cell_id if isinstance(cell_id, str) else None,
        execution_count=len(cells) - 1 if isinstance(cells, list) and len(cells) > 1 else None,
        notebook=str(path) if path else None,
    )


def execution_id() -> str | None:
    """Tells one execution of a cell from the next; None outside of IPython."""
    shell = get_ipython()
    if shell is None:
        return None
    if in_kernel():
        found = _parent("header").get("msg_id")
        return found if isinstance(found, str) else None
    return f"in-{getattr(shell, 'execution_count', 0)}"


def main_loop() -> asyncio.AbstractEventLoop | None:
    """The loop of the kernel's main thread, on which an idle kernel can be given work."""
    loop = getattr(getattr(this_kernel(), "io_loop", None), "asyncio_loop", None)
    return loop if isinstance(loop, asyncio.AbstractEventLoop) else None


def run_nested(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end on the loop that is running in this thread.

    Raises:
        ToolError: the loop cannot be entered again (uvloop).
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, asyncio.BaseEventLoop):
        work.close()
        raise ToolError(
            f"the notebook's event loop is {type(loop).__module__}, which cannot be entered "
            "again; start the run with `await agent.arun(...)`, or leave out loop='notebook'",
            code="E_PRECONDITION_FAILED",
        )
    # Imported when first needed: it replaces parts of asyncio.
    import nest_asyncio2

    nest_asyncio2.apply(loop)
    task = loop.create_task(work)
    # An interrupt leaves the loop at once; asyncio would complain later that nobody saw it.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return loop.run_until_complete(task)


def kernel_facts() -> dict[str, str]:
    """For `%agent doctor`: what was found here, and what it means."""
    if not in_kernel():
        where = "none (terminal IPython)" if get_ipython() is not None else "none"
        return {"kernel": where, "clicks": "none: there is no front end", "stop": "Ctrl-C"}
    loop = main_loop()
    interrupts = "■ stops a run and interrupts its synchronous tool; twice gets out at once"
    if sys.platform == "win32":
        interrupts = "■ stops a run; a synchronous tool that sleeps ends when it wakes (Windows)"
    facts = {
        "kernel": type(this_kernel()).__name__,
        "clicks": _CLICKS[clicks_arrive_by()],
        "stdin": "input() reaches you" if allow_stdin() else "no input() here (headless)",
        "interrupts": interrupts,
        "loop": "unknown" if loop is None else f"{type(loop).__module__}.{type(loop).__name__}",
    }
    if loop is not None and not isinstance(loop, asyncio.BaseEventLoop):
        facts["loop"] += ": loop='notebook' tools need `await agent.arun(...)`"
    if "nest_asyncio" in sys.modules:
        facts["warning"] = "nest_asyncio is loaded: it loses clicks on ipykernel 7; leave it out"
    return facts


def _parent(part: str) -> dict[str, Any]:
    """A part of the message that the kernel works at; empty where there is none."""
    with suppress(Exception):
        message = cast("Any", this_kernel()).get_parent("shell")
        return json_object(message[part]) or {}
    return {}
