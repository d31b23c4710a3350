"""The table of options: each is declared here once, and everything else reads its row.

The line of a cell, `%agent config`, completion, help, the panel, the environment, files and what
goes on with a conversation. To add an option, add a row, and use it where it matters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from typing import Any, Generic, Literal, Self, TypeVar, cast, overload

from nbagent.contracts.errors import UsageError
from nbagent.contracts.limits import ToolLimits
from nbagent.contracts.policy import Isolation, ToolPolicy
from nbagent.contracts.secrets import redact_json
from nbagent.settings import types
from nbagent.settings.types import Tools

T = TypeVar("T")
HIDDEN = "***"
"""Stands for a value that is never shown."""
_LIMITS = ToolLimits()
_COUNT = types.number(1, whole=True)
_NOTHING: Any = None
_KEY_LIKE = re.compile(
    r"(?:\w*(?:_|api))?(?:key|secret|password)s?|(?:(?:api|auth|access|bearer)_?)?token", re.I
)


@dataclass(frozen=True, eq=False)
class Option(Generic[T]):
    """One row of the table, and the attribute by which its value is read."""

    usage: str
    """How it stands on a line: `-m, --model PROVIDER:MODEL`. Empty: it does not."""
    help: str
    check: Callable[[Any], Any] | None = None
    """Makes the value of Python, TOML or text; raises ValueError. None: it is one of `words`."""
    default: T = _NOTHING
    """What holds when nobody says anything."""
    words: tuple[str, ...] = ()
    """Values to complete."""
    bare: Any = None
    """What the option means without a value; its usage then has none, or one in brackets."""
    many: bool = False
    """Whether it may stand on a line several times."""
    project: Literal["no", "tighten", "yes"] = "no"
    """Whether a project's file, which may be a stranger's, may set it."""
    variable: str = ""
    """An environment variable that sets it, beside NBAGENT_NAME."""
    goes_on: bool = True
    """Whether a run that goes on has it from the run before."""
    server: bool = False
    """Whether it was meant for one server, and never goes to another."""
    secret: bool = False
    """Whether its value (a dict) is never shown or kept; its names are."""
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
        return at.given.get(self.name, self.default if isinstance(at, Settings) else None)

    @property
    def flags(self) -> tuple[str, ...]:
        """`-m` and `--model`."""
        return tuple(word.strip(",") for word in self.usage.split() if word.startswith("-"))

    @property
    def metavar(self) -> str:
        """What its value is called; empty when it takes none."""
        return self.usage.rpartition(self.flags[-1])[2].strip() if self.usage else ""

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables that set it, first one wins."""
        own = f"NBAGENT_{self.name.upper()}"
        return (own, self.variable) if self.variable else (own,)

    def checked(self, value: Any, where: str = "") -> Any:
        """The value in its right type. Raises UsageError, which says where it stands."""
        if value is None or value is self.default:
            return value
        try:
            return (self.check or types.one_of(*self.words))(value)
        except (ValueError, TypeError) as error:
            place = where if where.startswith("-") else f"{where or self.name}: {self.name}"
            given = "" if self.secret else f"={value!r}"
            raise UsageError(f"{place}{given} does not fit; expected {error}") from None

    def shown(self, value: Any) -> Any:
        """The value as it may be seen and kept."""
        return dict.fromkeys(value, HIDDEN) if self.secret and value else redact_json(value)


@dataclass(frozen=True, eq=False)
class _Choice(Option[T]):
    """One that a project's file may make."""

    project: Literal["no", "tighten", "yes"] = "yes"


@dataclass(frozen=True, eq=False)
class _Limit(Option[T]):
    """One that a project's file may tighten."""

    project: Literal["no", "tighten", "yes"] = "tighten"


@dataclass(frozen=True, eq=False)
class _OfServer(Option[T]):
    """One that was meant for one server."""

    server: bool = True


@dataclass(frozen=True, eq=False)
class Switch(Option[bool]):
    """One that is off unless its flag stands on the line."""

    check: Callable[[Any], bool] = types.switch
    default: bool = False
    bare: Any = True


def refuse_key(name: str) -> None:
    """Raise UsageError when a word would be followed by a key. What follows it is not shown."""
    if _KEY_LIKE.fullmatch(name.lstrip("-").replace("-", "_")):
        raise UsageError(
            f"{name!r} is no option: a key that is given here would be kept and shown. Put it in "
            "an environment variable before the kernel starts (LLM_API_KEY, or the provider's "
            "own), or name another one: key_variable=NAME (--key-variable NAME)"
        )


