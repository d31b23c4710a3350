"""The picture of a run: what it says, what it hides, and that live and stored ones agree."""

from __future__ import annotations

import base64
import io
import json
import time
from typing import Any, get_args

import pytest
from PIL import Image
from stories import ANSWER, Story, drawn, tool_run

from nbagent.contracts.chat import ImagePart
from nbagent.contracts.errors import ErrorInfo, ModelCode
from nbagent.contracts.records import RunRecord
from nbagent.notebook.live_state import LiveState, state_for_front_end
from nbagent.notebook.markdown_tree import MAX_CHARS, tree_of, words_of
from nbagent.notebook.pictures import pictures_of
from nbagent.notebook.static_html import bundle
from nbagent.notebook.static_text import facts_line
from nbagent.notebook.view_state import view_of
from nbagent.notebook.view_types import Op
from nbagent.notebook.visible import clean, in_short, one_line, visible

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x10\x00\x00\x00\x09\x08\x02\x00\x00\x00"


def folded(story: Story) -> tuple[LiveState, list[Op]]:
    """A live picture after all events but the last, and its ops."""
    live = LiveState(story.run.model_copy(update={"turns": ()}), clock=lambda: 0.0)
    ops = [op for event in story.events[:-1] for op in live.fold(event)]
    return live, ops


def test_the_time_bar_says_where_the_time_went() -> None:
    state = view_of(drawn().run)
    assert [piece["kind"] for piece in state["bar"]] == ["model", "tool", "model", "bad", "model"]
    assert sum(piece["ms"] for piece in state["bar"]) == pytest.approx(3300)
    assert state["bar_words"] == "model 2.7 s · tools 0.3 s · retries and failures 0.3 s"


def test_waiting_for_a_person_and_retries_have_their_own_pieces() -> None:
    waited = tool_run("c1", "area", {}, 1).model_copy(update={"waited_ms": 200.0})
    story = Story().turn("", waited, waited, attempts=2, retry_wait_ms=300.0, model_ms=500.0)
    state = view_of(story.end().run)
    pieces = {piece["kind"]: piece["ms"] for piece in state["bar"]}
    assert pieces == {"bad": 300.0, "model": 500.0, "wait": 200.0, "tool": 100.0}
    assert "1 retry, waited 0.3 s" in state["turns"][0]["notices"]


def test_tokens_written_into_a_cache_are_named_where_there_are_some() -> None:
    run = drawn().run
    usage = run.usage.model_copy(update={"cache_write_tokens": 50})
    line = facts_line(view_of(run.model_copy(update={"usage": usage})))
    assert "1,284 tokens (912 cached, 50 written to the cache)" in line


def test_the_live_picture_is_the_stored_picture() -> None:
    story = drawn()
    live, _ = folded(story)
    before, stored = live.snapshot(), view_of(story.run)
    assert before["turns"] == stored["turns"]
    assert before["bar"] == stored["bar"]
    known = [f for f in before["facts"] if f["key"] != "time"]
    assert known == [f for f in stored["facts"] if f["key"] != "time"]
    live.fold(story.events[-1])
    assert live.snapshot() == stored


def test_the_picture_of_a_reloaded_record_is_the_same() -> None:
    run = drawn().run
    again = RunRecord.model_validate_json(run.model_dump_json())
    assert view_of(again) == view_of(run)
    assert json.loads(json.dumps(view_of(run))) == view_of(run)


def test_a_child_run_shows_only_its_own_new_messages() -> None:
    story = Story(parent_id="ffff0000ffff0000", kind="continue", shared_messages=4)
    story.turn("And so on.").end()
    live, _ = folded(story)
    request = view_of(story.run)["turns"][0]["request"]
    assert request["earlier"] == "4 of them from the run before"
    assert [m["role"] for m in request["messages"]] == ["user"]
    assert live.snapshot()["turns"][0]["request"] == request
    assert "continues ffff0000" in view_of(story.run)["about"]


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


@pytest.mark.parametrize("word", ENDS)
def test_every_end_has_its_word(word: str) -> None:
    tone, fields = ENDS[word]
    state = view_of(Story().turn("so far").end(**fields).run)
    assert (state["status"]["word"], state["status"]["tone"]) == (word, tone)
    ends_badly = tone in ("waits", "bad")
    assert ("%agent resume" in [step["type"] for step in state["next"]]) is ends_badly


def test_long_texts_are_cut_and_say_where_the_rest_is() -> None:
    run = tool_run("c1", "read", {"path": "a"}, "x" * 15_000)
    state = view_of(Story().turn("", run).turn("y" * 70_000).end().run)
    result = state["turns"][0]["tools"][0]["result"]
    assert len(result["text"]) == 3_000
    assert result["note"] == "… 12,000 characters more; run.turns[0].tool_runs[0].result has all"
    assert len(state["turns"][1]["text"]["text"]) == MAX_CHARS
    assert state["turns"][1]["text"]["note"].endswith("run.turns[1].text has all")


