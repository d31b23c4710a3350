"""Finds the JSON of a typed answer in a model's text: alone, in a code fence, or between words.

Only JSON that stands by itself is taken: no part of a broken or larger value, and nothing if the
text has two values that fit. Which values fit is the caller's knowledge.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from nbagent.contracts.canonical import dump_json, load_json
from nbagent.contracts.errors import ToolError

T = TypeVar("T")
_MAX_CANDIDATES = 50
"""Most pieces of one text that are tried."""
_MAX_ENDS = 5
_FENCE_START = re.compile(
    r"(`{3,}|~{3,})(?:[ \t]*(?:[\w+.-]+|\{\.?[\w-]+\})(?:[ \t]+[\w-]+=[^\s`]+)*(?=\s))?"
)
"""A fence with its language, also as ` json`, `{.json}` or `json title="a.json"`."""
_QUOTE_MARK = re.compile(r"^[ \t]*>[ \t]?", re.MULTILINE)
_BLANKS = "\ufeff\u200b\xa0 \t\r\n"
_STRING_OR_LAST_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)
_OPENING = re.compile(r"[{\[]")
_TOKEN_INSIDE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
"""A bracket, or a string, which may contain brackets."""
_NO_VALUE: Any = object()


class NoJson(ValueError):
    """The text has no JSON that could be meant as the answer."""


def read_json_answer(text: str, check: Callable[[Any], T]) -> T:
    """Read the value that a text gives; `check` converts it, and raises ToolError if it is invalid.

    Raises:
        ToolError: the first JSON in the text is invalid, and no other one fits.
        NoJson: there is none, or two between words fit.
    """
    text = text.strip(_BLANKS)
    whole = _parsed(text)
    if whole is not _NO_VALUE:
        return check(whole)
    values, rest = _fenced(text)
    invalid: ToolError | None = None
    for value in values:
        try:
            return check(value)
        except ToolError as error:
            invalid = invalid or error
    fitting: dict[bytes, T] = {}
    for value in _between_words(rest):
        try:
            fitting[dump_json(value)] = check(value)
        except ToolError as error:
            invalid = invalid or error
    if len(fitting) == 1:
        return fitting.popitem()[1]
    if invalid is not None and not fitting:
        raise invalid
    raise NoJson("it has several JSON values; give only one" if fitting else "it is no JSON")


def _parsed(text: str) -> Any:
    """Parse JSON; a comma after the last item is no error, nor is the mark of a quotation."""
    text = text.strip(_BLANKS)
    unquoted = _QUOTE_MARK.sub("", text)
    for candidate in (text, _STRING_OR_LAST_COMMA.sub(r"\1", unquoted)):
        with suppress(ValueError, RecursionError):
            return load_json(candidate)
    return _NO_VALUE


def _fenced(text: str) -> tuple[list[Any], str]:
    """Return the JSON in code fences, in order, and the text without its fences."""
    values: list[Any] = []
    others: list[str] = []
    position = 0
    while (start := _FENCE_START.search(text, position)) and len(others) < _MAX_CANDIDATES:
        end, value = _end_of_fence(text, start)
        if end < 0:
            break
        values += [] if value is _NO_VALUE else [value]
        others.append(text[position : start.start()])
        position = end
    return values, "\n".join([*others, text[position:]])


def _end_of_fence(text: str, start: re.Match[str]) -> tuple[int, Any]:
    """Return where a fence ends and its JSON; -1 if it has no end."""
    first = -1
    # A string in the JSON may contain the mark of a fence, so some later ends are tried, too.
    for end in islice(re.finditer(re.escape(start[1]), text[start.end() :]), _MAX_ENDS):
        after = start.end() + end.end()
        first = after if first < 0 else first
        value = _parsed(text[start.end() : start.end() + end.start()])
        if value is not _NO_VALUE:
            return after, value
    return first, _NO_VALUE


def _between_words(text: str) -> Iterator[Any]:
    """Yield the objects between words, and a list if words are only before or only behind it."""
    text = text.strip()
    for start, end in islice(_brackets(text), _MAX_CANDIDATES):
        if text[start] == "[" and start and end < len(text):
            continue  # a citation, such as [1]
        value = _parsed(text[start:end])
        if value is not _NO_VALUE:
            yield value


def _brackets(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the outermost brackets; none after one that is not closed."""
    depth = start = position = 0
    while match := (_TOKEN_INSIDE if depth else _OPENING).search(text, position):
        position = match.end()
        if match[0] in "{[":
            start = start if depth else match.start()
            depth += 1
        elif match[0] in "}]":
            depth -= 1
            if not depth:
                yield start, position
