"""Every button of nbagent is clicked once in JupyterLab, and does what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_apps import NAP_TOOL, Notebook, OpenNotebook
from notebook_tools import KEEP
from playwright.sync_api import FilePayload, Locator, expect

from nbagent.view.buttons import FORM_TITLES

_PACKAGE = Path(__file__).parents[2] / "nbagent"
_BUTTON = re.compile(r'data_do="(\w+)"|panelButton\("(\w+)"|"data-do": "(\w+)"')
ELSEWHERE = {
    "below": "test_panel_in_jupyter: needs the sidecar",
    "more": "test_panel_in_jupyter: needs a conversation of many runs",
    "list": "test_panel_in_jupyter: needs a provider that lists its models",
    "save": "test_case_page: only a file of cases exports its labels",
    "session": "test_approval_in_lab: it would allow the calls of the other cells too",
}
"""Buttons that another test clicks, and why not this one."""
SETUP = f"""
%load_ext nbagent
import nbagent, pandas
from nbagent import offline
{NAP_TOOL}

{KEEP}

def keeps(*texts):
    calls = [offline.call("keep", text=text) for text in texts]
    return offline.step(text="I keep them.", calls=calls)

offline.script([keeps("one", "two"), "Done."] * 9, name="keeper")
offline.script([offline.call("nap", seconds=60), "Done."] * 9, name="sleeper")
offline.script(["An answer.\\n\\n```python\\nx = 1\\n```"] * 90, name="short")
offline.script(["quick"] * 2 + [offline.delay(0.2), "slow"] * 200, name="slow")
df = pandas.DataFrame({{"n": range(60)}})
nbagent.configure(ask="keep")
"""
ASKS = "%%agent -m offline:keeper -t keep\nKeep them."
SLEEPS = "%%agent -m offline:sleeper -t nap\nSleep."
BATCH = "%%agent -m offline:slow -t none --over df --concurrency 1 --name {}\nSay {{{{ n }}}}"
SMALL = "batch = nbagent.Agent('offline:short', tools=[]).map(df[:3], 'Say {{ n }}').wait()"
CELLS = [
    SETUP,
    ASKS,
    ASKS,
    SLEEPS,
    SLEEPS,
    "%%agent -m offline:short -t none\nHello",
    "%agent history",
    BATCH.format("paused"),
    BATCH.format("stopped"),
    SMALL,
    "batch.review('liked')",
    "nbagent.panel()",
    "batch.page()",
]
ALL, EACH, PAUSED, STOPPED, DONE, HISTORY = range(1, 7)
BATCH_PAUSED, BATCH_STOPPED, LABELLED, REVIEW, PANEL, CASES = range(7, 13)
_COLLECT = """
() => {
  window.clicked = new Set();
  document.addEventListener("click", ({ target }) => {
    const button = target.closest?.("button[data-do]");
    if (button) clicked.add(button.dataset.do);
  }, { capture: true });
}
"""


def all_buttons() -> Iterator[str]:
    """The words of all buttons, as the sources of the package say them."""
    yield from ("cell", "once", "deny", *FORM_TITLES)
    for file in (*_PACKAGE.rglob("*.py"), *_PACKAGE.rglob("*.js")):
        for match in _BUTTON.finditer(file.read_text("utf-8")):
            yield next(filter(None, match.groups()))


class Desk:
    """An open notebook whose buttons are clicked by what they do."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook

    def click(self, n: int | Locator, action: str, *more: str) -> None:
        """Click the first visible button with this action, in an output or a part of one."""
        root = n if isinstance(n, Locator) else self.notebook.output(n)
        for word in (action, *more):
            root.locator(f'[data-do="{word}"]:visible:enabled').first.click()

    def ends(self, n: int, *words: str) -> None:
        expect(self.notebook.output(n).locator(".nba-phase")).to_have_text([*words])


def answers_questions(desk: Desk) -> None:
    notebook = desk.notebook
    notebook.start(ALL)
    notebook.output(ALL).locator(".nba-ask.nba-armed").nth(1).wait_for()
    desk.click(ALL, "answer_all")
    notebook.wait(ALL)
    notebook.start(EACH)
    asks = notebook.output(EACH).locator(".nba-ask.nba-armed")
    asks.nth(1).wait_for()
    asks.nth(0).locator("summary", has_text="Edit…").click()
    desk.click(asks.nth(0), "cancel", "once")
    asks.nth(1).locator("summary", has_text="Deny…").click()
    desk.click(asks.nth(1).locator(".nba-deny"), "deny")
    notebook.wait(EACH)
    desk.ends(EACH, "Answered")


def pauses_and_stops(desk: Desk) -> None:
    notebook = desk.notebook
    notebook.start(PAUSED)
    desk.click(PAUSED, "pause")
    note = notebook.output(PAUSED).locator("span.nba-note:has-text('Pausing after this turn…')")
    expect(note).to_have_count(1)
    notebook.wake()
    notebook.wait(PAUSED)
    desk.click(PAUSED, "continue", "go")
    desk.ends(PAUSED, "Paused", "Answered")
    notebook.start(STOPPED)
    notebook.output(STOPPED).locator(".nba-card.nba-busy").wait_for()
    desk.click(STOPPED, "stop")
    notebook.wait(STOPPED)
    desk.click(STOPPED, "continue", "go")
    desk.ends(STOPPED, "Stopped", "Answered")


