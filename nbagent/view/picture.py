"""A run's record → the tree that the page, the saved notebook and the panel draw. Pure.

How a number or an outcome is said is `labels`'. What may change while the run is at work has a
`data-key`: `live` sends only those parts again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from nbagent.contracts.approval import Question
from nbagent.contracts.canonical import json_object
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.view import labels, timing
from nbagent.view.graph import graph_of
from nbagent.view.images import attached, card_figures, figures_of, with_figures
from nbagent.view.labels import Status
from nbagent.view.live_text import ARGUMENTS_CHARS, Writing, progress_node, reasoning_node
from nbagent.view.markdown import MAX_CHARS, nodes_of
from nbagent.view.node import STYLES, Node, h, html, line
from nbagent.view.question import asks_node, question_node
from nbagent.view.result_tables import table_of
from nbagent.view.turn_request import copied, label_node, labelled, place_in, request_node
from nbagent.view.words import (
    arguments_in_short,
    as_text,
    clean,
    cut,
    escapes_shown,
    in_short,
    one_line,
    seconds,
    tool_title,
    visible,
    with_texts,
)

_RESULT_CHARS = 3_000
"""Also of what was printed."""
_PROMPT_CHARS = 2_000
_CALLS_IN_LINE = 4
STOPPING, PAUSING = "Stopping…", "Pausing after this turn…"
# JupyterLab (MathJax 3) and nbconvert (MathJax 2) typeset what stands between `$` in any output:
# a price would lose its words, and what a model wrote would be run as TeX.
ROOT = "nba-run mathjax_ignore tex2jax_ignore"


@dataclass(slots=True)
class Now:
    """What a run at work has beside its record."""

    elapsed_ms: float = 0.0
    doing: timing.Kind = "model"
    """What the time goes to."""
    activity: str = ""
    """What goes on beside the ordinary: a retry, a wait."""
    again_ms: float = 0.0
    """When a request is made again, counted as `elapsed_ms`."""
    stopping: str = ""
    """`STOPPING` or `PAUSING`, once the person asked for it."""
    writing: dict[str, Writing] = field(default_factory=dict[str, Writing])
    """By turn: what the model writes now."""
    progress: dict[str, str] = field(default_factory=dict[str, str])
    """By the key of its card: what a call told last."""
    asked: dict[str, tuple[str, Question]] = field(default_factory=dict[str, tuple[str, Question]])
    """By the key of its card: the open question about a call, with its id."""


def picture(
    run: RunRecord,
    *,
    now: Now | None = None,
    unfolded: frozenset[str] = frozenset(),
    kernel: str = "",
    actions: bool = True,
) -> Node:
    """The whole run, with `now` while it is at work.

    What a person has unfolded are keys as `C01`, `C01/request`; the page actions of that kernel
    answer the buttons, if there are any.
    """
    has_actions = actions and now is None and run.phase != "Running"
    answer, below = _answer_part(run)
    made = [
        turn_node(run, turn, now=now, unfolded=unfolded, below=below, fork=has_actions)
        for turn in run.turns
    ]
    return h(
        "div",
        ROOT,
        head(run, now),
        prompt_node(run),
        graph_of(run),
        asks_node([*now.asked.values()]) if now else None,
        h("div", "nba-turns", *made, data_key="turns"),
        notices_node(run),
        *answer,
        line("nba-end" if labels.status_of(run).tone != "bad" else "nba-error", labels.ending(run)),
        None if now else foot(run, has_actions),
        role="group",
        aria_label=f"agent run, {visible(run.model)}",
        data_run=run.id,
        data_kernel=kernel or None,
    )


@cache
def sheet() -> str:
    """The sheet of a saved picture: it refines the inline styles."""
    return _squeezed("run.css")


def _squeezed(name: str) -> str:
    """A sheet without comments and spaces: it travels with every run."""
    text = files("nbagent.view").joinpath(name).read_text("utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r"\s*([{};,>])\s*", r"\1", re.sub(r"\s+", " ", text)).strip()


@cache
def live_sheet() -> str:
    """The sheet of a page's own picture: its nodes have no inline styles, and it may ask."""
    rules = [f".{cls}{{{style}}}" for cls, style in STYLES.items() if cls != "nba-do"]
    return "".join(rules) + sheet() + _squeezed("question.css")


