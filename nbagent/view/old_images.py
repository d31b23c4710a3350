"""Image parts → small pictures that a view may draw, and words for all that it may not.

Decides by the bytes, not by what they are called: PNG, JPEG, GIF and WebP of a bounded size.
Never SVG (it can run code and load), never an address (nothing remote loads by itself).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

from nbagent.contracts.chat import FilePart, ImagePart, Part, TextPart
from nbagent.view.node import Node, h
from nbagent.view.view_types import ImageView
from nbagent.view.words import one_line, visible

_IMAGES = 2
_IMAGE_CHARS = 300_000
_MAX_PIXELS = 40_000_000
"""A few kB can unpack to gigabytes in the page."""
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def pictures_of(parts: Sequence[Part]) -> tuple[list[ImageView], list[str]]:
    """The pictures to draw, and a line for every other part."""
    shown: list[ImageView] = []
    unseen: list[str] = []
    for part in parts:
        picture = None
        if isinstance(part, ImagePart) and len(shown) < _IMAGES:
            picture = _picture(part)
        if picture is not None:
            shown.append(picture)
        elif not isinstance(part, TextPart):
            unseen.append(part_words(part))
        elif part.text:
            unseen.append(one_line(visible(part.text), 200))
    return shown, unseen


def drawn(parts: Sequence[Part]) -> tuple[list[Node], list[str]]:
    """The pictures to draw as nodes, and a line for every other part."""
    shown, unseen = pictures_of(parts)
    nodes: list[Node] = []
    for image in shown:
        source = f"data:{image['media_type']};base64,{image['data']}"
        caption = f"{image['alt']} · {image['size']}"
        nodes += [h("img", alt=image["alt"], src=source), h("div", "nba-note", caption)]
    return nodes, unseen


def part_words(part: Part) -> str:
    """A part of a message as text; images and files by name."""
    if isinstance(part, TextPart):
        return visible(part.text)
    if isinstance(part, FilePart):
        return f"[file: {visible(part.name)}, {visible(part.media_type)}]"
    return f"[image: {visible(part.alt or part.url or part.media_type)}]"


def _picture(part: ImagePart) -> ImageView | None:
    data = part.data or ""
    if part.media_type not in _MEDIA_TYPES or len(data) > _IMAGE_CHARS:
        return None
    if _BASE64.fullmatch(data) is None:
        return None
    try:
        content = base64.b64decode(data, validate=True)
    except binascii.Error:
        return None
    size = _SIZES[part.media_type](content)
    if size is None or not 0 < size[0] * size[1] <= _MAX_PIXELS:
        return None
    return {
        "media_type": part.media_type,
        "data": data,
        "alt": visible(part.alt) or "image",
        "size": f"{size[0]} × {size[1]} px, {max(1, round(len(content) / 1000)):,} kB",
    }


def _png(content: bytes) -> tuple[int, int] | None:
    if not content.startswith(b"\x89PNG\r\n\x1a\n") or content[12:16] != b"IHDR":
        return None
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def _gif(content: bytes) -> tuple[int, int] | None:
    if content[:6] not in (b"GIF87a", b"GIF89a"):
        return None
    return int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")


def _jpeg(content: bytes) -> tuple[int, int] | None:
    """The size in the frame header, the first of the segments SOF0–SOF15."""
    if not content.startswith(b"\xff\xd8"):
        return None
    at = 2
    while at + 9 <= len(content) and content[at] == 0xFF:
        kind = content[at + 1]
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height = int.from_bytes(content[at + 5 : at + 7], "big")
            return int.from_bytes(content[at + 7 : at + 9], "big"), height
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return None


def _webp(content: bytes) -> tuple[int, int] | None:
    """The size in the first chunk: lossy (`VP8 `), lossless (`VP8L`) or extended (`VP8X`)."""
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP" or len(content) < 30:
        return None
    kind = content[12:16]
    if kind == b"VP8X":
        width = int.from_bytes(content[24:27], "little") + 1
        return width, int.from_bytes(content[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(content[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width = int.from_bytes(content[26:28], "little") & 0x3FFF
        return width, int.from_bytes(content[28:30], "little") & 0x3FFF
    return None


_SIZES = {"image/png": _png, "image/jpeg": _jpeg, "image/gif": _gif, "image/webp": _webp}
