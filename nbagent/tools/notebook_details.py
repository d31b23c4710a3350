"""One value of a notebook in detail: what `nb.inspect` tells.

Owns what is said of each kind of value. It runs the value's own code, as a cell would: call it
where a stop reaches it. How values are cut and what is hidden is `notebook_values`'.
"""

from __future__ import annotations

import inspect
import math
import sys
import types
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, cast

from nbagent.contracts.chat import FilePart, ImagePart
from nbagent.contracts.ports import ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import is_secret_name, redact_cut, redact_json
from nbagent.shown import BROKEN, clean, cut_middle, fitted, plain_repr
from nbagent.shown.pictures import of_class
from nbagent.shown.texts import kind_name
from nbagent.tools.notebook_names import masked_text, stored_attributes
from nbagent.tools.notebook_values import (
    FUNCTIONS,
    SCALARS,
    SIZED,
    ends_shown,
    facts_of,
    table_shown,
    type_text,
    value_shown,
)

_SOURCE_CHARS = 12_000
_DOC_CHARS = 4_000
_LINE_CHARS = 80
_DESCRIBED_CELLS = 2_000_000
"""Of a larger table or array, evenly spread rows are described."""
_MOST_COLUMNS = 100
_MOST_NAMES = 200
_SAMPLE = 1_000


def inspected(name: str, value: Any) -> ToolOutcome:
    """One value in detail."""
    facts = facts_of(value)
    facts.pop("value", None)
    parts: tuple[ImagePart | FilePart, ...] = ()
    details = next((tell for fits, tell in _DETAILS if fits(value)), None)
    told, cut = None if details is None else _quietly(lambda: details(value)), False
    if told is None:
        told, parts, cut = _anything(value)
    # Each text in it was redacted before it was cut.
    data = redact_json({"name": name, **facts, **told})
    result = ToolResult(ok=True, data=data, attachments=parts)
    return ToolOutcome(result=result, truncated=cut)


