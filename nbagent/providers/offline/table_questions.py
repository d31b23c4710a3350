"""Answer simple questions about a table in the prompt: counts, means, largest rows, single cells.

`read_question` reads the words, `table_answer` computes. Only a table that is whole is computed.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from nbagent.providers.offline.prompt_values import choices_in, number_of
from nbagent.providers.offline.typed_prompt import Table, TypedPrompt
from nbagent.providers.offline.vocabulary import (
    corrected,
    is_grammar,
    is_misspelt,
    is_known,
    meaning,
    meanings,
    words_in,
)

_MAX_CELLS = 300
"""Most different cells of a column that are looked for in a prompt."""
_MAX_SHOWN = 10
_ADJECTIVES = (
    ("heav|schwer", 1, "mass"),
    ("light|leicht", -1, "mass"),
    ("old|ält|alt", 1, "age"),
    ("young|jüng|jung", -1, "age"),
    ("long|läng|lang", 1, "length duration"),
    ("short|kürz|kurz|kürze", -1, "length height duration"),
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
    ("most|meist|maximum|max|maximal|top|greatest", 1, ""),
    ("fewest|fewer|least|wenigst|wenig|minimum|min|minimal|lowest", -1, ""),
)
"""Stems of adjectives, the direction, and meanings of columns that they speak of."""
_FORM = r"(?:i?er|i?est|e?r|e?re[nrsm]?|e?ste?[nrsm]?|e[nrsm]?|y)?"
_SUPERLATIVE = re.compile(r"(?:st|ste[nrsm]?|most|least|best|worst|max\w*|min\w*|top)\Z")
_STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "sum": math.fsum,
    "std": lambda numbers: statistics.stdev(numbers) if len(numbers) > 1 else math.nan,
    "range": lambda numbers: max(numbers) - min(numbers),
    "maximum": max,
    "minimum": min,
}
_SAID = {
    "std": "standard deviation",
    "maximum": "largest value",
    "minimum": "smallest value",
}
_GROUPED = re.compile(
    r"\b(?:per|by|for each|for every|of each|in each|each|every|grouped by|across|je|pro|für jede[nsr]?"
    r"|jede[rsn]?|nach)\s+(?:of the |the |einzelne[nr]? )?([^\W\d]\w*)",
    re.IGNORECASE,
)
_MORE = (
    r"(?:more|greater|larger|bigger|higher|heavier|older|longer|taller|warmer|mehr|größer|höher|"
    r"schwerer|älter|länger|wärmer|teurer|expensive)(?:\s\w+){0,2}? (?:than|als)|above|over|exceed\w*"
    r"|über|oberhalb von"
)
_FEWER = (
    r"(?:less|fewer|smaller|lower|lighter|younger|shorter|colder|cheaper|weniger|kleiner|niedriger"
    r"|leichter|jünger|kürzer|kälter|billiger)(?:\s\w+){0,2}? (?:than|als)|below|under|unter"
)
_LIMIT = re.compile(
    rf"(?:\b(?P<more>{_MORE})|\b(?P<fewer>{_FEWER})|(?P<least>>=|≥|\bat least|\bmindestens)"
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
            if all(one.holds(row[places[one.column]]) for one in self.filters)
            and all(row[places[name]] in cells for name, cells in self.named.items())
        ]

    def where(self, *, without: str = "") -> str:
        """Say the conditions; empty without any."""
        texts = [
            f"`{name}` is {' or '.join(cells)}"
            for name, cells in self.named.items()
            if name != without
        ]
        texts += [f"`{one.column}` is {one.text}" for one in self.filters]
        return f" where {' and '.join(texts)}" if texts else ""


_CANNOT = re.compile(
    r"\b(?:plot|draw|chart|graph|visuali[sz]e|zeichne|why|warum|correlat\w*|korrelation|regress\w*"
    r"|predict\w*|cluster\w*|translate|übersetze|explain|erkläre|write (?:a|the|some)|code)\b",
    re.IGNORECASE,
)
"""Words for things that no rule can do."""


def table_answer(prompt: TypedPrompt, earlier: Sequence[TypedPrompt] = ()) -> str:
    """Answer a question about the tables of a prompt, or of earlier ones; empty if it cannot.

    Args:
        prompt: the prompt.
        earlier: prompts before it. A short question (`And the maximum?`) continues the last one.
    """
    tables = prompt.tables or next((one.tables for one in reversed(earlier) if one.tables), [])
    if not tables or _CANNOT.search(prompt.question):
        return ""
    if not prompt.question.strip(" \n.:?"):
        return _summary(tables[0])
    questions = [read_question(prompt.question, table) for table in tables]
    question = max(questions, key=lambda one: one.strength)
    if not prompt.tables:
        start = max(i for i, one in enumerate(earlier) if one.tables)
        last = read_question(earlier[start].question, question.table)
        for one in earlier[start + 1 :]:
            following = read_question(one.question, question.table)
            _continue_question(following, last)
            last = following
        _continue_question(question, last)
    return _answer(question)


def table_help(tables: Sequence[Table]) -> str:
    """Say what a table in the prompt is, and which questions the rules know."""
    table = max(tables, key=lambda one: len(one.rows))
    columns = ", ".join(f"`{name}`" for name in table.columns[:12]) or "none"
    numeric = [name for name in table.columns if is_numeric(table, name)]
    example = f"the mean of {numeric[0]}" if numeric else "how many rows"
    return (
        f"The prompt has a table of {_count(table.n_rows, 'row')} with the columns {columns}, but I"
        " could not read a question about it from your words. I can count rows, compute a mean,"
        " sum, median, minimum or maximum of a column, also for rows with a value or by group, and"
        f" look up a cell. Ask for example: {example}."
    )


def is_numeric(table: Table, column: str) -> bool:
    """True if all filled cells of a column are numbers."""
    filled = [cell for cell in table.cells(column) if cell]
    return bool(filled) and all(_float(cell) is not None for cell in filled)


def _float(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


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
            if (name := _column_of_word(table, match[1]))
        ),
        None,
    )
    if grouped and not _is_sort_key(table, grouped[1], left):
        question.by = grouped[1]
        left = left[: grouped[0].start()] + " " + left[grouped[0].end() :]
    _read_adjectives(question, left)
    question.columns = _columns_in(table, left)
    question.statistic = next((name for name in _STATISTICS if name in question.own), "")
    return question


def _is_sort_key(table: Table, column: str, text: str) -> bool:
    """True if rows are ordered by a column (`top 3 by area`), not grouped by it."""
    if not is_numeric(table, column) or "year" in meanings(column):
        return False
    return bool(
        re.search(r"\b(?:top|sort\w*|order\w*|rank\w*|\w{3,}est|\w+ste[nr]?)\b", text, re.I)
    ) or (len({*table.cells(column)}) > len(table.rows) / 2)


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
            and _float(cell) is None
            and not is_grammar(cell)
            and cell not in table.columns
            and not re.match(r"\d{4}-\d\d-\d\d", cell)
            and cell not in ("true", "false")
            and not ({meaning(cell.lower())} & column_words)
            and meaning(cell.lower()) not in _STATISTICS
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
        column = _column_near(table, text, match.start(), match[0])
        if column is None or limit is None:
            continue
        low, high = -math.inf, math.inf
        if match["more"] or match["above"]:
            low, said = math.nextafter(limit, math.inf), f"above {_number(limit)}"
        elif match["fewer"] or match["below"]:
            high, said = math.nextafter(limit, -math.inf), f"below {_number(limit)}"
        elif match["least"]:
            low, said = limit, f"at least {_number(limit)}"
        else:
            high, said = limit, f"at most {_number(limit)}"
        question.filters.append(_Filter(column, said, _within(low, high)))
        text = text[: match.start()] + " " * len(match[0]) + text[match.end() :]
    for match in re.finditer(r"(?<![\w.-])\d+(?:\.\d+)?(?!\w)", text):
        column = _column_with(table, match[0], text, match.start())
        if column:
            question.filters.append(_Filter(column, match[0], _equal(match[0])))
            text = text[: match.start()] + " " * len(match[0]) + text[match.end() :]
    return text


def _within(low: float, high: float) -> Callable[[str], bool]:
    return lambda cell: (number := _float(cell)) is not None and low <= number <= high


def _equal(number: str) -> Callable[[str], bool]:
    return lambda cell: cell.startswith(f"{number}-") or _float(cell) == float(number)


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
    for part in (text[end : end + 25], f"{text[:start]} {phrase}", text):
        numeric = [name for name in _columns_in(table, part) if is_numeric(table, name)]
        if numeric:
            return numeric[0] if part == text[end : end + 25] else numeric[-1]
    asked = Question(table, phrase)
    _read_adjectives(asked, phrase)
    return _column_of_dimension(table, asked.dimension) or _only_numeric(table)


def _read_adjectives(question: Question, text: str) -> None:
    """Read `heaviest`, `most expensive`, `am längsten`: a direction and a dimension."""
    has_most = re.search(r"\b(?:most|least|am|meist\w*|wenigst\w*|fewest)\b", text, re.I)
    for word in words_in(text):
        for roots, direction, dimension in _ADJECTIVES:
            if not re.fullmatch(rf"(?:{roots}){_FORM}", word):
                continue
            question.dimension = question.dimension or dimension
            if re.search(r"er\Z", word) and _WHICH.search(question.text):
                question.direction = question.direction or direction
            if not question.direction and (_SUPERLATIVE.search(word) or has_most):
                question.direction = direction
            break
    if re.search(r"\bleast\b|\bwenigsten\b", text, re.I):
        question.direction = -1


_WHICH = re.compile(r"\b(?:which|who|welche\w*|wer)\b(?!.*\b(?:than|als)\b)", re.I | re.S)


def _column_words(name: str) -> set[str]:
    """Return the meanings of a column's name, without units."""
    longer = [word for word in words_in(name) if len(word) > 2]
    return {meaning(word) for word in longer} or {meaning(word) for word in words_in(name)}


