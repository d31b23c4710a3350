"""The words that the rules for nbagent's own tools share: what is asked, and what is planned.

Owns the list of those tools: names and arguments are fixed, so that rules may know them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from nbagent.contracts.canonical import canonical_json, json_object
from nbagent.contracts.chat import ToolSpec
from nbagent.providers.offline.known_words import Reading
from nbagent.providers.offline.results import Made

_TOOLS: Mapping[str, tuple[str, ...]] = {
    "fs.read": ("path",),
    "fs.list": ("path",),
    "fs.search": ("query", "path"),
    "fs.write": ("path", "content"),
    "fs.apply_patch": ("path", "oldText", "newText"),
    "list_skills": (),
    "get_skill": ("skill_name",),
    "run_python_script": ("skill_name", "script"),
    "nb.variables": (),
    "nb.inspect": ("name",),
    "nb.run": ("code",),
    "nb.set": ("name", "value"),
}
"""The tools, with the arguments that the rules give them."""
_ALIASES = {"read_file": "fs.read", "write_file": "fs.write", "list_files": "fs.list"}


def known_as(tool: ToolSpec) -> str | None:
    """Which of nbagent's own tools this is; None for any other, also one of the same name."""
    name = tool.name
    if tool.traits.host == "fs":
        name = _ALIASES.get(name, name)
    arguments = _TOOLS.get(name)
    if arguments is None or tool.traits.host in ("functions", "mcp"):
        return None
    there = json_object(tool.parameters.get("properties")) or {}
    needed = tool.parameters.get("required") or ()
    fits = all(one in there for one in arguments) and all(one in arguments for one in needed)
    return name if fits else None


@dataclass(frozen=True, slots=True)
class Step:
    """A call of one of the known tools."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one of the rules makes of a prompt: calls to make next, or the answer's text."""

    calls: tuple[Step, ...] = ()
    text: str = ""
    """Instead of the words that results are usually told with."""
    note: str = ""
    """What has to be said beside them."""
    sure: bool = False
    """The prompt speaks of these tools and of nothing else: `skill`, `variable`, `defined`."""
    claims: tuple[str, ...] = ()
    """Pieces of the prompt that it understood as paths, names or quotations."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What the rules look at."""

    prompt: str
    reading: Reading
    offered: Mapping[str, str]
    """Known tools by the names that they have here."""
    made: Sequence[Made]
    """Calls of known tools in this exchange, under their known names."""
    earlier: Sequence[Made]
    """The same of the exchanges before."""

    def has(self, *names: str) -> bool:
        """Whether all these tools are offered."""
        return all(name in self.offered for name in names)

    def result(self, step: Step) -> Made | None:
        """What came back for a call; None when it was not made yet."""
        wanted = canonical_json([step.tool, step.arguments])
        return next((m for m in self.made if canonical_json([m.name, m.arguments]) == wanted), None)

    def open(self, *steps: Step) -> tuple[Step, ...]:
        """The calls that are still to be made."""
        return tuple(step for step in steps if self.result(step) is None)


def field_of(data: Any, name: str) -> Any:
    """A field of a result; None when it has none."""
    return (json_object(data) or {}).get(name)


def list_of(value: Any) -> list[Any]:
    """The items of a list; none of anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def rows_of(data: Any, *names: str) -> list[dict[str, Any]]:
    """The list of objects in the first of the fields that is one; texts become `{name: text}`."""
    for name in names:
        rows: list[dict[str, Any]] = []
        for item in list_of(field_of(data, name)):
            row = json_object(item)
            rows.append(row if row is not None else {"name": str(item)})
        if rows:
            return rows
    return []
