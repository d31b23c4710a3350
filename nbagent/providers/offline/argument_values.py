"""Fill a tool's arguments with the values of a person's words.

Never from dtypes, cells that were not named, or names of tools; `demo` chooses the tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any, cast

from nbagent.contracts.canonical import json_object
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.schema_walk import first_member, property_schemas
from nbagent.providers.offline.prompt_values import (
    Value,
    choices_in,
    is_listed,
    iso_date,
    literal,
    number_of,
)
from nbagent.providers.offline.typed_prompt import Table
from nbagent.providers.offline.vocabulary import (
    is_grammar,
    is_known,
    meaning,
    meanings,
    word_set,
    words_in,
)
from nbagent.providers.wires.tool_schemas import wire_schema

_KINDS = (
    ("path file filename folder directory repo", ("path", "text", "name")),
    ("url uri link", ("url", "text")),
    ("email recipient address to", ("email", "text", "name")),
    ("timezone zone", ("path", "text", "name")),
    ("datetime timestamp", ("date", "time", "text")),
    ("time hour", ("time", "date", "text")),
    ("date day when deadline birthday weekday", ("date", "text")),
    ("code expression formula sql command", ("code", "text")),
    ("text message body content query question pattern prompt", ("text", "code")),
    ("id ticket number zip phone postcode isbn", ("id", "number", "text")),
    ("column field variable feature", ("id", "text", "name")),
)
"""Words of an argument's name, and the kinds of values that it takes, the most likely first."""
_ANY_TEXT = ("name", "text", "id", "path", "email")
_SENTENCE_WORDS = word_set(
    "text message body content query question pattern prompt topic title subject sentence phrase"
    " note term keyword q search description comment task todo item summary"
)
"""Words of names of arguments that take a part of the sentence."""
_EXPRESSION_WORDS = word_set("expression formula code equation calculation")
_EXPRESSION = re.compile(r"[\d(][\d\s.()]*(?:(?:\*\*|[-+*/%^])[\d\s.()]+)+")
_FROM = (r"(?:\b(?:from|von|ab|aus|between|zwischen)|\d)\s*$", "origin begin departure lower")
_TO = (
    r"(?:\b(?:to|into|in|nach|zu|zum|bis|an|as|how many|wie viele?)|->|→)\s*$",
    "target arrival until upper",
)
_DEFAULT_VALUES: dict[str, Any] = {"integer": 1, "number": 1, "boolean": True, "object": {}}
_NEAR_CHARS = 25
"""Largest distance in characters between a value and a word about it."""
_MAX_CALLS = 16
_SHARES = word_set("percent percentage pct rate share tax discount interest tip fraction")
"""Words of names of arguments that take a number of percent."""
_EACH = r"\b(?:each|every|all|per|by|je|pro|jede[rsn]?|alle[rn]?)\s+"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a tool, as its schema declares it."""

    name: str
    type: str
    """Type; for a list the type of its items."""
    is_list: bool
    choices: list[Any]
    is_required: bool
    format: str = ""
    about: str = ""
    schema: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_number(self) -> bool:
        """True for integers and numbers."""
        return self.type in ("integer", "number")

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of values that it takes."""
        if self.is_number:
            return ("number",)
        if self.format in ("date", "date-time", "time"):
            return ("time",) if self.format == "time" else ("date",)
        if self.type != "string":
            return ()
        own = {*words_in(self.name), *map(meaning, words_in(self.name))}
        return next((kinds for names, kinds in _KINDS if own & set(names.split())), _ANY_TEXT)


def parameters_of(schema: dict[str, Any]) -> list[Parameter]:
    """Read the arguments of an object's schema, in order."""
    schema = wire_schema(schema, inline=True)
    properties = property_schemas(schema)
    required = [str(name) for name in items(schema.get("required"))]
    parameters: list[Parameter] = []
    for name in dict.fromkeys([*properties, *required]):
        outer = properties.get(name)
        own = first_member(outer)
        is_list = own.get("type") == "array"
        item = first_member(own.get("items")) if is_list else own
        choices = [choice for choice in items(item.get("enum")) if choice is not None]
        kinds = items(item.get("type")) or [item.get("type", "string")]
        kind = next((str(kind_name) for kind_name in kinds if kind_name != "null"), "null")
        about = str((json_object(outer) or {}).get("description", ""))
        parameters.append(
            Parameter(
                name,
                *(kind, is_list, choices, name in required),
                format=str(item.get("format", "")),
                about=about,
                schema=item,
            )
        )
    return parameters