def _column_of_word(table: Table, word: str) -> str | None:
    wanted = meaning(word.lower())
    for name in table.columns:
        if name.lower() == word.lower() or meanings(word) & _column_words(name):
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
    listed = {
        meaning(part): word for word in words_in(text) if not is_grammar(word) for part in (word,)
    }
    left = {*listed, *meanings(text)} - {own for name in exact for own in _column_words(name)}
    rest = [name for name in table.columns if name not in exact]
    chosen = list(exact)
    while rest:
        scores = {name: _matched(name, left) for name in rest}
        best = max(map(len, scores.values()))
        if not best:
            break
        # A name that only repeats words of a better match is not meant.
        ties = [name for name in rest if len(scores[name]) == best]
        full = [name for name in ties if len(_column_words(name)) == best]
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
    words = _column_words(name) if len(name) > 2 else set[str]()
    same = words & own
    if same:
        return same
    return {
        word
        for word in own
        if not is_known(word) and any(is_misspelt(word, stem) for stem in {*words, *words_in(name)})
    }


def _column_of_dimension(table: Table, dimension: str) -> str | None:
    for wanted in dimension.split():
        for name in table.columns:
            if wanted in _column_words(name) and _is_ordered(table, name):
                return name
    return None


def _only_numeric(table: Table) -> str | None:
    numeric = [name for name in table.columns if is_numeric(table, name)]
    plain = [name for name in numeric if not {"year", "index", "id"} & _column_words(name)]
    return plain[0] if len(plain) == 1 else numeric[0] if len(numeric) == 1 else None


