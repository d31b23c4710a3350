"""Characters that people would not see: control characters, terminal codes, bidi, zero width.

Lowest of all, because errors print themselves with it.
"""

from __future__ import annotations

import re

_TERMINAL_CODES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -~])?"
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# Controls, soft hyphens, fillers, zero-width, bidi, variation selectors (except U+FE0F, which
# ordinary emoji have), tags, lone surrogates.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
# Those of them that no language needs: overrides of the reading direction (a line may read as
# something else) and tags (words that only a model sees).
_DIRECTION_AND_TAGS = re.compile("[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e0fff]")

_JOINERS = "\u200c\u200d"
# Within words of these scripts (Arabic to Burmese, Khmer), and between the parts of an emoji, a
# joiner is spelling. Elsewhere it makes two names that look alike.
_JOINED = re.compile(
    "[\u0620-\u08ff\u0900-\u109f\u1780-\u17ff\ufb50-\ufdff\ufe70-\ufefc"
    "\u2190-\u2bff\ufe0f\U0001f000-\U0001faff]"
)


def visible(text: str) -> str:
    """Prepare arguments or results of a tool for a person.

    Terminal codes are removed. Characters that are invisible, reorder others or carry invisible
    text are shown as `⟦U+202E⟧`. A joiner that a script or an emoji needs is text.
    """
    return _HIDDEN.sub(_show_code_point, without_codes(text))


def readable(text: str) -> str:
    """Prepare a model's text for a person: like `visible`, but keep what scripts and emoji need."""
    return _DIRECTION_AND_TAGS.sub(_show_code_point, _CONTROLS.sub("\ufffd", without_codes(text)))


def without_codes(text: str) -> str:
    """Remove terminal codes and convert line ends to Unix."""
    return _TERMINAL_CODES.sub("", text).replace("\r\n", "\n")


def _show_code_point(match: re.Match[str]) -> str:
    char, text, at = match[0], match.string, match.start()
    if char in _JOINERS and _JOINED.match(text, at + 1) and _JOINED.match(text, max(at - 1, 0)):
        return char
    return f"⟦U+{ord(char):04X}⟧"