def _quietly(compute: Callable[[], Any]) -> Any:
    """What is computed, without its warnings; None when it fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compute()
    except BROKEN:
        return None


def _frame(frame: Any) -> dict[str, Any]:
    rows, columns = frame.shape
    names = list(frame.columns[:_MOST_COLUMNS])
    kinds = list(frame.dtypes.iloc[:_MOST_COLUMNS])
    told: dict[str, Any] = {
        "columns": [
            {"name": _name_text(name), "dtype": str(kind)[:_LINE_CHARS]}
            for name, kind in zip(names, kinds, strict=False)
        ],
        "index": f"{kind_name(frame.index)}, {str(frame.index.dtype)[:_LINE_CHARS]}",
        **ends_shown(frame),
    }
    if columns > _MOST_COLUMNS:
        told["columns_left_out"] = columns - _MOST_COLUMNS
    return told | _description(frame, rows, columns)


def _description(table: Any, rows: int, columns: int) -> dict[str, Any]:
    """What `describe` and `isna` say of the rows, or of evenly spread ones of very many."""
    if not rows or not columns:
        return {}
    every = math.ceil(rows * columns / _DESCRIBED_CELLS)
    part = table.iloc[::every]
    if of_class(part, "pandas", "DataFrame"):
        shown = [i for i, name in enumerate(list(part.columns)) if not is_secret_name(name)]
        part = part if len(shown) == columns else part.iloc[:, shown]
    told: dict[str, Any] = {}
    described = _quietly(lambda: part.describe())
    if described is not None:
        told["describe"] = table_shown(described)
    missing = _quietly(lambda: _missing(part.isna().sum()))
    if missing:
        told["missing"] = missing
    if every > 1 and told:
        told["described_rows"] = f"{len(part):,} of {rows:,}, evenly spread"
    return told


def _missing(counts: Any) -> Any:
    if not hasattr(counts, "items"):
        return int(counts)
    found = {_name_text(name): int(count) for name, count in counts.items() if count}
    return dict(islice(found.items(), _MOST_COLUMNS))


def _name_text(name: Any) -> str:
    text = name if type(name) is str else plain_repr(name, 100)
    return cut_middle(text, 100)


def _series(series: Any) -> dict[str, Any]:
    if is_secret_name(series.name):
        return {"not_shown": f"its name {_name_text(series.name)!r} looks like a secret"}
    return ends_shown(series) | _description(series, len(series), 1)


def _array(array: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"text": table_shown(array)}
    if array.dtype.kind not in "biuf" or not array.size:
        return told
    numpy: Any = sys.modules["numpy"]
    every = math.ceil(array.size / (_DESCRIBED_CELLS * 10))
    flat = array.reshape(-1)[::every] if array.flags.c_contiguous else array
    if of_class(array, "numpy.ma", "MaskedArray"):
        numbers = {"min": flat.min, "max": flat.max, "mean": flat.mean}
    else:
        numbers = {
            "min": lambda: numpy.nanmin(flat),
            "max": lambda: numpy.nanmax(flat),
            "mean": lambda: numpy.nanmean(flat),
        }
    for name, compute in numbers.items():
        number = _quietly(lambda compute=compute: compute().item())
        if number is not None:
            told[name] = fitted(number, 100).data
    if every > 1:
        told["computed_from"] = f"every {every}th element"
    return told


def _text(text: object, budget: int) -> str:
    plain = text if type(text) is str else ""
    return masked_text(redact_cut(clean(cut_middle(plain.strip(), budget))))


def _code(thing: Any) -> dict[str, Any]:
    """Signature, docstring and source of a function or a class."""
    told: dict[str, Any] = {}
    signature = _quietly(lambda: str(inspect.signature(thing)))
    if isinstance(signature, str):
        name = getattr(thing, "__name__", "")
        told["signature"] = _text(f"{name}{signature}", 1_000)
    doc = _quietly(lambda: inspect.getdoc(thing))
    if isinstance(doc, str) and doc:
        told["docstring"] = _text(doc, _DOC_CHARS)
    source = _quietly(lambda: inspect.getsource(thing))
    if isinstance(source, str):
        told["source"] = _text(source, _SOURCE_CHARS)
    module: Any = _quietly(lambda: thing.__module__)
    if isinstance(module, str) and module != "__main__":
        told["module"] = module[:200]
    return told


def _class(kind: Any) -> dict[str, Any]:
    bases = [base.__name__ for base in kind.__bases__ if base is not object]
    held = _held_by(kind)
    members = [n for n in held if not n.startswith("_")][:_MOST_NAMES]
    return {**({"bases": bases} if bases else {}), **_code(kind), "members": members}


def _module(module: Any) -> dict[str, Any]:
    there = stored_attributes(module)
    told: dict[str, Any] = {"module": str(there.get("__name__", ""))[:200]}
    if type(there.get("__version__")) is str:
        told["version"] = there["__version__"][:100]
    if doc := _text(there.get("__doc__"), _DOC_CHARS):
        told["docstring"] = doc
    names = sorted(name for name in list(there) if type(name) is str and not name.startswith("_"))
    told["names"] = names[:_MOST_NAMES]
    if len(names) > _MOST_NAMES:
        told["names_left_out"] = len(names) - _MOST_NAMES
    return told


def _anything(
    value: Any,
) -> tuple[dict[str, Any], tuple[ImagePart | FilePart, ...], bool]:
    """Containers, records, pictures and objects of any class."""
    it = value_shown(value)
    told: dict[str, Any] = {"value": it.data}
    kind = cast("type[Any]", type(value))
    plain: Any = dict
    if issubclass(kind, dict):
        told["key_types"] = _types(plain.keys(value))
        told["item_types"] = _types(plain.values(value))
    elif kind in (list, tuple, set, frozenset, deque):
        told["item_types"] = _types(value)
    elif kind not in (*SCALARS, *SIZED) and not it.parts:
        told |= _about(value, kind)
    return told, it.parts, it.cut


def _types(items: Iterable[Any]) -> list[str]:
    found = Counter(type_text(item) for item in islice(items, _SAMPLE))
    return [name for name, _ in found.most_common(10)]


def _held_by(kind: Any) -> dict[str, Any]:
    return dict(cast("Mapping[str, Any]", vars(kind)))


def _about(value: Any, kind: Any) -> dict[str, Any]:
    told: dict[str, Any] = {}
    doc = _held_by(kind).get("__doc__")
    if type(doc) is str and doc.strip():
        told["docstring"] = _text(inspect.cleandoc(doc), 1_000)
    attributes = {
        name: "looks like a secret" if is_secret_name(name) else type_text(item)
        for name, item in list(stored_attributes(value).items())[:_MOST_NAMES]
        if type(name) is str and not name.startswith("_")
    }
    if attributes:
        # What stands under these words is the name of a type.
        told["attributes"] = [f"{name}: {text}" for name, text in attributes.items()]
    return told


def _is_a(*kinds: Any) -> Callable[[object], bool]:
    return lambda value: issubclass(type(value), kinds)


def _from(module: str, name: str) -> Callable[[object], bool]:
    return lambda value: of_class(value, module, name)


def _plain_array(value: Any) -> bool:
    return of_class(value, "numpy", "ndarray") and value.dtype.kind in "biufcmMSU"


_DETAILS: tuple[tuple[Callable[[Any], bool], Callable[[Any], dict[str, Any]]], ...] = (
    (_from("pandas", "DataFrame"), _frame),
    (_from("pandas", "Series"), _series),
    (_plain_array, _array),
    (_is_a(*FUNCTIONS), _code),
    (_is_a(type), _class),
    (_is_a(types.ModuleType), _module),
)
