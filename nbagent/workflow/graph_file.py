"""Reads `workflow.graph.json` into nodes and edges with their lines, and checks a graph.

Owns every check of a graph. Without such a file, `steps` makes the graph.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

from nbagent.contracts.canonical import json_object
from nbagent.contracts.nearest import nearest_hint
from nbagent.files.names import visible
from nbagent.files.writing import TEMPORARY
from nbagent.workflow.agents import unknown_agent
from nbagent.workflow.fields import Fields
from nbagent.workflow.graph import Edge, Graph, Node, Problem
from nbagent.workflow.placeholders import Placeholders, is_single_line
from nbagent.workflow.source import Source

GRAPH_FILE = "workflow.graph.json"
_MOUNTS = ("@project", "@pkg", "@state")
_NODE_KEYS = ("id", "stepFile", "agentId", "inputs", "outputsMap", "terminal")
_EDGE_KEYS = ("from", "to", "label", "condition")
_LABEL_CHARS, _CONDITION_CHARS = 80, 500
# Commas and colons are skipped like blanks: the text was checked to be JSON before.
_GAP = re.compile(r"[\s,:]*")


class Location(NamedTuple):
    """File and line of a problem."""

    file: str
    line: int | None = None


LocatedNode = tuple[Node, Location]
LocatedEdge = tuple[Edge, Location]
Adjacency = Mapping[str, Sequence[str]]


def read_graph(
    source: Source, *, placeholders: Placeholders, agents: Collection[str], problems: list[Problem]
) -> tuple[list[LocatedNode], list[LocatedEdge]] | None:
    """Read the nodes and edges of the file that are readable; None if it is not JSON."""
    text = source.text(GRAPH_FILE, problems)
    if text is None:
        return None
    nodes, edges = list[LocatedNode](), list[LocatedEdge]()
    try:
        if not isinstance(json.loads(text), dict):
            raise ValueError("it is not a JSON object")
        for key, value, line, duplicates in _entries(text):
            location = Location(GRAPH_FILE, line)
            for name in duplicates:
                why = f"the key {visible(name)!r} is here twice; keep one of them"
                problems.append(Problem(*location, why))
            entry = json_object(value)
            if entry is None:
                problems.append(
                    Problem(*location, f"this entry of {key} is not a JSON object; write one")
                )
                continue
            fields = Fields(GRAPH_FILE, entry, line, problems)
            if key == "nodes" and (node := _node(fields, source, placeholders, agents)):
                nodes.append((node, location))
            elif key == "edges" and (edge := _edge(fields)):
                edges.append((edge, location))
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        why = f"it is not JSON that can be read ({error}); write an object with nodes and edges"
        problems.append(Problem(GRAPH_FILE, line, why))
        return None
    return nodes, edges


def _entries(text: str) -> Iterator[tuple[str, Any, int, list[str]]]:
    """Yield each entry of the top-level lists: key, value, line, and duplicate keys so far.

    Needed because `json` reports neither lines nor duplicate keys. The text must be a valid JSON
    object.
    """
    duplicates: list[str] = []

    def to_object(items: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(key for key, _ in items)
        duplicates.extend(key for key, count in counts.items() if count > 1)
        return dict(items)

    decoder = json.JSONDecoder(object_pairs_hook=to_object)
    keys: set[str] = set()
    offset = _skip_gap(text, text.index("{") + 1)
    while text[offset] != "}":
        key, offset = decoder.raw_decode(text, offset)
        duplicates += [key] if key in keys else []
        keys.add(key)
        offset = _skip_gap(text, offset)
        if text[offset] != "[":
            _, offset = decoder.raw_decode(text, offset)
        else:
            offset = _skip_gap(text, offset + 1)
            while text[offset] != "]":
                line = text.count("\n", 0, offset) + 1
                value, offset = decoder.raw_decode(text, offset)
                yield key, value, line, duplicates
                duplicates.clear()
                offset = _skip_gap(text, offset)
            offset += 1
        offset = _skip_gap(text, offset)


def _skip_gap(text: str, offset: int) -> int:
    return cast("re.Match[str]", _GAP.match(text, offset)).end()


def _node(
    fields: Fields, source: Source, placeholders: Placeholders, agents: Collection[str]
) -> Node | None:
    """Read a node; None if it has no valid id."""
    fields.check_keys(_NODE_KEYS)
    node_id = fields.id("id")
    agent = fields.id("agentId") if "agentId" in fields.values else ""
    if agent and agent not in agents:
        fields.add_problem("agentId", unknown_agent(agent, agents))
    terminal = fields.values.get("terminal", False)
    if not isinstance(terminal, bool):
        fields.add_problem("terminal", "terminal is true or false; write one of them")
    node = Node(
        id=node_id,
        step_file=_step_file(fields, source, placeholders),
        agent=agent or None,
        inputs=_inputs(fields, source, placeholders),
        outputs=_outputs(fields, placeholders),
        terminal=terminal is True,
    )
    return node if node_id else None


def _edge(fields: Fields) -> Edge | None:
    """Read an edge; None if one of its ends is invalid."""
    fields.check_keys(_EDGE_KEYS)
    source, target = fields.id("from"), fields.id("to")
    label = fields.line("label", _LABEL_CHARS) or "next"
    condition = fields.line("condition", _CONDITION_CHARS)
    if not source or not target:
        return None
    return Edge(source=source, target=target, label=label, condition=condition)


def _step_file(fields: Fields, source: Source, placeholders: Placeholders) -> str:
    """Read the path of a step's file, below the package."""
    value = fields.values.get("stepFile")
    if value is None:
        fields.add_problem("stepFile", "stepFile is missing; write the path of the step's text")
        return ""
    path = fields.path("stepFile", value, placeholders, mount="@pkg", source=source)
    if path and not path.startswith("@pkg/"):
        fields.add_problem(
            "stepFile", f"stepFile {visible(path)} lies outside of the package; put it in"
        )
    return path.removeprefix("@pkg/")


