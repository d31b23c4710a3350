"""The index for text search: FTS5 over the texts of runs that have ended, by trigrams.

The index has no positions and no texts (`detail=none`, contentless): it takes 0.8 bytes for a byte
of text instead of 3.4, and finds candidates only, so each is compared with its texts.
"""

from __future__ import annotations

from collections.abc import Iterator

from nbagent.store.database import Connection
from nbagent.store.rows import cell_text

MIN_CHARS = 3
"""A shorter text has no trigram."""
MAX_SEARCH_CHARS = 1_000
_ENTRY_CHARS = 8_000
"""Characters of an entry: one is written or removed in about 1 ms."""
_RUN_SHIFT = 6
"""An entry's rowid is the number of its run, then 6 bits for its number in the run. The index
stores differences of rowids, so a wider shift would make it larger."""
_MOST_ENTRIES = 1 << _RUN_SHIFT
_MAX_TRIGRAMS = 40
"""Trigrams of a long text that are looked up; its candidates are compared with the whole text."""
_CREATE = (
    "CREATE VIRTUAL TABLE text_index USING fts5(text, content='', detail='none', "
    "columnsize=0, tokenize='trigram')"
)
_TEXTS = (
    "SELECT name FROM runs WHERE n = :n UNION ALL SELECT prompt FROM runs WHERE n = :n "
    "UNION ALL SELECT name FROM forgotten WHERE run = :n "
    "UNION ALL SELECT prompt FROM forgotten WHERE run = :n "
    "UNION ALL SELECT text FROM (SELECT text FROM messages WHERE run = :n ORDER BY position) "
    "UNION ALL SELECT result FROM (SELECT result FROM tool_runs WHERE run = :n "
    "ORDER BY turn, position)"
)


def create_text_index(c: Connection) -> None:
    """Create the index, unless this SQLite has no FTS5 with trigrams (before 3.34)."""
    version = c.execute("SELECT sqlite_version()").fetchone()[0]
    has_module = c.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone()
    if has_module and tuple(map(int, version.split("."))) >= (3, 34) and not has_text_index(c):
        c.execute(_CREATE)


def has_text_index(c: Connection) -> bool:
    """True if the store has the index and this SQLite can read it."""
    sql = (
        "SELECT 1 FROM sqlite_master WHERE name = 'text_index' "
        "AND EXISTS (SELECT 1 FROM pragma_module_list WHERE name = 'fts5')"
    )
    return c.execute(sql).fetchone() is not None


def entries_of(c: Connection, n: int) -> Iterator[str]:
    """Texts of a run as the entries of the index: always the same ones for the same rows.

    Entries of a long text overlap, so that no text to search for falls between two.
    """
    # The prompt is a message, too.
    texts = dict.fromkeys(_indexable(cell) for (cell,) in c.execute(_TEXTS, {"n": n}))
    shares = sum(map(len, texts)) // (_MOST_ENTRIES // 2)
    size = max(_ENTRY_CHARS, shares + MAX_SEARCH_CHARS)
    entry = ""
    for text in texts:
        rest = text
        while len(rest) > size:
            yield rest[:size]
            rest = rest[size - MAX_SEARCH_CHARS :]
        if len(entry) + len(rest) > size:
            yield entry
            entry = ""
        entry = f"{entry}\n{rest}"
    if entry.strip():
        yield entry


def _indexable(cell: str | bytes | None) -> str:
    # NUL would end the text for SQLite's functions; half a character is no UTF-8.
    text = str(cell_text(cell or ""))
    return text.replace("\0", " ").encode("utf-8", "replace").decode()


def index_entry(c: Connection, n: int, position: int, text: str) -> None:
    """Add an entry of a run."""
    row = (n << _RUN_SHIFT) + position
    c.execute("INSERT INTO text_index(rowid, text) VALUES(?, ?)", (row, text))


def unindex_entry(c: Connection, n: int, position: int, text: str) -> None:
    """Remove an entry of a run, which was added with the same text."""
    row = (n << _RUN_SHIFT) + position
    sql = "INSERT INTO text_index(text_index, rowid, text) VALUES('delete', ?, ?)"
    c.execute(sql, (row, text))


def merge_entries(c: Connection, pages: int) -> bool:
    """Rewrite a part of the index without its removed entries; `pages` below 0 begins.

    Returns:
        False if nothing is left to rewrite.
    """
    before = c.total_changes
    c.execute("INSERT INTO text_index(text_index, rank) VALUES('merge', ?)", (pages,))
    # Documented by SQLite: fewer than 2 changes mean that the command had nothing to do.
    return c.total_changes - before >= 2


def candidates(c: Connection, text: str) -> Iterator[int]:
    """Numbers of the runs whose texts have all trigrams of a text, newest first."""
    trigrams = list(dict.fromkeys(text[i : i + 3] for i in range(len(text) - 2)))
    step = -(-len(trigrams) // _MAX_TRIGRAMS)
    query = " ".join('"' + trigram.replace('"', '""') + '"' for trigram in trigrams[::step])
    last = None
    for (row,) in c.execute(
        "SELECT rowid FROM text_index WHERE text_index MATCH ? ORDER BY rowid DESC", (query,)
    ):
        if row >> _RUN_SHIFT != last:
            last = row >> _RUN_SHIFT
            yield last
