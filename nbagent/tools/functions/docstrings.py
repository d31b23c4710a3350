"""Docstrings of tools: the description, and one for each argument."""

from __future__ import annotations

import inspect
import re
from typing import Any

_STYLES: dict[Any, str] = {
    "google": r"^[ \t]*(?:args|arguments|params|(?:other )?parameters|keyword arg\w+):[ \t]*$",
    "numpy": r"^[ \t]*(?:other )?parameters\n[ \t]*-{3,}",
    "sphinx": r"^[ \t]*:(?:param|parameter|arg|argument|key|keyword)\b[^:\n]*:",
}
_MAX_CHARS = 4_000


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into the description and a text for each parameter.

    Google, NumPy and Sphinx styles are parsed by griffe; sections for programmers (Raises, See
    also, …) are dropped. Without sections, the whole text is the description.
    """
    text = inspect.cleandoc(text)
    flags = re.MULTILINE | re.IGNORECASE
    style = next((name for name, mark in _STYLES.items() if re.search(mark, text, flags)), None)
    if style is None:
        return text[:_MAX_CHARS], {}
    # Late: 115 ms, and most docstrings in notebooks have no sections.
    import griffe

    with griffe.logger.disable():
        sections = griffe.parse(griffe.Docstring(text), style, warnings=False)
    pieces: list[str] = []
    parameters: dict[str, str] = {}
    for section in sections:
        value: Any = section.value
        match section.kind.value:
            case "text":
                pieces.append(value)
            case "parameters" | "other parameters":
                for entry in value:
                    parameters[entry.name.lstrip("*")] = " ".join(entry.description.split())
            case "returns":
                texts = [" ".join(entry.description.split()) for entry in value]
                pieces += ["Returns: " + "; ".join(filter(None, texts))] if any(texts) else []
            case "admonition":
                pieces.append(f"{section.title or 'Note'}: {value.description}")
            case "examples":
                pieces.append("Examples:\n" + "\n".join(str(text) for _, text in value))
            case _:
                pass
    description = "\n\n".join(piece.strip() for piece in pieces if piece.strip())
    return description[:_MAX_CHARS], parameters
