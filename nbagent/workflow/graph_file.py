"""`workflow.graph.json`: its nodes and edges with their lines, and whether a graph can be walked.

Owns every check of a graph. What a graph is made of where there is no such file is `steps`'.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ToolError
from nbagent.files.names import path_parts, visible
from nbagent.workflow.agents import is_id
from nbagent.workflow.graph import Edge, Fault, Graph, Node
from nbagent.workflow.unpacking import Source
from nbagent.workflow.variables import Marks, UnknownMark, is_line

GRAPH_FILE = "workflow.graph.json"
_MOUNTS = ("@project", "@pkg", "@state")
_NODE_KEYS = ("id", "stepFile", "agentId", "inputs", "outputsMap", "terminal")
_EDGE_KEYS = ("from", "to", "label", "condition")
_LABEL_CHARS, _CONDITION_CHARS, _PATH_CHARS = 80, 500, 1_000
_GAP = re.compile(r"[\s,:]*")


class Place(NamedTuple):
    """Where a person has to look."""

    file: str
    line: int | None = None


Placed = tuple[Node, Place]
PlacedEdge = tuple[Edge, Place]


def read_graph(
    source: Source, *, marks: Marks, agents: Collection[str], faults: list[Fault]
) -> tuple[list[Placed], list[PlacedEdge]] | None:
    """The nodes and edges of the file as far as they can be read; None where it is no JSON."""
    text = source.text(GRAPH_FILE, faults)
    if text is None:
        return None
    reader = _Reader(source, marks, agents, faults)
    nodes, edges = list[Placed](), list[PlacedEdge]()
    try:
        if not isinstance(json.loads(text), dict):
            raise ValueError("it is no JSON object")
        for key, value, line, twice in _entries(text):
            place = Place(GRAPH_FILE, line)
            for name in twice:
                reader.wrong(place, f"the key {name!r} stands here twice; keep one of them")
            if key == "nodes" and (node := reader.node(value, place)):
                nodes.append((node, place))
            elif key == "edges" and (edge := reader.edge(value, place)):
                edges.append((edge, place))
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        why = f"it is not JSON that can be read ({error}); write an object with nodes and edges"
        faults.append(Fault(GRAPH_FILE, line, why))
        return None
    return nodes, edges


def _entries(text: str) -> Iterator[tuple[str, Any, int, list[str]]]:
    """Each entry of the top-level lists: key, value, line, and keys that stand twice in it.

    The text is known to be a JSON object.
    """
    twice: list[str] = []

    def pairs(given: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(key for key, _ in given)
        twice.extend(key for key, count in counts.items() if count > 1)
        return dict(given)

    decoder = json.JSONDecoder(object_pairs_hook=pairs)
    line_ends = [match.start() for match in re.finditer("\n", text)]
    keys: set[str] = set()
    at = _after_gap(text, text.index("{") + 1)
    while text[at] != "}":
        key, after = decoder.raw_decode(text, at)
        if key in keys:
            yield "", None, bisect_left(line_ends, at) + 1, [key]
        keys.add(key)
        at = _after_gap(text, after)
        is_list = text[at] == "["
        at = _after_gap(text, at + 1) if is_list else at
        while not is_list or text[at] != "]":
            value, after = decoder.raw_decode(text, at)
            yield key, value, bisect_left(line_ends, at) + 1, twice
            twice.clear()
            at = _after_gap(text, after)
            if not is_list:
                break
        at = _after_gap(text, at + 1) if is_list else at


def _after_gap(text: str, at: int) -> int:
    return cast("re.Match[str]", _GAP.match(text, at)).end()


class _Reader:
    """Makes nodes and edges of JSON; what is wrong becomes a fault at its place."""

    def __init__(
        self, source: Source, marks: Marks, agents: Collection[str], faults: list[Fault]
    ) -> None:
        self.source, self.marks, self.agents, self.faults = source, marks, agents, faults

    def wrong(self, place: Place, why: str) -> None:
        self.faults.append(Fault(*place, why))

    def node(self, value: Any, place: Place) -> Node | None:
        """A node; None where it has no id that could be used."""
        fields = self._fields(value, place, "node", _NODE_KEYS)
        node_id = self._id(fields, "id", place)
        agent = "" if fields.get("agentId") is None else self._id(fields, "agentId", place)
        if agent and agent not in self.agents:
            there = ", ".join(self.agents) or "none; put it into agents/"
            self.wrong(place, f"there is no agent {agent!r}; there are: {there}")
        terminal = fields.get("terminal", False)
        if not isinstance(terminal, bool):
            self.wrong(place, "terminal is true or false; write one of them")
        node = Node(
            id=node_id,
            step_file=self._step_file(fields, place),
            agent=agent or None,
            inputs=self._inputs(fields.get("inputs"), place),
            outputs=self._outputs(fields.get("outputsMap"), place),
            terminal=terminal is True,
        )
        return node if node_id else None

    def edge(self, value: Any, place: Place) -> Edge | None:
        """An edge; None where its ends cannot be used."""
        fields = self._fields(value, place, "edge", _EDGE_KEYS)
        source, target = (self._id(fields, key, place) for key in ("from", "to"))
        label = self._line(fields, "label", place, _LABEL_CHARS) or "next"
        condition = self._line(fields, "condition", place, _CONDITION_CHARS)
        if not source or not target:
            return None
        return Edge(source=source, target=target, label=label, condition=condition)

    def _fields(
        self, value: Any, place: Place, kind: str, known: Sequence[str]
    ) -> Mapping[str, Any]:
        fields = json_object(value)
        if fields is None:
            self.wrong(place, f"this {kind} is no JSON object; write one with {', '.join(known)}")
        for key in fields or ():
            if key not in known:
                there = ", ".join(known)
                self.wrong(place, f"a {kind} has no key {visible(key)!r}; there are {there}")
        return fields or {}

    def _id(self, fields: Mapping[str, Any], key: str, place: Place) -> str:
        value = fields.get(key)
        if isinstance(value, str) and is_id(value):
            return value
        shown = "is missing" if value is None else f"{_shown(value)} is no id"
        self.wrong(place, f"{key} {shown}; write up to 80 letters, digits, _ . or -")
        return ""

    def _line(self, fields: Mapping[str, Any], key: str, place: Place, most: int) -> str:
        value = fields.get(key)
        if value is None or value == "" or (isinstance(value, str) and is_line(value, most)):
            return value or ""
        self.wrong(place, f"{key} is not one printable line of at most {most} characters")
        return ""

    def _path(self, key: str, value: Any, place: Place, mount: str) -> tuple[str, str]:
        """Mount and path below it; two empty texts where it is none."""
        try:
            if not isinstance(value, str) or not is_line(value, _PATH_CHARS):
                raise ToolError("write it as one printable line of text")
            path = self.marks.path(value.strip())
            first, *rest = path_parts(path) or ("",)
            if first.startswith("@"):
                mount, first = first, ""
            if "{" in path or "}" in path:
                raise ToolError("a mark in it has no value; give one in config")
            below = "/".join((first, *rest) if first else rest)
            if not below or mount not in _MOUNTS:
                raise ToolError(f"write a path below one of {', '.join(_MOUNTS)}")
        except (ToolError, UnknownMark) as error:
            why = getattr(error, "message", f"{error}; give one in config, or write it out")
            self.wrong(place, f"{key} {_shown(value)} is no path: {why}")
            return "", ""
        return mount, below

    def _step_file(self, fields: Mapping[str, Any], place: Place) -> str:
        value = fields.get("stepFile")
        if value is None:
            self.wrong(place, "stepFile is missing; write the path of the step's text")
            return ""
        mount, path = self._path("stepFile", value, place, "@pkg")
        if path and mount != "@pkg":
            self.wrong(place, f"stepFile {_shown(value)} lies outside of the package; put it there")
        elif path and path not in self.source.files:
            self.wrong(place, self.source.why_missing(path))
        return path

    def _inputs(self, value: Any, place: Place) -> tuple[str, ...]:
        if not isinstance(value, list | None):
            self.wrong(place, "inputs is a list of paths; write one")
            return ()
        items = cast("list[Any]", value or [])
        paths = [self._path("input", item, place, "@project") for item in items]
        for mount, path in paths:
            if mount == "@pkg" and path not in self.source.files:
                self.wrong(place, self.source.why_missing(path))
        return tuple(f"{mount}/{path}" for mount, path in paths)

    def _outputs(self, value: Any, place: Place) -> tuple[tuple[str, str], ...]:
        pairs = {} if value is None else json_object(value)
        if pairs is None:
            self.wrong(place, "outputsMap is an object of names and paths; write one")
        outputs: list[tuple[str, str]] = []
        for name, item in (pairs or {}).items():
            if not is_line(name, _PATH_CHARS):
                self.wrong(place, f"the output {_shown(name)} is not one printable line; rename it")
            mount, path = self._path("output", item, place, "@project")
            if path and mount != "@project":
                self.wrong(place, f"the output {_shown(item)} leaves @project/; write it below it")
            outputs.append((name, f"{mount}/{path}"))
        return tuple(outputs)


def _shown(value: object) -> str:
    return visible(repr(value))


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
        if places.setdefault(node.id, place) is not place:
            faults.append(Fault(*place, f"the id {node.id!r} stands here a second time; rename it"))
    kept = _clear_edges(edges, places, faults)
    ways: dict[str, list[str]] = {node_id: [] for node_id in places}
    for edge in kept:
        ways[edge.source].append(edge.target)
    by_id = {node.id: node for node, _ in nodes}
    entry = _entry(entry, entry_place, by_id, kept, faults)
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


def _entry(
    named: str | None,
    place: Place,
    nodes: Mapping[str, Node],
    edges: Sequence[Edge],
    faults: list[Fault],
) -> str | None:
    if named in nodes:
        return named
    targets = {edge.target for edge in edges}
    first = [node_id for node_id in nodes if node_id not in targets]
    if named is not None:
        why = f"there is no node {named!r} to begin with; name one as entry"
    elif not nodes:
        place, why = Place(GRAPH_FILE, 1), "it has no node; write at least one"
    elif len(first) == 1:
        return first[0]
    else:
        found = f"{len(first)} nodes ({', '.join(first[:10])})" if first else "no node"
        why = f"{found} could be the one to begin with; name it in the front matter: entry: ID"
    faults.append(Fault(*place, why))
    return None


def _check_ends(
    nodes: Mapping[str, Node],
    ways: Mapping[str, Sequence[str]],
    places: Mapping[str, Place],
    faults: list[Fault],
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


def _reached(start: Sequence[str], ways: Mapping[str, Sequence[str]]) -> set[str]:
    reached, left = set(start), deque(start)
    while left:
        new = [node_id for node_id in ways[left.popleft()] if node_id not in reached]
        reached.update(new)
        left.extend(new)
    return reached
