"""Patterns that select tool calls in rules: `fs.write(path=@project/*.md)`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from glob import escape
from typing import Any, cast

from nbagent.contracts.canonical import canonical_json, load_json
from nbagent.contracts.errors import UsageError

_PATTERN = re.compile(r"(?P<tool>[^\s()\"',{}<>]+)(?:\((?P<where>.*)\))?", re.DOTALL)
_NAME = r"[^\s=,\"]+"
# A value ends before the next `, name=`, except inside double quotes.
_ARGUMENT = re.compile(
    rf'\s*({_NAME})\s*=\s*((?:"(?:[^"\\]|\\.)*"|[^"])*?)\s*(?:,\s*(?={_NAME}\s*=)|,?\s*\Z)',
    re.DOTALL,
)
# `path='a'`, `tags=['a']`: Python literals. They are not JSON, and as globs they would match
# nothing, so a deny rule would silently protect nothing.
_PYTHON = re.compile(r"'.*'|[\[{]\s*'.*", re.DOTALL)
_FILE_TOOLS = re.compile(r"(fs|filesystem)([.:].*)?")
# Absolute, upwards, or with a drive: the paths of the file tools never look like this.
_OUTSIDE_MOUNTS = re.compile(r"/.*|.*[\\:].*|(.*/)?\.\.(/.*)?", re.DOTALL)
_HOST_ALIASES = {"nb": "notebook", "filesystem": "fs"}
"""Aliases of hosts in rules."""
GlobResolver = Callable[[str, str, str], Sequence[str]]
"""Takes the host of a tool, an argument's name and a glob; returns the globs to compare with."""


def unchanged_glob(host: str, name: str, glob: str) -> Sequence[str]:
    """Return the glob itself: the argument has only one spelling."""
    return (glob,)


@dataclass(frozen=True, slots=True)
class CallPattern:
    """Calls that a rule matches: `fs.write`, `fs.*`, `mcp:git`, `fs.write(path=@project/*.md)`.

    The part before the parentheses is a glob over the tool's name, or names a host (`fs`, `mcp`,
    `mcp:git`). The parentheses contain globs over arguments, separated by commas, or values as
    JSON (`tags=["prod"]`). An argument that is not a string is compared as JSON, and numbers by
    their value.
    """

    tool: str
    conditions: tuple[tuple[str, str], ...] = ()

    def matches_arguments(
        self, host: str, arguments: Mapping[str, Any], resolve: GlobResolver, *, lenient: bool
    ) -> bool:
        """True if these arguments match.

        `lenient` ignores case and blanks around texts. Rules that restrict are lenient, rules that
        allow are exact: a model must not escape a rule by another spelling.
        """
        return all(
            name in arguments
            and _value_matches(
                arguments[name], text, resolve(host, name, as_glob(text, lenient)), lenient
            )
            for name, text in self.conditions
        )

    def matches_tool(self, tool: str, host: str) -> bool:
        """True if some call of this tool can match."""
        word = self.tool.removesuffix(":*")
        named = _HOST_ALIASES.get(word, word) in (host.partition(":")[0], host)
        return named or fnmatchcase(tool, self.tool) or fnmatchcase(host, self.tool)


def _literal(text: str) -> Any:
    try:
        return load_json(text)
    except (ValueError, RecursionError):
        return text


# For texts of rules only: they are few and compared with every call, values of calls are not.
_rule_literal = lru_cache(maxsize=512)(_literal)


def as_glob(text: str, lenient: bool = False) -> str:
    """Convert a rule's value to a glob; a JSON string is unquoted, and literal unless lenient."""
    literal = _rule_literal(text)
    if literal == text or not isinstance(literal, str):
        return text
    return literal if lenient else escape(literal)


def _value_matches(value: Any, text: str, globs: Sequence[str], lenient: bool) -> bool:
    literal = _rule_literal(text)
    is_json = literal != text
    if lenient:
        value, literal, globs = (_fold(part) for part in (value, literal, globs))
    text_value = value if isinstance(value, str) else canonical_json(value).decode()
    if text_value in globs or any(fnmatchcase(text_value, glob) for glob in globs):
        return True
    # 100 equals 100.0, and if lenient also "100"; 1 does not equal True.
    literal_value = _literal(text_value) if is_json and lenient else value
    return is_json and literal_value == literal and bool not in (type(value), type(literal))


def _fold(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip().casefold()
    if isinstance(value, list | tuple):
        return [_fold(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _fold(item) for key, item in cast("dict[Any, Any]", value).items()}
    return value


@lru_cache(maxsize=512)
def call_pattern(text: str) -> CallPattern:
    """Read a pattern.

    Raises:
        UsageError: it is invalid or could match no call; the message shows a valid one.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise invalid_pattern(text)
    rest, conditions = match["where"] or "", list[tuple[str, str]]()
    while rest.strip():
        argument = _ARGUMENT.match(rest)
        if argument is None:
            raise invalid_pattern(text)
        name, value = argument.groups()
        of_file = name == "path" and _FILE_TOOLS.fullmatch(match["tool"])
        # `a=1, b` outside of JSON: the second name has no value.
        incomplete = ", " in value and _rule_literal(value) == value
        if (
            incomplete
            or _PYTHON.fullmatch(value)
            or (of_file and _OUTSIDE_MOUNTS.fullmatch(as_glob(value)))
        ):
            raise invalid_pattern(text)
        conditions.append((name, value))
        rest = rest[argument.end() :]
    return CallPattern(match["tool"], tuple(conditions))


def invalid_pattern(text: object) -> UsageError:
    return UsageError(
        f"{text!r} is not a pattern for calls; write a tool (fs.write), a glob (fs.*), a host "
        "(mcp:git) or a tool with globs over its arguments or JSON: fs.write(path=@project/*.md), "
        'erase(tags=["prod"]); a path of fs begins below a mount'
    )