def _is_ordered(table: Table, name: str) -> bool:
    filled = [cell for cell in table.cells(name) if cell]
    return is_numeric(table, name) or bool(filled and re.match(r"\d{4}-\d\d", filled[0]))


def _continue_question(question: Question, last: Question) -> None:
    """Fill what a short question leaves open from the question before."""
    if re.search(r"\b(?:its|their|his|her|it|that|there|dort|dessen|deren)\b", question.text, re.I):
        last = _about_largest(last) if not question.direction else last
    question.named = {**last.named, **question.named}
    question.filters = question.filters or last.filters
    question.by = question.by or last.by
    is_new = question.statistic or question.direction or _is_counting(question.text)
    if not is_new:
        question.statistic, question.direction = last.statistic, last.direction
        question.own |= last.own & {"share", "percent", "difference"}
        question.text = f"{question.text} {last.text}"
    if not _is_counting(question.text) or not is_new:
        question.columns = question.columns or last.columns
        question.dimension = question.dimension or last.dimension


def _about_largest(question: Question) -> Question:
    """Return a question about the row that was the answer to a question for the largest."""
    largest = _ordered_rows(question) if question.direction else None
    label = _label_column(question, largest[0]) if largest else None
    if largest is None or label is None:
        return question
    name = largest[1][0][question.table.columns.index(label)]
    return replace(question, named={label: [name]}, direction=0, dimension="", columns=[], text="")


