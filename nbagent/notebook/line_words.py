"""A line as words, split as a shell would: quotes, backslashes, and where each word stands.

Also of a line that is not finished yet, for completion. Knows nothing of options.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

QUOTES = "'\""
CURLY = "\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u00ab\u00bb"
"""Quotes that word processors and chats put in the place of the straight ones."""
_JOINERS = "\u200c\u200d"
"""Invisible, and yet a part of words in Persian and Hindi, and of many emoji."""
_UNTYPABLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Controls, what ends a line, what turns the reading direction or is not seen."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word, and what is odd about it."""

    text: str
    """Without its quotes and backslashes."""
    start: int
    """Where it begins in the line."""
    end: int
    open_quote: str = ""
    """The quote that is not closed."""
    hidden: str = ""
    """A letter or digit behind a backslash outside of quotes: most likely of a Windows path."""
    dangling: bool = False
    """It ends in a backslash that hides nothing."""


def goes_on(line: str) -> bool:
    """Whether a backslash at its end lets the line go on in the next one."""
    return line.endswith("\\") and not line.endswith("\\\\")


def words_of(line: str) -> list[Word]:
    """The words of a line. Never raises: an unfinished word is the last one, and says so."""
    found: list[Word] = []
    place = 0
    while place < len(line):
        if line[place].isspace():
            place += 1
            continue
        word = _word_at(line, place)
        found.append(word)
        place = word.end
    return found


def _word_at(line: str, start: int) -> Word:
    text: list[str] = []
    quote, hidden, place = "", "", start
    while place < len(line):
        char, following = line[place], line[place + 1 : place + 2]
        place += 1
        if quote:
            if char == quote:
                quote = ""
                continue
            if char == "\\" and quote == '"' and following and following in '"\\':
                char, place = following, place + 1
        elif char in QUOTES:
            quote = char
            continue
        elif char == "\\":
            if not following:
                return Word("".join(text), start, place, dangling=True)
            hidden = hidden or (following if following.isalnum() else "")
            char, place = following, place + 1
        elif char.isspace():
            place -= 1
            break
        text.append(char)
    return Word("".join(text), start, place, open_quote=quote, hidden=hidden)


def is_typable(text: str) -> bool:
    """Whether it can stand on a line as one value, and reads there as what it is."""
    if not text.strip() or unicodedata.category(text[0]) == "Pd":
        return False  # Behind a dash of any kind an option is looked for, also in quotes.
    return all(c in _JOINERS or unicodedata.category(c) not in _UNTYPABLE for c in text)


def quoted(text: str, quote: str = "") -> str:
    """The text as one word of a line: as it is, or in quotes where it needs them.

    Args:
        quote: the one that it is to begin with, if it can.
    """
    if quote == "'" and quote not in text:
        return f"'{text}'"
    if quote == '"':
        return _in_double(text)
    plain = text and not any(c.isspace() or c in QUOTES or c in CURLY or c == "\\" for c in text)
    # IPython reads a line that ends in a question mark as one for its help.
    if plain and not text.endswith("?"):
        return text
    if "'" not in text:
        return f"'{text}'"
    return _in_double(text)


def _in_double(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
