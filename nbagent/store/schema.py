"""The SQL statements that create the tables and indexes of a store."""

from __future__ import annotations

from nbagent.store.columns import (
    APPLICATION_ID,
    OLDEST_READER,
    TABLES,
    VERSION,
    added_columns,
    changed_keys,
    create_table,
)
from nbagent.store.connections import Connection

SORTED_BY_INDEX = ("started_at", "cost_usd", "total_tokens", "duration_ms")
"""Columns by which a history is sorted without reading all runs."""
_INDEXES = {
    6: (
        "CREATE UNIQUE INDEX runs_by_id ON runs(run_id)",
        "CREATE INDEX runs_by_name ON runs(name) WHERE name IS NOT NULL",
        "CREATE INDEX runs_by_batch ON runs(batch) WHERE batch IS NOT NULL",
        "CREATE INDEX runs_at_work ON runs(phase) WHERE phase = 'Running'",
        "CREATE INDEX runs_by_parent ON runs(parent_id) WHERE parent_id IS NOT NULL",
    ),
    7: (
        "CREATE INDEX runs_by_session ON runs(session)",
        "CREATE INDEX runs_by_notebook ON runs(notebook) WHERE notebook IS NOT NULL",
        # For the runs of a notebook that was renamed. Cells of batches are not searched.
        "CREATE INDEX runs_by_kernel ON runs(kernel_id) WHERE kernel_id IS NOT NULL",
        "CREATE INDEX runs_by_cell ON runs(cell_id) WHERE batch IS NULL",
        "CREATE INDEX runs_by_workflow ON runs(workflow) WHERE workflow IS NOT NULL",
        "CREATE INDEX runs_by_start ON runs(started_at)",
        "CREATE INDEX runs_by_template ON runs(template_sha, started_at) "
        "WHERE template_sha IS NOT NULL",
        # For a history that is sorted. Runs of batches are in none, so a large batch hides no run.
        *(
            f"CREATE INDEX history_by_{name} ON runs({name} DESC) WHERE batch IS NULL"
            for name in SORTED_BY_INDEX
        ),
        "CREATE INDEX prompts_by_first ON prompts(first_seen)",
        "CREATE INDEX prompts_by_last ON prompts(last_seen)",
    ),
}
"""Statements of the indexes, by the version that has them first."""
TURN_INDEXES = {
    "turns_by_system": "CREATE INDEX turns_by_system ON turns(system_sha, run)",
    "turns_by_toolset": "CREATE INDEX turns_by_toolset ON turns(toolset_sha, run)",
}
"""Indexes of hashes. A migrated store gets them when its hashes are numbers (`upkeep`): an index
that grows with each of them would write a page for each row."""


def create_statements() -> list[str]:
    """Statements that make an empty database a store."""
    indexes = (statement for statements in _INDEXES.values() for statement in statements)
    tables = map(create_table, TABLES)
    return [*tables, *indexes, *TURN_INDEXES.values(), *fact_statements()]


def added_statements(version: int) -> list[str]:
    """Statements that bring a store of the version before to this one."""
    tables = [create_table(name) for name, table in TABLES.items() if table.since == version]
    columns = (f"ALTER TABLE {table} ADD COLUMN {name}" for table, name in added_columns(version))
    keys = (statement for name in changed_keys(version) for statement in _rewrite(name))
    return [*tables, *columns, *keys, *_INDEXES.get(version, ())]


def _rewrite(table: str) -> list[str]:
    """Statements that give a table another key: SQLite cannot change the key of a table."""
    earlier = f"{table}_before"
    names = ", ".join(TABLES[table].by_name)
    # A cell of a key without rowid is not NULL; it may have been before.
    in_key = TABLES[table].key.split("(")[1].split(")")[0].split(", ")
    cells = (f"coalesce({name}, '')" if name in in_key else name for name in TABLES[table].by_name)
    return [
        f"ALTER TABLE {table} RENAME TO {earlier}",
        create_table(table),
        f"INSERT INTO {table}({names}) SELECT {', '.join(cells)} FROM {earlier}",
        f"DROP TABLE {earlier}",
    ]


def fact_statements() -> list[str]:
    """Statements that mark the file as a store of this version."""
    return [
        f"INSERT OR REPLACE INTO facts(name, value) VALUES('oldest reader', {OLDEST_READER})",
        f"PRAGMA application_id = {APPLICATION_ID}",
        f"PRAGMA user_version = {VERSION}",
    ]


def set_fact(c: Connection, name: str, value: str | int) -> None:
    """Write a fact about the file."""
    c.execute("INSERT OR REPLACE INTO facts(name, value) VALUES(?, ?)", (name, value))
