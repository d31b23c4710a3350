"""JupyterLab as a newcomer meets it: the quickstart, all cells, and Tab on the line of a cell."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from jupyter_apps import Server, opened
from playwright.sync_api import Browser, Page

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


SETUP = """
%load_ext nbagent
import nbagent
@nbagent.tool
def population(city: str) -> int:
    "People living in a city."
    return 717_710
"""


def complete(page: Page, typed: str, wanted: str) -> list[str]:
    """Type, press Tab, choose, press Enter; gives what was offered."""
    page.keyboard.type(typed)
    page.keyboard.press("Tab")
    completer = page.locator(".jp-Completer:visible")
    matches = completer.locator(".jp-Completer-match")
    matches.first.wait_for()
    offered = matches.all_inner_texts()
    for _ in range(offered.index(wanted)):  # JupyterLab has an order of its own
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    completer.wait_for(state="detached")
    return sorted(offered)


def test_tab_offers_options_and_values_and_enter_puts_one_in(
    chromium: Browser, server: Server
) -> None:
    name = server.write("completion.ipynb", [SETUP, ""])
    with opened(chromium, server, name) as notebook:
        notebook.run(0)
        page = notebook.page
        notebook.cell(1).locator(".cm-content").click()
        offered = complete(page, "%%agent --max-t", "--max-turns")
        assert offered == ["--max-tokens", "--max-turns"]
        assert complete(page, " 3 -t pop", "population") == ["population"]
        assert complete(page, " -m offline:dem", "offline:demo") == ["offline:demo"]
        page.keyboard.type(" --dry-run\nHow many live in Oslo?")
        typed = page.evaluate("() => nbt.cells()[1].model.sharedModel.getSource()")
        assert typed.splitlines()[0] == (
            "%%agent --max-turns 3 -t population -m offline:demo --dry-run"
        )
        notebook.run(1)
        dry = notebook.output(1).locator(".nba-dry")
        assert "nothing was sent" in dry.inner_text()
        assert notebook.error(1) == ""
        dry.locator("summary").nth(1).click()
        assert dry.locator("pre").nth(1).inner_text() == "How many live in Oslo?"
