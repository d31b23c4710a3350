"""Packages made by the tests: a graph in short words, written into a folder with all its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nbagent import Question, offline
from nbagent.contracts.model import ChatRequest
from nbagent.providers.offline.stream import ScriptedAnswer

STATE = "@state/workflow.md"
DIRECTIVE = """\
RUN_DIRECTIVE
- runType: bmad-micro
- intent: {intent}
- workflow: flow
- state: @state/workflow.md
- graph: {graph}
- artifactsRoot: @project/artifacts/
- currentNodeId: {node}
- effectiveAgentId: {agent}
- autopilot: {autopilot}"""
LOOP = {"draft": {"check": "next"}, "check": {"draft": "again", "done": "good"}, "done": {}}
"""A branch and a loop: steps, and where each leads by which label."""


def make_package(
    folder: Path,
    ways: Mapping[str, Mapping[str, str]] = LOOP,
    *,
    outputs: Mapping[str, Mapping[str, str]] | None = None,
    inputs: Mapping[str, Sequence[str]] | None = None,
    agents: Mapping[str, str] | None = None,
    of: Mapping[str, str] | None = None,
    front: str = "",
    rules: str = "Keep it short.",
    conditions: Mapping[tuple[str, str], str] | None = None,
) -> Path:
    """Write a package.

    Args:
        outputs: of a step: names and paths; `inputs`: paths.
        agents: the text of each agent's file; `of`: the agent of a step.
        front: further lines of the front matter.
        conditions: of an edge.
    """
    (folder / "steps").mkdir(parents=True)
    nodes: list[dict[str, Any]] = []
    for name, out in ways.items():
        (folder / "steps" / f"{name}.md").write_text(f"# {name}\n\nDo {name}.\n")
        node: dict[str, Any] = {"id": name, "stepFile": f"steps/{name}.md"}
        node |= {"outputsMap": dict((outputs or {}).get(name, {}))}
        node |= {"inputs": list((inputs or {}).get(name, ()))}
        node |= {"agentId": (of or {})[name]} if name in (of or {}) else {}
        nodes.append(node if out else {**node, "terminal": True})
    edges = [
        {"from": a, "to": b, "label": label, "condition": (conditions or {}).get((a, b), "")}
        for a, out in ways.items()
        for b, label in out.items()
    ]
    graph = {"nodes": nodes, "edges": [{k: v for k, v in e.items() if v} for e in edges]}
    (folder / "workflow.graph.json").write_text(json.dumps(graph, indent=1))
    entry = next(iter(ways))
    head = f"---\nid: {folder.name}\nname: Test flow\nentry: {entry}\n{front}---\n"
    (folder / "workflow.md").write_text(f"{head}# Rules\n\n{rules}\n")
    for name, text in (agents or {}).items():
        (folder / "agents").mkdir(exist_ok=True)
        (folder / "agents" / f"{name}.md").write_text(text)
    return folder


def directive(
    intent: str,
    node: str,
    agent: str = "none",
    *,
    autopilot: str = "false",
    graph: str = "@pkg/workflow.graph.json",
) -> str:
    """RUN_DIRECTIVE of the workflow `flow`, as the model has to read it."""
    return DIRECTIVE.format(intent=intent, node=node, agent=agent, autopilot=autopilot, graph=graph)


def allow(question: Question) -> bool:
    """Answers every question."""
    return True


def patch(**update: Any) -> ScriptedAnswer:
    """A call that updates the document; `stepsCompleted_append="a"` for the dotted key."""
    return offline.call(
        "fs.apply_patch",
        path=STATE,
        operation="updateFrontmatter",
        update={key.replace("_", "."): value for key, value in update.items()},
    )


def move(here: str, there: str) -> ScriptedAnswer:
    """A call that ends a step and goes to the next."""
    return patch(stepsCompleted_append=here, currentNodeId_set=there)


def said(request: ChatRequest) -> list[str]:
    """The texts of the user's messages in a request."""
    return [message.text for message in request.messages if message.role == "user"]


def script(
    *steps: ScriptedAnswer | str | Callable[[ChatRequest], ScriptedAnswer | str],
) -> offline.Script:
    """A model that does these steps."""
    return offline.script(list(steps))
