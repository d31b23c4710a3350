"""Suggestions for misspelt names: the one place that compares a name with the known ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from itertools import islice

_MIN_SIMILARITY = 0.6
_MIN_PART_CHARS = 3
_WORD_SIMILARITY = 0.75
"""`make` is no slip for `take`, which is as similar."""
_MAX_NAME_CHARS = 100
"""A longer text is no misspelt name, and comparing it would take long."""
_MAX_COMPARED = 5_000
_MAX_LISTED = 60
FEW_NAMES = 10
"""A list of at most so many names is a help beside the nearest one."""


def nearest_name(
    name: object, known: Iterable[str], *, similarity: float = _MIN_SIMILARITY
) -> str | None:
    """Return the known name that is most similar to a misspelt one; None if none is similar.

    Case and punctuation do not count: models write `FsRead` for `fs.read`. A beginning or an end of
    a known name counts if no other name is similar. Private names are suggested for one only.
    """
    if not isinstance(name, str) or len(name) > _MAX_NAME_CHARS:
        return None
    names = dict[str, str]()
    for candidate in islice(known, _MAX_COMPARED):
        if candidate.startswith("_") and not name.startswith("_"):
            continue
        names.setdefault(_letters(candidate[:_MAX_NAME_CHARS]), candidate)
    wanted = _letters(name)
    if wanted in names:
        return names[wanted]
    similar = get_close_matches(wanted, names, 1, similarity)
    if not similar and len(wanted) >= _MIN_PART_CHARS:
        similar = [key for key in names if key.startswith(wanted) or key.endswith(wanted)]
    return names[min(similar, key=len)] if similar else None


def misspelt_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name of which this one is a slip of the fingers; None if it is another name.

    Stricter than `nearest_name`: word by word, so that `set_city` is no slip for `get_city`, and
    digits are equal. The end of a dotted name counts: `write` for `fs.write`.
    """
    return next((n for n in known if _is_slip(name[:_MAX_NAME_CHARS], n)), None)


def _is_slip(name: str, known: str) -> bool:
    if _letters(name) == _letters(known) or name.casefold() == known.rpartition(".")[2].casefold():
        return name != known
    pairs = _words(name), _words(known)
    return len(pairs[0]) == len(pairs[1]) and all(map(_is_slip_of_word, *pairs))


def _words(name: str) -> list[str]:
    """Split a name at its punctuation and digits; digits are words of their own."""
    return re.findall(r"[^\W\d_]+|\d", name.casefold())


def _is_slip_of_word(word: str, known: str) -> bool:
    if word == known or (len(word) > 1 and sorted(word) == sorted(known)):
        return True
    return SequenceMatcher(None, word, known).ratio() > _WORD_SIMILARITY


def _letters(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold()) or name


def nearest_hint(name: object, known: Iterable[str]) -> str:
    """Suggest the most similar name: `; did you mean 'model'?`, empty if none is similar."""
    near = nearest_name(name, known)
    return f"; did you mean {near!r}?" if near is not None else ""


def name_error_with_hint(error: NameError, known: Iterable[str]) -> NameError:
    """Copy the error of an expression; it suggests the known name most similar to its own."""
    hint = nearest_hint(error.name, known)
    return NameError(f"{error}{hint}", name=error.name) if hint else error


def name_list(names: Iterable[str], most: int = _MAX_LISTED) -> str:
    """Join names into one line; at most 60 are shown."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def nearest_or_all(name: object, known: Iterable[str], label: str = "there are") -> str:
    """Suggest the most similar name; list all known names if they are few, or none is similar.

    The end of a sentence: `; did you mean 'model'?` or `; there are model, session`.
    """
    names = list(dict.fromkeys(known))
    hint = nearest_hint(name, names)
    is_listed = names and (not hint or len(names) <= FEW_NAMES)
    return f"; {label} {name_list(names)}{hint}" if is_listed else hint
