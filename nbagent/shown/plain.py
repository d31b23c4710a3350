"""A value as plain JSON within a budget, with the images that stand in it.

Owns what each kind of value becomes inside JSON and how containers are cut. Trusts nothing that a
value says of itself: not its class, its length, its iteration or its attributes.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from datetime import date, timedelta
from datetime import time as clock_time
from decimal import Decimal
from enum import Enum
from io import IOBase
from itertools import islice
from pathlib import PurePath
from typing import Any, cast
from uuid import UUID
from weakref import CallableProxyType, ProxyType

from pydantic import BaseModel

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.chat import FilePart, ImagePart, TextPart
from nbagent.contracts.secrets import redact_cut
from nbagent.shown import budgets
from nbagent.shown.displays import described, display_of
from nbagent.shown.pictures import encoded_image, image_of, of_class
from nbagent.shown.tables import table_text
from nbagent.shown.texts import (
    BROKEN,
    LEFT_OUT,
    bytes_text,
    clean,
    cut_middle,
    plain_repr,
    without_folders,
)

_SLICED = (list, tuple, deque, range)
_TOP_LEVELS = 2
"""So deep a list that is cut keeps its end too. Deeper ones would read their items too often."""


class _NotPlainError(Exception):
    """A value that has no form in JSON."""


class Normal:
    """Turns a value into plain JSON, at most `budget_chars` large or little more.

    What JSON cannot say becomes text inside; images and files inside are collected in `parts` and
    named in their place. `cut` tells whether anything was left out.

    Args:
        patience_s: how long it may take in all; None waits, as for a tool's own generator.
        draws: whether figures and pictures become images.
    """

    def __init__(
        self,
        budget_chars: int,
        *,
        patience_s: float | None = budgets.PATIENCE_S,
        draws: bool = True,
    ) -> None:
        self.budget_chars = budget_chars
        self.parts: list[ImagePart | FilePart] = []
        self.cut = False
        self._draws = draws
        self._left = budget_chars
        self._above: set[int] = set()
        self._end = math.inf if patience_s is None else time.monotonic() + patience_s

    def json(self, value: object) -> Any:
        """The value as plain JSON. Raises only what an iterator raises while it is read."""
        if time.monotonic() > self._end:
            self._left = 0
        try:
            return self._plain(value)
        except _NotPlainError:
            return self.named(self._leaf(value))
        except BROKEN as error:
            if is_iterator(value) and not self._above:
                raise
            if isinstance(error, RecursionError) and self._above:
                raise
            return self.text(plain_repr(value, 200 if self._above else self.budget_chars))

    def _leaf(self, value: object) -> ImagePart | str:
        """What has no form in JSON, as an image or a text."""
        room = max(min(self.budget_chars, self._left), 60)
        try:
            shown = (
                (image_of(value) if self._draws else None)
                or table_text(value, room, cell_text)
                or described(value)
                or display_of(value)
            )
        except BROKEN:
            shown = None
        if isinstance(shown, ImagePart):
            if self._draws:
                return shown
            shown = None
        text = plain_repr(value, room) if shown is None else cut_middle(redact_cut(shown), room)
        self.cut = self.cut or LEFT_OUT in text
        return clean(text)

    def _plain(self, value: Any) -> Any:
        kind = cast("type[Any]", type(value))
        if value is None or kind is bool:
            self._left -= 5
            return value
        # A value may lie about its `__class__`, so `isinstance` is not asked.
        for kinds, form in _SCALARS:
            if issubclass(kind, kinds):
                return form(self, value)
        if of_class(value, "numpy", "generic"):
            # The `item` of a moment is a bare count of nanoseconds.
            plain = str(value) if value.dtype.kind in "mM" else value.item()
            return self._plain(str(value) if type(plain) is kind else plain)
        pandas: Any = sys.modules.get("pandas")
        if pandas is not None and value is pandas.NA:
            return None
        if id(value) in self._above:
            return self.text("[circular]")
        if len(self._above) >= budgets.DEEPEST:
            self.cut = True
            return self.text("[too deep]")
        self._above.add(id(value))
        try:
            return self._opened(value, kind)
        finally:
            self._above.discard(id(value))

    def number(self, value: float) -> Any:
        """The number; as text where JSON or the wire has none."""
        if isinstance(value, int):
            bits = int.bit_length(value)
            if bits > budgets.LARGEST_INT_BITS:
                return self.text(f"[an integer of {bits:,} bits]")
            self._left -= 2 + bits // 3
            return value
        if not math.isfinite(value):
            return self.text("NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity")
        self._left -= 10
        return value

    def bytes(self, value: Any) -> Any:
        """The picture that the bytes are, or their text."""
        image = encoded_image(bytes(value)) if self._draws else None
        return self.named(image or bytes_text(value))

    def named(self, part: ImagePart | FilePart | str) -> str:
        """The name of an image or a file that goes along; a text as it is."""
        if isinstance(part, str):
            return self.text(part)
        word, name = part.type, part.alt if isinstance(part, ImagePart) else part.name
        if part not in self.parts:
            if len(self.parts) >= budgets.MOST_IMAGES:
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
        # Around the outermost one is kept free for the words about what is left out.
        self._left -= min(150, self._left // 10) if len(self._above) == 1 else 3
        if issubclass(kind, dict | Mapping):
            return self._object(cast("Mapping[Any, Any]", value))
        if issubclass(kind, tuple) and (names := getattr(cast("Any", kind), "_fields", None)):
            return self._object(dict(zip(names, value, strict=False)))
        if of_class(value, "sqlite3", "Row"):
            return self._object({name: value[name] for name in value.keys()})  # noqa: SIM118
        if issubclass(kind, Set):
            return self._list(_ordered(value))
        if issubclass(kind, ValuesView):
            return self._list(list(value))
        if issubclass(kind, (*_SLICED, Sequence)) or of_class(value, "array", "array"):
            return self._list(value)
        if issubclass(kind, TextPart):
            return self.text(value.text)
        if issubclass(kind, ImagePart | FilePart):
            return self.named(value)
        if issubclass(kind, BaseModel):
            # A root model gives what it wraps: anything.
            return self.json(value.model_dump(warnings=False))
        if dataclasses.is_dataclass(kind):
            names = [field.name for field in dataclasses.fields(kind)]
            return self._object({name: getattr(value, name, "[not set]") for name in names})
        if is_iterator(value):
            return self._list(value)
        raise _NotPlainError

    def _object(self, items: Mapping[Any, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in items.items():
            if self._left <= 0:
                self.cut = True
                out["…"] = f"[{_left_out(_size(items), len(out), 'entries')}]"
                break
            plain = self.json(key)
            name = plain if isinstance(plain, str) else dump_json(plain).decode()
            while name in out:
                # `1` and `"1"` are two keys in Python and one in JSON.
                name += " (2)"
            out[name] = self.json(item)
        return out

    def _list(self, items: Sequence[Any] | Iterable[Any]) -> list[Any]:
        """The items; when they do not fit, the first ones and, near the top, the last ones too.

        An iterator may never end.
        """
        size = _size(items)
        whole = self._left
        out: list[Any] = []
        keep = n_parts = 0
        for item in items:
            if self._left <= 0:
                break
            out.append(self.json(item))
            if self._left > whole // 3:
                keep, n_parts = len(out), len(self.parts)
        else:
            return out
        self.cut = True
        tail: deque[Any] = deque()
        if len(self._above) <= _TOP_LEVELS and isinstance(items, _SLICED) and keep:
            del out[keep:], self.parts[n_parts:]
            self._left = whole // 3
            for item in islice(reversed(items), max(size - keep - 1, 0)):
                if self._left <= 0:
                    break
                tail.appendleft(self.json(item))
        return [*out, f"… [{_left_out(size, len(out) + len(tail), 'items')}] …", *tail]


def _left_out(size: int, shown: int, what: str) -> str:
    missing = size - shown
    return f"{f'{missing:,} of {size:,}' if missing > 0 else 'more'} {what}{LEFT_OUT}"


def _size(items: Any) -> int:
    """How many items it says it has; some raise, and some lie."""
    try:
        size: int = len(items)
    except BROKEN:
        return 0
    return max(size, 0)


def _ordered(items: Set[Any]) -> Sequence[Any]:
    """A set's items in an order that is the same in the next process."""
    listed = list(islice(items, budgets.SORTED_ITEMS))
    if not issubclass(type(items), set | frozenset):
        return listed  # A view of a dict has the order of the dict.
    try:
        return sorted(listed)
    except BROKEN:
        return sorted(listed[:10_000], key=plain_repr) + listed[10_000:]


