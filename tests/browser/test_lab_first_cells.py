"""JupyterLab as a newcomer meets it: the quickstart, all cells."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from jupyter_apps import Server, opened
from playwright.sync_api import Browser

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"


def places(of: str) -> list[int]:
    """The code cells whose source has a text."""
    cells = json.loads(QUICKSTART.read_text("utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [n for n, source in enumerate(sources) if of in source]


def test_all_cells_run_and_answer_and_the_browser_complains_about_nothing(
    chromium: Browser, server: Server
) -> None:
    shutil.copy(QUICKSTART, server.folder / "quickstart.ipynb")
    with opened(chromium, server, "quickstart.ipynb") as quickstart:
        quickstart.run(*places(""))
        assert [quickstart.error(n) for n in places("")] == [""] * len(places(""))
        (asked, *_) = places("Which of {{ cities }} is larger?")
        run = quickstart.output(asked).locator(".nba-run")
        assert run.locator(".nba-phase").inner_text() == "Answered"
        assert "answers by rules, not by a model" in run.locator(".nba-offline").inner_text()
        assert run.locator(".nba-turn > summary .nba-id").all_inner_texts() == ["C01", "C02"]
        line = run.locator(".nba-turn").first.locator(".nba-sum").inner_text()
        assert 'population(city="Oslo") → 717,710' in line
        for word in ("Oslo", "717,710"):
            assert word in run.locator(".nba-answer").inner_text()
        assert quickstart.console == []
        local = ("blob:", "data:", server.url)
        assert [url for url in quickstart.requests if not url.startswith(local)] == []
