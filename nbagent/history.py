"""The history of runs as DataFrames: the doors to `archive.frames` over this home's store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbagent.archive import frames
from nbagent.session.stores import current_store

if TYPE_CHECKING:
    from pandas import DataFrame


def runs(**filters: Any) -> DataFrame:
    """One row a run, newest last. Join on `run_id`.

    Args:
        filters: a column's name and a value or a list of values; also `since`, `until`, `limit`.

    Raises:
        UsageError: an unknown filter; the message names the nearest one.
    """
    return frames.runs(current_store(), **filters)


def turns(**filters: Any) -> DataFrame:
    """One row a turn. Join on `run_id`, `turn_id`. `texts=True` adds what the model wrote."""
    return frames.turns(current_store(), **filters)


def tool_runs(**filters: Any) -> DataFrame:
    """One row a tool call, with its arguments, result and times. Join on `run_id`, `turn_id`."""
    return frames.tool_runs(current_store(), **filters)


def messages(**filters: Any) -> DataFrame:
    """One row a message, in the order of the conversation. Join on `run_id`, `turn_id`."""
    return frames.messages(current_store(), **filters)
