"""Pictures of values: turns, tool runs, messages, lists of runs, an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from nbagent.contracts.messages import ImagePart, Message
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.view import run_facts
from nbagent.view.images import (
    answer_image_node,
    figures_of,
    image_line,
    insert_figures,
    render_parts,
)
from nbagent.view.markdown import markdown_nodes
from nbagent.view.node import Node, h
from nbagent.view.run_picture import ROOT_CLASS, page, picture
from nbagent.view.run_rows import run_row, sparkline
from nbagent.view.text_format import sanitize_prose
from nbagent.view.turn_picture import card_node, summary_row, turn_node
from nbagent.view.turn_request import message_nodes


class Answer(str):
    """Text of a model. A front end renders it with the figures that it names."""

    figures: Mapping[int, ImagePart]
    images: tuple[ImagePart, ...]

    @classmethod
    def of(cls, run: RunRecord) -> Answer:
        """Return the answer of a run with its figures and images."""
        answer = cls(run.text)
        answer.figures = figures_of(run)
        turn = run_facts.answering_turn(run)
        answer.images = turn.images if turn else ()
        return answer

    def _repr_html_(self) -> str:
        return page(answer_node(self, self.figures, self.images))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # IPython would print the `repr` of the string, with quotes and `\\n`.
        printer.text(str(self))


class AnswerImages(tuple[ImagePart, ...]):
    """Images of a run's answers. A front end draws them."""

    def _repr_html_(self) -> str:
        return page(h("div", ROOT_CLASS, *map(answer_image_node, self)))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("\n".join(map(image_line, self)) or "no images")


def answer_node(
    text: str,
    figures: Mapping[int, ImagePart] | None = None,
    images: Sequence[ImagePart] = (),
) -> Node:
    """Draw a model's text with the figures that it names, as `run.answer` shows it."""
    blocks, _ = insert_figures(markdown_nodes(sanitize_prose(text)), figures or {})
    return h("div", ROOT_CLASS, h("div", "nba-answer", *blocks, *map(answer_image_node, images)))


def value_node(value: object) -> Node | None:
    """Draw a turn, a tool run, a message or a list of runs; None for other values."""
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
        pictures = render_parts(value.content)[0]
        if value.role == "assistant":
            pictures = [answer_image_node(image) for image in value.images]
        node = h("div", "nba-body", *message_nodes(value), *pictures)
    elif isinstance(value, list | tuple) and value:
        records = cast("Sequence[object]", value)
        if not all(isinstance(item, RunRecord) for item in records):
            return None
        return runs_node([item for item in records if isinstance(item, RunRecord)])
    else:
        return None
    return h("div", ROOT_CLASS, node)


def runs_node(runs: Sequence[RunRecord]) -> Node:
    """Draw runs as lines; each of the first twenty unfolds into its picture."""
    rows: list[Node] = []
    for index, run in enumerate(runs):
        shown, summary = run_row(run), run.summary()
        numbers = f"{sparkline(summary)} {run_facts.facts_line(summary)}".strip()
        row = summary_row(shown.id, [f"{shown.mark} {shown.prompt}"], numbers)
        inner = picture(run, actions=False) if index < 20 else f"%agent show {run.id[:8]}"
        rows.append(h("details", "nba-turn", h("summary", "", row), inner))
    return h("div", ROOT_CLASS, *rows)