def _inputs(fields: Fields, source: Source, placeholders: Placeholders) -> tuple[str, ...]:
    value: Any = fields.values.get("inputs", [])
    if not isinstance(value, list):
        fields.add_problem("inputs", "inputs is a list of paths; write one")
        return ()
    paths = [
        fields.path("inputs", item, placeholders, source=source)
        for item in cast("list[Any]", value)
    ]
    for path in paths:
        if path and path.partition("/")[0] not in _MOUNTS:
            why = f"the input {visible(path)} has another mount than {', '.join(_MOUNTS)}"
            fields.add_problem("inputs", why)
    return tuple(paths)


def _outputs(fields: Fields, placeholders: Placeholders) -> tuple[tuple[str, str], ...]:
    outputs: list[tuple[str, str]] = []
    for name, value in fields.mapping("outputsMap").items():
        if not is_single_line(name):
            why = f"the output {visible(repr(name))} is not one printable line; rename it"
            fields.add_problem("outputsMap", why)
        path = fields.path("outputsMap", value, placeholders)
        parts = path.casefold().split("/")
        why = ""
        if path and not path.startswith("@project/"):
            why = "leaves @project/; write it below it"
        # The file tools refuse these names, so a step with such an output could never end.
        elif ".git" in parts or parts[1:2] == [".nbagent"] or f"/{TEMPORARY}" in path:
            why = "has a reserved name and could not be written; choose another one"
        if why:
            fields.add_problem("outputsMap", f"the output {visible(path)} {why}")
        outputs.append((name, path))
    return tuple(outputs)


def check_graph(
    nodes: Sequence[LocatedNode],
    edges: Sequence[LocatedEdge],
    *,
    entry: str | None,
    entry_location: Location,
    problems: list[Problem],
) -> Graph | None:
    """Check that each node can be reached and leads to an end, and that each edge is unambiguous.

    The graph begins with `entry`, or with the only node that no edge leads to. None without one.
    """
    locations: dict[str, Location] = {}
    for node, location in nodes:
        first = locations.setdefault(node.id, location)
        if first is not location:
            first_location = ":".join(str(part) for part in first if part)
            why = f"the id {node.id!r} is used twice, first at {first_location}; rename one"
            problems.append(Problem(*location, why))
    graph_edges = _valid_edges(edges, locations, problems)
    adjacency: dict[str, list[str]] = {node_id: [] for node_id in locations}
    for edge in graph_edges:
        adjacency[edge.source].append(edge.target)
    by_id = {node.id: node for node, _ in nodes}
    entry = _find_entry(entry, entry_location, adjacency, problems)
    if entry:
        reached = _reachable([entry], adjacency)
        for node_id in (node for node in locations if node not in reached):
            why = f"{node_id!r} cannot be reached from {entry!r}; add an edge, or remove the node"
            problems.append(Problem(*locations[node_id], why))
    _check_ends(by_id, adjacency, locations, problems)
    if entry is None:
        return None
    return Graph(nodes=by_id, edges=tuple(graph_edges), entry=entry)


