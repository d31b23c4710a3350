"""What the form's fields mean: texts and ticks to plain options, and a run's options back to texts.

Knows no widget. Everything is checked here as it is for a cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from nbagent.contracts.errors import NbagentError
from nbagent.contracts.records import RunRecord
from nbagent.session.hosts import words_of_all
from nbagent.settings import RunOptions, Settings, checked_value, effective
from nbagent.settings.checks import Tools
from nbagent.tools.base import OWN, host_of
from nbagent.tools.function_tool import FunctionHost

LIMITS = {"max_turns": "Max turns", "max_total_tokens": "Max tokens (run)", "max_cost_usd": "Max $"}
HINTS = {label: Settings.row(name).help.capitalize() for name, label in LIMITS.items()}
HOSTS = {
    "fs": "files of the project: read, search, list; writing asks first",
    "skills": "skills of the project and your own, and their scripts",
    "notebook": "variables of this notebook; running code asks first",
}
"""Hosts that can be ticked although no setting names them."""


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool in the list."""

    name: str
    about: str


@dataclass(slots=True)
class Choices:
    """What the form says now."""

    model: str = ""
    """Empty: as the settings say, or the conversation's own."""
    system: str = ""
    limits: dict[str, str] = field(default_factory=dict[str, str])
    """By the name of the option; empty: none."""
    offered: tuple[str, ...] = ()
    """The names in the list of tools."""
    unticked: frozenset[str] = frozenset()

    def options(self, parent: RunRecord | None) -> tuple[RunOptions, tuple[str, ...]]:
        """The options, and which of the parent's do not go on.

        Raises:
            UsageError: a limit does not fit.
        """
        settings = effective()
        given: dict[str, Any] = {}
        model = self.model.strip()
        # The parent's own model goes on with the server that it was asked at.
        if model and not (parent is not None and model == parent.model):
            given["model"] = model
        if self.system != (settings.system or ""):
            given["system"] = self.system
        for name, label in LIMITS.items():
            text = self.limits.get(name, "").strip()
            value = checked_value(name, text, where=label) if text else None
            if value is not None and value != getattr(settings, name):
                given[name] = value
        tools = self._tools(settings.tools)
        if tools is not None:
            given["tools"] = tools
        # What stands in the form holds; where it says the same as the settings, these hold.
        shown = ("system", "tools", *LIMITS)
        return RunOptions(**given), tuple(name for name in shown if name not in given)

    def _tools(self, usual: Tools | None) -> Tools | None:
        ticked = tuple(name for name in self.offered if name not in self.unticked)
        whole = self.offered if usual == "all" else _functions(self.offered)
        if not self.offered or (ticked == whole and usual in (None, "all")):
            return None
        return ticked or "none"


def usual() -> Choices:
    """What the settings say."""
    settings = effective()
    texts = {name: _text(getattr(settings, name)) for name in LIMITS}
    return Choices(model=settings.model or "", system=settings.system or "", limits=texts)


def of_run(record: RunRecord) -> tuple[Choices, Tools | None]:
    """What a run was asked with, to go on with it, and its choice of tools."""
    kept = record.options
    before = usual()
    limits = {name: _text(kept.get(name)) or before.limits[name] for name in LIMITS}
    system = kept.get("system")
    tools = kept.get("tools")
    return (
        Choices(
            model=record.model,
            system=before.system if system is None else str(system),
            limits=limits,
        ),
        tuple(cast("list[str]", tools)) if isinstance(tools, list) else tools,
    )


def offered_tools(
    namespace: Mapping[str, Any], configured: Tools | None, extra: Sequence[str]
) -> list[Offered]:
    """The notebook's tools as they are now.

    Args:
        namespace: the notebook's names.
        configured: what the settings say; plain functions named there are offered too.
        extra: further names, which are left out when they cannot be found.

    Raises:
        UsageError: two tools have one name.
    """
    named = (*words_in(configured), *extra)
    found = {tool.name: tool for tool in _listed(namespace, None)}
    found |= {word: Offered(word, about) for word, about in HOSTS.items() if word not in found}
    for name in named:
        if name in found or name == OWN:
            continue
        if name not in namespace and host_of(name):
            found[name] = Offered(name, "")
        else:
            try:
                found |= {tool.name: tool for tool in _listed(namespace, (name,))}
            except NbagentError:
                continue  # it is gone from the notebook
    return list(found.values())


def words_in(chosen: Tools | None) -> tuple[str, ...]:
    """The names that a choice of tools has beside the notebook's own functions."""
    if chosen == "all":
        return words_of_all()
    return chosen if isinstance(chosen, tuple) else ()


def left_out(offered: Sequence[Offered], chosen: Tools | None) -> frozenset[str]:
    """The tools that a choice (of the settings, of a run) leaves out."""
    names = tuple(tool.name for tool in offered)
    if chosen == "all":
        return frozenset()
    kept = words_in(chosen)
    if chosen is None or OWN in kept:
        kept += _functions(names)
    return frozenset(name for name in names if name not in kept)


def _functions(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in HOSTS and ":" not in name)


def _listed(namespace: Mapping[str, Any], names: Sequence[str] | None) -> list[Offered]:
    host = FunctionHost((), namespace=lambda: namespace, names=names)
    return [
        Offered(spec.name, next(iter(spec.description.strip().splitlines()), ""))
        for spec in host.specs
    ]


def _text(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
