"""A run's record → the tree that the page, the saved notebook and the panel draw. Pure functions.

`run_facts` words the numbers and outcomes. Parts that may change while the run is running have a
`data-key`: `live` sends only those parts again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from nbagent.contracts.approval import Question
from nbagent.contracts.canonical import json_object
from nbagent.contracts.messages import ImagePart, TextPart
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.view import run_facts, run_status, timing
from nbagent.view.answer_value import typed_answer_nodes
from nbagent.view.buttons import answer_box, fork_button, run_buttons
from nbagent.view.graph import run_graph_node
from nbagent.view.images import (
    answer_image_node,
    card_figures,
    figures_of,
    insert_figures,
    prompt_attachments,
)
from nbagent.view.live_text import ARGUMENTS_CHARS, TurnDraft, progress_node, reasoning_node
from nbagent.view.markdown import MAX_CHARS, markdown_nodes
from nbagent.view.node import Node, first_class, h, line
from nbagent.view.printers import html
from nbagent.view.question import open_questions_node, question_node
from nbagent.view.result_summary import summarize_result
from nbagent.view.result_tables import prompt_blocks, table_of
from nbagent.view.run_status import Status
from nbagent.view.text_format import (
    format_duration,
    map_strings,
    one_line,
    pluralize,
    sanitize_prose,
    sanitize_value,
    show_escapes,
    summarize_arguments,
    tool_title,
    truncate,
    value_text,
)
from nbagent.view.theme import history_stylesheet, saved_stylesheet, used_rules
from nbagent.view.turn_request import (
    label_node,
    labelled_nodes,
    request_node,
    turn_position,
    with_copy_button,
)

_RESULT_CHARS = 3_000
"""Shown characters of a result, and of printed text."""
_PROMPT_CHARS = 2_000
_CALLS_IN_LINE = 4
_TIMED_TURNS, _TIMED_CALLS, _TIMED_NAME_CHARS = 100, 8, 40
_TURN_MEANING = "one request to the model and its calls"
_RECORD_NOTE = "its record is in this file"
STOPPING, PAUSING = "Stopping…", "Pausing after this turn…"
# JupyterLab (MathJax 3) and nbconvert (MathJax 2) typeset text between `$` in any output: "$5 or
# $6" would become a formula, and a model's text would be run as TeX. These classes prevent that.
ROOT_CLASS = "nba-run mathjax_ignore tex2jax_ignore"


@dataclass(slots=True)
class LiveState:
    """State of a running run that is not in its record."""

    elapsed_ms: float = 0.0
    time_kind: timing.Kind = "model"
    """Kind of the time that passes now, for the time bar."""
    activity: str = ""
    """Text about a retry or a wait; empty if there is none."""
    retry_at_ms: float = 0.0
    """Time of the next attempt, on the clock of `elapsed_ms`."""
    stopping: str = ""
    """`STOPPING` or `PAUSING`, once the person asked for it."""
    drafts: dict[str, TurnDraft] = field(default_factory=dict[str, TurnDraft])
    """Unfinished responses by turn id."""
    progress: dict[str, str] = field(default_factory=dict[str, str])
    """Last progress text of a call by the key of its card."""
    open_questions: dict[str, tuple[str, Question]] = field(
        default_factory=dict[str, tuple[str, Question]]
    )
    """Open questions with their ids, by the key of the call's card."""


def picture(
    run: RunRecord,
    *,
    live: LiveState | None = None,
    unfolded: frozenset[str] = frozenset(),
    kernel: str = "",
    actions: bool = True,
    next_step: str = "",
    has_record: bool = False,
) -> Node:
    """Draw a whole run.

    Args:
        run: the record, possibly of a running run.
        live: further state of a running run.
        unfolded: keys of the folds that the person opened, such as `C01`, `C01/request`.
        kernel: `data-kernel` of the output that answers the buttons.
        actions: False omits the buttons.
        next_step: command that continues the run, for a form without buttons.
        has_record: True if the file that holds the picture holds the run's record too.
    """
    has_actions = actions and live is None and run.phase != "Running"
    answer, answer_figures = _answer_nodes(run)
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
        None if live else footer(run, has_actions, _RECORD_NOTE if has_record else next_step),
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


# A turn


