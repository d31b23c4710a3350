"""Find the values in a person's words: quoted texts, numbers, dates, names, files, addresses.

Works by patterns; `argument_values` decides which argument takes a value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.canonical import dump_json, load_json
from nbagent.providers.offline.vocabulary import (
    is_german,
    is_grammar,
    is_known,
    is_misspelt,
    meaning,
    stem,
    word_set,
)

_MONTHS = (
    *("jan", "feb", "mar|mär", "apr", "may|mai", "jun", "jul", "aug", "sep", "oct|okt", "nov"),
    "dec|dez",
)
_MONTH = rf"(?:{'|'.join(_MONTHS)})[a-zä]*\.?"
_DAY_WORDS = (
    r"(?:mon|tues|wednes|thurs|fri|satur|sun)day|today|tomorrow|yesterday|heute|morgen|gestern"
    r"|montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag"
)
_VALUE = re.compile(
    r"(?P<code>```.+?```|`[^`\n]+`)"
    r"|(?P<text>(?<!\w)['‘\"“„«][^'’\"”“»\n]+['’\"”“»](?!\w))"
    r"|(?P<url>https?://[^\s]+[^\s.,;:!?)])"
    r"|(?P<email>\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b)"
    r"|(?P<date>\b(?:\d{4}-\d\d-\d\d(?:T[\d:.]+Z?)?|\d{1,2}[./]\d{1,2}[./]\d{4}"
    rf"|(?i:\d{{1,2}}(?:st|nd|rd|th|\.)? (?:of )?{_MONTH},? \d{{4}}"
    rf"|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}|{_DAY_WORDS}))\b)"
    r"|(?P<time>\b\d{1,2}:\d\d(?: ?[ap]m)?\b|\b\d{1,2} ?(?:[ap]m|Uhr)\b)"
    r"|(?P<path>(?<![\w.~-])@?[\w.~-]*(?:/[\w.~-]+)+/?|(?<!\w)@[\w-]+|\b[\w-]+\.[a-z]{1,5}\b)"
    r"|(?P<id>(?<![\w-])(?=[\w-]*\d)[A-Za-z][\w-]*|\b[^\W_]+_\w+)"
    r"|(?P<number>(?<![\w.])[-−]?\d+(?:[.,]\d+)*(?:\s?(?:k|thousand|million|billion|tausend"
    r"|Millionen?|Milliarden?)\b)?)"
    r"|(?P<name>(?<!\w)[A-Z][^\W\d_]+(?:[ -](?:(?:of|de|la|del|di|da|am|an der) )?"
    r"[A-Z][^\W\d_]+)*)"
    r"|(?P<counted>\b(?i:two|three|four|five|six|seven|eight|nine|ten|twelve|zwei|drei|vier|fünf"
    r"|sechs|sieben|acht|neun|zehn|zwölf)\b)",
    re.DOTALL,
)
_NUMBER_WORDS = {
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "zwei": 2,
    "drei": 3,
    "vier": 4,
    "fünf": 5,
    "sechs": 6,
    "sieben": 7,
    "acht": 8,
    "neun": 9,
    "ten": 10,
    "twelve": 12,
    "zehn": 10,
    "zwölf": 12,
}
_FACTORS = {"k": 1e3, "th": 1e3, "ta": 1e3, "mi": 1e6, "bi": 1e9}
_VERBS = word_set(
    "ask book compare convert count describe download fetch find hi look make plant read run search"
    " send set write vergleiche finde suche schreibe sende schicke lies setze rechne übersetze"
    " translate add multiply divide subtract plan create delete order calculate please evaluate"
    " sort rank email show give tell"
    " average total list summarize check open close turn switch start stop call use"
)
"""Verbs that begin a sentence with a capital and are not part of a name."""
_ARTICLES = word_set(
    "der die das den dem des ein eine einen einem einer the a an mein meine meinen"
)
_MAX_VALUES = 100
_SEPARATOR = re.compile(r"\s*(?:,|;|/|&|,?\s*\b(?:and|or|und|oder|vs\.?|versus|sowie)\b)\s*", re.I)
_UNIT = re.compile(r"(?<![\w-])([\d.,]*\d)(km|mi|m|cm|mm|kg|g|lbs?|oz|l|c|f|usd|eur|gbp)\b", re.I)


@dataclass(frozen=True, slots=True)
class Value:
    """A part of a prompt that can be an argument."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def number(self) -> int | float | None:
        """Its number, if it is one."""
        return number_of(self.text) if self.kind == "number" else None


