"""Contrast measured from the pixels, and axe: each form of a run, light and dark.

The form of a notebook that is not trusted comes first: a colleague sees it first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyter_apps import AREA_TOOL, Notebook, Server, opened
from pixels import contrasts, too_low
from playwright.sync_api import Browser, Page
from stage import OVERFLOWS, Stage
from test_batch_page import PICTURES, show
from test_view_accessibility import rich, theme_variables, waits

from nbagent.notebook.button_actions import form_node
from nbagent.notebook.messages import Message
from nbagent.view.node import Node
from nbagent.view.run_picture import page as page_of
from nbagent.view.run_picture import picture

# Read now: a test has an environment of its own.
_NODE_MODULES = os.environ.get("NBAGENT_TEST_NODE_MODULES")
_IS_CI = "CI" in os.environ
UNFOLD = "document.querySelectorAll('details').forEach((node) => { node.open = true })"
STAND_STILL = "document.querySelectorAll('[data-since]').forEach((n) => delete n.dataset.since)"
IN_BOTH_THEMES = pytest.mark.parametrize("theme", ["light", "dark"])


@pytest.fixture
def sharp_page(chromium: Browser) -> Iterator[Page]:
    """A page with two pixels to a pixel, high enough for all that is shown."""
    context = chromium.new_context(
        viewport={"width": 908, "height": 3000}, reduced_motion="reduce", device_scale_factor=2
    )
    yield context.new_page()
    context.close()


def untrusted(stage: Stage) -> None:
    """As a notebook that is not trusted shows it: inline styles only."""
    saved(stage)
    stage.page.evaluate("document.querySelectorAll('style').forEach((one) => one.remove())")
    # JupyterLab's own rule for outputs.
    stage.page.add_style_tag(content="a { color: var(--jp-content-link-color) }")


def saved(stage: Stage) -> None:
    stage.page.evaluate("stub.leave()")
    html = page_of(picture(stage.story.run))
    stage.page.evaluate("html => { document.getElementById('here').innerHTML = html }", html)


def with_buttons(stage: Stage) -> None:
    """A finished run whose kernel lives, with the form of a button."""
    run = stage.story.run
    stage.hear([["done", picture(run, kernel="k1-1")]])
    stage.page.evaluate(UNFOLD)
    stage.page.evaluate("window.actions = begin({ kind: 'actions', kernel: 'k1' })")
    form = form_node(Message(kind="act", do="fork", run=run.id, turn="C01"), run)
    stage.page.evaluate("m => actions.hear(m)", {"run": run.id, "at": "k1-1", "form": form})
    stage.page.locator(".nba-words textarea").fill("Other words")


def asks(stage: Stage) -> None:
    stage.play(waits(stage.story))
    stage.page.locator(".nba-ask.nba-armed button:enabled").first.wait_for()


def answered(stage: Stage) -> None:
    """A question whose buttons are disabled, since its answer was sent."""
    asks(stage)
    stage.page.get_by_role("button", name="Allow once", exact=True).click()
    stage.page.get_by_text("Allowed once: sent").wait_for()


FORMS: dict[str, Callable[[Stage], None]] = {
    "untrusted": untrusted,
    "saved": saved,
    "live": lambda stage: stage.finish(),
    "with buttons": with_buttons,
    "asks": asks,
    "answered": answered,
}
"""Each form of a run by what shows it."""


def with_theme(page: Page, theme: str) -> None:
    """Unfold all, stop the clocks, and take the colours of JupyterLab's theme."""
    page.evaluate(UNFOLD)
    page.evaluate(STAND_STILL)
    page.add_style_tag(content=theme_variables(theme))
    page.evaluate(
        """light => {
          document.body.dataset.jpThemeLight = light;
          document.body.style.background = "var(--jp-layout-color0)";
          document.body.style.color = "var(--jp-content-font-color1)";
        }""",
        str(theme == "light").lower(),
    )


