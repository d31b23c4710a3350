"""DataFrames of libraries other than pandas: polars, pyarrow, modin, dask, ibis, DuckDB, …

Only this module imports narwhals, which reads all of them alike, and only if such a value comes:
the import takes 60 ms. Tables that are not computed yet are described and not computed: that may
take hours, or cost money.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

from nbagent.shown.images import of_class
from nbagent.shown.texts import OMITTED, VALUE_ERRORS, class_name, count_of

_PACKAGES = frozenset(
    {"cudf", "dask", "duckdb", "ibis", "modin", "narwhals", "polars", "pyarrow", "pyspark"}
)
"""Packages whose tables narwhals reads, and narwhals."""
_PROTOCOLS = frozenset({"__arrow_c_stream__", "__dataframe__"})
"""Methods by which tables of all other packages give their data."""
_COMPUTED_BY = {
    "dask": "compute()",
    "ibis": "to_pandas()",
    "duckdb": "df()",
    "pyspark": "toPandas()",
    "pyarrow": "to_table()",
}
"""Calls that compute a table of a package; in all others `collect()`."""


def is_foreign(value: object) -> bool:
    """True if a value may be a table of a library other than pandas. Runs no code of the value."""
    kind = type(value)
    if kind in (ForeignTable, LazyTable):
        return True
    parents = kind.__mro__
    return any(_package(parent) in _PACKAGES for parent in parents) or any(
        name in vars(parent) for parent in parents for name in _PROTOCOLS
    )


def _package(kind: type) -> str:
    module: object = type.__getattribute__(kind, "__module__")
    return module.partition(".")[0] if isinstance(module, str) else ""


class ForeignTable:
    """Reads an eager table row by row; a cell becomes a Python value when it is shown."""

    def __init__(self, frame: Any, title: str, *, is_series: bool = False) -> None:
        self._frame = frame
        self.title = title
        self.is_series = is_series
        """True if it is a single column without a table."""
        self.names: list[str] = list(frame.columns)
        self.n_rows: int = len(frame)
        self.n_columns = len(self.names)

    def dtypes(self, n_columns: int) -> list[tuple[Any, Any]]:
        schema = self._frame.schema
        return [(name, schema[name]) for name in self.names[:n_columns]]

    def header(self, n_columns: int) -> list[Any]:
        return list(self.names[:n_columns])

    def rows(self, n_columns: int, positions: range) -> Iterator[Sequence[Any]]:
        some = self._frame.select(self.names[:n_columns])
        # A slice: `row(i)` takes, which pyarrow cannot do for all of its types.
        return (some[i : i + 1].rows()[0] for i in positions)

    def without(self, is_hidden: Callable[[object], bool]) -> ForeignTable:
        """Copy without the columns whose names are to be hidden."""
        names = [name for name in self.names if not is_hidden(name)]
        return self if names == self.names else ForeignTable(self._frame.select(names), self.title)

    def columns(self) -> dict[str, list[Any]]:
        """Return all cells as Python values, by column."""
        return {name: self._frame[name].to_list() for name in self.names}


class LazyTable:
    """Describes a table whose rows are not computed yet, or cannot be read here."""

    def __init__(self, value: object, schema: Sequence[tuple[str, object]]) -> None:
        package = _package(type(value))
        self.title = f"{class_name(value)} ({package})"
        self.schema = schema
        self.how = f".{_COMPUTED_BY.get(package, 'collect()')}"
        """Call that computes it."""

    def text(self, cell: Callable[[Any], str]) -> str:
        """Name its columns, and how to get its rows."""
        columns = ", ".join(f"{cell(name)} {dtype}".strip() for name, dtype in self.schema)
        return (
            f"{self.title}: rows not computed yet, {count_of(len(self.schema), 'column')}\n"
            f"dtypes: {columns}\n"
            f"(all rows{OMITTED}: call {self.how} and use its result)"
        )


def foreign_table(value: Any) -> ForeignTable | LazyTable | None:
    """Open a table of another library; None if the value is not one.

    Errors of the value's own code are raised.
    """
    if isinstance(value, ForeignTable | LazyTable):
        return value
    if of_class(value, "pyarrow.dataset", "Dataset"):
        return LazyTable(value, [(field.name, field.type) for field in value.schema])
    if _package(cast("type[Any]", type(value))) == "dask":
        return _dask_table(value)
    # Late: the values of most notebooks are not of these libraries.
    import narwhals

    native = _readable(value)
    if native is None:
        return None
    frame: Any = narwhals.from_native(native, pass_through=True, allow_series=True)
    if isinstance(frame, narwhals.LazyFrame):
        schema = cast("Any", frame).collect_schema()
        return LazyTable(value, [(str(name), dtype) for name, dtype in schema.items()])
    is_series = isinstance(frame, narwhals.Series)
    if is_series:
        frame = (frame if frame.name else frame.alias("values")).to_frame()
    if not isinstance(frame, narwhals.DataFrame):
        return None
    title = f"{class_name(value)} ({_package(cast('type[Any]', type(value)))})"
    return ForeignTable(frame, title, is_series=is_series)


def _dask_table(value: Any) -> LazyTable | None:
    """Describe a DataFrame or Series of dask: narwhals needs another package for them."""
    kind = cast("type[Any]", type(value))
    if hasattr(kind, "to_frame"):
        return LazyTable(value, [(str(value.name), value.dtype)])
    if hasattr(kind, "columns"):
        return LazyTable(value, [(str(name), value.dtypes[name]) for name in value.columns])
    return None


def _readable(value: Any) -> Any:
    """Return a value in a form that narwhals reads; None if it has none."""
    pyarrow: Any = sys.modules.get("pyarrow")
    if of_class(value, "pyarrow", "RecordBatch"):
        value = pyarrow.Table.from_batches([value])
    if of_class(value, "pyarrow", "Table"):
        names = _unique(value.column_names)
        return value if names == value.column_names else value.rename_columns(names)
    if of_class(value, "pyarrow", "Array"):
        return pyarrow.chunked_array([value])
    kind = cast("type[Any]", type(value))
    if any(_package(parent) in _PACKAGES for parent in kind.__mro__):
        return value
    return _from_protocol(value)


def _unique(names: Sequence[str]) -> list[str]:
    """Number the names that a table has twice, as narwhals reads a column by its name."""
    unique: list[str] = []
    for name in names:
        number = 2
        new = name
        while new in unique:
            new, number = f"{name} ({number})", number + 1
        unique.append(new)
    return unique


def _from_protocol(value: Any) -> Any:
    """Read a table of an unknown library by a protocol; None if no loaded library can do it.

    A table that does not know its length is lazy: its stream would compute it.
    """
    kind = cast("type[Any]", type(value))
    if not (hasattr(kind, "__len__") or hasattr(kind, "num_rows") or hasattr(kind, "shape")):
        return None
    pyarrow: Any = sys.modules.get("pyarrow")
    polars: Any = sys.modules.get("polars")
    with suppress(*VALUE_ERRORS):
        if hasattr(kind, "__arrow_c_stream__"):
            if pyarrow is not None:
                return pyarrow.table(value)
            if polars is not None:
                return polars.DataFrame(value)
    return _from_interchange(value) if hasattr(kind, "__dataframe__") else None


def _from_interchange(value: Any) -> Any:
    for package in ("pyarrow.interchange", "pandas.api.interchange"):
        module: Any = sys.modules.get(package)
        if module is not None:
            with suppress(*VALUE_ERRORS), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the protocol is deprecated, and still in use
                return module.from_dataframe(value)
    return None
