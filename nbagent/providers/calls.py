"""Tool calls of an answer, put together from whole calls or from fragments of any server.

Keeps what the model wrote; whether a call makes sense is decided where it is run.
"""

from __future__ import annotations

import secrets
from typing import Any

from nbagent.contracts.chat import ToolCall, ToolCallDelta, parse_arguments
from nbagent.providers.frames import bad_answer, clean
from nbagent.providers.names import WireNames

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


class _Draft:
    """A tool call that is still arriving."""

    __slots__ = ("extra", "halves", "id", "looks", "name", "pieces", "position")

    def __init__(self) -> None:
        self.position = -1
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.looks = 0
        """So often it was looked at whether it is whole."""
        self.halves = Halves()
        self.extra: dict[str, Any] = {}

    def raw(self) -> str:
        return "".join(self.pieces)

    @property
    def is_call(self) -> bool:
        """Not an empty entry, which gateways with empty structs write."""
        return self.position >= 0


class Calls:
    """The calls of one answer."""

    def __init__(self, names: WireNames) -> None:
        self._names = names
        self._drafts: list[_Draft] = []
        self._by_key: dict[object, _Draft] = {}
        self._shown = 0

    def __bool__(self) -> bool:
        return self._shown > 0

    def take(
        self,
        key: object,
        *,
        id: str = "",
        name: str = "",
        arguments: str = "",
        extra: dict[str, Any] | None = None,
        whole: bool = False,
    ) -> ToolCallDelta | None:
        """Fold a fragment of a call; returns what can be shown of it.

        Args:
            key: the call's index or the id of its item; None when the server gives neither.
            whole: it is a call of its own, not a fragment.
        """
        draft = None if whole else self._draft_of(key, id, name, arguments)
        if draft is None:
            draft = self._new_draft(None if whole else key)
        elif id and name and _begins_anew(draft, arguments):
            return None  # The whole call once more, with its own id: it came already.
        draft.id = draft.id or clean(id)
        fresh = bool(name) and not draft.name
        draft.name = draft.name or clean(name)
        draft.extra.update(extra or {})
        if not name and not arguments:
            return None
        arguments = draft.halves.feed(arguments)
        draft.pieces.append(arguments)
        if draft.position < 0:
            draft.position, self._shown = self._shown, self._shown + 1
        shown = self._internal(draft.name) if fresh else None
        return ToolCallDelta(draft.position, draft.id or None, shown, arguments)

    def replace(self, key: object, arguments: str) -> None:
        """Take the whole arguments of a call in place of its fragments: a later, sure word."""
        if draft := self._by_key.get(key):
            draft.pieces[:] = [clean(arguments)]

    def finished(self) -> tuple[ToolCall, ...]:
        """All calls, each with an id of its own."""
        seen: set[str] = set()
        known: set[tuple[str, str, str]] = set()
        made: list[ToolCall] = []
        for draft in sorted(self._drafts, key=lambda draft: draft.position):
            if not draft.is_call:
                continue
            draft.pieces.append(draft.halves.flush())
            raw = draft.raw()
            if draft.id:
                whole = (draft.id, draft.name, raw)
                if whole in known:
                    continue  # The same call once more: it is run once.
                known.add(whole)
            draft.id = call_id = draft.id or f"call_{secrets.token_hex(12)}"
            n = 1
            while call_id in seen:
                n += 1
                call_id = f"{draft.id}_{n}"
            seen.add(call_id)
            made.append(
                ToolCall(
                    id=call_id,
                    name=self._internal(draft.name),
                    arguments=parse_arguments(raw),
                    arguments_raw=raw,
                    extra=clean(draft.extra) or None,
                )
            )
        return tuple(made)

    def _draft_of(self, key: object, id: str, name: str, arguments: str) -> _Draft | None:
        """The call that a fragment belongs to; None when it begins a new one."""
        if key is not None:
            draft = self._by_key.get(key)
        else:
            draft = self._drafts[-1] if self._drafts else None
        if draft is None:
            return None
        if id and draft.id and id != draft.id and draft.name:
            return None  # Every parallel call with the same index: a new id is a new call.
        if name and not (id and id == draft.id) and draft.name:
            # Without an id of its own: no index, another name, or a second whole object say so.
            if key is None or name != draft.name or _begins_anew(draft, arguments):
                return None
        elif name and id and _begins_anew(draft, arguments) and arguments != draft.raw():
            return None  # Two calls under one id (old gateways).
        return draft

    def _new_draft(self, key: object) -> _Draft:
        if len(self._drafts) >= _MOST_CALLS:
            raise bad_answer(f"more than {_MOST_CALLS} tool calls are in it")
        draft = _Draft()
        self._drafts.append(draft)
        if key is not None:
            self._by_key[key] = draft
        return draft

    def _internal(self, name: str) -> str:
        return self._names.from_wire(name) or name


def _begins_anew(draft: _Draft, arguments: str) -> bool:
    """Whether a fragment opens an object although the call's arguments are one already."""
    draft.looks += 1
    if draft.looks > _MOST_LOOKS or not arguments.lstrip().startswith("{"):
        return False
    return draft.raw().rstrip().endswith("}") and parse_arguments(draft.raw()) is not None