@IN_BOTH_THEMES
@pytest.mark.parametrize("form", FORMS)
def test_each_text_of_a_run_stands_out_from_the_pixels_behind_it(
    sharp_page: Page, form: str, theme: str
) -> None:
    stage = Stage(sharp_page, rich(), theme=theme)
    FORMS[form](stage)
    with_theme(sharp_page, theme)
    measured = contrasts(sharp_page, sharp_page.locator("#here"))
    assert len(measured) > 25
    assert too_low(measured) == []
    buttons = [one for one in measured if one.name.startswith("button")]
    assert any("(disabled)" in one.name for one in buttons) == (form == "answered")
    assert bool(buttons) == (form not in ("untrusted", "saved"))


@IN_BOTH_THEMES
@pytest.mark.parametrize("shown", PICTURES.values(), ids=PICTURES)
def test_each_text_of_a_batch_stands_out_from_the_pixels_behind_it(
    sharp_page: Page, shown: Node, theme: str
) -> None:
    show(sharp_page, shown)
    with_theme(sharp_page, theme)
    measured = contrasts(sharp_page, sharp_page.locator("#here"))
    assert len(measured) > 5
    assert too_low(measured) == []


def test_a_text_that_is_too_faint_is_found(sharp_page: Page) -> None:
    """Also where the computed colour is black: by opacity, and by what lies behind it."""
    sharp_page.set_content(
        """<!doctype html><body style="background:#fff"><div id="here">
        <p class="fine">fine words</p><p class="faint" style="opacity:.4">faint words</p>
        <p class="dark" style="background:linear-gradient(#333, #444)">dark ground</p>
        <button disabled class="off" style="color:#bbb;background:#fff">off</button></div>"""
    )
    low = too_low(contrasts(sharp_page, sharp_page.locator("#here")))
    assert {text.split()[1].split(".")[1] for text in low} == {"faint", "dark", "off"}


AXE = """
async root => {
  const { violations } = await axe.run(root, { resultTypes: ["violations"] });
  return violations.map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 300)}`);
}
"""


def axe_violations(page: Page, root: str) -> list[str]:
    """Run axe-core below a root; skip visibly where it is not installed."""
    if _NODE_MODULES is None:
        assert not _IS_CI, "axe-core must be there in CI: .ci/run installs it"
        pytest.skip("no axe-core: npm install axe-core, and set NBAGENT_TEST_NODE_MODULES")
    # Not as a script tag: a front end's policy may refuse it.
    page.evaluate((Path(_NODE_MODULES) / "axe-core" / "axe.min.js").read_text("utf-8"))
    return page.evaluate(AXE, root)


@pytest.mark.proof
@IN_BOTH_THEMES
@pytest.mark.parametrize("form", FORMS)
def test_axe_finds_nothing_in_a_run(page: Page, form: str, theme: str) -> None:
    stage = Stage(page, rich(), theme=theme)
    FORMS[form](stage)
    with_theme(page, theme)
    assert axe_violations(page, "#here") == []


@pytest.mark.proof
@IN_BOTH_THEMES
@pytest.mark.parametrize("shown", PICTURES.values(), ids=PICTURES)
def test_axe_finds_nothing_in_a_batch(page: Page, shown: Node, theme: str) -> None:
    show(page, shown)
    with_theme(page, theme)
    assert axe_violations(page, "#here") == []


@pytest.mark.proof
def test_axe_finds_a_button_without_a_name(page: Page) -> None:
    page.set_content('<!doctype html><body><div id="here"><button></button></div>')
    assert [text.split(":")[0] for text in axe_violations(page, "#here")] == ["button-name"]


# In JupyterLab

CELLS = [
    AREA_TOOL
    + """
call = offline.call("area", city="Oslo")
said = "# Oslo\\n\\nIt has **454.1** km², [says](https://b.c) `area`.\\n\\n"
said += "|a|b|\\n|-|-|\\n|1|2|\\n\\n```python\\nx = 'a'  # b\\n```\\n\\n> quoted"
offline.script([offline.step(text="I look.", reasoning="Hm.", calls=[call]), said], name="rich")
offline.script([offline.call("area", wrong=1), offline.error("LLM_TIMEOUT", "late")], name="bad")
offline.script([offline.step(text="I ask first.", calls=[call]), "Done."] * 9, name="asks")
""",
    "%%agent --model offline:rich --tools area\nHow large is Oslo?",
    "%%agent --model offline:bad --tools area\nHow large is Oslo?",
    "nbagent.configure(ask='area')\nnbagent.panel()",
    "%%agent --model offline:asks --tools area\nHow large is Oslo?",
]
RICH, BAD, PANEL, ASKED = 1, 2, 3, 4
_THEMES = "@jupyterlab/apputils-extension:themes"


