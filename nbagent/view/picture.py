"""A run's record → the tree that the page, the saved notebook and the panel draw. Pure.

How a number or an outcome is said is `labels`'. What may change while the run is at work has a
`data-key`: `live` sends only those parts again. What a run at work has beside its record (streamed
texts, open questions, progress) comes in a `Now`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.chat import ImagePart
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.view import labels, timing
from nbagent.view.graph import graph_of
from nbagent.view.images import card_figures, drawn, figures_of, with_figures
from nbagent.view.labels import Status
from nbagent.view.markdown import MAX_CHARS, nodes_of
from nbagent.view.node import STYLES, Node, h, html, line
from nbagent.view.request import copied, label_node, labelled, place_in, request_node
from nbagent.view.tables import table_of
from nbagent.view.words import (
    as_text,
    clean,
    cut,
    in_short,
    one_line,
    seconds,
    tool_title,
    visible,
)

REASONING_CHARS = 12_000
ARGUMENTS_CHARS = 4_000
RESULT_CHARS = 3_000
PRINTED_CHARS = 3_000
_PROMPT_CHARS = 2_000
_CALLS_IN_LINE = 4
STOPPING, PAUSING = "Stopping…", "Pausing after this turn…"
# JupyterLab (MathJax 3) and nbconvert (MathJax 2) typeset what stands between `$` in any output:
# a price would lose its words, and what a model wrote would be run as TeX.
ROOT = "nba-run mathjax_ignore tex2jax_ignore"


@dataclass(frozen=True, slots=True)
class Now:
    """What a run at work has beside its record."""

    elapsed_ms: float = 0.0
    doing: timing.Kind = "model"
    """What the time goes to."""
    activity: str = ""
    """What goes on beside the ordinary: a retry, a wait."""
    stopping: str = ""
    """`STOPPING` or `PAUSING`, once the person asked for it."""
    is_asking: bool = False
    streams: Mapping[str, Mapping[str, Node]] = field(default_factory=dict[str, dict[str, Node]])
    """By turn: its parts `reasoning`, `text` and `tools` while the model writes them."""
    cards: Mapping[str, Node] = field(default_factory=dict[str, Node])
    """By key: cards that say more than their tool run, as one with an open question."""
    asks: Node | None = None


def picture(
    run: RunRecord,
    *,
    now: Now | None = None,
    unfolded: frozenset[str] = frozenset(),
    kernel: str = "",
    actions: bool = True,
) -> Node:
    """The whole run.

    Args:
        run: the record, as far as it goes.
        now: while it is at work.
        unfolded: keys of what a person has open: `C01`, `C01/request`.
        kernel: id of the kernel whose page actions answer the buttons.
        actions: whether there are buttons at all.
    """
    answer = labels.answering_turn(run)
    has_actions = actions and now is None and run.phase != "Running"
    made = [
        turn_node(run, turn, now=now, unfolded=unfolded, is_answer=turn is answer, fork=has_actions)
        for turn in run.turns
    ]
    return h(
        "div",
        ROOT,
        head(run, now),
        prompt_node(run),
        graph_of(run),
        now.asks if now else None,
        h("div", "nba-turns", *made, data_key="turns"),
        notices_node(run),
        *(answer_part(run, answer) if answer else ()),
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
    if now is not None:
        status = Status("Running", "live", "…")
        status = Status("Waiting for you", "waits", "?") if now.is_asking else status
    facts: list[Node] = []
    for fact in labels.facts_of(run, elapsed_ms=now.elapsed_ms if now else None):
        clock = "1" if now and fact.key == "time" else None
        facts += [" · "] if facts else []
        facts += [h("b", "", fact.value, data_clock=clock), f" {fact.word}" if fact.word else ""]
        facts += [h("span", "nba-aside", f" {fact.aside}")] if fact.aside else []
    return h(
        "div",
        "nba-top",
        h(
            "div",
            "nba-head",
            h("span", f"nba-mark nba-{status.tone}", status.mark, " ", aria_hidden="true"),
            h("strong", "nba-phase", status.word),
            " ",
            h("code", "nba-chip", visible(run.model)),
            " ",
            h("span", "nba-facts", *facts),
            *(_stop_buttons(now) if now else ()),
        ),
        _bar(run, now),
        line("nba-wide nba-note", labels.offline_words(run)),
        h("div", "nba-wide nba-note nba-activity", now.activity) if now else None,
        data_key="head",
        data_since=f"{now.elapsed_ms:.0f}" if now else None,
    )


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
        parts.append(h("i", f"nba-i-{now.doing}", style=f"flex-grow:{rest}", data_grows=str(rest)))
    return h("div", "nba-bar", *parts, role="img", title=f"time: {words or 'none yet'}")


def prompt_node(run: RunRecord) -> Node | None:
    """What the person asked, or how the run came to be."""
    text = clean(run.prompt).strip() or (f"({labels.origin(run)})" if run.parent_id else "")
    shown, note = cut(text, _PROMPT_CHARS, has_all="run.record.prompt")
    images = drawn([part for part in _prompt_parts(run) if isinstance(part, ImagePart)])[0]
    if not shown and not images:
        return None
    lines = [part for row in shown.split("\n") for part in (h("br"), row)][1:]
    return h("blockquote", "nba-prompt", *lines, line("nba-note", note), *images, data_key="prompt")


def _prompt_parts(run: RunRecord) -> Sequence[Any]:
    """The parts of the message that the person wrote."""
    users = (m for m in reversed(run.messages) if m.role == "user" and m.text == run.prompt)
    return next((message.content for message in users), ())


# A turn


def turn_node(
    run: RunRecord,
    turn: EngineTurn,
    *,
    now: Now | None = None,
    unfolded: frozenset[str] = frozenset(),
    is_answer: bool = False,
    fork: bool = False,
) -> Node:
    """One turn: its line, and what unfolds."""
    key, place = turn.id, f"run.turns[{place_in(run, turn)}]"
    streams: Mapping[str, Node] = now.streams.get(key, {}) if now else {}
    at_work = now is not None and turn is run.turns[-1]
    message = turn.response.message if turn.response else None
    cards = [
        card(turn, tool, f"{place}.tool_runs[{i}]", now=now)
        for i, tool in enumerate(turn.tool_runs)
    ]
    reasoning = clean(message.reasoning or "") if message else ""
    text = "" if is_answer or message is None else clean(message.text)
    is_bad = labels.is_failure(turn.error) or any(
        labels.outcome(tool).is_bad for tool in turn.tool_runs
    )
    body = [
        line("nba-lab", labels.who(turn)),
        streams.get("reasoning") or reasoning_node(key, reasoning, f"{place}.response", now),
        streams.get("text") or text_node(key, text, place, now),
        line("nba-lab", "text · the answer below") if is_answer else None,
        streams.get("tools") or _slot(f"{key}/tools", cards, now),
        *(line("nba-note", f"note: {note}") for note in labels.notes_of(turn)),
        line("nba-error", f"✕ {labels.failure_of(turn)}" if labels.failure_of(turn) else ""),
        request_node(run, turn, is_open=f"{key}/request" in unfolded),
        action("fork", "Fork", turn=key) if fork else None,
    ]
    return h(
        "details",
        f"nba-turn{' nba-bad' if is_bad else ''}",
        h("summary", "", line_node(turn, at_work=at_work)),
        h("div", "nba-body", *body),
        data_key=key,
        open_="" if at_work or key in unfolded else None,
    )


def _slot(key: str, children: Sequence[Node], now: Now | None) -> Node | None:
    """A place that is filled while the run is at work; nothing where it stays empty."""
    return h("div", "", *children, data_key=key) if children or now else None


def reasoning_node(key: str, text: str, place: str, now: Now | None = None) -> Node | None:
    """What the model thought aloud."""
    if not text:
        return _slot(f"{key}/reasoning", [], now)
    shown, note = cut(text, REASONING_CHARS, has_all=f"{place}.message.reasoning")
    thought = h("div", "nba-think", shown, data_key=f"{key}/reasoning/0")
    parts = [label_node("reasoning"), thought, line("nba-note", note)]
    return h("div", "", *parts, data_key=f"{key}/reasoning")


def text_node(key: str, text: str, place: str, now: Now | None = None) -> Node | None:
    """What the model wrote in a turn that is not the answer."""
    if not text:
        return _slot(f"{key}/text", [], now)
    shown, note = cut(text, MAX_CHARS, has_all=f"{place}.text")
    return h("div", "nba-text", *nodes_of(shown), line("nba-note", note), data_key=f"{key}/text")


def line_node(turn: EngineTurn, *, at_work: bool = False) -> Node:
    """What a folded turn shows: its calls or its first words, and its numbers."""
    calls: list[Node] = []
    for tool in turn.tool_runs[:_CALLS_IN_LINE]:
        calls += ["  "] if calls else []
        calls.append(call_node(tool))
    if (more := len(turn.tool_runs) - _CALLS_IN_LINE) > 0:
        calls.append(f" and {more} more")
    words = "" if calls else labels.first_words(turn.text)
    failure = one_line(labels.failure_of(turn), 110)
    nothing = "" if calls or words or failure else "…" if at_work else "no text"
    is_over = turn.duration_ms > 0 and not at_work
    return h(
        "span",
        "nba-line",
        h("code", "nba-id", turn.id),
        " ",
        h(
            "span",
            "nba-sum",
            *calls,
            words,
            nothing,
            h("b", "nba-err", f" ✕ {failure}") if failure else None,
        ),
        " ",
        h("small", "nba-num", labels.numbers(turn)) if is_over else None,
        data_key=f"{turn.id}/line",
    )


def call_node(run: ToolRun) -> Node:
    """`population(city="Oslo") → 717,710`."""
    words = labels.call_words(run)
    end = words.outcome
    return h(
        "code",
        "",
        h("span", "nba-call", words.name),
        f"({words.arguments}) {words.decided} ".rstrip() + " ",
        h("b", "nba-err", end.words) if end.is_bad else h("span", "nba-res", end.words),
    )


# A tool run


def card(turn: EngineTurn, run: ToolRun, place: str, *, now: Now | None = None) -> Node:
    """A tool run: its arguments, decision, what it printed, result or error, pictures."""
    key = f"{turn.id}/tool/{run.tool_call_id}"
    if now and key in now.cards:
        return now.cards[key]
    return card_node(key, turn, run, place)


def card_node(
    key: str, turn: EngineTurn | None, run: ToolRun, place: str, *, progress: str = ""
) -> Node:
    """The card of a tool run; `progress` is what it told last."""
    title = one_line(visible(tool_title(run.tool_name, run.display_name)), labels.NAME_CHARS)
    outcome, result = labels.outcome(run), run.result
    images, unseen = card_figures(run)
    look = " nba-bad" if outcome.is_bad else "" if result else " nba-busy"
    state = outcome.words if outcome.is_bad or result is None else ""
    written = labels.written_by_model(turn, run)
    holder = f"{place}.result"
    holder += " (itself cut, as the model saw it)" if run.truncated else ""
    return h(
        "div",
        f"nba-card{look}",
        h("code", "nba-call", title),
        " ",
        h("b", "nba-err", f"{state} ") if outcome.is_bad else state and h("span", "nba-res", state),
        h("small", "nba-num", labels.where(run)) if labels.where(run) else None,
        line("nba-note", labels.decision_words(run)),
        *labelled("arguments", arguments_text(run), ARGUMENTS_CHARS, f"{place}.args", copies=True),
        *labelled(
            "arguments that the model had written",
            "" if written is None else as_text(written, enough=ARGUMENTS_CHARS * 2),
            ARGUMENTS_CHARS,
            "the call in its turn's response",
        ),
        *labelled("printed", visible(run.printed), PRINTED_CHARS, f"{place}.printed"),
        *(_result_nodes(run, holder) if result and result.ok else _error_nodes(run, place)),
        line("nba-note", progress),
        *(line("nba-note", f"note: {note}") for note in (*labels.tool_notes(run), *unseen)),
        *images,
        data_key=key,
    )


def arguments_text(run: ToolRun) -> str:
    """The arguments of a call to read; empty when there are none."""
    if run.args is None:
        return "" if run.result is None else "not a JSON object"
    return as_text(labels.escapes_seen(run.args), enough=ARGUMENTS_CHARS * 2) if run.args else ""


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
    text = as_text(data, enough=RESULT_CHARS * 2)
    return labelled("result", text, RESULT_CHARS, holder, copies=True)


def _error_nodes(run: ToolRun, place: str) -> list[Node]:
    error = run.result.error if run.result else None
    words = visible(error.message if error and error.code == "E_DENIED" else str(error or ""))
    detail = visible(run.error_detail or "")
    words = "" if detail and (words.partition(": ")[2] or words) in detail else words
    shown = labelled("error", words, RESULT_CHARS, f"{place}.result.error")
    label = "where it failed" if words else "error"
    return [*shown, *labelled(label, detail, RESULT_CHARS, f"{place}.error_detail")]


# The end


def notices_node(run: RunRecord) -> Node | None:
    """What the person should know of the run."""
    lines = [h("div", "nba-note", f"note: {note}") for note in labels.run_notes(run)]
    return h("div", "nba-end", *lines, data_key="notices") if lines else None


def answer_part(run: RunRecord, turn: EngineTurn) -> list[Node]:
    """The answer, set apart also where there is no style."""
    text = clean(turn.text)
    shown, note = cut(text, MAX_CHARS, has_all=f"run.turns[{place_in(run, turn)}].text")
    blocks = with_figures(nodes_of(shown), figures_of(run))
    parts = [line("nba-note", labels.answer_note(run)), *blocks, line("nba-note", note)]
    return [h("hr", "nba-sep"), h("div", "nba-answer", *parts)]


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
    kinds = list(timing.sums_of(pieces))
    about: Node = h("small", "", words)
    if len(run.turns) > 1 and len(kinds) > 1:
        about = h("details", "", h("summary", "", about), _times(run, kinds), data_key="times")
    return h("div", "nba-foot", *buttons, about)


def _times(run: RunRecord, kinds: Sequence[timing.Kind]) -> Node:
    """Where the time went, turn by turn: what the bar says where there is no style."""
    names = ("turn", *map(timing.kind_word, kinds))
    rows = [h("tr", "", *(h("th", "", name, scope="col") for name in names))]
    for turn in run.turns[:100]:
        sums = timing.sums_of(timing.segments_of(turn))
        cells = [h("td", "", seconds(sums[k]) if sums.get(k) else "") for k in kinds]
        rows.append(h("tr", "", h("th", "", turn.id, scope="row"), *cells))
    return h("table", "", *rows)
