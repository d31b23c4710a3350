"""A Python value as parts within a budget: text, JSON, a table's head, an image.

Owns the look of values in prompts and tool results. Never raises, whatever the value does, and
imports none of pandas, numpy, matplotlib or Pillow: a value of theirs has imported them already.
"""

from __future__ import annotations

import base64
import dataclasses
import ipaddress
import math
import re
import sys
from collections import deque
from collections.abc import Callable, ItemsView, Iterable, KeysView, Sequence, ValuesView
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from io import BytesIO
from itertools import islice
from pathlib import PurePath
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.chat import ImagePart, Part, TextPart
from nbagent.contracts.secrets import MASK, any_secret_known, redact, redact_cut

BUDGET_CHARS = 4_000
IMAGE_SIDE_PX = 1_568
"""Longest side; models scale larger images down to about this."""
IMAGE_BYTES = 1_500_000
_DEEPEST = 60
_HEAD_ROWS = 10
_MOST_COLUMNS = 40
_LARGEST_INT_BITS = 4_096
"""Beyond this Python refuses to print an integer sooner or later (4,300 digits)."""
_BROKEN = (Exception, SystemExit, GeneratorExit)
"""What a value's own code may raise while it is shown; a person's interrupt is not among it."""
_AS_TEXT = (Decimal, UUID, PurePath, complex, Fraction, ipaddress._IPAddressBase)  # pyright: ignore[reportPrivateUsage]
_LISTS = (list, tuple, deque, range, set, frozenset, KeysView, ValuesView, ItemsView)
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]{4,16}\b")


def shown(value: object, budget_chars: int = BUDGET_CHARS) -> tuple[Part, ...]:
    """The value as text and images; the text has at most `budget_chars` characters."""
    image = _image(value)
    if image is not None:
        return (image,)
    text, images = _text_and_images(value, budget_chars)
    return (TextPart(text=text), *images)


def shown_text(value: object, budget_chars: int = BUDGET_CHARS) -> str:
    """The value as text alone; an image is named, not drawn."""
    return "".join(
        part.text if isinstance(part, TextPart) else f"[image: {getattr(part, 'alt', '')}]"
        for part in shown(value, budget_chars)[:1]
    )


def cut_middle(text: str, budget_chars: int) -> str:
    """The text within a budget: its middle is replaced by a mark that says how much is gone.

    What is cut is redacted first: no filter would know half a key again.
    """
    if len(text) <= budget_chars:
        return text
    text = redact(text)
    if len(text) <= budget_chars:
        return text
    mark = f"… [{len(text):,} characters cut] …"
    room = budget_chars - len(mark)
    if room < 2:
        return text[: max(budget_chars, 0)]
    head, tail = room - room // 2, room // 2
    mark = f"… [{len(text) - head - tail:,} characters cut] …"
    return text[:head] + mark + text[len(text) - tail :]


def clean(text: str) -> str:
    """The text as encodable Unicode: lone surrogates replaced, pairs of them joined."""
    plain = str.__str__(text)
    if plain.isascii():
        return plain
    try:
        plain.encode()
    except UnicodeEncodeError:
        return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return plain


def plain_repr(value: object, budget_chars: int = BUDGET_CHARS) -> str:
    """`repr` that cannot fail, without memory addresses, within a budget."""
    try:
        text = repr(value)
    except _BROKEN as error:
        text = f"<{type(value).__name__} object, its repr failed with {type(error).__name__}>"
    # The middle of a huge repr is dropped before the pattern reads all of it.
    text = redact_cut(cut_middle(clean(text), budget_chars + 10_000))
    return cut_middle(_ADDRESS.sub("", text), budget_chars)


class NotPlainError(Exception):
    """A value that has no form in JSON. Internal to `Normal`."""


