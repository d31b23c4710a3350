"""A Python value as parts within a budget: text, JSON, a table, an image.

Owns the look of values in prompts and tool results. Never raises, whatever the value does, and
imports none of pandas, numpy, matplotlib or Pillow: a value of theirs has imported them already.
The budgets of all kinds stand in `budgets`.
"""

from __future__ import annotations

from enum import Enum

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.chat import FilePart, ImagePart, Part, TextPart
from nbagent.shown.budgets import (
    BUDGET_CHARS,
    IMAGE_BYTES,
    PATIENCE_S,
    PROMPT_CHARS,
    PROMPT_TEXT_CHARS,
)
from nbagent.shown.plain import Fitted, Normal, fitted, is_iterator
from nbagent.shown.texts import (
    BROKEN,
    clean,
    cut_middle,
    plain_repr,
    without_folders,
)

__all__ = [
    "BUDGET_CHARS",
    "IMAGE_BYTES",
    "PATIENCE_S",
    "PROMPT_TEXT_CHARS",
    "Fitted",
    "Normal",
    "clean",
    "cut_middle",
    "fitted",
    "is_iterator",
    "plain_repr",
    "shown",
    "shown_in_prompt",
    "shown_text",
    "without_folders",
]


def shown(value: object, budget_chars: int = BUDGET_CHARS) -> tuple[Part, ...]:
    """The value as text and images; the text has at most `budget_chars` characters."""
    if issubclass(type(value), str) and not issubclass(type(value), Enum):
        text = clean(cut_middle(str.__str__(value), budget_chars))  # pyright: ignore[reportArgumentType]
        return (TextPart(text=text),)
    try:
        it = fitted(value, budget_chars)
    except BROKEN as error:
        # An iterator that raised while it was read.
        it = Fitted(f"{plain_repr(value, 200)}, which raised {type(error).__name__}", (), True)
    if it.parts and it.data == _name_alone(it.parts):
        return it.parts
    text = it.data if isinstance(it.data, str) else dump_json(it.data).decode()
    return (TextPart(text=cut_middle(text, budget_chars)), *it.parts)


def _name_alone(parts: tuple[ImagePart | FilePart, ...]) -> str | None:
    """What stands for the only part when the value is nothing else."""
    if len(parts) != 1:
        return None
    part = parts[0]
    return f"[{part.type} 1: {part.alt if isinstance(part, ImagePart) else part.name}]"


def shown_in_prompt(value: object) -> tuple[Part, ...]:
    """The value of one `{{ expression }}`: texts whole, everything else within its budget."""
    kind = type(value)
    text = issubclass(kind, str) and not issubclass(kind, Enum)
    return shown(value, PROMPT_TEXT_CHARS if text else PROMPT_CHARS)


def shown_text(value: object, budget_chars: int = BUDGET_CHARS) -> str:
    """The value as text alone; an image is named, not drawn."""
    return "".join(
        part.text if isinstance(part, TextPart) else f"[image: {getattr(part, 'alt', '')}]"
        for part in shown(value, budget_chars)[:1]
    )
