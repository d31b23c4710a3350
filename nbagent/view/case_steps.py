"""Short form of a run's turns: texts, and calls with their arguments and results, all cut."""

from __future__ import annotations

from collections.abc import Iterator

from nbagent.contracts.records import RunRecord, ToolRun
from nbagent.view.node import Node, h, line
from nbagent.view.text_format import one_line, pluralize, sanitize_value, value_text

_MAX_STEPS, _FEW_STEPS, _FEW_CHARS = 12, 3, 200
"""Texts and calls of a run; few if these are short, too."""
_PART = 8
"""Arguments, results and texts get this part of the characters of a prompt."""
_MIN_CHARS = 12


def step_nodes(record: RunRecord, limit: int) -> list[Node | None]:
    """Draw the texts and calls of a run before its answer.

    Args:
        record: the run.
        limit: characters of its prompt; an argument or a result gets an eighth.
    """
    chars = max(_MIN_CHARS, limit // _PART)
    steps = [*_steps(record, chars)]
    n_shown = _MAX_STEPS if limit > _FEW_CHARS else _FEW_STEPS
    more = len(steps) - n_shown
    rest = f"… {pluralize(more, 'step')} more; batch.open_run(…) has all" if more > 0 else ""
    return [*steps[:n_shown], line("nba-note", rest)]


def _steps(record: RunRecord, chars: int) -> Iterator[Node]:
    for turn in record.turns:
        if turn.tool_runs and turn.text.strip():
            yield h("div", "nba-step", _cut(turn.text, chars))
        for tool_run in turn.tool_runs:
            yield _call(tool_run, chars)


def _call(tool_run: ToolRun, chars: int) -> Node:
    """Draw a call: `population {"city": "Oslo"} → 5`."""
    args = "not a JSON object" if tool_run.args is None else value_text(tool_run.args, enough=chars)
    call = h("code", "", f"{_cut(tool_run.tool_name, 40)} {_cut(args, chars)}")
    result = tool_run.result
    if result is None:
        return h("div", "nba-step", call, " → no result")
    if result.ok:
        return h(
            "div", "nba-step", call, f" → {_cut(value_text(result.data, enough=chars), chars)}"
        )
    error = result.body["error"]
    text = _cut(f"{error['code']}: {error['message']}", chars)
    return h("div", "nba-step", call, " → ", h("span", "nba-error", text))


def _cut(text: str, chars: int) -> str:
    return one_line(sanitize_value(text[: chars * 4]), chars)
