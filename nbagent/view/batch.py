"""Picture of a batch of runs: progress, cost, failed cases, variants.

The batch itself is in `lab`, the buttons are handled in `notebook`. The picture of a large batch
stays small: each list ends at its budget of bytes and names how many entries are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Literal, NamedTuple

from nbagent.view.buttons import action_button
from nbagent.view.markdown import table_cell
from nbagent.view.node import Node, h, line
from nbagent.view.printers import bar_text, html, plain_text
from nbagent.view.run_facts import offline_model_text
from nbagent.view.run_picture import ROOT_CLASS, head_row
from nbagent.view.run_status import Status
from nbagent.view.text_format import (
    format_cost,
    format_count,
    format_duration,
    one_line,
    pluralize,
    sanitize_value,
)

BatchState = Literal["Ready", "Running", "Paused", "Stopped", "Finished"]
"""`Ready`: not started. `Paused` and `Stopped`: ended before all cases were done."""

BATCH_KEY = "batch"
"""`data-run` of a live batch picture, by which clicks and kernel messages find it."""
STOPPING, PAUSING = "Stopping…", "Pausing when the running cases have ended…"
_NAME_CHARS = 80
_LABEL_CHARS = 50
_MAX_MODELS = 3
_REASON_CHARS = 140
_SCORER_CHARS = 24
_MAX_SCORERS = 6
_MAX_FAILURES = 10
_MAX_VARIANTS_WITH_TWO_RUNS = 6
"""Up to this number of variants, two runs of each can be opened; above it, one of each."""
_FAILURES_BYTES, _VARIANTS_BYTES = 2_700, 4_800
"""Budgets of the two tables in HTML."""
_ALL_ROWS_HINT = "batch.frame() has all"
_ALL_FAILED = Status("Finished", "bad", "✕")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCase:
    """A case that ended without an answer."""

    run_id: str
    """Empty if no run could start."""
    row_key: str
    variant: str
    """The labels of its axes, such as `v1 · openai:gpt-5.4`."""
    why: str
    """The code and the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSummary:
    """Counts, cost and scores of one variant."""

    variant: str
    total: int
    ok: int
    failed: int
    cost_usd: float | None
    scores: dict[str, float]
    """Mean score by scorer."""
    run_ids: tuple[str, ...]
    """The first runs, which can be opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """Snapshot of a batch. Counts are cases: rows × variants × repeats."""

    name: str
    state: BatchState
    why: str
    """A sentence: why the batch ended before all cases were done; else empty."""
    total: int
    reused: int
    """Cases that an earlier execution of the batch has done."""
    ok: int
    """Cases with an answer, including the reused ones."""
    failed: int
    """Cases that ended without an answer."""
    at_work: int
    cost_usd: float | None
    """Cost of all its runs; None if no price is known."""
    judge_cost_usd: float
    elapsed_s: float
    per_s: float
    """Cases per second in this execution."""
    left_s: float | None
    """Estimated time left; None if nothing is known yet or nothing is left."""
    started_at: datetime
    failures: tuple[FailedCase, ...]
    """The first failed cases."""
    variants: tuple[VariantSummary, ...]
    notes: tuple[str, ...] = ()
    """Further facts for the person, such as scorers that failed."""
    models: tuple[str, ...] = ()
    """Ids of the models in use."""
    at_provider: int = 0
    """Cases that are done in a provider's batch, and whose answers are not collected yet."""


class BarSegment(NamedTuple):
    """A part of the progress bar."""

    kind: Literal["ok", "bad", "model", "left"]
    n_cases: int
    label: str


def bar_segments(progress: BatchProgress) -> list[BarSegment]:
    """Split the cases into answered, failed, running and left; empty parts are omitted."""
    begun = progress.ok + progress.failed + progress.at_work + progress.at_provider
    pieces = [
        BarSegment("ok", progress.ok, "ok"),
        BarSegment("bad", progress.failed, "failed"),
        BarSegment("model", progress.at_work, "running"),
        BarSegment("model", progress.at_provider, "done at the provider"),
        BarSegment("left", progress.total - begun, "left"),
    ]
    return [piece for piece in pieces if piece.n_cases > 0]


