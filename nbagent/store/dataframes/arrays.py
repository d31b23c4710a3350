"""Cells of SQLite as pandas arrays of the declared dtypes, which do not depend on the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbagent.store.columns import Dtype
from nbagent.store.rows import cell_text


def pandas_module() -> Any:
    """Import pandas. Typed as Any: its own annotations are too incomplete for strict checks."""
    import pandas

    return pandas


def array_of(dtype: Dtype, cells: Sequence[Any]) -> Any:
    """Build an array of a dtype from cells."""
    import numpy as np

    if _is_constant(cells):
        # Converted once: most columns of most frames have one value, or none.
        return _array(dtype, cells[:1]).take(np.zeros(len(cells), dtype=np.intp))
    return _array(dtype, cells)


def _is_constant(cells: Sequence[Any]) -> bool:
    """True if there are several cells, all equal. The few that are compared first mostly differ."""
    if len(cells) < 2:
        return False
    first = cells[0]
    if cells[-1] != first or cells[len(cells) // 2] != first:
        return False
    return cells.count(first) == len(cells)


def _array(dtype: Dtype, cells: Sequence[Any]) -> Any:
    import numpy as np

    pd = pandas_module()
    if dtype == "category":
        return _categories(cells)
    if dtype == "string":
        if bytes in set(map(type, cells)):
            # Records preserve lone surrogates; strings of a frame are strict UTF-8.
            cells = [_frame_text(cell) if type(cell) is bytes else cell for cell in cells]
        return pd.array(np.array(cells, dtype=object), dtype=string_dtype())
    # None becomes NaN. No integer column exceeds 2**53, so float64 is exact.
    numbers = np.array(cells, dtype=np.float64)
    missing = np.isnan(numbers)
    match dtype:
        case "Float64":
            return pd.arrays.FloatingArray(numbers, missing)
        case "boolean":
            return pd.arrays.BooleanArray(numbers == 1, missing)
        case "Int64":
            numbers[missing] = 0
            return pd.arrays.IntegerArray(numbers.astype(np.int64), missing)
        case _:
            numbers[missing] = -(2.0**63)  # NaT
            moments: Any = pd.DatetimeIndex(numbers.astype(np.int64).view("M8[us]"))
            return moments.tz_localize("UTC")


def _categories(cells: Sequence[Any]) -> Any:
    """Categorical array. `pandas.factorize` tests each cell for missing values, which takes longer
    than to look up its code."""
    import numpy as np

    pd = pandas_module()
    labels = {
        cell: _frame_text(cell) if type(cell) is bytes else str(cell)
        for cell in set(cells)
        if cell is not None
    }
    texts = sorted(set(labels.values()))
    places = {text: code for code, text in enumerate(texts)}
    codes = {cell: places[text] for cell, text in labels.items()} | {None: -1}
    numbers = np.fromiter(map(codes.__getitem__, cells), dtype=np.intp, count=len(cells))
    categories: Any = pd.Index(texts, dtype=string_dtype())
    return pd.Categorical.from_codes(numbers, categories=categories)


def string_dtype() -> Any:
    """Dtype of texts. Its storage is the same whether pyarrow is installed or not, so that the
    frames of one store are equal everywhere; `pd.options.mode.string_storage` chooses another."""
    pd = pandas_module()
    storage = pd.options.mode.string_storage
    return pd.StringDtype("python" if storage == "auto" else storage)


def _frame_text(cell: bytes) -> str:
    return str(cell_text(cell)).encode("utf-8", "replace").decode()
