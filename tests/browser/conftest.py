"""The browser and the Jupyter server of the browser tests, and the figures that they report."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_apps import OTHER_KERNELS, Server
from playwright.sync_api import Browser, Page, sync_playwright

_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
_FIGURES = pytest.StashKey[list[str]]()


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
    page.set_default_timeout(8_000)
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
