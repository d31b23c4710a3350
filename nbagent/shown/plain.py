"""A value as plain JSON within a budget, with the images that stand in it.

Owns what each kind of value becomes inside JSON and how containers are cut. Trusts nothing that a
value says of itself: not its class, its length, its iteration or its attributes.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import sys
import time
import weakref
from collections import deque
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    Set,
    ValuesView,
)
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from io import IOBase
from itertools import islice
from pathlib import PurePath
from typing import Any, cast
from uuid import UUID

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

_AS_TEXT = (Decimal, UUID, complex, Fraction, ipaddress._IPAddressBase)  # pyright: ignore[reportPrivateUsage]
_SLICED = (list, tuple, deque, range)
_VIEWS = (KeysView, ItemsView)
"""Their order is the object's."""
_PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
_MISSING: Any = object()
_TOP_LEVELS = 2
"""So deep a list that is cut keeps its end too. Deeper ones would read their items too often."""


class NotPlainError(Exception):
    """A value that has no form in JSON. Internal to `Normal`."""


class Normal:
    """Turns a value into plain JSON, at most `budget_chars` large or little more.

    What JSON cannot say becomes text inside; images and files inside are collected in `parts` and
    named in their place. `cut` tells whether anything was left out.

    Args:
        patience_s: how long it may take in all; None waits, as for a tool's own generator.
    """

    def __init__(self, budget_chars: int, *, patience_s: float | None = budgets.PATIENCE_S) -> None:
        self.budget_chars = budget_chars
        self.parts: list[ImagePart | FilePart] = []
        self.cut = False
        self._left = budget_chars
        self._above: set[int] = set()
        self._end = math.inf if patience_s is None else time.monotonic() + patience_s

    def json(self, value: object) -> Any:
        """The value as plain JSON; NotPlainError when the value itself has no such form."""
        return self._json(value)

    def leaf(self, value: object) -> ImagePart | str:
        """What has no form in JSON, as an image or a text."""
        room = max(min(self.budget_chars, self._left), 60)
        try:
            image = image_of(value)
            if image is not None:
                return image
            text = table_text(value, room) or described(value, room)
            shown = display_of(value) if text is None else text
            if isinstance(shown, ImagePart):
                return shown
            if shown is not None:
                self.cut = self.cut or LEFT_OUT in shown
                return redact_cut(clean(shown))
        except BROKEN:
            pass
        text = plain_repr(value, room)
        self.cut = self.cut or LEFT_OUT in text
        return text

    def _json(self, value: Any) -> Any:
        kind = cast("type[Any]", type(value))
        if value is None or kind is bool:
            return self._paid(value, 5)
        if kind is str:
            return self.text(value)
        if kind is int or kind is float:
            return self.number(value)
        # A value may lie about its `__class__`, so `isinstance` is not asked.
        for kinds, form in _SCALARS:
            if issubclass(kind, kinds):
                return form(self, value)
        if of_class(value, "numpy", "generic"):
            return self._numpy_scalar(value)
        pandas: Any = sys.modules.get("pandas")
        if pandas is not None and value is pandas.NA:
            return None
        return self._container(value)

    def _paid(self, value: Any, chars: int) -> Any:
        self._left -= chars
        return value

    def number(self, value: float) -> Any:
        """The number; as text where JSON or the wire has none."""
        if isinstance(value, int):
            bits = int.bit_length(value)
            if bits > budgets.LARGEST_INT_BITS:
                return self.text(f"[an integer of {bits:,} bits]")
            return self._paid(value, 2 + bits // 3)
        if math.isfinite(value):
            return self._paid(value, 10)
        name = "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
        return self.text(name)

    def _numpy_scalar(self, value: Any) -> Any:
        if value.dtype.kind in "mM":
            # Their `item` is a bare count of nanoseconds.
            return None if value != value else self.text(str(value))
        if value.dtype.names:
            return self._object({name: value[name] for name in value.dtype.names})
        plain = value.item()
        if type(plain) is type(value):
            return self.text(str(value))
        return self._json(plain)

    def bytes(self, value: Any) -> Any:
        """The picture that the bytes are, or their text."""
        view = memoryview(value)
        if view.nbytes and view.contiguous and view.nbytes <= 50_000_000:
            image = encoded_image(bytes(view)) if bytes(view[:1]) in b"\x89\xffGR" else None
            if image is not None:
                return self.named(image)
        if view.nbytes > 2 * self.budget_chars + 100_000:
            self.cut = True
        return self.text(bytes_text(value))

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
        depth = len(self._above)
        # Inside a container one long text leaves room for what comes after it.
        room = self.budget_chars if not depth else max(self._left // 2, min(self._left, 200), 20)
        if len(text) > room:
            text, self.cut = cut_middle(text, max(room, 0)), True
        text = clean(text)
        self._left -= len(text) + 3 + sum(map(text.count, '"\\\n\t'))
        return text

    def _container(self, value: Any) -> Any:
        key = id(value)
        if key in self._above:
            return self.text("[circular]")
        if len(self._above) >= budgets.DEEPEST:
            self.cut = True
            return self.text("[too deep]")
        self._above.add(key)
        try:
            return self._opened(value)
        finally:
            self._above.discard(key)

    def _opened(self, value: Any) -> Any:
        # Around the outermost one is kept free for the words about what is left out.
        self._left -= min(150, self._left // 10) if len(self._above) == 1 else 3
        kind = cast("type[Any]", type(value))
        if issubclass(kind, dict | Mapping):
            return self._object(cast("Mapping[Any, Any]", value))
        if issubclass(kind, tuple) and (names := getattr(cast("Any", kind), "_fields", None)):
            return self._object(dict(zip(names, cast("tuple[Any, ...]", value), strict=False)))
        if issubclass(kind, _SLICED) or of_class(value, "array", "array"):
            return self._list(cast("Sequence[Any]", value))
        if issubclass(kind, set | frozenset | Set | ValuesView):
            unordered = cast("Set[Any]", value)
            return self._list(_ordered(unordered) if issubclass(kind, Set) else list(unordered))
        if of_class(value, "sqlite3", "Row"):
            return self._object({name: value[name] for name in value.keys()})  # noqa: SIM118
        if issubclass(kind, Sequence):
            return self._list(cast("Sequence[Any]", value))
        if issubclass(kind, TextPart):
            return self.text(value.text)
        if issubclass(kind, ImagePart | FilePart):
            return self.named(value)
        if issubclass(kind, BaseModel):
            return self._model(cast("BaseModel", value))
        names = _field_names(value)
        if names is not None:
            return self._object({name: getattr(value, name, "[not set]") for name in names})
        if is_iterator(value):
            return self._read(cast("Iterator[Any]", value))
        raise NotPlainError

    def _model(self, model: BaseModel) -> Any:
        try:
            # A root model gives what it wraps: anything.
            return self._inner(model.model_dump(warnings=False))
        except BROKEN:
            # A computed field raised, or it holds itself.
            return self._object(dict(model.__dict__))

    def _inner(self, value: Any) -> Any:
        if time.monotonic() > self._end:
            self._left = 0
        try:
            return self._json(value)
        except NotPlainError:
            pass
        except RecursionError:
            raise
        except BROKEN:
            return self.text(plain_repr(value, 200))
        shown = self.leaf(value)
        return self.named(shown)

    def _object(self, items: Mapping[Any, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in items.items():
            if self._left <= 0:
                self.cut = True
                size = _size(items)
                missing = size - len(out)
                count = f"{missing:,} of {size:,} entries" if missing > 0 else "more entries"
                out["…"] = f"[{count}{LEFT_OUT}]"
                break
            name = self._key(key)
            if name in out:
                # `1` and `"1"` are two keys in Python and one in JSON.
                name = next(n for i in range(2, 10**9) if (n := f"{name} ({i})") not in out)
            out[name] = self._inner(item)
        return out

    def _key(self, key: Any) -> str:
        if type(key) is str:
            return self.text(key)
        try:
            plain = self._json(key)
        except (NotPlainError, *BROKEN):
            return self.text(plain_repr(key, 200))
        return plain if isinstance(plain, str) else dump_json(plain).decode()

    def _read(self, items: Iterator[Any]) -> list[Any]:
        """What an iterator gives, as far as the budget goes: it may never end."""
        out: list[Any] = []
        while True:
            if self._left <= 0 or time.monotonic() > self._end:
                self.cut = True
                out.append(f"… [all after the first {len(out):,} items{LEFT_OUT}] …")
                break
            item = next(items, _MISSING)
            if item is _MISSING:
                break
            out.append(self._inner(item))
        return out

    def _list(self, items: Sequence[Any] | Iterable[Any]) -> list[Any]:
        """The items; when they do not fit, the first ones and, near the top, the last ones too."""
        size = _size(items)
        whole = self._left
        out: list[Any] = []
        keep = n_parts = 0
        for item in items:
            if self._left <= 0:
                break
            out.append(self._inner(item))
            if self._left > whole // 3:
                keep, n_parts = len(out), len(self.parts)
        else:
            return out
        self.cut = True
        tail: deque[Any] = deque()
        if len(self._above) <= _TOP_LEVELS and isinstance(items, _SLICED) and keep:
            del out[keep:], self.parts[n_parts:]
            self._left = whole // 3
            for item in _backwards(items, size, keep):
                if self._left <= 0:
                    break
                tail.appendleft(self._inner(item))
        missing = size - len(out) - len(tail)
        count = f"{missing:,} of {size:,} items" if missing > 0 else "more items"
        return [*out, f"… [{count}{LEFT_OUT}] …", *tail]


def is_iterator(value: object) -> bool:
    """Whether its items are meant, and can be read once: generators, cursors, `map`, …

    Not files: they are named. Not what pretends to have each method there is.
    """
    kind = cast("type[Any]", type(value))
    pretends = issubclass(kind, _PROXIES) or of_class(value, "unittest.mock", "NonCallableMock")
    return issubclass(kind, Iterator) and not issubclass(kind, IOBase) and not pretends


def _backwards(items: Sequence[Any], size: int, above: int) -> Iterator[Any]:
    return islice(reversed(items), max(size - above - 1, 0))


def _size(items: Any) -> int:
    """How many items it says it has; some raise, and some lie."""
    try:
        size: int = len(items)
    except BROKEN:
        return 0
    return max(size, 0)


def _ordered(items: Set[Any]) -> Sequence[Any]:
    """A set's items in an order that is the same in the next process."""
    if _size(items) > budgets.SORTED_ITEMS:
        return tuple(islice(items, budgets.SORTED_ITEMS))
    listed = list(items)
    if issubclass(type(items), _VIEWS):
        return listed
    kinds = {cast("type[Any]", type(item)) for item in listed}
    if len(kinds) == 1 and kinds <= {int, float, str, bytes, date, datetime, UUID}:
        return sorted(listed)
    if len(listed) > 10_000:
        return listed
    return sorted(listed, key=lambda item: (type(item).__name__, plain_repr(item, 200)))


def _field_names(value: Any) -> Sequence[str] | None:
    """The names of what a record of some kind holds; None when it is no such record."""
    kind = cast("type[Any]", type(value))
    fields = vars(kind).get("__dataclass_fields__") or getattr(kind, "__dataclass_fields__", None)
    if isinstance(fields, dict):
        return [field.name for field in dataclasses.fields(value)]
    attributes = getattr(kind, "__attrs_attrs__", None)
    if isinstance(attributes, tuple):
        return [attribute.name for attribute in cast("tuple[Any, ...]", attributes)]
    if kind is type(sys.implementation):
        return list(cast("dict[str, Any]", vars(value)))
    return None


def _iso_duration(value: timedelta) -> str:
    sign, value = ("-", -value) if value < timedelta(0) else ("", value)
    seconds = f"{value.seconds}.{value.microseconds:06d}".rstrip("0").rstrip(".")
    if not value.microseconds:
        seconds = str(value.seconds)
    return f"{sign}P{value.days}DT{seconds}S"


def _moment(normal: Normal, value: Any) -> Any:
    # pandas' NaT is a datetime too.
    return None if value != value else normal.text(value.isoformat())


def _path(path: PurePath) -> str:
    """A path as the model may see it: relative to the working folder or to the home."""
    return without_folders(str(path)).removeprefix("./")


_SCALARS: tuple[tuple[Any, Callable[[Normal, Any], Any]], ...] = (
    (Enum, lambda normal, value: normal.json(value.value)),
    # Of a subclass no method is trusted: these are the plain classes' own.
    (str, lambda normal, value: normal.text(str.__str__(value))),
    (int, lambda normal, value: normal.number(int.__pos__(value))),
    (float, lambda normal, value: normal.number(float.__pos__(value))),
    (timedelta, lambda normal, value: normal.text(_iso_duration(value))),
    ((date, clock_time), _moment),
    (PurePath, lambda normal, value: normal.text(_path(value))),
    (_AS_TEXT, lambda normal, value: normal.text(str(value))),
    ((bytes, bytearray, memoryview), lambda normal, value: normal.bytes(value)),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Fitted:
    """A value as JSON that keeps to a budget."""

    data: Any
    parts: tuple[ImagePart | FilePart, ...]
    """What is named in `data` as `[image 1: …]`, `[file 2: …]`."""
    cut: bool
    """Something was left out."""


def fitted(
    value: object, budget_chars: int, *, patience_s: float | None = budgets.PATIENCE_S
) -> Fitted:
    """The value as JSON of at most `budget_chars` characters; a text counts as it stands.

    Raises only what an iterator raises while it is read.
    """
    data: Any = ""
    normal = Normal(budget_chars)
    for share in (1.0, 0.8, 0.5):
        normal = Normal(int(budget_chars * share), patience_s=patience_s)
        data = _of_any(normal, value)
        # At most one character a byte: most values need no second look.
        encoded = data.encode() if isinstance(data, str) else dump_json(data)
        if len(encoded) <= budget_chars or len(encoded.decode()) <= budget_chars:
            return Fitted(data, tuple(normal.parts), normal.cut)
        if is_iterator(value):
            break  # It can be read only once.
    text = data if isinstance(data, str) else dump_json(data).decode()
    return Fitted(cut_middle(text, budget_chars), tuple(normal.parts), True)


def _of_any(normal: Normal, value: object) -> Any:
    try:
        return normal.json(value)
    except NotPlainError:
        shown = normal.leaf(value)
        return normal.named(shown)
    except BROKEN:
        if is_iterator(value):
            raise
        return plain_repr(value, normal.budget_chars)
