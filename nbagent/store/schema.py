"""The SQL statements that create the tables and indexes of a store."""

from __future__ import annotations

from nbagent.store.columns import APPLICATION_ID, OLDEST_READER, TABLES, VERSION, create_table

INDEXES = {
    "runs_by_id": "CREATE UNIQUE INDEX runs_by_id ON runs(run_id)",
    "runs_by_name": "CREATE INDEX runs_by_name ON runs(name) WHERE name IS NOT NULL",
    "runs_by_batch": "CREATE INDEX runs_by_batch ON runs(batch) WHERE batch IS NOT NULL",
    "runs_at_work": "CREATE INDEX runs_at_work ON runs(phase) WHERE phase = 'Running'",
    "runs_by_parent": "CREATE INDEX runs_by_parent ON runs(parent_id) WHERE parent_id IS NOT NULL",
}
"""Indexes of version 6."""
LATER_INDEXES = {
    "runs_by_session": "CREATE INDEX runs_by_session ON runs(session)",
    "runs_by_notebook": "CREATE INDEX runs_by_notebook ON runs(notebook) "
    "WHERE notebook IS NOT NULL",
    # For the runs of a notebook that was renamed. Cells of batches are not searched.
    "runs_by_kernel": "CREATE INDEX runs_by_kernel ON runs(kernel_id) WHERE kernel_id IS NOT NULL",
    "runs_by_cell": "CREATE INDEX runs_by_cell ON runs(cell_id) WHERE batch IS NULL",
    "runs_by_start": "CREATE INDEX runs_by_start ON runs(started_at)",
    "runs_by_template": "CREATE INDEX runs_by_template ON runs(template_sha, started_at) "
    "WHERE template_sha IS NOT NULL",
    # For a history that is sorted. Runs of batches are in none, so a large batch hides no run.
    **{
        f"history_by_{name}": f"CREATE INDEX history_by_{name} ON runs({name} DESC) "
        "WHERE batch IS NULL"
        for name in ("started_at", "cost_usd", "total_tokens", "duration_ms")
    },
    "turns_by_system": "CREATE INDEX turns_by_system ON turns(system_sha, run)",
    "turns_by_toolset": "CREATE INDEX turns_by_toolset ON turns(toolset_sha, run)",
    "prompts_by_first": "CREATE INDEX prompts_by_first ON prompts(first_seen)",
    "prompts_by_last": "CREATE INDEX prompts_by_last ON prompts(last_seen)",
}
"""Indexes of version 7. A store of version 6 gets them after it was opened, because each reads a
whole table."""


def create_statements() -> list[str]:
    """Statements that make an empty database a store."""
    return [
        *map(create_table, TABLES),
        *INDEXES.values(),
        *LATER_INDEXES.values(),
        *fact_statements(),
    ]


def fact_statements() -> list[str]:
    """Statements that mark the file as a store of this version."""
    return [
        f"INSERT OR REPLACE INTO facts(name, value) VALUES('oldest reader', {OLDEST_READER})",
        f"PRAGMA application_id = {APPLICATION_ID}",
        f"PRAGMA user_version = {VERSION}",
    ]
