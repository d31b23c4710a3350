"""The live view in a plain page, with a stub of the widget's model: what a person sees and does."""

from __future__ import annotations

import re

from playwright.sync_api import Page
from stage import Stage, until
from stories import ANSWER, Story, drawn

from nbagent.contracts import events
from nbagent.notebook import live_source


def test_a_run_is_drawn_as_it_goes(page: Page) -> None:
    story = drawn("offline:demo")
    stage = Stage(page, story)
    assert stage.sent == [{"kind": "ready", "running": True}]
    assert page.locator(".nba-phase").inner_text() == "Running"
    assert page.locator(".nba-offline").inner_text() == (
        "offline:demo answers by rules, not by a model"
    )
    first_call = until(story, events.ToolCallStarted)
    stage.play(story.events[:first_call])
    assert "population" in stage.turn(0).locator(".nba-card").first.inner_text()
    assert "… running" in stage.turn(0).locator(".nba-sum").inner_text()
    last_delta = until(story, events.TextDelta, -1)
    stage.play(story.events[first_call:last_delta])
    assert stage.is_open(2)
    assert not stage.is_open(0)
    assert stage.turn(2).locator(".nba-plain").inner_text() == ANSWER
    assert page.locator(".nba-caret").count() == 1
    stage.play(story.events[last_delta:-1])
    # A turn that is folded holds nothing.
    assert stage.turn(2).locator(".nba-body > *").count() == 0
    stage.finish()
    assert page.locator(".nba-phase").inner_text() == "Answered"
    assert page.locator(".nba-facts").inner_text() == (
        "3 turns · 3 calls · 1,284 tokens (912 cached) · $0.0004 · 2.8 s"
    )
    assert "✕ E_TOOL_FAILED" in stage.turn(1).locator(".nba-sum").inner_text()
    assert page.locator(".nba-answer strong").all_inner_texts() == ["717,710", "291,940"]
    assert page.locator(".nba-bar i").count() == 5
    assert "%%agent --continue" in page.locator(".nba-foot").inner_text()
    assert page.locator(".nba-caret").count() == 0
    assert stage.failures == []


def test_ops_and_the_stored_picture_draw_the_same(page: Page) -> None:
    story = drawn()
    stage = Stage(page, story)
    for event in story.events[:-1]:
        stage.play([event])
    stage.finish()
    grown = page.locator(".nba-run").evaluate("node => node.outerHTML")
    Stage(page, story).finish()
    assert page.locator(".nba-run").evaluate("node => node.outerHTML") == grown


def test_the_seconds_tick_and_stop_says_so_once_and_goes_away_at_the_end(page: Page) -> None:
    stage = Stage(page, drawn())
    stage.play(stage.story.events[:2])
    clock = page.locator(".nba-facts b").last
    page.wait_for_function(
        "before => [...document.querySelectorAll('.nba-facts b')].at(-1).innerText !== before",
        arg=clock.inner_text(),
    )
    stop = page.get_by_role("button", name="Stop this run")
    stop.click()
    busy = page.get_by_role("button", name="Stopping this run")
    assert busy.inner_text() == "Stopping…"
    assert busy.is_disabled()
    assert [message["kind"] for message in stage.sent] == ["ready", "stop"]
    stage.finish()
    assert page.locator(".nba-stop").is_hidden()
    assert page.get_by_role("button", name="Copy the answer").is_visible()
    assert clock.inner_text() == "2.8"


def test_ten_thousand_deltas_only_grow_one_text(page: Page) -> None:
    stage = Stage(page, Story())
    stage.play(stage.story.events[:1])
    stage.play([events.TextDelta("C01", "start ")])
    made = page.evaluate(
        """() => {
          let made = 0;
          const watch = new MutationObserver((all) => {
            for (const one of all) made += one.addedNodes.length;
          });
          watch.observe(document.getElementById("here"), { childList: true, subtree: true });
          const before = performance.now();
          for (let i = 0; i < 400; i++) {
            stub.ops([{ op: "text", turn: "C01", text: "word ".repeat(25) }]);
          }
          for (const one of watch.takeRecords()) made += one.addedNodes.length;
          return { made, ms: performance.now() - before };
        }"""
    )
    assert made["made"] <= 60
    assert made["ms"] < 3000
    text = page.locator(".nba-plain")
    assert text.evaluate("node => node.childNodes.length") == 1
    assert text.evaluate("node => node.textContent.length") == 6 + 400 * 125


def test_what_is_sent_has_one_export_and_nothing_to_import_or_evaluate() -> None:
    joined = live_source.joined()
    assert re.findall(r"\bexport\b.{10}", joined) == ["export default()"]
    assert re.findall(r"\bimport\b", joined) == []
    writers = ("innerHTML", "outerHTML", "insertAdjacent", "document.write")
    for word in (*writers, "eval(", "Function("):
        assert word not in joined
    assert len(joined) < 27_000
