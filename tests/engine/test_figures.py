"""Figures of tools: numbered for the model, drawn where the answer names them. In a script."""

from __future__ import annotations

import pytest
from laws import check_run
from PIL import Image

import nbagent
from nbagent import offline
from nbagent.contracts.approval import Question
from nbagent.contracts.messages import ImagePart
from nbagent.contracts.records import ToolResult
from nbagent.run import Run
from nbagent.view.images import card_figures, figures_of, insert_figures
from nbagent.view.node import Node, h, text_of
from nbagent.view.printers import html
from nbagent.view.run_picture import picture

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


def paint(count: int = 1) -> ToolResult:
    """Paint some pictures."""
    print("painting")
    images = tuple(ImagePart(data=PIXEL, alt=f"number {i}") for i in range(count))
    return ToolResult(ok=True, data="painted", attachments=images)


def paint_again(count: int = 1) -> ToolResult:
    """Paint some pictures."""
    return paint(count)


def asked(*counts: int) -> Run:
    """A run whose model paints these numbers of pictures, one call a turn."""
    script = offline.script([*(offline.call("paint", count=n) for n in counts), "done"])
    run = nbagent.Agent(model=script, tools=[paint]).run("go", quiet=True)
    check_run(run)
    return run


def notes(run: Run) -> list[str]:
    tools = [tool for turn in run.turns for tool in turn.tool_runs]
    return [tool.result.note.partition(";")[0] for tool in tools if tool.result]


def test_the_model_is_told_the_numbers_of_figures_and_a_script_prints_as_ever(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = asked(1, 0, 2)
    assert notes(run) == ["the person sees figure 1", "", "the person sees figures 2 to 3"]
    assert [*figures_of(run.record)] == [1, 2, 3]
    assert capsys.readouterr().out == "painting\n" * 3
    assert {tool.printed for turn in run.turns for tool in turn.tool_runs} == {""}


def test_a_result_names_its_figures_by_their_numbers() -> None:
    def draw() -> list[object]:
        """Draw two pictures."""
        return ["a", Image.new("RGB", (3, 2)), {"b": Image.new("RGB", (4, 2))}]

    script = offline.script([offline.call("draw"), offline.call("draw"), "done"])
    run = nbagent.Agent(model=script, tools=[draw]).run("go", quiet=True)
    check_run(run)
    for first, turn in zip((1, 3), run.turns, strict=False):
        result = turn.tool_runs[0].result
        a, b = (f"[figure {first + i}: picture, {3 + i}×2 px]" for i in (0, 1))
        assert result
        assert result.data == ["a", a, {"b": b}]
        assert f'"{a}"' in result.as_content()[0].model_dump()["text"]


def test_numbers_go_on_in_the_conversation_and_begin_anew_in_a_fork() -> None:
    script = offline.script([offline.call("paint"), "done"] * 3)
    first = nbagent.Agent(model=script, tools=[paint]).run("go", quiet=True)
    assert [*figures_of(first.resume("again").record)] == [2]
    assert [*figures_of(first.fork("C01").record)] == [1]


def test_an_edited_call_tells_both() -> None:
    def edit(question: Question) -> dict[str, int]:
        return {"count": 2}

    script = offline.script([offline.call("paint"), "done"])
    agent = nbagent.Agent(
        model=script, tools=[nbagent.tool(name="paint", ask=True)(paint_again)], on_approval=edit
    )
    run = agent.run("go", quiet=True)
    (note,) = [tool.result.note for tool in run.turns[0].tool_runs if tool.result]
    assert note.startswith("edited by the person: {")
    assert "; the person sees figures 1 to 2; write [figure 1]" in note


def test_numbers_do_not_hide_that_a_call_gives_the_same_again_and_again() -> None:
    assert asked(*[1] * 7).stop_reason == "loop_detected"


def test_a_card_has_its_figures_with_their_numbers() -> None:
    run = asked(1, 9)
    nodes, others = card_figures(run.turns[1].tool_runs[0])
    names = [text_of(node).partition(" · ")[0] for node in nodes]
    assert names == [f"figure {number}" for number in range(2, 10)]
    assert others == ["[image: number 8]"]


ANSWERS: dict[str, tuple[Node, list[str]]] = {
    "alone": (h("p", "", "[figure 1]"), ["FIGURE 1"]),
    "as its result names it": (h("p", "", "[figure 2: figure, 30×20 px]"), ["FIGURE 2"]),
    "with a caption": (h("p", "", "![By city](figure 2)"), ["FIGURE 2 By city"]),
    "in a sentence": (h("p", "", "See [Figure 1]."), ["See figure 1.", "FIGURE 1"]),
    "in plain words": (h("p", "", "As figure 2 shows"), ["As figure 2 shows", "FIGURE 2"]),
    "in a list": (
        h("ul", "", h("li", "", "a ", h("b", "", "figure 1")), h("li", "", "2 more")),
        ["a figure 12 more", "FIGURE 1"],
    ),
    "in code": (h("p", "", h("code", "", "[figure 1]")), ["[figure 1]"]),
    "one that is not there": (h("p", "", "[figure 7]"), ["[figure 7]"]),
}


@pytest.mark.parametrize("where", ANSWERS)
def test_a_figure_stands_where_an_answer_names_it(where: str) -> None:
    block, texts = ANSWERS[where]
    made, _ = insert_figures([block], figures_of(asked(2).record))
    assert [_told(node) for node in made] == texts
    assert block == ANSWERS[where][0], "the nodes that came in may be drawn again"


def _told(node: Node) -> str:
    if "nba-figure" not in html(node):
        return text_of(node)
    name, alt = text_of(node).split(" · ")
    return name.upper() + ("" if alt.startswith("number") else f" {alt}")


def test_a_figure_stands_once() -> None:
    blocks: list[Node] = [h("p", "", "[figure 1]"), h("p", "", "Again: figure 1.")]
    made, placed = insert_figures(blocks, figures_of(asked(1).record))
    assert [_told(node) for node in made] == ["FIGURE 1", "Again: figure 1."]
    assert placed == {1}


def test_the_bytes_of_a_figure_are_in_the_answer_or_in_its_card_and_in_the_rendered_answer() -> (
    None
):
    script = offline.script([offline.call("paint", count=2), "See:\n\n[figure 2]"])
    run = nbagent.Agent(model=script, tools=[paint]).run("go", quiet=True)
    shown = html(picture(run.record))
    assert shown.count(PIXEL) == 2
    assert "figure 2 · in the answer below" in shown
    assert shown.index("figure 1 · number 0") < shown.index("nba-answer")
    assert PIXEL in run.answer._repr_html_()  # pyright: ignore[reportPrivateUsage]
