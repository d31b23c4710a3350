"""How the demo model compares numbers: larger, smaller, difference, total, average, ratio, order.

Takes the words of the prompt and the numbers; where these come from is not its affair.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

_MORE = (
    r"larger|largest|bigger|biggest|more|most|higher|highest|greater|greatest|max|maximum|longer"
    r"|longest|taller|tallest|older|oldest|heavier|heaviest|warmer|warmest|hotter|hottest|faster"
    r"|fastest|farther|farthest|further|furthest|wider|widest|deeper|deepest|richer|richest|best"
    r"|better|top|wins|winner|stronger|strongest"
)
_LESS = (
    r"smaller|smallest|less|least|fewer|fewest|lower|lowest|min|minimum|shorter|shortest|younger"
    r"|youngest|lighter|lightest|colder|coldest|cooler|coolest|cheaper|cheapest|slower|slowest"
    r"|nearer|nearest|closer|closest|narrower|narrowest"
)
_DIFFERENCE = (
    r"difference|by how much|how much (?:\w+er|more|less)|how many (?:more|fewer|less)"
    r"|how far apart|gap between"
)
_TOTAL = r"total|sum|together|combined|altogether|in all|add(?:ed)? up|overall"
_AVERAGE = r"average|mean|on average"
_RATIO = r"ratio|how many times|times (?:as|more|larger|bigger|the)|factor|percent(?:age)?"
_ORDER = r"sort(?:ed)?|rank(?:ed|ing)?|order(?:ed)? by|in order|ascending|descending"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and what it belongs to."""

    label: str
    value: Decimal
    shown: str
    """As it came, with thousands separators."""


def asks_to_compare(prompt: str) -> bool:
    """Whether a prompt speaks of comparing or adding up."""
    words = "|".join((_MORE, _LESS, _DIFFERENCE, _TOTAL, _AVERAGE, _RATIO, _ORDER, "compare"))
    return re.search(rf"\b(?:{words})\b", prompt, re.I) is not None


def wants_order(prompt: str) -> Literal["up", "down"] | None:
    """Whether the results are to be sorted, and which way."""
    if not re.search(rf"\b(?:{_ORDER})\b", prompt, re.I):
        return None
    up = re.search(rf"\b(?:ascending|{_LESS})\b", prompt, re.I)
    return "up" if up and not re.search(r"\bdescending\b", prompt, re.I) else "down"


