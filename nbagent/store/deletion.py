"""Deletion of runs: what shows a run is deleted at once, its other rows in slices (`upkeep`).

The row of a run is deleted in the first transaction, with prompts and texts that no other run has
and with the index of its texts. Everything reads a run by that row, so after a kill in between
nothing shows it.
"""

from __future__ import annotations

from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import JUDGE_SUFFIX
from nbagent.store.columns import hash_sql
from nbagent.store.connections import Connection
from nbagent.store.reader import find_run_keys, select_keys
from nbagent.store.text_index import drop_block_of
from nbagent.store.upkeep import is_current

_JUDGE_RUNS = (
    "WHERE run_id IN (SELECT judge_run_id FROM scores WHERE run = :n) "
    "OR (batch, row_key, variant, attempt, case_sha) = (SELECT batch || :judge, row_key, variant, "
    "attempt, case_sha FROM runs WHERE n = :n) "
    # A judge of two answers quotes both, and is of the case of one of them.
    "OR (batch = (SELECT batch || :judge FROM runs WHERE n = :n) "
    "AND instr(tags, (SELECT 'compares:' || run_id FROM runs WHERE n = :n))) ORDER BY n"
)
"""Runs that judged a run, also those whose score was replaced: they quote its answer."""
_DELETE_SCORES_OF_JUDGE = (
    "DELETE FROM scores WHERE judge_run_id = :id AND run IN (SELECT r.n FROM runs j JOIN runs r "
    "ON r.batch = substr(j.batch, 1, length(j.batch) - length(:judge)) AND r.row_key = j.row_key "
    "WHERE j.run_id = :id)"
)
"""Scores of other answers to the row that a judge compared with a deleted one."""


def delete_runs(c: Connection, run_id: str, *, children: bool) -> tuple[str, ...]:
    """Delete a run and its judges, with `children` also the runs that continue it.

    Returns:
        Ids of the deleted runs, the run's own first.
    """
    rows = [find_run_keys(c, run_id)]
    for row in rows:  # grows: parents first
        rows += select_keys(c, "WHERE parent_id = ? ORDER BY n", (row["run_id"],))
        rows += select_keys(c, _JUDGE_RUNS, {"n": row["n"], "judge": JUDGE_SUFFIX})
    ids = [row["run_id"] for row in rows]
    continuing = [row["run_id"] for row in rows[1:] if row["parent_id"]]
    if continuing and not children:
        raise UsageError(
            f"other runs continue run {ids[0][:8]} and would lose their beginning: "
            f"{', '.join(child_id[:8] for child_id in continuing)}; to forget these too write "
            f"nbagent.forget({ids[0][:8]!r}, children=True), or %agent forget {ids[0][:8]} "
            "--children"
        )
    for row in rows:
        if row["phase"] == "Running":
            raise UsageError(
                f"run {row['run_id'][:8]} is still running; stop it or wait for its end, then "
                "forget it"
            )
    numbers = [(row["n"],) for row in rows]
    for row in rows[1:]:
        c.execute(_DELETE_SCORES_OF_JUDGE, {"id": row["run_id"], "judge": JUDGE_SUFFIX})
    c.executemany("DELETE FROM runs WHERE n = ?", numbers)
    c.executemany("INSERT INTO forgotten(run) VALUES(?)", numbers)
    for (n,) in numbers:
        drop_block_of(c, n)
        _delete_unused_texts(c, n)
    for sha in {row["template_sha"] for row in rows if row["template_sha"]}:
        _renew_prompt(c, "template", sha, _TIMES_OF_TEMPLATE)
    return tuple(ids)


_TURNS = 100
"""Oldest and newest turns with a system prompt in which its first and last use are looked for: a
frequent one has a million turns, and runs start in the order of their numbers."""
_OF_OTHERS = "AND t.run NOT IN (SELECT run FROM forgotten)"
_TIMES_OF_TEMPLATE = "SELECT min(started_at), max(started_at) FROM runs WHERE template_sha = :sha"


def _has_hash(c: Connection, column: str) -> str:
    """SQL of the turns of other runs with a hash."""
    number = "(SELECT +h.n FROM hashes h WHERE h.sha = :sha)"
    if is_current(c):
        return f"t.{column} = {number} {_OF_OTHERS}"
    return f"t.{column} IN (:sha, {number}) {_OF_OTHERS}"


def _delete_unused_texts(c: Connection, n: int) -> None:
    """Delete system prompts and toolsets that only a deleted run has."""
    for column in ("system_sha", "toolset_sha"):
        shas = c.execute(
            f"SELECT DISTINCT {hash_sql(f't.{column}')} FROM turns t "
            f"WHERE t.run = ? AND t.{column} IS NOT NULL",
            (n,),
        ).fetchall()
        others = f"FROM turns t WHERE {_has_hash(c, column)}"
        for (sha,) in shas:
            sql = f"SELECT EXISTS (SELECT 1 {others})"
            is_used = c.execute(sql, {"sha": sha}).fetchone()[0]
            if not is_used:
                c.execute("DELETE FROM texts WHERE sha = ?", (sha,))
            if column == "system_sha" and (not is_used or _is_at_an_end(c, n, sha)):
                first, last = (
                    f"(SELECT t.started_at AS at {others} ORDER BY t.run {order} LIMIT {_TURNS}) "
                    for order in ("ASC", "DESC")
                )
                times = f"SELECT (SELECT min(at) FROM {first}), (SELECT max(at) FROM {last})"
                _renew_prompt(c, "system", sha, times)


def _is_at_an_end(c: Connection, n: int, sha: str) -> bool:
    """True if a deleted run may have been the first or the last with a system prompt: only then are
    its times looked for, which reads turns all over the store."""
    sql = (
        "SELECT EXISTS (SELECT 1 FROM prompts p JOIN turns t ON t.run = ? WHERE p.kind = 'system' "
        "AND p.sha = ? AND (t.started_at <= p.first_seen OR t.started_at >= p.last_seen))"
    )
    return bool(c.execute(sql, (n, sha)).fetchone()[0])


def _renew_prompt(c: Connection, kind: str, sha: str, times: str) -> None:
    """Correct the times of a prompt, or delete it if no run is left that has it."""
    first, last = c.execute(times, {"sha": sha}).fetchone()
    if first is None:
        c.execute("DELETE FROM prompts WHERE kind = ? AND sha = ?", (kind, sha))
    else:
        sql = "UPDATE prompts SET first_seen = ?, last_seen = ? WHERE kind = ? AND sha = ?"
        c.execute(sql, (first, last, kind, sha))
