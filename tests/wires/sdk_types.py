"""Whether a request is of a type of an official SDK: iterables are read out, extra keys refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Required, Union, cast, get_args, get_origin

from typing_extensions import get_type_hints, is_typeddict
from wires.harness import JSON


def problem(value: Any, kind: Any, at: str = "body") -> str:
    """Where a JSON value is not of this type; empty where it is."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Annotated, Required):
        return problem(value, args[0], at)
    if origin in (Union, UnionType):
        found = [problem(value, arg, at) for arg in args]
        return "" if "" in found else max(found, key=len)
    if origin is Literal:
        return "" if value in args else f"{at}: {value!r} is not in {args}"
    if is_typeddict(kind):
        return _not_of_dict(value, get_type_hints(kind, include_extras=True), at)
    if origin in (dict, Mapping):
        return "" if isinstance(value, dict) else f"{at}: {value!r} is no object"
    if isinstance(origin, type) and issubclass(origin, Iterable):
        if not isinstance(value, list):
            return f"{at}: {value!r} is no list"
        items = enumerate(cast("list[Any]", value))
        return next(filter(None, (problem(it, args[0], f"{at}[{n}]") for n, it in items)), "")
    if kind in (object, Any) or (kind is float and type(value) in (int, float)):
        return ""
    if kind in (str, int, bool) and type(value) is kind:
        return ""
    return "" if kind in (None, NoneType) and value is None else f"{at}: {value!r} is no {kind}"


def _not_of_dict(value: Any, hints: Mapping[str, Any], at: str) -> str:
    if not isinstance(value, dict):
        return f"{at}: {value!r} is no object"
    given = cast("JSON", value)
    required = {name for name, hint in hints.items() if get_origin(hint) is Required}
    if given.keys() - hints.keys() or required - given.keys():
        return f"{at}: {sorted(given)} are not the keys"
    inner = (problem(item, hints[name], f"{at}.{name}") for name, item in given.items())
    return next(filter(None, inner), "")
