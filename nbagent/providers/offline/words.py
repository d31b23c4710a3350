"""What the demo model knows about English: stems, words that go together, values in a text.

Knows no tool and no schema; those are in `arguments`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

CandidateKind = Literal[
    "quoted", "url", "email", "path", "date", "identifier", "number", "expression", "name", "words"
]


def _set(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_STOP = _set(
    "a an the this that these those it its is are was were be been am do does did has have had"
    " will would can could should may might shall must i me my mine we us our you your he she they"
    " them their his her what which who whom whose when where why how and or but nor not no yes if"
    " then than so as at by for from in into of off on onto out over to up with about near between"
    " please tell give let lets let's say want need like know think ask answer thanks thank hello"
    " hi hey ok okay there here now also too just only some any all each every both either neither"
    " more most less least much many very one first using use via per"
)
_VERBS = _set(
    "get list find search show fetch look lookup make run compute calculate tell give read check"
    " query retrieve display print return load take go put set ask call see compare describe"
    " explain summarize summarise write add create open count convert translate send repeat"
    " multiply divide subtract roll play start stop continue try select choose pick sort rank"
    " order plan book estimate solve evaluate reverse draw plot generate update delete remove"
    " suppose assume consider imagine remember"
)
GENERIC_VERBS = _set(
    "get list find show fetch look lookup make run do tell give read check retrieve load take"
    " call see compute calculate return display"
)
LISTING_VERBS = _set("list find search get show lookup fetch query all")
"""Verbs of tools that give what others need."""
WRITING_VERBS = _set(
    "create add insert delete remove send update set write put post plant book reserve buy pay"
    " move rename drop erase start stop run execute"
)
"""Verbs of tools that change something; these are not called on the way to something else."""
_DAYS = _set(
    "monday tuesday wednesday thursday friday saturday sunday january february march april may"
    " june july august september october november december today tomorrow yesterday tonight"
)
_SOON = _set("today tomorrow yesterday tonight")
_NAME_STARTS = _set(
    "new san los las saint st st. rio cape north south east west great el la le united port"
    " fort hong kuala buenos tel abu mexico"
)
_JOINERS = _set("de da do del della la le van von der den of the du")
_GROUPS = (
    "population people inhabitants residents citizens live lives large larger largest big bigger"
    " biggest small smaller smallest populous size",
    "weather temperature forecast rain rainy sunny wind windy warm warmer warmest cold colder"
    " coldest hot hotter hottest degrees climate",
    "price cost expensive cheap cheaper cheapest pay fee worth",
    "distance far farther away kilometres kilometers km miles route",
    "time clock hour o'clock",
    "age old older oldest young younger youngest born birthday",
    "length long longer longest duration short shorter shortest",
    "weight heavy heavier heaviest mass kg light lighter",
    "speed fast faster fastest slow slower",
    "height tall taller tallest high higher highest elevation altitude",
    "mail email send message letter notify",
    "find search look lookup query locate",
    "add sum plus total",
    "multiply times product",
    "subtract minus difference",
    "divide divided quotient ratio",
    "delete remove erase drop",
    "create make new insert",
    "convert exchange currency conversion",
    "translate language translation",
    "file document path folder",
    "stock share shares ticker quote",
    "book reserve reservation",
    "user customer person client account",
    "calculate compute evaluate expression math arithmetic calculator",
    "random roll dice",
    "power exponent raise squared square",
    "count number many amount",
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A piece of a prompt that may be the value of a parameter."""

    kind: CandidateKind
    text: str
    start: int
    end: int
    before: str = ""
    """The word before it, articles left out: often a preposition that says its role."""
    after: str = ""


