"""The page over all cases as one HTML file: no network, no kernel; texts cannot become markup.

The file holds the cases as JSON nodes, which its script builds as DOM; without scripts it shows the
first rows as a plain table. Its size is bounded, and it says what is left out.
"""

from __future__ import annotations

import base64
import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from html import escape

from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.records import RunRecord
from nbagent.view.case_columns import FAILURES, CaseColumns, verdict_of
from nbagent.view.case_table import CaseChars, case_node, page_node, row_node, saved_node
from nbagent.view.page_code import page_code
from nbagent.view.printers import html
from nbagent.view.text_format import one_line, pluralize, sanitize_value
from nbagent.view.theme import cases_stylesheet, dark_rules, live_stylesheet

CASE_BYTES = 4_000
"""Most bytes of one case: its row and what it unfolds."""
FILE_BYTES = 4_800_000
"""Most bytes of all cases; script, styles and the plain table add about 100 kB."""
_BLOCK = 50
"""Cases in one block of JSON; a block is parsed when it is needed."""
_PARTS = ("build", "clicks", "cases", "case_file")
_SIZES = (
    CaseChars(600, 1_600),
    CaseChars(500, 800),
    CaseChars(300, 400),
    CaseChars(150, 150),
    CaseChars(80, 60),
    CaseChars(40, 20),
    CaseChars(10, 4),
)
"""Shown characters, the most first: a case gets the first that fits its bytes."""
_CALL_CHARS = 100
_HEAD = (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; script-src '{sha}'; img-src data:; base-uri 'none'; "
    "form-action 'none'\">\n"
    '<meta name="viewport" content="width=device-width">\n<title>{title}</title>\n'
    "<style>:root{{color-scheme:light dark}}body{{font:14px/1.5 system-ui,sans-serif;margin:12px;"
    "background:Canvas}}{sheet}.nba-cases .nba-case-scroll{{max-height:none!important}}"
    "</style>\n</head>\n<body>\n"
)


