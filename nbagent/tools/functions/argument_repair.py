"""Repair typical mistakes of models in arguments if the meaning is clear.

Examples are JSON inside a string, one value instead of a list, `null` for a default, all arguments
under `"arguments"`, or a choice in another case. Owns the repairs, the notes about them and the
error text for the rest. Values that pydantic coerces itself and strings for `str` do not change.
The text that a model sent is decoded before, in `contracts.messages.parse_arguments`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

from nbagent.contracts.canonical import json_object, load_json
from nbagent.contracts.messages import is_storable_json
from nbagent.contracts.nearest import name_list, nearest_hint
from nbagent.shown.texts import cut_middle, safe_repr

# Error types: https://docs.pydantic.dev/latest/errors/validation_errors/
_WANTS_LIST = frozenset(
    ("list_type", "tuple_type", "set_type", "frozen_set_type", "sequence_str", "is_instance_of")
)
_CHOICES = ("enum", "literal_error")
_MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")
_EXTRA = ("extra_forbidden", "unexpected_keyword_argument")
_WRAPPERS = (
    *("arguments", "args", "input", "parameters", "params"),
    *("kwargs", "tool_input", "tool_args", "tool_arguments", "properties"),
)
_CALL_KEYS = frozenset(("name", "tool", "tool_name", "function", "type", "id"))
"""Keys beside the arguments in a whole call, which some models send as the arguments."""
_FENCE = re.compile(r"\s*```(?:json|python)?\s*\n?(.*?)\n?\s*```\s*", re.DOTALL | re.IGNORECASE)
_TRAILING = re.compile(r"(?:\s|[,;]|</?[\w:.|-]+>|<\|[\w|]+\|>)*")
"""Text behind a value: the punctuation of the list around it, tags of a chat template."""
_MAX_DECODED = 3
"""JSON inside JSON inside JSON."""
_QUOTED_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_MAX_PROBLEMS = 8
_MAX_LITERAL_CHARS = 100_000
_DECODER = json.JSONDecoder()
Problem = Mapping[str, Any]
"""One error of pydantic: `type`, `loc`, `msg`, `input` and `ctx`."""
Path = tuple[Any, ...]


class ArgumentRepair:
    """Repairs the arguments of one call in place.

    Args:
        raw: the arguments, a copy that may be changed.
        names: names of all parameters.
        optional: names of the parameters with a default.
    """

    def __init__(
        self, raw: dict[str, Any], *, names: Collection[str], optional: Collection[str]
    ) -> None:
        self.raw = raw
        self.notes: list[str] = []
        self._names, self._optional = names, optional
        self._unwrap()

    def repair(self, problems: Iterable[Problem]) -> bool:
        """Repair values that pydantic refused; False if nothing could be repaired."""
        repaired: set[Path] = set()
        for problem in problems:
            path = self._path(problem)
            if not path or path in repaired or problem["type"] in _MISSING + _EXTRA:
                continue
            holder: Any = self.raw
            for part in path[:-1]:
                holder = holder[part]
            old_value = holder[path[-1]]
            new_value = _repaired(old_value, problem)
            if new_value is not old_value:
                holder[path[-1]] = new_value
                old_text, new_text = safe_repr(old_value, 60), safe_repr(new_value, 60)
                note = f"{_path_text(path)}: {old_text} read as {new_text}"
            elif old_value is None and len(path) == 1 and path[0] in self._optional:
                del self.raw[path[0]]
                note = f"{path[0]}: None ignored, the default is used"
            else:
                continue
            self.notes.append(note)
            repaired.add(path)
        return bool(repaired)

    def explain(self, problems: Iterable[Problem]) -> str:
        """Describe the first eight problems for the model."""
        lines = list(dict.fromkeys(map(self._line, problems)))
        more = [f"and {len(lines) - _MAX_PROBLEMS} more"] if len(lines) > _MAX_PROBLEMS else []
        return "; ".join(lines[:_MAX_PROBLEMS] + more)

    def _unwrap(self) -> None:
        """Take the arguments out of an object around them, also out of a whole call."""
        if any(key in self._names for key in self.raw):
            return
        wrappers = [key for key in self.raw if key not in _CALL_KEYS]
        inner = json_object(_decode_json(self.raw[wrappers[0]])) if len(wrappers) == 1 else None
        if inner is None or wrappers[0] not in _WRAPPERS:
            return
        if not inner or any(name in self._names for name in inner):
            self.raw.clear()
            self.raw.update(inner)
            self.notes.append(f"{wrappers[0]}: its entries are read as the arguments")

    def _path(self, problem: Problem) -> Path:
        """Path of a problem in the arguments.

        pydantic's `loc` also has the names of union members, which are no keys of the arguments.
        """
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
        where = _path_text(path) or "arguments"
        if kind in _MISSING:
            return f"{where}: is missing"
        if kind in _EXTRA and len(path) > 1:
            return f"{where}: there is no such key"
        if kind in _EXTRA:
            hint = nearest_hint(where, self._names)
            return (
                f"{where}: is unknown{hint}; the parameters are {name_list(self._names) or 'none'}"
            )
        message = cut_middle(str(problem["msg"]), 200)
        got = safe_repr(problem.get("input"), 120)
        return f"{where}: {message[:1].lower()}{message[1:]}, got {got}"


def _repaired(value: Any, problem: Problem) -> Any:
    """Return the value that the model meant; the value itself if that is not clear."""
    kind = problem["type"]
    if kind in _CHOICES:
        text = value.strip().casefold() if isinstance(value, str) else None
        same = [choice for choice in _choices(problem) if choice.casefold() == text]
        return same[0] if len(same) == 1 else value
    inner = _decode_json(value)
    if inner is value and kind in _WANTS_LIST and not isinstance(value, list | None):
        return [value]
    return inner


def _choices(problem: Problem) -> list[str]:
    """Texts among the choices, read from pydantic's message `'a', 'b' or 'c'`."""
    expected = str(cast("Mapping[str, Any]", problem.get("ctx", {})).get("expected", ""))
    return [str(ast.literal_eval(text)) for text in _QUOTED_TEXT.findall(expected)]


def _decode_json(value: Any) -> Any:
    """Decode JSON inside a string; return the value itself if there is none, or only a string."""
    inner = value
    for _ in range(_MAX_DECODED):
        if not isinstance(inner, str):
            return inner
        try:
            inner = load_json(inner)
        except (ValueError, RecursionError):
            inner = _decode_container(inner)
            return value if inner is None else inner
    return value if isinstance(inner, str) else inner


def _decode_container(text: str) -> Any:
    """Decode a list or object in a fence, with text behind, or as a Python literal; else None."""
    if fenced := _FENCE.fullmatch(text):
        text = fenced[1]
    text = text.strip()
    if not text.startswith(("[", "{")) or len(text) > _MAX_LITERAL_CHARS:
        return None
    with suppress(ValueError, RecursionError):
        value, end = _DECODER.raw_decode(text)
        return value if _TRAILING.fullmatch(text, end) and is_storable_json(value) else None
    if "\\" in text:
        return None  # Python warns of an escape that it does not know, in the cell.
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        # Only values that JSON has; a set or a tuple would be another mistake.
        literal = ast.literal_eval(text)
        return literal if is_storable_json(literal) else None
    return None


def _path_text(path: Path) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return cut_middle("".join(parts).lstrip("."), 60)