def is_ending(progress: BatchProgress) -> bool:
    """True if no more cases start, but some are still running."""
    return progress.state in ("Paused", "Stopped") and progress.at_work > 0


def is_active(progress: BatchProgress) -> bool:
    """True if cases are starting or still running."""
    return progress.state == "Running" or is_ending(progress)


def status_of(progress: BatchProgress) -> Status:
    """Return the state of a batch in words."""
    if is_ending(progress):
        word = "Pausing" if progress.state == "Paused" else "Stopping"
        return Status(word, "live", "…")
    match progress.state:
        case "Ready":
            return Status("Not started", "waits", "○")
        case "Running":
            return Status("Running", "live", "…")
        case "Paused":
            return Status("Paused", "waits", "‖")
        case "Stopped":
            return Status("Stopped", "waits", "■")
        case "Finished":
            if not progress.failed:
                return Status("Finished", "ok", "✓")
            return Status("Finished", "waits", "✓") if progress.ok else _ALL_FAILED


def progress_facts(progress: BatchProgress) -> list[str]:
    """`112 of 360`, `14/s`, `18 s left`, `$0.0310 so far (judges $0.0020)`."""
    is_running = is_active(progress)
    facts = [f"{progress.ok + progress.failed:,} of {progress.total:,}"]
    if is_running and progress.per_s > 0:
        fast = progress.per_s >= 1
        facts.append(f"{progress.per_s:.0f}/s" if fast else f"{progress.per_s * 60:.1f}/min")
    if is_running and progress.left_s is not None:
        left = ceil(progress.left_s)
        facts.append(f"{left} s left" if left < 600 else f"{format_duration(left * 1000)} left")
    if not is_running:
        facts.append(format_duration(progress.elapsed_s * 1000))
    judge_cost_usd = progress.judge_cost_usd
    judge_cost = f" (judges {format_cost(judge_cost_usd)})" if judge_cost_usd else ""
    if progress.cost_usd is not None:
        facts.append(
            f"{format_cost(progress.cost_usd)}{' so far' if is_running else ''}{judge_cost}"
        )
    elif progress.ok:
        facts.append(f"no price known{judge_cost}")
    model_names = [
        one_line(sanitize_value(model), _LABEL_CHARS) for model in progress.models[:_MAX_MODELS]
    ]
    return [*facts, *model_names, *(["…"] if len(progress.models) > _MAX_MODELS else [])]


def progress_notes(progress: BatchProgress) -> list[str]:
    """Notes on offline stand-ins for a model, then the notes of the batch."""
    notes = [*filter(None, map(offline_model_text, progress.models[:_MAX_MODELS])), *progress.notes]
    return [f"! {one_line(sanitize_value(note), _REASON_CHARS)}" for note in notes]


def counts_text(progress: BatchProgress) -> str:
    """`104 ok · 8 failed · 16 running · 232 left (52 reused)`."""
    text = " · ".join(f"{piece.n_cases:,} {piece.label}" for piece in bar_segments(progress))
    return f"{text} ({progress.reused:,} reused)" if progress.reused else text


def end_text(progress: BatchProgress) -> str:
    """One line: why the batch ended and what to do next; empty if all cases are answered."""
    why = one_line(sanitize_value(progress.why), _REASON_CHARS)
    if is_active(progress):
        return why
    if progress.state == "Ready":
        return "Nothing was sent yet; batch.start() starts it."
    why = f"{why}{'' if why.endswith(('.', '!', '?')) else '.'} " if why else ""
    if progress.ok + progress.failed < progress.total:
        next_step = "Run the cell again or call batch.resume(): only the missing cases are run."
        return f"{status_of(progress).mark} {why}{next_step}"
    if progress.failed:
        return f"{why}Run the cell again or call batch.resume(): failed cases are run again."
    return why.rstrip()