def turn_node(
    run: RunRecord,
    turn: EngineTurn,
    *,
    live: LiveState | None = None,
    unfolded: frozenset[str] = frozenset(),
    answer_figures: Collection[int] = (),
    fork: bool = False,
) -> Node:
    """Draw one turn: its line and its body, which unfolds.

    Args:
        run: the run of the turn.
        turn: the turn.
        live: further state of a running run.
        unfolded: keys of the folds that the person opened.
        answer_figures: numbers of figures that the answer shows; they are not repeated.
        fork: True adds the Fork button.
    """
    key, failure = turn.id, run_facts.turn_failure(turn)
    at_work = live is not None and turn is run.turns[-1]
    writing = live.drafts.get(key) if live else None
    is_bad = run_facts.is_failure(turn.error) or any(
        run_facts.call_outcome(tool).is_bad for tool in turn.tool_runs
    )
    body = [
        line("nba-lab", run_facts.agent_and_node(turn)),
        *(writing.parts() if writing else _response_nodes(run, turn, live, answer_figures)),
        *(_fact_line(f"note: {note}") for note in run_facts.turn_notes(turn)),
        line("nba-error", failure and f"✕ {failure}"),
        request_node(run, turn, is_open=f"{key}/request" in unfolded),
        fork_button(key) if fork else None,
    ]
    return h(
        "details",
        f"nba-turn{' nba-bad' if is_bad else ''}",
        h("summary", "", turn_line_node(run, turn, live)),
        h("div", "nba-body", *body),
        data_key=key,
        open_="" if at_work or key in unfolded else None,
    )


def _response_nodes(
    run: RunRecord, turn: EngineTurn, live: LiveState | None, answer_figures: Collection[int]
) -> list[Node | None]:
    """Draw the response of a turn: reasoning, text, calls. The answer is drawn below."""
    key, expression = turn.id, f"run.turns[{turn_position(run, turn)}]"
    message = turn.response.message if turn.response else None
    reasoning = sanitize_prose(message.reasoning or "") if message else ""
    blocks, note = _content_blocks(turn, f"{expression}.text")
    text = h("div", "nba-text", *blocks, line("nba-note", note), data_key=f"{key}/text")
    if turn is run_facts.answering_turn(run):
        # Not twice: the answer is drawn below the turns, where it is not folded.
        text = line("nba-lab", f"{'text' if turn.text else 'image'} · the answer below")
    cards = [
        card(run, turn, i, live=live, answer_figures=answer_figures)
        for i in range(len(turn.tool_runs))
    ]
    return [
        reasoning_node(key, reasoning, f"{expression}.response") if reasoning else None,
        text if turn.text or turn.images else None,
        h("div", "", *cards, data_key=f"{key}/tools") if cards else None,
    ]


def turn_line_node(run: RunRecord, turn: EngineTurn, live: LiveState | None = None) -> Node:
    """Draw the line of a folded turn: its calls or the start of its text, and its numbers."""
    at_work = live is not None and turn is run.turns[-1]
    summary = turn_summary_nodes(run, turn, live) or ["…" if at_work else "no text"]
    numbers = "" if at_work else run_facts.turn_tokens(turn)
    notices = [h("span", "nba-below nba-note", text) for text in run_facts.turn_notices(turn)]
    line_key = f"{turn.id}/line"
    meaning = _TURN_MEANING if turn is run.turns[0] else ""
    name = h("code", "nba-id", f"turn {turn.id}", title=meaning or None)
    return summary_row(name, summary, numbers, *notices, data_key=line_key)


def summary_row(
    name: Node, summary: Sequence[Node], numbers: str, *below: Node, data_key: str | None = None
) -> Node:
    """Draw the line of a fold: a name or id, a summary, numbers at the right, notices."""
    return h(
        "span",
        "nba-line",
        h("code", "nba-id", name) if isinstance(name, str) else name,
        " ",
        h("span", "nba-sum", *summary),
        " ",
        h("small", "nba-num", numbers) if numbers else None,
        *below,
        data_key=data_key,
    )


def turn_summary_nodes(
    run: RunRecord, turn: EngineTurn, live: LiveState | None = None
) -> list[Node]:
    """Summarize a turn: its calls or the start of its text, and its error."""
    nodes: list[Node] = []
    for tool in turn.tool_runs[:_CALLS_IN_LINE]:
        nodes += ["  "] if nodes else []
        nodes.append(call_node(tool, _pending_text(run, turn, tool, live)))
    if (more := len(turn.tool_runs) - _CALLS_IN_LINE) > 0:
        nodes.append(f" and {more} more")
    if not nodes and turn is run_facts.answering_turn(run) and live is None:
        # Not twice: the answer is drawn below the turns.
        nodes.append(h("span", "nba-res", "answer"))
    elif not nodes and (preview := run_facts.text_preview(turn.text)):
        nodes.append(preview)
    if turn.images:
        nodes.append(f"{' · ' if nodes else ''}{pluralize(len(turn.images), 'image')}")
    if failure := one_line(run_facts.turn_failure(turn), 110):
        nodes.append(h("b", "nba-err", f" ✕ {failure}"))
    return nodes


