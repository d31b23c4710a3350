"""What a script says, kept within a budget: the beginning and the end, the middle cut visibly."""

from __future__ import annotations


class Capture:
    """One stream. Takes any amount in constant memory."""

    def __init__(self, keep_bytes: int) -> None:
        self._head_bytes = keep_bytes // 2
        self._tail_bytes = max(1, keep_bytes - self._head_bytes)
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Take what came."""
        self.total_bytes += len(data)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_bytes:
            self._shorten()

    def _shorten(self) -> None:
        over = len(self._tail) - self._tail_bytes
        if over > 0:
            del self._tail[:over]
            self._dropped += over

    @property
    def cut_bytes(self) -> int:
        """How much of the middle is gone."""
        self._shorten()
        return self._dropped

    @property
    def text(self) -> str:
        """What is kept, as text."""
        cut = self.cut_bytes
        if not cut:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        # Cut letters at the edges are left out; what is odd elsewhere is shown as such.
        head = _whole_end(bytes(self._head)).decode("utf-8", "replace")
        tail = _whole_start(bytes(self._tail)).decode("utf-8", "replace")
        return f"{head}\n[… {cut:,} bytes cut …]\n{tail}"


def _whole_end(data: bytes) -> bytes:
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if needed > back else data
    return data


def _whole_start(data: bytes) -> bytes:
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
