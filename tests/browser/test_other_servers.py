"""Voila, execution on the server, and collaboration: each server in an environment of its own."""

from __future__ import annotations

import pytest
from environments import MakeEnvironment, serving
from executed_notebooks import ANSWERED, write_notebook
from front_ends import shows
from playwright.sync_api import Browser, expect

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]


VOILA = ("voila", "--no-browser", "--port={port}", "--Voila.ip=127.0.0.1", "page.ipynb")


@shows("voila: cell", "headless", "saved form reads")
def test_voila_shows_the_answer_of_a_cell(environment: MakeEnvironment, chromium: Browser) -> None:
    made = environment("voila", "ipykernel")
    write_notebook(made.work / "page.ipynb", ANSWERED)
    with serving(made, *VOILA) as url:
        page = chromium.new_page()
        page.goto(url, timeout=45_000)
        run = page.locator(".nba-run:visible")
        expect(run).to_have_count(1, timeout=60_000)
        expect(run).to_contain_text("454.1")
        page.close()


@shows("voila: panel", "live", "stop")
def test_the_panel_works_in_voila(environment: MakeEnvironment, chromium: Browser) -> None:
    made = environment("voila", "ipykernel")
    write_notebook(
        made.work / "page.ipynb", 'nbagent.configure(model="offline:demo"); nbagent.panel()'
    )
    with serving(made, *VOILA) as url:
        page = chromium.new_page()
        page.goto(url, timeout=45_000)
        box = page.locator("textarea:visible").first
        box.fill("Nap in Oslo.", timeout=60_000)
        box.press("Control+Enter")
        run = page.locator(".nba-run:visible")
        expect(run).to_contain_text("nap", timeout=30_000)
        page.locator("button:visible", has_text="Stop").first.click()
        expect(run).to_contain_text("Stopped", timeout=30_000)
        page.close()