def page(node: Node) -> str:
    """A picture as HTML with its sheet, as a notebook saves it."""
    return f"<style>{sheet()}</style>{html(node)}"


# The head


def head(run: RunRecord, now: Now | None) -> Node:
    """State, model, numbers, the time bar, what it waits for, Stop and Pause."""
    status = labels.status_of(run)
    if now and now.asked:
        status = Status("Waiting for you", "waits", "?")
    clock = f"{now.elapsed_ms:.0f}" if now else None
    *facts, time = labels.facts_of(run, elapsed_ms=now.elapsed_ms if now else None)
    shown: list[Node] = [node for fact in facts for node in (_fact(fact), " · ")]
    shown.append(_fact(time, clock))
    return h(
        "div",
        "nba-top",
        head_row(status, run.model, shown, *(_stop_buttons(now) if now else ())),
        _bar(run, now),
        line("nba-wide nba-note", labels.offline_words(run)),
        _activity(now) if now else None,
        data_key="head",
        data_since="" if now else None,
    )


def head_row(status: Status, model: str, facts: Sequence[Node], *buttons: Node) -> Node:
    """State, model, facts, buttons."""
    return h(
        "div",
        "nba-head",
        h("span", f"nba-mark nba-{status.tone}", status.mark, " ", aria_hidden="true"),
        h("strong", "nba-phase", status.word),
        " ",
        h("code", "nba-chip", visible(model)),
        " ",
        h("span", "nba-facts", *facts),
        *buttons,
    )


def _fact(fact: labels.Fact, clock: str | None = None) -> Node:
    aside = h("span", "nba-aside", f" {fact.aside}") if fact.aside else None
    word = f" {fact.word}" if fact.word else ""
    if clock is not None:  # the page counts on, in other units
        return h("span", "", h("b", "", fact.value + word, data_clock=clock), aside)
    return h("span", "", h("b", "", fact.value), word, aside)


def _activity(now: Now) -> Node:
    """What is waited for, and how long still."""
    left = now.again_ms - now.elapsed_ms
    again = ["again in ", h("b", "", f"{left / 1000:.1f} s", data_clock=f"{-left:.0f}"), " · "]
    return h("div", "nba-wide nba-note nba-activity", *(again if left > 0 else ()), now.activity)


def _stop_buttons(now: Now) -> list[Node]:
    if now.stopping == STOPPING:
        return [h("span", "nba-note", STOPPING)]
    pause = {"data_do": "pause", "title": "Pause when this turn is over"}
    pausing = h("button", "nba-pause", "‖ Pause", type="button", **pause)
    return [
        h("span", "nba-note", now.stopping) if now.stopping else pausing,
        h("button", "nba-stop", "■ Stop", type="button", data_do="stop", title="Stop this run"),
    ]


def _bar(run: RunRecord, now: Now | None) -> Node:
    pieces = timing.bar_of(run.turns)
    words = timing.bar_words(pieces)
    parts = [h("i", f"nba-i-{p.kind}", style=f"flex-grow:{max(1, round(p.ms))}") for p in pieces]
    if now:
        rest = max(1, round(now.elapsed_ms - sum(piece.ms for piece in pieces)))
        doing = "wait" if now.asked else now.doing
        parts.append(h("i", f"nba-i-{doing}", style=f"flex-grow:{rest}", data_grows=str(rest)))
    return h("div", "nba-bar", *parts, role="img", title=f"time: {words or 'none yet'}")


def prompt_node(run: RunRecord) -> Node | None:
    """What the person asked, or how the run came to be."""
    text = clean(run.prompt).strip() or (f"({labels.origin(run)})" if run.parent_id else "")
    shown, note = cut(text, _PROMPT_CHARS, has_all="run.record.prompt")
    files = attached(run)
    if not shown and not files:
        return None
    lines = [part for row in shown.split("\n") for part in (h("br"), row)][1:]
    return h("blockquote", "nba-prompt", *lines, line("nba-note", note), *files, data_key="prompt")


