"""The pictures of a batch and of a review in a plain page: themes, widths, a kernel's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from stage import CONTRAST, OVERFLOWS, load_views

from nbagent.view.batch import BatchProgress, FailedCase, VariantSummary, batch_node, batch_parts
from nbagent.view.node import Node
from nbagent.view.review import review_node
from nbagent.view.run_picture import page as page_of

_BEGIN = """
pictures => {
  const kernel = { statusChanged: { connect: (heard) => { window.end = heard; } } };
  const given = { kind: "run", pictures, widget_manager: { kernel } };
  window.stub = begin(given, document.getElementById("here"));
}
"""
LONG = "customer number " * 20
RUNNING = BatchProgress(
    name="double-1",
    state="Running",
    why="",
    total=60,
    reused=5,
    ok=20,
    failed=3,
    at_work=4,
    cost_usd=0.031,
    judge_cost_usd=0.002,
    elapsed_s=8.0,
    per_s=3.0,
    left_s=11.0,
    started_at=datetime(2026, 11, 23, tzinfo=UTC),
    failures=(FailedCase(run_id="f" * 16, row_key=LONG, variant="v1", why=f"LLM_TIMEOUT: {LONG}"),),
    variants=(
        VariantSummary(
            variant=f"v1 · {LONG}",
            total=30,
            ok=20,
            failed=3,
            cost_usd=0.01,
            scores={f"score_{n}": 0.123456 for n in range(6)},
            run_ids=("e" * 16,) * 2,
        ),
    ),
)
STOPPED = replace(RUNNING, state="Stopped", why="max_cost_usd=2 is used up", at_work=0)


class Review:
    """One answer to label."""

    title, position, total, scale = "How good is this answer, from 1 (bad) to 5 (good)?", 2, 3, 5

    def shown(self) -> tuple[tuple[str, str], ...]:
        return (("question", LONG), ("answer", "<b>Forty-two</b>"))

    def label(self, value: int, reason: str | None = None) -> None: ...
    def skip(self) -> None: ...
    def back(self) -> None: ...


PICTURES: dict[str, Node] = {
    "running": batch_node(RUNNING, kernel="k-1", buttons=True),
    "stopped": batch_node(STOPPED, kernel="k-1", buttons=True),
    "review": review_node(Review()),
    "review that failed": review_node(Review(), "the disk is full"),
}


def show(page: Page, *pictures: Node, ground: str = "#fff") -> None:
    page.set_content(
        f'<!doctype html><body style="margin:24px;background:{ground}"><div id="here"></div>'
    )
    load_views(page)
    page.evaluate(_BEGIN, list(pictures))


def sent(page: Page) -> list[Any]:
    """Messages that the page has sent to the kernel."""
    told: Sequence[Any] = page.evaluate("stub.model.sent")
    return [message for message in told if message["kind"] != "ready"]


@pytest.mark.parametrize("picture", PICTURES.values(), ids=PICTURES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_contrast_and_nothing_reaches_over_the_edge(
    page: Page, theme: str, picture: Node
) -> None:
    page.set_viewport_size({"width": 420, "height": 900})
    show(page, picture, ground="#fff" if theme == "light" else "#15171a")
    page.evaluate(
        """theme => {
          document.body.dataset.jpThemeLight = String(theme === "light");
          const { style } = document.documentElement;
          if (theme === "light") return;
          style.setProperty("--jp-layout-color1", "#111");
          style.setProperty("--jp-ui-font-color1", "#ddd");
          style.setProperty("--jp-border-color2", "#444");
        }""",
        theme,
    )
    page.evaluate("document.querySelector('.nba-run').append(document.createElement('summary'))")
    root = page.locator(".nba-run")
    found = root.evaluate(CONTRAST)
    assert len(found["texts"]) > 3
    assert {text: ratio for text, ratio in found["texts"].items() if ratio < 4.5} == {}
    assert root.evaluate(OVERFLOWS, ["*", ".nba-wide-table"]) == []


def test_stop_and_pause_are_said_at_once_and_sent_once(page: Page) -> None:
    show(page, PICTURES["running"])
    page.locator("[data-do=pause]").dblclick()
    expect(page.get_by_text("Pausing when the running cases have ended…")).to_be_visible()
    page.locator("[data-do=stop]").click()
    assert sent(page) == [{"kind": kind, "run": "batch"} for kind in ("pause", "stop")]
    head = batch_parts(RUNNING, "k-1", True, "Stopping…")["head"]
    page.evaluate("m => stub.hear(m)", {"run": "batch", "ops": [["put", "head", head, ""]]})
    assert page.locator("[data-do=stop]").count() == 0


def test_a_kernel_that_ends_is_said_with_what_to_do(page: Page) -> None:
    show(page, PICTURES["running"], PICTURES["review"])
    page.evaluate("end(null, 'restarting')")
    expect(page.locator(".nba-batch .nba-phase")).to_have_text("Interrupted")
    expect(page.locator(".nba-batch")).to_contain_text(
        "The kernel is gone: run the cell again; only the missing cases are run"
    )
    assert page.locator(".nba-batch :is([data-do=stop], [data-do=pause])").count() == 0
    expect(page.locator(".nba-review")).to_contain_text("your labels are kept")
    assert page.locator(".nba-review button:enabled").count() == 0


def test_a_review_hears_keys_only_while_it_has_the_focus(page: Page) -> None:
    show(page, PICTURES["review"])
    page.keyboard.press("3")
    review = page.locator(".nba-review")
    review.focus()
    for key in ("3", "6", "x", "Control+4", "0", "Backspace"):
        page.keyboard.press(key)
    at = {"run": "review", "place": "2"}
    assert sent(page) == [
        {"kind": "label", "value": "3", "fields": {"reason": ""}, **at},
        {"kind": "skip", "value": "", "fields": {"reason": ""}, **at},
        {"kind": "back", "value": "", "fields": {"reason": ""}, **at},
    ]
    assert "<b>Forty-two</b>" in review.inner_text()


def test_the_saved_picture_reads_well_without_any_style(page: Page) -> None:
    html = page_of(batch_node(STOPPED, kernel="k-1"))
    page.set_content(f"<!doctype html><body>{html}")
    page.evaluate(
        """() => {
          for (const one of document.querySelectorAll("style")) one.remove();
          for (const one of document.querySelectorAll("[style]")) one.removeAttribute("style");
        }"""
    )
    said = page.locator("body").inner_text()
    for words in ("■ Stopped", "20 ok · 3 failed", "LLM_TIMEOUT", "max_cost_usd=2 is used up"):
        assert words in said
    assert page.locator(".nba-bar").get_attribute("aria-label") == (
        "20 ok · 3 failed · 37 left (5 reused)"
    )
