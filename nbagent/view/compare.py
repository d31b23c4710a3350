"""Two or more runs side by side: their turns aligned by content, their texts compared by word.

Owns the alignment, the differences as values (`differences`) and how these look, as a tree and as
text. Which runs a person means is not known here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Generic, NamedTuple, TypeVar

from nbagent.contracts.canonical import canonical_json, json_object
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.messages import parse_arguments
from nbagent.contracts.records import EngineTurn, RunRecord, ToolResult, ToolRun
from nbagent.view import words
from nbagent.view.node import Node, h, text_of
from nbagent.view.picture import ROOT
from nbagent.view.result_tables import table_of

LETTERS = "ABCDEFGH"
"""What the runs of a comparison are called; more than these it does not take."""
_MOST_TURNS = 300
"""Of each run; the rest is not compared."""
_MOST_CHARS = 60_000
"""Of a text that is compared."""
_SHOWN_CHARS = 6_000
"""Of a difference that is shown."""
_MOST_SHOWN = 120_000
"""Characters of differences in one picture."""
_AROUND_CHARS = 160
"""Of an equal stretch, beside a difference."""
_MOST_EFFORT = 1_000_000
"""Pairs of equal words: what the search for common words is slow with (0.2 s)."""
_MOST_RECOGNISED = 4_000
"""Bytes of a turn or a call that say which other it is like."""
_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"(?:\d+(?:[.,]\d+)*|\w+)\s*|[^\w\s]\s*|\s+")
"""A number is one word, with its points and commas."""
_SENTENCE = re.compile(r"[^\n.]*[\n.]\s*|[^\n.]+")
T = TypeVar("T")
Pieces = list[tuple[str, str]]
"""Pairs of `=`, `-` (only before) or `+` (only after), and a text."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that the runs have, or some of them: equal or not."""

    part: str
    """`prompt`, `system prompt`, `answer`, `text`, `population`, `population: result`, …"""
    status: str
    """`same`, `changed`, or `only in A`."""
    texts: tuple[str | None, ...]
    """For each run; None where it has none."""


@dataclass(frozen=True, slots=True)
class Group:
    """What is compared together: the beginnings of the runs, or one turn of each."""

    turns: tuple[str, ...]
    """The turn of each run, empty where it has none; nothing for the beginnings."""
    status: str
    rows: tuple[Difference, ...]


def differences(records: Sequence[RunRecord]) -> list[Group]:
    """What is equal in the runs and what is not: how they begin, then turn by turn."""
    begin = [
        _difference("prompt", [words.clean(run.prompt) for run in records]),
        _difference("system prompt", [_system(run) for run in records]),
        _difference("tools", [_tools(run) for run in records]),
        _difference("parameters", [_parameters(run) for run in records]),
    ]
    groups = [_group((), [row for row in begin if any(row.texts)])]
    turns = [list(map(_turn_item, _turns(run, records))) for run in records]
    return groups + [_turn_group(row) for row in align(turns)]


def _turns(run: RunRecord, records: Sequence[RunRecord]) -> list[EngineTurn]:
    """The turns of a run; those that it shares with a run beside it come first."""
    others = [it for it in records if it is not run]  # fewer each time: parents may be in a circle
    parent = next((it for it in others if it.id == run.parent_id), None)
    shared: list[EngineTurn] = []
    if parent is not None:
        asked = [turn.index for turn in parent.turns if turn.id == run.forked_from]
        first = next(iter([turn.index for turn in run.turns] + asked), 10**9)
        before = [turn for turn in _turns(parent, others) if turn.index < first]
        shared = [it for turn in before if (it := _as_kept(turn, run)) is not None]
    return [*shared, *run.turns][:_MOST_TURNS]


