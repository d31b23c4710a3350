"""The picture of a run in all its forms: what it says, what it hides; live and stored agree."""

from __future__ import annotations

import base64
import io
import json
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from engine.laws import check_run
from PIL import Image
from stories import ANSWER, NOW, REASONING, Story, asked, drawn, tool_run, walked

import nbagent
from nbagent.contracts import events
from nbagent.contracts.errors import ErrorInfo, ModelCode
from nbagent.contracts.messages import ImagePart, Message
from nbagent.contracts.records import RunRecord
from nbagent.providers.offline import call, error, script
from nbagent.view import run_facts, run_status
from nbagent.view.images import render_parts as drawn_images
from nbagent.view.live import LivePicture, Op
from nbagent.view.markdown import markdown_nodes
from nbagent.view.node import text_of
from nbagent.view.printers import html
from nbagent.view.run_picture import head, page, picture
from nbagent.view.terminal import PlainPrinter, run_text
from nbagent.view.theme import STYLES, live_stylesheet, saved_stylesheet
from nbagent.view.value_nodes import answer_node, value_node

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x10\x00\x00\x00\x09\x08\x02\x00\x00\x00"


def begun(story: Story) -> LivePicture:
    run = story.run.model_copy(update={"turns": (), "phase": "Running"})
    return LivePicture(run, clock=lambda: 0.0)


def printed(told: Sequence[events.Event]) -> str:
    written: list[str] = []
    printer = PlainPrinter(written.append)
    for event in told:
        printer.handle(event)
    printer.close()
    return "".join(written)


def words(run: RunRecord) -> str:
    return text_of(picture(run))


def forms(run: RunRecord) -> list[str]:
    return [words(run), run_text(run)]


# Live and stored


@pytest.mark.parametrize("story", [drawn(), walked()], ids=["tools", "workflow"])
def test_the_live_record_becomes_the_stored_one_and_so_does_the_picture(story: Story) -> None:
    live = begun(story)
    for event in story.events[:-1]:
        json.dumps(apply(live, event))
    grown = live.record()
    for name in ("turns", "messages", "usage", "system_prompts", "toolsets", "notices"):
        assert getattr(grown, name) == getattr(story.run, name), name
    last = apply(live, story.events[-1])
    assert last == [["done", picture(story.run)]] == [["done", live.picture()]]
    again = RunRecord.model_validate_json(story.run.model_dump_json())
    assert picture(again) == json.loads(json.dumps(picture(story.run)))


def test_what_streams_is_in_the_picture_of_a_page_that_comes_late() -> None:
    live = begun(Story())
    story = Story().turn("One.\n\nTwo **b** and", tool_run("c1", "area", {}, 1), reasoning="Hm.")
    for event in story.events:
        if isinstance(event, events.ResponseReceived):
            break
        live.update(event)
    shown = text_of(live.picture())
    for said in ("Hm.", "One.", "Two **b** and", "area being written", '{"city": 1}', "■ Stop"):
        assert said in shown
    assert live.record().turns[0].text == "One.\n\nTwo **b** and"


def apply(live: LivePicture, event: events.Event) -> list[Op]:
    """Apply one event, and draw its changes."""
    live.update(event)
    return live.draw_changes()


def ops_of(live: LivePicture, told: Sequence[events.Event], *, batch: int = 1) -> list[list[Op]]:
    """Messages of a few events each, as a surface sends them."""
    messages: list[list[Op]] = []
    for start in range(0, len(told), batch):
        for event in told[start : start + batch]:
            live.update(event)
        messages.append(live.draw_changes())
    return messages


def test_blocks_are_drawn_as_they_close_and_the_open_one_is_text() -> None:
    live = begun(Story())
    apply(live, Story().turn("").events[0])
    text = "# Title\n\n- a\n- b\n\nnow **open"
    ops = [op for c in text for op in apply(live, events.TextDelta("C01", c))]
    whole = [op for op in ops if op[0] == "put" and "nba-plain" not in str(op[2])]
    closed = [html(op[2], breaks=False) for op in whole]
    assert closed == ["<div><h3>Title</h3></div>", "<div><ul><li>a</li><li>b</li></ul></div>"]
    assert "".join(op[2] for op in ops if op[0] == "add").endswith("ow **open")


