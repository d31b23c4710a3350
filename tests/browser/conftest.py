"""The browser of the browser tests: Debian's Chromium, driven by playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]


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
