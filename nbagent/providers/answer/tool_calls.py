"""Assemble the tool calls of an answer from whole calls or fragments of any server.

Keeps the model's own text; the engine decides if a call is valid.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from nbagent.contracts.messages import ToolCall, parse_arguments
from nbagent.contracts.model import CallDelta
from nbagent.providers.transport.sse import bad_response, fix_surrogates
from nbagent.providers.wires.tool_names import WireNames

_MAX_CALLS = 512
_MAX_PARSE_ATTEMPTS = 64
"""Parse an unfinished call at most this often; unlimited parsing would be quadratic."""


class SurrogateJoiner:
    """Joins a surrogate pair that a server splits into two pieces."""

    __slots__ = ("_first_half",)

    def __init__(self) -> None:
        self._first_half = ""

    def feed(self, piece: str) -> str:
        """Return the complete characters; a first half at the end waits for the next piece."""
        if piece.isascii() and not self._first_half:
            return piece
        text, self._first_half = self._first_half + piece, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._first_half = text[:-1], text[-1]
        return fix_surrogates(text)

    def flush(self) -> str:
        """Return U+FFFD if a first half is left, else nothing."""
        first_half, self._first_half = self._first_half, ""
        return "\ufffd" if first_half else ""


@dataclass(slots=True)
class _Draft:
    """A tool call that is still arriving."""

    position: int | None = None
    """Index among the calls; None while it has neither a name nor arguments."""
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    parse_attempts: int = 0
    """How many times its arguments were parsed to see if they are complete."""
    joiner: SurrogateJoiner = field(default_factory=SurrogateJoiner)
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    def raw(self) -> str:
        return "".join(self.pieces)

    def starts_second_object(self, arguments: str) -> bool:
        """True if a fragment opens an object although the arguments are complete already."""
        self.parse_attempts += 1
        if self.parse_attempts > _MAX_PARSE_ATTEMPTS or not arguments.lstrip().startswith("{"):
            return False
        raw = self.raw()
        return raw.rstrip().endswith("}") and parse_arguments(raw) is not None


class ToolCallAssembler:
    """Tool calls of one answer.

    Servers stream calls differently: the same `index` for all parallel calls, no index, no id, the
    name in every fragment, whole calls. The rules in `add` read all of them.
    """

    def __init__(self, names: WireNames) -> None:
        self._names = names
        self._by_key: dict[object, _Draft] = {}
        self._count = 0
        self._calls: list[_Draft] = []
        """Calls in order, without the empty entries that some gateways write."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(
        self,
        key: object,
        *,
        id: str = "",
        name: str = "",
        arguments: str = "",
        extra: dict[str, Any] | None = None,
    ) -> CallDelta | None:
        """Add a call or a fragment of one; return the part to show, None if there is none.

        Args:
            key: the call's index or the id of its item; None if the server sends neither; a new
                `object()` for a call that arrives whole.
        """
        draft = self._by_key.get(key)
        if draft is not None and draft.name:
            second_object = bool(name) and draft.starts_second_object(arguments)
            if second_object and id and (id, arguments) == (draft.id, draft.raw()):
                return None  # A repeat of the whole call with the same id.
            if id and draft.id:
                # Some servers send parallel calls with the same index, old gateways two calls with
                # the same id.
                is_other = id != draft.id or second_object
            else:
                # Without an id: a name with no index, another name, or a second whole object begins
                # a
                # new call. A repeated name alone does not: some servers send it in each fragment.
                is_other = bool(name) and (key is None or name != draft.name or second_object)
            draft = None if is_other else draft
        draft = draft or self._new_draft(key)
        draft.id = draft.id or fix_surrogates(id)
        is_named = bool(name) and not draft.name
        draft.name = draft.name or fix_surrogates(name)
        draft.extra.update(extra or {})
        if not is_named and not arguments:
            return None
        arguments = draft.joiner.feed(arguments)
        draft.pieces.append(arguments)
        if draft.position is None:
            draft.position = len(self._calls)
            self._calls.append(draft)
        shown = self._names.from_wire(draft.name) if is_named else None
        return CallDelta(draft.position, draft.id or None, shown, arguments)

    def replace(self, key: object, arguments: str) -> None:
        """Replace the fragments of a call by its whole arguments, which the server sent later."""
        if draft := self._by_key.get(key):
            draft.pieces[:] = [fix_surrogates(arguments)]

    def build(self) -> tuple[ToolCall, ...]:
        """Return all calls, each with an id of its own: results are matched by it."""
        ids: set[str] = set()
        seen_calls: set[tuple[str, str, str]] = set()
        calls: list[ToolCall] = []
        for draft in self._calls:
            draft.pieces.append(draft.joiner.flush())
            raw = draft.raw()
            if draft.id and (draft.id, draft.name, raw) in seen_calls:
                continue  # A repeat of the same call runs once.
            seen_calls.add((draft.id, draft.name, raw))
            call_id = wanted = draft.id or f"call_{secrets.token_hex(12)}"
            n = 1
            while call_id in ids:
                n += 1
                call_id = f"{wanted}_{n}"
            ids.add(call_id)
            calls.append(
                ToolCall(
                    id=call_id,
                    name=self._names.from_wire(draft.name),
                    arguments=parse_arguments(raw),
                    arguments_raw=raw,
                    extra=fix_surrogates(draft.extra) or None,
                )
            )
        return tuple(calls)

    def _new_draft(self, key: object) -> _Draft:
        self._count += 1
        if self._count > _MAX_CALLS:
            raise bad_response(f"more than {_MAX_CALLS} tool calls are in it")
        # A fragment without a key continues the last call.
        draft = self._by_key[key] = self._by_key[None] = _Draft()
        return draft
