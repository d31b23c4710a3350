"""How the demo model takes a tool's arguments from a prompt, by the tool's JSON Schema.

Reads schemas and the values that `words` found; decides nothing about which tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.canonical import canonical_json, load_json
from nbagent.contracts.chat import ToolSpec
from nbagent.providers.offline.schema import (
    FREE_TEXT,
    HERE,
    KINDS,
    Parameter,
    chosen,
    from_server,
    parameters_of,
    plain,
    preference,
    prepositions,
    role_of,
    suited,
)
from nbagent.providers.offline.words import (
    Candidate,
    after_colon,
    phrases,
    rest_of_clause,
    stem,
    stems,
    telling_stems,
    words,
)
from nbagent.providers.offline.zones import zones

MOST_PARALLEL = 16
Facts = Callable[["Parameter"], Sequence[Any]]
"""Values that earlier results offer for a parameter."""

_USUAL = re.compile(r"\bUse '([^'\n]+)'[^.\n]*\bif no\b", re.IGNORECASE)
"""A default that a description tells in words."""
_LISTED = re.compile(r"\('([\w-]+)'\)")
"""Values that a description lists: `local branches ('local')`."""
_COUNTS = frozenset(words("count n number limit k top times amount quantity num max"))


@dataclass(frozen=True, slots=True)
class Filled:
    """Arguments found for a tool: one set for each call, or what is missing."""

    arguments: tuple[dict[str, Any], ...]
    missing: tuple[Parameter, ...] = ()


def fill(
    tool: ToolSpec,
    prompt: str,
    found: Sequence[Candidate],
    facts: Facts = lambda parameter: (),
    *,
    anchor: int = 0,
) -> Filled:
    """Find arguments for a tool: in the prompt, then in earlier results.

    When several values fit its one open parameter there are several sets, one for each call.

    Args:
        found: the values of the prompt that this tool may take.
        anchor: where the prompt names the tool; a search takes the words after it.
    """
    return _Filling(tool, prompt, found, facts, anchor).result()


class _Filling:
    """One attempt to fill one tool's parameters."""

    def __init__(
        self,
        tool: ToolSpec,
        prompt: str,
        found: Sequence[Candidate],
        facts: Facts,
        anchor: int,
    ) -> None:
        self.parameters = parameters_of(tool)
        self.prompt = prompt
        self.facts = facts
        self.anchor = anchor
        self.found = _expanded(found, self.parameters)
        self.from_server = from_server(tool.name)
        self.own = frozenset(stems(f"{tool.name} {tool.description}"))
        self.used: set[Candidate] = set()
        self.claimed: set[str] = set()
        """Words of the prompt that named a listed value."""
        self.values: dict[str, Any] = {}
        self.several: dict[str, list[Any]] = {}
        self.only_optional = not any(one.required for one in self.parameters)

    def result(self) -> Filled:
        wanted = [p for p in self.parameters if p.required or self.only_optional]
        for parameter in self.parameters:
            self._stated(parameter)
        self._zones()
        self._lists(wanted)
        self._assign(wanted, least=0.0)
        if self.from_server:
            self._usual_of_servers()
        for parameter in self._open(wanted):
            self._from_facts(parameter)
        for parameter in self._open(wanted):
            self._from_words(parameter)
        self._alternatives(wanted)
        self._optional()
        missing = tuple(p for p in self._open(self.parameters) if p.required)
        if missing:
            return Filled((), missing)
        return Filled(self._sets())

    def _open(self, parameters: Sequence[Parameter]) -> list[Parameter]:
        return [one for one in parameters if one.name not in self.values]

    def _stated(self, parameter: Parameter) -> None:
        """Values that the prompt gives by the parameter's name, or that the schema lists."""
        if parameter.choices:
            named = chosen(parameter, self.prompt)
            if named:
                self.values[parameter.name] = named[0]
                if len(named) > 1 and parameter.required:
                    self.several[parameter.name] = named
                low = [str(one).lower() for one in named]
                self.claimed |= set(low)
                self.used |= {one for one in self.found if one.text.lower() in low}
            elif "const" in parameter.schema:
                self.values[parameter.name] = parameter.choices[0]
            return
        spoken = r"[\s_-]*".join(
            re.escape(word) for word in words(parameter.name) or [parameter.name]
        )
        match = re.search(rf"(?<!\w){spoken}\s*(?:=|:|\bis\b)\s*(\S.*)", self.prompt, re.I)
        if match:
            at = match.start(1)
            for one in self.found:
                if one.start <= at < one.end and (value := suited(parameter, one)) is not None:
                    self.values[parameter.name] = value[0]
                    self.used.add(one)
                    return
        if parameter.type == "boolean":
            self._boolean(parameter)
        elif parameter.type == "object":
            self._object(parameter)

    def _usual_of_servers(self) -> None:
        """What a server's tool most likely takes where the prompt says nothing."""
        for parameter in self._open(self.parameters):
            listed = _LISTED.findall(str(parameter.schema.get("description", "")))
            if not parameter.required:
                continue
            if parameter.is_repository:
                self.values[parameter.name] = HERE
            elif parameter.type == "string" and len(listed) > 1:
                low = self.prompt.lower()
                self.values[parameter.name] = next((o for o in listed if o in low), listed[0])

    def _zones(self) -> None:
        """Time zones: `from` before the source's, `to` or nothing before the target's."""
        wanted = [one for one in self.parameters if one.is_zone and one.required]
        found = zones(self.prompt) if wanted else []
        if not found:
            # A place that is not in the table is not the same as none.
            placed = any(one.kind == "name" for one in self.found)
            for parameter in wanted if len(wanted) == 1 and not placed else ():
                usual = _USUAL.search(str(parameter.schema.get("description", "")))
                self.values |= {parameter.name: usual[1]} if usual else {}
            return
        if len(wanted) == 1:
            self.values[wanted[0].name] = found[0].name
            self.several[wanted[0].name] = [one.name for one in found]
        for parameter in wanted[: len(found)] if len(wanted) > 1 else []:
            leads = prepositions(parameter)
            fits = [one for one in found if one.before in leads] or found
            self.values[parameter.name] = fits[0].name
            found.remove(fits[0])
        inside = [(one.start, one.end) for one in zones(self.prompt)]
        self.used |= {
            one for one in self.found if any(a < one.end and one.start < b for a, b in inside)
        }

    def _boolean(self, parameter: Parameter) -> None:
        own = {stem(word) for word in words(parameter.name) if word not in ("is", "has", "use")}
        if "on" in own and re.search(r"\boff\b", self.prompt, re.I):
            self.values[parameter.name] = False
            return
        for word in re.finditer(r"[^\W_]+", self.prompt):
            if stem(word.group()) in own:
                lead = self.prompt[: word.start()].lower().split()[-2:]
                refused = any(one in ("no", "not", "without", "don't", "skip") for one in lead)
                self.values[parameter.name] = not refused
                return

    def _object(self, parameter: Parameter) -> None:
        match = re.search(r"\{.*\}", self.prompt, re.S)
        try:
            value = load_json(match.group()) if match else None
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            self.values[parameter.name] = value
            return
        inner = ToolSpec(name=parameter.name, parameters=dict(parameter.schema))
        if parameters_of(inner):
            filled = fill(inner, self.prompt, self.found)
            if filled.arguments and filled.arguments[0]:
                self.values[parameter.name] = filled.arguments[0]

    def _lists(self, wanted: Sequence[Parameter]) -> None:
        for parameter in self._open(wanted):
            if parameter.type != "array" or parameter.items is None:
                continue
            items = parameter.items
            if items.choices:
                values = chosen(items, self.prompt)
            else:
                fitting = [one for one in self.found if one not in self.used]
                scored = [(one, value) for one in fitting if (value := suited(items, one))]
                best = max((value[1] for _, value in scored), default=0)
                taken = [(one, value) for one, value in scored if value[1] == best]
                self.used |= {one for one, _ in taken}
                values = [value[0] for _, value in taken]
            if not values and parameter.required:
                values = list(self.facts(parameter)) or [
                    one.text for one in phrases(self.prompt) if items.type == "string"
                ]
            if values:
                self.values[parameter.name] = values

    def _assign(self, wanted: Sequence[Parameter], *, least: float) -> None:
        """Give each open parameter its best value; the best pairs first."""
        pairs: list[tuple[float, int, int, Parameter, Candidate, Any]] = []
        for i, parameter in enumerate(self._open(wanted)):
            if parameter.type in ("array", "object", "boolean") or parameter.is_zone:
                continue
            for j, one in enumerate(self.found):
                value = suited(parameter, one)
                if one not in self.used and value is not None:
                    bonus = role_of(parameter, one, self.parameters)
                    if bonus >= least:
                        pairs.append((-(value[1] + bonus), i, j, parameter, one, value[0]))
        for _, _, _, parameter, one, value in sorted(pairs, key=lambda pair: pair[:3]):
            if parameter.name not in self.values and one not in self.used:
                self.values[parameter.name] = value
                self.used.add(one)

    def _from_facts(self, parameter: Parameter) -> None:
        if parameter.is_zone:
            return
        values = list(self.facts(parameter))
        if parameter.type == "array" and values:
            self.values[parameter.name] = values
        elif values:
            self.values[parameter.name] = values[0]
            if len(values) > 1:
                self.several[parameter.name] = values

    def _from_words(self, parameter: Parameter) -> None:
        """The last resort for texts: the words of the prompt themselves."""
        if parameter.type != "string" or parameter.choices or parameter.is_id or parameter.is_zone:
            return
        if parameter.words & FREE_TEXT:
            rest = after_colon(self.prompt) or rest_of_clause(self.prompt, self.anchor, self.own)
            if rest and parameter.required:
                self.values[parameter.name] = rest
            return
        if any(parameter.words & names for names, _ in KINDS):
            return
        listed = [one for one in phrases(self.prompt) if not self._taken(one)]
        known = parameter.hints | self.own
        own = [one for one in listed if not set(stems(one.text)) <= known]
        if own:
            best = max(role_of(parameter, one, self.parameters) for one in own)
            kept = [one for one in own if role_of(parameter, one, self.parameters) == best]
            first = kept[0]
            # `in oslo and bergen for a week`: what shares the preposition belongs together.
            same = [one.text for one in kept if one.before == first.before]
            self.values[parameter.name] = first.text
            self.used.add(first)
            if len(same) > 1:
                self.several[parameter.name] = same
        elif self.anchor and parameter.required:
            # `Define serendipity`: what follows the word that names the tool.
            rest = rest_of_clause(self.prompt, self.anchor)
            if any(one not in known for one in telling_stems(rest)):
                self.values[parameter.name] = rest

    def _taken(self, one: Candidate) -> bool:
        if one.text.lower() in self.claimed:
            return True
        return any(one.start < other.end and other.start < one.end for other in self.used)

    def _alternatives(self, wanted: Sequence[Parameter]) -> None:
        """Further values of the same kind for one parameter: one call for each."""
        kinds = [one for one in wanted if one.name in self.values]
        for parameter in kinds:
            if parameter.name in self.several or parameter.type in ("array", "object", "boolean"):
                continue
            mine = next(
                (one for one in self.used if plain(parameter, one) == self.values[parameter.name]),
                None,
            )
            if mine is None:
                continue
            alone = sum(1 for one in kinds if one.type == parameter.type) == 1
            values = [self.values[parameter.name]]
            for one in self.found:
                value = suited(parameter, one)
                mine_value = suited(parameter, mine)
                if one in self.used or value is None or mine_value is None:
                    continue
                role = role_of(parameter, one, self.parameters)
                same_role = role > 0 or (alone and role == 0)
                if parameter.type != "string" and role_of(parameter, mine, self.parameters) > 0:
                    # In `3 dice with 6 sides` only the 6 counts the sides.
                    same_role = role > 0
                if value[1] == mine_value[1] and same_role:
                    values.append(value[0])
                    self.used.add(one)
            if len(values) > 1:
                self.several[parameter.name] = values
                return

    def _optional(self) -> None:
        """Optional parameters are filled only where the prompt speaks of them."""
        rest = [one for one in self.parameters if not one.required]
        self._assign(rest, least=1.0)
        for parameter in self._open(rest):
            left = [
                (one, value)
                for one in self.found
                if one not in self.used and (value := suited(parameter, one)) is not None
            ]
            counts = parameter.type in ("integer", "number") and parameter.words & _COUNTS
            dates = parameter.type == "string" and any(one.kind == "date" for one, _ in left)
            if left and (counts or dates):
                self.values[parameter.name] = left[0][1][0]
                self.used.add(left[0][0])

    def _sets(self) -> tuple[dict[str, Any], ...]:
        ordered = [one.name for one in self.parameters if one.name in self.values]
        sets = [{name: self.values[name] for name in ordered}]
        for name, values in self.several.items():
            sets = [{**one, name: value} for one in sets for value in values]
        unique = {canonical_json(one): one for one in sets}
        return tuple(unique.values())[:MOST_PARALLEL]