# Answers


def _answer(question: Question) -> str:
    about_table = _structure_answer(question)
    if about_table:
        return about_table
    table = question.table
    is_general = _is_counting(question.text) or question.own & {"describe", "missing"}
    if not (question.strength or question.statistic or question.direction or is_general):
        return "" if not _SUMMARY.search(question.text) else _summary_answer(question)
    if not table.is_whole:
        column = next(iter(question.columns), next(iter(table.columns), "column"))
        return (
            f"Only {len(table.rows):,} of the table's {table.n_rows:,} rows are in the prompt, so I"
            " cannot compute an answer from it. Put the figure itself into the prompt, such as"
            f" {{{{ df[{column!r}].mean() }}}}, put in a smaller table, or name a tool."
        )
    for answer in (
        _summary_answer,
        _missing_answer,
        _share_answer,
        _grouped_answer,
        _distinct_answer,
        _count_answer,
        _largest_answer,
        _statistic_answer,
        _cell_answer,
        _rows_answer,
        _column_answer,
    ):
        if text := answer(question):
            return text
    return ""


def _is_counting(text: str) -> bool:
    return bool(
        re.search(r"\bhow many\b|\bnumber of\b|\bcount\b|\bwie ?viele?\b|\banzahl\b", text, re.I)
    )


def _structure_answer(question: Question) -> str:
    """Answer about rows and columns of the table as a whole; it may be cut."""
    table, text = question.table, question.text
    names = ", ".join(f"`{name}`" for name in table.columns)
    if re.search(r"\b(?:columns?|fields|variables|spalten?|merkmale)\b", text, re.I) and not (
        question.columns or question.statistic or question.direction or question.named
    ):
        return f"The table has {_count(len(table.columns), 'column')}: {names}."
    plain = not (question.filters or question.named or question.by)
    if plain and re.search(r"\b(?:rows|records|entries|lines|zeilen|shape|einträge)\b", text, re.I):
        if not question.statistic and not question.direction and not question.columns:
            n_columns = _count(len(table.columns), "column")
            return f"The table has **{table.n_rows:,}** rows and {n_columns}."
    return ""


def _summary_answer(question: Question) -> str:
    """Describe the table: every column with its range or its most frequent cells."""
    if not _SUMMARY.search(question.text) or question.columns or question.named:
        return ""
    return "" if question.statistic or question.direction else _summary(question.table)


_SUMMARY = re.compile(
    r"\b(?:describe|summar\w+|overview|beschreib\w*|zusammenfass\w*|fass\w* .*zusammen|überblick"
    r"|what(?:'s| is| do you see| can you see) in|was ist in|about this|tell me about|look at)\b",
    re.IGNORECASE | re.DOTALL,
)


def _summary(table: Table) -> str:
    lines = [
        f"The table has {_count(table.n_rows, 'row')} and {_count(len(table.columns), 'column')}:"
    ]
    for name in table.columns[:20]:
        lines.append(f"- `{name}`: {_column_facts(table, name)}")
    return "\n".join([lines[0], "", *lines[1:]])


def _column_facts(table: Table, name: str) -> str:
    filled = [cell for cell in table.cells(name) if cell]
    empty = len(table.rows) - len(filled)
    tail = f"; {empty:,} empty" if empty else ""
    if numbers := _numbers(filled) if is_numeric(table, name) else []:
        mean = _number(statistics.fmean(numbers))
        return f"{_number(min(numbers))} to {_number(max(numbers))}, mean {mean}{tail}"
    cells = _by_frequency(filled)
    if not cells:
        return f"no values{tail}"
    shown = ", ".join(f"{cell} ({n:,})" for cell, n in cells[:5])
    return f"{_count(len(cells), 'different value')}: {shown}{'…' * (len(cells) > 5)}{tail}"