# A turn


def turn_node(
    run: RunRecord,
    turn: EngineTurn,
    *,
    now: Now | None = None,
    unfolded: frozenset[str] = frozenset(),
    below: Collection[int] = (),
    fork: bool = False,
) -> Node:
    """One turn: its line, and what unfolds; the figures in `below` stand in the answer."""
    key, failure = turn.id, labels.failure_of(turn)
    at_work = now is not None and turn is run.turns[-1]
    writing = now.writing.get(key) if now else None
    is_bad = labels.is_failure(turn.error) or any(
        labels.outcome(tool).is_bad for tool in turn.tool_runs
    )
    body = [
        line("nba-lab", labels.who(turn)),
        *(writing.parts() if writing else _written(run, turn, now, below)),
        *(line("nba-note", f"note: {note}") for note in labels.notes_of(turn)),
        line("nba-error", failure and f"✕ {failure}"),
        request_node(run, turn, is_open=f"{key}/request" in unfolded),
        action("fork", "Fork", turn=key) if fork else None,
    ]
    return h(
        "details",
        f"nba-turn{' nba-bad' if is_bad else ''}",
        h("summary", "", line_node(run, turn, now)),
        h("div", "nba-body", *body),
        data_key=key,
        open_="" if at_work or key in unfolded else None,
    )


def _written(
    run: RunRecord, turn: EngineTurn, now: Now | None, below: Collection[int]
) -> list[Node | None]:
    """What the model wrote in a turn: reasoning, text, calls. The answer stands below."""
    key, place = turn.id, f"run.turns[{place_in(run, turn)}]"
    message = turn.response.message if turn.response else None
    reasoning = clean(message.reasoning or "") if message else ""
    shown, note = cut(clean(turn.text), MAX_CHARS, has_all=f"{place}.text")
    text = h("div", "nba-text", *nodes_of(shown), line("nba-note", note), data_key=f"{key}/text")
    if turn is labels.answering_turn(run):
        text = line("nba-lab", "text · the answer below")
    cards = [card(run, turn, i, now=now, below=below) for i in range(len(turn.tool_runs))]
    return [
        reasoning_node(key, reasoning, f"{place}.response") if reasoning else None,
        text if turn.text else None,
        h("div", "", *cards, data_key=f"{key}/tools") if cards else None,
    ]


def line_node(run: RunRecord, turn: EngineTurn, now: Now | None = None) -> Node:
    """What a folded turn shows: its calls or its first words, and its numbers."""
    at_work = now is not None and turn is run.turns[-1]
    said = said_nodes(run, turn, now) or ["…" if at_work else "no text"]
    numbers = labels.numbers(turn) if turn.duration_ms > 0 and not at_work else ""
    return row_node(turn.id, said, numbers, data_key=f"{turn.id}/line")


def row_node(key: str, said: Sequence[Node], numbers: str, *, data_key: str | None = None) -> Node:
    """What a fold shows of itself: an id, words, and numbers at the right."""
    return h(
        "span",
        "nba-line",
        h("code", "nba-id", key),
        " ",
        h("span", "nba-sum", *said),
        " ",
        h("small", "nba-num", numbers) if numbers else None,
        data_key=data_key,
    )


def said_nodes(run: RunRecord, turn: EngineTurn, now: Now | None = None) -> list[Node]:
    """A turn's calls or its first words, and its error."""
    said: list[Node] = []
    for tool in turn.tool_runs[:_CALLS_IN_LINE]:
        said += ["  "] if said else []
        said.append(call_node(tool, _pending(run, turn, tool, now)))
    if (more := len(turn.tool_runs) - _CALLS_IN_LINE) > 0:
        said.append(f" and {more} more")
    if not said and (words := labels.first_words(turn.text)):
        said.append(words)
    if failure := one_line(labels.failure_of(turn), 110):
        said.append(h("b", "nba-err", f" ✕ {failure}"))
    return said


