"""A run as the text of a ready `%%agent` cell."""

from __future__ import annotations

import re
from typing import Any

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.records import RunRecord
from nbagent.settings import RunOptions

_BARE = re.compile(r"[\w./:@*+-]+")
_LONG = 400
"""A value of more characters, or of several lines, cannot stand on the line: it is left out."""


def cell_text(run: RunRecord) -> str:
    """The cell that asks what this run was asked, with its options."""
    given = {**run.options, "model": run.model}
    words = ["%%agent"]
    for name, row in RunOptions.rows().items():
        if row.flags and not row.secret and given.get(name) not in (None, False):
            words += _flag(row.flags[-1], given[name], is_repeated=row.many)
    # Braces that were typed as such must not become an expression.
    prompt = run.template or run.prompt.replace("{{", "{{ '{{' }}")
    return f"{' '.join(words)}\n{prompt}\n"


def _flag(flag: str, value: Any, *, is_repeated: bool) -> list[str]:
    if value is True:
        return [flag]
    if isinstance(value, list | tuple):
        texts = [_text(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
        if not is_repeated:
            return [flag, _quoted(",".join(texts))]
        return [word for text in texts for word in (flag, _quoted(text))]
    text = _text(value)
    return [flag, _quoted(text)] if len(text) <= _LONG and len(text.splitlines()) < 2 else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dump_json(value).decode()


def _quoted(text: str) -> str:
    if _BARE.fullmatch(text):
        return text
    if "'" not in text:
        return f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
