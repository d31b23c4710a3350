"""One value as the text of one cell: short however large it is.

Owns the start of lists and mappings that are too large to be written out first and cut then.
Tables are `tables`'; the `repr` of other kinds is `texts`'.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any, cast

from nbagent.contracts.secrets import redact_cut
from nbagent.shown.budgets import CELL_CHARS
from nbagent.shown.texts import BROKEN, LEFT_OUT, clean, cut_middle, kind_name, plain_repr

_MOST_ITEMS = 1_000
"""Of all levels together: a value of fewer is written out whole, which keeps its end too."""
_CHARS_PER_ITEM = 20
_TEXT_CHARS = CELL_CHARS * 3 // 4
"""Of one text inside, so that its mark is seen."""
_BRACKETS: dict[type[Any], str] = {
    list: "[]",
    tuple: "()",
    set: "{}",
    frozenset: "{}",
    deque: "[]",
    dict: "{}",
}
_KINDS: tuple[Any, ...] = (*_BRACKETS, defaultdict, OrderedDict, Counter)
_REPRS: set[Any] = {kind.__repr__ for kind in _KINDS}
"""Of a class with a `repr` of its own only that one says what it is."""


def cell_repr(value: object) -> str:
    """`repr` within the budget of a cell, in a time that does not grow with the value."""
    try:
        if _is_small(value):
            return plain_repr(value, CELL_CHARS)
        return _start_of(value)
    except BROKEN:
        return plain_repr(value, CELL_CHARS)


def _is_container(value: object) -> bool:
    return type(value).__repr__ in _REPRS


def _items(value: Any) -> Iterable[Any]:
    if not issubclass(type(value), dict):
        return value
    pairs: Iterable[tuple[Any, Any]] = cast("dict[Any, Any]", value).items()
    return (one for pair in pairs for one in pair)


def _is_small(value: object) -> bool:
    """Whether it has few items and few characters, on all levels together."""
    waiting = [iter((value,))]
    left = _MOST_ITEMS
    while waiting:
        for item in waiting[-1]:
            left -= 1
            if issubclass(type(item), str | bytes | bytearray):
                left -= len(cast("str", item)) // _CHARS_PER_ITEM
            if left < 0:
                return False
            if _is_container(item):
                waiting.append(iter(_items(item)))
                break
        else:
            waiting.pop()
    return True


def _start_of(value: Any) -> str:
    """As much as fits, and what it is the start of."""
    size = f"{len(value):,} items" if _is_container(value) else f"{len(value):,} long"
    mark = f"… [{kind_name(value)}, {size}, the rest{LEFT_OUT}]"
    pieces: list[str] = []
    chars = 0
    for piece in _pieces(value, ()):
        pieces.append(piece)
        chars += len(piece)
        if chars > CELL_CHARS:
            break
    else:
        return redact_cut(clean("".join(pieces)))  # It holds itself, or a long text.
    text = redact_cut(clean("".join(pieces)) + "…").removesuffix("…")
    return text[: CELL_CHARS - len(mark)] + mark


def _pieces(value: Any, above: tuple[int, ...]) -> Iterator[str]:
    """Its `repr`, piece by piece. No text is cut in two but by who redacts it first."""
    if issubclass(type(value), bytes | bytearray):
        start = bytes(value[:CELL_CHARS])
        yield repr(start) + ("…" if len(value) > len(start) else "")
        return
    if not _is_container(value) or not value:
        short = cut_middle(value, _TEXT_CHARS) if type(value) is str else value
        yield plain_repr(short, CELL_CHARS * 2)
        return
    kind = next(one for one in _BRACKETS if issubclass(type(value), one))
    opening, closing = _BRACKETS[kind]
    if id(value) in above:
        yield f"{opening}...{closing}"
        return
    above = (*above, id(value))
    plain = type(value) in (list, tuple, set, dict)
    yield opening if plain else f"{kind_name(value)}({opening}"
    mapping = kind is dict
    for place, item in enumerate(_items(value)):
        yield "" if place == 0 else ": " if mapping and place % 2 else ", "
        yield from _pieces(item, above)
    if kind is tuple and len(value) == 1:
        yield ","
    yield closing if plain else f"{closing})"
