"""Converts a Python value to parts within a budget: text, JSON, a table, an image.

Owns the walk through containers. No error of a value's own code leaves this module, except from
an iterator.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections import UserString
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from datetime import date, timedelta
from datetime import time as clock_time
from decimal import Decimal
from enum import Enum
from io import IOBase
from pathlib import PurePath
from types import ModuleType
from typing import Any, TypeGuard, cast
from uuid import UUID

from pydantic import BaseModel

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.messages import FilePart, ImagePart, Part, TextPart
from nbagent.contracts.secrets import redact_truncated
from nbagent.shown.audio import to_audio
from nbagent.shown.displays import JsonDisplay, display_of, prompt_value
from nbagent.shown.images import encoded_image, of_class, to_image
from nbagent.shown.tables import is_numeric, table_text
from nbagent.shown.texts import (
    BUDGET_CHARS,
    OMITTED,
    VALUE_ERRORS,
    bytes_text,
    clean,
    cut_middle,
    error_line,
    safe_repr,
    without_folders,
)

_PROMPT_CHARS = 20_000
"""Budget of one `{{ expression }}` in a prompt whose value is not a string."""
_PROMPT_TEXT_CHARS = 1_000_000
"""Budget of one `{{ expression }}` whose value is a string: a document is sent whole."""
_DEADLINE_S = 2.0
"""Time for all items of one value; later items are left out. The `repr` of a single item cannot be
limited, but a stop or an interrupt reaches it."""
_MAX_LEVELS = 60
"""Most levels of lists and objects."""
_MAX_INT_BITS = 4_096
"""Largest integer that is printed. Python refuses to print integers over 4,300 digits."""
_CELL_CHARS = 200
"""Budget of one cell of a table, or one element of an array of objects."""
_MAX_IMAGES = 8
"""Most images of one value; the others are only named."""


class JsonBudget:
    """Converts a value to plain JSON of about `budget_chars` characters.

    Values without a JSON form become text. Images and files are collected in `parts` and replaced
    by their name. `cut` is true if anything was left out. If `with_images`, figures and pictures
    become images.
    """

    def __init__(self, budget_chars: int, *, with_images: bool = True) -> None:
        self.budget_chars = budget_chars
        self.parts: list[ImagePart | FilePart] = []
        self.cut = False
        self._with_images = with_images
        self._chars_left = budget_chars
        self._open_ids: set[int] = set()
        self._deadline: float | None = None

    def json(self, value: object) -> Any:
        """Convert a value to plain JSON. Raises only errors of an iterator that is read."""
        if self._deadline is None:
            # No deadline for an iterator: the person passed it for its items, which may be slow.
            self._deadline = time.monotonic() + (math.inf if is_iterator(value) else _DEADLINE_S)
        elif time.monotonic() > self._deadline:
            self._chars_left = 0
        try:
            return self._convert(value, type(value))
        except VALUE_ERRORS as error:
            # RecursionError ends the outermost value: down here the stack is too full for a `repr`.
            if isinstance(error, RecursionError) if self._open_ids else is_iterator(value):
                raise
            return self.text(safe_repr(value, 200 if self._open_ids else self.budget_chars))

    def _convert(self, value: Any, kind: type[Any]) -> Any:
        # A value may fake its `__class__`, so `isinstance` is not used. Methods of subclasses of
        # `str`, `int` or `float` are not trusted: those of the plain classes are called.
        if value is None or kind is bool:
            self._chars_left -= 5
            return value
        if issubclass(kind, Enum):
            return self.json(value.value)
        if issubclass(kind, str):
            return self.text(str.__str__(value))
        if issubclass(kind, int):
            return self._number(int.__pos__(value))
        if issubclass(kind, float):
            return self._number(float.__pos__(value))
        if issubclass(kind, date | clock_time):
            # pandas' NaT is a datetime, too, but has no time; it does not equal itself.
            return None if value != value else self.text(value.isoformat())
        if issubclass(kind, PurePath):
            return self.text(without_folders(str(value)).removeprefix("./"))
        if issubclass(kind, Decimal | UUID | timedelta | UserString) or _is_pandas_span(value):
            return self.text(str(value))
        if issubclass(kind, bytes | bytearray | memoryview):
            image = encoded_image(bytes(value)) if self._with_images else None
            return self._reference(image or bytes_text(value))
        if issubclass(kind, ImagePart | FilePart):
            return self._reference(value)
        if of_class(value, "numpy", "generic"):
            # `item()` of a datetime64 is a bare number of nanoseconds.
            plain = str(value) if value.dtype.kind in "mM" else value.item()
            return self.json(str(value) if type(plain) is kind else plain)
        if of_class(value, "pyarrow", "Scalar"):
            return self.json(value.as_py())
        pandas: Any = sys.modules.get("pandas")
        if pandas is not None and value is pandas.NA:
            return None
        if id(value) in self._open_ids:
            return self.text("[circular]")
        if len(self._open_ids) >= _MAX_LEVELS:
            self.cut = True
            return self.text("[too deep]")
        self._open_ids.add(id(value))
        try:
            container = self._convert_container(value, kind)
        finally:
            self._open_ids.discard(id(value))
        return self._leaf(value) if container is None else container

    def _leaf(self, value: Any) -> Any:
        own = prompt_value(value)
        leaf = self._convert_leaf(value) if own is value else JsonDisplay(own)
        if not isinstance(leaf, JsonDisplay):
            return self._reference(leaf)
        self._open_ids.add(id(value))  # the data may contain the value
        try:
            return self.json(leaf.data)
        finally:
            self._open_ids.discard(id(value))

    def _number(self, value: float) -> Any:
        """Return the number; as text if JSON has no form for it."""
        if isinstance(value, int):
            bits = int.bit_length(value)
            if bits > _MAX_INT_BITS:
                return self.text(f"[an integer of {bits:,} bits]")
            self._chars_left -= 2 + bits // 3  # a digit has 3.3 bits
            return value
        if not math.isfinite(value):
            return self.text("NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity")
        self._chars_left -= 10
        return value

    def _reference(self, part: ImagePart | FilePart | str) -> str:
        """Add an image or a file to `parts` and return its name; return a text unchanged."""
        if isinstance(part, str):
            return self.text(part)
        word, name = part.type, part.alt if isinstance(part, ImagePart) else part.name
        if part not in self.parts:
            if len(self.parts) >= _MAX_IMAGES:
                self.cut = True
                return self.text(f"[one more {word}, not sent: {name}]")
            self.parts.append(part)
        return self.text(f"[{word} {self.parts.index(part) + 1}: {name}]")

    def text(self, text: str) -> str:
        """Cut a text to the remaining budget."""
        # Inside a container a long text gets half of the rest, so that later items have room.
        inside = max(self._chars_left // 2, min(self._chars_left, 200), 20)
        room = inside if self._open_ids else self.budget_chars
        if len(text) > room:
            text, self.cut = cut_middle(text, max(room, 0)), True
        text = clean(text)
        # As in JSON: two quotes, a comma, and a backslash before some characters.
        self._chars_left -= len(text) + 3 + sum(map(text.count, '"\\\n\t'))
        return text

    def _convert_container(self, value: Any, kind: type[Any]) -> Any:
        """Convert a container; None if the value is not one."""
        # The outermost container reserves room for the marks about omissions.
        self._chars_left -= min(150, self._chars_left // 10) if len(self._open_ids) == 1 else 3
        if issubclass(kind, dict | Mapping):
            return self._object(cast("Mapping[Any, Any]", value))
        if issubclass(kind, tuple) and (names := getattr(cast("Any", kind), "_fields", None)):
            return self._object(dict(zip(names, value, strict=False)))
        if of_class(value, "sqlite3", "Row"):
            return self._object({name: value[name] for name in value.keys()})  # noqa: SIM118
        if of_class(value, "numpy", "ndarray") and not is_numeric(value):
            return self._object({"shape": value.shape, "elements": value.flat})
        if issubclass(kind, set | frozenset):
            return self._list(_sorted_items(value))
        if issubclass(kind, list | tuple | Sequence | Set | ValuesView) or is_iterator(value):
            return self._list(cast("Iterable[Any]", value))
        if issubclass(kind, BaseModel):
            # `model_dump` of a RootModel returns its root value: any type. A value that does not
            # fit its field is shown all the same, without a warning in the person's cell.
            return self.json(value.model_dump(warnings=False))
        if dataclasses.is_dataclass(kind):
            names = [field.name for field in dataclasses.fields(kind)]
            return self._object({name: getattr(value, name, "[not set]") for name in names})
        return None

    def _object(self, items: Mapping[Any, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in items.items():
            if self._chars_left <= 0:
                out["…"] = self._omitted_mark(items, len(out), "entries")
                break
            plain = self.json(key)
            name = plain if isinstance(plain, str) else dump_json(plain).decode()
            while name in out:
                # `1` and `"1"` are different keys in Python and equal ones in JSON.
                name += " (2)"
            out[name] = self.json(item)
        return out

    def _list(self, items: Iterable[Any]) -> list[Any]:
        out: list[Any] = []
        for item in items:
            # An iterator may never end.
            if self._chars_left <= 0:
                return [*out, self._omitted_mark(items, len(out), "items")]
            out.append(self.json(item))
        return out

    def _omitted_mark(self, items: Any, shown: int, unit: str) -> str:
        self.cut = True
        try:
            size: int = len(items)
        except VALUE_ERRORS:
            size = 0
        missing = f"{size - shown:,} of {size:,}" if size > shown else "more"
        return f"… [{missing} {unit}{OMITTED}]"

    def _convert_leaf(self, value: Any) -> ImagePart | JsonDisplay | str:
        """Convert a value without a JSON form to an image, a text, or the data that it shows."""
        room = max(min(self.budget_chars, self._chars_left), 60)
        try:
            shown = (
                (to_image(value) if self._with_images else None)
                or table_text(value, room, cell_text)
                or _special_text(value)
                or display_of(value)
            )
        except VALUE_ERRORS:
            shown = None
        if isinstance(shown, JsonDisplay) or (isinstance(shown, ImagePart) and self._with_images):
            return shown
        # A huge text is cut first: redacting all of it would take minutes.
        text = (
            cut_middle(shown if len(shown) > room else redact_truncated(shown), room)
            if isinstance(shown, str)
            else safe_repr(value, room)
        )
        self.cut = self.cut or OMITTED in text
        return clean(text)


def _special_text(value: Any) -> str | None:
    """Describe values whose repr lacks a message or shows a folder of this machine."""
    if issubclass(type(value), BaseException):
        return without_folders(error_line(value))
    return f"module {value.__name__}" if issubclass(type(value), ModuleType) else None


def _is_pandas_span(value: object) -> bool:
    return of_class(value, "pandas", "Period") or of_class(value, "pandas", "Interval")


def _sorted_items(items: set[Any] | frozenset[Any]) -> list[Any]:
    """Sort a set's items, so that they have the same order in the next process; unless it is huge.

    Unstable order would change the hash of a request, and with it caches and cassettes.
    """
    try:
        return sorted(items)
    except VALUE_ERRORS:
        return sorted(items, key=safe_repr) if len(items) < 10_000 else list(items)


def is_iterator(value: object) -> bool:
    """True for generators, cursors, `map`, …: their items are shown, and can be read only once.

    Files are excluded: only their name is shown.
    """
    kind = type(value)
    return issubclass(kind, Iterator) and not issubclass(kind, IOBase)


def cell_text(value: object) -> str:
    """Convert a value to the text of one table cell: short, on one line, without images."""
    kind = type(value)
    if issubclass(kind, str):
        data: Any = str.__str__(cast("str", value))
    elif value is None or (issubclass(kind, float) and value != value):
        data = ""
    else:
        # Half, to have room for the marks about omissions.
        data = JsonBudget(_CELL_CHARS // 2, with_images=False).json(value)
        if isinstance(data, float):
            return f"{data:.12g}"
    text = data if isinstance(data, str) else "" if data is None else dump_json(data).decode()
    return clean(cut_middle(text, _CELL_CHARS)).replace("\r", "").replace("\n", "\\n")


@dataclasses.dataclass(frozen=True, slots=True)
class Excerpt:
    """A value as JSON within a budget."""

    data: Any
    parts: tuple[ImagePart | FilePart, ...]
    """Images and files that `data` names as `[image 1: …]`, `[file 2: …]`."""
    cut: bool
    """True if something was left out."""


def to_json_within(
    value: object,
    budget_chars: int,
    *,
    with_images: bool = True,
    kind: type[JsonBudget] = JsonBudget,
) -> Excerpt:
    """Convert a value to JSON of at most `budget_chars` characters (of a text, without quotes).

    Raises only errors of an iterator that is read. `kind` may convert some values differently.
    """
    share = 1.0
    # The budget is an estimate (control characters take six in JSON), so it may need a smaller one.
    while True:
        budget = kind(int(budget_chars * share), with_images=with_images)
        data = budget.json(value)
        text = data if isinstance(data, str) else dump_json(data).decode()
        if len(text) <= budget_chars:
            return Excerpt(data, tuple(budget.parts), budget.cut)
        # An iterator can be read only once.
        if is_iterator(value) or share < 0.5:
            return Excerpt(cut_middle(text, budget_chars), tuple(budget.parts), True)
        share *= 0.7


def to_parts(value: object, budget_chars: int = BUDGET_CHARS) -> tuple[Part, ...]:
    """Convert a value to text and images; the text has at most `budget_chars` characters."""
    if _is_text(value):
        return (TextPart(text=clean(cut_middle(str.__str__(value), budget_chars))),)
    try:
        excerpt = to_json_within(value, budget_chars)
    except VALUE_ERRORS as error:
        # An iterator raised while it was read.
        excerpt = Excerpt(f"{safe_repr(value, 200)}, which raised {type(error).__name__}", (), True)
    if (
        len(excerpt.parts) == 1
        and excerpt.data == f"[image 1: {getattr(excerpt.parts[0], 'alt', '')}]"
    ):
        return excerpt.parts
    text = excerpt.data if isinstance(excerpt.data, str) else dump_json(excerpt.data).decode()
    return (TextPart(text=cut_middle(text, budget_chars)), *excerpt.parts)


def _is_text(value: object) -> TypeGuard[str]:
    # A value may fake its `__class__`, so `isinstance` is not used.
    return issubclass(type(value), str) and not issubclass(type(value), Enum)


def to_prompt_parts(value: object) -> tuple[Part, ...]:
    """Convert the value of one `{{ expression }}`: texts whole, other values within a budget."""
    value = prompt_value(value)
    recording = to_audio(value)
    if recording is not None:
        return (TextPart(text=recording) if isinstance(recording, str) else recording,)
    return to_parts(value, _PROMPT_TEXT_CHARS if _is_text(value) else _PROMPT_CHARS)


def to_text(value: object, budget_chars: int = BUDGET_CHARS) -> str:
    """Convert a value to text only; an image is named, not drawn."""
    part = to_parts(value, budget_chars)[0]
    return part.text if isinstance(part, TextPart) else f"[image: {getattr(part, 'alt', '')}]"