def _pending(run: RunRecord, turn: EngineTurn, tool: ToolRun, now: Now | None) -> str:
    """What a call without a result waits for."""
    if now and card_key(turn.id, tool.tool_call_id) in now.asked:
        return "waiting for you"
    if run.phase != "Running":
        return "interrupted"
    return "running" if tool.started_at else ""


def call_node(run: ToolRun, pending: str = "") -> Node:
    """`population(city="Oslo") → 717,710`."""
    name = one_line(visible(run.display_name or run.tool_name), 48)
    arguments = arguments_in_short(with_texts(run.args, escapes_shown))
    asked = run.approved_by in ("person", "callback")
    marks = {"allowed": " ✓ allowed", "edited": " ✎ edited"}
    decided = marks.get(run.approval or "", "") if asked else ""
    outcome = outcome_node(labels.outcome(run, pending=pending))
    return h("code", "", h("span", "nba-call", name), f"({arguments}){decided} ", outcome)


def outcome_node(end: labels.Outcome) -> Node:
    """What became of a call."""
    if end.is_bad:
        return h("b", "nba-err", end.words)
    pending = " nba-pending" if end.words.startswith("…") else ""
    return h("span", f"nba-res{pending}", end.words)


# A tool run


def card_key(turn_id: str, call_id: str) -> str:
    """The `data-key` of a call's card."""
    return f"{turn_id}/tool/{call_id}"


def card(
    run: RunRecord,
    turn: EngineTurn,
    place: int,
    *,
    now: Now | None = None,
    below: Collection[int] = (),
) -> Node:
    """The card of a call of a turn: a question while it is open, else what is known of its run."""
    tool = turn.tool_runs[place]
    key = card_key(turn.id, tool.tool_call_id)
    path = f"run.turns[{place_in(run, turn)}].tool_runs[{place}]"
    if now and key in now.asked:
        question_id, question = now.asked[key]
        return question_node(question, question_id)
    return card_node(
        tool,
        path,
        key=key,
        progress=now.progress.get(key, "") if now else "",
        pending=_pending(run, turn, tool, now),
        below=below,
    )


def card_node(
    run: ToolRun,
    place: str,
    *,
    key: str = "",
    progress: str = "",
    pending: str = "",
    below: Collection[int] = (),
) -> Node:
    """A tool run, at a place in Python: arguments, decision, what it printed, result, pictures."""
    title = one_line(visible(tool_title(run.tool_name, run.display_name)), labels.NAME_CHARS)
    outcome, result = labels.outcome(run, pending=pending), run.result
    images, unseen = card_figures(run, below)
    look = " nba-bad" if outcome.is_bad else "" if result else " nba-busy"
    arguments = _arguments_text(run.args) if run.args else ""
    if run.args is None and result is not None:
        arguments = "not a JSON object"
    holder = f"{place}.result{' (itself cut, as the model saw it)' if run.truncated else ''}"
    shows = result is None or (outcome.is_bad and run.approval != "denied")
    return h(
        "div",
        f"nba-card{look}",
        h("code", "nba-call", title),
        " ",
        *((outcome_node(outcome), " ") if shows else ()),
        h("small", "nba-num", labels.where(run)) if labels.where(run) else None,
        line("nba-note", labels.decision_words(run)),
        *labelled("arguments", arguments, ARGUMENTS_CHARS, f"{place}.args", copies=True),
        *labelled(
            "arguments that the model had written",
            "" if run.asked_args is None else _arguments_text(run.asked_args),
            ARGUMENTS_CHARS,
            "the call in its turn's response",
        ),
        *labelled("printed", visible(run.printed), _RESULT_CHARS, f"{place}.printed"),
        *(_result_nodes(run, holder) if result and result.ok else _error_nodes(run, place)),
        progress_node(key, progress) if progress else None,
        *(line("nba-note", f"note: {note}") for note in (*labels.tool_notes(run), *unseen)),
        *images,
        data_key=key,
    )


