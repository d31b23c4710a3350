"""Bytes → media type and size of an image file. The bytes decide, not a name or a media type.

The one place that says which bytes are an image: PNG, JPEG, GIF and WebP. Never SVG, which can run
code and load files.
"""

from __future__ import annotations

from nbagent.contracts.messages import ImagePart

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
MAX_ANSWER_IMAGE_BYTES = 10_000_000
"""Largest image of an answer: models make 1–8 MB, and an answer is read in memory."""
MAX_SENT_IMAGE_BYTES = 20_000_000
"""Largest image of a request: providers accept requests of about this size."""
_FOREIGN_STARTS = (b"<", b"%PDF", b"MZ", b"\x7fELF", b"PK\x03\x04", b"#!", b"\xef\xbb\xbf<")
"""Starts of pages, documents and programs."""


def image_type(data: bytes) -> str | None:
    """Return the media type of a complete image file, else None.

    A truncated image would fail each later request of the conversation.
    """
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
        return "image/png" if b"IEND" in data[-16:] else None
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg" if b"\xff\xd9" in data[-64:] else None
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif" if data.endswith(b";") else None
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        complete = int.from_bytes(data[4:8], "little") + 8 <= len(data)
        return "image/webp" if complete else None
    return None


def is_other_file(data: bytes) -> bool:
    """True for the bytes of a page, an SVG, a document or a program."""
    return data.lstrip().startswith(_FOREIGN_STARTS)


def pixel_size(media_type: str, data: bytes) -> tuple[int, int] | None:
    """Read width and height; None if the bytes are not of this media type."""
    reader = _SIZE_READERS.get(media_type)
    return reader(data) if reader else None


def image_label(part: ImagePart) -> str:
    """Return what a text says in place of an image."""
    return f"[image: {part.alt or part.url or part.media_type}]"


def describe_image(media_type: str, data: bytes) -> str:
    """`PNG picture, 640×480 px`."""
    size = pixel_size(media_type, data)
    name = f"{media_type.removeprefix('image/').upper()} picture"
    return name + (f", {size[0]}×{size[1]} px" if size else "")


def _png_size(content: bytes) -> tuple[int, int] | None:
    if not content.startswith(b"\x89PNG\r\n\x1a\n") or content[12:16] != b"IHDR":
        return None
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def _gif_size(content: bytes) -> tuple[int, int] | None:
    if content[:6] not in (b"GIF87a", b"GIF89a"):
        return None
    return int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")


def _jpeg_size(content: bytes) -> tuple[int, int] | None:
    """Read the size from the frame header, the first of the segments SOF0–SOF15."""
    if not content.startswith(b"\xff\xd8"):
        return None
    at = 2
    while at + 9 <= len(content) and content[at] == 0xFF:
        kind = content[at + 1]
        # These three are no frames: Huffman tables, a reserved code, arithmetic coding.
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height = int.from_bytes(content[at + 5 : at + 7], "big")
            return int.from_bytes(content[at + 7 : at + 9], "big"), height
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return None


def _webp_size(content: bytes) -> tuple[int, int] | None:
    """Read the first chunk: lossy (`VP8 `), lossless (`VP8L`) or extended (`VP8X`)."""
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP" or len(content) < 30:
        return None
    kind = content[12:16]
    if kind == b"VP8X":
        width = int.from_bytes(content[24:27], "little") + 1
        return width, int.from_bytes(content[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(content[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":  # the two highest bits of each number are a scale
        width = int.from_bytes(content[26:28], "little") & 0x3FFF
        return width, int.from_bytes(content[28:30], "little") & 0x3FFF
    return None


_SIZE_READERS = {
    "image/png": _png_size,
    "image/jpeg": _jpeg_size,
    "image/gif": _gif_size,
    "image/webp": _webp_size,
}
