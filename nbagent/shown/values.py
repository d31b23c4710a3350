"""A Python value as parts within a budget: text, JSON, a table, an image."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
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
from nbagent.shown.images import display_of, encoded_image, image_of, of_class
from nbagent.shown.tables import is_of_numbers, table_text
from nbagent.shown.texts import (
    BROKEN,
    BUDGET_CHARS,
    LEFT_OUT,
    bytes_text,
    clean,
    cut_middle,
    error_line,
    plain_repr,
    without_folders,
)

_PROMPT_CHARS = 20_000
"""Of one `{{ expression }}` in a prompt that is no text."""


_PROMPT_TEXT_CHARS = 1_000_000
"""Of one `{{ expression }}` that is a text: a document is sent whole."""


_DEADLINE_S = 2.0
"""For all items of one value: after it the others are left out. One item's own `repr` cannot be
cut short; it runs where a stop or an interrupt reaches it."""


_DEEPEST = 60
"""Levels of lists and objects."""


_LARGEST_INT_BITS = 4_096
"""Beyond this Python refuses to print an integer sooner or later (4,300 digits)."""


_CELL_CHARS = 200
"""Of one cell of a table, or of one element of an array of objects."""


_MOST_IMAGES = 8
"""Of one value; the others are named."""


class Normal:
    """Turns a value into plain JSON, at most `budget_chars` large or little more.

    What JSON cannot say becomes text inside; images and files inside are collected in `parts` and
    named in their place. `cut` tells whether anything was left out. With `draws`, figures and
    pictures become images.
    """

    def __init__(self, budget_chars: int, *, draws: bool = True) -> None:
        self.budget_chars = budget_chars
        self.parts: list[ImagePart | FilePart] = []
        self.cut = False
        self._draws = draws
        self._left = budget_chars
        self._above: set[int] = set()
        self._deadline: float | None = None

    def json(self, value: object) -> Any:
        """The value as plain JSON. Raises only what an iterator raises while it is read."""
        if self._deadline is None:
            # Who gives an iterator means its items, and they may take their time.
            self._deadline = time.monotonic() + (math.inf if is_iterator(value) else _DEADLINE_S)
        elif time.monotonic() > self._deadline:
            self._left = 0
        try:
            return self._plain(value, type(value))
        except BROKEN as error:
            if isinstance(error, RecursionError) if self._above else is_iterator(value):
                raise
            return self.text(plain_repr(value, 200 if self._above else self.budget_chars))

    def _plain(self, value: Any, kind: type[Any]) -> Any:
        # A value may lie about its `__class__`, so `isinstance` is not asked. Of a subclass of
        # `str`, `int` or `float` no method is trusted: these are the plain classes' own.
        if value is None or kind is bool:
            self._left -= 5
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
            # pandas' NaT is a datetime too, and no moment.
            return None if value != value else self.text(value.isoformat())
        if issubclass(kind, PurePath):
            return self.text(without_folders(str(value)).removeprefix("./"))
        if issubclass(kind, Decimal | UUID | timedelta):
            return self.text(str(value))
        if issubclass(kind, bytes | bytearray | memoryview):
            image = encoded_image(bytes(value)) if self._draws else None
            return self._named(image or bytes_text(value))
        if issubclass(kind, ImagePart | FilePart):
            return self._named(value)
        if of_class(value, "numpy", "generic"):
            # The `item` of a moment is a bare count of nanoseconds.
            plain = str(value) if value.dtype.kind in "mM" else value.item()
            return self.json(str(value) if type(plain) is kind else plain)
        pandas: Any = sys.modules.get("pandas")
        if pandas is not None and value is pandas.NA:
            return None
        if id(value) in self._above:
            return self.text("[circular]")
        if len(self._above) >= _DEEPEST:
            self.cut = True
            return self.text("[too deep]")
        self._above.add(id(value))
        try:
            opened = self._opened(value, kind)
        finally:
            self._above.discard(id(value))
        return self._named(self._leaf(value)) if opened is None else opened

    def _number(self, value: float) -> Any:
        """The number; as text where JSON or the wire has none."""
        if isinstance(value, int):
            bits = int.bit_length(value)
            if bits > _LARGEST_INT_BITS:
                return self.text(f"[an integer of {bits:,} bits]")
            self._left -= 2 + bits // 3
            return value
        if not math.isfinite(value):
            return self.text("NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity")
        self._left -= 10
        return value

    def _named(self, part: ImagePart | FilePart | str) -> str:
        """The name of an image or a file that goes along; a text as it is."""
        if isinstance(part, str):
            return self.text(part)
        word, name = part.type, part.alt if isinstance(part, ImagePart) else part.name
        if part not in self.parts:
            if len(self.parts) >= _MOST_IMAGES:
                self.cut = True
                return self.text(f"[one more {word}, not sent: {name}]")
            self.parts.append(part)
        return self.text(f"[{word} {self.parts.index(part) + 1}: {name}]")

    def text(self, text: str) -> str:
        """The text, cut to the room that is left for one text."""
        # Inside a container one long text leaves room for what comes after it.
        inside = max(self._left // 2, min(self._left, 200), 20)
        room = inside if self._above else self.budget_chars
        if len(text) > room:
            text, self.cut = cut_middle(text, max(room, 0)), True
        text = clean(text)
        self._left -= len(text) + 3 + sum(map(text.count, '"\\\n\t'))
        return text

    def _opened(self, value: Any, kind: type[Any]) -> Any:
        """What is in a container; None where it is none."""
        # Around the outermost one is kept free for the words about what is left out.
        self._left -= min(150, self._left // 10) if len(self._above) == 1 else 3
        if issubclass(kind, dict | Mapping):
            return self._object(cast("Mapping[Any, Any]", value))
        if issubclass(kind, tuple) and (names := getattr(cast("Any", kind), "_fields", None)):
            return self._object(dict(zip(names, value, strict=False)))
        if of_class(value, "sqlite3", "Row"):
            return self._object({name: value[name] for name in value.keys()})  # noqa: SIM118
        if of_class(value, "numpy", "ndarray") and not is_of_numbers(value):
            return self._object({"shape": value.shape, "elements": value.flat})
        if issubclass(kind, set | frozenset):
            return self._list(_ordered(value))
        if issubclass(kind, list | tuple | Sequence | Set | ValuesView) or is_iterator(value):
            return self._list(cast("Iterable[Any]", value))
        if issubclass(kind, BaseModel):
            # A root model gives what it wraps: anything.
            return self.json(value.model_dump(warnings=False))
        if dataclasses.is_dataclass(kind):
            names = [field.name for field in dataclasses.fields(kind)]
            return self._object({name: getattr(value, name, "[not set]") for name in names})
        return None

    def _object(self, items: Mapping[Any, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in items.items():
            if self._left <= 0:
                out["…"] = self._left_out(items, len(out), "entries")
                break
            plain = self.json(key)
            name = plain if isinstance(plain, str) else dump_json(plain).decode()
            while name in out:
                # `1` and `"1"` are two keys in Python and one in JSON.
                name += " (2)"
            out[name] = self.json(item)
        return out

    def _list(self, items: Iterable[Any]) -> list[Any]:
        out: list[Any] = []
        for item in items:
            # An iterator may never end.
            if self._left <= 0:
                return [*out, self._left_out(items, len(out), "items")]
            out.append(self.json(item))
        return out

    def _left_out(self, items: Any, shown: int, what: str) -> str:
        self.cut = True
        try:
            size: int = len(items)
        except BROKEN:
            size = 0
        missing = f"{size - shown:,} of {size:,}" if size > shown else "more"
        return f"… [{missing} {what}{LEFT_OUT}]"

    def _leaf(self, value: Any) -> ImagePart | str:
        """What has no form in JSON, as an image or a text."""
        room = max(min(self.budget_chars, self._left), 60)
        try:
            shown = (
                (image_of(value) if self._draws else None)
                or table_text(value, room, cell_text)
                or _words_for(value)
                or display_of(value)
            )
        except BROKEN:
            shown = None
        if isinstance(shown, ImagePart):
            if self._draws:
                return shown
            shown = None
        text = plain_repr(value, room) if shown is None else cut_middle(redact_truncated(shown), room)
        self.cut = self.cut or LEFT_OUT in text
        return clean(text)


def _words_for(value: Any) -> str | None:
    """Words for values whose repr has no message, or a folder of this machine."""
    if issubclass(type(value), BaseException):
        return without_folders(error_line(value))
    return f"module {value.__name__}" if issubclass(type(value), ModuleType) else None


def _ordered(items: set[Any] | frozenset[Any]) -> list[Any]:
    """A set's items in an order that is the same in the next process, if that takes no time."""
    try:
        return sorted(items)
    except BROKEN:
        return sorted(items, key=plain_repr) if len(items) < 10_000 else list(items)


