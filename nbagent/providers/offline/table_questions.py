"""Read a question about a table in the prompt: conditions, groups, a statistic, columns.

`table_answers` computes the answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from nbagent.providers.offline.prompt_values import choices_in, number_of
from nbagent.providers.offline.typed_prompt import Table, cell_number
from nbagent.providers.offline.vocabulary import (
    corrected,
    is_grammar,
    is_known,
    is_misspelt,
    meaning,
    meanings,
    words_in,
)

_MAX_CELLS = 300
"""Most different cells of a column that are looked for in a prompt."""
_ADJECTIVES = (
    ("heav|schwer", 1, "mass"),
    ("light|leicht", -1, "mass"),
    ("old|ält|alt", 1, "age"),
    ("young|jüng|jung", -1, "age"),
    ("long|läng|lang", 1, "length duration minute hour second day"),
    ("short|kürz|kurz|kürze", -1, "length height duration minute hour second day"),
    ("tall|höh|höch|hoch", 1, "height"),
    ("high", 1, "height"),
    ("low|niedrig", -1, ""),
    ("deep|tief", 1, "depth"),
    ("wide|broad|breit", 1, "width"),
    ("expensive|teuer|teur|dear|pricy|costly", 1, "price"),
    ("cheap|billig|günstig", -1, "price"),
    ("warm|wärm|hot|hott|heiß", 1, "temperature"),
    ("cold|cool|kalt|kält", -1, "temperature"),
    ("fast|quick|schnell", 1, "speed"),
    ("slow|langsam", -1, "speed"),
    ("large?|bigg?|great|größ|groß|huge", 1, "population area size quantity"),
    ("small|klein|tiny", -1, "population area size quantity"),
    ("populous|crowded", 1, "population"),
    ("rich|wealth|reich", 1, "income salary gdp profit"),
    ("poor|arm|ärm", -1, "income salary gdp profit"),
    ("best|beste", 1, "points rate price"),
    ("worst|schlecht", -1, "points rate"),
    ("late|new|recent|neu", 1, "date year time"),
    ("earl|früh", -1, "date year time"),
    ("last|letzt", 1, "date year time"),
    ("first|erst", -1, "date year time"),
    ("most|meist|maximum|max|maximal|top|greatest", 1, ""),
    ("fewest|fewer|least|wenigst|wenig|minimum|min|minimal|lowest", -1, ""),
)
"""Stems of adjectives, the direction, and meanings of columns that they speak of."""
_FORM = r"(?:i?er|i?est|e?r|e?re[nrsm]?|e?ste?[nrsm]?|e[nrsm]?|y)?"
_SUPERLATIVE = re.compile(r"(?:st|ste[nrsm]?|most|least|best|worst|max\w*|min\w*|top)\Z")
STATISTICS = ("mean", "median", "sum", "std", "range", "maximum", "minimum")
"""Meanings of words that name a statistic."""
_GROUPED = re.compile(
    r"\b(?:per|by|for each|for every|of each|in each|each|every|grouped by|across|je|pro"
    r"|für jede[nsr]?|jede[rsn]?|nach)\s+(?:of the |the |einzelne[nr]? )?([^\W\d]\w*)",
    re.IGNORECASE,
)
_MORE = (
    r"(?:more|greater|larger|bigger|higher|heavier|older|longer|taller|warmer|mehr|größer|höher|"
    r"schwerer|älter|länger|wärmer|teurer|expensive)(?:\s\w+){0,2}? (?:than|als)|above|over"
    r"|exceed\w*|über|oberhalb von"
)
_FEWER = (
    r"(?:less|fewer|smaller|lower|lighter|younger|shorter|colder|cheaper|weniger|kleiner|niedriger"
    r"|leichter|jünger|kürzer|kälter|billiger)(?:\s\w+){0,2}? (?:than|als)|below|under|unter"
)
_LIMIT = re.compile(
    rf"(?:\b(?P<more>{_MORE})|\b(?P<fewer>{_FEWER})|\b(?P<after>after|since|nach|seit)"
    r"|\b(?P<before>before|until|vor|bis)|(?P<least>>=|≥|\bat least|\bmindestens)"
    r"|(?P<most><=|≤|\bat most|\bup to|\bhöchstens)|(?P<above>>)|(?P<below><))"
    r"\s*(?P<number>-?\d[\d.,]*)",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"\b(?:between|zwischen)\s+(-?\d[\d.,]*)\s+(?:and|und)\s+(-?\d[\d.,]*)", re.I)


@dataclass(frozen=True, slots=True)
class _Filter:
    """A condition on the cells of a column."""

    column: str
    text: str
    holds: Callable[[str], bool]


@dataclass(slots=True)
class Question:
    """A question about a table, as far as its words are understood."""

    table: Table
    text: str
    filters: list[_Filter] = field(default_factory=list[_Filter])
    named: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Cells that the words name, by column."""
    by: str = ""
    """Column whose cells are groups."""
    columns: list[str] = field(default_factory=list[str])
    """Columns that the words name."""
    statistic: str = ""
    direction: int = 0
    """1 for the largest, -1 for the smallest."""
    dimension: str = ""
    """Meanings of columns that an adjective speaks of."""
    own: set[str] = field(default_factory=set[str])
    """Meanings of the words."""
    left: str = ""
    """Words without named cells, conditions and the group."""

    @property
    def strength(self) -> int:
        """Number of parts that are understood."""
        return len(self.filters) + len(self.named) + len(self.columns) + bool(self.by)

    @property
    def rows(self) -> list[list[str]]:
        """Rows that pass the filters."""
        places = {name: i for i, name in reversed([*enumerate(self.table.columns)])}
        return [
            row
            for row in self.table.rows
            if all(condition.holds(row[places[condition.column]]) for condition in self.filters)
            and all(row[places[name]] in cells for name, cells in self.named.items())
        ]

    def where(self, *, without: str = "") -> str:
        """Say the conditions; empty without any."""
        texts = [
            f"`{name}` is {' or '.join(cells)}"
            for name, cells in self.named.items()
            if name != without
        ]
        texts += [f"`{condition.column}` is {condition.text}" for condition in self.filters]
        return f" where {' and '.join(texts)}" if texts else ""