def number_of(text: str) -> int | float | None:
    """Read a number as people write it: `200,000`, `1.234,5`, `3,5 Millionen`, `-4.2`."""
    match = re.fullmatch(r"([-−]?)(\d[\d.,]*)\s*(\w*)", text.strip())
    if match is None or len(match[2]) > 30:
        return None
    digits = match[2].rstrip(".,")
    last = max(digits.rfind(","), digits.rfind("."))
    is_grouped = re.fullmatch(r"\d{1,3}(,\d{3})+", digits) or digits.count(".") > 1
    if is_grouped:
        plain = re.sub("[.,]", "", digits)
    elif last < 0:
        plain = digits
    else:
        plain = re.sub("[.,]", "", digits[:last]) + "." + digits[last + 1 :]
    number = float(plain) if "." in plain else int(plain)
    if match[3]:
        number = number * _FACTORS.get(match[3][:2].lower(), 1)
        number = int(number) if number == int(number) else number
    return -number if match[1] else number


def literal(text: str) -> Any:
    """Parse a Python literal; return the text if it is not one."""
    try:
        return load_json(dump_json(ast.literal_eval(text)))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def without_backticks(code: str) -> str:
    """Code without its backticks."""
    return re.sub(r"\A```\w*\n|\A`+|\s*`+\Z", "", code)


def without_quotes(text: str) -> str:
    """Prompt without its quotations, paths and code, which are values and not words about tools."""
    hidden = ("code", "text", "url", "path", "email")
    return _VALUE.sub(lambda match: " " if match.lastgroup in hidden else match[0], text)


def spaced_units(text: str) -> str:
    """Put a space between a number and its unit: `5km`."""
    return _UNIT.sub(r"\1 \2", text)


def values_in(text: str, tool_words: Iterable[str], known: Sequence[str] = ()) -> list[Value]:
    """Find the values of a prompt in order.

    Args:
        text: the words of a person.
        tool_words: meanings of words in tools' names, which are no names of things.
        known: names that count in any spelling, such as the cells of a table.
    """
    values = [Value("name", choice, start, end) for choice, start, end in choices_in(text, known)]
    taken = [(value.start, value.end) for value in values]
    skipped, german = set(tool_words), is_german(text)
    for match in _VALUE.finditer(text):
        if any(start < match.end() and match.start() < end for start, end in taken):
            continue
        value = _value_of(text, match, skipped, german=german)
        if value and value.text:
            values.append(value)
        if len(values) >= _MAX_VALUES:
            break
    return sorted(values, key=lambda value: value.start)


def _value_of(text: str, match: re.Match[str], skipped: set[str], *, german: bool) -> Value | None:
    kind, part = str(match.lastgroup), match[0]
    if kind == "counted":
        return Value("number", str(_NUMBER_WORDS[part.lower()]), match.start(), match.end())
    if kind == "name":
        return _name(text, match, skipped, german=german)
    if kind == "code":
        part = without_backticks(part)
    elif kind == "text":
        part = part[1:-1].strip()
    elif kind == "date":
        part = iso_date(part) or part
    return Value(kind, part, match.start(), match.end())


def iso_date(text: str) -> str:
    """Write a day, month and year as an ISO date; empty for other texts."""
    if re.match(r"\d{4}-\d\d-\d\d", text):
        return text
    if numeric := re.fullmatch(r"(\d{1,2})([./])(\d{1,2})[./](\d{4})", text):
        first, second, year = int(numeric[1]), int(numeric[3]), numeric[4]
        # 3/12/2024 is December 3rd or March 12th; only the dots of German are certain.
        if numeric[2] == "/" and first <= 12:
            return ""
        return f"{year}-{second:02}-{first:02}" if second <= 12 else ""
    for number, names in enumerate(_MONTHS, 1):
        if re.search(rf"\b(?:{names})[a-zä]*", text, re.I):
            figures = re.findall(r"\d+", text)
            return f"{figures[-1]}-{number:02}-{int(figures[0]):02}" if len(figures) == 2 else ""
    return ""