PIECES = {
    "words": "word ",
    "one list": "- a b\n",
    "one fence": "x = 1\n",
    "paragraphs": "word\n\n",
    "short paragraphs": "a\n\n",
    "headings": "# a\n",
    "rules": "---\n\n",
    "quotes": "> a\n\n",
    "code blocks": "```\nx\n```\n",
    "highlighted code": "```python\nx = 1\n```\n",
    "tables": "|a|\n|-|\n|1|\n\n",
    "links": "[a](https://b.c)\n\n",
    "formulas": "$x$\n\n",
    "marks": "**a** `b` *c*\n\n",
    "lists": "- a\n\n---\n\n",
    "not Latin": "漢字\n\n",
}


@pytest.mark.parametrize("kind", [*PIECES, "reasoning"])
def test_ten_thousand_deltas_stay_small_and_cheap(kind: str) -> None:
    live = begun(Story())
    delta = events.ReasoningDelta if kind == "reasoning" else events.TextDelta
    start = delta("C01", "```python\n" if kind == "one fence" else "")
    told = [delta("C01", PIECES.get(kind, "word "))] * 10_000
    if kind == "words":  # in paragraphs of 40
        told = [told[0] if i % 40 else delta("C01", "word \n\n") for i in range(10_000)]
    begin = time.process_time()
    sent = ops_of(live, [*Story().turn("").events[:1], start, *told], batch=50)
    assert time.process_time() - begin < 4
    assert sum(len(json.dumps(message)) for message in sent) < 400_000


