"""The quickstart in JupyterLab, as a newcomer meets it: no key, no network, all cells."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_apps import Notebook, Server, opened
from playwright.sync_api import Browser

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"


def places(of: str) -> list[int]:
    """The code cells whose source has a text."""
    cells = json.loads(QUICKSTART.read_text("utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [n for n, source in enumerate(sources) if of in source]


@pytest.fixture(scope="module")
def quickstart(chromium: Browser, server: Server) -> Iterator[Notebook]:
    """A copy of the quickstart, all of whose cells were run in JupyterLab."""
    shutil.copy(QUICKSTART, server.folder / "quickstart.ipynb")
    with opened(chromium, server, "quickstart.ipynb") as notebook:
        notebook.run(*places(""))
        yield notebook


def test_every_cell_runs_without_an_error(quickstart: Notebook) -> None:
    assert [quickstart.error(n) for n in places("")] == [""] * len(places(""))


def test_turns_answer_and_offline_words_are_there(quickstart: Notebook) -> None:
    run = quickstart.output(places("Which of {{ cities }} is larger?")[0]).locator(".nba-run")
    assert run.locator(".nba-phase").inner_text() == "Answered"
    assert "answers by rules, not by a model" in run.locator(".nba-offline").inner_text()
    assert run.locator(".nba-turn > summary .nba-id").all_inner_texts() == ["C01", "C02"]
    line = run.locator(".nba-turn").first.locator(".nba-sum").inner_text()
    assert 'population(city="Oslo") → 717,710' in line
    assert "Oslo" in run.locator(".nba-answer").inner_text()
    assert "717,710" in run.locator(".nba-answer").inner_text()


def test_the_browser_complains_about_nothing(quickstart: Notebook) -> None:
    assert quickstart.console == []
    remote = [url for url in quickstart.requests if "127.0.0.1" not in url]
    assert [url for url in remote if not url.startswith(("blob:", "data:"))] == []
