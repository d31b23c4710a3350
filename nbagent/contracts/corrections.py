"""Corrections: parts of an answer that replace what a server sent before.

Values only. They are deltas of an answer, and chunks of a stream show them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TextCorrected:
    """The whole text or reasoning so far is replaced; None leaves it."""

    text: str | None = None
    reasoning: str | None = None


@dataclass(slots=True)
class CallCorrected:
    """The name or all arguments of a call are replaced; None leaves them."""

    index: int
    name: str | None = None
    arguments: str | None = None


@dataclass(slots=True)
class AnswerRestarted:
    """Everything before is void: the server begins its answer again."""


Correction = TextCorrected | CallCorrected | AnswerRestarted
