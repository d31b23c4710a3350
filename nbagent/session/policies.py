"""The person's policy and an agent's as one: what they say to a call, which tools they hide.

Owns how the two are joined. Asking is `approval`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nbagent.contracts.chat import ToolSpec
from nbagent.contracts.errors import UsageError
from nbagent.contracts.policy import (
    CallPreview,
    Resolve,
    RuleHit,
    ToolPolicy,
    as_written,
    call_pattern,
    stricter,
)
from nbagent.tools.base import nearest


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
        for kind, text in self._rules():
            rule = call_pattern(text)
            if (
                kind in ("hide", "deny")
                and not rule.where
                and rule.fits_tool(spec.name, spec.traits.host)
            ):
                return f"{kind}={text!r}"
        return ""

    def denies(self, tool: str, host: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a rule forbids this call; for hosts that look at many things in one call."""
        said = [policy.says(tool, host, arguments, self.resolve) for policy in self._both()]
        return any(hit is not None and hit.ruling == "deny" for hit in said)

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
        verdict = self.system.says(name, host, judged, self.resolve) or default
        if preview.firm and stricter(verdict.ruling, preview.ruling) != verdict.ruling:
            verdict = default
        # A rule that forbids holds for the arguments as the model wrote them, too.
        for form in (judged, written):
            for policy in self._both():
                other = policy.says(name, host, form, self.resolve)
                if other and stricter(other.ruling, verdict.ruling) != verdict.ruling:
                    verdict = other
        return verdict

    def about_some_calls(self, spec: ToolSpec) -> list[str]:
        """The rules that speak of this tool with certain arguments only."""
        return [
            f"{kind}={text}"
            for kind, text in self._rules()
            if (rule := call_pattern(text)).where and rule.fits_tool(spec.name, spec.traits.host)
        ]

    def doubts(self, specs: Sequence[ToolSpec]) -> list[str]:
        """Rules that look like slips of the pen: nearly a tool's name, no such argument."""
        doubts: list[str] = []
        for policy in self._both():
            for kind, text in policy.rules:
                rule, said = call_pattern(text), f"the rule {kind}={text!r}"
                fit = [spec for spec in specs if rule.fits_tool(spec.name, spec.traits.host)]
                if not fit:
                    near = nearest(rule.tool, [spec.name for spec in specs])
                    if near is not None and "*" not in rule.tool:
                        doubts.append(f"{said} fits no tool of this run; did you mean {near!r}?")
                    elif policy is self.agent:
                        doubts.append(f"{said} fits no tool of this run")
                for name, _ in rule.where:
                    if fit and not any(name in spec.parameters["properties"] for spec in fit):
                        doubts.append(f"{said}: {fit[0].name} has no argument {name!r}")
        return doubts

    def _rules(self) -> list[tuple[str, str]]:
        return [rule for policy in self._both() for rule in policy.rules]

    def _both(self) -> tuple[ToolPolicy, ...]:
        return (self.system,) if self.agent is None else (self.system, self.agent)


def check_agent_policy(policy: ToolPolicy) -> None:
    """Raise UsageError when an agent's policy would loosen something."""
    if policy.allow:
        raise UsageError(
            f"an agent may only tighten the policy, not allow {', '.join(policy.allow)}; allow it "
            "for yourself with nbagent.configure(allow=[…]), or answer with on_approval=…"
        )
