"""The lines of `%%agent` and `%agent`: turns one into a plain value, or says what is wrong.

Which options and commands there are stands in `option_table`, what a value may be in the settings'
table. Nothing here is looked up or started.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.notebook.line_words import CURLY, Word, goes_on, words_of
from nbagent.notebook.option_table import BY_FLAG, COMMANDS, OPTIONS, Command, Line
from nbagent.settings.checks import any_text
from nbagent.settings.table import Option, refuse_key


def parse(line: str) -> Line:
    """Read the line of `%%agent`.

    Raises:
        UsageError: the line cannot be read as written; the message names the option and the value.
    """
    words = _words(line)
    if words and not _looks_like_option(words[0].text):
        # Said first: a prompt on this line may well hold an apostrophe.
        raise UsageError(_stray(line[words[0].start :].split()[0], "", None))
    return _options(_checked(words, line))


def continued(line: str, cell: str) -> tuple[str, str]:
    """The line of `%%agent` and the prompt, where a backslash lets the options go on below."""
    while goes_on(line) and cell.strip():
        following, _, cell = cell.partition("\n")
        line = f"{line[:-1]} {following.rstrip()}"
    return line, cell


def split_command(line: str) -> tuple[str, str]:
    """Split the line of `%agent` into the command's name and the rest, as typed.

    An empty line and `-h` are `help`.

    Raises:
        UsageError: there is no such command; the message names the nearest one.
    """
    word, rest = [*line.strip().split(maxsplit=1), "", ""][:2]
    if word in ("", "-h", "--help"):
        return "help", rest.strip()
    refuse_key(word.partition("=")[0])
    names = [command.name for command in COMMANDS]
    if word in names:
        return word, rest.strip()
    if word.startswith("-") or _meant(word) is not None:
        raise UsageError(
            f"%agent takes a command ({', '.join(names)}), not the option {word!r};"
            " options stand after %%agent, with the prompt on the next line."
        )
    near = get_close_matches(word.lower(), names, 1)
    raise UsageError(
        f"there is no command {word!r}{f'; the nearest is {near[0]!r}' if near else ''}"
        f" (all: {', '.join(names)})."
        " To ask a model, write %%agent, and the prompt on the next line."
    )


def run_and_options(name: str, rest: str, *, otherwise: str = "last") -> tuple[str, Line]:
    """What a command names (`otherwise` when it names nothing), and the options behind it.

    A name may have spaces, in quotes or not.

    Raises:
        UsageError: the rest cannot be read, or the command does not take an option.
    """
    command = next(command for command in COMMANDS if command.name == name)
    words = _checked(_words(rest), rest)
    at = next((i for i, word in enumerate(words) if _looks_like_option(word.text)), len(words))
    options = _options(words[at:], command) if at < len(words) else Line()
    named = words[:at]
    ref = named[0].text if len(named) == 1 else " ".join(word.text for word in named)
    return ref if ref.strip() else otherwise, options


def split_words(line: str) -> list[str]:
    """The words of a line without their quotes. Raises UsageError for one that is not whole."""
    return [word.text for word in _checked(_words(line), line)]


def _words(line: str) -> list[Word]:
    """The words of a line, where no key stands. First: what is said later shows the words."""
    words = words_of(line)
    for word in words:
        name, equals, _ = line[word.start : word.end].partition("=")
        if (equals or _is_option(word.text)) and name not in BY_FLAG:
            refuse_key(name)
    return words


def _options(words: Sequence[Word], command: Command | None = None) -> Line:
    texts = [word.text for word in words]
    found: dict[str, Any] = {}
    position = 0
    option: Option[Any] | None = None
    while position < len(texts):
        word = texts[position]
        if not _is_option(word):
            raise UsageError(_stray(word, texts[position - 1] if position else "", option))
        position += 1
        flag, equals, attached = word.partition("=")
        option = BY_FLAG.get(flag)
        if option is None:
            raise UsageError(_unknown_option(flag, command))
        if command is not None and option.name not in command.options:
            raise UsageError(_not_taken(flag, command))
        if option.name in found and not option.many:
            raise UsageError(f"{flag} stands on the line twice; keep one of them.")
        value, taken = _value(option, flag, attached if equals else None, texts[position:])
        position += taken
        found[option.name] = (*found.get(option.name, ()), *value) if option.many else value
    return Line(**found)


_LOOKS_LIKE_OPTION = re.compile(r"--?[A-Za-z]\S*\Z")
_DASHES = "\u2010-\u2015\u2212\ufe58\ufe63\uff0d"
_LEADING_DASHES = re.compile(f"[-{_DASHES}]+")


def _checked(words: list[Word], line: str) -> list[Word]:
    """The words, when each of them is whole and says what it seems to say."""
    for word in words:
        typed = line[word.start : word.end]
        if word.open_quote:
            raise UsageError(
                f"the quote {word.open_quote} is not closed in {line.strip()!r}; close it, or for"
                " an apostrophe put the whole value in double quotes."
            )
        if word.dangling:
            raise UsageError(
                f"the line {line.strip()!r} ends in a backslash; remove it, or put the value in"
                " quotes."
            )
        if word.hidden:
            raise UsageError(
                f"the backslash in {typed!r} would hide its next character {word.hidden!r};"
                f" put a value with backslashes in quotes: '{typed}'"
            )
        for start in (typed[:1], typed.partition("=")[2][:1]):
            if start and start in CURLY:
                raise UsageError(
                    f"{start} is a typographic quote; type \" or ' around a value with spaces."
                )
    return words


def _looks_like_option(word: str) -> bool:
    return _is_option(word) or _meant(word) is not None


def _is_option(word: str) -> bool:
    return word.startswith("-") and bool(_LOOKS_LIKE_OPTION.match(word.partition("=")[0]))


def _meant(word: str) -> str | None:
    """The option that a word with a typographic dash was meant to be."""
    dashes = _LEADING_DASHES.match(word)
    if dashes is None or dashes[0].isascii():
        return None
    name = word[dashes.end() :].partition("=")[0]
    return next((flag for flag in (f"--{name}", f"-{name}") if flag in BY_FLAG), None)


def _value(
    option: Option[Any], flag: str, attached: str | None, following: list[str]
) -> tuple[Any, int]:
    """The value of an option, and how many of the following words it took."""
    if not option.metavar:
        if attached is not None:
            raise UsageError(f"{flag} takes no value, but was given {attached!r}; remove it.")
        return option.bare, 0
    if attached is not None:
        return _checked_value(option, flag, attached), 0
    if following and _meant(following[0]) is not None:
        raise UsageError(_stray(following[0], flag, None))
    optional = option.bare is not None
    if following and not (following[0].startswith("-") if optional else _is_option(following[0])):
        return _checked_value(option, flag, following[0]), 1
    if optional:
        return option.bare, 0
    hint = f"; attach a value that starts with a dash: {flag}={following[0]}" if following else ""
    raise UsageError(f"{flag} needs a value: {flag} {option.metavar}{hint}.")


def _checked_value(option: Option[Any], flag: str, text: str) -> Any:
    # An empty system prompt means something; an empty model, name or stop sequence does not.
    if not text and option.check is not any_text:
        raise UsageError(f"{flag} needs a value, '' is empty; write {flag} {option.metavar}.")
    return option.checked((text,) if option.many else text, flag)


def _stray(word: str, before: str, option: Option[Any] | None) -> str:
    dashes = _LEADING_DASHES.match(word)
    if dashes is not None and not dashes[0].isascii():
        meant = _meant(word)
        return f"{word!r} begins with a typographic dash; type {meant or 'it with -'}."
    if option is not None and option.name == "tools":
        return (
            f"{word!r} stands alone after the list of tools; the list is one word without spaces:"
            f" --tools {before.rstrip(',')},{word.lstrip(',')} (or in quotes)."
        )
    return (
        f"unexpected word {word!r}; only options stand on the line of %%agent:"
        " write the prompt on the next line. A value with spaces needs quotes."
    )


def _unknown_option(flag: str, command: Command | None) -> str:
    refuse_key(flag)
    short = flag[:2]
    if not flag.startswith("--") and short in BY_FLAG and len(flag) > 2:
        return (
            f"unknown option {flag!r}; the nearest is {short!r}."
            f" Its value stands apart: {short} {flag[2:]}"
        )
    known = BY_FLAG if command is None or not command.options else _flags(command.options)
    return (
        f"unknown option {flag!r}; the nearest is {_nearest(flag, known)!r}."
        " All of them: %agent help"
    )


def _not_taken(flag: str, command: Command) -> str:
    if not command.options:
        return f"%agent {command.name} takes no options; remove {flag}."
    taken = ", ".join(o.flags[-1] for o in OPTIONS if o.name in command.options)
    return f"%agent {command.name} does not take {flag}; it takes {taken}."


def _flags(names: Collection[str]) -> list[str]:
    return [flag for flag, option in BY_FLAG.items() if option.name in names]


def _nearest(word: str, known: Collection[str]) -> str:
    return get_close_matches(word.replace("_", "-"), list(known), 1, 0.0)[0]
