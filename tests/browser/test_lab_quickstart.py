"""The quickstart in JupyterLab, as a newcomer meets it: no key, no network, all cells."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_apps import Notebook, Server, opened
from playwright.sync_api import Browser, Locator

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"


def places(of: str) -> list[int]:
    """The code cells whose source has a text."""
    cells = json.loads(QUICKSTART.read_text("utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [n for n, source in enumerate(sources) if of in source]


@pytest.fixture(scope="module")
def quickstart(chromium: Browser, server: Server) -> Iterator[Notebook]:
    """A copy of the quickstart, all of whose cells were run in JupyterLab."""
    shutil.copy(QUICKSTART, server.folder / "quickstart.ipynb")
    with opened(chromium, server, "quickstart.ipynb") as notebook:
        notebook.run(*places(""))
        yield notebook


def first_run(quickstart: Notebook) -> Locator:
    """The picture of the first prompt's run."""
    return quickstart.output(places("Which of {{ cities }} is larger?")[0]).locator(".nba-run")


def test_every_cell_runs_without_an_error(quickstart: Notebook) -> None:
    assert [quickstart.error(n) for n in places("")] == [""] * len(places(""))


def test_turns_answer_and_offline_words_are_there(quickstart: Notebook) -> None:
    run = first_run(quickstart)
    assert run.locator(".nba-phase").inner_text() == "Answered"
    assert "answers by rules, not by a model" in run.locator(".nba-offline").inner_text()
    assert run.locator(".nba-turn > summary .nba-id").all_inner_texts() == ["C01", "C02"]
    line = run.locator(".nba-turn").first.locator(".nba-sum").inner_text()
    assert 'population(city="Oslo") → 717,710' in line
    assert "Oslo" in run.locator(".nba-answer").inner_text()
    assert "717,710" in run.locator(".nba-answer").inner_text()


def test_a_turn_unfolds_to_calls_results_and_request(quickstart: Notebook) -> None:
    turn = first_run(quickstart).locator(".nba-turn").first
    card = turn.locator(".nba-card").first
    assert not card.is_visible()
    turn.locator("summary").first.click()
    assert "population" in card.inner_text()
    assert "main thread" in card.inner_text()
    assert card.locator("pre").all_inner_texts() == ['{"city": "Oslo"}', "717710"]
    request = turn.locator(".nba-request")
    assert not request.locator("table").is_visible()
    request.locator("summary").click()
    assert "Which of Oslo and Bergen is larger?" in request.inner_text()
    assert (
        "People living in a city." not in first_run(quickstart).locator(".nba-answer").inner_text()
    )


def test_a_failed_tool_shows_where_it_failed(quickstart: Notebook) -> None:
    run = quickstart.output(places("Atlantis")[0]).locator(".nba-run")
    bad = run.locator(".nba-card.nba-bad")
    bad.locator("xpath=ancestor::details[1]").locator("summary").first.click()
    assert "E_TOOL_FAILED" in bad.inner_text()
    assert "KeyError: 'Atlantis'" in bad.inner_text()
    assert "return PEOPLE[city]" in bad.inner_text()


def test_a_limit_pauses_and_resume_answers(quickstart: Notebook) -> None:
    paused, resumed = places("--name paused")[0], places("%agent resume paused")[0]
    assert "Paused: 1 turn\n" in quickstart.text(paused)
    assert "Answered" in quickstart.text(resumed)
    assert "214,565" in quickstart.text(resumed)


def test_runs_are_shown_as_frames(quickstart: Notebook) -> None:
    table = quickstart.output(places("mine[[")[0]).locator("table")
    assert table.locator("thead th").all_inner_texts()[1:] == [
        "phase",
        "stop_reason",
        "turns",
        "tool_calls",
        "total_tokens",
    ]
    assert table.locator("tbody tr").count() == 5
    assert "answered" in table.inner_text()
    assert "population" in quickstart.text(places("groupby")[0])


def test_the_browser_complains_about_nothing(quickstart: Notebook) -> None:
    assert quickstart.console == []
    remote = [url for url in quickstart.requests if "127.0.0.1" not in url]
    assert [url for url in remote if not url.startswith(("blob:", "data:"))] == []