def _arguments_text(args: dict[str, Any]) -> str:
    return as_text(with_texts(args, escapes_shown), enough=ARGUMENTS_CHARS * 2)


def _result_nodes(run: ToolRun, holder: str) -> list[Node]:
    result = run.result
    if result is None or (result.data is None and result.attachments):
        return []
    data = result.data
    if run.printed and run.tool_name == "nb.run" and (told := json_object(data)):
        # The model is given what was printed; here it stands above.
        data = {name: it for name, it in told.items() if name not in ("stdout", "stderr")}
    made = table_of(data)
    if made is not None:
        return [label_node(f"result · {in_short(data)}"), copied(made[0]), *made[1:]]
    text = as_text(data, enough=_RESULT_CHARS * 2)
    return labelled("result", text, _RESULT_CHARS, holder, copies=True)


def _error_nodes(run: ToolRun, place: str) -> list[Node]:
    is_said = run.approval == "denied" and run.approved_by == "person" and not run.reason
    error = run.result.error if run.result and not is_said else None
    words = visible(error.message if error and error.code == "E_DENIED" else str(error or ""))
    detail = visible(run.error_detail or "")
    words = "" if detail and (words.partition(": ")[2] or words) in detail else words
    shown = labelled("error", words, _RESULT_CHARS, f"{place}.result.error")
    label = "where it failed" if words else "error"
    return [*shown, *labelled(label, detail, _RESULT_CHARS, f"{place}.error_detail")]


# The end


def notices_node(run: RunRecord) -> Node | None:
    """What the person should know of the run."""
    lines = [h("div", "nba-note", f"note: {note}") for note in labels.run_notes(run)]
    return h("div", "nba-end", *lines, data_key="notices") if lines else None


def _answer_part(run: RunRecord) -> tuple[list[Node], Collection[int]]:
    """The answer, set apart also where there is no style, and the figures that stand in it."""
    turn = labels.answering_turn(run)
    if turn is None:
        return [], ()
    has_all = f"run.turns[{place_in(run, turn)}].text"
    shown, note = cut(clean(turn.text), MAX_CHARS, has_all=has_all)
    blocks, below = with_figures(nodes_of(shown), figures_of(run))
    parts = [line("nba-note", labels.answer_note(run)), *blocks, line("nba-note", note)]
    return [h("hr", "nba-sep"), h("div", "nba-answer", *parts)], below


def action(verb: str, title: str, *, turn: str | None = None) -> Node:
    """A button of a finished run: seen only while the kernel's page actions are there."""
    return h("button", "nba-do", data_do=verb, title=title, data_turn=turn)


def foot(run: RunRecord, actions: bool) -> Node:
    """Buttons, what run this is, and where its time went."""
    verbs = {"continue": "Continue"} if labels.is_unfinished(run) else {}
    verbs |= {"retry": "Retry", "compare": "Compare"}
    verbs |= {"copy": "Copy answer"} if labels.answering_turn(run) else {}
    verbs |= {"cell": "To cell"}
    buttons = [action(verb, title) for verb, title in verbs.items()] if actions else []
    pieces = timing.bar_of(run.turns)
    words = " · ".join(filter(None, (labels.about(run), timing.bar_words(pieces))))
    about: Node = h("small", "", words)
    kinds = list(timing.sums_of(pieces))
    if len(run.turns) > 1 and len(kinds) > 1:
        about = h("details", "", h("summary", "", about), *_times(run, kinds), data_key="times")
    return h("div", "nba-foot", *buttons, about)


def _times(run: RunRecord, kinds: Sequence[timing.Kind]) -> list[Node]:
    """Where the time went, turn by turn: what the bar says where there is no style."""
    rows: list[dict[str, str]] = []
    for turn in run.turns:
        sums = timing.sums_of(timing.segments_of(turn))
        spent = {timing.KIND_WORDS[k]: seconds(sums[k]) if sums.get(k) else "" for k in kinds}
        rows.append({"turn": turn.id, **spent})
    return table_of(rows, most_rows=100) or []
