"""Names of a batch's rows, variants and labels in a table: short, and different for different ones.

A page joins rows by their numbers; the short texts are only for reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from nbagent.contracts.case_results import CaseResult
from nbagent.view.text_format import one_line, sanitize_value

LABEL_CHARS = 40
"""Shown characters of a label, a value of a score, the name of a tool."""
KEY_CHARS = 80
"""Shown characters of the key of a row, and of a variant."""
_BEFORE = 8
"""Shown characters before the point where two texts differ."""
_MOST_CHARS = 4_000
"""Characters of a text that are looked at."""
Labels = tuple[tuple[str, str], ...]
"""The label of each axis: what a variant is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseNames:
    """Numbers and short texts of the rows and variants of some cases."""

    rows: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of each row, by its key."""
    variants: Mapping[Labels, int] = field(default_factory=dict[Labels, int])
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Shown texts of the keys that are too long."""
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """Shown text of each label, by the name of its axis."""

    def key(self, result: CaseResult) -> str:
        """Return the shown key of a case's row."""
        key = result.row_key
        return self.keys.get(key) or short_text(key, KEY_CHARS) or "(no key)"

    def label(self, axis: str, result: CaseResult) -> str:
        """Return the shown label of a case."""
        return self.label_text(axis, result.labels.get(axis, ""))

    def label_text(self, axis: str, label: str) -> str:
        """Return the shown text of a label."""
        return self.labels.get(axis, {}).get(label) or short_text(label, LABEL_CHARS)

    def row_number(self, result: CaseResult) -> str:
        """Return what the cases of one row have in common in each variant: row and attempt."""
        return f"{self.rows.get(result.row_key, -1)}.{result.attempt}"

    def variant_number(self, result: CaseResult) -> str:
        """Return the number of a case's variant."""
        return str(self.variants.get(_labels(result), -1))

    def varying(self) -> list[str]:
        """Return the axes with several labels, then the others."""
        return sorted(self.labels, key=lambda axis: len(self.labels[axis]) < 2)

    def variant_texts(self) -> list[str]:
        """Return the shown texts of the variants, in the order of their numbers."""
        joined = [" · ".join(label for _, label in labels) for labels in self.variants]
        return short_texts(joined, KEY_CHARS)


def names_of_cases(results: Iterable[CaseResult]) -> CaseNames:
    """Number the rows and variants of some cases."""
    rows: dict[str, int] = {}
    variants: dict[Labels, int] = {}
    for result in results:
        rows.setdefault(result.row_key, len(rows))
        variants.setdefault(_labels(result), len(variants))
    by_axis: dict[str, dict[str, None]] = {}
    for variant in variants:
        for axis, label in variant:
            by_axis.setdefault(axis, {})[label] = None
    long = [key for key in rows if len(key) > KEY_CHARS]
    return CaseNames(
        rows=rows,
        variants=variants,
        keys=dict(zip(long, short_texts(long, KEY_CHARS), strict=True)),
        labels={
            axis: dict(zip(labels, short_texts([*labels], LABEL_CHARS), strict=True))
            for axis, labels in by_axis.items()
        },
    )


def _labels(result: CaseResult) -> Labels:
    return tuple(result.labels.items())


def short_text(text: str, chars: int) -> str:
    """Cut a text to one line."""
    return one_line(sanitize_value(text[: chars * 4]), chars)


def short_texts(texts: Sequence[str], chars: int) -> list[str]:
    """Cut texts so that they still differ: those with one beginning show where they differ."""
    # A secret is only recognized in the whole text.
    clean = [sanitize_value(text[:_MOST_CHARS]) for text in texts]
    shown = [one_line(text, chars) for text in clean]
    alike: dict[str, list[int]] = {}
    for number, text in enumerate(shown):
        alike.setdefault(text, []).append(number)
    for group in alike.values():
        for number, start in _differences(clean, group):
            head, tail = clean[number][:start], clean[number][start:]
            if len(head) > chars // 3:
                shown[number] = f"{one_line(head, chars // 3)} {one_line(tail, chars * 3 // 5)}"
    return _numbered(shown)


def _differences(texts: Sequence[str], group: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield where each text of a group differs from the one most like it; none for one alone."""
    ordered = sorted(group, key=lambda number: texts[number])
    for position, number in enumerate(ordered if len(group) > 1 else ()):
        before, after = ordered[max(0, position - 1) : position], ordered[position + 1 :][:1]
        shared = [_shared_chars(texts[number], texts[other]) for other in (*before, *after)]
        start = max(0, max(shared) - _BEFORE)
        yield number, texts[number].rfind(" ", max(0, start - _BEFORE), start) + 1 or start


def _shared_chars(a: str, b: str) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((n for n, (x, y) in pairs if x != y), min(len(a), len(b)))


def _numbered(texts: Sequence[str]) -> list[str]:
    """Append a number to texts that are there already."""
    used: set[str] = set()
    made: list[str] = []
    for text in texts:
        numbers = (f"{text} #{n}" for n in count(2))
        fresh = text if text not in used else next(n for n in numbers if n not in used)
        used.add(fresh)
        made.append(fresh)
    return made
