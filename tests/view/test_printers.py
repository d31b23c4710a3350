"""The printers of a picture, and the texts in it: results, prompts, rows, the end of a fold."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import pytest
from stories import ANSWER, Story, drawn, tool_run, walked

import nbagent
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import RunRecord, WorkflowRef
from nbagent.providers.offline import call, script
from nbagent.shown.values import to_text
from nbagent.store.reader import RunNode
from nbagent.view.graph import GraphState, Step
from nbagent.view.node import h, text_of
from nbagent.view.printers import html, markdown, plain_text
from nbagent.view.result_summary import summarize_error, summarize_result
from nbagent.view.run_picture import head, page, picture, prompt_node
from nbagent.view.run_rows import prompt_line, run_row, runs_text
from nbagent.view.run_tree import tree_lines, tree_node
from nbagent.view.terminal import TakenTurns, run_text, saved_text
from nbagent.view.theme import COLOURS, DARK, STYLES, dark_rules, live_stylesheet, used_rules

# Results in a few words

HIT: dict[str, Any] = {
    "path": "a.py",
    "line": 12,
    "column": 1,
    "text": "x",
    "before": [],
    "after": [],
}


RESULTS: list[tuple[Any, str]] = [
    ({"path": "notes.md", "bytes": 2_100, "sha256": "0" * 64}, "notes.md · 2.1 kB"),
    ({"path": "n.md", "bytesWritten": 12, "sha256After": "0" * 64}, "n.md · 12 B"),
    ({"path": "n.md", "bytes": 9_000, "truncated": True, "hint": "…"}, "n.md · 9.0 kB · cut"),
    ({"path": f"@project/{'deep/' * 30}end.csv", "bytes": 1}, "/deep/end.csv · 1 B"),
    ({"path": "src/", "entries": ["a", "b/"], "truncated": False}, 'src/ · 2 entries: "a", …'),
    ({"matches": [HIT] * 3, "truncated": False, "stats": {}}, "3 matches: a.py:12, …"),
    ({"matches": [], "truncated": False, "stats": {}}, "no matches"),
    ({"matches": [], "truncated": False, "stats": {"filesScanned": 3}}, "no matches"),
    ({"total": 42, "city": "Oslo", "errors": []}, '"total": 42, "city": "Oslo"'),
    ({"errors": [], "total": 42, "text": "b" * 90}, "total=42"),
    ({"list": [], "town": {"name": "Oslo"}}, "Oslo"),
    ({"skills": [{"name": "pdf", "description": "d" * 90}]}, "skills: pdf"),
    ({"skill_name": "s", "stdout": "a\nmean 4.2\n", "returncode": 0}, '"mean 4.2"'),
    ({"stdout": "", "stderr": "x\nValueError: y\n", "returncode": 1}, "exit 1 · "),
    ({"stdout": "a", "stderr": "", "returncode": -9, "timed_out": True}, "timed out"),
    ({"stdout": "", "stderr": "", "returncode": 0}, "nothing printed"),
    (
        {"city": "Oslo", "mayor": "A" * 30, "n": 717_710, "more": "b" * 90},
        'city="Oslo", mayor=',
    ),
    (list(range(100)), "100 items: 0, …"),
    ([{"name": "first", "x": "y" * 60}, {"z": 1}], "2 items: first, …"),
    ({"stdout": 5, "path": 7, "matches": {"a": 1}}, "stdout"),
    ({"path": "", "bytes": "many"}, "path"),
    ({"a": {"b": [[["c"] * 9] * 9] * 9}}, "a="),
]


@pytest.mark.parametrize(("data", "words"), RESULTS, ids=str)
def test_a_result_is_told_by_what_it_holds(data: Any, words: str) -> None:
    told = summarize_result(data)
    assert words in told
    assert len(told) < 140
    assert "\n" not in told


def test_an_error_is_told_by_code_and_message_once() -> None:
    error = ErrorInfo("E_TOOL_FAILED", "ValueError: \x1b[31mno\u202e city" + "x" * 500)
    assert summarize_error(error).startswith("E_TOOL_FAILED: ValueError: no⟦U+202E⟧ city")
    assert len(summarize_error(error)) < 120
    run = Story().turn("", tool_run("c1", "t", {}, error)).end().run
    assert "✕ E_TOOL_FAILED: ValueError" in run_text(run)


# Prompts with DataFrames

PENGUINS = pd.DataFrame(
    {"species": ["Adelie", "Gentoo"] * 50, "mass": [3700.123456789, 5076.5] * 50}
)


def prompted(text: str) -> RunRecord:
    return Story(prompt=text).turn("Fine.").end().run


def test_a_frame_in_a_prompt_is_a_table_with_short_numbers_and_text_on_both_sides() -> None:
    prompt = f"What is the mean of {to_text(PENGUINS, 3_000)}\nby species?"
    node = prompt_node(prompted(prompt))
    assert node is not None
    shown = html(node)
    assert shown.count("<table>") == 1
    assert ">3700.12</td>" in shown
    assert "What is the mean of" in shown.partition("<table>")[0]
    assert "by species?" in shown.partition("</table>")[2]
    assert "rows more" in shown
    assert "| species" not in text_of(node)
    assert prompt_line(prompt) == (
        "What is the mean of [DataFrame: 100 rows × 2 columns] by species?"
    )


def test_a_short_frame_in_a_prompt_has_its_rows_in_the_text() -> None:
    prompt = f"Mean of {to_text(PENGUINS.head(2), 3_000)}\nby species?"
    quoted = [row for row in run_text(prompted(prompt)).splitlines() if row.startswith("> ")]
    assert [row.split()[1] for row in quoted] == ["Mean", "species", "Adelie", "Gentoo", "by"]
    assert quoted[2].split() == [">", "Adelie", "3700.12"]


@pytest.mark.parametrize(
    "prompt",
    [
        "word " * 200_000,
        to_text(pd.DataFrame({"n": range(100_000)}), 20_000) + "\nand?",
        "DataFrame: 3 rows × 1 column\n" * 5_000,
        "DataFrame: 1 row × 1 column\n| a |\n| --- |\n| <img src=x onerror=alert(1)> |",
        "| a |\n" * 10_000,
        f"DataFrame: {'9' * 20} rows × 1 column\n| a |\n| --- |\n| 1 |",
    ],
    ids=["1 MB", "100,000 rows", "titles only", "markup", "rows only", "a huge count"],
)
def test_any_prompt_is_drawn_within_a_budget(prompt: str) -> None:
    run = prompted(prompt)
    shown = html(picture(run))
    assert len(shown) < 30_000
    assert "<img" not in shown
    assert len(run_row(run).prompt) <= 92
    assert len(run_text(run)) < 6_000


# One row of a run


def test_every_list_shows_a_run_in_the_same_words() -> None:
    model = script(["Yes."] * 2)
    runs = [nbagent.Agent(model, quiet=True).run(f"Is {n} a number? {'why ' * 40}") for n in (1, 2)]
    for run in runs:
        prompt = run_row(run.record).prompt
        assert prompt.endswith(" …")
        lists = [
            runs_text([run.record.summary()]),
            str(nbagent.history()),
            run_row(run.record).label(),
        ]
        assert all(prompt in text for text in lists)


def test_a_tree_of_a_thousand_forks_of_forks_is_printed() -> None:
    run = drawn().run.summary()
    root = node = RunNode(run, [])
    for _ in range(1_000):
        fork = RunNode(run.model_copy(update={"kind": "fork"}), [])
        node.children.append(fork)
        node = fork
    lines = list(tree_lines([root]))
    assert len(lines) == 1_001
    assert max(map(len, lines)) < 400
    assert html(tree_node([root])).count("<li") == 1_001


# What the parts say


def test_head_and_graph_name_the_same_step() -> None:
    run = walked().run
    moves = run.turns[1:2]
    plan = GraphState(steps=(Step(id="select"), Step(id="draft", agent="otto")), here="select")
    workflow = WorkflowRef(name="story-flow", graph=plan.model_dump(mode="json"))
    moved = run.model_copy(update={"turns": tuple(moves), "workflow": workflow})
    assert moves[-1].node == "select", "the step of the last turn, which moved on"
    assert "▶ draft" in text_of(picture(moved))
    assert "story-flow · draft · otto" in text_of(head(moved, None))
    assert "story-flow · draft · otto" in run_text(moved)


def test_a_notice_of_a_turn_is_not_hidden_in_its_fold() -> None:
    refused = "temperature was refused by the server and left out"
    run = Story().turn("Fine.", notices=(refused,)).end().run
    summary = re.search(r"<summary>.*?</summary>", html(picture(run)), re.DOTALL)
    assert summary is not None
    assert summary[0].count(refused) == 1
    assert html(picture(run)).count(refused) == 1
    assert run_text(run).count(refused) == 1


def test_an_answer_stands_once_and_a_turn_says_what_it_is() -> None:
    run = Story().turn(ANSWER).end().run
    for shown in (text_of(picture(run)), run_text(run)):
        assert shown.count("Oslo is larger") == 1
        assert "turn C01" in shown


def test_recorded_answers_say_what_they_cost_when_they_were_new() -> None:
    run = drawn().run
    turns = [
        turn.model_copy(
            update={
                "cost_usd": 0.0,
                "saved_usd": 0.0155,
                "response": turn.response.model_copy(
                    update={"meta": turn.response.meta.model_copy(update={"source": "replay"})}
                ),
            }
        )
        for turn in run.turns[:1]
        if turn.response
    ]
    replayed = run.model_copy(update={"turns": tuple(turns), "cost_usd": 0.0})
    assert "$0 ($0.0155 recorded)" in run_text(replayed)


def test_a_saved_text_has_no_times_and_ids() -> None:
    run = drawn().run
    assert run.id[:8] in run_text(run)
    assert run.id[:8] not in saved_text(run)
    assert not re.search(r"\d m?s\b", saved_text(run))
    assert "continue with %%agent --continue" in saved_text(run)


def test_a_run_shows_its_picture_to_programs_that_show_html() -> None:
    run: Any = nbagent.Agent(script(["**Yes.**"]), quiet=True).run("Ready?")
    assert "<strong>Yes.</strong>" in run._repr_html_()
    assert "<script" not in run._repr_html_()
    assert "data-do" not in run._repr_html_()


# The printers

HOSTILE = "a\x1b[31m\u202eb\x00<script>`|**\r\n\n# c\u2028"


@pytest.mark.parametrize("form", [html, plain_text, markdown])
def test_hostile_text_is_text_in_every_form(form: Any) -> None:
    failed = ErrorInfo("E_TOOL_FAILED", HOSTILE)
    story = Story(prompt=HOSTILE, name=HOSTILE, tags=(HOSTILE,))
    story.turn(HOSTILE, tool_run("c1", HOSTILE, {HOSTILE: HOSTILE}, HOSTILE), notices=(HOSTILE,))
    story.turn("", tool_run("c2", "t", {}, failed), reasoning=HOSTILE)
    shown = form(picture(story.turn(HOSTILE).end(notices=(HOSTILE,)).run))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown.replace("\r", ""))
    assert "\x1b" not in shown
    if form is html:
        assert "<script" not in shown


def test_markup_that_a_text_keeps_is_printed_as_it_was_written() -> None:
    source = (
        "A **bold** `x` word.\n\n- one\n- two\n\n```\ncode\n```\n\n| a | n |\n|---|--:|\n| b | 10 |"
    )
    text = run_text(Story().turn(source).end().run)
    for part in ("A **bold** `x` word.", "- one\n- two", "```\ncode\n```", "a   n\nb  10"):
        assert part in text


def test_a_text_prints_each_kind_of_node() -> None:
    rows = [h("tr", "", h("td", "nba-l", "x"), h("td", "nba-r", "5"))]
    folded = h(
        "details", "", h("summary", "", "Line"), h("p", "", "hidden"), h("p", "nba-fact", "told")
    )
    node = h(
        "div", "", h("p", "", "One ", h("ins", "", "new"), h("del", "", "old")), h("hr"),
        h("button", "", "Press"), h("table", "", *rows), folded, h("pre", "", "a\n  b"),
    )  # fmt: skip
    assert plain_text(node).split("\n") == [
        "One {+new+}[-old-]", "", "x  5", "Line", "     told", "a", "  b",
    ]  # fmt: skip
    assert "hidden" in plain_text(node, unfold=True)


# Colours


def test_each_colour_stands_in_one_file() -> None:
    used = set(re.findall(r"#[0-9a-f]{6}", " ".join(STYLES.values())))
    assert used <= {*COLOURS.values()} | {f"{colour}2e" for colour in COLOURS.values()}
    assert {"model", "bad", "ok", "bg", "fg"} <= COLOURS.keys() & DARK.keys()
    for name in set(re.findall(r"var\(--([a-z]+)\)", live_stylesheet())):
        assert name in COLOURS or f"--{name}:" in live_stylesheet()


def test_a_sheet_has_the_rules_that_a_page_uses() -> None:
    inner = "font:x;.nba-a{color:var(--a)}.nba-b{color:red}img{x:y}"
    sheet = f".nba-run{{--a:#fff;--b:#000}}.nba-run{{{inner}}}"
    kept = used_rules(sheet, '<div class="nba-run nba-a">')
    assert kept == ".nba-run{--a:#fff;}.nba-run{font:x;.nba-a{color:var(--a)}}"


def test_an_exported_page_follows_the_theme_of_its_reader() -> None:
    run = nbagent.Agent(script([call("t"), "Yes."]), tools=[t], quiet=True).run("Ready?")
    exported = run.export("html")
    assert exported.rindex(dark_rules()) > exported.rindex(".nba-run{--bg:var")
    assert page(picture(run.record)).count("<style>") == 1


def t() -> int:
    """Give a number."""
    return 1


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_runs_that_answer_side_by_side_are_printed_one_after_another(first_to_end: int) -> None:
    written = list[str]()
    outputs = [TakenTurns(written.append) for _ in range(2)]
    for output in outputs:
        output.queue_up()
    for output, text in (outputs[1], "b1 "), (outputs[0], "a1 "), (outputs[1], "b2 "):
        output.write(text)
    outputs[first_to_end].end()
    outputs[0].write("" if first_to_end == 0 else "a2 ")
    outputs[1 - first_to_end].end()
    TakenTurns(written.append).write("next")
    assert "".join(written) == ("a1 b1 b2 next" if first_to_end == 0 else "a1 a2 b1 b2 next")