def _failure_cells(failure: FailedCase) -> tuple[str, str, str]:
    """Row key, variant and reason of a failed case, one line each."""
    row = one_line(sanitize_value(failure.row_key), _LABEL_CHARS)
    variant = one_line(sanitize_value(failure.variant), _LABEL_CHARS)
    return row, variant, one_line(sanitize_value(failure.why), _REASON_CHARS)


def _scorers(progress: BatchProgress) -> list[str]:
    """Names of the scorers in order of appearance."""
    names = dict.fromkeys(name for variant in progress.variants for name in variant.scores)
    return list(names)[:_MAX_SCORERS]


def _variant_texts(variant: VariantSummary, scorers: Sequence[str]) -> list[str]:
    cost = "" if variant.cost_usd is None else format_cost(variant.cost_usd)
    scores = (variant.scores.get(name) for name in scorers)
    return [
        one_line(sanitize_value(variant.variant), _LABEL_CHARS) or "(one variant)",
        *(format_count(number) for number in (variant.total, variant.ok, variant.failed)),
        cost,
        *("" if score is None else f"{score:.3g}" for score in scores),
    ]


def _column_names(scorers: Sequence[str]) -> list[str]:
    shown = (one_line(sanitize_value(name), _SCORER_CHARS) for name in scorers)
    return ["variant", "cases", "ok", "failed", "cost", *shown]


# As nodes


def batch_node(
    progress: BatchProgress, *, kernel: str = "", buttons: bool = False, stopping: str = ""
) -> Node:
    """Draw a batch: state, bar, numbers, failures, and after its end the variants.

    Args:
        progress: the snapshot to draw.
        kernel: `data-kernel` of the output that answers the buttons; empty: none to open runs.
        buttons: True for a live picture: Stop and Pause, and the keys that `batch_parts` update.
        stopping: `STOPPING` or `PAUSING` after the person asked for it.
    """
    parts: Iterable[Node] = batch_parts(progress, kernel, buttons, stopping).values()
    return h(
        "div",
        f"{ROOT_CLASS} nba-batch",
        *([h("div", "", *parts, data_run=BATCH_KEY)] if buttons else parts),
        role="group",
        aria_label=f"batch {one_line(sanitize_value(progress.name), _NAME_CHARS)}",
        data_kernel=kernel or None,
    )


def batch_parts(
    progress: BatchProgress, kernel: str = "", buttons: bool = False, stopping: str = ""
) -> dict[str, Node]:
    """Parts of the picture by `data-key`. Every part is present, even if it is empty."""
    if is_ending(progress):
        stopping = PAUSING if progress.state == "Paused" else STOPPING
    status = status_of(progress)
    name = one_line(sanitize_value(progress.name), _NAME_CHARS)
    facts: list[Node] = [" · ".join(progress_facts(progress))]
    is_live = buttons and is_active(progress)
    stops = _stop_buttons(stopping) if is_live else []
    # In a `span` with a name of its own, by which the click is read.
    opens = h("span", "", action_button("cases", "All cases"), data_run="cases") if kernel else None
    buttons_shown = [*filter(None, [opens]), *stops]
    bar = [
        h("i", f"nba-i-{segment.kind}", style=f"flex-grow:{segment.n_cases}")
        for segment in bar_segments(progress)
    ]
    counts = counts_text(progress)
    head = h(
        "div",
        "nba-top",
        head_row(status, name, facts, *buttons_shown),
        h("div", "nba-bar nba-counts", *bar, role="img", title=counts, aria_label=counts),
        line("nba-wide nba-note", counts),
        data_key="head",
        data_since="" if is_live else None,
    )
    is_bad = status.tone == "bad"
    end = line("nba-end nba-error" if is_bad else "nba-end", end_text(progress))
    notes = [line("nba-wide nba-note", note) for note in progress_notes(progress)]
    return {
        "head": head,
        "failures": h("div", "", *_failure_nodes(progress, kernel), data_key="failures"),
        "variants": h("div", "", *_variant_nodes(progress, kernel), data_key="variants"),
        "end": h("div", "", *notes, end, data_key="end"),
    }


