"""Graph of a workflow: steps, edges, the path so far, the current step.

A run's record stores it as `GraphState` in `workflow.graph`. The tree is drawn from that and from
the run's turns, so a live run and a saved one look the same. Knows no package and no document.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic import ValidationError

from nbagent.contracts.canonical import json_object
from nbagent.contracts.messages import Value
from nbagent.contracts.records import RunRecord, ToolRun
from nbagent.view.node import Node, h
from nbagent.view.text_format import one_line, sanitize_value

MAX_STEPS = 120
"""Steps that are stored and drawn."""
_MAX_EDGES = 400
_NAME_CHARS = 120
"""Shown characters of a name or a condition."""


class Step(Value):
    """A step of a workflow."""

    id: str
    agent: str | None = None
    terminal: bool = False


class Edge(Value):
    """An edge from one step to another."""

    source: str
    target: str
    label: str = "next"
    condition: str = ""


class GraphState(Value):
    """A graph, and the position of its workflow when the run started."""

    steps: tuple[Step, ...]
    """Steps in the order of the file."""
    ways: tuple[Edge, ...] = ()
    completed: tuple[str, ...] = ()
    """Steps that had ended, in order. A step of a loop occurs several times."""
    here: str
    """The current step."""

    def bounded(self) -> GraphState:
        """Limit the graph to the size that a record stores."""
        edges = [
            edge.model_copy(update={"condition": one_line(edge.condition, _NAME_CHARS)})
            for edge in self.ways[:_MAX_EDGES]
        ]
        limited = {"steps": self.steps[:MAX_STEPS], "ways": tuple(edges)}
        return self.model_copy(update={**limited, "completed": self.completed[-MAX_STEPS:]})


def run_graph_node(run: RunRecord) -> Node | None:
    """Draw the workflow of a run at its present position; None if it has no workflow."""
    plan = _present_state(run)
    return None if plan is None else graph_node(plan)


def current_step(run: RunRecord) -> Step | None:
    """Return the step at which the workflow of a run is; None if it has no graph."""
    plan = _present_state(run)
    return next((step for step in plan.steps if step.id == plan.here), None) if plan else None


def _present_state(run: RunRecord) -> GraphState | None:
    """Return the graph at the present position; None if the run has no valid graph."""
    if run.workflow is None or run.workflow.graph is None:
        return None
    try:
        plan = GraphState.model_validate(run.workflow.graph).bounded()
    except ValidationError:  # a record from a notebook may hold anything
        return None
    path, here = list(plan.completed), plan.here
    for turn in run.turns:
        for step in (turn.node, *map(_transition_target, turn.tool_runs)):
            if step is not None and step != here:
                path.append(here)
                here = step
    if run.stop_reason == "workflow_complete":
        path.append(here)
    return plan.model_copy(update={"completed": tuple(path), "here": here})


def _transition_target(run: ToolRun) -> str | None:
    """Return the step to which a patch of the document moved the workflow; None if none did."""
    data = json_object(run.result.data) if run.result and run.result.ok else None
    move = json_object(data.get("transition")) if data and run.host == "fs" else None
    target: Any = move and move.get("to")
    return target if isinstance(target, str) else None


def graph_node(plan: GraphState) -> Node:
    """Draw a graph: the path in one line, and folded below it each step with its edges."""
    visits = Counter(plan.completed)
    ended = plan.completed[-1:] == (plan.here,)
    path = [*plan.completed[-12:], *([] if ended else [f"▶ {plan.here}"])]
    line = ("… → " if len(plan.completed) > 12 else "") + " → ".join(map(_short_name, path))
    done = len(visits.keys() & {step.id for step in plan.steps})
    order = {step.id: i for i, step in enumerate(plan.steps)}
    steps = [_step_node(step, plan, visits[step.id], ended, order) for step in plan.steps]
    return h(
        "details",
        "nba-flow",
        h("summary", "", h("strong", "", "Workflow "), line),
        h("ol", "nba-graph", *steps),
        title=f"{done} of {len(plan.steps)} steps done",
        data_key="graph",
        open="",
    )


def _step_node(
    step: Step, plan: GraphState, visits: int, ended: bool, order: dict[str, int]
) -> Node:
    is_here = step.id == plan.here and not ended
    mark = "▶ " if is_here else "✓ " if visits else ""
    facts = [f"×{visits}"] if visits > 1 else []
    facts += [_short_name(step.agent)] if step.agent else []
    facts += ["current step"] if is_here else []
    facts += ["the end"] if step.terminal else []
    edges = [
        h("div", "nba-way", _edge_text(edge, is_back=order.get(edge.target, 0) <= order[step.id]))
        for edge in plan.ways
        if edge.source == step.id
    ]
    look = "nba-here" if is_here else "nba-past" if visits else "nba-step"
    title = h(
        "div", "", mark, h("b", "", _short_name(step.id)), "".join(f" · {fact}" for fact in facts)
    )
    return h("li", look, title, *edges)


def _edge_text(edge: Edge, *, is_back: bool) -> str:
    condition = (
        f": {one_line(sanitize_value(edge.condition), _NAME_CHARS)}" if edge.condition else ""
    )
    arrow = "↺ back to" if is_back else "→"
    return f"{arrow} {_short_name(edge.target)} ({_short_name(edge.label)}){condition}"


def _short_name(text: str) -> str:
    return one_line(sanitize_value(text), _NAME_CHARS)