def test_hidden_characters_become_visible_and_ansi_goes() -> None:
    assert visible("a\u202eb\u200bc\x1b[31mred\x1b[0m\x00") == "a⟦U+202E⟧b⟦U+200B⟧cred⟦U+0000⟧"
    assert visible("lone \ud800") == "lone ⟦U+D800⟧"
    assert visible("line\r\nnext\ttab é 漢 👍") == "line\nnext\ttab é 漢 👍"
    run = tool_run("c1", "na\u202eme", {"a": "\x1b[1mx"}, "ok\u2066")
    card = view_of(Story().turn("", run).end().run)["turns"][0]["tools"][0]
    assert card["name"] == "na⟦U+202E⟧me"
    # Of a call's arguments even a colour code is seen: it may be written somewhere.
    assert card["arguments"]["text"] == '{"a": "⟦U+001B⟧[1mx"}'
    assert card["result"]["text"] == "ok⟦U+2066⟧"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (717710, "717,710"),
        (3.14159265, "3.14159"),
        (True, "true"),
        (None, "null"),
        ("Oslo", '"Oslo"'),
        ("x" * 2100, "2.1 kB"),
        ([1, 2], "[1, 2]"),
        (list(range(30)), "30 items"),
        ({"a": 1}, '{"a": 1}'),
        ({str(i): i for i in range(9)}, "9 fields"),
        (10**400, None),
    ],
    ids=lambda v: str(v)[:12],
)
def test_a_result_in_short(value: Any, words: str | None) -> None:
    assert in_short(value) == words if words else len(in_short(value)) < 60


def test_markdown_becomes_a_tree_of_allowed_nodes() -> None:
    tree = tree_of(
        "# Hi\n\n**b** [x](https://a.b) [j](javascript:alert(1)) ![alt](http://e/x.png)\n\n"
        "3. a\n4. b\n\n|a|b|\n|-|-:|\n|1|2|\n\n<script>x</script>\n\n```python\nx=1\n```\n"
    )
    assert tree[0] == ["h1", {}, ["Hi"]]
    assert tree[1] == [
        "p",
        {},
        [
            ["strong", {}, ["b"]],
            " ",
            ["a", {"href": "https://a.b"}, ["x"]],
            " [j](javascript:alert(1)) [image: alt — http://e/x.png]",
        ],
    ]
    assert tree[2] == ["ol", {"start": 3}, [["li", {}, ["a"]], ["li", {}, ["b"]]]]
    assert tree[4] == ["p", {}, ["<script>x</script>"]]
    assert tree[5] == ["pre", {"lang": "python"}, ["x=1\n"]]
    assert one_line("".join(words_of(tree)), 40).startswith("Hi b x")


@pytest.mark.parametrize(
    "text",
    [
        "> " * 25_000,
        "[" * 59_000,
        "*a **a " * 8_000,
        ("[" * 3000 + "\n\n") * 19,
        "- " * 25_000,
        "a*" * 500_000,
        "a\n\n" * 19_000,
        "![" * 25_000,
        "|a" * 15_000 + "\n" + "|-" * 15_000,
    ],
    ids=["quotes", "brackets", "stars", "paragraphs", "lists", "1 MB", "many", "images", "table"],
)
def test_hostile_markdown_is_bounded(text: str) -> None:
    start = time.process_time()
    tree = tree_of(text)
    assert time.process_time() - start < 2
    assert json.dumps(tree)


def test_the_front_end_is_not_sent_the_source_of_a_drawn_text() -> None:
    state = view_of(drawn().run)
    slim = state_for_front_end(state)
    assert slim["turns"][2]["text"]["text"] == ""
    assert slim["turns"][2]["tree"] == state["turns"][2]["tree"]
    assert state["turns"][2]["text"]["text"] == ANSWER


def _image(form: str, size: tuple[int, int] = (24, 12)) -> str:
    content = io.BytesIO()
    Image.new("RGB", size, "red").save(content, form)
    return base64.b64encode(content.getvalue()).decode()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP"])
def test_a_picture_says_how_large_it_is(form: str) -> None:
    part = ImagePart(media_type=f"image/{form.lower()}", data=_image(form), alt="a\u202eplot")
    (picture,), unseen = pictures_of((part,))
    assert (picture["alt"], picture["size"], unseen) == ("a⟦U+202E⟧plot", "24 × 12 px, 1 kB", [])


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


def test_an_answer_cannot_turn_the_reading_direction() -> None:
    assert clean("pay \u202etxt.exe\u202c \u2066a\u2069") == (
        "pay ⟦U+202E⟧txt.exe⟦U+202C⟧ ⟦U+2066⟧a⟦U+2069⟧"
    )
    assert (
        clean("na\u200dme \u0645\u200c\u0646 👨\u200d👩")
        == "na\u200dme \u0645\u200c\u0646 👨\u200d👩"
    )
    assert clean("hi\U000e0069") == "hi⟦U+E0069⟧"


def test_names_and_notes_have_their_limits() -> None:
    long = "word " * 3000
    run = tool_run("c1", long, {}, ErrorInfo("E_TOOL_FAILED", long))
    story = Story(name=long, tags=(long,) * 50).turn("", run, agent=long, notices=(long,))
    state = view_of(story.end(notices=(long,)).run)
    turn = state["turns"][0]
    card = turn["tools"][0]
    assert (
        max(map(len, (card["name"], turn["who"], turn["notices"][0], state["notices"][0]))) < 1100
    )
    assert len(card["error"]) <= 3000
    assert len(state["about"]) < 3000