def _as_kept(turn: EngineTurn, run: RunRecord) -> EngineTurn | None:
    """A turn of the parent with what the run changed in it; None where it left the turn out."""
    if not run.copied or turn.response is None:
        return turn
    copied = zip(run.messages, run.copied, strict=False)
    copies = [message for message, turn_id in copied if turn_id == turn.id]
    results = {it.tool_call_id: it.text for it in copies if it.role == "tool"}
    answer = next((it for it in copies if it.role == "assistant"), turn.response.message)
    if not copies and turn.request.n_messages >= run.shared_messages:
        return None
    calls = {call.id for call in answer.tool_calls}
    kept = [_with_result(it, results) for it in turn.tool_runs if it.tool_call_id in calls]
    response = turn.response.model_copy(update={"message": answer})
    return turn.model_copy(update={"response": response, "tool_runs": tuple(kept)})


def _with_result(call: ToolRun, results: Mapping[str | None, str]) -> ToolRun:
    """The call with the result that its message says."""
    said = results.get(call.tool_call_id)
    if said is None or call.result is None or said == call.result.to_json().decode():
        return call
    body = parse_arguments(said) or {}
    failed = json_object(body.get("error")) or {}
    error = ErrorInfo("E_TOOL_FAILED", str(failed.get("message")))
    made = ToolResult(ok=not failed, data=body.get("data"), error=error if failed else None)
    return call.model_copy(update={"result": made})


# What is compared of a turn


class Item(NamedTuple, Generic[T]):
    """A turn or a call, and what it is recognised by."""

    value: T
    kind: str
    """Items of different kinds do not stand in one row."""
    whole: bytes
    said: frozenset[str]


def _turn_item(turn: EngineTurn) -> Item[EngineTurn]:
    kind = "calls" if turn.tool_runs else "answer"
    return _item(turn, kind, [turn.text, *map(_content, turn.tool_runs)])


def _call_item(call: ToolRun) -> Item[ToolRun]:
    return _item(call, call.tool_name, _content(call))


def _content(call: ToolRun) -> list[Any]:
    return [call.tool_name, call.args, call.result.body if call.result else None]


def _item(value: T, kind: str, content: list[Any]) -> Item[T]:
    whole = canonical_json(content)
    said = _WORD.findall(whole[:_MOST_RECOGNISED].decode(errors="replace"))
    return Item(value, kind, whole, frozenset(said))


def _likeness(a: Item[T], b: Item[T]) -> float:
    """How well two items fit; 0 where they may not stand in one row."""
    if a.kind != b.kind:
        return 0
    return 1 + 2 * len(a.said & b.said) / (len(a.said | b.said) or 1) + 4 * (a.whole == b.whole)


def _turn_group(row: Sequence[Item[EngineTurn] | None]) -> Group:
    turns = [item and item.value for item in row]
    calls = [list(map(_call_item, turn.tool_runs)) if turn else [] for turn in turns]
    texts = [turn and words.clean(turn.text) for turn in turns]
    rows = [_difference("text" if any(calls) else "answer", texts)] if any(texts) else []
    for found in align(calls):
        runs = [item and item.value for item in found]
        name = next(words.visible(run.tool_name) for run in runs if run)
        rows.append(_difference(name, [run and _as_text(run.args) for run in runs]))
        results = [run and _as_text(_content(run)[-1]) for run in runs]
        rows.append(_difference(f"{name}: result", results))
    errors = [turn and turn.error and words.clean(turn.error.message) for turn in turns]
    rows += [_difference("error", errors)] if any(errors) else []
    return _group([turn.id if turn else "" for turn in turns], rows)


def _as_text(value: Any) -> str:
    return words.as_text(value, enough=_MOST_CHARS)


def _system(run: RunRecord) -> str:
    return "\n\n".join(map(words.clean, run.system_prompts.values()))


def _tools(run: RunRecord) -> str:
    names = {tool.name: "" for tools in run.toolsets.values() for tool in tools}
    return ", ".join(map(words.visible, names))


def _parameters(run: RunRecord) -> str:
    params = run.turns[0].request.params if run.turns else {}
    return ", ".join(f"{n}={words.as_text(value, enough=80)}" for n, value in params.items())


def _difference(part: str, texts: Sequence[str | None]) -> Difference:
    return Difference(part, _status(texts), tuple(texts))


