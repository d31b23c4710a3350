"""Image files for tests, made without a library."""

from __future__ import annotations

import base64
import struct
import zlib


def png(width: int = 4, height: int = 3) -> bytes:
    """A whole PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = b"".join(b"\0" + b"\x10\x80\xf0" * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
