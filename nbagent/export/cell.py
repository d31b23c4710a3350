"""A run as the text of a ready `%%agent` cell."""

from __future__ import annotations

import re
from typing import Any

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.records import RunRecord
from nbagent.settings.options import RunOptions

_NEEDS_QUOTES = re.compile(r"[\s'\"\\\u2018-\u201f\u00ab\u00bb]")
"""A line has quotes of many kinds: typed on a phone, pasted from a text."""
_MAX_VALUE_CHARS = 400
"""A value of more characters, or of several lines, cannot stand on the line: it is left out."""


def cell_text(run: RunRecord, *, is_own: bool = True) -> str:
    """The cell that asks what this run was asked, with its options.

    Of a run that is not of this store, as of a colleague's notebook, the words only: its server,
    its mounts and its expressions are not the person's.
    """
    options = {**run.options, "model": run.model} if is_own else {}
    line_words = ["%%agent"]
    for name, row in RunOptions.rows().items():
        if row.flags and not row.secret and options.get(name) not in (None, False):
            line_words += _flag(row.flags[-1], options[name], is_repeated=row.repeatable)
    # Braces that were typed as such must not become an expression.
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
    """The text as one word of a line: as it is, or in quotes where it needs them.

    Args:
        text: on one line.
        quote: the one that it is to begin with, if it can.
    """
    if text and not quote and not _NEEDS_QUOTES.search(text):
        return text
    if quote != '"' and "'" not in text:
        return f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