def test_each_part_is_drawn_once_a_message_however_many_events_changed_it() -> None:
    draws = list[None]()
    runs = [tool_run(f"c{i}", "area", {"city": i}, i) for i in range(100)]
    story = Story().turn("", *runs)
    begins = story.run.model_copy(update={"turns": (), "phase": "Running"})

    def clock() -> float:  # only a head that is drawn reads it
        draws.append(None)
        return 0.0

    live = LivePicture(begins, clock=clock)
    before = len(draws)
    (start,) = [i for i, e in enumerate(story.events) if isinstance(e, events.ResponseReceived)]
    work = story.events[start + 1 : -1]
    told = [*story.events[1 : start + 1], *(work * (10_000 // len(work)))]
    sent = ops_of(live, told, batch=500)
    assert len(told) > 9_000
    assert len(draws) - before == len(sent)
    for ops in sent:
        keys = [op[1] for op in ops]
        assert len(keys) == len(set(keys))
        assert len(keys) <= 2 + len(runs)


def test_a_part_of_a_part_that_is_drawn_again_is_not_drawn_by_itself() -> None:
    """Whatever the order of events, no message has an op below another op's key."""
    story = Story().turn("One.\n\nTwo", *[tool_run(f"c{i}", "area", {}, i) for i in range(3)])
    story.turn("Three.", notices=("cut to fit",))
    for batch in (1, 2, 3, 5, 50):
        for ops in ops_of(begun(story), story.events, batch=batch):
            keys = [op[1] for op in ops if op[0] != "done"]
            assert not [(a, b) for a in keys for b in keys if a.startswith(f"{b}/")]


def test_how_far_a_call_is_does_not_send_its_card_again() -> None:
    live = begun(Story())
    story = Story().turn("", tool_run("c1", "copy", {"text": "word " * 800}, "Done."))
    kinds = [type(event) for event in story.events]
    started = story.events[: 1 + kinds.index(events.ToolCallStarted)]
    told = [events.ToolProgress("C01", "c1", f"{i} of 9,999", i / 9_999) for i in range(10_000)]
    sent = ops_of(live, [*started, *told], batch=50)
    assert sum(len(json.dumps(message)) for message in sent) < 100_000
    assert "100% 9999 of 9,999" in text_of(live.picture())


def test_a_question_is_open_until_its_call_begins_and_has_an_id_of_its_own() -> None:
    story = Story().turn("", tool_run("c1", "write", {"a": 1}, 1))
    live = begun(story)
    started = next(i for i, e in enumerate(story.events) if isinstance(e, events.ToolCallStarted))
    ops_of(live, story.events[:started])
    question = asked("c1", "write", {"a": 1})
    live.update(question)
    assert live.open_questions() == [("C01/c1/1", question.question)]
    assert "Waiting for you" in text_of(live.picture())
    assert "write(a=1) … waiting for you" in text_of(live.picture())
    live.update(story.events[started])
    assert live.open_question("C01/c1/1") is None
    assert "write(a=1) … running" in text_of(live.picture())
    killed = live.record().model_copy(update={"phase": "Failed", "error": KILLED})
    assert words(killed).count("… interrupted") == 2, "in the turn's line and in the card"
    live.update(question)
    assert live.open_question("C01/c1/2") == question.question


# What it says


def test_the_time_bar_and_the_facts_say_where_time_and_tokens_went() -> None:
    usage = drawn().run.usage.model_copy(update={"cache_write_tokens": 50})
    run = drawn().run.model_copy(update={"usage": usage})
    bar = re.findall(r'nba-i-(\w+)" style="[^"]*flex-grow:(\d+)', html(head(run, None)))
    grown = [("model", 800), ("tool", 300), ("model", 800), ("bad", 300), ("model", 1100)]
    assert [(kind, int(ms)) for kind, ms in bar] == grown
    assert "model 2.7 s · tools 300 ms · retries, waits, failures 300 ms" in words(run)
    assert "1,284 tokens (912 cached, 50 written to the cache) · $0.0004 · 2.8 s" in words(run)


def test_waiting_for_a_person_is_not_counted_as_work_and_nothing_costs_zero() -> None:
    run = tool_run("c1", "write", {}, 1, ms=100).model_copy(
        update={"waited_ms": 5000.0, "approval": "allowed", "approved_by": "person"}
    )
    story = Story().turn("", run, duration_ms=6000.0, cost_usd=0.0).end()
    assert "model 800 ms · tools 200 ms · waiting for you 5.0 s" in words(story.run)
    assert "$" not in words(story.run)
    quick = Story().turn("", tool_run("c1", "t", {}, 1, ms=0), duration_ms=0.3, model_ms=0.2).end()
    assert not re.search(r"\b0(\.0)? m?s", words(quick.run))


def test_a_child_run_shows_only_its_own_new_messages_and_where_it_comes_from() -> None:
    story = Story(parent_id="ffff0000ffff0000", kind="continue", shared_messages=4)
    run = story.turn("And so on.").end().run
    assert "earlier: 4 of them from the run before" in words(run)
    assert words(run).count("Which is larger?") == 2
    assert "continues ffff0000" in words(run)
    resumed = run.model_copy(update={"kind": "resume", "prompt": ""})
    assert "(resumes ffff0000)" in words(resumed)


def test_the_head_says_workflow_step_and_agent_and_turns_say_the_moves() -> None:
    story = walked()
    live = begun(story)
    places = ["story-flow · mira"]
    for event in story.events[:-1]:
        live.update(event)
        place = run_facts.workflow_position(live.record().summary())
        places += [place] if place != places[-1] else []
    assert places[-1] == "story-flow · draft · otto"
    for form in (*forms(story.run), printed(story.events)):
        assert places[-1] in form
        assert "select → draft (next)" in form
        assert "refused: select → close: " in form
    assert run_status.status_of(story.run).word == "Waiting for you"


KILLED = ErrorInfo("ENGINE_INTERRUPTED", "the kernel died")
STOPPED = ErrorInfo("ENGINE_ABORTED", "the run was stopped")
ENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Paused: limit of turns": ("waits", {"phase": "WaitingUser", "stop_reason": "max_turns"}),
    "Stopped": ("waits", {"phase": "Failed", "stop_reason": "stopped", "error": STOPPED}),
    "Failed": ("bad", {"phase": "Failed", "stop_reason": "error"}),
    "Failed: limit of requests": ("bad", {"phase": "Failed", "stop_reason": "max_turns"}),
    "Interrupted": ("bad", {"phase": "Failed", "error": KILLED}),
    "Completed": ("ok", {"phase": "Completed", "stop_reason": "workflow_complete"}),
    "Answered": ("ok", {}),
    "Running": ("live", {"phase": "Running", "stop_reason": None}),
}


@pytest.mark.parametrize("word", ENDS)
def test_every_end_has_its_word_its_next_step_and_its_buttons(word: str) -> None:
    tone, fields = ENDS[word]
    run = Story().turn("so far").end(**fields).run
    status = run_status.status_of(run)
    assert (status.word, status.tone) == (word, tone)
    assert words(run).count(word) <= (2 if word == "Stopped" else 1)
    ends_early = tone in ("waits", "bad")
    assert ("%agent resume" in run_text(run)) is ends_early
    # A completed run has nothing to continue; an answered one takes further words.
    assert ('data-do="continue"' in html(picture(run))) is (word not in ("Completed", "Running"))
    assert ("nba-reply" in html(picture(run))) is word.startswith("Paused")
    assert ('data-do="fork"' in html(picture(run))) is (word != "Running")
    assert "data-do" not in html(picture(run, actions=False)).replace('data-do="copy"', "")


def test_a_stop_is_no_failure_and_is_said_in_one_line() -> None:
    run = Story().turn("so far").end(**ENDS["Stopped"][1]).run
    assert "nba-error" not in html(picture(run))
    assert "ENGINE_ABORTED" not in words(run)
    assert run_text(run).count("%agent resume") == 1


def test_what_to_do_about_an_error_is_said_also_where_a_server_speaks_of_commands() -> None:
    fault = ErrorInfo("LLM_HTTP_ERROR", "the server said: run %agent stop")
    run = Story().end(phase="Failed", error=fault).run
    assert "run %agent stop. %agent doctor shows the settings" in run_status.ending_text(run)


@pytest.mark.parametrize("code", get_args(ModelCode))
def test_a_failure_of_the_model_is_one_line_and_says_what_to_do(code: ModelCode) -> None:
    fault = ErrorInfo(code, "the provider said\n\n" + "much " * 1000)
    run = Story().turn("so far").end(phase="Failed", error=fault).run
    for form in forms(run):
        assert form.count(f"{code}: the provider said") == 1
    ending = run_status.ending_text(run)
    assert "%agent" in ending or "--model" in ending
    if code != "LLM_CONTEXT_OVERFLOW":
        assert "\n" not in ending
        assert len(ending) < 800


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"approval": "denied", "approved_by": "person"}, "✕ denied by you"),
        ({"approval": "denied", "approved_by": "policy"}, "✕ denied by the policy"),
        ({"approval": "denied", "approved_by": "nobody"}, "nobody can answer"),
    ],
    ids=["person", "policy", "nobody"],
)
def test_a_denied_call_is_seen_in_the_row_and_in_the_card(
    fields: dict[str, str], said: str
) -> None:
    denied = tool_run("c1", "write", {}, ErrorInfo("E_DENIED", "no")).model_copy(update=fields)
    run = Story().turn("", denied.model_copy(update={"started_at": None})).end().run
    assert "nba-turn nba-bad" in html(picture(run))
    assert "✕ denied" in words(run)
    assert said in run_text(run)
    assert "did not run" in words(run)


