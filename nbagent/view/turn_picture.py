"""A turn of a run → nodes: its line, its response, the cards of its calls. Pure functions.

`run_facts` words the numbers and outcomes. Parts with a `data-key` may be drawn again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.messages import ImagePart, TextPart
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.view import run_facts
from nbagent.view.buttons import fork_button
from nbagent.view.images import (
    answer_image_node,
    card_figures,
)
from nbagent.view.live_state import LiveState
from nbagent.view.live_text import ARGUMENTS_CHARS, progress_node, reasoning_node
from nbagent.view.markdown import MAX_CHARS, markdown_nodes
from nbagent.view.node import Node, h, line
from nbagent.view.question import question_node
from nbagent.view.result_summary import summarize_result
from nbagent.view.result_tables import table_of
from nbagent.view.text_format import (
    json_text,
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
from nbagent.view.turn_request import (
    label_node,
    labelled_nodes,
    request_node,
    turn_position,
    with_copy_button,
)

_RESULT_CHARS = 3_000
"""Shown characters of a result, and of printed text."""
_CALLS_IN_LINE = 4
_TURN_MEANING = "one request to the model and its calls"


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
        *(fact_line(f"note: {note}") for note in run_facts.turn_notes(turn)),
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
    blocks, note = content_blocks(turn, f"{expression}.text")
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
    if rest := turn.tool_runs[_CALLS_IN_LINE:]:
        nodes.append(f" and {len(rest)} more")
        if failed := sum(run_facts.call_outcome(tool).is_bad for tool in rest):
            nodes.append(h("b", "nba-err", f", {failed} failed"))
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
        fact_line(run_facts.decision_text(run, with_reason=True), name),
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
        *(fact_line(f"note: {note}") for note in run_facts.tool_notes(run)),
        *(line("nba-note", f"note: {note}") for note in other_lines),
        *images,
        data_key=key,
    )


def fact_line(text: str, about: str = "") -> Node | None:
    """Draw a line of a fold that the text form shows too; `about` names its call."""
    return h("div", "nba-note nba-fact", text, title=about or None) if text else None


def _arguments_text(args: dict[str, Any]) -> str:
    """Print arguments as JSON; if one is a text of several lines, each under its name."""
    shown = map_strings(args, show_escapes)
    if not any(isinstance(value, str) and "\n" in value.strip("\n") for value in shown.values()):
        return value_text(shown, enough=ARGUMENTS_CHARS * 2)
    return "\n".join(_argument_lines(name, value) for name, value in shown.items())


def _argument_lines(name: str, value: Any) -> str:
    is_block = isinstance(value, str) and "\n" in value
    text = sanitize_value(value) if is_block else json_text(value, enough=ARGUMENTS_CHARS)
    return f"{sanitize_value(name)}:{chr(10) if is_block else ' '}{sanitize_value(text).rstrip()}"


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


def content_blocks(
    turn: EngineTurn, has_all: str, limit: int = MAX_CHARS
) -> tuple[list[Node], str]:
    """Draw the texts and images of an answer in their order; also the note about omitted text."""
    if not turn.images:
        shown, note = truncate(sanitize_prose(turn.text), limit, has_all=has_all)
        return markdown_nodes(shown), note
    blocks: list[Node] = []
    note, left = "", limit
    for part in turn.response.message.content if turn.response else ():
        if isinstance(part, ImagePart):
            blocks.append(answer_image_node(part))
        elif isinstance(part, TextPart):
            text = sanitize_prose(part.text)
            shown, rest = truncate(text, max(0, left), has_all=has_all)
            blocks += markdown_nodes(shown)
            note, left = rest or note, left - len(text)
    return blocks, note
