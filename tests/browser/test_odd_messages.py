"""Messages that come late, twice, in the wrong order or for nobody, and two views of one widget."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from stage import Stage
from stories import Story, asked, drawn, tool_run

from nbagent.contracts import events
from nbagent.view.live import LivePicture, Op

_TREE = "n => n.outerHTML.replaceAll('><', '>\\n<').split('\\n')"
_ADD_VIEW = """
() => {
  const other = document.body.appendChild(document.createElement("div"));
  other.id = "other";
  window.leaveOther = stub.render(other);
}
"""
NODE: list[Any] = ["p", {}, "odd"]


def apply(live: LivePicture, event: events.Event) -> list[Op]:
    """Apply one event, and draw its changes."""
    live.update(event)
    return live.draw_changes()


def ops_of(stage: Stage) -> list[list[Op]]:
    """One message for each event before the end."""
    return [apply(stage.live, event) for event in stage.story.events[:-1]]


def shuffled(messages: list[list[Op]]) -> list[list[Op]]:
    mixed = [*messages]
    random.Random(7).shuffle(mixed)
    return mixed


ODD: dict[str, Callable[[list[list[Op]]], list[list[Op]]]] = {
    "each twice": lambda messages: [m for message in messages for m in (message, message)],
    "all twice": lambda messages: messages * 2,
    "backwards": lambda messages: messages[::-1],
    "shuffled": shuffled,
    "every third is lost": lambda messages: [m for i, m in enumerate(messages) if i % 3],
    "only the last ten": lambda messages: messages[-10:],
    "unknown keys": lambda messages: [
        *messages,
        [["add", "C99/text/0", "x"], ["add", "", "x"], ["add", 'head\\"]', "x"]],
    ],
    "missing parents": lambda messages: [
        *messages,
        [["put", "C99", NODE, "no such part"], ["put", "C99/tool/c1", NODE, "C99/tools"]],
    ],
    "keys like code": lambda messages: [
        *messages,
        [["put", key, NODE, key] for key in ("']<b>", '"] , *', "\\", "\u2028", "x" * 10_000)],
    ],
    "empty messages": lambda messages: [[], *messages, []],
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_whatever_came_before_the_end_leaves_the_stored_picture(
    page: Page, odd: Callable[[list[list[Op]]], list[list[Op]]]
) -> None:
    stage = Stage(page, drawn())
    for ops in odd(ops_of(stage)):
        stage.hear(ops)
    stage.finish()
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = false })")
    grown = page.locator(".nba-run").evaluate(_TREE)
    plain = Stage(page, drawn())
    plain.finish()
    assert grown == page.locator(".nba-run").evaluate(_TREE)
    assert stage.failures == []


def test_a_message_that_comes_after_the_end_changes_nothing(page: Page) -> None:
    stage = Stage(page, drawn())
    messages = ops_of(stage)
    for ops in messages:
        stage.hear(ops)
    stage.finish()
    ended = page.locator(".nba-run").evaluate(_TREE)
    for ops in messages:
        stage.hear(ops)
    assert page.locator(".nba-run").evaluate(_TREE) == ended
    assert page.locator(".nba-phase").inner_text() == "Answered"


def test_a_message_for_another_run_or_another_page_changes_nothing(page: Page) -> None:
    stage = Stage(page, drawn())
    ops = [op for message in ops_of(stage) for op in message]
    for other in ({"run": "another"}, {"run": stage.story.run.id, "page": 7}, {"run": '"] *'}):
        page.evaluate("m => stub.hear(m)", {"ops": ops, **other})
    assert page.locator(".nba-turns").inner_text() == ""
    assert page.locator(".nba-phase").inner_text() == "Running"
    assert stage.failures == []


def test_a_part_without_a_place_is_not_read_out(page: Page) -> None:
    stage = Stage(page, drawn())
    lost: list[Any] = ["div", {}, ["b", {"class": "nba-phase"}, "Lost"]]
    stage.hear([["put", "C99/head", lost, "C99"]])
    assert "Lost" not in page.get_by_role("status").inner_text()


def test_a_turn_that_was_drawn_while_a_question_was_open_does_not_bring_it_back(
    page: Page,
) -> None:
    """The picture of the whole turn waits; the card of the call, which began since, is newer."""
    story = Story().turn("I look.", tool_run("c1", "area", {"city": "Oslo"}, 454.1))
    (started,) = [e for e in story.events if isinstance(e, events.ToolCallStarted)]
    stage = Stage(page, story)
    stage.play(story.events[: story.events.index(started)])
    stage.play([asked("c1", "area", {"city": "Oslo"})])
    page.locator(".nba-ask.nba-armed").wait_for()
    stage.play([events.Notice("warning", "a full disk", turn_id="C01")])
    assert page.get_by_text("a full disk").count() == 0, "nothing moves under the mouse"
    stage.play([started])
    expect(page.get_by_text("a full disk")).to_have_count(1)
    assert page.locator("[data-question]").count() == 0
    assert "running" in page.locator(".nba-card").inner_text()


def test_two_views_of_a_widget_show_the_same_run_and_each_its_own_folds(page: Page) -> None:
    stage = Stage(page, drawn())
    half = len(stage.story.events) // 2
    stage.play(stage.story.events[:half])
    page.evaluate(_ADD_VIEW)
    first, second = page.locator("#here .nba-run"), page.locator("#other .nba-run")
    # Each view is a page of its own: the kernel answers with the whole picture.
    pages = [one["page"] for one in page.evaluate("stub.model.sent") if "page" in one]
    assert len(set(pages)) == 2
    whole = {"run": stage.story.run.id, "page": pages[1], "ops": [["done", stage.live.picture()]]}
    page.evaluate("m => stub.hear(m)", whole)
    assert first.evaluate(_TREE) == second.evaluate(_TREE)
    second.locator("summary").first.click()
    stage.play(stage.story.events[half:-1])
    stage.finish()
    is_open = "n => n.querySelector('.nba-turn').open"
    assert first.evaluate(is_open) != second.evaluate(is_open)
    assert first.inner_text().count("Answered") == second.inner_text().count("Answered") == 1
    page.evaluate("leaveOther()")
    assert (first.count(), second.count()) == (1, 0)


def test_a_question_is_answered_in_either_view_and_the_other_one_is_told(page: Page) -> None:
    story = Story().turn("I look.", tool_run("c1", "area", {"city": "Oslo"}, 454.1))
    (started,) = [e for e in story.events if isinstance(e, events.ToolCallStarted)]
    stage = Stage(page, story)
    page.evaluate(_ADD_VIEW)
    stage.play(story.events[: story.events.index(started)])
    stage.play([asked("c1", "area", {"city": "Oslo"})])
    other = page.locator("#other .nba-ask.nba-armed")
    other.get_by_role("button", name="Allow once", exact=True).click()
    assert [one["kind"] for one in stage.sent] == ["answer"]
    stage.play([started])
    expect(page.locator("[data-question]")).to_have_count(0)
    assert "running" in page.locator("#here .nba-card").inner_text()
    assert stage.failures == []
