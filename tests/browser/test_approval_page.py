"""A question to the person in a plain page: seen whole, answered by mouse and keyboard, unmoved."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from stage import OVERFLOWS, PIECES, Stage, until
from stories import Story, asked, tool_run

from nbagent.contracts import events
from nbagent.contracts.policy import PreviewPiece

ARGS = {"path": "@project/a.md", "content": "new " * 30}


def story(calls: int = 1) -> Story:
    """A run whose first turn wants to write files."""
    runs = [tool_run(f"c{i + 1}", "fs.write", ARGS, {"bytesWritten": 120}) for i in range(calls)]
    return Story().turn("I write it.", *runs).turn("Done.").end()


def unasked(page: Page, calls: int = 1) -> Stage:
    """A run that is about to ask."""
    stage = Stage(page, story(calls))
    stage.play(stage.story.events[: until(stage.story, events.ToolCallStarted) - 1])
    return stage


def begin(page: Page, calls: int = 1) -> Stage:
    """A run that waits for answers to all calls of its first turn."""
    stage = unasked(page, calls)
    for i in range(calls):
        stage.play([asked(f"c{i + 1}", "fs.write", ARGS, pieces=PIECES)])
    return stage


def below_the_page(page: Page) -> Stage:
    """A view that has to be scrolled to, below a field to work in."""
    page.set_viewport_size({"width": 908, "height": 500})
    stage = Stage(page, story())
    page.evaluate(
        "document.body.prepend(Object.assign(document.createElement('input'), {id: 'else'}))"
    )
    page.evaluate("document.getElementById('here').style.paddingTop = '2000px'")
    return stage


def question(page: Page, place: int = 0) -> Locator:
    return page.locator(".nba-ask").nth(place)


def button(page: Page, name: str, place: int = 0) -> Locator:
    return question(page, place).get_by_role("button", name=name, exact=True)


def answers(stage: Stage) -> list[dict[str, Any]]:
    """The answers that were sent, without what is the same in all."""
    sent = [one for one in stage.sent if one["kind"] == "answer"]
    return [{k: v for k, v in one.items() if k not in ("kind", "nth")} for one in sent]


def test_a_question_shows_all_of_the_call_where_it_stands(page: Page) -> None:
    stage = begin(page)
    assert page.locator(".nba-phase").inner_text() == "Waiting for you"
    assert stage.is_open(0)
    shown = question(page).inner_text()
    for words in ("fs.write", "waiting for you", "fs\n", "it writes", "-old", "+n⟦U+202E⟧ew"):
        assert words in shown, words
    assert json.loads(question(page).locator("pre").first.inner_text()) == ARGS
    # The signs of a diff are text, their colours come on top.
    assert question(page).locator(".nba-minus").inner_text().strip() == "-old"
    assert question(page).locator(".nba-hunk").first.inner_text().split("\n")[0] == "--- a.md"
    group = page.get_by_role("group", name="fs.write is waiting for you: it writes")
    assert group.count() == 1
    assert page.locator(".nba-told").inner_text() == "fs.write is waiting for you"
    session = button(page, "Allow for this session")
    assert session.get_attribute("title") == "for this session: this very call"
    # It stands in the place of the call's card, and is gone with its answer.
    key = asked("c1", "fs.write", ARGS)
    stage.play([events.ToolCallStarted("C01", "c1", "fs.write", key.args)])
    assert page.locator(".nba-ask").count() == 0
    assert "running" in stage.turn(0).locator(".nba-card").inner_text()
    assert stage.failures == []


@pytest.mark.parametrize("choice", ["once", "session"])
def test_one_click_is_one_answer(page: Page, choice: str) -> None:
    name = "Allow once" if choice == "once" else "Allow for this session"
    stage = begin(page)
    button(page, name).click()
    assert answers(stage) == [{"call": "c1", "choice": choice}]
    said = question(page).locator(".nba-said").inner_text()
    assert said == f"{name.replace('Allow', 'Allowed')}: sent"
    for one in question(page).get_by_role("button").all():
        assert one.is_disabled()
    # Neither the page nor the view being drawn again asks it anew.
    page.evaluate("stub.again()")
    stage.turn(0).locator("summary").first.click()
    stage.turn(0).locator("summary").first.click()
    assert button(page, name).is_disabled()
    button(page, name).evaluate("node => node.click()")
    assert len(answers(stage)) == 1


def test_a_denial_takes_a_reason_and_enter_sends_it(page: Page) -> None:
    stage = begin(page)
    button(page, "Deny…").click()
    assert button(page, "Deny…").get_attribute("aria-expanded") == "true"
    field = page.get_by_label("reason, which the model is told")
    expect(field).to_be_focused()
    field.fill("not in this folder")
    # What is typed is still there when the view is drawn again.
    page.evaluate("stub.again()")
    assert field.input_value() == "not in this folder"
    field.press("Enter")
    assert field.is_disabled()
    assert stage.is_open(0)
    assert answers(stage) == [{"call": "c1", "choice": "deny", "reason": "not in this folder"}]


def test_edited_arguments_are_checked_before_they_are_sent(page: Page) -> None:
    stage = begin(page)
    button(page, "Edit…").click()
    field = page.get_by_label("arguments, as JSON")
    assert json.loads(field.input_value()) == ARGS
    send = button(page, "Allow with these arguments")
    for text, words in (("{'path': 1}", "this is not JSON"), ("[1]", "one JSON object"), ("", "")):
        field.fill(text)
        send.click()
        assert words in question(page).locator(".nba-said").inner_text()
        assert field.get_attribute("aria-invalid") == "true"
        assert field.input_value() == text
    assert answers(stage) == []
    field.fill('{"path": "@project/b.md"}')
    send.click()
    said = {"call": "c1", "choice": "once", "arguments": '{"path": "@project/b.md"}'}
    assert answers(stage) == [said]
    # The kernel is stricter: its words stand there, and the text can be mended.
    nth = next(one["nth"] for one in stage.sent if one["kind"] == "answer")
    page.evaluate("op => stub.ops([op])", {"op": "unclear", "call": "c1", "nth": nth, "text": "no"})
    assert question(page).locator(".nba-said").inner_text() == "Not sent: no"
    assert field.input_value() == '{"path": "@project/b.md"}'
    send.click()
    assert len(answers(stage)) == 2


def test_the_keyboard_is_enough_to_answer(page: Page) -> None:
    stage = begin(page)
    expect(button(page, "Allow once")).to_be_enabled()
    reached: list[str] = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.slice(0, 30)"))
        if reached[-1] == "Deny…":
            break
    first = reached.index("Allow once")
    assert reached[first:] == ["Allow once", "Allow for this session", "Edit…", "Deny…"]
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    page.keyboard.type("no")
    page.keyboard.press("Enter")
    assert answers(stage) == [{"call": "c1", "choice": "deny", "reason": "no"}]
    # The focus stays in the run, on the turn's line.
    assert page.evaluate("document.activeElement.localName") == "summary"


def test_a_question_never_moves_under_the_mouse(page: Page) -> None:
    stage = begin(page, 3)
    expect(button(page, "Allow once", 2)).to_be_enabled()
    button(page, "Allow once", 1).hover()
    before = [question(page, i).bounding_box() for i in range(3)]
    run = stage.story.run.turns[0].tool_runs[0]
    # The first call is answered elsewhere and ends with a long result; a notice comes too.
    long = run.model_copy(update={"error_detail": "line\n" * 12})
    waits = events.Waiting(None, "another process is writing to the store " * 4)
    notice = events.Notice("warning", "x", "C01")
    stage.play([events.ToolCallFinished("r", "C01", long, 2), waits, notice])
    assert [question(page, i).bounding_box() for i in range(3)] == before
    # A double click answers the one question that is under the mouse.
    button(page, "Allow once", 1).dblclick()
    assert answers(stage) == [{"call": "c2", "choice": "once"}]
    stage.play([events.ToolCallStarted("C01", "c2", "fs.write", ARGS)])
    assert question(page, 1).bounding_box() == before[1]
    # With the mouse elsewhere the picture catches up, and the third question is still open.
    page.mouse.move(5, 5)
    expect(page.locator(".nba-ask")).to_have_count(1)
    assert "note: x" in stage.turn(0).inner_text()
    button(page, "Allow for this session").click()
    assert [one["call"] for one in answers(stage)] == ["c2", "c3"]
    assert stage.failures == []


def test_a_question_that_comes_later_opens_below_the_one_at_the_mouse(page: Page) -> None:
    page.set_viewport_size({"width": 460, "height": 900})
    stage = unasked(page, 3)
    stage.play([asked("c2", "fs.write", ARGS, pieces=PIECES)])
    expect(button(page, "Allow once")).to_be_enabled()
    button(page, "Allow once").hover()
    before = question(page).bounding_box()
    stage.play([asked("c3", "fs.write", ARGS, pieces=PIECES)])
    assert page.locator(".nba-ask").count() == 2
    expect(button(page, "Allow once", 1)).to_be_enabled()
    # One that belongs above has to wait; row and head say that it is there.
    stage.play([asked("c1", "fs.write", ARGS, pieces=PIECES)])
    assert page.locator(".nba-ask").count() == 2
    assert question(page).bounding_box() == before
    assert stage.turn(0).locator(".nba-sum").text_content().count("waiting for you") == 3  # type: ignore[union-attr]
    page.mouse.move(5, 5)
    expect(page.locator(".nba-ask")).to_have_count(3)
    button(page, "Allow once", 0).click()
    assert [one["call"] for one in answers(stage)] == ["c1"]
    assert stage.failures == []


def test_while_a_form_is_open_the_call_as_it_was_cannot_be_allowed(page: Page) -> None:
    stage = begin(page, 2)
    for form in ("Edit…", "Deny…"):
        button(page, form).click()
        for name in ("Allow once", "Allow for this session"):
            expect(button(page, name)).to_be_disabled()
            button(page, name).evaluate("node => node.click()")
        assert answers(stage) == []
        button(page, form).click()
    state = question(page).locator(".nba-top .nba-res")
    assert state.inner_text() == "waiting for you"
    button(page, "Allow once").click()
    assert answers(stage) == [{"call": "c1", "choice": "once"}]
    assert state.inner_text() == "allowed once, others wait for you"
    button(page, "Allow once", 1).click()
    assert state.inner_text() == "allowed once"
    assert len(answers(stage)) == 2


def test_a_question_out_of_sight_is_scrolled_to_unless_the_person_works_elsewhere(
    page: Page,
) -> None:
    stage = below_the_page(page)
    page.locator("#else").focus()
    stage.play(stage.story.events[: until(stage.story, events.ToolCallStarted) - 1])
    long = (PreviewPiece("diff", "+x\n" * 3000, "diff"),)
    stage.play([asked("c1", "fs.write", ARGS, pieces=long)])
    for one in (button(page, "Allow once"), question(page).locator(".nba-top")):
        expect(one).to_be_in_viewport(ratio=1)
    expect(page.locator("#else")).to_be_focused()
    stage = below_the_page(page)
    stage.play(stage.story.events[: until(stage.story, events.ToolCallStarted) - 1])
    page.locator("#else").press("a")
    stage.play([asked("c1", "fs.write", ARGS, pieces=PIECES)])
    page.wait_for_timeout(120)
    assert page.evaluate("scrollY") == 0
    expect(question(page)).not_to_be_in_viewport()


def test_the_second_click_of_a_double_click_answers_nothing_that_came_up_meanwhile(
    page: Page,
) -> None:
    stage = begin(page)
    # As soon as the first answer is sent, another question stands in the same place.
    again = stage.live.fold(asked("c1", "fs.write", ARGS, pieces=PIECES, why="it changed"))
    page.evaluate(
        """ops => {
          const { send } = stub.model;
          stub.model.send = (content) => {
            send(content);
            if (content.kind === "answer") { stub.model.send = send; stub.ops(ops); }
          };
        }""",
        again,
    )
    button(page, "Allow once").dblclick()
    assert len(answers(stage)) == 1
    assert "it changed" in question(page).inner_text()
    button(page, "Allow once").click()
    first, second = (one["nth"] for one in stage.sent if one["kind"] == "answer")
    assert first != second


def test_a_question_wraps_and_hides_nothing(page: Page) -> None:
    page.set_viewport_size({"width": 320, "height": 700})
    long = "x" * 3000
    stage = unasked(page)
    diff = PreviewPiece(long[:200], f"-{long}\n+{long}", "diff")
    pieces = (diff, PreviewPiece("code", "line\n" * 300 + "the last", "code"))
    words: dict[str, Any] = {"why": long, "host": long[:90], "pieces": pieces}
    stage.play([asked("c1", long[:300], {long[:90]: long}, **words)])
    expect(button(page, "Edit…")).to_be_enabled()
    button(page, "Edit…").click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    over = page.locator(".nba-run").evaluate(OVERFLOWS, [".nba-ask *", "pre"])
    assert over == []
    # What does not fit can be scrolled to, also by keyboard, and its label says how long it is.
    region = page.get_by_role("region", name="code · 301 lines, 1,508 characters")
    assert region.get_attribute("tabindex") == "0"
    assert region.inner_text().endswith("the last")
