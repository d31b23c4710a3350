"""Models' habits with arguments, undone where the meaning is plain: JSON inside strings, one value
for a list, `null` for a default, `"1,234"`, enum names, camelCase, everything under `"arguments"`.

Owns the repairs and the notes about them. What pydantic coerces by itself is left to it; what a
repair does not make valid is refused by `schema`. A `str` parameter keeps its string as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from enum import Enum, Flag
from typing import Any, cast

from nbagent.contracts.canonical import dump_json, load_json
from nbagent.shown import plain_repr
from nbagent.tools.shape import ENUM, LITERAL, JsonSchema, branches, opened

_WANTS_LIST = frozenset({"list_type", "tuple_type", "set_type", "frozen_set_type"}) | {
    "iterable_type",
    "sequence_str",
    "is_instance_of",
}
_WANTS_OBJECT = frozenset({"dict_type", "mapping_type", "model_type", "dataclass_type"}) | {
    "model_attributes_type",
    "named_tuple_type",
}
_EXTRA = frozenset(("extra_forbidden", "unexpected_keyword_argument"))
_CHOICES = frozenset(("enum", "literal_error"))
_WRAPPERS = ("arguments", "args", "kwargs", "input", "inputs", "parameters", "params", "tool_input")
_FILLERS = frozenset(("", "_", "dummy", "noop", "none", "placeholder", "random_string", "unused"))
"""Keys that models make up where a tool takes no argument."""
_NULLS = frozenset(("", "null", "none", "undefined"))
_EMPTY = _NULLS - {"none"}
"""`"none"` may be meant as a word where a default counts."""
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_EXPONENT = re.compile(r"[+-]?\d+(\.\d+)?[eE]\+?\d{1,2}")
_COMPACT_DAY = re.compile(r"(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])")
_LOOSE_DAY = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?=$|[T ])")
_LOOSE_HOUR = re.compile(r"^T?(\d)(:\d{2}(?::\d{2}.*)?)")
_UNCHANGED: Any = object()


@dataclass(frozen=True, slots=True)
class _Spot:
    """A value in the arguments: where it is held, and the schemas of it and of its holder."""

    holder: Any
    path: tuple[Any, ...]
    node: JsonSchema
    above: JsonSchema


class Habits:
    """Undoes the habits in the arguments of one call, in place.

    Args:
        raw: the arguments, a copy that may be changed.
        schema: the generator's schema, with references and the marks of enums.
        seen: the Enum classes and Literals of the marks.
        tool: its name; some models put the arguments under it.
        rest: the name of the tool's `**kwargs`, where it has them.
    """

    def __init__(
        self,
        raw: dict[str, Any],
        schema: JsonSchema,
        seen: Mapping[int, Any],
        *,
        tool: str,
        rest: str | None,
    ) -> None:
        self.raw = raw
        self.notes: list[str] = []
        self._made_lists: list[tuple[_Spot, Any]] = []
        self._schema, self._seen = schema, seen
        self._unwrap(tool, rest)
        self._walk(raw, schema, "")

    def repair(self, problems: Iterable[Mapping[str, Any]]) -> bool:
        """Undo what led to pydantic's problems; False when nothing could be done."""
        touched: set[tuple[Any, ...]] = set()
        for problem in problems:
            loc, kind = problem["loc"], str(problem["type"])
            spot = self._spot(loc)
            if not spot.path or spot.path in touched or kind.startswith("missing"):
                continue
            if kind in _EXTRA:
                done = spot.path[-1] == loc[-1] and self._leave_out_filler(spot)
            else:
                done = loc[-1] != "[key]" and self._replace(spot, kind)
            if done:
                touched.add(spot.path)
        return bool(touched)

    def take_back(self, problems: Iterable[Mapping[str, Any]]) -> bool:
        """Undo the lists of one value that did not help, so that a refusal shows the value."""
        failing = [self._spot(problem["loc"]).path for problem in problems]
        taken = False
        for spot, was in reversed(self._made_lists):
            if any(path[: len(spot.path)] == spot.path for path in failing):
                spot.holder[spot.path[-1]], taken = was, True
        return taken

    def _replace(self, spot: _Spot, kind: str) -> bool:
        holder, key = spot.holder, spot.path[-1]
        was, value = holder[key], self._instead(holder[key], kind, spot.node)
        if value is _UNCHANGED:
            return self._leave_out(spot)
        if kind in _WANTS_LIST and value == [was]:
            self._made_lists.append((spot, was))
        holder[key] = value
        self._note(f"{_where(spot.path)}: {_told(was)} read as {_told(value)}")
        return True

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _unwrap(self, tool: str, rest: str | None) -> None:
        properties = cast("JsonSchema", self._schema.get("properties", {}))
        if rest is not None and rest not in properties and isinstance(self.raw.get(rest), dict):
            inner = cast("dict[str, Any]", self.raw.pop(rest))
            self.raw.update({k: v for k, v in inner.items() if k not in self.raw})
            self._note(f"{rest}: opened, its entries are arguments")
        if len(properties) == 1 and rest is None and self.raw:
            self._wrap_flat(*next(iter(properties.items())))
        if len(self.raw) != 1:
            return
        ((key, value),) = self.raw.items()
        if key in properties or key.lower() not in (*_WRAPPERS, tool.lower()):
            return
        inner = _decoded(value) if isinstance(value, str) else value
        if not isinstance(inner, dict):
            return
        inner = cast("dict[str, Any]", inner)
        folded = {_fold(name) for name in properties}
        if not inner or any(_fold(name) in folded for name in inner):
            self.raw.clear()
            self.raw.update(inner)
            self._note(f"{key}: opened, its entries are arguments")

    def _wrap_flat(self, name: str, node: JsonSchema) -> None:
        """Take the fields of the one object that a tool takes, sent without the object."""
        options = branches(opened(node, self._schema), self._schema)
        fields = {_fold(field) for b in options for field in b.get("properties", ())}
        if _fold(name) not in fields and all(_fold(key) in fields for key in self.raw):
            inner = dict(self.raw)
            self.raw.clear()
            self.raw[name] = inner
            self._note(f"{', '.join(inner)}: read as fields of {name}")

    def _walk(self, value: Any, node: JsonSchema, where: str) -> None:
        """What pydantic would take in another sense, or leave out without a word."""
        options = branches(opened(node, self._schema), self._schema)
        if isinstance(value, dict):
            objects = [b for b in options if b.get("type", "object") == "object"]
            if len(objects) != 1 or not objects[0].get("properties"):
                return
            here, node = cast("dict[str, Any]", value), objects[0]
            properties = cast("JsonSchema", node["properties"])
            if node.get("additionalProperties", False) is False:
                self._rename(here, properties, where)
            for key in here.keys() & properties.keys():
                self._step(here, key, properties[key], f"{where}.{key}".lstrip("."))
        elif isinstance(value, list):
            arrays = [b for b in options if "items" in b]
            if len(arrays) == 1 and self._is_walked(arrays[0]["items"]):
                here = cast("list[Any]", value)
                for i in range(len(here)):
                    self._step(here, i, arrays[0]["items"], f"{where}[{i}]")

    def _is_walked(self, node: Any) -> bool:
        """Whether there is anything to see to: a long list of numbers is passed by."""
        options = branches(opened(node, self._schema), self._schema)
        return any("properties" in b or "items" in b or "format" in b for b in options)

    def _step(self, holder: Any, key: Any, node: JsonSchema, where: str) -> None:
        value = holder[key]
        if isinstance(value, dict | list):
            self._walk(value, node, where)
        elif isinstance(value, str | int) and _COMPACT_DAY.fullmatch(str(value).strip()):
            options = branches(opened(node, self._schema), self._schema)
            formats = {b.get("format") for b in options if b.get("type") != "null"}
            if formats and formats <= {"date", "date-time"}:
                # pydantic would count seconds since 1970.
                holder[key] = date.fromisoformat(str(value).strip()).isoformat()
                self._note(f"{where}: {_told(value)} read as {_told(holder[key])}")

    def _rename(self, here: dict[str, Any], properties: JsonSchema, where: str) -> None:
        free = {_fold(name): name for name in reversed(properties) if name not in here}
        for key in [key for key in here if key not in properties]:
            name = free.pop(_fold(key), None) if _fold(key) else None
            if name is not None:
                here[name] = here.pop(key)
                self._note(f"{where}.{key}: read as {name}".lstrip("."))

    def _spot(self, loc: Iterable[Any]) -> _Spot:
        """What pydantic's path points to; names of union members in it are skipped."""
        found = _Spot(None, (), self._schema, {})
        here: Any = self.raw
        for part in loc:
            inside = isinstance(here, dict) and part in here
            if inside or (isinstance(here, list) and _is_index(part, cast("Any", here))):
                node = self._inner(found.node, part)
                found = _Spot(cast("Any", here), (*found.path, part), node, found.node)
                here = found.holder[part]
        return found

    def _inner(self, node: JsonSchema, part: Any) -> JsonSchema:
        for option in branches(opened(node, self._schema), self._schema):
            if isinstance(part, int):
                inner = option.get("items")
                ordered = option.get("prefixItems")
                inner = ordered[part] if ordered and part < len(ordered) else inner
            else:
                inner = option.get("properties", {}).get(part, option.get("additionalProperties"))
            if isinstance(inner, dict):
                return opened(inner, self._schema)
        return {}

    def _leave_out_filler(self, spot: _Spot) -> bool:
        holder, key = spot.holder, spot.path[-1]
        value = holder[key]
        empty = value is None or value in ("", [], {})
        takes_none = not self._schema.get("properties")
        if not empty and not (holder is self.raw and takes_none and str(key).lower() in _FILLERS):
            return False
        del holder[key]
        self._note(f"{_where(spot.path)}: left out, there is no such parameter")
        return True

    def _leave_out(self, spot: _Spot) -> bool:
        """Take `null` and `""` for "the default", where the key may be missing."""
        holder, key = spot.holder, spot.path[-1]
        value = holder[key]
        if not (value is None or (isinstance(value, str) and value.strip().lower() in _EMPTY)):
            return False
        for option in branches(opened(spot.above, self._schema), self._schema):
            if key in option.get("properties", {}) and key not in option.get("required", ()):
                del holder[key]
                self._note(f"{_where(spot.path)}: {_told(value)} left out, the default counts")
                return True
        return False

    def _instead(self, value: Any, kind: str, node: JsonSchema) -> Any:
        options = branches(node, self._schema)
        if kind in _CHOICES:
            return self._chosen(value, options)
        if isinstance(value, str):
            return self._instead_of_text(value, kind, options)
        if kind in _WANTS_LIST:
            return _UNCHANGED if value is None or isinstance(value, list) else [value]
        if kind == "string_type" and isinstance(value, bool | int | float):
            return dump_json(value).decode()
        if isinstance(value, list) and kind not in _WANTS_OBJECT:
            items = cast("list[Any]", value)
            if len(items) == 1 and not isinstance(items[0], list | dict):
                return items[0]
        return _UNCHANGED

    def _instead_of_text(self, value: str, kind: str, options: list[JsonSchema]) -> Any:
        text = value.strip()
        if kind in _WANTS_LIST or kind in _WANTS_OBJECT:
            inner = _decoded(text)
            if isinstance(inner, list | dict):
                return cast("Any", inner)
        if text.lower() in _NULLS and any(b.get("type") == "null" for b in options):
            return None
        if kind in _WANTS_LIST:
            return self._listed(value, options) if text else _UNCHANGED
        if kind.startswith(("int_", "float_", "decimal_")):
            if _THOUSANDS.fullmatch(text):
                return text.replace(",", "")
            whole = _EXPONENT.fullmatch(text) and float(text).is_integer()
            return int(float(text)) if whole else _UNCHANGED
        if kind.startswith("bool_"):
            return text if text != value and text else _UNCHANGED
        if kind.startswith(("date_", "datetime_", "time_")):
            return _moment(text, value, kind)
        if kind.startswith("uuid_"):
            return text if text != value else _UNCHANGED
        return _UNCHANGED

    def _listed(self, value: str, options: list[JsonSchema]) -> list[Any]:
        """One string for a list; its commas part numbers and choices, never free text."""
        arrays = [b for b in options if b.get("type") == "array"]
        node = opened(arrays[0].get("items"), self._schema) if arrays else {}
        items = branches(node, self._schema)
        parted = all("enum" in b or b.get("type") in ("integer", "number") for b in items)
        if parted and "," in value and not _THOUSANDS.fullmatch(value.strip()):
            return [piece.strip() for piece in value.strip().strip("[]()").split(",")]
        return [value]

    def _chosen(self, value: Any, options: list[JsonSchema]) -> Any:
        """The one choice that is meant, by another case, its name, or its text."""
        if isinstance(value, list) and len(cast("list[Any]", value)) == 1:
            inner = self._chosen(cast("list[Any]", value)[0], options)
            if inner is not _UNCHANGED:
                return inner
        found: list[Any] = []
        for option in options:
            kind = self._seen.get(option.get(ENUM, 0))
            if isinstance(kind, type) and issubclass(kind, Flag):
                return _flags(value, kind)
            if isinstance(kind, type) and issubclass(kind, Enum):
                found += _meant(value, _forms(kind))
                continue
            values = self._seen.get(option.get(LITERAL, 0))
            if values is None:
                values = option.get("enum", [option["const"]] if "const" in option else [])
            found += _meant(value, [(v, _texts(v)) for v in values])
        distinct = [item for i, item in enumerate(found) if item not in found[:i]]
        return distinct[0] if len(distinct) == 1 else _UNCHANGED


