"""Describes a package as text for a person: agents, steps, and the progress of a document.

Pure. Makes texts short; callers that print them make them safe.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nbagent.workflow.graph import Action, Graph, Node, Package

_MAX_CHARS = 160
"""Longest text of a rule, a condition or a variable's value."""


def workflow_text(
    package: Package,
    *,
    current: str | None = None,
    completed: Sequence[str] = (),
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Describe a package: name, notes, agents, and steps with outputs and transitions.

    Args:
        package: a loaded package.
        current: the current step of a document, marked `▶`.
        completed: completed steps, in order; marked `✓`, and `✓×2` after a second visit.
        variables: variables of the document.
    """
    head = [_line(*dict.fromkeys((package.id, package.name)))]
    head += [f"  note: {_truncate(note)}" for note in package.notes]
    if unfilled := _unfilled(package):
        head.append(f"  placeholders without a value, left as written: {', '.join(unfilled)}")
    parts = [head]
    if package.agents:
        parts.append(["Agents", *_agents(package)])
    markers = _step_markers(package.graph, current, completed)
    parts.append([f"Steps, from {package.graph.entry}", *_steps(package, markers)])
    if current is not None or completed:
        parts.append(["So far", *_progress(package.graph, current, completed)])
    if variables:
        values = (f"  {_truncate(name)} = {_value(value)}" for name, value in variables.items())
        parts.append(["Variables", *values])
    return "\n\n".join("\n".join(part) for part in parts)


def _unfilled(package: Package) -> list[str]:
    """Return the placeholders without a value in the package and its agents, each once."""
    placeholders = [*package.unfilled]
    for agent in package.agents.values():
        placeholders += agent.unfilled
    return list(dict.fromkeys(map(_truncate, placeholders)))


def _agents(package: Package) -> Iterator[str]:
    for agent in package.agents.values():
        labels = [*dict.fromkeys((agent.id, agent.name, agent.title or agent.id))]
        labels += [f"model {agent.model}"] if agent.model is not None else []
        if agent.tools is not None:
            labels.append(f"tools {', '.join(agent.tools) or 'none'}")
        labels += ["where a step names none"] if agent.id == package.agent else []
        yield f"  {_line(*labels)}"
        yield from (f"      {_action(action)}" for action in agent.actions)


def _action(action: Action) -> str:
    return f"reads {action.load}" if action.load else f"rule: {_truncate(action.rule)}"


def _step_markers(graph: Graph, current: str | None, completed: Sequence[str]) -> dict[str, str]:
    """Make the marker before each step; empty without a document."""
    if current is None and not completed:
        return dict.fromkeys(graph.nodes, "")
    visits = Counter(completed)
    markers: dict[str, str] = {}
    for name in graph.nodes:
        times = f"×{visits[name]}" if visits[name] > 1 else ""
        markers[name] = ("▶ " if name == current else "  ") + ("✓" if visits[name] else "") + times
    width = max(map(len, markers.values())) + 1
    return {name: f"{marker:<{width}}" for name, marker in markers.items()}


def _steps(package: Package, markers: Mapping[str, str]) -> Iterator[str]:
    for node in package.graph.nodes.values():
        agent = package.agent_of(node.id)
        end = ["the end"] if node.terminal else []
        yield f"  {markers[node.id]}{_line(node.id, *([agent.id] if agent else []), *end)}"
        indent = " " * (len(markers[node.id]) + 4)
        yield from (f"{indent}{line}" for line in _step_details(node, package.graph))


def _step_details(node: Node, graph: Graph) -> Iterator[str]:
    if node.inputs:
        yield f"needs {', '.join(node.inputs)}"
    yield from (f"writes {path}" for _, path in node.outputs)
    for edge in graph.edges_from(node.id):
        condition = f": {_truncate(edge.condition)}" if edge.condition else ""
        yield f"→ {edge.target} ({edge.label}){condition}"


def _progress(graph: Graph, current: str | None, completed: Sequence[str]) -> Iterator[str]:
    path = [_truncate(name) for name in completed]
    ended = bool(completed) and completed[-1] == current
    if current is not None and not ended:
        path.append(f"▶ {_truncate(current)}")
    yield f"  {' → '.join(path)}"
    node = graph.nodes.get(current) if current is not None else None
    if current is not None and node is None:
        yield f"  {_truncate(current)} is not a step of this package"
    elif ended and node is not None:
        follow = ", ".join(edge.target for edge in graph.edges_from(node.id))
        yield "  complete" if node.terminal else f"  {node.id} has ended; next: {follow}"


def _value(value: Any) -> str:
    return _truncate(json.dumps(value, ensure_ascii=False, default=str))


def _line(*words: str) -> str:
    return " · ".join(map(_truncate, words))


def _truncate(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARS else f"{line[: _MAX_CHARS - 2]} …"