@lru_cache(maxsize=4096)
def stem(word: str) -> str:
    """Cut a lower-case word's common endings, so that `cities` meets `city`."""
    word = word.lower().removesuffix("'s").removesuffix("’s")
    for ending, kept, shortest in (
        ("ies", "y", 5),
        ("ations", "", 9),
        ("ation", "", 8),
        ("ions", "", 7),
        ("ion", "", 6),
        ("ators", "", 8),
        ("ator", "", 7),
        ("ates", "", 7),
        ("ate", "", 6),
        ("ings", "", 7),
        ("ing", "", 6),
        ("ied", "y", 5),
        ("ed", "", 5),
        ("ches", "ch", 5),
        ("shes", "sh", 5),
        ("sses", "ss", 5),
        ("xes", "x", 4),
    ):
        if word.endswith(ending) and len(word) >= shortest:
            word = word[: len(word) - len(ending)] + kept
            break
    else:
        if word.endswith("s") and len(word) > 3 and not word.endswith(("ss", "us", "is")):
            word = word[:-1]
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def words(text: str) -> list[str]:
    """The lower-case words of a text or an identifier: `getUser_name` has three."""
    spaced = re.sub(r"([a-z0-9])([A-Z])|([A-Z]+)([A-Z][a-z])", r"\1\3 \2\4", text)
    spaced = spaced.replace("_", " ")
    return [word.lower() for word in re.findall(r"[^\W_]+(?:['’][^\W_]+)?", spaced)]


def stems(text: str) -> list[str]:
    """The stems of a text's words, without the words that mean little. Identifiers are split."""
    return [stem(word) for word in words(text) if word not in _STOP]


def telling_stems(text: str) -> list[str]:
    """The stems of a text without the words that only compare: `largest`, `total`."""
    return [stem(one) for one in words(text) if one not in _STOP | _JUDGING]


def related(one: str, other: str) -> bool:
    """Whether two stems often mean the same thing in a question."""
    return bool(_group_ids(one) & _group_ids(other))


def abbreviates(short: str, long: str) -> bool:
    """Whether one word is the start of the other: `lat` and `latitude`."""
    short, long = sorted((short, long), key=len)
    return len(short) >= 3 and long.startswith(short)


@lru_cache(maxsize=4096)
def _group_ids(stemmed: str) -> frozenset[int]:
    return frozenset(i for i, group in enumerate(_STEMMED_GROUPS) if stemmed in group)


_STEMMED_GROUPS = tuple(frozenset(stem(word) for word in group.split()) for group in _GROUPS)

