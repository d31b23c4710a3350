"""A throw-away Jupyter server and notebooks open in its pages, for the browser tests.

One server shows every notebook in JupyterLab and in Notebook 7. A notebook has a folder of its
own, so the runs of another one are not in its store, and what a test opens, it closes.
Owns no expectations: what a person should see stands in the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol

import nbformat
import pytest
from kernels import clean_environment
from notebook_tools import AREA
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Locator,
    Page,
    ViewportSize,
)

App = Literal["lab", "notebook"]
IN_BOTH = pytest.mark.parametrize("app", ["lab", "notebook"])
"""Three tests only, one of each kind: Notebook 7 has JupyterLab's code in a page of its own."""
IN_LAB = pytest.mark.parametrize("app", ["lab", pytest.param("notebook", marks=pytest.mark.proof)])
"""In JupyterLab; in Notebook 7 as a proof."""
OTHER_KERNELS = {
    f"other-{n}": python
    for n, python in enumerate(os.environ.get("NBAGENT_TEST_KERNELS", "").split(os.pathsep))
    if python
}
"""Names and Python executables of kernels with other versions of ipykernel (and nbagent)."""

_SETTINGS: dict[str, dict[str, Any]] = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
    # A saved notebook is what a test saved.
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}
# Otherwise a server starts two processes of node for each page: it looks for extensions to build.
_SERVER_CONFIG = {
    "labconfig/page_config.json": {
        "buildCheck": False,
        "disabledExtensions": {"@jupyterlab/extensionmanager-extension": True},
    },
}
# `current` finds the notebook in both apps; `stops` notes when what ends after a click has ended.
_PAGE = r"""
window.nbt = {
  current() {
    const open = [...window.jupyterapp.shell.widgets("main")];
    return open.find((w) => w.content?.widgets && w.sessionContext) ?? null;
  },
  // A shared document has the name of its drive before the path.
  path() { return this.current().context.path.replace(/^RTC:/, ""); },
  cells() { return this.current().content.widgets.filter((c) => c.model.type === "code"); },
  busy(n) {
    const prompt = this.cells()[n].node.querySelector(".jp-InputPrompt");
    return this.runs[n] !== "done" || !prompt || prompt.textContent.includes("*");
  },
  runs: {},
  run(n) {
    const notebook = this.current().content, cell = this.cells()[n];
    notebook.activeCellIndex = notebook.widgets.indexOf(cell);
    notebook.deselectAll();
    this.runs[n] = "runs";
    const end = () => { this.runs[n] = "done"; };
    window.jupyterapp.commands.execute("notebook:run-cell").then(end, end);
  },
  kernel() { return this.current()?.sessionContext.session?.kernel ?? null; },
  // Nothing is given back: a widget is too large to be sent to the test.
  async open(path) {
    await window.jupyterapp.commands.execute("docmanager:open", { path, factory: "Notebook" });
  },
  closeAll() {
    this.runs = {};
    for (const one of [...window.jupyterapp.shell.widgets("main")]) {
      if (one.context) one.context.model.dirty = false;
      one.close();
      one.dispose();
    }
  },
  watch(n, word) {
    const seen = this.seen = {};
    const area = this.cells()[n].node;
    const clicked = () => { seen.clicked ??= performance.now(); };
    document.addEventListener("click", clicked, { capture: true, once: true });
    const timer = setInterval(() => {
      if (seen.clicked === undefined) return;
      const prompt = area.querySelector(".jp-InputPrompt").textContent;
      const phase = area.querySelector(".nba-phase")?.textContent ?? "";
      if (!seen.said && phase === word) seen.said = performance.now() - seen.clicked;
      if (!seen.free && !prompt.includes("*")) seen.free = performance.now() - seen.clicked;
      if (seen.said && seen.free) clearInterval(timer);
    }, 5);
  },
};
"""


AREA_TOOL = f"""
%load_ext nbagent
import nbagent
from nbagent import offline

{AREA}
"""
"""The first cell of a notebook whose runs look up an area."""

NAP_TOOL = """
import os, time

@nbagent.tool
def nap(seconds: int) -> str:
    "Sleep for some seconds."
    for _ in range(seconds * 50):
        if os.path.exists("wake"):
            os.remove("wake")
            return "was woken"
        time.sleep(0.02)
    return "slept"
"""
"""A tool that a test ends when it has seen enough; see `Notebook.wake`."""


_SIZE: ViewportSize = {"width": 1280, "height": 1000}
_WAIT_MS = 60_000
"""How long a wait may last on a busy machine: nothing takes longer because of it."""


