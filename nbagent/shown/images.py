"""Converts figures, pictures and image bytes to images.

Nothing is downloaded. SVG is not drawn: models do not read it as an image. Imports neither
matplotlib nor Pillow: if a value is theirs, they are imported.
"""

from __future__ import annotations

import base64
import sys
from contextlib import suppress
from io import BytesIO
from typing import Any, cast

from nbagent.contracts.messages import ImagePart
from nbagent.shown.image_files import image_type
from nbagent.shown.texts import VALUE_ERRORS, class_name

IMAGE_BYTES = 1_500_000
"""Largest size of one image; larger ones are scaled down."""
_SIDES_PX = (1_568, 1_100, 770, 540, 380)
"""Lengths of the longer side, tried until the file is small enough. Models scale larger images down
to about the first one."""


def of_class(value: object, module: str, name: str) -> bool:
    """True if the value is an instance of a class in a module that may not be imported.

    Uses `type`, not `__class__`, which a value can fake.
    """
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and issubclass(type(value), kind)


def to_image(value: Any) -> ImagePart | str | None:
    """Convert a value to an image; a text if it cannot be drawn; None if it is not an image."""
    try:
        if of_class(value, "matplotlib.artist", "Artist"):
            return _figure_part(value)
        if of_class(value, "PIL.Image", "Image"):
            width, height = value.size
            return _picture_part(value, f"picture, {width}×{height} px")
    except VALUE_ERRORS as error:
        return f"[{class_name(value)} that could not be drawn: {type(error).__name__}]"
    return None


def encoded_image(
    data: bytes, alt: str = "", *, max_bytes: int = IMAGE_BYTES
) -> ImagePart | str | None:
    """Convert bytes of a PNG, JPEG, GIF or WebP file to an image; None for other bytes."""
    media_type = image_type(data)
    if media_type is None:
        return None
    width = height = 0
    if media_type == "image/png":
        width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    # Only of a PNG: other texts would change the keys of recorded requests.
    name = f"{media_type.removeprefix('image/').upper()} picture"
    alt = alt or name + (f", {width}×{height} px" if width else "")
    if len(data) <= max_bytes and max(width, height) <= _SIDES_PX[0]:
        return ImagePart(data=base64.b64encode(data).decode(), media_type=media_type, alt=alt)
    pil: Any = sys.modules.get("PIL.Image")
    if pil is None:
        return f"[{alt}, {len(data):,} bytes: too large to be sent; make it smaller]"
    try:
        return _picture_part(pil.open(BytesIO(data)), alt, max_bytes)
    except VALUE_ERRORS:
        # Damaged data, or one of the huge pictures that Pillow refuses: shown as other bytes.
        return None


def load_pillow() -> None:
    """Import Pillow where it is installed: pictures are made smaller only if it is loaded."""
    with suppress(ImportError):
        from PIL import Image

        Image.preinit()


def figures_in(value: Any) -> list[Any]:
    """Return a value's figures: itself, the one it belongs to (axes), those in a list or dict."""
    kind = cast("type[Any]", type(value))
    items = value.values() if kind is dict else value if kind in (list, tuple) else [value]
    return [_root_of(it) for it in items if of_class(it, "matplotlib.artist", "Artist")]


def _root_of(artist: Any) -> Any:
    """Return the top figure that an artist belongs to."""
    root = artist.figure
    while root is not None and root.figure is not root:  # a subfigure
        root = root.figure
    return root


def _figure_part(artist: Any) -> ImagePart | str | None:
    root = _root_of(artist)
    inches = [float(side) for side in root.get_size_inches()]
    # Drawn at the final size: drawing a poster and scaling it down would take much longer.
    dpi = min(root.dpi, _SIDES_PX[0] / max(inches))
    out = BytesIO()
    root.savefig(out, format="png", dpi=dpi)
    alt = f"figure, {round(inches[0] * dpi)}×{round(inches[1] * dpi)} px"
    return encoded_image(out.getvalue(), alt)


def _picture_part(picture: Any, alt: str, max_bytes: int = IMAGE_BYTES) -> ImagePart | str:
    if picture.mode == "F" or picture.mode.startswith("I"):
        # Pillow's plain conversion of these modes clips the values to all black or white.
        return f"[{alt}, of mode {picture.mode!r}: not sent; convert its values to mode 'L']"
    if max(picture.size) > _SIDES_PX[0]:
        alt += f", made smaller: {_SIDES_PX[0]} px at most"
    for side in _SIDES_PX:
        ratio = min(1.0, side / max(picture.size))
        size = tuple(max(1, round(length * ratio)) for length in picture.size)
        # Scaled before conversion: converting many megapixels takes seconds.
        small = picture if ratio == 1 else picture.resize(size, reducing_gap=2.0)
        if small.mode not in ("L", "LA", "RGB", "RGBA"):
            transparent = small.mode == "PA" or "transparency" in small.info
            small = small.convert("RGBA" if transparent else "RGB")
        # JPEG, the smaller one for photos, has no transparency.
        for kind in ("PNG", "JPEG") if small.mode in ("RGB", "L") else ("PNG",):
            out = BytesIO()
            # Empty EXIF: the location and owner of a photo must not be sent.
            small.save(out, format=kind, exif=b"", compress_level=4, quality=85)
            if out.tell() <= max_bytes:
                text = base64.b64encode(out.getvalue()).decode()
                return ImagePart(data=text, media_type=f"image/{kind.lower()}", alt=alt)
    return f"[{alt}: too large to be sent; make it smaller]"
