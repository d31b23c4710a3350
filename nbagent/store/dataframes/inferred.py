"""Frames whose dtypes pandas infers from the cells: small tables, columns of JSON, no rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any, cast

from nbagent.contracts.canonical import json_object, load_json
from nbagent.contracts.errors import UsageError
from nbagent.contracts.nearest import nearest_or_all
from nbagent.store.dataframes.arrays import pandas_module, string_dtype

if TYPE_CHECKING:
    import pandas as pd


def frame_of(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a frame; pandas infers the dtypes."""
    return pandas_module().DataFrame(list(rows))


def empty_frame(frame: pd.DataFrame, sentence: str) -> pd.DataFrame:
    """Copy a frame without rows that displays a sentence instead of bare headers."""
    empty: Any = _empty_frame_class()(frame)
    empty.sentence = sentence
    return empty


@cache
def _empty_frame_class() -> Any:
    # Made when it is needed: pandas is imported late.
    pandas = pandas_module()

    class EmptyFrame(pandas.DataFrame):
        """A DataFrame without rows; all that is derived from it is a plain one."""

        _metadata = ("sentence",)

        @property
        def _constructor(self) -> Any:
            return pandas.DataFrame

        def __repr__(self) -> str:
            return self.sentence

        def _repr_html_(self) -> str:
            return f"<p>{escape(self.sentence)}</p>"

        def __reduce__(self) -> Any:
            return pandas.DataFrame(self).__reduce__()

    return EmptyFrame


def frame_of_columns(columns: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Columns as a frame that keeps each cell's type: integers stay so beside missing cells."""
    pandas = pandas_module()
    cells = {name: pandas.Series(list(some), dtype=object) for name, some in columns.items()}
    whole = {
        name: cells[name] if any(cell is None for cell in some) else cells[name].infer_objects()
        for name, some in columns.items()
    }
    return pandas.DataFrame(whole)


def expand(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Add a column for each key of the JSON objects in one column.

    `nbagent.expand(df, "args")` adds `args.city`; cells that are no objects get missing values.

    Raises:
        UsageError: there is no such column, or it does not contain JSON.
    """
    pd, table = pandas_module(), cast("Any", frame)
    if column not in table.columns:
        names = [str(name) for name in table.columns]
        hint = nearest_or_all(column, names, "it has")
        raise UsageError(f"the frame has no column {column!r}{hint}")
    try:
        objects = [json_object(load_json(cell)) or {} for cell in table[column].fillna("{}")]
    except (TypeError, ValueError):
        raise UsageError(f"{column!r} is not JSON; use a column such as 'args'") from None
    added = {
        f"{column}.{key}": _inferred(
            pd.Series([row.get(key) for row in objects], index=table.index, dtype=object)
        )
        for key in dict.fromkeys(key for row in objects for key in row)
    }
    return pd.concat([table, pd.DataFrame(added, index=table.index)], axis=1)


def _inferred(cells: Any) -> Any:
    """Series with the dtype that fits its cells."""
    series = cells.convert_dtypes()
    is_text = isinstance(series.dtype, pandas_module().StringDtype)
    return series.astype(string_dtype()) if is_text else series
