"""A batch of runs as it stands: how far it is, what it cost, what failed.

What a batch is is in `lab`; which of its runs are shown a click decides. However large a batch is,
its picture stays small: each list ends where its budget of bytes is used up, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Literal, NamedTuple, TypeVar

from nbagent.view.labels import Status, stand_in_words
from nbagent.view.markdown import cell
from nbagent.view.node import Node, h, html, line
from nbagent.view.picture import ROOT, action, head_row
from nbagent.view.words import count, money, one_line, seconds, things, visible

BatchState = Literal["Ready", "Running", "Paused", "Stopped", "Finished"]
"""`Ready`: not begun. `Paused` and `Stopped` ended before all cases were done."""

KEY = "batch"
"""`data-run` of a living picture: what its buttons and the messages of the kernel mean."""
STOPPING, PAUSING = "Stopping…", "Pausing when the runs at work have ended…"
_NAME_CHARS = 80
_LABEL_CHARS = 50
_MOST_MODELS = 3
_WHY_CHARS = 140
_SCORER_CHARS = 24
_MOST_SCORERS = 6
_MOST_FAILURES = 10
_FEW_VARIANTS = 6
"""So many have two runs each to open; of more, each has one."""
_FAILURES_BYTES, _VARIANTS_BYTES, _TEXT_BYTES = 3_000, 5_000, 1_200
"""Of the rows in HTML, and of those of either table in plain text."""
_MOST_LINES = 10
"""Variants in plain text."""
_CELLS_OF_TEXT = 30
"""Length of the bar in plain text."""
_HAS_ALL = "batch.frame() has all"
_Row = TypeVar("_Row", str, Node)
_NONE_OK = Status("Finished", "bad", "✕")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCase:
    """A case of a batch without an answer."""

    run_id: str
    """Empty where no run could start."""
    row_key: str
    variant: str
    """The labels of its axes, such as `v1 · openai:gpt-5.4`."""
    why: str
    """The code and the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSummary:
    """What is known of the cases of one variant."""

    variant: str
    total: int
    ok: int
    failed: int
    cost_usd: float | None
    scores: dict[str, float]
    """Means, by scorer."""
    run_ids: tuple[str, ...]
    """The first ones, to be opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """A batch at one moment. Counts are of cases: rows × variants × repeats."""

    name: str
    state: BatchState
    why: str
    """Why it ended before all cases were done, as a sentence; else empty."""
    total: int
    reused: int
    """Done in an earlier go."""
    ok: int
    """With an answer, the reused ones included."""
    failed: int
    """Ended without an answer."""
    at_work: int
    cost_usd: float | None
    """Of all of its runs; None where no price is known."""
    judge_cost_usd: float
    elapsed_s: float
    per_s: float
    """Cases a second in this go."""
    left_s: float | None
    """Estimated; None where nothing is known yet, or nothing is left."""
    started_at: datetime
    failures: tuple[FailedCase, ...]
    """The first ones."""
    variants: tuple[VariantSummary, ...]
    notes: tuple[str, ...] = ()
    """What else a person should know: scorers that failed."""
    models: tuple[str, ...] = ()
    """The ids of those that are asked."""


class Piece(NamedTuple):
    """A part of the bar."""

    kind: Literal["ok", "bad", "model", "left"]
    n: int
    words: str


def pieces_of(progress: BatchProgress) -> list[Piece]:
    """What the cases are: with an answer, without one, at work, left; those that there are."""
    left = progress.total - progress.ok - progress.failed - progress.at_work
    pieces = [
        Piece("ok", progress.ok, "ok"),
        Piece("bad", progress.failed, "failed"),
        Piece("model", progress.at_work, "at work"),
        Piece("left", left, "left"),
    ]
    return [piece for piece in pieces if piece.n > 0]


def is_ending(progress: BatchProgress) -> bool:
    """Whether no more cases begin, while some are at work."""
    return progress.state in ("Paused", "Stopped") and progress.at_work > 0


def is_going(progress: BatchProgress) -> bool:
    """Whether cases begin, or some are at work."""
    return progress.state == "Running" or is_ending(progress)


def status_of(progress: BatchProgress) -> Status:
    """The state of a batch in a person's words."""
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
            return Status("Finished", "waits", "✓") if progress.ok else _NONE_OK


