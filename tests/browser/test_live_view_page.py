"""The live view in a plain page, with a stub of the widget's model: what a person sees and does."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page
from stage import Stage, until
from stories import ANSWER, Story, drawn, tool_run

from nbagent.contracts import events, secrets
from nbagent.contracts.errors import ErrorInfo
from nbagent.notebook.live_state import state_for_front_end
from nbagent.notebook.static_html import html
from nbagent.notebook.view_state import view_of


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A fresh page."""
    page = chromium.new_page(viewport={"width": 908, "height": 900})
    page.set_default_timeout(8_000)
    yield page
    page.close()


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


def test_what_was_unfolded_stays_unfolded_and_focus_stays(page: Page) -> None:
    story = drawn()
    stage = Stage(page, story)
    second = until(story, events.TurnFinished, 0)
    stage.play(story.events[:second])
    stage.turn(0).locator("summary").first.click()
    request = stage.turn(0).locator(".nba-request")
    request.locator("summary").focus()
    page.keyboard.press("Enter")
    body = stage.turn(0).locator(".nba-body").element_handle()
    stage.play(story.events[second : until(story, events.TextDelta, 3)])
    # The person folds the turn that streams: it stays folded.
    stage.turn(2).locator("summary").first.click()
    stage.play(story.events[until(story, events.TextDelta, 3) : -1])
    stage.finish()
    assert stage.is_open(0)
    assert request.evaluate("node => node.open")
    assert not stage.is_open(2)
    assert body.evaluate("node => node.isConnected")
    # The same after the page took the view away and drew it again.
    page.evaluate("stub.again()")
    assert stage.is_open(0)
    assert not stage.is_open(1)


def test_focus_inside_a_turn_keeps_it_open_when_the_next_one_starts(page: Page) -> None:
    story = drawn()
    stage = Stage(page, story)
    started = until(story, events.TurnStarted, 0)
    stage.play(story.events[:started])
    line = stage.turn(0).locator(".nba-request summary")
    line.focus()
    stage.play(story.events[started : until(story, events.TurnStarted, 1)])
    assert stage.is_open(0)
    assert line.evaluate("node => node === document.activeElement")


def test_stop_says_so_once_and_goes_away_at_the_end(page: Page) -> None:
    stage = Stage(page, drawn())
    stop = page.get_by_role("button", name="Stop this run")
    stop.click()
    busy = page.get_by_role("button", name="Stopping this run")
    assert busy.inner_text() == "Stopping…"
    assert busy.is_disabled()
    assert [message["kind"] for message in stage.sent] == ["ready", "stop"]
    stage.finish()
    assert page.locator(".nba-stop").is_hidden()
    assert page.get_by_role("button", name="Copy the answer").is_visible()


def test_the_seconds_tick_while_it_runs(page: Page) -> None:
    stage = Stage(page, drawn())
    stage.play(stage.story.events[:2])
    clock = page.locator(".nba-facts b").last
    before = clock.inner_text()
    page.wait_for_function(
        "text => document.querySelector('.nba-facts').innerText !== text", arg=""
    )
    page.wait_for_function(
        "before => [...document.querySelectorAll('.nba-facts b')].at(-1).innerText !== before",
        arg=before,
    )
    stage.finish()
    assert clock.inner_text() == "2.8"


def test_the_keyboard_is_enough(page: Page) -> None:
    stage = Stage(page, drawn())
    stage.finish()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert stage.is_open(0)
    status = page.get_by_role("status")
    assert status.inner_text() == "Answered"