@contextmanager
def opened_sharp(
    browser: Browser, server: Server, name: str, theme: str, width: int, *, kernel: bool
) -> Generator[Notebook]:
    """A notebook in JupyterLab with this theme, two pixels to a pixel, all of it in the window."""
    word = f"JupyterLab {theme.capitalize()}"
    context = browser.new_context(
        viewport={"width": width, "height": 5200},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",
        device_scale_factor=2,
    )
    with server.changed_setting(_THEMES, {"theme": word}, {"theme": "JupyterLab Light"}):
        notebook = Notebook(context.new_page(), server, name, "lab").load(kernel=kernel)
    try:
        yield notebook
    finally:
        notebook.shut_down()
        context.close()


def looks_right(notebook: Notebook, n: int, root: str, least: int) -> None:
    """All that a cell shows has contrast, stays in its width, and passes axe."""
    shown = notebook.output(n).locator(root).first
    shown.evaluate("root => root.querySelectorAll('details').forEach((d) => { d.open = true })")
    notebook.page.evaluate(STAND_STILL)
    measured = contrasts(notebook.page, shown)
    assert len(measured) >= least, root
    assert too_low(measured) == [], root
    assert shown.evaluate(OVERFLOWS, ["*", ".nba-sum, pre, .nba-wide-table"]) == [], root
    shown.evaluate("root => { root.dataset.looked = 'now' }")
    assert axe_violations(notebook.page, "[data-looked]") == [], root
    shown.evaluate("root => { delete root.dataset.looked }")


IN_SIZES = pytest.mark.parametrize("width", [700, 1600])


@pytest.fixture(scope="module")
def ended(chromium: Browser, server: Server) -> dict[str, Any]:
    """The file of a notebook with a good and a failed run."""
    with opened(chromium, server, server.write("ended", CELLS)) as notebook:
        notebook.run(0, RICH, BAD)
        document = notebook.save()
    document["metadata"] = {"kernelspec": {"name": "not-here", "display_name": "not here"}}
    return document


@pytest.mark.proof
@IN_SIZES
@IN_BOTH_THEMES
def test_an_untrusted_notebook_reads_well_in_jupyterlab(
    chromium: Browser, server: Server, ended: dict[str, Any], theme: str, width: int
) -> None:
    name = server.write_document("untrusted", ended)
    with opened_sharp(chromium, server, name, theme, width, kernel=False) as notebook:
        notebook.go_without_kernel()
        for n, least in ((RICH, 20), (BAD, 10)):
            looks_right(notebook, n, ".nba-run", least)


@pytest.mark.proof
@IN_SIZES
@IN_BOTH_THEMES
def test_a_run_a_question_and_the_panel_read_well_in_jupyterlab(
    chromium: Browser, server: Server, theme: str, width: int
) -> None:
    name = server.write("looks", CELLS)
    with opened_sharp(chromium, server, name, theme, width, kernel=True) as notebook:
        notebook.run(0, RICH, BAD, PANEL)
        looks_right(notebook, RICH, ".nba-run", 20)
        looks_right(notebook, BAD, ".nba-run", 10)
        looks_right(notebook, PANEL, ".nba-panel", 10)
        notebook.start(ASKED)
        question = notebook.output(ASKED).locator("[data-question].nba-armed")
        question.wait_for()
        looks_right(notebook, ASKED, ".nba-run", 10)
        question.get_by_role("button", name="Cancel").first.click()
        question.get_by_role("button", name="Cancel").first.click()
        question.get_by_role("button", name="Allow once", exact=True).click()
        notebook.wait(ASKED)