def case_file(
    results: Sequence[CaseResult],
    columns: CaseColumns,
    *,
    max_bytes: int = 0,
    load: Callable[[str], RunRecord | None] | None = None,
) -> str:
    """Write one HTML file with these cases.

    Args:
        results: all cases of a batch.
        columns: the columns of the page, and its label.
        max_bytes: most bytes of the cases; default: `FILE_BYTES`.
        load: loads a run by its id, for the arguments and results of its calls.
    """
    limit = max_bytes or FILE_BYTES
    case_bytes = max(400, min(CASE_BYTES, limit // max(1, len(results))))
    cases = _within(limit, results, columns, case_bytes, load)
    shown = [results[number] for number, _, _ in cases]
    notes = [
        _note(results, shown, columns),
        _size_note(case_bytes, has_calls=load is not None and not columns.is_blind),
    ]
    page = page_node(columns, results, notes=notes, is_file=True)
    about = {
        "page": page,
        "block": _BLOCK,
        "runs": [result.run_id for result in shown],
        "batch": columns.name,
        "label": columns.label,
        "scale": columns.scale,
        "by": columns.by,
        "key": f"nbagent-labels/{_identity(results, columns)}",
    }
    script = page_code(*(f"page/{part}.js" for part in _PARTS))
    title = escape(f"{one_line(sanitize_value(columns.name), 80)} · all cases")
    sheet = live_stylesheet() + cases_stylesheet() + dark_rules()
    plain = html(saved_node(columns, results, "This page needs its script to filter and unfold"))
    pieces = [
        _HEAD.format(sha=_csp_hash(script), title=title, sheet=sheet),
        f"<main>\n{plain}\n</main>\n",
        _data(_json(about), 'id="nba-about"'),
        *_blocks([row for _, row, _ in cases], "nba-rows-data"),
        *_blocks([detail for _, _, detail in cases], "nba-details-data"),
        f"<script>{script}</script>\n</body>\n</html>\n",
    ]
    return "".join(pieces).encode("utf-8", "replace").decode()


def _within(
    limit: int,
    results: Sequence[CaseResult],
    columns: CaseColumns,
    case_bytes: int,
    load: Callable[[str], RunRecord | None] | None,
) -> list[tuple[int, str, str]]:
    """Return number, row and unfolded case of the cases that fit, in their order.

    Where not all fit, the failures come first: a person looks for these.
    """
    first = [n for n, result in enumerate(results) if _is_failure(result, columns)]
    others = sorted({*range(len(results))}.difference(first))
    fitting: list[int] = []
    made: dict[int, tuple[str, str]] = {}
    for number in (*first, *others):
        run_id = results[number].run_id
        record = load(run_id) if load and run_id and not columns.is_blind else None
        made[number] = _fitted(results[number], columns, case_bytes, record)
        texts = (*made[number], run_id)
        limit -= sum(len(text.encode("utf-8", "replace")) + 1 for text in texts)
        if limit < 0:
            break
        fitting.append(number)
    return [
        # The page finds a case by its position in the file.
        (number, made[number][0].replace(_KEY, json.dumps(str(position)), 1), made[number][1])
        for position, number in enumerate(sorted(fitting))
    ]


_KEY = '"99999"'
"""Stands for the position in the file, which is known when all cases are fitted."""


def _is_failure(result: CaseResult, columns: CaseColumns) -> bool:
    return verdict_of(result, columns.deciding) in FAILURES


def _fitted(
    result: CaseResult, columns: CaseColumns, limit: int, record: RunRecord | None
) -> tuple[str, str]:
    """Return a case as JSON with as much text as fits; the last size if none does."""
    made: dict[int, tuple[str, str]] = {}

    def fits(size: int) -> bool:
        chars = _SIZES[size]
        row = _json(row_node(columns, 99_999, result, chars))
        # Calls of a few characters say nothing.
        calls = record if chars.detail >= _CALL_CHARS else None
        made[size] = row, _json(case_node(columns, result, record=calls, chars=chars))
        return len("".join(made[size]).encode("utf-8", "replace")) + 2 <= limit

    best = 0 if fits(0) else bisect_left(range(1, len(_SIZES)), True, key=fits) + 1
    return made[best] if best < len(_SIZES) else (made[best - 1][0], "null")


def _json(value: object) -> str:
    """Print JSON that no HTML parser reads as a tag or a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _data(text: str, attribute: str) -> str:
    return f'<script type="application/json" {attribute}>{text}</script>\n'


def _blocks(texts: Sequence[str], name: str) -> Iterator[str]:
    for start in range(0, len(texts), _BLOCK):
        yield _data(f"[{','.join(texts[start : start + _BLOCK])}]", f'class="{name}"')


def _csp_hash(script: str) -> str:
    """Return the source expression by which the policy allows this script and no other."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"sha256-{digest}"


def _identity(results: Sequence[CaseResult], columns: CaseColumns) -> str:
    """Return an id by which a browser keeps the labels of this batch apart from others."""
    runs = [result.run_id for result in results if result.run_id]
    return sha256_hex("\n".join([columns.name, columns.label, columns.by, *runs]))[:16]


def _note(results: Sequence[CaseResult], shown: Sequence[CaseResult], columns: CaseColumns) -> str:
    """Say which cases the file has; empty if it has all."""
    missing = len(results) - len(shown)
    if not missing:
        return ""
    failures = sum(_is_failure(result, columns) for result in results)
    there = sum(_is_failure(result, columns) for result in shown)
    also = f"{there:,} of {failures:,} failures are here; " if failures else ""
    left = "is" if missing == 1 else "are"
    return (
        f"{pluralize(missing, 'case')} {left} left out, since the file would be too large: {also}"
        "batch.page() and batch.frame() have all"
    )


def _size_note(case_bytes: int, *, has_calls: bool) -> str:
    size = f"{case_bytes / 1000:.1f} kB"
    calls = (
        "and long arguments and results of calls, too; batch.open_run(…) has the whole runs"
        if has_calls
        else "and the turns of the runs are left out; batch.open_run(…) has them"
    )
    return f"A case takes at most {size} here: longer texts are cut, {calls}"
