"""The live view in JupyterLab while a run goes on: it grows, keeps what was unfolded, survives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jupyter_apps import Notebook, Server, opened
from playwright.sync_api import Browser

SETUP = """
%load_ext nbagent
import nbagent
from nbagent import offline

@nbagent.tool
def area(city: str) -> float:
    "Area of a city in square kilometres."
    return 454.1

words = " ".join(f"word{n}" for n in range(1, 241))
offline.script(
    [offline.step(text="I look it up.", calls=[offline.call("area", city="Oslo")]), words],
    name="slow", delay_ms=12,
)
offline.script([words], name="short", delay_ms=12)
offline.script([words * 50], name="endless", delay_ms=12)
"""


@pytest.fixture(scope="module")
def notebook(chromium: Browser, server: Server) -> Iterator[Notebook]:
    runs = [
        "%%agent --model offline:slow --tools area\nHow large is Oslo?",
        "%%agent --model offline:short\nTalk",
        "%%agent --model offline:endless\nTalk",
        "import os, signal, threading\n"
        "threading.Timer(2, os.kill, (os.getpid(), signal.SIGKILL)).start()",
    ]
    name = server.write("live.ipynb", [SETUP, *runs])
    with opened(chromium, server, name) as notebook:
        notebook.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        notebook.run(0)
        yield notebook


def test_text_grows_and_folds_stay_as_the_person_left_them(notebook: Notebook) -> None:
    notebook.start(1)
    turns = notebook.output(1).locator(".nba-turn")
    turns.nth(1).locator(".nba-plain:has-text('word9')").wait_for()
    first, second = turns.nth(0), turns.nth(1)
    assert not first.evaluate("node => node.open")
    assert second.evaluate("node => node.open")
    assert second.locator(".nba-sum").inner_text().startswith("word1 word2 word3 ")
    text = second.locator(".nba-plain")
    lengths = [text.evaluate("node => node.textContent.length")]
    for _ in range(3):
        notebook.page.wait_for_timeout(150)
        lengths.append(text.evaluate("node => node.textContent.length"))
    assert lengths == sorted(set(lengths))
    first.locator("summary").first.click()
    first.locator(".nba-request summary").click()
    second.locator("summary").first.click()
    assert "454.1" in first.locator(".nba-card").inner_text()
    first.get_by_role("button", name="Copy the result of area").click()
    first.get_by_role("button", name="Copied the result of area").wait_for()
    assert notebook.page.evaluate("() => navigator.clipboard.readText()") == "454.1"
    # What is folded is not drawn, and is all there when it is unfolded again.
    assert text.count() == 0
    notebook.page.wait_for_timeout(400)
    second.locator("summary").first.click()
    assert text.evaluate("node => node.textContent.length") > lengths[-1]
    second.locator("summary").first.click()
    folds = [first.evaluate("node => node.open"), second.evaluate("node => node.open")]
    assert folds == [True, False]
    assert notebook.output(1).locator(".nba-stop").is_visible()
    notebook.page.evaluate(
        """() => {
          const area = nbt.cells()[1].outputArea.node;
          nbt.heights = [];
          new MutationObserver(() => nbt.heights.push(area.offsetHeight))
            .observe(area, { childList: true, subtree: true });
        }"""
    )
    notebook.wait(1)
    # The output never collapses while the picture is swapped.
    assert min(notebook.page.evaluate("() => nbt.heights")) > 60
    # The saved picture has taken the view's place, and what was unfolded still is.
    notebook.output(1).locator(".nba-phase:has-text('Answered')").wait_for()
    assert notebook.output(1).locator(".nba-stop").count() == 0
    assert [turn.evaluate("node => node.open") for turn in turns.all()] == [True, False]
    assert first.locator(".nba-request").evaluate("node => node.open")
    assert notebook.output(1).locator(".nba-answer").inner_text().endswith("word240")
    assert notebook.console == []


def test_a_page_that_is_loaded_anew_shows_the_run_when_its_cell_ends(notebook: Notebook) -> None:
    notebook.start(2)
    notebook.output(2).locator(".nba-plain:has-text('word9')").wait_for()
    notebook.save()
    notebook.load(kernel=False)
    notebook.page.wait_for_function("() => nbt.kernel()?.status === 'busy'")
    notebook.wait_idle()
    run = notebook.output(2).locator(".nba-run")
    run.locator(".nba-phase:has-text('Answered')").wait_for()
    assert run.locator(".nba-answer").inner_text().endswith("word240")
    run.locator(".nba-turn summary").first.click()
    assert "1 new message of 1" in run.locator(".nba-request").inner_text()


def test_a_view_whose_kernel_was_killed_says_so_and_what_goes_on(notebook: Notebook) -> None:
    notebook.run(4)
    notebook.start(3)
    output = notebook.output(3)
    output.locator(".nba-plain:has-text('word9')").wait_for()
    output.locator(".nba-phase:has-text('Interrupted')").wait_for()
    assert "%agent resume goes on" in output.locator(".nba-ends").inner_text()
    assert output.locator(".nba-stop").is_hidden()
    assert output.locator(".nba-caret").count() == 0
    # What had arrived is still there to read.
    assert "word9" in output.locator(".nba-plain").inner_text()
