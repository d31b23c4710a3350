"""Figures, pictures and the bytes of pictures as image parts within their budget.

Nothing is fetched and no SVG is taken. Imports neither matplotlib nor Pillow: a value of theirs
has imported them already.
"""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Callable
from io import BytesIO
from typing import Any

from nbagent.contracts.chat import ImagePart
from nbagent.contracts.secrets import redact
from nbagent.shown.budgets import IMAGE_BYTES, IMAGE_SIDE_PX
from nbagent.shown.texts import BROKEN, kind_name

_ENCODED_BYTES = 50_000_000
"""Of a picture file that is opened to make it smaller."""
_SMOOTH = ("L", "LA", "RGB", "RGBA")
_GREY = ("F", "I", "I;16", "I;16B", "I;16L", "I;16N")
_BETWEEN = {"La": "LA", "RGBa": "RGBA"}
"""Premultiplied modes, which go nowhere but to their plain form."""


def of_class(value: object, module: str, name: str) -> bool:
    """Whether the value is of a class of a module that may not be there; trusts no `__class__`."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and issubclass(type(value), kind)


def image_of(value: object) -> ImagePart | str | None:
    """The value as an image; words about it when it cannot be drawn; None when it is none."""
    try:
        if of_class(value, "numpy", "ndarray"):
            value = _first_drawn(value)
        if of_class(value, "matplotlib.artist", "Artist"):
            figure = _whole_figure(value)
            return None if figure is None else _figure_part(figure)
        if of_class(value, "PIL.Image", "Image"):
            return _picture_part(value)
    except BROKEN as error:
        return f"[{kind_name(value)} that could not be drawn: {type(error).__name__}]"
    return None


def encoded_image(data: bytes, alt: str = "") -> ImagePart | str | None:
    """The bytes of a PNG, JPEG, GIF or WebP file as an image; None when they are none of these."""
    media_type = _media_type(data)
    if media_type is None:
        return None
    name = media_type.removeprefix("image/").upper()
    size = _size_px(data, media_type)
    told = alt or f"{name} picture" + (f", {size[0]}×{size[1]} px" if size else "")
    fits = len(data) <= IMAGE_BYTES and (size is None or max(size) <= IMAGE_SIDE_PX)
    if fits:
        text = base64.b64encode(data).decode()
        return ImagePart(data=text, media_type=media_type, alt=redact(told))
    pil: Any = sys.modules.get("PIL.Image")
    if pil is None or len(data) > _ENCODED_BYTES:
        return f"[{told}, {len(data):,} bytes: too large to be sent; make it smaller]"
    try:
        return _picture_part(pil.open(BytesIO(data)))
    except BROKEN:
        return None


def _media_type(data: bytes) -> str | None:
    """What the bytes are, if they are whole: a broken picture would fail each later request."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
        return "image/png" if b"IEND" in data[-16:] else None
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg" if b"\xff\xd9" in data[-64:] else None
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif" if data.endswith(b";") else None
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        whole = int.from_bytes(data[4:8], "little") + 8 <= len(data)
        return "image/webp" if whole else None
    return None


def _size_px(data: bytes, media_type: str) -> tuple[int, int] | None:
    if media_type == "image/png":
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if media_type == "image/gif":
        return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    return None


def _first_drawn(array: Any) -> object:
    """The first of an array of axes (`plt.subplots(2, 2)`): its figure shows them all."""
    if array.dtype.kind != "O" or not 0 < array.size <= 1_000:
        return array
    first = array.flat[0]
    return first if of_class(first, "matplotlib.axes", "Axes") else array


def _whole_figure(artist: Any) -> Any:
    """The figure an artist belongs to; a part of a figure (a SubFigure) is shown whole."""
    root = artist if of_class(artist, "matplotlib.figure", "FigureBase") else artist.figure
    while root is not None and root.figure is not None and root.figure is not root:
        root = root.figure
    return root


def _figure_part(root: Any) -> ImagePart:
    inches = [float(side) for side in root.get_size_inches()]
    dpi = min(root.dpi, IMAGE_SIDE_PX / max(inches))
    if min(inches) * dpi < 1:
        raise ValueError("a figure without a size")

    def draw(scale: float) -> bytes:
        out = BytesIO()
        root.savefig(out, format="png", dpi=dpi * scale)
        return out.getvalue()

    return _drawn(draw, f"figure, {round(inches[0] * dpi)}×{round(inches[1] * dpi)} px")


def _picture_part(picture: Any) -> ImagePart:
    width, height = picture.size
    longest = min(IMAGE_SIDE_PX, max(width, height))
    small = _smooth(_thinned(picture, longest * 2))

    def draw(scale: float) -> bytes:
        side = longest * scale
        ratio = min(1.0, side / max(width, height))
        size = (max(1, round(width * ratio)), max(1, round(height * ratio)))
        fitting = small if small.size == size else small.resize(size)
        out = BytesIO()
        # What a photo says about its place and its owner does not go along.
        fitting.save(out, format="PNG", exif=b"", compress_level=4)
        if out.tell() > IMAGE_BYTES and fitting.mode in ("RGB", "L"):
            out = BytesIO()
            fitting.save(out, format="JPEG", quality=85, exif=b"")
        return out.getvalue()

    was_larger = "" if longest == max(width, height) else f", made smaller: {longest} px at most"
    return _drawn(draw, f"picture, {width}×{height} px{was_larger}")


def _thinned(picture: Any, side: int) -> Any:
    """A picture of many megapixels with fewer, before anything copies all of it."""
    width, height = picture.size
    factor = max(width, height) // side
    if factor < 2:
        picture.load()
        return picture
    size = (max(1, width // factor), max(1, height // factor))
    # Nearest works in each mode; the smooth step follows.
    return picture.resize(size, resample=0)


def _smooth(picture: Any) -> Any:
    """The picture in a mode that PNG knows and that can be scaled smoothly."""
    if picture.mode in _SMOOTH:
        return picture
    if picture.mode in _GREY:
        return _grey(picture)
    if picture.mode in _BETWEEN:
        return picture.convert(_BETWEEN[picture.mode])
    transparent = picture.mode == "PA" or "transparency" in picture.info
    if picture.mode == "1":
        return picture.convert("L")
    return picture.convert("RGBA" if transparent else "RGB")


def _grey(picture: Any) -> Any:
    """Grey values of any range as 0 to 255: a plain conversion would be all black or white."""
    values = picture.convert("F")
    low, high = (float(value) for value in values.getextrema())
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return picture.convert("L")
    scale = 255 / (high - low)

    def stretched(grey: Any) -> Any:
        return grey * scale - low * scale

    return values.point(stretched).convert("L")


def _drawn(draw: Callable[[float], bytes], alt: str) -> ImagePart:
    scale, data = 1.0, b""
    for _ in range(5):
        data = draw(scale)
        if len(data) <= IMAGE_BYTES:
            break
        scale *= min(0.8, 0.9 * math.sqrt(IMAGE_BYTES / len(data)))
    media_type = _media_type(data) or "image/png"
    text = base64.b64encode(data).decode()
    return ImagePart(data=text, media_type=media_type, alt=redact(alt))
