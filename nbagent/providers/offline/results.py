"""What a conversation says to the demo model: its exchanges, and values in earlier results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from nbagent.contracts.canonical import canonical_json, json_object, load_json
from nbagent.contracts.chat import Message, ToolSpec
from nbagent.providers.offline.schema import Parameter
from nbagent.providers.offline.words import abbreviates, related, stem, stems, words

_MOST_VALUES = 8
_DEEPEST = 6


@dataclass(frozen=True, slots=True)
class Made:
    """A call that was made, and what came back."""

    name: str
    arguments: dict[str, Any]
    ok: bool
    data: Any
    error: Mapping[str, Any]
    """`code` and `message` when it failed."""
    turn: int
    """Counts the assistant messages of the exchange from 0."""

    @property
    def key(self) -> bytes:
        """Equal for the same tool with the same arguments."""
        return call_key(self.name, self.arguments)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One of the person's messages and the calls that followed it."""

    prompt: str
    made: tuple[Made, ...]


def call_key(name: str, arguments: Mapping[str, Any]) -> bytes:
    """Equal for the same tool with the same arguments."""
    return canonical_json([name, arguments])


def read_conversation(messages: Sequence[Message]) -> list[Exchange]:
    """The exchanges of a conversation; there is always a last one."""
    results = {one.tool_call_id: one for one in messages if one.role == "tool"}
    exchanges: list[Exchange] = []
    prompt, made, turn = "", list[Made](), 0
    begun = False
    for message in messages:
        if message.role == "user":
            if begun:
                exchanges.append(Exchange(prompt, tuple(made)))
            prompt, made, turn, begun = message.text, [], 0, True
        elif message.role == "assistant":
            for call in message.tool_calls:
                if (result := results.get(call.id)) is not None:
                    made.append(_made(call.name, call.arguments or {}, result.text, turn))
            turn += 1
    exchanges.append(Exchange(prompt, tuple(made)))
    return exchanges


def _made(name: str, arguments: dict[str, Any], content: str, turn: int) -> Made:
    try:
        result = json_object(load_json(content))
    except (ValueError, RecursionError):
        result = None
    if result is None or "ok" not in result:
        return Made(name, arguments, True, content, {}, turn)
    if result["ok"]:
        return Made(name, arguments, True, result.get("data"), {}, turn)
    error = json_object(result.get("error")) or {"message": content}
    return Made(name, arguments, False, None, error, turn)


def values_for(
    parameter: Parameter,
    tool: ToolSpec,
    made: Sequence[Made],
    specs: Mapping[str, ToolSpec],
    prompt: str,
) -> list[Any]:
    """What the results of other tools offer for a parameter; the newest result that has any."""
    for one in reversed(made):
        if not one.ok or one.name == tool.name:
            continue
        spec = specs.get(one.name)
        source = frozenset(stems(f"{one.name} {spec.description if spec else ''}"))
        wanted = frozenset(stems(f"{parameter.name} {tool.name}"))
        found = list(_search(one.data, parameter, wanted, source, 0))
        unique = {canonical_json(value): value for value in found}
        if unique:
            values = list(unique.values())[:_MOST_VALUES]
            several = re.search(r"\b(all|each|every|both|them|their|these|those)\b", prompt, re.I)
            return values if several or parameter.type == "array" else values[:1]
    return []


def _search(
    data: Any, parameter: Parameter, wanted: frozenset[str], source: frozenset[str], depth: int
) -> Iterator[Any]:
    """Values in a result that fit a parameter, by their key and their type.

    Args:
        wanted: stems of what is looked for; a value without a key fits when the source has one.
        source: stems of the tool that gave the result, and of the keys on the way.
    """
    if depth > _DEEPEST:
        return
    if (fields := json_object(data)) is not None:
        ranked = [(_key_fits(key, parameter, source), key) for key in fields]
        best = max((rank for rank, _ in ranked), default=0)
        for rank, key in ranked:
            if best and rank == best and (value := _typed(fields[key], parameter)) is not None:
                yield value
                return
        for key, value in fields.items():
            if isinstance(value, dict | list):
                below = source | set(stems(key))
                yield from _search(value, parameter, wanted, below, depth + 1)
    elif isinstance(data, list):
        for item in cast("list[Any]", data):
            yield from _search(item, parameter, wanted, source, depth + 1)
    else:
        speaks = wanted & source or any(related(a, b) for a in wanted for b in source)
        if speaks and (value := _typed(data, parameter)) is not None:
            yield value


def _key_fits(key: str, parameter: Parameter, source: frozenset[str]) -> int:
    mine, theirs = words(parameter.name) or [parameter.name], words(key)
    if mine == theirs or "".join(mine) == "".join(theirs):
        return 3
    owner = {stem(word) for word in mine[:-1]}
    if theirs and theirs[-1] == mine[-1] and len(theirs) == 1 and owner & source:
        return 2
    if len(mine) == 1 and len(theirs) > 1 and mine[0] == theirs[-1]:
        return 1
    return 2 if len(mine) == len(theirs) == 1 and abbreviates(mine[0], theirs[0]) else 0


def _typed(value: Any, parameter: Parameter) -> Any:
    """The value in the type that the parameter takes, or None."""
    if isinstance(value, bool) or value is None:
        return value if parameter.type == "boolean" else None
    if parameter.type == "array" and parameter.items is not None:
        return _typed(value, parameter.items)
    if parameter.type == "string":
        if isinstance(value, int) and parameter.is_id:
            return str(value)
        return value if isinstance(value, str) else None
    if parameter.type == "integer":
        return value if isinstance(value, int) else None
    if parameter.type == "number":
        return value if isinstance(value, int | float) else None
    return None