def _group(turns: Sequence[str], rows: Sequence[Difference]) -> Group:
    status = _status([turn or None for turn in turns], compared=False)
    if status == "same" and any(row.status != "same" for row in rows):
        status = "changed"
    return Group(tuple(turns), status, tuple(rows))


def _status(values: Sequence[str | None], *, compared: bool = True) -> str:
    missing = [value is None for value in values]
    if any(missing):
        there = [letter for letter, gone in zip(LETTERS, missing, strict=False) if not gone]
        return f"only in {', '.join(there)}"
    return "changed" if compared and len(set(values)) > 1 else "same"


# Alignment


def align(sequences: Sequence[Sequence[Item[T]]]) -> list[tuple[Item[T] | None, ...]]:
    """Rows with one item of each sequence, or None: what is alike stands beside each other."""
    rows: list[tuple[Item[T] | None, ...]] = [(item,) for item in sequences[0]]
    for width, sequence in enumerate(sequences[1:], 1):
        firsts = [next(item for item in row if item is not None) for row in rows]
        merged: list[tuple[Item[T] | None, ...]] = []
        at, to = 0, 0
        for i, j in [*_pairs(firsts, sequence), (len(rows), len(sequence))]:
            merged += [(*row, None) for row in rows[at:i]]
            merged += [(*(None,) * width, item) for item in sequence[to:j]]
            if i < len(rows):
                merged.append((*rows[i], sequence[j]))
            at, to = i + 1, j + 1
        rows = merged
    return rows


