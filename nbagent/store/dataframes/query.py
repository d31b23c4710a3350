"""The query of a frame in one store: its filters, its order, and its limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.store.columns import TIMESTAMP
from nbagent.store.connections import Connection
from nbagent.store.dataframes.filters import filter_condition, single_cell
from nbagent.store.frame_queries import LINEAGE, Frame
from nbagent.store.writer import Store

_FIRST_RUNS = 100
"""Number of the newest runs in which the rows of `limit` are looked for first."""
_MOST_RUNS = 10_000
"""Runs whose numbers are written into a query."""
_FEW_RUNS = 5_000
"""Runs that are sorted faster than the newest runs are scanned."""
_FEW_ROWS = 1_000
"""Rows that are read and sorted faster than a query finds the newest of them."""
_ROWS_AT_ONCE = 100
"""Rows that become columns at once: so few are still in the processor's cache, and cause no garbage
collections. A large frame takes a fifth less time."""


class FrameQuery:
    """Query of a frame in one store."""

    def __init__(
        self,
        frame: Frame,
        filters: Mapping[str, Any],
        store: Store,
        connection: Connection,
        sort: str = "",
    ) -> None:
        self.frame = frame
        self._connection = connection
        self._conditions = ["1"]
        self._parameters: list[Any] = []
        self._run_conditions: list[str] = []
        """Conditions that only the row's run has to fulfil."""
        self._run_parameters: list[Any] = []
        self._order = frame.order
        self.limit = -1
        _check_period(filters)
        for name, value in filters.items():
            if name == "run":
                self._filter_run(store.find(single_cell(name, value, "string")), filters)
            elif name in ("since", "until"):
                self._filter_time(name, single_cell(name, value, TIMESTAMP), filters)
            elif name == "limit":
                self.limit = single_cell(name, value, "Int64")
                if self.limit < 0:
                    raise UsageError(f"limit must be a whole number from 0, not {value!r}")
            elif name != "whole":
                condition, arguments = filter_condition(frame, name, value)
                self._conditions.append(condition)
                self._parameters += arguments
                if frame.expression(name).startswith("r."):
                    self._run_conditions.append(condition)
                    self._run_parameters += arguments
        self._newest_first = "limit" in filters and not sort
        if sort:
            self._order = f"{frame.expression(sort)} DESC"
        elif self._newest_first:
            self._order = frame.newest_first
        elif len(frame.sources) > 1:
            self._order = ""
        elif "since" in filters and frame.run_number == "x.n":
            self._order = "+x.n"  # the index of times finds these rows, not a scan in their order
        self._has_run = "run" in filters
        self.is_whole = bool(filters.get("whole"))
        """The rows are those of a conversation, also of the runs before this one."""

    def _filter_time(self, name: str, moment: int, filters: Mapping[str, Any]) -> None:
        condition = f"{self.frame.time_column} {'>=' if name == 'since' else '<'} ?"
        if self.frame.run_number == "x.n" and "limit" in filters:
            sql = f"SELECT count(*) FROM (SELECT 1 FROM runs x WHERE {condition} LIMIT {_FEW_RUNS})"
            if self._connection.execute(sql, (moment,)).fetchone()[0] == _FEW_RUNS:
                # `+`: without the index of times; all its rows would be sorted for the newest 50.
                condition = f"+{condition}"
        self._conditions.append(condition)
        self._parameters.append(moment)

    def _filter_run(self, run_id: str, filters: Mapping[str, Any]) -> None:
        lineage = self._connection.execute(LINEAGE, (run_id,)).fetchall()
        if filters.get("whole"):
            parts = (f"(x.run = {n} AND x.position < {end})" for n, end in lineage)
            # One system message is enough.
            own = f"(x.position >= 0 OR x.run = {lineage[0][0]})"
            self._conditions += [f"({' OR '.join(parts)})", own]
        else:
            # The number itself, not a parameter: SQLite then pushes the condition down into each
            # part of a UNION and uses its key.
            self._conditions.append(f"{self.frame.run_number} = {lineage[0][0]}")

    def columns(self, expressions: Sequence[str]) -> list[list[Any]]:
        """Read the cells of each expression; oldest first unless they are sorted.

        A frame with several sources has the rows of each, at most `limit` of each, in any order.
        """
        if self.frame.is_nested and not self._has_run:
            columns = self._read_by_run(expressions)
        else:
            columns = self._read(expressions, "1")
        if self._newest_first and len(self.frame.sources) == 1:
            for column in columns:
                column.reverse()
        return columns

    def _read_by_run(self, expressions: Sequence[str]) -> list[list[Any]]:
        """Find the runs first and write their numbers into the query: they reach into a subquery,
        which a condition on the run and LIMIT do not. The newest rows are in the newest runs."""
        most = max(_FIRST_RUNS, self.limit) if self._newest_first else _MOST_RUNS + 1
        while True:
            numbers = self._run_numbers(most)
            is_all = len(numbers) < most
            if self._newest_first and len(self.frame.sources) > 1:
                needed = self._newest_with_rows(numbers)
                if needed:
                    # The rows are sorted after they were read, and cut to the limit then.
                    return self._read(expressions, self._bound(needed), sorts=False)
            columns = self._read(expressions, self._bound(numbers))
            if is_all or not self._newest_first or len(columns[0]) >= self.limit:
                return columns
            most *= 8

    def _bound(self, numbers: Sequence[int]) -> str:
        """SQL condition of these runs, the newest ones; others may fulfil it if they are many."""
        if len(numbers) <= _MOST_RUNS:
            return f"x.run IN ({','.join(map(str, numbers))})"
        return f"x.run >= {numbers[-1]}" if self._newest_first else "1"

    def _newest_with_rows(self, numbers: Sequence[int]) -> Sequence[int]:
        """The first of these runs that have enough rows for the limit; none if all have too few,
        or far too many: SQLite then sorts them and reads the rows of the limit only."""
        sql = (
            f"SELECT x.run, count(*) FROM {self.frame.sources[0]} "
            f"WHERE {' AND '.join((self._bound(numbers), *self._conditions))} GROUP BY x.run"
        )
        counts = dict(self._connection.execute(sql, self._parameters).fetchall())
        n_rows = 0
        for i, number in enumerate(numbers):
            n_rows += counts.get(number, 0)
            if n_rows >= self.limit:
                return numbers[: i + 1] if n_rows <= 2 * self.limit + _FEW_ROWS else ()
        return ()

    def _run_numbers(self, most: int) -> list[int]:
        """Numbers of the newest runs that the filters allow."""
        conditions = [one for one in (*self._run_conditions, self.frame.run_condition) if one]
        sql = (
            f"SELECT r.n FROM runs r WHERE {' AND '.join(conditions or ['1'])} "
            "ORDER BY r.n DESC LIMIT ?"
        )
        cursor = self._connection.execute(sql, (*self._run_parameters, most))
        return [n for (n,) in cursor]

    def _read(
        self, expressions: Sequence[str], bound: str, *, sorts: bool = True
    ) -> list[list[Any]]:
        columns = [list[Any]() for _ in expressions]
        order = f"ORDER BY {self._order}" if self._order and sorts else ""
        limit = self.limit if sorts else -1
        for source in self.frame.sources:
            sql = (
                f"SELECT {', '.join(expressions)} FROM {source} "
                f"WHERE {' AND '.join((bound, *self._conditions))} {order} LIMIT ?"
            )
            cursor = self._connection.execute(sql, (*self._parameters, limit))
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
                    column.extend(cells)
        return columns


def _check_period(filters: Mapping[str, Any]) -> None:
    """Refuse a period that ends before it begins."""
    if {"since", "until"} <= filters.keys():
        since, until = (single_cell(name, filters[name], TIMESTAMP) for name in ("since", "until"))
        if since > until:
            raise UsageError(
                f"since={filters['since']!r} is after until={filters['until']!r}; exchange them"
            )
