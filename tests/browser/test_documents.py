"""The exported documents of hostile runs: nothing runs or loads; the page needs no network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from markdown_it import MarkdownIt
from payloads import PAYLOADS, story_of
from playwright.sync_api import Page
from stage import asked_by

from nbagent.contracts.records import RunRecord
from nbagent.export.documents import html_document, markdown_document

_FOUND = """
() => {
  document.querySelectorAll("details").forEach((node) => { node.open = true; });
  const bad = [];
  const tags = "script iframe object embed form input svg math link base audio video a meta style";
  for (const node of document.body.querySelectorAll("*")) {
    if (tags.split(" ").includes(node.localName)) bad.push(node.outerHTML.slice(0, 200));
    for (const { name } of node.attributes) if (name.startsWith("on")) bad.push(name);
  }
  const images = [...document.images].map((image) => image.src);
  bad.push(...images.filter((source) => !source.startsWith("data:image/")));
  return [bad, typeof window.__pwned];
}
"""


def rendered(run: RunRecord) -> str:
    """As where a renderer lets HTML through."""
    renderer = MarkdownIt("gfm-like", {"html": True, "linkify": False}).enable("table")
    return f"<!doctype html><body>{renderer.render(markdown_document(run))}"


@pytest.mark.proof
@pytest.mark.parametrize("document", [rendered, html_document], ids=["markdown", "html"])
def test_a_document_shows_hostile_text_as_text(
    document: Callable[[RunRecord], str], page: Page
) -> None:
    seen = asked_by(page)
    page.on("request", lambda request: seen.append(request.url))
    page.on("pageerror", lambda error: seen.append(str(error)))
    for name, text in PAYLOADS.items():
        made = document(story_of(text[:1_000]).run)
        made = made.replace("<body>\n<style>", "<body><style-of-ours>").replace(
            "</style><div", "</style-of-ours><div"
        )
        page.set_content(made, wait_until="domcontentloaded")
        bad, pwned = page.evaluate(_FOUND)
        links = [it for it in bad if document is html_document and it.startswith("<a ")]
        assert [it for it in bad if it not in links] == [], name
        assert pwned == "undefined", name
        assert all('rel="noopener noreferrer nofollow"' in it for it in links), name
        closed = page.evaluate("() => document.querySelector('details details') !== null")
        assert closed, f"{name}: a turn holds its request"
    assert seen == []


def test_the_page_looks_the_same_without_a_network(page: Page) -> None:
    page.context.set_offline(True)
    story = story_of("The **end**.")
    page.set_content(html_document(story.run))
    assert page.locator(".nba-answer strong").inner_text() == "end"
    assert page.locator(".nba-run").evaluate("node => getComputedStyle(node).borderRadius") == "8px"
    assert page.title() == f"run {story.run.id[:8]} · {story.run.model}"
    assert page.locator("button:visible").count() == 0
