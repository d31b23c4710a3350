"""The browser and the Jupyter server of the browser tests, and the figures that they report."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from environments import environment, environments_folder
from jupyter_apps import OTHER_KERNELS, App, Notebook, OpenNotebook, Server, opened, opened_in_lab
from playwright.sync_api import Browser, Page, expect, sync_playwright

__all__ = ["environment", "environments_folder"]
_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
_FIGURES = pytest.StashKey[list[str]]()
_HAS_FAILED = pytest.StashKey[bool]()
# A busy machine takes longer; what is there already is not waited for.
expect.set_options(timeout=20_000)


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Where Chromium is. Without one the test is skipped; in CI that is an error."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path:
        return path
    if os.environ.get("CI"):
        pytest.fail("no Chromium: CI has to install one (apt-get install chromium)")
    pytest.skip("no Chromium on this machine (apt-get install chromium)")


@pytest.fixture(scope="session")
def chromium(chromium_path: str) -> Iterator[Browser]:
    """One headless Chromium for the session; each test opens pages of its own in it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=_ARGS)
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page of a secure place, where the clipboard works."""
    context = chromium.new_context(
        viewport={"width": 908, "height": 900},
        permissions=["clipboard-read", "clipboard-write"],
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.route(
        "**/*", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html")
    )
    page.goto("http://localhost/")
    yield page
    context.close()


@pytest.fixture(scope="session")
def server(chromium_path: str) -> Iterator[Server]:
    """One Jupyter server for the session; it shows JupyterLab and Notebook 7."""
    server = Server(OTHER_KERNELS)
    try:
        yield server.wait_until_up()
    finally:
        server.close()


@pytest.fixture
def open_notebook(
    request: pytest.FixtureRequest, chromium: Browser, server: Server
) -> Iterator[OpenNotebook]:
    """Opens notebooks: each has a kernel, a folder and a store of its own."""
    with suppress(_TestFailed), ExitStack() as stack:

        def open_one(
            cells: Sequence[str],
            app: App = "lab",
            *,
            kernel: str = "python3",
            own_page: bool = False,
            **how: Any,
        ) -> Notebook:
            name = server.write("notebook", cells, kernel=kernel)
            if app == "lab" and not own_page:
                made = opened_in_lab(chromium, server, name)
            else:
                made = opened(chromium, server, name, app, **how)
            return stack.enter_context(made)

        yield open_one
        if request.node.stash.get(_HAS_FAILED, False):
            # The page may be in any state: the next test gets another one.
            raise _TestFailed


class _TestFailed(Exception):
    """The test that opened notebooks has failed."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, Any]:
    report = yield
    if report.when == "call":
        item.stash[_HAS_FAILED] = report.failed
    return report


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> list[str]:
    return pytestconfig.stash.setdefault(_FIGURES, [])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests come last: playwright's loop runs in this thread until the browser closes."""
    items.sort(key=lambda item: item.path.is_relative_to(Path(__file__).parent))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if lines := config.stash.get(_FIGURES, None):
        terminalreporter.section("measured in the browser and in kernels")
        for line in lines:
            terminalreporter.write_line(line)
