"""Values that show themselves: turns, tool runs, messages, runs in a list, an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from nbagent.contracts.messages import ImagePart, Message
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.view import labels
from nbagent.view.images import drawn, figures_of, with_figures
from nbagent.view.markdown import nodes_of
from nbagent.view.node import Node, h
from nbagent.view.picture import ROOT, card_node, page, picture, row_node, turn_node
from nbagent.view.turn_request import message_nodes
from nbagent.view.words import began, clean, one_line


class Answer(str):
    """A text of a model, which a front end shows rendered, with the figures that it names."""

    figures: Mapping[int, ImagePart]

    @classmethod
    def of(cls, run: RunRecord) -> Answer:
        """The answer of a run."""
        answer = cls(run.text)
        answer.figures = figures_of(run)
        return answer

    def _repr_html_(self) -> str:
        return page(answer_node(self, self.figures))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def answer_node(text: str, figures: Mapping[int, ImagePart] | None = None) -> Node:
    """A text that a model wrote, as `run.answer` shows it, with the figures that it names."""
    blocks, _ = with_figures(nodes_of(clean(text)), figures or {})
    return h("div", ROOT, h("div", "nba-answer", *blocks))


def value_node(value: object) -> Node | None:
    """A turn, a tool run, a message, or runs in a list; None for anything else."""
    if isinstance(value, RunRecord):
        return picture(value)
    if isinstance(value, EngineTurn):
        run = RunRecord(
            id=value.run_id,
            session="",
            model=value.request.model,
            started_at=value.started_at,
            turns=(value,),
        )
        node = turn_node(run, value, unfolded=frozenset((value.id,)))
    elif isinstance(value, ToolRun):
        node = card_node(value, "tool_run")
    elif isinstance(value, Message):
        node = h("div", "nba-body", *message_nodes(value), *drawn(value.content)[0])
    elif isinstance(value, list | tuple) and value:
        records = cast("Sequence[object]", value)
        if not all(isinstance(item, RunRecord) for item in records):
            return None
        return runs_node([item for item in records if isinstance(item, RunRecord)])
    else:
        return None
    return h("div", ROOT, node)


def runs_node(runs: Sequence[RunRecord]) -> Node:
    """Some runs in lines; each of the first twenty unfolds into its picture."""
    rows: list[Node] = []
    for place, run in enumerate(runs):
        said = f"{labels.status_of(run).mark} {one_line(clean(run.prompt), 90)}"
        words = row_node(run.id[:8], [said], f"{spark(run)} {labels.facts_line(run)}".strip())
        inner = picture(run, actions=False) if place < 20 else f"%agent show {run.id[:8]}"
        rows.append(h("details", "nba-turn", h("summary", "", words), inner))
    return h("div", ROOT, *rows)


def runs_text(runs: Sequence[RunRecord]) -> str:
    """The same as lines."""
    lines: list[str] = []
    for run in runs:
        mark = labels.status_of(run).mark
        when = began(run.started_at)
        words = f"{run.id[:8]}  {when}  {mark} {one_line(clean(run.prompt), 60)}"
        lines.append(f"{words}  {spark(run)}  {labels.facts_line(run)}".rstrip())
    return "\n".join(lines)


def spark(run: RunRecord) -> str:
    """The tokens of the last turns as blocks: `▂▃█`."""
    spent = [turn.response.usage for turn in run.turns if turn.response and turn.response.usage]
    used = [usage.total_tokens for usage in spent]
    most = max(used, default=0)
    if not most or len(used) < 2:
        return ""
    return "".join("▁▂▃▄▅▆▇█"[min(7, 8 * n // most)] for n in used[-24:])