@dataclass(slots=True)
class _Filling:
    """Arguments of one tool while they are filled."""

    text: str
    tables: Sequence[Table]
    left: list[Value]
    """Values that no argument has taken."""
    candidates: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """Values by argument; several mean several calls."""
    taken: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    names: set[str] = field(default_factory=set[str])
    """Meanings of the words in the arguments' names."""

    def take(self, parameter: Parameter, hits: Sequence[tuple[Any, int, int]]) -> None:
        """Give an argument these values, and take their part of the text."""
        found_values = [hit[0] for hit in hits]
        unique = [value for i, value in enumerate(found_values) if value not in found_values[:i]]
        self.candidates[parameter.name] = [unique] if parameter.is_list else unique
        self.taken += [(start, end) for _, start, end in hits]
        self.left = [value for value in self.left if not self.is_taken(value.start, value.end)]

    def is_taken(self, start: int, end: int) -> bool:
        """True if an argument has taken a part of the text."""
        return any(start < taken_end and begin < end for begin, taken_end in self.taken)


def fill(
    tool: ToolSpec,
    text: str,
    values: Sequence[Value],
    tables: Sequence[Table] = (),
    *,
    forced: bool = False,
    defaults: Mapping[str, list[Any]] | None = None,
) -> tuple[list[dict[str, Any]], list[Parameter]]:
    """Return arguments for each call, or the required ones that the words do not give.

    Args:
        tool: the tool.
        text: the words of a person.
        values: the values in them.
        tables: tables of the prompt; a named cell is a value of its column's name.
        forced: the call is made anyway; missing values get a default.
        defaults: values of required arguments by name, if the words give none.
    """
    parameters = parameters_of(tool.parameters)
    names = {own for parameter in parameters for own in meanings(parameter.name)}
    filling = _fill(parameters, _Filling(text, tables, list(values), names=names))
    _fill_from_sentence(tool, parameters, filling)
    _fill_all_choices(parameters, filling)
    candidates = filling.candidates
    required = [parameter for parameter in parameters if parameter.is_required]
    for parameter in required:
        if parameter.name not in candidates and (earlier := (defaults or {}).get(parameter.name)):
            candidates[parameter.name] = earlier
    missing = [parameter for parameter in required if parameter.name not in candidates]
    if missing and not forced:
        return [], missing
    for parameter in missing:
        usual = _DEFAULT_VALUES.get(parameter.type, text[:200])
        stand_in: Any = [] if parameter.is_list else usual
        candidates[parameter.name] = [next(iter(parameter.choices), stand_in)]
    names = [parameter.name for parameter in parameters if parameter.name in candidates]
    sets = product(*(candidates[name] for name in names))
    return [dict(zip(names, chosen, strict=True)) for chosen in islice(sets, _MAX_CALLS)], []


def _fill(parameters: Sequence[Parameter], filling: _Filling) -> _Filling:
    """Fill the arguments: written ones, choices, yes or no, then values by their kinds."""
    for parameter in parameters:
        _fill_written(parameter, filling)
    # Choices first, because their words are certain; then required arguments.
    with_choices = [(parameter, _choices(parameter, filling.tables)) for parameter in parameters]
    for parameter, choices in with_choices:
        if choices and parameter.name not in filling.candidates:
            _fill_choice(parameter, choices, [c for _, c in with_choices].count(choices), filling)
    for parameter in parameters:
        if parameter.type == "boolean" and parameter.name not in filling.candidates:
            _fill_boolean(parameter, filling)
    for parameter in sorted(parameters, key=lambda argument: not argument.is_required):
        if parameter.name in filling.candidates or (parameter.choices and not parameter.is_number):
            continue
        if parameter.type == "object":
            _fill_object(parameter, filling)
        else:
            _fill_value(parameter, parameters, filling)
    return filling


