"""The history of runs as DataFrames: from the current store, others, or a saved notebook.

`store.dataframes` builds the frames. Times are UTC in every frame. `since` and `until` take a
datetime, a text (UTC if it names no zone), `"today"` (its midnight in this machine's zone), or an
age: `"7d"`, `"12h"`, `"30m"`, `"2w"`.
"""

from __future__ import annotations

import inspect
import os
import reprlib
import warnings
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from nbagent.contracts.errors import NbagentError, UsageError, describe_error
from nbagent.contracts.nearest import nearest_or_all
from nbagent.contracts.records import RunRecord
from nbagent.files.notebook_file import ODD, saved_in_outputs
from nbagent.run import Run
from nbagent.session.models import list_models
from nbagent.session.stores import own_stores_for, store_at, store_to_read
from nbagent.settings.options import RunOptions
from nbagent.settings.sources import to_path
from nbagent.store import dataframes
from nbagent.store.columns import CORRUPT_ROW, Dtype
from nbagent.store.frame_queries import FRAMES
from nbagent.store.rows import all_from_notebook_json, saved_run_ids
from nbagent.store.saved_batches import is_batch
from nbagent.store.writer import Store

if TYPE_CHECKING:
    from pandas import DataFrame

    from nbagent.lab.results import BatchResults

_DAMAGED = "the record of a run is damaged"
_MAX_NAMED = 5
"""Missing runs that a warning names."""
_MODEL_DTYPES: dict[str, Dtype] = {
    **dict.fromkeys(("id", "capabilities", "reason"), "string"),
    "provider": "category",
    "context_length": "Int64",
    "reachable": "boolean",
}


Read = TypeVar("Read", bound="Callable[..., DataFrame]")


def _by_name(read: Read) -> Read:
    """Refuse filters without a name, which Python would refuse by the name of a class."""

    @wraps(read)
    def checked(history: History, *values: object, **filters: Any) -> DataFrame:
        if values:
            shown, name = reprlib.repr(values[0]), getattr(read, "__name__", "runs")
            raise UsageError(
                f"{name}({shown}): a filter has a name; write {name}(run={shown}), or "
                "session=, model=, …"
            )
        return read(history, **filters)

    return cast("Read", checked)


