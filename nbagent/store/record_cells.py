"""Fields of records as cells and back, by the declared columns. Pure.

A column with a path has that field's value; fields without a column are in `doc`, nested as in the
record. So a new field of a record is stored without a change here, and a new column is one
declaration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from nbagent.contracts.messages import FilePart, ImagePart, TextPart
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.store.columns import COMPUTED, TABLES, TIMESTAMP

Row = dict[str, Any]
Path = tuple[str, ...]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MODELS: dict[str, type[BaseModel]] = {"runs": RunRecord, "turns": EngineTurn, "tool_runs": ToolRun}
"""Models of the tables whose rows hold one record each."""
_ELSEWHERE: dict[str, tuple[str, ...]] = {
    "runs": ("messages", "turns", "system_prompts", "toolsets"),
    "turns": ("id", "run_id", "tool_runs", "request.model", "response.message"),
    "tool_runs": ("result",),
}
"""Fields that other tables hold, or that follow from other columns."""
_BESIDE: dict[str, tuple[Path, ...]] = {"tool_runs": (("result", "attachments"),)}
"""Fields in `doc` that a column does not hold, although it holds the field around them."""


def to_us(moment: datetime) -> int:
    """Convert a time to microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def from_us(value: int) -> datetime:
    """Convert microseconds since 1970 to a time in UTC."""
    return _EPOCH + timedelta(microseconds=value)


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """Cells and fields of a table."""

    cells: tuple[tuple[str, Path, bool, bool], ...]
    """Name, path, is a time, NULL instead of an empty value."""
    rest: tuple[tuple[Path, Any], ...]
    """Path and default of each field in `doc`."""


@cache
def _plan(table: str) -> _Plan:
    cells = tuple(
        (
            column.name,
            tuple((column.path or column.name).split(".")),
            column.dtype == TIMESTAMP,
            column.is_optional,
        )
        for column in TABLES[table].by_name.values()
        if column.path != COMPUTED and column.name != "doc"
    )
    covered = {path for _, path, _, _ in cells}
    covered |= {tuple(name.split(".")) for name in _ELSEWHERE.get(table, ())}
    model = _MODELS.get(table)
    rest = tuple(_uncovered(model, (), covered)) if model else ()
    return _Plan(cells, rest + tuple((path, ()) for path in _BESIDE.get(table, ())))


def _uncovered(model: type, prefix: Path, covered: set[Path]) -> Iterator[tuple[Path, Any]]:
    """Paths and defaults of a model's fields that no column holds."""
    for name, kind, default in _fields(model):
        path = (*prefix, name)
        if path in covered:
            continue
        if any(other[: len(path)] == path for other in covered):
            yield from _uncovered(_inner_model(kind), path, covered)
        else:
            yield path, default


def _fields(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, type and default of the fields of a model or a dataclass."""
    if issubclass(model, BaseModel):
        for name, field in model.model_fields.items():
            yield (
                name,
                field.annotation,
                field.get_default(call_default_factory=True, validated_data={}),
            )
    else:
        hints = get_type_hints(model)
        for item in dataclasses.fields(model):
            made: Any = item.default_factory
            default: Any = item.default if made is dataclasses.MISSING else made()
            yield item.name, hints[item.name], default


def _inner_model(kind: Any) -> type:
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (option for option in get_args(kind) if option is not NoneType)
    return cast("type", kind)


def _value_at(record: Any, path: Path) -> Any:
    for name in path:
        record = getattr(record, name, None)
        if record is None:
            return None
    return record


def cells_of(table: str, record: Any) -> Row:
    """Cells of a record's row, with the fields without a column in `doc`."""
    plan = _plan(table)
    row: Row = {}
    for name, path, is_time, is_optional in plan.cells:
        value = _value_at(record, path)
        if is_time and value is not None:
            value = to_us(value)
        row[name] = (value or None) if is_optional else value
    doc: Row = {}
    for path, default in plan.rest:
        value = _value_at(record, path)
        # An empty default is left out. Others are stored: they may be others in a later version.
        if value or (value is not None and value != default):
            _put(doc, path, to_json(value))
    row["doc"] = doc or None
    return row


def fields_of(table: str, row: Mapping[str, Any]) -> Row:
    """Fields of a record from its row, nested as in the record; empty cells are left out."""
    fields: Row = {}
    for name, path, is_time, _ in _plan(table).cells:
        if name in row:
            _put(fields, path, from_us(row[name]) if is_time else row[name])
    return merged(fields, row.get("doc", {}))


def _put(fields: Row, path: Path, value: Any) -> None:
    for name in path[:-1]:
        fields = fields.setdefault(name, {})
    fields[path[-1]] = value


def merged(fields: Row, others: Mapping[str, Any]) -> Row:
    """Fields with other fields in them, also where both have parts of one field."""
    for name, value in others.items():
        mine = fields.get(name)
        if isinstance(mine, dict) and isinstance(value, dict):
            merged(cast("Row", mine), cast("Row", value))
        else:
            fields[name] = value
    return fields


def to_json(value: Any) -> Any:
    """JSON value of a field; parts of messages without their defaults."""
    if isinstance(value, TextPart | ImagePart | FilePart):
        return {**value.model_dump(exclude_defaults=True), "type": value.type}
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, list | tuple):
        return [to_json(item) for item in cast("list[Any]", value)]
    return value
