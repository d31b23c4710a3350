"""Policies for tool calls: the rules that allow, ask or deny, and their match. Plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from nbagent.contracts.call_patterns import (
    GlobResolver,
    call_pattern,
    invalid_pattern,
    unchanged_glob,
)
from nbagent.contracts.errors import UsageError
from nbagent.contracts.limits import ToolLimits

Ruling = Literal["deny", "ask", "allow"]
"""Strictest first: the order of this type is the order in which rules apply."""
Isolation = Literal["auto", "landlock", "process"]
RULINGS: tuple[Ruling, ...] = get_args(Ruling)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMatch:
    """The ruling of a policy on a call, with the rule that matched."""

    ruling: Ruling
    why: str
    rule: str = ""
    """The pattern; empty if no rule matched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """Rules for the tools that a model sees and the calls it makes.

    Rules are patterns as described in `CallPattern`. `deny` wins over `ask`, and `ask` over
    `allow`. A call that no rule matches gets the default ruling of its host.
    """

    allow: Sequence[str] = ()
    ask: Sequence[str] = ()
    deny: Sequence[str] = ()
    """A tool that is denied for all arguments is not shown to the model."""
    limits: ToolLimits = field(default_factory=ToolLimits)
    isolation: Isolation = "auto"
    """Isolation of scripts; `auto` is the strongest level that works here."""

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
                f"limits={limits!r} or isolation={self.isolation!r} is not valid; give an "
                f"nbagent.ToolLimits(…), and one of {', '.join(get_args(Isolation))}"
            )

    @property
    def rules(self) -> tuple[tuple[Ruling, str], ...]:
        """All rules as pairs of ruling and pattern, strictest first."""
        return tuple((kind, text) for kind in RULINGS for text in getattr(self, kind))

    def says(
        self,
        tool: str,
        host: str,
        arguments: Mapping[str, Any] | None,
        resolve: GlobResolver = unchanged_glob,
    ) -> RuleMatch | None:
        """Find the first rule that matches a call; None if none does.

        With `arguments=None`, the tool itself is judged, without a call.
        """
        for ruling, text in self.rules:
            pattern, lenient = call_pattern(text), ruling != "allow"
            if pattern.matches_tool(tool, host) and pattern.matches_arguments(
                host, arguments or {}, resolve, lenient=lenient
            ):
                return RuleMatch(ruling=ruling, why=f"{ruling}={text!r}", rule=text)
        return None
