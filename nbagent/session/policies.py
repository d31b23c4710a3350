"""The person's policy and an agent's as one: what they say to a call, which tools they hide.

Owns how the two are joined. Asking is `approval`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nbagent.contracts.chat import ToolSpec
from nbagent.contracts.policy import (
    CallPreview,
    Resolve,
    RuleHit,
    ToolPolicy,
    as_written,
    call_pattern,
    stricter,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The person's policy, and an agent's, which can only be stricter."""

    system: ToolPolicy = field(default_factory=ToolPolicy)
    agent: ToolPolicy | None = None
    resolve: Resolve = as_written
    """Brings what rules say of paths to the form that paths have."""

    @property
    def effective(self) -> ToolPolicy:
        """Limits and isolation that hold."""
        if self.agent is None:
            return self.system
        kept_apart = "landlock" in (self.agent.isolation, self.system.isolation)
        return replace(
            self.system,
            limits=self.system.limits.tightened(self.agent.limits),
            isolation="landlock" if kept_apart else self.system.isolation,
        )

    def hiding(self, spec: ToolSpec) -> str:
        """The first rule that hides the tool or denies it whatever the arguments; empty: none."""
        found = (
            f"{kind}={text!r}"
            for kind, text in self._rules_about(spec)
            if kind in ("hide", "deny") and not call_pattern(text).where
        )
        return next(found, "")

    def about_some_calls(self, spec: ToolSpec) -> list[str]:
        """The rules that speak of this tool with certain arguments only."""
        rules = self._rules_about(spec)
        return [f"{kind}={text}" for kind, text in rules if call_pattern(text).where]

    def denies(self, tool: str, host: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a rule forbids this call; for hosts that look at many things in one call."""
        hits = [policy.says(tool, host, arguments, self.resolve) for policy in self._both()]
        return any(hit is not None and hit.ruling == "deny" for hit in hits)

    def says(
        self,
        spec: ToolSpec,
        preview: CallPreview,
        judged: Mapping[str, Any] | None = None,
        written: Mapping[str, Any] | None = None,
    ) -> RuleHit:
        """What happens to a call; without arguments, to the tool in general.

        Args:
            spec: of the tool.
            preview: what the host says.
            judged: the arguments in the one form that rules are compared with.
            written: as the model wrote them; rules that forbid hold for these too.
        """
        name, host = spec.name, spec.traits.host
        default = RuleHit(ruling=preview.ruling, why=preview.why or "its host says so")
        hit = self.system.says(name, host, judged, self.resolve) or default
        if preview.firm and stricter(hit.ruling, preview.ruling) != hit.ruling:
            hit = default
        for form in (judged, written):
            for policy in self._both():
                other = policy.says(name, host, form, self.resolve)
                if other and stricter(other.ruling, hit.ruling) != hit.ruling:
                    hit = other
        return hit

    def _rules_about(self, spec: ToolSpec) -> list[tuple[str, str]]:
        rules = [rule for policy in self._both() for rule in policy.rules]
        host = spec.traits.host
        return [rule for rule in rules if call_pattern(rule[1]).fits_tool(spec.name, host)]

    def _both(self) -> tuple[ToolPolicy, ...]:
        return (self.system,) if self.agent is None else (self.system, self.agent)
