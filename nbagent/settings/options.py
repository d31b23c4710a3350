"""The table of options. Each option is declared here once; everything else reads its row.

Readers of the table: the line of a cell, `%agent config`, completion, help, the panel, environment
variables, files, and inheritance by child runs. To add an option, add a row and use the value;
one that is sent to the model also needs a field of `ChatRequest` and a line in each wire.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Generic, Literal, Self, TypeVar, cast, overload

from nbagent.contracts.errors import UsageError
from nbagent.contracts.limits import ToolLimits
from nbagent.contracts.nearest import nearest_or_all
from nbagent.contracts.policy import Isolation, ToolPolicy
from nbagent.contracts.secrets import redact_json
from nbagent.settings import types
from nbagent.settings.types import Tools

T = TypeVar("T")
HIDDEN = "***"
"""Shown instead of a secret value."""
# Defaults of the limit options are defined once, in ToolLimits.
_LIMITS = ToolLimits()
_POSITIVE_INT = types.number(1, whole=True)
_NO_DEFAULT: Any = None
# Not `max_tokens` or `key_variable`: only names that could be meant for the key itself.
_KEY_LIKE = re.compile(
    r"(?:\w*(?:_|api))?(?:key|secret|password)s?|(?:(?:api|auth|access|bearer)_?)?token", re.I
)


@dataclass(frozen=True, eq=False)
class Option(Generic[T]):
    """One row of the table, and the descriptor that reads its value."""

    usage: str
    """Syntax on a line: `-m, --model PROVIDER:MODEL`. Empty: it cannot be written on a line."""
    help: str
    check: Callable[[Any], Any] | None = None
    """Converts a value from Python, TOML or a line; raises ValueError. None: one of `choices`."""
    default: T = _NO_DEFAULT
    """Value if no source sets one."""
    choices: tuple[str, ...] = ()
    """Values for completion."""
    flag_value: Any = None
    """Value of the flag without an argument; `usage` then has no argument, or one in brackets."""
    repeatable: bool = False
    """True if the flag may be repeated on a line."""
    project: Literal["no", "tighten", "ask"] = "no"
    """Permission for a project's pyproject.toml, which may come from a stranger, to set it. `ask`:
    only to a value that the person allowed."""
    variable: str = ""
    """Environment variable that sets it, in addition to NBAGENT_NAME."""
    inherited: bool = True
    """True if a child run takes the value of its parent."""
    server_specific: bool = False
    """True if the value belongs to one server and must not be sent to another."""
    secret: bool = False
    """True if the values of its dict are never shown or stored (the names are)."""
    name: str = field(default="", init=False)

    def __set_name__(self, owner: type, name: str) -> None:
        object.__setattr__(self, "name", name)

    @overload
    def __get__(self, at: None, owner: type) -> Option[T]: ...
    @overload
    def __get__(self, at: RunOptions, owner: type) -> T | None: ...
    @overload
    def __get__(self, at: Settings, owner: type) -> T: ...
    def __get__(self, at: Any, owner: type) -> Any:
        if at is None:
            return self
        # RunOptions give None and not the default: a call that sets an option to its default must
        # override the settings.
        return at.explicit.get(self.name, self.default if isinstance(at, Settings) else None)

    @property
    def flags(self) -> tuple[str, ...]:
        """`-m` and `--model`."""
        return tuple(word.strip(",") for word in self.usage.split() if word.startswith("-"))

    @property
    def metavar(self) -> str:
        """Placeholder of its value in help; empty if it takes none."""
        return self.usage.rpartition(self.flags[-1])[2].strip() if self.usage else ""

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables that set it; the first one wins."""
        own = f"NBAGENT_{self.name.upper()}"
        return (own, self.variable) if self.variable else (own,)

    def checked(self, value: Any, where: str = "") -> Any:
        """Check and convert a value. Raises UsageError; the message names `where` it is set."""
        if value is None or value is self.default:
            return value
        try:
            return (self.check or types.one_of(*self.choices))(value)
        except (ValueError, TypeError) as error:
            location = self.name if where in ("", self.name) else f"{where}: {self.name}"
            location = where if where.startswith("-") else location
            # A repeatable option of a line: the text, as it was typed.
            if where.startswith("-") and isinstance(value, tuple):
                value = " ".join(map(str, cast("tuple[Any, ...]", value)))
            shown_value = "" if self.secret else f"={value!r}"
            raise UsageError(f"{location}{shown_value} is not valid; expected {error}") from None

    def redacted(self, value: Any) -> Any:
        """Copy of the value that may be shown and stored."""
        return dict.fromkeys(value, HIDDEN) if self.secret and value else redact_json(value)


