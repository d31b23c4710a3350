"""Compares the schema of a store with the tables and indexes that nbagent makes.

A database can run code of its author: a trigger at each write, a view in the place of a table, an
expression in an index or a default. So only plain tables and plain indexes pass, and the tables of
nbagent must have their columns and keys. Tables, columns and indexes that a later nbagent added are
plain, too, so they pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from nbagent.store.columns import TABLES, VERSION, create_table

SCHEMA_SQL = "SELECT type, name, substr(sql, 1, 20000) FROM sqlite_master LIMIT 1000"
"""Statement for the rows to check. A longer statement is none of nbagent's."""
_NAME = r"[a-z][a-z0-9_]*"
_COLUMN = rf"{_NAME}(?: INTEGER(?: PRIMARY KEY)?)?"
_KEY = rf"(?:PRIMARY KEY|UNIQUE)\({_NAME}(?:, {_NAME})*\)"
_TABLE = re.compile(
    rf"CREATE TABLE (?P<name>{_NAME})\((?P<items>{_COLUMN}(?:, ?(?:{_COLUMN}|{_KEY}))*)\)"
    r"(?P<end> WITHOUT ROWID)?",
    re.IGNORECASE,
)
_ITEM = re.compile(rf"{_KEY}|{_COLUMN}")
_SORTED = rf"{_NAME}(?: ASC| DESC)?"
_INDEX = re.compile(
    rf"CREATE (?P<unique>UNIQUE )?INDEX (?P<name>{_NAME}) ON {_NAME} ?"
    rf"\({_SORTED}(?:, ?{_SORTED})*\)"
    rf"(?: WHERE {_NAME} (?:IS NULL|IS NOT NULL|= '\w*'))?",
    re.IGNORECASE,
)
_UNIQUE_INDEXES = frozenset({"runs_by_id"})
_STATISTICS = frozenset(
    {
        "CREATE TABLE sqlite_stat1(tbl,idx,stat)",
        "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
    }
)
"""Tables of ANALYZE: they hold numbers for the planner."""
_MAX_SHOWN_CHARS = 60

Entry = tuple[str, str, "str | None"]
"""Type, name and SQL of a row of `sqlite_master`."""


@dataclass(frozen=True, slots=True)
class _Table:
    """The parts of a plain CREATE TABLE."""

    columns: frozenset[str]
    """With their types."""
    keys: frozenset[str]
    """Primary key and unique columns, and the end of the statement."""


@lru_cache(maxsize=8)
def foreign_part(entries: tuple[Entry, ...], version: int) -> str:
    """Describe the first part of a schema that nbagent did not make; empty if there is none."""
    for kind, name, sql in entries:
        is_table = kind == "table" and (_parse_table(name, sql) is not None or sql in _STATISTICS)
        if not is_table and not _is_plain_index(kind, name, sql, version):
            return f"the {_shown(kind)} {_shown(name)!r}"
    return ""


@lru_cache(maxsize=8)
def missing_part(entries: tuple[Entry, ...], version: int) -> str:
    """Describe the first table of nbagent that is missing or changed; empty if there is none."""
    if version > VERSION:  # the newer nbagent says which versions read its tables
        return ""
    tables = {name: _parse_table(name, sql) for kind, name, sql in entries if kind == "table"}
    for name, expected in _EXPECTED.items():
        if TABLES[name].since <= version:
            problem = _table_problem(name, tables.get(name), expected, version)
            if problem:
                return problem
    return ""


def _parse_table(name: str, sql: str | None) -> _Table | None:
    match = _TABLE.fullmatch(sql or "")
    if match is None or match["name"] != name:
        return None
    items = frozenset(_ITEM.findall(match["items"]))
    keys = frozenset(item for item in items if item.endswith(")"))
    return _Table(items - keys, keys | {match["end"] or ""})


def _is_plain_index(kind: str, name: str, sql: str | None, version: int) -> bool:
    if kind != "index":
        return False
    if sql is None:  # of a key
        return name.startswith("sqlite_autoindex_")
    match = _INDEX.fullmatch(sql)
    if match is None or match["name"] != name:
        return False
    # A unique index refuses rows, so a stranger's could stop every run. A newer nbagent's may stay:
    # its store is only read.
    return not match["unique"] or name in _UNIQUE_INDEXES or version > VERSION


def _table_problem(name: str, table: _Table | None, expected: _Table, version: int) -> str:
    if table is None:
        return f"there is no table {name!r}"
    since = {column.name: column.since for column in TABLES[name].columns}
    wanted = {item for item in expected.columns if since[item.split()[0]] <= version}
    if missing := sorted(item.split()[0] for item in wanted - table.columns):
        return f"the table {name!r} has no plain column {missing[0]!r}"
    is_earlier = TABLES[name].earlier_key and version < TABLES[name].key_since
    if table.keys != (_expected(name, earlier_key=True) if is_earlier else expected).keys:
        return f"the table {name!r} has other keys"
    return ""


def _shown(text: object) -> str:
    return str(text)[:_MAX_SHOWN_CHARS]


def _expected(name: str, *, earlier_key: bool = False) -> _Table:
    table = _parse_table(name, create_table(name, earlier_key=earlier_key))
    assert table is not None, name
    return table


_EXPECTED = {name: _expected(name) for name in TABLES}
