"""Values of a workflow: steps, edges, agents, the package, and problems found in its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nbagent.contracts.errors import UsageError
from nbagent.files.names import visible


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in a package's files."""

    file: str
    """Path below the package: `workflow.graph.json`; empty for the package itself."""
    line: int | None
    """Counted from 1; None if the problem has no line."""
    text: str
    """Cause and remedy in one sentence without a full stop."""

    def __str__(self) -> str:
        location = f"{visible(self.file)}:{self.line}" if self.line else visible(self.file)
        return f"{location}: {self.text}" if location else self.text


class PackageError(UsageError):
    """A package, an agent or a document cannot be used. Lists all problems at once.

    Attributes:
        problems: each with its file and line.
    """

    def __init__(self, subject: str, problems: tuple[Problem, ...]) -> None:
        n = len(problems)
        listed = "; ".join(map(str, problems))
        super().__init__(f"{subject} has {n} problem{'s' * (n != 1)}: {listed}")
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One step of a workflow."""

    id: str
    step_file: str
    """Path below the package: `steps/step-01-select.md`."""
    agent: str | None = None
    inputs: tuple[str, ...] = ()
    """Paths with their mount. They must exist when the step begins."""
    outputs: tuple[tuple[str, str], ...] = ()
    """Pairs of a name and a path below `@project/` that must exist when the step ends."""
    terminal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A transition from one step to another."""

    source: str
    target: str
    label: str = "next"
    condition: str = ""
    """Text for the model; nothing here evaluates it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Steps and transitions, in the order of the file."""

    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...]
    entry: str

    def edges_from(self, node_id: str) -> tuple[Edge, ...]:
        """Return the transitions from a step."""
        return tuple(edge for edge in self.edges if edge.source == node_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A file that an agent loads first, or a rule that it always follows."""

    load: str = ""
    """Path of the file, with its mount; empty for a rule."""
    rule: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """An agent as its file describes it."""

    id: str
    name: str
    title: str = ""
    model: str | None = None
    tools: tuple[str, ...] | None = None
    """Patterns of tools as in rules (`fs.read`, `fs.*`, `mcp:git`); None: all tools."""
    actions: tuple[Action, ...] = ()
    persona: str = ""
    """Text with known placeholders filled in."""
    unfilled: tuple[str, ...] = ()
    """Placeholders without a value in persona and rules: `{planning_artifacts}`."""
    file: str = ""
    """Path of its file, for people: `agents/mira.md`."""
    is_own: bool = False
    """True if its file is in the person's home folder, so that nobody else wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A valid package."""

    id: str
    name: str
    path: Path
    """Absolute path as the person named it: a folder or a zip."""
    root: Path
    """Folder with its files; for a zip, the folder where it was unpacked."""
    sha256: str
    """Hash of the names and bytes of all its files."""
    graph: Graph
    graph_file: str | None
    """`workflow.graph.json`; None if the graph was made from the numbers of the steps."""
    main_file: str
    """`workflow.md` or `SKILL.md`: the rules, and the template of the document."""
    agents: Mapping[str, AgentSpec]
    agent: str | None
    """Default agent, for steps that name none."""
    rules: str
    """Body of the main file, with known placeholders filled in."""
    template: str
    """The main file, unchanged."""
    values: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values of placeholders, for the model: `{"communication_language": "English"}`."""
    unfilled: tuple[str, ...] = ()
    """Placeholders without a value in the rules and the steps, each once."""
    notes: tuple[str, ...] = ()
    """For the person: that the graph was made from the numbers of the steps, and the like."""

    def agent_of(self, node_id: str) -> AgentSpec | None:
        """Return the agent of a step: its own, else the package's default."""
        node = self.graph.nodes.get(node_id)
        named = (node.agent if node else None) or self.agent
        return self.agents[named] if named else None
