"""Exports a run as the text of a `%%agent` cell that repeats it."""

from __future__ import annotations

import re
from typing import Any

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.records import RunRecord
from nbagent.settings.options import RunOptions

_NEEDS_QUOTES = re.compile(r"[\s'\"\\\u2018-\u201f\u00ab\u00bb]")
"""Space, backslash, and quotes of all kinds: phones and word processors insert typographic ones."""
_MAX_VALUE_CHARS = 400
"""A longer value, or one of several lines, does not fit on the line and is left out."""


def cell_text(run: RunRecord, *, is_own: bool = True) -> str:
    """Write the cell that repeats this run, with its options.

    For a run of another store, such as a colleague's notebook, the cell has the prompt only: a
    stranger's text must not choose the server, mounts or expressions that this person runs.
    """
    options = {**run.options, "model": run.model} if is_own else {}
    line_words = ["%%agent"]
    for name, row in RunOptions.rows().items():
        if row.flags and not row.secret and options.get(name) not in (None, False):
            line_words += _flag(row.flags[-1], options[name], is_repeated=row.repeatable)
    # Literal braces of the prompt must not become an expression when the cell runs.
    prompt = (is_own and run.template) or run.prompt.replace("{{", "{{ '{{' }}")
    return f"{' '.join(line_words)}\n{prompt}\n"


def _flag(flag: str, value: Any, *, is_repeated: bool) -> list[str]:
    if value is True:
        return [flag]
    values: list[Any] = [*value] if isinstance(value, list | tuple) else [value]
    texts = [value if isinstance(value, str) else dump_json(value).decode() for value in values]
    if not is_repeated:
        texts = [",".join(texts)]
    if any(len(text) > _MAX_VALUE_CHARS or len(text.splitlines()) > 1 for text in texts):
        return []
    return [word for text in texts for word in (flag, quoted(text))]


def quoted(text: str, quote: str = "") -> str:
    """Quote a text as one word of a line, if it needs quotes.

    Args:
        text: a text without line ends.
        quote: preferred quote.
    """
    if text and not quote and not _NEEDS_QUOTES.search(text):
        return text
    # The parser of the line reads a text in single quotes unchanged, backslashes included.
    if quote != '"' and "'" not in text:
        return f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