def _pending_text(run: RunRecord, turn: EngineTurn, tool: ToolRun, live: LiveState | None) -> str:
    """State of a call without a result."""
    if live and card_key(turn.id, tool.tool_call_id) in live.open_questions:
        return "waiting for you"
    if run.phase != "Running":
        return "interrupted"
    return "running" if tool.started_at else ""


def call_node(run: ToolRun, pending: str = "") -> Node:
    """`population(city="Oslo") → 717,710`."""
    name = one_line(sanitize_value(run.display_name or run.tool_name), 48)
    arguments = summarize_arguments(map_strings(run.args, show_escapes))
    is_by_person = run.approved_by in ("person", "callback")
    marks = {"allowed": " ✓ allowed", "edited": " ✎ edited"}
    decided = marks.get(run.approval or "", "") if is_by_person else ""
    end = run_facts.call_outcome(run, pending=pending)
    outcome = outcome_node(end, detail=end.detail)
    return h("code", "", h("span", "nba-call", name), f"({arguments}){decided} ", outcome)


def outcome_node(end: run_facts.Outcome, *, detail: str = "") -> Node:
    """Draw the outcome of a call, with the message of an error where no card shows it."""
    if end.is_bad:
        return h("b", "nba-err", f"{end.text}{detail}")
    pending = " nba-pending" if end.text.startswith("…") else ""
    return h("span", f"nba-res{pending}", end.text)


# A tool run


def card_key(turn_id: str, call_id: str) -> str:
    """The `data-key` of a call's card."""
    return f"{turn_id}/tool/{call_id}"


def card(
    run: RunRecord,
    turn: EngineTurn,
    index: int,
    *,
    live: LiveState | None = None,
    answer_figures: Collection[int] = (),
) -> Node:
    """Draw the card of a call: its open question, else its tool run."""
    tool = turn.tool_runs[index]
    key = card_key(turn.id, tool.tool_call_id)
    path = f"run.turns[{turn_position(run, turn)}].tool_runs[{index}]"
    if live and key in live.open_questions:
        question_id, question = live.open_questions[key]
        return question_node(question, question_id)
    return card_node(
        tool,
        path,
        key=key,
        progress=live.progress.get(key, "") if live else "",
        pending=_pending_text(run, turn, tool, live),
        answer_figures=answer_figures,
    )


def card_node(
    run: ToolRun,
    expression: str,
    *,
    key: str = "",
    progress: str = "",
    pending: str = "",
    answer_figures: Collection[int] = (),
) -> Node:
    """Draw a tool run: arguments, decision, printed text, result, pictures.

    Args:
        run: the tool run.
        expression: Python that gives it, named where a text is cut.
        key: `data-key` of the card.
        progress: last progress text.
        pending: state of a call without a result.
        answer_figures: numbers of figures that the answer shows; they are not repeated.
    """
    title = one_line(
        sanitize_value(tool_title(run.tool_name, run.display_name)), run_facts.NAME_CHARS
    )
    name = one_line(sanitize_value(run.tool_name), run_facts.NAME_CHARS)
    outcome, result = run_facts.call_outcome(run, pending=pending), run.result
    images, other_lines = card_figures(run, answer_figures)
    look = " nba-bad" if outcome.is_bad else "" if result else " nba-busy"
    executed = run_facts.thread_text(run)
    arguments = _arguments_text(run.args) if run.args else ""
    if run.args is None and result is not None:
        arguments = "not a JSON object"
    result_expression = (
        f"{expression}.result{' (itself cut, as the model saw it)' if run.truncated else ''}"
    )
    shows = result is None or (outcome.is_bad and run.approval != "denied")
    return h(
        "div",
        f"nba-card{look}",
        h("code", "nba-call", title),
        " ",
        *((outcome_node(outcome), " ") if shows else ()),
        h("small", "nba-num", executed) if executed else None,
        _fact_line(run_facts.decision_text(run, with_reason=True), name),
        *labelled_nodes("arguments", arguments, ARGUMENTS_CHARS, f"{expression}.args", copies=True),
        *labelled_nodes(
            "arguments that the model had written",
            "" if run.asked_args is None else _arguments_text(run.asked_args),
            ARGUMENTS_CHARS,
            "the call in its turn's response",
            fact="the model had written",
        ),
        *labelled_nodes(
            "printed",
            sanitize_value(run.printed),
            _RESULT_CHARS,
            f"{expression}.printed",
            fact="printed",
        ),
        *(
            _result_nodes(run, result_expression)
            if result and result.ok
            else _error_nodes(run, expression)
        ),
        progress_node(key, progress) if progress else None,
        *(_fact_line(f"note: {note}") for note in run_facts.tool_notes(run)),
        *(line("nba-note", f"note: {note}") for note in other_lines),
        *images,
        data_key=key,
    )