@dataclass(frozen=True, eq=False)
class _ProjectOption(Option[T]):
    """An option that a project's file may set to a value that the person allowed."""

    project: Literal["no", "tighten", "ask"] = "ask"


@dataclass(frozen=True, eq=False)
class _LimitOption(Option[T]):
    """An option that a project's file may only tighten."""

    project: Literal["no", "tighten", "ask"] = "tighten"


@dataclass(frozen=True, eq=False)
class _ServerOption(Option[T]):
    """An option whose value belongs to one server."""

    server_specific: bool = True


@dataclass(frozen=True, eq=False)
class Switch(Option[bool]):
    """An option that is off unless its flag is on the line."""

    check: Callable[[Any], bool] = types.switch
    default: bool = False
    flag_value: Any = True


def reject_key(name: str) -> None:
    """Raise UsageError if `name` looks like an option for a key. The value is not shown."""
    if _KEY_LIKE.fullmatch(name.lstrip("-").replace("-", "_")):
        raise UsageError(
            f"{name!r} is not an option: a key in code or on a line would be stored and shown. Put "
            "it into an environment variable before the kernel starts (LLM_API_KEY, or the "
            "provider's own), or name another variable: key_variable=NAME (--key-variable NAME)"
        )


_MISPLACED = {
    **dict.fromkeys(
        ("on_event", "on_tool_call", "on_tool_result"),
        'is an argument of a run: agent.run("…", {name}=…)',
    ),
    "conversation_history": 'is named messages: agent.run("…", messages=[…])',
}
"""Names of the protocol and of a run that were written among the options of an agent."""


def _reject_misplaced(values: type[Values], name: str) -> None:
    """Raise UsageError if `name` exists, but not here; the message says where it is given."""
    where = _MISPLACED.get(name)
    if where is None and values is RunOptions and name in Settings.rows():
        where = "is a setting: nbagent.configure({name}=…)"
    if where is not None:
        raise UsageError(f"{name!r} {where.format(name=name)}")


class Values:
    """Checked values of some rows. `repr` shows no secret."""

    __slots__ = ("explicit",)

    explicit: Mapping[str, Any]
    """Values that were set, by option name; none of them is None."""

    def __init__(self, **values: Any) -> None:
        checked = {name: self.row(name).checked(value) for name, value in values.items()}
        self.explicit = {name: value for name, value in checked.items() if value is not None}

    @classmethod
    @cache
    def rows(cls) -> dict[str, Option[Any]]:
        """Return the rows by name."""
        parts = [vars(part) for part in reversed(cls.__mro__)]
        return {n: row for part in parts for n, row in part.items() if isinstance(row, Option)}

    @classmethod
    def row(cls, name: str, where: str = "") -> Option[Any]:
        """Return the row of this name. Raises UsageError that suggests the nearest name."""
        rows = cls.rows()
        if name in rows:
            return rows[name]
        reject_key(name)
        _reject_misplaced(cls, name)
        location = f" in {where}" if where else ""
        hint = nearest_or_all(name, rows, "known:")
        raise UsageError(f"unknown option {name!r}{location}{hint}")

    def with_changes(self, **changes: Any) -> Self:
        """Copy with these values changed. None removes a value."""
        return type(self)(**{**self.explicit, **changes})

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and cast("Values", other).explicit == self.explicit

    def __repr__(self) -> str:
        rows = self.rows()
        pairs = (f"{name}={rows[name].redacted(value)!r}" for name, value in self.explicit.items())
        return f"{type(self).__name__}({', '.join(pairs)})"


