"""The command lines of `%%agent` and `%agent`: which options and commands there are, as data.

Turns a line into a plain value and says clearly what is wrong with it. What the options mean for
a run belongs to the session; nothing here is looked up or started.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from keyword import iskeyword
from typing import Any, Literal

from nbagent.contracts.errors import UsageError

Kind = Literal["text", "tools", "int", "float", "seconds", "name", "run", "flag"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option of `%%agent`."""

    flags: tuple[str, ...]
    dest: str
    """The field of `MagicOptions` that it fills."""
    kind: Kind = "text"
    metavar: str = ""
    help: str = ""
    low: float | None = None
    """Smallest value allowed."""
    high: float | None = None
    repeatable: bool = False
    default: str | None = None
    """What the option without its value stands for; None when the value must be there."""


OPTIONS: tuple[Option, ...] = (
    Option(("-m", "--model"), "model", metavar="PROVIDER:MODEL", help="the model to ask"),
    Option(
        ("--base-url",),
        "base_url",
        metavar="URL",
        help="the server to ask, instead of the provider's own",
    ),
    Option(("--system",), "system", metavar="TEXT", help="the system prompt"),
    Option(
        ("-t", "--tools"),
        "tools",
        "tools",
        "A,B | none | all",
        "the tools the model may use (default: the notebook's own)",
    ),
    Option(
        ("--tool-choice",),
        "tool_choice",
        metavar="auto | none | required | TOOL",
        help="whether the first answer must use a tool",
    ),
    Option(("--max-turns",), "max_turns", "int", "N", "pause after so many turns", low=1),
    Option(("--temperature",), "temperature", "float", "0–2", "sampling temperature", 0, 2),
    Option(("--top-p",), "top_p", "float", "0–1", "nucleus sampling", 0, 1),
    Option(("--max-tokens",), "max_tokens", "int", "N", "most tokens of one answer", low=1),
    Option(
        ("--stop-seq",),
        "stop_sequences",
        metavar="TEXT",
        help="end the answer before this text",
        repeatable=True,
    ),
    Option(("--timeout",), "timeout_s", "seconds", "SECONDS", "longest time for one request"),
    Option(
        ("--session",),
        "session",
        metavar="NAME",
        help="the run's session; with --continue: go on with its last run",
    ),
    Option(
        ("-c", "--continue"),
        "continue_run",
        "run",
        "[RUN]",
        "go on with a run: its name or id; the last one without",
        default="last",
    ),
    Option(("--into",), "into", "name", "NAME", "put the run into this variable"),
    Option(("--name",), "name", metavar="TEXT", help="a name for the run"),
    Option(("--tag",), "tags", metavar="TEXT", help="a tag for the run", repeatable=True),
    Option(("--raw",), "raw", "flag", help="print the text of the answer, and no view"),
    Option(("--no-stream",), "no_stream", "flag", help="ask for the answer in one piece"),
    Option(("--quiet",), "quiet", "flag", help="show nothing but errors"),
    Option(("-h", "--help"), "help", "flag", help="show this"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MagicOptions:
    """What stood on the line of `%%agent`. None = not given."""

    model: str | None = None
    base_url: str | None = None
    system: str | None = None
    tools: tuple[str, ...] | Literal["none", "all"] | None = None
    tool_choice: str | None = None
    max_turns: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop_sequences: tuple[str, ...] | None = None
    timeout_s: float | None = None
    session: str | None = None
    continue_run: str | None = None
    """`last` when `--continue` had no value."""
    into: str | None = None
    name: str | None = None
    tags: tuple[str, ...] | None = None
    raw: bool | None = None
    no_stream: bool | None = None
    quiet: bool | None = None
    help: bool | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `%agent`."""

    name: str
    argument: str
    help: str


COMMANDS: tuple[Command, ...] = (
    Command("tools", "", "the tools that a model would be given here"),
    Command("models", "[PROVIDER]", "the models that can be asked"),
    Command("show", "RUN", "show a run again: its name, the start of its id, or last"),
    Command("resume", "[RUN]", "go on with a run that stopped, failed or paused"),
    Command("stop", "", "stop the run that is at work"),
    Command("config", "[NAME=VALUE …]", "see or set defaults for this notebook"),
    Command("doctor", "", "what was found: versions, kernel, keys, store"),
    Command("help", "", "the options and commands"),
)


def parse(line: str) -> MagicOptions:
    """Read the line of `%%agent`.

    Raises:
        UsageError: the line cannot be read as written; the message names the option and the value.
    """
    words = _split(line)
    found: dict[str, Any] = {}
    position = 0
    option: Option | None = None
    while position < len(words):
        word = words[position]
        if not _is_option(word):
            raise UsageError(_stray(word, words[position - 1], option))
        position += 1
        flag, equals, attached = word.partition("=")
        option = _BY_FLAG.get(flag)
        if option is None:
            raise UsageError(_unknown_option(flag))
        if option.dest in found and not option.repeatable:
            raise UsageError(f"{flag} stands on the line twice; keep one of them.")
        value, taken = _value(option, flag, attached if equals else None, words[position:])
        position += taken
        if option.repeatable:
            found[option.dest] = (*found.get(option.dest, ()), value)
        else:
            found[option.dest] = value
    return MagicOptions(**found)


def split_command(line: str) -> tuple[str, str]:
    """Split the line of `%agent` into the command's name and the rest, as typed.

    An empty line and `-h` are `help`.

    Raises:
        UsageError: there is no such command; the message names the nearest one.
    """
    word, _, rest = line.strip().partition(" ")
    if word in ("", "-h", "--help"):
        return "help", rest.strip()
    names = [command.name for command in COMMANDS]
    if word in names:
        return word, rest.strip()
    if word.startswith("-"):
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


def help_text() -> str:
    """The options and commands with examples, as plain text."""
    options = [(_usage(option), option.help) for option in OPTIONS]
    commands = [(f"{c.name} {c.argument}".rstrip(), c.help) for c in COMMANDS]
    return "\n".join(
        [
            "%%agent [options]          ask a model; the prompt stands on the next lines",
            "",
            *_table(options),
            "",
            "In the prompt, {{ expression }} is evaluated in the notebook; for two literal braces",
            "write {{ '{{' }}. Quote values with spaces: --system 'Be brief.' A backslash outside",
            r"quotes hides the next character, so quote Windows paths: --system 'C:\notes'.",
            "A value that starts with a dash is attached: --system=-x",
            "",
            "%agent COMMAND",
            "",
            *_table(commands),
            "",
            "Examples",
            "  %%agent --model offline:demo --tools population --into first",
            "  %%agent --continue --max-turns 5",
            "  %%agent -m openai:gpt-5.4 --base-url http://localhost:8000/v1 --temperature 0",
            "  %agent show last",
        ]
    )


_BY_FLAG = {flag: option for option in OPTIONS for flag in option.flags}
_LOOKS_LIKE_OPTION = re.compile(r"--?[A-Za-z]\S*\Z")
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2212"


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        if "quotation" in str(error):
            quote = _open_quote(line)
            raise UsageError(
                f"the quote {quote} is not closed in {line.strip()!r}; close it, or for an"
                " apostrophe put the whole value in double quotes."
            ) from error
        raise UsageError(
            f"the line {line.strip()!r} ends in a backslash; remove it, or put the value in quotes."
        ) from error


def _open_quote(line: str) -> str:
    """The quote that shlex found open: a line is whole again once that one is added."""
    for quote in "'\"":
        try:
            shlex.split(line + quote)
        except ValueError:
            continue
        return quote
    return "'"


def _is_option(word: str) -> bool:
    return word.startswith("-") and bool(_LOOKS_LIKE_OPTION.match(word.partition("=")[0]))


def _value(
    option: Option, flag: str, attached: str | None, following: list[str]
) -> tuple[Any, int]:
    """The value of an option, and how many of the following words it took."""
    if option.kind == "flag":
        if attached is not None:
            raise UsageError(f"{flag} takes no value, but was given {attached!r}; remove it.")
        return True, 0
    if attached is not None:
        return _converted(option, flag, attached), 0
    optional = option.default is not None
    if following and not (following[0].startswith("-") if optional else _is_option(following[0])):
        return _converted(option, flag, following[0]), 1
    if option.default is not None:
        return option.default, 0
    hint = f"; attach a value that starts with a dash: {flag}={following[0]}" if following else ""
    raise UsageError(f"{flag} needs a value: {flag} {option.metavar}{hint}.")


def _converted(option: Option, flag: str, text: str) -> Any:
    if not text.strip() and option.kind != "text":
        raise UsageError(f"{flag} needs a value, {text!r} is empty; write {flag} {option.metavar}.")
    return _CONVERT[option.kind](option, flag, text)


def _text(option: Option, flag: str, text: str) -> str:
    # An empty system prompt means something; an empty model, name or stop sequence does not.
    if not text and option.dest != "system":
        raise UsageError(f"{flag} needs a value, '' is empty; write {flag} {option.metavar}.")
    return text


def _run(option: Option, flag: str, text: str) -> str:
    return text


def _int(option: Option, flag: str, text: str) -> int:
    wanted = f"a whole number, {_range(option)}"
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise UsageError(f"{flag} is {text!r}, expected {wanted}.")
    # More digits than any limit needs; int() itself refuses thousands of them.
    value = int(text) if len(text) < 100 else -1
    _check_range(option, flag, text, value, wanted)
    return value


def _float(option: Option, flag: str, text: str) -> float:
    wanted = f"a number, {_range(option)}"
    value = _number(text)
    if value is None:
        raise UsageError(f"{flag} is {text!r}, expected {wanted}.")
    _check_range(option, flag, text, value, wanted)
    return value


def _seconds(option: Option, flag: str, text: str) -> float:
    value = _number(text)
    if value is None or value <= 0:
        raise UsageError(f"{flag} is {text!r}, expected seconds as a number greater than 0.")
    return value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None


def _range(option: Option) -> str:
    if option.high is None:
        return f"{option.low:g} or more"
    return f"from {option.low:g} to {option.high:g}"


def _check_range(option: Option, flag: str, text: str, value: float, wanted: str) -> None:
    too_low = option.low is not None and value < option.low
    if too_low or (option.high is not None and value > option.high):
        raise UsageError(f"{flag} is {text!r}, expected {wanted}.")


def _name(option: Option, flag: str, text: str) -> str:
    if not text.isidentifier() or iskeyword(text):
        raise UsageError(
            f"{flag} is {text!r}, expected the name of a variable: letters, digits and _."
        )
    return text


def _tools(option: Option, flag: str, text: str) -> tuple[str, ...] | Literal["none", "all"]:
    names = tuple(dict.fromkeys(re.findall(r"[^\s,]+", text)))
    if not names:
        raise UsageError(f"{flag} is {text!r}, expected names as in {flag} a,b or none or all.")
    if names == ("none",):
        return "none"
    if names == ("all",):
        return "all"
    if alone := {"none", "all"} & set(names):
        raise UsageError(
            f"{flag} is {text!r}: {sorted(alone)[0]!r} stands alone; give it or a list of names."
        )
    return names


_CONVERT: dict[Kind, Callable[[Option, str, str], Any]] = {
    "text": _text,
    "tools": _tools,
    "int": _int,
    "float": _float,
    "seconds": _seconds,
    "name": _name,
    "run": _run,
}


def _stray(word: str, before: str, option: Option | None) -> str:
    if word[0] in _DASHES:
        return f"{word!r} begins with a typographic dash; type it with '-'."
    if option is not None and option.kind == "tools":
        return (
            f"{word!r} stands alone after the list of tools; the list is one word without spaces:"
            f" --tools {before.rstrip(',')},{word.lstrip(',')} (or in quotes)."
        )
    return (
        f"unexpected word {word!r}; only options stand on the line of %%agent:"
        " write the prompt on the next line. A value with spaces needs quotes."
    )


def _unknown_option(flag: str) -> str:
    short = flag[:2]
    if not flag.startswith("--") and short in _BY_FLAG and len(flag) > 2:
        return (
            f"unknown option {flag!r}; the nearest is {short!r}."
            f" Its value stands apart: {short} {flag[2:]}"
        )
    return (
        f"unknown option {flag!r}; the nearest is {_nearest(flag, list(_BY_FLAG))!r}."
        " All of them: %agent help"
    )


def _nearest(word: str, known: list[str]) -> str:
    return get_close_matches(word.replace("_", "-"), known, 1, 0.0)[0]


def _usage(option: Option) -> str:
    return f"{', '.join(option.flags)} {option.metavar}".rstrip()


def _table(rows: list[tuple[str, str]]) -> Iterator[str]:
    width = min(max(len(left) for left, _ in rows), 24)
    for left, right in rows:
        if len(left) > width:
            yield f"  {left}"
            left = ""
        yield f"  {left:<{width}}  {right}"