def _expanded(found: Sequence[Candidate], parameters: Sequence[Parameter]) -> list[Candidate]:
    """Numbers inside `12 * 7` count as numbers, unless the tool takes the expression itself."""
    if any("expression" in preference(one) for one in parameters):
        return list(found)
    done: list[Candidate] = []
    for one in found:
        if one.kind != "expression":
            done.append(one)
            continue
        for match in re.finditer(r"(?:(?<![\d)\s])-|(?<=[*/+^(]\s)-)?[\d,]*\d(?:\.\d+)?", one.text):
            start = one.start + match.start()
            done.append(
                Candidate("number", match.group(), start, start + len(match.group()), one.before)
            )
    return done


def forced_arguments(tool: ToolSpec, prompt: str, found: Sequence[Candidate]) -> dict[str, Any]:
    """Arguments for a tool that must be called although the prompt does not say them all."""
    arguments: dict[str, Any] = {}
    for parameter in parameters_of(tool):
        if parameter.required:
            arguments[parameter.name] = _guessed(parameter, prompt, found)
    return arguments


def _guessed(parameter: Parameter, prompt: str, found: Sequence[Candidate]) -> Any:
    if parameter.choices:
        named = chosen(parameter, prompt)
        return named[0] if named else parameter.choices[0]
    fitting = [value for one in found if (value := suited(parameter, one)) is not None]
    if fitting:
        return max(fitting, key=lambda value: value[1])[0]
    low = parameter.schema.get("minimum", 1)
    by_type: dict[str, Any] = {
        "integer": low,
        "number": low,
        "boolean": True,
        "array": [],
        "object": {},
    }
    return by_type.get(parameter.type, found[0].text if found else prompt)
