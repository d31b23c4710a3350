"""JupyterLab whose notebooks are shared, or whose server executes the cells: real extensions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import MakeEnvironment
from front_ends import shows
from jupyter_apps import AREA_TOOL, Notebook, Server, opened
from playwright.sync_api import Browser, Locator, expect

import nbagent

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]
SETUP = (
    AREA_TOOL
    + """
import asyncio, os, time

@nbagent.tool
def nap(city: str) -> str:
    "Nap in a city, until somebody wakes it."
    while not os.path.exists("wake"):
        time.sleep(0.02)
    os.remove("wake")
    return "was woken"

@nbagent.tool
async def rest(city: str) -> str:
    "Rest in a city, until somebody wakes it."
    while not os.path.exists("wake"):
        await asyncio.sleep(0.02)
    os.remove("wake")
    return "was woken"
"""
)
CELLS = [
    SETUP,
    "%%agent -m offline:demo --tools area\nWhich area has Oslo?",
    "%%agent -m offline:demo --tools nap\nNap in Oslo.",
    "%%agent -m offline:demo --tools nap\nNap in Bergen.",
    "%%agent -m offline:demo --tools area --ask area\nWhich area has Oslo?",
    "%%agent -m offline:demo --tools rest\nRest in Oslo.",
    "%%agent -m offline:demo --tools rest\nRest in Bergen.",
    "%agent show last",
]
_, ANSWERED, LIVE, STOPPED, ASKED, RESTS, STOPPED_AGAIN, SHOW = range(len(CELLS))
TRUST = "() => { for (const cell of nbt.cells()) cell.model.trusted = true; }"


@pytest.fixture
def shared(environment: MakeEnvironment, chromium_path: str) -> Iterator[Server]:
    """A server of jupyter-collaboration."""
    made = environment("jupyter-collaboration", "jupyterlab")
    server = Server(python=made.python)
    try:
        yield server.wait_until_up()
    finally:
        server.close()


@pytest.fixture
def tab(shared: Server, chromium: Browser) -> Iterator[Notebook]:
    """A shared notebook in the tab that runs its cells."""
    with opened(chromium, shared, shared.write("shared", CELLS)) as notebook:
        notebook.run(0)
        yield notebook


@pytest.fixture
def second(tab: Notebook, shared: Server, chromium: Browser) -> Iterator[Notebook]:
    """The same notebook in another person's tab."""
    profile = chromium.new_context()
    with opened(chromium, shared, tab.name, profile=profile) as notebook:
        yield notebook
    profile.close()


def live(notebook: Notebook, n: int) -> Locator:
    """The live view below a cell."""
    return notebook.output(n).locator(".nba-view")


def allow(notebook: Notebook, n: int) -> None:
    """Answer the question below a cell, once it takes clicks."""
    question = notebook.output(n).locator(".nba-ask.nba-armed")
    question.get_by_role("button", name="Allow once", exact=True).click()


def file_of(notebook: Notebook) -> Path:
    """The notebook's file, saved now."""
    notebook.save()
    return notebook.server.folder / notebook.name


def saved_run(notebook: Notebook, n: int) -> nbagent.Run:
    """The run of a cell, read from the file; the store of this process has none of them."""
    (run,) = notebook.outputs(n)[-1]["data"]["text/html"].split('data-run="')[1:]
    return nbagent.read_notebook(file_of(notebook)).open_run(run.partition('"')[0])


def check_saved(notebook: Notebook, n: int, *texts: str) -> nbagent.Run:
    """Check that a cell's output reads as its end, and return its run from the file."""
    output = notebook.outputs(n)[-1]
    assert {"text/html", "text/plain"} == {*output["data"]}
    for text in texts:
        assert all(text in "".join(form) for form in output["data"].values())
    return saved_run(notebook, n)


@shows(
    "jupyter-collaboration 5: the tab that ran the cell",
    "live",
    "stop",
    "approve",
    "saved form reads",
    "record in the file",
)
def test_a_shared_notebook_is_live_in_the_tab_that_ran_the_cell(tab: Notebook) -> None:
    tab.run(ANSWERED)
    assert check_saved(tab, ANSWERED, "454.1").ok
    tab.start(LIVE)
    expect(live(tab, LIVE)).to_contain_text("nap(")
    tab.wake()
    tab.wait(LIVE)
    assert check_saved(tab, LIVE, "was woken").ok
    tab.start(STOPPED)
    expect(live(tab, STOPPED)).to_contain_text("nap(")
    tab.click_stop(STOPPED)
    tab.wait(STOPPED)
    assert check_saved(tab, STOPPED, "Stopped").stop_reason == "stopped"
    tab.start(ASKED)
    allow(tab, ASKED)
    tab.wait(ASKED)
    assert check_saved(tab, ASKED, "454.1").ok


