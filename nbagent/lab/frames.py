"""A batch as tables: all of its cases, the cells of one score, and what it is expected to cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.messages import FINAL_ANSWER
from nbagent.contracts.model import Usage
from nbagent.contracts.records import ScoreRecord
from nbagent.lab.case_state import Entry, counting, versions_of
from nbagent.lab.plan import Table, Variant
from nbagent.session.active import ActiveRun
from nbagent.session.output import Output
from nbagent.store import dataframes
from nbagent.store.batches import recorded_usd, scores_of
from nbagent.store.columns import Dtype
from nbagent.store.writer import Store
from nbagent.view.listing import Listing
from nbagent.view.words import format_cost

if TYPE_CHECKING:
    from pandas import DataFrame

_OF_RUN = ("ok", "stop_reason", "error", "text", "turns", "total_tokens")
_MOST_IDS = 30_000
"""More are not looked for by their ids."""
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is known of a variant before it is asked."""

    variant: Variant
    active: ActiveRun
    first_bytes: int
    """Of the request for its first row."""
    first_prompt: int
    """Characters of the prompt in it."""
    asks: tuple[str, ...]
    """Tools whose calls need an approval that nobody can give."""


def frame_of_batch(
    store: Store, table: Table, entries: Sequence[Entry], versions: Mapping[str, int]
) -> DataFrame:
    """See `Batch.frame`."""
    ids = [entry.run_id for entry in entries]
    found: Any = _of_runs(store, "runs", entries).set_index("run_id").reindex(ids)
    columns: dict[str, Any] = {}
    for axis in entries[0].planned.variant.labels:
        columns[axis] = [entry.planned.variant.labels[axis] for entry in entries]
    columns["attempt"] = [entry.planned.case.attempt for entry in entries]
    columns["run_id"] = dataframes.array_of("string", [it or None for it in ids])
    columns |= {name: found[name].array for name in _OF_RUN}
    # Of a case that could not even start there is no run that says why.
    why = [entry.why or None for entry in entries]
    columns["error"] = dataframes.array_of("string", why)
    columns["cost_usd"] = dataframes.array_of("Float64", [entry.cost_usd for entry in entries])
    columns["duration_ms"] = found["duration_ms"].array
    columns |= _outputs(store, entries, found["text"].tolist())
    columns |= _scores(store, ids, versions)
    given: Any = table.data
    data = given.iloc[[entry.planned.place for entry in entries]].copy()
    data.columns = _apart(table.columns, columns.keys())
    for name, cells in columns.items():
        data[name] = cells
    return data


def _apart(own: Sequence[str], taken: Collection[str]) -> list[str]:
    """The names of the table's columns; one that is taken has `row_` before it."""
    used = {*own, *taken}
    names: list[str] = []
    for column in own:
        name = column
        while (name != column and name in used) or name in taken:
            name = f"row_{name}"
        names.append(name)
    return names


def _of_runs(store: Store, name: str, entries: Sequence[Entry], **filters: Any) -> Any:
    """The rows of a frame for the last runs of the cases."""
    ids = [entry.run_id for entry in entries if entry.run_id]
    if len(ids) <= _MOST_IDS:
        return dataframes.read_frame([store], name, {"run_id": ids, **filters})
    batch = entries[0].planned.case.batch
    return dataframes.read_frame([store], name, {"batch": batch, **filters})


def _outputs(store: Store, entries: Sequence[Entry], texts: Sequence[Any]) -> dict[str, Any]:
    """The fields of the answers that are of a type, by column."""
    kinds = [entry.planned.variant.ask.options.output for entry in entries]
    if all(kind in (None, str) for kind in kinds):
        return {}
    calls: Any = _of_runs(store, "tool_runs", entries)
    calls = calls[(calls["tool_name"] == FINAL_ANSWER) & calls["ok"].fillna(False)]
    by_call = dict(zip(calls["run_id"].tolist(), calls["args"].tolist(), strict=True))
    outputs = {id(kind): Output(kind) for kind in kinds if kind not in (None, str)}
    answers: list[dict[str, Any]] = []
    for entry, kind, text in zip(entries, kinds, texts, strict=True):
        output, answer = outputs.get(id(kind)), by_call.get(entry.run_id, text)
        answers.append(_fields(output, answer) if output and entry.standing == "ok" else {})
    names = dict.fromkeys(name for fields in answers for name in fields)
    made: Any = dataframes.frame_of([{name: it.get(name) for name in names} for it in answers])
    return {name: made[name].array for name in names}


def _fields(output: Output, text: Any) -> dict[str, Any]:
    try:
        rows = output.rows(output.read(text))
    except (NbagentError, TypeError):
        return {}  # a record of an earlier type
    if len(rows) == 1:
        return {f"output_{name}": value for name, value in rows[0].items()}
    return {"output": rows}


def _scores(store: Store, ids: Sequence[str], versions: Mapping[str, int]) -> dict[str, Any]:
    """The scores that count, by column."""
    held = _by_run(store, ids, versions)
    names = sorted({name for scores in held.values() for name in scores})
    return {f"score_{name}": _column([held.get(it, {}).get(name) for it in ids]) for name in names}


def _by_run(
    store: Store, ids: Sequence[str], versions: Mapping[str, int]
) -> dict[str, dict[str, ScoreRecord]]:
    found = scores_of(store, [it for it in ids if it])
    counts, by_run = versions_of(found, versions), dict[str, list[ScoreRecord]]()
    for score in found:
        by_run.setdefault(score.run_id, []).append(score)
    return {run_id: counting(scores, counts) for run_id, scores in by_run.items()}