def test_an_end_says_once_that_a_try_again_helps() -> None:
    model = script([error("LLM_BAD_RESPONSE", "the answer ended early; try again.")])
    run = nbagent.Agent(model, quiet=True).run("Go.")
    ending = run_status.ending_text(run.record)
    assert "ended early. %agent resume" in ending
    assert "tries again" in ending
    assert "; try again" not in ending


def test_failed_calls_are_counted_behind_the_first_four() -> None:
    calls = [tool_run(f"c{n}", "read", {}, "fine") for n in range(5)]
    failed = tool_run("c9", "read", {}, ErrorInfo("E_TOOL_FAILED", "no"))
    assert "and 2 more, 1 failed" in run_text(Story().turn("", *calls, failed).end().run)
    assert "failed" not in run_text(Story().turn("", *calls).end().run)


def test_long_texts_are_cut_and_say_where_the_rest_is() -> None:
    run = tool_run("c1", "read", {"path": "a"}, "x" * 15_000)
    shown = words(Story().turn("", run).turn("y" * 70_000).end().run)
    assert "… 12,000 characters more; run.turns[0].tool_runs[0].result has all" in shown
    assert "… 10,000 characters more; run.turns[1].text has all" in shown
    # Names and notes have their limits, too.
    long = "word " * 3000
    run = tool_run("c1", long, {}, ErrorInfo("E_TOOL_FAILED", long))
    story = Story(name=long, tags=(long,) * 50, prompt=long)
    story.turn("", run, agent=long, notices=(long,))
    assert len(words(story.end(notices=(long,)).run)) < 20_000


FRAME = (
    "DataFrame: 1,204 rows × 2 columns\ndtypes: city str, n int64\n| city | n |\n| --- | --- |\n"
    "| Oslo | 1,284 |\n| a\\|b | 7 |\n… 1,200 of 1,204 rows left out …\n| Moss | 3 |"
)
ROWS = [{"city": "Oslo", "n": 717_710}, {"city": "Bergen", "n": 291_940}] * 30