def _missing_answer(question: Question) -> str:
    if "missing" not in question.own:
        return ""
    table = question.table
    names = question.columns or table.columns
    empty = {name: table.cells(name).count("") for name in names}
    shown = ", ".join(f"`{name}` {n:,}" for name, n in empty.items() if n) or "none"
    return f"Empty cells: **{sum(empty.values()):,}** ({shown})."


def _share_answer(question: Question) -> str:
    asks = question.own & {"share", "percent"}
    if not asks or not (question.named or question.filters) or not question.table.rows:
        return ""
    part, whole = len(question.rows), len(question.table.rows)
    return f"**{part / whole:.1%}** of the rows ({part:,} of {whole:,}){question.where()}."


def _grouped_answer(question: Question) -> str:
    """Compute the statistic for each group, or for each cell that the words name."""
    table = question.table
    by = question.by or next((n for n, cells in question.named.items() if len(cells) > 1), "")
    which = _asked_label(question)
    if not by and which and question.direction and _is_over_groups(question, which):
        by = which
    if not by:
        return ""
    targets = [name for name in _targets(question) if name != by]
    if not question.columns and not question.dimension and not question.statistic:
        targets = targets if len({*table.cells(by)}) == len(table.rows) else []
    elif (
        by in question.columns
        and len(question.columns) == 1
        and not (question.statistic or question.dimension)
    ):
        targets = targets if len({*table.cells(by)}) == len(table.rows) else []
    position = table.columns.index(by)
    groups: dict[str, list[list[str]]] = {cell: [] for cell in question.named.get(by, [])}
    for row in question.rows:
        groups.setdefault(row[position], []).append(row)
    groups.pop("", None)
    if not targets or (_is_counting(question.text) and not question.columns):
        figures: dict[str, float] = {cell: len(rows) for cell, rows in groups.items()}
        said = "number of rows"
    else:
        target = targets[0]
        statistic = question.statistic or (
            "maximum" if question.direction and question.by else "mean"
        )
        place = table.columns.index(target)
        figures = {}
        for cell, rows in groups.items():
            if numbers := _numbers(row[place] for row in rows):
                figures[cell] = _STATISTICS[statistic](numbers)
        is_single = all(len(rows) <= 1 for rows in groups.values())
        said = f"`{target}`" if is_single else f"{_SAID.get(statistic, statistic)} of `{target}`"
    if not figures:
        return ""
    return _figures_text(question, by, said, figures)


def _is_over_groups(question: Question, label: str) -> bool:
    """True if `which product has the most sales` speaks of all rows of a product."""
    table = question.table
    if len({*table.cells(label)}) == len(table.rows):
        return False
    if question.statistic in ("mean", "sum", "median"):
        return True
    targets = _targets(question) if question.columns or question.dimension else []
    if any(_ADDED & _column_words(name) for name in targets):
        question.statistic = "sum"
        return True
    return not question.dimension and not [n for n in question.columns if is_numeric(table, n)]


_ADDED = {"revenue", "profit", "quantity", "unit", "amount", "goal", "order", "visit"}
"""Meanings of columns whose values are added up."""


def _figures_text(question: Question, by: str, said: str, figures: dict[str, float]) -> str:
    ordered = sorted(figures.items(), key=lambda pair: -pair[1])
    sentences: list[str] = []
    named = question.named.get(by, [])
    compares = len(named) > 1 and re.search(
        r"\b(?:\w+er|more|less|mehr|compare|vergleich\w*|difference|differenz|unterschied|versus|vs"
        r"|which|welche\w*)\b",
        question.text,
        re.I,
    )
    if len(ordered) > 1 and (question.direction or compares):
        (first, high), (second, low) = ordered[0], ordered[-1]
        best = first if question.direction >= 0 else second
        value = high if question.direction >= 0 else low
        word = "largest" if question.direction >= 0 else "smallest"
        sentences.append(f"**{best}** has the {word} {said}: **{_number(value)}**.")
        if compares and len(ordered) == 2:
            sentences.append(f"The difference is **{_number(high - low)}**.")
    where = question.where(without=by)
    shown = ordered if question.direction >= 0 else ordered[::-1]
    rows = [f"| {cell} | {_number(value)} |" for cell, value in shown[: 2 * _MAX_SHOWN]]
    more = f"\n… and {len(ordered) - len(rows):,} more" if len(ordered) > len(rows) else ""
    head = f"{said[0].upper() if said[0] != '`' else said[0]}{said[1:]} by `{by}`{where}:"
    table = "\n".join([f"| {by} | {said.replace('`', '')} |", "| --- | --- |", *rows])
    if "sum" in question.own and named:
        sentences.append(f"Together: **{_number(math.fsum(figures.values()))}**.")
    return "\n\n".join([*sentences, head, table + more])


