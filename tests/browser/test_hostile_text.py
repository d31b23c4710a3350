"""Hostile text in every place that shows text: nothing runs or loads, in any form of a run."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from markdown_it import MarkdownIt
from nbconvert import HTMLExporter, MarkdownExporter
from payloads import AUDIT, PAYLOADS, story_of
from playwright.sync_api import Page
from stage import PROBE, asked_by, load_views, until_handlers_ran
from stories import Story

from nbagent.contracts.model import ModelInfo
from nbagent.notebook import panel_lists
from nbagent.notebook.panel_form import Form
from nbagent.session.models import ProviderModels
from nbagent.session.stores import current_store
from nbagent.view.live import LivePicture, Op
from nbagent.view.node import Node
from nbagent.view.printers import html
from nbagent.view.run_picture import page as page_of
from nbagent.view.run_picture import picture
from nbagent.view.terminal import run_text
from nbagent.view.value_nodes import answer_node, value_node

v4: Any = nbformat.v4
_BEGIN = """
all => {
  const below = () => document.body.appendChild(document.createElement("div"));
  window.views = all.map((node) => begin({ kind: "run", pictures: [node] }, below()));
}
"""
_STEPS = 3
_UNFOLD = "document.querySelectorAll('details').forEach((node) => { node.open = true })"


class Watched:
    """A page of which every request, dialog, popup and error is written down."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.seen = asked_by(page)
        page.on("pageerror", lambda error: self.seen.append(f"error {error}"))
        page.on("request", lambda request: self._note(request.url))
        page.on("framenavigated", lambda frame: self._note(frame.url))
        page.route("**/*", lambda route: route.abort())

    def _note(self, url: str) -> None:
        if not url.startswith(("blob:", "data:image/", "about:blank", PROBE)):
            self.seen.append(url)

    def open(self, html: str) -> None:
        """Show a document, as a browser parses it."""
        self.page.set_content(html, wait_until="domcontentloaded")

    def is_clean(self, *, around: str = "body", runs: int = len(PAYLOADS)) -> None:
        """Nothing ran and nothing loaded, and every node is one of ours."""
        self.page.evaluate(_UNFOLD)
        until_handlers_ran(self.page)
        assert self.page.evaluate(AUDIT, around) == {
            "bad": [],
            "runs": runs,
            "stray": [],
            "typeset": 0,
            "pwned": "undefined",
        }
        assert self.seen == []


@pytest.fixture
def watched(page: Page) -> Watched:
    page.set_default_timeout(20_000)
    return Watched(page)


@pytest.fixture(
    scope="module",
    params=[1_000, 1_000_000],
    ids=["short", "whole"],
)
def payloads(request: pytest.FixtureRequest) -> dict[str, str]:
    """All payloads; the huge ones cut, or whole."""
    return {name: text[: request.param] for name, text in PAYLOADS.items()}


@pytest.fixture(scope="module")
def bundles(payloads: dict[str, str]) -> dict[str, dict[str, str]]:
    """Every payload's run, in every place at once, in both saved forms."""
    runs = {name: story_of(text).run for name, text in payloads.items()}
    return {
        name: {"text/html": page_of(picture(run, kernel="k-1")), "text/plain": run_text(run)}
        for name, run in runs.items()
    }


@pytest.mark.parametrize("way", ["html", "build"])
def test_a_picture_shows_it_as_text(way: str, watched: Watched) -> None:
    """By each of the two ways from a node to the page: `html()` of the kernel, `build()` of ours.

    The live view, the panel and the exports are made of these: they are proofs.
    """
    pictures = [picture(story_of(text[:300]).run, kernel="k-1") for text in PAYLOADS.values()]
    drawn = "".join(map(html, pictures)) if way == "html" else ""
    watched.open(f"<!doctype html><body>{drawn}</body>")
    if way == "build":
        load_views(watched.page)
        watched.page.evaluate(_BEGIN, pictures)
    watched.is_clean()
    answers = watched.page.locator(".nba-answer").all_text_contents()
    for name in ("script", "img onerror", "iframe srcdoc", "form", "command linker", "tex require"):
        assert PAYLOADS[name] in answers[list(PAYLOADS).index(name)]


def test_plain_text_has_no_codes() -> None:
    """A terminal gets it."""
    codes = {"\x1b", "\x07", "\x9b", "\x00", "\r", "\u202e", "\x7f"}
    for text in PAYLOADS.values():
        shown = run_text(story_of(text[:300]).run)
        assert not set(shown) & codes
        shown.encode()


@pytest.mark.proof
def test_the_live_view_shows_it_as_text(watched: Watched, payloads: dict[str, str]) -> None:
    watched.open("<!doctype html><body></body>")
    page = watched.page
    load_views(page)
    stories = [story_of(text) for text in payloads.values()]
    page.evaluate(_BEGIN, [_begun(story) for story in stories])
    batches = [_batches(story) for story in stories]
    # In steps, so that what passes by (a retry, a draft, a question) is drawn.
    for step in range(_STEPS):
        messages = [{"run": stories[0].run.id, "ops": batch[step]} for batch in batches]
        page.evaluate("all => all.forEach((one, i) => views[i].hear(one))", messages)
        page.evaluate(_UNFOLD)
    watched.is_clean()
    ends = [{"run": it.run.id, "ops": [["done", picture(it.run)]]} for it in stories]
    page.evaluate("all => all.forEach((one, i) => views[i].hear(one))", ends)
    watched.is_clean()
    answers = page.locator(".nba-answer").all_text_contents()
    for name in ("script", "img onerror", "iframe srcdoc", "form", "command linker", "tex require"):
        assert payloads[name] in answers[list(payloads).index(name)]