def _fill_written(parameter: Parameter, filling: _Filling) -> None:
    """Read `rate=3.5` and `city: "Oslo"`."""
    name = re.escape(parameter.name)
    pattern = rf"(?<![\w.]){name}\s*[=:]\s*(\[[^\]\n]*\]|\"[^\"\n]*\"|'[^'\n]*'|[^\s,;)]+)"
    masked = re.sub(r"`[^`]*`", lambda code: " " * len(code[0]), filling.text)
    match = re.search(pattern, masked)
    if match is None:
        return
    value: Any = literal(match[1])
    if parameter.is_number and isinstance(value, str):
        value = number_of(value.rstrip("."))
    if parameter.type == "boolean":
        value = str(value).lower() in ("true", "yes", "1", "on", "ja")
    if parameter.type == "string" and not isinstance(value, list):
        value = match[1].strip("\"'").rstrip(".?!")
    if value is None or (parameter.choices and value not in parameter.choices):
        return
    listed = cast("list[Any]", value) if isinstance(value, list) else [value]
    filling.take(parameter, [(item, match.start(), match.end()) for item in listed])


def _choices(parameter: Parameter, tables: Sequence[Table]) -> list[Any]:
    """Return the choices of an argument: of its schema, or the cells of a column of its name."""
    if parameter.choices or parameter.type != "string":
        return [] if parameter.is_number else parameter.choices
    if meaning(words_in(parameter.name)[-1] if words_in(parameter.name) else "") == "column":
        return [name for table in tables for name in table.columns]
    own = meanings(parameter.name)
    columns = [(table, name) for table in tables for name in table.columns if own & meanings(name)]
    cells = [cell for table, name in columns for cell in table.cells(name)]
    return [cell for cell in dict.fromkeys(cells) if cell and number_of(cell) is None][:300]


def _cells_of_other_columns(parameter: Parameter, tables: Sequence[Table]) -> set[str]:
    """Return cells that are no values of an argument that is named like another column."""
    own = set[Any]() if parameter.choices else {*_choices(parameter, tables)}
    cells = {cell for table in tables for row in table.rows[:300] for cell in row}
    return cells - own if own else set()


def _fill_choice(parameter: Parameter, choices: list[Any], n_alike: int, filling: _Filling) -> None:
    hits = [
        hit for hit in choices_in(filling.text, choices) if not filling.is_taken(hit[1], hit[2])
    ]
    if not hits:
        return
    if n_alike > 1:
        # For example two units: the one behind `to` is the target, otherwise the first is first.
        ranked = sorted(
            hits, key=lambda hit: (-_direction(parameter, filling.text, hit[1]), hit[1])
        )
        hits = ranked[:1]
    elif len(hits) > 1 and not parameter.is_list:
        # `20 dollars in euros`: the unit of the number is not the one that is asked for.
        targets = [hit for hit in hits if re.search(_TO[0], filling.text[: hit[1]], re.I)]
        sources = [hit for hit in hits if re.search(r"\d\s*\Z", filling.text[: hit[1]])]
        hits = targets[:1] if targets and sources else hits
    filling.take(parameter, hits)


def _fill_boolean(parameter: Parameter, filling: _Filling) -> None:
    own = meanings(parameter.name)
    for match in re.finditer(r"[^\W\d_]+", filling.text):
        if meaning(match[0]) in own and not filling.is_taken(match.start(), match.end()):
            before = filling.text[max(0, match.start() - 12) : match.start()].lower()
            is_denied = re.search(r"\b(?:no|not|without|ohne|kein\w*|nicht|don't)\s+$", before)
            filling.candidates[parameter.name] = [not is_denied]
            return
    if parameter.is_required and (
        switch := re.search(
            r"\b(on|off|ein|aus|an|true|false|yes|no|ja|nein)\b", filling.text, re.I
        )
    ):
        word = switch[1].lower()
        filling.candidates[parameter.name] = [word in ("on", "ein", "an", "true", "yes", "ja")]


