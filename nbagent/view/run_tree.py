"""Branches of runs: the tree of a session, and a list of several answers to one request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nbagent.contracts.canonical import canonical_json
from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.store.reader import RunNode
from nbagent.view.listing import Listing
from nbagent.view.node import Node, h
from nbagent.view.run_rows import prompt_line, typed_prompt
from nbagent.view.text_format import (
    format_cost,
    format_count,
    format_duration,
    one_line,
    pluralize,
    sanitize_prose,
    sanitize_value,
    summarize_arguments,
    tool_title,
)

_ANSWER_CHARS = 400
_MAX_DEPTH = 40
"""Nested levels that are drawn; deeper runs are drawn at this level."""


def tree_node(branches: Sequence[RunNode], *, current: str | None = None) -> Node:
    """Draw the runs of a session as nested lists. A run unfolds, and its button shows it.

    A run that continues another one is listed below it; runs that branch off are nested in it.

    Args:
        branches: the roots, as `Store.tree` returns them.
        current: id of the person's present run, which is marked.
    """
    root = h("ul", "nba-branches")
    lists: list[Any] = [root]
    for branch, level in _in_order(branches):
        del lists[level + 1 :]
        if level == len(lists):
            lists.append(h("ul", "nba-branches"))
            lists[-2][-1].append(lists[-1])
        lists[level].append(h("li", "nba-branch", _run_node(branch, branch.run.id == current)))
    return h("div", "nba-tree", root)


def _in_order(branches: Sequence[RunNode]) -> Iterator[tuple[RunNode, int]]:
    """Yield each run with its level: a run, then the runs that branch off, then its continuation.

    Not recursive: a thousand forks of forks are deeper than Python's stack.
    """
    waiting = [(branch, 0) for branch in reversed(branches)]
    while waiting:
        branch, level = waiting.pop()
        yield branch, min(level, _MAX_DEPTH)
        # Not nested, however long: a conversation of a hundred runs would leave the page.
        main = next((child for child in branch.children if child.run.kind != "fork"), None)
        waiting += [(main, level)] if main else []
        sides = [child for child in branch.children if child is not main]
        waiting += [(child, level + 1) for child in reversed(sides)]


def _run_node(branch: RunNode, is_current: bool) -> Node:
    run = branch.run
    here = h("strong", "nba-num nba-here", "you are here") if is_current else None
    facts = [pluralize(run.turns, "turn"), sanitize_value(run.model)]
    facts += [f"{format_count(run.usage.total_tokens)} tokens"] if run.usage.total_tokens else []
    facts += [format_cost(run.cost_usd)] if run.cost_usd else []
    facts += [format_duration(run.duration_ms)] if run.duration_ms else []
    return h(
        "details",
        "nba-turn",
        h("summary", "", h("code", "nba-id", run.id[:8]), f" {branch_line(branch)} ", here),
        h(
            "div",
            "nba-body",
            h("p", "nba-note", " · ".join(facts)),
            h("p", "", sanitize_prose(run.prompt)) if run.prompt else None,
            h("blockquote", "", sanitize_prose(run.text)) if run.text else None,
            h("button", "nba-do", title="Show", data_do="show", data_run=run.id),
        ),
        data_run=run.id,
    )


def branch_line(branch: RunNode) -> str:
    """Describe a run in one line: its start, prompt, answer and end."""
    run, fork = branch.run, branch.run.forked_from
    how = {"continue": "continued", "resume": "resumed"}
    how |= {"fork": f"{fork.turn_id} again"} if fork else {}
    began = [f"{how[run.kind]}:"] if run.kind in how else []
    texts = [*filter(None, (typed_prompt(run), prompt_line(run.text)))]
    ended = [] if run.stop_reason == "answered" else [f"({run.stop_reason or run.phase})"]
    if run.stop_reason == "stopped" and fork and fork.defer_calls:
        ended = ["(its tool calls have not run yet; resume runs them)"]
    return " ".join([*began, " → ".join(texts), *ended])


def tree_lines(branches: Sequence[RunNode], *, current: str | None = None) -> Iterator[str]:
    """Print the tree as lines of text."""
    for branch, level in _in_order(branches):
        mark = "*" if branch.run.id == current else " "
        yield f"{mark} {'  ' * level}{branch.run.id[:8]}  {branch_line(branch)}"


def count_runs(branch: RunNode) -> int:
    """Count the runs of a branch."""
    return sum(1 for _ in _in_order([branch]))


def number_answers(turns: Sequence[EngineTurn]) -> list[int]:
    """Number the different answers from 1; equal text and calls get the same number."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(_answer_key(turn), len(numbers) + 1) for turn in turns]


def _answer_key(turn: EngineTurn) -> tuple[object, ...]:
    calls = turn.response.message.tool_calls if turn.response else ()
    return turn.text, *((call.name, canonical_json(call.arguments)) for call in calls)


def calls_text(turn: EngineTurn) -> str:
    """Summarize the calls of a turn."""
    return "; ".join(
        f"{tool_title(run.tool_name, run.display_name)}({summarize_arguments(run.args)})"
        for run in turn.tool_runs
    )


def answers_of(records: Sequence[RunRecord]) -> list[tuple[RunRecord, EngineTurn]]:
    """Return the answers to one request: that of the original run, and those of its retries."""
    fork = records[-1].forked_from
    turn_id = fork.turn_id if fork else ""
    return [(run, turn) for run in records for turn in run.turns if turn.id == turn_id]


def answers_listing(*records: RunRecord) -> Listing:
    """List the answers to one request: run, number of the answer, cost, text, calls."""
    answers = answers_of(records)
    numbers = number_answers([turn for _, turn in answers])
    rows: list[tuple[str, ...]] = []
    for (run, turn), number in zip(answers, numbers, strict=True):
        usage = turn.response.usage if turn.response else None
        answer_text = sanitize_prose(turn.text or (str(turn.error) if turn.error else ""))
        facts = (
            format_count(usage.total_tokens) if usage else "",
            format_cost(turn.cost_usd) if turn.cost_usd else "",
            format_duration(turn.duration_ms),
        )
        texts = (one_line(text, _ANSWER_CHARS) for text in (answer_text, calls_text(turn)))
        rows.append((run.id[:8], str(number), *facts, *texts))
    return Listing(
        columns=("run", "answer", "tokens", "cost", "time", "text", "calls"),
        rows=rows,
        notes=[f"{len(rows)} answers, {len(set(numbers))} different"],
    )