def _is_index(part: Any, items: list[Any]) -> bool:
    return isinstance(part, int) and part < len(items)


def _forms(kind: type[Enum]) -> list[tuple[Any, tuple[Any, ...]]]:
    """Each member with what a model may write for it."""
    named = kind.__members__.items()
    return [(member, (name, f"{kind.__name__}.{name}", member.value)) for name, member in named]


def _texts(value: Any) -> tuple[Any, ...]:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return (text, value.name, value.value) if isinstance(value, Enum) else (text,)


def _meant(value: Any, choices: list[tuple[Any, tuple[Any, ...]]]) -> list[Any]:
    """The choices of which one form is the value's: exactly, else in another case or spelling."""
    if isinstance(value, dict):
        return []
    if isinstance(value, list):
        pair = tuple(cast("list[Any]", value))
        return [choice for choice, forms in choices if pair in forms]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip().strip("\"'")
    exact = [c for c, forms in choices if any(str(form) == text for form in forms)]
    key = _spelled(text)
    return exact or [c for c, forms in choices if any(_spelled(str(f)) == key for f in forms)]


def _spelled(text: str) -> str:
    """One spelling for `in progress`, `In-Progress`, `inProgress` and `IN_PROGRESS`."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text)
    return re.sub(r"[\s_-]+", "_", parted).casefold()


def _flags(value: Any, kind: type[Flag]) -> Any:
    pieces = re.split(r"[|,\s]+", value.strip()) if isinstance(value, str) else value
    if not isinstance(pieces, list):
        return _UNCHANGED
    made = kind(0)
    for piece in cast("list[Any]", pieces):
        found = _meant(piece, _forms(kind))
        if len(found) != 1:
            return _UNCHANGED
        made |= found[0]
    return made


def _fold(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _decoded(text: str) -> Any:
    """JSON or a Python literal inside a string; the string itself when it is neither."""
    try:
        return load_json(text)
    except (ValueError, RecursionError):
        pass
    if text[:1] not in "[{(" or len(text) > 100_000:
        return text
    try:
        inner: Any = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return list(cast("Any", inner)) if isinstance(inner, tuple | set) else inner


def _moment(text: str, value: str, kind: str) -> Any:
    """Dates and times in forms of ISO 8601 that pydantic does not read."""
    loose = _LOOSE_DAY.sub(lambda m: f"{m[1]}-{m[2]:0>2}-{m[3]:0>2}", text)
    try:
        if kind.startswith("time_") and not kind.startswith("time_delta"):
            return time.fromisoformat(_LOOSE_HOUR.sub(r"0\1\2", text)).isoformat()
        if kind.startswith("date_"):
            return date.fromisoformat(loose).isoformat()
        if kind.startswith("datetime_"):
            return datetime.fromisoformat(loose).isoformat()
    except ValueError:
        pass
    return text if text != value else _UNCHANGED


def _where(path: Iterable[Any]) -> str:
    return ".".join(str(part) for part in path)


def _told(value: object) -> str:
    return plain_repr(value, 60)
