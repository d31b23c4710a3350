"""Parser for the line of `%%agent` and `%agent`: words, options and commands.

The options of a run are rows of `settings.options`, which also checks their values. Options of
cells and the commands are declared here. Looks up and starts nothing; `help` prints the help.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.contracts.nearest import nearest_hint, nearest_or_all
from nbagent.contracts.policy import ToolPolicy
from nbagent.export.formats import FORMATS
from nbagent.settings import types
from nbagent.settings.options import BatchOptions, Option, RunOptions, Settings, Switch, reject_key


def _each(check: Callable[[Any], str]) -> Callable[[Any], tuple[str, ...]]:
    """Return the check of a repeatable option."""
    return lambda given: tuple(map(check, given))


class Line(RunOptions):
    """Options on the line of `%%agent` or after a command of `%agent`. None = not on the line."""

    __slots__ = ()

    ask = Settings.ask
    deny = Settings.deny
    continue_run = Option[str | None](
        "-c, --continue [RUN]",
        "continue a run: a variable, its name or id; without one, the last run",
        types.text,
        flag_value="last",
    )
    fork = Option[str | None](
        "--fork RUN:TURN",
        "ask a turn again with this prompt, such as last:C03",
        types.matching(r".+:[cC]?[0-9]+", "a run and its turn, such as last:C03"),
    )
    into = Option[str | None]("--into NAME", "put the run into this variable", types.variable_name)
    to = Option[str | None](
        "--to cell", "put the code of the answer into a new cell below", choices=("cell",)
    )
    over = Option[str | None](
        "--over NAME",
        "run the prompt for each row of a DataFrame; {{ column }} is its value",
        types.variable_name,
    )
    executor = Option[str | None](
        "--executor provider-batch",
        "with --over: ask all rows by the provider's batch API: half the price",
        choices=("provider-batch",),
    )
    vary = Option[tuple[str, ...]](
        "--vary AXIS=A,B",
        "with --over: run each row with each value: model=a,b or system=V1,V2",
        _each(types.matching(r"[a-z]\w*=.*\S.*", "an option and its values: model=a,b")),
        (),
        repeatable=True,
    )
    repeat = BatchOptions.repeat
    row_key = Option[str | None](
        "--row-key COLUMN",
        "with --over: column of unique row ids (default: the index)",
        types.text,
    )
    score = Option[tuple[str, ...]](
        "--score NAME",
        "with --over: score each answer with this function",
        _each(types.variable_name),
        (),
        repeatable=True,
    )
    concurrency = BatchOptions.concurrency
    max_failed = BatchOptions.max_failed
    dry_run = Switch("--dry-run", "show the request without sending it")
    help = Switch("-h, --help", "show this help")
    with_history = Switch("--with-history", "with a DOCUMENT.md: continue its conversation too")
    after_turn = Switch("--after-turn", "pause after the current turn")
    children = Switch("--children", "also delete the runs that continue it")
    revoke = Switch("--revoke", "take back what you allowed in this folder")
    drop_backup = Switch("--drop-backup", "delete the backup of a store that was migrated")

    def run_options(self) -> RunOptions:
        """Return the options of the run, without those of the cell."""
        known = RunOptions.rows()
        values = {name: value for name, value in self.explicit.items() if name in known}
        if self.ask or self.deny:
            values["policy"] = ToolPolicy(ask=self.ask or (), deny=self.deny or ())
        return RunOptions(**values)


BATCH_OPTIONS = ("vary", "repeat", "row_key", "score", "concurrency", "max_failed", "executor")
"""Options that need `--over`."""
OPTIONS: tuple[Option[Any], ...] = tuple(row for row in Line.rows().values() if row.usage)
"""All options of lines."""
OPTION_BY_FLAG = {flag: option for option in OPTIONS for flag in option.flags}


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `%agent`."""

    usage: str
    """Its name and arguments; optional ones are in brackets. A word in capitals stands for a value,
    one in small letters for itself. Lines are checked and completed by it."""
    about: str
    """Its help. The list of commands shows the first sentence."""
    examples: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Names of the options that it takes after its arguments."""
    takes_text: bool = False
    """True if the rest of the line is one text, taken unchanged."""

    @property
    def name(self) -> str:
        """The first word of the usage."""
        return self.usage.split()[0]

    @property
    def subcommands(self) -> list[str]:
        """Words that can follow it literally."""
        return [word for word in re.findall(r"\[([a-z]+)\]", self.usage) if word != "options"]


_CELL_OPTIONS = ("session", "continue_run", "fork", "help", "over", *BATCH_OPTIONS)
_COMMAND_OPTIONS = ("with_history", "after_turn", "children", "revoke", "drop_backup")
_RUN_OPTIONS = tuple(o.name for o in OPTIONS if o.name not in (*_CELL_OPTIONS, *_COMMAND_OPTIONS))

_COMMANDS = (
    Command(
        "tools [NAMES] [options]",
        "the tools that a model gets, and whether their calls are allowed. NAMES has the form of "
        "--tools; without NAMES, the tools of a cell without --tools are listed. Rules come from "
        "%agent config (allow=, ask=, deny=) and from --ask and --deny.",
        ("%agent tools fs,skills", "%agent config allow='fs.write(path=@project/out/*)'"),
        ("mounts", "skills", "ask", "deny"),
    ),
    Command(
        "approvals [clear]",
        "the calls that are allowed for the session. clear revokes all of them. Approvals end with "
        "the kernel.",
    ),
    Command(
        "models [PROVIDER] [options]",
        "the models that you can use. Asks the servers; Tab after --model then completes their "
        "models.",
        ("%agent models openai", "%agent models vllm --base-url http://localhost:9000/v1"),
        ("base_url", "key_variable", "timeout_s"),
    ),
    Command(
        "pull [FILE]",
        "download a model file for local:, from the Hugging Face hub. FILE is "
        "OWNER/REPO/NAME.gguf; without it, three small models are suggested. Needs %pip install "
        "huggingface_hub xllamacpp. Uses HF_ENDPOINT, HF_HOME and HF_TOKEN of the environment.",
        ("%agent pull ibm-granite/granite-4.1-3b-GGUF/granite-4.1-3b-Q4_K_M.gguf",),
    ),
    Command(
        "runs [N]",
        "the last runs: id, name, time, state, model, prompt. Without a number the last 10; "
        "nbagent.runs() returns all of them as a DataFrame.",
    ),
    Command(
        "history [TEXT]",
        "a table of runs with cost and time, to sort, filter and open. TEXT searches prompts, "
        "answers and results.",
        ("%agent history population",),
        takes_text=True,
    ),
    Command(
        "tree [SESSION | all]",
        "the runs of a session as a tree: which run continues which. Without a name, the runs of "
        "this notebook in the session of the last run; all adds those of other notebooks.",
    ),
    Command("show [RUN]", "show a run again: a variable, its name, the start of its id, or last"),
    Command(
        "compare RUN RUN …",
        "compare two or more runs turn by turn. A name with spaces needs quotes; "
        "nbagent.compare(a, b) returns the comparison as a value.",
        ("%agent compare first last",),
    ),
    Command(
        "resume [RUN | DOCUMENT.md]",
        "continue a run that paused or failed, or a workflow's document. An answered run stays as "
        "it is, so the line may stay in the notebook. The run keeps its options "
        "unless the line changes them. To continue with a new prompt, use %%agent --continue. A "
        "document continues without its earlier conversation, on any machine that has the package.",
        (
            "%agent resume last --max-turns 40 --trim tool-results",
            "%agent resume .nbagent/state/3fa81c0299b1d0e4/workflow.md",
        ),
        (*_RUN_OPTIONS, "with_history"),
    ),
    Command(
        "fork RUN TURN",
        "ask a turn again with other options; earlier turns are kept. To ask it with another "
        "prompt, write %%agent --fork RUN:TURN with the prompt on the next lines. run.fork() can "
        "also edit results and remove messages.",
        ("%agent fork last C03 --model openai:gpt-5.4",),
        _RUN_OPTIONS,
    ),
    Command(
        "retry RUN [N]",
        "ask the last turn again, N times in parallel, and list the answers. The tool calls of an "
        "answer run when you resume its run. A name with spaces needs quotes.",
        ("%agent retry last 3",),
    ),
    Command(
        "export RUN FORMAT [FILE]",
        f"a run as a file: {', '.join(FORMATS)}. Without FILE the text is printed, and html is "
        "written to run-ID.html; an existing FILE is replaced. A name with spaces needs quotes.",
        ("%agent export last html run.html", "%agent export first md"),
    ),
    Command(
        "workflow [PACKAGE]",
        "a workflow package: agents, steps, and the steps of its last run. PACKAGE is a folder "
        "with workflow.md or SKILL.md, or a zip of one (.bmad); its problems are listed with file "
        "and line. A path that ends in .md is the document of a running workflow. Without PACKAGE, "
        "the packages of this folder are listed.",
        ("%agent workflow story-flow", "%agent workflow .nbagent/state/3fa81c02/workflow.md"),
    ),
    Command(
        "stop [--after-turn]", "stop the run or batch that is running", options=("after_turn",)
    ),
    Command(
        "config [NAME=VALUE …]",
        "show or set defaults for this kernel. NAME= resets a value. Options on the line of "
        "%%agent take precedence.",
        ("%agent config model=offline:demo max_turns=5", "%agent config system='Be brief.'"),
    ),
    Command(
        "trust [--revoke]",
        "show what this folder would decide, and ask about each part. These are a store of runs "
        "that is not yours, and what the folder's files set. Nothing of it is used before. "
        "--revoke takes back all that you allowed here; the runs stay, and can be read.",
        options=("revoke",),
    ),
    Command(
        "panel [right]",
        "open a panel below this cell, to chat without writing cells. right opens it beside the "
        "notebook in JupyterLab, where it stays while you scroll.",
        ("%agent panel right",),
    ),
    Command(
        "forget RUN [--children]",
        "delete a run and its texts from the store and the open page. A saved notebook keeps them "
        "until you clear the output of the cell.",
        ("%agent forget 3f20df96", "%agent forget last --children"),
        ("children",),
    ),
    Command(
        "doctor [compact] [--drop-backup]",
        "check the installation: versions, kernel, keys, store. compact frees the space of deleted "
        "runs in the store; --drop-backup deletes the backup that was made when a newer nbagent "
        "first opened the store.",
        options=("drop_backup",),
    ),
    Command(
        "help [TOPIC]",
        "show help. TOPIC is tools, running, batches, models, workflow or all, or the name of a "
        "command or an option: %agent help --tools",
        takes_text=True,
    ),
)
COMMANDS = {command.name: command for command in _COMMANDS}


def options_of(command: Command | None) -> list[Option[Any]]:
    """The options that a command takes; of None, the line of `%%agent`."""
    if command is None:
        return [option for option in OPTIONS if option.name not in _COMMAND_OPTIONS]
    return [option for option in OPTIONS if option.name in command.options]


# Words

QUOTES = "'\""
CURLY = "\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u00ab\u00bb"
_TYPOGRAPHIC = re.compile(f"[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]|(?:[^='\"]*=)?[{CURLY}]")
"""Typographic dashes and quotes, which word processors and chats insert."""
_OPTION = re.compile(r"--?[A-Za-z][^\s=]*(?==|\Z)")


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a line, split as in a shell."""

    text: str
    """The word without quotes and backslashes."""
    start: int
    end: int
    """Its position in the line."""
    problem: str = ""
    """Why it is not valid: an open quote, or a backslash before a letter or at the end."""


