"""A run in JupyterLab and Notebook 7: it grows, is paused, ends as HTML, and its buttons go on."""

from __future__ import annotations

import os
import signal

import pytest
from jupyter_apps import AREA_TOOL, IN_BOTH, IN_LAB, NAP_TOOL, App, Notebook, OpenNotebook
from playwright.sync_api import Locator, expect

SETUP = (
    AREA_TOOL
    + NAP_TOOL
    + """
import asyncio

@nbagent.tool
async def rest() -> str:
    "Wait for the test, and leave the kernel free for messages."
    while not os.path.exists("wake"):
        await asyncio.sleep(0.02)
    return "rested"

words = " ".join(f"word{n}" for n in range(1, 121))
look = offline.step(text="I look it up.", calls=[offline.call("area", city="Oslo")])
naps = offline.step(text=words, calls=[offline.call("nap", seconds=60)])
offline.script([look, naps, "The last is word240"], name="slow", delay_ms=12)
rests = offline.step(text=words, calls=[offline.call("rest")])
offline.script([rests, "The last is word240"], name="short")
offline.script([words], name="talk")
offline.script([words * 100], name="endless", delay_ms=12)
offline.script([naps, look, "Done."], name="paused")
offline.script([look, "First answer.", "Second answer.", "Third answer."], name="several")
offline.script(["None.", look, "Two.", look, "454 km²."], name="spread")
"""
)
RUNS = [
    "%%agent --model offline:slow --tools area,nap\nHow large is Oslo?",
    "%%agent --model offline:short --tools rest\nTalk",
    "%%agent --model offline:endless\nTalk",
    "print(os.getpid())",
    "%%agent --model offline:paused --tools area,nap\nWork",
    "%%agent --model offline:several --tools area --name several\nHow large is {{ 'Oslo' }}?",
    "%agent show several",
    "import ipywidgets\nwith (place := ipywidgets.Output()):\n"
    "    nbagent.Agent(model='offline:demo', tools=[]).run('Hello')\n"
    "ipywidgets.Tab([ipywidgets.VBox([place])])",
    "%%agent --model offline:spread --tools area\nHow large is Oslo?",
    "agent = nbagent.Agent(model='offline:talk', tools=[], session='tree-APP')\n"
    "_ = agent.run('Talk a little').fork('C01', 'Talk of APP', model='offline:demo')",
    "%agent tree tree-APP",
    "%agent history",
]
SLOW, SHORT, ENDLESS, PID, PAUSED, SEVERAL, SHOW, BOX, SPREAD, FORK, TREE, TABLE = range(1, 13)


@pytest.fixture
def notebook(app: App, open_notebook: OpenNotebook) -> Notebook:
    """A notebook whose first cell has run."""
    notebook = open_notebook([cell.replace("APP", app) for cell in (SETUP, *RUNS)], app)
    notebook.run(0)
    return notebook


def runs(notebook: Notebook, n: int) -> Locator:
    return notebook.output(n).locator(".nba-run")


def do(notebook: Notebook, n: int, what: str, place: int = 0) -> Locator:
    return runs(notebook, n).nth(place).locator(f"[data-do={what}]")


def sides(notebook: Notebook, n: int) -> list[float]:
    """Where the first run of a cell begins and ends, across."""
    script = "node => { const r = node.getBoundingClientRect(); return [r.left, r.right]; }"
    return runs(notebook, n).first.evaluate(script)


WATCH = """
n => {
  const area = nbt.cells()[n].outputArea.node;
  const seen = nbt.seen = { lengths: [], heights: [] };
  new MutationObserver(() => {
    seen.heights.push(area.offsetHeight);
    const text = area.querySelectorAll(".nba-turn")[1]?.querySelector(".nba-plain");
    if (text) seen.lengths.push(text.textContent.length);
  }).observe(area, { childList: true, characterData: true, subtree: true });
}
"""