def _name(text: str, match: re.Match[str], skipped: set[str], *, german: bool) -> Value | None:
    """Return a name without words that only begin the sentence or belong to a tool."""
    part, start = match[0], match.start()
    before = text[:start].rstrip()
    begins = before[-1:] in ("", *".!?:\n")
    listed = re.match(r"\s*(?:,|or\b|and\b|und\b|oder\b|\?|:|\Z)", text[match.end() :])
    while part:
        first, _, rest = part.partition(" ")
        lower = first.lower()
        is_order = lower in _VERBS or meaning(lower) in skipped or stem(lower) in skipped
        is_alone = begins and not rest and not listed
        is_noun = german and (is_known(lower) or _last_word(before) in _ARTICLES)
        if not (
            is_grammar(lower) or is_order or is_alone or is_noun or (begins and is_known(lower))
        ):
            break
        is_content = not is_grammar(lower) and lower not in _VERBS
        if not begins and rest and is_content and not german and meaning(lower) not in skipped:
            break  # `Population Oslo` in a title; but `Lake Garda` keeps its first word.
        part, before, start, begins = rest, f"{before} {first}", start + len(first) + 1, False
    if not part:
        return None
    return Value("name", part.title() if text.isupper() else part, start, match.end())


def _last_word(text: str) -> str:
    return next(iter(re.findall(r"\w+$", text[-30:].lower())), "")


def choices_in(text: str, choices: Sequence[Any]) -> list[tuple[Any, int, int]]:
    """Find choices in a text, in its order: as written, in the plural, as a synonym, misspelt."""
    hits: list[tuple[Any, int, int]] = []
    for choice in sorted(choices, key=lambda choice: -len(str(choice))):
        for match in _spellings(str(choice)).finditer(text):
            if not any(start < match.end() and match.start() < end for _, start, end in hits):
                hits.append((choice, match.start(), match.end()))
    by_meaning = {
        meaning(str(choice)): choice
        for choice in choices
        if is_known(str(choice)) and not is_grammar(str(choice))
    }
    by_stem = {stem(str(choice)): choice for choice in choices if len(str(choice)) > 3}
    singles = [choice for choice in choices if str(choice).isalpha() and len(str(choice)) >= 5]
    for match in re.finditer(r"[^\W\d_]+|[€$£°]\w?", text):
        word = match[0]
        if is_grammar(word) or any(s < match.end() and match.start() < e for _, s, e in hits):
            continue
        choice = by_meaning.get(meaning(word)) if is_known(word) or word[0] in "€$£" else None
        choice = by_stem.get(stem(word)) if choice is None and len(word) > 4 else choice
        if choice is None and len(word) >= 5 and not is_known(word):
            choice = next(
                (choice for choice in singles if is_misspelt(word.lower(), str(choice).lower())),
                None,
            )
        if choice is not None:
            hits.append((choice, match.start(), match.end()))
    return sorted(hits, key=lambda hit: hit[1])


def _spellings(choice: str) -> re.Pattern[str]:
    """Match a choice in any case, with spaces for underscores, in the singular or plural."""
    pattern = r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", choice.strip("_- "))))
    if not pattern:
        return re.compile(r"(?!)")
    if len(choice) <= 2 or (len(choice) == 3 and (is_grammar(choice) or is_known(choice))):
        # Short codes (`C`, `in`, `NO`) are words, too: only as written; a unit after a number.
        after_number = rf"|(?<=\d ){pattern}(?!\w)" if choice.isalpha() else ""
        upper = pattern if choice.isupper() or not choice.isalpha() else r"(?!)"
        lower = pattern if not is_grammar(choice) and len(choice) > 1 else r"(?!)"
        return re.compile(rf"(?<!\w)(?:{upper}|{lower}{after_number})(?!\w)")
    return re.compile(rf"(?<!\w){pattern}(?:s|es|en|n)?(?!\w)", re.IGNORECASE)


def is_listed(text: str, first: Value, other: Value) -> bool:
    """True if only a comma, `and` or `or` is between two values."""
    between = text[first.end : other.start]
    return first.kind == other.kind and bool(_SEPARATOR.fullmatch(between))
