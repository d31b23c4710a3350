"""Exports a run as a document: an HTML page, or Markdown in which text stays text."""

from __future__ import annotations

import sys
from html import escape

from nbagent.contracts.records import RunRecord
from nbagent.view.node import Node
from nbagent.view.printers import html, markdown
from nbagent.view.run_picture import picture
from nbagent.view.text_format import sanitize_value
from nbagent.view.theme import dark_rules, saved_stylesheet, used_rules

# The policy forbids scripts and requests, so that even a mistake in escaping could not run or load
# anything.
_HTML_HEAD = (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
    '<meta name="viewport" content="width=device-width">\n<title>{title}</title>\n'
    "<style>:root{{color-scheme:light dark}}body{{font:14px/1.5 system-ui,sans-serif;"
    "margin:24px auto;max-width:860px;padding:0 12px}}</style>\n</head>\n<body>\n"
)


def html_document(run: RunRecord) -> str:
    """Write one HTML file that needs no network and no script."""
    title = escape(f"run {run.id[:8]} · {sanitize_value(run.model)}")
    drawn = html(_whole_picture(run))
    sheet = used_rules(saved_stylesheet(), drawn) + dark_rules()
    head = _HTML_HEAD.format(title=title)
    return f"{head}<style>{sheet}</style>\n{drawn}\n</body>\n</html>\n"


def markdown_document(run: RunRecord) -> str:
    """Write the run as Markdown: `<details>` for folded parts, else text, tables and code."""
    return f"{markdown(_whole_picture(run))}\n"


def _whole_picture(run: RunRecord) -> Node:
    """Draw a run with all of its answer: nothing else beside a file has the rest."""
    return picture(run, actions=False, answer_chars=sys.maxsize)