@IN_BOTH
def test_text_grows_and_folds_stay_as_the_person_left_them(notebook: Notebook) -> None:
    notebook.page.set_viewport_size({"width": 800, "height": 900})
    notebook.page.evaluate(WATCH, SLOW)
    notebook.start(SLOW)
    turns = notebook.output(SLOW).locator(".nba-turn")
    first, second = turns.nth(0), turns.nth(1)
    expect(second.locator(".nba-plain")).to_contain_text("word9")
    assert not first.evaluate("node => node.open")
    assert second.evaluate("node => node.open")
    expect(second.locator(".nba-card")).to_contain_text("running")
    lengths = notebook.page.evaluate("() => nbt.seen.lengths")
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 3
    first.locator("summary").first.click()
    first.locator(".nba-request summary").click()
    assert "454.1" in first.locator(".nba-card").inner_text()
    second.locator("summary").first.click()
    live_sides = sides(notebook, SLOW)
    notebook.page.evaluate("() => { nbt.seen.heights = []; }")
    notebook.wake()
    notebook.wait(SLOW)
    # The output never collapses while the picture is swapped.
    assert min(notebook.page.evaluate("() => nbt.seen.heights")) > 60
    expect(notebook.output(SLOW).locator(".nba-phase")).to_have_text("Answered")
    assert do(notebook, SLOW, "stop").count() == 0
    assert sides(notebook, SLOW) == live_sides, "nothing moves when the picture is swapped"
    assert [turn.evaluate("node => node.open") for turn in turns.all()[:2]] == [True, False]
    assert first.locator(".nba-request").evaluate("node => node.open")
    assert notebook.output(SLOW).locator(".nba-answer").inner_text().endswith("word240")
    assert notebook.console == []


@pytest.mark.proof
@IN_LAB
def test_a_pause_ends_the_run_after_its_turn_and_continue_goes_on(notebook: Notebook) -> None:
    notebook.start(PAUSED)
    do(notebook, PAUSED, "pause").click()
    # Not the button, which says it at once: the kernel knows of it now.
    note = runs(notebook, PAUSED).locator("span.nba-note:has-text('Pausing after this turn…')")
    expect(note).to_have_count(1)
    notebook.wake()
    notebook.wait(PAUSED)
    assert notebook.error(PAUSED) == ""
    expect(runs(notebook, PAUSED).locator(".nba-turn")).to_have_count(1)
    do(notebook, PAUSED, "continue").click()
    runs(notebook, PAUSED).locator(".nba-words .nba-go").click()
    expect(runs(notebook, PAUSED).nth(1).locator(".nba-answer")).to_have_text("Done.")