class Values:
    """Values of some rows, checked. Shows itself without any secret."""

    __slots__ = ("given",)

    given: Mapping[str, Any]
    """What was said; nothing is None."""

    def __init__(self, **given: Any) -> None:
        checked = {name: self.row(name).checked(value) for name, value in given.items()}
        self.given = {name: value for name, value in checked.items() if value is not None}

    @classmethod
    @cache
    def rows(cls) -> dict[str, Option[Any]]:
        """The rows by their names."""
        parts = [vars(part) for part in reversed(cls.__mro__)]
        return {n: row for part in parts for n, row in part.items() if isinstance(row, Option)}

    @classmethod
    def row(cls, name: str, where: str = "") -> Option[Any]:
        """The row of this name. Raises UsageError, which names the nearest."""
        rows = cls.rows()
        if name in rows:
            return rows[name]
        refuse_key(name)
        near = get_close_matches(name, rows, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(rows)}"
        place = f" in {where}" if where else ""
        raise UsageError(f"unknown option {name!r}{place}; {hint}")

    def changed(self, **changes: Any) -> Self:
        """The same with other values; None takes one back."""
        return type(self)(**{**self.given, **changes})

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and cast("Values", other).given == self.given

    def __repr__(self) -> str:
        rows = self.rows()
        held = (f"{name}={rows[name].shown(value)!r}" for name, value in self.given.items())
        return f"{type(self).__name__}({', '.join(held)})"


class _Shared(Values):
    """What a call may say, and what holds when it says nothing."""

    __slots__ = ()

    model = _Choice[str | None](
        "-m, --model PROVIDER:MODEL", "the model to ask", types.model, variable="LLM_MODEL"
    )
    base_url = _OfServer[str | None](
        "--base-url URL", "the server to ask", types.base_url, variable="LLM_BASE_URL"
    )
    key_variable = _OfServer[str | None](
        "--key-variable NAME", "the environment variable that holds the key", types.key_variable
    )
    organization_id = _OfServer[str | None]("", "the organisation that pays", types.header_text)
    project_id = _OfServer[str | None]("", "the provider's project", types.header_text)
    headers = _OfServer[dict[str, str] | None](
        "", "further headers, as a JSON object", types.headers, secret=True
    )
    extra_body = _OfServer[dict[str, Any] | None](
        "", "further fields of a request, as a JSON object", types.extra_body, secret=True
    )
    retries = Option("", "most retries after a failed attempt", types.number(0, 10, whole=True), 2)
    timeout_s = _Limit(
        "--timeout SECONDS", "deadline of one request and its retries", types.seconds, 600.0
    )
    cache = Option[str | None](
        "--cache off | auto | replay | refresh",
        "reuse recorded answers: auto asks for missing ones, replay never asks",
        words=("off", "auto", "replay", "refresh"),
    )
    cassette = Option[str | None](
        "--cassette FILE.jsonl",
        "the file of recorded answers, beside the notebook",
        types.cassette,
    )
    replay_tools = Switch(
        "--replay-tools", "reuse recorded tool results, too, instead of running the tools"
    )
    system = _Choice[str | None]("--system TEXT", "the system prompt", types.any_text)
    tools = _Choice[Tools | None](
        "-t, --tools A,B | none | all",
        "functions, fs, skills, notebook, mcp:NAME (default: your functions)",
        types.tools,
    )
    max_turns = _Limit("--max-turns N", "pause after N turns", _COUNT, 20)
    ceiling = _Limit("", "end after N requests without a new prompt", _COUNT, 50)
    loop_limit = _Limit("", "pause after N identical failing calls", _COUNT, 3)
    max_total_tokens = _Limit[int | None](
        "--max-total-tokens N", "pause before the run uses more tokens in all", _COUNT
    )
    max_cost_usd = _Limit[float | None](
        "--max-cost USD", "pause before the run costs more than this", types.usd
    )
    temperature = _Choice[float | None](
        "--temperature 0–2", "sampling temperature (default: none is sent)", types.number(0, 2)
    )
    top_p = _Choice[float | None]("--top-p 0–1", "nucleus sampling", types.number(0, 1))
    max_tokens = _Choice[int | None]("--max-tokens N", "maximum tokens of one answer", _COUNT)
    stop_sequences = _Choice[tuple[str, ...] | None](
        "--stop-seq TEXT", "end the answer before this text", types.sequences, many=True
    )
    reasoning = _Choice[str | None](
        "--reasoning low | medium | high | off | TOKENS",
        "reasoning effort; also minimal, xhigh, max; see --dry-run",
        types.reasoning,
        words=types.REASONING,
    )
    trim = _Choice(
        "--trim tool-results | none",
        "shorten old tool results once a request was too large",
        default="none",
        words=("tool-results", "none"),
    )
    mounts = Option[tuple[str, ...]](
        "--mount NAME=PATH[:ro|rw]", "a folder that file tools may use", types.lines, (), many=True
    )
    skills = Option[tuple[str, ...]](
        "--skills DIR", "a folder of skills, beside the project's own", types.lines, (), many=True
    )
    variables = Option[tuple[str, ...]](
        "--var NAME=VALUE",
        "the value of {NAME} in agents and workflows",
        types.variables,
        (),
        many=True,
    )
    session = _Choice(
        "--session NAME", "the run's session; with --continue: its last run", types.text, "default"
    )
    stream = _Choice(
        "--no-stream",
        "ask for the answer in one piece (stream=false)",
        types.switch,
        True,
        bare=False,
        words=("true", "false"),
        goes_on=False,
    )