_WORD_PIECE = re.compile(r"""(['"])((?:(?!\1)(?:\\["\\]|.))*)(\1?)|\\(.?)|[^\s'"\\]+""", re.DOTALL)
"""A quoted text with its quotes, a backslash with the next character, or plain text."""


def split_words(line: str) -> list[Word]:
    """Split a line into words. Never raises: an unfinished last word has a `problem`."""
    words: list[Word] = []
    for piece in _WORD_PIECE.finditer(line):
        quote, inside, closing, hidden = piece.groups()
        text, problem = piece[0], ""
        if quote:
            text = re.sub(r'\\(["\\])', r"\1", inside) if quote == '"' else inside
            problem_text = (
                f"has an open quote {quote}; close it, or put an apostrophe in double quotes"
            )
            problem = "" if closing else problem_text
        elif hidden is not None:
            text = hidden
            problem_text = "has a backslash; put a value with backslashes in single quotes"
            problem = problem_text if not hidden or hidden.isalnum() else ""
        start = piece.start()
        if words and words[-1].end == start:
            before = words.pop()
            text, start, problem = before.text + text, before.start, problem or before.problem
        words.append(Word(text, start, piece.end(), problem))
    return words


# Lines


def parse(line: str) -> Line:
    """Read the line of `%%agent`.

    Raises:
        UsageError: the line cannot be read as written; the message names the option and the value.
    """
    _refuse_keys(line)
    if re.match(r"\s*[\w'\"]", line):  # before splitting: a prompt here may have an apostrophe
        raise UsageError(_unexpected_word_text(line.split()[0]))
    args, options = _read_words_and_options(line, None)
    if args:
        raise UsageError(_unexpected_word_text(args[0]))
    return options