def test_ops_that_were_missed_are_made_up_for(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    # Keys that other tests made known would make the filter hold back the last letters.
    monkeypatch.setattr("nbagent.contracts.secrets._filter", type(vars(secrets)["_filter"])())
    story = drawn()
    stage = Stage(page, story)
    for event in story.events[: until(story, events.TextDelta, 4)]:
        stage.live.fold(event)
    late = until(story, events.TextDelta, 4)
    stage.play(story.events[late : late + 1])
    assert stage.turn(0).locator(".nba-plain").count() == 1
    stage.page.evaluate(
        "state => stub.ops([{op: 'state', state}])", state_for_front_end(stage.live.snapshot())
    )
    assert page.locator(".nba-turn").count() == 3
    shown = stage.turn(2).locator(".nba-plain").text_content() or ""
    assert shown == ANSWER[: len(shown)]
    assert len(shown) == 42
    assert stage.failures == []


HOSTILE = (
    '<script>window.__pwned=1</script><img src="http://evil.test/x" onerror="window.__pwned=1">'
    '<a href="javascript:window.__pwned=1">x</a> [j](javascript:window.__pwned=1) '
    "![i](http://evil.test/i.png) <iframe srcdoc='<script>parent.__pwned=1</script>'></iframe>"
)


def _hostile() -> Story:
    run = tool_run(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, {HOSTILE: HOSTILE})
    bad = tool_run("c2", "t", {}, ErrorInfo("E_TOOL_FAILED", HOSTILE))
    story = Story(f"x:{HOSTILE}", name=HOSTILE)
    story.turn(HOSTILE, run, bad, reasoning=HOSTILE, notices=(HOSTILE,))
    story.turn(HOSTILE).end(notices=(HOSTILE,), error=ErrorInfo("UNKNOWN", HOSTILE))
    story.events.insert(2, events.Notice("warning", HOSTILE))
    return story


def test_hostile_text_stays_text(page: Page) -> None:
    story = _hostile()
    stage = Stage(page, story)
    stage.play(story.events[:-1])
    page.evaluate(
        """text => stub.ops([{op: "turn", turn: {...structuredClone(
            {id: text, phase: "done", who: text, summary: {calls: [], more: 0, text, error: text},
             numbers: text, reasoning: {text, note: text}, text: {text, note: text}, drafts: [],
             notices: [text], error: text, request: {words: text, earlier: text, messages: [],
             tools: text, params: text, system: {text, note: text}},
             tools: [{key: "k", name: text, phase: "ok", word: text, where: text,
               arguments: {text, note: text}, result: {text, note: text}, error: text,
               detail: {text, note: text}, notes: [text], progress: text,
               images: [{media_type: "image/svg+xml", data: "PHN2Zz4=", alt: text},
                        {media_type: "image/png", data: '"><script>', alt: text}]}],
             tree: [["script", {}, ["window.__pwned=1"]], ["img", {src: "http://evil.test/t"}, []],
                    ["a", {href: "javascript:window.__pwned=1", onclick: "x"}, [text]]]})}}])""",
        HOSTILE,
    )
    stage.finish()
    _nothing_ran(stage)
    page.evaluate(
        "html => { document.getElementById('here').innerHTML = html }", html(view_of(story.run))
    )
    _nothing_ran(stage)


def _nothing_ran(stage: Stage) -> None:
    stage.page.wait_for_timeout(50)
    assert stage.page.evaluate("typeof window.__pwned") == "undefined"
    inside = stage.page.locator("#here")
    assert inside.locator("script, iframe, img, a[href], object, form").count() == 0
    assert [url for url in stage.requests if not url.startswith("blob:")] == []
    assert stage.failures == []


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


def test_fifty_turns_appear_quickly(page: Page) -> None:
    story = Story()
    for i in range(50):
        story.turn("", tool_run(f"c{i}", "area", {"city": f"c{i}"}, {"km2": i}))
    stage = Stage(page, story)
    state = json.loads(json.dumps(state_for_front_end(view_of(story.end().run))))
    ms = page.evaluate(
        """state => {
          const before = performance.now();
          stub.finish(state);
          return performance.now() - before;
        }""",
        state,
    )
    assert page.locator(".nba-turn").count() == 50
    assert ms < 2000
    assert stage.failures == []
