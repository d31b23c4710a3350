"""The picture of a batch: what a person reads of it, its size, and hostile text."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from browser.payloads import PAYLOADS

from nbagent.view.batch import (
    BatchProgress,
    FailedCase,
    VariantSummary,
    batch_line,
    batch_node,
    batch_text,
)
from nbagent.view.node import Node, text_of
from nbagent.view.printers import html
from nbagent.view.run_picture import page
from nbagent.view.terminal import BatchPrinter

NAMES = [f"v{n} · openai:gpt-5.4{small}" for n in (1, 2, 3) for small in ("", "-mini")]
WHY = "LLM_TIMEOUT: 60 s"
RUNNING = BatchProgress(
    name="double-1",
    state="Running",
    why="",
    total=360,
    reused=52,
    ok=104,
    failed=8,
    at_work=16,
    cost_usd=0.031,
    judge_cost_usd=0.002,
    elapsed_s=8.0,
    per_s=14.2,
    left_s=18.0,
    started_at=datetime(2026, 11, 23, tzinfo=UTC),
    failures=tuple(
        FailedCase(
            run_id=f"{n:016x}", row_key=f"row-{n}", variant=NAMES[0], why="LLM_TIMEOUT: 60 s"
        )
        for n in range(8)
    ),
    variants=tuple(
        VariantSummary(
            variant=name,
            total=60,
            ok=58,
            failed=2,
            cost_usd=0.01,
            scores={"exact": 0.9312, "judge": 0.5},
            run_ids=(f"{n:015x}a", f"{n:015x}b", f"{n:015x}c"),
        )
        for n, name in enumerate(NAMES)
    ),
)
FINISHED = replace(
    RUNNING, state="Finished", ok=352, at_work=0, left_s=None, elapsed_s=26.0, cost_usd=0.1
)
STOPPED = replace(RUNNING, state="Stopped", why="the budget of $0.03 is used up", at_work=0)

ROWS = ("thead", "tbody", "tr", "th", "td")


def words(progress: BatchProgress, **options: Any) -> str:
    return text_of(batch_node(progress, **options))


def bar_of(node: Node) -> list[str]:
    """The pieces of the bar: kind and number."""
    return re.findall(r'nba-i-(\w+)" style="[^"]*flex-grow:(\d+)', html(node))  # type: ignore[return-value]


def test_a_batch_at_work_says_how_far_it_is_what_it_costs_and_what_failed() -> None:
    said = words(RUNNING)
    assert "112 of 360 · 14/s · 18 s left · $0.0310 so far (judges $0.0020)" in said
    assert "104 ok · 8 failed · 16 running · 232 left (52 reused)" in said
    assert "row-0" in said
    assert "LLM_TIMEOUT: 60 s" in said
    assert "exact" not in said, "the variants are compared at the end"
    node = batch_node(RUNNING)
    assert bar_of(node) == [("ok", "104"), ("bad", "8"), ("model", "16"), ("left", "232")]
    assert 'aria-label="104 ok · 8 failed · 16 running · 232 left' in html(node)


@pytest.mark.parametrize("progress", [FINISHED, STOPPED], ids=["finished", "stopped"])
def test_a_batch_that_is_over_has_its_variants_with_costs_and_means(
    progress: BatchProgress,
) -> None:
    said, lines = words(progress), batch_text(progress).splitlines()
    assert all(name in said for name in NAMES)
    assert "0.931" in said
    head = next(line for line in lines if line.startswith("variant"))
    assert head.split() == ["variant", "cases", "ok", "failed", "cost", "exact", "judge"]
    row = next(line for line in lines if line.startswith("v2 · openai:gpt-5.4 "))
    assert row.split()[-6:] == ["60", "58", "2", "$0.0100", "0.931", "0.5"]


def test_what_ended_early_says_why_and_what_to_do() -> None:
    for said in (words(STOPPED), batch_text(STOPPED)):
        assert "■ the budget of $0.03 is used up. Run the cell again" in said
        assert "only the missing cases are run" in said
    assert "failed cases are run again" in words(FINISHED)
    assert "again" not in words(replace(FINISHED, failed=0, ok=360))
    assert "again" not in words(RUNNING)
    assert "batch.start() starts it" in words(replace(RUNNING, state="Ready", at_work=0))


@pytest.mark.parametrize(("state", "word"), [("Stopped", "Stopping"), ("Paused", "Pausing")])
def test_a_batch_that_still_has_runs_at_work_has_not_ended(state: Any, word: str) -> None:
    ending = replace(STOPPED, state=state, at_work=3)
    assert batch_text(ending).startswith(f"… {word}")
    live = html(batch_node(ending, kernel="k-1", buttons=True))
    assert f"{word} " in text_of(batch_node(ending)) + " "
    assert ('data-do="stop"' in live) == (state == "Paused")
    assert 'data-do="pause"' not in live
    assert "Run the cell again" not in words(ending)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"failed": 0, "ok": 360, "failures": ()}, "✓ Finished"),
        ({}, "✓ Finished"),
        ({"failed": 360, "ok": 0}, "✕ Finished"),
    ],
    ids=["all ok", "some failed", "none ok"],
)
def test_the_state_is_a_word_with_a_mark(change: dict[str, Any], expected: str) -> None:
    progress = replace(FINISHED, **change)
    assert batch_text(progress).startswith(expected)
    assert words(progress).startswith(expected)


def test_a_cost_that_nobody_knows_is_no_zero() -> None:
    said = words(replace(FINISHED, cost_usd=None, judge_cost_usd=0.0))
    assert "no price known" in said
    assert "$0 " not in said


def test_buttons_are_there_where_they_are_answered() -> None:
    live = html(batch_node(RUNNING, kernel="k-1", buttons=True))
    assert re.findall(r'data-do="(\w+)"', live) == ["cases", "pause", "stop", *["show"] * 8]
    saved = html(batch_node(FINISHED, kernel="k-1"))
    assert set(re.findall(r'data-do="(\w+)"', saved)) == {"cases", "show"}
    assert saved.count('data-run="000000000000000a"') == 1, "the first run of the first variant"
    assert "data-do" not in html(batch_node(FINISHED))


LONG = {
    "letters": "long " * 1_000,
    "markup": "<b>\"&'" * 1_000,
    "hidden": "\u202e" * 5_000,
    "emoji": "🙂" * 5_000,
    "one word": "x" * 5_000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_the_saved_picture_is_small_however_large_the_batch_is(text: str) -> None:
    failure = FailedCase(run_id="f" * 16, row_key=text, variant=text, why=text)
    variant = VariantSummary(
        variant=text,
        total=10**9,
        ok=10**9,
        failed=10**9,
        cost_usd=1e9 / 3,
        scores={f"{n} {text}": 1e-9 / 3 for n in range(50)},
        run_ids=("f" * 16,) * 20,
    )
    large = replace(
        STOPPED,
        name=text,
        why=text,
        total=10**10,
        failed=100,
        failures=(failure,) * 100,
        variants=(variant,) * 200,
    )
    saved = page(batch_node(large, kernel="0123abcd-123"))
    assert len(saved.encode()) + len(batch_text(large).encode()) <= 21_000
    assert "variants more; batch.frame() has all" in saved
    assert re.search(r"more failed; batch.frame\(\) has all", saved)


def test_the_usual_six_variants_are_all_shown_with_two_runs_to_open() -> None:
    saved = html(batch_node(FINISHED, kernel="0123abcd-123"))
    assert "variants more" not in saved
    assert saved.count("Open run 2") == 6


class Terminal:
    """Keeps what is written, and what a person sees of it."""

    def __init__(self) -> None:
        self.written = ""

    def write(self, text: str) -> int:
        self.written += text
        return len(text)

    @property
    def lines(self) -> list[str]:
        rows = self.written.replace("\x1b[K", "").split("\n")
        return [row.rpartition("\r")[2] for row in rows]


def test_a_terminal_has_one_line_that_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    terminal = Terminal()
    printer = BatchPrinter(terminal.write, is_terminal=True)
    for name in ("double-1", "\u4e00" * 50, "\x1b[31mred"):
        printer.update(replace(RUNNING, name=name))
    assert terminal.written.count("\n") == 0
    rows = terminal.written.replace("\x1b[K", "").split("\r")[1:]
    wide = [sum(2 if ord(letter) > 0x3000 else 1 for letter in row) for row in rows]
    assert all(50 < columns <= 60 for columns in wide)
    assert "\x1b[31m" not in terminal.written
    printer.close(STOPPED)
    assert len(terminal.lines) == 3
    assert terminal.lines[1].startswith("■ the budget of $0.03 is used up. Run the cell again")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (replace(FINISHED, failed=0, ok=360, failures=()), ""),
        (FINISHED, "nbagent: ✓ Finished"),
        (STOPPED, "nbagent: ■ Stopped"),
    ],
    ids=["all is well", "some failed", "stopped"],
)
def test_where_no_terminal_is_only_what_is_not_well_is_said(end: BatchProgress, said: str) -> None:
    terminal = Terminal()
    printer = BatchPrinter(terminal.write, is_terminal=False)
    printer.update(RUNNING)
    assert terminal.written == ""
    printer.close(end)
    assert terminal.written[: len(said)] == said
    assert bool(terminal.written) == bool(said)


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_hostile_text_is_text(payload: str) -> None:
    failures = (FailedCase(run_id="f" * 16, row_key=payload, variant=payload, why=payload),)
    variant = replace(FINISHED.variants[0], variant=payload, scores={payload: 1.0})
    bad = replace(STOPPED, name=payload, why=payload, failures=failures, variants=(variant,))
    tags = set(re.findall(r"<(\w+)", html(batch_node(bad, kernel="k"))))
    assert tags <= {"div", "span", "strong", "code", "i", "button", "table", *ROWS}
    assert "\x1b" not in batch_text(bad) + batch_line(bad)