@IN_LAB
def test_every_button_of_a_finished_run_works_in_its_cell_and_where_it_is_shown_again(
    notebook: Notebook,
) -> None:
    notebook.run(SEVERAL, SHOW)
    answers = notebook.output(SEVERAL).locator(".nba-answer")
    assert answers.all_inner_texts() == ["First answer."]
    do(notebook, SEVERAL, "copy").last.click()
    expect(runs(notebook, SEVERAL).locator(".nba-said")).to_have_text("Copied the answer")
    read = "() => navigator.clipboard.readText()"
    assert notebook.page.evaluate(read) == "First answer."
    do(notebook, SEVERAL, "cell").click()
    expect(runs(notebook, SEVERAL).locator(".nba-said")).to_have_text(
        "Copied: paste it into a cell"
    )
    cell = notebook.page.evaluate(read)
    assert cell.splitlines()[1:] == ["How large is {{ 'Oslo' }}?"]
    assert {"--model offline:several", "--tools area"} <= {
        " ".join(pair) for pair in zip(cell.split(), cell.split()[1:], strict=False)
    }
    runs(notebook, SEVERAL).locator(".nba-turn summary").first.click()
    expect(do(notebook, SEVERAL, "copy")).to_have_count(1)  # short values have no button
    do(notebook, SEVERAL, "retry").click()
    runs(notebook, SEVERAL).locator(".nba-words .nba-go").click()
    expect(answers).to_have_text(["First answer.", "Second answer."])
    do(notebook, SEVERAL, "compare", 1).click()
    do(notebook, SEVERAL, "cancel", 1).click()
    expect(do(notebook, SEVERAL, "cancel", 1)).to_have_count(0)
    do(notebook, SEVERAL, "compare", 1).click()
    chosen = runs(notebook, SEVERAL).nth(1).get_by_role("combobox")
    assert "How large is {{ 'Oslo' }}?" in chosen.locator("option").first.inner_text()
    runs(notebook, SEVERAL).locator(".nba-words .nba-go").click()
    expect(notebook.output(SEVERAL)).to_contain_text("1 changed")
    # The first of them is below `%agent show` as well, where a click shows what follows too.
    runs(notebook, SHOW).locator(".nba-turn summary").nth(2).click()
    do(notebook, SHOW, "fork").nth(1).click()
    runs(notebook, SHOW).get_by_role("textbox").fill("In other words")
    runs(notebook, SHOW).locator(".nba-words .nba-go").click()
    expect(notebook.output(SHOW).locator(".nba-answer").nth(1)).to_have_text("Third answer.")
    expect(runs(notebook, SHOW).nth(1)).to_contain_text("In other words")
    (output,) = notebook.outputs(SEVERAL)
    assert sorted(output["data"]) == ["text/html", "text/plain"]
    assert len(output["metadata"]["nbagent"]) == 2
    assert notebook.console == []


@pytest.mark.proof
@IN_LAB
def test_answers_to_one_request_are_asked_one_by_one_and_the_chosen_one_goes_on(
    notebook: Notebook,
) -> None:
    notebook.run(SPREAD)
    place = notebook.output(SPREAD)
    answers = place.locator("[data-run][data-kernel]")
    for n in (2, 3):
        do(notebook, SPREAD, "retry").click()
        expect(place.locator(".nba-words select")).to_have_count(0)
        place.locator(".nba-words .nba-go").click()
        expect(answers).to_have_count(n)
        expect(place.locator(".nba-view")).to_have_count(0)
    # No call has run: the one that is chosen runs its own.
    held = answers.filter(has_text="waits").or_(answers.filter(has_text="Paused"))
    held.first.locator("[data-do=continue]").click()
    held.first.locator(".nba-words .nba-go").click()
    expect(answers).to_have_count(4)
    expect(answers.last).to_contain_text("454.1")
    assert notebook.console == []


@pytest.mark.proof
@IN_LAB
def test_a_tree_and_a_table_of_runs_open_them_below(notebook: Notebook) -> None:
    notebook.run(SEVERAL, FORK, TREE, TABLE)
    tree, table = notebook.cell(TREE), notebook.cell(TABLE)
    branches = tree.locator(".nba-branch")
    expect(branches).to_have_count(2)
    branches.last.locator("summary").click()
    branches.last.locator("[data-do=show]").click()
    expect(tree.locator(".nba-prompt")).to_have_text(f"Talk of {notebook.app}")
    expect(tree.locator("[data-do=retry]")).to_be_visible()
    rows = table.locator("tbody tr:visible")
    table.get_by_role("button", name="Sort by tokens").click()
    tokens = [int(it.get_attribute("value") or 0) for it in table.locator("td:nth-child(6)").all()]
    assert tokens == sorted(tokens, reverse=True)
    table.get_by_role("button", name="Sort by tokens").click()
    tokens = [int(it.get_attribute("value") or 0) for it in table.locator("td:nth-child(6)").all()]
    assert tokens == sorted(tokens)
    field = table.get_by_role("searchbox")
    field.fill(f"TALK OF {notebook.app}")
    expect(rows).to_have_count(1)
    # The table has no answers in it: the kernel looks into them.
    field.fill("word119 word120")
    expect(rows).to_have_count(0)
    field.press("Enter")
    expect(rows.first).to_contain_text("Talk a little")
    rows.first.locator("[data-do=show]").click()
    expect(table.locator(".nba-answer")).to_contain_text("word120")
    assert field.input_value() == "word119 word120"
    data = [output["data"] for output in notebook.outputs(TABLE)]
    assert [sorted(one) for one in data] == [["text/html", "text/plain"]] * 2
    assert notebook.console == []


