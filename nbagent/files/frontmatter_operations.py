"""Operations of `updateFrontmatter`, read from each form in which a model may write them.

Reads the update only: `frontmatter` applies it to a file, `workflow.updates` checks it for the
document of a workflow. Imports no YAML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, NoReturn, cast

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ToolError

Verb = Literal["set", "append", "value"]
_VERBS: tuple[Verb, ...] = ("set", "append")


class Operation(NamedTuple):
    """One change of one key.

    `set` sets the value; an object sets its names within the object that the key has, and null
    deletes. `append` adds an item, or each item of a list. `value` is a bare value: it sets a key
    that holds no list and no object, and null deletes the key.
    """

    key: str
    verb: Verb
    value: Any

    @property
    def items(self) -> list[Any]:
        """Items that an `append` adds."""
        value = self.value
        return list(cast("list[Any]", value)) if isinstance(value, list) else [value]

    @property
    def is_empty(self) -> bool:
        """True if it changes nothing: models give each field that the protocol names."""
        empty: object = [] if self.verb == "append" else {}
        return self.verb != "value" and self.value == empty


def read_operations(update: Mapping[str, Any]) -> tuple[Operation, ...]:
    """Read an update: `{"key": {"append": [...]}}`, `{"key.append": [...]}` or `{"key": value}`.

    An object with `set` or `append` as its only key is an operation; with neither it is a bare
    value.

    Raises:
        ToolError: `E_SCHEMA_VALIDATION`, a key has a dot, two operations, or an operation beside
            other names; the message says what to write.
    """
    operations = tuple(_read_operation(key, value) for key, value in update.items())
    for key, count in Counter(operation.key for operation in operations).items():
        if count > 1:
            _fail(f"{key[:80]!r} is given {count} times; give one operation for each key")
    return operations


def _read_operation(key: str, value: Any) -> Operation:
    named = json_object(value)
    verbs: list[Verb] = [verb for verb in _VERBS if named is not None and verb in named]
    is_form = named is not None and len(named) == len(verbs) > 0
    if is_form and len(verbs) > 1:
        _fail(f"{key[:80]!r} has both 'set' and 'append'; give one operation for each key")
    is_dotted = key.endswith(tuple(f".{verb}" for verb in _VERBS))
    if verbs and not is_form and not is_dotted:
        _fail(
            f"{key[:80]!r} has {verbs[0]!r} beside other names; write "
            f'{{"{key[:80]}": {{"set": {{…}}}}}} with all names inside, or {{"append": […]}}'
        )
    for verb in _VERBS:
        if key.endswith(f".{verb}"):
            name = key.removesuffix(f".{verb}")
            if is_form:
                _fail(
                    f'{key[:80]!r} names its operation twice; write {{"{name}": {{"{verb}": …}}}}'
                )
            return Operation(_checked_key(name), verb, value)
    if named is not None and is_form:
        return Operation(_checked_key(key), verbs[0], named[verbs[0]])
    return Operation(_checked_key(key), "value", value)


def _checked_key(key: str) -> str:
    """Return a key of the front matter itself; a dotted path to a value in it is refused."""
    if not key:
        _fail('a key of the update is empty; write {"key": {"set": …}}')
    name, dot, inner = key.partition(".")
    if dot:
        _fail(
            f"{key[:80]!r} has a dot; to set a value within {name[:80]!r}, write "
            f'{{"{name[:80]}": {{"set": {{"{inner[:80]}": …}}}}}}'
        )
    return key


def _fail(why: str) -> NoReturn:
    raise ToolError(why, code="E_SCHEMA_VALIDATION")