def read_question(text: str, table: Table) -> Question:
    """Read the words of a question: conditions, groups, the statistic, columns."""
    columns = {word for name in table.columns for word in words_in(name)}
    question = Question(table, text)
    left = corrected(_read_named_cells(question, text), columns)
    question.text = corrected(
        text,
        columns
        | {word for cells in question.named.values() for cell in cells for word in words_in(cell)},
    )
    question.own = meanings(left)
    left = _read_limits(question, left)
    grouped = next(
        (
            (match, name)
            for match in _GROUPED.finditer(left)
            if (name := column_of_word(table, match[1]))
        ),
        None,
    )
    if grouped and not _is_sort_key(table, grouped[1], left):
        question.by = grouped[1]
        left = left[: grouped[0].start()] + " " + left[grouped[0].end() :]
    question.left = left
    _read_adjectives(question, left)
    question.columns = _columns_in(table, left)
    if not question.statistic:
        # In `lowest total bill` the word `total` belongs to a column.
        named = {own for name in question.columns for own in column_words(name)}
        of_column = [word for word in words_in(left) if meaning(word) in named & {*STATISTICS}]
        question.own -= {meaning(word) for word in of_column} if len(of_column) == 1 else set()
        question.statistic = next((name for name in STATISTICS if name in question.own), "")
    _read_flags(question)
    return question


def _read_flags(question: Question) -> None:
    """Take `which stations are windy` as a condition on the column of yes and no."""
    table = question.table
    for name in [name for name in table.columns if table.is_flag(name)]:
        if re.search(rf"\b(?:un|non-?|not |nicht ){re.escape(name)}\b", question.text, re.I):
            question.columns = [other for other in question.columns if other != name]
            question.filters.append(_Filter(name, "false", ("false", "0").__contains__))
    if not _WHICH.search(question.text) or question.statistic:
        return
    for name in [name for name in question.columns if table.is_flag(name)]:
        question.columns.remove(name)
        is_denied = re.search(r"\b(?:not|nicht|never|kein\w*)\b|n't", question.text, re.I)
        wanted = ("false", "0") if is_denied else ("true", "1")
        question.filters.append(_Filter(name, wanted[0], wanted.__contains__))


def _is_sort_key(table: Table, column: str, text: str) -> bool:
    """True if rows are ordered by a column (`top 3 by area`), not grouped by it."""
    if not table.is_numeric(column) or "year" in meanings(column):
        return False
    return bool(
        re.search(r"\b(?:top|sort\w*|order\w*|rank\w*|\w{3,}est|\w+ste[nr]?)\b", text, re.I)
    ) or (len({*table.cells(column)}) == len(table.rows))


def _read_named_cells(question: Question, text: str) -> str:
    """Find cells that the words name; return the text without them."""
    table, left = question.table, text
    column_words = {own for name in table.columns for own in meanings(name)}
    for name in table.columns:
        cells = dict.fromkeys(table.cells(name))
        if len(cells) > _MAX_CELLS and len(cells) > len(table.rows) / 2:
            cells = {cell: None for cell in cells if cell.lower() in text.lower()}
        known = [
            cell
            for cell in list(cells)[: _MAX_CELLS * 4]
            if cell
            and cell_number(cell) is None
            and not (is_grammar(cell) and not cell.isupper())
            and cell not in table.columns
            and not re.match(r"\d{4}-\d\d-\d\d", cell)
            and cell not in ("true", "false")
            and not ({meaning(cell.lower())} & column_words)
            and meaning(cell.lower()) not in STATISTICS
        ]
        hits = choices_in(left, known)
        if hits:
            question.named[name] = list(dict.fromkeys(hit[0] for hit in hits))
            for _, start, end in hits:
                left = left[:start] + " " * (end - start) + left[end:]
    return left


