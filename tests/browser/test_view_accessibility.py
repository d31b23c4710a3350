"""The run view by keyboard, by ear, in every theme, when it is narrow, and when it is long."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
from jupyterlab.commands import get_app_dir
from playwright.sync_api import Browser, Page, expect
from stage import CONTRAST, OVERFLOWS, PIECES, Stage, until
from stories import ANSWER, REASONING, Story, asked, drawn, tool_run

from nbagent.contracts import events
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.messages import ImagePart
from nbagent.contracts.records import ToolResult
from nbagent.view.run_picture import page as page_of
from nbagent.view.run_picture import picture

_PNG = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f"
    b"\x15\xc4\x89\x00\x00\x00\nIDATx\x9cc\x00\x01\x00\x00\x05\x00\x01\r\n-\xb4\x00\x00\x00\x00IEND"
)
_TEXT = f"# Title\n\n{ANSWER} [a link](https://example.com)\n\n> said\n\n" + (
    "```python\nx = 1\n```\n\n|a|b|\n|-|-|\n|1|`2`|\n"
)
_UNFOLD = "document.querySelectorAll('details').forEach((node) => { node.open = true })"
_SHOW = "html => { document.getElementById('here').innerHTML = html }"


def rich() -> Story:
    """A run with all that has a look of its own."""
    image = ImagePart(data=base64.b64encode(_PNG).decode(), alt="a plot")
    edited = {"approval": "edited", "approved_by": "person", "waited_ms": 4200.0}
    plot = tool_run("c9", "plot", {}, None).model_copy(
        update={"result": ToolResult(ok=True, attachments=(image,)), "truncated": True, **edited}
    )
    story = Story("offline:demo", name="named", tags=("tag",))
    story.turn("I look.", tool_run("c1", "population", {"city": "Oslo"}, 717710, 120))
    failed = ErrorInfo("E_TOOL_FAILED", "KeyError: 'Bergn'")
    story.turn("", tool_run("c2", "area", {"c": "B"}, failed), plot, reasoning=REASONING, agent="a")
    story.turn(_TEXT, notices=("cut to fit",))
    fault = ErrorInfo("LLM_RATE_LIMITED", "too many requests for the provider (HTTP 429).")
    return story.end(
        notices=("the disk is full",), phase="Failed", stop_reason="error", error=fault
    )


_NEXT_FRAME = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"


def unfolded(page: Page, stage: Stage, form: str) -> None:
    """Show the ended run in one of its forms, with nothing folded."""
    if form == "live":
        stage.finish()
    else:
        page.evaluate(_SHOW, page_of(picture(stage.story.run)))
    page.evaluate(_UNFOLD)
    page.evaluate(_NEXT_FRAME)


def waits(story: Story) -> list[events.Event]:
    """The run until it waits after a failed request, and is asked about a call."""
    begun = until(story, events.ToolCallStarted)
    error = ErrorInfo("LLM_RATE_LIMITED", "too fast")
    return [
        *story.events[:begun],
        asked("c1", "population", {"city": "Oslo"}, pieces=PIECES),
        events.Notice("warning", "a full disk"),
        events.Retrying("C01", 1, 30.0, error, "again"),
    ]


def theme_variables(name: str) -> str:
    """The variables of one of JupyterLab's own themes; none without a name."""
    if not name:
        return ""
    themes = Path(get_app_dir()) / "themes" / "@jupyterlab"
    sheet = (themes / f"theme-{name}-extension" / "index.css").read_text("utf-8")
    return "\n".join(re.findall(r":root\s*\{[^}]*\}", sheet))


THEMES = {
    "none, light": ("light", ""),
    "none, dark": ("dark", ""),
    "light": ("light", "light"),
    "dark on a light system": ("light", "dark"),
    "high contrast": ("dark", "dark-high-contrast"),
}


