"""Made-up cases of a batch, and the page over all of them: live in a plain page, and as a file.

Owns no expectations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect
from stage import VIEWS
from stories import Story, tool_run

from nbagent.contracts.case_results import CaseResult, ToolUse
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import RunRecord, ScoreRecord
from nbagent.export.case_file import case_file
from nbagent.notebook.case_page import CASE_CODE, LiveCases
from nbagent.notebook.messages import read_message
from nbagent.notebook.page_module import script, stylesheet
from nbagent.view.case_columns import columns_of_cases
from nbagent.view.theme import cases_stylesheet

AT = datetime(2026, 11, 29, tzinfo=UTC)
VARIANTS = ("terse", "lengthy · openai:gpt-5.4")
WORDS = ("Oslo", "has", "more", "people", "than", "Bergen", "because", "its", "region", "grew")
LEGEND = (
    ("prompt", VARIANTS[0], "Answer briefly."),
    ("prompt", VARIANTS[1], "Answer at length."),
)
OBSERVE = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) longest = Math.max(longest, entry.duration);
}).observe({ type: "longtask", buffered: true });
"""


def words(n: int, of: int = 0) -> str:
    return " ".join(WORDS[(i * (of % 7 + 1) + of) % len(WORDS)] for i in range(n))


def score(name: str, value: Any, by: str = "function", reason: str = "") -> ScoreRecord:
    return ScoreRecord(run_id="r", scorer=name, value=value, by=by, at=AT, reason=reason or None)


def case(n: int, variant: str = VARIANTS[0], **changes: Any) -> CaseResult:
    """An answered case; every third row is wrong in the long variant."""
    number = 2 * n + VARIANTS.index(variant) if variant in VARIANTS else n
    is_right = variant == VARIANTS[0] or n % 3 > 0
    made: dict[str, Any] = {
        "row_key": f"row-{n}",
        "labels": {"prompt": variant},
        "cells": {
            "city": f"city {n}",
            "note": words(20, n),
            "lang": ("de", "no")[n % 2],
            "expected": f"c{n}",
        },
        "status": "ok",
        "run_id": f"{number:016x}",
        "prompt": f"Which is larger? {words(60, n)}",
        "text": f"Answer {n}: {words(300, number)}",
        "turns": 2,
        "total_tokens": 900 + n,
        "cost_usd": 0.001 * (n + 1),
        "duration_ms": 40.0 * (n + 1),
        "tools": (ToolUse(name="population", calls=2), ToolUse(name="area", calls=1))[: 1 + n % 2],
        "scores": (score("exact", is_right, reason=words(12, n)), score("judge", n % 5 / 4, "m:j")),
    }
    return CaseResult(**(made | changes))


def failed(n: int, variant: str = VARIANTS[0]) -> CaseResult:
    why = "LLM_TIMEOUT: no answer within 60 s"
    return case(n, variant, status="failed", text="", why=why, scores=())


def cases(n_rows: int) -> list[CaseResult]:
    """Rows in two variants; the fifth row fails in the first."""
    made = [case(n, variant) for n in range(n_rows) for variant in VARIANTS]
    return [failed(4) if (one.row_key, one.variant) == ("row-4", VARIANTS[0]) else one
            for one in made]  # fmt: skip


@cache
def run_with_calls() -> RunRecord:
    """A run with a call that succeeded and one that failed."""
    story = Story("What is it?")
    calls = [
        tool_run("1", "population", {"city": "Oslo"}, 709),
        tool_run("2", "area", {"city": "Oslo"}, ErrorInfo("E_TIMEOUT", "too slow")),
    ]
    story.turn("", *calls).turn("Oslo").end()
    return story.run


class Source:
    """The cases of a batch that a test changes."""

    name, state = "refunds", ""
    score_names: Sequence[str] = ()

    def __init__(self, results: Sequence[CaseResult], **options: Any) -> None:
        self.present = [*results]
        self.options: Mapping[str, Any] = {"legend": LEGEND, **options}
        self.labels: list[tuple[str, Any, str | None]] = []
        self.on_change: Callable[[], object] = lambda: None

    def results(self) -> Sequence[CaseResult]:
        return [*self.present]

    def record(self, run_id: str) -> RunRecord:
        story = Story("What is it?")
        story.turn(f"the whole run {run_id[-3:]}").end()
        return story.run

    def label(self, run_id: str, value: float | bool, reason: str | None) -> ScoreRecord:
        self.labels.append((run_id, value, reason))
        return score("review", value, "person", reason or "")

    def watch(self, on_change: Callable[[], object]) -> None:
        self.on_change = on_change

    def change(self, number: int, **changes: Any) -> None:
        self.present[number] = replace(self.present[number], **changes)


class LiveStage:
    """The page over all cases in a plain page, with the kernel's side of it."""

    def __init__(self, page: Page, source: Source) -> None:
        self.page, self.source = page, source
        self.live = LiveCases(source)
        self.sent: list[Any] = []
        self.live.updates.send = self.hear
        self.n_read = 0
        page.evaluate(VIEWS, [script(*CASE_CODE), stylesheet() + cases_stylesheet()])
        page.evaluate(
            "pictures => { window.stub = begin({ kind: 'run', pictures }, document.body) }",
            [self.live.picture()],
        )
        self.live.updates.send_whole()
        expect(page.locator("tr.nba-case")).to_have_count(len(source.present))

    def hear(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.page.evaluate("m => stub.hear(m)", message)

    def answer(self) -> None:
        """Let the kernel's side handle what the page has sent since."""
        told: list[Any] = self.page.evaluate("stub.model.sent")
        for content in told[self.n_read :]:
            message = read_message(content)
            assert message is not None, content
            self.live.act(message)
        self.n_read = len(told)


def file_of(results: Sequence[CaseResult], folder: Path, **options: Any) -> str:
    """Write the file of these cases and return its address."""
    columns = columns_of_cases(results, "refunds", legend=LEGEND, **options)
    text = case_file(results, columns, load=lambda run_id: run_with_calls())
    path = folder / "cases.html"
    path.write_text(text, "utf-8")
    return path.as_uri()


def open_file(page: Page, address: str, n_rows: int) -> None:
    """Open a file of cases as a browser opens it from the disk, and wait for its rows."""
    page.unroute_all()
    page.goto(address)
    expect(page.locator("tr.nba-case")).to_have_count(n_rows)


def keys(page: Page) -> list[str]:
    """Keys of the shown rows."""
    return page.locator("tr.nba-case .nba-unfold").all_text_contents()
