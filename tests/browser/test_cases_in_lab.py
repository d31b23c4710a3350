"""The page over all cases in JupyterLab: live while the batch works, by a button, in the panel."""

from __future__ import annotations

import pytest
from jupyter_apps import OpenNotebook
from playwright.sync_api import expect

SETUP = """
%load_ext nbagent
import nbagent, pandas
from nbagent import offline

df = pandas.DataFrame({"key": [f"row {n}" for n in range(20)], "n": range(20)})

def answer(request):
    text = request.messages[-1].text
    return offline.error("LLM_HTTP_ERROR", "no luck") if text.endswith(" 3") else f"said {text}"

def exact(row, run):
    return row.n % 2 == 0

slow = [offline.delay(0.1), answer]
offline.script([answer] * 4 + slow * 500, name="slow")
agent = nbagent.Agent("offline:slow", tools=[])
vary = {"prompt": {"a": "Say {{ n }}", "b": "Tell {{ n }}"}}
"""
START = "batch = agent.map(df, vary=vary, key='key', score=exact, concurrency=1, name='live')"
LABELS = "print(nbagent.scores(scorer='review')[['value', 'by', 'reason']].values.tolist())"
CELLS = [SETUP, START, "batch.page()", "batch.wait();", LABELS, "batch", "nbagent.panel()"]


@pytest.mark.proof
def test_a_person_finds_failures_reads_and_labels_them_while_the_batch_works(
    open_notebook: OpenNotebook,
) -> None:
    notebook = open_notebook(CELLS)
    notebook.run(0, 1, 2)
    output = notebook.output(2)
    rows = output.locator("tr.nba-case")
    expect(rows).to_have_count(40)
    expect(output.locator(".nba-shown")).to_have_text("40 of 40 cases")
    notebook.run(3)
    expect(output.locator(".nba-facts")).to_have_text("✕ 18 wrong · ! 2 failed · ✓ 20 right")
    output.get_by_label("Filter by prompt").select_option("b")
    output.get_by_label("Filter by verdict").select_option("failed")
    expect(rows).to_have_count(1)
    rows.locator(".nba-unfold").click()
    expect(output.locator(".nba-opened .nba-run")).to_contain_text("Tell 3")
    expect(output.locator(".nba-opened .nba-run")).to_contain_text("no luck")
    for key in ("r", "b", "a", "d", "Enter", "1"):
        notebook.page.keyboard.press(key)
    expect(output.locator(".nba-said")).to_have_text("Stored: review = 1 for row row 3 · b")
    notebook.run(4)
    assert notebook.text(4).strip() == "[[1.0, 'person', 'bad']]"


@pytest.mark.proof
def test_the_button_of_a_batch_opens_its_cases(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(CELLS)
    notebook.run(0, 1, 3, 5)
    output = notebook.output(5)
    output.get_by_role("button", name="All cases").click()
    expect(output.locator("tr.nba-case")).to_have_count(40)
    document = notebook.save()
    assert "40 cases" in str(document["cells"][5]["outputs"])


@pytest.mark.proof
def test_the_panel_shows_the_cases_of_a_batch_until_a_run_is_shown(
    open_notebook: OpenNotebook,
) -> None:
    notebook = open_notebook(CELLS)
    notebook.run(0, 1, 3, 6)
    panel = notebook.output(6)
    panel.get_by_role("button", name="Batches").click()
    panel.get_by_role("button", name="live", exact=True).click()
    expect(panel.locator("tr.nba-case")).to_have_count(40)
    panel.locator(".nba-unfold").first.click()
    expect(panel.locator(".nba-opened .nba-run")).to_contain_text("Say 0")
    notebook.page.keyboard.press("5")
    expect(panel.locator(".nba-said")).to_contain_text("Stored: review = 5")
    panel.get_by_role("button", name="New conversation").click()
    expect(panel.locator(".nba-cases")).to_have_count(0)
