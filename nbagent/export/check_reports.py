"""Reports of a batch's checks for a forge: JUnit XML, and Markdown for the summary of a job.

Texts of rows come from models, so nothing in them is markup of either format.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from nbagent.contracts.checks import Check, CheckedRow, failed_rows, n_unnamed_rows
from nbagent.view.text_format import one_line, pluralize, sanitize_value

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, not even as a reference."""
_ROW_CHARS = 160
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+!|~@&$-])")


def junit_xml(name: str, checks: Sequence[Check]) -> str:
    """Return a test suite with one test case for each check."""
    n_failed = sum(not check.ok for check in checks)
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites tests="{len(checks)}" failures="{n_failed}" errors="0">',
        f'<testsuite name={_attribute(name)} tests="{len(checks)}" failures="{n_failed}" '
        'errors="0" skipped="0">',
        *(line for check in checks for line in _test_case(name, check)),
        "</testsuite>",
        "</testsuites>",
    ]
    return "\n".join(lines) + "\n"


def _test_case(name: str, check: Check) -> list[str]:
    start = f"<testcase classname={_attribute(name)} name={_attribute(check.title)}"
    text = "\n".join(
        [
            check.result,
            *([check.advice] if check.advice else []),
            *_lines(check.rows, check.n_rows - len(check.rows)),
        ]
    )
    if check.ok:
        return [f"{start}><system-out>{_content(text)}</system-out></testcase>"]
    failure = f"<failure message={_attribute(check.result)}>{_content(text)}</failure>"
    return [f"{start}>{failure}</testcase>"]


def _lines(rows: Sequence[CheckedRow], n_more: int) -> list[str]:
    lines = [f"row {one_line(_title(row), _ROW_CHARS)}: {_row_text(row)}" for row in rows]
    return [*lines, f"and {pluralize(n_more, 'more row')}"] if n_more else lines


def _title(row: CheckedRow) -> str:
    return f"{row.row_key} [{row.variant}]" if row.variant else row.row_key


def _row_text(row: CheckedRow) -> str:
    why = one_line(row.why, _ROW_CHARS)
    return f"{why}: {one_line(row.text, _ROW_CHARS)}" if row.text else why


def _xml_text(text: str) -> str:
    return _NOT_XML.sub(lambda match: f"\\x{ord(match[0]):02x}", sanitize_value(text))


def _attribute(text: str) -> str:
    return quoteattr(one_line(_xml_text(text), 1_000))


def _content(text: str) -> str:
    return escape(_xml_text(text))


def markdown_report(name: str, checks: Sequence[Check], notes: Sequence[str] = ()) -> str:
    """Return a table of the checks, and the rows that explain the failures."""
    failed = [check for check in checks if not check.ok]
    state = f"{len(failed)} of {len(checks)} checks failed" if failed else "passed"
    lines = [
        f"### {'❌' if failed else '✅'} {_plain(name)}: {state}",
        "",
        "| | check | result |",
        "|---|---|---|",
        *map(_table_row, checks),
    ]
    if rows := failed_rows(checks):
        lines += ["", *(f"- {_plain(line)}" for line in _lines(rows, n_unnamed_rows(checks)))]
    if notes:
        lines += ["", *(f"{_plain(note)}\n" for note in notes)]
    return "\n".join(lines).rstrip() + "\n"


def _table_row(check: Check) -> str:
    result = f"{check.result}; {check.advice}" if check.advice else check.result
    return f"| {'✅' if check.ok else '❌'} | {_plain(check.title)} | {_plain(result)} |"


def _plain(text: str) -> str:
    """Escape a text, so that Markdown shows its characters and loads nothing."""
    return _MARKDOWN.sub(r"\\\1", one_line(sanitize_value(text), 400))
