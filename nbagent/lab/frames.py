"""Tables of a batch: all cases, the cells of one score, and the estimate of a dry run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.messages import FINAL_ANSWER
from nbagent.contracts.model import Usage
from nbagent.contracts.nearest import nearest_name
from nbagent.contracts.records import ScoreRecord
from nbagent.lab.case_state import CaseState, current_scores, versions_of
from nbagent.lab.plan import Table, Variant
from nbagent.session.active_run import ActiveRun
from nbagent.session.typed_answer import OutputType
from nbagent.store import dataframes
from nbagent.store.batches import recorded_usd, scores_of
from nbagent.store.columns import Dtype
from nbagent.store.writer import Store
from nbagent.view.listing import Listing
from nbagent.view.text_format import format_cost

if TYPE_CHECKING:
    from pandas import DataFrame

_OF_RUN = ("ok", "stop_reason", "error", "text", "turns", "total_tokens")
_MAX_IDS = 30_000
"""SQLite takes 32,766 parameters in a statement; more runs are read by their batch."""
_BYTES_PER_TOKEN = 4
"""OpenAI's rule of thumb for English text: 4 characters."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """Plan of a variant's first request, before anything is sent."""

    variant: Variant
    active: ActiveRun
    first_request_bytes: int
    """Size of the request for the first row."""
    first_prompt_chars: int
    """Length of the prompt in that request."""
    unapproved_tools: tuple[str, ...]
    """Tools whose calls need an approval that nobody can give."""


def frame_of_batch(
    store: Store, table: Table, entries: Sequence[CaseState], versions: Mapping[str, int]
) -> DataFrame:
    """Build the frame of `Batch.frame`."""
    ids = [entry.run_id for entry in entries]
    runs: Any = _read_last_runs(store, "runs", entries).set_index("run_id").reindex(ids)
    columns: dict[str, Any] = {}
    for axis in entries[0].planned.variant.labels:
        columns[axis] = [entry.planned.variant.labels[axis] for entry in entries]
    columns["attempt"] = [entry.planned.case.attempt for entry in entries]
    columns["run_id"] = dataframes.array_of("string", [run_id or None for run_id in ids])
    columns |= {name: runs[name].array for name in _OF_RUN}
    # A case that could not start has no run that holds its error.
    why = [entry.why or None for entry in entries]
    columns["error"] = dataframes.array_of("string", why)
    columns["cost_usd"] = dataframes.array_of("Float64", [entry.cost_usd for entry in entries])
    columns["duration_ms"] = runs["duration_ms"].array
    columns |= _output_columns(store, entries, runs["text"].tolist())
    columns |= _score_columns(store, ids, versions)
    source: Any = table.data
    data = source.iloc[[entry.planned.row_index for entry in entries]].copy()
    data.columns = _column_names(table.columns, columns.keys())
    for name, cells in columns.items():
        data[name] = cells
    return data


def _column_names(own: Sequence[str], taken: Collection[str]) -> list[str]:
    """Return the names of the table's columns; a taken name gets the prefix `row_`."""
    used = {*own, *taken}
    names: list[str] = []
    for column in own:
        name = column
        while (name != column and name in used) or name in taken:
            name = f"row_{name}"
        names.append(name)
    return names


def _read_last_runs(store: Store, name: str, entries: Sequence[CaseState], **filters: Any) -> Any:
    """Read the rows of a frame for the last runs of the cases."""
    ids = [entry.run_id for entry in entries if entry.run_id]
    if len(ids) <= _MAX_IDS:
        return dataframes.read_frame([store], name, {"run_id": ids, **filters})
    batch = entries[0].planned.case.batch
    return dataframes.read_frame([store], name, {"batch": batch, **filters})


