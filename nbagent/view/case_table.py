"""Picture of all cases of a batch: a table with a row for each, and the case that a row unfolds.

Rows are drawn one by one, so that a page gets only the changed ones. `notebook/page/cases.js`
filters, sorts and unfolds them; `notebook/case_page` and `export/case_file` feed it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.records import RunRecord, ScoreRecord
from nbagent.view.case_columns import (
    SHORT_CELL_CHARS,
    VERDICT_LOOKS,
    CaseColumns,
    verdict_counts,
    verdict_of,
)
from nbagent.view.case_names import LABEL_CHARS, CaseNames, short_text
from nbagent.view.case_steps import step_nodes
from nbagent.view.node import Node, h, line
from nbagent.view.printers import html, plain_text
from nbagent.view.run_picture import ROOT_CLASS
from nbagent.view.text_format import (
    format_cost,
    format_duration,
    one_line,
    pluralize,
    sanitize_prose,
    truncate,
    value_text,
)

CASES_KEY = "cases"
"""`data-run` of the page, by which its messages find it."""
ROWS_KEY = "rows"
"""`data-key` of the body of the table."""
DETAIL_PREFIX = "open/"
"""Start of the `data-key` of an unfolded case, before the key of its row."""
_MAX_NAMED = 12
_MAX_TOOLS = 6
_MAX_FILTERED = 12
"""Columns of the batch's table by which the rows can be filtered."""
_LEGEND_CHARS, _ALL_LEGEND_CHARS, _MAX_LEGEND = 4_000, 40_000, 40
_HASH_CHARS = 12
_TOOL_CHARS = 80
_MAX_VALUES = 4
"""Scores of one name that a row shows."""
_MAX_DETAIL_ROWS, _FEW_ROWS, _FEW_CHARS = 16, 3, 200
"""Rows of a table in an unfolded case; few if its texts are short, too."""
_HAS_ALL = "batch.frame()"
_SAVED_BYTES = 24_000
_TEXT_ROWS = 20


@dataclass(frozen=True, slots=True)
class CaseChars:
    """Shown characters of the prompt, the answer and the reasons of one case.

    Keys, labels, scores and names of tools are the same for any size: rows are filtered by them.
    """

    text: int = 600
    """The prompt and the answer in a row."""
    detail: int = 4_000
    """The prompt and the answer in an unfolded case; its other texts get a quarter."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: its id in the page, its title, and the class of its cells."""

    field: str
    title: str
    look: str = ""
    is_choice: bool = False
    """A person filters by one of its values."""
    most: int = 1
    """Values that a row shows; a person filters by the others, too."""


# Columns and rows


def _columns(columns: CaseColumns) -> Iterator[_Column]:
    yield _Column("row", "row")
    for number, axis in enumerate(columns.axes):
        yield _Column(f"axis{number}", short_text(axis, 40), is_choice=True)
    if not columns.is_blind:
        yield _Column("verdict", "verdict", is_choice=True)
    for number, name in enumerate(columns.scores):
        # Its labels change in the page; a score of the same name is a column like others.
        field = "label" if number == 0 else f"score{number}"
        yield _Column(field, short_text(name, 40), "nba-value", is_choice=True, most=_MAX_VALUES)
    yield _Column("tools", "tools", is_choice=True, most=_MAX_TOOLS)
    if not columns.is_blind:
        yield _Column("cost", "cost", "nba-r")
        yield _Column("time", "time", "nba-r")
    if columns.has_prompt:
        yield _Column("prompt", "prompt text", "nba-long")
    for number, name in enumerate(columns.cells):
        yield _Column(f"cell{number}", short_text(name, 40))
    yield _Column("answer", "answer", "nba-long")


def row_node(
    columns: CaseColumns,
    number: int,
    result: CaseResult,
    chars: CaseChars | None = None,
    *,
    is_live: bool = True,
) -> Node:
    """Draw a case as a row.

    Args:
        columns: the columns of the page.
        number: its position, which is its `data-key`.
        result: the case.
        chars: shown characters of its texts.
        is_live: True draws values as buttons, by which a person filters and unfolds.
    """
    chars = chars or CaseChars()
    cells = _cells(columns, result, chars)
    if not is_live:
        return h("tr", "", *(_plain_cell(c, *cells[c.field]) for c in _columns(columns)))
    first, *others = _columns(columns)
    unfold = h("button", "nba-unfold", cells[first.field][0][0], data_do="unfold")
    return h(
        "tr",
        "nba-case",
        h("td", "", unfold),
        *(_live_cell(column, *cells[column.field]) for column in others),
        data_key=str(number),
        data_row=columns.names.row_number(result),
        data_variant=None if columns.is_blind else columns.names.variant_number(result),
        data_answer=sha256_hex(_answer(result))[:_HASH_CHARS],
        value=_filtered_cells(result),
    )