def _fill_object(parameter: Parameter, filling: _Filling) -> None:
    inner = parameters_of(parameter.schema)
    trial = _Filling(filling.text, filling.tables, list(filling.left))
    candidates = _fill(inner, trial).candidates
    if not candidates or any(
        argument.is_required and argument.name not in candidates for argument in inner
    ):
        return
    value = {name: some[0] for name, some in candidates.items()}
    filling.candidates[parameter.name] = [[value] if parameter.is_list else value]
    filling.left = trial.left


def _fill_value(parameter: Parameter, parameters: Sequence[Parameter], filling: _Filling) -> None:
    others = _cells_of_other_columns(parameter, filling.tables)
    suits = {
        value: 0 if value.text in others else _suitability(parameter, value, filling.text)
        for value in filling.left
    }
    best = max(filling.left, key=lambda value: suits[value], default=None)
    required = [argument for argument in parameters if argument.is_required]
    lowest = 2 if required and not parameter.is_required else 1
    if best is None or suits[best] < lowest:
        return
    rivals = [
        argument
        for argument in required
        if argument.name not in filling.candidates
        and argument is not parameter
        and best.kind in argument.kinds
    ]
    run = _run_around(best, filling)
    if required == [parameter] and not parameter.is_list:
        others = _values_of_others(parameter, parameters, filling)
        chosen = [
            value
            for value in filling.left
            if suits[value] and value.kind == best.kind and value not in others
        ]
        chosen += _small_neighbours(chosen, filling) if best.kind == "name" else []
    elif rivals:
        chosen = [best]
    elif parameter.is_list:
        alike = [value for value in filling.left if suits[value] and value.kind == best.kind]
        longest = max((_run_around(value, filling) for value in alike), key=len)
        chosen = longest if len(longest) > 1 else alike
    else:
        chosen = run
    hits = [(_converted(parameter, value), value.start, value.end) for value in chosen]
    filling.take(parameter, hits)


def _values_of_others(
    parameter: Parameter, parameters: Sequence[Parameter], filling: _Filling
) -> list[Value]:
    """Return the number that suits each other argument best and well."""
    taken: list[Value] = []
    for other in parameters:
        if other is parameter or not other.is_number or other.name in filling.candidates:
            continue
        suits = {v: _suitability(other, v, filling.text) for v in filling.left}
        best = max(suits, key=lambda value: suits[value])
        numbers = [value for value in filling.left if value.kind == "number"]
        if suits[best] >= 2 and len(numbers) > 1:
            taken.append(best)
    return taken


def _small_neighbours(chosen: Sequence[Value], filling: _Filling) -> list[Value]:
    """Return names in small letters that are listed with others: `New York and rome`."""
    neighbours: list[Value] = []
    for value in chosen:
        match = re.compile(r"(?:,| and| or| und| oder)\s+([a-zäöü]{3,})\b").match(
            filling.text, value.end
        )
        if match and not is_grammar(match[1]) and not is_known(match[1]):
            neighbours.append(Value("name", match[1], match.start(1), match.end(1)))
    return neighbours


def _run_around(best: Value, filling: _Filling) -> list[Value]:
    """Return the values of the list that a value is in: `Oslo, Bergen and Rome`."""
    runs: list[list[Value]] = []
    for value in filling.left:
        if runs and is_listed(filling.text, runs[-1][-1], value):
            runs[-1].append(value)
        else:
            runs.append([value])
    return next(run for run in runs if best in run)


def _converted(parameter: Parameter, value: Value) -> Any:
    if parameter.is_number:
        number = value.number
        whole = isinstance(number, float) and number.is_integer() and parameter.type == "integer"
        return int(cast("float", number)) if whole else number
    if parameter.format == "date":
        return iso_date(value.text) or value.text
    return value.text


