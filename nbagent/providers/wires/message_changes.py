"""Changes of encoded messages: a field that one server refuses or demands.

`workarounds` learns them from refusals; `encoding` applies them to each message. Paths are keys
of the JSON on the wire, without the positions in lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nbagent.contracts.canonical import json_object

FieldPath = tuple[str, ...]
SYSTEM_AS_USER = "system text as the user's"
"""Name of the workaround for models without a system role, such as Gemma."""

REASONING_FIELDS: tuple[FieldPath, ...] = (("reasoning_content",), ("reasoning",), ("thinking",))
"""Fields of an answer that hold its reasoning as text."""
_ADDED_TO_ANSWERS = frozenset({*REASONING_FIELDS, ("reasoning_details",), ("content",)})
_ADDED_TO_RESULTS = frozenset({("name",), ("tool_name",)})
ADDABLE_FIELDS = _ADDED_TO_ANSWERS | _ADDED_TO_RESULTS
"""Fields that can be made for a message that has none."""
# A message without these says something else, or nothing.
_ESSENTIAL_FIELDS = re.compile(
    r"role|content|type|text|tool_calls|function|arguments|tool_call_id|call_id|tool_use_id"
    r"|input|output|parts|functionCall|functionResponse|args|response|image_url|url|source"
    r"|media_type|mimeType|inlineData|fileData|fileUri|file|filename|file_data|images|input_audio"
    r"|summary|encrypted_content|redacted_thinking"
)
# At the top of a message they are a comment, deeper they are the thing itself.
_ESSENTIAL_INSIDE = frozenset({"name", "id", "thinking", "signature", "data"})
# Vertex AI and older versions of Gemini know no ids of calls.
_OPTIONAL_INSIDE = frozenset({("functionCall", "id"), ("functionResponse", "id")})
# Values of the model and of tools: their keys are no fields of the wire.
_OPAQUE_FIELDS = frozenset({"arguments", "input", "args", "response"})
_MAX_DEPTH = 6


@dataclass(frozen=True, slots=True)
class MessageChange:
    """One change of every message that has, or lacks, a field."""

    action: Literal["omit", "add", "null"]
    """Leave the field out; send it where it is missing; send null instead of an empty text."""
    path: FieldPath
    beside_calls: bool = False
    """Only in an answer that calls tools."""

    def apply(
        self, wire: dict[str, Any], *, reasoning: str, tool_name: str
    ) -> tuple[dict[str, Any], bool]:
        """Return the changed message, and True if it differs; the original stays as it was.

        Args:
            wire: the encoded message.
            reasoning: the answer's reasoning if its model may read it, for an added field.
            tool_name: name on the wire of the tool whose result it is.
        """
        if self.beside_calls and not wire.get("tool_calls"):
            return wire, False
        match self.action:
            case "omit":
                return _without(wire, self.path)
            case "null":
                empty = wire.get(self.path[0]) == "" and bool(wire.get("tool_calls"))
                return ({**wire, self.path[0]: None}, True) if empty else (wire, False)
            case "add":
                return self._with_field(wire, reasoning, tool_name)

    def _with_field(
        self, wire: dict[str, Any], reasoning: str, tool_name: str
    ) -> tuple[dict[str, Any], bool]:
        fields = {"assistant": _ADDED_TO_ANSWERS, "tool": _ADDED_TO_RESULTS}
        field = self.path[0]
        if self.path not in fields.get(str(wire.get("role")), ()) or wire.get(field) is not None:
            return wire, False
        values: dict[FieldPath, Any] = {
            **dict.fromkeys(REASONING_FIELDS, reasoning),
            **dict.fromkeys(_ADDED_TO_RESULTS, tool_name),
            ("reasoning_details",): [],
            ("content",): "",
        }
        return {**wire, field: values[self.path]}, True


def is_optional(path: FieldPath) -> bool:
    """True if a message keeps its meaning without this field."""
    if path[-2:] in _OPTIONAL_INSIDE:
        return True
    *holders, name = path
    is_essential = bool(holders) and name in _ESSENTIAL_INSIDE
    return not is_essential and not _ESSENTIAL_FIELDS.fullmatch(name)


def field_paths(messages: Iterable[Any]) -> frozenset[FieldPath]:
    """Paths of all fields that are in these messages."""
    paths: set[FieldPath] = set()
    for message in messages:
        _collect(message, (), paths)
    return frozenset(paths)


def _collect(value: Any, path: FieldPath, paths: set[FieldPath]) -> None:
    if isinstance(value, list):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            _collect(item, path, paths)
    elif len(path) < _MAX_DEPTH and (fields := json_object(value)):
        for key, inner in fields.items():
            paths.add((*path, key))
            if key not in _OPAQUE_FIELDS:
                _collect(inner, (*path, key), paths)


def _without(wire: dict[str, Any], path: FieldPath) -> tuple[dict[str, Any], bool]:
    """Return a copy without the field, in each item of the lists on its path."""
    head, rest = path[0], path[1:]
    if head not in wire:
        return wire, False
    if not rest:
        return {key: value for key, value in wire.items() if key != head}, True
    inner: Any = wire[head]
    is_list = isinstance(inner, list)
    items: list[Any] = list(inner) if is_list else [inner]  # pyright: ignore[reportUnknownArgumentType]
    changes = [
        _without(dict(item), rest) if isinstance(item, Mapping) else (item, False)  # pyright: ignore[reportUnknownArgumentType]
        for item in items
    ]
    if not any(differs for _, differs in changes):
        return wire, False
    values = [value for value, _ in changes]
    return {**wire, head: values if is_list else values[0]}, True
