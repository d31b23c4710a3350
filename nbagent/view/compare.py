"""Comparison of two or more runs: turns aligned by content, texts compared word by word.

Owns the alignment, the differences as values (`differences`), their tree and their text. The caller
chooses the runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Generic, NamedTuple, TypeVar, cast

from nbagent.contracts.canonical import canonical_json, json_object
from nbagent.contracts.errors import ErrorCode, ErrorInfo
from nbagent.contracts.messages import parse_arguments
from nbagent.contracts.records import EngineTurn, RunRecord, ToolResult, ToolRun
from nbagent.view import text_format
from nbagent.view.node import Node, h, text_of
from nbagent.view.printers import plain_text
from nbagent.view.result_tables import table_of
from nbagent.view.run_picture import ROOT_CLASS

LETTERS = "ABCDEFGH"
"""Names of the compared runs; a comparison takes at most this many."""
_MAX_TURNS = 300
"""Compared turns of each run. The alignment is quadratic in it."""
_MAX_TEXT_CHARS = 60_000
"""Compared characters of a text."""
_MAX_SHOWN_CHARS = 6_000
"""Shown characters of a difference."""
_MAX_PICTURE_CHARS = 120_000
"""Characters of all differences in one picture."""
_CONTEXT_CHARS = 160
"""Shown characters of equal text on either side of a difference."""
_MAX_EQUAL_PAIRS = 1_000_000
"""Pairs of equal words. `SequenceMatcher` is slow with them: this number takes 0.2 s."""
_MAX_TOKENIZED_BYTES = 4_000
"""Bytes of a turn or a call from which its words are taken for the alignment."""
_SAME = "nba-same"
"""Class of equal parts; a text leaves them out."""
_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"(?:\d+(?:[.,]\d+)*|\w+)\s*|[^\w\s]\s*|\s+")
"""A number is one word, with its points and commas."""
_SENTENCE = re.compile(r"[^\n.]*[\n.]\s*|[^\n.]+")
T = TypeVar("T")
DiffPieces = list[tuple[str, str]]
"""Pairs of `=`, `-` (only before) or `+` (only after), and a text."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One part of the runs, such as a prompt or a result, in all runs that have it."""

    part: str
    """`prompt`, `system prompt`, `answer`, `text`, `population`, `population: result`, …"""
    status: str
    """`same`, `changed`, or `only in A`."""
    texts: tuple[str | None, ...]
    """The text of each run; None if the run has no such part."""


@dataclass(frozen=True, slots=True)
class Group:
    """Parts that are compared together: the starts of the runs, or one turn of each."""

    turns: tuple[str, ...]
    """Turn id of each run, empty if the run has no such turn. No ids for the starts."""
    status: str
    rows: tuple[Difference, ...]


def differences(records: Sequence[RunRecord]) -> list[Group]:
    """Compare the starts of the runs, then turn by turn."""
    begin = [
        _difference("prompt", [text_format.sanitize_prose(run.prompt) for run in records]),
        _difference("system prompt", [_system(run) for run in records]),
        _difference("tools", [_tools(run) for run in records]),
        _difference("parameters", [_parameters(run) for run in records]),
    ]
    groups = [_group((), [row for row in begin if any(row.texts)])]
    turns = [list(map(_turn_item, _turns(run, records))) for run in records]
    return groups + [_turn_group(row) for row in align(turns)]


def _turns(run: RunRecord, records: Sequence[RunRecord]) -> list[EngineTurn]:
    """Turns of a run, after the turns that it shares with its parent if that is compared too."""
    others = [
        other for other in records if other is not run
    ]  # fewer on each call, so a cycle of parents ends
    parent = next((other for other in others if other.id == run.parent_id), None)
    shared: list[EngineTurn] = []
    if parent is not None:
        forked = run.forked_from.turn_id if run.forked_from else None
        changed_at = [turn.index for turn in parent.turns if turn.id == forked]
        first = next(iter([turn.index for turn in run.turns] + changed_at), 10**9)
        before = [turn for turn in _turns(parent, others) if turn.index < first]
        shared = [edited for turn in before if (edited := _turn_with_edits(turn, run)) is not None]
    return [*shared, *run.turns][:_MAX_TURNS]