@pytest.mark.parametrize(("scheme", "theme"), THEMES.values(), ids=THEMES)
def test_text_has_a_contrast_of_four_and_a_half(page: Page, scheme: Any, theme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    story = rich()
    stage = Stage(page, story, theme=theme.partition("-")[0] or scheme)
    if theme:
        page.add_style_tag(content=theme_variables(theme))
        is_light = str(theme == "light").lower()
        page.evaluate(f"document.body.dataset.jpThemeLight = '{is_light}'")
        page.evaluate("document.body.style.background = 'var(--jp-layout-color0)'")
    for form in ("waits", "live", "static"):
        if form == "waits":
            stage.play(waits(story))
            page.locator(".nba-ask button:enabled").first.wait_for()
            page.locator(".nba-edit summary").click()
            page.evaluate(_UNFOLD)
            page.evaluate(_NEXT_FRAME)
        else:
            unfolded(page, stage, form)
        measured = page.locator("#here").evaluate(CONTRAST)
        low = {name: round(value, 2) for name, value in measured["texts"].items() if value < 4.5}
        assert low == {}, form
        assert len(measured["texts"]) > (12 if form == "waits" else 20)
        assert measured["outline"] >= 3
        assert measured["width"] >= 2


@pytest.mark.parametrize("form", ["live", "static"])
def test_everything_has_a_name_and_a_role(page: Page, form: str) -> None:
    stage = Stage(page, rich())
    unfolded(page, stage, form)
    found = page.evaluate(
        """() => {
          const all = (what) => [...document.querySelectorAll(`.nba-run ${what}`)];
          const name = (n) => n.getAttribute("aria-label") ?? (n.textContent.trim() || n.title);
          const folds = all("summary");
          return {
            nameless: all("button, summary, a").filter((n) => !name(n)).length,
            folds: folds.length,
            first: folds.every((n) => n.parentElement.localName === "details" &&
              n.parentElement.firstElementChild === n),
            images: all("img").map((n) => n.alt),
            sized: all("img").every((n) => /a plot/.test(n.parentElement.textContent)),
            ids: all("[id]").length,
            nested: all("summary :is(a, button), button :is(a, button)").length,
          };
        }"""
    )
    assert found["nameless"] == found["ids"] == found["nested"] == 0
    assert found["folds"] >= 6
    assert found["first"]
    assert (found["images"], found["sized"]) == (["a plot"], True)
    if form == "live":
        group = page.get_by_role("group", name="agent run, offline:demo")
        assert group.count() == 1
        assert page.get_by_role("status").inner_text() == "Failed"
        assert "tools" in (page.get_by_role("img", name="time:").get_attribute("title") or "")


def test_no_meaning_is_in_a_colour_alone(page: Page) -> None:
    """Without a style the words are all there: state, failure, waiting, where the time went."""
    stage = Stage(page, rich())
    said = (
        *("Failed", "✕ E_TOOL_FAILED", "✕ LLM_RATE_LIMITED: too many requests", "model 2.7 s"),
        *("Wait a little, then continue with %agent resume", "arguments edited by you after 4.2 s"),
        *("the result was shortened", "note: the disk is full", "a plot"),
    )
    for form in ("live", "static"):
        unfolded(page, stage, form)
        page.evaluate("document.querySelectorAll('style').forEach((node) => node.remove())")
        text = page.locator("#here").inner_text()
        assert [words for words in said if words not in text] == [], form


def test_the_keyboard_reaches_everything_in_order_of_reading(page: Page) -> None:
    story = drawn()
    stage = Stage(page, story)
    stage.play(story.events[: until(story, events.ToolCallFinished)])
    reached: list[str] = []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "() => { const n = document.activeElement;"
                " return n.textContent.slice(0, 3) || n.title }"
            )
        )
    # The first turn is open while its tools run.
    assert reached[:3] == ["‖ P", "■ S", "tur"]
    assert [name for name in reached if name != "Copy"][3] == "req"
    stage.finish()
    page.evaluate("document.activeElement.blur()")
    page.locator(".nba-turn > summary").nth(1).focus()
    page.keyboard.press("Enter")
    assert stage.is_open(1)
    page.keyboard.press("Space")
    assert not stage.is_open(1)


