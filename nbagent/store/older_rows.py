"""Rows of earlier versions in the form of this one. Pure.

Only documents (`doc`) changed their form: columns are added by `migrations`, and their cells stay.
The documents of a run are rewritten when the run is written next, which an ended run never is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nbagent.store.record_cells import Row

_LIMITS_OF_6 = {
    "ceiling": "max_requests",
    "loop_limit": "max_repeated_failures",
    "same_result_limit": "max_repeated_results",
}
"""Names of limits and options that changed after version 6."""
_WORKFLOW_OPTIONS_OF_6 = {"document": "document", "graph": "graph"}
_FORK_OPTIONS_OF_6 = {"edits": "edits", "drop": "drop", "holds_calls": "defer_calls"}
"""Entries that version 6 kept among the options, and the field that has them now."""


def current_rows(rows: Mapping[str, Sequence[Row]]) -> Mapping[str, Sequence[Row]]:
    """The rows of a run in the form of this version."""
    version = rows["runs"][0].get("doc", {}).get("version", 6)
    if version > 6:
        return rows
    return {
        table: [_from_6(table, row) for row in table_rows] for table, table_rows in rows.items()
    }


def current_row(table: str, row: Row) -> Row:
    """A row of a run, without its other rows, in the form of this version."""
    return current_rows({table: [row]})[table][0]


def _from_6(table: str, row: Row) -> Row:
    convert = _CONVERT_6.get(table)
    if convert is None or "doc" not in row:
        return row
    return {**row, "doc": convert(row, dict(row["doc"]))}


def _run_doc(row: Row, doc: Row) -> Row:
    options = _renamed(doc.pop("options", {}))
    for column, field, names in (
        ("workflow", "workflow", _WORKFLOW_OPTIONS_OF_6),
        ("forked_from", "forked_from", _FORK_OPTIONS_OF_6),
    ):
        if column in row:
            entries = {names[name]: options.pop(name) for name in names if name in options}
            doc |= {field: entries} if entries else {}
    doc |= {"options": options}
    if "limits" in doc:
        doc["limits"] = _renamed(doc["limits"])
    return _with_error(doc)


def _turn_doc(row: Row, doc: Row) -> Row:
    request = dict(doc.get("request", {}))
    if "trimmed" in request:
        request["trimmed"] = request["trimmed"].get("places", ())
    if "meta" in doc:
        doc["response"] = {"meta": doc.pop("meta")}
    return _with_error({**doc, "request": request})


def _tool_run_doc(row: Row, doc: Row) -> Row:
    if "attachments" in doc:
        doc["result"] = {"attachments": doc.pop("attachments")}
    return doc


_CONVERT_6 = {"runs": _run_doc, "turns": _turn_doc, "tool_runs": _tool_run_doc}


def _with_error(doc: Row) -> Row:
    details = doc.pop("error_details", None)
    return {**doc, "error": {"details": _renamed(details)}} if details else doc


def _renamed(values: Mapping[str, Any]) -> Row:
    return {_LIMITS_OF_6.get(name, name): value for name, value in values.items()}