def _turn_with_edits(turn: EngineTurn, run: RunRecord) -> EngineTurn | None:
    """Apply a fork's edits to a turn of its parent; None if the fork left the turn out."""
    if not run.copied or turn.response is None:
        return turn
    copied = zip(run.messages, run.copied, strict=False)
    copies = [message for message, turn_id in copied if turn_id == turn.id]
    results = {message.tool_call_id: message.text for message in copies if message.role == "tool"}
    answer = next(
        (message for message in copies if message.role == "assistant"), turn.response.message
    )
    # Turns before the first edit are shared with the parent; later ones exist only as copies.
    if not copies and turn.request.n_messages >= run.shared_messages:
        return None
    calls = {call.id for call in answer.tool_calls}
    tool_runs = [
        _with_result(tool_run, results)
        for tool_run in turn.tool_runs
        if tool_run.tool_call_id in calls
    ]
    response = turn.response.model_copy(update={"message": answer})
    return turn.model_copy(update={"response": response, "tool_runs": tuple(tool_runs)})


def _with_result(call: ToolRun, results: Mapping[str | None, str]) -> ToolRun:
    """Replace the result of a call by the one in its message, which a fork may have edited."""
    text = results.get(call.tool_call_id)
    if text is None or call.result is None or text == call.result.to_json().decode():
        return call
    body = parse_arguments(text) or {}
    failed = json_object(body.get("error")) or {}
    code = cast("ErrorCode", str(failed.get("code") or "E_TOOL_FAILED"))
    details = json_object(failed.get("details")) or {}
    error = ErrorInfo(code, str(failed.get("message")), details)
    result = ToolResult(ok=not failed, data=body.get("data"), error=error if failed else None)
    return call.model_copy(update={"result": result})


# Parts of a turn


class Item(NamedTuple, Generic[T]):
    """A turn or a call with the data by which it is aligned."""

    value: T
    kind: str
    """Items of different kinds are never aligned."""
    canonical: bytes
    tokens: frozenset[str]


def _turn_item(turn: EngineTurn) -> Item[EngineTurn]:
    kind = "calls" if turn.tool_runs else "answer"
    return _item(turn, kind, [turn.text, *map(_content, turn.tool_runs)])


def _call_item(call: ToolRun) -> Item[ToolRun]:
    return _item(call, call.tool_name, _content(call))


def _content(call: ToolRun) -> list[Any]:
    return [call.tool_name, call.args, call.result.body if call.result else None]


def _item(value: T, kind: str, content: list[Any]) -> Item[T]:
    canonical = canonical_json(content)
    tokens = _WORD.findall(canonical[:_MAX_TOKENIZED_BYTES].decode(errors="replace"))
    return Item(value, kind, canonical, frozenset(tokens))


def _similarity(a: Item[T], b: Item[T]) -> float:
    """Similarity of two items; 0 if they must not be aligned."""
    if a.kind != b.kind:
        return 0
    # Any pair is better than a gap, and an equal one than two similar ones (at most 3 each).
    return (
        1
        + 2 * len(a.tokens & b.tokens) / (len(a.tokens | b.tokens) or 1)
        + 4 * (a.canonical == b.canonical)
    )


def _turn_group(row: Sequence[Item[EngineTurn] | None]) -> Group:
    turns = [item and item.value for item in row]
    calls = [list(map(_call_item, turn.tool_runs)) if turn else [] for turn in turns]
    texts = [turn and text_format.sanitize_prose(turn.text) for turn in turns]
    rows = [_difference("text" if any(calls) else "answer", texts)] if any(texts) else []
    for calls_row in align(calls):
        runs = [item and item.value for item in calls_row]
        name = next(text_format.sanitize_value(run.tool_name) for run in runs if run)
        rows.append(_difference(name, [run and _value_text(run.args) for run in runs]))
        results = [run and _value_text(_content(run)[-1]) for run in runs]
        rows.append(_difference(f"{name}: result", results))
    errors = [
        turn and turn.error and text_format.sanitize_prose(turn.error.message) for turn in turns
    ]
    rows += [_difference("error", errors)] if any(errors) else []
    return _group([turn.id if turn else "" for turn in turns], rows)


