"""The picture of a run in all its forms: what it says, what it hides; live and stored agree."""

from __future__ import annotations

import base64
import io
import json
import time
from typing import Any, get_args

import pytest
from engine.laws import check_run
from markdown_it import MarkdownIt
from PIL import Image
from stories import ANSWER, Story, drawn, tool_run, walked

import nbagent
from nbagent.contracts.chat import ImagePart
from nbagent.contracts.errors import ErrorInfo, ModelCode
from nbagent.contracts.events import Event
from nbagent.contracts.records import RunRecord
from nbagent.providers.offline import call, error, script
from nbagent.view.images import pictures_of
from nbagent.view.live_state import LiveState, state_for_front_end
from nbagent.view.old_markdown import MAX_CHARS, tree_of
from nbagent.view.plain_lines import PlainPrinter
from nbagent.view.static_html import bundle, html
from nbagent.view.static_text import facts_line
from nbagent.view.view_state import view_of
from nbagent.view.view_types import Head

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x10\x00\x00\x00\x09\x08\x02\x00\x00\x00"


def folded(story: Story) -> LiveState:
    """A live picture after all events but the last."""
    live = LiveState(story.run.model_copy(update={"turns": ()}), clock=lambda: 0.0)
    for event in story.events[:-1]:
        live.fold(event)
    return live


def printed(events: list[Event]) -> list[str]:
    written: list[str] = []
    printer = PlainPrinter(written.append)
    for event in events:
        printer.handle(event)
    printer.close()
    return written


def test_the_time_bar_and_the_facts_say_where_time_and_tokens_went() -> None:
    run = drawn().run
    state = view_of(run)
    assert [piece["kind"] for piece in state["bar"]] == ["model", "tool", "model", "bad", "model"]
    assert sum(piece["ms"] for piece in state["bar"]) == pytest.approx(3300)
    assert state["bar_words"] == "model 2.7 s · tools 300 ms · retries and failures 300 ms"
    usage = run.usage.model_copy(update={"cache_write_tokens": 50})
    line = facts_line(view_of(run.model_copy(update={"usage": usage})))
    assert "1,284 tokens (912 cached, 50 written to the cache)" in line


def test_the_live_picture_is_the_stored_picture_also_of_a_reloaded_record() -> None:
    story = drawn()
    live = folded(story)
    before, stored = live.snapshot(), view_of(story.run)
    assert before["turns"] == stored["turns"]
    assert before["bar"] == stored["bar"]
    known = [f for f in before["facts"] if f["key"] != "time"]
    assert known == [f for f in stored["facts"] if f["key"] != "time"]
    live.fold(story.events[-1])
    assert live.snapshot() == stored == json.loads(json.dumps(stored))
    assert view_of(RunRecord.model_validate_json(story.run.model_dump_json())) == stored
    # The front end is not sent the source of a text that is drawn.
    slim = state_for_front_end(stored)
    assert slim["turns"][2]["text"]["text"] == ""
    assert slim["turns"][2]["tree"] == stored["turns"][2]["tree"]
    assert stored["turns"][2]["text"]["text"] == ANSWER


def test_a_child_run_shows_only_its_own_new_messages() -> None:
    story = Story(parent_id="ffff0000ffff0000", kind="continue", shared_messages=4)
    story.turn("And so on.").end()
    request = view_of(story.run)["turns"][0]["request"]
    assert request["earlier"] == "4 of them from the run before"
    assert [m["role"] for m in request["messages"]] == ["user"]
    assert folded(story).snapshot()["turns"][0]["request"] == request
    assert "continues ffff0000" in view_of(story.run)["about"]


def place_in(head: Head) -> str:
    return next((fact["value"] for fact in head["facts"] if fact["key"] == "place"), "")


def test_the_head_says_workflow_step_and_agent_and_turns_say_the_moves() -> None:
    story = walked()
    live = LiveState(story.run.model_copy(update={"turns": ()}), clock=lambda: 0.0)
    places = [place_in(live.snapshot())]
    for event in story.events[:-1]:
        heads = [op["head"] for op in live.fold(event) if op["op"] == "head"]
        places += [place for head in heads if (place := place_in(head)) != places[-1]]
    select, draft = "story-flow · select · mira", "story-flow · draft · otto"
    assert places == ["story-flow · mira", select, draft]
    stored = view_of(story.run)
    assert (live.snapshot()["turns"], place_in(live.snapshot())) == (stored["turns"], draft)
    refused = stored["turns"][0]["notices"]
    assert refused[0].startswith("refused: select → close: ")
    moves = [refused, ["select → draft (next)"], [], []]
    assert [turn["notices"] for turn in stored["turns"]] == moves
    for name, form in (*bundle(stored).items(), ("printed", "".join(printed(story.events)))):
        assert draft in (form if name != "text/markdown" else form.replace("\\", "")), name
        assert "select → draft" in form, name
    assert stored["next"][0]["type"] == "%%agent --continue"
    assert place_in(view_of(drawn().run)) == ""