def _pairs(a: Sequence[Item[T]], b: Sequence[Item[T]]) -> list[tuple[int, int]]:
    """The pairs of places with the greatest likeness in all, in order."""
    best = [[0.0] * (len(b) + 1) for _ in range(len(a) + 1)]
    likes = [[_likeness(one, other) for other in b] for one in a]
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            paired = likes[i][j] and best[i + 1][j + 1] + likes[i][j]
            best[i][j] = max(paired, best[i + 1][j], best[i][j + 1])
    pairs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        if likes[i][j] and best[i][j] == best[i + 1][j + 1] + likes[i][j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


# Texts by word


def pieces(
    before: str, after: str, patterns: Sequence[re.Pattern[str]] = (_TOKEN, _SENTENCE)
) -> Pieces:
    """What two texts have in common and what not, by word.

    Where that would be slow, sentences are compared first, and words in those that differ.
    """
    before, after = before[:_MOST_CHARS], after[:_MOST_CHARS]
    for pattern in patterns:
        a, b = pattern.findall(before), pattern.findall(after)
        counts = Counter(b)
        if sum(counts[token] for token in a) > _MOST_EFFORT:
            continue
        found: Pieces = []
        for op, i, k, j, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            old, new = "".join(a[i:k]), "".join(b[j:m])
            if op == "replace" and pattern is _SENTENCE:
                found += pieces(old, new, (_TOKEN,))
            else:
                found += [("=", old)] if op == "equal" else [("-", old), ("+", new)]
        return [piece for piece in found if piece[1]]
    return [("-", before), ("+", after)]


def _shortened(found: Pieces) -> Iterator[tuple[str, str]]:
    """Of long equal stretches the ends; of the whole as much as is shown."""
    left = _SHOWN_CHARS
    for op, text in found:
        if op == "=" and len(text) > 3 * _AROUND_CHARS:
            n = len(text) - 2 * _AROUND_CHARS
            text = f"{text[:_AROUND_CHARS]} … {n:,} equal characters … {text[-_AROUND_CHARS:]}"
        yield op, text[:left]
        left -= len(text)
        if left <= 0:
            yield "=", " … the rest is not shown"
            return


# How it looks


def compare_node(records: Sequence[RunRecord]) -> Node:
    """The comparison as a picture: totals, how the runs begin, then turn by turn."""
    groups = differences(records)
    counts = Counter(group.status for group in groups if group.turns)
    said = ", ".join(f"{n} {status}" for status, n in counts.items()) or "none"
    facts = [dict(zip(("", *LETTERS), row, strict=False)) for row in totals(records)]
    return h(
        "div",
        ROOT,
        h("div", "nba-head", h("strong", "nba-phase", "Comparison"), f"turns: {said}"),
        h("div", "nba-body", *(table_of(facts) or ())),
        *_group_nodes(groups),
        role="group",
        aria_label="comparison of runs",
        data_run=" ".join(run.id for run in records),
    )


def totals(records: Sequence[RunRecord]) -> list[tuple[str, ...]]:
    """A tuple for each fact: its name, then its value in each run."""
    facts = [
        {
            "run": run.id[:8],
            "name": words.one_line(words.visible(run.name or ""), 40),
            "model": words.visible(run.model),
            "ended": run.stop_reason or run.phase,
            "turns": f"{len(run.turns):,}",
            "calls": f"{sum(len(turn.tool_runs) for turn in run.turns):,}",
            "tokens": f"{run.usage.total_tokens:,}",
            "cost": "" if run.cost_usd is None else words.money(run.cost_usd),
            "time": words.seconds(run.duration_ms),
        }
        for run in records
    ]
    return [(name, *(it[name] for it in facts)) for name in facts[0] if any(f[name] for f in facts)]


def _group_nodes(groups: Sequence[Group]) -> Iterator[Node]:
    """What is equal is one line; of what is not, as much as a page takes."""
    left = _MOST_SHOWN
    for place, group in enumerate(groups):
        title, status = h("code", "nba-id", _title(group)), h("span", "nba-num", group.status)
        if group.status == "same":
            yield h("div", "nba-body", title, " ", status)
        elif left > 0:
            rows = [node for row in group.rows for node in _row_nodes(row)]
            left -= sum(len(text_of(node)) for node in rows)
            changed = dict.fromkeys(row.part for row in group.rows if row.status != "same")
            summary = words.one_line(", ".join(changed) or "all", 90)
            said = h("summary", "", title, f" {summary} ", status)
            yield h("details", "nba-turn", said, h("div", "nba-body", *rows), open="")
        else:
            rest = f"… {len(groups) - place} more; the comparison's frame() has all"
            yield h("div", "nba-body", rest)
            return


def _title(group: Group) -> str:
    return " | ".join(turn or "–" for turn in group.turns) or "Begin"


def _row_nodes(row: Difference) -> Iterator[Node]:
    yield h("div", "nba-lab", f"{row.part} · {row.status}")
    there = [(letter, t) for letter, t in zip(LETTERS, row.texts, strict=False) if t is not None]
    (first, base), *others = there
    for letter, text in others if row.status != "same" and others else [(first, base)]:
        if len(others) > 1 and letter != first:
            yield h("div", "nba-note", f"{first} → {letter}")
        yield h("pre", "nba-notes", *_marked(pieces(base, text)))


def _marked(found: Pieces) -> Iterator[Node]:
    tags = {"-": "del", "+": "ins"}
    for op, text in _shortened(found):
        yield text if op == "=" else h(tags[op], f"nba-{tags[op]}", text)


def compare_text(records: Sequence[RunRecord]) -> str:
    """The comparison as plain text: `[-only before-]{+only after+}`."""
    columns = [("", *LETTERS[: len(records)]), *totals(records)]
    lines = [f"{row[0]:<7} {' | '.join(row[1:])}" for row in columns]
    for group in differences(records):
        lines += ["", f"{_title(group)}  {group.status}"]
        lines += [f"  {row.part}: {_as_line(row)}" for row in group.rows if row.status != "same"]
    return "\n".join(lines)


def _as_line(row: Difference) -> str:
    base, *others = [text for text in row.texts if text is not None]
    marks = {"=": "{}", "-": "[-{}-]", "+": "{{+{}+}}"}
    found = [
        "".join(marks[op].format(text) for op, text in _shortened(pieces(base, other)))
        for other in others
    ]
    return " / ".join(found) or f"{row.status}: {words.one_line(base, 200)}"
