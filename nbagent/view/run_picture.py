"""A run's record → the tree that the page, the saved notebook and the panel draw. Pure functions.

`run_facts` words the numbers and outcomes. Parts that may change while the run is running have a
`data-key`: `live` sends only those parts again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.view import run_facts, run_status, timing
from nbagent.view.answer_value import typed_answer_nodes
from nbagent.view.buttons import answer_box, run_buttons
from nbagent.view.graph import run_graph_node
from nbagent.view.images import (
    figures_of,
    insert_figures,
    prompt_attachments,
)
from nbagent.view.live_state import STOPPING, LiveState
from nbagent.view.markdown import MAX_CHARS
from nbagent.view.node import Node, first_class, h, line
from nbagent.view.printers import html
from nbagent.view.question import open_questions_node
from nbagent.view.result_tables import prompt_blocks
from nbagent.view.run_status import Status
from nbagent.view.text_format import (
    format_duration,
    one_line,
    sanitize_prose,
    sanitize_value,
)
from nbagent.view.theme import history_stylesheet, saved_stylesheet, used_rules
from nbagent.view.turn_picture import content_blocks, turn_node
from nbagent.view.turn_request import (
    turn_position,
)

_PROMPT_CHARS = 2_000
_TIMED_TURNS, _TIMED_CALLS, _TIMED_NAME_CHARS = 100, 8, 40
_RECORD_NOTES = {
    "all": "its record is in this file",
    "own": "its record is in this file without the results of tools, whose start is shown above",
}
# JupyterLab (MathJax 3) and nbconvert (MathJax 2) typeset text between `$` in any output: "$5 or
# $6" would become a formula, and a model's text would be run as TeX. These classes prevent that.
ROOT_CLASS = "nba-run mathjax_ignore tex2jax_ignore"


def picture(
    run: RunRecord,
    *,
    live: LiveState | None = None,
    unfolded: frozenset[str] = frozenset(),
    kernel: str = "",
    actions: bool = True,
    next_step: str = "",
    records: str = "off",
    answer_chars: int = MAX_CHARS,
) -> Node:
    """Draw a whole run.

    Args:
        run: the record, possibly of a running run.
        live: further state of a running run.
        unfolded: keys of the folds that the person opened, such as `C01`, `C01/request`.
        kernel: `data-kernel` of the output that answers the buttons.
        actions: False omits the buttons.
        next_step: command that continues the run, for a form without buttons.
        records: the setting of this name, for the file that holds the picture.
        answer_chars: shown characters of the answer.
    """
    has_actions = actions and live is None and run.phase != "Running"
    answer, answer_figures = _answer_nodes(run, answer_chars)
    turns = [
        turn_node(
            run, turn, live=live, unfolded=unfolded, answer_figures=answer_figures, fork=has_actions
        )
        for turn in run.turns
    ]
    return h(
        "div",
        ROOT_CLASS,
        head(run, live),
        prompt_node(run),
        run_graph_node(run),
        open_questions_node([*live.open_questions.values()]) if live else None,
        h("div", "nba-turns", *turns, data_key="turns"),
        notices_node(run),
        *answer,
        line(
            "nba-end" if run_status.status_of(run).tone != "bad" else "nba-error",
            run_status.ending_text(run),
        ),
        answer_box(run) if has_actions else None,
        None if live else footer(run, has_actions, _RECORD_NOTES.get(records, next_step)),
        role="group",
        aria_label=f"agent run, {sanitize_value(run.model)}",
        data_run=run.id,
        data_kernel=kernel or None,
    )


def page(node: Node) -> str:
    """Print a picture as HTML with its style sheet, as a notebook saves it."""
    is_history = first_class(node) == "nba-history"
    return styled(html(node), history_stylesheet() if is_history else saved_stylesheet())


def styled(pictures: str, sheet: str = "") -> str:
    """Add the style sheet to printed pictures: the rules that they use; all of them for none.

    It stands behind the first line: beside it, that line's time and id would be in every diff.
    """
    sheet = sheet or saved_stylesheet()
    first, line_end, rest = pictures.partition("\n")
    if not line_end:
        return f"<style>{used_rules(sheet, pictures) if pictures else sheet}</style>\n{pictures}"
    return f"{first}\n<style>{used_rules(sheet, pictures)}</style>\n{rest}"


# The head


def head(run: RunRecord, live: LiveState | None) -> Node:
    """Draw state, model, numbers, time bar, current wait, Stop and Pause."""
    status = run_status.status_of(run)
    if live and live.open_questions:
        status = Status("Waiting for you", "waits", "?")
    clock = f"{live.elapsed_ms:.0f}" if live else None
    elapsed_ms = live.elapsed_ms if live else None
    *facts, time = run_facts.head_facts(run_facts.placed_summary(run), elapsed_ms=elapsed_ms)
    shown: list[Node] = [node for fact in facts for node in (_fact(fact), " · ")]
    shown.append(_fact(time, clock, "nba-time"))
    return h(
        "div",
        "nba-top",
        head_row(status, run.model, shown, *(_stop_buttons(live) if live else ())),
        _time_bar(run, live),
        line("nba-wide nba-note", run_facts.offline_notice(run)),
        _activity_node(live) if live else None,
        data_key="head",
        data_since="" if live else None,
    )


def head_row(status: Status, model: str, facts: Sequence[Node], *buttons: Node) -> Node:
    """Draw one row: state, model, facts, buttons."""
    return h(
        "div",
        "nba-head",
        h("span", f"nba-mark nba-{status.tone}", status.mark, " ", aria_hidden="true"),
        h("strong", "nba-phase", status.word),
        " ",
        h("code", "nba-chip", sanitize_value(model)),
        " ",
        h("span", "nba-facts", *facts),
        *buttons,
    )


def _fact(fact: run_facts.Fact, clock: str | None = None, look: str = "") -> Node:
    aside = h("span", "nba-aside", f" {fact.detail}") if fact.detail else None
    word = f" {fact.word}" if fact.word else ""
    if clock is not None:  # the page keeps counting, and the unit may change
        return h("span", look, h("b", "", fact.value + word, data_clock=clock), aside)
    if fact.is_bad:
        return h("span", look, h("b", "nba-err", fact.value + word), aside)
    return h("span", look, h("b", "", fact.value), word, aside)


def _activity_node(live: LiveState) -> Node:
    """Draw what the run waits for, and for how long."""
    left = live.retry_at_ms - live.elapsed_ms
    again = ["again in ", h("b", "", f"{left / 1000:.1f} s", data_clock=f"{-left:.0f}"), " · "]
    return h("div", "nba-wide nba-note nba-activity", *(again if left > 0 else ()), live.activity)


def _stop_buttons(live: LiveState) -> list[Node]:
    if live.stopping == STOPPING:
        return [h("span", "nba-note", STOPPING)]
    pause = {"data_do": "pause", "title": "Pause when this turn is over"}
    pausing = h("button", "nba-pause", "‖ Pause", type="button", **pause)
    return [
        h("span", "nba-note", live.stopping) if live.stopping else pausing,
        h("button", "nba-stop", "■ Stop", type="button", data_do="stop", title="Stop this run"),
    ]


def _time_bar(run: RunRecord, live: LiveState | None) -> Node:
    pieces = timing.time_bar(run.turns)
    times = timing.bar_text(pieces)
    # At least 1: without the style sheet a segment of 0 has no width.
    parts = [h("i", f"nba-i-{p.kind}", style=f"flex-grow:{max(1, round(p.ms))}") for p in pieces]
    if live:
        rest = max(1, round(live.elapsed_ms - sum(piece.ms for piece in pieces)))
        doing = "wait" if live.open_questions else live.time_kind
        parts.append(h("i", f"nba-i-{doing}", style=f"flex-grow:{rest}", data_grows=str(rest)))
    return h("div", "nba-bar", *parts, role="img", title=f"time: {times or 'none yet'}")


def prompt_node(run: RunRecord) -> Node | None:
    """Draw the prompt, or the origin of a run without one."""
    text = sanitize_prose(run.prompt).strip() or (
        f"({run_facts.origin_text(run)})" if run.parent_id else ""
    )
    blocks, note = prompt_blocks(text, _PROMPT_CHARS, has_all="run.record.prompt")
    files = prompt_attachments(run)
    if not blocks and not files:
        return None
    return h("blockquote", "nba-prompt", *blocks, line("nba-note", note), *files, data_key="prompt")


# The end


def notices_node(run: RunRecord) -> Node | None:
    """Draw the notices of a run; None if there are none."""
    lines = [h("div", "nba-note", f"note: {note}") for note in run_facts.run_notes(run)]
    return h("div", "nba-end", *lines, data_key="notices") if lines else None


def _answer_nodes(run: RunRecord, limit: int) -> tuple[list[Node], Collection[int]]:
    """Draw the answer and return the numbers of the figures in it.

    A rule separates it, which is visible without styles too.
    """
    turn = run_facts.answering_turn(run)
    if turn is None:
        typed = typed_answer_nodes(run)
        return ([h("hr", "nba-sep"), h("div", "nba-answer", *typed)] if typed else []), ()
    has_all = f"run.turns[{turn_position(run, turn)}].text"
    text_blocks, note = content_blocks(turn, has_all, limit)
    blocks, answer_figures = insert_figures(text_blocks, figures_of(run))
    parts = [line("nba-note", run_status.answer_note(run)), *blocks, line("nba-note", note)]
    return [h("hr", "nba-sep"), h("div", "nba-answer", *parts)], answer_figures


def footer(run: RunRecord, actions: bool, note: str = "") -> Node:
    """Draw buttons, the identity of the run, a note, and the time by kind."""
    buttons = run_buttons(run) if actions else []
    pieces = timing.time_bar(run.turns)
    facts = (run_facts.run_identity(run), note, timing.bar_text(pieces))
    text = " · ".join(filter(None, facts))
    about: Node = h("small", "", text)
    kinds = list(timing.totals_by_kind(pieces))
    if len(run.turns) > 1 or len(kinds) > 1:
        about = h(
            "details", "", h("summary", "", about), *_time_table(run, kinds), data_key="times"
        )
    return h("div", "nba-foot", *buttons, about)


def _time_table(run: RunRecord, kinds: Sequence[timing.Kind]) -> list[Node]:
    """Draw the time of each turn by kind, and of its calls: no other part names these times."""
    rows: list[list[str]] = [["turn", *(timing.KIND_WORDS[k] for k in kinds), "calls"]]
    for turn in run.turns[:_TIMED_TURNS]:
        sums = timing.totals_by_kind(timing.turn_segments(turn))
        spent = [format_duration(sums[k]) if sums.get(k) else "" for k in kinds]
        rows.append([turn.id, *spent, _call_times(turn)])
    more = len(run.turns) - _TIMED_TURNS
    # Without classes: it is the longest part of a small run, and plain cells are readable.
    cells = [[h("td" if n else "th", "", text) for text in row] for n, row in enumerate(rows)]
    table = h("table", "", *(h("tr", "", *row) for row in cells))
    return [table, *([h("div", "", f"… {more:,} turns more")] if more > 0 else [])]


def _call_times(turn: EngineTurn) -> str:
    """`population 12 ms, area 3 ms`."""
    timed = [run for run in turn.tool_runs if run.result is not None and run.started_at is not None]
    times = [
        f"{one_line(sanitize_value(run.tool_name), _TIMED_NAME_CHARS)} "
        f"{format_duration(run.duration_ms)}"
        for run in timed[:_TIMED_CALLS]
    ]
    return ", ".join([*times, "…"] if len(timed) > _TIMED_CALLS else times)