@shows(
    "jupyter-collaboration 5: a second tab",
    "live",
    "stop",
    "approve",
    "saved form reads",
    "record in the file",
)
def test_a_second_tab_reads_the_end_and_once_trusted_watches_stops_and_answers(
    tab: Notebook, second: Notebook
) -> None:
    tab.run(ANSWERED)
    expect(second.output(ANSWERED)).to_contain_text("454.1")
    tab.start(LIVE)
    expect(second.output(LIVE)).to_contain_text("Trust this notebook to watch and answer")
    assert live(second, LIVE).count() == 0
    tab.wake()
    tab.wait(LIVE)
    expect(second.output(LIVE)).to_contain_text("was woken")
    tab.start(STOPPED)
    expect(live(tab, STOPPED)).to_contain_text("nap(")
    second.page.evaluate(TRUST)
    expect(live(second, STOPPED)).to_contain_text("nap(")
    second.click_stop(STOPPED)
    tab.wait(STOPPED)
    expect(tab.output(STOPPED)).to_contain_text("Stopped. Continue with")
    assert check_saved(tab, STOPPED, "Stopped").stop_reason == "stopped"
    tab.start(ASKED)
    allow(second, ASKED)
    tab.wait(ASKED)
    assert check_saved(tab, ASKED, "454.1").ok
    expect(second.output(ASKED)).to_contain_text("454.1")


@shows(
    "jupyter-collaboration 5: reloaded in mid-run",
    "live",
    "stop",
    "saved form reads",
    "record in the file",
)
def test_a_shared_notebook_that_is_reloaded_in_mid_run_goes_on_live(tab: Notebook) -> None:
    tab.run(ANSWERED)
    tab.start(RESTS)
    expect(live(tab, RESTS)).to_contain_text("rest(")
    tab.load(kernel=False)
    expect(live(tab, RESTS)).to_contain_text("rest(")
    tab.wake()
    expect(live(tab, RESTS)).to_contain_text("was woken")
    tab.wait_idle()
    # The page has forgotten the cell's request, so what the cell displays goes nowhere.
    (output,) = tab.outputs(RESTS)
    (reference,) = output["metadata"]["nbagent"]["runs"]
    assert f"%agent show {reference['run_id'][:8]} shows all of it" in output["data"]["text/html"]
    tab.run(SHOW)
    assert check_saved(tab, SHOW, "was woken").id == reference["run_id"]
    tab.start(STOPPED_AGAIN)
    expect(live(tab, STOPPED_AGAIN)).to_contain_text("rest(")
    tab.load(kernel=False)
    tab.click_stop(STOPPED_AGAIN)
    expect(live(tab, STOPPED_AGAIN)).to_contain_text("Stopped")


@pytest.fixture
def served(environment: MakeEnvironment, chromium: Browser) -> Iterator[Notebook]:
    """A notebook whose cells the server executes, open in JupyterLab."""
    made = environment("jupyter-server-nbmodel", "jupyterlab")
    server = Server(python=made.python)
    try:
        server.wait_until_up()
        with opened(chromium, server, server.write("served", CELLS)) as notebook:
            notebook.run(0)
            yield notebook
    finally:
        server.close()


@shows("jupyter-server-nbmodel", "stop", "approve", "saved form reads", "record in the file")
def test_cells_that_the_server_executes_show_their_end_and_ask_with_the_whole_call(
    served: Notebook,
) -> None:
    served.run(ANSWERED)
    assert check_saved(served, ANSWERED, "454.1").ok
    # The server applies no updates: the first display stays, and says nothing that is wrong later.
    assert served.output(ANSWERED).locator(".nba-phase").all_inner_texts() == ["Answered"]
    served.start(STOPPED)
    expect(served.output(STOPPED)).to_be_attached()
    served.click_square()
    served.wait(STOPPED)
    served.start(ASKED)
    field = served.cell(ASKED).locator(".jp-Stdin-input")
    expect(served.cell(ASKED).locator(".jp-Stdin-prompt")).to_contain_text("city: Oslo")
    field.fill("y")
    field.press("Enter")
    served.wait(ASKED)
    assert check_saved(served, ASKED, "454.1").ok
