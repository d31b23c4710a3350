"""The run that was started last in this process by the person: what `last` means here."""

from __future__ import annotations

from collections.abc import Collection

from nbagent.archive.store import Store
from nbagent.contracts.errors import UsageError


class _Last:
    run_id = ""
    """Empty when it was forgotten, or when there is none yet."""
    store: Store | None = None


_last = _Last()


def note_last(run_id: str, store: Store) -> None:
    """This run was started."""
    _last.run_id, _last.store = run_id, store


def last_of(store: Store) -> str | None:
    """The id of the last run, when it is in this store; None when there was none.

    Raises:
        UsageError: it was forgotten, and `last` is no other run until there is a new one.
    """
    if _last.store is not store:
        return None
    if not _last.run_id:
        raise UsageError(
            "the last run was forgotten; name the run that you mean (%agent runs or nbagent.runs() "
            "lists them), or begin anew"
        )
    return _last.run_id


def forget_last(run_ids: Collection[str], store: Store) -> None:
    """These runs were deleted."""
    if _last.run_id in run_ids:
        _last.run_id, _last.store = "", store


def begin_anew() -> None:
    """There was no run yet: a new front."""
    _last.run_id, _last.store = "", None
