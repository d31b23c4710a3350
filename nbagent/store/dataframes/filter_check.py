"""Checks of filters before a frame is read: names, short names, and words that no row has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.contracts.nearest import nearest_name, nearest_or_all
from nbagent.store.connections import Connection
from nbagent.store.dataframes.derived import hash_texts
from nbagent.store.dataframes.filters import SPECIAL_FILTERS, filter_cells, filter_condition
from nbagent.store.dataframes.variant_check import axis_hint, check_labels
from nbagent.store.frame_queries import ALIASES, FRAMES, KNOWN_VALUES, Frame
from nbagent.store.rows import cell_text

_INDEXED_FILTERS = ("run", "run_id", "session", "batch", "name", "parent_id", "template_sha")
"""Filters that find their rows by an index."""
_SUGGESTION_ROWS = 10_000
"""Newest rows whose values are suggested for a value that no row has."""


def without_aliases(
    name: str, filters: dict[str, Any], connections: Sequence[Connection]
) -> dict[str, Any]:
    """Copy the filters of a frame with the names of its columns; refuse unknown names."""
    columns = FRAMES[name].by_name
    named = dict[str, Any]()
    for filter_name, value in filters.items():
        column = ALIASES.get(filter_name, filter_name)
        column = column if column in columns else filter_name
        if column in named:
            raise UsageError(f"{column!r} is set twice in the filters; remove one of them")
        named[column] = value
    _check_filter_names(name, named, connections)
    return named


def with_whole_notebook_names(
    filters: dict[str, Any], connections: Sequence[Connection]
) -> dict[str, Any]:
    """Replace short names of notebooks: `penguins` is each `…/penguins.ipynb` that has runs."""
    if "notebook" not in filters:
        return filters
    cells = filter_cells("notebook", filters["notebook"], "category")
    sql = "SELECT DISTINCT notebook FROM runs WHERE notebook IS NOT NULL"
    stored = {cell_text(path) for connection in connections for (path,) in connection.execute(sql)}
    whole: list[Any] = []
    for cell in cells:
        is_exact = cell is None or cell in stored
        ends = () if is_exact else (f"/{cell}".casefold(), f"/{cell}.ipynb".casefold())
        paths = [path for path in sorted(stored) if _as_posix(path).endswith(ends)]
        whole += paths or [cell]
    return {**filters, "notebook": whole}


def _as_posix(path: str) -> str:
    return "/" + path.replace("\\", "/").casefold()


def _check_filter_names(
    name: str, filters: dict[str, Any], connections: Sequence[Connection]
) -> None:
    general = [] if name == "prompts" else ["run", "session", "batch", "model"]
    general += ["since", "until", "limit", "store"] + ["whole"] * (name == "messages")
    known = dict.fromkeys((*FRAMES[name].by_name, *general, *(FRAMES[name].filters or ())))
    for filter_name, value in filters.items():
        if filter_name not in known:
            hint = axis_hint(name, filter_name, value, connections)
            hint = hint or nearest_or_all(filter_name, known, "the filters are")
            raise UsageError(f"there is no filter {filter_name!r}{hint}")
    if filters.get("whole") and "run" not in filters:
        raise UsageError('whole=True needs the run: nbagent.messages(run="last", whole=True)')


def check_words(frame: Frame, filters: dict[str, Any], connections: Sequence[Connection]) -> None:
    """Refuse values of category columns that no row has and that look like a typing error.

    Labels of variants are refused if no run has them.
    """
    check_labels(filters, connections)
    for name, value in filters.items():
        # Names of runs are no category, but a person writes them from memory, too.
        if name in SPECIAL_FILTERS or (frame.dtype(name) != "category" and name != "name"):
            continue
        known = set(KNOWN_VALUES.get(name, ()))
        wanted: list[str] = [word for word in filter_cells(name, value, "category") if word]
        # A run may have no row in this frame: its session or model is a valid value all the same.
        searched = [FRAMES["runs"]] * (name in FRAMES["runs"].by_name)
        searched += [frame] * (frame is not FRAMES["runs"])
        missing = [
            word
            for word in wanted
            if word not in known
            and not any(
                _has_value(connection, frame_with_column, name, word)
                for frame_with_column in searched
                for connection in connections
            )
        ]
        if not missing:
            continue
        for frame_with_column in searched:
            for connection in connections:
                known |= _newest_values(connection, frame_with_column, name)
        for wanted_value in missing:
            suggestions = [
                known_value
                for known_value in sorted(known)
                if known_value.endswith(f":{wanted_value}")
            ]
            near = nearest_name(wanted_value, sorted(known), similarity=0.7)
            suggestions += [near] if near else []
            if suggestions:
                raise UsageError(
                    f"no row has {name}={wanted_value!r}; did you mean {suggestions[0]!r}?"
                )
            if name in KNOWN_VALUES or (name == "model" and ":" not in wanted_value):
                existing = ", ".join(sorted(known)) or "no row yet"
                raise UsageError(f"no row has {name}={wanted_value!r}; there is {existing}")


def _has_value(connection: Connection, frame: Frame, name: str, value: str) -> bool:
    """True if a row has this value; the newest rows are looked at first."""
    condition, arguments = filter_condition(frame, name, value)
    # The order has no use for an index of the column, which is faster wherever there is one.
    order = "" if name in _INDEXED_FILTERS else f"ORDER BY {frame.newest_first}"
    statements = (
        f"SELECT 1 FROM {source} WHERE {condition} {order} LIMIT 1" for source in frame.sources
    )
    return any(connection.execute(sql, arguments).fetchone() for sql in statements)


def _newest_values(connection: Connection, frame: Frame, name: str) -> set[str]:
    """Values of a column in the newest rows."""
    cells: set[Any] = set()
    for source in frame.sources:
        sql = (
            f"SELECT {frame.expression(name)} FROM {source} "
            f"ORDER BY {frame.newest_first} LIMIT {_SUGGESTION_ROWS}"
        )
        cells.update(cell for (cell,) in connection.execute(sql) if cell is not None)
    column = frame.by_name.get(name)
    texts = hash_texts([*cells], connection) if column and column.is_hash else cells
    return {str(cell_text(cell)) for cell in texts}
