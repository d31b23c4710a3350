"""A workflow as values: its steps, the edges between them, its agents, and the whole package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nbagent.contracts.errors import UsageError
from nbagent.files.names import visible


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a package that cannot be used."""

    file: str
    """Below the package: `workflow.graph.json`; empty where it is about the package itself."""
    line: int | None
    """From 1; None where no line is meant."""
    text: str
    """What is wrong and what to do, one sentence without a full stop."""

    def __str__(self) -> str:
        location = f"{visible(self.file)}:{self.line}" if self.line else visible(self.file)
        return f"{location}: {self.text}" if location else self.text


class PackageError(UsageError):
    """A package, an agent or a document cannot be used; all that is wrong with it, at once.

    Attributes:
        faults: each with its file and line.
    """

    def __init__(self, subject: str, problems: tuple[Problem, ...]) -> None:
        n = len(problems)
        listed = "; ".join(map(str, problems))
        super().__init__(f"{subject} has {n} fault{'s' * (n != 1)}: {listed}")
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One step of a workflow."""

    id: str
    step_file: str
    """Below the package: `steps/step-01-select.md`."""
    agent: str | None = None
    inputs: tuple[str, ...] = ()
    """Paths with their mount that have to be there when the step begins."""
    outputs: tuple[tuple[str, str], ...] = ()
    """Pairs of a name and a path below `@project/`, which has to be there when the step ends."""
    terminal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A way from one step to another."""

    source: str
    target: str
    label: str = "next"
    condition: str = ""
    """Text for the model; nothing here evaluates it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The steps and the ways between them, in the order of the file."""

    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...]
    entry: str

    def edges_from(self, node_id: str) -> tuple[Edge, ...]:
        """What may follow a step."""
        return tuple(edge for edge in self.edges if edge.source == node_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that an agent does or keeps to before everything else."""

    load: str = ""
    """The path of a file that is read, with its mount; empty for a rule."""
    rule: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """An agent as its file describes it."""

    id: str
    name: str
    title: str = ""
    model: str | None = None
    tools: tuple[str, ...] | None = None
    """Patterns of tools as rules have them (`fs.read`, `fs.*`, `mcp:git`); None: all there are."""
    actions: tuple[Action, ...] = ()
    persona: str = ""
    """Its marks are filled in as far as they are known."""
    unfilled: tuple[str, ...] = ()
    """Marks of the persona and the rules that nothing gives a value for: `{planning_artifacts}`."""
    file: str = ""
    """Where it was read, for people: `agents/mira.md`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that was read, checked, and is in order."""

    id: str
    name: str
    path: Path
    """As a person gave it, absolute: a folder or a zip."""
    root: Path
    """The folder with its files; of a zip, where it was unpacked."""
    sha256: str
    """Of the names and bytes of all its files."""
    graph: Graph
    graph_file: str | None
    """`workflow.graph.json`; None where the graph was made from the numbers of the steps."""
    main_file: str
    """`workflow.md` or `SKILL.md`: the rules, and the template of the document."""
    agents: Mapping[str, AgentSpec]
    agent: str | None
    """The agent where a step names none."""
    rules: str
    """The body of the main file, its marks filled in as far as they are known."""
    template: str
    """The whole main file as it stands."""
    values: Mapping[str, str] = field(default_factory=dict[str, str])
    """What marks stand for, to tell the model: `{"communication_language": "English"}`."""
    unfilled: tuple[str, ...] = ()
    """Marks in the rules and the steps that nothing gives a value for, each once."""
    notes: tuple[str, ...] = ()
    """For the person: that the graph was made from the numbers of the steps, and the like."""

    def agent_of(self, node_id: str) -> AgentSpec | None:
        """The agent of a step: its own, else the package's."""
        node = self.graph.nodes.get(node_id)
        named = (node.agent if node else None) or self.agent
        return self.agents[named] if named else None