@pytest.mark.parametrize(
    ("value", "short"),
    [
        (ROWS, "2 columns × 60 rows"),
        (FRAME, "2 columns × 1,204 rows"),
        (
            {f"key{i}": "v" * 30 for i in range(23)},
            f'key0="{"v" * 30}", … (23 keys)',
        ),
        (
            "DataFrame: abc rows × 2 columns\n| a | b |\n| - | - |\n| 1 | 2 |",
            '"DataFrame: abc rows × 2',
        ),
        (f"DataFrame: {'9' * 5000} rows × 2 columns", '"DataFrame: 9999'),
        (["word " * 20] * 9, '9 items: "word word word word word word word word …", …'),
        ("text " * 600, '"text text text text …" (3.0 kB)'),
        ({"a": 1}, '{"a": 1}'),
        (10**60, "0x9f4f2726179a224501d762 …"),
    ],
    ids=["rows", "frame", "object", "no count", "huge count", "list", "text", "small", "huge"],
)
def test_a_preview_tells_something_of_any_result(value: Any, short: str) -> None:
    run = Story().turn("", tool_run("c1", "t", {}, value)).end().run
    assert f"t() → {short}" in run_text(run)
    assert html(picture(run))


@pytest.mark.parametrize("value", [ROWS, FRAME], ids=["rows", "frame"])
def test_results_that_are_tables_are_tables_with_numbers_at_the_right(value: Any) -> None:
    shown = html(picture(Story().turn("", tool_run("c1", "t", {}, value)).end().run))
    assert re.search(r'<th class="nba-l"[^>]*>city</th><th class="nba-r"[^>]*>n</th>', shown)
    assert re.search(r'<td class="nba-r" align="right"[^>]*>(717,710|1,284)</td>', shown)
    assert shown.count("<tr>") <= 25
    assert "rows more" in shown


def test_values_show_themselves_as_nodes() -> None:
    run = drawn().run
    turn = run.turns[0]
    for value, said in (
        (turn, "population"),
        (turn.tool_runs[0], "717710"),
        (Message.of("user", "Hello <b>"), "Hello &lt;b&gt;"),
        ([run, run], "1a2b3c4d"),
    ):
        node = value_node(value)
        assert node is not None
        assert said in html(node)
    assert value_node([1]) is value_node([]) is value_node("x") is None
    assert "<strong>b</strong>" in html(answer_node("a **b**"))


# Markdown


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("# Title\n\n**b** *i* ~~s~~ `c`", "<h3>Title</h3><p><strong>b</strong> <em>i</em>"),
        ("3. one\n4. two\n   - deep", '<ol start="3"><li>one</li><li>two<ul><li>deep</li>'),
        ("|a|n|\n|-|-:|\n|x|1|", '<td class="nba-r" align="right"'),
        ("|a|n|\n|-|-|\n|x|**1,000**|\n|y|-2.5|", '<th class="nba-r" align="right"'),
        ("|n|\n|-|\n|1|\n|two|", '<td class="nba-l"'),
        ("|n|\n|:-|\n|1|", '<td class="nba-l"'),
        ("```python\ndef f(): return 1 # c\n```", '<span class="nba-kk">def</span>'),
        ("```wat\n<b>\n```", "<pre>&lt;b&gt;&#10;</pre>"),
        ("Euler: $e^{i\\pi}$", 'tex2jax_process">$e^{i\\pi}$</span>'),
        ("\\[ \\frac{a}{b} \\]", 'tex2jax_process">\\[ \\frac{a}{b} \\]</span>'),
        ("$$\n\\sum_{i=1}^n i\n$$", 'tex2jax_process">$$\n\\sum_{i=1}^n i\n$$</span>'),
        ("a\n\n\n![i](http://evil.test/i.png)", "<p>[image: i — http://evil.test/i.png]</p>"),
        ("[a](javascript:x) [b](https://b.c)", '[a](javascript:x) <a href="https://b.c" rel="noo'),
    ],
    ids=[
        "inline",
        "lists",
        "table",
        "numbers",
        "no numbers",
        "left",
        "code",
        "unknown",
        "tex",
        "[",
        "$$",
        "image",
        "links",
    ],
)
def test_markdown_becomes_allowed_nodes(source: str, made: str) -> None:
    run = Story().turn(source).end().run
    assert made in html(picture(run), breaks=False)
    # An empty line would end the HTML in a Markdown export.
    assert all(map(str.strip, html(picture(run)).split("\n")))