class Normal:
    """Turns a value into plain JSON, at most `budget_chars` large or little more.

    What JSON cannot say becomes text inside; images inside are collected in `images` and named in
    their place. `cut` tells whether anything was left out.
    """

    def __init__(self, budget_chars: int) -> None:
        self.budget_chars = budget_chars
        self.images: list[ImagePart] = []
        self.cut = False
        self._left = budget_chars
        self._above: set[int] = set()

    def json(self, value: object) -> Any:
        """The value as plain JSON; NotPlainError when the value itself has no such form."""
        return self._json(value)

    def _json(self, value: Any) -> Any:
        self._left -= 1
        kind = cast("type[object]", type(value))
        if value is None or kind is bool:
            return value
        if kind is str:
            return self._text(value)
        if kind is int or kind is float:
            return _number(value)
        if isinstance(value, Enum):
            return self._json(value.value)
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, int):
            return _number(int(value))
        if isinstance(value, float):
            return _number(float(value))
        if isinstance(value, datetime | date | time):
            return value.isoformat()
        if isinstance(value, timedelta):
            return _iso_duration(value)
        if isinstance(value, _AS_TEXT):
            return clean(str(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes_text(bytes(cast("bytes", value)))
        if _of(value, "numpy", "generic"):
            return self._json(value.item())
        return self._container(value)

    def _container(self, value: Any) -> Any:
        key = id(value)
        if key in self._above:
            return "[circular]"
        if len(self._above) >= _DEEPEST:
            self.cut = True
            return "[too deep]"
        self._above.add(key)
        try:
            return self._opened(value)
        finally:
            self._above.discard(key)

    def _opened(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._object(cast("dict[Any, Any]", value))
        if isinstance(value, tuple):
            items = cast("tuple[Any, ...]", value)
            names = getattr(items, "_fields", None)
            named = dict(zip(names, items, strict=False)) if names else None
            return self._list(items) if named is None else self._object(named)
        if isinstance(value, set | frozenset):
            # Their order changes from one process to the next.
            unordered = cast("set[Any]", value)
            return self._list(sorted(unordered, key=lambda x: (type(x).__name__, repr(x))))
        if isinstance(value, _LISTS):
            return self._list(cast("Sequence[Any]", value))
        if isinstance(value, BaseModel):
            # A root model gives what it wraps: anything.
            return self._inner(value.model_dump(warnings=False))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            return self._object({name: getattr(value, name) for name in names})
        raise NotPlainError

    def _inner(self, value: Any) -> Any:
        try:
            return self._json(value)
        except NotPlainError:
            pass
        except RecursionError:
            raise
        except _BROKEN:
            return plain_repr(value, 200)
        image = _image(value)
        if image is not None:
            self.images.append(image)
            return f"[image {len(self.images)}: {image.alt}]"
        text = _other_text(value, min(self.budget_chars, BUDGET_CHARS))
        self._left -= len(text)
        return text

    def _text(self, text: str) -> str:
        if len(text) > self.budget_chars:
            text, self.cut = cut_middle(text, self.budget_chars), True
        self._left -= len(text)
        return clean(text)

    def _object(self, items: dict[Any, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in items.items():
            if self._left <= 0:
                self.cut = True
                out["…"] = f"[{len(items) - len(out):,} more entries cut]"
                break
            out[self._key(key)] = self._inner(item)
        return out

    def _key(self, key: Any) -> str:
        if isinstance(key, str) and not isinstance(key, Enum):
            return self._text(str.__str__(key))
        try:
            plain = self._json(key)
        except (NotPlainError, *_BROKEN):
            return plain_repr(key, 200)
        return plain if isinstance(plain, str) else dump_json(plain).decode()

    def _list(self, items: Sequence[Any] | Iterable[Any]) -> list[Any]:
        size = len(cast("Sequence[Any]", items))
        # An item takes two characters at least, so these are all that can be seen.
        room = max(self._left // 2, 1)
        if size <= room:
            return self._items(items, size)
        self.cut = True
        head, tail = room - room // 2, room // 2
        last: deque[Any] = deque(maxlen=tail)
        if isinstance(items, list | tuple | range):
            last.extend(items[size - tail :])
        out = self._items(islice(items, head), size)
        return [*out, f"… [{size - head - len(last):,} items cut] …", *(map(self._inner, last))]

    def _items(self, items: Iterable[Any], size: int) -> list[Any]:
        out: list[Any] = []
        for item in items:
            if self._left <= 0:
                self.cut = True
                out.append(f"… [{size - len(out):,} items cut] …")
                break
            out.append(self._inner(item))
        return out


def bytes_text(value: bytes) -> str:
    """`bytes, 1,024: 89504e47…`."""
    start = value[:24]
    if any_secret_known():
        # In hexadecimal no filter knows a key again.
        start = redact_cut(value[:4_096].decode("latin-1")).encode("latin-1")[:24]
    return f"bytes, {len(value):,}: {start.hex()}{'…' if len(value) > 24 else ''}"


def _number(value: float) -> Any:
    if isinstance(value, int):
        bits = value.bit_length()
        return value if bits <= _LARGEST_INT_BITS else f"[an integer of {bits:,} bits]"
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _iso_duration(value: timedelta) -> str:
    sign, value = ("-", -value) if value < timedelta(0) else ("", value)
    seconds = f"{value.seconds}.{value.microseconds:06d}".rstrip("0").rstrip(".")
    if not value.microseconds:
        seconds = str(value.seconds)
    return f"{sign}P{value.days}DT{seconds}S"


def _text_and_images(value: object, budget: int) -> tuple[str, list[ImagePart]]:
    if isinstance(value, str) and not isinstance(value, Enum):
        return cut_middle(clean(value), budget), []
    normal = Normal(budget)
    try:
        data = normal.json(value)
        text = data if isinstance(data, str) else dump_json(data).decode()
        return cut_middle(text, budget), normal.images
    except NotPlainError:
        return _other_text(value, budget), []
    except _BROKEN:
        return plain_repr(value, budget), []


def _other_text(value: object, budget: int) -> str:
    try:
        for module, name, text in _TEXTS:
            if _of(value, module, name):
                return cut_middle(redact_cut(clean(text(value, budget))), budget)
    except _BROKEN:
        pass
    return plain_repr(value, budget)


def _of(value: object, module: str, name: str) -> bool:
    """Whether the value is of a class of a module that may not be there."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _frame_text(frame: Any, budget: int) -> str:
    rows, columns = frame.shape
    dtypes = [f"{name} {dtype}" for name, dtype in islice(frame.dtypes.items(), _MOST_COLUMNS)]
    more = f", … {columns - _MOST_COLUMNS} more" if columns > _MOST_COLUMNS else ""
    title = f"DataFrame: {rows:,} rows × {columns:,} columns\ndtypes: {', '.join(dtypes)}{more}\n"
    return title + _head(frame, rows, budget - len(title), max_cols=_MOST_COLUMNS // 2)


def _series_text(series: Any, budget: int) -> str:
    name = "" if series.name is None else f" {series.name!r}"
    title = f"Series{name}: {len(series):,} values, {series.dtype}\n"
    return title + _head(series.to_frame(), len(series), budget - len(title), header=False)


def _head(frame: Any, rows: int, budget: int, **how: Any) -> str:
    for count in (_HEAD_ROWS, 5, 2):
        n = min(count, rows)
        text = str(_without_secrets(frame.head(n)).to_string(max_colwidth=80, **how))
        text += f"\n… {rows - n:,} more rows" if rows > n else ""
        if len(text) <= budget:
            break
    return text  # pyright: ignore[reportPossiblyUnboundVariable]


def _without_secrets(head: Any) -> Any:
    """The rows, with secrets hidden in their cells: pandas cuts long cells, and keys in them."""
    if not any_secret_known():
        return head
    hidden = head
    for column, dtype in enumerate(head.dtypes):
        if getattr(dtype, "kind", "O") in "biufcmM":
            continue
        cells = list(head.iloc[:, column])
        without = [_without_secret(cell) for cell in cells]
        if any(a is not b for a, b in zip(cells, without, strict=True)):
            hidden = hidden.copy() if hidden is head else hidden
            hidden.isetitem(column, without)
    return hidden


def _without_secret(cell: object) -> object:
    if isinstance(cell, str):
        without = redact(cell)
        return cell if without == cell else without
    text = plain_repr(cell)
    return text if MASK in text else cell


def _array_text(array: Any, budget: int) -> str:
    numpy: Any = sys.modules["numpy"]
    title = f"array: shape {tuple(array.shape)}, {array.dtype}\n"
    return title + str(numpy.array2string(array, threshold=min(200, budget), edgeitems=3))


_TEXTS: tuple[tuple[str, str, Callable[[Any, int], str]], ...] = (
    ("pandas", "DataFrame", _frame_text),
    ("pandas", "Series", _series_text),
    ("numpy", "ndarray", _array_text),
)


def _image(value: object) -> ImagePart | None:
    try:
        if _of(value, "matplotlib.axes", "Axes"):
            value = cast("Any", value).figure
        if _of(value, "matplotlib.figure", "FigureBase"):
            return _figure_part(value)
        if _of(value, "PIL.Image", "Image"):
            return _picture_part(value)
    except _BROKEN:
        return None
    return None


def _figure_part(figure: Any) -> ImagePart:
    # A part of a figure (a SubFigure) is shown whole.
    root = figure
    while getattr(root, "figure", root) is not root and root.figure is not None:
        root = root.figure
    longest = max(root.get_size_inches())
    dpi = min(root.dpi, IMAGE_SIDE_PX / longest)

    def draw(scale: float) -> bytes:
        out = BytesIO()
        root.savefig(out, format="png", dpi=dpi * scale)
        return out.getvalue()

    width, height = (round(side * dpi) for side in root.get_size_inches())
    return _png_part(draw, f"figure, {width}×{height} px")


def _picture_part(picture: Any) -> ImagePart:
    longest = min(IMAGE_SIDE_PX, max(picture.size))
    if picture.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
        picture = picture.convert("RGB")

    def draw(scale: float) -> bytes:
        out = BytesIO()
        small = picture.copy()
        small.thumbnail((longest * scale, longest * scale))
        small.save(out, format="PNG")
        return out.getvalue()

    return _png_part(draw, f"picture, {picture.size[0]}×{picture.size[1]} px")


def _png_part(draw: Callable[[float], bytes], alt: str) -> ImagePart:
    scale, data = 1.0, b""
    for _ in range(5):
        data = draw(scale)
        if len(data) <= IMAGE_BYTES:
            break
        scale /= 2
    return ImagePart(data=base64.b64encode(data).decode(), alt=redact(alt))
