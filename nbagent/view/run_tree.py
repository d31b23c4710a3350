"""How runs branch: the tree of a session, and several answers to one request below each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nbagent.contracts.canonical import canonical_json
from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.store.reader import Branch
from nbagent.view.listing import Listing
from nbagent.view.node import Node, h
from nbagent.view.words import (
    arguments_in_short,
    clean,
    count,
    money,
    one_line,
    seconds,
    things,
    tool_title,
    visible,
)

_WORDS_CHARS = 80
_ANSWER_CHARS = 400
_DEEPEST = 40
"""Levels that are drawn inside each other; deeper ones are not told apart."""


def tree_node(branches: Sequence[Branch], *, current: str | None = None) -> Node:
    """The runs of a session as a list; each opens, and `data-do="show"` shows its run.

    A run that goes on from the one before stands below it, others that branch off stand within it.

    Args:
        branches: those that begin something, as `Store.tree` gives them.
        current: the id of the run that the person is at; it is marked.
    """
    return h("div", "nba-tree", h("ul", "nba-branches", *_items(branches, current, 0)))


def _items(branches: Sequence[Branch], current: str | None, level: int) -> Iterator[Node]:
    for branch, aside in (each for first in branches for each in _going_on(first)):
        within = level < _DEEPEST and bool(aside)
        below = h("ul", "nba-branches", *_items(aside, current, level + 1)) if within else None
        yield h("li", "nba-branch", _run_node(branch, branch.run.id == current), below)
        if not within:
            yield from _items(aside, current, level)


def _going_on(branch: Branch | None) -> Iterator[tuple[Branch, list[Branch]]]:
    """A run and those that go on from it in one line, each with what branches off there."""
    while branch is not None:
        main = next((it for it in branch.children if it.run.kind != "fork"), None)
        yield branch, [it for it in branch.children if it is not main]
        branch = main


def _run_node(branch: Branch, is_current: bool) -> Node:
    run = branch.run
    here = h("strong", "nba-num nba-here", "you are here") if is_current else None
    facts = [things(branch.turns, "turn"), visible(run.model)]
    facts += [f"{count(run.usage.total_tokens)} tokens"] if run.usage.total_tokens else []
    facts += [money(run.cost_usd)] if run.cost_usd else []
    facts += [seconds(run.duration_ms)] if run.duration_ms else []
    return h(
        "details",
        "nba-turn",
        h("summary", "", h("code", "nba-id", run.id[:8]), f" {branch_words(branch)} ", here),
        h(
            "div",
            "nba-body",
            h("p", "nba-note", " · ".join(facts)),
            h("p", "", clean(run.prompt)) if run.prompt else None,
            h("blockquote", "", clean(branch.answer)) if branch.answer else None,
            h("button", "nba-do", title="Show", data_do="show", data_run=run.id),
        ),
        data_run=run.id,
    )


def branch_words(branch: Branch) -> str:
    """A run of a tree in one line: how it began, how it ended, its prompt, its answer."""
    run = branch.run
    how = {"continue": "continued", "resume": "resumed", "fork": f"{run.forked_from} again"}
    began = [f"{how[run.kind]}:"] if run.kind in how else []
    said = [one_line(clean(text), _WORDS_CHARS) for text in (run.prompt, branch.answer) if text]
    ended = [] if run.stop_reason == "answered" else [f"({run.stop_reason or run.phase})"]
    if run.stop_reason == "stopped" and run.options.get("holds_calls"):
        ended = ["(its calls wait until it is resumed)"]
    return " ".join([*began, " → ".join(said), *ended])


def tree_lines(
    branches: Sequence[Branch], *, current: str | None = None, level: int = 0
) -> Iterator[str]:
    """The same as text."""
    for branch, aside in (each for first in branches for each in _going_on(first)):
        mark = "*" if branch.run.id == current else " "
        yield f"{mark} {'  ' * min(level, _DEEPEST)}{branch.run.id[:8]}  {branch_words(branch)}"
        yield from tree_lines(aside, current=current, level=level + 1)


def different_answers(turns: Sequence[EngineTurn]) -> list[int]:
    """For each turn which of the different answers it has, from 1: its text and its calls count."""
    seen: dict[object, int] = {}
    return [seen.setdefault(_said(turn), len(seen) + 1) for turn in turns]


def _said(turn: EngineTurn) -> tuple[object, ...]:
    calls = turn.response.message.tool_calls if turn.response else ()
    return turn.text, *((call.name, canonical_json(call.arguments)) for call in calls)


def calls_of(turn: EngineTurn) -> str:
    """The calls that an answer asks for, in short."""
    return "; ".join(
        f"{tool_title(run.tool_name, run.display_name)}({arguments_in_short(run.args)})"
        for run in turn.tool_runs
    )


def answers_of(records: Sequence[RunRecord]) -> list[tuple[RunRecord, EngineTurn]]:
    """The answers to one request: of the run that was asked again, and of those that did it."""
    asked = records[-1].forked_from
    return [(run, turn) for run in records for turn in run.turns if turn.id == asked]


def answers_listing(*records: RunRecord) -> Listing:
    """The answers to one request, each of a run: which are the same, what they say and cost."""
    answers = answers_of(records)
    numbers = different_answers([turn for _, turn in answers])
    rows: list[tuple[str, ...]] = []
    for (run, turn), number in zip(answers, numbers, strict=True):
        usage = turn.response.usage if turn.response else None
        said = clean(turn.text or (str(turn.error) if turn.error else ""))
        facts = (
            count(usage.total_tokens) if usage else "",
            money(turn.cost_usd) if turn.cost_usd else "",
            seconds(turn.duration_ms),
        )
        words = (one_line(text, _ANSWER_CHARS) for text in (said, calls_of(turn)))
        rows.append((run.id[:8], str(number), *facts, *words))
    return Listing(
        heads=("run", "answer", "tokens", "cost", "time", "text", "calls"),
        rows=rows,
        notes=[f"{len(rows)} answers, {len(set(numbers))} different"],
    )
