"""Refuse what the rules do not understand: negations, questions about acts, words left over.

An answer over all rows to a question about some is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nbagent.providers.offline.table_questions import (
    STATISTICS,
    Question,
    column_of_dimension,
    column_of_word,
    column_words,
    is_adjective,
)
from nbagent.providers.offline.vocabulary import (
    compound_parts,
    is_grammar,
    is_misspelt,
    meaning,
    meanings,
    word_set,
    words_in,
)

CANNOT = "I cannot answer that by rules"
NEGATED = re.compile(
    r"\b(?:not|never|nor|cannot|without|except\w*|excluding|excludes?|other than|neither|nicht"
    r"|nothing|nobody|none|nichts|niemand|avoid\w*|refrain|instead of|rather than|vermeide\w*|statt"
    r"|nie(?:mals)?|kein\w*|ohne|außer\w*)\b|\w+n[’']t\b|\bnon-|\bno\b",
    re.IGNORECASE,
)
_ASKS_ABOUT_ACT = re.compile(
    r"\A\W*(?:(?:should|shall|may|must|could|can|would|do|did|will) (?:i|we)\b"
    r"|(?:how|why|when|where|what)\b.{0,20}\b(?:do|can|could|should|would|to)"
    r" (?:i|we|you|one|someone)\b|how to\b|what happens\b|are we\b"
    r"|is it (?:safe|ok|okay|right|wise|possible|good|a good|fine|allowed)\b"
    r"|would it\b|(?:soll|sollte|darf|kann|muss|könnte) (?:ich|man|wir)\b"
    r"|wie \w+ (?:ich|man|wir)\b|was passiert\b|did you\b|have you\b|why\b|warum\b)",
    re.IGNORECASE | re.DOTALL,
)
_QUOTED = re.compile(
    r"```.*?```|`[^`]*`|(?<!\w)'[^'\n]{2,}'(?!\w)|\"[^\"\n]*\"|“[^”\n]*”|„[^“\n]*“", re.DOTALL
)
"""Quoted words are the text of a message, not an order."""


def refusal_to_act(prompt: str) -> str:
    """Say why no tool is called: the sentence is negated or asks about an act; else empty."""
    plain = _QUOTED.sub(" ", prompt)
    if NEGATED.search(plain):
        return "The sentence has a negation, which my rules do not act on, so I call no tool."
    if re.search(r"\b(?:if|unless|wenn|falls|sofern)\b", plain, re.I):
        return "The sentence has a condition, which my rules do not act on, so I call no tool."
    if _ASKS_ABOUT_ACT.search(prompt):
        return "The sentence asks about an act and does not order it, so I call no tool."
    return ""


_RISKY = word_set(
    "not no nor each every per both over under up down off again now if about between them this"
    " kein keine nicht je pro jede jeder jedes über unter zwischen als then than"
)
"""Words of grammar that change what is asked: each must have been used by a rule."""
_PLAIN = word_set(
    "live lives lived living have having weigh weighs weight earn earns cost costs kostet kosten"
    " wohnen leben list name names named called find count please rows row record records entry"
    " entries line lines zeile zeilen einträge column columns field fields variables spalte spalten"
    " merkmale table dataset number anzahl zahl first last head tail erste ersten letzte letzten"
    " describe summarize summarise summary overview different unique distinct common"
    " frequent often häufig verschiedene belong there here sort sorted order ordered rank ranked"
    " compare compared difference s top what is going whole data started starts start made"
    " ascending descending aufsteigend absteigend sortiere beschreibe zusammenfassung überblick"
    " zeige shape size answer question tell overall overall found set dem"
)
_ROW_NOUNS = word_set(
    "penguin penguins pinguin pinguine pinguinen passenger passengers order orders sale sales city"
    " cities stadt städte movie movies film films employee employees person persons people station"
    " stations customer customers student students product products item items animal animals"
    " sensor sensors team teams country countries fruit fruits car cars house houses artikel"
    " observation observations sample samples individual individuals numbers man men woman women"
)
_SHARES = word_set("share percent percentage proportion fraction rate ratio prozent anteil")
_TOKEN = re.compile(
    r"[-−]?\d[\w.,:%-]*|[^\W\d_]+(?:_[^\W\d_]+)*|(?<= )[-+*/÷×](?= )|[^\x00-\x7fà-žÀ-Žß–—“”„’‘…]"
)


def left_over(question: Question) -> list[str]:
    """Return the words and numbers of a question about a table that no rule used."""
    left = [word for word in _TOKEN.findall(question.left) if not _is_used(word, question)]
    return list(dict.fromkeys([*left, *_unused_parts(question)]))


def _is_used(token: str, question: Question) -> bool:
    word = token.lower()
    if not word[0].isalpha():
        return _is_row_number(token, question)
    is_pair = any(len(cells) > 1 for cells in question.named.values())
    if word in ("not", "nicht", "no", "n", "non"):
        return _negates_flag(question)
    if word in ("more", "less", "mehr", "weniger", "most", "least", "than", "als", "fewer"):
        return bool(question.direction or is_pair or question.filters)
    if word in ("between", "zwischen", "versus"):
        return is_pair or question.statistic == "range"
    if word in _RISKY:
        return word in ("them", "this", "now", "about") and not {"difference"} & question.own
    if re.search(r"\bthe two\b|\bbeiden?\b", question.left, re.I) and word in ("two", "beiden"):
        return False
    if word in ("two", "three", "four", "five", "ten", "zwei", "drei", "vier", "fünf", "zehn"):
        return bool(question.direction)
    if is_grammar(word) or word in _PLAIN or _is_of_column(word, question):
        return True
    own = meaning(word)
    if word in ("standard", "value", "values") and question.statistic == "std":
        return True
    if own in _SHARES or word in _SHARES:
        flags = [name for name in question.columns if question.table.is_flag(name)]
        numeric = [n for n in question.columns if question.table.is_numeric(n) and n not in flags]
        return not numeric and bool(flags or question.where())
    if own == "difference":
        return is_pair or question.statistic == "range"
    if own in STATISTICS or own in ("count", "missing", "describe", "row", "column", "unique"):
        return True
    if is_adjective(word):
        is_asked = re.search(rf"\b(?:how|wie) {re.escape(word)}\b", question.text, re.I)
        is_range = question.statistic == "range"
        return bool(question.direction or question.filters or is_pair or is_asked or is_range)
    return word in _ROW_NOUNS or word.removeprefix("un") in _flags(question)


def _flags(question: Question) -> set[str]:
    return {name.lower() for name in question.table.columns if question.table.is_flag(name)}


def _negates_flag(question: Question) -> bool:
    """True if the only negation is right before the name of a column of yes and no."""
    flags = "|".join(map(re.escape, _flags(question)))
    negations = NEGATED.findall(question.text)
    pattern = rf"\b(?:not|nicht|non-?) ?(?:been )?(?:{flags})\b"
    return bool(flags) and len(negations) == 1 and bool(re.search(pattern, question.text, re.I))


def _is_row_number(token: str, question: Question) -> bool:
    """True for the number of rows that are asked for: `top 3`, `first 2 rows`, `3 largest`."""
    number = re.escape(token)
    pattern = rf"\b(?:top|first|last|head|tail|the|erste\w*|letzte\w*)\s+{number}(?!\w)"
    ranked = rf"(?<![\w.]){number}\s+\w+(?:st|sten|ste)\b"
    if not token.isdigit() or question.statistic in ("mean", "sum", "median", "std"):
        return False
    return bool(re.search(f"{pattern}|{ranked}", question.left, re.I))


def _is_of_column(word: str, question: Question) -> bool:
    """True if a word belongs to a column that the answer uses."""
    table = question.table
    limited = [limit.column for limit in question.filters]
    names = [*question.columns, *question.named, *limited, *filter(None, [question.by])]
    own = {part for name in names for part in (*map(meaning, words_in(name)), *column_words(name))}
    parts = {meaning(part) for own_word in words_in(word) for part in compound_parts(own_word)}
    known = own | {*STATISTICS, "count"} | (question.own & {"missing", "unique"})
    if parts <= known or column_of_word(table, word) in names:
        return True
    return any(is_misspelt(word, part) for name in names for part in words_in(name))


def _unused_parts(question: Question) -> list[str]:
    """Return columns that are understood and would be ignored, and other unclear parts."""
    table, text = question.table, question.text
    flags = {name for name in table.columns if table.is_flag(name)}
    numeric = [n for n in question.columns if table.is_numeric(n) and n not in flags]
    texts = [n for n in question.columns if n not in numeric and n not in flags]
    several = {n for n in texts if len({*table.cells(n)}) < len(table.rows)}
    parts: list[str] = []
    named = re.search(r"\b(?:which|what|welche\w*|who|wer)\s+([^\W\d]\w*)", text, re.I)
    label = column_of_word(table, named[1]) if named else None
    used = {question.by, label or "", *question.named}
    is_common = re.search(r"\b(?:common|frequent|often|häufig\w*)\b", text, re.I)
    is_ranking = question.direction and not is_common
    is_listing = not (question.statistic or is_ranking or numeric)
    if not is_listing or question.by:
        parts += sorted(several - used)
    parts += [
        name
        for name in several - {question.by}
        if {cell.lower() for cell in table.cells(name)} <= {"yes", "no", "ja", "nein", ""}
    ]
    if question.by:
        parts += [name for name in numeric if name != question.by][1:]
        parts += [n for n in numeric if n != question.by and {"year", "date"} & meanings(n)]
    limited = [limit.column for limit in question.filters]
    if len({*limited}) < len(limited):
        parts += [name for name in numeric if name not in limited]
        parts += [lim.text for lim in question.filters if lim.text.isdigit()][1:]
    ranked = [n for n in [column_of_dimension(table, question.dimension)] if n]
    if question.direction and len({*numeric, *(ranked if not numeric else [])}) > 1:
        parts += numeric[1:]
    parts += _unclear_phrases(question)
    return parts


def _unclear_phrases(question: Question) -> list[str]:
    text, is_pair = question.text, any(len(cells) > 1 for cells in question.named.values())
    unclear: list[str] = []
    yes_no = re.match(
        r"\W*(is|are|were|does|do|did|has|have|can|could|will|ist|sind|hat|haben|war)\b"
        r"(?! there\b)",
        text,
        re.I,
    )
    if yes_no and not is_pair:
        unclear.append(yes_no[1])
    if match := re.search(
        r"\b(?:varian\w*|skew\w*|mode|modus|quantil\w*|percentile\w*|quartil\w*|cumulative"
        r"|growth|trend)\b",
        question.left,
        re.I,
    ):
        unclear.append(match[0])
    superlative = re.search(r"\b(?!largest)\w{3,}(?:est|sten?)\b", question.left, re.I)
    is_open = is_pair and question.direction and not (question.by or question.statistic)
    is_named = re.search(r"\b(?:which|who|what|welche\w*|wer|was)\b", text, re.I)
    if superlative and is_open and not is_named:
        unclear.append(superlative[0])
    if match := re.search(r"\bat (?:most|least)\b", question.left, re.I):
        unclear.append(match[0])
    if match := re.search(
        r"\b(?:second|third|fourth|fifth|zweit\w*|dritt\w*)[ -](?=\w+(?:st|ste|sten)\b)", text, re.I
    ):
        unclear.append(match[0].strip())
    if match := re.search(r"\b(?:best|better|worst|worse)\b", question.left, re.I):
        numeric = [n for n in question.table.columns if question.table.is_numeric(n)]
        if len(numeric) != 1:
            unclear.append(match[0])
    counts = {"count", "size", "n", "proportion"} & {*question.table.columns}
    if counts and (match := re.search(r"\b(?:common|frequent|often|häufig\w*)\b", text, re.I)):
        unclear.append(match[0])
    if (negation := NEGATED.search(text)) and not _negates_flag(question):
        unclear.append(str(negation[0]))
    return unclear


def not_understood(unknown: Iterable[str], question: Question) -> str:
    """Say which words are not understood, and which are."""
    table = question.table
    listed = list(unknown)[:6]
    known = [f"`{name}`" for name in dict.fromkeys([*question.columns, question.by]) if name]
    known += [f"`{name}` is {' or '.join(cells)}" for name, cells in question.named.items()]
    known += [f"`{limit.column}` is {limit.text}" for limit in question.filters]
    known += [question.statistic] if question.statistic else []
    shown = ", ".join(f"“{word}”" for word in listed)
    absent = [word for word in listed if re.fullmatch(r"[A-ZÄÖÜ][^\W\d_]{2,}", word)]
    absent = [word for word in absent if not is_grammar(word) and not word.isupper()]
    values = ""
    if absent:
        values = f" No cell of the table is “{absent[0]}”."
    understood = f" I understood {', '.join(known)}." if known else ""
    columns = ", ".join(f"`{name}`" for name in table.columns[:12])
    return (
        f"{CANNOT}: I did not understand {shown}.{values}{understood}"
        f" The table has the columns {columns}."
    )