def _direction(parameter: Parameter, text: str, start: int) -> float:
    """Score if an argument is named `from` or `to`, and the word before a value says the same."""
    own = {*words_in(parameter.name), *map(meaning, words_in(parameter.name))}
    before = text[max(0, start - 20) : start].lower()
    for (pattern, names), (other, _) in ((_FROM, _TO), (_TO, _FROM)):
        if own & set(names.split()):
            return 1.5 * bool(re.search(pattern, before)) - 0.5 * bool(re.search(other, before))
    return 0.0


def _suitability(parameter: Parameter, value: Value, text: str) -> float:
    """Score a value for an argument: 0 does not fit; 2 or more also fits an optional one."""
    kinds = parameter.kinds
    if value.kind not in kinds:
        return 0
    near = _nearness(parameter, value, text) + _direction(parameter, text, value.start)
    if parameter.is_number:
        number = value.number
        if number is None or (parameter.choices and number not in parameter.choices):
            return 0
        if parameter.type == "integer" and float(number) != int(number):
            return 0
        return max(0.1, 1 + 2 * near)
    if parameter.format == "date" and not iso_date(value.text):
        return 0
    is_typical = kinds is not _ANY_TEXT
    return max(0.1, near + (3 - kinds.index(value.kind) / 2 if is_typical else 1))


def _nearness(parameter: Parameter, value: Value, text: str) -> float:
    """Score from 0 to 1 for a word of the argument's name near the value."""
    if text[value.end :].lstrip()[:1] == "%":
        return float(bool(_SHARES & {*words_in(parameter.name), *meanings(parameter.name)}))
    own_meanings = meanings(parameter.name)
    if "year" in own_meanings and re.fullmatch(r"(?:1[89]|20)\d\d", value.text):
        return 1.0
    if own_meanings & {"top", "quantity", "count"} and parameter.is_number:
        # `5 papers`, `the 3 largest`; but not `5 km`.
        noun = re.match(r"\s+([^\W\d_]{4,})", text[value.end :])
        if noun and not is_grammar(noun[1]):
            return 1.0
    own, low = {*map(meaning, words_in(parameter.name))}, max(0, value.start - _NEAR_CHARS)
    gaps = [
        max(value.start - low - match.end(), match.start() - (value.end - low), 0)
        for match in re.finditer(r"[^\W\d_]+", text[low : value.end + _NEAR_CHARS])
        if meaning(match[0]) in own
    ]
    return max(0.0, 1 - min(gaps, default=_NEAR_CHARS) / _NEAR_CHARS)


def _fill_from_sentence(tool: ToolSpec, parameters: Sequence[Parameter], filling: _Filling) -> None:
    """Fill required texts without quotes: the rest of the sentence, or a name in small letters."""
    open_texts = [
        parameter
        for parameter in parameters
        if parameter.type == "string"
        and not parameter.choices
        and parameter.name not in filling.candidates
    ]
    for parameter in open_texts:
        own = {*words_in(parameter.name)}
        if parameter.is_list:
            hits = _listed_words(filling)
            filling.take(parameter, hits) if hits else None
        elif not parameter.is_required:
            continue
        elif own & _EXPRESSION_WORDS and (match := _EXPRESSION.search(filling.text)):
            filling.take(parameter, [(match[0].strip(), match.start(), match.end())])
        elif own & _SENTENCE_WORDS:
            hits = _rest_of_sentence(tool, filling)
            filling.take(parameter, hits) if hits else None
        elif parameter.kinds is _ANY_TEXT or "name" in parameter.kinds:
            columns = [name for table in filling.tables for name in table.columns]
            names = [tool.name, *(argument.name for argument in parameters), *columns]
            skipped = {own for name in names for own in meanings(name)}
            hits = _small_names(filling, skipped)
            filling.take(parameter, hits) if hits else None


_LISTED = re.compile(
    r"(?<![\w-])[\w-]+(?:, [\w-]+)*,? (?:and|und|&) [\w-]+|(?<![\w-])[\w-]+(?:, [\w-]+)+"
)