def go_to_app(page: Page, url: str) -> None:
    """Load JupyterLab or Notebook 7, and wait until it is there."""
    page.goto(url)
    page.wait_for_function("() => window.jupyterapp && window.jupyterapp.shell")
    page.evaluate(_PAGE)


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


class Server:
    """A Jupyter server with a folder, a trust store and settings of its own.

    Args:
        kernels: kernel names, and the Python executables whose ipykernel they start.
        delay_ms: of each piece of `offline:demo`; None is as slow as for a person.
        python: of an environment whose server it is; that one may have JupyterLab only.
    """

    def __init__(
        self,
        kernels: dict[str, str] | None = None,
        *,
        delay_ms: float | None = 0,
        python: Path | None = None,
    ) -> None:
        # Notebook's server carries JupyterLab too.
        self._program = [sys.executable, "-m", "notebook"]
        if python is not None:
            self._program = [str(python), "-m", "jupyterlab"]
        self._home = Path(tempfile.mkdtemp(prefix="nbagent-jupyter-"))
        self.folder = self._home / "notebooks"
        self.folder.mkdir()
        self.url = f"http://127.0.0.1:{free_port()}"
        environ = clean_environment(self._home)
        # Runs are kept in the folder of their notebook.
        del environ["NBAGENT_HOME"]
        if delay_ms is None:
            del environ["NBAGENT_OFFLINE_DELAY_MS"]
        for name in ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR"):
            environ[f"JUPYTER_{name}"] = str(self._home / name.lower())
        for name in ("SETTINGS_DIR", "WORKSPACES_DIR"):
            environ[f"JUPYTERLAB_{name}"] = str(self._home / name.lower())
        self._settings = Path(environ["JUPYTERLAB_SETTINGS_DIR"])
        for plugin, values in _SETTINGS.items():
            self.setting(plugin, values)
        for file, values in _SERVER_CONFIG.items():
            config = self._home / "config_dir" / file
            config.parent.mkdir(parents=True)
            config.write_text(json.dumps(values))
        for name, executable in (kernels or {}).items():
            self._add_kernel(name, executable)
        self._log = (self._home / "server.log").open("wb")
        self._environ = environ
        self._context: BrowserContext | None = None
        self._lab: Page | None = None
        self._numbers = count(1)
        self._process = self._start()

    def context(self, browser: Browser) -> BrowserContext:
        """One browser profile for all pages: the apps' code is fetched and compiled once."""
        if self._context is None:
            self._context = browser.new_context(
                permissions=["clipboard-read", "clipboard-write"], reduced_motion="reduce"
            )
        return self._context

    @contextmanager
    def lab(self, browser: Browser) -> Generator[Page]:
        """JupyterLab without a notebook, for one test after the other: it starts in 2 s.

        A test that fails, or leaves a dialog, leaves its page to nobody.
        """
        if self._lab is None:
            page = self.context(browser).new_page()
            # A workspace of its own: the notebooks of a test that failed are not opened again.
            go_to_app(page, f"{self.url}/lab/workspaces/shared-{next(self._numbers)}")
            page.evaluate("() => window.jupyterapp.restored.then(() => null)")
        else:
            page, self._lab = self._lab, None
        try:
            page.set_viewport_size(_SIZE)
            yield page
            page.evaluate("() => nbt.closeAll()")
            if page.locator(".jp-Dialog").count() == 0:
                self._lab = page
        finally:
            if self._lab is not page:
                page.close()

    def setting(self, plugin: str, values: dict[str, Any]) -> None:
        """Change a setting of JupyterLab, for pages that are opened from now on."""
        package, _, name = plugin.partition(":")
        file = self._settings / package / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))

    @contextmanager
    def changed_setting(
        self, plugin: str, values: dict[str, Any], usual: dict[str, Any]
    ) -> Generator[None]:
        """Change a setting for pages that are opened meanwhile."""
        self.setting(plugin, values)
        try:
            yield
        finally:
            self.setting(plugin, usual)

    def _add_kernel(self, name: str, python: str) -> None:
        folder = self._home / "data_dir" / "kernels" / name
        folder.mkdir(parents=True)
        spec = {
            "argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": name,
            "language": "python",
        }
        (folder / "kernel.json").write_text(json.dumps(spec))

    def _start(self) -> subprocess.Popen[bytes]:
        port = self.url.rpartition(":")[2]
        options = {
            "ServerApp.port": port,
            "ServerApp.port_retries": 0,
            "ServerApp.ip": "127.0.0.1",
            "ServerApp.open_browser": False,
            "ServerApp.allow_root": True,
            "ServerApp.root_dir": self.folder,
            "IdentityProvider.token": "",
            "SQLiteYStore.db_path": self._home / "shared.db",
            "LabApp.expose_app_in_browser": True,
            "JupyterNotebookApp.expose_app_in_browser": True,
        }
        command = [*self._program, "--no-browser"]
        command += [f"--{name}={value}" for name, value in options.items()]
        return subprocess.Popen(
            command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=self._environ,
            start_new_session=True,
        )

    def wait_until_up(self, timeout_s: float = 90) -> Server:
        end = time.monotonic() + timeout_s
        while True:
            with suppress(OSError):
                urllib.request.urlopen(f"{self.url}/api/status", timeout=2).read()
                return self
            if self._process.poll() is not None or time.monotonic() > end:
                said = (self._home / "server.log").read_text(errors="replace")
                self.close()
                raise RuntimeError(f"the Jupyter server did not start:\n{said[-3000:]}")
            time.sleep(0.1)

    def close(self) -> None:
        """End the server, which ends its kernels, and forget all that it kept."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(5)
        self._log.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def write(self, name: str, cells: Sequence[str], *, kernel: str = "python3") -> str:
        """Put a notebook into a new folder; gives its path."""
        v4: Any = nbformat.v4
        made = [v4.new_code_cell(source, id=f"cell-{n}") for n, source in enumerate(cells)]
        spec = {"name": kernel, "display_name": kernel, "language": "python"}
        return self.write_document(name, v4.new_notebook(cells=made, metadata={"kernelspec": spec}))

    def write_document(self, name: str, document: dict[str, Any]) -> str:
        """Put a notebook, as it is in its file, into a new folder; gives its path."""
        path = f"{next(self._numbers)}/{name}.ipynb"
        (self.folder / path).parent.mkdir()
        (self.folder / path).write_text(json.dumps(document))
        return path

    def trust(self, name: str) -> None:
        code = "from nbformat.sign import TrustNotebookApp; TrustNotebookApp.launch_instance()"
        command = [sys.executable, "-c", code, str(self.folder / name)]
        subprocess.run(command, env=self._environ, check=True, capture_output=True)

    def read(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / name).read_text())


class Notebook:
    """A notebook that is open in a page. Code cells count from 0."""

    def __init__(self, page: Page, server: Server, name: str, app: App) -> None:
        self.page, self.server, self.name, self.app = page, server, name, app
        self.console: list[str] = []
        self.requests: list[str] = []
        page.set_default_timeout(_WAIT_MS)
        self._heard: dict[str, Callable[[Any], object]] = {
            "console": self._hear,
            "pageerror": lambda error: self.console.append(str(error)),
            "request": lambda request: self.requests.append(request.url),
        }
        for event, hears in self._heard.items():
            page.on(event, hears)  # pyright: ignore[reportCallIssue, reportArgumentType]

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.console.append(message.text)

    def open(self) -> Notebook:
        """Open the notebook in the page, where JupyterLab is."""
        self.page.evaluate("path => nbt.open(path)", self.name)
        return self._wait_until_there()

    def load(self, *, kernel: bool = True) -> Notebook:
        """Go to the page, anew too, and wait until the notebook is there (and its kernel idle)."""
        url = f"{self.server.url}/notebooks/{self.name}"
        if self.app == "lab":
            # A workspace of its own: no other test's notebooks are opened again.
            workspace = self.name.partition("/")[0]
            url = f"{self.server.url}/lab/workspaces/{workspace}/tree/{self.name}"
        go_to_app(self.page, url)
        return self._wait_until_there(kernel=kernel)

    def _wait_until_there(self, *, kernel: bool = True) -> Notebook:
        self.page.wait_for_function(
            "path => nbt.current()?.context.isReady && nbt.path() === path &&"
            " nbt.current().content.widgets.length",
            arg=self.name,
        )
        if kernel:
            self.wait_idle()
            # What the app itself complained about while it started is not ours.
            self.console.clear()
        return self

    def leave(self) -> None:
        """Hear nothing more of the page, which another notebook may use."""
        for event, hears in self._heard.items():
            self.page.remove_listener(event, hears)

    def wait_idle(self) -> None:
        """Wait until the kernel is there and has nothing to do."""
        self.page.wait_for_function("() => nbt.kernel()?.status === 'idle'", timeout=60_000)

    def cell(self, n: int) -> Locator:
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(n)

    def output(self, n: int) -> Locator:
        return self.cell(n).locator(".jp-Cell-outputArea").first

    def text(self, n: int) -> str:
        """Text that a person reads below a code cell."""
        return self.output(n).inner_text() if self.output(n).count() else ""

    def outputs(self, n: int) -> list[dict[str, Any]]:
        """The outputs of a code cell, as they would be saved."""
        return self.page.evaluate("n => nbt.cells()[n].model.outputs.toJSON()", n)

    def error(self, n: int) -> str:
        """Error of a cell: `Name: text`, or nothing."""
        raised = [o for o in self.outputs(n) if o["output_type"] == "error"]
        return "".join(f"{one['ename']}: {one['evalue']}" for one in raised)

    def start(self, n: int) -> None:
        self.page.evaluate("n => nbt.run(n)", n)

    def wait(self, n: int, timeout_s: float = 60) -> None:
        """Wait until a cell that was started is over."""
        self.page.wait_for_function("n => !nbt.busy(n)", arg=n, timeout=timeout_s * 1000)

    def run(self, *cells: int) -> None:
        for n in cells:
            self.start(n)
            self.wait(n)

    def stop_by(self, click: Callable[[], None], n: int, word: str = "Stopped") -> dict[str, float]:
        """Click, and measure until the view says `word` and the cell is free.

        Returns:
            Milliseconds from the click: `said` and `free`.
        """
        self.page.evaluate("([n, word]) => nbt.watch(n, word)", [n, word])
        click()
        self.page.wait_for_function("() => nbt.seen.said && nbt.seen.free", timeout=30_000)
        seen = self.page.evaluate("() => nbt.seen")
        return {"said": seen["said"], "free": seen["free"]}

    def click_stop(self, n: int) -> None:
        self.output(n).locator(".nba-stop").click()

    def click_square(self) -> None:
        """The ■ of the toolbar, which interrupts the kernel."""
        self.page.locator(
            "[data-jp-item-name='interrupt']:visible, "
            "[data-command='notebook:interrupt-kernel']:visible"
        ).first.click()

    def go_without_kernel(self) -> None:
        """Answer the question for a kernel, which the app asks where there is none: no kernel."""
        self.page.locator(".jp-Dialog button:has-text('No Kernel')").click()
        self.page.wait_for_function("() => !document.querySelector('.jp-Dialog')")

    def save(self) -> dict[str, Any]:
        """Save, and give what is in the file."""
        self.page.evaluate("() => nbt.current().context.save()")
        return self.server.read(self.name)

    def wake(self) -> None:
        """End a `nap` of NAP_TOOL, the present one or the next."""
        ((self.server.folder / self.name).parent / "wake").touch()

    def shut_down(self) -> None:
        with suppress(Error):  # the page of a test that failed may be anywhere
            self.page.evaluate("() => window.nbt?.current()?.sessionContext.shutdown()")


class OpenNotebook(Protocol):
    """Opens a new notebook with these cells; it is closed with the test."""

    def __call__(
        self,
        cells: Sequence[str],
        app: App = "lab",
        *,
        kernel: str = "python3",
        own_page: bool = False,
        **how: Any,
    ) -> Notebook:
        """Open it in the page of JupyterLab that tests share, or in a page of its own.

        Args:
            cells: the sources of its code cells.
            app: Notebook 7 has a page of its own always.
            kernel: the name of its kernel.
            own_page: a page that nothing else has been in.
            how: further options of `opened`, for a page of its own.
        """
        ...


@contextmanager
def opened(
    browser: Browser,
    server: Server,
    name: str,
    app: App = "lab",
    *,
    kernel: bool = True,
    dark: bool = False,
    size: tuple[int, int] = (1280, 1000),
    profile: BrowserContext | None = None,
) -> Generator[Notebook]:
    """A notebook in a page of its own, and of another person's `profile`; its kernel is ended
    with it."""
    page = (server.context(browser) if profile is None else profile).new_page()
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme="dark" if dark else "light", reduced_motion="reduce")
    notebook = Notebook(page, server, name, app)
    try:
        yield notebook.load(kernel=kernel)
    finally:
        notebook.shut_down()
        page.close()


@contextmanager
def opened_in_lab(browser: Browser, server: Server, name: str) -> Generator[Notebook]:
    """A notebook in the page of JupyterLab that tests share; its kernel is ended with it."""
    with server.lab(browser) as page:
        notebook = Notebook(page, server, name, "lab")
        try:
            yield notebook.open()
        finally:
            notebook.shut_down()
            notebook.leave()