def _value_text(value: Any) -> str:
    return text_format.value_text(value, enough=_MAX_TEXT_CHARS)


def _system(run: RunRecord) -> str:
    return "\n\n".join(map(text_format.sanitize_prose, run.system_prompts.values()))


def _tools(run: RunRecord) -> str:
    names = {tool.name: "" for tools in run.toolsets.values() for tool in tools}
    return ", ".join(map(text_format.sanitize_value, names))


def _parameters(run: RunRecord) -> str:
    params = run.turns[0].request.params if run.turns else {}
    return ", ".join(
        f"{n}={text_format.value_text(value, enough=80)}" for n, value in params.items()
    )


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
        letters = [
            letter for letter, is_missing in zip(LETTERS, missing, strict=False) if not is_missing
        ]
        return f"only in {', '.join(letters)}"
    return "changed" if compared and len(set(values)) > 1 else "same"


# Alignment


def align(sequences: Sequence[Sequence[Item[T]]]) -> list[tuple[Item[T] | None, ...]]:
    """Align similar items: each row has one item of each sequence, or None."""
    rows: list[tuple[Item[T] | None, ...]] = [(item,) for item in sequences[0]]
    for width, sequence in enumerate(sequences[1:], 1):
        firsts = [next(item for item in row if item is not None) for row in rows]
        merged: list[tuple[Item[T] | None, ...]] = []
        at, to = 0, 0
        for i, j in [*_best_pairs(firsts, sequence), (len(rows), len(sequence))]:
            merged += [(*row, None) for row in rows[at:i]]
            merged += [(*(None,) * width, item) for item in sequence[to:j]]
            if i < len(rows):
                merged.append((*rows[i], sequence[j]))
            at, to = i + 1, j + 1
        rows = merged
    return rows


