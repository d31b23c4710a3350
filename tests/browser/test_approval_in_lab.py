"""A person answers in JupyterLab: while a cell runs, and in the panel while the kernel is idle."""

from __future__ import annotations

import pytest
from jupyter_apps import NAP_TOOL, Notebook, OpenNotebook
from notebook_tools import KEEP
from playwright.sync_api import Locator, expect

SETUP = f"""
%load_ext nbagent
import nbagent
from nbagent import offline
{NAP_TOOL}

{KEEP}

keeps = [offline.call("keep", text="one"), offline.call("keep", text="two")]
offline.script([offline.step(text="I keep them.", calls=keeps), "Done."], name="keeper")
both = [offline.call("nap", seconds=60), offline.call("keep", text="three")]
offline.script([offline.step(text="I keep it.", calls=both), "Done."], name="napper")
call = offline.call("keep", text="third")
offline.script([offline.step(text="I keep it.", calls=[call]), "Done."], name="third")
nbagent.configure(ask="keep", model="offline:third")
"""
CELLS = [
    SETUP,
    "%%agent --model offline:keeper --tools keep\nKeep them.",
    "%%agent --model offline:napper --tools keep,nap\nKeep it.",
    "nbagent.panel()",
    "print([r.result.data or r.result.error.message for r in _run.turns[0].tool_runs])",
]


@pytest.fixture
def notebook(open_notebook: OpenNotebook) -> Notebook:
    """A notebook with a tool that asks, in JupyterLab."""
    notebook = open_notebook(CELLS)
    notebook.run(0)
    return notebook


def question(output: Locator, place: int = 0) -> Locator:
    """A question that takes clicks: not in the moment in which it comes up under the mouse."""
    return output.locator(".nba-ask.nba-armed").nth(place)


def button(question: Locator, name: str) -> Locator:
    return question.get_by_role("button", name=name, exact=True)


def test_a_person_edits_and_denies_while_the_cell_runs(notebook: Notebook) -> None:
    notebook.start(1)
    output = notebook.output(1)
    expect(output.locator(".nba-ask")).to_have_count(2)
    assert output.locator(".nba-phase").inner_text() == "Waiting for you"
    # A page that is loaded anew now shows the end, but has no part in what the file keeps.
    (kept,) = notebook.save()["cells"][1]["outputs"]
    assert "I keep them." in "".join(kept["data"]["text/html"])
    first, second = question(output, 0), question(output, 1)
    first.locator("summary", has_text="Edit…").click()
    field = first.locator('[data-field="text"]')
    assert field.input_value() == "one"
    field.press("ControlOrMeta+a")
    # Typed, key by key: the notebook's own shortcuts must not take them.
    notebook.page.keyboard.type("edited, dd")
    button(first, "Allow with these arguments").focus()
    notebook.page.keyboard.press("Enter")
    notebook.page.mouse.move(2, 2)
    second.locator("summary", has_text="Deny…").focus()
    notebook.page.keyboard.press("Enter")
    second.locator('[data-field="reason"]').focus()
    notebook.page.keyboard.type("not this one")
    button(second, "Deny").click()
    notebook.wait(1)
    output.locator(".nba-phase:has-text('Answered')").wait_for()
    notebook.run(4)
    assert notebook.text(4).strip() == "['kept edited, dd', 'not this one']"
    output.locator(".nba-turn summary").first.click()
    saved = output.inner_text()
    for words in (
        "arguments edited by you after",
        "arguments that the model had written",
        "denied by you after",
        "not this one",
    ):
        assert words in saved, words
    assert "waiting for you" in saved
    assert notebook.console == []


def test_a_click_arrives_while_a_tool_holds_the_main_thread(notebook: Notebook) -> None:
    notebook.start(2)
    output = notebook.output(2)
    button(question(output), "Allow once").click()
    expect(output.locator(".nba-ask")).to_have_count(0)
    assert "running" in output.locator(".nba-card").first.inner_text()
    notebook.wake()
    notebook.wait(2)
    notebook.run(4)
    assert notebook.text(4).strip() == "['was woken', 'kept three']"


@pytest.mark.proof
def test_a_docked_panel_is_the_same_panel_and_asks_in_both_of_its_views(
    notebook: Notebook,
) -> None:
    notebook.run(3)
    page = notebook.page
    root = notebook.output(3).locator(".nba-panel")
    page.evaluate("() => { nbt.current().content.activeCellIndex = 3; }")
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:create-output-view')")
    docked = page.locator(".jp-LinkedOutputView .nba-panel")
    assert page.locator(".jp-LinkedOutputView .nba-panel-saved").is_hidden()
    boxes = [view.get_by_role("textbox", name="Prompt", exact=True) for view in (docked, root)]
    boxes[0].click()
    page.keyboard.type("Keep it.")
    expect(boxes[1]).to_have_value("Keep it.")
    page.keyboard.press("Control+Enter")
    expect(docked.locator(".nba-ask")).to_have_count(1)
    expect(root.locator(".nba-ask")).to_have_count(1)
    expect(docked.locator(".nba-phase").last).to_have_text("Waiting for you")
    question(docked).get_by_role("button", name=" for the session").click()
    expect(button(question(root), "Allow once")).to_have_count(0)
    for view, box in zip((docked, root), boxes, strict=True):
        expect(view.locator(".nba-phase").last).to_have_text("Answered")
        expect(box).to_have_value("")
    assert notebook.console == []
