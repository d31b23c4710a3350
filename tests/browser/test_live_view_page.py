"""The live view in a plain page, with a stub of the widget's model: what a person sees and does."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from stage import Stage, load_views, until
from stories import ANSWER, Story, drawn

from nbagent.contracts import events
from nbagent.notebook.button_actions import form_node
from nbagent.notebook.messages import Message
from nbagent.notebook.page_module import script
from nbagent.view import node
from nbagent.view.printers import html
from nbagent.view.run_picture import picture

_TREE = "n => n.outerHTML.replace(/ style=.*?>/g, '>').replaceAll('><', '>\\n<').split('\\n')"


def test_a_run_is_drawn_as_it_goes(page: Page) -> None:
    stage = Stage(page, drawn("offline:demo"))
    story = stage.story
    assert page.locator(".nba-phase").inner_text() == "Running"
    first_call = until(story, events.ToolCallStarted)
    stage.play(story.events[:first_call])
    assert "population" in stage.turn(0).locator(".nba-card").first.inner_text()
    assert "… running" in stage.turn(0).locator(".nba-sum").inner_text()
    last_delta = until(story, events.TextDelta, -1)
    stage.play(story.events[first_call:last_delta])
    assert [stage.is_open(i) for i in range(3)] == [False, False, True]
    assert stage.turn(2).locator(".nba-plain").inner_text() == ANSWER
    stage.play(story.events[last_delta:-1])
    stage.finish()
    assert page.locator(".nba-phase").inner_text() == "Answered"
    assert "3 turns · 1 of 3 calls failed · 1,284 tokens" in page.locator(".nba-facts").inner_text()
    assert page.locator(".nba-answer strong").all_inner_texts() == ["717,710", "291,940"]
    assert stage.failures == []


def test_ops_one_by_one_and_the_stored_picture_draw_the_same(page: Page) -> None:
    stage = Stage(page, drawn())
    for event in stage.story.events[:-1]:
        stage.play([event])
    grown = page.locator(".nba-run").evaluate(_TREE)
    stage.hear([["done", stage.live.picture()]])
    assert page.locator(".nba-run").evaluate(_TREE) == grown


def test_folds_stay_as_the_person_left_them_and_so_does_the_focus(page: Page) -> None:
    stage = Stage(page, drawn())
    second = until(stage.story, events.TurnStarted, 1)
    stage.play(stage.story.events[:second])
    stage.turn(0).locator("summary").first.click()
    stage.turn(1).locator("summary").first.click()
    stage.play(stage.story.events[second:-1])
    stage.finish()
    assert [stage.is_open(i) for i in range(3)] == [True, False, False]
    assert page.evaluate("document.activeElement.innerText").startswith("turn C02")
    folds = [(one["key"], one["open"]) for one in stage.sent]
    assert folds == [("C01", True), ("C02", False)]


@pytest.mark.parametrize(
    ("kind", "words"), [("stop", "Stopping…"), ("pause", "Pausing after this turn…")]
)
def test_the_seconds_tick_and_a_stop_says_so_once(page: Page, kind: str, words: str) -> None:
    stage = Stage(page, drawn())
    stage.play(stage.story.events[:2])
    clock = page.locator("[data-clock]")
    before = clock.inner_text()
    assert before.endswith(" ms")
    expect(clock).to_have_text(re.compile(r"^\d+\.\d s$"))
    page.locator(f"[data-do={kind}]").click()
    expect(page.get_by_text(words)).to_be_visible()
    assert page.locator(f"[data-do={kind}]").is_disabled()
    assert stage.sent == [{"kind": kind, "run": stage.story.run.id}]
    # The kernel says it too: a head that comes after is no other one.
    stage.live.show_stopping(words)
    stage.hear(stage.live.draw_changes())
    expect(page.get_by_text(words)).to_have_count(1)
    assert page.locator("[data-do=stop]").count() == (kind == "pause")
    stage.finish()
    assert page.locator("[data-do=stop]").count() == 0
    assert clock.count() == 0


@pytest.mark.timed
def test_ten_thousand_deltas_only_grow_one_text(page: Page) -> None:
    stage = Stage(page, Story().turn("start"))
    stage.play(stage.story.events[: until(stage.story, events.TextDelta)])
    made = page.evaluate(
        """run => {
          let made = 0;
          const watch = new MutationObserver((all) => {
            for (const one of all) made += one.addedNodes.length;
          });
          const place = document.querySelector('[data-key="C01/text"]');
          watch.observe(place, { childList: true, subtree: true });
          const before = performance.now();
          for (let i = 0; i < 400; i++) {
            stub.hear({ run, ops: [["add", "C01/text/0", "word ".repeat(25)]] });
          }
          for (const one of watch.takeRecords()) made += one.addedNodes.length;
          return { made, ms: performance.now() - before };
        }""",
        stage.story.run.id,
    )
    assert made["made"] == 0
    assert made["ms"] < 3000
    assert page.locator(".nba-plain").evaluate("n => n.textContent.length") == 5 + 400 * 125


def test_a_view_that_comes_later_asks_for_the_whole_and_takes_nobody_elses(page: Page) -> None:
    stage = Stage(page, drawn())
    ready = page.evaluate("stub.model.sent")
    assert [message["kind"] for message in ready] == ["ready", "ready"]
    whole: list[Any] = ["done", picture(stage.story.run)]
    send = "m => stub.hear(m)"
    page.evaluate(send, {"run": stage.story.run.id, "page": -1, "ops": [whole]})
    assert page.locator(".nba-phase").inner_text() == "Running"
    page.evaluate(send, {"run": stage.story.run.id, "page": ready[1]["page"], "ops": [whole]})
    assert page.locator(".nba-phase").inner_text() == "Answered"
    nothing: list[Any] = ["done", ["div", {}]]
    page.evaluate(send, {"run": stage.story.run.id, "ops": [nothing]})
    assert page.locator(".nba-run").count() == 0
    page.evaluate("stub.leave()")
    assert page.locator(".nba-view").count() == 0


def test_buttons_of_static_pictures_work_while_their_kernel_lives(page: Page) -> None:
    run = drawn().run
    fork = form_node(Message(kind="act", do="fork", run=run.id, turn="C01"), run)
    made = html(picture(run, kernel="k1-1")) + html(picture(run, kernel="k2-1"))
    page.set_content(f"<!doctype html><body>{made}")
    page.evaluate("history.replaceState(null, '', '/')")
    assert page.locator(".nba-do:visible").count() == 0
    load_views(page)
    page.evaluate("window.stub = begin({ kind: 'actions', kernel: 'k1' })")
    ours = page.locator("[data-kernel='k1-1']")
    assert page.locator(".nba-do:visible").count() == ours.locator(".nba-do:visible").count() > 2
    ours.get_by_role("button", name="Compare").click()
    ours.locator(".nba-turn summary").first.click()
    ours.get_by_role("button", name="Fork").first.click()
    page.evaluate("m => stub.hear(m)", {"run": run.id, "at": "k1-1", "form": fork})
    ours.get_by_role("textbox").fill("In a <b>sentence</b>.")
    ours.locator(".nba-words .nba-go").dblclick()
    ours.locator(".nba-words .nba-go").click(force=True)
    base = {"kind": "act", "run": run.id, "at": "k1-1"}
    wish = {**base, "do": "fork", "turn": "C01"}
    filled = {**wish, "fields": {"prompt": "In a <b>sentence</b>."}}
    sent = page.evaluate("JSON.parse(JSON.stringify(stub.model.sent))")
    (tab,) = {message.pop("tab") for message in sent}
    assert tab
    assert sent == [{"kind": "ready"}, {**base, "do": "compare"}, wish, filled]
    # The kernel could not, and says why; the words can be mended and sent again.
    said = {"run": run.id, "at": "k1-1", "said": "<i>busy</i>", "text": ""}
    page.evaluate("m => stub.hear(m)", said)
    assert ours.locator(".nba-said").inner_text() == "<i>busy</i>"
    assert ours.locator(".nba-words .nba-go").is_enabled()
    ours.get_by_role("button", name="Copy answer").click()
    expect(ours.locator(".nba-said")).to_have_text("Copied the answer")
    assert "717,710" in page.evaluate("navigator.clipboard.readText()")
    page.evaluate("m => stub.hear(m)", {**said, "said": "Copied", "text": "%%agent\nhi"})
    expect(ours.locator(".nba-said")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "%%agent\nhi"
    page.evaluate("stub.end()")
    assert page.locator(".nba-do:visible").count() == 0


VALUES = {
    "href": ("https://b.c/?q=1", "MAILTO:a@b.c", "javascript:alert(1)", " https://b.c", "//b.c"),
    "src": ("data:image/png;base64,AA==", "data:image/svg+xml;base64,AA==", "https://b.c/x.png"),
    "style": ("flex-grow:3", "flex-grow:3;position:fixed", "flex-grow:x\nflex-grow:1"),
}


def test_the_page_builds_the_tags_and_attributes_that_the_kernel_prints_and_no_others(
    page: Page,
) -> None:
    tags = sorted(node.TAGS | {"script", "iframe", "style", "svg", "form", "object", "x-y"})
    names = sorted(node.ATTRIBUTES | {"onclick", "onerror", "srcset", "id", "data-command"})
    pairs = [(name, "1") for name in names]
    pairs += [(name, value) for name, values in VALUES.items() for value in values]
    pictures: list[list[Any]] = [[tag, {}] for tag in tags]
    pictures += [["p", {name: value}] for name, value in pairs]
    page.set_content('<!doctype html><body><div id="here"></div>')
    load_views(page)
    page.evaluate(
        "pictures => begin({ kind: 'run', pictures }, document.getElementById('here'))", pictures
    )
    built = page.evaluate(
        """n => [...document.querySelector(".nba-view").children].slice(1).map((one, i) =>
          i < n ? one.localName : Object.fromEntries([...one.attributes]
            .filter(({ name }) => !/^(target|rel)$/.test(name))
            .map(({ name, value }) => [name, value])))
        """,
        len(tags),
    )
    assert built[: len(tags)] == [tag if tag in node.TAGS else "span" for tag in tags]
    for (name, value), attributes in zip(pairs, built[len(tags) :], strict=True):
        assert attributes == ({name: value} if node.is_allowed(name, value) else {}), value


def test_what_is_sent_has_one_export_and_nothing_to_import_or_evaluate() -> None:
    source = script()
    assert re.findall(r"\bexport\b.{11}", source) == ["export default ()"]
    assert re.findall(r"^import\b", source, re.MULTILINE) == []
    writers = ("innerHTML", "outerHTML", "insertAdjacent", "document.write")
    for word in (*writers, "eval(", "Function("):
        assert word not in source
    for sent in (source, script("panel.js")):
        # Comments are for readers of the files.
        assert not re.search(r"^\s*//|/\*\*", sent, re.MULTILINE)
    assert len(source) < 28_000
