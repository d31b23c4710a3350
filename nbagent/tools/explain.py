"""Why arguments do not fit, in words that a model can act on: which one, what it was, what is
expected, an example. Short, without pydantic's links; the caller keeps secrets out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from nbagent.contracts.canonical import dump_json
from nbagent.shown import cut_middle, plain_repr
from nbagent.tools.base import listed, nearest
from nbagent.tools.shape import JsonSchema, branches, opened, sample, type_words

_INPUT_CHARS = 120
_SAID_CHARS = 200
_SAMPLE_CHARS = 160
_MOST_PROBLEMS = 8
_EXTRA = ("extra_forbidden", "unexpected_keyword_argument")
_MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")


def explained(problems: list[dict[str, Any]], raw: Mapping[str, Any], schema: JsonSchema) -> str:
    """One line for each place that does not fit, the first few of them."""
    places: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for problem in problems:
        places.setdefault(_path(problem, raw), []).append(problem)
    lines = [_line(path, found, schema) for path, found in places.items()]
    told = lines[:_MOST_PROBLEMS]
    more = [f"and {len(lines) - len(told)} more"] if len(lines) > len(told) else []
    return "; ".join(told + more)


def _path(problem: dict[str, Any], raw: Mapping[str, Any]) -> tuple[Any, ...]:
    """Where in the data a problem is: without the names of union members in pydantic's path."""
    here: Any = raw
    path: list[Any] = []
    loc = [part for part in problem["loc"] if part not in ("**", "[key]")]
    for i, part in enumerate(loc):
        items = cast("list[Any]", here)
        inside = isinstance(here, dict) and part in here
        if inside or (isinstance(here, list) and isinstance(part, int) and part < len(items)):
            here = items[part]
            path.append(part)
        elif problem["type"] in _MISSING and i == len(loc) - 1:
            path.append(part)
    return tuple(path)


def _line(path: tuple[Any, ...], problems: list[dict[str, Any]], schema: JsonSchema) -> str:
    where, problem = _where(path), problems[0]
    kind = problem["type"]
    node = _node(path, schema)
    if kind in _EXTRA:
        return f"{where}: {_no_such(path, schema)}"
    expected = type_words(node, schema)
    if kind in _MISSING:
        return (
            f"{where}: is missing"
            + (f", expected {expected}" if expected else "")
            + _such(node, schema)
        )
    got = plain_repr(problem.get("input"), _INPUT_CHARS)
    if len(problems) > 1 and expected:
        return f"{where}: expected {expected}, got {got}" + _such(node, schema)
    said = str(problem["msg"])
    said = cut_middle(said[:1].lower() + said[1:], _SAID_CHARS)
    if kind in ("enum", "literal_error") and expected.startswith("one of"):
        said = f"expected {expected}"
    return f"{where}: {said}, got {got}" + _such(node, schema)


def _no_such(path: tuple[Any, ...], schema: JsonSchema) -> str:
    above = branches(_node(path[:-1], schema), schema)
    names = [name for node in above for name in node.get("properties", {})]
    word = "parameter" if len(path) == 1 else "key"
    close = nearest(str(path[-1]), names)
    if close:
        return f"there is no such {word}, did you mean {close!r}?"
    return f"there is no such {word}" + (
        f", the {word}s are {listed(names)}" if names else ", it takes none"
    )


def _node(path: tuple[Any, ...], schema: JsonSchema) -> JsonSchema:
    """The schema of a place; empty where it says nothing about it."""
    here = schema
    for part in path:
        found: Any = None
        for option in branches(opened(here, schema), schema):
            if isinstance(part, int):
                ordered = cast("list[Any]", option.get("prefixItems", ()))
                found = ordered[part] if part < len(ordered) else option.get("items")
            else:
                found = option.get("properties", {}).get(part, option.get("additionalProperties"))
            if isinstance(found, dict):
                break
        if not isinstance(found, dict):
            return {}
        here = cast("JsonSchema", found)
    return opened(here, schema)


def _such(node: JsonSchema, schema: JsonSchema) -> str:
    """An example, where the words for the type do not show one."""
    first = branches(node, schema)[0] if node else {}
    if not first or "enum" in first or "const" in first:
        return ""
    kind, text = first.get("type"), "format" in first or "pattern" in first
    if kind not in ("array", "object", "integer", "number", "boolean") and not text:
        return ""
    if "pattern" in first and not first.get("examples"):
        return ""
    shown = dump_json(sample(first, schema)).decode("utf-8", "replace")
    return f", such as {shown}" if 2 < len(shown) <= _SAMPLE_CHARS or kind == "integer" else ""


def _where(path: tuple[Any, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{cut_middle(str(part), 60)}"
    return text.lstrip(".") or "arguments"
