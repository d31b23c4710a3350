"""`workflow.graph.json`: its nodes and edges with their lines, and whether a graph can be walked.

Owns every check of a graph. What a graph is made of where there is no such file is `steps`'.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

from nbagent.contracts.canonical import json_object
from nbagent.files.names import visible
from nbagent.files.writing import TEMPORARY
from nbagent.workflow.agents import unknown_agent
from nbagent.workflow.fields import Fields
from nbagent.workflow.graph import Edge, Fault, Graph, Node
from nbagent.workflow.placeholders import Marks, is_line
from nbagent.workflow.source import Source

GRAPH_FILE = "workflow.graph.json"
_MOUNTS = ("@project", "@pkg", "@state")
_NODE_KEYS = ("id", "stepFile", "agentId", "inputs", "outputsMap", "terminal")
_EDGE_KEYS = ("from", "to", "label", "condition")
_LABEL_CHARS, _CONDITION_CHARS = 80, 500
_GAP = re.compile(r"[\s,:]*")


class Place(NamedTuple):
    """Where a person has to look."""

    file: str
    line: int | None = None


Placed = tuple[Node, Place]
PlacedEdge = tuple[Edge, Place]
Ways = Mapping[str, Sequence[str]]


def read_graph(
    source: Source, *, marks: Marks, agents: Collection[str], faults: list[Fault]
) -> tuple[list[Placed], list[PlacedEdge]] | None:
    """The nodes and edges of the file as far as they can be read; None where it is no JSON."""
    text = source.text(GRAPH_FILE, faults)
    if text is None:
        return None
    nodes, edges = list[Placed](), list[PlacedEdge]()
    try:
        if not isinstance(json.loads(text), dict):
            raise ValueError("it is no JSON object")
        for key, value, line, twice in _entries(text):
            place = Place(GRAPH_FILE, line)
            for name in twice:
                why = f"the key {visible(name)!r} stands here twice; keep one of them"
                faults.append(Fault(*place, why))
            entry = json_object(value)
            if entry is None:
                faults.append(Fault(*place, f"this entry of {key} is no JSON object; write one"))
                continue
            fields = Fields(GRAPH_FILE, entry, line, faults)
            if key == "nodes" and (node := _node(fields, source, marks, agents)):
                nodes.append((node, place))
            elif key == "edges" and (edge := _edge(fields)):
                edges.append((edge, place))
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        why = f"it is not JSON that can be read ({error}); write an object with nodes and edges"
        faults.append(Fault(GRAPH_FILE, line, why))
        return None
    return nodes, edges


def _entries(text: str) -> Iterator[tuple[str, Any, int, list[str]]]:
    """Each entry of the lists at the top: key, value, line, and keys that stand twice so far.

    The text is known to be a JSON object.
    """
    twice: list[str] = []

    def pairs(given: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(key for key, _ in given)
        twice.extend(key for key, count in counts.items() if count > 1)
        return dict(given)

    decoder = json.JSONDecoder(object_pairs_hook=pairs)
    keys: set[str] = set()
    at = _after_gap(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = decoder.raw_decode(text, at)
        twice += [key] if key in keys else []
        keys.add(key)
        at = _after_gap(text, at)
        if text[at] != "[":
            _, at = decoder.raw_decode(text, at)
        else:
            at = _after_gap(text, at + 1)
            while text[at] != "]":
                line = text.count("\n", 0, at) + 1
                value, at = decoder.raw_decode(text, at)
                yield key, value, line, twice
                twice.clear()
                at = _after_gap(text, at)
            at += 1
        at = _after_gap(text, at)


def _after_gap(text: str, at: int) -> int:
    return cast("re.Match[str]", _GAP.match(text, at)).end()


def _node(fields: Fields, source: Source, marks: Marks, agents: Collection[str]) -> Node | None:
    """A node; None where it has no id that could be used."""
    fields.check_keys(_NODE_KEYS)
    node_id = fields.id("id")
    agent = fields.id("agentId") if "agentId" in fields.values else ""
    if agent and agent not in agents:
        fields.wrong("agentId", unknown_agent(agent, agents))
    terminal = fields.values.get("terminal", False)
    if not isinstance(terminal, bool):
        fields.wrong("terminal", "terminal is true or false; write one of them")
    node = Node(
        id=node_id,
        step_file=_step_file(fields, source, marks),
        agent=agent or None,
        inputs=_inputs(fields, source, marks),
        outputs=_outputs(fields, marks),
        terminal=terminal is True,
    )
    return node if node_id else None


def _edge(fields: Fields) -> Edge | None:
    """An edge; None where its ends cannot be used."""
    fields.check_keys(_EDGE_KEYS)
    source, target = fields.id("from"), fields.id("to")
    label = fields.line("label", _LABEL_CHARS) or "next"
    condition = fields.line("condition", _CONDITION_CHARS)
    if not source or not target:
        return None
    return Edge(source=source, target=target, label=label, condition=condition)


def _step_file(fields: Fields, source: Source, marks: Marks) -> str:
    """Its path below the package."""
    value = fields.values.get("stepFile")
    if value is None:
        fields.wrong("stepFile", "stepFile is missing; write the path of the step's text")
        return ""
    path = fields.path("stepFile", value, marks, mount="@pkg", source=source)
    if path and not path.startswith("@pkg/"):
        fields.wrong("stepFile", f"stepFile {visible(path)} lies outside of the package; put it in")
    return path.removeprefix("@pkg/")


def _inputs(fields: Fields, source: Source, marks: Marks) -> tuple[str, ...]:
    value: Any = fields.values.get("inputs", [])
    if not isinstance(value, list):
        fields.wrong("inputs", "inputs is a list of paths; write one")
        return ()
    paths = [fields.path("inputs", it, marks, source=source) for it in cast("list[Any]", value)]
    for path in paths:
        if path and path.partition("/")[0] not in _MOUNTS:
            why = f"the input {visible(path)} has another mount than {', '.join(_MOUNTS)}"
            fields.wrong("inputs", why)
    return tuple(paths)


def _outputs(fields: Fields, marks: Marks) -> tuple[tuple[str, str], ...]:
    outputs: list[tuple[str, str]] = []
    for name, value in fields.mapping("outputsMap").items():
        if not is_line(name):
            why = f"the output {visible(repr(name))} is not one printable line; rename it"
            fields.wrong("outputsMap", why)
        path = fields.path("outputsMap", value, marks)
        parts = path.casefold().split("/")
        why = ""
        if path and not path.startswith("@project/"):
            why = "leaves @project/; write it below it"
        elif ".git" in parts or parts[1:2] == [".nbagent"] or f"/{TEMPORARY}" in path:
            why = "could not be written, as its name is kept for others; choose another one"
        if why:
            fields.wrong("outputsMap", f"the output {visible(path)} {why}")
        outputs.append((name, path))
    return tuple(outputs)


def check_graph(
    nodes: Sequence[Placed],
    edges: Sequence[PlacedEdge],
    *,
    entry: str | None,
    entry_place: Place,
    faults: list[Fault],
) -> Graph | None:
    """The graph, or None: each node can be reached and leads to an end, each edge is clear.

    It begins with `entry`, or with the one node that no edge leads to.
    """
    places: dict[str, Place] = {}
    for node, place in nodes:
        first = places.setdefault(node.id, place)
        if first is not place:
            there = ":".join(str(it) for it in first if it)
            why = f"the id {node.id!r} stands here a second time, first at {there}; rename one"
            faults.append(Fault(*place, why))
    kept = _clear_edges(edges, places, faults)
    ways: dict[str, list[str]] = {node_id: [] for node_id in places}
    for edge in kept:
        ways[edge.source].append(edge.target)
    by_id = {node.id: node for node, _ in nodes}
    entry = _entry(entry, entry_place, ways, faults)
    if entry:
        reached = _reached([entry], ways)
        for node_id in (it for it in places if it not in reached):
            why = f"no way leads from {entry!r} to {node_id!r}; add an edge, or take it out"
            faults.append(Fault(*places[node_id], why))
    _check_ends(by_id, ways, places, faults)
    if entry is None:
        return None
    return Graph(nodes=by_id, edges=tuple(kept), entry=entry)


def _clear_edges(
    edges: Sequence[PlacedEdge], places: Mapping[str, Place], faults: list[Fault]
) -> list[Edge]:
    """The edges between two nodes that are there, one for each pair."""
    kept: dict[tuple[str, str], Edge] = {}
    for edge, place in edges:
        unknown = [end for end in (edge.source, edge.target) if end not in places]
        for end in unknown:
            faults.append(Fault(*place, f"there is no node {end!r}; add it, or correct the edge"))
        pair = (edge.source, edge.target)
        if edge.source == edge.target:
            why = f"the edge leads from {edge.source!r} to itself; a step is repeated by its text"
            faults.append(Fault(*place, why))
        elif pair in kept:
            why = f"a second edge leads from {pair[0]!r} to {pair[1]!r}; join them in one"
            faults.append(Fault(*place, why))
        elif not unknown:
            kept[pair] = edge
    return list(kept.values())


def _entry(named: str | None, place: Place, ways: Ways, faults: list[Fault]) -> str | None:
    if named in ways:
        return named
    targets = set(chain.from_iterable(ways.values()))
    first = [node_id for node_id in ways if node_id not in targets]
    if named is not None:
        why = f"there is no node {named!r} to begin with; name one as entry"
    elif not ways:
        place, why = Place(GRAPH_FILE, 1), "it has no node; write at least one"
    elif len(first) == 1:
        return first[0]
    else:
        found = f"{len(first)} nodes ({', '.join(first[:10])})" if first else "no node"
        why = f"{found} could be the one to begin with; name it in the front matter: entry: ID"
    faults.append(Fault(*place, why))
    return None


def _check_ends(
    nodes: Mapping[str, Node], ways: Ways, places: Mapping[str, Place], faults: list[Fault]
) -> None:
    """Every node leads to a terminal one, and nothing leads on from there."""
    back: dict[str, list[str]] = {node_id: [] for node_id in nodes}
    for node_id, targets in ways.items():
        for target in targets:
            back[target].append(node_id)
        if nodes[node_id].terminal and targets:
            why = f"{node_id!r} is terminal and has edges that lead on; take one of both away"
            faults.append(Fault(*places[node_id], why))
        elif not nodes[node_id].terminal and not targets:
            why = f"nothing follows {node_id!r} (a dead end); add an edge, or make it terminal"
            faults.append(Fault(*places[node_id], why))
    ends = [node_id for node_id in nodes if nodes[node_id].terminal or not ways[node_id]]
    left = nodes.keys() - _reached(ends, back)
    closed = [node_id for node_id in nodes if node_id in left]
    if closed:
        why = f"no way leads out of the cycle {', '.join(closed[:20])}; add an edge to a way out"
        faults.append(Fault(*places[closed[0]], why))


def _reached(start: Sequence[str], ways: Ways) -> set[str]:
    reached, left = set(start), deque(start)
    while left:
        new = [node_id for node_id in ways[left.popleft()] if node_id not in reached]
        reached.update(new)
        left.extend(new)
    return reached