def is_iterator(value: object) -> bool:
    """Whether its items are meant, and can be read once: generators, cursors, `map`, …

    Not files: they are named.
    """
    kind = type(value)
    return issubclass(kind, Iterator) and not issubclass(kind, IOBase)


def cell_text(value: object) -> str:
    """A value as the text of one cell: short however large it is, on one line, nothing drawn."""
    kind = type(value)
    if issubclass(kind, str):
        data: Any = str.__str__(cast("str", value))
    elif value is None or (issubclass(kind, float) and value != value):
        data = ""
    else:
        # With room for the words about what is left out.
        data = Normal(_CELL_CHARS // 2, draws=False).json(value)
        if isinstance(data, float):
            return f"{data:.12g}"
    text = data if isinstance(data, str) else "" if data is None else dump_json(data).decode()
    return clean(cut_middle(text, _CELL_CHARS)).replace("\r", "").replace("\n", "\\n")


@dataclasses.dataclass(frozen=True, slots=True)
class Fitted:
    """A value as JSON that keeps to a budget."""

    data: Any
    parts: tuple[ImagePart | FilePart, ...]
    """What is named in `data` as `[image 1: …]`, `[file 2: …]`."""
    cut: bool
    """Something was left out."""


def fitted(
    value: object, budget_chars: int, *, draws: bool = True, kind: type[Normal] = Normal
) -> Fitted:
    """The value as JSON of at most `budget_chars` characters; a text counts as it stands.

    Raises only what an iterator raises while it is read. `kind` shows some values in its own way.
    """
    share = 1.0
    while True:
        normal = kind(int(budget_chars * share), draws=draws)
        data = normal.json(value)
        text = data if isinstance(data, str) else dump_json(data).decode()
        if len(text) <= budget_chars:
            return Fitted(data, tuple(normal.parts), normal.cut)
        # An iterator can be read only once.
        if is_iterator(value) or share < 0.5:
            return Fitted(cut_middle(text, budget_chars), tuple(normal.parts), True)
        share *= 0.7


def shown(value: object, budget_chars: int = BUDGET_CHARS) -> tuple[Part, ...]:
    """The value as text and images; the text has at most `budget_chars` characters."""
    if _is_text(value):
        return (TextPart(text=clean(cut_middle(str.__str__(value), budget_chars))),)
    try:
        fit = fitted(value, budget_chars)
    except BROKEN as error:
        # An iterator that raised while it was read.
        fit = Fitted(f"{plain_repr(value, 200)}, which raised {type(error).__name__}", (), True)
    if len(fit.parts) == 1 and fit.data == f"[image 1: {getattr(fit.parts[0], 'alt', '')}]":
        return fit.parts
    text = fit.data if isinstance(fit.data, str) else dump_json(fit.data).decode()
    return (TextPart(text=cut_middle(text, budget_chars)), *fit.parts)


def _is_text(value: object) -> TypeGuard[str]:
    # A value may lie about its `__class__`, so `isinstance` is not asked.
    return issubclass(type(value), str) and not issubclass(type(value), Enum)


def shown_in_prompt(value: object) -> tuple[Part, ...]:
    """The value of one `{{ expression }}`: texts whole, everything else within its budget."""
    return shown(value, _PROMPT_TEXT_CHARS if _is_text(value) else _PROMPT_CHARS)


def shown_text(value: object, budget_chars: int = BUDGET_CHARS) -> str:
    """The value as text alone; an image is named, not drawn."""
    part = shown(value, budget_chars)[0]
    return part.text if isinstance(part, TextPart) else f"[image: {getattr(part, 'alt', '')}]"
