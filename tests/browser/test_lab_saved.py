"""What a notebook keeps of its runs: saved, opened again in three ways, exported, and hostile."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jupyter_apps import Notebook, Server, opened
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, Locator, Page

from nbagent.archive.store import Store
from nbagent.contracts.records import unpacked

HOSTILE = (
    '<script>window.__pwned=1</script><img src="http://evil.test/x" onerror="window.__pwned=1">'
    '<a href="javascript:window.__pwned=1">a</a> [j](javascript:window.__pwned=1) '
    "![i](http://evil.test/i.png) <iframe srcdoc='<script>parent.__pwned=1</script>'></iframe>"
    "</pre></details><svg onload='window.__pwned=1'></svg>"
)
SETUP = f"""
%load_ext nbagent
import nbagent
from nbagent import offline

hostile = {HOSTILE!r}

@nbagent.tool
def area(city: str) -> float:
    "Area of a city in square kilometres."
    return 454.1

@nbagent.tool
def echo(text: str) -> str:
    "Say it again."
    return text

offline.script([offline.call("area", city="Oslo"), "Oslo has **454.1** km²."], name="good")
offline.script(
    [
        offline.step(
            reasoning=hostile,
            text=hostile,
            calls=[
                offline.call("echo", text=hostile),
                offline.call(hostile, dict([(hostile, hostile)])),
            ],
        ),
        hostile,
    ],
    name="hostile",
    delay_ms=3,
)
"""
GOOD, BAD = 1, 2
CELLS = [
    SETUP,
    "%%agent --model offline:good --tools area\nHow large is Oslo?",
    "%%agent --model offline:hostile --tools echo\nRepeat {{ hostile }}",
]
_INSIDE = "script, iframe, object, form, svg, img[src^='http'], a[href^='javascript']"
_HANDLERS = """
node => [...node.querySelectorAll("*")].some(
  (one) => one.getAttributeNames().some((name) => name.startsWith("on")))
"""


@pytest.fixture(scope="module")
def saved(chromium: Browser, server: Server) -> str:
    """The name of a notebook that was run in JupyterLab and saved; nothing hostile ran live."""
    name = server.write("saved.ipynb", CELLS)
    with opened(chromium, server, name) as notebook:
        notebook.run(0, GOOD, BAD)
        notebook.output(BAD).locator(".nba-answer").wait_for()
        unfold(notebook, BAD)
        nothing_ran(notebook.page, picture(notebook, BAD), notebook.requests)
        notebook.save()
    return name


def picture(notebook: Notebook, n: int) -> Locator:
    """The run below a cell, without what the app puts around it."""
    return notebook.output(n).locator(".nba-run")


def unfold(notebook: Notebook, n: int) -> None:
    """Click on every turn and every request below a cell."""
    for turn in notebook.output(n).locator(".nba-turn").all():
        turn.locator("summary").first.click()
        turn.locator(".nba-request summary").click()


def nothing_ran(page: Page, shown: Locator, requests: list[str]) -> None:
    """No text became code, a link that runs code, or a request."""
    page.wait_for_timeout(100)
    assert page.evaluate("() => typeof window.__pwned") == "undefined"
    assert shown.locator(_INSIDE).count() == 0
    assert not shown.evaluate(_HANDLERS)
    assert [url for url in requests if "evil.test" in url] == []


def output_of(document: dict[str, Any], n: int) -> dict[str, Any]:
    """The one output of a saved cell."""
    (output,) = document["cells"][n]["outputs"]
    return output


def test_the_file_keeps_the_static_form_and_no_widget(saved: str, server: Server) -> None:
    document = server.read(saved)
    for n in (GOOD, BAD):
        output = output_of(document, n)
        assert output["output_type"] == "display_data"
        assert sorted(output["data"]) == ["text/html", "text/markdown", "text/plain"]
    assert "widget-view" not in json.dumps(document)
    good = {kind: "".join(text) for kind, text in output_of(document, GOOD)["data"].items()}
    assert "<script" not in good["text/html"]
    assert "Oslo has **454.1** km²." in good["text/markdown"]
    assert "Oslo has **454.1** km²." in good["text/plain"]


def test_the_file_keeps_the_record_as_the_store_has_it(saved: str, server: Server) -> None:
    document = server.read(saved)
    store = Store.open(server.folder / ".nbagent")
    try:
        for n in (GOOD, BAD):
            record = unpacked(output_of(document, n)["metadata"]["nbagent"])
            assert record == store.load(record.id)
            assert len(record.turns) == 2
    finally:
        store.close()


@pytest.mark.parametrize("how", ["trusted", "untrusted", "trusted, without a kernel"])
def test_opened_again_it_reads_well_and_runs_nothing(
    how: str, saved: str, chromium: Browser, server: Server
) -> None:
    name = saved
    if how != "trusted":
        # Not the file that this server signed: as one that came by mail, from another machine.
        document = server.read(saved)
        # No kernel of this server speaks its language, so the app asks for one.
        document["metadata"] = {"kernelspec": {"name": "not-here", "display_name": "not here"}}
        name = f"{how}.ipynb".replace(", ", "-").replace(" ", "-")
        (server.folder / name).write_text(json.dumps(document))
    if how == "trusted, without a kernel":
        server.trust(name)
    with opened(chromium, server, name, kernel=how == "trusted") as notebook:
        if how != "trusted":
            notebook.go_without_kernel()
        trusted = notebook.page.evaluate("() => nbt.cells().map((cell) => cell.model.trusted)")
        assert trusted == [how != "untrusted"] * 3
        good = notebook.output(GOOD)
        assert "Answered" in good.inner_text()
        assert 'area(city="Oslo") → 454.1' in good.inner_text()
        assert good.locator(".nba-answer").inner_text() == "Oslo has 454.1 km²."
        assert not good.locator(".nba-card").is_visible()
        unfold(notebook, GOOD)
        assert "454.1" in good.locator(".nba-card").inner_text()
        assert "How large is Oslo?" in good.locator(".nba-request table").first.inner_text()
        unfold(notebook, BAD)
        shown = picture(notebook, BAD)
        assert "<script>window.__pwned=1</script>" in shown.locator(".nba-answer").inner_text()
        nothing_ran(notebook.page, shown, notebook.requests)


def test_an_export_reads_well_and_has_no_script_of_ours(
    saved: str, chromium: Browser, server: Server
) -> None:
    body = HTMLExporter().from_filename(str(server.folder / saved))[0]
    page = chromium.new_page()
    requests: list[str] = []
    page.route("**/*", lambda route: requests.append(route.request.url) or route.abort())
    try:
        page.set_content(body, wait_until="domcontentloaded")
        runs = page.locator(".nba-run")
        assert runs.count() == 2
        assert runs.nth(0).locator(".nba-answer").inner_text() == "Oslo has 454.1 km²."
        runs.nth(0).locator(".nba-turn summary").first.click()
        assert "454.1" in runs.nth(0).locator(".nba-card").inner_text()
        assert (
            "<script>window.__pwned=1</script>" in runs.nth(1).locator(".nba-answer").inner_text()
        )
        for n in range(2):
            nothing_ran(page, runs.nth(n), requests)
    finally:
        page.close()
