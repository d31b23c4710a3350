"""Tables of a batch: its results, the cells of one score, and the estimate of a dry run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbagent.contracts.case_results import MEASURES, CaseResult, ToolUse, joint_scores
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.messages import FINAL_ANSWER
from nbagent.contracts.model import Usage
from nbagent.contracts.nearest import nearest_name
from nbagent.contracts.records import Better, ScoreRecord
from nbagent.lab.case_state import CaseState, counting_scores, versions_of
from nbagent.lab.plan import Variant, is_missing, key_text
from nbagent.session.active_run import ActiveRun
from nbagent.session.typed_answer import OutputType
from nbagent.store import dataframes
from nbagent.store.batches import recorded_usd, scores_of, tool_uses
from nbagent.store.columns import Dtype
from nbagent.store.writer import Store
from nbagent.view.listing import Listing
from nbagent.view.text_format import format_cost

if TYPE_CHECKING:
    from pandas import DataFrame

_OF_RUN = ("prompt", "text", "stop_reason", "turns", "total_tokens", "duration_ms")
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


def frame_of_results(
    results: Sequence[CaseResult], table: DataFrame, *, has_key_column: bool
) -> DataFrame:
    """Build the frame of `frame()`.

    Args:
        results: the cases.
        table: the columns of each case's row, in the order of the cases.
        has_key_column: one of them holds the row keys, so that they need no column.
    """
    columns: dict[str, Any] = {}
    keys = [] if has_key_column else ["row_key"]
    for axis in results[0].labels if results else ():
        columns[axis] = [result.labels[axis] for result in results]
    columns["attempt"] = [result.attempt for result in results]
    for name, (dtype, read) in _OF_CASE.items():
        columns[name] = dataframes.array_of(dtype, [read(result) for result in results])
    columns |= _output_columns(results)
    columns |= _score_columns(results)
    data: Any = table
    data.columns = _column_names([str(name) for name in data.columns], {*columns, *keys})
    for name, cells in columns.items():
        data[name] = cells
    for name in keys:
        data.insert(0, name, [result.row_key for result in results])
    return data


_OF_CASE: dict[str, tuple[Dtype, Callable[[CaseResult], Any]]] = {
    "run_id": ("string", lambda case: case.run_id or None),
    "ok": ("boolean", lambda case: case.status == "ok" if case.run_id else None),
    "stop_reason": ("string", lambda case: case.stop_reason or None),
    "error": ("string", lambda case: case.why or None),
    "text": ("string", lambda case: case.text if case.run_id else None),
    "turns": ("Int64", lambda case: case.turns),
    "total_tokens": ("Int64", lambda case: case.total_tokens),
    "cost_usd": ("Float64", lambda case: case.cost_usd),
    "duration_ms": ("Float64", lambda case: case.duration_ms),
    "tools_used": ("string", lambda case: ", ".join(tool.name for tool in case.tools) or None),
}
"""Columns of a case: dtype, and its cell."""


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


def _output_columns(results: Sequence[CaseResult]) -> dict[str, Any]:
    """Return the fields of typed answers, by column."""
    names = dict.fromkeys(name for result in results for name in result.output)
    if not names:
        return {}
    made: Any = dataframes.frame_of(
        [{name: result.output.get(name) for name in names} for result in results]
    )
    return {name: made[name].array for name in names}


def score_names(results: Sequence[CaseResult]) -> list[str]:
    """Return the names of all scores."""
    return sorted({score.scorer for result in results for score in result.scores})


def _score_columns(results: Sequence[CaseResult]) -> dict[str, Any]:
    """Return the scores, by column."""
    return {
        f"score_{name}": _score_column([_score_of(result, name) for result in results])
        for name in score_names(results)
    }


def _score_of(result: CaseResult, name: str) -> bool | float | str | None:
    own = joint_scores(score for score in result.scores if score.scorer == name)
    return own[name].value if own else None


def _score_column(values: Sequence[bool | float | str | None], bools: Dtype = "boolean") -> Any:
    kinds = {type(value) for value in values if value is not None}
    dtype: Dtype = "string" if str in kinds else bools if kinds == {bool} else "Float64"
    cells = [
        None if value is None else str(value) if dtype == "string" else value for value in values
    ]
    return dataframes.array_of(dtype, cells)


@dataclass(frozen=True, slots=True)
class ChosenScore:
    """A score of a batch, or a measure that needs no scorer."""

    name: str
    is_measure: bool
    better: Better


def choose_score(results: Sequence[CaseResult], score: str | None) -> ChosenScore:
    """Find a score by its name, which may be left out if there is one, or a measure.

    Its direction is the one that its scorer stored last; of a measure less is better.

    Raises:
        UsageError: there is no such score.
    """
    names = score_names(results)
    name = _chosen_name(score, names)
    if name not in names:
        return ChosenScore(name, True, "lower")
    scores = [each for result in results for each in result.scores if each.scorer == name]
    return ChosenScore(name, False, max(scores, key=lambda each: each.at).better)


def cells_of_results(
    results: Sequence[CaseResult], score: ChosenScore, axes: Sequence[str]
) -> DataFrame:
    """Build the frame of `cells()`."""
    read = _measure_of if score.is_measure else _score_of
    values = [read(result, score.name) for result in results]
    columns: dict[str, Any] = {
        "row_key": [result.row_key for result in results],
        **{axis: [result.labels[axis] for result in results] for axis in axes},
        "attempt": [result.attempt for result in results],
        "run_id": dataframes.array_of("string", [result.run_id or None for result in results]),
        "state": [_state(result, value) for result, value in zip(results, values, strict=True)],
        "value": _score_column(values, bools="Float64"),
        "cost_usd": dataframes.array_of("Float64", [result.full_cost_usd for result in results]),
        "text": dataframes.array_of("string", [result.text or None for result in results]),
    }
    made: Any = dataframes.frame_of([dict[str, Any]()] * len(results))
    for column, cells in columns.items():
        made[column] = cells
    return made


def with_table_columns(cells: DataFrame, results: Sequence[CaseResult]) -> DataFrame:
    """Add the columns of the table as texts, for groups; a name that is taken becomes `row_…`."""
    made: Any = cells
    own = list(dict.fromkeys(name for result in results for name in result.cells))
    for name, column in zip(own, _column_names(own, made.columns.tolist()), strict=True):
        values = [result.cells.get(name) for result in results]
        texts = [None if is_missing(value) else key_text(value) for value in values]
        made[column] = dataframes.array_of("string", texts)
    return made


def is_tied(result: CaseResult, name: str) -> bool:
    """True if people gave the score different values, which have no joint one."""
    values = [own.value for own in result.scores if own.scorer == name]
    return any(value is not None for value in values) and _score_of(result, name) is None


def with_ties(cells: DataFrame, results: Sequence[CaseResult], name: str) -> DataFrame:
    """Tell apart, in the state, missing scores of which people gave different values (`tied`)."""
    made: Any = cells
    states = [
        "tied" if state == "missing" and is_tied(result, name) else state
        for state, result in zip(made["state"].tolist(), results, strict=True)
    ]
    return made.assign(state=states)


def _measure_of(result: CaseResult, name: str) -> float | None:
    """Return a measure of an answered case; the time of a failed one says nothing of an answer."""
    value = MEASURES[name](result) if result.status == "ok" else None
    return None if value is None else float(value)


def _chosen_name(score: str | None, known: Sequence[str]) -> str:
    name = score or (known[0] if len(known) == 1 else None)
    if name is not None and (name in known or name in MEASURES):
        return name
    there = f"the scores are {', '.join(known)}" if known else "score it first: batch.score(…)"
    near = nearest_name(score, [*known, *MEASURES])
    there = f"did you mean {near!r}?" if near else there
    problem = f"{score!r} is no score of this batch" if score else "say which score"
    raise UsageError(f"{problem}; {there}")


def _state(result: CaseResult, value: bool | float | str | None) -> str:
    if result.status in ("failed", "ended"):
        return "failed"
    return "missing" if value is None else "scored"


# Store → results


def read_results(
    store: Store,
    entries: Sequence[CaseState],
    versions: Mapping[str, int],
    cells: Sequence[Mapping[str, Any]],
) -> tuple[CaseResult, ...]:
    """Read the results of cases from their store.

    Args:
        store: has the runs and scores.
        entries: the cases.
        versions: version of each scorer that counts; of others the highest counts.
        cells: the cells of each case's row.
    """
    if not entries:
        return ()
    batch, ids = entries[0].planned.case.batch, [entry.run_id for entry in entries]
    stored: Any = _read_last_runs(store, "runs", entries).set_index("run_id")
    there, runs = {*stored.index}, stored.reindex(ids)
    by_column = {name: _plain_cells(runs[name]) for name in _OF_RUN}
    scores, uses = _scores_by_run(store, ids, versions), tool_uses(store, batch)
    recorded = recorded_usd(store, batch)
    outputs = _outputs(store, entries, by_column["text"])
    results: list[CaseResult] = []
    for i, entry in enumerate(entries):
        case, run_ids = entry.planned.case, (*entry.earlier_ids, entry.run_id)
        # A deleted run leaves its case open, also where the case was read before.
        is_deleted = bool(entry.run_id) and entry.run_id not in there
        results.append(
            CaseResult(
                row_key=case.row_key,
                labels=entry.planned.variant.labels,
                attempt=case.attempt,
                cells=cells[i],
                status="missing" if is_deleted else entry.status,
                run_id="" if is_deleted else entry.run_id,
                # A case that could not start has no run that holds its error.
                why=entry.why,
                prompt=by_column["prompt"][i] or "",
                text=by_column["text"][i] or "",
                stop_reason=by_column["stop_reason"][i] or "",
                turns=by_column["turns"][i],
                total_tokens=by_column["total_tokens"][i],
                duration_ms=by_column["duration_ms"][i],
                cost_usd=entry.cost_usd,
                recorded_usd=sum(recorded.get(run_id, 0.0) for run_id in run_ids),
                tools=_summed_uses([use for run_id in run_ids for use in uses.get(run_id, ())]),
                output=outputs[i],
                scores=scores.get(entry.run_id, ()),
            )
        )
    return tuple(results)


def _plain_cells(column: Any) -> list[Any]:
    return column.astype(object).where(column.notna(), None).tolist()


def _read_last_runs(store: Store, name: str, entries: Sequence[CaseState], **filters: Any) -> Any:
    """Read the rows of a frame for the last runs of the cases."""
    ids = [entry.run_id for entry in entries if entry.run_id]
    if len(ids) <= _MAX_IDS:
        return dataframes.read_frame([store], name, {"run_id": ids, **filters})
    batch = entries[0].planned.case.batch
    return dataframes.read_frame([store], name, {"batch": batch, **filters})


def _summed_uses(uses: Sequence[ToolUse]) -> tuple[ToolUse, ...]:
    """Add up the calls of each tool in several runs."""
    by_name: dict[str, ToolUse] = {}
    for use in uses:
        before = by_name.get(use.name, ToolUse(name=use.name, calls=0))
        by_name[use.name] = ToolUse(
            name=use.name, calls=before.calls + use.calls, failed=before.failed + use.failed
        )
    return tuple(by_name.values())


def _scores_by_run(
    store: Store, ids: Sequence[str], versions: Mapping[str, int]
) -> dict[str, tuple[ScoreRecord, ...]]:
    records = scores_of(store, [run_id for run_id in ids if run_id])
    counts, by_run = versions_of(records, versions), dict[str, list[ScoreRecord]]()
    for score in records:
        by_run.setdefault(score.run_id, []).append(score)
    return {run_id: tuple(counting_scores(scores, counts)) for run_id, scores in by_run.items()}


def _outputs(
    store: Store, entries: Sequence[CaseState], texts: Sequence[Any]
) -> list[dict[str, Any]]:
    """Return the fields of typed answers for each case, by column."""
    kinds = [entry.planned.variant.request.options.output for entry in entries]
    if all(kind in (None, str) for kind in kinds):
        return [dict[str, Any]()] * len(entries)
    calls: Any = _read_last_runs(store, "tool_runs", entries)
    calls = calls[(calls["tool_name"] == FINAL_ANSWER) & calls["ok"].fillna(False)]
    by_call = dict(zip(calls["run_id"].tolist(), calls["args"].tolist(), strict=True))
    outputs = {id(kind): OutputType(kind) for kind in kinds if kind not in (None, str)}
    answers: list[dict[str, Any]] = []
    for entry, kind, text in zip(entries, kinds, texts, strict=True):
        # Where a server cannot bind a schema, the answer is in the arguments of a final tool call.
        output, answer = outputs.get(id(kind)), by_call.get(entry.run_id, text)
        answers.append(_output_fields(output, answer) if output and entry.status == "ok" else {})
    return answers


def _output_fields(output: OutputType, text: Any) -> dict[str, Any]:
    try:
        rows = output.rows(output.read(text))
    except (NbagentError, TypeError):
        return {}  # the answer was made for an earlier type
    if len(rows) == 1:
        return {f"output_{name}": value for name, value in rows[0].items()}
    return {"output": rows}


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
        # Without those for which the server reported no usage.
        known = [runs[name].dropna() for name in ("prompt_tokens", "completion_tokens")]
        if all(map(len, known)):
            prompt, completion = (round(float(tokens.mean()) * len(todo)) for tokens in known)
            return prompt, completion
    around = ahead.first_request_bytes - ahead.first_prompt_chars
    chars = sum(around + len(entry.planned.rendered.prompt) for entry in todo)
    return chars // _BYTES_PER_TOKEN, None if todo else 0