def is_iterator(value: object) -> bool:
    """Whether its items are meant, and can be read once: generators, cursors, `map`, …

    Not files: they are named. Not what pretends to have each method there is.
    """
    kind = cast("type[Any]", type(value))
    pretends = issubclass(kind, ProxyType | CallableProxyType)
    pretends = pretends or of_class(value, "unittest.mock", "NonCallableMock")
    return issubclass(kind, Iterator) and not issubclass(kind, IOBase) and not pretends


_SCALARS: tuple[tuple[Any, Callable[[Normal, Any], Any]], ...] = (
    (Enum, lambda normal, value: normal.json(value.value)),
    # Of a subclass no method is trusted: these are the plain classes' own.
    (str, lambda normal, value: normal.text(str.__str__(value))),
    (int, lambda normal, value: normal.number(int.__pos__(value))),
    (float, lambda normal, value: normal.number(float.__pos__(value))),
    # pandas' NaT is a datetime too, and no moment.
    (
        (date, clock_time),
        lambda normal, value: None if value != value else normal.text(value.isoformat()),
    ),
    (PurePath, lambda normal, value: normal.text(without_folders(str(value)).removeprefix("./"))),
    ((Decimal, UUID, timedelta), lambda normal, value: normal.text(str(value))),
    ((bytes, bytearray, memoryview), Normal.bytes),
)


