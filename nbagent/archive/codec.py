"""Records as rows of the store and as JSON of a notebook, and back. Pure: no database.

Draft of the signatures; a row is a dictionary by the column names of `schema`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nbagent.archive.schema import Kind
from nbagent.contracts.chat import Message
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun

Row = dict[str, Any]


def encoded(columns: Mapping[str, Kind], values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The cells of a row, in the order of the columns, without secrets."""
    raise NotImplementedError


def decoded(columns: Mapping[str, Kind], row: Row) -> Row:
    """The values of the cells of a row (some columns or all): texts, moments, JSON values."""
    raise NotImplementedError


def run_row(record: RunRecord) -> Row:
    """A run without its turns and messages, with the sums over them once it has ended."""
    raise NotImplementedError


def turn_row(turn: EngineTurn, model: str, message_at: int | None) -> Row:
    """A turn without its message and its tool runs."""
    raise NotImplementedError


def tool_run_row(turn: EngineTurn, position: int, run: ToolRun, model: str) -> Row:
    """A tool run."""
    raise NotImplementedError


def message_row(message: Message, position: int, turn: EngineTurn | None) -> Row:
    """A message; the result of a tool run is not in it again."""
    raise NotImplementedError


def rows_of(record: RunRecord) -> dict[str, Sequence[Row]]:
    """All rows of a run, by table, without `n` and `run`."""
    raise NotImplementedError


def record_of(rows: Mapping[str, Sequence[Row]]) -> RunRecord:
    """The record whose rows these are."""
    raise NotImplementedError


def packed(record: RunRecord) -> dict[str, Any]:
    """The record as JSON for a saved notebook, each message once."""
    raise NotImplementedError


def unpacked(plain: Mapping[str, Any]) -> RunRecord:
    """The record that `packed` was given; ValueError when this is none."""
    raise NotImplementedError