def _asked_label(question: Question) -> str:
    """Return the column asked for: `which city`, `what species`, `welche Stadt`, `who`."""
    match = re.search(
        r"\b(?:which|what|welche[rsnm]?|name of the)\s+(?:is the |are the |\d+ |sind die |ist die |ist"
        r" der )?([^\W\d]\w*)",
        question.text,
        re.I,
    )
    name = _column_of_word(question.table, match[1]) if match and not is_grammar(match[1]) else None
    return name if name and not is_numeric(question.table, name) else ""


def _targets(question: Question) -> list[str]:
    """Return the numeric columns that are meant."""
    table = question.table
    numeric = [name for name in question.columns if is_numeric(table, name)]
    if numeric:
        return numeric
    usual = _column_of_dimension(table, question.dimension) or _only_numeric(table)
    return [usual] if usual else []


def _distinct_answer(question: Question) -> str:
    """List or count the different cells of a column of texts."""
    table = question.table
    texts = [name for name in question.columns if not is_numeric(table, name)]
    asks_list = re.search(
        r"\b(?:list|unique|distinct|different|which|what|welche\w*|verschieden\w*|unterschiedlich\w*"
        r"|all|names? of|common|frequent|häufig\w*)\b",
        question.text,
        re.I,
    )
    counts = _is_counting(question.text)
    texts = [name for name in texts if not _is_flag(table, name)]
    if not texts or question.statistic or (not asks_list and not counts):
        return ""
    numeric = [name for name in question.columns if is_numeric(table, name)]
    common = re.search(r"\b(?:common|frequent|often|häufig\w*|occurs?)\b", question.text, re.I)
    if (question.direction and not common) or numeric or question.dimension:
        return ""
    name = texts[0]
    if question.named and name in question.named:
        return ""
    position = table.columns.index(name)
    cells = _by_frequency(row[position] for row in question.rows if row[position])
    if common and cells:
        cell, n = cells[-1] if question.direction < 0 else cells[0]
        return f"**{cell}** ({n:,} of {_count(len(question.rows), 'row')})."
    shown = ", ".join(cell for cell, _ in cells[: 2 * _MAX_SHOWN])
    more = ", …" if len(cells) > 2 * _MAX_SHOWN else ""
    head = f"`{name}` has **{len(cells):,}** different values{question.where()}"
    return f"{head}: {shown}{more}." if cells else f"{head}."


def _count_answer(question: Question) -> str:
    """Count rows, unless the words ask for a number that is in the table (`how many people`)."""
    if not _is_counting(question.text) or question.statistic:
        return ""
    table = question.table
    rows = question.rows
    if flag := next((name for name in question.columns if _is_flag(table, name)), ""):
        negated = re.search(r"\b(?:not|n't|nicht|without|never)\b|n't", question.text, re.I)
        wanted = ("false", "0") if negated else ("true", "1")
        position = table.columns.index(flag)
        n = sum(row[position] in wanted for row in rows)
        return f"**{n:,}** of {_count(len(rows), 'row')}{question.where()} have `{flag}` = {wanted[0]}."
    if any(is_numeric(table, name) for name in question.columns) and not question.filters:
        return ""
    if not question.where():
        return f"The table has **{_count(len(rows), 'row')}**."
    return f"**{len(rows):,}** of {_count(len(table.rows), 'row')}{question.where()}."


def _is_flag(table: Table, name: str) -> bool:
    cells = {*table.cells(name)}
    return cells <= {"true", "false", "0", "1", ""} and bool(cells - {""})