def _output_columns(
    store: Store, entries: Sequence[CaseState], texts: Sequence[Any]
) -> dict[str, Any]:
    """Return the fields of typed answers, by column."""
    kinds = [entry.planned.variant.request.options.output for entry in entries]
    if all(kind in (None, str) for kind in kinds):
        return {}
    calls: Any = _read_last_runs(store, "tool_runs", entries)
    calls = calls[(calls["tool_name"] == FINAL_ANSWER) & calls["ok"].fillna(False)]
    by_call = dict(zip(calls["run_id"].tolist(), calls["args"].tolist(), strict=True))
    outputs = {id(kind): OutputType(kind) for kind in kinds if kind not in (None, str)}
    answers: list[dict[str, Any]] = []
    for entry, kind, text in zip(entries, kinds, texts, strict=True):
        # Where a server cannot bind a schema, the answer is in the arguments of a final tool call.
        output, answer = outputs.get(id(kind)), by_call.get(entry.run_id, text)
        answers.append(_output_fields(output, answer) if output and entry.status == "ok" else {})
    names = dict.fromkeys(name for fields in answers for name in fields)
    made: Any = dataframes.frame_of(
        [{name: fields.get(name) for name in names} for fields in answers]
    )
    return {name: made[name].array for name in names}


def _output_fields(output: OutputType, text: Any) -> dict[str, Any]:
    try:
        rows = output.rows(output.read(text))
    except (NbagentError, TypeError):
        return {}  # the answer was made for an earlier type
    if len(rows) == 1:
        return {f"output_{name}": value for name, value in rows[0].items()}
    return {"output": rows}


def _score_columns(store: Store, ids: Sequence[str], versions: Mapping[str, int]) -> dict[str, Any]:
    """Return the counting scores, by column."""
    by_run = _scores_by_run(store, ids, versions)
    names = sorted({name for scores in by_run.values() for name in scores})
    return {
        f"score_{name}": _score_column([by_run.get(run_id, {}).get(name) for run_id in ids])
        for name in names
    }


def _scores_by_run(
    store: Store, ids: Sequence[str], versions: Mapping[str, int]
) -> dict[str, dict[str, ScoreRecord]]:
    records = scores_of(store, [run_id for run_id in ids if run_id])
    counts, by_run = versions_of(records, versions), dict[str, list[ScoreRecord]]()
    for score in records:
        by_run.setdefault(score.run_id, []).append(score)
    return {run_id: current_scores(scores, counts) for run_id, scores in by_run.items()}


def _score_column(scores: Sequence[ScoreRecord | None], *, bools: Dtype = "boolean") -> Any:
    values = [score.value if score else None for score in scores]
    kinds = {type(value) for value in values if value is not None}
    dtype: Dtype = "string" if str in kinds else bools if kinds == {bool} else "Float64"
    cells = [
        None if value is None else str(value) if dtype == "string" else value for value in values
    ]
    return dataframes.array_of(dtype, cells)


def cells_of_batch(
    store: Store,
    entries: Sequence[CaseState],
    score: str | None,
    axes: Sequence[str],
    versions: Mapping[str, int],
) -> DataFrame:
    """Build the frame of `Batch.cells`."""
    ids = [entry.run_id for entry in entries]
    by_run = _scores_by_run(store, ids, versions)
    known = sorted({name for scores in by_run.values() for name in scores})
    name = score or (known[0] if len(known) == 1 else None)
    if name is None or name not in known:
        there = f"the scores are {', '.join(known)}" if known else "score it first: batch.score(…)"
        near = nearest_name(score, known)
        there = f"did you mean {near!r}?" if near else there
        problem = f"{score!r} is no score of this batch" if score else "say which score"
        raise UsageError(f"{problem}; {there}")
    runs: Any = _read_last_runs(store, "runs", entries).set_index("run_id").reindex(ids)
    score_records = [by_run.get(run_id, {}).get(name) for run_id in ids]
    columns: dict[str, Any] = {
        "row_key": [entry.planned.case.row_key for entry in entries],
        **{axis: [entry.planned.variant.labels[axis] for entry in entries] for axis in axes},
        "attempt": [entry.planned.case.attempt for entry in entries],
        "run_id": dataframes.array_of("string", [run_id or None for run_id in ids]),
        "state": [
            _state(entry, record) for entry, record in zip(entries, score_records, strict=True)
        ],
        "value": _score_column(score_records, bools="Float64"),
        "cost_usd": dataframes.array_of("Float64", _case_costs(store, entries)),
        "text": runs["text"].array,
    }
    made: Any = dataframes.frame_of([dict[str, Any]()] * len(entries))
    for column, cells in columns.items():
        made[column] = cells
    return made