def _valid_edges(
    edges: Sequence[LocatedEdge], locations: Mapping[str, Location], problems: list[Problem]
) -> list[Edge]:
    """Return the valid edges between existing nodes, one for each pair."""
    edges_by_pair: dict[tuple[str, str], Edge] = {}
    for edge, location in edges:
        unknown = [end for end in (edge.source, edge.target) if end not in locations]
        for end in unknown:
            problems.append(
                Problem(*location, f"there is no node {end!r}; add it, or correct the edge")
            )
        pair = (edge.source, edge.target)
        if edge.source == edge.target:
            why = f"the edge leads from {edge.source!r} to itself; a step is repeated by its text"
            problems.append(Problem(*location, why))
        elif pair in edges_by_pair:
            why = f"a second edge leads from {pair[0]!r} to {pair[1]!r}; join them in one"
            problems.append(Problem(*location, why))
        elif not unknown:
            edges_by_pair[pair] = edge
    return list(edges_by_pair.values())


def _find_entry(
    requested: str | None, location: Location, adjacency: Adjacency, problems: list[Problem]
) -> str | None:
    if requested in adjacency:
        return requested
    targets = set(chain.from_iterable(adjacency.values()))
    first = [node_id for node_id in adjacency if node_id not in targets]
    if requested is not None:
        hint = nearest_hint(requested, adjacency) or "; name an existing one as entry"
        why = f"there is no node {requested!r}{hint}"
    elif not adjacency:
        location, why = Location(GRAPH_FILE, 1), "it has no node; write at least one"
    elif len(first) == 1:
        return first[0]
    else:
        candidates = f"{len(first)} nodes ({', '.join(first[:10])})" if first else "no node"
        why = f"{candidates} could be the entry; name it in the front matter: entry: ID"
    problems.append(Problem(*location, why))
    return None


def _check_ends(
    nodes: Mapping[str, Node],
    adjacency: Adjacency,
    locations: Mapping[str, Location],
    problems: list[Problem],
) -> None:
    """Check that every node leads to a terminal one, and that terminal nodes have no edges."""
    sources_by_target: dict[str, list[str]] = {node_id: [] for node_id in nodes}
    for node_id, targets in adjacency.items():
        for target in targets:
            sources_by_target[target].append(node_id)
        if nodes[node_id].terminal and targets:
            why = f"{node_id!r} is terminal and has edges to others; remove the edges or 'terminal'"
            problems.append(Problem(*locations[node_id], why))
        elif not nodes[node_id].terminal and not targets:
            why = f"nothing follows {node_id!r} (a dead end); add an edge, or make it terminal"
            problems.append(Problem(*locations[node_id], why))
    # Dead ends count as ends: they are reported already, and not once more as cycles.
    ends = [node_id for node_id in nodes if nodes[node_id].terminal or not adjacency[node_id]]
    trapped = nodes.keys() - _reachable(ends, sources_by_target)
    closed = [node_id for node_id in nodes if node_id in trapped]
    if closed:
        why = f"no edge leads out of the cycle {', '.join(closed[:20])}; add one to another node"
        problems.append(Problem(*locations[closed[0]], why))


def _reachable(start: Sequence[str], adjacency: Adjacency) -> set[str]:
    reached, queue = set(start), deque(start)
    while queue:
        new = [node_id for node_id in adjacency[queue.popleft()] if node_id not in reached]
        reached.update(new)
        queue.extend(new)
    return reached
