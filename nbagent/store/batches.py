"""Batches in the store: summaries of their runs, their documents, and scores.

A score is a row of its own, because the record of a run never changes. Its frame is in `columns`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.canonical import dump_json, json_object, load_json
from nbagent.contracts.case_results import ToolUse
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import JUDGE_SUFFIX as JUDGE_SUFFIX
from nbagent.contracts.records import Case, RunRecord, RunSummary, ScoreRecord
from nbagent.store.connections import Connection
from nbagent.store.reader import select_rows, select_summaries
from nbagent.store.record_cells import from_us, to_us
from nbagent.store.rows import Row, cell_text, text_cell
from nbagent.store.writer import Store, upsert

_DELETE_PREVIOUS_SCORES = (
    "DELETE FROM scores WHERE run = :run AND version = :version "
    "AND (error IS NOT NULL OR doc IS NOT NULL) "
    "AND (scorer = :root OR substr(scorer, 1, length(:root) + 1) = :root || '.')"
)
_SCORER_OF_NAME = (
    "SELECT scored_by FROM scores WHERE run = ? AND scorer = ? "
    "AND (error IS NOT NULL OR doc IS NOT NULL)"
)
_SCORES_OF_RUNS = (
    # CROSS JOIN fixes the order: look up each id, instead of scanning all runs.
    "SELECT r.run_id, s.* FROM json_each(?) i CROSS JOIN runs r ON r.run_id = i.value "
    "CROSS JOIN scores s ON s.run = r.n ORDER BY s.at, s.version"
)

_TOOL_USES = (
    "SELECT r.run_id, x.tool_name, count(*), total(x.ok = 0) FROM tool_runs x "
    "JOIN runs r ON r.n = x.run WHERE r.batch = ? GROUP BY r.n, x.tool_name "
    "ORDER BY r.n, min(x.turn), min(x.position)"
)
_RECORDED_COSTS = (
    "SELECT r.run_id, sum(x.saved_usd) FROM turns x JOIN runs r ON r.n = x.run "
    "WHERE r.batch = ? AND x.source IN ('hit', 'replay') GROUP BY r.n"
)


PROVIDER_BATCHES = "provider_batches"
"""Key of a batch's document that a new claim does not replace."""
CaseRecord = RunSummary | RunRecord
"""The record of a run has its turns, too."""


@dataclass(frozen=True, slots=True)
class CaseRun:
    """A run of a batch, with its case."""

    case: Case
    run: CaseRecord


def runs_of_batch(store: Store, name: str) -> list[CaseRun]:
    """Runs of a batch in the order of their start."""
    with store.reading() as c:
        runs = select_summaries(c, "WHERE batch = ? ORDER BY n", (text_cell(name),))
    return [CaseRun(run.case, run) for run in runs if run.case is not None]


def n_runs(store: Store, name: str) -> int:
    """Count the runs of a batch and of its judges."""
    with store.reading() as c:
        sql = "SELECT count(*) FROM runs WHERE batch IN (?, ?)"
        return c.execute(sql, (text_cell(name), text_cell(name + JUDGE_SUFFIX))).fetchone()[0]


def recorded_usd(store: Store, name: str) -> dict[str, float]:
    """Original cost of replayed answers, by run id of a batch."""
    with store.reading() as c:
        rows = c.execute(_RECORDED_COSTS, (text_cell(name),)).fetchall()
    return {run_id: usd for run_id, usd in rows if usd is not None}


def tool_uses(store: Store, name: str) -> dict[str, list[ToolUse]]:
    """Calls of each tool, by run id of a batch."""
    uses: dict[str, list[ToolUse]] = {}
    with store.reading() as c:
        for run_id, tool, calls, failed in c.execute(_TOOL_USES, (text_cell(name),)):
            use = ToolUse(name=tool, calls=calls, failed=int(failed))
            uses.setdefault(run_id, []).append(use)
    return uses


def batch_names(store: Store) -> list[str]:
    """Names of all batches, the newest first."""
    with store.reading() as c:
        return [name for (name,) in c.execute("SELECT name FROM batches ORDER BY rowid DESC")]


def batch_doc(store: Store, name: str) -> dict[str, Any] | None:
    """Load the document that `claim_batch` wrote last; None if there is no such batch."""
    with store.reading() as c:
        rows = select_rows(c, "batches", "WHERE name = ?", (text_cell(name),))
    doc = rows[0].get("doc") if rows else None
    # A damaged document counts as an empty one: the runs and scores are there without it.
    return (json_object(doc) or {}) if rows else None