def join_continued_lines(line: str, cell: str) -> tuple[str, str]:
    """Join a line that ends in a backslash with the next ones; return it and the prompt."""
    while line.endswith("\\") and not line.endswith("\\\\") and cell.strip():
        following, _, cell = cell.partition("\n")
        line = f"{line[:-1]} {following.rstrip()}"
    return line, cell


def parse_command(line: str) -> tuple[str, list[str], Line]:
    """Parse a line of `%agent`: command, arguments, options. Without a command it is a question.

    An empty line and `-h` are `help`.

    Raises:
        UsageError: there is no such command (the message names the nearest one), or its arguments
            are not valid.
    """
    _refuse_keys(line)
    word, rest = (part.strip() for part in [*line.strip().split(maxsplit=1), "", ""][:2])
    asks_help = not rest if word.endswith("?") else word != "help" and rest in Line.help.flags
    if asks_help and word.rstrip("?") in COMMANDS:
        word, rest = "help", word.rstrip("?")
    elif word in ("", *Line.help.flags):
        word = "help"
    if word in Line.template.flags and rest:
        return "", [_question(rest, *[*rest.split(maxsplit=1), ""][:2])], Line(template=False)
    if word not in COMMANDS:
        return "", [_question(line, word, rest)], Line()
    command = COMMANDS[word]
    if command.takes_text:
        return word, [rest], Line()
    args, options = _read_words_and_options(rest, command)
    takes = command.usage.partition(" ")[2]
    needed = re.findall("[A-Z]+", re.sub(r"\[.*\]", "", takes))
    if len(args) < len(needed):
        raise UsageError(f"%agent {word} needs {takes}, such as: {command.examples[0]}")
    if (
        args
        and not re.search("[A-Z]", takes)
        and args not in ([subcommand] for subcommand in command.subcommands)
    ):
        hint = nearest_hint(args[-1], command.subcommands) or f"; remove {args[-1]!r}"
        raise UsageError(f"%agent {word} takes {takes or 'nothing'}{hint}")
    return word, args, options