class History:
    """Frames of one store; `store=` selects one or several others, as folders or files."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = store

    @_by_name
    def runs(self, **filters: Any) -> DataFrame:
        """Return one row per run, newest last. Join on `run_id`.

        Args:
            filters: a column's name and a value or a list of values; also `run` (an id, the start
                of one, a name, `"last"`), `since`, `until`, `limit` (the newest n), `store` (a
                folder like `.nbagent`, or several). A column of numbers or times takes a range, a
                tuple with both ends included and None for an open end: `cost_usd=(0.01, None)`,
                `started_at=("7d", "today")`; for two values write a list. `text="refund"` finds
                texts that contain it, in any case of ASCII letters; all other texts must be equal.
                A notebook is found by its name without folder or ending, too:
                `notebook="penguins"`. Short names: `id`, `cost`, `tokens`, `duration`, `started`,
                `ended`, `state`, `status`, `tool`.

        Raises:
            UsageError: an unknown filter, or a value that no row has; it suggests the nearest.
        """
        return self._read("runs", filters)

    @_by_name
    def turns(self, **filters: Any) -> DataFrame:
        """Return one row per turn. Join on `run_id`, `turn_id`. Filters as in `runs`."""
        return self._read("turns", filters)

    @_by_name
    def tool_runs(self, **filters: Any) -> DataFrame:
        """Return one row per tool call: its arguments, result, times.

        Filters as in `runs`; `text` finds calls whose arguments or result, as JSON, contain it.
        """
        return self._read("tool_runs", filters)

    @_by_name
    def transitions(self, **filters: Any) -> DataFrame:
        """Return one row per move of a workflow from step to step, also for refused moves.

        If the process ended before the result was stored, `accepted` is missing: the document
        shows whether the move was made, and so does the first notice of the run that continues.
        Join on `run_id`, `turn_id`, `tool_call_id`. Filters as in `runs`.
        """
        return self._read("transitions", filters)

    @_by_name
    def messages(self, **filters: Any) -> DataFrame:
        """Return one row per message, in order; the system prompt has position -1.

        Filters as in `runs`; `messages(run=…, whole=True)` includes the runs that it continues.
        """
        return self._read("messages", filters)

    def scores(self, **filters: Any) -> DataFrame:
        """Return one row per score that a scorer, a judge or a person gave a run.

        `value` has numbers, and 1 or 0 for true and false; `label` has texts; if a scorer failed,
        both are missing, and `error` has the reason. Join on `run_id`. Filters as in `runs`.
        """
        return self._read("scores", filters)

    def prompts(self, **filters: Any) -> DataFrame:
        """Return one row per different template, system prompt and tool, with the time of its use.

        Join `sha` on `template_sha`, `system_sha` or, for `kind="tool"`, on `tool_sha`.
        """
        return self._read("prompts", filters)

    def _read(self, name: str, filters: dict[str, Any]) -> DataFrame:
        source: Any = filters.pop("store", None)
        if source is None:
            source = self._store or store_to_read()
        is_list = isinstance(source, list | tuple | set)
        source_list = cast("list[Any]", source) if is_list else [source]
        # A store that was named twice is read once.
        stores = dict.fromkeys(
            item if isinstance(item, Store) else store_at(item) for item in source_list
        )
        return dataframes.read_frame([*stores], name, filters)


def _document_columns() -> None:
    """Add the columns of each frame to the documentation of its method, as they are declared."""
    for name, frame in FRAMES.items():
        method = getattr(History, name)
        columns = (
            f"    {column.name} ({column.dtype}): {column.doc}" for column in frame.by_name.values()
        )
        lines = (inspect.cleandoc(method.__doc__ or ""), "", "Columns:", *columns)
        method.__doc__ = "\n".join(lines)


_document_columns()
_history = History()
runs, turns, tool_runs = _history.runs, _history.turns, _history.tool_runs
transitions, messages, prompts = _history.transitions, _history.messages, _history.prompts
scores = _history.scores


class SavedNotebook(History):
    """Runs and batches of a saved notebook, read-only, and their frames."""

    def __init__(
        self,
        path: Path,
        records: Collection[RunRecord],
        batches: Mapping[str, BatchResults] | None = None,
    ) -> None:
        store = self._saved = Store.memory()
        # `session.stores` does not know this store, so nothing else closes it.
        weakref.finalize(store, store.database.close)
        self.damaged = set[str]()
        """Ids of runs that were left out, since their records are damaged."""
        for record in sorted(records, key=lambda record: record.started_at):
            try:
                store.add(record)
            except CORRUPT_ROW:  # numbers and names that no table takes
                self.damaged.add(record.id)
        super().__init__(store)
        self.path = path
        self.batches: dict[str, BatchResults] = {**(batches or {})}
        """Its batches by their names: `frame()`, `compare()`, `diff()`, `check()`."""

    def batch(self, name: str | None = None) -> BatchResults:
        """Return a batch by its name, which may be left out if there is one.

        Raises:
            UsageError: it has no such batch, or several.
        """
        if name is None and len(self.batches) == 1:
            return next(iter(self.batches.values()))
        if name is not None and name in self.batches:
            return self.batches[name]
        problem = "say which batch" if name is None else f"it has no batch {name!r}"
        hint = nearest_or_all(name, self.batches, "its batches are") or "; it has none"
        raise UsageError(f"{self.path.name}: {problem}{hint}")

    def open_run(self, ref: str) -> Run:
        """Open a run: `"last"`, its name, or a unique start of its id."""
        return _SavedRun(self._saved.load(self._saved.find(ref)), self._saved)

    def __repr__(self) -> str:
        n = self._saved.counts("runs")["runs"]
        batches = f", batches: {', '.join(self.batches)}" if self.batches else ""
        hint = "" if n or batches else "; save the notebook first: its runs are written with it"
        return f"<SavedNotebook {self.path.name}, runs: {n}{batches}{hint}>"


class _SavedRun(Run):
    """Run of a saved notebook. It cannot be continued or deleted: its author may be anybody."""

    def _request(self, kind: object, options: object, **what: object) -> NoReturn:
        raise UsageError(
            f"run {self.id[:8]} was read from a notebook, whose model, tools and approvals may be "
            "anybody's; continue with your own: agent.run('…', messages=run.messages)"
        )

    def forget(self, *, children: bool = False) -> NoReturn:
        raise UsageError(
            f"run {self.id[:8]} was read from a notebook; clear the output of its cell there"
        )


def read_notebook(
    path: str | os.PathLike[str], *, store: str | os.PathLike[str] | None = None
) -> SavedNotebook:
    """Read the runs and batches saved in a notebook: `read_notebook("x.ipynb").turns()`.

    `read_notebook("x.ipynb").batch()` has the cases, scores and comparisons of its batch.

    A file that was saved in the middle of a run names the run; its record is then read from the
    person's own store.

    Args:
        path: the notebook.
        store: another store for such runs, as a folder or file.

    Raises:
        UsageError: it cannot be read, is not a notebook, or holds only broken records.
    """
    file = to_path(path, "path")
    try:
        outputs, n_odd = saved_in_outputs(file)
        documents = [document for saved in outputs for document in _documents(saved)]
        batch_documents = [document for document in documents if is_batch(document)]
        records, ids, problems = _decode_outputs(
            [[document] for document in documents if not is_batch(document)]
        )
        problems += [ODD] if n_odd else []
        is_partial = bool(ids - {*records}) or bool(batch_documents)
        stores = [store_at(store)] if store else own_stores_for(file) if is_partial else []
        records |= _stored_records(ids - {*records}, stores)
        batches, unread = _batches(batch_documents, stores)
        notebook = SavedNotebook(file, records.values(), batches)
        problems += [_DAMAGED] if notebook.damaged else []
        problems += unread
        if problems and notebook.damaged == {*records} and not batches:
            raise ValueError(problems[0])
    except (OSError, *CORRUPT_ROW) as error:
        reason = describe_error(error).partition("\n")[0]
        raise UsageError(f"{file} is not a notebook with valid records ({reason})") from None
    has_any = bool(records) or bool(batches)
    for text in _warnings(file, has_any, sorted(ids - {*records}), stores, problems):
        warnings.warn(text, stacklevel=2)
    return notebook


def _documents(saved: Any) -> list[Any]:
    """Return the documents of one output: it has one, or a list of them."""
    return cast("list[Any]", saved) if isinstance(saved, list) else [saved]


def _batches(
    documents: Sequence[Any], stores: Sequence[Store]
) -> tuple[dict[str, BatchResults], list[str]]:
    """Decode the batches, and say which cannot be read."""
    if not documents:
        return {}, []
    # Late: most notebooks hold no batch.
    from nbagent.lab.saved_notebook import notebook_batches

    return notebook_batches(documents, stores)


def _decode_outputs(outputs: Sequence[Any]) -> tuple[dict[str, RunRecord], set[str], list[str]]:
    """Decode what outputs hold: the records by id, the ids of all runs, and what is wrong."""
    records: dict[str, RunRecord] = {}
    ids, problems = set[str](), list[str]()
    for saved in outputs:
        try:
            # A run that was displayed twice is saved twice.
            records |= {record.id: record for record in all_from_notebook_json(saved)}
            ids |= {*saved_run_ids(saved)}
        except CORRUPT_ROW as error:
            is_plain = type(error) is ValueError
            problems.append(str(error) if is_plain else _DAMAGED)
    return records, ids, problems


def _warnings(
    file: Path,
    has_any: bool,
    missing: Sequence[str],
    stores: Sequence[Store],
    problems: Sequence[str],
) -> list[str]:
    """Say what could not be read, and what to do."""
    texts = list[str]()
    if problems:
        texts.append(f"{file.name}: a part was left out: {'; '.join(dict.fromkeys(problems))}")
    if missing:
        names = ", ".join(run_id[:8] for run_id in missing[:_MAX_NAMED])
        more = f" and {len(missing) - _MAX_NAMED:,} more" if len(missing) > _MAX_NAMED else ""
        places = ", ".join(str(store.path or "memory") for store in stores)
        texts.append(
            f"{file.name} names without a record: run {names}{more}; not in {places}; if the run "
            "is in another store: read_notebook(…, store=FOLDER)"
        )
    elif not has_any:
        texts.append(
            f"{file.name} has no saved runs: save the notebook first, its runs are written "
            "with it; nbagent.runs() reads those of the store"
        )
    return texts


def _stored_records(run_ids: Collection[str], stores: Sequence[Store]) -> dict[str, RunRecord]:
    """Load the runs that one of the stores has, by id."""
    records: dict[str, RunRecord] = {}
    for run_id in run_ids:
        for store in stores:
            if run_id not in records:
                with suppress(NbagentError):  # it was deleted, or it is of another person
                    records[run_id] = store.load(run_id)
    return records


def models(provider: str | None = None, **options: Any) -> DataFrame:
    """Return one row per model: `id`, `context_length`, `capabilities`, `reachable`; if not, the
    `reason`.

    A provider that lists no model has a row without `id`.

    Args:
        provider: lists all models of this provider, with its key. Default: what is reachable now:
            servers on this machine that answer, and the default model of each provider, reachable
            if its key is in the environment. No other machine is asked then.
        options: options for its server: `base_url`, `key_variable`, `headers`, `timeout_s`…

    Raises:
        UsageError: there is no such provider or option, or no key for it.
        ModelError: it does not answer.
    """
    if options and provider is None:
        raise UsageError("options need a provider: nbagent.models('openai-compatible', base_url=…)")
    rows = [
        {
            "id": model and f"{listing.provider}:{model.id}",
            "provider": listing.provider,
            "context_length": model and model.context_length,
            "capabilities": ",".join(model.capabilities) if model else "",
            "reachable": listing.reachable,
            "reason": listing.why if not listing.reachable or not model else "",
        }
        for listing in list_models(provider, RunOptions(**options))
        for model in listing.models or (None,)
    ]
    frame: Any = dataframes.frame_of(rows)
    # Fixed types: pandas would choose them by the rows, other ones for a column without values.
    return frame.astype(_MODEL_DTYPES)