def _answer(result: CaseResult) -> str:
    return result.text if result.status == "ok" else f"{result.why} {result.text}"


def _filtered_cells(result: CaseResult) -> str | None:
    """Print the short cells of a row as JSON, by which the page filters it."""
    cells = {
        short_text(str(name), LABEL_CHARS): value_text(value, enough=LABEL_CHARS)
        for name, value in [*result.cells.items()][:_MAX_FILTERED]
        if isinstance(value, str | int | float) and len(str(value)) <= LABEL_CHARS
    }
    return json.dumps(cells, ensure_ascii=False) if cells else None


_Cell = tuple[list[str], str | None, str]
"""Shown values of a cell, the value that it sorts by if that is another, and its class."""


def _cells(columns: CaseColumns, result: CaseResult, chars: CaseChars) -> dict[str, _Cell]:
    """Return the cells of a case by the fields of the columns."""
    key = columns.names.key(result)
    verdict = verdict_of(result, columns.deciding)
    ms, usd = result.duration_ms, result.cost_usd
    cells: dict[str, _Cell] = {
        "row": ([f"{key} · {result.attempt}" if columns.has_attempts else key], None, ""),
        "verdict": ([verdict], str([*VERDICT_LOOKS].index(verdict)), VERDICT_LOOKS[verdict][1]),
        "tools": ([short_text(tool.name, _TOOL_CHARS) for tool in result.tools], None, ""),
        "cost": ([] if usd is None else [format_cost(usd)], _number(usd), ""),
        "time": ([] if ms is None else [format_duration(ms)], _number(ms), ""),
        "prompt": ([_cut_prose(result.prompt, chars.text // 2)], None, ""),
        "answer": (
            [_cut_prose(_answer(result), chars.text)],
            None,
            "nba-error" if verdict in ("failed", "no answer") else "",
        ),
    }
    for number, axis in enumerate(columns.axes):
        cells[f"axis{number}"] = ([columns.names.label(axis, result)], None, "")
    for number, name in enumerate(columns.cells):
        text = value_text(result.cells.get(name, ""), enough=SHORT_CELL_CHARS)
        cells[f"cell{number}"] = ([short_text(text, SHORT_CELL_CHARS)], None, "")
    for number, name in enumerate(columns.scores):
        cells["label" if number == 0 else f"score{number}"] = _score_cell(
            shown_scores(columns, result, name), columns.by, is_deciding=name in columns.deciding
        )
    return cells


def shown_scores(columns: CaseColumns, result: CaseResult, name: str = "") -> list[ScoreRecord]:
    """Return the scores of a case that the person may see, those of one name if it is given."""
    return [
        score
        for score in result.scores
        if (not name or score.scorer == name)
        and (not columns.is_blind or (score.scorer, score.by) == (columns.label, columns.by))
    ]


def _person_of(score: ScoreRecord, by: str) -> str:
    """Name the person who gave a label, in brackets, if it is another one than `by`."""
    is_other = score.is_label and score.by not in (by, "function", "person")
    return f"({score.by})" if is_other and ":" not in score.by else ""


def _score_cell(scores: Sequence[ScoreRecord], by: str, *, is_deciding: bool) -> _Cell:
    """Return the cell of a score, with a value for each person that gave one."""
    numbers = [float(s.value) for s in scores if isinstance(s.value, bool | int | float)]
    is_bad = is_deciding and 0 in numbers
    value = _number(fmean(numbers)) if numbers else None
    texts = [
        " ".join(filter(None, [score_text(s), short_text(_person_of(s, by), LABEL_CHARS)]))
        for s in scores
    ]
    return texts, value, "nba-error" if is_bad else ""


def score_text(score: ScoreRecord, chars: int = LABEL_CHARS) -> str:
    """Print the value of a score: `yes`, `0.25`, a label, or `error`."""
    value = score.value
    if value is None:
        return "error" if score.error else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return short_text(value, chars) if isinstance(value, str) else f"{value:.4g}"


def _number(value: float | None) -> str | None:
    return None if value is None else repr(float(value))


def _live_cell(column: _Column, values: list[str], value: str | None, look: str) -> Node:
    cls = " ".join(filter(None, (look, column.look)))
    # The page draws the values of a choice as buttons.
    return h("td", cls, *values, value=value)


def _plain_cell(column: _Column, values: list[str], value: str | None, look: str) -> Node:
    more = len(values) - column.most
    shown = [*filter(None, values[: column.most]), *([f"+{more} more"] if more > 0 else [])]
    return h("td", look or ("nba-r" if column.look == "nba-r" else "nba-l"), ", ".join(shown))


def _cut_prose(text: str, chars: int) -> str:
    return one_line(sanitize_prose(text[: chars * 4]), chars)


# The page


def page_node(
    columns: CaseColumns,
    results: Sequence[CaseResult],
    *,
    rows: Sequence[Node] = (),
    notes: Sequence[str] = (),
    state: str = "",
    is_file: bool = False,
) -> Node:
    """Draw the page: head, filters, labels, and the table with these rows.

    Args:
        columns: the columns.
        results: all cases.
        rows: rows of the table; a live page gets them later.
        notes: lines below the table, such as what is left out.
        state: state of the batch, such as `Running`.
        is_file: True for a file without a kernel, whose labels are exported.
    """
    all_notes = [*notes, _axes_note(columns)]
    heads = [
        h(
            *("th", c.look, h("button", "nba-order", c.title, data_do="order")),
            data_field=c.field,
            max=str(c.most) if c.is_choice else None,
        )
        for c in _columns(columns)
    ]
    table = h(
        "table",
        "",
        h("thead", "", h("tr", "", *heads)),
        h("tbody", "", *rows, data_key=ROWS_KEY),
        aria_label="cases",
    )
    return h(
        "div",
        f"{ROOT_CLASS} nba-cases",
        head_part(columns, results, state),
        _legend(columns),
        _filters(columns),
        _label_bar(columns, is_file=is_file),
        h("div", "nba-wide nba-keys", _KEYS),
        h("div", "nba-wide nba-shown", role="status", title=_SEARCHED[is_file]),
        h(
            "div",
            "nba-case-scroll",
            table,
            tabindex="0",
            role="region",
            aria_label="table of cases",
        ),
        h("div", "nba-foot", *(line("nba-note", note) for note in all_notes)),
        role="group",
        aria_label=f"all cases of {short_text(columns.name, 80)}",
        data_run=CASES_KEY,
        data_lm_suppress_shortcuts="true",
    )


_SEARCHED = {
    False: f"in the first {CaseChars().text} characters of the answers and {CaseChars().text // 2} "
    "of the prompts",
    True: "in the texts of this file, where long ones are cut",
}
"""What the filter by words looks at, by whether the page is a file."""


def _axes_note(columns: CaseColumns) -> str:
    """Name the axes without a column; empty if all have one."""
    others = [] if columns.is_blind else columns.names.varying()[len(columns.axes) :]
    if not others:
        return ""
    more = len(others) - _MAX_NAMED
    named = ", ".join(short_text(axis, LABEL_CHARS) for axis in others[:_MAX_NAMED])
    also = f" and {more:,} more" if more > 0 else ""
    return f"Without a column: {named}{also}; {_HAS_ALL} has all"


_KEYS = (
    "Keys: j and k or the arrows move, Enter unfolds, n next failure, p previous one, / filter, "
    "r reason, Escape back to the table. After a label the next row follows; labels of others "
    "under this name are hidden until you have given yours."
)


def head_part(columns: CaseColumns, results: Sequence[CaseResult], state: str = "") -> Node:
    """Draw the name of the batch and the counts of the verdicts, as one part."""
    counts = {} if columns.is_blind else verdict_counts(results, columns)
    facts = [f"{VERDICT_LOOKS[verdict][0]} {n:,} {verdict}" for verdict, n in counts.items()]
    mine = (columns.label, columns.by)
    n_labelled = sum(any((s.scorer, s.by) == mine for s in r.scores) for r in results)
    by = short_text(columns.by, LABEL_CHARS)
    facts += [f"{n_labelled:,} labelled by {by}"] if n_labelled else []
    name = short_text(columns.name, 80)
    total = pluralize(len(results), "case")
    return h(
        "div",
        "nba-head",
        h("strong", "nba-phase", total),
        " ",
        h("code", "nba-chip", name),
        " ",
        h("span", "nba-facts", " · ".join(filter(None, [state, *facts]))),
        data_key="head",
    )


def _legend(columns: CaseColumns) -> Node:
    """Draw the texts that the labels of the variants stand for, and what differs in two of them."""
    rows = () if columns.is_blind else columns.legend[:_MAX_LEGEND]
    numbers = {axis: f"axis{number}" for number, axis in enumerate(columns.axes)}
    limit = min(_LEGEND_CHARS, _ALL_LEGEND_CHARS // max(1, len(rows)))
    trs = [
        h(
            "tr",
            "",
            h("th", "", f"{short_text(axis, LABEL_CHARS)} {shown} = "),
            h("td", "nba-plain", _clean(text, limit)),
            data_field=numbers[axis],
            value=shown,
        )
        for axis, label, text in rows
        if axis in numbers
        for shown in [columns.names.label_text(axis, label)]
    ]
    summary = h("summary", "", f"Texts of the variants ({len(trs):,})")
    table = h("table", "nba-named", h("tbody", "", *trs))
    legend = h("details", "nba-wide nba-legend", summary, table) if trs else None
    return h("div", "", legend, h("div", "nba-legend-diff"))


def _filters(columns: CaseColumns) -> Node:
    """Draw the field and the choices that filter the rows, and the choice of two variants."""
    search = h(
        "input",
        "nba-find",
        type="search",
        placeholder="Filter the rows by words, system:p1, cost>0",
        aria_label="Filter the rows by words",
        data_field="search",
    )
    choices = [
        h(
            "select",
            "nba-choice",
            h("option", "", f"{column.title}: all", value=""),
            data_field=column.field,
            aria_label=f"Filter by {column.title}",
        )
        for column in _columns(columns)
        if column.is_choice
    ]
    steps = [h("button", "", "Next failure", type="button", data_do="next")]
    clear = h("button", "", "Show all", type="button", data_do="all")
    compared = [] if columns.is_blind else [_comparison(columns.names)]
    shown = [] if columns.is_blind else steps
    return h("div", "nba-case-form", search, *choices, clear, *shown, *filter(None, compared))


def _comparison(names: CaseNames) -> Node | None:
    """Draw the choice of two variants that are shown side by side."""
    variants = names.variant_texts()
    if len(variants) < 2:
        return None
    options = [h("option", "", name, value=str(n)) for n, name in enumerate(variants)]
    none = h("option", "", "–", value="")
    changed = h("input", "", type="checkbox", data_field="changed")
    return h(
        "span",
        "nba-compared",
        h("label", "", "Compare ", h("select", "", none, *options, data_field="left")),
        h("label", "", " with ", h("select", "", none, *options, data_field="right")),
        h("label", "", changed, " only changed verdicts"),
    )


def _label_bar(columns: CaseColumns, *, is_file: bool) -> Node:
    """Draw the buttons that label the case at hand."""
    yes_no = [("1", "Yes", "y"), ("0", "No", "x")]  # n goes to the next failure
    values = [(str(n), str(n), str(n)) for n in range(1, columns.scale + 1)] or yes_no
    buttons = [
        h("button", "nba-mark-as", text, type="button", data_do="mark", value=v, title=f"Key {key}")
        for v, text, key in values
    ]
    reason = h(
        "input",
        "nba-reason",
        type="text",
        placeholder="Reason (optional), stored with the next label",
        aria_label="Reason for the next label",
        data_field="reason",
    )
    exports = [h("button", "", "Export labels", type="button", data_do="save")] if is_file else []
    keys = f"keys 1–{columns.scale}" if columns.scale else "keys: y = Yes, x = No"
    return h(
        "div",
        "nba-case-form nba-labels",
        h("span", "nba-lab", f"Label “{short_text(columns.label, 40)}” ({keys}) "),
        *buttons,
        h("span", "nba-note nba-labelled"),
        reason,
        *exports,
        h("span", "nba-said", role="status", data_key="said"),
        role="group",
        aria_label="Label of the case at hand",
    )


def saved_node(
    columns: CaseColumns, results: Sequence[CaseResult], note: str = "", max_rows: int = 200
) -> Node:
    """Draw the plain table that a page without scripts shows: the first rows within a budget."""
    rows: list[Node] = []
    left = _SAVED_BYTES
    for number, result in enumerate(results[:max_rows]):
        row = row_node(columns, number, result, CaseChars(text=200), is_live=False)
        left -= len(html(row).encode())
        if rows and left < 0:
            break
        rows.append(row)
    heads = [h("th", c.look or "nba-l", c.title, scope="col") for c in _columns(columns)]
    table = h("table", "", h("thead", "", h("tr", "", *heads)), h("tbody", "", *rows))
    more = len(results) - len(rows)
    notes = [f"… {more:,} more cases; {_HAS_ALL} has all" if more else "", note]
    return h(
        "div",
        ROOT_CLASS,
        head_part(columns, results),
        h("div", "nba-wide nba-wide-table", table),
        *(line("nba-wide nba-note", text) for text in notes),
        role="group",
        aria_label=f"cases of {short_text(columns.name, 80)}",
    )


def cases_text(columns: CaseColumns, results: Sequence[CaseResult], note: str = "") -> str:
    """Print the first cases as a plain table."""
    return plain_text(saved_node(columns, results, note, _TEXT_ROWS))


# The unfolded case


def case_node(
    columns: CaseColumns,
    result: CaseResult,
    *,
    run: Node | None = None,
    record: RunRecord | None = None,
    chars: CaseChars | None = None,
) -> Node:
    """Draw what a row unfolds: its cells, scores with reasons, and its run.

    Args:
        columns: the columns of the page.
        result: the case.
        run: picture of the run; None draws its prompt, calls and answer instead.
        record: the run, for the arguments and results of these calls.
        chars: shown characters of its texts.
    """
    chars = chars or CaseChars()
    limit = chars.detail
    parts: list[Node | None] = [
        _table("row", _row_cells(result, chars)),
        _table("score", _score_rows(columns, result, chars)),
    ]
    parts += [run] if run is not None else _short_run(columns, result, limit, record)
    return h("div", "nba-case-open", *(part for part in parts if part is not None))


def _row_cells(result: CaseResult, chars: CaseChars) -> list[tuple[str, ...]]:
    limit = chars.detail // 4
    return [
        (short_text(str(name), LABEL_CHARS), _clean(value_text(value, enough=limit), limit))
        for name, value in [*result.cells.items()][: _most_rows(chars)]
    ]


def _score_rows(
    columns: CaseColumns, result: CaseResult, chars: CaseChars
) -> list[tuple[str, ...]]:
    scores = shown_scores(columns, result)
    rows = [
        (
            short_text(score.scorer, LABEL_CHARS),
            score_text(score),
            short_text(score.by, LABEL_CHARS),
            _clean(score.reason or score.error or "", chars.detail // 4),
        )
        for score in scores[: _most_rows(chars)]
    ]
    more = len(scores) - len(rows)
    return [*rows, (f"{more} more", "", "", f"{_HAS_ALL} has all")] if more else rows


def _most_rows(chars: CaseChars) -> int:
    """Return the most rows of a table in an unfolded case."""
    return _MAX_DETAIL_ROWS if chars.detail > _FEW_CHARS else _FEW_ROWS


def _table(kind: str, rows: Sequence[Sequence[str]]) -> Node | None:
    """Draw named values as a table; None if there are none."""
    if not rows:
        return None
    trs = [
        h("tr", "", h("th", "", f"{kind} {n}"), *(h("td", "", v) for v in vs)) for n, *vs in rows
    ]
    return h("table", "nba-named", *trs)


def _short_run(
    columns: CaseColumns, result: CaseResult, limit: int, record: RunRecord | None
) -> list[Node | None]:
    """Draw the short form of a run: facts, prompt, calls, answer."""
    facts = [
        pluralize(result.turns, "turn") if result.turns else "",
        f"{result.total_tokens:,} tokens" if result.total_tokens and not columns.is_blind else "",
        f"run {result.run_id[:8]}" if result.run_id else "no run yet",
        result.stop_reason if result.status != "ok" else "",
    ]
    calls = [
        f"{short_text(t.name, 40)} × {t.calls:,}" + (f" ({t.failed:,} failed)" if t.failed else "")
        for t in result.tools[: _MAX_TOOLS * 2]
    ]
    return [
        line("nba-note", " · ".join(filter(None, facts))),
        *_text("prompt", result.prompt if columns.has_prompt else "", limit),
        line("nba-note", f"calls: {', '.join(calls)}" if calls else ""),
        *(step_nodes(record, limit) if record and not columns.is_blind else ()),
        line("nba-error", _clean(result.why, limit // 2)),
        *_text("answer", result.text, limit),
    ]


def _text(name: str, text: str, limit: int) -> list[Node | None]:
    shown, note = truncate(sanitize_prose(text[: limit * 2]), limit, has_all="the run")
    more = len(text) - limit
    note = f"… {more:,} characters more; the run has all" if note and more > 0 else note
    if not shown.strip():
        return []
    return [h("div", "nba-lab", name), h("div", "nba-plain", shown), line("nba-note", note)]


def _clean(text: str, limit: int) -> str:
    text = sanitize_prose(text[: limit * 2])
    return text if len(text) <= limit else f"{text[:limit]} …"
