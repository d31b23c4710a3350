"""The box below a run that waits for the person's words: in living outputs, not in the file."""

from __future__ import annotations

import pytest
from jupyter_apps import AREA_TOOL, App, OpenNotebook, Server, opened
from playwright.sync_api import Browser, expect

CELLS = [
    AREA_TOOL,
    "%%agent --model offline:demo --max-turns 1\nWhat is the area of Oslo?",
    "%%agent --model offline:demo\nSay hello",
]
LIMIT, ANSWERED = 1, 2


@pytest.mark.parametrize("app", ["lab", pytest.param("notebook", marks=pytest.mark.proof)])
def test_a_run_that_waits_has_a_box_and_one_that_answered_has_a_button(
    app: App, open_notebook: OpenNotebook
) -> None:
    notebook = open_notebook(CELLS, app)
    notebook.run(0, LIMIT, ANSWERED)
    output = notebook.output(LIMIT)
    box = output.get_by_role("textbox", name="Further instructions for the model (optional)")
    expect(box).to_be_visible()
    box.fill("And of Bergen?")
    box.press("Control+Enter")
    phases = output.locator(".nba-phase")
    expect(phases).to_have_text(["Paused: limit of turns"] * 2)
    expect(output.locator(".nba-prompt").last).to_have_text("And of Bergen?")
    expect(box).to_have_count(1)  # the first run was continued
    # Empty words: the run goes on where it stopped. The forms of other buttons leave the box.
    output.locator('[data-do="retry"]').last.click()
    output.get_by_role("button", name="Cancel").click()
    expect(box).to_be_visible()
    output.get_by_role("button", name="Continue").click()
    expect(phases).to_have_count(3)
    quiet = notebook.output(ANSWERED)
    expect(quiet.get_by_role("textbox")).to_have_count(0)
    quiet.get_by_role("button", name="Continue").click()
    quiet.get_by_role("textbox").fill("Say it again")
    quiet.get_by_role("textbox").press("Control+Enter")
    expect(quiet.locator(".nba-phase")).to_have_text(["Answered", "Answered"])
    assert notebook.console == []


def test_a_file_without_its_kernel_shows_no_box(
    open_notebook: OpenNotebook, chromium: Browser, server: Server
) -> None:
    notebook = open_notebook(CELLS)
    notebook.run(0, LIMIT)
    expect(notebook.output(LIMIT).locator(".nba-reply")).to_be_visible()
    name = server.write_document("kept", notebook.save())
    for is_trusted in (False, True):
        if is_trusted:
            server.trust(name)
        with opened(chromium, server, name) as again:
            output = again.output(LIMIT)
            expect(output.locator(".nba-run")).to_contain_text("Paused: limit of turns")
            assert output.locator("textarea:visible, button:visible").count() == 0
            assert "Further instructions" not in output.inner_text()