def _read_limits(question: Question, text: str) -> str:
    """Find comparisons with numbers and years; return the text without them."""
    table = question.table
    for match in _BETWEEN.finditer(text):
        low, high = number_of(match[1].rstrip(".,")), number_of(match[2].rstrip(".,"))
        column = _column_near(table, text, match.start())
        if column and low is not None and high is not None:
            question.filters.append(
                _Filter(column, f"from {match[1]} to {match[2]}", _within(low, high))
            )
            text = text[: match.start()] + " " * len(match[0]) + text[match.end() :]
    for match in _LIMIT.finditer(text):
        limit = number_of(match["number"].rstrip(".,"))
        if match["after"] or match["before"]:
            column = column_of_dimension(table, "year date")
        else:
            column = _column_near(table, text, match.start(), match[0])
        if column is None or limit is None:
            continue
        low, high = -math.inf, math.inf
        if match["more"] or match["above"] or match["after"]:
            low, limit_text = math.nextafter(limit, math.inf), f"above {figure_text(limit)}"
        elif match["fewer"] or match["below"] or match["before"]:
            high, limit_text = math.nextafter(limit, -math.inf), f"below {figure_text(limit)}"
        elif match["least"]:
            low, limit_text = limit, f"at least {figure_text(limit)}"
        else:
            high, limit_text = limit, f"at most {figure_text(limit)}"
        question.filters.append(_Filter(column, limit_text, _within(low, high)))
        text = text[: match.start()] + " " * len(match[0]) + text[match.end() :]
    for match in re.finditer(r"(?<![\w.-])\d+(?:\.\d+)?(?!\w)", text):
        column = _column_with(table, match[0], text, match.start())
        if column:
            question.filters.append(_Filter(column, match[0], _equal(match[0])))
            text = text[: match.start()] + " " * len(match[0]) + text[match.end() :]
    return text


def _within(low: float, high: float) -> Callable[[str], bool]:
    return lambda cell: (number := _number_or_year(cell)) is not None and low <= number <= high


def _number_or_year(cell: str) -> float | None:
    return cell_number(cell[:4] if re.match(r"\d{4}-\d\d", cell) else cell)


def _equal(number: str) -> Callable[[str], bool]:
    return lambda cell: cell.startswith(f"{number}-") or cell_number(cell) == float(number)


def _column_with(table: Table, number: str, text: str, start: int) -> str | None:
    """Return the column of a number: years and dates, or a column named just before it."""
    before = meanings(text[max(0, start - 25) : start])
    for name in table.columns:
        cells = table.cells(name)
        is_year = bool(re.fullmatch(r"(?:1[89]|20)\d\d", number))
        if not any(_equal(number)(cell) for cell in cells[:2000]):
            continue
        if (is_year and {"year", "date", "month"} & meanings(name)) or meanings(name) & before:
            return name
        if is_year and any(cell.startswith(f"{number}-") for cell in cells):
            return name
    return None


def _column_near(table: Table, text: str, start: int, phrase: str = "") -> str | None:
    """Return the numeric column that a comparison speaks of."""
    end = start + len(phrase)
    phrase_question = Question(table, phrase)
    _read_adjectives(phrase_question, phrase)
    of_adjective = column_of_dimension(table, phrase_question.dimension)
    close = (text[end : end + 25], text[max(0, start - 14) : start])
    for part in (*close, "" if of_adjective else text[:start], "" if of_adjective else text):
        numeric = [name for name in _columns_in(table, part) if table.is_numeric(name)]
        if numeric:
            return numeric[0] if part == close[0] else numeric[-1]
    return of_adjective or only_numeric(table)


def _read_adjectives(question: Question, text: str) -> None:
    """Read `heaviest`, `most expensive`, `am längsten`: a direction and a dimension."""
    has_most = re.search(r"\b(?:most|least|am|meist\w*|wenigst\w*|fewest)\b", text, re.I)
    for word in words_in(text):
        if (adjective := _adjective(word)) is None:
            continue
        direction, dimension = adjective
        question.dimension = question.dimension or dimension
        is_time = dimension.startswith("date") and not re.search(r"\d|\brows?\b", text)
        if (re.search(r"er\Z", word) or is_time) and _WHICH.search(question.text):
            question.direction = question.direction or direction
        if not question.direction and (_SUPERLATIVE.search(word) or has_most):
            question.direction = direction
    if re.search(r"\bleast\b|\bwenigsten\b", text, re.I):
        question.direction = -1
    if _BOTH_ENDS.search(text):
        question.statistic, question.direction = "range", 0
    elif SORTED.search(text):
        question.direction = 1 if re.search(r"\bdesc|\brank|\babsteigend", text, re.I) else -1