def claim_batch(store: Store, name: str, doc: Mapping[str, Any]) -> None:
    """Write the document of a batch (JSON values), and lease the batch to this process.

    Raises:
        UsageError: another process is at work on it.
    """

    def work(c: Connection) -> None:
        new_doc = dict(doc)
        for row in select_rows(c, "batches", "WHERE name = ?", (text_cell(name),)):
            if store.is_leased_elsewhere(c, row.get("lease_id")):
                raise UsageError(
                    f"batch {name!r} is at work in another process; wait for it, or stop it there"
                )
            if at_providers := (json_object(row.get("doc")) or {}).get(PROVIDER_BATCHES):
                new_doc[PROVIDER_BATCHES] = at_providers
        upsert(c, "batches", [{"name": name, "doc": new_doc, "lease_id": store.lease_id}])

    store.database.transact(work, durable=False)


def release_batch(store: Store, name: str) -> None:
    """Give up the lease on a batch."""
    sql = "UPDATE batches SET lease_id = NULL WHERE name = ? AND lease_id = ?"
    store.database.transact(
        lambda c: c.execute(sql, (text_cell(name), store.lease_id)), durable=False
    )


def save_scores(store: Store, scores: Sequence[ScoreRecord]) -> None:
    """Write scores of scorers; replace the earlier ones of the same run, scorer and version.

    A scorer of several scores (`NAME.key`) replaces all its earlier keys. Scores of a run that is
    not in the store are dropped.
    """
    find = "SELECT n FROM runs WHERE run_id = ?"

    def work(c: Connection) -> None:
        cells: list[tuple[int, ScoreRecord]] = []
        for score in scores:
            for (n,) in c.execute(find, (text_cell(score.run_id),)).fetchall():
                if not score.is_label:
                    root = score.scorer.partition(".")[0]
                    c.execute(
                        _DELETE_PREVIOUS_SCORES, {"run": n, "version": score.version, "root": root}
                    )
                cells.append((n, score))
        for n, score in cells:
            upsert(c, "scores", [_score_row(score)], run=n)

    store.database.transact(work, durable=False)


def save_labels(store: Store, labels: Sequence[ScoreRecord]) -> None:
    """Write scores of people; replace their earlier ones of the same run, name and version.

    All are written in one transaction, or none.

    Raises:
        UsageError: a run was deleted, or a scorer has scored it under this name.
    """

    def work(c: Connection) -> None:
        for label in labels:
            _write_label(c, label)

    store.database.transact(work, durable=False)


def _write_label(c: Connection, label: ScoreRecord) -> None:
    rows = c.execute("SELECT n FROM runs WHERE run_id = ?", (text_cell(label.run_id),))
    row = rows.fetchone()
    if row is None:
        raise UsageError(f"run {label.run_id[:8]} was deleted, so it cannot be labelled")
    scorers = c.execute(_SCORER_OF_NAME, (row[0], text_cell(label.scorer)))
    if scorer := scorers.fetchone():
        raise UsageError(
            f"score {label.scorer!r} of run {label.run_id[:8]} is by the scorer "
            f"{cell_text(scorer[0])!r}, and would be mixed with labels of people; choose "
            "another name"
        )
    upsert(c, "scores", [_score_row(label)], run=row[0])


def scores_of(store: Store, run_ids: Collection[str]) -> list[ScoreRecord]:
    """Scores of runs, oldest first."""
    with store.reading() as c:
        cursor = c.execute(_SCORES_OF_RUNS, (dump_json([*run_ids]).decode(),))
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, cells, strict=True)) for cells in cursor]
    return [_score(row) for row in rows]


def _score_row(score: ScoreRecord) -> Row:
    value = score.value
    kind = "bool" if isinstance(value, bool) else "label" if isinstance(value, str) else "number"
    return {
        **vars(score),
        "kind": None if value is None else kind,
        "value": None if value is None or kind == "label" else float(value),
        "label": value if kind == "label" else None,
        "scored_by": score.by,
        "at": to_us(score.at),
        "doc": None if score.row is None else _score_doc(score),
    }


def _score_doc(score: ScoreRecord) -> dict[str, Any]:
    """Return the fields that have no column; most scores have the usual direction."""
    direction = {} if score.better == "higher" else {"better": score.better}
    return {"row": score.row, **direction}


def _score(row: Row) -> ScoreRecord:
    value: Any = row["label"] if row["kind"] == "label" else row["value"]
    value = bool(value) if row["kind"] == "bool" else value
    columns = {"value": value, "by": row["scored_by"], "at": from_us(row["at"])}
    doc: dict[str, Any] = load_json(row["doc"]) if row["doc"] else {}
    return ScoreRecord.model_validate({**row, **columns, **doc})