def acts_on_a_finished_run(desk: Desk) -> None:
    notebook = desk.notebook
    notebook.run(DONE)
    run = notebook.output(DONE).locator(".nba-run").first
    said = run.locator(":scope > .nba-said")
    desk.click(run.locator(".nba-answer"), "copy")
    expect(said).to_have_text("Copied it")
    desk.click(run.locator(".nba-foot"), "copy")
    expect(said).to_have_text("Copied the answer")
    desk.click(run, "cell")
    expect(said).to_have_text("Copied: paste it into a cell")
    desk.click(run, "retry", "go")
    desk.ends(DONE, "Answered", "Answered")
    run.locator(".nba-turn > summary").first.click()
    desk.click(run, "fork")
    run.locator(".nba-words textarea").fill("Other words")
    desk.click(run, "go")
    desk.ends(DONE, "Answered", "Answered", "Answered")
    desk.click(run, "compare", "cancel", "compare", "go")
    expect(notebook.output(DONE).get_by_role("group", name="comparison of runs")).to_be_visible()


def uses_lists_and_batches(desk: Desk) -> None:
    notebook = desk.notebook
    notebook.run(HISTORY)
    history = notebook.output(HISTORY)
    desk.click(HISTORY, "sort")
    expect(history.locator("th[aria-sort=descending]")).to_have_count(1)
    desk.click(HISTORY, "show")
    expect(history.locator(".nba-run:has(.nba-turn)")).to_have_count(1)
    for n, action, word in (
        (BATCH_PAUSED, "pause", "Paused"),
        (BATCH_STOPPED, "stop", "Stopped"),
    ):
        notebook.start(n)
        notebook.output(n).locator(".nba-i-ok").wait_for()
        desk.click(n, action)
        notebook.wait(n)
        expect(notebook.output(n).locator(".nba-phase").first).to_have_text(word)
    notebook.run(LABELLED, REVIEW)
    facts = notebook.output(REVIEW).locator(".nba-facts")
    for action, words in (("label", "2 of 3"), ("skip", "3 of 3"), ("back", "2 of 3")):
        desk.click(REVIEW, action)
        expect(facts).to_have_text(words)


def uses_the_page_over_all_cases(desk: Desk) -> None:
    notebook = desk.notebook
    desk.click(LABELLED, "cases")
    expect(notebook.output(LABELLED).locator("tr.nba-case")).to_have_count(3)
    notebook.run(CASES)
    cases = notebook.output(CASES)
    desk.click(CASES, "order", "pick")
    expect(cases.locator("th[aria-sort=ascending]")).to_have_count(1)
    desk.click(CASES, "all", "next")
    expect(cases.locator(".nba-said")).to_have_text("No failure among the shown rows")
    desk.click(CASES, "unfold", "mark")
    expect(cases.locator(".nba-said")).to_contain_text("Stored: review = 1")


def uses_the_panel(desk: Desk) -> None:
    notebook = desk.notebook
    notebook.run(PANEL)
    panel = notebook.output(PANEL).locator(".nba-panel")
    box = panel.get_by_role("textbox", name="Prompt", exact=True)
    panel.locator('[data-do="drawer"][value="models"]').click()
    panel.locator('.nba-drawer-models [data-do="set"]:has-text("sleeper")').click()
    box.fill("Sleep.")
    with notebook.page.expect_file_chooser() as chooser:
        desk.click(panel, "files")
    chooser.value.set_files([FilePayload(name="a.txt", mimeType="text/plain", buffer=b"hi")])
    desk.click(panel, "detach", "send")
    panel.locator(".nba-card.nba-busy").wait_for()
    desk.click(panel.locator(".nba-box"), "stop")
    expect(panel.locator(".nba-phase")).to_have_text("Stopped")
    panel.locator('[data-do="drawer"][value="export"]').click()
    with notebook.page.expect_download():
        desk.click(panel, "export")
    desk.click(panel, "new")
    expect(panel.locator(".nba-phase")).to_have_count(0)
    panel.locator('[data-do="drawer"][value="runs"]').click()
    desk.click(panel, "open")
    expect(panel.locator(".nba-phase").first).to_be_visible()


@pytest.mark.proof
def test_every_button_is_clicked_and_does_what_it_says(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(CELLS, own_page=True)
    notebook.page.evaluate(_COLLECT)
    notebook.run(0)
    desk = Desk(notebook)
    answers_questions(desk)
    pauses_and_stops(desk)
    acts_on_a_finished_run(desk)
    uses_lists_and_batches(desk)
    uses_the_page_over_all_cases(desk)
    uses_the_panel(desk)
    clicked = set(notebook.page.evaluate("() => [...clicked]"))
    wanted = set(all_buttons())
    assert wanted - clicked - set(ELSEWHERE) == set()
    assert clicked - wanted == set(), "no button is missing from the list"
    assert notebook.console == []


@pytest.mark.proof
def test_a_docked_output_shows_the_run_stops_it_and_has_working_buttons(
    open_notebook: OpenNotebook,
) -> None:
    notebook = open_notebook(CELLS[: STOPPED + 1], own_page=True)
    notebook.run(0)
    page, n = notebook.page, STOPPED
    notebook.start(n)
    notebook.output(n).locator(".nba-card.nba-busy").wait_for()
    page.evaluate("n => { nbt.current().content.activeCellIndex = n; }", n)
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:create-output-view')")
    docked = page.locator(".jp-LinkedOutputView .nba-run")
    expect(docked.locator(".nba-card.nba-busy")).to_have_count(1)
    expect(docked.locator(".nba-phase")).to_have_text("Running")
    docked.locator("[data-do=stop]").click()
    notebook.wait(n)
    for root in (docked, notebook.output(n)):
        expect(root.locator(".nba-phase")).to_have_text("Stopped")
        expect(root.locator("[data-do=stop]")).to_have_count(0)
    docked.locator("[data-do=cell]:visible").click()
    expect(docked.locator(".nba-said")).to_have_text("Copied: paste it into a cell")
    assert notebook.console == []