def _case_costs(store: Store, entries: Sequence[CaseState]) -> list[float | None]:
    """Return the cost of each case, including answers that a recording gave.

    Without the original costs, a variant whose answers are recorded would seem the cheapest.
    """
    recorded = recorded_usd(store, entries[0].planned.case.batch)
    return [
        None
        if entry.cost_usd is None
        else entry.cost_usd
        + sum(recorded.get(run_id, 0.0) for run_id in (entry.run_id, *entry.earlier_ids))
        for entry in entries
    ]


def _state(entry: CaseState, score: ScoreRecord | None) -> str:
    if entry.status in ("failed", "ended"):
        return "failed"
    return "scored" if score is not None and score.value is not None else "missing"


def estimate(
    store: Store,
    name: str,
    entries: Sequence[CaseState],
    preflights: Sequence[Preflight],
    *,
    has_judges: bool,
) -> Listing:
    """Build the listing of `Batch.dry_run`."""
    rows: list[tuple[str, ...]] = []
    total_usd, is_priced, is_whole = 0.0, True, True
    for preflight in preflights:
        own = [entry for entry in entries if entry.planned.variant is preflight.variant]
        todo = [entry for entry in own if entry.status not in ("ok", "ended")]
        prompt, completion = _expected_tokens(store, own, todo, preflight)
        chosen = preflight.active.prepared.resolved
        usage = Usage(
            prompt_tokens=prompt,
            completion_tokens=completion or 0,
            total_tokens=prompt + (completion or 0),
        )
        cost = preflight.active.plan.price(usage, chosen.model)
        is_priced, is_whole = is_priced and cost is not None, is_whole and completion is not None
        total_usd += cost.total_usd if cost else 0.0
        rows.append(
            (
                preflight.variant.name or chosen.model_id,
                *(str(len(own)), str(len(own) - len(todo)), str(len(todo))),
                *(f"{prompt:,}", "?" if completion is None else f"{completion:,}"),
                format_cost(cost.total_usd) if cost else "no price known",
                ", ".join(preflight.unapproved_tools),
            )
        )
    notes = [] if is_whole else ["Answer tokens are unknown until the first answer."]
    notes += [] if is_priced else ["Models without a known price are not included in the sum."]
    notes += [f"Together about {format_cost(total_usd)}; each case is one request or more."]
    notes += ["Requests of judges are not included."] if has_judges else []
    if any(one.unapproved_tools for one in preflights):
        notes.append("A call that needs approval ends its case: allow it, or give on_approval=….")
    heads = ("variant", "cases", "done", "to ask", "prompt tokens", "answer tokens", "cost")
    return Listing(
        title=f"batch {name}: remaining requests; nothing is sent",
        columns=(*heads, "would ask"),
        rows=rows,
        notes=notes,
    )


def _expected_tokens(
    store: Store, own: Sequence[CaseState], todo: Sequence[CaseState], ahead: Preflight
) -> tuple[int, int | None]:
    """Estimate prompt and answer tokens: from finished cases, else from the prompt's length."""
    done = [entry for entry in own if entry.status == "ok"]
    if done and todo:
        runs: Any = _read_last_runs(store, "runs", done)
        means = [runs[name].mean() for name in ("prompt_tokens", "completion_tokens")]
        # No number if the server reported no usage.
        if all(mean == mean and mean is not None for mean in means):
            return round(means[0] * len(todo)), round(means[1] * len(todo))
    around = ahead.first_request_bytes - ahead.first_prompt_chars
    chars = sum(around + len(entry.planned.rendered.prompt) for entry in todo)
    return chars // _BYTES_PER_TOKEN, None if todo else 0