def facts_of(progress: BatchProgress) -> list[str]:
    """`112 of 360`, `14/s`, `18 s left`, `$0.0310 so far (judges $0.0020)`."""
    is_running = is_going(progress)
    facts = [f"{progress.ok + progress.failed:,} of {progress.total:,}"]
    if is_running and progress.per_s > 0:
        fast = progress.per_s >= 1
        facts.append(f"{progress.per_s:.0f}/s" if fast else f"{progress.per_s * 60:.1f}/min")
    if is_running and progress.left_s is not None:
        left = ceil(progress.left_s)
        facts.append(f"{left} s left" if left < 600 else f"{seconds(left * 1000)} left")
    if not is_running:
        facts.append(seconds(progress.elapsed_s * 1000))
    judged = progress.judge_cost_usd
    aside = f" (judges {money(judged)})" if judged else ""
    if progress.cost_usd is not None:
        facts.append(f"{money(progress.cost_usd)}{' so far' if is_running else ''}{aside}")
    elif progress.ok:
        facts.append(f"no price known{aside}")
    named = [one_line(visible(model), _LABEL_CHARS) for model in progress.models[:_MOST_MODELS]]
    return [*facts, *named, *(["…"] if len(progress.models) > _MOST_MODELS else [])]


def notes_of(progress: BatchProgress) -> list[str]:
    """Models that are none, and scorers that failed."""
    notes = [*filter(None, map(stand_in_words, progress.models[:_MOST_MODELS])), *progress.notes]
    return [f"! {one_line(visible(note), _WHY_CHARS)}" for note in notes]


def counts_of(progress: BatchProgress) -> str:
    """`104 ok · 8 failed · 16 at work · 232 left (52 were there before)`."""
    words = " · ".join(f"{piece.n:,} {piece.words}" for piece in pieces_of(progress))
    return f"{words} ({progress.reused:,} were there before)" if progress.reused else words


def end_of(progress: BatchProgress) -> str:
    """Why it ended and what to do next, in one line; empty where all is well."""
    why = one_line(visible(progress.why), _WHY_CHARS)
    if is_going(progress):
        return why
    if progress.state == "Ready":
        return "Nothing was sent; batch.start() begins."
    why = f"{why}{'' if why.endswith(('.', '!', '?')) else '.'} " if why else ""
    if progress.ok + progress.failed < progress.total:
        step = "Run the cell again, or batch.resume(): only what is missing is asked."
        return f"{status_of(progress).mark} {why}{step}"
    if progress.failed:
        return f"{why}Run the cell again, or batch.resume(): what an error ended is asked again."
    return why.rstrip()


def _labels(failure: FailedCase) -> tuple[str, str, str]:
    """Row, variant and reason, each on one line."""
    row = one_line(visible(failure.row_key), _LABEL_CHARS)
    variant = one_line(visible(failure.variant), _LABEL_CHARS)
    return row, variant, one_line(visible(failure.why), _WHY_CHARS)


def _scorers(progress: BatchProgress) -> list[str]:
    """The names of the scores, in the order in which they come."""
    names = dict.fromkeys(name for variant in progress.variants for name in variant.scores)
    return list(names)[:_MOST_SCORERS]


def _variant_texts(variant: VariantSummary, scorers: Sequence[str]) -> list[str]:
    cost = "" if variant.cost_usd is None else money(variant.cost_usd)
    scores = (variant.scores.get(name) for name in scorers)
    return [
        one_line(visible(variant.variant), _LABEL_CHARS) or "(one variant)",
        *(count(number) for number in (variant.total, variant.ok, variant.failed)),
        cost,
        *("" if score is None else f"{score:.3g}" for score in scores),
    ]


