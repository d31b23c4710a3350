"""What a docstring says: a description, and one for each parameter (Google, NumPy, Sphinx).

Parsing is griffe's, imported only when a docstring has sections; this module chooses what is kept.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_SECTIONS = re.compile(
    r"^[ \t]*(?:(?:Args|Arguments|Params|(?:Other )?Parameters|Keyword (?:Args|Arguments))"
    r"[ \t]*(?::[ \t]*$|\n[ \t]*-{3,})|:(?:param|parameter|arg|argument|key|keyword)\b[^:\n]*:)",
    re.MULTILINE | re.IGNORECASE,
)
_FIELD = re.compile(r"^[ \t]*:(?:param|parameter|arg|argument|key|keyword)\b[^:\n]*:", re.MULTILINE)
_KEPT_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class Doc:
    """A docstring, taken apart."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict[str, str])


def parse_docstring(text: str | None) -> Doc:
    """Take a docstring apart; one without parameters is its own description."""
    if not text or not text.strip():
        return Doc()
    text = inspect.cleandoc(text)
    if not _SECTIONS.search(text):
        return Doc(text[:_KEPT_CHARS])
    return _parse_sections(text)


def _parse_sections(text: str) -> Doc:
    # Late: 115 ms, and most docstrings in notebooks have no sections.
    import griffe

    with griffe.logger.disable():
        docstring = griffe.Docstring(text)
        style, _ = griffe.infer_docstring_style(docstring)
        if style is None and _FIELD.search(text):
            style = griffe.Parser.sphinx  # one field alone is too little for the guess
        if style is None:
            return Doc(text[:_KEPT_CHARS])
        sections = griffe.parse(docstring, style, warnings=False)
    kept: list[str] = []
    parameters: dict[str, str] = {}
    for section in sections:
        match section.kind.value:
            case "text":
                kept.append(section.value)
            case "parameters" | "other parameters":
                for entry in section.value:
                    parameters[entry.name.lstrip("*")] = _one_line(entry.description)
            case "returns":
                kept.extend(_returns(section.value))
            case "admonition":
                kept.append(f"{section.title or 'Note'}: {section.value.description}")
            case "examples":
                kept.append("Examples:\n" + "\n".join(str(text) for _, text in section.value))
            case _:
                # What it raises and warns is for programmers.
                pass
    description = "\n\n".join(piece.strip() for piece in kept if piece.strip())
    return Doc(description[:_KEPT_CHARS], parameters)


def _returns(entries: Iterable[Any]) -> list[str]:
    texts = [_one_line(entry.description) for entry in entries]
    return ["Returns: " + "; ".join(text for text in texts if text)] if any(texts) else []


def _one_line(text: str) -> str:
    return " ".join(text.split())
