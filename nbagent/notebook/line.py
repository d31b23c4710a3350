"""The line of `%%agent` and of `%agent`: its words, options and commands.

The options of a run are rows of `settings.table`, which also checks their values; those of a cell
alone and the commands are declared here. Nothing is looked up or started. Their help is in `help`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.contracts.policy import ToolPolicy
from nbagent.settings import types
from nbagent.settings.options import Option, RunOptions, Settings, Switch, refuse_key


def _each(check: Callable[[Any], str]) -> Callable[[Any], tuple[str, ...]]:
    """A check for an option that may stand several times."""
    return lambda given: tuple(map(check, given))


def _max_failed(value: Any) -> int | float:
    with suppress(ValueError):
        number = float(value)
        if 0 < number < 1:
            return number
        if number >= 0 and number == int(value):
            return int(value)
    raise ValueError("a number of cases, or a share of them such as 0.2")


class Line(RunOptions):
    """What stood on the line of `%%agent` or behind a command of `%agent`. None = not given."""

    __slots__ = ()

    ask = Settings.ask
    deny = Settings.deny
    continue_run = Option[str | None](
        "-c, --continue [RUN]",
        "continue a run: a variable, its name or id; without one, the last run",
        types.text,
        bare="last",
    )
    fork = Option[str | None](
        "--fork RUN:TURN",
        "ask a turn of a run again, with this prompt: last:C03",
        types.matching(r".+:C\d{2,}", "a run and its turn, such as last:C03"),
    )
    into = Option[str | None]("--into NAME", "put the run into this variable", types.variable_name)
    to = Option[str | None](
        "--to cell", "put the code of the answer into a new cell below", words=("cell",)
    )
    over = Option[str | None](
        "--over NAME",
        "ask for each row of this DataFrame; {{ column }} is of the row",
        types.variable_name,
    )
    vary = Option[tuple[str, ...]](
        "--vary AXIS=A,B",
        "with --over: try each for each row: model=a,b or system=V1,V2",
        _each(types.matching(r"[a-z]\w*=.*\S.*", "an option and its values: model=a,b")),
        (),
        many=True,
    )
    repeat = Option[int | None](
        "--repeat N", "with --over: ask each case so often", types.number(1, 1_000, whole=True)
    )
    row_key = Option[str | None](
        "--row-key COLUMN",
        "with --over: the column that names a row (default: the index)",
        types.text,
    )
    score = Option[tuple[str, ...]](
        "--score NAME",
        "with --over: score each answer by this function",
        _each(types.variable_name),
        (),
        many=True,
    )
    concurrency = Option[int | None](
        "--concurrency N",
        "with --over: most runs at a time (default: 16)",
        types.number(1, 1_000, whole=True),
    )
    max_failed = Option[float | None](
        "--max-failed N | SHARE", "with --over: stop when so many cases failed", _max_failed
    )
    dry_run = Switch("--dry-run", "show what would be sent, and send nothing")
    help = Switch("-h, --help", "show this")
    with_history = Switch("--with-history", "with a DOCUMENT.md: continue its conversation, too")
    after_turn = Switch("--after-turn", "pause when the present turn has ended")
    children = Switch("--children", "also delete the runs that continue it")

    def run_options(self) -> RunOptions:
        """What is for the run."""
        known = RunOptions.rows()
        given = {name: value for name, value in self.given.items() if name in known}
        if self.ask or self.deny:
            given["policy"] = ToolPolicy(ask=self.ask or (), deny=self.deny or ())
        return RunOptions(**given)


OF_BATCHES = ("vary", "repeat", "row_key", "score", "concurrency", "max_failed")
"""What means something only beside `--over`."""
OPTIONS: tuple[Option[Any], ...] = tuple(row for row in Line.rows().values() if row.usage)
"""What can stand on a line."""
BY_FLAG = {flag: option for option in OPTIONS for flag in option.flags}


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `%agent`."""

    usage: str
    """Its name and what follows it, in brackets where it may be left out. A word in capitals stands
    for names, one in small letters for itself; lines are checked and completed by that."""
    about: str
    """Its help, of which the list of commands has the first sentence."""
    examples: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """The options that it takes behind its words, by their names."""
    takes_text: bool = False
    """Whether what follows is one text, as it is typed."""

    @property
    def name(self) -> str:
        """The first word."""
        return self.usage.split()[0]

    @property
    def words(self) -> list[str]:
        """What can follow it as it is."""
        return [word for word in re.findall(r"\[([a-z]+)\]", self.usage) if word != "options"]


