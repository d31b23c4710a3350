"""Labels of variants as filters: refuses axes and labels that no run has, and suggests the form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from nbagent.contracts.errors import UsageError
from nbagent.contracts.nearest import nearest_or_all
from nbagent.store.connections import Connection
from nbagent.store.dataframes.filters import VARIANT_FILTER, filter_condition, variant_labels
from nbagent.store.frame_queries import FRAMES
from nbagent.store.rows import cell_text


def check_labels(filters: Mapping[str, Any], connections: Sequence[Connection]) -> None:
    """Refuse axes and labels of variants that no run has."""
    for labels in variant_labels(filters.get(VARIANT_FILTER)):
        for axis, texts in labels.items():
            for text in texts:
                if not _has_label(axis, text, connections):
                    raise UsageError(_unknown(axis, text, _stored_labels(connections)))


def axis_hint(frame: str, name: str, value: Any, connections: Sequence[Connection]) -> str:
    """Say how an axis is written, if an unknown filter names one; empty otherwise."""
    if name not in _stored_labels(connections):
        return ""
    written = f"variant={{{name!r}: {str(value)[:40]!r}}}"
    if VARIANT_FILTER in FRAMES[frame].by_name:
        return f"; it is an axis of a batch: write {written}"
    return f"; it is an axis of a batch: write run_id=nbagent.runs({written})['run_id']"


def _has_label(axis: str, text: str, connections: Sequence[Connection]) -> bool:
    condition, arguments = filter_condition(FRAMES["runs"], VARIANT_FILTER, {axis: text})
    sql = f"SELECT 1 FROM runs x WHERE {condition} LIMIT 1"
    return any(connection.execute(sql, arguments).fetchone() for connection in connections)


def _unknown(axis: str, text: str, known: Mapping[str, Sequence[str]]) -> str:
    if axis not in known:
        hint = nearest_or_all(axis, known, "the axes are") or "; no run has a variant"
        return f"variant: no run has the axis {axis!r}{hint}"
    return f"no run has variant={{{axis!r}: {text!r}}}{nearest_or_all(text, known[axis])}"


def _stored_labels(connections: Sequence[Connection]) -> dict[str, list[str]]:
    """Return the labels of all runs by their axes."""
    known: dict[str, list[str]] = {}
    sql = "SELECT DISTINCT variant FROM runs WHERE json_valid(variant)"
    for connection in connections:
        for (cell,) in connection.execute(sql):
            labels = json.loads(str(cell_text(cell)))
            if isinstance(labels, dict):
                for axis, label in cast("dict[str, Any]", labels).items():
                    if str(label) not in known.setdefault(axis, []):
                        known[axis].append(str(label))
    return known
