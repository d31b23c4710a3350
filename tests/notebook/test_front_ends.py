"""Each front end gets the end of a run in the way that it has proved: a table of front ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from kernels import VIEW, Cell, FakePage, LiveKernel

from nbagent.store.rows import from_notebook_json, is_run_reference

SETUP = """
%load_ext nbagent
import nbagent
from nbagent import offline

@nbagent.tool
def population(city: str) -> int:
    "People living in a city."
    return 717_710

calls = [offline.call("population", city="Oslo")]
offline.script([offline.step(text="I look.", calls=calls), "word " * 40] * 9, name="slow",
               delay_ms=60)
"""
RUN = "%%agent --model offline:demo --tools population\nHow many people live in Oslo?"
SLOW = "%%agent --model offline:slow --tools population\nTalk"


def finals(cell: Cell) -> list[tuple[str, dict[str, Any]]]:
    """Kind and content of the displays that hold a whole record."""
    return [
        (kind, content)
        for kind, content in cell.messages
        if kind.endswith("display_data")
        and content["metadata"].get("nbagent")
        and not is_run_reference(content["metadata"]["nbagent"])
    ]


def seen(cell: Cell, *, applies: bool) -> list[dict[str, Any]]:
    """The bundles of a cell's outputs at its end, in a front end that applies updates or not."""
    outputs: dict[str, dict[str, Any]] = {}
    for nth, (kind, content) in enumerate(cell.messages):
        key = content.get("transient", {}).get("display_id") or str(nth)
        if kind == "display_data" or (kind == "update_display_data" and applies):
            outputs[key] = content
    return [*outputs.values()]


FRONT_ENDS: dict[str, tuple[dict[str, Any], int]] = {
    "a page that shows views and applies updates": ({}, 1),
    "no page: a console": ({"shows": False}, 2),
    "a page that ignores updates, or died": ({"applies": False}, 2),
    "a page that says everything three times": ({"times": 3}, 1),
    "a flood of messages": ({"times": 300}, 1),
    "a page that says things in the wrong order": ({"closes_first": True}, 1),
    "the same, and it ignores updates": ({"closes_first": True, "applies": False}, 2),
}


@pytest.mark.parametrize(("page", "n"), FRONT_ENDS.values(), ids=FRONT_ENDS)
def test_the_answer_and_the_record_reach_each_front_end_once(
    kernel: LiveKernel, page: dict[str, Any], n: int
) -> None:
    kernel.new_session()
    front_end = FakePage(kernel, **page)
    for _ in range(2):  # the second time it is known what the front end can do
        shown = seen(kernel.run(RUN, page=front_end), applies=front_end.applies and n == 1)
        assert len(shown) == n
        whole = [one for one in shown if "717,710" in str(one["data"])]
        assert whole == shown[-1:], "nothing is shown twice"
        assert sorted(whole[0]["data"]) == ["text/html", "text/plain"]
        record = from_notebook_json(whole[0]["metadata"]["nbagent"])
        assert record.id == kernel.value("_run.id")


def test_a_page_that_has_applied_updates_may_be_busy_at_the_end_of_a_run(
    kernel: LiveKernel,
) -> None:
    kernel.new_session()
    kernel.run(RUN, page=FakePage(kernel))
    # The shortest wait: a busy page never applies an update in time.
    kernel.run("from nbagent.notebook import page_proof\npage_proof.APPLY_WAIT_S = 0")
    try:
        for _ in range(2):
            busy = kernel.run(SLOW, page=FakePage(kernel, applies=False))
            assert [kind for kind, _ in finals(busy)] == ["update_display_data"]
    finally:
        kernel.run("page_proof.APPLY_WAIT_S = 2.0")


@pytest.mark.parametrize(("page", "is_printed"), [({}, False), ({"shows": False}, True)])
def test_a_run_that_no_page_shows_is_printed_while_it_goes_on(
    kernel: LiveKernel, page: dict[str, Any], is_printed: bool
) -> None:
    kernel.new_session()
    cell = kernel.run(SLOW, page=FakePage(kernel, **page))
    assert ("Running · offline:slow" in cell.printed) is is_printed
    assert "detached" not in cell.printed
    assert ('population(city="Oslo") → 717,710' in cell.printed) is is_printed
    kinds = [kind for kind in cell.kinds if kind in ("stream", "display_data")]
    assert kinds == (["display_data", *(["stream"] * (len(kinds) - 2)), "display_data"]
                     if is_printed else ["display_data"])  # fmt: skip