@pytest.mark.proof
@IN_LAB
def test_a_run_stands_in_boxes_and_tabs_of_widgets(notebook: Notebook) -> None:
    notebook.run(BOX)
    expect(notebook.output(BOX).locator(".nba-run .nba-phase")).to_have_text("Answered")
    # What a click starts could not be shown there.
    buttons = notebook.output(BOX).locator(".nba-do:visible")
    seen = buttons.evaluate_all("all => all.map((one) => one.title)")
    assert seen == ["Copy answer", "Copy as cell"]


@IN_LAB
def test_a_page_that_is_loaded_anew_shows_the_run_and_its_buttons_start_nothing_unseen(
    notebook: Notebook,
) -> None:
    notebook.run(SEVERAL, TABLE)
    notebook.start(SHORT)
    expect(notebook.output(SHORT).locator(".nba-card")).to_contain_text("running")
    notebook.save()
    notebook.load(kernel=False)
    notebook.wake()
    notebook.wait_idle()
    run = runs(notebook, SHORT)
    expect(run.locator(".nba-phase")).to_have_text("Answered")
    assert run.locator(".nba-answer").inner_text().endswith("word240")
    expect(do(notebook, SHORT, "retry")).to_be_visible()
    expect(do(notebook, SEVERAL, "retry").first).to_be_visible()
    # What was said while the page was loaded in mid-run is not about the buttons.
    notebook.console.clear()
    notebook.run(SHOW)
    before = runs(notebook, SEVERAL).count()
    said = runs(notebook, SEVERAL).first.locator(".nba-said")
    for verb in ("retry", "compare"):
        do(notebook, SEVERAL, verb).first.click()
        expect(said).to_contain_text("in a cell shows the run with working buttons")
        expect(runs(notebook, SEVERAL).locator(".nba-words")).to_have_count(0)
        do(notebook, SEVERAL, "cell").first.click()
        expect(said).to_have_text("Copied: paste it into a cell")
    do(notebook, SHORT, "retry").click()
    expect(runs(notebook, SHORT).locator(".nba-said")).to_contain_text("%agent show")
    notebook.cell(TABLE).locator("tbody [data-do=show]").first.click()
    expect(notebook.cell(TABLE).locator(".nba-said")).to_contain_text("%agent show")
    assert runs(notebook, SEVERAL).count() == before
    do(notebook, SHOW, "retry").click()
    runs(notebook, SHOW).locator(".nba-words .nba-go").click()
    expect(runs(notebook, SHOW)).to_have_count(2)
    assert notebook.console == []


@IN_LAB
def test_a_view_whose_kernel_was_killed_says_so_and_buttons_go(notebook: Notebook) -> None:
    notebook.run(PID, SEVERAL)
    buttons = notebook.output(SEVERAL).locator(".nba-do:visible")
    assert buttons.count() > 0
    notebook.start(ENDLESS)
    run = runs(notebook, ENDLESS)
    expect(run.locator(".nba-plain")).to_contain_text("word9")
    os.kill(int(notebook.text(PID)), signal.SIGKILL)
    expect(run.locator(".nba-phase")).to_have_text("Interrupted")
    assert "continue with %agent resume" in run.inner_text()
    assert run.locator("[data-do]").count() == 0
    # What had arrived is still there to read.
    assert "word9" in run.locator(".nba-plain").inner_text()
    assert buttons.count() == 0
