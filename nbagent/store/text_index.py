"""The index for text search: for each block of runs, which of them have which three bytes.

FTS5 was measured and not taken: a run's entry delays its commit by up to 1.3 s on a million runs,
a deletion leaves its words in the file until the whole index is rewritten, and the repair of that
(SQLite 3.42) makes the table unreadable for older versions. A block here is made once, when its
runs have ended; a deletion removes its block in 4 ms, and the block is made again later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from nbagent.store.connections import Connection

RUNS_A_BLOCK = 1024
_MOST_SCANNED_BLOCKS = 10
"""Blocks without an index whose runs are compared one by one, at about 8 ms a block."""
_GRAM_BYTES = 3
_MOST_GRAMS = 64
"""Grams of a long text that are looked up; its candidates are compared with the whole text."""
_BITMAP_BYTES = RUNS_A_BLOCK // 8
_MOST_OFFSETS = _BITMAP_BYTES // 2 - 1
"""Up to this number of runs their offsets (2 bytes each) are shorter than a bitmap."""
_END = b"\n" * (_GRAM_BYTES - 1)
"""Between and after texts: their last bytes begin a gram, too, so a search for one byte works."""
_SEARCHED = (
    ("runs", "n", "prompt"),
    ("runs", "n", "name"),
    ("messages", "run", "text"),
    ("tool_runs", "run", "result"),
)
"""The texts of a run that a search finds: table, its number of the run, column."""
_TEXTS = tuple(
    f"SELECT {key}, {column} FROM {table} WHERE {key} BETWEEN :first AND :last AND {column} <> ''"
    for table, key, column in _SEARCHED
)
HAS_TEXT = " OR ".join(
    f"EXISTS (SELECT 1 FROM {table} t WHERE t.{key} = x.n AND t.{column} LIKE :like ESCAPE '\\')"
    for table, key, column in _SEARCHED
)
"""SQL condition of a run `x` with a text."""
IndexRow = tuple[int, bytes]
"""A gram as a number, and the runs of the block that have it."""


def _between(block: int) -> dict[str, int]:
    return {"first": block * RUNS_A_BLOCK, "last": (block + 1) * RUNS_A_BLOCK - 1}


def next_block(c: Connection) -> int | None:
    """The newest block without an index whose runs have all ended; None if there is none."""
    newest = c.execute("SELECT max(n) FROM runs").fetchone()[0] or 0
    done = _indexed_blocks(c)
    # Runs are still added to the newest block.
    for block in range(newest // RUNS_A_BLOCK - 1, -1, -1):
        if block not in done:
            at_work = c.execute(
                "SELECT max(phase = 'Running') FROM runs WHERE n BETWEEN :first AND :last",
                _between(block),
            ).fetchone()[0]
            if at_work == 0:
                return block
    return None


def _indexed_blocks(c: Connection) -> set[int]:
    return {block for (block,) in c.execute("SELECT block FROM blocks WHERE token IS NULL")}


def begin_block(c: Connection, block: int, token: str) -> None:
    """Note that a block is being indexed. A deletion of one of its runs removes the note."""
    c.execute("DELETE FROM grams WHERE block = ?", (block,))
    c.execute("INSERT OR REPLACE INTO blocks(block, token) VALUES(?, ?)", (block, token))


def index_rows(c: Connection, block: int) -> list[IndexRow]:
    """Make the rows of a block from the texts of its runs."""
    first = block * RUNS_A_BLOCK
    texts: dict[int, list[bytes]] = {}
    for sql in _TEXTS:
        for n, cell in c.execute(sql, _between(block)):
            text = cell if isinstance(cell, bytes) else str(cell).encode()
            texts.setdefault(n - first, []).append(text)
    offsets: dict[bytes, list[int]] = {}
    for offset, parts in sorted(texts.items()):
        data = _END.join(parts).lower() + _END
        for gram in {data[i : i + _GRAM_BYTES] for i in range(len(data) - _GRAM_BYTES + 1)}:
            offsets.setdefault(gram, []).append(offset)
    return [(int.from_bytes(gram, "big"), _packed(offsets[gram])) for gram in sorted(offsets)]


def _packed(offsets: list[int]) -> bytes:
    if len(offsets) <= _MOST_OFFSETS:
        return b"".join(offset.to_bytes(2, "little") for offset in offsets)
    return sum(1 << offset for offset in offsets).to_bytes(_BITMAP_BYTES, "little")


def _unpacked(cell: bytes) -> int:
    """Bits of the runs in a cell."""
    if len(cell) == _BITMAP_BYTES:
        return int.from_bytes(cell, "little")
    return sum(1 << (cell[i] | cell[i + 1] << 8) for i in range(0, len(cell), 2))


def write_rows(c: Connection, block: int, token: str, rows: Iterable[IndexRow]) -> bool:
    """Write some rows of a block; False if it was taken by another process or a deletion."""
    row = c.execute("SELECT token FROM blocks WHERE block = ?", (block,)).fetchone()
    if row != (token,):
        return False
    c.executemany(
        "INSERT INTO grams(block, gram, runs) VALUES(?, ?, ?)",
        ((block, gram, runs) for gram, runs in rows),
    )
    return True


def end_block(c: Connection, block: int, token: str) -> None:
    """Note that a block is complete."""
    c.execute("UPDATE blocks SET token = NULL WHERE block = ? AND token = ?", (block, token))


def drop_block_of(c: Connection, n: int) -> None:
    """Remove the index of the block of a run; it is made again without the run."""
    block = n // RUNS_A_BLOCK
    c.execute("DELETE FROM grams WHERE block = ?", (block,))
    c.execute("DELETE FROM blocks WHERE block = ?", (block,))


def numbers_to_search(c: Connection, text: str) -> tuple[Iterator[int], str]:
    """Numbers of the runs that may have a text, newest first, and a note on what is left out.

    A run that has the text in another case of ASCII letters is among them.
    """
    newest = (c.execute("SELECT max(n) FROM runs").fetchone()[0] or 0) // RUNS_A_BLOCK
    indexed = _indexed_blocks(c)
    missing = [block for block in range(newest, -1, -1) if block not in indexed]
    left_out = set(missing[_MOST_SCANNED_BLOCKS:])
    note = ""
    if left_out:
        note = (
            f"about {len(left_out) * RUNS_A_BLOCK:,} older runs were not searched: the index of "
            "their texts is still being made"
        )
    data = text.encode().lower()
    parts = (
        _indexed_numbers(c, block, data) if block in indexed else _all_numbers(c, block)
        for block in range(newest, -1, -1)
        if block not in left_out
    )
    return chain.from_iterable(parts), note


def _all_numbers(c: Connection, block: int) -> Iterator[int]:
    sql = "SELECT n FROM runs WHERE n BETWEEN :first AND :last ORDER BY n DESC"
    return (n for (n,) in c.execute(sql, _between(block)))


def _indexed_numbers(c: Connection, block: int, data: bytes) -> Iterator[int]:
    bits = _bits_of_text(c, block, data)
    while bits:
        offset = bits.bit_length() - 1
        bits ^= 1 << offset
        yield block * RUNS_A_BLOCK + offset


def _bits_of_text(c: Connection, block: int, data: bytes) -> int:
    """Bits of the runs of a block that have all grams of a text."""
    if len(data) < _GRAM_BYTES:  # all grams that begin with it
        shift = 8 * (_GRAM_BYTES - len(data))
        first = int.from_bytes(data, "big") << shift
        sql = "SELECT runs FROM grams WHERE block = ? AND gram BETWEEN ? AND ?"
        bits = 0
        for (cell,) in c.execute(sql, (block, first, first + (1 << shift) - 1)):
            bits |= _unpacked(cell)
        return bits
    count = len(data) - _GRAM_BYTES + 1
    grams = {data[i : i + _GRAM_BYTES] for i in range(0, count, -(-count // _MOST_GRAMS))}
    bits = -1
    for gram in grams:
        sql = "SELECT runs FROM grams WHERE block = ? AND gram = ?"
        row = c.execute(sql, (block, int.from_bytes(gram, "big"))).fetchone()
        if row is None:
            return 0
        bits &= _unpacked(row[0])
        if not bits:
            return 0
    return bits
