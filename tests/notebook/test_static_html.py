"""The static form: a record's HTML, Markdown and plain text; nothing in it can run."""

from __future__ import annotations

import configparser
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from stories import ANSWER, Story, drawn, tool_run

from nbagent.contracts import events
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import SecretKey
from nbagent.notebook.plain_lines import PlainPrinter
from nbagent.notebook.static_html import bundle, html
from nbagent.notebook.view_state import view_of

HOSTILE = (
    '<script>window.__pwned=1</script><img src=x onerror="window.__pwned=1">'
    '<iframe srcdoc="x"></iframe> [x](javascript:alert(1)) ![i](http://evil.test/i.png)'
    "</pre></details></style>&lt;b&gt;'\"`x`"
)


class _Tags(HTMLParser):
    """Collects tags, attributes and what stands open at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("br", "hr", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def hostile_run() -> RunRecord:
    """A run in which everything that others write is hostile."""
    run = tool_run(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, {HOSTILE: HOSTILE})
    bad = tool_run("c2", "t", {}, ErrorInfo("E_TOOL_FAILED", HOSTILE))
    story = Story(f"x:{HOSTILE}", name=HOSTILE, tags=(HOSTILE,))
    story.turn(HOSTILE, run, bad, reasoning=HOSTILE, notices=(HOSTILE,), agent=HOSTILE)
    story.turn(f"{HOSTILE}\n\n- {HOSTILE}\n\n```html\n{HOSTILE}\n```\n\n|a|\n|-|\n|{HOSTILE}|")
    return story.end(notices=(HOSTILE,), error=ErrorInfo("UNKNOWN", HOSTILE)).run


def test_the_html_has_no_script_handler_or_address() -> None:
    found = _Tags()
    found.feed(html(view_of(hostile_run())))
    assert found.open == []
    assert not found.tags & {"script", "iframe", "img", "a", "object", "form", "link"}
    assert found.attributes <= {"class", "style", "title", "max", "value", "align", "start"} | {
        "scope",
        "aria-hidden",
        "aria-label",
    }
    assert found.addresses == []


def test_the_markdown_renders_to_plain_marks_only() -> None:
    """Also in a renderer that lets HTML through, as a front end's may."""
    text = bundle(view_of(hostile_run()))["text/markdown"]
    found = _Tags()
    found.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))
    assert found.tags <= {"p", "strong", "em", "ul", "li", "code", "pre", "table", "thead"} | {
        "tbody",
        "tr",
        "th",
        "td",
    }
    assert found.addresses == []


def test_markdown_of_an_answer_keeps_its_shape() -> None:
    source = (
        "# Title\n\nSome **bold** and *soft* `code`.\n\n3. one\n4. two\n   - deep\n\n"
        "> said\n\n```python\nx = 1 < 2\n```\n\n|a|b|\n|-|-|\n|1|2|\n"
    )
    text = bundle(view_of(Story().turn(source).end().run))["text/markdown"]
    drawn_again = MarkdownIt("commonmark").enable("table").render(text)
    for piece in (
        "<strong>bold</strong>",
        "<em>soft</em>",
        '<ol start="3">',
        "<li>deep</li>",
        "<blockquote>",
        "x = 1 &lt; 2",
        "<td>2</td>",
    ):
        assert piece in drawn_again


def test_the_bundle_has_three_forms_and_never_json() -> None:
    assert list(bundle(view_of(drawn().run))) == ["text/html", "text/markdown", "text/plain"]


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


def test_the_html_names_the_commands_and_the_figures_in_words() -> None:
    text = re.sub(r"<style>.*?</style>|<[^>]+>", "", html(view_of(drawn().run)), flags=re.DOTALL)
    for words in ("✓ Answered", "3 turns", "%%agent --continue", "model 2.7 s", "✕ E_TOOL_FAILED"):
        assert words in text


def test_a_key_is_in_no_form() -> None:
    key = SecretKey("sk-live-9876543210fedcba")
    run = Story().turn(f"it is {key.reveal()}").end().run
    assert all(key.reveal() not in form for form in bundle(view_of(run)).values())


def _sanitised(text: str) -> str:
    config = configparser.RawConfigParser()
    config.read(Path(__file__).parents[1] / "nbval.cfg")
    for name in config.sections():
        text = re.sub(config.get(name, "regex"), config.get(name, "replace"), text)
    return text


@pytest.mark.parametrize("form", ["text/html", "text/markdown", "text/plain"])
def test_nbval_takes_two_runs_of_the_same_cell_for_equal(form: str) -> None:
    first = drawn().run
    turns = tuple(
        turn.model_copy(update={"duration_ms": turn.duration_ms * 7.3, "model_ms": 431.0})
        for turn in first.turns
    )
    other = first.model_copy(
        update={"id": "ffee00112233aabb", "turns": turns, "duration_ms": 725_123.0, "cost_usd": 1.5}
    )
    one, two = bundle(view_of(first))[form], bundle(view_of(other))[form]
    assert one != two
    assert _sanitised(one) == _sanitised(two)


def test_the_printer_tells_the_run_line_by_line() -> None:
    written: list[str] = []
    printer = PlainPrinter(written.append)
    for event in drawn("offline:demo").events:
        printer.handle(event)
    printer.close()
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


def test_the_printer_without_a_stream_prints_each_text_once_and_whole() -> None:
    written: list[str] = []
    printer = PlainPrinter(written.append, stream=False)
    for event in drawn().events:
        printer.handle(event)
    assert f"C03  {ANSWER}\n" in written
    assert "".join(written).count(ANSWER) == 1


def test_the_printer_hides_a_key_that_streams_in_pieces() -> None:
    key = SecretKey("sk-live-5555666677778888")
    written: list[str] = []
    printer = PlainPrinter(written.append)
    for piece in ("a ", key.reveal()[:9], key.reveal()[9:], " b"):
        printer.handle(events.TextDelta("C01", piece))
    printer.close()
    assert "".join(written) == "C01  a [redacted] b\n"


def test_the_printer_says_what_to_do_about_a_failure_of_the_model() -> None:
    error = ErrorInfo("LLM_AUTH_FAILED", "the provider refused the key (HTTP 401).")
    written: list[str] = []
    printer = PlainPrinter(written.append)
    for event in Story().end(phase="Failed", stop_reason="error", error=error).events:
        printer.handle(event)
    lines = "".join(written).splitlines()
    place = lines.index(f"✕ {error}")
    assert lines[place + 1].startswith("%agent doctor says which key")


def test_the_html_has_no_line_of_a_text_of_its_own() -> None:
    """An empty line would end the HTML in a Markdown export, and what follows would be Markdown."""
    text = html(
        view_of(Story().turn("a\n\n\n![i](http://evil.test/i.png)", reasoning="\n\nb").end().run)
    )
    assert "\n\n" not in text
    assert all(line.startswith("<") for line in text.splitlines())