def _largest_answer(question: Question) -> str:
    """Name the rows with the largest or smallest value of a column."""
    largest = _ordered_rows(question) if question.direction else None
    if largest is None:
        return ""
    (target, ordered), table = largest, question.table
    place, where = table.columns.index(target), question.where()
    word = "largest" if question.direction > 0 else "smallest"
    best, label = _cell(ordered[0][place]), _label_column(question, target)
    asks_value = question.statistic in ("maximum", "minimum") and not re.search(
        r"\b(?:which|who|welche\w*|wer|row)\b", question.text, re.I
    )
    if asks_value or len(table.columns) == 1:
        return f"The {word} `{target}`{where} is **{best}**."
    if (wanted := _number_of_rows(question.text)) > 1:
        shown = _rows_text(table, ordered[:wanted])
        return f"The rows with the {word} `{target}`{where}:\n\n{shown}"
    ties = [row for row in ordered if row[place] == ordered[0][place]]
    if label is None:
        return f"The {word} `{target}`{where} is **{best}**:\n\n{_rows_text(table, ties[:3])}"
    names = list(dict.fromkeys(row[table.columns.index(label)] for row in ties))
    also = f" (and {len(names) - 3} more)" if len(names) > 3 else ""
    verb = "has" if len(names) == 1 else "have"
    return f"**{', '.join(names[:3])}**{also} {verb} the {word} `{target}`{where}: **{best}**."


def _ordered_rows(question: Question) -> tuple[str, list[list[str]]] | None:
    """Return the column that is meant and the rows ordered by it; None without one."""
    table = question.table
    named = [name for name in question.columns if _is_ordered(table, name)]
    usual = _column_of_dimension(table, question.dimension)
    direction = question.direction
    if question.dimension == "age" and not usual:
        # The oldest building has the smallest year.
        usual = _column_of_dimension(table, "year date")
        years = named[:1] or [usual or ""]
        direction = -direction if {"year", "date"} & meanings(years[0]) else direction
    target = next(iter(named), usual or _only_numeric(table))
    if target is None:
        return None
    question.direction = direction
    place = table.columns.index(target)
    filled = [row for row in question.rows if row[place]]
    filled.sort(key=lambda row: _order_key(row[place]), reverse=direction > 0)
    return (target, filled) if filled else None


def _number_of_rows(text: str) -> int:
    """Return how many rows are asked for: `top 3`, `the five largest`."""
    match = re.search(
        r"\b(?:top|first|the|die|erste\w*|list|show)?\s*(\d{1,3}|two|three|four|five|ten|zwei|drei|vier|fünf"
        r"|zehn)\b",
        text,
        re.IGNORECASE,
    )
    if match is None:
        return 1
    return int(match[1]) if match[1].isdigit() else _NUMBERS[match[1].lower()]


_NUMBERS = {
    **{"two": 2, "three": 3, "four": 4, "five": 5, "ten": 10},
    **{"zwei": 2, "drei": 3, "vier": 4, "fünf": 5, "zehn": 10},
}


def _order_key(cell: str) -> tuple[float, str]:
    number = _float(cell)
    return (number, "") if number is not None else (0.0, cell)


def _label_column(question: Question, target: str) -> str | None:
    table = question.table
    if label := _asked_label(question):
        return label
    texts = [n for n in table.columns if n != target and not _is_ordered(table, n)]
    names = [name for name in texts if {"name", "title"} & meanings(name)]
    return next(iter([*names, *texts]), None)


def _statistic_answer(question: Question) -> str:
    """Compute a statistic of the columns."""
    if not question.statistic:
        return ""
    if text := _described_answer(question):
        return text
    table, sentences = question.table, list[str]()
    for target in _targets(question)[:4]:
        place = table.columns.index(target)
        numbers = _numbers(row[place] for row in question.rows)
        if not numbers:
            sentences.append(f"No row{question.where()} has a number in `{target}`.")
            continue
        said = _SAID.get(question.statistic, question.statistic)
        value = _number(_STATISTICS[question.statistic](numbers))
        empty = len(question.rows) - len(numbers)
        left_out = f", {empty:,} empty left out" if empty else ""
        sentences.append(
            f"The {said} of `{target}`{question.where()} is **{value}**"
            f" ({_count(len(numbers), 'row')}{left_out})."
        )
    if not sentences and question.columns:
        sentences.append(f"`{question.columns[0]}` has no numbers to compute with.")
    return "\n\n".join(sentences)