def test_the_first_output_says_that_a_run_has_started_and_leads_to_it(
    kernel: LiveKernel, tmp_path: Path
) -> None:
    kernel.new_session()
    cell = kernel.run(RUN, page=FakePage(kernel, shows=False))
    first = cell.of("display_data")[0]
    run_id = kernel.value("_run.id")
    assert sorted(first["data"]) == sorted([VIEW, "text/html", "text/plain"])
    # It stays where no update is applied, so it says nothing that is wrong after the end.
    assert "has started" in first["data"]["text/html"]
    assert "Running" not in first["data"]["text/html"]
    for form in ("text/html", "text/plain"):
        assert f"%agent show {run_id[:8]}" in first["data"][form]
    assert "\n" not in first["data"]["text/plain"]
    # A file that was saved before anything else came, read in the same project.
    output = nbformat.v4.new_output("display_data", first["data"], metadata=first["metadata"])
    saved = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(RUN, outputs=[output])])
    file = tmp_path / "saved.ipynb"
    file.write_text(json.dumps(saved))
    kernel.run(f"read = nbagent.read_notebook({str(file)!r})")
    assert kernel.value("[*read.runs().run_id]") == [run_id]
    assert "717,710" in kernel.value("read.open_run('last').text")
    # Elsewhere nothing is known of it, and nothing of a stranger's store is read unasked.
    kernel.run("%%agent --quiet\nHello?")
    other = file.read_text().replace(run_id, "0" * 16)
    file.write_text(other)
    printed = kernel.run(
        f"print('runs:', len(nbagent.read_notebook({str(file)!r}).runs()))"
    ).printed
    assert "saved.ipynb names without a record: run 00000000; not in " in printed
    assert "runs: 0" in printed


def test_a_page_that_comes_late_gets_the_run_and_the_lines_end(kernel: LiveKernel) -> None:
    kernel.new_session()
    sent = kernel.send(SLOW, stdin=True)
    begun = kernel.heard(lambda message: VIEW in message["content"].get("data", {}))
    view = begun[-1]["content"]["data"][VIEW]["model_id"]
    kernel.heard(lambda message: "Running" in str(message["content"].get("text")))
    kernel.say(view, kind="ready", page=5)
    kernel.heard(lambda message: message["content"].get("data", {}).get("content", {}).get("page"))
    page = FakePage(kernel)
    page.views[f"nbagent-{display_of(begun[-1])}"] = view
    kernel.page = page
    cell = kernel.finish(sent)
    kernel.page = None
    assert [kind for kind, _ in finals(cell)] == ["update_display_data"]
    assert "word word word word word word" not in cell.printed


def display_of(message: dict[str, Any]) -> str:
    return message["content"]["transient"]["display_id"].removeprefix("nbagent-")


ODD: dict[str, Any] = {
    "ready without a page": {"kind": "ready"},
    "a page that is no id": {"kind": "ready", "page": {"a": 1}},
    "an endless page": {"kind": "ready", "page": "x" * 10_000},
    "a page that was never there": {"kind": "closed", "page": 99},
    "no kind": {"page": 1},
    "a list": {"kind": ["ready"], "page": 1},
    "of another run": {"kind": "ready", "page": 1, "run": "0" * 16},
}


@pytest.mark.parametrize("message", ODD.values(), ids=ODD)
def test_odd_messages_prove_nothing(kernel: LiveKernel, message: dict[str, Any]) -> None:
    kernel.new_session()
    sent = kernel.send(RUN, stdin=True)
    begun = kernel.heard(lambda one: VIEW in one["content"].get("data", {}))
    view = begun[-1]["content"]["data"][VIEW]["model_id"]
    for _ in range(20):
        kernel.say(view, **message)
    cell = kernel.finish(sent)
    assert [kind for kind, _ in finals(cell)] == ["display_data"]


ASKS = """%%agent --model offline:demo --tools population --ask population
How many people live in Oslo?"""


@pytest.mark.parametrize(("typed", "decision"), [("y", "allowed"), ("n", "denied")])
def test_without_a_page_a_question_is_asked_by_input(
    kernel: LiveKernel, typed: str, decision: str
) -> None:
    kernel.new_session()
    sent = kernel.send(ASKS, stdin=True)
    asked = kernel.client.get_stdin_msg(timeout=20)
    assert asked["msg_type"] == "input_request"
    kernel.client.input(typed)
    if typed == "n":
        assert "Reason" in kernel.client.get_stdin_msg(timeout=20)["content"]["prompt"]
        kernel.client.input("")
    cell = kernel.finish(sent)
    (tool,) = kernel.value("[t.approval for t in _run.turns[0].tool_runs]")
    assert tool == decision
    assert [kind for kind, _ in finals(cell)] == ["display_data"]


def test_many_runs_of_a_cell_wait_for_their_pages_together(kernel: LiveKernel) -> None:
    kernel.new_session()
    page = FakePage(kernel)
    cell = kernel.run(
        "agent = nbagent.Agent(model='offline:demo', tools=[])\n"
        "for n in range(8): agent.run('Hello?', echo=True)",
        page=page,
    )
    assert [kind for kind, _ in finals(cell)] == ["update_display_data"] * 8