def _heads(scorers: Sequence[str]) -> list[str]:
    shown = (one_line(visible(name), _SCORER_CHARS) for name in scorers)
    return ["variant", "cases", "ok", "failed", "cost", *shown]


# As nodes


def batch_node(
    progress: BatchProgress, *, kernel: str = "", buttons: bool = False, stopping: str = ""
) -> Node:
    """The picture of a batch: state, bar, numbers, failures, and at the end its variants.

    Args:
        progress: what is known of it.
        kernel: whose page actions answer the buttons that open runs; without one there are none.
        buttons: whether it is alive: with Stop and Pause while the batch runs, and with the keys
            by which `batch_parts` change it.
        stopping: `STOPPING` or `PAUSING`, once the person asked for it.
    """
    parts: Iterable[Node] = batch_parts(progress, kernel, buttons, stopping).values()
    return h(
        "div",
        f"{ROOT} nba-batch",
        *([h("div", "", *parts, data_run=KEY)] if buttons else parts),
        role="group",
        aria_label=f"batch {one_line(visible(progress.name), _NAME_CHARS)}",
        data_kernel=kernel or None,
    )


def batch_parts(
    progress: BatchProgress, kernel: str = "", buttons: bool = False, stopping: str = ""
) -> dict[str, Node]:
    """The parts of the picture by their `data-key`; each is there, also while it is empty."""
    if is_ending(progress):
        stopping = PAUSING if progress.state == "Paused" else STOPPING
    status = status_of(progress)
    name = one_line(visible(progress.name), _NAME_CHARS)
    facts: list[Node] = [" · ".join(facts_of(progress))]
    is_live = buttons and is_going(progress)
    stops = _stop_buttons(stopping) if is_live else ()
    bar = [h("i", f"nba-i-{it.kind}", style=f"flex-grow:{it.n}") for it in pieces_of(progress)]
    counts = counts_of(progress)
    head = h(
        "div",
        "nba-top",
        head_row(status, name, facts, *stops),
        h("div", "nba-bar", *bar, role="img", title=counts, aria_label=counts),
        line("nba-wide nba-note", counts),
        data_key="head",
        data_since="" if is_live else None,
    )
    is_bad = status.tone == "bad"
    end = line("nba-end nba-error" if is_bad else "nba-end", end_of(progress))
    notes = [line("nba-wide nba-note", it) for it in notes_of(progress)]
    return {
        "head": head,
        "failures": h("div", "", *_failure_nodes(progress, kernel), data_key="failures"),
        "variants": h("div", "", *_variant_nodes(progress, kernel), data_key="variants"),
        "end": h("div", "", *notes, end, data_key="end"),
    }


def _stop_buttons(stopping: str) -> list[Node]:
    if stopping == STOPPING:
        return [h("span", "nba-note", STOPPING)]
    pause = {"data_do": "pause", "title": "Pause when the runs at work have ended"}
    return [
        h("span", "nba-note", stopping)
        if stopping
        else h("button", "nba-pause", "‖ Pause", type="button", **pause),
        h("button", "nba-stop", "■ Stop", type="button", data_do="stop", title="Stop this batch"),
    ]


def _failure_nodes(progress: BatchProgress, kernel: str) -> list[Node]:
    """The first cases that failed, in a table."""
    if not progress.failures:
        return []

    def row(failure: FailedCase) -> Node:
        opens = kernel and failure.run_id
        cells = [cell("td", [text]) for text in _labels(failure)]
        button = h("td", "", action("show", "Open")) if opens else None
        return h("tr", "", *cells, button, data_run=failure.run_id if opens else None)

    heads = [cell("th", [name]) for name in ("row", "variant", "why it failed")]
    shown = _within(_FAILURES_BYTES, map(row, progress.failures[:_MOST_FAILURES]))
    more = progress.failed - len(shown)
    return [_table(heads, shown, f"{more:,} more failed" if more > 0 else "")]


