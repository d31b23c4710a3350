"""The history of runs, and the models for new ones, as DataFrames: doors to `archive.frames`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbagent.archive import frames
from nbagent.contracts.errors import UsageError
from nbagent.session.listed import listings
from nbagent.session.stores import current_store
from nbagent.settings import RunOptions

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


def models(provider: str | None = None, **options: Any) -> DataFrame:
    """One row a model: `id`, `context_length`, `capabilities`, `reachable`; if not, the `reason`.

    A provider that names no model has a row without `id`.

    Args:
        provider: asked for all of its models, with its key. Without one, what is reachable now:
            servers on this machine that answer, and the usual model of each provider, reachable
            where its key is in the environment. No other machine is asked then.
        options: how its server is asked: `base_url`, `key_variable`, `headers`, `timeout_s`…

    Raises:
        UsageError: there is no such provider or option, or no key for it.
        ModelError: it does not answer.
    """
    if options and provider is None:
        raise UsageError("options need a provider: nbagent.models('openai-compatible', base_url=…)")
    return frames.models(
        (found.provider, model, found.reachable, found.why)
        for found in listings(provider, RunOptions(**options))
        for model in found.models or (None,)
    )