def _described_answer(question: Question) -> str:
    """Look up a statistic in the table of `df.describe()`."""
    table = question.table
    if not table.columns or not {"mean", "count", "std"} <= {*table.cells(table.columns[0])}:
        return ""
    names = {"mean": "mean", "median": "50%", "std": "std", "maximum": "max", "minimum": "min"}
    row = next((r for r in table.rows if r[0] == names.get(question.statistic)), None)
    columns = [name for name in question.columns if name != table.columns[0]] or table.columns[1:]
    if row is None:
        return ""
    shown = [f"`{name}` **{_cell(row[table.columns.index(name)])}**" for name in columns[:8]]
    return f"The {_SAID.get(question.statistic, question.statistic)}: {', '.join(shown)}."


def _cell_answer(question: Question) -> str:
    """Look up the cells of a column in the rows that the words name."""
    table = question.table
    columns = [name for name in question.columns if name not in question.named]
    if not columns and question.dimension:
        columns = [name for name in [_column_of_dimension(table, question.dimension)] if name]
    if not columns or not (question.named or question.filters):
        return ""
    rows = question.rows
    if not rows:
        return f"No row{question.where()}."
    if len(rows) == 1:
        shown = [f"`{n}` is **{_cell(rows[0][table.columns.index(n)])}**" for n in columns[:4]]
        return f"{', '.join(shown)}{question.where()}."
    target = columns[0]
    place = table.columns.index(target)
    if is_numeric(table, target):
        numbers = _numbers(row[place] for row in rows)
        total = f", sum **{_number(math.fsum(numbers))}**" if _ADDED & _column_words(target) else ""
        return (
            (
                f"`{target}`{question.where()}: {_number(min(numbers))} to {_number(max(numbers))}, mean"
                f" **{_number(statistics.fmean(numbers))}**{total} ({_count(len(numbers), 'row')})."
            )
            if numbers
            else f"No row{question.where()} has a number in `{target}`."
        )
    cells = _by_frequency(row[place] for row in rows if row[place])
    shown_cells = ", ".join(f"{cell} ({n:,})" if n > 1 else cell for cell, n in cells[:_MAX_SHOWN])
    return f"`{target}`{question.where()}: {shown_cells}."


def _rows_answer(question: Question) -> str:
    """Show the rows that the words name."""
    if not (question.named or question.filters):
        return ""
    rows = question.rows
    more = f"\n… and {len(rows) - _MAX_SHOWN:,} more" if len(rows) > _MAX_SHOWN else ""
    head = f"**{len(rows):,}** of {_count(len(question.table.rows), 'row')}{question.where()}"
    return (
        f"{head}:\n\n{_rows_text(question.table, rows[:_MAX_SHOWN])}{more}" if rows else f"{head}."
    )


def _column_answer(question: Question) -> str:
    """Describe columns that the words only name."""
    lines = [f"- `{name}`: {_column_facts(question.table, name)}" for name in question.columns[:6]]
    return "\n".join(lines)


def _rows_text(table: Table, rows: Sequence[Sequence[str]]) -> str:
    heads = table.columns[:8]
    lines = [heads, ["---"] * len(heads), *(list(row)[:8] for row in rows)]
    return "\n".join(
        f"| {' | '.join(c.replace('|', chr(92) + '|') for c in line)} |" for line in lines
    )


def _numbers(cells: Iterable[str]) -> list[float]:
    return [number for cell in cells if (number := _float(cell)) is not None]


def _by_frequency(cells: Iterable[str]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for cell in cells:
        counts[cell] = counts.get(cell, 0) + 1
    return sorted(counts.items(), key=lambda pair: -pair[1])


def _cell(cell: str) -> str:
    number = _float(cell)
    return cell if number is None else _number(number)


def _number(number: float) -> str:
    """Write a number with at most ten digits, with groups from 10,000 on: years stay."""
    if float(number).is_integer() and abs(number) < 1e15:
        return f"{int(number):,}" if abs(number) >= 10_000 else str(int(number))
    return f"{number:,.7g}"


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