_PANEL = """
given => {
  window.panel = begin({ kind: "panel", ...given }, document.body);
}
"""
_AROUND_RUNS = """
() => [...document.querySelectorAll(".nba-panel *")].filter((node) => !node.closest(".nba-run") &&
  (!/^(div|span|p|b|small|strong|code|details|summary|button|input|select|option|textarea|label)$/
    .test(node.localName) || [...node.attributes].some(({ name }) =>
      !/^(class|data-(key|do|field|lm-suppress-shortcuts)|title|type|value|rows|min|max|step|placeholder|role|hidden|disabled|checked|open|tabindex|spellcheck|aria-.*)$/
        .test(name)))).map((node) => node.outerHTML.slice(0, 200))
"""


@pytest.mark.proof
def test_the_panel_shows_it_as_text(
    watched: Watched, payloads: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*payloads.values()]
    runs = [
        story_of(text).run.model_copy(update={"id": f"{n:016x}", "session": texts[0]})
        for n, text in enumerate(texts)
    ]
    for run in runs:
        current_store().add(run)
    models = tuple(ModelInfo(id=text) for text in texts)
    offers = [ProviderModels(text, models, reachable=False, why=text) for text in texts]

    def all_of_them(_: object) -> list[ProviderModels]:
        return [*offers, ProviderModels(texts[0], models)]

    monkeypatch.setattr(panel_lists, "list_models", all_of_them)
    monkeypatch.setattr(panel_lists, "package_names", lambda: texts)
    all_of_it = "".join(text[:500] for text in texts)
    said = dict.fromkeys(("status", "error", "totals", "usual"), all_of_it)
    fields = Form.fields()
    state = {
        **said,
        "working": "",
        "can_continue": True,
        "goes_on": True,
        "waits": False,
        "beside": False,
        "notice": all_of_it,
        "values": {field["name"]: all_of_it for field in fields},
        "defaults": {},
        "tools": [[text, text, True] for text in texts],
        "attached": [[text, 1] for text in texts],
    }
    watched.open("<!doctype html><body></body>")
    load_views(watched.page, "panel.js")
    watched.page.evaluate(_PANEL, {"fields": fields, "exports": [["html", "HTML"]], "state": state})
    pictures = [picture(run, kernel="k-1") for run in runs]
    told = [{"kind": "thread", "pictures": pictures, "more": 1, "draft": all_of_it, "state": state}]
    for name in ("models", "packages", "runs", "session"):
        node = panel_lists.list_node(name, "", runs[0])
        told.append({"kind": "list", "key": name, "node": node})
    watched.page.evaluate("all => all.forEach((one) => panel.hear(one))", told)
    watched.is_clean(around=".nba-view", runs=len(texts) + 1)
    assert watched.page.evaluate(_AROUND_RUNS) == []
    offered = watched.page.locator(".nba-drawer-runs .nba-open").all_text_contents()
    assert any("<script>" in one for one in offered)
    watched.page.locator(".nba-opener-export").click()
    assert watched.page.locator(".nba-drawer-export option").count() == len(texts)


@pytest.mark.proof
def test_the_plain_text_has_no_codes(bundles: dict[str, dict[str, str]]) -> None:
    """A notebook server sends this text to a page; a terminal prints it."""
    for forms in bundles.values():
        codes = {"\x1b", "\x07", "\x9b", "\x00", "\r", "\u202e", "\x7f"}
        assert not set(forms["text/plain"]) & codes
        forms["text/plain"].encode()


@pytest.mark.proof
@pytest.mark.parametrize("form", ["saved", "html", "markdown"])
def test_the_saved_form_and_its_exports_show_it_as_text(
    form: str, watched: Watched, bundles: dict[str, dict[str, str]]
) -> None:
    outputs = [v4.new_output("display_data", data=forms) for forms in bundles.values()]
    document = v4.new_notebook(cells=[v4.new_code_cell(source="", outputs=outputs)])
    if form == "saved":
        forms = "\n".join(forms["text/html"] for forms in bundles.values())
        watched.open(f"<!doctype html><body>{forms}</body>")
    elif form == "html":
        text = HTMLExporter().from_notebook_node(document)[0]
        # Without what an empty notebook's export loads by itself.
        watched.open("<!doctype html><html><head></head><body" + text.partition("<body")[2])
    else:
        text = MarkdownExporter(exclude_input=True).from_notebook_node(document)[0]
        watched.open(MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(text))
    watched.is_clean(around=".jp-OutputArea" if form == "html" else "body")


@pytest.mark.proof
def test_values_that_show_themselves_show_it_as_text(
    watched: Watched, payloads: dict[str, str]
) -> None:
    shown: list[Node] = []
    for text in payloads.values():
        run = story_of(text).run
        values = (run.turns[0], run.turns[0].tool_runs[0], run.messages[0])
        shown += [answer_node(text[:1000]), *filter(None, map(value_node, values))]
    watched.open(f"<!doctype html><body>{''.join(map(html, shown))}</body>")
    watched.is_clean(runs=4 * len(PAYLOADS))


def _live(story: Story) -> LivePicture:
    return LivePicture(story.run.model_copy(update={"turns": (), "phase": "Running"}))


def _begun(story: Story) -> Node:
    return _live(story).picture()


def _batches(story: Story) -> list[list[Op]]:
    """Changes that a front end gets until the run's end, in a few batches."""
    live = _live(story)
    events = story.events[:-1]
    batches: list[list[Op]] = []
    for step in range(_STEPS):
        for event in events[step * len(events) // _STEPS : (step + 1) * len(events) // _STEPS]:
            live.update(event)
        batches.append(live.draw_changes())
    return batches