@pytest.mark.parametrize(
    "node",
    [
        ["a", {"href": "javascript:alert(1)"}, "x"],
        ["img", {"src": "https://b.c/x.png", "alt": "x"}],
        ["img", {"src": "data:image/svg+xml;base64,PHN2Zz4=", "onerror": "alert(1)"}],
        ["div", {"onclick": "alert(1)", "data-commandlinker-command": "run"}, "x"],
        ["div", {"style": "flex-grow:1;background:url(https://b.c)"}, "x"],
    ],
    ids=["an address", "a picture from afar", "svg", "events and commands", "style"],
)
def test_an_attribute_that_could_act_or_load_is_not_printed(node: list[Any]) -> None:
    shown = html(node)
    assert not [word for word in ("alert", "//b.c", "svg", "run") if word in shown], shown


def test_text_and_values_are_escaped_with_their_line_ends() -> None:
    hostile = "<b title='\"'>\r\n\n&"
    inert = "&lt;b title=&#x27;&quot;&#x27;&gt;&#13;&#10;&#10;&amp;"
    lines = "&lt;b title=&#x27;\"'&gt;&#13;&#10;\n&amp;"
    assert html(["div", {"title": hostile}, hostile]) == f'<div title="{inert}">{lines}</div>'


@pytest.mark.parametrize(
    "text",
    [
        *("it costs $5 and not $6", "from $ a to b $", "${env:HOME}", "a $x$5", "`$x$`", "\\$x\\$"),
        *("$\\href{javascript:x}{y}$", "\\(\\class{nba-stop}{x}\\)", "$\\require{html}$"),
        *("$$\\def\\a{\\a\\a}\\a$$", "$\\begin{CD} a \\end{CD}$", "$a}{b$", "$#1$", "$x % y$"),
        *(f"${'{' * 20 + 'x' + '}' * 20}$", f"$x{'+1' * 400}$", "\\[\\style{a:b}{c}\\]"),
        *("\\(\\unicode{x41}\\)", "$x''''''$"),
        "\\(\\begin{array}{c}a\\\\[9999em]b\\end{array}\\)",
    ],
)
def test_prices_and_hostile_tex_stay_text(text: str) -> None:
    assert "mathjax_process" not in html(picture(Story().turn(text).end().run))


@pytest.mark.parametrize(
    "text",
    [
        *("> " * 25_000, "[" * 59_000, "*a **a " * 8_000, "- " * 25_000, "a*" * 500_000),
        *("a\n\n" * 19_000, "|a" * 15_000 + "\n" + "|-" * 15_000, "$x" * 25_000, "\\(" * 25_000),
        *("$a " * 1_900, "```python\n" + "'''\"" * 5_000),
        *("```c\na" + " " * 5_000 + "(", "```css\n" + '"\\' * 2_900),
    ],
    ids=[
        *("quotes", "brackets", "stars", "lists", "1 MB", "paragraphs", "table", "tex", "tex ("),
        *("few tex", "python", "c", "css"),
    ],
)
def test_hostile_markdown_is_bounded(text: str) -> None:
    start = time.process_time()
    made = markdown_nodes(text)
    assert time.process_time() - start < 2
    assert json.dumps(made)


# Without a style, with a sheet, as text


def test_inline_styles_are_plain_and_the_sheet_is_short() -> None:
    """JupyterLab's sanitiser drops a style that has anything else; sizes are of two turns."""
    value = re.compile(r"[a-z-]+:(?:[\d.a-z #%-]|rgba\([\d,.]+\)|calc\([\d px%-]+\))+")
    for name, style in STYLES.items():
        assert all(value.fullmatch(one) for one in style.split(";")), name
    story = Story("offline:demo").turn("", tool_run("c1", "population", {"city": "Oslo"}, 717_710))
    run = story.turn(ANSWER).end().run
    assert len(page(picture(run, kernel="k" * 12)).encode()) < 10_100
    assert "nba-ask" not in saved_stylesheet()
    assert "nba-ask" in live_stylesheet()


