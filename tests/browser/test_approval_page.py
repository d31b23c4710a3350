"""A question to the person in a plain page: seen whole, answered by mouse and keyboard, unmoved."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from stage import OVERFLOWS, PIECES, Stage, until
from stories import Story, asked, tool_run

from nbagent.contracts import events
from nbagent.contracts.approval import PreviewPiece
from nbagent.view.question import answer_error_node, preview_node

ARGS = {"path": "@project/a.md", "n": 3}


def unasked(page: Page, calls: int = 1) -> Stage:
    """A run that is about to ask."""
    runs = [tool_run(f"c{i + 1}", "fs.write", ARGS, {"bytesWritten": 120}) for i in range(calls)]
    stage = Stage(page, Story().turn("I write it.", *runs).turn("Done.").end())
    stage.play(stage.story.events[: until(stage.story, events.ToolCallStarted) - 1])
    return stage


def begin(page: Page, calls: int = 1) -> Stage:
    """A run that waits for answers to all calls of its first turn."""
    stage = unasked(page, calls)
    questions = [asked(f"c{i + 1}", "fs.write", ARGS, pieces=PIECES) for i in range(calls)]
    stage.play([*questions])
    expect(page.locator(".nba-armed")).to_have_count(calls)
    return stage


def question(page: Page, place: int = 0) -> Locator:
    return page.locator(".nba-ask").nth(place)


def button(page: Page, name: str, place: int = 0) -> Locator:
    return question(page, place).get_by_role("button", name=name, exact=True)


def fold(page: Page, name: str) -> Locator:
    return question(page).locator("summary", has_text=name)


def answers(stage: Stage) -> list[dict[str, Any]]:
    """The answers that were sent, without what is the same in all."""
    sent = [one for one in stage.sent if one["kind"] == "answer"]
    return [{k: v for k, v in one.items() if k not in ("kind", "run")} for one in sent]


def test_a_question_shows_all_of_the_call_where_it_stands(page: Page) -> None:
    stage = begin(page)
    assert page.locator(".nba-phase").inner_text() == "Waiting for you"
    assert stage.is_open(0)
    shown = question(page).inner_text()
    for words in (
        "fs.write needs your approval",
        "it writes",
        "@project/a.md",
        "-old",
        "+n⟦U+202E⟧ew",
    ):
        assert words in shown, words
    # The signs of a diff are text, their colours come on top.
    assert question(page).locator(".nba-minus").inner_text().strip() == "-old"
    assert page.get_by_role("group", name="fs.write needs your approval").count() == 1
    assert "Allow this exact call for the session" in shown
    stage.play([events.ToolCallStarted("C01", "c1", "fs.write", ARGS)])
    assert page.locator(".nba-ask").count() == 0
    assert "running" in stage.turn(0).locator(".nba-card").inner_text()
    assert stage.failures == []


@pytest.mark.parametrize("choice", ["once", "session"])
def test_one_click_is_one_answer(page: Page, choice: str) -> None:
    name = "Allow once" if choice == "once" else "Allow this exact call for the session"
    stage = begin(page)
    button(page, name).dblclick()
    button(page, name).evaluate("node => node.click()")
    assert answers(stage) == [{"question": "C01/c1/1", "choice": choice}]
    sent = {"once": "Allowed once: sent", "session": "Allowed for the session: sent"}
    assert question(page).locator(".nba-said").inner_text() == sent[choice]
    for one in question(page).get_by_role("button").all():
        assert one.is_disabled()


def test_what_comes_up_under_a_finger_is_no_answer(page: Page) -> None:
    stage = unasked(page)
    page.clock.install(time=0)
    page.clock.pause_at(1_000)
    stage.play([asked("c1", "fs.write", ARGS, pieces=PIECES)])
    page.clock.run_for(200)
    button(page, "Allow once").evaluate("node => node.click()")
    assert answers(stage) == []
    page.clock.run_for(800)
    button(page, "Allow once").evaluate("node => node.click()")
    assert [answer["choice"] for answer in answers(stage)] == ["once"]


def test_a_denial_takes_a_reason_and_enter_sends_it(page: Page) -> None:
    stage = begin(page)
    fold(page, "Deny…").click()
    assert button(page, "Allow once").is_hidden()
    field = page.get_by_label("reason (sent to the model)")
    field.fill("not in this folder")
    # What is typed stays while the kernel says other things.
    stage.play([events.Notice("warning", "x", "C01")])
    assert field.input_value() == "not in this folder"
    field.press("Enter")
    assert field.is_disabled()
    assert stage.is_open(0)
    denied = {"question": "C01/c1/1", "choice": "deny", "reason": "not in this folder"}
    assert answers(stage) == [denied]
    # The focus stays in the run, on the turn's line, and what waited is drawn.
    assert page.evaluate("document.activeElement.localName") == "summary"
    assert "note: x" in stage.turn(0).inner_text()


def test_edited_code_is_allowed_in_one_step(page: Page) -> None:
    stage = unasked(page)
    code = PreviewPiece("code", "x = 1", "code", ("code",))
    stage.play([asked("c1", "nb.run", {"code": "x = 1"}, pieces=(code,))])
    expect(page.locator(".nba-armed")).to_have_count(1)
    fold(page, "Edit…").click()
    question(page).locator("[data-field=code]").fill("x = 2")
    button(page, "Allow with these arguments").click()
    edited = {"question": "C01/c1/1", "choice": "once", "fields": {"code": "x = 2"}}
    assert answers(stage) == [edited]


def test_an_edit_is_previewed_mended_and_taken_back(page: Page) -> None:
    stage = begin(page)
    fold(page, "Edit…").click()
    field = question(page).locator("[data-field=path]")
    field.fill("@project/b.md")
    button(page, "Show the effect…").click()  # before the kernel has shown it: nothing is allowed
    page.wait_for_function("stub.model.sent.some((one) => one.kind === 'preview')")
    assert answers(stage) == []
    field.focus()
    fields = {"path": "@project/b.md", "n": "3"}
    (preview,) = stage.sent
    assert preview == {
        "kind": "preview", "run": stage.story.run.id, "question": "C01/c1/1", "fields": fields
    }  # fmt: skip
    pieces = (PreviewPiece("diff of b.md", "+new", "diff"),)
    stage.hear([["put", "C01/c1/1/pieces", preview_node("C01/c1/1", pieces), ""]])
    assert "diff of b.md" in question(page).inner_text()
    assert field.input_value() == "@project/b.md"
    expect(field).to_be_focused()
    button(page, "Allow with these arguments").click()
    edited = {"question": "C01/c1/1", "choice": "once", "fields": fields}
    assert answers(stage) == [edited]
    # The kernel cannot take it: its words stand there, and the text can be mended.
    stage.hear([["put", "C01/c1/1/said", answer_error_node("C01/c1/1", "n: not valid JSON"), ""]])
    assert question(page).locator(".nba-said").inner_text() == "n: not valid JSON"
    assert field.is_enabled()
    question(page).locator(".nba-edit").get_by_role("button", name="Cancel").click()
    button(page, "Allow once").click()
    assert answers(stage) == [edited, {"question": "C01/c1/1", "choice": "once"}]
    fold(page, "Edit…").evaluate("node => node.click()")
    assert field.input_value() == "@project/a.md"


def test_the_keyboard_is_enough_to_answer(page: Page) -> None:
    stage = begin(page)
    reached: list[str] = []
    for _ in range(14):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.slice(0, 30)"))
        if reached[-1] == "Deny…":
            break
    first = reached.index("Allow once")
    session = "Allow this exact call for the session"[:30]
    assert reached[first:] == ["Allow once", session, "Edit…", "Deny…"]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("no")
    page.keyboard.press("Enter")
    assert answers(stage) == [{"question": "C01/c1/1", "choice": "deny", "reason": "no"}]


def test_nothing_moves_while_a_question_is_open(page: Page) -> None:
    stage = begin(page, 3)
    before = [question(page, i).bounding_box() for i in range(3)]
    run = stage.story.run.turns[0].tool_runs[0]
    long = run.model_copy(update={"error_detail": "line\n" * 12})
    waits = events.Waiting(None, "another process is writing to the store " * 4)
    notice = events.Notice("warning", "x", "C01")
    stage.play([waits, notice])
    assert [question(page, i).bounding_box() for i in range(3)] == before
    button(page, "Allow once", 1).dblclick()
    assert answers(stage) == [{"question": "C01/c2/2", "choice": "once"}]
    # A call that was answered elsewhere ends where it stands.
    stage.play([events.ToolCallFinished("r", "C01", long, 2)])
    assert question(page).bounding_box() is not None
    button(page, "Allow this exact call for the session", 1).click()
    expect(page.locator(".nba-turn").first).to_contain_text("note: x")
    assert [one["question"] for one in answers(stage)] == ["C01/c2/2", "C01/c3/3"]
    assert stage.failures == []


def test_all_that_stand_in_the_page_are_allowed_together(page: Page) -> None:
    stage = begin(page, 2)
    page.get_by_role("button", name="Allow all").click()
    said = {"kind": "answer_all", "run": stage.story.run.id}
    assert stage.sent == [{**said, "questions": ["C01/c1/1", "C01/c2/2"]}]
    assert page.locator(".nba-ask button:enabled").count() == 0


_KEEPS_TYPING = """
() => {
  const type = () => document.dispatchEvent(new KeyboardEvent("keydown", { key: "a" }));
  type();
  setInterval(type, 50);
}
"""


def test_a_question_out_of_sight_is_scrolled_to_unless_the_person_works_elsewhere(
    page: Page,
) -> None:
    page.set_viewport_size({"width": 908, "height": 500})
    long = (PreviewPiece("diff", "+x\n" * 3000, "diff"),)
    for is_busy in (False, True):
        stage = unasked(page)
        page.evaluate(
            "document.body.prepend(Object.assign(document.createElement('input'), {id: 'else'}))"
        )
        page.evaluate("document.getElementById('here').style.paddingTop = '2000px'")
        page.locator("#else").focus()
        if is_busy:
            page.evaluate(_KEEPS_TYPING)
        stage.play([asked("c1", "fs.write", ARGS, pieces=long)])
        expect(page.locator(".nba-armed")).to_have_count(1)
        expect(page.locator("#else")).to_be_focused()
        if is_busy:
            assert page.evaluate("scrollY") == 0
        else:
            expect(button(page, "Allow once")).to_be_in_viewport(ratio=1)


def test_a_question_wraps_and_hides_nothing(page: Page) -> None:
    page.set_viewport_size({"width": 320, "height": 700})
    long = "x" * 3000
    stage = unasked(page)
    diff = PreviewPiece(long[:200], f"-{long}\n+{long}", "diff")
    pieces = (diff, PreviewPiece("code", "line\n" * 300 + "the last", "code"))
    words: dict[str, Any] = {"why": long, "host": long[:90], "pieces": pieces}
    stage.play([asked("c1", long[:300], {long[:90]: long}, **words)])
    fold(page, "Edit…").click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".nba-run").evaluate(OVERFLOWS, [".nba-ask *", "pre"]) == []
    # What does not fit can be scrolled to, also by keyboard, and its label says how long it is.
    region = page.get_by_role("region", name="code · all 301 lines")
    assert region.get_attribute("tabindex") == "0"
    assert region.inner_text().endswith("the last")
