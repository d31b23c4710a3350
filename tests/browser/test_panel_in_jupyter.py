"""The panel in JupyterLab and Notebook 7: typed into, stopped, gone on with, docked, saved."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jupyter_apps import IN_BOTH, IN_LAB, NAP_TOOL, App, Notebook, OpenNotebook, Server, opened
from playwright.sync_api import Browser, FilePayload, Locator, expect
from stage import CONTRAST

KEY = "sk-canary-0123456789abcdef"
SETUP = f"""
%load_ext nbagent
import nbagent
from nbagent import offline
{NAP_TOOL}
# In two pieces: the file must not hold it.
os.environ["CANARY_API_KEY"] = {KEY[:9]!r} + {KEY[9:]!r}

@nbagent.tool
def population(city: str) -> int:
    "People living in a city."
    return {{"Oslo": 717_710, "Bergen": 291_940}}[city]

@nbagent.tool(ask=True)
def send_mail(to: str, text: str) -> str:
    "Send a mail."
    return "sent to " + to

mail = offline.call("send_mail", to="a@b.c", text="Hi")
offline.script([offline.step(calls=[mail]), "Sent it."], name="mails")
"""
BOXES = """
import ipywidgets
out = ipywidgets.Output()
with out:
    nbagent.panel()
ipywidgets.Tab([ipywidgets.VBox([nbagent.panel(show=False)]), out])
"""
BUSY_CELL = "print(nap(60), flush=True)"
CELLS = [SETUP, "nbagent.panel()", BUSY_CELL, BOXES]
PANEL, BUSY, BOXED = 1, 2, 3
PACKAGE = Path(__file__).parents[2] / "notebooks" / "packages" / "table-review"
ONLY_IN_LAB = pytest.mark.parametrize("app", ["lab"])
"""For what JupyterLab alone has, or what does not depend on the app."""


@dataclass
class Desk:
    """A panel on the page."""

    notebook: Notebook
    root: Locator

    @property
    def box(self) -> Locator:
        return self.root.get_by_role("textbox", name="Prompt", exact=True)

    @property
    def status(self) -> Locator:
        return self.root.locator(".nba-status")

    @property
    def error(self) -> Locator:
        return self.root.get_by_role("alert")

    @property
    def phases(self) -> Locator:
        return self.root.locator(".nba-phase")

    @property
    def stop(self) -> Locator:
        return self.root.locator(".nba-box [data-do=stop]")

    def do(self, what: str, *, within: Locator | None = None) -> None:
        """Click a button by what it does."""
        (within or self.root).locator(f'[data-do="{what}"]:visible').first.click()

    def drawer(self, key: str) -> Locator:
        """Open a drawer of the panel."""
        self.root.locator(f".nba-opener-{key}").click()
        return self.root.locator(f".nba-drawer-{key}")

    def button(self, name: str) -> Locator:
        return self.root.get_by_role("button", name=name, exact=True)

    def field(self, label: str) -> Locator:
        return self.root.get_by_label(label, exact=True)

    def write(self, label: str, text: str) -> None:
        """Type into a field of the form, and leave it."""
        if not self.field(label).is_visible():
            drawer = self.field(label).locator("xpath=ancestor::*[@data-key][1]")
            self.drawer(drawer.get_attribute("data-key") or "")
        self.field(label).fill(text)
        self.field(label).press("Tab")

    def say(self, text: str) -> None:
        self.box.click()
        self.notebook.page.keyboard.type(text)
        self.notebook.page.keyboard.press("Control+Enter")

    def ends(self, *words: str) -> None:
        """Wait until the runs on the page have ended so, and the box is free again."""
        expect(self.phases).to_have_text([*words], timeout=20_000)
        expect(self.stop).to_be_hidden(timeout=20_000)


def begin(notebook: Notebook) -> Desk:
    notebook.run(0, PANEL)
    return Desk(notebook, notebook.output(PANEL).locator(".nba-panel"))


@pytest.fixture
def desk(app: App, open_notebook: OpenNotebook, server: Server) -> Desk:
    """A panel in a notebook of its own, beside a workflow."""
    notebook = open_notebook(CELLS, app)
    shutil.copytree(PACKAGE, (server.folder / notebook.name).parent / PACKAGE.name)
    return begin(notebook)


@IN_BOTH
def test_a_person_types_sends_stops_and_goes_on(desk: Desk, figures: list[str]) -> None:
    assert desk.notebook.error(PANEL) == ""
    expect(desk.button("Send")).to_be_disabled()
    desk.say("Use nap with 60 seconds")
    desk.root.locator(".nba-turn:has-text('running')").wait_for()
    expect(desk.box).to_have_value("")
    expect(desk.status).to_have_text("Running")
    desk.box.fill("And the population of Oslo?")
    expect(desk.button("Send")).to_be_disabled()
    expect(desk.button("New conversation")).to_be_disabled()
    before = desk.notebook.page.evaluate("() => performance.now()")
    desk.stop.click()
    desk.ends("Stopped")
    took = desk.notebook.page.evaluate("() => performance.now()") - before
    figures.append(f"panel  {desk.notebook.app:26} stop of a sleeping tool {took:4.0f} ms")
    desk.do("continue", within=desk.root.locator(".nba-box"))
    # The stopped call is made again.
    desk.root.locator(".nba-turn:has-text('running')").wait_for()
    desk.stop.click()
    desk.ends("Stopped", "Stopped")
    expect(desk.box).to_have_value("And the population of Oslo?")
    desk.button("Send").click()
    desk.ends("Stopped", "Stopped", "Answered")
    assert "717,710" in desk.root.locator(".nba-answer").last.inner_text()
    assert desk.root.locator(".nba-totals").inner_text().startswith("3 runs · 4 turns · ")
    desk.say("Use nap with 60 seconds")
    desk.root.locator(".nba-card.nba-busy").wait_for()
    desk.do("pause", within=desk.root.locator(".nba-box"))
    expect(desk.status).to_have_text("Pausing after this turn…")
    # A button says it at once; the note comes from the kernel, which knows of it now.
    expect(desk.root.locator("span.nba-note:has-text('Pausing after this turn…')")).to_have_count(1)
    desk.notebook.wake()
    desk.ends("Stopped", "Stopped", "Answered", "Paused")
    desk.do("continue", within=desk.root.locator(".nba-box"))
    desk.ends("Stopped", "Stopped", "Answered", "Paused", "Answered")
    assert desk.notebook.console == []


@IN_LAB
def test_a_person_approves_forks_compares_and_exports(desk: Desk) -> None:
    desk.drawer("models").get_by_role("button", name="mails").click()
    expect(desk.field("Model")).to_have_value("offline:mails")
    desk.say("Mail it")
    question = desk.root.locator("[data-question].nba-armed")
    question.wait_for()
    question.get_by_role("button", name="Allow once").click()
    desk.ends("Answered")
    assert "Sent it." in desk.root.locator(".nba-answer").inner_text()
    desk.write("Model", "offline:demo")
    desk.say("What is the population of Oslo?")
    desk.ends("Answered", "Answered")
    run = desk.root.locator(".nba-run").last
    run.locator(".nba-turn > summary").first.click()
    desk.do("fork", within=run)
    run.locator(".nba-words textarea").fill("What is the population of Bergen?")
    desk.do("go", within=run)
    desk.ends("Answered", "Answered", "Answered")
    forked = desk.root.locator("[data-run][data-kernel]").last
    assert "291,940" in forked.locator(".nba-answer").inner_text()
    desk.do("compare", within=forked)
    desk.do("go", within=forked)
    expect(desk.root.get_by_role("group", name="comparison of runs")).to_contain_text("C03 | C03")
    expect(desk.root.locator(".nba-words")).to_have_count(0)
    desk.do("retry", within=forked)
    desk.do("go", within=forked)
    desk.ends("Answered", "Answered", "Answered", "Comparison", "Answered")
    expect(desk.stop).to_be_hidden()
    with desk.notebook.page.expect_file_chooser() as chooser:
        desk.do("files")
    names = ("a.txt", "b.csv")
    chooser.value.set_files(
        [FilePayload(name=name, mimeType="text/plain", buffer=b"hello") for name in names]
    )
    chips = desk.root.locator(".nba-chips .nba-chip")
    expect(chips).to_contain_text(names)
    for left in (1, 0):
        desk.do("detach")
        expect(chips).to_have_count(left)
    desk.do("new")
    runs = desk.drawer("runs")
    runs.get_by_role("searchbox").fill("291,940 bergen answered")
    found = runs.get_by_role("button", name="What is the population of Bergen?")
    found.first.click()
    expect(desk.phases).to_have_text(["Answered"])
    tree = desk.drawer("session")
    expect(tree.locator("summary", has_text="you are here")).to_contain_text("again: ")
    branch = tree.locator(
        ".nba-branch > details", has_text="continued: What is the population"
    ).last
    branch.locator("summary").click()
    branch.get_by_role("button").click()
    expect(desk.phases).to_have_text(["Answered", "Answered"])
    export = desk.drawer("export")
    export.get_by_role("combobox").select_option(label="Mail it")
    with desk.notebook.page.expect_download() as download:
        export.get_by_role("button", name="Markdown").click()
    assert "sent to a@b.c" in download.value.path().read_text()
    assert desk.notebook.console == []


@pytest.mark.proof
@IN_LAB
def test_a_person_starts_answers_and_resumes_a_workflow(desk: Desk) -> None:
    packages = desk.drawer("packages")
    packages.get_by_role("button", name="table-review").click()
    desk.button("Send").click()
    desk.ends("Waiting for you")
    graph = desk.root.locator(".nba-flow").last
    expect(graph.locator("summary")).to_contain_text("step-01-scope")
    desk.say("For a talk; the last column.")
    expect(desk.phases).to_have_count(2)
    expect(desk.stop).to_be_hidden()
    run = desk.root.locator(".nba-run").last.get_attribute("data-run")
    desk.do("new")
    runs = desk.drawer("runs")
    runs.get_by_role("searchbox").fill("last column")
    runs.locator(f'[value="{run}"]').click()
    expect(desk.phases).to_have_count(2)
    desk.say("Go on.")
    question = desk.root.locator("[data-question].nba-armed").first
    expect(question).to_contain_text("needs your approval", timeout=20_000)
    desk.stop.click()
    expect(desk.phases.last).to_have_text("Stopped")
    desk.do("continue", within=desk.root.locator(".nba-box"))
    expect(desk.phases).to_have_count(4)
    expect(desk.stop).to_be_visible()
    desk.stop.click()
    expect(desk.stop).to_be_hidden()
    expect(desk.root.locator(".nba-flow").last).to_contain_text("step-01-scope")


@pytest.mark.proof
@ONLY_IN_LAB
def test_a_prompt_waits_for_a_busy_kernel_and_says_so(desk: Desk) -> None:
    desk.notebook.start(BUSY)
    desk.notebook.page.wait_for_function("() => nbt.kernel().status === 'busy'")
    desk.say("What is the population of Bergen?")
    expect(desk.status).to_contain_text("Waiting: a cell is running")
    assert desk.box.input_value() == "What is the population of Bergen?"
    desk.notebook.wake()
    desk.notebook.wait(BUSY)
    assert desk.notebook.text(BUSY).strip() == "was woken"
    expect(desk.phases).to_have_text(["Answered"])
    expect(desk.box).to_have_value("")


@ONLY_IN_LAB
@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.proof), "dark"])
def test_words_have_contrast_and_everything_has_a_name(
    app: App, open_notebook: OpenNotebook, theme: str
) -> None:
    desk = begin(open_notebook(CELLS, app, own_page=True))
    desk.say("What is the population of Oslo?")
    desk.ends("Answered")
    field = desk.field("Max total tokens")
    expect(field).to_have_accessible_description(re.compile("uses more tokens in all"))
    page = desk.notebook.page
    word = "Light" if theme == "light" else "Dark"
    page.evaluate(
        "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })",
        f"JupyterLab {word}",
    )
    page.wait_for_function(
        "light => document.body.dataset.jpThemeLight === light", arg=str(theme == "light").lower()
    )
    desk.box.fill("ready")
    texts = desk.root.evaluate(CONTRAST)["texts"]
    assert {name: ratio for name, ratio in texts.items() if ratio < 4.5} == {}
    desk.box.fill("")
    nameless = desk.root.evaluate(
        """root => [...root.querySelectorAll("button, input, select, textarea")].filter((node) =>
          node.checkVisibility() && !node.getAttribute("aria-label") && !node.labels?.length &&
          !node.title && !node.textContent.trim()).map((node) => node.outerHTML)"""
    )
    assert nameless == []


@ONLY_IN_LAB
def test_a_reopened_notebook_has_the_runs_and_words_and_no_key(
    app: App, open_notebook: OpenNotebook, chromium: Browser, server: Server
) -> None:
    # A page reads the settings while it starts.
    with server.changed_setting(
        "@jupyter-widgets/jupyterlab-manager:plugin", {"saveState": True}, {"saveState": False}
    ):
        desk = begin(open_notebook(CELLS, app, own_page=True))
    notebook = desk.notebook
    desk.say("What is the population of Bergen?")
    desk.ends("Answered")
    desk.write("Model", f"x{KEY}")
    expect(desk.field("Model")).to_have_value("x[redacted]")
    desk.write("System prompt", f"Never say {KEY}.")
    desk.box.fill(f"What opens {KEY}?")
    document = notebook.save()
    text = json.dumps(document)
    assert KEY not in text
    # The state of the widgets is in the file: it is what this test is for.
    assert "x[redacted]" in json.dumps(document["metadata"]["widgets"])
    live, saved = document["cells"][PANEL]["outputs"][:2]
    assert "text/html" not in live["data"]
    assert "291,940" in "".join(saved["data"]["text/html"])
    _gone_after_a_restart(desk)
    del document["metadata"]["widgets"]  # as it is with JupyterLab's own settings
    # There is no dead box, but the saved form and what to do.
    again = server.write_document("panel-again", document)
    server.trust(again)
    with opened(chromium, server, again) as reopened:
        output = reopened.output(PANEL)
        output.locator(".nba-panel-saved").wait_for()
        expect(output.locator(".nba-notes")).to_contain_text("run this cell again")
        expect(output.locator(".nba-panel-saved")).to_contain_text("291,940")
        assert not output.locator(".nba-panel").is_visible()
        assert "Error displaying widget" not in output.inner_text()
        assert output.inner_text().count("nbagent panel") == 1


def _gone_after_a_restart(desk: Desk) -> None:
    page = desk.notebook.page
    desk.write("Model", "")
    desk.button("New conversation").click()
    expect(desk.phases).to_have_count(0)
    desk.box.fill("Use nap with 60 seconds")
    desk.button("Send").click()
    desk.root.locator(".nba-card.nba-busy:has-text('running')").wait_for()
    desk.box.fill(f"What opens {KEY}?")
    page.evaluate("() => nbt.current().sessionContext.session.kernel.restart()")
    expect(desk.error).to_contain_text("The kernel of this panel is gone. Run the cell again")
    expect(desk.box).to_have_value(f"What opens {KEY}?")
    desk.box.press_sequentially(" Typed on")
    expect(desk.button("Send")).to_be_disabled()
    expect(desk.phases.last).to_have_text("Interrupted")
    run = desk.root.locator(".nba-run").last
    expect(run.locator(".nba-card")).to_contain_text("interrupted")
    desk.notebook.wait_idle()
    desk.notebook.run(0, PANEL)
    desk.say("What is the population of Oslo?")
    desk.ends("Answered")
    answers: Any = desk.root.locator(".nba-answer")
    assert "717,710" in answers.last.inner_text()
    assert not [line for line in desk.notebook.console if "Cannot send" in line]


SENT_DRAFTS = """
() => {
  nbt.drafts = [];
  nbt.kernel().anyMessage.connect((_, { msg, direction }) => {
    const said = msg.content?.data?.content;
    if (direction === "send" && said?.kind === "draft") nbt.drafts.push(said.text);
  });
}
"""


@pytest.mark.proof
@IN_LAB
def test_a_page_loaded_anew_in_mid_run_has_all_and_two_panels_are_in_step(desk: Desk) -> None:
    desk.notebook.run(BOXED)
    boxed = desk.notebook.output(BOXED)
    panels = [boxed.locator(".nba-panel").nth(n) for n in (0, 1)]
    expect(panels[0]).to_be_visible()
    desk.notebook.page.evaluate(SENT_DRAFTS)
    desk.say("Use nap with 60 seconds")
    for panel in panels:
        expect(panel.locator(".nba-card.nba-busy")).to_have_count(1)
    desk.write("System prompt", "Be brief.")
    desk.box.fill("A thought")
    boxed.get_by_role("tab").nth(1).click()
    expect(panels[1].get_by_role("textbox", name="Prompt", exact=True)).to_have_value("A thought")
    desk.notebook.page.wait_for_function("() => nbt.drafts.includes('A thought')")
    desk.notebook.save()
    desk.notebook.load(kernel=False)
    desk.notebook.wake()
    desk.root.wait_for()
    expect(desk.box).to_have_value("A thought")
    expect(desk.root.get_by_label("System prompt")).to_have_value("Be brief.")
    desk.ends("Answered")
    for panel in panels:
        expect(panel.locator(".nba-phase")).to_have_text(["Answered"])


RIGHT_CELLS = [
    f"{SETUP}\ncities = ['Bergen']",
    "nbagent.panel(where='right')",
    "print('line\\n' * 200)",
    "%%agent --model offline:demo\nSay hello",
]


def at_the_right(notebook: Notebook) -> Desk:
    return Desk(notebook, notebook.page.locator(".jupyterlab-sidecar .nba-panel"))


@ONLY_IN_LAB
def test_the_panel_at_the_right_stays_in_sight_and_does_all(
    app: App, open_notebook: OpenNotebook
) -> None:
    pytest.importorskip("sidecar")
    notebook = open_notebook(RIGHT_CELLS, app, own_page=True)
    notebook.run(0, 1, 2)
    below, desk = notebook.output(1).locator(".nba-panel"), at_the_right(notebook)
    elsewhere = "The panel is open at the right. Show it here"
    expect(below).to_have_text(elsewhere, use_inner_text=True)
    desk.say("What is the population of {{ cities[0] }}?")
    desk.ends("Answered")
    expect(desk.root.locator(".nba-answer")).to_contain_text("291,940")
    desk.say("{{ _cells[-1] }}")
    desk.ends("Answered", "Answered")
    expect(desk.root.locator(".nba-prompt").last).to_contain_text("print('line")
    # A second call brings it to the front of the tabs, with its conversation.
    notebook.page.locator(".jp-SideBar.jp-mod-right .lm-TabBar-tab").first.click()
    expect(desk.box).to_be_hidden()
    notebook.run(1)
    desk.ends("Answered", "Answered")
    expect(desk.box).to_be_in_viewport()
    expect(desk.root).to_have_count(1)
    runs = desk.drawer("runs")
    expect(runs.get_by_role("button")).to_have_count(2)
    notebook.page.evaluate(
        "() => document.querySelector('.jp-WindowedPanel-outer').scrollTo(0, 9999)"
    )
    notebook.run(3)
    expect(desk.box).to_be_in_viewport()
    expect(runs.get_by_role("button")).to_have_count(3)
    desk.do("new")
    desk.write("Model", "offline:mails")
    desk.say("Mail it")
    desk.root.locator("[data-question].nba-armed").wait_for()
    desk.root.get_by_role("button", name="Allow once").click()
    desk.ends("Answered")
    export = desk.drawer("export")
    with notebook.page.expect_download() as download:
        export.get_by_role("button", name="Markdown").click()
    assert "sent to a@b.c" in download.value.path().read_text()
    desk.write("Model", "offline:demo")
    desk.say("Use nap with 60 seconds")
    desk.root.locator(".nba-card.nba-busy").wait_for()
    desk.stop.click()
    desk.ends("Answered", "Stopped")
    desk.do("retry", within=desk.root.locator(".nba-run").first)
    expect(desk.root.locator(".nba-words")).to_be_visible()
    assert notebook.console == []


@ONLY_IN_LAB
def test_the_panel_comes_back_below_its_cell(app: App, open_notebook: OpenNotebook) -> None:
    pytest.importorskip("sidecar")
    notebook = open_notebook(RIGHT_CELLS, app, own_page=True)
    notebook.run(0, 1)
    below = Desk(notebook, notebook.output(1).locator(".nba-panel"))
    desk = at_the_right(notebook)
    desk.box.fill("A thought")
    expect(below.box).to_be_hidden()
    notebook.page.locator(".lm-TabBar-tab", has_text="nbagent").locator(
        ".lm-TabBar-tabCloseIcon"
    ).click(force=True)  # the tab itself lies above its icon
    expect(desk.root).to_have_count(0)
    expect(below.box).to_have_value("A thought")
    notebook.run(1)
    expect(below.box).to_be_hidden()
    below.button("Show it here").click()
    expect(desk.root).to_have_count(0)
    below.say("")
    below.ends("Answered")
    notebook.run(1)
    notebook.save()
    notebook.load()
    expect(desk.phases).to_have_text(["Answered"])
    expect(below.box).to_be_hidden()


@pytest.mark.proof
@pytest.mark.parametrize("app", ["notebook"])
def test_in_notebook_7_the_panel_stays_below_with_one_line(
    app: App, open_notebook: OpenNotebook
) -> None:
    pytest.importorskip("sidecar")
    notebook = open_notebook(RIGHT_CELLS, app)
    notebook.run(0, 1)
    desk = Desk(notebook, notebook.output(1).locator(".nba-panel"))
    expect(desk.root.locator(".nba-hint")).to_contain_text("so it stays below this cell")
    desk.say("What is the population of Oslo?")
    desk.ends("Answered")
