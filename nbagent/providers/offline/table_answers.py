"""Answer simple questions about a table in the prompt: counts, means, largest rows, single cells.

`table_questions` reads the words. Only a table that is whole is computed.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product

from nbagent.providers.offline.table_questions import (
    SORTED,
    Question,
    column_of_dimension,
    column_of_word,
    column_words,
    figure_text,
    only_numeric,
    read_question,
)
from nbagent.providers.offline.typed_prompt import Table, TypedPrompt, cell_number
from nbagent.providers.offline.understanding import CANNOT, left_over, not_understood
from nbagent.providers.offline.vocabulary import is_grammar, meanings

_MAX_SHOWN = 10
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
    with_table = [typed.tables for typed in (*earlier, prompt) if typed.tables]
    tables = with_table[-1] if with_table else list[Table]()
    if not tables or _CANNOT.search(prompt.question):
        return ""
    if not prompt.question.strip(" \n.:?"):
        return _summary(tables[0])
    questions = [read_question(prompt.question, table) for table in tables]
    question = max(questions, key=lambda typed: typed.strength)
    if unknown := left_over(question):
        return not_understood(unknown, question)
    if len(questions) > 1:
        return f"{CANNOT}: the prompt has several tables; put in the one that is meant."
    if not prompt.tables:
        counts = _is_counting(question.text)
        if not (question.strength or question.statistic or question.direction or counts):
            return ""
        start = max(i for i, typed in enumerate(earlier) if typed.tables)
        last = read_question(earlier[start].question, question.table)
        for typed in earlier[start + 1 :]:
            following = read_question(typed.question, question.table)
            _continue_question(following, last)
            last = following
        _continue_question(question, last)
    return _answer(question)


def table_help(tables: Sequence[Table]) -> str:
    """Say what a table in the prompt is, and which questions the rules know."""
    table = max(tables, key=lambda typed: len(typed.rows))
    columns = ", ".join(f"`{name}`" for name in table.columns[:12]) or "none"
    numeric = [name for name in table.columns if table.is_numeric(name)]
    example = f"the mean of {numeric[0]}" if numeric else "how many rows"
    return (
        f"The prompt has a table of {_count(table.n_rows, 'row')} with the columns {columns}, but I"
        " could not read a question about it from your words. I can count rows, compute a mean,"
        " sum, median, minimum or maximum of a column, also for rows with a value or by group, and"
        f" look up a cell. Ask for example: {example}."
    )


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


def _answer(question: Question) -> str:
    about_table = _structure_answer(question)
    if about_table:
        return about_table
    table = question.table
    is_general = _is_counting(question.text) or question.own & {"describe", "missing"}
    is_general = is_general or re.search(r"\b(?:first|last|head|tail)\b", question.text, re.I)
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
        _head_answer,
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
    if re.search(r"\brows\b.*\bcolumns\b|\bcolumns\b.*\brows\b", text, re.I):
        return (
            f"The table has **{table.n_rows:,}** rows and {_count(len(table.columns), 'column')}."
        )
    if re.search(r"\b(?:columns?|fields|variables|spalten?|merkmale)\b", text, re.I) and not (
        "missing" in question.own
        or question.columns
        or question.statistic
        or question.direction
        or question.named
    ):
        return f"The table has {_count(len(table.columns), 'column')}: {names}."
    is_plain = not (question.strength or question.statistic or question.direction)
    is_plain = is_plain and not re.search(r"\b(?:first|head|last|tail|erste|letzte)", text, re.I)
    if is_plain and re.search(
        r"\b(?:rows|records|entries|lines|zeilen|shape|einträge|size|how (?:big|large)|wie groß)\b",
        text,
        re.I,
    ):
        n_columns = _count(len(table.columns), "column")
        return f"The table has **{table.n_rows:,}** rows and {n_columns}."
    return ""


def _head_answer(question: Question) -> str:
    """Show the first or the last rows."""
    match = re.search(
        r"\b(first|head|last|tail|erste\w*|letzte\w*)\b\s*(\d{0,3})\s*(?:rows?|lines|entries|zeilen?)?",
        question.text,
        re.IGNORECASE,
    )
    if not match or question.strength or not re.search(r"row|line|head|tail|zeile", question.text):
        return ""
    n_rows = int(match[2] or 5)
    is_last = match[1].lower().startswith(("la", "ta", "le"))
    rows = question.table.rows[-n_rows:] if is_last else question.table.rows[:n_rows]
    return f"The {'last' if is_last else 'first'} rows:\n\n{_rows_text(question.table, rows)}"


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
    if numbers := _numbers(filled) if table.is_numeric(name) else []:
        mean = figure_text(statistics.fmean(numbers))
        return f"{figure_text(min(numbers))} to {figure_text(max(numbers))}, mean {mean}{tail}"
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
    """Compute the share of rows with a condition, or of rows whose flag is set."""
    table, rows = question.table, question.rows
    flag = next((name for name in question.columns if table.is_flag(name)), "")
    if question.own & {"share", "percent", "rate"} and flag and rows:
        index = table.columns.index(flag)
        part = sum(row[index] in ("true", "1") for row in rows)
        of_rows = f"{_count(len(rows), 'row')}{question.where()}"
        return f"**{part / len(rows):.1%}**: {part:,} of {of_rows} have `{flag}` = true."
    if not question.own & {"share", "percent"} or not question.where() or not table.rows:
        return ""
    part, whole = len(rows), len(table.rows)
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
    if (not question.columns and not question.dimension and not question.statistic) or (
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
    if not targets or (_is_counting(question.text) and not _figure_columns(question)):
        figures: dict[str, float] = {cell: len(rows) for cell, rows in groups.items()}
        title = "number of rows"
    else:
        target = targets[0]
        statistic = question.statistic or (
            "maximum"
            if question.direction and question.by
            else "sum"
            if _ADDED & column_words(target)
            else "mean"
        )
        index = table.columns.index(target)
        figures = {}
        for cell, rows in groups.items():
            if numbers := _numbers(row[index] for row in rows):
                figures[cell] = _STATISTICS[statistic](numbers)
        is_single = all(len(rows) <= 1 for rows in groups.values())
        title = f"`{target}`" if is_single else f"{_SAID.get(statistic, statistic)} of `{target}`"
    if not figures:
        return ""
    return _figures_text(question, by, title, figures)


def _is_over_groups(question: Question, label: str) -> bool:
    """True if `which product has the most sales` speaks of all rows of a product."""
    table = question.table
    if len({*table.cells(label)}) == len(table.rows):
        return False
    if question.statistic in ("mean", "sum", "median"):
        return True
    targets = _targets(question) if question.columns or question.dimension else []
    if any(_ADDED & column_words(name) for name in targets):
        question.statistic = "sum"
        return True
    return not question.dimension and not [n for n in question.columns if table.is_numeric(n)]


_ADDED = {"revenue", "profit", "quantity", "unit", "amount", "goal", "order", "visit"}
"""Meanings of columns whose values are added up."""


def _figures_text(question: Question, by: str, title: str, figures: dict[str, float]) -> str:
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
        sentences.append(f"**{best}** has the {word} {title}: **{figure_text(value)}**.")
        if compares and len(ordered) == 2:
            sentences.append(f"The difference is **{figure_text(high - low)}**.")
    where = question.where(without=by)
    shown = ordered if question.direction >= 0 else ordered[::-1]
    rows = [f"| {cell} | {figure_text(value)} |" for cell, value in shown[: 2 * _MAX_SHOWN]]
    more = f"\n… and {len(ordered) - len(rows):,} more" if len(ordered) > len(rows) else ""
    head = f"{title[0].upper() if title[0] != '`' else title[0]}{title[1:]} by `{by}`{where}:"
    table = "\n".join([f"| {by} | {title.replace('`', '')} |", "| --- | --- |", *rows])
    if "sum" in question.own and named:
        sentences.append(f"Together: **{figure_text(math.fsum(figures.values()))}**.")
    return "\n\n".join([*sentences, head, table + more])


def _asked_label(question: Question) -> str:
    """Return the column asked for: `which city`, `what species`, `welche Stadt`, `who`."""
    match = re.search(
        r"\b(?:which|what|welche[rsnm]?|name of the)\s+(?:is the |are the |\d+ |sind die |ist die "
        r"|ist der )?([^\W\d]\w*)",
        question.text,
        re.I,
    )
    name = column_of_word(question.table, match[1]) if match and not is_grammar(match[1]) else None
    return name if name and not question.table.is_numeric(name) else ""


def _targets(question: Question) -> list[str]:
    """Return the numeric columns that are meant."""
    table, limited = question.table, {limit.column for limit in question.filters}
    if numeric := _figure_columns(question):
        return [name for name in numeric if name not in limited] or numeric
    usual = column_of_dimension(table, question.dimension) or only_numeric(table)
    return [usual] if usual else []


def _figure_columns(question: Question) -> list[str]:
    """Return the numeric columns that the words name, without those that number the rows."""
    table = question.table
    return [name for name in question.columns if table.is_numeric(name) and not table.is_id(name)]


def _distinct_answer(question: Question) -> str:
    """List or count the different cells of a column of texts."""
    table = question.table
    texts = [name for name in question.columns if not table.is_numeric(name)]
    asks_list = re.search(
        r"\b(?:list|unique|distinct|different|which|what|welche\w*|verschieden\w*|unterschiedlich\w*"
        r"|all|names? of|common|frequent|häufig\w*)\b",
        question.text,
        re.I,
    )
    counts = _is_counting(question.text)
    texts = [name for name in texts if not table.is_flag(name)]
    if not texts or question.statistic or (not asks_list and not counts):
        return ""
    numeric = [name for name in question.columns if table.is_numeric(name)]
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
    asks_any = re.search(r"\b(?:is|are|there) any\b|\bany\b.*\?|\bgibt es\b", question.text, re.I)
    if not (_is_counting(question.text) or asks_any) or question.statistic:
        return ""
    table = question.table
    rows = question.rows
    if flag := next((name for name in question.columns if table.is_flag(name)), ""):
        negated = re.search(r"\b(?:not|n't|nicht|without|never)\b|n't", question.text, re.I)
        wanted = ("false", "0") if negated else ("true", "1")
        position = table.columns.index(flag)
        n = sum(row[position] in wanted for row in rows)
        of_rows = f"{_count(len(rows), 'row')}{question.where()}"
        return f"**{n:,}** of {of_rows} have `{flag}` = {wanted[0]}."
    if any(table.is_numeric(name) for name in question.columns) and not question.filters:
        return ""
    if not question.where():
        return f"The table has **{_count(len(rows), 'row')}**."
    return f"**{len(rows):,}** of {_count(len(table.rows), 'row')}{question.where()}."


def _largest_answer(question: Question) -> str:
    """Name the rows with the largest or smallest value of a column."""
    largest = _ordered_rows(question) if question.direction else None
    if largest is None or (_statistics_of(question) and not _asked_label(question)):
        return ""
    (target, ordered), table = largest, question.table
    index, where = table.columns.index(target), question.where()
    word = "largest" if question.direction > 0 else "smallest"
    best, label = _cell(ordered[0][index]), _label_column(question, target)
    asks_value = question.statistic in ("maximum", "minimum") and not re.search(
        r"\b(?:which|who|welche\w*|wer|row)\b", question.text, re.I
    )
    if SORTED.search(question.text) and len(table.columns) == 1:
        listed = ", ".join(_cell(row[index]) for row in ordered[:50])
        return f"The {word} first: {listed}{_left_out(len(question.rows) - min(50, len(ordered)))}"
    if asks_value or len(table.columns) == 1:
        return f"The {word} `{target}`{where} is **{best}**."
    if SORTED.search(question.text):
        shown = _rows_text(table, ordered[:_MAX_SHOWN])
        rest = _left_out(len(question.rows) - min(_MAX_SHOWN, len(ordered)))
        return f"The rows by `{target}`{where}, the {word} first:\n\n{shown}{rest}"
    if (wanted := _number_of_rows(question.text)) > 1:
        shown = _rows_text(table, ordered[:wanted])
        return f"The rows with the {word} `{target}`{where}:\n\n{shown}"
    ties = [row for row in ordered if row[index] == ordered[0][index]]
    if label is None:
        return f"The {word} `{target}`{where} is **{best}**:\n\n{_rows_text(table, ties[:3])}"
    names = list(dict.fromkeys(row[table.columns.index(label)] for row in ties))
    also = f" (and {len(names) - 3} more)" if len(names) > 3 else ""
    verb = "has" if len(names) == 1 else "have"
    return f"**{', '.join(names[:3])}**{also} {verb} the {word} `{target}`{where}: **{best}**."


def _left_out(n_rows: int) -> str:
    return f"\n\n{_count(n_rows, 'row')} left out." if n_rows > 0 else ""


def _ordered_rows(question: Question) -> tuple[str, list[list[str]]] | None:
    """Return the column that is meant and the rows ordered by it; None without one."""
    table = question.table
    named = [n for n in question.columns if table.is_ordered(n) and not table.is_id(n)]
    usual = column_of_dimension(table, question.dimension)
    direction = question.direction
    if question.dimension == "age" and not usual:
        # The oldest building has the smallest year.
        usual = column_of_dimension(table, "year date")
        years = named[:1] or [usual or ""]
        direction = -direction if {"year", "date"} & meanings(years[0]) else direction
    target = next(iter(named), usual or only_numeric(table))
    if target is None:
        return None
    question.direction = direction
    index = table.columns.index(target)
    filled = [row for row in question.rows if row[index]]
    filled.sort(key=lambda row: _order_key(row[index]), reverse=direction > 0)
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
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "ten": 10,
    "zwei": 2,
    "drei": 3,
    "vier": 4,
    "fünf": 5,
    "zehn": 10,
}


def _order_key(cell: str) -> tuple[float, str]:
    number = cell_number(cell)
    return (number, "") if number is not None else (0.0, cell)


def _label_column(question: Question, target: str) -> str | None:
    table = question.table
    if label := _asked_label(question):
        return label
    texts = [n for n in table.columns if n != target and not table.is_ordered(n)]
    # A label tells rows apart; else the whole row is shown.
    return next((name for name in texts if len({*table.cells(name)}) == len(table.rows)), None)


def _statistic_answer(question: Question) -> str:
    """Compute a statistic of the columns."""
    if not question.statistic:
        return ""
    if text := _described_answer(question):
        return text
    table, sentences = question.table, list[str]()
    titles = _statistics_of(question) or [question.statistic]
    for target, statistic in product(_targets(question)[:4], titles):
        index = table.columns.index(target)
        numbers = _numbers(row[index] for row in question.rows)
        if not numbers:
            sentences.append(f"No row{question.where()} has a number in `{target}`.")
            continue
        title = _SAID.get(statistic, statistic)
        value = figure_text(_STATISTICS[statistic](numbers))
        empty = len(question.rows) - len(numbers)
        left_out = f", {empty:,} empty left out" if empty else ""
        sentences.append(
            f"The {title} of `{target}`{question.where()} is **{value}**"
            f" ({_count(len(numbers), 'row')}{left_out})."
        )
    if not sentences and question.columns:
        sentences.append(f"`{question.columns[0]}` has no numbers to compute with.")
    return "\n\n".join(sentences)


def _statistics_of(question: Question) -> list[str]:
    """Return the statistics of a question that names several: `the mean and the max tip`."""
    # In `median total bill` the word `total` belongs to a column.
    columns = {own for name in question.columns for own in column_words(name)}
    names = [name for name in _STATISTICS if name in question.own - columns]
    return names if len(names) > 1 else []


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
    limited = {typed.column for typed in question.filters}
    columns = [name for name in question.columns if name not in question.named]
    columns = [name for name in columns if name not in limited] or (
        columns if question.named else []
    )
    if not columns and question.dimension:
        columns = [name for name in [column_of_dimension(table, question.dimension)] if name]
    if not columns or not (question.named or question.filters):
        return ""
    rows = question.rows
    if not rows:
        return f"No row{question.where()}."
    if len(rows) == 1:
        shown = [f"`{n}` is **{_cell(rows[0][table.columns.index(n)])}**" for n in columns[:4]]
        return f"{', '.join(shown)}{question.where()}."
    target = columns[0]
    index = table.columns.index(target)
    if table.is_numeric(target):
        numbers = _numbers(row[index] for row in rows)
        if not numbers:
            return f"No row{question.where()} has a number in `{target}`."
        mean, n_rows = statistics.fmean(numbers), _count(len(numbers), "row")
        is_added = _ADDED & column_words(target)
        total = f", sum **{figure_text(math.fsum(numbers))}**" if is_added else ""
        limits = f"{figure_text(min(numbers))} to {figure_text(max(numbers))}"
        figures = f"{limits}, mean **{figure_text(mean)}**{total} ({n_rows})"
        return f"`{target}`{question.where()}: {figures}."
    cells = _by_frequency(row[index] for row in rows if row[index])
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
    return [number for cell in cells if (number := cell_number(cell)) is not None]


def _by_frequency(cells: Iterable[str]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for cell in cells:
        counts[cell] = counts.get(cell, 0) + 1
    return sorted(counts.items(), key=lambda pair: -pair[1])


def _cell(cell: str) -> str:
    number = cell_number(cell)
    return cell if number is None else figure_text(number)


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
