"""A real kernel for tests: runs cells one after the other and gives back what each one showed.

Headless by default, like nbclient; `stdin=True` runs a cell as a front end would.
"""

# jupyter_client's methods have no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
import queue
import signal
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

_KEYS = ("LLM_", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_", "DEEPSEEK_", "AZURE_", "NBAGENT_")


def clean_environment(folder: Path, **more: str) -> dict[str, str]:
    """An environment without keys, with a store and an IPython of its own under `folder`."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(_KEYS)}
    # Otherwise each process of a test compiles all of nbagent again.
    plain.pop("PYTHONDONTWRITEBYTECODE", None)
    own = {
        "NBAGENT_HOME": str(folder / "nbagent-home"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_DATA_HOME": str(folder / "data"),
        "NBAGENT_OFFLINE_DELAY_MS": "0",
        "IPYTHONDIR": str(folder / "ipython"),
        "OLLAMA_HOST": "127.0.0.1:1",
        # A debugger's warning about frozen modules goes to stderr otherwise.
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    return {**plain, **own, **more}


@dataclass
class Cell:
    """Output of one execution of a cell."""

    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list[Any])
    """Type and content of each iopub message, in order, without the status ones."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The contents of one type: `stream`, `display_data`, `execute_result`, …"""
        return [content for name, content in self.messages if name == kind]

    @property
    def kinds(self) -> list[str]:
        """The types, in order."""
        return [name for name, _ in self.messages]

    @property
    def printed(self) -> str:
        """Printed text, stderr included."""
        return "".join(str(content["text"]) for content in self.of("stream"))

    @property
    def error(self) -> dict[str, Any] | None:
        """`ename`, `evalue`, `traceback` of the error, if there was one."""
        errors = self.of("error")
        return errors[0] if errors else None


VIEW = "application/vnd.jupyter.widget-view+json"


class FakePage:
    """A page of a front end, as far as a kernel sees it.

    It shows a widget (`ready`) and replaces it when an update of its display comes (`closed`).
    """

    def __init__(
        self,
        kernel: LiveKernel,
        *,
        shows: bool = True,
        applies: bool = True,
        times: int = 1,
        closes_first: bool = False,
        number: int = 1,
    ) -> None:
        """Show and apply what this page can.

        Args:
            kernel: the kernel.
            shows: False has no widgets.
            applies: False ignores updates.
            times: says each thing so often.
            closes_first: says that a view is gone before it says that there is one.
            number: id of its views.
        """
        self.kernel, self.shows, self.applies, self.number = kernel, shows, applies, number
        self.times, self.closes_first = times, closes_first
        self.views: dict[str, str] = {}
        """Model ids of the widgets that it shows, by display."""

    def read(self, message: dict[str, Any]) -> None:
        """Show a display, or apply an update of one."""
        kind, content = message["msg_type"], message["content"]
        if kind not in ("display_data", "update_display_data") or not self.shows:
            return
        display = content.get("transient", {}).get("display_id", "")
        view, old = content["data"].get(VIEW, {}).get("model_id"), self.views.get(display)
        if kind == "update_display_data" and not (self.applies and old):
            return
        if old and old != view:
            del self.views[display]
            self._say(old, "closed")
        if view and view != old:
            self.views[display] = view
            if self.closes_first:
                self._say(view, "closed")
            self._say(view, "ready")

    def _say(self, view: str, kind: str) -> None:
        for _ in range(self.times):
            self.kernel.say(view, kind=kind, page=self.number)


class LiveKernel:
    """A kernel at work in a folder, and a client that reads what its cells show."""

    def __init__(
        self,
        folder: Path,
        *,
        python: str = sys.executable,
        kernel_id: str | None = None,
        **environment: str,
    ) -> None:
        self.page: FakePage | None = None
        """The page that shows what is displayed; None if there is none."""
        self.manager = KernelManager()
        if kernel_id is not None:
            # As a Jupyter server names it.
            self.manager.connection_file = str(folder / f"kernel-{kernel_id}.json")
        self.manager._kernel_spec = KernelSpec(  # pyright: ignore[reportPrivateUsage]
            argv=[python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            display_name="test",
            language="python",
        )
        self.manager.start_kernel(cwd=str(folder), env=clean_environment(folder, **environment))
        self.client: BlockingKernelClient = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def send(self, code: str, *, cell_id: str | None = None, stdin: bool = False) -> str:
        """Queue a cell; returns the id of its request."""
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": stdin,
            "stop_on_error": False,
        }
        message = self.client.session.msg("execute_request", content)
        message["metadata"] = {} if cell_id is None else {"cellId": cell_id}
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def new_session(self) -> None:
        """Be another front end from now on, of which the kernel knows nothing."""
        self.client.session.session = uuid.uuid4().hex

    def finish(self, msg_id: str, timeout: float = 60) -> Cell:
        """Wait until a queued cell is over."""
        cell = Cell()
        while True:
            message = self.client.get_iopub_msg(timeout=timeout)
            if self.page:
                self.page.read(message)
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status":
                if content["execution_state"] == "idle":
                    return cell
            elif kind != "execute_input":
                cell.messages.append((kind, content))

    def reply_to(self, msg_id: str) -> dict[str, Any]:
        """Reply of the kernel: `status`, and `ename`, `evalue` of an error."""
        while True:
            message = self.client.get_shell_msg(timeout=20)
            if message["parent_header"].get("msg_id") == msg_id:
                return message["content"]

    def run(
        self,
        code: str,
        *,
        cell_id: str | None = None,
        stdin: bool = False,
        fails: bool = False,
        page: FakePage | None = None,
    ) -> Cell:
        """Run a cell; an error of it is an error here, unless `fails` says that it shall fail.

        With `page`, the cell is run by a front end with that page.
        """
        before, self.page = self.page, page or self.page
        try:
            cell = self.finish(self.send(code, cell_id=cell_id, stdin=stdin or page is not None))
        finally:
            self.page = before
        if (cell.error is not None) != fails:
            raise AssertionError(cell.error or f"the cell did not fail: {code}")
        return cell

    def value(self, expression: str) -> Any:
        """The value of an expression in the kernel, as far as its repr can be read back."""
        return eval(self.run(f"print(repr({expression}))").printed)

    def say(self, comm: str, subshell: str | None = None, **content: Any) -> None:
        """Send a message to a widget, as its page does."""
        data = {"comm_id": comm, "data": {"method": "custom", "content": content}}
        message = self.client.session.msg("comm_msg", data)
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)

    def heard(self, wanted: Callable[[Any], object], within_s: float = 20) -> list[Any]:
        """The messages on iopub until one is wanted."""
        end, found = time.monotonic() + within_s, list[Any]()
        while time.monotonic() < end:
            with suppress(queue.Empty):
                found.append(self.client.get_iopub_msg(timeout=0.5))
                if self.page:
                    self.page.read(found[-1])
                if wanted(found[-1]):
                    return found
        raise AssertionError(f"it did not happen; the last messages: {found[-3:]}")

    def kill(self) -> None:
        """End the kernel's process at once, as a crash would."""
        process: Any = self.manager.provisioner
        os.kill(process.pid, signal.SIGKILL)
        process.process.wait()

    def close(self) -> None:
        """Shut down and let go of everything."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        self.client.context.term()