class _Shared(Values):
    """Options that a call may set and that settings have values for."""

    __slots__ = ()

    model = _ProjectOption[str | None](
        "-m, --model PROVIDER:MODEL", "the model to ask", types.model, variable="LLM_MODEL"
    )
    base_url = _ServerOption[str | None](
        "--base-url URL", "the server to ask", types.base_url, variable="LLM_BASE_URL"
    )
    key_variable = _ServerOption[str | None](
        "--key-variable NAME", "the environment variable that holds the key", types.key_variable
    )
    organization_id = _ServerOption[str | None]("", "the organisation that pays", types.header_text)
    project_id = _ServerOption[str | None]("", "the provider's project", types.header_text)
    headers = _ServerOption[dict[str, str] | None](
        "", "further headers, as a JSON object", types.headers, secret=True
    )
    extra_body = _ServerOption[dict[str, Any] | None](
        "", "further fields of a request, as a JSON object", types.extra_body, secret=True
    )
    retries = Option("", "maximum number of retries", types.number(0, 10, whole=True), 2)
    timeout_s = _LimitOption(
        "--timeout SECONDS", "deadline of one request and its retries", types.seconds, 600.0
    )
    cache = Option[str | None](
        "--cache off | auto | replay | refresh",
        "reuse recorded answers: auto asks for missing ones, replay never",
        choices=("off", "auto", "replay", "refresh"),
    )
    cassette = Option[str | None](
        "--cassette FILE.jsonl",
        "the file of recorded answers, beside the notebook",
        types.cassette,
    )
    replay_tools = Switch(
        "--replay-tools", "also reuse recorded tool results instead of running the tools"
    )
    system = _ProjectOption[str | None]("--system TEXT", "the system prompt", types.any_text)
    tools = _ProjectOption[Tools | None](
        "-t, --tools A,B | none | all",
        "functions, fs, skills, notebook, mcp:NAME (default: your functions)",
        types.tools,
    )
    max_turns = _LimitOption("--max-turns N", "pause after N turns", _POSITIVE_INT, 20)
    max_requests = _LimitOption(
        "", "end the run after N requests since your last prompt", _POSITIVE_INT, 50
    )
    max_repeated_failures = _LimitOption(
        "", "pause after N identical failing calls", _POSITIVE_INT, 3
    )
    max_repeated_results = _LimitOption(
        "", "pause after N equal results of the same call", _POSITIVE_INT, 6
    )
    max_total_tokens = _LimitOption[int | None](
        "--max-total-tokens N", "pause before the run uses more tokens in all", _POSITIVE_INT
    )
    max_cost_usd = _LimitOption[float | None](
        "--max-cost USD", "pause before the run costs more than this", types.usd
    )
    temperature = _ProjectOption[float | None](
        "--temperature 0–2", "sampling temperature (default: none is sent)", types.number(0, 2)
    )
    top_p = _ProjectOption[float | None]("--top-p 0–1", "nucleus sampling", types.number(0, 1))
    max_tokens = _ProjectOption[int | None](
        "--max-tokens N", "maximum tokens of one answer", _POSITIVE_INT
    )
    stop_sequences = _ProjectOption[tuple[str, ...] | None](
        "--stop-seq TEXT", "end the answer before this text", types.sequences, repeatable=True
    )
    reasoning = _ProjectOption[str | None](
        "--reasoning low | medium | high | off | TOKENS",
        "reasoning effort; also minimal, xhigh, max; see --dry-run",
        types.reasoning,
        choices=types.REASONING_WORDS,
    )
    trim = _ProjectOption(
        "--trim tool-results | none",
        "shorten old tool results after a request was too large",
        default="none",
        choices=("tool-results", "none"),
    )
    mounts = Option[tuple[str, ...]](
        "--mount NAME=PATH[:ro|rw]",
        "a folder that file tools may use",
        types.lines,
        (),
        repeatable=True,
    )
    skills = Option[tuple[str, ...]](
        "--skills DIR",
        "a folder of skills, beside the project's own",
        types.lines,
        (),
        repeatable=True,
    )
    variables = Option[tuple[str, ...]](
        "--var NAME=VALUE",
        "the value of {NAME} in agents and workflows",
        types.variables,
        (),
        repeatable=True,
    )
    session = _ProjectOption(
        "--session NAME", "the run's session; with --continue: its last run", types.text, "default"
    )
    stream = _ProjectOption(
        "--no-stream",
        "ask for the answer in one piece (stream=false)",
        types.switch,
        True,
        flag_value=False,
        choices=("true", "false"),
        inherited=False,
    )
    template = Option(
        "--no-template",
        "send the prompt as typed: {{ … }} is not evaluated",
        types.switch,
        True,
        flag_value=False,
        choices=("true", "false"),
        inherited=False,
    )


