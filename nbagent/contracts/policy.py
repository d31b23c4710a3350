"""Limits of a run, what may happen at a tool call, and the decisions about one. Plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from nbagent.contracts.call_patterns import GlobResolver, unchanged_glob, call_pattern, invalid_pattern
from nbagent.contracts.errors import UsageError
from nbagent.contracts.limits import ToolLimits

Ruling = Literal["deny", "ask", "allow"]
"""The strictest first."""
Isolation = Literal["auto", "landlock", "process"]
RULINGS: tuple[Ruling, ...] = get_args(Ruling)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMatch:
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
    limits: ToolLimits = field(default_factory=ToolLimits)
    isolation: Isolation = "auto"
    """How scripts are kept apart; `auto` is the strongest that works here."""

    def __post_init__(self) -> None:
        for name in RULINGS:
            patterns: Any = getattr(self, name)
            texts = (patterns,) if isinstance(patterns, str) else tuple(patterns or ())
            for text in cast("tuple[Any, ...]", texts):
                if not isinstance(text, str):
                    raise invalid_pattern(text)
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
        resolve: GlobResolver = unchanged_glob,
    ) -> RuleMatch | None:
        """What its rules say to a call (None: to the tool in general); None when none does."""
        for ruling, text in self.rules:
            pattern, lenient = call_pattern(text), ruling != "allow"
            if pattern.matches_tool(tool, host) and pattern.matches_arguments(
                host, arguments or {}, resolve, lenient=lenient
            ):
                return RuleMatch(ruling=ruling, why=f"{ruling}={text!r}", rule=text)
        return None