def test_a_stream_is_not_read_out_piece_by_piece(page: Page) -> None:
    story = drawn()
    stage = Stage(page, story)
    stage.play(story.events[:2])
    page.evaluate(
        """() => {
          window.told = [];
          new MutationObserver((all) => {
            for (const one of all) {
              const live = one.target.closest?.("[role=status], [aria-live]");
              if (live) told.push(live.textContent);
            }
          }).observe(document.body, { childList: true, subtree: true, characterData: true });
        }"""
    )
    for i in range(100):
        stage.play([events.TextDelta("C01", f"word{i} ")])
    assert page.evaluate("told") == []
    error = ErrorInfo("LLM_RATE_LIMITED", "too fast")
    stage.play([events.Retrying("C01", 1, 9.0, error, "again")])
    assert set(page.evaluate("told")) == {
        "Running: again in 9.0 s · attempt 1 failed · LLM_RATE_LIMITED: too fast"
    }
    expect(page.locator(".nba-activity b")).not_to_have_text("9.0 s")  # it counts down
    stage.play([events.TextDelta("C01", "and on")])
    stage.finish()
    announcer = page.get_by_role("status")
    assert announcer.inner_text() == "Answered"
    box = announcer.bounding_box()
    assert box is not None
    assert (box["width"], box["height"]) == (1, 1), "what is read out is not seen"


def test_nothing_moves_where_motion_is_not_wanted(page: Page) -> None:
    page.clock.install()
    stage = Stage(page, drawn())
    stage.play(stage.story.events[:3])
    page.evaluate(
        """() => {
          window.ticks = 0;
          new MutationObserver((all) => { ticks += all.length; })
            .observe(document.querySelector(".nba-facts"), { subtree: true, childList: true });
        }"""
    )
    page.clock.run_for(4_000)
    assert 1 <= page.evaluate("ticks") <= 8
    assert page.evaluate("document.getAnimations().length") == 0
    assert not page.evaluate(
        "[...document.querySelectorAll('*')].map((n) => getComputedStyle(n)).some((style) =>"
        " style.scrollBehavior === 'smooth' || style.transitionDuration !== '0s')"
    )


@pytest.mark.parametrize("clipboard", ["works", "is refused"])
def test_the_answer_is_copied_and_the_page_says_so(page: Page, clipboard: str) -> None:
    stage = Stage(page, drawn())
    page.evaluate("begin({ kind: 'actions', kernel: 'k1' })")
    stage.hear([["done", picture(stage.story.run, kernel="k1-1")]])
    if clipboard == "is refused":
        # Plain http from another machine: there is no clipboard to ask.
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(1) }")
    else:
        page.evaluate("() => { document.execCommand = () => false }")
    page.get_by_role("button", name="Copy answer").focus()
    page.keyboard.press("Enter")
    page.get_by_text("Copied the answer").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").strip() == ANSWER.replace("*", "")
    assert page.evaluate("document.activeElement.title") == "Copy answer"


@pytest.mark.parametrize(
    ("width", "scale"), [(320, 1), (640, 2), (1200, 1)], ids=["320 px", "1280 px at 200 %", "wide"]
)
def test_it_wraps_and_never_scrolls_sideways(chromium: Browser, width: int, scale: int) -> None:
    # A page at 200 % is a page of half the width with twice the pixels.
    page = chromium.new_page(
        viewport={"width": width, "height": 700}, device_scale_factor=float(scale)
    )
    long = "x" * 3000
    story = Story(f"openai:{'m' * 80}", name="n" * 200)
    story.turn(long, tool_run(long[:300], "t" * 200, {long[:90]: long}, [long]), reasoning=long)
    story.turn(
        f"{long}\n\n`{long}`\n\n|a|b|c|\n|-|-|-|\n|{long[:400]}|{long[:400]}|y|\n\n```\n{long}\n```"
    )
    story.end(error=ErrorInfo("LLM_HTTP_ERROR", long))
    stage = Stage(page, story)
    for form in ("live", "static"):
        unfolded(page, stage, form)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), form
        over = page.locator(".nba-run").evaluate(OVERFLOWS, ["*", ".nba-sum, pre"])
        assert over == [], form
    page.close()