class RunOptions(_Shared):
    """What a person asks for one run. None means: as the settings say.

    The magic, the panel and Python all end in these and in the same call.
    """

    __slots__ = ()

    tool_choice = Option[str | None](
        "--tool-choice auto | none | required | TOOL",
        "whether the first answer must use a tool",
        types.text,
        words=("auto", "none", "required"),
        goes_on=False,
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
        bare=True,
        words=("on", "off"),
    )
    document = Option[str | None](
        "", "the state document of a workflow that goes on: its file or its id", types.text
    )
    policy = Option[ToolPolicy | None](
        "", "what this agent may do; it can only tighten what the settings say", types.policy
    )
    output = Option[Any](
        "--output TYPE",
        "the type of the answer: a class of the notebook, or list[CLASS]",
        types.output_type,
        goes_on=False,
    )
    name = Option[str | None](
        "--name TEXT", "a name for the run, or for the batch", types.text, goes_on=False
    )
    tags = Option[tuple[str, ...]](
        "--tag TEXT", "a tag for the run", types.sequences, (), many=True
    )
    raw = Switch("--raw", "print the text of the answer, and no view", goes_on=False)
    quiet = Switch("--quiet", "show nothing but errors", goes_on=False)
    echo = Option[bool | None](
        "", "print events where there is no front end", types.switch, goes_on=False
    )


class Settings(_Shared):
    """The values that hold when a call says nothing."""

    __slots__ = ()

    allow = Option[tuple[str, ...]]("", "calls that need no approval", types.patterns, ())
    ask = _Limit[tuple[str, ...]](
        "--ask CALLS",
        "calls that need your approval: fs.write, 'fs.*', mcp:git",
        types.patterns,
        (),
        many=True,
    )
    deny = _Limit[tuple[str, ...]](
        "--deny CALLS",
        "calls that are denied: 'fs.write(path=@project/docs/*)'",
        types.patterns,
        (),
        many=True,
    )
    max_read_bytes = _Limit("", "largest file to read", _COUNT, _LIMITS.max_read_bytes)
    max_write_bytes = _Limit("", "largest file to write", _COUNT, _LIMITS.max_write_bytes)
    search_timeout_s = _Limit("", "longest search", types.seconds, _LIMITS.search_timeout_s)
    script_timeout_s = _Limit("", "longest script", types.seconds, _LIMITS.script_timeout_s)
    script_memory_bytes = _Limit("", "memory of one script", _COUNT, _LIMITS.script_memory_bytes)
    script_disk_bytes = _Limit("", "disk space of one script", _COUNT, _LIMITS.script_disk_bytes)
    script_output_bytes = _Limit("", "output of one script", _COUNT, _LIMITS.script_output_bytes)
    isolation = Option[Isolation](
        "",
        "how scripts are isolated: auto is the strongest level that works here",
        default="auto",
        words=("auto", "landlock", "process"),
    )

    @property
    def policy(self) -> ToolPolicy:
        """What holds for every run."""
        limits = ToolLimits(**{f.name: getattr(self, f.name) for f in fields(ToolLimits)})
        rules = {name: getattr(self, name) for name in ("allow", "ask", "deny")}
        return ToolPolicy(**rules, limits=limits, isolation=self.isolation)


def checked_value(name: str, value: Any, *, where: str = "") -> Any:
    """The value of a setting in its right type. Raises UsageError."""
    return Settings.row(name, where).checked(value, where)