def cell_text(value: object) -> str:
    """A value as the text of one cell: short however large it is, on one line, nothing drawn."""
    kind = type(value)
    if issubclass(kind, str):
        data: Any = str.__str__(cast("str", value))
    elif value is None or (issubclass(kind, float) and value != value):
        data = ""
    else:
        # With room for the words about what is left out.
        data = Normal(budgets.CELL_CHARS // 2, draws=False).json(value)
        if isinstance(data, float):
            return f"{data:.12g}"
    text = data if isinstance(data, str) else "" if data is None else dump_json(data).decode()
    text = clean(cut_middle(text, budgets.CELL_CHARS))
    return text.replace("\r", "").replace("\n", "\\n")


@dataclasses.dataclass(frozen=True, slots=True)
class Fitted:
    """A value as JSON that keeps to a budget."""

    data: Any
    parts: tuple[ImagePart | FilePart, ...]
    """What is named in `data` as `[image 1: …]`, `[file 2: …]`."""
    cut: bool
    """Something was left out."""


def fitted(
    value: object,
    budget_chars: int,
    *,
    patience_s: float | None = budgets.PATIENCE_S,
    draws: bool = True,
    kind: type[Normal] = Normal,
) -> Fitted:
    """The value as JSON of at most `budget_chars` characters; a text counts as it stands.

    Raises only what an iterator raises while it is read.

    Args:
        patience_s: as `Normal` takes it, and so is `draws`.
        kind: a `Normal` that shows some values in another way.
    """
    data: Any = ""
    normal = kind(budget_chars)
    for share in (1.0, 0.8, 0.5):
        normal = kind(int(budget_chars * share), patience_s=patience_s, draws=draws)
        data = normal.json(value)
        # At most one character a byte: most values need no second look.
        encoded = data.encode() if isinstance(data, str) else dump_json(data)
        if len(encoded) <= budget_chars or len(encoded.decode()) <= budget_chars:
            return Fitted(data, tuple(normal.parts), normal.cut)
        if is_iterator(value):
            break  # It can be read only once.
    text = data if isinstance(data, str) else dump_json(data).decode()
    return Fitted(cut_middle(text, budget_chars), tuple(normal.parts), True)
