"""The static form: a record's HTML, Markdown and plain text; nothing in it can run."""

from __future__ import annotations

from markdown_it import MarkdownIt
from stories import ANSWER, Story, drawn

from nbagent.contracts.errors import ErrorInfo
from nbagent.notebook.plain_lines import PlainPrinter
from nbagent.notebook.static_html import bundle, html
from nbagent.notebook.view_state import view_of


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
