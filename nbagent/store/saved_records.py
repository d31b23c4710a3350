"""Chooses what a saved notebook holds of a run: `%agent config records=off|own|all`.

The metadata of an output is not displayed, but it is in the file and on many published pages.
"""

from __future__ import annotations

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.messages import Message, TextPart, parse_arguments
from nbagent.contracts.records import EngineTurn, RunRecord, ToolResult, ToolRun
from nbagent.store.record_cells import Row
from nbagent.store.rows import run_reference, to_notebook_line

OMITTED_RESULT = "not saved in this notebook (records=own)"
"""Stands for what a tool returned."""


def saved_record(run: RunRecord, choice: str) -> Row:
    """Encode a run for the metadata of an output.

    Args:
        run: its record.
        choice: the setting `records`. `all`: the whole record. `own`: the prompts, answers and
            calls, without the data of tools. `off`: the id, by which the person's own store finds
            the run.
    """
    if choice == "off":
        return run_reference(run.id)
    return to_notebook_line(without_tool_data(run) if choice == "own" else run)


def without_tool_data(run: RunRecord) -> RunRecord:
    """Copy a record without what tools returned, printed and displayed, and without raw answers."""
    messages = tuple(map(_message, run.messages))
    turns = tuple(map(_turn, run.turns))
    return run.model_copy(update={"messages": messages, "turns": turns})


def _message(message: Message) -> Message:
    """Drop a provider's raw data, and the result in a tool message; an error's code stays."""
    if message.role != "tool":
        return message.model_copy(update={"raw": None})
    body = parse_arguments(message.text) or {}
    error = json_object(body.get("error"))
    saved: Row = {"ok": True, "data": OMITTED_RESULT}
    if error is not None:
        saved = {"ok": False, "error": {"code": error.get("code"), "message": OMITTED_RESULT}}
    return message.model_copy(update={"content": (TextPart(text=dump_json(saved).decode()),)})


def _turn(turn: EngineTurn) -> EngineTurn:
    response = turn.response
    if response is not None:
        meta = response.meta.model_copy(update={"vendor": {}})
        # The same change as in `messages`: a turn finds its answer there by comparison.
        response = response.model_copy(update={"message": _message(response.message), "meta": meta})
    calls = tuple(map(_tool_run, turn.tool_runs))
    return turn.model_copy(update={"response": response, "tool_runs": calls})


def _tool_run(call: ToolRun) -> ToolRun:
    omitted = {"result": _result(call.result), "error_detail": None, "printed": "", "shown": ()}
    return call.model_copy(update=omitted)


def _result(result: ToolResult | None) -> ToolResult | None:
    if result is None:
        return None
    if result.error is not None:
        return ToolResult.failure(ErrorInfo(result.error.code, OMITTED_RESULT))
    return ToolResult(ok=result.ok, data=OMITTED_RESULT)