def _listed_words(filling: _Filling) -> list[tuple[str, int, int]]:
    """Return the words of a list: `cute, cat and home`, `Anna and Bob`."""
    for match in _LISTED.finditer(filling.text):
        if not filling.is_taken(match.start(), match.end()):
            listed = re.finditer(r"[\w-]+", match[0])
            hits = [(m[0], match.start() + m.start(), match.start() + m.end()) for m in listed]
            return [hit for hit in hits if hit[0] not in ("and", "und")]
    return []


_LEAD = re.compile(
    r"\A(?:\W|\b(?:for|about|on|that|saying|says|the|following|text|message|a|an|nach|über|dass|me"
    r"|please|bitte|den|die|das|sentence|phrase|satz|with|to|item|named|called|entry|note)\b)+",
    re.IGNORECASE,
)
_TAIL = re.compile(
    r"(?:\W|\b(?:to|into|in|for|on|at|with|from|and|auf|ins|nach|für|an|und|please)\b)+\Z", re.I
)


def _rest_of_sentence(tool: ToolSpec, filling: _Filling) -> list[tuple[str, int, int]]:
    """Return the words behind the verb, a colon, `for` or `saying`, without taken values."""
    text = filling.text
    start = 0
    if match := re.search(r":\s+|\b(?:saying|says|that says|dass|for|about|on|nach|über)\s+", text):
        start = match.end()
    else:
        own = meanings(tool.name)
        verbs = [m for m in re.finditer(r"[^\W\d_]+", text) if meaning(m[0]) in own]
        if not verbs:
            return []
        start = verbs[0].end()
    taken = sorted(span for span in filling.taken if span[0] >= start)
    edges = [start, *(edge for span in taken for edge in span), len(text)]
    parts = [text[i:j] for i, j in zip(edges[::2], edges[1::2], strict=True)]
    stripped = [_TAIL.sub("", _LEAD.sub("", part)) for part in parts]
    part, ends = next((part for part in stripped if part), ""), bool(taken)
    rest_words = part.split()
    while (
        rest_words
        and (ends or filling.taken)
        and meaning(rest_words[-1].strip(",")) in filling.names
    ):
        rest_words.pop()
    part = (
        _TAIL.sub("", part[: part.rfind(rest_words[-1]) + len(rest_words[-1])])
        if rest_words
        else ""
    )
    begin = text.find(part, start) if part else -1
    return [(part, begin, begin + len(part))] if begin >= 0 else []


_SMALL_NAME = re.compile(
    r"\b(?:of|in|for|from|at|to|near|named|called|about|von|für|in|aus|nach|bei|is|ist|and|und|or"
    r"|oder|than|als|with|mit)\s+(?=[a-zäöü])"
)


def _small_names(filling: _Filling, skipped: set[str]) -> list[tuple[str, int, int]]:
    """Return unknown words in small letters behind prepositions: `weather in paris`."""
    hits: list[tuple[str, int, int]] = []
    for match in _SMALL_NAME.finditer(filling.text):
        end = match.end()
        while word := re.compile(r"\s?([^\W\d_]{2,})(?!\w|\.\w)").match(filling.text, end):
            if is_grammar(word[1]) or is_known(word[1]) or meaning(word[1]) in skipped:
                break
            end = word.end()
            if end - match.end() > 30:
                break
        name = filling.text[match.end() : end]
        if name and not filling.is_taken(match.end(), end):
            hits.append((name, match.end(), end))
    return hits


def _fill_all_choices(parameters: Sequence[Parameter], filling: _Filling) -> None:
    """Fill a required choice with all of them if the words say `each` or `every`."""
    for parameter in parameters:
        choices = _choices(parameter, filling.tables)
        if not parameter.is_required or parameter.name in filling.candidates or not choices:
            continue
        for match in re.finditer(rf"{_EACH}(?:of the )?([^\W\d_]+)", filling.text, re.I):
            if meaning(match[1]) in meanings(parameter.name):
                filling.candidates[parameter.name] = choices[:_MAX_CALLS]


def items(value: Any) -> list[Any]:
    """Items of a JSON list; none for anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else []