_OF_CELLS = ("session", "continue_run", "fork", "help", "over", *OF_BATCHES)
_OF_COMMANDS = ("with_history", "after_turn", "children")
_RUN_OPTIONS = tuple(o.name for o in OPTIONS if o.name not in (*_OF_CELLS, *_OF_COMMANDS))

_COMMANDS = (
    Command(
        "tools [NAMES] [options]",
        "the tools that a model is given, and what happens at a call. NAMES as after --tools; "
        "without them, what a cell without --tools gives. Rules come from %agent config (allow=, "
        "ask=, deny=) and from --ask and --deny.",
        ("%agent tools fs,skills", "%agent config allow='fs.write(path=@project/out/*)'"),
        ("mounts", "skills", "ask", "deny"),
    ),
    Command(
        "approvals [clear]",
        "the calls that were allowed for the session. clear revokes all of them; what is allowed "
        "ends with the kernel.",
    ),
    Command(
        "models [PROVIDER] [options]",
        "the models that can be asked. Asks the servers; what they list is completed after --model "
        "from then on.",
        ("%agent models openai", "%agent models vllm --base-url http://localhost:9000/v1"),
        ("base_url", "key_variable", "timeout_s"),
    ),
    Command(
        "pull [FILE]",
        "download a model file for local:, from the Hugging Face hub. FILE is "
        "OWNER/REPO/NAME.gguf; without it, three small models are named. Needs pip install "
        "'nbagent[local]'. HF_ENDPOINT, HF_HOME and HF_TOKEN of the environment are obeyed.",
        ("%agent pull ibm-granite/granite-4.1-3b-GGUF/granite-4.1-3b-Q4_K_M.gguf",),
    ),
    Command(
        "runs [N]",
        "the last runs: id, name, time, state, model, prompt. 10 without a number; nbagent.runs() "
        "gives all of them as a DataFrame.",
    ),
    Command(
        "history [TEXT]",
        "the runs in a table with cost and time, to sort, filter and open. TEXT searches prompts, "
        "answers and results.",
        ("%agent history population",),
        takes_text=True,
    ),
    Command(
        "tree [SESSION]",
        "the runs of a session as a tree: which goes on from which. Without a name the session of "
        "the last run.",
    ),
    Command("show [RUN]", "show a run again: a variable, its name, its id's start, or last"),
    Command(
        "compare RUN RUN …",
        "what is the same and what differs in two or more runs. A name with spaces stands in "
        "quotes; nbagent.compare(a, b) gives the same as a value.",
        ("%agent compare first last",),
    ),
    Command(
        "resume [RUN | DOCUMENT.md]",
        "continue a run that paused or failed, or a workflow's document. The options of the run "
        "still hold, unless the line has others. To add words, write %%agent --continue with the "
        "words on the next lines. A document continues without the conversation before, on any "
        "machine that has the package.",
        (
            "%agent resume last --max-turns 40 --trim tool-results",
            "%agent resume .nbagent/state/3fa81c0299b1d0e4/workflow.md",
        ),
        (*_RUN_OPTIONS, "with_history"),
    ),
    Command(
        "fork RUN TURN",
        "ask a turn again with other options; the turns before it are kept. To ask it with another "
        "prompt, write %%agent --fork RUN:TURN with the prompt on the next lines. run.fork() can "
        "also change results and leave messages out.",
        ("%agent fork last C03 --model openai:gpt-5.4",),
        _RUN_OPTIONS,
    ),
    Command(
        "retry RUN [N]",
        "ask the last turn again, N times side by side, and list the answers. Calls of an answer "
        "run when you resume its run. A name with spaces stands in quotes.",
        ("%agent retry last 3",),
    ),
    Command(
        "export RUN FORMAT [FILE]",
        "a run as a file: md, html, jsonl, openai, cell or otel. Without FILE the text is printed; "
        "a FILE that exists is replaced. A name with spaces stands in quotes.",
        ("%agent export last html run.html", "%agent export first md"),
    ),
    Command(
        "workflow [PACKAGE]",
        "a package: its agents, its steps, and the path of its last run. PACKAGE is a folder with "
        "workflow.md or SKILL.md, or a zip of one (.bmad); what is wrong with it is listed with "
        "file and line. A path that ends in .md is the document of a workflow that is running. "
        "Without PACKAGE, the packages of this folder are listed.",
        ("%agent workflow story-flow", "%agent workflow .nbagent/state/3fa81c02/workflow.md"),
    ),
    Command("stop [--after-turn]", "stop the running run or batch.", options=("after_turn",)),
    Command(
        "config [NAME=VALUE …]",
        "show or set defaults for this notebook. NAME= takes a value back. Options on the line of "
        "%%agent win over these.",
        ("%agent config model=offline:demo max_turns=5", "%agent config system='Be brief.'"),
    ),
    Command("panel", "a panel below this cell, to chat without writing cells"),
    Command(
        "forget RUN [--children]",
        "delete a run and its texts from the store and the open page. What a notebook has saved "
        "stays in it until the output of the cell is cleared.",
        ("%agent forget last --children",),
        ("children",),
    ),
    Command(
        "doctor [compact]",
        "what was found: versions, kernel, keys, store. compact frees the space that deleted runs "
        "have left in the store.",
    ),
    Command(
        "help [COMMAND]",
        "the options and commands. Also for one option: %agent help --tools",
        takes_text=True,
    ),
)
COMMANDS = {command.name: command for command in _COMMANDS}


