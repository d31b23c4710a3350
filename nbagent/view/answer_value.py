"""The answer of a run with `output=`: the arguments of its `final_answer` call, as nodes."""

from __future__ import annotations

from typing import Any, cast

from nbagent.contracts.messages import FINAL_ANSWER
from nbagent.contracts.records import RunRecord
from nbagent.view.markdown import table_cell
from nbagent.view.node import Node, h, line
from nbagent.view.result_tables import table_of
from nbagent.view.run_facts import NAME_CHARS
from nbagent.view.text_format import one_line, sanitize_value, truncate, value_text

_ANSWER_CHARS = 3_000
_ITEMS, _FIELDS, _ITEM_CHARS = 50, 30, 400


def typed_answer_nodes(run: RunRecord) -> list[Node]:
    """Draw the answer of a typed run as a list or a table; nothing for a run without one."""
    last = run.turns[-1] if run.turns and run.ok else None
    for tool in reversed(last.tool_runs if last else ()):
        if tool.tool_name == FINAL_ANSWER and tool.args and tool.result and tool.result.ok:
            # A type that is no object is the only argument, `answer`.
            is_wrapped = tool.args.keys() == {"answer"}
            return _value_nodes(tool.args["answer"] if is_wrapped else tool.args)
    return []


def _value_nodes(value: Any) -> list[Node]:
    """Draw a JSON value: objects with equal keys as a table, texts and numbers as a list."""
    table = None if isinstance(value, str) else table_of(value)
    if table is not None:
        return table
    if isinstance(value, list) and value and all(map(_is_scalar, cast("list[Any]", value))):
        return _items_nodes(cast("list[Any]", value))
    if isinstance(value, dict) and all(map(_is_scalar, cast("dict[str, Any]", value).values())):
        return _fields_nodes(cast("dict[str, Any]", value))
    text = value_text(value, enough=_ANSWER_CHARS * 2)
    shown, note = truncate(text, _ANSWER_CHARS, has_all="run.output")
    block = h("p", "", shown) if _is_scalar(value) else h("pre", "", shown)
    return [block, *_note_nodes(note)]


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _items_nodes(items: list[Any]) -> list[Node]:
    shown = [h("li", "", _text(item)) for item in items[:_ITEMS]]
    return [h("ul", "", *shown), *_rest_nodes(len(items) - _ITEMS, "items")]


def _fields_nodes(fields: dict[str, Any]) -> list[Node]:
    rows = [
        h("tr", "", table_cell("th", [one_line(_text(name), NAME_CHARS)]), table_cell("td", [text]))
        for name, text in ((name, _text(value)) for name, value in [*fields.items()][:_FIELDS])
    ]
    table = h("div", "nba-wide-table", h("table", "", *rows))
    return [table, *_rest_nodes(len(fields) - _FIELDS, "fields")]


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else value_text(value, enough=_ITEM_CHARS)
    return one_line(sanitize_value(text), _ITEM_CHARS)


def _rest_nodes(n_more: int, name: str) -> list[Node]:
    return _note_nodes(f"… {n_more:,} {name} more; run.output has all" if n_more > 0 else "")


def _note_nodes(text: str) -> list[Node]:
    note = line("nba-note", text)
    return [note] if note else []