KILLED = ErrorInfo("ENGINE_INTERRUPTED", "the kernel died")
ENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Paused: 20 turns": ("waits", {"phase": "WaitingUser", "stop_reason": "max_turns"}),
    "Stopped": ("waits", {"phase": "Failed", "stop_reason": "stopped"}),
    "Failed": ("bad", {"phase": "Failed", "stop_reason": "error"}),
    "Failed: 50 requests": ("bad", {"phase": "Failed", "stop_reason": "max_turns"}),
    "Interrupted": ("bad", {"phase": "Failed", "error": KILLED}),
    "Completed": ("ok", {"phase": "Completed", "stop_reason": "workflow_complete"}),
    "Running": ("live", {"phase": "Running", "stop_reason": None}),
}


def test_every_end_has_its_word() -> None:
    for word, (tone, fields) in ENDS.items():
        state = view_of(Story().turn("so far").end(**fields).run)
        assert (state["status"]["word"], state["status"]["tone"]) == (word, tone)
        ends_badly = tone in ("waits", "bad")
        assert ("%agent resume" in [step["type"] for step in state["next"]]) is ends_badly


def test_a_failure_of_the_model_is_one_line_and_says_what_to_do() -> None:
    for code in get_args(ModelCode):
        error = ErrorInfo(code, "the provider said\n\n" + "much " * 1000)
        state = view_of(Story().turn("so far").end(phase="Failed", error=error).run)
        assert state["error"].startswith(f"{code}: the provider said")
        assert "%agent" in state["error_help"] or "--model" in state["error_help"]
        if code != "LLM_CONTEXT_OVERFLOW":
            assert "\n" not in state["error"]
            assert len(state["error"]) < 650
        for form in bundle(state).values():
            assert code.split("_")[0] in form
    stopped = ErrorInfo("ENGINE_ABORTED", "stopped")
    assert view_of(Story().turn("x").end(error=stopped).run)["error_help"] == ""


def test_long_texts_are_cut_and_say_where_the_rest_is() -> None:
    run = tool_run("c1", "read", {"path": "a"}, "x" * 15_000)
    state = view_of(Story().turn("", run).turn("y" * 70_000).end().run)
    result = state["turns"][0]["tools"][0]["result"]
    assert len(result["text"]) == 3_000
    assert result["note"] == "… 12,000 characters more; run.turns[0].tool_runs[0].result has all"
    assert len(state["turns"][1]["text"]["text"]) == MAX_CHARS
    assert state["turns"][1]["text"]["note"].endswith("run.turns[1].text has all")
    # Names and notes have their limits, too.
    long = "word " * 3000
    run = tool_run("c1", long, {}, ErrorInfo("E_TOOL_FAILED", long))
    story = Story(name=long, tags=(long,) * 50).turn("", run, agent=long, notices=(long,))
    state = view_of(story.end(notices=(long,)).run)
    turn = state["turns"][0]
    card = turn["tools"][0]
    short = (card["name"], turn["who"], turn["notices"][0], state["notices"][0])
    assert max(map(len, short)) < 1100
    assert max(len(card["error"]), len(state["about"])) <= 3000


@pytest.mark.parametrize(
    "text",
    [
        *("> " * 25_000, "[" * 59_000, "*a **a " * 8_000, "- " * 25_000, "a*" * 500_000),
        *("a\n\n" * 19_000, "|a" * 15_000 + "\n" + "|-" * 15_000),
    ],
    ids=["quotes", "brackets", "stars", "lists", "1 MB", "paragraphs", "table"],
)
def test_hostile_markdown_is_bounded(text: str) -> None:
    start = time.process_time()
    tree = tree_of(text)
    assert time.process_time() - start < 2
    assert json.dumps(tree)


def test_the_forms_keep_the_shape_of_an_answer() -> None:
    source = (
        "# Title\n\nSome **bold** and *soft* `code`.\n\n3. one\n4. two\n   - deep\n\n"
        "> said\n\n```python\nx = 1 < 2\n```\n\n|a|b|\n|-|-|\n|1|2|\n"
    )
    text = bundle(view_of(Story().turn(source).end().run))["text/markdown"]
    again = MarkdownIt("commonmark").enable("table").render(text)
    shapes = ("<strong>bold</strong>", "<em>soft</em>", '<ol start="3">', "<li>deep</li>")
    for piece in (*shapes, "<blockquote>", "x = 1 &lt; 2", "<td>2</td>"):
        assert piece in again
    # An empty line would end the HTML in a Markdown export, and what follows would be Markdown.
    story = Story().turn("a\n\n\n![i](http://evil.test/i.png)", reasoning="\n\nb").end()
    assert all(line.startswith("<") for line in html(view_of(story.run)).split("\n"))