def _variant_nodes(progress: BatchProgress, kernel: str) -> list[Node]:
    """The variants, once the batch is over."""
    if is_going(progress) or not progress.variants:
        return []
    scorers = _scorers(progress)
    openers = 0 if not kernel else 2 if len(progress.variants) <= _FEW_VARIANTS else 1

    def row(variant: VariantSummary) -> Node:
        first, *numbers = _variant_texts(variant, scorers)
        cells = [cell("td", [first]), *(cell("td", [text], right=True) for text in numbers)]
        opens = [
            h("span", "", action("show", f"Run {n}"), " ", data_run=run_id)
            for n, run_id in enumerate(variant.run_ids[:openers], 1)
        ]
        return h("tr", "", *cells, h("td", "", *opens) if opens else None)

    name, *numbers = _heads(scorers)
    heads = [cell("th", [name]), *(cell("th", [text], right=True) for text in numbers)]
    shown = _within(_VARIANTS_BYTES, map(row, progress.variants))
    more = len(progress.variants) - len(shown)
    return [_table(heads, shown, f"{things(more, 'variant')} more" if more else "")]


def _within(budget: int, rows: Iterable[_Row]) -> list[_Row]:
    """The first rows, at least one, as far as a budget of bytes goes."""
    shown: list[_Row] = []
    for row in rows:
        budget -= len(html(row).encode())
        if shown and budget < 0:
            break
        shown.append(row)
    return shown


def _table(heads: Sequence[Node], rows: Sequence[Node], more: str) -> Node:
    table = h("table", "", h("thead", "", h("tr", "", *heads)), h("tbody", "", *rows))
    note = line("nba-note", f"… {more}; {_HAS_ALL}" if more else "")
    return h("div", "nba-wide nba-wide-table", table, note)


# As text


def batch_text(progress: BatchProgress) -> str:
    """The same as plain lines."""
    status, name = status_of(progress), one_line(visible(progress.name), _NAME_CHARS)
    lines = [f"{status.mark} {status.word} · {name} · {' · '.join(facts_of(progress))}"]
    lines.append(f"{_bar_text(progress)} {counts_of(progress)}")
    lines += _failure_lines(progress)
    if not is_going(progress) and progress.variants:
        lines += _variant_lines(progress)
    return "\n".join(filter(None, [*lines, *notes_of(progress), end_of(progress)]))


def batch_line(progress: BatchProgress) -> str:
    """How far it is, in one line for a terminal."""
    failed = [f"{progress.failed:,} failed"] if progress.failed else []
    name = one_line(visible(progress.name), _SCORER_CHARS)
    return f"{name} {_bar_text(progress)} {' · '.join([*facts_of(progress), *failed])}"


def _bar_text(progress: BatchProgress) -> str:
    marks, made, done = {"ok": "#", "bad": "x", "model": ">", "left": "."}, "", 0
    for piece in pieces_of(progress):
        done += piece.n
        until = round(_CELLS_OF_TEXT * done / progress.total)
        made += marks[piece.kind] * max(1, until - len(made))
    return f"[{made[:_CELLS_OF_TEXT]}]"


def _failure_lines(progress: BatchProgress) -> list[str]:
    rows = map(_labels, progress.failures[:_MOST_FAILURES])
    said = (f"✕ {' · '.join(filter(None, labels))}: {why}" for *labels, why in rows)
    lines = _within(_TEXT_BYTES, said)
    more = progress.failed - len(lines) if lines else 0
    return [*lines, f"  … {more:,} more failed; {_HAS_ALL}"] if more > 0 else lines


def _variant_lines(progress: BatchProgress) -> list[str]:
    scorers = _scorers(progress)
    shown = progress.variants[:_MOST_LINES]
    rows = [_heads(scorers), *(_variant_texts(variant, scorers) for variant in shown)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def row(texts: Sequence[str]) -> str:
        padded = zip(texts[1:], widths[1:], strict=True)
        return "  ".join([texts[0].ljust(widths[0]), *(text.rjust(n) for text, n in padded)])

    lines = _within(_TEXT_BYTES, map(row, rows))
    more = len(progress.variants) - (len(lines) - 1)
    return [*lines, f"… {things(more, 'variant')} more; {_HAS_ALL}"] if more else lines