_MONTHS = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sep(?:tember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?"
_PATTERNS: tuple[tuple[CandidateKind, str], ...] = (
    ("quoted", r"```(?:\w*\n)?(?P<v>[^`]+)```"),
    ("quoted", r"“(?P<v>[^”\n]+)”|«(?P<w>[^»\n]+)»"),
    ("quoted", r'"(?P<v>[^"\n]+)"'),
    ("quoted", r"`(?P<v>[^`\n]+)`"),
    ("quoted", r"(?<!\w)[‘'](?P<v>[^'’\n]+)['’](?!\w)"),
    ("url", r"\b(?P<v>(?:https?|ftp|file)://[^\s<>]*[^\s<>.,;:!?)])"),
    ("email", r"\b(?P<v>[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64})+)"),
    ("date", r"\b(?P<v>\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?)?)\b"),
    ("date", rf"\b(?P<v>\d{{1,2}}(?:st|nd|rd|th)?\.? {_MONTHS}(?:,? \d{{4}})?)\b"),
    ("date", rf"\b(?P<v>{_MONTHS} \d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?)\b"),
    ("date", r"\b(?P<v>\d{1,2}:\d{2})\b"),
    (
        "expression",
        rf"(?<![\w.])(?P<v>\(*-?{_NUMBER}\)*(?:\s*(?:\*\*|[-+*/^×÷%])\s*\(*-?{_NUMBER}\)*)+)(?![\w])",
    ),
    (
        "path",
        r"(?<![\w/])(?P<v>(?:~|\.{1,2})?/?(?:[\w.-]{1,80}/)+[\w.-]{0,80}\w"
        r"|[\w-]{1,80}\.[A-Za-z]{1,5}\d?)\b",
    ),
    (
        "identifier",
        r"\b(?P<v>(?=[\w-]{0,64}\d)[A-Za-z_]\w{0,64}(?:-\w{1,64}){0,8}"
        r"|[A-Za-z]\w{0,64}_\w{1,64})\b",
    ),
    ("number", rf"(?<![\w.])(?P<v>(?:(?<!\S)[-+])?{_NUMBER})(?=$|[^\d])"),
)


_MOST_CHARS = 8_000
"""How much of a prompt is looked at: tables and files in it are not what it asks about."""
_MOST_CANDIDATES = 100


def candidates(prompt: str, tool_stems: frozenset[str] = frozenset()) -> list[Candidate]:
    """The values in a prompt, in order; no two share a character.

    Args:
        tool_stems: stems of the tools' names; a capital at the start of such a word is no name.
    """
    prompt = prompt[:_MOST_CHARS]
    found: list[Candidate] = []
    left = prompt
    for kind, pattern in _PATTERNS:
        blanked = list(left)
        for match in re.finditer(pattern, left):
            value = next(group for group in match.groups() if group is not None)
            found.append(Candidate(kind, value.strip(), match.start(), match.end()))
            blanked[match.start() : match.end()] = "\0" * (match.end() - match.start())
        left = "".join(blanked)
    for match in re.finditer(r"[^\W\d_]+", left):
        # `may` and `march` are verbs; months and week days are written with a capital.
        if match.group().lower() in _DAYS and (
            match.group()[0].isupper() or match.group() in _SOON
        ):
            found.append(Candidate("date", match.group(), match.start(), match.end()))
    found.extend(_names(left, tool_stems))
    ordered = sorted(found, key=lambda one: one.start)
    return _with_neighbours(prompt, ordered[:_MOST_CANDIDATES])


def _names(text: str, tool_stems: frozenset[str]) -> Iterator[Candidate]:
    """Runs of capitalised words; the first word of a sentence only where it looks like a name."""
    found = list(re.finditer(r"[^\W\d_]+(?:[-'’.][^\W\d_]+)*", text))
    run: list[re.Match[str]] = []
    for position, word in enumerate(found):
        following = found[position + 1] if position + 1 < len(found) else None
        if run and text[run[-1].end() : word.start()] != " ":
            yield _run(text, run)
            run = []
        capital = _is_name(text, word, following, tool_stems, in_run=bool(run))
        joins = (
            bool(run)
            and word.group() in _JOINERS
            and following is not None
            and following.group()[0].isupper()
            and text[word.end() : following.start()] == " "
        )
        if capital or joins:
            run.append(word)
        elif run:
            yield _run(text, run)
            run = []
    if run:
        yield _run(text, run)


def _is_name(
    text: str,
    word: re.Match[str],
    following: re.Match[str] | None,
    tool_stems: frozenset[str],
    *,
    in_run: bool,
) -> bool:
    raw = word.group()
    lower = re.sub(r"['’]s$", "", raw.lower())
    if not raw[0].isupper() or (lower in _DAYS and not in_run):
        return False
    if len(raw) > 1 and raw.isupper() and lower not in _STOP | _VERBS:
        return True
    if lower in _STOP or (not in_run and stem(lower) in tool_stems):
        return False
    before = text[: word.start()].rstrip(" \t*-•>#")
    if before and before[-1] not in ".!?:\n":
        return True
    # The first word of a sentence: capital by rule, so what follows has to speak for a name.
    if lower in _VERBS:
        return False
    next_raw = following.group() if following is not None else ""
    tail = text[word.end() :].lstrip()
    if not tail or tail[0] in ",?/&!":
        return True
    if next_raw[:1].isupper():
        return lower in _NAME_STARTS
    return raw.endswith(("'s", "’s")) or next_raw in (
        "and",
        "or",
        "vs",
        "versus",
        "is",
        "has",
        "was",
        "to",
        "against",
    )


def _run(text: str, run: list[re.Match[str]]) -> Candidate:
    start, end = run[0].start(), run[-1].end()
    value = re.sub(r"['’]s$", "", text[start:end]).rstrip(".")
    return Candidate("name", value, start, end)


def _with_neighbours(prompt: str, found: list[Candidate]) -> list[Candidate]:
    done: list[Candidate] = []
    for one in found:
        leading = re.findall(r"[^\W_]+|[=:]", prompt[max(one.start - 60, 0) : one.start].lower())
        while leading and leading[-1] in ("the", "a", "an", "city", "town", "country"):
            leading.pop()
        before = leading[-1] if leading else ""
        between = prompt[done[-1].end : one.start] if done else ""
        if done and re.fullmatch(r"\s*(?:,|,?\s*(?:and|or|&|vs\.?))\s*(?:the\s+)?", between):
            before = done[-1].before
        after = re.match(r"[\s-]*([^\W\d_]+)", prompt[one.end : one.end + 60])
        done.append(replace(one, before=before, after=after.group(1).lower() if after else ""))
    return done


_AFTER = re.compile(
    r"\b(of|in|for|about|at|near|named|called|from|to|on|by|with|between|against)\s+", re.I
)


def phrases(prompt: str) -> list[Candidate]:
    """Lower-case values: the words after a preposition, split at `and`, `or` and commas."""
    prompt = prompt[:_MOST_CHARS]
    found: list[Candidate] = []
    for match in _AFTER.finditer(prompt):
        start = match.end()
        clause = re.split(r"[.!?;:\n]", prompt[start:], maxsplit=1)[0]
        for item in re.finditer(r"[^,]+?(?=\s*,|\s+(?:and|or)\s|\s*$)", clause):
            offset = start + item.start()
            item_words = list(re.finditer(r"[^\W_]+(?:[-'’][^\W_]+)*", item.group()))
            while item_words and item_words[0].group().lower() in _LEADING:
                item_words.pop(0)
            kept: list[re.Match[str]] = []
            for word in item_words:
                if word.group().lower() in _STOP | _DAYS | _JUDGING:
                    break
                kept.append(word)
            if kept:
                span = (offset + kept[0].start(), offset + kept[-1].end())
                value = prompt[span[0] : span[1]]
                found.append(Candidate("words", value, *span, match.group(1).lower()))
            if len(kept) < len(item_words):
                break
    unique: dict[str, Candidate] = {}
    for one in found:
        unique.setdefault(one.text.lower(), one)
    return list(unique.values())


_LEADING = ("the", "a", "an", "and", "or", "both")
_JUDGING = _set(
    "larger largest bigger biggest smaller smallest higher highest lower lowest greater greatest"
    " total average mean sum difference again together right long longer"
)


def rest_of_clause(prompt: str, after: int, own: frozenset[str] = frozenset()) -> str:
    """What a search is for: the text after a position, without the words that lead to it.

    Args:
        own: stems of the tool's words, as in `Search the encyclopedia for birds`.
    """
    clause = re.split(r"[?!\n]|\.(?:\s|$)", prompt[after : after + 1000], maxsplit=1)[0]
    led = re.match(r"((?:\W*\w+){0,4}?)\W+(?:for|about)\s+(.*)", clause)
    if led is not None and all(one in own for one in telling_stems(led[1])):
        clause = led[2]
    return re.sub(
        r"^\W*(?:(?:for|about|on|of|the web|online|up|me|this|the|text|word|words|in|to)\b\W*)*",
        "",
        clause,
        flags=re.I,
    ).strip(" ,;:")


def after_colon(prompt: str) -> str | None:
    """The text after a colon that ends a request, as in `Count the words: one two`."""
    match = re.search(r":\s+(?P<v>\S.*)\Z", prompt, re.S)
    return match["v"].strip() if match else None