def options_of(command: Command | None) -> list[Option[Any]]:
    """The options that a command takes; of None, the line of `%%agent`."""
    if command is None:
        return [option for option in OPTIONS if option.name not in _OF_COMMANDS]
    return [option for option in OPTIONS if option.name in command.options]


# Words

QUOTES = "'\""
CURLY = "\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u00ab\u00bb"
_TYPOGRAPHIC = re.compile(f"[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]|(?:[^='\"]*=)?[{CURLY}]")
"""What word processors and chats put in the place of a dash before an option, or of a quote."""
_OPTION = re.compile(r"--?[A-Za-z][^\s=]*(?==|\Z)")


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a line, split as a shell would."""

    text: str
    """Without its quotes and backslashes."""
    start: int
    end: int
    """Where it stands in the line."""
    problem: str = ""
    """Why it is not whole: an open quote, a backslash that hides a letter or nothing."""


_PIECE = re.compile(r"""(['"])((?:(?!\1)(?:\\["\\]|.))*)(\1?)|\\(.?)|[^\s'"\\]+""", re.DOTALL)
"""A quote with what is inside and its end, a backslash with what it hides, or plain text."""


def words_of(line: str) -> list[Word]:
    """The words of a line. Never raises: an unfinished word is the last one, and says so."""
    found: list[Word] = []
    for piece in _PIECE.finditer(line):
        quote, inside, closing, hidden = piece.groups()
        text, problem = piece[0], ""
        if quote:
            text = re.sub(r'\\(["\\])', r"\1", inside) if quote == '"' else inside
            said = f"has an open quote {quote}; close it, or put an apostrophe in double quotes"
            problem = "" if closing else said
        elif hidden is not None:
            text = hidden
            said = "has a backslash; put a value with backslashes in single quotes"
            problem = said if not hidden or hidden.isalnum() else ""
        start = piece.start()
        if found and found[-1].end == start:
            before = found.pop()
            text, start, problem = before.text + text, before.start, problem or before.problem
        found.append(Word(text, start, piece.end(), problem))
    return found


# Lines


def parse(line: str) -> Line:
    """Read the line of `%%agent`.

    Raises:
        UsageError: the line cannot be read as written; the message names the option and the value.
    """
    _refuse_keys(line)
    if re.match(r"\s*[\w'\"]", line):  # first: a prompt on this line may have an apostrophe
        raise UsageError(_unexpected(line.split()[0]))
    words, options = _read(line, None)
    if words:
        raise UsageError(_unexpected(words[0]))
    return options


def continued(line: str, cell: str) -> tuple[str, str]:
    """The line of `%%agent` and the prompt, where a backslash lets the options go on below."""
    while line.endswith("\\") and not line.endswith("\\\\") and cell.strip():
        following, _, cell = cell.partition("\n")
        line = f"{line[:-1]} {following.rstrip()}"
    return line, cell


def parse_command(line: str) -> tuple[str, list[str], Line]:
    """Read a line of `%agent`: the command, its words, its options. No command: it is a question.

    An empty line and `-h` are `help`.

    Raises:
        UsageError: there is no such command (the message names the nearest one), or it does not
            take what follows.
    """
    _refuse_keys(line)
    word, rest = (part.strip() for part in [*line.strip().split(maxsplit=1), "", ""][:2])
    asks_help = not rest if word.endswith("?") else word != "help" and rest in Line.help.flags
    if asks_help and word.rstrip("?") in COMMANDS:
        word, rest = "help", word.rstrip("?")
    elif word in ("", *Line.help.flags):
        word = "help"
    if word not in COMMANDS:
        return "", [_question(line, word, rest)], Line()
    command = COMMANDS[word]
    if command.takes_text:
        return word, [rest], Line()
    words, options = _read(rest, command)
    takes = command.usage.partition(" ")[2]
    needed = re.findall("[A-Z]+", re.sub(r"\[.*\]", "", takes))
    if len(words) < len(needed):
        raise UsageError(f"%agent {word} needs {takes}, such as: {command.examples[0]}")
    if words and not re.search("[A-Z]", takes) and words not in ([one] for one in command.words):
        raise UsageError(f"%agent {word} takes {takes or 'nothing'}; remove {words[-1]!r}")
    return word, words, options


def _question(line: str, word: str, rest: str) -> str:
    """The line, which begins with no command, if it is a sentence."""
    near = get_close_matches(word.lower(), COMMANDS, 1)
    ends = line.strip().endswith(("?", "!", ".", "…", "？", "！", "。"))
    is_sentence = (ends and bool(rest or not word.isascii())) or (not near and " " in rest)
    if is_sentence and not word.startswith("-"):
        return line.strip()
    nearest = f"; the nearest is {near[0]!r}" if near else ""
    raise UsageError(
        f"%agent has no command {word!r}{nearest} (all: {', '.join(COMMANDS)}). To ask a model, "
        "write a sentence, or %%agent with its options and the prompt on the next line."
    )


def _whole_words(line: str) -> list[str]:
    """The words of a line without their quotes. Raises UsageError for one that is not whole."""
    _refuse_keys(line)
    words = words_of(line)
    for word in words:
        typed = line[word.start : word.end]
        if word.problem:
            raise UsageError(f"{typed!r} {word.problem}.")
        if _TYPOGRAPHIC.match(typed):
            raise UsageError(f"{typed!r} has a typographic quote or dash; type ' or \" or --.")
    return [word.text for word in words]


def _refuse_keys(line: str) -> None:
    """First, as what is said later shows the words."""
    for word in words_of(line):
        name, equals, _ = line[word.start : word.end].partition("=")
        if (equals or name.startswith("-")) and name not in BY_FLAG:
            refuse_key(name)


def _read(line: str, command: Command | None) -> tuple[list[str], Line]:
    """The words before the first option, and the options."""
    words = _whole_words(line)
    first = next((i for i, word in enumerate(words) if _OPTION.match(word)), len(words))
    rest = deque(words[first:])
    found: dict[str, Any] = {}
    while rest:
        word = rest.popleft()
        if not (match := _OPTION.match(word)):
            raise UsageError(_unexpected(word))
        flag, equals, attached = word.partition("=")
        option = _option(match[0], command)
        if option.name in found and not option.many:
            raise UsageError(f"{flag} stands on the line twice; keep one of them.")
        value = _value(option, flag, attached if equals else None, rest)
        found[option.name] = (*found.get(option.name, ()), *value) if option.many else value
    return words[:first], Line(**found)


def _option(flag: str, command: Command | None) -> Option[Any]:
    option = BY_FLAG.get(flag)
    known = [option.flags[-1] for option in options_of(command)]
    if option is not None and option.flags[-1] in known:
        return option
    if option is None:
        refuse_key(flag)
    if command is not None and (option is not None or not known):
        takes = f"it takes {', '.join(known)}" if known else "it takes no options"
        raise UsageError(f"%agent {command.name} does not take {flag}; {takes}.")
    near = get_close_matches(flag.replace("_", "-"), known, 1, 0.0)[0]
    raise UsageError(f"unknown option {flag!r}; the nearest is {near!r}. All of them: %agent help")


def _value(option: Option[Any], flag: str, text: str | None, rest: deque[str]) -> Any:
    """The checked value of an option: attached to it, or the first word of the rest."""
    if not option.metavar and text is not None:
        raise UsageError(f"{flag} takes no value, but was given {text!r}; remove it.")
    if text is None and option.metavar and rest:
        # Where the value may be left out, a dash always begins the next option.
        is_next = rest[0].startswith("-") if option.bare else _OPTION.match(rest[0])
        text = None if is_next else rest.popleft()
    if text is None and option.bare is not None:
        return option.bare
    if text is None:
        hint = f", or {flag}={rest[0]} for a value with a dash" if rest else ""
        raise UsageError(f"{flag} needs a value: {flag} {option.metavar}{hint}.")
    return option.checked((text,) if option.many else text, flag)


def _unexpected(word: str) -> str:
    return (
        f"unexpected word {word!r}; the prompt stands on the next lines, a value with spaces or a "
        "list needs quotes: --tools 'a, b'."
    )