def _adjective(word: str) -> tuple[int, str] | None:
    """Return an adjective's direction and the dimension it speaks of; None for other words."""
    for roots, direction, dimension in _ADJECTIVES:
        if re.fullmatch(rf"(?:{roots}){_FORM}", word):
            return direction, dimension
    return None


def is_adjective(word: str) -> bool:
    """True for an adjective that speaks of a dimension, such as `heaviest`."""
    return _adjective(word) is not None


_WHICH = re.compile(r"\b(?:which|who|welche\w*|wer)\b(?!.*\b(?:than|als)\b)", re.I | re.S)


_BOTH_ENDS = re.compile(
    r"\b(?:high|larg|bigg|max|long|old|heav|höch|größ)\w*\s+(?:and|und)\s+(?:the |der |die |dem )?"
    r"(?:low|small|min|short|young|light|niedrig|klein)\w*",
    re.IGNORECASE,
)
SORTED = re.compile(r"\b(?:sort\w*|order(?:ed)? by|rank\w*|sortier\w*)\b", re.I)


def column_words(name: str) -> set[str]:
    """Return the meanings of a column's name, without units."""
    longer = [word for word in words_in(name) if len(word) > 2]
    return {meaning(word) for word in longer} or {meaning(word) for word in words_in(name)}


def column_of_word(table: Table, word: str) -> str | None:
    wanted = meaning(word.lower())
    endings = [name for name in table.columns if name.lower().endswith(word.lower())]
    if len(word) > 3 and endings:
        return endings[0]
    for name in table.columns:
        if name.lower() == word.lower() or meanings(word) & column_words(name):
            return name
    return next(
        (
            name
            for name in table.columns
            if any(is_misspelt(word.lower(), own) for own in words_in(name)) and not is_known(word)
        ),
        next((name for name in table.columns if wanted in meanings(name)), None),
    )


def _columns_in(table: Table, text: str) -> list[str]:
    """Return the columns that a text names, the best matches first."""
    exact = [name for name in table.columns if _is_written(name, text)]
    listed = {meaning(word) for word in words_in(text) if not is_grammar(word)}
    written = {word for name in table.columns for word in words_in(name)}
    typed = {meaning(word) for word in words_in(text) if word in written}
    left = {*listed, *meanings(text)} - {own for name in exact for own in column_words(name)}
    # `sum of tips` does not mean the column `total_bill`.
    left -= {*STATISTICS, "count"} - typed
    rest = [name for name in table.columns if name not in exact]
    chosen = list(exact)
    while rest:
        scores = {name: _matched(name, left) for name in rest}
        best = max(map(len, scores.values()))
        if not best:
            break
        # A name that only repeats words of a better match is not meant.
        ties = [name for name in rest if len(scores[name]) == best]
        full = [name for name in ties if len(column_words(name)) == best]
        ties = full or ties
        chosen += ties
        left -= {own for name in ties for own in scores[name]}
        rest = [name for name in rest if name not in ties]
    return chosen


def _is_written(name: str, text: str) -> bool:
    if len(name) <= 2:
        quoted = rf"[`'\"]{re.escape(name)}[`'\"]|\b(?:column|spalte|of|von)\s+{re.escape(name)}\b"
        return bool(re.search(quoted, text))
    return bool(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.I))


def _matched(name: str, own: set[str]) -> set[str]:
    own_words = column_words(name) if len(name) > 2 else set[str]()
    same = own_words & own
    if same:
        return same
    return {
        word
        for word in own
        if not is_known(word)
        and any(is_misspelt(word, stem) for stem in {*own_words, *words_in(name)})
    }


def column_of_dimension(table: Table, dimension: str) -> str | None:
    for wanted in dimension.split():
        for name in table.columns:
            if wanted in column_words(name) and table.is_ordered(name):
                return name
    for name in table.columns:
        # `start`, `founded`: a column of dates has another name.
        if "date" in dimension and not table.is_numeric(name) and table.is_ordered(name):
            return name
    return None


def only_numeric(table: Table) -> str | None:
    numeric = [name for name in table.columns if table.is_numeric(name)]
    plain = [n for n in numeric if "year" not in column_words(n) and not table.is_id(n)]
    return plain[0] if len(plain) == 1 else numeric[0] if len(numeric) == 1 else None


def figure_text(number: float) -> str:
    """Write a number with at most ten digits, with groups from 10,000 on: years stay."""
    if float(number).is_integer() and abs(number) < 1e15:
        return f"{int(number):,}" if abs(number) >= 10_000 else str(int(number))
    return f"{number:,.7g}"
