"""A run at work, a question, a saved run and the panel in every size and theme of both apps."""

from __future__ import annotations

import pytest
from jupyter_apps import AREA_TOOL, App, OpenNotebook, Server
from stage import OVERFLOWS

SETUP = (
    AREA_TOOL
    + """
call = offline.call("area", city="Oslo")
offline.script([offline.step(text="I look it up.", calls=[call]), "It has **454.1** km²."] * 2,
    name="two")
offline.script([offline.step(text="I ask first.", calls=[call]), "Done."], name="asks")
"""
)
CELLS = [
    SETUP,
    "%%agent --model offline:two --tools area\nHow large is Oslo?",
    "nbagent.panel()",
    "nbagent.configure(ask='area')",
    "%%agent --model offline:asks --tools area\nHow large is Oslo?",
]
SAVED, PANEL, ASKED = 1, 2, 4
ROOTS = {SAVED: ".nba-run", PANEL: ".nba-panel", ASKED: ".nba-run"}
UNFOLD = "root => root.querySelectorAll('.nba-turn').forEach((one) => { one.open = true; })"
COLORS = "one => [getComputedStyle(one).color, getComputedStyle(one).backgroundColor]"


def brightness(color: str) -> float:
    """Of `rgb(r, g, b)`, from 0 to 255."""
    parts = [float(part) for part in color.partition("(")[2].rstrip(")").split(",")[:3]]
    return sum(parts) / 3


@pytest.mark.proof
@pytest.mark.parametrize("width", [700, 1000, 1600])
@pytest.mark.parametrize("theme", ["Light", "Dark"])
@pytest.mark.parametrize("app", ["lab", "notebook"])
def test_nothing_overflows_and_text_stands_out_from_its_ground(
    open_notebook: OpenNotebook, server: Server, app: App, theme: str, width: int
) -> None:
    plugin = "@jupyterlab/apputils-extension:themes"
    dark = theme == "Dark"
    with server.changed_setting(
        plugin, {"theme": f"JupyterLab {theme}"}, {"theme": "JupyterLab Light"}
    ):
        notebook = open_notebook(CELLS, app, own_page=True, dark=dark, size=(width, 900))
    notebook.run(0, SAVED, PANEL, 3)
    notebook.start(ASKED)
    notebook.output(ASKED).locator("[data-question].nba-armed").wait_for()
    for n, selector in ROOTS.items():
        root = notebook.output(n).locator(selector).first
        root.evaluate(UNFOLD)
        over = root.evaluate(OVERFLOWS, ["*", ".nba-sum, pre, .nba-wide-table"])
        assert over == [], selector
        text, ground = map(brightness, root.evaluate(COLORS))
        assert (text > ground) == dark, selector
    notebook.output(ASKED).get_by_role("button", name="Allow once", exact=True).click()
    notebook.wait(ASKED)
