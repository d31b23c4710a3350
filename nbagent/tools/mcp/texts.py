"""Hostile text made fit to be shown: names, descriptions, the lines that a server writes."""

from __future__ import annotations

import re
import unicodedata

from nbagent.contracts.secrets import redact_cut
from nbagent.shown import clean, cut_middle

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")


def visible(text: str, budget_chars: int) -> str:
    """The text without control, direction and invisible characters, within a budget."""
    text = _ESCAPE.sub("", clean(text[: 4 * budget_chars + 1_000]))
    if not text.isascii() or not text.isprintable():
        hidden = [ord(c) for c in set(text) if c not in "\n\t" and _is_hidden(c)]
        text = text.translate(dict.fromkeys(hidden))
    return redact_cut(cut_middle(text.strip(), budget_chars))


def _is_hidden(character: str) -> bool:
    # Control, format (directions, zero width, tags), surrogate, private use, unassigned.
    return unicodedata.category(character)[0] == "C"
