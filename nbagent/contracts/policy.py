"""Limits of a run, what may happen at a tool call, and the decisions about one. Plain values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from glob import escape
from typing import Any, Literal, cast, get_args

from nbagent.contracts.canonical import canonical_json, load_json
from nbagent.contracts.chat import Value
from nbagent.contracts.errors import UsageError

Approval = Literal["allowed", "denied", "edited"]
Ruling = Literal["deny", "ask", "allow"]
"""The strictest first."""
Isolation = Literal["auto", "landlock", "process"]
RULINGS: tuple[Ruling, ...] = get_args(Ruling)


class Limits(Value):
    """Where a run pauses or ends."""

    max_turns: int = 20
    """Turns of one run; at the limit it pauses."""
    ceiling: int = 50
    """Requests since the person's last words; there it ends."""
    loop_limit: int = 3
    """The same failing call so many times stops the run."""
    same_result_limit: int = 6
    """The same call with the same successful result so many times stops the run."""
    max_total_tokens: int | None = None
    """Tokens of one run, counted after each turn."""
    max_cost_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """How much a single tool call may take."""

    max_read_bytes: int = 10_000_000
    """Of one file; asking for more is `E_READ_LIMIT`."""
    max_write_bytes: int = 5_000_000
    """Of one file; more is `E_WRITE_LIMIT`."""
    search_timeout_s: float = 10.0
    script_timeout_s: float = 120.0
    """The longest that a script may ask for."""
    script_memory_bytes: int = 2_000_000_000
    script_disk_bytes: int = 100 * 1024 * 1024
    """Of all that a script writes; there it is ended."""
    script_output_bytes: int = 20_000
    """Of stdout and of stderr, which a model reads whole; the rest is cut visibly."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise UsageError(f"{name}={value!r} does not fit; give a number above 0")

    def tightened(self, by: ToolLimits) -> ToolLimits:
        """The smaller of each."""
        theirs = asdict(by)
        return ToolLimits(**{name: min(mine, theirs[name]) for name, mine in asdict(self).items()})


_PATTERN = re.compile(r"(?P<tool>[^\s()\"',{}<>]+)(?:\((?P<where>.*)\))?", re.DOTALL)
_NAME = r"[^\s=,\"]+"
# A value ends where `, name=` begins, unless that stands in double quotes.
_ARGUMENT = re.compile(
    rf'\s*({_NAME})\s*=\s*((?:"(?:[^"\\]|\\.)*"|[^"])*?)\s*(?:,\s*(?={_NAME}\s*=)|,?\s*\Z)',
    re.DOTALL,
)
# `path='a'`, `tags=['a']`: Python, which is neither JSON nor meant as a glob.
_PYTHON = re.compile(r"'.*'|[\[{]\s*'.*", re.DOTALL)
_OF_FILES = re.compile(r"(fs|filesystem)([.:].*)?")
# Absolute, upwards, or with a drive: no path of the file tools is such.
_OUTSIDE = re.compile(r"/.*|.*[\\:].*|(.*/)?\.\.(/.*)?", re.DOTALL)
_HOSTS = {"nb": "notebook", "filesystem": "fs"}
"""Other words for a host that a person may write."""
Resolve = Callable[[str, str, str], Sequence[str]]
"""The host of a tool, an argument's name, and a glob → the globs that it is compared with."""


def as_written(host: str, name: str, glob: str) -> Sequence[str]:
    """The glob itself, where an argument has one form only."""
    return (glob,)


@dataclass(frozen=True, slots=True)
class CallPattern:
    """Which calls a rule is about: `fs.write`, `fs.*`, `mcp:git`, `fs.write(path=@project/*.md)`.

    The part before the parentheses is a glob over the tool's name or, with a colon or the bare
    word of a host (`fs`, `mcp`, `mcp:git`), its host. In parentheses stand globs over arguments,
    joined by commas, or values as JSON (`tags=["prod"]`); an argument that is no text is compared
    as JSON, and numbers by their size.
    """

    tool: str
    where: tuple[tuple[str, str], ...] = ()

    def fits_arguments(
        self, host: str, given: Mapping[str, Any], resolve: Resolve, *, loosely: bool
    ) -> bool:
        """Whether it speaks of these arguments; loosely: blanks around texts and case aside."""
        return all(
            name in given
            and _value_fits(given[name], text, resolve(host, name, as_glob(text, loosely)), loosely)
            for name, text in self.where
        )

    def fits_tool(self, tool: str, host: str) -> bool:
        """Whether it speaks of some call of this tool."""
        word = self.tool.removesuffix(":*")
        named = _HOSTS.get(word, word) in (host.partition(":")[0], host)
        return named or fnmatchcase(tool, self.tool) or fnmatchcase(host, self.tool)


def _literal(text: str) -> Any:
    try:
        return load_json(text)
    except (ValueError, RecursionError):
        return text


_in_rule = lru_cache(maxsize=512)(_literal)


def as_glob(text: str, loosely: bool = False) -> str:
    """A value of a rule as a glob, JSON texts unquoted: of what is allowed, to the letter."""
    literal = _in_rule(text)
    if literal == text or not isinstance(literal, str):
        return text
    return literal if loosely else escape(literal)


def _value_fits(value: Any, text: str, globs: Sequence[str], loosely: bool) -> bool:
    literal = _in_rule(text)
    is_json = literal != text
    if loosely:
        value, literal, globs = (_loose(it) for it in (value, literal, globs))
    given = value if isinstance(value, str) else canonical_json(value).decode()
    if given in globs or any(fnmatchcase(given, glob) for glob in globs):
        return True
    # 100 is 100.0, loosely also in a text; 1 is not True.
    read = _literal(given) if is_json and loosely else value
    return is_json and read == literal and bool not in (type(value), type(literal))