def test_without_any_style_the_structure_tells_the_parts_apart() -> None:
    bare = re.sub(
        r' (class|style|role|aria-\w+|data-\w+|title)(="[^"]*")?', "", forms_html(drawn())
    )
    assert "<blockquote>Which is larger?</blockquote>" in bare
    assert bare.index("</details></div><hr>") < bare.index(f"<p>{ANSWER[:14]}")
    assert "<summary><span><code>turn C01</code> <span><code><span>population</span>" in bare
    assert "<small>428 tok</small>" in bare
    assert "<button hidden" not in bare


def forms_html(story: Story) -> str:
    return html(picture(story.run, actions=False), breaks=False)


def test_the_plain_text_is_what_a_person_reads_in_a_terminal() -> None:
    assert run_text(drawn("offline:demo").run).splitlines() == [
        "✓ Answered · offline:demo · 3 turns · 1 of 3 calls failed · 1,284 tokens (912 cached)"
        " · $0.0004"
        " · 2.8 s",
        "offline:demo answers by rules, not by a model",
        "> Which is larger?",
        'turn C01  population(city="Oslo") → 717,710  population(city="Bergen") → 291,940'
        "  (428 tok)",
        "turn C02  area(city=\"Bergn\") ✕ E_TOOL_FAILED: KeyError: 'Bergn'  (428 tok)",
        "turn C03  answer  (428 tok)",
        "",
        ANSWER,
        "",
        "run 1a2b3c4d · continue with %%agent --continue · model 2.7 s · tools 300 ms"
        " · retries, waits, failures 300 ms",
    ]


def test_the_printer_tells_when_each_call_begins_and_ends_and_what_to_do_about_a_failure() -> None:
    story = drawn("offline:demo")
    lines = printed(story.events).splitlines()
    assert lines[:2] == [
        "… Running · offline:demo",
        "offline:demo answers by rules, not by a model",
    ]
    clock = datetime(*NOW.timetuple()[:6], tzinfo=UTC).astimezone().strftime("%H:%M:%S")
    assert f'C01  {clock} population(city="Oslo") → 717,710  (main thread · 120 ms)' in lines
    begin = 'C01  ▸ population(city="Oslo") …'
    assert [line for line in lines if 'population(city="Oslo")' in line].index(begin) == 0
    assert sum('population(city="Oslo")' in line for line in lines) == 2, "it begins and ends once"
    assert "     KeyError: 'Bergn'   areas.py:7 in area" in lines
    assert f"C02  (thinking) {REASONING}" in lines
    assert f"C03  {ANSWER}" in lines
    assert lines[-1].startswith("run 1a2b3c4d · continue with %%agent --continue")
    refused = ErrorInfo("LLM_AUTH_FAILED", "the provider refused the key (HTTP 401).")
    failed = Story().end(phase="Failed", stop_reason="error", error=refused)
    assert f"✕ {refused} %agent doctor shows which key" in printed(failed.events)


def fetch(page: str) -> str:
    """Fetch a page."""
    return page * 9_000


def test_the_pause_of_a_request_too_long_says_in_every_form_what_takes_the_room() -> None:
    model = script(
        [call("fetch", page="a"), call("fetch", page="b"), error("LLM_CONTEXT_OVERFLOW", "long")]
    )
    told: list[events.Event] = []
    run = check_run(nbagent.Agent(model=model, tools=[fetch]).run("Go.", on_event=told.append))
    for form in (*forms(run.record), printed(told)):
        for said in ("about 4,6", "tokens (estimated)", "results of fetch 9"):
            assert said in form
        assert "Paused: the request is too long" in form
        assert "‖ LLM_CONTEXT_OVERFLOW: the request is too long for the model" in form


# Images


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
    shown, unseen = drawn_images(parts)
    assert shown == []
    assert len(unseen) == len(parts)
    for form in ("PNG", "JPEG", "GIF", "WEBP"):
        part = ImagePart(media_type=f"image/{form.lower()}", data=_image(form), alt="red")
        assert "red · 24 × 12 px, 1 kB" in "".join(map(html, drawn_images([part])[0]))


# The first hour