def test_the_plain_text_is_what_a_person_reads_in_a_terminal() -> None:
    lines = bundle(view_of(drawn("offline:demo").run))["text/plain"].splitlines()
    assert lines == [
        "✓ Answered · offline:demo · 3 turns · 3 calls · 1,284 tokens (912 cached) · $0.0004"
        " · 2.8 s",
        "offline:demo answers by rules, not by a model",
        'C01  population(city="Oslo") → 717,710   population(city="Bergen") → 291,940'
        "  (428 tok · 1.1 s)",
        'C02  area(city="Bergn") ✕ E_TOOL_FAILED  (428 tok · 1.1 s)',
        "C03  Oslo is larger: 717,710 people against 291,940 in Bergen, "
        "about two and a half times as many.  (428 tok · 1.1 s)",
        "",
        ANSWER,
        "",
        "run 1a2b3c4d · %%agent --continue (the next message) · "
        "%agent show 1a2b3c4d (shows it again)",
    ]


def test_the_printer_tells_the_run_line_by_line_and_what_to_do_about_a_failure() -> None:
    written = printed(drawn("offline:demo").events)
    lines = "".join(written).splitlines()
    assert lines[:2] == [
        "… Running · offline:demo",
        "offline:demo answers by rules, not by a model",
    ]
    assert 'C01  population(city="Oslo") → 717,710  (main thread)' in lines
    assert 'C02  area(city="Bergn") ✕ E_TOOL_FAILED  (main thread)' in lines
    assert "     KeyError: 'Bergn'   areas.py:7 in area" in lines
    assert f"C03  {ANSWER}" in lines
    assert lines[-1].startswith("run 1a2b3c4d · %%agent --continue")
    assert len([piece for piece in written if piece in ANSWER and piece.strip()]) > 10
    refused = ErrorInfo("LLM_AUTH_FAILED", "the provider refused the key (HTTP 401).")
    failed = Story().end(phase="Failed", stop_reason="error", error=refused)
    lines = "".join(printed(failed.events)).splitlines()
    assert lines[lines.index(f"✕ {refused}") + 1].startswith("%agent doctor says which key")


def _image(form: str) -> str:
    content = io.BytesIO()
    Image.new("RGB", (24, 12), "red").save(content, form)
    return base64.b64encode(content.getvalue()).decode()


def test_what_is_not_what_it_is_called_or_would_fill_the_memory_is_no_picture() -> None:
    bomb = bytearray(PNG)
    bomb[16:24] = b"\x00\x01\x00\x00\x00\x01\x00\x00"
    parts = (
        ImagePart(media_type="image/png", data=_image("JPEG"), alt="jpeg"),
        ImagePart(media_type="image/webp", data=_image("PNG"), alt="png"),
        ImagePart(media_type="image/gif", data=base64.b64encode(b"GIF89a").decode(), alt="cut"),
        ImagePart(media_type="image/jpeg", data="/9j/" + "A" * 40, alt="no size"),
        ImagePart(data=base64.b64encode(bytes(bomb)).decode(), alt="bomb"),
        ImagePart(data="iVBORw0KGgo=====", alt="no base64"),
        ImagePart(media_type="image/svg+xml", data=_image("PNG"), alt="svg"),
    )
    shown, unseen = pictures_of(parts)
    assert shown == []
    assert len(unseen) == len(parts)


# A request that is too long.


def fetch(page: str) -> str:
    """Fetch a page."""
    return page * 9_000


def test_the_pause_of_a_request_too_long_says_in_every_form_what_takes_the_room() -> None:
    model = script(
        [call("fetch", page="a"), call("fetch", page="b"), error("LLM_CONTEXT_OVERFLOW", "long")]
    )
    events: list[Event] = []
    run = check_run(nbagent.Agent(model=model, tools=[fetch]).run("Go.", on_event=events.append))
    forms = [*bundle(view_of(run.record)).values(), "".join(printed(events))]
    assert len(forms) == 4
    for form in forms:
        text = form.replace("\\", "").replace("&quot;", '"')
        for words in ("about 4,6", "tokens (estimated)", "results of fetch 9"):
            assert words in text
        assert "Paused: the request is too long" in text
        assert "‖ LLM_CONTEXT_OVERFLOW: the request is too long for the model" in text