def _loose(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip().casefold()
    if isinstance(value, list | tuple):
        return [_loose(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _loose(item) for key, item in cast("dict[Any, Any]", value).items()}
    return value


@lru_cache(maxsize=512)
def call_pattern(text: str) -> CallPattern:
    """Read a pattern; of what is none, or could fit no call, a UsageError that shows one."""
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise _no_pattern(text)
    rest, where = match["where"] or "", list[tuple[str, str]]()
    while rest.strip():
        argument = _ARGUMENT.match(rest)
        if argument is None:
            raise _no_pattern(text)
        name, value = argument.groups()
        of_file = name == "path" and _OF_FILES.fullmatch(match["tool"])
        # Outside of JSON, `a=1, b` lacks something.
        lacks = ", " in value and _in_rule(value) == value
        if lacks or _PYTHON.fullmatch(value) or (of_file and _OUTSIDE.fullmatch(as_glob(value))):
            raise _no_pattern(text)
        where.append((name, value))
        rest = rest[argument.end() :]
    return CallPattern(match["tool"], tuple(where))


def _no_pattern(text: object) -> UsageError:
    return UsageError(
        f"{text!r} is no pattern for calls; write a tool (fs.write), a glob (fs.*), a host "
        "(mcp:git) or a tool with globs over its arguments or JSON: fs.write(path=@project/*.md), "
        'erase(tags=["prod"]); a path of fs begins below a mount'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleHit:
    """What a policy says to a call, and which rule said it."""

    ruling: Ruling
    why: str
    rule: str = ""
    """The pattern; empty when no rule speaks of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """What a model may see and what happens at a call.

    Patterns are those of `CallPattern`. Of one policy `deny` wins over `ask`, and `ask` over
    `allow`; a call of which no rule speaks keeps what its host says by default.
    """

    allow: Sequence[str] = ()
    ask: Sequence[str] = ()
    deny: Sequence[str] = ()
    """A tool that is denied whatever its arguments is not shown to the model."""
    limits: ToolLimits = ToolLimits()
    isolation: Isolation = "auto"
    """How scripts are kept apart; `auto` is the strongest that works here."""

    def __post_init__(self) -> None:
        for name in RULINGS:
            given: Any = getattr(self, name)
            texts = (given,) if isinstance(given, str) else tuple(given or ())
            for text in cast("tuple[Any, ...]", texts):
                if not isinstance(text, str):
                    raise _no_pattern(text)
                call_pattern(text)
            object.__setattr__(self, name, texts)
        limits: Any = self.limits
        if not isinstance(limits, ToolLimits) or self.isolation not in get_args(Isolation):
            raise UsageError(
                f"limits={limits!r} or isolation={self.isolation!r} does not fit; give an "
                f"nbagent.ToolLimits(…), and one of {', '.join(get_args(Isolation))}"
            )

    @property
    def rules(self) -> tuple[tuple[Ruling, str], ...]:
        """Every rule as its kind and its pattern, the strictest first."""
        return tuple((kind, text) for kind in RULINGS for text in getattr(self, kind))

    def says(
        self,
        tool: str,
        host: str,
        arguments: Mapping[str, Any] | None,
        resolve: Resolve = as_written,
    ) -> RuleHit | None:
        """What its rules say to a call (None: to the tool in general); None when none does."""
        for ruling, text in self.rules:
            pattern, loosely = call_pattern(text), ruling != "allow"
            if pattern.fits_tool(tool, host) and pattern.fits_arguments(
                host, arguments or {}, resolve, loosely=loosely
            ):
                return RuleHit(ruling=ruling, why=f"{ruling}={text!r}", rule=text)
        return None


@dataclass(frozen=True, slots=True)
class PreviewPiece:
    """One thing that a person should see before deciding. Shown whole, never cut."""

    label: str
    text: str
    kind: Literal["text", "diff", "code"] = "text"
    instead_of: tuple[str, ...] = ()
    """Arguments that it holds; they are not shown beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPreview:
    """What a tool host says about a call before it runs."""

    ruling: Ruling = "allow"
    """What happens where no policy speaks of it."""
    firm: bool = False
    """True: `ruling` is the least; a policy may be stricter and not looser."""
    why: str = ""
    """One line: what the call would do."""
    pieces: tuple[PreviewPiece, ...] = ()
    binds: str = ""
    """Hash of what an approval binds to beside definition and arguments: a script's bytes, the
    state of the file that is written."""
    for_session: Literal["this call", "every call", "none"] = "this call"
    """What an approval for the session covers; of every call those with the same `binds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a person is asked about one call: the view, `input()` and `on_approval` are given it."""

    run_id: str
    turn_id: str
    tool_call_id: str
    tool: str
    host: str
    arguments: dict[str, Any]
    why: str
    """What the call would do, and the rule that asks, when one does; may be empty."""
    pieces: tuple[PreviewPiece, ...] = ()
    scope: str = ""
    """What "for this session" would cover: this very call, or every call of the tool; empty where
    it cannot be allowed for the session."""
    display_name: str = ""
    """What cards call the tool; empty: its name."""
    summary: str = ""
    """First line of the tool's documentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonAnswer:
    """What a person says to a question."""

    choice: Literal["once", "session", "deny"]
    reason: str = ""
    """With `deny`: what the model gets to know of it."""
    arguments: Mapping[str, Any] | None = None
    """Run it with these arguments instead."""

    def __post_init__(self) -> None:
        if self.choice not in ("once", "session", "deny"):
            raise UsageError(
                f"choice={self.choice!r} is no answer; write 'once', 'session' or 'deny'"
            )