def figure(value: Any) -> tuple[Decimal, str] | None:
    """A number as it can be compared and as it is shown: a number, or a text such as `12.5 kg`."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        number = Decimal(str(value))
        return (number, formatted(value)) if number.is_finite() else None
    if isinstance(value, str):
        match = re.fullmatch(r"\s*[^\w\s+-]?\s*([-+]?\d[\d,]*(?:\.\d+)?)\s*([^\d\s]\S*)?\s*", value)
        if match:
            try:
                return Decimal(match[1].replace(",", "")), value.strip()
            except InvalidOperation:
                return None
    return None


def formatted(value: float | Decimal) -> str:
    """A number with thousands separators and at most four decimals where these say enough."""
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**30 else str(value)
    number = Decimal(str(value))
    if not number.is_finite():
        return str(value)
    if number and not Decimal("0.0001") <= abs(number) < Decimal(10) ** 21:
        return f"{number:.4g}"
    text = f"{number:,.4f}" if abs(number) >= Decimal("0.1") else f"{number:.4g}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def verdicts(prompt: str, figures: Sequence[Figure]) -> list[str]:
    """The sentences that the prompt asks for, in a fixed order; none for fewer than two numbers."""
    if len(figures) < 2:
        return []
    said: list[str] = []
    limit = _limit(prompt, figures)
    if limit is not None:
        said.append(limit)
    elif (extreme := _extreme(prompt, figures)) is not None:
        said.append(extreme)
    for pattern, sentence in _SENTENCES:
        if re.search(rf"\b(?:{pattern})\b", prompt, re.I):
            said.append(sentence(figures))
    if not said and re.search(r"\bcompare\b", prompt, re.I):
        said = [_extreme("larger", figures) or "", _difference(figures)]
    return said


def _extreme(prompt: str, figures: Sequence[Figure]) -> str | None:
    # `by how much more` and `how many times larger` ask for the distance, not for the winner.
    rest = re.sub(rf"\b(?:{_DIFFERENCE}|{_RATIO})\b", " ", prompt, flags=re.I)
    high = re.search(rf"\b({_MORE})\b", rest, re.I)
    low = re.search(rf"\b({_LESS})\b", rest, re.I)
    both = [
        _winner(prompt, figures, match[1].lower(), largest=largest)
        for match, largest in ((high, True), (low, False))
        if match is not None
    ]
    return "\n\n".join(both) if both else None


_ADJECTIVE = r"\b(?:more|most|less|least)\s+(\w+(?:ive|ous|ful|ant|ent|able|ible|ic|ar))\b"


def _winner(prompt: str, figures: Sequence[Figure], word: str, *, largest: bool) -> str:
    duration = re.search(r"\b(time|duration|seconds?|minutes?|hours?|ms|took)\b", prompt, re.I)
    if word in ("faster", "fastest", "slower", "slowest") and duration:
        largest = not largest
    ordered = sorted(figures, key=lambda one: one.value, reverse=largest)
    first, second = ordered[0], ordered[1]
    if first.value == second.value:
        tied = [one.label for one in ordered if one.value == first.value]
        return f"{_listed(tied)} are equal: {first.shown}."
    than = _than(prompt, figures)
    against = second.shown if len(ordered) == 2 else f"{second.shown} for **{second.label}**"
    long = re.search(_ADJECTIVE, prompt, re.I)
    verb = _is(word, len(ordered))
    if long is not None and word in _HAS:
        verb = f"{verb.replace('has', 'is', 1)} {long[1].lower()}"
    sentence = f"**{first.label}** {verb}: {first.shown} against {against}."
    if than is None:
        return sentence
    return f"{'Yes' if than.label == first.label else 'No'}: {sentence}"


def _than(prompt: str, figures: Sequence[Figure]) -> Figure | None:
    """Whom a yes-or-no question asks about: `Is Oslo larger than Bergen?` asks about Oslo."""
    if not re.match(
        r"\s*(?:and\s+|so\s+)?(?:is|are|does|do|has|have|was|were|did)\b", prompt, re.I
    ):
        return None
    if re.search(r"\bor\b", prompt, re.I):
        return None
    low = prompt.lower()
    placed = [(low.find(one.label.lower()), one) for one in figures]
    named = sorted((pair for pair in placed if pair[0] >= 0), key=lambda pair: pair[0])
    return named[0][1] if named else None


_HAS = ("more", "most", "less", "least", "fewer", "fewest")
_NOUNS = ("max", "maximum", "min", "minimum", "top", "winner", "wins")


def _is(word: str, count: int) -> str:
    if word in _NOUNS:
        high = word not in ("min", "minimum")
        return "has the largest value" if high else "has the smallest value"
    if count > 2 and word.endswith("er") and word not in ("better", "fewer"):
        word = f"{word[:-2]}est"
    superlative = {"more": "most", "less": "least", "fewer": "fewest", "better": "best"}
    if count > 2:
        word = superlative.get(word, word)
    verb = "has" if word in _HAS else "is"
    return f"{verb} the {word}" if word.endswith("st") else f"{verb} {word}"


def _difference(figures: Sequence[Figure]) -> str:
    high, low = max(figures, key=_value), min(figures, key=_value)
    return (
        f"The difference is **{formatted(high.value - low.value)}**:"
        f" {high.shown} (**{high.label}**) − {low.shown} (**{low.label}**)."
    )


def _total(figures: Sequence[Figure]) -> str:
    return f"Together: **{formatted(sum((one.value for one in figures), Decimal(0)))}**."


def _average(figures: Sequence[Figure]) -> str:
    total = sum((one.value for one in figures), Decimal(0))
    return f"The average is **{formatted(total / len(figures))}**."


def _ratio(figures: Sequence[Figure]) -> str:
    high, low = max(figures, key=_value), min(figures, key=_value)
    if low.value <= 0:
        return f"There is no ratio of {high.shown} to {low.shown}."
    ratio = high.value / low.value
    times = f"{ratio:,.2f}" if ratio < 10**15 else formatted(ratio)
    return f"**{high.label}** is **{times}** times **{low.label}**."


def _value(one: Figure) -> Decimal:
    return one.value


_SENTENCES: tuple[tuple[str, Callable[[Sequence[Figure]], str]], ...] = (
    (_DIFFERENCE, _difference),
    (_TOTAL, _total),
    (_AVERAGE, _average),
    (_RATIO, _ratio),
)


def _limit(prompt: str, figures: Sequence[Figure]) -> str | None:
    """`more than 500,000`: those that are, by name."""
    match = re.search(
        r"\b(more than|over|above|at least|greater than|larger than|higher than|warmer than"
        r"|less than|under|below|at most|fewer than|smaller than|lower than|cheaper than)"
        r"\s+(-?\d[\d,]*(?:\.\d+)?)\s*(k|thousand|million|billion)?\b",
        prompt,
        re.I,
    )
    if match is None:
        return None
    words = match[1].lower()
    scale = {"k": 10**3, "thousand": 10**3, "million": 10**6, "billion": 10**9}
    bound = Decimal(match[2].replace(",", "")) * scale.get((match[3] or "").lower(), 1)
    tests: dict[str, Callable[[Decimal], bool]] = {
        "at least": lambda value: value >= bound,
        "at most": lambda value: value <= bound,
    }
    below = words.split()[0] in ("less", "under", "below", "fewer", "smaller", "lower", "cheaper")
    test = tests.get(words, (lambda v: v < bound) if below else (lambda v: v > bound))
    named = [f"{one.label}" for one in figures if test(one.value)]
    return f"{words.capitalize()} {formatted(bound)}: {_listed(named) if named else 'none'}."


def _listed(labels: Sequence[str]) -> str:
    bold = [f"**{label}**" for label in labels]
    return " and ".join([", ".join(bold[:-1]), bold[-1]] if len(bold) > 1 else bold)
