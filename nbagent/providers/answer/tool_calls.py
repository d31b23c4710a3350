"""Tool calls of an answer, put together from whole calls or from fragments of any server.

Keeps what the model wrote; whether a call makes sense is decided where it is run.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from nbagent.contracts.messages import ToolCall, parse_arguments
from nbagent.contracts.model import CallDelta
from nbagent.providers.transport.sse import bad_answer, clean
from nbagent.providers.wires.tool_names import WireNames

_MOST_CALLS = 512
_MOST_LOOKS = 64
"""At one call that is not whole yet: more would take a hostile stream's time squared."""


class Halves:
    """Joins the halves of a character that a server sends in two pieces."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """What is whole; a first half at the end waits for the next piece."""
        if piece.isascii() and not self._held:
            return piece
        text, self._held = self._held + piece, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        return clean(text)

    def flush(self) -> str:
        """What stands for a half that stayed alone."""
        held, self._held = self._held, ""
        return "\ufffd" if held else ""


@dataclass(slots=True)
class _Draft:
    """A tool call that is still arriving."""

    position: int | None = None
    """Among the calls; None as long as there is neither a name nor arguments."""
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    looks: int = 0
    """So often it was looked at whether it is whole."""
    halves: Halves = field(default_factory=Halves)
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    def raw(self) -> str:
        return "".join(self.pieces)

    def begins_anew(self, arguments: str) -> bool:
        """Whether a fragment opens an object although the arguments are one already."""
        self.looks += 1
        if self.looks > _MOST_LOOKS or not arguments.lstrip().startswith("{"):
            return False
        raw = self.raw()
        return raw.rstrip().endswith("}") and parse_arguments(raw) is not None


class Calls:
    """The calls of one answer."""

    def __init__(self, names: WireNames) -> None:
        self._names = names
        self._by_key: dict[object, _Draft] = {}
        self._begun = 0
        self._calls: list[_Draft] = []
        """Without empty entries, which some gateways write."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def take(
        self,
        key: object,
        *,
        id: str = "",
        name: str = "",
        arguments: str = "",
        extra: dict[str, Any] | None = None,
    ) -> CallDelta | None:
        """Fold a call, or a fragment of one; returns what can be shown of it.

        Args:
            key: the call's index or the id of its item; None when the server gives neither, and
                a new `object()` for a call that comes whole.
        """
        draft = self._by_key.get(key)
        if draft is not None and draft.name:
            anew = bool(name) and draft.begins_anew(arguments)
            if anew and id and (id, arguments) == (draft.id, draft.raw()):
                return None  # The whole call once more, with its own id: it came already.
            if id and draft.id:
                # Parallel calls with the same index; two calls under one id (old gateways).
                is_other = id != draft.id or anew
            else:
                # Without an id of its own: no index, another name, or a second whole object say so.
                is_other = bool(name) and (key is None or name != draft.name or anew)
            draft = None if is_other else draft
        draft = draft or self._new_draft(key)
        draft.id = draft.id or clean(id)
        is_named = bool(name) and not draft.name
        draft.name = draft.name or clean(name)
        draft.extra.update(extra or {})
        if not is_named and not arguments:
            return None
        arguments = draft.halves.feed(arguments)
        draft.pieces.append(arguments)
        if draft.position is None:
            draft.position = len(self._calls)
            self._calls.append(draft)
        shown = self._names.from_wire(draft.name) if is_named else None
        return CallDelta(draft.position, draft.id or None, shown, arguments)

    def replace(self, key: object, arguments: str) -> None:
        """Take the whole arguments of a call in place of its fragments: a later, sure word."""
        if draft := self._by_key.get(key):
            draft.pieces[:] = [clean(arguments)]

    def finished(self) -> tuple[ToolCall, ...]:
        """All calls, each with an id of its own."""
        ids: set[str] = set()
        known: set[tuple[str, str, str]] = set()
        made: list[ToolCall] = []
        for draft in self._calls:
            draft.pieces.append(draft.halves.flush())
            raw = draft.raw()
            if draft.id and (draft.id, draft.name, raw) in known:
                continue  # The same call once more: it is run once.
            known.add((draft.id, draft.name, raw))
            call_id = wanted = draft.id or f"call_{secrets.token_hex(12)}"
            n = 1
            while call_id in ids:
                n += 1
                call_id = f"{wanted}_{n}"
            ids.add(call_id)
            made.append(
                ToolCall(
                    id=call_id,
                    name=self._names.from_wire(draft.name),
                    arguments=parse_arguments(raw),
                    arguments_raw=raw,
                    extra=clean(draft.extra) or None,
                )
            )
        return tuple(made)

    def _new_draft(self, key: object) -> _Draft:
        self._begun += 1
        if self._begun > _MOST_CALLS:
            raise bad_answer(f"more than {_MOST_CALLS} tool calls are in it")
        # The last one is meant where no key is given.
        draft = self._by_key[key] = self._by_key[None] = _Draft()
        return draft
