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

from nbagent.contracts.canonical import load_json
from nbagent.shown import cut_middle, plain_repr
from nbagent.tools.base import listed, nearest

_WANTS_LIST = frozenset(
    ("list_type", "tuple_type", "set_type", "frozen_set_type", "sequence_str", "is_instance_of")
)
_CHOICES = frozenset(("enum", "literal_error"))
_EXTRA = frozenset(("extra_forbidden", "unexpected_keyword_argument"))
_MISSING = frozenset(("missing", "missing_argument", "missing_keyword_only_argument"))
_WRAPPERS = ("arguments", "args", "kwargs", "input", "inputs", "parameters", "params", "tool_input")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_INPUT_CHARS = 120
_SAID_CHARS = 200
_MOST_PROBLEMS = 8
_UNCHANGED: Any = object()
Problem = Mapping[str, Any]
"""One error of pydantic: its `type`, its `loc`, its `msg`, the `input`, and a `ctx`."""
Path = tuple[Any, ...]


class Habits:
    """Undoes the habits in the arguments of one call, in place.

    Args:
        raw: the arguments, a copy that may be changed.
        tool: its name; some models put the arguments under it.
        names: of the parameters.
        optional: those that may be left out.
    """

    def __init__(
        self, raw: dict[str, Any], *, tool: str, names: Collection[str], optional: Collection[str]
    ) -> None:
        self.raw = raw
        self.notes: list[str] = []
        self._names, self._optional = names, optional
        self._unwrap(tool)

    def repair(self, problems: Iterable[Problem]) -> bool:
        """Undo what led to pydantic's problems; False when nothing could be done."""
        repaired: set[Path] = set()
        for problem in problems:
            path = self._path(problem)
            kind = str(problem["type"])
            if not path or path in repaired or kind in _MISSING | _EXTRA:
                continue
            holder = _at(self.raw, path[:-1])
            was = holder[path[-1]]
            value = _instead(was, kind, problem)
            if value is not _UNCHANGED:
                holder[path[-1]] = value
                self.notes.append(f"{_where(path)}: {_short(was)} read as {_short(value)}")
                repaired.add(path)
            elif was is None and len(path) == 1 and path[0] in self._optional:
                del self.raw[path[0]]
                self.notes.append(f"{path[0]}: None left out, the default counts")
                repaired.add(path)
        return bool(repaired)

    def explained(self, problems: Iterable[Problem]) -> str:
        """What does not fit: one clause for each place, the first few of them."""
        places: dict[Path, list[Problem]] = {}
        for problem in problems:
            places.setdefault(self._path(problem), []).append(problem)
        lines = [self._line(path, found) for path, found in places.items()]
        more = [f"and {len(lines) - _MOST_PROBLEMS} more"] if len(lines) > _MOST_PROBLEMS else []
        return "; ".join(lines[:_MOST_PROBLEMS] + more)

    def _unwrap(self, tool: str) -> None:
        if len(self.raw) != 1:
            return
        ((key, value),) = self.raw.items()
        if key in self._names or key.lower() not in (*_WRAPPERS, tool.lower()):
            return
        inner = _decoded(value) if isinstance(value, str) else value
        if not isinstance(inner, dict):
            return
        inner = cast("dict[str, Any]", inner)
        if not inner or any(name in self._names for name in inner):
            self.raw.clear()
            self.raw.update(inner)
            self.notes.append(f"{key}: opened, its entries are arguments")

    def _path(self, problem: Problem) -> Path:
        """Where in the arguments it is: without the names of union members in pydantic's path."""
        here: Any = self.raw
        path: Path = ()
        for part in problem["loc"]:
            inside = isinstance(here, dict) and part in here
            if inside or (isinstance(here, list) and isinstance(part, int) and part < len(here)):  # pyright: ignore[reportUnknownArgumentType]
                path = (*path, part)
                here = cast("Any", here)[part]
        return (*path, problem["loc"][-1]) if problem["type"] in _MISSING else path

    def _line(self, path: Path, problems: list[Problem]) -> str:
        where, kind = _where(path) or "arguments", problems[0]["type"]
        if kind in _MISSING:
            return f"{where}: is missing"
        if kind in _EXTRA:
            return f"{where}: {self._no_such(path)}"
        words = dict.fromkeys(_lower(str(problem["msg"])) for problem in problems)
        value = problems[0].get("input")
        close = nearest(str(value), _choices(problems[0])) if kind in _CHOICES else None
        hint = f"; did you mean {close!r}?" if close else ""
        said = cut_middle(" or ".join(words), _SAID_CHARS)
        return f"{where}: {said}, got {plain_repr(value, _INPUT_CHARS)}{hint}"

    def _no_such(self, path: Path) -> str:
        if len(path) > 1:
            return "there is no such key"
        if close := nearest(_where(path), self._names):
            return f"there is no such parameter, did you mean {close!r}?"
        there = f"the parameters are {listed(self._names)}" if self._names else "it takes none"
        return f"there is no such parameter, {there}"


def _at(raw: Any, path: Path) -> Any:
    for part in path:
        raw = raw[part]
    return raw


def _instead(value: Any, kind: str, problem: Problem) -> Any:
    """What was meant by a value that does not fit."""
    if kind in _CHOICES:
        text = value.strip().casefold() if isinstance(value, str) else None
        same = [choice for choice in _choices(problem) if choice.casefold() == text]
        return same[0] if len(same) == 1 else _UNCHANGED
    if isinstance(value, str):
        inner = _decoded(value)
        if not isinstance(inner, str):
            return inner
    if kind in _WANTS_LIST and value is not None and not isinstance(value, list):
        return [value]
    return _UNCHANGED


def _choices(problem: Problem) -> list[str]:
    """The texts among the choices, which pydantic lists as `'a', 'b' or 'c'`."""
    expected = str(cast("Mapping[str, Any]", problem.get("ctx", {})).get("expected", ""))
    return [str(ast.literal_eval(text)) for text in _QUOTED.findall(expected)]


def _decoded(text: str) -> Any:
    """The JSON inside a string; the string itself when there is none."""
    try:
        return load_json(text)
    except (ValueError, RecursionError):
        return text


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _where(path: Path) -> str:
    parts = (f"[{it}]" if isinstance(it, int) else f".{cut_middle(str(it), 60)}" for it in path)
    return "".join(parts).lstrip(".")


def _short(value: object) -> str:
    return plain_repr(value, 60)
