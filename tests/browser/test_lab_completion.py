"""A person at the keyboard in JupyterLab: Tab offers options and values, Enter puts one in."""

from __future__ import annotations

from jupyter_apps import Server, opened
from playwright.sync_api import Browser, Page

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
