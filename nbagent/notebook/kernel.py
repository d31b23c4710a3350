"""Facts about the kernel that nbagent runs in: its front end, present cell and event loop.

A fact that a kernel does not provide is None, empty or False; nothing here raises for it. Delivery
of messages is in `comms`.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Coroutine
from contextlib import suppress
from functools import cache
from typing import Any, cast

from IPython.core.getipython import get_ipython

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ToolError
from nbagent.notebook.comms import click_delivery, install_tap, this_kernel
from nbagent.runtime import use_nested_runner
from nbagent.session.frontend import Cell
from nbagent.session.notebook_runs import file_id

# Files that other programs name may have one name for all kernels.
_CONNECTION_FILE = re.compile(r"kernel-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.json$")
_CLICK_FACTS = {
    "tap": "arrive while a cell runs, also during a synchronous tool (tap)",
    "pump": "arrive while a cell waits, between two synchronous tools (pump)",
    "none": "arrive after the cell; interrupt the kernel to stop a run",
}


def in_kernel() -> bool:
    """True if this process is a Jupyter kernel."""
    return this_kernel() is not None


def prepare() -> None:
    """Deliver clicks to runs at once, and let async tools run on the kernel's loop."""
    if in_kernel():
        use_nested_runner(run_nested)
        install_tap()


def allow_stdin() -> bool:
    """True if `input()` reaches a person from the cell that runs now."""
    return bool(_parent_message("content").get("allow_stdin"))


def is_headless() -> bool:
    """True if no person is at a front end: nbclient, papermill and nbval run cells without stdin.

    A message that is no execute request, such as one of a widget, does come from a front end.
    """
    kind = _parent_message("header").get("msg_type")
    return in_kernel() and (kind is None or (kind == "execute_request" and not allow_stdin()))


def is_voila() -> bool:
    """True if Voila runs the cells: nobody can type, but a page will show their outputs."""
    server = os.environ.get("SERVER_SOFTWARE", "").startswith("voila/")
    return in_kernel() and (server or any(name.startswith("VOILA_") for name in os.environ))


def page_may_come() -> bool:
    """True if a page may show the outputs of the cell that runs now.

    It is proved only when a page says so; see `page_proof`.
    """
    return in_kernel() and (not is_headless() or is_voila())


def client_session() -> str:
    """Id of the client that sent the message that is handled now; empty if there is none."""
    return str(_parent_message("header").get("session") or "")


def cell() -> Cell:
    """Return the facts that the front end tells about the cell that runs now."""
    metadata = _parent_message("metadata")
    cell_id = metadata.get("cellId") or metadata.get("cell_id")  # JupyterLab, VS Code, …
    shell = get_ipython()
    # Not shell.execution_count: IPython versions raise it before or after the cell.
    cells = getattr(getattr(shell, "history_manager", None), "input_hist_parsed", None)
    # jupyter_server >= 2 sets JPY_SESSION_NAME for a notebook's kernel; VS Code sets the other.
    names: dict[str, Any] = getattr(shell, "user_ns", {})
    path = os.environ.get("JPY_SESSION_NAME") or names.get("__vsc_ipynb_file__")
    return Cell(
        cell_id=cell_id if isinstance(cell_id, str) else None,
        execution_count=len(cells) - 1 if isinstance(cells, list) and len(cells) > 1 else None,
        notebook=str(path) if path else None,
        kernel_id=_kernel_id(),
        file_id=_file_id(str(path)) if path else None,
    )


@cache
def _file_id(path: str) -> str | None:
    # Once: after a rename, another notebook may get the path that this process knows.
    return file_id(path)


def _kernel_id() -> str | None:
    """Id of the kernel on its Jupyter server, which names the connection file after it."""
    app = getattr(this_kernel(), "parent", None)
    match = _CONNECTION_FILE.search(str(getattr(app, "connection_file", "")))
    return match[1] if match else None


def execution_id() -> str | None:
    """Id of the present execution of a cell; None outside of IPython."""
    shell = get_ipython()
    if shell is None:
        return None
    if in_kernel():
        message_id = _parent_message("header").get("msg_id")
        return message_id if isinstance(message_id, str) else None
    return f"in-{getattr(shell, 'execution_count', 0)}"


def main_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of the kernel's main thread; None if there is none."""
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
    # Imported when needed: it patches asyncio. nest_asyncio instead loses clicks on ipykernel 7.4.
    import nest_asyncio2

    nest_asyncio2.apply(loop)
    task = loop.create_task(work)
    # An interrupt leaves the loop at once. Read the exception, or asyncio logs it as unretrieved.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return loop.run_until_complete(task)


def kernel_facts() -> dict[str, str]:
    """Facts about the kernel for `%agent doctor`, by name."""
    if not in_kernel():
        where = "none (terminal IPython)" if get_ipython() is not None else "none"
        return {"kernel": where, "clicks": "none: there is no front end", "stop": "Ctrl-C"}
    loop = main_loop()
    interrupts = "■ stops a run and interrupts its synchronous tool; twice gets out at once"
    if sys.platform == "win32":
        interrupts = "■ stops a run; a synchronous tool that sleeps ends when it wakes (Windows)"
    facts = {
        "kernel": type(this_kernel()).__name__,
        "clicks": _CLICK_FACTS[click_delivery()],
        "stdin": "input() reaches you" if allow_stdin() else "no input() here (headless)",
        "interrupts": interrupts,
        "loop": "unknown" if loop is None else f"{type(loop).__module__}.{type(loop).__name__}",
    }
    if loop is not None and not isinstance(loop, asyncio.BaseEventLoop):
        facts["loop"] += ": loop='notebook' tools need `await agent.arun(...)`"
    if "nest_asyncio" in sys.modules:
        facts["warning"] = "nest_asyncio is loaded: it loses clicks on ipykernel 7; leave it out"
    return facts


def _parent_message(part: str) -> dict[str, Any]:
    """Return a part of the message that the kernel is handling; empty if there is none."""
    with suppress(Exception):
        message = cast("Any", this_kernel()).get_parent("shell")
        return json_object(message[part]) or {}
    return {}
