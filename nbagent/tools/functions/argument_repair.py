"""Models' habits with arguments, undone where the meaning is plain: JSON inside strings, one value
for a list, `null` for a default, everything under `"arguments"`, a choice in another case.

Owns these repairs, the notes about them, and the words about what still does not fit. What pydantic
coerces by itself is left to it. A `str` parameter keeps its string as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from nbagent.contracts.canonical import json_object, load_json
from nbagent.shown.texts import cut_middle, plain_repr
from nbagent.tools.tool_names import listed, nearest

_WANTS_LIST = frozenset(
    ("list_type", "tuple_type", "set_type", "frozen_set_type", "sequence_str", "is_instance_of")
)
_CHOICES = ("enum", "literal_error")
_MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")
_EXTRA = ("extra_forbidden", "unexpected_keyword_argument")
_WRAPPERS = ("arguments", "args", "input", "parameters", "params")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_MOST_PROBLEMS = 8
Problem = Mapping[str, Any]
"""One error of pydantic: its `type`, its `loc`, its `msg`, the `input`, and a `ctx`."""
Path = tuple[Any, ...]


class Habits:
    """Undoes the habits in the arguments of one call, in place.

    Args:
        raw: the arguments, a copy that may be changed.
        names: of the parameters.
        optional: those that may be left out.
    """

    def __init__(
        self, raw: dict[str, Any], *, names: Collection[str], optional: Collection[str]
    ) -> None:
        self.raw = raw
        self.notes: list[str] = []
        self._names, self._optional = names, optional
        if len(raw) == 1:
            self._unwrap(*raw.items())

    def repair(self, problems: Iterable[Problem]) -> bool:
        """Undo what led to pydantic's problems; False when nothing could be done."""
        repaired: set[Path] = set()
        for problem in problems:
            path = self._path(problem)
            if not path or path in repaired or problem["type"] in _MISSING + _EXTRA:
                continue
            holder: Any = self.raw
            for part in path[:-1]:
                holder = holder[part]
            was = holder[path[-1]]
            meant = _meant(was, problem)
            if meant is not was:
                holder[path[-1]] = meant
                note = f"{_where(path)}: {plain_repr(was, 60)} read as {plain_repr(meant, 60)}"
            elif was is None and len(path) == 1 and path[0] in self._optional:
                del self.raw[path[0]]
                note = f"{path[0]}: None left out, the default counts"
            else:
                continue
            self.notes.append(note)
            repaired.add(path)
        return bool(repaired)

    def explained(self, problems: Iterable[Problem]) -> str:
        """What does not fit, the first few places of it."""
        lines = list(dict.fromkeys(map(self._line, problems)))
        more = [f"and {len(lines) - _MOST_PROBLEMS} more"] if len(lines) > _MOST_PROBLEMS else []
        return "; ".join(lines[:_MOST_PROBLEMS] + more)

    def _unwrap(self, entry: tuple[str, Any]) -> None:
        key, value = entry
        inner = json_object(_decoded(value))
        if key in self._names or key not in _WRAPPERS or inner is None:
            return
        if not inner or any(name in self._names for name in inner):
            del self.raw[key]
            self.raw.update(inner)
            self.notes.append(f"{key}: opened, its entries are arguments")

    def _path(self, problem: Problem) -> Path:
        """Where in the arguments it is: without the names of union members in pydantic's path."""
        here: Any = self.raw
        path: Path = ()
        for part in problem["loc"]:
            try:
                here = here[part]
            except (KeyError, IndexError, TypeError):
                continue
            path = (*path, part)
        return (*path, problem["loc"][-1]) if problem["type"] in _MISSING else path

    def _line(self, problem: Problem) -> str:
        path, kind = self._path(problem), problem["type"]
        where = _where(path) or "arguments"
        if kind in _MISSING:
            return f"{where}: is missing"
        if kind in _EXTRA and len(path) > 1:
            return f"{where}: there is no such key"
        if kind in _EXTRA:
            close = nearest(where, self._names)
            hint = f"; did you mean {close!r}?" if close else ""
            return f"{where}: is unknown{hint}; the parameters are {listed(self._names) or 'none'}"
        said = cut_middle(str(problem["msg"]), 200)
        return f"{where}: {said[:1].lower()}{said[1:]}, got {plain_repr(problem.get('input'), 120)}"


def _meant(value: Any, problem: Problem) -> Any:
    """What was meant by a value that does not fit; the value itself where that is not plain."""
    kind = problem["type"]
    if kind in _CHOICES:
        text = value.strip().casefold() if isinstance(value, str) else None
        same = [choice for choice in _choices(problem) if choice.casefold() == text]
        return same[0] if len(same) == 1 else value
    inner = _decoded(value)
    if inner is value and kind in _WANTS_LIST and not isinstance(value, list | None):
        return [value]
    return inner


def _choices(problem: Problem) -> list[str]:
    """The texts among the choices, which pydantic lists as `'a', 'b' or 'c'`."""
    expected = str(cast("Mapping[str, Any]", problem.get("ctx", {})).get("expected", ""))
    return [str(ast.literal_eval(text)) for text in _QUOTED.findall(expected)]


def _decoded(value: Any) -> Any:
    """The JSON inside a string; the value itself where there is none, or another string."""
    if not isinstance(value, str):
        return value
    try:
        inner = load_json(value)
    except (ValueError, RecursionError):
        return value
    return value if isinstance(inner, str) else inner


def _where(path: Path) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return cut_middle("".join(parts).lstrip("."), 60)