def _best_pairs(a: Sequence[Item[T]], b: Sequence[Item[T]]) -> list[tuple[int, int]]:
    """Pairs of indexes with the greatest total similarity, in order.

    Dynamic programming over the suffixes of both sequences.
    """
    best = [[0.0] * (len(b) + 1) for _ in range(len(a) + 1)]
    similarity = [[_similarity(item, other) for other in b] for item in a]
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            paired = similarity[i][j] and best[i + 1][j + 1] + similarity[i][j]
            best[i][j] = max(paired, best[i + 1][j], best[i][j + 1])
    pairs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        # Floats may be compared exactly: it is the sum that was computed above.
        if similarity[i][j] and best[i][j] == best[i + 1][j + 1] + similarity[i][j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


# Texts by word


def text_diff(
    before: str, after: str, patterns: Sequence[re.Pattern[str]] = (_TOKEN, _SENTENCE)
) -> DiffPieces:
    """Compare two texts word by word.

    If that would be slow, compare sentences first, then the words of those that differ.
    """
    before, after = before[:_MAX_TEXT_CHARS], after[:_MAX_TEXT_CHARS]
    for pattern in patterns:
        a, b = pattern.findall(before), pattern.findall(after)
        counts = Counter(b)
        if sum(counts[token] for token in a) > _MAX_EQUAL_PAIRS:
            continue
        diff: DiffPieces = []
        # By default difflib ignores frequent words of long texts, so equal parts look different.
        for op, i, k, j, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            old, new = "".join(a[i:k]), "".join(b[j:m])
            if op == "replace" and pattern is _SENTENCE:
                diff += text_diff(old, new, (_TOKEN,))
            else:
                diff += [("=", old)] if op == "equal" else [("-", old), ("+", new)]
        return [piece for piece in diff if piece[1]]
    return [("-", before), ("+", after)]


def _abbreviated(diff: DiffPieces) -> Iterator[tuple[str, str]]:
    """Shorten long equal texts to their ends, and the whole to the shown characters."""
    left = _MAX_SHOWN_CHARS
    for op, text in diff:
        if op == "=" and len(text) > 3 * _CONTEXT_CHARS:
            n = len(text) - 2 * _CONTEXT_CHARS
            text = f"{text[:_CONTEXT_CHARS]} … {n:,} equal characters … {text[-_CONTEXT_CHARS:]}"
        yield op, text[:left]
        left -= len(text)
        if left <= 0:
            yield "=", " … the rest is not shown"
            return


# As nodes and text


def compare_node(records: Sequence[RunRecord]) -> Node:
    """Draw the comparison: totals, the starts of the runs, then turn by turn."""
    groups = differences(records)
    counts = Counter(group.status for group in groups if group.turns)
    turn_counts = ", ".join(f"{n} {status}" for status, n in counts.items()) or "none"
    facts = [dict(zip(("", *LETTERS), row, strict=False)) for row in totals(records)]
    return h(
        "div",
        ROOT_CLASS,
        h("div", "nba-head", h("strong", "nba-phase", "Comparison"), f"turns: {turn_counts}"),
        h("div", "nba-body", *(table_of(facts) or ())),
        *_group_nodes(groups),
        role="group",
        aria_label="comparison of runs",
        data_run=" ".join(run.id for run in records),
    )


def totals(records: Sequence[RunRecord]) -> list[tuple[str, ...]]:
    """Return a tuple per fact: its name, then its value in each run."""
    facts = [
        {
            "run": run.id[:8],
            "name": text_format.one_line(text_format.sanitize_value(run.name or ""), 40),
            "model": text_format.sanitize_value(run.model),
            "ended": run.stop_reason or run.phase,
            "turns": f"{len(run.turns):,}",
            "calls": f"{run.totals().tool_calls:,}",
            "tokens": f"{run.usage.total_tokens:,}",
            "cost": "" if run.cost_usd is None else text_format.format_cost(run.cost_usd),
            "time": text_format.format_duration(run.duration_ms),
        }
        for run in records
    ]
    return [
        (name, *(run_facts[name] for run_facts in facts))
        for name in facts[0]
        if any(f[name] for f in facts)
    ]


def _group_nodes(groups: Sequence[Group]) -> Iterator[Node]:
    """Draw equal groups as one line, and differences until the picture is full."""
    left = _MAX_PICTURE_CHARS
    for index, group in enumerate(groups):
        title, status = h("code", "nba-id", _title(group)), h("span", "nba-num", group.status)
        if group.status == "same":
            yield h("div", "nba-body", title, " ", status)
        elif left > 0:
            rows = [node for row in group.rows for node in _row_nodes(row)]
            left -= sum(len(text_of(node)) for node in rows)
            changed = dict.fromkeys(row.part for row in group.rows if row.status != "same")
            summary = text_format.one_line(", ".join(changed) or "all", 90)
            summary_node = h("summary", "", title, f" {summary} ", status)
            yield h("details", "nba-turn", summary_node, h("div", "nba-body", *rows), open="")
        else:
            rest = f"… {len(groups) - index} more; the comparison's frame() has all"
            yield h("div", "nba-body", rest)
            return


def _title(group: Group) -> str:
    return " | ".join(turn or "–" for turn in group.turns) or "Begin"


def _row_nodes(row: Difference) -> list[Node]:
    if row.status == "same":
        return [h("div", _SAME, *_text_nodes(row))]
    return [*_text_nodes(row)]


def _text_nodes(row: Difference) -> Iterator[Node]:
    yield h("div", "nba-lab", f"{row.part} · {row.status}")
    there = [(letter, t) for letter, t in zip(LETTERS, row.texts, strict=False) if t is not None]
    (first, base), *others = there
    for letter, text in others if row.status != "same" and others else [(first, base)]:
        if len(others) > 1 and letter != first:
            yield h("div", "nba-note", f"{first} → {letter}")
        yield h("pre", "nba-notes", *_diff_nodes(text_diff(base, text)))


def _diff_nodes(diff: DiffPieces) -> Iterator[Node]:
    tags = {"-": "del", "+": "ins"}
    for op, text in _abbreviated(diff):
        yield text if op == "=" else h(tags[op], f"nba-{tags[op]}", text)


def compare_text(records: Sequence[RunRecord]) -> str:
    """Print the comparison as plain text: `[-only before-]{+only after+}`."""
    return plain_text(compare_node(records), omitted={_SAME})
