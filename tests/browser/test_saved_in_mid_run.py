"""The output of a run at work keeps the picture so far, and nothing moves when it is drawn anew."""

from __future__ import annotations

import json
import re

import pytest
from jupyter_apps import AREA_TOOL, IN_LAB, App, Notebook, OpenNotebook

SETUP = (
    AREA_TOOL
    + """
# An output is written anew when it has doubled. The view shows 60,000 characters of a text: 3,000
# pieces stay below that, and take a minute, so that the text still grows after a slow save.
words = offline.text(pieces=[f"word{n} long "[:18] for n in range(1, 3001)])
look = offline.step(text="I look it up.", calls=[offline.call("area", city="Oslo")])
offline.script([look, words], name="long", delay_ms=20)
"""
)
WATCH = """
() => {
  const area = nbt.cells()[1].outputArea.node;
  const view = area.querySelector(".nba-view");
  view.querySelectorAll(".nba-turn > summary")[0].focus();
  // The text grows meanwhile: what counts is the height at this moment.
  const height = area.offsetHeight;
  const seen = nbt.seen = { view, height, moves: 0, lowest: Infinity, loading: 0 };
  new MutationObserver((all) => {
    seen.moves += all.filter((one) => [...one.addedNodes].some((n) => n.contains(view))).length;
  }).observe(area, { childList: true, subtree: true });
  const look = () => {
    seen.lowest = Math.min(seen.lowest, area.offsetHeight);
    seen.loading += area.innerText.includes("Loading widget");
    requestAnimationFrame(look);
  };
  look();
}
"""
SEEN = """
() => {
  const { view, height, moves, lowest, loading } = nbt.seen;
  const { activeElement } = document;
  const hasFocus = view.contains(activeElement) && activeElement.localName === "summary";
  return { moves, height, lowest, loading, hasFocus, isShown: view.isConnected };
}
"""


def saved_html(notebook: Notebook) -> str:
    """HTML of the run in the saved file."""
    output = notebook.save()["cells"][1]["outputs"][0]
    return "".join(output["data"].get("text/html", ""))


@pytest.mark.proof
@IN_LAB
def test_a_file_saved_in_mid_run_has_the_picture_so_far_and_the_view_does_not_move(
    app: App, open_notebook: OpenNotebook
) -> None:
    cells = [SETUP, "%%agent --model offline:long --tools area\nHow large is Oslo?"]
    notebook = open_notebook(cells, app)
    notebook.run(0)
    notebook.start(1)
    output = notebook.output(1)
    output.locator(".nba-plain:has-text('word9 ')").wait_for()
    output.locator(".nba-turn summary").first.click()
    notebook.page.evaluate(WATCH)
    notebook.page.wait_for_function(
        "() => nbt.seen.moves > 0 && nbt.seen.view.contains(document.activeElement)"
    )
    seen = notebook.page.evaluate(SEEN)
    assert seen["lowest"] >= seen["height"]
    assert (seen["loading"], seen["hasFocus"], seen["isShown"]) == (0, True, True)
    assert output.locator(".nba-turn").first.evaluate("node => node.open")
    html = saved_html(notebook)
    assert "word9 " in html
    assert "454.1" in html
    # Nothing dead is seen: no kernel's sheet shows what a saved picture hides.
    assert "data-kernel" not in html
    buttons = re.findall("<button[^>]*>", html)
    assert all('class="nba-do"' in one and 'data-do="copy"' in one for one in buttons)
    assert "saved while the run was running" in html
    # The view that moved is fed on, and its buttons work.
    length = output.locator(".nba-plain").evaluate("node => node.textContent.length")
    notebook.page.wait_for_function(
        "before => nbt.cells()[1].node.querySelector('.nba-plain').textContent.length > before",
        arg=length,
    )
    notebook.click_stop(1)
    output.locator(".nba-phase:has-text('Stopped')").wait_for()
    notebook.wait(1)
    assert "saved while the run" not in saved_html(notebook)
    assert "widget-view" not in json.dumps(notebook.save())
