"""Undoing the content encoding of an answer, in bounded steps so that a small bomb stays small.

It is never asked for; some servers and proxies compress all the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import redact

_STEP_BYTES = 64 * 1024
_GZIP = 0x1F


class Inflater:
    """Plain bytes from pieces of gzip or deflate."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj()
        self._at_start = True
        self._is_gzip = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What these bytes hold, in pieces of at most 64 kB.

        Raises:
            ModelError: they are damaged.
        """
        while data:
            if self._at_start:
                self._begin(data[0])
            try:
                part = self._zlib.decompress(data, _STEP_BYTES)
                while part:
                    yield part
                    # Asked until nothing comes: the last bytes may wait inside, without input.
                    part = self._zlib.decompress(self._zlib.unconsumed_tail, _STEP_BYTES)
            except zlib.error as error:
                raise _damaged(error) from None
            if not self._zlib.eof:
                return
            data = self._zlib.unused_data
            if not (self._is_gzip and data[:1] == bytes([_GZIP])):
                return  # What follows the end is of no use to anybody.
            self._at_start = True

    def _begin(self, first: int) -> None:
        self._at_start = False
        self._is_gzip = first == _GZIP
        # "deflate" without the zlib header: some servers send it, and browsers accept it.
        bare = not self._is_gzip and first & 0x0F != 8
        self._zlib = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32)


def inflater(encoding: str) -> Inflater | None:
    """What undoes an encoding; None when there is nothing to undo.

    Raises:
        ModelError: it is unknown here.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return Inflater()
    raise ModelError(
        f"the server encoded its answer as {redact(encoding)[:40]!r}, which was not asked for;"
        " check the server or the proxy before it.",
        code="LLM_BAD_RESPONSE",
    )


def _damaged(error: zlib.error) -> ModelError:
    return ModelError(
        f"the compressed answer is damaged ({error}); try again.", code="LLM_BAD_RESPONSE"
    )