def _column(scores: Sequence[ScoreRecord | None], *, bools: Dtype = "boolean") -> Any:
    values = [score.value if score else None for score in scores]
    kinds = {type(value) for value in values if value is not None}
    dtype: Dtype = "string" if str in kinds else bools if kinds == {bool} else "Float64"
    cells = [None if it is None else str(it) if dtype == "string" else it for it in values]
    return dataframes.array_of(dtype, cells)


def cells_of_batch(
    store: Store,
    entries: Sequence[Entry],
    score: str | None,
    axes: Sequence[str],
    versions: Mapping[str, int],
) -> DataFrame:
    """See `Batch.cells`."""
    ids = [entry.run_id for entry in entries]
    held = _by_run(store, ids, versions)
    known = sorted({name for scores in held.values() for name in scores})
    name = score or (known[0] if len(known) == 1 else None)
    if name is None or name not in known:
        there = f"the scores are {', '.join(known)}" if known else "score it first: batch.score(…)"
        said = f"{score!r} is no score of this batch" if score else "say which score"
        raise UsageError(f"{said}; {there}")
    runs: Any = _of_runs(store, "runs", entries).set_index("run_id").reindex(ids)
    found = [held.get(it, {}).get(name) for it in ids]
    columns: dict[str, Any] = {
        "row_key": [entry.planned.case.row_key for entry in entries],
        **{axis: [entry.planned.variant.labels[axis] for entry in entries] for axis in axes},
        "attempt": [entry.planned.case.attempt for entry in entries],
        "run_id": dataframes.array_of("string", [it or None for it in ids]),
        "state": [_state(entry, one) for entry, one in zip(entries, found, strict=True)],
        "value": _column(found, bools="Float64"),
        "cost_usd": dataframes.array_of("Float64", _costs(store, entries)),
        "text": runs["text"].array,
    }
    made: Any = dataframes.frame_of([dict[str, Any]()] * len(entries))
    for column, cells in columns.items():
        made[column] = cells
    return made


def _costs(store: Store, entries: Sequence[Entry]) -> list[float | None]:
    """What each case cost, also where a record answered that was paid before.

    Else a variant whose answers happen to be recorded would seem to be the cheapest.
    """
    recorded = recorded_usd(store, entries[0].planned.case.batch)
    return [
        None
        if entry.cost_usd is None
        else entry.cost_usd
        + sum(recorded.get(it, 0.0) for it in (entry.run_id, *entry.earlier_ids))
        for entry in entries
    ]


def _state(entry: Entry, score: ScoreRecord | None) -> str:
    if entry.standing in ("failed", "ended"):
        return "failed"
    return "scored" if score is not None and score.value is not None else "missing"


def estimate(
    store: Store,
    name: str,
    entries: Sequence[Entry],
    ahead: Sequence[Ahead],
    *,
    has_judges: bool,
) -> Listing:
    """See `Batch.dry_run`."""
    rows: list[tuple[str, ...]] = []
    total_usd, is_priced, is_whole = 0.0, True, True
    for one in ahead:
        own = [entry for entry in entries if entry.planned.variant is one.variant]
        todo = [entry for entry in own if entry.standing not in ("ok", "ended")]
        prompt, completion = _tokens(store, own, todo, one)
        chosen = one.active.prepared.chosen
        usage = Usage(
            prompt_tokens=prompt,
            completion_tokens=completion or 0,
            total_tokens=prompt + (completion or 0),
        )
        cost = chosen.price(usage, chosen.model)
        is_priced, is_whole = is_priced and cost is not None, is_whole and completion is not None
        total_usd += cost.total_usd if cost else 0.0
        rows.append(
            (
                one.variant.name or chosen.model_id,
                *(str(len(own)), str(len(own) - len(todo)), str(len(todo))),
                *(f"{prompt:,}", "?" if completion is None else f"{completion:,}"),
                format_cost(cost.total_usd) if cost else "no price known",
                ", ".join(one.asks),
            )
        )
    said = [] if is_whole else ["Answers are not counted where none is known yet."]
    said += [] if is_priced else ["Models without a known price are not in the sum."]
    said += [f"Together about {format_cost(total_usd)}; each case is one request or more."]
    said += ["What judges ask is not counted."] if has_judges else []
    if any(one.asks for one in ahead):
        said.append("A call that needs approval ends its case: allow it, or give on_approval=….")
    heads = ("variant", "cases", "done", "to ask", "prompt tokens", "answer tokens", "cost")
    return Listing(
        title=f"batch {name}: what is left to be asked; this sends nothing",
        columns=(*heads, "would ask"),
        rows=rows,
        notes=said,
    )


def _tokens(
    store: Store, own: Sequence[Entry], todo: Sequence[Entry], ahead: Ahead
) -> tuple[int, int | None]:
    """Prompt and answer tokens to be expected: as the finished cases had, else by length."""
    done = [entry for entry in own if entry.standing == "ok"]
    if done and todo:
        runs: Any = _of_runs(store, "runs", done)
        means = [runs[name].mean() for name in ("prompt_tokens", "completion_tokens")]
        if all(mean == mean and mean is not None for mean in means):
            return round(means[0] * len(todo)), round(means[1] * len(todo))
    around = ahead.first_bytes - ahead.first_prompt
    chars = sum(around + len(entry.planned.rendered.prompt) for entry in todo)
    return chars // _BYTES_PER_TOKEN, None if todo else 0