FINAL: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "texts": ({"answer": ["Oslo", "Bergen"]}, ["Oslo", "Bergen"], "<li>Oslo</li>"),
    "a number": ({"answer": 41}, ["41"], "<p>41</p>"),
    "fields": ({"name": "Oslo", "population": 717_710}, ["name        Oslo"], "<th>name</th>"),
    "a list of objects": (
        {"answer": [{"city": "Oslo", "n": 1}, {"city": "Bergen", "n": 2}]},
        ["city    n", "Bergen  2"],
        "<th>city</th>",
    ),
    "nested": ({"answer": {"a": {"b": [1, 2]}}}, ['{"a": {"b": [1, 2]}}'], "<pre>"),
    "hostile": ({"answer": ["<img src=x>"]}, ["<img src=x>"], "&lt;img src=x&gt;"),
    "nothing": ({"answer": []}, ["[]"], "<pre>[]</pre>"),
}


@pytest.mark.parametrize(("args", "lines", "part"), FINAL.values(), ids=FINAL)
def test_a_typed_answer_has_a_block_of_its_own(
    args: dict[str, Any], lines: list[str], part: str
) -> None:
    run = Story().turn("", tool_run("c1", "final_answer", args, "accepted")).end().run
    answer = html(picture(run)).partition('class="nba-answer"')[2]
    assert part in re.sub(r' (class|style)="[^"]*"', "", answer)
    below = run_text(run).partition("turn C01")[2]
    for shown in lines:
        assert shown in below


def test_the_head_counts_the_calls_that_failed() -> None:
    failed = tool_run("c1", "area", {"city": "x"}, ErrorInfo("E_TOOL_FAILED", "no area"))
    run = Story().turn("", failed).turn("I do not know.").end().run
    assert "✓ Answered" in run_text(run)
    assert "1 of 1 call failed" in run_text(run).splitlines()[0]
    assert '<b class="nba-err">1 of 1 call failed</b>' in html(picture(run))
    # The calls of a stopped run may wait for its continuation.
    stopped = run.model_copy(update={"stop_reason": "stopped", "phase": "WaitingUser"})
    assert "call failed" not in run_text(stopped)


def test_a_stopped_run_is_named_in_the_advice_to_resume_it() -> None:
    run = Story().turn("so far").end(**ENDS["Stopped"][1]).run
    assert f"%agent resume {run.id[:8]}" in run_text(run)
    assert f"%agent resume {run.id[:8]}" in html(picture(run))


DAYS = "DataFrame: 30 rows × 2 columns\n| day | n |\n| --- | --- |\n"


def test_a_long_dataframe_of_the_prompt_is_folded_and_its_midnights_are_dates() -> None:
    rows = "".join(f"| 2024-01-{n:02}T00:00:00 | {n} |\n" for n in range(1, 31))
    folded = html(picture(Story(prompt=f"{DAYS}{rows}Which day?").turn("One.").end().run))
    assert re.search(r"<details class=\"nba-frame\"[^>]*>\s*<summary", folded)
    assert "2024-01-05<" in folded
    assert "T00:00:00" not in folded
    few = html(picture(Story(prompt=f"{DAYS}{rows[:90]}Which day?").turn("One.").end().run))
    assert "nba-frame" not in few
    timed = f"{DAYS}| 2024-01-01T00:00:00 | 1 |\n| 2024-01-01T06:30:00 | 2 |\nWhich?"
    assert "2024-01-01T00:00:00" in html(picture(Story(prompt=timed).turn("One.").end().run))


def test_arguments_are_shown_as_code_and_code_by_lines() -> None:
    args = {"product": "Tea", "year": 2020, "share": 12345.5, "code": "x = 1\nprint(x)\n"}
    run = Story().turn("", tool_run("c1", "nb.run", args, 1)).turn("Done.").end().run
    for form in forms(run):
        assert 'product="Tea", year=2020, share=12345.5, code="x = 1 ⏎ print(x)"' in form
    assert '<pre>product: "Tea"\nyear: 2020\nshare: 12345.5\ncode:\nx = 1\nprint(x)' in re.sub(
        r' (class|style)="[^"]*"', "", html(picture(run))
    ).replace("&quot;", '"')


def test_a_turn_has_a_short_repr() -> None:
    run = Story().turn("", tool_run("c1", "area", {"city": "x"}, 1)).turn("Done.").end().run
    assert re.fullmatch(
        r"\(<EngineTurn C01: calls area, \d+ tokens>, "
        r"<EngineTurn C02: text of 5 characters, \d+ tokens>\)",
        repr(run.turns),
    )
