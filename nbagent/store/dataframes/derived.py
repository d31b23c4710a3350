"""Columns that follow from other cells: computed once for many rows, instead of read for each.

Their SQL in `columns` is for filters; a test compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.canonical import dump_json
from nbagent.store.columns import (
    DEPTH,
    NEW_PROMPT_TOKENS,
    PROMPT_BEFORE,
    PROVIDER,
    RESENT_TOKENS,
    RESULT_TOKENS_EST,
    TOOLSET_TOKENS_EST,
    TURN_ID,
    Column,
)
from nbagent.store.connections import Connection
from nbagent.store.rows import cell_text

_ANCESTORS = """
    WITH RECURSIVE line(n, run_id, parent_id) AS (
        SELECT r.n, r.run_id, r.parent_id FROM json_each(?) i CROSS JOIN runs r ON r.n = i.value
        -- UNION: an ancestor of several runs is visited once.
        UNION
        SELECT p.n, p.run_id, p.parent_id
        FROM line JOIN runs p ON p.run_id = line.parent_id AND p.n < line.n
    ) SELECT run_id, parent_id FROM line ORDER BY n"""


@dataclass(frozen=True, slots=True)
class RowCells:
    """Cells that were read from one store, by column, with the number of each row's run."""

    cells: Mapping[str, Sequence[Any]]
    numbers: Sequence[int]
    connection: Connection


@dataclass(frozen=True, slots=True)
class Derived:
    """A derived column: the columns that it follows from, and its computation."""

    sources: tuple[str, ...]
    compute: Callable[[RowCells], list[Any]]


def hash_texts(cells: Sequence[Any], connection: Connection) -> list[Any]:
    """Hashes of cells that hold their numbers."""
    values = set(cells)
    numbers = [value for value in values if isinstance(value, int)]
    sql = "SELECT h.n, h.sha FROM json_each(?) i CROSS JOIN hashes h ON h.n = i.value"
    hashes = dict(connection.execute(sql, (dump_json(numbers).decode(),)).fetchall())
    texts = {value: hashes.get(value, value) for value in values}
    return [*map(texts.__getitem__, cells)]


def _by_value(cells: Sequence[Any], convert: Callable[[Any], Any]) -> list[Any]:
    """Converted cells; each different cell is converted once."""
    converted = {value: convert(value) for value in set(cells)}
    return [*map(converted.__getitem__, cells)]


def _turn_ids(rows: RowCells) -> list[Any]:
    def turn_id(turn: int | None) -> str | None:
        return f"C{turn:02d}" if turn and turn > 0 else None

    return _by_value(rows.cells["turn"], turn_id)


def _providers(rows: RowCells) -> list[Any]:
    def provider(model: str | bytes | None) -> str | None:
        return None if model is None else str(cell_text(model)).partition(":")[0]

    return _by_value(rows.cells["model"], provider)


def _result_tokens(rows: RowCells) -> list[Any]:
    return _by_value(
        rows.cells["result_chars"], lambda chars: None if chars is None else (chars + 3) // 4
    )


def _toolset_tokens(rows: RowCells) -> list[Any]:
    sql = f"SELECT {TOOLSET_TOKENS_EST.sql} FROM (SELECT ? AS toolset_sha) x"

    def tokens(cell: Any) -> int | None:
        return rows.connection.execute(sql, (cell,)).fetchone()[0]

    return _by_value(rows.cells["toolset_sha"], tokens)


def _resent_tokens(rows: RowCells) -> list[Any]:
    cells = zip(rows.cells["prompt_tokens"], _prompts_before(rows), strict=True)
    return [None if prompt is None else min(prompt, before) for prompt, before in cells]


def _new_tokens(rows: RowCells) -> list[Any]:
    cells = zip(rows.cells["prompt_tokens"], rows.cells["resent_tokens"], strict=True)
    return [None if prompt is None else prompt - resent for prompt, resent in cells]


def _prompts_before(rows: RowCells) -> list[int]:
    """Prompt tokens of the request before each row's: of the row before, if that is its turn.

    A filter may have left that turn out, and the first turn of a run may continue another run.
    """
    before: list[int] = []
    looked_up: list[tuple[int, int, int]] = []
    last_run = last_turn = last_prompt = None
    turns, prompts = rows.cells["turn"], rows.cells["prompt_tokens"]
    for run, turn, prompt in zip(rows.numbers, turns, prompts, strict=True):
        follows = run == last_run and turn - 1 == last_turn
        if not follows or last_prompt is None:
            looked_up.append((len(before), run, turn))
            last_prompt = None
        before.append(last_prompt or 0)
        last_run, last_turn = run, turn
        last_prompt = last_prompt if prompt is None else prompt
    for i, tokens in _stored_prompts_before(looked_up, rows.connection):
        before[i] = tokens
    return before


def _stored_prompts_before(
    places: Sequence[tuple[int, int, int]], connection: Connection
) -> Sequence[tuple[int, int]]:
    """Look up the prompt tokens before turns, given as (index, run, turn)."""
    # CROSS JOIN fixes the order: look up each run, instead of scanning all runs.
    sql = (
        f"SELECT x.i, {PROMPT_BEFORE} FROM (SELECT json_extract(value, '$[0]') AS i, "
        "json_extract(value, '$[1]') AS run, json_extract(value, '$[2]') AS turn "
        "FROM json_each(?)) x CROSS JOIN runs r ON r.n = x.run"
    )
    return connection.execute(sql, (dump_json(places).decode(),)).fetchall()


def _depths(rows: RowCells) -> list[Any]:
    """Number of the ancestors of each run; each ancestor is counted once for all its children."""
    numbers = [
        number
        for number, parent in zip(rows.numbers, rows.cells["parent_id"], strict=True)
        if parent is not None
    ]
    depths: dict[Any, int] = {}
    for run_id, parent_id in rows.connection.execute(_ANCESTORS, (dump_json(numbers).decode(),)):
        depths[run_id] = 0 if parent_id is None else depths.get(parent_id, 0) + 1
    return [depths.get(run_id, 0) for run_id in rows.cells["run_id"]]


DERIVED: dict[Column, Derived] = {
    TURN_ID: Derived(("turn",), _turn_ids),
    PROVIDER: Derived(("model",), _providers),
    RESULT_TOKENS_EST: Derived(("result_chars",), _result_tokens),
    TOOLSET_TOKENS_EST: Derived(("toolset_sha",), _toolset_tokens),
    RESENT_TOKENS: Derived(("turn", "prompt_tokens"), _resent_tokens),
    NEW_PROMPT_TOKENS: Derived(("prompt_tokens",), _new_tokens),
    DEPTH: Derived(("run_id", "parent_id"), _depths),
}
"""Derived columns of all frames; one that follows from another is behind it in its frame."""