class RunOptions(_Shared):
    """Options of one run. None means: take the value of the settings.

    The magic, the panel and Python all make these options and use the same call, so that none of
    them has checks of its own.
    """

    __slots__ = ()

    tool_choice = Option[str | None](
        "--tool-choice auto | none | required | TOOL",
        "whether the first answer must use a tool",
        types.text,
        choices=("auto", "none", "required"),
        inherited=False,
    )
    workflow = Option[str | None](
        "-w, --workflow PACKAGE", "run the workflow of this package: a folder or a zip", types.path
    )
    agent = Option[str | None](
        "-a, --agent NAME", "an agent's file (agents/NAME.md), or its name", types.text
    )
    autopilot = Option[bool | None](
        "--autopilot [on | off]",
        "continue to the next step without asking",
        types.switch,
        flag_value=True,
        choices=("on", "off"),
    )
    document = Option[str | None](
        "", "the state document of the workflow to continue: its file or its id", types.text
    )
    policy = Option[ToolPolicy | None](
        "", "rules for this agent's tool calls; they can only tighten the settings", types.policy
    )
    output = Option[Any](
        "--output TYPE",
        "the type of the answer: a class of the notebook, or list[CLASS]",
        types.output_type,
        inherited=False,
    )
    name = Option[str | None](
        "--name TEXT", "a name for the run, or for the batch", types.text, inherited=False
    )
    tags = Option[tuple[str, ...]](
        "--tag TEXT", "a tag for the run", types.sequences, (), repeatable=True
    )
    raw = Switch("--raw", "print only the text of the answer", inherited=False)
    quiet = Switch("--quiet", "show only errors", inherited=False)
    echo = Option[bool | None](
        "",
        "print runs where there is no front end: true all, false problems only; default: the "
        "calls, if the output is a terminal",
        types.switch,
        inherited=False,
    )


class Settings(_Shared):
    """Values that apply if a call does not set them."""

    __slots__ = ()

    allow = Option[tuple[str, ...]]("", "calls that need no approval", types.patterns, ())
    ask = _LimitOption[tuple[str, ...]](
        "--ask CALLS",
        "calls that need your approval: fs.write, 'fs.*', mcp:git",
        types.patterns,
        (),
        repeatable=True,
    )
    deny = _LimitOption[tuple[str, ...]](
        "--deny CALLS",
        "calls that are denied: 'fs.write(path=@project/docs/*)'",
        types.patterns,
        (),
        repeatable=True,
    )
    max_read_bytes = _LimitOption("", "largest file to read", _POSITIVE_INT, _LIMITS.max_read_bytes)
    max_write_bytes = _LimitOption(
        "", "largest file to write", _POSITIVE_INT, _LIMITS.max_write_bytes
    )
    search_timeout_s = _LimitOption("", "longest search", types.seconds, _LIMITS.search_timeout_s)
    script_timeout_s = _LimitOption("", "longest script", types.seconds, _LIMITS.script_timeout_s)
    script_memory_bytes = _LimitOption(
        "", "memory of one script", _POSITIVE_INT, _LIMITS.script_memory_bytes
    )
    script_disk_bytes = _LimitOption(
        "", "disk space of one script", _POSITIVE_INT, _LIMITS.script_disk_bytes
    )
    script_output_bytes = _LimitOption(
        "", "output of one script", _POSITIVE_INT, _LIMITS.script_output_bytes
    )
    isolation = Option[Isolation](
        "",
        "how scripts are isolated: auto is the strongest level that works here",
        default="auto",
        choices=("auto", "landlock", "process"),
    )
    audit = Option[str](
        "",
        "the runs whose calls are logged in audit.jsonl: all with tools, only those with effects "
        "outside your own functions, or none",
        default="all",
        choices=("all", "outside", "none"),
    )
    log = Option[str](
        "",
        "lines of each run in the console of a kernel without a front end (papermill, nbclient)",
        default="off",
        choices=("off", "lines"),
    )
    records = Option[str](
        "",
        "the records of runs and batches in the metadata of a saved notebook, which a published "
        "page may hold, too: all; own: without what tools returned, printed and displayed; off: "
        "only a run's id or a batch's name. The displayed picture shows the start of each result "
        "in any case",
        default="all",
        choices=("off", "own", "all"),
    )

    @property
    def policy(self) -> ToolPolicy:
        """Policy of every run."""
        limits = ToolLimits(**{f.name: getattr(self, f.name) for f in fields(ToolLimits)})
        rules = {name: getattr(self, name) for name in ("allow", "ask", "deny")}
        return ToolPolicy(**rules, limits=limits, isolation=self.isolation)


class BatchOptions(Values):
    """Options of a batch, beside those of each of its runs."""

    __slots__ = ()

    repeat = Option[int]("--repeat N", "with --over: runs per case", types.count, 1)
    concurrency = Option[int](
        "--concurrency N",
        "with --over: maximum number of parallel runs (default: 16)",
        types.count,
        16,
    )
    max_failed = Option[int | float | None](
        "--max-failed N | SHARE",
        "with --over: stop when more than N cases, or this share of them, failed",
        types.failed_cases,
    )


def checked_value(name: str, value: Any, *, where: str = "") -> Any:
    """Check and convert the value of a setting. Raises UsageError."""
    return Settings.row(name, where).checked(value, where)