def _stop_buttons(stopping: str) -> list[Node]:
    if stopping == STOPPING:
        return [h("span", "nba-note", STOPPING)]
    pause = {"data_do": "pause", "title": "Pause when the running cases have ended"}
    return [
        h("span", "nba-note", stopping)
        if stopping
        else h("button", "nba-pause", "‖ Pause", type="button", **pause),
        h("button", "nba-stop", "■ Stop", type="button", data_do="stop", title="Stop this batch"),
    ]


def _failure_nodes(progress: BatchProgress, kernel: str) -> list[Node]:
    """Table of the first failed cases."""
    if not progress.failures:
        return []

    def row(failure: FailedCase) -> Node:
        opens = kernel and failure.run_id
        cells = [table_cell("td", [text]) for text in _failure_cells(failure)]
        button = h("td", "", action_button("show", "Open")) if opens else None
        return h("tr", "", *cells, button, data_run=failure.run_id if opens else None)

    heads = [table_cell("th", [name]) for name in ("row", "variant", "why it failed")]
    shown = _take_within(_FAILURES_BYTES, map(row, progress.failures[:_MAX_FAILURES]))
    more = progress.failed - len(shown)
    return [_table(heads, shown, f"{more:,} more failed" if more > 0 else "")]


def _variant_nodes(progress: BatchProgress, kernel: str) -> list[Node]:
    """Table of the variants; empty while the batch runs."""
    if is_active(progress) or not progress.variants:
        return []
    scorers = _scorers(progress)
    openers = 0 if not kernel else 2 if len(progress.variants) <= _MAX_VARIANTS_WITH_TWO_RUNS else 1

    def row(variant: VariantSummary) -> Node:
        first, *numbers = _variant_texts(variant, scorers)
        cells = [
            table_cell("td", [first]),
            *(table_cell("td", [text], right=True) for text in numbers),
        ]
        opens = [
            h("span", "", action_button("show", f"Open run {n}"), " ", data_run=run_id)
            for n, run_id in enumerate(variant.run_ids[:openers], 1)
        ]
        return h("tr", "", *cells, table_cell("td", opens) if opens else None)

    name, *numbers = _column_names(scorers)
    heads = [table_cell("th", [name]), *(table_cell("th", [text], right=True) for text in numbers)]
    heads += [table_cell("th", ["first runs"])] if openers else []
    shown = _take_within(_VARIANTS_BYTES, map(row, progress.variants))
    more = len(progress.variants) - len(shown)
    return [_table(heads, shown, f"{pluralize(more, 'variant')} more" if more else "")]


def _take_within(budget: int, rows: Iterable[Node]) -> list[Node]:
    """Take rows until their HTML exceeds the budget in bytes; at least one."""
    shown: list[Node] = []
    for row in rows:
        budget -= len(html(row).encode())
        if shown and budget < 0:
            break
        shown.append(row)
    return shown


def _table(heads: Sequence[Node], rows: Sequence[Node], more: str) -> Node:
    table = h("table", "", h("thead", "", h("tr", "", *heads)), h("tbody", "", *rows))
    note = line("nba-note", f"… {more}; {_ALL_ROWS_HINT}" if more else "")
    return h("div", "nba-wide nba-wide-table", table, note)


# As text


def batch_text(progress: BatchProgress) -> str:
    """Print a batch as plain lines."""
    return plain_text(batch_node(progress))


def batch_line(progress: BatchProgress) -> str:
    """Progress in one line, for a terminal."""
    failed = [f"{progress.failed:,} failed"] if progress.failed else []
    name = one_line(sanitize_value(progress.name), _SCORER_CHARS)
    return f"{name} {_bar_text(progress)} {' · '.join([*progress_facts(progress), *failed])}"


def _bar_text(progress: BatchProgress) -> str:
    return bar_text([(f"nba-i-{piece.kind}", piece.n_cases) for piece in bar_segments(progress)])
