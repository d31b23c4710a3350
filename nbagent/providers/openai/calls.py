"""Tool calls of a Chat Completions answer, put together from deltas of any server.

Keeps what the model wrote; whether a call makes sense is decided where it is run.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from typing import Any, cast

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.chat import ChatChunk, ToolCall, ToolCallDelta, is_keepable, parse_arguments
from nbagent.providers.frames import bad_answer, text_or_empty
from nbagent.providers.names import WireNames

_MOST_CALLS = 512
_CALL_FIELDS = frozenset({"index", "id", "type", "function"})
_TAGGED = re.compile(r"<function=([\w.:-]{1,128})>?\s*(\{.*?\})\s*(?:</?function>|\Z)", re.S)
_LONGEST_FAILED = 20_000


class _Draft:
    """A tool call that is still arriving."""

    __slots__ = ("arguments", "extra", "id", "name", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.extra: dict[str, Any] = {}

    def raw(self) -> str:
        return "".join(self.arguments)


class CallAssembler:
    """The calls of one answer."""

    def __init__(self, names: WireNames) -> None:
        self._names = names
        self._drafts: list[_Draft] = []
        self._by_index: dict[int, _Draft] = {}

    def __bool__(self) -> bool:
        return bool(self._drafts)

    def take(self, calls: Any, out: list[ChatChunk], *, whole: bool) -> None:
        """Fold the `tool_calls` of a delta, or (`whole`) of a message."""
        if not isinstance(calls, list):
            raise bad_answer("`tool_calls` is not a list")
        for item in cast("list[Any]", calls):
            call = json_object(item)
            if call is None:
                raise bad_answer("a tool call is not an object")
            self._take_one(call, out, whole=whole)

    def take_failed(self, text: str, out: list[ChatChunk]) -> bool:
        """Fold the calls in a text that the server could not read; whether there were any."""
        found = list(_calls_in(text[:_LONGEST_FAILED]))
        for name, arguments in found:
            function = {"name": name, "arguments": arguments}
            self._take_one({"function": function}, out, whole=True)
        return bool(found)

    def calls(self) -> tuple[ToolCall, ...]:
        """All calls, each with an id of its own."""
        seen: set[str] = set()
        made: list[ToolCall] = []
        for draft in self._drafts:
            call_id = draft.id = draft.id or f"call_{secrets.token_hex(12)}"
            n = 1
            while call_id in seen:
                n += 1
                call_id = f"{draft.id}_{n}"
            seen.add(call_id)
            raw = draft.raw()
            made.append(
                ToolCall(
                    id=call_id,
                    name=self._internal(draft.name),
                    arguments=parse_arguments(raw),
                    arguments_raw=raw,
                    extra=draft.extra or None,
                )
            )
        return tuple(made)

    def _take_one(self, call: dict[str, Any], out: list[ChatChunk], *, whole: bool) -> None:
        function = json_object(call.get("function")) or {}
        call_id, name = text_or_empty(call.get("id")), text_or_empty(function.get("name"))
        arguments = _arguments_text(function.get("arguments"))
        draft = None if whole else self._draft_of(call.get("index"), call_id, name, arguments)
        if draft is None:
            draft = self._new_draft(None if whole else index_of(call.get("index")))
        elif call_id and name and _begins_anew(draft, arguments):
            return  # The whole call once more, with its own id: it came already.
        fresh_name = bool(name) and not draft.name
        draft.id = draft.id or call_id
        draft.name = draft.name or name
        if arguments:
            draft.arguments.append(arguments)
        draft.extra.update({k: v for k, v in call.items() if k not in _CALL_FIELDS})
        shown = self._internal(draft.name) if fresh_name else None
        delta = ToolCallDelta(draft.position, draft.id or None, shown, arguments)
        out.append(ChatChunk(tool_call_delta=delta))

    def _draft_of(self, index: Any, call_id: str, name: str, arguments: str) -> _Draft | None:
        """The call that a fragment belongs to; None when it begins a new one."""
        number = index_of(index)
        if number is not None:
            draft = self._by_index.get(number)
        else:
            draft = self._drafts[-1] if self._drafts else None
        if draft is None:
            return None
        if call_id and draft.id and call_id != draft.id and draft.name:
            return None  # Every parallel call with the same index: a new id is a new call.
        if name and not (call_id and call_id == draft.id) and draft.name:
            # Without an id of its own: no index, another name, or a second whole object say so.
            if number is None or name != draft.name or _begins_anew(draft, arguments):
                return None
        elif name and call_id and _begins_anew(draft, arguments) and arguments != draft.raw():
            return None  # Two calls under one id (old gateways).
        return draft

    def _new_draft(self, index: int | None) -> _Draft:
        if len(self._drafts) >= _MOST_CALLS:
            raise bad_answer(f"more than {_MOST_CALLS} tool calls are in it")
        draft = _Draft(len(self._drafts))
        self._drafts.append(draft)
        if index is not None:
            self._by_index[index] = draft
        return draft

    def _internal(self, name: str) -> str:
        return self._names.from_wire(name) or name


def index_of(value: Any) -> int | None:
    """The number that a server's `index` stands for; None for no number."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 9:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _begins_anew(draft: _Draft, arguments: str) -> bool:
    """Whether a fragment opens an object although the call's arguments are one already."""
    if not arguments.lstrip().startswith("{"):
        return False
    return draft.raw().rstrip().endswith("}") and parse_arguments(draft.raw()) is not None


def _arguments_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if not is_keepable(value):
        # Text that is JSON and no object: the call is answered with an error, the rest is kept.
        return '"arguments nested too deeply, or with a number that is too large"'
    return dump_json(value).decode()


def _calls_in(text: str) -> Iterator[tuple[str, Any]]:
    """Calls that a model wrote in its own format: JSON, `<tool_call>`, `<function=…>`."""
    tagged = [(m[1], m[2]) for m in _TAGGED.finditer(text)]
    if tagged:
        yield from tagged
        return
    plain = re.sub(r"</?tool_call>|```(?:json)?", "", text).strip()
    decoder = json.JSONDecoder()
    while plain:
        try:
            value, end = decoder.raw_decode(plain)
        except (ValueError, RecursionError):
            return
        for item in cast("list[Any]", value) if isinstance(value, list) else [value]:
            call = json_object(item) or {}
            call = json_object(call.get("function")) or call
            arguments = call.get("arguments", call.get("parameters"))
            if isinstance(call.get("name"), str) and call["name"]:
                yield call["name"], arguments
        plain = plain[end:].lstrip(" \t\r\n,;")
