"""The graph of a workflow: its steps, where each leads, the path so far, the current step.

`Plan` is what a run's record keeps of it (`options["graph"]`); the tree is drawn from that and from
the run's turns, so a live run and a saved one show the same. Knows no package and no document.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic import ValidationError

from nbagent.contracts.canonical import json_object
from nbagent.contracts.messages import Value
from nbagent.contracts.records import RunRecord, ToolRun
from nbagent.view.node import Node, h
from nbagent.view.words import one_line, visible

MOST_STEPS = 120
"""Are kept and drawn."""
_MOST_WAYS = 400
_CHARS = 120
"""Of a name or a condition."""


class Step(Value):
    """A step of a workflow."""

    id: str
    agent: str | None = None
    terminal: bool = False


class Way(Value):
    """An edge from one step to another."""

    source: str
    target: str
    label: str = "next"
    condition: str = ""


class Plan(Value):
    """A graph, and where its workflow stood when the run began."""

    steps: tuple[Step, ...]
    """In the order of the file."""
    ways: tuple[Way, ...] = ()
    completed: tuple[str, ...] = ()
    """The steps that had ended, in order; on a loop a step stands here several times."""
    here: str
    """The current step."""

    def bounded(self) -> Plan:
        """What a record keeps."""
        ways = [
            way.model_copy(update={"condition": one_line(way.condition, _CHARS)})
            for way in self.ways[:_MOST_WAYS]
        ]
        kept = {"steps": self.steps[:MOST_STEPS], "ways": tuple(ways)}
        return self.model_copy(update={**kept, "completed": self.completed[-MOST_STEPS:]})


def graph_of(run: RunRecord) -> Node | None:
    """The graph of a run's workflow as far as it has come; None where it had none."""
    kept = json_object(run.options.get("graph"))
    if kept is None:
        return None
    try:
        plan = Plan.model_validate(kept).bounded()
    except ValidationError:  # a notebook of somebody's
        return None
    path, here = list(plan.completed), plan.here
    for turn in run.turns:
        for step in (turn.node, *map(_moved_to, turn.tool_runs)):
            if step is not None and step != here:
                path.append(here)
                here = step
    if run.stop_reason == "workflow_complete":
        path.append(here)
    return graph_node(plan.model_copy(update={"completed": tuple(path), "here": here}))


def _moved_to(run: ToolRun) -> str | None:
    """The step to which a patch of the document moved the workflow."""
    data = json_object(run.result.data) if run.result and run.result.ok else None
    move = json_object(data.get("transition")) if data and run.host == "fs" else None
    target: Any = move and move.get("to")
    return target if isinstance(target, str) else None


def graph_node(plan: Plan) -> Node:
    """A graph as a tree: the path in one line, and folded below it each step with its ways."""
    visits = Counter(plan.completed)
    ended = plan.completed[-1:] == (plan.here,)
    path = [*plan.completed[-12:], *([] if ended else [f"▶ {plan.here}"])]
    line = ("… → " if len(plan.completed) > 12 else "") + " → ".join(map(_name, path))
    done = len(visits.keys() & {step.id for step in plan.steps})
    places = {step.id: i for i, step in enumerate(plan.steps)}
    steps = [_step_node(step, plan, visits[step.id], ended, places) for step in plan.steps]
    return h(
        "details",
        "nba-flow",
        h("summary", "", h("strong", "", "Workflow "), line),
        h("ol", "nba-graph", *steps),
        title=f"{done} of {len(plan.steps)} steps done",
        data_key="graph",
        open="",
    )


def _step_node(step: Step, plan: Plan, visits: int, ended: bool, places: dict[str, int]) -> Node:
    is_here = step.id == plan.here and not ended
    mark = "▶ " if is_here else "✓ " if visits else ""
    facts = [f"×{visits}"] if visits > 1 else []
    facts += [_name(step.agent)] if step.agent else []
    facts += ["current step"] if is_here else []
    facts += ["the end"] if step.terminal else []
    ways = [
        h("div", "nba-way", _way_words(way, is_back=places.get(way.target, 0) <= places[step.id]))
        for way in plan.ways
        if way.source == step.id
    ]
    look = "nba-here" if is_here else "nba-past" if visits else "nba-step"
    title = h("div", "", mark, h("b", "", _name(step.id)), "".join(f" · {it}" for it in facts))
    return h("li", look, title, *ways)


def _way_words(way: Way, *, is_back: bool) -> str:
    condition = f": {one_line(visible(way.condition), _CHARS)}" if way.condition else ""
    return f"{'↺ back to' if is_back else '→'} {_name(way.target)} ({_name(way.label)}){condition}"


def _name(text: str) -> str:
    return one_line(visible(text), _CHARS)
