"""A Python value as parts within a budget: text, JSON, a table, an image.

Owns the look of values in prompts and tool results. Never raises, whatever the value does, and
imports none of pandas, numpy, matplotlib or Pillow: a value of theirs has imported them already.
A text says in its middle what was left out; a list, an object and a table say it in their place.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeGuard

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.chat import Part, TextPart
from nbagent.shown.pictures import IMAGE_BYTES
from nbagent.shown.plain import PATIENCE_S, Fitted, Normal, fitted, is_iterator
from nbagent.shown.texts import BROKEN, BUDGET_CHARS, clean, cut_middle, plain_repr, without_folders

__all__ = [
    "BROKEN",
    "BUDGET_CHARS",
    "IMAGE_BYTES",
    "PATIENCE_S",
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

_PROMPT_CHARS = 20_000
"""Of one `{{ expression }}` in a prompt that is no text."""
_PROMPT_TEXT_CHARS = 1_000_000
"""Of one `{{ expression }}` that is a text: a document is sent whole."""


def shown(value: object, budget_chars: int = BUDGET_CHARS) -> tuple[Part, ...]:
    """The value as text and images; the text has at most `budget_chars` characters."""
    if _is_text(value):
        return (TextPart(text=clean(cut_middle(str.__str__(value), budget_chars))),)
    try:
        it = fitted(value, budget_chars)
    except BROKEN as error:
        # An iterator that raised while it was read.
        it = Fitted(f"{plain_repr(value, 200)}, which raised {type(error).__name__}", (), True)
    if len(it.parts) == 1 and it.data == f"[image 1: {getattr(it.parts[0], 'alt', '')}]":
        return it.parts
    text = it.data if isinstance(it.data, str) else dump_json(it.data).decode()
    return (TextPart(text=cut_middle(text, budget_chars)), *it.parts)


def _is_text(value: object) -> TypeGuard[str]:
    # A value may lie about its `__class__`, so `isinstance` is not asked.
    return issubclass(type(value), str) and not issubclass(type(value), Enum)


def shown_in_prompt(value: object) -> tuple[Part, ...]:
    """The value of one `{{ expression }}`: texts whole, everything else within its budget."""
    return shown(value, _PROMPT_TEXT_CHARS if _is_text(value) else _PROMPT_CHARS)


def shown_text(value: object, budget_chars: int = BUDGET_CHARS) -> str:
    """The value as text alone; an image is named, not drawn."""
    part = shown(value, budget_chars)[0]
    return part.text if isinstance(part, TextPart) else f"[image: {getattr(part, 'alt', '')}]"