def _shortened(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def _example(flag: str) -> str:
    """A command that takes an option, or one that has its name."""
    option = OPTION_BY_FLAG[flag.partition("=")[0]]
    takers = (command.name for command in _COMMANDS if option.name in command.options)
    return option.name if option.name in COMMANDS else next(takers, "help")


def _question(line: str, word: str, rest: str) -> str:
    """Return a line without a command if it is a sentence; else raise UsageError."""
    # A misspelt command must not be sent to a model, so a single word is no question, except in a
    # script without spaces, such as Chinese.
    if word.partition("=")[0] in OPTION_BY_FLAG:
        raise UsageError(_option_offer(line, word))
    nearest = nearest_hint(word.lower(), COMMANDS)
    ends = line.strip().endswith(("?", "!", ".", "…", "？", "！", "。"))
    is_sentence = (ends and bool(rest or not word.isascii())) or (not nearest and " " in rest)
    if is_sentence and not word.startswith("-"):
        return line.strip()
    hint = nearest or f" (all: {', '.join(COMMANDS)})."
    hint = f". {_PYTHON_DOORS[word]}." if word in _PYTHON_DOORS else hint
    raise UsageError(
        f"%agent has no command {word!r}{hint} {_question_offer(line) if rest else _ASK_A_MODEL}"
    )


_ASK_A_MODEL = (
    "To ask a model, write a sentence, or %%agent with its options and the prompt on the next line."
)
_PYTHON_DOORS = {"review": "batch.review() reviews the answers of a batch"}
"""Words that look like commands, and the Python that does it."""
_PLAIN_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*[,;:]?[?!.]?")


def _question_offer(line: str) -> str:
    return f"To ask a model, write %%agent, and on the next line: {_shortened(line.strip(), 200)}"


def with_question_offer(error: UsageError, line: str) -> UsageError:
    """Add how to ask a model, if the line of a command that failed reads like a question.

    It does if more plain words follow the command than it takes, as in `show me the data`.
    """
    word, *words = line.split() or [""]
    if word not in COMMANDS or not all(map(_PLAIN_WORD.fullmatch, words)):
        return error
    n_taken = len(re.findall("[A-Z]+", COMMANDS[word].usage.replace("VALUE", "")))
    if len(words) <= max(1, n_taken):
        return error
    period = "" if error.message.endswith((".", "?", "!")) else "."
    message = f"{error.message}{period} {_question_offer(line)}"
    return UsageError(message, code=error.code, details=error.details)


def _option_offer(line: str, word: str) -> str:
    """Return how to write a line of `%agent` that begins with options of `%%agent`."""
    options, prompt = _split_prompt(line.strip())
    next_line = f"on the next line: {_shortened(prompt, 200)}" if prompt else "the prompt below it"
    return (
        f"{word!r} is an option of %%agent: write %%agent {_shortened(options)}, and {next_line}. "
        f"%agent takes a command first: %agent {_example(word)}"
    )


def _split_prompt(line: str) -> tuple[str, str]:
    """Split a line into the options at its start and the prompt behind them."""
    line_words = deque(split_words(line))
    end = 0
    while line_words and (match := _OPTION.match(line_words[0].text)):
        option, typed = OPTION_BY_FLAG.get(match[0]), line_words.popleft()
        end = typed.end
        takes_next = option and option.metavar and not option.flag_value and "=" not in typed.text
        if takes_next and line_words:
            end = line_words.popleft().end
    return line[:end], line[end:].strip()


def _checked_words(line: str) -> list[str]:
    """Split a line into words; raise UsageError if one is not valid."""
    _refuse_keys(line)
    line_words = split_words(line)
    for word in line_words:
        typed = line[word.start : word.end]
        if word.problem:
            raise UsageError(f"{typed!r} {word.problem}.")
        if _TYPOGRAPHIC.match(typed):
            raise UsageError(f"{typed!r} has a typographic quote or dash; type ' or \" or --.")
    return [word.text for word in line_words]


def _refuse_keys(line: str) -> None:
    """Raise UsageError for an option that is a key. Called first: later errors quote the words."""
    for word in split_words(line):
        name, equals, _ = line[word.start : word.end].partition("=")
        if (equals or name.startswith("-")) and name not in OPTION_BY_FLAG:
            reject_key(name)


def _read_words_and_options(line: str, command: Command | None) -> tuple[list[str], Line]:
    """Return the words before the first option, and the options."""
    line_words = _checked_words(line)
    first = next((i for i, word in enumerate(line_words) if _OPTION.match(word)), len(line_words))
    rest = deque(line_words[first:])
    values: dict[str, Any] = {}
    while rest:
        word = rest.popleft()
        if not (match := _OPTION.match(word)):
            raise UsageError(_unexpected_word_text(word))
        flag, equals, attached = word.partition("=")
        option = _option(match[0], command)
        if option.name in values and not option.repeatable:
            raise UsageError(f"{flag} is on the line twice; remove one of them.")
        value = _value(option, flag, attached if equals else None, rest)
        values[option.name] = (*values.get(option.name, ()), *value) if option.repeatable else value
    return line_words[:first], Line(**values)


def _option(flag: str, command: Command | None) -> Option[Any]:
    option = OPTION_BY_FLAG.get(flag)
    known = [option.flags[-1] for option in options_of(command)]
    if option is not None and option.flags[-1] in known:
        return option
    if option is None:
        reject_key(flag)  # a more useful error than the nearest name
    if command is not None and (option is not None or not known):
        hint = nearest_or_all(flag, known, "it takes") or "; it takes no options"
        raise UsageError(f"%agent {command.name} does not take {flag}{hint}.".replace("?.", "?"))
    name = flag.lstrip("-").replace("-", "_")
    if name in Settings.rows():
        raise UsageError(f"{flag!r} is a setting, not an option: use %agent config {name}=VALUE")
    nearest = nearest_hint(flag.replace("_", "-"), known)
    raise UsageError(f"unknown option {flag!r}{nearest or '.'} All of them: %agent help all")


def _value(option: Option[Any], flag: str, text: str | None, rest: deque[str]) -> Any:
    """Return the checked value of an option, attached by `=` or taken from the next word."""
    if not option.metavar and text is not None:
        raise UsageError(f"{flag} takes no value, but was given {text!r}; remove it.")
    if text is None and option.metavar and rest:
        # If the value is optional, a dash always starts the next option.
        is_next = rest[0].startswith("-") if option.flag_value else _OPTION.match(rest[0])
        text = None if is_next else rest.popleft()
    if text is None and option.flag_value is not None:
        return option.flag_value
    if text is None:
        hint = f", or {flag}={rest[0]} for a value with a dash" if rest else ""
        raise UsageError(f"{flag} needs a value: {flag} {option.metavar}{hint}.")
    return option.checked((text,) if option.repeatable else text, flag)


def _unexpected_word_text(word: str) -> str:
    return (
        f"unexpected word {word!r}; write the prompt on the next lines, and a value with spaces "
        "or a list in quotes: --tools 'a, b'."
    )
