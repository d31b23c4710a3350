"""What a person is typing where the cursor stands in a cell: an option, a value, an expression.

Reads text that is not finished yet; pure. What could stand there is in `known_values`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from nbagent.notebook.line_words import QUOTES, Word, goes_on, words_of
from nbagent.notebook.option_table import BY_FLAG, COMMANDS, Command
from nbagent.settings import Option

What = Literal["options", "value", "value or options", "commands", "argument", "python", "free"]
_CELL, _LINE = "%%agent", "%agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Typing:
    """What is being typed."""

    what: What
    fragment: str = ""
    """As typed up to the cursor: what a completion replaces. Of a list, the last name."""
    option: str = ""
    """Whose value it is, on a line of options."""
    command: Command | None = None
    given: frozenset[str] = frozenset()
    """Options (by name) that stand on the line already."""
    names: tuple[str, ...] = ()
    """The other names of a list."""
    setting: str | None = None
    """Of `%agent config`: whose value it is."""

    @property
    def quote(self) -> str:
        """The quote that the fragment begins with."""
        return self.fragment[0] if self.fragment[:1] and self.fragment[0] in QUOTES else ""

    @property
    def text(self) -> str:
        """The fragment without its quotes."""
        words = words_of(self.fragment)
        return words[-1].text if words else ""


def typing_at(text: str, line: int, column: int) -> Typing | None:
    """What is typed at a place of a cell; None where it is no affair of nbagent's.

    Args:
        text: the cell.
        line: the line of the cursor, from 0.
        column: its place in the line.
    """
    lines = text.split("\n")
    if line >= len(lines):
        return None
    head = _head_of_cell(lines)
    if head is None:
        begin = _first_line(lines, line)
        before = _joined(lines[begin:line], lines[line][:column]).lstrip()
        return _of_command(before[len(_LINE) :]) if _begins(before, _LINE) else None
    first, last = head
    if first <= line <= last:
        before = _joined(lines[first:line], lines[line][:column]).lstrip()
        return _of_options(before[len(_CELL) :]) if _begins(before, _CELL) else None
    if line > last:
        return _of_prompt("\n".join([*lines[last + 1 : line], lines[line][:column]]))
    return None


def _head_of_cell(lines: list[str]) -> tuple[int, int] | None:
    """The first and last line of the `%%agent` that the cell is, also below `%%time`."""
    for place, line in enumerate(lines):
        if not line.strip():
            continue
        if not line.lstrip().startswith("%%"):
            return None
        if _begins(line.lstrip(), _CELL) or line.strip() == _CELL:
            last = place
            while goes_on(lines[last]) and last + 1 < len(lines):
                last += 1
            return place, last
    return None


def _first_line(lines: list[str], line: int) -> int:
    while line and goes_on(lines[line - 1]):
        line -= 1
    return line


def _joined(above: list[str], line: str) -> str:
    return " ".join([*(one[:-1] for one in above), line])


def _begins(text: str, magic: str) -> bool:
    return text.startswith(magic) and text[len(magic) :][:1].isspace()


def _of_prompt(before: str) -> Typing | None:
    """The unfinished `{{ expression` before the cursor."""
    start = before.rfind("{{")
    if start < 0 or "}}" in before[start:]:
        return None
    return Typing(what="python", fragment=before[start + 2 :].lstrip())


def _split(before: str) -> tuple[list[Word], str]:
    """The finished words, and what is typed of the next one."""
    words = words_of(before)
    if not words or (words[-1].end < len(before) and not words[-1].open_quote):
        return words, ""
    return words[:-1], before[words[-1].start :]


def _of_options(before: str, command: Command | None = None) -> Typing:
    words, fragment = _split(before)
    given: set[str] = set()
    waiting: Option[Any] | None = None
    for word in words:
        flag, equals, _ = word.text.partition("=")
        option = BY_FLAG.get(flag)
        if option is None:
            waiting = None  # the value of the option before, or a word that means nothing
            continue
        given.add(option.name)
        waiting = None if equals or not option.metavar else option
    flag, equals, value = fragment.partition("=")
    if equals and (option := BY_FLAG.get(flag)) is not None:
        return _value(option, value, given, command)
    if waiting is not None and not fragment.startswith("-"):
        return _value(waiting, fragment, given, command)
    return Typing(what="options", fragment=fragment, command=command, given=frozenset(given))


def _value(option: Option[Any], fragment: str, given: set[str], command: Command | None) -> Typing:
    names: tuple[str, ...] = ()
    if option.name == "tools":
        *before, fragment = fragment.split(",")
        names = tuple(name.strip().strip(QUOTES) for name in before)
        fragment = fragment.lstrip()
    optional = option.bare is not None and not fragment
    return Typing(
        what="value or options" if optional else "value",
        fragment=fragment,
        option=option.name,
        command=command,
        given=frozenset(given),
        names=names,
    )


def _of_command(before: str) -> Typing | None:
    words, fragment = _split(before)
    if not words:
        return Typing(what="commands", fragment=fragment)
    command = next((one for one in COMMANDS if one.name == words[0].text), None)
    if command is None:
        return None
    rest = before[words[0].end :]
    if command.options and (fragment.startswith("-") or len(words) > 1):
        return _of_options(rest, command)
    if "NAME=VALUE" in command.argument:
        name, equals, value = fragment.partition("=")
        if equals:
            return Typing(what="argument", fragment=value, command=command, setting=name)
        names = tuple(word.text.partition("=")[0] for word in words[1:])
        return Typing(what="argument", fragment=fragment, command=command, names=names)
    if len(words) > 1 or not command.argument:
        return Typing(what="free", fragment=fragment)
    return Typing(what="argument", fragment=fragment, command=command)