def _fact_line(text: str, about: str = "") -> Node | None:
    """Draw a line of a fold that the text form shows too; `about` names its call."""
    return h("div", "nba-note nba-fact", text, title=about or None) if text else None


def _arguments_text(args: dict[str, Any]) -> str:
    return value_text(map_strings(args, show_escapes), enough=ARGUMENTS_CHARS * 2)


def _result_nodes(run: ToolRun, holder: str) -> list[Node]:
    result = run.result
    if result is None or (result.data is None and result.attachments):
        return []
    data = result.data
    if run.printed and run.tool_name == "nb.run" and (fields := json_object(data)):
        # The result for the model repeats the printed text, which is shown above.
        data = {name: value for name, value in fields.items() if name not in ("stdout", "stderr")}
    made = table_of(data)
    if made is not None:
        return [
            label_node(f"result · {summarize_result(data)}"),
            with_copy_button(made[0]),
            *made[1:],
        ]
    text = value_text(data, enough=_RESULT_CHARS * 2)
    return labelled_nodes("result", text, _RESULT_CHARS, holder, copies=True)


def _error_nodes(run: ToolRun, expression: str) -> list[Node]:
    # The card's line on the decision says it already.
    is_plain_denial = run.approval == "denied" and run.approved_by == "person"
    error = run.result.error if run.result and not is_plain_denial else None
    message = sanitize_value(
        error.message if error and error.code == "E_DENIED" else str(error or "")
    )
    detail = sanitize_value(run.error_detail or "")
    # The last line of a traceback repeats the message.
    message = "" if detail and (message.partition(": ")[2] or message) in detail else message
    shown = labelled_nodes("error", message, _RESULT_CHARS, f"{expression}.result.error")
    label = "where it failed" if message else "error"
    return [*shown, *labelled_nodes(label, detail, _RESULT_CHARS, f"{expression}.error_detail")]


# The end


def notices_node(run: RunRecord) -> Node | None:
    """Draw the notices of a run; None if there are none."""
    lines = [h("div", "nba-note", f"note: {note}") for note in run_facts.run_notes(run)]
    return h("div", "nba-end", *lines, data_key="notices") if lines else None


def _answer_nodes(run: RunRecord) -> tuple[list[Node], Collection[int]]:
    """Draw the answer and return the numbers of the figures in it.

    A rule separates it, which is visible without styles too.
    """
    turn = run_facts.answering_turn(run)
    if turn is None:
        typed = typed_answer_nodes(run)
        return ([h("hr", "nba-sep"), h("div", "nba-answer", *typed)] if typed else []), ()
    has_all = f"run.turns[{turn_position(run, turn)}].text"
    text_blocks, note = _content_blocks(turn, has_all)
    blocks, answer_figures = insert_figures(text_blocks, figures_of(run))
    parts = [line("nba-note", run_status.answer_note(run)), *blocks, line("nba-note", note)]
    return [h("hr", "nba-sep"), h("div", "nba-answer", *parts)], answer_figures


def _content_blocks(turn: EngineTurn, has_all: str) -> tuple[list[Node], str]:
    """Draw the texts and images of an answer in their order; also the note about omitted text."""
    if not turn.images:
        shown, note = truncate(sanitize_prose(turn.text), MAX_CHARS, has_all=has_all)
        return markdown_nodes(shown), note
    blocks: list[Node] = []
    note, left = "", MAX_CHARS
    for part in turn.response.message.content if turn.response else ():
        if isinstance(part, ImagePart):
            blocks.append(answer_image_node(part))
        elif isinstance(part, TextPart):
            text = sanitize_prose(part.text)
            shown, rest = truncate(text, max(0, left), has_all=has_all)
            blocks += markdown_nodes(shown)
            note, left = rest or note, left - len(text)
    return blocks, note


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
